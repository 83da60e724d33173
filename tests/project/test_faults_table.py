"""The table of the faults on sockets: what became of connections is counted, and judged."""

import attrs
import faulty_clients
import faulty_servers
import pytest
import raw_peers
import run_faults
import socket_wires
from measurements import Resources
from run_faults import Ending

from mcp_trio._transports.trio_websocket import unmasked
from mcp_trio.limits import RequestLimits, WebSocketLimits

pytestmark = pytest.mark.slow

EXPECTED = ["answer, closed"]


@pytest.mark.parametrize(
    ("ending", "problems"),
    [
        (Ending("answer, closed", 0.2), []),
        (Ending("", None), ["a connection was kept: nothing"]),
        (Ending("close 1000", 1.0), ["close 1000, and not answer, closed"]),
        (Ending("", 1.0), ["nothing, and not answer, closed"]),
    ],
)
def test_what_must_not_be_is_told(ending, problems):
    assert (
        list(run_faults.violations([Ending("answer, closed", 0.1), ending], EXPECTED)) == problems
    )


def test_the_same_words_are_counted():
    assert raw_peers.summary_of([]) == ""
    assert raw_peers.summary_of(["a", "a", "b"]) == "a x2, b"
    assert run_faults.outcomes([Ending("a", 1.0), Ending("a", None), Ending("", 2.0)]) == (
        "a (1); a, kept (1); nothing (1)"
    )


def test_each_answer_is_a_word_and_a_notification_is_none():
    assert raw_peers.outcomes_of(b'{"id":1,"result":{}}') == ["answer"]
    assert raw_peers.outcomes_of(b'{"id":1,"error":{"code":-32600}}') == ["error -32600"]
    assert raw_peers.outcomes_of(b'{"method":"notifications/progress"}') == []


def test_each_fault_is_expected_somewhere_and_has_a_name_of_its_own():
    names = [each.name for each in faulty_clients.FAULTS]
    assert len(set(names)) == len(names)
    for each in faulty_clients.FAULTS:
        assert set(each.expected) <= set(faulty_clients.TRANSPORTS)
        assert each.expected


CLIENT_FAULT = faulty_servers.Fault(
    name="is bad", serve=faulty_servers.close_at_once, expected={"tcp": "closed"}
)
TOLD = faulty_servers.Result(
    fault=CLIENT_FAULT,
    transport="tcp",
    error_text="ConnectionLost: closed",
    seconds=0.1,
    left=Resources(0, 0),
)


@pytest.mark.parametrize(
    ("what", "problem"),
    [
        ({"error_text": ""}, "the call raised no error for 10 s"),
        ({"error_text": "an answer"}, "an answer: that does not contain 'closed'"),
        ({"left": Resources(0, 1)}, "0 descriptors and 1 tasks are left"),
        ({"left": Resources(1, -1)}, "1 descriptors and -1 tasks are left"),
    ],
)
def test_what_a_caller_must_be_told_is_judged(what, problem, capsys):
    assert faulty_servers.report([TOLD])
    assert not faulty_servers.report([attrs.evolve(TOLD, **what)])
    assert f"a server that is bad, tcp: {problem}" in capsys.readouterr().out


ALIVE, SILENT = "answers pings, and no call", "answers no ping, nor anything"


@pytest.fixture
def judged(monkeypatch, tmp_path):
    """`await judged(name, way, seconds, **limits)`: what must not be of that server's client."""

    async def judged(name, transport, seconds, **limits):
        monkeypatch.setattr(faulty_servers, "CLOSE_SECONDS_MAX", seconds)
        monkeypatch.setattr(faulty_servers, "LIMITS", attrs.evolve(faulty_servers.LIMITS, **limits))
        [fault] = [each for each in faulty_servers.FAULTS if each.name == name]
        return list(
            faulty_servers.problems(await faulty_servers.call_server(fault, transport, tmp_path))
        )

    return judged


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("name", "transport", "setting"),
    [
        (ALIVE, "websocket", "idle_seconds"),
        (ALIVE, "tcp", "idle_seconds"),
        (SILENT, "websocket", "pong_seconds"),
    ],
)
async def test_only_the_limit_for_it_finds_out_a_server_that_does_not_answer(
    judged, name, transport, setting
):
    def limits(seconds):
        others = {"idle_seconds": 60.0, "pong_seconds": 60.0} | {setting: seconds}
        requests = RequestLimits(
            initialize_seconds=faulty_servers.LIMITS.requests.initialize_seconds,
            idle_seconds=others["idle_seconds"],
        )
        websocket = WebSocketLimits(ping_interval_seconds=0.05, pong_seconds=others["pong_seconds"])
        return {"requests": requests, "websocket": websocket}

    assert await judged(name, transport, 20, **limits(0.2)) == []
    assert await judged(name, transport, 0.5, **limits(60.0)) == [
        "the call raised no error for 0.5 s"
    ]


def test_a_fault_that_there_is_not_shows_nothing(capsys, monkeypatch):
    monkeypatch.setattr(run_faults, "run", lambda _ways, faults: list(faults))
    assert run_faults.main(["--fault", "no such thing"]) == 1
    assert "0 faults at servers, 1 problems" in capsys.readouterr().out


@pytest.mark.parametrize(("clients_do_well", "status"), [(True, 0), (False, 1)])
def test_what_clients_are_told_counts_as_well(monkeypatch, clients_do_well, status):
    monkeypatch.setattr(run_faults, "run", lambda _ways, _faults: [])
    monkeypatch.setattr(run_faults, "report", lambda *_: True)
    monkeypatch.setattr(faulty_servers, "run", list)
    monkeypatch.setattr(faulty_servers, "report", lambda _: clients_do_well)
    assert run_faults.main([]) == status


@pytest.mark.real_time
def test_a_server_is_troubled_and_does_well(capsys):
    assert run_faults.main(["--transport", "tcp", "--fault", "HTTP where lines are expected"]) == 0
    assert "closed (10)" in capsys.readouterr().out


@pytest.mark.parametrize("size", [0, 125, 126, 65535, 65536])
def test_frames_are_told_apart_once_they_are_whole(size):
    data = unmasked("x" * size) + unmasked("next")
    whole, rest = socket_wires.frames_in(data[:-1])
    assert [each.payload for each in whole] == [b"x" * size]
    [last], rest = socket_wires.frames_in(rest + data[-1:])
    assert (last.payload, rest) == (b"next", b"")
    assert socket_wires.masked(0x81, b"x" * size).endswith(bytes(4) + b"x" * size)
