"""What comes before the body of an HTTP request, and what its fields say."""

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Self, TypeAlias

import attrs

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
class Head:
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
        return cls(method, path, query, *fields_of(headers), **rest)

    def with_field(self, name: str, value: str) -> "Head":
        """The same but for one field; a call of its own, as `attrs.evolve` costs ten times that."""
        return Head(
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
        """Whether the body is said to be JSON."""
        return media_type_of(self.headers.get("content-type")) == JSON

    @functools.cached_property
    def takes_json(self) -> bool:
        """Whether the client takes JSON as an answer."""
        return accepts(self.headers.get("accept"), JSON)

    @functools.cached_property
    def takes_streams(self) -> bool:
        """Whether the client takes a stream of events as an answer."""
        return accepts(self.headers.get("accept"), EVENT_STREAM)


def fields_of(headers: Iterable[tuple[bytes, bytes]]) -> tuple[Mapping[str, str], frozenset[str]]:
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
    """Whether a client that sent this `Accept` takes an answer of this type (TRAP-31).

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
