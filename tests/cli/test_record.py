"""`record_command` in front of a command: statuses, refusals, and a recording that the others can use."""

import subprocess
import sys

import pytest

from mcp_trio._cli.record import record_command

SERVER = """
import sys
for line in sys.stdin:
    print('{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2024-11-05"}}', flush=True)
print("goodbye", file=sys.stderr)
sys.exit(3)
"""
ASKED = '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}\n'


def record_in_process(*arguments, said=""):
    return subprocess.run(
        [sys.executable, "-m", "mcp_trio", "record", *map(str, arguments)],
        input=said,
        capture_output=True,
        check=False,
        text=True,
        timeout=30,
    )


@pytest.mark.parametrize("place", ["file", "folder"])
def test_a_session_is_recorded_and_its_status_and_stderr_passed_on(tmp_path, invoke, place):
    path = tmp_path / "session.mcprec.jsonl" if place == "file" else tmp_path
    done = record_in_process("-o", path, "--", sys.executable, "-c", SERVER, said=ASKED)
    assert (done.returncode, done.stderr) == (3, "goodbye\n")
    assert done.stdout.count("\n") == 1
    (recording,) = tmp_path.iterdir()
    assert invoke("check", recording).exit_code == 0
    shown = invoke("show", recording).output
    for told in ("role proxy", "answer initialize", "negotiated", "exited", "eof"):
        assert told in shown


def test_the_death_of_a_server_by_a_signal_becomes_a_status(tmp_path):
    code = "import os; os.kill(os.getpid(), 9)"
    done = record_in_process("-o", tmp_path / "x", "--", sys.executable, "-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (137, "", "")


def make_text(folder):
    (folder / "text").write_text("no program")
    return folder / "text"


def make_broken(folder):
    (folder / "broken").write_text("#!/no/such/interpreter\n")
    (folder / "broken").chmod(0o755)
    return folder / "broken"


@pytest.mark.parametrize(
    ("make", "status", "text"),
    [
        (lambda _: "no-such-server", 127, "cannot start 'no-such-server': not found\n"),
        (lambda folder: folder / "missing", 127, "missing': not found\n"),
        (make_text, 126, "text': it is not executable\n"),
        (lambda folder: folder.parent, 126, "': it is not executable\n"),
        (make_broken, 126, "broken': No such file or directory\n"),
    ],
)
def test_a_command_that_cannot_be_started_is_told_in_a_line(tmp_path, make, status, text):
    path = tmp_path / "session.mcprec.jsonl"
    done = record_in_process("-o", path, "--", make(tmp_path))
    assert done.returncode == status
    assert done.stderr.endswith(text)
    assert done.stderr.count("\n") == 1
    assert path.exists() == (make is make_broken)


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("holds something", "the file exists"),
        ("no/such/folder/x", "No such file or directory"),
    ],
)
def test_a_file_that_cannot_be_recorded_to_is_rejected_before_anything_is_started(
    tmp_path, place, text
):
    (tmp_path / "holds something").write_text("precious")
    code = "open('started', 'w')"
    done = record_in_process("-o", tmp_path / place, "--", sys.executable, "-c", code)
    assert done.returncode == 2
    assert text in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "started").exists()
    assert (tmp_path / "holds something").read_text() == "precious"


def test_a_command_and_a_file_are_needed(invoke, tmp_path):
    assert invoke("record", "--", "true").exit_code == 2
    assert "name one server" in invoke("record", "-o", tmp_path / "x").output


def test_the_commands_own_options_are_left_alone(tmp_path):
    done = record_in_process("-o", tmp_path / "x", "--", "echo", "-o", "--", "--help")
    assert done.stdout == "-o -- --help\n"


def test_the_help_tells_where_it_goes(invoke):
    shown = invoke("record", "--help").output
    assert record_command.short_help
    assert "-- python server.py" in shown
    assert "127" in shown
