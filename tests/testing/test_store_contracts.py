"""The contracts of stores hold for those in memory, and find a store that breaks them."""

import contextlib

import attrs
import pytest

from mcp_trio._protocol.event_store import MemoryEventStore
from mcp_trio._server.http_sessions import MemoryChanges
from mcp_trio._server.instances import MemoryInstance
from mcp_trio.http import MemoryInstances, MemoryStore
from mcp_trio.testing import check_changes, check_events, check_instances, check_states


def buffer():
    return MemoryEventStore(events_max=100, bytes_max=1000)


async def test_the_contracts_hold_in_memory(autojump_clock):
    await check_instances(MemoryInstances().joined)
    await check_events(buffer, is_shared=False)
    changes = MemoryChanges()
    await check_changes(lambda: contextlib.nullcontext(changes))
    await check_states(MemoryStore())


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
