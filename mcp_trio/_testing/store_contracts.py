"""Contracts of the stores that instances of a server share, as functions for the tests of a store.

Each function uses a store as a server does, and raises `AssertionError` where the store breaks a
promise of its interface. The stores in memory and those in Redis are tested with them.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Final, TypeAlias

import attrs
import trio

from mcp_trio._protocol.shares import Rate
from mcp_trio._protocol.stores import EventStore, StateStore
from mcp_trio._server.caller_limits import LimitStore
from mcp_trio._server.http_sessions import Changes, Stores
from mcp_trio._server.instances import (
    Instance,
    InstanceHandler,
    SessionFacts,
    StoreUnavailableError,
)
from mcp_trio._server.subscriptions import Change
from mcp_trio.limits import DEFAULT_LIMITS, Limits

JoinInstances: TypeAlias = Callable[[InstanceHandler], AbstractAsyncContextManager[Instance]]
"""Joins the instances as another machine would; see `Instances.joined`."""

_SESSION_ID: Final = "check_stores"
_TIMEOUT_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.01
_MESSAGES: Final = 500
_FACTS: Final = SessionFacts(principal="ada", opening=(b"{}", b"[]"))


async def check_stores(
    make_stores: Callable[[], Stores], *, limits: Limits = DEFAULT_LIMITS
) -> list[str]:
    """Check all stores of a value of `stores=`, with the contracts below.

    Args:
        make_stores: Returns the stores as another machine has them: with the same database, or for
            stores in memory the same object. There are no other instances, and no data.
        limits: The limits of the server.

    Returns:
        The names of the stores that were checked. Those that are None are not: then each instance
        has its own.

    Raises:
        AssertionError: A promise is broken.
    """

    @asynccontextmanager
    async def join(handler: InstanceHandler) -> AsyncGenerator[Instance]:
        async with make_stores().opened(limits) as opened:
            assert opened.instances is not None
            async with opened.instances.joined(handler) as instance:
                yield instance

    @asynccontextmanager
    async def changes() -> AsyncGenerator[Changes]:
        async with make_stores().opened(limits) as opened:
            yield opened.changes

    checked = ["changes"]
    await check_change_store(changes)
    async with make_stores().opened(limits) as here, make_stores().opened(limits) as there:
        if here.instances is not None:
            await check_instance_store(join)
            checked.append("instances")
        if here.events is not None and there.events is not None:
            machines = iter((here.events, there.events))
            is_shared = here.instances is not None
            await check_event_store(lambda: next(machines)(_SESSION_ID), is_shared=is_shared)
            checked.append("events")
        if here.states is not None:
            await check_state_store(here.states)
            checked.append("states")
        if (store := here.limits) is not None:

            async def make_limits() -> LimitStore:
                return store

            await check_limit_store(make_limits)
            checked.append("limits")
    return checked


async def _until(holds: Callable[[], bool], promise: str) -> None:
    with trio.move_on_after(_TIMEOUT_SECONDS):
        while not holds():  # noqa: ASYNC110  a store has no event for the test
            await trio.sleep(_POLL_SECONDS)
        return
    raise AssertionError(f"within {_TIMEOUT_SECONDS:g} s: {promise}")


@attrs.define(eq=False)
class ScriptedHandler:
    """An `InstanceHandler` that keeps what it is called with.

    Attributes:
        received: The messages, with their senders.
        lost: The instances that were reported as lost.
        lost_sessions: The sessions that other instances have taken.
        watched: The instances of which the end is reported.
    """

    received: list[tuple[str, bytes]] = attrs.field(factory=list[tuple[str, bytes]], init=False)
    lost: list[str] = attrs.field(factory=list[str], init=False)
    lost_sessions: list[str] = attrs.field(factory=list[str], init=False)
    watched: set[str] = attrs.field(factory=set[str], init=False)

    def receive(self, sender: str, message: bytes) -> None:
        """Keep a message."""
        self.received.append((sender, message))

    def lose(self, name: str) -> None:
        """Keep the name of a lost instance."""
        self.lost.append(name)

    def lose_session(self, session_id: str) -> None:
        """Keep the id of a session that was taken."""
        self.lost_sessions.append(session_id)

    def peers(self) -> Collection[str]:
        """Return the instances of which the end is reported."""
        return self.watched


async def check_instance_store(join: JoinInstances) -> None:
    """Check the sessions, calls, messages and leases of instances.

    Args:
        join: Joins the instances. There are no other instances, and no sessions.

    Raises:
        AssertionError: A promise is broken.
    """
    handlers = [ScriptedHandler() for _ in range(3)]
    async with join(handlers[0]) as one, join(handlers[1]) as two:
        assert one.name != two.name, "names differ"
        await _check_sessions(one, two, handlers)
        await _check_calls(one, two, handlers)
        await _check_messages(one, two, handlers)
        await _check_leases(one, two, join, handlers)


async def _check_sessions(
    one: Instance, two: Instance, handlers: Sequence[ScriptedHandler]
) -> None:
    assert await one.find("a") is None, "there is no session before one is kept"
    one.keep("a", _FACTS)
    await one.wait_until_stored()
    found = await two.find("a")
    assert found is not None, "a stored session is found"
    assert (found.facts, found.owner) == (_FACTS, one.name), "it has its facts and its owner"
    two.keep("a", SessionFacts(principal=None, opening=()))
    two.forget("a")
    await two.settle()
    assert await one.find("a") == found, "only the owner changes or removes a session"
    assert handlers[1].lost_sessions == ["a"], "an instance learns that another one owns it"
    assert not await two.take("a", one.name), "an owner that runs keeps its sessions"
    assert not await two.take("a", None), "a session with another owner is not taken"
    one.hand_over("a", _FACTS)
    await one.settle()
    found = await two.find("a")
    assert found is not None, "a session that was handed over is found"
    assert found.owner is None, "it has no owner"
    assert await two.take("a", None), "it can be taken"
    assert not await one.take("a", None), "it is taken once"
    one.keep("a", _FACTS)
    await one.settle()
    assert handlers[0].lost_sessions == ["a"], "the earlier owner learns that it was taken"
    one.hand_over("a", _FACTS)
    await one.settle()
    found = await two.find("a")
    assert found is not None, "a session that was taken is found"
    assert found.owner == two.name, "only the owner hands a session over"
    assert not await two.take("b", None), "a session that does not exist cannot be taken"
    two.forget("a")
    await two.settle()
    assert await one.find("a") is None, "its owner removes it"


async def _check_calls(one: Instance, two: Instance, handlers: Sequence[ScriptedHandler]) -> None:
    one.keep("c", _FACTS)
    one.post_call_entry("c", '"x:1"', 0, b"request")
    await one.store_call_entry("c", '"x:1"', 1, b"begun")
    one.post_call_entry("c", '"x:1"', 1, b"done")
    one.post_call_entry("c", "7", 0, b"other")
    two.post_call_entry("c", "7", 0, b"")
    two.forget_call("c", "7", 1)
    await one.settle()
    await two.settle()
    entries = {'"x:1"': {0: b"request", 1: b"done"}, "7": {0: b"other"}}
    assert await two.calls("c") == entries, "entries of calls are found; the owner changes them"
    try:
        await two.store_call_entry("c", "7", 1, b"")
    except StoreUnavailableError:
        pass
    else:
        raise AssertionError("an entry of another owner's session is rejected")
    assert "c" in handlers[1].lost_sessions, "the instance learns that another one owns it"
    one.forget_call("c", '"x:1"', 2)
    await one.settle()
    assert await two.calls("c") == {"7": {0: b"other"}}, "a call is removed"
    one.forget("c")
    await one.settle()
    assert await two.calls("c") == {}, "a session is removed with its calls"


async def _check_messages(
    one: Instance, two: Instance, handlers: Sequence[ScriptedHandler]
) -> None:
    sent = [b"%d" % number for number in range(_MESSAGES)]
    for message in sent:
        one.send(two.name, message)
        two.send(one.name, message)
    promise = "messages arrive in their order, each once"
    await _until(lambda: len(handlers[0].received) >= _MESSAGES, promise)
    await _until(lambda: len(handlers[1].received) >= _MESSAGES, promise)
    assert handlers[0].received == [(two.name, message) for message in sent], promise
    assert handlers[1].received == [(one.name, message) for message in sent], promise


async def _check_leases(
    one: Instance, two: Instance, join: JoinInstances, handlers: Sequence[ScriptedHandler]
) -> None:
    assert not await one.is_lost(two.name), "an instance that runs is not lost"
    assert list(await one.others()) == [two.name], "the others are named"
    await two.leave()
    assert not await one.others(), "an instance that leaves is not named"
    async with join(handlers[2]) as three:
        name = three.name
        three.keep("c", _FACTS)
        await three.settle()
        handlers[0].watched.add(name)
    assert await one.is_lost(name), "an instance that has ended is lost"
    await _until(lambda: name in handlers[0].lost, "its end is reported to those that watch it")
    one.send(name, b"late")
    await one.settle()
    for _ in range(2):
        assert list(await one.unread(name)) == [b"late"], "it takes no more messages"
    assert await one.take("c", name), "its sessions can be taken"
    one.forget("c")
    await one.settle()


async def check_event_store(make: Callable[[], EventStore], *, is_shared: bool) -> None:
    """Check an event store.

    Args:
        make: Returns the store of one session, each time as another machine would.
        is_shared: Whether another machine can load the events.

    Raises:
        AssertionError: A promise is broken.
    """
    store = make()
    assert not await store.load(), "a new session has no stream"
    one, two = store.open_stream([1, "b"]), store.open_stream()
    ids = [store.keep(one, b""), store.keep(one, b'{"id":1}'), store.keep(two, b'{"method":"x"}')]
    assert len({*ids}) == len(ids), "an id is given once"
    expected = (one, [(ids[1], b'{"id":1}')])
    assert _after(store, ids[0]) == expected, "the events after an id are those of its stream"
    mark, ended = store.append_ended_stream([b"{}"])
    assert _after(store, mark)[1] == [(ended, b"{}")], "an ended stream can be read"
    store.close_stream(two)
    try:
        store.keep(two, b"{}")
    except KeyError:
        pass
    else:
        raise AssertionError("a closed stream takes no event")
    for unknown in ("", "x", "9-9"):
        try:
            store.after(unknown)
        except LookupError:
            continue
        raise AssertionError(f"the id {unknown!r} was never given")
    await store.settle()
    if not is_shared:
        return
    other = make()
    opened = {stream: list(request_ids) for stream, request_ids in (await other.load()).items()}
    assert opened == {one: ["b"]}, "another machine knows the open streams and unanswered requests"
    assert _after(other, ids[0]) == expected, "another machine has the events, with their ids"
    assert _after(other, mark)[1] == [(ended, b"{}")], "also those of ended streams"
    new = other.keep(one, b'{"id":"b"}')
    assert new not in ids, "ids are not given again"
    assert other.open_stream() not in {one, two}, "nor are the numbers of streams"


def _after(store: EventStore, event_id: str) -> tuple[int, list[tuple[str, bytes]]]:
    stream, events = store.after(event_id)
    return stream, list(events)


async def check_change_store(join: Callable[[], AbstractAsyncContextManager[Changes]]) -> None:
    """Check a broadcast of change notices.

    Args:
        join: Opens the broadcast as another machine would.

    Raises:
        AssertionError: A promise is broken.
    """
    received: list[list[Change]] = [[], [], []]
    changes = [("notifications/tools/list_changed", None), ("notifications/resources/updated", "a")]
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(join()) for _ in received]
        sends = [
            await stack.enter_async_context(each.joined(list_.append))
            for each, list_ in zip(opened, received, strict=True)
        ]
        for change in changes:
            sends[0](change)
        await trio.to_thread.run_sync(sends[1], changes[0])
        await _until(
            lambda: received[2] == [*changes, changes[0]] or len(received[2]) > len(changes),
            "a change reaches all others, also from a thread",
        )
        await _until(
            lambda: received[:2] == [[changes[0]], changes],
            "changes arrive in their order, and never at their sender",
        )


async def check_state_store(store: StateStore) -> None:
    """Check a store of used states, in which no key of this contract is used.

    Raises:
        AssertionError: A promise is broken.
    """
    assert await store.take("a.0", seconds=60, client="ada"), "a new state may be used"
    assert not await store.take("a.0", seconds=60, client="ada"), "it is used once"
    assert await store.take("a.1", seconds=60, client=1), "the next round is another state"
    assert await store.kept("a.0") is None, "no result was kept"
    await store.keep("a.0", b'{"x":1}', seconds=60)
    assert await store.kept("a.0") == b'{"x":1}', "the result of the retry is kept"


# Stores of limits: checks by name, so that a test can be parametrised with them.

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
