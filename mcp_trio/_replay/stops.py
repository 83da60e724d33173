"""A record at which a replay stops, and the state of the replay there.

The replay stops just before the lane makes the record. If an operation makes the record when it is
called, the replay stops in that call. If the record ends a wait, or begins a step, the replay stops
while the task of the lane still waits. All other tasks are blocked meanwhile, the virtual clock
stands still, and no messages arrive.
"""

from collections.abc import Callable, Sequence
from types import FrameType
from typing import Final

import attrs
import msgspec

from mcp_trio._journal.records import Record, message_position
from mcp_trio._replay.divergence import Divergence, is_response, state_text
from mcp_trio._replay.trace import Trace, key_of, lane_text
from mcp_trio.errors import RecordingError

# The kinds of records that a call of a lane makes.
_KINDS_OF_CALLS: Final = frozenset({"cmd", "out", "val", "mark"})

Frames = Sequence[tuple[FrameType, int]]
"""Frames and their lines, the outermost first."""


class StoppedReplay(msgspec.Struct, frozen=True):
    """The state of a replay that has stopped.

    Attributes:
        divergence: The record, what the replay does there, and where the other lanes wait.
        end: A function that ends the replay; it can be called while the replay is stopped, or
            later.
        frames: The frames of the user's code in the lane of the record.
        entry: The file and line at which that code begins, if the task has not started.
    """

    divergence: Divergence
    end: Callable[[], None]
    frames: Frames = ()
    entry: tuple[str, int] | None = None

    def __str__(self) -> str:
        """Return the record, the line of its lane, and the other lanes with their lines."""
        return state_text(self.divergence)


@attrs.define(eq=False, repr=False)
class Stop:
    """A record at which a replay stops.

    Attributes:
        number: The number of the record. At a `step` record, which lists several steps, the replay
            stops before the first of them.
        on_stop: Called in the task of the lane, or in that of the replay for a record without one.
            The replay goes on when this returns.
        needs_task: Whether the record has to be one of a handler, because a debugger needs the
            frames of a task. If no task makes the record, the replay then also stops before it
            reports this divergence.
        has_stopped: Whether the replay has stopped.
        has_ended: Whether the replay was ended by `StoppedReplay.end`.
    """

    number: int
    on_stop: Callable[[StoppedReplay], None]
    needs_task: bool = False
    has_stopped: bool = attrs.field(default=False, init=False)
    has_ended: bool = attrs.field(default=False, init=False)

    def is_at(self, record: Record | None) -> bool:
        """Return whether the replay has to stop at a record."""
        return record is not None and record.number == self.number and not self.has_stopped

    def is_before_step(self, record: Record) -> bool:
        """Return whether the replay stops before the step that the record begins.

        Otherwise it stops at the call that makes the record. For a debugger, it also stops before
        the step that makes a response: at the response itself the handler has returned, so that its
        task has no frames any more.
        """
        if not self.is_at(record):
            return False
        is_call = record.kind in _KINDS_OF_CALLS
        return not is_call or (self.needs_task and is_response(record))


def check_stop(trace: Trace, stop: Stop) -> None:
    """Check that a replay can stop at a record.

    Raises:
        RecordingError: It cannot; the message names a record at which it can, if there is one.
    """
    journal, number = trace.journal, stop.number
    last = journal[-1].number if journal else 0
    if not 0 <= number <= last:
        raise RecordingError(f"there is no record {number}: the last one is record {last}")
    # In a file of several sessions, a session makes the mark of its end without waiting for its
    # turn, so the replay cannot stop there.
    endings = {journal[index].number for index in trace.session_ends.values()}
    later = [each for each in journal if each.number >= number and each.number not in endings]
    if not later:
        raise RecordingError(
            f"record {number} takes no part in a replay, nor does a later one: stop at an earlier"
            " record"
        )
    if later[0].number != number:
        raise RecordingError(
            f"record {number} takes no part in a replay: stop at record {later[0].number} instead"
        )
    if not stop.needs_task:
        return
    record = later[0]
    if record.lane is None or message_position(record.lane) is None:
        text = f"no handler makes record {number}, so that a debugger has no task"
        of_handlers = (each for each in later if message_position(each.lane or "") is not None)
        following = next(of_handlers, None)
        if following is not None:
            lane = lane_text(key_of(following))
            text += f": the next record of a handler is {following.number}, of lane {lane}"
        raise RecordingError(text)
    if is_response(record) and not record.step_start:
        steps = [each for each in journal if each.step_start and key_of(each) == key_of(record)]
        last_step = max(each.number for each in steps if each.number < number)
        raise RecordingError(
            f"record {number} is the response of a handler, which has returned by then: its last"
            f" step begins with record {last_step}"
        )
