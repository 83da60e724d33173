"""Line channels: direct and waiting sends, cancellation, ends; mostly in memory."""

import errno

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from mcp_trio import ConnectionLost, Limits
from mcp_trio.limits import KIB, MessageLimits
from mcp_trio.transports import LineChannel, Oversized, memory_pair


@attrs.define
class Scripted:
    """Both ends of bytes: plays what it is told, keeps what it is given."""

    reads: list = attrs.field(factory=list)
    room: list = attrs.field(factory=list)
    written: bytes = b""
    writes: int = 0

    def read_nowait(self):
        step = self.reads.pop(0)
        if isinstance(step, Exception):
            raise step
        return step

    def write_nowait(self, data):
        self.writes += 1
        step = self.room.pop(0) if self.room else len(data)
        if isinstance(step, Exception):
            raise step
        self.written += data[:step]
        return min(step, len(data))

    async def wait_readable(self):
        await trio.lowlevel.checkpoint()

    async def wait_writable(self):
        await trio.lowlevel.checkpoint()

    def close(self):
        pass


def channel_over(ends, **limits):
    return LineChannel(source=ends, sink=ends, transport="scripted", limits=Limits(**limits))


FULL = BlockingIOError()


@pytest.mark.requirement("STDIO-02", "STDIO-04")
async def test_each_message_is_one_line():
    ends = Scripted()
    await channel_over(ends).send([b"{1}", b"{2}"])
    assert ends.written == b"{1}\n{2}\n"


async def test_a_send_in_one_piece_is_one_write():
    ends = Scripted()
    await channel_over(ends).send([b"{%d}" % number for number in range(100)])
    assert ends.writes == 1


@pytest.mark.parametrize(
    ("room", "taken", "first", "then"),
    [
        ([FULL], 0, b"", b"{9}\n"),
        ([1, FULL], 1, b"{", b"1}\n{9}\n"),
        ([4, FULL], 1, b"{1}\n", b"{9}\n"),
        ([5, FULL], 2, b"{1}\n{", b"2}\n{9}\n"),
        ([3, 4, FULL], 2, b"{1}\n{2}", b"\n{9}\n"),
        ([12], 3, b"{1}\n{2}\n{3}\n", b"{9}\n"),
    ],
)
async def test_a_message_sent_in_part_counts_as_sent_and_is_finished_first(
    room, taken, first, then
):
    ends = Scripted(room=list(room))
    channel = channel_over(ends)
    assert channel.send_nowait([b"{1}", b"{2}", b"{3}"]) == taken
    assert ends.written == first
    assert channel.bytes_sent == len(first)
    await channel.send([b"{9}"])
    assert ends.written == first + then
    assert channel.bytes_sent == len(first + then)


async def test_an_empty_send_finishes_a_message_sent_in_part():
    ends = Scripted(room=[2, FULL, FULL, FULL])
    channel = channel_over(ends)
    assert not channel.is_unfinished
    assert channel.send_nowait([b"{1}"]) == 1
    assert channel.is_unfinished
    assert channel.send_nowait([b"{2}"]) == 0
    await channel.send([])
    assert not channel.is_unfinished
    assert ends.written == b"{1}\n"


async def test_a_full_pipe_does_not_join_all_waiting_messages_again():
    """Joining is bounded per write; all bytes are joined about twice, not once per write."""
    messages = [b"x" * 1000] * 2000
    ours, theirs = memory_pair(buffer_bytes_max=4096)
    joined = 0

    @attrs.define
    class Counting:
        sink: object

        def write_nowait(self, data):
            nonlocal joined
            joined += len(data) if isinstance(data, bytes) else 0
            return self.sink.write_nowait(data)

        async def wait_writable(self):
            await self.sink.wait_writable()

        def close(self):
            self.sink.close()

    counted = LineChannel(
        source=ours.source,
        sink=Counting(ours.sink),
        transport="memory",
        limits=Limits(messages=MessageLimits(chunk_bytes=8192)),
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(counted.send, messages)
        received = 0
        while received < len(messages):
            received += len(await theirs.receive())
    assert joined < 5 * sum(map(len, messages))


async def test_a_cancelled_send_leaves_complete_messages_and_a_usable_channel():
    ours, theirs = memory_pair(buffer_bytes_max=10)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ours.send, [b"first", b"second", b"third"])
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ours.send, [b"fourth"])
        received = [*await theirs.receive()]
        while b"fourth" not in received:
            received += await theirs.receive()
    assert received == [b"first", b"second", b"fourth"]


@pytest.mark.parametrize("use", ["send", "receive"])
async def test_a_call_in_a_cancelled_scope_does_nothing(use):
    ends = Scripted()
    channel = channel_over(ends)
    with trio.CancelScope() as scope:
        scope.cancel()
        await (channel.send([b"{}"]) if use == "send" else channel.receive())
    assert scope.cancelled_caught
    assert ends.written == b""


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(errno.ENOSPC, "No space left")])
async def test_a_sink_that_accepts_nothing_any_more_is_broken(error):
    channel = channel_over(Scripted(room=[2, error, error]))
    with pytest.raises(trio.BrokenResourceError, match="the peer is gone"):
        channel.send_nowait([b"{1}"])
    assert channel.bytes_sent == 2
    with pytest.raises(trio.BrokenResourceError):
        await channel.send([b"{1}"])


async def test_a_source_that_cannot_be_read_raises_the_reason():
    channel = channel_over(Scripted(reads=[OSError(errno.EIO, "Input/output error")]))
    with pytest.raises(ConnectionLost, match=r"reading failed: .*Input/output error"):
        await channel.receive()


async def test_an_unterminated_last_line_is_a_message_and_the_end_comes_once():
    channel = channel_over(Scripted(reads=[b"{1}\n{2", FULL, b"}", b""]))
    assert await channel.receive() == [b"{1}"]
    assert await channel.receive() == [b"{2}"]
    assert await channel.receive() == []
    assert await channel.receive() == []


async def test_an_oversized_line_is_reported_and_skipped():
    channel = channel_over(
        Scripted(reads=[b"x" * 9, b"x" * 9, b"\n{}\n"]), messages=MessageLimits(bytes_max=10)
    )
    assert await channel.receive() == [Oversized(size=18, prefix=b"x" * 10)]
    assert await channel.receive() == [b"{}"]


async def test_a_peer_that_never_ends_a_line_does_not_block_other_tasks():
    class Endless(Scripted):
        def read_nowait(self):
            return b"x"

    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(channel_over(Endless()).receive)
            await trio.lowlevel.checkpoint()
            scope.cancel()
    assert scope.cancelled_caught


async def test_a_closed_channel_rejects_everything():
    channel, _ = memory_pair()
    await channel.aclose()
    with pytest.raises(trio.ClosedResourceError):
        channel.send_nowait([b"{}"])


@pytest.mark.requirement("LIFE-20")
async def test_closing_one_end_of_a_memory_pair_ends_the_other():
    ours, theirs = memory_pair()
    await ours.send([b"{1}"])
    await ours.aclose()
    assert await theirs.receive() == [b"{1}"]
    assert await theirs.receive() == []
    with pytest.raises(trio.BrokenResourceError):
        await theirs.send([b"{}"])


@given(
    messages=st.lists(
        st.binary(min_size=1, max_size=200)
        .map(lambda data: data.replace(b"\n", b"|").replace(b"\r", b"|"))
        .filter(lambda data: not data.isspace()),
        max_size=30,
    ),
    buffer_bytes_max=st.integers(1, 300),
    chunk_bytes=st.integers(1, 300),
    direct=st.booleans(),
)
def test_messages_arrive_however_the_stream_is_chunked(
    messages, buffer_bytes_max, chunk_bytes, direct
):
    messages = [b"{}", *messages, b"{}"]

    async def send(channel):
        taken = channel.send_nowait(messages) if direct else 0
        await channel.send(messages[taken:])
        await channel.aclose()

    async def main():
        ours, theirs = memory_pair(buffer_bytes_max=buffer_bytes_max, chunk_bytes=chunk_bytes)
        received = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, ours)
            while got := await theirs.receive():
                received += got
        return received

    assert trio.run(main) == messages


async def test_a_memory_pipe_never_exceeds_its_bound():
    ours, theirs = memory_pair(buffer_bytes_max=100)
    assert ours.send_nowait([b"x" * 60, b"y" * 60, b"z"]) == 2
    assert ours.bytes_sent == 100
    assert await theirs.receive() == [b"x" * 60]
    assert ours.transport == "memory"
    assert Limits().messages.chunk_bytes == 64 * KIB
