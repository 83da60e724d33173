"""Random handlers made of everything that Trio code does: locks, limits, channels, races, clean-up.

A program is a tool handler that runs blocks, which a seed chooses. Blocks wait for real time, share
memory, start tasks, cancel each other, and call effects that are slow, raise nothing, and return
chance. Two live runs of one program hardly ever do the same.
"""

import math
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from contextvars import ContextVar
from typing import Any

import attrs
import trio
from memory_sessions import scripted_session

from mcp_trio import Context, Server
from mcp_trio.recording import TickClock

VARIABLE = ContextVar("variable", default=0)

PAUSES = (0, 0.0005, 0.001, 0.002)
DEPTH_MAX = 3


@attrs.define
class Run:
    """One call of a program: its context, the log that it returns, and memory shared by all."""

    ctx: Context
    log: list[Any]
    shared: dict[str, Any]

    def note(self, *facts: Any) -> None:
        self.shared["count"] += 1
        self.log.append([*facts, self.shared["count"]])


Block = Callable[[Run], Awaitable[None]]


# Effects.


async def fetch(number: int) -> list[float]:
    await trio.sleep(random.choice(PAUSES))
    return [number, random.randrange(1000)]


async def gather(number: int) -> list[int]:
    found: list[int] = []

    async def one(index: int) -> None:
        await trio.sleep(random.random() / 2000)
        found.append(index + number)

    async with trio.open_nursery() as nursery:
        for index in range(3):
            nursery.start_soon(one, index)
    return found


async def finish_shielded(number: int) -> float:
    with trio.CancelScope(shield=True):
        await trio.sleep(random.random() / 1000)
    return number + random.random()


# Blocks: each function takes the program's random source and inner blocks, and returns a block.


@attrs.define
class Parts:
    """The parts of a block."""

    inner: Sequence[Block]
    pause: float
    number: int
    effect: Callable[[int], Awaitable[Any]]

    async def together(self, each: Callable[[Block], Awaitable[None]]) -> None:
        async with trio.open_nursery() as nursery:
            for block in self.inner:
                nursery.start_soon(each, block)


def sleeping(parts: Parts) -> Block:
    return lambda _: trio.sleep(parts.pause)


def incrementing(parts: Parts) -> Block:
    async def block(run: Run) -> None:
        before = run.shared["count"]
        await trio.lowlevel.checkpoint()
        await trio.sleep(parts.pause)
        run.shared["count"] = before + 1  # A race: other tasks may have counted meanwhile.
        run.log.append(["incremented", before])

    return block


def calling(parts: Parts) -> Block:
    async def block(run: Run) -> None:
        run.note("effect", await run.ctx.effect(parts.effect, parts.number))

    return block


def receiving(parts: Parts) -> Block:
    async def block(run: Run) -> None:
        with trio.move_on_after(0.002) as scope:
            run.note("received", await run.shared["mail"].receive())
        run.note("in time", not scope.cancelled_caught)

    return block


def limiting(make_limit: Callable[[], Any]) -> Callable[[Parts], Block]:
    def make(parts: Parts) -> Block:
        async def block(run: Run) -> None:
            limit = make_limit()

            async def each(inner: Block) -> None:
                async with limit:
                    await inner(run)
                    run.note("limited")

            await parts.together(each)

        return block

    return make


def awaiting_event(parts: Parts) -> Block:
    async def block(run: Run) -> None:
        event = trio.Event()

        async def each(inner: Block) -> None:
            await event.wait()
            run.note("woken")
            await inner(run)

        async with trio.open_nursery() as nursery:
            for inner in parts.inner:
                nursery.start_soon(each, inner)
            await trio.sleep(parts.pause)
            event.set()

    return block


def spawning(parts: Parts) -> Block:
    async def block(run: Run) -> None:
        async def each(inner: Block) -> None:
            await inner(run)
            run.note("child")

        await parts.together(each)

    return block


def timing_out(parts: Parts) -> Block:
    async def block(run: Run) -> None:
        with trio.move_on_after(parts.pause) as scope:
            await parts.inner[0](run)
        run.note("timed out", scope.cancelled_caught)

    return block


def racing(parts: Parts) -> Block:
    async def block(run: Run) -> None:
        async with trio.open_nursery() as nursery:

            async def each(inner: Block, number: int) -> None:
                await inner(run)
                run.note("won", number)
                nursery.cancel_scope.cancel()

            for number, inner in enumerate(parts.inner):
                nursery.start_soon(each, inner, number)

    return block


def passing_on(parts: Parts) -> Block:
    async def block(run: Run) -> None:
        send, receive = trio.open_memory_channel[int](1)

        async def produce(number: int, channel: trio.MemorySendChannel[int]) -> None:
            async with channel:
                await trio.sleep(parts.pause * number)
                await channel.send(number)

        async with trio.open_nursery() as nursery:
            for number in range(len(parts.inner)):
                nursery.start_soon(produce, number, send.clone())
            await send.aclose()
            async for number in receive:
                run.note("passed", number)

    return block


def awaiting_condition(parts: Parts) -> Block:
    async def block(run: Run) -> None:
        condition = trio.Condition()

        async def each(inner: Block) -> None:
            async with condition:
                await condition.wait()
                run.note("notified")
            await inner(run)

        async with trio.open_nursery() as nursery:
            for inner in parts.inner:
                nursery.start_soon(each, inner)
            await trio.sleep(0.001)
            while nursery.child_tasks:
                async with condition:
                    condition.notify_all()
                await trio.sleep(0.0003)

    return block


def cleaning_up(parts: Parts) -> Block:
    async def block(run: Run) -> None:
        try:
            await parts.inner[0](run)
        finally:
            with trio.CancelScope(shield=parts.number % 2 == 0):
                run.note("cleaned", await run.ctx.effect(fetch, parts.number))

    return block


def generating(parts: Parts) -> Block:
    """A block that reads an async generator to its end, or leaves it to be garbage-collected."""

    async def block(run: Run) -> None:
        async def generate() -> AsyncGenerator[int]:
            try:
                for number, inner in enumerate(parts.inner):
                    await inner(run)
                    yield number
            finally:
                run.note("generator closed")
                if not is_abandoned:
                    await trio.sleep(parts.pause)

        is_abandoned = parts.number % 2 == 0
        if is_abandoned:
            async for number in generate():
                run.note("generated", number)
                break
        else:
            async with aclosing(generate()) as numbers:
                async for number in numbers:
                    run.note("generated", number)
        run.note("after the generator")

    return block


def scoping(parts: Parts) -> Block:
    """A block whose tasks inherit a context variable and set their own."""

    async def block(run: Run) -> None:
        async def each(inner: Block, number: int) -> None:
            inherited = VARIABLE.get()
            VARIABLE.set(number)
            await inner(run)
            run.note("variable", inherited, VARIABLE.get())

        VARIABLE.set(parts.number)
        async with trio.open_nursery() as nursery:
            for number, inner in enumerate(parts.inner):
                nursery.start_soon(each, inner, number)
        run.note("variable", VARIABLE.get())

    return block


def hosting(parts: Parts) -> Block:
    """A block that opens a nursery in which other requests start tasks."""

    async def block(run: Run) -> None:
        nurseries = run.shared["nurseries"]
        async with trio.open_nursery() as nursery:
            nurseries.append(nursery)
            try:
                await parts.inner[0](run)
                await trio.sleep(parts.pause)
            finally:
                nurseries.remove(nursery)
        run.note("hosted")

    return block


def visiting(parts: Parts) -> Block:
    """A block that starts a task in the nursery of any request; it waits for the start only."""

    async def block(run: Run) -> None:
        nurseries = run.shared["nurseries"]
        if not nurseries:
            return

        async def visit(*, task_status: trio.TaskStatus[None]) -> None:
            run.note("visiting")
            await trio.sleep(parts.pause)
            task_status.started()
            for _ in range(3):
                await trio.sleep(parts.pause)
                run.note("visited")

        with suppress(RuntimeError):  # the nursery's request was cancelled before the start
            await nurseries[parts.number % len(nurseries)].start(visit)
        run.note("started")

    return block


def detaching(parts: Parts) -> Block:
    """A block that starts a system task and callbacks, and waits for them."""

    async def block(run: Run) -> None:
        token, done = trio.lowlevel.current_trio_token(), trio.Event()

        async def work() -> None:
            run.note("in a system task")
            await trio.sleep(parts.pause)
            run.note("variable", VARIABLE.get())
            token.run_sync_soon(done.set)

        trio.lowlevel.spawn_system_task(work)
        token.run_sync_soon(run.note, "called back")
        with trio.CancelScope(shield=True):
            await done.wait()
        run.note("after the system task")

    return block


LEAVES = (sleeping, incrementing, calling, calling, receiving, visiting, detaching)
BRANCHES = (
    limiting(lambda: trio.Semaphore(2)),
    limiting(lambda: trio.CapacityLimiter(2)),
    limiting(trio.Lock),
    *(awaiting_event, spawning, timing_out, racing, passing_on, awaiting_condition, cleaning_up),
    *(generating, scoping, hosting),
)


def make_block(source: random.Random, depth: int) -> Block:
    make = source.choice((*LEAVES, *BRANCHES) if depth < DEPTH_MAX else LEAVES)
    count = source.randint(2, 4) if make in BRANCHES else 0
    return make(
        Parts(
            inner=[make_block(source, depth + 1) for _ in range(count)],
            pause=source.choice(PAUSES),
            number=source.randrange(1000),
            effect=source.choice((fetch, gather, finish_shielded)),
        )
    )


def make_server(seed: int) -> tuple[Server, dict[int, list[Any]]]:
    """Return the server of a program, and the logs of its calls, which grow as it runs."""
    source = random.Random(seed)
    blocks = [make_block(source, 0) for _ in range(4)]
    server, logs, shared = Server("program"), dict[int, list[Any]](), dict[str, Any]()

    def memory() -> dict[str, Any]:
        if not shared:
            send, receive = trio.open_memory_channel[int](math.inf)
            shared.update(count=0, mail=receive, send=send, nurseries=[])
        return shared

    @server.tool
    async def run(number: int, *, ctx: Context) -> str:
        log = logs.setdefault(number, [])
        for block in blocks:
            await block(Run(ctx, log, memory()))
        log.append("done")
        return str(log)

    @server.tool
    async def mail(number: int) -> None:
        memory()["send"].send_nowait(number)

    @server.tool
    def in_thread(number: int) -> None:
        async def wait_and_send(pause: float) -> None:
            await trio.sleep(pause)
            await memory()["send"].send(number)

        def count() -> None:
            memory()["count"] += 1

        for pause in PAUSES[number % len(PAUSES) :]:
            trio.from_thread.run(wait_and_send, pause)
            trio.from_thread.run_sync(count)

    return server, logs


async def talk(seed: int, path: str, server: Server) -> None:
    """Record a session with a program: calls that overlap, get mail, and are cancelled."""
    source = random.Random(seed)

    async def call(name: str, number: int, id: int) -> None:  # noqa: A002
        params = {"name": name, "arguments": {"number": number}}
        await peer.send_request("tools/call", params, id=id)
        await trio.sleep(random.choice(PAUSES))

    async with scripted_session(server, path) as (peer, _):
        await peer.handshake()
        for number in range(4):
            await call("run", number, 1000 + number)
            for _ in range(source.randint(0, 3)):
                tool = source.choice(("mail", "in_thread"))
                await call(tool, source.randrange(100), source.randrange(2000, 10**6))
            if source.random() < 0.5:
                await peer.cancel(1000 + source.randrange(number + 1))
        await trio.sleep(source.choice((0.001, 0.02, 0.02)))


def record(seed: int, path: str) -> str:
    """Record a session with a program; return what its calls have logged."""
    server, logs = make_server(seed)
    trio.run(talk, seed, path, server, clock=TickClock())
    return str(logs)
