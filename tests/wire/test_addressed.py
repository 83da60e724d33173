"""A frame with an address is the same frame to everyone who does not ask for it."""

import msgspec
import pytest

from mcp_trio import ConnectionLost
from mcp_trio._wire import Decoder, Response, join_lines
from mcp_trio._wire.addressed import Addressed, Lost

FRAME = b'{"jsonrpc":"2.0","id":7,"result":{}}'


@pytest.mark.parametrize("about", [7, 0, "seven", "", None])
def test_an_address_is_kept_with_its_type(about):
    frame = Addressed(FRAME, about)
    assert frame.about == about
    assert type(frame.about) is type(about)
    assert not frame.is_answer


def test_an_answer_says_so():
    assert Addressed(FRAME, 7, is_answer=True).is_answer


def test_the_bytes_are_those_of_the_frame():
    frame = Addressed(FRAME, 7)
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
