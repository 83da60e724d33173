import collections
import dataclasses
import enum
import functools
import json
import pathlib
import subprocess
import sys
import timeit
import typing
from collections.abc import Iterator
from typing import Annotated, Any, NotRequired, TypedDict

import attrs
import jsonschema
import msgspec
import pytest

from mcp_trio._server.introspection import name_of
from mcp_trio._server.signatures import ArgumentsError
from tests.server.conftest import Context, lines_of, signature_of


class OwnContext(Context[int]):
    pass


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


@attrs.define
class Trip:
    """A way through points."""

    stops: list[Point]


class Filter(TypedDict):
    title: str
    exact: NotRequired[bool]


class Unknown:
    pass


@attrs.define
class Holds:
    where: pathlib.Path
    what: list[Unknown]


def called(handler, arguments):
    found = signature_of(handler)
    return handler(**found.bind(found.decode(json.dumps(arguments).encode()), "the context"))


async def forecast(
    city: str,
    days: Annotated[int, msgspec.Meta(ge=1, le=10)] = 3,
    *,
    ctx: Context,
    colour: Colour = Colour.RED,
) -> str:
    """Tell the weather.

    Args:
        city: Where.
        days: How many.
        ctx: never shown.
    """


@pytest.mark.requirement("TOOL-05")
def test_the_schema_is_a_closed_object_with_descriptions_and_defaults():
    assert signature_of(forecast).schema == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Where."},
            "days": {
                "type": "integer",
                "minimum": 1,
                "maximum": 10,
                "description": "How many.",
                "default": 3,
            },
            "colour": {"$ref": "#/$defs/Colour", "default": "red"},
        },
        "required": ["city"],
        "additionalProperties": False,
        "$defs": {"Colour": {"enum": ["red"]}},
    }
    assert signature_of(forecast).docstring.description == "Tell the weather."


def test_a_handler_without_parameters_has_an_empty_closed_schema():
    def handler():
        pass

    found = signature_of(handler)
    assert found.schema == {
        "type": "object",
        "properties": {},
        "required": [],
        "additionalProperties": False,
    }
    assert found.docstring.description == ""
    for raw in (None, b"{}", msgspec.Raw(b" { } ")):
        assert found.bind(found.decode(raw), "the context") == {}


def test_a_meta_in_the_annotation_overrides_the_docstring():
    def handler(a: Annotated[int, msgspec.Meta(description="From the annotation.")]):
        """Short.

        Args:
            a: From the docstring.
        """

    assert signature_of(handler).schema["properties"]["a"]["description"] == "From the annotation."


def test_named_types_stay_under_defs_without_title_noise():
    def handler(trip: Trip, narrow: Filter, title: str, Arguments: Point | None = None):
        """Short.

        Args:
            trip: Where to go.
        """

    schema = signature_of(handler).schema
    assert schema["properties"]["trip"] == {"$ref": "#/$defs/Trip", "description": "Where to go."}
    assert schema["properties"]["title"] == {"type": "string"}
    assert schema["$defs"].keys() == {"Trip", "Filter", "Point"}
    assert not any("title" in definition for definition in schema["$defs"].values())
    assert schema["$defs"]["Filter"]["properties"]["title"] == {"type": "string"}
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(
        {"trip": {"stops": [{"x": 1}]}, "narrow": {"title": "t"}, "title": "t"}, schema
    )


def test_a_string_annotation_is_resolved_in_its_module():
    def handler(point: "Point", ctx: "Context[int] | None" = None):
        return point, ctx

    assert called(handler, {"point": {"x": 1}}) == (Point(1), "the context")


@pytest.mark.parametrize(
    "hint",
    [
        Context,
        OwnContext,
        Context[str],
        Context | None,
        typing.Union[Context, None],  # noqa: UP007 - people still write it
        Annotated[Context, "c"],
        Annotated[Context[int] | None, "c"],
        "Context",
    ],
)
def test_the_context_is_known_by_its_annotation(hint):
    def handler(a: int, anything=None):
        return anything

    handler.__annotations__["anything"] = hint
    assert signature_of(handler).context_parameter == "anything"
    assert "anything" not in signature_of(handler).schema["properties"]
    assert called(handler, {"a": 1}) == "the context"
    assert lines_of(handler, {"a": 1, "anything": 1}) == ["anything: unknown argument"]


def test_a_second_context_is_rejected():
    def handler(a: Context, b: Context):
        pass

    with pytest.raises(TypeError, match="handler: parameter 'b' is a second context"):
        signature_of(handler).parameters  # noqa: B018


def test_a_context_of_another_kind_of_handler_is_rejected():
    def handler(ctx: OwnContext | None):
        pass

    found = signature_of(handler, foreign_context_types=(OwnContext,))
    with pytest.raises(TypeError, match="parameter 'ctx' has to be a Context: a `def` handler"):
        found.parameters  # noqa: B018


def test_a_handler_goes_by_the_name_of_its_function_or_class():
    assert name_of(functools.partial(functools.partial(forecast), "Oslo")) == "forecast"
    assert name_of(Weather()) == "Weather"


@pytest.mark.parametrize(
    ("hint", "default"),
    [(tuple[list[int], ...], ([],)), (dict[str, list[int]], collections.defaultdict(list, a=[]))],
)
def test_objects_inside_a_default_are_never_shared_between_calls(hint, default):
    def handler(it=default):
        pass

    handler.__annotations__["it"] = hint
    found = signature_of(handler)
    found.decode(None).it["a" if isinstance(default, dict) else 0].append(1)
    assert found.decode(None).it == default
    assert str(default).count("1") == 0


def test_an_omitted_argument_is_the_functions_own_default():
    shared = [1]

    def handler(
        a: list[int] = shared,
        b: Point = Point(1),  # noqa: B008 - the default is what is tested
        c: pathlib.Path = pathlib.Path("/x"),
        d: Any = Unknown,
        e: int | None = None,
    ):
        return a, b, c, d, e

    assert called(handler, {}) == (shared, Point(1), pathlib.Path("/x"), Unknown, None)
    properties = signature_of(handler).schema["properties"]
    assert [properties[name].get("default", "unsaid") for name in "abcde"] == [
        [1],
        {"x": 1, "y": 0},
        "/x",
        "unsaid",
        None,
    ]


def test_a_change_of_a_default_does_not_outlive_the_call():
    def handler(
        names: list[str] = [],  # noqa: B006 - the default is what is tested
        trip: Trip = Trip([]),  # noqa: B008 - the same
        sentinel: Any = Unknown,
    ):
        names.append("Oslo")
        trip.stops.append(Point(1))
        return names, trip, sentinel

    assert called(handler, {}) == called(handler, {}) == (["Oslo"], Trip([Point(1)]), Unknown)


class Weather:
    def method(self, city: str):
        """A method."""
        return city

    def odd(self, /, city: str):
        return city

    @classmethod
    def of_class(cls, city: str):
        return city

    @staticmethod
    def static(city: str):
        return city

    def __call__(self, city: str):
        """A callable."""
        return city


def decorated(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


@decorated
def plain(city: str):
    return city


def two(city: str, days: int):
    return city, days


@pytest.mark.parametrize(
    "handler",
    [
        Weather().method,
        Weather().odd,
        Weather.of_class,
        Weather.static,
        Weather(),
        plain,
        decorated(Weather().method),
        functools.partial(plain),
        lambda city: city,
    ],
)
def test_methods_callables_and_decorated_functions_are_handlers(handler):
    assert called(handler, {"city": "Oslo"}) == "Oslo"
    assert list(signature_of(handler).parameters) == ["city"]


def test_the_arguments_bound_by_a_partial_are_hidden_or_defaults():
    assert called(functools.partial(two, "Oslo"), {"days": 2}) == ("Oslo", 2)
    assert called(functools.partial(two, days=5), {"city": "Oslo"}) == ("Oslo", 5)


def test_the_docstring_is_that_of_the_function_behind():
    assert signature_of(Weather().method).docstring.description == "A method."
    assert signature_of(Weather()).docstring.description == "A callable."


def args(*cities: str): ...
def kwargs(**cities: str): ...
def positional(city: str, /): ...


@pytest.mark.parametrize(
    ("handler", "text"),
    [
        (args, "args: parameter 'cities' takes any number of values"),
        (kwargs, "kwargs: parameter 'cities' takes any names"),
        (positional, "positional: parameter 'city' is positional-only"),
        (functools.partial(args, "x"), "args: parameter 'cities' takes any number"),
        (print, "is not a Python function"),
        (Weather, "is not a Python function"),
        (3, "is not a Python function"),
    ],
)
def test_parameters_without_names_are_rejected_at_registration(handler, text):
    with pytest.raises(TypeError, match=text):
        signature_of(handler)


@pytest.mark.parametrize(
    ("hint", "text"),
    [
        (
            "Nowhere",
            "the annotation 'Nowhere' cannot be resolved in module .*: name 'Nowhere' is not defined",
        ),
        ("list[", "the annotation 'list\\[' cannot be resolved"),
        (Unknown, "the type <class '.*Unknown'> has no JSON form"),
        (list[complex], "the type <class 'complex'> has no JSON form"),
        (Iterator[int], "the type <class '.*Iterator'> has no JSON form"),
        (Holds, "the type <class '.*Unknown'> has no JSON form"),
    ],
)
def test_an_annotation_that_cannot_work_names_function_and_parameter(hint, text):
    def handler(good: int, bad):
        pass

    handler.__annotations__["bad"] = hint
    registered = signature_of(handler)
    with pytest.raises(TypeError, match=f"handler: parameter 'bad': {text}"):
        registered.schema  # noqa: B018


def test_decoding_is_strict():
    def handler(a: int = 0, b: bool = False, c: str = "", d: float = 0.0):
        return d

    assert lines_of(handler, {"a": 1.5, "b": 1, "c": 2, "d": "0.5"}) == [
        "a: expected int, got float",
        "b: expected bool, got int",
        "c: expected str, got int",
        "d: expected float, got str",
    ]
    assert called(handler, {"d": 1}) == 1.0


def test_constraints_of_the_annotation_are_enforced():
    assert lines_of(forecast, {"city": "Oslo", "days": 11}) == ["days: expected int <= 10"]


def test_text_values_are_read_as_their_types():
    def handler(city: str, days: int = 1, exact: bool = False, where: pathlib.Path | None = None):
        return city, days, exact, where

    found = signature_of(handler)
    arguments = found.decode_text({"city": "7", "days": "3", "exact": "true", "where": "/a"})
    assert handler(**found.bind(arguments, None)) == ("7", 3, True, pathlib.Path("/a"))
    with pytest.raises(ArgumentsError) as caught:
        found.decode_text({"days": "x", "town": "Oslo"})
    assert caught.value.lines == [
        "city: missing",
        "days: expected int, got str",
        "town: unknown argument",
    ]


def test_bound_values_are_the_decoded_objects_and_not_copies():
    found = signature_of(lambda trip: trip)
    arguments = found.decode(b'{"trip":{"stops":[]}}')
    assert found.bind(arguments, None)["trip"] is arguments.trip


def test_registering_builds_nothing():
    def handler(a: "Nowhere", b: "list["):  # noqa: F821, F722
        pass

    assert signature_of(handler).context_type is Context


@pytest.mark.real_time
def test_registering_costs_next_to_nothing():
    assert min(timeit.repeat(lambda: signature_of(forecast), number=100, repeat=5)) / 100 < 50e-6


def test_reading_arguments_loads_nothing_new():
    code = """
import pathlib, sys
from mcp_trio._server.signatures import Signature
known = {*sys.modules}
def handler(a: int | pathlib.Path, b: pathlib.Path = pathlib.Path("x")): pass
found = Signature(handler=handler, context_type=Signature)
found.schema, found.decode(b'{"a":1,"b":"y"}')
assert {*sys.modules} == known, {*sys.modules} - known
"""
    subprocess.run([sys.executable, "-c", code], check=True)
