"""Options of servers over HTTP, and the stores that several machines behind one address share.

By default all stores are in the memory of the process. Machines that serve together share only
three things: the events that a reconnecting client asks for, the facts about its session, and the
notices that a list or a resource has changed. A session itself, its handlers and their questions
live in one process, so requests of legacy clients have to be routed by `Mcp-Session-Id`. Stateless
requests need no such routing.
"""

from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Literal, Protocol, TypeAlias, TypedDict

import attrs
import msgspec

from mcp_trio import types
from mcp_trio._protocol.event_store import EventStore
from mcp_trio._protocol.metadata import Capabilities
from mcp_trio._recorder.writer import RecordTarget
from mcp_trio._server.subscriptions import Change, NotifyChange


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
            has a `ReplayBuffer` within `limits.http.events_kept_max` and
            `limits.http.events_kept_bytes_max`.
        sessions: The store of sessions.
        changes: The broadcast of change notices.
    """

    events: Callable[[str], EventStore] | None = None
    sessions: SessionStore = msgspec.field(default_factory=MemorySessions)
    changes: Changes = msgspec.field(default_factory=MemoryChanges)


HostKind: TypeAlias = Literal["native", "hypercorn"]
"""The HTTP server: the native listener, for HTTP/1.1, or hypercorn, for HTTP/2 as well."""


class AccessOptions(TypedDict, total=False):
    """Options that restrict access over HTTP and WebSocket.

    Attributes:
        hosts: Host names accepted in the `Host` header, besides those of the bound addresses.
        origins: Web origins whose pages may use the server, besides the server's own.
        token: The bearer token that each request must carry, if the server has no `auth`. A token
            is sent as `Authorization: Bearer`, or, from a browser that opens a WebSocket, as the
            subprotocol `mcp.token.` followed by the token in Base64URL, besides `mcp`.
    """

    hosts: Collection[str] | None
    origins: Collection[str] | None
    token: str | None


class HttpOptions(AccessOptions, total=False):
    """Options of the HTTP application.

    Attributes:
        path: The path of the MCP endpoint.
        allows_cors: Send CORS headers, so that browsers let pages of `origins` read responses.
        streams_answers: Answer requests in sessions with event streams, also where plain JSON would
            do.
        has_sse: Serve the two endpoints of the HTTP+SSE transport (2024-11-05) as well.
        has_websocket: Serve WebSocket as well; each connection is a session.
        ws_path: The path of the WebSocket endpoint.
        record: The recording, as in `Server.serve`. Each session is recorded separately, and all
            stateless requests together.
        stores: The stores that several machines share; in memory by default.
    """

    path: str
    allows_cors: bool
    streams_answers: bool
    has_sse: bool
    has_websocket: bool
    ws_path: str
    record: RecordTarget | None
    stores: HttpStores


class RunHttpOptions(HttpOptions, total=False):
    """Options of `Server.serve_http` and `Server.run`: the application, its address and processes.

    Attributes:
        host: The host name or address to bind.
        port: The port to bind; 0 chooses a free port.
        server: The HTTP server that holds the connections.
        workers: The number of processes that serve the address together. Several processes serve
            stateless protocol versions only, and no handler stays suspended in them until its
            client's next request. A change in one process is reported to the clients of that
            process only, unless `stores` carries it to the others.
        certfile: The path of a TLS certificate in PEM.
        keyfile: The path of the private key of the certificate; by default, that of `certfile`.
    """

    host: str
    port: int
    server: HostKind
    workers: int
    certfile: str | None
    keyfile: str | None
