"""The lines that tell a peer what is wrong in a value: paths into the value, and their bounds."""

import json
import re
from collections.abc import Sequence
from typing import Final

from mcp_trio.limits import Limits

_UNUSUAL_KEY: Final = re.compile(r"[^\w$@:/-]|\A\Z")


def path_step(key: str | int) -> str:
    """Return the notation for a member or an item in a path; keys come from the peer."""
    if isinstance(key, int):
        return f"[{key}]"
    return f"[{json.dumps(key)}]" if _UNUSUAL_KEY.search(key) else f".{key}"


def shortened(lines: Sequence[str], limits: Limits, count: int | None = None) -> list[str]:
    """Return as many lines, and as much of each, as `limits` allow, and the number of the others.

    There are `count` errors, of which callers may give fewer lines. They stop searching at
    `limits.messages.validation_error_members_max` errors, so there may be even more.
    """
    count = len(lines) if count is None else count
    kept = [
        it[: limits.messages.validation_error_chars_max]
        for it in lines[: limits.messages.validation_errors_max]
    ]
    if count == len(kept):
        return kept
    least = "at least " if count >= limits.messages.validation_error_members_max else ""
    return [*kept, f"and {least}{count - len(kept)} more"]
