"""Fair shares: how much of a limited resource each client may take, and at which rate.

A *place* is one unit of the resource, such as a running handler, a connection or a byte of a queue.
A client is known by its principal if it is authenticated, and otherwise by its address, so all
clients behind a proxy that does not forward their addresses count as one.

One rule holds for every resource: a client may take another place while it has fewer than the
maximum of one client, and fewer than are free. So whatever the other clients have taken, a client
without a place gets one as long as one is free, and more than log2(n) clients are needed to take
the last of `n` places. Clients that take as many places as they can, and return them, have equal
shares in the end, and one share stays free for the next client.
"""

import functools
import ipaddress
import math
import re
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from typing import Any, Final, Generic, TypeAlias, TypeVar

import attrs

from mcp_trio._protocol.empty import NO_ITEMS
from mcp_trio.limits import Limits

ClientKey: TypeAlias = Hashable
"""The key of a client: its principal, its address, or its number in a session."""

Item = TypeVar("Item", bound=Hashable)


@functools.lru_cache(maxsize=1024)
def network_of(address: str | None) -> str | None:
    """Return the network that counts as one client: an IPv4 address, or 64 bits of an IPv6 one.

    A single host usually has 2**64 addresses of IPv6.
    """
    try:
        parsed = ipaddress.IPv6Address(address or "")
    except ValueError:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Address(int(parsed) >> 64 << 64))


@functools.lru_cache(maxsize=1024)  # so that the sessions of a client share its key
def client_key(principal: str | None, address: str | None) -> ClientKey:
    """Return the key of a client; a principal never has the key of an address."""
    return (None, network_of(address)) if principal is None else (principal, None)


@attrs.define(eq=False, repr=False)
class Shares:
    """The number of places that each client has taken. A place may also be a byte.

    Attributes:
        client_max: The places that one client may take.
        factor: The multiple of that number that all clients may take together.
        setting: The name of the limit, for rejections.
        total: The places that are taken.
    """

    client_max: int
    factor: int
    setting: str
    total: int = attrs.field(default=0, init=False)
    _taken: dict[ClientKey, int] = attrs.field(default=NO_ITEMS, init=False)

    def taken_by(self, client: ClientKey) -> int:
        """Return the number of places that a client has taken."""
        return self._taken.get(client, 0)

    def may_take(self, client: ClientKey, amount: int = 1) -> bool:
        """Return whether a client may take more places."""
        after = self._taken.get(client, 0) + amount
        return after <= self.client_max and after <= self.client_max * self.factor - self.total

    def take_if_free(self, client: ClientKey) -> bool:
        """Take one place if the client may; return whether it has."""
        # Each request calls this, so it repeats `may_take` and `take` instead of calling them.
        places, total, client_max = self._taken, self.total, self.client_max
        taken = places.get(client, 0)
        if taken >= client_max or taken >= client_max * self.factor - total:
            return False
        if not places:
            places = self._taken = {}
        places[client] = taken + 1
        self.total = total + 1
        return True

    def exceeded(self, client: ClientKey, amount: int = 1) -> str | None:
        """Return the limit that keeps a client from taking more places; None if it may take them.

        The text follows that of a rejection, as in "too many requests wait
        (limits.requests.queued_max=1024)", and begins with a space.
        """
        if self.may_take(client, amount):
            return None
        limit = f"{self.setting}={self.client_max}"
        if self.taken_by(client) + amount > self.client_max:
            return f" ({limit})"
        return f" of all clients ({limit}, all_clients_factor={self.factor})"

    def take(self, client: ClientKey, amount: int = 1) -> None:
        """Take places; the caller has checked `may_take`, or knows of a reason to go beyond it."""
        if amount:
            if not self._taken:
                self._taken = {}
            self._taken[client] = self.taken_by(client) + amount
            self.total += amount

    def give_back(self, client: ClientKey, amount: int = 1) -> None:
        """Give back places that the client has taken."""
        places = self._taken
        left = places.get(client, 0) - amount
        assert left >= 0
        total = self.total = self.total - amount
        if not total:
            self._taken = NO_ITEMS
        elif left:
            places[client] = left
        else:
            places.pop(client, None)


def shares_of(setting: str, limits: Limits) -> Shares:
    """Return the shares of clients in a limit, such as `limits.http.connections_max`."""
    group_name, name = _names_of(setting)
    group: Any = getattr(limits, group_name)
    return Shares(getattr(group, name), group.all_clients_factor, setting)


@functools.cache  # Each session has a `Shares`.
def _names_of(setting: str) -> tuple[str, str]:
    _, group_name, name = setting.split(".")
    return group_name, name


@attrs.define(eq=False, repr=False)
class Queue(Generic[Item]):
    """A queue for places, in which the clients take turns. Each operation takes constant time.

    A free place goes to the waiting client that has the fewest places; among several, to the one
    that has waited longest for its turn. The items of one client keep their order. A client that
    has no place therefore waits for at most one place for each other client without one.

    Attributes:
        places: The places that the clients have taken.
    """

    places: Shares
    _items: dict[ClientKey, dict[Item, None]] = attrs.field(
        factory=dict[ClientKey, dict[Item, None]], init=False
    )
    # The waiting clients by the number of places that they have, in the order of their turns; and
    # the numbers for which there are such clients, as bits.
    _turns: dict[int, dict[ClientKey, None]] = attrs.field(
        factory=dict[int, dict[ClientKey, None]], init=False
    )
    _numbers: int = attrs.field(default=0, init=False)

    def may_start(self, client: ClientKey) -> bool:
        """Return whether an item that arrives now may start at once."""
        return client not in self._items and self.places.may_take(client)

    def enter(self, client: ClientKey) -> None:
        """Take a place."""
        if client in self._items:
            self._remove_turn(client)
            self.places.take(client)
            self._add_turn(client)
        else:
            self.places.take(client)

    def wait(self, client: ClientKey, item: Item) -> None:
        """Append an item to those of its client."""
        items = self._items.get(client)
        if items is None:
            items = self._items[client] = {}
            self._add_turn(client)
        items[item] = None

    def leave(self, client: ClientKey) -> Item | None:
        """Give back a place.

        Returns:
            The item that may start now; it has left the queue. Call `enter` for its client.
        """
        if client in self._items:
            self._remove_turn(client)
            self.places.give_back(client)
            self._add_turn(client)
        else:
            self.places.give_back(client)
        if not self._numbers:
            return None
        fewest = (self._numbers & -self._numbers).bit_length() - 1  # the lowest bit that is set
        following = next(iter(self._turns[fewest]))
        if not self.places.may_take(following):
            return None
        item = next(iter(self._items[following]))
        self.withdraw(following, item)
        return item

    def withdraw(self, client: ClientKey, item: Item) -> bool:
        """Remove an item; return whether it was there."""
        items = self._items.get(client)
        if items is None or item not in items:
            return False
        del items[item]
        if not items:
            self._remove_turn(client)
            del self._items[client]
        return True

    def withdraw_all(self) -> list[Item]:
        """Remove and return all items."""
        items = [item for each in self._items.values() for item in each]
        self._items.clear()
        self._turns.clear()
        self._numbers = 0
        return items

    def _add_turn(self, client: ClientKey) -> None:
        number = self.places.taken_by(client)
        self._turns.setdefault(number, {})[client] = None
        self._numbers |= 1 << number

    def _remove_turn(self, client: ClientKey) -> None:
        number = self.places.taken_by(client)
        turns = self._turns[number]
        del turns[client]
        if not turns:
            del self._turns[number]
            self._numbers &= ~(1 << number)


# Rates --------------------------------------------------------------------------------------------

# The number of buckets that are stored.
_BUCKETS_MAX: Final = 10_000

# Sums of intervals have rounding errors.
_ROUNDING_SECONDS: Final = 1e-6

_MINUTES: Final[Mapping[str, float]] = {"second": 1 / 60, "minute": 1, "hour": 60, "day": 1440}
_SIZES: Final[Mapping[str, int]] = {
    "": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
}
_RATE_TEXT: Final = rf"(\d+(?:_\d+)*(?:\.\d+)?) ?({'|'.join(_SIZES)})/({'|'.join(_MINUTES)})"


@attrs.frozen
class Rate:
    """A rate of requests, or of bytes.

    Attributes:
        per_minute: The number per minute in the long run.
        burst: The number that may come at once.
    """

    per_minute: float = attrs.field(validator=attrs.validators.gt(0))
    burst: int = attrs.field(validator=attrs.validators.ge(1))

    @classmethod
    def parse(cls, text: str, burst: int | None = None) -> "Rate":
        """Return the rate of a text such as "100/minute", "0.5/second" or "10 MB/day".

        Args:
            text: An amount, perhaps with a unit of bytes, and a second, minute, hour or day.
            burst: The amount that may come at once; by default the amount of the text.

        Raises:
            ValueError: The text is not a rate, or `burst` is less than 1.
        """
        match = re.fullmatch(_RATE_TEXT, text)
        amount = 0.0 if match is None else float(match[1]) * _SIZES[match[2]]
        if match is None or not 0 < amount < math.inf:
            raise ValueError(
                f"{text!r} is not a rate: write '100/minute', '0.5/second' or '10 MB/day'"
            )
        return cls(amount / _MINUTES[match[3]], math.ceil(amount) if burst is None else burst)


@attrs.define(eq=False, repr=False)
class TokenBuckets:
    """Token buckets by key.

    Full buckets are forgotten. If there are too many, the least recently used ones are
    forgotten as well. Each bucket is stored as the time at which it is full.
    """

    _full_at: OrderedDict[Hashable, float] = attrs.field(
        factory=OrderedDict[Hashable, float], init=False
    )

    def take(self, key: Hashable, rate: Rate, now: float, tokens: float = 1) -> float:
        """Take tokens from a bucket and return 0; or return the seconds until it has as many.

        `rate` is that at which the bucket is filled, `now` the time of a monotonic clock in
        seconds. The number of tokens is at most `rate.burst`.
        """
        interval = 60 / rate.per_minute
        full_at = max(self._full_at.get(key, now), now) + tokens * interval
        missing = full_at - now - rate.burst * interval
        if missing > _ROUNDING_SECONDS:
            return missing
        self._keep(key, full_at, now)
        return 0.0

    def charge(self, key: Hashable, rate: Rate, now: float, tokens: float) -> None:
        """Take tokens from a bucket even if it has fewer, or return tokens if the number is < 0."""
        full_at = max(self._full_at.get(key, now), now) + tokens * 60 / rate.per_minute
        self._keep(key, full_at, now)

    def _keep(self, key: Hashable, full_at: float, now: float) -> None:
        self._full_at[key] = full_at
        self._full_at.move_to_end(key)
        while self._full_at and (
            len(self._full_at) > _BUCKETS_MAX or next(iter(self._full_at.values())) <= now
        ):
            self._full_at.popitem(last=False)
