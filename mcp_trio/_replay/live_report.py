"""The report of the differences between a live server and a recorded one."""

import re
from collections.abc import Collection
from itertools import takewhile
from typing import Any, Final, Literal

import attrs
import msgspec
from msgspec import UNSET

# --------------------
# Rules that take places out of a comparison: `$.result.content[*].text`.


_STEP: Final = re.compile(r"\[\*\]|\.\*|.", re.DOTALL)
_ANY: Final = {"[*]": r"\[[0-9]+\]", ".*": r"(?:\.[A-Za-z0-9_$]+|\[\"[^\"]*\"\])"}

# A server's own affair: the client hands these back as they are, or hears of them again.
_OWN_ENDS: Final = (".nextCursor", ".requestState", ".elicitationId")

_TIME: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}([.,][0-9]+)?)?"
    r"(Z|[+-][0-9]{2}:?[0-9]{2})?"
)


class IgnoreRules:
    """Says which places do not count.

    A rule is a JSON path; `[*]` stands for any item, `.*` for any member, and everything below
    such a place is meant as well. Never count: cursors, the states of requests, the ids of visits,
    and texts that are both a time in ISO 8601.

    Raises:
        ValueError: A rule that does not begin with `$`.
    """

    def __init__(self, rules: Collection[str] = ()) -> None:
        for rule in rules:
            if not rule.startswith("$"):
                raise ValueError(f"{rule!r} is no path: it begins with $, as $.result.content")
        alternatives = "|".join(map(_pattern, rules)) or "(?!)"
        self._matches = re.compile(rf"(?:{alternatives})(?:[.\[].*)?", re.DOTALL).fullmatch

    def ignores(self, path: str, recorded: Any, live: Any) -> bool:
        """Return whether these two values at `path` count as the same."""
        if self._matches(path):
            return True
        if not isinstance(recorded, str) or not isinstance(live, str):
            return False
        if path.endswith(_OWN_ENDS):
            return True
        return _TIME.fullmatch(recorded) is not None and _TIME.fullmatch(live) is not None


def _pattern(rule: str) -> str:
    return "".join(_ANY.get(step) or re.escape(step) for step in _STEP.findall(rule))


_VALUE_CHARS_MAX: Final = 100
_SAME_CHARS_MAX: Final = 20

What = Literal["changed", "missing", "extra", "late", "lost"]


class InputDifference(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a live server did otherwise than the recorded one.

    `what` is "changed" (at `path`, from `recorded` to `live`), "missing" (was recorded), "extra"
    (was not), "late" (no answer in time) or "lost" (the connection ended, or only that of one
    request; `live` says why).
    `about` says what it is about, `record` is the number of the recorded message if there is one.
    """

    what: What
    about: str
    record: int | None = None
    path: str = ""
    recorded: Any = UNSET
    live: Any = UNSET

    def __str__(self) -> str:
        """One line."""
        place = "" if self.record is None else f" (record {self.record})"
        return f"{self.what} {self.about}{place}{_DETAILS.get(self.what, _no_detail)(self)}"


def _no_detail(_: InputDifference) -> str:
    return ""


def _change(difference: InputDifference) -> str:
    recorded, live = value_texts(difference)
    return f": {difference.path}: {recorded} -> {live}"


def _reason(difference: InputDifference) -> str:
    return f": {difference.live}"


_DETAILS: Final = {"changed": _change, "lost": _reason}


def value_texts(difference: InputDifference) -> tuple[str, str]:
    """What was recorded and what is live, each on one line; long ones from where they part."""
    recorded, live = (_whole_text(each) for each in (difference.recorded, difference.live))
    if max(len(recorded), len(live)) <= _VALUE_CHARS_MAX:
        return recorded, live
    pairs = zip(recorded, live, strict=False)
    same_chars = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    begin = max(0, same_chars - _SAME_CHARS_MAX)
    return _cut(recorded, begin), _cut(live, begin)


def value_text(value: Any) -> str:
    """A JSON value on one line, cut if it is long; "nothing" where there is none."""
    return _cut(_whole_text(value), 0)


def _whole_text(value: Any) -> str:
    return "nothing" if value is UNSET else msgspec.json.encode(value).decode()


def _cut(text: str, begin: int) -> str:
    end = begin + _VALUE_CHARS_MAX
    return f"{'…' if begin else ''}{text[begin:end]}{'…' if end < len(text) else ''}"


@attrs.frozen(kw_only=True)
class InputsReport:
    """What became of the recorded requests at a live server.

    `ignored` counts the places that differ and do not count, `unsent` what the recorded client
    said and could not be said again (the server did not ask, or was gone), and `unreadable` the
    recorded frames that are no messages, which are not sent.
    """

    requests: int
    answered: int
    differences: tuple[InputDifference, ...]
    ignored: int
    unsent: int
    unreadable: int

    @property
    def is_same(self) -> bool:
        """Return whether nothing differs that counts."""
        return not self.differences

    @property
    def summary(self) -> str:
        """One line about all of it."""
        count = len(self.differences)
        numbers = {
            "ignored": self.ignored,
            "messages of the client unsent": self.unsent,
            "recorded frames unreadable": self.unreadable,
        }
        parts = [
            f"{count or 'no'} difference{'' if count == 1 else 's'}",
            f"{self.answered} of {self.requests} requests answered",
            *(f"{number} {text}" for text, number in numbers.items() if number),
        ]
        return ", ".join(parts)

    def __str__(self) -> str:
        """A line for each difference, and the summary."""
        return "\n".join([*map(str, self.differences), self.summary])
