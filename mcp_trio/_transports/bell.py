"""What tasks wait for, which costs next to nothing while nobody does."""

import attrs
import trio


@attrs.define(eq=False, weakref_slot=False)
class Bell:
    """Wakes whoever waits, as often as it is rung."""

    _waiting: trio.lowlevel.ParkingLot | None = attrs.field(default=None, init=False)

    async def wait(self) -> None:
        """Wait until it is rung next."""
        waiting = self._waiting
        if waiting is None:
            waiting = self._waiting = trio.lowlevel.ParkingLot()
        try:
            await waiting.park()
        finally:
            if self._waiting is waiting and not waiting:
                self._waiting = None

    def ring(self) -> None:
        """Wake everybody who waits."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.unpark_all()


@attrs.define(eq=False, weakref_slot=False)
class Milestone(Bell):
    """Something that happens once; like `trio.Event`."""

    _is_set: bool = attrs.field(default=False, init=False)

    def is_set(self) -> bool:
        """Whether it has happened."""
        return self._is_set

    def set(self) -> None:
        """It happens now, if it has not yet."""
        self._is_set = True
        self.ring()

    async def wait(self) -> None:
        """Wait until it has happened; a checkpoint in any case."""
        if self._is_set:
            await trio.lowlevel.checkpoint()
        else:
            await super().wait()
