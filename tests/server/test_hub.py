"""Hubs: they take the connections of servers that dial, and are their clients."""

import functools
import ssl

import pytest
import trio

from mcp_trio import Client, ConnectionLost, Limits, Server
from mcp_trio.limits import HttpLimits, WebSocketLimits
from mcp_trio.transports import listen_websocket, open_websocket_channel, read_lock_file
from tests.transports.http.conftest import certificate

__all__ = ["certificate"]

SECONDS = 10.0
QUICK = Limits(http=HttpLimits(sse_retry_ms=10, reconnect_seconds_max=0.05))
LEGACY, STATELESS = "2025-11-25", "2026-07-28"


def worker(name="worker"):
    server = Server(name, limits=QUICK)

    @server.tool
    async def work() -> str:
        return f"{name} has done it"

    return server


def text(result):
    return result.content[0].text


@pytest.mark.parametrize("protocol_version", [LEGACY, STATELESS])
async def test_a_hub_uses_the_servers_that_dial(protocol_version):
    said = set()
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
                    said.add(text(await client.call_tool("work")))
            nursery.cancel_scope.cancel()
    assert said == {"one has done it", "other has done it"}


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
                    worker().dial, hub.url, state_changed=lambda *told: states.append(told)
                )
                nursery.start_soon(dial)
                await anext(hub)
            async with listen_websocket(port=port) as hub, Client(await anext(hub)) as client:
                assert client.server_info.name == "worker"
            nursery.cancel_scope.cancel()
    assert [state for state, _why in states][:4] == ["connecting", "open", "retrying", "open"]


@pytest.mark.real_time
async def test_only_who_has_the_token_is_taken():
    async with listen_websocket(token="sesame") as hub:
        for wrong in (None, "x"):
            with pytest.raises(ConnectionLost, match="HTTP 401"):
                await worker().dial(hub.url, token=wrong)
        with pytest.raises(ConnectionLost, match="HTTP 403"):
            await worker().dial(hub.url, token="sesame", headers={"Origin": "https://x.example"})
        with trio.move_on_after(0.05) as patience:
            await anext(hub)
        assert patience.cancelled_caught


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


async def test_a_hub_is_told_that_a_server_stops():
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


async def test_a_hub_whom_nobody_vouches_for_is_dialled_again_and_told_why(certificate):
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


async def test_what_the_block_raises_leaves_it_bare(tmp_path):
    path = tmp_path / "hub.lock"
    with pytest.raises(LookupError):
        async with listen_websocket(lock_path=path):
            raise LookupError
    assert not path.exists()


async def test_who_was_not_taken_is_told_that_the_hub_stops():
    with trio.fail_after(SECONDS):
        async with listen_websocket() as hub:
            channel = await open_websocket_channel(hub.url)
        assert await channel.receive() == []
        await channel.aclose()


async def test_options_that_contradict_each_other_are_rejected():
    async def verify(_head):
        return "anybody"

    with pytest.raises(ValueError, match="token= or verify="):
        async with listen_websocket(token="x", verify=verify):
            pass


@pytest.mark.real_time
async def test_who_has_gone_before_it_was_taken_keeps_no_place():
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


async def test_whoever_takes_in_another_task_is_done_when_the_hub_stops():
    async def take(hub):
        async for channel in hub:
            await channel.aclose()

    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery, listen_websocket() as hub:
            nursery.start_soon(take, hub)
