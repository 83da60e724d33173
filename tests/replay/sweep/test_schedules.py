"""Schedules: the strategies of a sweep, and the options and outcomes of a session."""

from itertools import pairwise
from math import comb

import pytest
import trio
from golden_recordings import GOLDEN, STRICTLY, load_server
from hypothesis import given
from hypothesis import strategies as st

from mcp_trio import Context, Server, effect
from mcp_trio._replay.schedules import (
    Decision,
    Deviation,
    PriorityOrder,
    RandomOrder,
    RecordedOrder,
    decode_schedule,
    deviations_of,
    search_depth_first,
    shorten,
)
from mcp_trio.errors import NothingCompared, RecordingError
from mcp_trio.recording import Schedule, sweep
from tests.replay import generated_programs as programs

# The strategies, without a session.

LANES = ("r1 goes on", "r2 goes on", "r3: fetch ends")


def run(order, remaining):
    """Run a session whose lanes have so many turns left each; the first lane is the default."""
    decisions = []
    left = dict(zip(LANES, remaining, strict=False))
    while options := tuple(option for option, count in left.items() if count):
        chosen = order.choose(len(decisions), options, options[0])
        decisions.append(Decision(options, options[0], chosen))
        left[chosen] -= 1
    return decisions


@given(first=st.integers(0, 4), second=st.integers(0, 4))
def test_a_depth_first_search_runs_every_schedule_once(first, second):
    ran = []

    def run_all(orders):
        results = [run(order, (first, second)) for order in orders]
        ran.extend(tuple(each.chosen for each in result) for result in results)
        return results

    coverage = search_depth_first(run_all, 1000)
    assert coverage.is_complete
    assert str(coverage) == "these are all schedules"
    assert len(ran) == len(set(ran)) == comb(first + second, second)


def test_a_depth_first_search_reports_the_decisions_that_it_did_not_cover():
    counts = []

    def run_all(orders):
        counts.append(len(orders))
        return [run(order, (3, 3)) for order in orders]

    coverage = search_depth_first(run_all, 6)
    assert counts == [1, 3, 2]
    assert str(coverage) == (
        "all with at most 1 deviation from the recorded order; 4 with 2 were not run,"
        " and those with more"
    )


@given(seed=st.integers(0, 50))
def test_a_random_order_follows_from_its_seed_and_takes_any_option(seed):
    chosen = [each.chosen for each in run(RandomOrder(seed), (4, 4, 4))]
    assert chosen == [each.chosen for each in run(RandomOrder(seed), (4, 4, 4))]


def test_random_orders_differ_by_their_seeds():
    assert len({str(run(RandomOrder(seed), (4, 4, 4))) for seed in range(50)}) > 40


def changes(decisions):
    """Return how often another lane than the last one goes on while the last one could."""
    return sum(
        last.chosen != following.chosen and last.chosen in following.options
        for last, following in pairwise(decisions)
    )


@pytest.mark.parametrize("bound", [1, 2, 3])
def test_a_priority_order_changes_lanes_less_often_than_its_bound(bound):
    counts = {changes(run(PriorityOrder(seed, 12, bound), (4, 4, 4))) for seed in range(200)}
    assert max(counts) == bound - 1


def test_a_priority_order_treats_all_options_of_a_lane_alike():
    order = PriorityOrder(0, 1, 1)
    first = order.choose(0, ("r1 goes on", "r2 goes on"), "r1 goes on").partition(" ")[0]
    assert order.choose(1, ("r1: fetch ends", "r2: fetch ends"), "r1: fetch ends").startswith(first)


def test_deviations_are_the_decisions_that_are_not_the_default():
    decisions = run(RecordedOrder({1: LANES[1]}), (2, 1))
    assert [each.chosen for each in decisions] == [LANES[0], LANES[1], LANES[0]]
    (deviation,) = deviations_of(decisions)
    assert deviation == Deviation(decision=1, take=LANES[1], instead_of=LANES[0])
    assert str(deviation) == "at decision 1: r2 goes on, not yet: r1 goes on"


def test_a_deviation_that_is_no_option_is_ignored():
    assert run(RecordedOrder({0: "r9 goes on"}), (2, 1)) == run(RecordedOrder(), (2, 1))


@given(
    needed=st.sets(st.integers(0, 30), max_size=4),
    others=st.sets(st.integers(0, 30), max_size=20),
)
def test_shortening_keeps_just_the_deviations_that_are_needed(needed, others):
    deviations = dict.fromkeys(needed | others, "r2 goes on")

    def fails(candidates):
        return [needed <= each.keys() for each in candidates]

    assert set(shorten(deviations, fails)) == needed


def test_shortening_gives_up_after_a_number_of_schedules():
    runs = []

    def fails(candidates):
        runs.extend(candidates)
        return [len(each) > 990 for each in candidates]

    kept = shorten(dict.fromkeys(range(1000), "r2 goes on"), fails)
    assert 990 < len(kept) <= 1000
    assert len(runs) < 2000


def test_a_schedule_is_read_as_it_was_written():
    deviation = Deviation(decision=3, take=LANES[0], instead_of=LANES[1])
    schedule = Schedule(recording="a", digest="b", deviations=(deviation,), differences=("late",))
    assert decode_schedule(schedule.encoded()) == schedule


@pytest.mark.parametrize("data", [b"", b"{}", b'{"recording": 1}'])
def test_a_value_that_is_no_schedule_is_rejected(data):
    with pytest.raises(RecordingError, match="not a schedule of a sweep"):
        decode_schedule(data)


# A session: its options at each decision, and the outcomes of requests.

SCHEDULES = 300


def covered(path, make, **options):
    """Sweep depth-first, and check that there are no other schedules."""
    report = sweep(path, make, schedules=SCHEDULES, strategy="depth-first", **options)
    assert report.coverage == "these are all schedules"
    return report


def calling(sums, *tools):
    """Return a client that calls tools in one read, and then `seen`."""

    async def talk(peer, _session):
        await peer.handshake()
        await peer.send(*(sums.call(number, tool) for number, tool in enumerate(tools, 1)))
        await peer.receive_many(len(tools))
        await peer.send(sums.call("last", "seen"))
        await peer.receive()

    return talk


def make_handshake(checkpoints):
    """Return a factory of servers whose handler checks a child task after some checkpoints."""

    def make():
        server = Server("handshake")

        @server.tool
        async def seen() -> str:
            seen = []

            async def child():
                seen.append("child")

            async with trio.open_nursery() as nursery:
                nursery.start_soon(child)
                for _ in range(checkpoints):
                    await trio.lowlevel.checkpoint()
                return ",".join(seen)

        return server

    return make


@pytest.mark.parametrize("checkpoints", [1, 2])
def test_a_lane_that_is_ready_goes_on_before_another_does_so_twice(
    sums, world, tmp_path, checkpoints
):
    """In Trio, a new task has begun after two checkpoints of its parent."""
    make = make_handshake(checkpoints)
    path = world.record(make(), tmp_path / "a.mcprec.jsonl", calling(sums))
    report = covered(path, make)
    assert report.outcomes == (2 if checkpoints == 1 else 1)


@effect
async def fetch(seconds: float) -> str:
    await trio.sleep(seconds)
    return "fetched"


def make_timeout(timeout_seconds, *, effect_seconds=0.01):
    def make():
        server = Server("timeout")

        @server.tool
        async def seen() -> str:
            with trio.move_on_after(timeout_seconds):
                return await fetch(effect_seconds)
            return "timed out"

        return server

    return make


@pytest.mark.parametrize(
    ("timeout_seconds", "outcomes"), [(0.015, 2), (0.025, 1)], ids=["racing", "long"]
)
def test_an_effect_takes_up_to_twice_the_longest_recorded_time(
    sums, world, tmp_path, timeout_seconds, outcomes
):
    make = make_timeout(timeout_seconds)
    path = world.record(make(), tmp_path / "a.mcprec.jsonl", calling(sums))
    assert covered(path, make).outcomes == outcomes


def test_an_effect_that_did_not_wait_lets_no_other_lane_run(sums, world, tmp_path):
    @effect
    async def glance() -> None:
        pass

    def make():
        server = Server("glance")
        total = [0]

        @server.tool
        async def add() -> str:
            before = total[0]
            await glance()
            total[0] = before + 1
            return "added"

        @server.tool
        async def seen() -> int:
            return total[0]

        return server

    path = world.record(make(), tmp_path / "a.mcprec.jsonl", calling(sums, "add", "add"))
    assert covered(path, make).is_clean


def test_an_effect_that_had_ended_keeps_its_value_when_its_lane_is_cancelled(sums, world, tmp_path):
    """Either both effects end before one batch, or the first one to end cancels the other."""

    @effect
    async def wait_once() -> None:
        await trio.lowlevel.cancel_shielded_checkpoint()

    def make():
        server = Server("late")

        @server.tool
        async def seen() -> int:
            seen = []

            async def fetch_one():
                seen.append(await wait_once())
                nursery.cancel_scope.cancel()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(fetch_one)
                nursery.start_soon(fetch_one)
            return len(seen)

        return server

    path = world.record(make(), tmp_path / "a.mcprec.jsonl", calling(sums))
    differences = covered(path, make).differences
    assert {(each.recorded, each.swept) for each in differences} == {('"2"', '"1"')}


def test_progress_of_the_client_comes_before_its_response(world, sums, tmp_path):
    def make():
        server = Server("sampler")

        @server.tool
        async def seen(ctx: Context) -> list[float]:
            reports = []
            results = []

            async def ask():
                await ctx.sample("hello", max_tokens=1, progress=note)
                results.append(list(reports))

            async def note(progress):
                reports.append(progress.progress)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                nursery.start_soon(fetch, 0.005)
            return results[0]

        return server

    async def talk(peer, _session):
        await peer.handshake(capabilities={"sampling": {}})
        await peer.send(sums.call(1, "seen"))
        request = await peer.receive()
        token = request["params"]["_meta"]["progressToken"]
        for progress in (1, 2):
            await peer.send_notification(
                "notifications/progress", {"progressToken": token, "progress": progress}
            )
        content = {"type": "text", "text": "hi"}
        await peer.send_result(request, {"role": "assistant", "content": content, "model": "m"})
        await peer.receive()

    path = world.record(make(), tmp_path / "a.mcprec.jsonl", talk)
    report = covered(path, make)
    assert report.is_clean
    assert report.schedules > 1


def test_a_client_that_waits_for_an_answer_sends_nothing_else(sums, path):
    async def add(amount: int) -> str:
        await trio.sleep_forever()

    report = sweep(path, lambda: sums.changed_server(add=add), schedules=3)
    assert {each.call for each in report.differences} == {'tools/call "add"'}
    assert {each.swept for each in report.differences} == {"nothing"}


def test_a_handler_that_ends_the_session_is_a_difference(sums, path):
    async def total() -> int:
        raise SystemExit(3)

    report = sweep(path, lambda: sums.changed_server(total=total), schedules=1)
    assert str(report.differences[0]).startswith("schedule 0: the session failed: SystemExit: 3")


ONE_SESSION = [
    golden for golden in GOLDEN.values() if golden.replays == STRICTLY and golden.name != "shared"
]


@pytest.mark.parametrize("golden", ONE_SESSION, ids=lambda golden: golden.name)
def test_the_recorded_order_leads_to_the_recorded_responses(golden):
    if golden.name == "stopped":  # its only responses come after the shutdown has begun
        with pytest.raises(NothingCompared, match="no request that was answered before its end"):
            sweep(golden.path, lambda: load_server(golden.server), schedules=1)
        return
    report = sweep(golden.path, lambda: load_server(golden.server), schedules=1)
    assert report.differences == ()


@pytest.mark.filterwarnings("ignore:the async generator:ResourceWarning")
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def test_a_schedule_of_any_program_is_repeated_exactly(tmp_path, seed):
    """Random order, cancellation, clean-up: the same decisions lead to the same outcome."""
    path = str(tmp_path / "a.mcprec.jsonl")
    programs.record(seed, path)

    def make():
        return programs.make_server(seed)[0]

    first = sweep(path, make, schedules=8)
    again = sweep(path, make, schedules=8)
    assert first.differences == again.differences
    assert first.outcomes == again.outcomes > 1


def test_the_shortest_schedule_repeats_what_it_shows(sums, path):
    report = sweep(path, sums.make_server, schedules=20)
    assert 1 <= len(report.shortest.deviations) <= 4
    for _ in range(3):
        repeated = sweep(path, sums.make_server, schedule=report.shortest)
        assert tuple(each.text for each in repeated.differences) == report.shortest.differences
    fixed = sweep(path, lambda: sums.make_server(exclusive=True), schedule=report.shortest)
    assert fixed.is_clean


def test_a_schedule_of_another_recording_is_rejected(sums, path, world, tmp_path):
    shortest = sweep(path, sums.make_server, schedules=20).shortest
    cut = world.rewrite(path, tmp_path / "cut.mcprec.jsonl", lambda rows: rows[:-4])
    with pytest.raises(RecordingError, match="than this recording: sweep this recording again"):
        sweep(cut, sums.make_server, schedule=shortest)


def test_the_recorded_order_itself_may_go_wrong(sums, path):
    async def total() -> int:
        return 12

    report = sweep(path, lambda: sums.changed_server(total=total), schedules=2)
    assert report.shortest.deviations == ()
