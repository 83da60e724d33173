"""The zones of bodies in which secrets may be, and those that the protocol defines.

A `Zone` gives the rule for a value, and the zones of its members. The items of an array have the
zone of the array. Members that no table names are users' data.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from enum import Enum, auto
from types import MappingProxyType
from typing import Any, Final

import attrs
import msgspec

from mcp_trio._journal.records import MONOTONIC, NOW, TIMEOUT


class Rule(Enum):
    """The treatment of a value."""

    LEAVE = auto()  # defined by the protocol: never changed
    SEARCH = auto()  # users' data: secrets in it are replaced
    HIDE = auto()  # secret: replaced as it is


@attrs.frozen(kw_only=True, eq=False)
class Zone:
    """The rule for a value, and the zones of its members.

    `has_free_names` says that the names of its members are users' data as well.
    """

    rule: Rule
    members: Mapping[str, "Zone"] = attrs.field(factory=lambda: MappingProxyType({}))
    others: "Zone | None" = None
    has_free_names: bool = False

    def member(self, name: str) -> "Zone":
        """Return the zone of a member; if no table names it, `others`, or this zone."""
        return self.members.get(name) or self.others or self


LEAVE: Final = Zone(rule=Rule.LEAVE)
SEARCH: Final = Zone(rule=Rule.SEARCH, has_free_names=True)
HIDE: Final = Zone(rule=Rule.HIDE, has_free_names=True)


def _zone(left: str = "", **members: Zone) -> Zone:
    """Return a zone of users' data, except for the members `left` to the protocol."""
    rows = dict.fromkeys(left.split(), LEAVE) | members
    if "_meta" in rows:
        rows["_meta"] = _META
    return Zone(rule=Rule.SEARCH, members=rows, others=SEARCH)


# All other members of `_meta` are users' data.
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

# A method without a row is a user's own: all of its params except these are users' data.
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

# One table for all results, since a response does not name its method.
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

# A replay reads these values as times, so their digits are never replaced.
_CLOCKS: Final = frozenset({NOW, MONOTONIC, TIMEOUT})

EVERYWHERE: Final = "*"

# Kinds whose zone depends on members of the body.
_KEYED_KINDS: Final = MESSAGE_KINDS | {"val"}
_ANSWERS: Final = frozenset({"result", "error"})

_STEP: Final = re.compile(r'\.([^.\[\]"*]+)|\[(?:\d+|\*|("(?:[^"\\]|\\.)*"))\]')
_PATH: Final = re.compile(rf"\$(?=\.|\[\")(?:{_STEP.pattern})+")

_Steps = tuple[str, ...]


class _Params(msgspec.Struct):
    name: Any = ""


class _ZoneKey(msgspec.Struct):
    """The members that select a record's zone: a message's method and tool, or a body's name."""

    method: Any = ""
    name: Any = ""
    params: _Params = msgspec.field(default_factory=_Params)


class Zones:
    """The zones of all bodies, in which users' paths are hidden.

    `paths` are JSON paths by method (`tools/call`), by method and name (`tools/call forecast`), by
    kind of record (`res`), or for all (`*`). An index stands for all items. A response does not
    name its method, so a path into a result applies to all results.

    Raises:
        ValueError: A path cannot be parsed, or leads to a member that the protocol defines.
    """

    def __init__(self, paths: Mapping[str, Collection[str]]) -> None:
        self._paths = {key: [_steps(path) for path in each] for key, each in paths.items()}
        self._answers = [
            steps for each in self._paths.values() for steps in each if steps[0] in _ANSWERS
        ]
        self._body_zones = {
            kind: _hiding_all(zone, [*self._paths.get(kind, ()), *self._paths.get(EVERYWHERE, ())])
            for kind, zone in _BODIES.items()
        }
        self._message_zones = {key: self._message_zone(key) for key in ("", *PARAMS, *paths)}
        for key, each in self._paths.items():
            for steps in each:
                self._reject_protocol(key, steps)

    def last_names(self) -> frozenset[str]:
        """Return the last names of all paths; a record without them is not affected by a path."""
        return frozenset(steps[-1] for each in self._paths.values() for steps in each)

    def of(self, kind: str, body: bytes) -> Zone:
        """Return the zone of a record's body."""
        zone_key = _zone_key(body) if kind in _KEYED_KINDS else _ZoneKey()
        if kind not in MESSAGE_KINDS:
            is_clock = kind == "val" and zone_key.name in _CLOCKS
            return LEAVE if is_clock else self._body_zones.get(kind, SEARCH)
        named = self._message_zones.get(f"{zone_key.method} {zone_key.params.name}")
        return named or self._message_zones.get(zone_key.method) or self._message_zones[""]

    def _message_zone(self, key: str) -> Zone:
        method = key.partition(" ")[0]
        params = PARAMS.get(method, _OWN_PARAMS)
        zone = _zone("jsonrpc id method", params=params, result=_RESULT, error=_ERROR)
        keys = {EVERYWHERE, method, key}
        paths = [steps for each in keys for steps in self._paths.get(each, ())]
        return _hiding_all(zone, [*paths, *self._answers])

    def _reject_protocol(self, key: str, steps: _Steps) -> None:
        everywhere = [*self._body_zones.values(), *self._message_zones.values()]
        own = self._body_zones.get(key) or self._message_zones[key]
        zones = everywhere if key == EVERYWHERE else [own]
        if all(_rule(zone, steps) is Rule.LEAVE for zone in zones):
            raise ValueError(f"cannot redact {'.'.join(steps)}: the protocol defines this member")


def _zone_key(body: bytes) -> _ZoneKey:
    try:
        zone_key = msgspec.json.decode(body, type=_ZoneKey)
    except (ValueError, RecursionError):
        return _ZoneKey()
    is_plain = all(
        isinstance(each, str) for each in (zone_key.method, zone_key.name, zone_key.params.name)
    )
    return zone_key if is_plain else _ZoneKey()


def _steps(path: str) -> _Steps:
    """Return the member names in a path such as `$.params.arguments["card no"][*].digits`."""
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
    """Return the zone with the value that the steps lead to hidden."""
    if zone.rule is Rule.LEAVE:
        return LEAVE
    if not steps or zone.rule is Rule.HIDE:
        return HIDE
    name, rest = steps[0], steps[1:]
    members = {**zone.members, name: _hiding(zone.member(name), rest)}
    return attrs.evolve(zone, members=members, others=zone.others or SEARCH)
