"""Each transport keeps the contract of channels, and the checks detect channels that do not."""

from contextlib import suppress

import attrs
import pytest
import trio
from channel_pairs import LIMITS, TRANSPORTS

from mcp_trio.limits import KIB
from mcp_trio.testing import CHANNEL_CHECKS, check_channel, check_channel_for
from mcp_trio.transports import Oversized

SECONDS = 40.0  # on a machine that is busy
CASES = {
    f"{name}-{check}": (transport, check)
    for name, transport in TRANSPORTS.items()
    for check in CHANNEL_CHECKS
    if transport.ends(check)
}


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


# Third parties: a class with the three methods, and nothing of ours behind it.


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
