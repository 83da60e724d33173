"""Handlers: one request of the peer, from its start to its single response.

Exceptions of users' handlers end here. A fault becomes the response to its own request. An exit,
such as `KeyboardInterrupt` or `SystemExit`, is not caught, and ends the session.
"""

import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import msgspec
import trio

from mcp_trio import types
from mcp_trio._protocol.compat import CompatibleToolResult
from mcp_trio._protocol.methods import Method, ParamsToSend
from mcp_trio._protocol.requests import IncomingRequest, IncomingTrigger
from mcp_trio._session.exceptions import (
    exc_info_from_users_code,
    one_line_about,
    raise_unchanged,
    split_faults,
)
from mcp_trio._session.handler_journal import HandlerJournal
from mcp_trio._session.journal import Sequencer
from mcp_trio._session.lanes import NO_LANE, Lane, drive, lane_in, operation
from mcp_trio.errors import (
    INTERNAL_ERROR,
    MISSING_CLIENT_CAPABILITY,
    CapabilityMissing,
    LocalProtocolError,
    RequestError,
    ToolError,
    Unencodable,
)
from mcp_trio.limits import Limits
from mcp_trio.types import InputRequiredResult

if TYPE_CHECKING:
    from mcp_trio._session.calls import ProgressCallback, Question
    from mcp_trio._session.dispatcher import Dispatcher
    from mcp_trio._session.input_required import Rounds
    from mcp_trio._session.observing import Observation
    from mcp_trio._session.session import Session

logger = logging.getLogger("mcp_trio")

# A handler that only sends notifications would otherwise never let another task run.
NOTIFICATIONS_PER_CHECKPOINT = 64

# The text that reports an exception of a user's handler to the peer, without details.
CRASH_TEXT: Final = "internal error"

# As in `_protocol/connection.py`: reading it from its enumeration is slow in CPython 3.11.
_START: Final = IncomingTrigger.START

# The recorded outcome of a notification that did not have to be sent.
UNSENT_BODY: Final = b'"unsent"'

InputResponse: TypeAlias = types.ElicitResult | types.CreateMessageResult | types.ListRootsResult
AskInRounds: TypeAlias = Callable[["Handling", "Sequence[Question]"], Awaitable[list[Any]]]


class EffectCaller(Protocol):
    """Code that calls effects: the handler of a request, or the lifespan of a server.

    Attributes:
        handler_journal: The operations of a resumable handler in all its rounds; None for other
            code.
        random: The random number generator of code that is not recorded, made on first use.
        effects: The number of effects of the user that ran so far, without sleeps and locks.
    """

    handler_journal: HandlerJournal | None
    random: Random | None
    effects: int

    @property
    def observation(self) -> "Observation | None":
        """The observation of the request that the code handles; None without observers."""
        ...

    @property
    def sequencer(self) -> Sequencer:
        """The sequencer that effects are reported to."""
        ...

    @property
    def limits(self) -> Limits:
        """The limits of the session, or of the server."""
        ...


class RunningEffect(msgspec.Struct, frozen=True, eq=False):
    """The effect that the current task runs, and the code that called it."""

    caller: EffectCaller
    effect: str


RUNNING_EFFECT: Final[ContextVar[RunningEffect | None]] = ContextVar(
    "mcp_trio_running_effect", default=None
)


def lane_of_caller(caller: EffectCaller) -> Lane | None:
    """Return the lane of the calling task, which descends from `caller`; None if not recorded.

    Raises:
        LocalProtocolError: The task does not descend from `caller`, so that a replay could not
            order its operations; or it runs an effect, which a replay does not run.
    """
    running = RUNNING_EFFECT.get()
    if running is not None and running.caller is caller:
        raise LocalProtocolError(
            f"the context cannot be used inside the effect {running.effect!r}, because a replay"
            " does not run effects: return a value and use the context in the handler"
        )
    sequencer = caller.sequencer
    if not sequencer.has_lanes:
        return None
    lane = lane_in(sequencer)
    if lane is None:
        raise LocalProtocolError(NO_LANE)
    return lane


class Handling(msgspec.Struct, eq=False):
    """A request of the peer that is being handled, and the operations of its handler.

    It is the `Job` of the task pool that runs the handler and responds to the request.

    Attributes:
        session: The session.
        dispatcher: The dispatcher of the session, which finishes the request.
        request: The request; a retry replaces it when the handler asks in rounds.
        lane: The lane of the handler; None if the session is not recorded.
        is_cancelled: True if the peer, or the end of the session, has cancelled the request.
        is_started: True if the handler has started; after an earlier cancellation it never starts.
        random: The random number generator of an unrecorded handler, made on first use.
        request_state: The state in a retry, as the handler returned it.
        input_responses: The client's answers in a retry, by key.
        handler_journal: The operations of a resumable handler in all its rounds; None for other
            handlers.
        ask_in_rounds: The function that sends questions in rounds; None if they are sent as
            requests.
        rounds: The rounds of a handler that has asked and is suspended between them.
        questions: The number of questions that the client was asked.
        final_message: An encoded message that is sent after the response.
        response: The encoded response; None before the handler has returned, or if the request was
            cancelled.
        sends_error_texts: Whether the peer receives the text of the exception that the handler
            raised; None: as the application says.
        effects: The number of effects of the user that ran so far, without sleeps and locks.
        may_log: Returns whether the next log message may be sent to the peer; None: all may.
        own_state: The dict of `ctx.state` of a request whose session belongs to many clients.
    """

    session: "Session"
    dispatcher: "Dispatcher"
    request: IncomingRequest
    lane: Lane | None
    is_cancelled: bool = False
    is_started: bool = False
    random: Random | None = None
    request_state: str | None = None
    input_responses: Mapping[str, InputResponse] = MappingProxyType({})
    handler_journal: HandlerJournal | None = None
    ask_in_rounds: AskInRounds | None = None
    rounds: "Rounds | None" = None
    questions: int = 0
    final_message: bytes | None = None
    response: bytes | None = None
    sends_error_texts: bool | None = None
    effects: int = 0
    may_log: Callable[["Handling"], bool] | None = None
    own_state: dict[str, Any] | None = None
    _scope: trio.CancelScope | None = None
    _notifications: int = 0

    @property
    def sequencer(self) -> Sequencer:
        """The sequencer of the session."""
        return self.session.sequencer

    @property
    def observation(self) -> "Observation | None":
        """The observation of the request; None without observers."""
        observation: Observation | None = self.request.observation
        return observation

    @property
    def limits(self) -> Limits:
        """The limits of the session."""
        return self.session.connection.limits

    @property
    def scope(self) -> trio.CancelScope:
        """The cancel scope of the handler, which the task pool reuses for other handlers."""
        assert self._scope is not None
        return self._scope

    def cancel(self) -> None:
        """Cancel the handler, for the peer or at the end of the session."""
        self.is_cancelled = True
        if self._scope is not None:
            self._scope.cancel()

    def progress(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> Coroutine[Any, Any, None]:
        """Report progress, as `notify` does, if the peer asked for it and the progress has grown.

        Raises:
            LocalProtocolError: A number is NaN or infinite, which JSON cannot express.
        """
        return self._send(self.session.connection.progress, progress, total, message)

    async def notify(self, method: str, params: ParamsToSend | None = None) -> None:
        """Send a notification that belongs to this request.

        Each call checks for cancellation, and every 64th is a full checkpoint. If this is
        cancelled, nothing was sent.

        Raises:
            LocalProtocolError: The protocol forbids the notification now.
            Unencodable: The params cannot be encoded as JSON.
        """
        await self._send(self._notification, method, params)

    async def notify_if(self, method: str, make: Callable[[], ParamsToSend | None]) -> None:
        """Send a notification with the params that `make` returns, if it does not return None."""

        def notification(request: IncomingRequest) -> bytes | None:
            params = make()
            return None if params is None else self._notification(request, method, params)

        await self._send(notification)

    def _notification(
        self, request: IncomingRequest, method: str, params: ParamsToSend | None
    ) -> bytes:
        belongs_to = request if request.peer.protocol_version.is_stateless else None
        return self.session.connection.notification(method, params, request=belongs_to)

    async def ask(
        self,
        method: str,
        params: ParamsToSend | None = None,
        *,
        on_progress: "ProgressCallback | None" = None,
    ) -> Any:
        """Send a request on behalf of this one, as `Session.request` does, and return its result.

        Raises:
            LocalProtocolError: The peer is a stateless client, which accepts no requests.
        """
        if self.request.peer.protocol_version.is_stateless:
            name = self.request.method.name
            raise LocalProtocolError(
                f"{method} cannot be sent while {name} is handled: a stateless client accepts no"
                " requests; ask in a tool, a resource or a prompt, whose result can ask instead"
            )
        return await self.session.request(
            method,
            params,
            on_progress=on_progress,
            lane=lane_of_caller(self),
            related_request_id=self.request.id,
        )

    async def _send(self, make: Callable[..., bytes | None], *arguments: Any) -> None:
        """Send the message that `make` returns for the request and the arguments, or nothing.

        `make` depends on state that other tasks change, and while this waits, a retry may replace
        the request. It is therefore called in the lane's turn, and its call is recorded even if
        nothing is sent.
        """
        lane, send_queue = lane_of_caller(self), self.session.send_queue
        self._notifications += 1
        is_checkpoint_due = self._notifications % NOTIFICATIONS_PER_CHECKPOINT == 0
        if is_checkpoint_due:
            send_queue.flush()
        await send_queue.room_for_message(lane, checkpoint=is_checkpoint_due)
        if self.rounds is not None:
            await self._wait_for_request(self.rounds, lane)
        try:
            # A resumable handler that repeats an earlier round has sent this before.
            journal, message = self.handler_journal, None
            is_repeated = journal is not None and journal.has_next_outcome
            if not is_repeated and (self.rounds is None or self.rounds.is_open):
                message = make(self.request, *arguments)
        except Exception:
            self._record_unsent(lane, "err")
            raise
        if message is None:
            self._record_unsent(lane, "res")
        else:
            send_queue.post(message, lane, related_request_id=self.request.id)

    async def _wait_for_request(self, rounds: "Rounds", lane: Lane | None) -> None:
        """Wait until the handler has an unanswered request, and until it is the lane's turn."""
        while not (rounds.is_open or self.is_cancelled):
            try:
                with operation(lane):
                    await rounds.wait_until_open()
            except trio.Cancelled:
                if lane is not None:
                    self.session.sequencer.resumed(lane, "cxl")
                raise
            # Without a checkpoint: the round must not end before the message is sent.
            await self.session.send_queue.room_for_message(lane, checkpoint=False)

    def _record_unsent(self, lane: Lane | None, kind: str) -> None:
        if lane is not None:
            self.session.sequencer.resumed(lane, kind, UNSENT_BODY)

    # The job of the task pool.

    def run(self, scope: trio.CancelScope) -> Coroutine[Any, Any, None]:
        """Run the handler in a cancel scope, and encode its response."""
        self._scope, lane = scope, self.lane
        if self.is_cancelled:
            scope.cancel()
        running = self._handle() if self.request.observation is None else self._handle_observed()
        if lane is not None and lane.has_steps:
            driven: Any = drive(running, (lane,))
            running = driven
        send_queue = self.session.send_queue
        if not send_queue.is_full_of_responses:
            return running

        async def run_when_there_is_room() -> None:
            try:
                await send_queue.room_for_responses()
            except BaseException:
                running.close()
                raise
            await running

        return run_when_there_is_room()

    def run_in_leader(self, scope: trio.CancelScope) -> Coroutine[Any, Any, None] | None:
        """Return the coroutine of the handler, whose first step a leader runs now.

        None: the handler has to start in a task of its own, because responses fill the queue, or
        because a replay decides when each step runs.
        """
        session, lane = self.session, self.lane
        if session.send_queue.is_full_of_responses:
            return None
        if lane is not None:
            if session.sequencer.replays:
                return None
            if lane.has_steps:
                session.sequencer.step(lane)
        self._scope = scope
        return self._handle() if self.request.observation is None else self._handle_observed()

    async def _handle_observed(self) -> None:
        with self.request.observation:
            await self._handle()

    async def _handle(self) -> None:
        if not self.is_cancelled:
            self.is_started = True
            self.request.move(_START)
            try:
                application = self.dispatcher.application
                result = await application.handle(self)
                # Results of most tools are of a class whose base classes need no look.
                if (
                    type(result) is not CompatibleToolResult
                    and isinstance(result, InputRequiredResult)
                    and not self.request.may_want_input
                ):
                    result = await application.ask_in_session(self, result)
            except BaseException as raised:
                fault, rest = split_faults(raised)
                try:
                    if fault is not None:
                        if rest is None and self.rounds is not None:
                            await self.rounds.wait_until_open()
                        self.fail(fault)
                    if rest is not None:
                        raise_unchanged(rest)
                finally:
                    del fault, rest  # Their tracebacks have this frame.
            else:
                if self.rounds is not None:
                    await self.rounds.wait_until_open()
                connection = self.session.connection
                try:
                    self.response = connection.within_limit(
                        connection.response(self.request, result)
                    )
                except (Unencodable, LocalProtocolError) as error:
                    self.response = self._unsendable("result", error)
        self._scope = None  # Other handlers may use it from now on.

    def end(self) -> None:
        """Finish the request with the response."""
        self.dispatcher.finish(self, self.response)

    def _unsendable(self, kind: str, reason: object, code: int | None = None) -> bytes:
        """Return the response in place of one that cannot be sent: an error, if it has a `code`."""
        request, connection = self.request, self.session.connection
        text = f"the {kind} cannot be sent: {reason}"
        method = request.method.name
        self.session.peer_log.report(f"{kind} of {method}", f"{method}: {text}")
        result = self.dispatcher.application.failure_result(request, text)
        if result is not None and code is None:
            return connection.response(request, result)
        return connection.error(request, INTERNAL_ERROR if code is None else code, text)

    def fail(self, error: Exception) -> None:
        """Respond with the error that the handler raised."""
        if self.lane is not None and self.session.sequencer.replays:
            self.lane.failure = one_line_about(error)
        try:
            self.response = self.session.connection.within_limit(self._error_response(error))
        except Unencodable as reason:
            code = error.code if isinstance(error, RequestError) else None
            self.response = self._unsendable("error", reason, code)

    def _error_response(self, error: Exception) -> bytes:
        request, connection = self.request, self.session.connection
        encode = connection.error
        if isinstance(error, RequestError):
            data = msgspec.UNSET if error.data is None else error.data
            return encode(request, error.code, error.message, data)
        if isinstance(error, CapabilityMissing) and request.peer.protocol_version.is_stateless:
            data = {"requiredCapabilities": error.required}
            return encode(request, MISSING_CLIENT_CAPABILITY, str(error), data)
        params = request.params
        target: object = getattr(params, "name", None) or getattr(params, "uri", None)
        application = self.dispatcher.application
        is_for_client = isinstance(error, ToolError | CapabilityMissing)
        text = str(error) or type(error).__name__
        sends_texts = self.sends_error_texts
        if sends_texts is None:
            sends_texts = application.sends_error_texts
        if not is_for_client:
            call = f"{request.method.name} {target!r}" if target else request.method.name
            chars_max = connection.limits.messages.error_text_chars_max
            self.session.peer_log.report(
                f"{type(error).__name__} in {call[:chars_max]}",
                f"the handler of {call[:chars_max]} failed: {one_line_about(error)[:chars_max]}",
                error=exc_info_from_users_code(error)
                if logger.isEnabledFor(logging.DEBUG)
                else None,
            )
            if sends_texts:
                text = f"error in {target or request.method.name}: {text}"
            else:
                text = f"{CRASH_TEXT} in {target}"
        result = application.failure_result(request, text)
        if result is not None:
            return connection.response(request, result)
        has_text = is_for_client or sends_texts
        return encode(request, INTERNAL_ERROR, text if has_text else CRASH_TEXT)


class Application(Protocol):
    """The handlers of a server or client, called in tasks of the session, never in the reader."""

    @property
    def sends_error_texts(self) -> bool:
        """True if the peer receives the text of an unexpected exception of a handler."""
        ...

    def handle(self, handling: Handling) -> Awaitable[msgspec.Struct | msgspec.Raw]:
        """Return the result of a request; called in the cancel scope of the request.

        A `RequestError` becomes the error response, and a `CapabilityMissing` the error that the
        protocol version has for it. The text of a `ToolError` is sent as `failure_result`, or as an
        internal error. Any other exception is logged, and sent the same way, without details
        unless `sends_error_texts`.
        """
        ...

    def ask_in_session(
        self, handling: Handling, required: InputRequiredResult
    ) -> Awaitable[msgspec.Struct | msgspec.Raw]:
        """Return the result of a request whose response cannot be an `InputRequiredResult`.

        The application sends the questions as requests, and runs the handler again.
        """
        ...

    def failure_result(self, request: IncomingRequest, text: str) -> msgspec.Struct | None:
        """Return the result that reports the failure of a handler to the model.

        None if results of the method cannot do that; the response is then an internal error.
        """
        ...

    def handles_notification(self, method: Method) -> bool:
        """Return whether `notified` handles notifications of this method."""
        ...

    async def notified(self, method: Method, params: Any) -> None:
        """Handle a notification; called for one at a time, in order. An exception is logged.

        In a recorded session it runs in a lane: `n` and the number of the notification's record.
        """
        ...

    def on_session_open(self, session: "Session") -> None:
        """Begin a session; called once, before the first message arrives. Must not raise.

        Background tasks of the application start with `Session.start_actor`. The messages that
        such a task sends have to wait for `initialized`, and for the turn of a lane of its own.
        """
        ...

    def on_session_restart(self) -> None:
        """Forget the client's settings: it has sent `initialize` again. Must not raise.

        No request of either side is unfinished then.
        """
        ...

    def on_session_close(self) -> None:
        """End a session, whose actors are cancelled now. Must not raise."""
        ...
