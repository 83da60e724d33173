"""A session: a channel, a connection, and the tasks that handle its messages.

Roles
-----
- Received messages come to the **dispatcher**, by a synchronous call that never waits
  for a handler. They come from a channel that delivers by itself, or from the **reader**, which
  pauses while responses fill the send queue.
- The **send queue** has all outgoing messages; its writer sends them.
- A **handler** of a request runs in a task of the pool (`leader_followers.py`). Callbacks for
  notifications run in the task of `NotificationQueue`. Outgoing requests wait in the task of their
  caller.
- The user's code never runs in the reader or the dispatcher, and cannot end the session by raising.
- Background tasks of the application, such as the announcement of changes, are actors
  (`tasks.py`).
- A session ends once, by `shut`, with a cause: `eof` (the peer closed the connection; handlers may
  finish within `limits.shutdown.drain_seconds`), `signal`, `closed` (by this side) or `lost`. All
  open requests then end as lost, and nothing more is read.

Nurseries
---------
All tasks of a session are in one nursery, and exist only while they have something to do; a handler
that an HTTP connection leads, and that waits, keeps a task of the connection's nursery. `run`
opens a nursery of its own, and turns the caller's cancellation into a `shut`. The owner of many
sessions that are mostly idle starts them in a shared nursery with `begin`. In both cases the
actors have ended before the channel is closed, and the handlers are awaited last: a handler
in a shielded scope delays the end of the nursery, and nothing else.
"""

import logging
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context, copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from mcp_trio._jsonrpc.lines import Oversized
from mcp_trio._protocol.connection import Connection
from mcp_trio._protocol.methods import DISCOVER, INITIALIZE, PING, ParamsToSend
from mcp_trio._protocol.versions import supported_versions_in
from mcp_trio._session.calls import OutgoingCalls, ProgressCallback
from mcp_trio._session.dispatcher import NEGOTIATED, Dispatcher, NotificationQueue, facts_of
from mcp_trio._session.handlers import Application
from mcp_trio._session.journal import UNRECORDED, Recording, SampledOut, Sequencer
from mcp_trio._session.lanes import Lane, drive_in, watch_lanes
from mcp_trio._session.leader_followers import Leader, TaskPool, lead
from mcp_trio._session.send_queue import SendQueue
from mcp_trio._session.tasks import Actor, Tasks, open_shielded_pool
from mcp_trio._transports.channel import Channel, Received
from mcp_trio._transports.concurrency import SET_EVENT, LightEvent
from mcp_trio._transports.peer_log import PeerLog
from mcp_trio.errors import ConnectionLost, MCPError, RequestError, RequestTimeout
from mcp_trio.types import DiscoverResult, InitializeResult, RequestId

# Imported by those sessions only that have observers.
if TYPE_CHECKING:
    from mcp_trio._session.observing import Observers

logger = logging.getLogger("mcp_trio")

PING_LANE: Final = "ping"
CLOSE_LANE: Final = "close"
DRAINED: Final = "drained"

_LOSS_TEXTS: Final = {
    "eof": "the peer closed the connection",
    "signal": "the session was ended by a signal",
    "closed": "the session was closed on this side",
    "lost": "the connection is lost",
}

# The exceptions by which a transport reports that the peer is gone; others are logged as errors.
_LOSSES: Final = (trio.BrokenResourceError, trio.ClosedResourceError, ConnectionLost, OSError)


@attrs.define(eq=False, repr=False)
class Session:
    """A session with one peer. Start it in a nursery: `await nursery.start(session.run)`.

    Attributes:
        channel: The channel to the peer, which the session closes.
        connection: The state of the protocol.
        application: The handlers for the peer's requests and notifications.
        sequencer: The object to which the session reports its events, such as a recorder.
        observers: The observers of what the session does; None without any.
        cause: The cause of the end, from `shut` on; None before.
        negotiated: An event that is set when the handshake has been answered.
        initialized: An event that is set when the client has acknowledged the handshake.
        calls: The requests and subscriptions of this side.
        closing: An event that is set by `shut`, before open requests fail.
        ended: An event that is set when the channel is closed and the journal complete.
    """

    channel: Channel
    connection: Connection
    application: Application
    sequencer: Sequencer = UNRECORDED
    observers: "Observers | None" = None

    cause: str | None = attrs.field(default=None, init=False)
    negotiated: LightEvent = attrs.field(factory=LightEvent, init=False)
    initialized: LightEvent = attrs.field(factory=LightEvent, init=False)
    closing: LightEvent = attrs.field(factory=LightEvent, init=False)
    ended: LightEvent = attrs.field(factory=LightEvent, init=False)
    peer_log: PeerLog = attrs.field(factory=PeerLog, init=False)
    send_queue: SendQueue = attrs.field(init=False)
    calls: OutgoingCalls = attrs.field(init=False)
    _tasks: Tasks = attrs.field(init=False)
    _notifications: NotificationQueue = attrs.field(init=False)
    _dispatcher: Dispatcher = attrs.field(init=False)
    _reader: Leader | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        connection, application = self.connection, self.application
        limits = connection.limits
        on_error = self._shut_as_lost
        self._tasks = Tasks(on_error)
        self.send_queue = SendQueue(self.channel, self.sequencer, limits, self._tasks, on_error)
        self.calls = OutgoingCalls(connection, self.send_queue)
        self._notifications = NotificationQueue(
            application, self.sequencer, self._tasks, connection, self.peer_log
        )
        self._dispatcher = Dispatcher(
            self, application, self.calls, self._notifications, self._tasks
        )

    @property
    def loss(self) -> ConnectionLost | None:
        """The error with which requests fail from `shut` on; None before."""
        return self.calls.loss

    @property
    def has_begun(self) -> bool:
        """True if the peer is known: by a handshake, or by a stateless request."""
        return self.negotiated.is_set() or self._dispatcher.has_stateless_client

    @property
    def may_be_renewed(self) -> bool:
        """True if another session should replace this one, which is idle.

        The other session gets a recording of its own, because this recording is nearly full, or a
        new decision of the policy.
        """
        sequencer = self.sequencer
        is_due = isinstance(sequencer, Recording | SampledOut) and sequencer.is_due_for_renewal
        return is_due and self._dispatcher.is_idle

    # The life of a session.

    async def run(
        self, *, task_status: trio.TaskStatus["Session"] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve the channel until either side ends the session, and close it.

        This raises no `Exception`. If it is cancelled, the session is shut as `closed` and wound
        down within its time limits, and then the cancellation continues.
        """
        async with open_shielded_pool(partial(self.shut, "closed")) as pool:
            try:
                self.begin(pool, copy_context())
                task_status.started(self)
                await self.ended.wait()
            finally:
                self.shut("closed")  # For a BaseException, such as KeyboardInterrupt.
            pool.nursery.cancel_scope.cancel()

    def begin(self, pool: TaskPool, context: Context) -> None:
        """Serve the channel by the tasks of a pool, until the session is shut.

        The tasks start with the context variables `context`. The owner of the pool's nursery has to
        shut the session and wait for its end before it cancels the nursery.
        """
        if self.sequencer.has_lanes:
            watch_lanes()
        self._tasks.open(pool, context)
        if self.observers is not None:
            observation = self.observers.begin_session(self)
            self.ended.when_set(lambda: observation.closed(self.cause or ""))
        self.application.on_session_open(self)
        if self.connection.limits.requests.ping_interval_seconds is not None:
            self.start_lane(PING_LANE, self._ping)
        deliver_to = getattr(self.channel, "deliver_to", None)
        if deliver_to is None:
            self._reader = self._tasks.start_leader(partial(self._read, pool))
        else:
            deliver_to(self._take_delivered)

    @property
    def handler_counts(self) -> tuple[int, int, int]:
        """The numbers of requests whose handlers run, that wait for a place, and are suspended."""
        return self._dispatcher.handler_counts

    def start_actor(self, function: Actor) -> None:
        """Start a task of the application that lives with the session; its errors are logged."""
        self._tasks.start_actor(partial(_logged, function))

    def start_lane(
        self, name: str, function: Callable[[Lane | None], Coroutine[Any, Any, None]]
    ) -> None:
        """Start a task that lives with the session, in a lane of its own if there are lanes."""
        if self.sequencer.has_lanes:
            lane = Lane(name, self.sequencer, has_steps=self.sequencer.has_steps)
            self.start_actor(partial(drive_in, lane, partial(function, lane)))
        else:
            self.start_actor(partial(function, None))

    def shut(self, cause: str, loss: ConnectionLost | None = None) -> None:
        """Begin to close, from any task; only the first call counts.

        Every open request ends with `ConnectionLost` at once. Handlers may finish when the peer
        closed (`eof`), within `limits.shutdown.drain_seconds`; otherwise they are cancelled.
        Callbacks for what has arrived before have `limits.shutdown.drain_seconds`, or else
        `limits.shutdown.close_seconds`.
        """
        if self.cause is not None:
            return
        self.cause = cause
        self.sequencer.shut(cause)
        self._dispatcher.suspended_handlers.close()
        if cause == "lost":
            self.send_queue.lose()
        if self._reader is not None:
            self._reader.cancel()
        self.calls.fail_all(loss or ConnectionLost(_LOSS_TEXTS.get(cause, cause)))
        self.closing.set()
        self._tasks.start(self._end)

    def _shut_as_lost(self, error: Exception) -> None:
        """Shut the session as `lost`, because of an error of the transport."""
        if not isinstance(error, _LOSSES):
            logger.error("the transport failed", exc_info=error)
        if self.cause is None:
            logger.info("the session ends: %s", error)
        loss = error
        if not isinstance(loss, ConnectionLost):
            loss = ConnectionLost(f"{_LOSS_TEXTS['lost']}: {error!r}")
            loss.__cause__ = error
        self.shut("lost", loss)

    async def _end(self) -> None:
        try:
            await trio.lowlevel.checkpoint_if_cancelled()  # A cancelled session is only closed.
            await self._wind_down()
        finally:
            self.application.on_session_close()
            await self._tasks.end_actors()
            await self._close()

    async def _wind_down(self) -> None:
        limits = self.connection.limits
        if self.cause == "eof":
            with trio.move_on_after(limits.shutdown.drain_seconds):
                await self._dispatcher.handlers_done()
                await self._notifications.done()
        else:
            with trio.move_on_after(limits.shutdown.close_seconds):
                await self._dispatcher.subscriptions_done()
        if self.sequencer.has_lanes:  # A replay cancels the handlers at the same record.
            lane = Lane(CLOSE_LANE)
            await self.sequencer.turn(lane)
            self.sequencer.marked(DRAINED, None, lane)
        self._dispatcher.cancel_all()
        with trio.move_on_after(limits.shutdown.close_seconds) as scope:
            await self._dispatcher.handlers_done()
        if scope.cancelled_caught:
            logger.error(
                "a handler in a shielded scope still runs %g s after its cancellation",
                limits.shutdown.close_seconds,
            )
        with trio.move_on_after(limits.shutdown.close_seconds):
            await self.send_queue.drained()
        if self.cause != "eof":  # with "eof" they were delivered above
            with trio.move_on_after(limits.shutdown.close_seconds):
                await self._notifications.done()

    async def _close(self) -> None:
        limits = self.connection.limits.shutdown
        close_seconds = (
            limits.close_seconds
            + limits.terminate_seconds
            + limits.kill_seconds
            + limits.exit_status_seconds
        )
        self.send_queue.lose()
        self.send_queue.dropped = frozenset()  # It may be large, and is no longer needed.
        try:
            with trio.move_on_after(close_seconds, shield=True) as scope:
                await self.channel.aclose()
            if scope.cancelled_caught:
                text = "the transport did not close within %g s (limits.shutdown): it is abandoned"
                logger.error(text, close_seconds)
        except Exception:
            logger.exception("the transport failed to close")
        self.connection.close()
        self._notifications.abandon()
        self.peer_log.close()
        try:
            await self.sequencer.turn_to_end()
            self.sequencer.close(dict(self.connection.counts))
        finally:
            self._dispatcher.release_session()
            self.ended.set()

    # Receiving.

    async def _read(self, pool: TaskPool) -> None:
        """Read messages, and lead the handlers that they start: the reader of the session."""
        try:
            send_queue = self.send_queue
            while self.cause is None:
                if send_queue.is_full_of_responses:
                    await send_queue.room_for_responses()
                # Without a variable, no message stays in memory while the reader waits.
                _, jobs = pool.collect(self._take_messages, await self.channel.receive())
                try:
                    await lead(jobs)
                finally:
                    send_queue.release()
        except Exception as error:  # a transport may raise anything, which ends this session only
            self._shut_as_lost(error)

    def _take_delivered(self, messages: Sequence[Received]) -> None:
        """Take messages from a channel with `deliver_to`, which has room for all responses."""
        try:
            self._take_messages(messages)
        except Exception as error:  # It ends this session, and not the caller.
            self._shut_as_lost(error)
        self.send_queue.release()

    def _take_messages(self, messages: Sequence[Received]) -> None:
        """Act upon each message; responses gather until `send_queue.release`."""
        if self.cause is not None:
            return  # Messages that arrive after the end are ignored.
        if not messages:
            self.shut("eof")
            return
        self.send_queue.hold()
        self._dispatcher.take(messages)

    def stop_handler(self, lane: str) -> None:
        """Cancel the handler of a request, by the name of its lane; it gives no response."""
        self._dispatcher.stop_handler(lane)

    def take(self, message: bytes | Oversized) -> None:
        """Act upon one received message; never waits, never raises."""
        self._dispatcher.take((message,))

    # Sending.

    async def notify(self, method: str, params: ParamsToSend | None = None) -> None:
        """Send a notification that belongs to no request.

        Raises:
            LocalProtocolError: The protocol forbids it now.
            Unencodable: The params cannot be encoded as JSON.
            ConnectionLost: The session is closing, or has ended.
        """
        await self.send_queue.room_for_message(None)
        self.calls.check_open()
        self.send_queue.post(self.connection.notification(method, params), at_once=True)

    async def notifications_handled(self) -> None:
        """Wait until the callbacks for all notifications that have arrived so far have returned."""
        await self._notifications.done()

    def request(
        self,
        method: str,
        params: ParamsToSend | None = None,
        *,
        idle_seconds: float | None = None,
        total_seconds: float | None = None,
        on_progress: ProgressCallback | None = None,
        lane: Lane | None = None,
        related_request_id: RequestId | None = None,
    ) -> Coroutine[Any, Any, Any]:
        """Send a request, and return the peer's typed result.

        This is a plain function that returns a coroutine, which saves one for each request.

        If this is cancelled or times out, the peer is notified once, and a late response is only
        counted. `on_progress` runs in the caller's task; if it raises, the request is cancelled
        and the exception propagates. `related_request_id` is the id of the peer's request whose
        handler sends this one.

        Raises:
            RequestError: The response is an error.
            RequestTimeout: There was no response within `idle_seconds`, which progress restarts, or
                `total_seconds`; the defaults are in `limits.requests`.
            ConnectionLost: The session ended before the response, or had ended.
            LocalProtocolError: The protocol forbids the request now; nothing was sent.
            OutcomeUnknown: The response is larger than `limits.messages.bytes_max`.
            RemoteProtocolError: The response is no valid message, or not a result of the method.
            Unencodable: The params cannot be encoded as JSON; nothing was sent.
        """
        request: Callable[..., Coroutine[Any, Any, Any]] = self.calls.request
        if self.observers is not None:
            request = partial(self._request_observed, self.observers)
        return request(
            method,
            params,
            idle_seconds=idle_seconds,
            total_seconds=total_seconds,
            on_progress=on_progress,
            lane=lane,
            related_request_id=related_request_id,
        )

    async def _request_observed(
        self, observers: "Observers", method: str, params: ParamsToSend | None, **options: Any
    ) -> Any:
        with observers.begin_call(self, method, params) as observation:
            try:
                result = await self.calls.request(
                    method, params, **options, activity=observation.activity
                )
            except BaseException as error:
                observation.raised(error)
                raise
            observation.returned(result)
            return result

    # A client's handshake or discovery, and pings.

    async def initialize(self) -> None:
        """Do the client's handshake; when it fails, or is cancelled, the session is shut.

        When the server rejects it, the session continues: it may be a stateless server.

        Raises:
            RequestError: The server rejects the handshake.
            RemoteProtocolError: The server chose an unknown protocol version.
            RequestTimeout: No response within `limits.requests.initialize_seconds`.
            ConnectionLost: The session ended before the response, or had ended.
        """
        seconds = self.connection.limits.requests.initialize_seconds
        try:
            result = await self._request_initialize(seconds)
            message = self.connection.accept_initialize(result)
        except RequestTimeout:
            self.shut("closed")
            raise RequestTimeout(
                INITIALIZE, "total", seconds, "limits.requests.initialize_seconds"
            ) from None
        except RequestError:
            raise
        except (MCPError, trio.Cancelled):
            self.shut("closed")
            raise
        self.send_queue.post(message, at_once=True)
        self.mark_negotiated()
        self.mark_initialized()

    async def _request_initialize(self, seconds: float) -> InitializeResult:
        """Initialize with our newest protocol version, or one that the server's error names."""
        connection = self.connection
        request = partial(self.request, INITIALIZE, idle_seconds=seconds, total_seconds=seconds)
        result: InitializeResult
        try:
            result = await request(connection.initialize_params())
        except RequestError as rejection:
            if not connection.select_other_version(supported_versions_in(rejection.data)):
                raise
            result = await request(connection.initialize_params())
        return result

    async def discover(self, seconds: float) -> DiscoverResult:
        """Send `server/discover` to a server; `accept_discovery` then continues with its result.

        If this fails, the session stays open, because the server may be a legacy server. If it is
        cancelled, the session is shut.

        Raises:
            RequestTimeout: There was no response within `seconds`.
            RemoteProtocolError: The response is invalid.
            RequestError: The response is an error.
            ConnectionLost: The session ended before the response, or had ended.
        """
        try:
            result: DiscoverResult = await self.request(
                DISCOVER, idle_seconds=seconds, total_seconds=seconds
            )
        except trio.Cancelled:
            self.shut("closed")
            raise
        return result

    def accept_discovery(self, discovered: DiscoverResult) -> None:
        """Continue with a stateless server, without a handshake.

        Raises:
            RemoteProtocolError: The sides have no stateless protocol version in common.
        """
        self.connection.accept_discovery(discovered)
        self.mark_negotiated()
        self.mark_initialized()

    def mark_negotiated(self) -> None:
        """Record that the handshake is answered, or that a client accepted a discovery."""
        peer = self.connection.peer
        assert peer is not None
        self.sequencer.marked(NEGOTIATED, facts_of(peer))
        negotiated, self.negotiated = self.negotiated, SET_EVENT
        negotiated.set()

    def mark_initialized(self) -> None:
        """Record that the client has acknowledged the handshake."""
        initialized, self.initialized = self.initialized, SET_EVENT
        initialized.set()

    async def _ping(self, lane: Lane | None) -> None:
        limits = self.connection.limits
        interval_seconds = limits.requests.ping_interval_seconds
        assert interval_seconds is not None
        seconds = limits.requests.ping_response_seconds
        while self.cause is None:
            await trio.sleep(interval_seconds)
            protocol_version = self.connection.protocol_version
            if protocol_version is None:
                # There was no handshake so far, or the client is stateless and accepts no requests.
                continue
            method = DISCOVER if protocol_version.is_stateless else PING
            try:
                await self.request(method, idle_seconds=seconds, total_seconds=seconds, lane=lane)
            except RequestTimeout:
                if not self.send_queue.is_empty:
                    # The ping itself waits in the send queue, which watches for stalled writes.
                    continue
                logger.warning("the peer did not respond to a ping within %g s", seconds)
                text = (
                    f"no response to a ping within {seconds:g} s"
                    " (limits.requests.ping_response_seconds)"
                )
                self._shut_as_lost(ConnectionLost(text))
            except MCPError as error:
                logger.debug("a ping ended without a result: %s", error)


async def _logged(function: Actor) -> None:
    try:
        await function()
    except Exception:
        logger.exception("a background task of the application failed")
