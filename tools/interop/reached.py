"""How a client is told of a server: by the command that starts it, or by a URL."""

import re
import subprocess
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs
from peers import Command, Transport

BEGIN_SECONDS: Final = 30.0
END_SECONDS: Final = 15.0
LOOK_SECONDS: Final = 0.02
LAST_LINES: Final = 12

PATHS: Final[Mapping[Transport, str]] = {"http": "/mcp", "sse": "/sse"}


class ServerFailed(Exception):  # noqa: N818  what happened, in a word
    """A server did not begin to serve, or did not end."""


@attrs.frozen
class Served:
    """A server that serves: its process, and what its URLs begin with."""

    process: "subprocess.Popen[bytes]"
    origin: str


@contextmanager
def served(command: Command, log: Path) -> Generator[Served]:
    """A server that serves meanwhile; what it prints is left in the log.

    Raises:
        ServerFailed: It does not serve, or does not stop when it should.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield Served(process, _origin_of(process, log))
    finally:
        _stop(process, log)


@contextmanager
def reachable(command: Command, transport: Transport, log: Path) -> Generator[Command]:
    """What a client is told of a server, which serves meanwhile if it is reached by a URL.

    Raises:
        ServerFailed: It does not serve, or does not stop when it should.
    """
    if transport == "stdio":
        yield command
        return
    with served(command, log) as server:
        yield [server.origin + PATHS[transport]]


def _origin_of(process: "subprocess.Popen[bytes]", log: Path) -> str:
    """The first URL that a server tells, without its path."""
    end = time.monotonic() + BEGIN_SECONDS
    while process.poll() is None and time.monotonic() < end:
        if found := re.search(r"http://[0-9.]+:[0-9]+(?=[/\s])", log.read_text("utf-8", "replace")):
            return found[0]
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
