"""Make the golden recordings anew: `python tools/make_recordings.py [NAME...]`.

Some run a server of `recordings/servers.py` over memory against a client that is scripted here;
for the others `python tools/interop/install.py` has to have installed the peers. What is left is
`recordings/NAME.mcprec.jsonl`, and of `rejected` the bad ones, which are made of the good ones. No
two runs are alike, since times are real: look at what has changed before it is committed. What a
version of the package has recorded is never made anew by a later one: replays of it are promised.
"""

import argparse
import functools
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import trio
from bad_recordings import TABLE
from golden_later_clients import SCRIPTS as LATER_SCRIPTS
from golden_later_clients import Message, Script, call
from golden_recordings import GOLDEN, HOME, KEY, RECORDINGS, REJECTED, SIDES, load_server
from memory_sessions import scripted_session
from recording_secrets import leaks, lines_of, names_of_this_machine

from mcp_trio import Client, Server
from mcp_trio._session.session import Session
from mcp_trio.examples import weather
from mcp_trio.recording import RecordOptions, Redaction, SharedRecording, TickClock
from mcp_trio.testing import WirePeer

Step: TypeAlias = Message | float | Callable[[], None]
Record: TypeAlias = RecordOptions | SharedRecording

GOLDEN_SESSIONS: Final = HOME / "tools" / "interop" / "golden_sessions.py"


# The requests of the scripted clients.


def cancel(number: int) -> Message:
    params = {"requestId": number, "reason": "no longer needed"}
    return {"method": "notifications/cancelled", "params": params}


async def answer_roots(peer: WirePeer, *, after_ms: tuple[float, ...]) -> None:
    """Answer each `roots/list` request, after a short and a long delay by turns."""
    async with trio.open_nursery() as nursery:
        asked = 0
        while True:
            message = await peer.receive()
            if message.get("method") == "roots/list":
                nursery.start_soon(answer_one, peer, message, after_ms[asked % len(after_ms)])
                asked += 1


async def answer_one(peer: WirePeer, question: Mapping[str, Any], after_ms: float) -> None:
    await trio.sleep(after_ms / 1000)
    await peer.send_result(question, {"roots": [{"uri": "file:///work"}]})


def client(*script: Step, after_ms: tuple[float, ...] = (2,)) -> Script:
    """Return a client that sends messages, and sleeps where a number is.

    The messages before a number are sent at once; a function is called.
    """

    async def run(peer: WirePeer, _session: Session) -> None:
        await peer.handshake(capabilities={"roots": {}})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: answer_roots(peer, after_ms=after_ms))
            batch: list[Message] = []
            for step in script:
                if callable(step):
                    step()
                elif isinstance(step, int | float):
                    await peer.send(*batch)
                    batch = []
                    await trio.sleep(step / 1000)
                else:
                    batch.append(step)
            nursery.cancel_scope.cancel()

    return run


def stopping(script: Script) -> Script:
    """Return the script, after which the server closes."""

    async def run(peer: WirePeer, session: Session) -> None:
        await script(peer, session)
        session.shut("closed")
        await session.ended.wait()

    return run


NOWHERE: Final = "http://127.0.0.1:1/"


async def visit_harbour(peer: WirePeer, session: Session) -> None:
    """Return a client, and run the web server that its server visits."""
    async with trio.open_nursery() as nursery:
        serve = functools.partial(trio.serve_tcp, answer_http, 0, host="127.0.0.1")
        listeners: list[trio.SocketListener] = await nursery.start(serve)
        harbour = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        visits = (call(number, "visit", harbour=harbour, nowhere=NOWHERE) for number in (1, 2))
        await client(*visits, 3_000)(peer, session)
        nursery.cancel_scope.cancel()


async def answer_http(stream: trio.SocketStream) -> None:
    async with stream:
        request = b""
        while not request.endswith(b"}" if request.startswith(b"POST") else b"\r\n\r\n"):
            request += await stream.receive_some()
        status, headers, body = PAGES[request[: request.index(b" HTTP")]]
        length = f"Content-Length: {len(body)}\r\nConnection: close\r\n"
        await stream.send_all(f"HTTP/1.1 {status}\r\n{length}{headers}\r\n".encode() + body)


PAGES: Final[Mapping[bytes, tuple[str, str, bytes]]] = {
    b"GET /ships": ("200 OK", "Content-Type: text/plain\r\nSet-Cookie: berth=7\r\n", b"Argo, Fram"),
    b"POST /ships": ("201 Created", "Location: /ships/3\r\n", b""),
    b"GET /flag": ("200 OK", "Content-Type: image/x-flag\r\nETag: 1\r\n", b"\xff\x00\xfe flag"),
    b"GET /gone": ("404 Not Found", "Content-Type: text/plain\r\n", b"not here"),
}

PARCELS: Final = ("hat", "a piano", "ink")
ERRANDS: Final = (
    *(call(number, "deliver", parcel=parcel) for number, parcel in enumerate(PARCELS)),
    call(3, "misfortunes"),
    call(4, "journal"),
    call(5, "wait", milliseconds=6),
)
GREETING: Final = client(call(1, "greet", who="Ada"), call(2, "greet", who="Ben"), 20)
WAIT_LONG: Final = call(6, "wait", milliseconds=60_000)


def fill_disk() -> None:
    """Let no file of this process grow."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))


def clear_disk() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


SCRIPTS: Final[Mapping[str, Script]] = {
    **LATER_SCRIPTS,
    "effects": client(
        *ERRANDS,
        4,
        WAIT_LONG,
        call(7, "journal"),
        call(8, "wait", milliseconds=3),
        8,
        cancel(6),
        200,
    ),
    "http": visit_harbour,
    "patched": GREETING,
    "unpatched": GREETING,
    "threads": client(*(call(number, "pay", amount=number) for number in range(1, 8)), 150),
    "cut": client(*ERRANDS, 200, WAIT_LONG, call(7, "journal"), 1_000),
    "gap": client(
        *ERRANDS,
        200,
        WAIT_LONG,
        call(7, "journal"),
        50,
        fill_disk,
        call(8, "journal"),
        50,
        clear_disk,
        1_100,
        cancel(6),
        call(9, "journal"),
        50,
    ),
    "redacted": client(
        call(1, "open_door", user="Ada", passphrase="open sesame 7"),
        3,
        call(2, "open_door", user="Ben", passphrase="open sesame 8"),
        20,
    ),
    "counter": client(
        *(call(number, "add", amount=number) for number in range(1, 9)),
        3.5,
        *(call(number, "add", amount=number) for number in range(9, 13)),
        100,
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
        100,
        call(7, "audit"),
        call(8, "transfer", source="Nobody", target="Ada", amount=1),
        50,
        after_ms=(5, 2, 3),
    ),
    "auction": client(
        *(call(number, "bid", bidder=f"bidder {number}", amount=number % 4) for number in range(7)),
        200,
        after_ms=(1, 3),
    ),
    "relay": client(
        call(1, "run_leg", after="third", before="goal"),
        call(2, "run_leg", after="first", before="second"),
        call(3, "run_leg", after="second", before="third"),
        2,
        call(4, "run_leg", after="start", before="first"),
        150,
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
        150,
        after_ms=(30, 5, 5),
    ),
    "nursery": client(
        call(1, "gather", parts=4), 1, call(2, "gather", parts=6), 150, after_ms=(5, 3)
    ),
    "deadlines": client(
        call(1, "hurry", milliseconds=5), call(2, "hurry", milliseconds=9), 150, after_ms=(3, 12, 7)
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
        100,
    ),
}


SCRIPTS_OF_SHARED: Final = tuple(
    client(
        *(call(number, "give", amount=first + number) for number in range(4)),
        2,
        call(4, "give", amount=first),
        pause,
        after_ms=(3, 1, 2),
    )
    for first, pause in ((10, 20), (100, 30))
)

# Options of sessions that are not recorded by a bare path.
OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "rotated": {"segment_bytes_max": 2_200},
    "redacted": {"redaction": Redaction(keys={"passphrase"}, key=KEY)},
}


# Recording.


async def record_session(server: Server, script: Script, record: Record) -> None:
    async with scripted_session(server, record) as (peer, session):
        await script(peer, session)


async def record_server(name: str, path: Path) -> None:
    """Record one session of a recording's server."""
    server = GOLDEN[name].recorded
    script = SCRIPTS.get(name) or SCRIPTS[server]
    options = RecordOptions(path, overwrite=True, **OPTIONS.get(name, {}))
    await record_session(load_server(server), script, options)


async def record_shared(_name: str, path: Path) -> None:
    """Record two sessions of one server at once."""
    server = load_server("shared")
    with SharedRecording(RecordOptions(path, overwrite=True)) as record:
        async with trio.open_nursery() as nursery:
            for script in SCRIPTS_OF_SHARED:
                nursery.start_soon(record_session, server, script, record)


async def record_cut(name: str, path: Path) -> None:
    """Copy the file while handlers run, as a kill would leave it."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(record_server, name, path)
        await trio.sleep(0.7)
        written = await trio.Path(path).read_bytes()
        nursery.cancel_scope.cancel()
    await trio.Path(path).write_bytes(written)


async def record_client(_name: str, path: Path) -> None:
    """Record a session at the client of the weather server."""
    record = RecordOptions(path, overwrite=True)
    async with Client(weather.server, record=record) as session, trio.open_nursery() as nursery:
        for city in ("Oslo", "Lima", "Pune"):
            nursery.start_soon(session.call_tool, "forecast", {"city": city})
        with trio.move_on_after(0.007):
            await session.call_tool("forecast", {"city": "Bergen", "days": 14})


def record_scripted(name: str, into: Path) -> None:
    """Record a session that needs no peers."""
    record = functools.partial(RECORD.get(name, record_server), name, into / GOLDEN[name].path.name)
    trio.run(record, clock=TickClock())


RECORD: Final = {"client": record_client, "shared": record_shared, "cut": record_cut}


def record_peers(name: str, into: Path) -> None:
    """Record a session with peers, for some at both ends."""
    session = next((server for client, server in SIDES if client == name), name)
    command = [sys.executable, str(GOLDEN_SESSIONS), "--into", str(into), session]
    if subprocess.run(command, check=False).returncode:
        sys.exit(1)  # the script has printed the error


def make(name: str) -> None:
    """Make a recording, or those of both sides of a session.

    Raises:
        SystemExit: There is something in it that must not be.
    """
    record = record_peers if GOLDEN[name].needs_peers else record_scripted
    with tempfile.TemporaryDirectory() as folder:
        record(name, Path(folder))
        for path in Path(folder).iterdir():
            if found := list(leaks(lines_of(path), names_of_this_machine())):
                raise SystemExit("\n".join(f"{path.name}: {leak}" for leak in found))
            path.chmod(0o644)
            shutil.move(path, RECORDINGS / path.name)
            print((RECORDINGS / path.name).relative_to(HOME), flush=True)


def make_rejected() -> None:
    """Make the bad recordings from the good ones."""
    REJECTED.mkdir(exist_ok=True)
    for rejected in TABLE:
        rejected.path.write_bytes(rejected.made())
        print(rejected.path.relative_to(HOME))


def main() -> None:
    names = [*GOLDEN, "refused"]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}")
    chosen = parser.parse_args().names or names
    if unknown := set(chosen) - set(names):
        parser.error(f"no recordings: {', '.join(sorted(unknown))}")
    for name in chosen:
        if name == "refused":
            make_rejected()
        elif not any(name == client and server in chosen for client, server in SIDES):
            make(name)


if __name__ == "__main__":
    main()
