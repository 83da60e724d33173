"""A local web server that answers late, differently each time, and sometimes disconnects."""

import random
from typing import Final

import h11
import msgspec
import trio

LATENCY_SECONDS_MAX: Final = 0.006
CHUNK_BYTES: Final = 4096
_STATUSES: Final = (200, 200, 200, 404, 503)


async def start_latency_server(nursery: trio.Nursery) -> str:
    """Start the server in a nursery, and return its URL."""
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
