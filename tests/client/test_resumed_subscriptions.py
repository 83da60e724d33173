"""A subscription over HTTP whose stream breaks and is opened again."""

import contextlib

import attrs
import httpx2
import pytest
import trio
import trio.testing

from mcp_trio import Change, Client, ConnectionLost, Limits, RequestError
from mcp_trio._protocol.metadata import SUBSCRIPTION_ID
from mcp_trio.limits import HttpLimits
from tests.transports.http.scripted_server import (
    EVENTS,
    URL,
    Modern,
    Reply,
    Script,
    error,
    event,
    result,
)

LISTEN = "subscriptions/listen"
TOOLS = "notifications/tools/list_changed"
CAN = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {"subscribe": True},
}


@attrs.define(eq=False, slots=False)
class Telling:
    """A stateless server that can be listened to; `rejections` are given or raised first, in order.

    `at` are the times of the listen requests, `lines` the streams that were begun.
    """

    rejections: list = attrs.field(factory=list)
    at: list = attrs.field(factory=list)
    lines: list = attrs.field(factory=list)

    async def __call__(self, seen):
        return await Modern(
            answers={"server/discover": self.discover, LISTEN: self.listen, "tools/list": self.list}
        )(seen)

    async def discover(self, seen):
        return result(
            seen,
            supportedVersions=["2026-07-28"],
            capabilities=CAN,
            resultType="complete",
            ttlMs=0,
            cacheScope="private",
        )

    async def list(self, seen):
        return result(seen, tools=[], resultType="complete", ttlMs=10**9, cacheScope="private")

    async def listen(self, seen):
        self.at.append(trio.current_time())
        if self.rejections:
            rejection = self.rejections.pop(0)
            if isinstance(rejection, Exception):
                raise rejection
            return rejection(seen)
        line, heard = trio.open_memory_channel(100)
        self.lines.append(line)
        return Reply(200, EVENTS, self.stream(seen.message, heard))

    async def stream(self, asked, heard):
        meta = {SUBSCRIPTION_ID: asked["id"]}
        params = {"notifications": asked["params"]["notifications"], "_meta": meta}
        acknowledged = "notifications/subscriptions/acknowledged"
        yield event({"jsonrpc": "2.0", "method": acknowledged, "params": params})
        async for method, more in heard:
            if method == "result":
                members = {"resultType": "complete", "_meta": meta}
                yield event({"jsonrpc": "2.0", "id": asked["id"], "result": members})
                return
            params = {**more, "_meta": meta}
            yield event({"jsonrpc": "2.0", "method": method, "params": params})

    def tell(self, method, **params):
        self.lines[-1].send_nowait((method, params))

    def cut(self):
        self.lines[-1].close()


@contextlib.asynccontextmanager
async def listened(server, **options):
    """A client of it, and the requests that it made."""
    script = Script(server)
    async with (
        httpx2.AsyncClient(transport=script) as http,
        Client(URL, http=http, protocol_versions=("2026-07-28",), **options) as client,
    ):
        yield client, script


async def pause():
    """Longer than any pause before another try."""
    await trio.sleep(60)


# A subscription of one's own.


@pytest.mark.requirement("SUB-16", "SUB-18", "TRAP-108")
async def test_a_broken_stream_is_opened_again_and_possible_changes_are_reported(autojump_clock):
    server = Telling()
    async with (
        listened(server) as (client, _),
        client.listen(tools=True, uris=["x:1"]) as subscription,
    ):
        server.tell(TOOLS)
        assert await anext(subscription) == Change("tools")
        server.cut()
        missed = [await anext(subscription) for _ in range(2)]
        assert missed == [Change("tools", missed=True), Change("resource", "x:1", missed=True)]
        assert subscription.interruption == ""
        server.tell(TOOLS)
        assert await anext(subscription) == Change("tools")
        assert subscription.left_out == []
        with trio.move_on_after(100) as nothing:
            await anext(subscription)
        assert nothing.cancelled_caught
    assert len(server.at) == 2


async def test_a_broken_stream_is_opened_again_without_a_reader(autojump_clock):
    server, states = Telling(), []
    told = lambda state, why: states.append((state, why))  # noqa: E731
    async with listened(server, state_changed=told) as (client, script):
        async with client.listen(tools=True) as subscription:
            await client.list_tools()
            await client.list_tools()
            assert len(script.of("tools/list")) == 1
            server.cut()
            await trio.testing.wait_all_tasks_blocked()
            assert "the stream ended" in subscription.interruption
            assert subscription.is_open
            assert states[-1] == ("retrying", "the stream ended")
            await pause()
            assert states[-1] == ("open", "")
            await client.list_tools()
            assert len(script.of("tools/list")) == 2
        assert not subscription.is_open


async def test_changes_received_before_the_break_are_not_lost(autojump_clock):
    server = Telling()
    async with (
        listened(server) as (client, _),
        client.listen(prompts=True, tools=True) as subscription,
    ):
        server.tell(TOOLS)
        server.cut()
        await pause()
        heard = [await anext(subscription) for _ in range(3)]
    kinds = [(change.kind, change.missed) for change in heard]
    assert kinds == [("tools", False), ("tools", True), ("prompts", True)]


@pytest.mark.requirement("CACHE-11")
@pytest.mark.parametrize(
    "rejection", [httpx2.ConnectError("away"), httpx2.ReadError("cut"), lambda _: Reply(503)]
)
async def test_an_unreachable_server_is_tried_with_growing_pauses(rejection, autojump_clock):
    server = Telling()
    async with listened(server) as (client, _), client.listen(tools=True) as subscription:
        server.rejections = [rejection] * 4
        since = trio.current_time()
        server.cut()
        assert (await anext(subscription)).missed
    _, *tries = server.at
    assert len(tries) == 5
    for number, at in enumerate(tries):
        assert 2**number / 2 <= at - since <= 2**number
        since = at


@pytest.mark.requirement("CACHE-11")
async def test_the_pauses_of_clients_are_random(autojump_clock):
    server = Telling()
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(3):
            client, _ = await stack.enter_async_context(listened(server))
            await stack.enter_async_context(client.listen(tools=True))
        for line in server.lines:
            line.close()
        await pause()
    came_back = server.at[3:]
    assert len(set(came_back)) == 3


async def test_a_subscription_is_given_up_after_the_limit_of_tries(autojump_clock):
    server = Telling()
    limits = Limits(http=HttpLimits(reconnects_max=3))
    async with (
        listened(server, limits=limits) as (client, _),
        client.listen(tools=True) as subscription,
    ):
        server.rejections = [httpx2.ConnectError("away")] * 9
        server.cut()
        with pytest.raises(ConnectionLost, match=r"limits\.http\.reconnects_max=3.*away"):
            await anext(subscription)
        assert not subscription.is_open
        server.rejections.clear()
        assert await client.list_tools() == []
    assert len(server.at) == 4


@pytest.mark.parametrize(
    ("rejection", "kind", "match"),
    [
        (lambda _: Reply(403), ConnectionLost, "HTTP 403"),
        (lambda _: Reply(429), ConnectionLost, "HTTP 429"),
        (lambda seen: error(seen, -32000, "full", status=400), RequestError, "full"),
    ],
)
async def test_a_rejected_subscription_is_not_tried_again(rejection, kind, match, autojump_clock):
    server = Telling()
    async with listened(server) as (client, _), client.listen(tools=True) as subscription:
        server.rejections = [rejection] * 9
        server.cut()
        with pytest.raises(kind, match=match):
            await anext(subscription)
        with pytest.raises(kind, match=match):
            await anext(subscription)
    assert len(server.at) == 2


@pytest.mark.requirement("SUB-14")
async def test_a_subscription_ended_by_the_server_is_not_resumed(autojump_clock):
    server = Telling()
    async with listened(server) as (client, _), client.listen(tools=True) as subscription:
        server.tell("result")
        assert [change async for change in subscription] == []
        await pause()
    assert len(server.at) == 1


async def test_a_stream_that_breaks_at_once_is_resumed_ever_less_often(autojump_clock):
    server = Telling()
    async with listened(server) as (client, _), client.listen(tools=True) as subscription:
        for _ in range(20):
            server.cut()
            assert (await anext(subscription)).missed
        assert subscription.is_open
    assert trio.current_time() > 12 * 15


async def test_a_stream_that_lasted_is_resumed_soon(autojump_clock):
    server = Telling()
    async with listened(server) as (client, _), client.listen(tools=True) as subscription:
        for _ in range(10):
            await trio.sleep(31)
            since = trio.current_time()
            server.cut()
            await anext(subscription)
            assert trio.current_time() - since <= 1


@pytest.mark.parametrize("when", ["pausing", "asking"])
async def test_leaving_the_block_during_a_pause_leaves_no_task(when, autojump_clock):
    async def silent(_seen):
        await trio.sleep_forever()

    server = Telling()
    async with listened(server) as (client, script):
        async with client.listen(tools=True):
            if when == "asking":
                server.listen = silent
            server.cut()
            await trio.testing.wait_all_tasks_blocked()
            await trio.sleep(0.1 if when == "pausing" else 30)
        since = trio.current_time()
        await trio.testing.wait_all_tasks_blocked()
    assert trio.current_time() - since < 1
    assert len(script.of(LISTEN)) == (1 if when == "pausing" else 2)


async def test_closing_the_client_during_a_pause_ends_the_subscription(autojump_clock):
    server = Telling()
    async with listened(server) as (client, _), client.listen(tools=True) as subscription:
        server.cut()
        await trio.sleep(0.1)
        since = trio.current_time()
        await client.aclose()
        assert trio.current_time() - since < 1
        with pytest.raises(ConnectionLost, match="closed on this side"):
            await anext(subscription)


# The one behind callbacks.


@pytest.mark.requirement("SUB-16", "SUB-18")
@pytest.mark.parametrize("how", ["cut", "ended"])
async def test_callbacks_get_possible_changes_once_and_later_ones_again(how, autojump_clock):
    heard, server = [], Telling()

    def changed(kind):
        heard.append(kind)
        if kind == "prompts":
            raise KeyError("mine")

    options = {
        "list_changed": changed,
        "resource_updated": lambda params: heard.append(params.uri),
    }
    async with listened(server, **options) as (client, _):
        await client.subscribe("x:1")
        assert heard == []
        if how == "cut":
            server.cut()
        else:
            server.tell("result")
        await pause()
        assert heard == ["tools", "prompts", "x:1"]
        server.tell(TOOLS)
        await pause()
        assert heard == ["tools", "prompts", "x:1", "tools"]
        assert client.is_open
    assert len(server.at) == 3


async def test_the_next_call_resumes_a_subscription_that_was_given_up(autojump_clock, caplog):
    heard, server = [], Telling()
    async with listened(server, list_changed=heard.append) as (client, _):
        server.rejections = [httpx2.ConnectError("away")] * 5
        server.cut()
        await trio.sleep(1000)
        assert "the client will not be notified of changes" in caplog.text
        assert len(server.at) == 6
        await client.list_tools()
        await pause()
        assert heard == ["tools", "prompts"]
        await client.list_tools()
        await pause()
    assert len(server.at) == 7


async def test_a_closed_client_resumes_no_subscription(autojump_clock):
    server = Telling()
    async with listened(server, list_changed=print) as (client, _):
        server.rejections = [httpx2.ConnectError("away")] * 5
        server.cut()
        await trio.sleep(1000)
        await client.aclose()
        with pytest.raises(ConnectionLost, match="closed"):
            await client.list_tools()
    assert len(server.at) == 6


async def test_without_reconnects_the_loss_is_logged_once(autojump_clock, caplog):
    server = Telling()
    limits = Limits(http=HttpLimits(reconnects_max=0))
    async with listened(server, list_changed=print, limits=limits) as (client, _):
        server.cut()
        for _ in range(3):
            await client.list_tools()
            await pause()
    assert caplog.text.count("the client will not be notified of changes") == 1
    assert len(server.at) == 1


async def test_the_next_call_does_not_resume_a_rejected_subscription(autojump_clock, caplog):
    server = Telling()
    async with listened(server, list_changed=print) as (client, _):
        server.rejections = [lambda _: Reply(403)] * 5
        server.cut()
        await trio.sleep(1000)
        assert "the client will not be notified of changes" in caplog.text
        await client.list_tools()
        await pause()
    assert len(server.at) == 2
