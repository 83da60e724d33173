"""What a handler's context stands on: one request of the peer, and what may be done meanwhile."""

import functools
from collections.abc import Callable
from contextvars import ContextVar
from random import Random
from typing import Any, Final, Protocol

import attrs
import trio

from mcp_trio._engine.calls import ProgressCallback
from mcp_trio._engine.lanes import Lane, lane_in
from mcp_trio._engine.outbox import Outbox
from mcp_trio._engine.sequencer import Sequencer
from mcp_trio._errors import LocalProtocolError
from mcp_trio._protocol import Connection, ParamsToSend, TheirRequest

# A handler that only notifies would otherwise never let another task run.
NOTIFICATIONS_PER_CHECKPOINT = 64

# The outcome of a notification that was not to be sent.
UNSENT_BODY: Final = b'"unsent"'


class HandlingSession(Protocol):
    """The session, as far as a handler needs it."""

    @property
    def connection(self) -> Connection:
        """The protocol's state, and the facts of the handshake."""
        ...

    @property
    def sequencer(self) -> Sequencer:
        """The session's total order."""
        ...

    @property
    def outbox(self) -> Outbox:
        """Where messages leave."""
        ...

    async def request(
        self,
        method: str,
        params: ParamsToSend | None = None,
        *,
        idle_seconds: float | None = None,
        total_seconds: float | None = None,
        on_progress: ProgressCallback | None = None,
        lane: Lane | None = None,
    ) -> Any:
        """The peer's typed result."""
        ...


@attrs.frozen(eq=False)
class Inside:
    """A task that runs an effect for a handler, and the effect's name."""

    handling: "Handling"
    effect: str


INSIDE: Final[ContextVar[Inside | None]] = ContextVar("mcp_trio_inside", default=None)


@attrs.define(eq=False)
class Handling:
    """A request of the peer, from its arrival to its end.

    `is_started` tells that its handler has begun: until then a cancellation drops it unrun.
    `random` is made at first need, and stays None while something records: then lanes have it.
    """

    session: HandlingSession
    request: TheirRequest
    lane: Lane | None
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    is_started: bool = attrs.field(default=False, init=False)
    random: Random | None = attrs.field(default=None, init=False)
    _notifications: int = attrs.field(default=0, init=False)

    @property
    def is_cancelled(self) -> bool:
        """Whether the peer, or the end of the session, has cancelled this request."""
        return self.scope.cancel_called

    async def progress(self, progress: float, total: float | None = None) -> None:
        """Report how far the request has come; nothing is sent if nobody asked, or nothing grew.

        A cancellation check, and a checkpoint at every 64th call. Cancelled: nothing was sent.

        Raises:
            LocalProtocolError: A number is NaN or infinite, for which JSON has no word.
        """
        connection = self.session.connection
        await self._tell(functools.partial(connection.progress, self.request, progress, total))

    async def notify(self, method: str, params: ParamsToSend | None = None) -> None:
        """Send a notification on behalf of this request; like `progress` towards cancellation.

        Raises:
            LocalProtocolError: The protocol forbids it now.
            Unencodable: The params cannot be written as JSON.
        """
        make = functools.partial(self.session.connection.notification, method, params)
        await self._tell(make)

    async def notify_if(self, method: str, make: Callable[[], ParamsToSend | None]) -> None:
        """`notify`, with the params that `make` gives; nothing is sent if it gives None."""

        def frame() -> bytes | None:
            params = make()
            return None if params is None else self.session.connection.notification(method, params)

        await self._tell(frame)

    async def ask(
        self,
        method: str,
        params: ParamsToSend | None = None,
        *,
        idle_seconds: float | None = None,
        total_seconds: float | None = None,
        on_progress: ProgressCallback | None = None,
    ) -> Any:
        """The peer's typed result of a request that this one needs; see `Session.request`."""
        return await self.session.request(
            method,
            params,
            idle_seconds=idle_seconds,
            total_seconds=total_seconds,
            on_progress=on_progress,
            lane=self.current_lane(),
        )

    def current_lane(self) -> Lane | None:
        """The lane of the calling task; None when nothing records.

        Raises:
            LocalProtocolError: The task does not descend from a handler, so that a replay could not
                tell when it acts; or it runs an effect, which a replay does not.
        """
        inside = INSIDE.get()
        if inside is not None and inside.handling is self:
            raise LocalProtocolError(
                f"inside the effect {inside.effect!r} the context cannot be used, for a replay does"
                " not run effects: return what the handler needs, and let it act"
            )
        if not self.session.sequencer.has_lanes:
            return None
        lane = lane_in(self.session.sequencer)
        if lane is None:
            raise LocalProtocolError(
                "this task has no lane: use the context only in tasks that a handler started"
            )
        return lane

    async def _tell(self, make: Callable[[], bytes | None]) -> None:
        """Send what `make` says, if anything.

        What it looks at, other tasks change. So it is called in the lane's turn, and there is a
        record of the call also when nothing is sent.
        """
        lane, outbox = self.current_lane(), self.session.outbox
        self._notifications += 1
        is_due = self._notifications % NOTIFICATIONS_PER_CHECKPOINT == 0
        if is_due:
            outbox.flush()
        await outbox.ready(lane, checkpoint=is_due)
        try:
            frame = make()
        except Exception:
            self._keep_unsent(lane, "err")
            raise
        if frame is None:
            self._keep_unsent(lane, "res")
        else:
            outbox.post(frame, lane)

    def _keep_unsent(self, lane: Lane | None, kind: str) -> None:
        if lane is not None:
            self.session.sequencer.resumed(lane, kind, UNSENT_BODY)
