"""Tokens have the type and shape of the values that they replace."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.journal.conftest import SECRET, arguments_of, call, hidden, redactor

SHAPES = {
    "bob@example.com": r"[a-z]{3}@[a-z]{7}\.[a-z]{3}",
    "Abc-123_xYZ": r"[A-Z][a-z]{2}-[0-9]{3}_[a-z][A-Z]{2}",
    "sk-proj-Abc123Xyz789Qrs456": r"sk-proj-([A-Z][a-z]{2}[0-9]{3}){3}",
    "sk-a1": r"[a-z]{2}-[a-z][0-9]",
    "Bearer abcdef12": r"Bearer [a-z]{6}[0-9]{2}",
    "https://me:pw9x@host.org/": r"https://[a-z]{2}:[a-z]{2}[0-9][a-z]@[a-z]{4}\.[a-z]{3}/",
    "550e8400-e29b-41d4-a716-446655440000": r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "DEADBEEF99": r"[A-F]{8}[0-9]{2}",
    "1984-12-31": r"19[7-9][0-9]-0[1-9]-[01][1-9]",
    "2026-11-22T05:38:00.5Z": r"19[7-9][0-9]-0[1-9]-[01][1-9]T[01][0-9]:[0-5][0-9]:[0-5][0-9]\.5Z",
    "----": r"[!#$&*+./:;=?@^_~-]{4}",
    "mötley €5 😀x": r"[a-z][à-ö][a-z]{4} [一-乿][0-9] [😀-😿][a-z]",
    " padded9 ": r" [a-z]{6}[0-9] ",
    '{"a": "secret1"}': r'\{"a": "[a-z]{6}[0-9]"\}',
}


@pytest.mark.parametrize(("value", "shape"), SHAPES.items())
def test_a_token_has_the_shape_of_its_value(value, shape):
    token = hidden(value)
    assert re.fullmatch(shape, token)
    assert token != value
    assert len(token) == len(value)
    assert len(token.encode()) == len(value.encode())


@given(st.integers() | st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_stays_a_number_of_its_type_that_reads_back(number):
    before = call(password=number)
    after = redactor().redact("in", before)
    token = arguments_of(after)["password"]
    assert type(token) is type(number)
    if "e" not in repr(number):
        assert call(password=token) == after


def test_fractions_of_many_digits_read_back():
    one = redactor()
    for number in range(1, 30):
        frame = one.redact("in", call(password=number / 7e3))
        assert call(password=arguments_of(frame)["password"]) == frame


def test_equal_stays_equal_and_different_different():
    one = redactor()
    tokens = [arguments_of(one.redact("in", call(password=n)))["password"] for n in range(1, 40)]
    assert len(set(tokens)) == len(tokens)
    texts = [
        arguments_of(one.redact("in", call(password=c)))["password"]
        for c in "abcdefghijklmnopqrstuvwxyz"
    ]
    assert len(set(texts)) == len(texts)


def test_the_key_makes_the_token():
    assert hidden(SECRET) == hidden(SECRET)
    assert hidden(SECRET, key=b"other") != hidden(SECRET)
