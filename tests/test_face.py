"""The public names of the package, the cost of its import, and `help(mcp_trio.Client)`."""

import importlib
import inspect
import math
import pickle
import pkgutil
import pydoc
import re
from pathlib import Path

import attrs
import msgspec
import pytest

import mcp_trio
from mcp_trio import Client, ClientGroup, Limits, Server, Subscription
from mcp_trio._public_names import lazy_names
from tests.processes import loaded_by

NAMES = sorted(re.findall(r" as (\w+)", Path(mcp_trio.__file__).with_suffix(".pyi").read_text()))

HEAVY = {
    "annotated_types",
    "anyio",
    "asyncio",
    "cattrs",
    "click",
    "cryptography",
    "h11",
    "httpcore2",
    "httpx",
    "httpx2",
    "hypercorn",
    "joserfc",
    "re2",
    "rich",
    "trio_websocket",
    "truststore",
    "wsproto",
    "zstandard",
}

FACES = [
    *("auth", "http", "hosts", "middleware", "observers", "recording", "redis", "testing"),
    "tools",
    "transports",
]
DEFINING = ["errors", "limits", "types"]


def test_mcp_trio_http_loads_each_part_when_it_is_used():
    assert not {"httpx2", "referencing"} & loaded_by("import mcp_trio.http")
    assert "referencing" in loaded_by("from mcp_trio.http import OpenApiReport")


@pytest.mark.parametrize("name", FACES)
def test_an_unknown_name_of_a_public_module_is_reported_for_that_module(name):
    with pytest.raises(AttributeError, match=rf"'mcp_trio\.{name}' has no attribute 'Respons'"):
        _ = importlib.import_module(f"mcp_trio.{name}").Respons


def test_a_name_of_a_public_module_is_none_of_the_package_after_its_use():
    assert mcp_trio.recording.export_jsonld
    for _ in range(2):
        with pytest.raises(ImportError, match=r"'export_jsonld' is in mcp_trio\.recording"):
            mcp_trio.export_jsonld  # noqa: B018


@pytest.mark.parametrize("name", FACES)
def test_a_public_module_takes_no_name_that_the_package_has(name):
    modules = {module.name for module in pkgutil.iter_modules(mcp_trio.__path__)}
    names = importlib.import_module(f"mcp_trio.{name}").__all__
    assert {*names} & {*NAMES, *modules} == set()


@pytest.mark.parametrize("name", ["mcp_trio", *(f"mcp_trio.{face}" for face in FACES)])
def test_the_help_of_a_public_module_has_its_names(name):
    module = importlib.import_module(name)
    text = pydoc.plain(pydoc.render_doc(module))
    public = [each for each in module.__all__ if each != "__version__"]  # which is below VERSION
    assert [each for each in public if each not in text] == []


@pytest.mark.parametrize("name", ["mcp_trio", *(f"mcp_trio.{face}" for face in FACES)])
def test_the_names_of_a_public_module_are_listed_and_pickled_and_survive_a_reload(name):
    module = importlib.import_module(name)
    values = {each: getattr(module, each) for each in module.__all__}
    assert dir(module) == sorted(values)
    for value in values.values():
        if inspect.isclass(value) or inspect.isfunction(value):
            assert pickle.loads(pickle.dumps(value)) is value
    assert importlib.reload(module) is module
    assert {each: getattr(module, each) for each in module.__all__} == values


def test_a_public_module_without_its_stub_says_which_file_is_missing(tmp_path):
    file = tmp_path / "recording.py"
    with pytest.raises(ImportError, match=f"needs the file {file}i: install .* with its .pyi"):
        lazy_names("mcp_trio.recording", str(file))


def test_the_public_names_change_on_purpose_only():
    assert sorted(mcp_trio.__all__) == NAMES
    assert len(NAMES) <= 30


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_can_be_imported_and_has_a_docstring(name):
    value = getattr(mcp_trio, name)
    assert inspect.getdoc(value)
    assert getattr(mcp_trio, name) is value
    assert name in dir(mcp_trio)


def test_a_name_that_is_not_public_is_no_attribute():
    with pytest.raises(AttributeError, match="module 'mcp_trio' has no attribute 'Sever'"):
        mcp_trio.Sever  # noqa: B018


def test_the_import_costs_next_to_nothing():
    more = loaded_by("import mcp_trio") - loaded_by("import trio, msgspec, lazy_loader")
    assert {name for name in more if not name.startswith("mcp_trio")} == set()
    assert not any(name.startswith("mcp_trio._server") for name in more)


@pytest.mark.parametrize("name", ["Server", "Client"])
def test_neither_side_loads_a_web_stack_or_a_terminal(name):
    base = loaded_by("import trio, msgspec")
    more = loaded_by(f"from mcp_trio import {name}") - base
    assert HEAVY & {module.partition(".")[0] for module in more} == set()


@pytest.mark.slow
def test_the_module_of_transports_loads_no_web_stack_before_one_of_its_names_is_used():
    light = loaded_by("from mcp_trio.transports import memory_pair")
    assert {name.partition(".")[0] for name in light}.isdisjoint(HEAVY)
    assert "httpx2" in loaded_by("from mcp_trio.transports import open_http_channel")


@pytest.mark.slow
def test_httpx_is_never_loaded_by_the_package_itself():
    code = "from mcp_trio import Client, http, transports; transports.open_http_channel"
    loaded = loaded_by(code)
    assert "httpx2" in loaded
    assert "httpx" not in loaded


@pytest.mark.slow
def test_a_server_loads_no_client_and_a_client_no_server():
    assert not any("._client" in name for name in loaded_by("from mcp_trio import Server"))
    assert not any("._server" in name for name in loaded_by("from mcp_trio import Client"))


def test_a_server_over_stdio_loads_no_http_no_recorder_and_no_library_for_them():
    unused = {
        *("dataclasses", "email", "json", "shlex"),
        *("mcp_trio._auth.challenges", "mcp_trio._protocol.http_headers"),
        *("mcp_trio._recorder.options", "mcp_trio._session.untracked_calls"),
    }
    assert not unused & loaded_by(
        "from mcp_trio import Server; import mcp_trio._server.stdio; server = Server('a')\n"
        "@server.tool\nasync def add(a: int, b: int) -> int: ...\n"
    )


def test_a_server_that_records_loads_no_pytest():
    assert "pytest" not in loaded_by("import mcp_trio._server.server, mcp_trio._recorder.options")


@pytest.mark.parametrize("name", [*FACES, *DEFINING])
def test_a_public_module_has_a_docstring_and_the_names_that_it_lists(name):
    module = importlib.import_module(f"mcp_trio.{name}")
    missing = [name for name in getattr(module, "__all__", ()) if not hasattr(module, name)]
    assert missing == []
    assert inspect.getdoc(module)


@pytest.mark.parametrize("kind", [Server, Client])
def test_the_help_of_a_server_and_a_client_names_no_private_module_in_a_signature(kind):
    methods = [getattr(kind, name) for name in dir(kind) if not name.startswith("_")]
    signatures = [str(inspect.signature(it)) for it in (kind, *methods) if callable(it)]
    assert len(signatures) > 15
    assert [text for text in signatures if "mcp_trio._" in text] == []


def test_every_public_module_is_known():
    public = {
        module.name
        for module in pkgutil.iter_modules(mcp_trio.__path__)
        if not module.name.startswith("_")
    }
    assert public == {*FACES, *DEFINING, "examples", "pytest_plugin"}


# The help of Client.


OPTIONS = {field.name for field in attrs.fields(Client) if field.init}

METHODS = {
    *("aclose", "server_can", "request", "notify", "call_tool", "read_resource", "get_prompt"),
    *("list_tools", "list_prompts", "list_resources", "list_resource_templates", "complete"),
    *("ping", "set_log_level", "listen", "subscribe", "unsubscribe"),
    *("set_roots", "notify_roots_changed"),
}

PROPERTIES = {
    *("is_open", "state", "state_reason", "server_info", "server_capabilities"),
    *("instructions", "protocol_version", "counts"),
}


def explained(doc):
    """Return the names under `Args:` of a docstring."""
    lines = re.findall(r"^Args:\n((?: .*\n|\n)+)", f"{inspect.cleandoc(doc)}\n", re.MULTILINE)
    return set(re.findall(r"^    [*]{0,2}(\w+):", "".join(lines), re.MULTILINE))


def public_members(kind):
    return {name for name in dir(kind) if not name.startswith("_")}


def test_every_option_of_a_client_is_explained():
    assert explained(Client.__doc__) == OPTIONS


def test_every_parameter_of_the_constructor_of_a_group_is_explained():
    parameters = inspect.signature(ClientGroup).parameters
    assert explained(ClientGroup.__doc__) == set(parameters)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_parameter_of_a_method_is_explained(name):
    method = getattr(Client, name)
    parameters = inspect.signature(method).parameters.keys() - {"self"}
    assert explained(method.__doc__) == parameters


@pytest.mark.parametrize("name", sorted(PROPERTIES))
def test_every_property_is_explained(name):
    assert getattr(Client, name).__doc__


def test_a_client_has_no_other_public_members():
    assert public_members(Client) == OPTIONS | METHODS | PROPERTIES


def test_a_subscription_shows_no_internals():
    members = {"asked", "acknowledged", "left_out", "is_open", "interruption"}
    assert public_members(Subscription) == members


GROUPS = [type(group) for group in msgspec.structs.astuple(Limits())]


@pytest.mark.parametrize("group", GROUPS)
def test_a_limit_that_is_too_small_or_nan_is_rejected_where_it_is_given(group):
    leasts = {"all_clients_factor": 2, "chunk_bytes": 1, "send_queue_bytes_max": 1}
    for name in group.__struct_fields__:
        least = leasts.get(name, 0)
        for value in (least - 1, math.nan):
            with pytest.raises(ValueError, match=rf"{name}=.*: it has to be at least {least}"):
                group(**{name: value})
        group(**{name: least})


@pytest.mark.parametrize("group", GROUPS)
def test_a_limit_that_is_no_number_is_rejected_where_it_is_given(group):
    for name in group.__struct_fields__:
        with pytest.raises(TypeError, match=f"{name}='1'.*: it has to be a number"):
            group(**{name: "1"})


def test_a_group_of_limits_that_is_a_dict_is_rejected_where_it_is_given():
    with pytest.raises(TypeError, match=r"write messages=MessageLimits\(\.\.\.\)"):
        Limits(messages={"bytes_max": 1})
    with pytest.raises(TypeError, match=r"write limits=Limits\(\.\.\.\)"):
        Server("harbour", limits={})
