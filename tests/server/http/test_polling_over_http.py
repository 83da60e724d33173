"""Connections that may take only so long: the stream goes on, and its client comes back for it."""

import pytest
import trio

from mcp_trio.limits import HttpLimits
from tests.server.http.conftest import call, notes, text

SHORT = {"http": HttpLimits(stream_seconds_max=3, sse_retry_ms=700)}


async def all_events(exchange):
    """The events of a stream, when it has ended."""
    with trio.fail_after(60):
        while not exchange.is_ended:
            await trio.sleep(0.1)
    return [await exchange.event() for _ in range(len(exchange._events))]


@pytest.mark.requirement("HTTP-15", "HTTP-17", "HTTP-42", "TRAP-38")
async def test_a_long_stream_is_broken_off_and_goes_on_elsewhere(opened, autojump_clock):
    client = await opened(limits=SHORT)
    begun = trio.current_time()
    *before, last = await all_events(client.begin(call("log", {"seconds": 5})))
    assert trio.current_time() - begun == pytest.approx(3, abs=0.5)
    assert len(before) == 2
    assert (last.data, last.retry_ms) == (b"", 700)
    after = await client.listen(last.id).rest()
    assert (notes(after), text(after[-1])) == (["two"], "logged")
    assert trio.current_time() - begun == pytest.approx(5)


async def test_a_stream_is_broken_off_as_often_as_it_takes(opened, autojump_clock):
    client = await opened(limits=SHORT)
    *_, last = await all_events(client.begin(call("wait", {"seconds": 8})))
    (again,) = await all_events(client.listen(last.id))
    assert (again.data, again.retry_ms) == (b"", 700)
    assert again.id != last.id
    assert [text(each) for each in await client.listen(again.id).rest()] == ["waited"]


async def test_what_came_while_nobody_was_there_is_not_lost(opened, autojump_clock):
    client = await opened(limits=SHORT)
    *_, last = await all_events(client.begin(call("log", {"seconds": 5})))
    await trio.sleep(9)
    after = await client.listen(last.id).rest()
    assert (notes(after), text(after[-1])) == (["two"], "logged")


@pytest.mark.requirement("HTTP-34")
async def test_the_get_stream_is_broken_off_too(opened, autojump_clock):
    client = await opened(limits=SHORT)
    *_, last = await all_events(client.listen())
    assert (last.data, last.retry_ms) == (b"", 700)
    await client.ask(call("ebb"))
    back = client.listen(last.id)
    assert (await back.message())["method"] == "notifications/tools/list_changed"


@pytest.mark.parametrize("protocol_version", ["2025-03-26", "2025-06-18"])
async def test_clients_that_know_nothing_of_it_keep_their_stream(
    opened, protocol_version, autojump_clock
):
    asked = (await opened(protocol_version, limits=SHORT)).begin(call("log", {"seconds": 9}))
    said = await asked.rest()
    assert (notes(said), text(said[-1])) == (["one", "two"], "logged")


async def test_stateless_streams_are_whole(opened, autojump_clock):
    site = (await opened(limits=SHORT)).site
    asked = site.begin_stateless(call("wait", {"seconds": 9}))
    assert [text(each) for each in await asked.rest()] == ["waited"]
