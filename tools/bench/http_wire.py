"""HTTP/1.1 as a benchmark needs it: requests that are made beforehand, answers read whole."""

import socket
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Final, NamedTuple, Self

CHUNK_BYTES: Final = 1 << 16
ANSWER_SECONDS: Final = 10.0
EVENT_STREAM: Final = "text/event-stream"

_LENGTHLESS: Final = frozenset({"204", "304"})


class Response(NamedTuple):
    """A whole answer; names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def messages(self) -> Iterator[bytes]:
        """The messages in the body, be it one or a stream of events."""
        if not self.headers.get("content-type", "").startswith(EVENT_STREAM):
            yield self.body
            return
        for line in self.body.splitlines():
            if line.startswith(b"data:") and line[5:].strip():
                yield line[5:]


class ResponseReader:
    """Takes what comes until an answer is whole."""

    def __init__(self) -> None:
        self._received = bytearray()

    def feed(self, chunk: bytes) -> Response | None:
        """The answer, if this was the last of it.

        Raises:
            RuntimeError: Something comes after its end, or its end cannot be known.
        """
        self._received += chunk
        head, found, rest = bytes(self._received).partition(b"\r\n\r\n")
        if not found:
            return None
        first, *lines = head.decode("latin-1").split("\r\n")
        fields = (line.partition(":") for line in lines)
        headers = {name.lower(): value.strip() for name, _, value in fields}
        status = first.split(" ", 2)[1]
        body = _body(status, headers, rest)
        if body is None:
            return None
        self._received.clear()
        return Response(int(status), headers, body)


def _body(status: str, headers: Mapping[str, str], rest: bytes) -> bytes | None:
    """The body, if it is whole."""
    if "chunked" in headers.get("transfer-encoding", ""):
        return _joined(rest)
    if status in _LENGTHLESS:
        return b""
    length = int(headers["content-length"])
    if len(rest) > length:
        raise RuntimeError("more than one answer came")
    return rest if len(rest) == length else None


def _joined(rest: bytes) -> bytes | None:
    """The chunks, if the last one has come."""
    pieces: list[bytes] = []
    while rest:
        size, found, rest = rest.partition(b"\r\n")
        length = int(size, 16) if found else 0
        if not found or len(rest) < length + 2:
            return None
        if length == 0:
            return b"".join(pieces)
        pieces.append(rest[:length])
        rest = rest[length + 2 :]
    return None


class Link:
    """A connection, for one request at a time; a context manager."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = ResponseReader()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close it."""
        self.socket.close()

    def send(self, request: bytes) -> None:
        """Send a whole request."""
        self.socket.sendall(request)

    def receive(self) -> Response | None:
        """Take what has come; the answer, if it is whole.

        Raises:
            RuntimeError: The server has closed the connection.
        """
        chunk = self.socket.recv(CHUNK_BYTES)
        if not chunk:
            raise RuntimeError("the server has closed the connection")
        return self._reader.feed(chunk)

    def ask(self, request: bytes) -> Response:
        """The answer to a request, when nothing else is in flight."""
        self.send(request)
        while True:
            response = self.receive()
            if response is not None:
                return response


def written(method: str, port: int, headers: Mapping[str, str], body: bytes = b"") -> bytes:
    """A request for the MCP endpoint, as bytes."""
    fields = {"Host": f"127.0.0.1:{port}", **headers}
    if body:
        fields["Content-Length"] = str(len(body))
    lines = [f"{method} /mcp HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body
