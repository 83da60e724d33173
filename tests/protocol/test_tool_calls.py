"""Calls of tools are decoded in one pass, with the same results and errors as in the general way."""

import json
from contextlib import suppress

import attrs
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_trio._jsonrpc.channel_messages import AuthInfo, DecodedMessage, PrincipalMessage
from mcp_trio._protocol.connection import Connection, ImmediateResponse, RequestReceived
from mcp_trio._protocol.metadata import CLIENT_CAPABILITIES, PROTOCOL_VERSION, decode_tool_call
from mcp_trio._protocol.methods import METHODS, Role
from mcp_trio.errors import INVALID_PARAMS, METHOD_NOT_FOUND
from mcp_trio.types import ClientCapabilities, Implementation, ServerCapabilities, ToolsCapability

# An equal row, which is not the one whose calls are decoded in one pass.
GENERAL = {**METHODS, "tools/call": attrs.evolve(METHODS["tools/call"])}

WITH_TOOLS = ServerCapabilities(tools=ToolsCapability())
META = {PROTOCOL_VERSION: "2026-07-28", CLIENT_CAPABILITIES: {}}
OTHER = {"name": "rush", "version": "4"}
META_OUT_OF_RANGE = json.dumps({**META, "n": 0})[:-2] + "1e999}"


def server(methods=METHODS, *, has_session=True, get_capabilities=None):
    connection = Connection(
        our_role=Role.SERVER,
        our_info=Implementation(name="x", version="1"),
        our_capabilities=WITH_TOOLS,
        get_capabilities=get_capabilities,
        methods=methods,
    )
    if not has_session:
        return connection
    hello = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "reed", "version": "3"},
    }
    message = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}
    connection.receive(json.dumps(message).encode())
    return connection


def facts(connection, data):
    """Return all that follows from a received message."""
    event = connection.receive(data)
    if isinstance(event, RequestReceived):
        request = event.request
        params = request.params
        if request.peer.protocol_version.is_stateless:
            # The general way keeps metadata that is neither the first nor the last member.
            params = msgspec.structs.replace(params, meta=None)
        return (
            request.id,
            request.method.name,
            params,
            type(params),
            request.size_bytes,
            request.progress_token,
            request.peer.protocol_version.name,
            request.peer.capabilities,
            request.peer.auth,
            request.client_key,
        )
    message = event.message if isinstance(event, ImmediateResponse) else None
    return type(event), message, dict(connection.counts), connection.state


VALUES = st.sampled_from(
    [
        *('"add"', "7", "null", "{}", '{"a":1}', "[]", '"\\ud800"', "1e999", '"ä"', "[[[[]]]]"),
        *(json.dumps(META), json.dumps({**META, "progressToken": 5}), '{"progressToken":"p"}'),
        *('{"progressToken":[]}', '{"n":1e999}', '{"k":{"action":"accept"}}'),
        json.dumps({PROTOCOL_VERSION: "1999-01-01", CLIENT_CAPABILITIES: {}}),
    ]
)
NAMES = st.sampled_from(
    ["name", "name", "arguments", "_meta", "inputResponses", "requestState", "task"]
)
MEMBERS = st.dictionaries(NAMES, VALUES, max_size=4)
IDS = st.sampled_from(["1", '"x"', "null", "1.0", "true", "99999999999999999999"])


def written(members):
    return "{" + ",".join(f'"{name}":{value}' for name, value in members) + "}"


@st.composite
def messages(draw):
    """Return calls with and without faults, their members in any order."""
    params = {"name": '"add"', **draw(MEMBERS)}.items()
    envelope = [
        ("jsonrpc", draw(st.sampled_from(['"2.0"', '"2.0"', '"2.0"', '"1.0"', "2"]))),
        ("id", draw(IDS)),
        ("method", draw(st.sampled_from(['"tools/call"'] * 5 + ['"tools/list"', "1"]))),
        ("params", draw(st.just(written(params)) | VALUES)),
        *draw(
            st.lists(st.tuples(st.sampled_from(["result", "error", "extra"]), VALUES), max_size=1)
        ),
    ]
    data = written(draw(st.permutations(envelope))).encode()
    return data[: draw(st.sampled_from([len(data)] * 9 + [len(data) // 2]))]


def call(params):
    return f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}'.encode()


@pytest.mark.requirement("BASE-09", "META-09")
@given(data=messages())
@example(data=call(written([("name", '"add"'), ("_meta", META_OUT_OF_RANGE)])))
@example(data=call('{"name":"add"},"result":{}'))
def test_a_call_is_received_as_in_the_general_way(data):
    assert facts(server(), data) == facts(server(GENERAL), data)


def repeated(number, params, method="tools/call"):
    message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    return json.dumps(message).encode()


PARAMS = (
    {"name": "add"},
    {"name": "add", "_meta": META},
    {"name": 5, "_meta": META},
    {"name": "add", "_meta": {"progressToken": "p"}},
    {"name": "add", "_meta": {"progressToken": []}},
    {"name": "add", "_meta": {**META, "progressToken": 1}},
    {"name": "add", "_meta": {"progressToken": "2", **META}},
)
REPEATED = st.builds(repeated, st.integers(1, 8), st.sampled_from(PARAMS))
SENDERS = st.sampled_from([None, None, None, AuthInfo(subject="ada"), AuthInfo(subject="bob")])
SENT = st.tuples(st.one_of(REPEATED, REPEATED, REPEATED, messages()), SENDERS)


@pytest.mark.requirement("BASE-09", "META-09")
@given(
    has_session=st.booleans(),
    sent=st.lists(SENT, min_size=4, max_size=16),
    tools=st.integers(1, 16),
    is_decoded=st.booleans(),
)
@example(
    has_session=True,
    sent=[(repeated(1, PARAMS[1]), None), (repeated(2, PARAMS[0]), None)],
    tools=9,
    is_decoded=False,
)
def test_each_of_many_calls_is_received_as_in_the_general_way(has_session, sent, tools, is_decoded):
    """After so many calls, the server has no more tools; HTTP has decoded the calls already."""
    capabilities, seen = WITH_TOOLS, []
    connections = [
        server(methods, has_session=has_session, get_capabilities=lambda: capabilities)
        for methods in (METHODS, GENERAL)
    ]
    for number, (data, auth) in enumerate(sent):
        if number == tools:
            capabilities = ServerCapabilities()
        received = PrincipalMessage(data, auth, 7)
        decoded = received
        if is_decoded:
            with suppress(msgspec.MsgspecError):
                decoded = DecodedMessage(data, decode_tool_call(data), auth, 7)
        seen.append([facts(connections[0], decoded), facts(connections[1], received)])
    assert [fast for fast, _ in seen] == [general for _, general in seen]


def test_calls_with_equal_metadata_share_their_sender_until_the_tools_are_gone():
    capabilities = WITH_TOOLS
    connection = server(has_session=False, get_capabilities=lambda: capabilities)

    def receive(number):
        return connection.receive(repeated(number, {"name": "add", "_meta": META}))

    first, second = receive(1).request, receive(2).request
    assert first.peer is second.peer
    capabilities = ServerCapabilities()
    error = json.loads(receive(3).message)["error"]
    assert (error["code"], "not announced" in error["message"]) == (METHOD_NOT_FOUND, True)


def test_the_examples_of_the_property_reach_both_versions_and_all_errors():
    legacy = facts(server(), call('{"name":"add","_meta":{"progressToken":5}}'))
    meta = json.dumps({**META, "progressToken": 5})
    stateless = facts(server(), call(f'{{"name":"add","_meta":{meta}}}'))
    assert (legacy[5], stateless[5]) == (5, 5)
    assert legacy[2].meta == {"progressToken": 5}
    assert stateless[6:8] == ("2026-07-28", ClientCapabilities())


WITHOUT_BRACES = json.dumps(META)[1:-1]


@pytest.mark.parametrize(
    "meta",
    [
        *(f'{{{WITHOUT_BRACES},"progressToken":{token}}}' for token in ("7", '"a b"', "0", '""')),
        *(f'{{"progressToken":{token},{WITHOUT_BRACES}}}' for token in ("7", '"a b"', "-1", "1.5")),
        f'{{"progressToken": 7, {WITHOUT_BRACES}}}',
        f'{{{WITHOUT_BRACES}, "progressToken": 7}}',
        f'{{{WITHOUT_BRACES},"progressToken":007}}',
        f'{{{WITHOUT_BRACES},"progressToken":"\\u0041"}}',
        f'{{{WITHOUT_BRACES},"progressToken":[7]}}',
        f'{{{WITHOUT_BRACES},"other":{{"n":1,"progressToken":7}}}}',
        f'{{{WITHOUT_BRACES},"other":[{{"n":1}},"progressToken"]}}',
        f'{{{WITHOUT_BRACES},"other":",\\"progressToken\\":7"}}',
        f'{{"progressToken":7,{WITHOUT_BRACES},"progressToken":8}}',
        f'{{"progressToken":7,{WITHOUT_BRACES},"progress\\u0054oken":8}}',
        f'{{"progressToken":7,"n":1,{WITHOUT_BRACES}}}',
        f'{{{WITHOUT_BRACES},"myprogressToken":7}}',
        '{"progressToken":7}',
    ],
)
def test_a_token_is_the_same_in_the_first_call_and_in_later_ones(meta):
    connections = server(has_session=False), server(GENERAL, has_session=False)
    for number in (1, 2):
        data = call(f'{{"name":"add","_meta":{meta}}}').replace(b'"id":1', b'"id":%d' % number)
        fast, general = (facts(connection, data) for connection in connections)
        assert fast == general


@pytest.mark.parametrize("params", PARAMS[:2])
def test_no_call_is_allowed_as_an_earlier_one_was_after_the_end(params):
    connection = server()
    assert isinstance(connection.receive(repeated(1, params)), RequestReceived)
    connection.close()
    assert isinstance(connection.receive(repeated(2, params)), ImmediateResponse)


def test_a_call_after_another_handshake_has_the_new_sender():
    connection = server()
    first = connection.receive(repeated(1, {"name": "add"})).request
    connection.finish(first)
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": OTHER}
    connection.receive(repeated(2, hello, "initialize"))
    second = connection.receive(repeated(3, {"name": "add"})).request
    names = [first.peer.info.name, second.peer.info.name]
    assert (names, second.peer.protocol_version.name) == (["reed", "rush"], "2025-06-18")


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ('{"name":"add","arguments":[]}', "arguments is not an object"),
        ('{"name":"add","_meta":7}', "Expected `object | null`, got `int` - at `$._meta`"),
        ('{"arguments":{}}', "Object missing required field `name`"),
    ],
)
def test_invalid_params_are_rejected_with_the_reason(params, text):
    error = json.loads(server().receive(call(params)).message)["error"]
    assert error == {"code": INVALID_PARAMS, "message": f"invalid params: {text}"}


@pytest.mark.requirement("BASE-17")
def test_params_of_a_users_own_type_keep_all_members():
    row = attrs.evolve(METHODS["tools/call"], params=dict, is_custom=True)
    event = server({**METHODS, "tools/call": row}).receive(call('{"name":"add","more":1}'))
    assert event.request.params == {"name": "add", "more": 1}
