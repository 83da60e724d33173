"""One end of a legacy session: frames in, facts and frames out, no waiting, no clock.

`Connection` holds the session state, both request tables and what the handshake settled. A received
frame becomes exactly one event; what goes out is returned as an encoded frame, and it is the
caller's duty to send frames in the order in which they were returned.

The order of the checks on a request is the order in which a peer can mend its faults: the method,
the id, the moment, the capability, the params. Each has its code, and none moves any state, but for
`initialize` with bad params, which walks there and back as its error does at the other end.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import attrs
import msgspec

from mcp_trio import _schema as s
from mcp_trio._errors import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    LocalProtocolError,
    RemoteProtocolError,
)
from mcp_trio._limits import DEFAULT_LIMITS, Limits
from mcp_trio._protocol import methods
from mcp_trio._protocol.budgets import Budget
from mcp_trio._protocol.events import (
    AnswerArrived,
    Event,
    Ignored,
    NotificationArrived,
    ProgressArrived,
    Reply,
    RequestCancelled,
    RequestToRun,
)
from mcp_trio._protocol.methods import METHODS, Method, Need, ParamsToSend, announced, unknown
from mcp_trio._protocol.progress import check_reserved, report, token_of, with_token
from mcp_trio._protocol.requests import (
    OurRequest,
    OurRequests,
    RequestId,
    TheirRequest,
    TheirRequests,
)
from mcp_trio._protocol.revisions import NEWEST_LEGACY, REVISIONS, Revision, negotiated
from mcp_trio._protocol.states import (
    SESSION_MOVES,
    Input,
    Role,
    SessionState,
    TheirMove,
    TheirState,
    moved,
)
from mcp_trio._wire import (
    Decoder,
    ErrorObject,
    ErrorResponse,
    Malformed,
    Notification,
    Oversized,
    Request,
    Response,
    encode_error,
    encode_notification,
    encode_request,
    encode_response,
    malformed,
)

Capabilities: TypeAlias = s.ClientCapabilities | s.ServerCapabilities


@attrs.define(kw_only=True, eq=False)
class Connection:
    """The protocol state of one end.

    `revision`, `peer_info`, `peer_capabilities` and `instructions` (a client's view of the server's
    text, a server's own) are settled by the handshake. `counts` holds every fault and curiosity
    that was not worth an error, by name. `methods` are those that both sides know; people's own
    rows may join them at any time. `declare` tells a server's capabilities as of the handshake.
    """

    our_role: Role
    our_info: s.Implementation
    our_capabilities: Capabilities
    instructions: str | None = None
    limits: Limits = DEFAULT_LIMITS
    methods: Mapping[str, Method] = METHODS
    declare: Callable[[], s.ServerCapabilities] | None = None

    state: SessionState = attrs.field(default=SessionState.FRESH, init=False)
    revision: Revision | None = attrs.field(default=None, init=False)
    peer_info: s.Implementation | None = attrs.field(default=None, init=False)
    peer_capabilities: Capabilities | None = attrs.field(default=None, init=False)
    their_role: Role = attrs.field(init=False)
    theirs: TheirRequests = attrs.field(factory=TheirRequests, init=False)
    ours: OurRequests = attrs.field(init=False)
    counts: Counter[str] = attrs.field(factory=Counter[str], init=False)
    _decoder: Decoder = attrs.field(init=False)
    _takers: dict[type, Callable[[Any, int, float], Event]] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.their_role = self.our_role.peer
        self.ours = OurRequests(remembered_max=self.limits.requests_remembered_max)
        self._decoder = Decoder(json_depth_max=self.limits.json_depth_max)
        self._takers = {
            Request: self._take_request,
            Notification: self._take_notification,
            Response: self._take_response,
            ErrorResponse: self._take_error,
            Malformed: self._take_malformed,
        }

    # What arrives.

    def receive(self, frame: bytes | Oversized, now: float) -> Event:
        """What one received frame means; never raises, whatever the peer sent.

        `now` is seconds on the clock that the budgets of our requests use.
        """
        if isinstance(frame, Oversized):
            return self._take_oversized(frame)
        message = self._decoder.decode(frame)
        return self._takers[type(message)](message, len(frame), now)

    def _ignored(self, counted: str, text: str) -> Ignored:
        self.counts[counted] += 1
        return Ignored(counted, self._brief(text))

    def _refusal(
        self, request_id: RequestId, code: int, text: str, *, counted: str = "refused"
    ) -> Reply:
        self.counts[counted] += 1
        text = self._brief(text)
        return Reply(encode_error(request_id, code, text), counted=counted, text=text)

    def _brief(self, text: str) -> str:
        """Cut what quotes the peer: a message is one short sentence (BASE-12)."""
        chars_max = self.limits.fault_text_chars_max
        return text if len(text) <= chars_max else f"{text[:chars_max]}…"

    def _take_oversized(self, frame: Oversized) -> Event:
        limit = f"frame_bytes_max={self.limits.frame_bytes_max}"
        text = f"a frame of at least {frame.size} bytes exceeds {limit}"
        return self._take_malformed(malformed(frame.head, INVALID_REQUEST, text), frame.size, 0.0)

    def _take_malformed(self, message: Malformed, size_bytes: int, _now: float) -> Event:
        """A server answers a bad frame whose id is known; a client only counts it."""
        answerable = self.our_role is Role.SERVER and message.is_request
        if not answerable or message.id is None:
            return self._ignored("malformed", f"{message.message} ({size_bytes} bytes)")
        return self._refusal(message.id, message.code, message.message, counted="malformed")

    def _take_request(self, message: Request, size_bytes: int, _now: float) -> Event:
        request_id = message.id
        row = self.methods.get(message.method)
        if row is None or not row.is_request or self.their_role not in row.senders:
            text = f"method not found: {message.method}"
            return self._refusal(request_id, METHOD_NOT_FOUND, text)
        if self.theirs.get(request_id) is not None:
            text = f"an unfinished request has the same id: {request_id!r}"
            return self._refusal(request_id, INVALID_REQUEST, text, counted="duplicate id")
        if not self._move(self.their_role, row.input):
            text = f"{row.name} is not allowed now: the session is {self.state.name}"
            return self._refusal(request_id, INVALID_REQUEST, text, counted="out of order")
        if not self._is_announced(row.need):
            text = f"method not found: {row.name} (the {row.need} is not announced)"
            return self._refusal(request_id, METHOD_NOT_FOUND, text)
        try:
            return self._accept(row, message, size_bytes)
        except msgspec.MsgspecError as error:
            return self._refuse_params(request_id, row, error)

    def _refuse_params(
        self, request_id: RequestId, row: Method, error: msgspec.MsgspecError
    ) -> Reply:
        if row.input is Input.INITIALIZE:
            self._move(self.our_role, Input.INITIALIZE_ERROR)
        return self._refusal(request_id, INVALID_PARAMS, f"invalid params: {error}")

    def _accept(self, row: Method, message: Request, size_bytes: int) -> Event:
        request_id, params = message.id, row.decode_params(message.params)
        if row.input is Input.PING:
            return Reply(encode_response(request_id, s.EmptyResult()))
        if row.input is Input.INITIALIZE:
            return self._answer_initialize(request_id, params)
        token = token_of(params, message.params)
        request = TheirRequest(request_id, row, params, size_bytes, token)
        self.theirs.add(request)
        return RequestToRun(request)

    def _answer_initialize(self, request_id: RequestId, params: s.InitializeParams) -> Reply:
        self.our_capabilities = self.declare() if self.declare else self.our_capabilities
        assert isinstance(self.our_capabilities, s.ServerCapabilities)
        self.revision = negotiated(params.protocol_version)
        self.peer_info = params.client_info
        self.peer_capabilities = params.capabilities
        self._move(self.our_role, Input.INITIALIZE_RESULT)
        result = s.InitializeResult(
            protocol_version=self.revision.name,
            capabilities=self.our_capabilities,
            server_info=self.our_info,
            instructions=self.instructions,
        )
        return Reply(encode_response(request_id, result), negotiated=True)

    def _take_notification(self, message: Notification, _size: int, now: float) -> Event:
        row = self.methods.get(message.method)
        if row is None or row.is_request or self.their_role not in row.senders:
            return self._ignored("unknown notification", f"unknown notification {message.method}")
        if not self._is_legal(self.their_role, row.input):
            text = f"{row.name} came out of order: the session is {self.state.name}"
            return self._ignored("out of order", text)
        # A server may log before its capabilities are known here (LIFE-13).
        if self.peer_capabilities is not None and not self._is_announced(row.need):
            text = f"{row.name} came, but the {row.need} was not announced"
            return self._ignored("not announced", text)
        try:
            params = row.decode_params(message.params)
        except msgspec.MsgspecError as error:
            return self._ignored("malformed notification", f"{row.name}: {error}")
        self._move(self.their_role, row.input)
        return self._notified(row, params, now)

    def _notified(self, row: Method, params: Any, now: float) -> Event:
        if row.name == methods.CANCELLED:
            return self._take_cancelled(params)
        if row.name == methods.PROGRESS:
            return self._take_progress(params, now)
        return NotificationArrived(row, params)

    def _take_cancelled(self, params: s.CancelledParams) -> Event:
        request = self.theirs.get(params.request_id)
        if request is None:  # finished, unknown, or `initialize`, which is never open (CANC-07)
            text = f"no open request {params.request_id!r} to cancel"
            return self._ignored("late cancellation", text)
        if request.state is TheirState.CANCELLED:
            text = f"request {request.id!r} is cancelled already"
            return self._ignored("late cancellation", text)
        request.move(TheirMove.CANCEL)
        return RequestCancelled(request, params.reason)

    def _take_progress(self, params: s.ProgressParams, now: float) -> Event:
        request = self.ours.get(params.progress_token)
        if request is None or not request.wants_progress:
            text = f"no request of ours waits for progress {params.progress_token!r}"
            return self._ignored("late progress", text)
        request.budget.sign_of_life(now)
        return ProgressArrived(request, params)

    def _take_response(self, message: Response, _size: int, _now: float) -> Event:
        return self._take_answer(message.id, message.result, None)

    def _take_error(self, message: ErrorResponse, _size: int, _now: float) -> Event:
        return self._take_answer(message.id, None, message.error)

    def _take_answer(
        self, request_id: RequestId | None, result: msgspec.Raw | None, error: ErrorObject | None
    ) -> Event:
        if self.ours.is_late(request_id):
            text = f"request {request_id!r} was abandoned before its answer"
            return self._ignored("late answer", text)
        request = self.ours.answered(request_id)
        if request is None:
            what = f": {error.message}" if error is not None else ""
            text = f"nobody asked for an answer {request_id!r}{what}"
            return self._ignored("unknown answer", text)
        self._move(self.their_role, _answer_input(request, error))
        return AnswerArrived(request, result, error)

    # What leaves.

    def open_request(
        self,
        method: str,
        params: ParamsToSend | None,
        *,
        now: float,
        idle_seconds: float = math.inf,
        total_seconds: float = math.inf,
        wants_progress: bool = False,
    ) -> OurRequest:
        """Enter a request of ours; its `frame` must leave next.

        Raises:
            LocalProtocolError: No such request, wrong direction, too early, not negotiated, or
                `params` hold a progress token; nothing was entered.
            Unencodable: The params cannot be written as JSON; nothing was entered.
        """
        row = self._sendable(method, is_request=True)
        check_reserved(params)
        request_id = self.ours.next_id()
        if wants_progress:
            params = with_token(params, request_id)
        depth_max = self.limits.json_depth_max
        frame = encode_request(request_id, method, params, json_depth_max=depth_max)
        self._move(self.our_role, row.input)
        budget = Budget(started=now, idle_seconds=idle_seconds, total_seconds=total_seconds)
        request = OurRequest(request_id, row, frame, budget, wants_progress)
        self.ours.add(request)
        return request

    def notification(self, method: str, params: ParamsToSend | None = None) -> bytes:
        """The frame of a notification of ours, but for those that `progress` and `abandon` make.

        Raises:
            LocalProtocolError: No such notification, wrong direction, too early, not negotiated,
                or about a request.
            Unencodable: The params cannot be written as JSON.
        """
        row = self._sendable(method, is_request=False)
        if row.input is Input.REFERENCE:
            raise LocalProtocolError(f"{method} is about a request: call progress() or abandon()")
        frame = encode_notification(method, params, json_depth_max=self.limits.json_depth_max)
        self._move(self.our_role, row.input)
        return frame

    def progress(
        self, request: TheirRequest, progress: float, total: float | None = None
    ) -> bytes | None:
        """The frame that reports on a request of theirs; None when it must not be sent.

        That is when nobody asked (no token), when the request is not running any more (PROG-05,
        PROG-09), when the value has not grown (PROG-06), and when the session is closed.

        Raises:
            LocalProtocolError: A number is NaN or infinite, for which JSON has no word.
        """
        params = report(request, progress, total)
        if params is None or not self._is_legal(self.our_role, Input.REFERENCE):
            return None
        return encode_notification(methods.PROGRESS, params)

    def start(self, request: TheirRequest) -> None:
        """The handler of a request of theirs begins.

        Raises:
            LocalProtocolError: It was started, answered or cancelled before.
        """
        request.move(TheirMove.START)

    def finish(self, request: TheirRequest) -> bool:
        """A request of theirs has an answer or an error; True when that may be sent.

        Its id is free from now on. A cancelled request is finished like any other (CANC-06).

        Raises:
            LocalProtocolError: It was answered before.
        """
        return self.theirs.finish(request)

    def abandon(self, request: OurRequest, reason: str | None = None) -> bytes | None:
        """Nobody waits for a request of ours any more: the cancellation to send, if one is due.

        None when it has ended already, and for `initialize`, which is never cancelled (CANC-03).
        """
        if not self.ours.abandon(request) or request.method.name == methods.INITIALIZE:
            return None
        params = s.CancelledParams(request_id=request.id, reason=reason)
        return encode_notification(methods.CANCELLED, params)

    def initialize_params(self) -> s.InitializeParams:
        """What a client sends first: our newest revision with a handshake (LIFE-02, LIFE-04)."""
        assert isinstance(self.our_capabilities, s.ClientCapabilities)
        return s.InitializeParams(
            protocol_version=NEWEST_LEGACY.name,
            capabilities=self.our_capabilities,
            client_info=self.our_info,
        )

    def accept_initialize(self, result: s.InitializeResult) -> bytes:
        """Settle what the server answered; returns the frame of `notifications/initialized`.

        Raises:
            RemoteProtocolError: The server chose a revision that is not known here; the caller
                disconnects (LIFE-09).
            LocalProtocolError: There was no such answer; nothing is settled.
        """
        revision = REVISIONS.get(result.protocol_version)
        if revision is None:
            known = ", ".join(REVISIONS)
            raise RemoteProtocolError(
                f"the server chose revision {result.protocol_version!r}; known here: {known}"
            )
        frame = self.notification(methods.INITIALIZED)
        self.revision = revision
        self.peer_info = result.server_info
        self.peer_capabilities = result.capabilities
        self.instructions = result.instructions
        return frame

    def decode_result(self, request: OurRequest, raw: msgspec.Raw) -> Any:
        """The typed result of a request of ours.

        Raises:
            RemoteProtocolError: The result does not have the shape of the method's.
        """
        try:
            return request.method.decode_result(raw)
        except msgspec.MsgspecError as error:
            raise RemoteProtocolError(
                f"the answer to {request.method.name} is not a valid result: {error}"
            ) from error

    def close(self) -> list[OurRequest]:
        """The session is over; returns the requests of ours that are lost by it. Idempotent."""
        self._move(self.our_role, Input.CLOSE)
        return self.ours.lose_all()

    # What both directions ask.

    def _sendable(self, method: str, *, is_request: bool) -> Method:
        row = self.methods.get(method)
        if row is None or row.is_request is not is_request:
            raise LocalProtocolError(unknown(method, self.our_role, is_request=is_request))
        if self.our_role not in row.senders:
            raise LocalProtocolError(f"a {self.our_role.value} does not send {method}")
        if not self._is_legal(self.our_role, row.input):
            raise LocalProtocolError(
                f"{method} is not allowed now: the session is {self.state.name}"
            )
        if not self._is_announced(row.need):
            raise LocalProtocolError(f"{method} needs the {row.need}, which is not announced")
        return row

    def _is_announced(self, need: Need | None) -> bool:
        if need is None:
            return True
        ours = need.holder is self.our_role
        return announced(self.our_capabilities if ours else self.peer_capabilities, need.path)

    def _is_legal(self, sender: Role, kind: Input) -> bool:
        return moved(SESSION_MOVES, self.state, (sender, kind)) is not None

    def _move(self, sender: Role, kind: Input) -> bool:
        after = moved(SESSION_MOVES, self.state, (sender, kind))
        self.state = after or self.state
        return after is not None


def _answer_input(request: OurRequest, error: ErrorObject | None) -> Input:
    if request.method.input is not Input.INITIALIZE:
        return Input.ANSWER
    return Input.INITIALIZE_RESULT if error is None else Input.INITIALIZE_ERROR
