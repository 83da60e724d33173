"""Servers over memory, with a peer on the other side that is scripted word by word."""

import functools
import itertools
import json
from typing import Generic, TypeVar

import attrs
import pytest
import trio
import trio.testing

from mcp_trio._server.signatures import ArgumentsError, Signature
from mcp_trio._testing.wire_peer import WirePeer
from mcp_trio._transports.memory import memory_pair
from mcp_trio.recording import replay

State = TypeVar("State")


class Context(Generic[State]):
    """What a handler may ask for beside its arguments."""


def signature_of(handler, **options):
    return Signature(handler=handler, context_type=Context, **options)


def taking(hint):
    """A handler whose only argument is `it`, of that type."""

    def handler(it):
        pass

    handler.__annotations__["it"] = hint
    return handler


def signature(hint, **options):
    return signature_of(taking(hint), **options)


def read(hint, value, **options):
    """What arrives as `it`, of JSON like `value`."""
    return signature(hint, **options).decode(json.dumps({"it": value}).encode()).it


def lines_of(handler, arguments, **options):
    """The mistakes in arguments that are refused."""
    with pytest.raises(ArgumentsError) as caught:
        signature_of(handler, **options).decode(json.dumps(arguments).encode())
    assert str(caught.value) == "\n".join(caught.value.lines)
    return caught.value.lines


def lines(hint, value, **options):
    """The mistakes in a `value` of `it` that is refused."""
    return lines_of(taking(hint), {"it": value}, **options)


@attrs.define(eq=False)
class Asker:
    """A client that asks one thing after the other; `told` is what came besides the answers."""

    wire: WirePeer
    hello: dict
    told: list = attrs.field(factory=list)
    _ids: itertools.count = attrs.field(factory=functools.partial(itertools.count, 1))

    async def begin(self, method, params=None):
        """Send a request; returns its id."""
        request_id = next(self._ids)
        await self.wire.send_request(method, params, id=request_id)
        return request_id

    async def end(self, request_id):
        """The answer to a request, as a message."""
        while True:
            message = await self.wire.receive()
            if message.get("id") == request_id and "method" not in message:
                return message
            self.told.append(message)

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

    async def next_told(self):
        """The next message of the server's own."""
        return self.told.pop(0) if self.told else await self.wire.receive()


@pytest.fixture
def serve(nursery):
    """Serve a server until the test ends; gives the asker behind the handshake."""

    async def start(server, *, capabilities=None, record=None):
        ours, theirs = memory_pair(limits=server.limits)
        await nursery.start(functools.partial(server.serve, theirs, record=record))
        wire = WirePeer(ours)
        hello = await wire.handshake(capabilities=capabilities)
        return Asker(wire, hello["result"])

    return start


@pytest.fixture
def record(serve, tmp_path):
    """Serve and record a server; gives the asker, and what tells the kinds and bodies of effects.

    The path of the recording is `path` of the latter.
    """

    async def start(server, **options):
        path = tmp_path / "it.mcprec.jsonl"
        asker = await serve(server, record=path, **options)

        def told():
            records = map(json.loads, path.read_bytes().splitlines())
            kinds = {"cmd", "res", "err", "cxl", "val"}
            return [(it["k"], it.get("f")) for it in records if it["k"] in kinds]

        told.path = path
        return asker, told

    return start


async def played_again(asker, told, server):
    """End a session that `record` has begun, and replay it; raises where it differs."""
    await asker.wire.aclose()
    await trio.testing.wait_all_tasks_blocked()
    return await trio.to_thread.run_sync(replay, told.path, server)
