"""The rows of the port table: a feature of FastMCP, ours, and how they compare.

The lines of code are those of the functions of the same name in `in_fastmcp.py` and
`in_mcp_trio.py`, or in `same_rows.py`; `port_table.py` runs them. `docs/how-to/from-fastmcp.md` is
made of these rows.
"""

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

import attrs

Verdict: TypeAlias = Literal["same", "other name", "missing"]


@attrs.frozen
class Row:
    """A feature of FastMCP.

    Attributes:
        name: The name of the functions that use it.
        feature: The feature, in words.
        fastmcp: Lines of the function with FastMCP.
        ours: Lines of the function with mcp_trio; none if the feature is missing.
        verdict: Whether mcp_trio has the feature, and under which name.
        reason: What differs, and what to do about it.
        differs: The facts that the two functions return differently, for this reason.
        absent: The attribute of `mcp_trio` that a missing feature would have.
    """

    name: str
    feature: str
    fastmcp: Sequence[str]
    ours: Sequence[str]
    verdict: Verdict
    reason: str = ""
    differs: Sequence[str] = ()
    absent: str = ""


def same(name: str, feature: str, code: str, reason: str = "", *, differs: str = "") -> Row:
    """Return a row whose lines differ only in the name of the server."""
    lines = code.split("\n")
    ours = [with_our_names(line) for line in lines]
    return Row(name, feature, lines, ours, "same", reason, _comma_separated(differs))


def with_our_names(line: str) -> str:
    """Return a line for FastMCP with the names of mcp_trio."""
    named = line.replace("FastMCP", "Server").replace("mcp = ", "server = ")
    return named.replace("mcp.", "server.").replace("(mcp", "(server")


def other(
    name: str, feature: str, fastmcp: str, ours: str, reason: str = "", *, differs: str = ""
) -> Row:
    """Return a row of a feature that is spelled differently."""
    lines, our_lines = fastmcp.split("\n"), ours.split("\n")
    return Row(name, feature, lines, our_lines, "other name", reason, _comma_separated(differs))


def missing(
    name: str, feature: str, fastmcp: str, reason: str, *, absent: str = "", differs: str = ""
) -> Row:
    """Return a row of a feature that mcp_trio lacks: by its attribute, or by what differs."""
    lines = fastmcp.split("\n")
    return Row(name, feature, lines, (), "missing", reason, _comma_separated(differs), absent)


def _comma_separated(text: str) -> Sequence[str]:
    return [each.strip() for each in text.split(",")] if text else []


TOOLS: Final = (
    other(
        "tool_from_function",
        "a tool from a function",
        'mcp = FastMCP("demo")\n@mcp.tool\ndef add(a: int, b: int = 1) -> int:',
        'server = Server("demo")\n@server.tool\ndef add(a: int, b: int = 1) -> int:',
    ),
    same("positional_name", "its name as the first argument", '@mcp.tool("sum")'),
    same(
        "tool_details",
        "name, title, description, tags, annotations, meta",
        'tags={"maths"},\nannotations={"readOnlyHint": True},\nmeta={"example.com/unit": "m"},',
    ),
    same(
        "described_arguments",
        "descriptions and bounds of arguments",
        'days: Annotated[int, Field(description="Days ahead", ge=1, le=7)] = 2,',
        "an error of an argument is one line",
        differs="text of the error",
    ),
    same(
        "field_as_default",
        "`Field` as the default value",
        'days: int = Field(default=2, description="Days ahead")',
    ),
    same("pydantic_argument", "a pydantic model as an argument", "def add(point: Model) -> int:"),
    same("dataclass_argument", "a dataclass as an argument", "def add(point: Point) -> int:"),
    same("typed_dict_argument", "a `TypedDict` as an argument", "def add(pair: Pair) -> int:"),
    same(
        "dates_and_enums",
        "dates, enums and literals as arguments",
        'def plan(day: date, colour: Colour, side: Literal["left", "right"]) -> str:',
    ),
    same("method_as_tool", "a method as a tool", "mcp.tool(Counter().count)"),
    other(
        "name_registered_twice",
        "a name that is registered twice",
        'mcp.tool(second, name="same")',
        'server.tool(name="same")(lambda: "second")',
        'raises `ValueError`, as FastMCP does with `on_duplicate="error"`; by default the second'
        " function replaces the first in FastMCP",
        differs="outcome",
    ),
    same(
        "strict_arguments",
        "checks of arguments",
        "def double(a: int) -> int:",
        '`"3"` and `3.0` are rejected for an `int`, as by FastMCP with'
        " `strict_input_validation=True`; by default it converts them. Both reject unknown and"
        " missing arguments",
        differs="number as text, whole float",
    ),
    same(
        "structured_output",
        "structured output",
        "def number() -> int:\ndef numbers() -> list[int]:\ndef point() -> Point:",
        'FastMCP sends a value that is no object as `{"result": 3}` with every version, mcp_trio'
        " until 2025-11-25, as 2026-07-28 allows any value",
        differs="number, text, numbers",
    ),
    other(
        "result_data",
        "the result as Python objects",
        'result = await client.call_tool("numbers")\nlisted = result.data\n'
        'one = (await client.call_tool("point")).data',
        'result = await client.call_tool("numbers")\nlisted = result.data\n'
        'one = await client.call_tool("point", result_type=Point)',
        "`data` of an object is a dict, where FastMCP makes a class from the schema;"
        " `result_type=` returns your own class",
        differs="a dict",
    ),
    same("tool_error", "an error for the model", 'raise ToolError("no such city")'),
    other(
        "other_exception",
        "the text of any exception",
        'mcp = FastMCP("demo")',
        'server = Server("demo", errors="message")',
        "hidden unless you ask for it, as it may be private",
        differs="text",
    ),
    other(
        "masked_exception",
        "exceptions without their text",
        'mcp = FastMCP("demo", mask_error_details=True)',
        'server = Server("demo")',
        "this is the default",
        differs="text",
    ),
    same("image", "images", "def dot() -> Image:"),
    same("audio", "audio", "def beep() -> Audio:"),
    other(
        "whole_result",
        "text and structured content, each by itself",
        'return ToolResult(content="one apple", structured_content={"apples": 1})',
        'content: list[Content] = [TextContent(text="one apple")]\n'
        'return CallToolResult(content=content, structured_content={"apples": 1})',
        "the classes are in `mcp_trio.types`",
    ),
    other(
        "text_only",
        "no structured output",
        "@mcp.tool(output_schema=None)",
        "@server.tool(structured=False)",
    ),
    same("thread", "`def` functions run in threads", "def name() -> bool:"),
    same("tool_timeout", "a time limit of a tool", "@mcp.tool(timeout=0.2)"),
    other(
        "tool_transformation",
        "tools made of other tools",
        'add, name="plus_one", transform_args={"b": ArgTransform(hide=True, default=1)}',
        'server.transform_tool("add", name="plus_one", arguments={"b": Fixed(1)})',
        "`Argument` gives an argument another name, description or default; `wrap=` takes a"
        " function round the tool, as `transform_fn` of FastMCP",
    ),
    same(
        "visibility",
        "hiding tools by tags",
        'mcp.disable(tags={"admin"})',
        'names are arguments, as in `server.disable("drop")`, in FastMCP `names={"drop"}`',
    ),
    other(
        "session_visibility",
        "showing hidden tools to one client",
        'await ctx.enable_components(tags={"admin"})',
        'await ctx.enable(tags={"admin"})',
        "raises an error for a client of 2026-07-28, whose lists must not depend on its calls",
    ),
)

RESOURCES: Final = (
    same(
        "resource",
        "resources of text and bytes",
        '@mcp.resource("data://motd")',
        "the MIME type of bytes is `application/octet-stream`, in FastMCP `text/plain`",
        differs="mime types",
    ),
    same("resource_template", "resource templates", '@mcp.resource("weather://{city}/now")'),
    same(
        "resource_details",
        "name, MIME type, tags, meta",
        'mime_type="application/json",\ntags={"setup"},\nmeta={"example.com/unit": "m"},',
    ),
    other(
        "resource_of_data",
        "a resource of data",
        'return json.dumps({"depth": 3})',
        'return {"depth": 3}',
        "any value that is no text and no bytes is sent as JSON",
    ),
    other(
        "resource_object",
        "a resource without a function",
        'mcp.add_resource(TextResource(uri="data://note", text="a note"))',
        'server.resource("data://note", name="note")(lambda: "a note")',
    ),
    other(
        "missing_resource",
        "a resource that does not exist",
        "except MCPError as error:",
        "except ResourceNotFound as error:",
    ),
    same("prompt", "prompts", "@mcp.prompt\ndef plan(city: str, days: int = 2) -> str:"),
    other(
        "prompt_messages",
        "prompts of several messages",
        'return [Message("Hi"), Message("Hello!", role="assistant")]',
        'hello = TextContent(text="Hello!")\n'
        'return ["Hi", PromptMessage(role="assistant", content=hello)]',
        "both classes are in `mcp_trio.types`; a text is a message of the user",
    ),
    same(
        "prompt_dicts",
        "prompts of dicts",
        'return [{"role": "assistant", "content": "Hello!"}]',
        "FastMCP 4 answers with an error",
        differs="outcome",
    ),
    other(
        "prompt_error",
        "an error of a prompt or resource",
        'raise PromptError("no such city")',
        'raise ToolError("no such city")',
        "`ToolError` works in every handler",
    ),
    other(
        "completion",
        "completions",
        "@mcp.completion\ndef cities(ref: Any, argument: Any, context: Any) -> list[str]:",
        '@server.completion(plan, "city")\ndef cities(value: str) -> list[str]:',
        "one function for each argument, in place of one for all",
    ),
)

CONTEXT: Final = (
    same(
        "context_by_type",
        "the context, by its type",
        "async def whoami(a: int, ctx: Context) -> bool:",
        "a `def` function gets a `ThreadContext`, whose methods block",
    ),
    same(
        "context_by_name",
        "the context, by its name",
        "async def whoami(a: int, ctx) -> int:",
        "a parameter `ctx` without an annotation is an argument of the tool in FastMCP",
        differs="arguments",
    ),
    other(
        "log",
        "log messages",
        'await ctx.info("half")\nawait ctx.log("done", level="warning", logger_name="work")',
        'await ctx.info("half")\nawait ctx.log("warning", "done", logger="work")',
        '`data` is your value; FastMCP sends `{"msg": …, "extra": …}`',
        differs="data",
    ),
    same("progress", "progress", 'await ctx.report_progress(1, 2, "half")'),
    other(
        "sample",
        "asking the client's model",
        "result = await ctx.session.create_message([message], max_tokens=9)\n"
        "async def answer(messages: Any, params: Any, context: Any) -> str:",
        'result = await ctx.sample("2 + 2?", max_tokens=9)\ndef answer(params: Any) -> str:',
        "FastMCP 2 and 3 had `ctx.sample`; FastMCP 4 can ask clients until 2025-11-25 only, and"
        " mcp_trio clients of every version",
    ),
    other(
        "elicit_dataclass",
        "asking the user: a form",
        'answer = await ctx.elicit("Where?", Point)\n'
        "async def fill(message: str, kind: Any, params: Any, context: Any) -> Any:",
        'answer = await ctx.elicit("Where?", Point)\ndef fill(_params: ElicitParams) -> Point:',
        "the answer has `action` and `data` in both; there are no classes to match, such as"
        " `AcceptedElicitation`",
    ),
    same(
        "elicit_model",
        "a form of a pydantic model",
        'answer = await ctx.elicit("Where?", Model)',
    ),
    other(
        "elicit_scalar",
        "asking the user: one value",
        'answer = await ctx.elicit("How many?", int)\nreturn {"value": 3}',
        'answer = await ctx.elicit("How many?", int)\nelicitation=lambda _: 3',
    ),
    same(
        "elicit_choices",
        "asking the user: a choice",
        'answer = await ctx.elicit("Which?", ["red", "blue"])',
        "a `Literal` or an enum works as well",
    ),
    other(
        "elicit_declined",
        "a user who declines",
        'return mcp_types.ElicitResult(action="decline")',
        "elicitation=lambda _: False",
    ),
    same(
        "elicit_stateless",
        "asking a client of 2026-07-28",
        'answer = await ctx.elicit("How many?", int)',
        "an error in FastMCP, whose tool has to return an `InputRequiredResult` instead",
        differs="answered, text",
    ),
    other(
        "read_resource",
        "reading a resource in a handler",
        'result = await ctx.read_resource("data://motd")\nreturn result.contents[0].content',
        'contents = await ctx.read_resource("data://motd")',
        "a list of `ResourceContents`",
    ),
    other(
        "list_roots",
        "the roots of the client",
        "result = await ctx.session.list_roots()",
        "found = await ctx.list_roots()",
        "FastMCP 2 and 3 had `ctx.list_roots`",
    ),
    other(
        "lifespan",
        "a lifespan",
        'mcp = FastMCP("demo", lifespan=opened)\nreturn ctx.lifespan_context["unit"]',
        'server = Server("demo", lifespan=opened)\nreturn str(ctx.lifespan["unit"])',
        "its value may be any object",
    ),
    other(
        "request_ids",
        "the ids of request and client",
        "ctx.request_id\nctx.client_id",
        "ctx.request_id\nctx.principal",
        "the authenticated user; both are None without authentication",
    ),
    other(
        "client_info",
        "the name of the client",
        "ctx.session.client_params.client_info.name",
        "ctx.client_info.name",
    ),
    other(
        "run_time_changes",
        "changes while clients are connected",
        "mcp.add_tool(late)\n"
        "await ctx.send_notification(mcp_types.ToolListChangedNotification())\n"
        'mcp.local_provider.remove_tool("late")',
        'server.tool(late)\nserver.remove_tool("late")\nlist_changed=changed.append',
        "the server notifies its clients itself",
    ),
    other(
        "resource_updates",
        "changed contents of a resource",
        "await ctx.send_notification(mcp_types.ResourceUpdatedNotification(params=params))\n"
        "message_handler=keep",
        'server.resource_updated("data://motd")\nresource_updated=keep\n'
        'await client.subscribe("data://motd")',
        "only clients that have subscribed are notified, from any task or thread",
    ),
    same(
        "context_anywhere",
        "the context in any function",
        "get_context().request_id",
        "not inside of an effect, which a replay does not run",
    ),
    missing(
        "dependencies",
        "arguments that a function provides",
        "async def measure(unit: str = Depends(unit)) -> str:",
        "call the function, or put what it makes into the lifespan",
        absent="Depends",
    ),
    missing(
        "http_headers",
        "the headers of the HTTP request",
        "get_http_headers()",
        "a function for `Server(auth=)` gets them, and returns the `ctx.auth`",
        absent="get_http_headers",
    ),
    other(
        "session_state",
        "state of a session",
        'number = (await ctx.get_state("count") or 0) + 1\nawait ctx.set_state("count", number)',
        'ctx.state["count"] = ctx.state.get("count", 0) + 1',
        "a dict; each stateless request over HTTP has its own",
    ),
)

CONNECTIONS: Final = (
    other(
        "run_stdio",
        "serving over stdio",
        "mcp.run(show_banner=False)",
        "server.run()",
        "there is no banner",
    ),
    other(
        "run_http",
        "serving over HTTP, and a client of a URL",
        'mcp.run(transport="http", port=int(sys.argv[2]), show_banner=False)\n'
        "async with Client(url) as client:",
        'server.run("http", port=int(sys.argv[2]))\nasync with Client(url) as client:',
        '`mcp.run(transport="sse")` is served by `run("http")` as well',
    ),
    same(
        "client_of_script",
        "a client of a script",
        "async with Client(SCRIPT) as client:",
    ),
    same(
        "client_of_server",
        "a client of a server in memory",
        "async with Client(mcp) as client:",
        "with `trio.run`, not `asyncio.run`",
    ),
    other(
        "client_of_config",
        "a client of an `mcpServers` configuration",
        "async with Client(config) as client:",
        "async with ClientGroup.from_config(config) as group:",
        "tools have the prefix of their server in both; with a single server FastMCP adds none",
    ),
    other(
        "server_info",
        "name, version and instructions of the server",
        'mcp = FastMCP("demo", version="1.2", instructions="Use it.")\nclient.server_info',
        'server = Server("demo", version="1.2", instructions="Use it.")\nclient.server_info',
    ),
    other(
        "call_timeout",
        "the time limit of a call",
        'client.call_tool("wait", timeout=0.2)',
        'client.call_tool("wait", total_seconds=0.2)',
        "raises `RequestTimeout`, in FastMCP `MCPError`; `trio.move_on_after` around the call"
        " works as well",
        differs="class",
    ),
    same(
        "ping",
        "ping",
        "await client.ping()",
        "returns None, in FastMCP True, which raises an error with version 2026-07-28",
        differs="result",
    ),
    other(
        "raise_on_error",
        "the result of a failed tool",
        'await client.call_tool("fail", raise_on_error=False)',
        'await client.call_tool("fail", raise_tool_errors=False)',
    ),
    same(
        "unknown_tool",
        "a tool that does not exist",
        'client.call_tool("none")',
        "raises `RequestError` with the code of the error, in FastMCP `ToolError`",
        differs="raised",
    ),
    other(
        "raw_result",
        "the result as it was sent",
        'await client.call_tool_mcp("number", {})',
        'await client.request("tools/call", {"name": "number", "arguments": {}})',
    ),
    same(
        "root_paths",
        "paths as roots",
        'Client(mcp, roots=["/srv"])',
        "FastMCP takes URIs only",
        differs="accepted",
    ),
)

COMPOSITION: Final = (
    other(
        "middleware",
        "middleware",
        "class Logging(Middleware):\n"
        "async def on_call_tool(self, context: Any, call_next: Any) -> Any:",
        "@server.middleware\n"
        "async def log(request: MiddlewareRequest, call_next: CallNext) -> Any:",
        "one function for all methods; [some are shipped](middleware.md)",
    ),
    other(
        "mount",
        "mounting a server into another (`import_server` of FastMCP 2 and 3)",
        'mcp.mount(child, namespace="child")',
        'server.mount(child, prefix="child")',
        "live, as in FastMCP; [compose servers](compose-servers.md)",
    ),
    other(
        "proxy",
        "a server that forwards to another",
        "mcp = create_proxy(SCRIPT)",
        'server = Server("demo")\nserver.mount(SCRIPT, prefix=None)',
        "each session has its own connection, which is opened again when it is lost; as commands:"
        " `mcp-trio bridge` joins two transports, and `mcp-trio record` records what it forwards",
    ),
    other(
        "from_openapi",
        "a server from an OpenAPI document",
        "mcp = FastMCP.from_openapi(spec, client=client)",
        "server = Server.from_openapi(spec, client=client)",
        "[described here](from-openapi.md); `resources=`, `include=`, `exclude=` and `rename=` in"
        " place of `route_maps=` and `mcp_names=`",
    ),
    other(
        "custom_route",
        "other HTTP routes",
        '@mcp.custom_route("/hello", methods=["GET"])\n'
        "async def hello(request: Any) -> PlainTextResponse:\n"
        'return PlainTextResponse("hello")',
        '@server.route("/hello", methods=["GET"])\n'
        "async def hello(request: Any) -> str:\n"
        'return "hello"',
        "[described here](serve.md#routes-beside-the-mcp-endpoint); a route needs the same"
        " authentication as the MCP endpoint, unless it is registered with `is_public=True`",
    ),
    other(
        "authorization",
        "authorization",
        'mcp = FastMCP("demo", auth=StaticTokenVerifier(tokens))',
        'server = Server("demo", auth=StaticTokens(tokens))',
        "also the URL of an issuer, and scopes of tools: [described here](protect-a-server.md)",
    ),
)

GROUPS: Final = {
    "Tools": TOOLS,
    "Resources and prompts": RESOURCES,
    "The context": CONTEXT,
    "Serving and connecting": CONNECTIONS,
    "Composition and the web": COMPOSITION,
}

ROWS: Final = {row.name: row for rows in GROUPS.values() for row in rows}
