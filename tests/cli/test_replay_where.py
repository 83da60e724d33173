"""`mcp-trio replay DIR --where` sums up by cause; `mcp-trio test` writes a test that keeps one."""

import json
import subprocess
import sys
from xml.etree import ElementTree as ET

import pytest
import trio

from mcp_trio import Client, Server
from mcp_trio._replay.many_replays import cause_of, replay_in_parallel
from mcp_trio._replay.targets import import_server
from mcp_trio.recording import RecordOptions

SERVER = """
from mcp_trio import Server

server = Server("shop")
PREFIX = "sold"


@server.tool
async def sell(item: str) -> str:
    return f"{PREFIX} {item}"


@server.tool
async def count() -> int:
    return 3
"""


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """A folder with a server and five recordings of it: three of `sell`, two of `count`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text(SERVER)
    recordings = tmp_path / "recordings"
    recordings.mkdir()

    async def main():
        server: Server = import_server("shop.py")
        server.record = RecordOptions(recordings)
        for calls in (["sell"], ["sell"], ["count"], ["sell", "count"], ["count"]):
            async with Client(server) as client:
                for number, tool in enumerate(calls):
                    arguments = {"item": f"pen{number}"} if tool == "sell" else {}
                    await client.call_tool(tool, arguments)

    trio.run(main)
    return tmp_path


def sale(shop):
    """A recording of `sell`."""
    paths = (shop / "recordings").iterdir()
    return next(path for path in paths if b'"name":"sell"' in path.read_bytes())


def change(shop):
    text = (shop / "shop.py").read_text()
    (shop / "shop.py").write_text(text.replace('"sold"', '"gone:"'))


def test_recordings_that_replay_the_same_are_counted(invoke, shop):
    shown = invoke("replay", "recordings", "shop.py", "--where", "tool:sell", "--jobs", "1")
    assert shown.exit_code == 0
    assert shown.output == "3 of 3 recordings replay the same, with 4 requests\n"


def test_differences_are_summed_up_by_cause(invoke, shop):
    change(shop)
    options = ("--junit", "junit.xml", "--markdown", "pr.md", "--jobs", "2")
    shown = invoke("replay", "recordings", "shop.py", "--where", "", *options)
    assert shown.exit_code == 1
    assert "2 of 5 recordings replay the same, with 2 requests; the others have one cause" in (
        shown.output
    )
    assert 'tools/call "sell"; in sell at' in shown.output
    assert "changed: $.result.content[0].text" in shown.output
    suite = ET.parse("junit.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("5", "3", "0")
    assert len(suite.findall("testcase/failure")) == 3
    report = (shop / "pr.md").read_text()
    assert '| 3 | tools/call "sell"; in sell' in report
    assert "replay diverged at record" in report
    shown = invoke("replay", "recordings", "shop.py", "--where", "", "--json")
    statuses = [json.loads(line)["status"] for line in shown.output.splitlines()]
    assert sorted(statuses) == ["diverged", "diverged", "diverged", "same", "same"]


def test_a_damaged_recording_is_an_error_of_its_own(invoke, shop):
    path = sale(shop)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], *lines[4:]]))
    shown = invoke(
        "replay", "recordings", "shop.py", "--where", "tool:sell", "--junit", "junit.xml"
    )
    assert shown.exit_code == 1
    assert "unusable" in shown.output
    assert len(ET.parse("junit.xml").getroot().findall("testcase/error")) == 1


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["recordings", "shop.py", "--where", "tool:none"], 1, "no recording of a server matches"),
        (["recordings", "shop.py", "--where", "role:client"], 1, "no recording of a server"),
        (["recordings", "shop.py", "--where", 'tool:"x'], 2, "query at 'tool:\"x': write"),
        (["recordings", "shop.py", "--where", "tol:x"], 2, "unknown key"),
        (["recordings", "none.py", "--where", "tool:sell"], 2, "none.py"),
        (["shop.py", "shop.py", "--where", "tool:sell"], 2, "takes one folder and a TARGET"),
        (["recordings", "shop.py", "--where", "", "--repeat", "2"], 2, "takes no other options"),
        (["recordings", "shop.py", "--where", "", "--until", "0"], 2, "takes no other options"),
        (["recordings", "shop.py", "--where", "", "--channel", "0"], 2, "takes no other options"),
        (["recordings", "shop.py", "--junit", "x"], 2, "need --where"),
        (["recordings", "shop.py", "--where", "", "--junit", "no/x"], 2, "cannot write no/x"),
    ],
)
def test_what_cannot_be_replayed_is_reported(invoke, shop, arguments, status, text):
    shown = invoke("replay", *arguments)
    assert (shown.exit_code, text in shown.output) == (status, True)


def test_no_recordings_have_no_outcomes(shop):
    assert list(replay_in_parallel([], "shop.py")) == []


def test_an_error_that_is_no_divergence_is_its_own_cause():
    assert cause_of(ValueError("odd")) == "odd"


def test_the_written_test_replays_the_recording_and_fails_when_the_code_changes(invoke, shop):
    path = sale(shop)
    shown = invoke("test", str(path), "shop.py", "-o", "tests/test_sale.py")
    assert shown.exit_code == 0, shown.output
    assert (shop / "tests" / "recordings" / path.name).read_bytes() == path.read_bytes()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]

    def run():
        return subprocess.run(command, check=False, capture_output=True, text=True, cwd=shop)

    done = run()
    assert (done.returncode, "1 passed" in done.stdout) == (0, True), done.stdout
    change(shop)
    assert run().returncode == 1


def test_a_test_never_replaces_a_file_unless_asked(invoke, shop):
    path = sale(shop)
    assert invoke("test", str(path), "shop:server").exit_code == 0
    shown = invoke("test", str(path), "shop:server")
    assert (shown.exit_code, "exists" in shown.output) == (2, True)
    assert invoke("test", str(path), "shop:server", "--overwrite").exit_code == 0
    assert invoke("test", str(path), "my-shop.py").exit_code == 2
    assert invoke("test", "shop.py", "shop.py").exit_code == 2


def test_a_recording_that_lies_beside_its_test_already_stays_there(invoke, shop):
    path = sale(shop)
    kept = shop / "tests" / "recordings" / path.name
    kept.parent.mkdir(parents=True)
    path.rename(kept)
    before = kept.read_bytes()
    for options in ((), ("--overwrite",)):
        shown = invoke("test", str(kept), "shop.py", "-o", "tests/test_sale.py", *options)
        assert shown.exit_code == 0, shown.output
    assert kept.read_bytes() == before
