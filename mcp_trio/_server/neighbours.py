"""Which sessions of a server are open at the same time."""

from collections.abc import Callable
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

    all: _Tally = attrs.field(factory=_Tally, init=False)
    _by_file: dict[SharedRecording, _Tally] = attrs.field(
        factory=dict[SharedRecording, _Tally], init=False
    )

    def join(self, record: RecordTo | None) -> "Beside":
        """A session is open from now on, until it has to `leave`."""
        file = record if isinstance(record, SharedRecording) else None
        same = _ALONE
        if file is not None:
            same = self._by_file.setdefault(file, _Tally())
            same.come += 1
        self.all.come += 1
        return Beside(self, same, file)

    def forget(self, file: SharedRecording) -> None:
        """All sessions in a file have ended."""
        del self._by_file[file]


_ALONE: Final = _Tally(come=1)
"""What is in the file of a session that has one of its own."""


@attrs.define(eq=False)
class Beside:
    """An open session, and those that were open while it was."""

    _neighbours: Neighbours
    _same: _Tally
    _file: SharedRecording | None
    _others_gone_before: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._others_gone_before = self._neighbours.all.gone - self._same.gone

    def count(self) -> int:
        """How many there were, but for those in the same file."""
        return self._neighbours.all.come - self._same.come - self._others_gone_before

    def leave(self) -> None:
        """It is open no more."""
        self._neighbours.all.gone += 1
        if self._file is not None:
            self._same.gone += 1
            if self._same.come == self._same.gone:
                self._neighbours.forget(self._file)


@attrs.define(eq=False)
class RecordingBeside(Recording):
    """A recording that ends with the count of `Neighbours`, if there were any."""

    beside: Callable[[], int] = attrs.field(kw_only=True)

    def close(self, counts: dict[str, int]) -> None:
        """See `Sequencer.close`."""
        others = self.beside()
        super().close(counts | {BESIDE: others} if others else counts)
