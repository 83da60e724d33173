"""Multi round-trip requests: answer the server's input requests and send the request again.

All state of the rounds belongs to one call, so that concurrent calls cannot mix it up. An exception
of a callback ends the call: a retry has no way to report an error to the server.

https://modelcontextprotocol.io/specification/2026-07-28/basic/patterns/mrtr
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

import msgspec
import trio

from mcp_trio._client.callbacks import ClientApplication
from mcp_trio._protocol.compat import downgraded
from mcp_trio._protocol.methods import METHODS, ParamsToSend, has_capability
from mcp_trio._protocol.versions import ProtocolVersion
from mcp_trio._session.exceptions import call_concurrently
from mcp_trio.errors import RemoteProtocolError, RequestError, RequestTimeout, UserRejected
from mcp_trio.types import InputRequest, InputRequiredResult

Send: TypeAlias = Callable[[ParamsToSend | None, float | None], Awaitable[Any]]
"""Send the request with these params and this total timeout in seconds; each time with a new id."""

_INPUT_METHODS: Final = frozenset({"elicitation/create", "sampling/createMessage", "roots/list"})


class RequestRetries(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The retries of one request, from its first `InputRequiredResult` to its complete result."""

    method: str
    send: Send
    application: ClientApplication
    # At the first result: later, another task may be connecting again.
    protocol_version: ProtocolVersion
    total_seconds: float | None

    async def run(self, params: ParamsToSend | None, result: Any, *, taken_seconds: float) -> Any:
        """Return the complete result, given the first result and the seconds that it took.

        `total_seconds` limits the time of the server in all rounds together; the time of the
        client's answers does not count. A result without input requests, only with a state, is
        retried with growing pauses, which count.

        Raises:
            RemoteProtocolError: The server requests input for which the client has announced no
                capability, or in more than `limits.requests.rounds_max` rounds.
            RequestTimeout: The server took too long.
            Exception: A callback raised it.
        """
        limits = self.application.client.limits.requests
        total_seconds, setting = self.total_seconds, "total_seconds"
        if total_seconds is None:
            total_seconds = limits.total_seconds
            setting = "limits.requests.total_seconds"
        left_seconds = total_seconds - taken_seconds
        pause_seconds = limits.round_pause_seconds
        rounds = 0
        while isinstance(result, InputRequiredResult):
            if rounds >= limits.rounds_max:
                raise RemoteProtocolError(
                    f"{self.method}: the server requires input in more than {limits.rounds_max}"
                    " rounds (limits.requests.rounds_max)"
                )
            if not result.input_requests and result.request_state is None:
                raise RemoteProtocolError(
                    f"{self.method}: the server requires input, but its result has neither"
                    " inputRequests nor requestState"
                )
            rounds += 1
            if not result.input_requests:
                await trio.sleep(max(min(pause_seconds, left_seconds), 0))
                left_seconds -= pause_seconds
                pause_seconds = min(2 * pause_seconds, limits.round_pause_seconds_max)
            responses = await self._responses(result.input_requests)
            if left_seconds <= 0:  # A response could arrive before a timeout of no seconds.
                raise RequestTimeout(self.method, "total", total_seconds, setting)
            started = trio.current_time()
            try:
                retry = retry_params(params, result, responses)
                result = await self.send(retry, left_seconds)
            except RequestTimeout as timeout:
                if timeout.budget != "total":
                    raise
                # The caller set a total for all rounds: the error names that, not the remainder.
                raise RequestTimeout(self.method, "total", total_seconds, setting) from None
            left_seconds -= trio.current_time() - started
        return result

    async def _responses(
        self, requests: Mapping[str, InputRequest] | None
    ) -> dict[str, msgspec.Raw] | None:
        """Answer all input requests concurrently; check all of them before asking the user."""
        if not requests:
            return None
        client = self.application.client
        capabilities = self.application.capabilities()
        checked: dict[str, tuple[str, Any]] = {}
        for key, request in requests.items():
            method = METHODS.get(request.method) if request.method in _INPUT_METHODS else None
            if method is None:
                raise self._violation(request, "which is not allowed as an input request")
            required = method.required_capability
            if required is not None and not has_capability(capabilities, required.path):
                raise self._violation(request, f"but the {required} was not announced")
            params = request.params
            raw = None if params is None else msgspec.Raw(msgspec.json.encode(params))
            try:
                checked[key] = request.method, method.decode_params(raw)
            except msgspec.MsgspecError as error:
                raise self._violation(request, f"but its params are invalid: {error}") from error
        # The server chooses the number of input requests, so their callbacks have the limit of
        # handlers. With a limit of 0 they are answered one by one: the call waits for all of them.
        limiter = trio.CapacityLimiter(max(client.limits.requests.in_flight_max, 1))

        async def answer(key: str) -> msgspec.Struct:
            method, params = checked[key]
            async with limiter:
                try:
                    return await self.application.answer(method, params)
                except UserRejected:
                    raise
                except RequestError as error:
                    # The client itself has raised this: it must not look like the server's error.
                    raise RemoteProtocolError(
                        f"{self.method}: the server requests {method}, which cannot be answered:"
                        f" {error.message}"
                    ) from error

        note = "this was the input request {!r}"
        answers = await call_concurrently(checked, answer, note=note)
        return {
            key: msgspec.Raw(msgspec.json.encode(downgraded(answered, self.protocol_version)))
            for key, answered in answers.items()
        }

    def _violation(self, request: InputRequest, reason: str) -> RemoteProtocolError:
        return RemoteProtocolError(f"{self.method}: the server requests {request.method}, {reason}")


def retry_params(
    params: ParamsToSend | None,
    result: InputRequiredResult,
    responses: Mapping[str, msgspec.Raw] | None,
) -> ParamsToSend:
    """Return the params of the request with the responses to the latest result, and its state.

    Responses and state of earlier rounds are replaced.
    """
    if isinstance(params, msgspec.Struct):
        return msgspec.structs.replace(
            params, input_responses=responses, request_state=result.request_state
        )
    added = {"inputResponses": responses, "requestState": result.request_state}
    kept = {name: value for name, value in (params or {}).items() if name not in added}
    return kept | {name: value for name, value in added.items() if value is not None}
