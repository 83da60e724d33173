import dataclasses
import datetime as dt
import json
from typing import Annotated, Any, Literal, NamedTuple, Optional, TypedDict

import annotated_types as at
import attrs
import msgspec
import pytest

from mcp_trio import Server
from mcp_trio._server.constraints import with_meta

Meta = msgspec.Meta


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
    assert with_meta(hint) == translated


@pytest.mark.parametrize(
    "hint", [int, None, Any, Literal["a", 1], list, list[int], int | str, tuple[()], dt.date]
)
def test_what_has_no_constraint_stays_itself(hint):
    assert with_meta(hint) is hint


@pytest.mark.parametrize("constraint", [at.Predicate(str.islower), at.Timezone(None), at.Unit("m")])
def test_a_constraint_that_nobody_would_check_is_refused(constraint):
    with pytest.raises(TypeError, match="is not supported"):
        with_meta(Annotated[str, constraint])


def test_a_value_that_msgspec_does_not_take_is_refused():
    with pytest.raises(TypeError):
        with_meta(Annotated[dt.date, at.Ge(dt.date(2024, 11, 5))])


Positive = Annotated[int, at.Gt(0)]


@attrs.define
class Attrs:
    depth: Positive


@dataclasses.dataclass
class Data:
    depths: list[Positive]


class Struct(msgspec.Struct):
    depth: Positive | None = None


class Typed(TypedDict):
    depth: Positive


class Named(NamedTuple):
    depth: Positive


@attrs.define
class Outer:
    inner: "list[Data]"


@pytest.mark.parametrize("kind", [Attrs, Data, Struct, Typed, Named, Outer])
@pytest.mark.parametrize("wrap", [lambda kind: kind, lambda kind: list[kind]])
def test_a_constraint_at_a_field_of_a_class_is_refused_by_name(kind, wrap):
    with pytest.raises(TypeError, match=r"\.depths?: constrain the fields of classes by msgspec"):
        with_meta(wrap(kind))


@attrs.define
class Tree:
    branches: "list[Tree]"
    leaves: Annotated[int, Meta(ge=0)] = 0


def test_a_class_may_hold_itself():
    assert with_meta(Tree) is Tree


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


async def test_a_constraint_that_is_refused_names_function_and_parameter(serve, caplog):
    server = Server("harbour")

    @server.tool
    async def sail(port: at.LowerCase[str]) -> str:
        pass

    asker = await serve(server)
    assert (await asker.error("tools/list"))["code"] == -32603
    assert "sail: parameter 'port': the constraint Predicate(str.islower) is not" in caplog.text
    assert json.dumps(await asker.result("ping")) == "{}"
