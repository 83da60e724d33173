"""Arguments and options that commands share: TARGET, listening, and recording options."""

import json
import shutil
import signal
import subprocess
import sys

import click
import pytest
import trio
from memory_sessions import client_session

from mcp_trio import Server
from mcp_trio._cli.options import (
    TargetUsageError,
    given_serving_options,
    listen_address,
    listening,
    load_server,
    recording_options,
    take_recording,
)
from mcp_trio.examples import weather
from mcp_trio.recording import SharedRecording, check, open_recording

# TARGET.


TWO_SERVERS = """
from mcp_trio import Server
from first import number
one, two = Server(f"one of {number}"), Server("two")
again = one
name = "no server"
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with people's code, to work in; what it imports is forgotten afterwards."""
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setattr(sys, "modules", sys.modules.copy())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "first.py").write_text("number = 2\n")
    (tmp_path / "servers.py").write_text(TWO_SERVERS)
    (tmp_path / "only.py").write_text(
        "from mcp_trio import Server\nserver = same = Server('only')\n"
    )
    return tmp_path


def rejection(target):
    with pytest.raises(TargetUsageError) as caught:
        load_server(target)
    assert caught.value.exit_code == 2
    return caught.value.message


def test_without_an_object_the_modules_only_server_is_used():
    assert load_server("mcp_trio.examples.weather") is weather.server


@pytest.mark.usefixtures("folder")
def test_a_module_in_the_working_directory_is_found():
    assert load_server("only").name == "only"


def test_a_file_can_import_modules_next_to_it_from_any_working_directory(folder, monkeypatch):
    monkeypatch.chdir("/")
    assert load_server(f"{folder}/servers.py:one").name == "one of 2"


@pytest.mark.usefixtures("folder")
def test_a_server_with_two_names_is_one_server():
    assert load_server("only.py").name == "only"


SCRIPT = """
from mcp_trio import Server
server = Server('script')
if __name__ == '__main__':
    raise SystemExit('ran')
"""


def test_code_for_a_main_module_does_not_run(folder):
    (folder / "script.py").write_text(SCRIPT)
    assert load_server("script.py").name == "script"


TYPED = """
from __future__ import annotations
import msgspec
from mcp_trio import Server
server = Server('typed')
class Point(msgspec.Struct):
    x: int
    next: Point | None = None
assert msgspec.convert({'x': 1}, Point).x == 1
"""


def test_annotations_of_classes_in_a_file_can_be_resolved(folder):
    (folder / "typed.py").write_text(TYPED)
    assert load_server("typed.py").name == "typed"


@pytest.mark.usefixtures("folder")
def test_several_servers_in_a_module_are_listed_in_the_error():
    assert rejection("servers.py") == (
        "servers.py defines 2 servers; choose one with servers.py:object;"
        " servers in this module: one, two, again"
    )


def test_a_mounted_server_need_not_be_left_out(folder):
    (folder / "hub.py").write_text(
        "from mcp_trio import Server\n"
        "inner, outer = Server('inner'), Server('outer')\n"
        "outer.mount(inner, prefix='inner')\n"
    )
    assert load_server("hub.py").name == "outer"
    assert load_server("hub.py:inner").name == "inner"


@pytest.mark.usefixtures("folder")
def test_a_module_without_a_server_is_rejected():
    assert rejection("first") == (
        "first defines no Server at its top level; name a function that makes one with"
        " first:function"
    )


FACTORIES = """
from mcp_trio import Server


def make():
    return Server("made")


def fail():
    raise RuntimeError("no database")


def with_argument(port):
    return Server("made")


def nothing():
    pass


async def later():
    return Server("made")


def serving():
    Server("made").run()
"""


def test_a_function_that_makes_a_server_is_called(folder):
    (folder / "factories.py").write_text(FACTORIES)
    assert load_server("factories.py:make").name == "made"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("fail", "makes no server:\nTraceback (most recent call last):\n  File "),
        ("with_argument", "needs arguments: missing a required argument: 'port'; a factory has"),
        ("nothing", "returned an object of type NoneType"),
        ("later", "is `async def`: a factory of a server is a `def` function"),
        ("serving", "server.run() is called while factories.py:serving is imported"),
    ],
)
def test_a_function_that_makes_no_server_is_rejected(folder, name, text):
    (folder / "factories.py").write_text(FACTORIES)
    rejected = rejection(f"factories.py:{name}")
    assert rejected.startswith(f"factories.py:{name} ")
    assert text in rejected


@pytest.mark.usefixtures("folder")
def test_an_object_of_another_type_is_rejected_with_its_type():
    assert rejection("servers.py:name") == (
        "servers.py:name is not a Server but an object of type str; servers in this module: one, two, again"
    )
    assert "servers.py has no object 'three'; servers in this module:" in rejection(
        "servers.py:three"
    )


@pytest.mark.usefixtures("folder")
def test_a_missing_file_or_module_is_named_in_the_error():
    assert rejection("missing.py") == "missing.py: no such file"
    assert rejection("missing") == "missing: no such module; a file name must end with .py"
    assert (
        rejection("missing.deeper")
        == "missing.deeper: no such module; a file name must end with .py"
    )


@pytest.mark.parametrize("target", ["", ".only", "./only", ":server", "a b"])
def test_an_invalid_module_name_is_rejected(target):
    source = target.partition(":")[0]
    assert rejection(target) == f"{source!r} is not a module name; a file name must end with .py"


@pytest.mark.parametrize("target", ["broken.py", "broken"])
@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("import no_such_thing", "No module named 'no_such_thing'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def", "SyntaxError"),
    ],
)
def test_a_failed_import_shows_only_the_users_part_of_the_traceback(folder, target, code, text):
    (folder / "broken.py").write_text(code)
    text_shown = rejection(target)
    assert text_shown.startswith(f"{target} cannot be imported:\n")
    assert text in text_shown
    assert "importlib" not in text_shown
    assert "_cli" not in text_shown


# Listening.


FAILING_SERVER = """
from contextlib import asynccontextmanager

from mcp_trio import Server

@asynccontextmanager
async def lifespan(server):
    yield
    raise OSError(28, "the disk is full")

server = Server("there", lifespan=lifespan)
"""
PLACES = {
    "http": ("--port", "0"),
    "websocket": ("--port", "0"),
    "unix": ("--socket", "s"),
    "tcp": ("--port", "0"),
}


@click.command()
def nothing():
    pass


def fail(address, error, *urls):
    with click.Context(nothing), listening(address, "serving") as attempt:
        for url in urls:
            attempt.report_url(url)
        raise error


def test_an_error_before_listening_is_one_line_and_status_2(capsys):
    with pytest.raises(click.exceptions.Exit) as ended:
        fail("there:1", OSError(98, "in use"))
    assert ended.value.exit_code == 2
    assert capsys.readouterr().err == "cannot listen at there:1: in use\n"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(16, "held", "there"), "held: there"),
        (OSError(16, "held", "a/place"), "held"),
        (OSError(2, "nothing", "no/such"), "nothing"),
        (OSError("path too long"), "path too long"),
    ],
)
def test_an_error_names_another_file_than_the_socket(tmp_path, monkeypatch, capsys, error, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").touch()
    (tmp_path / "a").mkdir()
    (tmp_path / "a/place").touch()
    with pytest.raises(click.exceptions.Exit):
        fail("unix:a/place", error)
    assert capsys.readouterr().err == f"cannot listen at unix:a/place: {text}\n"


def test_an_error_after_listening_is_raised_unchanged(capsys):
    with pytest.raises(OSError, match="the disk is full"):
        fail("there:1", OSError(28, "the disk is full"), "http://there:1/mcp")
    assert capsys.readouterr().err == "serving http://there:1/mcp\n"


def test_without_a_listener_an_error_is_raised_unchanged():
    with pytest.raises(OSError, match="gone"):
        fail(None, OSError(5, "gone"))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "127.0.0.1:8000"),
        ({"port": 0, "token": "t"}, "127.0.0.1:0"),
        ({"host": "::1", "port": 80}, "[::1]:80"),
        ({"path": "a/socket"}, "a/socket"),
    ],
)
def test_an_address_is_written_as_path_or_host_and_port(options, text):
    assert listen_address(**options) == text


def test_options_that_were_not_given_are_left_out():
    options = {"host": None, "port": 0, "hosts": (), "is_open": False}
    assert given_serving_options("tcp", options) == {"port": 0}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("way", PLACES)
def test_an_error_of_a_lifespan_at_shutdown_is_raised_unchanged(
    while_listening, tmp_path, monkeypatch, way, number
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.py").write_text(FAILING_SERVER)
    arguments = ("run", "there.py", "--transport", way, *PLACES[way])
    with pytest.raises(OSError, match="the disk is full"):
        while_listening(str, *arguments, number=number)


# Recording options.


LOGIN_SERVER = """
from mcp_trio import Server
server = Server("s")
@server.tool
async def login(password: str) -> str:
    return password
"""
SECRET = "correct-horse-battery"
INPUT = (
    '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2024-11-05",'
    '"capabilities":{},"clientInfo":{"name":"n","version":"1"}}}\n'
    '{"jsonrpc":"2.0","method":"notifications/initialized"}\n'
    '{"jsonrpc":"2.0","id":2,"method":"tools/call",'
    '"params":{"name":"login","arguments":{"password":"' + SECRET + '"}}}\n'
)


@pytest.fixture
def target(tmp_path):
    (tmp_path / "server.py").write_text(LOGIN_SERVER)
    return tmp_path / "server.py"


@pytest.fixture
def key(tmp_path):
    (tmp_path / "key").write_bytes(b"  sixteen bytes or more \n")
    return tmp_path / "key"


def mcp_trio(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "mcp_trio", *map(str, arguments)],
        input=INPUT,
        capture_output=True,
        check=False,
        text=True,
        timeout=30,
    )


def recording_of(*arguments, strict=False):
    @click.command()
    @recording_options
    def command(**options):
        return take_recording(options, "x.jsonl", strict=strict)

    return command.main([*map(str, arguments)], standalone_mode=False)


def test_a_path_alone_gives_default_options():
    options = recording_of()
    assert options.path == "x.jsonl"
    assert options.redaction is options.segment_bytes_max is options.sync_seconds is None
    assert not options.strict


def test_each_option_sets_its_recorder_option(key):
    segments = ("--segment-mib", 1.5, "--segment-minutes", 2, "--sync-seconds", 3)
    options = recording_of(*segments, "--compress", "--redaction-key", key, strict=True)
    assert options.compress
    assert options.segment_bytes_max == 1_572_864
    assert (options.segment_seconds_max, options.sync_seconds) == (120, 3)
    assert options.redaction.key == b"sixteen bytes or more"
    assert options.strict
    assert recording_of("--redact").redaction.key is None


@pytest.mark.slow
def test_run_records_with_the_given_options(target, key, tmp_path):
    path = tmp_path / "trip.mcprec.jsonl.zst"
    options = ["--segment-mib", "0.0001", "--redaction-key", key, "--strict", "--sync-seconds", "9"]
    done = mcp_trio("run", target, "--record", path, *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert SECRET in done.stdout
    lines = list(open_recording(path))
    assert check(lines).complete
    assert SECRET not in b"".join(lines).decode()
    assert (tmp_path / "trip.2.mcprec.jsonl.zst").exists()


def test_no_command_overwrites_a_recording_unasked(invoke, target, tmp_path):
    path = tmp_path / "trip.mcprec.jsonl"
    assert mcp_trio("run", target, "--record", path).returncode == 0
    before = path.read_bytes()
    another = shutil.copy(path, tmp_path / "another.mcprec.jsonl")
    command = [sys.executable, "-m", "mcp_trio", "run", target]
    for arguments in (
        ["run", target, "--record", path],
        ["run", target, "--record", path, "--segment-mib", "1"],
        ["record", "-o", path, "--", *command],
        ["bridge", "-", "--record", path, "--", *command],
        ["redact", another, "-o", path],
        ["export", another, "-o", path],
    ):
        done = invoke(*map(str, arguments))
        assert (done.exit_code, "--overwrite" in done.stderr, done.stdout) == (2, True, "")
        assert path.read_bytes() == before
    assert mcp_trio("run", target, "--record", path, "--overwrite").returncode == 0
    assert path.read_bytes() != before
    assert check(open_recording(path)).complete
    assert invoke("redact", str(another), "-o", str(path), "--overwrite").exit_code == 0


@pytest.mark.slow
def test_record_records_with_the_given_options(target, tmp_path):
    path = tmp_path / "trip.mcprec.jsonl"
    command = [sys.executable, "-m", "mcp_trio", "run", target]
    done = mcp_trio("record", "-o", path, "--redact", "--segment-mib", "0.0001", "--", *command)
    assert (done.returncode, done.stderr) == (0, "")
    assert SECRET in done.stdout
    lines = list(open_recording(path))
    assert check(lines).complete
    assert SECRET not in b"".join(lines).decode()
    assert (tmp_path / "trip.2.mcprec.jsonl").exists()


@pytest.mark.parametrize("option", [["--redact"], ["--strict"], ["--segment-mib", "1"]])
def test_recording_options_without_a_recording_are_rejected(invoke, target, option):
    done = invoke("run", target, *option)
    assert (done.exit_code, "need --record PATH" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    "option",
    [
        *("--segment-mib", "--segment-minutes", "--sync-seconds"),
        *("--keep-slow", "--max-days", "--max-gib", "--min-free-gib"),
    ],
)
@pytest.mark.parametrize("number", ["0", "-1", "nan", "inf", "many"])
def test_numbers_have_to_be_finite_and_above_zero(invoke, target, option, number):
    done = invoke("run", target, "--record", "x", option, number)
    assert (done.exit_code, f"Invalid value for '{option}'" in done.stderr) == (2, True)


@pytest.mark.parametrize("command", ["replay", "call"])
@pytest.mark.parametrize("number", ["0", "nan", "inf"])
def test_timeouts_have_to_be_finite_and_above_zero(invoke, command, number):
    done = invoke(command, "x", "--timeout", number, "--", sys.executable)
    assert (done.exit_code, "Invalid value for '--timeout'" in done.stderr) == (2, True)


def test_compress_is_rejected_for_a_file_without_the_suffix(invoke, tmp_path):
    path = tmp_path / "x.mcprec.jsonl"
    done = invoke("record", "--compress", "-o", path, "--", sys.executable)
    assert done.exit_code == 2
    assert "a single file is compressed if its name" in done.stderr
    assert not path.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "x.py", "--transport", "http", "--record"],
        ["bridge", "-", "http://x/mcp", "--record"],
        ["record", "--to", "http://x/mcp", "-o"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_an_unusable_folder_is_rejected_before_anything_starts(
    invoke, tmp_path, monkeypatch, arguments
):
    done = invoke(*arguments, f"{tmp_path}/new/")
    assert done.exit_code == 2
    assert "make the folder first: mkdir" in " ".join(done.stderr.split())
    monkeypatch.setattr("os.access", lambda *_: False)
    done = invoke(*arguments, tmp_path)
    assert done.exit_code == 2
    assert "a file cannot be created there" in " ".join(done.stderr.split())


def test_an_unusable_redaction_key_is_rejected(invoke, tmp_path):
    (tmp_path / "short").write_bytes(b"123")
    for name, text in (("short", "has less than 16 bytes"), ("none", "cannot read the key")):
        options = ["-o", tmp_path / "x", "--redaction-key", tmp_path / name, "--", sys.executable]
        done = invoke("record", *options)
        assert (done.exit_code, text in done.stderr) == (2, True)
    assert not (tmp_path / "x").exists()


def test_sessions_in_one_file_have_their_own_channels(tmp_path, invoke):
    path = tmp_path / "x.mcprec.jsonl"

    async def talk(server, shared):
        async with client_session(server, shared) as client:
            await client.ping()

    async def main():
        with SharedRecording(path) as shared:
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(talk, Server("s"), shared)

    trio.run(main)
    shown = invoke("show", path).output
    assert "requests 6, answers 6" in shown
    assert shown.split()[:4] == ["record", "ms", "channel", "lane"]
    rows = [json.loads(line) for line in invoke("show", path, "--json").output.splitlines()]
    assert {row.get("channel") for row in rows} == {None, 1, 2, 3}
    chosen = invoke("show", path, "--channel", "2", "--json").output.splitlines()
    assert [json.loads(line) for line in chosen] == [r for r in rows if r.get("channel") == 2]
    shown = invoke("show", path, "--channel", "2").output
    assert f"shown: {len(chosen)} of {len(rows)} rows" in shown


@pytest.mark.slow
def test_a_later_segment_is_rejected_and_the_error_names_the_first(target, tmp_path, invoke):
    path = tmp_path / "trip.mcprec.jsonl"
    mcp_trio("run", target, "--record", path, "--segment-mib", "0.0001")
    assert invoke("check", path).exit_code == 0
    assert "login" in invoke("show", path).output
    assert invoke("diff", path, path).exit_code == 0
    assert invoke("replay", path, target).exit_code == 0
    for command in (["check"], ["show"], ["export"]):
        done = invoke(*command, tmp_path / "trip.2.mcprec.jsonl")
        assert done.exit_code == 2
        assert f"name its first file, {path}" in done.stderr
