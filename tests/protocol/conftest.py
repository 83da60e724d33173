"""Connections of both roles, and the messages and params to feed them."""

import json
from typing import NamedTuple

import msgspec
import pytest

from mcp_trio import types as s
from mcp_trio._protocol.connection import Connection
from mcp_trio._protocol.methods import Role
from mcp_trio._protocol.versions import ALL_PROTOCOL_VERSIONS
from tests.protocol.discovered import discovered

CAPABILITIES = {
    Role.CLIENT: s.ClientCapabilities(
        roots=s.RootsCapability(list_changed=True),
        sampling=s.SamplingCapability(),
        elicitation=s.ElicitationCapability(form={}, url={}),
    ),
    Role.SERVER: s.ServerCapabilities(
        logging={},
        prompts=s.PromptsCapability(list_changed=True),
        resources=s.ResourcesCapability(subscribe=True, list_changed=True),
        tools=s.ToolsCapability(list_changed=True),
    ),
}

# Params that are valid for each method, so that only the rule under test can reject them.
PARAMS = {
    "initialize": s.InitializeParams(
        protocol_version="2024-11-05",
        capabilities=CAPABILITIES[Role.CLIENT],
        client_info=s.Implementation(name="reed", version="3"),
    ),
    "ping": s.EmptyParams(),
    "server/discover": s.EmptyParams(),
    "subscriptions/listen": s.ListenParams(notifications=s.SubscriptionFilter()),
    "tools/list": s.PaginatedParams(),
    "tools/call": s.CallToolParams(name="tide", arguments=msgspec.Raw(b'{"port":"Bergen"}')),
    "resources/list": s.PaginatedParams(),
    "resources/templates/list": s.PaginatedParams(),
    "resources/read": s.ReadResourceParams(uri="log://today"),
    "resources/subscribe": s.SubscribeParams(uri="log://today"),
    "resources/unsubscribe": s.UnsubscribeParams(uri="log://today"),
    "prompts/list": s.PaginatedParams(),
    "prompts/get": s.GetPromptParams(name="sail"),
    "completion/complete": s.CompleteParams(
        ref=s.PromptReference(name="sail"),
        argument=s.CompletionArgument(name="port", value="B"),
    ),
    "logging/setLevel": s.SetLevelParams(level="info"),
    "sampling/createMessage": s.CreateMessageParams(messages=[], max_tokens=9),
    "roots/list": s.EmptyParams(),
    "elicitation/create": s.ElicitParams(message="Which port?", requested_schema={}),
    "notifications/initialized": s.EmptyParams(),
    "notifications/cancelled": s.CancelledParams(request_id=999),
    "notifications/progress": s.ProgressParams(progress_token=999, progress=1),
    "notifications/message": s.LoggingMessageParams(level="info", data="calm"),
    "notifications/resources/updated": s.ResourceUpdatedParams(uri="log://today"),
    "notifications/resources/list_changed": s.EmptyParams(),
    "notifications/tools/list_changed": s.EmptyParams(),
    "notifications/prompts/list_changed": s.EmptyParams(),
    "notifications/roots/list_changed": s.EmptyParams(),
    "notifications/elicitation/complete": s.ElicitationCompleteParams(elicitation_id="7"),
    "notifications/subscriptions/acknowledged": s.AcknowledgedParams(
        notifications=s.SubscriptionFilter()
    ),
}


def _connect(role, **options):
    options.setdefault("our_capabilities", CAPABILITIES[role])
    return Connection(
        our_role=role, our_info=s.Implementation(name=role.value, version="1"), **options
    )


class Pair(NamedTuple):
    client: Connection
    server: Connection


def _shake_hands(client, server):
    opened = client.open_request("initialize", client.initialize_params(), now=0.0)
    answer = client.receive(server.receive(opened.message).message)
    result = client.decode_result(answer.request, answer.result)
    server.receive(client.accept_initialize(result))
    return Pair(client, server)


@pytest.fixture(scope="session")
def connect():
    """Make a connection of a role; with all capabilities by default."""
    return _connect


@pytest.fixture(scope="session")
def shake_hands():
    """Walk two connections through the handshake."""
    return _shake_hands


@pytest.fixture
def pair():
    """A client and a server after the handshake."""
    return _shake_hands(_connect(Role.CLIENT), _connect(Role.SERVER))


@pytest.fixture(scope="session")
def ready():
    """Make a connection of a role whose handshake is over, or that is put into another state."""

    def make(role, state=None, **options):
        fresh = {Role.CLIENT: _connect(Role.CLIENT), Role.SERVER: _connect(Role.SERVER)}
        fresh[role] = _connect(role, **options)
        _shake_hands(fresh[Role.CLIENT], fresh[Role.SERVER])
        fresh[role].state = state or fresh[role].state
        return fresh[role]

    return make


@pytest.fixture(scope="session")
def message():
    """Return the encoded message with these members, and `jsonrpc` unless it is given."""

    def make(**members):
        return json.dumps({"jsonrpc": "2.0", **members}).encode()

    return make


@pytest.fixture(scope="session")
def valid_params():
    """Valid params for every method."""
    return PARAMS


@pytest.fixture
def stateless_client(connect):
    """A client that has discovered a server of all protocol versions."""
    made = connect(Role.CLIENT)
    made.accept_discovery(discovered([*ALL_PROTOCOL_VERSIONS]))
    return made
