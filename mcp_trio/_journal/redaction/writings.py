"""The ways in which a text may write the characters of a value: as they are, or escaped.

For JSON (however many texts deep), for a URL, for HTML or XML. Letters and digits of ASCII are
always taken to stand for themselves.
"""

import functools
import re
from typing import Final
from urllib.parse import quote

_STEADY: Final = re.compile(r"[A-Za-z0-9_.-]")
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
    if _STEADY.fullmatch(character):
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
    if _STEADY.fullmatch(character) or len(model) == 1:
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
