"""External calls of generated handlers, whose results are never the same twice.

A replay that asked it again would be found out at once. It runs while a session is recorded, and
then never more.
"""

import random
import time
from datetime import UTC, datetime

import attrs
import msgspec
import trio

from mcp_trio import effect


class BrokenDownError(Exception):
    """An error of people's own."""


class Reading(msgspec.Struct):
    """A result with types that JSON has no words for."""

    at: datetime
    value: float
    tags: set[str]


@attrs.define
class Database:
    """What the lifespan holds: only effects may look inside."""

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
    """An effect by `ctx.effect`."""
    await _dawdle(amount)
    tags = {f"tag {random.randrange(100)}" for _ in range(3)}
    return Reading(at=datetime.now(UTC), value=random.random(), tags=tags)


def weigh(amount: int) -> int:
    """A plain function as an effect: it runs in place, or in the handler's own thread."""
    return amount + random.randrange(1000)


def crunch(amount: int, *, base: int = 10) -> str | None:
    """An effect for a thread."""
    time.sleep(random.random() * amount / 1000)
    return random.choice((None, f"{random.randrange(base**6)}"))


async def break_down(amount: int) -> None:
    """An effect that fails after a while."""
    await _dawdle(amount)
    raise _some_error()


def break_down_at_once(amount: int) -> int:
    """An effect that fails, sometimes."""
    if random.random() < 0.7:
        raise _some_error()
    return amount


async def query(database: Database, amount: int) -> dict[str, int]:
    """An effect on what the lifespan holds."""
    await _dawdle(amount)
    database.rows += random.randrange(3)
    return {"rows": database.rows}


@effect
async def fetch_tags(amount: int) -> set[str]:
    """An effect by its decorator."""
    await _dawdle(amount)
    return {f"tag {random.randrange(100)}" for _ in range(amount)}


@effect
def roll(sides: int) -> int:
    """A plain function as an effect by its decorator."""
    return random.randrange(sides)
