"""Hostile and broken clients: they cost little, and do not affect other clients.

Each test leaves a server that answers the next client, over either host.
"""

import contextlib
import socket
import struct

import attrs
import pytest
import trio
import trio.testing
from harmful_requests import (
    BROKEN_HEADERS,
    BROKEN_OFF,
    CONFLICTING_LENGTHS,
    HUGE_HEADERS,
    INVALID_CHUNKING,
    OFTEN_ACCEPTED,
    POST,
    PREFACE,
    damaged,
    statuses,
)

from mcp_trio.limits import HttpLimits, MessageLimits
from tests.transports.http.conftest import pouring

pytestmark = pytest.mark.slow

SECONDS = 30.0  # for what takes less than one on a machine that does nothing else


@pytest.fixture(params=["native", "resting", "hypercorn"])
def name(request):
    return request.param


@attrs.frozen
class Attacked:
    """A host, and the paths of the requests that its application received."""

    connect: object
    paths: list


@pytest.fixture
async def attacked(open_host, name, caplog):
    """`await attacked(**limits)` serves; at the end of the test it has to be well."""
    hosts = []

    async def attacked(respond=None, **limits):
        paths = []

        async def answer(exchange):
            paths.append(exchange.request.path)
            with contextlib.suppress(trio.BrokenResourceError):
                if respond is not None and exchange.request.path != "/well":
                    await respond(exchange)
                else:
                    await exchange.answer(200, [], await exchange.body(1000))

        host = await open_host(name, answer, **limits)
        hosts.append(host)
        return Attacked(connect=host.connect, paths=paths)

    yield attacked
    [host] = hosts
    with trio.fail_after(SECONDS):
        assert (await (await host.connect()).exchange("POST", "/well", body=b"yes")).body == b"yes"
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def params_without_meta(client):
    with trio.fail_after(SECONDS):
        return await client.rest()


async def response_to(client, data):
    """Send until the server stops reading, and return the response up to its close."""

    async def put():
        with contextlib.suppress(trio.BrokenResourceError):
            await client.put(data)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(put)
        received = await params_without_meta(client)
        nursery.cancel_scope.cancel()
    return received


# Smuggling


@pytest.mark.parametrize(
    "request_bytes", [*CONFLICTING_LENGTHS, *INVALID_CHUNKING, *BROKEN_HEADERS]
)
async def test_no_request_can_be_smuggled(attacked, name, request_bytes):
    host = await attacked()
    client = await host.connect()
    received = await response_to(client, request_bytes)
    assert "/smuggled" not in host.paths
    assert name == "hypercorn" or statuses(received) == [400]


@pytest.mark.parametrize("name", ["native", "resting"], indirect=True)
@pytest.mark.parametrize("request_bytes", OFTEN_ACCEPTED)
async def test_the_native_listener_is_stricter(attacked, request_bytes):
    host = await attacked()
    client = await host.connect()
    assert statuses(await response_to(client, request_bytes)) == [400]
    assert "/smuggled" not in host.paths


async def test_random_bytes_and_broken_requests_end_in_a_rejection_or_a_close(attacked):
    host = await attacked(http=HttpLimits(headers_seconds=0.2, body_seconds=0.2))
    for data in damaged(60):
        client = await host.connect()
        await client.put(data)
        await client.stream.send_eof()
        await params_without_meta(client)
        await client.aclose()


# Oversized requests


@pytest.mark.parametrize("headers", HUGE_HEADERS, ids=["target", "field", "fields"])
async def test_huge_headers_are_not_read_to_their_end(attacked, headers):
    host = await attacked()
    client = await host.connect()
    assert statuses(await response_to(client, headers)) in ([431], [400])
    assert host.paths == []


async def test_a_thousand_requests_at_once_are_answered_in_turn(attacked):
    host = await attacked()
    client = await host.connect()
    last = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    requests = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 999 + last
    assert statuses(await response_to(client, requests)) == [200] * 1000


@pytest.mark.parametrize("name", ["native"], indirect=True)
async def test_connections_beyond_the_limit_are_turned_away_and_the_rest_served(attacked):
    host = await attacked(http=HttpLimits(connections_max=20))
    held = [await host.connect() for _ in range(20)]
    for client in held:
        assert (await client.exchange()).status == 200
    for _ in range(100):
        client = await host.connect()
        assert statuses(await params_without_meta(client)) == [503]
        await client.aclose()
    assert (await held[7].exchange()).status == 200
    await held[0].aclose()
    await trio.testing.wait_all_tasks_blocked(0.01)


# Slow clients


@pytest.mark.real_time
async def test_trickling_headers_time_out(attacked):
    # hypercorn has one limit for both
    host = await attacked(http=HttpLimits(headers_seconds=0.5, idle_seconds=0.5))
    clients = [await host.connect() for _ in range(40)]

    async def trickle(client):
        for byte in POST * 10:
            await client.put(bytes([byte]))
            await trio.sleep(0.05)

    async with trio.open_nursery() as nursery:
        for client in clients:
            nursery.start_soon(_until_broken, trickle, client)
        assert (await (await host.connect()).exchange()).status == 200
        for client in clients:
            assert statuses(await params_without_meta(client)) in ([408], [])
        nursery.cancel_scope.cancel()
    assert host.paths == ["/"]


@pytest.mark.real_time
async def test_stalled_bodies_time_out(attacked):
    host = await attacked(http=HttpLimits(body_seconds=0.3))
    clients = [await host.connect() for _ in range(40)]
    for client in clients:
        await client.put(POST + b"Content-Length: 1000\r\n\r\nabc")
    assert (await (await host.connect()).exchange()).status == 200
    for client in clients:
        assert statuses(await params_without_meta(client)) in ([408], [])


@pytest.mark.real_time
@pytest.mark.parametrize("name", ["native", "resting"], indirect=True)
async def test_a_small_trickling_body_times_out(attacked):
    host = await attacked(http=HttpLimits(body_seconds=0.5))
    client = await host.connect()

    async def trickle(client):
        while True:
            await client.put(b"x")
            await trio.sleep(0.05)

    async with trio.open_nursery() as nursery:
        await client.put(POST + b"Content-Length: 1000\r\n\r\n")
        nursery.start_soon(_until_broken, trickle, client)
        assert statuses(await params_without_meta(client)) == [408]
        nursery.cancel_scope.cancel()


async def _until_broken(function, *args):
    with contextlib.suppress(trio.BrokenResourceError):
        await function(*args)


@pytest.mark.real_time
async def test_streams_of_a_client_that_does_not_read_are_aborted(attacked):
    respond, errors = pouring(100_000)
    host = await attacked(respond, messages=MessageLimits(write_stall_seconds=0.3))
    clients = [await host.connect() for _ in range(10)]
    for client in clients:
        await client.ask()
    with trio.fail_after(SECONDS):
        for _ in clients:
            await errors.receive()


@pytest.mark.real_time
async def test_hundreds_of_silent_clients_are_disconnected(attacked):
    host = await attacked(http=HttpLimits(idle_seconds=0.5))
    clients = [await host.connect() for _ in range(300)]
    assert (await (await host.connect()).exchange()).status == 200
    for client in clients:
        assert await params_without_meta(client) == b""


@pytest.mark.real_time
@pytest.mark.parametrize("name", ["native"], indirect=True)
async def test_a_silent_client_of_plain_text_http2_is_disconnected(attacked):
    host = await attacked(http=HttpLimits(idle_seconds=0.4, headers_seconds=0.4))
    client = await host.connect()
    await client.put(PREFACE)
    with trio.fail_after(SECONDS / 2):
        assert statuses(await client.rest()) in ([], [400])


# Clients that disconnect


@pytest.mark.parametrize("sent", BROKEN_OFF)
@pytest.mark.parametrize("reset", [False, True])
async def test_clients_may_vanish_at_any_point(attacked, sent, reset):
    host = await attacked()
    for _ in range(5):
        client = await host.connect()
        await client.put(sent)
        if reset:
            client.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await client.aclose()
    await trio.testing.wait_all_tasks_blocked(0.01)


@pytest.mark.real_time
@pytest.mark.parametrize("name", ["native"], indirect=True)
async def test_a_rejected_client_leaves_no_tasks(attacked):
    """Not even for `limits.http.idle_seconds`; but where tasks are used again they rest for some time."""
    host = await attacked()
    tasks = trio.lowlevel.current_statistics().tasks_living
    for sent in BROKEN_HEADERS:
        client = await host.connect()
        assert statuses(await response_to(client, sent)) == [400]
        await client.aclose()
    with trio.fail_after(SECONDS):
        while trio.lowlevel.current_statistics().tasks_living > tasks:
            await trio.sleep(0.01)


async def test_a_client_that_closes_its_half_may_still_read_its_answer(attacked):
    host = await attacked()
    client = await host.connect()
    await client.put(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc")
    await client.stream.send_eof()
    received = await params_without_meta(client)
    assert statuses(received) in ([200], [])


async def test_a_client_that_half_closes_too_early_gets_an_error_or_nothing(attacked):
    host = await attacked()
    for sent in BROKEN_OFF[2:4]:
        client = await host.connect()
        await client.put(sent)
        await client.stream.send_eof()
        assert statuses(await params_without_meta(client)) in ([400], [])


async def test_a_client_that_reads_while_it_floods_gets_its_rejection(attacked):
    """The rejection is not lost in the reset of a connection that is closed with unread bytes."""
    host = await attacked()
    client = await host.connect()
    request = POST + b"Content-Length: bad\r\n\r\n" + b"x" * 3_000_000
    assert statuses(await response_to(client, request)) == [400]
