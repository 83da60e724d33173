"""The well-behaved client beside the faults: `python well_behaved_session.py URL`.

It keeps one session; see `observed_process.call_forever` for the output.
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
from observed_process import ECHO_TEXT, call_forever
from socket_wires import LineWire, WebSocketWire, tcp_socket, unix_socket

ANSWER_SECONDS: Final = 10.0


def connected(url: str) -> LineWire:
    """Connect to a server."""
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
    """Return the text of a tool's result.

    Raises:
        RuntimeError: The server has closed the connection.
        OSError: The answer timed out.
    """
    wire.send([request])
    while not (messages := wire.receive()):
        pass
    answer = msgspec.json.decode(messages[0])
    text: str = answer["result"]["content"][0]["text"]
    return text


@attrs.define
class Session:
    """A session that is opened anew after a failed call."""

    url: str
    _wire: LineWire | None = attrs.field(default=None, init=False)

    def is_answered(self) -> bool:
        answer = ""
        with contextlib.suppress(OSError, RuntimeError):
            self._wire = self._wire or connected(self.url)
            answer = text_of(self._wire, called("echo", {"text": ECHO_TEXT}))
        if answer != ECHO_TEXT:
            self._wire = None
        return answer == ECHO_TEXT


if __name__ == "__main__":
    call_forever(Session(sys.argv[1]).is_answered)
