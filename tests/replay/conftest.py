"""Sessions that are recorded in memory and virtual time, and replayed under seeded schedules."""

import json
import logging
import tempfile
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import attrs
import pytest
import trio
import trio.testing
from hypothesis import assume
from memory_sessions import scripted_session
from proof.observed_replay import NotingServer, recorded_actions

from mcp_trio import Context, Limits, Server
from mcp_trio._journal.records import RecordEncoder, encode_body
from mcp_trio._session.tasks import seeded_schedule
from mcp_trio.errors import NothingCompared, ReplayDivergence
from mcp_trio.limits import RequestLimits, ShutdownLimits
from mcp_trio.recording import open_recording, replay
from mcp_trio.testing import WirePeer
from mcp_trio.transports import memory_pair
from tests.written_recordings import OPEN


def replayed(path, server, *, number=0, mode="strict"):
    """Replay under a scheduler seed; return what the session did, perhaps no request."""
    noting_server = NotingServer(server)
    with seeded_schedule(number), suppress(NothingCompared):
        replay(path, noting_server, mode=mode, allow_damaged=True)
    return noting_server.actions


def records(path):
    return [json.loads(line) for line in open_recording(path)]


def played(path):
    """Return kind, lane and ordinal of each record that takes a turn in a replay."""
    return recorded_actions(path).ordered


def sent_frames(path):
    return recorded_actions(path).sent_messages


def rewrite(path, target, change):
    """Copy a recording with a change to its lines; return the copy."""
    lines = path.read_bytes().splitlines(keepends=True)
    changed = change(lines)
    target.write_bytes(b"".join(changed if changed is not None else lines))
    return target


def place_of(path, test, *, nth=0):
    """Return the index of the nth record for which `test` is true."""
    return [place for place, record in enumerate(records(path)) if test(record)][nth]


async def _serve(server, path, client, channels):
    async with scripted_session(server, path, channels=channels) as (peer, session):
        await client(peer, session)


def record(server, path, client, *, number=0, channels=None, clock=None):
    """Record a server's session with `await client(peer, session)`, by default in virtual time."""
    clock = clock or trio.testing.MockClock(autojump_threshold=0)
    with seeded_schedule(number):
        trio.run(_serve, server, path, client, channels, clock=clock)
    return path


class AbandonedHandlers(logging.Filter):
    """A filter that notes whether a session abandoned a handler, after which replays may differ."""

    found = False

    def filter(self, record):
        self.found |= record.getMessage().startswith("a handler in a shielded scope")
        return True


def assert_same_whatever_the_schedule(make_server, client, *, number):
    """Record under one seed and replay under others: all messages and records are the same."""
    logger, abandoned = logging.getLogger("mcp_trio"), AbandonedHandlers()
    with tempfile.TemporaryDirectory() as folder:
        logger.addFilter(abandoned)
        try:
            path = record(make_server(), Path(folder, "a.mcprec.jsonl"), client, number=number)
        finally:
            logger.removeFilter(abandoned)
        assume(not abandoned.found)
        for other in (number + 100, number + 200, number + 300):
            result = replayed(path, make_server(), number=other)
            assert result.sent_messages == sent_frames(path)
            assert result.ordered == played(path)


# The desk: a server, and a session with all kinds of records.

LIMITS = Limits(
    requests=RequestLimits(in_flight_max=6), shutdown=ShutdownLimits(drain_seconds=0.05)
)


async def add(state, ctx, amount):
    before = state["total"]
    await ctx.list_roots()
    state["total"] = before + amount
    return before


async def wait(state, ctx, amount):
    await state["door"].wait()
    await ctx.info("through the door")
    return amount


async def open_door(state, ctx, amount):
    await trio.sleep(0.010)
    await trio.sleep(0.010)
    await ctx.report_progress(1)
    state["door"].set()
    return amount


async def forever(state, ctx, amount):
    await trio.sleep_forever()


async def heartbeat(state, ctx, amount):
    async def beat():
        for number in range(1000):
            await trio.sleep(0.007)
            await ctx.report_progress(number)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(beat)
        await trio.sleep(amount / 1000)
        nursery.cancel_scope.cancel()
    return amount


async def in_time(state, ctx, amount):
    with trio.move_on_after(amount / 1000) as scope:
        await ctx.list_roots()
    return int(scope.cancelled_caught)


HANDLERS = (add, wait, open_door, forever, heartbeat, in_time)


def make_server(**changed):
    """Make the server of these recordings, with some handlers replaced."""
    server = Server("desk", limits=LIMITS)
    state = {"total": 0, "door": trio.Event()}

    def register(handler):
        @server.tool(name=handler.__name__)
        async def tool(amount: int, *, ctx: Context) -> int:
            return await changed.get(handler.__name__, handler)(state, ctx, amount)

    for handler in HANDLERS:
        register(handler)
    return server


def call(number, name, amount):
    params = {"name": name, "arguments": {"amount": amount}, "_meta": {"progressToken": number}}
    return {"id": number, "method": "tools/call", "params": params}


def cancel(number):
    return {"method": "notifications/cancelled", "params": {"requestId": number}}


async def answer_roots(peer, *, after=0.004):
    while True:
        message = await peer.receive()
        if message.get("method") == "roots/list":
            await trio.sleep(after)
            await peer.send_result(message, {"roots": [{"uri": "file:///a"}]})


async def talk(peer, session):
    await peer.handshake(capabilities={"roots": {}})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer_roots, peer)
        await peer.send(call(1, "add", 1), call(2, "add", 10), call(3, "wait", 3))
        await peer.send(call(4, "forever", 4), call(5, "heartbeat", 30))
        await trio.sleep(0.0051)
        await peer.send({"id": 6, "method": "ping"}, call(7, "forever", 7), cancel(7))
        await peer.send(call(8, "in_time", 2), call(9, "forever", 9), call(10, "forever", 10))
        await peer.send(cancel(10), b'{"jsonrpc":"2.0","id":11,"method":"no/such"}')
        await trio.sleep(0.0051)
        await peer.send(cancel(4), call(12, "open_door", 12))
        await trio.sleep(0.0451)
        await peer.send(call(13, "add", 100), call(14, "forever", 14))
        await trio.sleep(0.0002)
        nursery.cancel_scope.cancel()


def is_out(record, request_id):
    return record["k"] == "out" and "result" in record["f"] and record["f"]["id"] == request_id


def first_of_add(path, ordinal):
    """Return the number of the first record with an ordinal in the lanes of the calls of `add`."""
    return place_of(path, lambda r: r.get("o") == ordinal and r["l"] in {"r5", "r6"})


def place_of_answer(path, request_id):
    return place_of(path, lambda record: is_out(record, request_id))


def assert_diverges(path, server=None):
    with pytest.raises(ReplayDivergence) as caught:
        replay(path, server or make_server(), allow_damaged=True)
    return caught.value


@pytest.fixture(scope="session")
def world():
    return SimpleNamespace(
        replayed=replayed,
        records=records,
        played=played,
        sent_frames=sent_frames,
        rewrite=rewrite,
        place_of=place_of,
        record=record,
        assert_same_whatever_the_schedule=assert_same_whatever_the_schedule,
    )


@pytest.fixture(scope="session")
def desk():
    return SimpleNamespace(
        make_server=make_server,
        call=call,
        cancel=cancel,
        talk=talk,
        first_of_add=first_of_add,
        place_of_answer=place_of_answer,
        assert_diverges=assert_diverges,
    )


@pytest.fixture
def path(tmp_path):
    """The path of the recording of that session."""
    return record(make_server(), tmp_path / "desk.mcprec.jsonl", talk)


# Conversations by hand, and live servers that follow a script.


@pytest.fixture
def recording_of(tmp_path):
    """Write a recording of messages: ("C", message) of the client, ("S", message) of the server.

    A third item is how many seconds after the one before.
    """

    def write(*messages, **opened):
        encoder = RecordEncoder()
        records = [encoder.record("open", encode_body(OPEN | {"role": "proxy"} | opened), 0)]
        time_ns = 0
        for who, message, *seconds in messages:
            time_ns += int(1e9 * sum(seconds))
            is_json = isinstance(message, dict)
            body = encode_body({"jsonrpc": "2.0", **message}) if is_json else message
            kind = "in" if who == "C" else "out"
            records.append(encoder.record(kind, body, time_ns, embed=is_json))
        records.append(encoder.record("end", b'{"counts":{}}', time_ns))
        path = tmp_path / "it.mcprec.jsonl"
        path.write_bytes(encoder.lines(records))
        return path

    return write


@attrs.define
class Scripted:
    """Make a live server that runs `script(peer)` and then answers pings until its end."""

    script: object

    async def serve(self, channel):
        peer = WirePeer(channel)
        await self.script(peer)
        with suppress(EOFError, trio.ClosedResourceError):
            while True:
                asked = await peer.receive()
                if asked.get("method") in {"ping", "server/discover"}:
                    await peer.send_result(asked, {})


@pytest.fixture(scope="session")
def scripted():
    return Scripted


@pytest.fixture
async def connect(nursery):
    """Serve a mock in memory; return the client's end as a scripted peer."""

    def connect(mock):
        ours, theirs = memory_pair()
        nursery.start_soon(mock.serve, theirs)
        return WirePeer(ours)

    return connect
