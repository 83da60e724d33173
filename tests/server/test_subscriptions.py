"""Subscriptions of stateless clients: their notifications, the order, and the end."""

import functools
import ssl
import threading
from functools import partial

import pytest
import trio
import trio.testing

from mcp_trio import Client, ConnectionLost, Context, Limits, Server
from mcp_trio._protocol.metadata import CLIENT_CAPABILITIES, PROTOCOL_VERSION, SUBSCRIPTION_ID
from mcp_trio._protocol.versions import PROTOCOL_VERSIONS
from mcp_trio._server.registry import Registry
from mcp_trio.limits import HttpLimits, MessageLimits, RequestLimits, WebSocketLimits
from mcp_trio.testing import WirePeer
from mcp_trio.transports import (
    listen_websocket,
    memory_pair,
    open_websocket_channel,
    read_lock_file,
)
from tests.server.conftest import harbour, nothing
from tests.transports.http.conftest import certificate

STATELESS = "2026-07-28"
EVERYTHING = {"tools", "resources", "prompts"}
ALL_LISTS = {f"{kind}ListChanged": True for kind in EVERYTHING}
METADATA = {PROTOCOL_VERSION: STATELESS, CLIENT_CAPABILITIES: {}}
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
UPDATED = "notifications/resources/updated"
CHANGED = "notifications/{}/list_changed"


@pytest.fixture
def server():
    return harbour()


@pytest.fixture
def stateless(serve):
    return partial(serve, protocol_version=STATELESS)


async def listen(asker, **wishes):
    """Begin a subscription; its id, and what was acknowledged."""
    id_ = await asker.begin("subscriptions/listen", {"notifications": wishes})
    acknowledged = await asker.wire.receive()
    assert acknowledged["method"] == ACKNOWLEDGED
    assert acknowledged["params"]["_meta"] == {SUBSCRIPTION_ID: id_}
    return id_, acknowledged["params"]["notifications"]


def notifications_of(messages):
    """The notifications, each with its subscription and its URI."""
    return [
        (m["method"], m["params"]["_meta"][SUBSCRIPTION_ID], m["params"].get("uri"))
        for m in messages
    ]


# Notifications.


@pytest.mark.requirement("SUB-03", "SUB-04", "SUB-08", "META-20", "TOOL-36", "RES-14", "PROM-12")
@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("tools", lambda s: s.tool(name="n")(nothing)),
        ("prompts", lambda s: s.prompt(name="n")(nothing)),
        ("resources", lambda s: s.resource("x:1")(nothing)),
    ],
)
async def test_a_subscribed_list_is_announced_when_it_changes(server, stateless, kind, change):
    asker = await stateless(server)
    id_, honoured = await listen(asker, **{f"{kind}ListChanged": True})
    assert honoured == {f"{kind}ListChanged": True}
    change(server)
    assert notifications_of([await asker.wire.receive()]) == [(CHANGED.format(kind), id_, None)]


@pytest.mark.requirement("SUB-02", "SUB-06")
@pytest.mark.parametrize("wishes", [{}, {"toolsListChanged": False}, {"promptsListChanged": True}])
async def test_changes_without_a_subscription_are_not_sent(server, stateless, wishes):
    asker = await stateless(server)
    _, honoured = await listen(asker, **wishes)
    assert honoured == {name: wish for name, wish in wishes.items() if wish}
    server.tool(name="n")(nothing)
    server.resource("x:1")(nothing)
    server.resource_updated("harbour://tide")
    assert await asker.wire.receive_available() == []


@pytest.mark.requirement("SUB-03", "RES-15")
async def test_updates_of_the_subscribed_resources_are_sent(server, stateless):
    asker = await stateless(server)
    uris = ["harbour://tide", "harbour://oslo/tide", "harbour://tide"]
    id_, honoured = await listen(asker, resourceSubscriptions=uris)
    assert honoured == {"resourceSubscriptions": uris[:2]}
    for uri in ("harbour://oslo/tide", "harbour://lima/tide", "harbour://tide"):
        server.resource_updated(uri)
    assert notifications_of(await asker.wire.receive_available()) == [
        (UPDATED, id_, "harbour://oslo/tide"),
        (UPDATED, id_, "harbour://tide"),
    ]


@pytest.mark.requirement("SUB-06")
async def test_lists_that_the_server_does_not_offer_are_omitted_not_rejected(stateless):
    server = Server("harbour", offers={"prompts"})
    asker = await stateless(server)
    uris = ["harbour://tide"]
    _, honoured = await listen(asker, **ALL_LISTS, resourceSubscriptions=uris)
    assert honoured == {"promptsListChanged": True}


@pytest.mark.requirement("SUB-06")
async def test_resources_that_do_not_exist_are_omitted_from_a_subscription(server, stateless):
    asker = await stateless(server)
    uris = ["harbour://none", "harbour://tide", "harbour://../tide"]
    _, honoured = await listen(asker, resourceSubscriptions=uris)
    assert honoured == {"resourceSubscriptions": ["harbour://tide"]}


@pytest.mark.requirement("SUB-01")
@pytest.mark.parametrize("params", [{}, {"notifications": None}, {"notifications": []}])
async def test_a_subscription_without_a_filter_is_rejected(server, stateless, params):
    asker = await stateless(server)
    assert (await asker.error("subscriptions/listen", params))["code"] == -32602


async def test_a_list_that_became_empty_is_still_announced(stateless):
    server = Server("harbour")
    server.tool(name="last")(nothing)
    asker = await stateless(server)
    id_, _ = await listen(asker, toolsListChanged=True)
    server.remove_tool("last")
    assert notifications_of(await asker.wire.receive_available()) == [
        (CHANGED.format("tools"), id_, None)
    ]


@pytest.mark.requirement("SUB-05", "TRAP-105")
async def test_a_change_before_the_acknowledgement_is_announced_after_it(nursery, autojump_clock):
    limits = Limits(messages=MessageLimits(send_queue_bytes_max=1000))
    server = Server("harbour", offers=EVERYTHING, limits=limits)

    @server.tool
    async def chatter(ctx: Context) -> None:
        for number in range(100):
            await ctx.report_progress(number)

    ours, theirs = memory_pair(buffer_bytes_max=256)
    await nursery.start(server.serve, theirs)
    peer = WirePeer(ours)
    meta = {**METADATA, "progressToken": 1}
    await peer.send_request("tools/call", {"name": "chatter", "_meta": meta}, id=1)
    await trio.testing.wait_all_tasks_blocked()
    params = {"notifications": ALL_LISTS, "_meta": METADATA}
    await peer.send_request("subscriptions/listen", params, id=2)
    await trio.testing.wait_all_tasks_blocked()  # it is full: the acknowledgement waits for room
    server.tool(name="n")(nothing)
    tagged = [
        message["method"]
        for message in await peer.receive_available()
        if SUBSCRIPTION_ID in message.get("params", {}).get("_meta", {})
    ]
    assert tagged == [ACKNOWLEDGED, CHANGED.format("tools")]


@pytest.mark.requirement("SUB-08", "TRAP-106")
@pytest.mark.parametrize("id_", [7, "7", "", 2**60])
async def test_a_subscription_has_the_id_of_its_request_with_its_type(server, stateless, id_):
    asker = await stateless(server)
    params = {"notifications": {"toolsListChanged": True}, "_meta": asker.metadata}
    await asker.wire.send_request("subscriptions/listen", params, id=id_)
    await trio.testing.wait_all_tasks_blocked()
    server.tool(name="n")(nothing)
    messages = await asker.wire.receive_available()
    assert [m["params"]["_meta"][SUBSCRIPTION_ID] for m in messages] == [id_] * 2
    assert all(type(m["params"]["_meta"][SUBSCRIPTION_ID]) is type(id_) for m in messages)


@pytest.mark.requirement("SUB-10")
async def test_each_of_several_subscriptions_has_its_own_notifications(server, stateless):
    asker = await stateless(server)
    first, _ = await listen(asker, toolsListChanged=True)
    second, _ = await listen(asker, **ALL_LISTS)
    server.tool(name="n")(nothing)
    server.prompt(name="n")(nothing)
    notifications = notifications_of(await asker.wire.receive_available())
    assert sorted(notifications) == sorted(
        [
            (CHANGED.format("tools"), first, None),
            (CHANGED.format("tools"), second, None),
            (CHANGED.format("prompts"), second, None),
        ]
    )


async def test_changes_in_threads_are_announced(server, stateless):
    asker = await stateless(server)
    id_, _ = await listen(asker, resourceSubscriptions=["harbour://tide"])
    thread = threading.Thread(target=partial(server.resource_updated, "harbour://tide"))
    thread.start()
    await trio.to_thread.run_sync(thread.join)
    assert notifications_of([await asker.wire.receive()]) == [(UPDATED, id_, "harbour://tide")]


@pytest.mark.requirement("SUB-11", "LOG-10")
async def test_logs_and_progress_belong_to_their_request_and_to_no_subscription(server, stateless):
    @server.tool
    async def sail(ctx: Context) -> None:
        await ctx.info("under way")
        await ctx.report_progress(1)

    asker = await stateless(server)
    await listen(asker, **ALL_LISTS)
    meta = {"progressToken": "t", "io.modelcontextprotocol/logLevel": "debug"}
    await asker.result("tools/call", {"name": "sail", "_meta": meta})
    log, progress = asker.received
    assert (log["method"], progress["method"]) == (
        "notifications/message",
        "notifications/progress",
    )
    for message in (log, progress):
        assert SUBSCRIPTION_ID not in message["params"].get("_meta", {})


@pytest.mark.requirement("RES-16")
@pytest.mark.parametrize("method", ["resources/subscribe", "resources/unsubscribe"])
async def test_the_legacy_methods_are_gone(server, stateless, method):
    asker = await stateless(server)
    assert (await asker.error(method, {"uri": "harbour://tide"}))["code"] == -32601


@pytest.mark.parametrize(
    "protocol_version", [n for n in PROTOCOL_VERSIONS if PROTOCOL_VERSIONS[n].has_handshake]
)
async def test_legacy_clients_cannot_listen_and_receive_notifications_as_before(
    server, serve, protocol_version
):
    asker = await serve(server, protocol_version=protocol_version)
    error = await asker.error("subscriptions/listen", {"notifications": ALL_LISTS})
    assert error["code"] in {-32601, -32602}
    server.tool(name="n")(nothing)
    assert await asker.wire.receive_available() == [
        {"jsonrpc": "2.0", "method": CHANGED.format("tools")}
    ]


async def test_a_client_without_a_subscription_receives_nothing(server, stateless):
    asker = await stateless(server)
    server.tool(name="n")(nothing)
    assert await asker.wire.receive_available() == []


# The end of a subscription.


@pytest.mark.requirement("SUB-12", "SUB-13")
async def test_a_cancelled_subscription_sends_nothing_more(server, stateless):
    asker = await stateless(server)
    gone, _ = await listen(asker, toolsListChanged=True)
    kept, _ = await listen(asker, toolsListChanged=True)
    server.tool(name="a")(nothing)
    await asker.wire.cancel(gone)
    await trio.testing.wait_all_tasks_blocked()
    before = notifications_of(await asker.wire.receive_available())
    assert before[-1][1] == kept
    server.tool(name="b")(nothing)
    assert notifications_of(await asker.wire.receive_available()) == [
        (CHANGED.format("tools"), kept, None)
    ]
    assert len(server._change_notifier.listeners) == 2  # the other one, and the session's announcer


@pytest.mark.requirement("SUB-14", "SUB-15", "SUB-08", "TRAP-104", "CANC-18")
@pytest.mark.parametrize("cause", ["closed", "signal"])
async def test_a_server_that_closes_answers_and_then_cancels(server, nursery, cause):
    ours, theirs = memory_pair()
    session = await nursery.start(server.serve, theirs)
    peer = WirePeer(ours)
    for id_ in ("a", 1):
        params = {"notifications": ALL_LISTS, "_meta": METADATA}
        await peer.send_request("subscriptions/listen", params, id=id_)
        await peer.receive()
    session.shut(cause)
    messages = await peer.receive_end()
    for id_ in ("a", 1):
        result, cancelled = [
            m for m in messages if m.get("id", m.get("params", {}).get("requestId")) == id_
        ]
        assert result["result"]["resultType"] == "complete"
        assert result["result"]["_meta"][SUBSCRIPTION_ID] == id_
        assert cancelled["method"] == "notifications/cancelled"
        assert cancelled["params"] == {"requestId": id_, "_meta": {SUBSCRIPTION_ID: id_}}
    assert len(messages) == 4


async def served_to_a_listener(server, nursery):
    """A session whose client listens to all lists, and that client."""
    ours, theirs = memory_pair()
    session = await nursery.start(server.serve, theirs)
    peer = WirePeer(ours)
    params = {"notifications": ALL_LISTS, "_meta": METADATA}
    await peer.send_request("subscriptions/listen", params, id=1)
    await peer.receive()
    return session, peer


async def test_pending_changes_are_sent_before_the_session_closes(server, nursery):
    session, peer = await served_to_a_listener(server, nursery)
    server.tool(name="n")(nothing)
    session.shut("closed")
    assert [m.get("method") for m in await peer.receive_end()] == [
        CHANGED.format("tools"),
        None,
        "notifications/cancelled",
    ]


async def test_a_client_that_disconnects_does_not_delay_the_end(server, nursery, autojump_clock):
    session, peer = await served_to_a_listener(server, nursery)
    began = trio.current_time()
    await peer.aclose()
    await session.ended.wait()
    assert trio.current_time() == began
    assert not server._change_notifier.listeners


# Limits.


async def test_the_rejection_of_too_many_subscriptions_names_the_limit(stateless):
    asker = await stateless(
        Server("harbour", offers=EVERYTHING, limits=Limits(requests=RequestLimits(listens_max=2)))
    )
    first, _ = await listen(asker, toolsListChanged=True)
    await listen(asker)
    error = await asker.error("subscriptions/listen", {"notifications": {}})
    assert error["message"] == "too many subscriptions (limits.requests.listens_max=2)"
    await asker.wire.cancel(first)
    await trio.testing.wait_all_tasks_blocked()
    await listen(asker)


async def test_the_resources_of_all_subscriptions_together_are_limited(stateless):
    server = Server("harbour", limits=Limits(requests=RequestLimits(subscriptions_max=3)))
    server.resource("x:{n}")(lambda n: n)
    asker = await stateless(server)
    await listen(asker, resourceSubscriptions=["x:1", "x:2"])
    wishes = {"resourceSubscriptions": ["x:1", "x:3"]}
    error = await asker.error("subscriptions/listen", {"notifications": wishes})
    assert error["message"] == "too many resources (limits.requests.subscriptions_max=3)"
    await listen(asker, resourceSubscriptions=["x:1"])


async def test_a_subscription_beyond_the_limits_is_not_examined(stateless, monkeypatch):
    server = Server(
        "harbour", limits=Limits(requests=RequestLimits(subscriptions_max=3, listens_max=1))
    )
    looked_for = []

    @server.resource("x:{n}")
    async def read(n: str) -> str:
        return n

    find = Registry.find_resource
    note = looked_for.append
    monkeypatch.setattr(Registry, "find_resource", lambda it, uri: note(uri) or find(it, uri))
    asker = await stateless(server)
    wishes = {"resourceSubscriptions": ["x:1", "x:2", "x:3", "x:4"]}
    error = await asker.error("subscriptions/listen", {"notifications": wishes})
    assert error["message"] == "too many resources (limits.requests.subscriptions_max=3)"
    await listen(asker, resourceSubscriptions=["x:1"])
    assert looked_for == ["x:1"]
    error = await asker.error("subscriptions/listen", {"notifications": wishes})
    assert error["message"] == "too many subscriptions (limits.requests.listens_max=1)"
    assert looked_for == ["x:1"]


async def test_subscriptions_use_no_handler_slots(stateless):
    server = Server("harbour", limits=Limits(requests=RequestLimits(in_flight_max=1, queued_max=0)))

    @server.tool
    async def sail() -> str:
        return "away"

    asker = await stateless(server)
    for _ in range(3):
        await listen(asker)
    assert await asker.call("sail") == "away"


# Hubs accept connections of servers and are their clients.


__all__ = ["certificate"]

SECONDS = 10.0
QUICK = Limits(http=HttpLimits(sse_retry_ms=10, reconnect_seconds_max=0.05))
LEGACY, STATELESS_HUB = "2025-11-25", "2026-07-28"


def worker(name="worker"):
    server = Server(name, limits=QUICK)

    @server.tool
    async def work() -> str:
        return f"{name} has done it"

    return server


def text(result):
    return result.content[0].text


@pytest.mark.parametrize("protocol_version", [LEGACY, STATELESS_HUB])
async def test_a_hub_uses_the_servers_that_dial(protocol_version):
    results = set()
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery, listen_websocket(token="sesame") as hub:
            assert hub.url.startswith("ws://127.0.0.1:")
            for name in ("one", "other"):
                nursery.start_soon(functools.partial(worker(name).dial, hub.url, token="sesame"))
            clients = []
            async for channel in hub:
                clients.append(Client(channel, protocol_versions=[protocol_version]))
                if len(clients) == 2:
                    break
            for client in clients:
                async with client:
                    results.add(text(await client.call_tool("work")))
            nursery.cancel_scope.cancel()
    assert results == {"one has done it", "other has done it"}


async def test_a_server_comes_back_when_its_connection_was_cut():
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery, listen_websocket() as hub:
            nursery.start_soon(worker().dial, hub.url)
            for _ in range(3):
                channel = await anext(hub)
                async with Client(channel) as client:
                    assert text(await client.call_tool("work")) == "worker has done it"
                    await trio.aclose_forcefully(channel._socket._stream.stream)
            nursery.cancel_scope.cancel()


async def test_a_server_comes_back_to_a_hub_that_was_away():
    states = []
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            async with listen_websocket() as hub:
                port = int(hub.url.rpartition(":")[2].partition("/")[0])
                dial = functools.partial(
                    worker().dial,
                    hub.url,
                    state_changed=lambda *change: states.append(change),
                )
                nursery.start_soon(dial)
                await anext(hub)
            async with listen_websocket(port=port) as hub, Client(await anext(hub)) as client:
                assert client.server_info.name == "worker"
            nursery.cancel_scope.cancel()
    assert [state for state, _why in states][:4] == ["connecting", "open", "retrying", "open"]


@pytest.mark.real_time
async def test_a_hub_accepts_only_servers_with_the_token():
    async with listen_websocket(token="sesame") as hub:
        for wrong in (None, "x"):
            with pytest.raises(ConnectionLost, match="HTTP 401"):
                await worker().dial(hub.url, token=wrong)
        with pytest.raises(ConnectionLost, match="HTTP 403"):
            await worker().dial(hub.url, token="sesame", headers={"Origin": "https://x.example"})
        with trio.move_on_after(0.05) as scope:
            await anext(hub)
        assert scope.cancelled_caught


async def test_a_lock_file_leads_a_server_to_its_hub(tmp_path):
    path = tmp_path / "hub.lock"
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery, listen_websocket(lock_path=path) as hub:
            lock = read_lock_file(path)
            assert lock.url == hub.url
            assert path.stat().st_mode & 0o777 == 0o600
            nursery.start_soon(functools.partial(worker().dial, lock.url, token=lock.token))
            async with Client(await anext(hub)) as client:
                assert text(await client.call_tool("work")) == "worker has done it"
            nursery.cancel_scope.cancel()
    assert not list(tmp_path.iterdir())


async def test_a_hub_is_notified_that_a_server_stops():
    with trio.fail_after(SECONDS):
        async with listen_websocket() as hub:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(worker().dial, hub.url)
                channel = await anext(hub)
                nursery.cancel_scope.cancel()
            assert await channel.receive() == []
            assert channel._socket._connection.closed.code == 1001
            await channel.aclose()


async def test_a_server_dials_with_tls(certificate):
    trusting = ssl.create_default_context(cafile=certificate["certfile"])
    trusting.check_hostname = False
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery, listen_websocket(**certificate) as hub:
            assert hub.url.startswith("wss://127.0.0.1:")
            nursery.start_soon(functools.partial(worker().dial, hub.url, ssl_context=trusting))
            async with Client(await anext(hub)) as client:
                assert text(await client.call_tool("work")) == "worker has done it"
            nursery.cancel_scope.cancel()


async def test_a_hub_with_an_untrusted_certificate_is_dialled_again_and_the_reason_reported(
    certificate,
):
    states, retrying = [], trio.Event()

    def note(state, why):
        states.append((state, why))
        if state == "retrying":
            retrying.set()

    with trio.fail_after(SECONDS):
        async with listen_websocket(**certificate) as hub, trio.open_nursery() as nursery:
            nursery.start_soon(functools.partial(worker().dial, hub.url, state_changed=note))
            await retrying.wait()
            nursery.cancel_scope.cancel()
    assert [state for state, _why in states] == ["connecting", "retrying", "closed"]
    assert "certificate" in states[1][1]


async def test_an_error_of_the_block_is_raised_without_a_group(tmp_path):
    path = tmp_path / "hub.lock"
    with pytest.raises(LookupError):
        async with listen_websocket(lock_path=path):
            raise LookupError
    assert not path.exists()


async def test_an_error_in_the_block_of_a_hub_keeps_its_cause():
    async def fail_in_a_hub():
        async with listen_websocket():
            try:
                raise KeyError("chart")
            except KeyError as error:
                raise LookupError("no sea") from error

    with pytest.raises(LookupError, match="no sea") as caught:
        await fail_in_a_hub()
    assert isinstance(caught.value.__cause__, KeyError)


async def test_a_server_that_was_not_received_is_notified_that_the_hub_stops():
    with trio.fail_after(SECONDS):
        async with listen_websocket() as hub:
            channel = await open_websocket_channel(hub.url)
        assert await channel.receive() == []
        await channel.aclose()


async def test_options_that_contradict_each_other_are_rejected():
    async def verify(_head):
        return "anybody"

    with pytest.raises(ValueError, match="token= or"):
        async with listen_websocket(token="x", auth=verify):
            pass


async def test_an_unknown_option_of_a_hub_is_rejected():
    with pytest.raises(TypeError, match="unexpected option 'tokn'; did you mean 'token'"):
        async with listen_websocket(tokn="sesame"):
            pass


@pytest.mark.real_time
async def test_a_server_that_disconnects_before_it_is_received_is_not_counted():
    async def opened():
        while True:
            try:
                return await open_websocket_channel(hub.url)
            except ConnectionLost:  # HTTP 503
                await trio.sleep(0.01)

    limits = Limits(
        http=HttpLimits(connections_max=2), websocket=WebSocketLimits(ping_interval_seconds=0.01)
    )
    with trio.fail_after(SECONDS):
        async with listen_websocket(limits=limits) as hub:
            for _ in range(4):
                await (await opened()).aclose()


async def test_receiving_in_another_task_ends_when_the_hub_stops():
    async def take(hub):
        async for channel in hub:
            await channel.aclose()

    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery, listen_websocket() as hub:
            nursery.start_soon(take, hub)
