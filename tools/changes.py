"""Every change of a recording that matters to a replay, and where the replay has to notice it."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

Line: TypeAlias = dict[str, Any]


class Change(NamedTuple):
    """A changed recording, and the numbers of the records at one of which it has to diverge."""

    kind: str
    what: str
    lines: list[bytes]
    expected: range


def changes(lines: list[bytes]) -> Iterator[Change]:
    """Every change of a recording that this script knows to make."""
    records: list[Line] = [json.loads(line) for line in lines]
    for place, record in enumerate(records):
        for change in CHANGES.get(record["k"], ()):
            yield from change(lines, records, place)


def change_out(lines: list[bytes], records: list[Line], place: int) -> Iterator[Change]:
    """One byte of an `out`."""
    number = records[place]["n"]
    line = lines[place].replace(b'"jsonrpc":"2.0"', b'"jsonrpc":"2.1"')
    yield Change("out", f"byte of out {number}", replaced(lines, place, line), only(number))


def change_id(lines: list[bytes], records: list[Line], place: int) -> Iterator[Change]:
    """The id of a request: its answer differs."""
    number, request = records[place]["n"], records[place]["f"]
    answers = [r["n"] for r in records if is_answer(r, request.get("id"))]
    if "method" not in request or not answers:
        return
    line = encoded({**records[place], "f": {**request, "id": 99_000 + number}})
    yield Change("in", f"id of in {number}", replaced(lines, place, line), only(answers[0]))


def change_arguments(lines: list[bytes], records: list[Line], place: int) -> Iterator[Change]:
    """An argument that no tool has: the handler does not run.

    What it did to shared state before its first record may be missed by another lane first.
    """
    number, request = records[place]["n"], records[place]["f"]
    acts = [r for r in records if r.get("l") == f"r{number}" and r["o"]]
    if request.get("method") != "tools/call" or acts[0]["k"] != "out" or "error" in acts[0]["f"]:
        return
    arguments = {**request["params"].get("arguments", {}), "surplus": True}
    params = {**request["params"], "arguments": arguments}
    line = encoded({**records[place], "f": {**request, "params": params}})
    first = min(r["n"] for r in records if belongs_to(r.get("l"), number) and r["o"])
    expected = range(number + 1, first + 1)
    yield Change("in", f"arguments of in {number}", replaced(lines, place, line), expected)


def remove(lines: list[bytes], records: list[Line], place: int) -> Iterator[Change]:
    """The whole record."""
    number, kind = records[place]["n"], records[place]["k"]
    yield Change(kind, f"removed {kind} {number}", lines[:place] + lines[place + 1 :], only(number))


def only(number: int) -> range:
    return range(number, number + 1)


def is_answer(record: Line, request_id: object) -> bool:
    return record["k"] == "out" and "method" not in record["f"] and record["f"]["id"] == request_id


def belongs_to(lane: str | None, number: int) -> bool:
    return lane is not None and (lane + ".").startswith(f"r{number}.")


def replaced(lines: list[bytes], place: int, line: bytes) -> list[bytes]:
    return [*lines[:place], line, *lines[place + 1 :]]


def encoded(record: Line) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


CHANGES: Final[Mapping[str, tuple[Callable[..., Iterator[Change]], ...]]] = {
    "in": (change_id, change_arguments),
    "out": (change_out,),
    "cxl": (remove,),
    "shut": (remove,),
}
