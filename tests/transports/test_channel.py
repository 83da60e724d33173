"""Each transport keeps the contract of channels, and the checks detect channels that do not."""

import errno
import json
import socket
import tracemalloc
from contextlib import suppress

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from mcp_trio import Client, ConnectionLost, Limits, Server
from mcp_trio._protocol.versions import PROTOCOL_VERSIONS
from mcp_trio.limits import KIB, MIB, MessageLimits
from mcp_trio.testing import CHANNEL_CHECKS, check_channel, check_channel_for
from mcp_trio.transports import LineChannel, Oversized, memory_pair
from tests.transports.channel_pairs import LIMITS, TRANSPORTS

SECONDS = 40.0  # on a machine that is busy
CASES = {
    f"{name}-{check}": (transport, check)
    for name, transport in TRANSPORTS.items()
    for check in CHANNEL_CHECKS
    if transport.ends(check)
}


@pytest.mark.slow
@pytest.mark.real_time
@pytest.mark.requirement("TRAN-01", "TRAN-02", "STDIO-01", "STDIO-02")
@pytest.mark.parametrize("case", CASES)
async def test_each_transport_keeps_the_contract_at_both_ends(nursery, tmp_path, case):
    transport, check = CASES[case]
    make_pair = await transport.begin(nursery, tmp_path)
    await check_channel_for(
        check,
        make_pair,
        limits=transport.limits,
        ends=transport.ends(check),
        timeout_seconds=max(transport.timeout_seconds, SECONDS),
    )
    nursery.cancel_scope.cancel()


def test_each_excuse_is_about_an_existing_check():
    for transport in TRANSPORTS.values():
        assert {check for check, _ in transport.excuses} <= CHANNEL_CHECKS.keys()


# Channels of third parties.


@attrs.define
class Mailboxes:
    """A correct channel of another implementation."""

    sender: trio.MemorySendChannel
    receiver: trio.MemoryReceiveChannel
    closed: bool = False

    async def send(self, messages):
        await trio.lowlevel.checkpoint()
        if self.closed:
            raise trio.ClosedResourceError
        for message in messages:
            await self.sender.send(message)

    async def receive(self):
        try:
            message = await self.receiver.receive()
        except trio.EndOfChannel:
            return []
        if len(message) > LIMITS.messages.bytes_max:
            return [Oversized(size=len(message), prefix=message[:4096])]
        return [message]

    async def aclose(self):
        self.closed = True
        self.sender.close()
        self.receiver.close()
        await trio.lowlevel.checkpoint()


def mailboxes_of(kind, *, places=4):
    async def make_pair():
        there, back = (trio.open_memory_channel(places) for _ in range(2))
        return kind(there[0], back[1]), kind(back[0], there[1])

    return make_pair


@pytest.mark.real_time
@pytest.mark.requirement("TRAN-02")
async def test_a_foreign_channel_passes_without_the_optional_members():
    passed = await check_channel(mailboxes_of(Mailboxes), limits=LIMITS)
    assert passed == list(CHANNEL_CHECKS)


class Mangles(Mailboxes):
    async def send(self, messages):
        await super().send([message.upper() for message in messages])


class Reorders(Mailboxes):
    held = b""

    async def send(self, messages):
        if len(messages) == 1 and not self.held:
            self.held = messages[0]
        else:
            await super().send([*messages, self.held])
            self.held = b""


class Truncates(Mailboxes):
    async def send(self, messages):
        await super().send([message[: 64 * KIB] for message in messages])


class Drops(Mailboxes):
    async def send(self, messages):
        await super().send(messages[:1000])


class TellsTooMany(Mailboxes):
    async def receive(self):
        return [*await super().receive()] * 2


class TakesAnything(Mailboxes):
    async def receive(self):
        try:
            return [await self.receiver.receive()]
        except trio.EndOfChannel:
            return []


class ForgetsToClose(Mailboxes):
    async def aclose(self):
        await trio.lowlevel.checkpoint()
        await super().aclose()


class WaitsForTheDead(Mailboxes):
    async def send(self, messages):
        try:
            await super().send(messages)
        except trio.BrokenResourceError:
            await trio.sleep_forever()


class ClosesOnce(Mailboxes):
    async def aclose(self):
        if self.closed:
            raise RuntimeError("closed already")
        await super().aclose()


class StaysOpen(Mailboxes):
    async def receive(self):
        return [] if self.closed else await super().receive()


class SpeaksAfterClose(Mailboxes):
    async def receive(self):
        try:
            return await super().receive()
        except trio.ClosedResourceError:
            return [b"{}"]


class LosesWhenCancelled(Mailboxes):
    async def receive(self):
        messages = await super().receive()
        await trio.lowlevel.checkpoint()
        return messages


class GoesOnInTheMiddle(Mailboxes):
    """Loses a message in a cancelled send, and sends more after it."""

    async def send(self, messages):
        for number, message in enumerate(messages):
            await super().send([message] if number != 1 else [])


class WaitsForAnEndOfItsOwn(Mailboxes):
    async def aclose(self):
        self.closed = True
        await trio.lowlevel.checkpoint()


class NeverLetsGo(Mailboxes):
    async def receive(self):
        try:
            return [self.receiver.receive_nowait()]
        except trio.WouldBlock:
            return await super().receive()


class SendsNothingInNoTime(Mailboxes):
    async def send(self, messages):
        if messages:
            await super().send(messages)


class SaysNothingAloud(Mailboxes):
    async def send(self, messages):
        await super().send(messages or [b"{}"])


class DeliversNothing(Mailboxes):
    def deliver_to(self, take):
        pass


class Doubles(Mailboxes):
    def deliver_to(self, take):
        async def deliver():
            while messages := await self.receive():
                take([*messages, *messages])
            take([])

        trio.lowlevel.spawn_system_task(deliver)


class Overstates(Mailboxes):
    def send_nowait(self, messages):
        return len(messages)


class TakesButDrops(Mailboxes):
    def send_nowait(self, _frames):
        return 1


class Unfinished(Mailboxes):
    def send_nowait(self, messages):
        self.sender.send_nowait(messages[0])
        return 1


class CountsNothing(Mailboxes):
    bytes_sent = 0


class CountsOnce(Mailboxes):
    bytes_sent = 0

    async def send(self, messages):
        self.bytes_sent = 1
        await super().send(messages)


BROKEN = [
    ("messages_arrive_unchanged", Mangles, "the messages that were sent"),
    ("order_is_kept", Reorders, "all messages in order"),
    ("one_send_takes_many_messages", Drops, "the check: One send takes any number"),
    ("a_large_message_arrives_whole", Truncates, "both messages"),
    ("both_ends_send_at_once", TellsTooMany, "not finished after"),
    ("an_oversized_message_is_reported", TakesAnything, "an Oversized"),
    ("closing_is_seen_by_the_peer", TellsTooMany, "1 messages, and not 2"),
    ("sending_to_a_closed_peer_ends", WaitsForTheDead, "not finished after"),
    ("closing_twice_is_closing_once", ClosesOnce, "closed already"),
    ("closing_twice_is_closing_once", StaysOpen, "ClosedResourceError"),
    ("closing_wakes_a_receive", SpeaksAfterClose, "no message from a channel"),
    ("a_cancelled_close_closes", ForgetsToClose, "not finished after"),
    ("a_cancelled_receive_loses_nothing", LosesWhenCancelled, "not finished after"),
    ("a_cancelled_send_leaves_whole_messages", GoesOnInTheMiddle, "whole messages, and a piece"),
    ("closing_wakes_a_send", WaitsForAnEndOfItsOwn, "not finished after"),
    ("every_call_is_a_checkpoint", NeverLetsGo, "did not yield"),
    ("every_call_is_a_checkpoint", SendsNothingInNoTime, "did not yield"),
    ("sending_nothing_sends_nothing", SaysNothingAloud, "the one message that was sent"),
    ("deliver_to_gets_all_messages", DeliversNothing, "not finished after"),
    ("deliver_to_gets_all_messages", Doubles, "all messages in order"),
    ("send_nowait_takes_whole_messages", Overstates, "not 20 MB"),
    ("send_nowait_takes_whole_messages", TakesButDrops, "not finished after"),
    ("send_nowait_takes_whole_messages", Unfinished, "is_unfinished after"),
    ("progress_is_counted", CountsNothing, "to grow during a send"),
    ("progress_is_counted", CountsOnce, "to grow by the sent bytes"),
]


@pytest.mark.parametrize(("check", "kind", "complaint"), BROKEN)
async def test_a_channel_that_breaks_the_contract_is_caught(autojump_clock, check, kind, complaint):
    with pytest.raises(AssertionError, match=f"{check}: .*{complaint}"):
        await check_channel_for(check, mailboxes_of(kind), limits=LIMITS)


async def test_a_channel_may_lose_messages_to_a_closed_peer_silently(autojump_clock):
    class LosesQuietly(Mailboxes):
        async def send(self, messages):
            with suppress(trio.BrokenResourceError):
                await super().send(messages)

    await check_channel_for("sending_to_a_closed_peer_ends", mailboxes_of(LosesQuietly))


async def test_a_channel_that_never_reports_the_end_is_caught(autojump_clock):
    class NeverTells(Mailboxes):
        async def aclose(self):
            self.closed = True
            await trio.lowlevel.checkpoint()

    with pytest.raises(AssertionError, match="not finished after"):
        await check_channel_for("closing_is_seen_by_the_peer", mailboxes_of(NeverTells))


async def test_a_channel_with_an_unbounded_buffer_is_caught(autojump_clock):
    make_pair = mailboxes_of(Mailboxes, places=1_000_000)
    with pytest.raises(AssertionError, match="expected a send to wait"):
        await check_channel_for("a_full_channel_makes_the_sender_wait", make_pair)


async def test_a_wrong_error_at_the_end_is_caught(autojump_clock):
    class EndsWithANoise(Mailboxes):
        async def receive(self):
            return [*await super().receive()] or [b"{}"]

    with pytest.raises(AssertionError, match="an empty receive"):
        await check_channel_for("closing_is_seen_by_the_peer", mailboxes_of(EndsWithANoise))


async def test_an_end_before_the_last_message_is_caught(autojump_clock):
    class EndsAtOnce(Mailboxes):
        async def receive(self):
            await trio.lowlevel.checkpoint()
            return []

    with pytest.raises(AssertionError, match="messages, and not the end"):
        await check_channel_for("order_is_kept", mailboxes_of(EndsAtOnce))


async def test_a_pair_that_is_never_made_fails_a_check(autojump_clock):
    async def make_pair():
        await trio.sleep_forever()

    with pytest.raises(AssertionError, match="order_is_kept: make_pair has not returned"):
        with trio.fail_after(100):
            await check_channel_for("order_is_kept", make_pair)


# A user's own transport over a reliable byte stream, with the line framing of stdio.


@attrs.define(eq=False)
class StreamEnd:
    """One end of a connected socket, for a `LineChannel`; `read` is all that came."""

    sock: socket.socket
    read: bytearray = attrs.field(factory=bytearray)

    def read_nowait(self):
        data = self.sock.recv(4096)
        self.read += data
        return data

    async def wait_readable(self):
        await trio.lowlevel.wait_readable(self.sock)

    def write_nowait(self, data):
        return self.sock.send(data)

    async def wait_writable(self):
        await trio.lowlevel.wait_writable(self.sock)

    def close(self):
        if self.sock.fileno() >= 0:
            trio.lowlevel.notify_closing(self.sock)
            self.sock.close()


def pair():
    """The two ends of a Unix socket, and the channels over them."""
    ends = []
    for sock in socket.socketpair():
        sock.setblocking(False)
        ends.append(StreamEnd(sock))
    return ends, [LineChannel(source=end, sink=end, transport="unix") for end in ends]


@pytest.mark.requirement("TRAN-06", "STDIO-22", "TRAN-02", "STDIO-02", "STDIO-03", "STDIO-04")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_a_custom_stream_carries_a_session_one_message_per_line(nursery, protocol_version):
    server = Server("harbour")

    @server.tool
    async def echo(text: str) -> str:
        return text

    text = "two\nlines, \u2028 and \u0085 é\U0001f600"
    ends, (ours, theirs) = pair()
    nursery.start_soon(server.serve, theirs)
    async with Client(ours, protocol_versions=[protocol_version]) as client:
        assert client.protocol_version == protocol_version
        result = await client.call_tool("echo", {"text": text})
        assert result.content[0].text == text
    for end in ends:
        assert end.read.endswith(b"\n")
        messages = [json.loads(line) for line in bytes(end.read).split(b"\n")[:-1]]
        assert len(messages) >= 2
        assert all(message["jsonrpc"] == "2.0" for message in messages)


# Line channels: direct and waiting sends, cancellation, ends; mostly in memory.


@attrs.define
class Scripted:
    """Both ends of a byte stream: sends the given bytes, and keeps those that it receives."""

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


async def test_a_message_sent_in_part_leaves_the_memory_once_it_is_sent():
    size = 4 * MIB
    ours, theirs = memory_pair()
    tracemalloc.start()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ours.send, [b"x" * size])
            [message] = await theirs.receive()
        assert len(message) == size
        del message
        assert tracemalloc.get_traced_memory()[0] < size
    finally:
        tracemalloc.stop()


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


async def test_a_channel_whose_source_fails_to_close_can_be_closed_again():
    class Failing(Scripted):
        def close(self):
            raise OSError(errno.EIO, "Input/output error")

    channel = channel_over(Failing())
    with pytest.raises(OSError, match="Input/output error"):
        await channel.aclose()
    await channel.aclose()


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
