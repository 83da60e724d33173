"""The client of a generated program: it calls, cancels and answers by the clock.

It tells its story at any revision. A legacy server asks it by requests. A stateless one asks by its
answers, and the client comes back to its call with what it says to that, in some way or other.
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

import attrs
import msgspec
import trio
from programs import Call, Program, Retry

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
# What a client can be asked, by the method for that.
CAPABILITIES: Final[Mapping[str, Message]] = {
    "roots/list": {"roots": {}},
    "sampling/createMessage": {"sampling": {}},
    "elicitation/create": {"elicitation": {"form": {}, "url": {}}},
}


def capabilities_of(protocol_version: ProtocolVersion) -> Message:
    """All that a client can be asked, in requests or in rounds, as far as its revision goes."""
    announced: Message = {}
    for method, members in CAPABILITIES.items():
        if is_between(protocol_version, METHODS[method].since, None):
            announced |= members
    return announced


@attrs.define
class Talk:
    """One call, and its requests: the first and all retries; `answers` is where theirs arrive."""

    number: int
    call: Call
    params: Message
    answers: "trio.MemoryReceiveChannel[Message]"
    inbox: "trio.MemorySendChannel[Message]"
    ids: list[str] = attrs.field(factory=list[str])

    def request(self, **members: Any) -> Message:
        """The next request of this call."""
        self.ids.append(f"{self.number}.{len(self.ids)}")
        params = {**self.params, **members}
        return {"id": self.ids[-1], "method": "tools/call", "params": params}

    def cancellation(self) -> Message:
        """What cancels the last request of this call."""
        return {"method": "notifications/cancelled", "params": {"requestId": self.ids[-1]}}


@attrs.define
class ClientStory:
    """What the client of a program says; `url` is the latency server's."""

    program: Program
    protocol_version: ProtocolVersion
    peer: WirePeer
    url: str
    _talks: list[Talk] = attrs.field(factory=list[Talk], init=False)
    _questions: Iterator[int] = attrs.field(factory=itertools.count, init=False)

    async def tell(self) -> None:
        """Talk until the program says that it is enough, whatever is still open then."""
        await self._begin()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._receive, nursery)
            for calls in together(self.program.calls):
                await trio.sleep(calls[0].delay_ms / 1000)
                talks = [self._talk(call) for call in calls]
                await self._send(*(said for talk in talks for said in opening(talk)))
                for talk in talks:
                    nursery.start_soon(self._go_on, talk)
                    nursery.start_soon(self._cancel, talk)
            await trio.sleep(self.program.ends_after_ms / 1000)
            nursery.cancel_scope.cancel()

    async def _begin(self) -> None:
        """Shake hands; a stateless client, which does not, wants to hear what changes."""
        if self.protocol_version.has_handshake:
            capabilities = capabilities_of(self.protocol_version)
            await self.peer.handshake(
                protocol_version=self.protocol_version.name, capabilities=capabilities
            )
            return
        wishes = {"toolsListChanged": True, "promptsListChanged": True}
        params = {"notifications": wishes, "_meta": self._meta()}
        await self.peer.send_request(LISTEN, params, id="listen")

    def _meta(self) -> Message:
        """What each request says."""
        if self.protocol_version.has_handshake:
            return {}
        return {
            PROTOCOL_VERSION: self.protocol_version.name,
            CLIENT_CAPABILITIES: capabilities_of(self.protocol_version),
            LOG_LEVEL: "debug",
        }

    async def _send(self, *messages: Message) -> None:
        """What is said at once is one batch, where there are batches."""
        if len(messages) > 1 and self.protocol_version.has_batches:
            batch = [{"jsonrpc": "2.0", **message} for message in messages]
            await self.peer.send(msgspec.json.encode(batch))
        else:
            await self.peer.send(*messages)

    async def _receive(self, nursery: trio.Nursery) -> None:
        while True:
            message = await self.peer.receive()
            if "method" not in message:
                self._pass_on(message)
            elif "id" in message:
                nursery.start_soon(self._answer, message)

    def _pass_on(self, answer: Message) -> None:
        for talk in self._talks:
            if answer["id"] in talk.ids:
                talk.inbox.send_nowait(answer)

    # Calls.

    def _talk(self, call: Call) -> Talk:
        number = len(self._talks)
        meta = self._meta() | ({"progressToken": number} if call.wants_progress else {})
        arguments = {"script": call.script, "url": self.url}
        params = {"name": call.tool, "arguments": arguments, "_meta": meta}
        inbox, answers = trio.open_memory_channel[Message](100)
        self._talks.append(Talk(number, call, params, answers, inbox))
        return self._talks[-1]

    async def _cancel(self, talk: Talk) -> None:
        if talk.call.cancels_after_ms:
            await trio.sleep(talk.call.cancels_after_ms / 1000)
            await self._send(talk.cancellation())

    async def _go_on(self, talk: Talk) -> None:
        """Come back as long as there are questions, and the program says so."""
        for retry in talk.call.retries:
            result = (await talk.answers.receive()).get("result", {})
            if result.get("resultType") != INPUT_REQUIRED:
                return
            await trio.sleep(retry.delay_ms / 1000)
            said = self._said(retry, result)
            await self._send(talk.request(**said))
            if retry.way in {"twice", "again"}:
                await trio.sleep(retry.delay_ms / 1000 if retry.way == "again" else 0)
                await self._send(talk.request(**said))
            if retry.way == "not at all":
                await self._send(talk.cancellation())

    def _said(self, retry: Retry, result: Message) -> Message:
        """What a retry brings."""
        answers = {
            key: self._result(question, next(self._questions))
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
        number = next(self._questions)
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
        """What is said to a question; its form is not always filled in as it should."""
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
        return {"action": action, "content": filled(fields, number) if number % 11 else {}}


def together(calls: tuple[Call, ...]) -> list[list[Call]]:
    """The calls, those together that are sent at once."""
    groups: list[list[Call]] = []
    for call in calls:
        if groups and not call.delay_ms:
            groups[-1].append(call)
        else:
            groups.append([call])
    return groups


def opening(talk: Talk) -> list[Message]:
    """How a call begins: some are cancelled in the same breath."""
    request = talk.request()
    return [request, talk.cancellation()] if talk.call.cancels_after_ms == 0 else [request]


def filled(fields: Mapping[str, Message], number: int) -> Message:
    """What the user fills in; what has a default may be left out."""
    values = {"integer": number, "boolean": number % 2 == 0}
    return {
        name: field["enum"][0] if "enum" in field else values[field["type"]]
        for name, field in fields.items()
        if "default" not in field or number % 2
    }
