"""What lanes are called after the messages of a frame, and where these stand in it."""

import msgspec
import pytest

from mcp_trio._journal.conversation import conversation
from mcp_trio._journal.records import (
    RecordEncoder,
    encode_body,
    message_at,
    message_name,
    message_position,
    messages_in,
)
from tests.journal.conftest import SECRET, redactor

OPEN = {
    "format_version": 1,
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


@pytest.mark.parametrize("lane", ["", "announce", "ping", "close", "-1"])
def test_other_lanes_are_named_after_none(lane):
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


def said(*frames):
    encoder = RecordEncoder()
    records = [encoder.record("open", encode_body(OPEN), 0)]
    for kind, lane, messages in frames:
        body = msgspec.json.encode(messages)
        records.append(encoder.record(kind, body, len(records), lane, 1 if lane else None))
    return conversation(records).messages


def message(**members):
    return {"jsonrpc": "2.0", **members}


def test_a_conversation_has_each_message_of_a_batch():
    one, two, note, told, second, first = said(
        ("in", None, [message(id=1, method="a"), message(id=2, method="b")]),
        ("in", None, [17, message(method="notifications/n")]),
        ("out", "r1-1", message(method="notifications/m")),
        ("out", "r1", [message(id=2, result={}), message(id=1, result={})]),
    )
    assert [(each.record, each.position) for each in (one, two, note)] == [(1, 0), (1, 1), (2, 1)]
    assert told.cause_index == two.index
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


def test_a_batch_without_secrets_stays_as_it_is():
    frame = b'[ {"jsonrpc":"2.0", "method":"notifications/n"} ]'
    assert redactor().redact("in", frame) == frame
