"""Extensions and what is not standard: nobody has to know them, and nothing else changes."""

import json

import msgspec
import pytest

from mcp_trio import Server
from mcp_trio import types as s
from mcp_trio._protocol.events import Reply, RequestReceived, ResponseReceived
from mcp_trio._protocol.metadata import CLIENT_CAPABILITIES, PROTOCOL_VERSION
from mcp_trio._protocol.methods import Role
from mcp_trio._protocol.versions import PROTOCOL_VERSIONS
from mcp_trio.errors import METHOD_NOT_FOUND, RemoteProtocolError

*LEGACY, STATELESS = PROTOCOL_VERSIONS
MAPS = {"com.example/maps": {"scale": 5}, "com.example/tides": {}}


class Chart(s.Result, kw_only=True):
    """A result of an extension's."""

    scale: int


@pytest.fixture
def hello(frame):
    """The handshake of a client with these capabilities; gives the server's result."""

    def hello(server, protocol_version, capabilities):
        info = {"name": "reed", "version": "3"}
        params = {
            "protocolVersion": protocol_version,
            "capabilities": capabilities,
            "clientInfo": info,
        }
        answer = server.receive(frame(id=0, method="initialize", params=params))
        return json.loads(answer.message)["result"]

    return hello


@pytest.fixture
def ask(frame):
    """Let a server receive a stateless request of a client with these extensions."""

    def ask(server, method, extensions=MAPS, id=1):  # noqa: A002  the specification's word
        capabilities = {"extensions": extensions}
        meta = {PROTOCOL_VERSION: STATELESS, CLIENT_CAPABILITIES: capabilities}
        return server.receive(frame(id=id, method=method, params={"_meta": meta}))

    return ask


@pytest.fixture
def client(connect):
    """A client of a server that has extensions."""
    made = connect(Role.CLIENT)
    capabilities = s.ServerCapabilities(tools=s.ToolsCapability(), extensions=MAPS)
    made.accept_discovery(
        s.DiscoverResult(supported_versions=[STATELESS], capabilities=capabilities)
    )
    return made


def answered(client, frame, result):
    opened = client.open_request("tools/list", None, now=0.0)
    event = client.receive(frame(id=opened.id, result=result))
    assert isinstance(event, ResponseReceived)
    return client.decode_result(opened, event.result)


@pytest.mark.requirement("EXT-01", "EXT-03")
def test_a_server_knows_which_extensions_a_request_has_and_says_its_own(connect, ask):
    own = {"com.example/maps": {}}
    capabilities = s.ServerCapabilities(tools=s.ToolsCapability(), extensions=own)
    server = connect(Role.SERVER, our_capabilities=capabilities)
    assert ask(server, "tools/list").request.peer.capabilities.extensions == MAPS
    discovered = json.loads(ask(server, "server/discover", id=2).message)["result"]
    assert discovered["capabilities"]["extensions"] == own


@pytest.mark.requirement("EXT-02")
@pytest.mark.parametrize("identifier", ["maps", "/maps", "1com/maps", "com.example", "com/-a"])
def test_a_server_has_no_extension_without_a_prefix(identifier):
    with pytest.raises(ValueError, match=r"an extension is named like com\.example/name"):
        Server("x", capabilities=s.ServerCapabilities(extensions={identifier: {}}))
    Server("x", capabilities=s.ServerCapabilities(extensions=MAPS))


@pytest.mark.requirement("EXT-04")
def test_an_extension_that_only_the_client_has_changes_nothing(connect, ask):
    server = connect(Role.SERVER)
    event = ask(server, "tools/list")
    assert isinstance(event, RequestReceived)
    server.start(event.request)
    result = json.loads(server.response(event.request, s.ListToolsResult(tools=[])))["result"]
    assert result["resultType"] == "complete"
    rejected = ask(server, "com.example/maps/draw", id=2)
    assert isinstance(rejected, Reply)
    assert json.loads(rejected.message)["error"]["code"] == METHOD_NOT_FOUND


@pytest.mark.requirement("EXT-04")
def test_an_extension_that_only_the_server_has_changes_nothing(client, frame):
    sent = client.open_request("tools/list", None, now=0.0).message
    assert "extensions" not in json.loads(sent)["params"]["_meta"][CLIENT_CAPABILITIES]
    assert answered(client, frame, {"resultType": "complete", "tools": []}).tools == []
    with pytest.raises(RemoteProtocolError, match="unknown type: 'chart'"):
        answered(client, frame, {"resultType": "chart", "scale": 5})


@pytest.mark.requirement("EXT-06")
@pytest.mark.parametrize("bad", [{}, {"scale": "large"}, {"scale": None}])
def test_what_an_extension_brings_is_checked(client, frame, bad):
    client.result_types = {"chart": Chart}
    assert answered(client, frame, {"resultType": "chart", "scale": 5}).scale == 5
    with pytest.raises(RemoteProtocolError, match="not a valid result"):
        answered(client, frame, {"resultType": "chart", **bad})


@pytest.mark.requirement("EXT-06")
@pytest.mark.parametrize("bad", [[], {"com.example/maps": 5}, "all"])
def test_extensions_of_another_shape_are_rejected(connect, ask, bad):
    event = ask(connect(Role.SERVER), "tools/list", bad)
    error = json.loads(event.message)["error"]
    assert error["code"] == -32602
    assert CLIENT_CAPABILITIES in error["message"]


@pytest.mark.requirement("EXT-08", "EXT-09")
@pytest.mark.parametrize("protocol_version", LEGACY)
def test_a_handshake_may_tell_of_what_is_not_standard(connect, hello, protocol_version):
    own = s.ServerCapabilities(tools=s.ToolsCapability(), experimental={"tides": {"a": 1}})
    server = connect(Role.SERVER, our_capabilities=own)
    said = {"experimental": {"charts": {}}, "extensions": MAPS, "unheardOf": 7}
    result = hello(server, protocol_version, said)
    assert result["protocolVersion"] == protocol_version
    assert result["capabilities"] == {"tools": {}, "experimental": {"tides": {"a": 1}}}
    assert msgspec.to_builtins(server.peer_capabilities)["experimental"] == {"charts": {}}
