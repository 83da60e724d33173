"""Request accounting in both directions: ids are unique, each request ends exactly once.

Two tables, because both sides number their requests independently (TRAP-06). Keys keep their JSON
type: `1` and `"1"` are different requests, and the decoder lets no other type through (TRAP-04).
"""

from collections.abc import Collection
from typing import Any, TypeAlias

import attrs
import msgspec

from mcp_trio._errors import LocalProtocolError
from mcp_trio._protocol.budgets import Budget
from mcp_trio._protocol.methods import Method
from mcp_trio._protocol.peers import STRANGER, Peer
from mcp_trio._protocol.states import (
    OUR_MOVES,
    THEIR_MOVES,
    OurMove,
    OurState,
    TheirMove,
    TheirState,
)
from mcp_trio._schema import InputResponseParams
from mcp_trio._wire import Malformed

RequestId: TypeAlias = int | str


class TheirRequest(msgspec.Struct, gc=False, eq=False):
    """A request that we received, and what its sender has said of itself.

    `progress_last` is what we reported last (it must grow).
    """

    id: RequestId
    method: Method
    params: Any
    size_bytes: int = 0
    progress_token: RequestId | None = None
    peer: Peer = STRANGER
    progress_last: float | None = None
    state: TheirState = TheirState.TAKEN

    @property
    def has_rounds(self) -> bool:
        """Whether its handler may ask by its result: then a retry of it is known as one."""
        method = self.method
        if not method.has_rounds:
            return False
        return not method.hands_on_params or isinstance(self.params, InputResponseParams)

    @property
    def may_want_input(self) -> bool:
        """Whether its answer may be that input is required (MRTR-03)."""
        return self.peer.revision.is_modern and self.has_rounds

    def move(self, move: TheirMove) -> TheirState:
        """Take one row of the table.

        Raises:
            LocalProtocolError: There is no such row; a second answer, for instance.
        """
        after = THEIR_MOVES[self.state].get(move)
        if after is None:
            raise LocalProtocolError(
                f"request {self.id!r} ({self.method.name}) is {self.state.name}:"
                f" it cannot {move.name} any more"
            )
        self.state = after
        return after


def whose_answer(bad: Malformed) -> RequestId | None:
    """Which request a frame that is no message was to answer; None: none, or nobody knows.

    One that is cut off is the last word of a peer that dies, and of its loss more will be known.
    """
    return bad.id if bad.is_whole and not bad.is_request else None


def whose_large_answer(begin: Malformed, waiting: Collection[RequestId]) -> RequestId | None:
    """Which request a frame was to answer of which only the begin is there; None as above.

    Some peers write the id behind the result. Then it is that of the one request which is
    `waiting`, if only one is.
    """
    if begin.is_request:
        return None
    if begin.id is None and len(waiting) == 1:
        return next(iter(waiting))
    return begin.id


class OurRequest(msgspec.Struct, gc=False, eq=False):
    """A request that we sent, its encoded frame, and how long it may take."""

    id: int
    method: Method
    frame: bytes
    budget: Budget
    wants_progress: bool = False
    state: OurState = OurState.SENT

    def move(self, move: OurMove) -> OurState:
        """Take one row of the table.

        Raises:
            LocalProtocolError: There is no such row; our own code never asks for one.
        """
        after = OUR_MOVES[self.state].get(move)
        if after is None:
            raise LocalProtocolError(
                f"our request {self.id} ({self.method.name}) is {self.state.name}:"
                f" it cannot {move.name}"
            )
        self.state = after
        return after


@attrs.define
class TheirRequests:
    """The requests that we received and have not finished."""

    _open: dict[RequestId, TheirRequest] = attrs.field(
        factory=dict[RequestId, TheirRequest], init=False
    )

    def __len__(self) -> int:
        return len(self._open)

    def get(self, request_id: RequestId) -> TheirRequest | None:
        """The unfinished request with this id, if there is one."""
        return self._open.get(request_id)

    def add(self, request: TheirRequest) -> None:
        """Enter a request whose id no other one here has."""
        self._open[request.id] = request

    def finish(self, request: TheirRequest) -> bool:
        """End it; True when the peer may hear of it, False when it was cancelled before."""
        after = request.move(TheirMove.ANSWER)
        if self._open.get(request.id) is request:  # a cancelled one may be finished twice
            del self._open[request.id]
        if not self._open:
            self._open.clear()  # an emptied one keeps its size, in each session that rests
        return after is TheirState.ANSWERED


@attrs.define(kw_only=True)
class OurRequests:
    """The requests that we sent: the open ones, and the ids of the last ones abandoned."""

    remembered_max: int
    _next_id: int = attrs.field(default=0, init=False)
    _open: dict[int, OurRequest] = attrs.field(factory=dict[int, OurRequest], init=False)
    _abandoned: dict[int, OurRequest] = attrs.field(factory=dict[int, OurRequest], init=False)

    def __len__(self) -> int:
        return len(self._open)

    def next_id(self) -> int:
        """A number never used before in this session (BASE-04)."""
        self._next_id += 1
        return self._next_id

    def add(self, request: OurRequest) -> None:
        """Enter a request whose frame is about to leave."""
        self._open[request.id] = request

    def get(self, request_id: RequestId | None) -> OurRequest | None:
        """The open request with exactly this id: our ids are integers, so `"1"` is none."""
        return self._open.get(request_id) if isinstance(request_id, int) else None

    @property
    def waiting(self) -> list[int]:
        """The open ones whose answer may come at any time; subscriptions stand."""
        return [each.id for each in self._open.values() if not each.method.is_standing]

    def answered(self, request_id: RequestId | None) -> OurRequest | None:
        """Take the open request that this answer ends; None when nobody waits for it."""
        request = self.get(request_id)
        if request is not None:
            del self._open[request.id]
            request.move(OurMove.ANSWER)
        return request

    def is_late(self, request_id: RequestId | None) -> bool:
        """Whether this answer belongs to a request that we abandoned; forgets it then."""
        late = self._abandoned.pop(request_id, None) if isinstance(request_id, int) else None
        if late is not None:
            late.move(OurMove.ANSWER)
        return late is not None

    def abandon(self, request: OurRequest) -> bool:
        """Nobody waits for it any more; True when the peer still works on it."""
        request.move(OurMove.ABANDON)
        if self._open.pop(request.id, None) is None:
            return False
        request.frame = b""  # it has left, and is not to be remembered for long
        self._abandoned[request.id] = request
        while len(self._abandoned) > self.remembered_max:
            del self._abandoned[next(iter(self._abandoned))]
        return True

    def lose_all(self) -> list[OurRequest]:
        """The channel is gone: the open ones end as lost."""
        lost = list(self._open.values())
        self._open.clear()
        for request in lost:
            request.move(OurMove.LOSE)
        return lost
