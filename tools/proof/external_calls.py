"""External calls of generated handlers, and a web server; their results differ each time.

A replay that repeated a call would be noticed at once.
"""

import random
import time
from datetime import UTC, datetime
from typing import Final

import attrs
import h11
import msgspec
import trio

from mcp_trio import effect

LATENCY_SECONDS_MAX: Final = 0.006
CHUNK_BYTES: Final = 4096
_STATUSES: Final = (200, 200, 200, 404, 503)


class BrokenDownError(Exception):
    """A user's own error."""


class Reading(msgspec.Struct):
    """A result with types that JSON does not have."""

    at: datetime
    value: float
    tags: set[str]


@attrs.define
class Database:
    """The lifespan's object, which only effects use."""

    rows: int = 0


def _some_error() -> Exception:
    errors = (
        ValueError("no such value"),
        OSError(5, "the disk is tired"),
        KeyError("key"),
        BrokenDownError("twice", 2),
    )
    return random.choice(errors)


async def _dawdle(amount: int) -> None:
    await trio.sleep(random.random() * amount / 1000)


async def measure(amount: int) -> Reading:
    await _dawdle(amount)
    tags = {f"tag {random.randrange(100)}" for _ in range(3)}
    return Reading(at=datetime.now(UTC), value=random.random(), tags=tags)


def weigh(amount: int) -> int:
    return amount + random.randrange(1000)


def crunch(amount: int, *, base: int = 10) -> str | None:
    time.sleep(random.random() * amount / 1000)
    return random.choice((None, f"{random.randrange(base**6)}"))


async def break_down(amount: int) -> None:
    """Fail after a while."""
    await _dawdle(amount)
    raise _some_error()


def break_down_at_once(amount: int) -> int:
    """Fail sometimes."""
    if random.random() < 0.7:
        raise _some_error()
    return amount


async def query(database: Database, amount: int) -> dict[str, int]:
    await _dawdle(amount)
    database.rows += random.randrange(3)
    return {"rows": database.rows}


@effect
async def fetch_tags(amount: int) -> set[str]:
    await _dawdle(amount)
    return {f"tag {random.randrange(100)}" for _ in range(amount)}


@effect
def roll(sides: int) -> int:
    return random.randrange(sides)


# A web server.


async def start_latency_server(nursery: trio.Nursery) -> str:
    """Start a web server that answers late and sometimes disconnects; return its URL."""
    listeners = await nursery.start(trio.serve_tcp, _serve, 0)
    port = listeners[0].socket.getsockname()[1]
    return f"http://127.0.0.1:{port}"


async def _serve(stream: trio.SocketStream) -> None:
    connection = h11.Connection(h11.SERVER)
    try:
        while (event := await _next_event(connection, stream)) is not None:
            if isinstance(event, h11.EndOfMessage):
                await _answer(connection, stream)
    except (trio.BrokenResourceError, h11.RemoteProtocolError):
        pass  # the client was cancelled in the middle of something
    finally:
        await trio.aclose_forcefully(stream)


async def _next_event(connection: h11.Connection, stream: trio.SocketStream) -> h11.Event | None:
    """Return the client's next event, None at the end of the connection."""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await stream.receive_some(CHUNK_BYTES))
        elif event is h11.PAUSED:
            connection.start_next_cycle()
        elif isinstance(event, h11.ConnectionClosed):
            return None
        elif isinstance(event, h11.Event):
            return event


async def _answer(connection: h11.Connection, stream: trio.SocketStream) -> None:
    await trio.sleep(random.random() * LATENCY_SECONDS_MAX)
    if random.random() < 0.05:
        raise trio.BrokenResourceError("the server has enough of this client")
    body = msgspec.json.encode({"news": random.randrange(1000)})
    headers = [("content-type", "application/json"), ("content-length", str(len(body)))]
    events: tuple[h11.Event, ...] = (
        h11.Response(status_code=random.choice(_STATUSES), headers=headers),
        h11.Data(data=body),
        h11.EndOfMessage(),
    )
    await stream.send_all(b"".join(connection.send(event) or b"" for event in events))
