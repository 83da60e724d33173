"""`_meta` of stateless requests and results.

Everything that a handshake settles in a legacy session stands in each request here: the revision,
what the client can do, who it is, from which level on it wants to hear logs. Nothing of it holds
for another request (META-16).
"""

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias, TypeVar, cast

import attrs
import msgspec
from msgspec import UNSET, Raw, UnsetType

from mcp_trio import types
from mcp_trio._protocol.compat import downgraded
from mcp_trio._protocol.methods import Method, ParamsToSend, announced
from mcp_trio._protocol.versions import OLDEST, PROTOCOL_VERSIONS, ProtocolVersion
from mcp_trio.errors import LocalProtocolError

# --------------------
# What the other side has said of itself.


Capabilities: TypeAlias = types.ClientCapabilities | types.ServerCapabilities


@attrs.frozen(kw_only=True, eq=False)
class Peer:
    """The other side, by its own words: in the handshake, or in the very request that it sends.

    Attributes:
        revision: What is spoken with it.
        capabilities: What it can do.
        info: Its name; nothing may depend on that (META-19).
        log_level: The least severe level that it wants to hear of, if the request itself says so.
        trace: Of the request's metadata what belongs to a distributed trace.
        principal: Who it is, as the transport has made sure; None where it cannot.
    """

    protocol_version: ProtocolVersion
    capabilities: Capabilities
    info: types.Implementation | None = None
    log_level: types.LoggingLevel | None = None
    trace: Mapping[str, str] = MappingProxyType({})
    principal: str | None = None

    def can(self, capability: str) -> bool:
        """Return whether it has announced a capability: "roots", say, or "elicitation.url"."""
        return announced(self.capabilities, capability)


UNKNOWN_PEER: Final = Peer(protocol_version=OLDEST, capabilities=types.ClientCapabilities())
"""Who has said nothing yet."""


_PREFIX: Final = "io.modelcontextprotocol/"
PROTOCOL_VERSION: Final = f"{_PREFIX}protocolVersion"
CLIENT_CAPABILITIES: Final = f"{_PREFIX}clientCapabilities"
CLIENT_INFO: Final = f"{_PREFIX}clientInfo"
SERVER_INFO: Final = f"{_PREFIX}serverInfo"
LOG_LEVEL: Final = f"{_PREFIX}logLevel"
SUBSCRIPTION_ID: Final = f"{_PREFIX}subscriptionId"
PROGRESS_TOKEN: Final = "progressToken"  # noqa: S105  no secret

TRACE: Final = ("traceparent", "tracestate", "baggage")
"""The only names without a prefix, and for nothing else (TRACE-03)."""

COMPLETE: Final = "complete"
INPUT_REQUIRED: Final = "input_required"

# Metadata are small, and the same in most requests of a client; what is larger is read again each
# time, and not remembered.
_REMEMBERED_BYTES_MAX: Final = 4096
_REMEMBERED_MAX: Final = 256


class _Members(msgspec.Struct, gc=False):
    """The reserved members of a request's `_meta`, as they came."""

    version: Raw | UnsetType = msgspec.field(name=PROTOCOL_VERSION, default=UNSET)
    capabilities: Raw | UnsetType = msgspec.field(name=CLIENT_CAPABILITIES, default=UNSET)
    info: Raw | UnsetType = msgspec.field(name=CLIENT_INFO, default=UNSET)
    log_level: Raw | UnsetType = msgspec.field(name=LOG_LEVEL, default=UNSET)
    traceparent: Raw | UnsetType = UNSET
    tracestate: Raw | UnsetType = UNSET
    baggage: Raw | UnsetType = UNSET


_LEVEL: Final[Any] = types.LoggingLevel
Value = TypeVar("Value")


@attrs.frozen(eq=False, slots=False)  # what is kept in slots is found more slowly here
class Metadata:
    """What a request says of itself in `_meta`, read as far as it is asked."""

    _members: _Members
    _text: bytes

    @property
    def has_version(self) -> bool:
        """Return whether it says the revision that the request is made under."""
        return self._members.version is not UNSET

    @property
    def is_complete(self) -> bool:
        """Return whether it says all that a request has to (META-15)."""
        return UNSET not in (self._members.version, self._members.capabilities)

    @functools.cached_property
    def requested(self) -> str:
        """The revision that the request is made under.

        Raises:
            msgspec.ValidationError: It says none.
        """
        return _as(str, _there(self._members.version, PROTOCOL_VERSION), PROTOCOL_VERSION)

    @functools.cached_property
    def peer(self) -> Peer:
        """Who sends it, under a revision that is known.

        Raises:
            msgspec.ValidationError: A member is missing or has the wrong shape (META-15, LOG-11).
        """
        members = self._members
        capabilities = _there(members.capabilities, CLIENT_CAPABILITIES)
        return Peer(
            protocol_version=PROTOCOL_VERSIONS[self.requested],
            capabilities=_as(types.ClientCapabilities, capabilities, CLIENT_CAPABILITIES),
            info=_if_there(types.Implementation, members.info, CLIENT_INFO),
            log_level=_if_there(_LEVEL, members.log_level, LOG_LEVEL),
            trace={
                name: _as(str, raw, name)
                for name in TRACE
                if (raw := getattr(members, name)) is not UNSET
            },
        )

    @functools.cached_property
    def progress_token(self) -> types.RequestId | None:
        """See `checked_token`."""
        return checked_token(self._values or {})

    @functools.cached_property
    def _values(self) -> Mapping[str, Any] | None:
        """All of it; None if something in it is no value."""
        try:
            return _decode_values(self._text)
        except (msgspec.MsgspecError, RecursionError):
            return None

    @functools.cached_property
    def _first(self) -> bytes:
        return b'{"_meta":%b,' % self._text

    @functools.cached_property
    def _last(self) -> bytes:
        return b',"_meta":%b}' % self._text

    def params_without_meta(self, params: Raw) -> bytes | None:
        """The text of params without this, their `_meta`, so that it is not read once more.

        None: they are to be read as a whole. It is looked for at both ends, where clients write it,
        and what stands there can be nothing else: in a string, its own quotes would end that.
        """
        if self._values is None:
            return None
        text = bytes(params)
        if text.startswith(self._first):
            return b"{%b" % text[len(self._first) :]
        return b"%b}" % text[: -len(self._last)] if text.endswith(self._last) else None


def checked_token(meta: Mapping[str, Any]) -> types.RequestId | None:
    """The token that a request asks progress with; None when it asks for none.

    Raises:
        msgspec.ValidationError: It is neither a string nor an integer (PROG-01).
    """
    token = meta.get(PROGRESS_TOKEN)
    if token is None or type(token) in {int, str}:
        return token
    raise msgspec.ValidationError(f"_meta.{PROGRESS_TOKEN} must be a string or an integer")


def _there(member: Raw | UnsetType, name: str) -> Raw:
    if member is UNSET:
        raise msgspec.ValidationError(f"_meta lacks {name}")
    return member


def _if_there(kind: type[Value], member: Raw | UnsetType, name: str) -> Value | None:
    return None if member is UNSET else _as(kind, member, name)


def _as(kind: type[Value], raw: Raw, name: str) -> Value:
    try:
        return cast("Value", _decoder(kind).decode(raw))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise msgspec.ValidationError(f"_meta[{name!r}]: {error}") from None


_decoder: Final[Callable[[Any], msgspec.json.Decoder[Any]]] = functools.cache(msgspec.json.Decoder)


class _Carrier(msgspec.Struct, gc=False):
    meta: Raw | UnsetType = msgspec.field(name="_meta", default=UNSET)


_decode: Final = msgspec.json.Decoder(_Carrier).decode
_decode_members: Final = msgspec.json.Decoder(_Members | None).decode
_decode_values: Final = msgspec.json.Decoder(dict[str, Any]).decode


def metadata_of(params: Raw | None) -> Metadata | None:
    """What the params of a message say in `_meta`, if that makes it complete without a session.

    None for anything else, also for a `_meta` that is no object: its method's own params say so.
    """
    if params is None:
        return None
    try:
        meta = _decode(params).meta
        if meta is UNSET:
            return None
        text = bytes(meta)
        return (_read if len(text) > _REMEMBERED_BYTES_MAX else _remembered)(text)
    except (msgspec.MsgspecError, RecursionError):
        return None


def _read(meta: bytes) -> Metadata | None:
    members = _decode_members(meta)
    if members is None or members.version is members.capabilities is UNSET:
        return None
    return Metadata(members, meta)


_remembered: Final = functools.lru_cache(maxsize=_REMEMBERED_MAX)(_read)


_LABEL: Final = "[A-Za-z](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_NAME: Final = "[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_LABELS: Final = rf"{_LABEL}(?:\.{_LABEL})*"
_EXTENSION: Final = re.compile(rf"{_LABELS}/(?:{_NAME})?")
_KEY: Final = re.compile(rf"(?:(?P<prefix>{_LABELS})/)?(?:{_NAME})?")
_OF_THE_SPECIFICATION: Final = frozenset({"modelcontextprotocol", "mcp"})

# W3C Trace Context and W3C Baggage, as far as a word can be seen not to be theirs (TRACE-02).
_PAIRS: Final = r"[!-~ \t]*=[!-~ \t]*"
_TRACE_WORDS: Final = {
    "traceparent": re.compile("(?!ff)[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}"),
    "tracestate": re.compile(_PAIRS),
    "baggage": re.compile(_PAIRS),
}


def check_extension(identifier: str) -> None:
    """Whether this can be the identifier of an extension: a prefix, a slash and a name (EXT-02).

    Raises:
        ValueError: It cannot.
    """
    if _EXTENSION.fullmatch(identifier) is None:
        raise ValueError(f"an extension is named like com.example/name, unlike {identifier!r}")


def check_keys(keys: Iterable[str]) -> None:
    """Return whether people may put these keys into a `_meta` of theirs (META-03 to META-08).

    2025-06-18 reserves prefixes by their last label but one, later revisions by the second: what
    any of them reserves is left to the specification (TRAP-15).

    Raises:
        ValueError: One is malformed, or reserved.
    """
    for key in keys:
        match = _KEY.fullmatch(key)
        if match is None:
            raise ValueError(f"a key of _meta is named like com.example/name, unlike {key!r}")
        labels = (match["prefix"] or "").split(".")
        if _OF_THE_SPECIFICATION & {*labels[1:2], *labels[-2:-1]}:
            raise ValueError(f"the key {key!r} of _meta is reserved for the specification")


def checked_trace(given: Mapping[str, str]) -> dict[str, str]:
    """What of it belongs to a distributed trace, and nothing else (TRACE-03).

    Raises:
        ValueError: It is not written as W3C has it (TRACE-02).
    """
    said = {name: given[name] for name in TRACE if name in given}
    for name, words in said.items():
        if _TRACE_WORDS[name].fullmatch(words) is None:
            raise ValueError(f"this is no {name}: {words!r}")
    return said


def client_metadata(
    protocol_version: ProtocolVersion, capabilities: Any, info: types.Implementation
) -> dict[str, Any]:
    """What a client says in each of its modern requests (META-11 to META-13)."""
    return {
        PROTOCOL_VERSION: protocol_version.name,
        CLIENT_CAPABILITIES: downgraded(capabilities, protocol_version),
        CLIENT_INFO: info,
    }


def meta_of(params: ParamsToSend | None) -> Mapping[str, Any]:
    """What stands in `_meta` of params that are to be sent."""
    if params is None:
        return {}
    meta = params.meta if isinstance(params, types.Params) else params.get("_meta")
    return meta or {}


def with_meta(params: ParamsToSend | None, members: Mapping[str, Any]) -> ParamsToSend:
    """The params with more in `_meta`, where `members` win."""
    meta = {**meta_of(params), **members}
    if isinstance(params, Mapping):
        return {**params, "_meta": meta}
    return msgspec.structs.replace(params or types.EmptyParams(), meta=meta)


def with_result_metadata(
    result: msgspec.Struct | Raw, method: Method, signature: dict[str, Any]
) -> msgspec.Struct | Raw:
    """A modern result, with what each of them has to say: whether it is complete, and whose it is.

    One that can be kept says for how long; without a word of its handler, not at all (CACHE-01).
    `signature` is what each of ours has in `_meta`: nobody may change what comes back.

    Raises:
        LocalProtocolError: What was encoded before has a `_meta` that is none.
    """
    usual = _usual_kind(type(result))
    if usual is None:
        return _dressed_text(bytes(result), signature) if isinstance(result, Raw) else result
    said: Any = result
    meta = {**signature, **said.meta} if said.meta else signature
    kind = usual if said.result_type is None else said.result_type
    complete: types.Result = msgspec.structs.replace(said, meta=meta, result_type=kind)
    if method.is_cacheable and isinstance(complete, types.CacheableResult):
        complete.ttl_ms = complete.ttl_ms or 0
        complete.cache_scope = complete.cache_scope or "private"
    return complete


@functools.cache
def _usual_kind(kind: type) -> str | None:
    """What a result of a type is, if it does not say so; None if it is none of these."""
    if not issubclass(kind, types.Result):
        return None
    return INPUT_REQUIRED if issubclass(kind, types.InputRequiredResult) else COMPLETE


_NULL: Final = Raw(b"null")


def _dressed_text(text: bytes, signature: dict[str, Any]) -> Raw:
    """The same for what was encoded before, where null says nothing."""
    rest = msgspec.json.decode(text, type=dict[str, Raw])
    kind, meta = rest.pop("resultType", _NULL), rest.pop("_meta", _NULL)
    try:
        said: dict[str, Raw] = msgspec.json.decode(meta, type=dict[str, Raw] | None) or {}
    except msgspec.ValidationError:
        raise LocalProtocolError("the _meta of a result is an object") from None
    members: dict[str, Any] = {
        "resultType": COMPLETE if kind == _NULL else kind,
        "_meta": {**signature, **said},
    }
    return Raw(msgspec.json.encode({**members, **rest}))
