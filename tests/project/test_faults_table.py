"""The table of the faults on sockets: what became of connections is counted, and judged."""

import at_clients
import at_servers
import attrs
import pytest
import raw_ends
import socket_wires
import troubling
from troubling import Ending, Result
from under_attack import Held

from mcp_trio._transports.websocket.trio_sockets import unmasked

FAULT = at_servers.Fault(
    name="a fault", script=at_servers.say_nothing, expected={"tcp": ["answer, closed"]}
)
WELL = Result(
    fault=FAULT,
    way="tcp",
    endings=[Ending("answer, closed", 0.1), Ending("answer, closed", 0.2)],
    cpu_ms=1.0,
    rss_kib=(2.0, 0.0),
    left=Held(0, -1),
    calls=[0.001, 0.002],
)


def test_what_was_withstood_is_no_complaint(capsys):
    assert list(troubling.complaints(WELL)) == []
    assert troubling.report([WELL], 1.0)
    out = capsys.readouterr().out
    assert "answer, closed (2)" in out
    assert "1 faults at servers, 0 complaints, 1 s" in out


@pytest.mark.parametrize(
    ("what", "complaint"),
    [
        ({"endings": [Ending("", None)]}, "a connection was kept: nothing"),
        ({"endings": [Ending("close 1000", 1.0)]}, "close 1000, and not answer, closed"),
        ({"endings": [Ending("", 1.0)]}, "nothing, and not answer, closed"),
        ({"left": Held(2, 0)}, "2 descriptors and 0 tasks are left"),
        ({"left": Held(0, 1)}, "0 descriptors and 1 tasks are left"),
        ({"calls": [0.1, None]}, "1 calls of the other client failed"),
        ({"calls": [0.1, 5.5]}, "the other client was answered after 5.5 s"),
        ({"calls": []}, "the other client was answered after 0.0 s"),
    ],
)
def test_what_must_not_be_is_told(what, complaint, capsys):
    result = attrs.evolve(WELL, **what)
    assert list(troubling.complaints(result)) == [complaint]
    assert not troubling.report([result], 1.0)
    assert f"a fault, tcp: {complaint} x1" in capsys.readouterr().out


def test_beside_a_thousand_sessions_a_neighbour_may_wait_longer():
    patient = attrs.evolve(FAULT, is_patient=True)
    assert list(troubling.complaints(attrs.evolve(WELL, fault=patient, calls=[5.5]))) == []


def test_the_same_words_are_counted():
    assert raw_ends.in_words([]) == ""
    assert raw_ends.in_words(["a", "a", "b"]) == "a x2, b"
    assert troubling.told([Ending("a", 1.0), Ending("a", None), Ending("", 2.0)]) == (
        "a (1); a, kept (1); nothing (1)"
    )


def test_each_answer_is_a_word_and_a_notification_is_none():
    assert raw_ends.words_of(b'{"id":1,"result":{}}') == ["answer"]
    assert raw_ends.words_of(b'{"id":1,"error":{"code":-32600}}') == ["error -32600"]
    assert raw_ends.words_of(b'{"method":"notifications/progress"}') == []


def test_each_fault_is_expected_somewhere_and_has_a_name_of_its_own():
    names = [each.name for each in at_servers.FAULTS]
    assert len(set(names)) == len(names)
    for each in at_servers.FAULTS:
        assert set(each.expected) <= set(at_servers.WAYS)
        assert each.expected


CLIENT_FAULT = at_clients.Fault(name="is bad", serve=at_clients.hang_up, says={"tcp": "closed"})
TOLD = at_clients.Result(
    fault=CLIENT_FAULT,
    way="tcp",
    told="ConnectionLost: closed",
    seconds=0.1,
    tasks_left=0,
    descriptors_left=0,
)


@pytest.mark.parametrize(
    ("what", "complaint"),
    [
        ({"told": ""}, "the caller was told nothing for 10 s"),
        ({"told": "an answer"}, "an answer: that does not say 'closed'"),
        ({"tasks_left": 1}, "0 descriptors and 1 tasks are left"),
        ({"descriptors_left": 1}, "1 descriptors and 0 tasks are left"),
    ],
)
def test_what_a_caller_must_be_told_is_judged(what, complaint, capsys):
    assert at_clients.report([TOLD])
    assert not at_clients.report([attrs.evolve(TOLD, **what)])
    assert f"a server that is bad, tcp: {complaint}" in capsys.readouterr().out


@pytest.mark.real_time
def test_a_server_is_troubled_and_does_well(capsys):
    assert troubling.main(["--way", "tcp", "--fault", "HTTP where lines are spoken"]) == 0
    assert "closed (10)" in capsys.readouterr().out


@pytest.mark.parametrize("size", [0, 125, 126, 65535, 65536])
def test_frames_are_told_apart_once_they_are_whole(size):
    data = unmasked("x" * size) + unmasked("next")
    whole, rest = socket_wires.frames_in(data[:-1])
    assert [each.payload for each in whole] == [b"x" * size]
    [last], rest = socket_wires.frames_in(rest + data[-1:])
    assert (last.payload, rest) == (b"next", b"")
    assert socket_wires.masked(0x81, b"x" * size).endswith(bytes(4) + b"x" * size)
