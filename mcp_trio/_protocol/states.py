"""The states of sessions and requests, and their transitions.

The rules of this file
----------------------
1. All protocol state moves through the three tables below and nowhere else.
2. A move that is not listed is an error. Nothing here raises on the peer's behalf: `get` of a row
   returns None, and the caller knows whose fault that is.
3. The tables do not know which side we are. They are keyed by the *role* of the sender, so both
   ends of one conversation walk the same table; each merely learns of a move at another moment.

A theory of sessions
--------------------
A legacy session is one handshake and then freedom:

    FRESH ──client initialize──▶ INITIALIZING ──server's result──▶ ANSWERED ──initialized──▶ READY
      ▲                               │
      └────────server's error─────────┘

`ping` is legal at any time in both directions (PING-01), so are answers, since they belong to a
request that was legal. Before READY the server may add only log messages (LIFE-13); before its
initialize is answered the client may add nothing but pings (LIFE-12). In ANSWERED the table is
lenient towards clients that send requests before `initialized` (TRAP-20): the server's answer has
left, both sides know the revision, and refusing would only break them.

A cancellation or a progress notification refers to a request. Whether it refers to a living one is
the request tables' business, so the session table lets both pass wherever a request can be open.

A theory of requests
--------------------
A request that we received ends exactly once. TAKEN means that it waits for a place, RUNNING that
its handler has started. CANCELLED swallows the answer of a handler that finished anyway (CANC-06);
ANSWERED swallows a cancellation that came too late (CANC-09). There is no row for a second answer.

A request that we sent ends exactly once too. ABANDONED means that nobody waits any more, because
its caller left or a budget ran out; a late answer is then legal and only counted (CANC-08).

A modern request needs no session: it says by itself what a handshake would have settled, so it is
legal as long as the channel is open, whatever else happens on that, and it moves nothing. That is
STATELESS, also for what a server tells about such a request.

What is ugly: INITIALIZE and INITIALIZED are methods among others on the wire, yet inputs of their
own here, because only they move the session. The method table names each method's input.
"""

import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final


class _Identical(enum.Enum):
    """Members hash by identity: enum's own hash is Python code, and every message asks a table."""

    if not TYPE_CHECKING:  # type checkers take an assigned hash for none at all
        __hash__ = object.__hash__


class Role(_Identical):
    """Who sends: the two ends of a conversation."""

    CLIENT = "client"
    SERVER = "server"

    @property
    def peer(self) -> "Role":
        """The other end."""
        return Role.SERVER if self is Role.CLIENT else Role.CLIENT


class SessionState(_Identical):
    """How far the handshake has come."""

    FRESH = enum.auto()
    INITIALIZING = enum.auto()
    ANSWERED = enum.auto()
    READY = enum.auto()
    CLOSED = enum.auto()


class SessionTrigger(_Identical):
    """What a message is to the session table."""

    INITIALIZE = enum.auto()
    INITIALIZE_RESULT = enum.auto()
    INITIALIZE_ERROR = enum.auto()
    INITIALIZED = enum.auto()
    PING = enum.auto()
    LOG = enum.auto()
    REFERENCE = enum.auto()  # a notification about a request: cancelled, progress
    REQUEST = enum.auto()
    NOTIFICATION = enum.auto()
    STATELESS = enum.auto()  # carries its metadata, or belongs to a request that did
    ANSWER = enum.auto()
    CLOSE = enum.auto()


_S, _I, _C = SessionState, SessionTrigger, Role.CLIENT
_V = Role.SERVER

SESSION_TRANSITIONS: Final[
    Mapping[SessionState, Mapping[tuple[Role, SessionTrigger], SessionState]]
] = {
    SessionState.FRESH: {
        (_C, _I.INITIALIZE): _S.INITIALIZING,
        (_C, _I.PING): _S.FRESH,
        (_V, _I.PING): _S.FRESH,
        (_V, _I.LOG): _S.FRESH,
        (_C, _I.STATELESS): _S.FRESH,
        (_V, _I.STATELESS): _S.FRESH,
        (_C, _I.ANSWER): _S.FRESH,
        (_V, _I.ANSWER): _S.FRESH,
        (_C, _I.REFERENCE): _S.FRESH,
        (_V, _I.REFERENCE): _S.FRESH,
        (_C, _I.CLOSE): _S.CLOSED,
        (_V, _I.CLOSE): _S.CLOSED,
    },
    SessionState.INITIALIZING: {
        (_V, _I.INITIALIZE_RESULT): _S.ANSWERED,
        (_V, _I.INITIALIZE_ERROR): _S.FRESH,
        (_C, _I.PING): _S.INITIALIZING,
        (_V, _I.PING): _S.INITIALIZING,
        (_V, _I.LOG): _S.INITIALIZING,
        (_C, _I.STATELESS): _S.INITIALIZING,
        (_V, _I.STATELESS): _S.INITIALIZING,
        (_C, _I.ANSWER): _S.INITIALIZING,
        (_V, _I.ANSWER): _S.INITIALIZING,
        (_C, _I.REFERENCE): _S.INITIALIZING,
        (_V, _I.REFERENCE): _S.INITIALIZING,
        (_C, _I.CLOSE): _S.CLOSED,
        (_V, _I.CLOSE): _S.CLOSED,
    },
    SessionState.ANSWERED: {
        (_C, _I.INITIALIZED): _S.READY,
        (_C, _I.PING): _S.ANSWERED,
        (_V, _I.PING): _S.ANSWERED,
        (_V, _I.LOG): _S.ANSWERED,
        (_C, _I.REQUEST): _S.ANSWERED,
        (_C, _I.NOTIFICATION): _S.ANSWERED,
        (_C, _I.STATELESS): _S.ANSWERED,
        (_V, _I.STATELESS): _S.ANSWERED,
        (_C, _I.ANSWER): _S.ANSWERED,
        (_V, _I.ANSWER): _S.ANSWERED,
        (_C, _I.REFERENCE): _S.ANSWERED,
        (_V, _I.REFERENCE): _S.ANSWERED,
        (_C, _I.CLOSE): _S.CLOSED,
        (_V, _I.CLOSE): _S.CLOSED,
    },
    SessionState.READY: {
        (_C, _I.PING): _S.READY,
        (_V, _I.PING): _S.READY,
        (_V, _I.LOG): _S.READY,
        (_C, _I.REQUEST): _S.READY,
        (_V, _I.REQUEST): _S.READY,
        (_C, _I.NOTIFICATION): _S.READY,
        (_V, _I.NOTIFICATION): _S.READY,
        (_C, _I.STATELESS): _S.READY,
        (_V, _I.STATELESS): _S.READY,
        (_C, _I.ANSWER): _S.READY,
        (_V, _I.ANSWER): _S.READY,
        (_C, _I.REFERENCE): _S.READY,
        (_V, _I.REFERENCE): _S.READY,
        (_C, _I.CLOSE): _S.CLOSED,
        (_V, _I.CLOSE): _S.CLOSED,
    },
    SessionState.CLOSED: {},
}


class IncomingState(_Identical):
    """The life of a request that we received."""

    RECEIVED = enum.auto()
    RUNNING = enum.auto()
    ANSWERED = enum.auto()
    CANCELLED = enum.auto()


class IncomingTrigger(_Identical):
    """What happens to a request that we received."""

    START = enum.auto()
    ANSWER = enum.auto()
    CANCEL = enum.auto()


INCOMING_TRANSITIONS: Final[Mapping[IncomingState, Mapping[IncomingTrigger, IncomingState]]] = {
    IncomingState.RECEIVED: {
        IncomingTrigger.START: IncomingState.RUNNING,
        IncomingTrigger.ANSWER: IncomingState.ANSWERED,  # refused without having run
        IncomingTrigger.CANCEL: IncomingState.CANCELLED,
    },
    IncomingState.RUNNING: {
        IncomingTrigger.ANSWER: IncomingState.ANSWERED,
        IncomingTrigger.CANCEL: IncomingState.CANCELLED,
    },
    IncomingState.ANSWERED: {
        IncomingTrigger.CANCEL: IncomingState.ANSWERED,
    },
    IncomingState.CANCELLED: {
        IncomingTrigger.ANSWER: IncomingState.CANCELLED,
        IncomingTrigger.CANCEL: IncomingState.CANCELLED,
    },
}


class OutgoingState(_Identical):
    """The life of a request that we sent."""

    SENT = enum.auto()
    ANSWERED = enum.auto()
    ABANDONED = enum.auto()
    LOST = enum.auto()


class OutgoingTrigger(_Identical):
    """What happens to a request that we sent."""

    ANSWER = enum.auto()
    ABANDON = enum.auto()
    LOSE = enum.auto()


OUTGOING_TRANSITIONS: Final[Mapping[OutgoingState, Mapping[OutgoingTrigger, OutgoingState]]] = {
    OutgoingState.SENT: {
        OutgoingTrigger.ANSWER: OutgoingState.ANSWERED,
        OutgoingTrigger.ABANDON: OutgoingState.ABANDONED,
        OutgoingTrigger.LOSE: OutgoingState.LOST,
    },
    OutgoingState.ANSWERED: {
        OutgoingTrigger.ABANDON: OutgoingState.ANSWERED,  # the caller left after the response
        OutgoingTrigger.LOSE: OutgoingState.ANSWERED,
    },
    OutgoingState.ABANDONED: {
        OutgoingTrigger.ANSWER: OutgoingState.ABANDONED,  # late: counted
        OutgoingTrigger.ABANDON: OutgoingState.ABANDONED,
        OutgoingTrigger.LOSE: OutgoingState.ABANDONED,
    },
    OutgoingState.LOST: {
        OutgoingTrigger.ABANDON: OutgoingState.LOST,
        OutgoingTrigger.LOSE: OutgoingState.LOST,
    },
}
