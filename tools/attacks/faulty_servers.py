"""Faulty servers, and how a call of our client has to end.

A small server in this process plays each fault, and a `Client` calls it. The error has to name the
fault, and the connection has to leave no resources behind.
"""

import contextlib
import json
import logging
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import attrs
import trio
import wsproto
from measurements import Resources, descriptors_of, wait_until_released
from raw_peers import Lines
from rich.table import Table
from wsproto import events

sys.path += [str(Path(__file__).resolve().parents[1] / each) for each in ("interop", "bench")]

from interop_command import new_table, show
from load import NEWEST_LEGACY

from mcp_trio import Client, Limits, MCPError
from mcp_trio._transports.sockets import unix_listener
from mcp_trio.limits import (
    HttpLimits,
    MessageLimits,
    RequestLimits,
    ShutdownLimits,
    WebSocketLimits,
)

TRANSPORTS: Final = ("websocket", "unix", "tcp")
LIMITS: Final = Limits(
    messages=MessageLimits(bytes_max=1 << 20, write_stall_seconds=0.5),
    http=HttpLimits(headers_seconds=0.5),
    requests=RequestLimits(initialize_seconds=0.5, idle_seconds=1.5),
    websocket=WebSocketLimits(ping_interval_seconds=0.3, pong_seconds=0.3),
    shutdown=ShutdownLimits(close_seconds=0.2),
)
CLOSE_SECONDS_MAX: Final = 10.0
RELEASE_SECONDS_MAX: Final = 3.0


@attrs.define(eq=False)
class ServerConnection:
    """The server's end of a connection; it answers pings only while it waits for a message."""

    stream: trio.SocketStream
    is_web: bool
    _protocol: wsproto.WSConnection = attrs.field(
        factory=partial(wsproto.WSConnection, wsproto.ConnectionType.SERVER)
    )
    _rest: bytes = b""

    async def open(self) -> None:
        """Accept the WebSocket handshake, if there is one."""
        if self.is_web:
            await self._message()
            accepted = events.AcceptConnection(subprotocol="mcp")
            await self.stream.send_all(self._protocol.send(accepted))

    async def receive_call(self) -> None:
        """Initialize the session, and wait for a tool call."""
        await self.open()
        request = json.loads(await self._message())
        result: dict[str, object] = {
            "protocolVersion": NEWEST_LEGACY,
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "faults", "version": "0"},
        }
        await self.send(
            json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}).encode()
        )
        while b"tools/call" not in await self._message():
            pass

    async def send(self, message: bytes) -> None:
        if self.is_web:
            await self.send_bytes(self._protocol.send(events.TextMessage(data=message.decode())))
        else:
            await self.send_bytes(message + b"\n")

    async def answer_pings(self) -> None:
        """Answer nothing but pings."""
        while True:
            await self._message()

    async def send_bytes(self, data: bytes) -> None:
        """Send bytes, unless the client has closed the connection."""
        with contextlib.suppress(trio.BrokenResourceError):
            await self.stream.send_all(data)

    async def _message(self) -> bytes:
        """Return the next message, or an empty one for the WebSocket handshake."""
        while True:
            message = await self._next_event() if self.is_web else self._next_line()
            if message is not None:
                return message
            data = await self.stream.receive_some()
            if not data:
                await trio.sleep_forever()
            if self.is_web:
                self._protocol.receive_data(data)
            else:
                self._rest += data

    def _next_line(self) -> bytes | None:
        line, found, rest = self._rest.partition(b"\n")
        if not found:
            return None
        self._rest = rest
        return line

    async def _next_event(self) -> bytes | None:
        """Return the next message of a WebSocket, and answer pings before it."""
        for event in self._protocol.events():
            if isinstance(event, events.TextMessage):
                return event.data.encode()
            if isinstance(event, events.Request):
                return b""
            if isinstance(event, events.Ping):
                await self.send_bytes(self._protocol.send(event.response()))
            elif isinstance(event, events.CloseConnection):
                await trio.sleep_forever()
        return None


Serve: TypeAlias = Callable[[ServerConnection], Awaitable[None]]
"""What a server does with a connection, which is closed then."""


@attrs.frozen
class Fault:
    """A fault of a server.

    Attributes:
        name: The fault.
        serve: What the server does with a connection.
        expected: A part of the error's text by transport; others are not tested.
    """

    name: str
    serve: Serve
    expected: dict[str, str]


async def send_nothing(_end: ServerConnection) -> None:
    await trio.sleep_forever()


async def open_only(connection: ServerConnection) -> None:
    """Accept the handshake, and answer nothing but pings."""
    await connection.open()
    await connection.answer_pings()


async def reject(connection: ServerConnection) -> None:
    """Answer the handshake with 404."""
    await connection.send_bytes(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
    await trio.sleep_forever()


async def close_at_once(connection: ServerConnection) -> None: ...


async def cut(connection: ServerConnection) -> None:
    """Reset the connection during a call."""
    await connection.receive_call()
    await Lines(connection.stream).reset()


async def send_half_an_answer(connection: ServerConnection) -> None:
    """Close the connection in the middle of an answer."""
    await connection.receive_call()
    await connection.send_bytes(b"\x81\x7e\xff\xff{" if connection.is_web else b'{"jsonrpc":"2.0",')


async def answer_nothing(connection: ServerConnection) -> None:
    """Answer nothing but pings during a call."""
    await connection.receive_call()
    await connection.answer_pings()


async def read_nothing(connection: ServerConnection) -> None:
    """Read nothing during a call, not even pings."""
    await connection.receive_call()
    await trio.sleep_forever()


async def send_invalid(data: bytes, connection: ServerConnection) -> None:
    """Send invalid bytes during a call."""
    await connection.receive_call()
    await connection.send_bytes(data)
    await connection.answer_pings()


async def send_too_much(connection: ServerConnection) -> None:
    """Answer with a message over the limit."""
    await connection.receive_call()
    result = {"content": [{"type": "text", "text": "x" * (2 << 20)}]}
    await connection.send(json.dumps({"jsonrpc": "2.0", "id": 2, "result": result}).encode())
    await connection.answer_pings()


def everywhere(web: str, lines: str) -> dict[str, str]:
    return {"websocket": web, "unix": lines, "tcp": lines}


_INITIALIZE: Final = "limits.requests.initialize_seconds"
_INVALID: Final[Mapping[str, tuple[bytes, str]]] = {
    "sends bad UTF-8": (b"\x81\x02\xff\xfe", "1007"),
    "sends a binary message": (b"\x82\x02{}", "1003"),
    "sends an unknown opcode": (b"\x83\x00", "1002"),
    "closes with a reason": (b"\x88\x06\x03\xf5busy", "try again later"),
}

FAULTS: Final = (
    Fault(
        "sends nothing at all", send_nothing, everywhere("limits.http.headers_seconds", _INITIALIZE)
    ),
    Fault("opens, and sends nothing", open_only, {"websocket": _INITIALIZE}),
    Fault("rejects the handshake", reject, {"websocket": "HTTP 404"}),
    Fault(
        "disconnects at once",
        close_at_once,
        everywhere("disconnected during the handshake", "ConnectionLost"),
    ),
    Fault("resets during a call", cut, everywhere("without a close frame", "OutcomeUnknown")),
    Fault(
        "ends in an answer",
        send_half_an_answer,
        everywhere("without a close frame", "OutcomeUnknown"),
    ),
    Fault(
        "answers pings, and no call",
        answer_nothing,
        dict.fromkeys(TRANSPORTS, "limits.requests.idle_seconds"),
    ),
    Fault(
        "answers no ping, nor anything",
        read_nothing,
        {"websocket": "limits.websocket.pong_seconds"},
    ),
    *(
        Fault(name, partial(send_invalid, data), {"websocket": error})
        for name, (data, error) in _INVALID.items()
    ),
    Fault(
        "answers over the limit",
        send_too_much,
        dict.fromkeys(TRANSPORTS, "limits.messages.bytes_max"),
    ),
)


@attrs.frozen(kw_only=True)
class Result:
    """The error of a call, its duration, and the resources that were left behind."""

    fault: Fault
    transport: str
    error_text: str
    seconds: float
    left: Resources


async def call_server(fault: Fault, transport: str, folder: Path) -> Result:
    """Let a client call a server that has this fault."""
    baseline = await _resources()
    begin = trio.current_time()
    async with trio.open_nursery() as nursery:
        error_text = await _error_text(await nursery.start(_serve, fault, transport, folder))
        seconds = trio.current_time() - begin
        nursery.cancel_scope.cancel()
    # There is no event for the end of a system task.
    left = (await wait_until_released(_resources, baseline, RELEASE_SECONDS_MAX)).excess_over(
        baseline
    )
    return Result(
        fault=fault, transport=transport, error_text=error_text, seconds=seconds, left=left
    )


async def _resources() -> Resources:
    tasks = trio.lowlevel.current_statistics().tasks_living
    return Resources(descriptors_of(os.getpid()), tasks)


async def _serve(
    fault: Fault, transport: str, folder: Path, *, task_status: trio.TaskStatus[str]
) -> None:
    """Serve until cancelled; report the URL when started."""

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            await fault.serve(ServerConnection(stream, transport == "websocket"))

    async with contextlib.AsyncExitStack() as stack:
        if transport == "unix":
            listener = await stack.enter_async_context(unix_listener(folder / "socket"))
            url = f"unix:{folder / 'socket'}"
        else:
            [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
            scheme = "ws" if transport == "websocket" else "tcp"
            url = f"{scheme}://127.0.0.1:{listener.socket.getsockname()[1]}"
        task_status.started(url)
        await trio.serve_listeners(serve, [listener])


async def _error_text(url: str) -> str:
    """Return the error of a call, or an empty text if there is none for too long."""
    with trio.move_on_after(CLOSE_SECONDS_MAX):
        try:
            async with Client(url, protocol_versions=[NEWEST_LEGACY], limits=LIMITS) as client:
                await client.call_tool("anything")
        except MCPError as error:
            return f"{type(error).__name__}: {error}"
        return "an answer"
    return ""


async def call_all(folder: Path) -> list[Result]:
    """Run all faults, one after the other."""
    return [
        await call_server(fault, transport, folder)
        for transport in TRANSPORTS
        for fault in FAULTS
        if transport in fault.expected
    ]


def run() -> list[Result]:
    logging.getLogger("mcp_trio").setLevel(logging.ERROR)  # each faulty server causes warnings
    with tempfile.TemporaryDirectory(prefix="mcp_trio-faults-") as folder:
        return trio.run(call_all, Path(folder))


# Report.


def problems(result: Result) -> Iterator[str]:
    """Yield a sentence for each wrong error and for leaked resources."""
    if not result.error_text:
        yield f"the call raised no error for {CLOSE_SECONDS_MAX:g} s"
    elif (expected := result.fault.expected[result.transport]) not in result.error_text:
        yield f"{result.error_text}: that does not contain {expected!r}"
    if problem := result.left.problem():
        yield problem


def table_of(results: Sequence[Result]) -> Table:
    right = ("after s", "left\nfds", "left\ntasks")
    table = new_table("a server that", "over", "the caller's error", right=right)
    for result in results:
        table.add_row(
            result.fault.name,
            result.transport,
            result.error_text,
            f"{result.seconds:.2f}",
            f"{result.left.descriptors}",
            f"{result.left.tasks}",
        )
    return table


def report(results: Sequence[Result]) -> bool:
    """Print the table and the problems; return whether there are no problems."""
    wrong = [
        f"a server that {result.fault.name}, {result.transport}: {problem}"
        for result in results
        for problem in problems(result)
    ]
    return show(table_of(results), wrong, f"{len(results)} faults at clients, {{}}")


if __name__ == "__main__":
    sys.exit(not report(run()))
