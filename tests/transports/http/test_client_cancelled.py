"""A POST that is cancelled while its body is sent."""

import gc

import trio
import trio.testing

from mcp_trio.limits import MIB
from mcp_trio.transports import open_http_channel


async def test_a_cancelled_post_leaves_no_unfinished_generator(nursery):
    """Trio warns of an unfinished async generator, and warnings are errors in tests."""
    begun = trio.Event()

    async def never_read(stream):
        begun.set()
        await trio.sleep_forever()

    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nursery.start_soon(trio.serve_listeners, never_read, [listener])
    url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}/mcp"
    channel = await open_http_channel(url)
    frame = b'{"jsonrpc":"2.0","method":"n","params":{"a":"%s"}}' % (b"x" * 16 * MIB)
    async with trio.open_nursery() as sending:
        sending.start_soon(channel.send, [frame])
        await begun.wait()
        await trio.testing.wait_all_tasks_blocked(0.05)  # as much as the system takes is gone
        sending.cancel_scope.cancel()
    gc.collect()
    await channel.aclose()
    nursery.cancel_scope.cancel()
