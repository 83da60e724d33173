"""Servers over memory channels, with a scripted client."""

import functools
import itertools
import json
from typing import Generic, TypeVar

import attrs
import pytest
import trio
import trio.testing

from mcp_trio import KeyRing, Server
from mcp_trio._protocol.metadata import CLIENT_CAPABILITIES, PROTOCOL_VERSION
from mcp_trio._protocol.versions import OLDEST, PROTOCOL_VERSIONS
from mcp_trio._server.signatures import ArgumentsError, Signature
from mcp_trio.recording import replay
from mcp_trio.testing import WirePeer
from mcp_trio.transports import memory_pair

State = TypeVar("State")


class Context(Generic[State]):
    """The parameters of a handler that are no arguments."""


def signature_of(handler, **options):
    return Signature(handler=handler, context_types=(Context,), **options)


def taking(hint):
    """A handler whose only argument is `it`, of that type."""

    def handler(it):
        pass

    handler.__annotations__["it"] = hint
    return handler


def signature(hint, **options):
    return signature_of(taking(hint), **options)


def read(hint, value, **options):
    """Return the argument `it` that a handler receives for a JSON value."""
    return signature(hint, **options).decode(json.dumps({"it": value}).encode()).it


def lines_of(handler, arguments, **options):
    """Return the validation errors of arguments that are rejected."""
    with pytest.raises(ArgumentsError) as caught:
        signature_of(handler, **options).decode(json.dumps(arguments).encode())
    assert str(caught.value) == "\n".join(caught.value.lines)
    return caught.value.lines


def lines(hint, value, **options):
    """Return the validation errors of a `value` of `it` that is rejected."""
    return lines_of(taking(hint), {"it": value}, **options)


def harbour():
    """A server that offers everything, with a resource and a template."""
    made = Server("harbour", offers={"tools", "resources", "prompts"})

    @made.resource("harbour://tide")
    async def tide() -> str:
        return "high"

    @made.resource("harbour://{port}/tide")
    async def tide_in(port: str) -> str:
        return port

    return made


async def nothing():
    pass


def failure_text(result):
    """The only text of a result that reports a failure."""
    assert result["isError"] is True
    (content,) = result["content"]
    return content["text"]


@attrs.define(eq=False)
class Asker:
    """A client that sends one request after the other.

    `received` has the messages that came before the responses.
    """

    wire: WirePeer
    hello: dict = attrs.field(factory=dict)
    received: list = attrs.field(factory=list)
    metadata: dict = attrs.field(factory=dict, kw_only=True)
    _ids: itertools.count = attrs.field(factory=functools.partial(itertools.count, 1))

    async def begin(self, method, params=None):
        """Send a request; returns its id."""
        request_id = next(self._ids)
        if self.metadata:
            params = dict(params or {})
            params["_meta"] = self.metadata | params.get("_meta", {})
        await self.wire.send_request(method, params, id=request_id)
        return request_id

    async def end(self, request_id):
        """The answer to a request, as a message."""
        while True:
            message = await self.wire.receive()
            if message.get("id") == request_id and "method" not in message:
                return message
            self.received.append(message)

    async def ask(self, method, params=None):
        """The answer to a new request."""
        return await self.end(await self.begin(method, params))

    async def result(self, method, params=None):
        """The result of a new request that succeeds."""
        return (await self.ask(method, params))["result"]

    async def error(self, method, params=None):
        """The error of a new request that fails."""
        return (await self.ask(method, params))["error"]

    async def call(self, name, **arguments):
        """The text of a tool's first content."""
        result = await self.result("tools/call", {"name": name, "arguments": arguments})
        assert "isError" not in result
        return result["content"][0]["text"]

    async def failure(self, name, arguments=None, **members):
        """The text of the result of a call that fails."""
        params = {"name": name, "arguments": arguments or {}, **members}
        return failure_text(await self.result("tools/call", params))

    async def next_message(self):
        """The next message of the server's own."""
        return self.received.pop(0) if self.received else await self.wire.receive()


@pytest.fixture
def server():
    """A server with nothing yet."""
    return Server("harbour")


@pytest.fixture
def serve(nursery):
    """Serve a server until the test ends, and return a client after its handshake or discovery.

    The client speaks `protocol_version`; a stateless one names the version in each request.
    """

    async def start(server, *, protocol_version=OLDEST.name, capabilities=None, record=None):
        ours, theirs = memory_pair(limits=server.limits)
        await nursery.start(functools.partial(server.serve, theirs, record=record))
        wire = WirePeer(ours)
        if not PROTOCOL_VERSIONS[protocol_version].has_handshake:
            metadata = {PROTOCOL_VERSION: protocol_version, CLIENT_CAPABILITIES: capabilities or {}}
            asker = Asker(wire, metadata=metadata)
            asker.hello = await asker.result("server/discover")
            return asker
        hello = await wire.handshake(protocol_version=protocol_version, capabilities=capabilities)
        return Asker(wire, hello["result"])

    return start


@pytest.fixture
def record(serve, tmp_path):
    """Serve and record a server; gives the asker and a function.

    The function returns the kinds and bodies of the recorded effects; its `path` is that of the
    recording.
    """

    async def start(server, **options):
        path = tmp_path / "it.mcprec.jsonl"
        asker = await serve(server, record=path, **options)

        def recorded():
            records = map(json.loads, path.read_bytes().splitlines())
            kinds = {"cmd", "res", "err", "cxl", "val"}
            return [(it["k"], it.get("f")) for it in records if it["k"] in kinds]

        recorded.path = path
        return asker, recorded

    return start


async def played_again(asker, recorded, server):
    """End a session that `record` has begun, and replay it; raises where it differs."""
    await asker.wire.aclose()
    await trio.testing.wait_all_tasks_blocked()
    return await trio.to_thread.run_sync(replay, recorded.path, server)


EVERYTHING = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}


@attrs.define(eq=False)
class Chain:
    """A stateless client whose every request reaches another instance of a server."""

    serve: object
    make: object
    params: dict
    method: str = "tools/call"
    options: dict = attrs.field(factory=dict)
    received: list = attrs.field(factory=list)

    async def send(self, **members):
        """The whole answer of a fresh instance."""
        options = {"protocol_version": "2026-07-28", "capabilities": EVERYTHING, **self.options}
        asker = await self.serve(self.make(), **options)
        answer = await asker.ask(self.method, self.params | members)
        self.received += asker.received
        await asker.wire.aclose()
        return answer

    async def begin(self):
        return (await self.send())["result"]

    async def go_on(self, result, **answers):
        """The result of a retry."""
        state = {"requestState": result["requestState"]} if "requestState" in result else {}
        return (await self.send(inputResponses=answers, **state))["result"]

    async def rejected(self, **members):
        return (await self.send(**members))["error"]

    async def failure(self, **members):
        """The text of the result of a call that fails."""
        return failure_text((await self.send(**members))["result"])

    async def finish(self, answer):
        """The last result, and the questions by key; `answer` gives what each is answered."""
        asked, result = {}, await self.begin()
        while result["resultType"] == "input_required":
            requests = result["inputRequests"]
            asked |= requests
            answers = {key: answer(request) for key, request in requests.items()}
            result = await self.go_on(result, **answers)
        return result, asked


@pytest.fixture
def chain(serve):
    """A chain of requests for a tool named `it`, which `register` adds to each new server."""
    keys = KeyRing([b"k" * 32])

    def start(register, *, options=None, **arguments):
        def make():
            server = Server("shop", **{"version": "1", "keys": keys, **(options or {})})
            register(server)
            return server

        return Chain(serve, make, {"name": "it", "arguments": arguments})

    return start


@pytest.fixture
def resumable(chain):
    """A chain for a resumable handler."""

    def start(handler, *, options=None, **arguments):
        def register(server):
            server.tool(name="it", resumable=True)(handler)

        return chain(register, options=options, **arguments)

    return start
