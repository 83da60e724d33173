"""Sessions that follow each other, as one story: those of a client, or of a server that dials."""

import attrs

from mcp_trio._recorder.options import (
    RecordTo,
    SharedRecording,
    keeps_each_session,
    options_of,
)


@attrs.define(eq=False, init=False)
class Story:
    """Where sessions are recorded of which one may follow another; `goes_on` says whether.

    One file then takes them all, each a channel of it.

    Attributes:
        record: Where each session is recorded.
    """

    record: RecordTo | None
    _own: SharedRecording | None

    def __init__(self, record: RecordTo | None, *, goes_on: bool = True) -> None:
        self.record, self._own = record, None
        if record is not None and goes_on and not keeps_each_session(record):
            self.record = self._own = SharedRecording(options_of(record))

    def end(self) -> None:
        """There are no more sessions; one that still goes on is cut."""
        if self._own is not None:
            self._own.close()
