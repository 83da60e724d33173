"""Make the golden recordings anew: `python tools/make_recordings.py [NAME...]`.

Some run a server of `recordings/servers.py` over memory against a client that is scripted here;
for the others `python tools/interop/install.py` has to have installed the peers. What is left is
`recordings/NAME.mcprec.jsonl`, and of `refused` the bad ones, which are made of the good ones. No
two runs are alike, since times are real: look at what has changed before it is committed.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import trio
from golden import GOLDEN, HOME, RECORDINGS, REFUSED, SIDES, load_server, path_of
from leaks import leaks, names_of_this_machine
from refused import TABLE

from mcp_trio import Client
from mcp_trio._engine import Session
from mcp_trio._testing.wire_peer import WirePeer
from mcp_trio.examples import weather
from mcp_trio.transports import memory_pair

Script: TypeAlias = Callable[[WirePeer, Session], Awaitable[None]]
Message: TypeAlias = dict[str, Any]

GOLDEN_SESSIONS: Final = HOME / "tools" / "interop" / "golden_sessions.py"


# What the scripted clients say.


def call(number: int, tool: str, **arguments: Any) -> Message:
    """A call that wants progress."""
    meta = {"progressToken": f"progress {number}"}
    params = {"name": tool, "arguments": arguments, "_meta": meta}
    return {"id": number, "method": "tools/call", "params": params}


def cancel(number: int) -> Message:
    """The cancellation of a call."""
    params = {"requestId": number, "reason": "no longer needed"}
    return {"method": "notifications/cancelled", "params": params}


async def answer_roots(peer: WirePeer, *, after_ms: tuple[float, ...]) -> None:
    """Answer each question for roots after a while, longer or shorter by turns."""
    async with trio.open_nursery() as nursery:
        asked = 0
        while True:
            message = await peer.receive()
            if message.get("method") == "roots/list":
                nursery.start_soon(answer_one, peer, message, after_ms[asked % len(after_ms)])
                asked += 1


async def answer_one(peer: WirePeer, question: Mapping[str, Any], after_ms: float) -> None:
    """Answer one question for roots."""
    await trio.sleep(after_ms / 1000)
    await peer.send_result(question, {"roots": [{"uri": "file:///work"}]})


def client(*script: Message | float, after_ms: tuple[float, ...] = (2,)) -> Script:
    """A client that sends messages, sleeps for so many milliseconds where a number stands."""

    async def run(peer: WirePeer, _session: Session) -> None:
        await peer.handshake(capabilities={"roots": {}})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: answer_roots(peer, after_ms=after_ms))
            batch: list[Message] = []
            for step in script:
                if isinstance(step, dict):
                    batch.append(step)
                else:
                    await peer.send(*batch)
                    batch = []
                    await trio.sleep(step / 1000)
            nursery.cancel_scope.cancel()

    return run


def stopping(script: Script) -> Script:
    """The script, after which the server closes."""

    async def run(peer: WirePeer, session: Session) -> None:
        await script(peer, session)
        session.shut("closed")
        await session.ended.wait()

    return run


SCRIPTS: Final[Mapping[str, Script]] = {
    "counter": client(
        *(call(number, "add", amount=number) for number in range(1, 9)),
        3.5,
        *(call(number, "add", amount=number) for number in range(9, 13)),
        20,
        after_ms=(4, 1, 2, 7),
    ),
    "ledger": client(
        call(1, "transfer", source="Ada", target="Ben", amount=70),
        call(2, "audit"),
        call(3, "transfer", source="Ada", target="Cyd", amount=70),
        1,
        call(4, "transfer", source="Ben", target="Cyd", amount=120),
        call(5, "audit"),
        call(6, "transfer", source="Cyd", target="Ada", amount=90),
        20,
        call(7, "audit"),
        call(8, "transfer", source="Nobody", target="Ada", amount=1),
        5,
        after_ms=(5, 2, 3),
    ),
    "auction": client(
        *(call(number, "bid", bidder=f"bidder {number}", amount=number % 4) for number in range(7)),
        40,
        after_ms=(1, 3),
    ),
    "relay": client(
        call(1, "run_leg", after="third", before="goal"),
        call(2, "run_leg", after="first", before="second"),
        call(3, "run_leg", after="second", before="third"),
        2,
        call(4, "run_leg", after="start", before="first"),
        60,
    ),
    "cancelled": client(
        call(1, "sleep", name="started"),
        call(2, "ask", name="asking"),
        2,
        call(3, "sleep", name="never started"),
        cancel(3),
        2,
        call(4, "ask", name="third place"),
        call(5, "sleep", name="queued"),
        call(6, "ask", name="queued and served"),
        cancel(5),
        3,
        cancel(1),
        cancel(2),
        60,
        after_ms=(30, 5, 5),
    ),
    "nursery": client(
        call(1, "gather", parts=4), 1, call(2, "gather", parts=6), 40, after_ms=(5, 3)
    ),
    "deadlines": client(
        call(1, "hurry", milliseconds=5), call(2, "hurry", milliseconds=9), 70, after_ms=(3, 12, 7)
    ),
    "leaving": client(
        call(1, "finish", milliseconds=3),
        call(2, "finish", milliseconds=25),
        call(3, "finish", milliseconds=500),
        8,
    ),
    "stopped": stopping(
        client(
            call(1, "persist", name="one"), call(2, "persist", name="two"), 4, after_ms=(60_000,)
        )
    ),
    "weather": client(
        call(1, "forecast", city="Oslo", days=3),
        call(2, "warmest", days=5),
        call(3, "forecast", city="Atlantis"),
        {"id": 4, "method": "resources/read", "params": {"uri": "weather://Lima/now"}},
        {"id": 5, "method": "tools/list"},
        30,
    ),
}


# Recording.


async def record_server(name: str, path: Path) -> None:
    """Record one session of the server of that name."""
    server = load_server(name)
    ours, theirs = memory_pair()
    peer = WirePeer(theirs)

    async def serve(task_status: trio.TaskStatus[Session]) -> None:
        await server.serve(ours, record=path, task_status=task_status)

    async with trio.open_nursery() as nursery:
        session = await nursery.start(serve)
        await SCRIPTS[name](peer, session)
        await peer.aclose()


async def record_client(path: Path) -> None:
    """Record a session of the weather server, told from the client's side."""
    async with Client(weather.server, record=path) as session, trio.open_nursery() as nursery:
        for city in ("Oslo", "Lima", "Pune"):
            nursery.start_soon(session.call_tool, "forecast", {"city": city})
        with trio.move_on_after(0.007):
            await session.call_tool("forecast", {"city": "Bergen", "days": 14})


def record_scripted(name: str, into: Path) -> None:
    """Record a session that needs nobody else."""
    path = into / path_of(name).name
    if name == "client":
        trio.run(record_client, path)
    else:
        trio.run(record_server, name, path)


def record_peers(name: str, into: Path) -> None:
    """Record a session with peers; of some both sides."""
    session = next((server for client, server in SIDES if client == name), name)
    command = [sys.executable, str(GOLDEN_SESSIONS), "--into", str(into), session]
    if subprocess.run(command, check=False).returncode:
        sys.exit(1)  # it has said why


def make(name: str) -> None:
    """Make a recording, or those of both sides of a session.

    Raises:
        SystemExit: There is something in it that must not be.
    """
    record = record_peers if GOLDEN[name].needs_peers else record_scripted
    with tempfile.TemporaryDirectory() as folder:
        record(name, Path(folder))
        for path in Path(folder).iterdir():
            with path.open("rb") as lines:
                if found := list(leaks(lines, names_of_this_machine())):
                    raise SystemExit("\n".join(f"{path.name}: {leak}" for leak in found))
            path.chmod(0o644)
            shutil.move(path, RECORDINGS / path.name)
            print((RECORDINGS / path.name).relative_to(HOME), flush=True)


def make_refused() -> None:
    """Make the bad ones of the good ones."""
    REFUSED.mkdir(exist_ok=True)
    for refused in TABLE:
        refused.path.write_bytes(refused.made())
        print(refused.path.relative_to(HOME))


def main() -> None:
    names = [*GOLDEN, "refused"]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}")
    chosen = parser.parse_args().names or names
    if unknown := set(chosen) - set(names):
        parser.error(f"no recordings: {', '.join(sorted(unknown))}")
    for name in chosen:
        if name == "refused":
            make_refused()
        elif not any(name == client and server in chosen for client, server in SIDES):
            make(name)


if __name__ == "__main__":
    main()
