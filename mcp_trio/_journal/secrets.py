"""Finding secrets in texts: values that are probably secret, and values that are known to be.

Values are probably secret by their name, such as `password`; by their shape, such as `ghp_` and 36
characters; or by their entropy. So secrets are found that no user has named, and sometimes values
that are no secrets.

In texts, secrets are found by a name beside them, in URLs, and by shape. The text may be anything:
a query, the end of a log, source code, incomplete JSON. If the end of a secret is uncertain, more
is taken rather than less.

In this module, the *token* of a known value is the text that redaction writes in its place. Tokens
that servers issue have their full names here, such as "GitHub token".

A known value is found verbatim; escaped for JSON (however often), for a URL or for HTML; in base64
at any of its three alignments; and in part, if a long part of it is at the end or the beginning of
a text, as when it was sent in two chunks. It is not found in three chunks or more, in other
encodings (such as hexadecimal, or base64 with line breaks), in values computed from it, and in what
was written before the value was known.
"""

import functools
import json
import math
import re
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, AnyStr, Final, Generic, cast
from urllib.parse import quote, unquote

import attrs
import msgspec

from mcp_trio._journal.diff import ROOT, JsonPath, member_step, path_text
from mcp_trio._journal.secret_names import DEFAULT_SECRET_NAMES, SecretNames

# Shapes -------------------------------------------------------------------------------------------


SHAPES: Final[Mapping[str, re.Pattern[str]]] = {
    "private key": re.compile(
        r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----(?P<secret>.+?)(?:-----END|\Z)", re.DOTALL
    ),
    # The lookahead checks both dots once for each run of characters. Without it, every `eyJ` in a
    # long run without dots would be read to the end of the run.
    "JSON Web Token": re.compile(
        r"(?<![\w-])(?=[\w-]++\.eyJ[\w-]{8,}+\.[\w-]{8})"
        r"[\w-]*?\b(?P<secret>eyJ[\w-]{8,}+\.eyJ[\w-]{8,}+\.[\w-]{8,})"
    ),
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
_SHAPE_MARKERS: Final = (
    *("PRIVATE KEY", "eyJ", "sk-", "k_live_", "k_test_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_"),
    *("github_pat_", "glpat-", "AKIA", "ASIA", "AIza", "ya29.", "xox", "npm_", "pypi-", "hf_"),
)
_SHAPED_CHARS_MIN: Final = 15


def secret_shapes(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield the kind, begin and end of each value in a text that has the shape of a secret."""
    if len(text) < _SHAPED_CHARS_MIN or not any(marker in text for marker in _SHAPE_MARKERS):
        return
    for kind, pattern in SHAPES.items():
        for match in pattern.finditer(text):
            yield kind, *match.span(match.lastgroup or 0)


# Secrets in texts ---------------------------------------------------------------------------------


# A function that returns the replacement of a secret.
Hide = Callable[[str], str]
_Span = tuple[int, int]

# A shorter text cannot hold a name and a secret.
_TEXT_CHARS_MIN: Final = 4

# Groups are atomic, and not possessive, because CPython before 3.11.5 gives up too early in a
# possessive group: https://github.com/python/cpython/issues/106052
#
# A name, possibly after a percent escape.
_NAME_IN_TEXT: Final = r"(?<![\w.$-])(?>(?:(?<=%)[0-9A-Fa-f]{2})?)(?P<name>[\w.$-]{2,128}+)"
# The quotes and brackets that close a name.
_NAME_CLOSED: Final = r"(?>(?:\\*+[\"'`\]]|%5[Dd]|%2[27]){0,1000})"
# A character of a secret without quotes.
_PLAIN: Final = r"[^\s&;\"'`<>\\]"
# The end of a secret without quotes: not after a closing bracket or the end of a sentence.
_PLAIN_END: Final = r"(?<![,.)\]}])"
# A prefix before a quote, as in Python.
_PREFIX: Final = r"[bBfFrRuU]"


class _NamePattern:
    """A pattern for a name and the secret after it.

    The secret is matched only after a secret name, since long texts have many other names.
    """

    def __init__(self, name: str, secret: str, flags: re.RegexFlag = re.NOFLAG) -> None:
        self._name = re.compile(name, flags)
        self._name_and_secret = re.compile(f"{name}(?P<secret>{secret})", flags)

    def spans(self, text: str, names: SecretNames) -> Iterator[_Span]:
        """Yield the spans of secrets, also inside of other values: `note = "password='…'"`."""
        at = 0
        while found := self._name.search(text, at):
            if names.covers(found["name"]) and (
                complete := self._name_and_secret.match(text, found.start())
            ):
                yield complete.span("secret")
                found = complete
            at = found.end()


# {"password": "…"}  password='…'  config["password"] = "…"
_QUOTED: Final = _NamePattern(
    rf"{_NAME_IN_TEXT}{_NAME_CLOSED}\s*+[:=]+>?\s*+{_PREFIX}{{0,2}}(?P<quote>\\*+[\"'`])",
    r"(?:(?!(?<!\\)(?P=quote)).)+",
    re.DOTALL,
)
# "otp": 4711
_NUMBER: Final = _NamePattern(rf"{_NAME_IN_TEXT}\\*+[\"']\s*+:\s*+", r"-?[0-9]+(?:\.[0-9]+)?")
# ?token=…  PASSWORD=…  user[password]=…
_ASSIGNED: Final = _NamePattern(
    rf"{_NAME_IN_TEXT}{_NAME_CLOSED}=(?!=)", rf"(?!{_PREFIX}{{1,2}}\\*+[\"'`]){_PLAIN}+{_PLAIN_END}"
)
# …%3Ftoken%3D…%26…
_NESTED: Final = _NamePattern(
    rf"{_NAME_IN_TEXT}{_NAME_CLOSED}%3[dD]", rf"(?:(?!%26){_PLAIN})+{_PLAIN_END}"
)
# A line of a settings file, or a header.
_LINE: Final = _NamePattern(
    rf"^[ \t>*#-]*+(?:(?:export|set)[ \t]+)?{_NAME_IN_TEXT}{_NAME_CLOSED}(?::[ \t]*|[ \t]+=[ \t]*)",
    r"[^\s\"'\[{|&*>=:][^\r\n]*",
    re.MULTILINE,
)
# The password: …
_SENTENCE: Final = _NamePattern(
    rf"{_NAME_IN_TEXT}{_NAME_CLOSED}: +", rf"(?=\S*[0-9]){_PLAIN}+{_PLAIN_END}"
)
# --password …
_FLAG: Final = _NamePattern(
    r"(?<!\S)(?P<name>--?[A-Za-z][\w-]*+)[ \t]+", r"[^\s\"'-]\S*|\"[^\"]+\"|'[^']+'"
)
# <password>…</password>
_ELEMENT: Final = _NamePattern(rf"<(?:[\w-]+:)?{_NAME_IN_TEXT}(?:\s[^<>]*+)?>", r"[^<>]+(?=</)")
# A field of a multipart form: the first in its line, with few further headers (RFC 7578 allows 2),
# so that many fields without a value are not read again and again.
_FIELD: Final = _NamePattern(
    r"(?<![^\r\n])(?>[^\r\n]*?form-data;)(?>[^\r\n]*?\bname=)\"?(?P<name>[^\"\r\n;]{1,128}+)"
    r"[^\r\n]*+\r?\n(?>(?:[^\r\n]++\r?\n){0,4})\r?\n",
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
    "-": (_FLAG,),
    "form-data;": (_FIELD,),
    "</": (_ELEMENT,),
}
# Without the first letter, which may be a capital.
_OTHER_PATTERNS: Final = {"earer ": _CREDENTIALS, "asic ": _CREDENTIALS, "://": _ADDRESS}


def may_hold_named_secret(text: str, names: SecretNames) -> bool:
    """Return whether a text may hold a secret that `replace_named_secrets` finds."""
    return len(text) >= _TEXT_CHARS_MIN and ("\\u" in text or any(_spans(text, names)))


def replace_named_secrets(text: str, names: SecretNames, hide: Hide) -> str:
    """Return the text with each secret in it replaced by `hide`.

    Secrets that overlap are replaced as one. `hide` is called for each of them as well, so that it
    can remember them all: each may occur alone elsewhere.
    """
    pieces: list[str] = []
    copied = 0
    for begin, end, parts in _merged(sorted(_spans(text, names))):
        for part in parts:
            _hidden(text[slice(*part)], hide)
        pieces += (text[copied:begin], _hidden(text[begin:end], hide))
        copied = end
    return "".join((*pieces, text[copied:])) if pieces else text


def _spans(text: str, names: SecretNames) -> Iterator[_Span]:
    for marker, patterns in _NAME_PATTERNS.items():
        if marker in text:
            for name_pattern in patterns:
                yield from name_pattern.spans(text, names)
    for marker, pattern in _OTHER_PATTERNS.items():
        if marker in text:
            yield from (match.span("secret") for match in pattern.finditer(text))
    yield from ((begin, end) for _, begin, end in secret_shapes(text))


def _merged(spans: Iterable[_Span]) -> Iterator[tuple[int, int, list[_Span]]]:
    """Merge spans that overlap; yield each merged span and those of its parts that are shorter.

    A span that overlaps no other is yielded without parts.
    """
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
    begin, end = 0, len(secret)
    while begin + 1 < end - 1 and secret[begin] == secret[end - 1] and secret[begin] in "\"'":
        begin, end = begin + 1, end - 1
    unquoted = secret[begin:end]
    plain = unquote(unquoted)
    hidden = hide(unquoted) if plain == unquoted else quote(hide(plain), safe="")
    return secret[:begin] + hidden + secret[end:]


# Likely secrets -----------------------------------------------------------------------------------


# Longer runs are usually data such as an image, shorter ones words.
_RUN: Final = re.compile(r"(?<![\w+/=-])[A-Za-z0-9+/_-]{24,128}={0,2}(?![\w+/=-])")
_ENTROPY_BITS_MIN: Final = 4.2
_CLASSES: Final = tuple(map(re.compile, ("[a-z]", "[A-Z]", "[0-9]")))

# Members of the protocol with bytes in base64; the data of a log message may be text.
_BINARY: Final = (".data", ".blob")
_LOGGED: Final = "$.params.data"

# Request states are random or sealed, and useless after the session.
_REQUEST_STATES: Final = frozenset({"$.result.requestState", "$.params.requestState"})
_RANDOM_STATE: Final = "suspended."

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
    secrets: list[LikelySecret] = []
    open_values: list[tuple[JsonPath, str, Any]] = [(ROOT, "", value)]
    while open_values:
        path, name, each = open_values.pop()
        if isinstance(each, dict):
            members = cast("dict[str, Any]", each).items()
            rows = [((path, member_step(key)), key, inner) for key, inner in members]
            open_values += reversed(rows)
        elif isinstance(each, list):
            items = cast("list[Any]", each)  # type: ignore[redundant-cast]  # pyright needs it
            rows = [((path, f"[{at}]"), name, item) for at, item in enumerate(items)]
            open_values += reversed(rows)
        elif isinstance(each, str | int | float) and not isinstance(each, bool):
            text = str(each)
            found = _secrets_in(text, name)
            if not found:
                runs = [run for run in _RUN.findall(text) if _has_high_entropy(run)]
                if runs and not _looks_random_by_design(text, path_text(path)):
                    found = dict.fromkeys(runs, "high entropy")
            if found:
                path_as_text = path_text(path)
                secrets += (LikelySecret(path_as_text, kind, it) for it, kind in found.items())
    return secrets


def _secrets_in(text: str, name: str) -> dict[str, str]:
    """Return the secrets by shape and name in the text of a member, each with the first reason."""
    found = {text[begin:end]: kind for kind, begin, end in secret_shapes(text)}

    def note(value: str) -> str:
        found.setdefault(value, "secret name")
        return value

    if text and _NAMES.covers(name):
        note(text)
    replace_named_secrets(text, _NAMES, note)
    return found


def _looks_random_by_design(text: str, path: str) -> bool:
    """Return whether a text is a request state or binary data."""
    is_state = path in _REQUEST_STATES or text.startswith(_RANDOM_STATE)
    return is_state or (path.endswith(_BINARY) and path != _LOGGED)


def _has_high_entropy(run: str) -> bool:
    if not all(each.search(run) for each in _CLASSES):
        return False
    shares = [number / len(run) for number in Counter(run).values()]
    return -sum(share * math.log2(share) for share in shares) >= _ENTROPY_BITS_MIN


# Spellings of known secrets -----------------------------------------------------------------------


_NEVER_ESCAPED: Final = re.compile(r"[A-Za-z0-9_.-]")
_ENTITIES: Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&apos;"}
_LETTERS: Final = {"\n": "n", "\r": "r", "\t": "t", "\b": "b", "\f": "f"}
_REMEMBERED_MAX: Final = 1024

# A text may have more backslashes than the value, because each is escaped. The last one of a row in
# the value matches all that remain in the text, except one that begins the escape of the next
# character. So there is only one way to divide the row, and a long row causes no backtracking.
_BACKSLASH: Final = r"\\"
_LAST_BACKSLASH: Final = r"\\+(?:(?!\\)|(?=\\[bfnrtu]))"
# Backslashes that escape a character. At the beginning of a value they are a complete row, or one
# alone: otherwise a long row would be read again from each of its backslashes.
_ESCAPES: Final = r"\\++"
_FIRST_ESCAPES: Final = r"(?:\\|(?<!\\)\\++)"


def spelling_pattern(value: str) -> re.Pattern[str]:
    """Return a pattern for all spellings of a value; each of its characters is a group.

    A value that has one spelling has no groups: most secrets are of that kind, and such a pattern
    is made and searched ten times as fast.
    """
    if _UNCHANGED.fullmatch(value):
        return re.compile(re.escape(value))
    pairs = enumerate(zip(value, (*value[1:], ""), strict=True))
    patterns = (
        _spellings(each, is_first=at == 0, is_repeated=each == following)
        for at, (each, following) in pairs
    )
    return re.compile("".join(f"({pattern})" for pattern in patterns))


def respelled(match: re.Match[str], value: str, token: str) -> list[tuple[str, str]]:
    """Return each character as the text spells it, and the token's character in that spelling."""
    pieces = [
        (written, written if before == after else _spelled_like(after, written))
        for written, before, after in zip(match.groups() or match[0], value, token, strict=False)
    ]
    pieces.append(("", token[len(value) :]))
    return pieces


@functools.lru_cache(_REMEMBERED_MAX)
def _spellings(character: str, *, is_first: bool, is_repeated: bool) -> str:
    """Return a pattern for all spellings of a character of a secret.

    Args:
        character: The character.
        is_first: Whether the secret begins with it.
        is_repeated: Whether the next character of the secret is the same one.
    """
    if _NEVER_ESCAPED.fullmatch(character):
        return re.escape(character)
    percent = "".join(rf"%(?:25)*{byte:02x}" for byte in character.encode())
    units = character.encode("utf-16-be")
    escapes = _FIRST_ESCAPES if is_first else _ESCAPES
    escaped = escapes + _ESCAPES.join(
        f"u{units[at : at + 2].hex()}" for at in range(0, len(units), 2)
    )
    code = ord(character)
    ways = [rf"(?i:{percent}|{escaped}|&#0*{code};|&#x0*{code:x};)"]
    if character in _ENTITIES:
        ways.append(_ENTITIES[character])
    if character in _LETTERS:
        ways.append(f"{escapes}{_LETTERS[character]}")
    if character == " ":
        ways.append(r"\+")
    if character == "\\":
        before = r"(?<!\\)" if is_first else ""
        ways.append(before + (_BACKSLASH if is_repeated else _LAST_BACKSLASH))
    else:
        escaped_plainly = f"(?:{escapes})?{re.escape(character)}"
        ways.append(escaped_plainly if character.isascii() else character)
    return f"(?:{'|'.join(ways)})"


def _spelled_like(character: str, model: str) -> str:
    """Return a character in the spelling of another one."""
    kind = model.lstrip("\\")[:2]
    if _NEVER_ESCAPED.fullmatch(character) or len(model) == 1:
        return character
    if kind[:1] == "%":
        written = quote(character, safe="")
        written = written.lower() if any(map(str.islower, model)) else written
        return written.replace("%", "%25" if model.startswith("%25") else "%")
    if kind[:1] == "u":
        units = re.findall("....", character.encode("utf-16-be").hex())
        slashes = re.findall(r"\\+(?=u)", model)
        return "".join(f"{each}u{unit}" for each, unit in zip(slashes, units, strict=False))
    if kind == "&#":
        return f"&#{ord(character)};"
    return character


# A shorter plain word or number is found only as a word: "test" is not found in "latest".
_PLAIN_CHARS_MIN: Final = 8
# A shorter part of a value, at the end or the beginning of a text, is not replaced.
_PART_CHARS_MIN: Final = 8
# Longer values are divided into pieces of this length.
_PIECE_CHARS_MAX: Final = 1024
_BASE64_BYTES_MIN: Final = 6
# A probe is a part of a secret that no escape changes. Secrets are searched for by pattern only in
# texts that contain one of their probes, since that is found much faster.
_PROBE_CHARS_MIN: Final = 3

# Of more parts of secrets than this, only those are looked for that begin with characters of the
# text: reading these characters takes about as long as looking for so many parts.
_PARTS_MANY: Final = 1000
_START_CHARS_MAX: Final = 3

# Characters that no escape and no text encoding changes.
_UNCHANGED: Final = re.compile(r"[A-Za-z0-9_.-]+")

# Escapes of characters that JSON need not escape, which would hide a probe. Other escapes match
# without effect, so that the second backslash of `\\` begins no escape. The second pattern finds
# needless escapes in JSON within a string; then every secret may be in the text.
_NEEDLESS: Final = re.compile(rb"\\(?:u00(?P<code>[2-7][0-9A-Fa-f])|(?P<itself>.))", re.DOTALL)
_NEEDLESS_INSIDE: Final = re.compile(rb"\\\\+(?:u00[2-7]|/)")

_BASE64: Final = re.compile(r"[A-Za-z0-9+/_-]+")
_BASE64_RUNS: Final = bytes(
    each if _BASE64.fullmatch(chr(each)) else ord(" ") for each in range(256)
)
# Up to so many strings of base64 are looked for in every text.
_BASE64_PROBES_FEW: Final = 32
_TO_URL_SAFE: Final = str.maketrans("+/", "-_")
_FROM_URL_SAFE: Final = str.maketrans("-_", "+/")

# How many characters around base64 decide which alphabet it uses.
_AROUND_CHARS: Final = 64

# Base64 encodes groups of three bytes by four characters. By the number of bytes before a secret in
# its first group: the index of the first character that depends on the secret alone.
_FIRST_SECRET_CHAR: Final = {0: 0, 1: 2, 2: 3}


class _Encoded(msgspec.Struct, frozen=True):
    """A secret in base64, after some other bytes.

    Attributes:
        secret_chars: The base64 characters that depend on the secret alone, not on the bytes around
            it.
        secret: The bytes of the secret.
        token: The bytes that replace it.
        offset: The number of bytes before the secret in a group of three.
    """

    secret_chars: str
    secret: bytes
    token: bytes
    offset: int


@attrs.define(eq=False, repr=False)
class KnownSecret:
    """A known secret, or a piece of a long one, and its token.

    Attributes:
        token: The text that replaces the secret.
        is_word: Whether the secret is found only as a separate word.
    """

    value: str
    token: str
    is_word: bool
    encoded: Collection[_Encoded]
    _pattern: re.Pattern[str] | None = None

    @property
    def pattern(self) -> re.Pattern[str]:
        """The pattern of its spellings, compiled on first use since most are never needed."""
        if self._pattern is None:
            self._pattern = spelling_pattern(self.value)
        return self._pattern


class _SecretsByPart(Generic[AnyStr]):
    """Known secrets by their parts, which are strings that a text with the secret contains.

    Of many parts, only those are looked for whose first characters are in the text.
    """

    def __init__(self) -> None:
        self._secrets: dict[AnyStr, list[KnownSecret]] = {}
        self._by_start: dict[AnyStr, list[AnyStr]] = {}
        self._start_sizes: set[int] = set()

    def __len__(self) -> int:
        """Return the number of parts."""
        return len(self._secrets)

    def add(self, part: AnyStr, secret: KnownSecret) -> None:
        if part not in self._secrets:
            start = part[:_START_CHARS_MAX]
            self._start_sizes.add(len(start))
            self._by_start.setdefault(start, []).append(part)
        self._secrets.setdefault(part, []).append(secret)

    def found_in(self, text: AnyStr) -> list[KnownSecret]:
        """Return the secrets with a part in a text; a secret may be in the list twice."""
        parts: Iterable[AnyStr] = self._secrets
        if len(self._secrets) > min(len(text), _PARTS_MANY):
            positions = range(len(text))
            starts = {text[at : at + size] for size in self._start_sizes for at in positions}
            known_starts = sorted(start for start in starts if start in self._by_start)
            parts = [part for start in known_starts for part in self._by_start[start]]
        return [secret for part in parts if part in text for secret in self._secrets[part]]


class KnownSecrets:
    """The known secrets of a recording, and their tokens."""

    def __init__(self) -> None:
        self._tokens: dict[str, str] = {}
        self._all: list[KnownSecret] = []
        self._without_probe: list[KnownSecret] = []
        self._by_probe = _SecretsByPart[bytes]()
        self._by_base64 = _SecretsByPart[bytes]()
        self._by_token = _SecretsByPart[str]()
        self._base64_chars_min = math.inf

    def __len__(self) -> int:
        """Return the number of known secrets."""
        return len(self._tokens)

    def add(self, value: str, token: str, *, is_given: bool) -> None:
        """Add a value; unless the user has given it, a short word is found only as a whole word."""
        if value in self._tokens:
            return
        self._tokens[value] = token
        is_plain = value.isalpha() or value.isdigit()
        is_word = is_plain and len(value) < _PLAIN_CHARS_MIN and not is_given
        for piece, token_piece in _pieces(value, token):
            known = KnownSecret(piece, token_piece, is_word, _encoded(piece, token_piece))
            self._all.append(known)
            self._by_token.add(token_piece, known)
            # A text may have only the first or the last part of the secret. So there is a probe in
            # the beginning and one in the end, unless they would be too short.
            ends = {piece[:_PART_CHARS_MIN], piece[-_PART_CHARS_MIN:]}
            probes = {max(_UNCHANGED.findall(end), key=len, default="") for end in ends}
            if min(map(len, probes)) < min(_PROBE_CHARS_MIN, len(piece)):
                self._without_probe.append(known)
                continue
            for probe in probes:
                self._by_probe.add(probe.encode(), known)
            for encoded in known.encoded:
                self._by_base64.add(encoded.secret_chars.encode(), known)
                self._base64_chars_min = min(self._base64_chars_min, len(encoded.secret_chars))

    def token_of(self, value: str) -> str | None:
        """Return the token of a text that is a known secret; None for any other."""
        return self._tokens.get(value)

    def found_in(self, body: bytes) -> Collection[KnownSecret]:
        """Return the secrets that may be in a JSON text; no others are in it."""
        if not self._all:
            return ()
        if b"\\u" in body or b"\\/" in body:
            body = _NEEDLESS.sub(_unescaped, body)
            if _NEEDLESS_INSIDE.search(body):
                return self._all
        found = self._by_probe.found_in(body)
        # With many secrets, look for them only if some run of base64 characters is long enough.
        may_hold_base64 = len(self._by_base64) <= _BASE64_PROBES_FEW
        if not may_hold_base64:
            runs = body.translate(_BASE64_RUNS).split()
            may_hold_base64 = max(map(len, runs), default=0) >= self._base64_chars_min
        if may_hold_base64:
            found += self._by_base64.found_in(body)
        return dict.fromkeys((*found, *self._without_probe)) if found else self._without_probe

    def replaced(self, text: str, found: Collection[KnownSecret]) -> str:
        """Return the text with the token of each of these secrets in its place."""
        # The longest are replaced first. Tokens that are in the text already take part, and stay as
        # they are, so that no shorter secret is replaced within a token.
        rows = [(len(each.value), each, False) for each in found]
        rows += [(len(each.token), each, True) for each in self._by_token.found_in(text)]
        edits: list[_Edit] = []
        is_edited = bytearray(len(text))
        for _, known, is_token in sorted(rows, key=lambda row: row[0], reverse=True):
            if is_token:
                spans = (match.span() for match in re.finditer(re.escape(known.token), text))
                new = [(*span, known.token) for span in spans if not any(is_edited[slice(*span)])]
            else:
                new = _edits(text, known, is_edited)
            for begin, end, _ in new:
                is_edited[begin:end] = b"\1" * (end - begin)
            edits += new
        if edits:
            pieces: list[str] = []
            copied = 0
            for begin, end, replacement in sorted(edits):
                pieces += (text[copied:begin], replacement)
                copied = end
            text = "".join((*pieces, text[copied:]))
        for known in found:
            if _PART_CHARS_MIN < len(known.value) == len(known.token):
                text = _without_cut_secrets(text, known.value, known.token)
        for known in found:
            for encoded in known.encoded:
                if encoded.secret_chars in text:
                    text = _recoded(text, encoded)
        return text


# The begin and the end of a part of a text, and its replacement.
_Edit = tuple[int, int, str]


def _unescaped(match: re.Match[bytes]) -> bytes:
    if match["code"]:
        code = int(match["code"], 16)
        return match[0] if chr(code) in '"\\' else bytes([code])
    return b"/" if match["itself"] == b"/" else match[0]


def _pieces(value: str, token: str) -> Iterator[tuple[str, str]]:
    """Yield a value and its token; for a long value, the pieces that cover it."""
    if len(value) <= _PIECE_CHARS_MAX or len(value) != len(token):
        yield value, token
        return
    begins = range(0, len(value) - _PIECE_CHARS_MAX, _PIECE_CHARS_MAX)
    for begin in (*begins, len(value) - _PIECE_CHARS_MAX):
        piece = slice(begin, begin + _PIECE_CHARS_MAX)
        yield value[piece], token[piece]


def _encoded(value: str, token: str) -> list[_Encoded]:
    """Return the value in base64, also as part of a JSON text."""
    found: dict[str, _Encoded] = {}
    for secret, token_as_bytes in zip(_as_bytes(value), _as_bytes(token), strict=True):
        token_bytes = token_as_bytes.ljust(len(secret), b"0")[: len(secret)]
        for offset, begin in _FIRST_SECRET_CHAR.items() if len(secret) >= _BASE64_BYTES_MIN else ():
            base64 = b64encode(bytes(offset) + secret + bytes(2)).decode()
            secret_chars = base64[begin : (offset + len(secret)) * 8 // 6]
            for each in (secret_chars, secret_chars.translate(_TO_URL_SAFE)):
                found.setdefault(each, _Encoded(each, secret, token_bytes, offset))
    return list(found.values())


def _as_bytes(text: str) -> tuple[bytes, bytes, bytes]:
    """Return a text in UTF-8: as it is, as in JSON, and as in JSON with only ASCII."""
    return text.encode(), msgspec.json.encode(text)[1:-1], json.dumps(text)[1:-1].encode()


def _edits(text: str, known: KnownSecret, is_edited: bytearray) -> list[_Edit]:
    """Return the edits that replace a secret, except for its characters that are edited already."""
    edits: list[_Edit] = []
    for match in known.pattern.finditer(text):
        begin, end = match.span()
        is_in_word = text[begin - 1 : begin].isalnum() or text[end : end + 1].isalnum()
        # The scheme of a URL is no secret, even if a known secret is the same word.
        is_scheme = begin == 0 and text.startswith("://", end)
        if is_scheme or (known.is_word and is_in_word):
            continue
        pieces = respelled(match, known.value, known.token)
        if any(is_edited[begin:end]):
            for written, replacement in pieces:
                span = (begin, begin := begin + len(written))
                if written and not any(is_edited[slice(*span)]):
                    edits.append((*span, replacement))
        else:
            edits.append((begin, end, "".join(replacement for _, replacement in pieces)))
    return edits


def _without_cut_secrets(text: str, value: str, token: str) -> str:
    """Return the text with the token in place of a secret that is cut off at its begin or end.

    A text that begins with the end of the secret, or ends with the beginning of the secret, may be
    one of two chunks. If both is the case, characters that could belong to both parts of the
    secret, as in `123412`, belong to the longer one.
    """
    chars_at_begin = chars_at_end = 0
    sizes = range(len(value) - 1, _PART_CHARS_MIN - 1, -1)
    if value[-_PART_CHARS_MIN:] in text:
        chars_at_begin = next((size for size in sizes if text.startswith(value[-size:])), 0)
    if value[:_PART_CHARS_MIN] in text:
        chars_at_end = next((size for size in sizes if text.endswith(value[:size])), 0)
    first, last = token[len(token) - chars_at_begin :], token[:chars_at_end]
    shared = max(len(first) + len(last) - len(text), 0)
    if len(first) > len(last):
        last = last[shared:]
    else:
        first = first[: len(first) - shared]
    return first + text[len(first) : len(text) - len(last)] + last


def _recoded(text: str, encoded: _Encoded) -> str:
    """Return the text with the token in place of the secret in base64."""
    pieces: list[str] = []
    copied = 0
    at = text.find(encoded.secret_chars)
    while at >= 0:
        begin = at - _FIRST_SECRET_CHAR[encoded.offset]
        group = _recoded_group(text, begin, encoded) if begin >= copied else ""
        if group:
            pieces += (text[copied:begin], group)
            copied = begin + len(group)
        at = text.find(encoded.secret_chars, at + 1)
    return "".join((*pieces, text[copied:]))


def _recoded_group(text: str, begin: int, encoded: _Encoded) -> str:
    """Return the base64 at `begin` with the token; empty if the secret is not in it."""
    end = encoded.offset + len(encoded.secret)
    run = _BASE64.match(text, begin, begin - (-end // 3) * 4)
    group = run[0] if run else ""
    try:
        decoded = b64decode(group.translate(_FROM_URL_SAFE) + "=" * (-len(group) % 4))
    except ValueError:
        return ""
    if decoded[encoded.offset : end] != encoded.secret:
        return ""
    changed = decoded[: encoded.offset] + encoded.token + decoded[end:]
    base64 = b64encode(changed).decode()[: len(group)]
    around = text[max(begin - _AROUND_CHARS, 0) : begin + len(group) + _AROUND_CHARS]
    is_url_safe = ("-" in around or "_" in around) and not ("+" in around or "/" in around)
    return base64.translate(_TO_URL_SAFE) if is_url_safe else base64
