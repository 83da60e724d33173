"""Rates of requests, by key: token buckets, of which a bounded number is remembered."""

import math
from collections import OrderedDict
from collections.abc import Hashable
from ipaddress import IPv6Address, ip_address
from typing import Final

import attrs

_KEYS_MAX: Final = 10_000

# Sums of intervals may miss the exact value.
_ROUNDING_SECONDS: Final = 1e-6

# One user has at least this many bits of IPv6 addresses to choose from.
_IPV6_PREFIX_BITS: Final = 64


@attrs.frozen
class Rate:
    """A rate: requests per minute in the long run, and requests that may come at once."""

    per_minute: float = attrs.field(validator=attrs.validators.gt(0))
    burst: int = attrs.field(validator=attrs.validators.ge(1))


@attrs.define(eq=False, repr=False)
class TokenBuckets:
    """Token buckets by key.

    A bucket that is full is forgotten. Of too many buckets the ones that were used longest ago are.
    """

    _full_at: OrderedDict[Hashable, float] = attrs.field(
        factory=OrderedDict[Hashable, float], init=False
    )

    def take(self, key: Hashable, rate: Rate, now: float) -> int:
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
            return math.ceil(missing)
        self._full_at[key] = full_at
        self._full_at.move_to_end(key)
        while self._full_at and (
            len(self._full_at) > _KEYS_MAX or next(iter(self._full_at.values())) <= now
        ):
            self._full_at.popitem(last=False)
        return 0


def network_of(address: str | None) -> str:
    """Return the key of an address: IPv6 addresses of one network have the same."""
    try:
        parsed = ip_address(address or "")
    except ValueError:
        return address or ""
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is None:
        return f"{int(parsed) >> (128 - _IPV6_PREFIX_BITS):x}::/{_IPV6_PREFIX_BITS}"
    return str(parsed)
