"""Random servers whose lifespan has workers, with which handlers share channels, limits and tasks.

The blocks are those of `generated_programs`. Workers of the lifespan run them too, and take jobs of
handlers. Handlers start tasks in the lifespan's nursery, and in nurseries that other requests have
opened. A worker may fail, the server may be cancelled, and the clean-up may be slow.
"""

import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any

import attrs
import trio

from mcp_trio import Context, Server, effect
from mcp_trio._server.sessions import HandlerHttpClient, sessions_of
from mcp_trio.recording import SharedRecording, TickClock
from mcp_trio.testing import WirePeer
from mcp_trio.transports import memory_pair
from tests.replay.generated_programs import PAUSES, Block, Run, fetch, make_block

SESSIONS_MAX = 3
NAME: ContextVar[str] = ContextVar("name")

GONE = (trio.BrokenResourceError, trio.ClosedResourceError, EOFError)


class WorkerContext:
    """What blocks need of a context, in a task that has none."""

    async def effect(self, function: Callable[[int], Awaitable[Any]], number: int) -> Any:
        return await effect(function)(number)


@attrs.define
class Hub:
    """The value of the lifespan: what workers and handlers share."""

    nursery: trio.Nursery
    jobs: trio.MemorySendChannel[tuple[int, trio.MemorySendChannel[int]]]
    shared: dict[str, Any]
    log: list[Any]
    limiter: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(2))
    lock: trio.Lock = attrs.field(factory=trio.Lock)
    ticked: trio.Event = attrs.field(factory=trio.Event)
    rooms: list[trio.Nursery] = attrs.field(factory=list[trio.Nursery])

    def run(self) -> Run:
        """Return a run of a block in a task of the lifespan."""
        context: Any = WorkerContext()
        return Run(context, self.log, self.shared)


@attrs.define
class Plan:
    """What a seed chooses for one server."""

    source: random.Random
    blocks: list[Block] = attrs.field(init=False)
    workers: int = attrs.field(init=False)
    capacity: int = attrs.field(init=False)
    tick: float = attrs.field(init=False)
    fails: bool = attrs.field(init=False)
    ending: str = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        source = self.source
        self.blocks = [make_block(source, 1) for _ in range(4)]
        self.workers, self.capacity = source.randint(1, 3), source.randint(0, 2)
        self.tick = source.choice(PAUSES[1:])
        self.fails = source.random() < 0.15
        self.ending = source.choice(("cancel", "drain", "sleep"))


# What a handler does with the hub.


async def post_job(hub: Hub, run: Run, plan: Plan, number: int) -> None:
    reply, answers = trio.open_memory_channel[int](1)
    with answers:
        await hub.jobs.send((number, reply))
        with trio.move_on_after(0.004):
            run.note("answer", await answers.receive())


async def share_limit(hub: Hub, run: Run, plan: Plan, number: int) -> None:
    async with hub.limiter, hub.lock:
        await plan.blocks[number % 4](run)
    run.note("limited")


async def await_tick(hub: Hub, run: Run, plan: Plan, number: int) -> None:
    await hub.ticked.wait()
    run.note("ticked", hub.shared["count"], NAME.get())


async def start_in_lifespan(hub: Hub, run: Run, plan: Plan, number: int) -> None:
    async def outlive() -> None:
        await plan.blocks[number % 4](hub.run())
        hub.log.append(["outlived", number])

    hub.nursery.start_soon(outlive)
    await trio.sleep(random.choice(PAUSES))


async def open_room(hub: Hub, run: Run, plan: Plan, number: int) -> None:
    async with trio.open_nursery() as room:
        hub.rooms.append(room)
        try:
            await trio.sleep(PAUSES[number % 4])
            await plan.blocks[number % 4](run)
        finally:
            hub.rooms.remove(room)


async def enter_room(hub: Hub, run: Run, plan: Plan, number: int) -> None:
    async def visit() -> None:
        await plan.blocks[number % 4](run)
        run.note("visited")

    if hub.rooms:
        hub.rooms[0].start_soon(visit)
    run.note("rooms", len(hub.rooms))


ACTIONS = (post_job, post_job, share_limit, await_tick, start_in_lifespan, open_room, enter_room)


def make_server(seed: int) -> tuple[Server, list[Any]]:
    """Return a server, and the log of all that its lifespan and its calls do."""
    plan = Plan(random.Random(seed))
    log: list[Any] = []

    @asynccontextmanager
    async def lifespan(_: Server) -> AsyncGenerator[Hub]:
        NAME.set(f"hub {await effect(fetch)(seed)}")
        send, receive = trio.open_memory_channel[Any](plan.capacity)
        mail_send, mail = trio.open_memory_channel[int](1000)
        shared: dict[str, Any] = {"count": 0, "mail": mail, "send": mail_send, "nurseries": []}

        async def work(number: int, jobs: trio.MemoryReceiveChannel[Any]) -> None:
            async with jobs:
                async for job, reply in jobs:
                    with trio.move_on_after(0.01):
                        await plan.blocks[job % 4](hub.run())
                    log.append(["worked", number, job])
                    if plan.fails and job % 5 == 0:
                        raise ValueError(job)
                    with suppress(trio.BrokenResourceError, trio.WouldBlock):
                        reply.send_nowait(job)

        async def tick() -> None:
            while True:
                await trio.sleep(plan.tick)
                shared["count"] += 1
                hub.ticked.set()
                hub.ticked = trio.Event()

        try:
            async with trio.open_nursery() as nursery:
                hub = Hub(nursery, send, shared, log)
                for number in range(plan.workers):
                    nursery.start_soon(work, number, receive.clone())
                nursery.start_soon(tick)
                await receive.aclose()
                yield hub
                log.append("ending")
                if plan.ending == "sleep":
                    await trio.sleep(0.003)
                if plan.ending == "drain":
                    await send.aclose()
                    with trio.move_on_after(0.002):
                        await trio.sleep_forever()
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                log.append(["cleaned up", await effect(fetch)(seed)])

    server = Server("hub", lifespan=lifespan)

    @server.tool
    async def act(number: int, *, ctx: Context) -> str:
        hub: Hub = ctx.lifespan
        found: list[Any] = []
        run = Run(ctx, found, hub.shared)
        for step in range(3):
            await ACTIONS[(number // 7**step) % 7](hub, run, plan, number)
        log.append(["acted", number, *found])
        return str(found)

    return server, log


async def _talk(seed: int, server: Server, serve: Callable[..., Awaitable[None]]) -> None:
    ours, theirs = memory_pair()
    peer, source = WirePeer(theirs), random.Random(seed)
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve, ours))
        with suppress(*GONE):
            await peer.handshake()
            for number in range(5):
                params = {"name": "act", "arguments": {"number": source.randrange(7**3)}}
                await peer.send_request("tools/call", params, id=1000 + number)
                await trio.sleep(random.choice(PAUSES))
                if source.random() < 0.4:
                    await peer.cancel(1000 + source.randrange(number + 1))
            await trio.sleep(source.choice((0.001, 0.02, 0.02)))
        await peer.aclose()


async def _record_one(seed: int, path: str, server: Server) -> None:
    async def serve(channel: Any, task_status: Any) -> None:
        await server.serve(channel, record=path, task_status=task_status)

    await _talk(seed, server, serve)


async def _record_several(seed: int, path: str, server: Server) -> None:
    """Record sessions that share a lifespan, as those of a listener do."""
    sessions = sessions_of(server)
    with SharedRecording(path) as shared:
        async with (
            sessions.enter_lifespan(shared, transport="memory") as lifespan,
            HandlerHttpClient(1) as http,
            trio.open_nursery() as nursery,
        ):
            serve = partial(sessions.serve_session, lifespan=lifespan, http=http)
            for number in range(SESSIONS_MAX):
                nursery.start_soon(_talk, seed + number, server, serve)
                await trio.sleep(random.choice(PAUSES))


def record(seed: int, path: str) -> str:
    """Record the sessions of a server; return what its lifespan and its calls have logged.

    Every fifth server is cancelled from outside, at any moment.
    """
    server, log = make_server(seed)
    talk = (_record_one, _record_several)[seed % 2]
    is_cancelled = seed % 5 == 0

    async def main() -> None:
        with trio.move_on_after(random.random() / 20 if is_cancelled else 60) as scope:
            try:
                await talk(seed, path, server)
            except* ValueError:  # A worker of the lifespan has failed.
                pass
        assert is_cancelled or not scope.cancelled_caught

    trio.run(main, clock=TickClock())
    return str(log)
