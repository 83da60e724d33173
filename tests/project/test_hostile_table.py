"""The table of the hostile clients: what they are given is counted, and what must not be is told."""

import functools

import attrs
import harmful_requests
import http_attacks
import pytest
import run_attacks
import trio
from http_attacks import Attack, Ending

pytestmark = pytest.mark.slow

ATTACK = Attack(name="an attack", attempts=(), statuses={400}, hosts=("native",))


def violations(*endings, host="native"):
    return list(run_attacks.violations(ATTACK, host, endings))


def test_what_was_withstood_is_told_and_no_complaint():
    endings = [Ending((400,), 0.1), Ending((), 0.2), Ending((400, 400), 0.3)]
    assert run_attacks.outcomes(endings) == "400 x1, silence x1, 400 2 times x1"
    assert violations(*endings[:2]) == []


@pytest.mark.parametrize(
    ("ending", "problem"),
    [
        (Ending((), None), "a connection was kept for 15 s: open"),
        (Ending((400, 400), 1.0), "2 answers"),
        (Ending((200,), 1.0), "answered with 200"),
        (Ending((400,), 1.0, has_leaked=True), "a header was injected"),
    ],
)
def test_what_must_not_be_is_told(ending, problem):
    assert violations(Ending((400,), 0.1), ending) == [problem]


def test_a_host_that_need_not_withstand_it_so_is_only_shown():
    assert violations(Ending((200, 200), None), host="hypercorn") == []
    assert violations(Ending((200,), 1.0, has_leaked=True), host="hypercorn") == [
        "a header was injected"
    ]


def test_answers_are_counted_also_behind_a_body_that_ends_without_a_line():
    received = b"HTTP/1.1 200 OK\r\n\r\nyesHTTP/1.1 400 Bad Request\r\n\r\nno"
    assert harmful_requests.statuses(received) == [200, 400]


def test_the_damage_is_the_same_each_time():
    assert list(harmful_requests.damaged(9)) == list(harmful_requests.damaged(9))
    assert len(set(harmful_requests.damaged(9))) == 9


@pytest.fixture
async def attack(nursery, monkeypatch):
    """`await attack(handler, attempt)` is the ending of an attempt at what a handler serves."""
    monkeypatch.setattr(http_attacks, "CLOSE_SECONDS_MAX", 0.3)
    monkeypatch.setattr(http_attacks, "TRICKLE_SECONDS", 0.01)

    async def attack(handler, attempt):
        serve = functools.partial(trio.serve_tcp, handler, 0, host="127.0.0.1")
        [listener] = await nursery.start(serve)
        target = http_attacks.Target(listener.socket.getsockname()[1])
        attack = attrs.evolve(ATTACK, attempts=[attempt])
        [ending] = await attack.run(target)
        return ending

    yield attack
    nursery.cancel_scope.cancel()


@pytest.mark.real_time
async def test_a_connection_that_is_closed_with_an_answer_is_seen(attack):
    async def reject(stream):
        assert await stream.receive_some() == b"abc"
        assert await stream.receive_some() == b""
        await stream.send_all(b"HTTP/1.1 400 Bad Request\r\nInjected: 1\r\n\r\n")

    ending = await attack(reject, http_attacks.sending(b"abc", then_eof=True))
    assert (ending.answers, ending.has_leaked) == ((400,), True)
    assert ending.seconds is not None


@pytest.mark.real_time
async def test_a_connection_that_is_kept_is_seen(attack):
    async def wait(_stream):
        await trio.sleep_forever()

    assert await attack(wait, http_attacks.trickling(b"a", b"bcd")) == Ending((), None)


@pytest.mark.real_time
async def test_who_reads_nothing_sees_when_it_is_cut_off(attack):
    async def cut(stream):
        await stream.receive_some()
        await stream.aclose()

    ending = await attack(cut, http_attacks.not_reading(b"abc"))
    assert ending.seconds is not None


@pytest.mark.real_time
async def test_who_vanishes_sees_nothing(attack):
    async def wait(stream):
        await stream.receive_some()

    ending = await attack(wait, http_attacks.vanishing(b"abc", resets=True))
    assert ending.answers == ()


@pytest.mark.real_time
def test_servers_are_attacked_at_the_same_time_and_do_well(capsys):
    assert run_attacks.main(["--attack", "invalid headers"]) == 0
    out = capsys.readouterr().out
    assert out.count("400 x3") == 2
    assert out.index("native") < out.index("hypercorn")
    assert "2 attacks, 0 problems" in out


def test_an_attack_that_there_is_not_shows_nothing(capsys, monkeypatch):
    monkeypatch.setattr(run_attacks, "run", lambda _hosts, attacks: list(attacks))
    assert run_attacks.main(["--attack", "no such thing"]) == 1
    assert "0 attacks, 1 problems" in capsys.readouterr().out
