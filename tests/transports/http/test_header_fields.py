"""Header fields as bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_trio._protocol.http_headers import encoded


def test_header_names_are_lower_case_and_values_unchanged():
    fields = [("Mcp-Session-Id", "AbC"), ("x", ""), ("y", "a \t b"), ("z", "\xe9")]
    assert encoded(fields) == [
        (b"mcp-session-id", b"AbC"),
        (b"x", b""),
        (b"y", b"a \t b"),
        (b"z", b"\xe9"),
    ]


@pytest.mark.parametrize("name", ["", "a b", "a:", "a\n", "\n", "é", ":status"])
def test_a_header_name_must_be_a_token(name):
    with pytest.raises(ValueError, match="is not a valid name of a header"):
        encoded([(name, "x")])


@pytest.mark.parametrize("value", ["\n", "a\r\nb", "a\n", "\0", " a", "a\t", "a\x7f", "\u20ac"])
def test_a_header_value_has_no_line_break(value):
    with pytest.raises(ValueError, match="the value of the header x-a"):
        encoded([("x-a", value)])


@given(st.text())
def test_a_header_value_is_one_line(value):
    try:
        [(_, sent)] = encoded([("a", value)])
    except ValueError:
        return
    assert sent.decode("latin-1") == value
    assert not set(b"\r\n\0") & set(sent)
