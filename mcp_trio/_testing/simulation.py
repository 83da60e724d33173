"""A world of many sessions in one Trio run, in no time: clients, a server, and what goes wrong.

Time is virtual: whenever all tasks wait, the clock jumps to the next moment that one waits for. So
an hour passes in milliseconds, and a story that never ends is found instead of waited for. The
order of tasks, the faults and the moments at which clients come are decided by one seed.
"""

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol, TypeAlias

import attrs
import trio
import trio.testing

from mcp_trio._client.client import Client
from mcp_trio._protocol.connection import Connection
from mcp_trio._protocol.methods import ParamsToSend
from mcp_trio._recorder.writer import RecordTarget
from mcp_trio._session.session import Session
from mcp_trio._session.tasks import bare, seeded_schedule
from mcp_trio._testing.faults import NO_FAULTS, Fault, Faults, channel_pair
from mcp_trio._transports.channel import Channel
from mcp_trio.errors import ConnectionLost, MCPError, RequestTimeout
from mcp_trio.limits import DEFAULT_LIMITS, Limits

# --------------------
# What a simulated world says of itself afterwards, and the client that keeps count in it.


OPEN: Final = "open"

# How a request ended, by what its caller was told; the first row that fits.
_OUTCOMES: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (ConnectionLost, "lost"),
    (RequestTimeout, "timeout"),
    (trio.Cancelled, "cancelled"),
    (Exception, "error"),
)


@attrs.define
class SimulatedRequest:
    """A request of a simulated client, and how it ended.

    `outcome` is "result", "error", "timeout", "cancelled" or "lost".
    """

    method: str
    outcome: str = OPEN


@attrs.frozen(kw_only=True)
class SimulatedSession:
    """One session of a simulated world.

    `end` says how the story ended: "told", or what the engine raised in it, or before it.
    """

    number: int
    end: str
    requests: tuple[SimulatedRequest, ...]
    faults: tuple[Fault, ...]


@attrs.frozen(kw_only=True)
class SimulationReport:
    """What happened in a simulated world; equal for equal seeds, stories, servers and faults.

    Attributes:
        seed: What the world was made from.
        sessions: Each session, in the order of their numbers.
        seconds: How long it took, on the world's own clock.
    """

    seed: int | str
    sessions: tuple[SimulatedSession, ...]
    seconds: float

    @property
    def requests(self) -> int:
        """How many requests there were."""
        return sum(len(session.requests) for session in self.sessions)

    @property
    def outcomes(self) -> dict[str, int]:
        """How many requests ended how."""
        ends = (request.outcome for session in self.sessions for request in session.requests)
        return dict(sorted(Counter(ends).items()))

    @property
    def faults(self) -> dict[str, int]:
        """How many faults of which kind there were."""
        kinds = (fault.kind for session in self.sessions for fault in session.faults)
        return dict(sorted(Counter[str](kinds).items()))

    @property
    def ends(self) -> dict[str, int]:
        """How many stories ended how."""
        return dict(sorted(Counter(session.end for session in self.sessions).items()))

    def __str__(self) -> str:
        return (
            f"{len(self.sessions)} sessions, {self.requests} requests {self.outcomes},"
            f" faults {self.faults}, {self.seconds:.1f} s of its own, seed {self.seed!r}"
        )


class CountingClient(Client):
    """A client that keeps each request and how it ended, as its caller was told."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.requests: list[SimulatedRequest] = []

    async def request(self, method: str, params: ParamsToSend | None = None, **options: Any) -> Any:
        """See `Client.request`."""
        request = SimulatedRequest(method)
        self.requests.append(request)
        try:
            result = await super().request(method, params, **options)
        except BaseException as error:
            request.outcome = _outcome_of(error)
            raise
        request.outcome = "result"
        return result

    @property
    def connection(self) -> Connection:
        """The protocol's state of this end, also after the session."""
        return self._session.connection


def _outcome_of(error: BaseException) -> str:
    return next((outcome for kind, outcome in _OUTCOMES if isinstance(error, kind)), OPEN)


Story: TypeAlias = Callable[[Client, random.Random], Awaitable[None]]
"""What a simulated client does: it gets the client, connected, and dice of its own."""

_IMPOSSIBLE: Final = ("unknown answer", "duplicate id", "malformed")


class Simulable(Protocol):
    """A server that can live in a simulated world, such as a `Server`."""

    async def serve(
        self,
        channel: Channel,
        *,
        record: RecordTarget | None = None,
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
    record: RecordTarget | None = None,
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
    record: RecordTarget | None = attrs.field(kw_only=True)
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
        random_source = random.Random(f"{self.seed}:{number}")  # noqa: S311  no secret
        await trio.sleep(random_source.uniform(0, arrival_seconds))
        ours, theirs = channel_pair(
            faults=self.faults, seed=f"{self.seed}:{number}", limits=self.limits
        )
        client = CountingClient(ours, limits=self.limits)
        try:
            async with trio.open_nursery() as nursery:
                session = await nursery.start(self._serve, theirs)
                end = await self._tell(client, random_source)
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

    async def _tell(self, client: CountingClient, random_source: random.Random) -> str:
        try:
            async with client:
                await self.story(client, random_source)
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
