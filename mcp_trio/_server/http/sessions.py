"""The legacy sessions of a served application: by their ids, bounded, and ended when nobody comes.

A session of whose client nothing was heard but the `initialize` is unused. It ends sooner, and if
there are too many sessions, for another one: who only begins sessions keeps nobody out.

An id is no proof of who somebody is (HTTP-59): a session belongs to the principal that began it.
"""

import secrets
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Protocol

import attrs
import trio

from mcp_trio._limits import Limits
from mcp_trio._protocol import Revision
from mcp_trio._protocol.http.verdicts import KnownSession
from mcp_trio._protocol.peers import Capabilities
from mcp_trio._schema import Implementation
from mcp_trio._server.http.stores import HttpStores, SessionFacts
from mcp_trio._transports.bell import Milestone
from mcp_trio._transports.http.session_channel import SessionChannel

_ID_BYTES = 32

# How often it is looked whether somebody has not come for too long.
_LOOKS_PER_EXPIRY = 10


class TooManySessionsError(Exception):
    """`http_sessions_max` are open."""


class Agreed(Protocol):
    """What the two sides of a session have agreed on."""

    @property
    def revision(self) -> Revision | None:
        """The revision that is spoken; None before the handshake."""
        ...

    @property
    def peer_info(self) -> Implementation | None:
        """The name of the client, if it is known."""
        ...

    @property
    def peer_capabilities(self) -> Capabilities | None:
        """What the client can do, if that is known."""
        ...


class RunningSession(Protocol):
    """A session that somebody runs: an engine's `Session`, or one that plays a recording.

    `closing` is set when it begins to end, `negotiated` when the handshake has been answered.
    """

    closing: Milestone
    negotiated: Milestone

    @property
    def connection(self) -> Agreed:
        """What was agreed on."""
        ...

    @property
    def has_begun(self) -> bool:
        """Whether the client has said who it is."""
        ...

    def shut(self, cause: str) -> None:
        """Begin to end it; see `Session.shut`."""
        ...


@attrs.define(eq=False)
class HttpSession:
    """A session, its channel, and whose it is; `used_at` is when a client was last heard of."""

    id: str
    channel: SessionChannel
    principal: str | None
    used_at: float
    _among: "Sessions"
    session: RunningSession | None = attrs.field(default=None, init=False)

    @property
    def is_resting(self) -> bool:
        """Whether it has begun, and its client waits for nothing and listens to nothing."""
        return self.session is not None and self.channel.is_resting

    @property
    def is_closed(self) -> bool:
        """Whether it has begun to end."""
        return self.session is not None and self.session.closing.is_set()

    @property
    def is_negotiated(self) -> bool:
        """Whether the handshake has been answered."""
        return self.session is not None and self.session.negotiated.is_set()

    @property
    def primes_streams(self) -> bool:
        """Whether its client knows of events without a message (TRAP-37)."""
        revision = None if self.session is None else self.session.connection.revision
        return revision is not None and revision.primes_streams

    def close(self) -> None:
        """The client is done, or was too long away."""
        assert self.session is not None
        self.session.shut("closed")

    def forget(self) -> None:
        """It has ended."""
        self._among.forget(self)


@attrs.define(eq=False)
class Sessions:
    """See the module; `stores` is what others may know of them."""

    limits: Limits
    stores: HttpStores = attrs.field(factory=HttpStores)
    _open: dict[str, HttpSession] = attrs.field(factory=dict[str, HttpSession], init=False)
    _unused: dict[str, HttpSession] = attrs.field(factory=dict[str, HttpSession], init=False)
    _connected: int = attrs.field(default=0, init=False)

    def __iter__(self) -> Iterator[HttpSession]:
        return iter(tuple(self._open.values()))

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, principal: str | None, *, transport: str = "http") -> HttpSession:
        """A session with an id that nobody can guess (HTTP-45, HTTP-46, HTTP-60).

        Raises:
            TooManySessionsError: There is no place for it.
        """
        self._make_room()
        session_id, make = secrets.token_urlsafe(_ID_BYTES), self.stores.events
        channel = SessionChannel(
            self.limits,
            transport,
            has_one_stream=transport != "http",
            principal=principal,
            events=None if make is None else make(session_id),
        )
        begun = HttpSession(session_id, channel, principal, trio.current_time(), self)
        self._open[begun.id] = self._unused[begun.id] = begun
        return begun

    def agreed(self, session: HttpSession) -> None:
        """The handshake has been answered: others may know of the session from now on."""
        assert session.session is not None
        connection = session.session.connection
        assert connection.revision is not None
        facts = SessionFacts(
            principal=session.principal,
            revision=connection.revision.name,
            client=connection.peer_info,
            capabilities=connection.peer_capabilities,
        )
        self.stores.sessions.keep(session.id, facts)

    async def is_elsewhere(self, session_id: str, principal: str | None) -> bool:
        """Whether somebody's session of that id lives, but not here; none that is ending does."""
        if session_id in self._open:
            return False
        facts = await self.stores.sessions.find(session_id)
        return facts is not None and facts.principal == principal

    @contextmanager
    def place(self) -> Generator[None]:
        """The place of a session that is a connection, and has neither id nor channel here.

        Raises:
            TooManySessionsError: There is none.
        """
        self._make_room()
        self._connected += 1
        try:
            yield
        finally:
            self._connected -= 1

    def _make_room(self) -> None:
        """If it is needed, the unused session that has rested longest ends.

        Raises:
            TooManySessionsError: There is none.
        """
        if len(self._open) + self._connected < self.limits.http_sessions_max:
            return
        unused = next((each for each in self._unused.values() if each.is_resting), None)
        if unused is None:
            raise TooManySessionsError
        unused.close()
        self.forget(unused)

    def used(self, session_id: str) -> HttpSession:
        """The session of an id that is known; its client is here."""
        session = self._open[session_id]
        self._unused.pop(session_id, None)
        session.used_at = trio.current_time()
        return session

    def known(self, session_id: str, *, transport: str = "http") -> KnownSession | None:
        """What a verdict needs to know of it; None once it has ended, or if it goes another way."""
        found = self._open.get(session_id)
        if found is None or found.is_closed or found.channel.transport != transport:
            return None
        connection = None if found.session is None else found.session.connection
        return KnownSession(None if connection is None else connection.revision, found.principal)

    def forget(self, session: HttpSession) -> None:
        """It has ended (HTTP-51)."""
        if self._open.pop(session.id, None) is not None:
            self._unused.pop(session.id, None)
            self.stores.sessions.forget(session.id)

    async def expire(self) -> None:
        """End sessions of which nobody was heard for `http_session_idle_seconds`.

        Unused ones end after `http_session_unused_seconds`.
        """
        unused_seconds = self.limits.http_session_unused_seconds
        look_seconds = min(unused_seconds, self.limits.http_session_idle_seconds)
        while True:
            await trio.sleep(look_seconds / _LOOKS_PER_EXPIRY)
            self._end_forgotten(trio.current_time())

    def _end_forgotten(self, now: float) -> None:
        """What this looked at must not outlive the look, so the loop is no part of the task."""
        idle_seconds = self.limits.http_session_idle_seconds
        unused_seconds = min(idle_seconds, self.limits.http_session_unused_seconds)
        for session in self:
            seconds = unused_seconds if session.id in self._unused else idle_seconds
            if session.used_at <= now - seconds and session.is_resting:
                session.close()
