"""What stands between hypercorn's protocols and the application: its bytes, its times, its end."""

import socket

import attrs
import pytest
import trio
import trio.testing
from hypercorn.config import Config

from mcp_trio._transports.asgi import AsgiHost
from mcp_trio._transports.hypercorn import BoundedStream, HypercornConnection, addresses_of
from mcp_trio.limits import DEFAULT_LIMITS, HttpLimits
from tests.transports.http.conftest import say_hello


@pytest.fixture
def opened(open_host):
    async def opened(respond, **limits):
        return await open_host("hypercorn", respond, **limits)

    return opened


async def test_a_body_that_is_there_is_read_without_a_timer(opened, monkeypatch):
    bodies = []

    async def respond(exchange):
        with monkeypatch.context() as timeless:
            timeless.setattr(trio, "move_on_after", None)
            bodies.append(await exchange.body(100))
        await say_hello(exchange)

    client = await (await opened(respond)).connect()
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n"
    await client.put(head + b"{}")
    assert (await client.stream.receive_some()).startswith(b"HTTP/1.1 200 ")
    assert bodies == [b"{}"]


async def test_a_client_that_has_sent_nothing_yet_is_idle(opened, mock_clock):
    client = await (await opened(say_hello, http=HttpLimits(idle_seconds=2))).connect()
    await trio.testing.wait_all_tasks_blocked(0.01)
    mock_clock.jump(4)
    assert await client.rest() == b""


# The bytes


@attrs.define(eq=False)
class ScriptedEnds:
    """Gives what stands in a list, and raises what is an exception."""

    script: list
    written: list = attrs.field(factory=list)
    is_closed: bool = False

    def read_nowait(self):
        said = self.script.pop(0)
        if isinstance(said, Exception):
            raise said
        return said

    def write_nowait(self, data):
        self.written.append(data)
        return len(data)

    async def wait_readable(self):
        await trio.lowlevel.checkpoint()

    def close(self):
        self.is_closed = True


async def test_a_false_alarm_is_waited_out_and_a_broken_connection_is_at_its_end():
    stream = BoundedStream(
        ScriptedEnds([BlockingIOError(), b"a", ConnectionAbortedError()]), DEFAULT_LIMITS
    )
    assert await stream.receive_some() == b"a"
    assert not stream.has_ended.is_set()
    assert await stream.receive_some() == b""
    assert stream.has_ended.is_set()


async def test_what_is_held_leaves_with_what_comes_next():
    ends = ScriptedEnds([])
    stream = BoundedStream(ends, DEFAULT_LIMITS)
    stream.is_holding = True
    assert stream.send_nowait(b"head, ") == b""
    assert (ends.written, stream.has_held) == ([], True)
    stream.is_holding = False
    await stream.send_all(b"body")
    assert (ends.written, stream.has_held) == ([b"head, body"], False)


async def test_a_client_that_keeps_a_closed_connection_open_is_aborted():
    ends = ScriptedEnds([])
    stream = BoundedStream(ends, DEFAULT_LIMITS)
    connection = HypercornConnection(None, stream, DEFAULT_LIMITS, None, None)
    stream.has_ended.set()
    connection.end()
    assert ends.is_closed


@attrs.define(eq=False)
class LastMomentEnds(ScriptedEnds):
    """A request comes just when its connection is ended, for it has been idle for so long."""

    connection: HypercornConnection | None = None

    def read_nowait(self):
        self.connection.end()
        return super().read_nowait()

    async def wait_readable(self):
        await trio.lowlevel.checkpoint()
        if not self.script:
            await trio.sleep_forever()

    def shut_writing(self):
        self.is_closed = True


async def test_a_request_of_the_last_moment_is_answered(nursery, autojump_clock):
    async def respond(exchange):
        await trio.sleep(1)
        await say_hello(exchange)

    ends = LastMomentEnds([b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"])
    stream = BoundedStream(ends, DEFAULT_LIMITS)
    ends.connection = HypercornConnection(AsgiHost(respond), stream, DEFAULT_LIMITS, None, None)
    nursery.start_soon(ends.connection.serve, Config(), None)
    await trio.sleep(2)
    assert b"".join(ends.written).endswith(b"hello")
    nursery.cancel_scope.cancel()


async def test_a_client_may_have_no_address_or_be_gone_already():
    for family, is_gone in ((socket.AF_UNIX, False), (socket.AF_INET, True)):
        listener = socket.socket(family)
        with listener:
            listener.bind("" if family is socket.AF_UNIX else ("127.0.0.1", 0))
            listener.listen()
            client = trio.socket.socket(family)
            await client.connect(listener.getsockname())
            stream = trio.SocketStream(client)
            if is_gone:
                client.close()
            assert addresses_of(stream) == (None, None)
            await stream.aclose()
