"""The minimal HTTP server on h11 and Trio, which always sends the same answer."""

from functools import partial

import h11
import trio
from constant import constant_answer

CHUNK_BYTES = 1 << 16

constant = constant_answer()


async def serve(stream: trio.SocketStream) -> None:
    connection = h11.Connection(h11.SERVER)
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await stream.receive_some(CHUNK_BYTES))
        elif isinstance(event, h11.EndOfMessage):
            await stream.send_all(answer(connection))
            connection.start_next_cycle()
        elif isinstance(event, h11.ConnectionClosed):
            return


def answer(connection: h11.Connection) -> bytes:
    response = h11.Response(status_code=200, headers=constant.headers)
    pieces = (h11.Data(data=piece) for piece in constant.pieces if piece)
    events = [response, *pieces, h11.EndOfMessage()]
    return b"".join(connection.send(event) or b"" for event in events)


if __name__ == "__main__":
    trio.run(partial(trio.serve_tcp, serve, constant.port, host="127.0.0.1"))
