"""Framing of messages: lines, and server-sent events."""

import json
import re
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_trio._jsonrpc.lines import join_lines, one_line
from mcp_trio._jsonrpc.sse import COMMENT, Event, EventParser, encode_event
from mcp_trio.transports import LineSplitter, Oversized

KIB = 1024
MIB = 1024 * KIB

# Lines: blank ones, carriage returns, and lengths around the limit of 8 bytes.
alphabet = st.sampled_from(
    [b"a", b"{", b"}", b" ", b"\t", b"\r", b"\n", b"\xe2\x80\xa8", b"\xef\xbb\xbf"]
)
streams = st.lists(alphabet, max_size=60).map(b"".join)


def split(chunks, message_bytes_max=8):
    splitter = LineSplitter(message_bytes_max=message_bytes_max)
    found = [message for chunk in chunks for message in splitter.feed(chunk)]
    return [without_size(message) for message in found + splitter.finish()]


def without_size(message):
    return ("oversized", message.prefix) if isinstance(message, Oversized) else message


def chunked(stream, cuts):
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    return [stream[begin:end] for begin, end in pairwise(edges)]


def defined(stream, message_bytes_max=8):
    """Apply the rules to the whole stream at once."""
    lines = stream.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    found = []
    for line in (line.removesuffix(b"\r") for line in lines):
        if len(line) > message_bytes_max:
            found.append(("oversized", line[:message_bytes_max]))
        elif line.strip():
            found.append(line)
    return found


@pytest.mark.requirement("STDIO-02")
@given(streams, st.lists(st.integers(0, 200), max_size=8))
def test_any_chunking_gives_the_same_messages(stream, cuts):
    chunks = chunked(stream, cuts)
    assert b"".join(chunks) == stream
    assert split(chunks) == split([stream]) == split([bytes([byte]) for byte in stream])


@given(streams)
def test_messages_match_a_simple_model(stream):
    assert split([stream]) == defined(stream)


@given(st.lists(st.binary(min_size=1, max_size=20), max_size=6))
def test_joined_messages_split_into_the_same_messages(messages):
    messages = [
        message.replace(b"\n", b"n").replace(b"\r", b"r").replace(b"\xef", b"e")
        for message in messages
    ]
    messages = [message for message in messages if message.strip()]
    assert split([join_lines(messages)], message_bytes_max=100) == messages


def test_nothing_joined_is_nothing():
    assert join_lines([]) == b""
    assert join_lines([b"a", b"b"]) == b"a\nb\n"


@pytest.mark.requirement("STDIO-02", "TRAP-131")
def test_a_message_of_several_lines_becomes_one_line():
    message = {"a": "two\nlines", "b": [1, {}]}
    pretty = json.dumps(message, indent=2).replace("\n", "\r\n").encode()

    assert len(one_line(pretty).splitlines()) == 1
    assert json.loads(one_line(pretty)) == message
    assert one_line(b"{}") == b"{}"


@pytest.mark.parametrize("invalid", [b'{"a":\n"two\nlines"}', b"[\n", b"\n[[" * 100_000])
def test_an_invalid_message_of_several_lines_becomes_one_invalid_line(invalid):
    with pytest.raises((ValueError, RecursionError)):
        json.loads(one_line(invalid))
    assert len(one_line(invalid).splitlines()) == 1


def test_only_lf_ends_a_message():
    line = "a\u2028b\u2029c\x85d\x0be\x0cf\rg".encode()
    assert split([line + b"\r\n"], message_bytes_max=100) == [line]


def test_every_kind_of_bytes_is_taken():
    splitter = LineSplitter(message_bytes_max=8)
    assert splitter.feed(bytearray(b"a\nb")) == [b"a"]
    assert splitter.feed(memoryview(b"c\n")) == [b"bc"]


def test_a_last_line_without_lf_is_a_message():
    splitter = LineSplitter(message_bytes_max=8)
    assert splitter.feed(b"a\n{}") == [b"a"]
    assert splitter.finish() == [b"{}"]
    assert splitter.finish() == []
    assert splitter.feed(b" ") + splitter.finish() == []


@pytest.mark.parametrize("size", [8, 9])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("begin", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("step", [1, 100])
@pytest.mark.requirement("TRAP-132")
def test_the_message_limit_is_exact(size, end, begin, step):
    stream = begin + b"x" * size + end + b"next\n"
    chunks = [stream[at : at + step] for at in range(0, len(stream), step)]
    message = b"x" * 8
    assert split(chunks) == [message if size == 8 else ("oversized", message), b"next"]


@pytest.mark.requirement("TRAP-132")
def test_an_endless_line_is_reported_once_and_costs_no_memory():
    splitter = LineSplitter(message_bytes_max=10 * KIB)
    found = []
    for _ in range(1000):
        found += splitter.feed(b"y" * 4 * KIB)
        assert splitter._pending_bytes <= 12 * KIB
    assert found == [Oversized(12 * KIB, b"y" * 4 * KIB)]
    assert splitter.feed(b"\n{}\n") == [b"{}"]
    assert splitter.feed(b"y" * 11 * KIB) != []
    assert splitter.finish() == []


class CountedPieces(list):
    """Counts the bytes that are joined, each of which is one copy."""

    copied = 0

    def __iter__(self):
        for piece in super().__iter__():
            CountedPieces.copied += len(piece)
            yield piece


@pytest.mark.parametrize("chunk_bytes", [4 * KIB, 64 * KIB])
def test_a_large_message_is_copied_only_once(chunk_bytes):
    """Rescanning or rejoining what is already held would be quadratic."""
    splitter = LineSplitter(message_bytes_max=32 * MIB)
    splitter._pieces = CountedPieces()
    CountedPieces.copied = 0
    chunk = b"z" * chunk_bytes
    for _ in range(8 * MIB // chunk_bytes):
        assert splitter.feed(chunk) == []
    (message,) = splitter.feed(b"\n")
    assert len(message) == 8 * MIB
    assert CountedPieces.copied == 8 * MIB


@pytest.mark.slow
def test_a_message_in_small_chunks_takes_no_more_memory_than_its_bytes():
    splitter = LineSplitter(message_bytes_max=MIB)
    tracemalloc.start()
    try:
        for number in range(200 * KIB):
            splitter.feed(b"%02d" % (number % 100))
        held_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held_bytes < 2 * 400 * KIB


BOM = b"\xef\xbb\xbf"

# Server-sent events: complete and partial fields, and data around the limit of 8 bytes.
pieces = st.sampled_from(
    [
        *(b"data: 12345678", b"data:123456789", b"data", b"data: ", b"data:  a", b"id", b"id: 7"),
        *(b"event: tide", b"event:", b"retry: 20", b"retry: 2x", b": note", b":", b"note: 1"),
        *(b"a", b"b", b" ", b"\x00", b"\xff", b"\xef\xbb\xbf", b"\xe2\x80\xa8"),
        *(b"\n", b"\n", b"\n", b"\r", b"\r\n", b"\n\n"),
    ]
)
event_streams = st.lists(pieces, max_size=40).map(b"".join)
cuts = st.lists(st.integers(0, 400), max_size=8)

plain = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\r\n\0"))
events = st.builds(
    Event,
    data=st.lists(st.binary(max_size=9).map(lambda data: data.replace(b"\r", b"r"))).map(b"".join),
    name=plain.filter(bool),
    id=st.none() | plain,
    retry_ms=st.none() | st.integers(0, 10**15 - 1),
)


def parse(chunks, data_bytes_max=8):
    parser = EventParser(data_bytes_max=data_bytes_max)
    found = [event for chunk in chunks for event in parser.feed(chunk)]
    return [without_sizes(event) for event in found], parser.last_id


def without_sizes(event):
    return ("oversized", event.prefix) if isinstance(event, Oversized) else event


def bytewise(stream):
    return [bytes([byte]) for byte in stream]


def parsed_by_the_standard(stream, data_bytes_max=8):
    """Apply the rules to the whole stream at once."""
    *lines, _ = re.split(rb"\r\n|\r|\n", stream)
    long = [len(line) > data_bytes_max + len(BOM + b"data: ") for line in lines]
    lines[:1] = [line.removeprefix(BOM) for line in lines[:1]]
    found, last_id, fields = [], None, []
    for line, is_long in zip(lines, long, strict=True):
        if line:
            name, _, value = line.partition(b":")
            fields.append((name, value.removeprefix(b" "), is_long))
            continue
        event, event_id = defined_event(fields, data_bytes_max)
        found += event
        last_id = last_id if event_id is None else event_id or None
        fields = []
    return found, last_id


def defined_event(fields, data_bytes_max):
    data, name, event_id, retry_ms, head = [], "", None, None, None
    for field, value, is_long in fields:
        if field == b"data":
            data.append(value)
        elif field == b"event" and not is_long:
            name = value.decode(errors="replace")
        elif field == b"id" and not is_long and b"\0" not in value:
            event_id = value.decode(errors="replace")
        elif field == b"retry" and re.fullmatch(rb"[0-9]+", value):
            retry_ms = int(value)
        joined = b"\n".join(data)
        if head is None and (len(joined) > data_bytes_max or (is_long and field)):
            head = joined[:data_bytes_max]
    if head is not None:
        return [("oversized", head)], event_id
    if not data and event_id is None and retry_ms is None:
        return [], None
    return [Event(joined, name or "message", event_id, retry_ms)], event_id


@pytest.mark.slow
@given(st.lists(events, max_size=5), cuts)
def test_events_arrive_as_they_were_sent(sent, cuts):
    stream = b"".join(encode_event(event) for event in sent)
    last_ids = [event.id for event in sent if event.id is not None]
    arrived = (sent, (last_ids[-1] or None) if last_ids else None)
    assert parse(chunked(stream, cuts), data_bytes_max=KIB) == arrived


@given(event_streams, cuts)
def test_any_chunking_gives_the_same_events(stream, cuts):
    chunks = chunked(stream, cuts)
    assert b"".join(chunks) == stream
    assert parse(chunks) == parse([stream]) == parse(bytewise(stream))


@given(event_streams)
def test_events_match_the_html_standard(stream):
    # An oversized event is reported before its end: let each event have one.
    ended = re.sub(rb"[^\r\n]*\Z", b"", stream) + b"\n\n"
    assert parse([ended]) == parsed_by_the_standard(ended)


@pytest.mark.requirement("SSE-04")
def test_a_message_is_the_data_of_an_event():
    assert encode_event(Event(b'{"id":1}')) == b'event: message\ndata: {"id":1}\n\n'


@pytest.mark.parametrize(
    ("event", "stream"),
    [
        (Event(), b"event: message\ndata: \n\n"),
        (Event(b"/messages", name="endpoint"), b"event: endpoint\ndata: /messages\n\n"),
        (Event(b"a", id="3-1"), b"event: message\nid: 3-1\ndata: a\n\n"),
        (Event(retry_ms=500), b"event: message\nretry: 500\ndata: \n\n"),
        (Event(id="", retry_ms=0), b"event: message\nid: \nretry: 0\ndata: \n\n"),
        (Event(b"a\n\nb"), b"event: message\ndata: a\ndata: \ndata: b\n\n"),
        (Event("ø\u2028".encode(), id="ø"), "event: message\nid: ø\ndata: ø\u2028\n\n".encode()),
    ],
)
def test_an_event_is_written_so(event, stream):
    assert encode_event(event) == stream


@pytest.mark.parametrize("data", [b"a\rid: 1-9", b"a\r\nid: 1-9", b"a\nid: 1-9"])
def test_no_data_can_begin_a_field(data):
    assert parse([encode_event(Event(data))], 99) == ([Event(b"a\nid: 1-9")], None)


@pytest.mark.parametrize("text", ["a\nb", "a\rb", "a\0b", "\n", "\udc80"])
@pytest.mark.parametrize("field", ["name", "id"])
def test_a_name_or_id_that_would_break_the_stream_is_rejected(text, field):
    with pytest.raises(ValueError):
        encode_event(Event(b"{}", **{field: text}))


@pytest.mark.parametrize(
    ("stream", "found"),
    [
        (b"data: a\n\n", [Event(b"a")]),
        (b"data:a\n\n", [Event(b"a")]),
        (b"data:  a \n\n", [Event(b" a ")]),
        (b"data: a: b\n\n", [Event(b"a: b")]),
        (b"data: a\ndata:b\n\n", [Event(b"a\nb")]),
        (b"data\ndata\n\n", [Event(b"\n")]),
        (b"data: a\n\n\n\ndata: b\n\n", [Event(b"a"), Event(b"b")]),
        (b"data: a\r\rdata: b\r\r", [Event(b"a"), Event(b"b")]),
        (b"data: a\r\n\r\ndata: b\n\r", [Event(b"a"), Event(b"b")]),
        (b"\xef\xbb\xbfdata: a\n\n", [Event(b"a")]),
        (b"\xef\xbb\xbf\n\xef\xbb\xbfdata: a\n\n", []),
        (b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\n", []),
        (b": note\n:data: a\n:\n\n", []),
        (b"note: 1\nDATA: a\n data: a\ndata : a\n\n", []),
        (b"event: tide\ndata: a\n\ndata: b\n\n", [Event(b"a", name="tide"), Event(b"b")]),
        (b"event: tide\nevent: ebb\ndata: a\n\n", [Event(b"a", name="ebb")]),
        (b"event: tide\nevent\ndata: a\n\n", [Event(b"a")]),
        (b"event: tide\n\ndata: a\n\n", [Event(b"a")]),
        (b"event: \xff\ndata: a\n\n", [Event(b"a", name="\ufffd")]),
        (b"data: \xff\n\n", [Event(b"\xff")]),
        (b"retry: 500\n\n", [Event(retry_ms=500)]),
        (b"retry: 007\nretry:\nretry: -1\nretry: 1.5\nretry: 5 \n\n", [Event(retry_ms=7)]),
        ("retry: ٣\n\n".encode(), []),
        (b"retry: " + b"9" * 5000 + b"\n\n", []),
        (b"data: a", []),
        (b"data: a\n", []),
        (b"data: a\r\n", []),
        (b"", []),
        (COMMENT, []),
        (COMMENT + b"data: a\n" + b": note\n" + b"data: b\n\n" + COMMENT, [Event(b"a\nb")]),
    ],
)
def test_a_stream_is_read_so(stream, found):
    assert parse([stream], data_bytes_max=KIB * 8) == (found, None)
    assert parse(bytewise(stream), data_bytes_max=KIB * 8) == (found, None)


@pytest.mark.parametrize(
    ("stream", "found", "last_id"),
    [
        (b"id: 1-1\n\n", [Event(id="1-1")], "1-1"),
        (b"id: 1-1\ndata:\n\n", [Event(id="1-1")], "1-1"),
        (b"id: 1-1\ndata: a\n\ndata: b\n\n", [Event(b"a", id="1-1"), Event(b"b")], "1-1"),
        (b"id: 1-1\n\nid: 1-2\n", [Event(id="1-1")], "1-1"),
        (b"id: 1-1\n\nid: 1\x002\ndata: a\n\n", [Event(id="1-1"), Event(b"a")], "1-1"),
        (b"id: 1-1\n\nid\n\n", [Event(id="1-1"), Event(id="")], None),
        (b"id: 1-1\nid: 1-2\ndata: a\n\n", [Event(b"a", id="1-2")], "1-2"),
        (b"data:\n\n", [Event()], None),
    ],
)
@pytest.mark.requirement("TRAP-37")
def test_an_event_without_data_counts_for_its_id(stream, found, last_id):
    assert parse([stream], data_bytes_max=KIB) == (found, last_id)


def test_a_cr_at_the_end_of_a_chunk_ends_its_line_at_once():
    parser = EventParser(data_bytes_max=8)
    assert parser.feed(b"data: a\r\n\r") == [Event(b"a")]
    assert parser.feed(b"") == []
    assert parser.feed(b"\ndata: b\r\r") == [Event(b"b")]
    assert parser.feed(b"\ndata: c") + parser.feed(b"\n\n") == [Event(b"c")]
    chunks = [b"data: d\r", b"", b"\ndata: e", b"\n\n"]
    assert [event for chunk in chunks for event in parser.feed(chunk)] == [Event(b"d\ne")]


@pytest.mark.parametrize("size", [8, 9])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("begin", [b"data:", b"data: ", b"\xef\xbb\xbfdata: "])
@pytest.mark.parametrize("step", [1, 100])
def test_the_limit_of_data_is_exact(size, end, begin, step):
    stream = begin + b"x" * size + end + b"id: 1-1" + end * 2 + b"data: next" + end * 2
    chunks = [stream[at : at + step] for at in range(0, len(stream), step)]
    data = b"x" * 8
    first = Event(data, id="1-1") if size == 8 else ("oversized", data)
    assert parse(chunks) == ([first, Event(b"next")], "1-1")


@pytest.mark.parametrize(
    ("stream", "found"),
    [
        (b"data: 1234\ndata: 567\n\n", [Event(b"1234\n567")]),
        (b"data: 1234\ndata: 5678\n\n", [Oversized(9, b"1234\n567")]),
        (b"data:\n" * 10 + b"\n", [Oversized(9, b"\n" * 8)]),
        (b"data: 123456789\ndata: a\nid: 1\nretry: 5\n\n", [Oversized(9, b"12345678")]),
        (b"data: 12\nid: " + b"9" * 99 + b"\n\n", [Oversized(102, b"12")]),
        (b"note: " + b"9" * 99 + b"\ndata: 12\n\n", [Oversized(99, b"")]),
        (b": " + b"9" * 99 + b"\ndata: 12\n\n", [Event(b"12")]),
    ],
)
def test_an_event_over_the_limit_is_reported_and_the_next_arrives(stream, found):
    parser = EventParser(data_bytes_max=8)
    assert parser.feed(stream + b"data: next\n\n") == [*found, Event(b"next")]


def test_an_oversized_event_is_reported_before_its_end_and_its_rest_is_no_event():
    parser = EventParser(data_bytes_max=8)
    assert parser.feed(b"data: " + b"x" * 12) == [Oversized(12, b"x" * 8)]
    for piece in [b"id: 1", b"y" * 40, b"\r", b"\nid: 2\r\ndata: zz\r\n", b"event: tide"]:
        assert parser.feed(piece) == []
        assert parser._event.data is None
    assert parser.feed(b"\n\ndata: next\n\n") == [Event(b"next")]
    assert parser.last_id == "2"


@pytest.mark.parametrize("line", [b"data: ", b"id: ", b"", b": "])
def test_an_endless_line_costs_no_memory(line):
    parser = EventParser(data_bytes_max=10 * KIB)
    found = parser.feed(line)
    for _ in range(1000):
        found += parser.feed(b"y" * 4 * KIB)
        assert len(parser._line) + len(parser._event.data or b"") <= 15 * KIB
    assert len(found) == (line != b": ")
    assert parser.feed(b"\n\ndata: a\n\n") == [Event(b"a")]


class CountedLine(bytearray):
    """Counts the bytes that are copied into it and out of it."""

    copied = 0

    def __iadd__(self, piece):
        CountedLine.copied += len(piece)
        return super().__iadd__(piece)

    def __bytes__(self):
        CountedLine.copied += len(self)
        return bytes(memoryview(self))


@pytest.mark.slow
@pytest.mark.parametrize(("size", "step"), [(MIB // 8, 1), (8 * MIB, 4 * KIB), (8 * MIB, 64 * KIB)])
def test_a_large_event_is_copied_a_fixed_number_of_times(size, step):
    """Rescanning or rejoining what is already held would be quadratic."""
    parser = EventParser(data_bytes_max=size)
    parser._line = CountedLine()
    CountedLine.copied = 0
    stream = encode_event(Event(b"z" * size))
    found = []
    for at in range(0, len(stream), step):
        found += parser.feed(stream[at : at + step])
    assert found == [Event(b"z" * size)]
    assert CountedLine.copied <= 2 * len(stream)


def test_lines_of_data_are_added_in_place():
    """Joining what is already held would be quadratic."""
    parser = EventParser(data_bytes_max=KIB)
    parser.feed(b"data: a\ndata: b\n")
    held = parser._event.data
    assert parser.feed(b"data: c\n") == []
    assert parser._event.data is held == b"a\nb\nc"
    assert parser.feed(b"\n") == [Event(b"a\nb\nc")]


@pytest.mark.slow
@pytest.mark.parametrize("line", [b"data\n", b"data:12\n", b"id: 12\n", b": note\n"])
def test_many_short_lines_take_no_more_memory_than_they_have_bytes(line):
    parser = EventParser(data_bytes_max=MIB)
    tracemalloc.start()
    try:
        for _ in range(50):
            parser.feed(line * 1000)
        held_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held_bytes < 2 * 50_000 * len(line)
