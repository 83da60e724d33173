"""Notifications of changed lists and resources."""

import contextlib
import gc
import threading
import weakref
from functools import partial

import pytest
import trio
import trio.testing

from mcp_trio import Client, Context, Limits, Server, ThreadContext
from mcp_trio.limits import MessageLimits, RequestLimits
from mcp_trio.testing import WirePeer
from mcp_trio.transports import memory_pair
from tests.server.conftest import harbour, nothing

EVERYTHING = {"tools", "resources", "prompts"}
CHANGED = "notifications/{}/list_changed"


@pytest.fixture
def server():
    return harbour()


def methods_of(messages):
    return [message["method"] for message in messages]


# Lists.


@pytest.mark.requirement("TOOL-35", "RES-13", "PROM-11", "TOOL-01", "RES-01", "PROM-01")
@pytest.mark.parametrize(
    ("kind", "add", "remove"),
    [
        ("tools", lambda s: s.tool(name="n")(nothing), lambda s: s.remove_tool("n")),
        ("prompts", lambda s: s.prompt(name="n")(nothing), lambda s: s.remove_prompt("n")),
        ("resources", lambda s: s.resource("x:1")(nothing), lambda s: s.remove_resource("x:1")),
    ],
)
async def test_every_session_is_notified_of_a_changed_list(server, serve, kind, add, remove):
    first, second = await serve(server), await serve(server)
    for change in (add, remove):
        change(server)
        for asker in (first, second):
            assert asker.hello["capabilities"][kind]["listChanged"] is True
            assert await asker.wire.receive() == {"jsonrpc": "2.0", "method": CHANGED.format(kind)}
            assert await asker.wire.receive_available() == []


async def test_simultaneous_changes_of_a_list_are_one_notification(server, serve):
    asker = await serve(server)
    for number in range(100):
        server.tool(name=f"n{number}")(nothing)
        server.resource(f"x:{number}")(nothing)
    assert methods_of(await asker.wire.receive_available()) == [
        CHANGED.format("tools"),
        CHANGED.format("resources"),
    ]


async def test_list_changed_notifies_clients_of_a_server_without_registrations(server, serve):
    asker = await serve(server)
    server.list_changed("prompts")
    assert methods_of(await asker.wire.receive_available()) == [CHANGED.format("prompts")]
    with pytest.raises(ValueError, match="unknown list 'boats': choose from prompts"):
        server.list_changed("boats")


async def test_changes_of_an_undeclared_list_are_not_sent(serve):
    server = Server("harbour", offers={"prompts"})
    asker = await serve(server)
    server.tool(nothing)
    assert await asker.wire.receive_available() == []


async def test_entries_registered_after_opening_and_before_the_handshake_are_declared(nursery):
    server = Server("harbour")
    ours, theirs = memory_pair()
    session = server._sessions.open_session(theirs)
    server.tool(nothing)
    server.method("prompts/list")(nothing)
    await nursery.start(session.run)
    hello = await WirePeer(ours).handshake()
    assert hello["result"]["capabilities"].keys() == {"logging", "tools", "prompts"}


async def test_no_notification_is_sent_before_the_client_is_initialized(server, nursery):
    ours, theirs = memory_pair()
    await nursery.start(server.serve, theirs)
    peer = WirePeer(ours)
    server.tool(name="early")(nothing)
    assert await peer.receive_available() == []
    params = {
        "protocolVersion": "2024-11-05",
        "capabilities": {},
        "clientInfo": {"name": "x", "version": "0"},
    }
    await peer.send_request("initialize", params, id=1)
    assert (await peer.receive())["id"] == 1
    server.tool(name="between")(nothing)
    assert await peer.receive_available() == []
    await peer.send_notification("notifications/initialized")
    assert methods_of(await peer.receive_available()) == [CHANGED.format("tools")]


async def test_a_handler_registers_and_removes_through_its_context(server, serve):
    @server.tool
    async def open_berth(ctx: Context) -> str:
        ctx.server.tool(name="moor")(nothing)
        return "open"

    @server.tool
    def close_berth(ctx: ThreadContext) -> str:
        ctx.server.remove_tool("moor")
        return "closed"

    asker = await serve(server)
    for name in ("open_berth", "close_berth"):
        await asker.call(name)
        told = [*asker.told, *await asker.wire.receive_available()]
        assert methods_of(told) == [CHANGED.format("tools")]
        asker.told.clear()


async def test_any_thread_may_register_and_remove(server, serve):
    asker = await serve(server)
    thread = threading.Thread(target=partial(server.tool(name="late"), nothing))
    thread.start()
    assert (await asker.wire.receive())["method"] == CHANGED.format("tools")
    thread.join()


def test_sessions_of_two_trio_runs_are_notified_of_each_others_changes(server):
    ready, told = threading.Barrier(2), []

    async def main():
        ours, theirs = memory_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.serve, theirs)
            peer = WirePeer(ours)
            await peer.handshake()
            await trio.testing.wait_all_tasks_blocked()
            await trio.to_thread.run_sync(ready.wait)
            with contextlib.suppress(ValueError):
                server.tool(nothing)
            told.append((await peer.receive())["method"])
            await trio.to_thread.run_sync(ready.wait)
            nursery.cancel_scope.cancel()

    threads = [threading.Thread(target=trio.run, args=[main]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told == [CHANGED.format("tools")] * 2


async def test_a_change_after_a_trio_run_has_ended_does_no_harm(server):
    leaked = []

    async def main():
        ours, theirs = memory_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.serve, theirs)
            await WirePeer(ours).handshake()
            leaked.extend(server._change_notifier._listeners)
            nursery.cancel_scope.cancel()

    await trio.to_thread.run_sync(trio.run, main)
    leaked[0].notify((CHANGED.format("tools"), None))


async def test_a_session_that_has_ended_is_forgotten(server, nursery):
    ours, theirs = memory_pair()
    session = await nursery.start(server.serve, theirs)
    peer = WirePeer(ours)
    await peer.handshake()
    assert len(server._change_notifier._listeners) == 1
    gone = weakref.ref(session)
    del session
    await peer.aclose()
    await trio.testing.wait_all_tasks_blocked()
    assert len(server._change_notifier._listeners) == 0
    server.tool(nothing)
    del theirs
    gc.collect()
    assert gone() is None


async def test_a_client_receives_changes_by_its_callbacks(server):
    heard = []

    @server.tool
    async def surge(ctx: Context) -> None:
        ctx.server.tool(name="new")(nothing)
        ctx.server.resource_updated("harbour://tide")

    async with Client(
        server,
        list_changed=heard.append,
        resource_updated=lambda params: heard.append(params.uri),
    ) as client:
        await client.subscribe("harbour://tide")
        await client.call_tool("surge")
        await trio.testing.wait_all_tasks_blocked()
    assert heard == ["tools", "harbour://tide"]


# Subscriptions.


@pytest.mark.requirement("RES-11", "RES-12")
@pytest.mark.parametrize("uri", ["harbour://tide", "harbour://oslo/tide"])
async def test_a_subscribed_client_is_notified_until_it_unsubscribes(server, serve, uri):
    asker, other = await serve(server), await serve(server)
    assert await asker.result("resources/subscribe", {"uri": uri}) == {}
    server.resource_updated(uri)
    server.resource_updated("harbour://lima/tide")
    assert await asker.wire.receive_available() == [
        {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": uri}}
    ]
    assert await asker.result("resources/unsubscribe", {"uri": uri}) == {}
    server.resource_updated(uri)
    assert await asker.wire.receive_available() == []
    assert await other.wire.receive_available() == []


@pytest.mark.requirement("RES-11")
async def test_unsubscribing_without_a_subscription_is_no_error(server, serve):
    asker = await serve(server)
    assert await asker.result("resources/unsubscribe", {"uri": "harbour://none"}) == {}


async def test_subscribing_to_a_missing_resource_is_an_error(server, serve):
    asker = await serve(server)
    error = await asker.error("resources/subscribe", {"uri": "harbour://none"})
    assert (error["code"], error["data"]) == (-32002, {"uri": "harbour://none"})
    error = await asker.error("resources/subscribe", {"uri": "harbour://../tide"})
    assert error["code"] == -32602


async def test_subscriptions_have_a_limit_that_the_rejection_names(serve):
    server = Server("harbour", limits=Limits(requests=RequestLimits(subscriptions_max=2)))
    server.resource("x:{n}")(lambda n: n)
    asker = await serve(server)
    for number in (0, 1, 1, 0):
        assert await asker.result("resources/subscribe", {"uri": f"x:{number}"}) == {}
    error = await asker.error("resources/subscribe", {"uri": "x:2"})
    assert error["message"] == "too many subscriptions (limits.requests.subscriptions_max=2)"
    await asker.result("resources/unsubscribe", {"uri": "x:0"})
    assert await asker.result("resources/subscribe", {"uri": "x:2"}) == {}


async def test_updates_from_threads_reach_only_subscribers(server, serve):
    asker = await serve(server)
    await asker.result("resources/subscribe", {"uri": "harbour://tide"})

    def update():
        for uri in ("harbour://none", "harbour://tide"):
            server.resource_updated(uri)

    await trio.to_thread.run_sync(update)
    (told,) = await asker.wire.receive_available()
    assert told["params"] == {"uri": "harbour://tide"}


async def test_an_update_unsubscribed_while_pending_is_not_sent(server, serve):
    asker = await serve(server)
    await asker.result("resources/subscribe", {"uri": "harbour://tide"})
    (announcer,) = server._change_notifier._listeners
    server.resource_updated("harbour://tide")
    announcer.unsubscribe("harbour://tide")
    assert await asker.wire.receive_available() == []


async def test_a_slow_client_delays_no_other_and_its_pending_changes_are_bounded(nursery):
    limits = Limits(
        messages=MessageLimits(send_queue_bytes_max=1000), requests=RequestLimits(page_items_max=10)
    )
    server = Server("harbour", offers=EVERYTHING, limits=limits)
    server.resource("x:{n}")(lambda n: n)
    peers = []
    for buffer in (256, 65536):
        ours, theirs = memory_pair(buffer_bytes_max=buffer)
        session = await nursery.start(server.serve, theirs)
        peer = WirePeer(ours)
        await peer.handshake()
        await peer.send_request("resources/subscribe", {"uri": "x:1"}, id=1)
        await peer.receive()
        peers.append((peer, session))
    (stalled, session), (fast, _) = peers
    heard = 0
    for number in range(300):
        server.tool(name=f"n{number}")(nothing)
        server.resource_updated("x:1")
        heard += len(await fast.receive_available())
    assert heard == 600
    assert session.send_queue.queued_bytes < 2000
    assert len(await stalled.receive_available()) < 30
