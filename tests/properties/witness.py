"""A process that records and replays a session, and counts the audit events of the interpreter.

It does not use the watch of the package: Python's audit hook reports each socket and process, and
functions without an audit event (threads, sleeps, clocks) are replaced in their modules. The process
prints, as JSON, the events that lanes caused while recording, and while replaying.
"""

import json
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from functools import wraps
from pathlib import Path

import trio

from mcp_trio import Client, Context, Server, effect
from mcp_trio._replay import controlled_run
from mcp_trio._session.handlers import RUNNING_EFFECT
from mcp_trio._session.lanes import LANE
from mcp_trio._session.untracked_calls import UntrackedCallWatch, noting_imports
from mcp_trio.errors import BlockedInReplay, ReplayDivergence
from mcp_trio.recording import replay
from mcp_trio.transports import memory_pair

seen = Counter()
CLOCKS = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns")
SIGHTS = {
    "socket.__new__": "socket",
    "socket.connect": "socket",
    "subprocess.Popen": "process",
    "os.fork": "process",
    "os.posix_spawn": "process",
}


def see(what):
    """Count the events in a lane, or in an effect of a lane."""
    if LANE.get() or RUNNING_EFFECT.get():
        seen[what] += 1


def count_audit_event(event, _arguments):
    if event in SIGHTS:
        see(SIGHTS[event])


def watch(module, name, what):
    real = getattr(module, name)

    @wraps(real)
    def call(*args, **keywords):
        result = real(*args, **keywords)
        see(what)
        return result

    setattr(module, name, call)


for clock in CLOCKS:
    watch(time, clock, "clock")
watch(time, "sleep", "sleep")
for name in ("_start_joinable_thread", "_start_new_thread"):  # the first since Python 3.13
    if hasattr(threading, name):
        watch(threading, name, "thread")
with noting_imports():  # The hook of the package comes first: an event that it stops is not seen.
    sys.addaudithook(count_audit_event)

server = Server("outgoing")


def open_socket():
    socket.socket().close()


def start_thread():
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()


def start_process():
    subprocess.run([sys.executable, "-c", ""], check=True)


def doze():
    time.sleep(0.001)


REACHES = (open_socket, start_thread, start_process, doze, time.time)


@effect
async def reach_by_effect() -> None:
    for reach in REACHES:
        reach()
    await trio.to_thread.run_sync(start_process)


@server.tool
async def by_effects(*, ctx: Context) -> list[str]:
    """Do all kinds of external I/O through the context."""
    await reach_by_effect()
    found = [ctx.now(), ctx.monotonic(), ctx.random.random(), ctx.uuid4()]
    found += [await ctx.to_thread(doze), await ctx.sleep(0.001)]
    return [str(each) for each in found]


@server.tool
async def by_itself() -> int:
    """Do the same directly; an error of one does not prevent the next."""
    for reach in REACHES:
        try:
            reach()
        except BlockedInReplay:
            seen["blocked"] += 1
        await trio.lowlevel.checkpoint()
    return len(REACHES)


async def record(path, tool):
    ours, theirs = memory_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: server.serve(theirs, record=path))
        async with Client(ours) as client:
            await client.call_tool(tool, {})


def touched(action):
    """Return the events during a call."""
    seen.clear()
    action()
    return dict(seen)


def replay_quietly(path):
    try:
        replay(path, server)
    except ReplayDivergence:
        seen["divergence"] += 1


def replay_without_block(path):
    """Replay with a watch that only reports what a handler does outside."""
    watch_of_replay = controlled_run.watch_of_replay

    def watch_that_only_reports(note, **_):
        return UntrackedCallWatch(on_untracked_call=note)

    controlled_run.watch_of_replay = watch_that_only_reports
    try:
        replay_quietly(path)
    finally:
        controlled_run.watch_of_replay = watch_of_replay


def main(folder, tool):
    path = Path(folder, "a.mcprec.jsonl")
    sights = {
        "recording": touched(lambda: trio.run(record, path, tool)),
        "replay": touched(lambda: replay_quietly(path)),
        "replay without the block": touched(lambda: replay_without_block(path)),
    }
    print(json.dumps(sights))


if __name__ == "__main__":
    main(*sys.argv[1:])
