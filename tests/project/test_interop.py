"""The tools that test with other SDKs: their counts, and the failures that they report."""

import json
import re
import sys
from contextlib import nullcontext

import attrs
import inspector
import interop_command
import mounts
import our_client
import peers
import protocol_versions
import pytest
import run
import server_processes
import sessions
import trio
import websocket_framing
from facts import FACTS, HUB, has
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
    """A session with two calls that are answered, one that is rejected, and one that is cancelled."""
    path = tmp_path / "session.mcprec.jsonl"
    server = Server("counted")

    @server.tool
    async def add(a: int, b: int) -> int:
        return a + b

    @server.tool
    async def wait(*, ctx: Context) -> None:
        await ctx.report_progress(1)
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


def test_the_protocol_versions_of_the_facts_are_the_supported_ones():
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
            if facts in method.protocol_versions
        ),
        # Without a session they travel in results.
        *((name, Role.SERVER) for name in QUESTIONS if facts.is_stateless),
        *((each.name, each.sender) for each in FEATURES if has(protocol_version, each.since)),
        *((ERROR_ANSWER, sender) for sender in Role),
    }


async def test_messages_are_counted_by_direction(recording):
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
    """A stateless session, in which one input request is answered and another declined."""
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


async def test_a_message_that_the_protocol_version_lacks_is_a_failure(recording):
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


def test_a_client_gets_the_url_of_its_server(tmp_path):
    with serving("print('at http://127.0.0.1:9/mcp', flush=True)", tmp_path / "log") as arguments:
        assert arguments == ["http://127.0.0.1:9/sse"]


def test_a_client_gets_the_command_of_a_server_without_a_url(tmp_path):
    with interop_command.reachable_server(
        ["python", "server.py"], "stdio", tmp_path / "log"
    ) as arguments:
        assert arguments == ["python", "server.py"]
    assert not list(tmp_path.iterdir())


def test_a_server_that_does_not_start_is_reported_with_its_output(tmp_path):
    with (
        pytest.raises(server_processes.ServerFailed, match=r"did not start: \nno, thanks$"),
        serving("raise SystemExit('no, thanks')", tmp_path / "log"),
    ):
        pytest.fail("it is not there")


def test_a_server_that_does_not_stop_is_a_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(server_processes, "STOP_SECONDS", 0.05)
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('http://127.0.0.1:9', flush=True)"
    with (
        pytest.raises(
            server_processes.ServerFailed, match=r"^the server did not stop within 0.05 s"
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
            transports = [
                way for way in WITHOUT_SOCKETS if peer.supports("client", protocol_version, way)
            ]
            web = "sse" if protocol_version == OLDEST else "http"
            assert transports == (
                ["stdio", web] if protocol_version in peer.protocol_versions else []
            )
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


def test_an_unknown_peer_is_rejected(capsys):
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
    outcome = sessions.Outcome(
        peer=peers.SDKS[1],
        role="server",
        protocol_version=protocol_version,
        transport="stdio",
        session_counts=count_session(recording),
        checks=1,
        seconds=1.0,
        failures=[],
    )
    assert run.unexcused_rows(outcome) == []
    assert outcome.session_counts.failures == []
    assert re.fullmatch(r"[0-9]+ checks\n", capsys.readouterr().out)


async def test_the_scenario_fails_with_a_server_without_capabilities(tmp_path):
    program = "from mcp_trio import Server; Server('empty').run()"
    command = [sys.executable, "-c", program]
    with pytest.raises(Unexpected, match=r"^check_capabilities: tools.listChanged"):
        await our_client.main(command, str(tmp_path / "r.mcprec.jsonl"), OLDEST)


def test_legacy_and_stateless_clients_call_legacy_and_stateless_servers():
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
        ("raise ValueError('no common protocol version')", "rejected"),
    ],
)
def test_the_outcome_of_a_pairing_is_reported(program, observed, capsys):
    client = side("mcp_trio", "legacy", program)
    pairing = protocol_versions.pair(client, side("theirs", "both"), nullcontext([]))
    assert pairing.observed == observed
    assert protocol_versions.report([pairing], "stdio", 1.0) is (observed == "2025-11-25")
    out = capsys.readouterr().out
    if observed == "rejected":
        text = "mcp_trio legacy at theirs both: rejected, not 2025-11-25: ValueError: no common"
        assert text in out


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


def test_each_side_of_mcp_trio_runs_with_each_other_side_and_itself(monkeypatch, tmp_path):
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


# SDKs over WebSocket, and the cases of unusual frames.


LEGACY = "2025-11-25"


def program(code):
    return [sys.executable, "-c", code]


def running_server(tmp_path, url="ws://127.0.0.1:9/ws"):
    return server_processes.RunningServer(process=None, url=url)


# Which SDKs are paired.


@pytest.mark.parametrize("transport", ["websocket", "dialled"])
def test_each_sdk_runs_once_with_stateless_and_legacy_versions_in_both_roles(transport):
    outcomes = {
        (peer.name, protocol_version)
        for peer in peers.SDKS
        for protocol_version in FACTS.protocol_versions
        if {peer.supports(role, protocol_version, transport) for role in peers.ROLES} == {True}
    }
    foreign = {("TypeScript 1", LEGACY), ("TypeScript 2", LEGACY), ("TypeScript 2", NEWEST)}
    python = {("Python 1", LEGACY)} if transport == "websocket" else set()
    assert outcomes == foreign | python


def test_each_transport_has_a_way_to_start_either_server():
    for transport in peers.TRANSPORTS:
        assert transport in sessions.THEIR_SERVERS
        assert (transport in interop_command.URLS) is not (
            transport in interop_command.COMMAND_PREFIXES
        )


@pytest.mark.real_time
def test_a_client_gets_the_url_of_a_websocket(tmp_path):
    serving = program(
        "import time; print('serving ws://127.0.0.1:9/ws', flush=True); time.sleep(9)"
    )
    with interop_command.reachable_server(serving, "websocket", tmp_path / "log") as outcomes:
        assert outcomes == ["ws://127.0.0.1:9/ws"]


def test_a_client_to_which_a_server_connects_gets_its_command(tmp_path):
    with interop_command.reachable_server(
        ["python", "server.py"], "dialled", tmp_path / "log"
    ) as outcomes:
        assert outcomes == [HUB, "python", "server.py"]


@pytest.mark.parametrize("protocol_version", [LEGACY, OLDEST])
def test_clients_get_the_urls_of_their_transport_at_a_mount(protocol_version, tmp_path):
    mount = mounts.Mount(name="deep", command=[], mcp="/deep/mcp", sse="/deep/sse", websocket="/ws")
    by_http = mounts.TourClient("mcp_trio", protocol_version, [])
    endpoint = "mcp" if protocol_version == LEGACY else "sse"
    assert by_http.url(mount, running_server(tmp_path)) == f"http://127.0.0.1:9/deep/{endpoint}"
    by_websocket = attrs.evolve(by_http, has_websocket=True)
    assert by_websocket.url(mount, running_server(tmp_path)) == "ws://127.0.0.1:9/ws"
    assert by_http.title != by_websocket.title


# Our client and our server.


async def test_our_client_greets_a_server_over_websocket(capsys, nursery):
    server = Server("everything")

    @server.tool
    async def test_simple_text() -> str:
        return FACTS.simple_text

    url = await nursery.start(lambda **how: server.serve_websocket(port=0, **how))
    await our_client.main([url], None, "both")
    assert capsys.readouterr().out == f"at {NEWEST}\n"


@pytest.mark.real_time
async def test_our_client_greets_our_server_that_dials_and_stops_it(capsys, tmp_path):
    recording = tmp_path / "recorded.mcprec.jsonl"
    command = [sys.executable, str(sessions.OUR_SERVER), "--dial", "--record", str(recording)]
    await our_client.main([HUB, *command], None, "both")
    assert capsys.readouterr().out == f"at {NEWEST}\n"
    assert '"k":"end"' in recording.read_text().splitlines()[-1]


# Cases of unusual frames.


class Programs:
    """An environment whose programs are all the same one."""

    def __init__(self, code):
        self.code = code

    def start(self, _program):
        return program(self.code)

    def pins(self):
        return {"ws": "8"}


def all_well():
    return websocket_framing.EndpointResult(
        "serve_websocket", outcomes=dict.fromkeys(websocket_framing.CASES, "ok")
    )


def test_a_report_without_failed_cases_is_right(capsys):
    assert websocket_framing.report([all_well()], 1.0)
    assert "1 endpoints, 15 cases, 0 problems" in capsys.readouterr().out


def test_a_case_that_fails_or_is_not_run_is_reported(capsys):
    result = all_well()
    result.outcomes["a cut"] = "the close does not come"
    del result.outcomes["is pinged"]
    result.outcomes["a new one"] = "ok"
    result.note_error("SyntaxError: what?")
    assert not websocket_framing.report([result], 1.0)
    out = capsys.readouterr().out
    assert "serve_websocket: a cut: the close does not come" in out
    assert "serve_websocket: is pinged: was not run: SyntaxError: what?" in out
    assert "serve_websocket: a new one: unknown case" in out
    assert ", 3 problems," in out


@pytest.mark.real_time
@pytest.mark.parametrize("endpoint", websocket_framing.ENDPOINTS)
def test_the_program_of_cases_gets_our_url_or_reports_its_own(endpoint, monkeypatch):
    code = (
        "import sys; place = sys.argv[1:];"
        "print('ws://127.0.0.1:1' if not place else f'place: {place}');"
        "print('no such trick', file=sys.stderr)"
    )
    monkeypatch.setattr(websocket_framing, "TYPESCRIPT", Programs(code))
    monkeypatch.setattr(websocket_framing, "is_installed", lambda _: True)
    monkeypatch.setattr(
        websocket_framing, "ENDPOINTS", {endpoint: websocket_framing.ENDPOINTS[endpoint]}
    )
    [result] = websocket_framing.run_all(None)
    place = result.outcomes.pop("place", "")
    assert bool(re.fullmatch(r"\['ws://127\.0\.0\.1:[0-9]+/ws'\]", place)) is (endpoint != "dial")
    assert result.outcomes == {}
    assert result.failure_of("a cut") == "was not run: no such trick"


@pytest.mark.real_time
def test_a_program_of_cases_that_takes_too_long_is_stopped(monkeypatch):
    monkeypatch.setattr(websocket_framing, "SECONDS_MAX", 0.05)
    monkeypatch.setattr(websocket_framing, "TYPESCRIPT", Programs("import time; time.sleep(60)"))
    monkeypatch.setattr(websocket_framing, "is_installed", lambda _: True)
    assert all(not result.outcomes for result in websocket_framing.run_all(None))


def test_the_cases_need_ws(monkeypatch, capsys):
    monkeypatch.setattr(websocket_framing, "is_installed", lambda _: False)
    with pytest.raises(peers.MissingPeer, match=r"^ws [0-9.]+ is not installed as pinned"):
        websocket_framing.run_all(None)


def test_what_an_endpoint_lacks_is_no_problem_until_it_works():
    (endpoint, case), _reason = next(iter(websocket_framing.LACKING.items()))
    outcomes = dict.fromkeys(websocket_framing.CASES, "ok")
    lacking = {**outcomes, **{case: "no" for name, case in websocket_framing.LACKING}}
    assert websocket_framing.report(
        [websocket_framing.EndpointResult(endpoint, outcomes=lacking)], 1
    )
    works = {**lacking, case: "ok"}
    assert not websocket_framing.report(
        [websocket_framing.EndpointResult(endpoint, outcomes=works)], 1
    )


# Mounts and the MCP Inspector.


SERVER = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit({status}))
print("serving http://127.0.0.1:1/mcp", flush=True)
time.sleep(60)
"""


def program_printing(**steps):
    lines = [f"{step}: {outcome}" for step, outcome in steps.items()]
    return program(f"print({chr(10).join(lines)!r})")


def client_tour(name, protocol_version, **outcomes):
    return mounts.ClientTour(mounts.TourClient(name, protocol_version, []), outcomes=outcomes)


ALL = dict.fromkeys(mounts.STEPS[:-1], "ok")


@pytest.fixture
def tour_mount(monkeypatch, tmp_path):
    """`stay(steps, ...)` of a client at a server that ends with a status."""

    def tour_mount(steps, *, status=0, name="mcp_trio", protocol_version=LEGACY, server=SERVER):
        client = mounts.TourClient(name, protocol_version, program_printing(**steps))
        monkeypatch.setattr(mounts, "tour_clients", lambda: [client])
        command = program(server.replace("{status}", str(status)))
        return mounts.tour_mount(mounts.Mount(name="somewhere", command=command), tmp_path)

    return tour_mount


@pytest.mark.real_time
def test_clients_report_their_steps_and_the_server_is_stopped(tour_mount, capsys):
    mount_tour = tour_mount({**ALL, "begun": "ok", "stop": "OutcomeUnknown"})
    assert mounts.report([mount_tour], 1.0)
    out = capsys.readouterr().out
    assert "1 mounts, 1 clients, 0 problems, 1 s" in out
    assert out.count(" ok") == len(ALL)
    assert " unknown" in out


@pytest.mark.real_time
def test_an_unexpected_exit_status_is_reported(tour_mount, capsys):
    assert not mounts.report([tour_mount({**ALL, "stop": "ConnectionLost"}, status=3)], 1.0)
    assert "somewhere: the server exited with 3" in capsys.readouterr().out


@pytest.mark.real_time
def test_a_server_that_does_not_start_is_reported_without_its_clients(tour_mount, capsys):
    assert not mounts.report([tour_mount({}, server="raise ValueError('no port')")], 1.0)
    out = capsys.readouterr().out
    assert "ValueError: no port" in out
    assert ", 1 problems," in out


def test_a_step_that_failed_or_was_not_run_is_reported():
    client = client_tour(
        "Python 2", LEGACY, **{**ALL, "ask": "Unexpected: no answer", "stop": "Rejected"}
    )
    del client.outcomes["resume"]
    mount_tour = mounts.MountTour(mount="somewhere", client_tours=[client], seconds=1.0, failure="")
    assert list(mounts.problems([mount_tour])) == [
        "Python 2 2025-11-25 at somewhere: ask: Unexpected: no answer",
        "Python 2 2025-11-25 at somewhere: resume: the step was not run",
    ]


def test_a_silent_client_misses_each_step():
    silent = client_tour("mcp_trio", LEGACY)
    mount_tour = mounts.MountTour(mount="somewhere", client_tours=[silent], seconds=1.0, failure="")
    assert len(list(mounts.problems([mount_tour]))) == len(mounts.STEPS)
    not_begun = attrs.evolve(mount_tour, failure="it does not serve")
    assert list(mounts.problems([not_begun])) == ["somewhere: it does not serve"]


def test_an_unknown_mount_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr(mounts, "mounts", lambda: [mounts.Mount(name="native", command=[])])
    with pytest.raises(SystemExit, match="unknown mounts: nowhere"):
        mounts.tour_mounts(["native", "nowhere"], tmp_path)


@pytest.mark.parametrize(
    ("protocol_version", "excuse"),
    [(OLDEST, mounts.NO_IDS), (LEGACY, None), (NEWEST, mounts.NO_STREAMS)],
)
def test_only_where_there_is_nothing_to_resume_is_that_left_out(protocol_version, excuse):
    client = mounts.TourClient("mcp_trio", protocol_version, [])
    assert {mounts.excuse_of(client, step) for step in mounts.STEPS if step != "resume"} == {None}
    assert mounts.excuse_of(client, "resume") == excuse
    assert bool(mounts.failure_of(mounts.ClientTour(client), "resume")) is (excuse is None)


@pytest.mark.parametrize(
    ("name", "end", "is_right"),
    [
        ("mcp_trio", "OutcomeUnknown", True),
        ("mcp_trio", "ConnectionLost", True),
        ("mcp_trio", "answered", False),
        ("mcp_trio", "Cancelled", False),
        ("TypeScript 2", "Error", True),
    ],
)
def test_only_our_clients_must_report_the_lost_call(name, end, is_right):
    failure = mounts.failure_of(client_tour(name, LEGACY, stop=end), "stop")
    assert bool(failure) is not is_right


class InspectorProgram:
    """An environment whose programs are all the same one."""

    def __init__(self, code):
        self.code = code

    def start(self, _program):
        return program(self.code)


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        ("print({!r})", ""),
        ("print('nothing')", "the Inspector printed nothing\n"),
        ("print('{{\"result\": {{}}}}')", 'the Inspector printed {"result": {}}\n'),
        ("raise SystemExit('no server')", "the Inspector exited with 1: \nno server"),
    ],
)
def test_the_inspectors_output_is_compared(code, failure, monkeypatch, tmp_path):
    [call] = [each for each in inspector.REQUESTS if each.name == "tools/call"]
    result = {"content": [{"type": "text", "text": FACTS.simple_text}]}
    code = code.format(json.dumps({"result": result}))
    monkeypatch.setattr(inspector, "INSPECTOR", InspectorProgram(code))
    result = inspector.run_request(call, ("http", "legacy"), ["http://127.0.0.1:1/mcp"], tmp_path)
    assert result.failure == failure


def test_an_inspector_that_does_not_end_is_reported(monkeypatch, tmp_path):
    monkeypatch.setattr(inspector, "SECONDS_MAX", 0.05)
    monkeypatch.setattr(inspector, "INSPECTOR", InspectorProgram("import time; time.sleep(60)"))
    result = inspector.run_request(inspector.REQUESTS[0], ("sse", "legacy"), [], tmp_path)
    assert result.failure == "no end after 0.05 s"
