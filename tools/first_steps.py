"""The first steps with the package in a clean environment, as one terminal session with times.

`python tools/first_steps.py` makes a virtual environment, and runs: `pip install`, `mcp-trio new`,
`dev` and a call to it, `install --print`, a recorded `call`, `replay`, and pytest with the
recording. It prints each command, the end of its output, and the seconds since the start. Status 1:
a command fails, or prints something else than it should.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parent.parent
STEP_SECONDS: Final = 240
SHOWN_LINES: Final = 12

TEST: Final = '''\
"""The session that was recorded by hand."""

import pytest
from my_server.server import server


@pytest.mark.mcp_recording("greeting.mcprec.jsonl")
def test_the_greeting_replays(mcp_replay):
    mcp_replay(server)
'''


class Terminal:
    """A terminal session in one folder, whose commands are printed with their times."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._begin = time.monotonic()
        hidden = {"PYTHONPATH", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE"}
        self._env = {name: it for name, it in os.environ.items() if name not in hidden}
        scripts = folder / "venv" / ("Scripts" if sys.platform == "win32" else "bin")
        self._env["PATH"] = f"{scripts}{os.pathsep}{self._env['PATH']}"

    def run(self, command: Sequence[str], expected: str = "", shown: str = "") -> str:
        """Run a command, print the end of its output, and return all of it.

        `expected` is a pattern that the output has to match; `shown` is printed for the command.
        """
        print(f"$ {shown or ' '.join(command)}", flush=True)
        program = sys.executable if command[0] == "python" else command[0]
        done = subprocess.run(
            [program, *command[1:]],
            cwd=self.folder,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=STEP_SECONDS,
            check=False,
        )
        lines = done.stdout.rstrip().splitlines()
        print("\n".join(lines[-SHOWN_LINES:]))
        self.note()
        if done.returncode:
            sys.exit(f"the command failed with status {done.returncode}:\n{done.stdout}")
        self.check(expected, done.stdout)
        return done.stdout

    def note(self) -> None:
        """Print the seconds since the start."""
        print(f"    [{time.monotonic() - self._begin:.1f} s]\n", flush=True)

    def check(self, expected: str, output: str) -> None:
        """End with status 1 unless the output matches the pattern."""
        if not re.search(expected, output):
            sys.exit(f"the output does not match {expected!r}:\n{output}")

    def call_while_developing(self, target: str) -> None:
        """Start `mcp-trio dev`, call a tool of the server that it serves, and stop it."""
        command = ["mcp-trio", "dev", target, "--no-inspector"]
        print(f"$ {' '.join(command)} &")
        with subprocess.Popen(
            command,
            cwd=self.folder,
            env=self._env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as dev:
            assert dev.stdout is not None
            try:
                for line in dev.stdout:
                    print(line, end="")
                    if url := re.search(r"http://\S+/mcp", line):
                        break
                else:
                    sys.exit("dev ended without a URL")
                self.note()
                self.run(["mcp-trio", "call", url[0], "greet", "name=Ada"], "Hello, Ada!")
            finally:
                dev.terminate()
                dev.communicate(timeout=STEP_SECONDS)


def take_first_steps(terminal: Terminal) -> None:
    """Run all commands, from an empty folder to a test that replays a session."""
    terminal.run(["python", "-m", "venv", "venv"])
    packages = [str(REPOSITORY), "pytest", "pytest-trio"]
    command = ["pip", "install", "-q", "--disable-pip-version-check", *packages]
    terminal.run(command, shown="pip install mcp_trio pytest pytest-trio")
    terminal.run(["mcp-trio", "new", "my-server"], "created my-server")
    print("$ cd my-server\n")
    terminal.folder /= "my-server"
    server = "my_server/server.py"
    terminal.call_while_developing(server)
    terminal.run(
        ["mcp-trio", "install", server, "--host", "claude-desktop", "--print"], "mcpServers"
    )
    recording = "tests/greeting.mcprec.jsonl"
    recorded = ["--", "mcp-trio", "run", server, "--record", recording]
    terminal.run(["mcp-trio", "call", "greet", "name=Ada", *recorded], "Hello, Ada!")
    terminal.run(["mcp-trio", "replay", recording, server], "the same, byte for byte")
    (terminal.folder / "tests" / "test_greeting.py").write_text(TEST, encoding="utf-8")
    print("(write tests/test_greeting.py, with the mark mcp_recording and the fixture mcp_replay)")
    terminal.run(["pytest", "-q"], "3 passed")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        take_first_steps(Terminal(Path(name)))
