"""How mistakes in a value are told: in short lines, each with its place, and not too many."""

import json
import re
from collections.abc import Sequence
from typing import Final

from mcp_trio._limits import Limits

_ODD_KEY: Final = re.compile(r"[^\w$@:/-]|\A\Z")


def step(key: str | int) -> str:
    """How a path goes on to a member, or to an item; keys come from the peer, and may be odd."""
    if isinstance(key, int):
        return f"[{key}]"
    return f"[{json.dumps(key)}]" if _ODD_KEY.search(key) else f".{key}"


def shown(lines: Sequence[str], limits: Limits) -> list[str]:
    """As many of the lines, and as much of each, as `limits` allow, and how many more there are.

    Nobody looks for more than `argument_error_members_max`, so there may be more than these.
    """
    kept = [it[: limits.argument_error_chars_max] for it in lines[: limits.argument_errors_max]]
    if len(lines) == len(kept):
        return kept
    least = "at least " if len(lines) >= limits.argument_error_members_max else ""
    return [*kept, f"and {least}{len(lines) - len(kept)} more"]
