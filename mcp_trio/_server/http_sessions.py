"""The runtime of a served HTTP application: its lifespan and its sessions.

The runtime is one task with the task pool of all sessions; a session has tasks only while it has
work to do. `serve_http` runs the runtime in its own nursery. An ASGI application, which may be
mounted where it receives no lifespan events, starts it as a system task with the first request.

Legacy sessions are found by their ids. Their number is bounded, and they expire. A session whose
client has sent nothing after `initialize` is unused: it expires earlier, and is closed to make room
for a new session when there are too many. So a client that only opens sessions cannot lock out the
others. A session belongs to the principal that opened it: knowing its id does not suffice.

Machines that serve together share only three things: the events that a reconnecting client asks
for, the facts about its session, and the notices that a list or a resource has changed. By default
these stores are in the memory of the process. A session itself, its handlers and their questions
live in one process, so requests of legacy clients have to be routed by `Mcp-Session-Id`. Stateless
requests need no such routing.
"""

import logging
import math
import secrets
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from contextvars import Context, copy_context
from functools import partial
from typing import Protocol

import attrs
import msgspec
import trio

from mcp_trio import types
from mcp_trio._jsonrpc.messages import Decoder
from mcp_trio._protocol.event_store import EventStore
from mcp_trio._protocol.http_requests import Endpoint, KnownSession
from mcp_trio._protocol.metadata import Capabilities
from mcp_trio._protocol.shares import Client, Shares, client_key, http_shares, network_of
from mcp_trio._recorder.writer import RecordTarget
from mcp_trio._server.lifespan import EnteredLifespan
from mcp_trio._server.sessions import (
    HandlerHttpClient,
    HandshakeTimeouts,
    RunningSession,
    SessionSource,
)
from mcp_trio._server.subscriptions import Change, NotifyChange
from mcp_trio._session.leader_followers import TaskPool
from mcp_trio._session.tasks import open_shielded_pool
from mcp_trio._transports.channel import Channel
from mcp_trio._transports.connections import backoff_seconds
from mcp_trio._transports.http_sessions import SessionChannel, StatelessChannel
from mcp_trio._transports.websocket import WebSocketChannel
from mcp_trio.limits import Limits

logger = logging.getLogger("mcp_trio")


# Stores that machines share ---------------------------------------------------------------------


class SessionFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a legacy session that all machines may look up.

    Attributes:
        principal: The user who opened the session; None if the server does not verify users.
        protocol_version: The protocol version that the handshake agreed on.
        client: The name and version that the client reported.
        capabilities: The capabilities of the client; None if they are not known.
    """

    principal: str | None
    protocol_version: str
    client: types.Implementation | None
    capabilities: Capabilities | None


class SessionStore(Protocol):
    """The legacy sessions of all machines that serve together, by session id.

    The server calls `keep` once for each session, after its handshake has been answered and before
    the client knows the id, and `forget` when the session has ended. Both are called in the event
    loop and must return without waiting: a store for several machines writes in the background. A
    machine that crashes does not call `forget`, so such a store has to detect that by itself: while
    it still finds a session, the client of that session is not asked to open a new one.

    The server calls `find` only for ids that belong to no session of its own. If `find` returns
    facts, the session lives on another machine, and the request is rejected as misdirected (421);
    otherwise the session has ended (404).
    """

    def keep(self, session_id: str, facts: SessionFacts) -> None:
        """Store the facts about a session that has opened on this machine."""
        ...

    def forget(self, session_id: str) -> None:
        """Remove a session that has ended, perhaps before it was kept, together with its events."""
        ...

    async def find(self, session_id: str) -> SessionFacts | None:
        """Return the facts about a session, or None if there is no such session."""
        ...


@attrs.define(eq=False, repr=False)
class MemorySessions:
    """A `SessionStore` that keeps its sessions in the memory of this process."""

    _known: dict[str, SessionFacts] = attrs.field(factory=dict[str, SessionFacts], init=False)

    def keep(self, session_id: str, facts: SessionFacts) -> None:
        """Store the facts about a session."""
        self._known[session_id] = facts

    def forget(self, session_id: str) -> None:
        """Remove a session; an unknown id is ignored."""
        self._known.pop(session_id, None)

    async def find(self, session_id: str) -> SessionFacts | None:
        """Return the facts about a session, or None if there is no such session."""
        return self._known.get(session_id)


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


class HttpStores(msgspec.Struct, frozen=True, kw_only=True):
    """The value of the option `stores=`; a store that is not given is in memory.

    Attributes:
        events: Returns the event store of a session, given the session's id. With None each session
            has a `MemoryEventStore` within `limits.http.events_kept_max` and
            `limits.http.events_kept_bytes_max`.
        sessions: The store of sessions.
        changes: The broadcast of change notices.
    """

    events: Callable[[str], EventStore] | None = None
    sessions: SessionStore = msgspec.field(default_factory=MemorySessions)
    changes: Changes = msgspec.field(default_factory=MemoryChanges)


# Sessions ---------------------------------------------------------------------------------------


@attrs.define(eq=False, repr=False)
class Restarts:
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


_ID_BYTES = 32

# The number of checks for idle sessions within the shortest idle time.
_CHECKS_PER_IDLE_TIME = 10


class TooManySessionsError(Exception):
    """This client, or all clients, have too many sessions, and none of them can be closed."""


@attrs.define(eq=False, repr=False)
class HttpSession:
    """A legacy session with its channel and its principal.

    Attributes:
        client: The key by which the client's sessions are counted.
        used_at: The time of the client's last request.
        session: The session that runs; None until it is started.
    """

    id: str
    channel: SessionChannel
    principal: str | None
    client: Client
    used_at: float
    _registry: "Sessions"
    session: RunningSession | None = attrs.field(default=None, init=False)

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

    def close(self) -> None:
        """Close the session, because the client ended it or has been idle for too long."""
        assert self.session is not None
        self.session.shut("closed")

    def forget(self) -> None:
        """Remove the session from its registry."""
        self._registry.forget(self)


@attrs.define(eq=False, repr=False)
class Sessions:
    """The registry of the legacy sessions of a served application."""

    limits: Limits
    stores: HttpStores = attrs.field(factory=HttpStores)
    _open: dict[str, HttpSession] = attrs.field(factory=dict[str, HttpSession], init=False)
    # The sessions whose client has sent nothing after `initialize`, by client. The clients, and the
    # sessions of each, are in the order of their arrival.
    _unused: dict[Client, dict[str, HttpSession]] = attrs.field(
        factory=dict[Client, dict[str, HttpSession]], init=False
    )
    _shares: Shares = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._shares = http_shares("sessions_max", self.limits)

    def __iter__(self) -> Iterator[HttpSession]:
        return iter(tuple(self._open.values()))

    def __len__(self) -> int:
        return len(self._open)

    def begin(
        self, principal: str | None, *, address: str | None = None, transport: str = "http"
    ) -> HttpSession:
        """Add a session, with a random id that cannot be guessed.

        Args:
            principal: The authenticated user; None without authentication.
            address: The address of the client.
            transport: The name of the transport.

        Raises:
            TooManySessionsError: There are too many sessions.
        """
        client = client_key(principal, address)
        self._make_room(client)
        session_id, make = secrets.token_urlsafe(_ID_BYTES), self.stores.events
        channel = SessionChannel(
            self.limits,
            transport,
            has_one_stream=transport != "http",
            events=None if make is None else make(session_id),
            network=network_of(address),
        )
        opened = HttpSession(session_id, channel, principal, client, trio.current_time(), self)
        self._open[opened.id] = self._unused.setdefault(client, {})[opened.id] = opened
        self._shares.take(client)
        return opened

    def publish(self, session: HttpSession) -> None:
        """Add a session, whose handshake was answered, to the store that all machines share."""
        assert session.session is not None
        connection = session.session.connection
        assert connection.protocol_version is not None
        facts = SessionFacts(
            principal=session.principal,
            protocol_version=connection.protocol_version.name,
            client=connection.peer_info,
            capabilities=connection.peer_capabilities,
        )
        self.stores.sessions.keep(session.id, facts)

    async def is_elsewhere(self, session_id: str, principal: str | None) -> bool:
        """Return whether the principal has a session with that id on another machine."""
        if session_id in self._open:
            return False
        facts = await self.stores.sessions.find(session_id)
        return facts is not None and facts.principal == principal

    @contextmanager
    def counted_websocket(self, principal: str | None, address: str | None) -> Generator[None]:
        """Count a WebSocket session towards the limit within the block; it gets no session id.

        Raises:
            TooManySessionsError: There are too many sessions.
        """
        client = client_key(principal, address)
        self._make_room(client)
        self._shares.take(client)
        try:
            yield
        finally:
            self._shares.give_back(client)

    def _make_room(self, client: Client) -> None:
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

    def used(self, session_id: str) -> HttpSession:
        """Return the session with a known id, and note that its client has used it now."""
        session = self._open[session_id]
        self._forget_unused(session)
        session.used_at = trio.current_time()
        return session

    def known(self, session_id: str, *, transport: str = "http") -> KnownSession | None:
        """Return the facts that routing needs, or None if no such session is open."""
        found = self._open.get(session_id)
        if found is None or found.is_closed or found.channel.transport != transport:
            return None
        connection = None if found.session is None else found.session.connection
        return KnownSession(
            None if connection is None else connection.protocol_version, found.principal
        )

    def forget(self, session: HttpSession) -> None:
        """Remove a session: from now on its id is unknown, and requests for it are answered 404."""
        if self._open.pop(session.id, None) is not None:
            self._shares.give_back(session.client)
            self._forget_unused(session)
            self.stores.sessions.forget(session.id)

    def _forget_unused(self, session: HttpSession) -> None:
        unused = self._unused.get(session.client)
        if unused is not None and unused.pop(session.id, None) is not None and not unused:
            del self._unused[session.client]

    async def expire(self) -> None:
        """Close idle sessions until cancelled.

        A session is closed when its client has been idle for `limits.http.session_idle_seconds`; an
        unused session after `limits.http.session_unused_seconds`.
        """
        unused_seconds = self.limits.http.session_unused_seconds
        shortest_seconds = min(unused_seconds, self.limits.http.session_idle_seconds)
        while True:
            await trio.sleep(shortest_seconds / _CHECKS_PER_IDLE_TIME)
            self._close_idle(trio.current_time())

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


def _nothing() -> None:
    pass


def _close_websocket(channel: WebSocketChannel, session: RunningSession) -> None:
    channel.mark_going_away()
    session.shut("closed")


@attrs.define(eq=False, repr=False)
class Runtime:
    """The task that holds the lifespan and all sessions of a served application.

    Attributes:
        server: The server that handles the messages.
        record: The target of the sessions' recordings; None if they are not recorded.
        stores: The stores that several machines share.
        sessions: The legacy sessions.
        endpoint: The rules by which requests are routed.
        stateless: The channel of stateless requests; a new one when its session is replaced.
        ended: Set when the runtime has ended.
        pool: The tasks of the sessions.
    """

    server: SessionSource
    record: RecordTarget | None = None
    stores: HttpStores = attrs.field(factory=HttpStores)
    sessions: Sessions = attrs.field(init=False)
    endpoint: Endpoint = attrs.field(init=False)
    stateless: StatelessChannel = attrs.field(init=False)
    ended: trio.Event = attrs.field(factory=trio.Event, init=False)
    pool: TaskPool = attrs.field(init=False)
    _variables: Context = attrs.field(init=False)  # the context variables set by the lifespan
    _lifespan: EnteredLifespan = attrs.field(init=False)
    _http: HandlerHttpClient = attrs.field(init=False)
    _stateless: RunningSession | None = attrs.field(default=None, init=False)
    _renewable_at: float = attrs.field(default=-math.inf, init=False)
    _handshake_timeouts: HandshakeTimeouts = attrs.field(init=False)
    _closing: trio.Event = attrs.field(factory=trio.Event, init=False)
    _connected: dict[WebSocketChannel, RunningSession] = attrs.field(
        factory=dict[WebSocketChannel, RunningSession], init=False
    )

    def __attrs_post_init__(self) -> None:
        limits = self.server.limits
        self.sessions, self.stateless = Sessions(limits, self.stores), StatelessChannel(limits)
        self._handshake_timeouts = HandshakeTimeouts(limits)
        self.endpoint = Endpoint(
            protocol_versions=self.server.protocol_versions,
            decoder=Decoder(
                json_depth_max=limits.messages.json_depth_max,
                batch_messages_max=limits.messages.batch_size_max,
                long_exponents_max=limits.messages.long_exponents_max,
            ),
            find=self.sessions.known,
            parameter_paths=self.server.param_header_paths,
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
            close_seconds = self.server.limits.shutdown.close_seconds
            change_notifier = self.server.change_notifier
            async with (
                self.server.enter_lifespan(self.record, transport="http") as lifespan,
                HandlerHttpClient(close_seconds) as http,
                self.stores.changes.joined(change_notifier.notify_listeners) as send_change,
            ):
                self._lifespan, self._http = lifespan, http
                with change_notifier.relayed_by(send_change):
                    await self._run_sessions(task_status)
        finally:
            self.ended.set()

    async def _run_sessions(self, task_status: trio.TaskStatus["Runtime"]) -> None:
        self._variables = copy_context()
        async with trio.open_nursery() as background:
            background.start_soon(self.sessions.expire)
            background.start_soon(self._handshake_timeouts.run)
            async with open_shielded_pool(self.close) as self.pool:
                try:
                    if self.endpoint.is_stateless:
                        self._stateless = self._start(self.stateless)
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
    def is_closing(self) -> bool:
        """Return whether the runtime accepts no more requests."""
        return self._closing.is_set()

    def note_headers(self, headers: Mapping[str, str]) -> None:
        """Show the policy of the recordings the headers of the current request, if it asks."""
        run = self._lifespan.run
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
            self._renewable_at = now + self.server.limits.recording.retry_seconds
        else:
            before.shut("closed")

    async def _keep_stateless(self, stateless: RunningSession) -> None:
        """Open a new session each time that an internal error has ended the current one."""
        restarts = Restarts(self.server.limits)
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
        channel = StatelessChannel(self.server.limits)
        try:
            self._stateless = self._start(channel)
        except Exception:
            logger.exception("the session of stateless requests cannot open")
            return None
        self.stateless = channel
        return self._stateless

    # Sessions.

    def _start(self, channel: Channel, on_ended: Callable[[], None] = _nothing) -> RunningSession:
        return self.server.begin_session(
            channel,
            self.pool,
            self._variables,
            lifespan=self._lifespan,
            http=self._http,
            on_ended=on_ended,
        )

    def begin_session(
        self, principal: str | None, *, address: str | None = None, transport: str = "http"
    ) -> HttpSession:
        """Open a legacy session, which is removed from the registry when it has ended.

        Raises:
            TooManySessionsError: There are too many sessions.
        """
        opened = self.sessions.begin(principal, address=address, transport=transport)
        try:
            opened.session = self._start(opened.channel, opened.forget)
        except BaseException:
            opened.forget()
            raise
        return opened

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
        self._closing.set()
