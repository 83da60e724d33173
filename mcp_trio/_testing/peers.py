"""A scripted peer that sends exactly the messages of a test, over any channel."""

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

import attrs
import msgspec
import trio
import trio.testing

from mcp_trio._jsonrpc.lines import Oversized
from mcp_trio._protocol.methods import DISCOVER, INITIALIZE, INITIALIZED
from mcp_trio._protocol.versions import OLDEST
from mcp_trio._transports.channel import Channel
from mcp_trio.errors import METHOD_NOT_FOUND

HANDSHAKE_ID: Final = "handshake"


@attrs.define(eq=False)
class WirePeer:
    """A peer that a test controls: it sends only the messages that the test sends.

        ours, theirs = memory_pair()
        nursery.start_soon(server.serve, ours)
        peer = WirePeer(theirs)
        await peer.handshake()
        await peer.send_request("tools/list", id=7)
        assert (await peer.receive())["id"] == 7

    The peer checks nothing, so a test can violate the protocol. To test a client, let the peer act
    as the server by `answer_initialize`. Methods that send or receive raise the errors of the
    channel's `send` or `receive`. If a method is cancelled, no received message is lost.

    Attributes:
        channel: The peer's end of the connection.
        frames: The received messages, as bytes, in order.
    """

    channel: Channel
    frames: list[bytes | Oversized] = attrs.field(factory=list[bytes | Oversized], init=False)
    _unread: deque[bytes | Oversized] = attrs.field(factory=deque[bytes | Oversized], init=False)

    # Sending.

    async def send(self, *messages: bytes | Mapping[str, Any]) -> None:
        """Send messages as one batch: bytes as they are, mappings as JSON-RPC objects."""
        await self.channel.send([_frame(message) for message in messages])

    async def send_request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        id: int | str,  # noqa: A002  the specification's word
    ) -> None:
        """Send a request."""
        await self.send(request(method, params, id=id))

    async def send_notification(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification."""
        await self.send(notification(method, params))

    async def send_result(self, asked: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        """Answer a request that was received."""
        await self.send({"id": asked["id"], "result": result})

    async def cancel(
        self,
        id: int | str,  # noqa: A002  the specification's word
        reason: str | None = None,
    ) -> None:
        """Cancel a request that was sent."""
        params = {"requestId": id} if reason is None else {"requestId": id, "reason": reason}
        await self.send_notification("notifications/cancelled", params)

    async def aclose(self) -> None:
        """Close the channel: the other side sees its end."""
        await self.channel.aclose()

    # Receiving.

    async def receive(self) -> dict[str, Any]:
        """The next message.

        Raises:
            EOFError: The other side has closed.
        """
        while not self._unread:
            batch = await self.channel.receive()
            if not batch:
                raise EOFError("the other side has closed")
            self._keep(batch)
        return _message(self._unread.popleft())

    async def receive_many(self, count: int) -> list[dict[str, Any]]:
        """The next `count` messages.

        Raises:
            EOFError: The other side has closed.
        """
        return [await self.receive() for _ in range(count)]

    async def receive_available(self) -> list[dict[str, Any]]:
        """The messages that are there once every other task waits for something; maybe none."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_receiving)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        messages = [_message(frame) for frame in self._unread]
        self._unread.clear()
        return messages

    async def receive_end(self) -> list[dict[str, Any]]:
        """The messages up to the end of the channel."""
        await self._keep_receiving()
        messages = [_message(frame) for frame in self._unread]
        self._unread.clear()
        return messages

    async def _keep_receiving(self) -> None:
        while batch := await self.channel.receive():
            self._keep(batch)

    def _keep(self, batch: Any) -> None:
        self.frames.extend(batch)
        self._unread.extend(batch)

    # Handshakes.

    async def handshake(
        self,
        *,
        protocol_version: str = OLDEST.name,
        capabilities: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Be a client up to `initialized`; returns the server's answer.

        Raises:
            EOFError: The server has closed.
        """
        params = {
            "protocolVersion": protocol_version,
            "capabilities": capabilities or {},
            "clientInfo": {"name": "wire peer", "version": "0"},
        }
        await self.send_request(INITIALIZE, params, id=HANDSHAKE_ID)
        answer = await self.receive()
        await self.send_notification(INITIALIZED)
        return answer

    async def answer_initialize(
        self,
        *,
        protocol_version: str = OLDEST.name,
        capabilities: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Be a legacy server up to `initialized`; returns the client's request for `initialize`.

        A client of both eras asks for `server/discover` first: a method that is not known here.

        Raises:
            EOFError: The client has closed.
        """
        asked = await self.receive()
        if asked["method"] == DISCOVER:
            unknown = {"code": METHOD_NOT_FOUND, "message": f"method not found: {DISCOVER}"}
            await self.send({"id": asked["id"], "error": unknown})
            asked = await self.receive()
        result = {
            "protocolVersion": protocol_version,
            "capabilities": capabilities or {},
            "serverInfo": {"name": "wire peer", "version": "0"},
        }
        await self.send_result(asked, result)
        await self.receive()
        return asked


def request(
    method: str,
    params: Mapping[str, Any] | None = None,
    *,
    id: int | str,  # noqa: A002  the specification's word
) -> dict[str, Any]:
    """The message of a request."""
    message: dict[str, Any] = {"id": id, "method": method}
    return message if params is None else {**message, "params": params}


def notification(method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The message of a notification."""
    return {"method": method} if params is None else {"method": method, "params": params}


def _frame(message: bytes | Mapping[str, Any]) -> bytes:
    if isinstance(message, bytes):
        return message
    return msgspec.json.encode({"jsonrpc": "2.0", **message})


def _message(frame: bytes | Oversized) -> dict[str, Any]:
    assert isinstance(frame, bytes), f"a frame over the limit arrived: {frame}"
    return msgspec.json.decode(frame, type=dict[str, Any])
