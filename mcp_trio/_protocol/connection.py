"""One end of a connection, without I/O: messages in, events and encoded messages out.

Each received message becomes exactly one event. A request that carries its own metadata is
stateless (protocol version 2026-07-28 and later), whatever the state of the session; every other
request belongs to the session. A request keeps its sender as a `Peer`, known from the handshake or
from the metadata of this request.

A request is checked in the order in which a peer can correct its errors: metadata, method, id,
session state, capability, params. A rejected request changes no state. The exception is
`initialize` with invalid params: its error resets the session, as it does at the client.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Final, TypeAlias

import attrs
import msgspec
from msgspec import UNSET, Raw

from mcp_trio import types
from mcp_trio._jsonrpc.lines import Oversized
from mcp_trio._jsonrpc.messages import (
    Batch,
    DecodedMessage,
    Decoder,
    ErrorObject,
    ErrorResponse,
    Malformed,
    Message,
    Notification,
    PrincipalMessage,
    Request,
    Response,
    encode_error,
    encode_notification,
    encode_request,
    encode_response,
    malformed,
)
from mcp_trio._protocol import methods
from mcp_trio._protocol.compat import downgraded
from mcp_trio._protocol.metadata import (
    COMPLETE,
    INPUT_REQUIRED,
    PROTOCOL_VERSION,
    SERVER_INFO,
    SUBSCRIPTION_ID,
    UNKNOWN_PEER,
    Capabilities,
    Metadata,
    Peer,
    client_metadata,
    metadata_of,
    with_meta,
    with_result_metadata,
)
from mcp_trio._protocol.methods import (
    DISCOVER,
    INITIALIZE,
    METHODS,
    PING,
    Method,
    ParamsToSend,
    RequiredCapability,
    announced,
    unknown,
)
from mcp_trio._protocol.requests import (
    Budget,
    IncomingRequest,
    IncomingRequests,
    OutgoingRequest,
    OutgoingRequests,
    RequestId,
    check_reserved,
    oversized_response_id,
    report,
    response_id_of,
    token_of,
    with_token,
)
from mcp_trio._protocol.states import (
    SESSION_TRANSITIONS,
    IncomingState,
    IncomingTrigger,
    Role,
    SessionState,
    SessionTrigger,
)
from mcp_trio._protocol.versions import (
    ALL_PROTOCOL_VERSIONS,
    NEWEST_LEGACY,
    PROTOCOL_VERSIONS,
    ProtocolVersion,
    negotiated,
    newest,
)
from mcp_trio.errors import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    UNSUPPORTED_PROTOCOL_VERSION,
    LocalProtocolError,
    OutcomeUnknown,
    RemoteProtocolError,
)
from mcp_trio.limits import DEFAULT_LIMITS, Limits

# --------------------
# What a received frame turned out to be: facts for the engine, one per frame.


class RequestReceived(msgspec.Struct, gc=False):
    """A valid request for a handler."""

    request: IncomingRequest


class BatchReceived(msgspec.Struct, gc=False):
    """Several messages in one frame, each for `Connection.take`, when those before it are done.

    `size_bytes` is what one of them takes, on average.
    """

    messages: Sequence[Message]
    size_bytes: int


class NotificationReceived(msgspec.Struct, gc=False):
    """A valid notification; `request` is the open subscription of ours that it belongs to."""

    method: Method
    params: Any
    request: OutgoingRequest | None = None


class RequestCancelled(msgspec.Struct, gc=False):
    """The peer no longer wants the answer of a request that is not finished."""

    request: IncomingRequest
    reason: str | None


class ProgressReceived(msgspec.Struct, gc=False):
    """The peer reports about an open request of ours, which is a sign of life for its budget."""

    request: OutgoingRequest
    params: Any


class ResponseReceived(msgspec.Struct, gc=False):
    """An open request of ours has ended: one of `result` (raw JSON) and `error` is there."""

    request: OutgoingRequest
    result: msgspec.Raw | None
    error: ErrorObject | None


class ResponseUnreadable(msgspec.Struct, gc=False):
    """An open request of ours has ended: its answer is too large, or no message."""

    request: OutgoingRequest
    error: RemoteProtocolError | OutcomeUnknown
    counted: str = "unreadable answer"


class Reply(msgspec.Struct, gc=False):
    """The protocol itself answers: `frame` goes out now.

    `counted` names the fault that it answers, if it is one; `negotiated` tells that the handshake
    has just settled revision, peer and capabilities. `peer` is who has sent a modern request. `id`
    is that of the request, if it could be read.
    """

    frame: bytes
    id: RequestId | None = None
    counted: str | None = None
    text: str | None = None
    negotiated: bool = False
    peer: Peer | None = None


class Ignored(msgspec.Struct, gc=False):
    """Nothing is to be done and nothing may be answered; `counted` and `text` are for the log."""

    counted: str
    text: str


Event: TypeAlias = (
    RequestReceived
    | BatchReceived
    | NotificationReceived
    | RequestCancelled
    | ProgressReceived
    | ResponseReceived
    | ResponseUnreadable
    | Reply
    | Ignored
)


# --------------------
# What leaves one end of a conversation, and what both directions know.
#
# What goes out is returned as an encoded frame, and it is the caller's duty to send frames in the
# order in which they were returned. Everything is fitted to the revision of the other side: what
# that does not have is left out, or said in its words.


# What a client says before it knows its server.
_FIRST_WORDS: Final = frozenset({methods.INITIALIZE, methods.DISCOVER})

_NONE: Final[Mapping[str, Any]] = MappingProxyType({})


def _counter() -> Counter[str]:
    return Counter()  # `Counter[str]()` remembers that, in each session


class _Kind(msgspec.Struct, rename="camel", gc=False):
    """As much of a result as tells how to read it; without a word it is complete (BASE-38)."""

    result_type: str = COMPLETE


class _Rejected(Exception):  # noqa: N818  what becomes of a request, and no fault of ours
    """A request is answered with an error before any handler sees it."""

    def __init__(
        self, code: int, text: str, *, counted: str = "rejected", data: Any = UNSET
    ) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.counted = counted
        self.data = data


def _without_metadata() -> _Rejected:
    return _Rejected(INVALID_PARAMS, f"invalid params: _meta lacks {PROTOCOL_VERSION}")


@attrs.define(kw_only=True, eq=False)
class Connection:
    """One end of a connection: received messages become events, and messages to send are encoded.

    A message is encoded for the protocol version of the peer: members that this version does not
    have are left out or replaced. The caller sends the encoded messages in the order in which they
    are returned.

    The handshake, or a client's discovery, sets `peer` and `instructions` (a server's own text, or
    the text that a client has received). `counts` has the number of ignored messages and errors by
    their kind.

    Attributes:
        methods: The methods of this connection; a user's own methods may be added at any time.
        declare: Return a server's capabilities for a handshake or a stateless request.
        protocol_versions: The names of the supported protocol versions, the newest first.
        own_metadata: Return what a client adds to the metadata of each request.
        result_types: The result types that extensions add, by their `resultType`.
    """

    our_role: Role
    our_info: types.Implementation
    our_capabilities: Capabilities
    instructions: str | None = None
    limits: Limits = DEFAULT_LIMITS
    methods: Mapping[str, Method] = METHODS
    get_capabilities: Callable[[], types.ServerCapabilities] | None = None
    protocol_versions: Sequence[str] = ALL_PROTOCOL_VERSIONS
    own_metadata: Callable[[], Mapping[str, Any]] = dict[str, Any]
    result_types: Mapping[str, Any] = _NONE

    state: SessionState = attrs.field(default=SessionState.FRESH, init=False)
    peer: Peer | None = attrs.field(default=None, init=False)
    their_role: Role = attrs.field(init=False)
    _signature: dict[str, Any] | None = attrs.field(default=None, init=False)
    incoming: IncomingRequests = attrs.field(factory=IncomingRequests, init=False)
    outgoing: OutgoingRequests = attrs.field(init=False)
    counts: Counter[str] = attrs.field(factory=_counter, init=False)
    _decoder: Decoder = attrs.field(init=False)
    _has_sessions: bool = attrs.field(init=False)
    _principal: str | None = attrs.field(default=None, init=False)  # of the frame that is taken

    def __attrs_post_init__(self) -> None:
        self.their_role = self.our_role.peer
        self.outgoing = OutgoingRequests(remembered_max=self.limits.requests.ended_remembered_max)
        self._has_sessions = newest(self.protocol_versions, has_handshake=True) is not None
        self._decoder = Decoder(
            json_depth_max=self.limits.messages.json_depth_max,
            batch_messages_max=self.limits.messages.batch_size_max,
        )

    @property
    def signature(self) -> dict[str, Any]:
        """Who we are, as every modern result says it in `_meta`: text already, and one for all."""
        if self._signature is None:
            self._signature = {SERVER_INFO: Raw(msgspec.json.encode(self.our_info))}
        return self._signature

    @property
    def protocol_version(self) -> ProtocolVersion | None:
        """What was agreed on; None before."""
        return None if self.peer is None else self.peer.protocol_version

    @property
    def peer_info(self) -> types.Implementation | None:
        """The name of the other side, if it was said."""
        return None if self.peer is None else self.peer.info

    @property
    def peer_capabilities(self) -> Capabilities | None:
        """What the other side can do; None before it was said."""
        return None if self.peer is None else self.peer.capabilities

    # Incoming messages.

    def receive(self, frame: bytes | Oversized) -> Event:
        """What one received frame means; never raises, whatever the peer sent."""
        if type(frame) is Oversized:
            return self._take_oversized(frame)
        if isinstance(frame, DecodedMessage):
            self._principal, message = frame.principal, frame.message
        else:
            self._principal = frame.principal if isinstance(frame, PrincipalMessage) else None
            message = self._decoder.decode(frame)
        return self._takers[type(message)](self, message, len(frame))

    def take(self, message: Message, size_bytes: int) -> Event:
        """What one message of a batch means; see `receive`."""
        return self._takers[type(message)](self, message, size_bytes)

    def _ignored(self, counted: str, text: str) -> Ignored:
        self.counts[counted] += 1
        return Ignored(counted, self._brief(text))

    def _rejection(
        self,
        request_id: RequestId | None,
        code: int,
        text: str,
        *,
        counted: str = "rejected",
        data: Any = UNSET,
    ) -> Reply:
        self.counts[counted] += 1
        text = self._brief(text)
        frame = encode_error(request_id, code, text, data)
        return Reply(frame, request_id, counted=counted, text=text)

    def _brief(self, text: str) -> str:
        """Cut what quotes the peer: a message is one short sentence (BASE-12)."""
        chars_max = self.limits.messages.error_text_chars_max
        return text if len(text) <= chars_max else f"{text[:chars_max]}…"

    def _take_oversized(self, frame: Oversized) -> Event:
        limit = f"limits.messages.bytes_max={self.limits.messages.bytes_max}"
        text = f"a frame of at least {frame.size} bytes exceeds {limit}"
        bad = malformed(frame.prefix, INVALID_REQUEST, text)
        request = self.outgoing.answered(oversized_response_id(bad, self.outgoing.waiting))
        if request is None:
            return self._take_bad(bad, frame.size)
        words = f"at least {frame.size} bytes, over {limit} of this {self.our_role.value}"
        return self._unreadable(request, OutcomeUnknown(f"{self._answer_to(request)}: {words}"))

    def _take_malformed(self, message: Malformed, size_bytes: int) -> Event:
        """A bad frame ends the request of ours that it was to answer, and is else refused."""
        request = self.outgoing.answered(response_id_of(message))
        if request is None:
            return self._take_bad(message, size_bytes)
        text = self._brief(f"{self._answer_to(request)} is {message.message}")
        return self._unreadable(request, RemoteProtocolError(text))

    def _answer_to(self, request: OutgoingRequest) -> str:
        return f"the {self.their_role.value}'s answer to {request.method.name}"

    def _unreadable(
        self, request: OutgoingRequest, error: RemoteProtocolError | OutcomeUnknown
    ) -> ResponseUnreadable:
        event = ResponseUnreadable(request, error)
        self.counts[event.counted] += 1
        self._move(self.their_role, _answer_input(request, is_result=False))
        return event

    def _take_bad(self, message: Malformed, size_bytes: int) -> Event:
        """A server answers a bad frame if its id is known or not needed; a client only counts."""
        is_request = self.our_role is Role.SERVER and message.is_request
        if is_request and (message.id is not None or self._has_errors_without_id()):
            return self._rejection(message.id, message.code, message.message, counted="malformed")
        return self._ignored("malformed", f"{message.message} ({size_bytes} bytes)")

    def _has_errors_without_id(self) -> bool:
        """Return whether the peer knows them, whichever revision it speaks (BASE-07, BASE-08)."""
        spoken = [PROTOCOL_VERSIONS[name] for name in self.protocol_versions]
        spoken = [self.peer.protocol_version] if self.peer is not None else spoken
        return all(protocol_version.has_errors_without_id for protocol_version in spoken)

    def _take_batch(self, batch: Batch, size_bytes: int) -> Event:
        """Only the one revision that has them takes batches, once it is settled (TRAP-01)."""
        if self.peer is not None and self.peer.protocol_version.has_batches:
            return BatchReceived(batch.messages, size_bytes // len(batch.messages))
        text = "not a message: there are no batches in this revision"
        rejected = Malformed(INVALID_REQUEST, text, id=None, is_request=True)
        return self._take_bad(rejected, size_bytes)

    def _take_request(self, message: Request, size_bytes: int) -> Event:
        if self._is_client_of_stateless():
            # A modern server asks nothing, and a client sends no answers (BASE-22, BASE-23).
            return self._ignored("request of a server", f"the server sent {message.method}")
        metadata = metadata_of(message.params)
        try:
            if metadata is None:
                return self._take_of_session(message, size_bytes)
            return self._take_stateless(message, metadata, size_bytes)
        except msgspec.MsgspecError as error:
            return self._rejection(message.id, INVALID_PARAMS, f"invalid params: {error}")
        except _Rejected as rejected:
            return self._rejection(
                message.id,
                rejected.code,
                rejected.text,
                counted=rejected.counted,
                data=rejected.data,
            )

    def _take_of_session(self, message: Request, size_bytes: int) -> Event:
        if not self._has_sessions and message.method != methods.INITIALIZE:
            raise _without_metadata()
        peer = self.peer or attrs.evolve(
            UNKNOWN_PEER, protocol_version=self._protocol_version_of(methods.INITIALIZE)
        )
        row = self._known(message, peer.protocol_version)
        if not self._move(self.their_role, row.input):
            text = f"{row.name} is not allowed now: the session is {self.state.name}"
            raise _Rejected(INVALID_REQUEST, text, counted="out of order")
        self._check_need(row, self.our_capabilities)
        try:
            return self._accept(row, message, size_bytes, peer)
        except (msgspec.MsgspecError, _Rejected):
            if row.input is SessionTrigger.INITIALIZE:
                self._move(self.our_role, SessionTrigger.INITIALIZE_ERROR)
            raise

    def _take_stateless(self, message: Request, metadata: Metadata, size_bytes: int) -> Event:
        peer = self._peer_by(metadata)
        row = self._known(message, peer.protocol_version)
        if not self._move(self.their_role, SessionTrigger.STATELESS):
            text = f"{row.name} is not allowed now: the session is {self.state.name}"
            raise _Rejected(INVALID_REQUEST, text, counted="out of order")
        self._check_need(row, self.current_capabilities())
        return self._accept(row, message, size_bytes, peer, metadata)

    def _peer_by(self, metadata: Metadata) -> Peer:
        """Who has sent a request, in a modern revision that is spoken here (VER-02)."""
        protocol_version = PROTOCOL_VERSIONS.get(metadata.requested)
        if (
            protocol_version is None
            or protocol_version.has_handshake
            or protocol_version.name not in self.protocol_versions
        ):
            raise self._unsupported(metadata.requested)
        if self._principal is None:
            return metadata.peer
        return attrs.evolve(metadata.peer, principal=self._principal)

    def _unsupported(self, requested: str) -> _Rejected:
        supported = ", ".join(self.protocol_versions)
        text = f"unsupported protocol version {requested!r}: choose one of {supported}"
        data = {"supported": list(self.protocol_versions), "requested": requested}
        return _Rejected(UNSUPPORTED_PROTOCOL_VERSION, text, data=data)

    def _known(self, message: Request, protocol_version: ProtocolVersion) -> Method:
        """The row of a method that this side takes now, under an id that is free."""
        row = self.methods.get(message.method)
        if row is None or not row.is_request or self.their_role not in row.senders:
            raise _Rejected(METHOD_NOT_FOUND, f"method not found: {message.method}")
        if not row.exists_in(protocol_version):
            raise self._foreign(row, protocol_version)
        if self.incoming.get(message.id) is not None:
            text = f"an unfinished request has the same id: {message.id!r}"
            raise _Rejected(INVALID_REQUEST, text, counted="duplicate id")
        return row

    def _foreign(self, row: Method, protocol_version: ProtocolVersion) -> _Rejected:
        """A modern method without metadata, or one that this revision does not have."""
        stateless = newest(self.protocol_versions, has_handshake=False)
        if stateless is not None and protocol_version.has_handshake and row.exists_in(stateless):
            return _without_metadata()
        return _Rejected(
            METHOD_NOT_FOUND, f"method not found: {row.name} (not in {protocol_version.name})"
        )

    def _check_need(self, row: Method, capabilities: Capabilities) -> None:
        if row.required_capability is not None and not announced(
            capabilities, row.required_capability.path
        ):
            text = f"method not found: {row.name} (the {row.required_capability} is not announced)"
            raise _Rejected(METHOD_NOT_FOUND, text)

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
        if metadata is not None and raw is not None and not row.is_custom:
            rest = metadata.params_without_meta(raw)
        params = row.decode_params(raw if rest is None else rest)
        if row.name in self._replies:
            reply = self._replies[row.name](self, request_id, params)
            reply.peer = None if metadata is None else peer
            return reply
        token = metadata.progress_token if metadata and rest else token_of(row, params, raw)
        request = IncomingRequest(request_id, row, params, size_bytes, token, peer)
        self.incoming.add(request)
        return RequestReceived(request)

    def _answer_ping(self, request_id: RequestId, _params: types.EmptyParams) -> Reply:
        return Reply(encode_response(request_id, types.EmptyResult()), request_id)

    def _answer_initialize(self, request_id: RequestId, params: types.InitializeParams) -> Reply:
        protocol_version = negotiated(params.protocol_version, self.protocol_versions)
        if protocol_version is None:
            raise self._unsupported(params.protocol_version)
        capabilities = self.declare_once()
        self.set_peer(protocol_version, params.capabilities, params.client_info, self._principal)
        self._move(self.our_role, SessionTrigger.INITIALIZE_RESULT)
        result = types.InitializeResult(
            protocol_version=protocol_version.name,
            capabilities=capabilities,
            server_info=self.our_info,
            instructions=self.instructions,
        )
        frame = encode_response(request_id, downgraded(result, protocol_version))
        return Reply(frame, request_id, negotiated=True)

    def _answer_discover(self, request_id: RequestId, _params: types.EmptyParams) -> Reply:
        result = types.DiscoverResult(
            supported_versions=list(self.protocol_versions),
            capabilities=self.current_capabilities(),
            instructions=self.instructions,
        )
        row = self.methods[methods.DISCOVER]
        return Reply(
            encode_response(request_id, with_result_metadata(result, row, self.signature)),
            request_id,
        )

    def _take_notification(self, message: Notification, _size: int) -> Event:
        row = self.methods.get(message.method)
        if row is None or row.is_request or self.their_role not in row.senders:
            return self._ignored("unknown notification", f"unknown notification {message.method}")
        if not row.exists_in(self._protocol_version_of(row.name)):
            text = f"there is no {row.name} in this revision"
            return self._ignored("unknown notification", text)
        kind = self._kind_of_theirs(row, message)
        if not self._is_legal(self.their_role, kind):
            text = f"{row.name} came out of order: the session is {self.state.name}"
            return self._ignored("out of order", text)
        # A server may log before its capabilities are known here (LIFE-13).
        is_promised = (
            row.needs_subscription and self._is_client_of_stateless()
        )  # by an acknowledgement
        is_known = self.peer is not None and not is_promised
        if is_known and not self._is_announced(
            row.required_capability, self._protocol_version_of(row.name)
        ):
            text = f"{row.name} came, but the {row.required_capability} was not announced"
            return self._ignored("not announced", text)
        try:
            params = row.decode_params(message.params)
        except msgspec.MsgspecError as error:
            return self._ignored("malformed notification", f"{row.name}: {error}")
        self._move(self.their_role, kind)
        return self._notified(row, params)

    def _kind_of_theirs(self, row: Method, message: Notification) -> SessionTrigger:
        """What a notification is to the session table; a client's is modern if it says so."""
        if self.our_role is Role.SERVER and metadata_of(message.params) is not None:
            return (
                SessionTrigger.REFERENCE
                if row.input is SessionTrigger.REFERENCE
                else SessionTrigger.STATELESS
            )
        return self._kind(row, self._protocol_version_of(row.name))

    def _notified(self, row: Method, params: Any) -> Event:
        if row.name == methods.CANCELLED:
            return self._take_cancelled(params)
        if row.name == methods.PROGRESS:
            return self._take_progress(params)
        if row.needs_subscription and self._is_client_of_stateless():
            return self._take_told(row, params)
        return NotificationReceived(row, params)

    def _is_client_of_stateless(self) -> bool:
        peer = self.peer
        return (
            self.our_role is Role.CLIENT and peer is not None and peer.protocol_version.is_stateless
        )

    def _take_told(self, row: Method, params: types.Params) -> Event:
        """What a modern server tells belongs to a subscription, by its id alone (SUB-09)."""
        told = (params.meta or {}).get(SUBSCRIPTION_ID)
        request = self.outgoing.get(told) if type(told) is int else None
        if request is None or not request.method.is_subscription:
            text = f"{row.name} came for no open subscription of ours: {told!r}"
            return self._ignored("no subscription", text)
        return NotificationReceived(row, params, request)

    def _take_cancelled(self, params: types.CancelledParams) -> Event:
        if self._is_client_of_stateless():
            return self._take_tear_down(params)
        request = self.incoming.get(params.request_id)
        if request is None:  # finished, unknown, or `initialize`, which is never open (CANC-07)
            text = f"no open request {params.request_id!r} to cancel"
            return self._ignored("late cancellation", text)
        if request.state is IncomingState.CANCELLED:
            text = f"request {request.id!r} is cancelled already"
            return self._ignored("late cancellation", text)
        request.move(IncomingTrigger.CANCEL)
        return RequestCancelled(request, params.reason)

    def _take_tear_down(self, params: types.CancelledParams) -> Event:
        """A modern server ends a subscription of ours, and may do so by nothing else (CANC-18)."""
        request = self.outgoing.get(params.request_id)
        if request is None or not request.method.is_subscription:
            text = f"no open subscription {params.request_id!r} to end"
            return self._ignored("late cancellation", text)
        self.outgoing.abandon(request)
        return ResponseReceived(request, msgspec.Raw(b"{}"), None)

    def _take_progress(self, params: types.ProgressParams) -> Event:
        request = self.outgoing.get(params.progress_token)
        if request is None or not request.wants_progress:
            text = f"no request of ours waits for progress {params.progress_token!r}"
            return self._ignored("late progress", text)
        return ProgressReceived(request, params)

    def _take_response(self, message: Response, _size: int) -> Event:
        return self._take_answer(message.id, message.result, None)

    def _take_error(self, message: ErrorResponse, _size: int) -> Event:
        return self._take_answer(message.id, None, message.error)

    def _take_answer(
        self, request_id: RequestId | None, result: msgspec.Raw | None, error: ErrorObject | None
    ) -> Event:
        if self.outgoing.is_late(request_id):
            text = f"request {request_id!r} was abandoned before its answer"
            return self._ignored("late answer", text)
        request = self.outgoing.answered(request_id)
        if request is None:
            what = f": {error.message}" if error is not None else ""
            text = f"nobody asked for an answer {request_id!r}{what}"
            return self._ignored("unknown answer", text)
        self._move(self.their_role, _answer_input(request, is_result=error is None))
        return ResponseReceived(request, result, error)

    # Outgoing messages.

    # Requests of ours.

    def open_request(
        self,
        method: str,
        params: ParamsToSend | None,
        *,
        now: float,
        idle_seconds: float = math.inf,
        total_seconds: float = math.inf,
        wants_progress: bool = False,
    ) -> OutgoingRequest:
        """Enter a request of ours; its `frame` must leave next.

        Raises:
            LocalProtocolError: No such request, wrong direction, too early, not negotiated, or
                `params` hold metadata that are not the caller's to say; nothing was entered.
            Unencodable: The params cannot be written as JSON; nothing was entered.
        """
        row = self._sendable(method, self._protocol_version_of(method), is_request=True)
        check_reserved(params)
        request_id = self.outgoing.next_id()
        params = self._complete(row, params)
        if wants_progress:
            params = with_token(params, request_id)
        depth_max = self.limits.messages.json_depth_max
        frame = encode_request(request_id, method, params, json_depth_max=depth_max)
        self._move(self.our_role, self._kind(row, self._protocol_version_of(method)))
        budget = Budget(started=now, idle_seconds=idle_seconds, total_seconds=total_seconds)
        request = OutgoingRequest(request_id, row, frame, budget, wants_progress)
        self.outgoing.add(request)
        return request

    def _complete(self, row: Method, params: ParamsToSend | None) -> ParamsToSend | None:
        """The params in the words of the other side, with what each request has to say."""
        protocol_version = self._protocol_version_of(row.name)
        params = downgraded(params, protocol_version)
        own = self.own_metadata() if self.our_role is Role.CLIENT else dict[str, Any]()
        if protocol_version.is_stateless:
            own = {**own, **client_metadata(protocol_version, self.our_capabilities, self.our_info)}
        return with_meta(params, own) if own else params

    def _protocol_version_of(self, method: str) -> ProtocolVersion:
        """What a message of ours is written in, also before anything was agreed on."""
        if self.peer is not None:
            return self.peer.protocol_version
        stateless = newest(self.protocol_versions, has_handshake=False)
        if method == methods.DISCOVER and stateless is not None:
            return stateless
        return newest(self.protocol_versions, has_handshake=True) or NEWEST_LEGACY

    def decode_result(self, request: OutgoingRequest, raw: Raw) -> Any:
        """The typed result of a request of ours; of a modern one perhaps that it wants input.

        Raises:
            RemoteProtocolError: The result does not have the shape of the method's, or is of a kind
                that was not to be expected (BASE-39, MRTR-03).
        """
        method, kind = request.method, COMPLETE
        try:
            if self.protocol_version is not None and self.protocol_version.is_stateless:
                kind = msgspec.json.decode(raw, type=_Kind).result_type
            if kind == COMPLETE:
                return method.decode_result(raw)
            if kind == INPUT_REQUIRED and method.has_rounds:
                return msgspec.json.decode(raw, type=types.InputRequiredResult)
            if kind in self.result_types:
                return msgspec.json.decode(raw, type=self.result_types[kind])
        except msgspec.MsgspecError as error:
            raise RemoteProtocolError(
                f"the answer to {method.name} is not a valid result: {error}"
            ) from error
        raise RemoteProtocolError(f"the answer to {method.name} is of an unknown kind: {kind!r}")

    def abandon(self, request: OutgoingRequest, reason: str | None = None) -> bytes | None:
        """Nobody waits for a request of ours any more: the cancellation to send, if one is due.

        None when it has ended already, for `initialize`, which is never cancelled (CANC-03), and
        for the first discovery, of which a silent server may know nothing.
        """
        is_first = self.peer is None and request.method.name in _FIRST_WORDS
        if not self.outgoing.abandon(request) or is_first:
            return None
        params = types.CancelledParams(request_id=request.id, reason=reason)
        return encode_notification(methods.CANCELLED, params)

    # A client learns whom it talks with.

    def initialize_params(self) -> types.InitializeParams:
        """What a client sends first: our newest revision with a handshake (LIFE-02, LIFE-04)."""
        assert isinstance(self.our_capabilities, types.ClientCapabilities)
        return types.InitializeParams(
            protocol_version=self._protocol_version_of(methods.INITIALIZE).name,
            capabilities=self.our_capabilities,
            client_info=self.our_info,
        )

    def accept_initialize(self, result: types.InitializeResult) -> bytes:
        """Settle what the server answered; returns the frame of `notifications/initialized`.

        Raises:
            RemoteProtocolError: The server chose a revision that is not spoken here; the caller
                disconnects (LIFE-09).
            LocalProtocolError: There was no such answer; nothing is settled.
        """
        protocol_version = PROTOCOL_VERSIONS.get(result.protocol_version)
        if (
            protocol_version is None
            or not protocol_version.has_handshake
            or result.protocol_version not in self.protocol_versions
        ):
            known = ", ".join(self.protocol_versions)
            raise RemoteProtocolError(
                f"the server chose revision {result.protocol_version!r}; known here: {known}"
            )
        frame = self.notification(methods.INITIALIZED)
        self.set_peer(protocol_version, result.capabilities, result.server_info)
        self.instructions = result.instructions
        return frame

    def select_other_version(self, supported: Sequence[str]) -> bool:
        """Whether a server that refused our offer may take the next one, of what it `supported`.

        From then on nothing else is spoken here (TRAP-16).
        """
        rejected = self._protocol_version_of(methods.INITIALIZE).name
        common = [name for name in self.protocol_versions if name in supported and name != rejected]
        if newest(common, has_handshake=True) is None:
            return False
        self.protocol_versions = common
        return True

    def common_stateless_version(self, supported: Sequence[str]) -> ProtocolVersion | None:
        """The newest modern revision that both sides speak; None if there is none (TRAP-19)."""
        return newest(
            [name for name in self.protocol_versions if name in supported], has_handshake=False
        )

    def accept_discovery(self, result: types.DiscoverResult) -> None:
        """Settle what a modern server says of itself.

        Raises:
            RemoteProtocolError: There is no modern revision that both sides speak.
        """
        protocol_version = self.common_stateless_version(result.supported_versions)
        if protocol_version is None:
            theirs, ours = ", ".join(result.supported_versions), ", ".join(self.protocol_versions)
            raise RemoteProtocolError(
                f"the server speaks {theirs or 'nothing'}; known here: {ours}"
            )
        said = (result.meta or {}).get(SERVER_INFO)
        try:
            info = None if said is None else msgspec.convert(said, types.Implementation)
        except msgspec.ValidationError:  # nothing may depend on it (DISC-07)
            info = None
        self.set_peer(protocol_version, result.capabilities, info)
        self.instructions = result.instructions

    def set_peer(
        self,
        protocol_version: ProtocolVersion,
        capabilities: Capabilities,
        info: types.Implementation | None,
        principal: str | None = None,
    ) -> None:
        """It is known from now on whom we talk with."""
        self.peer = Peer(
            protocol_version=protocol_version,
            capabilities=capabilities,
            info=info,
            principal=principal,
        )

    # Answers, and what is told.

    def response(self, request: IncomingRequest, result: msgspec.Struct | Raw) -> bytes:
        """The frame of an answer, in the words of the request's revision.

        Raises:
            LocalProtocolError: The revision cannot say this at all.
            Unencodable: The result cannot be written as JSON, or is too large.
        """
        protocol_version = request.peer.protocol_version
        result = downgraded(result, protocol_version)
        if protocol_version.is_stateless:
            result = with_result_metadata(result, request.method, self.signature)
        return encode_response(
            request.id, result, json_depth_max=self.limits.messages.json_depth_max
        )

    def error(self, request: IncomingRequest, code: int, message: str, data: Any = UNSET) -> bytes:
        """The frame of an error that answers a request, with a code that its revision has.

        Raises:
            Unencodable: The data cannot be written as JSON.
        """
        return encode_error(
            request.id, request.peer.protocol_version.error_code_for(code), message, data
        )

    def notification(
        self,
        method: str,
        params: ParamsToSend | None = None,
        *,
        request: IncomingRequest | None = None,
    ) -> bytes:
        """The frame of a notification of ours, but for those that `progress` and `abandon` make.

        `request` is the modern one that it belongs to, if it belongs to one.

        Raises:
            LocalProtocolError: No such notification, wrong direction, too early, not negotiated,
                or about a request.
            Unencodable: The params cannot be written as JSON.
        """
        protocol_version = (
            self._protocol_version_of(method) if request is None else request.peer.protocol_version
        )
        is_honoured = request is not None and request.method.is_subscription
        row = self._sendable(method, protocol_version, is_request=False, is_honoured=is_honoured)
        if row.input is SessionTrigger.REFERENCE:
            raise LocalProtocolError(f"{method} is about a request: call progress() or abandon()")
        params = downgraded(params, protocol_version)
        frame = encode_notification(
            method, params, json_depth_max=self.limits.messages.json_depth_max
        )
        self._move(self.our_role, self._kind(row, protocol_version))
        return frame

    def progress(
        self,
        request: IncomingRequest,
        progress: float,
        total: float | None = None,
        message: str | None = None,
    ) -> bytes | None:
        """The frame that reports on a request of theirs; None when it must not be sent.

        That is when nobody asked (no token), when the request is not running any more (PROG-05,
        PROG-09), when the value has not grown (PROG-06), and when the session is closed.

        Raises:
            LocalProtocolError: A number is NaN or infinite, for which JSON has no word.
        """
        params = report(request, progress, total, message)
        if params is None or not self._is_legal(self.our_role, SessionTrigger.REFERENCE):
            return None
        return encode_notification(
            methods.PROGRESS, downgraded(params, request.peer.protocol_version)
        )

    def subscription_end(self, request: IncomingRequest) -> bytes:
        """The frame that tells a client of the end of its subscription (SUB-15)."""
        meta = {SUBSCRIPTION_ID: request.id}
        params = types.CancelledParams(request_id=request.id, meta=meta)
        return encode_notification(methods.CANCELLED, params)

    # Requests of theirs.

    def start(self, request: IncomingRequest) -> None:
        """The handler of a request of theirs begins.

        Raises:
            LocalProtocolError: It was started, answered or cancelled before.
        """
        request.move(IncomingTrigger.START)

    def finish(self, request: IncomingRequest) -> bool:
        """A request of theirs has an answer or an error; True when that may be sent.

        Its id is free from now on. A cancelled request is finished like any other (CANC-06).

        Raises:
            LocalProtocolError: It was answered before.
        """
        return self.incoming.finish(request)

    def close(self) -> list[OutgoingRequest]:
        """The session is over; returns the requests of ours that are lost by it. Idempotent."""
        self._move(self.our_role, SessionTrigger.CLOSE)
        return self.outgoing.lose_all()

    # What both directions ask.

    def _sendable(
        self,
        method: str,
        protocol_version: ProtocolVersion,
        *,
        is_request: bool,
        is_honoured: bool = False,
    ) -> Method:
        """The row of a message that may leave; one that is `honoured` was promised before."""
        row = self.methods.get(method)
        if row is None or row.is_request is not is_request:
            raise LocalProtocolError(unknown(method, self.our_role, is_request=is_request))
        if self.our_role not in row.senders:
            raise LocalProtocolError(f"a {self.our_role.value} does not send {method}")
        if not row.exists_in(protocol_version):
            raise LocalProtocolError(f"there is no {method} in revision {protocol_version.name}")
        if not self._is_legal(self.our_role, self._kind(row, protocol_version)):
            raise LocalProtocolError(
                f"{method} is not allowed now: the session is {self.state.name}"
            )
        if not (is_honoured or self._is_announced(row.required_capability, protocol_version)):
            raise LocalProtocolError(
                f"{method} needs the {row.required_capability}, which is not announced"
            )
        return row

    def _kind(self, row: Method, protocol_version: ProtocolVersion) -> SessionTrigger:
        """What a message of ours is to the session table."""
        if row.input is SessionTrigger.REFERENCE:
            return row.input
        return SessionTrigger.STATELESS if protocol_version.is_stateless else row.input

    def _is_announced(
        self, required_capability: RequiredCapability | None, protocol_version: ProtocolVersion
    ) -> bool:
        if required_capability is None:
            return True
        if required_capability.holder is not self.our_role:
            return announced(self.peer_capabilities, required_capability.path)
        is_declared_anew = protocol_version.is_stateless and self.our_role is Role.SERVER
        ours = self.current_capabilities() if is_declared_anew else self.our_capabilities
        return announced(ours, required_capability.path)

    def declare_once(self) -> types.ServerCapabilities:
        """What a server can do now, and has said for the whole session."""
        capabilities = self.our_capabilities = self.current_capabilities()
        return capabilities

    def current_capabilities(self) -> types.ServerCapabilities:
        """What a server can do now."""
        if self.get_capabilities is not None:
            return self.get_capabilities()
        capabilities = self.our_capabilities
        assert isinstance(capabilities, types.ServerCapabilities)
        return capabilities

    def _is_legal(self, sender: Role, kind: SessionTrigger) -> bool:
        return (sender, kind) in SESSION_TRANSITIONS[self.state]

    def _move(self, sender: Role, kind: SessionTrigger) -> bool:
        after = SESSION_TRANSITIONS[self.state].get((sender, kind))
        self.state = after or self.state
        return after is not None

    _takers: ClassVar[Mapping[type, Callable[..., Event]]] = {
        Request: _take_request,
        Notification: _take_notification,
        Response: _take_response,
        ErrorResponse: _take_error,
        Malformed: _take_malformed,
        Batch: _take_batch,
    }
    _replies: ClassVar[Mapping[str, Callable[..., Reply]]] = {
        PING: _answer_ping,
        INITIALIZE: _answer_initialize,
        DISCOVER: _answer_discover,
    }


def _answer_input(request: OutgoingRequest, *, is_result: bool) -> SessionTrigger:
    if request.method.input is not SessionTrigger.INITIALIZE:
        return SessionTrigger.ANSWER
    return SessionTrigger.INITIALIZE_RESULT if is_result else SessionTrigger.INITIALIZE_ERROR
