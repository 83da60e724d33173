"""How a server is served over HTTP, as people say it."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Literal, Protocol, TypeAlias, TypedDict

import attrs

from mcp_trio import types
from mcp_trio._protocol.event_store import EventStore
from mcp_trio._protocol.http_headers import HttpRequest
from mcp_trio._protocol.metadata import Capabilities
from mcp_trio._recorder.writer import RecordTarget
from mcp_trio._server.subscriptions import Notice, Tell

# --------------------
# What a served application keeps, behind small interfaces; in its process's memory by default.
#
# What several machines that serve together would have to share is no more than this: the events
# that a client comes back for, what is known of its session, and that something has changed. A
# session itself, its handlers and their questions, live in one process: requests of legacy clients
# have to be routed by `Mcp-Session-Id`. Modern requests need no such routing.


@attrs.frozen(kw_only=True)
class SessionFacts:
    """What is known of a legacy session wherever it is asked for.

    Attributes:
        principal: Whose it is; None where nobody verifies.
        revision: The name of what is spoken in it.
        client: Its client, by the client's own words.
        capabilities: What that can do; None if nobody has asked for it.
    """

    principal: str | None
    protocol_version: str
    client: types.Implementation | None
    capabilities: Capabilities | None


class SessionStore(Protocol):
    """Which legacy sessions there are on all machines that serve together, by their ids.

    Promised to it: `keep` comes once a session, when its handshake has been answered and before the
    client knows the id; `forget` when it has ended. Both come from the event loop and must not
    wait: a store for several machines writes behind. Of a machine that dies nobody says `forget`;
    such a store has to notice that by itself, for as long as it finds a session, its client is not
    told to begin a new one.

    `find` is asked for ids only that are of no session here. What it finds lives elsewhere, and the
    request is refused as misdirected (421), not as one of a session that has ended (404).
    """

    def keep(self, session_id: str, facts: SessionFacts) -> None:
        """A session has begun here."""
        ...

    def forget(self, session_id: str) -> None:
        """A session has ended, perhaps before it was kept; its events are wanted no more."""
        ...

    async def find(self, session_id: str) -> SessionFacts | None:
        """What is known of a session; None if there is none."""
        ...


@attrs.define(eq=False)
class MemorySessions:
    """A `SessionStore` in the memory of this process."""

    _known: dict[str, SessionFacts] = attrs.field(factory=dict[str, SessionFacts], init=False)

    def keep(self, session_id: str, facts: SessionFacts) -> None:
        """See `SessionStore.keep`."""
        self._known[session_id] = facts

    def forget(self, session_id: str) -> None:
        """See `SessionStore.forget`."""
        self._known.pop(session_id, None)

    async def find(self, session_id: str) -> SessionFacts | None:
        """See `SessionStore.find`."""
        return self._known.get(session_id)


class Changes(Protocol):
    """Tells applications that serve together what has changed at one of them.

    What is told is that a list or a resource is another one now, and not what it is: each
    application has lists of its own. It goes to all others that have joined, and not back. Promised
    to them: what one tells comes in its order. Not promised: that it comes at once, or that a
    change is told several times if it happens several times.
    """

    def joined(self, hear: Tell) -> AbstractAsyncContextManager[Tell]:
        """A context in which `hear` is called for changes at others; gives what tells them of ours.

        Both are quick, never wait, and may be called in any task or thread.
        """
        ...


@attrs.define(eq=False)
class MemoryChanges:
    """`Changes` among the applications of this process."""

    _members: dict[object, Tell] = attrs.field(factory=dict[object, Tell], init=False)

    @asynccontextmanager
    async def joined(self, hear: Tell) -> AsyncGenerator[Tell]:
        """See `Changes.joined`."""
        member = object()
        self._members[member] = hear
        try:
            yield partial(self._tell, member)
        finally:
            del self._members[member]

    def _tell(self, teller: object, notice: Notice) -> None:
        for member, hear in tuple(self._members.items()):
            if member is not teller:
                hear(notice)


@attrs.frozen(kw_only=True)
class HttpStores:
    """What `stores=` takes: each of the interfaces, in memory unless given.

    Attributes:
        events: Makes the store of one session's events, by the session's id; None: each session
            has a `ReplayBuffer` within `limits.http.events_kept_max` and
            `limits.http.events_kept_bytes_max`.
        sessions: Which sessions there are.
        changes: Who else is to hear of changes.
    """

    events: Callable[[str], EventStore] | None = None
    sessions: SessionStore = attrs.field(factory=MemorySessions)
    changes: Changes = attrs.field(factory=MemoryChanges)


HostKind: TypeAlias = Literal["native", "hypercorn"]
"""Who holds the connections: our own listener, for HTTP/1.1, or hypercorn, for TLS and HTTP/2."""

Verify: TypeAlias = Callable[[HttpRequest], Awaitable[str | None]]
"""Who sends a request, by its head; None refuses it.

The name is no secret: handlers read it as `ctx.principal`, and it stands in recordings.
"""


class WhoMayCome(TypedDict, total=False):
    """Who may come over the web.

    Attributes:
        hosts: Names under which clients may reach it, beside those that it is bound to.
        origins: Pages of these origins may use it, beside its own.
        token: Who brings it may come: as `Authorization: Bearer`, or, from a browser that opens a
            WebSocket, as the subprotocol `mcp.token.` and the token in Base64URL, beside `mcp`.
        verify: In its place, tells who sends a request, by its head; None refuses the request.
    """

    hosts: Collection[str] | None
    origins: Collection[str] | None
    token: str | None
    verify: Verify | None


class HttpOptions(WhoMayCome, total=False):
    """What is served, and to whom.

    Attributes:
        path: Where the MCP endpoint is.
        allows_cors: Browsers are told that pages of `origins` may read what is answered.
        streams_answers: Answers in sessions are streams of events also where they could be JSON.
        has_sse: The two endpoints of revision 2024-11-05 are there as well.
        has_websocket: WebSocket is there as well; each connection is a session.
        ws_path: Where that is.
        record: See `Server.serve`; each session is recorded, and all modern requests together.
        stores: What several machines that serve together share; in memory without a word.
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
    """The same, and where: see `Server.serve_http`.

    Attributes:
        workers: How many processes serve the address together. Several of them speak modern
            revisions only, and no handler waits in them for its client's next round. What changes
            in one is told to its own clients only, unless `stores` carries it to the others.
    """

    host: str
    port: int
    server: HostKind
    workers: int
    certfile: str | None
    keyfile: str | None
