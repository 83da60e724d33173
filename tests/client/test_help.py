"""`help(mcp_trio.Client)` explains every option and method, and lists no internals."""

import inspect
import re

import attrs
import pytest

from mcp_trio import Client, ClientGroup, Subscription

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
