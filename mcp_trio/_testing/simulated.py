"""What a simulated world says of itself afterwards, and the client that keeps count in it."""

from collections import Counter
from typing import Any, Final

import attrs
import trio

from mcp_trio._client import Client
from mcp_trio._errors import ConnectionLost, RequestTimeout
from mcp_trio._protocol import Connection, ParamsToSend
from mcp_trio._testing.faults import Fault

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


class TalliedClient(Client):
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
