"""The contracts of stores hold for those in memory, and find a store that breaks them."""

import contextlib

import attrs
import pytest

from mcp_trio._protocol.event_store import MemoryEventStore
from mcp_trio._server.http_sessions import MemoryChanges
from mcp_trio._server.instances import MemoryInstance
from mcp_trio.http import HttpStores, MemoryInstances, MemoryStore
from mcp_trio.middleware import MemoryLimitStore
from mcp_trio.testing import (
    check_changes,
    check_events,
    check_instances,
    check_states,
    check_stores,
)


def buffer():
    return MemoryEventStore(events_max=100, bytes_max=1000)


async def test_the_contracts_hold_in_memory(autojump_clock):
    await check_instances(MemoryInstances().joined)
    await check_events(buffer, is_shared=False)
    changes = MemoryChanges()
    await check_changes(lambda: contextlib.nullcontext(changes))
    await check_states(MemoryStore())


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
        await check_instances(MemoryInstances().joined)


async def test_the_contract_of_events_finds_a_store_that_cannot_be_loaded():
    with pytest.raises(AssertionError, match="another machine knows the open streams"):
        await check_events(buffer, is_shared=True)


async def test_the_contract_of_states_finds_a_state_that_is_used_twice():
    @attrs.define
    class Twice:
        async def take(self, _key, **_):
            return True

    with pytest.raises(AssertionError, match="it is used once"):
        await check_states(Twice())
