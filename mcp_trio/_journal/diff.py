"""Where two recordings differ.

Records are paired by who did what: lane, ordinal and kind, and their occurrence where these are the
same. Numbers and times are left out of account, so a lane, which is named by its request's number,
counts by which inbound frame that was.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import filterfalse
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET

from mcp_trio._journal.frames import Place, json_difference
from mcp_trio._journal.records import Record, frame_of

_LANE_NUMBER: Final = re.compile(r"(?<=^r)[0-9]+")

# What differs between any two recordings.
_INCIDENTAL: Final = frozenset({("open", "$.started")})


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One difference between two recordings.

    `what` is "changed" (at `path`, from `left_value` to `right_value`), "missing" (on the right),
    "extra" (on the right), or "order" (what comes first where the orders part). `left` and `right`
    are the records' numbers, `lane` the left one's lane where there is one.
    """

    what: Literal["changed", "missing", "extra", "order"]
    kind: str
    lane: str | None
    left: int | None
    right: int | None
    path: str = ""
    left_value: Any = UNSET
    right_value: Any = UNSET


_Key = tuple[str | None, int | None, str, int]
_Keyed = dict[_Key, Record]


def diff(left: Iterable[Record], right: Iterable[Record]) -> list[Difference]:
    """All differences between two recordings, in the order of the left one as far as it goes."""
    a, b = _keyed(left), _keyed(right)
    found: list[Difference] = []
    for key, record in a.items():
        if key in b:
            found += _changes(record, b[key])
        else:
            found.append(_one_sided("missing", record, None))
    found += [_one_sided("extra", None, b[key]) for key in filterfalse(a.__contains__, b)]
    return found + _order(a, b)


def _keyed(records: Iterable[Record]) -> _Keyed:
    lane_of_number: dict[str, str] = {}
    occurrences: Counter[tuple[str | None, int | None, str]] = Counter()
    keyed: _Keyed = {}
    for record in records:
        if record.kind == "in":
            lane_of_number[str(record.number)] = str(len(lane_of_number))
        lane = record.lane and _LANE_NUMBER.sub(
            lambda match: lane_of_number.get(match[0], match[0]), record.lane
        )
        key = (lane, record.ordinal, record.kind)
        keyed[*key, occurrences[key]] = record
        occurrences[key] += 1
    return keyed


def _changes(a: Record, b: Record) -> list[Difference]:
    places = _places("$", frame_of(a), frame_of(b))
    places += _places("$x", _encoded(a.envelope), _encoded(b.envelope))
    return [
        Difference(
            what="changed",
            kind=a.kind,
            lane=a.lane,
            left=a.number,
            right=b.number,
            path=path,
            left_value=left_value,
            right_value=right_value,
        )
        for path, left_value, right_value in places
        if (a.kind, path) not in _INCIDENTAL
    ]


def _places(root: str, a: bytes | None, b: bytes | None) -> list[Place]:
    if a == b:
        return []
    if a is None or b is None:
        return [(root, UNSET if a is None else a, UNSET if b is None else b)]
    return [(path.replace("$", root, 1), *values) for path, *values in json_difference(a, b)]


def _encoded(envelope: Mapping[str, Any] | None) -> bytes | None:
    return None if envelope is None else msgspec.json.encode(envelope)


def _one_sided(what: Literal["missing", "extra"], a: Record | None, b: Record | None) -> Difference:
    record = a or b
    assert record is not None
    return Difference(
        what=what,
        kind=record.kind,
        lane=record.lane,
        left=a.number if a else None,
        right=b.number if b else None,
    )


def _order(a: _Keyed, b: _Keyed) -> list[Difference]:
    """The first place where the records that both have come in another order."""
    in_order_of_b = filter(a.__contains__, b)
    for key, other in zip(filter(b.__contains__, a), in_order_of_b, strict=True):
        if key != other:
            return [
                Difference(
                    what="order",
                    kind=a[key].kind,
                    lane=a[key].lane,
                    left=a[key].number,
                    right=b[other].number,
                )
            ]
    return []
