"""Schedules: the orders in which a session may run, and strategies to choose among them.

A session runs one thing after another: a lane goes on, an effect ends, a message of the client
arrives, time passes. Wherever several of them are possible there is a *decision*, and one of its
*options* is the *default*: the one that came first in the recording. A schedule is the list of its
deviations from these defaults. A schedule without deviations is the recorded order.

Three strategies find schedules:

- `random` takes any option, all with the same probability.
- `pct`, probabilistic concurrency testing, gives lanes random priorities, and changes the priority
  of the lane that goes on at a few random decisions. It finds a race that needs few changes with
  a probability that has a lower bound: https://dl.acm.org/doi/10.1145/1736020.1736040
- `depth-first` runs every schedule with one deviation, then every one with two, and so on, until
  all are covered or the number of schedules is used up (iterative deepening).
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Final, Literal, Protocol, TypeAlias

import attrs
import msgspec

from mcp_trio.errors import RecordingError

Strategy: TypeAlias = Literal["random", "pct", "depth-first"]

DEFAULT_PCT_BOUND: Final = 3

# The number of schedules that may be run to shorten one.
_SHORTENING_RUNS_MAX: Final = 400

TIME_PASSES: Final = "time passes"
"""The option that lets the next deadline expire."""


class Decision(msgspec.Struct, frozen=True, array_like=True):
    """A point of a schedule with its options, the default among them, and the chosen one."""

    options: tuple[str, ...]
    default: str
    chosen: str


class Deviation(msgspec.Struct, kw_only=True, frozen=True):
    """A decision of a schedule, by its number, where another option than the default is taken."""

    decision: int
    take: str
    instead_of: str

    def __str__(self) -> str:
        return f"at decision {self.decision}: {self.take}, not yet: {self.instead_of}"


class Schedule(msgspec.Struct, kw_only=True, frozen=True):
    """A schedule, as in a file that `mcp-trio replay --schedule` repeats.

    Attributes:
        recording: The name of the recording.
        digest: The digest of its records.
        deviations: The decisions where it takes another option than the recorded order.
        shows: The differences from the recording to which it led.
    """

    recording: str
    digest: str
    deviations: tuple[Deviation, ...]
    shows: tuple[str, ...] = ()

    def encoded(self) -> bytes:
        """Return the contents of the file."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"


def decode_schedule(data: bytes) -> Schedule:
    """Decode the contents of a file.

    Raises:
        RecordingError: They are no schedule.
    """
    try:
        return msgspec.json.decode(data, type=Schedule)
    except ValueError as error:
        raise RecordingError(f"this is no schedule of a sweep: {error}") from None


def deviations_of(decisions: Sequence[Decision]) -> tuple[Deviation, ...]:
    """Return the deviations among the decisions of a schedule."""
    return tuple(
        Deviation(decision=number, take=each.chosen, instead_of=each.default)
        for number, each in enumerate(decisions)
        if each.chosen != each.default
    )


# Orders -------------------------------------------------------------------------------------------


class Order(Protocol):
    """A way to decide; each object decides for one schedule."""

    def choose(self, number: int, options: Sequence[str], default: str) -> str:
        """Return one of the options of the decision with this number."""
        ...


class RecordedOrder(msgspec.Struct, frozen=True):
    """The recorded order, except where it deviates; a deviation that is no option is ignored."""

    deviations: Mapping[int, str] = {}

    def choose(self, number: int, options: Sequence[str], default: str) -> str:
        """Return the deviation of this decision, or the default."""
        chosen = self.deviations.get(number, default)
        return chosen if chosen in options else default


@attrs.define
class RandomOrder:
    """Any order, which follows from `seed`."""

    seed: int
    _random: Random = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._random = Random(self.seed)  # noqa: S311  not for secrets

    def choose(self, number: int, options: Sequence[str], default: str) -> str:  # noqa: ARG002
        """Return any option."""
        return self._random.choice(options)


@attrs.define
class PriorityOrder:
    """An order of `pct`: the option of the highest priority comes first.

    A lane has one priority for all its options; so have the client and the clock. At `bound - 1` of
    about `decisions` decisions the chosen one gets a priority below all others.
    """

    seed: int
    decisions: int
    bound: int = DEFAULT_PCT_BOUND
    _random: Random = attrs.field(init=False)
    _changes: dict[int, int] = attrs.field(init=False)
    _priorities: dict[str, float] = attrs.field(factory=dict[str, float], init=False)

    def __attrs_post_init__(self) -> None:
        self._random = Random(self.seed)  # noqa: S311  not for secrets
        count = min(self.bound - 1, self.decisions)
        numbers = self._random.sample(range(self.decisions), count)
        self._changes = {number: -each for each, number in enumerate(numbers, 1)}

    def choose(self, number: int, options: Sequence[str], default: str) -> str:  # noqa: ARG002
        """Return the option of the highest priority."""
        for option in options:
            if _actor(option) not in self._priorities:
                self._priorities[_actor(option)] = self._random.random()
        if number in self._changes:
            lowered = max(options, key=self._priority)
            self._priorities[_actor(lowered)] = self._changes[number]
        return max(options, key=self._priority)

    def _priority(self, option: str) -> float:
        return self._priorities[_actor(option)]


def _actor(option: str) -> str:
    """Return the lane, the client or the clock to which an option belongs: its first word."""
    return option.partition(" ")[0].rstrip(":")


# Strategies ---------------------------------------------------------------------------------------

RunAll: TypeAlias = Callable[[Sequence[Order]], Sequence[Sequence[Decision]]]
"""A function that runs a schedule in each order, and returns the decisions of each."""


class Coverage(msgspec.Struct, frozen=True):
    """The schedules that a depth-first search has run.

    Attributes:
        deviations: The number of deviations up to which all schedules were run; -1: not even the
            recorded order.
        is_complete: Whether there are no other schedules.
        rest: The number of schedules with one deviation more that were not run.
    """

    deviations: int
    is_complete: bool
    rest: int

    def __str__(self) -> str:
        if self.is_complete:
            return "these are all schedules"
        times = "deviation" if self.deviations == 1 else "deviations"
        return (
            f"all with at most {self.deviations} {times} from the recorded order;"
            f" {self.rest} with {self.deviations + 1} were not run, and those with more"
        )


def search_depth_first(run_all: RunAll, schedules: int) -> Coverage:
    """Run up to `schedules` schedules, those with few deviations first; return the coverage."""
    level: Sequence[Mapping[int, str]] = [{}]
    depth = 0
    while level and schedules >= len(level):
        schedules -= len(level)
        decided = run_all([RecordedOrder(deviations) for deviations in level])
        # In the next level, each schedule has another deviation after its last one.
        level = [
            {**deviations, number: option}
            for deviations, decisions in zip(level, decided, strict=True)
            for number, decision in enumerate(decisions)
            if number > max(deviations, default=-1)
            for option in decision.options
            if option != decision.default
        ]
        depth += 1
    if level and schedules:
        run_all([RecordedOrder(deviations) for deviations in level[:schedules]])
    return Coverage(depth - 1, is_complete=not level, rest=len(level) - (schedules if level else 0))


def shorten(
    deviations: Mapping[int, str],
    fails: Callable[[Sequence[Mapping[int, str]]], Sequence[bool]],
) -> Mapping[int, str]:
    """Return as few of the deviations as possible with which the schedule still goes wrong.

    This is delta debugging: parts are left out, in halves at first and one by one at last. `fails`
    runs several schedules, and returns for each whether it goes wrong.
    https://www.st.cs.uni-saarland.de/papers/tse2002/
    """
    numbers: list[int] = sorted(deviations)
    parts = 2
    runs_left = _SHORTENING_RUNS_MAX
    while len(numbers) > 0 and runs_left > 0:
        parts = min(parts, len(numbers))
        size = -(-len(numbers) // parts)
        # A late deviation is seldom needed, so the last part is left out first.
        begins = range(0, len(numbers), size)[::-1]
        smaller: list[list[int]] = [numbers[:begin] + numbers[begin + size :] for begin in begins]
        results = fails([{each: deviations[each] for each in kept} for kept in smaller])
        runs_left -= len(smaller)
        found = next((kept for kept, failed in zip(smaller, results, strict=True) if failed), None)
        if found is not None:
            numbers, parts = found, max(parts - 1, 2)
        elif size == 1:
            break
        else:
            parts *= 2
    return {each: deviations[each] for each in numbers}
