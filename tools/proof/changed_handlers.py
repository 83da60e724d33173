"""Handlers of a shop as they were recorded, and variants that are changed in one way.

The numbers beside the recorded handlers are the ordinals of their operations. `order` is a list of
steps; changing it means changing the list. The table at the end has all changes.
"""

import random
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

import attrs
import trio

from mcp_trio import Context, ThreadContext, ToolError

Reply: TypeAlias = dict[str, Any]
Handler: TypeAlias = Callable[..., Reply] | Callable[..., Awaitable[Reply]]


@attrs.define
class Order:
    """A running order; `reply` is its answer."""

    item: str
    count: int
    ctx: Context
    reply: Reply = attrs.field(factory=dict[str, Any])


OrderStep: TypeAlias = Callable[[Order], Awaitable[None]]


# What they reach outside.


async def look_up(item: str) -> int:
    await trio.sleep(0.002)
    return len(item)


async def price_of(item: str, count: int) -> int:
    await trio.sleep(0.001)
    return len(item) * count


async def price_today(item: str, count: int) -> int:
    return await price_of(item, count)


async def note(item: str) -> None:
    await trio.sleep(0.001)
    assert item


async def deliver(item: str) -> None:
    """Take longer than any timeout."""
    await trio.sleep(10)
    assert item


def weigh(item: str) -> int:
    return len(item)


# The steps of an order, as recorded.


async def greet(order: Order) -> None:
    await order.ctx.info("order")


async def say_looking(order: Order) -> None:
    await order.ctx.info("looking")


async def look(order: Order) -> None:
    order.reply["stock"] = await order.ctx.effect(look_up, order.item)


async def price(order: Order) -> None:
    async with order.ctx.lock("till"):
        order.reply["price"] = await order.ctx.effect(price_of, order.item, order.count)


async def stamp(order: Order) -> None:
    order.reply["at"] = order.ctx.now().isoformat()


async def report(order: Order) -> None:
    await order.ctx.progress(1)


async def jot(order: Order) -> None:
    await order.ctx.effect(note, order.item)


ORDER: Final[tuple[OrderStep, ...]] = (
    greet,  # 1
    say_looking,  # 2
    look,  # 3 4
    price,  # 5 6, and 7 8
    stamp,  # 9
    report,  # 10
    jot,  # 11 12
)  # 13


# The steps of an order, changed.


async def look_in_raw_thread(order: Order) -> None:
    order.reply["stock"] = await trio.to_thread.run_sync(weigh, order.item)


async def look_by_raw_socket(order: Order) -> None:
    await trio.open_tcp_stream("127.0.0.1", 9)
    order.reply["stock"] = 3


async def price_one_more(order: Order) -> None:
    async with order.ctx.lock("till"):
        order.reply["price"] = await order.ctx.effect(price_of, order.item, order.count + 1)


async def price_elsewhere(order: Order) -> None:
    async with order.ctx.lock("till"):
        order.reply["price"] = await order.ctx.effect(price_today, order.item, order.count)


async def price_without_lock(order: Order) -> None:
    order.reply["price"] = await order.ctx.effect(price_of, order.item, order.count)


async def price_under_another_lock(order: Order) -> None:
    async with order.ctx.lock("door"):
        order.reply["price"] = await order.ctx.effect(price_of, order.item, order.count)


async def stamp_raw(order: Order) -> None:
    order.reply["at"] = time.time()


async def round_up(order: Order) -> None:
    order.reply["price"] += 1


async def number(order: Order) -> None:
    order.reply["number"] = random.random()


async def stamp_reply(order: Order) -> None:
    order.reply["stamp"] = time.time()


async def report_half(order: Order) -> None:
    await order.ctx.progress(0.5)


async def warn(order: Order) -> None:
    await order.ctx.warning("order")


async def greet_under_guard(order: Order) -> None:
    if order.ctx.patched("greet twice"):
        await order.ctx.info("order")


async def be_sold_out(_order: Order) -> None:
    raise ToolError("sold out")


async def break_down(_order: Order) -> None:
    raise ValueError("sold out")


async def fall_asleep(_order: Order) -> None:
    await trio.sleep_forever()


def order_of(*steps: OrderStep) -> Handler:
    """Return a handler that runs some steps."""

    async def order(item: str, count: int, *, ctx: Context) -> Reply:
        work = Order(item, count, ctx)
        for step in steps:
            await step(work)
        return work.reply

    return order


def order_after(before: OrderStep, *more: OrderStep) -> Handler:
    """Return the recorded order with more steps after one."""
    place = ORDER.index(before) + 1
    return order_of(*ORDER[:place], *more, *ORDER[place:])


def order_with(recorded: OrderStep, *instead: OrderStep) -> Handler:
    """Return the recorded order with one step replaced by others."""
    place = ORDER.index(recorded)
    return order_of(*ORDER[:place], *instead, *ORDER[place + 1 :])


# Other handlers, as recorded.


async def hurry(item: str, *, ctx: Context) -> Reply:
    try:
        with ctx.timeout(0.005):
            await ctx.effect(deliver, item)  # 1 2
    except trio.TooSlowError:
        return {"delivered": False}  # 3
    return {"delivered": True}


async def give_up(item: str, *, ctx: Context) -> Reply:
    with trio.move_on_after(0.005):
        await ctx.effect(deliver, item)  # 1 2
    await ctx.info("given up")  # 3
    return {"delivered": False}  # 4


async def compare(item: str, *, ctx: Context) -> Reply:
    prices: list[int] = []

    async def ask(count: int) -> None:
        prices.append(await ctx.effect(price_of, item, count))  # .0: 1 2, .1: 1 2

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, 1)
        nursery.start_soon(ask, 10)
    return {"prices": sorted(prices)}  # 1


async def queue(item: str, *, ctx: Context) -> Reply:
    first = await ctx.effect(price_of, item, 1)  # 1 2
    second = await ctx.effect(price_of, item, 10)  # 3 4
    return {"prices": [first, second]}  # 5


def scales(item: str, *, ctx: ThreadContext) -> Reply:
    weight = ctx.effect(weigh, item)  # 2 3, behind the mark of the thread
    ctx.info("weighed")  # 4
    return {"weight": weight, "id": str(ctx.uuid4())}  # 5


RECORDED: Final[Mapping[str, Handler]] = {
    "order": order_of(*ORDER),
    **{handler.__name__: handler for handler in (hurry, give_up, compare, queue, scales)},
}


# Scopes changed.


async def hurry_without_timeout(item: str, *, ctx: Context) -> Reply:
    await ctx.effect(deliver, item)
    return {"delivered": True}


async def hurry_longer(item: str, *, ctx: Context) -> Reply:
    try:
        with ctx.timeout(60):
            await ctx.effect(deliver, item)
    except trio.TooSlowError:
        return {"delivered": False}
    return {"delivered": True}


async def give_up_never(item: str, *, ctx: Context) -> Reply:
    await ctx.effect(deliver, item)
    await ctx.info("given up")
    return {"delivered": False}


async def give_up_behind_a_shield(item: str, *, ctx: Context) -> Reply:
    with trio.move_on_after(0.005), trio.CancelScope(shield=True):
        await ctx.effect(deliver, item)
    await ctx.info("given up")
    return {"delivered": False}


async def compare_in_a_row(item: str, *, ctx: Context) -> Reply:
    prices = [await ctx.effect(price_of, item, count) for count in (1, 10)]
    return {"prices": prices}


async def compare_three(item: str, *, ctx: Context) -> Reply:
    prices: list[int] = []

    async def ask(count: int) -> None:
        prices.append(await ctx.effect(price_of, item, count))

    async with trio.open_nursery() as nursery:
        for count in (1, 10, 100):
            nursery.start_soon(ask, count)
    return {"prices": sorted(prices)}


async def queue_at_once(item: str, *, ctx: Context) -> Reply:
    prices: list[int] = []

    async def ask(count: int) -> None:
        prices.append(await ctx.effect(price_of, item, count))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, 1)
        nursery.start_soon(ask, 10)
    return {"prices": prices}


async def queue_in_time(item: str, *, ctx: Context) -> Reply:
    with ctx.timeout(1):
        first = await ctx.effect(price_of, item, 1)
        second = await ctx.effect(price_of, item, 10)
    return {"prices": [first, second]}


async def queue_the_other_way(item: str, *, ctx: Context) -> Reply:
    second = await ctx.effect(price_of, item, 10)
    first = await ctx.effect(price_of, item, 1)
    return {"prices": [first, second]}


async def queue_by_keyword(item: str, *, ctx: Context) -> Reply:
    first = await ctx.effect(price_of, item=item, count=1)
    second = await ctx.effect(price_of, item, count=10)
    return {"prices": [first, second]}


# Threads changed.


def scales_unheard(item: str, *, ctx: ThreadContext) -> Reply:
    weight = ctx.effect(weigh, item)
    return {"weight": weight, "id": str(ctx.uuid4())}


def scales_twice(item: str, *, ctx: ThreadContext) -> Reply:
    weight = ctx.effect(weigh, item)
    weight += ctx.effect(weigh, item)
    ctx.info("weighed")
    return {"weight": weight, "id": str(ctx.uuid4())}


def scales_of_another_thing(item: str, *, ctx: ThreadContext) -> Reply:
    weight = ctx.effect(weigh, item + "s")
    ctx.info("weighed")
    return {"weight": weight, "id": str(ctx.uuid4())}


# All changes, and where and as what a replay has to find them.


@attrs.frozen
class Change:
    """A changed handler.

    `kind` is that of the expected divergence, None if there is none; `ordinal` is that of the first
    affected operation, of the handler or `of_child` tasks of it. `is_early` is True if the replay
    finds the change already when a task is ready that was not recorded.
    """

    what: str
    handler: Handler
    kind: str | None
    ordinal: int = 0
    tool: str = attrs.field(default="order", kw_only=True)
    of_child: bool = attrs.field(default=False, kw_only=True)
    is_early: bool = attrs.field(default=False, kw_only=True)


CHANGES: Final = (
    Change("an effect more", order_after(look, look), "extra", 5),
    Change("an effect less", order_with(look), "missing", 3),
    Change("a raw thread", order_with(look, look_in_raw_thread), "blocked", 3),
    Change("a raw socket", order_with(look, look_by_raw_socket), "blocked", 3),
    Change("another argument", order_with(price, price_one_more), "argument", 7),
    Change("another effect", order_with(price, price_elsewhere), "extra", 7),
    Change("no lock", order_with(price, price_without_lock), "missing", 5),
    Change("another lock", order_with(price, price_under_another_lock), "argument", 5),
    Change("an effect moved before another", order_of(*ORDER[:2], jot, *ORDER[2:-1]), "missing", 3),
    Change("an effect moved behind another", order_of(*ORDER[:2], *ORDER[3:], look), "missing", 3),
    Change("the clock looked at twice", order_after(stamp, stamp), "extra", 10),
    Change("the clock looked at raw", order_with(stamp, stamp_raw), "extra", 9),
    Change("another reply", order_after(price, round_up), "frame", 13),
    Change("chance in the reply", order_after(jot, number), "frame", 13),
    Change("the time in the reply", order_after(jot, stamp_reply), "extra", 13),
    Change("refused instead of answered", order_after(jot, be_sold_out), "frame", 13),
    Change("broken instead of answered", order_after(jot, break_down), "frame", 13),
    Change("another level of a log", order_with(greet, warn), "frame", 1),
    Change("no log", order_with(greet), "missing", 1),
    Change("a log more", order_after(look, greet), "extra", 5),
    Change("progress reported more", order_after(greet, report_half), "extra", 2),
    Change("progress not reported", order_with(report), "missing", 10),
    Change("two sends swapped", order_of(say_looking, greet, *ORDER[2:]), "missing", 1),
    Change("an early return", order_of(*ORDER[:2]), "missing", 3),
    Change("an early error", order_after(greet, be_sold_out), "missing", 2),
    Change("never answered", order_after(jot, fall_asleep), "missing", 13),
    Change("a log more, behind ctx.patched", order_after(greet, greet_under_guard), None),
    Change("no timeout", hurry_without_timeout, "uncancelled", 2, tool="hurry"),
    Change("a longer timeout", hurry_longer, "uncancelled", 2, tool="hurry"),
    Change("no raw timeout", give_up_never, "uncancelled", 2, tool="give_up"),
    Change("a shield in a raw timeout", give_up_behind_a_shield, "uncancelled", 2, tool="give_up"),
    Change(
        "in a row, not in a nursery", compare_in_a_row, "extra", 1, tool="compare", of_child=True
    ),
    Change("a child more", compare_three, "extra", 1, tool="compare", is_early=True),
    Change("in a nursery, not in a row", queue_at_once, "extra", 1, tool="queue"),
    Change("a timeout more", queue_in_time, None, tool="queue"),
    Change("two calls swapped", queue_the_other_way, "missing", 1, tool="queue"),
    Change("arguments by keyword", queue_by_keyword, None, tool="queue"),
    Change("no log in a thread", scales_unheard, "missing", 3, tool="scales", of_child=True),
    Change("an effect more in a thread", scales_twice, "extra", 3, tool="scales", of_child=True),
    Change(
        "another argument in a thread",
        scales_of_another_thing,
        "argument",
        1,
        tool="scales",
        of_child=True,
    ),
)
