"""Keys of `_meta`: which of them people may choose, and whose the others are."""

import json

import pytest

from mcp_trio import Server
from mcp_trio._protocol.events import RequestReceived
from mcp_trio._protocol.metadata import (
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    LOG_LEVEL,
    PROTOCOL_VERSION,
    SERVER_INFO,
    SUBSCRIPTION_ID,
    check_keys,
)
from mcp_trio._protocol.methods import Role
from mcp_trio._protocol.versions import PROTOCOL_VERSIONS
from mcp_trio.errors import LocalProtocolError

GOOD = [
    "",
    "a",
    "port",
    "a.b_c-d9",
    "9",
    "com.example/",
    "com.example/port",
    "x/9",
    "com.ex-ample.a1/port",
    "com.example.mcp/port",
    "mcp/port",
    "com.example/mcp",
]
BAD_PREFIXES = ["/a", "com./a", ".com/a", "com..x/a", "1com/a", "com.-x/a", "com.x-/a", "c om/a"]
BAD_NAMES = ["-a", "a-", "_a", "a.", "a b", "é", "com.example/-a", "com.example/a_", "a:b"]
TOO_MANY = ["com/example/a", "com.example//a"]
RESERVED_BY_THE_SECOND = [
    "dev.mcp/a",
    "io.modelcontextprotocol/a",
    "org.modelcontextprotocol.api/a",
    "com.mcp.tools/",
]
RESERVED_BY_THE_LAST_BUT_ONE = [
    "mcp.dev/a",
    "modelcontextprotocol.io/a",
    "api.modelcontextprotocol.org/a",
    "com.example.mcp.tools/a",
]


def rejected(key):
    """What people hear who use a key, wherever they can."""
    with pytest.raises(ValueError, match="_meta") as caught:
        check_keys([key])
    with pytest.raises(ValueError, match="_meta"):
        Server("x").tool(name="t", meta={"fine": 1, key: 1})(rejected)
    return str(caught.value)


@pytest.mark.requirement("META-03", "META-04", "META-05")
@pytest.mark.parametrize("key", GOOD)
def test_a_key_is_a_name_that_may_have_a_prefix(pair, key):
    check_keys([key])
    opened = pair.client.open_request("tools/list", {"_meta": {key: 1}}, now=0.0)
    assert json.loads(opened.message)["params"]["_meta"] == {key: 1}


@pytest.mark.requirement("META-03", "META-04", "META-05", "META-06")
@pytest.mark.parametrize("key", [*BAD_PREFIXES, *BAD_NAMES, *TOO_MANY])
def test_another_key_is_rejected_with_an_example_in_reverse_order(pair, key):
    assert rejected(key) == f"a key of _meta is named like com.example/name, unlike {key!r}"
    with pytest.raises(LocalProtocolError, match=r"named like com\.example/name"):
        pair.client.open_request("tools/list", {"_meta": {key: 1}}, now=0.0)
    assert len(pair.client.outgoing) == 0


@pytest.mark.requirement("META-07", "META-08", "TRAP-15")
@pytest.mark.parametrize("key", [*RESERVED_BY_THE_SECOND, *RESERVED_BY_THE_LAST_BUT_ONE])
def test_what_any_protocol_version_reserves_is_left_to_the_specification(pair, key):
    assert rejected(key) == f"the key {key!r} of _meta is reserved for the specification"
    with pytest.raises(LocalProtocolError, match="is reserved"):
        pair.client.open_request("tools/list", {"_meta": {key: 1}}, now=0.0)


@pytest.mark.requirement("META-06", "TRAP-15")
def test_the_keys_of_the_engine_are_reserved_by_the_newer_rule():
    keys = [PROTOCOL_VERSION, CLIENT_CAPABILITIES, CLIENT_INFO, SERVER_INFO, LOG_LEVEL]
    for key in [*keys, SUBSCRIPTION_ID]:
        assert key.startswith("io.modelcontextprotocol/")
        with pytest.raises(ValueError, match="is reserved"):
            check_keys([key])


@pytest.mark.requirement("META-09")
@pytest.mark.parametrize("value", [None, 7, "x", [1, {}], {"a": None}])
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
def test_whatever_stands_under_a_reserved_key_arrives_as_it_came(
    connect, frame, protocol_version, value
):
    server = connect(Role.SERVER)
    meta = {"dev.mcp/a": value, "io.modelcontextprotocol/unheardOf": value, "mcp.dev/": value}
    said = dict(meta)
    if PROTOCOL_VERSIONS[protocol_version].is_stateless:
        said |= {PROTOCOL_VERSION: protocol_version, CLIENT_CAPABILITIES: {}}
    else:
        said |= {LOG_LEVEL: value, CLIENT_INFO: value}  # these mean nothing here
        info = {"name": "reed", "version": "3"}
        hello = {"protocolVersion": protocol_version, "capabilities": {}, "clientInfo": info}
        server.receive(frame(id=0, method="initialize", params={**hello, "_meta": meta}))
        server.receive(frame(method="notifications/initialized", params={"_meta": meta}))
        assert server.protocol_version.name == protocol_version
    event = server.receive(frame(id=1, method="tools/list", params={"_meta": said}))
    assert isinstance(event, RequestReceived)
    assert event.request.params.meta == said
