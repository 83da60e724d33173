"""Fixtures: recordings, ways to run a command, and servers to connect to."""

import codecs
import contextlib
import functools
import os
import pty
import queue
import select
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
import trio
from click.testing import CliRunner
from server_processes import free_port

from mcp_trio._cli.commands import commands
from mcp_trio._cli.options import ListenAttempt
from mcp_trio._journal.records import RecordEncoder, encode_body
from tests import ways
from tests.written_recordings import OPEN

# The first request of a host, and the headers of its requests over HTTP.
HELLO = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "host", "version": "1"},
    },
}
HEADERS = {"Accept": "application/json, text/event-stream"}


@pytest.fixture(scope="session")
def kept(tmp_path_factory):
    """The recordings that `demo --keep` writes, and its output."""
    folder = tmp_path_factory.mktemp("kept") / "new" / "folder"
    done = mcp_trio("demo", "--keep", str(folder))
    assert done.returncode == 0, done.stderr
    return SimpleNamespace(
        folder=folder,
        server=folder / "weather-server.mcprec.jsonl",
        client=folder / "weather-client.mcprec.jsonl",
        stdout=done.stdout,
    )


@pytest.fixture
def unused_url(tmp_path):
    """URLs at which no server listens, by way."""
    port = free_port()
    return {
        "http": f"http://127.0.0.1:{port}/mcp",
        "websocket": f"ws://127.0.0.1:{port}/ws",
        "unix": f"unix:{tmp_path}/no-such-socket",
        "tcp": f"tcp://127.0.0.1:{port}",
    }


@pytest.fixture
def write(tmp_path):
    """Write a recording of the given records: (kind, body) or (kind, body, lane, ordinal)."""

    def write(*records, role="server", end=True):
        encoder = RecordEncoder()
        shown = [
            ("open", OPEN | {"role": role}),
            *records,
            *([("end", {"counts": {}})] if end else []),
        ]
        made = [
            encoder.record(
                kind,
                body if body is None or isinstance(body, bytes) else encode_body(body),
                number * 1_000_000,
                *lane,
                embed=not isinstance(body, bytes),
            )
            for number, (kind, body, *lane) in enumerate(shown)
        ]
        path = tmp_path / "hand.mcprec.jsonl"
        path.write_bytes(encoder.lines(made))
        return path

    return write


@pytest.fixture
def invoke(monkeypatch):
    """Run a command in this process; returns click's result, errors not ours raised."""
    monkeypatch.setattr(sys, "path", sys.path[:])

    def invoke(*arguments, **options):
        return CliRunner().invoke(
            commands,
            [os.fspath(argument) for argument in arguments],
            catch_exceptions=False,
            **options,
        )

    return invoke


@pytest.fixture
def while_listening(invoke, monkeypatch):
    """Run a command that listens in this process, and use it in a thread, until a signal ends it.

    Returns click's result, and the result of `use` for the URL that the command printed.
    """
    is_running = threading.Event()
    used = []
    report_url = ListenAttempt.report_url

    def end(use, url, number):
        try:
            used.append(use(url))
        finally:
            if is_running.is_set():
                os.kill(os.getpid(), number)

    def while_listening(use, *arguments, number=signal.SIGTERM):
        threads = []

        def report(attempt, url):
            report_url(attempt, url)
            threads.append(threading.Thread(target=end, args=(use, url, number)))
            threads[0].start()

        monkeypatch.setattr(ListenAttempt, "report_url", report)
        is_running.set()
        try:
            shown = invoke(*arguments)
        finally:
            is_running.clear()
            for thread in threads:
                thread.join(10)
        assert used, shown.output
        return shown, used.pop()

    return while_listening


def mcp_trio(*arguments, **options):
    """Run the command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "mcp_trio", *map(os.fspath, arguments)],
        check=False,
        capture_output=True,
        text=True,
        timeout=30,
        stdin=subprocess.DEVNULL,
        **options,
    )


@pytest.fixture(name="mcp_trio")
def mcp_trio_fixture():
    return mcp_trio


def on_a_screen(*arguments, **variables):
    """Run the command with a terminal for all three streams; returns what it showed."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "mcp_trio", *map(str, arguments)]
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "100"}
    environment.pop("NO_COLOR", None)
    environment |= variables
    shown = []

    def read():
        try:
            while chunk := os.read(ours, 65536):
                shown.append(chunk)
        except OSError:  # how a pseudo-terminal ends
            pass

    reader = threading.Thread(target=read)
    reader.start()
    subprocess.run(
        command,
        check=False,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
        timeout=30,
    )
    os.close(theirs)
    reader.join()
    os.close(ours)
    return b"".join(shown).decode()


@pytest.fixture(name="on_a_screen")
def on_a_screen_fixture():
    return on_a_screen


# Ctrl-C becomes a signal only for processes whose controlling terminal this is.
AS_CONTROLLING_TERMINAL = """
import os, sys
os.login_tty(0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


class Terminal:
    """A process with a pseudo-terminal as its controlling terminal."""

    def __init__(self, *arguments, **variables):
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", AS_CONTROLLING_TERMINAL, "-m", "mcp_trio", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=os.environ | {"TERM": "xterm", "COLUMNS": "100"} | variables,
        )
        os.close(theirs)
        # A read may end within a character.
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._shown = ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self._ours)
        self.process.kill()
        self.process.wait()

    def type(self, text):
        os.write(self._ours, os.fsencode(text))

    def wait_for(self, text):
        """Read until the text is shown; returns all that was shown since the last text."""
        assert self._is_shown(text, 20), f"no {text!r} in {self._shown!r}"
        before, _, self._shown = self._shown.partition(text)
        return before + text

    def complete(self, text):
        """Type Tab until the text is shown: on a busy machine a completion may come too late."""
        self.type("\t")
        while not self._is_shown(text, 4):
            self.type("\t")
        self.wait_for(text)

    def interrupt(self, text):
        """Type Ctrl-C until the text is shown: readline misses one just before its wait."""
        self.type("\x03")
        while not self._is_shown(text, 4):
            self.type("\x03")
        self.wait_for(text)

    def _is_shown(self, text, seconds):
        while text not in self._shown:
            if not select.select([self._ours], [], [], seconds)[0]:
                return False
            self._shown += self._decode(os.read(self._ours, 65536))
        return True


async def _serve(serve, urls):
    with trio.CancelScope() as scope:
        token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as nursery:
            url = await nursery.start(serve)
            urls.put((url, functools.partial(token.run_sync_soon, scope.cancel)))


@contextlib.contextmanager
def serving(served, *, way="http", **options):
    """A server, or a mock, in a thread of its own; gives the URL."""
    urls = queue.SimpleQueue()
    serve = ways.serving(served, way, **options)
    thread = threading.Thread(target=trio.run, args=(_serve, serve, urls))
    thread.start()
    url, stop = urls.get(timeout=10)
    try:
        yield url
    finally:
        stop()
        thread.join(10)


@pytest.fixture
def serve():
    """Serve something, over HTTP or in some other way, until the test ends; returns the URL."""
    with contextlib.ExitStack() as stack:
        yield lambda served, **options: stack.enter_context(serving(served, **options))
