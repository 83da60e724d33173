"""The servers of the golden recordings: each object has the name of its recording.

Whatever handlers share is touched only between two calls of the context, as a replay wants it.
`tools/make_recordings.py` made the recordings, `tools/recordings.py` replays them.
"""
# ruff: noqa: INP001  these are no package

import trio

from mcp_trio import ConnectionLost, Context, Limits, Server, ToolError

# counter: shared state, and updates that are lost because a handler asks the client in between.

counter = Server("counter")
_counted = {"total": 0}


@counter.tool
async def add(amount: int, *, ctx: Context) -> str:
    """Add to what was read before the client was asked."""
    before = _counted["total"]
    roots = await ctx.list_roots()
    _counted["total"] = before + amount * len(roots)
    await ctx.progress(1, 1)
    return f"{before} + {amount} = {_counted['total']}"


# ledger: shared state with an invariant that holds only between transfers.

ledger = Server("ledger")
_accounts = {"Ada": 100, "Ben": 100, "Cyd": 100}


@ledger.tool
async def transfer(source: str, target: str, amount: int, *, ctx: Context) -> str:
    """Move money; while the client is asked, it is in no account."""
    if _accounts.get(source, 0) < amount:
        raise ToolError(f"{source} has only {_accounts.get(source, 0)}")
    _accounts[source] -= amount
    await ctx.list_roots()
    _accounts[target] += amount
    await ctx.info(dict(_accounts))
    return f"{source} has {_accounts[source]}, {target} has {_accounts[target]}"


@ledger.tool
async def audit(*, ctx: Context) -> int:
    """The sum of all accounts, which tells what is on its way."""
    await ctx.progress(0)
    return sum(_accounts.values())


# auction: shared state, a raw lock of Trio, and handlers that come in order of the lock.

auction = Server("auction")
_bids: list[tuple[str, int]] = []
_hammer = trio.Lock()


@auction.tool
async def bid(bidder: str, amount: int, *, ctx: Context) -> str:
    """Bid, if that is more than the best so far; one at a time."""
    async with _hammer:
        await ctx.info(f"{bidder} has the floor")
        await ctx.list_roots()
        best = max(_bids, key=lambda each: each[1], default=("nobody", 0))
        if amount > best[1]:
            _bids.append((bidder, amount))
        await ctx.progress(len(_bids))
    return f"{bidder} bids {amount}, {best[0]} had bid {best[1]}"


# relay: one handler waits for another.

relay = Server("relay")
_batons = {name: trio.Event() for name in ("first", "second", "third")}


@relay.tool
async def run_leg(after: str, before: str, *, ctx: Context) -> str:
    """Wait for the leg before, run, and hand over."""
    if after in _batons:
        await _batons[after].wait()
    await ctx.progress(0.5, 1)
    await trio.sleep(0.004)
    await trio.sleep(0.004)
    await ctx.info(f"{after} is run")
    if before in _batons:
        _batons[before].set()
    await ctx.progress(1, 1)
    return f"from {after} to {before}"


# cancelled: handlers cancelled while they wait, before they start, and in the queue.

cancelled = Server("cancelled", limits=Limits(handlers_in_flight_max=3))
_cleaned: list[str] = []


@cancelled.tool
async def sleep(name: str, *, ctx: Context) -> str:
    """Sleep until cancelled; say so while leaving."""
    try:
        await trio.sleep_forever()
    finally:
        with trio.CancelScope(shield=True):
            await ctx.info(f"{name} is leaving")
        _cleaned.append(name)


@cancelled.tool
async def ask(name: str, *, ctx: Context) -> str:
    """Ask the client for roots."""
    roots = await ctx.list_roots()
    return f"{name}: {len(roots)} roots, gone: {', '.join(_cleaned)}"


# nursery: a handler with tasks of its own, which end in the order of their sleeps.

nursery = Server("nursery")


@nursery.tool
async def gather(parts: int, *, ctx: Context) -> list[str]:
    """Work on parts at once; a heartbeat runs beside them until they are done."""
    done: list[str] = []

    async def beat() -> None:
        for number in range(1, 100):
            await trio.sleep(0.003)
            await ctx.progress(number)

    async def work(part: int) -> None:
        await trio.sleep(0.002 * (parts - part))
        await ctx.info(f"part {part}")
        done.append(f"part {part}")
        if part % 2:
            await ctx.list_roots()
            done.append(f"roots for part {part}")

    async with trio.open_nursery() as beating:
        beating.start_soon(beat)
        async with trio.open_nursery() as working:
            for part in range(parts):
                working.start_soon(work, part)
        await ctx.info("all parts")
        beating.cancel_scope.cancel()
    return done


# deadlines: sleeps, and questions that the client answers too late.

deadlines = Server("deadlines")


@deadlines.tool
async def hurry(milliseconds: int, *, ctx: Context) -> list[str]:
    """Ask three times, each time for no longer than so many milliseconds."""
    told: list[str] = []
    for number in range(3):
        with trio.move_on_after(milliseconds / 1000) as scope:
            roots = await ctx.list_roots()
            told.append(f"{len(roots)} roots")
        if scope.cancelled_caught:
            told.append("too late")
        await ctx.progress(number + 1, 3)
        with trio.move_on_after(0.001):
            await trio.sleep_forever()
    return told


# leaving: a client that leaves while handlers run; what can finish in time does.

leaving = Server("leaving", limits=Limits(drain_seconds=0.05))


@leaving.tool
async def finish(milliseconds: int, *, ctx: Context) -> str:
    """Take so many milliseconds."""
    await ctx.info("begun")
    await trio.sleep(milliseconds / 1000)
    await ctx.info("done")
    return f"took {milliseconds} ms"


# stopped: a server that closes while handlers run.

stopped = Server("stopped")


@stopped.tool
async def persist(name: str, *, ctx: Context) -> str:
    """Ask the client, who never answers; the server closes before that."""
    try:
        await ctx.list_roots()
    except ConnectionLost:
        with trio.CancelScope(shield=True):
            await ctx.warning(f"{name} was cut short")
    return name
