"""Effects: their records, their replay, and the results that handlers receive."""

import functools
import json
import threading

import msgspec
import pytest
import trio
import trio.testing

from mcp_trio import ToolError
from mcp_trio._journal.records import BEGINS_STEP, HAS_WAITED
from mcp_trio._session.effects import (
    Effect,
    abandon_effect,
    perform,
    perform_in_thread,
    perform_without_waiting,
    randomness,
    read_clock,
    takes_patch,
)
from mcp_trio._session.handlers import lane_of_caller
from mcp_trio._session.journal import Outcome, Sequencer
from mcp_trio._session.lanes import LANE
from mcp_trio._session.recorded_errors import encoded_error
from mcp_trio.errors import LocalProtocolError, RequestAbandoned

# ruff: noqa: ARG002  a sequencer's methods have the words of the protocol


class Json:
    """A codec for JSON values; decoded values count how often they were decoded."""

    def converted(self, value):
        return value, msgspec.json.encode(value)

    def decoded(self, body):
        return {"decoded": msgspec.json.decode(body)}


def effect(run, name="fetch", **options):
    return Effect(name=name, arguments=lambda: b'{"what":1}', run=run, codec=Json(), **options)


async def two():
    await trio.lowlevel.checkpoint()
    return 2


COMMAND = ("cmd", b'{"name":"fetch","arguments":{"what":1}}')
CANCELLED_COMMAND = ("cmd", b'{"name":"fetch","arguments":{"what":1},"cancelled":true}')


@pytest.fixture
def handle_till_cancelled(serve, call):
    """Run a handler that waits, and cancel its request."""

    async def run(handler, **options):
        _, peer = await serve({"tool": handler}, **options)
        await peer.send(call("tool", 1))
        await trio.testing.wait_all_tasks_blocked()
        await peer.cancel(1)
        await trio.testing.wait_all_tasks_blocked()

    return run


# Live sessions.


async def test_an_effect_is_a_command_and_its_outcome(handle, recording, story):
    assert await handle(lambda it: perform(it, effect(two)), sequencer=recording) == 2
    assert story() == {"r5": [COMMAND, ("res", b"2")]}


async def test_the_steps_of_an_effect_are_not_journaled_but_whether_it_has_waited(
    handle, recording
):
    async def handler(handling):
        await perform(handling, effect(two))
        await perform(handling, effect(lambda: 2))
        perform_without_waiting(handling, effect(lambda: 2))

    await handle(handler, sequencer=recording)
    assert recording.story(since=5) == [
        *("in", "cmd r5 1", "res r5 2"),
        *("cmd r5 3", "res r5 4", "val r5 5", "out r5 6"),
    ]
    assert [each.step_start for each in recording.records()[6:]] == [
        BEGINS_STEP,
        HAS_WAITED,
        0,
        0,
        0,
        0,
    ]


async def test_without_a_recording_an_effect_is_converted_all_the_same(handle):
    def reject():
        raise AssertionError

    class Doubling(Json):
        def converted(self, value):
            return value * 2, b""

    it = Effect(name="fetch", arguments=reject, run=two, codec=Doubling())
    assert await handle(lambda handling: perform(handling, it)) == 4


async def test_a_failing_effect_raises_the_original_exception(handle, recording, story):
    fault = OSError(2, "gone")

    async def fail():
        raise fault

    assert await handle(lambda it: perform(it, effect(fail)), sequencer=recording) is fault
    ((_, body),) = story()["r5"][1:]
    assert json.loads(body) == {
        "type": "builtins.FileNotFoundError",
        "text": "[Errno 2] gone",
        "args": [2, "gone"],
    }


async def test_a_failing_effect_raises_the_original_exception_without_a_recording_too(handle):
    fault = KeyError("name")

    def fail():
        raise fault

    assert await handle(lambda it: perform(it, effect(fail))) is fault


async def test_a_cancelled_effect_is_recorded_as_cancelled(handle_till_cancelled, recording, story):
    await handle_till_cancelled(
        lambda it: perform(it, effect(trio.sleep_forever)), sequencer=recording
    )
    assert story() == {"r5": [COMMAND, ("cxl", None), ("cxl", None)]}


async def perform_when_cancelled(handling):
    """Return whether an effect that must not run is cancelled in a cancelled scope."""
    with trio.CancelScope() as scope:
        scope.cancel()
        await perform(handling, effect(pytest.fail))
    return scope.cancelled_caught


async def test_an_effect_of_a_cancelled_handler_does_not_begin(handle, recording, story):
    assert await handle(perform_when_cancelled, sequencer=recording)
    assert story() == {"r5": [CANCELLED_COMMAND, ("cxl", None)]}


async def test_a_shielded_effect_of_a_cancelled_handler_has_a_result(handle, recording, story):
    async def handler(handling):
        with trio.CancelScope() as scope:
            scope.cancel()
            with trio.CancelScope(shield=True):
                return await perform(handling, effect(two))

    assert await handle(handler, sequencer=recording) == 2
    assert story() == {"r5": [COMMAND, ("res", b"2")]}


async def test_an_effect_that_does_not_begin_is_not_run_without_a_recording_either(handle):
    assert await handle(perform_when_cancelled)


async def test_a_result_that_comes_with_a_cancellation_counts(handle, recording, story):
    async def handler(handling):
        with trio.CancelScope() as scope:

            async def last():
                await trio.lowlevel.checkpoint()
                scope.cancel()
                return "just in time"

            result = await perform(handling, effect(last))
        return result, scope.cancelled_caught

    assert await handle(handler, sequencer=recording) == ("just in time", False)
    assert story()["r5"][1] == ("res", b'"just in time"')


@pytest.mark.requirement("TOOL-40")
@pytest.mark.parametrize("waits", [False, True])
async def test_an_effect_that_cancels_its_caller_has_a_result_and_says_so(handle, recording, waits):
    async def handler(handling):
        with trio.CancelScope() as scope:

            async def cancel():
                scope.cancel()
                if waits:
                    await trio.lowlevel.cancel_shielded_checkpoint()
                return 2

            assert await perform(handling, effect(cancel)) == 2
            await perform(handling, effect(two))
        await perform(handling, effect(two))

    await handle(handler, sequencer=recording)
    outcomes = [(each.kind, each.envelope) for each in recording.records()[7::2]]
    assert outcomes == [("res", {"cancelled": True}), ("cxl", None), ("res", None)]


async def test_a_timeout_inside_the_effect_is_its_own(handle, recording, story, autojump_clock):
    async def impatient():
        with trio.fail_after(1):
            await trio.sleep_forever()

    found = await handle(lambda it: perform(it, effect(impatient)), sequencer=recording)
    assert isinstance(found, trio.TooSlowError)
    assert story()["r5"][1][0] == "err"


async def test_a_cancellation_among_errors_is_a_cancellation(
    handle_till_cancelled, recording, story
):
    async def group():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError

    await handle_till_cancelled(lambda it: perform(it, effect(group)), sequencer=recording)
    assert [kind for kind, _ in story()["r5"]][:2] == ["cmd", "cxl"]


async def test_child_tasks_have_effects_of_their_own_lanes(handle, recording, story):
    async def handler(handling):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(perform, handling, effect(two))
            nursery.start_soon(perform, handling, effect(two))

    await handle(handler, sequencer=recording)
    assert story() == {"r5.0": [COMMAND, ("res", b"2")], "r5.1": [COMMAND, ("res", b"2")]}


async def test_an_effect_that_is_called_first_is_recorded_before_its_tasks_begin(
    handle, recording, story
):
    """Tasks inside of an effect have no lane, and take no number from those outside."""
    lanes = []

    async def inside():
        lanes.append(LANE.get())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(inner)

    async def inner():
        lanes.append(LANE.get())

    async def handler(handling):
        await perform(handling, effect(inside))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(perform, handling, effect(two))

    await handle(handler, sequencer=recording)
    assert lanes == [None, None]
    assert story().keys() == {"r5", "r5.0"}


@pytest.mark.parametrize("is_recorded", [True, False])
@pytest.mark.parametrize(
    "use",
    [
        lambda handling: perform(handling, effect(two)),
        lambda handling: handling.notify("notifications/message", None),
        lambda handling: handling.ask("ping"),
    ],
)
async def test_the_context_is_rejected_inside_of_an_effect(handle, recording, is_recorded, use):
    async def handler(handling):
        return await perform(handling, effect(functools.partial(use, handling)))

    sequencer = recording if is_recorded else None
    found = await handle(handler, sequencer=sequencer)
    assert isinstance(found, LocalProtocolError)
    assert "cannot be used inside the effect 'fetch'" in str(found)


async def test_code_after_an_effect_is_outside_of_the_effect(handle, recording, story):
    async def handler(handling):
        for _ in range(2):
            await perform(handling, effect(two))

    await handle(handler, sequencer=recording)
    assert len(story()["r5"]) == 4


async def test_a_task_that_no_handler_started_has_no_effects_during_a_recording(
    serve, call, recording, nursery
):
    faults = []

    async def stranger(handling):
        LANE.set(None)
        try:
            await perform(handling, effect(two))
        except LocalProtocolError as error:
            faults.append(str(error))

    async def handler(handling):
        nursery.start_soon(stranger, handling)
        await trio.testing.wait_all_tasks_blocked()
        return ""

    _, peer = await serve({"tool": handler}, sequencer=recording)
    await peer.send(call("tool", 1))
    await peer.receive()
    assert "no lane" in faults[0]


# Synchronous effects.


async def test_a_synchronous_effect_is_one_record(handle, recording, story):
    async def handler(handling):
        return perform_without_waiting(handling, effect(lambda: 5))

    assert await handle(handler, sequencer=recording) == {"decoded": 5}
    assert story() == {"r5": [("val", b'{"name":"fetch","arguments":{"what":1},"value":5}')]}


async def test_a_clock_without_a_recording_is_read(handle):
    async def handler(handling):
        return read_clock(handling, "tick", lambda: 1.5, float)

    assert await handle(handler) == 1.5


async def test_a_failing_synchronous_effect_raises_the_original_exception(handle, recording, story):
    fault = ValueError("no")

    def fail():
        raise fault

    async def handler(handling):
        return perform_without_waiting(handling, effect(fail))

    assert await handle(handler, sequencer=recording) is fault
    ((kind, body),) = story()["r5"]
    assert kind == "val"
    assert json.loads(body)["error"] == {
        "type": "builtins.ValueError",
        "text": "no",
        "args": ["no"],
    }


async def test_a_synchronous_effect_runs_without_a_recording(handle):
    async def handler(handling):
        return perform_without_waiting(handling, effect(lambda: 5))

    assert await handle(handler) == 5


# In a thread.


def in_thread(handling, it):
    """Return the outcome of an effect by `perform_in_thread` in a thread of the handler."""

    def in_loop(function, *args, awaits_outcome=False):
        return trio.from_thread.run(function, *args)

    return trio.to_thread.run_sync(perform_in_thread, in_loop, handling, it)


@pytest.mark.parametrize("is_recorded", [True, False])
async def test_an_effect_in_a_thread_runs_there(handle, recording, story, is_recorded):
    async def handler(handling):
        return await in_thread(handling, effect(threading.get_ident))

    found = await handle(handler, sequencer=recording if is_recorded else None)
    assert found != threading.get_ident()
    records = {"r5": [COMMAND, ("res", b"%d" % found)]}
    assert story() == (records if is_recorded else {})


@pytest.mark.parametrize("is_recorded", [True, False])
async def test_a_failing_effect_in_a_thread_raises_the_original_exception(
    handle, recording, story, is_recorded
):
    fault = ValueError("no")

    def fail():
        assert LANE.get() is None
        raise fault

    async def handler(handling):
        return await in_thread(handling, effect(fail))

    assert await handle(handler, sequencer=recording if is_recorded else None) is fault
    assert [kind for kind, _ in story().get("r5", [])] == ["cmd", "err"] * is_recorded


async def test_the_effect_of_a_thread_whose_request_is_over_is_recorded_as_cancelled_once(
    handle, recording, story
):
    async def handler(handling):
        lane = lane_of_caller(handling)
        abandon_effect(handling, lane)  # No effect runs yet.
        is_over = threading.Event()

        def in_loop(function, *args, awaits_outcome=False):
            if is_over.is_set():
                raise RequestAbandoned("the request is over")
            return trio.from_thread.run(function, *args)

        def outlive():
            for _ in range(2):
                trio.from_thread.run_sync(abandon_effect, handling, lane)
            is_over.set()

        with pytest.raises(RequestAbandoned):
            await trio.to_thread.run_sync(perform_in_thread, in_loop, handling, effect(outlive))

    await handle(handler, sequencer=recording)
    assert story() == {"r5": [COMMAND, ("cxl", None)]}


async def test_a_replay_does_not_run_the_effect_in_a_thread_either(handle):
    async def handler(handling):
        return await in_thread(handling, effect(pytest.fail))

    sequencer = Scripted("res", b"4")
    assert await handle(handler, sequencer=sequencer) == {"decoded": 4}
    assert sequencer.events == [COMMAND, ("res", b"4")]
    assert sequencer.is_in_thread


# Replays.


class Scripted(Sequencer):
    """A sequencer that replays: effects and values end as given; `events` has its calls."""

    has_lanes = True
    replays = True
    seed = 1

    def __init__(self, kind="res", body=b"null"):
        self.kind = kind
        self.body = body
        self.events = []
        self.doomed = trio.Event()
        self.is_in_thread = None

    async def outcome(self, lane, *, is_in_thread=False):
        assert lane.is_in_operation
        self.is_in_thread = is_in_thread
        if self.kind == "cxl":
            self.doomed.set()
            await trio.sleep_forever()
        return Outcome(self.kind, self.body)

    def effect_started(self, lane, body):
        self.events.append(("cmd", body))

    def resumed(self, lane, kind, body=None, *, is_cancelled=False):
        assert not lane.is_in_operation
        self.events.append((kind, body))

    def read_value(self, lane, name, arguments, read):
        return Outcome("res", self.body)

    def patched(self, lane, name):
        self.events.append(("patched", name))
        return False


async def test_a_replay_does_not_run_the_effect(handle):
    sequencer = Scripted("res", b'"then"')
    found = await handle(lambda it: perform(it, effect(pytest.fail)), sequencer=sequencer)
    assert found == {"decoded": "then"}
    assert sequencer.is_in_thread is False
    assert sequencer.events == [COMMAND, ("res", b'"then"')]


async def test_a_replay_raises_the_recorded_error(handle):
    body = encoded_error(ToolError("full"), bytes_max=1000)
    sequencer = Scripted("err", body)
    found = await handle(lambda it: perform(it, effect(pytest.fail)), sequencer=sequencer)
    assert isinstance(found, ToolError)
    assert sequencer.events == [COMMAND, ("err", body)]


async def test_a_replay_waits_for_the_recorded_cancellation(serve, call):
    sequencer = Scripted("cxl")
    _, peer = await serve(
        {"tool": lambda it: perform(it, effect(pytest.fail))}, sequencer=sequencer
    )
    await peer.send(call("tool", 1))
    await sequencer.doomed.wait()
    assert sequencer.events == [COMMAND]
    await peer.cancel(1)
    await trio.testing.wait_all_tasks_blocked()
    assert sequencer.events == [COMMAND, ("cxl", None)]


async def test_the_replay_of_a_cancelled_handler_reports_that_it_was_cancelled_before(handle):
    sequencer = Scripted("cxl")
    assert await handle(perform_when_cancelled, sequencer=sequencer)
    assert sequencer.events == [CANCELLED_COMMAND, ("cxl", None)]


@pytest.mark.parametrize("kind", ["res", "err"])
async def test_the_replayed_part_of_an_effect_runs_only_after_success(handle, kind):
    again = []

    async def do():
        again.append("again")

    body = b"2" if kind == "res" else encoded_error(ValueError("no"), bytes_max=1000)
    it = effect(pytest.fail, run_in_replay=do)
    await handle(lambda handling: perform(handling, it), sequencer=Scripted(kind, body))
    assert again == (["again"] if kind == "res" else [])


async def test_a_replay_returns_the_recorded_values(handle):
    async def handler(handling):
        return [
            perform_without_waiting(handling, effect(pytest.fail)),
            read_clock(handling, "tick", pytest.fail, int),
            takes_patch(handling, "a"),
            takes_patch(handling, "a"),
        ]

    sequencer = Scripted(body=b"3000000000")
    assert await handle(handler, sequencer=sequencer) == [
        {"decoded": 3_000_000_000},
        3_000_000_000,
        False,
        False,
    ]
    assert sequencer.events == [("patched", "a")]


# Clocks, random numbers and changes of the code, per lane and in the records.


async def test_clocks_are_recorded(handle, recording, story):
    async def handler(handling):
        return read_clock(handling, "tick", lambda: 1.5, float)

    assert await handle(handler, sequencer=recording) == 1.5
    assert story() == {"r5": [("val", b'{"name":"tick","value":1.5}')]}


async def test_reading_a_clock_in_a_thread_raises_an_error_with_advice(handle, recording):
    async def handler(handling):
        read = functools.partial(read_clock, handling, "tick", lambda: 1, int)
        return await trio.to_thread.run_sync(read)

    found = await handle(handler, sequencer=recording)
    assert isinstance(found, LocalProtocolError)
    assert "before the thread starts" in str(found)


# Values derived from the seed and the lane.


async def test_each_lane_has_its_own_random_numbers_from_the_seed(serve, call, make_recording):
    async def numbers(seed):
        found = {}

        async def draw(handling, name):
            await trio.lowlevel.checkpoint()
            assert randomness(handling) is randomness(handling)
            found[name] = randomness(handling).random()

        async def handler(handling):
            async with trio.open_nursery() as nursery:
                for name in "ab":
                    nursery.start_soon(draw, handling, name)
            await draw(handling, "c")
            return ""

        sequencer = make_recording()
        sequencer.recorder.seed = seed
        _, peer = await serve({"tool": handler}, sequencer=sequencer)
        await peer.send(call("tool", 1))
        await peer.receive()
        return found

    one = await numbers(7)
    assert len(set(one.values())) == 3
    assert await numbers(7) == one
    assert await numbers(8) != one


async def test_without_a_recording_each_request_has_its_own_random_numbers(handle):
    async def handler(handling):
        return randomness(handling), randomness(handling)

    one, other = await handle(handler)
    assert one is other
    assert (await handle(handler))[0].random() != one.random()


async def test_the_choice_at_a_patch_is_recorded_once(handle, recording, story):
    async def handler(handling):
        return [takes_patch(handling, name) for name in "aab"]

    assert await handle(handler, sequencer=recording) == [True] * 3
    records = [
        ("mark", b'{"name":"patched","value":"a"}'),
        ("mark", b'{"name":"patched","value":"b"}'),
    ]
    assert story() == {"r5": records}


async def test_without_a_recording_the_new_code_of_a_patch_runs(handle):
    async def handler(handling):
        return takes_patch(handling, "a")

    assert await handle(handler)
