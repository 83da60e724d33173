import dataclasses
import datetime as dt
import decimal
import json
import pathlib
from typing import Annotated, Any, Literal, Optional, TypedDict

import annotated_types as at
import attrs
import msgspec
import pytest

from mcp_trio import Server
from mcp_trio._server import validation_errors as mistakes
from mcp_trio._server.type_adapters import TypeReader, convert, json_schema

Meta = msgspec.Meta
readable = TypeReader().readable


@pytest.mark.parametrize(
    ("hint", "translated"),
    [
        (Annotated[int, at.Ge(1)], Annotated[int, Meta(ge=1)]),
        (Annotated[int, at.Gt(1)], Annotated[int, Meta(gt=1)]),
        (Annotated[float, at.Le(1.5)], Annotated[float, Meta(le=1.5)]),
        (Annotated[float, at.Lt(1.5)], Annotated[float, Meta(lt=1.5)]),
        (Annotated[int, at.MultipleOf(5)], Annotated[int, Meta(multiple_of=5)]),
        (Annotated[str, at.MinLen(1)], Annotated[str, Meta(min_length=1)]),
        (Annotated[str, at.MaxLen(2)], Annotated[str, Meta(max_length=2)]),
        (Annotated[str, at.Len(1, 2)], Annotated[str, Meta(min_length=1, max_length=2)]),
        (Annotated[int, at.Interval(gt=1, le=5)], Annotated[int, Meta(gt=1, le=5)]),
        (Annotated[int, at.Ge(1), at.Le(5)], Annotated[int, Meta(ge=1, le=5)]),
        (Annotated[int, at.doc("How many.")], Annotated[int, Meta(description="How many.")]),
        (Annotated[int, at.Ge(1), Meta(title="t")], Annotated[int, Meta(title="t"), Meta(ge=1)]),
        (Annotated[int, "a note"], Annotated[int, "a note"]),
        (Annotated[int | None, at.Ge(1)], Annotated[int, Meta(ge=1)] | None),
        (
            Annotated[dt.datetime, at.Timezone(...)],
            Annotated[dt.datetime, Meta(tz=True)],
        ),
        (list[Annotated[int, at.Ge(1)]], list[Annotated[int, Meta(ge=1)]]),
        (dict[str, Annotated[int, at.Ge(1)]], dict[str, Annotated[int, Meta(ge=1)]]),
        (tuple[Annotated[int, at.Ge(1)], ...], tuple[Annotated[int, Meta(ge=1)], ...]),
        (Annotated[int, at.Ge(1)] | None, Annotated[int, Meta(ge=1)] | None),
        (Optional[Annotated[int, at.Ge(1)]], Annotated[int, Meta(ge=1)] | None),  # noqa: UP045
        (
            Annotated[list[Annotated[str, at.MinLen(1)]], at.MaxLen(3)],
            Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(max_length=3)],
        ),
    ],
)
def test_a_constraint_becomes_the_meta_of_msgspec(hint, translated):
    assert readable(hint) == translated


@pytest.mark.parametrize(
    "hint", [int, None, Any, Literal["a", 1], list, list[int], int | str, tuple[()], dt.date]
)
def test_what_has_no_constraint_stays_itself(hint):
    assert readable(hint) is hint


@pytest.mark.parametrize(
    ("hint", "good", "bad", "line"),
    [
        (Annotated[decimal.Decimal, at.Gt(0)], "0.1", "0", "expected Decimal > 0"),
        (Annotated[decimal.Decimal, at.Lt(decimal.Decimal(2))], "1.9", "2", "expected Decimal < 2"),
        (
            Annotated[dt.date, at.Ge(dt.date(2024, 1, 1))],
            "2024-01-01",
            "2023-12-31",
            "expected date >= 2024-01-01",
        ),
        (
            Annotated[dt.time, at.Le(dt.time(12))],
            "12:00:00",
            "12:00:01",
            "expected time <= 12:00:00",
        ),
        (
            Annotated[decimal.Decimal, at.MultipleOf(5)],
            "15",
            "16",
            "expected Decimal that's a multiple of 5",
        ),
        (Annotated[str, at.Ge("b")], "b", "a", "expected str >= b"),
        (Annotated[str, at.Predicate(str.islower)], "a", "A", "expected str that islower accepts"),
        (at.LowerCase[str], "a", "A", "expected str that islower accepts"),
        (Annotated[int, at.Predicate(lambda n: n != 3)], 2, 3, "expected another int"),
        (Annotated[float, at.Ge(1), at.Predicate(lambda n: n != 3)], 2, 0, "expected float >= 1.0"),
        (
            Annotated[pathlib.Path, at.Predicate(pathlib.Path.is_absolute)],
            "/a",
            "a",
            "expected Path that is_absolute accepts",
        ),
        (
            Annotated[dt.datetime, at.Timezone(...)],
            "2024-01-01T00:00:00Z",
            "2024-01-01T00:00:00",
            "expected datetime with a timezone component",
        ),
        (
            Annotated[dt.datetime, at.Timezone(None)],
            "2024-01-01T00:00:00",
            "2024-01-01T00:00:00Z",
            "expected datetime with no timezone component",
        ),
    ],
)
def test_what_msgspec_cannot_say_is_checked_after_it(hint, good, bad, line):
    assert convert(good, readable(hint)) is not ...
    with pytest.raises(msgspec.ValidationError) as caught:
        convert([bad], readable(list[hint]))
    assert mistakes.line(caught.value) == f"[0]: {line}"


@pytest.mark.parametrize(
    "hint",
    [
        Annotated[str, at.Timezone("UTC")],
        Annotated[int, at.Unit("m")],
        Annotated[str, at.Ge(1)],
        Annotated[dt.date, at.Gt(1)],
        Annotated[int, at.MinLen(1)],
        Annotated[pathlib.Path, at.MaxLen(1)],
        Annotated[Any, at.Ge(1)],
    ],
)
def test_a_constraint_that_nobody_could_check_is_rejected(hint):
    with pytest.raises(TypeError, match=r"the constraint .* (is not supported|does not fit \w+)$"):
        readable(hint)


Positive = Annotated[int, at.Gt(0)]


@attrs.define
class Attrs:
    depth: Positive


@dataclasses.dataclass
class Data:
    depth: Annotated[Positive, at.Le(9)]


class Struct(msgspec.Struct):
    depth: Positive | None = None


class Typed(TypedDict):
    depth: Positive


@attrs.define
class Outer:
    depth: "list[Data]"


@pytest.mark.parametrize("kind", [Attrs, Data, Struct, Typed])
def test_a_constraint_at_a_field_of_a_class_is_checked_and_in_the_schema(kind):
    schema = json_schema(readable(list[kind]))
    assert schema["items"] == {"$ref": f"#/$defs/{kind.__name__}"}
    (definition,) = schema["$defs"].values()
    assert "'exclusiveMinimum': 0" in str(definition["properties"]["depth"])
    (built,) = convert([{"depth": 1}], readable(list[kind]))
    assert isinstance(built, dict if kind is Typed else kind)
    with pytest.raises(
        msgspec.ValidationError, match=r"Expected `int` >= 1 - at `\$.depth` - at `\$\[0\]`"
    ):
        convert([{"depth": 0}], readable(list[kind]))


def test_a_constraint_is_found_at_any_depth_of_classes():
    assert convert({"depth": [{"depth": 9}]}, readable(Outer)) == Outer([Data(9)])
    with pytest.raises(msgspec.ValidationError):
        convert({"depth": [{"depth": 10}]}, readable(Outer))


@attrs.define
class Tree:
    branches: "list[Tree]"
    leaves: Annotated[int, Meta(ge=0)] = 0


def test_a_class_that_msgspec_can_read_stays_itself():
    assert readable(Tree) is Tree


async def test_constraints_show_in_the_schema_and_are_checked(serve):
    server = Server("harbour")

    @server.tool
    async def sail(
        days: Annotated[int, at.Interval(ge=1, le=14)],
        ports: Annotated[list[Annotated[str, at.MinLen(2)]], at.MaxLen(2)] = (),
    ) -> str:
        """Go.

        Args:
            days: How long.
        """
        return "gone"

    asker = await serve(server)
    (tool,) = (await asker.result("tools/list"))["tools"]
    assert tool["inputSchema"]["properties"] == {
        "days": {"type": "integer", "minimum": 1, "maximum": 14, "description": "How long."},
        "ports": {
            "type": "array",
            "items": {"type": "string", "minLength": 2},
            "maxItems": 2,
            "default": [],
        },
    }
    assert await asker.call("sail", days=14, ports=["Oslo"]) == "gone"
    arguments = {"days": 15, "ports": ["Oslo", "A"]}
    error = await asker.error("tools/call", {"name": "sail", "arguments": arguments})
    assert error["message"].splitlines() == [
        "invalid arguments: days: expected int <= 14",
        "ports[1]: expected str of length >= 2",
    ]


async def test_a_constraint_that_is_rejected_names_function_and_parameter(serve, caplog):
    server = Server("harbour")

    @server.tool
    async def sail(port: Annotated[str, at.Ge(1)]) -> str:
        pass

    asker = await serve(server)
    assert (await asker.error("tools/list"))["code"] == -32603
    assert "sail: parameter 'port': the constraint Ge(ge=1) does not fit str" in caplog.text
    assert json.dumps(await asker.result("ping")) == "{}"
