"""The contract of `Channel` as checks for any transport.

Each check gets two new ends of one connection and raises AssertionError with the expectation that
failed. A check of an optional member that a channel lacks returns a text that says so. Checks do
not hang: they fail after `TIMEOUT_SECONDS`, and a send counts as blocked after `QUIET_SECONDS`.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, Literal, TypeAlias

import trio
import trio.testing

from mcp_trio._jsonrpc.channel_messages import RelatedMessage
from mcp_trio._jsonrpc.lines import Oversized
from mcp_trio._session.exceptions import sole_exception
from mcp_trio._transports.channel import Channel, Received
from mcp_trio.errors import ConnectionLost
from mcp_trio.limits import DEFAULT_LIMITS, KIB, MIB, Limits

TIMEOUT_SECONDS: Final = 10.0
QUIET_SECONDS: Final = 0.3

_LARGE_MESSAGE_BYTES: Final = 1 * MIB
_BUFFERED_BYTES_MAX: Final = 64 * MIB
_CANCELLED_RECEIVES_MAX: Final = 1000

# After this time a send of more than a connection can buffer is blocked.
_BLOCKED_SECONDS: Final = 0.1
_SHOWN_CHARACTERS_MAX: Final = 160

MakePair: TypeAlias = Callable[[], Awaitable[tuple[Channel, Channel]]]
"""Returns two ends of a new connection."""

Check: TypeAlias = Callable[[Channel, Channel, Limits], Awaitable[str | None]]
"""Checks the first of two ends; returns why there is nothing to check, or None."""

End: TypeAlias = Literal[0, 1]
"""The index of a channel in its pair."""

BOTH_ENDS: Final[tuple[End, End]] = (0, 1)

_LOST: Final = (trio.BrokenResourceError, ConnectionLost)
_OVER: Final = (*_LOST, trio.ClosedResourceError)


async def check_channel(make_pair: MakePair, *, limits: Limits = DEFAULT_LIMITS) -> list[str]:
    """Run all CHANNEL_CHECKS on a transport, from both ends; return their names.

    `make_pair` returns two newly connected channels, made with `limits`.

    Raises:
        AssertionError: A check failed; its name is in the text.
    """
    for name in CHANNEL_CHECKS:
        await check_channel_for(name, make_pair, limits=limits)
    return list(CHANNEL_CHECKS)


async def check_channel_for(
    name: str,
    make_pair: MakePair,
    *,
    limits: Limits = DEFAULT_LIMITS,
    ends: Collection[End] = BOTH_ENDS,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> str | None:
    """Run the check called `name`, once from each of `ends`.

    Returns why there is nothing to check, for example that an optional member is missing, or None.

    Raises:
        AssertionError: The check failed, or `make_pair` has not returned in time.
    """
    reason: str | None = None
    for end in ends:
        try:
            with trio.fail_after(timeout_seconds):
                pair = await make_pair()
        except trio.TooSlowError as error:
            raise AssertionError(
                f"{name}: make_pair has not returned after {timeout_seconds:g} s"
            ) from error
        reason = await _run(name, pair[end], pair[1 - end], limits, timeout_seconds) or reason
    return reason


async def _run(
    name: str, one: Channel, other: Channel, limits: Limits, timeout_seconds: float
) -> str | None:
    try:
        with trio.fail_after(timeout_seconds):
            return await CHANNEL_CHECKS[name](one, other, limits)
    except trio.TooSlowError as error:
        description = CHANNEL_CHECKS[name].__doc__
        raise AssertionError(
            f"{name}: not finished after {timeout_seconds:g} s; the check: {description}"
        ) from error
    except Exception as error:
        raise AssertionError(f"{name}: {sole_exception(error)!r}") from error
    finally:
        # Both at once, since the close of some channels waits for the close of the peer.
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_close, one)
            nursery.start_soon(_close, other)


async def _close(channel: Channel) -> None:
    # A close that raises or hangs has a check of its own, and must not hide what failed here.
    with suppress(Exception), trio.move_on_after(TIMEOUT_SECONDS, shield=True):
        await channel.aclose()


async def messages_arrive_unchanged(one: Channel, other: Channel, _limits: Limits) -> None:
    """Both directions carry bytes verbatim."""
    messages = [
        b'{"jsonrpc":"2.0","method":"check"}',
        '{"jsonrpc":"2.0","method":"prüfen","params":{"text":"\\n\u2028\U0001f642"}}'.encode(),
    ]
    for sender, receiver in ((one, other), (other, one)):
        await _send(sender, messages)
        _expect(await _receive(receiver, len(messages)), messages, "the messages that were sent")


async def order_is_kept(one: Channel, other: Channel, _limits: Limits) -> None:
    """Messages of many sends arrive in the order of the sends."""
    messages = [_message(number) for number in range(300)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_send_one_by_one, one, messages)
        _expect(await _receive(other, len(messages)), messages, "all messages in order")


async def one_send_takes_many_messages(one: Channel, other: Channel, _limits: Limits) -> None:
    """One send takes any number of messages, also more than the connection holds."""
    messages = [_message(number) for number in range(5_000)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_send, one, messages)
        _expect(await _receive(other, len(messages)), messages, "all messages in order")


async def a_large_message_arrives_whole(one: Channel, other: Channel, _limits: Limits) -> None:
    """A message of one MiB arrives as one, and so does the next."""
    messages = [_message(1, size=_LARGE_MESSAGE_BYTES), _message(2)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_send, one, messages)
        _expect(await _receive(other, len(messages)), messages, "both messages")


async def both_ends_send_at_once(one: Channel, other: Channel, _limits: Limits) -> None:
    """A send that waits for the peer does not keep other tasks from receiving."""
    messages = [_message(number, size=64 * KIB) for number in range(16)]
    async with trio.open_nursery() as nursery:
        for sender, receiver in ((one, other), (other, one)):
            nursery.start_soon(_send, sender, messages)
            nursery.start_soon(_receive, receiver, len(messages))


async def an_oversized_message_is_reported(one: Channel, other: Channel, limits: Limits) -> None:
    """A message over `limits.messages.bytes_max` is reported once; later ones arrive."""
    messages = [_message(1, size=limits.messages.bytes_max + 1), _message(2)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_send, one, messages)
        oversized, following = await _receive(other, len(messages))
    _require(isinstance(oversized, Oversized), "an Oversized in the place of the first message")
    _expect(following, messages[1], "the message after it")


async def closing_is_seen_by_the_peer(one: Channel, other: Channel, _limits: Limits) -> None:
    """Messages sent before the close arrive, then the end, and then the end again."""
    await _send(one, [_message(1)])
    await one.aclose()
    _expect(await _receive(other, 1), [_message(1)], "the message that was sent before the close")
    for _ in range(2):
        _require(await _has_ended(other), "an empty receive, or ConnectionLost, after a close")


async def sending_to_a_closed_peer_ends(one: Channel, other: Channel, _limits: Limits) -> None:
    """Each send to a closed peer raises an error or loses its messages; none waits."""
    await other.aclose()
    for number in range(64):
        try:
            await _send(one, [_message(number, size=4 * KIB)])
        except _LOST:
            return


async def closing_twice_is_closing_once(one: Channel, _other: Channel, _limits: Limits) -> None:
    """A second close does nothing, also from another task; later calls raise an error."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.aclose)
        nursery.start_soon(one.aclose)
    await one.aclose()
    for use in (one.receive, partial(_send, one, [_message(1)])):
        try:
            await use()
        except trio.ClosedResourceError:
            continue
        raise AssertionError("expected trio.ClosedResourceError after aclose")


async def closing_wakes_a_receive(one: Channel, _other: Channel, _limits: Limits) -> None:
    """A close from another task ends the receive that waits."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_receive_until_closed, one)
        await trio.testing.wait_all_tasks_blocked()
        await one.aclose()


async def a_cancelled_close_closes(one: Channel, other: Channel, _limits: Limits) -> None:
    """Closing in a cancelled scope closes the channel."""
    with trio.CancelScope() as scope:
        scope.cancel()
        await one.aclose()
    _require(await _has_ended(other), "the peer to see the end after a cancelled close")


async def a_cancelled_receive_loses_nothing(one: Channel, other: Channel, _limits: Limits) -> None:
    """Whenever a receive is cancelled, the next one continues where it was."""
    messages = [_message(number, size=10_000) for number in range(100)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_send_one_by_one, one, messages)
        received: list[Received] = []
        for turn in range(_CANCELLED_RECEIVES_MAX):
            if len(received) < len(messages):
                received += await _receive_cancelled(other, passes=turn % 8)
        received += await _receive(other, len(messages) - len(received))
    _expect(received, messages, "all messages in order, though receives were cancelled")


async def a_full_channel_makes_the_sender_wait(
    one: Channel, _other: Channel, _limits: Limits
) -> None:
    """If the peer does not read, a send waits at some time, so that memory stays bounded."""
    message = _message(1, size=256 * KIB)
    for _ in range(_BUFFERED_BYTES_MAX // len(message)):
        with trio.move_on_after(QUIET_SECONDS) as quiet:
            await _send(one, [message])
        if quiet.cancelled_caught:
            return
    raise AssertionError(f"expected a send to wait before {_BUFFERED_BYTES_MAX} bytes are unread")


async def closing_wakes_a_send(one: Channel, _other: Channel, _limits: Limits) -> None:
    """A close from another task ends the send that waits for the peer."""
    messages = [_message(1, size=256 * KIB)] * (_BUFFERED_BYTES_MAX // (256 * KIB))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_send_until_closed, one, messages)
        await trio.sleep(_BLOCKED_SECONDS)
        await one.aclose()


async def a_cancelled_send_leaves_whole_messages(
    one: Channel, other: Channel, _limits: Limits
) -> None:
    """After a cancelled send, a later send raises an error or its message arrives whole."""
    messages, last = [_message(number, size=64 * KIB) for number in range(256)], _message(-1)
    with trio.move_on_after(_BLOCKED_SECONDS):
        await _send(one, messages)
    received: list[Received] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_receive_all, other, received)
        with suppress(*_OVER):
            await _send(one, [last])
        await one.aclose()
    whole = received
    if received[-1:] == [last]:
        whole = received[:-1]
    elif 0 < len(received) <= len(messages):
        # The cancelled send may have sent only a piece of its last message.
        piece = received[-1]
        if isinstance(piece, bytes) and messages[len(received) - 1].startswith(piece):
            whole = received[:-1]
    _expect(whole, messages[: len(whole)], "whole messages, and a piece of one at the end at most")


async def every_call_is_a_checkpoint(one: Channel, other: Channel, _limits: Limits) -> None:
    """A send and a receive are checkpoints of Trio also where they need not wait."""
    for messages in ([], [_message(1)]):
        with trio.testing.assert_checkpoints():
            await _send(one, messages)
    await _send(one, [_message(2)])
    received: list[Received] = []
    while len(received) < 2:  # noqa: PLR2004  the two that were sent
        with trio.testing.assert_checkpoints():
            received += await _receive_some(other)


async def sending_nothing_sends_nothing(one: Channel, other: Channel, _limits: Limits) -> None:
    """A send of no messages returns, and the peer receives nothing."""
    await _send(one, [])
    await _send(one, [_message(1)])
    _expect(await _receive(other, 1), [_message(1)], "the one message that was sent")


async def send_nowait_takes_whole_messages(
    one: Channel, other: Channel, _limits: Limits
) -> str | None:
    """If there is `send_nowait`: the messages that it counts as taken arrive whole, in order."""
    send_nowait: Callable[[Sequence[bytes]], int] | None = getattr(one, "send_nowait", None)
    if send_nowait is None:
        return "it has no send_nowait"
    takes_all = getattr(one, "deliver_to", None) is not None
    messages = [_message(number, size=10_000) for number in range(20 if takes_all else 2_000)]
    taken = send_nowait(_as_taken_by(one, messages))
    if takes_all:
        _expect(taken, len(messages), "all messages to be taken by a channel with deliver_to")
    else:
        _require(taken < len(messages), "messages to be taken, but not 20 MB of them")
        # The second call may finish a message that the first one took, and take another.
        taken += send_nowait(_as_taken_by(one, messages[taken:]))
    expected = [*messages[:taken], _message(-1)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_send, one, expected[-1:])
        received = await _receive(other, len(expected))
    _expect(received, expected, "the messages taken, then the next one")
    is_unfinished = getattr(one, "is_unfinished", False if takes_all else None)
    _expect(is_unfinished, expected=False, what="is_unfinished after a whole send")
    return None


async def progress_is_counted(one: Channel, other: Channel, _limits: Limits) -> str | None:
    """If there is `bytes_sent`: it grows by the sent bytes at least, already during the send."""
    before: int | None = getattr(one, "bytes_sent", None)
    if before is None:
        return "it has no bytes_sent"
    message = _message(1, size=_LARGE_MESSAGE_BYTES)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_send, one, [message, message])
        await _receive(other, 1)
        _require(getattr(one, "bytes_sent", 0) > before, "bytes_sent to grow during a send")
        await _receive(other, 1)
    _require(
        getattr(one, "bytes_sent", 0) >= before + 2 * len(message),
        "bytes_sent to grow by the sent bytes",
    )
    return None


async def deliver_to_gets_all_messages(one: Channel, other: Channel, _limits: Limits) -> str | None:
    """If there is `deliver_to`: its function gets all messages and the end, without a receive."""
    deliver_to: Callable[[Callable[[Sequence[Received]], None]], None] | None
    deliver_to = getattr(one, "deliver_to", None)
    if deliver_to is None:
        return "it has no deliver_to"
    received: list[Received] = []
    ended = trio.Event()

    def on_received(messages: Sequence[Received]) -> None:
        received.extend(messages)
        if not messages:
            ended.set()

    deliver_to(on_received)
    messages = [_message(number) for number in range(3)]
    await _send_one_by_one(other, messages)
    await other.aclose()
    await ended.wait()
    _expect(received, messages, "all messages in order")
    return None


CHANNEL_CHECKS: Final[dict[str, Check]] = {
    check.__name__: check
    for check in (
        messages_arrive_unchanged,
        order_is_kept,
        one_send_takes_many_messages,
        a_large_message_arrives_whole,
        both_ends_send_at_once,
        an_oversized_message_is_reported,
        closing_is_seen_by_the_peer,
        sending_to_a_closed_peer_ends,
        closing_twice_is_closing_once,
        closing_wakes_a_receive,
        a_cancelled_close_closes,
        a_cancelled_receive_loses_nothing,
        a_cancelled_send_leaves_whole_messages,
        closing_wakes_a_send,
        every_call_is_a_checkpoint,
        sending_nothing_sends_nothing,
        a_full_channel_makes_the_sender_wait,
        send_nowait_takes_whole_messages,
        progress_is_counted,
        deliver_to_gets_all_messages,
    )
}
"""Every check by its name, so that a test can be parametrised with them."""


def _message(number: int, *, size: int = 0) -> bytes:
    """Return a notification of at least `size` bytes."""
    prefix = b'{"jsonrpc":"2.0","method":"check","params":{"number":%d,"padding":"' % number
    return prefix + b"x" * (size - len(prefix)) + b'"}}'


async def _send_one_by_one(channel: Channel, messages: Sequence[bytes]) -> None:
    for message in messages:
        await _send(channel, [message])


async def _send(channel: Channel, messages: Sequence[bytes]) -> None:
    await channel.send(_as_taken_by(channel, messages))


def _as_taken_by(channel: Channel, messages: Sequence[bytes]) -> Sequence[bytes]:
    """Return the messages as this channel takes them: with no related request, if need be."""
    if getattr(channel, "takes_related_messages", False):
        return [RelatedMessage(message, None) for message in messages]
    return messages


async def _receive(channel: Channel, count: int) -> list[Received]:
    """Receive exactly the next `count` messages."""
    received: list[Received] = []
    while len(received) < count:
        received += await _receive_some(channel)
    _require(len(received) == count, f"{count} messages, and not {len(received)}")
    return received


async def _receive_some(channel: Channel) -> Sequence[Received]:
    messages = await channel.receive()
    _require(bool(messages), "messages, and not the end")
    return messages


async def _receive_cancelled(channel: Channel, *, passes: int) -> list[Received]:
    """Receive until the scheduler has run all tasks `passes` times."""
    received: list[Received] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_cancel, nursery.cancel_scope, passes)
        received += await _receive_some(channel)
        nursery.cancel_scope.cancel()
    return received


async def _cancel(scope: trio.CancelScope, passes: int) -> None:
    for _ in range(passes):
        await trio.lowlevel.checkpoint()
    scope.cancel()


async def _has_ended(channel: Channel) -> bool:
    try:
        return not await channel.receive()
    except ConnectionLost:
        return True


async def _receive_all(channel: Channel, received: list[Received]) -> None:
    with suppress(ConnectionLost):
        while messages := await channel.receive():
            received += messages


async def _send_until_closed(channel: Channel, messages: Sequence[bytes]) -> None:
    with suppress(*_OVER):
        await _send(channel, messages)


async def _receive_until_closed(channel: Channel) -> None:
    try:
        messages = await channel.receive()
    except (trio.ClosedResourceError, ConnectionLost):
        return
    _require(not messages, "no message from a channel that was closed")


def _require(holds: bool, what: str) -> None:  # noqa: FBT001  the condition
    if not holds:
        raise AssertionError(f"expected {what}")


def _expect(found: object, expected: object, what: str) -> None:
    if found != expected:
        raise AssertionError(f"expected {what}: {_short(expected)}, not {_short(found)}")


def _short(value: object) -> str:
    text = repr(value)
    beginning = text[:_SHOWN_CHARACTERS_MAX]
    return text if text == beginning else f"{beginning}… ({len(text)} characters)"
