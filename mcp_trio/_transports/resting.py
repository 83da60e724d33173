"""Waiting for bytes in such a way that somebody may wait for many at once."""

from collections.abc import Callable, Generator
from types import coroutine

import msgspec


class Resting(msgspec.Struct, eq=False):
    """What is to go on when there is something to read from `fd`, the end included.

    Attributes:
        fd: It is the same for all rests of one connection, as is this object.
        let_go: How who watches `fd` is told that this has an end; None: nobody does.
    """

    fd: int
    let_go: Callable[[], None] | None = None

    def end(self) -> None:
        """Nobody watches `fd` any more; call it before that is closed.

        A poller goes on with what is closed here, as long as another process has it too.
        """
        if self.let_go is not None:
            self.let_go()


@coroutine
def rest(resting: Resting) -> Generator[Resting, None, None]:
    """Wait; only for what is driven by hand, by who knows this trap, and holds no scope open.

    It may be called back too early. What never goes on is closed.
    """
    yield resting
