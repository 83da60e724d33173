"""A clock for code that takes a function of the time."""

import attrs


@attrs.define
class Clock:
    """A clock that moves only when a test sets its time."""

    seconds: float = 0.0

    def __call__(self):
        return self.seconds

    @property
    def ns(self):
        return int(self.seconds * 1e9)
