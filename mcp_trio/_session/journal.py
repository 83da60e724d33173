"""The journal of a session: the order of its events.

The session reports each event to its `Sequencer`, recorded or not: `UNRECORDED` ignores them, a
`Recording` writes a record for each, and the sequencer of a replay compares each with the record at
its position in the recording.

The journal is also the schedule of the handlers' tasks: `drive` reports each of their steps
(`lanes.py`), and a replay lets a task go on only when the next step in the recording is its own.

- If the first thing that a lane does in a step is recorded, that record has `s`, and stands for the
  step too. All other steps are listed in `step` records.
- A lane that waits in an operation, such as an effect, has no steps. The record at the end of the
  operation has `s` if the lane has waited.
- Tasks of the session itself that only write a record now and then have a lane without steps. They
  await `turn` before the record, which returns when the record is next.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs
import msgspec

from mcp_trio._journal.records import (
    BEGINS_STEP,
    EXPIRED_LIMIT,
    HAS_WAITED,
    PATCHED_MARK,
    MarkBody,
    ShutBody,
    sender_envelope,
    value_body,
)
from mcp_trio._jsonrpc.lines import Oversized
from mcp_trio._session.lanes import Lane

if TYPE_CHECKING:
    from mcp_trio._recorder.writer import Recorder

_encode = msgspec.json.Encoder().encode
_EMBED: Final = True
UNSTARTED_BODY: Final = b'"unstarted"'

CANCELLED_MEANWHILE: Final = {"cancelled": True}
"""The envelope of an effect's outcome whose task was cancelled while the effect ran."""


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """The end of an effect: a result as JSON (`res`), or an encoded `ErrorBody` (`err`)."""

    kind: Literal["res", "err"]
    body: bytes


class Sequencer:
    """The receiver of a session's events, in their order; this one ignores them.

    Subclasses record the events, or replay them.

    Attributes:
        has_lanes: True if operations need a lane, because they are recorded or replayed.
        has_steps: True if the steps of handlers' tasks are journaled.
        replays: True if lanes have to await their turn, and effects have recorded outcomes.
    """

    has_lanes: bool = False
    has_steps: bool = False
    replays: bool = False

    @property
    def seed(self) -> int | None:
        """The seed of the handlers' random numbers; None when nothing records."""
        return None

    def received(self, message: bytes | Oversized, *, embed: bool) -> int:  # noqa: ARG002
        """Note that the dispatcher has received a message; return the number of its record.

        `embed` is False if the message may not be JSON, so that the record cannot embed it as JSON.
        """
        return 0

    def step(self, lane: Lane) -> Awaitable[None] | None:  # noqa: ARG002
        """Note that a lane begins a step, after its start or after a wait outside of operations.

        A replay returns what to await before the step, unless it is the lane's turn already.
        """
        return None

    def sent(self, message: bytes, lane: Lane | None) -> int | None:
        """Note that a lane, or the dispatcher, has given a message to the writer.

        Returns the number of its record, if it has one.
        """

    def effect_started(self, lane: Lane, body: bytes) -> None:
        """Note that a lane starts an effect; `body` is an encoded `CommandBody`."""

    def resumed(
        self, lane: Lane, kind: str, body: bytes | None = None, *, is_cancelled: bool = False
    ) -> None:
        """Note that a lane goes on with a value (`res`), an error (`err`), or cancelled (`cxl`).

        `is_cancelled` is True if an effect ended with a value or an error although its task was
        cancelled meanwhile.
        """

    def read_value(
        self,
        lane: Lane,  # noqa: ARG002
        name: str,  # noqa: ARG002
        arguments: bytes | None,  # noqa: ARG002
        read: Callable[[], Outcome],
    ) -> Outcome:
        """Return a value that a lane reads without waiting.

        A live session calls `read`; a replay returns the recorded value. `arguments` is JSON.
        """
        return read()

    def patched(self, lane: Lane, name: str) -> bool:  # noqa: ARG002
        """Return whether a lane takes the new branch at a change of the code.

        Called once for each lane and name. A live session returns True and records a `mark`. A
        replay returns whether the next record is that mark; if it is not, no ordinal is used.
        """
        return True

    def ended(self, lane: Lane, *, unstarted: bool = False) -> None:
        """Note that a lane ends without a response."""

    def marked(self, name: str, value: Any, lane: Lane | None = None) -> Any:  # noqa: ARG002
        """Note a named fact; return its value, which is the recorded value in a replay."""
        return value

    def shut(self, cause: str) -> None:
        """Note that the session begins to close, and why."""

    def flush(self) -> None:
        """Write the records so far to the file, before the bytes that they explain are sent."""

    def close(self, counts: dict[str, int]) -> None:
        """Note the end of the session, with the number of messages and errors."""

    async def turn_to_end(self) -> None:
        """Wait until the next record is the end of the session; not a checkpoint if it is live."""

    async def turn(self, lane: Lane) -> None:
        """Wait until the next record is the lane's; not a checkpoint in a live session.

        A lane with steps waits only if its next record says that it has waited, and is cancelled
        here if that record is a cancellation.
        """

    async def outcome(self, lane: Lane, *, is_in_thread: bool = False) -> Outcome:
        """Wait for the recorded outcome of the effect that the lane has started, in a replay.

        In a thread, an effect that was cancelled never ends: its request does.

        Raises:
            Cancelled: The recorded effect was cancelled.
        """
        raise NotImplementedError

    def withdraw(self, lane: Lane) -> None:
        """Let a waiting call of an abandoned thread go on without its turn, to be rejected."""

    async def let_thread_run(self, name: str) -> None:
        """Wait until no other handler's thread runs, and then let the thread of `name` run.

        Like `thread_waits`, this does nothing in a live session.
        """

    def thread_waits(self) -> None:
        """Note that the running thread now waits for the Trio loop, or has ended."""


class SampledOut(Sequencer):
    """The sequencer of a session that a policy does not record.

    `is_choice_due` returns whether the policy has to decide again, about a new session.
    """

    def __init__(self, is_choice_due: Callable[[], bool]) -> None:
        self._is_choice_due = is_choice_due

    @property
    def is_due_for_renewal(self) -> bool:
        """True if a new session should replace this one."""
        return self._is_choice_due()


UNRECORDED: Final = Sequencer()
"""The sequencer of all sessions that are not recorded."""


@attrs.define(eq=False, repr=False)
class Recording(Sequencer):
    """A sequencer that writes a record for each event.

    Attributes:
        recorder: The recorder, which several sessions may share.
        channel: The number of the session in the file.
        has_steps: False for a client, whose recording is never replayed in its own code.
    """

    has_lanes = True

    recorder: "Recorder"
    channel: int = 0
    has_steps: bool = True

    @property
    def is_due_for_renewal(self) -> bool:
        """True if a new session, with a new file, should replace this one."""
        return not self.channel and self.recorder.is_nearly_full

    @property
    def seed(self) -> int | None:
        """The seed in the `open` record."""
        return self.recorder.seed

    def received(self, message: bytes | Oversized, *, embed: bool) -> int:
        """Record `in`."""
        recorder = self.recorder
        if (
            recorder.open_step is None
            and embed
            and type(message) is bytes
            and message.strip() is message
            and (number := recorder.append("in", message, self.channel)) is not None
        ):
            return number
        envelope: dict[str, Any] | None = None
        if type(message) is Oversized:
            envelope = {"discarded": message.size}
            message = message.prefix
            embed = False
        elif type(message) is bytes:
            pass  # Nothing is known about the sender.
        elif (auth := getattr(message, "auth", None)) is not None:
            envelope = sender_envelope(auth)
        elif client_number := getattr(message, "client_number", 0):
            envelope = {"client": client_number}
        return self.recorder.record("in", message, None, None, self.channel, envelope, embed)

    def step(self, lane: Lane) -> None:
        """Record the step, unless the next record implies it."""
        recorder = self.recorder
        if recorder.open_step is None:
            recorder.open_step = lane, self.channel, recorder.clock.ns
        else:
            recorder.step(lane.name, self.channel)

    def sent(self, message: bytes, lane: Lane | None, kind: str = "out") -> int | None:
        """Record `out`, or a record of another `kind`; return its number.

        The body is JSON that this package has encoded, so there is no space around it.
        """
        recorder = self.recorder
        if lane is None:
            return recorder.record(kind, message, channel=self.channel)
        has_waited, open_step = lane.has_waited, recorder.open_step
        if open_step is None:
            step_start = HAS_WAITED if has_waited else 0
        elif open_step[0] is lane and not has_waited:
            step_start = BEGINS_STEP
        else:
            return self._record(kind, message, lane)
        ordinal = lane.ordinal + 1
        number = recorder.append(kind, message, self.channel, lane.name, ordinal, step_start)
        if number is None:
            return self._record(kind, message, lane)
        lane.ordinal, lane.has_waited, recorder.open_step = ordinal, False, None
        return number

    def effect_started(self, lane: Lane, body: bytes) -> None:
        """Record `cmd`."""
        lane.command_record = self.sent(body, lane, "cmd")

    def resumed(
        self, lane: Lane, kind: str, body: bytes | None = None, *, is_cancelled: bool = False
    ) -> None:
        """Record the outcome."""
        if body is not None and not is_cancelled and body.strip() is body:
            self.sent(body, lane, kind)
            return
        envelope: dict[str, Any] | None = CANCELLED_MEANWHILE if is_cancelled else None
        if kind == "cxl" and (limit_us := lane.expired_limit_us) is not None:
            envelope = {EXPIRED_LIMIT: limit_us}
        self._record(kind, body, lane, envelope)

    def read_value(
        self, lane: Lane, name: str, arguments: bytes | None, read: Callable[[], Outcome]
    ) -> Outcome:
        """Record `val`."""
        outcome = read()
        is_error = outcome.kind == "err"
        self.sent(value_body(name, arguments, outcome.body, is_error=is_error), lane, "val")
        return outcome

    def patched(self, lane: Lane, name: str) -> bool:
        """Record `mark`."""
        self.marked(PATCHED_MARK, name, lane)
        return True

    def ended(self, lane: Lane, *, unstarted: bool = False) -> None:
        """Record `cxl`."""
        self._record("cxl", UNSTARTED_BODY if unstarted else None, lane)

    def marked(self, name: str, value: Any, lane: Lane | None = None) -> Any:
        """Record `mark`."""
        self.sent(_encode(MarkBody(name=name, value=value)), lane, "mark")
        return value

    def shut(self, cause: str) -> None:
        """Record `shut`."""
        self.sent(_encode(ShutBody(cause=cause)), None, "shut")

    def flush(self) -> None:
        """Write the records since the last flush to the file."""
        self.recorder.flush()

    def close(self, counts: dict[str, int]) -> None:
        """Record that the session has ended, and close its file."""
        self.recorder.end_session(counts, channel=self.channel)

    def _record(
        self,
        kind: str,
        body: bytes | None,
        lane: Lane,
        envelope: dict[str, Any] | None = None,
    ) -> int | None:
        has_waited, lane.has_waited = lane.has_waited, False
        lane.ordinal += 1
        return self.recorder.record(
            kind, body, lane.name, lane.ordinal, self.channel, envelope, _EMBED, has_waited
        )
