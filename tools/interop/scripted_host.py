"""A host that sends the same bytes in every session.

It waits for each answer, and answers the server's requests at once, which fixes the order of
everything. It keeps the bytes of both directions.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import attrs
import trio
from facts import FACTS
from request_scripts import Step, WaitFor
from sdk_adapter import Json, expect

# Each is one line that is no message; none of the servers dies of one.
MALFORMED: Final = (
    b"this is not JSON",
    b'{"jsonrpc":"2.0","id":900,"method":"ping"',
    b"[]",
    b'"ping"',
    b'{"jsonrpc":"1.0","id":901,"method":"ping"}',
    b'{"jsonrpc":"2.0","id":{},"method":"ping"}',
    b'{"jsonrpc":"2.0","id":902,"method":17}',
    b'{"jsonrpc":"2.0","id":903,"result":{}}',
    b"",
    b' \t{"jsonrpc":"2.0","method":"notifications/no-such"}\r',
)
HALF_A_LINE: Final = b'{"jsonrpc":"2.0","id":904,"method":"pi'

INITIALIZE: Final = Step(
    "initialize",
    {
        "protocolVersion": FACTS.protocol_version,
        "capabilities": {"roots": {"listChanged": True}, "sampling": {}},
        "clientInfo": {"name": "byte host", "version": "1"},
    },
)


class ServerGone(Exception):  # noqa: N818  what happened, in a word
    """The server has closed its stdout."""


@attrs.define(kw_only=True, eq=False)
class ByteHost:
    """A host at the other end of a process's pipes."""

    process: trio.Process
    folder: Path
    sent: bytearray = attrs.field(factory=bytearray, init=False)
    received: bytearray = attrs.field(factory=bytearray, init=False)
    _partial_line: bytearray = attrs.field(factory=bytearray, init=False)
    _messages: list[Json] = attrs.field(factory=list, init=False)
    _requests: int = attrs.field(default=0, init=False)

    async def send(self, data: bytes) -> None:
        """Send bytes, and keep them if the server read them; raise `ServerGone` otherwise."""
        assert self.process.stdin is not None
        try:
            await self.process.stdin.send_all(data)
        except trio.BrokenResourceError as error:
            raise ServerGone from error
        self.sent += data

    async def run_step(self, step: Step | WaitFor) -> None:
        """Send a request and wait for its answer, or wait for a message of the server."""
        if isinstance(step, WaitFor):
            await self._wait_for_message(lambda message: message.get("method") == step.method)
            return
        self._requests += 1
        id_ = self._requests
        await self._send_message({"id": id_, "method": step.method, "params": step.params})
        answer = await self._wait_for_message(lambda it: "method" not in it and it.get("id") == id_)
        has_failed = "result" not in answer or answer["result"].get("isError", False)
        expect(f"{step.method} fails: {answer!s:.300}", has_failed, step.fails)

    async def initialize(self) -> None:
        await self.run_step(INITIALIZE)
        await self._send_message({"method": "notifications/initialized"})

    async def close(self) -> None:
        """Close stdin, and read to the end of stdout."""
        assert self.process.stdin is not None
        await self.process.stdin.aclose()
        while await self._receive():
            pass

    async def _send_message(self, message: Json) -> None:
        text = json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":"), ensure_ascii=False)
        await self.send(text.encode() + b"\n")

    async def _wait_for_message(self, matches: Callable[[Json], bool]) -> Json:
        while True:
            for message in filter(matches, self._messages):
                return message
            await self._read()

    async def _read(self) -> None:
        chunk = await self._receive()
        if not chunk:
            raise ServerGone
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            line, self._partial_line = bytes(self._partial_line + end), bytearray()
            await self._receive_message(json.loads(line))
        self._partial_line += rest

    async def _receive(self) -> bytes:
        assert self.process.stdout is not None
        chunk = bytes(await self.process.stdout.receive_some())
        self.received += chunk
        return chunk

    async def _receive_message(self, message: Json) -> None:
        self._messages.append(message)
        if "method" in message and "id" in message:
            result = ANSWERS[message["method"]](self.folder)
            await self._send_message({"id": message["id"], "result": result})


ANSWERS: Final[Mapping[str, Callable[[Path], Json]]] = {
    "ping": lambda _: {},
    "roots/list": lambda folder: {"roots": [{"uri": folder.as_uri()}]},
    "sampling/createMessage": lambda _: {
        "role": "assistant",
        "content": {"type": "text", "text": "Blue."},
        "model": "byte host",
    },
}
