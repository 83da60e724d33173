"""Mistakes at the registration and at the start of a server: each error says what to write."""

import contextlib
import re

import pytest
import trio

from mcp_trio import Client, Server, ThreadContext
from mcp_trio.errors import ToolError
from mcp_trio.tools import Argument

server = Server("desk")


@server.tool
async def find(q: str) -> str:
    return q


@server.tool
def wait(ctx: ThreadContext) -> None:
    with ctx.timeout(3):
        pass


async def log(request):
    """A middleware without `call_next`."""


class Logging:
    async def on_call_tool(self, context, call_next): ...


@contextlib.contextmanager
def blocking(_server):
    yield


@contextlib.asynccontextmanager
async def without_server():
    yield


class Place: ...


def place(at: Place) -> str: ...


async def run_in_trio():
    server.run()


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: server.disable("fnd"), LookupError, "did you mean 'find'?"),
        (lambda: server.disable(names={"find"}), TypeError, "write the names first"),
        (lambda: server.transform_tool("fnd", name="x"), LookupError, "did you mean 'find'?"),
        (
            lambda: server.transform_tool("find", arguments={"words": Argument("x")}),
            ValueError,
            "'find' has no argument 'words'; it has: q",
        ),
        (
            lambda: server.transform_tool("find", arguments={"q": "words"}),
            TypeError,
            "has to be an Argument or Fixed of mcp_trio.tools, such as Argument('words')",
        ),
        (
            lambda: server.middleware(log),
            TypeError,
            "the middleware 'log' has to be `async def log(request, call_next)`",
        ),
        (lambda: server.middleware(Logging()), TypeError, "'Logging' has to be a function"),
        (lambda: Server("x", lifespan=blocking), TypeError, "write @asynccontextmanager above"),
        (
            lambda: Server("x", lifespan=without_server),
            TypeError,
            "the lifespan 'without_server' has to be `async def without_server(server)`",
        ),
        (lambda: server.tool(place), TypeError, "make it an attrs class or a dataclass"),
        (lambda: trio.run(run_in_trio), RuntimeError, "write `await server.serve_stdio()`"),
        (
            lambda: trio.run(Client({"mcpServers": {}}).__aenter__),
            TypeError,
            "a configuration is for ClientGroup.from_config",
        ),
    ],
)
def test_a_mistake_is_answered_with_what_to_write(make, error, text):
    with pytest.raises(error, match=re.escape(text)):
        make()


async def test_a_def_handler_that_uses_an_operation_of_async_handlers_is_told_so(caplog):
    async with Client(server) as client:
        with pytest.raises(ToolError):
            await client.call_tool("wait")
    assert "no attribute 'timeout'; a `def` handler has none: write `async def`" in caplog.text
