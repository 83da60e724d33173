"""Several mistakes in one value, told by whoever read it, and how a place inside of it is named."""

import json
import re
from collections.abc import Sequence
from typing import Final

_ODD_KEY: Final = re.compile(r"[^\w$@:/-]|\A\Z")


class Faults(ValueError):  # noqa: N818 - one error, many faults
    """All that is wrong with one value, as pairs of a path inside of it and a text."""

    def __init__(self, faults: Sequence[tuple[str, str]]) -> None:
        path, text = faults[0]
        super().__init__(f"{text} - at `${path}`" if path else text)
        self.faults = faults


def step(key: str | int) -> str:
    """How a path goes on to a member, or to an item; keys come from the peer, and may be odd."""
    if isinstance(key, int):
        return f"[{key}]"
    return f"[{json.dumps(key)}]" if _ODD_KEY.search(key) else f".{key}"
