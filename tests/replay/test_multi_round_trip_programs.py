"""Property: generated handlers with multi round-trip requests replay under every schedule."""

import attrs
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcp_trio import Context, Elicitation, Limits, MCPError, Server
from mcp_trio.limits import RequestLimits, ShutdownLimits

pytestmark = pytest.mark.slow

LIMITS = Limits(
    requests=RequestLimits(in_flight_max=2, queued_max=3, suspended_max=3, suspended_seconds=0.03),
    shutdown=ShutdownLimits(drain_seconds=0.05),
)
METADATA = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
    "io.modelcontextprotocol/logLevel": "debug",
}

# What handlers do.


async def ask(ctx, seen, amount):
    seen.append((await ctx.elicit(f"Ask {amount}", int)).data)


async def ask_two(ctx, seen, amount):
    questions = (Elicitation("First", int), Elicitation(f"Second {amount}", int))
    seen += [answer.data for answer in await ctx.ask_all(*questions)]


async def ask_in_tasks(ctx, seen, amount):
    async def child(number):
        await trio.sleep(number * amount / 3000)
        await ask(ctx, seen, number)
        await ctx.info(["child", number, list(seen)])

    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(child, number)


async def ask_within(ctx, seen, amount):
    with trio.move_on_after(amount / 1000):
        await ask(ctx, seen, amount)
        seen.append("answered")
    seen.append("went on")


async def ask_beside(ctx, seen, amount):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, ctx, seen, amount)
        for number in range(3):
            await trio.sleep(amount / 2000)
            await ctx.info(["beside", number, list(seen)])
            await ctx.progress(len(seen) + number)


async def clean_up(ctx, seen, amount):
    async def child(number):
        try:
            await trio.sleep(number * amount / 500)
        finally:
            with trio.CancelScope(shield=True):
                await ctx.info(["clean up", number])
                await ask(ctx, seen, number)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, ctx, seen, amount)
        for number in range(2):
            nursery.start_soon(child, number)


async def say(ctx, seen, amount):
    await ctx.info(["say", amount, list(seen)])


async def progress(ctx, seen, amount):
    await ctx.progress(len(seen) + 1)


async def sleep(ctx, seen, amount):
    await trio.sleep(amount / 1000)


async def doze(ctx, seen, amount):
    await ctx.sleep(amount / 1000)
    seen.append(ctx.monotonic())


async def draw(ctx, seen, amount):
    seen.append(ctx.random.random())


STEPS = (ask, ask_two, ask_in_tasks, ask_within, ask_beside, clean_up)
STEPS += (say, progress, sleep, doze, draw)


def server_of(scripts):
    server = Server("generated", limits=LIMITS)

    @server.tool
    async def run(script: int, *, ctx: Context) -> list[str]:
        seen = []
        for step, amount in scripts[script]:
            try:
                await step(ctx, seen, amount)
            except MCPError as error:
                seen.append(type(error).__name__)
                break
        return [str(each) for each in seen]

    return server


# What clients do.


@attrs.define
class Rounded:
    """A client that calls by a timetable, and comes back to each question in some way or other."""

    timetable: list
    leaves_after: int
    _inboxes: dict = attrs.field(factory=dict, init=False)
    _ids: int = attrs.field(default=0, init=False)

    async def __call__(self, peer, _session):
        self._inboxes, self._ids = {}, 0
        with trio.move_on_after(self.leaves_after / 1000):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._receive, peer)
                for delay, script, ways in self.timetable:
                    await trio.sleep(delay / 1000)
                    nursery.start_soon(self._call, peer, script, ways)

    async def _receive(self, peer):
        while True:
            message = await peer.receive()
            inbox = self._inboxes.get(message.get("id"))
            if inbox is not None:
                inbox.send_nowait(message)

    def _request(self, params):
        self._ids += 1
        inbox, send_queue = trio.open_memory_channel(10)
        self._inboxes[self._ids] = inbox
        meta = METADATA if self._ids % 2 else {**METADATA, "progressToken": self._ids}
        request = {"id": self._ids, "method": "tools/call", "params": {**params, "_meta": meta}}
        return request, send_queue

    async def _call(self, peer, script, ways):
        first = {"name": "run", "arguments": {"script": script}}
        request, send_queue = self._request(first)
        await peer.send(request)
        for way, delay in ways:
            result = (await send_queue.receive()).get("result", {})
            if result.get("resultType") != "input_required":
                return
            await trio.sleep(delay / 1000)
            keys = [key for key in result["inputRequests"] if way != "partly" or key < "q2"]
            answer = {"action": "accept", "content": {"value": delay}}
            state = {"requestState": result["requestState"]}
            state["inputResponses"] = {key: dict(answer) for key in keys}
            if way == "wrongly":
                state["inputResponses"] = {key: {"action": 1} for key in keys}
            messages = []
            for _ in range(2 if way == "twice" else 1):
                request, send_queue = self._request({**first, **state})
                messages.append(request)
            if way == "not at all":
                cancelled = {"requestId": request["id"]}
                messages.append({"method": "notifications/cancelled", "params": cancelled})
            await peer.send(*messages)


steps = st.tuples(st.sampled_from(STEPS), st.integers(1, 20))
scripts_ = st.lists(st.lists(steps, min_size=1, max_size=5), min_size=3, max_size=3)
ways = st.tuples(
    st.sampled_from(("fully", "fully", "partly", "wrongly", "twice", "not at all")),
    st.sampled_from((0, 1, 5, 40)),
)
clients = st.builds(
    Rounded,
    timetable=st.lists(
        st.tuples(st.integers(0, 8), st.integers(0, 2), st.lists(ways, max_size=5)),
        min_size=1,
        max_size=6,
    ),
    leaves_after=st.integers(1, 120),
)


@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(scripts=scripts_, client=clients, number=st.integers(0, 99))
def test_multi_round_trip_requests_replay_byte_for_byte_under_every_schedule(
    world, scripts, client, number
):
    world.assert_same_whatever_the_schedule(lambda: server_of(scripts), client, number=number)
