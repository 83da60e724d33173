"""Clients that are back before anybody has seen that their old connection leads nowhere."""

import logging
from functools import partial

import httpx2
import pytest
import trio

from mcp_trio import Context, Server
from tests.server.http.conftest import BOTH, call, hello, notes, notification, text

EVENTS = "text/event-stream"


@pytest.mark.requirement("HTTP-25", "HTTP-36", "HTTP-42", "HTTP-43", "TRAP-38")
async def test_a_resuming_client_takes_over_the_stream_of_its_old_connection(
    opened, autojump_clock
):
    client = await opened()
    asked = client.begin(call("log"))
    first = await asked.event()
    await asked.event()
    back = client.listen(first.id)
    messages = await back.rest()
    assert notes(messages) == ["one", "two"]
    assert text(messages[-1]) == "logged"
    assert not asked.is_ended  # it was broken off
    assert asked._events == []


@pytest.mark.requirement("HTTP-25", "HTTP-42")
async def test_a_connection_that_takes_nothing_more_holds_nobody_up(opened, autojump_clock):
    client = await opened()
    asked = client.begin(call("log"))
    first = await asked.event()
    asked.stall()  # its client is gone, and the network does not say so
    await trio.sleep(1)
    back = client.listen(first.id)
    assert notes([await back.message()]) == ["one"]
    again = client.listen(first.id)  # and the network has changed once more
    messages = await again.rest()
    assert (notes(messages), text(messages[-1])) == (["one", "two"], "logged")
    assert not back.is_ended
    asked.leave()
    await trio.sleep(1)
    assert not asked.is_ended


@pytest.mark.requirement("HTTP-36", "HTTP-42")
async def test_the_get_stream_is_taken_over_too_but_only_with_an_event(opened, autojump_clock):
    client = await opened()
    listening = client.listen()
    first = await listening.event()
    assert (await client.ask(method="GET", accept=EVENTS)).status == 409
    await client.ask(call("ebb", id=1))
    assert (await listening.message())["method"]
    back = client.listen(first.id)
    assert (await back.message())["method"] == "notifications/tools/list_changed"
    assert (await client.ask(method="GET", accept=EVENTS)).status == 409
    await client.ask(call("ebb", id=2))
    assert (await back.message())["method"] == "notifications/tools/list_changed"
    await trio.sleep(1)
    assert not listening._events


async def test_a_response_that_was_taken_over_keeps_no_messages(opened, autojump_clock):
    client = await opened()
    asked = client.begin(call("log", {"seconds": 50}))
    first = await asked.event()
    await asked.event()
    back = client.listen(first.id)
    await back.message()
    asked.leave()
    await trio.sleep(100)
    assert notes(await back.rest()) == ["two"]


@pytest.mark.requirement("HTTP-25", "HTTP-42")
@pytest.mark.parametrize("host", ["native", "hypercorn"])
async def test_over_sockets_the_old_connection_is_broken_off(nursery, host, caplog):
    server, may_end = Server("harbour"), trio.Event()

    @server.tool
    async def log(*, ctx: Context) -> str:
        await ctx.warning("one")
        await may_end.wait()
        return "logged"

    url = await nursery.start(partial(server.serve_http, port=0, server=host))
    async with httpx2.AsyncClient(base_url=url, headers={"Accept": BOTH}) as client:
        begun = await client.post("", json=hello("2025-11-25"))
        client.headers["Mcp-Session-Id"] = begun.headers["mcp-session-id"]
        await client.post("", json=notification("notifications/initialized"))
        async with client.stream("POST", "", json=call("log")) as old:
            lines = old.aiter_lines()
            async for line in lines:
                if line.startswith("id: "):
                    break
            last = {"Last-Event-ID": line.removeprefix("id: "), "Accept": EVENTS}
            async with client.stream("GET", "", headers=last) as new:
                with pytest.raises(httpx2.RemoteProtocolError):
                    _ = [line async for line in lines]
                may_end.set()
                said = [line async for line in new.aiter_lines()]
    assert ["one" in line or "logged" in line for line in said if "data: {" in line] == [True] * 2
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []
