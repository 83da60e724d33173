"""A peer that sends exactly the messages of a test, and a browser that allows a client access."""

import re
from collections import deque
from collections.abc import Mapping
from html import unescape
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

_HANDSHAKE_ID: Final = "handshake"

# The form of the consent page of an `AuthorizationServer`: its URL, and the id of the request.
_FORM: Final = re.compile(r'<form method="post" action="([^"]*)"><input[^>]* value="([^"]*)">')


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
        received: All received messages, as bytes, in order.
    """

    channel: Channel
    received: list[bytes | Oversized] = attrs.field(factory=list[bytes | Oversized], init=False)
    _unread: deque[bytes | Oversized] = attrs.field(factory=deque[bytes | Oversized], init=False)

    # Sending.

    async def send(self, *messages: bytes | Mapping[str, Any]) -> None:
        """Send messages together: bytes as they are, mappings as JSON-RPC objects."""
        await self.channel.send([_encode(message) for message in messages])

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

    async def send_result(self, request: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        """Answer a received request with a result."""
        await self.send({"id": request["id"], "result": result})

    async def cancel(
        self,
        id: int | str,  # noqa: A002  the specification's word
        reason: str | None = None,
    ) -> None:
        """Cancel a request that was sent."""
        params = {"requestId": id} if reason is None else {"requestId": id, "reason": reason}
        await self.send_notification("notifications/cancelled", params)

    async def aclose(self) -> None:
        """Close the channel."""
        await self.channel.aclose()

    # Receiving.

    async def receive(self) -> dict[str, Any]:
        """Receive the next message.

        Raises:
            EOFError: The other side has closed the connection.
        """
        (message,) = await self.receive_many(1)
        return message

    async def receive_many(self, count: int) -> list[dict[str, Any]]:
        """Receive the next `count` messages.

        Raises:
            EOFError: The other side has closed the connection.
        """
        while len(self._unread) < count:
            received = await self.channel.receive()
            if not received:
                raise EOFError("the other side has closed the connection")
            self._keep(received)
        return [_decode(self._unread.popleft()) for _ in range(count)]

    async def receive_available(self) -> list[dict[str, Any]]:
        """Wait until all other tasks are blocked; return the messages received by then."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_receiving)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        return self._take_unread()

    async def receive_end(self) -> list[dict[str, Any]]:
        """Receive until the end of the connection; return the messages."""
        await self._keep_receiving()
        return self._take_unread()

    async def _keep_receiving(self) -> None:
        while received := await self.channel.receive():
            self._keep(received)

    def _take_unread(self) -> list[dict[str, Any]]:
        messages = [_decode(data) for data in self._unread]
        self._unread.clear()
        return messages

    def _keep(self, received: Any) -> None:
        self.received.extend(received)
        self._unread.extend(received)

    # Handshakes.

    async def handshake(
        self,
        *,
        protocol_version: str = OLDEST.name,
        capabilities: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Act as a client in the handshake; return the server's response to `initialize`.

        Raises:
            EOFError: The server has closed the connection.
        """
        params = {
            "protocolVersion": protocol_version,
            "capabilities": capabilities or {},
            "clientInfo": {"name": "wire peer", "version": "0"},
        }
        await self.send_request(INITIALIZE, params, id=_HANDSHAKE_ID)
        response = await self.receive()
        await self.send_notification(INITIALIZED)
        return response

    async def answer_initialize(
        self,
        *,
        protocol_version: str = OLDEST.name,
        capabilities: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Act as a legacy server in the handshake; return the client's `initialize` request.

        `server/discover`, with which clients look for a stateless server, is answered by an error.

        Raises:
            EOFError: The client has closed the connection.
        """
        request = await self.receive()
        if request["method"] == DISCOVER:
            error = {"code": METHOD_NOT_FOUND, "message": f"method not found: {DISCOVER}"}
            await self.send({"id": request["id"], "error": error})
            request = await self.receive()
        result = {
            "protocolVersion": protocol_version,
            "capabilities": capabilities or {},
            "serverInfo": {"name": "wire peer", "version": "0"},
        }
        await self.send_result(request, result)
        await self.receive()
        return request


def request(
    method: str,
    params: Mapping[str, Any] | None = None,
    *,
    id: int | str,  # noqa: A002  the specification's word
) -> dict[str, Any]:
    """Return a request, without the member `jsonrpc`."""
    message: dict[str, Any] = {"id": id, "method": method}
    return message if params is None else {**message, "params": params}


def notification(method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a notification, without the member `jsonrpc`."""
    return {"method": method} if params is None else {"method": method, "params": params}


def _encode(message: bytes | Mapping[str, Any]) -> bytes:
    if isinstance(message, bytes):
        return message
    return msgspec.json.encode({"jsonrpc": "2.0", **message})


def _decode(data: bytes | Oversized) -> dict[str, Any]:
    assert isinstance(data, bytes), f"a message over the size limit arrived: {data}"
    return msgspec.json.decode(data, type=dict[str, Any])


async def allow_access(url: str) -> str:
    """Allow the access of a client on the consent page, and return the URL of the redirect.

        async with Client(url, auth=OAuth(on_authorize=allow_access, store=MemoryTokenStore())): ...

    Args:
        url: The URL of the authorization request, at a server with `DevelopmentLogin`.

    Returns:
        The URL to which the server redirects the user's browser. It is not opened here.

    Raises:
        ValueError: There is no consent page, or the server does not redirect.
    """
    import httpx2

    async with httpx2.AsyncClient() as browser:
        page = await browser.get(url)
        found = _FORM.search(page.text)
        if found is None:
            raise ValueError(f"no consent page, but status {page.status_code}: {page.text}")
        action, request_id = map(unescape, found.groups())
        form = {"request": request_id, "decision": "allow"}
        decided = await browser.post(action, data=form)
        if "location" not in decided.headers:
            raise ValueError(f"no redirect, but status {decided.status_code}: {decided.text}")
        location: str = decided.headers["location"]
        return location
