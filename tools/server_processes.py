"""Run the processes of servers: ports, the wait until they serve, their end; Redis.

Needs only Python, as some tools run in environments of other packages.
"""

import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

START_SECONDS = 120.0  # a busy machine starts six servers slowly
STOP_SECONDS = 15.0
LAST_LINES = 12
_POLL_SECONDS = 0.02
_URL = re.compile(r"((?:https?|wss?|tcp)://[0-9.]+:[0-9]+\S*|unix:\S+)\s")


class ServerFailed(RuntimeError):  # noqa: N818  what happened, in a word
    """The server did not start to serve, or did not stop."""


class RunningServer(NamedTuple):
    """A running server process and its URL."""

    process: "subprocess.Popen[bytes]"
    url: str

    @property
    def address(self) -> str:
        """The host and port, such as "127.0.0.1:8000"."""
        return urlsplit(self.url).netloc

    @property
    def port(self) -> int:
        """The port; 0 for the file of a Unix socket."""
        return urlsplit(self.url).port or 0

    @property
    def origin(self) -> str:
        return f"http://{self.address}"


@contextmanager
def running_server(command: Sequence[str], log: Path, **options: Any) -> Iterator[RunningServer]:
    """Run a server that prints its URL while the block runs, with its output in `log`.

    Args:
        command: The command of the server.
        log: The file for stdout and stderr.
        options: Those of `subprocess.Popen`.

    Raises:
        ServerFailed: The server ended or printed no URL within `START_SECONDS`, or did not stop.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, **options)
    try:
        yield RunningServer(process, _printed_url(process, log))
    finally:
        if not stop(process):
            tail = last_lines(log.read_bytes())
            raise ServerFailed(f"the server did not stop within {STOP_SECONDS:g} s: {tail}")


def _printed_url(process: "subprocess.Popen[bytes]", log: Path) -> str:
    end = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < end:
        if found := _URL.search(log.read_text("utf-8", "replace")):
            return found[1]
        time.sleep(_POLL_SECONDS)
    raise ServerFailed(f"the server did not start: {last_lines(log.read_bytes())}")


def last_lines(text: str | bytes) -> str:
    """Return the end of a log, on lines of its own."""
    decoded = text.decode(errors="replace") if isinstance(text, bytes) else text
    return "".join(f"\n{line}" for line in decoded.splitlines()[-LAST_LINES:])


def free_port() -> int:
    """Return a local TCP port that is not in use."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def listening(command: Callable[[int], Sequence[str]], **options: Any) -> Iterator[RunningServer]:
    """Run the command for a free port while the block runs, once a server listens there.

    Args:
        command: Returns the command for a port.
        options: Those of `subprocess.Popen`; by default the process has no stdin and no output.

    Raises:
        ServerFailed: The process has ended, or does not listen within `START_SECONDS`.
    """
    port = free_port()
    null = subprocess.DEVNULL
    started = {"stdin": null, "stdout": null, "stderr": null, **options}
    process: subprocess.Popen[bytes] = subprocess.Popen(command(port), **started)
    try:
        wait_until_listening(port, process)
        yield RunningServer(process, f"http://127.0.0.1:{port}")
    finally:
        stop(process)


def wait_until_listening(port: int, process: "subprocess.Popen[Any]") -> None:
    """Wait until a process listens at a local port; raise `ServerFailed` as `connected` does."""
    connected(lambda: socket.create_connection(("127.0.0.1", port)), process).close()


def connected(
    connect: Callable[[], socket.socket], process: "subprocess.Popen[Any]"
) -> socket.socket:
    """Connect to a server process that starts to listen soon.

    Raises:
        ServerFailed: The process has ended, or does not listen within `START_SECONDS`.
    """
    end = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < end:
        with suppress(ConnectionRefusedError, FileNotFoundError):
            return connect()
        time.sleep(_POLL_SECONDS)
    raise ServerFailed(f"the server does not listen: {process.args!r}")


def stop(process: "subprocess.Popen[Any]") -> bool:
    """Terminate a process, or kill it after `STOP_SECONDS`; return whether it ended in time."""
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return False
    return True


class RedisProcess:
    """A Redis of its own on a free port, whose files are in a folder.

    With `keeps_data` it has its data again after a restart.
    """

    def __init__(self, folder: str, *, keeps_data: bool = False) -> None:
        self.folder = folder
        self.keeps_data = keeps_data
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start Redis, and wait until it listens.

        Raises:
            RuntimeError: Redis is not installed.
            ServerFailed: Redis does not listen.
        """
        program = shutil.which("redis-server") or shutil.which("valkey-server")
        if program is None:
            raise RuntimeError("redis-server is not installed: apt-get install redis-server")
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", self.folder]
        options += ["--save", "", "--appendonly", "yes" if self.keeps_data else "no"]
        self.process = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL)
        wait_until_listening(self.port, self.process)

    def signal(self, number: int) -> None:
        """Send a signal to Redis, if it runs."""
        if self.process is not None:
            self.process.send_signal(number)

    def stop(self) -> None:
        """Stop Redis, and wait for its end."""
        if self.process is not None:
            stop(self.process)
            self.process = None
