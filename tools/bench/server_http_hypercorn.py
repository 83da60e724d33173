"""The minimal HTTP server on hypercorn, which always sends the same answer."""

from collections.abc import Awaitable, Callable
from typing import Any

import trio
from constant import constant_answer
from hypercorn.config import Config
from hypercorn.trio import serve

Message = dict[str, Any]

constant = constant_answer()


async def app(
    scope: Message,
    receive: Callable[[], Awaitable[Message]],
    send: Callable[[Message], Awaitable[None]],
) -> None:
    if scope["type"] != "http":  # so one says that lifespans are unknown here
        raise NotImplementedError(scope["type"])
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": constant.headers})
    *firsts, last = constant.pieces
    for piece in firsts:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": last})


if __name__ == "__main__":
    config = Config()
    config.bind = [f"127.0.0.1:{constant.port}"]
    config.accesslog = config.errorlog = None
    config.keep_alive_max_requests = 1 << 40
    trio.run(serve, app, config)  # type: ignore[arg-type]
