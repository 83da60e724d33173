"""Subscriptions to changes at stateless servers."""

import logging

import attrs
import pytest
import trio
import trio.testing

from mcp_trio import Change, Client, ConnectionLost, Limits, RequestError, RequestTimeout, Server
from mcp_trio._protocol.metadata import SUBSCRIPTION_ID
from mcp_trio._protocol.versions import PROTOCOL_VERSIONS
from mcp_trio.errors import LocalProtocolError, RemoteProtocolError
from mcp_trio.limits import MessageLimits
from tests.client.conftest import nothing

STATELESS = "2026-07-28"
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
    return Client(target, protocol_versions=[STATELESS], **options)


@attrs.define(eq=False)
class Hand:
    """A stateless server played by hand."""

    wire: object

    async def next_listen(self):
        """The id of the next subscription, and what it asks for."""
        asked = await self.wire.receive()
        assert asked["method"] == "subscriptions/listen"
        return asked["id"], asked["params"]["notifications"]

    async def tell(self, method, subscription, **params):
        meta = {} if subscription is None else {"_meta": {SUBSCRIPTION_ID: subscription}}
        await self.wire.send_notification(method, {**params, **meta})

    async def acknowledge(self):
        id_, asked = await self.next_listen()
        await self.tell(ACKNOWLEDGED, id_, notifications=asked)
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
                "supportedVersions": [STATELESS],
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


# A subscription of one's own.


@pytest.mark.requirement("SUB-01", "SUB-03", "RES-15")
async def test_changes_are_iterated(server):
    async with stateless(server) as client:
        wishes = {"tools": True, "resources": True, "uris": ["harbour://oslo", "harbour://oslo"]}
        async with client.listen(**wishes) as subscription:
            server.tool(nothing)
            server.prompt(nothing)
            server.resource_updated("harbour://oslo")
            server.resource_updated("harbour://lima")
            heard = await taken(subscription, 2)
            assert heard == [Change("tools"), Change("resource", "harbour://oslo")]
            assert subscription.left_out == []
            assert subscription.is_open
        await trio.testing.wait_all_tasks_blocked()
        assert len(server._change_notifier._listeners) == 1  # none but the announcer of the session
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
            await hand.tell(TOOLS, ids[0])
            assert await anext(two) == Change("tools")
            for untracked_call in (None, 99, str(ids[0]), True):
                await hand.tell(TOOLS, untracked_call)
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
            await hand.tell(UPDATED, ids[0], uri=uri)
        await trio.testing.wait_all_tasks_blocked()
        heard = await taken(subscription, 2)
        assert [change.uri for change in heard] == ["x:3", "x:1"]


async def test_unread_changes_are_dropped_oldest_first_and_logged_once(by_hand, nursery, caplog):
    client, hand = await by_hand(limits=Limits(messages=MessageLimits(progress_queued_max=1)))
    ids = []
    nursery.start_soon(_note, ids, hand)
    async with client.listen(uris=["x:1"]) as subscription:
        for number in range(3):
            await hand.tell(UPDATED, ids[0], uri=f"x:{number}")
        await trio.testing.wait_all_tasks_blocked()
        assert await anext(subscription) == Change("resource", "x:2")
    assert caplog.text.count("limits.messages.progress_queued_max=1") == 1


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

    async def say():
        id_, asked = await hand.next_listen()
        await hand.tell(TOOLS, id_)
        await hand.tell(ACKNOWLEDGED, id_, notifications=asked)
        await hand.tell(ACKNOWLEDGED, id_, notifications={})
        await hand.tell(UPDATED, id_, uri="x:1")

    nursery.start_soon(say)
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
        await hand.tell(TOOLS, ids[0])
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
        (listener,) = [it for it in server._change_notifier._listeners if hasattr(it, "honoured")]
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
        await hand.tell(ACKNOWLEDGED, id_, notifications=asked)
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
    await hand.tell(ACKNOWLEDGED, id_, notifications={"toolsListChanged": True})
    await trio.testing.wait_all_tasks_blocked()
    assert "does not report changes of its prompts, its resources" in caplog.text


async def test_a_cancelled_connect_ends_the_session(by_hand, scripted):
    channel, wire = scripted
    client = stateless(channel, list_changed=ignore)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.__aenter__)
        asked = await wire.receive()
        result = {"supportedVersions": [STATELESS], "capabilities": ALL, "resultType": "complete"}
        await wire.send_result(asked, {**result, "ttlMs": 0, "cacheScope": "private"})
        await wire.receive()
        nursery.cancel_scope.cancel()
    await client.aclose()
    assert not client.is_open
