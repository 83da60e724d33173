"""How deeply a JSON text is nested, found without recursion."""

from itertools import accumulate
from typing import Final

_BRACKETS: Final = b"{[}]"
_STEPS: Final = bytes.maketrans(_BRACKETS, b"\x01\x01\xff\xff")
_NOT_MARKS: Final = bytes(byte for byte in range(256) if byte not in _BRACKETS + b'"')

# Each round takes one level off, two at most; few messages have more levels than that.
_ROUNDS: Final = 8

# A round that takes less than this part away costs more than it is worth.
_SHARE: Final = 8


def is_deeper_than(depth_max: int, text: bytes) -> bool:
    """Whether `text` opens more than `depth_max` objects and arrays inside one another.

    Linear, and exact for JSON. In anything else it is exact up to the first error, which is as far
    as a parser gets, so no text makes the parser that follows recurse deeper than `depth_max`.
    """
    if _has_at_most(depth_max // 2, b"{", text) and _has_at_most(depth_max // 2, b"[", text):
        return False
    brackets = _brackets(text)
    return not _is_shallow(brackets, depth_max // 2) and _depth_exceeds(depth_max, brackets)


def _has_at_most(number: int, byte: bytes, text: bytes) -> bool:
    """Whether `byte` occurs so seldom; `find` skips at the speed of memory, `count` does not."""
    at = -1
    for _ in range(number + 1):
        at = text.find(byte, at + 1)
        if at < 0:
            return True
    return False


def _brackets(text: bytes) -> bytes:
    """The brackets outside of strings."""
    if b"\\" in text:
        # Backslashes pair up from the left of their run, so what remains of them escapes a quote.
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = text.translate(None, _NOT_MARKS)
    # A string without brackets is two quotes side by side. Where one has a bracket, an odd number
    # of quotes stands before that, so at least one of them is left.
    outside = marks.replace(b'""', b"")
    return b"".join(marks.split(b'"')[::2]) if b'"' in outside else outside


def _is_shallow(brackets: bytes, rounds_max: int) -> bool:
    """Whether taking innermost pairs away, a few times, leaves nothing."""
    for _ in range(min(_ROUNDS, rounds_max)):
        before = len(brackets)
        brackets = brackets.replace(b"{}", b"").replace(b"[]", b"")
        if before - len(brackets) < before // _SHARE:
            break
    return not brackets


def _depth_exceeds(depth_max: int, brackets: bytes) -> bool:
    steps = brackets.translate(_STEPS)
    return any(map(depth_max.__lt__, accumulate(memoryview(steps).cast("b"))))
