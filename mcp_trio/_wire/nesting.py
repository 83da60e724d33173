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
    if _has_at_most(depth_max // 2, b"{", text) and _has_at_most(depth_max // 2, b"[", text):
        return False
    # Backslashes pair up from the left of their run, so what remains of them escapes a quote.
    unescaped = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    outside_strings = b"".join(unescaped.split(b'"')[::2])
    steps = outside_strings.translate(_STEPS, _NOT_BRACKETS)
    return any(map(depth_max.__lt__, accumulate(memoryview(steps).cast("b"))))


def _has_at_most(number: int, byte: bytes, text: bytes) -> bool:
    """Whether `byte` occurs so seldom; `find` skips at the speed of memory, `count` does not."""
    at = -1
    for _ in range(number + 1):
        at = text.find(byte, at + 1)
        if at < 0:
            return True
    return False
