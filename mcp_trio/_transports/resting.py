"""Waiting for bytes in such a way that somebody may wait for many at once."""

from collections.abc import Generator
from types import coroutine

import msgspec


class Resting(msgspec.Struct, eq=False, frozen=True):
    """What is to go on when there is something to read from `fd`, the end included."""

    fd: int


@coroutine
def rest(resting: Resting) -> Generator[Resting, None, None]:
    """Wait; only for what is driven by hand, by who knows this trap, and holds no scope open.

    It may be called back too early. What never goes on is closed.
    """
    yield resting
