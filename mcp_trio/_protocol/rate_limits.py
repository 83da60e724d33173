"""Rate limits: a token bucket for each key, such as an address or a user."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

import attrs

_KEYS_MAX: Final = 10_000

# Sums of intervals may miss the exact value.
_ROUNDING_SECONDS: Final = 1e-6


@attrs.frozen
class Rate:
    """A rate: requests per minute in the long run, and requests that may come at once."""

    per_minute: float = attrs.field(validator=attrs.validators.gt(0))
    burst: int = attrs.field(validator=attrs.validators.ge(1))


@attrs.define(eq=False, repr=False)
class TokenBuckets:
    """Token buckets by key.

    Full buckets are forgotten. If there are too many, those that were not used for longest are
    forgotten as well. Each bucket is stored as the time at which it is full.
    """

    _full_at: OrderedDict[Hashable, float] = attrs.field(
        factory=OrderedDict[Hashable, float], init=False
    )

    def take(self, key: Hashable, rate: Rate, now: float) -> float:
        """Take a token from a bucket; return the seconds until there is one, or 0.

        Args:
            key: The key of the bucket.
            rate: The rate at which the bucket is filled.
            now: The time of a monotonic clock, in seconds.
        """
        interval = 60 / rate.per_minute
        full_at = max(self._full_at.get(key, now), now) + interval
        missing = full_at - now - rate.burst * interval
        if missing > _ROUNDING_SECONDS:
            return missing
        self._full_at[key] = full_at
        self._full_at.move_to_end(key)
        while self._full_at and (
            len(self._full_at) > _KEYS_MAX or next(iter(self._full_at.values())) <= now
        ):
            self._full_at.popitem(last=False)
        return 0.0
