"""The runtime of a served HTTP application: its lifespan and its sessions.

The runtime is one task with the task pool of all sessions; a session has tasks only while it has
work to do. `serve_http` runs the runtime in its own nursery. An ASGI application, which may be
mounted where it receives no lifespan events, starts it as a system task with the first request.

Legacy sessions are found by their ids. Their number is bounded, and they expire. A session whose
client has sent nothing after `initialize` is unused: it expires earlier, and is closed to make room
for a new session when there are too many. So a client that only opens sessions cannot lock out the
others. A session belongs to the principal that opened it: another one that knows its id cannot use
it.

Instances that serve together, on one machine or many, share three things: the events that a
reconnecting client asks for, the sessions with their owners, and the notices that a list or a
resource has changed. By default there is one instance, and all is in the memory of the process. A
session itself, its handlers and their questions live in its owner. A request that reaches another
instance is forwarded to the owner (`forwarding.py`). When the owner stops, or is lost, another
instance opens the session anew, with the messages by which the client had opened it.
"""

import logging
import math
import secrets
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from contextvars import Context, copy_context
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn, Protocol

import attrs
import msgspec
import trio

from mcp_trio._jsonrpc.messages import (
    Batch,
    Message,
    Notification,
    Request,
    decoder_for,
    encode_error,
    encode_notification,
    encode_request,
)
from mcp_trio._jsonrpc.sse import Event
from mcp_trio._protocol.http_headers import HttpRequest
from mcp_trio._protocol.http_requests import Endpoint, KnownSession, Rejection
from mcp_trio._protocol.metadata import ToolCall
from mcp_trio._protocol.methods import INITIALIZE, INITIALIZED
from mcp_trio._protocol.shares import ClientKey, Shares, client_key, network_of, shares_of
from mcp_trio._protocol.stores import EventStore
from mcp_trio._recorder.options import RecordTarget
from mcp_trio._server.continuation import NO_VALUES, KeptCalls, KeptValues, load_values
from mcp_trio._server.forwarding import (
    UNKNOWN_OUTCOME,
    UNKNOWN_OUTCOME_RESPONSE,
    Forwarder,
)
from mcp_trio._server.handlers import ServedSession
from mcp_trio._server.instances import Instance, Instances, SessionFacts, StoreUnavailableError
from mcp_trio._server.lifespan import EnteredLifespan
from mcp_trio._server.sessions import (
    HandlerHttpClient,
    HandshakeTimeouts,
    RunningSession,
    ServerSessions,
    SessionSource,
)
from mcp_trio._server.subscriptions import Change, NotifyChange
from mcp_trio._session.leader_followers import TaskPool
from mcp_trio._session.tasks import open_shielded_pool
from mcp_trio._transports.channel import Channel
from mcp_trio._transports.connections import backoff_seconds
from mcp_trio._transports.http_channels import SessionChannel, StatelessChannel
from mcp_trio._transports.http_response import (
    CompleteResponse,
    Responder,
    ResponseStream,
    StreamSource,
)
from mcp_trio._transports.websocket import WebSocketChannel
from mcp_trio.errors import INTERNAL_ERROR, SERVER_BUSY
from mcp_trio.limits import Limits
from mcp_trio.types import RequestId

if TYPE_CHECKING:
    from mcp_trio._protocol.stores import StateStore
    from mcp_trio._recorder.policy import RecordStatus
    from mcp_trio._server.caller_limits import LimitStore
    from mcp_trio._session.observing import Observer

logger = logging.getLogger("mcp_trio")


# Stores that machines share ---------------------------------------------------------------------


class Changes(Protocol):
    """A broadcast of change notices between applications that serve together.

    A notice reports that a list or a resource has changed; it does not carry the new content,
    because each application has lists of its own. It reaches all other applications that have
    joined, never its sender. The notices of one sender arrive in the order in which they were sent.
    They may arrive late, and several equal notices may arrive as one.
    """

    def joined(self, on_change: NotifyChange) -> AbstractAsyncContextManager[NotifyChange]:
        """Return a context manager that joins the broadcast and gives a function that sends.

        Inside the context `on_change` is called for each change of another application. Both
        functions return without waiting, and may be called in any task or thread.
        """
        ...


@attrs.define(eq=False, repr=False)
class MemoryChanges:
    """`Changes` between the applications of this process."""

    _members: dict[object, NotifyChange] = attrs.field(
        factory=dict[object, NotifyChange], init=False
    )

    @asynccontextmanager
    async def joined(self, on_change: NotifyChange) -> AsyncGenerator[NotifyChange]:
        """Join the broadcast, and give a function that sends a change to the other members."""
        member = object()
        self._members[member] = on_change
        try:
            yield partial(self._send, member)
        finally:
            del self._members[member]

    def _send(self, sender: object, change: Change) -> None:
        for member, on_change in tuple(self._members.items()):
            if member is not sender:
                on_change(change)


@attrs.frozen(kw_only=True)
class HttpStores:
    """The value of the option `stores=`; a store that is not given is in memory.

    Attributes:
        events: Returns the event store of a session, given the session's id. With None each session
            has a `MemoryEventStore` within `limits.http.events_kept_max` and
            `limits.http.events_kept_bytes_max`.
        changes: The broadcast of change notices.
        instances: The instances that serve together; None if this one is alone.
        limits: The store of the server's limits per caller that have no store of their own; with
            None each of them has one in memory.
        states: The store of used proofs (DPoP) and of tokens that were looked up (`Introspection`);
            with None each instance has its own.
    """

    events: Callable[[str], EventStore] | None = None
    changes: Changes = attrs.field(factory=MemoryChanges)
    instances: Instances | None = None
    limits: "LimitStore | None" = None
    states: "StateStore | None" = None

    @asynccontextmanager
    async def opened(self, limits: Limits) -> AsyncGenerator["HttpStores"]:  # noqa: ARG002
        """Give these stores, which need no connection."""
        yield self


class Stores(Protocol):
    """The stores of a server, as `HttpStores` or with connections that are opened for each run.

    A store that can be unavailable has a method `async def check() -> None`, which raises an
    exception then: the server is not ready as long as it does.
    """

    def opened(self, limits: Limits) -> AbstractAsyncContextManager[HttpStores]:
        """Return a context manager that opens the stores for one application."""
        ...


# Sessions ---------------------------------------------------------------------------------------

_ID_BYTES = 32

_SUBSCRIBE: Final = "resources/subscribe"
_UNSUBSCRIBE: Final = "resources/unsubscribe"
# The methods of the client's messages that determine the state of the protocol.
_OPENING: Final = frozenset({INITIALIZE, INITIALIZED, "logging/setLevel", _SUBSCRIBE, _UNSUBSCRIBE})


class _Subscribed(msgspec.Struct):
    uri: str


# The pause between two searches for values that were changed outside of requests.
_PUBLISH_SECONDS: Final = 2.0

# The number of checks for idle sessions within the shortest idle time.
_CHECKS_PER_IDLE_TIME = 10


class TooManySessionsError(Exception):
    """This client, or all clients, have too many sessions, and none of them can be closed."""


@attrs.define(eq=False, repr=False)
class HttpSession(StreamSource):
    """A legacy session with its channel and its principal.

    Attributes:
        client: The key by which the client's sessions are counted.
        used_at: The time of the client's last request.
        session: The session that runs; None until it is started.
        is_opening: Whether the session of another instance is being opened anew.
        has_left: Whether the session goes on in another instance.
        stored_values: What handlers kept when the facts were last stored; None if the session was
            not movable then.
        calls: The calls that another instance can continue; None without other instances.
    """

    id: str
    channel: SessionChannel
    principal: str | None
    client: ClientKey
    used_at: float
    _registry: "HttpSessions"
    session: RunningSession | None = attrs.field(default=None, init=False)
    # The messages of `SessionFacts.opening`, by method and URI; None if no other instance may need
    # them.
    _opening: dict[tuple[str, str], bytes] | None = attrs.field(default=None, init=False)
    is_opening: bool = attrs.field(default=False, init=False)
    has_left: bool = attrs.field(default=False, init=False)
    stored_values: bytes | None = attrs.field(default=NO_VALUES, init=False)
    calls: KeptCalls | None = attrs.field(default=None, init=False)

    @property
    def is_idle(self) -> bool:
        """Return whether the session is started, and its client has no request or stream open."""
        return self.session is not None and self.channel.is_idle

    @property
    def is_closed(self) -> bool:
        """Return whether the session has started to close."""
        return self.session is not None and self.session.closing.is_set()

    @property
    def is_negotiated(self) -> bool:
        """Return whether the handshake has been answered."""
        return self.session is not None and self.session.negotiated.is_set()

    @property
    def primes_streams(self) -> bool:
        """Return whether the client accepts an SSE event without a message at a stream's start."""
        protocol_version = (
            None if self.session is None else self.session.connection.protocol_version
        )
        return protocol_version is not None and protocol_version.primes_streams

    # As the `StreamSource` of its responses.

    @property
    def may_reconnect(self) -> bool:
        """Return whether the client reconnects after an event without a message."""
        return self.primes_streams

    def begin_events(self, stream: ResponseStream) -> Event | None:
        """Prepare a stream to be sent as events; return the first event, if there is one."""
        first_id = self.channel.begin_events(stream, has_first_event=self.primes_streams)
        if first_id is None:
            return None
        return Event(id=first_id, retry_ms=self.channel.limits.http.sse_retry_ms)

    def add_last_event(self, stream: ResponseStream) -> str:
        """Add an event without a message, and return the id with which a client can reconnect."""
        return self.channel.add_last_event(stream)

    def unanswered(self, stream: ResponseStream) -> CompleteResponse | None:
        """Return an error if the session was closed; None if the client has cancelled.

        The status is not 404: after that the client would repeat in a new session a request
        that may have had effects already.
        """
        if self.has_left:  # The handler had begun, and may go on in the other instance.
            return UNKNOWN_OUTCOME_RESPONSE
        if not self.is_closed:
            return None
        text = "the session was closed before this was answered"
        request_id = next(iter(stream.awaits), None)
        rejection = Rejection(status=503, code=SERVER_BUSY, text=text, id=request_id)
        return rejection.response()

    async def settle(self) -> None:
        """Wait until other instances can load the events of the session."""
        if self.channel.events is not None:
            await self.channel.events.settle()

    def note_opening(self, message: ToolCall | Message | Batch, encoded: bytes) -> bool:
        """Keep a message of the client, if another instance needs it to open the session anew.

        Returns:
            Whether the facts about the session have changed.
        """
        if type(message) is Batch:
            has_changed = False
            for each in message.messages:
                match each:
                    case Request(request_id, method, params) if method in _OPENING:
                        encoded_part = encode_request(request_id, method, params)
                    case Notification(method, params) if method in _OPENING:
                        encoded_part = encode_notification(method, params)
                    case _:
                        continue
                has_changed |= self.note_opening(each, encoded_part)
            return has_changed
        if not (isinstance(message, Request | Notification) and message.method in _OPENING):
            return False
        if self._opening is None:
            self._opening = {}
        uri = ""
        if message.method in (_SUBSCRIBE, _UNSUBSCRIBE):
            with suppress(msgspec.MsgspecError):  # The session reports the invalid request.
                uri = msgspec.json.decode(message.params or b"", type=_Subscribed).uri
        if message.method == _UNSUBSCRIBE:
            self._opening.pop((_SUBSCRIBE, uri), None)
        else:  # The message replaces an earlier one.
            self._opening[message.method, uri] = encoded
        return True

    @property
    def values(self) -> bytes | None:
        """The values that handlers keep; None if no other instance can continue the session."""
        application = self.application
        if self._opening is None or not isinstance(application, ServedSession):
            return None
        return application.movable_values()

    @property
    def application(self) -> object:
        """The application of the session that runs; None if it has none."""
        return getattr(self.session, "application", None)

    def facts_to_store(self) -> SessionFacts:
        """Return the facts from which another instance opens the session anew.

        The caller stores them at once: their values become `stored_values`.
        """
        values = self.stored_values = self.values
        return SessionFacts(
            principal=self.principal,
            opening=tuple((self._opening or {}).values()),
            values=values or NO_VALUES,
            is_movable=values is not None,
        )

    def close(self) -> None:
        """Close the session, because the client ended it or has been idle for too long."""
        assert self.session is not None
        self.session.shut("closed")

    def leave(self) -> None:
        """Send and store nothing more, because another instance continues the session.

        The caller closes the session here.
        """
        self.has_left = True
        self.channel.leave()
        if self.calls is not None:
            self.calls.has_left = True
        self.forget()

    def forget(self) -> None:
        """Remove the session from its registry."""
        self._registry.forget(self)


@attrs.define(eq=False, repr=False)
class HttpSessions:
    """The registry of the legacy sessions of a served application.

    Attributes:
        instance: This instance, if there are others.
    """

    limits: Limits
    stores: HttpStores = attrs.field(factory=HttpStores)
    instance: Instance | None = attrs.field(default=None, init=False)
    _open: dict[str, HttpSession] = attrs.field(factory=dict[str, HttpSession], init=False)
    # The sessions whose client has sent nothing after `initialize`, by client. The clients, and the
    # sessions of each, are in the order of their arrival.
    _unused: dict[ClientKey, dict[str, HttpSession]] = attrs.field(
        factory=dict[ClientKey, dict[str, HttpSession]], init=False
    )
    _shares: Shares = attrs.field(init=False)
    # The time of the last check for idle sessions, or of the last opening, which requests use in
    # place of the clock, because it costs less.
    _last_check: float = attrs.field(default=-math.inf, init=False)

    def __attrs_post_init__(self) -> None:
        self._shares = shares_of("limits.http.sessions_max", self.limits)

    def __iter__(self) -> Iterator[HttpSession]:
        return iter(tuple(self._open.values()))

    def __len__(self) -> int:
        return len(self._open)

    def open(
        self,
        principal: str | None,
        *,
        address: str | None = None,
        transport: str = "http",
        session_id: str | None = None,
    ) -> HttpSession:
        """Add a session, with a random id that cannot be guessed.

        `session_id` is the id of a session of another instance, which is opened anew.
        """
        client = client_key(principal, address)
        self._make_room(client)
        has_moved, make = session_id is not None, self.stores.events
        if session_id is None:
            session_id = secrets.token_urlsafe(_ID_BYTES)
        channel = SessionChannel(
            self.limits,
            transport,
            has_one_stream=transport != "http",
            events=None if make is None else make(session_id),
            network=network_of(address),
        )
        self._last_check = trio.current_time()
        opened = HttpSession(session_id, channel, principal, client, self._last_check, self)
        opened.is_opening = has_moved
        self._open[opened.id] = opened
        if not has_moved:
            self._unused.setdefault(client, {})[opened.id] = opened
        self._shares.take(client)
        return opened

    async def publish(self, session: HttpSession) -> None:
        """Let the other instances know a session whose handshake was answered."""
        if self.instance is not None and session.id in self._open:
            self.instance.keep(session.id, session.facts_to_store())
            await self.instance.settle()

    async def publish_values(self, session: HttpSession) -> None:
        """Let the other instances know what handlers keep in a session.

        This waits longer than `publish`: a session that begins again in another instance would not
        have a change that its client knows.
        """
        if self.instance is not None and session.id in self._open:
            self.instance.keep(session.id, session.facts_to_store())
            with suppress(StoreUnavailableError):
                await self.instance.wait_until_stored()

    def note_message(
        self, session: HttpSession, message: ToolCall | Message | Batch, encoded: bytes
    ) -> None:
        """Let the other instances know a message that they need to open the session anew."""
        if self.instance is not None and session.note_opening(message, encoded):
            self.instance.keep(session.id, session.facts_to_store())

    async def publish_changes(self) -> NoReturn:
        """Let the other instances know values that were changed outside of requests."""
        assert self.instance is not None
        while True:
            await trio.sleep(_PUBLISH_SECONDS)
            for session in self:
                # A handler that runs stores its changes at its end, with the response.
                may_change = session.is_negotiated and session.channel.is_answered
                if may_change and session.values != session.stored_values:
                    self.instance.keep(session.id, session.facts_to_store())

    @contextmanager
    def counted_websocket(self, principal: str | None, address: str | None) -> Generator[None]:
        """Count a WebSocket session towards the limit within the block; it gets no session id."""
        client = client_key(principal, address)
        self._make_room(client)
        self._shares.take(client)
        try:
            yield
        finally:
            self._shares.give_back(client)

    def _make_room(self, client: ClientKey) -> None:
        """Close an unused session if otherwise there is no room for another one of the client.

        The session is the oldest unused one of the same client. Only for a client without any
        session, it may be one of another client, so that the others cannot lock this client out.

        Raises:
            TooManySessionsError: There is no such unused session.
        """
        exceeded = self._shares.exceeded(client)
        if exceeded is None:
            return
        of_client = self._unused.get(client, {}).values()
        unused = next((each for each in of_client if each.is_idle), None)
        if unused is None and not self._shares.taken_by(client):
            of_all = (each for sessions in self._unused.values() for each in sessions.values())
            unused = next((each for each in of_all if each.is_idle), None)
        if unused is None:
            raise TooManySessionsError(f"there are too many sessions{exceeded}")
        unused.close()
        self.forget(unused)

    def use(self, session_id: str) -> HttpSession:
        """Return the session with a known id, and note that its client has used it now."""
        session = self._open[session_id]
        if self._unused:
            self._forget_unused(session)
        session.used_at = self._last_check
        return session

    def known(self, session_id: str, *, transport: str = "http") -> KnownSession | None:
        """Return the facts that routing needs, or None if no such session is open."""
        found = self._open.get(session_id)
        if found is None or found.is_opening or found.channel.transport != transport:
            return None
        session = found.session
        if session is None:
            return KnownSession(None, found.principal)
        if session.closing.is_set():
            return None
        return KnownSession(session.connection.protocol_version, found.principal)

    def forget(self, session: HttpSession) -> None:
        """Remove a session: from now on its id is unknown, and requests for it are answered 404."""
        if self._open.pop(session.id, None) is not None:
            self._shares.give_back(session.client)
            self._forget_unused(session)
            if self.instance is not None and not session.has_left:
                self.instance.forget(session.id)

    def _forget_unused(self, session: HttpSession) -> None:
        unused = self._unused.get(session.client)
        if unused is not None and unused.pop(session.id, None) is not None and not unused:
            del self._unused[session.client]

    async def expire(self) -> None:
        """Close idle sessions until cancelled.

        A session is closed when its client has been idle for `limits.http.session_idle_seconds`; an
        unused session after `limits.http.session_unused_seconds`. None is closed too early, and
        none later than two checks after its time.
        """
        unused_seconds = self.limits.http.session_unused_seconds
        shortest_seconds = min(unused_seconds, self.limits.http.session_idle_seconds)
        pause = shortest_seconds / _CHECKS_PER_IDLE_TIME
        while True:
            self._last_check = now = trio.current_time()
            self._close_idle(now - pause)
            await trio.sleep(pause)

    def _close_idle(self, now: float) -> None:
        """Close the sessions that are idle for too long.

        In `expire` itself, the loop variable would keep the last session in memory while it sleeps.
        """
        idle_seconds = self.limits.http.session_idle_seconds
        unused_seconds = min(idle_seconds, self.limits.http.session_unused_seconds)
        for session in self:
            is_unused = session.id in self._unused.get(session.client, ())
            seconds = unused_seconds if is_unused else idle_seconds
            if session.used_at <= now - seconds and session.is_idle:
                session.close()


# The runtime ------------------------------------------------------------------------------------

# The pause between two checks whether requests are answered, before their sessions are handed over.
_HAND_OVER_SECONDS: Final = 0.05
_CLOSE_CONNECTIONS_SECONDS: Final = 0.5


@attrs.define(eq=False, repr=False)
class RestartBackoff:
    """An exponential backoff: each pause before a restart is twice as long as the last one.

    A pause lies between `limits.http.restart_seconds` and `limits.http.restart_seconds_max`. After
    a run at least as long as the longest pause, the pauses start again from the shortest.
    """

    limits: Limits
    _failures: int = attrs.field(default=0, init=False)

    def pause_seconds(self, lived_seconds: float) -> float:
        """Return the seconds to wait before a restart, given the seconds that the last run took."""
        longest_seconds = self.limits.http.restart_seconds_max
        if lived_seconds >= longest_seconds:
            self._failures = 0
        pause_seconds = backoff_seconds(
            self._failures, self.limits.http.restart_seconds, longest_seconds
        )
        self._failures += 1
        return pause_seconds


def _close_websocket(channel: WebSocketChannel, session: RunningSession) -> None:
    channel.mark_going_away()
    session.shut("closed")


@attrs.define(eq=False, repr=False)
class Runtime:
    """The task that holds the lifespan and all sessions of a served application.

    Attributes:
        server: The server that handles the messages.
        record: The target of the sessions' recordings; None if they are not recorded.
        stores: The stores that several instances share.
        observers: The observers of the server; none where no `Server` handles the messages.
        respond: The application, which answers the requests that other instances forward.
        forwarder: The requests to and from other instances; None if there are none.
        endpoint: The rules by which requests are routed.
        stateless: The channel of stateless requests; a new one when its session is replaced.
        has_begun: Whether the lifespan is entered.
        is_closing: Whether the runtime accepts no more requests.
        leaving: Set when this instance takes no more connections, because another one does.
    """

    server: SessionSource
    record: RecordTarget | None
    stores: Stores
    limits: Limits = attrs.field(init=False)
    observers: "Sequence[Observer]" = attrs.field(default=(), init=False)
    respond: Responder | None = attrs.field(default=None, init=False)
    forwarder: Forwarder | None = attrs.field(default=None, init=False)
    sessions: HttpSessions = attrs.field(init=False)
    endpoint: Endpoint = attrs.field(init=False)
    stateless: StatelessChannel = attrs.field(init=False)
    has_begun: bool = attrs.field(default=False, init=False)
    is_closing: bool = attrs.field(default=False, init=False)
    leaving: trio.Event = attrs.field(factory=trio.Event, init=False)
    ended: trio.Event = attrs.field(factory=trio.Event, init=False)
    pool: TaskPool = attrs.field(init=False)
    _variables: Context = attrs.field(init=False)  # the context variables set by the lifespan
    _lifespan: EnteredLifespan = attrs.field(factory=EnteredLifespan, init=False)
    _http: HandlerHttpClient = attrs.field(init=False)
    _stateless: RunningSession | None = attrs.field(default=None, init=False)
    _renewable_at: float = attrs.field(default=-math.inf, init=False)
    _handshake_timeouts: HandshakeTimeouts = attrs.field(init=False)
    _closing: trio.Event = attrs.field(factory=trio.Event, init=False)
    _connected: dict[WebSocketChannel, RunningSession] = attrs.field(
        factory=dict[WebSocketChannel, RunningSession], init=False
    )

    def __attrs_post_init__(self) -> None:
        limits = self.limits = self.server.limits
        if isinstance(self.server, ServerSessions):
            self.observers = self.server.server.observers
        self.sessions, self.stateless = HttpSessions(limits), StatelessChannel(limits)
        self._handshake_timeouts = HandshakeTimeouts(limits)
        self.endpoint = Endpoint(
            protocol_versions=self.server.protocol_versions,
            decoder=decoder_for(limits.messages),
            find_session=self.sessions.known,
            find_parameter_paths=self.server.param_header_paths,
        )

    async def run(
        self, *, task_status: trio.TaskStatus["Runtime"] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Run until `close` is called or this is cancelled; then close all sessions.

        Each session closes in bounded time.

        Raises:
            Exception: The error that the lifespan raised.
        """
        try:
            close_seconds = self.limits.shutdown.close_seconds
            change_notifier = self.server.change_notifier
            async with (
                self.server.enter_lifespan(self.record, transport="http") as lifespan,
                HandlerHttpClient(close_seconds) as http,
                self.stores.opened(self.limits) as stores,
                stores.changes.joined(change_notifier.notify_listeners) as send_change,
            ):
                self._lifespan, self._http, self.has_begun = lifespan, http, True
                self.sessions.stores = stores
                self.server.stores.append(stores)
                self._share_states()
                change_notifier.relays.add(send_change)
                try:
                    if stores.instances is None:
                        await self._run_sessions(task_status)
                    else:
                        await self._run_as_instance(stores.instances, task_status)
                finally:
                    change_notifier.relays.discard(send_change)
                    self.server.stores.remove(stores)
                    self._share_states()
        finally:
            self.ended.set()

    def _share_states(self) -> None:
        """Let the authentication use the newest store of states."""
        if self.server.auth is not None:
            states = (each.states for each in reversed(self.server.stores))
            self.server.auth.use_store(next(filter(None, states), None))

    async def _run_as_instance(
        self, instances: Instances, task_status: trio.TaskStatus["Runtime"]
    ) -> None:
        """Run the sessions as one of several instances."""
        assert self.respond is not None
        forwarder = Forwarder(self.limits, self.respond, self._take_session, self._lose_session)
        async with trio.open_nursery() as forwarder.nursery:
            async with instances.joined(forwarder) as joined:
                self.forwarder, self.sessions.instance = forwarder, joined
                forwarder.instance = joined
                forwarder.nursery.start_soon(self.sessions.publish_changes)
                try:
                    await self._run_sessions(task_status)
                finally:
                    with trio.CancelScope(shield=True):
                        await joined.settle()
            forwarder.has_left = True
            forwarder.nursery.cancel_scope.cancel()

    async def _run_sessions(self, task_status: trio.TaskStatus["Runtime"]) -> None:
        self._variables = copy_context()
        async with trio.open_nursery() as background:
            background.start_soon(self.sessions.expire)
            background.start_soon(self._handshake_timeouts.run)
            async with open_shielded_pool(self.close) as self.pool:
                try:
                    if self.endpoint.is_stateless:
                        self._stateless = self._start_stateless(self.stateless)
                        background.start_soon(self._keep_stateless, self._stateless)
                    task_status.started(self)
                    await self._closing.wait()
                finally:
                    self.close()
                    for session in (self._stateless, *(each.session for each in self.sessions)):
                        if session is not None:
                            session.shut("closed")
                    for channel, connected in self._connected.items():
                        _close_websocket(channel, connected)
            background.cancel_scope.cancel()

    @property
    def record_status(self) -> "RecordStatus | None":
        """The counters of the policy of the recordings; None without one."""
        run = self._lifespan.policy_run
        return None if run is None else run.policy.status

    @property
    def is_recording_degraded(self) -> bool:
        """Return whether a recording leaves records out after a failed write, or none can begin."""
        run = self._lifespan.policy_run
        if run is not None and (run.is_paused or run.policy.status.problem):
            return True
        sessions = (
            self._stateless,
            *(each.session for each in self.sessions),
            *self._connected.values(),
        )
        recorders = (getattr(getattr(it, "sequencer", None), "recorder", None) for it in sessions)
        return any(recorder is not None and recorder.is_paused for recorder in recorders)

    @property
    def may_forward(self) -> bool:
        """Return whether requests that arrive now can be forwarded to other instances."""
        return self.forwarder is not None and not self.forwarder.has_left

    def note_headers(self, headers: Mapping[str, str]) -> None:
        """Keep the headers of the current request for a `RecordPolicy` that depends on headers."""
        run = self._lifespan.policy_run
        if run is not None and run.headers:
            run.current_headers.set(headers)

    # The session of all stateless requests.

    @property
    def has_stateless(self) -> bool:
        """Return whether the session of stateless requests is open.

        After an internal error it is closed until `_keep_stateless` opens a new one.
        """
        return self._stateless is not None and not self._stateless.closing.is_set()

    def renew_stateless(self) -> None:
        """Replace the session of stateless requests, if it is idle and its recording is long.

        The new session has a recording of its own, which can be replayed without the earlier ones.
        If the new session cannot open, the old one continues, and the next attempt follows after
        `limits.recording.retry_seconds`.
        """
        before = self._stateless
        if self._lifespan.record is None or before is None or before.closing.is_set():
            return
        may_renew = self.stateless.is_idle and before.may_be_renewed
        now = trio.current_time()
        if not may_renew or now < self._renewable_at:
            return
        if self._reopen_stateless() is None:
            self._renewable_at = now + self.limits.recording.retry_seconds
        else:
            before.shut("closed")

    async def _keep_stateless(self, stateless: RunningSession) -> None:
        """Open a new session each time that an internal error has ended the current one."""
        restarts = RestartBackoff(self.limits)
        while True:
            began_at = trio.current_time()
            await stateless.closing.wait()
            if self.is_closing:
                return
            if self._stateless is not None and self._stateless is not stateless:
                # `renew_stateless` has replaced the session.
                stateless = self._stateless
                continue
            pause_seconds = restarts.pause_seconds(trio.current_time() - began_at)
            text = "the session of stateless requests was lost; a new one opens in %g s"
            logger.error(text, pause_seconds)
            with trio.move_on_after(pause_seconds):
                await self._closing.wait()
                return
            stateless = self._reopen_stateless() or stateless

    def _reopen_stateless(self) -> RunningSession | None:
        channel = StatelessChannel(self.limits)
        try:
            self._stateless = self._start_stateless(channel)
        except Exception:
            logger.exception("the session of stateless requests cannot open")
            return None
        self.stateless = channel
        return self._stateless

    def _start_stateless(self, channel: StatelessChannel) -> RunningSession:
        session = self._start(channel)
        # Only a `Session` that is not recorded has no use for the bytes of messages.
        sequencer = getattr(session, "sequencer", None)
        channel.needs_encoded = sequencer is None or sequencer.has_lanes
        return session

    # Sessions.

    def _start(
        self, channel: Channel, on_ended: Callable[[], None] = lambda: None
    ) -> RunningSession:
        return self.server.begin_session(
            channel,
            self.pool,
            self._variables,
            lifespan=self._lifespan,
            http=self._http,
            on_ended=on_ended,
        )

    def open_session(
        self,
        principal: str | None,
        *,
        address: str | None = None,
        transport: str = "http",
        session_id: str | None = None,
    ) -> HttpSession:
        """Open a legacy session, which is removed from the registry when it has ended.

        Raises:
            TooManySessionsError: There are too many sessions.
        """
        opened = self.sessions.open(
            principal, address=address, transport=transport, session_id=session_id
        )
        try:
            opened.session = self._start(opened.channel, opened.forget)
        except BaseException:
            opened.forget()
            raise
        if self.sessions.instance is not None and isinstance(opened.application, ServedSession):
            calls = KeptCalls(opened.id, self.sessions.instance, self.limits)
            opened.application.calls = opened.calls = calls
            opened.application.kept_values = KeptValues(
                self.limits.http.session_values_bytes_max,
                lambda: opened.is_opening or opened.values == opened.stored_values,
                partial(self.sessions.publish_values, opened),
            )
            opened.application.may_move = True
        return opened

    async def _take_session(
        self, session_id: str, facts: SessionFacts, request: HttpRequest
    ) -> bool:
        """Open a session of another instance anew; return whether it is open now.

        The session gets what handlers have kept in it, and the messages with which its client had
        opened it, and drops the responses. Then it gets the calls that go on here.

        Raises:
            StoreUnavailableError: The store does not answer; no session is open.
            TooManySessionsError: There are too many sessions.
        """
        taken = self.open_session(facts.principal, address=request.client, session_id=session_id)
        assert self.sessions.instance is not None
        continued: Mapping[RequestId, bytes] = {}
        try:
            if isinstance(taken.application, ServedSession):
                taken.application.was_taken = True
                try:
                    load_values(taken.application, facts.values)
                except ValueError as error:
                    logger.warning(
                        "a session ends, because this instance cannot restore its values: %s", error
                    )
                    return False
            if taken.calls is not None:
                taken.calls.load(await self.sessions.instance.calls(session_id))
                continued = taken.calls.requests
            await taken.channel.restore(
                lambda request_id: encode_error(request_id, INTERNAL_ERROR, UNKNOWN_OUTCOME),
                continued,
            )
            with trio.move_on_after(self.limits.requests.initialize_seconds):
                for encoded in facts.opening:
                    message = self.endpoint.decoder.decode(encoded)
                    assert isinstance(message, Request | Notification)
                    taken.note_opening(message, encoded)
                    awaited = [message.id] if isinstance(message, Request) else []
                    stream = taken.channel.deliver(encoded, message, awaited, auth=request.auth)
                    if stream is not None:
                        await stream.wait_ended()
                taken.is_opening = not taken.is_negotiated
            if not taken.is_opening:
                self.sessions.instance.keep(session_id, taken.facts_to_store())
                is_json_only = not request.accepts_event_streams
                for encoded in continued.values():
                    message = self.endpoint.decoder.decode(encoded)
                    assert isinstance(message, Request)
                    taken.channel.deliver_again(
                        encoded, message, request.auth, is_json_only=is_json_only
                    )
        finally:
            if taken.is_opening:
                taken.leave()
                taken.close()
        return not taken.is_closed

    def _lose_session(self, session_id: str) -> None:
        """Close a session that another instance has taken; a handler of it may call this."""
        session = next((each for each in self.sessions if each.id == session_id), None)
        if session is None or self.forwarder is None:
            return
        logger.error("another instance has taken a session, as our lease was over")
        session.leave()

        async def close() -> None:
            session.close()

        # Not within a step or a child of the handler, where a replay cannot shut the session.
        self._variables.run(self.forwarder.nursery.start_soon, close)

    async def hand_over(self) -> None:
        """Let other instances continue the sessions, each when its requests are answered.

        The requests have `limits.shutdown.hand_over_seconds`; after that, those that are not
        answered fail. Without other instances, or without their store, nothing happens.
        """
        forwarder = self.forwarder
        if forwarder is None or self.is_closing:
            return
        try:
            with trio.fail_after(self.limits.shutdown.close_seconds):
                await forwarder.instance.leave()
        except (StoreUnavailableError, trio.TooSlowError) as error:
            logger.warning("the sessions cannot be handed over: %s", str(error) or "no response")
            return
        forwarder.is_leaving = True
        self.leaving.set()
        forwarder.end_streams()
        with trio.move_on_after(self.limits.shutdown.hand_over_seconds):
            self._hand_over_sessions(only_answered=True)
            # Clients with an idle connection send their next request, which closes the connection.
            await trio.sleep(_CLOSE_CONNECTIONS_SECONDS)
            while self._hand_over_sessions(only_answered=True) or self.is_busy:  # noqa: ASYNC110
                await trio.sleep(_HAND_OVER_SECONDS)
        self._hand_over_sessions(only_answered=False)
        await forwarder.instance.settle()

    @property
    def is_busy(self) -> bool:
        """Return whether stateless or forwarded requests, other than streams, are unanswered."""
        is_forwarding = self.forwarder is not None and self.forwarder.is_busy
        return is_forwarding or not self.stateless.is_answered

    def _hand_over_sessions(self, *, only_answered: bool) -> int:
        """Hand sessions over; return the number of those that are still to be handed over.

        With `only_answered`, a session with an unanswered request stays.
        """
        assert self.sessions.instance is not None
        movable = [each for each in self.sessions if each.is_negotiated and each.values is not None]
        leaving = [each for each in movable if each.channel.is_answered or not only_answered]
        for session in leaving:
            self.sessions.instance.hand_over(session.id, session.facts_to_store())
            session.leave()
            session.close()
        return len(movable) - len(leaving)

    async def serve(self, channel: WebSocketChannel) -> None:
        """Serve a WebSocket as a session until the session has ended; close the channel.

        If this is cancelled, or the runtime closes, the client receives the close code 1001 ("going
        away"), and the session closes in bounded time.

        Raises:
            RecordingError: The recording cannot be made; nothing was served.
        """
        try:
            if self.is_closing:
                channel.mark_going_away()
                return
            ended = trio.Event()
            session = self._start(channel, ended.set)
            self._handshake_timeouts.task_status_for(channel).started(session)
            self._connected[channel] = session
            try:
                await ended.wait()
            finally:
                _close_websocket(channel, session)
                with trio.CancelScope(shield=True):
                    await ended.wait()
                del self._connected[channel]
        finally:
            await channel.aclose()

    def close(self) -> None:
        """Start to close all sessions; `ended` is set when they are closed."""
        self.is_closing = True
        self._closing.set()
