"""What looks like a secret: by its name, by the shape that its kind has, or by its disorder.

Only likely: it finds what nobody named, and at times what is none.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final, cast

import msgspec

from mcp_trio._journal.frames import step_to
from mcp_trio._journal.redaction.names import DEFAULT_SECRET_NAMES, SecretNames
from mcp_trio._journal.redaction.shapes import shaped
from mcp_trio._journal.redaction.texts import without_named

# Longer runs are data (an image), shorter ones words.
_RUN: Final = re.compile(r"(?<![\w+/=-])[A-Za-z0-9+/_-]{24,128}={0,2}(?![\w+/=-])")
_ENTROPY_BITS_MIN: Final = 4.2
_CLASSES: Final = tuple(map(re.compile, ("[a-z]", "[A-Z]", "[0-9]")))

# Members of the protocol that hold bytes in base64; the data of a log message are none.
_BINARY: Final = (".data", ".blob")
_LOGGED: Final = "$.params.data"

# What a server knows a retry by is drawn or sealed, and worth nothing when the session is over.
_STATES: Final = frozenset({"$.result.requestState", "$.params.requestState"})
_DRAWN_STATE: Final = "parked."

_NAMES: Final = SecretNames(DEFAULT_SECRET_NAMES)


class LikelySecret(msgspec.Struct, frozen=True):
    """Where in a JSON text something looks like a secret, what it looks like, and what it is."""

    path: str
    kind: str
    value: str


def likely_secrets(body: bytes) -> list[LikelySecret]:
    """What looks like a secret in a body, in its order; a body that is no JSON is one text."""
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
    """The path, the name and the text of each text and number."""
    open_values: list[tuple[str, str, Any]] = [("$", "", value)]
    while open_values:
        path, name, each = open_values.pop()
        if isinstance(each, dict):
            members = cast("dict[str, Any]", each).items()
            rows = [(path + step_to(key), key, inner) for key, inner in members]
            open_values += reversed(rows)
        elif isinstance(each, list):
            items = cast("list[Any]", each)  # type: ignore[redundant-cast]  # pyright needs it
            rows = [(f"{path}[{at}]", name, item) for at, item in enumerate(items)]
            open_values += reversed(rows)
        elif isinstance(each, str | int | float) and not isinstance(each, bool):
            yield path, name, str(each)


def _found(path: str, name: str, text: str) -> dict[str, str]:
    """What is found in a text, each value once, by the first that finds it."""
    found = {text[begin:end]: kind for kind, begin, end in shaped(text)}

    def note(value: str) -> str:
        found.setdefault(value, "named so")
        return value

    if text and _NAMES.covers(name):
        note(text)
    without_named(text, _NAMES, note)
    if not found and not _is_disorderly_by_nature(path, text):
        found = {run: "disorder" for run in _RUN.findall(text) if _is_disorderly(run)}
    return found


def _is_disorderly_by_nature(path: str, text: str) -> bool:
    is_state = path in _STATES or text.startswith(_DRAWN_STATE)
    return is_state or (path.endswith(_BINARY) and path != _LOGGED)


def _is_disorderly(run: str) -> bool:
    if not all(each.search(run) for each in _CLASSES):
        return False
    shares = [number / len(run) for number in Counter(run).values()]
    return -sum(share * math.log2(share) for share in shares) >= _ENTROPY_BITS_MIN
