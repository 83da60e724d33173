"""The process of `mcp-trio dev` that serves one version of the code.

Each version has a new process, so that no module of the previous version stays loaded. The process
imports the server, reports that, and waits for a byte on stdin, which `mcp-trio dev` sends when the
previous process has stopped; then it serves. It ends at the end of stdin, so it never outlives
`mcp-trio dev`.

Its stdout takes reports, a JSON object in each line. What the user's code prints goes to stderr.
"""

import logging
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import msgspec
import trio

from mcp_trio._cli.timeline import Row, Timeline
from mcp_trio._journal.conversation import members_of
from mcp_trio._journal.records import Record, body_bytes
from mcp_trio._journal.texts import json_text, shortened, tool_text
from mcp_trio._recorder.clock import TickClock
from mcp_trio._recorder.options import RecordOptions
from mcp_trio._replay.targets import TargetError, import_server, own_files
from mcp_trio._server.http_serve import HttpAddress, serve_bound
from mcp_trio._server.sessions import sessions_of
from mcp_trio._server.signals import serve_until_signal
from mcp_trio._session.call_sites import owner_of

if TYPE_CHECKING:
    import io

# The original function: in a recorded session, `os.write` is replaced by one that reports calls in
# the task of a handler as untracked, and the reports are written in that task.
_write: Final = os.write


class ServeJob(msgspec.Struct, frozen=True, kw_only=True):
    """The server that the process serves, and the sockets that it listens at.

    Attributes:
        target: The server; see `import_server`.
        sockets: The descriptors of the sockets that listen, which the process inherits.
        host: The address that they were bound to.
        recordings: The folder in which each session is recorded.
        import_path: The folders to import modules from.
    """

    target: str
    sockets: Sequence[int]
    host: str
    recordings: str
    import_path: Sequence[str]


class Imported(msgspec.Struct, frozen=True, tag=True):
    """A report that the server was imported, from these files."""

    files: Sequence[str]


class Serving(msgspec.Struct, frozen=True, tag=True):
    """A report that the server accepts clients."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """A report that the server cannot be served.

    Attributes:
        text: The error, with the frames of the user's code.
        files: The files whose change may mend it.
    """

    text: str
    files: Sequence[str]


class Logged(msgspec.Struct, frozen=True, tag=True):
    """A report of a message that was received or sent.

    Attributes:
        session: The number of the session's recording, from 1.
        row: The row of the message in the timeline of the recording.
        subject: The arguments of a request, or the result in a response.
    """

    session: int
    row: Row
    subject: str = ""


Report: TypeAlias = Imported | Serving | Failed | Logged

# The program for `python -c`, whose last argument is the job.
PROGRAM: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[-1])['import_path'];"
    f" from {__name__} import main; main(sys.argv.pop())"
)

# The next version begins after it, also if a client has an idle connection.
_LAST_REQUEST_SECONDS: Final = 0.25

_SUBJECT_COLUMNS_MAX: Final = 100
# Of one recording: all stateless requests of the process are in the same one.
_REQUESTS_KEPT_MAX: Final = 1000
_LISTS: Final = frozenset({"tools", "resources", "resourceTemplates", "prompts"})
_WITHOUT_CONTENT: Final = frozenset({"_meta", "resultType", "ttlMs", "cacheScope"})


def main(job: str) -> None:
    """Import and serve the server of a job in JSON; exit with status 1 if that fails."""
    # The user's code is imported after that, and may print.
    reports = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    cast("io.TextIOWrapper", sys.stdout).reconfigure(line_buffering=True)
    encoder = msgspec.json.Encoder()

    def report(value: Report) -> None:
        line = encoder.encode(value) + b"\n"
        try:
            while line:
                line = line[_write(reports, line) :]
        except OSError:  # `mcp-trio dev` has ended, and so does this process
            pass

    sys.exit(_serve(msgspec.json.decode(job, type=ServeJob), report))


def _serve(job: ServeJob, report: Callable[[Report], None]) -> int:
    try:
        server = import_server(job.target)
        server.limits = msgspec.structs.replace(
            server.limits,
            shutdown=msgspec.structs.replace(
                server.limits.shutdown, last_request_seconds=_LAST_REQUEST_SECONDS
            ),
        )
        sessions = sessions_of(server)
        sessions.registry.check()
    except Exception as error:  # an error of the user's code
        report(_failure(error, job))
        return 1
    report(Imported(own_files(job.target)))
    if not os.read(sys.stdin.fileno(), 1):
        return 0
    # Exceptions of handlers are logged with tracebacks, unless the user's code has set up logs.
    logger = logging.getLogger("mcp_trio")
    if not logger.hasHandlers():
        logger.setLevel(logging.DEBUG)  # at this level, warnings have tracebacks
        handler = logging.StreamHandler()
        handler.setLevel(logging.WARNING)
        logger.addHandler(handler)
    recordings = RecordOptions(f"{job.recordings}/", observer=MessageReporter(report))

    async def serve(*, task_status: trio.TaskStatus[str]) -> None:
        listeners = [
            trio.SocketListener(trio.socket.from_stdlib_socket(socket.socket(fileno=each)))
            for each in job.sockets
        ]
        address = HttpAddress(host=job.host)
        options: Any = {"record": recordings}
        await serve_bound(
            sessions, listeners, address, options, is_followed=True, task_status=task_status
        )

    run = partial(
        serve_until_signal,
        serve,
        lambda _url: report(Serving()),
        server.limits.shutdown.exit_seconds,
        (signal.SIGTERM,),
        partial(trio.lowlevel.wait_readable, sys.stdin.fileno()),
    )
    try:
        trio.run(run, clock=TickClock())
    except Exception as error:  # an error of the lifespan
        report(_failure(error, job))
        return 1
    return 0


# Errors.


def _failure(error: Exception, job: ServeJob) -> Failed:
    """Return the report about an error, with the files to change: those of its frames, too."""
    shown: BaseException = error
    heading = ""
    if isinstance(error, TargetError):
        if error.__cause__ is None:  # the text is complete
            return Failed(str(error), own_files(job.target))
        heading, shown = str(error).partition("\n")[0] + "\n", error.__cause__
    lines = traceback.TracebackException.from_exception(shown)
    files = {*own_files(job.target)}
    for each in _chain(lines):
        each.stack = traceback.StackSummary.from_list(
            frame for frame in each.stack if owner_of(frame.filename) == "user"
        )
        files |= {frame.filename for frame in each.stack}
        files.add(str(getattr(each, "filename", "")))  # of a syntax error
    text = heading + "".join(lines.format()).rstrip()
    return Failed(text, sorted(file for file in files if Path(file).is_file()))


def _chain(
    error: traceback.TracebackException | None,
) -> Iterator[traceback.TracebackException]:
    """Yield the error, and those that led to it."""
    if error is not None:
        yield error
        yield from _chain(error.__cause__)
        yield from _chain(error.__context__)
        for each in error.exceptions or ():
            yield from _chain(each)


# The log.


class MessageReporter:
    """Reports the messages of each recording, which has a number; see `RecordOptions.observer`."""

    def __init__(self, report: Callable[[Logged], None]) -> None:
        self._report = report
        self._number = 0

    def __call__(self) -> Callable[[Record], None]:
        """Return the function that gets the records of one more recording."""
        self._number += 1
        return partial(self._add, self._number, Timeline(_REQUESTS_KEPT_MAX))

    def _add(self, number: int, timeline: Timeline, record: Record) -> None:
        rows = list(timeline.rows(record))
        if record.kind in {"in", "out"}:
            subject = subject_of(body_bytes(record) or b"") if len(rows) == 1 else ""
            for row in rows:
                self._report(Logged(number, row, subject))


def subject_of(message: bytes) -> str:
    """Return the arguments of a request; of a result its text, the names in a list, or JSON."""
    members = members_of(message)
    if "result" in members:
        result = members_of(members["result"])
        # The peer may have sent anything, such as a number, as the value of such a member.
        lists: dict[str, list[Any]] = {
            kind: items
            for kind, items in result.items()
            if kind in _LISTS and isinstance(items, list)
        }
        names = [
            f"{kind}: {', '.join(str(members_of(item).get('name')) for item in items)}"
            for kind, items in lists.items()
        ]
        rest = {name: value for name, value in result.items() if name not in _WITHOUT_CONTENT}
        text = tool_text(result) or "; ".join(names) or json_text(rest)
    else:
        arguments = members_of(members_of(members.get("params")).get("arguments"))
        text = " ".join(f"{name}={json_text(value)}" for name, value in arguments.items())
    return shortened(text, _SUBJECT_COLUMNS_MAX)
