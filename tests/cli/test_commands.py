"""The command group: help, version, exit statuses, imports, progress bars, suggestions, completion."""

import importlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from contextlib import redirect_stderr
from pathlib import Path

import click
import pytest
import zstandard

import mcp_trio as package
from mcp_trio import RequestError
from mcp_trio._cli import main, output
from mcp_trio._cli.commands import COMMANDS, GROUPS, commands
from mcp_trio._cli.install import HOSTS
from mcp_trio._cli.options import errors_naming, lines_of
from mcp_trio._cli.output import (
    busy_bar,
    call_bar,
    counting_bar,
    hidden_bars,
    items_with_bar,
    lines_with_bar,
    size_text,
)
from mcp_trio._journal.records import KINDS
from mcp_trio.errors import RecordingError
from mcp_trio.types import ProgressParams
from tests.processes import loaded_by


def test_the_version_is_that_of_the_package(invoke):
    shown = invoke("--version")
    assert shown.output.split()[-1] == package.__version__
    assert shown.exit_code == 0


def test_the_help_lists_every_command_with_examples(invoke):
    shown = invoke("--help").output
    for name in COMMANDS:
        assert re.search(rf"^  {name} +[A-Z].*[a-z]\.$", shown, re.MULTILINE)
    assert "mcp-trio replay recordings/trip.mcprec.jsonl server.py" in shown
    assert "file.py[:object]" in shown


def test_a_shell_can_complete_every_command():
    assert commands.list_commands(click.Context(commands)) == list(COMMANDS)


def test_the_help_groups_the_commands(invoke):
    shown = invoke("--help").output
    positions = [shown.index(f"\n{group}:\n") for group in GROUPS]
    assert positions == sorted(positions)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_commands_help_has_examples_and_exit_statuses(invoke, name):
    shown = invoke(name, "--help")
    assert shown.exit_code == 0
    assert "Exit status: " in shown.output
    assert len(re.findall(rf"^ +mcp-trio {name}\b", shown.output, re.MULTILINE)) >= 2
    assert max(map(len, shown.output.splitlines())) <= 100


@pytest.mark.parametrize(
    "error",
    [KeyboardInterrupt(), BaseExceptionGroup("tasks", [KeyboardInterrupt(), KeyboardInterrupt()])],
)
def test_an_interrupted_command_exits_with_130(invoke, monkeypatch, error):
    def interrupt(*_, **__):
        raise error

    monkeypatch.setattr("mcp_trio._cli.recordings.print_timeline", interrupt)
    assert invoke("show", "any.mcprec.jsonl").exit_code == 130


def test_control_characters_in_a_peers_error_are_escaped(invoke, monkeypatch):
    def fail(*_, **__):
        raise RequestError(-1, "\x1b[2J\n\tgone")

    monkeypatch.setattr("mcp_trio._cli.recordings.print_timeline", fail)
    shown = invoke("show", "any.mcprec.jsonl")
    assert (shown.exit_code, shown.stderr) == (1, "\\x1b[2J\n\tgone (code -1)\n")


def test_an_unknown_command_is_a_usage_error(invoke):
    shown = invoke("serve")
    assert shown.exit_code == 2
    assert "No such command 'serve'" in shown.output


def test_an_unknown_transport_is_rejected_and_the_known_ones_are_named(invoke):
    shown = invoke("run", "--transport", "pigeon", "server.py")
    assert shown.exit_code == 2
    assert "'pigeon' is not one of 'stdio', 'http', 'websocket', 'unix', 'tcp'" in shown.output


def test_the_module_runs_as_the_command(mcp_trio):
    assert mcp_trio("--version").stdout == f"mcp-trio {package.__version__}\n"


@pytest.mark.parametrize("descriptor", [0, 1, 2])
def test_a_standard_stream_may_be_closed(kept, descriptor):
    for command in (["check", "-"], ["call", "mcp_trio.examples.weather", "warmest"]):
        done = subprocess.run(
            [
                *("sh", "-c", f'exec "$@" {descriptor}<&-', "sh"),
                *(sys.executable, "-m", "mcp_trio", *command),
            ],
            check=False,
            capture_output=True,
            input=f"{kept.server}\n",
            text=True,
            timeout=30,
        )
        if descriptor == 0 and command[0] == "check":
            assert (done.returncode, done.stderr) == (1, "Error: stdin names no recording\n")
        else:
            assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no device that is full")
@pytest.mark.parametrize("is_buffered", [True, False])
@pytest.mark.parametrize("command", [("list", "mcp_trio.examples.weather"), ("call", "--help")])
def test_output_that_the_disk_has_no_room_for_is_reported_in_one_line(command, is_buffered):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "mcp_trio", *command],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=full,
            env=os.environ | {"PYTHONUNBUFFERED": "" if is_buffered else "1"},
            stderr=subprocess.PIPE,
            text=True,
            timeout=30,
        )
    assert done.stderr == "cannot write the output: No space left on device\n"
    assert done.returncode == 1


def test_a_character_that_the_encoding_of_stdout_lacks_is_escaped(mcp_trio, tmp_path):
    text = (
        "from mcp_trio import Server\nserver = Server('s')\n@server.tool\ndef tool():\n    '金 €'"
    )
    (tmp_path / "server.py").write_text(text, encoding="utf-8")
    environment = os.environ | {"PYTHONIOENCODING": "iso-8859-15"}
    for command in ("list", "inspect"):
        done = mcp_trio(command, tmp_path / "server.py", env=environment, encoding="iso-8859-15")
        assert r"\u91d1 €" in done.stdout, done.stderr


def test_importing_the_main_module_runs_nothing():
    assert importlib.import_module("mcp_trio.__main__").main is main


def test_importing_the_command_line_imports_no_library():
    assert loaded_by("import mcp_trio._cli").isdisjoint({"click", "trio", "rich", "msgspec"})


@pytest.mark.slow
def test_run_over_stdio_imports_no_rich_and_no_http():
    loaded = loaded_by(
        "import mcp_trio._cli.commands, mcp_trio._cli.serve, mcp_trio._cli.options, mcp_trio._server.stdio"
    )
    assert loaded.isdisjoint({"rich", "httpx2", "h11", "hypercorn", "zstandard", "re2"})


@pytest.mark.slow
def test_help_needs_no_event_loop():
    code = """
from click.testing import CliRunner
from mcp_trio._cli.commands import commands
assert "complete" in CliRunner().invoke(commands, ["--help"]).output
"""
    assert "trio" not in loaded_by(code)


def test_the_help_names_every_kind_of_record(invoke):
    words = re.findall(r"\w+", invoke("show", "--help").output.partition("Kinds:")[2])
    assert KINDS.keys() <= set(words)


def test_the_usage_has_a_line_for_each_way_to_name_a_server(invoke):
    first, second = invoke("call").output.splitlines()[:2]
    assert first.endswith(" call [OPTIONS] SERVER TOOL [ARGUMENT]...")
    assert second.endswith(" call [OPTIONS] TOOL [ARGUMENT]... -- COMMAND...")


# Progress bars and sizes.


class Screen(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)


def slow_lines(count):
    """Lines of a mebibyte that take their time."""
    for _ in range(count):
        time.sleep(0.05)
        yield b"x" * (1 << 20)


@pytest.mark.usefixtures("terminal")
@pytest.mark.real_time
def test_reading_a_long_file_shows_a_bar_with_bytes(monkeypatch):
    monkeypatch.setattr(output, "_BAR_DELAY_SECONDS", 0.05)
    with redirect_stderr(Screen()) as screen:
        read = list(lines_with_bar(slow_lines(8), "reading it", total_bytes=8 << 20))
    assert len(read) == 8
    assert "reading it" in screen.getvalue()
    assert "/8.4 MB" in screen.getvalue()


@pytest.mark.usefixtures("terminal")
@pytest.mark.real_time
def test_a_long_wait_shows_a_bar(monkeypatch):
    monkeypatch.setattr(output, "_BAR_DELAY_SECONDS", 0.02)
    with redirect_stderr(Screen()) as screen, busy_bar("replaying"):
        time.sleep(0.3)
    assert "replaying" in screen.getvalue()


@pytest.mark.usefixtures("terminal")
def test_steps_are_counted_with_a_thread_and_without_one(monkeypatch):
    monkeypatch.setattr(output, "_BAR_DELAY_SECONDS", 0.0)
    for in_thread in (True, False):
        before = set(threading.enumerate())
        with (
            redirect_stderr(Screen()) as screen,
            counting_bar("sweeping", 3, in_thread=in_thread) as advance,
        ):
            for _ in range(4):
                advance()
                assert in_thread or set(threading.enumerate()) <= before
        if not in_thread:
            assert "sweeping" in screen.getvalue()
            assert "1/3" in screen.getvalue()
            assert "4/4" in screen.getvalue()


@pytest.mark.usefixtures("terminal")
@pytest.mark.real_time
def test_items_are_tracked_by_a_bar(monkeypatch):
    monkeypatch.setattr(output, "_BAR_DELAY_SECONDS", 0.02)
    with redirect_stderr(Screen()) as screen:
        for _ in items_with_bar(range(3), "scanning", 3):
            time.sleep(0.1)
    assert "scanning" in screen.getvalue()
    assert "/3" in screen.getvalue()


@pytest.mark.usefixtures("terminal")
def test_quick_work_shows_no_bar():
    with redirect_stderr(Screen()) as screen:
        with busy_bar("replaying"), counting_bar("sweeping", 2, in_thread=False) as advance:
            advance()
        assert list(items_with_bar("ab", "scanning", 2)) == ["a", "b"]
        assert list(lines_with_bar([b"a\n"], "reading it", total_bytes=None)) == [b"a\n"]
    assert screen.getvalue() == ""


@pytest.mark.usefixtures("terminal")
def test_without_a_terminal_no_bar_is_shown(monkeypatch):
    monkeypatch.setattr(output, "_BAR_DELAY_SECONDS", 0.0)
    with redirect_stderr(io.StringIO()) as stderr:
        with (
            busy_bar("replaying"),
            counting_bar("sweeping", 2) as advance,
        ):
            advance()
        assert list(items_with_bar("ab", "scanning", 2)) == ["a", "b"]
        assert list(lines_with_bar([b"a\n"], "reading it", total_bytes=None)) == [b"a\n"]
    assert stderr.getvalue() == ""


@pytest.mark.usefixtures("terminal")
def test_a_compressed_recording_is_read_too(tmp_path):
    path = tmp_path / "a.mcprec.jsonl.zst"
    path.write_bytes(zstandard.compress(b"a\nb\n"))
    assert list(lines_of(path)) == [b"a\n", b"b\n"]


@pytest.mark.usefixtures("terminal")
def test_an_error_names_the_file_once():
    with pytest.raises(RecordingError, match=r"^a.jsonl: empty$"), errors_naming("a.jsonl"):
        raise RecordingError("empty")
    with (
        pytest.raises(RecordingError, match=r"^cannot read a.jsonl: gone$"),
        errors_naming("a.jsonl"),
    ):
        raise RecordingError("cannot read a.jsonl: gone")


def reported(progress, **more):
    return ProgressParams(progress_token=1, progress=progress, **more)


@pytest.mark.usefixtures("terminal")
def test_no_bar_is_drawn_while_the_user_is_asked():
    screen = Screen()
    with redirect_stderr(screen), call_bar("plan", on_any_stderr=False) as report:
        report(reported(1, total=3))
        with hidden_bars():
            shown = screen.getvalue()
            report(reported(2, total=3))
            assert screen.getvalue() == shown
        report(reported(3, total=3))
        assert screen.getvalue() != shown


@pytest.mark.usefixtures("terminal")
def test_the_message_of_a_progress_notification_is_escaped(capsys):
    with call_bar("plan", on_any_stderr=True) as report:
        report(reported(1, total=2, message="half\x1b"))
    assert capsys.readouterr().err == "progress: 1 of 2 half\\x1b\n"


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1536, "1.5 KiB"),
        (3 << 20, "3.0 MiB"),
        (5 << 40, "5120.0 GiB"),
    ],
)
def test_sizes_are_printed_with_units(count, text):
    assert size_text(count) == text


# Errors about unknown names, which end with the name that was probably meant.

SOME = Path(__file__).with_name("some_server.py")
TOOLS = "echo, mixed, broken, noisy, slow"
HOST_NAMES = ", ".join(HOSTS)
FAILING = Path(__file__).with_name("failing_server.py")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["cal"], "Error: No such command 'cal'; did you mean 'call'?"),
        (["serve"], "Error: No such command 'serve'"),
        (["--verson"], "Error: No such option '--verson'; did you mean '--version'?"),
        (["run", "--prt"], "Error: No such option '--prt'; did you mean '--port'?"),
        (["run", "--zzz"], "Error: No such option '--zzz'"),
        (
            ["install", "server.py", "--host", "cursr"],
            f"Error: Invalid value for '--host': 'cursr' is not one of {HOST_NAMES}; did you mean 'cursor'?",
        ),
        (
            ["list", SOME, "tool"],
            "Error: 'tool' is not one of tools, resources, templates, prompts; did you mean 'tools'?",
        ),
    ],
)
def test_names_of_the_command_line(invoke, arguments, line):
    shown = invoke(*arguments)
    assert shown.exit_code == 2
    assert shown.stderr.splitlines()[-1] == line


@pytest.mark.parametrize(
    ("arguments", "status", "line"),
    [
        (["call", SOME, "ecko"], 1, "unknown tool: ecko; did you mean 'echo'? (code -32602)"),
        (
            ["call", SOME, "ecko", "text=a"],
            2,
            f"Error: the server has no tool 'ecko'; it has: {TOOLS}; did you mean 'echo'?",
        ),
        (
            ["call", SOME, "zzz", "text=a"],
            2,
            f"Error: the server has no tool 'zzz'; it has: {TOOLS}",
        ),
        (["call", SOME, "zzz"], 1, "unknown tool: zzz (code -32602)"),
        (
            ["prompt", SOME, "greeet"],
            1,
            "unknown prompt: greeet; did you mean 'greet'? (code -32602)",
        ),
    ],
)
def test_names_of_a_server(invoke, arguments, status, line):
    shown = invoke(*arguments)
    assert shown.exit_code == status
    assert shown.stderr.splitlines()[-1] == line


def test_a_server_that_reports_unknown_tools_in_results(invoke):
    command = ["--", sys.executable, str(FAILING)]
    shown = invoke("call", "forcast", *command)
    assert (shown.exit_code, shown.stderr) == (1, "no forcast; did you mean 'forecast'?\n")
    shown = invoke("call", "forecast", *command)
    assert (shown.exit_code, shown.stderr) == (1, "no forecast\n")
    shown = invoke("call", "forcast", "--json", *command)
    assert json.loads(shown.stdout)["isError"]


def test_a_name_in_a_configuration_file(invoke, tmp_path):
    config = tmp_path / "mcp.json"
    config.write_text('{"mcpServers": {"weather": {"command": "x"}}}')
    shown = invoke("list", "wether", "--config", config)
    assert shown.stderr.splitlines()[-1] == (
        f"Error: {config} has no server 'wether'; it has: weather; did you mean 'weather'?"
    )


# Completion by shells, through click's protocol with its variables.

SERVER = "open('imported', 'w').close()\nfrom mcp_trio import Server\nserver = Server('s')\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name in ("server.py", ".hidden.py", "sub/other.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(SERVER)
    for name in ("trip.mcprec.jsonl", "trip.mcprec.jsonl.zst", "notes.txt"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def completed(invoke, *words):
    """What bash is offered for the last word: the type and value of each item."""
    variables = {
        "_MCP_TRIO_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["mcp-trio", *words]),
        "COMP_CWORD": str(len(words)),
    }
    shown = invoke(env=variables, prog_name="mcp-trio")
    assert shown.exit_code == 0, shown.output
    return shown.stdout.split()


def test_commands_are_completed(invoke):
    assert completed(invoke, "re") == [
        *("plain,read", "plain,record", "plain,replay", "plain,redact")
    ]


def test_options_are_completed(invoke):
    assert completed(invoke, "run", "--seg") == ["plain,--segment-mib", "plain,--segment-minutes"]
    assert completed(invoke, "run", "--transport", "w") == ["plain,websocket"]


@pytest.mark.usefixtures("folder")
def test_targets_are_python_files_and_folders(invoke):
    assert completed(invoke, "run", "") == ["dir,", "plain,server.py"]
    assert completed(invoke, "run", "se") == ["plain,server.py"]
    assert completed(invoke, "run", "sub/") == ["plain,sub/other.py"]
    assert completed(invoke, "run", ".h") == ["plain,.hidden.py"]
    assert completed(invoke, "run", "nowhere/x") == []
    assert completed(invoke, "install", "s") == ["dir,s", "plain,server.py"]


@pytest.mark.usefixtures("folder")
def test_recordings_are_completed(invoke):
    recordings = ["plain,trip.mcprec.jsonl", "plain,trip.mcprec.jsonl.zst"]
    assert completed(invoke, "show", "t") == recordings
    assert completed(invoke, "diff", "trip.mcprec.jsonl", "t") == recordings
    assert completed(invoke, "scan", "trip.mcprec.jsonl", "t") == recordings
    assert completed(invoke, "mock", "trip.mcprec.jsonl", "se") == ["plain,server.py"]
    assert completed(invoke, "replay", "trip.mcprec.jsonl", "se") == ["plain,server.py"]
    assert completed(invoke, "replay", "t") == recordings
    assert completed(invoke, "show", "~no-such-user/") == []


@pytest.mark.parametrize("name", [b"caf\xe9", b"two\nlines"])
def test_a_name_that_a_shell_cannot_get_is_not_completed(invoke, folder, name):
    Path(os.fsdecode(os.fsencode(folder) + b"/" + name + b".py")).touch()
    assert completed(invoke, "run", "") == ["dir,", "plain,server.py"]


def test_hosts_are_completed(invoke):
    assert completed(invoke, "install", "--host", "c") == [
        *("plain,claude-desktop", "plain,claude-code", "plain,cursor", "plain,copilot-cli")
    ]


def test_completing_a_call_starts_no_server(invoke, folder):
    assert completed(invoke, "call", "se") == ["plain,server.py"]
    assert completed(invoke, "call", "server.py", "") == []
    assert completed(invoke, "call", "server.py", "tool", "a") == []
    assert completed(invoke, "call", "tool", "--", "python", "se") == []
    assert not (folder / "imported").exists()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_script(invoke, shell):
    shown = invoke("completion", shell)
    assert shown.exit_code == 0
    assert f"_MCP_TRIO_COMPLETE={shell}_complete" in shown.stdout
    assert "mcp-trio" in shown.stdout
    assert invoke("completion", "tcsh").exit_code == 2


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_accepts_the_script(mcp_trio):
    script = mcp_trio("completion", "bash").stdout
    shown = subprocess.run(
        ["bash", "--norc", "-c", f"{script}\ncomplete -p mcp-trio"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert "-F _mcp_trio_completion mcp-trio" in shown.stdout
