"""The peers over WebSocket: who speaks it, who dials, and what the tricks of `ws` come to."""

import re
import sys

import attrs
import mounts
import our_client
import peers
import pytest
import server_location
import sessions
import websocket_framing
from facts import FACTS, HUB

from mcp_trio import Server

pytestmark = pytest.mark.slow

OLDEST, NEWEST = FACTS.protocol_versions[0], FACTS.protocol_versions[-1]
LEGACY = "2025-11-25"


def program(code):
    return [sys.executable, "-c", code]


def served(tmp_path, url="ws://127.0.0.1:9/ws"):
    return server_location.Served(process=None, address=url.split("/")[2])


# Who meets whom.


@pytest.mark.parametrize("transport", ["websocket", "dialled"])
def test_whoever_speaks_it_does_so_once_in_each_era_in_both_roles(transport):
    told = {
        (peer.name, protocol_version)
        for peer in peers.SDKS
        for protocol_version in FACTS.protocol_versions
        if {peer.speaks(role, protocol_version, transport) for role in peers.ROLES} == {True}
    }
    foreign = {("TypeScript 1", LEGACY), ("TypeScript 2", LEGACY), ("TypeScript 2", NEWEST)}
    python = {("Python 1", LEGACY)} if transport == "websocket" else set()
    assert told == foreign | python


def test_each_transport_has_a_way_to_start_either_server():
    for transport in peers.TRANSPORTS:
        assert transport in sessions.THEIR_SERVERS
        assert (transport in server_location.PLACES) is not (transport in server_location.IN_FRONT)


@pytest.mark.real_time
def test_a_client_is_told_the_url_of_a_websocket(tmp_path):
    serving = program(
        "import time; print('serving ws://127.0.0.1:9/ws', flush=True); time.sleep(9)"
    )
    with server_location.reachable(serving, "websocket", tmp_path / "log") as told:
        assert told == ["ws://127.0.0.1:9/ws"]


def test_a_client_to_which_a_server_dials_is_told_its_command(tmp_path):
    with server_location.reachable(["python", "server.py"], "dialled", tmp_path / "log") as told:
        assert told == [HUB, "python", "server.py"]


@pytest.mark.parametrize("protocol_version", [LEGACY, OLDEST])
def test_who_tours_a_mount_finds_there_what_it_speaks(protocol_version, tmp_path):
    mount = mounts.Mount(name="deep", command=[], mcp="/deep/mcp", sse="/deep/sse", websocket="/ws")
    by_http = mounts.Tourist("mcp_trio", protocol_version, [])
    end = "mcp" if protocol_version == LEGACY else "sse"
    assert by_http.url(mount, served(tmp_path)) == f"http://127.0.0.1:9/deep/{end}"
    by_websocket = attrs.evolve(by_http, is_on_websocket=True)
    assert by_websocket.url(mount, served(tmp_path)) == "ws://127.0.0.1:9/ws"
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
    command = [sys.executable, str(sessions.OUR_DIALLER), "--record", str(recording)]
    await our_client.main([HUB, *command], None, "both")
    assert capsys.readouterr().out == f"at {NEWEST}\n"
    assert '"k":"end"' in recording.read_text().splitlines()[-1]


# The tricks.


class Programs:
    """An environment whose programs are all the same one."""

    def __init__(self, code):
        self.code = code

    def start(self, _program):
        return program(self.code)

    def pins(self):
        return {"ws": "8"}


def all_well():
    return websocket_framing.Meeting(
        "serve_websocket", told=dict.fromkeys(websocket_framing.TRICKS, "ok")
    )


def test_when_all_tricks_end_well_nothing_is_wrong(capsys):
    assert websocket_framing.report([all_well()], 1.0)
    assert "1 ends, 15 tricks, 0 complaints" in capsys.readouterr().out


def test_a_trick_that_ends_badly_or_is_not_played_is_told(capsys):
    meeting = all_well()
    meeting.told["a cut"] = "the close does not come"
    del meeting.told["is pinged"]
    meeting.told["a new one"] = "ok"
    meeting.complain("SyntaxError: what?")
    assert not websocket_framing.report([meeting], 1.0)
    out = capsys.readouterr().out
    assert "serve_websocket: a cut: the close does not come" in out
    assert "serve_websocket: is pinged: was not played: SyntaxError: what?" in out
    assert "serve_websocket: a new one: nobody asked for that" in out
    assert ", 3 complaints," in out


@pytest.mark.real_time
@pytest.mark.parametrize("end", websocket_framing.ENDS)
def test_who_plays_is_told_where_our_end_is_or_tells_where_it_listens(end, monkeypatch):
    code = (
        "import sys; place = sys.argv[1:];"
        "print('ws://127.0.0.1:1' if not place else f'place: {place}');"
        "print('no such trick', file=sys.stderr)"
    )
    monkeypatch.setattr(websocket_framing, "TYPESCRIPT", Programs(code))
    monkeypatch.setattr(websocket_framing, "is_installed", lambda _: True)
    monkeypatch.setattr(websocket_framing, "ENDS", {end: websocket_framing.ENDS[end]})
    [meeting] = websocket_framing.meet_all(None)
    place = meeting.told.pop("place", "")
    assert bool(re.fullmatch(r"\['ws://127\.0\.0\.1:[0-9]+/ws'\]", place)) is (end != "dial")
    assert meeting.told == {}
    assert meeting.fault_of("a cut") == "was not played: no such trick"


@pytest.mark.real_time
def test_who_plays_for_too_long_is_stopped(monkeypatch):
    monkeypatch.setattr(websocket_framing, "SECONDS_MAX", 0.05)
    monkeypatch.setattr(websocket_framing, "TYPESCRIPT", Programs("import time; time.sleep(60)"))
    monkeypatch.setattr(websocket_framing, "is_installed", lambda _: True)
    assert all(not meeting.told for meeting in websocket_framing.meet_all(None))


def test_tricks_need_who_plays_them(monkeypatch, capsys):
    monkeypatch.setattr(websocket_framing, "is_installed", lambda _: False)
    with pytest.raises(peers.MissingPeer, match=r"^ws [0-9.]+ is not installed as pinned"):
        websocket_framing.meet_all(None)
