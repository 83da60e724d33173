"""External calls of generated handlers, whose results differ each time.

A replay that repeated a call would be noticed at once.
"""

import random
import time
from datetime import UTC, datetime

import attrs
import msgspec
import trio

from mcp_trio import effect


class BrokenDownError(Exception):
    """A user's own error."""


class Reading(msgspec.Struct):
    """A result with types that JSON does not have."""

    at: datetime
    value: float
    tags: set[str]


@attrs.define
class Database:
    """The lifespan's object, which only effects use."""

    rows: int = 0


def _some_error() -> Exception:
    errors = (
        ValueError("no such value"),
        OSError(5, "the disk is tired"),
        KeyError("key"),
        BrokenDownError("twice", 2),
    )
    return random.choice(errors)


async def _dawdle(amount: int) -> None:
    await trio.sleep(random.random() * amount / 1000)


async def measure(amount: int) -> Reading:
    await _dawdle(amount)
    tags = {f"tag {random.randrange(100)}" for _ in range(3)}
    return Reading(at=datetime.now(UTC), value=random.random(), tags=tags)


def weigh(amount: int) -> int:
    return amount + random.randrange(1000)


def crunch(amount: int, *, base: int = 10) -> str | None:
    time.sleep(random.random() * amount / 1000)
    return random.choice((None, f"{random.randrange(base**6)}"))


async def break_down(amount: int) -> None:
    """Fail after a while."""
    await _dawdle(amount)
    raise _some_error()


def break_down_at_once(amount: int) -> int:
    """Fail sometimes."""
    if random.random() < 0.7:
        raise _some_error()
    return amount


async def query(database: Database, amount: int) -> dict[str, int]:
    await _dawdle(amount)
    database.rows += random.randrange(3)
    return {"rows": database.rows}


@effect
async def fetch_tags(amount: int) -> set[str]:
    await _dawdle(amount)
    return {f"tag {random.randrange(100)}" for _ in range(amount)}


@effect
def roll(sides: int) -> int:
    return random.randrange(sides)
