"""A Trio run whose tasks take turns as a seed says: the one use of what Trio keeps for its tests.

Trio shuffles tasks that are ready at the same moment, and has no public way to say how. What its
own tests use for that is used here and nowhere else.
"""

import random
from collections.abc import Generator
from contextlib import contextmanager
from types import ModuleType
from typing import Final

import trio

_FLAG: Final = "_ALLOW_DETERMINISTIC_SCHEDULING"


@contextmanager
def seeded_schedule(seed: int | str) -> Generator[None]:
    """The `trio.run` inside the block takes its tasks in an order that `seed` decides.

    It holds for this process, not for other threads of it; afterwards all is as it was.

    Raises:
        RuntimeError: This Trio has no such flag any more.
    """
    scheduler, dice = _scheduler()
    flag, state = getattr(scheduler, _FLAG), dice.getstate()
    setattr(scheduler, _FLAG, True)
    dice.seed(seed)
    try:
        yield
    finally:
        setattr(scheduler, _FLAG, flag)
        dice.setstate(state)


def _scheduler() -> tuple[ModuleType, random.Random]:
    scheduler = getattr(getattr(trio, "_core", None), "_run", None)
    dice = getattr(scheduler, "_r", None)
    if not (isinstance(dice, random.Random) and hasattr(scheduler, _FLAG)):
        text = f"Trio {trio.__version__} cannot be told by a seed in which order tasks run"
        raise RuntimeError(text)
    assert isinstance(scheduler, ModuleType)
    return scheduler, dice
