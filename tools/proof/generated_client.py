"""The client of a generated program: it calls, cancels and answers at given times.

It supports every protocol version. A legacy server sends requests. A stateless one returns
`input_required` results, and the client retries its calls in one of several ways.
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

import attrs
import msgspec
import trio
from generated_programs import Call, Program, Retry

from mcp_trio._protocol.metadata import (
    CLIENT_CAPABILITIES,
    INPUT_REQUIRED,
    LOG_LEVEL,
    PROTOCOL_VERSION,
)
from mcp_trio._protocol.methods import METHODS
from mcp_trio._protocol.versions import ProtocolVersion, is_between
from mcp_trio.testing import WirePeer

Message: TypeAlias = dict[str, Any]

LISTEN: Final = "subscriptions/listen"
ACTIONS: Final = ("accept", "accept", "accept", "decline", "cancel")
# The requests that a client can receive, by method.
CAPABILITIES: Final[Mapping[str, Message]] = {
    "roots/list": {"roots": {}},
    "sampling/createMessage": {"sampling": {}},
    "elicitation/create": {"elicitation": {"form": {}, "url": {}}},
}


def capabilities_of(protocol_version: ProtocolVersion) -> Message:
    """Return all client capabilities of a protocol version."""
    announced: Message = {}
    for method, members in CAPABILITIES.items():
        if is_between(protocol_version, METHODS[method].since, None):
            announced |= members
    return announced


@attrs.define
class RunningCall:
    """A call with the ids of its requests, the first and all retries, and their answers."""

    number: int
    call: Call
    params: Message
    answers: "trio.MemoryReceiveChannel[Message]"
    inbox: "trio.MemorySendChannel[Message]"
    ids: list[str] = attrs.field(factory=list[str])

    def request(self, **members: Any) -> Message:
        """Return the next request of this call."""
        self.ids.append(f"{self.number}.{len(self.ids)}")
        params = {**self.params, **members}
        return {"id": self.ids[-1], "method": "tools/call", "params": params}

    def cancellation(self) -> Message:
        """Return the cancellation of the last request."""
        return {"method": "notifications/cancelled", "params": {"requestId": self.ids[-1]}}


@attrs.define
class ScriptedClient:
    """The client of a program; `url` is that of the latency server."""

    program: Program
    protocol_version: ProtocolVersion
    peer: WirePeer
    url: str
    _calls: list[RunningCall] = attrs.field(factory=list[RunningCall], init=False)
    _request_numbers: Iterator[int] = attrs.field(factory=itertools.count, init=False)

    async def run(self) -> None:
        """Run the program to its end, whatever is still in flight."""
        await self._open()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._receive, nursery)
            for calls in grouped(self.program.calls):
                await trio.sleep(calls[0].delay_ms / 1000)
                started = [self._start_call(call) for call in calls]
                await self._send(
                    *(message for running in started for message in first_messages(running))
                )
                for running in started:
                    nursery.start_soon(self._retry, running)
                    nursery.start_soon(self._cancel, running)
            await trio.sleep(self.program.ends_after_ms / 1000)
            nursery.cancel_scope.cancel()

    async def _open(self) -> None:
        """Initialize, or subscribe where there is no handshake."""
        if self.protocol_version.has_handshake:
            capabilities = capabilities_of(self.protocol_version)
            await self.peer.handshake(
                protocol_version=self.protocol_version.name, capabilities=capabilities
            )
            return
        requested = {"toolsListChanged": True, "promptsListChanged": True}
        params = {"notifications": requested, "_meta": self._meta()}
        await self.peer.send_request(LISTEN, params, id="listen")

    def _meta(self) -> Message:
        """Return the metadata of each request."""
        if self.protocol_version.has_handshake:
            return {}
        return {
            PROTOCOL_VERSION: self.protocol_version.name,
            CLIENT_CAPABILITIES: capabilities_of(self.protocol_version),
            LOG_LEVEL: "debug",
        }

    async def _send(self, *messages: Message) -> None:
        """Send messages, as a batch where the protocol version has batches."""
        if len(messages) > 1 and self.protocol_version.has_batches:
            batch = [{"jsonrpc": "2.0", **message} for message in messages]
            await self.peer.send(msgspec.json.encode(batch))
        else:
            await self.peer.send(*messages)

    async def _receive(self, nursery: trio.Nursery) -> None:
        while True:
            message = await self.peer.receive()
            if "method" not in message:
                self._deliver(message)
            elif "id" in message:
                nursery.start_soon(self._answer, message)

    def _deliver(self, answer: Message) -> None:
        for running in self._calls:
            if answer["id"] in running.ids:
                running.inbox.send_nowait(answer)

    # Calls.

    def _start_call(self, call: Call) -> RunningCall:
        number = len(self._calls)
        meta = self._meta() | ({"progressToken": number} if call.wants_progress else {})
        arguments = {"script": call.script, "url": self.url}
        params = {"name": call.tool, "arguments": arguments, "_meta": meta}
        inbox, answers = trio.open_memory_channel[Message](100)
        self._calls.append(RunningCall(number, call, params, answers, inbox))
        return self._calls[-1]

    async def _cancel(self, running: RunningCall) -> None:
        if running.call.cancels_after_ms:
            await trio.sleep(running.call.cancels_after_ms / 1000)
            await self._send(running.cancellation())

    async def _retry(self, running: RunningCall) -> None:
        """Retry while input is required and the program has retries."""
        for retry in running.call.retries:
            result = (await running.answers.receive()).get("result", {})
            if result.get("resultType") != INPUT_REQUIRED:
                return
            await trio.sleep(retry.delay_ms / 1000)
            message = self._retry_params(retry, result)
            await self._send(running.request(**message))
            if retry.way in {"twice", "again"}:
                await trio.sleep(retry.delay_ms / 1000 if retry.way == "again" else 0)
                await self._send(running.request(**message))
            if retry.way == "not at all":
                await self._send(running.cancellation())

    def _retry_params(self, retry: Retry, result: Message) -> Message:
        """Return the members of a retry."""
        answers = {
            key: self._result(question, next(self._request_numbers))
            for key, question in result.get("inputRequests", {}).items()
        }
        state = result["requestState"]
        if retry.way == "in part":
            del answers[min(answers)]
        elif retry.way == "malformed":
            answers[max(answers)] = {"action": 1}
        elif retry.way == "forged":
            state = f"{state[:-1]}{'A' if state[-1] != 'A' else 'B'}"
        return {"requestState": state, "inputResponses": answers}

    # Answers.

    async def _answer(self, question: Message) -> None:
        """Answer a request of the server."""
        number = next(self._request_numbers)
        delays = self.program.answer_delays_ms
        delay_seconds = delays[number % len(delays)] / 1000
        await trio.sleep(delay_seconds)
        token = question["params"].get("_meta", {}).get("progressToken")
        for progress in range(number % 3 if token is not None else 0):
            params = {"progressToken": token, "progress": progress}
            await self.peer.send_notification("notifications/progress", params)
            await trio.sleep(delay_seconds / 2)
        await self.peer.send_result(question, self._result(question, number))

    def _result(self, question: Message, number: int) -> Message:
        """Return the result of a server request; some forms are filled in wrongly."""
        if question["method"] == "roots/list":
            return {"roots": [{"uri": "file:///a"}] * (number % 3)}
        if question["method"] == "sampling/createMessage":
            text = {"type": "text", "text": "So."}
            return {"role": "assistant", "model": f"model {number}", "content": text}
        action = ACTIONS[number % len(ACTIONS)]
        schema = question["params"].get("requestedSchema")
        if schema is None or action != "accept":
            return {"action": action}
        fields: Mapping[str, Message] = schema.get("properties", {})
        return {"action": action, "content": filled_in(fields, number) if number % 11 else {}}


def grouped(calls: tuple[Call, ...]) -> list[list[Call]]:
    """Return the calls, grouped by those that are sent at once."""
    groups: list[list[Call]] = []
    for call in calls:
        if groups and not call.delay_ms:
            groups[-1].append(call)
        else:
            groups.append([call])
    return groups


def first_messages(running: RunningCall) -> list[Message]:
    """Return the request, and its cancellation if that follows at once."""
    request = running.request()
    return [request, running.cancellation()] if running.call.cancels_after_ms == 0 else [request]


def filled_in(fields: Mapping[str, Message], number: int) -> Message:
    """Return the fields of a form, some of those with defaults left out."""
    values = {"integer": number, "boolean": number % 2 == 0}
    return {
        name: field["enum"][0] if "enum" in field else values[field["type"]]
        for name, field in fields.items()
        if "default" not in field or number % 2
    }
