"""Clocks, random numbers and changes of the code, per lane and in the records."""

import functools
import math

import pytest
import trio

from mcp_trio._session.effects import randomness, read_clock, takes_patch, time_limit
from mcp_trio.errors import LocalProtocolError


async def test_clocks_are_recorded(handle, recording, story):
    async def handler(handling):
        return read_clock(handling, "tick", lambda: 1.5, float)

    assert await handle(handler, sequencer=recording) == 1.5
    assert story() == {"r5": [("val", b'{"name":"tick","value":1.5}')]}


async def test_a_deadline_is_recorded_as_the_time_at_which_it_was_set(
    handle, recording, story, autojump_clock
):
    async def handler(handling):
        await trio.sleep(2)
        with time_limit(handling, 5) as scope:
            return scope.deadline

    assert await handle(handler, sequencer=recording) == 7
    value = b'{"name":"ctx.timeout","arguments":{"seconds":5},"value":2000000000}'
    assert story() == {"r5": [("val", value)]}


async def test_that_it_ran_out_is_recorded_with_the_operation_that_set_it(
    handle, recording, story, autojump_clock
):
    async def handler(handling):
        with pytest.raises(trio.TooSlowError), time_limit(handling, 5):
            await trio.sleep(6)

    await handle(handler, sequencer=recording)
    assert story()["r5"][1:] == [("mark", b'{"name":"ran out","value":1}')]


@pytest.mark.parametrize("seconds", [-1, math.nan])
async def test_a_deadline_in_the_past_or_nowhere_is_rejected(handle, seconds):
    async def handler(handling):
        with time_limit(handling, seconds):
            pytest.fail("entered")

    assert isinstance(await handle(handler), ValueError)


async def test_reading_a_clock_in_a_thread_raises_an_error_with_advice(handle, recording):
    async def handler(handling):
        read = functools.partial(read_clock, handling, "tick", lambda: 1, int)
        return await trio.to_thread.run_sync(read)

    found = await handle(handler, sequencer=recording)
    assert isinstance(found, LocalProtocolError)
    assert "before the thread starts" in str(found)


# What follows from the seed and the lane.


async def test_each_lane_has_its_own_randomness_out_of_the_seed(serve, call, make_recording):
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


async def test_without_a_recording_randomness_is_the_requests_own(handle):
    async def handler(handling):
        return randomness(handling), randomness(handling)

    one, other = await handle(handler)
    assert one is other
    assert (await handle(handler))[0].random() != one.random()


async def test_the_way_at_a_change_is_recorded_once(handle, recording, story):
    async def handler(handling):
        return [takes_patch(handling, name) for name in "aab"]

    assert await handle(handler, sequencer=recording) == [True] * 3
    told = [
        ("mark", b'{"name":"patched","value":"a"}'),
        ("mark", b'{"name":"patched","value":"b"}'),
    ]
    assert story() == {"r5": told}


async def test_without_a_recording_the_new_way_is_taken(handle):
    async def handler(handling):
        return takes_patch(handling, "a")

    assert await handle(handler)
