"""The servers of the golden recordings, by their names in `tools/golden_recordings.py`.

Whatever handlers share is touched only between two calls of the context, as a replay wants it.
`tools/make_recordings.py` made the recordings, `tools/check_recordings.py` replays them.
"""
# ruff: noqa: INP001  these are no package

import base64

import httpx2
import trio

from mcp_trio import ConnectionLost, Context, Limits, Server, ThreadContext, ToolError, effect
from mcp_trio.http import EffectTransport
from mcp_trio.limits import RequestLimits, ShutdownLimits

# counter: shared state, and updates that are lost because a handler asks the client in between.

counter = Server("counter")
_counted = {"total": 0}


@counter.tool
async def add(amount: int, *, ctx: Context) -> str:
    """Add to what was read before the client was asked."""
    before = _counted["total"]
    roots = await ctx.list_roots()
    _counted["total"] = before + amount * len(roots)
    await ctx.report_progress(1, 1)
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
    await ctx.report_progress(0)
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
        await ctx.report_progress(len(_bids))
    return f"{bidder} bids {amount}, {best[0]} had bid {best[1]}"


# relay: one handler waits for another.

relay = Server("relay")
_batons = {name: trio.Event() for name in ("first", "second", "third")}


@relay.tool
async def run_leg(after: str, before: str, *, ctx: Context) -> str:
    """Wait for the leg before, run, and hand over."""
    if after in _batons:
        await _batons[after].wait()
    await ctx.report_progress(0.5, 1)
    await trio.sleep(0.004)
    await trio.sleep(0.004)
    await ctx.info(f"{after} is run")
    if before in _batons:
        _batons[before].set()
    await ctx.report_progress(1, 1)
    return f"from {after} to {before}"


# cancelled: handlers cancelled while they wait, before they start, and in the queue.

cancelled = Server("cancelled", limits=Limits(requests=RequestLimits(in_flight_max=3)))
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
            await ctx.report_progress(number)

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
        await ctx.report_progress(number + 1, 3)
        with trio.move_on_after(0.001):
            await trio.sleep_forever()
    return told


# leaving: a client that leaves while handlers run; what can finish in time does.

leaving = Server("leaving", limits=Limits(shutdown=ShutdownLimits(drain_seconds=0.05)))


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


# effects: all that handlers reach the outside by, and all that can come of it.

effects = Server("effects")
_shelves: dict[str, float] = {}


class UnknownParcel(Exception):  # noqa: N818  no replay finds this class: `ReplayedError` stands for it
    """What the depot raises for what it does not know."""


_FAULTS: dict[str, Exception] = {
    "key": KeyError("parcel 7"),
    "file": FileNotFoundError(2, "No such file or directory", "parcel 7"),
    "group": ExceptionGroup("two at once", [ValueError("one"), KeyError("two")]),
    "unknown": UnknownParcel("parcel 7"),
}


@effect
async def look_up(parcel: str) -> dict[str, float]:
    """What a slow depot knows of a parcel."""
    await trio.sleep(0.002)
    return {parcel: len(parcel) / 4}


@effect
def weigh(parcel: str) -> int:
    """Read the scales, without waiting."""
    if not parcel:
        raise ValueError("nothing on the scales")
    return len(parcel) * 100


@effect
async def fail(fault: str) -> None:
    """Raise what went wrong in the depot."""
    await trio.sleep(0.001)
    raise _FAULTS[fault]


async def store(parcel: str, *, shelf: float) -> None:
    """Put a parcel on its shelf."""
    await trio.sleep(0.001)
    _shelves[parcel] = shelf


async def wait_for_van() -> str:
    """Wait for what does not come today."""
    await trio.sleep(60)
    return "the van"


def stamp(parcel: str) -> str:
    """Stamp a parcel."""
    return f"*{parcel}*"


def wrap(parcel: str) -> tuple[str, int]:
    """Wrap a parcel, which takes its time."""
    return f"[{parcel}]", len(parcel)


@effects.tool
async def deliver(parcel: str, *, ctx: Context) -> list[str]:
    """Functions of all kinds, a sleep and a lock."""
    shelf = (await look_up(parcel))[parcel]
    told = [f"shelf {shelf}", f"{weigh(parcel)} g", await ctx.effect(stamp, parcel)]
    wrapped, count = await ctx.to_thread(wrap, parcel)
    await ctx.effect(store, wrapped, shelf=shelf)
    await ctx.sleep(0.003)
    async with ctx.lock("desk"):
        await ctx.info(f"{parcel} is at the desk")
        await ctx.sleep(0.002)
    return [*told, f"{wrapped} {count}"]


@effects.tool
async def journal(*, ctx: Context) -> str:
    """Clocks and chance; the child task has chance of its own."""
    before = ctx.monotonic()
    told = [ctx.now().isoformat(), str(ctx.uuid4()), str(ctx.random.random())]

    async def roll() -> None:
        told.append(str(ctx.random.random()))

    async with trio.open_nursery() as rolling:
        rolling.start_soon(roll)
    await ctx.sleep(0.001)
    return " ".join([*told, str(ctx.monotonic() - before)])


@effects.tool
async def misfortunes(*, ctx: Context) -> list[str]:
    """Errors that come again as they were, and one that only a stand-in can tell of."""
    told: list[str] = []
    for fault in _FAULTS:
        try:
            await fail(fault)
        except (LookupError, OSError) as error:
            told.append(f"{type(error).__name__}: {error}")
        except ExceptionGroup as group:
            told.append(f"{group}: {group.exceptions}")
        except Exception as error:  # whatever stands for it
            told.append(f"something with {'parcel 7' in str(error)}")
    try:
        weigh("")
    except ValueError as error:
        told.append(str(error))
    await ctx.info(len(told))
    return told


@effects.tool
async def wait(milliseconds: int, *, ctx: Context) -> str:
    """Wait for the van, for no longer than so many milliseconds."""
    try:
        with ctx.timeout(milliseconds / 1000):
            return await ctx.effect(wait_for_van)
    except trio.TooSlowError:
        return "no van"
    finally:
        with trio.CancelScope(shield=True):
            await ctx.effect(store, "waiting is over", shelf=0)


# http: requests by the context's client and by one of the server's own.

http = Server("http")


@http.tool
async def visit(harbour: str, nowhere: str, *, ctx: Context) -> list[str]:
    """Read, write, follow what is binary, miss, and fail to connect."""
    ships = await ctx.http.get(f"{harbour}/ships")
    made = await ctx.http.post(f"{harbour}/ships", json={"name": "Argo"})
    async with httpx2.AsyncClient(transport=EffectTransport()) as own:
        flag = await own.get(f"{harbour}/flag", headers={"authorization": "none of yours"})
        gone = await own.get(f"{harbour}/gone")
    failure = ""
    try:
        await ctx.http.get(nowhere)
    except httpx2.ConnectError as error:
        failure = str(error)
    statuses = [ships.status_code, made.status_code, flag.status_code, gone.status_code]
    return [ships.text, made.headers["location"], flag.content.hex(), str(statuses), failure]


# patched, and unpatched as it was before: the one also replays what was recorded of the other.

patched = Server("patched")
unpatched = Server("patched")


async def greet_as_before(who: str, *, ctx: Context) -> str:
    """Greet."""
    await ctx.info("a guest")
    return f"hello {who}"


unpatched.tool(name="greet")(greet_as_before)


@patched.tool
async def greet(who: str, *, ctx: Context) -> str:
    """Greet."""
    if not ctx.patched("politely"):
        return await greet_as_before(who, ctx=ctx)
    await ctx.sleep(0.001)
    await ctx.info("an honoured guest")
    return f"good day, {who}"


# threads: `def` handlers that race for a lock, and lose updates because they ask in between.

threads = Server("threads")
_till = {"total": 0}


@threads.tool
def pay(amount: int, *, ctx: ThreadContext) -> str:
    """Add to what was in the till before the client was asked."""
    with ctx.lock("till"):
        before = _till["total"]
        ctx.report_progress(1, 2)
    roots = ctx.list_roots()
    weight = weigh("x" * amount)
    ctx.sleep(0.001 * (amount % 3))
    with ctx.lock("till"):
        _till["total"] = before + amount * len(roots)
        ctx.info(ctx.now().isoformat())
        return f"{before} + {amount} = {_till['total']}, {weight} g, {ctx.uuid4()}"


# shared: two sessions, recorded in one file, of handlers that share a sum.

shared = Server("shared")
_shared = {"total": 0}


@shared.tool
async def give(amount: int, *, ctx: Context) -> str:
    """Add to what was there before the client was asked."""
    before = _shared["total"]
    await ctx.list_roots()
    _shared["total"] = before + amount
    await ctx.sleep(0.001)
    return f"{before} + {amount} = {_shared['total']}"


# redacted: a secret on its way through arguments, an effect, a log message and an answer.

redacted = Server("redacted")


@effect
async def enter(user: str, passphrase: str) -> str:
    """What a door says to a passphrase."""
    await trio.sleep(0.001)
    return f"ticket of {user}, good for {passphrase}"


@redacted.tool
async def open_door(user: str, passphrase: str, *, ctx: Context) -> str:
    """Show a passphrase to the door."""
    ticket = await enter(user, passphrase)
    await ctx.info({"user": user, "passphrase": passphrase, "encoded": encoded(passphrase)})
    return ticket


def encoded(text: str) -> str:
    """A text in base64."""
    return base64.b64encode(text.encode()).decode()
