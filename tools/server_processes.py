"""Run the processes of servers: a free port, the wait until a server listens, its end; Redis.

Needs only Python, as some tools run in environments of other packages.
"""

import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

START_SECONDS = 120.0  # a busy machine starts six servers slowly
STOP_SECONDS = 10.0
_POLL_SECONDS = 0.02


def free_port() -> int:
    """Return a local TCP port that is not in use."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def listening(command: Callable[[int], Sequence[str]], **options: Any) -> Iterator[int]:
    """Run the command for a free port, and yield the port once a server listens there.

    Args:
        command: Returns the command for a port.
        options: Those of `subprocess.Popen`; by default the process has no stdin and no output.

    Raises:
        RuntimeError: The process has ended, or does not listen within `START_SECONDS`.
    """
    port = free_port()
    null = subprocess.DEVNULL
    started = {"stdin": null, "stdout": null, "stderr": null, **options}
    process: subprocess.Popen[bytes] = subprocess.Popen(command(port), **started)
    try:
        connected(lambda: socket.create_connection(("127.0.0.1", port)), process).close()
        yield port
    finally:
        stop(process)


def connected(
    connect: Callable[[], socket.socket], process: "subprocess.Popen[Any]"
) -> socket.socket:
    """Connect to a server process that starts to listen soon.

    Raises:
        RuntimeError: The process has ended, or does not listen within `START_SECONDS`.
    """
    end = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < end:
        with suppress(ConnectionRefusedError, FileNotFoundError):
            return connect()
        time.sleep(_POLL_SECONDS)
    raise RuntimeError(f"the server does not listen: {process.args!r}")


def stop(process: "subprocess.Popen[Any]", seconds: float = STOP_SECONDS) -> bool:
    """Terminate a process, or kill it after so many seconds; return whether it ended in time."""
    process.terminate()
    try:
        process.wait(seconds)
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
            RuntimeError: Redis is not installed, or does not listen.
        """
        program = shutil.which("redis-server") or shutil.which("valkey-server")
        if program is None:
            raise RuntimeError("redis-server is not installed: apt-get install redis-server")
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", self.folder]
        options += ["--save", "", "--appendonly", "yes" if self.keeps_data else "no"]
        self.process = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL)
        connected(lambda: socket.create_connection(("127.0.0.1", self.port)), self.process).close()

    def signal(self, number: int) -> None:
        """Send a signal to Redis, if it runs."""
        if self.process is not None:
            self.process.send_signal(number)

    def stop(self) -> None:
        """Stop Redis, and wait for its end."""
        if self.process is not None:
            stop(self.process)
            self.process = None
