"""A client that means well, beside the faults of `troubling.py`: `python session_neighbour.py URL`.

It keeps one session, and calls again and again; what it prints is told in `under_attack.Neighbour`.
"""

import contextlib
import socket
import sys
import time
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec
from raw_ends import called

sys.path.append(str(Path(__file__).resolve().parent.parent / "bench"))

from socket_wires import LineWire, WebSocketWire, tcp_socket, unix_socket

PAUSE_SECONDS: Final = 0.05
ANSWER_SECONDS: Final = 10.0
WORDS: Final = "Is anybody there?"


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


def main(url: str) -> None:
    """Call until somebody ends it."""
    wire: LineWire | None = None
    while True:
        begin = time.monotonic()
        answer = ""
        with contextlib.suppress(OSError, RuntimeError):
            wire = wire or connected(url)
            answer = text_of(wire, called("echo", text=WORDS))
        print(begin, time.monotonic() - begin if answer == WORDS else "", flush=True)
        if answer != WORDS:
            wire = None  # the next call is from a new session
        time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    main(sys.argv[1])
