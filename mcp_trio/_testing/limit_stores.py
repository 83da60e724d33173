"""The contract of `LimitStore` as checks for any store.

Each check gets a new store, or one without the keys of the check, and raises AssertionError with
the expectation that failed. The times are those of Trio's clock, real or virtual.
"""

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import trio

from mcp_trio._protocol.shares import Rate
from mcp_trio._server.caller_limits import LimitStore

Check: TypeAlias = Callable[[LimitStore], Awaitable[None]]

_SLOW: Final = Rate(per_minute=1, burst=3)
_FAST: Final = Rate(per_minute=600, burst=2)  # ten a second


async def check_limit_store(make_store: Callable[[], Awaitable[LimitStore]]) -> list[str]:
    """Run all LIMIT_STORE_CHECKS on a store; return their names.

    Args:
        make_store: Returns an empty store.

    Raises:
        AssertionError: A check failed; its name is in the text.
    """
    for name, check in LIMIT_STORE_CHECKS.items():
        try:
            await check(await make_store())
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error
    return list(LIMIT_STORE_CHECKS)


async def a_bucket_holds_a_burst(store: LimitStore) -> None:
    """The burst may be taken at once; then nothing, and the time to wait is returned."""
    for _ in range(3):
        _expect(await store.take("burst", _SLOW, 1), 0, 0, "no wait within the burst")
    _expect(await store.take("burst", _SLOW, 1), 50, 60, "the seconds until the next token")


async def a_rejected_request_takes_nothing(store: LimitStore) -> None:
    """A request that costs more than there is takes nothing."""
    await store.take("rejected", _SLOW, 2)
    _expect(await store.take("rejected", _SLOW, 3), 110, 120, "the seconds to wait")
    _expect(await store.take("rejected", _SLOW, 1), 0, 0, "no wait for what is left")


async def a_bucket_fills_at_its_rate(store: LimitStore) -> None:
    """Tokens come back at the rate, and never more than the burst."""
    await store.take("filling", _FAST, 2)
    await trio.sleep(0.15)
    _expect(await store.take("filling", _FAST, 1), 0, 0, "no wait after the interval")
    await trio.sleep(1)
    _expect(await store.take("filling", _FAST, 2), 0, 0, "no wait for the burst")
    _expect(await store.take("filling", _FAST, 1), 0.01, 0.1, "the seconds to wait")


async def keys_have_buckets_of_their_own(store: LimitStore) -> None:
    """Each key has a bucket of its own, whatever characters the keys have."""
    for key in ("a", "a\nb", "a b", "ä{b}*"):
        _expect(await store.take(key, _SLOW, 3), 0, 0, f"no wait for the first use of {key!r}")


async def a_charge_may_be_more_than_there_is(store: LimitStore) -> None:
    """A charge beyond the burst is made up for; a negative one is given back."""
    await store.charge("charged", _SLOW, 5)
    _expect(await store.take("charged", _SLOW, 1), 170, 180, "the seconds until the debt is paid")
    await store.charge("charged", _SLOW, -5)
    _expect(await store.take("charged", _SLOW, 3), 0, 0, "no wait after the charge is given back")
    _expect(await store.take("charged", _SLOW, 1), 50, 60, "the seconds to wait")


async def a_bucket_never_holds_more_than_its_burst(store: LimitStore) -> None:
    """A full bucket stays full when tokens are given back."""
    await store.charge("full", _SLOW, -5)
    _expect(await store.take("full", _SLOW, 3), 0, 0, "no wait for the burst")
    _expect(await store.take("full", _SLOW, 1), 50, 60, "the seconds to wait")


async def places_are_limited(store: LimitStore) -> None:
    """As many holders enter as there are places; one that leaves makes room for one."""
    holders = [await store.enter("places", 2) for _ in range(3)]
    if None in holders[:2] or holders[2] is not None or holders[0] == holders[1]:
        raise AssertionError(f"expected two different holders and None, got {holders}")
    await store.leave("places", str(holders[0]))
    if await store.enter("places", 2) is None:
        raise AssertionError("expected a holder after another one had left, got None")
    if await store.enter("elsewhere", 1) is None:
        raise AssertionError("expected that another key has places of its own, got None")


async def a_holder_leaves_once(store: LimitStore) -> None:
    """A holder that leaves again, or has never entered, frees no place of another holder."""
    first = str(await store.enter("twice", 1))
    await store.leave("twice", first)
    if await store.enter("twice", 1) is None:
        raise AssertionError("expected a holder after the first one had left, got None")
    await store.leave("twice", first)
    await store.leave("twice", "unknown")
    if await store.enter("twice", 1) is not None:
        raise AssertionError("expected None while the place is taken, got a holder")


def _expect(seconds: float, least: float, most: float, text: str) -> None:
    rounding = 1e-6
    if not least - rounding <= seconds <= most + rounding:
        raise AssertionError(f"expected {text}, from {least:g} to {most:g}, got {seconds:g}")


LIMIT_STORE_CHECKS: Final[dict[str, Check]] = {
    check.__name__: check
    for check in (
        a_bucket_holds_a_burst,
        a_rejected_request_takes_nothing,
        a_bucket_fills_at_its_rate,
        keys_have_buckets_of_their_own,
        a_charge_may_be_more_than_there_is,
        a_bucket_never_holds_more_than_its_burst,
        places_are_limited,
        a_holder_leaves_once,
    )
}
"""The checks of `check_limit_store`, by name."""
