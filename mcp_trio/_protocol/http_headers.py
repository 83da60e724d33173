"""HTTP headers: requests, parameter headers, and encoding."""

import base64
import binascii
import email.utils
import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Self, TypeAlias, cast

import attrs

# --------------------
# What comes before the body of an HTTP request, and what its fields say.


Headers: TypeAlias = Sequence[tuple[str, str]]
"""Names and values of header fields, in the order in which they are sent."""

JSON: Final = "application/json"
EVENT_STREAM: Final = "text/event-stream"

HOST: Final = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?")
"""A host, by name or number, and perhaps a port; in lower case."""

OUTER_SPACE: Final = " \t"
"""What may stand around a field value without being part of it (HDR-06)."""


# With slots, its cached properties would have every attribute looked up twice.
@attrs.frozen(slots=False)
class HttpRequest:
    """What came before the body of a request.

    Attributes:
        method: As it came, for instance `POST`.
        path: As it came, without the query, and without what the application is mounted under.
        query: What stood behind the question mark.
        headers: By names in lower case; a field that came several times has its values joined.
        repeated: The names of those.
        scheme: `http` or `https`.
        client: The address of the peer.
        principal: Who it has proved to be.
    """

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    repeated: frozenset[str] = frozenset()
    scheme: str = "http"
    client: str | None = None
    principal: str | None = None

    @classmethod
    def of(
        cls, method: str, target: str, headers: Iterable[tuple[bytes, bytes]], **rest: Any
    ) -> Self:
        """The head of a request for `target`, with the fields as they came over the wire."""
        path, _, query = target.partition("?")
        return cls(method, path, query, *decoded_headers(headers), **rest)

    def with_header(self, name: str, value: str) -> "HttpRequest":
        """The same but for one field; a call of its own, as `attrs.evolve` costs ten times that."""
        return HttpRequest(
            self.method,
            self.path,
            self.query,
            {**self.headers, name: value},
            self.repeated,
            self.scheme,
            self.client,
            self.principal,
        )

    def header(self, name: str) -> str | None:
        """The value of a field, by its name in any case (HDR-05); None if it did not come."""
        return self.headers.get(name.lower())

    # A client says the same in one request after the other: hosts keep heads, and what they mean.

    @functools.cached_property
    def host(self) -> tuple[str, str | None] | None:
        """Name and port under which the client has found us; None: it said none, or nonsense."""
        if "host" in self.repeated:
            return None
        match = HOST.fullmatch(self.headers.get("host", "").lower())
        return None if match is None else (match["name"], match["port"])

    @functools.cached_property
    def is_json(self) -> bool:
        """Return whether the body is said to be JSON."""
        return media_type_of(self.headers.get("content-type")) == JSON

    @functools.cached_property
    def accepts_json(self) -> bool:
        """Return whether the client takes JSON as an answer."""
        return accepts(self.headers.get("accept"), JSON)

    @functools.cached_property
    def accepts_event_streams(self) -> bool:
        """Return whether the client takes a stream of events as an answer."""
        return accepts(self.headers.get("accept"), EVENT_STREAM)


def decoded_headers(
    headers: Iterable[tuple[bytes, bytes]],
) -> tuple[Mapping[str, str], frozenset[str]]:
    """The `headers` and `repeated` of a head, of the fields as they came over the wire."""
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


# The elements of a list, where a comma between quotes parts nothing (RFC 9110, section 5.6.1).
_ELEMENT: Final = re.compile(r'(?:[^,"]+|"(?:[^"\\]|\\.)*"?)+')
_NO_WEIGHT: Final = re.compile(r";[ \t]*q=0(?:\.0*)?[ \t]*(?=;|\Z)", re.IGNORECASE)
_REMEMBERED_CHARS_MAX: Final = 256


def accepts(accept: str | None, media_type: str) -> bool:
    """Return whether a client that sent this `Accept` takes an answer of this type (TRAP-31).

    One that sent none, or an empty one, takes all. The narrowest range that fits decides; its
    parameters, but for a weight of zero, do not matter.
    """
    if accept is None:
        return True
    is_long = len(accept) > _REMEMBERED_CHARS_MAX
    return (_accepts if is_long else _remembered_accepts)(accept, media_type)


def _accepts(accept: str, media_type: str) -> bool:
    ranges = _ranges(accept)
    family = media_type.partition("/")[0]
    narrowest = (ranges.get(each) for each in (media_type, f"{family}/*", "*/*"))
    return not ranges or next((said for said in narrowest if said is not None), False)


_remembered_accepts: Final = functools.lru_cache(maxsize=128)(_accepts)


def _ranges(accept: str) -> Mapping[str, bool]:
    """Which ranges of media types are named, and whether they are wanted at all."""
    ranges: dict[str, bool] = {}
    for element in _ELEMENT.findall(accept):
        name = media_type_of(element)
        if name:
            ranges[name] = ranges.get(name, False) or _NO_WEIGHT.search(element) is None
    return ranges


def media_type_of(content_type: str | None) -> str:
    """The media type in lower case, without parameters; empty if there is none."""
    return "" if content_type is None else content_type.partition(";")[0].strip(" \t").lower()


# --------------------
# Header fields that repeat what the body of a modern request says.
#
# Who stands between client and server can then route without reading bodies, and a server refuses
# what says one thing in its head and another in its body. Some fields are on every request; others
# mirror those arguments of a tool whose schema asks for it by `x-mcp-header`.


PROTOCOL_VERSION: Final = "MCP-Protocol-Version"
METHOD: Final = "Mcp-Method"
NAME: Final = "Mcp-Name"
PARAM: Final = "Mcp-Param-"
"""What the names of fields that mirror an argument begin with."""

ANNOTATION: Final = "x-mcp-header"

NAME_MEMBERS: Final[Mapping[str, str]] = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}
"""By method, which of its params `Mcp-Name` repeats; others have none (HDR-03, HDR-04)."""

Paths: TypeAlias = Mapping[str, tuple[str, ...]]
"""What stands behind `Mcp-Param-` in a field's name, and where its argument is."""

_SHOWN_CHARS_MAX: Final = 100


class HeaderMismatchError(ValueError):
    """A value cannot be sent in a header, or headers and body disagree; the text names the field.

    A server answers such a request with 400 and `HEADER_MISMATCH`.
    """


class AnnotationError(ValueError):
    """A tool's schema asks for fields that cannot be; the text says where and why (HDR-16)."""


# Values ------------------------------------------------------------------------------------------

_PREFIX: Final = "=?base64?"
_SUFFIX: Final = "?="
_PLAIN: Final = re.compile(r"[ -~]*")
_RECEIVED: Final = re.compile(r"[\t -~]*")  # a tab is legal in a field, though we wrap it (TRAP-48)


def encoded_value(value: str) -> str:
    """The value as a field can carry it: as it is, or as Base64 between markers (HDR-23, HDR-28).

    What looks as if it were wrapped is wrapped too (HDR-24).
    """
    is_marked = value.startswith(_PREFIX) and value.endswith(_SUFFIX)
    has_outer_space = value != value.strip(OUTER_SPACE)
    if not is_marked and not has_outer_space and _PLAIN.fullmatch(value):
        return value
    return f"{_PREFIX}{base64.b64encode(value.encode()).decode()}{_SUFFIX}"


def decoded_value(text: str) -> str:
    """What a field's text stands for; without both markers, the text itself (HDR-26).

    Raises:
        MirrorError: Between the markers is no Base64 of UTF-8 as `encoded_value` writes it, or a
            character should have been wrapped (HDR-30).
    """
    if not _RECEIVED.fullmatch(text):
        raise HeaderMismatchError("has characters that are sent as Base64 only")
    inner = text.removeprefix(_PREFIX).removesuffix(_SUFFIX)
    if len(inner) != len(text) - len(_PREFIX + _SUFFIX):
        return text
    try:
        value = base64.b64decode(inner, validate=True)
        if base64.b64encode(value).decode() == inner:
            return value.decode()
    except (binascii.Error, UnicodeDecodeError):
        pass
    raise HeaderMismatchError("has bad Base64 between its markers")


# Annotations of schemas --------------------------------------------------------------------------

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, section 5.6.2
_PARAMETER_HEADER_TYPES: Final = frozenset({"string", "integer", "boolean"})

# The keywords whose value is a schema, or an array of them, and those with a schema by each name.
_INNER: Final = frozenset(
    {"not", "if", "then", "else", "allOf", "anyOf", "oneOf", "items", "prefixItems", "contains"}
    | {"additionalItems", "unevaluatedItems", "additionalProperties", "unevaluatedProperties"}
    | {"propertyNames", "contentSchema"}
)
_NAMED: Final = frozenset(
    {"patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions"}
)

_Path: TypeAlias = tuple[str, ...] | None


def parameter_paths(input_schema: Mapping[str, Any]) -> Paths:
    """Return the arguments of a tool that are sent in headers, and the names of these headers.

    Raises:
        AnnotationError: An annotation breaks a rule (HDR-10 to HDR-13, HDR-15).
    """
    paths: dict[str, tuple[str, ...]] = {}
    taken: set[str] = set()
    for path, schema in _schemas(input_schema):
        if ANNOTATION not in schema:
            continue
        if not path:
            raise AnnotationError(f"{ANNOTATION} where no path of `properties` alone leads")
        suffix = _suffix(schema, ".".join(path)[:_SHOWN_CHARS_MAX])
        if suffix.lower() in taken:
            raise AnnotationError(f"{ANNOTATION} {suffix!r} stands at two properties")
        taken.add(suffix.lower())
        paths[suffix] = path
    return paths


def _suffix(schema: Mapping[str, Any], place: str) -> str:
    suffix = schema[ANNOTATION]
    if not isinstance(suffix, str) or not _TOKEN.fullmatch(suffix):
        raise AnnotationError(
            f"{ANNOTATION} of {place!r} is no token that can be in a field's name"
        )
    kind = schema.get("type")
    if not isinstance(kind, str) or kind not in _PARAMETER_HEADER_TYPES:
        raise AnnotationError(
            f"{place!r} is no string, integer or boolean: {ANNOTATION} is not for it"
        )
    return suffix


def _schemas(root: Mapping[str, Any]) -> Iterator[tuple[_Path, Mapping[str, Any]]]:
    """Every schema inside, and the names of `properties` that lead there; None: other ways do.

    Values that are no schemas, such as defaults, are not looked into, and nothing is referred to.
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
            elif keyword in _NAMED or keyword == "properties":
                found += [(None, each) for _, each in _items(value)]
            elif keyword in _INNER:
                found += [(None, each) for each in _listed(value)]


def _items(value: Any) -> Iterable[tuple[str, Any]]:
    return cast("Mapping[str, Any]", value).items() if isinstance(value, Mapping) else ()


def _listed(value: Any) -> Iterable[Any]:
    return cast("Iterable[Any]", value) if isinstance(value, list) else (value,)


# What a body says --------------------------------------------------------------------------------

_EXACT_MAX: Final = 2**53 - 1
_INTEGER: Final = re.compile(r"(-?[0-9]{1,16})(?:\.0{1,16})?")


def _argument(params: Mapping[str, Any] | None, path: tuple[str, ...]) -> Any:
    """The value at a path; None if there is none (HDR-19)."""
    value: Any = (params or {}).get("arguments")
    for name in path:
        if not isinstance(value, Mapping):
            return None
        value = cast("Mapping[str, Any]", value).get(name)
    return value


def _rendered(value: Any, field: str) -> str | None:
    """The text of a value (HDR-22); None for null, and for what the schema does not allow there.

    Raises:
        MirrorError: It is an integer that not everybody reads exactly (HDR-14).
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int):
        return value if isinstance(value, str) else None
    if abs(value) > _EXACT_MAX:
        raise HeaderMismatchError(f"{field} mirrors an integer beyond 2^53 - 1")
    return str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _named(method: str, params: Mapping[str, Any] | None) -> str | None:
    """What `Mcp-Name` repeats; None if the method has nothing of that kind, or it did not come."""
    name = (params or {}).get(NAME_MEMBERS.get(method, ""))
    return name if isinstance(name, str) else None


# Both sides --------------------------------------------------------------------------------------


def headers_from_body(
    *, version: str, method: str, params: Mapping[str, Any] | None, paths: Paths | None
) -> Headers:
    """What a client sends beside a request (HDR-01 to HDR-04, HDR-09, HDR-19, HDR-25).

    `paths` is what the newest schema of the tool that is called asks for; None if there is none.

    Raises:
        MirrorError: The method cannot be said in a head, or an integer is too large (HDR-14).
    """
    if not _PLAIN.fullmatch(method) or method != method.strip(OUTER_SPACE):
        raise HeaderMismatchError(f"{METHOD} cannot repeat {method[:_SHOWN_CHARS_MAX]!r}")
    headers = [(PROTOCOL_VERSION, version), (METHOD, method)]
    name = _named(method, params)
    if name is not None:
        headers.append((NAME, encoded_value(name)))
    for suffix, path in (paths or {}).items():
        text = _rendered(_argument(params, path), PARAM + suffix)
        if text is not None:
            headers.append((PARAM + suffix, encoded_value(text)))
    return headers


def check_headers_match(
    request: HttpRequest,
    *,
    version: str,
    method: str,
    params: Mapping[str, Any] | None,
    paths: Paths | None,
    is_request: bool,
) -> None:
    """Return whether the head of a modern message says what its body says.

    A notification need not repeat its method (TRAP-57). What `paths` do not name is nobody's
    business here (HDR-31).

    Raises:
        MirrorError: It does not, or leaves out what it has to repeat (HDR-07, HDR-21).
    """
    _check_same(PROTOCOL_VERSION, _sent(request, PROTOCOL_VERSION), version)
    sent = _sent(request, METHOD)
    if is_request or sent is not None:
        _check_same(METHOD, sent, method)
    if method in NAME_MEMBERS:
        _check_same(NAME, _decoded(request, NAME), _named(method, params))
    for suffix, path in (paths or {}).items():
        _check_argument(request, PARAM + suffix, _argument(params, path))


def _sent(request: HttpRequest, field: str) -> str | None:
    """The text of a field; of one that came twice, others may have read the other text."""
    if field.lower() in request.repeated:
        raise HeaderMismatchError(f"{field} came more than once")
    return request.header(field)


def _decoded(request: HttpRequest, field: str) -> str | None:
    text = _sent(request, field)
    try:
        return None if text is None else decoded_value(text)
    except HeaderMismatchError as error:
        raise HeaderMismatchError(f"{field} {error}") from None


def _check_argument(request: HttpRequest, field: str, value: Any) -> None:
    sent, said = _decoded(request, field), _rendered(value, field)
    number = _INTEGER.fullmatch(sent) if sent is not None and _is_number(value) else None
    if number is None or int(number[1]) != value:  # 42.0 is 42 (HDR-29)
        _check_same(field, sent, said)


def _check_same(field: str, sent: str | None, said: str | None) -> None:
    if sent == said:
        return
    if sent is None:
        raise HeaderMismatchError(f"{field} is missing; the body says {_shown(said)}")
    raise HeaderMismatchError(f"{field} is {_shown(sent)}; the body says {_shown(said)}")


def _shown(value: str | None) -> str:
    return "nothing" if value is None else repr(value[:_SHOWN_CHARS_MAX])


# RFC 9110: a name is a token (5.6.2); a value has visible characters, inner spaces and tabs (5.5).
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"(?:[!-~\x80-\xff](?:[ \t!-~\x80-\xff]*[!-~\x80-\xff])?)?")


def encoded(headers: Headers) -> list[tuple[bytes, bytes]]:
    """The fields as they go over the wire, names in lower case.

    Raises:
        ValueError: A name or value cannot stand in a header, for instance for a line break in it.
    """
    for name, value in headers:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} cannot be the name of a header field")
        if not _VALUE.fullmatch(value):
            raise ValueError(f"the value of the header field {name} has what no value may have")
    return [(name.lower().encode("ascii"), value.encode("latin-1")) for name, value in headers]


@functools.lru_cache(maxsize=1)
def date_at(second: int) -> bytes:
    """The value of `Date`, made once a second."""
    return email.utils.formatdate(second, usegmt=True).encode("ascii")
