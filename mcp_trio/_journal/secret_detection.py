"""Detecting values that are probably secrets: by name, by shape, by entropy.

Detection finds secrets that no user has named, and sometimes values that are no secrets.

A name is secret if its last words are those of a secret name, however they are joined:
`github_token` is secret, `max_tokens` and `token_type` are not. A long secret name also counts as
the end of a word: `PGPASSWORD`.

In texts, secrets are found by a name beside them, in URLs, and by shape. The text may be anything:
a query, the end of a log, source code, incomplete JSON. If the end of a secret is uncertain, more
is taken rather than less.
"""

import functools
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final, cast
from urllib.parse import quote, unquote

import msgspec

from mcp_trio._journal.diff import member_step

# Names --------------------------------------------------------------------------------------------


DEFAULT_SECRET_NAMES: Final = frozenset(
    {
        "access key",
        "access keys",
        "access token",
        "access tokens",
        "api key",
        "api keys",
        "auth",
        "auth token",
        "authorization",
        "bearer",
        "card number",
        "client secret",
        "connection string",
        "cookie",
        "cookies",
        "credential",
        "credentials",
        "cvc",
        "cvv",
        "dsn",
        "encryption key",
        "iban",
        "id token",
        "jwt",
        "otp",
        "pass",
        "passcode",
        "passphrase",
        "passphrases",
        "passwd",
        "password",
        "passwords",
        "private key",
        "private keys",
        "pwd",
        "refresh token",
        "refresh tokens",
        "secret",
        "secret key",
        "secret keys",
        "secrets",
        "session id",
        "signing key",
        "ssn",
        "token",
    }
)

_NAMES_REMEMBERED_MAX: Final = 4096
_NAME_CHARS_MAX: Final = 128

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_A-Za-z]+")
_PIECE: Final = re.compile(r"[^\W\d_]+")

# Words and separators. A value often has other characters.
_NAME: Final = re.compile(r"[^\W\d_]+(?:[ ._-]+[^\W\d_]+)*")

# Members that name the value beside them, and the members with that value.
NAME_MEMBERS: Final = frozenset({"name", "key", "header", "Name", "Key", "Header"})
VALUE_MEMBERS: Final = frozenset({"value", "Value"})

# Words after a secret name that do not change its meaning.
_NEUTRAL: Final = frozenset(
    {"base", "confirmation", "encoded", "hash", "header", "hex", "pem", "plain", "raw", "repeat"}
    | {"string", "text", "value"}
)

# A name of this length is unlikely to end another word by chance.
_ENDING_CHARS_MIN: Final = 6

# A name in the protocol that is no secret.
_NO_SECRET: Final = ("progress", "token")


class SecretNames:
    """The names of members, headers and variables that hold secrets.

    Raises:
        ValueError: A name has no letter.
    """

    def __init__(self, names: Collection[str]) -> None:
        self.names = frozenset(names)
        for name in self.names:
            if not _words(name):
                raise ValueError(f"a secret name needs a letter: {name!r}")
        self._endings = {_words(name) for name in names}
        self._joined = {"".join(words) for words in self._endings}
        self._long = tuple(each for each in self._joined if len(each) >= _ENDING_CHARS_MIN)
        self._covers = functools.lru_cache(_NAMES_REMEMBERED_MAX)(self._covers_afresh)

    def covers(self, name: str) -> bool:
        """Return whether the value with this name is secret."""
        return len(name) <= _NAME_CHARS_MAX and self._covers(name)

    def lists(self, name: str) -> bool:
        """Return whether this is one of the secret names itself, which is no secret.

        A name with digits or signs beside the words may be a secret that begins like a name.
        """
        is_short = len(name) <= _NAME_CHARS_MAX
        return is_short and _NAME.fullmatch(name) is not None and _words(name) in self._endings

    def _covers_afresh(self, name: str) -> bool:
        words = _words(name)
        if words == _NO_SECRET:
            return False
        last = "".join(_PIECE.findall(name)[-1:]).lower()
        if last in self._joined or last.endswith(self._long):
            return True
        while words[1:] and words[-1] in _NEUTRAL and words not in self._endings:
            words = words[:-1]
        return any(words[begin:] in self._endings for begin in range(len(words)))


def _words(name: str) -> tuple[str, ...]:
    return tuple(word.lower() for word in _WORD.findall(name))


# Shapes -------------------------------------------------------------------------------------------


SHAPES: Final[Mapping[str, re.Pattern[str]]] = {
    "private key": re.compile(
        r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----(?P<secret>.+?)(?:-----END|\Z)", re.DOTALL
    ),
    "JSON Web Token": re.compile(r"\beyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,}"),
    "AI service key": re.compile(r"\bsk-(?:proj-|ant-)?[\w-]{20,}"),
    "payment service key": re.compile(r"\b[sr]k_(?:live|test)_\w{16,}"),
    "GitHub token": re.compile(r"\b(?:gh[pousr]_\w{36,}|github_pat_\w{36,})"),
    "GitLab token": re.compile(r"\bglpat-[\w-]{20,}"),
    "AWS key": re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    "Google key": re.compile(r"\bAIza[\w-]{35}|\bya29\.[\w-]{20,}"),
    "Slack token": re.compile(r"\bxox[abeprs]-[\w-]{10,}"),
    "package registry token": re.compile(r"\b(?:npm_\w{36}|pypi-[\w-]{50,}|hf_\w{30,})"),
}

# Every shape contains one of these strings and has at least this length.
_SIGNS: Final = (
    *("PRIVATE KEY", "eyJ", "sk-", "k_live_", "k_test_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_"),
    *("github_pat_", "glpat-", "AKIA", "ASIA", "AIza", "ya29.", "xox", "npm_", "pypi-", "hf_"),
)
_SHAPED_CHARS_MIN: Final = 15


def shaped(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield the kind, begin and end of each value in a text that has the shape of a secret."""
    if len(text) < _SHAPED_CHARS_MIN or not any(sign in text for sign in _SIGNS):
        return
    for kind, pattern in SHAPES.items():
        for match in pattern.finditer(text):
            yield kind, *match.span(match.lastgroup or 0)


# Secrets in texts ---------------------------------------------------------------------------------


Hide = Callable[[str], str]
_Span = tuple[int, int]

# A shorter text cannot hold a name and a secret.
_TEXT_CHARS_MIN: Final = 4

# A name, possibly after a percent escape, and the brackets and quotes that close it.
_NAME_IN_TEXT: Final = r"(?<![\w.$-])(?:(?<=%)[0-9A-Fa-f]{2})?+(?P<name>[\w.$-]{2,128}+)"
_CLOSED: Final = r"(?:\\*+[\"'`\]]|%5[Dd]|%2[27])*+"
_PLAIN: Final = r"[^\s&;\"'`<>\\]"
# Excludes closing brackets and the end of a sentence.
_END: Final = r"(?<![,.)\]}])"
# A prefix before a quote, as in Python.
_PREFIX: Final = r"[bBfFrRuU]"


class _NamePattern:
    """A pattern for a name and the secret after it.

    The secret is matched only after a secret name, since texts may be long and full of names.
    """

    def __init__(self, head: str, secret: str, flags: re.RegexFlag = re.NOFLAG) -> None:
        self._head = re.compile(head, flags)
        self._full = re.compile(f"{head}(?P<secret>{secret})", flags)

    def spans(self, text: str, names: SecretNames) -> Iterator[_Span]:
        """Yield the spans of secrets, also within values that are none: `note = "password='…'"`."""
        at = 0
        while head := self._head.search(text, at):
            is_secret = names.covers(head["name"])
            full = self._full.match(text, head.start()) if is_secret else None
            if full:
                yield full.span("secret")
            at = full.end() if full else head.end()


# {"password": "…"}  password='…'  config["password"] = "…"
_QUOTED: Final = _NamePattern(
    rf"{_NAME_IN_TEXT}{_CLOSED}\s*+[:=]+>?\s*+{_PREFIX}{{0,2}}(?P<quote>\\*+[\"'`])",
    r"(?:(?!(?<!\\)(?P=quote)).)+",
    re.DOTALL,
)
# "otp": 4711
_NUMBER: Final = _NamePattern(rf"{_NAME_IN_TEXT}\\*+[\"']\s*+:\s*+", r"-?[0-9]+(?:\.[0-9]+)?")
# ?token=…  PASSWORD=…  user[password]=…
_ASSIGNED: Final = _NamePattern(
    rf"{_NAME_IN_TEXT}{_CLOSED}=(?!=)", rf"(?!{_PREFIX}{{1,2}}\\*+[\"'`]){_PLAIN}+{_END}"
)
# …%3Ftoken%3D…%26…
_NESTED: Final = _NamePattern(rf"{_NAME_IN_TEXT}{_CLOSED}%3[dD]", rf"(?:(?!%26){_PLAIN})+{_END}")
# A line of a settings file, or a header.
_LINE: Final = _NamePattern(
    rf"^[ \t>*#-]*+(?:(?:export|set)[ \t]+)?{_NAME_IN_TEXT}{_CLOSED}(?::[ \t]*|[ \t]+=[ \t]*)",
    r"[^\s\"'\[{|&*>=:][^\r\n]*",
    re.MULTILINE,
)
# The password: …
_SENTENCE: Final = _NamePattern(rf"{_NAME_IN_TEXT}{_CLOSED}: +", rf"(?=\S*[0-9]){_PLAIN}+{_END}")
# --password …
_FLAG: Final = _NamePattern(
    r"(?<!\S)(?P<name>--?[A-Za-z][\w-]*+)[ \t]+", r"[^\s\"'-]\S*|\"[^\"]+\"|'[^']+'"
)
# <password>…</password>
_ELEMENT: Final = _NamePattern(rf"<(?:[\w-]+:)?{_NAME_IN_TEXT}(?:\s[^<>]*+)?>", r"[^<>]+(?=</)")
# A field of a multipart form.
_FIELD: Final = _NamePattern(
    r"form-data;[^\r\n]*?\bname=\"?(?P<name>[^\"\r\n;]{1,128})[^\r\n]*\r?\n"
    r"(?:[^\r\n]+\r?\n)*+\r?\n",
    r"[^\r\n]+",
)
_CREDENTIALS: Final = re.compile(
    r"\b(?:[Bb]earer|[Bb]asic) +(?P<secret>(?=\S*[0-9=]|\S{20})[A-Za-z0-9._~+/=-]{8,})"
)
_ADDRESS: Final = re.compile(r"://[^\s/:@]*:(?P<secret>[^\s/]+)@")

# Patterns with and without a name, by a string that a text has to contain for them to match.
_NAME_PATTERNS: Final[Mapping[str, tuple[_NamePattern, ...]]] = {
    '"': (_QUOTED, _NUMBER),
    "'": (_QUOTED, _NUMBER),
    "`": (_QUOTED,),
    "=": (_ASSIGNED, _LINE),
    ":": (_LINE,),
    ": ": (_SENTENCE,),
    "%3": (_NESTED,),
    "-": (_FLAG, _FIELD),
    "</": (_ELEMENT,),
}
_OTHER_PATTERNS: Final = {"earer ": _CREDENTIALS, "asic ": _CREDENTIALS, "://": _ADDRESS}


def may_hold_named_secret(text: str, names: SecretNames) -> bool:
    """Return whether a text may hold a secret that `replace_named_secrets` finds."""
    return len(text) >= _TEXT_CHARS_MIN and ("\\u" in text or any(_spans(text, names)))


def replace_named_secrets(text: str, names: SecretNames, hide: Hide) -> str:
    """Return the text with each secret in it replaced by `hide`.

    Secrets that overlap are replaced as one, but `hide` is called for each.
    """
    pieces: list[str] = []
    copied = 0
    for begin, end, parts in _joined(sorted(_spans(text, names))):
        for part in parts:
            _hidden(text[slice(*part)], hide)
        pieces += (text[copied:begin], _hidden(text[begin:end], hide))
        copied = end
    return "".join((*pieces, text[copied:])) if pieces else text


def _spans(text: str, names: SecretNames) -> Iterator[_Span]:
    for sign, ways in _NAME_PATTERNS.items():
        if sign in text:
            for way in ways:
                yield from way.spans(text, names)
    for sign, pattern in _OTHER_PATTERNS.items():
        if sign in text:
            yield from (match.span("secret") for match in pattern.finditer(text))
    yield from ((begin, end) for _, begin, end in shaped(text))


def _joined(spans: Iterable[_Span]) -> Iterator[tuple[int, int, list[_Span]]]:
    """Yield spans that overlap as one span with its parts; other spans have no parts."""
    parts: list[_Span] = []
    begin = end = -1
    for span in spans:
        if span[0] >= end:
            if parts:
                yield begin, end, [part for part in parts if part != (begin, end)]
            parts, begin, end = [], *span
        parts.append(span)
        end = max(end, span[1])
    if parts:
        yield begin, end, [part for part in parts if part != (begin, end)]


def _hidden(secret: str, hide: Hide) -> str:
    """Return the replacement of a secret, quoted or percent-encoded as the secret is."""
    if secret[0] == secret[-1] and secret[0] in "\"'" and secret[1:-1]:
        return secret[0] + _hidden(secret[1:-1], hide) + secret[0]
    plain = unquote(secret)
    return hide(secret) if plain == secret else quote(hide(plain), safe="")


# Longer runs are usually data such as an image, shorter ones words.
_RUN: Final = re.compile(r"(?<![\w+/=-])[A-Za-z0-9+/_-]{24,128}={0,2}(?![\w+/=-])")
_ENTROPY_BITS_MIN: Final = 4.2
_CLASSES: Final = tuple(map(re.compile, ("[a-z]", "[A-Z]", "[0-9]")))

# Members of the protocol with bytes in base64; the data of a log message may be text.
_BINARY: Final = (".data", ".blob")
_LOGGED: Final = "$.params.data"

# Request states are random or sealed, and useless after the session.
_STATES: Final = frozenset({"$.result.requestState", "$.params.requestState"})
_RANDOM_STATE: Final = "parked."

_NAMES: Final = SecretNames(DEFAULT_SECRET_NAMES)


class LikelySecret(msgspec.Struct, frozen=True):
    """A value that may be a secret: its path in a JSON text, the reason, and the value."""

    path: str
    kind: str
    value: str


def likely_secrets(body: bytes) -> list[LikelySecret]:
    """Return the values in a body that may be secrets; a body that is not JSON is one text."""
    try:
        value = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        value = body.decode(errors="replace")
    return [
        LikelySecret(path, kind, found)
        for path, name, text in _texts(value)
        for found, kind in _found(path, name, text).items()
    ]


def _texts(value: Any) -> Iterator[tuple[str, str, str]]:
    """Yield path, name and text of each string and number."""
    open_values: list[tuple[str, str, Any]] = [("$", "", value)]
    while open_values:
        path, name, each = open_values.pop()
        if isinstance(each, dict):
            members = cast("dict[str, Any]", each).items()
            rows = [(path + member_step(key), key, inner) for key, inner in members]
            open_values += reversed(rows)
        elif isinstance(each, list):
            items = cast("list[Any]", each)  # type: ignore[redundant-cast]  # pyright needs it
            rows = [(f"{path}[{at}]", name, item) for at, item in enumerate(items)]
            open_values += reversed(rows)
        elif isinstance(each, str | int | float) and not isinstance(each, bool):
            yield path, name, str(each)


def _found(path: str, name: str, text: str) -> dict[str, str]:
    """Return the values found in a text, each with the first reason."""
    found = {text[begin:end]: kind for kind, begin, end in shaped(text)}

    def note(value: str) -> str:
        found.setdefault(value, "secret name")
        return value

    if text and _NAMES.covers(name):
        note(text)
    replace_named_secrets(text, _NAMES, note)
    if not found and not _is_random_by_design(path, text):
        found = {run: "high entropy" for run in _RUN.findall(text) if _has_high_entropy(run)}
    return found


def _is_random_by_design(path: str, text: str) -> bool:
    is_state = path in _STATES or text.startswith(_RANDOM_STATE)
    return is_state or (path.endswith(_BINARY) and path != _LOGGED)


def _has_high_entropy(run: str) -> bool:
    if not all(each.search(run) for each in _CLASSES):
        return False
    shares = [number / len(run) for number in Counter(run).values()]
    return -sum(share * math.log2(share) for share in shares) >= _ENTROPY_BITS_MIN
