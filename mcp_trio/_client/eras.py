"""Which era a server is of: a client that speaks both asks in the modern way first.

What is expected of each pair:

    client       legacy server    server of both    modern server
    legacy       handshake        handshake         refused, with the server's revisions
    both         handshake        modern            modern
    modern       error            modern            modern

Only the codes that modern revisions define tell that a server is modern. Any other error, silence,
and a result that is none tell that it is not (VER-15, VER-16, TRAP-23). What was found out holds
for the session, which is the life of the process (VER-08), and over the web for those that come
later (see `era_memory`). A server that was silent may have been slow: if it then refuses the
handshake as a modern one does, or has answered by then, it is asked again.
"""

from collections.abc import Sequence
from typing import Final, TypeAlias, cast

from mcp_trio._engine import Session
from mcp_trio._errors import (
    UNSUPPORTED_PROTOCOL_VERSION,
    RemoteProtocolError,
    RequestError,
    RequestTimeout,
)
from mcp_trio._protocol import DISCOVER, MODERN_CODES, named_in, newest
from mcp_trio._schema import DiscoverResult

_COMPLETE: Final = (None, "complete")

_Reply: TypeAlias = DiscoverResult | RequestError | RequestTimeout | RemoteProtocolError


def speaks_modern(revisions: Sequence[str]) -> bool:
    """Whether there is one among them that has no handshake."""
    return newest(revisions, has_handshake=False) is not None


def speaks_legacy(revisions: Sequence[str]) -> bool:
    """Whether there is one among them that has a handshake."""
    return newest(revisions, has_handshake=True) is not None


async def discovered(session: Session) -> bool:
    """Ask the server what it speaks; False when the handshake is the way to go on with it.

    Raises:
        RemoteProtocolError: There is no revision that both sides speak.
        RequestError: It is modern, and refuses for another reason.
        RequestTimeout: It is silent, and there is no handshake to try instead.
        ConnectionLost: It has ended.
    """
    ours = session.connection.revisions
    reply = await _probe(session)
    if _names_ours(session, reply):
        reply = await _probe(session)
    supported = _supported(reply)
    if supported is None:
        if not speaks_legacy(ours):
            raise _unfit(session, cast("Exception", reply))
        return False
    if isinstance(reply, DiscoverResult) and session.connection.choose(supported) is not None:
        session.accept(reply)
        return True
    if speaks_legacy([name for name in ours if name in supported]):
        return False
    raise _refusal(reply, supported, ours)


async def shaken_hands(session: Session) -> bool:
    """Shake hands; False when the server is a modern one after all, and that is settled.

    Raises:
        RequestError: It refuses.
        MCPError: As `Session.initialize`.
    """
    try:
        await session.initialize()
    except RequestError as refusal:
        if not (_may_be_modern(session, refusal) and await _is_discovered(session)):
            raise
        return False
    return True


def _may_be_modern(session: Session, refusal: RequestError) -> bool:
    """Whether there is reason to ask again; before the handshake, only the question can be late."""
    connection = session.connection
    has_reason = refusal.code in MODERN_CODES or connection.counts["late answer"] > 0
    return has_reason and speaks_modern(connection.revisions)


async def _is_discovered(session: Session) -> bool:
    reply = await _probe(session)
    if not isinstance(reply, DiscoverResult):
        return False
    if session.connection.choose(reply.supported_versions) is None:
        return False
    session.accept(reply)
    return True


async def _probe(session: Session) -> _Reply:
    """What the server answers; if there is no handshake to try instead, it has the time of one."""
    limits = session.connection.limits
    has_other_way = speaks_legacy(session.connection.revisions)
    seconds = limits.probe_seconds if has_other_way else limits.initialize_seconds
    try:
        result = await session.discover(seconds)
    except (RequestError, RequestTimeout, RemoteProtocolError) as error:
        return error
    if result.result_type not in _COMPLETE:
        return RemoteProtocolError(f"{DISCOVER}: a result of an unknown kind: {result.result_type}")
    return result


def _supported(reply: _Reply) -> Sequence[str] | None:
    """What the server says that it speaks; None when nothing tells that it is modern."""
    if isinstance(reply, DiscoverResult):
        return reply.supported_versions
    if isinstance(reply, RequestError) and reply.code in MODERN_CODES:
        return named_in(reply.data)
    return None


def _names_ours(session: Session, reply: _Reply) -> bool:
    """Whether a refused revision is worth another try: the server names a modern one of ours.

    As long as there is only one of these it is the one that was refused, by a server that was not
    yet what it is now, or stands behind others that are not (VER-03).
    """
    is_refusal = isinstance(reply, RequestError) and reply.code == UNSUPPORTED_PROTOCOL_VERSION
    return is_refusal and session.connection.choose(_supported(reply) or ()) is not None


def _unfit(session: Session, reply: Exception) -> Exception:
    """Why a client that speaks modern revisions only cannot go on with a legacy server (VER-17)."""
    limits = session.connection.limits
    if isinstance(reply, RequestTimeout):
        return RequestTimeout(DISCOVER, "total", limits.initialize_seconds, "initialize_seconds")
    ours = ", ".join(session.connection.revisions)
    error = RemoteProtocolError(f"the server does not speak {ours}: {reply}")
    error.__cause__ = reply
    return error


def _refusal(reply: _Reply, supported: Sequence[str], ours: Sequence[str]) -> Exception:
    names_ours = any(name in ours for name in supported)
    if isinstance(reply, RequestError) and (names_ours or not supported):
        return reply  # its own words say more
    named = ", ".join(supported) or "nothing"
    return RemoteProtocolError(f"the server speaks {named}; known here: {', '.join(ours)}")
