"""What a stateless request says of itself is read once, however often it is said, and shared."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_trio import types as s
from mcp_trio._protocol.events import Reply
from mcp_trio._protocol.metadata import (
    CLIENT_CAPABILITIES,
    PROTOCOL_VERSION,
    SERVER_INFO,
    metadata_of,
    with_result_metadata,
)
from mcp_trio._protocol.methods import METHODS, Role, custom_method
from mcp_trio.errors import INVALID_PARAMS

STATELESS = "2026-07-28"
META = {PROTOCOL_VERSION: STATELESS, CLIENT_CAPABILITIES: {}}
SAID = json.dumps(META, separators=(",", ":"))

# Members of params, as text: some look like metadata, or break the quotes of those who only search.
VALUES = st.sampled_from(
    [SAID, "{}", "7", '""', '"\\""', r'",\"_meta\":{}"', f'{{"_meta":{SAID}}}']
)
KEYS = st.sampled_from(["name", "arguments", "_meta", r"x\"_meta", r"x,\"_meta", "\\u005fmeta"])
SPACES = st.sampled_from(["", "", "", " "])


@st.composite
def texts(draw):
    """Params, and whether their metadata stand beside others at an end, without white space."""
    members = draw(st.lists(st.tuples(KEYS, VALUES), max_size=3))
    members.insert(draw(st.integers(0, len(members))), ("_meta", SAID))
    space = draw(SPACES)
    is_beside_others = len(members) > 1 and not space
    is_at_an_end = is_beside_others and ("_meta", SAID) in (members[0], members[-1])
    said = ",".join(f'"{key}":{space}{value}' for key, value in members)
    return f"{{{space}{said}}}", is_at_an_end


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
    [f'{{"_meta":{SAID},"name":"tide"}}', f'{{"name":"tide","_meta":{SAID}}}'],
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
        frame = f'{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}'
        return server.receive(frame.encode())

    return take


@pytest.mark.parametrize("token", [7, "seven", None], ids=repr)
def test_a_token_is_found_whether_the_metadata_are_cut_out_or_not(take, token):
    said = json.dumps({**META, "progressToken": token}, separators=(",", ":"))
    cut = take(f'{{"name":"tide","_meta":{said}}}').request
    whole = take(f'{{"name":"tide", "_meta" : {said} }}').request
    assert (cut.params.meta is None, whole.params.meta is None) == (True, False)
    assert cut.progress_token == whole.progress_token == token


@pytest.mark.requirement("PROG-01", "META-10")
@pytest.mark.parametrize("token", [1.0, True, [], {}], ids=repr)
def test_a_token_of_another_type_is_rejected_in_a_stateless_request(take, token):
    said = json.dumps({**META, "progressToken": token}, separators=(",", ":"))
    for _ in range(2):  # nor when the same was refused before
        event = take(f'{{"name":"tide","_meta":{said}}}')
        assert isinstance(event, Reply)
        assert json.loads(event.message)["error"]["code"] == INVALID_PARAMS


def test_metadata_that_hold_what_is_no_value_are_rejected_wherever_they_stand(take):
    said = SAID.replace("{", '{"com.example/endless":1e999,', 1)
    for params in (f'{{"name":"tide","_meta":{said}}}', f'{{"name":"tide", "_meta":{said} }}'):
        event = take(params)
        assert isinstance(event, Reply)
        assert json.loads(event.message)["error"]["code"] == INVALID_PARAMS


def test_a_handler_of_peoples_own_sees_the_metadata_and_nobody_elses(take):
    row = custom_method("tools/call", params=s.CallToolParams)
    params = f'{{"name":"tide","_meta":{SAID}}}'
    first, second = (take(params, {**METHODS, row.name: row}).request for _ in range(2))
    assert first.params.meta == META
    first.params.meta["com.example/mine"] = 1
    first.params.meta[CLIENT_CAPABILITIES]["roots"] = {}
    assert second.params.meta == META


def test_a_result_is_dressed_without_a_change_to_what_the_handler_has_or_all_share():
    signature = {SERVER_INFO: {"name": "harbour"}}
    mine = s.CallToolResult(content=[], meta={"com.example/mine": 1})
    bare = s.CallToolResult(content=[])
    made = [with_result_metadata(each, METHODS["tools/call"], signature) for each in (mine, bare)]
    assert [each.meta for each in made] == [{**signature, "com.example/mine": 1}, signature]
    assert [each.result_type for each in made] == ["complete", "complete"]
    assert (mine.meta, bare.meta) == ({"com.example/mine": 1}, None)
    assert (mine.result_type, signature) == (None, {SERVER_INFO: {"name": "harbour"}})
