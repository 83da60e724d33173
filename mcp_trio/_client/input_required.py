"""Multi round-trip requests: answer the server's questions and send the request again.

Everything of a round lives in the frame of its own request, so that nothing of it reaches another
one (MRTR-18). What a callback raises ends the request, for a round has no words for it (TRAP-103).
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

import attrs
import msgspec
import trio

from mcp_trio._protocol.compat import downgraded
from mcp_trio._protocol.methods import METHODS, Method, ParamsToSend, announced
from mcp_trio._protocol.versions import ProtocolVersion
from mcp_trio._session.tasks import together
from mcp_trio.errors import RemoteProtocolError, RequestError, RequestTimeout, UserRejected
from mcp_trio.limits import Limits
from mcp_trio.types import ClientCapabilities, InputRequest, InputRequiredResult

Send: TypeAlias = Callable[[ParamsToSend | None, float | None], Awaitable[Any]]
"""Sends the request with these params, with so many seconds in all; a new id each time."""

Answer: TypeAlias = Callable[[str, Any], Awaitable[msgspec.Struct]]
"""The client's own answer to a method of the server's, by its callbacks."""

# What a server may ask for in a round (MRTR-06).
_ASKABLE: Final = frozenset({"elicitation/create", "sampling/createMessage", "roots/list"})


@attrs.frozen(kw_only=True, eq=False)
class Rounds:
    """One request, from the first time that input is required to its complete result."""

    method: str
    send: Send
    answer: Answer
    capabilities: ClientCapabilities
    protocol_version: ProtocolVersion
    limits: Limits
    total_seconds: float | None

    async def run(self, params: ParamsToSend | None, result: Any, *, taken_seconds: float) -> Any:
        """The complete result, from the first one, which took so long, on.

        `total_seconds` is what the server may take for all rounds together; the time of the
        answers in between does not count. A result that only gives a state is retried later and
        later (TRAP-100).

        Raises:
            RemoteProtocolError: It asks for what was not announced, or there is no end of it
                (`limits.requests.rounds_max`).
            RequestTimeout: A budget ran out.
            Exception: What a callback raised.
        """
        left_seconds = self._total_seconds - taken_seconds
        pause_seconds = self.limits.requests.round_pause_seconds
        number = 0
        while isinstance(result, InputRequiredResult):
            self._check(result, number)
            number += 1
            if not result.input_requests:
                await trio.sleep(pause_seconds)
                pause_seconds = min(2 * pause_seconds, self.limits.requests.round_pause_seconds_max)
            responses = await self._responses(result.input_requests)
            started = trio.current_time()
            result = await self._send(retry_params(params, result, responses), left_seconds)
            left_seconds -= trio.current_time() - started
        return result

    def _check(self, result: InputRequiredResult, number: int) -> None:
        rounds_max = self.limits.requests.rounds_max
        if number >= rounds_max:
            raise RemoteProtocolError(
                f"{self.method}: the server asks in more than {rounds_max} rounds"
                " (limits.requests.rounds_max)"
            )
        if not result.input_requests and result.request_state is None:
            raise RemoteProtocolError(f"{self.method}: input is required, but none is named")

    @property
    def _total_seconds(self) -> float:
        default = self.limits.requests.total_seconds
        return default if self.total_seconds is None else self.total_seconds

    async def _send(self, params: ParamsToSend, left_seconds: float) -> Any:
        """Nobody has set the rest of the total: an error tells the whole."""
        try:
            return await self.send(params, max(left_seconds, 0))
        except RequestTimeout as late:
            if late.budget != "total":
                raise
            setting = (
                "limits.requests.total_seconds" if self.total_seconds is None else "total_seconds"
            )
            raise RequestTimeout(self.method, "total", self._total_seconds, setting) from None

    async def _responses(
        self, requests: Mapping[str, InputRequest] | None
    ) -> dict[str, msgspec.Raw] | None:
        """The answers under the keys of the questions, all asked at once (MRTR-10, MRTR-13)."""
        if not requests:
            return None
        questions = {
            key: (request.method, self._params(request)) for key, request in requests.items()
        }
        answers = await together(
            questions, lambda key: self._answer(*questions[key]), note="this was the question {!r}"
        )
        return {key: self._encoded(answer) for key, answer in answers.items()}

    def _encoded(self, answer: msgspec.Struct) -> msgspec.Raw:
        """An answer in the words of the server's revision."""
        return msgspec.Raw(msgspec.json.encode(downgraded(answer, self.protocol_version)))

    def _params(self, request: InputRequest) -> Any:
        """What is asked, once all of it is known to be a question that was allowed (MRTR-07)."""
        row = METHODS.get(request.method) if request.method in _ASKABLE else None
        if row is None:
            raise self._breach(request, "which is no question of a round")
        if not _is_announced(row, self.capabilities):
            raise self._breach(request, f"but the {row.required_capability} was not announced")
        raw = None if request.params is None else msgspec.Raw(msgspec.json.encode(request.params))
        try:
            return row.decode_params(raw)
        except msgspec.MsgspecError as error:
            raise self._breach(request, f"but its params do not fit: {error}") from error

    def _breach(self, request: InputRequest, why: str) -> RemoteProtocolError:
        return RemoteProtocolError(f"{self.method}: the server asks for {request.method}, {why}")

    async def _answer(self, method: str, params: Any) -> msgspec.Struct:
        """A refusal of ours is the server's breach here, and no error that it sent (ERR-12)."""
        try:
            return await self.answer(method, params)
        except UserRejected:
            raise
        except RequestError as error:
            raise RemoteProtocolError(
                f"{self.method}: the server asks for {method}, which cannot be answered:"
                f" {error.message}"
            ) from error


def _is_announced(row: Method, capabilities: ClientCapabilities) -> bool:
    return row.required_capability is None or announced(capabilities, row.required_capability.path)


def retry_params(
    params: ParamsToSend | None,
    result: InputRequiredResult,
    responses: Mapping[str, msgspec.Raw] | None,
) -> ParamsToSend:
    """The same params, with the answers to the latest result, and with its state if it has one.

    Nothing of an earlier round stays (MRTR-12, MRTR-14, MRTR-16).
    """
    said = {"inputResponses": responses, "requestState": result.request_state}
    if isinstance(params, msgspec.Struct):
        return msgspec.structs.replace(
            params, input_responses=responses, request_state=result.request_state
        )
    rest = {name: value for name, value in (params or {}).items() if name not in said}
    return rest | {name: value for name, value in said.items() if value is not None}
