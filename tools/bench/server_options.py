"""Command-line options of the Python servers, and the count of their function calls.

Times move by a factor of two on a shared machine; the number of function calls, Python and built-in
ones, counted by the interpreter, is stable to about one per cent.
"""

import argparse
import sys
from types import FrameType
from typing import Any, Final

COUNTED: Final = frozenset({"call", "c_call"})

_count = 0


def options_parser() -> argparse.ArgumentParser:
    """Return a parser of the options that all servers have."""
    parser = argparse.ArgumentParser(description="Serve the benchmark: over stdio by default.")
    parser.add_argument("--tools", type=int, default=0, help="so many tools more")
    parser.add_argument("--count-calls", action="store_true")
    parser.add_argument("--port", type=int, help="serve over HTTP at this port")
    parser.add_argument("--form", choices=["json", "sse", "stateless"], help="of HTTP answers")
    return parser


def count_function_calls() -> None:
    """Start counting this thread's function calls."""
    sys.setprofile(_profile)


async def function_calls() -> int:
    """Return the number of function calls so far."""
    return _count


def _profile(_frame: FrameType, event: str, _argument: Any) -> None:
    global _count  # noqa: PLW0603  a holder would have to be looked up at each call
    if event in COUNTED:
        _count += 1
