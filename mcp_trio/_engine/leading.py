"""Who serves a connection takes the first step of the handlers that it brings.

Most handlers of small requests wait for nothing. In a task of its own such a handler costs two
switches between tasks, and what wakes and puts them to rest: a seventh of a small request over
HTTP. So a task that serves may `lead`: it runs the handler itself, up to the first wait. If there
is none the answer is there, and the task goes on. If there is one, the task is the handler's from
then on, for by it Trio knows who waits; and what it has served goes on in another task, which
follows.

To change its task, what is served is driven by hand: it is a coroutine whose traps are passed on to
Trio, but for those by which it asks to lead, or to rest (see `lookout`). It must hold no scope and
no nursery open where it does that, because those belong to the task. Where one is open, the handler
begins in a task of its own; as does one of a replay, and one of a strict recording, whose steps are
looked at.

What is ugly: a debugger that follows the chain of what a task awaits ends at the driver.
"""

from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from types import coroutine
from typing import Any, TypeAlias

import msgspec

from mcp_trio._engine.jobs import Begins, Job
from mcp_trio._transports.resting import Resting

Served: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
"""What serves, and may lead; it raises nothing but what is no `Exception`."""


class Led(msgspec.Struct, eq=False):
    """A job whose first step somebody has promised to take, who would have started it otherwise."""

    job: Job
    context: Context
    among: Begins

    def begin(self) -> None:
        """Nobody takes it: it begins in a task of its own."""
        self.among.begin(self.job, self.context)


@coroutine
def lead(led: Led) -> Generator[Led, None, None]:
    """Take the first step of a job; only for what is driven as this module says.

    Afterwards the job has ended, or the calling coroutine is in another task. No checkpoint.
    """
    yield led


Asked: TypeAlias = Any
"""What a step came to: `Led`, or `Resting`, or a trap that is Trio's; None: it has ended."""


def step(driven: Coroutine[Any, Any, Any]) -> Asked:
    """Begin with what is driven, or go on where it has led or rested."""
    try:
        return driven.send(None)
    except StopIteration:
        return None


@coroutine
def until_asked(
    driven: Coroutine[Any, Any, Any], trap: Asked = None
) -> Generator[Any, Any, Led | Resting | None]:
    """Go on with what is driven, and has perhaps come to a trap, until it asks; None: it ended.

    What Trio has for a task it sends, errors too.
    """
    try:
        trap = trap or driven.send(None)
        while type(trap) is not Led and type(trap) is not Resting:
            trap = driven.send((yield trap))
    except StopIteration:
        return None
    return trap
