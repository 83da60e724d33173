"""What `run` and `record` let people say of a recording."""

import json
import subprocess
import sys

import pytest
import trio

from mcp_trio import Client, Server
from mcp_trio._cli.options import record_options
from mcp_trio.recording import SharedRecording, check, open_recording
from mcp_trio.transports import memory_pair

NOTHING = {
    "compress": False,
    "segment_mib": None,
    "segment_minutes": None,
    "sync_seconds": None,
    "redact": False,
    "redaction_key": None,
}
SERVER = """
from mcp_trio import Server
server = Server("s")
@server.tool
async def login(password: str) -> str:
    return password
"""
SECRET = "correct-horse-battery"
SAID = (
    '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2024-11-05",'
    '"capabilities":{},"clientInfo":{"name":"n","version":"1"}}}\n'
    '{"jsonrpc":"2.0","method":"notifications/initialized"}\n'
    '{"jsonrpc":"2.0","id":2,"method":"tools/call",'
    '"params":{"name":"login","arguments":{"password":"' + SECRET + '"}}}\n'
)


@pytest.fixture
def target(tmp_path):
    (tmp_path / "server.py").write_text(SERVER)
    return tmp_path / "server.py"


@pytest.fixture
def key(tmp_path):
    (tmp_path / "key").write_bytes(b"  sixteen bytes or more \n")
    return tmp_path / "key"


def mcp_trio(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "mcp_trio", *map(str, arguments)],
        input=SAID,
        capture_output=True,
        check=False,
        text=True,
        timeout=30,
    )


def test_a_path_alone_means_the_defaults():
    options = record_options("x", NOTHING)
    assert options.path == "x"
    assert options.redaction is options.segment_bytes_max is options.sync_seconds is None
    assert not options.strict


def test_each_option_is_what_it_says(key):
    said = NOTHING | {"segment_mib": 1.5, "segment_minutes": 2.0, "sync_seconds": 3.0}
    said |= {"compress": True, "redaction_key": str(key)}
    options = record_options("x", said, strict=True)
    assert options.compress
    assert options.segment_bytes_max == 1_572_864
    assert (options.segment_seconds_max, options.sync_seconds) == (120, 3)
    assert options.redaction.key == b"sixteen bytes or more"
    assert options.strict
    assert record_options("x", NOTHING | {"redact": True}).redaction.key is None


def test_a_served_session_is_recorded_as_told(target, key, tmp_path):
    path = tmp_path / "trip.mcprec.jsonl.zst"
    options = ["--segment-mib", "0.0001", "--redaction-key", key, "--strict", "--sync-seconds", "9"]
    done = mcp_trio("run", target, "--record", path, *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert SECRET in done.stdout
    lines = list(open_recording(path))
    assert check(lines).complete
    assert SECRET not in b"".join(lines).decode()
    assert (tmp_path / "trip.2.mcprec.jsonl.zst").exists()


def test_a_proxied_session_is_recorded_as_told(target, tmp_path):
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
def test_what_is_said_of_no_recording_is_rejected(invoke, target, option):
    done = invoke("run", target, *option)
    assert (done.exit_code, "need --record PATH" in done.stderr) == (2, True)


@pytest.mark.parametrize("option", ["--segment-mib", "--segment-minutes", "--sync-seconds"])
@pytest.mark.parametrize("number", ["0", "-1", "nan", "inf", "many"])
def test_a_number_that_makes_no_sense_is_rejected(invoke, target, option, number):
    done = invoke("run", target, "--record", "x", option, number)
    assert (done.exit_code, f"Invalid value for '{option}'" in done.stderr) == (2, True)


def test_a_file_is_not_compressed_behind_the_back_of_its_name(invoke, tmp_path):
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
def test_what_is_wrong_with_a_folder_is_said_before_anything_begins(
    invoke, tmp_path, monkeypatch, arguments
):
    done = invoke(*arguments, f"{tmp_path}/new/")
    assert done.exit_code == 2
    assert "the folder does not exist" in " ".join(done.stderr.split())
    monkeypatch.setattr("os.access", lambda *_: False)
    done = invoke(*arguments, tmp_path)
    assert done.exit_code == 2
    assert "a file cannot be created there" in " ".join(done.stderr.split())


def test_a_key_that_is_none_is_rejected(invoke, tmp_path):
    (tmp_path / "short").write_bytes(b"123")
    for name, told in (("short", "has less than 16 bytes"), ("none", "cannot read the key")):
        options = ["-o", tmp_path / "x", "--redaction-key", tmp_path / name, "--", sys.executable]
        done = invoke("record", *options)
        assert (done.exit_code, told in done.stderr) == (2, True)
    assert not (tmp_path / "x").exists()


def test_sessions_in_one_file_are_told_apart(tmp_path, invoke):
    path = tmp_path / "x.mcprec.jsonl"

    async def talk(server, shared):
        ours, theirs = memory_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: server.serve(theirs, record=shared))
            async with Client(ours) as client:
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


def test_a_later_segment_is_rejected_and_the_first_named(target, tmp_path, invoke):
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
