"""Tools whose arguments are described by a JSON Schema of people's own."""

import pytest

from mcp_trio import Context, Limits, Server, ThreadContext
from mcp_trio.errors import SchemaError
from mcp_trio.limits import MessageLimits

SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {"port": {"type": "string", "minLength": 2}},
    "properties": {
        "ports": {"type": "array", "items": {"$ref": "#/$defs/port"}},
        "days": {"type": "integer", "maximum": 7},
    },
    "required": ["ports"],
    "additionalProperties": False,
}


async def ignore(given):
    pass


@pytest.fixture
def server():
    made = Server("harbour")

    @made.tool(input_schema=SCHEMA)
    async def sail(trip: dict, ctx: Context) -> dict:
        """Sail along."""
        return {"trip": trip, "method": ctx.method}

    return made


@pytest.mark.requirement("TOOL-05")
async def test_a_given_schema_is_listed_as_it_is(server, serve):
    asker = await serve(server)
    (tool,) = (await asker.result("tools/list"))["tools"]
    assert tool == {"name": "sail", "description": "Sail along.", "inputSchema": SCHEMA}
    assert list(tool["inputSchema"]) == list(SCHEMA)


async def test_arguments_that_fit_arrive_as_one_dict(server, serve):
    asker = await serve(server)
    text = await asker.call("sail", ports=["Oslo"], days=3)
    assert text == '{"trip":{"ports":["Oslo"],"days":3},"method":"tools/call"}'


@pytest.mark.parametrize("declared", ["first", "last", "none"])
async def test_the_context_stands_anywhere(serve, declared):
    server = Server("harbour")
    options = {"input_schema": {"type": "object"}}
    if declared == "first":
        server.tool(name="x", **options)(_context_first)
    elif declared == "last":
        server.tool(name="x", **options)(_context_last)
    else:
        server.tool(name="x", **options)(lambda: "no arguments")
    asker = await serve(server)
    assert await asker.call("x") == {"first": "{}", "last": "{}", "none": "no arguments"}[declared]


def _context_first(ctx: ThreadContext, given):
    return given


async def _context_last(given, *, ctx: Context):
    return given


@pytest.mark.requirement("TOOL-38")
async def test_every_validation_error_has_a_line(server, serve):
    asker = await serve(server)
    arguments = {"ports": ["Oslo", "x", 3], "days": 9, "crew": 2}
    error = await asker.error("tools/call", {"name": "sail", "arguments": arguments})
    assert error["code"] == -32602
    assert error["message"].splitlines() == [
        "invalid arguments: arguments: Additional properties are not allowed ('crew' was unexpected)",
        "days: 9 is greater than the maximum of 7",
        "ports[1]: 'x' is too short",
        "ports[2]: 3 is not of type 'string'",
    ]
    error = await asker.error("tools/call", {"name": "sail"})
    assert error["message"] == "invalid arguments: arguments: 'ports' is a required property"


async def test_an_odd_key_is_quoted_where_it_stands_in_a_path(serve):
    server = Server("harbour")
    schema = {"type": "object", "additionalProperties": {"type": "string"}}
    server.tool(name="x", input_schema=schema)(ignore)
    asker = await serve(server)
    error = await asker.error("tools/call", {"name": "x", "arguments": {"a: b.c": 1}})
    assert error["message"] == "invalid arguments: [\"a: b.c\"]: 1 is not of type 'string'"


async def test_the_number_and_length_of_lines_are_limited(serve):
    server = Server(
        "harbour",
        limits=Limits(
            messages=MessageLimits(validation_errors_max=2, validation_error_chars_max=12)
        ),
    )
    schema = {"type": "object", "additionalProperties": {"type": "string"}}
    server.tool(name="x", input_schema=schema)(ignore)
    asker = await serve(server)
    error = await asker.error("tools/call", {"name": "x", "arguments": {"a": 1, "b": 2, "c": 3}})
    assert error["message"].splitlines() == [
        "invalid arguments: a: 1 is not ",
        "b: 2 is not ",
        "and 1 more",
    ]


async def test_the_number_of_reported_validation_errors_is_limited(serve):
    server = Server(
        "harbour",
        limits=Limits(
            messages=MessageLimits(validation_errors_max=1, validation_error_members_max=3)
        ),
    )
    schema = {"type": "object", "additionalProperties": {"type": "string"}}
    server.tool(name="x", input_schema=schema)(ignore)
    asker = await serve(server)
    arguments = {f"a{number}": number for number in range(10)}
    error = await asker.error("tools/call", {"name": "x", "arguments": arguments})
    assert error["message"].splitlines()[-1] == "and at least 2 more"


@pytest.mark.requirement("TOOL-06", "JSCH-05", "JSCH-08")
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "strin"}}},
        {"type": "object", "$ref": "https://example.org/schema.json"},
        {"type": "object", "$schema": "urn:mine"},
    ],
)
@pytest.mark.parametrize("option", ["input_schema", "output_schema"])
def test_a_schema_that_cannot_be_used_is_rejected_at_once(option, schema):
    with pytest.raises(SchemaError):
        Server("harbour").tool(name="x", **{option: schema})(ignore)


async def test_arguments_that_are_too_deep_for_the_schema_are_rejected(serve):
    server = Server("harbour", limits=Limits(messages=MessageLimits(json_depth_max=512)))
    schema = {"type": "object", "properties": {"a": {"$ref": "#"}}}
    server.tool(name="x", input_schema=schema)(ignore)
    asker = await serve(server)
    deep: dict = {}
    for _ in range(400):
        deep = {"a": deep}
    error = await asker.error("tools/call", {"name": "x", "arguments": deep})
    assert error["message"] == "invalid arguments: arguments: nested too deeply"


@pytest.mark.requirement("TOOL-05")
@pytest.mark.parametrize("schema", [{}, {"type": "string"}, {"type": ["object", "null"]}])
def test_a_schema_describes_an_object(schema):
    with pytest.raises(ValueError, match='"type": "object"'):
        Server("harbour").tool(name="x", input_schema=schema)(ignore)
