"""Records: encoding, the messages in them, and reading them, complete or damaged."""

import base64
import hashlib
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_trio._journal.conversation import conversation
from mcp_trio._journal.records import (
    KINDS,
    CommandBody,
    EndBody,
    ErrorBody,
    GapBody,
    MarkBody,
    OpenBody,
    RecordEncoder,
    ShutBody,
    decode_body,
    encode_body,
    first_loss,
    message_at,
    message_name,
    message_position,
    messages_in,
)
from mcp_trio.errors import RecordingError
from mcp_trio.recording import Damage, Record, body_bytes, check, read_recording
from tests.journal.conftest import SECRET, redactor

# Encoding and decoding records.

text = st.text(st.characters(exclude_categories=["Cs"]))
frames = st.dictionaries(text, text, max_size=3).map(lambda value: json.dumps(value).encode())
decode = msgspec.json.Decoder(Record).decode


def one_line(**fields):
    encoder = RecordEncoder()
    fields = {"kind": "in", "body": None, "time_ns": 5} | fields
    return encoder.lines([encoder.record(**fields)])


def test_a_line_has_its_keys_in_the_order_of_the_format():
    encoder = RecordEncoder()
    encoder.next_number = 64
    record = encoder.record("in", b"{}", 9, "r0", 1, 2, {"method": "POST"})
    (line,) = encoder.lines([record]).splitlines()
    assert line.startswith(
        b'{"n":64,"k":"in","c":2,"l":"r0","o":1,"t":9,"x":{"method":"POST"},"f":{},"h":"'
    )
    assert list(json.loads(line)) == list("nkclotxfh")
    assert one_line(body=b"\xff", embed=False) == b'{"n":0,"k":"in","t":5,"b":"/w=="}\n'


def test_absent_members_of_a_record_are_left_out():
    assert one_line(kind="cxl", time_ns=0) == b'{"n":0,"k":"cxl","t":0}\n'


records = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(sorted(KINDS)),
        "body": st.none() | frames,
        "time_ns": st.integers(0, 2**62),
        "lane": st.none() | text,
        "ordinal": st.none() | st.integers(-1, 2**31),
        "channel": st.integers(0, 9),
        "envelope": st.none() | st.dictionaries(text, text, min_size=1, max_size=2),
    }
)


@given(records)
def test_an_encoded_record_decodes_to_the_same_record(fields):
    line = one_line(**fields)
    assert line.count(b"\n") == 1
    back = decode(line)
    body = fields.pop("body")
    assert {name: getattr(back, name) for name in fields} == fields
    assert body_bytes(back) == body
    assert body is None or b'"f":' + body in line


@given(st.binary(max_size=40))
def test_bytes_that_are_not_json_are_kept_exactly(body):
    assert body_bytes(decode(one_line(body=body, embed=False))) == body


@pytest.mark.parametrize(
    "body", [b"", b' {"a":1}', b'{"a":1} ', b'{"a":\n1}', b'{"a":\r1}', b"\t{}", b"{}\r"]
)
def test_a_message_that_a_line_would_change_is_in_base64(body):
    line = one_line(body=body)
    assert b'"b":' in line
    assert line.count(b"\n") == 1
    assert body_bytes(decode(line)) == body


def test_numbers_run_from_zero_whether_kept_or_not():
    encoder = RecordEncoder()
    numbers = [encoder.record("in", None, 0).number, encoder.skip(), encoder.record("in", None, 0)]
    assert (numbers[0], numbers[1], numbers[2].number, encoder.next_number) == (0, 1, 2, 3)


@given(st.lists(st.integers(1, 70), min_size=1, max_size=8))
def test_lines_do_not_depend_on_how_records_are_batched(batches):
    def lines_of(batches):
        encoder = RecordEncoder()
        return b"".join(
            encoder.lines([encoder.record("in", b"{}", 0) for _ in range(batch)])
            for batch in batches
        )

    assert lines_of(batches) == lines_of([sum(batches)])


def test_every_64th_record_and_the_end_carry_a_digest_but_no_gap_does():
    encoder = RecordEncoder()
    kinds = ["in"] * 128 + ["gap"] + ["in"] * 64 + ["end"]
    lines = encoder.lines([encoder.record(kind, b"{}", 0) for kind in kinds]).splitlines()
    assert [n for n, line in enumerate(lines) if b'"h":' in line] == [64, 192, 193]


@pytest.mark.requirement("TOOL-40")
@pytest.mark.parametrize("body_bytes", [2, 5_000, 70_000])
def test_a_digest_covers_all_lines_since_the_last_one(body_bytes):
    encoder, body = RecordEncoder(), b'"%b"' % (b"x" * body_bytes)
    batches = [[encoder.record("in", body, 0) for _ in range(size)] for size in (10, 60, 70)]
    lines = b"".join(map(encoder.lines, batches)).splitlines(keepends=True)
    first = hashlib.sha256(b"".join(lines[:64])).hexdigest()[:16]
    second = hashlib.sha256(first.encode() + b"".join(lines[64:128])).hexdigest()[:16]
    assert [decode(lines[number]).digest for number in (64, 128)] == [first, second]


def test_a_record_without_a_body_has_no_bytes():
    assert body_bytes(decode(one_line())) is None


def test_damaged_base64_is_an_error():
    with pytest.raises(RecordingError, match="record 3: damaged base64"):
        body_bytes(Record(number=3, kind="in", time_ns=0, body_base64="?"))


@pytest.mark.parametrize(
    "body",
    [
        OpenBody(transport="stdio", role="server", name="n", version="1", started="2026"),
        MarkBody(name="start", value={"a": [1, None]}),
        CommandBody(name="fetch", arguments=["x"]),
        ErrorBody(type="ValueError", text="no"),
        ShutBody(cause="eof"),
        EndBody(counts={"in": 3}),
        GapBody(reason="slow disk"),
        GapBody(count=0),
    ],
    ids=lambda body: type(body).__name__,
)
def test_an_encoded_body_decodes_to_the_same_body(body):
    assert decode_body(decode(one_line(body=encode_body(body))), type(body)) == body


@pytest.mark.parametrize("body", [None, b"[]", b'{"cause":1}', b'"eof"'])
def test_a_body_of_another_type_is_an_error(body):
    with pytest.raises(RecordingError, match=r"record 0 \(shut\)"):
        decode_body(decode(one_line(kind="shut", body=body)), ShutBody)


def test_a_body_that_is_nested_too_deeply_is_an_error():
    depth = 100_000
    body = b'{"name":"a","arguments":' + b"[" * depth + b"]" * depth + b"}"
    with pytest.raises(RecordingError, match=r"record 0 \(cmd\)"):
        decode_body(decode(one_line(kind="cmd", body=body, embed=False)), CommandBody)


def test_a_literal_body_is_embedded():
    line = one_line(kind="cxl", body=b'"unstarted"')
    assert b'"f":"unstarted"' in line
    assert decode_body(decode(line), str) == "unstarted"


# The names of lanes, and the messages in a record.

OPEN = {
    "format_version": 2,
    "transport": "memory",
    "role": "proxy",
    "name": "hand",
    "version": "1",
    "started": "2026-11-22T00:00:00+00:00",
}


@pytest.mark.parametrize("letter", ["r", "n"])
@pytest.mark.parametrize(("number", "place"), [(0, 0), (7, 0), (7, 1), (70, 12)])
@pytest.mark.parametrize("below", ["", ".0", ".3.1"])
def test_a_lane_gives_the_position_of_its_message(letter, number, place, below):
    lane = f"{letter}{message_name(number, place)}{below}"
    assert message_position(lane) == (number, place)


@pytest.mark.parametrize("lane", ["", "announce", "ping", "close", "-1", "r" + "9" * 5000])
def test_other_lanes_belong_to_no_message(lane):
    assert message_position(lane) is None


@pytest.mark.parametrize(
    ("frame", "messages"),
    [
        (b'{"id":1}', [b'{"id":1}']),
        (b' [ {"id":1} , 2,[ 3 ] ] ', [b'{"id":1}', b"2", b"[ 3 ]"]),
        (b"[]", []),
        (b"[1", [b"[1"]),
        (b"", [b""]),
    ],
)
def test_the_messages_of_a_batch_are_verbatim(frame, messages):
    assert messages_in(frame) == messages
    assert [message_at(frame, place) for place in range(4)] == [
        *messages,
        *[b""] * (4 - len(messages)),
    ]


def messages_of(*frames):
    encoder = RecordEncoder()
    records = [encoder.record("open", encode_body(OPEN), 0)]
    for kind, lane, messages in frames:
        body = msgspec.json.encode(messages)
        records.append(encoder.record(kind, body, len(records), lane, 1 if lane else None))
    return conversation(records).messages


def message(**members):
    return {"jsonrpc": "2.0", **members}


def test_a_conversation_has_each_message_of_a_batch():
    one, two, note, notification, second, first = messages_of(
        ("in", None, [message(id=1, method="a"), message(id=2, method="b")]),
        ("in", None, [17, message(method="notifications/n")]),
        ("out", "r1-1", message(method="notifications/m")),
        ("out", "r1", [message(id=2, result={}), message(id=1, result={})]),
    )
    assert [(each.record, each.position) for each in (one, two, note)] == [(1, 0), (1, 1), (2, 1)]
    assert notification.cause_index == two.index
    assert [(each.record, each.request_index) for each in (second, first)] == [(4, 1), (4, 0)]


CALL = message(
    id=1, method="tools/call", params={"name": "pay", "arguments": {"pin": SECRET, "sum": 3}}
)


def test_secrets_in_a_batch_are_found_as_in_a_message_by_itself():
    rules = redactor(paths={"tools/call pay": ["$.params.arguments.pin"]})
    note = message(method="notifications/n", params={"sum": 3})
    batch = rules.redact("in", msgspec.json.encode([note, CALL, [CALL], SECRET]))
    alone = rules.redact("in", msgspec.json.encode(CALL))
    assert SECRET.encode() not in batch
    assert messages_in(batch)[:2] == [msgspec.json.encode(note), alone]
    assert rules.redact("in", batch) == batch


def test_a_batch_without_secrets_is_unchanged():
    frame = b'[ {"jsonrpc":"2.0", "method":"notifications/n"} ]'
    assert redactor().redact("in", frame) == frame


# Reading recordings, complete or damaged.

OPENING = OpenBody(transport="stdio", role="server", name="n", version="1", started="2026-11-21")
NOTIFICATION = '{"jsonrpc":"2.0","method":"m","params":{"text":"né"}}'.encode()


def written(*kinds, encoder=None):
    """The lines of a recording with records of these kinds, after `open`."""
    encoder = encoder or RecordEncoder()
    records = [encoder.record("open", encode_body(OPENING), 0)]
    records += [encoder.record(kind, NOTIFICATION, 7, "r1", 0) for kind in kinds]
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
    assert [body_bytes(record) for record in records[1:]] == [NOTIFICATION, NOTIFICATION]


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
        NOTIFICATION.join([b'{"n":5,"k":"in","t":0,"f":', b"}\n"]).replace("é".encode(), b"\xff"),
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


def test_crlf_line_ends_are_detected_by_the_digest_and_named():
    converted = [line[:-1] + b"\r\n" for line in whole()]
    assert {kind for _, kind in damage(converted)} == {"digest"}
    texts = {each.text for each in read_recording(converted) if isinstance(each, Damage)}
    assert len(texts) == 1
    assert "end in CR LF" in texts.pop()


def gapped(reason, lost, count):
    encoder = RecordEncoder()
    lines = written("in", "in", encoder=encoder)
    records = [encoder.record("gap", encode_body(GapBody(reason=reason)), 0)]
    records += [encoder.record("in", NOTIFICATION, 0)]
    for _ in range(lost):
        encoder.skip()
    records += [encoder.record("in", NOTIFICATION, 0)]
    records += [encoder.record("gap", encode_body(GapBody(count=count)), 0)]
    records += [encoder.record("in", NOTIFICATION, 0) for _ in range(100)]
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
    records = [encoder.record("in", NOTIFICATION, 0)]
    records += [encoder.record("gap", encode_body(GapBody(count=each)), 0) for each in counts]
    assert first_loss(records) == place


def test_records_lost_before_a_gap_are_explained_by_it():
    encoder = RecordEncoder()
    lines = written("in", encoder=encoder)
    encoder.lines([encoder.record("in", NOTIFICATION, 0) for _ in range(5)])
    records = [encoder.record("gap", encode_body(GapBody(reason="full")), 0)]
    records += [encoder.record("gap", encode_body(GapBody(count=5)), 0)]
    records += [encoder.record("in", NOTIFICATION, 0), encoder.record("end", b"{}", 0)]
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
    body = base64.b64encode(encode_body(OPENING))
    assert check([b'{"n":0,"k":"open","t":0,"b":"%b"}\n' % body]).damage == []
