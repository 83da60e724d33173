"""Where in the journal a replay is."""

import attrs

from mcp_trio._journal.records import Record
from mcp_trio._replay.score import Key, Score


@attrs.define(eq=False)
class Cursor:
    """The place of the next record; what was read ahead of it is skipped when it comes there."""

    score: Score
    place: int = attrs.field(default=0, init=False)
    _taken: set[int] = attrs.field(factory=set[int], init=False)

    @property
    def record(self) -> Record | None:
        """The record at the cursor; None beyond the last."""
        journal = self.score.journal
        return journal[self.place] if self.place < len(journal) else None

    @property
    def is_at_hole(self) -> bool:
        """Whether the file lacks what should come next."""
        return self.place in self.score.missing

    @property
    def is_at_taken(self) -> bool:
        """Whether the record at the cursor is done already."""
        return self.place in self._taken

    def advance(self) -> None:
        """The record at the cursor is done; what was taken behind it too, up to a hole."""
        self.place += 1
        while self.is_at_taken and not self.is_at_hole:
            self.place += 1

    def find_ahead(self, lane: Key, ordinal: int) -> int | None:
        """Where that stands which a lane read in passing with an operation, if it is to come."""
        place = self.score.ahead.get((lane, ordinal), -1)
        return place if place >= self.place else None

    def take_ahead(self, place: int) -> None:
        """What stands at a place, here or further on, is done."""
        if place == self.place and not self.is_at_hole:
            self.advance()
        else:
            self._taken.add(place)
