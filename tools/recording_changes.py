"""Every change of a recording that a replay has to notice, and the record where it does."""

import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from mcp_trio._journal.records import PATCHED_MARK
from mcp_trio._protocol.metadata import SUBSCRIPTION_ID
from mcp_trio._protocol.requests import SUSPENDED_PREFIX

Line: TypeAlias = dict[str, Any]


class Change(NamedTuple):
    """A changed recording, and the records and kinds of the expected divergence."""

    kind: str
    what: str
    lines: list[bytes]
    expected: range
    ways: frozenset[str]


def changes(lines: list[bytes], *, is_seeded: bool = False) -> Iterator[Change]:
    """Yield every change of a recording."""
    records: list[Line] = [json.loads(line) for line in lines]
    records = list(itertools.takewhile(lambda record: record["k"] != "gap", records))
    if is_seeded:
        yield from change_seed(lines, records)
    for index, record in enumerate(records):
        for change in CHANGES.get(record["k"], ()):
            yield from change(lines, records, index)


def change_seed(lines: list[bytes], records: list[Line]) -> Iterator[Change]:
    """Change the seed: the random numbers differ."""
    body = records[0]["f"] | {"seed": records[0]["f"]["seed"] ^ 1}
    line = encoded({**records[0], "f": body})
    yield Change("open", "seed", replaced(lines, 0, line), after_record(records, 0), IN_MESSAGES)


def change_out(lines: list[bytes], records: list[Line], index: int) -> Iterator[Change]:
    """Change a byte of a sent message."""
    number = records[index]["n"]
    line = lines[index].replace(b'"jsonrpc":"2.0"', b'"jsonrpc":"2.1"')
    what = f"byte of out {number}"
    yield Change("out", what, replaced(lines, index, line), only(number), IN_MESSAGES)


def change_command(lines: list[bytes], records: list[Line], index: int) -> Iterator[Change]:
    """Change an argument of an effect."""
    number = records[index]["n"]
    line = encoded({**records[index], "f": different(records[index]["f"], "arguments")})
    what = f"arguments of cmd {number}"
    yield Change("cmd", what, replaced(lines, index, line), only(number), IN_ARGUMENTS)


def change_outcome(lines: list[bytes], records: list[Line], index: int) -> Iterator[Change]:
    """Change the result or the error of an effect."""
    record = records[index]
    if kind_before(records, index) != "cmd" or record.get("f") is None:
        return
    # A class that is not rebuilt shows by its text only.
    shown = "text" if record["k"] == "err" and "lost" in record["f"] else "type"
    body = different(record["f"], shown) if record["k"] == "err" else other(record["f"])
    line = encoded({**record, "f": body})
    what, expected = f"body of {record['k']} {record['n']}", after_record(records, index)
    yield Change(record["k"], what, replaced(lines, index, line), expected, IN_EFFECTS)


def change_value(lines: list[bytes], records: list[Line], index: int) -> Iterator[Change]:
    """Change a value that was read without waiting."""
    record = records[index]
    if "value" not in record["f"]:
        return
    line = encoded({**record, "f": different(record["f"], "value")})
    what, expected = f"value of val {record['n']}", after_record(records, index)
    yield Change("val", what, replaced(lines, index, line), expected, IN_EFFECTS)


def change_patch(lines: list[bytes], records: list[Line], index: int) -> Iterator[Change]:
    """Change the branch that `patched` took."""
    record = records[index]
    if record["f"]["name"] != PATCHED_MARK:
        return
    line = encoded({**record, "f": different(record["f"], "value")})
    what, expected = f"value of mark {record['n']}", after_record(records, index - 1)
    yield Change("mark", what, replaced(lines, index, line), expected, IN_EFFECTS)


def change_id(lines: list[bytes], records: list[Line], index: int) -> Iterator[Change]:
    """Change the id of a request, so that its answer differs."""
    number = records[index]["n"]
    for request in messages_of(records[index]):
        answers = [
            r["n"] for r in records if is_answer_to(r, request.get("id"), records[index].get("c"))
        ]
        if "method" in request and answers:
            changed = {**request, "id": 99_000 + number}
            what, expected = f"id of in {number}", only(answers[0])
            line = with_message(lines[index], request, changed)
            yield Change("in", what, replaced(lines, index, line), expected, IN_MESSAGES)


def change_arguments(lines: list[bytes], records: list[Line], index: int) -> Iterator[Change]:
    """An argument that no tool has: the handler does not run.

    What it did to shared state before its first record may be missed by another lane first.
    """
    number, request = records[index]["n"], messages_of(records[index])[0]
    acts = [r for r in records if r.get("l") == f"r{number}" and r["o"]]
    is_call = request.get("method") == "tools/call" and acts
    if not is_call or acts[0]["k"] != "out" or "error" in acts[0]["f"]:
        return
    arguments = {**request["params"].get("arguments", {}), "surplus": True}
    changed = {**request, "params": {**request["params"], "arguments": arguments}}
    line = with_message(lines[index], request, changed)
    first = min(r["n"] for r in records if belongs_to(r.get("l"), number) and r["o"])
    expected = range(number + 1, first + 1)
    what = f"arguments of in {number}"
    yield Change("in", what, replaced(lines, index, line), expected, IN_ANY)


def change_state(lines: list[bytes], records: list[Line], index: int) -> Iterator[Change]:
    """Change the request state of a retry, so that its suspended handler does not resume."""
    number, request = records[index]["n"], messages_of(records[index])[0]
    state = request.get("params", {}).get("requestState")
    if state is None or not state.startswith(SUSPENDED_PREFIX):
        return
    changed = {**request, "params": {**request["params"], "requestState": f"{state}0"}}
    line = with_message(lines[index], request, changed)
    what, expected = f"state of in {number}", after_record(records, index)
    yield Change("in", what, replaced(lines, index, line), expected, IN_ANY)


def remove(lines: list[bytes], records: list[Line], index: int) -> Iterator[Change]:
    """The whole record; the lane waits with it until its next one.

    Without a next one, a task that had begun an effect may have waited for it to the end.
    """
    number, kind = records[index]["n"], records[index]["k"]
    without = lines[:index] + lines[index + 1 :]
    expected, ways = only(number), frozenset({"extra"})
    after = next_of_lane(records, index)
    if after is not None:
        expected = range(number, after + 1)
    elif kind_before(records, index) == "cmd":
        expected, ways = after_record(records, index - 1), IN_ANY
    yield Change(kind, f"removed {kind} {number}", without, expected, ways)


def only(number: int) -> range:
    return range(number, number + 1)


def after_record(records: list[Line], index: int) -> range:
    """Return the numbers of all later records."""
    return range(records[index]["n"] + 1, records[-1]["n"] + 1)


def kind_before(records: list[Line], index: int) -> str | None:
    """Return the kind of the lane's record before the one at `index`."""
    lane = records[index].get("l")
    return next((r["k"] for r in reversed(records[:index]) if r.get("l") == lane), None)


def next_of_lane(records: list[Line], index: int) -> int | None:
    """Return the number of the lane's next record after this position."""
    lane = records[index].get("l")
    later = (r["n"] for r in records[index + 1 :] if lane is not None and r.get("l") == lane)
    return next(later, None)


def different(body: Line, member: str) -> Line:
    """Return a body with another value in one member."""
    return {**body, member: other(body[member])}


def other(value: Any) -> Any:
    """Return another value of the same form."""
    changed = (change(value) for kind, change in OTHERS.items() if isinstance(value, kind))
    return next(changed, value)


def other_text(text: str) -> str:
    """Return another text of the same form, with another digit at its end if it has one."""
    if text == "<opaque>":
        return text
    return re.sub(r"[0-9]\Z|\Z", lambda digit: str((int(digit[0] or 0) + 1) % 10), text, count=1)


OTHERS: Final[Mapping[type, Callable[[Any], Any]]] = {
    bool: lambda value: not value,
    int: lambda value: value + 1,
    float: lambda value: value + 0.5,
    str: other_text,
    list: lambda items: [other(item) for item in items] or [1],
    dict: lambda members: {name: other(member) for name, member in members.items()} or {"": 1},
}

# The ways in which replays diverge: where something else is sent, where something else is done. If
# what is done instead is also recorded later, that is what it is taken for.
IN_MESSAGES: Final = frozenset({"message", "missing"})
IN_ARGUMENTS: Final = frozenset({"argument", "missing"})
IN_EFFECTS: Final = frozenset({"message", "argument", "missing", "extra", "order", "redacted"})
IN_ANY: Final = IN_EFFECTS | {"uncancelled"}


def is_answer_to(record: Line, request_id: object, channel: int | None) -> bool:
    """Return whether a record answers a request, or notifies on its subscription."""
    if record["k"] != "out" or record.get("c") != channel:
        return False
    if "method" not in record["f"]:
        return bool(record["f"]["id"] == request_id)
    meta = record["f"].get("params", {}).get("_meta", {})
    return request_id is not None and meta.get(SUBSCRIPTION_ID) == request_id


def messages_of(record: Line) -> list[Line]:
    """Return the messages of a body, one or those of a batch."""
    message: Line | list[Line] = record["f"]
    return message if isinstance(message, list) else [message]


def with_message(line: bytes, message: Line, changed: Line) -> bytes:
    """Return a line with one of its messages replaced."""
    return line.replace(text_of(message), text_of(changed), 1)


def belongs_to(lane: str | None, number: int) -> bool:
    return lane is not None and (lane + ".").startswith(f"r{number}.")


def replaced(lines: list[bytes], index: int, line: bytes) -> list[bytes]:
    return [*lines[:index], line, *lines[index + 1 :]]


def encoded(record: Line) -> bytes:
    return text_of(record) + b"\n"


def text_of(value: Line) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


CHANGES: Final[Mapping[str, tuple[Callable[..., Iterator[Change]], ...]]] = {
    "in": (change_id, change_arguments, change_state),
    "out": (change_out,),
    "cmd": (change_command,),
    "res": (change_outcome,),
    "err": (change_outcome,),
    "val": (change_value,),
    "mark": (change_patch,),
    "cxl": (remove,),
    "shut": (remove,),
}
