"""Whoever is over a limit is told which setting it is, before any application is asked."""

import pytest
import trio

from mcp_trio._protocol.event_store import ReplayBuffer
from mcp_trio.limits import HttpLimits

POST = b"POST / HTTP/1.1\r\nHost: x\r\n"
SECONDS = 10.0


async def answer(exchange):
    await exchange.answer(200, [], await exchange.body(1000))


async def told(client, data):
    """The answer to this, up to the end of the connection."""
    await client.put(data)
    with trio.fail_after(SECONDS):
        return await client.rest()


@pytest.mark.parametrize(
    ("data", "limits", "status", "setting"),
    [
        (
            b"GET / HTTP/1.1\r\nX: " + b"x" * 3000,
            {"http": HttpLimits(headers_bytes_max=2000)},
            431,
            "limits.http.headers_bytes_max (2000)",
        ),
        (
            POST[:20],
            {"http": HttpLimits(headers_seconds=0.1)},
            408,
            "0.1 seconds (limits.http.headers_seconds)",
        ),
        (
            POST + b"Content-Length: 9\r\n\r\nabc",
            {"http": HttpLimits(body_seconds=0.1)},
            408,
            "0.1 seconds (limits.http.body_seconds)",
        ),
    ],
)
@pytest.mark.real_time
async def test_our_own_listener_names_the_limit(open_host, data, limits, status, setting):
    host = await open_host("native", answer, **limits)
    received = await told(await host.connect(), data)
    assert received.startswith(b"HTTP/1.1 %d " % status)
    assert setting.encode() in received


def test_what_is_not_kept_any_more_names_how_much_is():
    buffer = ReplayBuffer(events_max=1, bytes_max=100)
    stream = buffer.open_stream()
    first, *_ = (buffer.keep(stream, b"data") for _ in range(3))
    with pytest.raises(
        LookupError, match=r"limits\.http\.events_kept_max, limits\.http\.events_kept_bytes_max"
    ):
        buffer.after(first)


@pytest.mark.parametrize("name", ["native", "resting"])
async def test_one_connection_too_many_gets_the_name_of_the_limit(open_host, name):
    host = await open_host(name, answer, http=HttpLimits(connections_max=1))
    first = await host.connect()
    await first.exchange()
    second = await host.connect()
    with trio.fail_after(SECONDS):
        rejected = await second.exchange()
    assert (rejected.status, rejected.headers["connection"]) == (503, "close")
    assert rejected.body == b"there are too many connections (limits.http.connections_max)"
    assert (await first.exchange()).status == 200
