"""Property: generated handlers replay byte for byte under every schedule."""

import tempfile
import time
from contextlib import suppress
from pathlib import Path

import attrs
import httpx2
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcp_trio import Context, Elicitation, Limits, MCPError, Server, ToolError, effect
from mcp_trio._session.tasks import seeded_schedule
from mcp_trio.errors import ReplayDivergence
from mcp_trio.http import EffectTransport
from mcp_trio.limits import RequestLimits, ShutdownLimits
from mcp_trio.recording import replay

# httpx2 leaves a response open when it is cancelled, which is not tested here.

EVENTS = range(3)
KINDS = ("tools", "prompts")

# Steps of handlers. Shared memory is touched only between two calls of the context.


@attrs.define
class World:
    """The memory that the handlers of one server share; each of `locked` only under its lock."""

    total: int = 0
    locked: list = attrs.field(factory=lambda: [0, 0])
    log: list = attrs.field(factory=list)
    grown: list = attrs.field(factory=list)
    events: list = attrs.field(factory=lambda: [trio.Event() for _ in EVENTS])


async def race(world, ctx, seen, amount):
    """Lose an update if another handler runs while the client answers."""
    await ctx.info("race")
    before = world.total
    await ctx.list_roots()
    world.total = before + amount
    await ctx.info([before, world.total])
    seen.append(before)


async def log(world, ctx, seen, amount):
    await ctx.info("say")
    world.log.append(amount)
    await ctx.info(list(world.log))


async def ask(world, ctx, seen, amount):
    seen.append(len(await ctx.list_roots()))


async def ask_within(world, ctx, seen, amount):
    with trio.move_on_after(amount / 1000):
        await ctx.list_roots()
        seen.append("answered")
    seen.append("went on")


async def progress(world, ctx, seen, amount):
    await ctx.report_progress(len(seen) + 1)


async def change(world, ctx, seen, amount):
    """Announce a changed list, for some amounts twice, with other tasks in between."""
    ctx.server.list_changed(KINDS[amount % len(KINDS)])
    if amount > 10:
        await trio.sleep((amount - 11) / 1000)
        ctx.server.list_changed(KINDS[amount % len(KINDS)])


async def grow(world, ctx, seen, amount):
    """Register or remove a tool, perhaps while the client reads the list of tools."""
    await ctx.info("grow")
    name = f"t{amount % 2}"
    if name in world.grown:
        world.grown.remove(name)
        ctx.server.remove_tool(name)
    else:
        world.grown.append(name)
        ctx.server.tool(name=name)(nothing)


async def nothing():
    pass


async def sample(world, ctx, seen, amount):
    """Ask for a model's message; the progress callback makes calls of its own."""

    async def report(params):
        await trio.sleep(amount / 4000)
        await ctx.info(["report", params.progress])

    seen.append((await ctx.sample("Why?", progress=report)).model)


async def sleep(world, ctx, seen, amount):
    await trio.sleep(amount / 1000)


async def sleep_twice(world, ctx, seen, amount):
    await trio.sleep(amount / 1500)
    await trio.sleep(amount / 1500)


async def time_out(world, ctx, seen, amount):
    with trio.move_on_after(amount / 1000):
        await trio.sleep_forever()


async def checkpoint(world, ctx, seen, amount):
    await trio.lowlevel.checkpoint()


async def signal(world, ctx, seen, amount):
    await ctx.info("signal")
    world.events[amount % len(EVENTS)].set()
    await ctx.info("signalled")


async def wait(world, ctx, seen, amount):
    await world.events[amount % len(EVENTS)].wait()


async def shield(world, ctx, seen, amount):
    with trio.CancelScope(shield=True):
        await trio.sleep(amount / 1000)
        await ctx.info("shielded")


async def clean_up(world, ctx, seen, amount):
    """Sleep, and make a call under a shield at the end.

    The sleep never ends at the time of a cancellation, since records do not show which came first.
    """
    try:
        await trio.sleep(amount * 1.0137 / 1000)
    finally:
        with trio.CancelScope(shield=True):
            await ctx.list_roots()


async def fail(world, ctx, seen, amount):
    if amount > 15:
        raise ToolError(f"failed at {amount}")


async def nest(world, ctx, seen, amount):
    async def child(number):
        await trio.sleep(number * amount / 1000)
        await ctx.info(["child", number])

    async with trio.open_nursery() as nursery:
        for number in range(2):
            nursery.start_soon(child, number)


# External calls, by effects; memory that is shared with threads, behind a lock.


@effect
async def fetch(amount: int) -> int:
    await trio.sleep(amount / 1000)
    if amount > 17:
        raise ValueError(amount)
    return amount * 2


@effect
def look(amount: int) -> float:
    return time.time() * amount


def count(world: object, amount: int) -> int:
    return amount + 1


async def use_effects(world, ctx, seen, amount):
    await ctx.info("use effects")
    before = world.total
    try:
        seen.append(await fetch(amount))
    except ValueError as error:
        seen.append(error)
    world.total = before + amount
    seen.append(look(amount))
    await ctx.info(world.total)


async def read_clocks(world, ctx, seen, amount):
    seen += [ctx.now(), ctx.monotonic(), ctx.random.random(), ctx.uuid4()]


async def doze(world, ctx, seen, amount):
    with trio.move_on_after(amount / 2000):
        await ctx.sleep(amount / (1500 if amount % 2 else 2500))
    seen.append(ctx.monotonic())


async def hurry(world, ctx, seen, amount):
    try:
        with ctx.timeout(amount / 1000):
            await fetch(amount % 7)
            await trio.sleep_forever()
    except trio.TooSlowError:
        seen.append("too slow")


async def lock(world, ctx, seen, amount):
    which = amount % 2
    async with ctx.lock(f"lock {which}"):
        before = world.locked[which]
        await trio.sleep(amount / 3000)
        world.locked[which] = before + 1
        await ctx.info(world.locked[which])


async def off_load(world, ctx, seen, amount):
    seen.append(await ctx.to_thread(count, None, amount))


async def patch(world, ctx, seen, amount):
    if ctx.patched(f"patch {amount % 3}"):
        await ctx.info("patched")


async def download(world, ctx, seen, amount):
    transport = EffectTransport(httpx2.MockTransport(lambda _: httpx2.Response(200, text="x")))
    async with httpx2.AsyncClient(transport=transport) as client:
        seen.append((await client.get(f"http://x.example/{amount}")).text)


async def nest_effects(world, ctx, seen, amount):
    async with trio.open_nursery() as nursery:
        for step in (use_effects, doze, lock):
            nursery.start_soon(step, world, ctx, seen, amount)


STEPS = (
    race, log, ask, ask_within, progress, sleep, sleep_twice, time_out, checkpoint, signal, wait,
    shield, clean_up, fail, nest, change, grow, sample, use_effects, read_clocks, doze, hurry, lock,
    off_load, patch, download, nest_effects,
)  # fmt: skip
PLACES = Limits(
    requests=RequestLimits(in_flight_max=3, queued_max=4),
    shutdown=ShutdownLimits(drain_seconds=0.05),
)


def server_of(scripts):
    world = World()
    server = Server("generated", limits=PLACES, offers=KINDS)

    @server.tool
    async def run(script: int, *, ctx: Context) -> list[str]:
        seen = []
        for step, amount in scripts[script]:
            try:
                await step(world, ctx, seen, amount)
            except MCPError as error:
                if isinstance(error, ToolError):
                    raise
                seen.append(type(error).__name__)
                break
        return [str(each) for each in seen]

    @server.method("notifications/acme/tick")
    async def tick() -> None:
        world.log.append("tick")
        if len(world.log) % 2:
            server.list_changed("prompts")
            await trio.sleep(0.002)

    return server


# Steps of clients.


@attrs.define
class Scripted:
    """A client that calls and cancels by a timetable, and answers each question after a while."""

    timetable: list
    delays: list
    leaves_after: int

    async def __call__(self, peer, _session):
        await peer.handshake(capabilities={"roots": {}, "sampling": {}})
        with trio.move_on_after(self.leaves_after / 1000):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._answer, peer, nursery)
                for number, (delay, script, cancels_after) in enumerate(self.timetable):
                    await trio.sleep(delay / 1000)
                    nursery.start_soon(self._call, peer, number, script, cancels_after)

    async def _call(self, peer, number, script, cancels_after):
        meta = {"progressToken": number} if number % 2 else {}
        params = {"name": "run", "arguments": {"script": script}, "_meta": meta}
        messages = [{"id": number, "method": "tools/call", "params": params}]
        cancel = {"method": "notifications/cancelled", "params": {"requestId": number}}
        if cancels_after == 0:
            messages.append(cancel)
        if number % 3:
            messages.insert(number % 2, {"method": "notifications/acme/tick"})
            messages.append({"id": f"tools {number}", "method": "tools/list"})
        await peer.send(*messages)
        if cancels_after:
            await trio.sleep(cancels_after / 1000)
            await peer.send(cancel)

    async def _answer(self, peer, nursery):
        asked = 0
        while True:
            message = await peer.receive()
            if "id" in message and "method" in message:
                nursery.start_soon(self._answer_one, peer, message, asked)
                asked += 1

    async def _answer_one(self, peer, question, number):
        delay_seconds = self.delays[number % len(self.delays)] / 1000
        await trio.sleep(delay_seconds)
        if question["method"] == "roots/list":
            await peer.send_result(question, {"roots": [{"uri": "file:///a"}] * (number % 3)})
            return
        token = question["params"]["_meta"]["progressToken"]
        for progress in range(number % 4):
            params = {"progressToken": token, "progress": progress}
            await peer.send_notification("notifications/progress", params)
            await trio.sleep(delay_seconds * progress)
        text = {"type": "text", "text": "So."}
        await peer.send_result(question, {"role": "assistant", "model": "m", "content": text})


steps = st.tuples(st.sampled_from(STEPS), st.integers(1, 20))
scripts_ = st.lists(st.lists(steps, max_size=6), min_size=3, max_size=3)
clients = st.builds(
    Scripted,
    timetable=st.lists(
        st.tuples(
            st.integers(0, 4), st.integers(0, 2), st.none() | st.just(0) | st.integers(1, 15)
        ),
        min_size=2,
        max_size=8,
    ),
    delays=st.lists(st.integers(0, 12), min_size=1, max_size=4),
    leaves_after=st.integers(1, 80),
)
quickly = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.filterwarnings("ignore:Async generator 'httpx2:ResourceWarning")
@pytest.mark.slow
@quickly
@given(scripts=scripts_, client=clients, number=st.integers(0, 99))
def test_handlers_send_the_same_bytes_in_the_same_order_whatever_the_schedule(
    world, scripts, client, number
):
    world.assert_same_whatever_the_schedule(lambda: server_of(scripts), client, number=number)


# Outside the guarantees of replay, no difference is silent.


async def race_raw(world, ctx, seen, amount):
    """Shared memory on both sides of a sleep that the journal does not know."""
    before = world.total
    await trio.sleep(amount / 1000)
    world.total = before + amount
    seen.append(world.total)


raw_steps = st.tuples(
    st.sampled_from((race_raw, checkpoint, signal, wait, nest)), st.integers(1, 4)
)


@pytest.mark.filterwarnings("ignore:Async generator 'httpx2:ResourceWarning")
@pytest.mark.slow
@quickly
@given(
    scripts=st.lists(st.lists(raw_steps, max_size=6), min_size=3, max_size=3),
    client=clients,
    number=st.integers(0, 99),
)
def test_a_race_that_the_journal_cannot_know_is_replayed_or_reported_but_never_silent(
    world, scripts, client, number
):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.mcprec.jsonl")
        world.record(server_of(scripts), path, client, number=number)
        for other in (number + 100, number + 200):
            with suppress(ReplayDivergence):
                replayed = world.replayed(path, server_of(scripts), number=other)
                assert replayed.sent_messages == world.sent_frames(path)


# A control: if lanes do not wait for their turn, replays differ.


class Eager:
    """A sequencer that lets each step begin at once."""

    def __init__(self, sequencer):
        self.sequencer = sequencer

    def __getattr__(self, name):
        return getattr(self.sequencer, name)

    def step(self, lane):
        """Return None: the lane need not wait."""


@attrs.define
class Ungated:
    """A server whose handlers do not wait for their turn in a replay, for a control."""

    server: object

    @property
    def limits(self):
        return self.server.limits

    @property
    def _sessions(self):
        return self

    @property
    def registry(self):
        return self.server._sessions.registry

    def open_session(self, channel, *, sequencer, lifespan):
        eager = Eager(sequencer)
        return self.server._sessions.open_session(channel, sequencer=eager, lifespan=lifespan)


def differs(path, server, number):
    try:
        with seeded_schedule(number):
            replay(path, server)
    except ReplayDivergence:
        return True
    return False


@pytest.mark.filterwarnings("ignore:Async generator 'httpx2:ResourceWarning")
@pytest.mark.slow
def test_without_the_schedule_most_replays_differ(world, tmp_path):
    script = [(race, 3), (sleep, 2), (log, 1), (nest, 2), (race, 5)]
    client = Scripted([(0, 0, None)] * 8, [3, 1, 2], 200)
    path = world.record(server_of([script]), tmp_path / "a.mcprec.jsonl", client)
    gated = [differs(path, server_of([script]), number) for number in range(20)]
    ungated = [differs(path, Ungated(server_of([script])), number) for number in range(20)]
    assert not any(gated)
    assert sum(ungated) > 10


# Property: generated handlers with multi round-trip requests replay under every schedule.


LIMITS = Limits(
    requests=RequestLimits(in_flight_max=2, queued_max=3, suspended_max=3, suspended_seconds=0.03),
    shutdown=ShutdownLimits(drain_seconds=0.05),
)
METADATA = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
    "io.modelcontextprotocol/logLevel": "debug",
}

# Steps of handlers.


async def ask_multi_round_trip_programs(ctx, seen, amount):
    seen.append((await ctx.elicit(f"Ask {amount}", int)).data)


async def ask_two(ctx, seen, amount):
    questions = (Elicitation("First", int), Elicitation(f"Second {amount}", int))
    seen += [answer.data for answer in await ctx.ask_all(*questions)]


async def ask_in_tasks(ctx, seen, amount):
    async def child(number):
        await trio.sleep(number * amount / 3000)
        await ask_multi_round_trip_programs(ctx, seen, number)
        await ctx.info(["child", number, list(seen)])

    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(child, number)


async def ask_within_multi_round_trip_programs(ctx, seen, amount):
    with trio.move_on_after(amount / 1000):
        await ask_multi_round_trip_programs(ctx, seen, amount)
        seen.append("answered")
    seen.append("went on")


async def ask_beside(ctx, seen, amount):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask_multi_round_trip_programs, ctx, seen, amount)
        for number in range(3):
            await trio.sleep(amount / 2000)
            await ctx.info(["beside", number, list(seen)])
            await ctx.report_progress(len(seen) + number)


async def clean_up_multi_round_trip_programs(ctx, seen, amount):
    async def child(number):
        try:
            await trio.sleep(number * amount / 500)
        finally:
            with trio.CancelScope(shield=True):
                await ctx.info(["clean up", number])
                await ask_multi_round_trip_programs(ctx, seen, number)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask_multi_round_trip_programs, ctx, seen, amount)
        for number in range(2):
            nursery.start_soon(child, number)


async def log_multi_round_trip_programs(ctx, seen, amount):
    await ctx.info(["say", amount, list(seen)])


async def progress_multi_round_trip_programs(ctx, seen, amount):
    await ctx.report_progress(len(seen) + 1)


async def sleep_multi_round_trip_programs(ctx, seen, amount):
    await trio.sleep(amount / 1000)


async def doze_multi_round_trip_programs(ctx, seen, amount):
    await ctx.sleep(amount / 1000)
    seen.append(ctx.monotonic())


async def draw(ctx, seen, amount):
    seen.append(ctx.random.random())


STEPS_MULTI_ROUND_TRIP_PROGRAMS = (
    ask_multi_round_trip_programs,
    ask_two,
    ask_in_tasks,
    ask_within_multi_round_trip_programs,
    ask_beside,
    clean_up_multi_round_trip_programs,
)
STEPS_MULTI_ROUND_TRIP_PROGRAMS += (
    log_multi_round_trip_programs,
    progress_multi_round_trip_programs,
    sleep_multi_round_trip_programs,
    doze_multi_round_trip_programs,
    draw,
)


def server_of_multi_round_trip_programs(scripts):
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


# Steps of clients.


@attrs.define
class Rounded:
    """A client that calls by a timetable, and retries each request that asks for input."""

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


steps_multi_round_trip_programs = st.tuples(
    st.sampled_from(STEPS_MULTI_ROUND_TRIP_PROGRAMS), st.integers(1, 20)
)
scripts__multi_round_trip_programs = st.lists(
    st.lists(steps_multi_round_trip_programs, min_size=1, max_size=5), min_size=3, max_size=3
)
ways = st.tuples(
    st.sampled_from(("fully", "fully", "partly", "wrongly", "twice", "not at all")),
    st.sampled_from((0, 1, 5, 40)),
)
clients_multi_round_trip_programs = st.builds(
    Rounded,
    timetable=st.lists(
        st.tuples(st.integers(0, 8), st.integers(0, 2), st.lists(ways, max_size=5)),
        min_size=1,
        max_size=6,
    ),
    leaves_after=st.integers(1, 120),
)


@pytest.mark.slow
@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(
    scripts=scripts__multi_round_trip_programs,
    client=clients_multi_round_trip_programs,
    number=st.integers(0, 99),
)
def test_multi_round_trip_requests_replay_byte_for_byte_under_every_schedule(
    world, scripts, client, number
):
    world.assert_same_whatever_the_schedule(
        lambda: server_of_multi_round_trip_programs(scripts), client, number=number
    )
