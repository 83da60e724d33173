"""How many functions a server calls, Python and built-in ones, counted by the interpreter.

Times move by a factor of two on a shared machine; this figure is stable to about one per cent.
"""

import sys
from types import FrameType
from typing import Any, Final

COUNTED: Final = frozenset({"call", "c_call"})

_count = 0


def watch() -> None:
    """Start counting this thread's function calls."""
    sys.setprofile(_profile)


async def count() -> int:
    """Return the number of function calls so far."""
    return _count


def _profile(_frame: FrameType, event: str, _argument: Any) -> None:
    global _count  # noqa: PLW0603  a holder would have to be looked up at each call
    if event in COUNTED:
        _count += 1
