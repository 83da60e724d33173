"""The send queue: the order of outgoing messages, and the writer.

A message is recorded and queued in one synchronous step, and sent in that order. The queue is
flushed at the end of a read, by the last request in flight, or by the writer, a background task
that exists only while messages wait. A channel that pushes received messages (`deliver_to`) gets
each message at once, without the writer. The queue flushes the journal before it sends the messages
that the journal records.

Responses and other messages are counted separately. Responses never wait for room. While they fill
the queue, the reader pauses and no handler starts, so a peer that sends requests and does not read
the responses cannot make the queue grow. Our own requests and notifications wait for room in their
caller's task and never pause the reader.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import trio

from mcp_trio._jsonrpc.channel_messages import RelatedMessage
from mcp_trio._session.journal import Sequencer
from mcp_trio._session.lanes import Lane, operation
from mcp_trio._transports.channel import Channel
from mcp_trio._transports.concurrency import Wakeup
from mcp_trio.errors import ConnectionLost
from mcp_trio.limits import Limits
from mcp_trio.types import RequestId

if TYPE_CHECKING:
    from mcp_trio._session.tasks import Tasks

_Queue: TypeAlias = list[tuple[bytes, bool]]

# The approximate memory of a queued message besides its bytes, so that many small messages count.
_MESSAGE_OVERHEAD_BYTES = 128

# The number of checks of a write before it counts as stalled.
_CHECKS_PER_STALL = 10


@attrs.define(eq=False, repr=False)
class SendQueue:
    """The queue of the messages that one session sends.

    Attributes:
        channel: The channel to which messages are written.
        sequencer: The journal of the session, to which each message is reported (`journal.py`).
        limits: The limits.
        tasks: The tasks of the session, in which the writer starts.
        on_loss: A function that is called, at most once, with the error that ended sending.
        dropped: The messages, except responses, that had not been sent when the channel was lost.
        is_full_of_responses: True while responses fill the queue, so that the peer has to read
            first.
        reports_losses: True if the channel itself reports the outcome of each sent request.
    """

    channel: Channel
    sequencer: Sequencer
    limits: Limits
    tasks: "Tasks"
    on_loss: Callable[[Exception], None] | None
    dropped: frozenset[bytes] = attrs.field(default=frozenset(), init=False)
    is_full_of_responses: bool = attrs.field(default=False, init=False)
    reports_losses: bool = attrs.field(init=False)
    _queue: _Queue = attrs.field(factory=_Queue, init=False)
    _bytes: int = attrs.field(default=0, init=False)
    _bytes_max: int = attrs.field(init=False)
    _response_bytes: int = attrs.field(default=0, init=False)
    _sent_bytes: int = attrs.field(default=0, init=False)
    _is_sending: bool = attrs.field(default=False, init=False)
    _is_holding: bool = attrs.field(default=False, init=False)
    _is_lost: bool = attrs.field(default=False, init=False)
    _has_writer: bool = attrs.field(default=False, init=False)
    _has_watcher: bool = attrs.field(default=False, init=False)
    _written: Wakeup = attrs.field(factory=Wakeup, init=False)
    # Optional members of the channel, which `_transports/channel.py` describes: whether it can
    # send without waiting, whether messages have to name the peer's request that they belong to,
    # and whether the channel has no reader.
    _has_send_nowait: bool = attrs.field(init=False)
    _takes_related_messages: bool = attrs.field(init=False)
    _has_deliver_to: bool = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._bytes_max = self.limits.messages.send_queue_bytes_max
        self._takes_related_messages = getattr(self.channel, "takes_related_messages", False)
        self._has_send_nowait = hasattr(self.channel, "send_nowait")
        self._has_deliver_to = hasattr(self.channel, "deliver_to")
        self.reports_losses = getattr(self.channel, "reports_losses", False)

    @property
    def is_empty(self) -> bool:
        """True if the channel has sent everything that was queued."""
        return self._bytes == 0 and not self._has_unfinished_message()

    @property
    def queued_bytes(self) -> int:
        """The approximate memory of the queue, in bytes."""
        return self._bytes

    # Queueing.

    def post(
        self,
        message: bytes,
        lane: Lane | None = None,
        *,
        related_request_id: RequestId | None = None,
        is_response: bool = False,
        at_once: bool = False,
    ) -> None:
        """Record and queue a message, which the writer or the end of the current read sends.

        `related_request_id` is the id of the peer's request that the message belongs or responds
        to. `at_once` writes the whole queue now, if that needs no waiting.
        """
        if self.sequencer.has_lanes:  # so the session is recorded or replayed
            self.sequencer.sent(message, lane)
        if self._is_lost:
            return
        if self._takes_related_messages:
            message = RelatedMessage(message, related_request_id, is_response=is_response)
        self._queue.append((message, is_response))
        size = len(message) + _MESSAGE_OVERHEAD_BYTES
        self._bytes += size
        if is_response:
            response_bytes = self._response_bytes = self._response_bytes + size
            if response_bytes >= self._bytes_max:
                self.is_full_of_responses = True
        if at_once:
            self.flush()
        elif not self._is_holding:
            if self._has_deliver_to:
                self.flush()
            elif not self._has_writer:
                self._wake_writer()

    # Waiting.

    def room_for_message(self, lane: Lane | None, *, checkpoint: bool = True) -> Awaitable[None]:
        """Wait until there is room for a request or notification; check for cancellation.

        This is a plain function that returns an awaitable, which saves a coroutine for each
        notification.

        Without `checkpoint`, other tasks run only if there is no room. After a loss this returns at
        once, and posted messages are dropped. If this is cancelled, the cancellation is recorded as
        the lane's outcome. In a replay, whose channel always has room, this waits for the turn of
        the lane.
        """
        if lane is None:
            if not checkpoint and self._bytes < self._bytes_max:
                return trio.lowlevel.checkpoint_if_cancelled()  # noqa: ASYNC105  awaited by the caller
            return self._wait_for_room(checkpoint=checkpoint)
        return self._wait_in_lane(lane, checkpoint=checkpoint)

    async def _wait_in_lane(self, lane: Lane, *, checkpoint: bool) -> None:
        try:
            if self.sequencer.replays:
                await self.sequencer.turn(lane)
            else:
                with operation(lane):
                    await self._wait_for_room(checkpoint=checkpoint)
        except trio.Cancelled:
            self.sequencer.resumed(lane, "cxl")  # The kind of a cancellation's record.
            raise

    async def _wait_for_room(self, *, checkpoint: bool) -> None:
        if checkpoint:
            await trio.lowlevel.checkpoint()
        else:
            await trio.lowlevel.checkpoint_if_cancelled()
        while self._bytes >= self._bytes_max:
            await self._written.wait()

    async def room_for_responses(self) -> None:
        """Wait until responses no longer fill the queue, or the channel is lost."""
        while self.is_full_of_responses:
            await self._written.wait()

    async def drained(self) -> None:
        """Wait until everything was handed to the channel, or the channel is lost."""
        while not (self._is_lost or self.is_empty):
            self._wake_writer()
            await self._written.wait()

    # Writing.

    def hold(self) -> None:
        """Begin a read: messages are queued until `release`."""
        self._is_holding = True

    def release(self) -> None:
        """End a read: write the queued messages at once."""
        self._is_holding = False
        if self._queue:
            self.flush()

    def flush(self) -> None:
        """Write the queue now if that needs no waiting; otherwise start the writer."""
        queue = self._queue
        if not queue:
            return
        if self._is_sending or not self._has_send_nowait:
            self._wake_writer()
            return
        if self.sequencer.has_lanes:
            self.sequencer.flush()
        try:
            channel: Any = self.channel
            taken: int = channel.send_nowait([message for message, _ in queue])
        except Exception:
            taken = 0  # `send` fails in the same way, and reports the error.
        if taken == len(queue):  # so nothing else is queued or being sent
            queue.clear()
            self._sent_bytes += self._bytes
            self._bytes = self._response_bytes = 0
            self.is_full_of_responses = False
            self._written.wake()
        else:
            sent = queue[:taken]
            del queue[:taken]
            self._count_sent(sent)
        if queue or getattr(self.channel, "is_unfinished", False):
            self._wake_writer()

    def _wake_writer(self) -> None:
        if not (self._has_writer or self._is_lost):
            self._has_writer = True
            self.tasks.start_actor(self._write)

    async def _write(self) -> None:
        """Run the writer until the queue is empty."""
        while (self._queue or self._has_unfinished_message()) and not self._is_lost:
            await self._send(self._next_part())
        self._has_writer = False

    def _next_part(self) -> _Queue:
        """Remove and return the next messages to send, about one chunk (`chunk_bytes`) of them."""
        size = count = 0
        while count < len(self._queue) and size < self.limits.messages.chunk_bytes:
            size += len(self._queue[count][0])
            count += 1
        taken = self._queue[:count]
        del self._queue[:count]
        return taken

    async def _send(self, taken: _Queue) -> None:
        self._is_sending = True
        if not self._has_watcher:
            self._has_watcher = True
            self.tasks.start_actor(self._watch)
        self.sequencer.flush()
        try:
            await self.channel.send([message for message, _ in taken])
        except Exception as error:  # A transport may raise anything; it ends this session only.
            self._report_loss(error)
        else:
            self._count_sent(taken)
        finally:
            self._is_sending = False

    def _has_unfinished_message(self) -> bool:
        """Return whether the channel still has to send a part of a message."""
        return getattr(self.channel, "is_unfinished", False)

    def _count_sent(self, sent: _Queue) -> None:
        if self._is_lost:
            return
        for message, is_response in sent:
            size = len(message) + _MESSAGE_OVERHEAD_BYTES
            self._bytes -= size
            self._sent_bytes += size
            if is_response:
                self._response_bytes -= size
        self.is_full_of_responses = self._response_bytes >= self._bytes_max
        self._written.wake()

    # Watching for stalled writes.

    async def _watch(self) -> None:
        """End the session when a write makes no progress for `limits.messages.write_stall_seconds`.

        Progress is a message given to the channel, or a change of its `bytes_sent`. The task ends
        when the queue is empty.
        """
        stall_seconds = self.limits.messages.write_stall_seconds
        since, seen = trio.current_time(), self._progress()
        while True:
            await trio.sleep(stall_seconds / _CHECKS_PER_STALL)
            if self._is_lost or self.is_empty:
                break
            now, progress = trio.current_time(), self._progress()
            if progress != seen:
                since, seen = now, progress
            elif now - since >= stall_seconds:
                text = (
                    f"the peer read nothing for {stall_seconds:g} s while messages waited"
                    " (limits.messages.write_stall_seconds)"
                )
                self._report_loss(ConnectionLost(text))
        self._has_watcher = False

    def _progress(self) -> tuple[int, int]:
        return self._sent_bytes, getattr(self.channel, "bytes_sent", 0)

    def _report_loss(self, error: Exception) -> None:
        report = self.on_loss
        if report is not None:
            self.lose()
            report(error)

    def lose(self) -> None:
        """Drop the queue after the loss of the channel, and wake the tasks that wait for room."""
        self._is_lost = True
        self.on_loss = None  # It refers to the session: break the reference cycle.
        self.dropped |= {message for message, is_response in self._queue if not is_response}
        self._queue.clear()
        self._bytes = self._response_bytes = 0
        self.is_full_of_responses = False
        self._written.wake()
