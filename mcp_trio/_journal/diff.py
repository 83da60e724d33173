"""The differences between two recordings, and between two JSON texts.

Two recordings of the same role are compared record by record. Records are paired by lane, ordinal,
kind and method, and those that agree in all of these by their order. Numbers, times and ids are
ignored: a response is identified by the request that it answers, and a lane, which is named after
its request's number, by that request. So an additional log message, or responses in another order,
do not make all later records differ. Values that a server chooses at random in each run are ignored
as well: request states and elicitation ids.

Recordings of the two sides of a session have only their messages in common, and one's `out` is the
other's `in`. Each direction is compared by itself; messages are paired by id and method, and those
that agree in both by their order.
"""

import re
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from itertools import filterfalse, zip_longest
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET

from mcp_trio._journal.records import (
    EXPIRED_LIMIT,
    SUSPENDED_MARK,
    OpenBody,
    Record,
    body_bytes,
    decode_body,
)

_PLAIN_NAME: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")

JsonDifference = tuple[str, Any, Any]
"""A path such as `$.result.content[0].text`, and the left and right values there, or UNSET."""


def _value(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return text


def member_step(name: str) -> str:
    """Return the step of a JSON path that leads to the member of this name."""
    is_plain = _PLAIN_NAME.fullmatch(name)
    return f".{name}" if is_plain else f"[{msgspec.json.encode(name).decode()}]"


JsonPath: TypeAlias = tuple["JsonPath | None", str]
"""The path of the object or array around a value, or None; and the step from there to the value.

The texts of the paths of all values could take far more memory than the values, because each of
them repeats the names of the members above.
"""

ROOT: Final[JsonPath] = (None, "$")


def path_text(path: JsonPath) -> str:
    """Return a JSON path as a text."""
    steps: list[str] = []
    rest: JsonPath | None = path
    while rest is not None:
        rest, step = rest
        steps.append(step)
    return "".join(reversed(steps))


def json_differences(left: bytes, right: bytes) -> list[JsonDifference]:
    """Return all differences between two JSON texts, in the order of the left one.

    Whitespace, escapes and the order of members are ignored; the type of a number is not. Bytes
    that are not JSON are compared as one value, at `$`.
    """
    differences: list[JsonDifference] = []
    # A stack, since JSON may be nested deeper than Python's recursion limit.
    pending: list[tuple[JsonPath, Any, Any]] = [(ROOT, _value(left), _value(right))]
    while pending:
        path, a, b = pending.pop()
        if a.__class__ is not b.__class__:
            differences.append((path_text(path), a, b))
        elif a.__class__ is dict:
            members = [
                ((path, member_step(name)), a.get(name, UNSET), b.get(name, UNSET))
                for name in a | b
            ]
            pending += reversed(members)
        elif a.__class__ is list:
            pairs = zip_longest(a, b, fillvalue=UNSET)
            items = [((path, f"[{index}]"), *pair) for index, pair in enumerate(pairs)]
            pending += reversed(items)
        elif a != b:
            differences.append((path_text(path), a, b))
    return differences


_LANE_NUMBER: Final = re.compile(r"(?<=^r)[0-9]+")

_OPPOSITE: Final[Mapping[str, str]] = {"in": "out", "out": "in"}

# The members of bodies and envelopes that differ between any two recordings.
_INCIDENTAL: Final = frozenset(
    {
        ("open", "$.started"),
        ("open", "$.clock_ns"),
        ("open", "$.seed"),
        ("open", "$.session"),
        ("open", "$.redaction.key"),
        ("open", "$.writer"),
        ("cxl", "$x"),
        ("cxl", f"$x.{EXPIRED_LIMIT}"),
    }
)

# The members of messages that a server chooses at random, and that its client returns.
_RANDOM_MEMBERS: Final = (".requestState", ".elicitationId")
# The effects that seal and open request states, whose results are random, too.
_RANDOM_EFFECTS: Final = "state."


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A difference between two recordings.

    Attributes:
        what: "changed": the records differ at `path`, in `left_value` and `right_value`; "missing":
            only the left recording has the record; "extra": only the right one has it; "order": the
            first two records that both recordings have in another order.
        kind: The kind of the records.
        lane: The lane of the left record, or of the only one.
        left: The number of the left record.
        right: The number of the right record.
    """

    what: Literal["changed", "missing", "extra", "order"]
    kind: str
    lane: str | None
    left: int | None
    right: int | None
    path: str = ""
    left_value: Any = UNSET
    right_value: Any = UNSET


_Key = tuple[Hashable, ...]
"""The properties by which records are paired, and the number of earlier records with the same."""

_Keyed = dict[_Key, Record]


class _Named(msgspec.Struct, frozen=True):
    name: str = ""


class _IdAndMethod(msgspec.Struct, frozen=True):
    id: msgspec.Raw = msgspec.Raw(b"")
    method: msgspec.Raw = msgspec.Raw(b"")


def diff(left: Iterable[Record], right: Iterable[Record]) -> list[Difference]:
    """Return all differences between two recordings, in the order of the left one.

    If their roles differ, only the messages are compared.
    """
    a, b = list(left), list(right)
    left_role, right_role = role_of(a), role_of(b)
    if left_role == right_role:
        random_records = _random_records(a)
        return [
            difference
            for difference in _differences(_by_lane(a), _by_lane(b))
            if difference.what != "changed"
            or not (difference.left in random_records or _is_in_random_member(difference))
        ]
    # A client has received what its peer has sent, so the directions are swapped.
    are_opposite = (left_role == "client") is not (right_role == "client")
    return [
        difference
        for kind in ("in", "out")
        for difference in _differences(
            _by_message(a, kind), _by_message(b, _OPPOSITE[kind] if are_opposite else kind)
        )
    ]


def role_of(records: Sequence[Record]) -> str | None:
    """Return the role of the recorded side; None if the first record is no `open` record.

    Raises:
        RecordingError: The `open` record is damaged.
    """
    if not records or records[0].kind != "open":
        return None
    return decode_body(records[0], OpenBody).role


def _random_records(records: Iterable[Record]) -> Collection[int]:
    """Return the numbers of the records that hold nothing but random values."""
    random_records: set[int] = set()
    effects: dict[tuple[int, str | None], str] = {}
    for record in records:
        lane = record.channel, record.lane
        if record.kind == "cmd":
            effects[lane] = _name(record)
        is_outcome = record.kind == "res" and effects.pop(lane, "").startswith(_RANDOM_EFFECTS)
        if is_outcome or (record.kind == "mark" and _name(record) == SUSPENDED_MARK):
            random_records.add(record.number)
    return random_records


def _is_in_random_member(difference: Difference) -> bool:
    """Return whether two texts differ that a server chose at random in a message."""
    is_in_member = difference.kind in _OPPOSITE and difference.path.endswith(_RANDOM_MEMBERS)
    values = difference.left_value, difference.right_value
    return is_in_member and all(isinstance(value, str) for value in values)


def _name(record: Record) -> str:
    """Return the name of an effect or a mark; empty for any other record."""
    try:
        return msgspec.json.decode(body_bytes(record) or b"", type=_Named).name
    except (ValueError, RecursionError):
        return ""


def _differences(a: _Keyed, b: _Keyed) -> list[Difference]:
    found: list[Difference] = []
    for key, record in a.items():
        if key in b:
            found += _changes(record, b[key])
        else:
            found.append(_difference("missing", record, None))
    found += [_difference("extra", None, b[key]) for key in filterfalse(a.__contains__, b)]
    # The common records may be in another order: the first two that are so are reported.
    in_order_of_b = filter(a.__contains__, b)
    for key, other in zip(filter(b.__contains__, a), in_order_of_b, strict=True):
        if key != other:
            found.append(_difference("order", a[key], b[other]))
            break
    return found


def _difference(
    what: Literal["changed", "missing", "extra", "order"],
    left: Record | None,
    right: Record | None,
    differing: JsonDifference = ("", UNSET, UNSET),
) -> Difference:
    record = left or right
    assert record is not None
    path, left_value, right_value = differing
    return Difference(
        what=what,
        kind=record.kind,
        lane=record.lane,
        left=None if left is None else left.number,
        right=None if right is None else right.number,
        path=path,
        left_value=left_value,
        right_value=right_value,
    )


def _by_message(records: Iterable[Record], kind: str) -> _Keyed:
    """Return the messages of one direction, without the envelopes, which differ by side."""
    occurrences: Counter[tuple[bytes, bytes]] = Counter()
    keyed: _Keyed = {}
    for record in records:
        if record.kind == kind:
            key = _id_and_method(record)
            keyed[None, *key, occurrences[key]] = msgspec.structs.replace(record, envelope=None)
            occurrences[key] += 1
    return keyed


def _id_and_method(record: Record) -> tuple[bytes, bytes]:
    """Return the id and the method of a message as they are written; empty if it has none."""
    if record.kind not in _OPPOSITE:
        return b"", b""
    try:
        message = msgspec.json.decode(body_bytes(record) or b"", type=_IdAndMethod)
    except (ValueError, RecursionError):
        return b"", b""
    return bytes(message.id), bytes(message.method)


def _by_lane(records: Iterable[Record]) -> _Keyed:
    """Return all records but steps, by keys that are independent of numbers and ids."""
    keyed: _Keyed = {}
    occurrences: Counter[_Key] = Counter()
    # A request is identified by how many with the same lane and method came before.
    requests: dict[tuple[int, str, bytes], str] = {}
    messages: dict[str, str] = {}
    for record in records:
        if record.kind == "step":
            continue  # Steps are the schedule, which is another one in each session.
        id_, method = _id_and_method(record)
        asked = requests.get((record.channel, _OPPOSITE.get(record.kind, ""), id_), "")
        method_or_request = method.decode(errors="replace") or asked
        lane = record.lane and _LANE_NUMBER.sub(
            lambda match: messages.get(match[0], match[0]), record.lane
        )
        if record.channel:
            lane = f"{record.channel} {lane}"
        key = (lane, record.ordinal, record.kind, method_or_request)
        occurrence = occurrences[key]
        occurrences[key] += 1
        if record.kind in _OPPOSITE:
            messages[str(record.number)] = f"{method_or_request} {occurrence}"
        if id_ and method:
            requests[record.channel, record.kind, id_] = f"{method_or_request} {occurrence}"
        keyed[*key, occurrence] = record
    return keyed


def _changes(a: Record, b: Record) -> list[Difference]:
    differences = _body_differences("$", body_bytes(a), body_bytes(b))
    differences += _body_differences("$x", _encoded(a.envelope), _encoded(b.envelope))
    return [
        _difference("changed", a, b, each)
        for each in differences
        if (a.kind, each[0]) not in _INCIDENTAL
    ]


def _body_differences(root: str, a: bytes | None, b: bytes | None) -> list[JsonDifference]:
    if a == b:
        return []
    if a is None or b is None:
        return [(root, UNSET if a is None else a, UNSET if b is None else b)]
    return [(path.replace("$", root, 1), *values) for path, *values in json_differences(a, b)]


def _encoded(envelope: Mapping[str, Any] | None) -> bytes | None:
    return None if envelope is None else msgspec.json.encode(envelope)
