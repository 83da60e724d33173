"""What a served application keeps, behind small interfaces; in its process's memory by default.

What several machines that serve together would have to share is no more than this: the events that
a client comes back for, what is known of its session, and that something has changed. A session
itself, its handlers and their questions, live in one process: requests of legacy clients have to be
routed by `Mcp-Session-Id`. Modern requests need no such routing.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Protocol

import attrs

from mcp_trio import _schema as s
from mcp_trio._protocol.http.event_store import EventStore
from mcp_trio._protocol.peers import Capabilities
from mcp_trio._server.announcements import Notice, Tell


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
    revision: str
    client: s.Implementation | None
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
            has a `ReplayBuffer` within `http_events_kept_max` and `http_bytes_kept_max`.
        sessions: Which sessions there are.
        changes: Who else is to hear of changes.
    """

    events: Callable[[str], EventStore] | None = None
    sessions: SessionStore = attrs.field(factory=MemorySessions)
    changes: Changes = attrs.field(factory=MemoryChanges)
