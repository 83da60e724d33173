"""Run a script that serves over HTTP, for both sides of the port table; needs only Python."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

START_SECONDS = 30.0
STOP_SECONDS = 10.0


@contextmanager
def serving(script: Path) -> Iterator[str]:
    """Start `script http PORT` for a free port, and yield the URL of its server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    command = [sys.executable, str(script), "http", str(port)]
    null = subprocess.DEVNULL
    process = subprocess.Popen(command, stdin=null, stdout=null, stderr=null)
    try:
        _wait_for(port)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for(port: int) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise TimeoutError(f"no server listens at port {port} after {START_SECONDS:g} s")
