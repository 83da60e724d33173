"""Lines of which nothing is dropped."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_trio._proxy.journal import Line, LineSplitter

ODD_BYTES = st.lists(st.sampled_from([b"\n", b"\r", b"\0", b"a", b"\xff", b"{}"])).map(b"".join)


def cut(chunks, line_bytes_max=100):
    cutter = LineSplitter(line_bytes_max=line_bytes_max)
    lines = [line for chunk in chunks for line in cutter.feed(chunk)]
    return [*lines, *cutter.finish()]


@given(st.lists(ODD_BYTES), st.integers(1, 8))
def test_joined_lines_are_the_stream_however_it_is_chunked(chunks, line_bytes_max):
    lines = cut(chunks, line_bytes_max)
    forwarder = b"".join(line.data + (b"\n" if line.has_lf else b"") for line in lines)
    assert forwarder == b"".join(chunks)
    assert lines == cut([b"".join(chunks)], line_bytes_max)
    assert all(len(line.data) <= line_bytes_max and b"\n" not in line.data for line in lines)


def test_blank_lines_and_ends_of_lines_are_kept():
    assert cut([b"a\r\n\n \n"]) == [Line(b"a\r"), Line(b""), Line(b" ")]


def test_a_last_line_without_an_end_says_so():
    assert cut([b"a\nb"]) == [Line(b"a"), Line(b"b", has_lf=False)]
    assert cut([b"a\n"]) == [Line(b"a")]


def test_a_line_of_the_greatest_length_is_one():
    assert cut([b"1234\n"], 4) == [Line(b"1234")]
    assert cut([b"12", b"34"], 4) == [Line(b"1234", has_lf=False)]


def test_a_longer_line_comes_in_parts_and_the_next_one_whole():
    assert cut([b"123456789\nab\n"], 4) == [
        Line(b"1234", 1, has_lf=False),
        Line(b"5678", 2, has_lf=False),
        Line(b"9", 3),
        Line(b"ab"),
    ]


@pytest.mark.parametrize(
    ("line", "envelope"),
    [
        (Line(b"x"), None),
        (Line(b"x", has_lf=False), {"lf": False}),
        (Line(b"x", 1, has_lf=False), {"part": 1, "lf": False}),
        (Line(b"x", 2), {"part": 2}),
    ],
)
def test_an_envelope_tells_what_the_bytes_do_not(line, envelope):
    assert line.envelope == envelope
