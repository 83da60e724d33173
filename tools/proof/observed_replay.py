"""A replay whose actions are noted, for comparison with the recording.

The replayer compares, too; this is an independent check, which looks only at calls of the
sequencer.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import attrs

from mcp_trio import Limits
from mcp_trio._replay.trace import CHANNEL_MARKS, is_immediate, is_untracked_call, mark_name
from mcp_trio._server.sessions import sessions_of
from mcp_trio._session.lanes import Lane
from mcp_trio.recording import Record, body_bytes, open_recording, read_recording


class Action(NamedTuple):
    """A record, or a call of a sequencer."""

    kind: str
    lane: str | None
    ordinal: int | None


@attrs.define
class Actions:
    """The ordered actions, the values read without waiting, and the sent messages."""

    ordered: list[Action] = attrs.field(factory=list[Action])
    read: list[Action] = attrs.field(factory=list[Action])
    sent_messages: list[bytes] = attrs.field(factory=list[bytes])

    def difference(self, other: "Actions") -> str | None:
        """Return the first difference, or None."""
        for what in ("ordered", "sent_messages"):
            ours, theirs = getattr(self, what), getattr(other, what)
            for position, (left, right) in enumerate(zip(ours, theirs, strict=False)):
                if left != right:
                    return f"{what}[{position}]: {left!r} became {right!r}"
            if len(ours) != len(theirs):
                return f"{len(ours)} {what} became {len(theirs)}"
        if sorted(map(str, self.read)) != sorted(map(str, other.read)):
            return "other values were read without waiting"
        return None


def records_of(path: Path) -> Iterator[Record]:
    """Yield the records of a file, without its damage."""
    return (item for item in read_recording(open_recording(path)) if isinstance(item, Record))


def recorded_actions(path: Path) -> Actions:
    """Return the actions in the recording.

    Marks that begin and end sessions and lifespans are none, nor is the end of their file.
    """
    actions = Actions()
    records = list(records_of(path))
    has_session_marks = any(mark_name(record) in CHANNEL_MARKS for record in records)
    for record in records:
        if mark_name(record) in CHANNEL_MARKS or (has_session_marks and record.kind == "end"):
            continue
        action = Action(record.kind, record.lane, record.ordinal)
        if is_immediate(record):
            actions.read.append(action)
        elif record.kind not in {"open", "step"} and not is_untracked_call(record):
            actions.ordered.append(action)
        if record.kind == "out":
            actions.sent_messages.append(body_bytes(record) or b"")
    return actions


@attrs.define(eq=False)
class NotingSequencer:
    """A sequencer that notes what the replay of a session accepted."""

    replay: Any
    actions: Actions

    def __getattr__(self, name: str) -> Any:
        return getattr(self.replay, name)

    def _note(self, kind: str, lane: Lane | None) -> None:
        action = Action(kind, None, None)
        if lane is not None:
            action = Action(kind, lane.name, lane.ordinal)
        self.actions.ordered.append(action)

    def _call(self, name: str, kind: str, lane: Lane | None, *args: Any, **keywords: Any) -> Any:
        """Pass a call on, and note it if the replay's position moved."""
        position = self.replay.replayer.position
        before = position.index
        result = getattr(self.replay, name)(*args, **keywords)
        if position.index > before:
            self._note(kind, lane)
        return result

    def received(self, message: Any, *, embed: bool) -> int:
        """Note a received message; the position has moved already."""
        self._note("in", None)
        number: int = self.replay.received(message, embed=embed)
        return number

    def sent(self, message: bytes, lane: Lane | None) -> None:
        self._call("sent", "out", lane, message, lane)
        self.actions.sent_messages.append(message)

    def effect_started(self, lane: Lane, body: bytes) -> None:
        self._call("effect_started", "cmd", lane, lane, body)

    def resumed(
        self, lane: Lane, kind: str, body: bytes | None = None, *, is_cancelled: bool = False
    ) -> None:
        self._call("resumed", kind, lane, lane, kind, body, is_cancelled=is_cancelled)

    def ended(self, lane: Lane, *, unstarted: bool = False) -> None:
        self._call("ended", "cxl", lane, lane, unstarted=unstarted)

    def marked(self, name: str, value: Any, lane: Lane | None = None) -> Any:
        return self._call("marked", "mark", lane, name, value, lane)

    def shut(self, cause: str) -> None:
        self._call("shut", "shut", None, cause)

    def close(self, counts: dict[str, int]) -> None:
        if self.replay.replayer.trace.has_session_marks:
            self.replay.close(counts)
        else:
            self._call("close", "end", None, counts)

    def read_value(self, lane: Lane, *args: Any) -> Any:
        """Note a value read without waiting, if it was recorded."""
        before = lane.ordinal
        outcome = self.replay.read_value(lane, *args)
        if lane.ordinal > before:
            self.actions.read.append(Action("val", lane.name, lane.ordinal))
        return outcome

    def patched(self, lane: Lane, name: str) -> bool:
        return self._marked(lane, lambda: self.replay.patched(lane, name))

    def _marked(self, lane: Lane, ask: Callable[[], bool]) -> bool:
        before = lane.ordinal
        is_so = ask()
        if lane.ordinal > before:
            self.actions.read.append(Action("mark", lane.name, lane.ordinal))
        return is_so


@attrs.define(eq=False)
class NotingServer:
    """A server whose replayed session is noted."""

    server: Any
    actions: Actions = attrs.field(factory=Actions)

    @property
    def limits(self) -> Limits:
        limits: Limits = self.server.limits
        return limits

    @property
    def _sessions(self) -> "NotingServer":
        """Return this object, which stands in for the server's sessions, too."""
        return self

    @property
    def registry(self) -> Any:
        """Return the server's tools, prompts and resources."""
        return self.server._sessions.registry  # noqa: SLF001  the same

    @property
    def has_lifespan(self) -> bool:
        """Return whether the server has a lifespan."""
        return sessions_of(self.server).has_lifespan

    def open_session(self, channel: Any, *, sequencer: Any, **options: Any) -> Any:
        """Open a session of the server with a noting sequencer."""
        return sessions_of(self.server).open_session(
            channel, sequencer=self._noting(sequencer), **options
        )

    def lifespan_run(self, sequencer: Any) -> Any:
        """Return a run of the server's lifespan with a noting sequencer."""
        return sessions_of(self.server).lifespan_run(self._noting(sequencer))

    def _noting(self, sequencer: Any) -> Any:
        # It passes on what it does not note, so it inherits no method of `Sequencer`.
        return NotingSequencer(sequencer, self.actions)
