"""Short texts about JSON values, for reports, tables and logs."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET


def json_text(value: Any) -> str:
    """Return a value as JSON; UNSET is "nothing", and bytes stay as they are, JSON or not."""
    if value is UNSET:
        return "nothing"
    data = value if isinstance(value, bytes) else msgspec.json.encode(value)
    return data.decode(errors="backslashreplace")


def shortened(text: str, chars_max: int) -> str:
    """Return the text, cut and ended with an ellipsis if it is longer than `chars_max`."""
    return text if len(text) <= chars_max else f"{text[: chars_max - 1]}…"


def excerpts(left: str, right: str, *, chars_max: int) -> tuple[str, str]:
    """Return two texts, each cut to this length around the first character that differs."""
    pairs = zip(left, right, strict=False)
    shorter = min(len(left), len(right))
    same = next((at for at, (a, b) in enumerate(pairs) if a != b), shorter) if left != right else 0
    begin = max(min(same - chars_max // 3, max(len(left), len(right)) - chars_max), 0)
    cut: list[str] = []
    for text in (left, right):
        excerpt = text[begin : begin + chars_max]
        is_cut = begin + chars_max < len(text)
        cut.append(f"{'…' if begin else ''}{excerpt}{'…' if is_cut else ''}")
    return cut[0], cut[1]


def tool_text(result: Mapping[str, Any]) -> str:
    """Return the texts in a tool's result, joined."""
    try:
        return " ".join(str(item["text"]) for item in result["content"] if "text" in item)
    except (KeyError, TypeError):
        return ""
