"""The dispatcher: each received message becomes one event, and a table has the method for it.

Everything here is synchronous. A message is recorded before anything happens because of it, so the
order of the journal is that of cause and effect.

The dispatcher owns the requests of the peer from their arrival to their end. Each becomes a
`Handling`, which is started, or waits in `Admission` for a place, or is rejected. `finish` sends
its response and gives its place to the next one. A running handler has a place; a request that
waits has room in the queue. A retry of a suspended handler becomes no `Handling`: it becomes the
request of the one that is suspended. The requests of this side are in `OutgoingCalls`, to which the
dispatcher passes what arrives about them, and notifications wait for their callbacks in a
`NotificationQueue`.
"""

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

import attrs
import trio

from mcp_trio._journal.records import LOST_MARK, message_name
from mcp_trio._jsonrpc.channel_messages import Lost
from mcp_trio._jsonrpc.messages import with_id_replaced
from mcp_trio._protocol.connection import (
    BatchReceived,
    Connection,
    Ignored,
    ImmediateResponse,
    NotificationReceived,
    ProgressReceived,
    RequestCancelled,
    RequestReceived,
    ResponseReceived,
    ResponseUnreadable,
)
from mcp_trio._protocol.metadata import Peer
from mcp_trio._protocol.methods import SessionTrigger
from mcp_trio._protocol.requests import Admission, IncomingRequest, invalid_state_error
from mcp_trio._session.calls import OutgoingCalls, Question
from mcp_trio._session.exceptions import (
    exc_info_from_users_code,
    raise_unchanged,
    split_faults,
)
from mcp_trio._session.handlers import Application, Handling
from mcp_trio._session.input_required import Rounds, Stage, SuspendedHandlers, is_retry
from mcp_trio._session.journal import Sequencer
from mcp_trio._session.lanes import LANE, Lane, drive, enter_lane
from mcp_trio._session.tasks import Tasks
from mcp_trio._transports.channel import Received
from mcp_trio._transports.concurrency import LightEvent, Wakeup
from mcp_trio._transports.peer_log import PeerLog
from mcp_trio.errors import SERVER_BUSY, RequestError

if TYPE_CHECKING:
    from mcp_trio._session.session import Session

logger = logging.getLogger("mcp_trio")

MALFORMED: Final = "malformed"
REJECTED: Final = "requests refused"
DROPPED: Final = "notifications dropped"
NOTIFIED: Final = "notified"
NEGOTIATED: Final = "negotiated"
# The counters of events whose bytes may not be JSON.
_NOT_JSON: Final = frozenset({MALFORMED, "unreadable answer"})
_IGNORED_LEVELS: Final = {
    MALFORMED: logging.WARNING,
    "unknown answer": logging.WARNING,
    "malformed notification": logging.WARNING,
}


_Notifications: TypeAlias = deque[tuple[NotificationReceived, Lane | None]]


@attrs.define(eq=False, repr=False)
class NotificationQueue:
    """A bounded queue of notifications, and the task that passes them to the callbacks in order.

    The dispatcher never waits for a callback: a notification that does not fit is dropped and
    counted, and the first one is logged. Queue and task exist only while notifications wait.

    A replay has to know when a callback starts, because handlers may have gone on since the
    notification was received. Each notification therefore has a lane, `n` and the number of its
    `in` record: a mark when its callback starts, or `cxl` if the session ended before. The callback
    acts in that lane, so that its clocks are captured, and a replay rejects its changes of the
    outside.
    """

    application: Application
    sequencer: Sequencer
    tasks: Tasks
    connection: Connection
    peer_log: PeerLog
    _queue: _Notifications | None = attrs.field(default=None, init=False)
    _delivering: trio.CancelScope | None = attrs.field(default=None, init=False)
    _done: Wakeup | None = attrs.field(default=None, init=False)

    def put(self, event: NotificationReceived, number: int | str) -> None:
        """Queue the notification of an `in` record, if the application handles its method."""
        if not self.application.handles_notification(event.method):
            return
        if self._queue is None:
            self._queue, self._delivering = _Notifications(), trio.CancelScope()
            self.tasks.start(self._deliver, self._queue, self._delivering)
        queued_max = self.connection.limits.messages.notifications_queued_max
        if len(self._queue) < queued_max:
            lane, sequencer = None, self.sequencer
            if sequencer.has_lanes:
                lane = Lane(f"n{number}", sequencer, has_steps=sequencer.has_steps)
            self._queue.append((event, lane))
            return
        if self.connection.count(DROPPED) == 1:
            logger.warning(
                "%s dropped: callbacks are slower than the peer"
                " (limits.messages.notifications_queued_max=%d)",
                event.method.name,
                queued_max,
            )

    async def done(self) -> None:
        """Wait until the last notification has been handled; any number of tasks may wait."""
        if self._done is None:
            self._done = Wakeup()
        while self._queue is not None:
            await self._done.wait()

    def abandon(self) -> None:
        """Drop the notifications that are left."""
        for _, lane in self._queue or ():
            if lane is not None:
                self.sequencer.ended(lane, unstarted=True)
        if self._queue is not None and self._delivering is not None:
            self._queue.clear()
            self._delivering.cancel()

    async def _deliver(self, queue: _Notifications, scope: trio.CancelScope) -> None:
        """Pass the notifications to their callbacks until the queue is empty."""
        with scope:
            while queue:
                await trio.lowlevel.checkpoint()
                _, lane = queue[0]
                lanes = () if lane is None or not lane.has_steps else (lane,)
                await drive(self._deliver_next(queue), lanes)
        self._queue = self._delivering = None
        if self._done is not None:
            self._done.wake()

    async def _deliver_next(self, queue: _Notifications) -> None:
        event, lane = queue[0]
        if lane is not None:
            self.sequencer.marked(NOTIFIED, event.method.name, lane)
        queue.popleft()
        outer = LANE.get()
        if lane is not None:
            enter_lane(lane)
        try:
            await self.application.notified(event.method, event.params)
        except BaseException as raised:  # The user's code may raise anything; delivery continues.
            fault, rest = split_faults(raised)
            try:
                if fault is not None:
                    self._log(event, fault)
                if rest is not None:
                    raise_unchanged(rest)
            finally:
                del fault, rest  # Their tracebacks have this frame.
        finally:
            LANE.set(outer)

    def _log(self, event: NotificationReceived, error: Exception) -> None:
        name = event.method.name
        self.peer_log.report(
            f"callback for {name}",
            f"the callback for {name} failed",
            level=logging.ERROR,
            error=exc_info_from_users_code(error),
        )


@attrs.define(eq=False, repr=False)
class Dispatcher:
    """The owner of one session's `Connection` and of the peer's open requests.

    Attributes:
        session: The session.
        application: The handlers of the server or client.
        calls: The open requests of this side.
        notifications: The queue of received notifications.
        tasks: The tasks of the session, in which handlers start.
    """

    session: "Session"
    application: Application
    calls: OutgoingCalls
    notifications: NotificationQueue
    tasks: Tasks
    _admission: Admission = attrs.field(init=False)
    _suspended: SuspendedHandlers | None = attrs.field(default=None, init=False)
    _seen_versions: frozenset[str] = attrs.field(default=frozenset(), init=False)
    _open_subscriptions: int = attrs.field(default=0, init=False)
    _request_ended: Wakeup = attrs.field(factory=Wakeup, init=False)

    def __attrs_post_init__(self) -> None:
        self._admission = Admission(self.session.connection.limits)

    @property
    def suspended_handlers(self) -> SuspendedHandlers:
        """The suspended handlers; made on first use, as legacy clients need none."""
        if self._suspended is None:
            self._suspended = SuspendedHandlers(self.session.connection.limits)
        return self._suspended

    @property
    def handler_counts(self) -> tuple[int, int, int]:
        """The numbers of requests whose handlers run, that wait for a place, and are suspended."""
        suspended = 0 if self._suspended is None else len(self._suspended.suspended)
        return self._admission.running, self._admission.queued, suspended

    def take(self, messages: Sequence[Received]) -> None:
        """Act upon received messages: decode, record and dispatch each. Never waits or raises.

        The lane of a request is named after the number of the message's record; within a JSON-RPC
        batch, after that number and the position in the batch.
        """
        session, actions = self.session, self._actions
        sequencer, connection = session.sequencer, session.connection
        for message in messages:
            if type(message) is Lost:
                self._fail_lost(message)
                continue
            event = connection.receive(message)
            number: int | str = 0
            if sequencer.has_lanes:
                is_json = getattr(event, "counter", None) not in _NOT_JSON
                number = sequencer.received(message, embed=is_json)
            actions[type(event)](self, event, number)

    def _fail_lost(self, lost: Lost) -> None:
        """End a request of this side that gets no response, as the channel reports."""
        body = {"id": lost.id, "error": str(lost.error)}
        self.session.sequencer.marked(LOST_MARK, body)
        self.calls.fail_lost(lost)

    def _take_batch(self, event: BatchReceived, number: int | str) -> None:
        """Act upon each message of a batch, which one record holds."""
        connection = self.session.connection
        for position, message in enumerate(event.messages):
            inner = connection.receive_batched(message, event.size_bytes)
            self._actions[type(inner)](self, inner, message_name(int(number), position))

    def release_session(self) -> None:
        """Delete the reference to the ended session, unless handlers still run.

        The session refers to this object, so its memory would otherwise be freed only when the
        garbage collector finds the reference cycle.
        """
        if self.is_idle:
            del self.session

    @property
    def has_stateless_client(self) -> bool:
        """True if a stateless client has sent a request."""
        return bool(self._seen_versions)

    # Incoming requests.

    def _admit(self, event: RequestReceived, number: int | str) -> None:
        request, session = event.request, self.session
        if session.observers is not None:
            request.observation = session.observers.begin_request(session, request, number)
        has_rounds = False
        if request.peer.protocol_version.is_stateless:
            self._note_peer(request.peer)
            has_rounds = request.has_rounds
            if has_rounds and is_retry(request):
                self._take_retry(request)
                return
        sequencer, lane = session.sequencer, None
        if sequencer.has_lanes:
            lane = Lane(f"r{number}", sequencer, has_steps=sequencer.has_steps)
        handling = Handling(session, self, request, lane)
        if has_rounds:
            handling.ask_in_rounds = self._ask
        request.handling = handling
        if request.method.is_subscription:  # It stays open for long, so it takes no place.
            self._open_subscriptions += 1
            self.tasks.start_job(handling)
        elif self._admission.enter_if_free(request):
            self.tasks.start_job(handling)
        elif (rejection := self._rejection(request)) is None:
            self._admission.enqueue(request)
        else:
            error = session.connection.error(request, SERVER_BUSY, rejection)
            self._finish_handling(handling, error)

    def _rejection(self, request: IncomingRequest) -> str | None:
        rejection = self._admission.rejection(request)
        if rejection is not None and self.session.connection.count(REJECTED) == 1:
            logger.warning("%s rejected: %s", request.method.name, rejection)
        return rejection

    def _start_waiting(self, waiting: IncomingRequest) -> None:
        """Give a free place to the request whose turn it is."""
        self._admission.enter(waiting)
        handling: Handling = waiting.handling
        if handling.request is waiting:
            self.tasks.start_job(handling)
        else:  # a retry of a suspended handler
            self._resume(handling, waiting)

    def _cancel(self, event: RequestCancelled, _number: int | str) -> None:
        request = event.request
        logger.info("request %r was cancelled by the peer: %s", request.id, event.reason)
        handling: Handling = request.handling
        rounds = handling.rounds
        if rounds is not None and request in rounds.duplicates:
            # A repeated retry waits for the response to the first one, whose handler goes on.
            rounds.duplicates.remove(request)
            self._admission.free_room(request)
            self._finish_request(request, None, None)
            return
        self._stop(handling)
        if self._admission.withdraw(request):
            self._drop_waiting(request)

    def _stop(self, handling: Handling) -> None:
        if handling.rounds is None:
            handling.cancel()
        else:
            handling.rounds.cancel_handler()

    def stop_handler(self, lane: str) -> None:
        """Cancel a handler, by the name of its lane; its request gets no response."""
        for handling in self._open_handlings():
            if handling.lane is not None and handling.lane.name == lane:
                self._stop(handling)
                retry = None if handling.rounds is None else handling.rounds.retry
                waiting = handling.request if retry is None else retry
                if self._admission.withdraw(waiting):
                    self._drop_waiting(waiting)

    def _open_handlings(self) -> list[Handling]:
        """Return the handlers of open requests, and those that wait for a retry."""
        requests = self.session.connection.incoming.values()
        handlings = [each.handling for each in requests if each.handling is not None]
        return [*handlings, *self.suspended_handlers.suspended]

    def _drop_waiting(self, request: IncomingRequest) -> None:
        """End a request that waited for a place and was cancelled."""
        handling: Handling = request.handling
        if handling.request is request:
            self._finish_handling(handling, None)
        else:  # a retry: `finish` ends the suspended handler, which was cancelled too
            self._finish_request(request, None, None)

    def finish(self, handling: Handling, response: bytes | None) -> None:
        """Send the response of a request, if it has one, and free its place for the next request.

        Called once, when the handler has ended or was cancelled before it started.
        """
        rounds, request = handling.rounds, handling.request
        if rounds is not None:
            has_place = rounds.is_open  # Between two rounds it has neither a request nor a place.
            is_answered = has_place and self._finish_handling(handling, response)
            self._end_rounds(rounds, response if is_answered else None)
            if not has_place:
                return
        else:
            self._finish_handling(handling, response)
        if request.method.is_subscription:
            self._open_subscriptions -= 1
            self._request_ended.wake()
            return
        waiting = self._admission.leave(request)
        if waiting is not None:
            self._start_waiting(waiting)

    def _finish_handling(self, handling: Handling, response: bytes | None) -> bool:
        """End a request and its lane; return whether it was answered."""
        lane, request = handling.lane, handling.request
        is_answered = self._finish_request(request, response, lane)
        if is_answered:
            if handling.final_message is not None:
                self.session.send_queue.post(
                    handling.final_message, lane, related_request_id=request.id
                )
        elif lane is not None:
            self._end_lane(handling)
        return is_answered

    def _end_lane(self, handling: Handling) -> None:
        if handling.lane is not None:
            self.session.sequencer.ended(handling.lane, unstarted=not handling.is_started)

    def _finish_request(
        self, request: IncomingRequest, response: bytes | None, lane: Lane | None
    ) -> bool:
        """End a request: send its response, if there is one and the request was not cancelled.

        The response to the last request in flight is written at once.
        """
        session, request.handling = self.session, None
        connection = session.connection
        is_answered = connection.finish(request) and response is not None
        is_last = len(connection.incoming) <= self._open_subscriptions
        if request.observation is not None:
            observation, request.observation = request.observation, None
            observation.answered(response if is_answered else None)
        if response is not None and is_answered:
            session.send_queue.post(
                response, lane, related_request_id=request.id, is_response=True, at_once=is_last
            )
        if is_last:
            self._request_ended.wake()
        return is_answered

    # Requests of stateless clients that are answered with questions, and their retries.

    async def _ask(self, handling: Handling, questions: Sequence[Question]) -> list[Any]:
        if handling.rounds is None:
            handling.rounds = Rounds(handling, self)
        return await handling.rounds.ask(questions)

    def suspend(self, rounds: Rounds, reply: bytes) -> None:
        """Send the questions as the response, and free the place of the suspended handler."""
        self._finish_request(rounds.handling.request, reply, rounds.lane)
        self._answer_duplicates(rounds, reply)
        self.suspended_handlers.update(rounds)
        waiting = self._admission.leave(rounds.handling.request)
        if waiting is not None:
            self._start_waiting(waiting)
        if self.suspended_handlers.is_closed:
            rounds.cancel_handler()

    def _take_retry(self, retry: IncomingRequest) -> None:
        """Respond to a retry, or let its handler go on, which responds later."""
        try:
            rounds = self.suspended_handlers.find_by_retry(retry)
            kept = rounds.reply_to(retry.params.request_state)
            if kept is not None:
                reply = with_id_replaced(kept, retry.id)
            elif rounds.stage is not Stage.SUSPENDED:
                # The client has repeated a retry: both get the same reply.
                self._check_room(retry)
                self._admission.reserve_room(retry)
                retry.handling = rounds.handling
                rounds.duplicates.append(retry)
                return
            else:
                missing_answers = rounds.read_answers(retry)
                if missing_answers is None:
                    self._admit_retry(rounds, retry)
                    return
                reply = missing_answers
        except RequestError as error:
            reply = self.session.connection.error(retry, error.code, error.message)
        self._finish_request(retry, reply, None)

    def _check_room(self, retry: IncomingRequest) -> None:
        rejection = self._rejection(retry)
        if rejection is not None:
            raise RequestError(SERVER_BUSY, rejection)

    def _admit_retry(self, rounds: Rounds, retry: IncomingRequest) -> None:
        """Let a handler go on with a retry that has all answers, as soon as there is a place."""
        has_place = self._admission.enter_if_free(retry)
        if not has_place:
            self._check_room(retry)
        retry.handling = rounds.handling
        if has_place:
            self._resume(rounds.handling, retry)
        else:
            self._admission.enqueue(retry)
            rounds.queue_retry(retry)

    def _resume(self, handling: Handling, retry: IncomingRequest) -> None:
        rounds = handling.rounds
        assert rounds is not None
        rounds.resume(retry)
        self.suspended_handlers.update(rounds)

    def _end_rounds(self, rounds: Rounds, reply: bytes | None) -> None:
        """End the rounds of a handler that has asked; `reply` is its last response, if any."""
        if not rounds.is_open:  # `_finish_handling`, which ends the lane, was not called
            self._end_lane(rounds.handling)
        rounds.end(None if self.suspended_handlers.is_closed else reply)
        self._answer_duplicates(rounds, reply)
        self.suspended_handlers.update(rounds)
        self._request_ended.wake()

    def _answer_duplicates(self, rounds: Rounds, reply: bytes | None) -> None:
        duplicates, rounds.duplicates = rounds.duplicates, []
        # Without a reply, the handler is gone, and the client's `requestState` with it.
        error = invalid_state_error()
        for request in duplicates:
            self._admission.free_room(request)
            if reply is None:
                response = self.session.connection.error(request, error.code, error.message)
            else:
                response = with_id_replaced(reply, request.id)
            self._finish_request(request, response, None)

    # The end.

    async def subscriptions_done(self) -> None:
        """Wait until the requests that stay open until the session closes have ended."""
        while self._open_subscriptions:
            await self._request_ended.wait()

    @property
    def is_idle(self) -> bool:
        """True if no request is open and no client can still retry one."""
        has_rounds = self._suspended is not None and not self._suspended.is_empty
        has_requests = bool(self.session.connection.incoming)
        return not (has_requests or self._open_subscriptions or has_rounds)

    async def handlers_done(self) -> None:
        """Wait until no incoming request is open and no handler runs."""
        while self.session.connection.incoming or self.suspended_handlers.suspended:
            await self._request_ended.wait()

    def cancel_all(self) -> None:
        """Cancel every handler, and drop the requests that wait for a place."""
        for request in self._admission.withdraw_all():
            self._drop_waiting(request)
        for handling in self._open_handlings():
            self._stop(handling)

    # Other messages.

    def _note_peer(self, peer: Peer) -> None:
        """Record the facts about a stateless client at the first request with its version."""
        if peer.protocol_version.name not in self._seen_versions:
            self._seen_versions |= {peer.protocol_version.name}
            self.session.sequencer.marked(NEGOTIATED, facts_of(peer))

    def _deliver(self, event: NotificationReceived, number: int | str) -> None:
        if event.method.trigger is SessionTrigger.INITIALIZED:
            self.session.mark_initialized()
        if event.request is None or self.calls.pass_to_subscription(event):
            self.notifications.put(event, number)

    def _queue_progress(self, event: ProgressReceived, _number: int | str) -> None:
        self.calls.queue_progress(event)

    def _finish_call(
        self, event: ResponseReceived | ResponseUnreadable, _number: int | str
    ) -> None:
        self.calls.finish(event)

    def _respond(self, event: ImmediateResponse, number: int | str) -> None:
        observers = self.session.observers
        if observers is not None:
            observers.answered(self.session, event, number)
        if event.counter is not None:
            self.session.peer_log.report(event.counter, f"{event.counter}: {event.text}")
        if event.peer is not None:
            self._note_peer(event.peer)
        self.session.send_queue.post(event.message, related_request_id=event.id, is_response=True)
        if event.negotiated:
            if self.session.negotiated.is_set():
                # The client has begun a new session on the same connection.
                if self.session.initialized.is_set():
                    self.session.initialized = LightEvent()
                self.application.on_session_restart()
            self.session.mark_negotiated()

    def _ignore(self, event: Ignored, _number: int | str) -> None:
        level = _IGNORED_LEVELS.get(event.counter, logging.DEBUG)
        self.session.peer_log.report(event.counter, event.text, level=level)

    _actions: ClassVar[Mapping[type, Callable[..., None]]] = {
        RequestReceived: _admit,
        BatchReceived: _take_batch,
        NotificationReceived: _deliver,
        RequestCancelled: _cancel,
        ProgressReceived: _queue_progress,
        ResponseReceived: _finish_call,
        ResponseUnreadable: _finish_call,
        ImmediateResponse: _respond,
        Ignored: _ignore,
    }


def facts_of(peer: Peer) -> dict[str, Any]:
    """Return the facts about the peer that a recording keeps."""
    return {
        "protocol_version": peer.protocol_version.name,
        "peer": peer.info,
        "capabilities": peer.capabilities,
    }
