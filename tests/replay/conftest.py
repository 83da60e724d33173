"""Sessions recorded over memory in virtual time, and replayed under a scheduler seed of one's own."""

import json
from types import SimpleNamespace

import attrs
import pytest
import trio
import trio.testing

from mcp_trio._journal.records import frame_of
from mcp_trio._recorder.sink import open_recording
from mcp_trio._replay import replay
from mcp_trio._replay.score import load_score
from mcp_trio._testing.wire_peer import WirePeer
from mcp_trio._transports.memory import memory_pair
from mcp_trio._wire.lines import Oversized


def seed(number):
    """The next Trio run takes its tasks in an order of its own."""
    trio._core._run._r.seed(number)


@attrs.define
class Heard:
    """What left a session, and what its sequencer was told, in order."""

    frames: list = attrs.field(factory=list)
    moments: list = attrs.field(factory=list)


class _TeeSequencer:
    """A sequencer that keeps (kind, lane, ordinal) of what the one behind it accepted."""

    def __init__(self, inner, heard):
        self._inner = inner
        self._heard = heard

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def _keep(self, kind, lane):
        self._heard.moments.append((kind, lane and lane.name, lane and lane.ordinal))

    def started(self, lane):
        before = self._inner.cursor
        self._inner.started(lane)
        if self._inner.cursor > before:
            self._keep("mark", lane)

    def took(self, frame, *, embed):
        self._keep("in", None)
        return self._inner.took(frame, embed=embed)

    def sent(self, frame, lane):
        self._inner.sent(frame, lane)
        self._heard.frames.append(frame)
        self._keep("out", lane)

    def resumed(self, lane, kind, body=None):
        before = self._inner.cursor
        self._inner.resumed(lane, kind, body)
        if self._inner.cursor > before:
            self._keep(kind, lane)

    def ended(self, lane, *, unstarted=False):
        self._inner.ended(lane, unstarted=unstarted)
        self._keep("cxl", lane)

    def marked(self, name, value, lane=None):
        self._inner.marked(name, value, lane)
        self._keep("mark", lane)

    def shut(self, cause):
        self._inner.shut(cause)
        self._keep("shut", None)

    def close(self, counts):
        self._inner.close(counts)
        self._keep("end", None)


@attrs.define
class Listened:
    """A server whose sessions are heard."""

    server: object
    heard: Heard = attrs.field(factory=Heard)

    def open_session(self, channel, *, sequencer):
        return self.server.open_session(channel, sequencer=_TeeSequencer(sequencer, self.heard))


def replayed(path, server, *, number=0):
    """Replay under a seed; returns what was heard."""
    seed(number)
    listened = Listened(server)
    replay(path, listened)
    return listened.heard


def records(path):
    return [json.loads(line) for line in open_recording(path)]


def played(path):
    """(kind, lane, ordinal) of every record that a replay does again."""
    return [(r["k"], r.get("l"), r.get("o")) for r in records(path) if r["k"] != "open"]


def sent_frames(path):
    return [frame_of(record) for record in load_score(path).journal if record.kind == "out"]


def rewrite(path, target, change):
    """Copy a recording with one change made to its lines; returns the copy."""
    lines = path.read_bytes().splitlines(keepends=True)
    changed = change(lines)
    target.write_bytes(b"".join(changed if changed is not None else lines))
    return target


def place_of(path, test, *, nth=0):
    """Which line holds the record for which `test` holds."""
    return [place for place, record in enumerate(records(path)) if test(record)][nth]


async def _serve(server, path, client, channels):
    ours, theirs = channels
    peer = WirePeer(theirs)
    async with trio.open_nursery() as nursery:
        serve = lambda **options: server.serve(ours, record=path, **options)  # noqa: E731
        session = await nursery.start(lambda task_status: serve(task_status=task_status))
        await client(peer, session)
        await peer.aclose()


def record(server, path, client, *, number=0, channels=None):
    """Record what `await client(peer, session)` does with a server, in virtual time."""
    seed(number)
    clock = trio.testing.MockClock(autojump_threshold=0)
    trio.run(_serve, server, path, client, channels or memory_pair(), clock=clock)
    return path


@pytest.fixture(scope="session")
def world():
    return SimpleNamespace(
        seed=seed,
        Listened=Listened,
        replayed=replayed,
        records=records,
        played=played,
        sent_frames=sent_frames,
        rewrite=rewrite,
        place_of=place_of,
        record=record,
        Oversized=Oversized,
    )
