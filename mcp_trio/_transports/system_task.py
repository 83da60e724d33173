"""Tasks of our own that are in nobody's nursery, and out of which nothing but `Cancelled` may come.

Whatever else left a system task would end the whole Trio run, as a fault of Trio's own.
"""

import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TypeAlias

import trio

Faults: TypeAlias = BaseExceptionGroup[BaseException]


@contextmanager
def contained(contain: Callable[[Faults], object]) -> Generator[None]:
    """Within, `contain` gets what must not leave the task; an interrupt goes to the main task."""
    try:
        yield
    except BaseException as error:
        faults = BaseExceptionGroup("", [error]).split(trio.Cancelled)[1]
        if faults is None:
            raise
        contain(faults)
        if faults.subgroup(KeyboardInterrupt) is not None:
            signal.raise_signal(signal.SIGINT)  # this task is protected: Trio tells the main task
