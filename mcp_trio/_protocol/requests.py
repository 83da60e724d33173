"""Open requests in both directions: their ids, states, queue, time limits and progress.

Both sides number their requests independently, so there are two tables of requests. Ids keep their
JSON type: `1` and `"1"` are different requests.

The state of a received request changes as `INCOMING_TRANSITIONS` says. RECEIVED means that the
request waits until a handler may start, RUNNING that its handler has started. If a handler finishes
after its request was cancelled, the request stays CANCELLED and the response is discarded. If a
cancellation arrives after the response was sent, the request stays ANSWERED. The table has no
transition for a second response, so a request is answered at most once.

The state of a sent request changes as `OUTGOING_TRANSITIONS` says. ABANDONED means that no task
waits for the response, because the caller was cancelled or a time limit was exceeded; a response
that arrives later is only counted.
"""

import enum
import hashlib
from collections.abc import Collection, Mapping
from typing import Any, Final, cast

import attrs
import msgspec

from mcp_trio import types
from mcp_trio._jsonrpc.messages import Malformed
from mcp_trio._protocol.empty import NO_ITEMS
from mcp_trio._protocol.metadata import UNKNOWN_PEER, Peer
from mcp_trio._protocol.methods import FastEnum, Method
from mcp_trio._protocol.shares import Queue, Shares, shares_of
from mcp_trio.errors import INVALID_PARAMS, LocalProtocolError, RequestError
from mcp_trio.limits import Limits
from mcp_trio.types import RequestId

_INFINITY: Final = float("inf")


class IncomingState(FastEnum):
    """The state of a received request."""

    RECEIVED = enum.auto()
    RUNNING = enum.auto()
    ANSWERED = enum.auto()
    CANCELLED = enum.auto()


class IncomingTrigger(FastEnum):
    """A cause that changes the state of a received request."""

    START = enum.auto()
    RESPOND = enum.auto()
    CANCEL = enum.auto()


INCOMING_TRANSITIONS: Final[Mapping[IncomingState, Mapping[IncomingTrigger, IncomingState]]] = {
    IncomingState.RECEIVED: {
        IncomingTrigger.START: IncomingState.RUNNING,
        IncomingTrigger.RESPOND: IncomingState.ANSWERED,  # rejected before its handler started
        IncomingTrigger.CANCEL: IncomingState.CANCELLED,
    },
    IncomingState.RUNNING: {
        IncomingTrigger.RESPOND: IncomingState.ANSWERED,
        IncomingTrigger.CANCEL: IncomingState.CANCELLED,
    },
    IncomingState.ANSWERED: {
        IncomingTrigger.CANCEL: IncomingState.ANSWERED,
    },
    IncomingState.CANCELLED: {
        IncomingTrigger.RESPOND: IncomingState.CANCELLED,
        IncomingTrigger.CANCEL: IncomingState.CANCELLED,
    },
}


class OutgoingState(FastEnum):
    """The state of a sent request."""

    SENT = enum.auto()
    ANSWERED = enum.auto()
    ABANDONED = enum.auto()
    LOST = enum.auto()


class OutgoingTrigger(FastEnum):
    """A cause that changes the state of a sent request."""

    RESPOND = enum.auto()
    ABANDON = enum.auto()
    LOSE = enum.auto()


OUTGOING_TRANSITIONS: Final[Mapping[OutgoingState, Mapping[OutgoingTrigger, OutgoingState]]] = {
    OutgoingState.SENT: {
        OutgoingTrigger.RESPOND: OutgoingState.ANSWERED,
        OutgoingTrigger.ABANDON: OutgoingState.ABANDONED,
        OutgoingTrigger.LOSE: OutgoingState.LOST,
    },
    OutgoingState.ANSWERED: {
        OutgoingTrigger.ABANDON: OutgoingState.ANSWERED,  # the caller was cancelled afterwards
        OutgoingTrigger.LOSE: OutgoingState.ANSWERED,
    },
    OutgoingState.ABANDONED: {
        OutgoingTrigger.RESPOND: OutgoingState.ABANDONED,  # late, and counted
        OutgoingTrigger.ABANDON: OutgoingState.ABANDONED,
        OutgoingTrigger.LOSE: OutgoingState.ABANDONED,
    },
    OutgoingState.LOST: {
        OutgoingTrigger.ABANDON: OutgoingState.LOST,
        OutgoingTrigger.LOSE: OutgoingState.LOST,
    },
}


# Received requests.

# Reading a member from its enumeration is slow in CPython 3.11: it calls a function in Python.
_RUNNING: Final = IncomingState.RUNNING
_RESPOND: Final = OutgoingTrigger.RESPOND


class IncomingRequest(msgspec.Struct, gc=False, eq=False):
    """A received request.

    Attributes:
        id: The id that the peer chose.
        method: The entry of its method in `METHODS`.
        params: The typed params.
        size_bytes: The size of the message.
        progress_token: The token for progress notifications; None if the peer wants none.
        peer: The sender.
        client_key: The key of the client whose share of the limits the request takes (`shares.py`):
            its principal, or a number that the channel gives to each address.
        progress_last: The last progress that was reported; the next one must be greater. Before
            the first one, it is less than any other number.
        state: The state.
        observation: What the observers of the session noted at its beginning; None without any.
        handling: The session's object for the handler, from the start to the response.
    """

    id: RequestId
    method: Method
    params: Any
    size_bytes: int = 0
    progress_token: RequestId | None = None
    peer: Peer = UNKNOWN_PEER
    client_key: str | int = 0
    progress_last: float = -_INFINITY
    state: IncomingState = IncomingState.RECEIVED
    observation: Any = None
    handling: Any = None

    @property
    def has_rounds(self) -> bool:
        """True if the result of the request may ask for input, which a retry of it then contains.

        A method of the user's own has such retries only if its params have the members
        `inputResponses` and `requestState`.
        """
        method = self.method
        if not method.has_rounds:
            return False
        return not method.is_custom or isinstance(self.params, types.InputResponseParams)

    @property
    def may_want_input(self) -> bool:
        """True if the response may be an `InputRequiredResult`."""
        return self.peer.protocol_version.is_stateless and self.has_rounds

    def move(self, trigger: IncomingTrigger) -> IncomingState:
        """Change the state as the table says, and return it.

        Raises:
            LocalProtocolError: The table has no such transition, for example for a second response.
        """
        try:
            self.state = INCOMING_TRANSITIONS[self.state][trigger]
        except KeyError:
            raise LocalProtocolError(
                f"request {self.id!r} ({self.method.name}) is {self.state.name}:"
                f" {trigger.name} is not possible any more"
            ) from None
        return self.state

    def report(
        self, progress: float, total: float | None, message: str | None
    ) -> types.ProgressParams | None:
        """Return the params of a progress notification.

        Returns:
            None if it must not be sent: there is no token, the request is not running, or the value
            has not increased.

        Raises:
            LocalProtocolError: A number is NaN or infinite, which JSON cannot express.
        """
        # A comparison also works for integers for which `math.isfinite` raises OverflowError.
        has_increased = self.progress_last < progress < _INFINITY
        if not (has_increased or -_INFINITY < progress < _INFINITY):
            raise LocalProtocolError(f"progress must be a finite number, not {progress}")
        if total is not None and not -_INFINITY < total < _INFINITY:
            raise LocalProtocolError(f"progress must be a finite number, not {total}")
        if self.progress_token is None or self.state is not _RUNNING or not has_increased:
            return None
        self.progress_last = progress
        return types.ProgressParams(
            progress_token=self.progress_token, progress=progress, total=total, message=message
        )


class _WaitingRequests(msgspec.Struct, eq=False):
    """The queue of requests that wait for a place, and the shares that bound it."""

    queue: Queue[IncomingRequest]
    queued: Shares
    queued_bytes: Shares


@attrs.define(eq=False, repr=False)
class Admission:
    """The limit on running handlers, and the queue of requests that wait for a handler to start.

    A running handler has one of `limits.requests.in_flight_max` *places* (`enter`, `leave`). A
    request that waits has *room*, which is bounded by count and by bytes, for each client and for
    all of them (`reserve_room`, `free_room`). Most of these requests wait for a place, in the queue
    (`enqueue`, `withdraw`); some wait for the response to another request, outside of the queue. No
    method blocks.
    """

    limits: Limits
    _places: Shares = attrs.field(init=False)
    _waiting: _WaitingRequests | None = attrs.field(default=None, init=False)  # None: no queue

    def __attrs_post_init__(self) -> None:
        self._places = shares_of("limits.requests.in_flight_max", self.limits)

    @property
    def running(self) -> int:
        """The number of places that are taken."""
        return self._places.total

    @property
    def queued(self) -> int:
        """The number of requests that wait, in the queue or outside of it."""
        return 0 if self._waiting is None else self._waiting.queued.total

    def enter_if_free(self, request: IncomingRequest) -> bool:
        """Take a place for a new request if it may run at once; return whether it has one."""
        if self._waiting is None:
            return self._places.take_if_free(request.client_key)
        may_start = self._waiting.queue.may_start(request.client_key)
        if may_start:
            self._waiting.queue.enter(request.client_key)
        return may_start

    def enter(self, request: IncomingRequest) -> None:
        """Take a place for the handler of a request."""
        if self._waiting is None:
            self._places.take(request.client_key)
        else:
            self._waiting.queue.enter(request.client_key)

    def rejection(self, request: IncomingRequest) -> str | None:
        """Return why there is no room for a request, with the setting; None if there is."""
        waiting = self._waiting or self._empty_queue()
        exceeded = waiting.queued.exceeded(request.client_key)
        if exceeded is not None:
            return f"too many requests wait{exceeded}"
        exceeded = waiting.queued_bytes.exceeded(request.client_key, request.size_bytes)
        return None if exceeded is None else f"the requests that wait are too large{exceeded}"

    def _empty_queue(self) -> _WaitingRequests:
        return _WaitingRequests(
            Queue(self._places),
            shares_of("limits.requests.queued_max", self.limits),
            shares_of("limits.requests.queued_bytes_max", self.limits),
        )

    def enqueue(self, request: IncomingRequest) -> None:
        """Add a request to the queue; the caller has checked `rejection`."""
        self.reserve_room(request)
        assert self._waiting is not None
        self._waiting.queue.wait(request.client_key, request)

    def reserve_room(self, request: IncomingRequest) -> None:
        """Take room for a request that waits for the response to another one, and for no place.

        The caller has checked `rejection`, and calls `free_room` when the wait is over.
        """
        waiting = self._waiting = self._waiting or self._empty_queue()
        waiting.queued.take(request.client_key)
        waiting.queued_bytes.take(request.client_key, request.size_bytes)

    def free_room(self, request: IncomingRequest) -> None:
        """Give back the room of a request that no longer waits."""
        waiting = self._waiting
        assert waiting is not None
        waiting.queued.give_back(request.client_key)
        waiting.queued_bytes.give_back(request.client_key, request.size_bytes)
        if not waiting.queued.total:
            self._waiting = None

    def leave(self, request: IncomingRequest) -> IncomingRequest | None:
        """Give back the place of the handler of a request.

        Returns:
            The request that may run now. It is no longer in the queue; call `enter` for it.
        """
        if self._waiting is None:
            self._places.give_back(request.client_key)
            return None
        following = self._waiting.queue.leave(request.client_key)
        if following is not None:
            self.free_room(following)
        return following

    def withdraw(self, request: IncomingRequest) -> bool:
        """Remove a cancelled request from the queue; return whether it was there."""
        waiting = self._waiting
        if waiting is None or not waiting.queue.withdraw(request.client_key, request):
            return False
        self.free_room(request)
        return True

    def withdraw_all(self) -> list[IncomingRequest]:
        """Empty the queue at the end of the session; return the requests, which never run."""
        requests = [] if self._waiting is None else self._waiting.queue.withdraw_all()
        for request in requests:
            self.free_room(request)
        return requests


# Sent requests.


class Budget(msgspec.Struct, kw_only=True, gc=False, eq=False):
    """The time limits of a sent request, in seconds on any clock. Either may be infinite.

    Attributes:
        started: The time at which the request was sent.
        idle_seconds: The limit on the time since the last activity, or since the start.
        total_seconds: The limit on the time since the start.
        last_activity: The time of the last progress notification; None before the first.
    """

    started: float
    idle_seconds: float
    total_seconds: float
    last_activity: float | None = None

    @property
    def deadline(self) -> float:
        """The time at which the first of the two limits is exceeded."""
        if self.last_activity is None:
            return self.started + min(self.idle_seconds, self.total_seconds)
        return min(self.last_activity + self.idle_seconds, self.started + self.total_seconds)

    def postpone(self, seconds: float) -> None:
        """Move both limits by the time for which they were paused, for example during a login."""
        self.started += seconds
        if self.last_activity is not None:
            self.last_activity += seconds

    def expired(self, now: float) -> str | None:
        """Return the limit that is exceeded at `now`: "total", "idle" or None."""
        if now >= self.started + self.total_seconds:
            return "total"
        last_activity = self.started if self.last_activity is None else self.last_activity
        return "idle" if now >= last_activity + self.idle_seconds else None


class OutgoingRequest(msgspec.Struct, gc=False, eq=False):
    """A sent request; `message` is the encoded request."""

    id: int
    method: Method
    message: bytes
    budget: Budget
    wants_progress: bool = False
    state: OutgoingState = OutgoingState.SENT

    def move(self, trigger: OutgoingTrigger) -> OutgoingState:
        """Change the state as the table says, and return it.

        Raises:
            LocalProtocolError: The table has no such transition, which is a bug of this package.
        """
        try:
            self.state = OUTGOING_TRANSITIONS[self.state][trigger]
        except KeyError:
            raise LocalProtocolError(
                f"sent request {self.id} ({self.method.name}) is {self.state.name}:"
                f" {trigger.name} is not possible any more"
            ) from None
        return self.state


@attrs.define(kw_only=True, eq=False, repr=False)
class OutgoingRequests:
    """The sent requests that are open, and the last abandoned ones, whose responses may still come.

    At most `remembered_max` abandoned requests are remembered.
    """

    remembered_max: int
    _next_id: int = attrs.field(default=0, init=False)
    _open: dict[int, OutgoingRequest] = attrs.field(default=NO_ITEMS, init=False)
    _abandoned: dict[int, OutgoingRequest] = attrs.field(default=NO_ITEMS, init=False)

    def __len__(self) -> int:
        return len(self._open)

    def next_id(self) -> int:
        """Return an id that was not used before in this session."""
        self._next_id += 1
        return self._next_id

    def set_next_id(self, request_id: int) -> None:
        """Let `next_id` return this id next.

        A replay that leaves out requests calls this to continue with the recorded ids. An abandoned
        request with this id is one of those that were left out, so it is forgotten.
        """
        self._next_id = request_id - 1
        self._abandoned.pop(request_id, None)

    def add(self, request: OutgoingRequest) -> None:
        """Add a request whose message is about to be sent."""
        if not self._open:
            self._open = {}
        self._open[request.id] = request

    def get(self, request_id: RequestId | None) -> OutgoingRequest | None:
        """Return the open request with exactly this id; this side uses only integers as ids."""
        return self._open.get(request_id) if isinstance(request_id, int) else None

    @property
    def waiting(self) -> list[int]:
        """The ids of the open requests except subscriptions, which are answered at their end."""
        return [each.id for each in self._open.values() if not each.method.is_subscription]

    def finish(self, request_id: RequestId | None) -> OutgoingRequest | None:
        """Remove and return the open request that a response ends, if there is one."""
        request = self.get(request_id)
        if request is not None:
            del self._open[request.id]
            request.move(_RESPOND)
        return request

    def forget_abandoned(self, request_id: RequestId | None) -> bool:
        """Forget the abandoned request of a late response; return whether there is one."""
        late = self._abandoned.pop(request_id, None) if isinstance(request_id, int) else None
        if late is not None:
            late.move(OutgoingTrigger.RESPOND)
        return late is not None

    def abandon(self, request: OutgoingRequest) -> bool:
        """Stop waiting for a response; return whether the request was open."""
        request.move(OutgoingTrigger.ABANDON)
        if self._open.pop(request.id, None) is None:
            return False
        request.message = b""  # only the id has to be remembered; the message may be large
        if not self._abandoned:
            self._abandoned = {}
        self._abandoned[request.id] = request
        while len(self._abandoned) > self.remembered_max:
            del self._abandoned[next(iter(self._abandoned))]
        return True

    def lose_all(self) -> list[OutgoingRequest]:
        """End all open requests, because the channel is closed; return them."""
        lost = list(self._open.values())
        self._open.clear()
        for request in lost:
            request.move(OutgoingTrigger.LOSE)
        return lost


def response_id_of(message: Malformed) -> RequestId | None:
    """Return the id of the request that a malformed message responds to, if any.

    Return None for an incomplete message: it is the last message of a peer that has failed, and the
    connection loss that is reported next is the better error for the request.
    """
    return message.id if message.is_complete and not message.is_request else None


def oversized_response_id(beginning: Malformed, waiting: Collection[RequestId]) -> RequestId | None:
    """Return the id of the request that an oversized message responds to, if any.

    Some peers write the id at the end of a message, so that its `beginning` has none; it must then
    be the id of the only waiting request, if there is only one.
    """
    if beginning.is_request:
        return None
    if beginning.id is None and len(waiting) == 1:
        return next(iter(waiting))
    return beginning.id


# The param `requestState`, with which a client continues a stateless request.
#
# https://modelcontextprotocol.io/specification/2026-07-28/basic/patterns/mrtr
#
# A client returns `requestState` with its input responses, but anyone may send a value that was
# copied or invented. So a value is valid only for the request that it was made for, and the error
# for an invalid one does not say what is wrong with it.

SUSPENDED_PREFIX: Final = "suspended."
"""The prefix of the value for a handler that waits in this process; others are encrypted."""

# The params that a client may change when it retries a request.
_NOT_REPEATED: Final = ("_meta", "inputResponses", "requestState")

_encode_sorted: Final = msgspec.json.Encoder(order="sorted").encode


def invalid_state_error() -> RequestError:
    """Return the error for a `requestState` that fails any check."""
    return RequestError(INVALID_PARAMS, "the request state is not valid")


def request_digest(method: str, params: Any) -> bytes:
    """Return a digest of the parts of a request that its retries repeat: method and params.

    The digest does not depend on the order of members or on white space, unless the params contain
    values that cannot be decoded, such as numbers that are too large.
    """
    text = msgspec.json.encode(params)
    try:
        members = cast("dict[str, Any]", msgspec.json.decode(text))
        repeated = {name: value for name, value in members.items() if name not in _NOT_REPEATED}
        text = _encode_sorted(repeated)
    except (msgspec.ValidationError, RecursionError):
        pass
    return hashlib.sha256(_encode_sorted([method, len(text)]) + text).digest()
