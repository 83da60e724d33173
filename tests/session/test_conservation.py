"""Every request of a random conversation ends exactly once, on both sides."""

import collections
import json

import attrs
import msgspec
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_trio import ConnectionLost, RequestError, RequestTimeout
from mcp_trio import types as s
from mcp_trio._protocol.methods import Role
from mcp_trio._session.session import Session
from mcp_trio.limits import DEFAULT_LIMITS, MessageLimits, RequestLimits
from mcp_trio.transports import memory_pair
from tests.session.conftest import Tools, make_connection

pytestmark = pytest.mark.slow


LIMITS = msgspec.structs.replace(
    DEFAULT_LIMITS,
    requests=RequestLimits(in_flight_max=3, queued_max=4),
    messages=MessageLimits(send_queue_bytes_max=2000),
)
ENDS = ("peer closes", "we close", "lost", "run on")


# Behaviours of handlers.


async def quick(handling):
    pass


async def huge(handling):
    return "huge" * 500


async def slow(handling):
    await trio.sleep(5)


async def fails(handling):
    await trio.sleep(1)
    raise ValueError


async def rejects(handling):
    raise RequestError(-1, "no")


async def asks(handling):
    await handling.ask("roots/list")


async def chats(handling):
    for number in range(5):
        await handling.progress(number)
        await trio.sleep(0.5)


async def shielded(handling):
    with trio.CancelScope(shield=True):
        await trio.sleep(3)


BEHAVIOURS = (quick, slow, fails, rejects, asks, chats, shielded, huge)


async def list_roots(handling):
    return s.ListRootsResult(roots=[])


def counted(behave, begun):
    async def handle(handling):
        begun[handling.request.id] += 1
        return await behave(handling)

    return handle


@attrs.define
class Ours:
    """A call of ours: what it asks, after how long, and how long its caller stays."""

    behaviour: str
    after: float
    patience: float


calls = st.builds(
    Ours,
    behaviour=st.sampled_from([each.__name__ for each in BEHAVIOURS]),
    after=st.integers(0, 6),
    patience=st.sampled_from([0.5, 2, 4, 100]),
)


async def converse(calls, end, end_at):
    """Run it; return how each call ended, and the messages of both directions."""
    messages = {Role.CLIENT: [], Role.SERVER: []}
    channels = dict(zip(Role, memory_pair(limits=LIMITS), strict=True))
    begun = {role: collections.Counter() for role in Role}
    sessions = {}
    for role in Role:
        tools = {each.__name__: counted(each, begun[role]) for each in BEHAVIOURS}
        sessions[role] = Session(
            tapped(channels[role], messages[role]),
            make_connection(role, LIMITS),
            Tools({"roots/list": list_roots, **tools}),
        )
    outcomes = collections.defaultdict(list)

    async def caller(number, call):
        await trio.sleep(call.after)
        with trio.move_on_after(call.patience) as scope:
            outcomes[number].append(await outcome_of(sessions[Role.CLIENT], call))
        if scope.cancelled_caught:
            outcomes[number].append("cancelled")

    async with trio.open_nursery() as nursery:
        for session in sessions.values():
            await nursery.start(session.run)
        await sessions[Role.CLIENT].initialize()
        async with trio.open_nursery() as callers:
            for number, call in enumerate(calls):
                callers.start_soon(caller, number, call)
            await trio.sleep(end_at)
            sessions[Role.CLIENT].shut(*ENDINGS[end]) if end in ENDINGS else None
            if end == "peer closes":
                sessions[Role.SERVER].shut("closed")
        for session in sessions.values():
            session.shut("closed")
            await session.ended.wait()
    return outcomes, messages, sessions, begun


ENDINGS = {"we close": ("closed",), "lost": ("lost", ConnectionLost("cable cut"))}


def tapped(channel, messages):
    """The channel; what it receives is kept."""
    receive = channel.receive

    class Tap:
        send, aclose, send_nowait = channel.send, channel.aclose, channel.send_nowait
        is_unfinished = property(lambda _: channel.is_unfinished)

        async def receive(self):
            batch = await receive()
            messages.extend(batch)
            return batch

    return Tap()


async def outcome_of(session, call):
    params = s.CallToolParams(name=call.behaviour)
    try:
        await session.request("tools/call", params, total_seconds=4.5, on_progress=ignore)
    except RequestError:
        return "error"
    except RequestTimeout:
        return "timeout"
    except ConnectionLost:
        return "lost"
    return "result"


async def ignore(params):
    pass


def check_conservation(calls, outcomes, messages, sessions, begun):
    """One outcome a call; one answer at most a request; nothing left open anywhere."""
    assert {number: len(ends) for number, ends in outcomes.items()} == dict.fromkeys(
        range(len(calls)), 1
    )
    for role in Role:
        connection = sessions[role].connection
        assert len(connection.outgoing) == len(connection.incoming) == 0
        assert all(count == 1 for count in begun[role].values())
        check_frames(messages[role.peer], messages[role])
        counts = connection.counts
        for impossible in ("unknown answer", "malformed", "duplicate id", "out of order"):
            assert impossible not in counts


def check_frames(asking, answering):
    """`asking` holds the requests that arrived there, `answering` what came back."""
    asked = [m for m in map(msgspec.json.decode, asking) if "method" in m]
    answers = collections.Counter(m["id"] for m in map(json.loads, answering) if "method" not in m)
    ids = [m["id"] for m in asked if "id" in m]
    assert len(ids) == len(set(ids))
    assert all(count == 1 for count in answers.values())
    assert set(answers) <= set(ids)
    cancelled = collections.Counter(
        m["params"]["requestId"] for m in asked if m["method"] == "notifications/cancelled"
    )
    assert all(count == 1 for count in cancelled.values())


@settings(max_examples=60)
@given(
    calls=st.lists(calls, min_size=1, max_size=12),
    end=st.sampled_from(ENDS),
    end_at=st.sampled_from([0, 1, 3, 10]),
)
def test_every_request_ends_exactly_once_on_both_sides(calls, end, end_at):
    clock = trio.testing.MockClock(autojump_threshold=0)
    check_conservation(calls, *trio.run(converse, calls, end, end_at, clock=clock))


def test_each_way_to_end_does_occur():
    calls = [
        Ours("quick", 0, 100),
        Ours("rejects", 0, 100),
        Ours("slow", 0, 2),
        Ours("slow", 0, 100),
        Ours("slow", 4, 100),
    ]
    clock = trio.testing.MockClock(autojump_threshold=0)
    outcomes, *_ = trio.run(converse, calls, "lost", 6, clock=clock)
    assert [outcomes[number] for number in range(5)] == [
        ["result"],
        ["error"],
        ["cancelled"],
        ["timeout"],
        ["lost"],
    ]
