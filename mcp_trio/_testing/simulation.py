"""Simulation of many sessions in one Trio run, on virtual time, with faulty connections.

Time is virtual: whenever all tasks are blocked, the clock jumps to the next deadline. So an hour
passes in milliseconds, and a client that never finishes is detected at once. One seed decides the
order of tasks, the faults, and the times at which clients connect.
"""

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import attrs
import msgspec
import trio
import trio.testing

from mcp_trio._client.client import Client
from mcp_trio._protocol.connection import Connection
from mcp_trio._protocol.methods import ParamsToSend
from mcp_trio._recorder.options import RecordTarget
from mcp_trio._server.server import Server
from mcp_trio._session.exceptions import raise_unchanged, sole_exception
from mcp_trio._session.session import Session
from mcp_trio._session.tasks import seeded_schedule
from mcp_trio._testing.faults import NO_FAULTS, Fault, Faults, channel_pair
from mcp_trio.errors import ConnectionLost, MCPError, RequestTimeout
from mcp_trio.limits import DEFAULT_LIMITS, Limits

_OPEN: Final = "open"

# The outcome of a request, by the exception that its caller got; the first row that fits.
_OUTCOMES: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (ConnectionLost, "lost"),
    (RequestTimeout, "timeout"),
    (trio.Cancelled, "cancelled"),
    (Exception, "error"),
)


@attrs.define
class SimulatedRequest:
    """A request of a simulated client, and its outcome.

    `outcome` is "result", "error", "timeout", "cancelled" or "lost".
    """

    method: str
    outcome: str = _OPEN


class SimulatedSession(msgspec.Struct, frozen=True, kw_only=True):
    """A simulated session.

    Attributes:
        number: The number of the session, from 0.
        end: "finished" if the scenario returned, or else the name of the `MCPError` that it raised.
        requests: The client's requests.
        faults: The faults that happened to its connection.
    """

    number: int
    end: str
    requests: tuple[SimulatedRequest, ...]
    faults: tuple[Fault, ...]


class SimulationReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a simulation; equal for equal seeds, scenarios, servers and faults.

    Attributes:
        seed: The seed of the simulation.
        sessions: The sessions, in the order of their numbers.
        seconds: The duration, in virtual seconds.
    """

    seed: int | str
    sessions: tuple[SimulatedSession, ...]
    seconds: float

    @property
    def requests(self) -> int:
        """The number of requests."""
        return sum(len(session.requests) for session in self.sessions)

    @property
    def outcomes(self) -> dict[str, int]:
        """The number of requests with each outcome."""
        outcomes = (request.outcome for session in self.sessions for request in session.requests)
        return dict(sorted(Counter(outcomes).items()))

    @property
    def faults(self) -> dict[str, int]:
        """The number of faults of each kind."""
        kinds = (fault.kind for session in self.sessions for fault in session.faults)
        return dict(sorted(Counter[str](kinds).items()))

    @property
    def ends(self) -> dict[str, int]:
        """The number of sessions with each `end`."""
        return dict(sorted(Counter(session.end for session in self.sessions).items()))

    def __str__(self) -> str:
        return (
            f"{len(self.sessions)} sessions, {self.requests} requests {self.outcomes},"
            f" faults {self.faults}, {self.seconds:.1f} virtual seconds, seed {self.seed!r}"
        )


class SimulatedClient(Client):
    """A client that keeps a list of its requests and their outcomes."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.requests: list[SimulatedRequest] = []

    async def request(self, method: str, params: ParamsToSend | None = None, **options: Any) -> Any:
        """Send a request as `Client.request` does, and keep the outcome."""
        request = SimulatedRequest(method)
        self.requests.append(request)
        try:
            result = await super().request(method, params, **options)
        except BaseException as error:
            request.outcome = next(
                (outcome for kind, outcome in _OUTCOMES if isinstance(error, kind)), _OPEN
            )
            raise
        request.outcome = "result"
        return result

    @property
    def connection(self) -> Connection:
        """The protocol state of this client, also after the session."""
        return self._session.connection


Scenario: TypeAlias = Callable[[Client, random.Random], Awaitable[None]]
"""The code of a simulated client, which gets the connected client and a random source."""

# The counters of `Connection.counts` for messages that only a faulty connection delivers.
_FAULT_COUNTERS: Final = ("unknown answer", "duplicate id", "malformed")


def simulate(
    server: Server,
    scenario: Scenario,
    *,
    sessions: int = 100,
    seed: int | str = 0,
    faults: Faults = NO_FAULTS,
    limits: Limits = DEFAULT_LIMITS,
    arrival_seconds: float = 10.0,
    seconds_max: float = 24 * 3600.0,
    record: RecordTarget | None = None,
) -> SimulationReport:
    """Run `sessions` clients against `server`, each with the code of `scenario`, on virtual time.

        async def scenario(client: Client, random: Random) -> None:
            with trio.move_on_after(random.uniform(0, 3)):
                await client.call_tool("forecast", {"city": "Oslo"})

        report = simulate(server, scenario, sessions=1000, seed=7, faults=Faults(drop=0.01))

    An `MCPError` raised in a scenario ends only that session, because faults cause such errors.
    Scenarios and servers must not wait for external I/O, and the server must not have `def`
    handlers, which run in threads: virtual time does not wait for them. This function calls
    `trio.run`, so it cannot be called inside a Trio program.

    Args:
        server: The server under test. To repeat a simulation exactly, pass a new server.
        scenario: The function that each client runs. `seed` and the session's number decide its
            random numbers.
        sessions: The number of clients.
        seed: Decides the order of tasks, the faults, the random numbers and the arrival times.
        faults: The faults of each client's connection.
        limits: The limits of the clients; the server has its own.
        arrival_seconds: The time within which all clients connect.
        seconds_max: The virtual seconds after which a session that still runs counts as hanging.
        record: A folder for recordings of the server's sessions, or another target that `serve`
            accepts; recordings made in virtual time replay like any others.

    Raises:
        AssertionError: A request has no outcome, or the client or the server still counts it as
            open after the session; a session hangs; or a task is left over. The text names the seed
            and the session.
        BaseException: Any other error of a scenario, not in an exception group, with a note that
            names the seed and the session.
        RuntimeError: The order of tasks cannot be controlled in this version of Trio.
    """
    simulation = _Simulation(
        server, scenario, faults=faults, limits=limits, seed=seed, record=record
    )
    clock = trio.testing.MockClock(autojump_threshold=0)
    with seeded_schedule(f"{seed}"):
        try:
            trio.run(simulation.run, sessions, arrival_seconds, seconds_max, clock=clock)
        except BaseExceptionGroup as group:
            raise_unchanged(sole_exception(group))
    return SimulationReport(
        seed=seed,
        sessions=tuple(simulation.ended[number] for number in range(sessions)),
        seconds=simulation.seconds,
    )


@attrs.define(eq=False, repr=False)
class _Simulation:
    """A simulation that runs, with the sessions that have ended so far."""

    server: Server
    scenario: Scenario
    faults: Faults = attrs.field(kw_only=True)
    limits: Limits = attrs.field(kw_only=True)
    seed: int | str = attrs.field(kw_only=True)
    record: RecordTarget | None = attrs.field(kw_only=True)
    ended: dict[int, SimulatedSession] = attrs.field(
        factory=dict[int, SimulatedSession], init=False
    )
    seconds: float = attrs.field(default=0.0, init=False)

    async def run(self, sessions: int, arrival_seconds: float, seconds_max: float) -> None:
        begin, tasks = trio.current_time(), _task_count()
        with trio.move_on_after(seconds_max):
            async with trio.open_nursery() as nursery:
                for number in range(sessions):
                    nursery.start_soon(self._run_session, number, arrival_seconds)
        self.seconds = trio.current_time() - begin
        unfinished = set(range(sessions)) - set(self.ended)
        if unfinished:
            names = ", ".join(map(str, sorted(unfinished)))
            raise AssertionError(
                f"seed {self.seed!r}: not finished after {seconds_max:g} s: session {names}"
            )
        await trio.testing.wait_all_tasks_blocked()
        if _task_count() > tasks:
            raise AssertionError(f"seed {self.seed!r}: {_task_count() - tasks} tasks are left over")

    async def _run_session(self, number: int, arrival_seconds: float) -> None:
        """Run one session, until both the client and the server have ended it."""
        random_source = random.Random(f"{self.seed}:{number}")  # noqa: S311  no secret
        await trio.sleep(random_source.uniform(0, arrival_seconds))
        client_channel, server_channel = channel_pair(
            faults=self.faults, seed=f"{self.seed}:{number}", limits=self.limits
        )
        client = SimulatedClient(client_channel, limits=self.limits)
        try:
            async with trio.open_nursery() as nursery:
                serve = partial(self.server.serve, server_channel, record=self.record)
                session: Session = await nursery.start(serve)
                end = await self._run_scenario(client, random_source)
            self._check(client.connection, client.requests)
            self._check(session.connection, ())
        except BaseException as error:
            sole_exception(error).add_note(f"in session {number} of seed {self.seed!r}")
            raise
        self.ended[number] = SimulatedSession(
            number=number,
            end=end,
            requests=tuple(client.requests),
            faults=tuple(client_channel.events),
        )

    async def _run_scenario(self, client: SimulatedClient, random_source: random.Random) -> str:
        try:
            async with client:
                await self.scenario(client, random_source)
        except Exception as error:
            # Raise the error again, unless it is an `MCPError` or a group of only such errors.
            if ExceptionGroup("", [error]).split(MCPError)[1] is not None:
                raise
            return type(sole_exception(error)).__name__
        return "finished"

    def _check(self, connection: Connection, requests: Sequence[SimulatedRequest]) -> None:
        """Check that a peer has no open requests and, without faults, received nothing invalid."""
        still_open = [request.method for request in requests if request.outcome == _OPEN]
        open_count = len(connection.outgoing) + len(connection.incoming)
        still_open += [f"{connection.our_role.name.lower()}'s request"] * open_count
        if still_open:
            raise AssertionError(f"requests without an outcome: {', '.join(still_open)}")
        for name in _FAULT_COUNTERS:
            if name in connection.counts and self.faults == NO_FAULTS:
                raise AssertionError(
                    f"{name}: {connection.counts[name]} messages, although there were no faults"
                )


def _task_count() -> int:
    return trio.lowlevel.current_statistics().tasks_living
