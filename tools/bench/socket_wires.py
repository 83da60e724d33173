"""Socket connections of the load generator: a line or a WebSocket text message for each message.

Servers are expected to follow the protocols: only what a benchmark needs is implemented and
checked.
"""

import socket
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import attrs
from load import CHUNK_BYTES, CLOSE_SECONDS

FIN: Final = 0x80
TEXT, BINARY, CLOSE, PING, PONG = 0x1, 0x2, 0x8, 0x9, 0xA
"""The first byte of a frame: FIN for the last one of a message, and the opcode."""

_MASKED: Final = 0x80
_MASK: Final = bytes(4)
_LENGTH_BITS: Final = 0x7F
_SHORT_MAX: Final = 125
_TWO_BYTES, _EIGHT_BYTES = 126, 127


def unix_socket(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    try:
        made.connect(str(path))
    except OSError:
        made.close()
        raise
    return made


def tcp_socket(port: int) -> socket.socket:
    """Connect to a local port, without Nagle's algorithm."""
    made = socket.create_connection(("127.0.0.1", port))
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


@attrs.define(eq=False)
class LineWire:
    """A connection that exchanges lines."""

    _socket: socket.socket
    received_bytes: int = attrs.field(default=0, init=False)
    _rest: bytes = attrs.field(default=b"", init=False)

    def send(self, messages: Sequence[bytes]) -> None:
        self._socket.sendall(b"\n".join([*messages, b""]))

    def receive(self) -> Sequence[bytes]:
        *lines, self._rest = (self._rest + self._chunk()).split(b"\n")
        return lines

    def _chunk(self) -> bytes:
        chunk = self._socket.recv(CHUNK_BYTES)
        if not chunk:
            raise RuntimeError("the server ended")
        self.received_bytes += len(chunk)
        return chunk

    def close(self) -> None:
        self._socket.close()

    def end(self, process: subprocess.Popen[bytes]) -> None:
        self.close()
        process.terminate()
        process.wait(timeout=CLOSE_SECONDS)


@attrs.define(eq=False)
class WebSocketWire(LineWire):
    """A WebSocket connection."""

    def open(self, path: str) -> None:
        """Send the handshake for a path, and wait for its answer."""
        host, port = self._socket.getpeername()
        self._socket.sendall(handshake(f"{host}:{port}", path))
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += self._chunk()
        head, _, self._rest = answer.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 101 "):
            raise RuntimeError(f"there is no WebSocket: {answer!r}")

    def send(self, messages: Sequence[bytes]) -> None:
        self._socket.sendall(b"".join(masked(FIN | TEXT, each) for each in messages))

    def receive(self) -> Sequence[bytes]:
        """Return the received messages, and answer pings."""
        frames, self._rest = frames_in(self._rest + self._chunk())
        for each in frames:
            if each.first_byte == FIN | PING:
                self._socket.sendall(masked(FIN | PONG, each.payload))
            elif each.first_byte != FIN | TEXT:
                raise RuntimeError(f"no text message of one frame: {each!r}")
        return [each.payload for each in frames if each.first_byte == FIN | TEXT]


def handshake(host: str, path: str, **others: str) -> bytes:
    """Return a WebSocket handshake; `others` replaces headers by name."""
    fields = {
        "Host": host,
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
        "Sec-WebSocket-Protocol": "mcp",
    }
    fields |= {name.replace("_", "-"): value for name, value in others.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode()


@attrs.frozen
class Frame:
    """The first byte of a frame, with FIN and opcode, and the payload."""

    first_byte: int
    payload: bytes


def masked(first_byte: int, payload: bytes) -> bytes:
    """Return a client's frame, whose mask of zeros leaves the payload unchanged."""
    size = len(payload)
    if size <= _SHORT_MAX:
        head = struct.pack("!BB", first_byte, _MASKED | size)
    elif size < 1 << 16:
        head = struct.pack("!BBH", first_byte, _MASKED | _TWO_BYTES, size)
    else:
        head = struct.pack("!BBQ", first_byte, _MASKED | _EIGHT_BYTES, size)
    return b"".join([head, _MASK, payload])


def frames_in(data: bytes) -> tuple[Sequence[Frame], bytes]:
    """Return the complete frames, and the remaining bytes."""
    frames: list[Frame] = []
    begin = 0
    while (span := _payload_of(data, begin)) is not None:
        frames.append(Frame(data[begin], data[span[0] : span[1]]))
        begin = span[1]
    return frames, data[begin:]


def _payload_of(data: bytes, begin: int) -> tuple[int, int] | None:
    """Return the bounds of the next frame's payload once it is complete."""
    if len(data) < begin + 2:
        return None
    size, first = data[begin + 1] & _LENGTH_BITS, begin + 2
    wide = {_TWO_BYTES: 2, _EIGHT_BYTES: 8}.get(size, 0)
    if wide:
        if len(data) < first + wide:
            return None
        size, first = int.from_bytes(data[first : first + wide], "big"), first + wide
    return (first, first + size) if len(data) >= first + size else None
