"""One connection of the native listener: its requests, one after the other."""

import logging
import math
from typing import Final, cast

import attrs
import trio

from mcp_trio._protocol.websocket import asks_for_websocket
from mcp_trio._transports.http.exchange import Responder
from mcp_trio._transports.http.native_exchange import Answer, NativeExchange
from mcp_trio._transports.http.native_head import (
    Refused,
    RequestHead,
    head_bytes,
    is_remembered,
    read_head,
    written_refusal,
)
from mcp_trio._transports.http.native_wire import Wire
from mcp_trio._transports.websocket.upgrade import Upgraded

logger = logging.getLogger("mcp_trio")

_BUSY: Final = math.inf


@attrs.define(eq=False)
class Clock:
    """One that is looked at now and then: `last_look` is the time that it showed."""

    last_look: float = attrs.field(factory=trio.current_time)


@attrs.define(kw_only=True, eq=False)
class NativeConnection:
    """Reads requests, gives them to the application, and sees that each is answered.

    Attributes:
        wire: Its bytes.
        respond: The application.
        upgraded: What it does with who asks for a WebSocket; None: it answers as to anybody.
        client: The address of the peer.
        clock: How late it is, about.
        may_lead: See `Exchange.may_lead`; between requests it rests (see `resting`).
        idle_since: Since when, by that clock, it has waited for a request; infinite if it does not.
        is_over: No more requests are taken.
    """

    wire: Wire
    respond: Responder
    upgraded: Upgraded | None = None
    client: str | None
    clock: Clock
    may_lead: bool = False
    idle_since: float = attrs.field(default=_BUSY, init=False)
    is_over: bool = attrs.field(default=False, init=False)
    _last_raw: bytes = attrs.field(default=b"", init=False)
    _last_head: RequestHead | None = attrs.field(default=None, init=False)

    def end(self) -> None:
        """It was idle for too long."""
        self.is_over = True
        self.wire.ends.end()

    async def serve(self) -> None:
        """Serves until one of both sides ends it.

        Raises:
            trio.BrokenResourceError: The client has gone away in the middle of something.
        """
        try:
            while raw := await self._next_head():
                if not await self._serve_request(raw):
                    break
        except Refused as refusal:
            await self.wire.write(written_refusal(refusal))
        await self.wire.linger()

    # Requests

    async def _next_head(self) -> bytes:
        """The bytes of the next head; empty if none comes any more."""
        received = self.wire.received
        if received:  # it was sent before the last answer; now it is the turn of other connections
            await trio.lowlevel.checkpoint()
        else:
            self.idle_since = self.clock.last_look
            has_begun = await self.wire.receive(rests=self.may_lead)
            self.idle_since = _BUSY
            if self.is_over or not has_begun:
                return b""
        length = head_bytes(received, 0, bytes_max=self.wire.limits.http_head_bytes_max)
        return self.wire.take(length or await self._rest_of_head())

    async def _rest_of_head(self) -> int:
        received, limits = self.wire.received, self.wire.limits
        length = searched = 0

        def is_whole() -> bool:
            nonlocal length, searched
            length = head_bytes(received, searched, bytes_max=limits.http_head_bytes_max)
            searched = len(received)
            return length > 0

        if not await self.wire.receive_until(is_whole, seconds=limits.http_head_seconds):
            seconds = limits.http_head_seconds
            raise Refused(408, f"the head has not come for {seconds:g} s (http_head_seconds)")
        return length

    # Answers

    async def _serve_request(self, raw: bytes) -> bool:
        """Whether another request may follow."""
        request = self._read_head(raw)
        if self.upgraded is not None and asks_for_websocket(request.head):
            await self._upgrade(raw, request, self.upgraded)
            return False
        exchange = NativeExchange.of(request, self.wire, may_lead=self.may_lead)
        try:
            await self.respond(exchange)
        except Exception as error:
            self._log(exchange, error)
        except BaseExceptionGroup as group:  # of what is no Exception, but perhaps not only of that
            raise self._log_errors_of(exchange, group) from None
        if exchange.answered is Answer.NONE:
            if exchange.refusal is not None:
                raise exchange.refusal
            await exchange.answer(500, [])
        if exchange.answered is Answer.BEGUN or exchange.is_last:
            return False  # the client sees that a half of an answer lacks its end
        exchange.skip_body()
        return True

    def _read_head(self, raw: bytes) -> RequestHead:
        """Of what is sent again, but for somebody's secrets, it is known what it means."""
        if raw == self._last_raw and self._last_head is not None:
            return self._last_head
        request = read_head(raw, self.client)
        if is_remembered(raw):
            self._last_raw, self._last_head = raw, request
        return request

    async def _upgrade(self, raw: bytes, request: RequestHead, upgraded: Upgraded) -> None:
        from mcp_trio._transports.http.native_upgrade import hand_over

        if request.body_bytes != 0:
            raise Refused(400, "what becomes a WebSocket has no body")
        await hand_over(self.wire, raw, request.head, upgraded)

    def _log_errors_of(
        self, exchange: NativeExchange, group: BaseExceptionGroup
    ) -> BaseExceptionGroup:
        """What is left of the group."""
        errors, rest = group.split(Exception)
        if errors is not None:
            self._log(exchange, errors)
        assert rest is not None
        return rest

    def _log(self, exchange: NativeExchange, error: BaseException) -> None:
        """That a client has gone away, or has sent a body that is none, is no fault of anybody."""
        is_gone = self.wire.is_broken or self.wire.has_ended or exchange.refusal is not None
        if not (is_gone and _is_broken(error)):
            head = exchange.head
            logger.error("the answer to %s %s failed", head.method, head.path, exc_info=error)


def _is_broken(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return all(_is_broken(each) for each in group.exceptions)
    return isinstance(error, trio.BrokenResourceError)
