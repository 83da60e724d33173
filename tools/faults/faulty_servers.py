"""Servers that do wrong, and how a call of our client has to end.

Everything is in this process: a server of a few lines for each fault, and a `Client` that calls it.
What the client's caller is told is to name the fault, and nothing is to be left of the connection.
"""

import contextlib
import json
import logging
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import attrs
import trio
import wsproto
from raw_peers import Lines
from rich.table import Table
from wsproto import events

sys.path += [str(Path(__file__).resolve().parents[1] / each) for each in ("", "interop", "bench")]

from interop_command import new_table, show
from load import NEWEST_LEGACY
from observed_process import Held, descriptors_of, settled

from mcp_trio import Client, Limits, MCPError
from mcp_trio._transports.sockets import unix_listener
from mcp_trio.limits import (
    HttpLimits,
    MessageLimits,
    RequestLimits,
    ShutdownLimits,
    WebSocketLimits,
)

WAYS: Final = ("websocket", "unix", "tcp")
LIMITS: Final = Limits(
    messages=MessageLimits(bytes_max=1 << 20, write_stall_seconds=0.5),
    http=HttpLimits(headers_seconds=0.5),
    requests=RequestLimits(initialize_seconds=0.5, idle_seconds=1.5),
    websocket=WebSocketLimits(ping_interval_seconds=0.3, pong_seconds=0.3),
    shutdown=ShutdownLimits(close_seconds=0.2),
)
PATIENCE_SECONDS: Final = 10.0
SETTLE_SECONDS: Final = 3.0
_NO_TEXT: Final = b"\xff\xfe"


@attrs.define(eq=False)
class End:
    """A server's end, that frames as it should unless it is told otherwise.

    It answers pings while it takes something in, and only then.
    """

    stream: trio.SocketStream
    is_web: bool
    _protocol: wsproto.WSConnection = attrs.field(
        factory=partial(wsproto.WSConnection, wsproto.ConnectionType.SERVER)
    )
    _rest: bytes = b""

    async def open(self) -> None:
        """Shake hands, where that is done."""
        if self.is_web:
            await self._message()
            accepted = events.AcceptConnection(subprotocol="mcp")
            await self.stream.send_all(self._protocol.send(accepted))

    async def begin(self) -> None:
        """Agree on a revision, and take a call."""
        await self.open()
        asked = json.loads(await self._message())
        result: dict[str, object] = {
            "protocolVersion": NEWEST_LEGACY,
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "faults", "version": "0"},
        }
        await self.say(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}).encode())
        while b"tools/call" not in await self._message():
            pass

    async def say(self, message: bytes) -> None:
        """Send a message."""
        if self.is_web:
            await self.put(self._protocol.send(events.TextMessage(data=message.decode())))
        else:
            await self.put(message + b"\n")

    async def stay(self) -> None:
        """Be there, and answer nothing but pings."""
        while True:
            await self._message()

    async def put(self, data: bytes) -> None:
        """Send bytes, as far as somebody takes them."""
        with contextlib.suppress(trio.BrokenResourceError):
            await self.stream.send_all(data)

    async def _message(self) -> bytes:
        """The next one; empty: the request to become a WebSocket."""
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
        """What has come whole."""
        line, end, rest = self._rest.partition(b"\n")
        if not end:
            return None
        self._rest = rest
        return line

    async def _next_event(self) -> bytes | None:
        """The same of a WebSocket, whose pings are answered."""
        for event in self._protocol.events():
            if isinstance(event, events.TextMessage):
                return event.data.encode()
            if isinstance(event, events.Request):
                return b""
            if isinstance(event, events.Ping):
                await self.put(self._protocol.send(event.response()))
            elif isinstance(event, events.CloseConnection):
                await trio.sleep_forever()
        return None


Serve: TypeAlias = Callable[[End], Awaitable[None]]
"""What a server does with a connection, which is closed then."""


@attrs.frozen(kw_only=True)
class Fault:
    """One of the rows.

    Attributes:
        name: What the server does.
        serve: How.
        says: What the caller is to be told, some of it, by the way; who is not in it is left out.
    """

    name: str
    serve: Serve
    says: dict[str, str]


async def say_nothing(_end: End) -> None:
    """Take a connection, and be silent."""
    await trio.sleep_forever()


async def open_only(end: End) -> None:
    """Shake hands, and answer nothing but pings."""
    await end.open()
    await end.stay()


async def reject(end: End) -> None:
    """Answer as a web server does that has nothing here."""
    await end.put(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
    await trio.sleep_forever()


async def hang_up(end: End) -> None:
    """Go at once."""


async def cut(end: End) -> None:
    """Go in the middle of a call."""
    await end.begin()
    await Lines(end.stream).vanish()


async def answer_a_half(end: End) -> None:
    """Go in the middle of an answer."""
    await end.begin()
    await end.put(b"\x81\x7e\xff\xff{" if end.is_web else b'{"jsonrpc":"2.0",')


async def answer_nothing(end: End) -> None:
    """Be there, and leave the call alone."""
    await end.begin()
    await end.stay()


async def read_nothing(end: End) -> None:
    """Take a call, and be silent: not even pings are answered."""
    await end.begin()
    await trio.sleep_forever()


async def put_then_stay(data: bytes, end: End) -> None:
    """Send what none may send, in the middle of a call."""
    await end.begin()
    await end.put(data)
    await end.stay()


async def say_too_much(end: End) -> None:
    """Answer with a message over the limit."""
    await end.begin()
    result = {"content": [{"type": "text", "text": "x" * (2 << 20)}]}
    await end.say(json.dumps({"jsonrpc": "2.0", "id": 2, "result": result}).encode())
    await end.stay()


def everywhere(web: str, lines: str) -> dict[str, str]:
    """The same in all ways of a kind."""
    return {"websocket": web, "unix": lines, "tcp": lines}


FAULTS: Final = (
    Fault(
        name="is silent from the beginning",
        serve=say_nothing,
        says=everywhere("limits.http.headers_seconds", "limits.requests.initialize_seconds"),
    ),
    Fault(
        name="opens, and says nothing",
        serve=open_only,
        says={"websocket": "limits.requests.initialize_seconds"},
    ),
    Fault(name="refuses the handshake", serve=reject, says={"websocket": "HTTP 404"}),
    Fault(
        name="hangs up at once",
        serve=hang_up,
        says=everywhere("disconnected during the handshake", "ConnectionLost"),
    ),
    Fault(name="is cut in a call", serve=cut, says=everywhere("broke", "OutcomeUnknown")),
    Fault(
        name="ends in an answer", serve=answer_a_half, says=everywhere("broke", "OutcomeUnknown")
    ),
    Fault(
        name="answers pings, and no call",
        serve=answer_nothing,
        says=dict.fromkeys(WAYS, "limits.requests.idle_seconds"),
    ),
    Fault(
        name="answers no ping, nor anything",
        serve=read_nothing,
        says={"websocket": "limits.websocket.pong_seconds"},
    ),
    Fault(
        name="sends bad UTF-8",
        serve=partial(put_then_stay, b"\x81\x02" + _NO_TEXT),
        says={"websocket": "1007"},
    ),
    Fault(
        name="sends a binary message",
        serve=partial(put_then_stay, b"\x82\x02{}"),
        says={"websocket": "1003"},
    ),
    Fault(
        name="sends an unknown opcode",
        serve=partial(put_then_stay, b"\x83\x00"),
        says={"websocket": "1002"},
    ),
    Fault(
        name="closes, and tells why",
        serve=partial(put_then_stay, b"\x88\x06\x03\xf5busy"),
        says={"websocket": "try again later"},
    ),
    Fault(
        name="answers over the limit",
        serve=say_too_much,
        says=dict.fromkeys(WAYS, "limits.messages.bytes_max"),
    ),
)


@attrs.frozen(kw_only=True)
class Result:
    """What a client's caller was told, after how long, and what was left of the connection."""

    fault: Fault
    way: str
    told: str
    seconds: float
    left: Held


async def meet(fault: Fault, way: str, folder: Path) -> Result:
    """Let a client call a server that does so."""
    at_rest = await _held()
    begin = trio.current_time()
    async with trio.open_nursery() as nursery:
        told = await _told(await nursery.start(_serve, fault, way, folder))
        seconds = trio.current_time() - begin
        nursery.cancel_scope.cancel()
    # Nobody tells that a system task has ended.
    left = (await settled(_held, at_rest, SETTLE_SECONDS)).beyond(at_rest)
    return Result(fault=fault, way=way, told=told, seconds=seconds, left=left)


async def _held() -> Held:
    tasks = trio.lowlevel.current_statistics().tasks_living
    return Held(descriptors_of(os.getpid()), tasks)


async def _serve(
    fault: Fault, way: str, folder: Path, *, task_status: trio.TaskStatus[str]
) -> None:
    """Serve as the fault has it until cancelled; reports the URL."""

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            await fault.serve(End(stream, way == "websocket"))

    async with contextlib.AsyncExitStack() as stack:
        if way == "unix":
            listener = await stack.enter_async_context(unix_listener(folder / "socket"))
            url = f"unix:{folder / 'socket'}"
        else:
            [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
            scheme = "ws" if way == "websocket" else "tcp"
            url = f"{scheme}://127.0.0.1:{listener.socket.getsockname()[1]}"
        task_status.started(url)
        await trio.serve_listeners(serve, [listener])


async def _told(url: str) -> str:
    """What a caller is told of a call; empty: nothing, for too long."""
    with trio.move_on_after(PATIENCE_SECONDS):
        try:
            async with Client(url, protocol_versions=[NEWEST_LEGACY], limits=LIMITS) as client:
                await client.call_tool("anything")
        except MCPError as error:
            return f"{type(error).__name__}: {error}"
        return "an answer"
    return ""


async def meet_all(folder: Path) -> list[Result]:
    """All of it, one after the other."""
    return [await meet(fault, way, folder) for way in WAYS for fault in FAULTS if way in fault.says]


def run() -> list[Result]:
    """The same."""
    logging.getLogger("mcp_trio").setLevel(logging.ERROR)  # of bad servers it has much to say
    with tempfile.TemporaryDirectory(prefix="mcp_trio-faults-") as folder:
        return trio.run(meet_all, Path(folder))


# What came of it


def complaints(result: Result) -> Iterator[str]:
    """What must not be, in sentences."""
    if not result.told:
        yield f"the caller was told nothing for {PATIENCE_SECONDS:g} s"
    elif result.fault.says[result.way] not in result.told:
        yield f"{result.told}: that does not say {result.fault.says[result.way]!r}"
    if complaint := result.left.complaint():
        yield complaint


def table_of(results: Sequence[Result]) -> Table:
    """What each client was told."""
    table = new_table()
    for heading in ("a server that", "over", "what the caller is told"):
        table.add_column(heading)
    for heading in ("after s", "left\nfds", "left\ntasks"):
        table.add_column(heading, justify="right")
    for result in results:
        table.add_row(
            result.fault.name,
            result.way,
            result.told,
            f"{result.seconds:.2f}",
            f"{result.left.descriptors}",
            f"{result.left.tasks}",
        )
    return table


def report(results: Sequence[Result]) -> bool:
    """Print everything; returns whether it is as it should be."""
    wrong = [
        f"a server that {result.fault.name}, {result.way}: {complaint}"
        for result in results
        for complaint in complaints(result)
    ]
    show(table_of(results), wrong)
    print(f"{len(results)} faults at clients, {len(wrong)} problems")
    return not wrong


if __name__ == "__main__":
    sys.exit(not report(run()))
