"""A client of a URL whose server ends and comes back."""

from functools import partial

import pytest
import trio

from mcp_trio import Client, ConnectionLost, RequestError, Server
from mcp_trio.errors import OutcomeUnknown


def make_server():
    server = Server("harbour")
    calls = []

    @server.tool
    async def call(*, waits: bool = False) -> int:
        calls.append(waits)
        if waits:
            await trio.sleep_forever()
        return len(calls)

    return server, calls


async def serve(server, port, *, task_status):
    """Serve until cancelled; reports the URL and what ends it."""
    async with trio.open_nursery() as nursery:
        url = await nursery.start(partial(server.serve_http, port=port))
        task_status.started((url, nursery.cancel_scope))
        await trio.sleep_forever()


def port_of(url):
    return int(url.partition("//")[2].partition(":")[2].partition("/")[0])


@pytest.mark.requirement("HTTP-52", "TRAP-34")
@pytest.mark.parametrize("protocol_version", ["2025-11-25", "2026-07-28"])
async def test_a_server_that_comes_back_serves_the_next_call(nursery, protocol_version):
    server, calls = make_server()
    url, life = await nursery.start(serve, server, 0)
    async with Client(url, protocol_versions=(protocol_version,)) as client:
        assert (await client.call_tool("call", result_type=int)) == 1
        life.cancel()
        await trio.testing.wait_all_tasks_blocked(0.05)
        with pytest.raises(ConnectionLost) as lost:
            await client.call_tool("call")
        assert not isinstance(lost.value, OutcomeUnknown)
        _, life = await nursery.start(serve, server, port_of(url))
        assert (await client.call_tool("call", result_type=int)) == 2
    assert calls == [False, False]
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("protocol_version", ["2025-11-25", "2026-07-28"])
async def test_a_call_in_flight_is_not_made_again_by_itself(nursery, protocol_version):
    server, calls = make_server()
    url, life = await nursery.start(serve, server, 0)
    async with Client(url, protocol_versions=(protocol_version,)) as client:

        async def wait():
            with pytest.raises((ConnectionLost, RequestError), match="clos"):
                await client.call_tool("call", {"waits": True})

        async with trio.open_nursery() as calling:
            calling.start_soon(wait)
            while not calls:
                await trio.sleep(0.01)
            life.cancel()
    assert calls == [True]
    nursery.cancel_scope.cancel()


async def test_the_state_of_the_connection_is_reported(nursery):
    server, _ = make_server()
    told = []
    url, _ = await nursery.start(serve, server, 0)
    async with Client(url, state_changed=lambda state, _why: told.append(state)) as client:
        await client.ping()
    assert told[0] in {"connecting", "open"}
    assert told[-1] == "closed"
    nursery.cancel_scope.cancel()
