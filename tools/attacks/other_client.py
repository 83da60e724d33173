"""The well-behaved client beside attacks: `python other_client.py URL`.

It calls again and again: over HTTP each time on a new connection, over sockets in one session. It
prints the monotonic time at which each call began, a space, and the duration, or nothing if the
call failed.
"""

import contextlib
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn
from urllib.parse import urlsplit

import attrs
import msgspec
from http_attacks import call

sys.path.append(str(Path(__file__).resolve().parent.parent / "bench"))

from http_wire import HttpConnection
from load import tool_call
from socket_wires import LineWire, WebSocketWire, tcp_socket, unix_socket

ANSWER_SECONDS: Final = 10.0
PAUSE_SECONDS: Final = 0.05
ECHO_TEXT: Final = "Is anybody there?"


def connected(url: str) -> LineWire:
    """Connect to a server over sockets."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return LineWire(_with_timeout(unix_socket(Path(parts.path))))
    assert parts.port is not None
    connection = _with_timeout(tcp_socket(parts.port))
    if parts.scheme == "tcp":
        return LineWire(connection)
    wire = WebSocketWire(connection)
    wire.open(parts.path)
    return wire


def _with_timeout(connection: socket.socket) -> socket.socket:
    connection.settimeout(ANSWER_SECONDS)
    return connection


def text_over(wire: LineWire, tool: str, **arguments: str) -> str:
    """Call a tool, and return the text of its result.

    Raises:
        RuntimeError: The server has closed the connection.
        OSError: The answer timed out.
    """
    wire.send([tool_call(tool, arguments)])
    while not (messages := wire.receive()):
        pass
    return _text_in(messages[0])


def text_over_http(url: str, tool: str, **arguments: str) -> str:
    """Call a tool on a new HTTP connection, and return the text of its result."""
    port = urlsplit(url).port
    assert port is not None
    with HttpConnection(port) as link:
        return _text_in(next(link.ask(call(tool, arguments)).messages()))


def _text_in(message: bytes) -> str:
    answer = msgspec.json.decode(message)
    text: str = answer["result"]["content"][0]["text"]
    return text


def count_tasks(url: str) -> int:
    """Return the number of tasks in the server."""
    if url.startswith("http"):
        return int(text_over_http(url, "tasks"))
    wire = connected(url)
    try:
        return int(text_over(wire, "tasks"))
    finally:
        wire.close()


@attrs.define
class Caller:
    """Calls a server; a session is opened anew after a failed call."""

    url: str
    _wire: LineWire | None = attrs.field(default=None, init=False)

    def is_answered(self) -> bool:
        """Call, and return whether the answer is right."""
        answer = ""
        with contextlib.suppress(OSError, RuntimeError, msgspec.MsgspecError, KeyError):
            if self.url.startswith("http"):
                answer = text_over_http(self.url, "echo", text=ECHO_TEXT)
            else:
                self._wire = self._wire or connected(self.url)
                answer = text_over(self._wire, "echo", text=ECHO_TEXT)
        if answer != ECHO_TEXT:
            self._wire = None
        return answer == ECHO_TEXT


def call_forever(is_answered: Callable[[], bool]) -> NoReturn:
    while True:
        begin = time.monotonic()
        was_answered = is_answered()
        print(begin, time.monotonic() - begin if was_answered else "", flush=True)
        time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    call_forever(Caller(sys.argv[1]).is_answered)
