"""The peers over WebSocket: which support it, which dial, and the cases of unusual frames."""

import re
import sys

import attrs
import interop_command
import mounts
import our_client
import peers
import pytest
import sessions
import websocket_framing
from facts import FACTS, HUB

from mcp_trio import Server

pytestmark = pytest.mark.slow

OLDEST, NEWEST = FACTS.protocol_versions[0], FACTS.protocol_versions[-1]
LEGACY = "2025-11-25"


def program(code):
    return [sys.executable, "-c", code]


def running_server(tmp_path, url="ws://127.0.0.1:9/ws"):
    return interop_command.RunningServer(process=None, address=url.split("/")[2])


# Who meets whom.


@pytest.mark.parametrize("transport", ["websocket", "dialled"])
def test_whoever_speaks_it_does_so_once_in_each_era_in_both_roles(transport):
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
def test_a_client_is_told_the_url_of_a_websocket(tmp_path):
    serving = program(
        "import time; print('serving ws://127.0.0.1:9/ws', flush=True); time.sleep(9)"
    )
    with interop_command.reachable_server(serving, "websocket", tmp_path / "log") as outcomes:
        assert outcomes == ["ws://127.0.0.1:9/ws"]


def test_a_client_to_which_a_server_dials_is_told_its_command(tmp_path):
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


# Our two ends.


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


# The cases.


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
def test_who_plays_is_told_where_our_end_is_or_tells_where_it_listens(endpoint, monkeypatch):
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
def test_who_plays_for_too_long_is_stopped(monkeypatch):
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
