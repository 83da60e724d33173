"""Fixtures of recordings: a test clock and the facts of a session."""

import attrs

FACTS = {"role": "server", "transport": "memory", "name": "a / weather!", "version": "1.0"}


@attrs.define
class Clock:
    """A clock that moves only when a test sets its time."""

    seconds: float = 0.0

    def __call__(self):
        return self.seconds

    @property
    def ns(self):
        return int(self.seconds * 1e9)
