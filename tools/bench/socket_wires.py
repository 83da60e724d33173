"""How the load generator talks over a socket: one message a line, or one a WebSocket text message.

Nothing here checks what a good peer need not do wrong: the servers are those that are measured.
"""

import socket
import struct
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import attrs
from load import CHUNK_BYTES, CLOSE_SECONDS

START_SECONDS: Final = 30.0
START_PAUSE_SECONDS: Final = 0.01

WHOLE: Final = 0x80
TEXT, BINARY, CLOSE, PING, PONG = 0x1, 0x2, 0x8, 0x9, 0xA
"""What begins a frame: that it is the last of its message, and what it is."""

_MASKED: Final = 0x80
_MASK: Final = bytes(4)
_LENGTH_BITS: Final = 0x7F
_SHORT_MAX: Final = 125
_TWO_BYTES, _EIGHT_BYTES = 126, 127


def connected(
    connect: Callable[[], socket.socket], process: subprocess.Popen[bytes]
) -> socket.socket:
    """A connection to a server that has just been started, and is to listen soon.

    Raises:
        RuntimeError: It does not.
    """
    end = time.perf_counter() + START_SECONDS
    while process.poll() is None and time.perf_counter() < end:
        try:
            return connect()
        except (ConnectionRefusedError, FileNotFoundError):
            time.sleep(START_PAUSE_SECONDS)
    raise RuntimeError(f"the server does not listen: {process.args!r}")


def unix_socket(path: Path) -> socket.socket:
    """A connection to a socket file."""
    made = socket.socket(socket.AF_UNIX)
    try:
        made.connect(str(path))
    except OSError:
        made.close()
        raise
    return made


def tcp_socket(port: int) -> socket.socket:
    """A connection to a port of this machine; nothing waits for more to send."""
    made = socket.create_connection(("127.0.0.1", port))
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


@attrs.define(eq=False)
class LineWire:
    """See `load.Wire`; over a socket, one message a line."""

    _socket: socket.socket
    received_bytes: int = attrs.field(default=0, init=False)
    _rest: bytes = attrs.field(default=b"", init=False)

    def send(self, frames: Sequence[bytes]) -> None:
        """See `load.Wire`."""
        self._socket.sendall(b"\n".join([*frames, b""]))

    def receive(self) -> Sequence[bytes]:
        """See `load.Wire`."""
        *lines, self._rest = (self._rest + self._chunk()).split(b"\n")
        return lines

    def _chunk(self) -> bytes:
        chunk = self._socket.recv(CHUNK_BYTES)
        if not chunk:
            raise RuntimeError("the server ended")
        self.received_bytes += len(chunk)
        return chunk

    def close(self) -> None:
        """Say nothing more."""
        self._socket.close()

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """See `load.Wire`."""
        self.close()
        process.terminate()
        process.wait(timeout=CLOSE_SECONDS)


@attrs.define(eq=False)
class WebSocketWire(LineWire):
    """The same over a WebSocket, which is opened at a path."""

    def open(self, path: str) -> None:
        """Shake hands.

        Raises:
            RuntimeError: The server did not want to.
        """
        host, port = self._socket.getpeername()
        self._socket.sendall(handshake(f"{host}:{port}", path))
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += self._chunk()
        head, _, self._rest = answer.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 101 "):
            raise RuntimeError(f"there is no WebSocket: {answer!r}")

    def send(self, frames: Sequence[bytes]) -> None:
        """See `load.Wire`."""
        self._socket.sendall(b"".join(masked(WHOLE | TEXT, each) for each in frames))

    def receive(self) -> Sequence[bytes]:
        """See `load.Wire`; answers pings."""
        frames, self._rest = frames_in(self._rest + self._chunk())
        for each in frames:
            if each.first_byte == WHOLE | PING:
                self._socket.sendall(masked(WHOLE | PONG, each.payload))
            elif each.first_byte != WHOLE | TEXT:
                raise RuntimeError(f"no text message of one frame: {each!r}")
        return [each.payload for each in frames if each.first_byte == WHOLE | TEXT]


def handshake(host: str, path: str, **others: str) -> bytes:
    """A request to become a WebSocket; `others` replaces its headers, by their names."""
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
    """What stands in a frame; the first byte says what it is, and whether it is whole."""

    first_byte: int
    payload: bytes


def masked(first_byte: int, payload: bytes) -> bytes:
    """A client's frame; its mask is of zeros, which leave the payload as it is."""
    size = len(payload)
    if size <= _SHORT_MAX:
        head = struct.pack("!BB", first_byte, _MASKED | size)
    elif size < 1 << 16:
        head = struct.pack("!BBH", first_byte, _MASKED | _TWO_BYTES, size)
    else:
        head = struct.pack("!BBQ", first_byte, _MASKED | _EIGHT_BYTES, size)
    return b"".join([head, _MASK, payload])


def frames_in(data: bytes) -> tuple[Sequence[Frame], bytes]:
    """A server's frames, and what is behind the last whole one."""
    frames: list[Frame] = []
    begin = 0
    while (span := _payload_of(data, begin)) is not None:
        frames.append(Frame(data[begin], data[span[0] : span[1]]))
        begin = span[1]
    return frames, data[begin:]


def _payload_of(data: bytes, begin: int) -> tuple[int, int] | None:
    """Between which bytes the payload of the next frame is, once all of it is there."""
    if len(data) < begin + 2:
        return None
    size, first = data[begin + 1] & _LENGTH_BITS, begin + 2
    wide = {_TWO_BYTES: 2, _EIGHT_BYTES: 8}.get(size, 0)
    if wide:
        if len(data) < first + wide:
            return None
        size, first = int.from_bytes(data[first : first + wide], "big"), first + wide
    return (first, first + size) if len(data) >= first + size else None
