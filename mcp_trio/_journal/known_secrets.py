"""What is known to be secret, wherever else it appears: as it is, encoded, or in two parts.

A value is found in a text as it stands, escaped for JSON, for a URL or for HTML, in base64 at any
of its three alignments, and at a text's end or beginning if a long part of it stands there, as when
it was sent in two chunks. Not found: three chunks or more, other encodings (such as hexadecimal,
or base64 in lines), what was computed from it, and what was written before the value was
known.
"""

import functools
import json
import math
import re
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterable, Iterator
from typing import Final
from urllib.parse import quote

import attrs
import msgspec

# --------------------
# The ways in which a text may write the characters of a value: as they are, or escaped.
#
# For JSON (however many texts deep), for a URL, for HTML or XML. Letters and digits of ASCII are
# always taken to stand for themselves.


_NEVER_ESCAPED: Final = re.compile(r"[A-Za-z0-9_.-]")
_ENTITIES: Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&apos;"}
_LETTERS: Final = {"\n": "n", "\r": "r", "\t": "t", "\b": "b", "\f": "f"}
_REMEMBERED_MAX: Final = 1024

# The last of several takes all that there are, but for that of an escape: there is one way only to
# share them out, so a long row of them is no long search.
_BACKSLASH: Final = r"\\"
_LAST_BACKSLASH: Final = r"\\+(?:(?!\\)|(?=\\[bfnrtu]))"


def pattern_of(value: str) -> re.Pattern[str]:
    """What matches a value in each of its writings; each of its characters is a group."""
    pairs = zip(value, (*value[1:], ""), strict=True)
    return re.compile("".join(f"({_writings(each, behind == each)})" for each, behind in pairs))


def rewritten(match: re.Match[str], value: str, token: str) -> list[tuple[str, str]]:
    """How a text writes each character of a value, and the token's in the same writing."""
    pieces = [
        (written, written if before == after else _written_alike(after, written))
        for written, before, after in zip(match.groups(), value, token, strict=False)
    ]
    pieces.append(("", token[len(value) :]))
    return pieces


@functools.lru_cache(_REMEMBERED_MAX)
def _writings(character: str, is_repeated: bool) -> str:  # noqa: FBT001  the cache's key
    if _NEVER_ESCAPED.fullmatch(character):
        return re.escape(character)
    percent = "".join(rf"%(?:25)*{byte:02x}" for byte in character.encode())
    units = character.encode("utf-16-be")
    escaped = "".join(rf"\\+u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
    code = ord(character)
    ways = [rf"(?i:{percent}|{escaped}|&#0*{code};|&#x0*{code:x};)"]
    if character in _ENTITIES:
        ways.append(_ENTITIES[character])
    if character in _LETTERS:
        ways.append(rf"\\+{_LETTERS[character]}")
    if character == " ":
        ways.append(r"\+")
    if character == "\\":
        ways.append(_BACKSLASH if is_repeated else _LAST_BACKSLASH)
    else:
        ways.append(rf"\\*{re.escape(character)}" if character.isascii() else character)
    return f"(?:{'|'.join(ways)})"


def _written_alike(character: str, model: str) -> str:
    """A character as another one is written."""
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


# A short word or number is a secret only where it stands alone: "test" is not in "latest".
_PLAIN_CHARS_MIN: Final = 8
_PART_CHARS_MIN: Final = 8
# A longer value is followed in pieces of this length.
_PIECE_CHARS_MAX: Final = 1024
_BASE64_BYTES_MIN: Final = 6
_PROBE_CHARS_MIN: Final = 3

# What no escape and no encoding of text changes.
_STEADY: Final = re.compile(r"[A-Za-z0-9_.-]+")

# What JSON may write in two ways although a probe contains it, and that in a text in a text.
_NEEDLESS: Final = re.compile(rb"\\(?:u00(?P<code>[2-7][0-9A-Fa-f])|(?P<itself>.))", re.DOTALL)
_NEEDLESS_INSIDE: Final = re.compile(rb"\\\\+(?:u00[2-7]|/)")

_BASE64: Final = re.compile(r"[A-Za-z0-9+/_-]+")
_BASE64_RUNS: Final = bytes(
    each if _BASE64.fullmatch(chr(each)) else ord(" ") for each in range(256)
)
_BASE64_PROBES_FEW: Final = 32
_TO_URL_SAFE: Final = str.maketrans("+/", "-_")
_FROM_URL_SAFE: Final = str.maketrans("-_", "+/")

# So far around it, base64 shows which alphabet it is in.
_AROUND_CHARS: Final = 64

# Behind how many bytes a secret stands, and the first character of its group that is all its own.
_FIRST_OWN: Final = {0: 0, 1: 2, 2: 3}


@attrs.frozen
class _Encoded:
    """Secret bytes as base64 shows them behind `offset` others; `own` is what shows only them."""

    own: str
    secret: bytes
    token: bytes
    offset: int


@attrs.define(eq=False)
class KnownSecret:
    """A value, or a piece of a long one, and what stands for it."""

    value: str
    token: str
    is_word: bool
    encoded: Collection[_Encoded]
    _pattern: re.Pattern[str] | None = None

    @property
    def pattern(self) -> re.Pattern[str]:
        """What matches the value; few values are ever looked for, so it is made when needed."""
        if self._pattern is None:
            self._pattern = pattern_of(self.value)
        return self._pattern


class KnownSecrets:
    """The values that are followed, and what stands for each."""

    def __init__(self) -> None:
        self._tokens: dict[str, str] = {}
        self._all: list[KnownSecret] = []
        self._without_probe: list[KnownSecret] = []
        self._by_probe: dict[bytes, list[KnownSecret]] = {}
        self._by_base64: dict[bytes, list[KnownSecret]] = {}
        self._base64_chars_min = math.inf

    def __len__(self) -> int:
        """How many values are followed."""
        return len(self._tokens)

    def add(self, value: str, token: str, *, is_certain: bool) -> None:
        """Follow a value; unless it `is_certain`, a short plain one only where it stands alone."""
        if value in self._tokens:
            return
        self._tokens[value] = token
        is_plain = value.isalpha() or value.isdigit()
        is_word = is_plain and len(value) < _PLAIN_CHARS_MIN and not is_certain
        for piece, its_token in _pieces(value, token):
            followed = KnownSecret(piece, its_token, is_word, _encoded(piece, its_token))
            self._all.append(followed)
            self._probe(followed)

    def token_of(self, value: str) -> str | None:
        """What stands for all of a text, if that is a value that is followed."""
        return self._tokens.get(value)

    def found_in(self, body: bytes) -> Collection[KnownSecret]:
        """The values that may stand in a JSON text; that no others do is certain."""
        if not self._all:
            return ()
        if b"\\u" in body or b"\\/" in body:
            body = _NEEDLESS.sub(_unescaped, body)
            if _NEEDLESS_INSIDE.search(body):
                return self._all
        found = [each for probe, each in self._by_probe.items() if probe in body]
        if self._may_hold_base64(body):
            found += [each for probe, each in self._by_base64.items() if probe in body]
        if not found:
            return self._without_probe
        return dict.fromkeys(
            followed for each in (*found, self._without_probe) for followed in each
        )

    def replaced(self, text: str, found: Collection[KnownSecret]) -> str:
        """The text with a token wherever one of these values was found."""
        edits: list[_Edit] = []
        for _, followed, is_token in self._longest_first(text, found):
            edits += _kept(text, followed) if is_token else _edits(text, followed, edits)
        if edits:
            text = _edited(text, edits)
        for followed in found:
            if _PART_CHARS_MIN < len(followed.value) == len(followed.token):
                text = _without_parts(text, followed.value, followed.token)
        for followed in found:
            for encoded in followed.encoded:
                if encoded.own in text:
                    text = _recoded(text, encoded)
        return text

    def _longest_first(
        self, text: str, found: Collection[KnownSecret]
    ) -> list[tuple[int, KnownSecret, bool]]:
        """The values to look for, and the tokens that stand there: no shorter value is in those."""
        rows = [(len(each.value), each, False) for each in found]
        rows += [(len(each.token), each, True) for each in self._all if each.token in text]
        return sorted(rows, key=lambda row: row[0], reverse=True)

    def _probe(self, followed: KnownSecret) -> None:
        value = followed.value
        ends = {value[:_PART_CHARS_MIN], value[-_PART_CHARS_MIN:]}
        probes = {max(_STEADY.findall(end), key=len, default="") for end in ends}
        if min(map(len, probes)) < min(_PROBE_CHARS_MIN, len(value)):
            self._without_probe.append(followed)
            return
        for probe in probes:
            self._by_probe.setdefault(probe.encode(), []).append(followed)
        for encoded in followed.encoded:
            self._by_base64.setdefault(encoded.own.encode(), []).append(followed)
            self._base64_chars_min = min(self._base64_chars_min, len(encoded.own))

    def _may_hold_base64(self, body: bytes) -> bool:
        """Whether so much of it stands together; with few values that is not worth the look."""
        if len(self._by_base64) <= _BASE64_PROBES_FEW:
            return True
        runs = body.translate(_BASE64_RUNS).split()
        return max(map(len, runs), default=0) >= self._base64_chars_min


_Edit = tuple[int, int, str]


def _unescaped(match: re.Match[bytes]) -> bytes:
    if match["code"]:
        code = int(match["code"], 16)
        return match[0] if chr(code) in '"\\' else bytes([code])
    return b"/" if match["itself"] == b"/" else match[0]


def _pieces(value: str, token: str) -> Iterator[tuple[str, str]]:
    """A value and its token; of a long one, pieces that cover it."""
    if len(value) <= _PIECE_CHARS_MAX or len(value) != len(token):
        yield value, token
        return
    begins = range(0, len(value) - _PIECE_CHARS_MAX, _PIECE_CHARS_MAX)
    for begin in (*begins, len(value) - _PIECE_CHARS_MAX):
        piece = slice(begin, begin + _PIECE_CHARS_MAX)
        yield value[piece], token[piece]


def _encoded(value: str, token: str) -> list[_Encoded]:
    """The value in base64, also of a JSON text."""
    found: dict[str, _Encoded] = {}
    for write in (str, _in_json, _in_ascii_json):
        secret = write(value).encode()
        token_bytes = write(token).encode().ljust(len(secret), b"0")[: len(secret)]
        for offset, begin in _FIRST_OWN.items() if len(secret) >= _BASE64_BYTES_MIN else ():
            shown = b64encode(bytes(offset) + secret + bytes(2)).decode()
            own = shown[begin : (offset + len(secret)) * 8 // 6]
            for each in (own, own.translate(_TO_URL_SAFE)):
                found.setdefault(each, _Encoded(each, secret, token_bytes, offset))
    return list(found.values())


def _in_json(text: str) -> str:
    return msgspec.json.encode(text).decode()[1:-1]


def _in_ascii_json(text: str) -> str:
    return json.dumps(text)[1:-1]


def _kept(text: str, followed: KnownSecret) -> list[_Edit]:
    token = re.escape(followed.token)
    return [(*match.span(), match[0]) for match in re.finditer(token, text)]


def _edits(text: str, followed: KnownSecret, others: Collection[_Edit]) -> list[_Edit]:
    """What to put where a value stands, as far as it is not within the other edits."""
    edits: list[_Edit] = []
    for match in followed.pattern.finditer(text):
        begin, end = match.span()
        is_whole = not followed.is_word or _stands_alone(match)
        if not is_whole or (begin == 0 and text.startswith("://", end)):
            continue
        pieces = rewritten(match, followed.value, followed.token)
        if any(_overlap((begin, end), other) for other in others):
            for written, again in pieces:
                span = (begin, begin := begin + len(written))
                if written and not any(_overlap(span, other) for other in others):
                    edits.append((*span, again))
        else:
            edits.append((begin, end, "".join(again for _, again in pieces)))
    return edits


def _stands_alone(match: re.Match[str]) -> bool:
    before = match.string[match.start() - 1 : match.start()]
    return not before.isalnum() and not match.string[match.end() : match.end() + 1].isalnum()


def _overlap(span: tuple[int, int], other: _Edit) -> bool:
    return span[0] < other[1] and other[0] < span[1]


def _edited(text: str, edits: Iterable[_Edit]) -> str:
    pieces: list[str] = []
    copied = 0
    for begin, end, again in sorted(edits):
        pieces += (text[copied:begin], again)
        copied = max(copied, end)
    return "".join((*pieces, text[copied:]))


def _without_parts(text: str, value: str, token: str) -> str:
    """The text without a part of the value at its end and at its beginning.

    Where both could be the same characters, as in `123412`, they are of the longer one.
    """
    first, last = token[len(token) - _begun(text, value) :], token[: _ended(text, value)]
    shared = max(len(first) + len(last) - len(text), 0)
    if len(first) > len(last):
        last = last[shared:]
    else:
        first = first[: len(first) - shared]
    return first + text[len(first) : len(text) - len(last)] + last


def _begun(text: str, value: str) -> int:
    """How much of the value's end the text begins with; a short part is none."""
    if value[-_PART_CHARS_MIN:] not in text:
        return 0
    return next((size for size in _part_sizes(value) if text.startswith(value[-size:])), 0)


def _ended(text: str, value: str) -> int:
    """How much of the value's beginning the text ends with; a short part is none."""
    if value[:_PART_CHARS_MIN] not in text:
        return 0
    return next((size for size in _part_sizes(value) if text.endswith(value[:size])), 0)


def _part_sizes(value: str) -> range:
    return range(len(value) - 1, _PART_CHARS_MIN - 1, -1)


def _recoded(text: str, encoded: _Encoded) -> str:
    """The text with the token wherever the secret was in base64."""
    pieces: list[str] = []
    copied = 0
    at = text.find(encoded.own)
    while at >= 0:
        begin = at - _FIRST_OWN[encoded.offset]
        group = _recoded_group(text, begin, encoded) if begin >= copied else ""
        if group:
            pieces += (text[copied:begin], group)
            copied = begin + len(group)
        at = text.find(encoded.own, at + 1)
    return "".join((*pieces, text[copied:]))


def _recoded_group(text: str, begin: int, encoded: _Encoded) -> str:
    """The base64 that stands there, with the token for the secret; empty if that is not in it."""
    end = encoded.offset + len(encoded.secret)
    run = _BASE64.match(text, begin, begin - (-end // 3) * 4)
    group = run[0] if run else ""
    try:
        shown = b64decode(group.translate(_FROM_URL_SAFE) + "=" * (-len(group) % 4))
    except ValueError:
        return ""
    if shown[encoded.offset : end] != encoded.secret:
        return ""
    changed = shown[: encoded.offset] + encoded.token + shown[end:]
    again = b64encode(changed).decode()[: len(group)]
    around = text[max(begin - _AROUND_CHARS, 0) : begin + len(group) + _AROUND_CHARS]
    is_url_safe = ("-" in around or "_" in around) and not ("+" in around or "/" in around)
    return again.translate(_TO_URL_SAFE) if is_url_safe else again
