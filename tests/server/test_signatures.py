"""Signatures of handlers: schemas, decoding, docstrings and error texts."""

import collections
import dataclasses
import enum
import functools
import inspect
import json
import math
import operator
import pathlib
import subprocess
import sys
import timeit
import typing
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

import annotated_types as at
import attrs
import cattrs
import jsonschema
import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from mcp_trio import Limits
from mcp_trio._server.introspection import name_of
from mcp_trio._server.signatures import ArgumentsError, parse_docstring
from mcp_trio.limits import MessageLimits
from tests.server.conftest import Context, lines, lines_of, signature, signature_of


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
        "$defs": {"Colour": {"enum": ["red"], "type": "string"}},
    }
    assert signature_of(forecast).docstring.description == "Tell the weather."


@pytest.mark.requirement("TOOL-05")
def test_plain_parameters_have_descriptions_and_defaults_in_the_schema():
    def handler(city: str, days: int = 3, *, names: list[str]):
        """Tell the weather.

        Args:
            city: Where.
        """

    assert signature_of(handler).schema == {
        "type": "object",
        "properties": {
            "city": {"description": "Where.", "type": "string"},
            "days": {"type": "integer", "default": 3},
            "names": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["city", "names"],
        "additionalProperties": False,
    }


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


def test_a_parameter_called_ctx_without_an_annotation_is_the_context():
    def handler(a: int, ctx):
        return ctx

    assert called(handler, {"a": 1}) == "the context"


def test_a_parameter_called_ctx_is_an_argument_beside_an_annotated_context():
    def handler(ctx, here: Context):
        return ctx

    assert called(handler, {"ctx": 1}) == 1


def test_a_second_context_is_rejected():
    def handler(a: Context, b: Context):
        pass

    with pytest.raises(TypeError, match="parameter 'b' is a second context"):
        signature_of(handler).parameters  # noqa: B018


def test_a_context_of_another_kind_of_handler_is_rejected():
    def handler(ctx: OwnContext | None):
        pass

    found = signature_of(handler, foreign_context_types=(OwnContext,))
    with pytest.raises(
        TypeError, match="parameter 'ctx' has to be a Context: only a `def` handler"
    ):
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


def test_infinity_and_nan_are_neither_defaults_nor_bounds_in_the_schema():
    @dataclasses.dataclass
    class Wait:
        seconds: float = math.inf

    class Pause(pydantic.BaseModel):
        seconds: float = math.inf

    def handler(
        wait: Wait,
        pause: Pause,
        seconds: Annotated[float, at.Interval(ge=0, lt=math.inf)] = math.inf,
        share: float = math.nan,
        waits: list[Wait] = [Wait()],  # noqa: B006, B008 - the default is what is tested
    ):
        return wait.seconds, pause.seconds, seconds

    assert called(handler, {"wait": {}, "pause": {}}) == (math.inf, math.inf, math.inf)
    schema = signature_of(handler).schema
    number = {"type": "number"}
    assert schema["properties"] == {
        "wait": {"$ref": "#/$defs/Wait"},
        "pause": {"$ref": "#/$defs/Pause"},
        "seconds": number | {"minimum": 0},
        "share": number,
        "waits": {"type": "array", "items": {"$ref": "#/$defs/Wait"}},
    }
    assert [it["properties"] for it in schema["$defs"].values()] == [{"seconds": number}] * 2


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


def test_the_docstring_is_that_of_the_wrapped_function():
    assert signature_of(Weather().method).docstring.description == "A method."
    assert signature_of(Weather()).docstring.description == "A callable."


def args(*cities: str): ...
def kwargs(**cities: str): ...
def positional(city: str, /): ...


@pytest.mark.parametrize(
    ("handler", "text"),
    [
        (args, "args.. at .*: parameter 'cities' takes any number of values"),
        (kwargs, "kwargs.. at .*: parameter 'cities' takes any names"),
        (positional, "positional.. at .*: parameter 'city' is positional-only"),
        (functools.partial(args, "x"), "args.. at .*: parameter 'cities' takes any number"),
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
    with pytest.raises(
        TypeError, match=rf"handler\(\) at test_signatures.py:\d+: parameter 'bad': {text}"
    ):
        registered.schema  # noqa: B018


def test_arguments_of_another_type_are_rejected_and_not_converted():
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


def test_lists_and_objects_are_read_from_json_text():
    def handler(text: str, days: list[int] = [], ports: dict[str, bool] | None = None):  # noqa: B006
        return text, days, ports

    found = signature_of(handler)
    arguments = found.decode_text({"text": "[1]", "days": "\n [1, 2]", "ports": '{"Oslo": true}'})
    assert handler(**found.bind(arguments, None)) == ("[1]", [1, 2], {"Oslo": True})
    with pytest.raises(ArgumentsError) as caught:
        found.decode_text({"text": "a", "days": '["x"]', "ports": "{"})
    assert caught.value.lines == [
        "days[0]: expected int, got str",
        "ports: expected object | null, got str",
    ]


def test_bound_values_are_the_decoded_objects_and_not_copies():
    found = signature_of(lambda trip: trip)
    arguments = found.decode(b'{"trip":{"stops":[]}}')
    assert found.bind(arguments, None)["trip"] is arguments.trip


def test_registering_does_not_resolve_annotations():
    def handler(a: "Nowhere", b: "list["):  # noqa: F821, F722
        pass

    assert signature_of(handler).context_types == (Context,)


@pytest.mark.real_time
def test_registering_costs_next_to_nothing():
    assert min(timeit.repeat(lambda: signature_of(forecast), number=100, repeat=5)) / 100 < 50e-6


def test_decoding_arguments_imports_no_module():
    code = """
import pathlib, sys
from mcp_trio._server.signatures import Signature
known = {*sys.modules}
def handler(a: int | pathlib.Path, b: pathlib.Path = pathlib.Path("x")): pass
found = Signature(handler=handler, context_types=(Signature,))
found.schema, found.decode(b'{"a":1,"b":"y"}')
assert {*sys.modules} == known, {*sys.modules} - known
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_prose_before_the_first_section_is_the_description():
    found = parse_docstring(
        """Tell the weather.

        It may rain: bring
        a coat.

        Args:
            city: Where.

        Returns:
            days: not a parameter.
        """
    )
    assert found.description == "Tell the weather.\n\nIt may rain: bring\na coat."
    assert found.parameters == {"city": "Where."}


def test_parameters_may_have_types_several_lines_and_nested_text():
    found = parse_docstring(
        """Short.

        Args:
            city (str): Where to look,
                for instance: Oslo.
            days (dict[str, tuple(int)], optional): How many.

                - one
                - two
            ctx:
                The context.
        Keyword Args:
            units : Metric or not.
        """
    )
    assert found.parameters == {
        "city": "Where to look, for instance: Oslo.",
        "days": "How many. - one - two",
        "ctx": "The context.",
        "units": "Metric or not.",
    }


@pytest.mark.parametrize(
    "section",
    [
        "Args:\n    a: One.\n",
        "Parameters\n----------\na : int\n    One.\n",
        ":param a: One.\n",
    ],
)
def test_text_after_a_section_belongs_to_the_description(section):
    found = parse_docstring(f"Short.\n\n{section}\nAnd b: more words.\nThe end.")
    assert found.description == "Short.\n\nAnd b: more words.\nThe end."
    assert found.parameters == {"a": "One."}


def test_numpy_sections_are_underlined():
    found = parse_docstring(
        """Tell the weather.

        A title
        -------
        is prose.

        Parameters
        ----------
        city : str
            Where to look,
            for instance: Oslo.

            - one
        days, hours : int, optional
            How many.
        units
            Metric or not.
        ctx: Context

        Other Parameters
        ----------------
        exact : {True, False}
            Exactly.

        Returns
        -------
        text : str
            not a parameter.

        Raises
        ------
        ValueError
            never.
        """
    )
    assert found.description == "Tell the weather.\n\nA title\n-------\nis prose."
    assert found.parameters == {
        "city": "Where to look, for instance: Oslo. - one",
        "days": "How many.",
        "hours": "How many.",
        "units": "Metric or not.",
        "ctx": "",
        "exact": "Exactly.",
    }


PLAIN = st.recursive(
    st.sampled_from([int, str, float, bool, type(None)]),
    lambda inner: (
        inner.map(lambda hint: list[hint])
        | inner.map(lambda hint: dict[str, hint])
        | st.lists(inner, min_size=2, max_size=3).map(
            lambda hints: functools.reduce(operator.or_, hints)
        )
    ),
    max_leaves=5,
)


@given(st.lists(st.tuples(PLAIN, st.booleans(), st.booleans()), max_size=3))
def test_types_of_json_itself_have_the_schema_that_they_have_among_others(parameters):
    """A converter, which could have a hook for each, makes the signature look into them."""

    def handler(**given):
        pass

    names = [f"p{number}" for number in range(len(parameters))]
    handler.__annotations__ = {
        name: hint for name, (hint, *_) in zip(names, parameters, strict=True)
    }
    handler.__signature__ = inspect.Signature(
        [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=hint,
                default=None if has_default else inspect.Parameter.empty,
            )
            for name, (hint, has_default, _) in zip(names, parameters, strict=True)
        ]
    )
    described = [name for name, (*_, it) in zip(names, parameters, strict=True) if it]
    handler.__doc__ = "Do it.\n\nArgs:\n" + "".join(
        f"    {name}: The {name}.\n" for name in described
    )
    schemas = []
    for converter in (None, cattrs.Converter()):
        # `int | str` equals `str | int`, so `Annotated` returns the one that it has met first.
        for forget in typing._cleanups:
            forget()
        try:
            schemas.append(json.dumps(signature_of(handler, converter=converter).schema))
        except TypeError as error:
            schemas.append(str(error))
    assert schemas[0] == schemas[1]


def test_sphinx_fields_begin_with_colons():
    found = parse_docstring(
        """Tell the weather.

        :param city: Where to look,
            for instance: Oslo.
        :param int days: How many.
        :param dict[str, int] counts : Which.
        :type city: str
        :keyword exact:
            Exactly.
        :returns: The text.
        :rtype: str
        :raises ValueError: never
        """
    )
    assert found.description == "Tell the weather."
    assert found.parameters == {
        "city": "Where to look, for instance: Oslo.",
        "days": "How many.",
        "counts": "Which.",
        "exact": "Exactly.",
    }


def test_a_docstring_without_parameters_loses_its_sections_in_every_style():
    for section in ("Returns:\n    The text.", "Returns\n-------\nstr\n    The.", ":returns: The."):
        assert parse_docstring(f"Short.\n\n{section}").description == "Short."


@pytest.mark.parametrize(
    "text",
    ["Note: words", ":smile: at me", "----", "a\n---\nb", "Args: none", "x : int\n    no section"],
)
def test_text_that_only_resembles_a_section_is_prose(text):
    found = parse_docstring(f"Short.\n\n{text}")
    assert (found.description, found.parameters) == (f"Short.\n\n{text}", {})


def test_empty_and_odd_docstrings_give_what_they_have():
    assert parse_docstring("").description == ""
    assert parse_docstring("\n  Args:\n      a: One.\n").parameters == {"a": "One."}
    assert parse_docstring("Short.\n\nArgs:\n").parameters == {}
    assert parse_docstring("Short.\n\nArgs:\n\nmore").description == "Short.\n\nmore"
    unread = parse_docstring("Short.\n\nArgs:\n    no colon here")
    assert (unread.description, unread.parameters) == ("Short.\n\nno colon here", {})


WORDS = st.lists(st.from_regex(r"\A[a-z]{2,6}\Z"), min_size=2, max_size=4).map(" ".join)
TEXTS = st.dictionaries(st.from_regex(r"\A[a-z]{1,5}\Z"), WORDS, min_size=1, max_size=3)
WRITERS = {
    "Google": lambda texts: "Args:\n" + "".join(f"    {k} (int): {v}\n" for k, v in texts.items()),
    "NumPy": lambda texts: (
        "Parameters\n----------\n" + "".join(f"{k} : int\n    {v}\n" for k, v in texts.items())
    ),
    "Sphinx": lambda texts: "".join(f":param int {k}: {v}\n" for k, v in texts.items()),
}


@pytest.mark.slow
@given(st.sampled_from([*WRITERS.values()]), st.lists(WORDS, min_size=2, max_size=2), TEXTS)
def test_each_style_gives_back_all_that_was_written(write, prose, texts):
    before, after = prose
    found = parse_docstring(f"{before}\n\n{write(texts)}\n{after}\n")
    assert found.parameters == texts
    assert found.description == f"{before}\n\n{after}"


LINES = st.sampled_from(
    [
        "Args:",
        "Parameters",
        "---",
        "----------",
        ":param x: y",
        ":param",
        "x : int",
        "    x: y",
        "",
        "  z",
        "word",
    ]
)


@given(st.text() | st.lists(LINES).map("\n".join))
def test_no_text_is_too_odd_and_prose_before_all_sections_is_kept(text):
    found = parse_docstring(f"All of this.\n\n{text}")
    assert found.description.startswith("All of this.")
    if not any(mark in text for mark in (":", "---")):
        assert found.description == inspect.cleandoc(f"All of this.\n\n{text}").strip()


@attrs.define
class PointValidationErrors:
    x: int
    y: int = 0


@attrs.define
class TripValidationErrors:
    stops: list[PointValidationErrors]
    home: PointValidationErrors | None = None


class Pair(NamedTuple):
    left: int
    right: PointValidationErrors


class Closed(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    long_name: str
    tide: int = 0


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    lives: int
    legs: int


class Row(msgspec.Struct, array_like=True):
    name: str
    height: int = 0


def test_every_wrong_argument_has_its_own_line():
    def handler(
        city: str,
        days: int,
        ratio: float,
        trip: TripValidationErrors,
        counts: dict[int, int],
        where: pathlib.Path,
        good: int = 1,
    ):
        pass

    wrong = {
        "days": "3",
        "ratio": None,
        "trip": {"stops": [{"x": 1}, {"x": "1"}, {"y": None}], "home": {}},
        "counts": {"a": 1},
        "where": 5,
        "good": 2,
        "cty": "Oslo",
        "a\nb": 1,
    }
    assert lines_of(handler, wrong) == [
        "city: missing",
        "days: expected int, got str",
        "ratio: expected float, got null",
        "trip.stops[1].x: expected int, got str",
        "trip.stops[2].x: missing",
        "trip.stops[2].y: expected int, got null",
        "trip.home.x: missing",
        "key in counts: expected int, got str",
        "where: expected str, got int",
        "cty: unknown argument",
        '["a\\nb"]: unknown argument',
    ]


@pytest.mark.parametrize(
    ("hint", "value", "expected"),
    [
        (Filter, {"exact": 1}, ["it.title: missing", "it.exact: expected bool, got int"]),
        (Pair, ["a", {}], ["it[0]: expected int, got str", "it[1].x: missing"]),
        (Pair, [1], ["it: expected array of length 2, got 1"]),
        (Row, [1, "a"], ["it[0]: expected str, got int", "it[1]: expected int, got str"]),
        (
            Closed,
            {"tide": "low", "tde": 1},
            [
                "it.longName: missing",
                "it.tide: expected int, got str",
                "it.tde: unknown field",
            ],
        ),
        (
            list[int],
            ["a", 1, None],
            ["it[0]: expected int, got str", "it[2]: expected int, got null"],
        ),
        (set[int], ["a"], ["it[0]: expected int, got str"]),
        (
            tuple[int, str],
            ["a", 1],
            ["it[0]: expected int, got str", "it[1]: expected str, got int"],
        ),
        (
            tuple[int, ...],
            ["a", None],
            ["it[0]: expected int, got str", "it[1]: expected int, got null"],
        ),
        (
            dict[str, int],
            {"a": None, "b c": "1", "": []},
            [
                "it.a: expected int, got null",
                'it["b c"]: expected int, got str',
                'it[""]: expected int, got array',
            ],
        ),
        (PointValidationErrors | None, {"y": 1}, ["it.x: missing"]),
        (PointValidationErrors | None, 3, ["it: expected object | null, got int"]),
        (int | str, [], ["it: expected int | str, got array"]),
        (list[int] | int, ["a"], ["it[0]: expected int, got str"]),
        (PointValidationErrors | list[PointValidationErrors], [{}], ["it[0].x: missing"]),
        (Cat | Dog, {"type": "Dog"}, ["it.lives: missing", "it.legs: missing"]),
        (Cat | Dog, {"type": "Cow"}, ["it.type: invalid value 'Cow'"]),
        (Cat | Dog, {"lives": 9}, ["it: object missing required field type"]),
        (Cat, {}, ["it.lives: missing"]),
        (Annotated[list[int], at.MaxLen(1)], [1, 2], ["it: expected array of length <= 1"]),
        (Annotated[list[int], at.MaxLen(1)], [1, "a"], ["it[1]: expected int, got str"]),
        (dict, [], ["it: expected object, got array"]),
        (list, {}, ["it: expected array, got object"]),
        (list[Any], 1, ["it: expected array, got int"]),
    ],
)
def test_each_member_of_a_value_has_its_own_line(hint, value, expected):
    assert lines(hint, value) == expected


@attrs.define
class Valid:
    name: str = attrs.field(validator=attrs.validators.instance_of(int))


@attrs.define
class Short:
    name: str

    def __attrs_post_init__(self):
        if len(self.name) > 3:
            raise ValueError("Far\n too `long`")


def test_the_text_of_the_users_own_errors_is_one_short_line():
    (line,) = lines(Valid, {"name": "x"})
    assert line.startswith("it: 'name' must be <class 'int'>")
    assert "Attribute(" not in line
    assert lines(list[Short], [{"name": "Oslo"}]) == ["it[0]: far too long"]


def test_below_a_depth_limit_one_error_stands_for_all():
    hint, value = dict[str, int], {"a": "x", "b": "y"}
    assert len(lines(hint, value)) == 2
    for _ in range(9):
        hint, value = list[hint], [value]
    assert lines(hint, value) == [f"it{'[0]' * 9}[...]: expected int, got str"]


def test_an_error_after_many_valid_members_is_found_with_its_path():
    assert lines(list[int], [0] * 5000 + ["a", "b"]) == ["it[5000]: expected int, got str"]


def test_a_long_key_is_cut_in_each_of_its_lines():
    value = {"k" * 100_000: dict.fromkeys("abc", "x")}
    found = lines(dict[str, dict[str, int]], value)
    assert len(found) == 3
    assert max(map(len, found)) == Limits().messages.validation_error_chars_max


def test_text_that_looks_like_a_path_is_not_one():
    odd = "- at `$.x` " * 3
    assert lines(Literal["a"], odd) == [f"it: invalid enum value '{odd.replace('`', '')}'"]
    assert lines(Literal["a"], " - at `$.x`" * 9)[0].startswith("it: invalid enum value ' - at")


def test_an_error_is_bounded_in_lines_and_length():
    limits = Limits(messages=MessageLimits(validation_errors_max=2, validation_error_chars_max=20))
    sent = {"a" * 1000: 1, "b": 2, "c": 3, "d": 4}
    assert lines_of(lambda: None, sent, limits=limits) == [
        "a" * 20,
        "b: unknown argument",
        "and 2 more",
    ]
    assert lines_of(lambda: None, {str(n): n for n in range(5000)})[-1] == "and at least 968 more"


@pytest.mark.parametrize(("sent", "got"), [([], "array"), ("x", "str"), (None, "null"), (3, "int")])
def test_arguments_that_are_no_object_are_rejected(sent, got):
    assert lines_of(lambda city: city, sent) == [f"arguments: expected object, got {got}"]


@pytest.mark.parametrize(
    "raw", [b'{"city":"\xff"}', b'{"city":"\\ud800"}', b'{"city":', b'{"\xff":1}']
)
def test_invalid_json_text_is_an_arguments_error(raw):
    with pytest.raises(ArgumentsError):
        signature_of(lambda city: city).decode(raw)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["stops", "home", "x", "y", "it", "é\n"]), inner)
    ),
    max_leaves=12,
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(["it", "n", "a\nb"]), json_values))
def test_rejected_arguments_have_lines_that_each_name_a_path(sent):
    def handler(
        it: TripValidationErrors | list[TripValidationErrors] | int,
        n: dict[str, PointValidationErrors | bool] | None = None,
    ):
        pass

    signature = signature_of(handler)
    found = []
    try:
        signature.decode(json.dumps(sent).encode())
    except ArgumentsError as error:
        found = error.lines
    assert bool(found) == (not Draft202012Validator(signature.schema).is_valid(sent))
    for line in found:
        assert line.isprintable()
        assert line.startswith(("it", "n", '["a\\nb"]', "key in n"))
        assert "`" not in line
        assert "$" not in line


@pytest.mark.parametrize(
    ("default", "expected"),
    [
        (pydantic.Field(default=2, description="Days ahead", ge=1), 2),
        (pydantic.Field(default_factory=lambda: 3, description="Days ahead", ge=1), 3),
    ],
)
def test_a_pydantic_field_as_a_default_has_the_default_and_the_description(default, expected):
    def handler(days: int = default):
        return days

    found = signature_of(handler).schema["properties"]["days"]
    assert (found["description"], found["minimum"]) == ("Days ahead", 1)
    assert called(handler, {}) == expected
    assert lines_of(handler, {"days": 0}) == ["days: should be greater than or equal to 1"]


def test_a_pydantic_field_without_a_default_is_required():
    field: Any = pydantic.Field(description="Days ahead")

    def handler(days: int = field):
        return days

    assert signature_of(handler).schema["required"] == ["days"]
    assert called(handler, {"days": 1}) == 1


# Descriptions in annotations.


@pytest.mark.parametrize(
    ("hint", "description"),
    [
        (int, "From the docstring."),
        (Annotated[int, "A text."], "A text."),
        (Annotated[int, 3, "A text.", "Another."], "A text."),
        (Annotated[int, at.Ge(1), "A text."], "A text."),
        (Annotated[int, "A text.", at.doc("By doc.")], "By doc."),
        (Annotated[int, msgspec.Meta(description="By Meta."), "A text."], "By Meta."),
        (Annotated[int, pydantic.Field(ge=1), "A text."], "A text."),
        (Annotated[int, "A text.", pydantic.Field(description="By Field.")], "By Field."),
        (Annotated[int, pydantic.Field(description="By Field.")], "By Field."),
        (Annotated[int, pydantic.Field(ge=1)], "From the docstring."),
        (Annotated[int | None, "A text."], "A text."),
    ],
)
def test_an_annotation_describes_its_argument_before_the_docstring_does(hint, description):
    def handler(days):
        """Plan.

        Args:
            days: From the docstring.
        """

    handler.__annotations__["days"] = hint
    signature = signature_of(handler)
    assert signature.schema["properties"]["days"]["description"] == description
    assert signature.decode(b'{"days":2}').days == 2


# The schema of every type is valid and accepts exactly the values that can be decoded.


class Letter(enum.Enum):
    RED = "a"
    BLUE = "b"


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


@attrs.define
class Place:
    x: int
    y: Annotated[int, at.Ge(0)] = 0


class Selection(TypedDict):
    x: str
    y: NotRequired[pathlib.Path]


class Couple(NamedTuple):
    left: int
    right: Annotated[str, at.MaxLen(1)] = ""


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    x: int | None = None
    a: "list[Strict]" = []


LEAVES = st.sampled_from(
    [
        Any,
        None,
        bool,
        int,
        str,
        pathlib.Path,
        Letter,
        Rights,
        Place,
        Selection,
        Couple,
        Strict,
        Literal["a", 1],
        Annotated[int, at.Interval(ge=-1, lt=3)],
        Annotated[str, at.Len(1, 2)],
    ]
)


HINTS = st.recursive(
    LEAVES,
    lambda inner: (
        st.builds(lambda hint: list[hint], inner)
        | st.builds(lambda hint: dict[str, hint], inner)
        | st.builds(lambda one, other: tuple[one, other], inner, inner)
        | st.builds(lambda hint: hint | None, inner.filter(lambda hint: hint is not None))
        | st.builds(lambda hint: Annotated[list[hint], at.MaxLen(1)], inner)
        | st.builds(lambda hint: hint | pathlib.Path, inner.filter(lambda hint: hint is not None))
    ),
    max_leaves=3,
)
# No floats without a fraction: JSON Schema takes them as integers, a strict decoder does not.
VALUES = st.recursive(
    st.sampled_from([None, True, False, -2, 0, 1, 3, 4, 0.5, "", "a", "b", "abc"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["x", "y", "a"]), inner)
    ),
    max_leaves=6,
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(HINTS, VALUES)
def test_the_schema_of_every_type_accepts_exactly_what_is_decoded(hint, value):
    found = signature(hint)
    Draft202012Validator.check_schema(found.schema)
    lines = []
    try:
        found.decode(json.dumps({"it": value}).encode())
    except ArgumentsError as error:
        lines = error.lines
    assert Draft202012Validator(found.schema).is_valid({"it": value}) == (not lines)
    assert all(line.startswith(("it", "key in it")) for line in lines)
