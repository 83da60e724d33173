"""A frame with an address is the same frame to everyone who does not ask for it."""

import msgspec
import pytest

from mcp_trio import ConnectionLost
from mcp_trio._jsonrpc.lines import join_lines
from mcp_trio._jsonrpc.messages import (
    DecodedMessage,
    Decoder,
    Request,
    Response,
    encode_error,
    encode_response,
    reencoded_with_id,
    with_id_replaced,
)
from mcp_trio.transports import Lost, RelatedMessage

FRAME = b'{"jsonrpc":"2.0","id":7,"result":{}}'


@pytest.mark.parametrize("about", [7, 0, "seven", "", None])
def test_an_address_is_kept_with_its_type(about):
    frame = RelatedMessage(FRAME, about)
    assert frame.related_request_id == about
    assert type(frame.related_request_id) is type(about)
    assert not frame.is_answer


def test_an_answer_says_so():
    assert RelatedMessage(FRAME, 7, is_answer=True).is_answer


def test_the_bytes_are_those_of_the_frame():
    frame = RelatedMessage(FRAME, 7)
    assert frame == FRAME
    assert hash(frame) == hash(FRAME)
    assert len(frame) == len(FRAME)
    assert Decoder(json_depth_max=9).decode(frame) == Response(7, msgspec.Raw(b"{}"))
    assert join_lines([frame, frame]) == FRAME + b"\n" + FRAME + b"\n"


def test_a_lost_request_says_which_and_why():
    error = ConnectionLost("gone")
    lost = Lost(7, error)
    assert (lost.id, lost.error) == (7, error)
    assert lost != Lost("7", error)


def test_what_was_understood_is_the_same_bytes_and_says_what_they_mean():
    message = Request(7, "ping", None)
    frame = DecodedMessage(FRAME, message, "anna")
    assert (frame, frame.message, frame.principal) == (FRAME, message, "anna")
    assert DecodedMessage(FRAME, message, None).principal is None


@pytest.mark.parametrize("id_", [0, -1, 2**64, "a", "", 'é"\n\\', "7"])
@pytest.mark.parametrize(
    "frame",
    [
        encode_response(12, {"text": '"id":12,'}),
        encode_response(12, msgspec.Raw(b'{\n"id": 12}')),
        encode_error(12, -32000, "no", {"id": 12}),
        b'{"result":{},"id":12,"jsonrpc":"2.0"}',
        b'{"jsonrpc": "2.0", "id": 12, "result": {}}',
    ],
)
def test_an_answer_is_renumbered_as_if_it_had_been_read(frame, id_):
    assert with_id_replaced(frame, id_) == reencoded_with_id(frame, id_)
    assert with_id_replaced(RelatedMessage(frame, 12), id_) == reencoded_with_id(frame, id_)
