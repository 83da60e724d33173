"""The dispatcher: one received frame, one event, one entry of a table.

Everything here is synchronous. A frame is recorded first and acted upon afterwards, so the order of
the journal is that of cause and effect. The end of a request is here as well, because it frees the
place that a waiting request takes.
"""

import logging
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any, Final

import attrs
import trio

from mcp_trio._engine import answering
from mcp_trio._engine.application import Application
from mcp_trio._engine.deliveries import Deliveries
from mcp_trio._engine.handling import Handling, HandlingSession
from mcp_trio._engine.lanes import Lane
from mcp_trio._engine.requests import Requests
from mcp_trio._errors import SERVER_BUSY
from mcp_trio._protocol import (
    Admission,
    AnswerArrived,
    Ignored,
    Input,
    NotificationArrived,
    ProgressArrived,
    Reply,
    RequestCancelled,
    RequestId,
    RequestToRun,
)
from mcp_trio._wire import Oversized, encode_error

logger = logging.getLogger("mcp_trio")

MALFORMED: Final = "malformed"
REFUSED: Final = "requests refused"
_IGNORED_LEVELS: Final = {
    MALFORMED: logging.WARNING,
    "unknown answer": logging.WARNING,
    "malformed notification": logging.WARNING,
}


@attrs.define(eq=False)
class Dispatcher:
    """Takes every frame of one session, and keeps the requests of the peer until their end.

    `on_negotiated` is called when a handshake has been answered, `on_initialized` when the client
    has acknowledged that.
    """

    session: HandlingSession
    application: Application
    requests: Requests
    deliveries: Deliveries
    on_negotiated: Callable[[], None]
    on_initialized: Callable[[], None]
    _nursery: trio.Nursery = attrs.field(init=False)
    _context: Context = attrs.field(init=False)
    _admission: Admission = attrs.field(init=False)
    _handlings: dict[RequestId, Handling] = attrs.field(
        factory=dict[RequestId, Handling], init=False
    )
    _idle: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _actions: dict[type, Callable[[Any, int], None]] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._admission = Admission(self.session.connection.limits)
        self._actions = {
            RequestToRun: self._admit,
            NotificationArrived: self._pass_on,
            RequestCancelled: self._cancel,
            ProgressArrived: self._report,
            AnswerArrived: self._settle,
            Reply: self._reply,
            Ignored: self._ignore,
        }

    def open(self, nursery: trio.Nursery) -> None:
        """Handlers run in `nursery` from now on, and begin with the context variables of now.

        Otherwise one that waited for a place would begin with those of the handler that left it.
        """
        self._nursery = nursery
        self._context = copy_context()

    def take(self, frame: bytes | Oversized, now: float) -> None:
        """One received frame: decide what it is, record it, act. Never waits, never raises."""
        session = self.session
        event = session.connection.receive(frame, now)
        is_accepted = getattr(event, "counted", None) != MALFORMED
        number = session.sequencer.took(frame, embed=is_accepted)
        self._actions[type(event)](event, number)

    # Requests of theirs.

    def _admit(self, event: RequestToRun, number: int) -> None:
        request = event.request
        sequencer = self.session.sequencer
        lane = Lane(f"r{number}", sequencer) if sequencer.has_lanes else None
        handling = Handling(self.session, request, lane)
        self._handlings[request.id] = handling
        if self._admission.has_place():
            self._start(handling)
            return
        refusal = self._admission.refusal(request)
        if refusal is None:
            self._admission.wait(request)
        else:
            self._refuse(handling, refusal)

    def _refuse(self, handling: Handling, refusal: str) -> None:
        counts = self.session.connection.counts
        counts[REFUSED] += 1
        if counts[REFUSED] == 1:
            logger.warning("%s refused: %s", handling.request.method.name, refusal)
        self._end(handling, encode_error(handling.request.id, SERVER_BUSY, refusal))

    def _start(self, handling: Handling) -> None:
        self._admission.enter()
        self._context.run(answering.start, self._nursery, handling, self)

    def _cancel(self, event: RequestCancelled, _number: int) -> None:
        request = event.request
        logger.info("request %r was cancelled by the peer: %s", request.id, event.reason)
        handling = self._handlings[request.id]
        handling.scope.cancel()
        if self._admission.withdraw(request):
            self._end(handling, None)

    def finish(self, handling: Handling, frame: bytes | None) -> None:
        """A handler's task is over: its answer goes out, and its place to who waits for one."""
        self._end(handling, frame)
        waiting = self._admission.leave()
        if waiting is not None:
            self._start(self._handlings[waiting.id])

    def _end(self, handling: Handling, frame: bytes | None) -> None:
        """The end of a request, in one step; the last one in flight writes by itself."""
        request, lane, outbox = handling.request, handling.lane, self.session.outbox
        del self._handlings[request.id]
        is_last = not self._handlings
        if self.session.connection.finish(request) and frame is not None:
            (outbox.post_now if is_last else outbox.post)(frame, lane, is_answer=True)
        elif lane is not None:
            self.session.sequencer.ended(lane, unstarted=not handling.is_started)
        if is_last and self._idle:
            self._idle.unpark_all()

    async def handlers_done(self) -> None:
        """Wait until no request of theirs is left."""
        while self._handlings:
            await self._idle.park()

    def cancel_all(self) -> None:
        """Cancel every handler, and drop the requests that still wait for a place."""
        for request in self._admission.withdraw_all():
            self._end(self._handlings[request.id], None)
        for handling in self._handlings.values():
            handling.scope.cancel()

    # Everything else.

    def _pass_on(self, event: NotificationArrived, number: int) -> None:
        if event.method.input is Input.INITIALIZED:
            self.on_initialized()
        self.deliveries.put(event, number)

    def _report(self, event: ProgressArrived, _number: int) -> None:
        if not self.requests.report(event):
            self.session.connection.counts["progress dropped"] += 1

    def _settle(self, event: AnswerArrived, _number: int) -> None:
        self.requests.settle(event)

    def _reply(self, event: Reply, _number: int) -> None:
        if event.counted is not None:
            logger.warning("%s: %s", event.counted, event.text)
        self.session.outbox.post(event.frame, is_answer=True)
        if event.negotiated:
            self.on_negotiated()

    def _ignore(self, event: Ignored, _number: int) -> None:
        logger.log(_IGNORED_LEVELS.get(event.counted, logging.DEBUG), "%s", event.text)
