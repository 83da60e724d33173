"""Serving a server while its code is changed: `mcp-trio dev` with its log, keys and Inspector.

A process of its own serves each version of the code (`dev_server`). This process holds the sockets
that listen, so the URL stays the same, and clients that connect between two versions wait. A new
version is imported first: if that fails, the last one goes on serving. Then the last one stops to
accept connections, and ends its sessions, before the lifespan of the new one begins: both may need
the same files.

Changes are found by looking at the files' times of modification a few times a second. That needs no
further library, works on every file system, and follows Trio's clock, so tests need not wait. The
`watchfiles` library would need anyio and native code to save a few dozen calls of `stat`.
"""

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NoReturn, TypeAlias

import attrs
import click
import msgspec
import trio

from mcp_trio._cli.dev_server import (
    PROGRAM,
    Failed,
    Imported,
    Logged,
    Report,
    ServeJob,
    Serving,
)
from mcp_trio._cli.options import records_of
from mcp_trio._cli.output import (
    Column,
    Line,
    echo_error,
    echo_text,
    print_table,
    printable,
    size_text,
    styled,
)
from mcp_trio._cli.timeline import ARROWS, OUTCOME_COLOURS
from mcp_trio._journal.texts import shortened
from mcp_trio._transports.stdio import ChildProcess, start_child
from mcp_trio.errors import ConnectionLost, RecordingError
from mcp_trio.limits import DEFAULT_LIMITS

# Changes of files.

POLL_SECONDS: Final = 0.3
_SOURCES: Final = "*.py"

_Stamp: TypeAlias = tuple[int, int]


class Watcher:
    """Files and folders whose changes restart the server.

    In a folder, its Python files are watched, also those that are created later; not those of its
    folders. Of a file that is given, any change counts.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths = {path.resolve() for path in paths}
        self._seen = self._stamps()

    def add(self, files: Iterable[str]) -> None:
        """Watch the folders of more files as well."""
        folders = {Path(file).resolve().parent for file in files} - self._paths
        self._paths |= folders
        self._seen |= self._stamps(folders)

    async def changed(self) -> list[Path]:
        """Wait until files have changed, and until they stay as they are; return them, sorted."""
        while (now := self._stamps()) == self._seen:  # noqa: ASYNC110  there is no event to wait for
            await trio.sleep(POLL_SECONDS)
        while True:  # an editor, or a version control system, may write several files
            await trio.sleep(POLL_SECONDS)
            before, now = now, self._stamps()
            if now == before:
                break
        changed = [path for path, _ in self._seen.items() ^ now.items()]
        self._seen = now
        return sorted(set(changed))

    def _stamps(self, paths: Collection[Path] | None = None) -> dict[Path, _Stamp]:
        """Return the time of modification and the size of each file."""
        stamps: dict[Path, _Stamp] = {}
        for path in self._paths if paths is None else paths:
            for file in path.glob(_SOURCES) if path.is_dir() else (path,):
                with contextlib.suppress(OSError):  # it was deleted
                    found = file.stat()
                    stamps[file] = found.st_mtime_ns, found.st_size
        return stamps


# The process that serves a version.


class ServerProcess:
    """A process that imports a version of the server, and serves it on request."""

    def __init__(self, child: ChildProcess) -> None:
        self._child = child
        self._decoder = msgspec.json.Decoder[Report](Report)
        self._unread = b""
        self.is_stopping = False

    async def next_report(self) -> Report | None:
        """Wait for the next report of the process; return None at the end of the process."""
        while b"\n" not in self._unread:
            chunk = await self._child.stdout.read()
            if not chunk:
                return None
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        report: Report = self._decoder.decode(line)
        return report

    async def exit_status(self) -> int | None:
        """Wait until the process has ended; return its status, negative after a signal."""
        await self._child.ended.wait()
        return self._child.exit_status

    def serve(self) -> None:
        """Let the process serve the server that it has imported."""
        with contextlib.suppress(OSError):  # it has ended; so do its reports
            self._child.stdin.write_nowait(b"\n")

    async def stop(self, *, seconds: float) -> None:
        """Let the process end its sessions; kill it if it has not ended after so many seconds."""
        self.is_stopping = True
        self._child.send_signal(signal.SIGTERM)
        with trio.move_on_after(seconds):
            await self._child.ended.wait()
        self.kill()
        await self._child.ended.wait()

    def kill(self) -> None:
        """Kill the process, and those that it has started."""
        self.is_stopping = True
        self._child.kill()

    def close(self) -> None:
        """Close the pipes; no report can be read any more."""
        self._child.stdin.close()
        self._child.stdout.close()


@attrs.define(eq=False, repr=False)
class Reloader:
    """Keeps the newest version of the code serving that can be imported.

    Attributes:
        tried: Set when the first version serves, or has failed.
    """

    job: ServeJob
    watcher: Watcher
    log: "MessageLog"
    tried: trio.Event = attrs.field(factory=trio.Event, init=False)
    _current: ServerProcess | None = attrs.field(default=None, init=False)
    _session_numbers: Iterator[int] = attrs.field(factory=lambda: itertools.count(1), init=False)

    async def run(self) -> NoReturn:
        """Serve, and start another version after each change, until cancelled.

        If this is cancelled, the sessions are ended, and the process that serves is stopped.
        """
        async with trio.open_nursery() as nursery:
            try:
                changed: list[Path] = []
                while True:
                    async with trio.open_nursery() as attempt:
                        attempt.start_soon(self._start_version, nursery, changed)
                        changed = await self.watcher.changed()
                        attempt.cancel_scope.cancel()  # an import may take for ever
            finally:
                with trio.CancelScope(shield=True):  # bounded by the time that a stop may take
                    await self._stop_current()

    def kill(self) -> None:
        """Kill the process that serves, without ending its sessions."""
        if self._current is not None:
            self._current.kill()

    async def _start_version(self, nursery: trio.Nursery, changed: Collection[Path]) -> None:
        """Import the code as it is now; if that succeeds, serve it in place of the last version."""
        if changed:
            echo_text(f"changed: {', '.join(path.name for path in changed)}")
        process = ServerProcess(
            await start_child(
                # -B: byte code that is written would be used for another version of the same
                # second and size, too.
                [sys.executable, "-B", "-c", PROGRAM, msgspec.json.encode(self.job).decode()],
                env=os.environ,
                inherits_stderr=True,
                inherits_descriptors=True,
                limits=DEFAULT_LIMITS,
            )
        )
        report: Report | None = None
        try:
            report = await process.next_report()
        finally:
            if not isinstance(report, Imported):
                process.kill()
                process.close()
        if isinstance(report, Imported):
            self.watcher.add(report.files)
            with trio.CancelScope(shield=True):  # bounded by the time that a stop may take
                await self._stop_current()
            self._current = process
            process.serve()
            nursery.start_soon(self._follow, process)
            return
        if isinstance(report, Failed):
            self.watcher.add(report.files)
            echo_error(report.text)
        else:
            status = await process.exit_status()
            echo_error(
                f"the process ended with status {status} while it imported {self.job.target}"
            )
        self._report_version()

    async def _stop_current(self) -> None:
        if self._current is not None:
            # After exit_seconds the process exits by itself, and logs the reason of the delay.
            await self._current.stop(seconds=DEFAULT_LIMITS.shutdown.exit_seconds + 1)
            self._current = None

    async def _follow(self, process: ServerProcess) -> None:
        """Print the reports of a process, until it ends."""
        report: Report | None = None
        # Each process counts its sessions from 1.
        numbers: dict[int, int] = {}
        try:
            while (following := await process.next_report()) is not None:
                report = following
                match report:
                    case Logged():
                        if report.session not in numbers:
                            numbers[report.session] = next(self._session_numbers)
                        self.log.print(report, numbers[report.session])
                    case Failed():
                        self.watcher.add(report.files)
                        echo_error(report.text)
                    case Serving():
                        echo_text(f"serving {self.job.target} as it is now")
                        self.tried.set()
                    case Imported():  # the first report
                        pass
        finally:
            process.close()
        status = await process.exit_status()
        if process.is_stopping:
            return
        self._current = None
        if not isinstance(report, Failed):
            echo_error(f"the process that served ended with status {status}")
        self._report_version()

    def _report_version(self) -> None:
        if self._current is None:
            echo_error("nothing is served until a file changes")
        else:
            echo_error("the code from before the change is still served")
        self.tried.set()


# The log of messages.

_WHAT_COLUMNS: Final = 34
_ID_COLUMNS: Final = 4
_TOOK_COLUMNS: Final = 9
_SIZE_COLUMNS: Final = 10


@attrs.frozen
class MessageLog:
    """Prints a line for each message, in colour if it is an error or a cancellation.

    Attributes:
        now: Returns the time of day.
    """

    now: Callable[[], datetime] = datetime.now

    def print(self, logged: Logged, session: int) -> None:
        """Print the line of a message; on a terminal it is cut at the edge of the screen."""
        columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        click.echo(self.line(logged, session, columns_max=columns))

    def line(self, logged: Logged, session: int, *, columns_max: int | None = None) -> str:
        """Return the line: time, session, direction, method, id, duration, size and content."""
        row = logged.row
        took = "" if row.took_ms is None else f"{row.took_ms:.1f} ms"
        id_ = "" if row.id is None else str(row.id)
        cells = (
            f"{self.now():%H:%M:%S.%f}"[:-3],
            f"{session:2}",
            ARROWS[row.direction],
            shortened(row.what.removeprefix("answer "), _WHAT_COLUMNS).ljust(_WHAT_COLUMNS),
            shortened(id_, _ID_COLUMNS).rjust(_ID_COLUMNS),
            took.rjust(_TOOK_COLUMNS),
            ("" if row.size_bytes is None else size_text(row.size_bytes)).rjust(_SIZE_COLUMNS),
            row.note or logged.subject,
        )
        text = printable("  ".join(cells).rstrip())
        if columns_max is not None:
            text = shortened(text, columns_max)
        return styled(text, colour=OUTCOME_COLOURS[row.outcome])


# The recordings, and the keys.

KEYS: Final = {
    "r": "replay the last recording with the code as it is now",
    "l": "list the recordings",
    "h": "show this help",
    "q": "quit",
}


def recordings_by_time(folder: Path) -> list[Path]:
    """Return the recordings in a folder that hold a message, the one that was written last last.

    One that cannot be read, such as a damaged or encrypted one, is named on stderr and left out.
    """
    from mcp_trio._recorder.files import recordings_in

    files: list[Path] = []
    for file in recordings_in(folder, role="server"):
        try:
            # The recording of stateless clients is created before the first of them connects.
            if any(item.kind == "in" for item in records_of(file)):
                files.append(Path(file))
        except RecordingError as error:
            echo_error(f"left out: {error}")
    return sorted(files, key=lambda file: file.stat().st_mtime_ns)


def print_recordings(folder: Path) -> None:
    """Print a table of the recordings in a folder."""
    lines: list[Line] = []
    for file in recordings_by_time(folder):
        found = file.stat()
        written = datetime.fromtimestamp(found.st_mtime, UTC).astimezone()
        lines.append(Line((f"{written:%H:%M:%S}", size_text(found.st_size), file.name)))
    if lines:
        print_table((Column("written"), Column("size", "right"), Column("recording")), lines)
    echo_text(f"{len(lines) or 'no'} recording{'' if len(lines) == 1 else 's'} in {folder}")


async def replay_last(folder: Path, target: str) -> None:
    """Replay the recording that was written last, in a process of its own, and print the report."""
    files = recordings_by_time(folder)
    if not files:
        echo_text("nothing is recorded yet")
        return
    echo_text(f"replaying {files[-1].name}")
    command = [sys.executable, "-m", "mcp_trio", "replay", str(files[-1]), target]
    await trio.run_process(command, stdin=subprocess.DEVNULL, check=False)


def print_keys() -> None:
    """Print the keys and their actions."""
    click.echo("\n".join(f"{key}  {text}" for key, text in KEYS.items()))


@contextlib.contextmanager
def keys_from_terminal() -> Generator[int | None]:
    """Within this context, the terminal passes each key on at once; give its descriptor.

    None: stdin is no terminal, or another program reads from it, or this is Windows.
    """
    if sys.platform == "win32":
        yield None
        return
    if not sys.stdin.isatty() or os.tcgetpgrp(sys.stdin.fileno()) != os.getpgrp():
        yield None
        return
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    try:
        yield terminal
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


async def handle_keys(terminal: int, actions: Mapping[str, Callable[[], object]]) -> None:
    """Call the action of each key until the terminal is closed."""
    while True:
        await trio.lowlevel.wait_readable(terminal)
        try:
            keys = os.read(terminal, 64).decode(errors="replace")
        except OSError:
            return
        if not keys:
            return
        for key in keys:
            if key in actions:
                actions[key]()


# The MCP Inspector.

INSPECTOR: Final = "@modelcontextprotocol/inspector@2.12.0"
_NODE_VERSION_MIN: Final = (22, 19)


async def run_inspector(url: str) -> None:
    """Run the official MCP Inspector for a URL, and print its output, until it ends.

    If this is cancelled, the Inspector is stopped, with all of its processes. Without Node, or if
    it is too old, one line is printed that names the reason.
    """
    if shutil.which("npx") is None or shutil.which("node") is None:
        echo_text("the MCP Inspector is not opened: Node is not installed")
        return
    found = await trio.run_process(["node", "--version"], capture_stdout=True, check=False)
    version = found.stdout.decode(errors="replace").strip()
    numbers = tuple(int(part) for part in version.lstrip("v").split(".") if part.isdigit())
    if numbers < _NODE_VERSION_MIN:
        needed = ".".join(map(str, _NODE_VERSION_MIN))
        echo_text(f"the MCP Inspector is not opened: it needs Node {needed}, not {version}")
        return
    command = ["npx", "--yes", INSPECTOR, "--web", "--transport", "http", "--server-url", url]
    command += ["--protocol-era", "auto"]
    try:
        child = await start_child(
            command, env=os.environ, inherits_stderr=True, limits=DEFAULT_LIMITS
        )
    except ConnectionLost as error:
        echo_error(f"the MCP Inspector is not opened: {error}")
        return
    child.stdin.close()
    try:
        rest = b""
        while chunk := await child.stdout.read():
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                echo_text(f"inspector: {line.decode(errors='replace')}")
        await child.ended.wait()
        echo_text(f"the MCP Inspector ended with status {child.exit_status}")
    finally:
        child.terminate()
        with trio.CancelScope(shield=True):
            with trio.move_on_after(DEFAULT_LIMITS.shutdown.terminate_seconds):
                await child.ended.wait()
            child.kill()
            await child.ended.wait()
        child.stdout.close()


# All of it, until it ends.

if sys.platform == "win32":
    _SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
else:
    _SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # the last: a closed terminal


async def serve_versions(
    reloader: Reloader,
    url: str,
    *,
    with_inspector: bool,
    terminal: int | None,
    on_serving: Callable[[str], None],
) -> None:
    """Serve until a signal arrives, or q is pressed; a second signal kills the server."""
    with trio.open_signal_receiver(*_SIGNALS) as signals:
        async with trio.open_nursery() as outer:
            with trio.CancelScope() as serving:

                async def watch_signals() -> None:
                    async for _ in signals:
                        if serving.cancel_called:
                            reloader.kill()
                        serving.cancel()

                outer.start_soon(watch_signals)
                folder, target = Path(reloader.job.recordings), reloader.job.target
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(reloader.run)
                    await reloader.tried.wait()
                    on_serving(url)
                    if with_inspector:
                        nursery.start_soon(run_inspector, url)
                    if terminal is not None:
                        actions: dict[str, Callable[[], object]] = {
                            "r": lambda: nursery.start_soon(replay_last, folder, target),
                            "l": lambda: print_recordings(folder),
                            "h": print_keys,
                            "q": serving.cancel,
                        }
                        print_keys()
                        nursery.start_soon(handle_keys, terminal, actions)
            outer.cancel_scope.cancel()
