"""Subscriptions to changes at stateless servers."""

import contextlib
import logging

import attrs
import httpx2
import pytest
import trio
import trio.testing

from mcp_trio import (
    Change,
    Client,
    ConnectionLost,
    Limits,
    RequestError,
    RequestTimeout,
    ResourceNotFound,
    Server,
)
from mcp_trio._protocol.metadata import SUBSCRIPTION_ID
from mcp_trio._protocol.versions import PROTOCOL_VERSIONS
from mcp_trio.errors import LocalProtocolError, RemoteProtocolError
from mcp_trio.limits import HttpLimits, MessageLimits
from mcp_trio.testing import WirePeer
from tests.client.conftest import nothing
from tests.client.stateless import DISCOVERED, INITIALIZED, LEGACY, STATELESS, Played
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

STATELESS_SUBSCRIPTIONS = "2026-07-28"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
UPDATED = "notifications/resources/updated"
TOOLS = "notifications/tools/list_changed"
ALL = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {"subscribe": True, "listChanged": True},
}


def ignore(_kind):
    pass


def stateless(target, **options):
    return Client(target, protocol_versions=[STATELESS_SUBSCRIPTIONS], **options)


@attrs.define(eq=False)
class Hand:
    """A stateless server played by hand."""

    wire: object

    async def next_listen(self):
        """The id of the next subscription, and what it asks for."""
        asked = await self.wire.receive()
        assert asked["method"] == "subscriptions/listen"
        return asked["id"], asked["params"]["notifications"]

    async def notify(self, method, subscription, **params):
        meta = {} if subscription is None else {"_meta": {SUBSCRIPTION_ID: subscription}}
        await self.wire.send_notification(method, {**params, **meta})

    async def acknowledge(self):
        id_, asked = await self.next_listen()
        await self.notify(ACKNOWLEDGED, id_, notifications=asked)
        return id_


@pytest.fixture
async def by_hand(scripted, nursery):
    """Connect a client to a server that is played by hand."""

    async def start(capabilities=ALL, **options):
        channel, wire = scripted
        client = stateless(channel, **options)
        nursery.start_soon(client.__aenter__)
        asked = await wire.receive()
        assert asked["method"] == "server/discover"
        await wire.send_result(
            asked,
            {
                "resultType": "complete",
                "supportedVersions": [STATELESS_SUBSCRIPTIONS],
                "capabilities": capabilities,
                "ttlMs": 0,
                "cacheScope": "private",
            },
        )
        await trio.testing.wait_all_tasks_blocked()
        return client, Hand(wire)

    return start


async def taken(subscription, count):
    return [await anext(subscription) for _ in range(count)]


# Subscriptions that the caller opens.


@pytest.mark.requirement("SUB-01", "SUB-03", "RES-15")
async def test_changes_are_iterated(server):
    async with stateless(server) as client:
        wishes = {"tools": True, "resources": True, "uris": ["harbour://oslo", "harbour://oslo"]}
        async with client.listen(**wishes) as subscription:
            server.tool(nothing)
            server.prompt(nothing)
            server.resource_updated("harbour://oslo")
            server.resource_updated("harbour://lima")
            changes = await taken(subscription, 2)
            assert changes == [Change("tools"), Change("resource", "harbour://oslo")]
            assert subscription.left_out == []
            assert subscription.is_open
        await trio.testing.wait_all_tasks_blocked()
        assert len(server._change_notifier.listeners) == 1  # none but the announcer of the session
        assert client.counts == {}


@pytest.mark.requirement("SUB-06", "SUB-07")
async def test_left_out_holds_what_the_server_did_not_acknowledge(server):
    server = Server("harbour", offers={"tools"})
    async with (
        stateless(server) as client,
        client.listen(tools=True, prompts=True, uris=["harbour://oslo"]) as subscription,
    ):
        assert subscription.acknowledged.tools_list_changed is True
        assert subscription.left_out == [Change("prompts"), Change("resource", "harbour://oslo")]


@pytest.mark.requirement("SUB-12")
async def test_leaving_the_block_cancels_the_request_once(by_hand, nursery):
    client, hand = await by_hand()
    nursery.start_soon(hand.acknowledge)
    listening = client.listen(tools=True)
    await listening.__aenter__()
    error = KeyError()
    assert not await listening.__aexit__(KeyError, error, None)
    (cancelled,) = await hand.wire.receive_available()
    assert cancelled["method"] == "notifications/cancelled"
    assert client.counts == {}


@pytest.mark.requirement("SUB-09", "SUB-10", "STDIO-13")
async def test_each_notification_goes_to_its_own_subscription(by_hand, nursery):
    client, hand = await by_hand()
    nursery.start_soon(hand.acknowledge)
    async with client.listen(tools=True) as one:
        ids = []
        nursery.start_soon(_note, ids, hand)
        async with client.listen(tools=True) as two:
            await hand.notify(TOOLS, ids[0])
            assert await anext(two) == Change("tools")
            for untracked_call in (None, 99, str(ids[0]), True):
                await hand.notify(TOOLS, untracked_call)
            await trio.testing.wait_all_tasks_blocked()
            with trio.move_on_after(0) as scope:
                await anext(one)
            assert scope.cancelled_caught
    assert client.counts["no subscription"] == 4


async def _note(ids, hand):
    ids.append(await hand.acknowledge())


async def test_a_change_reported_twice_before_it_is_read_counts_once(by_hand, nursery):
    client, hand = await by_hand(limits=Limits(messages=MessageLimits(progress_queued_max=2)))
    ids = []
    nursery.start_soon(_note, ids, hand)
    async with client.listen(tools=True, uris=["x:1", "x:2"]) as subscription:
        for uri in ("x:1", "x:1", "x:2", "x:3", "x:1"):
            await hand.notify(UPDATED, ids[0], uri=uri)
        await trio.testing.wait_all_tasks_blocked()
        changes = await taken(subscription, 2)
        assert [change.uri for change in changes] == ["x:3", "x:1"]


async def test_unread_changes_are_dropped_oldest_first_and_logged_once(by_hand, nursery, caplog):
    client, hand = await by_hand(limits=Limits(messages=MessageLimits(progress_queued_max=1)))
    ids = []
    nursery.start_soon(_note, ids, hand)
    async with client.listen(uris=["x:1"]) as subscription:
        for number in range(3):
            await hand.notify(UPDATED, ids[0], uri=f"x:{number}")
        await trio.testing.wait_all_tasks_blocked()
        assert await anext(subscription) == Change("resource", "x:2")
    assert caplog.text.count("limits.messages.progress_queued_max=1") == 1


async def test_all_changes_are_dropped_if_none_may_wait(by_hand, nursery, autojump_clock, caplog):
    client, hand = await by_hand(limits=Limits(messages=MessageLimits(progress_queued_max=0)))
    ids = []
    nursery.start_soon(_note, ids, hand)
    began = trio.current_time()
    async with client.listen(uris=["x:1"]) as subscription:
        assert trio.current_time() == began
        await hand.notify(UPDATED, ids[0], uri="x:1")
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(1):
            await anext(subscription)
        assert trio.current_time() == began + 1
        assert subscription.is_open
    assert "limits.messages.progress_queued_max=0" in caplog.text


@pytest.mark.requirement("TRAP-107")
async def test_a_subscription_has_no_time_out_but_its_acknowledgement_has(
    by_hand, nursery, autojump_clock
):
    client, hand = await by_hand()
    nursery.start_soon(hand.acknowledge)
    async with client.listen(tools=True) as subscription:
        await trio.sleep(100_000)
        was_open = subscription.is_open
    assert was_open
    await hand.wire.receive()
    with pytest.raises(RequestTimeout, match=r"limits\.requests\.idle_seconds"):
        async with client.listen(tools=True):
            pass
    _, cancelled = await hand.wire.receive_available()
    assert cancelled["method"] == "notifications/cancelled"


async def test_a_wait_for_the_acknowledgement_that_is_cancelled_cancels_the_request(by_hand):
    client, hand = await by_hand()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.listen(tools=True).__aenter__)
            id_, _ = await hand.next_listen()
            nursery.cancel_scope.cancel()
    assert not scope.cancelled_caught
    (cancelled,) = await hand.wire.receive_available()
    assert cancelled["params"]["requestId"] == id_


@pytest.mark.requirement("SUB-04", "SUB-05")
async def test_notifications_before_the_acknowledgement_are_ignored(by_hand, nursery):
    client, hand = await by_hand()

    async def send_early():
        id_, asked = await hand.next_listen()
        await hand.notify(TOOLS, id_)
        await hand.notify(ACKNOWLEDGED, id_, notifications=asked)
        await hand.notify(ACKNOWLEDGED, id_, notifications={})
        await hand.notify(UPDATED, id_, uri="x:1")

    nursery.start_soon(send_early)
    async with client.listen(tools=True, uris=["x:1"]) as subscription:
        assert await anext(subscription) == Change("resource", "x:1")
        assert subscription.left_out == []


# The end by the server.


@pytest.mark.requirement("SUB-14", "TRAP-104", "CANC-18")
@pytest.mark.parametrize("ends", [["result"], ["cancelled"], ["result", "cancelled"]])
@pytest.mark.parametrize("is_reversed", [False, True])
async def test_after_the_end_of_a_subscription_all_else_is_ignored(
    by_hand, nursery, ends, is_reversed
):
    client, hand = await by_hand()
    ids = []
    nursery.start_soon(_note, ids, hand)
    async with client.listen(tools=True) as subscription:
        meta = {"_meta": {SUBSCRIPTION_ID: ids[0]}}
        messages = {
            "result": {"id": ids[0], "result": {"resultType": "complete", **meta}},
            "cancelled": {
                "method": "notifications/cancelled",
                "params": {"requestId": ids[0], **meta},
            },
        }
        await hand.notify(TOOLS, ids[0])
        for end in reversed(ends) if is_reversed else ends:
            await hand.wire.send(messages[end])
        assert [change async for change in subscription] == [Change("tools")]
        assert not subscription.is_open
    assert await hand.wire.receive_available() == []
    assert set(client.counts) <= {"late answer", "late cancellation"}
    assert len(client.counts) == len(ends) - 1


@pytest.mark.requirement("CANC-18", "TRAP-60")
async def test_a_server_can_cancel_nothing_but_a_subscription(by_hand, nursery):
    client, hand = await by_hand()
    results = []

    async def call():
        results.append(await client.list_tools())

    nursery.start_soon(call)
    asked = await hand.wire.receive()
    for id_ in (asked["id"], 99):
        await hand.wire.send_notification("notifications/cancelled", {"requestId": id_})
    await hand.wire.send_result(asked, {"tools": [], "resultType": "complete"})
    await trio.testing.wait_all_tasks_blocked()
    assert results == [[]]
    assert client.counts == {"late cancellation": 2}


async def test_a_rejected_subscription_raises_the_rejection(by_hand, nursery):
    client, hand = await by_hand()

    async def reject():
        id_, _ = await hand.next_listen()
        await hand.wire.send({"id": id_, "error": {"code": -32000, "message": "full"}})

    nursery.start_soon(reject)
    with pytest.raises(RequestError, match="full"):
        async with client.listen(tools=True):
            pass


async def test_a_subscription_that_ends_unacknowledged_is_a_protocol_error(by_hand, nursery):
    client, hand = await by_hand()

    async def end():
        id_, _ = await hand.next_listen()
        await hand.wire.send({"id": id_, "result": {}})

    nursery.start_soon(end)
    with pytest.raises(RemoteProtocolError, match="before it acknowledged"):
        async with client.listen(tools=True):
            pass


@pytest.mark.requirement("SUB-16")
async def test_a_lost_connection_raises_an_error_in_the_loop(by_hand, nursery):
    client, hand = await by_hand()
    nursery.start_soon(hand.acknowledge)
    async with client.listen(tools=True) as subscription:
        await hand.wire.aclose()
        with pytest.raises(ConnectionLost):
            await anext(subscription)


async def test_the_loop_ends_when_the_server_ends_the_subscription(server):
    async with stateless(server) as client, client.listen(tools=True) as subscription:
        (listener,) = [it for it in server._change_notifier.listeners if hasattr(it, "honoured")]
        listener.end()
        assert [change async for change in subscription] == []


@pytest.mark.parametrize(
    "protocol_version", [n for n in PROTOCOL_VERSIONS if PROTOCOL_VERSIONS[n].has_handshake]
)
async def test_listen_rejects_a_legacy_server(server, protocol_version):
    async with Client(server, protocol_versions=[protocol_version]) as client:
        with pytest.raises(LocalProtocolError, match="subscriptions/listen"):
            async with client.listen(tools=True):
                pass


# Callbacks.


@pytest.mark.requirement("SUB-02")
async def test_without_callbacks_no_subscription_is_opened(by_hand):
    _, hand = await by_hand()
    assert await hand.wire.receive_available() == []


@pytest.mark.parametrize("capabilities", [{}, {"tools": {}}])
async def test_lists_without_the_list_changed_capability_are_not_subscribed_to(
    by_hand, capabilities
):
    _, hand = await by_hand(capabilities=capabilities, list_changed=ignore)
    assert await hand.wire.receive_available() == []


async def test_a_new_subscription_is_opened_before_the_old_one_is_cancelled(by_hand, nursery):
    client, hand = await by_hand()
    for uris in (["x:1"], ["x:1", "x:2"]):
        nursery.start_soon(client.subscribe, uris[-1])
        id_, asked = await hand.next_listen()
        assert asked == {"resourceSubscriptions": uris}
        await hand.notify(ACKNOWLEDGED, id_, notifications=asked)
        await trio.testing.wait_all_tasks_blocked()
    assert [m["method"] for m in await hand.wire.receive_available()] == ["notifications/cancelled"]
    nursery.start_soon(client.unsubscribe, "x:2")
    await hand.acknowledge()
    nursery.start_soon(client.unsubscribe, "x:1")
    await trio.testing.wait_all_tasks_blocked()
    methods = [message["method"] for message in await hand.wire.receive_available()]
    assert methods == ["notifications/cancelled"] * 2


async def test_subscribe_takes_a_timeout_for_the_acknowledgement(by_hand, autojump_clock):
    client, _ = await by_hand()
    with pytest.raises(RequestTimeout, match="idle_seconds"):
        await client.subscribe("x:1", idle_seconds=3, total_seconds=7)
    assert trio.current_time() < 5


async def test_a_rejected_callback_subscription_does_not_end_the_session(by_hand, caplog):
    client, hand = await by_hand(list_changed=ignore)
    id_, _ = await hand.next_listen()
    await hand.wire.send({"id": id_, "error": {"code": -32601, "message": "what?"}})
    await trio.testing.wait_all_tasks_blocked()
    assert client.is_open
    assert "the client will not be notified of changes: what?" in caplog.text


@pytest.mark.requirement("SUB-07")
async def test_changes_that_the_server_does_not_report_are_logged(by_hand, caplog):
    caplog.set_level(logging.INFO, logger="mcp_trio")
    _, hand = await by_hand(list_changed=ignore)
    id_, _ = await hand.next_listen()
    await hand.notify(ACKNOWLEDGED, id_, notifications={"toolsListChanged": True})
    await trio.testing.wait_all_tasks_blocked()
    assert "does not report changes of its prompts, its resources" in caplog.text


async def test_a_cancelled_connect_ends_the_session(by_hand, scripted):
    channel, wire = scripted
    client = stateless(channel, list_changed=ignore)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.__aenter__)
        asked = await wire.receive()
        result = {
            "supportedVersions": [STATELESS_SUBSCRIPTIONS],
            "capabilities": ALL,
            "resultType": "complete",
        }
        await wire.send_result(asked, {**result, "ttlMs": 0, "cacheScope": "private"})
        await wire.receive()
        nursery.cancel_scope.cancel()
    await client.aclose()
    assert not client.is_open


# A subscription over HTTP whose stream breaks and is opened again.


LISTEN = "subscriptions/listen"
CAN = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {"subscribe": True},
}


@attrs.define(eq=False, slots=False)
class Notifying:
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
        line, notifications = trio.open_memory_channel(100)
        self.lines.append(line)
        return Reply(200, EVENTS, self.stream(seen.message, notifications))

    async def stream(self, asked, notifications):
        meta = {SUBSCRIPTION_ID: asked["id"]}
        params = {"notifications": asked["params"]["notifications"], "_meta": meta}
        acknowledged = "notifications/subscriptions/acknowledged"
        yield event({"jsonrpc": "2.0", "method": acknowledged, "params": params})
        async for method, more in notifications:
            if method == "result":
                members = {"resultType": "complete", "_meta": meta}
                yield event({"jsonrpc": "2.0", "id": asked["id"], "result": members})
                return
            params = {**more, "_meta": meta}
            yield event({"jsonrpc": "2.0", "method": method, "params": params})

    def notify(self, method, **params):
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


# Subscriptions that the caller opens.


@pytest.mark.requirement("SUB-16", "SUB-18", "TRAP-108")
async def test_a_broken_stream_is_opened_again_and_possible_changes_are_reported(autojump_clock):
    server = Notifying()
    async with (
        listened(server) as (client, _),
        client.listen(tools=True, uris=["x:1"]) as subscription,
    ):
        server.notify(TOOLS)
        assert await anext(subscription) == Change("tools")
        server.cut()
        missed = [await anext(subscription) for _ in range(2)]
        assert missed == [Change("tools", missed=True), Change("resource", "x:1", missed=True)]
        assert subscription.interruption == ""
        server.notify(TOOLS)
        assert await anext(subscription) == Change("tools")
        assert subscription.left_out == []
        with trio.move_on_after(100) as nothing:
            await anext(subscription)
        assert nothing.cancelled_caught
    assert len(server.at) == 2


async def test_a_broken_stream_is_opened_again_without_a_reader(autojump_clock):
    server, states = Notifying(), []
    state_changed = lambda state, why: states.append((state, why))  # noqa: E731
    async with listened(server, state_changed=state_changed) as (client, script):
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
    server = Notifying()
    async with (
        listened(server) as (client, _),
        client.listen(prompts=True, tools=True) as subscription,
    ):
        server.notify(TOOLS)
        server.cut()
        await pause()
        changes = [await anext(subscription) for _ in range(3)]
    kinds = [(change.kind, change.missed) for change in changes]
    assert kinds == [("tools", False), ("tools", True), ("prompts", True)]


@pytest.mark.requirement("CACHE-11")
@pytest.mark.parametrize(
    "rejection",
    [
        *(httpx2.ConnectError("away"), httpx2.ReadError("cut")),
        *(lambda _: Reply(503), lambda _: Reply(429)),
    ],
)
async def test_an_unreachable_server_is_tried_with_growing_pauses(rejection, autojump_clock):
    server = Notifying()
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
    server = Notifying()
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
    server = Notifying()
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
        (lambda _: Reply(413), ConnectionLost, "HTTP 413"),
        (lambda seen: error(seen, -32000, "full", status=400), RequestError, "full"),
    ],
)
async def test_a_rejected_subscription_is_not_tried_again(rejection, kind, match, autojump_clock):
    server = Notifying()
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
    server = Notifying()
    async with listened(server) as (client, _), client.listen(tools=True) as subscription:
        server.notify("result")
        assert [change async for change in subscription] == []
        await pause()
    assert len(server.at) == 1


async def test_a_stream_that_breaks_at_once_is_resumed_ever_less_often(autojump_clock):
    server = Notifying()
    async with listened(server) as (client, _), client.listen(tools=True) as subscription:
        for _ in range(20):
            server.cut()
            assert (await anext(subscription)).missed
        assert subscription.is_open
    assert trio.current_time() > 12 * 15


async def test_a_stream_that_lasted_is_resumed_soon(autojump_clock):
    server = Notifying()
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

    server = Notifying()
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
    server = Notifying()
    async with listened(server) as (client, _), client.listen(tools=True) as subscription:
        server.cut()
        await trio.sleep(0.1)
        since = trio.current_time()
        await client.aclose()
        assert trio.current_time() - since < 1
        with pytest.raises(ConnectionLost, match="closed on this side"):
            await anext(subscription)


# The subscription of callbacks.


@pytest.mark.requirement("SUB-16", "SUB-18")
@pytest.mark.parametrize("how", ["cut", "ended"])
async def test_callbacks_get_possible_changes_once_and_later_ones_again(how, autojump_clock):
    received, server = [], Notifying()

    def changed(kind):
        received.append(kind)
        if kind == "prompts":
            raise KeyError("mine")

    options = {
        "list_changed": changed,
        "resource_updated": lambda params: received.append(params.uri),
    }
    async with listened(server, **options) as (client, _):
        await client.subscribe("x:1")
        assert received == []
        if how == "cut":
            server.cut()
        else:
            server.notify("result")
        await pause()
        assert received == ["tools", "prompts", "x:1"]
        server.notify(TOOLS)
        await pause()
        assert received == ["tools", "prompts", "x:1", "tools"]
        assert client.is_open
    assert len(server.at) == 3


async def test_the_next_call_resumes_a_subscription_that_was_given_up(autojump_clock, caplog):
    received, server = [], Notifying()
    async with listened(server, list_changed=received.append) as (client, _):
        server.rejections = [httpx2.ConnectError("away")] * 5
        server.cut()
        await trio.sleep(1000)
        assert "the client will not be notified of changes" in caplog.text
        assert len(server.at) == 6
        await client.list_tools()
        await pause()
        assert received == ["tools", "prompts"]
        await client.list_tools()
        await pause()
    assert len(server.at) == 7


async def test_a_closed_client_resumes_no_subscription(autojump_clock):
    server = Notifying()
    async with listened(server, list_changed=print) as (client, _):
        server.rejections = [httpx2.ConnectError("away")] * 5
        server.cut()
        await trio.sleep(1000)
        await client.aclose()
        with pytest.raises(ConnectionLost, match="closed"):
            await client.list_tools()
    assert len(server.at) == 6


async def test_without_reconnects_the_loss_is_logged_once(autojump_clock, caplog):
    server = Notifying()
    limits = Limits(http=HttpLimits(reconnects_max=0))
    async with listened(server, list_changed=print, limits=limits) as (client, _):
        server.cut()
        for _ in range(3):
            await client.list_tools()
            await pause()
    assert caplog.text.count("the client will not be notified of changes") == 1
    assert len(server.at) == 1


async def test_the_next_call_does_not_resume_a_rejected_subscription(autojump_clock, caplog):
    server = Notifying()
    async with listened(server, list_changed=print) as (client, _):
        server.rejections = [lambda _: Reply(403)] * 5
        server.cut()
        await trio.sleep(1000)
        assert "the client will not be notified of changes" in caplog.text
        await client.list_tools()
        await pause()
    assert len(server.at) == 2


# Subscriptions that are renewed in the next session.


URI = "tide://bergen"


@attrs.define(eq=False)
class Mortal:
    """A server object whose sessions end when a test sets an event."""

    lives: list = attrs.field(factory=list)
    servers: list = attrs.field(factory=list)
    has_tide: bool = True

    async def serve(self, channel):
        server = Server("mortal", offers=["resources"])

        @server.tool
        async def live() -> None:
            pass

        if self.has_tide:
            server.resource(URI)(live)
        with trio.CancelScope() as life:
            self.lives.append(life)
            self.servers.append(server)
            await server.serve(channel)

    async def die(self):
        self.lives[-1].cancel()
        await trio.testing.wait_all_tasks_blocked()

    async def change_in_next_life(self, client):
        await self.die()
        await client.call_tool("live")
        self.servers[-1].resource_updated(URI)
        await trio.sleep(1)


@pytest.mark.parametrize("protocol_version", [LEGACY[-1], STATELESS])
async def test_resource_updates_arrive_after_a_restart(protocol_version, autojump_clock):
    mortal, received = Mortal(), []
    options = {"restart": True, "resource_updated": lambda params: received.append(params.uri)}
    async with Client(mortal, protocol_versions=[protocol_version], **options) as client:
        await client.subscribe(URI)
        await mortal.change_in_next_life(client)
        assert received == [URI]
        await client.unsubscribe(URI)
        await mortal.change_in_next_life(client)
    assert received == [URI]


async def test_a_resource_that_is_gone_after_a_restart_is_logged(autojump_clock, caplog):
    mortal = Mortal()
    async with Client(mortal, protocol_versions=[LEGACY[-1]], restart=True) as client:
        await client.subscribe(URI)
        mortal.has_tide = False
        await mortal.die()
        await client.call_tool("live")
    assert f"the client will not be notified of changes of {URI}: resource not found" in caplog.text


# Callbacks for changes at stateless and legacy servers.


STATELESS_CHANGE_CALLBACKS = "2026-07-28"


def stateless_change_callbacks(target, **options):
    return Client(target, protocol_versions=[STATELESS_CHANGE_CALLBACKS], **options)


@pytest.mark.requirement("TOOL-36", "RES-14", "RES-15", "PROM-12")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_callbacks_get_changes_of_stateless_and_legacy_servers(server, protocol_version):
    received = []
    async with Client(
        server,
        protocol_versions=[protocol_version],
        list_changed=received.append,
        resource_updated=lambda params: received.append(params.uri),
    ) as client:
        await client.subscribe("harbour://oslo")
        await client.subscribe("harbour://lima")
        await client.unsubscribe("harbour://oslo")
        await client.unsubscribe("harbour://none")
        server.tool(nothing)
        for port in ("oslo", "lima"):
            server.resource_updated(f"harbour://{port}")
        await trio.testing.wait_all_tasks_blocked()
        assert received == ["tools", "harbour://lima"]
        await client.unsubscribe("harbour://lima")
        server.resource_updated("harbour://lima")
        await trio.testing.wait_all_tasks_blocked()
    assert received == ["tools", "harbour://lima"]


@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_a_callback_may_subscribe(server, protocol_version):
    received = []

    async def changed(kind):
        await client.subscribe(f"harbour://{kind}")
        received.append(kind)

    async with Client(server, protocol_versions=[protocol_version], list_changed=changed) as client:
        server.tool(nothing)
        await trio.testing.wait_all_tasks_blocked()
    assert received == ["tools"]


async def test_subscribing_to_an_unacknowledged_resource_raises_not_found(server):
    async with stateless_change_callbacks(server) as client:
        await client.subscribe("harbour://oslo")
        with pytest.raises(ResourceNotFound, match="none:1") as caught:
            await client.subscribe("none:1")
        assert caught.value.data == {"uri": "none:1"}
        await trio.testing.wait_all_tasks_blocked()
        (listener,) = [it for it in server._change_notifier.listeners if hasattr(it, "honoured")]
        assert listener.uris == ["harbour://oslo"]


async def test_a_server_without_subscriptions_gets_no_subscribe_request():
    async with stateless_change_callbacks(Server("harbour")) as client:
        with pytest.raises(LocalProtocolError, match=r"resources\.subscribe"):
            await client.subscribe("x:1")


@pytest.mark.requirement("SUB-17", "STDIO-21")
async def test_a_restarted_server_is_subscribed_to_again(server):
    received = []
    async with Client(
        server,
        protocol_versions=[STATELESS_CHANGE_CALLBACKS],
        restart=True,
        list_changed=received.append,
        resource_updated=lambda params: received.append(params.uri),
    ) as client:
        await client.subscribe("harbour://oslo")
        client._session.shut("lost")
        await client.list_tools()
        server.tool(nothing)
        server.resource_updated("harbour://oslo")
        await trio.testing.wait_all_tasks_blocked()
    assert received == ["tools", "harbour://oslo"]


@attrs.define(eq=False)
class Restartable:
    """A stateless server object that acknowledges no subscription by itself in later sessions."""

    sessions: list = attrs.field(factory=list)

    async def serve(self, channel):
        answers = {
            "server/discover": DISCOVERED,
            "subscriptions/listen": None,
            "tools/list": {"tools": [], "ttlMs": 0, "cacheScope": "private"},
        }
        session = Played(WirePeer(channel), answers)
        if not self.sessions:
            session.before = session.acknowledge
        self.sessions.append(session)
        await session.serve()


@pytest.mark.requirement("SUB-17")
async def test_a_resource_subscribed_to_while_another_task_connects_again_stays(nursery):
    server, received = Restartable(), []
    async with stateless(
        server,
        restart=True,
        list_changed=ignore,
        resource_updated=lambda params: received.append(params.uri),
    ) as client:
        client._session.shut("lost")
        nursery.start_soon(client.list_tools)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(client.subscribe, "x:1")
        await trio.testing.wait_all_tasks_blocked()
        session = server.sessions[1]
        session.before = session.acknowledge
        of_lists, *of_resource = [
            each for each in session.requests if each["method"] == "subscriptions/listen"
        ]
        for message in [*of_resource, of_lists]:
            await session.acknowledge(message)
        await trio.testing.wait_all_tasks_blocked()
        for message in session.requests:
            if "x:1" in message["params"].get("notifications", {}).get("resourceSubscriptions", ()):
                meta = {SUBSCRIPTION_ID: message["id"]}
                await session.peer.send_notification(UPDATED, {"uri": "x:1", "_meta": meta})
        await trio.testing.wait_all_tasks_blocked()
    assert received == ["x:1"]


@attrs.define(eq=False)
class RestartableLegacy:
    """A legacy server object that does not answer `resources/subscribe` in later sessions."""

    sessions: list = attrs.field(factory=list)

    async def serve(self, channel):
        answers = {
            "initialize": {**INITIALIZED, "protocolVersion": LEGACY[0]},
            "resources/subscribe": None if self.sessions else {},
            "resources/unsubscribe": {},
        }
        session = Played(WirePeer(channel), answers)
        self.sessions.append(session)
        await session.serve()


async def test_a_resource_unsubscribed_from_while_another_task_connects_again_stays_so(nursery):
    server = RestartableLegacy()
    async with Client(server, protocol_versions=LEGACY, restart=True) as client:
        for uri in ("x:1", "x:2"):
            await client.subscribe(uri)
        client._session.shut("lost")
        nursery.start_soon(client.unsubscribe, "x:0")
        await trio.testing.wait_all_tasks_blocked()
        await client.unsubscribe("x:2")
        session = server.sessions[1]
        (waiting,) = (it for it in session.requests if it["method"] == "resources/subscribe")
        await session.peer.send_result(waiting, {})
        await trio.testing.wait_all_tasks_blocked()
        assert session.asked("resources/subscribe") == [{"uri": "x:1"}]


@pytest.mark.requirement("SUB-18", "TRAP-108")
async def test_the_start_of_a_subscription_empties_the_cache():
    server = Server("harbour", offers={"tools"}, list_ttl_seconds=1000)
    async with stateless_change_callbacks(server) as client:
        assert await client.list_tools() == []
        server.tool(nothing)
        assert await client.list_tools() == []  # cached, without a notification
        async with client.listen(tools=True):
            assert len(await client.list_tools()) == 1
            server.tool(name="another")(nothing)
            await trio.testing.wait_all_tasks_blocked()
            assert len(await client.list_tools()) == 2
