"""Compare sessions with and without the recording proxy: `python tools/interop/transparency.py`.

Every published server receives its script and a line of 4 MiB; then malformed lines and half a
line; then it is killed during its script. Servers that misbehave are scripted here. Prints the
amounts of data; the exit status is 1 if the bytes of a direction, stderr or the exit status differ,
if the recording differs from what was sent and received, or if a peer is not installed.
"""

import functools
import itertools
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs
import trio
from environments import arguments_of, environment, prepare
from interop_command import new_table, parse, peer_parser, run_command, show, wrong
from method_counts import records_of
from peers import PEERS, Command
from request_scripts import BIG, SCRIPTS, Step, WaitFor, ask
from rich.table import Table
from scripted_host import HALF_A_LINE, MALFORMED, ByteHost, ServerGone
from sdk_adapter import Unexpected

from mcp_trio.errors import RecordingError
from mcp_trio.recording import Record, body_bytes, open_recording

AROUND_BYTES: Final = 80

# Bytes that differ between any two sessions, with and without the proxy.
CLOCK: Final = rb"\d\d?:\d\d:\d\d( [AP]M)?"
DATE_TIME: Final = rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[^\"\\]*"
MASKS: Final[Mapping[str, tuple[bytes, ...]]] = {
    "everything": (rb"created at " + CLOCK, rb'"blob":"[^"]*"'),
    "filesystem": (rb"(created|modified|accessed): [^\\]*",),
    "time": (DATE_TIME,),
}


@attrs.frozen(kw_only=True)
class Observation:
    """The bytes that the host sent and received, the server's stderr, and its exit status.

    `server_received` is what arrived at the server; None if that was not observed. `status` is the
    exit status as in a shell, None for a server that did not end. `failure` is an error that the
    host noticed.
    """

    sent: bytes
    received: bytes
    server_received: bytes | None
    stderr: bytes
    status: int | None
    failure: str = ""


def differences(
    direct: Observation, proxied: Observation, masks: Sequence[bytes] = ()
) -> list[str]:
    """Return sentences about what differs with and without the proxy."""
    found = [direct.failure] if direct.failure else []
    if direct.status is None:
        found.append("the server did not end")
    for name in attrs.fields_dict(Observation):
        without, through = (
            masked(getattr(observed, name), masks) for observed in (direct, proxied)
        )
        if without != through:
            found.append(f"{name} differs: {first_difference(without, through)}")
    if proxied.server_received not in (None, proxied.sent):
        found.append("the server received something else than was sent")
    return found


def masked(value: object, masks: Sequence[bytes]) -> bytes:
    """Return a value as bytes, with the parts masked that differ between any two sessions."""
    data = value if isinstance(value, bytes) else str(value).encode()
    for mask in masks:
        data = re.sub(mask, b"<masked>", data)
    return data


def first_difference(without: bytes, through: bytes) -> str:
    """Return the bytes around the first difference."""
    pairs = enumerate(itertools.zip_longest(without, through))
    position = next((position for position, (a, b) in pairs if a != b), len(without))
    start, end = max(0, position - AROUND_BYTES), position + AROUND_BYTES
    return f"at byte {position}, {without[start:end]!r} became {through[start:end]!r}"


def unrecorded(observed: Observation, lines: Iterable[bytes]) -> list[str]:
    """Return sentences about how a recording differs from what was observed."""
    records, found = records_of(lines)
    for kind, expected in (("in", observed.sent), ("out", observed.received)):
        if (recorded := stream_of(records, kind)) != expected:
            found.append(f"{kind} is recorded otherwise: {first_difference(expected, recorded)}")
    return found


def stream_of(records: Iterable[Record], kind: str) -> bytes:
    """Return the bytes of a direction, rebuilt from their records."""
    return b"".join(
        (body_bytes(record) or b"") + (b"\n" if (record.envelope or {}).get("lf", True) else b"")
        for record in records
        if record.kind == kind
    )


SESSION_SECONDS: Final = 60.0
SESSIONS_AT_ONCE: Final = 2

# With or without a proxy: at the end of its input it fails over an answer that it cannot write any
# more, or has written already.
FLAKY: Final = frozenset({("Python 1", "malformed lines")})
FLAKY_TRIES: Final = 5

PROXY: Final = (sys.executable, "-m", "mcp_trio", "record", "-o")

# Stores the bytes that a server receives, and its process id, so that a host can kill it.
KEEP_INPUT: Final = (
    "sh",
    "-c",
    """tee "$0.in" | sh -c 'echo $$ > "$0.pid"; exec "$@"' "$0" "$@" """,
)


# Messages of the host.


async def start(name: str, host: ByteHost) -> None:
    """Initialize, and answer what the server requests at its start."""
    await host.initialize()
    for step in itertools.takewhile(lambda step: isinstance(step, WaitFor), _script(name, host)):
        await host.run_step(step)


async def send_script(name: str, host: ByteHost) -> None:
    """Send the script, then a line of 4 MiB."""
    await host.initialize()
    for step in (*_script(name, host), BIG[name], ask("ping")):
        await host.run_step(step)


async def send_malformed(name: str, host: ByteHost) -> None:
    """Send malformed lines, each followed by a ping, and an incomplete line."""
    await start(name, host)
    for line in MALFORMED:
        await host.send(line + b"\n")
        await host.run_step(ask("ping"))
    await host.send(HALF_A_LINE)


async def send_script_and_kill(name: str, host: ByteHost) -> None:
    """Send the script, then kill the server."""
    await host.initialize()
    for step in _script(name, host):
        await host.run_step(step)
    os.kill(int(_beside(host.folder, "pid").read_text(encoding="utf-8")), signal.SIGKILL)


async def send_one(_name: str, host: ByteHost) -> None:
    """Send one message, without waiting for an answer."""
    await host.send(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n')


def _script(name: str, host: ByteHost) -> Sequence[Step | WaitFor]:
    return SCRIPTS[name](host.folder)


Drive = Callable[[str, ByteHost], Awaitable[None]]

SESSIONS: Final[Mapping[str, Drive]] = {
    "script": send_script,
    "malformed lines": send_malformed,
    "killed": send_script_and_kill,
}

# Servers that misbehave as none of the others does; they read a line first.
SCRIPT: Final = """
import os, sys
def write(data):
    while data: data = data[os.write(1, data):]
os.read(0, 65536)
"""
SCRIPTED: Final[Mapping[str, str]] = {
    "dies amid a line": "write(b'{}\\n{\"half'); os.kill(os.getpid(), 9)",
    "exits amid a line": "write(b'{}\\r\\n\\xff{\"half'); sys.exit(3)",
    "4 MiB and no end of line": "write(b'x' * 4_194_304); sys.exit(4)",
    "malformed lines": "write(b'\\0\\xff\\xfe]\\n\\n \\r\\n\\xef\\xbb\\xbf{}\\n' * 9)",
    "floods stderr": "os.write(2, b'e' * 60_000); write(b'{}\\n'); sys.exit(5)",
}


@attrs.frozen(kw_only=True)
class Case:
    """A server, and a function that drives a session with it."""

    peer: str
    session: str
    server: Command
    drive: Drive

    @property
    def title(self) -> str:
        return f"{self.peer}, {self.session}"

    def command(self, folder: Path) -> Command:
        kept = [*KEEP_INPUT, str(folder)] if self.peer in PEERS else []
        return [*kept, *self.server, *arguments_of(self.peer, folder)]


@attrs.frozen(kw_only=True)
class Outcome:
    """A case's observation without the proxy, and all problems, in sentences."""

    case: Case
    observed: Observation
    differences: list[str]
    unrecorded: list[str]


def cases_of(names: Sequence[str]) -> list[Case]:
    """Return the cases of these peers, or of all peers and the scripted servers."""
    cases = [
        Case(peer=name, session=session, server=PEERS[name].server_command(), drive=drive)
        for name in names or PEERS
        for session, drive in SESSIONS.items()
    ]
    python = [sys.executable, "-S", "-E", "-c"]
    return cases + [
        Case(peer="scripted", session=name, server=[*python, SCRIPT + code], drive=send_one)
        for name, code in ({} if names else SCRIPTED).items()
    ]


# Holding a session.


async def run_case(case: Case, folder: Path) -> Outcome:
    """Run a case without and with the proxy; try a flaky server again."""
    tries = FLAKY_TRIES if (case.peer, case.session) in FLAKY else 1
    outcome = await _run_once(case, folder)
    while outcome.differences and (tries := tries - 1):
        outcome = await _run_once(case, folder)
    return outcome


async def _run_once(case: Case, folder: Path) -> Outcome:
    recording = _beside(folder, "mcprec.jsonl")
    recording.unlink(missing_ok=True)
    direct = await observe(case, folder)
    proxied = await observe(case, folder, through=[*PROXY, str(recording), "--"])
    return Outcome(
        case=case,
        observed=direct,
        differences=differences(direct, proxied, MASKS.get(case.peer, ())),
        unrecorded=_unrecorded(proxied, recording),
    )


def _unrecorded(observed: Observation, recording: Path) -> list[str]:
    try:
        return unrecorded(observed, open_recording(recording))
    except (OSError, RecordingError) as error:
        return [f"no recording: {error}"]


async def observe(case: Case, folder: Path, *, through: Sequence[str] = ()) -> Observation:
    """Run one session, in a freshly prepared folder."""
    prepare(case.peer, folder)
    with tempfile.TemporaryFile() as stderr:
        start = functools.partial(
            trio.lowlevel.open_process,
            [*through, *case.command(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            cwd=folder,
            env=environment(folder),
        )
        host, failure = ByteHost(process=await start(), folder=folder), ""
        with trio.move_on_after(SESSION_SECONDS):
            try:
                await case.drive(case.peer, host)
            except (ServerGone, Unexpected) as error:
                failure = f"{type(error).__name__}: {error}"
            await host.close()
            await host.process.wait()
        status = await _ended(host.process)
        stderr.seek(0)
        kept = _beside(folder, "in")
        return Observation(
            sent=bytes(host.sent),
            received=bytes(host.received),
            server_received=kept.read_bytes() if kept.exists() else None,
            stderr=stderr.read(),
            status=status,
            failure=failure,
        )


async def _ended(process: trio.Process) -> int | None:
    if process.returncode is None:
        process.kill()
        await process.wait()
        return None
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _beside(folder: Path, suffix: str) -> Path:
    """Return the path of a file that belongs to a session, outside its server's folder."""
    return folder.with_name(f"{folder.name}.{suffix}")


async def run_all(cases: Sequence[Case], folder: Path) -> list[Outcome]:
    """Run all cases, two at a time, and return their outcomes in order."""
    outcomes: dict[int, Outcome] = {}
    limiter = trio.CapacityLimiter(SESSIONS_AT_ONCE)

    async def run_one(number: int, case: Case) -> None:
        async with limiter:
            outcomes[number] = await run_case(case, folder / str(number))

    async with trio.open_nursery() as nursery:
        for number, case in enumerate(cases):
            nursery.start_soon(run_one, number, case)
    return [outcomes[number] for number in range(len(cases))]


# Reporting.


def table_of(outcomes: Sequence[Outcome]) -> Table:
    right = ("bytes in", "bytes out", "stderr", "exit", "same?", "recorded?")
    table = new_table("peer", "version", "session", right=right)
    for outcome in outcomes:
        case, observed = outcome.case, outcome.observed
        version = PEERS[case.peer].version if case.peer in PEERS else ""
        sizes = (len(observed.sent), len(observed.received), len(observed.stderr))
        table.add_row(
            *(case.peer, version, case.session),
            *map(str, (*sizes, observed.status)),
            *(
                wrong("no") if found else "yes"
                for found in (outcome.differences, outcome.unrecorded)
            ),
        )
    return table


def report(outcomes: Sequence[Outcome], seconds: float) -> bool:
    """Print the table and the problems; return whether there are no problems."""
    problems = [
        f"{outcome.case.title}: {text}"
        for outcome in outcomes
        for text in (*outcome.differences, *outcome.unrecorded)
    ]
    summary = f"{len(outcomes)} sessions, each with and without the proxy, {{}}, {seconds:.0f} s"
    return show(table_of(outcomes), problems, summary)


def main(arguments: list[str]) -> int:
    parser = peer_parser("Compare sessions with and without the proxy.", such_as="memory")
    names = parse(parser, arguments, PEERS).peers
    return run_command(lambda folder: trio.run(run_all, cases_of(names), folder), report)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
