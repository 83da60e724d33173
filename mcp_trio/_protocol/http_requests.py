"""Routing of HTTP requests to an MCP endpoint: a rejection, or the action to take.

`Endpoint.route` looks at the headers, at the message in the body, and at the session that the
headers name. A server of both kinds of protocol versions has one endpoint for both: a request with
metadata, or with a stateless version in its headers, is stateless; every other one belongs to a
session.

https://modelcontextprotocol.io/specification/2025-11-25/basic/transports#streamable-http
https://modelcontextprotocol.io/specification/2026-07-28/basic/transports/streamable-http
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypedDict

import attrs
import msgspec
from msgspec import UNSET, Raw

from mcp_trio._jsonrpc.messages import (
    Batch,
    Decoder,
    Malformed,
    Message,
    Notification,
    Request,
    encode_error,
)
from mcp_trio._protocol.http_headers import (
    EVENT_STREAM,
    JSON,
    PROTOCOL_VERSION,
    HeaderMismatchError,
    Headers,
    HttpRequest,
    ParameterPaths,
    check_headers_match,
)
from mcp_trio._protocol.metadata import PROTOCOL_VERSION as META_VERSION
from mcp_trio._protocol.metadata import (
    Metadata,
    ToolCall,
    decode_tool_call,
    metadata_and_token_in,
    metadata_of,
    with_decoded_params,
)
from mcp_trio._protocol.methods import CALL_TOOL, INITIALIZE
from mcp_trio._protocol.versions import PROTOCOL_VERSIONS, ProtocolVersion
from mcp_trio.errors import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MISSING_CLIENT_CAPABILITY,
    TOO_MANY_REQUESTS,
    UNSUPPORTED_PROTOCOL_VERSION,
)
from mcp_trio.types import RequestId

SESSION_ID: Final = "Mcp-Session-Id"
LAST_EVENT_ID: Final = "Last-Event-ID"

# As in `HttpRequest.headers`.
_SESSION_FIELD: Final = SESSION_ID.lower()
_VERSION_FIELD: Final = PROTOCOL_VERSION.lower()

# Tuples, because `Request | Notification` would be created anew by each `isinstance`.
_SINGLE_MESSAGE: Final = (Request, Notification)

STATUS_OF_ERROR: Final[Mapping[int, int]] = {
    METHOD_NOT_FOUND: 404,
    HEADER_MISMATCH: 400,
    MISSING_CLIENT_CAPABILITY: 400,
    UNSUPPORTED_PROTOCOL_VERSION: 400,
    TOO_MANY_REQUESTS: 429,
}
"""The HTTP status of a stateless error response, by its code; otherwise the status is 200."""


RETRY_SECONDS: Final = "1"
"""The value of `Retry-After` in the rejection of a request that a limit caused."""


class Rejection(msgspec.Struct, frozen=True, kw_only=True):
    """The request is rejected with an HTTP status and a JSON-RPC error."""

    status: int
    text: str
    code: int = INVALID_REQUEST
    id: RequestId | None = None
    headers: Headers = ()
    data: Any = UNSET

    def body(self) -> bytes:
        """Return the encoded error response; without an id if none was read."""
        return encode_error(self.id, self.code, self.text, self.data)

    def response(self) -> tuple[int, Headers, bytes]:
        """Return the status, the headers and the body of the response."""
        return self.status, [("Content-Type", JSON), *self.headers], self.body()


def not_allowed(method: str, allowed: str) -> Rejection:
    """Return the rejection of a request whose method is not one of the allowed ones."""
    text = f"{method} is not allowed here"
    return Rejection(status=405, text=text, headers=[("Allow", allowed)])


class RejectedError(Exception):
    """A request is answered with this rejection."""

    def __init__(self, rejection: Rejection) -> None:
        super().__init__(rejection.text)
        self.rejection = rejection


class _ErrorText(msgspec.Struct, gc=False):
    message: str


class _ErrorBody(msgspec.Struct, gc=False):
    error: _ErrorText


_error_body = msgspec.json.Decoder(_ErrorBody)


def text_of_body(body: bytes) -> str:
    """Return the message of the JSON-RPC error in an HTTP body, or else the body, on one line."""
    try:
        text = _error_body.decode(body).error.message
    except (msgspec.DecodeError, UnicodeDecodeError):
        text = body.decode(errors="replace")
    return " ".join(text.split())


class OpenSession(msgspec.Struct, frozen=True):
    """The request is an `initialize` that opens a session."""

    request: Request


class SessionMessage(msgspec.Struct, frozen=True):
    """The message belongs to a session; `awaited` has the ids of the requests to answer."""

    session: str
    message: ToolCall | Message | Batch
    awaited: Sequence[RequestId]


class StatelessMessage(msgspec.Struct, frozen=True):
    """The message is stateless; one that lacks metadata will be rejected by the connection."""

    message: ToolCall | Request | Notification
    is_incomplete: bool = False


class OpenStream(msgspec.Struct, frozen=True):
    """The client opens an event stream, or resumes one after the event `last_event_id`."""

    session: str
    last_event_id: str | None


class EndSession(msgspec.Struct, frozen=True):
    """The client ends its session."""

    session: str


RoutingResult: TypeAlias = (
    Rejection | OpenSession | SessionMessage | StatelessMessage | OpenStream | EndSession
)


class KnownSession(msgspec.Struct, frozen=True):
    """The facts about a session that routing needs."""

    protocol_version: ProtocolVersion | None
    principal: str | None = None


class _Names(TypedDict, total=False):
    """The members of params that `Mcp-Name` repeats (`NAME_MEMBERS`)."""

    name: Any
    uri: Any
    taskId: Any


_decode_names: Final[Any] = msgspec.json.Decoder(_Names).decode
_decode_params: Final = msgspec.json.Decoder(dict[str, Any]).decode
_decode_arguments: Final[Any] = msgspec.json.Decoder().decode


@attrs.define(kw_only=True, eq=False)
class Endpoint:
    """The rules of one MCP endpoint.

    Attributes:
        protocol_versions: The names of the supported protocol versions.
        decoder: The decoder of bodies.
        find_session: Return the session with an id; None if there is none, or it has ended.
        find_parameter_paths: Return the parameter headers of a tool, by its name; None if it has
            none.
        has_sessions: Whether legacy protocol versions are supported.
        is_stateless: Whether stateless protocol versions are supported.
    """

    protocol_versions: Collection[str]
    decoder: Decoder
    find_session: Callable[[str], KnownSession | None]
    find_parameter_paths: Callable[[str], ParameterPaths | None]
    has_sessions: bool = attrs.field(init=False)
    is_stateless: bool = attrs.field(init=False)
    _stateless_versions: frozenset[str] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        versions = [PROTOCOL_VERSIONS[name] for name in self.protocol_versions]
        self.has_sessions = any(each.has_handshake for each in versions)
        self._stateless_versions = frozenset(each.name for each in versions if each.is_stateless)
        self.is_stateless = bool(self._stateless_versions)

    def route(self, http_request: HttpRequest, body: bytes = b"") -> RoutingResult:
        """Return the routing result for a request whose body has been read."""
        match http_request.method:
            case "POST":
                return self._post(http_request, body)
            case "GET" | "DELETE" as method:
                if not self.has_sessions or self._names_stateless(http_request):
                    return not_allowed(method, "POST")
                if method == "GET" and not http_request.accepts_event_streams:
                    return Rejection(status=406, text=f"Accept of a GET must have {EVENT_STREAM}")
                session = self._session(http_request)
                if isinstance(session, Rejection):
                    return session
                if method == "DELETE":
                    return EndSession(session[0])
                return OpenStream(session[0], http_request.header(LAST_EVENT_ID))
            case other:
                return not_allowed(other, "GET, POST, DELETE" if self.has_sessions else "POST")

    def _post(self, http_request: HttpRequest, body: bytes) -> RoutingResult:
        if not http_request.is_json:
            return Rejection(status=415, text=f"the Content-Type of a POST must be {JSON}")
        if not (http_request.accepts_json or http_request.accepts_event_streams):
            return Rejection(status=406, text=f"Accept must have {JSON} and {EVENT_STREAM}")
        message: ToolCall | Message | Batch = self.decoder.decode_by(decode_tool_call, body)
        metadata = None
        names_stateless = http_request.headers.get(_VERSION_FIELD) in self._stateless_versions
        call = message if type(message) is ToolCall else None  # nearly all messages are calls
        if call is not None:
            if call.params.meta is not UNSET and self.is_stateless:
                metadata, _ = metadata_and_token_in(call.params.meta)
        elif type(message) is Malformed:
            return Rejection(status=400, code=message.code, text=message.message, id=message.id)
        elif self.is_stateless and isinstance(message, _SINGLE_MESSAGE):
            metadata = metadata_of(message.params)
        if names_stateless or metadata is not None:
            return self._stateless_request(http_request, message, metadata)
        request: ToolCall | Request | None = call
        if call is None and isinstance(message, Request):
            request = message
        request_id = None if request is None else request.id
        if not self.has_sessions:
            return Rejection(
                status=400,
                code=HEADER_MISMATCH,
                text=f"{PROTOCOL_VERSION} is missing; this server has no sessions"
                " (see its settings protocol_versions= and workers=),"
                f" and supports {', '.join(self.protocol_versions)}",
                id=request_id,
                data={"supported": [*self.protocol_versions]},
            )
        if type(request) is Request and request.method == INITIALIZE:
            if http_request.header(SESSION_ID) is not None:
                text = f"initialize must be sent without {SESSION_ID}"
                return Rejection(status=400, text=text, id=request_id)
            return OpenSession(request)
        session = self._session(http_request)
        if isinstance(session, Rejection):
            return msgspec.structs.replace(session, id=request_id)
        session_id, known = session
        awaited = [] if request_id is None else [request_id]
        if type(message) is Batch:
            if known.protocol_version is None or not known.protocol_version.has_batches:
                return Rejection(status=400, text="this protocol version has no batches")
            # One malformed message rejects the batch, because an error without an id belongs to no
            # stream.
            bad = next((each for each in message.messages if isinstance(each, Malformed)), None)
            if bad is not None:
                return Rejection(status=400, code=bad.code, text=bad.message, id=bad.id)
            awaited = [each.id for each in message.messages if isinstance(each, Request)]
        return SessionMessage(session_id, message, awaited)

    def _names_stateless(self, http_request: HttpRequest) -> bool:
        """Return whether the headers have a stateless protocol version."""
        return http_request.headers.get(_VERSION_FIELD) in self._stateless_versions

    def _stateless_request(
        self,
        http_request: HttpRequest,
        message: ToolCall | Message | Batch,
        metadata: Metadata | None,
    ) -> RoutingResult:
        call: ToolCall | None = None
        raw_params: Raw | None = None
        if isinstance(message, ToolCall):
            call = message
        elif isinstance(message, _SINGLE_MESSAGE):
            call, raw_params = with_decoded_params(message), message.params
        else:
            return Rejection(
                status=400,
                text="the body of a stateless POST must be one request or one notification",
            )
        request_id = None if isinstance(message, Notification) else message.id
        params: dict[str, Any] = {}
        paths = None
        try:
            version = metadata.version if metadata is not None and metadata.has_version else None
            if call is not None:
                params = {"name": call.params.name}
                paths = self.find_parameter_paths(call.params.name)
                if paths and call.params.arguments is not UNSET:  # they may be large
                    params["arguments"] = _decode_arguments(call.params.arguments)
            elif raw_params is not None:
                params = _decode_names(raw_params)
                tool = params.get("name")
                if message.method == CALL_TOOL and isinstance(tool, str):
                    paths = self.find_parameter_paths(tool)
                if paths:
                    params = _decode_params(raw_params)
            check_headers_match(
                http_request,
                version=version or http_request.header(PROTOCOL_VERSION) or "",
                method=message.method,
                params=params,
                paths=paths,
                is_request=request_id is not None,
            )
        except HeaderMismatchError as error:
            return Rejection(status=400, code=HEADER_MISMATCH, text=str(error), id=request_id)
        except msgspec.ValidationError as error:
            return Rejection(
                status=400, code=INVALID_PARAMS, text=f"invalid params: {error}", id=request_id
            )
        if metadata is None and request_id is not None:
            text = f"invalid params: _meta lacks {META_VERSION}"
            return Rejection(status=400, code=INVALID_PARAMS, text=text, id=request_id)
        return StatelessMessage(
            message if call is None else call, metadata is not None and not metadata.is_complete
        )

    def _session(self, http_request: HttpRequest) -> tuple[str, KnownSession] | Rejection:
        """Return the id and the facts of the session that the headers name, or a rejection."""
        session_id = http_request.headers.get(_SESSION_FIELD)
        if session_id is None:
            return Rejection(status=400, text=f"{SESSION_ID} is missing: send initialize first")
        known = self.find_session(session_id)
        if known is None or known.principal != http_request.principal:
            return Rejection(
                status=404, text="there is no such session: it has ended, or never existed"
            )
        # A request with a supported stateless version does not get here.
        version = http_request.headers.get(_VERSION_FIELD)
        if version is not None and version not in self.protocol_versions:
            return Rejection(status=400, text=f"unsupported {PROTOCOL_VERSION} {version[:40]!r}")
        return session_id, known
