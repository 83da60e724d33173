"""Records: encoding, and the messages in them."""

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
    message_at,
    message_name,
    message_position,
    messages_in,
)
from mcp_trio.errors import RecordingError
from mcp_trio.recording import Record, body_bytes
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
