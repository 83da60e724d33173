"""A well-behaved client beside the faults: `python well_behaved_session.py URL`.

It keeps one session; what it prints is told in `observed_process.call_for_ever`.
"""

import contextlib
import socket
import sys
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import attrs
import msgspec

sys.path += [str(Path(__file__).resolve().parents[1] / each) for each in ("", "bench")]

from load import called
from observed_process import WORDS, call_for_ever
from socket_wires import LineWire, WebSocketWire, tcp_socket, unix_socket

ANSWER_SECONDS: Final = 10.0


def connected(url: str) -> LineWire:
    """A way to a server."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return LineWire(_patient(unix_socket(Path(parts.path))))
    assert parts.port is not None
    connection = _patient(tcp_socket(parts.port))
    if parts.scheme == "tcp":
        return LineWire(connection)
    wire = WebSocketWire(connection)
    wire.open(parts.path)
    return wire


def _patient(connection: socket.socket) -> socket.socket:
    connection.settimeout(ANSWER_SECONDS)
    return connection


def text_of(wire: LineWire, request: bytes) -> str:
    """What a tool answers.

    Raises:
        RuntimeError: Nothing, as the server is gone.
        OSError: Nothing in time.
    """
    wire.send([request])
    while not (messages := wire.receive()):
        pass
    answer = msgspec.json.decode(messages[0])
    text: str = answer["result"]["content"][0]["text"]
    return text


@attrs.define
class Session:
    """One after the other: a call that fails ends it."""

    url: str
    _wire: LineWire | None = attrs.field(default=None, init=False)

    def is_answered(self) -> bool:
        """Whether a call is answered as it should be."""
        answer = ""
        with contextlib.suppress(OSError, RuntimeError):
            self._wire = self._wire or connected(self.url)
            answer = text_of(self._wire, called("echo", {"text": WORDS}))
        if answer != WORDS:
            self._wire = None
        return answer == WORDS


if __name__ == "__main__":
    call_for_ever(Session(sys.argv[1]).is_answered)
