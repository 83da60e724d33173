"""A host that sends the same bytes in every session.

It waits for the answer before it goes on, and answers what it is asked at once: so the order of
everything on the wire is settled. All bytes are kept, in both directions.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import attrs
import trio
from checks import expect
from facts import FACTS
from parties import Json
from steps import Heard, Step

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
    """The host's side of one session over the pipes of a process."""

    process: trio.Process
    folder: Path
    said: bytearray = attrs.field(factory=bytearray, init=False)
    heard: bytearray = attrs.field(factory=bytearray, init=False)
    _begun: bytearray = attrs.field(factory=bytearray, init=False)
    _messages: list[Json] = attrs.field(factory=list, init=False)
    _requests: int = attrs.field(default=0, init=False)

    async def say(self, data: bytes) -> None:
        """Write bytes as they are; of what nobody reads nothing was said.

        Raises:
            ServerGone: Nobody reads.
        """
        assert self.process.stdin is not None
        try:
            await self.process.stdin.send_all(data)
        except trio.BrokenResourceError as error:
            raise ServerGone from error
        self.said += data

    async def do(self, step: Step | Heard) -> None:
        """Make a request and wait for its answer, or wait for what the server says by itself.

        Raises:
            ServerGone: It does not come.
            Unexpected: The request fails, or does not, as against what the step says.
        """
        if isinstance(step, Heard):
            await self._message(lambda message: message.get("method") == step.method)
            return
        self._requests += 1
        id_ = self._requests
        await self._send({"id": id_, "method": step.method, "params": step.params})
        answer = await self._message(lambda it: "method" not in it and it.get("id") == id_)
        has_failed = "result" not in answer or answer["result"].get("isError", False)
        expect(f"{step.method} fails: {answer!s:.300}", has_failed, step.fails)

    async def shake_hands(self) -> None:
        """Agree on the revision."""
        await self.do(INITIALIZE)
        await self._send({"method": "notifications/initialized"})

    async def leave(self) -> None:
        """Say no more, and hear the server out."""
        assert self.process.stdin is not None
        await self.process.stdin.aclose()
        while await self._receive():
            pass

    async def _send(self, message: Json) -> None:
        text = json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":"), ensure_ascii=False)
        await self.say(text.encode() + b"\n")

    async def _message(self, is_meant: Callable[[Json], bool]) -> Json:
        while True:
            for message in filter(is_meant, self._messages):
                return message
            await self._read()

    async def _read(self) -> None:
        chunk = await self._receive()
        if not chunk:
            raise ServerGone
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            line, self._begun = bytes(self._begun + end), bytearray()
            await self._take(json.loads(line))
        self._begun += rest

    async def _receive(self) -> bytes:
        assert self.process.stdout is not None
        chunk = bytes(await self.process.stdout.receive_some())
        self.heard += chunk
        return chunk

    async def _take(self, message: Json) -> None:
        self._messages.append(message)
        if "method" in message and "id" in message:
            result = ANSWERS[message["method"]](self.folder)
            await self._send({"id": message["id"], "result": result})


ANSWERS: Final[Mapping[str, Callable[[Path], Json]]] = {
    "ping": lambda _: {},
    "roots/list": lambda folder: {"roots": [{"uri": folder.as_uri()}]},
    "sampling/createMessage": lambda _: {
        "role": "assistant",
        "content": {"type": "text", "text": "Blue."},
        "model": "byte host",
    },
}
