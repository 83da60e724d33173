"""A world of many sessions in one Trio run, in no time: clients, a server, and what goes wrong.

Time is virtual: whenever all tasks wait, the clock jumps to the next moment that one waits for. So
an hour passes in milliseconds, and a story that never ends is found instead of waited for. The
order of tasks, the faults and the moments at which clients come are decided by one seed.
"""

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol, TypeAlias

import attrs
import trio
import trio.testing

from mcp_trio._client import Client
from mcp_trio._engine import Session, bare
from mcp_trio._engine.schedules import seeded_schedule
from mcp_trio._errors import MCPError
from mcp_trio._limits import DEFAULT_LIMITS, Limits
from mcp_trio._protocol import Connection
from mcp_trio._recorder.options import RecordTo
from mcp_trio._testing.faults import NO_FAULTS, Faults
from mcp_trio._testing.faulty_channel import channel_pair
from mcp_trio._testing.simulated import (
    OPEN,
    SimulatedRequest,
    SimulatedSession,
    SimulationReport,
    TalliedClient,
)
from mcp_trio._transports.channel import Channel

Story: TypeAlias = Callable[[Client, random.Random], Awaitable[None]]
"""What a simulated client does: it gets the client, connected, and dice of its own."""

_IMPOSSIBLE: Final = ("unknown answer", "duplicate id", "malformed")


class Simulable(Protocol):
    """A server that can live in a simulated world, such as a `Server`."""

    async def serve(
        self,
        channel: Channel,
        *,
        record: RecordTo | None = None,
        task_status: trio.TaskStatus[Session] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serves one session, and reports it."""
        ...


def simulate(
    server: Simulable,
    story: Story,
    *,
    sessions: int = 100,
    seed: int | str = 0,
    faults: Faults = NO_FAULTS,
    limits: Limits = DEFAULT_LIMITS,
    arrival_seconds: float = 10.0,
    seconds_max: float = 24 * 3600.0,
    record: RecordTo | None = None,
) -> SimulationReport:
    """Run `sessions` clients against `server`, each telling `story`, on virtual time.

        async def story(client: Client, dice: Random) -> None:
            with trio.move_on_after(dice.uniform(0, 3)):
                await client.call_tool("forecast", {"city": "Oslo"})

        report = simulate(server, story, sessions=1000, seed=7, faults=Faults(drop=0.01))

    What the engine raises in a story (`MCPError`) ends that story and nothing else: under faults it
    is to be expected. A wait for the world outside, and a `def` handler with its thread, does not
    belong into a story or its server, since virtual time would not wait for it. Starts a Trio run
    of its own, and so is called from no Trio program.

    Args:
        server: What is under test. Its state is what the caller gave it: the same world twice
            wants a new one.
        story: What each client does. Its dice are decided by `seed` and the session's number.
        sessions: How many clients come.
        seed: Decides the order of tasks, the faults, the dice and when clients come.
        faults: What goes wrong on each client's connection.
        limits: Those of the clients; the server has its own.
        arrival_seconds: Within how many seconds all of them have come.
        seconds_max: Virtual seconds after which what still goes on counts as hanging.
        record: A folder for recordings of the server's sessions, or anything else that `serve`
            takes; what is recorded in virtual time replays like anything else.

    Raises:
        AssertionError: A request did not end exactly once, an end of a session kept a request
            open, a session hangs, or a task is left over: in the text, with seed and session.
        BaseException: What else a story raises, bare, with a note of seed and session.
        RuntimeError: This Trio cannot be told in which order tasks run.
    """
    world = _World(server, story, faults=faults, limits=limits, seed=seed, record=record)
    clock = trio.testing.MockClock(autojump_threshold=0)
    with seeded_schedule(f"{seed}"):
        try:
            trio.run(world.run, sessions, arrival_seconds, seconds_max, clock=clock)
        except BaseExceptionGroup as group:
            raise bare(group) from None
    return SimulationReport(
        seed=seed,
        sessions=tuple(world.ended[number] for number in range(sessions)),
        seconds=world.seconds,
    )


@attrs.define(eq=False)
class _World:
    """The sessions of one simulation, and how each has ended."""

    server: Simulable
    story: Story
    faults: Faults = attrs.field(kw_only=True)
    limits: Limits = attrs.field(kw_only=True)
    seed: int | str = attrs.field(kw_only=True)
    record: RecordTo | None = attrs.field(kw_only=True)
    ended: dict[int, SimulatedSession] = attrs.field(
        factory=dict[int, SimulatedSession], init=False
    )
    seconds: float = attrs.field(default=0.0, init=False)

    async def run(self, sessions: int, arrival_seconds: float, seconds_max: float) -> None:
        begun, tasks = trio.current_time(), _tasks()
        with trio.move_on_after(seconds_max):
            async with trio.open_nursery() as nursery:
                for number in range(sessions):
                    nursery.start_soon(self._live, number, arrival_seconds)
        self.seconds = trio.current_time() - begun
        going_on = set(range(sessions)) - set(self.ended)
        if going_on:
            names = ", ".join(map(str, sorted(going_on)))
            raise AssertionError(
                f"seed {self.seed!r}: not over after {seconds_max:g} s: session {names}"
            )
        await trio.testing.wait_all_tasks_blocked()
        if _tasks() > tasks:
            raise AssertionError(f"seed {self.seed!r}: {_tasks() - tasks} tasks are left over")

    async def _live(self, number: int, arrival_seconds: float) -> None:
        """One session, from the client's coming until nothing of it is left on either side."""
        dice = random.Random(f"{self.seed}:{number}")  # noqa: S311  no secret
        await trio.sleep(dice.uniform(0, arrival_seconds))
        ours, theirs = channel_pair(
            faults=self.faults, seed=f"{self.seed}:{number}", limits=self.limits
        )
        client = TalliedClient(ours, limits=self.limits)
        try:
            async with trio.open_nursery() as nursery:
                session = await nursery.start(self._serve, theirs)
                end = await self._tell(client, dice)
            self._check(client.connection, client.requests)
            self._check(session.connection, ())
        except BaseException as error:
            bare(error).add_note(f"in session {number} of seed {self.seed!r}")
            raise
        self.ended[number] = SimulatedSession(
            number=number, end=end, requests=tuple(client.requests), faults=tuple(ours.events)
        )

    async def _serve(self, channel: Channel, *, task_status: trio.TaskStatus[Session]) -> None:
        await self.server.serve(channel, record=self.record, task_status=task_status)

    async def _tell(self, client: TalliedClient, dice: random.Random) -> str:
        try:
            async with client:
                await self.story(client, dice)
        except Exception as error:
            if not _is_of_the_engine(error):
                raise
            return type(bare(error)).__name__
        finally:
            await client.aclose()
        return "told"

    def _check(self, connection: Connection, requests: Sequence[SimulatedRequest]) -> None:
        """Whether this end of a session that is over has nothing open, and heard nothing twice."""
        still_open = [request.method for request in requests if request.outcome == OPEN]
        kept = len(connection.ours) + len(connection.theirs)
        still_open += [f"{connection.our_role.name.lower()}'s request"] * kept
        if still_open:
            raise AssertionError(f"requests that never ended: {', '.join(still_open)}")
        for name in _IMPOSSIBLE:
            if connection.counts[name] and self.faults == NO_FAULTS:
                raise AssertionError(f"{name}, {connection.counts[name]} times, without any fault")


def _is_of_the_engine(error: Exception) -> bool:
    """Whether nothing but `MCPError` was raised, maybe in groups."""
    return ExceptionGroup("", [error]).split(MCPError)[1] is None


def _tasks() -> int:
    return trio.lowlevel.current_statistics().tasks_living
