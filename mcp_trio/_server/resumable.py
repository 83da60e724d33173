"""Resumable handlers, which any instance with the keys continues from a sealed state.

Between two rounds nothing of them is here: what they need again is in the sealed state that the
client brings back. Two ways to write one:

- It returns an `InputRequiredResult`, with a state of its own, and reads what comes back. A legacy
  client, which knows no rounds, is asked the same by requests, and the handler called again.
- It is registered as resumable, and asks by its context. Its state are its steps; see `Memory`.

Everything that a replay could not repeat (keys, chance, the time of day, the store) is an effect.
"""

import functools
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

import attrs
import msgspec
import trio

from mcp_trio import types
from mcp_trio._journal.records import encode_body
from mcp_trio._protocol.compat import downgraded
from mcp_trio._protocol.metadata import INPUT_REQUIRED, with_result_metadata
from mcp_trio._protocol.methods import METHODS
from mcp_trio._protocol.requests import IncomingRequest, invalid_state_error, request_digest
from mcp_trio._server.elicitation import Ask, ask_of, check_capabilities, prepared
from mcp_trio._server.facts import ServedSession
from mcp_trio._server.registry import RegisteredEntry
from mcp_trio._server.sealed_state import NONCE_BYTES, Binding, Sealer, State, StateStore
from mcp_trio._session.effects import Effect, perform
from mcp_trio._session.handlers import Handling
from mcp_trio._session.input_required import ask_all, run_resumably
from mcp_trio._session.journal import Memory, Place, Step
from mcp_trio.errors import INVALID_PARAMS, LocalProtocolError, RequestError

T = TypeVar("T")
Result: TypeAlias = msgspec.Struct | msgspec.Raw

_CHAIN_BYTES: Final = 16

# By what an answer is known whose question is not.
_MEMBERS: Final = {
    "action": "elicitation/create",
    "model": "sampling/createMessage",
    "roots": "roots/list",
}


class RoundsApplication(ServedSession, Protocol):
    """The server's side of a session, as far as it is asked once a round."""

    def entry(self, request: IncomingRequest) -> RegisteredEntry | None:
        """What will handle a request that may have rounds, if it is resumable at all."""
        ...

    async def handled(self, handling: Handling) -> Result:
        """What its handler returns, run from its beginning."""
        ...


class Used(msgspec.Struct, frozen=True):
    """Whether a state was used before, and what that has led to."""

    before: bool = False
    reply: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


@attrs.frozen(kw_only=True)
class SealedRounds:
    """How a server's requests go on from round to round.

    `version` is the server's, and that of its resumable handlers which have none of their own.
    """

    sealer: Sealer
    store: StateStore | None
    version: str

    def answer(self, handling: Handling, served: RoundsApplication) -> Awaitable[Result]:
        """The answer to a request that may have rounds.

        Raises:
            RequestError: The state or an answer is not valid.
            CapabilityMissing: The handler asks what the client has not announced.
            LocalProtocolError: It asks in a wrong way, or what it keeps is too large.
            Exception: What it raises.
        """
        if handling.request.peer.protocol_version.is_stateless:
            return self._answer_round(handling, served)
        return self._answer_in_session(handling, served)

    async def _answer_round(self, handling: Handling, served: RoundsApplication) -> Result:
        """Answer a modern client, which may come back for another round."""
        registered, params = served.entry(handling.request), handling.request.params
        version = None if registered is None else registered.state_version(self.version)
        if params.request_state is not None:
            return await self._go_on(handling, served, version)
        if version is not None:
            state = await _performed(handling, "state.begin", State, _begun(version))
            return await self._resume(handling, served, state, {})
        if params.input_responses is not None:
            handling.input_responses = _answers(None, params.input_responses)
        return await self._answer_by_itself(handling, served, _EMPTY)

    async def _go_on(
        self, handling: Handling, served: RoundsApplication, version: str | None
    ) -> Result:
        """A retry with a state; one that was used before gets the answer of then."""
        params = handling.request.params
        open_ = functools.partial(self._open, handling, params.request_state, version or "")
        state = await _performed(handling, "state.open", State | None, open_)
        if state is None:
            raise invalid_state_error()
        answers = _answers(state.pending, params.input_responses or {})
        take = functools.partial(self._take, state)
        used = await _performed(handling, "state.take", Used, take) if self.store else Used()
        if used.reply is not msgspec.UNSET:
            return used.reply
        if used.before:
            raise invalid_state_error()
        if version is None:
            handling.request_state, handling.input_responses = state.text, answers
            result = await self._answer_by_itself(handling, served, state)
        else:
            result = await self._resume(handling, served, state, params.input_responses or {})
        if self.store is not None:
            await _performed(handling, "state.keep", None, self._keeping(handling, state, result))
        return result

    # A handler that asks by its result.

    async def _answer_by_itself(
        self, handling: Handling, served: RoundsApplication, state: State
    ) -> Result:
        result = await served.handled(handling)
        if not isinstance(result, types.InputRequiredResult):
            return result
        asks = _asks_of(result)
        check_capabilities(handling.request.peer, list(asks.values()))
        requests = {
            key: types.InputRequest(method=asked.method, params=asked.params)
            for key, asked in ((key, ask.asked()) for key, ask in asks.items())
        }
        text = None
        if result.request_state is not None:
            pending = {key: _asked_by_result(it.method) for key, it in requests.items()}
            after = msgspec.structs.replace(
                state, round=state.round + 1, text=result.request_state, pending=pending
            )
            text = await self._sealed(handling, after)
        return _round(requests, text)

    async def _answer_in_session(self, handling: Handling, served: RoundsApplication) -> Result:
        """Ask a legacy client by requests, round by round.

        Where nothing is asked it goes on later and later, as a modern client would (TRAP-100).
        """
        limits = self.sealer.limits
        pause_seconds = limits.requests.round_pause_seconds
        for _ in range(limits.requests.rounds_max):
            result = await served.handled(handling)
            if not isinstance(result, types.InputRequiredResult):
                return result
            asks = _asks_of(result)
            if not asks:
                pause = functools.partial(trio.sleep, pause_seconds)
                await _performed(handling, "state.pause", None, pause)
                pause_seconds = min(2 * pause_seconds, limits.requests.round_pause_seconds_max)
            questions = prepared(handling, served, list(asks.values()))
            answers = await ask_all(handling, [question.asked() for question in questions])
            handling.request_state = result.request_state
            handling.input_responses = dict(zip(asks, answers, strict=True))
        raise LocalProtocolError(
            "the handler asks without end"
            f" (limits.requests.rounds_max={limits.requests.rounds_max})"
        )

    # A handler that is resumed.

    async def _resume(
        self,
        handling: Handling,
        served: RoundsApplication,
        state: State,
        responses: Mapping[str, msgspec.Raw],
    ) -> Result:
        memory = Memory(state.seed, state.asked)
        memory.remember([*state.steps, *_answered(state.pending, responses)])
        result = await run_resumably(handling, memory, functools.partial(served.handled, handling))
        if isinstance(result, types.InputRequiredResult):
            raise LocalProtocolError("a resumable handler asks by its context, not by its result")
        if result is not None:
            answer: Result = result
            return answer
        after = msgspec.structs.replace(
            state,
            round=state.round + 1,
            steps=memory.steps,
            pending={key: place for key, (place, _) in memory.questions.items()},
            asked=memory.asked,
        )
        requests = {
            key: types.InputRequest(method=asked.method, params=asked.params)
            for key, (_, asked) in memory.questions.items()
        }
        text = await self._sealed(handling, after)
        return _round(requests, text)

    # Effects.

    async def _sealed(self, handling: Handling, state: State) -> str:
        binding = _binding(handling)

        def seal() -> str:
            now = time.time()
            chain, began = state.chain or _chain(), state.began or now
            whole = msgspec.structs.replace(state, chain=chain, began=began)
            nonce = secrets.token_bytes(NONCE_BYTES)
            return self.sealer.seal(whole, binding, now=now, nonce=nonce)

        text: str = await _performed(handling, "state.seal", str, seal)
        return text

    def _open(self, handling: Handling, text: str, version: str) -> State | None:
        return self.sealer.open(text, _binding(handling), version=version, now=time.time())

    async def _take(self, state: State) -> Used:
        assert self.store is not None
        if await self.store.take(
            _key(state), seconds=self.sealer.limits.requests.state_chain_seconds
        ):
            return Used()
        reply = await self.store.kept(_key(state))
        return Used(before=True, reply=msgspec.UNSET if reply is None else msgspec.Raw(reply))

    def _keeping(
        self, handling: Handling, state: State, result: Result
    ) -> Callable[[], Awaitable[None]]:
        assert self.store is not None
        request, signature = handling.request, handling.session.connection.signature
        if isinstance(result, types.Model):
            result = with_result_metadata(
                downgraded(result, request.peer.protocol_version), request.method, signature
            )
        seconds = self.sealer.limits.requests.state_chain_seconds
        return functools.partial(
            self.store.keep, _key(state), msgspec.json.encode(result), seconds=seconds
        )


@attrs.frozen
class _AsItIs(Generic[T]):
    """Values of ours survive JSON."""

    kind: Any

    def converted(self, value: T) -> tuple[T, bytes]:
        return value, encode_body(value)

    def decoded(self, body: bytes) -> T:
        value: T = msgspec.json.decode(body, type=self.kind)
        return value


async def _performed(handling: Handling, name: str, kind: Any, run: Callable[[], Any]) -> Any:
    effect: Effect[Any] = Effect(name=name, arguments=_nothing, run=run, codec=_AsItIs[Any](kind))
    return await perform(handling, effect)


def _nothing() -> bytes:
    """The arguments of an effect here: what it is about was recorded with the request."""
    return b"{}"


# States -----------------------------------------------------------------------------------------

# What a handler that keeps a text begins with: the rest is drawn when it is sealed.
_EMPTY: Final = State(chain="", round=0, began=0.0, version="")


def _begun(version: str) -> Callable[[], State]:
    def begin() -> State:
        seed = secrets.token_hex(_CHAIN_BYTES)
        return State(chain=_chain(), round=0, began=time.time(), version=version, seed=seed)

    return begin


def _chain() -> str:
    return secrets.token_hex(_CHAIN_BYTES)


def _key(state: State) -> str:
    return f"{state.chain}.{state.round}"


def _binding(handling: Handling) -> Binding:
    request = handling.request
    return Binding(
        principal=request.peer.principal,
        method=request.method.name,
        digest=request_digest(request.method.name, request.params),
    )


# Questions, and answers -------------------------------------------------------------------------


def _asks_of(result: types.InputRequiredResult) -> dict[str, Ask[Any]]:
    if not result.input_requests and result.request_state is None:
        raise LocalProtocolError("a round needs `input_requests`, a `request_state`, or both")
    requests = (result.input_requests or {}).items()
    return {key: ask_of(request.method, request.params) for key, request in requests}


def _round(
    requests: dict[str, types.InputRequest], request_state: str | None
) -> types.InputRequiredResult:
    return types.InputRequiredResult(
        result_type=INPUT_REQUIRED, input_requests=requests or None, request_state=request_state
    )


def _asked_by_result(method: str) -> Place:
    return Place("", 0, method, "")


def _answers(
    pending: Mapping[str, Place] | None, responses: Mapping[str, msgspec.Raw]
) -> dict[str, Any]:
    """The answers to the questions that are known, or else to those that they look like.

    Raises:
        RequestError: One has the shape of none (MRTR-24).
    """
    if pending is None:
        return {key: _typed(key, _method_of(key, raw), raw) for key, raw in responses.items()}
    return {
        key: _typed(key, place.name, responses[key])
        for key, place in pending.items()
        if key in responses
    }


def _answered(pending: Mapping[str, Place], responses: Mapping[str, msgspec.Raw]) -> list[Step]:
    """The steps that have come to something since."""
    return [
        Step(place, "res", responses[key]) for key, place in pending.items() if key in responses
    ]


def _method_of(key: str, raw: msgspec.Raw) -> str:
    try:
        members = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except msgspec.MsgspecError as error:
        raise _malformed(key, error) from error
    for member, method in _MEMBERS.items():
        if member in members:
            return method
    raise _malformed(key, "it is no answer to any question")


def _typed(key: str, method: str, raw: msgspec.Raw) -> Any:
    try:
        return METHODS[method].decode_result(raw)
    except msgspec.MsgspecError as error:
        raise _malformed(key, error) from error


def _malformed(key: str, reason: object) -> RequestError:
    return RequestError(INVALID_PARAMS, f"inputResponses[{key!r}]: {reason}")
