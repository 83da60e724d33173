"""What every host promises about connections: those that are lost, kept, refused and stopped."""

import sys

import pytest
import trio
import trio.testing

from mcp_trio.limits import HttpLimits, MessageLimits, ShutdownLimits
from tests.transports.http.conftest import pouring, say_goodbye, say_hello

SECONDS = 5.0  # for what takes milliseconds


async def test_a_client_that_closes_while_its_answer_is_computed_is_gone(opened):
    begun, is_gone = trio.Event(), trio.Event()

    async def respond(exchange):
        await exchange.body(100)
        begun.set()
        await exchange.gone()
        is_gone.set()

    client = await (await opened(respond)).connect()
    await client.ask("POST", body=b"{}")
    await begun.wait()
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert not is_gone.is_set()
    await client.aclose()
    await is_gone.wait()


@pytest.mark.requirement("HTTP-25", "TRAP-38")
async def test_a_disconnect_does_not_cancel_the_application(opened):
    begun, has_closed, is_done = trio.Event(), trio.Event(), trio.Event()
    bodies = []

    async def respond(exchange):
        bodies.append(await exchange.body(100))
        begun.set()
        await has_closed.wait()
        await trio.testing.wait_all_tasks_blocked(0.02)
        is_done.set()
        await exchange.answer(202, [])

    client = await (await opened(respond)).connect()
    await client.ask("POST", body=b"{}")
    await begun.wait()
    await client.aclose()
    has_closed.set()
    with trio.fail_after(SECONDS):
        await is_done.wait()
    assert bodies == [b"{}"]


@pytest.mark.requirement("HTTP-25")
async def test_a_request_is_served_although_its_client_closed_at_once(opened):
    bodies = []
    is_done = trio.Event()

    async def respond(exchange):
        bodies.append(await exchange.body(100))
        await trio.testing.wait_all_tasks_blocked(0.02)
        is_done.set()

    client = await (await opened(respond)).connect()
    await client.ask("POST", body=b"{}")
    await client.aclose()
    with trio.fail_after(SECONDS):
        await is_done.wait()
    assert bodies == [b"{}"]


async def test_a_client_that_closes_in_the_middle_of_a_stream_is_gone(opened):
    is_gone = trio.Event()
    errors = []

    async def respond(exchange):
        await exchange.start(200, [])
        await exchange.send(b"one")
        await exchange.gone()
        with pytest.raises(trio.BrokenResourceError) as caught:
            await exchange.send(b"two")
        errors.append(caught.value)
        is_gone.set()

    client = await (await opened(respond)).connect()
    await client.ask()
    await client.head()
    assert await client.piece() == b"one"
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert not is_gone.is_set()
    await client.aclose()
    await is_gone.wait()
    assert len(errors) == 1


async def test_a_half_closed_client_counts_as_disconnected(opened):
    is_gone = trio.Event()

    async def respond(exchange):
        await exchange.start(200, [])
        await exchange.gone()
        is_gone.set()

    client = await (await opened(respond)).connect()
    await client.ask()
    await client.head()
    await client.end_sending()
    await is_gone.wait()


async def test_a_client_whose_body_is_not_read_yet_is_not_gone(opened):
    order = []

    async def wait_gone(exchange):
        await exchange.gone()
        order.append("gone")

    async def respond(exchange):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_gone, exchange)
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert await exchange.body(100) == b"{}"
            await trio.testing.wait_all_tasks_blocked(0.01)
            order.append("read")
            nursery.cancel_scope.cancel()
        await say_hello(exchange)

    client = await (await opened(respond)).connect()
    assert (await client.exchange("POST", body=b"{}")).status == 200
    assert order == ["read"]


async def test_a_stream_to_a_disconnected_client_fails(opened):
    """Also where the application never asks whether somebody is there."""
    respond, errors = pouring(1000)
    client = await (await opened(respond)).connect()
    await client.ask()
    await client.head()
    await client.aclose()
    with trio.fail_after(SECONDS):
        await errors.receive()


@pytest.mark.real_time
async def test_a_client_that_reads_nothing_breaks_the_exchange(opened):
    respond, errors = pouring(100_000)
    client = await (
        await opened(respond, messages=MessageLimits(write_stall_seconds=0.2))
    ).connect()
    await client.ask()
    with trio.fail_after(SECONDS):
        await errors.receive()


async def test_disconnects_are_not_logged(opened, caplog):
    is_over = trio.Event()

    async def respond(exchange):
        await exchange.start(200, [])
        try:
            await exchange.gone()
            await exchange.send(b"too late")
        finally:
            is_over.set()

    host = await opened(respond)
    client = await host.connect()
    await client.ask()
    await client.head()
    await client.aclose()
    await is_over.wait()
    await host.stop()
    assert [each for each in caplog.records if each.levelname in {"WARNING", "ERROR"}] == []


# Connections


async def test_requests_follow_each_other_on_a_connection(opened):
    async def respond(exchange):
        await exchange.answer(200, [], await exchange.body(100))

    client = await (await opened(respond)).connect()
    for number in range(5):
        text = str(number).encode()
        assert (await client.exchange("POST", body=text)).body == text


async def test_pipelined_requests_are_answered_in_order(opened):
    async def respond(exchange):
        await exchange.answer(200, [], exchange.head.path.encode())

    client = await (await opened(respond)).connect()
    await client.put(
        b"".join(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % number for number in range(3))
        + b"GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    )
    received = await client.rest()
    bodies = [part.partition(b"HTTP/1.1")[0] for part in received.split(b"\r\n\r\n")[1:]]
    assert bodies == [b"/0", b"/1", b"/2", b"/last"]


async def test_connection_close_closes_the_connection(opened):
    client = await (await opened(say_hello)).connect()
    answer = await client.exchange(headers=[("Connection", "close")])
    assert answer.headers["connection"] == "close"
    assert await client.rest() == b""


async def test_a_stream_over_http_1_0_ends_with_the_connection(opened):
    async def respond(exchange):
        await exchange.start(200, [])
        await exchange.send(b"one")
        await exchange.send(b"two")
        await exchange.end()

    client = await (await opened(respond)).connect()
    await client.put(b"GET / HTTP/1.0\r\nHost: x\r\n\r\n")
    assert (await client.rest()).endswith(b"\r\n\r\nonetwo")


async def test_many_requests_are_served_at_the_same_time(opened):
    count = 50
    waiting = 0
    all_are_here = trio.Event()

    async def respond(exchange):
        nonlocal waiting
        waiting += 1
        if waiting == count:
            all_are_here.set()
        await all_are_here.wait()
        await exchange.answer(200, [], exchange.head.path.encode())

    host = await opened(respond)

    async def ask(number):
        client = await host.connect()
        assert (await client.exchange(target=f"/{number}")).body == b"/%d" % number

    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(ask, number)


async def test_connections_beyond_the_limit_are_rejected(opened_by_listener):
    host = await opened_by_listener(say_hello, http=HttpLimits(connections_max=2))
    first, second, third = [await host.connect() for _ in range(3)]
    await first.exchange()
    await second.exchange()
    rejection = b"HTTP/1.1 503 " if host.tls is None else b""  # over TLS, the handshake fails
    assert (await third.rest()).startswith(rejection)
    await second.aclose()
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert (await first.exchange()).status == 200
    assert (await (await host.connect()).exchange()).status == 200


async def test_an_idle_connection_is_closed(opened, mock_clock):
    client = await (await opened(say_hello, http=HttpLimits(idle_seconds=2))).connect()
    await client.exchange()
    await trio.testing.wait_all_tasks_blocked(0.01)
    mock_clock.jump(4)
    assert await client.rest() == b""


async def test_too_long_headers_are_rejected(opened):
    client = await (await opened(say_hello, http=HttpLimits(headers_bytes_max=4096))).connect()
    await client.put(b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * 200_000)
    assert (await client.rest()).startswith(b"HTTP/1.1 431 ")


# The stop


async def test_a_stop_cancels_open_exchanges(opened):
    begun = trio.Event()
    ends = []

    async def respond(exchange):
        await exchange.body(100)
        begun.set()
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            ends.append("cancelled")
            raise

    host = await opened(respond)
    idle, busy = await host.connect(), await host.connect()
    await busy.ask("POST", body=b"{}")
    await begun.wait()
    with trio.fail_after(SECONDS):
        await host.stop()
    assert ends == ["cancelled"]
    assert await idle.rest() == b""
    assert not (await busy.rest()).startswith(b"HTTP/1.1 2")
    with pytest.raises(OSError, match="fail"):
        await host.connect()


async def test_a_stream_may_send_a_final_message_at_the_stop(opened):
    host = await opened(say_goodbye)
    client = await host.connect()
    await client.ask()
    await client.head()
    with trio.fail_after(SECONDS):
        await host.stop()
    assert (await client.body()) == b"goodbye"


@pytest.mark.real_time
async def test_a_client_that_reads_nothing_does_not_delay_the_stop(opened_by_listener):
    sent = 0

    async def respond(exchange):
        nonlocal sent
        await exchange.start(200, [])
        while True:
            await exchange.send(b"x" * 100_000)
            sent += 1

    host = await opened_by_listener(respond, shutdown=ShutdownLimits(close_seconds=0.2))
    client = await host.connect()
    await client.ask()
    while not sent:
        await trio.sleep(0.01)
    await trio.testing.wait_all_tasks_blocked(0.05)
    with trio.fail_after(SECONDS):
        await host.stop()


def _coroutines(task):
    """The names of all coroutines that a task and those below it are in."""
    coroutine = task.coro
    while hasattr(coroutine, "cr_code"):
        yield coroutine.cr_code.co_qualname
        coroutine = coroutine.cr_await
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            yield from _coroutines(child)


@pytest.mark.skipif(sys.platform != "linux", reason="the poller is of Linux")
async def test_idle_connections_have_no_task(open_host):
    host = await open_host("resting", say_hello)
    clients = [await host.connect() for _ in range(20)]
    for _ in range(2):
        for client in clients:
            assert (await client.exchange()).status == 200
        await trio.testing.wait_all_tasks_blocked(0.01)
        names = [*_coroutines(trio.lowlevel.current_root_task())]
        assert "NativeConnection.serve" not in names
        assert names.count("Poller.next") == 1
