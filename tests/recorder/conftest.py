"""What the tests of recording share: a clock of the test's own, and what a session says of itself."""

import attrs

FACTS = {"role": "server", "transport": "memory", "name": "a / weather!", "version": "1.0"}


@attrs.define
class Clock:
    """Only moves when told to."""

    seconds: float = 0.0

    def __call__(self):
        return self.seconds

    def nanoseconds(self):
        return int(self.seconds * 1e9)
