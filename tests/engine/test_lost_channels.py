"""The end of the sending side: a transport that fails, a peer that reads nothing."""

import json
import logging

import pytest
import trio
import trio.testing

from mcp_trio import ConnectionLost
from mcp_trio import types as s
from mcp_trio._testing.channels import DirectFakeChannel, FakeChannel


def ids(frames):
    return [json.loads(frame).get("id") for frame in frames]


async def test_a_direct_write_that_fails_leaves_the_reason_to_send(serve_fake, message):
    """A process channel learns only while waiting with which status its process exited."""

    class Process(DirectFakeChannel):
        def send_nowait(self, frames):
            if ids(frames) == [1]:
                raise trio.BrokenResourceError
            return super().send_nowait(frames)

    session, channel = await serve_fake(channel=Process())
    channel.send_error = ConnectionLost("it exited", exit_status=3)
    channel.feed(message(id=1, method="ping"))
    await session.ended.wait()
    assert session.loss.exit_status == 3


@pytest.mark.parametrize("kind", [FakeChannel, DirectFakeChannel])
async def test_any_error_of_a_transport_ends_its_own_session_only(
    serve_fake, message, logged, kind
):
    session, channel = await serve_fake(channel=kind())
    channel.send_error = ZeroDivisionError("a bug in a transport")
    channel.close_error = ValueError("another")
    channel.feed(message(id=1, method="ping"))
    await session.ended.wait()
    assert session.cause == "lost"
    assert isinstance(session.loss.__cause__, ZeroDivisionError)
    assert logged(logging.ERROR) == ["the transport failed", "the transport failed to close"]


@pytest.mark.parametrize("name", ["receive", "send", "aclose"])
async def test_a_transport_that_fails_while_it_is_cancelled_does_not_leave_the_session(
    autojump_clock, make_session, message, logged, name
):
    class Messy(FakeChannel):
        pass

    async def messy(*_):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("while cleaning up")

    setattr(Messy, name, messy)
    channel = Messy()
    session = make_session(channel)
    channel.feed(message(id=1, method="ping"))
    async with trio.open_nursery() as nursery:
        await nursery.start(session.run)
        await trio.testing.wait_all_tasks_blocked()
        session.shut("closed")
    assert session.cause == "closed"
    assert len(logged(logging.ERROR)) == 1


@pytest.mark.parametrize("error", [trio.BrokenResourceError(), OSError("gone"), ValueError("bug")])
async def test_a_receive_that_fails_ends_the_session_as_lost(serve_fake, error):
    session, channel = await serve_fake()
    channel.break_down(error)
    await session.ended.wait()
    assert session.cause == "lost"
    assert session.loss.__cause__ is error


async def test_a_peer_that_is_gone_is_no_error_in_the_log(serve_fake, message, logged):
    session, channel = await serve_fake()
    channel.send_error = BrokenPipeError()
    channel.feed(message(id=1, method="ping"))
    await session.ended.wait()
    assert logged(logging.WARNING) == []


async def test_unsent_messages_are_freed_at_the_end(autojump_clock, serve_fake):
    """It may be much, and who has ended is only forgotten when somebody collects the garbage."""
    session, channel = await serve_fake(channel=FakeChannel())
    channel.is_stuck = True
    for _ in range(3):
        session.send_queue.post(b"{}" * 1000)
        await trio.testing.wait_all_tasks_blocked()
    session.shut("lost", ConnectionLost("gone"))
    assert session.send_queue.dropped
    await session.ended.wait()
    assert session.send_queue.is_empty
    assert not session.send_queue.dropped


async def test_a_write_without_progress_ends_the_session_as_lost(
    autojump_clock, serve_fake, message
):
    session, channel = await serve_fake()
    await trio.sleep(100)
    began = trio.current_time()
    channel.is_stuck = True
    channel.feed(message(id=1, method="ping"))
    await session.ended.wait()
    assert 30 <= trio.current_time() - began <= 34
    assert session.cause == "lost"
    assert session.loss.reason == (
        "the peer read nothing for 30 s while messages waited (limits.messages.write_stall_seconds)"
    )


async def test_a_peer_that_reads_slowly_is_not_stalled(autojump_clock, serve, call, text_of):
    async def tool(handling):
        return "x" * 10_000

    session, peer = await serve({"tool": tool}, buffer_bytes_max=1000, chunk_bytes=1000)
    await peer.send(call("tool", 1))
    pipe = peer.channel.source
    for _ in range(9):
        await trio.sleep(25)
        peer.channel._splitter.feed(pipe.read_nowait())
    assert session.cause is None


async def test_a_slow_peer_on_a_channel_without_a_byte_count_is_not_stalled(
    autojump_clock, serve_fake, message
):
    session, channel = await serve_fake(channel=FakeChannel())
    for number in range(10):
        channel.is_stuck = True
        channel.feed(message(id=number, method="ping"))
        await trio.sleep(25)
        channel.release()
        await trio.sleep(0.1)
    assert session.cause is None


@pytest.mark.parametrize("error", [None, OSError("too late")])
async def test_a_send_that_ends_after_the_loss_changes_nothing(serve_fake, message, error):
    session, channel = await serve_fake(channel=FakeChannel())
    channel.is_stuck = True
    channel.feed(message(id=1, method="ping"))
    await trio.testing.wait_all_tasks_blocked()
    channel.send_error = error
    channel.release()
    session.shut("lost", ConnectionLost("first"))
    await session.ended.wait()
    assert session.send_queue.queued_bytes == 0
    assert str(session.loss) == "first"


async def test_a_write_that_fails_while_draining_leaves_the_cause_as_it_was(
    autojump_clock, serve_fake, call, message
):
    async def slow(handling):
        await trio.sleep(1)
        return ""

    session, channel = await serve_fake({"slow": slow})
    channel.feed(message(**call("slow", 1)))
    channel.feed()
    channel.send_error = BrokenPipeError()
    await session.ended.wait()
    assert session.cause == "eof"


async def test_nothing_is_queued_after_a_loss(serve_fake, call, message):
    async def tidy(handling):
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                params = s.LoggingMessageParams(level="info", data="bye")
                for _ in range(3):
                    await handling.notify("notifications/message", params)

    session, channel = await serve_fake({"tidy": tidy})
    channel.feed(message(**call("tidy", 1)))
    await trio.testing.wait_all_tasks_blocked()
    session.shut("lost")
    await session.ended.wait()
    assert session.send_queue.queued_bytes == 0
    assert channel.sent == []
