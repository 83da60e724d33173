"""Programs generated from a seed: the steps of handlers, and the messages of a client.

Equal seeds make equal programs in every process, so that another process can replay a recording.
"""

import random
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

import attrs

Script: TypeAlias = "tuple[Step, ...]"
Ending: TypeAlias = Literal["eof", "closed"]
Way: TypeAlias = Literal["whole", "in part", "malformed", "twice", "again", "forged", "not at all"]

STEPS_MAX: Final = 5
NESTED_STEPS_MAX: Final = 3
DEPTH_MAX: Final = 2
AMOUNT_MAX: Final = 12
RETRIES_MAX: Final = 6


@attrs.frozen
class Step:
    """A step of a handler; `parts` are the steps inside it."""

    name: str
    amount: int
    parts: tuple[Script, ...] = ()


@attrs.frozen
class Retry:
    """The retries of a call that requires input, by a stateless client."""

    way: Way
    delay_ms: int


@attrs.frozen(kw_only=True)
class Call:
    """A call of the client.

    Without a delay it is sent together with the call before. It is cancelled unless
    `cancels_after_ms` is None. `retries` are for stateless servers; no further ones follow.
    """

    delay_ms: int
    tool: str
    script: int
    cancels_after_ms: int | None
    wants_progress: bool
    retries: tuple[Retry, ...]


@attrs.frozen(kw_only=True)
class Program:
    """A server and its client, which disconnects some time after its last call."""

    seed: int
    scripts: Mapping[str, tuple[Script, ...]]
    calls: tuple[Call, ...]
    answer_delays_ms: tuple[int, ...]
    ends_after_ms: int
    ending: Ending


@attrs.frozen(kw_only=True)
class Shape:
    """The number of parts of a step, and the steps that are not allowed inside."""

    parts: int
    bars: frozenset[str]


# No child of a nursery ends its handler: the exception group would be the response.
_ENDS: Final = frozenset({"fail_out", "reject"})
# A lock in a lock may wait for ever, and so may an event under a shield or a lock.
_WAITS: Final = frozenset({"wait", "locked"})

LEAVES: Final = (
    "say", "race", "report", "ask", "sample", "elicit", "visit", "ask_all", "sleep", "sleep_raw",
    "wait", "look", "guess", "measure", "weigh", "crunch", "roll", "tag", "fail", "fail_out",
    "reject", "fetch", "fetch_own", "post", "query", "signal", "choose", "change",
)  # fmt: skip
COMPOSED: Final[Mapping[str, Shape]] = {
    "timeout": Shape(parts=1, bars=_ENDS),
    "move_on": Shape(parts=1, bars=_ENDS),
    "nest": Shape(parts=3, bars=_ENDS),
    "nest_and_stop": Shape(parts=3, bars=_ENDS),
    "locked": Shape(parts=1, bars=_WAITS),
    "shield": Shape(parts=1, bars=_ENDS | _WAITS),
    "clean_up": Shape(parts=2, bars=_ENDS | _WAITS),
}
THREAD_LEAVES: Final = (
    "say", "report", "ask", "sample", "elicit", "ask_all", "sleep", "look", "guess", "weigh",
    "roll", "fail", "fail_out", "reject", "choose",
)  # fmt: skip
THREAD_COMPOSED: Final = {"locked": Shape(parts=1, bars=_WAITS)}


@attrs.frozen(kw_only=True)
class _Grammar:
    leaves: tuple[str, ...]
    composed: Mapping[str, Shape]


TOOLS: Final = {
    "run": _Grammar(leaves=LEAVES, composed=COMPOSED),
    "run_resumably": _Grammar(leaves=LEAVES, composed=COMPOSED),
    "run_in_thread": _Grammar(leaves=THREAD_LEAVES, composed=THREAD_COMPOSED),
}
SCRIPTS_PER_TOOL: Final = 3
_CALLED: Final = ("run", "run", "run", "run_resumably", "run_in_thread")
_WAYS: Final[tuple[Way, ...]] = (
    *("whole", "whole", "whole", "whole", "whole", "whole", "whole", "in part"),
    *("malformed", "twice", "again", "forged", "not at all"),
)


def program_of(seed: int) -> Program:
    """Return the program of a seed."""
    random_source = random.Random(seed)
    return Program(
        seed=seed,
        scripts={
            tool: tuple(_script(random_source, grammar) for _ in range(SCRIPTS_PER_TOOL))
            for tool, grammar in TOOLS.items()
        },
        calls=tuple(_call(random_source) for _ in range(random_source.randint(5, 12))),
        answer_delays_ms=tuple(random_source.randint(0, 6) for _ in range(3)),
        ends_after_ms=random_source.randint(10, 90),
        ending=random_source.choice(("eof", "closed")),
    )


def _call(random_source: random.Random) -> Call:
    return Call(
        delay_ms=random_source.randint(0, 4),
        tool=random_source.choice(_CALLED),
        script=random_source.randrange(SCRIPTS_PER_TOOL),
        cancels_after_ms=random_source.choice(
            (None,) * 7 + (0, random_source.randint(1, 20), random_source.randint(1, 40))
        ),
        wants_progress=random_source.random() < 0.7,
        retries=tuple(
            Retry(
                random_source.choice(_WAYS), random_source.choice((0, random_source.randint(0, 6)))
            )
            for _ in range(random_source.randint(RETRIES_MAX // 2, RETRIES_MAX))
        ),
    )


def _script(
    random_source: random.Random,
    grammar: _Grammar,
    *,
    depth: int = 0,
    barred: frozenset[str] = frozenset(),
) -> Script:
    most = NESTED_STEPS_MAX if depth else STEPS_MAX
    return tuple(
        _step(random_source, grammar, depth, barred) for _ in range(random_source.randint(1, most))
    )


def _step(
    random_source: random.Random, grammar: _Grammar, depth: int, barred: frozenset[str]
) -> Step:
    amount = random_source.randint(1, AMOUNT_MAX)
    composed = [name for name in grammar.composed if name not in barred]
    if depth < DEPTH_MAX and composed and random_source.random() < 0.35:
        name = random_source.choice(composed)
        shape = grammar.composed[name]
        inside = barred | shape.bars
        parts = (
            _script(random_source, grammar, depth=depth + 1, barred=inside)
            for _ in range(shape.parts)
        )
        return Step(name, amount, tuple(parts))
    return Step(
        random_source.choice([name for name in grammar.leaves if name not in barred]), amount
    )
