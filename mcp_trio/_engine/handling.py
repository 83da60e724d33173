"""What a handler's context stands on: one request of the peer, and what may be done meanwhile."""

from typing import Any, Protocol

import attrs
import trio

from mcp_trio._engine.calls import ProgressCallback
from mcp_trio._engine.lanes import Lane, lane_in
from mcp_trio._engine.outbox import Outbox
from mcp_trio._engine.sequencer import Sequencer
from mcp_trio._errors import LocalProtocolError
from mcp_trio._protocol import Connection, ParamsToSend, TheirRequest, may_report

# A handler that only notifies would otherwise never let another task run.
NOTIFICATIONS_PER_CHECKPOINT = 64


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


@attrs.define(eq=False)
class Handling:
    """A request of the peer, from its arrival to its end.

    `is_started` tells that its handler has begun: until then a cancellation drops it unrun.
    """

    session: HandlingSession
    request: TheirRequest
    lane: Lane | None
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    is_started: bool = attrs.field(default=False, init=False)
    _notifications: int = attrs.field(default=0, init=False)

    @property
    def is_cancelled(self) -> bool:
        """Whether the peer, or the end of the session, has cancelled this request."""
        return self.scope.cancel_called

    async def progress(self, progress: float, total: float | None = None) -> None:
        """Report how far the request has come; silently nothing when nobody asked.

        A cancellation check, and a checkpoint at every 64th call. Cancelled: nothing was sent.

        Raises:
            LocalProtocolError: A number is NaN or infinite, for which JSON has no word.
        """
        if may_report(self.request, progress):
            lane = await self._ready_to_notify()
            frame = self.session.connection.progress(self.request, progress, total)
            if frame is not None:
                self.session.outbox.post(frame, lane)
        elif self._is_checkpoint_due():
            await trio.lowlevel.checkpoint()
        else:
            await trio.lowlevel.checkpoint_if_cancelled()

    async def notify(self, method: str, params: ParamsToSend | None = None) -> None:
        """Send a notification on behalf of this request; like `progress` towards cancellation.

        Raises:
            LocalProtocolError: The protocol forbids it now.
            Unencodable: The params cannot be written as JSON.
        """
        frame = self.session.connection.notification(method, params)
        lane = await self._ready_to_notify()
        self.session.outbox.post(frame, lane)

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
                tell when it acts.
        """
        if not self.session.sequencer.has_lanes:
            return None
        lane = lane_in(self.session.sequencer)
        if lane is None:
            raise LocalProtocolError(
                "this task has no lane: use the context only in tasks that a handler started"
            )
        return lane

    def _is_checkpoint_due(self) -> bool:
        self._notifications += 1
        return self._notifications % NOTIFICATIONS_PER_CHECKPOINT == 0

    async def _ready_to_notify(self) -> Lane | None:
        lane = self.current_lane()
        is_due = self._is_checkpoint_due()
        if is_due:
            self.session.outbox.flush()
        await self.session.outbox.ready(lane, checkpoint=is_due)
        return lane
