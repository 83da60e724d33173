"""Lines of text about the errors in a value: the paths in them, and their limits."""

import re
from collections.abc import Sequence
from typing import Final

from mcp_trio.limits import Limits

_UNUSUAL_KEY: Final = re.compile(r"[^\w$@:/-]|\A\Z")


def path_step(key: str | int) -> str:
    """Return the text of one step in a path: `.key`, `["unusual key"]` or `[index]`."""
    if isinstance(key, int):
        return f"[{key}]"
    if not _UNUSUAL_KEY.search(key):
        return f".{key}"
    import json  # Such keys are rare, and a server starts without it.

    return f"[{json.dumps(key)}]"


def shortened(lines: Sequence[str], limits: Limits, count: int | None = None) -> list[str]:
    """Return the first lines, cut to their maximal length, and a line that counts the others.

    `count` is the number of errors, if there are more than lines. Callers stop searching at
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
