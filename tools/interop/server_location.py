"""The command or the URL by which a client reaches a server.

The command may be that of a server which dials: then the client is told to be a hub.
"""

import re
import subprocess
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs
from facts import HUB
from peers import Command, Transport

BEGIN_SECONDS: Final = 30.0
END_SECONDS: Final = 15.0
LOOK_SECONDS: Final = 0.02
LAST_LINES: Final = 12

PLACES: Final[Mapping[Transport, str]] = {
    "http": "http://{}/mcp",
    "sse": "http://{}/sse",
    "websocket": "ws://{}/ws",
}
IN_FRONT: Final[Mapping[Transport, Command]] = {"stdio": [], "dialled": [HUB]}


class ServerFailed(Exception):  # noqa: N818  what happened, in a word
    """A server did not begin to serve, or did not end."""


@attrs.frozen
class Served:
    """A server that serves: its process, and at which host and port."""

    process: "subprocess.Popen[bytes]"
    address: str

    @property
    def origin(self) -> str:
        """What its URLs of HTTP begin with."""
        return f"http://{self.address}"


@contextmanager
def served(command: Command, log: Path) -> Generator[Served]:
    """A server that serves meanwhile; what it prints is left in the log.

    Raises:
        ServerFailed: It does not serve, or does not stop when it should.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield Served(process, _address_of(process, log))
    finally:
        _stop(process, log)


@contextmanager
def reachable(command: Command, transport: Transport, log: Path) -> Generator[Command]:
    """What a client is told of a server, which serves meanwhile if it is reached by a URL.

    Raises:
        ServerFailed: It does not serve, or does not stop when it should.
    """
    if transport in IN_FRONT:
        yield [*IN_FRONT[transport], *command]
        return
    with served(command, log) as server:
        yield [PLACES[transport].format(server.address)]


def _address_of(process: "subprocess.Popen[bytes]", log: Path) -> str:
    """The host and the port of the first URL that a server tells."""
    end = time.monotonic() + BEGIN_SECONDS
    while process.poll() is None and time.monotonic() < end:
        told = log.read_text("utf-8", "replace")
        if found := re.search(r"(?:http|ws)://([0-9.]+:[0-9]+)(?=[/\s])", told):
            return found[1]
        time.sleep(LOOK_SECONDS)
    raise ServerFailed(f"the server does not serve: {last_lines(log.read_bytes())}")


def _stop(process: "subprocess.Popen[bytes]", log: Path) -> None:
    process.terminate()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        told = last_lines(log.read_bytes())
        raise ServerFailed(f"the server went on for {END_SECONDS:g} s: {told}") from None


def last_lines(text: str | bytes) -> str:
    """The end of what a program has told."""
    decoded = text.decode(errors="replace") if isinstance(text, bytes) else text
    return "\n".join(["", *decoded.splitlines()[-LAST_LINES:]])
