"""The contracts of stores, of limits too: those in memory keep them, and bad stores are found."""

import contextlib

import attrs
import pytest

from mcp_trio._protocol.shares import TokenBuckets
from mcp_trio._protocol.stores import MemoryEventStore
from mcp_trio._server.instances import MemoryInstance
from mcp_trio.http import HttpStores, MemoryInstances, MemoryStore
from mcp_trio.middleware import MemoryLimitStore
from mcp_trio.testing import (
    LIMIT_STORE_CHECKS,
    check_change_store,
    check_event_store,
    check_instance_store,
    check_limit_store,
    check_state_store,
    check_stores,
)


def buffer():
    return MemoryEventStore(events_max=100, bytes_max=1000)


async def test_the_contracts_hold_in_memory(autojump_clock):
    await check_instance_store(MemoryInstances().joined)
    await check_event_store(buffer, is_shared=False)
    changes = HttpStores().changes
    await check_change_store(lambda: contextlib.nullcontext(changes))
    await check_state_store(MemoryStore())


async def test_all_stores_of_a_server_are_checked_at_once(autojump_clock):
    instances = HttpStores(
        instances=MemoryInstances(), limits=MemoryLimitStore(), states=MemoryStore()
    )
    assert await check_stores(lambda: instances) == ["changes", "instances", "states", "limits"]
    alone = HttpStores(events=lambda _: buffer())
    assert await check_stores(lambda: alone) == ["changes", "events"]


async def test_stores_that_share_nothing_are_found(autojump_clock):
    with pytest.raises((AssertionError, BaseExceptionGroup)):
        await check_stores(lambda: HttpStores(instances=MemoryInstances()))


@pytest.mark.parametrize("method", ["forget", "keep", "take", "send"])
async def test_the_contract_of_instances_finds_a_function_that_does_nothing(
    method, monkeypatch, autojump_clock
):
    async def take(*_):
        return False

    monkeypatch.setattr(MemoryInstance, method, take if method == "take" else lambda *_: None)
    with pytest.raises((AssertionError, BaseExceptionGroup)):
        await check_instance_store(MemoryInstances().joined)


async def test_the_contract_of_events_finds_a_store_that_cannot_be_loaded():
    with pytest.raises(AssertionError, match="another machine knows the open streams"):
        await check_event_store(buffer, is_shared=True)


async def test_the_contract_of_states_finds_a_state_that_is_used_twice():
    @attrs.define
    class Twice:
        async def take(self, _key, **_):
            return True

    with pytest.raises(AssertionError, match="it is used once"):
        await check_state_store(Twice())


# The stores of limits.


async def test_the_store_in_memory_keeps_the_contract(autojump_clock):
    async def make():
        return MemoryLimitStore()

    assert await check_limit_store(make) == list(LIMIT_STORE_CHECKS)


class NeverFills(MemoryLimitStore):
    async def take(self, key, rate, tokens):
        return self._buckets.take(key, rate, 0, tokens)


class LetsAllIn(MemoryLimitStore):
    async def take(self, *_):
        return 0


class HasOneBucket(MemoryLimitStore):
    async def take(self, _, rate, tokens):
        return await super().take("", rate, tokens)


class ForgetsCharges(MemoryLimitStore):
    async def charge(self, *_):
        pass


class HasEndlessPlaces(MemoryLimitStore):
    async def enter(self, key, places):
        return await super().enter(key, places + 1)


class LeavesTwice(MemoryLimitStore):
    async def leave(self, key, _):
        self._holders.pop(key, None)


class TakesOnRejection(MemoryLimitStore):
    async def take(self, key, rate, tokens):
        seconds = await super().take(key, rate, tokens)
        if seconds:
            await super().charge(key, rate, tokens)
        return seconds


class Overflows(TokenBuckets):
    def charge(self, key, rate, now, tokens):
        self._full_at[key] = now + tokens * 60 / rate.per_minute

    def take(self, key, rate, now, tokens=1):
        interval = 60 / rate.per_minute
        full_at = self._full_at.get(key, now) + tokens * interval
        if full_at - now > rate.burst * interval + 1e-6:
            return full_at - now - rate.burst * interval
        self._full_at[key] = full_at
        return 0.0


class HoldsMore(MemoryLimitStore):
    def __init__(self):
        super().__init__()
        self._buckets = Overflows()


@pytest.mark.parametrize(
    ("kind", "check"),
    [
        (NeverFills, "a_bucket_fills_at_its_rate"),
        (LetsAllIn, "a_bucket_holds_a_burst"),
        (HasOneBucket, "keys_have_buckets_of_their_own"),
        (ForgetsCharges, "a_charge_may_be_more_than_there_is"),
        (HasEndlessPlaces, "places_are_limited"),
        (LeavesTwice, "a_holder_leaves_once"),
        (TakesOnRejection, "a_rejected_request_takes_nothing"),
        (HoldsMore, "a_bucket_fills_at_its_rate"),
    ],
)
async def test_a_store_that_breaks_the_contract_fails_a_check(kind, check, autojump_clock):
    async def make():
        return kind()

    with pytest.raises(AssertionError, match=f"{check}: expected "):
        await check_limit_store(make)


async def test_a_bucket_never_holds_more_than_its_burst(autojump_clock):
    with pytest.raises(AssertionError, match="expected the seconds to wait"):
        await LIMIT_STORE_CHECKS["a_bucket_never_holds_more_than_its_burst"](HoldsMore())
