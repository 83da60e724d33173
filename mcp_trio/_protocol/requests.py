"""Open requests in both directions: ids, admission, timeouts and progress.

The sender of a request chooses its token (PROG-02); ours is the request's id, so that one table
serves both. A null in place of a token reads as none, as everywhere.
"""

import hashlib
import math
from collections.abc import Collection
from typing import Any, Final, TypeAlias, cast

import attrs
import msgspec

from mcp_trio import types
from mcp_trio._jsonrpc.messages import Malformed
from mcp_trio._protocol.metadata import (
    PROGRESS_TOKEN,
    UNKNOWN_PEER,
    Peer,
    check_keys,
    checked_token,
    meta_of,
    with_meta,
)
from mcp_trio._protocol.methods import Method, ParamsToSend
from mcp_trio._protocol.states import (
    INCOMING_TRANSITIONS,
    OUTGOING_TRANSITIONS,
    IncomingState,
    IncomingTrigger,
    OutgoingState,
    OutgoingTrigger,
)
from mcp_trio.errors import INVALID_PARAMS, LocalProtocolError, RequestError
from mcp_trio.limits import Limits
from mcp_trio.types import InputResponseParams

# --------------------
# How long a request may take, as facts: whoever has a clock asks.


@attrs.define(kw_only=True)
class Budget:
    """A request's budgets: `idle_seconds` from the last sign of life, `total_seconds` in all.

    Either may be `math.inf`. Times are seconds on whatever clock the caller uses consistently.
    """

    started: float
    idle_seconds: float
    total_seconds: float
    last_activity: float = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.last_activity = self.started

    @property
    def deadline(self) -> float:
        """When the first of the two budgets runs out."""
        return min(self.last_activity + self.idle_seconds, self.started + self.total_seconds)

    def record_activity(self, now: float) -> None:
        """Something was heard about the request: the idle budget starts again."""
        self.last_activity = now

    def expired(self, now: float) -> str | None:
        """Which budget has run out at `now`: "total", "idle" or None."""
        if now >= self.started + self.total_seconds:
            return "total"
        if now >= self.last_activity + self.idle_seconds:
            return "idle"
        return None


# --------------------
# What the state of a modern request is bound to, and the one way to refuse it.
#
# The client brings a state back with its answers, or somebody else brings one that he has found or
# made up. So it counts only for the request that it was made for, and who brings a bad one learns
# nothing of what is wrong with it.


SUSPENDED_PREFIX: Final = "parked."
"""How the state of a handler begins that waits here; any other was sealed, or is none of ours."""

# What a retry brings anew, or has besides what it repeats.
_NOT_REPEATED: Final = ("_meta", "inputResponses", "requestState")

_encode: Final = msgspec.json.Encoder(order="sorted").encode


def invalid_state_error() -> RequestError:
    """The answer to a state that fails any check."""
    return RequestError(INVALID_PARAMS, "the request state is not valid")


def request_digest(method: str, params: Any) -> bytes:
    """A digest of what a retry repeats: its method and its params, however these are spelled.

    Params that hold what no value here can be, such as a number without end, count as they are
    spelled.
    """
    text = msgspec.json.encode(params)
    try:
        members = cast("dict[str, Any]", msgspec.json.decode(text))
        repeated = {name: value for name, value in members.items() if name not in _NOT_REPEATED}
        text = _encode(repeated)
    except (msgspec.ValidationError, RecursionError):
        pass
    return hashlib.sha256(_encode([method, len(text)]) + text).digest()


# --------------------
# Request accounting in both directions: ids are unique, each request ends exactly once.
#
# Two tables, because both sides number their requests independently (TRAP-06). Keys keep their JSON
# type: `1` and `"1"` are different requests, and the decoder lets no other type through (TRAP-04).


RequestId: TypeAlias = int | str


class IncomingRequest(msgspec.Struct, gc=False, eq=False):
    """A request that we received, and what its sender has said of itself.

    `progress_last` is what we reported last (it must grow).
    """

    id: RequestId
    method: Method
    params: Any
    size_bytes: int = 0
    progress_token: RequestId | None = None
    peer: Peer = UNKNOWN_PEER
    progress_last: float | None = None
    state: IncomingState = IncomingState.RECEIVED

    @property
    def has_rounds(self) -> bool:
        """Return whether its handler may ask by its result: then a retry of it is known as one."""
        method = self.method
        if not method.has_rounds:
            return False
        return not method.is_custom or isinstance(self.params, InputResponseParams)

    @property
    def may_want_input(self) -> bool:
        """Return whether its answer may be that input is required (MRTR-03)."""
        return self.peer.protocol_version.is_stateless and self.has_rounds

    def move(self, move: IncomingTrigger) -> IncomingState:
        """Take one row of the table.

        Raises:
            LocalProtocolError: There is no such row; a second answer, for instance.
        """
        after = INCOMING_TRANSITIONS[self.state].get(move)
        if after is None:
            raise LocalProtocolError(
                f"request {self.id!r} ({self.method.name}) is {self.state.name}:"
                f" it cannot {move.name} any more"
            )
        self.state = after
        return after


def response_id_of(bad: Malformed) -> RequestId | None:
    """Which request a frame that is no message was to answer; None: none, or nobody knows.

    One that is cut off is the last word of a peer that dies, and of its loss more will be known.
    """
    return bad.id if bad.is_complete and not bad.is_request else None


def oversized_response_id(begin: Malformed, waiting: Collection[RequestId]) -> RequestId | None:
    """Which request a frame was to answer of which only the begin is there; None as above.

    Some peers write the id behind the result. Then it is that of the one request which is
    `waiting`, if only one is.
    """
    if begin.is_request:
        return None
    if begin.id is None and len(waiting) == 1:
        return next(iter(waiting))
    return begin.id


class OutgoingRequest(msgspec.Struct, gc=False, eq=False):
    """A request that we sent, its encoded frame, and how long it may take."""

    id: int
    method: Method
    frame: bytes
    budget: Budget
    wants_progress: bool = False
    state: OutgoingState = OutgoingState.SENT

    def move(self, move: OutgoingTrigger) -> OutgoingState:
        """Take one row of the table.

        Raises:
            LocalProtocolError: There is no such row; our own code never asks for one.
        """
        after = OUTGOING_TRANSITIONS[self.state].get(move)
        if after is None:
            raise LocalProtocolError(
                f"our request {self.id} ({self.method.name}) is {self.state.name}:"
                f" it cannot {move.name}"
            )
        self.state = after
        return after


@attrs.define
class IncomingRequests:
    """The requests that we received and have not finished."""

    _open: dict[RequestId, IncomingRequest] = attrs.field(
        factory=dict[RequestId, IncomingRequest], init=False
    )

    def __len__(self) -> int:
        return len(self._open)

    def get(self, request_id: RequestId) -> IncomingRequest | None:
        """The unfinished request with this id, if there is one."""
        return self._open.get(request_id)

    def add(self, request: IncomingRequest) -> None:
        """Enter a request whose id no other one here has."""
        self._open[request.id] = request

    def finish(self, request: IncomingRequest) -> bool:
        """End it; True when the peer may hear of it, False when it was cancelled before."""
        after = request.move(IncomingTrigger.ANSWER)
        if self._open.get(request.id) is request:  # a cancelled one may be finished twice
            del self._open[request.id]
        if not self._open:
            self._open.clear()  # an emptied one keeps its size, in each session that rests
        return after is IncomingState.ANSWERED


@attrs.define(kw_only=True)
class OutgoingRequests:
    """The requests that we sent: the open ones, and the ids of the last ones abandoned."""

    remembered_max: int
    _next_id: int = attrs.field(default=0, init=False)
    _open: dict[int, OutgoingRequest] = attrs.field(factory=dict[int, OutgoingRequest], init=False)
    _abandoned: dict[int, OutgoingRequest] = attrs.field(
        factory=dict[int, OutgoingRequest], init=False
    )

    def __len__(self) -> int:
        return len(self._open)

    def next_id(self) -> int:
        """A number never used before in this session (BASE-04)."""
        self._next_id += 1
        return self._next_id

    def add(self, request: OutgoingRequest) -> None:
        """Enter a request whose frame is about to leave."""
        self._open[request.id] = request

    def get(self, request_id: RequestId | None) -> OutgoingRequest | None:
        """The open request with exactly this id: our ids are integers, so `"1"` is none."""
        return self._open.get(request_id) if isinstance(request_id, int) else None

    @property
    def waiting(self) -> list[int]:
        """The open ones whose answer may come at any time; subscriptions stand."""
        return [each.id for each in self._open.values() if not each.method.is_subscription]

    def answered(self, request_id: RequestId | None) -> OutgoingRequest | None:
        """Take the open request that this answer ends; None when nobody waits for it."""
        request = self.get(request_id)
        if request is not None:
            del self._open[request.id]
            request.move(OutgoingTrigger.ANSWER)
        return request

    def is_late(self, request_id: RequestId | None) -> bool:
        """Return whether this answer belongs to a request that we abandoned; forgets it then."""
        late = self._abandoned.pop(request_id, None) if isinstance(request_id, int) else None
        if late is not None:
            late.move(OutgoingTrigger.ANSWER)
        return late is not None

    def abandon(self, request: OutgoingRequest) -> bool:
        """Nobody waits for it any more; True when the peer still works on it."""
        request.move(OutgoingTrigger.ABANDON)
        if self._open.pop(request.id, None) is None:
            return False
        request.frame = b""  # it has left, and is not to be remembered for long
        self._abandoned[request.id] = request
        while len(self._abandoned) > self.remembered_max:
            del self._abandoned[next(iter(self._abandoned))]
        return True

    def lose_all(self) -> list[OutgoingRequest]:
        """The channel is gone: the open ones end as lost."""
        lost = list(self._open.values())
        self._open.clear()
        for request in lost:
            request.move(OutgoingTrigger.LOSE)
        return lost


# --------------------
# Which requests run now, which wait, which are refused: bounded by count and by bytes.


@attrs.define
class Admission:
    """Places for handlers, and a queue before them. Nothing here waits."""

    limits: Limits
    running: int = attrs.field(default=0, init=False)
    _queue: dict[IncomingRequest, None] = attrs.field(
        factory=dict[IncomingRequest, None], init=False
    )
    _queued_bytes: int = attrs.field(default=0, init=False)

    @property
    def queued(self) -> int:
        """How many requests wait for a place."""
        return len(self._queue)

    def has_free_slot(self) -> bool:
        """Return whether a request that arrives now may run at once."""
        return self.running < self.limits.requests.in_flight_max and not self._queue

    def enter(self) -> None:
        """A handler takes a place."""
        self.running += 1

    def rejection(self, request: IncomingRequest) -> str | None:
        """Why the request cannot even wait, naming the setting; None when there is room."""
        if len(self._queue) >= self.limits.requests.queued_max:
            queued_max = self.limits.requests.queued_max
            return f"too many requests wait (limits.requests.queued_max={queued_max})"
        if self._queued_bytes + request.size_bytes > self.limits.requests.queued_bytes_max:
            return (
                "the requests that wait are too large"
                f" (limits.requests.queued_bytes_max={self.limits.requests.queued_bytes_max})"
            )
        return None

    def wait(self, request: IncomingRequest) -> None:
        """Queue a request that was not refused."""
        self._queue[request] = None
        self._queued_bytes += request.size_bytes

    def leave(self) -> IncomingRequest | None:
        """A handler gives its place back; the request whose turn it is, if one waits.

        It has left the queue; its own `enter` follows.
        """
        self.running -= 1
        if not self._queue or self.running >= self.limits.requests.in_flight_max:
            return None
        request = next(iter(self._queue))
        del self._queue[request]
        self._queued_bytes -= request.size_bytes
        return request

    def withdraw(self, request: IncomingRequest) -> bool:
        """Take a cancelled request out of the queue; False when it does not wait there."""
        if request not in self._queue:
            return False
        del self._queue[request]
        self._queued_bytes -= request.size_bytes
        return True

    def withdraw_all(self) -> list[IncomingRequest]:
        """Empty the queue: the session ends and what waits never runs."""
        waiting = list(self._queue)
        self._queue.clear()
        self._queued_bytes = 0
        return waiting


class _Carrier(types.Params, kw_only=True):
    """What the params of every request may hold, whatever else they are."""


def token_of(method: Method, params: Any, raw: msgspec.Raw | None) -> RequestId | None:
    """The token that a received request asks progress with; None when it asks for none.

    `params` are those that were decoded from `raw`, for a `method` of people's own to any type.

    Raises:
        msgspec.ValidationError: It is neither a string nor an integer (PROG-01).
    """
    if method.is_custom and not isinstance(params, types.Params):
        params = msgspec.json.decode(raw or b"{}", type=_Carrier)
    return checked_token(params.meta) if params.meta else None


def with_token(params: ParamsToSend | None, token: int) -> ParamsToSend:
    """The params of a request of ours that asks for progress."""
    return with_meta(params, {PROGRESS_TOKEN: token})


def check_reserved(params: ParamsToSend | None) -> None:
    """Refuse what a caller put into `_meta`, where only the engine may (META-10), or nobody.

    Raises:
        LocalProtocolError: There is a token, or a key that is malformed or reserved.
    """
    meta = meta_of(params)
    if PROGRESS_TOKEN in meta:
        raise LocalProtocolError(f"_meta.{PROGRESS_TOKEN} is reserved: ask with wants_progress")
    try:
        check_keys(meta)
    except ValueError as error:
        raise LocalProtocolError(str(error)) from None


def _is_timely(request: IncomingRequest, progress: float) -> bool:
    """Whether the request is still running (PROG-05, PROG-09), and the value grows (PROG-06)."""
    if request.state is not IncomingState.RUNNING:
        return False
    return request.progress_last is None or progress > request.progress_last


def report(
    request: IncomingRequest, progress: float, total: float | None, message: str | None
) -> types.ProgressParams | None:
    """What to tell about a request of theirs; None if nobody asked, or it is not the time for it.

    Raises:
        LocalProtocolError: A number is NaN or infinite, for which JSON has no word.
    """
    for number in (progress, total):
        if number is not None and not -math.inf < number < math.inf:
            raise LocalProtocolError(f"progress is told in finite numbers, not {number}")
    if request.progress_token is None or not _is_timely(request, progress):
        return None
    request.progress_last = progress
    return types.ProgressParams(
        progress_token=request.progress_token, progress=progress, total=total, message=message
    )
