"""A whole recording redacted afterwards, when all of its secrets are known."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, cast

import attrs
import msgspec
from msgspec import UNSET

from mcp_trio._journal.known_secrets import KnownSecret, KnownSecrets
from mcp_trio._journal.records import (
    OpenBody,
    Record,
    RecordEncoder,
    body_bytes,
    decode_body,
    encode_body,
    messages_in,
)
from mcp_trio._journal.redaction_tokens import Tokens
from mcp_trio._journal.redaction_zones import (
    HIDE,
    MESSAGE_KINDS,
    OPENINGS,
    SEARCH,
    Rule,
    Zone,
    Zones,
    is_json,
    redacted_json,
)
from mcp_trio._journal.secret_detection import (
    DEFAULT_SECRET_NAMES,
    NAMED,
    NAMING,
    SecretNames,
    may_hold_named_secret,
    replace_named_secrets,
)
from mcp_trio._jsonrpc.messages import recover
from mcp_trio.errors import RecordingError
from mcp_trio.limits import DEFAULT_LIMITS, Limits

# --------------------
# What a JSON schema calls a password (`format: password`).


_CHOICES: Final = ("anyOf", "oneOf", "allOf")


def password_paths(schema: Any) -> list[str]:
    """JSON paths to the passwords in a value that the schema describes, itself being `$`.

    Looked for in properties, items and choices; a `$ref` into the schema's own definitions is
    followed once on each way down.
    """
    return list(dict.fromkeys(_paths("$", schema, schema, frozenset())))


def _paths(path: str, schema: Any, root: Any, seen: frozenset[str]) -> Iterator[str]:
    said = _object(schema)
    if not said:
        return
    if said.get("format") == "password":
        yield path
    reference = said.get("$ref")
    if isinstance(reference, str) and reference not in seen:
        yield from _paths(path, _target(reference, root), root, seen | {reference})
    yield from _paths(f"{path}[*]", said.get("items"), root, seen)
    for choice in (each for key in _CHOICES for each in said.get(key, ())):
        yield from _paths(path, choice, root, seen)
    for name, each in _object(said.get("properties")).items():
        yield from _paths(f"{path}[{msgspec.json.encode(name).decode()}]", each, root, seen)


def _target(reference: str, root: Any) -> Any:
    target = root
    for step in reference.removeprefix("#/").split("/"):
        target = _object(target).get(step)
    return target


def _object(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


# --------------------
# A frame that is no JSON, without what it says.
#
# Nobody can tell what in it is secret, so only its form is kept: brackets, quotes, lengths, the
# names of a message's members, and its id. It is broken at the same place and in the same way as
# before, so the same answer is due to it.


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
_STAND_INS: Final = {
    "high_half": rb"\ud800",
    "low_half": rb"\udc00",
    "escape": rb"\u0078",
}
_ONES: Final = bytes.maketrans(b"023456789", b"111111111")

# What a UTF-8 decoder says, the byte that makes it say so, and whether that is the last one.
_NOT_UTF8: Final = {
    "invalid start byte": (b"\xff", False),
    "invalid continuation byte": (b"\xc3", False),
    "unexpected end of data": (b"\xc3", True),
}


def mask_malformed(frame: bytes) -> bytes:
    """The form of a frame, which may be anything."""
    id_ = recover(frame).id

    def mask(match: re.Match[bytes]) -> bytes:
        if match["id"] is not None:
            value = match["value"]
            return match["id"] + (value if _says(value, id_) else _PART.sub(mask, value))
        return _stand_in(match)

    return _broken_alike(frame, _PART.sub(mask, frame))


def _stand_in(match: re.Match[bytes]) -> bytes:
    part = match[0]
    group = match.lastgroup
    if group == "number":
        # A zero in front counts: no other digit may follow it.
        return part[: part.startswith(b"0")] + part[part.startswith(b"0") :].translate(_ONES)
    if group == "rest":
        return b"x" * len(part)
    return _STAND_INS.get(group or "", part)


def _says(value: bytes, id_: int | str | None) -> bool:
    try:
        said = msgspec.json.decode(value)
    except ValueError:
        return False
    return type(said) is type(id_) and said == id_


def _broken_alike(frame: bytes, mask: bytes) -> bytes:
    """The mask, with what kept the frame from being UTF-8."""
    try:
        frame.decode()
    except UnicodeDecodeError as error:
        byte, is_last = _NOT_UTF8[error.reason]
        at = len(mask) - 1 if is_last else error.start
        return mask[:at] + byte + mask[at + 1 :]
    return mask


# --------------------
# Whether a record may hold a secret at all: most do not, and need no other look.


_DECODE: Final = msgspec.json.Decoder().decode
_CLEAN_NAMES_MAX: Final = 4096
# No secret that a text gives away reaches over it.
_BETWEEN_TEXTS: Final = "\n\0\n"


class SecretPrefilter:
    """Looks for names of secrets: of members, and in texts. That there are none is certain."""

    def __init__(self, names: SecretNames, others: frozenset[str]) -> None:
        self._names = names
        self._others = others
        self._clean: set[str] = set()

    def finds_names(self, body: bytes) -> bool:
        """Whether one of the names, or of the others, stands in a JSON text."""
        texts: list[str] = []
        try:
            if self._finds(_DECODE(body), body.count(b'":') - body.count(b'\\":'), texts):
                return True
        except (ValueError, RecursionError):
            return True
        return may_hold_named_secret(_BETWEEN_TEXTS.join(texts), self._names)

    def _finds(self, value: Any, members: int, texts: list[str]) -> bool:
        """Whether it does, in a value in whose text so many members are; its `texts` are left."""
        values = [value]
        while values:
            value = values.pop()
            if isinstance(value, str):
                if value.lstrip()[:1] in OPENINGS and self._finds_in_text(value, texts):
                    return True
                texts.append(value)
            elif isinstance(value, dict):
                inner = cast("dict[str, Any]", value)
                if not self._clean.issuperset(inner) and self._is_suspect(inner):
                    return True
                members -= len(inner)
                values += inner.values()
            elif isinstance(value, list):
                items = cast("list[Any]", value)  # type: ignore[redundant-cast]  # pyright needs it
                if self._may_name(items):
                    return True
                values += items
        # A member that stands there twice, of which the decoder gives only the last.
        return members != 0

    def _finds_in_text(self, text: str, texts: list[str]) -> bool:
        try:
            value = _DECODE(text)
        except (ValueError, RecursionError):
            return False
        return self._finds(value, text.count('":') - text.count('\\":'), texts)

    def _may_name(self, items: list[Any]) -> bool:
        """Whether an item may name the next one."""
        return any(isinstance(item, str) and self._names.covers(item) for item in items)

    def _is_suspect(self, members: dict[str, Any]) -> bool:
        if any(name in self._others or self._names.covers(name) for name in members):
            return True
        if not NAMED.isdisjoint(members):
            return self._may_name([members.get(name) for name in NAMING])
        if len(self._clean) >= _CLEAN_NAMES_MAX:
            self._clean.clear()
        self._clean.update(members)
        return False


# --------------------
# Redaction: what is secret never reaches a recording, and the recording replays all the same.
#
# A value is secret by the name that it goes under, by a path, by a tool's schema (`format:
# password`), by the shape of a well-known kind of key, or because the user says so (`secrets`). In
# the recording a token of the same shape stands for it, made with a key; from then on, wherever the
# value appears again, so does the token. Handlers that are fed tokens in a replay send tokens,
# which is what was recorded.
#
# What this cannot do: a value that only a name, path or schema gives away is not known before it
# comes with that; what was written until then stays written (`mcp-trio redact` goes over a whole
# file, when all is known). A value that is cut in more than two parts, or encoded in a way that
# `KnownSecrets` does not know, is not found, nor one in what the protocol alone says, such as an id
# or the schema of a tool. A handler that computes with a secret sends something else in the replay.
# When there are more secrets than can be followed, the records with one more are lost, and the
# recording says so.


# A JSON text in a text in a text: so deep it is looked into.
_TEXTS_DEPTH_MAX: Final = 4

# What stands at the place of a secret when there is none.
_NO_SECRETS: Final = frozenset({"", "true", "false", "null", "none", "undefined", "yes", "no"})

_ARGUMENTS: Final = "$.params.arguments"
_NO_KEY: Final = b"no key"
_ENVELOPE: Final = "envelope"
_SCHEME: Final = re.compile(r"(?i:bearer|basic|token) +(?=\S+$)")

Secrets = Collection[str] | Callable[[], Collection[str]]


@attrs.frozen(kw_only=True)
class Redaction:
    """What is secret, and how it is replaced.

    Attributes:
        keys: Names of members, headers and variables whose values are secret; a name counts by its
            last words, so `github_token` is a `token`. This replaces the default, so add to
            `DEFAULT_SECRET_NAMES`.
        paths: JSON paths of secret values in a frame or body, such as `$.params.arguments.pin`: by
            method (`tools/call`), by method and name (`tools/call pay`), by kind of record (`res`),
            or for all of them (`*`).
        secrets: Values that are secret from the first record on, wherever they appear, or what
            gives them, which is asked before each record.
        key: What the tokens are made with, so that several recordings agree, and a replay knows
            what a handler's own constants became. None: one for this recording, that nobody keeps.
        follow_chars_min: Shorter values are replaced where they are named, and not followed.

    Raises:
        TypeError: `keys` or `secrets` is one text.
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
    """A text is a collection of texts to Python, each a single character."""
    if isinstance(value, str):
        raise TypeError(f"{name} takes a collection of texts, not one text")


class Redactor:
    """Redacts the bodies of one recording, in their order; what it learns it applies from then on.

    `schemas` are those of the tools' arguments, by tool.

    Raises:
        ValueError: A path cannot be read or is the protocol's, a value of `secrets` is too short to
            be told from anything else, or the key is empty.
    """

    def __init__(
        self,
        redaction: Redaction,
        *,
        key: bytes,
        schemas: Mapping[str, Mapping[str, Any]] | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.names = SecretNames(redaction.keys)
        self._paths = _with_passwords(redaction.paths, schemas or {})
        self._zones = Zones(self._paths)
        self._prefilter = SecretPrefilter(self.names, self._zones.last_names())
        self._secrets = redaction.secrets
        self._follow_chars_min = redaction.follow_chars_min
        self._tokens = Tokens(key, limits=limits)
        self._known = KnownSecrets()
        self._found: Collection[KnownSecret] = ()
        self._depth = 0
        self._adopts = False
        self._ask()

    def redact(self, kind: str, body: bytes, *, is_whole_json: bool = True) -> bytes:
        """What is written for a body of this kind; the same again if it was redacted before.

        `is_whole_json=False` is for frames that may be broken: of those only the form is kept.

        Raises:
            ValueError: There are more secrets than `redaction_values_max` or `redaction_chars_max`
                allows to follow, or one that `secrets` gave is too short. Nothing of the body may
                be written.
        """
        if callable(self._secrets):
            self._ask()
        if not is_whole_json and not is_json(body):
            return mask_malformed(body)
        if kind in MESSAGE_KINDS and body.startswith(b"["):
            return self._batch(kind, body)
        return self._redacted(kind, body)

    def redact_envelope(self, envelope: Mapping[str, Any]) -> Mapping[str, Any]:
        """What is written for what a record says beside its body, such as a principal's name.

        Raises:
            ValueError: As `redact`.
        """
        redacted: Mapping[str, Any] = msgspec.json.decode(
            self.redact(_ENVELOPE, msgspec.json.encode(envelope))
        )
        return redacted

    def _batch(self, kind: str, frame: bytes) -> bytes:
        """Each message of a batch by itself, for its method says where secrets stand."""
        messages = messages_in(frame)
        redacted = [self._redacted(kind, each) for each in messages]
        return frame if redacted == messages else b"[" + b",".join(redacted) + b"]"

    def _redacted(self, kind: str, body: bytes) -> bytes:
        self._found = self._known.found_in(body)
        if not self._found and not self._prefilter.finds_names(body):
            return body
        zone = self._zones.of(kind, body)
        if zone.rule is Rule.LEAVE:
            return body
        text = body.decode()
        known = len(self._known)
        redacted = redacted_json(text, zone, self)
        if len(self._known) > known:  # a new secret may stand in front of its name as well
            self._found = self._known.found_in(body)
            redacted = redacted_json(text, zone, self)
        return redacted.encode()

    def adopt(self, tokens: Iterable[str], records: Iterable[Record]) -> None:
        """Know tokens, and what stands at the secret places of redacted records: more tokens."""
        for token in tokens:
            self._tokens.adopt(token)
        self._adopts = True
        for record in records:
            body = body_bytes(record)
            if body is not None and is_json(body):
                self.redact(record.kind, body)
        self._adopts = False

    def manifest(self) -> dict[str, Any]:
        """What `open` says of the rules and the key, and the tokens that are known so far."""
        return {
            "names": sorted(self.names.names),
            "paths": {key: sorted(paths) for key, paths in self._paths.items()},
            "follow_chars_min": self._follow_chars_min,
            "key": self._tokens.fingerprint(),
            "tokens": sorted(self._tokens.all),
        }

    def knows(self, text: str) -> bool:
        """Whether a text is a token, or one stands in it that is too long for chance."""
        tokens = self._tokens.all
        return text in tokens or any(
            token in text for token in tokens if len(token) >= self._follow_chars_min
        )

    def hidden(self, text: str) -> str:
        """A text all of which is secret, but for the space around it and what is secret of none."""
        core = text.strip()
        if core.lower() in _NO_SECRETS:
            return text
        if self._is_inner_json(core):
            return text.replace(core, self._inner(core, HIDE), 1)
        scheme = _SCHEME.match(core)
        kept = scheme[0] if scheme else ""
        return text.replace(core, kept + self._token(core[len(kept) :]), 1)

    def searched(self, text: str) -> str:
        """A text in which a secret may stand."""
        if self._is_inner_json(text):
            return self._inner(text, SEARCH)
        text = replace_named_secrets(text, self.names, self.hidden)
        return text if self._adopts or not self._found else self._known.replaced(text, self._found)

    def hidden_number(self, number: str) -> str:
        """A number that is secret."""
        return self._token(number)

    def searched_number(self, number: str) -> str:
        """A number that may be known to be secret."""
        token = None if self._adopts else self._known.token_of(number)
        return token or number

    def _is_inner_json(self, text: str) -> bool:
        return self._depth < _TEXTS_DEPTH_MAX and text.lstrip()[:1] in OPENINGS and is_json(text)

    def _inner(self, text: str, zone: Zone) -> str:
        self._depth += 1
        try:
            return redacted_json(text, zone, self)
        finally:
            self._depth -= 1

    def _token(self, value: str) -> str:
        if self._adopts:
            self._tokens.adopt(value)
            return value
        token = self._tokens.of(value)
        if len(value) >= self._follow_chars_min and value in self._tokens.by_value:
            self._known.add(value, token, is_certain=False)
        return token

    def _ask(self) -> None:
        values = self._secrets() if callable(self._secrets) else self._secrets
        _reject_text("secrets", values)
        for value in values:
            if len(value) < self._follow_chars_min:
                raise ValueError(
                    f"a secret of {len(value)} characters is shorter than follow_chars_min"
                    f" ({self._follow_chars_min}): it would be found everywhere"
                )
            self._known.add(value, self._tokens.of(value), is_certain=True)


def redactor_for_replay(
    manifest: Mapping[str, Any], records: Iterable[Record], key: bytes | None = None
) -> Redactor:
    """What redacts a replay's bodies as those of the recording were, whose tokens it leaves alone.

    Without the key, what the replay puts at a secret place by itself becomes another token than in
    the recording.

    Raises:
        RecordingError: The manifest is damaged, or the recording was made with another key.
    """
    try:
        said = msgspec.convert(manifest, _Manifest)
        redaction = Redaction(
            keys=said.names, paths=said.paths, follow_chars_min=said.follow_chars_min
        )
        redactor = Redactor(redaction, key=key or _NO_KEY)
    except ValueError as error:
        raise RecordingError(
            f"the redaction that `open` tells of cannot be read: {error}"
        ) from error
    if key is not None and redactor.manifest()["key"] != said.key:
        raise RecordingError("this is not the key with which the recording was redacted")
    redactor.adopt(said.tokens, records)
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
    """The paths, and those that the tools' schemas call passwords."""
    found = {key: list(each) for key, each in paths.items()}
    for tool, schema in schemas.items():
        passwords = [path.replace("$", _ARGUMENTS, 1) for path in password_paths(schema)]
        if passwords:
            found.setdefault(f"tools/call {tool}", []).extend(passwords)
    return found


def redact_recording(
    records: Sequence[Record],
    redaction: Redaction,
    *,
    key: bytes,
    limits: Limits = DEFAULT_LIMITS,
) -> Iterator[bytes]:
    """The lines of the recording with what is secret replaced, also where it came before its name.

    Numbers, lanes and times stay; digests are taken anew. What was redacted already stays, if that
    was done by the same key or is told by the manifest. Tools' schemas are those that were listed.

    Raises:
        RecordingError: `open` is damaged.
        ValueError: As `Redactor`.
    """
    opening = decode_body(records[0], OpenBody)
    before = opening.redaction or {}
    redaction = attrs.evolve(redaction, keys={*redaction.keys, *before.get("names", ())})
    tools = list(_listed(records))
    redaction = attrs.evolve(redaction, paths=_with_results(redaction.paths, tools))
    schemas = {tool.name: tool.input_schema for tool in tools}
    redactor = Redactor(redaction, key=key, schemas=schemas, limits=limits)
    if before:
        redactor.adopt(before.get("tokens", ()), records)
    for record in records:
        _redacted(record, redactor)
    encoder = RecordEncoder()
    for record in records:
        body = _redacted(record, redactor)
        if record.kind == "open":
            opened = msgspec.json.decode(body or b"", type=dict[str, Any])
            body = encode_body(opened | {"redaction": redactor.manifest()})
        told = _with_body(record, body, encoder)
        if record.envelope is not None:
            envelope = redactor.redact_envelope(record.envelope)
            told = msgspec.structs.replace(told, envelope=envelope)
        yield encoder.lines([told])


def _redacted(record: Record, redactor: Redactor) -> bytes | None:
    body = body_bytes(record)
    if body is None:
        return None
    return redactor.redact(record.kind, body, is_whole_json=record.body is not UNSET)


def _with_body(record: Record, body: bytes | None, encoder: RecordEncoder) -> Record:
    encoder.next_number = record.number
    made = encoder.record(record.kind, body, record.time_ns, embed=record.body is not UNSET)
    return msgspec.structs.replace(
        record, body=made.body, body_base64=made.body_base64, digest=None
    )


class _Tool(msgspec.Struct, rename="camel"):
    name: str
    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None = None


class _Tools(msgspec.Struct):
    tools: list[_Tool]


class _Listed(msgspec.Struct):
    result: _Tools


def _listed(records: Collection[Record]) -> Iterator[_Tool]:
    """The tools that were listed in these records."""
    for record in records:
        body = body_bytes(record) or b""
        if b'"inputSchema"' in body:
            with suppress(ValueError, RecursionError):
                yield from msgspec.json.decode(body, type=_Listed).result.tools


def _with_results(
    paths: Mapping[str, Collection[str]], tools: Collection[_Tool]
) -> dict[str, Collection[str]]:
    """The paths, and those to what tools call passwords in their results."""
    found = [
        path.replace("$", "$.result.structuredContent", 1)
        for tool in tools
        for path in password_paths(tool.output_schema)
    ]
    return {**paths, "tools/call": [*paths.get("tools/call", ()), *found]} if found else {**paths}
