"""Which requests run now, which wait, which are refused: bounded by count and by bytes."""

import attrs

from mcp_trio._limits import Limits
from mcp_trio._protocol.requests import TheirRequest


@attrs.define
class Admission:
    """Places for handlers, and a queue before them. Nothing here waits."""

    limits: Limits
    running: int = attrs.field(default=0, init=False)
    _queue: dict[TheirRequest, None] = attrs.field(factory=dict[TheirRequest, None], init=False)
    _queued_bytes: int = attrs.field(default=0, init=False)

    @property
    def queued(self) -> int:
        """How many requests wait for a place."""
        return len(self._queue)

    def has_place(self) -> bool:
        """Whether a request that arrives now may run at once."""
        return self.running < self.limits.handlers_in_flight_max and not self._queue

    def enter(self) -> None:
        """A handler takes a place."""
        self.running += 1

    def refusal(self, request: TheirRequest) -> str | None:
        """Why the request cannot even wait, naming the setting; None when there is room."""
        if len(self._queue) >= self.limits.requests_queued_max:
            return f"too many requests wait (requests_queued_max={self.limits.requests_queued_max})"
        if self._queued_bytes + request.size_bytes > self.limits.requests_queued_bytes_max:
            return (
                "the requests that wait are too large"
                f" (requests_queued_bytes_max={self.limits.requests_queued_bytes_max})"
            )
        return None

    def wait(self, request: TheirRequest) -> None:
        """Queue a request that was not refused."""
        self._queue[request] = None
        self._queued_bytes += request.size_bytes

    def leave(self) -> TheirRequest | None:
        """A handler gives its place back; the request whose turn it is, if one waits.

        It has left the queue; its own `enter` follows.
        """
        self.running -= 1
        if not self._queue or self.running >= self.limits.handlers_in_flight_max:
            return None
        request = next(iter(self._queue))
        del self._queue[request]
        self._queued_bytes -= request.size_bytes
        return request

    def withdraw(self, request: TheirRequest) -> bool:
        """Take a cancelled request out of the queue; False when it does not wait there."""
        if request not in self._queue:
            return False
        del self._queue[request]
        self._queued_bytes -= request.size_bytes
        return True

    def withdraw_all(self) -> list[TheirRequest]:
        """Empty the queue: the session ends and what waits never runs."""
        waiting = list(self._queue)
        self._queue.clear()
        self._queued_bytes = 0
        return waiting
