"""Questions of handlers to their client: as requests, or in rounds of the handler's own request.

`ask_all` sends the questions. A legacy client receives requests. A stateless client receives an
`InputRequiredResult`, and answers with a retry of the request; between the two the handler is
either suspended (`Rounds`), or it is resumable, and ends and runs again (`run_resumably`). A
handler of a legacy session that was lost with its instance runs again, too (`run_kept`).

https://modelcontextprotocol.io/specification/2026-07-28/basic/patterns/mrtr
"""

import enum
import functools
import math
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

import attrs
import msgspec
import trio

from mcp_trio import types
from mcp_trio._journal.records import SUSPENDED_MARK, encode_body
from mcp_trio._protocol.compat import downgraded
from mcp_trio._protocol.methods import METHODS
from mcp_trio._protocol.requests import (
    SUSPENDED_PREFIX,
    IncomingRequest,
    IncomingTrigger,
    invalid_state_error,
    request_digest,
)
from mcp_trio._protocol.shares import Shares, shares_of
from mcp_trio._session.calls import Question
from mcp_trio._session.effects import Effect, perform_once, start_effect
from mcp_trio._session.exceptions import call_concurrently
from mcp_trio._session.handler_journal import HandlerJournal, OperationId
from mcp_trio._session.handlers import Handling, lane_of_caller
from mcp_trio._session.lanes import LANE, Lane, drive_in, enter_lane, watch_lanes
from mcp_trio.errors import (
    INVALID_PARAMS,
    SERVER_BUSY,
    ConnectionLost,
    LocalProtocolError,
    MCPError,
    OutcomeUnknown,
    RemoteProtocolError,
    RequestError,
)
from mcp_trio.limits import Limits
from mcp_trio.types import EmptyParams

if TYPE_CHECKING:
    from mcp_trio._session.dispatcher import Dispatcher

# Asking -----------------------------------------------------------------------------------------

ASK_ALL: Final = "ctx.ask_all"


async def ask_all(handling: Handling, questions: Sequence[Question]) -> list[Any]:
    """Ask all questions at once, and return the decoded answers in their order.

    A legacy client receives requests. If one fails, the others are cancelled; if several fail at
    once, the error of the first is raised. For a stateless client, or a resumable handler, the
    `ask_in_rounds` of the handling sends the questions.

    Raises:
        LocalProtocolError: The handler has asked more than `limits.requests.sent_per_handler_max`
            questions.
        RequestError, RequestTimeout, ConnectionLost: The client did not answer.
        RemoteProtocolError: An answer is invalid.
    """
    handling.questions += len(questions)
    questions_max = handling.session.connection.limits.requests.sent_per_handler_max
    if handling.questions > questions_max:
        raise LocalProtocolError(
            "a handler cannot send more requests than"
            f" limits.requests.sent_per_handler_max={questions_max}"
        )
    if not questions:
        await trio.lowlevel.checkpoint()
        return []
    if handling.ask_in_rounds is not None:
        return await handling.ask_in_rounds(handling, questions)
    return await _send_requests(handling, questions)


async def _send_requests(handling: Handling, questions: Sequence[Question]) -> list[Any]:
    """Send a request for each question; several of them together, each in a task of its own.

    Together they are one operation of the calling lane, so that the recording has the outcome of
    waiting for all of them.
    """
    if len(questions) == 1:
        return [await _ask(handling, questions[0])]
    lane, sequencer = lane_of_caller(handling), handling.session.sequencer
    await _begin_asking(handling, questions, lane)
    kind = "cxl"
    try:
        results = await call_concurrently(
            range(len(questions)), lambda number: _ask(handling, questions[number])
        )
        kind = "res"
    except Exception:
        kind = "err"
        raise
    finally:
        if lane is not None:
            sequencer.resumed(lane, kind)
    return [*results.values()]


async def _ask(handling: Handling, question: Question) -> Any:
    result = await handling.ask(question.method, question.params, on_progress=question.on_progress)
    question.check(result)
    return result


async def _begin_asking(
    handling: Handling, questions: Sequence[Question], lane: Lane | None
) -> None:
    """Record that a lane asks; check for cancellation."""
    if lane is None:
        await trio.lowlevel.checkpoint_if_cancelled()
        return
    start_effect(handling, questions_effect(questions), lane)
    try:
        await trio.lowlevel.checkpoint_if_cancelled()
    except trio.Cancelled:
        handling.session.sequencer.resumed(lane, "cxl")
        raise


def questions_effect(questions: Sequence[Question]) -> Effect[None]:
    """Return the effect as which questions are recorded; it has the command, but no answers."""
    if len(questions) == 1:
        return _question_effect(questions[0])
    encoded = [{"method": it.method, "params": msgspec.Raw(_params_of(it))} for it in questions]
    arguments = functools.partial(encode_body, {"questions": encoded})
    effect = _question_effect(questions[0])
    return msgspec.structs.replace(effect, name=ASK_ALL, arguments=arguments)


def _question_effect(question: Question, answer: bytes = b"") -> Effect[Any]:
    """Return the effect that records a question, and returns an `answer` that is known already."""
    return Effect(
        name=question.method,
        arguments=functools.partial(_params_of, question),
        run=lambda: None,
        codec=_AnswerCodec(question, answer),
    )


def _params_of(question: Question) -> bytes:
    return encode_body(EmptyParams() if question.params is None else question.params)


class _AnswerCodec(msgspec.Struct, frozen=True):
    """A codec with the raw answer of the client, which is decoded and checked in each round."""

    question: Question
    body: bytes

    def converted(self, value: Any) -> tuple[Any, bytes]:  # noqa: ARG002
        return self.decoded(self.body), self.body

    def decoded(self, body: bytes) -> Any:
        result = _decoded_answer("", self.question, msgspec.Raw(body))
        if isinstance(result, Exception):
            raise result
        return result


# Resumable handlers -----------------------------------------------------------------------------
#
# A question is an operation whose outcome is the client's answer. A task that asks one without an
# answer waits until the round ends. It ends when all tasks that could run have had a chance to ask
# as well: then the handler is cancelled, and the client receives all the questions.

ROUND: Final = "round"
"""The name of the mark at the end of a round; its value is the list of the questions' keys."""

CHANGED: Final = "ctx.changed"
"""The name of the patch mark where a handler differs from its earlier round."""


async def run_resumably(
    handling: Handling, journal: HandlerJournal, handler: Callable[[], Awaitable[Any]]
) -> Any:
    """Run a resumable handler with the operations of its earlier rounds; return None if it asks.

    In that case `journal.questions` has the questions. Effects that were running are cancelled, and
    run again in the next round.

    Raises:
        Exception: The handler raised it.
    """

    async def end_round_when_asked() -> None:
        """End the round when a task has asked and all tasks that could run have run."""
        lane, sequencer = lane_of_caller(handling), handling.session.sequencer
        while True:
            await journal.has_asked.wait()
            await trio.lowlevel.checkpoint()  # Tasks that have just been woken may ask as well.
            if journal.questions:  # The task that asked may have been cancelled since.
                break
        if lane is not None:
            sequencer.marked(ROUND, list(journal.questions), lane)
        journal.scope.cancel()

    watch_lanes()
    journal.code_has_changed = functools.partial(_has_changed, handling)
    handling.handler_journal, ask_suspended = journal, handling.ask_in_rounds
    handling.ask_in_rounds = functools.partial(_ask_resumably, journal)
    result, failure = None, None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(end_round_when_asked)
        enter_lane(journal.lane)
        try:
            with journal.scope:
                result = await handler()
        except Exception as error:
            failure = error
        finally:
            LANE.set(journal.lane.outer)
            handling.handler_journal, handling.ask_in_rounds = None, ask_suspended
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return None if journal.scope.cancelled_caught else result


def _has_changed(handling: Handling) -> bool:
    """Return whether a different operation means that the code of the handler has changed.

    In a live session, nothing else explains it. In a replay, redaction may have changed the
    arguments, so the mark in the recording decides.
    """
    lane = lane_of_caller(handling)
    return lane is None or handling.session.sequencer.patched(lane, CHANGED)


async def _ask_resumably(
    journal: HandlerJournal, handling: Handling, questions: Sequence[Question]
) -> list[Any]:
    """Return the answers from earlier rounds; end the round if one is missing."""
    begun = [journal.begin_operation(each.method, _params_of(each)) for each in questions]
    unanswered = {
        operation_id: each
        for each, (operation_id, earlier) in zip(questions, begun, strict=True)
        if earlier is None
    }
    if unanswered:
        await _wait_for_end_of_round(handling, journal, unanswered)
    bodies = [bytes(earlier.body) for _, earlier in begun if earlier is not None]
    return [
        await perform_once(handling, _question_effect(each, body))
        for each, body in zip(questions, bodies, strict=True)
    ]


async def _wait_for_end_of_round(
    handling: Handling, journal: HandlerJournal, questions: Mapping[OperationId, Question]
) -> NoReturn:
    """Add questions to the round, and wait for its end, which cancels the caller."""
    lane, sequencer = lane_of_caller(handling), handling.session.sequencer
    await _begin_asking(handling, list(questions.values()), lane)
    reason = None
    if journal.scope.cancel_called:
        reason = "the round of this handler is over: it cannot ask during clean-up"
    elif _is_shielded_from(journal.scope):
        reason = "a resumable handler cannot ask inside a shielded scope: its questions end it"
    if reason is not None:
        if lane is not None:
            sequencer.resumed(lane, "err")
        raise LocalProtocolError(reason)
    journal.ask(questions)
    try:
        await trio.sleep_forever()
    finally:
        journal.withdraw(questions)
        if lane is not None:
            sequencer.resumed(lane, "cxl")


def _is_shielded_from(scope: trio.CancelScope) -> bool:
    """Return whether the calling task is shielded from a scope.

    The scope's deadline then has no effect on the task. Calls of a handler's thread run in a system
    task, which is never shielded.
    """
    nursery = trio.lowlevel.current_task().parent_nursery
    if nursery is None or nursery.parent_task is trio.lowlevel.current_root_task():
        return False
    deadline, scope.deadline = scope.deadline, -math.inf
    try:
        return trio.current_effective_deadline() > scope.deadline
    finally:
        scope.deadline = deadline


# Kept calls -------------------------------------------------------------------------------------

DIVERGED: Final = (
    "the instance that ran this request was lost, and the handler did something else when it ran"
    " again: its outcome is unknown"
)


class DivergedError(OutcomeUnknown):
    """The handler of a kept call has not repeated what it had done in another instance."""


async def run_kept(
    handling: Handling, journal: HandlerJournal, handler: Callable[[], Awaitable[Any]]
) -> Any:
    """Run a handler of a legacy session with the operations that it has finished elsewhere.

    Its questions are sent to the client as requests. If it does something else than it has done
    there, that operation raises `OutcomeUnknown`, because its effects may not run twice.

    Raises:
        Exception: The handler raised it.
    """

    def has_changed() -> bool:
        if not _has_changed(handling):
            return False
        raise DivergedError(DIVERGED)

    watch_lanes()
    journal.code_has_changed = has_changed
    handling.handler_journal = journal
    handling.ask_in_rounds = functools.partial(_ask_kept, journal)
    enter_lane(journal.lane)
    try:
        return await handler()
    finally:
        LANE.set(journal.lane.outer)
        handling.handler_journal, handling.ask_in_rounds = None, None


async def _ask_kept(
    journal: HandlerJournal, handling: Handling, asked: Sequence[Question]
) -> list[Any]:
    """Return the answers that the client has given already; ask the other questions."""
    begun = [journal.begin_operation(each.method, _params_of(each)) for each in asked]
    unanswered = [each for each, (_, earlier) in zip(asked, begun, strict=True) if earlier is None]
    given = iter(await _send_requests(handling, unanswered) if unanswered else ())
    results = list[Any]()
    for each, (operation_id, earlier) in zip(asked, begun, strict=True):
        if earlier is None:
            results.append(next(given))
            journal.finish_operation(operation_id, "res", encode_body(results[-1]))
        else:
            results.append(
                await perform_once(handling, _question_effect(each, bytes(earlier.body)))
            )
    return results


# Suspended handlers -----------------------------------------------------------------------------
#
# The request of a handler that asks is answered with the questions, and the handler is *suspended*
# until the client retries the request with its answers. The retry then becomes the handler's
# request. Notifications that the handler sends in between wait for the retry.
#
# The rounds of each handler that asks have a background task of the session. It sends the
# questions when all tasks that could run have had a chance to ask, so that questions asked together
# are sent in one round. It also enforces `limits.requests.suspended_seconds`: it cancels a handler
# that has been suspended for too long, and drops the last reply, kept for a repeated retry.
#
# In a recording this task has a lane, the handler's with `.ask`. A mark records each action: the
# random state of a new round, which a replay repeats, or null when the time is over. A retry has no
# lane, because it starts no handler.

ROUNDS_TASK: Final = "ask"
"""The last part of the name of the lane in which the task of a handler's rounds runs."""

_STATE_BYTES: Final = 24


class Stage(enum.Enum):
    """The stage of a handler that asks in rounds."""

    OPEN = enum.auto()  # The handler has a request that is not answered.
    SUSPENDED = enum.auto()  # The request was answered with questions, and there is no retry.
    QUEUED = enum.auto()  # The retry has arrived, and waits to be admitted.
    OVER = enum.auto()  # The last response has been sent.


class _OpenQuestion(msgspec.Struct, eq=False):
    """One question of a suspended handler.

    Attributes:
        question: The question.
        request: Its form in the `InputRequiredResult`.
        settled: An event of all questions asked together, set when they are answered or given up.
        result: The decoded answer; or the exception of the question's own check, which is raised in
            the handler and not in the session.
        is_answered: True if the answer has arrived.
        is_taken: True if the handler goes on with the answer.
    """

    question: Question
    request: types.InputRequest
    settled: trio.Event
    result: Any = None
    is_answered: bool = False
    is_taken: bool = False

    def outcome(self) -> Any:
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


@attrs.define(eq=False, repr=False)
class Rounds:
    """The rounds of one handler that asks a stateless client, from its first question on.

    The handler's tasks call `ask`, the dispatcher passes each retry to `read_answers` and `resume`,
    and the task of the rounds (`run`) sends the questions and enforces the time limit.

    Attributes:
        handling: The handler and its current request.
        dispatcher: The dispatcher of the session.
        stage: The stage of the handler.
        lane: The lane of the task of the rounds; None if the session is not recorded.
        state: The `requestState` of the last round; None before the first.
        retry: The retry that waits to be admitted.
        duplicates: Repeated retries, which receive the same reply as the first.
        binding: The digest and principal that a retry must have in common with the request.
    """

    handling: Handling
    dispatcher: "Dispatcher"
    stage: Stage = attrs.field(default=Stage.OPEN, init=False)
    lane: Lane | None = attrs.field(init=False)
    state: str | None = attrs.field(default=None, init=False)
    retry: IncomingRequest | None = attrs.field(default=None, init=False)
    duplicates: list[IncomingRequest] = attrs.field(factory=list[IncomingRequest], init=False)
    binding: tuple[bytes, str | None] = attrs.field(init=False)
    # The last response to a retry, for a repetition of this retry: the state with which the retry
    # came, and the encoded response.
    _last_reply: tuple[str, bytes] | None = attrs.field(default=None, init=False)
    # The questions of the next round, or of the round that waits for a retry, by key.
    _pending: dict[str, _OpenQuestion] = attrs.field(factory=dict[str, _OpenQuestion], init=False)
    # The questions of the last round that was sent, by key.
    _sent: dict[str, _OpenQuestion] = attrs.field(factory=dict[str, _OpenQuestion], init=False)
    # The number of questions so far.
    _asked: int = attrs.field(default=0, init=False)
    # The time at which the task stops waiting for a retry, or drops the last reply.
    _deadline: float = attrs.field(default=math.inf, init=False)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    # Set when the handler has a request again, or is cancelled.
    _opened: trio.Event = attrs.field(factory=trio.Event, init=False)
    # Set when the task has to look at the handler again.
    _change: trio.Event = attrs.field(factory=trio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        handling = self.handling
        self.binding = binding_of(handling.request)
        outer = handling.lane
        if outer is None:
            self.lane = None
        else:
            self.lane = Lane(f"{outer.name}.{ROUNDS_TASK}", outer.owner, has_steps=outer.has_steps)

    # Properties for the dispatcher.

    @property
    def is_open(self) -> bool:
        """True if the handler has a request that is not answered."""
        return self.stage is Stage.OPEN

    @property
    def is_waiting(self) -> bool:
        """True if the handler waits for its client, or will once its questions are sent."""
        return self.stage in {Stage.SUSPENDED, Stage.QUEUED} or bool(self._pending)

    @property
    def states(self) -> list[str]:
        """The `requestState`s with which a retry is accepted."""
        kept = [] if self._last_reply is None else [self._last_reply[0]]
        return [*kept, self.state] if self.state is not None and self.state not in kept else kept

    @property
    def reply_bytes(self) -> int:
        """The size of the kept reply, in bytes."""
        return 0 if self._last_reply is None else len(self._last_reply[1])

    def reply_to(self, state: str) -> bytes | None:
        """Return the reply to an earlier retry with this state; None if there was none."""
        if self._last_reply is None or self._last_reply[0] != state:
            return None
        return self._last_reply[1]

    # The handler's side.

    async def wait_until_open(self) -> None:
        """Wait until the handler has a request again, or is cancelled."""
        while not (self.is_open or self.handling.is_cancelled):
            await self._opened.wait()
        await trio.lowlevel.checkpoint_if_cancelled()

    async def ask(self, questions: Sequence[Question]) -> list[Any]:
        """Ask questions in one round, and return the client's answers.

        If this is cancelled, the client may have received the questions.

        Raises:
            RequestError: Too many handlers wait for answers.
            ConnectionLost: The request was cancelled, and the caller is in a shielded scope.
            LocalProtocolError: The questions are too large, or the calling task has no lane.
            Unencodable: The params of a question cannot be encoded as JSON.
            Exception: The `check` of a question failed.
        """
        lane = lane_of_caller(self.handling)
        opened, size_bytes = self._opened_questions(questions)
        await _begin_asking(self.handling, questions, lane)
        try:
            self._add_to_round(opened, size_bytes)
        except MCPError:
            if lane is not None:
                self.handling.session.sequencer.resumed(lane, "err")
            raise
        await self._wait(opened, lane)
        return [each.outcome() for each in opened]

    def _opened_questions(self, questions: Sequence[Question]) -> tuple[list[_OpenQuestion], int]:
        """Return open questions, and the size in bytes of the result that asks them."""
        settled, request = trio.Event(), self.handling.request
        opened = [
            _OpenQuestion(
                each,
                types.InputRequest(
                    method=each.method,
                    params=EmptyParams() if each.params is None else each.params,
                ),
                settled,
            )
            for each in questions
        ]
        wanted = {str(number): question for number, question in enumerate(opened)}
        reply = self.handling.session.connection.response(
            request, _input_required(wanted, SUSPENDED_PREFIX)
        )
        for each in opened:  # The handler may modify its params later, so they are encoded now.
            params = downgraded(each.request.params, request.peer.protocol_version)
            each.request.params = msgspec.Raw(msgspec.json.encode(params))
        return opened, len(reply)

    def _add_to_round(self, questions: Sequence[_OpenQuestion], size_bytes: int) -> None:
        if self.handling.is_cancelled:
            raise _cannot_be_asked()
        bytes_max = self.handling.session.connection.limits.messages.bytes_max
        size_bytes += sum(len(question.request.params) for question in self._pending.values())
        if size_bytes > bytes_max:
            raise LocalProtocolError(
                f"the open input requests have {size_bytes} bytes,"
                f" more than limits.messages.bytes_max={bytes_max}"
            )
        rejection = self.dispatcher.suspended_handlers.rejection(self)
        if rejection is not None:
            raise RequestError(SERVER_BUSY, rejection)
        if not self._asked:
            if self.lane is None:
                self.dispatcher.tasks.start(self.run)
            else:
                self.dispatcher.tasks.start(drive_in, self.lane, self.run)
        for question in questions:
            self._asked += 1
            self._pending[f"q{self._asked}"] = question
        self.dispatcher.suspended_handlers.update(self)
        self._change.set()

    async def _wait(self, questions: Sequence[_OpenQuestion], lane: Lane | None) -> None:
        sequencer = self.handling.session.sequencer
        kind = "cxl"
        try:
            # `wait` would raise a pending cancellation although the answers are there already.
            if not questions[0].settled.is_set():
                await questions[0].settled.wait()
            kind = "res" if questions[0].is_taken else "err"
        finally:
            if lane is not None:
                sequencer.resumed(lane, kind)
            withdrawn = [key for key, question in self._pending.items() if question in questions]
            for key in withdrawn:
                del self._pending[key]
            self.dispatcher.suspended_handlers.update(self)
        if kind == "err":
            raise _cannot_be_asked()

    # The task of the rounds.

    async def run(self) -> None:
        """Send questions and enforce the time limit, until the handler ends and keeps no reply."""
        with self._scope:
            while True:
                await trio.lowlevel.checkpoint()  # Tasks that have just been woken may ask as well.
                has_to_ask = self.is_open and self._pending and not self.handling.is_cancelled
                if not (has_to_ask or trio.current_time() >= self._deadline):
                    self._change = trio.Event()
                    with trio.move_on_at(self._deadline):
                        await self._change.wait()
                    continue
                token = secrets.token_urlsafe(_STATE_BYTES)
                state = f"{SUSPENDED_PREFIX}{token}" if has_to_ask else None
                if self.lane is not None:
                    state = self.handling.session.sequencer.marked(SUSPENDED_MARK, state, self.lane)
                if state is not None:
                    self._suspend(state)
                    continue
                # The time is over: stop waiting for a retry, and drop the kept reply.
                if self.stage is Stage.SUSPENDED:
                    self.cancel_handler()
                self.state = self._last_reply = None
                self._scope.cancel()
                self.dispatcher.suspended_handlers.update(self)

    def _suspend(self, state: str) -> None:
        """Send the questions as the response to the request; the handler waits for a retry."""
        handling, self._sent = self.handling, dict(self._pending)
        connection = handling.session.connection
        reply = connection.response(handling.request, _input_required(self._sent, state))
        self._last_reply = None if self.state is None else (self.state, reply)
        self.state, self.stage = state, Stage.SUSPENDED
        self._deadline = trio.current_time() + connection.limits.requests.suspended_seconds
        self._opened = trio.Event()
        self.dispatcher.suspend(self, reply)

    # The dispatcher's side.

    def read_answers(self, retry: IncomingRequest) -> bytes | None:
        """Read the answers in a retry; ignore answers without a question.

        Returns:
            None if all answers are there; else the encoded result that asks for the missing ones.

        Raises:
            RequestError: An answer is invalid; none of the answers was accepted.
        """
        responses: Mapping[str, msgspec.Raw] = retry.params.input_responses or {}
        asked = {key: question for key, question in self._sent.items() if key in self._pending}
        results = {
            key: _decoded_answer(f" {key!r}", question.question, responses[key])
            for key, question in asked.items()
            if key in responses
        }
        for key, result in results.items():
            asked[key].result, asked[key].is_answered = result, True
        missing = {key: question for key, question in asked.items() if not question.is_answered}
        if not missing:
            return None
        assert self.state is not None
        return self.handling.session.connection.response(
            retry, _input_required(missing, self.state)
        )

    def queue_retry(self, retry: IncomingRequest) -> None:
        """Let a complete retry wait to be admitted."""
        self.retry, self.stage, self._deadline = retry, Stage.QUEUED, math.inf

    def resume(self, retry: IncomingRequest) -> None:
        """Let the handler go on, with the retry as its request."""
        self.retry, self.stage, self._deadline = None, Stage.OPEN, math.inf
        self.handling.request, self._last_reply = retry, None
        retry.move(IncomingTrigger.START)
        for key in self._sent:
            question = self._pending.pop(key, None)
            if question is not None:
                question.is_taken = True
                question.settled.set()
        self._sent = {}
        self._opened.set()
        self._change.set()

    def cancel_handler(self) -> None:
        """Cancel the handler; a question in a shielded scope raises `ConnectionLost`."""
        self.handling.cancel()
        for question in self._pending.values():
            question.settled.set()
        self._opened.set()

    def end(self, reply: bytes | None) -> None:
        """Note the end of the handler; keep its reply for a while if it answers a retry."""
        self.stage = Stage.OVER
        self._pending = {}
        if reply is None or self.state is None:
            self.state = None
            self.drop_reply()
            return
        self._last_reply = (self.state, reply)
        seconds = self.handling.session.connection.limits.requests.suspended_seconds
        self._deadline = trio.current_time() + seconds
        self._change.set()

    def drop_reply(self) -> None:
        """Drop the kept reply; end the task of the rounds if the handler is over."""
        self._last_reply = None
        if self.stage is Stage.OVER:
            self.state = None
            self._scope.cancel()


def binding_of(request: IncomingRequest) -> tuple[bytes, str | None]:
    """Return the digest of the params and the principal, which a retry must have in common."""
    return request_digest(request.method.name, request.params), request.peer.principal


def _cannot_be_asked() -> ConnectionLost:
    return ConnectionLost("the request is cancelled: its client cannot be asked any more")


def _input_required(
    questions: Mapping[str, _OpenQuestion], state: str
) -> types.InputRequiredResult:
    requests = {key: question.request for key, question in questions.items()}
    return types.InputRequiredResult(input_requests=requests, request_state=state)


def _decoded_answer(name: str, question: Question, response: msgspec.Raw) -> Any:
    """Return a decoded answer, or the exception of the question's own check."""
    try:
        result = METHODS[question.method].decode_result(response)
        question.check(result)
    except (msgspec.MsgspecError, RemoteProtocolError) as error:
        raise RequestError(INVALID_PARAMS, f"invalid input response{name}: {error}") from error
    except Exception as error:
        return error
    return result


# The suspended handlers of a session ------------------------------------------------------------


def is_retry(request: IncomingRequest) -> bool:
    """Return whether a request is the retry of a suspended handler."""
    # A `requestState` without the prefix belongs to the application, such as a sealed state.
    state = request.params.request_state
    return state is not None and state.startswith(SUSPENDED_PREFIX)


@attrs.define(eq=False, repr=False)
class SuspendedHandlers:
    """The handlers of a session that have asked, limited in number, bytes and time.

    Attributes:
        limits: The limits.
        is_closed: True if no more retries are accepted.
    """

    limits: Limits
    is_closed: bool = attrs.field(default=False, init=False)
    # The handlers that wait, or will soon, each with the client in whose share it takes a place.
    _waiting: dict[Rounds, str | int] = attrs.field(factory=dict[Rounds, str | int], init=False)
    _places: Shares = attrs.field(init=False)
    _states: dict[str, Rounds] = attrs.field(factory=dict[str, Rounds], init=False)
    # The states of each handler's rounds that are in `_states`.
    _indexed: dict[Rounds, list[str]] = attrs.field(factory=dict[Rounds, list[str]], init=False)

    def __attrs_post_init__(self) -> None:
        self._places = shares_of("limits.requests.suspended_max", self.limits)

    @property
    def suspended(self) -> list[Handling]:
        """The handlers that wait for a retry."""
        return [rounds.handling for rounds in self._waiting if not rounds.is_open]

    @property
    def is_empty(self) -> bool:
        """True if no handler is suspended and no reply is kept."""
        return not (self._waiting or self._indexed)

    def close(self) -> None:
        """Accept no more retries: cancel the suspended handlers and drop the kept replies."""
        self.is_closed = True
        for rounds in [*self._indexed]:
            rounds.drop_reply()
            self._index(rounds)
        for rounds in self._waiting:
            if rounds.stage is Stage.SUSPENDED:
                rounds.cancel_handler()

    def rejection(self, rounds: Rounds) -> str | None:
        """Return the reason why a handler cannot ask, with the limit; None if it can ask."""
        exceeded = self._places.exceeded(rounds.handling.request.client_key)
        if rounds in self._waiting or exceeded is None:
            return None
        if not self.limits.requests.suspended_max:
            return "only resumable handlers may ask here (limits.requests.suspended_max=0)"
        return f"too many handlers wait for answers{exceeded}"

    def find_by_retry(self, request: IncomingRequest) -> Rounds:
        """Return the rounds that a retry belongs to.

        Raises:
            RequestError: The `requestState` is unknown, or belongs to another request.
        """
        rounds = self._states.get(request.params.request_state)
        if rounds is None or rounds.binding != binding_of(request):
            raise invalid_state_error()
        return rounds

    def update(self, rounds: Rounds) -> None:
        """Update the tables after a change of a handler's rounds."""
        if rounds.is_waiting and rounds not in self._waiting:
            client = self._waiting[rounds] = rounds.handling.request.client_key
            self._places.take(client)
        elif not rounds.is_waiting and rounds in self._waiting:
            self._places.give_back(self._waiting.pop(rounds))
        self._index(rounds)
        if rounds.reply_bytes:
            self._drop_excess_replies(rounds.handling.request.client_key)

    def _index(self, rounds: Rounds) -> None:
        """Let retries find the rounds by their present states, and by no earlier ones."""
        for state in self._indexed.pop(rounds, ()):
            del self._states[state]
        if rounds.states:
            self._indexed[rounds] = rounds.states
            self._states.update(dict.fromkeys(rounds.states, rounds))

    def _drop_excess_replies(self, client: str | int) -> None:
        """Drop kept replies of a client, the oldest first, until the limits are met."""
        limits = self.limits.requests
        keeping = [rounds for rounds in self._indexed if rounds.reply_bytes]
        of_client = [rounds for rounds in keeping if rounds.handling.request.client_key == client]
        total_bytes_max = limits.replies_kept_bytes_max * limits.all_clients_factor
        excess = max(
            len(of_client) - limits.suspended_max,
            len(keeping) - limits.suspended_max * limits.all_clients_factor,
        )
        excess_bytes = max(
            sum(rounds.reply_bytes for rounds in of_client) - limits.replies_kept_bytes_max,
            sum(rounds.reply_bytes for rounds in keeping) - total_bytes_max,
        )
        for rounds in of_client:
            if excess <= 0 and excess_bytes <= 0:
                return
            excess -= 1
            excess_bytes -= rounds.reply_bytes
            rounds.drop_reply()
            self._index(rounds)
