"""Messages of a client, each a POST of its own, and the streams on which the server speaks.

A request has a task from its POST to its answer, which may come as the body, on a stream, on a
stream that is resumed, or on another stream altogether. What goes wrong with it fails that request
alone, as `Lost`; only a server that has forgotten the session ends it.
"""

import logging
import math
from functools import partial
from typing import Final

import attrs
import httpx
import trio

from mcp_trio._errors import (
    METHOD_NOT_FOUND,
    ConnectionLost,
    LocalProtocolError,
    OutcomeUnknown,
)
from mcp_trio._protocol.http.heads import JSON, Headers, media_type_of
from mcp_trio._protocol.http.mirrored import MirrorError, mirrored_headers
from mcp_trio._protocol.methods import DISCOVER, INITIALIZE
from mcp_trio._protocol.revisions import MODERN_CODES
from mcp_trio._transports.back_off import Dice
from mcp_trio._transports.condition import Condition
from mcp_trio._transports.http.client_frames import (
    INITIALIZED,
    Outgoing,
    agreed_version,
)
from mcp_trio._transports.http.client_inbox import Inbox
from mcp_trio._transports.http.client_link import (
    HasLeft,
    Link,
    Refused,
    SessionOver,
    is_stream,
    session_id_of,
)
from mcp_trio._transports.http.client_sse import OldStream
from mcp_trio._transports.http.client_streams import EventStream
from mcp_trio._transports.http.client_tools import ToolHeaders
from mcp_trio._wire import (
    Batch,
    Decoder,
    ErrorResponse,
    Lost,
    Message,
    Oversized,
    Response,
    encode_error,
    readdressed,
)
from mcp_trio._wire.lines import one_line

logger = logging.getLogger("mcp_trio")

LIST_TOOLS: Final = "tools/list"

_OVER: Final = "the server has ended the session"

# Faults of the network, of the server and of a caller; what else is raised is one of ours.
_EXPECTED: Final = (httpx.RequestError, Refused, ConnectionLost, MirrorError)


@attrs.define(eq=False)
class Exchange:
    """A request of ours that is on its way, until its answer has come.

    It `is_accepted` when the server has begun to answer with a success, and `is_unknown` when it
    has said that it does not know our session.
    """

    sent: Outgoing
    id: int | str
    is_accepted: bool = attrs.field(default=False, init=False)
    is_unknown: bool = attrs.field(default=False, init=False)
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    settled: trio.Event = attrs.field(factory=trio.Event, init=False)

    @property
    def is_undecided(self) -> bool:
        """Whether nobody knows yet what the server makes of it."""
        return not (self.is_accepted or self.is_unknown)

    @property
    def is_settled(self) -> bool:
        """Whether its answer has come."""
        return self.settled.is_set()

    def settle(self, linger_seconds: float) -> None:
        """The answer is there; its stream has a moment to end, so that its connection can stay."""
        self.settled.set()
        self.scope.deadline = trio.current_time() + linger_seconds


def _may_resume(exchange: Exchange, stream: EventStream) -> bool:
    """Modern streams are never resumed (MHTTP-25), nor what left us no place to go on from."""
    is_modern = exchange.sent.version is not None
    return not (is_modern or stream.last_id is None or stream.is_cut or stream.is_lost)


def _broken(stream: EventStream) -> str:
    large = " behind a message over frame_bytes_max" if stream.is_cut else ""
    words = f"{stream.trouble}{large} before the answer came"
    return f"{words} ({stream.reached})" if stream.reached else words


@attrs.define(kw_only=True, eq=False)
class Exchanges:
    """Everything that goes on between us and one server; its tasks live in `nursery`.

    `is_old` says that the server is first asked for the transport of 2024-11-05. `bytes_left` grows
    while it takes what is not answered.
    """

    link: Link
    inbox: Inbox
    condition: Condition
    decoder: Decoder
    dice: Dice
    is_old: bool = False
    has_ended: bool = attrs.field(default=False, init=False)
    bytes_left: int = attrs.field(default=0, init=False)
    nursery: trio.Nursery = attrs.field(init=False)
    _open: dict[int | str, Exchange] = attrs.field(factory=dict[int | str, Exchange], init=False)
    _tools: ToolHeaders = attrs.field(init=False)
    _modern_version: str | None = attrs.field(default=None, init=False)
    _endpoint: httpx.URL | None = attrs.field(default=None, init=False)
    _is_forgotten: bool = attrs.field(default=False, init=False)
    _decided: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)

    def __attrs_post_init__(self) -> None:
        self._tools = ToolHeaders(self.link.limits.cache_entries_max)

    # Requests.

    def start(self, sent: Outgoing, request_id: int | str) -> None:
        """Send a request; its answer, or `Lost`, will be in the inbox."""
        exchange = self._open[request_id] = Exchange(sent, request_id)
        self.nursery.start_soon(self._run, exchange)

    async def _run(self, exchange: Exchange) -> None:
        try:
            with exchange.scope:
                await self._ask(exchange)
        except SessionOver:
            exchange.is_unknown = True
            self._be_forgotten()
        except Exception as error:
            self._fail(exchange, error)
        finally:
            self._decided.unpark_all()

    def _fail(self, exchange: Exchange, error: Exception) -> None:
        if not isinstance(error, _EXPECTED):
            logger.error("an HTTP request failed", exc_info=error)
        self._lose(exchange, self._loss_of(error))

    def _loss_of(self, error: Exception) -> ConnectionLost | LocalProtocolError:
        if isinstance(error, MirrorError):
            return LocalProtocolError(str(error))
        loss = self.link.loss_of(error)
        if isinstance(error, httpx.RequestError):
            self.condition.become("retrying", str(loss))
        return loss

    def _lose(self, exchange: Exchange, loss: ConnectionLost | LocalProtocolError) -> None:
        if self._open.pop(exchange.id, None) is None:
            return
        if exchange.is_accepted and type(loss) is ConnectionLost:
            cause, loss = loss, OutcomeUnknown(loss.reason, http_status=loss.http_status)
            loss.__cause__ = cause
        self.inbox.put(Lost(exchange.id, loss))

    async def _ask(self, exchange: Exchange) -> None:
        if exchange.sent.method == INITIALIZE:
            self.link.session_id = self.link.version = None
            if self.is_old:
                await self._find_endpoint()
        stream = self._stream(exchange)
        try:
            await self._post(exchange, stream)
        except Refused as refused:
            await self._take_refusal(exchange, refused)
        if self._endpoint is not None:
            await exchange.settled.wait()
        while not exchange.is_settled:
            if not _may_resume(exchange, stream):
                self._note_break(stream)
                raise OutcomeUnknown(_broken(stream))
            await stream.resume()

    def _note_break(self, stream: EventStream) -> None:
        if not stream.is_cut:
            self.condition.become("retrying", stream.trouble)

    async def _post(self, exchange: Exchange, stream: EventStream) -> None:
        sent = exchange.sent
        async with self.link.post(sent.frame, self._headers(sent), url=self._endpoint) as response:
            await self.link.check(response)
            self.condition.become("open")
            exchange.is_accepted = True
            self._decided.unpark_all()
            if sent.method == INITIALIZE:
                self.link.session_id = session_id_of(response)
            if is_stream(response):
                await stream.read(response)
            elif self._endpoint is None:
                await self._take_body(response, exchange)
            else:
                await self.link.begin_of(response)

    def _stream(self, exchange: Exchange | None) -> EventStream:
        return EventStream(
            link=self.link,
            take=partial(self.take, exchange=exchange),
            dice=self.dice,
            condition=self.condition,
            away_seconds=math.inf if exchange is None else self.link.limits.http_resume_seconds,
        )

    def _headers(self, sent: Outgoing) -> Headers:
        """What goes along: of the message itself, of the session, or nothing."""
        version = sent.version
        if version is None and self.link.version is None and sent.method is not None:
            version = self._modern_version  # modern notifications do not say it
        if self._endpoint is not None or sent.method == INITIALIZE:
            return []
        if version is None or sent.method is None:
            return self.link.of_session()
        paths = self._tools.paths_of(sent.tool)
        params = sent.params(is_whole=bool(paths))
        return mirrored_headers(version=version, method=sent.method, params=params, paths=paths)

    # Answers.

    async def take(self, data: bytes | Oversized, exchange: Exchange | None = None) -> None:
        """A message has come, on the stream of `exchange` or on none; waits while many wait."""
        if isinstance(data, Oversized):
            self.inbox.put(data)
        else:
            frame = one_line(data)
            message = self.decoder.decode(frame)
            if isinstance(message, ErrorResponse) and message.id is None and exchange is not None:
                frame = readdressed(frame, exchange.id)
                self._settle(exchange.id)
            for each in message.messages if isinstance(message, Batch) else (message,):
                frame = self._noted(each, frame)
            self.inbox.put(frame)
        await self.inbox.room()

    def _noted(self, message: Message, frame: bytes) -> bytes:
        """The frame to hand up; an answer settles its request, whatever stream it came on."""
        if not isinstance(message, Response | ErrorResponse):
            return frame
        asked = self._settle(message.id)
        if asked is None or isinstance(message, ErrorResponse):
            return frame
        return self._learnt(asked.sent, message, frame)

    def _settle(self, request_id: int | str | None) -> Exchange | None:
        exchange = None if request_id is None else self._open.pop(request_id, None)
        if exchange is not None:
            exchange.settle(self.link.limits.close_seconds)
        return exchange

    def _learnt(self, sent: Outgoing, answer: Response, frame: bytes) -> bytes:
        """What results tell of the headers that are due from now on."""
        if sent.method == INITIALIZE:
            self.link.version = agreed_version(answer.result)
        if sent.version is None:
            return frame
        self._modern_version = sent.version
        return self._tools.learn(frame) if sent.method == LIST_TOOLS else frame

    async def _take_body(self, response: httpx.Response, exchange: Exchange) -> None:
        """The answer as a whole (HTTP-12)."""
        limits = self.link.limits
        body = await self.link.body(response, bytes_max=limits.frame_bytes_max)
        if isinstance(body, Oversized):
            self.inbox.put(body)
            raise OutcomeUnknown(f"an answer over frame_bytes_max ({limits.frame_bytes_max})")
        if body and media_type_of(response.headers.get("content-type")) != JSON:
            raise Refused(response, body)
        if body:
            await self.take(body, exchange)
        if not exchange.is_settled:
            raise OutcomeUnknown(f"HTTP {response.status_code} without an answer in it")

    async def _take_refusal(self, exchange: Exchange, refused: Refused) -> None:
        """Clients decide by the body, and by the status only where that says nothing (TRAP-53)."""
        method = exchange.sent.method
        answer = self._error_in(refused.body, exchange)
        if answer is not None:
            await self.take(answer, exchange)
        elif refused.is_client_error and method == DISCOVER:
            unknown = f"HTTP {refused.status} {refused.phrase}"
            await self.take(encode_error(exchange.id, METHOD_NOT_FOUND, unknown), exchange)
        elif refused.is_client_error and method == INITIALIZE and self._endpoint is None:
            await self._fall_back(exchange, refused)
        else:
            raise refused

    def _error_in(self, body: bytes, exchange: Exchange) -> bytes | None:
        """The body as the answer to its request; some servers have another id in it, or none.

        One without an id does not answer a client's first words, but for what only modern servers
        say (SSE-12): it may come from a server that takes no POST here, and knows nothing newer
        than HTTP+SSE.
        """
        frame = one_line(body)
        refusal = self.decoder.decode(frame)
        if not isinstance(refusal, ErrorResponse):
            return None
        is_vague = refusal.id is None and refusal.error.code not in MODERN_CODES
        if is_vague and exchange.sent.method in (DISCOVER, INITIALIZE):
            return None
        return readdressed(frame, exchange.id)

    # A server that knows nothing newer than HTTP+SSE (SSE-09 to SSE-12).

    @property
    def has_endpoint(self) -> bool:
        """Whether the server is of these."""
        return self._endpoint is not None

    async def _find_endpoint(self) -> str:
        """Ask for the stream that names it; what was the trouble, if there is none."""
        old = OldStream(link=self.link, take=self.take)
        self.nursery.start_soon(self._hear_old, old)
        await old.decided.wait()
        self._endpoint = old.endpoint
        return old.trouble

    async def _fall_back(self, exchange: Exchange, refused: Refused) -> None:
        trouble = await self._find_endpoint()
        if self._endpoint is None:
            loss = refused.loss(self.link)
            words = f"{loss}; as for HTTP+SSE: {trouble}"
            raise ConnectionLost(words, http_status=loss.http_status)
        try:
            await self._post(exchange, self._stream(exchange))
        except Refused as again:
            await self._take_refusal(exchange, again)

    async def _hear_old(self, old: OldStream) -> None:
        await old.run()
        if old.endpoint is not None:
            self.end(old.trouble)

    # Notifications and answers of ours.

    async def tell(self, sent: Outgoing) -> None:
        """Send what is not answered; the server's 202 is waited for, so that it stays in order.

        What cannot be delivered is logged.
        """
        if sent.cancels is not None:
            await self._cancel(sent, sent.cancels)
        elif await self._deliver(sent) and sent.method == INITIALIZED:
            await self._begin_listening()

    async def _cancel(self, sent: Outgoing, request_id: int | str) -> None:
        """Modern servers see it by the end of the stream alone (MHTTP-13); others are told."""
        exchange = self._open.get(request_id)
        is_modern = self.link.version is None if exchange is None else exchange.sent.version
        if not is_modern:
            await self._deliver(sent)
        if exchange is not None:
            self._open.pop(request_id, None)
            exchange.scope.cancel()

    async def _deliver(self, sent: Outgoing) -> bool:
        """Whether the server has taken it, in a time that begins anew with each piece of it."""
        seconds = self.link.limits.write_stall_seconds / 2  # the session ends when all are over
        what = sent.method or "an answer"
        whole = self.bytes_left + len(sent.frame)
        try:
            with trio.fail_after(seconds) as patience:

                def has_left(size: int) -> None:
                    self.bytes_left += size
                    patience.deadline = trio.current_time() + seconds

                await self._post_only(sent, has_left)
        except SessionOver:
            self._be_forgotten()
        except trio.TooSlowError:
            logger.warning("%s: not accepted within %g s", what, seconds)
        except Exception as error:
            logger.warning("%s: not delivered: %s", what, self._loss_of(error))
        else:
            return True
        finally:
            self.bytes_left = whole
        return False

    async def _post_only(self, sent: Outgoing, has_left: HasLeft) -> None:
        posting = self.link.post(
            sent.frame, self._headers(sent), url=self._endpoint, has_left=has_left
        )
        async with posting as response:
            await self.link.check(response)
            self.condition.become("open")
            await self.link.begin_of(response)  # to its end, or the connection could not stay

    # The stream for what belongs to no request (HTTP-27).

    async def _begin_listening(self) -> None:
        """Listen, and let nothing be asked before the server knows that we do.

        What it has to say while nobody listens, many a server throws away: a tool that asks its
        client on this stream would wait for ever. A server that keeps the head of its answer until
        there is something to say has us wait for `http_listen_seconds`.
        """
        if self._endpoint is not None or self.has_ended:
            return
        stream = self._stream(None)
        self.nursery.start_soon(self._listen, stream)
        with trio.move_on_after(self.link.limits.http_listen_seconds):
            await stream.decided.wait()

    async def _listen(self, stream: EventStream) -> None:
        try:
            await stream.connect()
            while not stream.is_lost:
                await stream.resume()
            logger.info("the server's own stream is given up: %s", stream.trouble)
        except SessionOver:
            if stream.has_begun:  # else the server has no such stream, and says so by 404
                self._be_forgotten()
        except (Refused, ConnectionLost) as error:  # which is normal: 405 (TRAP-42)
            logger.debug("no stream of its own: %s", self.link.loss_of(error))
        except Exception:
            logger.exception("the stream of the server failed")

    # The end.

    def _be_forgotten(self) -> None:
        """The server does not know our session: the end, as soon as all have heard that.

        What was sent just before may have been carried out, or be refused in a moment just so, and
        can then be asked again in another session.
        """
        if self._is_forgotten or self.has_ended:
            return
        self._is_forgotten = True
        if self._has_undecided():
            self.nursery.start_soon(self._end_forgotten)
        else:
            self.end(_OVER)

    def _has_undecided(self) -> bool:
        return any(exchange.is_undecided for exchange in self._open.values())

    async def _end_forgotten(self) -> None:
        with trio.move_on_after(self.link.limits.close_seconds):
            while self._has_undecided():
                await self._decided.park()
        self.end(_OVER)

    def end(self, reason: str) -> None:
        """The session is over: every request is lost, and nothing more will come."""
        if self.has_ended:
            return
        self.has_ended = True
        for exchange in [*self._open.values()]:
            kind = ConnectionLost if exchange.is_unknown else OutcomeUnknown
            self._lose(exchange, kind(reason))
        self.inbox.end()
        self.condition.become("closed", reason)
        self.nursery.cancel_scope.cancel()
