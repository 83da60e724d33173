"""One end of a conversation: frames in, facts and frames out, no waiting, no clock.

A received frame becomes exactly one event. The state of the session, both request tables and what
leaves are in `Outgoing`.

Both eras share a connection. A request that carries its metadata is modern, whatever the session
has come to; all others belong to the session. Each request that is taken knows its sender, as a
`Peer`: of the handshake, or of that request alone.

The order of the checks on a request is the order in which a peer can mend its faults: what it says
of itself, the method, the id, the moment, the capability, the params. Each has its code, and none
moves any state, but for `initialize` with bad params, which walks there and back as its error does
at the other end.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import attrs
import msgspec
from msgspec import UNSET

from mcp_trio import _schema as s
from mcp_trio._errors import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    UNSUPPORTED_PROTOCOL_VERSION,
    OutcomeUnknown,
    RemoteProtocolError,
)
from mcp_trio._protocol import methods
from mcp_trio._protocol.events import (
    AnswerArrived,
    AnswerUnreadable,
    BatchArrived,
    Event,
    Ignored,
    NotificationArrived,
    ProgressArrived,
    Reply,
    RequestCancelled,
    RequestToRun,
)
from mcp_trio._protocol.fitting import fitted
from mcp_trio._protocol.metadata import (
    PROTOCOL_VERSION,
    SUBSCRIPTION_ID,
    Metadata,
    dressed,
    metadata_of,
)
from mcp_trio._protocol.methods import Method, announced
from mcp_trio._protocol.outgoing import Outgoing
from mcp_trio._protocol.peers import STRANGER, Capabilities, Peer
from mcp_trio._protocol.progress import token_of
from mcp_trio._protocol.requests import (
    OurRequest,
    RequestId,
    TheirRequest,
    whose_answer,
    whose_large_answer,
)
from mcp_trio._protocol.revisions import REVISIONS, Revision, negotiated, newest
from mcp_trio._protocol.states import Input, Role, TheirMove, TheirState
from mcp_trio._wire import (
    Batch,
    Decoder,
    ErrorObject,
    ErrorResponse,
    FromPrincipal,
    Malformed,
    Message,
    Notification,
    Oversized,
    Request,
    Response,
    Understood,
    encode_error,
    encode_response,
    malformed,
)


class _Refused(Exception):  # noqa: N818  what becomes of a request, and no fault of ours
    """A request is answered with an error before any handler sees it."""

    def __init__(
        self, code: int, text: str, *, counted: str = "refused", data: Any = UNSET
    ) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.counted = counted
        self.data = data


def _without_metadata() -> _Refused:
    return _Refused(INVALID_PARAMS, f"invalid params: _meta lacks {PROTOCOL_VERSION}")


@attrs.define(kw_only=True, eq=False)
class Connection(Outgoing):
    """The protocol of one end: what arrives, and by `Outgoing` what leaves."""

    _decoder: Decoder = attrs.field(init=False)
    _has_sessions: bool = attrs.field(init=False)
    _principal: str | None = attrs.field(default=None, init=False)  # of the frame that is taken

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self._has_sessions = newest(self.revisions, has_handshake=True) is not None
        self._decoder = Decoder(
            json_depth_max=self.limits.json_depth_max,
            batch_messages_max=self.limits.batch_messages_max,
        )

    # What arrives.

    def receive(self, frame: bytes | Oversized) -> Event:
        """What one received frame means; never raises, whatever the peer sent."""
        if type(frame) is Oversized:
            return self._take_oversized(frame)
        if isinstance(frame, Understood):
            self._principal, message = frame.principal, frame.message
        else:
            self._principal = frame.principal if isinstance(frame, FromPrincipal) else None
            message = self._decoder.decode(frame)
        return self._takers[type(message)](self, message, len(frame))

    def take(self, message: Message, size_bytes: int) -> Event:
        """What one message of a batch means; see `receive`."""
        return self._takers[type(message)](self, message, size_bytes)

    def _ignored(self, counted: str, text: str) -> Ignored:
        self.counts[counted] += 1
        return Ignored(counted, self._brief(text))

    def _refusal(
        self,
        request_id: RequestId | None,
        code: int,
        text: str,
        *,
        counted: str = "refused",
        data: Any = UNSET,
    ) -> Reply:
        self.counts[counted] += 1
        text = self._brief(text)
        frame = encode_error(request_id, code, text, data)
        return Reply(frame, request_id, counted=counted, text=text)

    def _brief(self, text: str) -> str:
        """Cut what quotes the peer: a message is one short sentence (BASE-12)."""
        chars_max = self.limits.fault_text_chars_max
        return text if len(text) <= chars_max else f"{text[:chars_max]}…"

    def _take_oversized(self, frame: Oversized) -> Event:
        limit = f"frame_bytes_max={self.limits.frame_bytes_max}"
        text = f"a frame of at least {frame.size} bytes exceeds {limit}"
        bad = malformed(frame.head, INVALID_REQUEST, text)
        request = self.ours.answered(whose_large_answer(bad, self.ours.waiting))
        if request is None:
            return self._take_bad(bad, frame.size)
        words = f"at least {frame.size} bytes, over {limit} of this {self.our_role.value}"
        return self._unreadable(request, OutcomeUnknown(f"{self._answer_to(request)}: {words}"))

    def _take_malformed(self, message: Malformed, size_bytes: int) -> Event:
        """A bad frame ends the request of ours that it was to answer, and is else refused."""
        request = self.ours.answered(whose_answer(message))
        if request is None:
            return self._take_bad(message, size_bytes)
        text = self._brief(f"{self._answer_to(request)} is {message.message}")
        return self._unreadable(request, RemoteProtocolError(text))

    def _answer_to(self, request: OurRequest) -> str:
        return f"the {self.their_role.value}'s answer to {request.method.name}"

    def _unreadable(
        self, request: OurRequest, error: RemoteProtocolError | OutcomeUnknown
    ) -> AnswerUnreadable:
        event = AnswerUnreadable(request, error)
        self.counts[event.counted] += 1
        self._move(self.their_role, _answer_input(request, is_result=False))
        return event

    def _take_bad(self, message: Malformed, size_bytes: int) -> Event:
        """A server answers a bad frame if its id is known or not needed; a client only counts."""
        is_request = self.our_role is Role.SERVER and message.is_request
        if is_request and (message.id is not None or self._has_errors_without_id()):
            return self._refusal(message.id, message.code, message.message, counted="malformed")
        return self._ignored("malformed", f"{message.message} ({size_bytes} bytes)")

    def _has_errors_without_id(self) -> bool:
        """Whether the peer knows them, whichever revision it speaks (BASE-07, BASE-08)."""
        spoken = [REVISIONS[name] for name in self.revisions]
        spoken = [self.peer.revision] if self.peer is not None else spoken
        return all(revision.has_errors_without_id for revision in spoken)

    def _take_batch(self, batch: Batch, size_bytes: int) -> Event:
        """Only the one revision that has them takes batches, once it is settled (TRAP-01)."""
        if self.peer is not None and self.peer.revision.has_batches:
            return BatchArrived(batch.messages, size_bytes // len(batch.messages))
        text = "not a message: there are no batches in this revision"
        refused = Malformed(INVALID_REQUEST, text, id=None, is_request=True)
        return self._take_bad(refused, size_bytes)

    def _take_request(self, message: Request, size_bytes: int) -> Event:
        if self._is_client_of_modern():
            # A modern server asks nothing, and a client sends no answers (BASE-22, BASE-23).
            return self._ignored("request of a server", f"the server sent {message.method}")
        metadata = metadata_of(message.params)
        try:
            if metadata is None:
                return self._take_of_session(message, size_bytes)
            return self._take_stateless(message, metadata, size_bytes)
        except msgspec.MsgspecError as error:
            return self._refusal(message.id, INVALID_PARAMS, f"invalid params: {error}")
        except _Refused as refused:
            return self._refusal(
                message.id, refused.code, refused.text, counted=refused.counted, data=refused.data
            )

    def _take_of_session(self, message: Request, size_bytes: int) -> Event:
        if not self._has_sessions and message.method != methods.INITIALIZE:
            raise _without_metadata()
        peer = self.peer or attrs.evolve(STRANGER, revision=self._revision_of(methods.INITIALIZE))
        row = self._known(message, peer.revision)
        if not self._move(self.their_role, row.input):
            text = f"{row.name} is not allowed now: the session is {self.state.name}"
            raise _Refused(INVALID_REQUEST, text, counted="out of order")
        self._check_need(row, self.our_capabilities)
        try:
            return self._accept(row, message, size_bytes, peer)
        except (msgspec.MsgspecError, _Refused):
            if row.input is Input.INITIALIZE:
                self._move(self.our_role, Input.INITIALIZE_ERROR)
            raise

    def _take_stateless(self, message: Request, metadata: Metadata, size_bytes: int) -> Event:
        peer = self._peer_by(metadata)
        row = self._known(message, peer.revision)
        if not self._move(self.their_role, Input.STATELESS):
            text = f"{row.name} is not allowed now: the session is {self.state.name}"
            raise _Refused(INVALID_REQUEST, text, counted="out of order")
        self._check_need(row, self.declared())
        return self._accept(row, message, size_bytes, peer, metadata)

    def _peer_by(self, metadata: Metadata) -> Peer:
        """Who has sent a request, in a modern revision that is spoken here (VER-02)."""
        revision = REVISIONS.get(metadata.requested)
        if revision is None or revision.has_handshake or revision.name not in self.revisions:
            raise self._unsupported(metadata.requested)
        if self._principal is None:
            return metadata.peer
        return attrs.evolve(metadata.peer, principal=self._principal)

    def _unsupported(self, requested: str) -> _Refused:
        text = f"unsupported protocol version {requested!r}: {', '.join(self.revisions)} are spoken"
        data = {"supported": list(self.revisions), "requested": requested}
        return _Refused(UNSUPPORTED_PROTOCOL_VERSION, text, data=data)

    def _known(self, message: Request, revision: Revision) -> Method:
        """The row of a method that this side takes now, under an id that is free."""
        row = self.methods.get(message.method)
        if row is None or not row.is_request or self.their_role not in row.senders:
            raise _Refused(METHOD_NOT_FOUND, f"method not found: {message.method}")
        if not row.is_of(revision):
            raise self._foreign(row, revision)
        if self.theirs.get(message.id) is not None:
            text = f"an unfinished request has the same id: {message.id!r}"
            raise _Refused(INVALID_REQUEST, text, counted="duplicate id")
        return row

    def _foreign(self, row: Method, revision: Revision) -> _Refused:
        """A modern method without metadata, or one that this revision does not have."""
        modern = newest(self.revisions, has_handshake=False)
        if modern is not None and revision.has_handshake and row.is_of(modern):
            return _without_metadata()
        return _Refused(METHOD_NOT_FOUND, f"method not found: {row.name} (not in {revision.name})")

    def _check_need(self, row: Method, capabilities: Capabilities) -> None:
        if row.need is not None and not announced(capabilities, row.need.path):
            text = f"method not found: {row.name} (the {row.need} is not announced)"
            raise _Refused(METHOD_NOT_FOUND, text)

    def _accept(
        self,
        row: Method,
        message: Request,
        size_bytes: int,
        peer: Peer,
        metadata: Metadata | None = None,
    ) -> Event:
        request_id, raw = message.id, message.params
        rest = None
        if metadata is not None and raw is not None and not row.hands_on_params:
            rest = metadata.rest_of(raw)
        params = row.decode_params(raw if rest is None else rest)
        if row.name in self._replies:
            reply = self._replies[row.name](self, request_id, params)
            reply.peer = None if metadata is None else peer
            return reply
        token = metadata.progress_token if metadata and rest else token_of(row, params, raw)
        request = TheirRequest(request_id, row, params, size_bytes, token, peer)
        self.theirs.add(request)
        return RequestToRun(request)

    def _answer_ping(self, request_id: RequestId, _params: s.EmptyParams) -> Reply:
        return Reply(encode_response(request_id, s.EmptyResult()), request_id)

    def _answer_initialize(self, request_id: RequestId, params: s.InitializeParams) -> Reply:
        revision = negotiated(params.protocol_version, self.revisions)
        if revision is None:
            raise self._unsupported(params.protocol_version)
        capabilities = self.declare_once()
        self.settle(revision, params.capabilities, params.client_info, self._principal)
        self._move(self.our_role, Input.INITIALIZE_RESULT)
        result = s.InitializeResult(
            protocol_version=revision.name,
            capabilities=capabilities,
            server_info=self.our_info,
            instructions=self.instructions,
        )
        frame = encode_response(request_id, fitted(result, revision))
        return Reply(frame, request_id, negotiated=True)

    def _answer_discover(self, request_id: RequestId, _params: s.EmptyParams) -> Reply:
        result = s.DiscoverResult(
            supported_versions=list(self.revisions),
            capabilities=self.declared(),
            instructions=self.instructions,
        )
        row = self.methods[methods.DISCOVER]
        return Reply(encode_response(request_id, dressed(result, row, self.signature)), request_id)

    def _take_notification(self, message: Notification, _size: int) -> Event:
        row = self.methods.get(message.method)
        if row is None or row.is_request or self.their_role not in row.senders:
            return self._ignored("unknown notification", f"unknown notification {message.method}")
        if not row.is_of(self._revision_of(row.name)):
            text = f"there is no {row.name} in this revision"
            return self._ignored("unknown notification", text)
        kind = self._kind_of_theirs(row, message)
        if not self._is_legal(self.their_role, kind):
            text = f"{row.name} came out of order: the session is {self.state.name}"
            return self._ignored("out of order", text)
        # A server may log before its capabilities are known here (LIFE-13).
        is_promised = row.is_subscribed and self._is_client_of_modern()  # by an acknowledgement
        is_known = self.peer is not None and not is_promised
        if is_known and not self._is_announced(row.need, self._revision_of(row.name)):
            text = f"{row.name} came, but the {row.need} was not announced"
            return self._ignored("not announced", text)
        try:
            params = row.decode_params(message.params)
        except msgspec.MsgspecError as error:
            return self._ignored("malformed notification", f"{row.name}: {error}")
        self._move(self.their_role, kind)
        return self._notified(row, params)

    def _kind_of_theirs(self, row: Method, message: Notification) -> Input:
        """What a notification is to the session table; a client's is modern if it says so."""
        if self.our_role is Role.SERVER and metadata_of(message.params) is not None:
            return Input.REFERENCE if row.input is Input.REFERENCE else Input.STATELESS
        return self._kind(row, self._revision_of(row.name))

    def _notified(self, row: Method, params: Any) -> Event:
        if row.name == methods.CANCELLED:
            return self._take_cancelled(params)
        if row.name == methods.PROGRESS:
            return self._take_progress(params)
        if row.is_subscribed and self._is_client_of_modern():
            return self._take_told(row, params)
        return NotificationArrived(row, params)

    def _is_client_of_modern(self) -> bool:
        peer = self.peer
        return self.our_role is Role.CLIENT and peer is not None and peer.revision.is_modern

    def _take_told(self, row: Method, params: s.Params) -> Event:
        """What a modern server tells belongs to a subscription, by its id alone (SUB-09)."""
        told = (params.meta or {}).get(SUBSCRIPTION_ID)
        request = self.ours.get(told) if type(told) is int else None
        if request is None or not request.method.is_standing:
            text = f"{row.name} came for no open subscription of ours: {told!r}"
            return self._ignored("no subscription", text)
        return NotificationArrived(row, params, request)

    def _take_cancelled(self, params: s.CancelledParams) -> Event:
        if self._is_client_of_modern():
            return self._take_tear_down(params)
        request = self.theirs.get(params.request_id)
        if request is None:  # finished, unknown, or `initialize`, which is never open (CANC-07)
            text = f"no open request {params.request_id!r} to cancel"
            return self._ignored("late cancellation", text)
        if request.state is TheirState.CANCELLED:
            text = f"request {request.id!r} is cancelled already"
            return self._ignored("late cancellation", text)
        request.move(TheirMove.CANCEL)
        return RequestCancelled(request, params.reason)

    def _take_tear_down(self, params: s.CancelledParams) -> Event:
        """A modern server ends a subscription of ours, and may do so by nothing else (CANC-18)."""
        request = self.ours.get(params.request_id)
        if request is None or not request.method.is_standing:
            text = f"no open subscription {params.request_id!r} to end"
            return self._ignored("late cancellation", text)
        self.ours.abandon(request)
        return AnswerArrived(request, msgspec.Raw(b"{}"), None)

    def _take_progress(self, params: s.ProgressParams) -> Event:
        request = self.ours.get(params.progress_token)
        if request is None or not request.wants_progress:
            text = f"no request of ours waits for progress {params.progress_token!r}"
            return self._ignored("late progress", text)
        return ProgressArrived(request, params)

    def _take_response(self, message: Response, _size: int) -> Event:
        return self._take_answer(message.id, message.result, None)

    def _take_error(self, message: ErrorResponse, _size: int) -> Event:
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
        self._move(self.their_role, _answer_input(request, is_result=error is None))
        return AnswerArrived(request, result, error)

    _takers: ClassVar[Mapping[type, Callable[..., Event]]] = {
        Request: _take_request,
        Notification: _take_notification,
        Response: _take_response,
        ErrorResponse: _take_error,
        Malformed: _take_malformed,
        Batch: _take_batch,
    }
    _replies: ClassVar[Mapping[str, Callable[..., Reply]]] = {
        methods.PING: _answer_ping,
        methods.INITIALIZE: _answer_initialize,
        methods.DISCOVER: _answer_discover,
    }


def _answer_input(request: OurRequest, *, is_result: bool) -> Input:
    if request.method.input is not Input.INITIALIZE:
        return Input.ANSWER
    return Input.INITIALIZE_RESULT if is_result else Input.INITIALIZE_ERROR
