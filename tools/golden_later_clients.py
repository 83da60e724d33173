"""The scripted clients of the golden recordings at later protocol versions.

They answer the requests of a legacy server, and the input requests of a stateless one, whose calls
they retry in one of several ways.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs
import msgspec
import trio

from mcp_trio._protocol.metadata import (
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    INPUT_REQUIRED,
    LOG_LEVEL,
    PROTOCOL_VERSION,
    TRACE,
)
from mcp_trio._protocol.versions import PROTOCOL_VERSIONS, ProtocolVersion
from mcp_trio._session.session import Session
from mcp_trio.testing import WirePeer

Message: TypeAlias = dict[str, Any]
Script: TypeAlias = Callable[[WirePeer, Session], Awaitable[None]]
Step: TypeAlias = "float | Message | list[Message]"

CAPABILITIES: Final[Message] = {
    "roots": {},
    "sampling": {"tools": {}},
    "elicitation": {"form": {}, "url": {}},
}
TRACEPARENT: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

# The answers of the user, by the question up to its mark; other questions are declined.
FILLED: Final[Mapping[str, Message]] = {
    "For how long does Argo stay": {"nights": 3, "with_water": True},
    "For how long does Fram stay": {"nights": 1},
    "Where": {"pier": "n", "flags": ["blue"], "name": "Argo"},
    "Which ship sails to Oslo": {"value": "Argo"},
    "Which ship sails to Lima": {"value": "Fram"},
    "Which ship sails to Pune": {"value": "Vasa"},
    "Who is the pilot": {"value": "Ada"},
    **{f"Hand {number}": {"value": f"aye {number}"} for number in range(5)},
    "12 for soup": {"value": True},
    "15 for bread": {"value": False},
    "Salt": {"value": True},
    "How many spoons": {"value": 2},
    "What name": {"value": "Ada"},
}


def call(request_id: int, tool: str, **arguments: Any) -> Message:
    """Return a call with a progress token."""
    meta = {"progressToken": f"progress {request_id}"}
    params = {"name": tool, "arguments": arguments, "_meta": meta}
    return {"id": request_id, "method": "tools/call", "params": params}


def cancel(request_id: int | str) -> Message:
    return {"method": "notifications/cancelled", "params": {"requestId": request_id}}


def listen(request_id: int, **wishes: Any) -> Message:
    params = {"notifications": wishes}
    return {"id": request_id, "method": "subscriptions/listen", "params": params}


@attrs.define
class AnsweringClient:
    """A client that answers.

    `ways` are the retries of each request, one after the other, and then at once, by `_WAYS`.
    """

    peer: WirePeer
    protocol_version: ProtocolVersion
    ways: Mapping[int, Sequence[str]]
    nursery: trio.Nursery
    after_ms: float
    _requests: dict[int | str, "_RetriedRequest"] = attrs.field(
        factory=dict[int | str, "_RetriedRequest"], init=False
    )

    async def begin(self) -> None:
        """Initialize if there is a handshake, and read messages from now on."""
        if self.protocol_version.has_handshake:
            await self.peer.handshake(
                protocol_version=self.protocol_version.name, capabilities=CAPABILITIES
            )
        self.nursery.start_soon(self._receive)

    async def send(self, step: Step) -> None:
        """Send a message, or several at once; or sleep for so many milliseconds."""
        if isinstance(step, list):
            batch = [{"jsonrpc": "2.0", **self._complete(message)} for message in step]
            await self.peer.send(msgspec.json.encode(batch))
        elif isinstance(step, dict):
            if "id" in step:
                self._requests.setdefault(step["id"], _RetriedRequest(step))
            await self.peer.send(self._complete(step))
        else:
            await trio.sleep(step / 1000)

    def _complete(self, message: Message) -> Message:
        """Add the metadata of a stateless request."""
        if self.protocol_version.has_handshake or "id" not in message or "method" not in message:
            return message
        params = message.get("params", {})
        meta = params.get("_meta", {}) | {
            PROTOCOL_VERSION: self.protocol_version.name,
            CLIENT_CAPABILITIES: CAPABILITIES,
            CLIENT_INFO: {"name": "wire peer", "version": "0"},
            LOG_LEVEL: "info",
            TRACE[0]: TRACEPARENT,
        }
        return {**message, "params": {**params, "_meta": meta}}

    async def _receive(self) -> None:
        while True:
            message = await self.peer.receive()
            result = message.get("result", {})
            if "method" in message and "id" in message:
                self.nursery.start_soon(self._answer, message)
            elif result.get("resultType") == INPUT_REQUIRED:
                self._read_input_requests(self._requests[message["id"]], result)

    async def _answer(self, question: Message) -> None:
        await trio.sleep(self.after_ms / 1000)
        await self.peer.send_result(question, answer_to(question))

    def _read_input_requests(self, request: "_RetriedRequest", result: Message) -> None:
        """Retry a request whose input requests are new."""
        asked = result["requestState"], *result["inputRequests"]
        if asked not in request.asked_so_far:
            request.asked_so_far.append(asked)
            self.nursery.start_soon(self._retry, request, result)

    async def _retry(self, request: "_RetriedRequest", result: Message) -> None:
        """Send the request again, with answers."""
        await trio.sleep(self.after_ms / 1000)
        questions = result["inputRequests"].items()
        answers = {key: answer_to(question) for key, question in questions}
        ways = self.ways.get(request.first["id"], ())
        number = len(request.asked_so_far) - 1
        way = ways[number] if number < len(ways) else "at once"
        for step in _WAYS[way](answers):
            if isinstance(step, dict):
                params = {"requestState": result["requestState"], "inputResponses": step}
                retry = request.retry(params)
                self._requests[retry["id"]] = request
                await self.send(retry)
            else:
                await self.send(cancel(request.last_id) if step is None else step)


@attrs.define
class _RetriedRequest:
    """A request and its retries; `asked_so_far` is what was asked, by state and keys."""

    first: Message
    asked_so_far: list[tuple[str, ...]] = attrs.field(factory=list[tuple[str, ...]])
    retries: int = 0

    @property
    def last_id(self) -> str:
        return f"{self.first['id']}-{self.retries}"

    def retry(self, params: Message) -> Message:
        self.retries += 1
        return {**self.first, "id": self.last_id, "params": {**self.first["params"], **params}}


# For each way: answers are sent, a number is a pause in milliseconds, and None is a cancellation.
_WAYS: Final[Mapping[str, Callable[[Message], Sequence[Message | float | None]]]] = {
    "at once": lambda answers: [answers],
    "with one less": lambda answers: [dict(list(answers.items())[1:])],
    "malformed, then well": lambda answers: [{key: {"action": 1} for key in answers}, 2, answers],
    "twice": lambda answers: [answers, answers],
    "again, later": lambda answers: [answers, 10, answers],
    "cancelled": lambda answers: [answers, None],
    "not at all": lambda _: [],
}


def answer_to(question: Message) -> Message:
    """Return the client's answer to a server request."""
    params = question.get("params", {})
    if question["method"] == "roots/list":
        return {"roots": [{"uri": "file:///work"}]}
    if question["method"] == "sampling/createMessage":
        return _sampling_result(params)
    if params.get("mode") == "url":
        return {"action": "accept"}
    content = FILLED.get(params["message"].partition("?")[0])
    return {"action": "decline"} if content is None else {"action": "accept", "content": content}


def _sampling_result(params: Message) -> Message:
    """Return the result of the model, which uses a tool once."""
    content: Message = {"type": "text", "text": "At noon."}
    if "tools" in params and len(params["messages"]) == 1:
        content = {"type": "tool_use", "id": "look", "name": "tides", "input": {}}
    return {"role": "assistant", "model": "model 7", "content": content}


def client(
    protocol_version: str,
    *script: Step,
    ways: Mapping[int, Sequence[str]] | None = None,
    after_ms: float = 2,
) -> Script:
    """Return a client that sends these messages, and disconnects."""

    async def run(peer: WirePeer, _session: Session) -> None:
        async with trio.open_nursery() as nursery:
            answering = AnsweringClient(
                peer, PROTOCOL_VERSIONS[protocol_version], ways or {}, nursery, after_ms
            )
            await answering.begin()
            for step in script:
                await answering.send(step)
            nursery.cancel_scope.cancel()

    return run


LIST: Final[Message] = {"id": 90, "method": "tools/list"}
DISCOVER: Final[Message] = {"id": 91, "method": "server/discover"}

SCRIPTS: Final[Mapping[str, Script]] = {
    "batches": client(
        "2025-03-26",
        LIST,
        [call(1, "add", amount=1), call(2, "add", amount=2), {"id": 3, "method": "ping"}],
        [call(4, "horn"), call(5, "add", amount=5), cancel(5)],
        2,
        [call(6, "add", amount=6), cancel(1), {"id": 7, "method": "unheard/of"}],
        80,
        after_ms=30,
    ),
    "structured": client(
        "2025-06-18",
        LIST,
        call(1, "book", ship="Argo"),
        call(2, "book", ship="Fram"),
        call(3, "book", ship="Vasa"),
        call(4, "book", ship="Wasp"),
        call(5, "chart"),
        20,
        call(6, "book", ship="Argo"),
        50,
    ),
    "forms": client(
        "2025-11-25",
        LIST,
        call(1, "moor", ship="Argo", length=12),
        call(2, "moor", ship="Fram", length=0),
        call(3, "sign_in"),
        call(4, "advise"),
        3,
        call(5, "moor", ship="Vasa", length=69),
        80,
    ),
    "rounds": client(
        "2026-07-28",
        DISCOVER,
        LIST,
        call(1, "sail", port="Oslo"),
        call(2, "sail", port="Lima"),
        call(3, "sail", port="Pune"),
        call(4, "wait_for_pilot"),
        call(5, "wait_for_pilot"),
        call(6, "wait_for_pilot"),
        40,
        call(7, "wait_for_pilot"),
        300,
        call(8, "wait_for_pilot"),
        20,
        ways={
            1: ["again, later", "with one less"],
            2: ["malformed, then well"],
            3: ["at once", "twice"],
            4: ["not at all"],
            6: ["cancelled"],
            8: ["not at all"],
        },
    ),
    "crew": client(
        "2026-07-28",
        call(1, "muster", hands=4),
        1,
        call(2, "muster", hands=5),
        100,
        call(3, "muster", hands=3),
        6,
        cancel("3-1"),
        20,
        ways={1: ["with one less"], 2: ["twice"]},
    ),
    "galley": client(
        "2026-07-28",
        LIST,
        call(1, "order", dish="soup"),
        call(2, "order", dish="bread"),
        call(3, "reserve", guests=4),
        call(4, "order", dish="soup"),
        100,
        ways={1: ["again, later"], 4: ["at once", "with one less"]},
    ),
    "tides": client(
        "2026-07-28",
        listen(1, toolsListChanged=True, resourceSubscriptions=["harbour://level"]),
        listen(2, toolsListChanged=True, promptsListChanged=True),
        5,
        call(3, "rise", metres=1),
        call(4, "build", name="crane"),
        10,
        cancel(2),
        call(5, "rise", metres=2),
        call(6, "build", name="crane"),
        10,
        {"id": 7, "method": "resources/read", "params": {"uri": "harbour://level"}},
        20,
    ),
}
