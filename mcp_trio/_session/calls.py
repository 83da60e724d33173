"""The requests of this side: how they are sent, and how their callers get the result.

`OutgoingCalls` sends a request and makes a `Call` for it, on which the caller waits. The dispatcher
passes each response, progress notification and lost request to `OutgoingCalls`, which ends the call
or wakes its caller. The protocol's rules for sent requests, such as their ids and states, are
in `_protocol/requests.py`.
"""

import math
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs
import msgspec
import trio

from mcp_trio._jsonrpc.channel_messages import Lost
from mcp_trio._protocol.connection import (
    Connection,
    NotificationReceived,
    ProgressReceived,
    ResponseReceived,
    ResponseUnreadable,
)
from mcp_trio._protocol.empty import NO_ITEMS
from mcp_trio._protocol.methods import Method, ParamsToSend
from mcp_trio._protocol.requests import OutgoingRequest
from mcp_trio._session.lanes import Lane
from mcp_trio.errors import (
    ConnectionLost,
    OutcomeUnknown,
    ProtocolError,
    RemoteProtocolError,
    RequestError,
    RequestTimeout,
    copied_loss,
)
from mcp_trio.types import RequestId

if TYPE_CHECKING:
    from mcp_trio._session.observing import Activity
    from mcp_trio._session.send_queue import SendQueue

ProgressCallback: TypeAlias = Callable[[Any], Awaitable[None] | None]
OnNotification: TypeAlias = Callable[[Method, Any], bool]


class Question(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A question of a handler to the peer, sent as a request or in an `InputRequiredResult`.

    Attributes:
        method: The method.
        params: The params.
        check: A function that raises `RemoteProtocolError` for a result that has the right type,
            but is no valid answer to this question.
        on_progress: The callback for progress notifications, which only requests have.
    """

    method: str
    params: ParamsToSend | None = None
    check: Callable[[Any], object] = lambda _: None
    on_progress: ProgressCallback | None = None


class Call(msgspec.Struct, eq=False):
    """An outgoing request and its waiting caller; it ends with a response or an error, never both.

    Attributes:
        request: The request.
        progress_queued_max: The maximum number of progress notifications that wait for the caller.
        on_notification: A function that receives each notification of a subscription at once, and
            returns whether the callbacks receive it as well.
        related_request_id: The id of the peer's request whose handler sends this request.
        scope: The cancel scope of the caller, whose deadline moves with progress; None if the
            timer of `OutgoingCalls` ends the wait, and for a subscription.
        response: The response.
        error: The reason why there is no response, or none that can be decoded.
        has_ended: True if there is a response or an error.
        is_timed_out: True if a time limit has ended the wait.
    """

    request: OutgoingRequest
    progress_queued_max: int
    on_notification: OnNotification | None = None
    related_request_id: RequestId | None = None
    scope: trio.CancelScope | None = None
    response: ResponseReceived | None = None
    error: ConnectionLost | ProtocolError | None = None
    has_ended: bool = False
    is_timed_out: bool = False
    _progress: deque[Any] | None = None
    _waiting: trio.lowlevel.Task | None = None

    @property
    def has_result(self) -> bool:
        """True if the call ended with a result."""
        return self.response is not None and self.response.error is None

    def finish(self, response: ResponseReceived) -> None:
        """End the call with its response."""
        self.response, self.has_ended = response, True
        # The callbacks for progress that has arrived may take longer than the time budget.
        if self.request.wants_progress and self.scope is not None:
            self.scope.deadline = math.inf
        self._wake()

    def fail(self, error: ConnectionLost | ProtocolError) -> None:
        """End the call without a response, or with one that cannot be decoded."""
        self.error, self.has_ended = error, True
        self._wake()

    def time_out(self) -> None:
        """End the wait for the response; a response that arrives before the caller runs counts."""
        self.is_timed_out = True
        self._wake()

    def queue_progress(self, params: Any) -> bool:
        """Queue a progress notification; return False if an older one was dropped for it."""
        if self._progress is None:
            self._progress = deque(maxlen=self.progress_queued_max)
        is_full = len(self._progress) == self.progress_queued_max
        self._progress.append(params)
        self._wake()
        return not is_full

    async def next_progress(self) -> Any:
        """Return the oldest queued progress notification; None if the call has ended or timed out.

        Only one task may wait for it at a time.
        """
        while not (self._progress or self.has_ended or self.is_timed_out):
            self._waiting = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._stop_waiting)
        return self._progress.popleft() if self._progress else None

    def _stop_waiting(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._waiting = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _wake(self) -> None:
        """Wake the task that waits for progress or the end of the call, if there is one."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            trio.lowlevel.reschedule(waiting)

    def outcome(self) -> msgspec.Raw:
        """Return the raw result.

        Raises:
            RequestError: The response is an error.
            ConnectionLost: The connection ended before the response.
            OutcomeUnknown: The response is larger than `limits.messages.bytes_max`.
            RemoteProtocolError: The response is not a valid message, or its error has data that
                cannot be read, such as the number 1e999.
            LocalProtocolError: The channel cannot send the request; nothing was sent.
        """
        if self.error is not None:
            raise copy(self.error)  # each caller gets a copy, because raising modifies it
        assert self.response is not None
        error = self.response.error
        if error is not None:
            try:
                data = None if error.data is msgspec.UNSET else msgspec.json.decode(error.data)
            except (msgspec.MsgspecError, RecursionError) as reason:
                raise RemoteProtocolError(
                    f"the response to {self.request.method.name} is the error {error.message!r}"
                    f" (code {error.code}), whose data cannot be read: {reason}"
                ) from reason
            raise RequestError(error.code, error.message, data)
        assert self.response.result is not None
        return self.response.result


# The recorded outcome of a wait that ended with a progress notification.
PROGRESS_BODY: Final = b'"progress"'


@attrs.define(eq=False, repr=False)
class OutgoingCalls:
    """The open calls of a session, one object for each session.

    Each call ends exactly once: with a result, an error, a cancellation, or a timeout.

    Attributes:
        loss: The reason why no more requests can be sent; None while the session is open.
    """

    connection: Connection
    send_queue: "SendQueue"
    loss: ConnectionLost | None = attrs.field(default=None, init=False)
    _open: dict[int, Call] = attrs.field(default=NO_ITEMS, init=False)
    _is_paused: bool = attrs.field(default=False, init=False)
    # The scope in which the timer sleeps, and its deadline; None and infinite without a timer.
    _timer: trio.CancelScope | None = attrs.field(default=None, init=False)
    _timer_deadline: float = attrs.field(default=math.inf, init=False)

    # The caller's side.

    async def request(
        self,
        method: str,
        params: ParamsToSend | None = None,
        *,
        idle_seconds: float | None = None,
        total_seconds: float | None = None,
        on_progress: ProgressCallback | None = None,
        lane: Lane | None = None,
        related_request_id: RequestId | None = None,
        activity: "Activity | None" = None,
    ) -> Any:
        """Send a request and return the peer's typed result, as `Session.request` describes.

        `activity`, which observers have, gets the id of the request and the number of its record.
        """
        # No checkpoint here: the wait for the response is one.
        await self.send_queue.room_for_message(lane, checkpoint=False)
        defaults = self.connection.limits.requests
        try:
            self.check_open()
            request = self.connection.open_request(
                method,
                params,
                now=trio.current_time(),
                idle_seconds=defaults.idle_seconds if idle_seconds is None else idle_seconds,
                total_seconds=defaults.total_seconds if total_seconds is None else total_seconds,
                wants_progress=on_progress is not None,
            )
        except Exception:
            # The lane has taken its turn, so a replay needs the record of what came of it.
            if lane is not None:
                self.send_queue.sequencer.resumed(lane, "err")
            raise
        call = Call(
            request,
            self.connection.limits.messages.progress_queued_max,
            related_request_id=related_request_id,
        )
        # A cancel scope with a deadline takes a fifth of the time of a call. It is needed for a
        # callback, which may wait, and in a lane: a replay finds the deadlines of lanes in scopes.
        if on_progress is not None or lane is not None:
            call.scope = trio.CancelScope()
        self._set_deadline(call)
        self._send(call, lane)
        if activity is not None:
            activity.request_id = request.id
            recorder = getattr(self.send_queue.sequencer, "recorder", None)
            activity.record = None if recorder is None else recorder.next_number - 1
        # A response that has arrived counts, even if the caller is cancelled at the same time.
        kind = "cxl"
        try:
            if call.scope is None:
                await call.next_progress()
            else:
                with call.scope:
                    await self._pass_progress(call, on_progress, lane)
                call.is_timed_out = call.scope.cancelled_caught
            if call.has_ended:
                kind = "res" if call.has_result else "err"
        finally:
            if lane is not None:
                self.send_queue.sequencer.resumed(lane, kind)
            if not call.has_ended:
                self._abandon(call, lane)
        if not call.has_ended:
            raise self._timeout(request)
        return self.connection.decode_result(request, call.outcome())

    def open_subscription(
        self, method: str, params: ParamsToSend, on_notification: OnNotification
    ) -> Call:
        """Send a request that the peer, `close_subscription` or the end of the session ends.

        The request has no timeout. The returned call has its state (`has_ended`) and `outcome`.
        `on_notification` is called with each notification that belongs to the request, before the
        next message is read; it must not block, and returns whether the callbacks receive the
        notification as well.

        Raises:
            LocalProtocolError: The protocol forbids the request now; nothing was sent.
            Unencodable: The params cannot be encoded as JSON; nothing was sent.
            ConnectionLost: The session is closing, or has ended.
        """
        self.check_open()
        request = self.connection.open_request(method, params, now=trio.current_time())
        # Only the acknowledgement is queued: `on_notification` gets the notifications.
        call = Call(request, 1, on_notification)
        self._send(call, None)
        return call

    def close_subscription(self, call: Call) -> None:
        """Abandon the request of a subscription; if it is open, the peer is notified once."""
        if not call.has_ended:
            self._abandon(call, None)

    @contextmanager
    def paused_timeouts(self) -> Generator[None]:
        """Let no request time out within the block; their timeouts move by its duration."""
        started = trio.current_time()
        self._is_paused = True
        for call in self._open.values():
            self._set_deadline(call)
        try:
            yield
        finally:
            self._is_paused = False
            for call in self._open.values():
                call.request.budget.postpone(trio.current_time() - started)
                self._set_deadline(call)

    def check_open(self) -> None:
        """Check that the session is open.

        Raises:
            ConnectionLost: The session is closing, or has ended.
        """
        if self.loss is not None:
            # Nothing was sent, so the outcome is known.
            raise copied_loss(self.loss, ConnectionLost)

    def _send(self, call: Call, lane: Lane | None) -> None:
        if not self._open:
            self._open = {}
        self._open[call.request.id] = call
        self.send_queue.post(
            call.request.message, lane, related_request_id=call.related_request_id, at_once=True
        )

    async def _pass_progress(
        self, call: Call, on_progress: ProgressCallback | None, lane: Lane | None
    ) -> None:
        """Call `on_progress` for each progress notification until the call ends."""
        while (params := await call.next_progress()) is not None:
            if lane is not None:
                self.send_queue.sequencer.resumed(lane, "res", PROGRESS_BODY)
            assert on_progress is not None  # or else the request asks for no progress
            waiting = on_progress(params)
            if waiting is not None:
                await waiting

    # Timeouts.

    def _set_deadline(self, call: Call) -> None:
        """Let a call time out at the end of its budget; never while timeouts are paused."""
        deadline = math.inf if self._is_paused else call.request.budget.deadline
        if call.scope is not None:
            call.scope.deadline = deadline
        elif deadline < self._timer_deadline:
            self._timer_deadline = deadline
            if self._timer is None:
                self._timer = trio.CancelScope(deadline=deadline)
                self.send_queue.tasks.start_actor(partial(self._time_out_calls, self._timer))
            else:
                self._timer.deadline = deadline

    async def _time_out_calls(self, timer: trio.CancelScope) -> None:
        """Sleep until a deadline, end the waits without a scope that time out, and sleep again.

        The deadline does not move when its call ends: then this finds that no call has timed out.
        """
        with timer:
            await trio.sleep_forever()
        self._timer, self._timer_deadline = None, math.inf
        now = max(trio.current_time(), timer.deadline)
        for call in self._open.values():
            if call.scope is None:
                if call.request.budget.deadline <= now and not self._is_paused:
                    call.time_out()
                else:
                    self._set_deadline(call)

    def _abandon(self, call: Call, lane: Lane | None) -> None:
        del self._open[call.request.id]
        reason = "timeout" if call.is_timed_out else "cancelled by the caller"
        message = self.connection.abandon(call.request, reason)
        if message is not None:
            self.send_queue.post(
                message, lane, related_request_id=call.related_request_id, at_once=True
            )

    def _timeout(self, request: OutgoingRequest) -> RequestTimeout:
        budget = request.budget
        which = budget.expired(trio.current_time()) or "total"
        seconds = {"idle": budget.idle_seconds, "total": budget.total_seconds}[which]
        limits = self.connection.limits.requests
        default_seconds = {"idle": limits.idle_seconds, "total": limits.total_seconds}[which]
        setting = f"{which}_seconds"  # the option of the call
        if seconds == default_seconds:
            setting = f"limits.requests.{setting}"
        return RequestTimeout(request.method.name, which, seconds, setting)

    # The dispatcher's side.

    def finish(self, event: ResponseReceived | ResponseUnreadable) -> None:
        """End an open request with its response, or with the error that it cannot be decoded."""
        call = self._open.pop(event.request.id)
        if isinstance(event, ResponseReceived):
            call.finish(event)
        else:
            call.fail(event.error)

    def fail_lost(self, lost: Lost) -> None:
        """End a request without a response; count it if its caller no longer waits."""
        call = self._open.pop(int(lost.id), None)
        if call is None:
            self.connection.count("late answer")
        else:
            self.connection.outgoing.abandon(call.request)
            call.fail(lost.error)

    def queue_progress(self, event: ProgressReceived) -> None:
        """Queue progress of an open request; count an older one that is dropped for it."""
        call = self._open[event.request.id]
        event.request.budget.last_activity = trio.current_time()
        self._set_deadline(call)
        if not call.queue_progress(event.params):
            self.connection.count("progress dropped")

    def pass_to_subscription(self, event: NotificationReceived) -> bool:
        """Pass a notification to its subscription; return whether the callbacks get it too."""
        assert event.request is not None
        on_notification = self._open[event.request.id].on_notification
        return on_notification is None or on_notification(event.method, event.params)

    def fail_all(self, loss: ConnectionLost) -> None:
        """End all open requests, and reject later ones, because the session has ended.

        The outcome of a request that was sent is unknown, unless the channel reports lost requests
        one by one.
        """
        self.loss = loss
        self.connection.outgoing.lose_all()
        send_queue = self.send_queue
        for call in self._open.values():
            was_sent = (
                not send_queue.reports_losses and call.request.message not in send_queue.dropped
            )
            call.fail(copied_loss(loss, OutcomeUnknown if was_sent else ConnectionLost))
        self._open.clear()
