"""Simulations: equal seeds give equal reports, and every violation is reported."""

import logging
from contextlib import suppress

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcp_trio import Client, Context, Limits, Server, ToolError
from mcp_trio._session.tasks import seeded_schedule
from mcp_trio.errors import LocalProtocolError, NothingCompared
from mcp_trio.limits import RequestLimits
from mcp_trio.recording import read_recording, replay
from mcp_trio.testing import Faults, FaultyChannel, simulate

EVERYTHING = Faults(drop=0.03, delay=0.2, reorder=0.1, cut=0.02, corrupt=0.05, slow_reader=0.1)
OUTCOMES = {"result", "error", "timeout", "cancelled", "lost"}


@pytest.fixture(autouse=True)
def quiet(caplog):
    """Hide the log messages that faults cause."""
    caplog.set_level(logging.CRITICAL, "mcp_trio")


def make_server():
    server = Server("desk", limits=Limits(requests=RequestLimits(in_flight_max=4)))
    total = {"sum": 0}

    @server.tool
    async def wait(seconds: float, *, ctx: Context) -> float:
        await ctx.report_progress(1)
        await trio.sleep(seconds)
        return seconds

    @server.tool
    async def add(amount: int, *, ctx: Context) -> int:
        total["sum"] += amount
        await ctx.info(f"{amount} more")
        return total["sum"]

    @server.tool
    async def fail() -> None:
        raise ToolError("as asked")

    return server


async def scenario(client, random_source):
    """Make concurrent calls, some of which are cancelled."""

    async def call():
        with trio.move_on_after(random_source.uniform(0, 3)):
            await client.call_tool("wait", {"seconds": random_source.uniform(0, 2)})

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(call)
    await client.call_tool("add", {"amount": random_source.randrange(9)})
    await client.ping()


async def ping(client, random_source):
    await client.ping()


@pytest.mark.slow
def test_without_faults_every_scenario_finishes():
    report = simulate(make_server(), scenario, sessions=30, seed=1)
    assert report.ends == {"finished": 30}
    assert report.requests == 30 * 5
    assert set(report.outcomes) == {"result", "cancelled"}
    assert report.faults == {}
    assert 1 < report.seconds < 20
    assert str(report) == (
        f"30 sessions, 150 requests {report.outcomes}, faults {{}},"
        f" {report.seconds:.1f} virtual seconds, seed 1"
    )


@pytest.mark.slow
def test_hundreds_of_sessions_take_seconds():
    async def short(client, random_source):
        await client.call_tool("add", {"amount": 1})

    report = simulate(make_server(), short, sessions=200)
    assert report.outcomes == {"result": 200}


@pytest.mark.slow
@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6))
def test_under_faults_every_request_ends_once_and_equal_seeds_give_equal_reports(seed):
    first, again = (
        simulate(make_server(), scenario, sessions=12, seed=seed, faults=EVERYTHING)
        for _ in range(2)
    )
    assert first == again
    assert set(first.outcomes) <= OUTCOMES
    assert sum(first.outcomes.values()) == first.requests
    assert sum(first.faults.values()) > 0


@pytest.mark.slow
def test_every_outcome_and_every_fault_occurs():
    report = simulate(make_server(), scenario, sessions=100, seed=3, faults=EVERYTHING)
    assert set(report.outcomes) == OUTCOMES
    assert set(report.faults) == {"drop", "delay", "reorder", "cut", "corrupt", "slow_reader"}
    assert {"finished", "ConnectionLost", "RequestTimeout"} <= set(report.ends)
    assert [session.number for session in report.sessions] == list(range(100))


def test_another_seed_gives_another_report():
    one, other = (simulate(make_server(), scenario, sessions=5, seed=seed) for seed in (1, 2))
    assert one.sessions != other.sessions


@pytest.mark.slow
@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6))
def test_the_recording_of_a_session_with_faults_replays(tmp_path_factory, seed):
    folder = tmp_path_factory.mktemp("world")

    def make_plain_server():
        server = Server("plain")

        @server.tool
        async def wait(seconds: float, *, ctx: Context) -> float:
            await ctx.report_progress(1)
            await ctx.sleep(seconds)
            return seconds

        return server

    async def plain(client, random_source):
        for _ in range(3):
            with trio.move_on_after(random_source.uniform(0, 3)):
                await client.call_tool("wait", {"seconds": random_source.uniform(0, 2)})

    server = make_plain_server()
    report = simulate(server, plain, sessions=6, seed=seed, faults=EVERYTHING, record=folder)
    recordings = list(folder.iterdir())
    assert len(recordings) == len(report.sessions)
    for path in recordings:
        with path.open("rb") as lines:
            assert list(read_recording(lines))[-1].kind == "end"
        with suppress(NothingCompared):  # A fault may end a session before its first call.
            assert replay(path, make_plain_server()).is_complete


# The observed events.


def test_other_errors_of_a_scenario_are_raised_unwrapped_with_a_note():
    async def wrong(client, random_source):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.ping)
            assert (await client.list_tools())[0].name == "nobody"

    with pytest.raises(AssertionError, match="nobody") as caught:
        simulate(make_server(), wrong, sessions=3, seed=7)
    assert any("of seed 7" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("end", [pytest.skip.Exception, pytest.fail.Exception, SystemExit])
def test_base_exceptions_of_a_scenario_are_raised_unwrapped(end):
    async def ending(client, random_source):
        async with trio.open_nursery():
            raise end("no more")

    with pytest.raises(end, match="no more") as caught:
        simulate(make_server(), ending, sessions=3, seed=7)
    assert any("of seed 7" in note for note in caught.value.__notes__)


def test_a_group_of_mcp_errors_ends_only_its_session():
    async def grouped(client, random_source):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "fail")

    report = simulate(make_server(), grouped, sessions=2)
    assert report.ends == {"ToolError": 2}
    assert report.outcomes == {"result": 2}


def test_another_exception_of_a_request_has_the_outcome_error():
    async def forbidden(client, random_source):
        with pytest.raises(LocalProtocolError):
            await client.request("acme/unknown")
        await client.request("initialize")

    assert simulate(make_server(), forbidden, sessions=1).outcomes == {"error": 2}


def test_a_hanging_session_is_reported():
    async def hang(client, random_source):
        if random_source.random() < 0.5:
            await trio.sleep_forever()

    with pytest.raises(
        AssertionError, match=r"seed 5: not finished after 100 s: session \d"
    ) as caught:
        simulate(make_server(), hang, sessions=6, seed=5, seconds_max=100)
    assert str(caught.value).count(",") < 5


class Leaking(Server):
    """A server with a task that outlives the session."""

    async def serve(self, channel, **options):
        trio.lowlevel.spawn_system_task(trio.sleep_forever)
        await super().serve(channel, **options)


def test_a_remaining_task_is_reported():
    with pytest.raises(AssertionError, match="3 tasks are left over"):
        simulate(Leaking("leaking"), ping, sessions=3)


def test_an_open_request_is_reported():
    class Keeping:
        def __init__(self, server):
            self.server = server

        async def serve(self, channel, *, record=None, task_status=trio.TASK_STATUS_IGNORED):
            sessions = []

            class Status:
                def started(self, session):
                    sessions.append(session)
                    task_status.started(session)

            await self.server.serve(channel, record=record, task_status=Status())
            sessions[0].connection.incoming["x"] = "kept"

    with pytest.raises(AssertionError, match="without an outcome: server's request"):
        simulate(Keeping(make_server()), ping, sessions=1)


def test_an_unknown_answer_is_reported_without_faults():
    class Twice:
        """Answers a ping twice."""

        def __init__(self, server):
            self.server = server

        async def serve(self, channel, *, record=None, task_status=trio.TASK_STATUS_IGNORED):
            await self.server.serve(Doubled(channel), record=record, task_status=task_status)

    class Doubled(FaultyChannel):
        async def send(self, frames):
            await super().send([each for frame in frames for each in (frame, frame)])

    with pytest.raises(AssertionError, match="unknown answer"):
        simulate(Twice(make_server()), ping, sessions=1)


# The order of tasks.


def order_of_tasks():
    order = []

    async def note(number):
        order.append(number)

    async def main():
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(note, number)

    trio.run(main)
    return order


def test_the_seed_decides_the_order_of_tasks():
    orders = []
    for seed in (1, 1, 2):
        with seeded_schedule(seed):
            orders.append(order_of_tasks())
    assert orders[0] == orders[1] != orders[2]


def test_the_scheduler_is_restored():
    scheduler = trio._core._run
    before = (scheduler._ALLOW_DETERMINISTIC_SCHEDULING, scheduler._r.getstate())
    with pytest.raises(KeyError), seeded_schedule(1):
        raise KeyError
    assert (scheduler._ALLOW_DETERMINISTIC_SCHEDULING, scheduler._r.getstate()) == before


def test_a_trio_without_the_flag_raises(monkeypatch):
    monkeypatch.delattr(trio._core._run, "_ALLOW_DETERMINISTIC_SCHEDULING")
    with pytest.raises(RuntimeError, match="has no seed for the order"), seeded_schedule(1):
        pass


def test_a_scenario_gets_a_public_client():
    kinds = []

    async def look(client, random_source):
        kinds.append(type(client))

    simulate(make_server(), look, sessions=1)
    assert issubclass(kinds[0], Client)
