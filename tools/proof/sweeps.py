"""Find three bugs by sweeps, with each strategy: `python tools/proof/sweeps.py [--schedules N]`.

Each server has a bug that a lucky session does not show: the ticket desk sells a ticket twice, two
locks are taken in opposite orders, and a wake-up is lost between a check and a wait. Prints for
each strategy after how many schedules the bug was found, and the shortest schedule. Each server
without its bug has to be clean. Exits with 1 if a bug was not found, or was found where none is.
"""

import argparse
import sys
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final, get_args

import attrs
import trio

sys.path.append(str(Path(__file__).resolve().parents[1]))

from memory_sessions import scripted_session

from mcp_trio import Server, effect
from mcp_trio._replay.schedules import Strategy
from mcp_trio.examples.ticket_desk import make_desk
from mcp_trio.recording import SweepReport, TickClock, sweep
from mcp_trio.testing import WirePeer

SESSION_SECONDS_MAX: Final = 10.0


# Servers, with and without their bugs.


@effect
async def move(amount: int) -> str:
    """Move money, which takes a while."""
    await trio.sleep(0.100)
    return f"{amount} moved"


@effect
async def look_up(account: str) -> str:
    """Look up the owner of an account."""
    await trio.sleep(0.002)
    return f"owner of {account}"


def make_bank(*, has_bug: bool) -> Server:
    """Make a server that holds two locks while it moves money, in an order that may be wrong."""
    server = Server("bank")
    locks = {"a": trio.Lock(), "b": trio.Lock()}

    @server.tool
    async def transfer(source: str, target: str) -> str:
        first, second = (source, target) if has_bug else sorted((source, target))
        async with locks[first]:
            owner = await look_up(source)
            async with locks[second]:
                return f"{owner}: {await move(10)}"

    return server


@attrs.define
class Mailbox:
    """A mailbox with an event that is replaced when there is nothing to read."""

    letters: list[str] = attrs.field(factory=list[str])
    arrived: trio.Event = attrs.field(factory=trio.Event)


@effect
async def unlock_mailbox() -> None:
    """Unlock the mailbox, which takes a while."""
    await trio.sleep(0.003)


def make_mailbox(*, has_bug: bool) -> Server:
    """Make a server whose reader may check for letters too early, and then wait for the next."""
    server = Server("mailbox")
    box = Mailbox()

    @server.tool
    async def put(letter: str) -> str:
        box.letters.append(letter)
        box.arrived.set()
        return "put"

    @server.tool
    async def take() -> str:
        was_empty = not box.letters
        await unlock_mailbox()
        if was_empty if has_bug else not box.letters:
            box.arrived = trio.Event()
            await box.arrived.wait()
        return box.letters.pop()

    return server


# Lucky sessions.

Talk = Callable[[WirePeer], Awaitable[None]]


async def buy_two(peer: WirePeer) -> None:
    await peer.send_request("tools/call", _call("buy", buyer="Ann"), id=1)
    await trio.sleep(0.025)
    await peer.send_request("tools/call", _call("buy", buyer="Bo"), id=2)
    await peer.receive_many(2)
    await peer.send_request("tools/call", _call("tickets_left"), id=3)
    await peer.receive()


async def transfer_both_ways(peer: WirePeer) -> None:
    await peer.send_request("tools/call", _call("transfer", source="a", target="b"), id=1)
    await trio.sleep(0.050)
    await peer.send_request("tools/call", _call("transfer", source="b", target="a"), id=2)
    await peer.receive_many(2)


async def take_and_put(peer: WirePeer) -> None:
    await peer.send_request("tools/call", _call("take"), id=1)
    await trio.sleep(0.050)
    await peer.send_request("tools/call", _call("put", letter="hello"), id=2)
    await peer.receive_many(2)


def _call(name: str, **arguments: str) -> dict[str, object]:
    return {"name": name, "arguments": arguments}


def record(path: Path, server: Server, talk: Talk) -> None:
    """Record a session."""

    async def session() -> None:
        with trio.fail_after(SESSION_SECONDS_MAX):
            async with scripted_session(server, path) as (peer, _):
                await peer.handshake()
                await talk(peer)

    trio.run(session, clock=TickClock())


# The table.


@attrs.frozen
class Bug:
    """A bug of a server, and a session that does not show it."""

    name: str
    make: Callable[[], Server]
    make_without: Callable[[], Server]
    talk: Talk


BUGS: Final = (
    Bug("a ticket is sold twice", make_desk, partial(make_desk, is_locked=True), buy_two),
    Bug(
        "two locks deadlock",
        partial(make_bank, has_bug=True),
        partial(make_bank, has_bug=False),
        transfer_both_ways,
    ),
    Bug(
        "a wake-up is lost",
        partial(make_mailbox, has_bug=True),
        partial(make_mailbox, has_bug=False),
        take_and_put,
    ),
)


def found_text(report: SweepReport) -> str:
    """Return after how many schedules a bug was found."""
    failing = report.failing_schedules
    return f"schedule {failing[0] + 1} of {report.schedules}" if failing else "not found"


def sweep_all(schedules: int, folder: Path) -> bool:
    """Print a row for each bug and strategy; return whether all were found, and only there."""
    is_right = True
    print(f"{'bug':26}{'strategy':14}{'found by':20}{'failing':10}{'changes':9}{'without the bug'}")
    for bug in BUGS:
        path = folder / f"{bug.make().name}.mcprec.jsonl"
        record(path, bug.make(), bug.talk)
        for strategy in get_args(Strategy):
            report = sweep(path, bug.make, schedules=schedules, strategy=strategy)
            without = sweep(path, bug.make_without, schedules=schedules, strategy=strategy)
            clean = f"clean: {without.schedules} schedules" if without.is_clean else "DIFFERS"
            is_right &= not report.is_clean and without.is_clean
            changes = "" if report.shortest is None else str(len(report.shortest.deviations))
            failing = str(len(report.failing_schedules))
            print(
                f"{bug.name:26}{strategy:14}{found_text(report):20}{failing:10}{changes:9}"
                f"{clean}{', all' if 'all schedules' in without.coverage else ''}"
            )
            if strategy == "depth-first" and report.shortest is not None:
                for line in (*report.shortest.differences, *map(str, report.shortest.deviations)):
                    print(f"    {line}")
    return is_right


def main() -> int:
    """Sweep all servers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return 0 if sweep_all(options.schedules, Path(folder)) else 1


if __name__ == "__main__":
    sys.exit(main())
