"""Which codes an error that we answer with may have, by revision."""

import json

import pytest

from mcp_trio import errors as _errors
from mcp_trio._protocol.metadata import Peer
from mcp_trio._protocol.methods import Role
from mcp_trio._protocol.requests import IncomingRequest
from mcp_trio._protocol.versions import PROTOCOL_VERSIONS
from mcp_trio.errors import HEADER_MISMATCH, INTERNAL_ERROR, INVALID_PARAMS
from mcp_trio.types import ClientCapabilities, PaginatedParams

*LEGACY, STATELESS = PROTOCOL_VERSIONS.values()
OURS = {name: code for name, code in vars(_errors).items() if name.isupper()}
JSON_RPC = {-32700, -32600, -32601, -32602, -32603}
DEFINED = {-32020, -32021, -32022}


@pytest.fixture
def answered(connect):
    """The code on the wire of an error with this code."""

    def answered(protocol_version, code):
        server = connect(Role.SERVER)
        peer = Peer(protocol_version=protocol_version, capabilities=ClientCapabilities())
        method = server.methods["tools/list"]
        request = IncomingRequest("q", method, PaginatedParams(), peer=peer)
        answer = json.loads(server.error(request, code, "no", {"a": 1}))
        assert answer.pop("error") | {"code": 0} == {"code": 0, "message": "no", "data": {"a": 1}}
        assert answer == {"jsonrpc": "2.0", "id": "q"}
        return json.loads(server.error(request, code, "no"))["error"]["code"]

    return answered


@pytest.mark.requirement("ERR-07", "ERR-08", "ERR-10", "ERR-06")
@pytest.mark.parametrize("code", range(-32105, -31995))
def test_a_stateless_request_hears_no_code_that_is_not_defined(answered, code):
    is_reserved = -32099 <= code <= -32000 and code not in DEFINED
    expected = {-32002: INVALID_PARAMS}.get(code, INTERNAL_ERROR if is_reserved else code)
    assert answered(STATELESS, code) == expected


@pytest.mark.requirement("ERR-01")
@pytest.mark.parametrize("code", [*OURS.values(), -32050, 7])
@pytest.mark.parametrize(
    "protocol_version", LEGACY, ids=lambda protocol_version: protocol_version.name
)
def test_a_legacy_request_hears_the_code_that_was_meant(answered, protocol_version, code):
    assert answered(protocol_version, code) == code


@pytest.mark.requirement("ERR-11", "ERR-10", "TRAP-14")
def test_the_codes_of_the_engine_are_defined_or_outside_of_what_is_reserved():
    told = {STATELESS.error_code_for(code) for code in OURS.values()}
    assert all(not -32768 <= code <= -32000 for code in told - JSON_RPC - DEFINED)
    assert told >= DEFINED
    assert HEADER_MISMATCH == -32020  # and not -32001, as drafts had it


@pytest.mark.requirement("ERR-11")
@pytest.mark.parametrize("code", [-1, 1, 404, -31999, -32769])
@pytest.mark.parametrize(
    "protocol_version",
    PROTOCOL_VERSIONS.values(),
    ids=lambda protocol_version: protocol_version.name,
)
def test_the_codes_of_applications_pass(answered, protocol_version, code):
    assert answered(protocol_version, code) == code
