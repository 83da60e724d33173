"""Tools: registration, arguments, results, errors and security."""

import asyncio
import contextlib
import functools
import json
import logging
import math
import sys
import threading
import time
from queue import SimpleQueue

import msgspec
import pytest
import trio
import trio.testing
from memory_sessions import scripted_session

from mcp_trio import Context, Limits, RequestError, Server, ThreadContext, ToolError
from mcp_trio.errors import RequestAbandoned, SchemaError
from mcp_trio.limits import MessageLimits
from mcp_trio.recording import replay
from tests.server.conftest import failure_text, played_again

INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603


@pytest.fixture
def server():
    return Server("harbour", version="2.1")


@pytest.mark.requirement("TOOL-02", "TOOL-05", "TOOL-08")
async def test_a_tool_is_listed_with_name_description_and_schema(server, serve):
    @server.tool
    async def tide(port: str, hours: int = 12) -> str:
        """When the water comes.

        Args:
            port: Where.
        """

    @server.tool(name="ebb", description="When it goes.")
    async def leaves() -> str:
        """Not shown."""

    @server.tool
    async def silent():
        pass

    asker = await serve(server)
    assert await asker.result("tools/list") == {
        "tools": [
            {
                "name": "tide",
                "description": "When the water comes.",
                "inputSchema": {
                    "type": "object",
                    "properties": {
                        "port": {"type": "string", "description": "Where."},
                        "hours": {"type": "integer", "default": 12},
                    },
                    "required": ["port"],
                    "additionalProperties": False,
                },
            },
            {
                "name": "ebb",
                "description": "When it goes.",
                "inputSchema": {
                    "type": "object",
                    "properties": {},
                    "required": [],
                    "additionalProperties": False,
                },
            },
            {
                "name": "silent",
                "inputSchema": {
                    "type": "object",
                    "properties": {},
                    "required": [],
                    "additionalProperties": False,
                },
            },
        ]
    }


def test_the_decorator_returns_the_function(server):
    def tide():
        pass

    assert server.tool(tide) is tide
    assert server.tool(name="again")(tide) is tide
    assert server.prompt(tide) is tide
    assert server.prompt(name="again")(tide) is tide
    assert server.resource("tide://now")(tide) is tide


@pytest.mark.requirement("TOOL-08")
def test_a_name_can_be_registered_only_once(server):
    @server.tool
    async def tide():
        pass

    with pytest.raises(ValueError, match="'tide' is registered already"):
        server.tool(name="tide")(plain)


class Caller:
    async def __call__(self, port: str) -> str:
        return f"called {port}"

    async def method(self, port: str) -> str:
        return f"method {port}"

    @staticmethod
    def static(port: str) -> str:
        return f"static {port}"


def plainly(function):
    @functools.wraps(function)
    def wrapper(*args, **keywords):
        return function(*args, **keywords)

    return wrapper


def awaiting(function):
    @functools.wraps(function)
    async def wrapper(*args, **keywords):
        await trio.lowlevel.checkpoint()
        return function(*args, **keywords)

    return wrapper


async def asynchronous(port: str, *, ctx: Context) -> str:
    await ctx.info("here")
    return f"async {port}"


def plain(port: str) -> str:
    return f"plain {port}"


@pytest.mark.parametrize(
    ("handler", "name", "text"),
    [
        (asynchronous, "asynchronous", "async Oslo"),
        (plain, "plain", "plain Oslo"),
        (plainly(asynchronous), "asynchronous", "async Oslo"),
        (awaiting(plain), "plain", "plain Oslo"),
        (functools.partial(functools.partial(asynchronous)), "asynchronous", "async Oslo"),
        (functools.partial(plain), "plain", "plain Oslo"),
        (Caller(), "Caller", "called Oslo"),
        (Caller().method, "method", "method Oslo"),
        (Caller.static, "static", "static Oslo"),
    ],
)
async def test_any_callable_with_named_parameters_can_be_a_tool(server, serve, handler, name, text):
    server.tool(handler)
    asker = await serve(server)
    assert await asker.call(name, port="Oslo") == text


async def test_a_def_tool_with_thread_false_runs_in_the_event_loop(server, serve):
    @server.tool(thread=False)
    def where(ctx: Context) -> str:
        return trio.lowlevel.current_task().name and ctx.protocol_version

    asker = await serve(server)
    assert await asker.call("where") == "2024-11-05"


@pytest.mark.requirement("TOOL-30", "BASE-34")
async def test_each_invalid_argument_is_one_line_of_the_error(server, serve):
    ran = []

    @server.tool
    async def tide(port: str, hours: int, days: int = 1):
        ran.append(port)

    asker = await serve(server)
    arguments = {"port": 7, "days": "2", "colour": "red"}
    error = await asker.error("tools/call", {"name": "tide", "arguments": arguments})
    assert error == {
        "code": INVALID_PARAMS,
        "message": "invalid arguments: port: expected str, got int\n"
        "hours: missing\n"
        "days: expected int, got str\n"
        "colour: unknown argument",
    }
    assert ran == []


@pytest.mark.parametrize("params", [{}, {"arguments": None}, {"arguments": {}}])
async def test_a_tool_without_parameters_is_called_without_arguments(server, serve, params):
    @server.tool
    async def ring():
        return "dong"

    asker = await serve(server)
    result = await asker.result("tools/call", {"name": "ring", **params})
    assert result == {"content": [{"type": "text", "text": "dong"}]}


@pytest.mark.requirement("TOOL-32")
async def test_an_unknown_tool_is_invalid_params(server, serve):
    server.tool(plain)
    asker = await serve(server)
    error = await asker.error("tools/call", {"name": "palin"})
    assert error == {"code": INVALID_PARAMS, "message": "unknown tool: palin"}


@pytest.mark.requirement("BASE-12")
async def test_long_quoted_text_in_an_error_is_shortened(serve):
    server = Server("harbour", limits=Limits(messages=MessageLimits(error_text_chars_max=20)))
    server.tool(plain)
    asker = await serve(server)
    error = await asker.error("tools/call", {"name": "p" * 1000})
    assert error["message"] == "unknown tool: pppppp…"


@pytest.mark.requirement("TOOL-29")
async def test_a_tool_error_is_a_result_for_the_model(server, serve):
    @server.tool
    async def fail():
        raise ToolError("the pier is closed")

    @server.tool
    def fail_in_thread():
        raise ToolError("the pier is closed")

    asker = await serve(server)
    for name in ("fail", "fail_in_thread"):
        assert await asker.result("tools/call", {"name": name}) == {
            "content": [{"type": "text", "text": "the pier is closed"}],
            "isError": True,
        }


@pytest.mark.requirement("TOOL-29")
async def test_a_tool_error_from_a_nursery_of_the_tool_is_a_result_too(server, serve):
    @server.tool
    async def fail():
        async with trio.open_nursery() as nursery, trio.open_nursery() as inner:
            nursery.start_soon(trio.sleep_forever)
            inner.start_soon(closed)

    async def closed():
        raise ToolError("the pier is closed")

    asker = await serve(server)
    result = await asker.result("tools/call", {"name": "fail"})
    assert result["isError"]
    assert result["content"][0]["text"] == "the pier is closed"


async def test_several_errors_at_once_are_an_internal_error(server, serve, caplog):
    @server.tool
    async def fail():
        raise ExceptionGroup("two", [ToolError("one"), ToolError("other")])

    asker = await serve(server)
    assert await asker.failure("fail") == "internal error in fail"
    assert "[ToolError: one; ToolError: other]" in caplog.text


@pytest.mark.requirement("BASE-35")
@pytest.mark.parametrize("thread", [True, False])
async def test_an_unexpected_error_is_logged_and_its_text_not_sent(server, serve, caplog, thread):
    @server.tool(thread=thread)
    def crash():
        raise RuntimeError("password: tuna")

    asker = await serve(server)
    assert await asker.ask("tools/call", {"name": "crash"}) == {
        "jsonrpc": "2.0",
        "id": 1,
        "result": {
            "content": [{"type": "text", "text": "internal error in crash"}],
            "isError": True,
        },
    }
    (record,) = caplog.records
    text = "the handler of tools/call 'crash' failed: RuntimeError: password: tuna (test_tools.py:"
    assert record.getMessage().startswith(text)
    assert (record.levelno, record.exc_info) == (logging.WARNING, None)
    assert await asker.result("ping") == {}


async def test_the_traceback_of_an_unexpected_error_is_logged_at_level_debug(server, serve, caplog):
    caplog.set_level(logging.DEBUG, logger="mcp_trio")

    @server.tool
    async def crash():
        raise RuntimeError

    asker = await serve(server)
    await asker.failure("crash")
    (record,) = [item for item in caplog.records if item.levelno == logging.WARNING]
    assert record.exc_info[2].tb_frame.f_code.co_name == "crash"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (RuntimeError("no berth"), "error in crash: no berth"),
        (RuntimeError(), "error in crash: RuntimeError"),
        (ToolError("the pier is closed"), "the pier is closed"),
    ],
)
async def test_a_server_may_send_the_texts_of_unexpected_errors(serve, error, text):
    server = Server("harbour", errors="message")

    @server.tool
    async def crash():
        raise error

    @server.resource("sea://crash")
    async def read():
        raise error

    asker = await serve(server)
    assert await asker.failure("crash") == text
    failed = await asker.error("resources/read", {"uri": "sea://crash"})
    assert failed["message"] == text.replace("crash", "sea://crash")


async def test_the_log_names_asyncio_in_a_handler(server, serve, caplog):
    @server.tool
    async def doze():
        await asyncio.sleep(0.01)

    asker = await serve(server)
    await asker.failure("doze")
    assert "); asyncio does not run here: use trio, such as trio.sleep" in caplog.text


@pytest.mark.parametrize("waits_before", [False, True])
async def test_a_handler_that_yields_to_asyncio_fails(server, serve, caplog, waits_before):
    @server.tool
    async def doze():
        if waits_before:
            await trio.lowlevel.checkpoint()
        await asyncio.sleep(0)  # yields None, which is no trap of Trio

    asker = await serve(server)
    with trio.fail_after(5):
        await asker.failure("doze")
    assert "asyncio" in caplog.text


async def test_the_log_names_a_missing_await(server, serve, caplog):
    coroutines = []

    @server.tool
    async def fetch():
        coroutines.append(serve(server))
        return coroutines[0]

    asker = await serve(server)
    await asker.failure("fetch")
    assert "a coroutine has no JSON form: `await` may be missing before it" in caplog.text
    coroutines[0].close()


def test_an_unknown_choice_of_error_texts_is_rejected():
    with pytest.raises(ValueError, match="errors"):
        Server("harbour", errors="all")


async def test_a_tool_may_raise_a_request_error(server, serve):
    @server.tool
    async def fail():
        raise RequestError(-32050, "high tide", {"metres": 3})

    asker = await serve(server)
    error = await asker.error("tools/call", {"name": "fail"})
    assert error == {"code": -32050, "message": "high tide", "data": {"metres": 3}}


async def test_l16_a_lone_surrogate_in_a_result_fails_that_call_alone(server, serve, caplog):
    """Other servers lose their writer and are gone."""

    @server.tool
    async def names(how: str):
        return {"text": "\udcff", "inside": ["\udcff"], "error": "\udcff"}[how]

    @server.tool
    async def fail():
        raise ToolError("no file \udcff")

    asker = await serve(server)
    assert "cannot be sent" in await asker.failure("names", {"how": "text"})
    assert await asker.failure("names", {"how": "inside"}) == "internal error in names"
    assert "cannot be sent" in await asker.failure("fail")
    assert await asker.result("ping") == {}
    assert "cannot be sent" in caplog.text


async def test_l17_half_an_emoji_in_an_argument_is_answered(server, serve):
    r"""Other servers drop the frame, and the host waits for its timeout."""
    server.tool(plain)
    asker = await serve(server)
    await asker.wire.send(
        rb'{"jsonrpc":"2.0","id":"half","method":"tools/call",'
        rb'"params":{"name":"plain","arguments":{"port":"\ud83d"}}}'
    )
    answer = await asker.wire.receive()
    assert answer["id"] == "half"
    assert answer["error"]["code"] in {-32700, INVALID_PARAMS}
    assert await asker.call("plain", port="Oslo") == "plain Oslo"


@pytest.mark.requirement("TOOL-16", "TOOL-17")
@pytest.mark.parametrize(
    ("value", "content"),
    [
        (None, []),
        ("calm", [{"type": "text", "text": "calm"}]),
        ({"b": 1, "a": {"z", "y"}}, [{"type": "text", "text": '{"b":1,"a":["y","z"]}'}]),
        (
            b"\0",
            [
                {
                    "type": "resource",
                    "resource": {
                        "uri": "result:bytes",
                        "mimeType": "application/octet-stream",
                        "blob": "AA==",
                    },
                }
            ],
        ),
    ],
)
async def test_results_of_all_kinds_reach_the_wire(server, serve, value, content):
    @server.tool
    async def give():
        return value

    asker = await serve(server)
    assert await asker.result("tools/call", {"name": "give"}) == {"content": content}


async def test_a_result_without_a_json_form_is_an_internal_error(server, serve, caplog):
    @server.tool
    async def give():
        return object()

    asker = await serve(server)
    assert await asker.failure("give") == "internal error in give"
    assert "has no JSON form" in caplog.text


@pytest.mark.requirement("BASE-35")
async def test_a_tool_that_cannot_be_listed_is_named_in_the_log_and_hides_no_other(
    server, serve, caplog
):
    @server.tool
    async def moor() -> None:
        pass

    asker = await serve(server)
    before = await asker.result("tools/list")

    @server.tool(name="tidal")
    async def tide(port: "Nowhere"):  # noqa: F821 - the name is what is tested
        pass

    assert await asker.result("tools/list") == before
    assert "tools/list leaves out 'tidal': " in caplog.text
    assert "parameter 'port': the annotation 'Nowhere' cannot be resolved" in caplog.text
    assert await asker.failure("tidal", {"port": 1}) == "internal error in tidal"


async def test_a_tool_whose_meta_has_no_json_form_hides_no_other(server, serve, caplog):
    @server.tool(meta={"com.example/it": object()})
    async def odd() -> None:
        pass

    @server.tool
    async def moor() -> None:
        pass

    asker = await serve(server)
    assert [tool["name"] for tool in (await asker.result("tools/list"))["tools"]] == ["moor"]
    assert "tools/list leaves out 'odd': " in caplog.text


@pytest.mark.parametrize(
    ("handler", "text"),
    [
        ("async def handler(port: complex): ...", "'port': the type <class 'complex'> has no JSON"),
        ("async def handler(ctx: ThreadContext): ...", "'ctx' has to be a Context"),
        ("async def handler(a: Context, b: Context): ...", "'b' is a second context"),
        ("async def handler(self, port: str): ...", "'self' receives no argument: register the"),
    ],
)
def test_a_handler_that_cannot_work_is_rejected_at_its_decorator(server, handler, text):
    names = {}
    exec(f"from mcp_trio import Context, ThreadContext\n{handler}", names)
    with pytest.raises(TypeError, match=f"parameter {text}"):
        server.tool(names["handler"])


def test_a_class_method_is_registered_after_its_class(server):
    class Harbour:
        @classmethod
        def moor(cls) -> str:
            return cls.__name__

    with pytest.raises(TypeError, match="is not a Python function, method or callable object"):
        server.tool(Harbour.__dict__["moor"])
    server.tool(Harbour.moor)


@pytest.mark.parametrize("register", ["tool", "prompt"])
def test_a_generator_is_rejected_at_its_decorator(server, register):
    def tides():
        yield "high"

    async def currents():
        yield "north"

    for handler in (tides, currents):
        with pytest.raises(TypeError, match=rf"{handler.__name__}\(\) at .*: return a list"):
            getattr(server, register)(handler)


since_3_14 = pytest.mark.skipif(
    sys.version_info < (3, 14), reason="an annotation is evaluated when its function is defined"
)


@pytest.mark.parametrize(
    "beginning", ["from __future__ import annotations\n", pytest.param("", marks=since_3_14)]
)
async def test_a_type_may_be_defined_after_the_handler_that_uses_it(server, serve, beginning):
    code = (
        f"{beginning}"
        "async def handler(it: Later | None) -> list[Amount]: return [it['a']]\n"
        "server.tool(name='later')(handler)\n"
        "from typing import TypedDict\n"
        "class Later(TypedDict):\n a: int\n"
        "Amount = int"
    )
    exec(code, {"server": server})
    asker = await serve(server)
    assert await asker.call("later", it={"a": 1}) == "[1]"


@since_3_14
def test_an_annotation_for_type_checkers_alone_is_no_error_of_python(server):
    names = {"contextlib": contextlib, "Server": Server}
    exec(
        "class Later:\n"
        "    async def method(self, a: Missing): ...\n"
        "def keywords(**options: Missing): ...\n"
        "@contextlib.asynccontextmanager\n"
        "async def lifespan(server: Missing): yield\n"
        "async def middleware(request: Missing, call_next: Missing): ...\n"
        "async def route(request: Missing): ...\n",
        names,
    )
    server.tool(names["Later"]().method)
    with pytest.raises(TypeError, match=r"method\(\) at .* the annotation 'Missing' cannot be"):
        server._registry.check()
    with pytest.raises(TypeError, match="'options' takes any names"):
        server.tool(names["keywords"])
    Server("pier", lifespan=names["lifespan"])
    server.middleware(names["middleware"])
    server.route("/tide")(names["route"])


def test_the_first_argument_of_a_decorator_may_be_the_name(server):
    @server.tool("tidal")
    @server.prompt("tides")
    async def tide():
        pass

    server.remove_tool("tidal")
    server.remove_prompt("tides")
    with pytest.raises(TypeError, match="got two names, 'a' and 'b'"):
        server.tool("a", name="b")


async def test_annotations_and_tags_are_listed(server, serve):
    @server.tool("tidal", annotations={"readOnlyHint": True}, tags={"sea", "harbour"})
    async def tide():
        pass

    asker = await serve(server, protocol_version="2025-11-25")
    (tool,) = (await asker.result("tools/list"))["tools"]
    assert tool["annotations"] == {"readOnlyHint": True}
    assert tool["_meta"] == {"fastmcp": {"tags": ["harbour", "sea"]}}


def test_an_unknown_annotation_is_rejected_with_the_known_ones(server):
    with pytest.raises(ValueError, match=r"\['read_only'\]: choose from title, readOnlyHint"):
        server.tool(annotations={"read_only": True})


def test_one_string_is_no_set_of_tags(server):
    with pytest.raises(TypeError, match=r"write \{'sea'\}"):
        server.tool(tags="sea")(lambda: None)


def test_a_resource_without_a_uri_is_rejected_with_an_example(server):
    with pytest.raises(TypeError, match=r'@server\.resource\("data://tide"\)'):

        @server.resource
        async def tide():
            pass


async def test_a_def_handler_takes_a_context_under_both_names(server, serve):
    @server.tool
    def one(ctx: Context) -> str:
        return type(ctx).__name__

    @server.tool
    def two(ctx: ThreadContext) -> str:
        return type(ctx).__name__

    @server.tool
    def three(ctx) -> str:
        return type(ctx).__name__

    asker = await serve(server)
    for name in ("one", "two", "three"):
        assert await asker.call(name) == "ThreadContext"


async def test_the_error_for_many_invalid_arguments_is_bounded(serve):
    server = Server(
        "harbour",
        limits=Limits(
            messages=MessageLimits(validation_errors_max=2, validation_error_chars_max=30)
        ),
    )
    server.tool(plain)
    asker = await serve(server)
    arguments = {f"{n}" * 100: n for n in range(9)}
    error = await asker.error("tools/call", {"name": "plain", "arguments": arguments})
    lines = error["message"].splitlines()
    assert lines == ["invalid arguments: port: missing", "0" * 30, "and 8 more"]


async def test_an_argument_arrives_as_its_type(server, serve):
    class Port(msgspec.Struct):
        name: str
        berths: list[int]

    @server.tool
    async def dock(port: Port) -> str:
        assert isinstance(port, Port)
        return f"{port.name} {sum(port.berths)}"

    asker = await serve(server)
    assert await asker.call("dock", port={"name": "Oslo", "berths": [1, 2]}) == "Oslo 3"


async def test_an_argument_may_begin_with_underscores(server, serve):
    @server.tool
    def join(_a: str, __b: str, __c__: list[str] | None = None) -> list[str]:
        return [_a, __b, *(__c__ or ())]

    asker = await serve(server)
    params = {"name": "join", "arguments": {"_a": "1", "__b": "2"}}
    result = await asker.result("tools/call", params)
    assert result["content"] == [{"type": "text", "text": '["1","2"]'}]


async def test_many_calls_run_at_the_same_time(server, serve):
    release = trio.Event()
    waiting = []

    @server.tool
    async def meet(number: int) -> int:
        waiting.append(number)
        if len(waiting) == 3:
            release.set()
        await release.wait()
        return number

    asker = await serve(server)
    ids = [
        await asker.begin("tools/call", {"name": "meet", "arguments": {"number": n}})
        for n in range(3)
    ]
    answers = {message["id"]: message for message in await asker.wire.receive_many(3)}
    assert [json.loads(answers[id_]["result"]["content"][0]["text"]) for id_ in ids] == [0, 1, 2]


async def test_errors_are_logged_by_the_logger_of_the_package(server, serve, caplog):
    @server.tool
    async def crash():
        raise RuntimeError

    asker = await serve(server)
    await asker.failure("crash")
    (record,) = caplog.records
    assert record.name == "mcp_trio"


# Tools whose arguments are described by a JSON Schema of the user.


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
def server_given_schema():
    made = Server("harbour")

    @made.tool(input_schema=SCHEMA)
    async def sail(trip: dict, ctx: Context) -> dict:
        """Sail along."""
        return {"trip": trip, "method": ctx.method}

    return made


@pytest.mark.requirement("TOOL-05")
async def test_a_given_schema_is_listed_as_it_is(server_given_schema, serve):
    asker = await serve(server_given_schema)
    (tool,) = (await asker.result("tools/list"))["tools"]
    assert tool == {"name": "sail", "description": "Sail along.", "inputSchema": SCHEMA}
    assert list(tool["inputSchema"]) == list(SCHEMA)


async def test_arguments_that_fit_arrive_as_one_dict(server_given_schema, serve):
    asker = await serve(server_given_schema)
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


@pytest.mark.requirement("JSCH-09")
@pytest.mark.parametrize("items", [1200, 5100, 200_000])
async def test_arguments_that_cost_an_attacker_little_do_not_stop_a_server(serve, items):
    server = Server("harbour")
    schema = {
        "type": "object",
        "properties": {
            "ports": {"type": "array", "uniqueItems": True},
            "name": {"pattern": "^(a+)+$"},
        },
    }
    server.tool(name="sail", input_schema=schema)(ignore)
    asker = await serve(server)
    arguments = {"ports": [{"a": it} for it in range(items)], "name": "a" * 40 + "b"}
    begin = time.process_time()
    error = await asker.error("tools/call", {"name": "sail", "arguments": arguments})
    assert time.process_time() - begin < 2
    assert error["code"] == -32602
    text = "does not match" if items < 10_000 else r"limits.messages.schema_steps_max=100000"
    assert text in error["message"]


def _context_first(ctx: ThreadContext, given):
    return given


async def _context_last(given, *, ctx: Context):
    return given


@pytest.mark.requirement("TOOL-38")
async def test_every_validation_error_has_a_line(server_given_schema, serve):
    asker = await serve(server_given_schema)
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


# A server's security: rejecting clients, forged messages, secrets in errors.


REFUSAL = {"code": INVALID_PARAMS, "message": "not for you"}

ARGUMENT = {"name": "port", "value": "O"}


def only_for(name):
    """A check that handlers of sensitive things begin with."""

    def check(ctx):
        if ctx.client_info.name != name:
            raise RequestError(INVALID_PARAMS, "not for you")

    return check


@pytest.fixture
def vault():
    server = Server("harbour")
    check = only_for("captain")

    @server.tool
    async def open_vault(ctx: Context) -> str:
        check(ctx)
        return "gold"

    @server.prompt
    async def whisper(port: str, ctx: Context) -> str:
        check(ctx)
        return "gold"

    @server.completion(whisper, "port")
    async def ports(typed: str, ctx: Context) -> list[str]:
        check(ctx)
        return ["Oslo"]

    return server


@pytest.mark.requirement("TOOL-38", "PROM-16", "COMP-09")
@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", {"name": "open_vault"}),
        ("prompts/get", {"name": "whisper", "arguments": {"port": "Oslo"}}),
        (
            "completion/complete",
            {"ref": {"type": "ref/prompt", "name": "whisper"}, "argument": ARGUMENT},
        ),
    ],
)
async def test_a_handler_may_reject_a_client(vault, serve, method, params):
    asker = await serve(vault)
    assert await asker.error(method, params) == REFUSAL


@pytest.mark.requirement("TOOL-38")
async def test_text_of_a_tool_cannot_forge_a_message(serve):
    server = Server("harbour")
    forged = '"}]}}\n{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}\r\n\0'

    @server.tool
    async def forge() -> str:
        return forged

    asker = await serve(server)
    assert await asker.call("forge") == forged
    assert asker.received == []
    assert await asker.wire.receive_available() == []


@pytest.mark.requirement("TOOL-38", "PROM-16")
@pytest.mark.parametrize(
    ("method", "params"),
    [("tools/call", {"name": "crash"}), ("prompts/get", {"name": "crash"})],
)
async def test_the_text_of_an_unexpected_error_is_not_sent(serve, method, params):
    server = Server("harbour")

    async def crash() -> str:
        raise OSError("/home/captain/.ssh is locked")

    server.tool(crash)
    server.prompt(crash)
    asker = await serve(server)
    answer = await asker.ask(method, params)
    if method == "tools/call":
        assert failure_text(answer["result"]) == "internal error in crash"
    else:
        assert answer["error"] == {"code": INTERNAL_ERROR, "message": "internal error"}


# Arguments of tools that HTTP requests repeat in headers.


def schema(**properties):
    return {"type": "object", "properties": properties}


def register(given):
    server = Server("sea")

    @server.tool(input_schema=given)
    async def tide(arguments):
        return str(arguments)

    return server


@pytest.mark.requirement("HDR-08")
def test_a_tool_declares_the_arguments_that_are_repeated_in_headers():
    region = {"type": "string", "x-mcp-header": "Region"}
    server = register(schema(place={"type": "object", "properties": {"region": region}}))
    assert server._sessions.param_header_paths("tide") == {"Region": ("place", "region")}
    assert server._sessions.param_header_paths("wave") is None


@pytest.mark.requirement("HDR-13")
def test_an_invalid_header_annotation_is_rejected_at_registration():
    with pytest.raises(ValueError, match="x-mcp-header"):
        register(schema(depth={"type": "number", "x-mcp-header": "Depth"}))


@pytest.mark.requirement("HDR-35")
def test_a_header_annotation_of_a_secret_is_rejected():
    secret = {"type": "string", "format": "password", "x-mcp-header": "Key"}
    with pytest.raises(ValueError, match=r"'login\.key', which is a secret"):
        register(schema(login={"type": "object", "properties": {"key": secret}}))


# Time limits of tools: `@server.tool(timeout=SECONDS)`.

LATE = "'tool' timed out: it did not finish within 0.5 s"


async def long(ctx: Context) -> str:
    await ctx.sleep(100)
    return "never"


@pytest.mark.requirement("TOOL-29")
async def test_a_call_is_cancelled_at_the_time_limit_of_its_tool(server, serve, autojump_clock):
    server.tool(name="tool", timeout=0.5)(long)
    asker, start = await serve(server), trio.current_time()
    assert await asker.failure("tool") == LATE
    assert trio.current_time() - start == pytest.approx(0.5)


async def test_a_call_within_its_time_limit_is_answered_as_usual(server, serve, autojump_clock):
    @server.tool(timeout=0.5)
    async def tool(ctx: Context) -> str:
        await ctx.sleep(0.4)
        return "in time"

    assert await (await serve(server)).call("tool") == "in time"


async def test_a_handler_that_finishes_in_spite_of_the_cancellation_is_answered(
    server, serve, autojump_clock
):
    @server.tool(timeout=0.5)
    async def tool(way: str) -> str:
        try:
            await trio.sleep(100)
        finally:
            if way == "error":
                raise ToolError("tidied up")
        return "never"

    @server.tool(name="busy", timeout=1e-9)
    async def busy() -> str:
        return "no wait"

    asker = await serve(server)
    assert await asker.failure("tool", {"way": "error"}) == "tidied up"
    assert await asker.failure("tool", {"way": "plain"}) == LATE
    assert await asker.call("busy") == "no wait"


async def test_a_time_limit_of_the_handler_itself_is_another_error(server, serve, autojump_clock):
    @server.tool(timeout=5)
    async def tool(ctx: Context) -> None:
        with ctx.timeout(1):
            await ctx.sleep(100)

    assert await (await serve(server)).failure("tool") == "internal error in tool"


async def test_the_child_tasks_of_a_late_handler_are_cancelled(server, serve, autojump_clock):
    ended = []

    async def child() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append("child")

    @server.tool(timeout=0.5)
    async def tool() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child)

    assert await (await serve(server)).failure("tool") == LATE
    assert ended == ["child"]


async def test_a_client_that_cancels_first_gets_no_answer(server, serve, autojump_clock):
    server.tool(name="tool", timeout=0.5)(long)
    asker = await serve(server)
    await asker.wire.cancel(await asker.begin("tools/call", {"name": "tool", "arguments": {}}))
    await trio.sleep(1)
    assert await asker.wire.receive_available() == []


async def test_the_thread_of_a_late_def_handler_is_abandoned(server, serve, autojump_clock):
    release, seen, ended = threading.Event(), [], threading.Event()

    @server.tool(timeout=0.5)
    def tool(ctx: ThreadContext) -> str:
        release.wait(5)
        seen.append(ctx.is_cancelled)
        try:
            ctx.info("never sent")
        except RequestAbandoned:
            seen.append("abandoned")
        ended.set()
        return "dropped"

    asker = await serve(server)
    assert await asker.failure("tool") == LATE
    release.set()
    assert await trio.to_thread.run_sync(ended.wait, 5)
    assert seen == [True, "abandoned"]
    assert await asker.wire.receive_available() == []


async def test_a_suspended_handler_ends_at_its_time_limit(server, serve, autojump_clock):
    """The retry gets the result; the time in which the client asks its user counts."""

    @server.tool(timeout=0.5)
    async def tool(ctx: Context) -> str:
        answer = await ctx.elicit("Which boat?", str)
        return str(answer.data)

    asker = await serve(
        server, protocol_version="2026-07-28", capabilities={"elicitation": {"form": {}}}
    )
    call = {"name": "tool", "arguments": {}}
    asked = await asker.result("tools/call", call)
    (key,) = asked["inputRequests"]
    await trio.sleep(1)
    retry = {
        "requestState": asked["requestState"],
        "inputResponses": {key: {"action": "accept", "content": {"value": "reed"}}},
    }
    assert failure_text(await asker.result("tools/call", call | retry)) == LATE


@pytest.mark.parametrize("timeout", [0, -1, math.nan, "5"])
def test_a_time_limit_that_is_not_positive_is_rejected_at_the_decorator(server, timeout):
    with pytest.raises(ValueError, match="'long' is not a positive number of seconds"):
        server.tool(timeout=timeout)(long)


def test_a_time_limit_that_cannot_end_the_function_is_rejected_at_the_decorator(server):
    def tool() -> None:
        pass

    with pytest.raises(ValueError, match=r"cannot end 'tool', which runs in the event loop"):
        server.tool(timeout=1, thread=False)(tool)


async def test_a_time_limit_replays(server, record, autojump_clock):
    @server.tool(timeout=0.5)
    async def tool(seconds: float, ctx: Context) -> str:
        await ctx.info("begins")
        await ctx.sleep(seconds)
        return "in time"

    asker, recorded = await record(server)
    assert await asker.failure("tool", {"seconds": 9.0}) == LATE
    assert await asker.call("tool", seconds=0.4) == "in time"
    assert (await played_again(asker, recorded, server)).requests == 2


async def jump_over_deadline(clock, seconds):
    """Move the clock by some seconds when a thread waits for a deadline that is as near.

    A clock that jumps by itself would do so while the threads compute, if the machine is busy.
    """
    while trio.lowlevel.current_statistics().seconds_to_next_deadline > seconds:
        await trio.lowlevel.checkpoint()
    clock.jump(seconds)


async def call_all(server, path, clock, reached):
    """Record the calls of a `def` handler whose threads end before and after the time limit."""
    seconds = [0.1, 9.0, 0.2, 8.0]
    async with scripted_session(server, path) as (peer, _):
        await peer.handshake()
        for number, each in enumerate(seconds):
            arguments = {"seconds": each}
            await peer.send_request(
                "tools/call", {"name": "tool", "arguments": arguments}, id=number
            )
        answers = []
        for later in (0.11, 0.21):
            await jump_over_deadline(clock, later)
            answers.append(await peer.receive())
        while reached.qsize() < len(seconds):
            await trio.lowlevel.checkpoint()
        clock.jump(0.5)
        answers += [await peer.receive() for _ in range(2)]
    return sorted(each["id"] for each in answers if "isError" in each["result"])


@pytest.mark.parametrize("waits", ["sleep", "event"])
def test_a_time_limit_of_a_def_handler_replays(tmp_path, waits):
    has_ended, reached = threading.Event(), SimpleQueue()

    def make():
        server = Server("threads")

        @server.tool(timeout=0.5)
        def tool(seconds: float, ctx: ThreadContext) -> str:
            ctx.uuid4()
            reached.put(seconds)
            if waits == "sleep" or seconds < 1:
                ctx.sleep(seconds)
            else:
                has_ended.wait()
            return str(ctx.now())

        return server

    clock = trio.testing.MockClock()
    path = tmp_path / "a.mcprec.jsonl"
    late = trio.run(call_all, make(), path, clock, reached, clock=clock)
    has_ended.set()
    assert late == [1, 3]
    assert replay(path, make()).requests == 4
