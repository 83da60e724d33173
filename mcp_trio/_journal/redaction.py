"""Redaction: secrets are replaced by tokens before they are recorded, and replays still work.

A value is secret by the name that it has, by a path, by a tool's schema (`format: password`), by
the shape of a well-known kind of key, or because the user lists it (`secrets`). The recording has a
token of the same shape in its place, made with a key, and from then on the same token wherever the
value appears again. Handlers that receive tokens in a replay send tokens, as was recorded.

This method has limits:

- A secret that only a name, a path or a schema identifies is unknown until a record has it in that
  place, so earlier records keep it. `mcp-trio redact` finds all secrets of a complete file first.
- A value that is split in more than two parts, or encoded in a way that `KnownSecrets` does not
  know, is not found. Neither is a value in a member that the protocol defines, such as an id or a
  tool's schema.
- A short value is replaced only in the member that names it. `Redactor.remaining` returns the other
  places.
- A handler that computes with a secret sends something else in a replay.
- A record whose secrets would exceed the limits is not written; the recording has a gap there.
"""

import functools
import hashlib
import hmac
import json
import re
import string
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum, auto
from itertools import count
from math import prod
from types import MappingProxyType
from typing import Any, Final, cast

import attrs
import msgspec
from msgspec import UNSET

from mcp_trio._journal.conversation import members_of
from mcp_trio._journal.diff import member_step
from mcp_trio._journal.records import (
    MONOTONIC,
    NOW,
    OpenBody,
    Record,
    RecordEncoder,
    body_bytes,
    decode_body,
    encode_body,
    messages_in,
)
from mcp_trio._journal.secret_names import (
    DEFAULT_SECRET_NAMES,
    NAME_MEMBERS,
    VALUE_MEMBERS,
    SecretNames,
    secret_names,
)
from mcp_trio._journal.secrets import (
    KnownSecret,
    KnownSecrets,
    may_hold_named_secret,
    replace_named_secrets,
)
from mcp_trio._jsonrpc.messages import recover
from mcp_trio.errors import RecordingError
from mcp_trio.limits import DEFAULT_LIMITS, Limits

# Zones --------------------------------------------------------------------------------------------


class Rule(Enum):
    """The treatment of a value."""

    LEAVE = auto()  # defined by the protocol: never changed
    SEARCH = auto()  # users' data: secrets in it are replaced
    HIDE = auto()  # secret: replaced as a whole


class Zone(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The rule for a value, and the zones of its members.

    The items of an array have the zone of the array.

    Attributes:
        rule: The rule for the value.
        members: The zones of members, by name.
        others: The zone of all other members; None if it is this zone.
        has_free_names: Whether the names of the members are users' data as well.
    """

    rule: Rule
    members: Mapping[str, "Zone"] = msgspec.field(default_factory=lambda: MappingProxyType({}))
    others: "Zone | None" = None
    has_free_names: bool = False

    def member(self, name: str) -> "Zone":
        """Return the zone of a member."""
        return self.members.get(name) or self.others or self


LEAVE: Final = Zone(rule=Rule.LEAVE)
SEARCH: Final = Zone(rule=Rule.SEARCH, has_free_names=True)
HIDE: Final = Zone(rule=Rule.HIDE, has_free_names=True)


def _zone(left_members: str, **members: Zone) -> Zone:
    """Return a zone of users' data, except `left_members`, and except `members` with their zones.

    `left_members` has names, separated by spaces.
    """
    zones = dict.fromkeys(left_members.split(), LEAVE) | members
    if "_meta" in zones:
        zones["_meta"] = _META
    return Zone(rule=Rule.SEARCH, members=zones, others=SEARCH)


# All other members of `_meta` are users' data.
_META: Final = _zone(
    "progressToken traceparent tracestate"
    " io.modelcontextprotocol/protocolVersion io.modelcontextprotocol/clientCapabilities"
    " io.modelcontextprotocol/clientInfo io.modelcontextprotocol/serverInfo"
    " io.modelcontextprotocol/logLevel io.modelcontextprotocol/subscriptionId"
)

_RESOURCE: Final = _zone("mimeType _meta")
_CONTENT_BLOCK: Final = _zone("type mimeType role annotations _meta", resource=_RESOURCE)
_MESSAGE: Final = _zone("role _meta", content=_CONTENT_BLOCK)
_LISTED_ENTRY: Final = _zone(
    "name inputSchema outputSchema arguments annotations mimeType uriTemplate size _meta"
)
_CALL: Final = _zone("name requestState _meta")

# The params of a method that a user has registered.
_PARAMS_OF_USERS_METHOD: Final = _zone("_meta progressToken")

PARAMS: Final[Mapping[str, Zone]] = {
    **dict.fromkeys(
        (
            *("server/discover", "ping", "roots/list", "subscriptions/listen"),
            *("resources/subscribe", "resources/unsubscribe"),
            *("notifications/initialized", "notifications/resources/updated"),
            *("notifications/resources/list_changed", "notifications/tools/list_changed"),
            *("notifications/prompts/list_changed", "notifications/roots/list_changed"),
            "notifications/subscriptions/acknowledged",
        ),
        _zone("_meta"),
    ),
    **dict.fromkeys(
        ("tools/list", "resources/list", "resources/templates/list", "prompts/list"),
        _zone("cursor _meta"),
    ),
    "initialize": _zone("protocolVersion capabilities clientInfo _meta"),
    "tools/call": _CALL,
    "prompts/get": _CALL,
    "resources/read": _zone("requestState _meta"),
    "completion/complete": _zone("ref _meta", argument=_zone("name")),
    "logging/setLevel": _zone("level _meta"),
    "sampling/createMessage": _zone(
        "maxTokens temperature modelPreferences includeContext stopSequences _meta",
        messages=_MESSAGE,
    ),
    "elicitation/create": _zone("mode requestedSchema elicitationId _meta"),
    "notifications/cancelled": _zone("requestId _meta"),
    "notifications/progress": _zone("progressToken progress total _meta"),
    "notifications/message": _zone("level logger _meta"),
    "notifications/elicitation/complete": _zone("elicitationId _meta"),
}

# One table for all results, since a response does not name its method.
_RESULT: Final = _zone(
    "protocolVersion supportedVersions capabilities serverInfo resultType isError nextCursor"
    " ttlMs cacheScope requestState action role model stopReason _meta",
    content=_CONTENT_BLOCK,
    contents=_RESOURCE,
    messages=_MESSAGE,
    completion=_zone("total hasMore"),
    tools=_LISTED_ENTRY,
    resources=_LISTED_ENTRY,
    resourceTemplates=_LISTED_ENTRY,
    prompts=_LISTED_ENTRY,
    roots=_zone("_meta"),
)
_ERROR: Final = _zone("code")

_BODIES: Final[Mapping[str, Zone]] = {
    "open": _zone(
        "format_version transport role earlier_sessions seed redaction started session writer"
        " clock clock_ns"
    ),
    "step": LEAVE,
    "cmd": _zone("name"),
    "res": SEARCH,
    "err": _zone("type"),
    "val": _zone("name", error=_zone("type")),
    "mark": _zone("name"),
    "gap": SEARCH,
    "envelope": SEARCH,
    "cxl": LEAVE,
    "shut": LEAVE,
    "end": LEAVE,
}
MESSAGE_KINDS: Final = frozenset({"in", "out"})

# A replay reads these values as times, so their digits are never replaced.
_CLOCKS: Final = (NOW, MONOTONIC, "time.", "datetime.")

EVERYWHERE: Final = "*"

# Kinds whose zone depends on members of the body.
_KEYED_KINDS: Final = MESSAGE_KINDS | {"val"}
_RESPONSE_MEMBERS: Final = frozenset({"result", "error"})

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
        self._response_paths = [
            steps
            for each in self._paths.values()
            for steps in each
            if steps[0] in _RESPONSE_MEMBERS
        ]
        self._body_zones = {
            kind: _hide(zone, [*self._paths.get(kind, ()), *self._paths.get(EVERYWHERE, ())])
            for kind, zone in _BODIES.items()
        }
        self._message_zones: dict[str, Zone] = {}
        for key in ("", *PARAMS, *paths):
            method = key.partition(" ")[0]
            params = PARAMS.get(method, _PARAMS_OF_USERS_METHOD)
            zone = _zone("jsonrpc id method", params=params, result=_RESULT, error=_ERROR)
            paths_of_key = [
                steps for each in {EVERYWHERE, method, key} for steps in self._paths.get(each, ())
            ]
            self._message_zones[key] = _hide(zone, [*paths_of_key, *self._response_paths])
        everywhere = [*self._body_zones.values(), *self._message_zones.values()]
        for key, each in self._paths.items():
            zones = everywhere
            if key != EVERYWHERE:
                zones = [self._body_zones.get(key) or self._message_zones[key]]
            for steps in each:
                reached = [functools.reduce(Zone.member, steps, zone) for zone in zones]
                if all(zone.rule is Rule.LEAVE for zone in reached):
                    raise ValueError(
                        f"cannot redact {'.'.join(steps)}: the protocol defines this member, so"
                        " that its value is no secret; leave out this path"
                    )

    def last_names(self) -> frozenset[str]:
        """Return the last names of all paths; a record without them is not affected by a path."""
        return frozenset(steps[-1] for each in self._paths.values() for steps in each)

    def zone_of(self, kind: str, body: bytes) -> Zone:
        """Return the zone of a record's body."""
        zone_key = _ZoneKey()
        if kind in _KEYED_KINDS:
            with suppress(ValueError, RecursionError):
                zone_key = msgspec.json.decode(body, type=_ZoneKey)
        # A name that is no string must not keep the others from being looked at.
        method, name, tool = (
            each if isinstance(each, str) else ""
            for each in (zone_key.method, zone_key.name, zone_key.params.name)
        )
        if kind not in MESSAGE_KINDS:
            is_clock = kind == "val" and name.startswith(_CLOCKS)
            return LEAVE if is_clock else self._body_zones.get(kind, SEARCH)
        named = self._message_zones.get(f"{method} {tool}")
        return named or self._message_zones.get(method) or self._message_zones[""]


def _steps(path: str) -> _Steps:
    """Return the member names in a path such as `$.params.arguments["card no"][*].digits`."""
    if not _PATH.fullmatch(path):
        raise ValueError(f"not a JSON path to a member: {path!r}; write $.params.arguments.name")
    return tuple(
        msgspec.json.decode(quoted) if quoted else plain
        for plain, quoted in _STEP.findall(path)
        if plain or quoted
    )


def _hide(zone: Zone, paths: Iterable[_Steps]) -> Zone:
    """Return the zone, changed so that the values at these paths are hidden."""
    for steps in paths:
        if zone.rule is Rule.LEAVE:
            return LEAVE
        if not steps or zone.rule is Rule.HIDE:
            return HIDE
        name, rest = steps[0], steps[1:]
        members = {**zone.members, name: _hide(zone.member(name), [rest])}
        zone = msgspec.structs.replace(zone, members=members, others=zone.others or SEARCH)
    return zone


# Passwords in schemas -----------------------------------------------------------------------------


_CHOICES: Final = ("anyOf", "oneOf", "allOf")


def password_paths(schema: Any) -> list[str]:
    """Return JSON paths to the passwords (`format: password`) in values of a schema, from `$`.

    Properties, items and choices are searched; a `$ref` into the schema's own definitions is
    followed once on each path. No path has a step for members of any name, so an object is hidden
    as a whole if they have passwords.
    """
    return list(dict.fromkeys(_paths("$", schema, schema, frozenset())))


def _paths(path: str, schema: Any, root: Any, seen: frozenset[str]) -> Iterator[str]:
    decoded = members_of(schema)
    if decoded.get("format") == "password":
        yield path
    for step, inner, reference in _inner_schemas(decoded, root):
        if step is None:
            if _leads_to_password(inner, root, frozenset()):
                yield path
        elif not reference:
            yield from _paths(path + step, inner, root, seen)
        # Definitions that refer to each other have more paths than can be followed.
        elif reference not in seen and _leads_to_password(inner, root, seen | {reference}):
            yield from _paths(path, inner, root, seen | {reference})


def _leads_to_password(schema: Any, root: Any, followed: frozenset[str]) -> bool:
    """Return whether a schema is that of a password, or leads to one by other references."""
    seen, pending = set(followed), [schema]
    while pending:
        decoded = members_of(pending.pop())
        if decoded.get("format") == "password":
            return True
        for _, inner, reference in _inner_schemas(decoded, root):
            if not reference or reference not in seen:
                seen.add(reference)
                pending.append(inner)
    return False


def _inner_schemas(schema: Mapping[str, Any], root: Any) -> Iterator[tuple[str | None, Any, str]]:
    """Yield the step of a path to each inner schema, the schema, and the `$ref` to it or "".

    The step is None for a schema of members of any name.
    """
    reference = schema.get("$ref")
    if isinstance(reference, str):
        target = root
        for step in reference.removeprefix("#/").split("/"):
            target = members_of(target).get(step)
        yield "", target, reference
    if "items" in schema:
        yield "[*]", schema["items"], ""
    if isinstance(prefix := schema.get("prefixItems"), list):
        for item in cast("list[Any]", prefix):  # type: ignore[redundant-cast]
            yield "[*]", item, ""
    if "additionalProperties" in schema:
        yield None, schema["additionalProperties"], ""
    for members in members_of(schema.get("patternProperties")).values():
        yield None, members, ""
    for choices in (schema.get(key) for key in _CHOICES):
        if isinstance(choices, list):
            for choice in cast("list[Any]", choices):  # type: ignore[redundant-cast]
                yield "", choice, ""
    for name, each in members_of(schema.get("properties")).items():
        yield f"[{msgspec.json.encode(name).decode()}]", each, ""


# Tokens -------------------------------------------------------------------------------------------
#
# Digits become digits, letters become letters of the same case, and all other characters stay, so
# the token of an e-mail address looks like one, and those of a number, a UUID or a date can be
# parsed. A prefix that all secrets of a kind have (`sk-`, `https://`) stays. The same value always
# gets the same token, different values get different tokens, and a token stays as it is.


# The length of a random key.
KEY_BYTES: Final = 32

_DIGITS: Final = string.digits
_NONZERO: Final = "123456789"
_PUNCTUATION: Final = "!#$&*+-./:;=?@^_~"

# The number of tokens of the same length to try, before longer ones, until one is unused.
_SAME_LENGTH_TRIES: Final = 64
# A shorter value may by chance be equal to the token of another value.
_TOKEN_CHARS_MIN: Final = 8
# A prefix stays only if the rest of the value leaves at least so many tokens to choose from.
_TOKENS_MIN: Final = 1000
# Numbers of at most so many digits fit into 64 bits and into the precision of a float.
_EXACT_DIGITS: Final = 15

_PREFIX: Final = re.compile(
    r"(?:(?i:bearer|basic|token) +"
    r"|[a-zA-Z][a-zA-Z0-9+.-]*://"
    r"|sk-(?:proj-|ant-)?|[sr]k_(?:live|test)_|gh[pousr]_|github_pat_|glpat-|xox[abeprs]-"
    r"|AKIA|ASIA|AIza|ya29\.|npm_|pypi-|hf_|SG\.|eyJ)"
)
_NUMBER: Final = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?P<exponent>[eE][-+]?[0-9]+)?")
_FRACTION: Final = re.compile(r"-?[0-9]+\.[0-9]+")
_HEX: Final = re.compile(r"[0-9a-fA-F]{8}(?:-?[0-9a-fA-F]{2,})*")
_DATE: Final = re.compile(
    r"[0-9]{4}-[01][0-9]-[0-3][0-9]"
    r"(?:[T ][0-2][0-9]:[0-5][0-9](?::[0-5][0-9](?:\.[0-9]+)?)?(?:Z|[+-][01][0-9]:[0-5][0-9])?)?"
)
# All combinations of these digits are valid dates and times.
_DATE_DIGITS: Final = ("1", "9", "789", _DIGITS, "0", _NONZERO, "01", _NONZERO, "01", _DIGITS)
_MINUTE_DIGITS: Final = ("012345", _DIGITS)

# Characters with the same number of bytes in UTF-8, by that number.
_CHARACTERS_BY_BYTES: Final[Mapping[int, str]] = {
    2: "".join(map(chr, range(0xE0, 0xF7))),
    3: "".join(map(chr, range(0x4E00, 0x4E80))),
    4: "".join(map(chr, range(0x1F600, 0x1F640))),
}

Shape = list[str]
"""The characters to choose from at each position; a single one stays."""


def shape_of(value: str) -> Shape:
    """Return the shape of the token of a value.

    If every character would stay, all are replaced by other punctuation, as those of `----`. Of a
    zero, such as `0.00`, only the last digit is replaced.
    """
    kept = _PREFIX.match(value)
    if kept:
        rest = _shape_of_rest(value[kept.end() :])
        if prod(map(len, rest)) >= _TOKENS_MIN:
            return [*kept[0], *rest]
    shape = _shape_of_rest(value)
    if any(len(choice) > 1 for choice in shape):
        return shape
    zero = _NUMBER.fullmatch(value)
    if zero is None:
        return [_PUNCTUATION] * len(value)
    digits_end = zero.start("exponent") if zero["exponent"] else len(value)
    return [*value[: digits_end - 1], _NONZERO, *value[digits_end:]]


def _shape_of_rest(value: str) -> Shape:
    if number := _NUMBER.fullmatch(value):
        return _number_shape(value, number)
    if _DATE.fullmatch(value):
        # Hours, also of an offset, are 00 to 19.
        digits = iter((*_DATE_DIGITS, *_MINUTE_DIGITS * 2))
        shape = [next(digits, "0") if each.isdigit() else each for each in value[:19]]
        return [*shape, *value[19:]]
    if _HEX.fullmatch(value):
        letters = "ABCDEF" if any(map(str.isupper, value)) else "abcdef"
        return [each if each == "-" else _DIGITS if each.isdigit() else letters for each in value]
    # Other characters become some of the same class and with the same number of bytes.
    choices: Shape = []
    for character in value:
        if not character.isascii():
            choices.append(_CHARACTERS_BY_BYTES[len(character.encode())])
        elif character.isalpha():
            is_lower = character.islower()
            choices.append(string.ascii_lowercase if is_lower else string.ascii_uppercase)
        else:
            choices.append(_DIGITS if character.isdigit() else character)
    return choices


def _number_shape(value: str, match: re.Match[str]) -> Shape:
    """Return the shape of a number; zeros at its beginning and end stay, so that it stays valid."""
    digits_end = match.start("exponent") if match["exponent"] else len(value)
    shape = [_DIGITS if each.isdigit() else each for each in value[:digits_end]]
    first = 1 if value.startswith("-") else 0
    if "." in value:  # leading zeros of a fraction are not significant
        zeros = len(value) - len(value[first:].lstrip("0."))
        shape[first:zeros] = value[first:zeros]
        first = min(zeros, digits_end - 1)
    for at in (first, digits_end - 1):
        shape[at] = "0" if value[at] == "0" else _NONZERO
    # The token of a longer number begins with 10, so that it is not larger than 64 bits or a float
    # allow if the number itself is not.
    if digits_end - first > _EXACT_DIGITS:
        shape[first], shape[first + 1] = "1", shape[first + 1].replace(_DIGITS, "0")
    return [*shape, *value[digits_end:]]


class TooManySecretsError(ValueError):
    """The limits allow no further secret, or no further search; the body must not be written."""


class Tokens:
    """The tokens of one recording, made with its key.

    Attributes:
        by_value: The tokens that were made here, by the values that they replace.
        all: All tokens: those that were made here, and those of earlier recordings.

    Raises:
        ValueError: The key is empty.
    """

    def __init__(self, key: bytes, *, limits: Limits) -> None:
        if not key:
            raise ValueError("a redaction key must not be empty")
        self._key = key
        self._limits = limits
        self._chars = 0
        self.by_value: dict[str, str] = {}
        self.all: set[str] = set()
        self._adopted: set[str] = set()
        self._made_here: set[str] = set()

    def of(self, value: str) -> str:
        """Return the token of a value.

        A value that is a token itself stays as it is, if it was adopted, or is too long to be equal
        to a token by chance.

        Raises:
            TooManySecretsError: A limit of redaction is reached.
        """
        is_token = value in self._adopted or (len(value) >= _TOKEN_CHARS_MIN and value in self.all)
        return value if is_token else self.by_value.get(value) or self._make(value)

    def adopt(self, token: str) -> None:
        """Add a token of an earlier recording; the value that it replaced is not known."""
        self._adopted.add(token)
        self.all.add(token)

    def fingerprint(self) -> str:
        """Return a fingerprint that tells keys apart and reveals nothing else about them."""
        return hmac.digest(self._key, b"mcp_trio redaction", "sha256").hex()[:16]

    def _make(self, value: str) -> str:
        if not value:
            return value
        limits, chars = self._limits.recording, self._chars + len(value)
        for setting, number, number_max in (
            ("limits.recording.secrets_max", len(self.by_value) + 1, limits.secrets_max),
            ("limits.recording.secrets_chars_max", chars, limits.secrets_chars_max),
        ):
            if number > number_max:
                raise TooManySecretsError(f"the recording has more secrets than {setting} allows")
        self._chars = chars
        # A short value may by chance be its own candidate. An adopted token may be used again: an
        # earlier recording may have made it for this value.
        token = next(
            token
            for token in self._candidates(value, shape_of(value))
            if token != value and token not in self._made_here and token not in self.by_value
        )
        self.by_value[value] = token
        self._made_here.add(token)
        self.all.add(token)
        return token

    def _candidates(self, value: str, shape: Shape) -> Iterator[str]:
        for attempt in range(_SAME_LENGTH_TRIES):
            token = self._candidate(value, shape, attempt)
            if _is_canonical(token) or not _is_canonical(value):
                yield token
        longer = _DIGITS if _NUMBER.fullmatch(value) else string.ascii_lowercase
        for size in count(1):  # pragma: no branch  ends when a token is unused
            yield self._candidate(value, [*shape, *[longer] * size], _SAME_LENGTH_TRIES + size)

    def _candidate(self, value: str, shape: Shape, attempt: int) -> str:
        seed = hmac.digest(self._key, f"{attempt} {value}".encode(), "sha256")
        random_source = hashlib.shake_256(seed).digest(len(shape))
        return "".join(
            choice[byte % len(choice)] for choice, byte in zip(shape, random_source, strict=True)
        )


def _is_canonical(value: str) -> bool:
    """Return False for a fraction that JSON encoders write in another way, such as `1.50`."""
    return not _FRACTION.fullmatch(value) or repr(float(value)) == value


# Malformed messages -------------------------------------------------------------------------------


# Strings, numbers and words are replaced. `kept` matches what decides how the text is malformed.
_PART: Final = re.compile(
    rb"""
      (?P<id>"id"\s*:\s*) (?P<value> "(?:[^"\\]|\\.)*" | -?[0-9]+ )
    | (?P<kept> "jsonrpc"\s*:\s*"2\.0"
              | "(?:jsonrpc|id|method|params|result|error)"(?=\s*:)
              | \\["\\/bfnrt]
              | \b(?:true|false|null)\b )
    | (?P<high_half> \\u[dD][89abAB][0-9a-fA-F]{2} )
    | (?P<low_half> \\u[dD][c-fC-F][0-9a-fA-F]{2} )
    | (?P<escape> \\u[0-9a-fA-F]{4} )
    | (?P<number> [0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)? )
    | (?P<rest> [A-Za-z\x80-\xff]+ )
    """,
    re.VERBOSE | re.DOTALL,
)
_REPLACEMENTS: Final = {
    "high_half": rb"\ud800",
    "low_half": rb"\udc00",
    "escape": rb"\u0078",
}
_ONES: Final = bytes.maketrans(b"023456789", b"111111111")

# The reasons of UTF-8 errors, a byte that causes each, and whether it has to be the last byte.
_NOT_UTF8: Final = {
    "invalid start byte": (b"\xff", False),
    "invalid continuation byte": (b"\xc3", False),
    "unexpected end of data": (b"\xc3", True),
}


def mask_malformed(data: bytes) -> bytes:
    """Return the form of bytes that are no valid JSON, without their content.

    In malformed JSON no part is known to be free of secrets, so only its form is kept: brackets,
    quotes, lengths, the names of a message's members, and its id. The result is malformed at the
    same position and in the same way, so that the same error answers it in a replay.
    """
    id_ = recover(data).id

    def mask(match: re.Match[bytes]) -> bytes:
        if match["id"] is not None:
            with suppress(ValueError):
                decoded = msgspec.json.decode(match["value"])
                if type(decoded) is type(id_) and decoded == id_:
                    return match[0]
            return match["id"] + _PART.sub(mask, match["value"])
        part = match[0]
        group = match.lastgroup
        if group == "number":
            # A leading zero stays, since JSON allows no digit after it.
            return part[: part.startswith(b"0")] + part[part.startswith(b"0") :].translate(_ONES)
        if group == "rest":
            return b"x" * len(part)
        return _REPLACEMENTS.get(group or "", part)

    masked = _PART.sub(mask, data)
    try:
        data.decode()
    except UnicodeDecodeError as error:
        # The result gets a byte that makes it invalid UTF-8 in the same way.
        byte, is_last = _NOT_UTF8[error.reason]
        at = len(masked) - 1 if is_last else error.start
        return masked[:at] + byte + masked[at + 1 :]
    return masked


# Editing JSON texts -------------------------------------------------------------------------------
#
# Whitespace, escapes and the order of members stay as they are.


# The characters with which a JSON object or array begins.
OPENINGS: Final = frozenset({"{", "["})

# The tokens of JSON; those that are never replaced (`true`, `null`, commas) are left out.
_JSON_TOKEN: Final = re.compile(
    r'("[^"\\]*+(?:\\.[^"\\]*+)*+")(\s*:)?|([{\[])|([}\]])|(-?[0-9][-+.0-9eE]*)', re.DOTALL
)
# The last group of a match is the kind of the token; a key has the groups of a string and a colon,
# and the group after these is a number.
_STRING, _KEY, _OPENING, _CLOSING = range(1, 5)


@attrs.define
class _Container:
    """An object or array whose end has not been read yet.

    Attributes:
        start: Its index in the text.
        zone: Its zone.
        next_zone: The zone of the next value in it.
        is_array: Whether it is an array.
        may_be_pair: Whether it may be a pair such as `["password", "…"]`, in an array of pairs, and
            its first item has not been read yet.
        key: In an object, the name of the latest member.
        is_next_secret: Whether a name that was read says that the next item, or the member `value`,
            is secret.
        has_value: Whether it has a member of `VALUE_MEMBERS`.
    """

    start: int
    zone: Zone
    next_zone: Zone
    is_array: bool = False
    may_be_pair: bool = False
    key: str = ""
    is_next_secret: bool = False
    has_value: bool = False

    def begin_value(self) -> Zone:
        """Return the zone of the value that begins."""
        zone = self.next_zone
        if self.is_array and zone.rule is Rule.SEARCH and self.is_next_secret:
            zone = HIDE
        if self.is_array:
            self.is_next_secret = False
        return zone


def redacted_json(text: str, zone: Zone, redactor: "Redactor") -> str:
    """Return a valid JSON text with its values redacted as their zones say."""
    secret_starts: set[int] = set()
    while True:
        editor = _JsonRedactor(text, zone, redactor, secret_starts)
        for match in _JSON_TOKEN.finditer(text):
            editor.edit(match)
        if not editor.missed_starts:
            return editor.text()
        secret_starts |= editor.missed_starts


def is_json(body: bytes | str) -> bool:
    """Return whether the decoder accepts a text as JSON."""
    try:
        msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return False
    return True


class _JsonRedactor:
    """An editor that replaces values in a JSON text, one JSON token after the other.

    `secret_starts` are the indexes of objects such as `{"value": "…", "name": "password"}`, whose
    value is known to be secret. `missed_starts` are those of other such objects: the name came
    after the value, which was not replaced, so the text has to be edited again.
    """

    def __init__(
        self, text: str, zone: Zone, redactor: "Redactor", secret_starts: Collection[int]
    ) -> None:
        self._text = text
        self._redactor = redactor
        self._secret_starts = secret_starts
        self._open = [_Container(-1, zone, zone)]
        self._pieces: list[str] = []
        self._copied = 0
        self.missed_starts: set[int] = set()

    def edit(self, match: re.Match[str]) -> None:
        """Replace the next JSON token of the text, if it is or has a secret."""
        kind, container = match.lastindex, self._open[-1]
        if kind == _OPENING:
            zone, start, is_array = container.begin_value(), match.start(), match[0] == "["
            inner = _Container(start, zone, zone, is_array, is_array and container.is_array)
            inner.is_next_secret = start in self._secret_starts
            self._open.append(inner)
        elif kind == _CLOSING:
            self._open.pop()
        elif kind == _KEY:
            name = _decoded(match[_STRING])
            container.key = name
            zone = container.zone.member(name)
            if zone.rule is Rule.SEARCH:
                is_value = name in VALUE_MEMBERS and container.is_next_secret
                if is_value or self._redactor.names.covers(name):
                    zone = HIDE
            container.next_zone = zone
            container.has_value |= name in VALUE_MEMBERS
            if container.zone.has_free_names and not self._redactor.names.is_listed(name):
                self._replace_string(match, name, self._redactor.search_text(name))
        elif kind == _STRING:
            value = _decoded(match[_STRING])
            rule = container.begin_value().rule
            # The string may name a secret: the next item, as in ["--password", "…"], or the value
            # of the same object.
            if container.is_array:
                may_name = container.may_be_pair or value.startswith("-")
            else:
                may_name = container.key in NAME_MEMBERS
            if may_name and self._redactor.names.covers(value):
                container.is_next_secret = True
                if container.has_value and container.start not in self._secret_starts:
                    self.missed_starts.add(container.start)
            container.may_be_pair = False
            if rule is Rule.HIDE:
                self._replace_string(
                    match, value, self._redactor.hide_text(value, container.key or IN_ARRAY)
                )
            elif rule is Rule.SEARCH:
                self._replace_string(match, value, self._redactor.search_text(value))
        else:
            rule = container.begin_value().rule
            if rule is Rule.HIDE:
                self._replace(match, self._redactor.token(match[0], container.key or IN_ARRAY))
            elif rule is Rule.SEARCH:
                self._replace(match, self._redactor.search_number(match[0]))

    def text(self) -> str:
        """Return the redacted text, after all JSON tokens."""
        return "".join((*self._pieces, self._text[self._copied :]))

    def _replace_string(self, match: re.Match[str], before: str, after: str) -> None:
        if before != after:
            # If the text escapes all characters beyond ASCII, so does the replacement.
            is_escaped = match[_STRING].isascii() and not before.isascii()
            encoded = json.dumps(after) if is_escaped else msgspec.json.encode(after).decode()
            self._replace(match, encoded)

    def _replace(self, match: re.Match[str], replacement: str) -> None:
        self._pieces += (self._text[self._copied : match.start()], replacement)
        self._copied = match.end(_STRING) if match[_STRING] else match.end()


def _decoded(quoted: str) -> str:
    return msgspec.json.decode(quoted, type=str) if "\\" in quoted else quoted[1:-1]


# The fast check -----------------------------------------------------------------------------------


_DECODE: Final = msgspec.json.Decoder().decode
_HARMLESS_NAMES_MAX: Final = 4096
# No pattern for secrets matches a text that has this separator.
_SEPARATOR: Final = "\n\0\n"


class SecretPrefilter:
    """A fast check for names of secrets, in members and in texts, before a body is redacted.

    It may report a body without such a name, but never misses a name. `path_names` are the last
    names of paths to secrets.
    """

    def __init__(self, names: SecretNames, path_names: frozenset[str]) -> None:
        self._names = names
        self._path_names = path_names
        # Names of members that were found to name no secret.
        self._harmless_names: set[str] = set()

    def finds_names(self, body: bytes) -> bool:
        """Return whether a secret name, or one of `path_names`, is in a JSON text."""
        texts: list[str] = []
        try:
            if self._finds(body.decode(), texts):
                return True
        except (ValueError, RecursionError):
            return True
        return may_hold_named_secret(_SEPARATOR.join(texts), self._names)

    def _finds(self, text: str, texts: list[str]) -> bool:
        """Return whether a JSON text has such a name; add its strings to `texts`.

        Raises:
            ValueError, RecursionError: The decoder does not accept the text.
        """
        # Of two members with one name, the decoder returns only the last. To notice that, the keys
        # in the text are counted: quotes before a colon, except escaped ones, which are in strings.
        unseen_members = text.count('":') - text.count('\\":')
        values = [_DECODE(text)]
        while values:
            value = values.pop()
            if isinstance(value, str):
                if value.lstrip()[:1] in OPENINGS:
                    with suppress(ValueError, RecursionError):
                        if self._finds(value, texts):
                            return True
                texts.append(value)
            elif isinstance(value, dict):
                inner = cast("dict[str, Any]", value)
                if not self._harmless_names.issuperset(inner) and self._is_suspect(inner):
                    return True
                unseen_members -= len(inner)
                values += inner.values()
            elif isinstance(value, list):
                items = cast("list[Any]", value)  # type: ignore[redundant-cast]  # pyright needs it
                if self._may_name(items):
                    return True
                values += items
        return unseen_members != 0

    def _may_name(self, items: list[Any]) -> bool:
        """Return whether an item may name the next one as secret."""
        return any(isinstance(item, str) and self._names.covers(item) for item in items)

    def _is_suspect(self, members: dict[str, Any]) -> bool:
        if any(name in self._path_names or self._names.covers(name) for name in members):
            return True
        if not VALUE_MEMBERS.isdisjoint(members):
            return self._may_name([members.get(name) for name in NAME_MEMBERS])
        if len(self._harmless_names) >= _HARMLESS_NAMES_MAX:
            self._harmless_names.clear()
        self._harmless_names.update(members)
        return False


# The redactor -------------------------------------------------------------------------------------


# A search for a known secret in so many characters takes about a microsecond.
_SEARCH_CHARS: Final = 256

# How many levels of JSON in strings of JSON are redacted.
_TEXTS_DEPTH_MAX: Final = 4

# Values under a secret name that are no secrets.
_NO_SECRETS: Final = frozenset({"", "true", "false", "null", "none", "undefined", "yes", "no"})

_ARGUMENTS: Final = "$.params.arguments"
_NO_KEY: Final = b"no key"
_ENVELOPE: Final = "envelope"

# The names in `Redactor.masked` for secrets in no member of their own.
IN_TEXT: Final = "(in a text)"
IN_ARRAY: Final = "(in an array)"
_SCHEME: Final = re.compile(r"(?i:bearer|basic|token) +(?=\S+$)")

Secrets = Collection[str] | Callable[[], Collection[str]]


@attrs.frozen(kw_only=True)
class Redaction:
    """Options for redaction: which values are secret, and how they are replaced.

    Attributes:
        keys: Names of members, headers and variables whose values are secret. A name is compared by
            its last words, so `github_token` is a `token`. This replaces the default; to add names,
            add them to `DEFAULT_SECRET_NAMES`.
        paths: JSON paths of secret values in a message or body, such as `$.params.arguments.pin`,
            by method (`tools/call`), by method and name (`tools/call pay`), by kind of record
            (`res`), or for all of them (`*`).
        secrets: Values that are secret from the first record on, wherever they appear, or a
            function that returns them, which is called before each record.
        key: The key that tokens are made with, so that several recordings have the same tokens, and
            a replay can redact the constants of a handler. None: a random key for this recording.
        follow_chars_min: Shorter secrets are replaced only where they are named.

    Raises:
        TypeError: `keys` or `secrets` is a single string.
    """

    keys: Collection[str] = DEFAULT_SECRET_NAMES
    paths: Mapping[str, Collection[str]] = attrs.field(factory=dict[str, Collection[str]])
    secrets: Secrets = attrs.field(default=(), repr=False)
    key: bytes | None = attrs.field(default=None, repr=False)
    follow_chars_min: int = 4

    def __attrs_post_init__(self) -> None:
        for name in ("keys", "secrets"):
            _reject_text(name, getattr(self, name))


def _reject_text(name: str, value: object) -> None:
    """Reject a string, which Python takes for a collection of characters."""
    if isinstance(value, str):
        raise TypeError(f"{name} takes a collection of texts, not one text")


class Redactor:
    """A redactor of the bodies of one recording, in order; it remembers each secret it finds.

    `schemas` are the input schemas of the tools, by tool name.

    Attributes:
        masked: How many different secrets were replaced, by the name of the member in which each
            was found first.

    Raises:
        ValueError: A path cannot be parsed or leads to a member of the protocol, a value of
            `secrets` is too short, or the key is empty.
    """

    def __init__(
        self,
        redaction: Redaction,
        *,
        key: bytes,
        schemas: Mapping[str, Mapping[str, Any]] | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.names = secret_names(frozenset(redaction.keys))
        self.masked: Counter[str] = Counter()
        self._paths: dict[str, list[str]] = {}
        self._set_paths(_with_passwords(redaction.paths, schemas or {}))
        self._secrets = redaction.secrets
        self._follow_chars_min = redaction.follow_chars_min
        self._tokens = Tokens(key, limits=limits)
        self._known = KnownSecrets()
        # Secrets that are replaced only in the members that name them.
        self._short: dict[str, None] = {}
        # The known secrets that are in the body that is being redacted.
        self._found: Collection[KnownSecret] = ()
        # A body with many texts and many secrets would block the event loop for minutes.
        self._searches_max = self._searches_left = limits.recording.secret_searches_max
        # How many levels of JSON in strings the redacted text is inside of.
        self._depth = 0
        # Whether values at secret positions are tokens, because the body is redacted already.
        self._adopts = False
        self._add_given_secrets()

    def add_schemas(self, schemas: Mapping[str, Mapping[str, Any]]) -> None:
        """Redact the passwords of these tools as well; those of known tools change nothing."""
        paths = _with_passwords(self._paths, schemas)
        if paths != self._paths:
            self._set_paths(paths)

    def _set_paths(self, paths: dict[str, list[str]]) -> None:
        self._paths = paths
        self._zones = Zones(paths)
        self._prefilter = SecretPrefilter(self.names, self._zones.last_names())

    def redact(self, kind: str, body: bytes, *, is_whole_json: bool = True) -> bytes:
        """Return the redacted body of a record of this kind; a redacted body stays as it is.

        `is_whole_json=False` is for bytes that may be malformed: of those only the form is kept.

        Raises:
            ValueError: There are more secrets than `limits.recording.secrets_max` or
                `limits.recording.secrets_chars_max` allows, the body needs more searches than
                `limits.recording.secret_searches_max`, or a secret that `secrets` returned is too
                short. The body must not be written.
        """
        self._searches_left = self._searches_max
        if callable(self._secrets):
            self._add_given_secrets()
        if not is_whole_json and not is_json(body):
            return mask_malformed(body)
        if kind in MESSAGE_KINDS and body.lstrip().startswith(b"["):
            # Each message of a batch by itself, since the zones depend on its method.
            messages = messages_in(body)
            redacted = [self._redacted(kind, each) for each in messages]
            return body if redacted == messages else b"[" + b",".join(redacted) + b"]"
        return self._redacted(kind, body)

    def redact_envelope(self, envelope: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a redacted envelope, which may hold a principal's name.

        Raises:
            ValueError: As `redact`.
        """
        redacted: Mapping[str, Any] = msgspec.json.decode(
            self.redact(_ENVELOPE, msgspec.json.encode(envelope))
        )
        return redacted

    def _redacted(self, kind: str, body: bytes) -> bytes:
        self._found = self._known.found_in(body)
        if not self._found and not self._prefilter.finds_names(body):
            return body
        zone = self._zones.zone_of(kind, body)
        if zone.rule is Rule.LEAVE:
            return body
        text = body.decode()
        known = len(self._known)
        redacted = redacted_json(text, zone, self)
        if len(self._known) > known:  # a new secret may also occur before its name
            self._found = self._known.found_in(body)
            redacted = redacted_json(text, zone, self)
        return redacted.encode()

    def adopt(self, tokens: Iterable[str], records: Iterable[Record]) -> None:
        """Add known tokens, and the values at secret positions in redacted records as tokens."""
        for token in tokens:
            self._tokens.adopt(token)
        self._adopts = True
        for record in records:
            body = body_bytes(record)
            if body is not None and is_json(body):
                self.redact(record.kind, body)
        self._adopts = False

    def remaining(self, kind: str, body: bytes) -> Iterator[tuple[str, str]]:
        """Yield path and value of each named secret that is too short to be replaced there.

        `body` is redacted. Only a value that stands alone is found, as a whole or between other
        characters than letters and digits.
        """
        if not self._short or not is_json(body):
            return
        values = "|".join(map(re.escape, sorted(self._short, key=len, reverse=True)))
        pattern = re.compile(rf"(?<![^\W_])(?:{values})(?![^\W_])")
        for message in messages_in(body) if kind in MESSAGE_KINDS else [body]:
            zone = self._zones.zone_of(kind, message)
            for path, text in self._searched(msgspec.json.decode(message), zone, "$"):
                yield from ((path, match[0]) for match in pattern.finditer(text))

    def _searched(self, value: Any, zone: Zone, path: str) -> Iterator[tuple[str, str]]:
        """Yield path and text of each value that is searched for secrets, and is not one."""
        if zone.rule is not Rule.SEARCH or isinstance(value, bool):
            return
        if isinstance(value, str | int | float):
            yield path, str(value)
        elif isinstance(value, list):
            for index, item in enumerate(cast("list[Any]", value)):  # type: ignore[redundant-cast]
                yield from self._searched(item, zone, f"{path}[{index}]")
        elif isinstance(value, dict):
            members = cast("dict[str, Any]", value)
            names = (members.get(name) for name in NAME_MEMBERS)
            is_named = any(isinstance(name, str) and self.names.covers(name) for name in names)
            for name, inner in members.items():
                inner_path = path + member_step(name)
                if zone.has_free_names:
                    yield inner_path, name
                if not (self.names.covers(name) or (is_named and name in VALUE_MEMBERS)):
                    yield from self._searched(inner, zone.member(name), inner_path)

    def manifest(self) -> dict[str, Any]:
        """Return the rules, the key's fingerprint and the known tokens, for the `open` record."""
        return {
            "names": sorted(self.names.names),
            "paths": {key: sorted(paths) for key, paths in self._paths.items()},
            "follow_chars_min": self._follow_chars_min,
            "key": self._tokens.fingerprint(),
            "tokens": sorted(self._tokens.all),
        }

    def knows(self, text: str) -> bool:
        """Return whether a text is a token, or contains one that is too long for chance."""
        tokens = self._tokens.all
        return text in tokens or any(
            token in text for token in tokens if len(token) >= self._follow_chars_min
        )

    def hide_text(self, text: str, name: str = IN_TEXT) -> str:
        """Replace a text that is secret; surrounding space and values such as "none" stay.

        `name` is that of the member with the text.
        """
        stripped = text.strip()
        if stripped.lower() in _NO_SECRETS:
            return text
        if self._is_inner_json(stripped):
            return text.replace(stripped, self._redacted_inner_json(stripped, HIDE), 1)
        scheme = _SCHEME.match(stripped)
        kept = scheme[0] if scheme else ""
        return text.replace(stripped, kept + self.token(stripped[len(kept) :], name), 1)

    def search_text(self, text: str) -> str:
        """Replace the secrets in a text."""
        if self._is_inner_json(text):
            return self._redacted_inner_json(text, SEARCH)
        text = replace_named_secrets(text, self.names, self.hide_text)
        if self._adopts or not self._found:
            return text
        self._searches_left -= len(self._found) * (1 + len(text) // _SEARCH_CHARS)
        if self._searches_left < 0:
            raise TooManySecretsError(
                "the body needs more searches for secrets than"
                " limits.recording.secret_searches_max allows"
            )
        return self._known.replaced(text, self._found)

    def search_number(self, number: str) -> str:
        """Replace a number if it is a known secret."""
        token = None if self._adopts else self._known.token_of(number)
        return token or number

    def _is_inner_json(self, text: str) -> bool:
        return self._depth < _TEXTS_DEPTH_MAX and text.lstrip()[:1] in OPENINGS and is_json(text)

    def _redacted_inner_json(self, text: str, zone: Zone) -> str:
        self._depth += 1
        try:
            return redacted_json(text, zone, self)
        finally:
            self._depth -= 1

    def token(self, value: str, name: str) -> str:
        """Return the token of a secret; `name` is that of the member that holds it."""
        if self._adopts:
            self._tokens.adopt(value)
            return value
        is_new = value not in self._tokens.by_value
        token = self._tokens.of(value)
        if value in self._tokens.by_value:
            self.masked[name] += is_new
            if len(value) >= self._follow_chars_min:
                self._known.add(value, token, is_given=False)
            else:
                self._short[value] = None
        return token

    def _add_given_secrets(self) -> None:
        values = self._secrets() if callable(self._secrets) else self._secrets
        _reject_text("secrets", values)
        for value in values:
            if len(value) < self._follow_chars_min:
                raise ValueError(
                    f"a secret of {len(value)} characters is shorter than follow_chars_min"
                    f" ({self._follow_chars_min}): too many values would be equal to it by chance"
                )
            self._known.add(value, self._tokens.of(value), is_given=True)


def redactor_for_replay(
    manifest: Mapping[str, Any], records: Iterable[Record], key: bytes | None = None
) -> Redactor:
    """Return a redactor that redacts a replay like the recording, and leaves its tokens alone.

    Without the key, secrets that the replay itself produces get other tokens than in the recording.

    Raises:
        RecordingError: The manifest is damaged, or the recording was redacted with another key.
    """
    try:
        decoded = msgspec.convert(manifest, _Manifest)
        redaction = Redaction(
            keys=decoded.names, paths=decoded.paths, follow_chars_min=decoded.follow_chars_min
        )
        redactor = Redactor(redaction, key=key or _NO_KEY)
    except ValueError as error:
        raise RecordingError(f"cannot read the redaction in the `open` record: {error}") from error
    if key is not None and redactor.manifest()["key"] != decoded.key:
        raise RecordingError(
            "the recording was redacted with another key: pass that key, or replay without one"
        )
    redactor.adopt(decoded.tokens, records)
    return redactor


class _Manifest(msgspec.Struct, kw_only=True):
    names: list[str]
    paths: dict[str, list[str]]
    follow_chars_min: int
    key: str
    tokens: list[str]


def _with_passwords(
    paths: Mapping[str, Collection[str]], schemas: Mapping[str, Mapping[str, Any]]
) -> dict[str, list[str]]:
    """Return the paths, and those of the passwords in the tools' input schemas."""
    found = {key: list(each) for key, each in paths.items()}
    for tool, schema in schemas.items():
        passwords = [path.replace("$", _ARGUMENTS, 1) for path in password_paths(schema)]
        if passwords:
            known = found.setdefault(f"tools/call {tool}", [])
            known.extend(path for path in passwords if path not in known)
    return found


@attrs.frozen
class RemainingSecret:
    """A secret in a redacted recording that is too short to be replaced where it is not named.

    Attributes:
        record: The number of the record.
        kind: The kind of the record.
        path: The JSON path of the value, or of the text that has it.
        value: The secret.
    """

    record: int
    kind: str
    path: str
    value: str = attrs.field(repr=False)


def redact_recording(
    records: Sequence[Record],
    redaction: Redaction,
    *,
    key: bytes,
    limits: Limits = DEFAULT_LIMITS,
    on_remaining: Callable[[RemainingSecret], object] | None = None,
) -> Iterator[bytes]:
    """Yield the lines of a recording with all secrets replaced, also before they were named.

    `on_remaining` is called for each secret that is left because it is too short. Numbers, lanes
    and times stay; digests are computed again. Tokens stay if they were made with the same key or
    are in the manifest. The tools' schemas are those listed in the recording.

    Raises:
        RecordingError: The `open` record is damaged.
        ValueError: As `Redactor`.
    """
    # The manifest of an earlier redaction, if there was one.
    manifest = decode_body(records[0], OpenBody).redaction or {}
    redaction = attrs.evolve(redaction, keys={*redaction.keys, *manifest.get("names", ())})
    tools: list[_Tool] = []
    for record in records:
        text = body_bytes(record) or b""
        if b'"inputSchema"' in text:
            with suppress(ValueError, RecursionError):
                tools += msgspec.json.decode(text, type=_Listed).result.tools
    result_paths = [
        path.replace("$", "$.result.structuredContent", 1)
        for tool in tools
        for path in password_paths(tool.output_schema)
    ]
    if result_paths:
        paths = {**redaction.paths}
        paths["tools/call"] = [*paths.get("tools/call", ()), *result_paths]
        redaction = attrs.evolve(redaction, paths=paths)
    schemas = {tool.name: tool.input_schema for tool in tools}
    redactor = Redactor(redaction, key=key, schemas=schemas, limits=limits)
    if manifest:
        redactor.adopt(manifest.get("tokens", ()), records)
    for record in records:  # A secret may occur before its name: this pass finds all secrets.
        redacted_body(record, redactor)
    encoder = RecordEncoder()
    for record in records:
        body = redacted_body(record, redactor)
        if on_remaining is not None and body is not None and record.kind != "open":
            for path, value in redactor.remaining(record.kind, body):
                on_remaining(RemainingSecret(record.number, record.kind, path, value))
        if record.kind == "open":
            opened = msgspec.json.decode(body or b"", type=dict[str, Any])
            body = encode_body(opened | {"redaction": redactor.manifest()})
        yield encoder.lines([redacted_record(record, body, redactor)])


def redacted_body(record: Record, redactor: Redactor) -> bytes | None:
    """Return the redacted body of a record; None if it has none.

    Raises:
        ValueError: As `Redactor.redact`.
    """
    body = body_bytes(record)
    if body is None:
        return None
    return redactor.redact(record.kind, body, is_whole_json=record.body is not UNSET)


def redacted_record(record: Record, body: bytes | None, redactor: Redactor) -> Record:
    """Return a record with a redacted body and its envelope redacted, without its digest."""
    embed = record.body is not UNSET
    encoded = RecordEncoder().record(record.kind, body, record.time_ns, embed=embed)
    envelope = record.envelope
    return msgspec.structs.replace(
        record,
        body=encoded.body,
        body_base64=encoded.body_base64,
        envelope=None if envelope is None else redactor.redact_envelope(envelope),
        digest=None,
    )


class _Tool(msgspec.Struct, rename="camel"):
    name: str
    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None = None


class _Tools(msgspec.Struct):
    tools: list[_Tool]


class _Listed(msgspec.Struct):
    result: _Tools
