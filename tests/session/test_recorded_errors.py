"""Exceptions of effects: their records, and the exceptions that come back from them."""

import dataclasses
import datetime as dt
import decimal
import http
import itertools
import json
import logging
import math
import sqlite3
import sys
import textwrap
import uuid
from contextlib import closing
from pathlib import Path

import httpx
import httpx2
import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from mcp_trio import RequestError
from mcp_trio._session import recorded_errors
from mcp_trio._session.recorded_errors import (
    encoded_error,
    is_recordable,
    losses,
    raise_rebuilt,
    rebuilt_error,
)
from mcp_trio.errors import ReplayedError
from mcp_trio.limits import MIB


class Coded(Exception):
    def __init__(self, code, *, hint):
        super().__init__(f"{hint} ({code})")
        self.code = code
        self.handle = object()


class Plain(Exception):
    """An exception with arguments only."""


class Slotted(Exception):
    __slots__ = ("code",)

    def __init__(self, code):
        super().__init__("slotted")
        self.code = code


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    code: int


class OwnOSError(OSError):
    def __init__(self, path):
        super().__init__(2, "gone", path)


class Exiting(SystemExit):
    pass


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

    def derive(self, excs):
        return Numbered(self.message, excs)


def recorded(error):
    return encoded_error(error, bytes_max=MIB)


def again(error):
    """The exception that comes back."""
    return rebuilt_error(recorded(error))


def raised(error, cause=None, context=None):
    """The exception, raised from another one or while another one is handled."""
    try:
        if cause is not None:
            raise error from cause
        if context is not None:
            try:
                raise context
            except BaseException:
                raise error  # noqa: B904
        raise error
    except BaseException as caught:
        return caught


def sqlite_error():
    with closing(sqlite3.connect(":memory:")) as database, pytest.raises(sqlite3.Error) as caught:
        database.execute("nonsense")
    return caught.value


def attribute_error():
    with pytest.raises(AttributeError) as caught:
        _ = object().nothing
    return caught.value


def import_error():
    with pytest.raises(ImportError) as caught:
        import mcp_trio.nothing  # noqa: F401
    return caught.value


def syntax_error():
    with pytest.raises(SyntaxError) as caught:
        compile("a b", "file.py", "exec")
    return caught.value


def gone():
    class Local(Exception):
        pass

    return Local("here")


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        KeyError("name"),
        OSError(2, "gone", "file"),
        OSError(2, "gone", Path("file"), None, "other"),
        OwnOSError("file"),
        json.JSONDecodeError("bad", "{", 1),
        UnicodeDecodeError("utf-8", b"a\xff", 1, 2, "no"),
        RequestError(-5, "rejected", {"why": [1]}),
        httpx2.ConnectError("no route"),
        trio.TooSlowError(),
        Coded(3, hint="look"),
        Slotted(3),
        attribute_error(),
        import_error(),
        syntax_error(),
        sqlite_error(),
        ValueError("a\ud800"),
        ValueError(Plain("inner", b"\x00")),
        ReplayedError("app.Error", "text"),
        SystemExit(3),
        SystemExit(),
        Exiting("bye"),
        KeyboardInterrupt(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_recorded_exception_is_restored(error):
    found = again(error)
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert repr(found.args) == repr(error.args)
    known = {name: value for name, value in vars(error).items() if name != "handle"}
    assert vars(found) == known


@pytest.mark.parametrize(
    ("error", "attributes"),
    [
        (OSError(2, "gone", "file", None, "other"), ("errno", "filename", "filename2")),
        (OwnOSError("file"), ("errno", "strerror", "filename")),
        (UnicodeDecodeError("utf-8", b"a\xff", 1, 2, "no"), ("object", "start", "reason")),
        (import_error(), ("name", "path", "msg")),
        (attribute_error(), ("name",)),
        (syntax_error(), ("filename", "lineno", "offset", "text")),
        (SystemExit(3), ("code",)),
        (Slotted(3), ("code",)),
    ],
    ids=lambda it: type(it).__name__,
)
def test_attributes_outside_of_the_dict_are_restored(error, attributes):
    found = again(error)
    for name in attributes:
        assert getattr(found, name) == getattr(error, name)


def test_an_attribute_that_the_class_has_not_set_is_left_out():
    found = again(Slotted.__new__(Slotted, "slotted"))
    assert found.args == ("slotted",)
    assert not hasattr(found, "code")


@pytest.mark.parametrize("is_imported", [True, False])
def test_an_error_of_httpx_is_found_in_its_successor_where_httpx_is_not_imported(
    monkeypatch, is_imported
):
    body = recorded(httpx.ConnectError("no route"))
    if not is_imported:
        monkeypatch.delitem(sys.modules, "httpx")
    found = rebuilt_error(body)
    assert type(found) is (httpx if is_imported else httpx2).ConnectError
    assert str(found) == "no route"


def test_a_request_error_still_answers_the_request():
    found = again(RequestError(-5, "rejected", {"why": [1]}))
    assert (found.code, found.message, found.data) == (-5, "rejected", {"why": [1]})


# Groups.


def test_a_recorded_exception_group_is_restored_with_its_members():
    inner = ExceptionGroup("inner", [gone(), KeyError("name")])
    found = again(ExceptionGroup("outer", [ValueError("one"), inner]))
    one, (local, key) = found.exceptions[0], found.exceptions[1].exceptions
    assert (type(found), str(found)) == (ExceptionGroup, "outer (2 sub-exceptions)")
    assert (type(one), type(key)) == (ValueError, KeyError)
    assert isinstance(local, ReplayedError)


def test_a_group_with_an_exit_is_restored():
    found = again(BaseExceptionGroup("both", [ValueError("one"), SystemExit(3)]))
    assert type(found) is BaseExceptionGroup
    assert [type(member) for member in found.exceptions] == [ValueError, SystemExit]


def test_a_group_of_a_class_that_is_not_found_is_still_a_group():
    class Local(ExceptionGroup):
        pass

    found = again(Local("many", [ValueError("one")]))
    assert type(found) is ExceptionGroup
    assert repr(found.exceptions) == repr((ValueError("one"),))


def test_the_text_of_a_group_does_not_matter():
    found = again(Numbered("many", [ValueError("one")]))
    assert type(found) is Numbered
    assert found.message == "many"


# Which exceptions are outcomes.


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError(), True),
        (SystemExit(), True),
        (KeyboardInterrupt(), True),
        (GeneratorExit(), False),
        (BaseExceptionGroup("", [ValueError(), KeyboardInterrupt()]), True),
        (BaseExceptionGroup("", [ValueError(), GeneratorExit()]), False),
    ],
)
def test_exits_are_outcomes_and_the_ends_of_tasks_are_not(error, expected):
    assert is_recordable(error) is expected


async def test_a_cancellation_is_no_outcome():
    with trio.CancelScope() as scope:
        scope.cancel()
        with pytest.raises(trio.Cancelled) as caught:
            await trio.lowlevel.checkpoint()
    assert not is_recordable(caught.value)
    assert not is_recordable(BaseExceptionGroup("", [ValueError(), caught.value]))


# Causes, contexts and notes.


def chain(error):
    """Cause, context and suppression of an exception, of its cause and context, and so on."""
    if error is None:
        return None
    is_hidden = error.__suppress_context__
    context = None if is_hidden else chain(error.__context__)
    return (repr(error), is_hidden, chain(error.__cause__), context)


@pytest.mark.parametrize(
    "error",
    [
        raised(ValueError("no"), cause=KeyError("name")),
        raised(ValueError("no"), context=KeyError("name")),
        raised(ValueError("no"), cause=raised(KeyError("a"), context=OSError(2, "gone"))),
        raised(ValueError("no"), context=raised(KeyError("a"), cause=SystemExit(3))),
        raised(ExceptionGroup("many", [raised(ValueError("no"), cause=KeyError("name"))])),
    ],
)
def test_causes_and_contexts_are_restored(error):
    assert chain(again(error)) == chain(error)


def test_a_frozen_exception_is_restored_with_its_cause_and_context():
    error = raised(Frozen(3), context=KeyError("a"))
    error_body = recorded(raised(error, cause=ValueError("no")))
    try:
        raise OSError(2, "handled here")
    except OSError:
        with pytest.raises(Frozen) as caught:
            raise_rebuilt(error_body)
    assert caught.value.code == 3
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_suppressed_context_is_not_recorded():
    error = raised(ValueError("no"), context=KeyError("secret"))
    error.__cause__ = None
    assert b"secret" not in recorded(error)
    found = again(error)
    assert (found.__context__, found.__suppress_context__) == (None, True)


def test_notes_are_restored():
    error = ValueError("no")
    error.add_note("first")
    error.add_note("second \ud800")
    assert again(error).__notes__ == ["first", r"second \ud800"]


def test_a_chain_that_comes_back_to_itself_is_cut():
    error, other = ValueError("no"), KeyError("name")
    error.__cause__, other.__cause__ = other, error
    found = again(error)
    assert isinstance(found.__cause__, KeyError)
    assert found.__cause__.__cause__ is None


def test_a_long_chain_is_cut():
    error = ValueError(0)
    for number in range(1, 500):
        outer = ValueError(number)
        outer.__context__ = error
        error = outer
    found, length = again(error), 0
    while found is not None:
        found, length = found.__context__, length + 1
    assert 3 < length < 20


def test_a_cancellation_in_a_chain_is_left_out():
    error = raised(ValueError("no"), context=GeneratorExit())
    found = again(error)
    assert (type(found), found.__context__) == (ValueError, None)


def test_the_recorded_context_survives_an_except_block_of_the_handler():
    def effect():
        try:
            raise KeyError("inside")
        except KeyError:
            raise ValueError("no")  # noqa: B904

    def play(run):
        try:
            raise OSError(2, "outside")
        except OSError as outside:
            try:
                run()
            except ValueError as error:
                return error, outside

    live, _ = play(effect)
    found, outside = play(lambda: raise_rebuilt(recorded(live)))
    assert chain(found) == chain(live)
    assert found.__context__.__context__ is outside


def test_without_a_recorded_context_the_handled_exception_is_the_context():
    body = recorded(ValueError("no"))
    try:
        raise KeyError("handled")
    except KeyError as handled:
        with pytest.raises(ValueError, match="no") as caught:
            raise_rebuilt(body)
        assert caught.value.__context__ is handled  # noqa: PT017


# Values in arguments and attributes.


@pytest.mark.parametrize(
    "value",
    [
        b"\x00a\xff",
        bytearray(b"ab"),
        (1, (2, "a")),
        {1: 2, (3,): b"4"},
        {"$bytes": "a"},
        {"$bytes": b"a"},
        {"$dict": {"$dict": {}}},
        {"$": 1},
        {"$bytes": "a", "b": 1},
        {1, 2},
        frozenset({"a"}),
        2**64,
        -(2**4000),
        math.inf,
        -0.0,
        3 + 4j,
        "a\ud800",
        {"\ud800": 1},
        decimal.Decimal("1.10"),
        uuid.UUID(int=5),
        dt.date(2026, 11, 24),
        dt.datetime(2026, 11, 24, 12, tzinfo=dt.UTC),
        dt.timedelta(days=-1, microseconds=5),
        Path("/a/b"),
        http.HTTPStatus.NOT_FOUND,
    ],
    ids=repr,
)
def test_a_value_comes_back_with_its_type(value):
    (found,) = again(ValueError(value)).args
    assert type(found) is type(value)
    assert repr(found) == repr(value)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=()))
    | st.binary()
    | st.sampled_from(["$", "$bytes", "$dict", "$str"])
    | st.datetimes(timezones=st.none() | st.just(dt.UTC))
    | st.decimals(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=()), max_size=2)
            | st.sampled_from(["$bytes", "$dict", "$items", "$error"])
            | st.binary(max_size=1),
            inner,
            max_size=3,
        )
        | st.tuples(inner)
    ),
    max_leaves=8,
)


@given(st.lists(values, max_size=3), st.dictionaries(st.sampled_from("abc"), values))
def test_every_value_in_an_exception_comes_back(args, attributes):
    error = Plain(*args)
    vars(error).update(attributes)
    body = recorded(error)
    found = rebuilt_error(body)
    assert losses(body) == []
    assert type(found) is Plain
    assert repr((found.args, vars(found))) == repr((error.args, vars(error)))


errors = st.deferred(
    lambda: (
        st.builds(
            _linked,
            st.sampled_from([ValueError, KeyError, Plain, SystemExit]),
            st.lists(values, max_size=2),
            st.none() | errors,
            st.none() | errors,
            st.booleans(),
            st.lists(st.text(max_size=3), max_size=2),
        )
        | st.lists(st.builds(Plain, values), min_size=1, max_size=3).map(
            lambda members: ExceptionGroup("many", members)
        )
    )
)


def _linked(kind, args, cause, context, hides, notes):
    error = kind(*args)
    error.__cause__, error.__context__, error.__suppress_context__ = cause, context, hides
    for note in notes:
        error.add_note(note)
    return error


def _length(error):
    """The number of exceptions in the longest chain of causes and contexts."""
    if error is None:
        return 0
    return 1 + max(_length(error.__cause__), _length(error.__context__))


@given(errors.filter(lambda error: _length(error) <= 8))  # the rest of longer ones is left out
def test_every_chain_of_exceptions_comes_back(error):
    found = again(error)
    assert chain(found) == chain(error)
    assert getattr(found, "__notes__", []) == getattr(error, "__notes__", [])
    assert recorded(found) == recorded(error)


def test_a_value_in_itself_has_no_form():
    endless = []
    endless.append(endless)
    assert isinstance(again(ValueError(endless)), ReplayedError)


# Classes.


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module that is not imported, and return its name."""

    def write(text, name="errors_of_users"):
        path = tmp_path / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return name

    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize("name", ["errors_of_users", "users_package.errors"])
def test_the_module_of_a_class_is_imported(module, name):
    module("class Outer:\n    class Error(Exception):\n        pass\n", name)
    body = msgspec.json.encode({"type": f"{name}.Outer.Error", "text": "x", "args": ["x"]})
    found = rebuilt_error(body)
    assert type(found) is sys.modules[name].Outer.Error
    assert found.args == ("x",)


def test_a_class_of_the_module_that_the_process_started_with_is_found(monkeypatch):
    main = type(sys)("__mcp_main__")
    main.__file__ = "/srv/weather.py"
    main.Error = type("Error", (Exception,), {"__module__": "__mcp_main__"})
    monkeypatch.setitem(sys.modules, "__mcp_main__", main)
    body = recorded(main.Error("x"))
    assert json.loads(body)["type"] == "weather.Error"
    assert type(rebuilt_error(body)) is main.Error
    weather = type(sys)("weather")
    weather.Error = type("Error", (Exception,), {})
    monkeypatch.delitem(sys.modules, "__mcp_main__")
    monkeypatch.setitem(sys.modules, "weather", weather)
    assert type(rebuilt_error(body)) is weather.Error


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "the module errors_of_users cannot be imported here (No module named"),
        ("import nowhere_at_all", "cannot be imported here (No module named 'nowhere_at_all')"),
        ("raise SystemExit(3)", "cannot be imported here (SystemExit: 3)"),
        ("1 / 0", "cannot be imported here (ZeroDivisionError: division by zero)"),
        ("Error = None", "its module has no exception of this name"),
        ("class Error: pass", "its module has no exception of this name"),
        (
            "class Error(Exception):\n  def __str__(self): return '?'",
            "its text is another one here",
        ),
    ],
)
def test_a_class_that_is_not_found_is_replaced_and_the_report_has_the_reason(module, text, reason):
    if text is not None:
        module(text)
    body = msgspec.json.encode({"type": "errors_of_users.Error", "text": "x", "args": ["x"]})
    found = rebuilt_error(body)
    assert isinstance(found, ReplayedError)
    assert found.type_name == "errors_of_users.Error"
    assert str(found) == "errors_of_users.Error: x"
    assert reason in found.reason
    assert losses(body) == [f"errors_of_users.Error: {found.reason}"]


@pytest.mark.parametrize(
    "name", ["builtins.int", "builtins.print", "Error", "a.", "builtins.GeneratorExit"]
)
def test_only_exceptions_are_rebuilt(name):
    found = rebuilt_error(msgspec.json.encode({"type": name, "text": "x", "args": []}))
    assert isinstance(found, ReplayedError)
    assert found.type_name == name


def test_no_code_of_the_class_runs():
    body = msgspec.json.encode({"type": f"{__name__}.Counted", "text": "", "args": []})
    assert type(rebuilt_error(body)) is Counted


@pytest.mark.parametrize(
    "args",
    [[{"$nothing": 1}], [{"$bytes": 1}], [{"$enum": ["builtins.int", "x"]}], [{"$int": "x"}]],
)
def test_arguments_of_an_unknown_form_lead_to_a_stand_in(args):
    found = rebuilt_error(msgspec.json.encode({"type": "ValueError", "text": "x", "args": args}))
    assert isinstance(found, ReplayedError)


# Exceptions that cannot be rebuilt.


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (gone(), "its class is defined inside a function: define the class at the top level"),
        (Fickle("any"), "its text would be another one: let `__str__`"),
        (ValueError([1], {"a": object()}), "its arguments hold a value of type object"),
    ],
)
def test_an_error_that_cannot_be_rebuilt_keeps_class_and_text_and_names_the_reason(error, reason):
    found = again(error)
    assert isinstance(found, ReplayedError)
    assert found.type_name.endswith(type(error).__qualname__)
    assert reason in found.reason
    assert found.reason.startswith("a replay raises ReplayedError in its place, because ")


def test_an_error_without_one_of_its_attributes_names_it():
    (loss,) = losses(recorded(Coded(3, hint="look")))
    assert "a replay raises it without handle, which has no JSON form: let the effect" in loss


def test_the_losses_of_members_and_causes_are_named_and_those_of_contexts_are_not():
    error = raised(ValueError("no"), cause=gone())
    assert len(losses(recorded(error))) == 1
    assert len(losses(recorded(ExceptionGroup("", [error, Fickle("any")])))) == 2
    assert losses(recorded(raised(ValueError("no"), context=gone()))) == []


def test_a_large_error_is_recorded_without_its_context_first():
    error = raised(ValueError("no"), context=KeyError("a" * 1000))
    found = rebuilt_error(encoded_error(error, bytes_max=1000))
    assert (repr(found), found.__context__) == (repr(error), None)


def test_a_large_error_is_recorded_with_a_shortened_text():
    body = encoded_error(ValueError("a" * 1000), bytes_max=1000)
    assert len(body) < 700
    found = rebuilt_error(body)
    assert str(found).startswith("builtins.ValueError: aaa")
    assert "more than limits.requests.effect_bytes_max=1000" in found.reason


def test_an_exception_without_a_text_is_recorded_all_the_same():
    assert msgspec.json.decode(recorded(Unsayable()))["text"] == ""


def test_a_value_that_cannot_be_rebuilt_is_logged_once(caplog, monkeypatch):
    monkeypatch.setattr(recorded_errors, "_logged", set())
    with caplog.at_level(logging.WARNING, "mcp_trio"):
        for _ in range(3):
            recorded(raised(gone()))
        recorded(ValueError("no"))
    (record,) = caplog.records
    assert "an effect raised " in record.getMessage()
    assert f" at {Path(__file__).name}:" in record.getMessage()
    assert "define the class at the top level of a module" in record.getMessage()
