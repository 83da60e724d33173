"""The `_meta` member: keys, stateless metadata, and extensions."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_trio import Server
from mcp_trio import types as s
from mcp_trio._protocol.connection import ImmediateResponse, RequestReceived, ResponseReceived
from mcp_trio._protocol.metadata import (
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    LOG_LEVEL,
    PROTOCOL_VERSION,
    SERVER_INFO,
    SUBSCRIPTION_ID,
    check_keys,
    metadata_of,
    with_result_metadata,
)
from mcp_trio._protocol.methods import METHODS, Role, custom_method
from mcp_trio._protocol.requests import IncomingTrigger
from mcp_trio._protocol.versions import PROTOCOL_VERSIONS
from mcp_trio.errors import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    LocalProtocolError,
    RemoteProtocolError,
)

# Keys of `_meta`: those that users may choose, and reserved ones.

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
    """Check that a key is rejected wherever it can be used, and return the error."""
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
    assert rejected(key) == f"a key of _meta must look like com.example/name, not {key!r}"
    with pytest.raises(LocalProtocolError, match=r"must look like com\.example/name"):
        pair.client.open_request("tools/list", {"_meta": {key: 1}}, now=0.0)
    assert len(pair.client.outgoing) == 0


@pytest.mark.requirement("META-07", "META-08", "TRAP-15")
@pytest.mark.parametrize("key", [*RESERVED_BY_THE_SECOND, *RESERVED_BY_THE_LAST_BUT_ONE])
def test_keys_reserved_by_any_version_are_rejected(pair, key):
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
def test_received_reserved_keys_are_kept(connect, message, protocol_version, value):
    server = connect(Role.SERVER)
    meta = {"dev.mcp/a": value, "io.modelcontextprotocol/unheardOf": value, "mcp.dev/": value}
    metadata = dict(meta)
    if PROTOCOL_VERSIONS[protocol_version].is_stateless:
        metadata |= {PROTOCOL_VERSION: protocol_version, CLIENT_CAPABILITIES: {}}
    else:
        metadata |= {LOG_LEVEL: value, CLIENT_INFO: value}  # these mean nothing here
        info = {"name": "reed", "version": "3"}
        hello = {"protocolVersion": protocol_version, "capabilities": {}, "clientInfo": info}
        server.receive(message(id=0, method="initialize", params={**hello, "_meta": meta}))
        server.receive(message(method="notifications/initialized", params={"_meta": meta}))
        assert server.protocol_version.name == protocol_version
    event = server.receive(message(id=1, method="tools/list", params={"_meta": metadata}))
    assert isinstance(event, RequestReceived)
    assert event.request.params.meta == metadata


# Equal metadata of stateless requests are decoded once and shared.

STATELESS = "2026-07-28"
META = {PROTOCOL_VERSION: STATELESS, CLIENT_CAPABILITIES: {}}
META_JSON = json.dumps(META, separators=(",", ":"))

# Members of params, as text: some look like metadata, or break the quotes of parsers that only search.
VALUES = st.sampled_from(
    [META_JSON, "{}", "7", '""', '"\\""', r'",\"_meta\":{}"', f'{{"_meta":{META_JSON}}}']
)
KEYS = st.sampled_from(["name", "arguments", "_meta", r"x\"_meta", r"x,\"_meta", "\\u005fmeta"])
SPACES = st.sampled_from(["", "", "", " "])


@st.composite
def texts(draw):
    """Params, and whether their metadata stand beside others at an end, without white space."""
    members = draw(st.lists(st.tuples(KEYS, VALUES), max_size=3))
    members.insert(draw(st.integers(0, len(members))), ("_meta", META_JSON))
    space = draw(SPACES)
    is_beside_others = len(members) > 1 and not space
    is_at_an_end = is_beside_others and ("_meta", META_JSON) in (members[0], members[-1])
    members_text = ",".join(f'"{key}":{space}{value}' for key, value in members)
    return f"{{{space}{members_text}}}", is_at_an_end


@given(drawn=texts())
def test_params_without_their_metadata_keep_everything_else(drawn):
    text, is_at_an_end = drawn
    params = msgspec.Raw(text.encode())
    metadata = metadata_of(params)
    if metadata is None:  # they stand there twice, and the last ones are none
        assert json.loads(text)["_meta"] != META
        return
    rest = metadata.params_without_meta(params)
    assert (rest is not None) is is_at_an_end
    if rest is None:
        return
    whole, left = json.loads(text), json.loads(rest)
    assert {**whole, "_meta": None} == {**left, "_meta": None}


@pytest.mark.parametrize(
    "text",
    [f'{{"_meta":{META_JSON},"name":"tide"}}', f'{{"name":"tide","_meta":{META_JSON}}}'],
    ids=["first", "last"],
)
def test_metadata_at_either_end_are_not_read_again(text):
    params = msgspec.Raw(text.encode())
    assert json.loads(metadata_of(params).params_without_meta(params)) == {"name": "tide"}


@pytest.fixture
def take(connect):
    """Let a server with these methods receive a call whose params are this text."""

    def take(params, methods=METHODS, method="tools/call"):
        server = connect(Role.SERVER, methods=methods)
        message = f'{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}'
        return server.receive(message.encode())

    return take


@pytest.mark.parametrize("token", [7, "seven", None], ids=repr)
@pytest.mark.parametrize("method", ["prompts/get", "tools/call"])
def test_a_token_is_found_whether_the_metadata_are_cut_out_or_not(take, method, token):
    metadata = json.dumps({**META, "progressToken": token}, separators=(",", ":"))
    cut = take(f'{{"name":"tide","_meta":{metadata}}}', method=method).request
    whole = take(f'{{"name":"tide", "_meta" : {metadata} }}', method=method).request
    # Calls of tools are decoded without `_meta`, wherever it is.
    is_call = method == "tools/call"
    assert (cut.params.meta is None, whole.params.meta is None) == (True, is_call)
    assert cut.progress_token == whole.progress_token == token


@pytest.mark.requirement("PROG-01", "META-10")
@pytest.mark.parametrize("token", [1.0, True, [], {}], ids=repr)
def test_a_token_of_another_type_is_rejected_in_a_stateless_request(take, token):
    metadata = json.dumps({**META, "progressToken": token}, separators=(",", ":"))
    for _ in range(2):  # nor when the same was rejected before
        event = take(f'{{"name":"tide","_meta":{metadata}}}')
        assert isinstance(event, ImmediateResponse)
        assert json.loads(event.message)["error"]["code"] == INVALID_PARAMS


def test_undecodable_metadata_are_rejected_at_every_position(take):
    metadata = META_JSON.replace("{", '{"com.example/endless":1e999,', 1)
    for params in (
        f'{{"name":"tide","_meta":{metadata}}}',
        f'{{"name":"tide", "_meta":{metadata} }}',
    ):
        event = take(params)
        assert isinstance(event, ImmediateResponse)
        assert json.loads(event.message)["error"]["code"] == INVALID_PARAMS


def test_only_handlers_of_custom_methods_receive_the_metadata(take):
    row = custom_method("tools/call", params=s.CallToolParams)
    params = f'{{"name":"tide","_meta":{META_JSON}}}'
    first, second = (take(params, {**METHODS, row.name: row}).request for _ in range(2))
    assert first.params.meta == META
    first.params.meta["com.example/mine"] = 1
    first.params.meta[CLIENT_CAPABILITIES]["roots"] = {}
    assert second.params.meta == META


def test_adding_result_metadata_changes_neither_the_result_nor_the_shared_metadata():
    signature = {SERVER_INFO: {"name": "harbour"}}
    mine = s.CallToolResult(content=[], meta={"com.example/mine": 1})
    bare = s.CallToolResult(content=[])
    made = [with_result_metadata(each, METHODS["tools/call"], signature) for each in (mine, bare)]
    assert [each.meta for each in made] == [{**signature, "com.example/mine": 1}, signature]
    assert [each.result_type for each in made] == ["complete", "complete"]
    assert (mine.meta, bare.meta) == ({"com.example/mine": 1}, None)
    assert (mine.result_type, signature) == (None, {SERVER_INFO: {"name": "harbour"}})


# Extensions and experimental capabilities.

*LEGACY, NEWEST = PROTOCOL_VERSIONS
MAPS = {"com.example/maps": {"scale": 5}, "com.example/tides": {}}


class Chart(s.Result, kw_only=True):
    """A result of an extension's."""

    scale: int


@pytest.fixture
def hello(message):
    """The handshake of a client with these capabilities; gives the server's result."""

    def hello(server, protocol_version, capabilities):
        info = {"name": "reed", "version": "3"}
        params = {
            "protocolVersion": protocol_version,
            "capabilities": capabilities,
            "clientInfo": info,
        }
        answer = server.receive(message(id=0, method="initialize", params=params))
        return json.loads(answer.message)["result"]

    return hello


@pytest.fixture
def ask(message):
    """Let a server receive a stateless request of a client with these extensions."""

    def ask(server, method, extensions=MAPS, id=1):  # noqa: A002  the specification's word
        capabilities = {"extensions": extensions}
        meta = {PROTOCOL_VERSION: NEWEST, CLIENT_CAPABILITIES: capabilities}
        return server.receive(message(id=id, method=method, params={"_meta": meta}))

    return ask


@pytest.fixture
def client(connect):
    """A client of a server that has extensions."""
    made = connect(Role.CLIENT)
    capabilities = s.ServerCapabilities(tools=s.ToolsCapability(), extensions=MAPS)
    made.accept_discovery(s.DiscoverResult(supported_versions=[NEWEST], capabilities=capabilities))
    return made


def answered(client, message, result):
    opened = client.open_request("tools/list", None, now=0.0)
    event = client.receive(message(id=opened.id, result=result))
    assert isinstance(event, ResponseReceived)
    return client.decode_result(opened, event.result)


@pytest.mark.requirement("EXT-01", "EXT-03")
def test_client_and_server_announce_their_extensions(connect, ask):
    own = {"com.example/maps": {}}
    capabilities = s.ServerCapabilities(tools=s.ToolsCapability(), extensions=own)
    server = connect(Role.SERVER, our_capabilities=capabilities)
    assert ask(server, "tools/list").request.peer.capabilities.extensions == MAPS
    discovered = json.loads(ask(server, "server/discover", id=2).message)["result"]
    assert discovered["capabilities"]["extensions"] == own


@pytest.mark.requirement("EXT-02")
@pytest.mark.parametrize("identifier", ["maps", "/maps", "1com/maps", "com.example", "com/-a"])
def test_a_server_has_no_extension_without_a_prefix(identifier):
    with pytest.raises(ValueError, match=r"an extension needs a name such as com\.example/name"):
        Server("x", capabilities=s.ServerCapabilities(extensions={identifier: {}}))
    Server("x", capabilities=s.ServerCapabilities(extensions=MAPS))


@pytest.mark.requirement("EXT-04")
def test_an_extension_that_only_the_client_has_changes_nothing(connect, ask):
    server = connect(Role.SERVER)
    event = ask(server, "tools/list")
    assert isinstance(event, RequestReceived)
    event.request.move(IncomingTrigger.START)
    result = json.loads(server.response(event.request, s.ListToolsResult(tools=[])))["result"]
    assert result["resultType"] == "complete"
    rejected = ask(server, "com.example/maps/draw", id=2)
    assert isinstance(rejected, ImmediateResponse)
    assert json.loads(rejected.message)["error"]["code"] == METHOD_NOT_FOUND


@pytest.mark.requirement("EXT-04")
def test_an_extension_that_only_the_server_has_changes_nothing(client, message):
    sent = client.open_request("tools/list", None, now=0.0).message
    assert "extensions" not in json.loads(sent)["params"]["_meta"][CLIENT_CAPABILITIES]
    assert answered(client, message, {"resultType": "complete", "tools": []}).tools == []
    with pytest.raises(RemoteProtocolError, match="unknown type: 'chart'"):
        answered(client, message, {"resultType": "chart", "scale": 5})


@pytest.mark.requirement("EXT-06")
@pytest.mark.parametrize("bad", [{}, {"scale": "large"}, {"scale": None}])
def test_the_result_of_an_extension_is_checked(client, message, bad):
    client.result_types = {"chart": Chart}
    assert answered(client, message, {"resultType": "chart", "scale": 5}).scale == 5
    with pytest.raises(RemoteProtocolError, match="not a valid result"):
        answered(client, message, {"resultType": "chart", **bad})


@pytest.mark.requirement("EXT-06")
@pytest.mark.parametrize("bad", [[], {"com.example/maps": 5}, "all"])
def test_extensions_of_another_shape_are_rejected(connect, ask, bad):
    event = ask(connect(Role.SERVER), "tools/list", bad)
    error = json.loads(event.message)["error"]
    assert error["code"] == -32602
    assert CLIENT_CAPABILITIES in error["message"]


@pytest.mark.requirement("EXT-08", "EXT-09")
@pytest.mark.parametrize("protocol_version", LEGACY)
def test_a_handshake_may_announce_experimental_capabilities(connect, hello, protocol_version):
    own = s.ServerCapabilities(tools=s.ToolsCapability(), experimental={"tides": {"a": 1}})
    server = connect(Role.SERVER, our_capabilities=own)
    capabilities = {"experimental": {"charts": {}}, "extensions": MAPS, "unheardOf": 7}
    result = hello(server, protocol_version, capabilities)
    assert result["protocolVersion"] == protocol_version
    assert result["capabilities"] == {"tools": {}, "experimental": {"tides": {"a": 1}}}
    assert msgspec.to_builtins(server.peer_capabilities)["experimental"] == {"charts": {}}
