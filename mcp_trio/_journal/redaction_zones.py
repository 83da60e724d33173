"""JSON texts, changed only where a secret stands: spaces, escapes and order stay as they are."""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from enum import Enum, auto
from types import MappingProxyType
from typing import Any, Final, Protocol

import attrs
import msgspec

from mcp_trio._journal.records import MONOTONIC, NOW, TIMEOUT
from mcp_trio._journal.secret_detection import NAMED, NAMING, SecretNames

# --------------------
# Where in a record a secret may stand, and where the protocol speaks and nothing is touched.
#
# A `Zone` says it of a value; its members say it of what is inside. An array has no say of its own:
# its items stand in its zone. What no table names is people's data.


class Rule(Enum):
    """What happens to a value."""

    LEAVE = auto()  # the protocol's: never touched
    SEARCH = auto()  # people's: secrets are looked for, by name and by what is known
    HIDE = auto()  # all of it is secret


@attrs.frozen(kw_only=True, eq=False)
class Zone:
    """The rule of a value, and the zones of the members that it may have.

    `has_free_names`: what its members are called is people's data as well.
    """

    rule: Rule
    members: Mapping[str, "Zone"] = attrs.field(factory=lambda: MappingProxyType({}))
    others: "Zone | None" = None
    has_free_names: bool = False

    def member(self, name: str) -> "Zone":
        """The zone of a member; that of one without a row is `others`, or this one again."""
        return self.members.get(name) or self.others or self


LEAVE: Final = Zone(rule=Rule.LEAVE)
SEARCH: Final = Zone(rule=Rule.SEARCH, has_free_names=True)
HIDE: Final = Zone(rule=Rule.HIDE, has_free_names=True)


def _zone(left: str = "", **members: Zone) -> Zone:
    """A zone whose members are data, but for those `left` to the protocol."""
    rows = dict.fromkeys(left.split(), LEAVE) | members
    if "_meta" in rows:
        rows["_meta"] = _META
    return Zone(rule=Rule.SEARCH, members=rows, others=SEARCH)


# Its other members are people's.
_META: Final = _zone(
    "progressToken traceparent tracestate"
    " io.modelcontextprotocol/protocolVersion io.modelcontextprotocol/clientCapabilities"
    " io.modelcontextprotocol/clientInfo io.modelcontextprotocol/serverInfo"
    " io.modelcontextprotocol/logLevel io.modelcontextprotocol/subscriptionId"
)

_RESOURCE: Final = _zone("mimeType _meta")
_BLOCK: Final = _zone("type mimeType role annotations _meta", resource=_RESOURCE)
_MESSAGE: Final = _zone("role _meta", content=_BLOCK)
_OFFER: Final = _zone(
    "name inputSchema outputSchema arguments annotations mimeType uriTemplate size _meta"
)
_URI: Final = _zone("_meta")
_CALL: Final = _zone("name requestState _meta")
_READ: Final = _zone("requestState _meta")

# A method without a row is people's own: all of its params but these are data.
_OWN_PARAMS: Final = _zone("_meta progressToken")

PARAMS: Final[Mapping[str, Zone]] = {
    "initialize": _zone("protocolVersion capabilities clientInfo _meta"),
    "server/discover": _zone("_meta"),
    "ping": _zone("_meta"),
    "tools/list": _zone("cursor _meta"),
    "tools/call": _CALL,
    "resources/list": _zone("cursor _meta"),
    "resources/templates/list": _zone("cursor _meta"),
    "resources/read": _READ,
    "resources/subscribe": _URI,
    "resources/unsubscribe": _URI,
    "prompts/list": _zone("cursor _meta"),
    "prompts/get": _CALL,
    "completion/complete": _zone("ref _meta", argument=_zone("name")),
    "logging/setLevel": _zone("level _meta"),
    "subscriptions/listen": _URI,
    "sampling/createMessage": _zone(
        "maxTokens temperature modelPreferences includeContext stopSequences _meta",
        messages=_MESSAGE,
    ),
    "roots/list": _zone("_meta"),
    "elicitation/create": _zone("mode requestedSchema elicitationId _meta"),
    "notifications/initialized": _zone("_meta"),
    "notifications/cancelled": _zone("requestId _meta"),
    "notifications/progress": _zone("progressToken progress total _meta"),
    "notifications/message": _zone("level logger _meta"),
    "notifications/resources/updated": _URI,
    "notifications/resources/list_changed": _zone("_meta"),
    "notifications/tools/list_changed": _zone("_meta"),
    "notifications/prompts/list_changed": _zone("_meta"),
    "notifications/roots/list_changed": _zone("_meta"),
    "notifications/elicitation/complete": _zone("elicitationId _meta"),
    "notifications/subscriptions/acknowledged": _URI,
}

# One table for all results: which request an answer belongs to, its frame does not say.
_RESULT: Final = _zone(
    "protocolVersion supportedVersions capabilities serverInfo resultType isError nextCursor"
    " ttlMs cacheScope requestState action role model stopReason _meta",
    content=_BLOCK,
    contents=_RESOURCE,
    messages=_MESSAGE,
    completion=_zone("total hasMore"),
    tools=_OFFER,
    resources=_OFFER,
    resourceTemplates=_OFFER,
    prompts=_OFFER,
    roots=_URI,
)
_ERROR: Final = _zone("code")

_BODIES: Final[Mapping[str, Zone]] = {
    "open": _zone(
        "format_version transport role tools_digest seed redaction started session writer"
    ),
    "cmd": _zone("name"),
    "res": SEARCH,
    "err": _zone("type"),
    "val": _zone("name", error=_zone("type")),
    "mark": _zone("name"),
    "gap": SEARCH,
    "cxl": LEAVE,
    "shut": LEAVE,
    "end": LEAVE,
}
MESSAGE_KINDS: Final = frozenset({"in", "out"})

# Clocks are read back as times; no digits of theirs are a secret.
_CLOCKS: Final = frozenset({NOW, MONOTONIC, TIMEOUT})

EVERYWHERE: Final = "*"

# Kinds whose zone is chosen by what stands in the body.
_HEADED: Final = MESSAGE_KINDS | {"val"}
_ANSWERS: Final = frozenset({"result", "error"})

_STEP: Final = re.compile(r'\.([^.\[\]"*]+)|\[(?:\d+|\*|("(?:[^"\\]|\\.)*"))\]')
_PATH: Final = re.compile(rf"\$(?=\.|\[\")(?:{_STEP.pattern})+")

_Steps = tuple[str, ...]


class _Params(msgspec.Struct):
    name: Any = ""


class _Head(msgspec.Struct):
    """What chooses a record's zone: a frame's method and tool, or the name of a body."""

    method: Any = ""
    name: Any = ""
    params: _Params = msgspec.field(default_factory=_Params)


class Zones:
    """The zone of each record's body, with the paths that are secret besides.

    `paths` are JSON paths by method (`tools/call`), by method and name (`tools/call forecast`), by
    kind of record (`res`), or for all (`*`). An index stands for all items. Which request a frame
    answers it does not say itself, so a path into a result counts in all results.

    Raises:
        ValueError: A path cannot be read, or leads to what the protocol says.
    """

    def __init__(self, paths: Mapping[str, Collection[str]]) -> None:
        self._paths = {key: [_steps(path) for path in each] for key, each in paths.items()}
        self._answers = [
            steps for each in self._paths.values() for steps in each if steps[0] in _ANSWERS
        ]
        self._bodies = {
            kind: _hiding_all(zone, self._paths_of(kind)) for kind, zone in _BODIES.items()
        }
        self._frames = {key: self._frame(key) for key in ("", *PARAMS, *paths)}
        for key, each in self._paths.items():
            for steps in each:
                self._reject_protocol(key, steps)

    def last_names(self) -> frozenset[str]:
        """The names in which the paths end: one stands in each record that a path is about."""
        return frozenset(steps[-1] for each in self._paths.values() for steps in each)

    def of(self, kind: str, body: bytes) -> Zone:
        """The zone of a record's body."""
        head = _head(body) if kind in _HEADED else _Head()
        if kind not in MESSAGE_KINDS:
            is_clock = kind == "val" and head.name in _CLOCKS
            return LEAVE if is_clock else self._bodies.get(kind, SEARCH)
        named = self._frames.get(f"{head.method} {head.params.name}")
        return named or self._frames.get(head.method) or self._frames[""]

    def _frame(self, key: str) -> Zone:
        method = key.partition(" ")[0]
        params = PARAMS.get(method, _OWN_PARAMS)
        zone = _zone("jsonrpc id method", params=params, result=_RESULT, error=_ERROR)
        keys = {EVERYWHERE, method, key}
        paths = [steps for each in keys for steps in self._paths.get(each, ())]
        return _hiding_all(zone, [*paths, *self._answers])

    def _reject_protocol(self, key: str, steps: _Steps) -> None:
        everywhere = [*self._bodies.values(), *self._frames.values()]
        own = self._bodies.get(key) or self._frames[key]
        zones = everywhere if key == EVERYWHERE else [own]
        if all(_rule(zone, steps) is Rule.LEAVE for zone in zones):
            raise ValueError(f"{'.'.join(steps)} is the protocol's: it is never redacted")

    def _paths_of(self, kind: str) -> list[_Steps]:
        return [*self._paths.get(kind, ()), *self._paths.get(EVERYWHERE, ())]


def _head(body: bytes) -> _Head:
    try:
        head = msgspec.json.decode(body, type=_Head)
    except (ValueError, RecursionError):
        return _Head()
    is_plain = all(isinstance(each, str) for each in (head.method, head.name, head.params.name))
    return head if is_plain else _Head()


def _steps(path: str) -> _Steps:
    """The member names in a JSON path such as `$.params.arguments["card no"][*].digits`."""
    if not _PATH.fullmatch(path):
        raise ValueError(f"not a JSON path to a member: {path!r}; write $.params.arguments.name")
    return tuple(
        msgspec.json.decode(quoted) if quoted else plain
        for plain, quoted in _STEP.findall(path)
        if plain or quoted
    )


def _rule(zone: Zone, steps: _Steps) -> Rule:
    for step in steps:
        zone = zone.member(step)
    return zone.rule


def _hiding_all(zone: Zone, paths: Iterable[_Steps]) -> Zone:
    for steps in paths:
        zone = _hiding(zone, steps)
    return zone


def _hiding(zone: Zone, steps: _Steps) -> Zone:
    """The same zone, but that what the steps lead to is hidden."""
    if zone.rule is Rule.LEAVE:
        return LEAVE
    if not steps or zone.rule is Rule.HIDE:
        return HIDE
    name, rest = steps[0], steps[1:]
    members = {**zone.members, name: _hiding(zone.member(name), rest)}
    return attrs.evolve(zone, members=members, others=zone.others or SEARCH)


# What JSON begins with that has values in it.
OPENINGS: Final = frozenset({"{", "["})

_TOKEN: Final = re.compile(
    r'("[^"\\]*+(?:\\.[^"\\]*+)*+")(\s*:)?|([{\[])|([}\]])|(-?[0-9][-+.0-9eE]*)', re.DOTALL
)
_VALUE, _KEY, _OPENING, _CLOSING, _NUMBER = range(1, 6)


class Changing(Protocol):
    """What becomes of the values in a JSON text; whatever is given back has the same type."""

    names: SecretNames

    def hidden(self, text: str) -> str:
        """A text all of which is secret."""
        ...

    def searched(self, text: str) -> str:
        """A text in which secrets may stand."""
        ...

    def hidden_number(self, number: str) -> str:
        """A number that is secret."""
        ...

    def searched_number(self, number: str) -> str:
        """A number that may be known to be secret."""
        ...


@attrs.define
class _Container:
    """An object or array that was opened at some place, and the zone of what is in it.

    `is_pair`: an array in an array, whose first item may name the second. `is_next_secret`: the
    value that was named, or the item behind one that names it, is secret.
    """

    place: int
    zone: Zone
    next_zone: Zone
    is_array: bool = False
    is_pair: bool = False
    key: str = ""
    is_next_secret: bool = False
    has_value: bool = False

    def take_zone(self) -> Zone:
        """The zone of the value that comes now."""
        zone = self.next_zone
        if self.is_array and zone.rule is Rule.SEARCH and self.is_next_secret:
            zone = HIDE
        if self.is_array:
            self.is_next_secret = False
        return zone


def redacted_json(text: str, zone: Zone, changing: Changing) -> str:
    """A valid JSON text, with the values in it changed as their zones say."""
    named: set[int] = set()
    while True:
        editor = _JsonRedactor(text, zone, changing, named)
        for match in _TOKEN.finditer(text):
            editor.take(match)
        if not editor.named_late:
            return editor.text()
        named |= editor.named_late


def is_json(body: bytes | str) -> bool:
    """Whether it is JSON as our decoder reads it."""
    try:
        msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return False
    return True


class _JsonRedactor:
    """Changes a text; `named` are the places of objects whose values are known to be secret.

    `named_late` are those of which that was seen only behind the value.
    """

    def __init__(self, text: str, zone: Zone, changing: Changing, named: Collection[int]) -> None:
        self._text = text
        self._changing = changing
        self._named = named
        self._open = [_Container(-1, zone, zone)]
        self._pieces: list[str] = []
        self._copied = 0
        self.named_late: set[int] = set()

    def take(self, match: re.Match[str]) -> None:
        """The next token of the text."""
        what = match.lastindex
        if what == _OPENING:
            self._enter(match)
        elif what == _CLOSING:
            self._open.pop()
        elif what == _KEY:
            self._take_key(match)
        elif what == _VALUE:
            self._take_text(match)
        else:
            self._take_number(match)

    def text(self) -> str:
        """The changed text, when all tokens were taken."""
        return "".join((*self._pieces, self._text[self._copied :]))

    def _enter(self, match: re.Match[str]) -> None:
        outer = self._open[-1]
        zone, place, is_array = outer.take_zone(), match.start(), match[0] == "["
        inner = _Container(place, zone, zone, is_array, is_array and outer.is_array)
        inner.is_next_secret = place in self._named
        self._open.append(inner)

    def _take_key(self, match: re.Match[str]) -> None:
        container = self._open[-1]
        name = _decoded(match[_VALUE])
        container.key = name
        container.next_zone = self._zone_of(container, name)
        container.has_value |= name in NAMED
        if container.zone.has_free_names and not self._changing.names.lists(name):
            self._put(match, name, self._changing.searched(name))

    def _zone_of(self, container: _Container, name: str) -> Zone:
        inner = container.zone.member(name)
        if inner.rule is not Rule.SEARCH:
            return inner
        is_value = name in NAMED and container.is_next_secret
        return HIDE if is_value or self._changing.names.covers(name) else inner

    def _take_text(self, match: re.Match[str]) -> None:
        container = self._open[-1]
        value = _decoded(match[_VALUE])
        rule = container.take_zone().rule
        if self._names_next(container, value):
            container.is_next_secret = True
            if container.has_value and container.place not in self._named:
                self.named_late.add(container.place)
        container.is_pair = False
        if rule is Rule.HIDE:
            self._put(match, value, self._changing.hidden(value))
        elif rule is Rule.SEARCH:
            self._put(match, value, self._changing.searched(value))

    def _names_next(self, container: _Container, value: str) -> bool:
        """Whether a text says of the value beside it, or of the item behind it, what it is."""
        if container.is_array:
            may_name = container.is_pair or value.startswith("-")
        else:
            may_name = container.key in NAMING
        return may_name and self._changing.names.covers(value)

    def _take_number(self, match: re.Match[str]) -> None:
        rule = self._open[-1].take_zone().rule
        if rule is Rule.HIDE:
            self._replace(match, self._changing.hidden_number(match[0]))
        elif rule is Rule.SEARCH:
            self._replace(match, self._changing.searched_number(match[0]))

    def _put(self, match: re.Match[str], before: str, after: str) -> None:
        if before != after:
            is_in_ascii = match[_VALUE].isascii() and not before.isascii()
            encoded = json.dumps(after) if is_in_ascii else msgspec.json.encode(after).decode()
            self._replace(match, encoded)

    def _replace(self, match: re.Match[str], token: str) -> None:
        self._pieces += (self._text[self._copied : match.start()], token)
        self._copied = match.end(_VALUE) if match[_VALUE] else match.end()


def _decoded(quoted: str) -> str:
    return msgspec.json.decode(quoted, type=str) if "\\" in quoted else quoted[1:-1]
