"""A warehouse: stock behind a lock, docks behind a limiter, orders with timeouts and clean-up.

One of the servers whose source `mutated_servers.py` changes. All external calls are effects.
"""

from typing import Annotated

import attrs
import trio
from msgspec import Meta

from mcp_trio import Context, Server, ToolError, effect

server: Server = Server("warehouse", version="1.0", instructions="Reserve before you ship.")

DOCKS = 2
CARRIER_SECONDS = 0.05
PRICES = {"pen": 3, "ink": 8, "desk": 120}


class CarrierError(Exception):
    """The carrier refuses a parcel."""


@attrs.frozen
class Receipt:
    """A shipped order."""

    item: str
    count: int
    paid: int
    label: str


@attrs.define
class Warehouse:
    """The stock, the lock and the limiter that guard it, and the labels of shipped orders."""

    stock: dict[str, int] = attrs.field(factory=lambda: {"pen": 30, "ink": 20, "desk": 3})
    stock_lock: trio.Lock = attrs.field(factory=trio.Lock)
    docks: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(DOCKS))
    shipped: list[str] = attrs.field(factory=list[str])


warehouse: Warehouse = Warehouse()


# Effects.


@effect
async def charge(account: str, amount: int) -> str:
    """Charge an account; return the number of the payment."""
    await trio.sleep(0.004)
    return f"{account}-{amount}"


@effect
async def refund(payment: str) -> None:
    """Pay back."""
    await trio.sleep(0.002 if payment else 0)


@effect
async def print_label(item: str, count: int, *, carrier: str = "post") -> str:
    """Let the carrier print a label; heavy things take too long."""
    await trio.sleep(0.5 if item == "desk" else 0.003)
    if count > 5:
        raise CarrierError(f"{carrier} takes no {count} parcels", count)
    return f"{carrier}:{item}:{count}"


@effect
async def count_shelf(item: str) -> int:
    """Count what lies on a shelf; long names take longer."""
    await trio.sleep(0.002 * len(item))
    return len(item) * 10


@effect
async def note_in_ledger(line: str) -> None:
    """Write into the ledger."""
    await trio.sleep(0.001 if line else 0)


# Handlers.


async def reserve(item: str, count: int) -> None:
    """Take things out of the stock."""
    async with warehouse.stock_lock:
        left = warehouse.stock.get(item, 0)
        await trio.sleep(0.001)
        if left < count:
            raise ToolError(f"only {left} of {item} are left")
        warehouse.stock[item] = left - count


async def put_back(item: str, count: int) -> None:
    """Return things to the stock."""
    async with warehouse.stock_lock:
        warehouse.stock[item] = warehouse.stock.get(item, 0) + count


@server.tool
async def ship(
    item: str,
    count: Annotated[int, Meta(ge=1, le=20)] = 1,
    account: str = "cash",
    *,
    ctx: Context,
) -> Receipt:
    """Sell and ship something."""
    await reserve(item, count)
    price = PRICES[item] * count
    payment = await charge(account, price)
    await ctx.report_progress(1, 3)
    label = None
    try:
        with trio.move_on_after(CARRIER_SECONDS) as limit:
            async with warehouse.docks:
                label = await print_label(item, count)
        await ctx.report_progress(2, 3, "labelled")
        if limit.cancelled_caught:
            await ctx.warning(f"the carrier is slow with {item}")
    except CarrierError as error:
        await ctx.error(f"refused: {error.args[0]}")
        raise ToolError(f"the carrier refuses {count} of {item}") from error
    finally:
        if label is None:
            with trio.CancelScope(shield=True):
                await put_back(item, count)
                await refund(payment)
                await note_in_ledger(f"{item} came back")
    if label is None:
        raise ToolError("no label in time")
    warehouse.shipped.append(label)
    await note_in_ledger(f"{count} {item} for {price}")
    await ctx.report_progress(3, 3)
    return Receipt(item=item, count=count, paid=price, label=label)


@server.tool
async def take_inventory(items: list[str], *, ctx: Context) -> dict[str, int]:
    """Count several shelves at once, no more than two at a time."""
    counted: dict[str, int] = {}
    counters = trio.CapacityLimiter(2)

    async def count(item: str) -> None:
        async with counters:
            found = await count_shelf(item)
        counted[item] = found
        await ctx.report_progress(len(counted), len(items))

    async with trio.open_nursery() as nursery:
        for item in items:
            nursery.start_soon(count, item)
    await ctx.info(f"counted {len(counted)} shelves")
    return {item: counted[item] for item in sorted(counted)}


@server.tool
async def hold(item: str, seconds: float = 1.0, *, ctx: Context) -> str:
    """Hold one thing for a customer; it comes back when the customer leaves."""
    await reserve(item, 1)
    try:
        await ctx.info(f"{item} is held")
        await ctx.sleep(seconds)
    except trio.Cancelled:
        with trio.CancelScope(shield=True):
            await note_in_ledger(f"the customer of {item} has left")
            await put_back(item, 1)
        raise
    return "held long enough"


@server.tool
async def stock_of(item: str) -> int:
    """Return how many of a thing are left."""
    return warehouse.stock.get(item, 0)


@server.tool
async def report(*, ctx: Context) -> str:
    """Tell what was shipped, and when the report was made."""
    started = ctx.monotonic()
    lines: list[str] = []
    for number, label in enumerate(warehouse.shipped, start=1):
        lines.append(f"{number}. {label}")
        if number % 2 == 0:
            await trio.lowlevel.checkpoint()
    if len(lines) > 1:
        await ctx.info({"lines": len(lines)})
    seconds = ctx.monotonic() - started
    return "\n".join(lines) + f"\nmade in {seconds:.1f} s"
