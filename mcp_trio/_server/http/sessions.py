"""The legacy sessions of a served application: by their ids, bounded, and ended when nobody comes.

An id is no proof of who somebody is (HTTP-59): a session belongs to the principal that began it.
"""

import secrets
from collections.abc import Iterator

import attrs
import trio

from mcp_trio._engine import Session
from mcp_trio._limits import Limits
from mcp_trio._protocol.http.verdicts import KnownSession
from mcp_trio._transports.http.session_channel import SessionChannel

_ID_BYTES = 32

# How often it is looked whether somebody has not come for too long.
_LOOKS_PER_EXPIRY = 10


class TooManySessionsError(Exception):
    """`http_sessions_max` are open."""


@attrs.define(eq=False)
class HttpSession:
    """A session, its channel, and whose it is; `used_at` is when a client was last heard of."""

    id: str
    channel: SessionChannel
    principal: str | None
    used_at: float
    session: Session | None = attrs.field(default=None, init=False)

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


@attrs.define(eq=False)
class Sessions:
    """See the module."""

    limits: Limits
    _open: dict[str, HttpSession] = attrs.field(factory=dict[str, HttpSession], init=False)

    def __iter__(self) -> Iterator[HttpSession]:
        return iter(tuple(self._open.values()))

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, principal: str | None, *, transport: str = "http") -> HttpSession:
        """A session with an id that nobody can guess (HTTP-45, HTTP-46, HTTP-60).

        Raises:
            TooManySessionsError: There is no place for it.
        """
        if len(self._open) >= self.limits.http_sessions_max:
            raise TooManySessionsError
        channel = SessionChannel(self.limits, transport, has_one_stream=transport != "http")
        begun = HttpSession(
            secrets.token_urlsafe(_ID_BYTES), channel, principal, trio.current_time()
        )
        self._open[begun.id] = begun
        return begun

    def used(self, session_id: str) -> HttpSession:
        """The session of an id that is known; its client is here."""
        session = self._open[session_id]
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
        self._open.pop(session.id, None)

    async def expire(self) -> None:
        """End sessions of which nobody was heard for `http_session_idle_seconds`."""
        idle_seconds = self.limits.http_session_idle_seconds
        while True:
            await trio.sleep(idle_seconds / _LOOKS_PER_EXPIRY)
            too_old = trio.current_time() - idle_seconds
            for session in self:
                if session.used_at <= too_old and session.channel.is_resting:
                    session.close()
