"""A handler that leaves a cancel scope or a nursery open fails alone."""

import logging

import pytest
import trio
import trio.testing


async def timed():
    with trio.move_on_after(3600):
        yield 1
        yield 2


async def crowded():
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        yield 1
        yield 2


async def first_of(generator):
    async for each in generator:
        return each
    return None


async def closed(generator):
    """Its nursery tells that its block was left early; whose task it was may end now."""
    with pytest.raises(BaseExceptionGroup) as raised:
        await generator.aclose()
    assert raised.group_contains(GeneratorExit)
    await trio.sleep(2)


async def bare_scope(kept):
    kept.append(trio.CancelScope())
    kept[0].__enter__()


async def kept_scope(kept):
    kept.append(timed())
    assert await first_of(kept[0]) == 1


async def kept_nursery(kept):
    kept.append(crowded())
    assert await first_of(kept[0]) == 1


@pytest.fixture
def kept():
    """What a handler leaves behind, which nobody closes before the end."""
    left = []
    yield left
    left.clear()


@pytest.mark.parametrize("leave_open", [bare_scope, kept_scope, kept_nursery])
async def test_it_is_an_internal_error_of_that_request_alone(
    leave_open, kept, serve, call, logged, autojump_clock
):
    async def careless(handling):
        await leave_open(kept)
        return "done"

    async def slow(handling):
        await trio.sleep(5)
        return "slow"

    _, peer = await serve({"careless": careless, "slow": slow})
    await peer.send(call("slow", 1), call("careless", 2))
    assert (await peer.receive())["error"] == {"code": -32603, "message": "internal error"}
    assert logged(logging.ERROR) == ["the handler of tools/call failed"]
    await peer.send(call("slow", 3))
    answers = await peer.receive_many(2)
    assert {answer["id"] for answer in answers if "result" in answer} == {1, 3}
    if leave_open is kept_nursery:
        await closed(kept[0])


async def test_tasks_in_a_nursery_that_was_left_open_are_cancelled(
    kept, serve, call, logged, autojump_clock
):
    ended = trio.Event()

    async def ends():
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    async def crowd():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ends)
            yield

    async def careless(handling):
        kept.append(crowd())
        await first_of(kept[0])
        await trio.testing.wait_all_tasks_blocked()

    _, peer = await serve({"careless": careless})
    await peer.send(call("careless", 1))
    assert "error" in await peer.receive()
    with trio.fail_after(5):
        await ended.wait()
    assert logged(logging.ERROR) == ["the handler of tools/call failed"]
    await closed(kept[0])
