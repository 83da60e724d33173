"""The native listener's connections in time: who is too slow, and who goes away."""

import pytest
import trio
import trio.testing

from mcp_trio import Limits
from mcp_trio._transports.http_server import NativeHost
from mcp_trio.limits import KIB, HttpLimits, MessageLimits, ShutdownLimits

GET = b"GET /path HTTP/1.1\r\nHost: x\r\n\r\n"
LAST = b"GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


async def say_path(exchange):
    await exchange.answer(200, [], exchange.head.path.encode())


async def echo(exchange):
    await exchange.answer(200, [], await exchange.body(1000 * KIB))


async def settled():
    await trio.testing.wait_all_tasks_blocked()


# Time


async def test_late_headers_are_rejected(connect, autojump_clock):
    client = await connect(say_path, http=HttpLimits(headers_seconds=10))
    for byte in GET[:11]:
        client.put(bytes([byte]))
        await trio.sleep(0.9)
    assert client.statuses() == []
    await trio.sleep(0.2)
    assert client.statuses() == [408]
    assert client.is_shut
    await trio.sleep(10)
    assert client.is_closed


async def test_a_stalled_body_is_rejected_by_the_host(connect, autojump_clock, caplog):
    client = await connect(echo, http=HttpLimits(body_seconds=10))
    client.put(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")
    await trio.sleep(9)
    client.put(b"a")
    await trio.sleep(0.9)
    assert client.statuses() == []
    await trio.sleep(0.2)
    assert client.statuses() == [408]
    assert caplog.records == []


async def test_a_large_body_may_take_its_time_as_long_as_it_comes(connect, autojump_clock):
    client = await connect(echo, http=HttpLimits(body_seconds=10))
    size = 256 * KIB
    client.put(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size)
    for _ in range(32):
        client.put(b"x" * (size // 32))
        await trio.sleep(1)
    assert client.statuses() == [200]


async def test_an_idle_connection_is_closed_without_an_answer(connect, autojump_clock):
    client = await connect(say_path, http=HttpLimits(idle_seconds=80))
    await trio.sleep(50)
    client.put(GET)
    await trio.sleep(79)
    assert not client.is_closed
    await trio.sleep(22)
    assert client.is_closed
    assert client.statuses() == [200]


async def test_a_connection_without_a_request_is_idle(connect, autojump_clock):
    client = await connect(say_path, http=HttpLimits(idle_seconds=80))
    await trio.sleep(101)
    assert client.is_closed
    assert client.sent == b""


async def test_a_request_may_take_longer_than_a_connection_may_be_idle(connect, autojump_clock):
    async def respond(exchange):
        await trio.sleep(1000)
        await say_path(exchange)

    client = await connect(respond, http=HttpLimits(idle_seconds=80))
    client.put(GET)
    await trio.sleep(1001)
    assert client.statuses() == [200]
    assert not client.is_closed


async def test_a_request_that_meets_the_end_of_an_idle_connection_is_not_begun(new_client, connect):
    calls = []

    async def respond(exchange):
        calls.append(exchange)

    client = new_client()
    host = NativeHost(respond=respond, limits=Limits())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(host.serve, client)
        await settled()
        [connection] = host._connections
        client.put(GET)
        connection.end()
    assert calls == []
    assert client.is_closed


async def test_a_client_that_reads_nothing_breaks_its_exchange(connect, autojump_clock):
    errors = []

    async def respond(exchange):
        await exchange.start(200, [])
        with pytest.raises(trio.BrokenResourceError, match="30") as caught:
            await exchange.send(b"x" * 1000)
        errors.append(caught.value)
        with pytest.raises(trio.BrokenResourceError, match="broken"):
            await exchange.end()

    client = await connect(respond, room=500, messages=MessageLimits(write_stall_seconds=30))
    client.put(GET)
    await trio.sleep(29)
    assert not errors
    client.read(10)
    await trio.sleep(29)
    assert not errors
    await trio.sleep(2)
    assert errors
    assert client.is_closed
    assert not client.is_shut


@pytest.mark.parametrize("room", [0, 100])
async def test_a_slow_reader_gets_everything(connect, autojump_clock, room):
    whole = bytes(range(256)) * 4

    async def respond(exchange):
        await exchange.answer(200, [], whole)

    client = await connect(respond, room=room)
    client.put(GET)
    for _ in range(130):
        await trio.sleep(1)
        client.read(10)
    await settled()
    assert client.sent.endswith(b"\r\n\r\n" + whole)


async def test_an_answer_that_is_cancelled_in_the_middle_is_the_last(connect, autojump_clock):
    async def respond(exchange):
        await exchange.start(200, [])
        with trio.move_on_after(1):
            await exchange.send(b"x" * 1000)
        with pytest.raises(trio.BrokenResourceError):
            await exchange.send(b"y")

    client = await connect(respond, room=500)
    client.put(GET)
    await trio.sleep(2)
    assert client.is_closed
    assert len(client.sent) == 500


async def test_a_client_is_waited_for_until_it_has_read_its_rejection(connect, autojump_clock):
    client = await connect(say_path, shutdown=ShutdownLimits(close_seconds=2))
    client.put(b"nonsense\r\n\r\n" + b"x" * 100_000)
    await trio.sleep(1)
    assert (client.is_shut, client.is_closed) == (True, False)
    client.close_sending()
    await settled()
    assert client.is_closed


async def test_a_client_that_sends_on_after_its_rejection_is_cut_off(connect, autojump_clock):
    client = await connect(say_path, shutdown=ShutdownLimits(close_seconds=2))
    client.put(b"nonsense\r\n\r\n")
    for _ in range(15):
        client.put(b"x" * 1000)
        await trio.sleep(0.1)
    assert not client.is_closed
    await trio.sleep(0.6)
    assert client.is_closed


# The client's going away


async def test_data_sent_during_an_answer_are_the_next_request(connect):
    go_on = trio.Event()

    async def respond(exchange):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(exchange.gone)
            await go_on.wait()
            nursery.cancel_scope.cancel()
        await say_path(exchange)

    client = await connect(respond)
    client.put(GET)
    await settled()
    client.put(LAST[:20])
    await settled()
    client.put(LAST[20:])
    await settled()
    go_on.set()
    await settled()
    assert client.statuses() == [200, 200]
    assert client.sent.endswith(b"/last")


async def test_at_most_one_set_of_headers_is_read_ahead(connect):
    async def respond(exchange):
        await exchange.gone()

    client = await connect(respond, http=HttpLimits(headers_bytes_max=1000))
    client.put(GET)
    await settled()
    client.put(b"x" * 200_000)
    await settled()
    assert 100_000 < len(client._arrived) < 200_000
    assert not client.is_closed


async def test_a_disconnect_is_noticed_after_the_body(connect):
    order = []

    async def wait_gone(exchange):
        await exchange.gone()
        order.append("gone")

    async def respond(exchange):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_gone, exchange)
            for _ in range(5):
                await trio.lowlevel.checkpoint()
            order.append(await exchange.body(10))

    client = await connect(respond)
    client.put(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc")
    client.close_sending()
    await settled()
    assert order == [b"abc", "gone"]


@pytest.mark.parametrize("go_away", ["close_sending", "reset"])
async def test_nothing_can_be_sent_to_a_disconnected_client(connect, caplog, go_away):
    async def respond(exchange):
        await exchange.gone()
        await say_path(exchange)

    client = await connect(respond)
    client.put(GET)
    await settled()
    getattr(client, go_away)()
    await settled()
    assert client.is_closed
    assert client.sent == b""
    assert caplog.records == []


@pytest.mark.parametrize(
    "sent", [b"", GET[:10], b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\na"]
)
async def test_a_disconnect_between_requests_is_not_logged(connect, caplog, sent):
    client = await connect(echo)
    client.put(sent)
    await settled()
    client.close_sending()
    await settled()
    assert client.is_closed
    assert client.statuses() in ([], [400])
    assert caplog.records == []


async def test_a_reset_breaks_the_write(connect, caplog):
    begun, go_on = trio.Event(), trio.Event()

    async def respond(exchange):
        begun.set()
        await go_on.wait()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(exchange.answer, 200, [])

    client = await connect(respond)
    client.put(GET)
    await begun.wait()
    client.reset()
    go_on.set()
    await settled()
    assert client.is_closed
    assert caplog.records == []


async def test_pipelined_requests_do_not_delay_other_connections(connect):
    paths = []

    async def respond(exchange):
        paths.append(exchange.head.path)
        await say_path(exchange)

    hasty, patient = await connect(respond), await connect(respond)
    hasty.put(GET * 100)
    patient.put(LAST)
    await settled()
    assert len(paths) == 101
    assert paths.index("/last") < 5


async def test_an_answer_that_is_not_ended_is_the_last_and_lacks_its_end(connect):
    async def respond(exchange):
        await exchange.start(200, [])
        await exchange.send(b"half")

    client = await connect(respond)
    client.put(GET + LAST)
    await settled()
    assert client.statuses() == [200]
    assert client.sent.endswith(b"\r\n4\r\nhalf\r\n")
    assert client.is_shut


async def test_a_spurious_wakeup_is_waited_out(connect):
    """As the system may say of a packet whose sum turns out to be wrong."""
    client = await connect(say_path, false_alarms=3)
    client.put(GET)
    await settled()
    assert client.statuses() == [200]
