"""The peer that sends exactly the messages of a test."""

import pytest
import trio

from mcp_trio.testing import WirePeer
from mcp_trio.transports import memory_pair


@pytest.mark.parametrize("ends", ["by a cancellation", "because the connection ends"])
async def test_a_receive_of_many_messages_that_ends_early_loses_none(ends, autojump_clock):
    ours, theirs = memory_pair()
    peer = WirePeer(theirs)
    await ours.send([b'{"id":1}', b'{"id":2}'])
    if ends == "by a cancellation":
        with trio.move_on_after(1):
            await peer.receive_many(3)
        await ours.send([b'{"id":3}'])
    await ours.aclose()
    if ends == "because the connection ends":
        with pytest.raises(EOFError):
            await peer.receive_many(3)
    assert [message["id"] for message in await peer.receive_end()][:2] == [1, 2]
