"""The memory that a peer that never reads can use."""

import tracemalloc

import pytest
import trio

from mcp_trio._testing.channels import DirectFakeChannel
from mcp_trio.limits import MIB, MessageLimits


class Flood(DirectFakeChannel):
    """A peer that sends requests as fast as they are taken, and never reads."""

    number = 0

    async def receive(self):
        await trio.sleep(0.001)
        first, self.number = self.number, self.number + 100
        return [
            b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"big"}}' % number
            for number in range(first, self.number)
        ]


@pytest.mark.parametrize(
    ("seconds", "limits", "mib_max"),
    [
        pytest.param(0, {}, 64, id="quick handlers"),
        pytest.param(0.02, {}, 64, id="all places taken"),
        pytest.param(
            1000,
            {"messages": MessageLimits(send_queue_bytes_max=MIB)},
            8,
            id="nothing but refusals",
        ),
    ],
)
async def test_l04_a_peer_that_never_reads_costs_a_bounded_amount_and_is_given_up(
    autojump_clock, make_session, handshake, nursery, small, seconds, limits, mib_max
):
    """Elsewhere each request that a host sends without reading answers stays in memory."""

    async def big(handling):
        await trio.sleep(seconds)
        return "x" * 100_000

    channel = Flood()
    channel.is_stuck = True
    session = make_session(channel, {"big": big}, limits=small(**limits))
    for frame in handshake:
        session.connection.receive(frame)
    tracemalloc.start()
    try:
        await nursery.start(session.run)
        await trio.sleep(29)
        assert session.cause is None
        assert (
            session.send_queue.queued_bytes
            >= session.connection.limits.messages.send_queue_bytes_max
        )
        await trio.sleep(31)
        rest, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert session.cause == "lost"
    assert "limits.messages.write_stall_seconds" in str(session.loss)
    assert peak < mib_max * MIB
    assert rest < MIB
    taken = channel.number
    await trio.sleep(1000)
    assert channel.number == taken
    assert session.ended.is_set()
