"""The tools that talk with peers: they count what passed, and let nothing pass that did not."""

import json
import re
import sys
from contextlib import nullcontext

import attrs
import interop_command
import our_client
import peers
import protocol_versions
import pytest
import run
import sessions
import trio
from facts import FACTS, has
from method_counts import ERROR_ANSWER, FEATURES, QUESTIONS, Row, SessionCounts, count_session, rows
from sdk_adapter import Unexpected

from mcp_trio import Client, Context, MCPError, Server, UserRejected
from mcp_trio._protocol.methods import METHODS, Role
from mcp_trio._protocol.versions import PROTOCOL_VERSIONS

pytestmark = pytest.mark.slow

OLDEST, NEWEST = FACTS.protocol_versions[0], FACTS.protocol_versions[-1]
WITHOUT_SOCKETS = ("stdio", "http", "sse")


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
    async with Client(server_that_records(server, path), protocol_versions=[OLDEST]) as client:
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


def test_the_protocol_versions_of_the_facts_are_those_that_are_spoken():
    assert list(PROTOCOL_VERSIONS) == FACTS.protocol_versions
    assert {feature.since for feature in FEATURES} <= FACTS.features.keys()


@pytest.mark.parametrize("protocol_version", FACTS.protocol_versions)
def test_there_is_a_row_for_each_method_and_each_side_that_may_send_it(protocol_version):
    facts = PROTOCOL_VERSIONS[protocol_version]
    assert {(row.name, row.sender) for row in rows(protocol_version)} == {
        *(
            (method.name, sender)
            for method in METHODS.values()
            for sender in method.senders
            if method.exists_in(facts)
        ),
        # Without a session they travel in results.
        *((name, Role.SERVER) for name in QUESTIONS if facts.is_stateless),
        *((each.name, each.sender) for each in FEATURES if has(protocol_version, each.since)),
        *((ERROR_ANSWER, sender) for sender in Role),
    }


async def test_what_passed_is_counted_by_direction(recording):
    session_counts = count_session(recording)
    assert session_counts.protocol_version == "2024-11-05"
    assert session_counts.failures == []
    assert {row: session_counts.seen(row) for row in rows(OLDEST) if session_counts.seen(row)} == {
        Row("initialize", Role.CLIENT): 1,
        Row("notifications/initialized", Role.CLIENT): 1,
        Row("tools/call", Role.CLIENT): 2,
        Row("ping", Role.CLIENT): 1,
        Row("notifications/progress", Role.SERVER): 1,
        Row("notifications/cancelled", Role.CLIENT): 1,
        Row(ERROR_ANSWER, Role.SERVER): 1,
    }


async def test_a_handler_that_goes_on_after_its_cancellation_is_a_failure(recording):
    failures = count_session(without(recording, "cxl")).failures
    assert [failure for failure in failures if "went on after its cancellation" in failure]


async def test_a_cancellation_that_crosses_the_answer_stops_nothing_and_is_no_failure(recording):
    cancelled = re.compile(r'("method":"notifications/cancelled","params":\{"requestId":)[^,}]+')
    answered = json.loads(recording.read_text().splitlines()[1])["f"]["id"]
    text, count = cancelled.subn(rf"\g<1>{json.dumps(answered)}", recording.read_text())
    assert count == 1
    recording.write_text(text)
    failures = count_session(without(recording, "cxl")).failures
    assert not [failure for failure in failures if "went on after its cancellation" in failure]


async def test_a_recording_without_an_end_is_a_failure(recording):
    assert count_session(without(recording, "end")).failures == ["the recording has no end"]


@pytest.fixture
async def rounds(tmp_path):
    """A session without a session, in which a question is answered and another refused."""
    path = tmp_path / "rounds.mcprec.jsonl"
    server = Server("asking")

    @server.tool
    async def ask(*, ctx: Context) -> None:
        await ctx.elicit("Your name?", str)
        await ctx.sample("Is that a name?", max_tokens=10)

    def reject(_question):
        raise UserRejected

    async with Client(
        server_that_records(server, path),
        protocol_versions=[NEWEST],
        elicitation=lambda _: {"value": "Ada"},
        sampling=reject,
    ) as client:
        with pytest.raises(UserRejected):
            await client.call_tool("ask")
    return path


async def test_questions_in_results_are_counted_as_the_requests_that_they_stand_for(rounds):
    session_counts = count_session(rounds)
    assert session_counts.protocol_version == NEWEST
    asked = [session_counts.count(Row(name, Role.SERVER)) for name in QUESTIONS]
    assert [(count.sent, count.answered) for count in asked] == [(1, 0), (0, 0), (1, 1)]
    seen = {row.name for row in rows(NEWEST) if session_counts.seen(row)}
    assert {"input required", "input responses", "request states", "forms"} <= seen
    assert not {"questions by URL", "subscription ids", "audio"} & seen


async def test_what_we_say_and_the_protocol_version_does_not_know_is_a_failure(recording):
    lines = recording.read_text().splitlines(keepends=True)
    answer = next(place for place, line in enumerate(lines) if '"content"' in line)
    lines[answer] = lines[answer].replace('"content"', '"structuredContent":3,"content"', 1)
    recording.write_text("".join(lines))
    assert f"we sent structured content at {OLDEST}" in count_session(recording).failures


def outcome(protocol_version=OLDEST, **changes):
    session_counts = SessionCounts(protocol_version=protocol_version)
    for row in rows(protocol_version):
        session_counts.count(row).sent = session_counts.count(row).answered = 1
    complete = sessions.Outcome(
        peer=peers.SDKS[1],
        role="client",
        protocol_version=protocol_version,
        transport="stdio",
        session_counts=session_counts,
        checks=1,
        seconds=1.0,
        failures=[],
    )
    return attrs.evolve(complete, **changes)


def test_a_complete_table_is_as_it_should_be(capsys):
    assert run.report([outcome()], 1.0)
    assert "0 empty" in capsys.readouterr().out


def test_an_empty_cell_is_named(capsys):
    found = outcome()
    # A request counts when it has been answered with a result.
    found.session_counts.count(Row("roots/list", Role.SERVER)).answered = 0
    found.session_counts.count(Row("notifications/progress", Role.CLIENT)).sent = 0
    assert not run.report([outcome(), found], 1.0)
    out = capsys.readouterr().out
    title = f"Python 2 {peers.SDKS[1].version} as client at {OLDEST} over stdio"
    assert (
        f"{title}: no roots/list from the server, no notifications/progress from the client" in out
    )
    assert "2 empty" in out


def test_an_empty_cell_with_an_excuse_is_as_it_should_be_and_tells_it(capsys):
    found = outcome(NEWEST)
    found.session_counts.count(Row("notifications/progress", Role.CLIENT)).sent = 0
    assert run.report([found], 1.0)
    out = capsys.readouterr().out
    assert f"a: {run.EXCUSES[0].reason}" in out
    assert "0 empty, 1 excused" in out


def test_an_excuse_is_for_its_own_cells_only():
    found = outcome(OLDEST)
    found.session_counts.count(Row("notifications/progress", Role.CLIENT)).sent = 0
    assert not run.report([found], 1.0)


def test_every_excuse_is_about_rows_that_there_are():
    for excuse in run.EXCUSES:
        for protocol_version in excuse.protocol_versions:
            named = {(row.name, row.sender.value) for row in rows(protocol_version)}
            assert {(name, excuse.sender) for name in excuse.rows} <= named


def test_a_failure_and_another_protocol_version_are_named(capsys):
    failed = outcome(transport="sse", failures=["the client exited with 1"])
    other = outcome(role="server")
    other.session_counts.protocol_version = "2025-06-18"
    assert not run.report([failed, other], 1.0)
    out = capsys.readouterr().out
    assert f"as client at {OLDEST} over sse: the client exited with 1" in out
    assert f"as server at {OLDEST} over stdio: the session used 2025-06-18" in out


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
    ("client", "failure"),
    [
        ("raise SystemExit('no, thanks')", "the client exited with 1: \nno, thanks"),
        ("pass", "the client did not print its checks"),
    ],
)
def test_a_client_that_fails_or_does_nothing_is_a_failure(make_peer, tmp_path, client, failure):
    found = sessions.run_session(make_peer(client), "client", OLDEST, "stdio", tmp_path)
    assert found.checks == 0
    assert found.failures[0] == failure
    assert found.failures[1].startswith("no recording: ")


def test_a_client_that_does_not_end_is_a_failure(make_peer, tmp_path, monkeypatch):
    monkeypatch.setattr(sessions, "SESSION_SECONDS", 0.05)
    sleepy = make_peer("import time; time.sleep(60)")
    found = sessions.run_session(sleepy, "client", OLDEST, "stdio", tmp_path)
    assert found.failures[0].startswith("no end after 0.05 s")


def serving(program, log):
    command = [sys.executable, "-c", f"import signal, time; {program}; time.sleep(60)"]
    return interop_command.reachable_server(command, "sse", log)


def test_a_client_is_told_the_url_at_which_a_server_serves(tmp_path):
    with serving("print('at http://127.0.0.1:9/mcp', flush=True)", tmp_path / "log") as told:
        assert told == ["http://127.0.0.1:9/sse"]


def test_a_client_is_told_the_command_of_a_server_without_a_url(tmp_path):
    with interop_command.reachable_server(
        ["python", "server.py"], "stdio", tmp_path / "log"
    ) as told:
        assert told == ["python", "server.py"]
    assert not list(tmp_path.iterdir())


def test_a_server_that_does_not_serve_says_why(tmp_path):
    with (
        pytest.raises(interop_command.ServerFailed, match=r"did not start: \nno, thanks$"),
        serving("raise SystemExit('no, thanks')", tmp_path / "log"),
    ):
        pytest.fail("it is not there")


def test_a_server_that_does_not_stop_is_a_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(interop_command, "STOP_SECONDS", 0.05)
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('http://127.0.0.1:9', flush=True)"
    with (
        pytest.raises(
            interop_command.ServerFailed, match=r"^the server did not stop within 0.05 s"
        ),
        serving(deaf, tmp_path / "log"),
    ):
        pass


def test_a_server_that_fails_is_a_failure_of_the_session(make_peer, tmp_path, monkeypatch):
    monkeypatch.setattr(sessions, "OUR_SERVER", tmp_path / "no_server.py")
    found = sessions.run_session(make_peer("pass"), "client", NEWEST, "http", tmp_path)
    assert found.failures[0].startswith("the server did not start: ")


def test_every_protocol_version_that_a_peer_speaks_goes_over_stdio_and_one_transport_of_the_web():
    for peer in peers.SDKS:
        for protocol_version in FACTS.protocol_versions:
            spoken = [
                way for way in WITHOUT_SOCKETS if peer.supports("client", protocol_version, way)
            ]
            web = "sse" if protocol_version == OLDEST else "http"
            assert spoken == (["stdio", web] if protocol_version in peer.protocol_versions else [])
    assert not peers.PEERS["TypeScript 2"].supports("server", OLDEST, "sse")


def test_a_missing_peer_names_the_command_to_run(capsys, monkeypatch, make_peer):
    missing = make_peer("pass")
    missing.environment.stamp.write_text("an older pin")
    monkeypatch.setattr(interop_command, "SDKS", [missing])
    assert run.main([]) == 1
    error = capsys.readouterr().err
    assert error == "package 1 is not installed as pinned: run `python tools/interop/install.py`\n"


def test_where_there_is_nothing_to_do_nothing_is_shown(capsys):
    assert interop_command.run_command(lambda _folder: [], lambda _outcomes, _seconds: True) == 1
    assert capsys.readouterr().err == "no sessions were selected\n"


def test_a_peer_that_nobody_knows_is_rejected(capsys):
    with pytest.raises(SystemExit):
        run.main(["Fortran 77"])
    assert "unknown peers: Fortran 77" in capsys.readouterr().err


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
@pytest.mark.parametrize("protocol_version", [OLDEST, NEWEST])
async def test_our_client_runs_the_scenario_with_our_server(tmp_path, capsys, protocol_version):
    recording = tmp_path / "story.mcprec.jsonl"
    command = [sys.executable, str(sessions.OUR_SERVER), "--stdio"]
    await our_client.main(command, str(recording), protocol_version)
    told = sessions.Outcome(
        peer=peers.SDKS[1],
        role="server",
        protocol_version=protocol_version,
        transport="stdio",
        session_counts=count_session(recording),
        checks=1,
        seconds=1.0,
        failures=[],
    )
    assert run.unexcused_rows(told) == []
    assert told.session_counts.failures == []
    assert re.fullmatch(r"[0-9]+ checks\n", capsys.readouterr().out)


async def test_the_scenario_fails_with_a_server_without_capabilities(tmp_path):
    program = "from mcp_trio import Server; Server('empty').run()"
    command = [sys.executable, "-c", program]
    with pytest.raises(Unexpected, match=r"^check_capabilities: tools.listChanged"):
        await our_client.main(command, str(tmp_path / "r.mcprec.jsonl"), OLDEST)


def test_a_client_of_each_era_meets_a_server_of_each():
    assert set(protocol_versions.EXPECTED) == {
        (client, server)
        for client in protocol_versions.VERSION_MODES
        for server in protocol_versions.VERSION_MODES
    }


def side(name, mode, program="pass"):
    return protocol_versions.Side(name, mode, (sys.executable, "-c", program))


@pytest.mark.parametrize(
    ("program", "observed"),
    [
        ("print('at 2025-11-25')", "2025-11-25"),
        ("pass", "nothing"),
        ("raise ValueError('no common revision')", "rejected"),
    ],
)
def test_what_comes_of_a_meeting_is_told(program, observed, capsys):
    client = side("mcp_trio", "legacy", program)
    pairing = protocol_versions.pair(client, side("theirs", "both"), nullcontext([]))
    assert pairing.observed == observed
    assert protocol_versions.report([pairing], "stdio", 1.0) is (observed == "2025-11-25")
    out = capsys.readouterr().out
    if observed == "rejected":
        told = "mcp_trio legacy at theirs both: rejected, not 2025-11-25: ValueError: no common"
        assert told in out


def test_a_meeting_with_a_server_that_does_not_serve_is_no_rejection(tmp_path):
    nowhere = interop_command.reachable_server([sys.executable, "-c", ""], "http", tmp_path / "log")
    pairing = protocol_versions.pair(side("mcp_trio", "both"), side("theirs", "both"), nowhere)
    assert pairing.observed == "no server"


def test_a_meeting_that_does_not_end_is_no_rejection(monkeypatch):
    monkeypatch.setattr(protocol_versions, "SESSION_SECONDS", 0.05)
    sleepy = side("mcp_trio", "stateless", "import time; time.sleep(60)")
    assert (
        protocol_versions.pair(sleepy, side("theirs", "legacy"), nullcontext([])).observed
        == "no end"
    )


def test_each_of_ours_meets_each_of_theirs_and_ours(monkeypatch, tmp_path):
    monkeypatch.setattr(
        protocol_versions, "clients", lambda _: [side("mcp_trio", "legacy"), side("a", "both")]
    )
    monkeypatch.setattr(
        protocol_versions,
        "servers",
        lambda *_: [side("mcp_trio", "both"), side("b", "stateless")],
    )
    met = [
        (it.client.name, it.server.name) for it in protocol_versions.pair_all([], "stdio", tmp_path)
    ]
    assert met == [("mcp_trio", "mcp_trio"), ("a", "mcp_trio"), ("mcp_trio", "b")]
