"""Rules that take places out of a comparison: `$.result.content[*].text`."""

import re
from collections.abc import Collection
from typing import Any, Final

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
        """Whether these two values at `path` count as the same."""
        if self._matches(path):
            return True
        if not isinstance(recorded, str) or not isinstance(live, str):
            return False
        if path.endswith(_OWN_ENDS):
            return True
        return _TIME.fullmatch(recorded) is not None and _TIME.fullmatch(live) is not None


def _pattern(rule: str) -> str:
    return "".join(_ANY.get(step) or re.escape(step) for step in _STEP.findall(rule))
