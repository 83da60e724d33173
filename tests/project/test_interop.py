"""The tools that talk with peers: they count what passed, and let nothing pass that did not."""

import json
import re
import sys

import attrs
import our_client
import peers
import pytest
import run
import sessions
import sitting
import trio
from checks import Unexpected
from tally import ERROR_ANSWER, Row, Tally, rows, tally_of

from mcp_trio import Client, Context, MCPError, Server
from mcp_trio._protocol.methods import METHODS
from mcp_trio._protocol.states import Role


@pytest.fixture
async def recording(tmp_path):
    """A session with two calls that are answered, one that is refused, and one that is cancelled."""
    path = tmp_path / "session.mcprec.jsonl"
    server = Server("counted")

    @server.tool
    async def add(a: int, b: int) -> int:
        return a + b

    @server.tool
    async def wait(*, ctx: Context) -> None:
        await ctx.progress(1)
        await trio.sleep_forever()

    scope = trio.CancelScope()
    async with Client(server_that_records(server, path)) as client:
        await client.call_tool("add", {"a": 1, "b": 2})
        await client.call_tool("add", {"a": 3, "b": 4})
        with pytest.raises(MCPError):
            await client.call_tool("no_tool")
        with scope:
            await client.call_tool("wait", progress=lambda _: scope.cancel())
        await client.ping()
    return path


def server_that_records(server, path):
    """A server whose own side, the one that has to stop, is recorded."""

    class Recorded:
        async def serve(self, channel):
            await server.serve(channel, record=path)

    return Recorded()


def without(path, kind):
    """The recording without the records of a kind."""
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if json.loads(line)["k"] != kind))
    return path


def test_there_is_a_row_for_each_method_and_each_side_that_may_send_it():
    assert {(row.name, row.sender) for row in rows()} == {
        *((method.name, sender) for method in METHODS.values() for sender in method.senders),
        *((ERROR_ANSWER, sender) for sender in Role),
    }


async def test_what_passed_is_counted_by_direction(recording):
    tally = tally_of(recording)
    assert tally.revision == "2024-11-05"
    assert tally.faults == []
    assert {row: tally.seen(row) for row in rows() if tally.seen(row)} == {
        Row("initialize", Role.CLIENT): 1,
        Row("notifications/initialized", Role.CLIENT): 1,
        Row("tools/call", Role.CLIENT): 2,
        Row("ping", Role.CLIENT): 1,
        Row("notifications/progress", Role.SERVER): 1,
        Row("notifications/cancelled", Role.CLIENT): 1,
        Row(ERROR_ANSWER, Role.SERVER): 1,
    }


async def test_a_handler_that_goes_on_after_its_cancellation_is_a_fault(recording):
    faults = tally_of(without(recording, "cxl")).faults
    assert [fault for fault in faults if "was cancelled, and went on" in fault]


async def test_a_cancellation_that_crosses_the_answer_stops_nothing_and_is_no_fault(recording):
    cancelled = re.compile(r'("method":"notifications/cancelled","params":\{"requestId":)[^,}]+')
    answered = json.loads(recording.read_text().splitlines()[1])["f"]["id"]
    text, count = cancelled.subn(rf"\g<1>{json.dumps(answered)}", recording.read_text())
    assert count == 1
    recording.write_text(text)
    faults = tally_of(without(recording, "cxl")).faults
    assert not [fault for fault in faults if "was cancelled, and went on" in fault]


async def test_a_recording_without_an_end_is_a_fault(recording):
    assert tally_of(without(recording, "end")).faults == ["the recording has no end"]


def outcome(**changes):
    tally = Tally(revision="2024-11-05")
    for row in rows():
        tally.count(row).sent = tally.count(row).answered = 1
    complete = sessions.Outcome(
        peer=peers.SDKS[0], role="client", tally=tally, checks=1, seconds=1.0, faults=[]
    )
    return attrs.evolve(complete, **changes)


def test_a_complete_table_is_as_it_should_be(capsys):
    assert run.report([outcome()], 1.0)
    assert "0 empty" in capsys.readouterr().out


def test_an_empty_cell_is_named(capsys):
    found = outcome()
    # A request counts when it has been answered with a result.
    found.tally.count(Row("roots/list", Role.SERVER)).answered = 0
    found.tally.count(Row("notifications/progress", Role.CLIENT)).sent = 0
    assert not run.report([outcome(), found], 1.0)
    out = capsys.readouterr().out
    title = f"Python 1 {peers.SDKS[0].version} as client"
    assert (
        f"{title}: no roots/list from the server, no notifications/progress from the client" in out
    )
    assert "2 empty" in out


def test_a_fault_and_another_revision_are_named(capsys):
    failed = outcome(faults=["the client exited with 1"])
    other = outcome(role="server")
    other.tally.revision = "2025-06-18"
    assert not run.report([failed, other], 1.0)
    out = capsys.readouterr().out
    assert "as client: the client exited with 1" in out
    assert "as server: the session was not at revision 2024-11-05" in out


@attrs.frozen
class Here:
    """An environment that is there: this one."""

    stamp: object
    name: str = "here"

    def pins(self):
        return {"package": "1"}

    def fingerprint(self):
        return "pinned"

    def start(self, program):
        return [sys.executable, "-c", program]


@pytest.fixture
def make_peer(tmp_path):
    stamp = tmp_path / "installed"
    stamp.write_text("pinned")
    return lambda client: peers.Peer(
        name="Mine", package="package", environment=Here(stamp), client=client
    )


@pytest.mark.parametrize(
    ("client", "fault"),
    [
        ("raise SystemExit('no, thanks')", "the client exited with 1: \nno, thanks"),
        ("pass", "the client told nothing of its checks"),
    ],
)
def test_a_client_that_fails_or_does_nothing_is_a_fault(make_peer, tmp_path, client, fault):
    found = sessions.hold(make_peer(client), "client", tmp_path)
    assert found.checks == 0
    assert found.faults[0] == fault
    assert found.faults[1].startswith("no recording: ")


def test_a_client_that_does_not_end_is_a_fault(make_peer, tmp_path, monkeypatch):
    monkeypatch.setattr(sessions, "SESSION_SECONDS", 0.05)
    found = sessions.hold(make_peer("import time; time.sleep(60)"), "client", tmp_path)
    assert found.faults[0].startswith("no end after 0.05 s")


def test_a_missing_peer_names_the_command_to_run(capsys, monkeypatch, make_peer):
    missing = make_peer("pass")
    missing.environment.stamp.write_text("an older pin")
    monkeypatch.setattr(sitting, "SDKS", [missing])
    assert run.main([]) == 1
    error = capsys.readouterr().err
    assert error == "package 1 is not installed as pinned: run `python tools/interop/install.py`\n"


def test_a_peer_that_nobody_knows_is_refused(capsys):
    with pytest.raises(SystemExit):
        run.main(["Fortran 77"])
    assert "no peers: Fortran 77" in capsys.readouterr().err


def test_every_peer_is_pinned_to_one_version():
    assert all(re.fullmatch(r"[0-9]+(\.[0-9]+)+", peer.version) for peer in peers.PEERS.values())


def test_the_lock_of_npm_is_of_the_pins_and_names_no_registry():
    lock = json.loads((peers.NPM / "package-lock.json").read_text())
    packages = lock["packages"]
    assert packages[""]["dependencies"] == peers.TYPESCRIPT.pins()
    for name, version in peers.TYPESCRIPT.pins().items():
        assert packages[f"node_modules/{name}"]["version"] == version
    assert not [name for name, package in packages.items() if "resolved" in package]


@pytest.mark.real_time
async def test_our_client_and_our_server_tell_the_story_to_each_other(tmp_path, capsys):
    recording = tmp_path / "story.mcprec.jsonl"
    command = [sys.executable, str(sessions.OUR_SERVER), "--stdio"]
    await our_client.main(command, str(recording))
    tally = tally_of(recording)
    assert [row for row in rows() if not tally.seen(row)] == []
    assert tally.faults == []
    assert re.fullmatch(r"[0-9]+ checks\n", capsys.readouterr().out)


async def test_the_story_fails_with_a_server_that_offers_nothing(tmp_path):
    program = "from mcp_trio import Server; Server('empty').run()"
    with pytest.raises(Unexpected, match=r"^shake_hands: tools.listChanged"):
        await our_client.main([sys.executable, "-c", program], str(tmp_path / "r.mcprec.jsonl"))
