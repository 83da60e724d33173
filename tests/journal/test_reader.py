"""Reading recordings, complete or damaged."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_trio._journal.reader import first_loss
from mcp_trio._journal.records import EndBody, GapBody, OpenBody, RecordEncoder, encode_body
from mcp_trio.errors import RecordingError
from mcp_trio.recording import Damage, body_bytes, check, read_recording

OPEN = OpenBody(transport="stdio", role="server", name="n", version="1", started="2026-11-21")
FRAME = '{"jsonrpc":"2.0","method":"m","params":{"text":"né"}}'.encode()


def written(*kinds, encoder=None):
    """The lines of a recording with records of these kinds, after `open`."""
    encoder = encoder or RecordEncoder()
    records = [encoder.record("open", encode_body(OPEN), 0)]
    records += [encoder.record(kind, FRAME, 7, "r1", 0) for kind in kinds]
    return encoder.lines(records).splitlines(keepends=True)


def whole(count=200):
    return written(*["in", "out"] * (count // 2), "end")


def damage(lines):
    return [(flaw.line, flaw.kind) for flaw in check(lines).damage]


def test_a_complete_recording_is_read_without_damage():
    report = check(whole())
    assert report.damage == []
    assert report.complete
    assert (report.records, report.kinds) == (202, {"open": 1, "in": 100, "out": 100, "end": 1})


def test_bodies_are_verbatim():
    records = list(read_recording(written("in", "out")))
    assert [body_bytes(record) for record in records[1:]] == [FRAME, FRAME]


def test_the_reader_streams():
    lines = whole()
    taken = []

    def watched():
        for line in lines:
            taken.append(line)
            yield line

    next(read_recording(watched()))
    assert len(taken) == 2


def test_a_recording_cut_at_any_byte_is_read_up_to_there():
    lines = written(*["in", "out"] * 3, "end")
    data = b"".join(lines)
    for cut in range(len(lines[0]), len(data)):
        kept = data[:cut].splitlines(keepends=True)
        is_torn = not kept[-1].endswith(b"\n")
        report = check(kept)
        assert not report.complete
        assert report.records == len(kept) - is_torn
        assert [(flaw.line, flaw.kind) for flaw in report.damage] == (
            [(len(kept), "torn")] if is_torn else []
        )


@pytest.mark.parametrize("cut", range(0, 150, 7))
def test_a_recording_cut_in_its_first_line_is_rejected(cut):
    data = whole()[0][:cut]
    with pytest.raises(RecordingError, match="not a recording"):
        check(data.splitlines(keepends=True))


def test_an_unreadable_last_line_is_torn_and_any_other_is_damaged():
    lines = whole()
    assert damage([*lines[:100], b"\0\0\0\n"]) == [(101, "torn")]
    damaged = [*lines[:50], b'{"n":50,"k":\n', *lines[51:]]
    assert damage(damaged) == [(51, "damaged"), (65, "digest")]
    assert check(damaged).complete


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"{}\n",
        b"[1]\n",
        b'{"n":"x","k":"in","t":0}\n',
        FRAME.join([b'{"n":5,"k":"in","t":0,"f":', b"}\n"]).replace("é".encode(), b"\xff"),
        b'{"n":5,"k":"in","t":0,"f":' + b"[" * 2_000_000 + b"]" * 2_000_000 + b"}\n",
        b'{"n":5,"k":"in","t":0,"b":"?"}\n',
        b'{"n":5,"k":"gap","t":0,"f":[]}\n',
        b'{"n":5,"k":"gap","t":0}\n',
        b'{"n":5,"k":"in","t":9223372036854775808}\n',
    ],
    ids=[
        "blank",
        "empty",
        "array",
        "text",
        "not UTF-8",
        "deep",
        "base64",
        "gap of a list",
        "gap",
        "time",
    ],
)
def test_a_line_that_is_no_record_is_damage(line):
    lines = written("in", "in", "in", "in", "in", "in")
    assert damage([*lines[:5], line, *lines[6:]]) == [(6, "damaged")]


@given(st.data())
def test_any_changed_byte_is_found(data):
    """The next digest covers each line; that of `end` covers the last ones."""
    lines = whole()
    at = data.draw(st.integers(1, len(lines) - 2))
    line = bytearray(lines[at])
    column = data.draw(st.integers(0, len(line) - 2))
    line[column] ^= data.draw(st.integers(1, 255))
    changed = b"".join([*lines[:at], bytes(line), *lines[at + 1 :]])
    report = check(changed.splitlines(keepends=True))
    assert report.damage
    # No damage is reported after the next digest.
    assert all(flaw.line <= (at // 64 + 1) * 64 + 2 for flaw in report.damage)


def test_a_lost_line_is_a_hole_in_the_numbers():
    lines = whole()
    assert damage([*lines[:10], *lines[11:]]) == [(11, "numbering"), (64, "digest")]


def test_a_line_that_occurs_twice_is_out_of_number():
    lines = written("in", "in", "in")
    assert damage([*lines[:2], lines[1], *lines[2:]]) == [(3, "numbering")]


def test_crlf_line_ends_are_detected_by_the_digest():
    assert {kind for _, kind in damage([line[:-1] + b"\r\n" for line in whole()])} == {"digest"}


def gapped(reason, lost, count):
    encoder = RecordEncoder()
    lines = written("in", "in", encoder=encoder)
    records = [encoder.record("gap", encode_body(GapBody(reason=reason)), 0)]
    records += [encoder.record("in", FRAME, 0)]
    for _ in range(lost):
        encoder.skip()
    records += [encoder.record("in", FRAME, 0)]
    records += [encoder.record("gap", encode_body(GapBody(count=count)), 0)]
    records += [encoder.record("in", FRAME, 0) for _ in range(100)]
    records += [encoder.record("end", encode_body(EndBody(counts={})), 0)]
    return lines + encoder.lines(records).splitlines(keepends=True)


def test_a_gap_explains_a_hole_in_the_numbers_until_it_closes():
    lines = gapped("slow disk", 30, 30)
    assert damage(lines) == []
    assert damage([*lines[:7], *lines[8:]])[0] == (8, "numbering")


@pytest.mark.parametrize(
    ("counts", "place"),
    [
        ([], None),
        ([None], 1),
        ([None, 0], None),
        ([None, 2], 1),
        ([None, None, 0], None),
        ([None, None, 1], 1),
        ([None, 0, None, 3], 3),
        ([3], 1),
    ],
    ids=str,
)
def test_the_first_loss_is_the_first_gap_that_does_not_close_with_nothing(counts, place):
    encoder = RecordEncoder()
    records = [encoder.record("in", FRAME, 0)]
    records += [encoder.record("gap", encode_body(GapBody(count=each)), 0) for each in counts]
    assert first_loss(records) == place


def test_records_lost_before_a_gap_are_explained_by_it():
    encoder = RecordEncoder()
    lines = written("in", encoder=encoder)
    encoder.lines([encoder.record("in", FRAME, 0) for _ in range(5)])
    records = [encoder.record("gap", encode_body(GapBody(reason="full")), 0)]
    records += [encoder.record("gap", encode_body(GapBody(count=5)), 0)]
    records += [encoder.record("in", FRAME, 0), encoder.record("end", b"{}", 0)]
    assert damage(lines + encoder.lines(records).splitlines(keepends=True)) == []


def test_numbers_that_go_back_are_never_explained():
    encoder = RecordEncoder()
    lines = written("in", "in", encoder=encoder)
    encoder.next_number = 1
    gap = encoder.lines([encoder.record("gap", encode_body(GapBody(reason="x")), 0)])
    assert damage([*lines, gap]) == [(4, "numbering")]


def test_records_of_unknown_kind_or_with_unknown_keys_are_read_and_reported():
    lines = [
        *written("in", "later"),
        b'{"n":3,"k":"in","t":0,"z":1}\n',
        b'{"n":4,"k":"in","t":0}\n',
    ]
    items = list(read_recording(lines))
    assert [item.kind for item in items] == [
        "open",
        "in",
        "unknown-kind",
        "later",
        "unknown-key",
        "in",
        "in",
    ]
    assert items[2] == Damage(3, "unknown-kind", "a record of kind 'later'")


def opened(body):
    return b'{"n":0,"k":"open","t":0,"f":%b}\n' % body


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ([], "it is empty"),
        ([b"hello\n"], "first line"),
        ([b'{"n":0,"k":"in","t":0}\n'], "first line"),
        ([opened(b'{"format_version":0}')], "cannot read format version 0"),
        ([opened(b'{"format_version":1}')], "cannot read format version 1"),
        ([opened(b'{"format_version":3}')], "cannot read format version 3"),
        ([opened(b"{}")], "format_version"),
        ([opened(b'{"format_version":2}')], "transport"),
        ([opened(b"3")], "Expected `object`"),
        ([b'{"n":0,"k":"open","t":0}\n'], "open"),
    ],
)
def test_other_files_are_rejected(lines, text):
    with pytest.raises(RecordingError, match=text):
        list(read_recording(lines))


def test_the_first_record_may_be_in_base64():
    body = base64.b64encode(encode_body(OPEN))
    assert check([b'{"n":0,"k":"open","t":0,"b":"%b"}\n' % body]).damage == []
