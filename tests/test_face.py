"""The public face: a tested list, which costs little to import."""

import ast
import importlib
import inspect
import json
import pkgutil
import subprocess
import sys

import pytest

import mcp_trio

NAMES = [
    "Answer",
    "Audio",
    "BlockedInReplay",
    "CapabilityMissing",
    "Change",
    "Changes",
    "Client",
    "ClientGroup",
    "ConfigError",
    "ConnectionLost",
    "Context",
    "EffectTransport",
    "Elicitation",
    "EraMemory",
    "EventStore",
    "HttpStores",
    "Image",
    "KeyRing",
    "Limits",
    "LocalProtocolError",
    "MCPError",
    "MemoryStore",
    "ModelTraits",
    "OutcomeUnknown",
    "ProtocolError",
    "RecordingError",
    "RemoteProtocolError",
    "ReplayDivergence",
    "ReplayedError",
    "RequestAbandoned",
    "RequestError",
    "RequestTimeout",
    "ResourceNotFound",
    "Roots",
    "Sampling",
    "SchemaError",
    "Server",
    "ServerConfig",
    "SessionFacts",
    "SessionStore",
    "StateStore",
    "StrayNondeterminism",
    "Subscription",
    "SweepUnavailable",
    "ThreadContext",
    "ToolError",
    "ToolHints",
    "Unencodable",
    "UrlElicitation",
    "UrlElicitationRequired",
    "UserRejected",
    "choose_model",
    "connect_client",
    "display_name",
    "effect",
    "read_config",
    "showable_icons",
    "tool_hints",
]

HEAVY = {
    "anyio",
    "asyncio",
    "cattrs",
    "click",
    "cryptography",
    "h11",
    "httpx",
    "hypercorn",
    "jsonschema",
    "rich",
    "trio_websocket",
    "wsproto",
    "zstandard",
}

FACES = ["mcp_trio", "mcp_trio.types", "mcp_trio.transports", "mcp_trio.testing"]


def loaded_by(code):
    """The names of the modules that a fresh interpreter has loaded after `code`."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys, json\nprint(json.dumps(sorted(sys.modules)))"],
        capture_output=True,
        check=True,
    )
    return set(json.loads(done.stdout))


def test_the_public_names_change_on_purpose_only():
    assert sorted(mcp_trio.__all__) == NAMES
    assert mcp_trio.__all__ == list(mcp_trio._HOMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_can_be_imported_and_says_what_it_is(name):
    value = getattr(mcp_trio, name)
    assert inspect.getdoc(value)
    assert getattr(mcp_trio, name) is value
    assert name in dir(mcp_trio)


def test_a_name_that_is_not_public_is_no_attribute():
    with pytest.raises(AttributeError, match="module 'mcp_trio' has no attribute 'Sever'"):
        mcp_trio.Sever  # noqa: B018


def test_type_checkers_see_the_same_names_as_the_interpreter():
    tree = ast.parse(inspect.getsource(mcp_trio))
    (checked,) = [
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    seen = {
        alias.asname: node.module
        for node in checked.body
        for alias in node.names
        if alias.asname == alias.name
    }
    assert seen == mcp_trio._HOMES


def test_the_import_costs_next_to_nothing():
    more = loaded_by("import mcp_trio") - loaded_by("import trio, msgspec")
    assert {name for name in more if not name.startswith("mcp_trio")} == set()
    assert not any(name.startswith("mcp_trio._server") for name in more)


@pytest.mark.parametrize("name", ["Server", "Client"])
def test_neither_side_loads_a_web_stack_or_a_terminal(name):
    base = loaded_by("import trio, msgspec")
    more = loaded_by(f"from mcp_trio import {name}") - base
    assert HEAVY & {module.partition(".")[0] for module in more} == set()


def test_a_server_loads_no_client_and_a_client_no_server():
    assert not any("._client" in name for name in loaded_by("from mcp_trio import Server"))
    assert not any("._server" in name for name in loaded_by("from mcp_trio import Client"))


@pytest.mark.parametrize("face", FACES)
def test_every_name_of_a_face_is_there(face):
    module = importlib.import_module(face)
    missing = [name for name in module.__all__ if not hasattr(module, name)]
    assert missing == []
    assert inspect.getdoc(module)


def test_every_public_module_is_a_face():
    public = {
        f"mcp_trio.{module.name}"
        for module in pkgutil.iter_modules(mcp_trio.__path__)
        if not module.name.startswith("_")
    }
    assert public - {"mcp_trio.examples", "mcp_trio.pytest_plugin", "mcp_trio.recording"} == set(
        FACES[1:]
    )
