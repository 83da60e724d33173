"""Change handlers of a recorded session, each in one way: `python tools/proof/handler_changes.py`.

Every change has to be found at the first record that it affects, as a divergence of the right kind;
changes that affect no record have to replay. Prints a table; exits with 1 if a row is wrong.
"""

import logging
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import attrs
import msgspec
import trio
from changed_handlers import CHANGES, RECORDED, Change
from observed_replay import records_of

from mcp_trio import Server
from mcp_trio._session.session import Session
from mcp_trio.errors import ReplayDivergence
from mcp_trio.recording import Record, TickClock, body_bytes, replay
from mcp_trio.testing import WirePeer
from mcp_trio.transports import memory_pair

ARGUMENTS: Final = {"order": {"item": "pen", "count": 2}}
OTHER_ARGUMENTS: Final = {"item": "ink"}
SESSION_SECONDS_MAX: Final = 10.0


@attrs.frozen
class Divergence:
    """The record and kind of a divergence; None if the replay did not diverge."""

    record: int | None
    kind: str | None
    text: str = ""


# Recording.


def server_of(change: Change | None = None) -> Server:
    """Return the shop's server, with one handler changed."""
    server = Server("shop")
    changed = {} if change is None else {change.tool: change.handler}
    for tool, handler in {**RECORDED, **changed}.items():
        server.tool(name=tool)(handler)
    return server


def record_shop(path: Path) -> None:
    """Record a session that calls every tool, and some of them twice."""
    trio.run(_record, path, clock=TickClock())


async def _record(path: Path) -> None:
    ours, theirs = memory_pair()
    peer = WirePeer(theirs)

    async def serve(*, task_status: trio.TaskStatus[Session]) -> None:
        await server_of().serve(ours, record=path, task_status=task_status)

    with trio.fail_after(SESSION_SECONDS_MAX):
        async with trio.open_nursery() as nursery:
            await nursery.start(serve)
            await _call_everything(peer)
            await peer.aclose()


async def _call_everything(peer: WirePeer) -> None:
    await peer.handshake()
    tools = [*RECORDED, "order"]
    for number, tool in enumerate(tools):
        arguments = ARGUMENTS.get(tool, OTHER_ARGUMENTS)
        params = {"name": tool, "arguments": arguments, "_meta": {"progressToken": number}}
        await peer.send_request("tools/call", params, id=number)
        await trio.sleep(0.001)
    missing = set(range(len(tools)))
    while missing:
        message = await peer.receive()
        if "method" not in message:
            missing.discard(message["id"])


# Finding.


class _Params(msgspec.Struct, frozen=True):
    name: str = ""


class _Call(msgspec.Struct, frozen=True):
    params: _Params = _Params()


def lanes_of(records: Sequence[Record], tool: str) -> set[str]:
    """Return the lanes of a tool's calls."""
    return {
        f"r{record.number}"
        for record in records
        if record.kind == "in"
        and msgspec.json.decode(body_bytes(record) or b"", type=_Call).params.name == tool
    }


def expected_record(records: Sequence[Record], change: Change) -> int | None:
    """Return the number of the first record that a change affects."""
    if change.kind is None:
        return None
    lanes = lanes_of(records, change.tool)
    for record in records:
        lane, _, child = (record.lane or "").partition(".")
        if (lane in lanes, bool(child), record.ordinal) == (True, change.of_child, change.ordinal):
            return record.number
    raise LookupError(f"{change.what}: nothing like it was recorded")


def found_in(path: Path, change: Change) -> Divergence:
    """Replay with the changed handler, and return the divergence."""
    try:
        replay(path, server_of(change))
    except ReplayDivergence as divergence:
        return Divergence(divergence.record, divergence.kind, str(divergence))
    return Divergence(None, None)


# Report.


def divergence_text(number: int | None, kind: str | None) -> str:
    return "replays" if number is None else f"{number} {kind}"


def check_change(path: Path, records: Sequence[Record], change: Change) -> bool:
    """Print the row of a change; return whether it is right."""
    number = expected_record(records, change)
    found = found_in(path, change)
    is_early = change.is_early and found.record is not None and found.record < (number or 0)
    is_right = found.kind == change.kind and (found.record == number or is_early)
    recorded = "" if number is None else _recorded(records, number)
    print(
        f"{change.tool:9}{change.what:34}{recorded:40.38}"
        f"{divergence_text(number, change.kind):16}{divergence_text(found.record, found.kind):16}"
        f"{'ok' if is_right else 'WRONG'}"
    )
    if not is_right:
        print(found.text)
    return is_right


def _recorded(records: Sequence[Record], number: int) -> str:
    record = next(record for record in records if record.number == number)
    return f"{record.kind} {(body_bytes(record) or b'').decode()}"


def main() -> None:
    logging.getLogger("mcp_trio").setLevel(logging.CRITICAL)  # handlers that fail on purpose
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "shop.mcprec.jsonl")
        record_shop(path)
        replay(path, server_of())
        records = list(records_of(path))
        print(f"{'tool':9}{'change':34}{'recorded there':40}{'expected':16}{'found':16}")
        wrong = [change for change in CHANGES if not check_change(path, records, change)]
    print(f"{len(CHANGES)} changes, {len(CHANGES) - len(wrong)} found where and as they should be")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
