"""A neutral load generator: raw JSON-RPC over the pipes of a server process.

Whatever serves, it gets the same bytes, and each of its messages is decoded and checked. What
counts is the server's CPU time, with all threads and the kernel's share; this process is not in it.
"""

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

import msgspec

CHUNK_BYTES: Final = 1 << 20
CLOSE_SECONDS: Final = 10.0
REVISION: Final = "2024-11-05"

# The clock of all of a process's CPU time, as clock_getcpuclockid(3) makes it from a process id.
_CPUCLOCK_SCHED: Final = 2


class Content(msgspec.Struct):
    """One piece of a result."""

    text: str = ""


class Result(msgspec.Struct):
    """A tool's result, as far as it is checked."""

    content: list[Content] = []
    is_error: bool = msgspec.field(default=False, name="isError")


class Message(msgspec.Struct):
    """Anything that a server sends."""

    id: int | None = None
    method: str | None = None
    result: Result | None = None


class Answer(NamedTuple):
    """The text that a tool returned, and how many notifications came before it."""

    text: str
    notifications: int


class Cost(NamedTuple):
    """What a load took: the server's CPU in all, and the time until each call was answered."""

    cpu_seconds: float
    call_seconds: Sequence[float]

    @property
    def cpu_ms_per_1000(self) -> float:
        """The figure that everything is compared by."""
        return self.cpu_seconds * 1_000_000 / len(self.call_seconds)


class ServerUnderLoad:
    """A server process, from its start to its end; a context manager.

    Raises:
        RuntimeError: The server ended, or answered what it should not have.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin
        assert self._process.stdout
        self._to_server = self._process.stdin.fileno()
        self._from_server = self._process.stdout.fileno()
        self._unread: list[bytes] = []
        self._last_id = 0
        self._decode = msgspec.json.Decoder(Message).decode

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close its stdin; a server that then does not end is killed."""
        with self._process:
            try:
                self._process.communicate(timeout=CLOSE_SECONDS)
            finally:
                self._process.kill()

    def cpu_seconds(self) -> float:
        """The CPU time of the server so far."""
        return time.clock_gettime((~self._process.pid << 3) | _CPUCLOCK_SCHED)

    def rss_mib(self) -> float:
        """The memory that the server holds."""
        status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii")
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    def initialize(self) -> float:
        """Shake hands; returns the server's CPU time at its first answer."""
        params = {
            "protocolVersion": REVISION,
            "capabilities": {},
            "clientInfo": {"name": "bench", "version": "0"},
        }
        self._send([_request(0, "initialize", params)])
        next(self._receive())
        cpu_seconds = self.cpu_seconds()
        self._send([msgspec.json.encode({"jsonrpc": "2.0", "method": "notifications/initialized"})])
        return cpu_seconds

    def call(self, tool: str, **arguments: int) -> Answer:
        """What a tool answers when nothing else is in flight."""
        self._last_id += 1
        meta = {"progressToken": self._last_id}
        params = {"name": tool, "arguments": arguments, "_meta": meta}
        self._send([_request(self._last_id, "tools/call", params)])
        for notifications, message in enumerate(self._receive()):
            if message.method is None:
                return Answer(_text(message), notifications)
        raise AssertionError("unreachable")

    def add(self, *, in_flight: int, seconds: float) -> Cost:
        """Keep so many calls of `add` in flight for so long."""
        end = time.perf_counter() + seconds
        cpu_seconds = self.cpu_seconds()
        sent: dict[int, float] = {}
        call_seconds: list[float] = []
        self._send_adds(in_flight, sent)
        while sent:
            answers = self._receive_some()
            now = time.perf_counter()
            call_seconds += [now - sent.pop(_checked_id(answer)) for answer in answers]
            if now < end:
                self._send_adds(len(answers), sent)
        return Cost(self.cpu_seconds() - cpu_seconds, call_seconds)

    def _send_adds(self, count: int, sent: dict[int, float]) -> None:
        ids = range(self._last_id + 1, self._last_id + count + 1)
        self._last_id += count
        frames = [
            _request(id_, "tools/call", {"name": "add", "arguments": {"a": id_, "b": 1}})
            for id_ in ids
        ]
        sent.update(dict.fromkeys(ids, time.perf_counter()))
        self._send(frames)

    def _send(self, frames: Sequence[bytes]) -> None:
        data = memoryview(b"\n".join([*frames, b""]))
        while data:
            data = data[os.write(self._to_server, data) :]

    def _receive(self) -> Iterator[Message]:
        while True:
            yield from self._receive_some()

    def _receive_some(self) -> list[Message]:
        """At least one message."""
        while True:
            chunk = os.read(self._from_server, CHUNK_BYTES)
            if not chunk:
                raise RuntimeError("the server ended")
            *ends, rest = chunk.split(b"\n")
            if ends:
                lines = [b"".join([*self._unread, ends[0]]), *ends[1:]]
                self._unread = [rest]
                return [self._decode(line) for line in lines]
            self._unread.append(rest)


def _request(id_: int, method: str, params: object) -> bytes:
    return msgspec.json.encode({"jsonrpc": "2.0", "id": id_, "method": method, "params": params})


def _text(message: Message) -> str:
    if message.result is None or message.result.is_error:
        raise RuntimeError(f"a call failed: {message}")
    return message.result.content[0].text


def _checked_id(answer: Message) -> int:
    if answer.id is None or _text(answer) != str(answer.id + 1):
        raise RuntimeError(f"a wrong answer: {answer}")
    return answer.id
