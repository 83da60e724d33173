"""Which sessions of a server are open at the same time."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

import attrs

from mcp_trio._engine import Recording
from mcp_trio._recorder.options import RecordTo, SharedRecording

BESIDE: Final = "sessions beside"


@attrs.define
class _Tally:
    """How many sessions have come and gone."""

    come: int = 0
    gone: int = 0


@attrs.define(eq=False)
class Neighbours:
    """The open sessions of one server object, by where each is recorded.

    What a handler reads of memory that sessions share may come from another session, which the
    recording of one does not hold. So each session counts those that were open while it was, but
    for those in the same file: when a replay differs, the count tells where to look. It is a
    difference of tallies, so that a session costs the same however many are open.
    """

    _all: _Tally = attrs.field(factory=_Tally, init=False)
    _by_file: dict[object, _Tally] = attrs.field(factory=dict[object, _Tally], init=False)

    @contextmanager
    def beside(self, record: RecordTo | None) -> Generator[Callable[[], int], None, None]:
        """Keep a session among the open ones for the block; tells how many were beside it."""
        file = record if isinstance(record, SharedRecording) else object()
        same = self._by_file.setdefault(file, _Tally())
        gone_before = self._all.gone - same.gone
        self._all.come += 1
        same.come += 1
        try:
            yield lambda: self._all.come - same.come - gone_before
        finally:
            self._all.gone += 1
            same.gone += 1
            if same.come == same.gone:
                del self._by_file[file]


@attrs.define(eq=False)
class RecordingBeside(Recording):
    """A recording that ends with the count of `Neighbours`, if there were any."""

    beside: Callable[[], int] = attrs.field(kw_only=True)

    def close(self, counts: dict[str, int]) -> None:
        """See `Sequencer.close`."""
        others = self.beside()
        super().close(counts | {BESIDE: others} if others else counts)
