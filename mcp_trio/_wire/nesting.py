"""How deeply a JSON text is nested, found without recursion."""

from itertools import accumulate
from typing import Final

_BRACKETS: Final = b"{[}]"
_NOT_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in _BRACKETS)
_STEPS: Final = bytes.maketrans(_BRACKETS, b"\x01\x01\xff\xff")


def is_deeper_than(depth_max: int, text: bytes) -> bool:
    """Whether `text` opens more than `depth_max` objects and arrays inside one another.

    Linear, and exact for JSON. In anything else it is exact up to the first error, which is as far
    as a parser gets, so no text makes the parser that follows recurse deeper than `depth_max`.
    """
    if len(text) <= depth_max or text.count(b"{") + text.count(b"[") <= depth_max:
        return False
    # Backslashes pair up from the left of their run, so what remains of them escapes a quote.
    unescaped = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    outside_strings = b"".join(unescaped.split(b'"')[::2])
    steps = outside_strings.translate(_STEPS, _NOT_BRACKETS)
    return any(map(depth_max.__lt__, accumulate(memoryview(steps).cast("b"))))
