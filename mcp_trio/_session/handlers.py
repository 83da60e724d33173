"""Handlers: one request of the peer, from its start to its single answer.

Exceptions of users' handlers end here. An `Exception` becomes the answer of its own request. Other
exceptions (`KeyboardInterrupt`, `SystemExit`) are not caught, and end the session.
"""

import functools
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from random import Random
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import attrs
import msgspec
import trio

from mcp_trio import types
from mcp_trio._protocol.methods import Method, ParamsToSend
from mcp_trio._protocol.requests import IncomingRequest
from mcp_trio._session.calls import Asked, ProgressCallback
from mcp_trio._session.journal import Lane, Memory, enter_lane, lane_in
from mcp_trio._session.tasks import apart, bare
from mcp_trio.errors import (
    INTERNAL_ERROR,
    MISSING_CLIENT_CAPABILITY,
    CapabilityMissing,
    LocalProtocolError,
    RequestError,
    ToolError,
    Unencodable,
)
from mcp_trio.types import InputRequiredResult

if TYPE_CHECKING:
    from mcp_trio._session.dispatcher import Dispatcher
    from mcp_trio._session.input_required import Rounds
    from mcp_trio._session.session import Session

# --------------------
# What a handler's context stands on: one request of the peer, and what may be done meanwhile.


# A handler that only notifies would otherwise never let another task run.
NOTIFICATIONS_PER_CHECKPOINT = 64

# The outcome of a notification that was not to be sent.
UNSENT_BODY: Final = b'"unsent"'


InputResponse: TypeAlias = types.ElicitResult | types.CreateMessageResult | types.ListRootsResult
Asker: TypeAlias = Callable[["Handling", Sequence[Asked]], Awaitable[list[Any]]]


@attrs.frozen(eq=False)
class Inside:
    """A task that runs an effect for a handler, and the effect's name."""

    handling: "Handling"
    effect: str


INSIDE: Final[ContextVar[Inside | None]] = ContextVar("mcp_trio_inside", default=None)


class Handling(msgspec.Struct, eq=False):
    """A request of the peer, from its arrival to its end, and what its handler may do.

    `is_cancelled` tells that the peer, or the end of the session, has cancelled it, `is_started`
    that its handler has begun: until then a cancellation drops it unrun. `random` is made at first
    need, and stays None while something records: then lanes have it. A retry has the
    `request_state` that its handler gave away, and `input_responses` by key. A resumable handler
    has a `memory` of its earlier rounds, and asks by an `asker` of its own. One that has asked, and
    waits for the answers here, has `rounds`: its request may be another one by and by, and in
    between there is none. `questions` counts what the client was asked. A `final_message` is a
    frame that goes out behind the answer.
    """

    session: "Session"
    request: IncomingRequest
    lane: Lane | None
    is_cancelled: bool = False
    is_started: bool = False
    random: Random | None = None
    request_state: str | None = None
    input_responses: Mapping[str, InputResponse] = {}
    memory: Memory | None = None
    asker: Asker | None = None
    rounds: "Rounds | None" = None
    questions: int = 0
    final_message: bytes | None = None
    _scope: trio.CancelScope | None = None
    _notifications: int = 0

    @property
    def scope(self) -> trio.CancelScope:
        """Return the cancel scope of the handler; other handlers may use it before and after."""
        assert self._scope is not None
        return self._scope

    def enter(self, scope: trio.CancelScope) -> None:
        """The handler is about to run, in this scope; it is cancelled at once if it should be."""
        self._scope = scope
        if self.is_cancelled:
            scope.cancel()

    def leave(self) -> None:
        """The handler has returned: what its scope is in for now is nothing of this request."""
        self._scope = None

    def cancel(self) -> None:
        """The peer, or the end of the session, cancels this request."""
        self.is_cancelled = True
        if self._scope is not None:
            self._scope.cancel()

    async def progress(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> None:
        """Report how far the request has come; nothing is sent if nobody asked, or nothing grew.

        A cancellation check, and a checkpoint at every 64th call. Cancelled: nothing was sent.

        Raises:
            LocalProtocolError: A number is NaN or infinite, for which JSON has no word.
        """
        connection = self.session.connection
        await self._tell(lambda: connection.progress(self.request, progress, total, message))

    async def notify(self, method: str, params: ParamsToSend | None = None) -> None:
        """Send a notification on behalf of this request; like `progress` towards cancellation.

        Raises:
            LocalProtocolError: The protocol forbids it now.
            Unencodable: The params cannot be written as JSON.
        """
        await self._tell(functools.partial(self._notification, method, params))

    async def notify_if(self, method: str, make: Callable[[], ParamsToSend | None]) -> None:
        """`notify`, with the params that `make` gives; nothing is sent if it gives None."""

        def frame() -> bytes | None:
            params = make()
            return None if params is None else self._notification(method, params)

        await self._tell(frame)

    def _notification(self, method: str, params: ParamsToSend | None) -> bytes:
        request = self.request if self.request.peer.protocol_version.is_stateless else None
        return self.session.connection.notification(method, params, request=request)

    async def ask(
        self,
        method: str,
        params: ParamsToSend | None = None,
        *,
        idle_seconds: float | None = None,
        total_seconds: float | None = None,
        on_progress: ProgressCallback | None = None,
    ) -> Any:
        """The peer's typed result of a request that this one needs; see `Session.request`.

        Raises:
            LocalProtocolError: The peer is a modern client: a server sends it no requests.
        """
        if self.request.peer.protocol_version.is_stateless:
            name = self.request.method.name
            raise LocalProtocolError(f"{method} cannot be asked while {name} of this client runs")
        return await self.session.request(
            method,
            params,
            idle_seconds=idle_seconds,
            total_seconds=total_seconds,
            on_progress=on_progress,
            lane=self.current_lane(),
            about=self.request.id,
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
        lane, send_queue = self.current_lane(), self.session.send_queue
        self._notifications += 1
        is_due = self._notifications % NOTIFICATIONS_PER_CHECKPOINT == 0
        if is_due:
            send_queue.flush()
        await send_queue.ready(lane, checkpoint=is_due)
        if self.rounds is not None:
            await self._between_rounds(self.rounds, lane)
        try:
            frame = make() if self._has_hearer() else None
        except Exception:
            self._keep_unsent(lane, "err")
            raise
        if frame is None:
            self._keep_unsent(lane, "res")
        else:
            send_queue.post(frame, lane, about=self.request.id)

    async def _between_rounds(self, rounds: "Rounds", lane: Lane | None) -> None:
        """Wait until there is a request to speak about; in a replay it is the lane's turn then."""
        while not (rounds.is_open or self.is_cancelled or self.session.sequencer.decides_turns):
            try:
                await rounds.opened()
            except trio.Cancelled:
                if lane is not None:
                    self.session.sequencer.resumed(lane, "cxl")
                raise
            await self.session.send_queue.ready(lane)

    def _has_hearer(self) -> bool:
        """Return whether a request is open and its client has not had this notification before."""
        is_known = self.memory is not None and self.memory.is_recalling
        return not is_known and (self.rounds is None or self.rounds.is_open)

    def _keep_unsent(self, lane: Lane | None, kind: str) -> None:
        if lane is not None:
            self.session.sequencer.resumed(lane, kind, UNSENT_BODY)


# --------------------
# What a session asks of the side above it: a server's registry, a client's callbacks.


class Application(Protocol):
    """The handlers of one side. The session calls it in tasks of its own, never in the reader."""

    def handle(self, handling: Handling) -> Awaitable[msgspec.Struct | msgspec.Raw]:
        """The result of a request; runs in the request's own task and cancel scope.

        A `RequestError` is answered as it is, a `CapabilityMissing` as its revision says that, a
        `ToolError` as an internal error with its text; any other exception is logged and answered
        as an internal error without.
        """
        ...

    def hears(self, method: Method) -> bool:
        """Return whether `notified` handles notifications of this method."""
        ...

    async def notified(self, method: Method, params: Any) -> None:
        """A notification arrived; one at a time, in order. An exception is logged.

        It acts in no lane, but when it begins is recorded.
        """
        ...

    def accompany(self, session: "Session") -> None:
        """The session begins; called once, before anything arrives, and never raises.

        What the application does by itself while the session lives is an actor, see `act`. What
        that sends has to wait for `initialized`, and for the turn of a lane of its own.
        """
        ...

    def depart(self) -> None:
        """The session is wound down; its actors are cancelled now. Never raises."""
        ...


logger = logging.getLogger("mcp_trio")


class Answering(msgspec.Struct, eq=False):
    """The `Job` of one request; `frame` is its answer, None if it was cancelled."""

    handling: Handling
    dispatcher: "Dispatcher"
    frame: bytes | None = None

    @property
    def wants_own_task(self) -> bool:
        """Return whether this is a replay, which identifies a handler by its task."""
        return self.handling.session.sequencer.decides_turns

    @property
    def is_cancelled(self) -> bool:
        """Return whether the request was cancelled; nothing else cancels the scope."""
        return self.handling.is_cancelled

    def enter(self) -> None:
        """See `Job`."""
        if self.handling.lane is not None:
            enter_lane(self.handling.lane)

    async def run(self, scope: trio.CancelScope) -> None:
        """See `Job`."""
        handling = self.handling
        lane, sequencer = handling.lane, handling.session.sequencer
        if lane is not None and sequencer.decides_turns:
            await sequencer.turn_to_start(lane)
        handling.enter(scope)
        self.frame = await _answer(handling, self.dispatcher.application)
        handling.leave()

    def fail(self, error: Exception) -> None:
        """See `Job`."""
        self.frame = _failure(self.handling, error)

    async def end(self) -> None:
        """See `Job`."""
        lane, sequencer = self.handling.lane, self.handling.session.sequencer
        if lane is not None and sequencer.decides_turns and await sequencer.turn(lane) == "cxl":
            self.frame = None  # the recorded handler was cancelled at its very end
        self.dispatcher.finish(self.handling, self.frame)


async def _answer(handling: Handling, application: Application) -> bytes | None:
    """Run a handler; return the one message that answers its request, or None if cancelled."""
    if handling.session.send_queue.is_full_of_answers:
        await handling.session.send_queue.room_for_answers()
    if handling.is_cancelled:
        return None
    handling.is_started = True
    if handling.lane is not None:
        handling.session.sequencer.started(handling.lane)
    handling.session.connection.start(handling.request)
    outcome = await _outcome(handling, application)
    if handling.rounds is not None:
        await handling.rounds.opened()
    if isinstance(outcome, Exception):
        return _failure(handling, outcome)
    return _encoded(handling, outcome)


async def _outcome(
    handling: Handling, application: Application
) -> msgspec.Struct | msgspec.Raw | Exception:
    """Call the handler; return its result, or the error that it raised."""
    try:
        return await application.handle(handling)
    except Exception as error:
        return bare(error)
    except BaseExceptionGroup as group:
        faults, rest = apart(group)
        if faults is not None:
            _failure(handling, faults)
        raise rest from None


def _encoded(handling: Handling, result: msgspec.Struct | msgspec.Raw) -> bytes:
    connection = handling.session.connection
    limits = connection.limits
    if isinstance(result, InputRequiredResult) and not handling.request.may_want_input:
        return _unsendable(handling, "this request is not one that asks for input by its result")
    try:
        frame = connection.response(handling.request, result)
    except (Unencodable, LocalProtocolError) as error:
        return _unsendable(handling, str(error))
    if len(frame) > limits.messages.bytes_max:
        text = f"{len(frame)} bytes exceed limits.messages.bytes_max={limits.messages.bytes_max}"
        return _unsendable(handling, text)
    return frame


def _unsendable(handling: Handling, reason: str) -> bytes:
    logger.warning("%s: the result cannot be sent: %s", handling.request.method.name, reason)
    text = f"the result cannot be sent: {reason}"
    return handling.session.connection.error(handling.request, INTERNAL_ERROR, text)


def _failure(handling: Handling, error: Exception) -> bytes:
    request, told = handling.request, handling.session.connection.error
    if isinstance(error, RequestError):
        try:
            data = msgspec.UNSET if error.data is None else error.data
            return told(request, error.code, error.message, data)
        except Unencodable:
            return told(request, error.code, "the error cannot be sent as JSON")
    if isinstance(error, CapabilityMissing) and request.peer.protocol_version.is_stateless:
        data = {"requiredCapabilities": error.required}
        return told(request, MISSING_CLIENT_CAPABILITY, str(error), data)
    if isinstance(error, ToolError | CapabilityMissing):
        return told(request, INTERNAL_ERROR, str(error))
    logger.error("the handler of %s failed", request.method.name, exc_info=error)
    return told(request, INTERNAL_ERROR, "internal error")
