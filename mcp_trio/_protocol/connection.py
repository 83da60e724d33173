"""One side of an MCP connection as a state machine, without I/O.

Received messages go in and become events; messages to send come out encoded. Each received message
becomes exactly one event, and `Connection.receive` never raises.

There are two kinds of requests. A request that carries its metadata (`_meta`, protocol version
2026-07-28 and later) is *stateless*: it needs no handshake and changes no state. Every other
request belongs to a session that a handshake opens. A connection serves both side by side. Each
received request keeps its sender as a `Peer`, known from the handshake or from its own metadata.

A received request is checked in the order in which its sender can correct errors: metadata, method,
id, session state, capability, params. A rejected request changes no state.

The lifecycle: https://modelcontextprotocol.io/specification/2025-11-25/basic/lifecycle
"""

import enum
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any, ClassVar, Final, TypeAlias

import attrs
import msgspec
from msgspec import UNSET, Raw

from mcp_trio import types
from mcp_trio._jsonrpc.channel_messages import AuthInfo, DecodedMessage, PrincipalMessage
from mcp_trio._jsonrpc.lines import Oversized
from mcp_trio._jsonrpc.messages import (
    Batch,
    Decoder,
    ErrorObject,
    ErrorResponse,
    Malformed,
    Message,
    Notification,
    Request,
    Response,
    decoder_for,
    encode_error,
    encode_notification,
    encode_plain_notification,
    encode_request,
    encode_response,
    malformed,
    not_a_message,
)
from mcp_trio._protocol.compat import CompatibleToolResult, downgraded
from mcp_trio._protocol.empty import NO_ITEMS
from mcp_trio._protocol.metadata import (
    COMPLETE,
    INPUT_REQUIRED,
    PROGRESS_TOKEN,
    PROTOCOL_VERSION,
    SERVER_INFO,
    SUBSCRIPTION_ID,
    UNKNOWN_PEER,
    Capabilities,
    Metadata,
    Peer,
    SessionCall,
    ToolCall,
    check_user_meta,
    client_metadata,
    client_of_handshake,
    decode_session_call,
    decode_tool_call,
    metadata_and_token_in,
    metadata_in,
    metadata_of,
    progress_token_in,
    progress_token_of,
    with_meta,
    with_result_metadata,
)
from mcp_trio._protocol.methods import (
    CALL_TOOL,
    CANCELLED,
    DISCOVER,
    INITIALIZE,
    INITIALIZED,
    METHODS,
    PING,
    PROGRESS,
    FastEnum,
    Method,
    ParamsToSend,
    RequiredCapability,
    Role,
    SessionTrigger,
    has_capability,
)
from mcp_trio._protocol.requests import (
    Budget,
    IncomingRequest,
    IncomingState,
    IncomingTrigger,
    OutgoingRequest,
    OutgoingRequests,
    oversized_response_id,
    response_id_of,
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
    Unencodable,
)
from mcp_trio.limits import DEFAULT_LIMITS, Limits
from mcp_trio.types import RequestId

# The state of a session.
#
# A session is one handshake, after which everything is allowed:
#
#     FRESH ──client initialize──▶ INITIALIZING ──server's result──▶ ANSWERED ──initialized──▶ READY
#       ▲                               │
#       └────────server's error─────────┘
#
# A client may initialize again while no request is open. That begins a new session on the same
# connection: proxies such as supergateway give one server process to one client after another.
#
# The keys of the table are the *role* of the sender and the kind of message. The table does not
# depend on which side this connection is, so both ends of a connection use the same one. A missing
# row means that the message is not allowed; the caller knows which side is then at fault.
#
# - Pings are allowed at any time. So are responses, which belong to requests that were allowed, and
#   cancellations and progress, for which `requests` knows whether the request is still open.
# - A stateless message is allowed at any time, because it needs no handshake.
# - Before READY the server may only send log messages. Before its response to `initialize` the
#   client may only send pings.
# - In ANSWERED the client may already send requests. The specification asks it to send
#   `notifications/initialized` first, but not all clients do; by then both sides know the protocol
#   version, and a rejection would only break such clients.
#
# The states of single requests are in `requests`.


class SessionState(FastEnum):
    """The progress of the handshake."""

    FRESH = enum.auto()
    INITIALIZING = enum.auto()
    ANSWERED = enum.auto()
    READY = enum.auto()
    CLOSED = enum.auto()


_State, _Trigger, _CLIENT, _SERVER = SessionState, SessionTrigger, Role.CLIENT, Role.SERVER

# Every request needs these members. In CPython 3.11, reading one from its enumeration calls a
# function that is written in Python.
_INITIALIZE, _STATELESS = SessionTrigger.INITIALIZE, SessionTrigger.STATELESS
_REFERENCE: Final = SessionTrigger.REFERENCE
_RESPOND, _REQUEST_ANSWERED = IncomingTrigger.RESPOND, IncomingState.ANSWERED

_ALWAYS_ALLOWED: Final = (
    *product(Role, (_Trigger.PING, _Trigger.STATELESS, _Trigger.RESPONSE, _Trigger.REFERENCE)),
    (_SERVER, _Trigger.LOG),
)
_CLOSING: Final = dict.fromkeys(product(Role, (_Trigger.CLOSE,)), _State.CLOSED)

SESSION_TRANSITIONS: Final[
    Mapping[SessionState, Mapping[tuple[Role, SessionTrigger], SessionState]]
] = {
    _State.FRESH: {
        (_CLIENT, _Trigger.INITIALIZE): _State.INITIALIZING,
        **dict.fromkeys(_ALWAYS_ALLOWED, _State.FRESH),
        **_CLOSING,
    },
    _State.INITIALIZING: {
        (_SERVER, _Trigger.INITIALIZE_RESULT): _State.ANSWERED,
        (_SERVER, _Trigger.INITIALIZE_ERROR): _State.FRESH,
        **dict.fromkeys(_ALWAYS_ALLOWED, _State.INITIALIZING),
        **_CLOSING,
    },
    _State.ANSWERED: {
        (_CLIENT, _Trigger.INITIALIZE): _State.INITIALIZING,
        (_CLIENT, _Trigger.INITIALIZED): _State.READY,
        (_CLIENT, _Trigger.REQUEST): _State.ANSWERED,
        (_CLIENT, _Trigger.NOTIFICATION): _State.ANSWERED,
        **dict.fromkeys(_ALWAYS_ALLOWED, _State.ANSWERED),
        **_CLOSING,
    },
    _State.READY: {
        (_CLIENT, _Trigger.INITIALIZE): _State.INITIALIZING,
        (_CLIENT, _Trigger.REQUEST): _State.READY,
        (_CLIENT, _Trigger.NOTIFICATION): _State.READY,
        (_SERVER, _Trigger.REQUEST): _State.READY,
        (_SERVER, _Trigger.NOTIFICATION): _State.READY,
        **dict.fromkeys(_ALWAYS_ALLOWED, _State.READY),
        **_CLOSING,
    },
    _State.CLOSED: {},
}
"""The state after a message, by the state before it, the role of the sender and the trigger."""


# The events that received messages become.


class RequestReceived(msgspec.Struct, gc=False):
    """A valid request for a handler."""

    request: IncomingRequest


class BatchReceived(msgspec.Struct, gc=False):
    """Several messages. Pass each to `Connection.receive_batched` after handling the one before.

    `size_bytes` is the average size of the messages.
    """

    messages: Sequence[Message]
    size_bytes: int


class NotificationReceived(msgspec.Struct, gc=False):
    """A valid notification; `request` is the open subscription that it belongs to, if any."""

    method: Method
    params: Any
    request: OutgoingRequest | None = None


class RequestCancelled(msgspec.Struct, gc=False):
    """The peer has cancelled a request that is not finished."""

    request: IncomingRequest
    reason: str | None


class ProgressReceived(msgspec.Struct, gc=False):
    """The peer has reported progress on an open request of this side."""

    request: OutgoingRequest
    params: Any


class ResponseReceived(msgspec.Struct, gc=False):
    """A request of this side has ended; either `result` (raw JSON) or `error` is set."""

    request: OutgoingRequest
    result: Raw | None
    error: ErrorObject | None


class ResponseUnreadable(msgspec.Struct, gc=False):
    """A request of this side has ended, because its response is too large or malformed."""

    request: OutgoingRequest
    error: RemoteProtocolError | OutcomeUnknown
    counter: str = "unreadable answer"


class ImmediateResponse(msgspec.Struct, gc=False):
    """A response of the protocol itself, to be sent now.

    Attributes:
        message: The encoded response.
        id: The id of the request; None if it could not be read.
        counter: The name of the counter, if the response is an error.
        text: The text of that error.
        negotiated: Whether the handshake has just set the protocol version, peer and capabilities.
        peer: The sender of a stateless request.
        method: The method of the request; empty if it could not be read.
        params: The typed params of the request; None if it was rejected.
    """

    message: bytes
    id: RequestId | None = None
    counter: str | None = None
    text: str | None = None
    negotiated: bool = False
    peer: Peer | None = None
    method: str = ""
    params: Any = None


class Ignored(msgspec.Struct, gc=False):
    """A message without effect; `counter` names its counter, and `text` is for the log."""

    counter: str
    text: str


Event: TypeAlias = (
    RequestReceived
    | BatchReceived
    | NotificationReceived
    | RequestCancelled
    | ProgressReceived
    | ResponseReceived
    | ResponseUnreadable
    | ImmediateResponse
    | Ignored
)


class _ResultType(msgspec.Struct, rename="camel", gc=False):
    """The `resultType` of a stateless result; a result without one is complete."""

    result_type: str = COMPLETE


_decode_result_type: Final = msgspec.json.Decoder(_ResultType).decode


class _Rejected(Exception):  # noqa: N818  the peer's error, which `receive` turns into a response
    """A received request is answered with an error before any handler runs."""

    def __init__(
        self, code: int, text: str, *, counter: str = "rejected", data: Any = UNSET
    ) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.counter = counter
        self.data = data


def _metadata_missing() -> _Rejected:
    return _Rejected(INVALID_PARAMS, f"invalid params: _meta lacks {PROTOCOL_VERSION}")


class _AllowedCall(msgspec.Struct, eq=False, frozen=True):
    """A call of a tool that was allowed, and the facts that this depended on.

    Attributes:
        row: The row of `tools/call` in the table of methods.
        peer: The sender, as the transport has authenticated it.
        metadata: The metadata of a stateless call; None for a call of the session.
        capabilities: Those of this side, which may change between stateless calls.
    """

    row: Method
    peer: Peer
    metadata: Metadata | None
    capabilities: Capabilities


@attrs.define(kw_only=True, eq=False, repr=False)
class Connection:
    """One side of a connection.

    Messages are encoded for the protocol version of the peer: members that this version does not
    have are left out or replaced. The caller sends the encoded messages in the order in which they
    were returned.

    Attributes:
        our_role, our_info, our_capabilities: The role, name, version and capabilities of this side.
        instructions: A server's instructions; on a client, those that it has received.
        methods: The methods of this connection; a user's own methods may be added at any time.
        get_capabilities: Return a server's current capabilities; None if they never change.
        protocol_versions: The names of the supported protocol versions, the newest first.
        request_metadata: Return the members that a client adds to `_meta` of each request.
        result_types: The result types that extensions add, by their `resultType`.
        state: The state of the session.
        peer: The peer, once the handshake or a client's discovery has made it known.
        their_role: The role of the peer.
        incoming: The open requests of the peer, by their ids.
        outgoing: The open requests of this side.
        counts: The number of ignored messages and of errors, by their kind.
    """

    our_role: Role
    our_info: types.Implementation
    our_capabilities: Capabilities
    instructions: str | None = None
    limits: Limits = DEFAULT_LIMITS
    methods: Mapping[str, Method] = METHODS
    get_capabilities: Callable[[], types.ServerCapabilities] | None = None
    protocol_versions: Sequence[str] = ALL_PROTOCOL_VERSIONS
    request_metadata: Callable[[], Mapping[str, Any]] = dict[str, Any]
    result_types: Mapping[str, Any] = NO_ITEMS

    state: SessionState = attrs.field(default=SessionState.FRESH, init=False)
    peer: Peer | None = attrs.field(default=None, init=False)
    their_role: Role = attrs.field(init=False)
    incoming: dict[RequestId, IncomingRequest] = attrs.field(default=NO_ITEMS, init=False)
    outgoing: OutgoingRequests = attrs.field(init=False)
    counts: dict[str, int] = attrs.field(default=NO_ITEMS, init=False)
    _decoder: Decoder = attrs.field(init=False)
    # The row of `tools/call` whose requests are decoded in one pass, as `ToolCall`; None for a
    # client. If the user has declared `tools/call` with other params, `methods` has another row.
    _call_row: Method | None = attrs.field(init=False)
    _accepts_handshakes: bool = attrs.field(init=False)
    # The last call of a tool that was allowed; None again when the state changes, as it does in
    # each handshake.
    _allowed_call: _AllowedCall | None = attrs.field(default=None, init=False)
    _result_metadata: dict[str, Any] | None = attrs.field(default=None, init=False)
    _client_metadata: tuple[ProtocolVersion, Mapping[str, Any]] | None = attrs.field(
        default=None, init=False
    )
    # The sender of the message that is being received, as in `PrincipalMessage`.
    _auth: AuthInfo | None = attrs.field(default=None, init=False)
    _client_number: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self.their_role = self.our_role.peer
        self.outgoing = OutgoingRequests(remembered_max=self.limits.requests.ended_remembered_max)
        self._call_row = METHODS[CALL_TOOL] if self.our_role is Role.SERVER else None
        self._accepts_handshakes = newest(self.protocol_versions, has_handshake=True) is not None
        self._decoder = decoder_for(self.limits.messages)

    @property
    def result_metadata(self) -> dict[str, Any]:
        """The `_meta` of each stateless result: the name of this server, encoded once."""
        if self._result_metadata is None:
            self._result_metadata = {SERVER_INFO: Raw(msgspec.json.encode(self.our_info))}
        return self._result_metadata

    @property
    def protocol_version(self) -> ProtocolVersion | None:
        """The negotiated protocol version; None before the negotiation."""
        return None if self.peer is None else self.peer.protocol_version

    @property
    def peer_info(self) -> types.Implementation | None:
        """The name and version of the peer; None if unknown."""
        return None if self.peer is None else self.peer.info

    @property
    def peer_capabilities(self) -> Capabilities | None:
        """The capabilities of the peer; None before the negotiation."""
        return None if self.peer is None else self.peer.capabilities

    # Receiving messages.

    def receive(self, data: bytes | Oversized) -> Event:
        """Return the event for a received message; never raises."""
        # Most messages are plain bytes, for which `isinstance` need not be called.
        if type(data) is bytes:
            self._auth, self._client_number = None, 0
        elif type(data) is Oversized:
            return self._receive_oversized(data)
        elif isinstance(data, PrincipalMessage):
            self._auth, self._client_number = data.auth, data.client_number
        else:
            self._auth, self._client_number = None, 0
        message: SessionCall | ToolCall | Message | Batch
        decodes_tool_calls = self.methods.get(CALL_TOOL) is self._call_row
        if type(data) is DecodedMessage and (
            decodes_tool_calls or type(data.message) is not ToolCall
        ):
            message = data.message
        elif not decodes_tool_calls:
            message = self._decoder.decode(data)
        elif self.peer is None:
            message = self._decoder.decode_by(decode_tool_call, data)
        else:
            message = self._decoder.decode_by(decode_session_call, data)
            if type(message) is SessionCall:
                if not (message.params.meta and message.is_stateless):
                    return self._receive_session_call(message, len(data))
                message = self._decoder.decode_by(decode_tool_call, data)
        return self._receivers[type(message)](self, message, len(data))

    def receive_batched(self, message: Message, size_bytes: int) -> Event:
        """Return the event for one message of a batch; never raises."""
        if isinstance(message, Request) and message.method == INITIALIZE:
            # https://modelcontextprotocol.io/specification/2025-03-26/basic/lifecycle#initialization
            text = "initialize must not be part of a batch"
            return self._rejection(message.id, INVALID_REQUEST, text, counter="out of order")
        return self._receivers[type(message)](self, message, size_bytes)

    def count(self, counter: str) -> int:
        """Count an ignored message or an error of this kind; return how many there were so far."""
        if not self.counts:
            self.counts = {}
        number = self.counts[counter] = self.counts.get(counter, 0) + 1
        return number

    def _ignored(self, counter: str, text: str) -> Ignored:
        self.count(counter)
        return Ignored(counter, self._shortened(text))

    def _rejection(
        self,
        request_id: RequestId | None,
        code: int,
        text: str,
        *,
        counter: str = "rejected",
        data: Any = UNSET,
    ) -> ImmediateResponse:
        self.count(counter)
        text = self._shortened(text)
        error = encode_error(request_id, code, text, data)
        return ImmediateResponse(error, request_id, counter=counter, text=text)

    def _shortened(self, text: str) -> str:
        # Texts quote the peer, and JSON-RPC asks for a concise message of one sentence.
        chars_max = self.limits.messages.error_text_chars_max
        return text if len(text) <= chars_max else f"{text[:chars_max]}…"

    # Receiving malformed messages and batches.

    def _receive_oversized(self, oversized: Oversized) -> Event:
        limit = f"limits.messages.bytes_max={self.limits.messages.bytes_max}"
        text = f"a message of at least {oversized.size} bytes exceeds {limit}"
        bad = malformed(oversized.prefix, INVALID_REQUEST, text)
        request = self.outgoing.finish(oversized_response_id(bad, self.outgoing.waiting))
        if request is None:
            return self._reject_malformed(bad, oversized.size)
        error = OutcomeUnknown(
            f"{self._response_name(request)}: at least {oversized.size} bytes,"
            f" over {limit} of this {self.our_role.value}"
        )
        return self._unreadable(request, error)

    def _receive_malformed(self, message: Malformed, size_bytes: int) -> Event:
        request = self.outgoing.finish(response_id_of(message))
        if request is None:
            return self._reject_malformed(message, size_bytes)
        text = self._shortened(f"{self._response_name(request)} is {message.message}")
        return self._unreadable(request, RemoteProtocolError(text))

    def _response_name(self, request: OutgoingRequest) -> str:
        return f"the {self.their_role.value}'s response to {request.method.name}"

    def _unreadable(
        self, request: OutgoingRequest, error: RemoteProtocolError | OutcomeUnknown
    ) -> ResponseUnreadable:
        event = ResponseUnreadable(request, error)
        self.count(event.counter)
        self._move(self.their_role, _response_trigger(request, is_result=False))
        return event

    def _reject_malformed(self, message: Malformed, size_bytes: int) -> Event:
        # A server answers if it knows the id, or if the peer knows error responses without an id,
        # whatever its version is. A client sends no such errors.
        versions = [PROTOCOL_VERSIONS[name] for name in self.protocol_versions]
        if self.peer is not None:
            versions = [self.peer.protocol_version]
        is_answered = message.id is not None or all(it.has_errors_without_id for it in versions)
        if self.our_role is Role.SERVER and message.is_request and is_answered:
            return self._rejection(message.id, message.code, message.message, counter="malformed")
        return self._ignored("malformed", f"{message.message} ({size_bytes} bytes)")

    def _receive_batch(self, batch: Batch, size_bytes: int) -> Event:
        """Accept a batch in the only protocol version with batches, once it is negotiated.

        In other versions, the requests of this side that the batch responds to end with an error.

        https://modelcontextprotocol.io/specification/2025-03-26/basic#batching
        """
        messages = batch.messages
        if self.peer is None or not self.peer.protocol_version.has_batches:
            rejected = not_a_message("this protocol version has no batches")
            messages = [
                msgspec.structs.replace(rejected, id=each.id, is_request=False)
                for each in batch.messages
                if isinstance(each, Response | ErrorResponse) and self.outgoing.get(each.id)
            ]
            if not messages:
                return self._reject_malformed(rejected, size_bytes)
            if len(messages) < len(batch.messages):
                messages.append(rejected)
        return BatchReceived(messages, size_bytes // len(batch.messages))

    # Receiving requests.

    # Nearly all requests call a tool. The tables say that a call is allowed if they did for an
    # earlier one, as long as state, peer and capabilities are the same; metadata are the same if
    # they have the same bytes.

    def _receive_session_call(self, message: SessionCall, size_bytes: int) -> Event:
        """Add a call of a tool in the session to the open requests."""
        allowed, incoming, params, token = self._allowed_call, self.incoming, message.params, None
        if (
            allowed is None
            or allowed.metadata is not None
            or allowed.peer.auth is not self._auth
            or message.id in incoming
        ):
            return self._receive_request(message, size_bytes)
        if params.meta:
            try:
                token = progress_token_in(params.meta)
            except msgspec.ValidationError:
                return self._receive_request(message, size_bytes)  # which makes the error response
        # As `_add_request`, without a call.
        client_key = self._client_number if self._auth is None else self._auth.principal
        request = IncomingRequest(
            message.id, allowed.row, params, size_bytes, token, allowed.peer, client_key
        )
        if not incoming:
            incoming = self.incoming = {}
        incoming[message.id] = request
        return RequestReceived(request)

    def _receive_tool_call(self, message: ToolCall, size_bytes: int) -> Event:
        """Add a call of a tool to the open requests: a stateless one, or one over HTTP."""
        allowed, (metadata, token) = self._allowed_call, metadata_and_token_in(message.params.meta)
        if (
            allowed is None
            or metadata is not allowed.metadata
            or allowed.peer.auth is not self._auth
            or message.id in self.incoming
            or (metadata is not None and self.current_capabilities() is not allowed.capabilities)
        ):
            return self._receive_request(message, size_bytes)
        try:
            params, other_token = message.typed_params(metadata)
        except msgspec.ValidationError:
            return self._receive_request(message, size_bytes)  # which makes the error response
        if token is None:
            token = other_token
        return self._add_request(message.id, allowed.row, params, size_bytes, token, allowed.peer)

    def _add_request(
        self,
        request_id: RequestId,
        row: Method,
        params: Any,
        size_bytes: int,
        token: RequestId | None,
        peer: Peer,
    ) -> RequestReceived:
        client_key = self._client_number if self._auth is None else self._auth.principal
        request = IncomingRequest(request_id, row, params, size_bytes, token, peer, client_key)
        incoming = self.incoming
        if not incoming:
            incoming = self.incoming = {}
        incoming[request_id] = request
        return RequestReceived(request)

    def _receive_request(self, message: SessionCall | ToolCall | Request, size_bytes: int) -> Event:
        """Check a request, and add it to the open ones or answer it."""
        if self.our_role is _CLIENT and self._has_stateless_server():
            # Stateless servers send no requests, and clients send them no responses.
            text = f"a stateless server must not send requests, but sent {message.method}"
            return self._ignored("request of a server", text)
        state, peer, metadata = self.state, self.peer, None
        try:
            if isinstance(message, ToolCall):
                metadata = metadata_in(message.params.meta)
            elif isinstance(message, Request):
                metadata = metadata_of(message.params)
            # Each message may have a token of its own.
            if metadata is not None or peer is None or peer.auth is not self._auth:
                peer = self._sender(message.method, metadata)
            row = self._check_allowed(message, peer, metadata)
            if isinstance(message, ToolCall):
                params, token = message.typed_params(metadata)
            elif isinstance(message, SessionCall):
                params = message.params
                token = progress_token_in(params.meta) if params.meta else None
            else:
                params, token = self._typed_params(row, message.params, metadata)
                if row.name in self._responders:
                    reply = self._responders[row.name](self, message.id, params)
                    reply.peer = None if metadata is None else peer
                    reply.method, reply.params = row.name, params
                    return reply
        except msgspec.MsgspecError as error:
            self.state = state
            reply = self._rejection(message.id, INVALID_PARAMS, f"invalid params: {error}")
            reply.method = message.method
            return reply
        except _Rejected as rejected:
            self.state = state
            reply = self._rejection(
                message.id,
                rejected.code,
                rejected.text,
                counter=rejected.counter,
                data=rejected.data,
            )
            reply.method = message.method
            return reply
        return self._add_request(message.id, row, params, size_bytes, token, peer)

    def _sender(self, method: str, metadata: Metadata | None) -> Peer:
        """Return the sender of a request, with its token.

        `metadata` is that of a stateless request, and None for a request of the session.

        Raises:
            _Rejected: The metadata are missing, or have a protocol version that is not supported.
            msgspec.MsgspecError: The metadata are invalid.
        """
        if metadata is not None:
            protocol_version = PROTOCOL_VERSIONS.get(metadata.version)
            if (
                protocol_version is None
                or protocol_version.has_handshake
                or protocol_version.name not in self.protocol_versions
            ):
                raise self._unsupported(metadata.version)
            peer = metadata.peer
        elif not self._accepts_handshakes and method != INITIALIZE:
            raise _metadata_missing()
        else:
            peer = self.peer or msgspec.structs.replace(
                UNKNOWN_PEER, protocol_version=self._version_for(INITIALIZE)
            )
        if peer.auth is self._auth:
            return peer
        return msgspec.structs.replace(peer, auth=self._auth)

    def _unsupported(self, requested: str) -> _Rejected:
        supported = ", ".join(self.protocol_versions)
        text = f"unsupported protocol version {requested!r}: choose one of {supported}"
        data = {"supported": list(self.protocol_versions), "requested": requested}
        return _Rejected(UNSUPPORTED_PROTOCOL_VERSION, text, data=data)

    def _check_allowed(
        self,
        message: SessionCall | ToolCall | Request,
        peer: Peer,
        metadata: Metadata | None,
    ) -> Method:
        """Check that a request is allowed now, change the state, and return its row.

        Raises:
            _Rejected: The request is not allowed.
        """
        row = self.methods.get(message.method)
        if row is None or not row.is_request or self.their_role not in row.senders:
            raise _Rejected(METHOD_NOT_FOUND, f"method not found: {message.method}")
        if peer.protocol_version not in row.protocol_versions:
            stateless = newest(self.protocol_versions, has_handshake=False)
            if peer.protocol_version.has_handshake and stateless in row.protocol_versions:
                raise _metadata_missing()
            text = f"method not found: {row.name} (not in {peer.protocol_version.name})"
            raise _Rejected(METHOD_NOT_FOUND, text)
        if message.id in self.incoming:
            text = f"an unfinished request has the same id: {message.id!r}"
            raise _Rejected(INVALID_REQUEST, text, counter="duplicate id")
        trigger = row.trigger if metadata is None else _STATELESS
        if trigger is _INITIALIZE and (self.incoming or self.outgoing):
            text = (
                "initialize is not allowed now: it would begin a new session, but requests of this"
                f" one are unfinished ({len(self.incoming)} received, {len(self.outgoing)} sent)"
            )
            raise _Rejected(INVALID_REQUEST, text, counter="out of order")
        if not self._move(self.their_role, trigger):
            text = f"{row.name} is not allowed now: the session is {self.state.name}"
            raise _Rejected(INVALID_REQUEST, text, counter="out of order")
        required = row.required_capability
        if required is not None:
            own = self.our_capabilities if metadata is None else self.current_capabilities()
            if not has_capability(own, required.path):
                text = f"method not found: {row.name} (the {required} is not announced)"
                raise _Rejected(METHOD_NOT_FOUND, text)
            if row is self._call_row:
                if isinstance(message, ToolCall):
                    metadata, _ = metadata_and_token_in(message.params.meta)
                self._allowed_call = _AllowedCall(row, peer, metadata, own)
        return row

    def _typed_params(
        self, row: Method, raw: Raw | None, metadata: Metadata | None
    ) -> tuple[Any, RequestId | None]:
        """Return the typed params of a request, and its progress token.

        Raises:
            msgspec.MsgspecError: The params are invalid.
        """
        without_meta = None
        if metadata is not None and raw is not None and not row.is_custom:
            without_meta = metadata.params_without_meta(raw)
        params = row.decode_params(raw if without_meta is None else without_meta)
        if row.name in self._responders:
            return params, None
        if metadata is not None and without_meta is not None:
            return params, metadata.progress_token
        needs_token = row.is_custom or params.meta
        return params, progress_token_of(row, params, raw) if needs_token else None

    def _answer_ping(self, request_id: RequestId, _params: types.EmptyParams) -> ImmediateResponse:
        return ImmediateResponse(encode_response(request_id, types.EmptyResult()), request_id)

    def _answer_initialize(
        self, request_id: RequestId, params: types.InitializeParams
    ) -> ImmediateResponse:
        protocol_version = negotiated(params.protocol_version, self.protocol_versions)
        if protocol_version is None:
            raise self._unsupported(params.protocol_version)
        # For the rest of the session the server has the capabilities that it announces here.
        capabilities = self.our_capabilities = self.current_capabilities()
        self.peer = client_of_handshake(
            protocol_version, params.capabilities, params.client_info, self._auth
        )
        self._move(self.our_role, SessionTrigger.INITIALIZE_RESULT)
        result = types.InitializeResult(
            protocol_version=protocol_version.name,
            capabilities=capabilities,
            server_info=self.our_info,
            instructions=self.instructions,
        )
        response = encode_response(request_id, downgraded(result, protocol_version))
        return ImmediateResponse(response, request_id, negotiated=True)

    def _answer_discover(
        self, request_id: RequestId, _params: types.EmptyParams
    ) -> ImmediateResponse:
        result = types.DiscoverResult(
            supported_versions=list(self.protocol_versions),
            capabilities=self.current_capabilities(),
            instructions=self.instructions,
        )
        row = self.methods[DISCOVER]
        complete = with_result_metadata(result, row, self.result_metadata)
        return ImmediateResponse(encode_response(request_id, complete), request_id)

    # Receiving notifications.

    def _receive_notification(self, message: Notification, _size: int) -> Event:
        row = self.methods.get(message.method)
        if row is None or row.is_request or self.their_role not in row.senders:
            return self._ignored("unknown notification", f"unknown notification {message.method}")
        protocol_version = self._version_for(row.name)
        if protocol_version not in row.protocol_versions:
            text = f"protocol version {protocol_version.name} has no {row.name}"
            return self._ignored("unknown notification", text)
        is_stateless = protocol_version.is_stateless or (
            self.our_role is Role.SERVER and metadata_of(message.params) is not None
        )
        trigger = _trigger(row, is_stateless=is_stateless)
        if not self._is_allowed(self.their_role, trigger):
            text = f"{row.name} arrived out of order: the session is {self.state.name}"
            return self._ignored("out of order", text)
        # Two kinds need no capability: those that a stateless server has acknowledged for a
        # subscription, and log messages that arrive before the server's capabilities.
        is_acknowledged = row.needs_subscription and self._has_stateless_server()
        is_checked = self.peer is not None and not is_acknowledged
        if is_checked and not self._is_announced(row.required_capability, protocol_version):
            text = f"{row.name} arrived, but the {row.required_capability} was not announced"
            return self._ignored("not announced", text)
        try:
            params = row.decode_params(message.params)
        except msgspec.MsgspecError as error:
            return self._ignored("malformed notification", f"{row.name}: {error}")
        self._move(self.their_role, trigger)
        if row.name == CANCELLED:
            return self._receive_cancelled(params)
        if row.name == PROGRESS:
            request = self.outgoing.get(params.progress_token)
            if request is None or not request.wants_progress:
                text = f"no open request has the progress token {params.progress_token!r}"
                return self._ignored("late progress", text)
            return ProgressReceived(request, params)
        if not is_acknowledged:
            return NotificationReceived(row, params)
        meta: Mapping[str, Any] = params.meta or {}
        subscription_id = meta.get(SUBSCRIPTION_ID)
        request = self.outgoing.get(subscription_id) if type(subscription_id) is int else None
        if request is None or not request.method.is_subscription:
            text = f"{row.name} belongs to no open subscription: {subscription_id!r}"
            return self._ignored("no subscription", text)
        return NotificationReceived(row, params, request)

    def _has_stateless_server(self) -> bool:
        peer = self.peer
        return (
            self.our_role is Role.CLIENT and peer is not None and peer.protocol_version.is_stateless
        )

    def _receive_cancelled(self, params: types.CancelledParams) -> Event:
        # https://modelcontextprotocol.io/specification/2025-11-25/basic/utilities/cancellation
        if self._has_stateless_server():
            # A stateless server cancels nothing but subscriptions, and ends them only in this way.
            subscription = self.outgoing.get(params.request_id)
            if subscription is None or not subscription.method.is_subscription:
                text = f"no open subscription {params.request_id!r} to end"
                return self._ignored("late cancellation", text)
            self.outgoing.abandon(subscription)
            return ResponseReceived(subscription, Raw(b"{}"), None)
        request = self.incoming.get(params.request_id)
        if request is None:  # finished, unknown, or `initialize`, which is answered at once
            text = f"no open request {params.request_id!r} to cancel"
            return self._ignored("late cancellation", text)
        if request.state is IncomingState.CANCELLED:
            text = f"request {request.id!r} is cancelled already"
            return self._ignored("late cancellation", text)
        request.move(IncomingTrigger.CANCEL)
        return RequestCancelled(request, params.reason)

    # Receiving responses.

    def _receive_response(self, message: Response | ErrorResponse, _size: int) -> Event:
        request_id = message.id
        request = self.outgoing.finish(request_id)
        if request is None:
            if self.outgoing.forget_abandoned(request_id):
                text = f"request {request_id!r} was abandoned before its response"
                return self._ignored("late answer", text)
            reason = f": {message.error.message}" if isinstance(message, ErrorResponse) else ""
            text = f"no open request has the id {request_id!r} of this response{reason}"
            return self._ignored("unknown answer", text)
        result, error = None, None
        if isinstance(message, Response):
            result = message.result
        else:
            error = message.error
        if request.method.trigger is _INITIALIZE:  # no other response changes the state
            self._move(self.their_role, _response_trigger(request, is_result=error is None))
        return ResponseReceived(request, result, error)

    # Sending requests.

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
        """Open a request; send its `message` next.

        The request fails after `total_seconds`, and after `idle_seconds` without a response or
        progress. `now` is the current time in seconds, on any clock.

        Raises:
            LocalProtocolError: The method is unknown, is not sent by this role, is not allowed now
                or needs a capability that was not announced, or `_meta` has reserved keys. Nothing
                was opened.
            Unencodable: The params cannot be written as JSON, or the message is too large. Nothing
                was opened.
        """
        protocol_version = self._version_for(method)
        row, state = self._sendable(method, protocol_version, is_request=True)
        check_user_meta(params)
        request_id = self.outgoing.next_id()
        params = downgraded(params, protocol_version)
        own: Mapping[str, Any] = NO_ITEMS
        if self.our_role is _CLIENT:
            own = self.request_metadata()
            if protocol_version.is_stateless:
                own = {**own, **self._client_metadata_for(protocol_version)}
        if wants_progress:
            own = {**own, PROGRESS_TOKEN: request_id}
        if own:
            params = with_meta(params, own)
        depth_max = self.limits.messages.json_depth_max
        message = self.within_limit(
            encode_request(request_id, method, params, json_depth_max=depth_max)
        )
        self.state = state
        budget = Budget(started=now, idle_seconds=idle_seconds, total_seconds=total_seconds)
        request = OutgoingRequest(request_id, row, message, budget, wants_progress)
        self.outgoing.add(request)
        return request

    def _client_metadata_for(self, protocol_version: ProtocolVersion) -> Mapping[str, Any]:
        """Return the `_meta` of each stateless request, encoded once."""
        kept = self._client_metadata
        if kept is None or kept[0] is not protocol_version:
            members = client_metadata(protocol_version, self.our_capabilities, self.our_info)
            encoded = {name: Raw(msgspec.json.encode(member)) for name, member in members.items()}
            kept = self._client_metadata = protocol_version, encoded
        return kept[1]

    def _sendable(
        self,
        method: str,
        protocol_version: ProtocolVersion,
        *,
        is_request: bool,
        is_acknowledged: bool = False,
    ) -> tuple[Method, SessionState]:
        """Return the row of a message that may be sent now, and the state of the session after it.

        A notification of a subscription that the server has acknowledged needs no capability.
        """
        row = self.methods.get(method)
        if row is None or row.is_request is not is_request:
            text = f"no such {'request' if is_request else 'notification'}: {method!r}"
            if method not in METHODS and self.our_role is Role.CLIENT:
                text += f"; declare a method of the server with Client(methods={{{method!r}: …}})"
            raise LocalProtocolError(text)
        if self.our_role not in row.senders:
            raise LocalProtocolError(f"a {self.our_role.value} does not send {method}")
        if protocol_version not in row.protocol_versions:
            raise LocalProtocolError(f"protocol version {protocol_version.name} has no {method}")
        trigger = _trigger(row, is_stateless=protocol_version.is_stateless)
        after = SESSION_TRANSITIONS[self.state].get((self.our_role, trigger))
        if after is None:
            raise LocalProtocolError(
                f"{method} is not allowed now: the session is {self.state.name}"
            )
        required = row.required_capability
        if not (is_acknowledged or self._is_announced(required, protocol_version)):
            raise LocalProtocolError(f"{method} needs the {required}, which is not announced")
        return row, after

    def decode_result(self, request: OutgoingRequest, raw: Raw) -> Any:
        """Return the typed result of a request that this side has sent.

        A stateless request may also have an `InputRequiredResult`, or a result of an extension.

        Raises:
            RemoteProtocolError: The result does not have the shape of the method's results, or its
                `resultType` is unknown.
        """
        method, kind, peer = request.method, COMPLETE, self.peer
        try:
            if peer is not None and peer.protocol_version.is_stateless:
                kind = _decode_result_type(raw).result_type
            if kind == COMPLETE:
                return method.decode_result(raw)
            if kind == INPUT_REQUIRED and method.has_rounds:
                return msgspec.json.decode(raw, type=types.InputRequiredResult)
            if kind in self.result_types:
                return msgspec.json.decode(raw, type=self.result_types[kind])
        except (msgspec.MsgspecError, RecursionError) as error:
            raise RemoteProtocolError(
                f"the response to {method.name} is not a valid result: {error}"
            ) from error
        raise RemoteProtocolError(f"the response to {method.name} has an unknown type: {kind!r}")

    def abandon(self, request: OutgoingRequest, reason: str | None = None) -> bytes | None:
        """Give up a request that this side has sent.

        Returns:
            The encoded cancellation to send. None if the request has ended already, is
            `initialize`, which must not be cancelled, or is the first `server/discover`, which a
            silent server may not know at all.
        """
        name = request.method.name
        is_never_cancelled = name == INITIALIZE or (name == DISCOVER and self.peer is None)
        if not self.outgoing.abandon(request) or is_never_cancelled:
            return None
        params = types.CancelledParams(request_id=request.id, reason=reason)
        return encode_notification(CANCELLED, params)

    # Negotiating, as a client.

    def initialize_params(self) -> types.InitializeParams:
        """Return the params of `initialize`, with the newest protocol version with a handshake."""
        assert isinstance(self.our_capabilities, types.ClientCapabilities)
        return types.InitializeParams(
            protocol_version=self._version_for(INITIALIZE).name,
            capabilities=self.our_capabilities,
            client_info=self.our_info,
        )

    def accept_initialize(self, result: types.InitializeResult) -> bytes:
        """Accept the server's result; return the encoded `notifications/initialized`.

        Raises:
            RemoteProtocolError: This client does not support the protocol version that the server
                chose. The caller disconnects.
            LocalProtocolError: There was no such response; nothing has changed.
        """
        protocol_version = PROTOCOL_VERSIONS.get(result.protocol_version)
        if (
            protocol_version is None
            or not protocol_version.has_handshake
            or result.protocol_version not in self.protocol_versions
        ):
            supported = ", ".join(self.protocol_versions)
            raise RemoteProtocolError(
                f"the server chose protocol version {result.protocol_version!r};"
                f" this client supports {supported}"
            )
        initialized = self.notification(INITIALIZED)
        self.set_peer(protocol_version, result.capabilities, result.server_info)
        self.instructions = result.instructions
        return initialized

    def select_other_version(self, supported: Sequence[str]) -> bool:
        """Prepare another `initialize` after a server has rejected the first one.

        From then on this client supports only the protocol versions that the server supports, too,
        without the rejected one.

        Returns:
            Whether such a protocol version with a handshake is left; otherwise nothing has changed.
        """
        rejected = self._version_for(INITIALIZE).name
        common = [name for name in self.protocol_versions if name in supported and name != rejected]
        if newest(common, has_handshake=True) is None:
            return False
        self.protocol_versions = common
        return True

    def common_stateless_version(self, supported: Sequence[str]) -> ProtocolVersion | None:
        """Return the newest stateless protocol version that both sides support, if any."""
        return newest(
            [name for name in self.protocol_versions if name in supported], has_handshake=False
        )

    def accept_discovery(self, result: types.DiscoverResult) -> None:
        """Accept a server's `server/discover` result.

        Raises:
            RemoteProtocolError: Both sides support no common stateless protocol version.
        """
        protocol_version = self.common_stateless_version(result.supported_versions)
        if protocol_version is None:
            server, client = ", ".join(result.supported_versions), ", ".join(self.protocol_versions)
            raise RemoteProtocolError(
                f"the server supports the protocol versions {server or '(none)'};"
                f" this client supports {client}"
            )
        value = (result.meta or {}).get(SERVER_INFO)
        try:
            info = None if value is None else msgspec.convert(value, types.Implementation)
        except msgspec.ValidationError:  # the name is only for display
            info = None
        self.set_peer(protocol_version, result.capabilities, info)
        self.instructions = result.instructions

    def set_peer(
        self,
        protocol_version: ProtocolVersion,
        capabilities: Capabilities,
        info: types.Implementation | None,
    ) -> None:
        """Set the peer for the rest of the session."""
        self.peer = Peer(protocol_version=protocol_version, capabilities=capabilities, info=info)

    # Sending responses and notifications.

    def response(self, request: IncomingRequest, result: msgspec.Struct | Raw) -> bytes:
        """Return an encoded response, for the protocol version of the request.

        Raises:
            LocalProtocolError: The protocol version cannot express this result.
            Unencodable: The result cannot be written as JSON, or is nested too deeply.
        """
        protocol_version = request.peer.protocol_version
        if type(result) is CompatibleToolResult:
            if protocol_version.is_stateless:
                result.meta, result.result_type = self.result_metadata, COMPLETE
        else:
            result = downgraded(result, protocol_version)
            if protocol_version.is_stateless:
                result = with_result_metadata(result, request.method, self.result_metadata)
        return encode_response(
            request.id, result, json_depth_max=self.limits.messages.json_depth_max
        )

    def error(self, request: IncomingRequest, code: int, message: str, data: Any = UNSET) -> bytes:
        """Return an encoded error response, with the code of the request's protocol version.

        Raises:
            Unencodable: The data cannot be written as JSON, or is nested too deeply.
        """
        protocol_version = request.peer.protocol_version
        return encode_error(
            request.id,
            protocol_version.error_code_for(code),
            message,
            data,
            json_depth_max=self.limits.messages.json_depth_max,
        )

    def notification(
        self,
        method: str,
        params: ParamsToSend | None = None,
        *,
        request: IncomingRequest | None = None,
    ) -> bytes:
        """Return an encoded notification, which may belong to a stateless request.

        For progress and cancellations see the other methods.

        Raises:
            LocalProtocolError: The method is unknown, is not sent by this role, is not allowed now,
                needs a capability that was not announced, or is about a request.
            Unencodable: The params cannot be written as JSON, or the message is too large.
        """
        protocol_version = (
            self._version_for(method) if request is None else request.peer.protocol_version
        )
        is_acknowledged = request is not None and request.method.is_subscription
        row, state = self._sendable(
            method, protocol_version, is_request=False, is_acknowledged=is_acknowledged
        )
        if row.trigger is _REFERENCE:
            raise LocalProtocolError(f"{method} is about a request: call progress() or abandon()")
        params = downgraded(params, protocol_version)
        depth_max = self.limits.messages.json_depth_max
        message = self.within_limit(encode_notification(method, params, json_depth_max=depth_max))
        self.state = state
        return message

    def progress(
        self,
        request: IncomingRequest,
        progress: float,
        total: float | None = None,
        message: str | None = None,
    ) -> bytes | None:
        """Return an encoded progress notification about a received request.

        https://modelcontextprotocol.io/specification/2025-11-25/basic/utilities/progress

        Returns:
            None if it must not be sent: the request has no progress token or is not running, the
            value has not increased, or the session is closed.

        Raises:
            LocalProtocolError: A number is NaN or infinite, which JSON cannot express.
            Unencodable: The text is too large.
        """
        params = request.report(progress, total, message)
        if params is None or (self.our_role, _REFERENCE) not in SESSION_TRANSITIONS[self.state]:
            return None
        if message is None:
            return encode_plain_notification(PROGRESS, params)
        params = downgraded(params, request.peer.protocol_version)
        return self.within_limit(encode_notification(PROGRESS, params))

    def within_limit(self, message: bytes) -> bytes:
        """Return an encoded message.

        Raises:
            Unencodable: It is larger than `limits.messages.bytes_max`: a peer with the same limit
                would reject it, and could not tell which message it was.
        """
        bytes_max = self.limits.messages.bytes_max
        if len(message) > bytes_max:
            raise Unencodable(f"{len(message)} bytes exceed limits.messages.bytes_max={bytes_max}")
        return message

    def subscription_end(self, request: IncomingRequest) -> bytes:
        """Return the encoded notification with which a server ends a client's subscription."""
        meta = {SUBSCRIPTION_ID: request.id}
        params = types.CancelledParams(request_id=request.id, meta=meta)
        return encode_notification(CANCELLED, params)

    # The course of requests, and the end of the session.

    def finish(self, request: IncomingRequest) -> bool:
        """Finish a received request, cancelled or not; its id is free from now on.

        Returns:
            Whether a response may be sent; that is not so after a cancellation.

        Raises:
            LocalProtocolError: The request was answered before.
        """
        after = request.move(_RESPOND)
        if self.incoming.get(request.id) is request:  # a cancelled request may be finished twice
            del self.incoming[request.id]
        if not self.incoming:
            self.incoming = NO_ITEMS
        return after is _REQUEST_ANSWERED

    def close(self) -> list[OutgoingRequest]:
        """Close the session, once or more often; return the requests that get no response."""
        self._move(self.our_role, SessionTrigger.CLOSE)
        return self.outgoing.lose_all()

    # Used in both directions.

    def _version_for(self, method: str) -> ProtocolVersion:
        """Return the protocol version for a message: the negotiated one.

        Before the negotiation it is the newest stateless one for `server/discover`, and the newest
        one with a handshake for any other method.
        """
        if self.peer is not None:
            return self.peer.protocol_version
        stateless = newest(self.protocol_versions, has_handshake=False)
        if method == DISCOVER and stateless is not None:
            return stateless
        return newest(self.protocol_versions, has_handshake=True) or NEWEST_LEGACY

    def _is_announced(
        self, required: RequiredCapability | None, protocol_version: ProtocolVersion
    ) -> bool:
        if required is None:
            return True
        if required.holder is not self.our_role:
            return has_capability(self.peer_capabilities, required.path)
        # A stateless server announces its capabilities in each `server/discover`.
        is_current = protocol_version.is_stateless and self.our_role is Role.SERVER
        own = self.current_capabilities() if is_current else self.our_capabilities
        return has_capability(own, required.path)

    def current_capabilities(self) -> types.ServerCapabilities:
        """Return a server's current capabilities."""
        if self.get_capabilities is not None:
            return self.get_capabilities()
        capabilities = self.our_capabilities
        assert isinstance(capabilities, types.ServerCapabilities)
        return capabilities

    def _is_allowed(self, sender: Role, trigger: SessionTrigger) -> bool:
        return (sender, trigger) in SESSION_TRANSITIONS[self.state]

    def _move(self, sender: Role, trigger: SessionTrigger) -> bool:
        """Change the state as the table says; return whether it has such a row."""
        before = self.state
        after = SESSION_TRANSITIONS[before].get((sender, trigger))
        if after is not None and after is not before:
            self.state, self._allowed_call = after, None
        return after is not None

    _receivers: ClassVar[Mapping[type, Callable[..., Event]]] = {
        Request: _receive_request,
        SessionCall: _receive_request,
        ToolCall: _receive_tool_call,
        Notification: _receive_notification,
        Response: _receive_response,
        ErrorResponse: _receive_response,
        Malformed: _receive_malformed,
        Batch: _receive_batch,
    }
    _responders: ClassVar[Mapping[str, Callable[..., ImmediateResponse]]] = {
        PING: _answer_ping,
        INITIALIZE: _answer_initialize,
        DISCOVER: _answer_discover,
    }


def _trigger(row: Method, *, is_stateless: bool) -> SessionTrigger:
    """Return the trigger of a request or notification, by whether it is stateless."""
    return _STATELESS if is_stateless and row.trigger is not _REFERENCE else row.trigger


def _response_trigger(request: OutgoingRequest, *, is_result: bool) -> SessionTrigger:
    if request.method.trigger is not SessionTrigger.INITIALIZE:
        return SessionTrigger.RESPONSE
    return SessionTrigger.INITIALIZE_RESULT if is_result else SessionTrigger.INITIALIZE_ERROR
