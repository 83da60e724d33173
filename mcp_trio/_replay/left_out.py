"""Requests that a replay goes on without, after they have diverged.

A replay that finds all divergences ends the handler of such a request by cancelling it, and skips
the records that are left of it. What the recording has because of these records is left out, too:
the client's answers to the requests that the handler would have sent, and the retries of a handler
that asks in rounds.
"""

from bisect import bisect_left

import attrs
import msgspec

from mcp_trio._journal.records import SUSPENDED_MARK, MarkBody, Record, body_bytes, decode_body
from mcp_trio._replay.trace import (
    LaneKey,
    Trace,
    body_name,
    message_fields,
    request_lane,
)


@attrs.define(eq=False, repr=False)
class LeftOutRequests:
    """The requests of a trace that a replay goes on without; a lane of one is `in` this object."""

    trace: Trace
    _lanes: set[LaneKey] = attrs.field(factory=set[LaneKey], init=False)
    _sent_ids: set[tuple[int, int | str]] = attrs.field(
        factory=set[tuple[int, int | str]], init=False
    )
    _states: set[object] = attrs.field(factory=set[object], init=False)

    def __bool__(self) -> bool:
        """Return whether any request is left out."""
        return bool(self._lanes)

    def __contains__(self, lane: LaneKey) -> bool:
        """Return whether a lane belongs to a request that is left out."""
        return bool(self._lanes) and request_lane(lane) in self._lanes

    def add(self, request: LaneKey, index: int) -> list[int]:
        """Leave out a request; return the indexes of its records at `index` and later."""
        self._lanes.add(request)
        skipped: list[int] = []
        for lane, indexes in self.trace.indexes.items():
            if request_lane(lane) == request:
                skipped += indexes[bisect_left(indexes, index) :]
                for each in indexes:
                    self._note(self.trace.journal[each])
        return skipped

    def _note(self, record: Record) -> None:
        if record.kind == "out":
            message = message_fields(body_bytes(record) or b"")
            if message.is_request and message.id is not msgspec.UNSET:
                self._sent_ids.add((record.channel, message.id))
        elif record.kind == "mark" and body_name(record) == SUSPENDED_MARK:
            self._states.add(decode_body(record, MarkBody).value)

    def leaves_out(self, record: Record) -> bool:
        """Return whether an `in` record answers, or retries, a request that is left out."""
        if not self._lanes:
            return False
        message = message_fields(body_bytes(record) or b"")
        if message.is_response:
            return (record.channel, message.id) in self._sent_ids
        return message.params.get("requestState") in self._states
