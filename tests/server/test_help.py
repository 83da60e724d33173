"""`help(mcp_trio.Server)` shows what a user needs, and explains every option where it stands."""

import inspect
import re
import typing

import attrs
import pytest

from mcp_trio import Context, Server, ThreadContext

FUNCTIONS = [
    *(Server.tool, Server.resource, Server.prompt, Server.completion, Server.method),
    *(Server.serve, Server.serve_http, Server.serve_websocket, Server.serve_unix, Server.serve_tcp),
    *(Server.dial, Server.asgi, Server.run),
]

PUBLIC_METHODS = {
    *("tool", "remove_tool", "resource", "remove_resource", "prompt", "remove_prompt"),
    *("completion", "remove_completion", "method", "resource_updated", "list_changed"),
    *("run", "serve", "serve_stdio", "serve_http", "asgi", "serve_websocket"),
    *("serve_unix", "serve_tcp", "dial"),
}


def documented(doc, section):
    """Return the names that a section of a docstring explains."""
    (lines,) = re.findall(
        rf"^{section}:\n((?: .*\n|\n)+)", f"{inspect.cleandoc(doc)}\n", re.MULTILINE
    )
    return set(re.findall(r"^    (\w+):", lines, re.MULTILINE))


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_every_parameter_is_explained(function):
    parameters = inspect.signature(function).parameters.keys() - {"self"}
    assert documented(function.__doc__, "Args") == parameters


@pytest.mark.parametrize("function", [Server.tool, Server.prompt], ids=["tool", "prompt"])
def test_an_overload_has_the_options_of_the_decorator(function):
    _, overload = typing.get_overloads(function)
    expected = dict(inspect.signature(function).parameters)
    del expected["handler"]
    assert dict(inspect.signature(overload).parameters) == expected


def test_every_attribute_of_a_server_is_explained():
    attributes = {field.name for field in attrs.fields(Server) if field.init}
    assert documented(Server.__doc__, "Attributes") == attributes


def test_a_server_has_no_other_public_members():
    attributes = {field.name for field in attrs.fields(Server) if field.init}
    assert {name for name in dir(Server) if not name.startswith("_")} == PUBLIC_METHODS | attributes


def test_both_kinds_of_context_have_the_same_operations():
    def operations(kind):
        return {name for name in dir(kind) if not name.startswith("_")}

    assert operations(Context) - operations(ThreadContext) == {"http", "timeout", "to_thread"}
    assert operations(ThreadContext) <= operations(Context)
