"""A frame that is an array: its messages, whatever they are."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_trio._jsonrpc.messages import Batch, Decoder, Malformed, Notification, Request
from mcp_trio.errors import INVALID_REQUEST, PARSE_ERROR

decode = Decoder(json_depth_max=512).decode

PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
NOTE = b'{"jsonrpc":"2.0","method":"note"}'
ANSWER = b'{"jsonrpc":"2.0","id":2,"result":{}}'
BAD = b'{"jsonrpc":"2.0","id":7,"method":9}'


@pytest.mark.requirement("BASE-24")
@pytest.mark.parametrize("around", [(b"[", b"]"), (b" \t[ ", b" ] "), (b"\n[\n", b"\n]\n")])
def test_a_batch_is_its_messages_in_order(around):
    batch = decode(around[0] + b" , ".join([PING, NOTE, ANSWER, BAD]) + around[1])
    assert isinstance(batch, Batch)
    ping, note, answer, bad = batch.messages
    assert (ping, note) == (Request(1, "ping", None), Notification("note", None))
    assert (answer.id, bytes(answer.result)) == (2, b"{}")
    assert (bad.code, bad.id, bad.is_request) == (INVALID_REQUEST, 7, True)


@pytest.mark.parametrize(
    ("frame", "code", "says"),
    [
        (b"[]", INVALID_REQUEST, "an empty batch"),
        (b" [ ] ", INVALID_REQUEST, "an empty batch"),
        (b"[" + PING, PARSE_ERROR, "incomplete text"),
        (b"[" + PING + b"]]", PARSE_ERROR, "trailing"),
        (b"[" + PING + b",]", PARSE_ERROR, "JSON"),
        (b"[NaN]", PARSE_ERROR, "JSON"),
        (b'["\xff"]', PARSE_ERROR, "UTF-8"),
        (b"[" * 600 + b"]" * 600, INVALID_REQUEST, "limits.messages.json_depth_max"),
        (
            b"[" + b",".join([NOTE] * 4) + b"]",
            INVALID_REQUEST,
            "limits.messages.batch_size_max (3)",
        ),
    ],
)
def test_what_is_no_batch_is_rejected_as_a_whole(frame, code, says):
    rejected = Decoder(json_depth_max=512, batch_messages_max=3).decode(frame)
    assert isinstance(rejected, Malformed)
    assert (rejected.code, rejected.id, rejected.is_request) == (code, None, True)
    assert says in rejected.message


def test_a_batch_of_exactly_the_limit_is_one():
    frame = b"[" + b",".join([NOTE] * 3) + b"]"
    assert isinstance(Decoder(json_depth_max=9, batch_messages_max=3).decode(frame), Batch)


@pytest.mark.parametrize("inner", [b"[]", b"[" + PING + b"]", b"[[[]]]"])
def test_a_batch_inside_a_batch_is_no_message_and_the_others_are(inner):
    rejected, ping = decode(b"[" + inner + b"," + PING + b"]").messages
    assert (rejected.code, rejected.id) == (INVALID_REQUEST, None)
    assert rejected.message == "not a message: a batch inside a batch"
    assert ping == Request(1, "ping", None)


@pytest.mark.parametrize("member", [b"1", b"null", b'"x"', b"true"])
def test_a_member_that_is_no_object_is_no_message(member):
    (rejected,) = decode(b"[" + member + b"]").messages
    assert (rejected.code, rejected.id) == (INVALID_REQUEST, None)


def test_a_batch_deeper_than_the_stack_raises_nothing():
    rejected = Decoder(json_depth_max=1_000_000).decode(b"[" * 200_000 + b"]" * 200_000)
    assert rejected.code == INVALID_REQUEST


def test_who_takes_any_frame_gets_its_messages():
    decoder = Decoder(json_depth_max=512)
    assert decoder.messages(PING) == (Request(1, "ping", None),)
    assert len(decoder.messages(b"[" + PING + b"," + NOTE + b"]")) == 2


SHAPES = st.lists(
    st.one_of(
        st.fixed_dictionaries({"id": st.integers(), "method": st.text()}),
        st.fixed_dictionaries({"method": st.text()}),
        st.fixed_dictionaries({"id": st.text(), "result": st.just({})}),
        st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=5),
    ),
    min_size=1,
)


@given(SHAPES)
def test_each_member_is_what_it_is_alone(shapes):
    members = [
        json.dumps({"jsonrpc": "2.0", **each} if isinstance(each, dict) else each).encode()
        for each in shapes
    ]
    messages = decode(b"[" + b", ".join(members) + b"]").messages
    assert len(messages) == len(members)
    for message, member in zip(messages, members, strict=True):
        if not member.startswith(b"["):
            assert message == decode(member)
