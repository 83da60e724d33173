"""Names of FastMCP and the official SDK, and misspelled ones: the errors say what to write."""

import inspect
import re

import pytest

import mcp_trio
from mcp_trio import Client, Context, Server, ThreadContext
from mcp_trio._protocol.other_sdk_names import ATTRIBUTES, OPTIONS, PACKAGE

server = Server("desk")


@server.prompt
async def plan(city: str) -> str:
    return city


@server.tool
async def use(code: str, ctx: Context) -> str:
    return str(await eval(code, {"ctx": ctx}))


@server.tool
def use_in_thread(code: str, ctx: ThreadContext) -> str:
    return str(eval(code, {"ctx": ctx}))


def in_a_block(code):
    exec(code, {"server": server, "client": Client(server), "mcp_trio": mcp_trio, "Server": Server})


@pytest.mark.parametrize(
    ("code", "error", "text"),
    [
        ("server.add_tool(len)", AttributeError, "'add_tool'; write `server.tool(function)`"),
        ("server.tol(len)", AttributeError, "has no attribute 'tol'; did you mean 'tool'?"),
        ("server.zzz", AttributeError, "'Server' object has no attribute 'zzz'"),
        (
            'Server("x", mask_error_details=True)',
            TypeError,
            "Server() got an unexpected argument 'mask_error_details'; write `errors=\"message\"`",
        ),
        ('Server("x", instruction="")', TypeError, "did you mean 'instructions'?"),
        ("server.tool(run_in_thread=False)", TypeError, "'run_in_thread'; write `thread=`"),
        ('server.mount(server, namespace="x")', TypeError, "'namespace'; write `prefix=`"),
        ("server.run(show_banner=False)", TypeError, "'show_banner'; leave it out"),
        ("client.is_connected()", AttributeError, "'is_connected'; write `client.is_open`"),
        (
            "mcp_trio.Client(server, elicitation_handler=print)",
            TypeError,
            "Client() got an unexpected argument 'elicitation_handler'; write `elicitation=`",
        ),
        ("mcp_trio.Client(['a'], stderr='discard')", TypeError, 'stderr must be "inherit" or a'),
        ("from mcp_trio import FastMCP", ImportError, "mcp_trio has no 'FastMCP'; write `Server`"),
        (
            "from mcp_trio import TextContent",
            ImportError,
            "from mcp_trio.types import TextContent",
        ),
        ("mcp_trio.zzz", AttributeError, "zzz"),
    ],
)
def test_an_error_says_what_to_write(code, error, text):
    with pytest.raises(error, match=re.escape(text)) as raised:
        in_a_block(code)
    assert type(raised.value) is error


@pytest.mark.parametrize(
    ("tool", "code", "text"),
    [
        ("use", "ctx.lifespan_context", "'Context' object has no attribute 'lifespan_context'; wr"),
        ("use", "ctx.elicit('?', response_type=int)", "; write `ctx.elicit(message, kind)`"),
        ("use", "ctx.log('done', level='info')", "; write ctx.log(level, data)"),
        ("use", "ctx.inf('a')", "did you mean 'info'?"),
        ("use_in_thread", "ctx.lifespan_context", "'lifespan_context'; write `ctx.lifespan`"),
    ],
)
async def test_the_log_says_what_a_handler_should_write(tool, code, text, caplog):
    async with Client(server, raise_tool_errors=False) as client:
        assert (await client.call_tool(tool, {"code": code})).is_error
    [line] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert text in line


@pytest.mark.parametrize(
    ("method", "options", "text"),
    [
        ("call_tool", {"timeout": 3}, "'timeout'; write `total_seconds=`"),
        ("call_tool", {"total_second": 3}, "did you mean 'total_seconds'?"),
        ("call_tool", {"code": "1"}, "arguments must be a dict: call_tool(name, {'code': …})"),
        ("get_prompt", {"city": "Oslo"}, "arguments must be a dict: get_prompt(name, {'city': …})"),
    ],
)
async def test_a_call_with_a_wrong_argument_says_what_to_write(method, options, text):
    async with Client(server) as client:
        with pytest.raises(TypeError, match=re.escape(text)):
            await getattr(client, method)("use", **options)


def test_a_name_that_is_missing_is_missing():
    assert not hasattr(server, "fastmcp")
    assert not hasattr(Client(server), "_fastmcp")
    assert inspect.signature(Server.tool).parameters["timeout"].default is None


def advice_of(tables):
    for value in tables.values():
        if isinstance(value, str):
            yield value
        else:
            yield from advice_of(value)


@pytest.mark.parametrize(
    ("name", "owner"),
    [("ctx", Context), ("server", Server), ("client", Client)],
)
def test_the_advice_names_what_exists(name, owner):
    texts = " ".join(advice_of({"imports": PACKAGE, "attributes": ATTRIBUTES, "options": OPTIONS}))
    named = set(re.findall(rf"`(?:await )?{name}\.(\w+)", texts))
    assert named
    assert [each for each in sorted(named) if not hasattr(owner, each)] == []


@pytest.mark.parametrize("kind", [Server, Client, Context])
def test_the_tables_of_other_sdks_have_no_name_that_this_package_has(kind):
    ours = {name for name in dir(kind) if not name.startswith("_")}
    assert ours.isdisjoint(ATTRIBUTES[kind.__name__])
    for method, names in OPTIONS[kind.__name__].items():
        parameters = inspect.signature(getattr(kind, method)).parameters.values()
        ours = {each.name for each in parameters if each.kind is not each.VAR_POSITIONAL}
        assert ours.isdisjoint(names)
