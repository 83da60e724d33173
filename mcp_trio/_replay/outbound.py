"""Mode "outbound": only what is sent is compared, so that the code behind it may be rearranged.

Effects are matched by lane and name, the n-th by the n-th, and what was read in passing likewise.
They are still done in the recorded order as far as the code comes to them in that order: a lane's
n-th command waits for the place of its n-th in the journal, and an outcome for its own. What no
longer comes is passed by. A lane that is needed for a frame goes on whatever it waits for.
"""

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs

from mcp_trio._engine import Lane, Outcome
from mcp_trio._journal.records import (
    PATCHED,
    MarkBody,
    Record,
    body_of,
    frame_of,
    value_body,
)
from mcp_trio._replay.finding import label_of
from mcp_trio._replay.part import Part, recorded_value
from mcp_trio._replay.player import Abort
from mcp_trio._replay.score import OUTCOMES, Key, Score, is_in_passing, key_of, mark_name
from mcp_trio._replay.waiting import Parked

_NEVER: Final = math.inf


@attrs.define(eq=False)
class Repertoire:
    """What the lanes of a recording did beside sending, by name.

    Attributes:
        commands: Where each lane's commands stand.
        named: The same, by name as well; and what was read in passing.
        outcomes: For the place of a command, that of its outcome.
        places: All of these, which are not compared.
    """

    commands: defaultdict[Key, list[int]] = attrs.field(factory=lambda: defaultdict(list))
    named: defaultdict[tuple[Key, str, str], list[int]] = attrs.field(
        factory=lambda: defaultdict(list)
    )
    outcomes: dict[int, int] = attrs.field(factory=dict[int, int])
    places: set[int] = attrs.field(factory=set[int])


def repertoire_of(score: Score) -> Repertoire:
    """The repertoire of a recording."""
    found = Repertoire()
    for lane, places in score.places.items():
        for index, place in enumerate(places):
            record = score.journal[place]
            if record.kind == "cmd":
                _note_command(found, score, lane, places[index : index + 2])
            elif is_in_passing(record):
                found.named[lane, record.kind, _name_in_passing(record)].append(place)
                found.places.add(place)
    return found


def _note_command(found: Repertoire, score: Score, lane: Key, places: Sequence[int]) -> None:
    command, *rest = places
    found.commands[lane].append(command)
    found.named[lane, "cmd", mark_name(score.journal[command])].append(command)
    found.places.add(command)
    if rest and score.journal[rest[0]].kind in OUTCOMES:
        found.outcomes[command] = rest[0]
        found.places.add(rest[0])


def _name_in_passing(record: Record) -> str:
    if record.kind == "val":
        return mark_name(record)
    body = body_of(record, MarkBody)
    return f"{body.name} {body.value}"


@attrs.define(eq=False)
class OutboundPart(Part):
    """A part that compares frames only; see the module.

    `_issued` counts what a lane has done, and `_awaited` says where the outcome of its command is.
    """

    repertoire: Repertoire = attrs.field(kw_only=True)
    _issued: Counter[tuple[Key, str, str]] = attrs.field(
        factory=Counter[tuple[Key, str, str]], init=False
    )
    _commands: Counter[Key] = attrs.field(factory=Counter[Key], init=False)
    _awaited: dict[Key, float] = attrs.field(factory=dict[Key, float], init=False)

    async def turn(self, lane: Lane, *, commands: bool = False) -> str:
        """See `Sequencer`."""
        key = self._key(lane)
        awaited = self._awaited.get(key)
        if awaited is None and not commands:
            return await super().turn(lane)
        due = self._place_of_command(key) if awaited is None else awaited
        await self._wait(lane, Parked(key, lane.ordinal, due=due))
        if self._is_cancelled_here(key):
            return "cxl"
        return "cmd" if awaited is None else self.player.score.journal[int(awaited)].kind

    def _place_of_command(self, lane: Key) -> float:
        places = self.repertoire.commands[lane]
        issued = self._commands[lane]
        return places[issued] if issued < len(places) else -1

    def _is_cancelled_here(self, lane: Key) -> bool:
        """Whether the lane was let go only to be cancelled."""
        record, place = self.player.cursor.record, self.player.cursor.place
        if record is None or key_of(record) != lane:
            return False
        return record.kind == "cxl" and place not in self.repertoire.places

    def _is_silent(self, lane: Lane) -> bool:
        key, score, place = self._key(lane), self.player.score, self.player.cursor.place
        if key in self._awaited or not score.is_complete:
            return False
        places = score.places.get(key, ())
        to_come = len(places) - bisect_left(places, place)
        if to_come == 1 and places[-1] not in self.repertoire.places:
            return score.is_cancelled_end(key, places[-1])
        return not to_come

    def commanded(self, lane: Lane, body: bytes) -> None:
        """Find the command by its name."""
        key, name = self._key(lane), label_of("cmd", body)
        ordinal = lane.next_ordinal()
        place = self._next_named((key, "cmd", name))
        if place is None and not self._may_be_unfinished(key):
            self.player.diverge(self._wanted("cmd", lane, ordinal, body))
        self._commands[key] += 1
        self._awaited[key] = _NEVER if place is None else self._outcome_of(place)

    def _may_be_unfinished(self, lane: Key) -> bool:
        """Whether the lane was cut off, so that nobody knows what it would have done."""
        score = self.player.score
        return not score.is_complete or score.is_cancelled_end(lane, score.last_place(lane))

    def _outcome_of(self, command: int) -> float:
        return self.repertoire.outcomes.get(command, _NEVER)

    def _next_named(self, name: tuple[Key, str, str]) -> int | None:
        places, issued = self.repertoire.named[name], self._issued[name]
        self._issued[name] += 1
        return places[issued] if issued < len(places) else None

    def recorded(self, lane: Lane) -> bytes | None:
        """The outcome of the command."""
        return frame_of(self.player.score.journal[int(self._awaited[self._key(lane)])])

    def resumed(self, lane: Lane, kind: str, body: bytes | None = None) -> None:
        """An effect's outcome is not compared."""
        if self._awaited.pop(self._key(lane), None) is None:
            super().resumed(lane, kind, body)
        else:
            lane.next_ordinal()

    def valued(
        self,
        lane: Lane,
        name: str,
        arguments: bytes | None,
        read: Callable[[], Outcome],  # noqa: ARG002  the protocol's
    ) -> Outcome:
        """What was read then, with whatever arguments."""
        if self.player.is_over:
            raise Abort
        place = self._next_named((self._key(lane), "val", name))
        if place is None and self._is_too_early(lane):
            return self._unread(name)
        if place is None:
            body = value_body(name, arguments, b"null", is_error=False)
            self._differ(lane, None, "val", body)
        lane.next_ordinal()
        return recorded_value(self.player.score.journal[place])

    def patched(self, lane: Lane, name: str) -> bool:
        """Whether the recorded code took the new way anywhere in this lane."""
        return self._next_named((self._key(lane), "mark", f"{PATCHED} {name}")) is not None

    def noted(self, lane: Lane, name: str, value: Any, *, is_so: bool) -> bool:  # noqa: ARG002
        """What it looks like here: the code around it may be another."""
        return is_so

    def _is_same(
        self,
        record: Record,
        kind: str,
        lane: Lane | None,
        ordinal: int | None,  # noqa: ARG002  not compared
        body: bytes | None,
    ) -> bool:
        return super()._is_same(record, kind, lane, record.ordinal, body)
