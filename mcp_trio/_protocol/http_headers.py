"""HTTP headers: those of a received request, and those that repeat members of a message.

A stateless POST repeats its protocol version, method and name in headers, so that intermediaries
can route it without reading the body. A tool can also have arguments sent in headers, by the
annotation `x-mcp-header` in its input schema. A server rejects a request whose headers and body
disagree.

https://modelcontextprotocol.io/specification/2026-07-28/basic/transports/streamable-http
"""

import base64
import binascii
import email.utils
import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Self, TypeAlias, cast

import attrs

from mcp_trio._jsonrpc.channel_messages import AuthInfo

Headers: TypeAlias = Sequence[tuple[str, str]]
"""Names and values of headers, in the order in which they are sent."""

JSON: Final = "application/json"
EVENT_STREAM: Final = "text/event-stream"

HOST: Final = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?")
"""A host name or address in lower case, with an optional port."""

OUTER_SPACE: Final = " \t"
"""White space around a header value, which is not part of it (RFC 9110, section 5.5)."""


# Without slots, because cached properties make all attributes of a class with slots slower.
@attrs.frozen(slots=False)
class HttpRequest:
    """The request line and the headers of an HTTP request.

    Attributes:
        method: The method as received, for example `POST`.
        path: The path as received, without the query and the prefix of a mounted application.
        query: The query, without the question mark.
        headers: The values by names in lower case; values of repeated headers are joined.
        repeated: The names of repeated headers.
        scheme: `http` or `https`.
        client: The address of the client.
        auth: The client as it has been authenticated.
        certificate: The thumbprint of the client's TLS certificate, as in RFC 8705, section 3.1:
            the SHA-256 digest in Base64URL; None if there is none.
        common: An object that stands for the request line and all headers except the content length
            and the session id, in every request that repeats them; None if no host has compared
            them. An application may remember under it what follows from these headers alone.
    """

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    repeated: frozenset[str] = frozenset()
    scheme: str = "http"
    client: str | None = None
    auth: AuthInfo | None = None
    certificate: str | None = None
    common: object = attrs.field(default=None, eq=False, repr=False)

    @property
    def principal(self) -> str | None:
        """The name of the authenticated client; None without authentication."""
        return None if self.auth is None else self.auth.principal

    @classmethod
    def of(
        cls, method: str, target: str, headers: Iterable[tuple[bytes, bytes]], **rest: Any
    ) -> Self:
        """Return a request for `target` with the headers as received."""
        path, _, query = target.partition("?")
        return cls(method, path, query, *decoded_headers(headers), **rest)

    def with_headers(self, headers: Mapping[str, str]) -> "HttpRequest":
        """Return a copy in which these headers have other values, or are added.

        The copy keeps the cached properties, so these must not depend on the given headers.
        """
        return self._copy(headers={**self.headers, **headers})

    def without_common(self) -> "HttpRequest":
        """Return a copy without `common`, which means nothing in another process."""
        return self._copy(common=None)

    def with_auth(self, auth: AuthInfo) -> "HttpRequest":
        """Return a copy with the sender as it has been authenticated."""
        return self._copy(auth=auth)

    def as_common(self) -> "HttpRequest":
        """Return a copy with a `common` of its own, which later copies keep."""
        return self._copy(common=object())

    def _copy(self, **changes: Any) -> "HttpRequest":
        # `attrs.evolve` takes ten times as long, and would compute the cached properties again.
        copy = HttpRequest.__new__(HttpRequest)
        vars(copy).update(vars(self), **changes)
        return copy

    def header(self, name: str) -> str | None:
        """Return the value of a header, whose name is in any case; None if it is absent."""
        return self.headers.get(name.lower())

    # The HTTP servers cache requests with equal headers, so these properties are computed once.

    @functools.cached_property
    def host(self) -> tuple[str, str | None] | None:
        """The name and port in `Host`; None if it is absent, repeated or malformed."""
        if "host" in self.repeated:
            return None
        match = HOST.fullmatch(self.headers.get("host", "").lower())
        return None if match is None else (match["name"], match["port"])

    @functools.cached_property
    def is_preflight(self) -> bool:
        """True if this is a CORS preflight request."""
        return (
            self.method == "OPTIONS"
            and "access-control-request-method" in self.headers
            and "origin" in self.headers
        )

    @functools.cached_property
    def is_json(self) -> bool:
        """True if the `Content-Type` is JSON."""
        return media_type_of(self.headers.get("content-type")) == JSON

    @functools.cached_property
    def accepts_json(self) -> bool:
        """True if the client accepts JSON."""
        return accepts(self.headers.get("accept"), JSON)

    @functools.cached_property
    def accepts_event_streams(self) -> bool:
        """True if the client accepts an event stream."""
        return accepts(self.headers.get("accept"), EVENT_STREAM)

    @functools.cached_property
    def routing_headers(self) -> tuple[str, str, str] | None:
        """`MCP-Protocol-Version`, `Mcp-Method` and `Mcp-Name`; None unless each is valid."""
        try:
            version, method = _single_value(self, PROTOCOL_VERSION), _single_value(self, METHOD)
            name = _decoded_header(self, NAME)
        except HeaderMismatchError:
            return None
        if version is None or method is None or name is None:
            return None
        return version, method, name


def decoded_headers(
    headers: Iterable[tuple[bytes, bytes]],
) -> tuple[Mapping[str, str], frozenset[str]]:
    """Return the `headers` and `repeated` of an `HttpRequest`, from the headers as received."""
    values: dict[str, str] = {}
    repeated: set[str] = set()
    for raw_name, raw_value in headers:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        value = value.strip(OUTER_SPACE)
        if name in values:
            repeated.add(name)
            value = f"{values[name]}, {value}"
        values[name] = value
    return values, frozenset(repeated)


# RFC 9110: a name is a token (section 5.6.2); a value has visible characters, inner spaces and tabs
# (section 5.5).
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FIELD_VALUE: Final = re.compile(r"(?:[!-~\x80-\xff](?:[ \t!-~\x80-\xff]*[!-~\x80-\xff])?)?")


def encoded_headers(headers: Headers) -> list[tuple[bytes, bytes]]:
    """Return headers as they are sent, with names in lower case.

    Raises:
        ValueError: A name or value is not allowed in a header, for example because of a line break.
    """
    for name, value in headers:
        if not _TOKEN.fullmatch(name):
            raise ValueError(f"{name!r} is not a valid name of a header")
        if not _FIELD_VALUE.fullmatch(value):
            raise ValueError(f"the value of the header {name} has characters that are not allowed")
    return [(name.lower().encode("ascii"), value.encode("latin-1")) for name, value in headers]


@functools.lru_cache(maxsize=1)
def date_at(second: int) -> bytes:
    """Return the value of `Date` for a Unix time; cached, so that it is formatted once a second."""
    return email.utils.formatdate(second, usegmt=True).encode("ascii")


# Content negotiation: https://www.rfc-editor.org/rfc/rfc9110#name-accept

# The elements of a list, in which a comma between quotes is no separator (RFC 9110, section 5.6.1).
_ELEMENT: Final = re.compile(r'(?:[^,"]+|"(?:[^"\\]|\\.)*"?)+')
# A weight of zero means that the media type is not accepted (RFC 9110, section 12.4.2).
_ZERO_WEIGHT: Final = re.compile(r";[ \t]*q=0(?:\.0*)?[ \t]*(?=;|\Z)", re.IGNORECASE)
# A longer `Accept` is not cached, so that no client fills the memory.
_CACHED_CHARS_MAX: Final = 256


def accepts(accept: str | None, media_type: str) -> bool:
    """Return whether a client with this `Accept` accepts a media type.

    A client without `Accept`, or with an empty one, accepts all. The most specific range that
    matches decides. Parameters of ranges are ignored, except a weight of zero.
    """
    if accept is None:
        return True
    is_long = len(accept) > _CACHED_CHARS_MAX
    return (_accepts if is_long else _cached_accepts)(accept, media_type)


def _accepts(accept: str, media_type: str) -> bool:
    ranges: dict[str, bool] = {}  # for each range: is its weight not zero?
    for element in _ELEMENT.findall(accept):
        name = media_type_of(element)
        if name:
            ranges[name] = ranges.get(name, False) or _ZERO_WEIGHT.search(element) is None
    family = media_type.partition("/")[0]
    matching = (ranges.get(each) for each in (media_type, f"{family}/*", "*/*"))
    return not ranges or next((accepted for accepted in matching if accepted is not None), False)


_cached_accepts: Final = functools.lru_cache(maxsize=128)(_accepts)


def media_type_of(content_type: str | None) -> str:
    """Return the media type in lower case, without parameters; empty if there is none."""
    return "" if content_type is None else content_type.partition(";")[0].strip(OUTER_SPACE).lower()


def is_json_type(content_type: str | None) -> bool:
    """Return whether a media type is that of JSON, or of a format on top of it (RFC 6839)."""
    media_type = media_type_of(content_type)
    return media_type == JSON or media_type.endswith("+json")


# Headers that repeat what the body of a stateless request says.

PROTOCOL_VERSION: Final = "MCP-Protocol-Version"
METHOD: Final = "Mcp-Method"
NAME: Final = "Mcp-Name"
PARAM: Final = "Mcp-Param-"
"""The beginning of the names of parameter headers."""

_X_MCP_HEADER: Final = "x-mcp-header"

NAME_MEMBERS: Final[Mapping[str, str]] = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}
"""By method, the member of its params that `Mcp-Name` repeats."""

ParameterPaths: TypeAlias = Mapping[str, tuple[str, ...]]
"""The parameter headers of a tool: by the name after `Mcp-Param-`, the path of the argument."""

_SHOWN_CHARS_MAX: Final = 100


class HeaderMismatchError(ValueError):
    """A value cannot be sent in a header, or headers and body disagree; the text names the header.

    A server answers such a request with 400 and `HEADER_MISMATCH`.
    """


class ParameterHeaderError(ValueError):
    """An `x-mcp-header` in a tool's schema is invalid; the text names the argument."""


# The encoding of header values.

_BASE64_PREFIX: Final = "=?base64?"
_BASE64_SUFFIX: Final = "?="
_SENT_UNCHANGED: Final = re.compile(r"[ -~]*")
_ALLOWED: Final = re.compile(r"[\t -~]*")  # tabs are allowed, but not sent


def encoded_value(value: str) -> str:
    """Return the header for a value: unchanged, or as Base64 between markers.

    A value that looks like an encoded one is encoded too.
    """
    is_marked = value.startswith(_BASE64_PREFIX) and value.endswith(_BASE64_SUFFIX)
    has_outer_space = value != value.strip(OUTER_SPACE)
    if not is_marked and not has_outer_space and _SENT_UNCHANGED.fullmatch(value):
        return value
    return f"{_BASE64_PREFIX}{base64.b64encode(value.encode()).decode()}{_BASE64_SUFFIX}"


def decoded_value(name: str, text: str) -> str:
    """Return the value of a header `name`: the decoded Base64 between markers, or the text itself.

    Raises:
        HeaderMismatchError: The text between the markers is not Base64 of UTF-8, or the text has
            characters that have to be encoded.
    """
    if not _ALLOWED.fullmatch(text):
        raise HeaderMismatchError(f"{name} has characters that must be sent as Base64")
    if not text.startswith(_BASE64_PREFIX):
        return text
    inner = text.removeprefix(_BASE64_PREFIX).removesuffix(_BASE64_SUFFIX)
    if len(inner) != len(text) - len(_BASE64_PREFIX + _BASE64_SUFFIX):
        return text
    try:
        value = base64.b64decode(inner, validate=True)
        # Python also decodes Base64 that is not canonical, such as with unused bits that are set.
        if base64.b64encode(value).decode() == inner:
            return value.decode()
    except (binascii.Error, UnicodeDecodeError):
        pass
    raise HeaderMismatchError(f"{name} has invalid Base64 between its markers")


# `x-mcp-header` in a tool's input schema.

_PARAMETER_HEADER_TYPES: Final = frozenset({"string", "integer", "boolean"})

# The keywords whose value is a schema or an array of schemas, and those with schemas by name.
_SCHEMA_KEYWORDS: Final = frozenset(
    {"not", "if", "then", "else", "allOf", "anyOf", "oneOf", "items", "prefixItems", "contains"}
    | {"additionalItems", "unevaluatedItems", "additionalProperties", "unevaluatedProperties"}
    | {"propertyNames", "contentSchema"}
)
_NAMED_SCHEMA_KEYWORDS: Final = frozenset(
    {"patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions"}
)

_Path: TypeAlias = tuple[str, ...] | None


def parameter_paths(input_schema: Mapping[str, Any]) -> ParameterPaths:
    """Return the arguments of a tool that are sent in headers.

    Raises:
        ParameterHeaderError: An `x-mcp-header` is invalid: its value is not a token, or is used
            twice, or it is not at a string, integer or boolean that `properties` alone reach.
    """
    paths: dict[str, tuple[str, ...]] = {}
    taken: set[str] = set()
    for path, schema in _schemas(input_schema):
        if _X_MCP_HEADER not in schema:
            continue
        if not path:
            raise ParameterHeaderError(
                f"{_X_MCP_HEADER} is on a schema that is not reached by `properties` alone"
            )
        name, suffix = ".".join(path)[:_SHOWN_CHARS_MAX], schema[_X_MCP_HEADER]
        if not isinstance(suffix, str) or not _TOKEN.fullmatch(suffix):
            raise ParameterHeaderError(
                f"{_X_MCP_HEADER} of {name!r} is not a token, so no header can have it in its name"
            )
        kind = schema.get("type")
        if not isinstance(kind, str) or kind not in _PARAMETER_HEADER_TYPES:
            raise ParameterHeaderError(
                f"{name!r} must be a string, integer or boolean to have {_X_MCP_HEADER}"
            )
        if suffix.lower() in taken:
            raise ParameterHeaderError(f"two properties have the same {_X_MCP_HEADER} {suffix!r}")
        taken.add(suffix.lower())
        paths[suffix] = path
    return paths


def _schemas(root: Mapping[str, Any]) -> Iterator[tuple[_Path, Mapping[str, Any]]]:
    """Yield each schema with the names of the properties that lead to it from the root.

    The path is None if another keyword, such as `anyOf`, leads to the schema. Values that are not
    schemas, such as defaults, are skipped, and references are not followed.
    """
    found: list[tuple[_Path, Any]] = [((), root)]
    for path, schema in found:
        if not isinstance(schema, Mapping):
            continue
        members = cast("Mapping[str, Any]", schema)
        yield path, members
        for keyword, value in members.items():
            if keyword == "properties" and path is not None:
                found += [((*path, name), each) for name, each in _items(value)]
            elif keyword in _NAMED_SCHEMA_KEYWORDS or keyword == "properties":
                found += [(None, each) for _, each in _items(value)]
            elif keyword in _SCHEMA_KEYWORDS:
                schemas = cast("Iterable[Any]", value) if isinstance(value, list) else (value,)
                found += [(None, each) for each in schemas]


def _items(value: Any) -> Iterable[tuple[str, Any]]:
    return cast("Mapping[str, Any]", value).items() if isinstance(value, Mapping) else ()


# The values in the body.

_EXACT_INTEGER_MAX: Final = 2**53 - 1

# An integer up to 2^53 - 1, which has 16 digits; an equal number such as `42.0` may be sent, too.
_INTEGER: Final = re.compile(r"(-?[0-9]{1,16})(?:\.0{1,16})?")


def _argument_at(params: Mapping[str, Any] | None, path: tuple[str, ...]) -> Any:
    """Return the argument at a path; None if it is absent."""
    value: Any = (params or {}).get("arguments")
    for name in path:
        if not isinstance(value, Mapping):
            return None
        value = cast("Mapping[str, Any]", value).get(name)
    return value


def _header_text(value: Any, name: str) -> str | None:
    """Return the text of a value; None for null and for types that the schema does not allow.

    Raises:
        HeaderMismatchError: The value is an integer that not all JSON parsers read exactly.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int):
        return value if isinstance(value, str) else None
    if abs(value) > _EXACT_INTEGER_MAX:
        raise HeaderMismatchError(f"{name} cannot carry an integer beyond 2^53 - 1")
    return str(value)


def _name_in(method: str, params: Mapping[str, Any] | None) -> str | None:
    """Return the value for `Mcp-Name`; None if the method has none, or it is absent."""
    name = (params or {}).get(NAME_MEMBERS.get(method, ""))
    return name if isinstance(name, str) else None


# Sending and checking.


def headers_from_body(
    *, version: str, method: str, params: Mapping[str, Any] | None, paths: ParameterPaths | None
) -> Headers:
    """Return the headers that a client sends with a stateless request.

    `paths` are the parameter headers of the called tool, by its newest schema; None if unknown.

    Raises:
        HeaderMismatchError: The method cannot be sent in a header, or an integer is too large.
    """
    if not _SENT_UNCHANGED.fullmatch(method) or method != method.strip(OUTER_SPACE):
        raise HeaderMismatchError(f"{METHOD} cannot carry {method[:_SHOWN_CHARS_MAX]!r}")
    headers = [(PROTOCOL_VERSION, version), (METHOD, method)]
    name = _name_in(method, params)
    if name is not None:
        headers.append((NAME, encoded_value(name)))
    for suffix, path in (paths or {}).items():
        text = _header_text(_argument_at(params, path), PARAM + suffix)
        if text is not None:
            headers.append((PARAM + suffix, encoded_value(text)))
    return headers


def check_headers_match(
    request: HttpRequest,
    *,
    version: str,
    method: str,
    params: Mapping[str, Any] | None,
    paths: ParameterPaths | None,
    is_request: bool,
) -> None:
    """Check that the headers of a stateless message repeat what its body says.

    A notification may lack the header for its method. Parameter headers that are not in `paths` are
    ignored.

    Raises:
        HeaderMismatchError: A header differs from the body, or is missing.
    """
    if not paths and request.routing_headers == (version, method, _name_in(method, params)):
        return  # nearly all requests; otherwise find out what differs
    _check_same(PROTOCOL_VERSION, _single_value(request, PROTOCOL_VERSION), version)
    sent = _single_value(request, METHOD)
    if is_request or sent is not None:
        _check_same(METHOD, sent, method)
    if method in NAME_MEMBERS:
        _check_same(NAME, _decoded_header(request, NAME), _name_in(method, params))
    for suffix, path in (paths or {}).items():
        header, argument = PARAM + suffix, _argument_at(params, path)
        sent, expected = _decoded_header(request, header), _header_text(argument, header)
        is_number = isinstance(argument, int | float) and not isinstance(argument, bool)
        number = _INTEGER.fullmatch(sent) if sent is not None and is_number else None
        if number is None or int(number[1]) != argument:
            _check_same(header, sent, expected)


def _single_value(request: HttpRequest, name: str) -> str | None:
    field = name.lower()
    # An intermediary may have used the other value of a repeated header.
    if field in request.repeated:
        raise HeaderMismatchError(f"{name} was sent more than once")
    return request.headers.get(field)


def _decoded_header(request: HttpRequest, name: str) -> str | None:
    text = _single_value(request, name)
    return None if text is None else decoded_value(name, text)


def _check_same(name: str, sent: str | None, expected: str | None) -> None:
    if sent == expected:
        return
    if sent is None:
        raise HeaderMismatchError(f"{name} is missing; the body has {_quoted(expected)}")
    raise HeaderMismatchError(f"{name} is {_quoted(sent)}; the body has {_quoted(expected)}")


def _quoted(value: str | None) -> str:
    return "nothing" if value is None else repr(value[:_SHOWN_CHARS_MAX])
