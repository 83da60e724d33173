"""Line framing."""

import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_trio._jsonrpc.lines import join_lines
from mcp_trio.transports import LineSplitter, Oversized

KIB = 1024
MIB = 1024 * KIB

# Lines such as a peer might send: with line ends inside, blank, over the limit of 8.
alphabet = st.sampled_from(
    [b"a", b"{", b"}", b" ", b"\t", b"\r", b"\n", b"\xe2\x80\xa8", b"\xef\xbb\xbf"]
)
streams = st.lists(alphabet, max_size=60).map(b"".join)


def split(chunks, message_bytes_max=8):
    splitter = LineSplitter(message_bytes_max=message_bytes_max)
    found = [frame for chunk in chunks for frame in splitter.feed(chunk)]
    return [without_size(frame) for frame in found + splitter.finish()]


def without_size(frame):
    return ("oversized", frame.prefix) if isinstance(frame, Oversized) else frame


def chunked(stream, cuts):
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    return [stream[begin:end] for begin, end in pairwise(edges)]


def defined(stream, message_bytes_max=8):
    """What the rules say, over the whole stream at once."""
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
def test_joined_messages_split_into_the_same_messages(frames):
    frames = [
        frame.replace(b"\n", b"n").replace(b"\r", b"r").replace(b"\xef", b"e") for frame in frames
    ]
    frames = [frame for frame in frames if frame.strip()]
    assert split([join_lines(frames)], message_bytes_max=100) == frames


def test_nothing_joined_is_nothing():
    assert join_lines([]) == b""
    assert join_lines([b"a", b"b"]) == b"a\nb\n"


@pytest.mark.requirement("STDIO-02", "TRAP-131")
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
    frame = b"x" * 8
    assert split(chunks) == [frame if size == 8 else ("oversized", frame), b"next"]


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
    (frame,) = splitter.feed(b"\n")
    assert len(frame) == 8 * MIB
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
