"""Multi-round requests: a server goes on with a handler from the sealed state that a client sends.

A stateless client answers the questions of a handler with a retry of the request. Between the two
rounds the server keeps nothing: everything that the handler needs again is in the sealed state,
which the client sends back as `requestState`. So any instance of the server that has the keys can
handle the retry. There are two kinds of such handlers:

- A handler that returns an `InputRequiredResult`, with a state of its own, and reads the answers in
  the next round. A legacy client, whose protocol version has no rounds, receives the same questions
  as requests, and the handler is called again with the answers.
- A handler that is registered with `resumable=True` and asks by its context. Its state is the list
  of its finished operations; `HandlerJournal` describes how it runs again.

A replay cannot compute keys, random numbers, the time of day and the contents of the store again.
Therefore each use of them is an effect.

https://modelcontextprotocol.io/specification/2026-07-28/basic/patterns/mrtr
"""

import functools
import secrets
import time
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
import trio

from mcp_trio import types
from mcp_trio._protocol.compat import downgraded
from mcp_trio._protocol.metadata import INPUT_REQUIRED, with_result_metadata
from mcp_trio._protocol.methods import METHODS
from mcp_trio._protocol.requests import invalid_state_error, request_digest
from mcp_trio._protocol.stores import StateStore
from mcp_trio._server.client_requests import (
    ClientQuestion,
    check_capabilities,
    prepare_questions,
    question_of,
)
from mcp_trio._server.effects import perform_plain
from mcp_trio._server.sealed_state import NONCE_BYTES, Binding, Sealer, State
from mcp_trio._session.calls import Question
from mcp_trio._session.handler_journal import FinishedOperation, HandlerJournal, OperationId
from mcp_trio._session.handlers import Handling
from mcp_trio._session.input_required import ask_all, run_resumably
from mcp_trio.errors import INVALID_PARAMS, LocalProtocolError, RequestError

if TYPE_CHECKING:
    from mcp_trio._server.handlers import ServedSession

Result: TypeAlias = msgspec.Struct | msgspec.Raw

# An id of a chain, or a seed of random numbers.
_random_hex: Final = functools.partial(secrets.token_hex, 16)

# The member by which the method of an answer is recognised if its question is unknown.
_METHOD_BY_MEMBER: Final = {
    "action": "elicitation/create",
    "model": "sampling/createMessage",
    "roots": "roots/list",
}


class StateUse(msgspec.Struct, frozen=True):
    """The use of a state by an earlier retry, if any, and its result if the store has kept that."""

    before: bool = False
    reply: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class SealedRounds(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a server that answers requests in rounds, with sealed states between these.

    Attributes:
        sealer: The encoder and decoder of sealed states.
        store: The store of used states, if states may be used only once.
        version: The version of the server; a resumable handler may have a version of its own.
    """

    sealer: Sealer
    store: StateStore | None
    version: str

    def answer_round(self, handling: Handling, served: "ServedSession") -> Awaitable[Result]:
        """Return the result of one round of a stateless client's request.

        Nearly all rounds are the first of a handler that is not resumable, so this chooses the
        coroutine, instead of being one more around it.

        Raises:
            RequestError: The state or an answer in the request is invalid.
            CapabilityMissing: The client did not announce the capability for a question.
            LocalProtocolError: A question is malformed, or the state is too large.
            Exception: The handler raised it.
        """
        registered, params = served.entry(handling.request), handling.request.params
        version = None if registered is None else registered.state_version(self.version)
        if params.request_state is not None:
            return self._answer_retry(handling, served, version)
        if version is not None:
            return self._begin(handling, served, version)
        if params.input_responses is not None:
            handling.input_responses = _answers(None, params.input_responses)
        return self._answer_by_result(handling, served, _FIRST_STATE)

    async def _begin(self, handling: Handling, served: "ServedSession", version: str) -> Result:
        """Answer the first round of a resumable handler."""

        def begin() -> State:
            chain, seed, now = _random_hex(), _random_hex(), time.time()
            return State(chain=chain, round=0, began=now, version=version, seed=seed)

        state = await perform_plain(handling, "state.begin", State, begin)
        return await self._resume(handling, served, state, {})

    async def _answer_retry(
        self, handling: Handling, served: "ServedSession", version: str | None
    ) -> Result:
        """Answer a retry with a state; a state that was used before gets the same result again."""
        request, params = handling.request, handling.request.params

        def open_state() -> State | None:
            sealed, binding = params.request_state, _binding(handling)
            return self.sealer.open(sealed, binding, version=version or "", now=time.time())

        state: State | None = await perform_plain(handling, "state.open", State | None, open_state)
        if state is None:
            raise invalid_state_error()
        answers = _answers(state.pending, params.input_responses or {})
        use = StateUse()
        store, key = self.store, f"{state.chain}.{state.round}"
        limits = self.sealer.limits.requests
        # No instance accepts the state for longer; see `Sealer.open` for clocks that differ.
        seconds = max(limits.state_chain_seconds, 2 * limits.state_seconds)
        if store is not None:

            async def take() -> StateUse:
                if await store.take(key, seconds=seconds, client=request.client_key):
                    return StateUse()
                reply = await store.kept(key)
                kept = msgspec.UNSET if reply is None else msgspec.Raw(reply)
                return StateUse(before=True, reply=kept)

            use = await perform_plain(handling, "state.take", StateUse, take)
        if use.reply is not msgspec.UNSET:
            return use.reply
        if use.before:
            raise invalid_state_error()
        if version is None:
            handling.request_state, handling.input_responses = state.text, answers
            result = await self._answer_by_result(handling, served, state)
        else:
            result = await self._resume(handling, served, state, params.input_responses or {})
        if store is not None:
            kept = result
            if isinstance(result, types.Model):
                kept = with_result_metadata(
                    downgraded(result, request.peer.protocol_version),
                    request.method,
                    handling.session.connection.result_metadata,
                )
            encoded = msgspec.json.encode(kept)
            keep = functools.partial(store.keep, key, encoded, seconds=seconds)
            await perform_plain(handling, "state.keep", None, keep)
        return result

    # Handlers that ask by their result.

    async def _answer_by_result(
        self, handling: Handling, served: "ServedSession", state: State
    ) -> Result:
        result = await served.run_with_middleware(handling)
        if not isinstance(result, types.InputRequiredResult):
            return result
        questions = _questions_of(result)
        check_capabilities(handling.request.peer, list(questions.values()))
        sent = {key: question.as_sent() for key, question in questions.items()}
        text = None
        if result.request_state is not None:
            pending = {key: OperationId("", 0, it.method, "") for key, it in sent.items()}
            after = msgspec.structs.replace(
                state, round=state.round + 1, text=result.request_state, pending=pending
            )
            text = await self._seal(handling, after)
        return _input_required(sent, text)

    async def ask_in_session(
        self, handling: Handling, served: "ServedSession", required: types.InputRequiredResult
    ) -> Result:
        """Ask a legacy client by requests, round by round, and return the last round's result.

        A round without questions is followed by a pause, which grows each time: a stateless client
        would retry after such a pause. Errors are those of `answer_round`; too many rounds are a
        `LocalProtocolError`.
        """
        limits, result = self.sealer.limits, required
        pause_seconds = limits.requests.round_pause_seconds
        for _ in range(limits.requests.rounds_max - 1):
            questions = _questions_of(result)
            if not questions:
                pause = functools.partial(trio.sleep, pause_seconds)
                await perform_plain(handling, "state.pause", None, pause)
                pause_seconds = min(2 * pause_seconds, limits.requests.round_pause_seconds_max)
            ready = prepare_questions(handling, served, list(questions.values()))
            answers = await ask_all(handling, [question.as_sent() for question in ready])
            handling.request_state = result.request_state
            handling.input_responses = dict(zip(questions, answers, strict=True))
            after = await served.run_with_middleware(handling)
            if not isinstance(after, types.InputRequiredResult):
                return after
            result = after
        raise LocalProtocolError(
            "the handler needs too many rounds"
            f" (limits.requests.rounds_max={limits.requests.rounds_max})"
        )

    # Resumable handlers.

    async def _resume(
        self,
        handling: Handling,
        served: "ServedSession",
        state: State,
        responses: Mapping[str, msgspec.Raw],
    ) -> Result:
        journal = HandlerJournal(state.seed, state.asked)
        answered = [
            FinishedOperation(operation_id, "res", responses[key])
            for key, operation_id in state.pending.items()
            if key in responses
        ]
        journal.add_earlier([*state.operations, *answered])
        result = await run_resumably(
            handling, journal, functools.partial(served.run_with_middleware, handling)
        )
        if isinstance(result, types.InputRequiredResult):
            raise LocalProtocolError("a resumable handler has to ask by its context")
        if result is not None:
            answer: Result = result
            return answer
        after = msgspec.structs.replace(
            state,
            round=state.round + 1,
            operations=journal.operations,
            pending={key: operation_id for key, (operation_id, _) in journal.questions.items()},
            asked=journal.asked,
        )
        text = await self._seal(handling, after)
        return _input_required({key: asked for key, (_, asked) in journal.questions.items()}, text)

    # Effects.

    async def _seal(self, handling: Handling, state: State) -> str:
        binding = _binding(handling)

        def seal() -> str:
            now = time.time()
            chain, began = state.chain or _random_hex(), state.began or now
            complete = msgspec.structs.replace(state, chain=chain, began=began)
            nonce = secrets.token_bytes(NONCE_BYTES)
            return self.sealer.seal(complete, binding, now=now, nonce=nonce)

        text: str = await perform_plain(handling, "state.seal", str, seal)
        return text


# States -----------------------------------------------------------------------------------------

# The first state of a handler that asks by its result; its chain and time are set on sealing.
_FIRST_STATE: Final = State(chain="", round=0, began=0.0, version="")


def _binding(handling: Handling) -> Binding:
    request = handling.request
    return Binding(
        principal=request.peer.principal,
        method=request.method.name,
        digest=request_digest(request.method.name, request.params),
    )


# Questions and answers --------------------------------------------------------------------------


def _questions_of(result: types.InputRequiredResult) -> dict[str, ClientQuestion[Any]]:
    if not result.input_requests and result.request_state is None:
        raise LocalProtocolError(
            "an InputRequiredResult needs `input_requests`, a `request_state`, or both"
        )
    requests = (result.input_requests or {}).items()
    return {key: question_of(request.method, request.params) for key, request in requests}


def _input_required(
    questions: Mapping[str, Question], request_state: str | None
) -> types.InputRequiredResult:
    requests = {
        key: types.InputRequest(method=question.method, params=question.params)
        for key, question in questions.items()
    }
    return types.InputRequiredResult(
        result_type=INPUT_REQUIRED, input_requests=requests or None, request_state=request_state
    )


def _answers(
    pending: Mapping[str, OperationId] | None, responses: Mapping[str, msgspec.Raw]
) -> dict[str, Any]:
    """Return the decoded answers to the pending questions.

    If the questions are unknown, because there is no state, each answer is decoded as the result of
    the method that it looks like.
    """

    def decoded(key: str, method: str | None = None) -> Any:
        reason = "it is not the result of a known method"
        try:
            if method is None:
                members = msgspec.json.decode(responses[key], type=dict[str, msgspec.Raw])
                method = next(
                    (it for member, it in _METHOD_BY_MEMBER.items() if member in members), None
                )
            if method is not None:
                return METHODS[method].decode_result(responses[key])
        except msgspec.MsgspecError as error:
            reason = str(error)
        raise RequestError(INVALID_PARAMS, f"inputResponses[{key!r}]: {reason}")

    if pending is None:
        return {key: decoded(key) for key in responses}
    return {key: decoded(key, it.name) for key, it in pending.items() if key in responses}
