"""A replay with its actions noted, beside the records of the file.

The replayer compares too; this is a second opinion, which looks at the sequencer's calls alone. And
it knows a sequencer that takes no turns, for the control.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import attrs

from mcp_trio import Limits
from mcp_trio._replay.trace import is_immediate
from mcp_trio._server.sessions import sessions_of
from mcp_trio._session.journal import Lane
from mcp_trio.recording import Record, body_bytes, open_recording, read_recording


class Moment(NamedTuple):
    """One record, or one call of a sequencer."""

    kind: str
    lane: str | None
    ordinal: int | None


@attrs.define
class Story:
    """What happened in order, what was read without waiting, and the frames that were sent."""

    moments: list[Moment] = attrs.field(factory=list[Moment])
    read: list[Moment] = attrs.field(factory=list[Moment])
    frames: list[bytes] = attrs.field(factory=list[bytes])

    def difference(self, other: "Story") -> str | None:
        """What is not the same first; None if everything is."""
        for what in ("moments", "frames"):
            ours, theirs = getattr(self, what), getattr(other, what)
            for place, (left, right) in enumerate(zip(ours, theirs, strict=False)):
                if left != right:
                    return f"{what}[{place}]: {left!r} became {right!r}"
            if len(ours) != len(theirs):
                return f"{len(ours)} {what} became {len(theirs)}"
        if sorted(map(str, self.read)) != sorted(map(str, other.read)):
            return "other values were read without waiting"
        return None


def records_of(path: Path) -> Iterator[Record]:
    """The records of a file, without its flaws."""
    return (item for item in read_recording(open_recording(path)) if isinstance(item, Record))


def recorded_story(path: Path) -> Story:
    """What the file says."""
    story = Story()
    for record in records_of(path):
        moment = Moment(record.kind, record.lane, record.ordinal)
        if is_immediate(record):
            story.read.append(moment)
        elif record.kind != "open":
            story.moments.append(moment)
        if record.kind == "out":
            story.frames.append(body_bytes(record) or b"")
    return story


@attrs.define(eq=False)
class Tee:
    """A sequencer that keeps what the session replay that it wraps accepted."""

    replay: Any
    story: Story

    def __getattr__(self, name: str) -> Any:
        return getattr(self.replay, name)

    def _keep(self, kind: str, lane: Lane | None) -> None:
        moment = Moment(kind, None, None)
        if lane is not None:
            moment = Moment(kind, lane.name, lane.ordinal)
        self.story.moments.append(moment)

    def _call(self, name: str, kind: str, lane: Lane | None, *args: Any, **keywords: Any) -> Any:
        """Pass a call on; it counts if the position moved, as it does not for what is excused."""
        position = self.replay.replayer.position
        before = position.index
        result = getattr(self.replay, name)(*args, **keywords)
        if position.index > before:
            self._keep(kind, lane)
        return result

    def started(self, lane: Lane) -> None:
        """See `Sequencer`, as all of these."""
        self._call("started", "mark", lane, lane)

    def received(self, frame: Any, *, embed: bool) -> int:
        """Delivered: the position has moved already."""
        self._keep("in", None)
        number: int = self.replay.received(frame, embed=embed)
        return number

    def sent(self, frame: bytes, lane: Lane | None) -> None:
        """A frame leaves."""
        self._call("sent", "out", lane, frame, lane)
        self.story.frames.append(frame)

    def effect_started(self, lane: Lane, body: bytes) -> None:
        """An effect starts."""
        self._call("effect_started", "cmd", lane, lane, body)

    def resumed(self, lane: Lane, kind: str, body: bytes | None = None) -> None:
        """An outcome."""
        self._call("resumed", kind, lane, lane, kind, body)

    def ended(self, lane: Lane, *, unstarted: bool = False) -> None:
        """A lane ends without an answer."""
        self._call("ended", "cxl", lane, lane, unstarted=unstarted)

    def marked(self, name: str, value: Any, lane: Lane | None = None) -> Any:
        """A mark."""
        return self._call("marked", "mark", lane, name, value, lane)

    def shut(self, cause: str) -> None:
        """The session begins to close."""
        self._call("shut", "shut", None, cause)

    def close(self, counts: dict[str, int]) -> None:
        """The session is over."""
        self._call("close", "end", None, counts)

    def read_value(self, lane: Lane, *args: Any) -> Any:
        """Something is read without waiting; it counts if it was recorded."""
        before = lane.ordinal
        outcome = self.replay.read_value(lane, *args)
        if lane.ordinal > before:
            self.story.read.append(Moment("val", lane.name, lane.ordinal))
        return outcome

    def patched(self, lane: Lane, name: str) -> bool:
        """The same."""
        return self._marked(lane, lambda: self.replay.patched(lane, name))

    def observed(self, lane: Lane, name: str, value: Any, *, is_so: bool) -> bool:
        """The same."""
        return self._marked(lane, lambda: self.replay.observed(lane, name, value, is_so=is_so))

    def _marked(self, lane: Lane, ask: Callable[[], bool]) -> bool:
        before = lane.ordinal
        is_so = ask()
        if lane.ordinal > before:
            self.story.read.append(Moment("mark", lane.name, lane.ordinal))
        return is_so


class Hasty(Tee):
    """The gate is off: outcomes are those of the file, but nobody waits for a turn."""

    outcomes: dict[tuple[str | None, int | None], Record]

    async def turn_to_start(self, lane: Lane) -> None:
        """Go on."""

    async def turn(self, lane: Lane, *, commands: bool = False) -> str:  # noqa: ARG002
        """Go on; the kind of what the file holds for this lane next."""
        record = self.outcomes.get((lane.name, lane.ordinal + 1))
        return "" if record is None else record.kind

    def recorded(self, lane: Lane) -> bytes | None:
        """The lane's own outcome, wherever the replay is."""
        return body_bytes(self.outcomes[lane.name, lane.ordinal + 1])


@attrs.define(eq=False)
class Listened:
    """A server whose replayed session is heard; with `outcomes`, one whose gate is off."""

    server: Any
    story: Story = attrs.field(factory=Story)
    outcomes: dict[tuple[str | None, int | None], Record] | None = None

    @property
    def limits(self) -> Limits:
        """What each session may cost."""
        limits: Limits = self.server.limits
        return limits

    @property
    def _sessions(self) -> "Listened":
        """Itself: it takes the place of the server's sessions, too."""
        return self

    def open_session(self, channel: Any, *, sequencer: Any, **options: Any) -> Any:
        """A session of the server's, with an ear at its sequencer."""
        tee = Tee(sequencer, self.story)
        if self.outcomes is not None:
            tee = Hasty(sequencer, self.story)
            tee.outcomes = self.outcomes
        return sessions_of(self.server).open_session(channel, sequencer=tee, **options)


def outcomes_of(path: Path) -> dict[tuple[str | None, int | None], Record]:
    """Each lane's records by their ordinal."""
    return {(record.lane, record.ordinal): record for record in records_of(path)}
