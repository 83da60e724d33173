"""Questions of handlers to their client: requests, or multi-round requests (2026-07-28)."""

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
from mcp_trio._journal.records import encode_body
from mcp_trio._protocol.compat import downgraded
from mcp_trio._protocol.methods import METHODS
from mcp_trio._protocol.requests import (
    SUSPENDED_PREFIX,
    IncomingRequest,
    invalid_state_error,
    request_digest,
)
from mcp_trio._session.calls import Asked
from mcp_trio._session.effects import Effect, command, perform_once
from mcp_trio._session.handlers import Handling
from mcp_trio._session.journal import (
    LANE,
    Lane,
    Memory,
    StepId,
    enter_lane,
    resume,
    take_turn,
    watch_lanes,
)
from mcp_trio._session.tasks import together
from mcp_trio.errors import (
    INVALID_PARAMS,
    SERVER_BUSY,
    ConnectionLost,
    LocalProtocolError,
    MCPError,
    RemoteProtocolError,
    RequestError,
)
from mcp_trio.limits import Limits
from mcp_trio.types import EmptyParams

if TYPE_CHECKING:
    from mcp_trio._session.dispatcher import Dispatcher

# --------------------
# The questions of a resumable handler: answered in an earlier round, or the end of this one.
#
# A question is a step like any other, whose outcome is the client's answer. One that nobody has
# answered yet is waited for in vain: when all tasks that could go on have had a turn to ask as
# well, the handler is cancelled, and the round asks its questions.


ROUND: Final = "round"
"""The name of the mark by which a round ends; its value are the keys of the questions."""

CHANGED: Final = "ctx.changed"
"""What is marked as patched where a handler does not do what it did in an earlier round."""

ASK_ALL: Final = "ctx.ask_all"


async def run_resumably(
    handling: Handling, memory: Memory, handler: Callable[[], Awaitable[Any]]
) -> Any:
    """Run a resumable handler with the journal of its earlier rounds; return None if it asks.

    Then `memory.questions` holds what. Effects that ran at that moment are cancelled, and begin
    anew in the next round.

    Raises:
        Exception: What the handler raises.
    """
    watch_lanes()
    memory.has_changed = functools.partial(_has_changed, handling)
    handling.memory, suspended = memory, handling.asker
    handling.asker = functools.partial(_ask_all, memory)
    result, fault = None, None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_end_round, handling, memory)
        enter_lane(memory.lane)
        try:
            with memory.scope:
                result = await handler()
        except Exception as error:
            fault = error
        finally:
            LANE.set(memory.lane.outer)
            handling.memory, handling.asker = None, suspended
        nursery.cancel_scope.cancel()
    if fault is not None:
        raise fault
    return None if memory.scope.cancelled_caught else result


def _has_changed(handling: Handling) -> bool:
    """In a live session it has; in a replay if it had."""
    lane = handling.current_lane()
    return lane is None or handling.session.sequencer.patched(lane, CHANGED)


async def _end_round(handling: Handling, memory: Memory) -> None:
    """End the handler when it has asked; who could run since then has had a turn to ask."""
    lane, sequencer = handling.current_lane(), handling.session.sequencer
    while True:
        await memory.has_asked.wait()
        await trio.lowlevel.checkpoint()  # who has just been woken may ask as well
        if lane is not None:
            await take_turn(sequencer, lane)
        if memory.questions:  # who asked may have gone since
            break
    if lane is not None:
        sequencer.marked(ROUND, list(memory.questions), lane)
    memory.scope.cancel()


async def _ask_all(memory: Memory, handling: Handling, asked: Sequence[Asked]) -> list[Any]:
    steps = [memory.next_step(each.method, _params_of(each)) for each in asked]
    open_ = {place: each for each, (place, step) in zip(asked, steps, strict=True) if step is None}
    if open_:
        await _end_round_with(handling, memory, open_)
    bodies = [bytes(step.body) for _, step in steps if step is not None]
    return [
        await perform_once(handling, _question(each, body))
        for each, body in zip(asked, bodies, strict=True)
    ]


async def _end_round_with(
    handling: Handling, memory: Memory, asked: Mapping[StepId, Asked]
) -> NoReturn:
    """Put questions into the round, and wait for its end."""
    lane, sequencer = handling.current_lane(), handling.session.sequencer
    await command(handling, asking(list(asked.values())), lane)
    hindrance = _hindrance(memory)
    if hindrance is not None:
        if lane is not None:
            sequencer.resumed(lane, "err")
        raise LocalProtocolError(hindrance)
    memory.ask(asked)
    try:
        if lane is not None:
            await take_turn(sequencer, lane)
        await trio.sleep_forever()
    finally:
        memory.withdraw(asked)
        if lane is not None:
            await resume(sequencer, lane, "cxl")


def _hindrance(memory: Memory) -> str | None:
    """Why the calling task cannot ask now; None if it can."""
    if memory.scope.cancel_called:
        return "the handler is ending, since it asked: it cannot ask more"
    if _is_shielded_from(memory.scope):
        return "a resumable handler ends at its questions, so it cannot ask behind a shield"
    return None


def _is_shielded_from(scope: trio.CancelScope) -> bool:
    """Return whether the calling task is shielded from a scope, so that its deadline has no effect.

    What a handler's thread calls is done by a system task, which others cancel; threads have no
    shields.
    """
    nursery = trio.lowlevel.current_task().parent_nursery
    if nursery is None or nursery.parent_task is trio.lowlevel.current_root_task():
        return False
    deadline, scope.deadline = scope.deadline, -math.inf
    try:
        return trio.current_effective_deadline() > scope.deadline
    finally:
        scope.deadline = deadline


def asking(asked: Sequence[Asked]) -> Effect[None]:
    """Return the recorded form of open questions."""
    if len(asked) == 1:
        return _question(asked[0])
    questions = [{"method": it.method, "params": msgspec.Raw(_params_of(it))} for it in asked]
    arguments = functools.partial(encode_body, {"questions": questions})
    return attrs.evolve(_question(asked[0]), name=ASK_ALL, arguments=arguments)


def _question(asked: Asked, body: bytes = b"") -> Effect[Any]:
    return Effect(
        name=asked.method,
        arguments=functools.partial(_params_of, asked),
        run=_nothing,
        codec=_Answer(asked, body),
    )


def _nothing() -> None:
    """The answer is there already."""


def _params_of(asked: Asked) -> bytes:
    return encode_body(EmptyParams() if asked.params is None else asked.params)


@attrs.frozen
class _Answer:
    """The client's answer to a question, as it came: it is looked at in each round."""

    asked: Asked
    body: bytes

    def converted(self, value: Any) -> tuple[Any, bytes]:  # noqa: ARG002  the protocol's
        return self.decoded(self.body), self.body

    def decoded(self, body: bytes) -> Any:
        try:
            result = METHODS[self.asked.method].decode_result(msgspec.Raw(body))
            self.asked.check(result)
        except (msgspec.MsgspecError, RemoteProtocolError) as error:
            raise RequestError(INVALID_PARAMS, f"invalid input response: {error}") from error
        return result


# --------------------
# Rounds: how a handler asks a modern client, by the answer to its own request.
#
# A modern server sends no requests (BASE-22). So what a handler wants to know is the answer to the
# request that it handles, and the handler is *parked*: it waits until the client makes that request
# again, with its answers. This retry is then the handler's request, and so on, until the handler
# returns. While none is there, what the handler sends waits.
#
# A handler that asks has a keeper, a task of the session's. It answers for the handler when all
# tasks that could go on have had a turn to ask as well, so that what is asked together is asked in
# one round. And it ends what nobody comes back for: a parked handler, or the last reply to a retry,
# which is kept so that the same retry gets the same reply again.
#
# In a recording the keeper has a lane, the handler's and `.ask`. It takes a turn for each of its
# acts, and a mark says what that is: the state which it gives to a round, or nothing if the time is
# over. In a replay the mark decides. A retry makes no lane, for it starts nothing.


SUSPENDED_MARK: Final = "parked"
KEEPER: Final = "ask"
"""What a keeper's lane ends with, behind a dot."""

_STATE_BYTES: Final = 24


class Stage(enum.Enum):
    """The stage of a handler that asks in rounds."""

    OPEN = enum.auto()  # a request waits for its answer
    SUSPENDED = enum.auto()  # it has been answered by questions, and no retry is there
    QUEUED = enum.auto()  # the retry is there, and waits for a place
    OVER = enum.auto()  # the last answer has gone out


@attrs.define(eq=False)
class _Question:
    """One question; `settled` is set when all that were asked with it are, or nobody comes back.

    `is_taken` says that the handler goes on with its result. That is an exception if the question's
    own check has failed in looking at it: the handler hears of that, and not the session.
    """

    asked: Asked
    request: types.InputRequest
    settled: trio.Event
    result: Any = None
    is_answered: bool = False
    is_taken: bool = False

    def outcome(self) -> Any:
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


@attrs.define(eq=False)
class Rounds:
    """The rounds of one handler, from its first question on.

    Attributes:
        handling: The handler, and its request of now.
        dispatcher: The dispatcher of the session.
        stage: See `Stage`.
        lane: Its keeper's lane; None when nothing records.
        state: What the client was given in the last round; None before.
        retry: The one that waits for a place.
        echoes: Retries that came once more: they get the same reply as the first.
        binding: What a retry must have in common with the first request.
    """

    handling: Handling
    dispatcher: "Dispatcher"
    stage: Stage = attrs.field(default=Stage.OPEN, init=False)
    lane: Lane | None = attrs.field(init=False)
    state: str | None = attrs.field(default=None, init=False)
    retry: IncomingRequest | None = attrs.field(default=None, init=False)
    echoes: list[IncomingRequest] = attrs.field(factory=list[IncomingRequest], init=False)
    binding: tuple[bytes, str | None] = attrs.field(init=False)
    _kept: tuple[str, bytes] | None = attrs.field(default=None, init=False)
    _open: dict[str, _Question] = attrs.field(factory=dict[str, _Question], init=False)
    _sent: dict[str, _Question] = attrs.field(factory=dict[str, _Question], init=False)
    _asked: int = attrs.field(default=0, init=False)
    _deadline: float = attrs.field(default=math.inf, init=False)
    _keeping: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _opened: trio.Event = attrs.field(factory=trio.Event, init=False)
    _news: trio.Event = attrs.field(factory=trio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        handling = self.handling
        self.binding = binding_of(handling.request)
        outer = handling.lane
        self.lane = None if outer is None else Lane(f"{outer.name}.{KEEPER}", outer.order)

    # What others want to know.

    @property
    def is_open(self) -> bool:
        """Return whether a request is open for the handler's answer."""
        return self.stage is Stage.OPEN

    @property
    def is_waiting(self) -> bool:
        """Return whether the handler waits for its client, or will once its questions are sent."""
        return self.stage in {Stage.SUSPENDED, Stage.QUEUED} or bool(self._open)

    @property
    def states(self) -> list[str]:
        """With which states the client may come."""
        kept = [] if self._kept is None else [self._kept[0]]
        return [*kept, self.state] if self.state is not None and self.state not in kept else kept

    @property
    def kept_bytes(self) -> int:
        """Return the size of the kept reply, in bytes."""
        return 0 if self._kept is None else len(self._kept[1])

    def kept_for(self, state: str) -> bytes | None:
        """The reply that a retry with this state has had; None if it has none yet."""
        is_kept = self._kept is not None and self._kept[0] == state
        return self._kept[1] if self._kept is not None and is_kept else None

    # The handler's side.

    async def opened(self) -> None:
        """Wait until a request is there again, or none will be."""
        while not (self.is_open or self.handling.is_cancelled):
            await self._opened.wait()
        await trio.lowlevel.checkpoint_if_cancelled()

    async def ask(self, asked: Sequence[Asked]) -> list[Any]:
        """The client's answers to questions; they are all in one round.

        Cancelled: nobody waits for the answers any more, but the client may have been asked.

        Raises:
            RequestError: Too many handlers wait for answers.
            ConnectionLost: The request was cancelled, and who asks shields itself from that.
            LocalProtocolError: The questions are too large; or the calling task has no lane.
            Unencodable: The params of a question cannot be written as JSON.
            Exception: What the `check` of a question raises that is no word on the answer.
        """
        lane = self.handling.current_lane()
        questions, size_bytes = self._questions(asked)
        await command(self.handling, asking(asked), lane)
        try:
            self._enter(questions, size_bytes)
        except MCPError:
            if lane is not None:
                self.handling.session.sequencer.resumed(lane, "err")
            raise
        await self._wait(questions, lane)
        return [question.outcome() for question in questions]

    def _questions(self, asked: Sequence[Asked]) -> tuple[list[_Question], int]:
        """The questions, and what an answer that asks them takes."""
        settled, request = trio.Event(), self.handling.request
        questions = [_Question(each, _input_request(each), settled) for each in asked]
        wanted = {str(place): question for place, question in enumerate(questions)}
        frame = self.handling.session.connection.response(
            request, _wanted(wanted, SUSPENDED_PREFIX)
        )
        for question in questions:  # what the handler does with the params is nothing to the round
            params = downgraded(question.request.params, request.peer.protocol_version)
            question.request.params = msgspec.Raw(msgspec.json.encode(params))
        return questions, len(frame)

    def _enter(self, questions: Sequence[_Question], size_bytes: int) -> None:
        """Put questions into the next round."""
        if self.handling.is_cancelled:
            raise _nobody()
        bytes_max = self.handling.session.connection.limits.messages.bytes_max
        size_bytes += sum(len(question.request.params) for question in self._open.values())
        if size_bytes > bytes_max:
            text = (
                f"the questions take {size_bytes} bytes, over limits.messages.bytes_max={bytes_max}"
            )
            raise LocalProtocolError(text)
        rejection = self.dispatcher.suspended_handlers.rejection(self)
        if rejection is not None:
            raise RequestError(SERVER_BUSY, rejection)
        if not self._asked:
            self.dispatcher.tasks.start(self.keep)
        for question in questions:
            self._asked += 1
            self._open[f"q{self._asked}"] = question
        self.dispatcher.suspended_handlers.update(self)
        self._news.set()

    async def _wait(self, questions: Sequence[_Question], lane: Lane | None) -> None:
        sequencer = self.handling.session.sequencer
        kind = "cxl"
        try:
            if lane is not None:
                await take_turn(sequencer, lane)
            if not questions[0].settled.is_set():  # or a cancellation would get between
                await questions[0].settled.wait()
            kind = "res" if questions[0].is_taken else "err"
        finally:
            if lane is not None:
                await resume(sequencer, lane, kind)
            self._withdraw(questions)
        if kind == "err":
            raise _nobody()

    def _withdraw(self, questions: Sequence[_Question]) -> None:
        """Nobody waits for the answers any more."""
        gone = [key for key, question in self._open.items() if question in questions]
        for key in gone:
            del self._open[key]
        self.dispatcher.suspended_handlers.update(self)

    # The keeper.

    async def keep(self) -> None:
        """The keeper's task; it ends when nothing is left to keep."""
        with self._keeping:
            while True:
                await self._occasion()
                await self._act()

    @property
    def _has_to_ask(self) -> bool:
        return self.is_open and bool(self._open) and not self.handling.is_cancelled

    @property
    def _is_overdue(self) -> bool:
        return trio.current_time() >= self._deadline

    async def _occasion(self) -> None:
        """Wait until there is something to do; a replay knows when that was."""
        sequencer = self.handling.session.sequencer
        if self.lane is not None and sequencer.decides_turns:
            await sequencer.turn(self.lane)
            return
        while True:
            await trio.lowlevel.checkpoint()  # who has just been woken may ask as well
            if self._has_to_ask or self._is_overdue:
                return
            await self._next_news()

    async def _next_news(self) -> None:
        self._news = trio.Event()
        with trio.move_on_at(self._deadline):
            await self._news.wait()

    async def _act(self) -> None:
        state = (
            f"{SUSPENDED_PREFIX}{secrets.token_urlsafe(_STATE_BYTES)}" if self._has_to_ask else None
        )
        if self.lane is not None:
            state = self.handling.session.sequencer.marked(SUSPENDED_MARK, state, self.lane)
        if state is None:
            self._expire()
            return
        while not self._has_to_ask:  # a replay that is behind
            await self._next_news()
        self._suspend(state)

    def _suspend(self, state: str) -> None:
        handling, self._sent = self.handling, dict(self._open)
        connection = handling.session.connection
        frame = connection.response(handling.request, _wanted(self._sent, state))
        self._kept = None if self.state is None else (self.state, frame)
        self.state, self.stage = state, Stage.SUSPENDED
        self._deadline = trio.current_time() + connection.limits.requests.suspended_seconds
        self._opened = trio.Event()
        self.dispatcher.suspend(self, frame)

    def _expire(self) -> None:
        """Nobody has come back in time."""
        if self.stage is Stage.SUSPENDED:
            self.give_up()
        self.state = self._kept = None
        self._keeping.cancel()
        self.dispatcher.suspended_handlers.update(self)

    # The dispatcher's side.

    def read(self, retry: IncomingRequest) -> bytes | None:
        """Take the answers that a retry brings; those to what was not asked mean nothing.

        None if all are there now; otherwise the frame that asks for the missing ones (MRTR-26).

        Raises:
            RequestError: One of them is malformed; none was taken (MRTR-24).
        """
        responses: Mapping[str, msgspec.Raw] = retry.params.input_responses or {}
        asked = {key: question for key, question in self._sent.items() if key in self._open}
        results = {
            key: _result(key, question, responses[key])
            for key, question in asked.items()
            if key in responses
        }
        for key, result in results.items():
            asked[key].result, asked[key].is_answered = result, True
        missing = {key: question for key, question in asked.items() if not question.is_answered}
        if not missing:
            return None
        assert self.state is not None
        return self.handling.session.connection.response(retry, _wanted(missing, self.state))

    def queue(self, retry: IncomingRequest) -> None:
        """The retry that has all the answers has to wait for a place."""
        self.retry, self.stage, self._deadline = retry, Stage.QUEUED, math.inf

    def resume(self, retry: IncomingRequest) -> None:
        """The handler goes on, with another request."""
        self.retry, self.stage, self._deadline = None, Stage.OPEN, math.inf
        self.handling.request, self._kept = retry, None
        self.handling.session.connection.start(retry)
        for key in self._sent:
            question = self._open.pop(key, None)
            if question is not None:
                question.is_taken = True
                question.settled.set()
        self._sent = {}
        self._opened.set()
        self._news.set()

    def give_up(self) -> None:
        """Cancel the handler; what of it is shielded hears that nobody comes back."""
        self.handling.cancel()
        for question in self._open.values():
            question.settled.set()
        self._opened.set()

    def end(self, reply: bytes | None) -> None:
        """The handler is over: its last reply is kept for a while, if it was to a retry."""
        self.stage = Stage.OVER
        self._open = {}
        if reply is None or self.state is None:
            self.state = None
            self.forget()
            return
        self._kept = (self.state, reply)
        seconds = self.handling.session.connection.limits.requests.suspended_seconds
        self._deadline = trio.current_time() + seconds
        self._news.set()

    def forget(self) -> None:
        """Keep no reply any more; after the end of the handler there is nothing left then."""
        self._kept = None
        if self.stage is Stage.OVER:
            self.state = None
            self._keeping.cancel()


def binding_of(request: IncomingRequest) -> tuple[bytes, str | None]:
    """Return what a retry must have in common with its request: parameters and principal."""
    return request_digest(request.method.name, request.params), request.peer.principal


def _nobody() -> ConnectionLost:
    return ConnectionLost("the request is cancelled: its client cannot be asked any more")


def _input_request(asked: Asked) -> types.InputRequest:
    params = types.EmptyParams() if asked.params is None else asked.params
    return types.InputRequest(method=asked.method, params=params)


def _wanted(questions: Mapping[str, _Question], state: str) -> types.InputRequiredResult:
    requests = {key: question.request for key, question in questions.items()}
    return types.InputRequiredResult(input_requests=requests, request_state=state)


def _result(key: str, question: _Question, response: msgspec.Raw) -> Any:
    try:
        result = METHODS[question.asked.method].decode_result(response)
        question.asked.check(result)
    except (msgspec.MsgspecError, RemoteProtocolError) as error:
        text = f"invalid input response {key!r}: {error}"
        raise RequestError(INVALID_PARAMS, text) from error
    except Exception as error:
        return error
    return result


# --------------------
# Which handlers wait for their client's next round, and with which state it may come back.


def is_retry(request: IncomingRequest) -> bool:
    """Return whether a request is the retry of a handler that is suspended here.

    Any other state is the business of the handler's application.
    """
    state = request.params.request_state
    return state is not None and state.startswith(SUSPENDED_PREFIX)


@attrs.define(eq=False)
class SuspendedHandlers:
    """The rounds of a session's handlers; bounded in number, bytes and, by their keepers, in time.

    `is_closed` says that no retry will come any more.
    """

    limits: Limits
    is_closed: bool = attrs.field(default=False, init=False)
    _rounds: dict[Handling, Rounds] = attrs.field(factory=dict[Handling, Rounds], init=False)
    _waiting: dict[Rounds, None] = attrs.field(factory=dict[Rounds, None], init=False)
    _states: dict[str, Rounds] = attrs.field(factory=dict[str, Rounds], init=False)
    _known: dict[Rounds, list[str]] = attrs.field(factory=dict[Rounds, list[str]], init=False)

    @property
    def suspended(self) -> list[Handling]:
        """The handlers that have no request, and are not over."""
        return [rounds.handling for rounds in self._waiting if not rounds.is_open]

    @property
    def is_empty(self) -> bool:
        """Return whether no handler is suspended and no reply is kept."""
        return not (self._rounds or self._known)

    @property
    def handlings(self) -> list[Handling]:
        """The handlers that have asked, and are not over."""
        return list(self._rounds)

    def close(self) -> None:
        """No retry will come any more: who waits for one is cancelled, and no reply is kept."""
        self.is_closed = True
        for rounds in [*self._known]:
            rounds.forget()
            self._learn(rounds)
        for rounds in self._waiting:
            if rounds.stage is Stage.SUSPENDED:
                rounds.give_up()

    def of(self, handling: Handling) -> Rounds | None:
        """The rounds of a handler; None if it has not asked."""
        return None if handling.rounds is None else self._rounds.get(handling)

    def enter(self, rounds: Rounds) -> Rounds:
        """A handler is about to ask for the first time."""
        rounds.handling.rounds = self._rounds[rounds.handling] = rounds
        return rounds

    def leave(self, rounds: Rounds) -> None:
        """A handler is over."""
        del self._rounds[rounds.handling]
        self.update(rounds)

    def rejection(self, rounds: Rounds) -> str | None:
        """Why a handler cannot ask, naming the setting; None when there is room."""
        handlers_max = self.limits.requests.suspended_max
        if rounds in self._waiting or len(self._waiting) < handlers_max:
            return None
        if not handlers_max:
            return "only resumable handlers may ask here (limits.requests.suspended_max=0)"
        return f"too many handlers wait for answers (limits.requests.suspended_max={handlers_max})"

    def found(self, request: IncomingRequest) -> Rounds:
        """The rounds that a retry belongs to.

        Raises:
            RequestError: Its state is none of ours, or belongs to another request.
        """
        rounds = self._states.get(request.params.request_state)
        if rounds is None or rounds.binding != binding_of(request):
            raise invalid_state_error()
        return rounds

    def update(self, rounds: Rounds) -> None:
        """Something has changed about a handler's rounds."""
        if rounds.is_waiting:
            self._waiting[rounds] = None
        else:
            self._waiting.pop(rounds, None)
        self._learn(rounds)
        self._forget_the_oldest()

    def _learn(self, rounds: Rounds) -> None:
        for state in self._known.pop(rounds, ()):
            del self._states[state]
        if rounds.states:
            self._known[rounds] = rounds.states
            self._states.update(dict.fromkeys(rounds.states, rounds))

    def _forget_the_oldest(self) -> None:
        """Give up replies that are kept, from the oldest, until the others are not too many."""
        keeping = [rounds for rounds in self._known if rounds.kept_bytes]
        size_bytes = sum(rounds.kept_bytes for rounds in keeping)
        over = len(keeping) - self.limits.requests.suspended_max
        for rounds in keeping:
            if over <= 0 and size_bytes <= self.limits.requests.replies_kept_bytes_max:
                return
            size_bytes -= rounds.kept_bytes
            over -= 1
            rounds.forget()
            self._learn(rounds)


async def ask_all(handling: Handling, questions: Sequence[Asked]) -> list[Any]:
    """The typed results of the questions, in their order; they are all asked at once, if any.

    A legacy client gets requests, of which the others are cancelled if one fails; of several that
    fail at once the first is raised. For a modern one the handling has an `asker`, which has a
    round for them.

    Raises:
        LocalProtocolError: The handler has asked too much (`limits.requests.sent_per_handler_max`,
            SAMP-22).
        RequestError, RequestTimeout, ConnectionLost: The client did not answer.
        RemoteProtocolError: It answered something else.
    """
    _count(handling, len(questions))
    if not questions:
        await trio.lowlevel.checkpoint()
        return []
    if handling.asker is not None:
        return await handling.asker(handling, questions)
    if len(questions) == 1:
        return [await _ask(handling, questions[0])]
    return await _ask_together(handling, questions)


async def _ask_together(handling: Handling, questions: Sequence[Asked]) -> list[Any]:
    """One request each, in a task each; together they are an operation of the calling lane.

    So a replay is told how the wait for them has ended, which is none of theirs.
    """
    lane, sequencer = handling.current_lane(), handling.session.sequencer

    async def turn() -> None:
        if lane is not None:
            await take_turn(sequencer, lane)

    await command(handling, asking(questions), lane)
    kind = "cxl"
    try:
        results = await together(
            range(len(questions)), lambda place: _ask(handling, questions[place]), meanwhile=turn
        )
        kind = "res"
    except Exception:
        kind = "err"
        raise
    finally:
        if lane is not None:
            await resume(sequencer, lane, kind)
    return [*results.values()]


async def _ask(handling: Handling, question: Asked) -> Any:
    result = await handling.ask(question.method, question.params, on_progress=question.on_progress)
    question.check(result)
    return result


def _count(handling: Handling, number: int) -> None:
    handling.questions += number
    questions_max = handling.session.connection.limits.requests.sent_per_handler_max
    if handling.questions > questions_max:
        raise LocalProtocolError(
            f"a handler asks no more than limits.requests.sent_per_handler_max={questions_max}"
        )
