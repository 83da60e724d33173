"""One request of ours that somebody waits for."""

import math
from collections import deque
from collections.abc import Awaitable, Callable
from copy import copy
from typing import Any, TypeAlias

import attrs
import msgspec
import trio

from mcp_trio._errors import ConnectionLost, ProtocolError, RequestError
from mcp_trio._protocol import AnswerArrived, Method, OurRequest, ParamsToSend, RequestId

ProgressCallback: TypeAlias = Callable[[Any], Awaitable[None] | None]
Hear: TypeAlias = Callable[[Method, Any], bool]


def _anything(_result: Any) -> None:
    """Whatever has the method's shape will do."""


@attrs.frozen(kw_only=True, eq=False)
class Asked:
    """A question to the peer, however it travels: a method of the peer's, and its params.

    `check` raises `RemoteProtocolError` for a result that has the method's shape, and yet is no
    answer to this question. `on_progress` hears of progress, where there is any.
    """

    method: str
    params: ParamsToSend | None = None
    check: Callable[[Any], object] = _anything
    on_progress: ProgressCallback | None = None


@attrs.define(eq=False)
class Call:
    """One waiting caller: settled by an answer or by the loss of it, never both.

    `scope` is the caller's cancel scope; its deadline is the request's, and moves with progress.
    `hear` gets each notification of a subscription at once, and says whether it goes to callbacks.
    `about` is the peer's request whose handler asks.
    """

    request: OurRequest
    progress_queued_max: int
    hear: Hear | None = None
    about: RequestId | None = None
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    answer: AnswerArrived | None = attrs.field(default=None, init=False)
    loss: ConnectionLost | ProtocolError | None = attrs.field(default=None, init=False)
    _progress: deque[Any] = attrs.field(factory=deque[Any], init=False)
    _news: trio.Event = attrs.field(factory=trio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        self.scope.deadline = self.request.budget.deadline

    @property
    def is_settled(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self.answer is not None or self.loss is not None

    @property
    def has_result(self) -> bool:
        """Whether it was settled by a result."""
        return self.answer is not None and self.answer.error is None

    def settle(self, answer: AnswerArrived) -> None:
        """The answer has come; what is left of the budgets is not the callbacks' problem."""
        self.answer = answer
        if self.request.wants_progress:
            self.scope.deadline = math.inf
        self._news.set()

    def lose(self, loss: ConnectionLost | ProtocolError) -> None:
        """No answer will come, or none that can be read."""
        self.loss = loss
        self._news.set()

    def report(self, params: Any) -> bool:
        """Progress has come; False when an older report was dropped for it."""
        dropped = len(self._progress) >= self.progress_queued_max
        if dropped:
            self._progress.popleft()
        self._progress.append(params)
        self.scope.deadline = self.request.budget.deadline
        self._news.set()
        return not dropped

    async def next_report(self) -> Any:
        """The oldest progress that is not handed on yet; None when settled, and there is none."""
        while not (self._progress or self.is_settled):
            self._news = trio.Event()
            await self._news.wait()
        return self._progress.popleft() if self._progress else None

    def outcome(self) -> msgspec.Raw:
        """The result.

        Raises:
            RequestError: The peer answered with an error.
            ConnectionLost: The connection ended before the answer.
            OutcomeUnknown: The answer is over `frame_bytes_max`.
            RemoteProtocolError: The answer is no message.
            LocalProtocolError: The channel had no way to say it; nothing was sent.
        """
        if self.loss is not None:
            raise copy(self.loss)  # each caller gets one of its own: raising changes it
        assert self.answer is not None
        error = self.answer.error
        if error is not None:
            raise RequestError(error.code, error.message, _plain(error.data))
        assert self.answer.result is not None
        return self.answer.result


async def deliver(on_progress: ProgressCallback | None, params: Any) -> None:
    """Hand progress to its callback, and wait for that."""
    assert on_progress is not None  # progress arrives only if it was asked for
    waiting = on_progress(params)
    if waiting is not None:
        await waiting


def _plain(raw: Any) -> Any:
    return msgspec.json.decode(raw) if isinstance(raw, msgspec.Raw) else None
