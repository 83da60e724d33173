"""Bad recordings that have to be rejected: how each is made from a good one, and the reason."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import attrs
from golden_recordings import GOLDEN, REJECTED, load_server

from mcp_trio._journal.records import RunningDigest
from mcp_trio._recorder.files import SUFFIX
from mcp_trio.errors import RecordingError, ReplayDivergence
from mcp_trio.recording import check, open_recording, replay

Lines = Sequence[bytes]

WHOLE: Final = "whole"
DIGEST: Final = re.compile(rb'"h":"[0-9a-f]+"}\n')


@attrs.frozen(kw_only=True)
class Rejected:
    """A bad recording, which a change makes of a good one, and the reasons for its rejection.

    `check` and `replay` are the texts that both report; `check` is `WHOLE` if the file itself is
    right. Its digests are right, unless it `keeps_digests` of the good one.
    """

    name: str
    of: str
    change: Callable[[Lines], Lines]
    check: str
    replay: str
    keeps_digests: bool = False

    @property
    def path(self) -> Path:
        return REJECTED / f"{self.name}{SUFFIX}"

    def made(self) -> bytes:
        """Return its content, made from the good recording."""
        changed = self.change(list(open_recording(GOLDEN[self.of].path)))
        return b"".join(changed if self.keeps_digests else _resealed(changed))


# Changes.


def with_open(**members: object) -> Callable[[Lines], Lines]:
    """Return a change of the first record."""

    def change(lines: Lines) -> Lines:
        record = json.loads(lines[0])
        record["f"] |= members
        return [json.dumps(record, separators=(",", ":")).encode() + b"\n", *lines[1:]]

    return change


def with_line(change_line: Callable[[bytes], bytes], *, holding: bytes) -> Callable[[Lines], Lines]:
    """Return a change of the middle line among those that have a text."""

    def change(lines: Lines) -> Lines:
        indices = [index for index, line in enumerate(lines) if holding in line]
        middle = indices[len(indices) // 2]
        return [*lines[:middle], change_line(lines[middle]), *lines[middle + 1 :]]

    return change


def _unchanged(lines: Lines) -> Lines:
    return lines


def _second_segment(lines: Lines) -> Lines:
    begins = [index for index, line in enumerate(lines) if b'"k":"open"' in line]
    return lines[begins[1] : begins[2]]


def _of_later_writer(lines: Lines) -> Lines:
    """Add a record of an unknown kind, and an unknown key."""
    *before, keyed, end = lines
    trace = {"n": len(before) + 1, "k": "trace", "t": json.loads(keyed)["t"], "f": {"deep": [1]}}
    ending = json.loads(end) | {"n": len(before) + 2}
    more = [json.loads(keyed) | {"z": "later"}, trace, ending]
    return [*before, *(json.dumps(each, separators=(",", ":")).encode() + b"\n" for each in more)]


def _resealed(lines: Lines) -> Iterator[bytes]:
    digest = RunningDigest()
    for line in lines:
        if DIGEST.search(line):
            value = digest.value()
            line = DIGEST.sub(b'"h":"%s"}\n' % value.encode(), line)
            digest.restart(value)
        digest.add(line)
        yield line


def _torn(line: bytes) -> bytes:
    return line[: len(line) // 2] + b"\n"


def _later(line: bytes) -> bytes:
    record = json.loads(line)
    return line.replace(b'"t":%d' % record["t"], b'"t":%d' % (record["t"] + 1))


# The table.

NO_RECORDING: Final = "not a recording: its first line is not a complete `open` record"

TABLE: Final = (
    *(
        Rejected(
            name=f"version-{version}",
            of="weather-python-sdk",
            change=with_open(format_version=version),
            check=f"cannot read format version {version}",
            replay=f"cannot read format version {version}",
        )
        for version in (0, 3)
    ),
    Rejected(
        name="later-segment",
        of="rotated",
        change=_second_segment,
        check="is segment 2 of a recording: name its first file",
        replay="is segment 2 of a recording: name its first file",
        keeps_digests=True,
    ),
    Rejected(
        name="later-writer",
        of="effects",
        change=_of_later_writer,
        check="a record with unknown keys; line",
        replay="a record of kind 'trace'",
    ),
    Rejected(
        name="unknown-role",
        of="weather-python-sdk",
        change=with_open(role="listener"),
        check=WHOLE,
        replay="this recording is of role 'listener'",
    ),
    Rejected(
        name="client",
        of="asking-client",
        change=_unchanged,
        check=WHOLE,
        replay="this recording is of role 'client'",
    ),
    Rejected(
        name="not-a-recording",
        of="weather-python-sdk",
        change=lambda _: [b"Thu Jan  1 12:00:00 server started\n", b"all is well\n"],
        check=NO_RECORDING,
        replay=NO_RECORDING,
    ),
    Rejected(
        name="no-beginning",
        of="weather-python-sdk",
        change=lambda lines: lines[1:],
        check=NO_RECORDING,
        replay=NO_RECORDING,
    ),
    Rejected(
        name="empty",
        of="weather-python-sdk",
        change=lambda _: [],
        check="not a recording: it is empty",
        replay="not a recording: it is empty",
    ),
    Rejected(
        name="torn-in-the-middle",
        of="weather-python-sdk",
        change=with_line(_torn, holding=b'"k":"out"'),
        check="not a record",
        replay="the recording is damaged: line ",
    ),
    Rejected(
        name="hole-in-the-numbers",
        of="weather-python-sdk",
        change=with_line(lambda _: b"", holding=b'"k":"out"'),
        check="is expected",
        replay="the recording is damaged: line ",
    ),
    Rejected(
        name="wrong-digest",
        of="counter",
        change=with_line(_later, holding=b'"k":"out"'),
        keeps_digests=True,
        check="a line between the last digest and this record was changed",
        replay="a line between the last digest and this record was changed",
    ),
)


# Checking.


def problems_of(rejected: Rejected) -> list[str]:
    """Return a sentence for each of `check` and `replay` that does not reject it for its reason."""
    found: list[str] = []
    for name, run, reason in (
        ("check", _checked, rejected.check),
        ("replay", _replayed, rejected.replay),
    ):
        reported = run(rejected)
        if reason not in reported:
            found.append(f"{name} reports {reported!r}, not {reason!r}")
    return found


def _checked(rejected: Rejected) -> str:
    try:
        report = check(open_recording(rejected.path))
    except RecordingError as error:
        return str(error)
    return "; ".join(f"line {flaw.line}: {flaw.text}" for flaw in report.damage) or WHOLE


def _replayed(rejected: Rejected) -> str:
    try:
        report = replay(rejected.path, load_server(GOLDEN[rejected.of].server))
    except (RecordingError, ReplayDivergence) as error:
        return str(error)
    return "; ".join(["replays", *report.notes])
