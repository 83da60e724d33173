"""The HTTP client channel with a server that reads slowly."""

import httpx2
import trio

from mcp_trio.limits import DEFAULT_LIMITS
from mcp_trio.transports import open_http_channel
from tests.transports.http.scripted_server import URL

ANSWER = b'{"jsonrpc":"2.0","id":1,"result":{"x":"%b"}}' % (b"x" * 300_000)
SIZE = len(ANSWER)
BYTES_PER_SECOND = 10_000


class Slow(httpx2.AsyncBaseTransport):
    """A server that reads slowly, and stops after `bytes_max` bytes."""

    def __init__(self, library, bytes_max=SIZE):
        self.library = library
        self.bytes_max = bytes_max
        self.taken = b""

    async def handle_async_request(self, request):
        async for piece in request.stream:
            if len(self.taken) >= self.bytes_max:
                await trio.sleep_forever()
            await trio.sleep(len(piece) / BYTES_PER_SECOND)
            self.taken += piece
        return self.library.Response(202)


async def send_answer(server):
    channel = await open_http_channel(URL, http=server.library.AsyncClient(transport=server))
    await channel.send([ANSWER])
    await channel.aclose()
    return channel.bytes_sent


async def test_an_answer_is_sent_completely_to_a_server_that_reads_slowly(
    autojump_clock, caplog, library
):
    server = Slow(library)
    assert await send_answer(server) == SIZE
    assert server.taken == ANSWER
    assert trio.current_time() > DEFAULT_LIMITS.messages.write_stall_seconds
    assert caplog.text == ""


async def test_a_server_that_stops_reading_is_given_up(autojump_clock, caplog, library):
    server = Slow(library, bytes_max=100_000)
    await send_answer(server)
    assert len(server.taken) < SIZE
    assert "not accepted within 15 s" in caplog.text
