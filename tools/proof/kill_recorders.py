"""Kill recording servers and look for lost records: `python tools/proof/kill_recorders.py`.

A client may only receive messages whose records have been handed to the system, so that not even
SIGKILL loses one. Each trial forks a server that records, over pipes, keeps it busy with calls,
reads its messages all the time, and kills it at a random instant. Then each complete message from
the pipe must have its `out` record. With `--no-write-ahead` the records are written one pass of the
scheduler after the messages: these trials have to find losses. With `--zst` the recordings are
compressed; with `--segment-kib N` a recording continues in another file after so many KiB.

A trial counts if enough calls were in flight when the server died, and if its recording has no
`gap`, which revokes the guarantee. The report is printed as JSON.
"""

import argparse
import gc
import os
import random
import select
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import trio

from mcp_trio import Context, Server
from mcp_trio._recorder.options import open_recorder
from mcp_trio._server.sessions import sessions_of
from mcp_trio._session.journal import Recording
from mcp_trio.errors import RecordingError
from mcp_trio.recording import (
    Damage,
    Record,
    RecordOptions,
    body_bytes,
    open_recording,
    read_recording,
)
from mcp_trio.transports import Channel, open_stdio_channel

IN_FLIGHT_MIN: Final = 16
IN_FLIGHT_AIM: Final = 48
MESSAGES_BEFORE_MAX: Final = 120
PING_SHARE: Final = 0.25
AT_ONCE_SHARE: Final = 0.05
DELAY_MS_MAX: Final = 3.0
CHUNK_BYTES: Final = 65_536
KIB: Final = 1024
TRIAL_SECONDS_MAX: Final = 30.0

HANDSHAKE: Final = (
    b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2024-11-05",'
    b'"capabilities":{},"clientInfo":{"name":"kill","version":"0"}}}\n'
    b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n'
)

server = Server("kill")


@server.tool
async def work(steps: int, ms: float, *, ctx: Context) -> int:
    """Sleep so many times, and report progress each time."""
    for step in range(steps):
        await trio.sleep(ms / 1000)
        await ctx.report_progress(step + 1, steps)
    return steps


# The server that is killed.


class LateRecording(Recording):
    """The control: a recorder that writes records after the messages that they explain."""

    def flush(self) -> None:
        """Write in the scheduler's next pass."""
        trio.lowlevel.current_trio_token().run_sync_soon(super().flush, idempotent=True)


async def serve_ahead(channel: Channel, recording: RecordOptions) -> None:
    """Serve with the real recorder."""
    await server.serve(channel, record=recording)


async def serve_late(channel: Channel, recording: RecordOptions) -> None:
    """Serve with the control's recorder."""
    recorder = open_recorder(recording, role="server", transport="stdio", name="kill", version="0")
    await sessions_of(server).open_session(channel, sequencer=LateRecording(recorder)).run()


Serve = Callable[[Channel, RecordOptions], Awaitable[None]]


class Child(NamedTuple):
    """A forked server, and our ends of its pipes; reads do not block."""

    pid: int
    to_child: int
    from_child: int


def fork_server(serve: Serve, recording: RecordOptions) -> Child:
    """Fork a server, which is faster than starting an interpreter."""
    child_in, to_child = os.pipe()
    from_child, child_out = os.pipe()
    pid = os.fork()
    if not pid:
        _run_child(serve, recording, (child_in, child_out), (to_child, from_child))
    os.close(child_in)
    os.close(child_out)
    os.set_blocking(from_child, False)
    return Child(pid, to_child, from_child)


def _run_child(
    serve: Serve, recording: RecordOptions, own_ends: tuple[int, int], other_ends: tuple[int, int]
) -> None:
    """Serve until killed; never return to the parent's code."""
    try:
        for fd in other_ends:
            os.close(fd)
        trio.run(serve, open_stdio_channel(*own_ends), recording)
    finally:
        os._exit(1)


# The peer that reads.


class Flood:
    """Keeps calls in flight over a child's pipes, and stores what it received."""

    def __init__(self, child: Child, random_source: random.Random) -> None:
        self.messages: list[bytes] = []
        self._child = child
        self._random_source = random_source
        self._calls = 0
        self._pings = 0
        self._answers = 0
        self._unread = b""
        self._poll = select.poll()
        self._poll.register(child.from_child, select.POLLIN)
        os.write(child.to_child, HANDSHAKE)

    @property
    def in_flight(self) -> int:
        return self._calls - self._answers

    def pump(self, seconds: float) -> None:
        """Send the calls that are due, and read for so many seconds."""
        due = [self._call() for _ in range(self.in_flight, IN_FLIGHT_AIM)]
        due += [self._ping() for _ in due if self._random_source.random() < PING_SHARE]
        if due:  # a pipe has room for all calls in flight: this never waits
            os.write(self._child.to_child, b"".join(due))
        if self._poll.poll(seconds * 1000) and not self.read():
            raise RuntimeError("the server ended by itself")

    def read(self) -> bool:
        """Read what has arrived; return False at the end."""
        try:
            chunk = os.read(self._child.from_child, CHUNK_BYTES)
        except BlockingIOError:
            return True
        *messages, self._unread = (self._unread + chunk).split(b"\n")
        self.messages += messages
        self._answers += sum(_is_answer_to_a_call(message) for message in messages)
        return bool(chunk)

    def _call(self) -> bytes:
        self._calls += 1
        arguments = {
            "steps": self._random_source.randrange(4),
            "ms": self._random_source.uniform(0, 1),
        }
        params = {"name": "work", "arguments": arguments, "_meta": {"progressToken": self._calls}}
        call = {"jsonrpc": "2.0", "id": self._calls, "method": "tools/call", "params": params}
        return msgspec.json.encode(call) + b"\n"

    def _ping(self) -> bytes:
        """Return a request that is answered at once, by a direct write, while handlers run."""
        self._pings += 1
        return b'{"jsonrpc":"2.0","id":-%d,"method":"ping"}\n' % self._pings


class _Id(msgspec.Struct):
    id: int = 0


def _is_answer_to_a_call(message: bytes) -> bool:
    return msgspec.json.decode(message, type=_Id).id > 0


# A trial.


class Trial(NamedTuple):
    """One kill: what the client sent and received, and what the recording lacks."""

    messages_before: int
    messages: int
    in_flight: int
    missing: int
    is_torn: bool
    is_damaged: bool
    has_gap: bool

    @property
    def counts(self) -> bool:
        """Return whether the trial counts, as the module explains."""
        return self.in_flight >= IN_FLIGHT_MIN and not self.has_gap


def try_kill(serve: Serve, recording: RecordOptions, random_source: random.Random) -> Trial:
    """Kill a busy server at a random instant, and read its recording."""
    child = fork_server(serve, recording)
    flood = Flood(child, random_source)
    try:
        _flood_for_a_while(flood, random_source)
        messages_before = len(flood.messages)
    finally:
        os.kill(child.pid, signal.SIGKILL)
        os.waitpid(child.pid, 0)
        while flood.read():
            pass
        os.close(child.to_child)
        os.close(child.from_child)
    return _judge(flood, messages_before, recording)


def _flood_for_a_while(flood: Flood, random_source: random.Random) -> None:
    at_once = random_source.random() < AT_ONCE_SHARE
    messages_before = 0 if at_once else random_source.randint(1, MESSAGES_BEFORE_MAX)
    give_up = time.monotonic() + TRIAL_SECONDS_MAX
    while len(flood.messages) < messages_before:
        if time.monotonic() > give_up:
            raise RuntimeError(f"no {messages_before} messages within {TRIAL_SECONDS_MAX:g} s")
        flood.pump(1.0)
    kill_at = time.monotonic() + random_source.uniform(0, DELAY_MS_MAX) / 1000
    while time.monotonic() < kill_at:
        flood.pump(0)


def _judge(flood: Flood, messages_before: int, recording: RecordOptions) -> Trial:
    kinds: Counter[str] = Counter()
    recorded: Counter[bytes | None] = Counter()
    for item in _items(recording):
        kinds[item.kind] += 1
        if not isinstance(item, Damage) and item.kind == "out":
            recorded[body_bytes(item)] += 1
    return Trial(
        messages_before=messages_before,
        messages=len(flood.messages),
        in_flight=flood.in_flight,
        missing=(Counter[bytes | None](flood.messages) - recorded).total(),
        is_torn=kinds["torn"] > 0,
        is_damaged=any(kinds[flaw] for flaw in ("damaged", "digest", "numbering")),
        has_gap=kinds["gap"] > 0,
    )


def _items(recording: RecordOptions) -> Iterator[Record | Damage]:
    """Return the recording's items; nothing if the server died before it could open the file."""
    try:
        yield from read_recording(open_recording(recording.path))
    except RecordingError:
        return


# All trials.


class Report(msgspec.Struct):
    """The results of all kills that count."""

    write_ahead: bool
    compressed: bool
    segment_kib: int | None
    seed: int
    kills: int = 0
    not_counted: int = 0
    with_messages_before: int = 0
    in_flight_min: int = IN_FLIGHT_AIM
    messages: int = 0
    missing: int = 0
    kills_with_missing: int = 0
    torn: int = 0
    damaged: int = 0
    files_max: int = 0

    def add(self, trial: Trial) -> None:
        if not trial.counts:
            self.not_counted += 1
            return
        self.kills += 1
        self.with_messages_before += trial.messages_before > 0
        self.in_flight_min = min(self.in_flight_min, trial.in_flight)
        self.messages += trial.messages
        self.missing += trial.missing
        self.kills_with_missing += trial.missing > 0
        self.torn += trial.is_torn
        self.damaged += trial.is_damaged


def kill(
    kills: int, *, write_ahead: bool, compressed: bool, segment_kib: int | None, seed: int
) -> Report:
    """Go on until so many kills count.

    Raises:
        RuntimeError: Too few of them do, or a server ended by itself.
    """
    serve = serve_ahead if write_ahead else serve_late
    report = Report(
        write_ahead=write_ahead, compressed=compressed, segment_kib=segment_kib, seed=seed
    )
    gc.freeze()  # so that a child does not copy shared pages
    while report.kills < kills:
        number = report.kills + report.not_counted
        with tempfile.TemporaryDirectory(prefix="mcp_trio-kill-") as folder:
            recording = RecordOptions(
                Path(folder) / ("x.mcprec.jsonl" + ".zst" * compressed),
                segment_bytes_max=None if segment_kib is None else segment_kib * KIB,
            )
            report.add(try_kill(serve, recording, random.Random(f"{seed}/{number}")))
            report.files_max = max(report.files_max, len(list(Path(folder).iterdir())))
        if report.not_counted > kills:
            raise RuntimeError(f"{report.not_counted} kills do not count")
    return report


def main(arguments: list[str]) -> int:
    """Print the report; 1 if a record is missing or damaged."""
    parser = argparse.ArgumentParser(description="Kill recording servers, look for losses.")
    parser.add_argument("--kills", type=int, default=500, help="how many have to count")
    parser.add_argument("--seed", type=int, default=0, help="of calls and instants")
    parser.add_argument("--no-write-ahead", action="store_true", help="the control")
    parser.add_argument("--zst", action="store_true", help="compressed recordings")
    parser.add_argument("--segment-kib", type=int, help="recordings in files of so much")
    options = parser.parse_args(arguments)
    report = kill(
        options.kills,
        write_ahead=not options.no_write_ahead,
        compressed=options.zst,
        segment_kib=options.segment_kib,
        seed=options.seed,
    )
    print(msgspec.json.encode(report).decode())
    return 1 if report.missing or report.damaged else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
