"""Mount our server in other applications, and use every client: `python tools/interop/mounts.py`.

At each mount all clients run `mount_checks.py` at once; then the server is stopped during a call of
each. Prints a table of mounts, clients and steps; the exit status is 1 if a step failed without an
excuse, a server did not stop as it should, or a peer is not installed.
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
from interop_command import (
    Progress,
    new_table,
    run_command,
    run_program,
    show,
    wrong,
)
from peers import HERE, LEGACY, PEERS, PYTHON_WEB, Command, MissingPeer, is_installed
from rich.table import Table
from server_processes import RunningServer, ServerFailed, last_lines, running_server
from sessions import OUR_CLIENT

TOUR_SECONDS: Final = 90.0
STOP_SECONDS: Final = 15.0
END_SECONDS: Final = 10.0
POLL_SECONDS: Final = 0.02
STOPPED: Final = (0, 128 + 15)
"""Exit statuses after SIGTERM; hypercorn's own command ends by the signal."""

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
    """A mounted server: the command that starts it, and the paths of its URLs.

    `beside` is a page of the application in which it is mounted.
    """

    name: str
    command: Sequence[str]
    mcp: str = "/mcp"
    sse: str = "/sse"
    websocket: str = "/ws"
    beside: str | None = None


@attrs.frozen
class TourClient:
    """A client, its protocol version, and whether it uses WebSocket."""

    name: str
    protocol_version: str
    command: Command
    has_websocket: bool = False

    @property
    def title(self) -> str:
        return f"{self.name} {self.protocol_version}{' ws' if self.has_websocket else ''}"

    def url(self, mount: Mount, server: RunningServer) -> str:
        if self.has_websocket:
            return f"ws://{server.address}{mount.websocket}"
        is_streamable = has(self.protocol_version, "streamable_http")
        return server.origin + (mount.mcp if is_streamable else mount.sse)

    @property
    def is_ours(self) -> bool:
        return self.name == OURS


@attrs.define
class ClientTour(Progress):
    """The outcomes of a client's steps at a mount."""

    client: TourClient

    @property
    def is_waiting(self) -> bool:
        """Return whether the client has a call in flight."""
        return "begun" in self.outcomes

    @property
    def has_ended(self) -> bool:
        """Return whether that call, or the client, has ended."""
        return "stop" in self.outcomes


@attrs.frozen(kw_only=True)
class MountTour:
    """The results of all clients at a mount, and how the server stopped."""

    mount: str
    client_tours: Sequence[ClientTour]
    seconds: float
    failure: str


def mounts() -> list[Mount]:
    """Return all mounts."""
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
        Mount(name="in FastAPI", command=[*hypercorn, f"{program}:in_fastapi()"], **below),
        Mount(name="beside Quart-Trio", command=[*hypercorn, f"{program}:beside_quart()"], **below),
    ]


_PEERS: Final = ("Python 1", "Python 2", "TypeScript 2")


def tour_clients() -> list[TourClient]:
    """Return all clients."""
    ours = [sys.executable, str(OUR_CLIENT)]
    theirs = {name: PEERS[name].client_command() for name in _PEERS}
    return [
        *(TourClient(OURS, protocol_version, ours) for protocol_version in (NEW, OLD, OLDEST)),
        *(
            TourClient(name, protocol_version, theirs[name])
            for name in ("Python 2", "TypeScript 2")
            for protocol_version in (NEW, OLD)
        ),
        *(
            TourClient(OURS, protocol_version, ours, has_websocket=True)
            for protocol_version in (NEW, OLD)
        ),
        TourClient("Python 1", OLD, theirs["Python 1"], has_websocket=True),
        TourClient("TypeScript 2", NEW, theirs["TypeScript 2"], has_websocket=True),
    ]


def excuse_of(client: TourClient, step: str) -> str | None:
    if step != "resume":
        return None
    if not has(client.protocol_version, "sessions"):
        return NO_STREAMS
    return None if has(client.protocol_version, "streamable_http") else NO_IDS


# Run all clients at a mount.


def tour_mount(mount: Mount, folder: Path) -> MountTour:
    """Run all clients at a mount, and stop the server during a call of each."""
    client_tours = [ClientTour(client) for client in tour_clients()]
    log = folder / f"{mount.name}.log"
    seconds, failure = 0.0, ""
    try:
        with running_server(list(mount.command), log) as server:
            if mount.beside is not None:
                urlopen(server.origin + mount.beside).close()
            seconds = trio.run(_tour_until_stopped, mount, server, client_tours)
            if server.process.poll() not in STOPPED:
                tail = last_lines(log.read_bytes())
                failure = f"the server exited with {server.process.poll()}: {tail}"
    except (ServerFailed, URLError) as error:
        failure = str(error)
    if "Traceback" in log.read_text("utf-8", "replace"):
        failure = failure or f"the server logged a traceback: {last_lines(log.read_bytes())}"
    return MountTour(mount=mount.name, client_tours=client_tours, seconds=seconds, failure=failure)


async def _tour_until_stopped(
    mount: Mount, server: RunningServer, client_tours: Sequence[ClientTour]
) -> float:
    """Return how many seconds the server took to stop, during a call of each client."""
    async with trio.open_nursery() as nursery:
        for client_tour in client_tours:
            nursery.start_soon(_run_client, client_tour, client_tour.client.url(mount, server))
        await _until(
            lambda: all(it.is_waiting or it.has_ended for it in client_tours), TOUR_SECONDS
        )
        begin = time.monotonic()
        server.process.terminate()
        await _until(lambda: server.process.poll() is not None, STOP_SECONDS)
        seconds = time.monotonic() - begin
        # Only our own clients have to notice that the server has stopped.
        await _until(
            lambda: all(it.has_ended for it in client_tours if it.client.is_ours), END_SECONDS
        )
        nursery.cancel_scope.cancel()
    return seconds


async def _until(condition: Callable[[], bool], seconds: float) -> None:
    """Poll until the condition is true, for so many seconds."""
    with trio.move_on_after(seconds):
        while not condition():  # noqa: ASYNC110  # there is no event
            await trio.sleep(POLL_SECONDS)


async def _run_client(client_tour: ClientTour, url: str) -> None:
    """Run a client and store its outcomes; cancellation kills it."""
    client = client_tour.client
    command = [*client.command, TOUR + client.protocol_version, url]
    status = await run_program(command, client_tour.note, client_tour.note_error)
    client_tour.outcomes.setdefault("stop", f"exit {status}: {client_tour.last_error}")


def tour_mounts(names: Collection[str], folder: Path) -> list[MountTour]:
    """Run all clients at the named mounts, or at all, one mount after the other."""
    known = {mount.name: mount for mount in mounts()}
    if unknown := set(names) - set(known):
        raise SystemExit(f"unknown mounts: {', '.join(sorted(unknown))}")
    return [tour_mount(known[name], folder) for name in names or known]


# Report.


def table_of(mount_tours: Sequence[MountTour]) -> Table:
    """Return the table of steps; the last one is how the call in flight ended."""
    mounts_ = ("\n".join(each.mount.split(maxsplit=1)) for each in mount_tours)
    table = new_table("client", "step", *mounts_)
    for client_tours in zip(*(each.client_tours for each in mount_tours), strict=True):
        for step in STEPS:
            title = client_tours[0].client.title if step == STEPS[0] else ""
            table.add_row(title, step, *(_cell(client_tour, step) for client_tour in client_tours))
    table.add_section()
    table.add_row("the server stopped after", "s", *(f"{each.seconds:.1f}" for each in mount_tours))
    return table


def _cell(client_tour: ClientTour, step: str) -> str:
    excuse = excuse_of(client_tour.client, step)
    if excuse is not None:
        return letter_of(excuse)
    if failure_of(client_tour, step):
        return wrong("-")
    outcomes = client_tour.outcomes.get(step, "no end")
    return ENDS.get(outcomes, outcomes)


def failure_of(client_tour: ClientTour, step: str) -> str:
    """Return what went wrong in a step, or an empty text."""
    outcomes = client_tour.outcomes.get(step, "the step was not run")
    if step == "stop":
        is_right = not client_tour.client.is_ours or outcomes in ENDS
        return "" if is_right else f"the call in flight ended with {outcomes}"
    return "" if outcomes == "ok" or excuse_of(client_tour.client, step) else outcomes


def letter_of(excuse: str) -> str:
    return chr(ord("a") + EXCUSES.index(excuse))


def problems(mount_tours: Sequence[MountTour]) -> Iterator[str]:
    for each in mount_tours:
        if each.failure:
            yield f"{each.mount}: {each.failure}"
        if each.failure and not any(client_tour.outcomes for client_tour in each.client_tours):
            continue  # it has not begun
        for client_tour in each.client_tours:
            for step in STEPS:
                if failure := failure_of(client_tour, step):
                    yield f"{client_tour.client.title} at {each.mount}: {step}: {failure}"


def report(mount_tours: Sequence[MountTour], seconds: float) -> bool:
    """Print the table, the excuses and the problems; return whether there are no problems."""
    show(table_of(mount_tours))
    for excuse in EXCUSES:
        print(f"{letter_of(excuse)}: {excuse}")
    client_tours = sum(len(each.client_tours) for each in mount_tours)
    summary = f"{len(mount_tours)} mounts, {client_tours} clients, {{}}, {seconds:.0f} s"
    return show(None, problems(mount_tours), summary)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Use our server at every mount.")
    parser.add_argument("mounts", nargs="*", metavar="MOUNT", help="only these")
    names = parser.parse_args(arguments).mounts
    return run_command(partial(tour_mounts, names), report)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
