"""Queries for recordings: `tool:book error:timeout user:ada after:2026-11-01 text:"seat taken"`.

A query is a list of terms, all of which have to match; several terms with one key are alternatives.
The terms about calls (`tool`, `method`, `error`, `user`, `trace`, `slower`, `faster`) have to match
the same call. A minus before a term excludes what it matches; a term without a key is a text.
"""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import msgspec

from mcp_trio._journal.calls import ERROR_KINDS, NO_ERROR_KINDS
from mcp_trio._protocol.suggestions import did_you_mean

_TERM: Final = re.compile(r'\s*(-?)(?:([a-z]+):)?("(?:[^"\\]|\\.)*"|[^\s"]+)(?=\s|$)')
_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(|k|m|g)(?:i?b)?", re.IGNORECASE)
_BYTES: Final = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}
# The condition in SQL for each value of `is:`.
_STATES: Final = {"complete": "complete", "cut": "NOT complete", "lossy": "loss"}

IS_ERROR: Final = f"calls.error NOT IN {tuple(sorted(NO_ERROR_KINDS))}"
"""The condition in SQL that a call counts as an error."""


class Condition(msgspec.Struct, frozen=True):
    """A condition in SQL with its parameters."""

    sql: str
    parameters: tuple[Any, ...]


# The functions below return the condition of a term. The value that a user writes is their last
# argument; the one before it is a column or an operator in SQL.


def _equal(column: str, value: str) -> Condition:
    return Condition(f"{column} = ?", (value,))


def _like(column: str, value: str) -> Condition:
    """Compare a column with a value in which `*` stands for any text."""
    if "*" not in value:
        return _equal(column, value)
    # For GLOB, `?` and `[` are wildcards as well.
    return Condition(f"{column} GLOB ?", (re.sub(r"[?[]", r"[\g<0>]", value),))


def _tool(value: str) -> Condition:
    return _joined(" AND ", [_equal("calls.method", "tools/call"), _like("calls.name", value)])


def _error(value: str) -> Condition:
    if value == "any":
        return Condition(IS_ERROR, ())
    if value not in ERROR_KINDS:
        known = ("any", *ERROR_KINDS)
        raise ValueError(
            f"unknown error {value!r}{did_you_mean(value, known)}: it is one of {', '.join(known)}"
        )
    return _equal("calls.error", value)


def _seconds(value: str) -> float | None:
    """Return the seconds of a duration such as `500ms`; None if the text is no duration."""
    match = _DURATION.fullmatch(value)
    return None if match is None else float(match[1]) * _SECONDS[match[2]]


def _duration(operator: str, value: str) -> Condition:
    seconds = _seconds(value)
    if seconds is None:
        raise ValueError(f"not a duration: {value!r}; write 500ms, 2s, 3m or 1h")
    return Condition(f"calls.seconds {operator} ?", (seconds,))


def _time(operator: str, value: str) -> Condition:
    ago = _seconds(value)
    if ago is not None:
        return Condition(f"recordings.started {operator} ?", (time.time() - ago,))
    try:
        moment = datetime.fromisoformat(value)
    except ValueError as error:
        raise ValueError(
            f"not a time: {value!r}; write 2026-11-01 or 2026-11-01T13:30, in UTC, or 2h or 7d"
            " for so long ago"
        ) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return Condition(f"recordings.started {operator} ?", (moment.timestamp(),))


def _size(value: str) -> Condition:
    match = _SIZE.fullmatch(value)
    if match is None:
        raise ValueError(f"not a size: {value!r}; write 5000, 20k or 1.5m")
    return Condition("recordings.size >= ?", (float(match[1]) * _BYTES[match[2].lower()],))


def _state(value: str) -> Condition:
    if value not in _STATES:
        raise ValueError(f"unknown state {value!r}: it is one of {', '.join(_STATES)}")
    return Condition(_STATES[value], ())


def _in_table(column: str, value: str) -> Condition:
    """Compare a column of another table than `recordings` and `calls`."""
    like = _like(column, value)
    return _recorded_in(column.partition(".")[0], like)


def _text(value: str) -> Condition:
    phrase = '"' + value.replace('"', '""') + '"'
    return _recorded_in("texts", Condition("texts MATCH ?", (phrase,)))


# The keys of terms about a call, and of terms about the recording.
_CALL_KEYS: Final[Mapping[str, Callable[[str], Condition]]] = {
    "tool": _tool,
    "method": partial(_like, "calls.method"),
    "name": partial(_like, "calls.name"),
    "error": _error,
    "user": partial(_like, "calls.principal"),
    "trace": partial(_equal, "calls.trace"),
    "slower": partial(_duration, ">="),
    "faster": partial(_duration, "<"),
}
_RECORDING_KEYS: Final[Mapping[str, Callable[[str], Condition]]] = {
    "file": partial(_like, "recordings.file"),
    "session": partial(_equal, "recordings.session"),
    "server": partial(_like, "recordings.name"),
    "version": partial(_like, "recordings.version"),
    "client": partial(_like, "recordings.client"),
    "protocol": partial(_like, "recordings.protocol_version"),
    "transport": partial(_like, "recordings.transport"),
    "role": partial(_equal, "recordings.role"),
    "after": partial(_time, ">="),
    "before": partial(_time, "<"),
    "larger": _size,
    "is": _state,
    "kept": partial(_in_table, "tags.tag"),
    "effect": partial(_in_table, "effects.name"),
    "text": _text,
}
KEYS: Final = (*_CALL_KEYS, *_RECORDING_KEYS)
"""The keys of terms."""


def parse_query(query: str) -> Condition:
    """Return the condition of a query on the table `recordings`.

    Raises:
        ValueError: A term cannot be read, or its key or value is unknown.
    """
    wanted: dict[str, list[Condition]] = {}
    excluded: list[Condition] = []
    position = 0
    while position < len(query.rstrip()):
        match = _TERM.match(query, position)
        if match is None:
            raise ValueError(
                f"cannot read the query at {query[position:].strip()!r}: write key:value, with"
                " quotes around a value that has spaces"
            )
        position = match.end()
        key, value = match[2] or "text", match[3]
        if value.startswith('"'):
            value = re.sub(r"\\(.)", r"\1", value[1:-1])
        condition_of = _CALL_KEYS.get(key) or _RECORDING_KEYS.get(key)
        if condition_of is None:
            raise ValueError(
                f"unknown key {key!r}{did_you_mean(key, KEYS)}: choose from {', '.join(KEYS)}"
            )
        condition = condition_of(value)
        if match[1]:
            excluded.append(_has_call([condition]) if key in _CALL_KEYS else condition)
        else:
            wanted.setdefault(key, []).append(condition)
    alternatives = {key: _joined(" OR ", each) for key, each in wanted.items()}
    call_conditions = [each for key, each in alternatives.items() if key in _CALL_KEYS]
    conditions = [each for key, each in alternatives.items() if key in _RECORDING_KEYS]
    if call_conditions:
        conditions.append(_has_call(call_conditions))
    conditions += [Condition(f"NOT ({each.sql})", each.parameters) for each in excluded]
    # The condition of an empty query is true for every recording.
    return _joined(" AND ", conditions) if conditions else Condition("1", ())


def _joined(operator: str, conditions: Sequence[Condition]) -> Condition:
    parameters = tuple(value for each in conditions for value in each.parameters)
    return Condition(operator.join(f"({each.sql})" for each in conditions), parameters)


def _has_call(conditions: Sequence[Condition]) -> Condition:
    """Return the condition that a recording has a call that meets all of `conditions`."""
    return _recorded_in("calls", _joined(" AND ", conditions))


def _recorded_in(table: str, condition: Condition) -> Condition:
    """Return the condition that a recording has a row in another table that meets `condition`."""
    sql = f"recordings.id IN (SELECT {table}.recording FROM {table} WHERE {condition.sql})"
    return Condition(sql, condition.parameters)
