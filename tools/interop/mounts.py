"""Try every client with our server at every mount: `python tools/interop/mounts.py`.

Each client runs `mount_checks.py` at each mount, all of them at once; then the server is
stopped in the middle of a call of each. Prints a table of mounts, clients and steps; the exit
status is 1 if a step failed without an excuse, a server did not stop as it should, or a peer is
missing.
"""

import argparse
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final
from urllib.error import URLError
from urllib.request import urlopen

import attrs
import trio
from facts import FACTS, TOUR, has
from interop_command import empty_table, show, sit
from peers import HERE, LEGACY, PEERS, PYTHON_WEB, Command, MissingPeer, is_installed
from progress_lines import Telling, hear
from rich.table import Table
from server_location import Served, ServerFailed, last_lines, served
from sessions import OUR_CLIENT

TOUR_SECONDS: Final = 90.0
STOP_SECONDS: Final = 15.0
END_SECONDS: Final = 10.0
LOOK_SECONDS: Final = 0.02
STOPPED: Final = (0, 128 + 15)
"""How a server may have ended when it was told to: hypercorn's own command has another manner."""

ENDPOINTS: Final = {"mcp": "mcp", "sse": "sse", "websocket": "ws"}

OURS: Final = "mcp_trio"
OLDEST, OLD, NEW = FACTS.protocol_versions[0], LEGACY[-1], FACTS.protocol_versions[-1]
STEPS: Final = ("list", "call", "ask", "progress", "resume", "stop")
ENDS: Final[Mapping[str, str]] = {"ConnectionLost": "lost", "OutcomeUnknown": "unknown"}
"""How a call of ours may end when the server stops, and that in a word."""

NO_STREAMS: Final = (
    "a stateless request ends with its connection: there is nothing to come back for"
)
NO_IDS: Final = "HTTP+SSE knows of no ids of events: a session ends with its one stream"
EXCUSES: Final = (NO_STREAMS, NO_IDS)


@attrs.frozen(kw_only=True)
class Mount:
    """Where the server is: the command that starts it, and what its URLs end with.

    `beside` is a page of the application in which it is mounted.
    """

    name: str
    command: Sequence[str]
    mcp: str = "/mcp"
    sse: str = "/sse"
    websocket: str = "/ws"
    beside: str | None = None


@attrs.frozen
class Tourist:
    """A client, at a revision, over HTTP or over WebSocket."""

    name: str
    protocol_version: str
    command: Command
    is_on_websocket: bool = False

    @property
    def title(self) -> str:
        """What it is called in the table."""
        return f"{self.name} {self.protocol_version}{' ws' if self.is_on_websocket else ''}"

    def url(self, mount: Mount, server: Served) -> str:
        """Where it finds what it speaks."""
        if self.is_on_websocket:
            return f"ws://{server.address}{mount.websocket}"
        is_streamable = has(self.protocol_version, "streamable_http")
        return server.origin + (mount.mcp if is_streamable else mount.sse)

    @property
    def is_ours(self) -> bool:
        """Whether it is no peer's."""
        return self.name == OURS


@attrs.define
class Visit(Telling):
    """What came of a client at a mount."""

    tourist: Tourist

    @property
    def is_waiting(self) -> bool:
        """Whether it has a call in flight, in the middle of which the server may stop."""
        return "begun" in self.told

    @property
    def has_ended(self) -> bool:
        """Whether that call has ended, or the client."""
        return "stop" in self.told


@attrs.frozen(kw_only=True)
class Stay:
    """What came of all clients at a mount, and how the server stopped: how soon, or its fault."""

    mount: str
    visits: Sequence[Visit]
    seconds: float
    fault: str


def mounts() -> list[Mount]:
    """All of them.

    Raises:
        MissingPeer: The frameworks are not installed.
    """
    if not is_installed(PYTHON_WEB):
        raise MissingPeer(" and ".join(PYTHON_WEB.pins()))
    program = str(HERE / "python_mounted.py")
    ours = PYTHON_WEB.start(program)
    hypercorn = [*PYTHON_WEB.start("hypercorn"), "--worker-class=trio", "--bind=127.0.0.1:0"]
    deep, beside = "/deep/path", "/beside"
    inside = {name: f"{deep}/{end}" for name, end in ENDPOINTS.items()}
    below = {**inside, "beside": beside}
    in_starlette = f"{program}:in_starlette"
    return [
        Mount(name="native", command=[*ours, "--server=native"]),
        Mount(name="native, path=", command=[*ours, f"--path={deep}"], mcp=deep),
        Mount(name="hypercorn", command=[*ours, "--server=hypercorn"]),
        Mount(name="ASGI alone", command=[*hypercorn, f"{program}:alone()"]),
        Mount(name="in Starlette", command=[*hypercorn, f"{in_starlette}()"], beside=beside),
        Mount(
            name="in Starlette, deep", command=[*hypercorn, f"{in_starlette}({deep!r})"], **below
        ),
        Mount(name="beside Quart-Trio", command=[*hypercorn, f"{program}:beside_quart()"], **below),
    ]


_GUESTS: Final = ("Python 1", "Python 2", "TypeScript 2")


def tourists() -> list[Tourist]:
    """All clients.

    Raises:
        MissingPeer: A peer is not installed.
    """
    ours = [sys.executable, str(OUR_CLIENT)]
    theirs = {name: PEERS[name].client_command() for name in _GUESTS}
    return [
        *(Tourist(OURS, protocol_version, ours) for protocol_version in (NEW, OLD, OLDEST)),
        *(
            Tourist(name, protocol_version, theirs[name])
            for name in ("Python 2", "TypeScript 2")
            for protocol_version in (NEW, OLD)
        ),
        *(
            Tourist(OURS, protocol_version, ours, is_on_websocket=True)
            for protocol_version in (NEW, OLD)
        ),
        Tourist("Python 1", OLD, theirs["Python 1"], is_on_websocket=True),
        Tourist("TypeScript 2", NEW, theirs["TypeScript 2"], is_on_websocket=True),
    ]


def excuse_of(tourist: Tourist, step: str) -> str | None:
    """Why a step is left out."""
    if step != "resume":
        return None
    if not has(tourist.protocol_version, "sessions"):
        return NO_STREAMS
    return None if has(tourist.protocol_version, "streamable_http") else NO_IDS


# A stay


def stay(mount: Mount, folder: Path) -> Stay:
    """Let all clients tour a mount, and stop it in the middle of a call of each."""
    visits = [Visit(tourist) for tourist in tourists()]
    log = folder / f"{mount.name}.log"
    seconds, fault = 0.0, ""
    try:
        with served(list(mount.command), log) as server:
            if mount.beside is not None:
                urlopen(server.origin + mount.beside).close()
            seconds = trio.run(_tour, mount, server, visits)
            if server.process.poll() not in STOPPED:
                fault = f"it ended with {server.process.poll()}: {last_lines(log.read_bytes())}"
    except (ServerFailed, URLError) as error:
        fault = str(error)
    if "Traceback" in log.read_text("utf-8", "replace"):
        fault = fault or f"it complained: {last_lines(log.read_bytes())}"
    return Stay(mount=mount.name, visits=visits, seconds=seconds, fault=fault)


async def _tour(mount: Mount, server: Served, visits: Sequence[Visit]) -> float:
    """How many seconds the server took to stop, after all clients were on their last step."""
    async with trio.open_nursery() as nursery:
        for visit in visits:
            nursery.start_soon(_visit, visit, visit.tourist.url(mount, server))
        await _until(lambda: all(it.is_waiting or it.has_ended for it in visits), TOUR_SECONDS)
        begin = time.monotonic()
        server.process.terminate()
        await _until(lambda: server.process.poll() is not None, STOP_SECONDS)
        seconds = time.monotonic() - begin
        # Peers may go on; who waits for a server that has stopped may do so for long.
        await _until(lambda: all(it.has_ended for it in visits if it.tourist.is_ours), END_SECONDS)
        nursery.cancel_scope.cancel()
    return seconds


async def _until(has_come: Callable[[], bool], seconds: float) -> None:
    """Return when it has come, or does not come: processes tell nobody."""
    with trio.move_on_after(seconds):
        while not has_come():  # noqa: ASYNC110  # there is no event
            await trio.sleep(LOOK_SECONDS)


async def _visit(visit: Visit, url: str) -> None:
    """Run a client, and take in what it tells; it is killed if this is cancelled."""
    tourist = visit.tourist
    command = [*tourist.command, TOUR + tourist.protocol_version, url]
    status = await hear(command, visit.note, visit.complain)
    visit.told.setdefault("stop", f"exit {status}: {visit.complaint}")


def stay_everywhere(names: Collection[str], folder: Path) -> list[Stay]:
    """Tour all mounts of these names, or all, one after the other.

    Raises:
        MissingPeer: A peer is not installed.
        SystemExit: There is a mount that is not known.
    """
    known = {mount.name: mount for mount in mounts()}
    if unknown := set(names) - set(known):
        raise SystemExit(f"no mounts: {', '.join(sorted(unknown))}")
    return [stay(known[name], folder) for name in names or known]


# What came of it


def table_of(stays: Sequence[Stay]) -> Table:
    """Each step of each client at each mount; of the last one, how the call in flight ended."""
    table = empty_table()
    table.add_column("client", no_wrap=True)
    table.add_column("step")
    for each in stays:
        table.add_column("\n".join(each.mount.split(maxsplit=1)))
    for visits in zip(*(each.visits for each in stays), strict=True):
        for step in STEPS:
            title = visits[0].tourist.title if step == STEPS[0] else ""
            table.add_row(title, step, *(_cell(visit, step) for visit in visits))
    table.add_section()
    table.add_row("the server stopped after", "s", *(f"{each.seconds:.1f}" for each in stays))
    return table


def _cell(visit: Visit, step: str) -> str:
    """What came of a step, in a word."""
    excuse = excuse_of(visit.tourist, step)
    if excuse is not None:
        return letter_of(excuse)
    if fault_of(visit, step):
        return "[bold red]-[/]"
    told = visit.told.get(step, "no end")
    return ENDS.get(told, told)


def fault_of(visit: Visit, step: str) -> str:
    """What is wrong with a step, or nothing; how a peer takes a server's end is its own affair."""
    told = visit.told.get(step, "it was not taken")
    if step == "stop":
        is_right = not visit.tourist.is_ours or told in ENDS
        return "" if is_right else f"the call in flight ended with {told}"
    return "" if told == "ok" or excuse_of(visit.tourist, step) else told


def letter_of(excuse: str) -> str:
    """What an excuse is called in the table."""
    return chr(ord("a") + EXCUSES.index(excuse))


def complaints(stays: Sequence[Stay]) -> Iterator[str]:
    """What must not be, in sentences."""
    for each in stays:
        if each.fault:
            yield f"{each.mount}: {each.fault}"
        if each.fault and not any(visit.told for visit in each.visits):
            continue  # it has not begun
        for visit in each.visits:
            for step in STEPS:
                if fault := fault_of(visit, step):
                    yield f"{visit.tourist.title} at {each.mount}: {step}: {fault}"


def report(stays: Sequence[Stay], seconds: float) -> bool:
    """Print everything; returns whether it is as it should be."""
    found = list(complaints(stays))
    show(table_of(stays), ())
    for excuse in EXCUSES:
        print(f"{letter_of(excuse)}: {excuse}")
    show(None, found)
    visits = sum(len(each.visits) for each in stays)
    print(f"{len(stays)} mounts, {visits} clients, {len(found)} complaints, {seconds:.0f} s")
    return not found


def main(arguments: list[str]) -> int:
    """Tour the mounts and report."""
    parser = argparse.ArgumentParser(description="Mount our server everywhere, and tour it.")
    parser.add_argument("mounts", nargs="*", metavar="MOUNT", help="only these")
    names = parser.parse_args(arguments).mounts
    return sit(partial(stay_everywhere, names), report)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
