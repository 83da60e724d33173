"""Hold the same sessions with and without the proxy: `python tools/interop/transparency.py`.

Every peer's server is told its story and a line of 4 MiB, then what is no message and half a line,
and is killed. Servers that misbehave by themselves are scripted here. Printed is what passed; the
exit status is 1 if the bytes of a direction, stderr or the exit status differ, if the proxy's
recording is not exactly what passed, or if a peer is missing.
"""

import functools
import itertools
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs
import trio
from checks import Unexpected
from environments import arguments_of, environment, prepare
from interop_command import empty_table, parse, peer_parser, show, sit
from peers import PEERS, Command
from rich.table import Table
from scripted_host import HALF_A_LINE, MALFORMED, ByteHost, ServerGone
from session_comparison import MASKS, Seen, differences, unrecorded
from steps import Heard, Step, ask
from stories import BIG, STORIES

from mcp_trio.errors import RecordingError
from mcp_trio.recording import open_recording

SESSION_SECONDS: Final = 60.0
SESSIONS_AT_ONCE: Final = 2

# With or without a proxy: at the end of its input it fails over an answer that it cannot write any
# more, or has written already.
UNSTEADY: Final = frozenset({("Python 1", "no messages")})
UNSTEADY_TRIES: Final = 5

PROXY: Final = (sys.executable, "-m", "mcp_trio", "record", "-o")

# Keeps what comes to a server, and its process id: who kills it need not know who its parent is.
KEPT: Final = ("sh", "-c", """tee "$0.in" | sh -c 'echo $$ > "$0.pid"; exec "$@"' "$0" "$@" """)


# What is said.


async def begin(name: str, host: ByteHost) -> None:
    """The handshake, and what the server wants to know before anything else."""
    await host.shake_hands()
    for step in itertools.takewhile(lambda step: isinstance(step, Heard), _story(name, host)):
        await host.do(step)


async def tell_story(name: str, host: ByteHost) -> None:
    """All that a server offers, then a long line."""
    await host.shake_hands()
    for step in (*_story(name, host), BIG[name], ask("ping")):
        await host.do(step)


async def misbehave(name: str, host: ByteHost) -> None:
    """Lines that are no messages, and an end in the middle of one."""
    await begin(name, host)
    for line in MALFORMED:
        await host.say(line + b"\n")
        await host.do(ask("ping"))
    await host.say(HALF_A_LINE)


async def kill(name: str, host: ByteHost) -> None:
    """A server that is gone from one moment to the next, in the middle of its story."""
    await host.shake_hands()
    for step in _story(name, host):
        await host.do(step)
    os.kill(int(_beside(host.folder, "pid").read_text(encoding="utf-8")), signal.SIGKILL)


async def say_once(_name: str, host: ByteHost) -> None:
    """One message; whatever comes is no answer."""
    await host.say(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n')


def _story(name: str, host: ByteHost) -> Sequence[Step | Heard]:
    return STORIES[name](host.folder)


Tell = Callable[[str, ByteHost], Awaitable[None]]

SESSIONS: Final[Mapping[str, Tell]] = {
    "its story": tell_story,
    "no messages": misbehave,
    "killed": kill,
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
    "says what is no message": "write(b'\\0\\xff\\xfe]\\n\\n \\r\\n\\xef\\xbb\\xbf{}\\n' * 9)",
    "floods stderr": "os.write(2, b'e' * 60_000); write(b'{}\\n'); sys.exit(5)",
}


@attrs.frozen(kw_only=True)
class Case:
    """A server, and what is done with it."""

    peer: str
    session: str
    server: Command
    tell: Tell

    @property
    def title(self) -> str:
        """Which case it is."""
        return f"{self.peer}, {self.session}"

    def command(self, folder: Path) -> Command:
        """The server's command, in its folder."""
        kept = [*KEPT, str(folder)] if self.peer in PEERS else []
        return [*kept, *self.server, *arguments_of(self.peer, folder)]


@attrs.frozen(kw_only=True)
class Outcome:
    """How a case went: what was seen without the proxy, and all that is wrong, in sentences."""

    case: Case
    seen: Seen
    differences: list[str]
    unrecorded: list[str]


def cases_of(names: Sequence[str]) -> list[Case]:
    """All cases of some peers; without names of all peers, and the scripted ones.

    Raises:
        MissingPeer: A peer is not installed.
    """
    cases = [
        Case(peer=name, session=session, server=PEERS[name].server_command(), tell=tell)
        for name in names or PEERS
        for session, tell in SESSIONS.items()
    ]
    python = [sys.executable, "-S", "-E", "-c"]
    return cases + [
        Case(peer="scripted", session=name, server=[*python, SCRIPT + code], tell=say_once)
        for name, code in ({} if names else SCRIPTED).items()
    ]


# Holding a session.


async def hold(case: Case, folder: Path) -> Outcome:
    """Hold a session twice, the second time through the proxy; again, if its server is unsteady."""
    tries = UNSTEADY_TRIES if (case.peer, case.session) in UNSTEADY else 1
    outcome = await _hold_once(case, folder)
    while outcome.differences and (tries := tries - 1):
        outcome = await _hold_once(case, folder)
    return outcome


async def _hold_once(case: Case, folder: Path) -> Outcome:
    recording = _beside(folder, "mcprec.jsonl")
    recording.unlink(missing_ok=True)
    direct = await see(case, folder)
    proxied = await see(case, folder, through=[*PROXY, str(recording), "--"])
    return Outcome(
        case=case,
        seen=direct,
        differences=differences(direct, proxied, MASKS.get(case.peer, ())),
        unrecorded=_unrecorded(proxied, recording),
    )


def _unrecorded(seen: Seen, recording: Path) -> list[str]:
    try:
        return unrecorded(seen, open_recording(recording))
    except (OSError, RecordingError) as error:
        return [f"no recording: {error}"]


async def see(case: Case, folder: Path, *, through: Sequence[str] = ()) -> Seen:
    """Hold one session, with the folder as it is at the beginning of any."""
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
        host, fault = ByteHost(process=await start(), folder=folder), ""
        with trio.move_on_after(SESSION_SECONDS):
            try:
                await case.tell(case.peer, host)
            except (ServerGone, Unexpected) as error:
                fault = f"{type(error).__name__}: {error}"
            await host.leave()
            await host.process.wait()
        status = await _ended(host.process)
        stderr.seek(0)
        kept = _beside(folder, "in")
        return Seen(
            said=bytes(host.said),
            heard=bytes(host.heard),
            got=kept.read_bytes() if kept.exists() else None,
            stderr=stderr.read(),
            status=status,
            fault=fault,
        )


async def _ended(process: trio.Process) -> int | None:
    if process.returncode is None:
        process.kill()
        await process.wait()
        return None
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _beside(folder: Path, suffix: str) -> Path:
    """A file that belongs to a session, where its server does not see it."""
    return folder.with_name(f"{folder.name}.{suffix}")


async def hold_all(cases: Sequence[Case], folder: Path) -> list[Outcome]:
    """Hold all cases, a few at once; in their order."""
    outcomes: dict[int, Outcome] = {}
    turn = trio.CapacityLimiter(SESSIONS_AT_ONCE)

    async def hold_one(number: int, case: Case) -> None:
        async with turn:
            outcomes[number] = await hold(case, folder / str(number))

    async with trio.open_nursery() as nursery:
        for number, case in enumerate(cases):
            nursery.start_soon(hold_one, number, case)
    return [outcomes[number] for number in range(len(cases))]


# Reporting.


def table_of(outcomes: Sequence[Outcome]) -> Table:
    """What passed in each session."""
    table = empty_table()
    for heading in ("peer", "version", "session"):
        table.add_column(heading)
    for heading in ("bytes in", "bytes out", "stderr", "exit", "same?", "recorded?"):
        table.add_column(heading, justify="right")
    for outcome in outcomes:
        case, seen = outcome.case, outcome.seen
        version = PEERS[case.peer].version if case.peer in PEERS else ""
        sizes = (len(seen.said), len(seen.heard), len(seen.stderr))
        wrongs = (outcome.differences, outcome.unrecorded)
        table.add_row(
            *(case.peer, version, case.session),
            *map(str, (*sizes, seen.status)),
            *("[bold red]no[/]" if wrong else "yes" for wrong in wrongs),
        )
    return table


def report(outcomes: Sequence[Outcome], seconds: float) -> bool:
    """Print everything; returns whether it is as it should be."""
    complaints = [
        f"{outcome.case.title}: {text}"
        for outcome in outcomes
        for text in (*outcome.differences, *outcome.unrecorded)
    ]
    show(table_of(outcomes), complaints)
    print(
        f"{len(outcomes)} sessions, each with and without the proxy, {len(complaints)} complaints,"
        f" {seconds:.0f} s"
    )
    return not complaints


def main(arguments: list[str]) -> int:
    """Hold the sessions and report."""
    parser = peer_parser("See that nobody sees the proxy.", such_as="memory")
    names = parse(parser, arguments, PEERS).peers
    return sit(lambda folder: trio.run(hold_all, cases_of(names), folder), report)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
