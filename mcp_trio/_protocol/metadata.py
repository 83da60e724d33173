"""The `_meta` member of params and results, and calls of tools, which are decoded with theirs.

A handshake settles the protocol version, the client's capabilities and name, and the log level for
a session. A stateless request has all that in its own `_meta`, and none of it holds for another
request.

https://modelcontextprotocol.io/specification/2026-07-28/basic#meta
"""

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Final, Literal, TypeAlias, TypeVar, cast

import attrs
import msgspec
from msgspec import UNSET, Raw, UnsetType

from mcp_trio import types
from mcp_trio._jsonrpc.channel_messages import AuthInfo
from mcp_trio._jsonrpc.messages import Notification, Request
from mcp_trio._protocol.compat import downgraded
from mcp_trio._protocol.methods import CALL_TOOL, Method, ParamsToSend, has_capability
from mcp_trio._protocol.versions import OLDEST, PROTOCOL_VERSIONS, ProtocolVersion
from mcp_trio.errors import LocalProtocolError

_PREFIX: Final = "io.modelcontextprotocol/"
PROTOCOL_VERSION: Final = f"{_PREFIX}protocolVersion"
CLIENT_CAPABILITIES: Final = f"{_PREFIX}clientCapabilities"
CLIENT_INFO: Final = f"{_PREFIX}clientInfo"
SERVER_INFO: Final = f"{_PREFIX}serverInfo"
LOG_LEVEL: Final = f"{_PREFIX}logLevel"
SUBSCRIPTION_ID: Final = f"{_PREFIX}subscriptionId"
PROGRESS_TOKEN: Final = "progressToken"  # noqa: S105  no secret

TRACE: Final = ("traceparent", "tracestate", "baggage")
"""The keys of a distributed trace; the specification reserves them although they have no prefix."""

COMPLETE: Final = "complete"
INPUT_REQUIRED: Final = "input_required"

# The metadata of most requests of a client are small and equal. Larger ones are not cached.
_CACHED_BYTES_MAX: Final = 4096
_CACHED_MAX: Final = 256

Capabilities: TypeAlias = types.ClientCapabilities | types.ServerCapabilities
Value = TypeVar("Value")


class Peer(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The peer, as it describes itself in the handshake or in a stateless request.

    Attributes:
        protocol_version: The protocol version of messages to and from it.
        capabilities: Its capabilities.
        info: Its name and version, for display only; None if it did not send them.
        log_level: The least severe level of log messages that a stateless request asks for.
        trace: The keys of a distributed trace in a stateless request.
        auth: The sender as the transport has authenticated it; None without authentication.
    """

    protocol_version: ProtocolVersion
    capabilities: Capabilities
    info: types.Implementation | None = None
    log_level: types.LoggingLevel | None = None
    trace: Mapping[str, str] = MappingProxyType({})
    auth: AuthInfo | None = None

    @property
    def principal(self) -> str | None:
        """The name of the authenticated sender; None without authentication."""
        return None if self.auth is None else self.auth.principal

    def can(self, capability: str) -> bool:
        """Return whether it has announced a capability, such as "roots" or "elicitation.url"."""
        return has_capability(self.capabilities, capability)


UNKNOWN_PEER: Final = Peer(protocol_version=OLDEST, capabilities=types.ClientCapabilities())
"""The peer before the handshake."""


# Receiving the metadata of a request.


_Described: TypeAlias = tuple[types.ClientCapabilities, types.Implementation]
_decode_described: Final = msgspec.json.Decoder(_Described).decode


def client_of_handshake(
    protocol_version: ProtocolVersion,
    capabilities: types.ClientCapabilities,
    info: types.Implementation,
    auth: AuthInfo | None,
) -> Peer:
    """Return the client that has sent `initialize`.

    A server has many sessions with a few kinds of clients: equal clients are the same object, to
    save memory.
    """
    described = msgspec.json.encode((capabilities, info))
    if len(described) > _CACHED_BYTES_MAX:
        return Peer(
            protocol_version=protocol_version, capabilities=capabilities, info=info, auth=auth
        )
    peer = _cached_client(protocol_version, described)
    return peer if auth is None else msgspec.structs.replace(peer, auth=auth)


@functools.lru_cache(maxsize=_CACHED_MAX)
def _cached_client(protocol_version: ProtocolVersion, described: bytes) -> Peer:
    capabilities, info = _decode_described(described)
    return Peer(protocol_version=protocol_version, capabilities=capabilities, info=info)


class _Members(msgspec.Struct, gc=False):
    """The reserved members of a request's `_meta`, as raw JSON."""

    version: Raw | UnsetType = msgspec.field(name=PROTOCOL_VERSION, default=UNSET)
    capabilities: Raw | UnsetType = msgspec.field(name=CLIENT_CAPABILITIES, default=UNSET)
    info: Raw | UnsetType = msgspec.field(name=CLIENT_INFO, default=UNSET)
    log_level: Raw | UnsetType = msgspec.field(name=LOG_LEVEL, default=UNSET)
    traceparent: Raw | UnsetType = UNSET
    tracestate: Raw | UnsetType = UNSET
    baggage: Raw | UnsetType = UNSET


_LOGGING_LEVEL: Final[Any] = types.LoggingLevel


# Without slots, because cached properties are slower on a class with slots.
@attrs.frozen(eq=False, slots=False, repr=False)
class Metadata:
    """The `_meta` of a stateless request; each part is decoded when it is needed, once."""

    _members: _Members
    _text: bytes

    @property
    def has_version(self) -> bool:
        """True if it has a protocol version."""
        return self._members.version is not UNSET

    @property
    def is_complete(self) -> bool:
        """True if it has all members that a request must have."""
        return UNSET not in (self._members.version, self._members.capabilities)

    @functools.cached_property
    def version(self) -> str:
        """The protocol version of the request.

        Raises:
            msgspec.ValidationError: It is missing, or not a string.
        """
        return _decoded(str, _required(self._members.version, PROTOCOL_VERSION), PROTOCOL_VERSION)

    @functools.cached_property
    def peer(self) -> Peer:
        """The sender of the request, whose protocol version must be known.

        Raises:
            msgspec.ValidationError: A member is missing, or has the wrong type.
        """
        members = self._members
        capabilities = _required(members.capabilities, CLIENT_CAPABILITIES)
        return Peer(
            protocol_version=PROTOCOL_VERSIONS[self.version],
            capabilities=_decoded(types.ClientCapabilities, capabilities, CLIENT_CAPABILITIES),
            info=_optional(types.Implementation, members.info, CLIENT_INFO),
            log_level=_optional(_LOGGING_LEVEL, members.log_level, LOG_LEVEL),
            trace={
                name: _decoded(str, raw, name)
                for name in TRACE
                if (raw := getattr(members, name)) is not UNSET
            },
        )

    @functools.cached_property
    def progress_token(self) -> types.RequestId | None:
        """The progress token; None if the sender wants no progress.

        Raises:
            msgspec.ValidationError: It is neither a string nor an integer.
        """
        return progress_token_in(self._values or {})

    @property
    def is_readable(self) -> bool:
        """True if all members can be decoded, so that the params can do without this `_meta`."""
        return self._values is not None

    @functools.cached_property
    def _values(self) -> Mapping[str, Any] | None:
        """All members; None if one of them cannot be decoded."""
        try:
            return _decode_values(self._text)
        except (msgspec.MsgspecError, RecursionError):
            return None

    def params_without_meta(self, params: Raw) -> bytes | None:
        """Return raw params without this `_meta`, so that it is not decoded again.

        Clients write `_meta` as the first or the last member, so only these are removed. The text
        that is compared cannot be part of a string, because its own quotes would end the string.

        Returns:
            None if `_meta` is elsewhere, so that the params have to be decoded with it.
        """
        if self._values is None:
            return None
        text = bytes(params)
        as_first, as_last = b'{"_meta":%b,' % self._text, b',"_meta":%b}' % self._text
        if text.startswith(as_first):
            return b"{%b" % text[len(as_first) :]
        return b"%b}" % text[: -len(as_last)] if text.endswith(as_last) else None


_decoder: Final[Callable[[Any], msgspec.json.Decoder[Any]]] = functools.cache(msgspec.json.Decoder)


def _decoded(kind: type[Value], raw: Raw, name: str) -> Value:
    try:
        return cast("Value", _decoder(kind).decode(raw))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise msgspec.ValidationError(f"_meta[{name!r}]: {error}") from None


def _required(member: Raw | UnsetType, name: str) -> Raw:
    if member is UNSET:
        raise msgspec.ValidationError(f"_meta lacks {name}")
    return member


def _optional(kind: type[Value], member: Raw | UnsetType, name: str) -> Value | None:
    return None if member is UNSET else _decoded(kind, member, name)


class _RawMeta(msgspec.Struct, gc=False):
    meta: Raw | UnsetType = msgspec.field(name="_meta", default=UNSET)


_decode_raw_meta: Final = msgspec.json.Decoder(_RawMeta).decode
_decode_members: Final = msgspec.json.Decoder(_Members | None).decode
_decode_values: Final = msgspec.json.Decoder(dict[str, Any]).decode


def metadata_of(params: Raw | None) -> Metadata | None:
    """Return the metadata in some params, if they make the message stateless.

    Returns:
        None for other params, and for a `_meta` that is not an object, which is reported when the
        params are decoded.
    """
    if params is None:
        return None
    try:
        meta = _decode_raw_meta(params).meta
    except (msgspec.MsgspecError, RecursionError):
        return None
    return metadata_in(meta)


def metadata_in(meta: Raw | UnsetType) -> Metadata | None:
    """Return the metadata in a raw `_meta`, if they make the message stateless.

    Returns:
        None for another `_meta` or none, and for one that is not an object.
    """
    return None if meta is UNSET else _metadata_in_text(bytes(meta))


def _metadata_in_text(text: bytes) -> Metadata | None:
    try:
        return (_metadata if len(text) > _CACHED_BYTES_MAX else _cached_metadata)(text)
    except (msgspec.MsgspecError, RecursionError):
        return None


# A simple progress token as the first or the last member of a `_meta`. The quote of the name cannot
# be in a string, because it would end that.
_SIMPLE_TOKEN: Final = rb'"progressToken": ?(0|[1-9][0-9]{0,14}|"[ !#-[\]-~]{0,64}")'
_FIRST_TOKEN: Final = re.compile(rb"\{%b, ?" % _SIMPLE_TOKEN)
_LAST_TOKEN: Final = re.compile(rb", ?%b\}" % _SIMPLE_TOKEN)
_TOKEN_NAME: Final = PROGRESS_TOKEN.encode()


def metadata_and_token_in(
    meta: Raw | UnsetType,
) -> tuple[Metadata | None, types.RequestId | None]:
    """Return the metadata in a raw `_meta` without a progress token, and that token.

    Many clients send another token with each call, while the rest stays the same, which is found in
    a cache. If the token cannot be told from the rest so easily, it is in the metadata.
    """
    if meta is UNSET:
        return None, None
    text = bytes(meta)
    at = text.find(_TOKEN_NAME)
    # A second name, or an escaped one, could be another token, of which the last one counts.
    if at < 0 or text.find(_TOKEN_NAME, at + 1) >= 0 or b"\\" in text:
        return _metadata_in_text(text), None
    if match := _FIRST_TOKEN.match(text):
        rest = b"{%b" % text[match.end() :]
    elif match := _LAST_TOKEN.fullmatch(text, max(0, text.rfind(b",", 0, at))):
        rest = b"%b}" % text[: match.start()]
    else:
        return _metadata_in_text(text), None
    return _metadata_in_text(rest), msgspec.json.decode(match[1])


def _metadata(meta: bytes) -> Metadata | None:
    members = _decode_members(meta)
    if members is None or members.version is members.capabilities is UNSET:
        return None
    return Metadata(members, meta)


_cached_metadata: Final = functools.lru_cache(maxsize=_CACHED_MAX)(_metadata)


class _AnyParams(types.Params, kw_only=True):
    """The members that the params of every request may have."""


def progress_token_of(method: Method, params: Any, raw: Raw | None) -> types.RequestId | None:
    """Return the progress token of a received request; None if the sender wants no progress.

    `params` were decoded from `raw`. Those of a user's own method may have any type.

    Raises:
        msgspec.ValidationError: The token is neither a string nor an integer.
    """
    if method.is_custom and not isinstance(params, types.Params):
        params = msgspec.json.decode(raw or b"{}", type=_AnyParams)
    return progress_token_in(params.meta) if params.meta else None


def progress_token_in(meta: Mapping[str, Any]) -> types.RequestId | None:
    """Return the progress token in a `_meta`; None if the sender wants no progress.

    Raises:
        msgspec.ValidationError: It is neither a string nor an integer.
    """
    token = meta.get(PROGRESS_TOKEN)
    if token is None or type(token) in {int, str}:
        return token
    raise msgspec.ValidationError(f"_meta.{PROGRESS_TOKEN} must be a string or an integer")


# Calls of tools, decoded in one pass.
#
# Nearly all requests call a tool. Other requests are decoded in three passes: the envelope, its
# `_meta`, and its params. Each pass would read the arguments of a tool, which may be large.
# `decode_tool_call` decodes all three parts in one pass, which takes a third of the time. It
# accepts only valid calls. Any other message is then decoded in three passes, which make the error
# response. `with_decoded_params` does the same for a request whose envelope is decoded already.
# After a handshake, `decode_session_call` makes the typed params in the same pass. The metadata of
# a stateless call are decoded from raw JSON, because most calls of a client repeat the same bytes.


class _CallParams(msgspec.Struct, rename="camel", gc=False):
    """The members of `types.CallToolParams`, with `_meta` as raw JSON."""

    name: str
    arguments: Raw | UnsetType = UNSET
    meta: Raw | UnsetType = msgspec.field(name="_meta", default=UNSET)
    input_responses: dict[str, Raw] | None = None
    request_state: str | None = None


# A `_meta` with one of these members makes a message stateless.
_STATELESS_MEMBERS: Final = frozenset({PROTOCOL_VERSION, CLIENT_CAPABILITIES})


class _Call(
    msgspec.Struct, tag_field="method", tag=CALL_TOOL, forbid_unknown_fields=True, gc=False
):
    """The envelope of a request that calls a tool."""

    method: ClassVar[str] = CALL_TOOL

    jsonrpc: Literal["2.0"]
    id: int | str


class SessionCall(_Call, gc=False):
    """A request that calls a tool, with typed params: most messages after a handshake."""

    params: types.CallToolParams

    @property
    def is_stateless(self) -> bool:
        """True if the call has metadata, and has to be decoded as a `ToolCall`."""
        return not _STATELESS_MEMBERS.isdisjoint(self.params.meta or ())


class ToolCall(_Call, gc=False):
    """A request that calls a tool: a `Request` whose params are decoded."""

    params: _CallParams

    def typed_params(
        self, metadata: Metadata | None
    ) -> tuple[types.CallToolParams, types.RequestId | None]:
        """Return the typed params and the progress token.

        `metadata` is that of a stateless request. If it could be decoded, the params do not repeat
        it as `_meta`.

        Raises:
            msgspec.ValidationError: The arguments, `_meta` or the progress token are invalid.
        """
        given, meta, token = self.params, None, None
        if metadata is not None and metadata.is_readable:
            token = metadata.progress_token
        elif given.meta is not UNSET:
            meta = _decode_meta(b'{"_meta":%b}' % bytes(given.meta)).meta
            token = progress_token_in(meta) if meta else None
        try:
            params = types.CallToolParams(
                name=given.name,
                arguments=given.arguments,
                meta=meta,
                input_responses=given.input_responses,
                request_state=given.request_state,
            )
        except ValueError as error:
            raise msgspec.ValidationError(str(error)) from None
        return params, token


decode_tool_call: Final[Any] = msgspec.json.Decoder(ToolCall).decode
"""Decode a call of a tool; raises `msgspec.ValidationError` for any other message."""

decode_session_call: Final[Any] = msgspec.json.Decoder(SessionCall).decode
"""Decode a call of a tool with its params; raises `msgspec.ValidationError` for others."""

_decode_meta: Final = msgspec.json.Decoder(types.EmptyParams).decode
_decode_call_params: Final = msgspec.json.Decoder(_CallParams).decode


def with_decoded_params(message: Request | Notification) -> ToolCall | None:
    """Return a call of a tool with its decoded params.

    Returns:
        None if the message is something else, or the params are invalid.
    """
    if type(message) is not Request or message.method != CALL_TOOL or message.params is None:
        return None
    try:
        return ToolCall("2.0", message.id, _decode_call_params(message.params))
    except (msgspec.MsgspecError, RecursionError):
        return None


# Keys that users choose: https://modelcontextprotocol.io/specification/2025-11-25/basic#meta

_LABEL: Final = "[A-Za-z](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_NAME: Final = "[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_LABELS: Final = rf"{_LABEL}(?:\.{_LABEL})*"
_EXTENSION: Final = rf"{_LABELS}/(?:{_NAME})?"
_KEY: Final = rf"(?:(?P<prefix>{_LABELS})/)?(?:{_NAME})?"
_RESERVED_LABELS: Final = frozenset({"modelcontextprotocol", "mcp"})

# https://www.w3.org/TR/trace-context/ and https://www.w3.org/TR/baggage/, without the details of
# single members.
_PAIRS: Final = r"[!-~ \t]*=[!-~ \t]*"
_TRACE_FORMATS: Final = {
    "traceparent": "(?!ff)[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}",
    "tracestate": _PAIRS,
    "baggage": _PAIRS,
}


def check_extension(identifier: str) -> None:
    """Check the identifier of an extension: a prefix, a slash and a name.

    Raises:
        ValueError: The identifier is malformed.
    """
    if re.fullmatch(_EXTENSION, identifier) is None:
        raise ValueError(f"an extension needs a name such as com.example/name, not {identifier!r}")


def check_keys(keys: Iterable[str]) -> None:
    """Check keys that a user puts into `_meta`.

    Protocol version 2025-06-18 reserves prefixes by their last label but one, later versions by
    their second label. A key that any version reserves is rejected.

    Raises:
        ValueError: A key is malformed, or reserved for the specification.
    """
    for key in keys:
        match = re.fullmatch(_KEY, key)
        if match is None:
            raise ValueError(f"a key of _meta must look like com.example/name, not {key!r}")
        labels = (match["prefix"] or "").split(".")
        if _RESERVED_LABELS & {*labels[1:2], *labels[-2:-1]}:
            raise ValueError(f"the key {key!r} of _meta is reserved for the specification")


def check_user_meta(params: ParamsToSend | None) -> None:
    """Check the `_meta` that a user puts into the params of a request.

    Raises:
        LocalProtocolError: It has a progress token, or a key that is malformed or reserved.
    """
    meta = meta_of(params)
    if not meta:
        return
    if PROGRESS_TOKEN in meta:
        raise LocalProtocolError(f"_meta.{PROGRESS_TOKEN} is reserved: pass progress= to the call")
    try:
        check_keys(meta)
    except ValueError as error:
        raise LocalProtocolError(str(error)) from None


def checked_trace(values: Mapping[str, str]) -> dict[str, str]:
    """Return the values for `traceparent`, `tracestate` and `baggage`; drop all others.

    Raises:
        ValueError: A value does not have the format of W3C Trace Context or W3C Baggage.
    """
    trace = {name: values[name] for name in TRACE if name in values}
    for name, value in trace.items():
        if re.fullmatch(_TRACE_FORMATS[name], value) is None:
            raise ValueError(f"not a valid {name}: {value!r}")
    return trace


# Sending metadata.


def client_metadata(
    protocol_version: ProtocolVersion, capabilities: Any, info: types.Implementation
) -> dict[str, Any]:
    """Return the metadata that a client puts into each stateless request."""
    return {
        PROTOCOL_VERSION: protocol_version.name,
        CLIENT_CAPABILITIES: downgraded(capabilities, protocol_version),
        CLIENT_INFO: info,
    }


def meta_of(params: ParamsToSend | None) -> Mapping[str, Any]:
    """Return the `_meta` of params to send; an empty mapping if there is none."""
    if params is None:
        return {}
    meta = params.meta if isinstance(params, types.Params) else params.get("_meta")
    return meta or {}


def with_meta(params: ParamsToSend | None, members: Mapping[str, Any]) -> ParamsToSend:
    """Return a copy of the params with further members in `_meta`, which replace equal keys."""
    meta = {**meta_of(params), **members}
    if isinstance(params, Mapping):
        return {**params, "_meta": meta}
    return msgspec.structs.replace(params or types.EmptyParams(), meta=meta)


_NULL: Final = Raw(b"null")


def with_result_metadata(
    result: msgspec.Struct | Raw, method: Method, own: dict[str, Any]
) -> msgspec.Struct | Raw:
    """Return a copy of a stateless result with the members that each of them must have.

    These are `resultType`, the server's name in `_meta`, and for a cacheable result the time for
    which it may be cached: none, unless the handler has set it.

    `own` is the server's `_meta`. The returned result may share it, so it must not be changed.

    Raises:
        LocalProtocolError: The `_meta` of an encoded result is not an object.
    """
    default = _default_result_type(type(result))
    if default is None:
        if not isinstance(result, Raw):
            return result
        # Null counts as absent.
        others = msgspec.json.decode(result, type=dict[str, Raw])
        raw_kind, raw_meta = others.pop("resultType", _NULL), others.pop("_meta", _NULL)
        try:
            added: dict[str, Raw] = msgspec.json.decode(raw_meta, type=dict[str, Raw] | None) or {}
        except msgspec.ValidationError:
            raise LocalProtocolError("the _meta of a result must be an object") from None
        members: dict[str, Any] = {
            "resultType": COMPLETE if raw_kind == _NULL else raw_kind,
            "_meta": {**own, **added},
        }
        return Raw(msgspec.json.encode({**members, **others}))
    given: Any = result
    meta = {**own, **given.meta} if given.meta else own
    kind = default if given.result_type is None else given.result_type
    complete: types.Result = msgspec.structs.replace(given, meta=meta, result_type=kind)
    if method.is_cacheable and isinstance(complete, types.CacheableResult):
        complete.ttl_ms = complete.ttl_ms or 0
        complete.cache_scope = complete.cache_scope or "private"
    return complete


@functools.cache
def _default_result_type(kind: type) -> str | None:
    """Return the `resultType` of a class of results; None for other types."""
    if not issubclass(kind, types.Result):
        return None
    return INPUT_REQUIRED if issubclass(kind, types.InputRequiredResult) else COMPLETE
