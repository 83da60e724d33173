"""A neutral load generator: raw JSON-RPC to a server process, over its pipes or a socket.

Every server gets the same bytes, and each of its messages is decoded and checked. The result is the
server's CPU time, with all threads and the kernel's share, without this process.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol, Self, TypeVar

import attrs
import msgspec

sys.path.append(str(Path(__file__).resolve().parents[1]))  # for `server_processes`

Name = TypeVar("Name")

CHUNK_BYTES: Final = 1 << 20
CLOSE_SECONDS: Final = 10.0
LEGACY: Final = "2024-11-05"
NEWEST_LEGACY: Final = "2025-11-25"
STATELESS_VERSION: Final = "2026-07-28"

# The metadata of each request without a handshake.
METADATA: Final = {
    "io.modelcontextprotocol/protocolVersion": STATELESS_VERSION,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "0"},
}

# The clock of all of a process's CPU time, as clock_getcpuclockid(3) makes it from a process id.
_CPUCLOCK_SCHED: Final = 2
_TICK_SECONDS_MAX: Final = 0.01


class Content(msgspec.Struct):
    """One piece of a result."""

    text: str = ""


class Tool(msgspec.Struct):
    """The checked part of a listed tool."""

    name: str


class Result(msgspec.Struct):
    """The checked part of a result."""

    content: list[Content] = []
    tools: list[Tool] = []
    is_error: bool = msgspec.field(default=False, name="isError")
    next_cursor: str | None = msgspec.field(default=None, name="nextCursor")


class Message(msgspec.Struct):
    """Anything that a server sends."""

    id: int | None = None
    method: str | None = None
    result: Result | None = None


class Answer(NamedTuple):
    """The text of a tool result, and the number of notifications before it."""

    text: str
    notifications: int


class Cost(NamedTuple):
    """The cost of a load: the server's CPU time, and the durations."""

    cpu_seconds: float
    seconds: float
    call_seconds: Sequence[float]

    @property
    def cpu_ms_per_1000(self) -> float:
        """The CPU time that all servers are compared by."""
        return self.cpu_seconds * 1_000_000 / len(self.call_seconds)

    @property
    def calls_per_second(self) -> float:
        return len(self.call_seconds) / self.seconds


class Start(NamedTuple):
    """The time that a server took until its first answer."""

    cpu_seconds: float
    seconds: float


class Listing(NamedTuple):
    """The listed names, their size in bytes, and the duration."""

    names: Sequence[str]
    size_bytes: int
    seconds: float


class Wire(Protocol):
    """A connection that sends and receives complete messages.

    Attributes:
        received_bytes: The number of received bytes.
    """

    received_bytes: int

    def send(self, messages: Sequence[bytes]) -> None: ...

    def receive(self) -> Sequence[bytes]:
        """Return the messages that are complete; raise RuntimeError if the server has ended."""
        ...

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """Close the connection, and wait until the server has ended."""


@attrs.define(eq=False)
class Pipes:
    """A connection over stdin and stdout."""

    _process: subprocess.Popen[bytes]
    received_bytes: int = attrs.field(default=0, init=False)
    _unread: list[bytes] = attrs.field(factory=list[bytes], init=False)

    def send(self, messages: Sequence[bytes]) -> None:
        assert self._process.stdin
        data = memoryview(b"\n".join([*messages, b""]))
        while data:
            data = data[os.write(self._process.stdin.fileno(), data) :]

    def receive(self) -> Sequence[bytes]:
        assert self._process.stdout
        chunk = os.read(self._process.stdout.fileno(), CHUNK_BYTES)
        if not chunk:
            raise RuntimeError("the server ended")
        self.received_bytes += len(chunk)
        *ends, rest = chunk.split(b"\n")
        if not ends:
            self._unread.append(rest)
            return []
        lines = [b"".join([*self._unread, ends[0]]), *ends[1:]]
        self._unread = [rest]
        return lines

    def end(self, process: subprocess.Popen[bytes]) -> None:
        process.communicate(timeout=CLOSE_SECONDS)


class ServerUnderLoad:
    """A server process while the block runs; `connect` opens a connection other than pipes."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        protocol_version: str = LEGACY,
        *,
        connect: Callable[[subprocess.Popen[bytes]], Wire] = Pipes,
    ) -> None:
        self._protocol_version = protocol_version
        self._meta: Mapping[str, object] = METADATA if protocol_version == STATELESS_VERSION else {}
        self._begin = time.perf_counter()
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        try:
            self._wire = connect(self._process)
        except BaseException:
            self._process.kill()
            raise
        self._last_id = 0
        self._decode = msgspec.json.Decoder(Message).decode

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Stop the server, or kill it."""
        with self._process:
            try:
                self._wire.end(self._process)
            finally:
                self._process.kill()

    def cpu_seconds(self) -> float:
        return cpu_seconds_of(self._process.pid)

    def rss_mib(self) -> float:
        return rss_mib_of(self._process.pid)

    def initialize(self) -> Start:
        """Initialize, or discover the server where there is no handshake."""
        if self._meta:
            self._send([_request(0, "server/discover", {"_meta": self._meta})])
            next(self._receive())
            return self._start()
        self._send([initialize_request(self._protocol_version)])
        next(self._receive())
        start = self._start()
        self._send([msgspec.json.encode({"jsonrpc": "2.0", "method": "notifications/initialized"})])
        return start

    def _start(self) -> Start:
        wall_seconds = time.perf_counter() - self._begin
        return Start(self.cpu_seconds(), wall_seconds)

    def call(self, tool: str, **arguments: int | str) -> Answer:
        """Return a tool's answer, with no other call in flight."""
        self._last_id += 1
        meta = {**self._meta, "progressToken": self._last_id}
        params = {"name": tool, "arguments": arguments, "_meta": meta}
        self._send([_request(self._last_id, "tools/call", params)])
        for notifications, message in enumerate(self._receive()):
            if message.method is None:
                return Answer(_text(message), notifications)
        raise AssertionError("unreachable")

    def list_tools(self) -> Listing:
        """List the tools of all pages."""
        begin, begin_bytes = time.perf_counter(), self._wire.received_bytes
        names: list[str] = []
        cursor: str | None = None
        while True:
            page = self._page(cursor)
            names += [tool.name for tool in page.tools]
            cursor = page.next_cursor
            if cursor is None:
                size_bytes = self._wire.received_bytes - begin_bytes
                return Listing(names, size_bytes, time.perf_counter() - begin)

    def _page(self, cursor: str | None) -> Result:
        self._last_id += 1
        params: dict[str, object] = {"_meta": self._meta} if self._meta else {}
        if cursor is not None:
            params["cursor"] = cursor
        self._send([_request(self._last_id, "tools/list", params)])
        result = next(self._receive()).result
        if result is None or not result.tools:
            raise RuntimeError("there is no list of tools")
        return result

    def add(self, *, in_flight: int, seconds: float) -> Cost:
        """Keep so many calls of `add` in flight for so many seconds."""
        cpu_seconds = self.cpu_seconds()
        begin = time.perf_counter()
        end = begin + seconds
        sent: dict[int, float] = {}
        call_seconds: list[float] = []
        self._send_adds(in_flight, sent)
        while sent:
            answers = self._receive_some()
            now = time.perf_counter()
            call_seconds += [now - sent.pop(checked_id(answer)) for answer in answers]
            if now < end:
                self._send_adds(len(answers), sent)
        wall_seconds = time.perf_counter() - begin
        return Cost(self.cpu_seconds() - cpu_seconds, wall_seconds, call_seconds)

    def _send_adds(self, count: int, sent: dict[int, float]) -> None:
        ids = range(self._last_id + 1, self._last_id + count + 1)
        self._last_id += count
        meta = {"_meta": self._meta} if self._meta else {}
        messages = [
            _request(id_, "tools/call", {"name": "add", "arguments": {"a": id_, "b": 1}, **meta})
            for id_ in ids
        ]
        sent.update(dict.fromkeys(ids, time.perf_counter()))
        self._send(messages)

    def _send(self, messages: Sequence[bytes]) -> None:
        self._wire.send(messages)

    def _receive(self) -> Iterator[Message]:
        while True:
            yield from self._receive_some()

    def _receive_some(self) -> list[Message]:
        while not (lines := self._wire.receive()):
            pass
        return [self._decode(line) for line in lines]


def cpu_seconds_of(process: int) -> float:
    """Return the CPU time of a process so far, after a wait until the kernel has counted it.

    The kernel counts a thread's time when the thread goes to sleep, and at each tick while it runs.
    A process that has just answered is often still on its way to sleep.
    """
    time.sleep(_TICK_SECONDS_MAX)
    return time.clock_gettime((~process << 3) | _CPUCLOCK_SCHED)


def rss_mib_of(process: int) -> float:
    """Return the resident memory of a process."""
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def rotated(names: Sequence[Name], by: int) -> Sequence[Name]:
    """Return the names, starting with another one in each turn."""
    first = by % len(names)
    return [*names[first:], *names[:first]]


def initialize_request(protocol_version: str) -> bytes:
    """Return the `initialize` request of a legacy client."""
    params = {
        "protocolVersion": protocol_version,
        "capabilities": {},
        "clientInfo": {"name": "bench", "version": "0"},
    }
    return _request(0, "initialize", params)


def tool_call(tool: str, arguments: Mapping[str, object], number: int = 1, **meta: object) -> bytes:
    """Return the tool call of a stateless client; `meta` is added to its metadata."""
    params = {"name": tool, "arguments": arguments, "_meta": {**METADATA, **meta}}
    return _request(number, "tools/call", params)


def _request(id_: int, method: str, params: object) -> bytes:
    return msgspec.json.encode({"jsonrpc": "2.0", "id": id_, "method": method, "params": params})


def _text(message: Message) -> str:
    if message.result is None or message.result.is_error:
        raise RuntimeError(f"a call failed: {message}")
    return message.result.content[0].text


def checked_id(answer: Message) -> int:
    """Return the id of an answer to `add`, after checking the result."""
    if answer.id is None or _text(answer) != str(answer.id + 1):
        raise RuntimeError(f"a wrong answer: {answer}")
    return answer.id
