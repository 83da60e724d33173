"""One request in a task: how a handler is started, and its single answer.

People's exceptions end here. An `Exception` becomes the answer of its own request; what is none
(`KeyboardInterrupt`, `SystemExit`) is not ours to keep, and ends the session on its way out.
"""

import logging
from typing import Protocol

import msgspec
import trio

from mcp_trio._engine.application import Application
from mcp_trio._engine.groups import apart, bare
from mcp_trio._engine.handling import Handling
from mcp_trio._engine.lanes import enter_lane
from mcp_trio._errors import (
    INTERNAL_ERROR,
    MISSING_CLIENT_CAPABILITY,
    CapabilityMissing,
    LocalProtocolError,
    RequestError,
    ToolError,
)
from mcp_trio._schema import InputRequiredResult
from mcp_trio._wire import Unencodable

logger = logging.getLogger("mcp_trio")


class Desk(Protocol):
    """Who starts handlers and takes their answers."""

    @property
    def application(self) -> Application:
        """Where the handlers are."""
        ...

    def finish(self, handling: Handling, frame: bytes | None) -> None:
        """The answer of a request, or its end without one."""
        ...


class Answering(msgspec.Struct, eq=False):
    """The `Job` of one request; `frame` is its answer, None if it was cancelled."""

    handling: Handling
    desk: Desk
    frame: bytes | None = None

    @property
    def wants_own_task(self) -> bool:
        """See `Job`: in a replay, a handler is known by its task."""
        return self.handling.session.sequencer.gates

    @property
    def is_cancelled(self) -> bool:
        """See `Job`; nothing else cancels it."""
        return self.handling.is_cancelled

    def enter(self) -> None:
        """See `Job`."""
        if self.handling.lane is not None:
            enter_lane(self.handling.lane)

    async def run(self, scope: trio.CancelScope) -> None:
        """See `Job`."""
        handling = self.handling
        lane, sequencer = handling.lane, handling.session.sequencer
        if lane is not None and sequencer.gates:
            await sequencer.turn_to_start(lane)
        handling.enter(scope)
        self.frame = await _answer(handling, self.desk.application)
        handling.leave()

    def fail(self, error: Exception) -> None:
        """See `Job`."""
        self.frame = _failure(self.handling, error)

    async def end(self) -> None:
        """See `Job`."""
        lane, sequencer = self.handling.lane, self.handling.session.sequencer
        if lane is not None and sequencer.gates and await sequencer.turn(lane) == "cxl":
            self.frame = None  # the recorded handler was cancelled at its very end
        self.desk.finish(self.handling, self.frame)


async def _answer(handling: Handling, application: Application) -> bytes | None:
    """The one frame that answers a request, whatever its handler did; None: it was cancelled."""
    if handling.session.outbox.is_full_of_answers:
        await handling.session.outbox.room_for_answers()
    if handling.is_cancelled:
        return None
    handling.is_started = True
    if handling.lane is not None:
        handling.session.sequencer.started(handling.lane)
    handling.session.connection.start(handling.request)
    outcome = await _outcome(handling, application)
    if handling.rounds is not None:
        await handling.rounds.opened()
    if isinstance(outcome, Exception):
        return _failure(handling, outcome)
    return _encoded(handling, outcome)


async def _outcome(
    handling: Handling, application: Application
) -> msgspec.Struct | msgspec.Raw | Exception:
    """What the handler returns, or what it fails with."""
    try:
        return await application.handle(handling)
    except Exception as error:
        return bare(error)
    except BaseExceptionGroup as group:
        faults, rest = apart(group)
        if faults is not None:
            _failure(handling, faults)
        raise rest from None


def _encoded(handling: Handling, result: msgspec.Struct | msgspec.Raw) -> bytes:
    connection = handling.session.connection
    limits = connection.limits
    if isinstance(result, InputRequiredResult) and not handling.request.may_want_input:
        return _unsendable(handling, "this request is not one that asks for input by its result")
    try:
        frame = connection.response(handling.request, result)
    except (Unencodable, LocalProtocolError) as error:
        return _unsendable(handling, str(error))
    if len(frame) > limits.frame_bytes_max:
        text = f"{len(frame)} bytes exceed frame_bytes_max={limits.frame_bytes_max}"
        return _unsendable(handling, text)
    return frame


def _unsendable(handling: Handling, reason: str) -> bytes:
    logger.warning("%s: the result cannot be sent: %s", handling.request.method.name, reason)
    text = f"the result cannot be sent: {reason}"
    return handling.session.connection.error(handling.request, INTERNAL_ERROR, text)


def _failure(handling: Handling, error: Exception) -> bytes:
    request, told = handling.request, handling.session.connection.error
    if isinstance(error, RequestError):
        try:
            data = msgspec.UNSET if error.data is None else error.data
            return told(request, error.code, error.message, data)
        except Unencodable:
            return told(request, error.code, "the error cannot be sent as JSON")
    if isinstance(error, CapabilityMissing) and request.peer.revision.is_modern:
        data = {"requiredCapabilities": error.required}
        return told(request, MISSING_CLIENT_CAPABILITY, str(error), data)
    if isinstance(error, ToolError | CapabilityMissing):
        return told(request, INTERNAL_ERROR, str(error))
    logger.error("the handler of %s failed", request.method.name, exc_info=error)
    return told(request, INTERNAL_ERROR, "internal error")
