"""A small HTTP/1.1 client for benchmarks: prepared requests, complete responses."""

import socket
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, Self

CHUNK_BYTES: Final = 1 << 16
ANSWER_SECONDS: Final = 10.0
EVENT_STREAM: Final = "text/event-stream"

_LENGTHLESS: Final = frozenset({"204", "304"})


class Response(NamedTuple):
    """A complete response; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def messages(self) -> Iterator[bytes]:
        """Return the messages of the body, JSON or an event stream."""
        if not self.headers.get("content-type", "").startswith(EVENT_STREAM):
            yield self.body
            return
        for line in self.body.splitlines():
            if line.startswith(b"data:") and line[5:].strip():
                yield line[5:]


class ResponseReader:
    """Collects received data until a response is complete."""

    def __init__(self) -> None:
        self._received = bytearray()

    def feed(self, chunk: bytes) -> Response | None:
        """Return the response once it is complete, None before."""
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
    if "chunked" in headers.get("transfer-encoding", ""):
        return _joined(rest)
    if status in _LENGTHLESS:
        return b""
    length = int(headers["content-length"])
    if len(rest) > length:
        raise RuntimeError("more than one answer came")
    return rest if len(rest) == length else None


def _joined(rest: bytes) -> bytes | None:
    """Return the joined chunks once the last one has arrived."""
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


class HttpConnection:
    """A connection with one request at a time; a context manager."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = ResponseReader()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.socket.close()

    def send(self, request: bytes) -> None:
        self.socket.sendall(request)

    def receive(self) -> Response | None:
        """Receive data; return the response once it is complete."""
        chunk = self.socket.recv(CHUNK_BYTES)
        if not chunk:
            raise RuntimeError("the server has closed the connection")
        return self._reader.feed(chunk)

    def ask(self, request: bytes) -> Response:
        """Send a request, and return its response."""
        self.send(request)
        while True:
            response = self.receive()
            if response is not None:
                return response


def request_bytes(method: str, port: int, headers: Mapping[str, str], body: bytes = b"") -> bytes:
    """Return a request to the MCP endpoint, as bytes."""
    fields = {"Host": f"127.0.0.1:{port}", **headers}
    if body:
        fields["Content-Length"] = str(len(body))
    lines = [f"{method} /mcp HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body
