"""Processes that tests start, and the descriptors of the process of the tests."""

import subprocess
import sys
from pathlib import Path

import trio


def python(code, *arguments):
    """Return the command of a process that runs some code, and starts fast."""
    return [sys.executable, "-S", "-E", "-c", code, *map(str, arguments)]


def loaded_by(code):
    """Return the names of the modules that a new process has loaded after some code."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=30,
    )
    return set(done.stdout.split())


def is_alive(pid):
    """Return whether a process runs; False for a zombie that its parent has not reaped yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def until_gone(pid):
    with trio.fail_after(5):
        while is_alive(pid):
            await trio.sleep(0.01)


def open_descriptors():
    return {path.name for path in Path("/proc/self/fd").iterdir()}
