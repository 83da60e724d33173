"""Secrets that a text gives away itself: by a name beside them, in an address, by their shape.

The text may be anything: a query, the end of a log, source code, JSON that is only part of it. What
is not certainly the end of a secret is taken as part of it: better too much than too little.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final
from urllib.parse import quote, unquote

from mcp_trio._journal.redaction.names import SecretNames
from mcp_trio._journal.redaction.shapes import shaped

Hide = Callable[[str], str]
_Span = tuple[int, int]

# A shorter text gives nothing away.
_CHARS_MIN: Final = 4

# A name that a percent escape may stand in front of, and the brackets and quotes that close it.
_NAME: Final = r"(?<![\w.$-])(?:(?<=%)[0-9A-Fa-f]{2})?+(?P<name>[\w.$-]{2,128}+)"
_CLOSED: Final = r"(?:\\*+[\"'`\]]|%5[Dd]|%2[27])*+"
_PLAIN: Final = r"[^\s&;\"'`<>\\]"
# Not what closes the brackets around it, or ends a sentence.
_END: Final = r"(?<![,.)\]}])"
# What may stand in front of a quote and be no part of what is quoted, as in Python.
_PREFIX: Final = r"[bBfFrRuU]"


class _Named:
    """A way to give a secret a name: what stands before the secret, and the secret.

    The secret is only looked for behind a secret's name: texts may be long, and full of names.
    """

    def __init__(self, head: str, secret: str, flags: re.RegexFlag = re.NOFLAG) -> None:
        self._head = re.compile(head, flags)
        self._whole = re.compile(f"{head}(?P<secret>{secret})", flags)

    def spans(self, text: str, names: SecretNames) -> Iterator[_Span]:
        """Where secrets stand in a text; also one in what is none: `note = "password='…'"`."""
        at = 0
        while head := self._head.search(text, at):
            is_secret = names.covers(head["name"])
            whole = self._whole.match(text, head.start()) if is_secret else None
            if whole:
                yield whole.span("secret")
            at = whole.end() if whole else head.end()


# {"password": "…"}  password='…'  config["password"] = "…"
_QUOTED: Final = _Named(
    rf"{_NAME}{_CLOSED}\s*+[:=]+>?\s*+{_PREFIX}{{0,2}}(?P<quote>\\*+[\"'`])",
    r"(?:(?!(?<!\\)(?P=quote)).)+",
    re.DOTALL,
)
# "otp": 4711
_NUMBER: Final = _Named(rf"{_NAME}\\*+[\"']\s*+:\s*+", r"-?[0-9]+(?:\.[0-9]+)?")
# ?token=…  PASSWORD=…  user[password]=…
_ASSIGNED: Final = _Named(
    rf"{_NAME}{_CLOSED}=(?!=)", rf"(?!{_PREFIX}{{1,2}}\\*+[\"'`]){_PLAIN}+{_END}"
)
# …%3Ftoken%3D…%26…
_NESTED: Final = _Named(rf"{_NAME}{_CLOSED}%3[dD]", rf"(?:(?!%26){_PLAIN})+{_END}")
# A line of a file of settings, or a header.
_LINE: Final = _Named(
    rf"^[ \t>*#-]*+(?:(?:export|set)[ \t]+)?{_NAME}{_CLOSED}(?::[ \t]*|[ \t]+=[ \t]*)",
    r"[^\s\"'\[{|&*>=:][^\r\n]*",
    re.MULTILINE,
)
# The password: …
_SAID: Final = _Named(rf"{_NAME}{_CLOSED}: +", rf"(?=\S*[0-9]){_PLAIN}+{_END}")
# --password …
_FLAG: Final = _Named(
    r"(?<!\S)(?P<name>--?[A-Za-z][\w-]*+)[ \t]+", r"[^\s\"'-]\S*|\"[^\"]+\"|'[^']+'"
)
# <password>…</password>
_ELEMENT: Final = _Named(rf"<(?:[\w-]+:)?{_NAME}(?:\s[^<>]*+)?>", r"[^<>]+(?=</)")
# A field of a form with several parts.
_FIELD: Final = _Named(
    r"form-data;[^\r\n]*?\bname=\"?(?P<name>[^\"\r\n;]{1,128})[^\r\n]*\r?\n"
    r"(?:[^\r\n]+\r?\n)*+\r?\n",
    r"[^\r\n]+",
)
_CREDENTIALS: Final = re.compile(
    r"\b(?:[Bb]earer|[Bb]asic) +(?P<secret>(?=\S*[0-9=]|\S{20})[A-Za-z0-9._~+/=-]{8,})"
)
_ADDRESS: Final = re.compile(r"://[^\s/:@]*:(?P<secret>[^\s/]+)@")

# What finds a secret whose name is one, and what finds one without, by what stands in the text.
_NAMED: Final[Mapping[str, tuple[_Named, ...]]] = {
    '"': (_QUOTED, _NUMBER),
    "'": (_QUOTED, _NUMBER),
    "`": (_QUOTED,),
    "=": (_ASSIGNED, _LINE),
    ":": (_LINE,),
    ": ": (_SAID,),
    "%3": (_NESTED,),
    "-": (_FLAG, _FIELD),
    "</": (_ELEMENT,),
}
_NAMELESS: Final = {"earer ": _CREDENTIALS, "asic ": _CREDENTIALS, "://": _ADDRESS}


def gives_away(text: str, names: SecretNames) -> bool:
    """Whether a text gives a secret away, or may do so in escapes; no is certain."""
    return len(text) >= _CHARS_MIN and ("\\u" in text or any(_spans(text, names)))


def without_named(text: str, names: SecretNames, hide: Hide) -> str:
    """The text with `hide` of each secret that it gives away.

    Of two that overlap, both are hidden as one, but each is shown to `hide`.
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
    for sign, ways in _NAMED.items():
        if sign in text:
            for way in ways:
                yield from way.spans(text, names)
    for sign, pattern in _NAMELESS.items():
        if sign in text:
            yield from (match.span("secret") for match in pattern.finditer(text))
    yield from ((begin, end) for _, begin, end in shaped(text))


def _joined(spans: Iterable[_Span]) -> Iterator[tuple[int, int, list[_Span]]]:
    """Spans that overlap as one, with its parts; one that is whole has none."""
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
    """What stands for a secret that may be quoted or percent-encoded; written alike, if so."""
    if secret[0] == secret[-1] and secret[0] in "\"'" and secret[1:-1]:
        return secret[0] + _hidden(secret[1:-1], hide) + secret[0]
    plain = unquote(secret)
    return hide(secret) if plain == secret else quote(hide(plain), safe="")
