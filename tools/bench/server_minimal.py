"""A minimal HTTP server on h11 or hypercorn, which always sends the same answer."""

import argparse
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

import h11
import trio
from hypercorn.config import Config
from hypercorn.trio import serve

CHUNK_BYTES: Final = 1 << 16
BODY: Final = b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"2"}]}}'
"""The answer to the call of `add` with 1 and 1 whose id is 1."""

Message = dict[str, Any]
Headers = list[tuple[bytes, bytes]]


def answer_of(form: str) -> tuple[Headers, tuple[bytes, ...]]:
    """Return the headers and the body; several pieces if it has no Content-Length."""
    if form == "sse":
        event = b"event: message\ndata: %b\n\n" % BODY
        return [(b"content-type", b"text/event-stream")], (event, b"")
    length = (b"content-length", b"%d" % len(BODY))
    return [(b"content-type", b"application/json"), length], (BODY,)


async def serve_h11(headers: Headers, pieces: tuple[bytes, ...], port: int) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        connection = h11.Connection(h11.SERVER)
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(await stream.receive_some(CHUNK_BYTES))
            elif isinstance(event, h11.EndOfMessage):
                response = h11.Response(status_code=200, headers=headers)
                data = (h11.Data(data=piece) for piece in pieces if piece)
                events = [response, *data, h11.EndOfMessage()]
                await stream.send_all(b"".join(connection.send(each) or b"" for each in events))
                connection.start_next_cycle()
            elif isinstance(event, h11.ConnectionClosed):
                return

    await trio.serve_tcp(serve, port, host="127.0.0.1")


async def serve_hypercorn(headers: Headers, pieces: tuple[bytes, ...], port: int) -> None:
    async def app(
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        if scope["type"] != "http":  # the server has no lifespan
            raise NotImplementedError(scope["type"])
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        *firsts, last = pieces
        for piece in firsts:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": last})

    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.accesslog = config.errorlog = None
    config.keep_alive_max_requests = 1 << 40
    await serve(app, config)  # type: ignore[arg-type]


HOSTS: Final[Mapping[str, Callable[..., Awaitable[None]]]] = {
    "h11": serve_h11,
    "hypercorn": serve_hypercorn,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", choices=HOSTS, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--form", choices=["json", "sse", "stateless"], required=True)
    options = parser.parse_args()
    trio.run(partial(HOSTS[options.host], *answer_of(options.form), options.port))
