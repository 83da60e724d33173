"""A real server that ends and comes back, over each transport."""

from functools import partial

import pytest
import trio
import trio.testing

from mcp_trio import Client, ConnectionLost, RequestError, Server
from mcp_trio.errors import OutcomeUnknown

WAYS = {
    "stateless": ("/mcp", "2026-07-28"),
    "legacy": ("/mcp", "2025-11-25"),
    "HTTP+SSE": ("/sse", "2024-11-05"),
}
pytestmark = [
    pytest.mark.real_time,
    pytest.mark.parametrize("way", WAYS),
    pytest.mark.requirement("HTTP-52", "TRAP-133"),
]


class Harbour:
    """A server that can be stopped and started at one port; `calls` are those that came."""

    def __init__(self, nursery):
        self.nursery, self.port, self.calls = nursery, 0, []
        self.life = None

    def server(self):
        made = Server("harbour")

        @made.tool
        async def call(*, waits: bool = False) -> int:
            self.calls.append(waits)
            if waits:
                await trio.sleep_forever()
            return len(self.calls)

        return made

    async def start(self):
        self.stopped = trio.Event()
        url, self.life = await self.nursery.start(self._serve)
        self.port = int(url.partition("//")[2].partition(":")[2].partition("/")[0])
        return url.removesuffix("/mcp")

    async def _serve(self, *, task_status):
        with trio.CancelScope() as life:
            async with trio.open_nursery() as nursery:
                serve = partial(self.server().serve_http, port=self.port)
                task_status.started((await nursery.start(serve), life))
        self.stopped.set()

    async def stop(self):
        self.life.cancel()
        await self.stopped.wait()


@pytest.fixture
async def harbour(nursery):
    yield Harbour(nursery)
    nursery.cancel_scope.cancel()


def client_of(way, base):
    path, protocol_version = WAYS[way]
    return Client(base + path, protocol_versions=(protocol_version,))


async def test_the_first_call_after_a_restart_succeeds(harbour, way):
    base = await harbour.start()
    with trio.fail_after(20):
        async with client_of(way, base) as client:
            assert client.protocol_version == WAYS[way][1]
            assert await client.call_tool("call", result_type=int) == 1
            await harbour.stop()
            for _ in range(2):
                with pytest.raises(ConnectionLost) as lost:
                    await client.call_tool("call")
                assert not isinstance(lost.value, OutcomeUnknown)
            await harbour.start()
            assert await client.call_tool("call", result_type=int) == 2
            assert await client.call_tool("call", result_type=int) == 3
    assert harbour.calls == [False] * 3


async def test_only_the_calls_in_flight_fail(harbour, way):
    base = await harbour.start()
    with trio.fail_after(20):
        async with client_of(way, base) as client:

            async def wait():
                # A server that stops in its own time may still say so.
                with pytest.raises((OutcomeUnknown, RequestError)):
                    await client.call_tool("call", {"waits": True})

            async with trio.open_nursery() as calls:
                for _ in range(3):
                    calls.start_soon(wait)
                while len(harbour.calls) < 3:
                    await trio.sleep(0.01)
                await harbour.stop()
            await harbour.start()
            assert await client.call_tool("call", result_type=int) == 4
    assert harbour.calls == [True] * 3 + [False]


async def test_a_server_that_was_replaced_unnoticed_serves_the_next_call(harbour, way):
    base = await harbour.start()
    with trio.fail_after(20):
        async with client_of(way, base) as client:
            await client.call_tool("call")
            await harbour.stop()
            await harbour.start()
            assert await client.call_tool("call", result_type=int) == 2
