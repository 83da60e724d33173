"""Print, as JSON, the schemas that one implementation generates for many annotations.

`python tools/interop/schema_shapes.py ours | sdk-1 | sdk-2 | pydantic`, with a Python that has the
implementation. For each annotation a tool takes one argument of it and returns it.
"""

import asyncio
import collections.abc
import dataclasses
import datetime as dt
import decimal
import enum
import json
import pathlib
import sys
import typing
import uuid
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Generic, Literal, NamedTuple, NotRequired, TypeVar

from pydantic import BaseModel, Field, TypeAdapter
from typing_extensions import TypedDict

T = TypeVar("T")
REQUIRED = object()


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 2
    HIGH = 1


class Word(enum.StrEnum):
    ON = "on"
    OFF = "off"


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


class Filter(TypedDict):
    text: str
    limit: NotRequired[int]


class Pair(NamedTuple):
    left: int
    right: str = ""


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


@dataclasses.dataclass
class Tree:
    name: str
    children: "list[Tree]" = dataclasses.field(default_factory=list)


class Model(BaseModel):
    name: str
    point: Point
    size: int = Field(default=1, ge=1)


class Page(BaseModel, Generic[T]):
    items: list[T]


def _third_party() -> dict[str, Any]:
    """Return shapes of libraries that an SDK need not have."""
    shapes: dict[str, Any] = {}
    try:
        import attrs

        shapes["attrs class"] = attrs.make_class("Boat", {"name": attrs.field(type=str)})
    except ImportError:
        pass
    try:
        import msgspec

        shapes["msgspec.Struct"] = msgspec.defstruct("Ship", [("name", str)])
    except ImportError:
        pass
    return shapes


SHAPES: Mapping[str, Any] = {
    "int": int,
    "float": float,
    "str": str,
    "bool": bool,
    "None": None,
    "Any": Any,
    "int | None": int | None,
    "Optional[str]": typing.Optional[str],  # noqa: UP045 - the annotation is the subject
    "int | str": int | str,
    "int | str | None": int | str | None,
    "list": list,
    "list[int]": list[int],
    "list[list[str]]": list[list[str]],
    "Sequence[int]": collections.abc.Sequence[int],
    "tuple[int, str]": tuple[int, str],
    "tuple[int, ...]": tuple[int, ...],
    "set[str]": set[str],
    "frozenset[int]": frozenset[int],
    "dict": dict,
    "dict[str, int]": dict[str, int],
    "dict[str, Any]": dict[str, Any],
    "dict[int, str]": dict[int, str],
    "Literal of str": Literal["b", "a"],
    "Literal of one": Literal["b"],
    "Literal of int": Literal[2, 1],
    "Literal of both": Literal["b", 1],
    "Literal | None": Literal["b", "a"] | None,
    "Enum": Colour,
    "IntEnum": Level,
    "StrEnum": Word,
    "Flag": Rights,
    "list[Enum]": list[Colour],
    "datetime": dt.datetime,
    "date": dt.date,
    "time": dt.time,
    "timedelta": dt.timedelta,
    "UUID": uuid.UUID,
    "Decimal": decimal.Decimal,
    "bytes": bytes,
    "Path": pathlib.Path,
    "TypedDict": Filter,
    "NamedTuple": Pair,
    "dataclass": Point,
    "dataclass, recursive": Tree,
    "dataclass | None": Point | None,
    "pydantic model": Model,
    "pydantic model, generic": Page[int],
    "pydantic Field": Annotated[int, Field(ge=1, le=9, description="How many.")],
    "str with a pattern": Annotated[str, Field(pattern="^a+$", max_length=9)],
    "list[dataclass]": list[Point],
    **_third_party(),
}
DEFAULTS: Mapping[str, Any] = {
    "int": 3,
    "int | None": None,
    "Enum": Colour.BLUE,
    "Literal of str": "a",
    "dataclass": Point(1),
    "list[int]": [1, 2],
}


def tool(hint: Any, default: Any) -> Callable[..., Any]:
    """Return a function that takes one value of a type and returns it."""

    def shape(value: Any) -> Any:
        return value

    shape.__annotations__ = {"value": hint, "return": hint}
    if default is not REQUIRED:
        shape.__defaults__ = (default,)
    return shape


def tools() -> dict[str, Callable[..., Any]]:
    plain = {name: tool(hint, REQUIRED) for name, hint in SHAPES.items()}
    return plain | {
        f"{name} = {default!r}": tool(SHAPES[name], default) for name, default in DEFAULTS.items()
    }


def of_pydantic(function: Callable[..., Any]) -> Any:
    hint = function.__annotations__["value"]
    return {"input": TypeAdapter(hint).json_schema(), "output": None}


def of_ours(function: Callable[..., Any]) -> Any:
    from mcp_trio import Server

    server = Server("shapes")
    server.tool(name="shape")(function)
    import trio

    from mcp_trio import Client

    async def listed() -> Any:
        async with Client(server, protocol_versions=["2025-11-25"]) as client:
            (found,) = await client.list_tools()
        return {"input": found.input_schema, "output": found.output_schema or None}

    return trio.run(listed)


def of_sdk_1(function: Callable[..., Any]) -> Any:
    from mcp.server.fastmcp import FastMCP

    server = FastMCP("shapes")
    server.tool(name="shape")(function)
    (found,) = asyncio.run(server.list_tools())
    return {"input": found.inputSchema, "output": found.outputSchema}


def of_sdk_2(function: Callable[..., Any]) -> Any:
    from mcp.server import MCPServer

    server = MCPServer("shapes")
    server.tool(name="shape")(function)
    (found,) = asyncio.run(server.list_tools())
    return {"input": found.input_schema, "output": found.output_schema}


BY_NAME = {"ours": of_ours, "sdk-1": of_sdk_1, "sdk-2": of_sdk_2, "pydantic": of_pydantic}

if __name__ == "__main__":
    found: dict[str, Any] = {}
    for name, function in tools().items():
        try:
            found[name] = BY_NAME[sys.argv[1]](function)
        except Exception as error:
            found[name] = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:100]}
    print(json.dumps(found))
