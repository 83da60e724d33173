"""Redaction: what is secret never reaches a recording, and the recording replays all the same.

A value is secret by the name that it goes under, by a path, by a tool's schema (`format:
password`), by the shape of a well-known kind of key, or because the user says so (`secrets`). In
the recording a token of the same shape stands for it, made with a key; from then on, wherever the
value appears again, so does the token. Handlers that are fed tokens in a replay send tokens, which
is what was recorded.

What this cannot do: a value that only a name, path or schema gives away is not known before it
comes with that; what was written until then stays written (`mcp-trio redact` goes over a whole
file, when all is known). A value that is cut in more than two parts, or encoded in a way that
`Following` does not know, is not found, nor one in what the protocol alone says, such as an id or
the schema of a tool. A handler that computes with a secret sends something else in the replay. When
there are more secrets than can be followed, the records with one more are lost, and the recording
says so.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

import attrs
import msgspec

from mcp_trio._errors import RecordingError
from mcp_trio._journal.messages import messages_in
from mcp_trio._journal.records import Record, frame_of
from mcp_trio._journal.redaction.editing import OPENINGS, changed, is_json
from mcp_trio._journal.redaction.first_look import FirstLook
from mcp_trio._journal.redaction.following import Followed, Following
from mcp_trio._journal.redaction.masking import masked
from mcp_trio._journal.redaction.names import DEFAULT_SECRET_NAMES, SecretNames
from mcp_trio._journal.redaction.schemas import password_paths
from mcp_trio._journal.redaction.texts import without_named
from mcp_trio._journal.redaction.tokens import Tokens
from mcp_trio._journal.redaction.zones import FRAME_KINDS, HIDE, SEARCH, Rule, Zone, Zones
from mcp_trio._limits import DEFAULT_LIMITS, Limits

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
            _refuse_text(name, getattr(self, name))


def _refuse_text(name: str, value: object) -> None:
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
        self._first_look = FirstLook(self.names, self._zones.last_names())
        self._secrets = redaction.secrets
        self._follow_chars_min = redaction.follow_chars_min
        self._tokens = Tokens(key, limits=limits)
        self._following = Following()
        self._found: Collection[Followed] = ()
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
            return masked(body)
        if kind in FRAME_KINDS and body.startswith(b"["):
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
        self._found = self._following.found_in(body)
        if not self._found and not self._first_look.finds_names(body):
            return body
        zone = self._zones.of(kind, body)
        if zone.rule is Rule.LEAVE:
            return body
        text = body.decode()
        known = len(self._following)
        redacted = changed(text, zone, self)
        if len(self._following) > known:  # a new secret may stand in front of its name as well
            self._found = self._following.found_in(body)
            redacted = changed(text, zone, self)
        return redacted.encode()

    def adopt(self, tokens: Iterable[str], records: Iterable[Record]) -> None:
        """Know tokens, and what stands at the secret places of redacted records: more tokens."""
        for token in tokens:
            self._tokens.adopt(token)
        self._adopts = True
        for record in records:
            body = frame_of(record)
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
        text = without_named(text, self.names, self.hidden)
        return (
            text if self._adopts or not self._found else self._following.replaced(text, self._found)
        )

    def hidden_number(self, number: str) -> str:
        """A number that is secret."""
        return self._token(number)

    def searched_number(self, number: str) -> str:
        """A number that may be known to be secret."""
        token = None if self._adopts else self._following.token_of(number)
        return token or number

    def _is_inner_json(self, text: str) -> bool:
        return self._depth < _TEXTS_DEPTH_MAX and text.lstrip()[:1] in OPENINGS and is_json(text)

    def _inner(self, text: str, zone: Zone) -> str:
        self._depth += 1
        try:
            return changed(text, zone, self)
        finally:
            self._depth -= 1

    def _token(self, value: str) -> str:
        if self._adopts:
            self._tokens.adopt(value)
            return value
        token = self._tokens.of(value)
        if len(value) >= self._follow_chars_min and value in self._tokens.by_value:
            self._following.add(value, token, is_certain=False)
        return token

    def _ask(self) -> None:
        values = self._secrets() if callable(self._secrets) else self._secrets
        _refuse_text("secrets", values)
        for value in values:
            if len(value) < self._follow_chars_min:
                raise ValueError(
                    f"a secret of {len(value)} characters is shorter than follow_chars_min"
                    f" ({self._follow_chars_min}): it would be found everywhere"
                )
            self._following.add(value, self._tokens.of(value), is_certain=True)


def redactor_of(
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
