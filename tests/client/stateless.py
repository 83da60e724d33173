"""Scripted stateless and legacy servers, and clients that are connected to them."""

import typing

import attrs
import trio
import trio.testing

from mcp_trio import Client
from mcp_trio._protocol.metadata import SUBSCRIPTION_ID
from mcp_trio._protocol.versions import ALL_PROTOCOL_VERSIONS, PROTOCOL_VERSIONS
from mcp_trio.testing import WirePeer
from mcp_trio.transports import memory_pair

STATELESS = next(name for name in ALL_PROTOCOL_VERSIONS if PROTOCOL_VERSIONS[name].is_stateless)
LEGACY = tuple(name for name in ALL_PROTOCOL_VERSIONS if not PROTOCOL_VERSIONS[name].is_stateless)
SERVER_INFO = {"io.modelcontextprotocol/serverInfo": {"name": "played", "version": "1"}}
CAN_ALL = {
    "logging": {},
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {"subscribe": True, "listChanged": True},
    "completions": {},
}
DISCOVERED = {
    "resultType": "complete",
    "supportedVersions": [STATELESS],
    "capabilities": CAN_ALL,
    "ttlMs": 0,
    "cacheScope": "private",
    "_meta": SERVER_INFO,
}

INITIALIZED = {
    "capabilities": CAN_ALL,
    "serverInfo": {"name": "old", "version": "1"},
}


@attrs.define(eq=False)
class Played:
    """Answers what `answers` holds for a method: a result, or a function of the params.

    Each result gets a `resultType` if it has none, and loses one that is `...`; one with a member
    `error` is that error; None is silence. `requests` are all that came, and `before` is awaited
    with each that is to be answered.
    """

    peer: WirePeer
    answers: dict
    requests: list = attrs.field(factory=list)
    before: typing.Any = None

    async def serve(self):
        while True:
            try:
                message = await self.peer.receive()
            except (EOFError, trio.ClosedResourceError):
                return
            self.requests.append(message)
            if "id" in message and "method" in message:
                await self._answer(message)

    async def _answer(self, message):
        if self.before is not None:
            await self.before(message)
        answer = self.answers[message["method"]]
        result = answer(message.get("params", {})) if callable(answer) else answer
        if result is None:
            return
        if "error" in result:
            await self.peer.send({"id": message["id"], **result})
        else:
            whole = {"resultType": "complete", **result}
            members = {name: value for name, value in whole.items() if value is not ...}
            await self.peer.send_result(message, members)

    async def notify(self, method):
        """Say on all subscriptions that something has changed."""
        for listen in [it for it in self.requests if it.get("method") == "subscriptions/listen"]:
            await self.peer.send_notification(method, {"_meta": {SUBSCRIPTION_ID: listen["id"]}})

    async def acknowledge(self, message):
        """`before`, of a server that tells of everything: the beginning of each subscription."""
        if message["method"] == "subscriptions/listen":
            params = {"notifications": message["params"]["notifications"]}
            params["_meta"] = {SUBSCRIPTION_ID: message["id"]}
            await self.peer.send_notification("notifications/subscriptions/acknowledged", params)

    def asked(self, method):
        """The params of the requests for a method, in order, without their metadata."""
        return [
            {name: value for name, value in message.get("params", {}).items() if name != "_meta"}
            for message in self.requests
            if message.get("method") == method
        ]

    def metadata(self, method):
        """Return the `_meta` of the last request for a method."""
        return [it for it in self.requests if it.get("method") == method][-1]["params"]["_meta"]


def played(nursery, **answers):
    """A channel for a client, and the server at its other end."""
    ours, theirs = memory_pair()
    usual = {"server/discover": DISCOVERED, "subscriptions/listen": None}
    server = Played(WirePeer(theirs), {**usual, **answers})
    server.before = server.acknowledge
    nursery.start_soon(server.serve)
    return ours, server


async def stateless_client(
    nursery, *, protocol_versions=ALL_PROTOCOL_VERSIONS, answers=None, **options
):
    """A connected client of a stateless server, and that."""
    channel, server = played(nursery, **(answers or {}))
    client = Client(channel, protocol_versions=protocol_versions, **options)
    await client.__aenter__()
    await trio.testing.wait_all_tasks_blocked()
    return client, server


async def legacy_client(nursery, *, protocol_version=LEGACY[0], answers=None, **options):
    """A connected client of a legacy server, and that."""
    handshake = {"initialize": {**INITIALIZED, "protocolVersion": protocol_version}}
    channel, server = played(nursery, **{**handshake, **(answers or {})})
    client = Client(channel, protocol_versions=LEGACY, **options)
    await client.__aenter__()
    await trio.testing.wait_all_tasks_blocked()
    return client, server


def error(code, message="no", data=None):
    """An answer that is an error."""
    whole = {"code": code, "message": message}
    return {"error": whole if data is None else {**whole, "data": data}}
