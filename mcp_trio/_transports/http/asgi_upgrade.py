"""WebSocket through ASGI: a request to become one, and the socket of messages that it becomes.

The server frames, answers pings and shakes hands, and tells whole messages. It may shield what it
writes, for as long as its client reads nothing. So a task of its own writes, which nobody has to
wait for; who holds the connection is told to cut it off if that task is left over.
"""

import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, cast

import attrs
import trio

from mcp_trio._limits import Limits
from mcp_trio._protocol.http.heads import JSON, Head
from mcp_trio._protocol.http.verdicts import Refusal
from mcp_trio._protocol.websocket import CloseCode, close_reason
from mcp_trio._transports.http.client_inbox import Inbox
from mcp_trio._transports.http.header_fields import encoded
from mcp_trio._transports.websocket.message_socket import SocketEnded
from mcp_trio._transports.websocket.upgrade import Upgraded
from mcp_trio._wire.lines import Oversized, bounded

logger = logging.getLogger("mcp_trio")

MORE: Final = "mcp_trio.more"
"""Stands in a message behind which the next comes at once: our own host sends them together."""

BYTES_SENT: Final = "mcp_trio.bytes_sent"
"""Among a scope's extensions: tells how much has left, also in the middle of a message."""

_ANSWERS: Final = "websocket.http.response"

# What HTTP/1.1 says of a handshake, which the server has checked; HTTP/2 says it in another way.
_CHECKED: Final = {
    "connection": "Upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==",
}


def _nothing() -> int:
    return 0


def checked_head(head: Head) -> Head:
    """The head of a `websocket` scope, in the words of HTTP/1.1."""
    scheme = "https" if head.scheme in ("wss", "https") else "http"
    return attrs.evolve(head, scheme=scheme, headers={**head.headers, **_CHECKED})


@attrs.define(kw_only=True, eq=False)
class AsgiUpgrade:
    """See `Upgrade`; over one `websocket` scope.

    Attributes:
        head: What came; see `checked_head`.
        extensions: What the server can do beside what every server can.
        receive: That of ASGI.
        send: That of ASGI.
        limits: How large a message may be.
        is_stuck: A write was left over: the connection is to be cut off.
    """

    head: Head
    extensions: Any
    receive: Any
    send: Any
    limits: Limits
    is_stuck: bool = attrs.field(default=False, init=False)

    async def refuse(self, refusal: Refusal) -> None:
        """See `Upgrade.refuse`; a server that can say no more says 403."""
        if _ANSWERS not in self.extensions:
            await self._say({"type": "websocket.close", "code": int(CloseCode.REFUSED)})
            return
        body = refusal.body()
        length = ("Content-Length", str(len(body)))
        headers = encoded([("Content-Type", JSON), length, *refusal.headers])
        start = {"type": f"{_ANSWERS}.start", "status": refusal.status, "headers": headers}
        await self._say(start)
        await self._say({"type": f"{_ANSWERS}.body", "body": body})

    @asynccontextmanager
    async def opened(self, subprotocol: str | None) -> AsyncGenerator["AsgiSocket", None]:
        """See `Upgrade.opened`."""
        await self._say({"type": "websocket.accept", "subprotocol": subprotocol})
        told: Callable[[], int] = self.extensions.get(BYTES_SENT, _nothing)
        socket = AsgiSocket(self.receive, self.send, self.limits, told)
        trio.lowlevel.spawn_system_task(socket.write)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(socket.read)
                yield socket
                nursery.cancel_scope.cancel()
        finally:
            self.is_stuck = socket.stop()

    async def _say(self, message: dict[str, Any]) -> None:
        try:
            await self.send(message)
        except Exception as error:  # of a client that has gone, or has sent frames too early
            raise trio.BrokenResourceError("the client is gone") from error


@attrs.define(eq=False)
class AsgiSocket:
    """A `MessageSocket`; what it has to send waits for `write`, and `read` brings what came."""

    _receive: Any
    _send: Any
    _limits: Limits
    _bytes_sent: Callable[[], int]
    _bytes_begun: int = attrs.field(default=0, init=False)
    _inbox: Inbox = attrs.field(init=False)
    _ended: SocketEnded | None = attrs.field(default=None, init=False)
    _is_gone: bool = attrs.field(default=False, init=False)
    _unsent: deque[dict[str, Any]] = attrs.field(factory=deque[dict[str, Any]], init=False)
    _held: int = attrs.field(default=0, init=False)
    _sending_since: float = attrs.field(default=0.0, init=False)
    _bytes_seen: int = attrs.field(default=0, init=False)
    _writing: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _filled: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _progress: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)

    def __attrs_post_init__(self) -> None:
        self._inbox = Inbox(self._limits.chunk_bytes)

    # The tasks.

    async def read(self) -> None:
        """Bring what comes, until the client has gone."""
        ended = SocketEnded(CloseCode.BROKEN_OFF)
        with suppress(Exception):  # a server that fails has no client any more
            while (message := await self._receive())["type"] == "websocket.receive":
                await self._take(message)
            ended = SocketEnded(message.get("code", ended.code), message.get("reason") or "")
        self._is_gone = True
        self._end(ended)

    async def _take(self, message: dict[str, Any]) -> None:
        text = message.get("text")
        if text is None:
            self._end(SocketEnded(CloseCode.NOT_TEXT, is_ours=True))
            return
        self._inbox.put(bounded(text.encode(), frame_bytes_max=self._limits.frame_bytes_max))
        await self._inbox.room()

    def _end(self, ended: SocketEnded) -> None:
        self._ended = self._ended or ended
        self._inbox.end()
        self._progress.unpark_all()

    async def write(self) -> None:
        """Send what there is, until it is stopped."""
        with self._writing:
            try:
                while True:
                    await self._write_next()
            except Exception as error:
                logger.debug("a WebSocket takes nothing more", exc_info=error)
                self._is_gone = True
                self._progress.unpark_all()

    async def _write_next(self) -> None:
        while not self._unsent:
            await self._filled.park()
        message = self._unsent[0]
        size = len(message.get("text", ""))
        self._bytes_begun += size
        self._note_progress()
        self._held += size
        if len(self._unsent) == 1 or self._held >= self._limits.chunk_bytes:
            self._held = 0
        else:
            message[MORE] = True
        await self._send(message)
        self._unsent.popleft()
        self._progress.unpark_all()

    def _note_progress(self) -> None:
        self._sending_since, self._bytes_seen = trio.current_time(), self.bytes_sent

    def stop(self) -> bool:
        """Nothing more is sent; whether something is being sent that cannot be stopped."""
        self._writing.cancel()
        is_stuck = bool(self._unsent) and not self._is_gone
        self._is_gone = True
        self._progress.unpark_all()
        return is_stuck

    # The socket.

    @property
    def bytes_sent(self) -> int:
        """See `MessageSocket`; in the middle of a message, only our own host tells it."""
        return self._bytes_begun + self._bytes_sent()

    async def send_texts(self, texts: Sequence[str]) -> None:
        """See `MessageSocket`; cancelled, no message is cut, and most of the others not sent."""
        await self._put([{"type": "websocket.send", "text": text} for text in texts])

    def send_texts_nowait(self, texts: Iterable[str]) -> int:
        """See `MessageSocket`; about a chunk of them, if nothing else waits to be sent."""
        if self._is_gone:
            raise trio.BrokenResourceError("the peer is gone")
        if self._unsent:
            return 0
        size = 0
        for text in texts:
            self._unsent.append({"type": "websocket.send", "text": text})
            size += len(text)
            if size >= self._limits.chunk_bytes:
                break
        self._filled.unpark_all()
        return len(self._unsent)

    @property
    def is_unfinished(self) -> bool:
        """See `MessageSocket`; `write` finishes what was begun."""
        return False

    async def _put(self, messages: Sequence[dict[str, Any]]) -> None:
        await self._all_sent()  # what was left by somebody who was cancelled
        self._unsent.extend(messages)
        self._filled.unpark_all()
        try:
            await self._all_sent()
        except trio.Cancelled:
            while len(self._unsent) > 2:  # noqa: PLR2004  that one, and what it may wait for
                self._unsent.pop()
            raise

    async def _all_sent(self) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        while self._unsent and not self._is_gone:
            await self._progress.park()
        if self._is_gone:
            raise trio.BrokenResourceError("the peer is gone")

    async def receive(self) -> Sequence[bytes | Oversized]:
        """See `MessageSocket`."""
        try:
            messages = await self._inbox.take()
        except trio.ClosedResourceError:
            raise SocketEnded(CloseCode.DONE) from None
        if messages:
            return cast("Sequence[bytes | Oversized]", messages)
        assert self._ended is not None
        raise self._ended

    async def ping(self) -> None:
        """See `MessageSocket`; ASGI knows none, but who answers one reads what is sent before."""
        await self._all_sent()

    def is_silent_since(self, moment: float) -> bool:  # noqa: ARG002  the protocol has it
        """See `MessageSocket`; the server sees that, and tells of it, but not that nobody reads."""
        if self.bytes_sent != self._bytes_seen:
            self._note_progress()
        waited_seconds = trio.current_time() - self._sending_since
        return bool(self._unsent) and waited_seconds >= self._limits.write_stall_seconds

    async def close(self, code: CloseCode, reason: str) -> None:
        """See `MessageSocket`."""
        self._inbox.end()
        self._inbox.close()
        said = {"type": "websocket.close", "code": int(code), "reason": close_reason(reason)}
        with suppress(trio.BrokenResourceError):
            await self._put([said])
        while not self._is_gone:
            await self._progress.park()


async def serve_upgrade(upgrade: AsgiUpgrade, upgraded: Upgraded) -> None:
    """Let `upgraded` have a request, of which nothing was received yet."""
    if (await upgrade.receive())["type"] != "websocket.connect":
        return
    try:
        await upgraded(upgrade)
    except trio.BrokenResourceError:
        pass  # the client has gone away
    except Exception:
        logger.exception("a WebSocket connection failed")
