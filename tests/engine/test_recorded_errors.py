"""Exceptions as records, and back."""

import itertools
import json
import sqlite3
import sys

import httpx
import httpx2
import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from mcp_trio import RequestError
from mcp_trio._session.effects import encoded_error, rebuilt_error
from mcp_trio.errors import ReplayedError
from mcp_trio.limits import MIB


class Coded(Exception):
    def __init__(self, code, *, hint):
        super().__init__(f"{hint} ({code})")
        self.code = code
        self.handle = object()


class Unsayable(Exception):
    def __str__(self):
        raise RuntimeError


class Counted(Exception):
    def __new__(cls):
        raise RuntimeError


class Fickle(Exception):
    """Its text is another one each time."""

    numbers = itertools.count()

    def __str__(self):
        return str(next(self.numbers))


class Numbered(ExceptionGroup):
    def __str__(self):
        return f"{id(self)}: {self.message}"


def again(error):
    """The exception that comes back."""
    return rebuilt_error(encoded_error(error, bytes_max=MIB))


def sqlite_error():
    with pytest.raises(sqlite3.Error) as caught:
        sqlite3.connect(":memory:").execute("nonsense")
    return caught.value


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        KeyError("name"),
        OSError(2, "gone", "file"),
        json.JSONDecodeError("bad", "{", 1),
        RequestError(-5, "rejected", {"why": [1]}),
        httpx2.ConnectError("no route"),
        trio.TooSlowError(),
        Coded(3, hint="look"),
        sqlite_error(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_exception_comes_back_as_itself(error):
    found = again(error)
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert found.args == error.args
    known = {name: value for name, value in vars(error).items() if name != "handle"}
    assert vars(found) == known


@pytest.mark.parametrize("is_imported", [True, False])
def test_an_error_of_httpx_is_found_in_its_successor_where_httpx_is_not_imported(
    monkeypatch, is_imported
):
    body = encoded_error(httpx.ConnectError("no route"), bytes_max=MIB)
    if not is_imported:
        monkeypatch.delitem(sys.modules, "httpx")
    found = rebuilt_error(body)
    assert type(found) is (httpx if is_imported else httpx2).ConnectError
    assert str(found) == "no route"


def test_a_request_error_still_answers_the_request():
    found = again(RequestError(-5, "rejected", {"why": [1]}))
    assert (found.code, found.message, found.data) == (-5, "rejected", {"why": [1]})


def test_a_group_comes_back_with_its_members():
    inner = ExceptionGroup("inner", [gone(), KeyError("name")])
    found = again(ExceptionGroup("outer", [ValueError("one"), inner]))
    one, (local, key) = found.exceptions[0], found.exceptions[1].exceptions
    assert (type(found), str(found)) == (ExceptionGroup, "outer (2 sub-exceptions)")
    assert (type(one), type(key)) == (ValueError, KeyError)
    assert isinstance(local, ReplayedError)


def test_a_text_that_utf_8_cannot_encode_is_escaped():
    found = again(ValueError("a\ud800"))
    assert str(found) == r"builtins.ValueError: a\ud800"


def test_a_large_error_is_recorded_with_a_shortened_text():
    body = encoded_error(ValueError("a" * 1000), bytes_max=1000)
    assert len(body) < 400
    assert str(rebuilt_error(body)).startswith("builtins.ValueError: aaa")


def gone():
    class Local(Exception):
        pass

    return Local("here")


@pytest.mark.parametrize(
    "error",
    [
        gone(),
        Fickle("any"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no"),
        Numbered("many", [ValueError("one")]),
        ValueError((1, 2)),
        ValueError({1: 2}),
        ValueError([1], {"a": object()}),
    ],
)
def test_an_error_that_cannot_be_rebuilt_keeps_class_and_text(error):
    found = again(error)
    assert isinstance(found, ReplayedError)
    assert found.type_name.endswith(type(error).__qualname__)


def test_an_exception_without_a_text_is_recorded_all_the_same():
    assert msgspec.json.decode(encoded_error(Unsayable(), bytes_max=MIB))["text"] == ""


def test_an_error_whose_class_rejects_the_recorded_arguments_is_replaced():
    body = msgspec.json.encode({"type": f"{__name__}.Counted", "text": "", "args": []})
    assert isinstance(rebuilt_error(body), ReplayedError)


@pytest.mark.parametrize("name", ["nowhere.Error", "builtins.int", "builtins.print", "Error", "a."])
def test_only_exceptions_that_are_imported_already_are_made(name):
    body = msgspec.json.encode({"type": name, "text": "x", "args": []})
    found = rebuilt_error(body)
    assert isinstance(found, ReplayedError)
    assert str(found) == f"{name}: x"
    assert found.type_name == name


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(), inner, max_size=3)
        | st.tuples(inner)
    ),
    max_leaves=8,
)


@given(st.lists(json_values, max_size=3))
def test_an_exception_comes_back_equal_or_not_at_all(args):
    error = ValueError(*args)
    found = again(error)
    assert isinstance(found, ReplayedError) or repr(found) == repr(error)
