"""The tools that attack servers and break connections: their measurements and reports."""

import functools
import os
import sys
import time
from pathlib import Path

import attrs
import faulty_clients
import faulty_servers
import harmful_requests
import http_attacks
import measurements
import msgspec
import pytest
import raw_peers
import run_attacks
import run_faults
import socket_wires
import target
import trio
import trio.testing
from http_attacks import Attack, Ending
from measurements import AttackResult, Cost, Resources

from mcp_trio import Client, Server
from mcp_trio._transports.trio_websocket import encode_unmasked
from mcp_trio.limits import RequestLimits, WebSocketLimits

pytestmark = pytest.mark.slow


ATTACK = Attack(name="an attack", attempts=(), statuses={400}, hosts=("native",))


def violations(*endings, host="native"):
    return list(run_attacks.violations(ATTACK, host, endings))


def test_a_withstood_attack_is_shown_without_a_violation():
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
def test_a_harmful_ending_is_reported(ending, problem):
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
async def test_a_client_that_reads_nothing_sees_when_it_is_cut_off(attack):
    async def cut(stream):
        await stream.receive_some()
        await stream.aclose()

    ending = await attack(cut, http_attacks.not_reading(b"abc"))
    assert ending.seconds is not None


@pytest.mark.real_time
async def test_a_client_that_disconnects_sees_nothing(attack):
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


# Measurements of an attacked server and of the other client's calls.


@pytest.fixture
def looks():
    """`looks(*held)` sees these, one after the other, and the last of them for ever."""

    def looks(*resources):
        seen = [*resources]

        async def poll():
            await trio.lowlevel.checkpoint()
            return Resources(*(seen.pop(0) if len(seen) > 1 else seen[0]))

        return poll

    return looks


@pytest.mark.parametrize(
    ("resources", "after", "seconds"),
    [
        ([(5, 9)], (5, 9), 0),
        ([(4, 8)], (4, 8), 0),
        ([(7, 9), (7, 9), (5, 9)], (5, 9), 2),
        ([(5, 12), (5, 11), (5, 9)], (5, 9), 2),
        ([(7, 9), (5, 12), (5, 12)], (5, 9), 1),  # each has been at rest once
        ([(6, 9)], (6, 9), 150),
        ([(5, 10)], (5, 10), 150),
    ],
)
async def test_resources_that_are_not_released_in_time_are_reported(
    looks, resources, after, seconds, autojump_clock
):
    begin = trio.current_time()
    assert await measurements.wait_until_released(
        looks(*resources), Resources(5, 9), 3.0
    ) == Resources(*after)
    looked = (trio.current_time() - begin) / measurements.POLL_SECONDS
    assert looked == pytest.approx(seconds)


async def test_a_meter_counts_what_a_process_takes(nursery, autojump_clock):
    meter = measurements.Meter(os.getpid())
    nursery.start_soon(meter.poll)
    large = bytearray(os.urandom(32 << 20))
    await trio.sleep(1)
    size = len(large)
    del large
    peak_kib, left_kib = meter.rss_kib()
    assert peak_kib >= 0.9 * size / 1024
    assert left_kib <= peak_kib - 0.5 * size / 1024
    assert meter.cpu_ms() > 0
    nursery.cancel_scope.cancel()


def test_descriptors_are_counted():
    before = measurements.descriptors_of(os.getpid())
    ends = os.pipe()
    assert measurements.descriptors_of(os.getpid()) == before + 2
    for end in ends:
        os.close(end)


def test_remaining_resources_are_a_problem():
    baseline = Resources(5, 9)
    assert Resources(5, 9).excess_over(baseline).problem() == ""
    assert Resources(4, 8).excess_over(baseline).problem() == ""
    assert Resources(7, 8).excess_over(baseline).problem() == "2 descriptors and -1 tasks are left"
    assert Resources(5, 10).excess_over(baseline).problem() == "0 descriptors and 1 tasks are left"


CALLS = """
import time, other_client

def answers():
    yield from (True, False, True)
    time.sleep(60)

other_client.PAUSE_SECONDS = 0
other_client.call_forever(answers().__next__)
"""


@pytest.fixture
def command(monkeypatch):
    """A client that calls three times: it is answered, and not, and answered."""
    monkeypatch.setenv("PYTHONPATH", str(Path(measurements.__file__).parent))
    return [sys.executable, "-c", CALLS]


@pytest.mark.real_time
async def test_another_client_reports_its_calls_until_it_is_stopped(nursery, monkeypatch, command):
    monkeypatch.setattr(measurements, "_OTHER_CALL_SECONDS_MAX", 0.1)
    begin = time.monotonic()
    with measurements.other_client_calling(command) as other_client:
        nursery.start_soon(other_client.read_calls)
        with trio.fail_after(20):
            while len(calls := await other_client.calls(begin)) < 3:
                pass
        assert [seconds is None for seconds in calls] == [False, True, False]
        assert await other_client.calls(time.monotonic()) == []
    assert other_client.process.returncode is not None


@pytest.mark.real_time
async def test_a_watch_measures_the_cost_of_an_attack_and_what_it_left(monkeypatch, command):
    for name, seconds in (
        ("_OTHER_CALL_SECONDS_MAX", 0.1),
        ("RELEASE_SECONDS_MAX", 0.1),
        ("QUIET_SECONDS", 0),
    ):
        monkeypatch.setattr(measurements, name, seconds)
    tasks = [7, 9]
    begin = time.monotonic()
    async with measurements.watched(os.getpid(), lambda: tasks[0], command) as watch:

        async def attack():
            with trio.fail_after(20):
                while len(await watch.other_client.calls(begin)) < 3:
                    pass
            tasks.pop(0)
            return "done"

        assert watch.baseline.tasks == 7
        outcome, cost = await watch.cost_of(attack)
        assert outcome == "done"
        assert cost.left.tasks == 2
        assert watch.baseline.tasks == 9
        _, cost = await watch.cost_of(trio.lowlevel.checkpoint)
        assert cost.left.tasks == 0
        assert cost.calls == []


# The report.


WELL = AttackResult(
    name="an attack",
    target="native",
    outcomes="400 x2",
    seconds=[0.1, 0.2],
    violations=[],
    cost=Cost(cpu_ms=1.0, rss_kib=(2.0, 0.0), left=Resources(0, -1), calls=[0.001, 0.002]),
)


def test_an_expected_outcome_is_no_problem(capsys):
    assert measurements.report([WELL, attrs.evolve(WELL, target="hypercorn")], "attacks", 1.0)
    out = capsys.readouterr().out
    assert out.count("400 x2") == 2
    assert out.index("native") < out.index("hypercorn")
    assert "2 attacks, 0 problems, 1 s" in out


@pytest.mark.parametrize(
    ("what", "problem"),
    [
        ({"violations": ["it was bad", "it was bad"]}, "it was bad x2"),
        ({"left": Resources(2, 0)}, "2 descriptors and 0 tasks are left x1"),
        ({"left": Resources(0, 1)}, "0 descriptors and 1 tasks are left x1"),
        ({"calls": [0.1, None]}, "1 calls of the other client failed x1"),
        ({"calls": [0.1, 5.5]}, "the other client was answered after 5.5 s x1"),
        ({"calls": []}, "the other client was answered after 0.0 s x1"),
    ],
)
def test_an_unexpected_outcome_is_printed(what, problem, capsys):
    cost = attrs.evolve(WELL.cost, **{key: what[key] for key in what if key != "violations"})
    result = attrs.evolve(WELL, cost=cost, violations=what.get("violations", []))
    assert not measurements.report([result], "attacks", 1.0)
    out = capsys.readouterr().out
    assert f"an attack, native: {problem}" in out
    assert ", 1 problems," in out


def test_the_other_client_may_have_to_wait_longer():
    patient = attrs.evolve(WELL, late_seconds=15.0, cost=attrs.evolve(WELL.cost, calls=[5.5]))
    assert list(patient.problems()) == []


def test_a_host_that_may_fail_others_is_not_reported_for_failed_calls():
    failed = attrs.evolve(WELL, cost=attrs.evolve(WELL.cost, calls=[0.1, None]))
    assert list(failed.problems()) == ["1 calls of the other client failed"]
    assert list(attrs.evolve(failed, may_fail_others=True).problems()) == []


def test_where_nothing_was_done_nothing_is_shown(capsys):
    assert not measurements.report([], "attacks", 1.0)
    assert "nothing was done" in capsys.readouterr().out


# The tasks of an attacked server.


async def count():
    return int(await target.tasks())


async def test_each_task_counts_and_what_it_has_begun(nursery):
    before = await count()

    async def begin():
        async with trio.open_nursery() as inner:
            inner.start_soon(trio.sleep_forever)

    nursery.start_soon(begin)
    await trio.testing.wait_all_tasks_blocked()
    assert await count() == before + 2
    nursery.cancel_scope.cancel()


async def test_a_task_that_only_waits_for_a_handler_does_not_count():
    server = Server("attacked")
    release = trio.Event()

    @server.tool
    async def wait() -> str:
        await release.wait()
        return "waited"

    async with Client(server, cache=False) as client:
        before = await count()
        living = trio.lowlevel.current_statistics().tasks_living
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(client.call_tool, "wait")
            await trio.testing.wait_all_tasks_blocked()
            assert await count() >= before + 10  # of each a caller and a handler
            release.set()
        await trio.testing.wait_all_tasks_blocked()
        assert await count() == before
        assert trio.lowlevel.current_statistics().tasks_living > living


# Faults on sockets.


EXPECTED = ["answer, closed"]


@pytest.mark.parametrize(
    ("ending", "problems"),
    [
        (run_faults.Ending("answer, closed", 0.2), []),
        (run_faults.Ending("", None), ["a connection was kept: nothing"]),
        (run_faults.Ending("close 1000", 1.0), ["close 1000, and not answer, closed"]),
        (run_faults.Ending("", 1.0), ["nothing, and not answer, closed"]),
    ],
)
def test_an_unexpected_ending_is_reported(ending, problems):
    assert (
        list(run_faults.violations([run_faults.Ending("answer, closed", 0.1), ending], EXPECTED))
        == problems
    )


def test_the_same_words_are_counted():
    assert raw_peers.summary_of([]) == ""
    assert raw_peers.summary_of(["a", "a", "b"]) == "a x2, b"
    assert run_faults.outcomes(
        [run_faults.Ending("a", 1.0), run_faults.Ending("a", None), run_faults.Ending("", 2.0)]
    ) == ("a (1); a, kept (1); nothing (1)")


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
RESULT = faulty_servers.Result(
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
def test_a_missing_error_of_a_caller_is_reported(what, problem, capsys):
    assert faulty_servers.report([RESULT])
    assert not faulty_servers.report([attrs.evolve(RESULT, **what)])
    assert f"a server that is bad, tcp: {problem}" in capsys.readouterr().out


ALIVE, SILENT = "answers pings, and no call", "answers no ping, nor anything"


@pytest.fixture
def judged(monkeypatch, tmp_path):
    """`await judged(name, way, seconds, **limits)`: what must not be of that server's client."""

    async def judged(name, transport, seconds, **limits):
        monkeypatch.setattr(faulty_servers, "CLOSE_SECONDS_MAX", seconds)
        monkeypatch.setattr(
            faulty_servers, "LIMITS", msgspec.structs.replace(faulty_servers.LIMITS, **limits)
        )
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


def test_an_unknown_fault_is_a_problem(capsys, monkeypatch):
    monkeypatch.setattr(run_faults, "run", lambda _ways, faults: list(faults))
    assert run_faults.main(["--fault", "no such thing"]) == 1
    assert "0 faults at servers, 1 problems" in capsys.readouterr().out


@pytest.mark.parametrize(("clients_do_well", "status"), [(True, 0), (False, 1)])
def test_errors_of_clients_change_the_exit_status(monkeypatch, clients_do_well, status):
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
def test_complete_frames_are_distinguished(size):
    data = encode_unmasked("x" * size) + encode_unmasked("next")
    whole, rest = socket_wires.frames_in(data[:-1])
    assert [each.payload for each in whole] == [b"x" * size]
    [last], rest = socket_wires.frames_in(rest + data[-1:])
    assert (last.payload, rest) == (b"next", b"")
    assert socket_wires.masked(0x81, b"x" * size).endswith(bytes(4) + b"x" * size)
