"""The HTTP client channel: Streamable HTTP and HTTP+SSE.

To the session above it is a channel like any other: frames go in, frames come out. What a message
says of itself decides how it is sent: a modern one with its headers, in the manner of its revision;
any other one in the session that `initialize` began. A server that refuses both is asked for the
transport of 2024-11-05.
"""

import logging
import math
import random
from collections.abc import Mapping, Sequence
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias, cast

import attrs
import httpx2
import msgspec
import trio
from msgspec import UNSET, Raw, UnsetType

from mcp_trio._jsonrpc.lines import Oversized, one_line
from mcp_trio._jsonrpc.messages import (
    Batch,
    Decoder,
    ErrorResponse,
    Lost,
    Message,
    Notification,
    Request,
    Response,
    encode_error,
    reencoded_with_id,
)
from mcp_trio._protocol.http_headers import (
    JSON,
    AnnotationError,
    HeaderMismatchError,
    Headers,
    headers_from_body,
    media_type_of,
    parameter_paths,
)
from mcp_trio._protocol.metadata import PROTOCOL_VERSION
from mcp_trio._protocol.methods import DISCOVER, INITIALIZE
from mcp_trio._protocol.versions import STATELESS_CODES
from mcp_trio._transports.concurrency import ErrorGroup, contained
from mcp_trio._transports.connections import OnState, RandomSource, ReportedState, State
from mcp_trio._transports.http_client_requests import (
    EventStream,
    HasLeft,
    Link,
    OldStream,
    Rejected,
    SessionOver,
    is_stream,
    own_client,
    session_id_of,
)
from mcp_trio._transports.inboxes import Item, ReceivedQueue
from mcp_trio.errors import METHOD_NOT_FOUND, ConnectionLost, LocalProtocolError, OutcomeUnknown
from mcp_trio.limits import DEFAULT_LIMITS, Limits

if TYPE_CHECKING:
    import httpx

# --------------------
# What a client's channel reads in the frames that it carries: as much as the headers need.


CANCELLED: Final = "notifications/cancelled"
INITIALIZED: Final = "notifications/initialized"


class _Meta(msgspec.Struct, gc=False):
    version: Any = msgspec.field(name=PROTOCOL_VERSION, default=None)


class _Params(msgspec.Struct, gc=False):
    """The members of any params that headers, or the channel itself, have a use for."""

    meta: _Meta | UnsetType = msgspec.field(name="_meta", default=UNSET)
    name: Any = UNSET
    uri: Any = UNSET
    task_id: Any = msgspec.field(name="taskId", default=UNSET)
    request_id: Any = msgspec.field(name="requestId", default=None)


_NOTHING: Final = _Params()
_decode_params: Final = msgspec.json.Decoder(_Params).decode


@attrs.frozen(eq=False)
class Outgoing:
    """A frame on its way to the server.

    `id` is there for a request, `method` for a notification too; answers have neither. `version` is
    the revision that a modern message says it is made under.
    """

    frame: bytes
    id: int | str | None = None
    method: str | None = None
    version: str | None = None
    _params: Raw | None = None
    _seen: _Params = _NOTHING

    @property
    def tool(self) -> str | None:
        """The name of the tool that is called."""
        is_call = self.method == "tools/call" and isinstance(self._seen.name, str)
        return self._seen.name if is_call else None

    @property
    def cancels(self) -> int | str | None:
        """The id of the request that is cancelled; what is none passes like everything else."""
        request_id = self._seen.request_id
        is_id = self.method == CANCELLED and type(request_id) in {int, str}
        return request_id if is_id else None

    def params(self, *, is_whole: bool) -> Mapping[str, Any]:
        """What headers are made of: all params, or those that have a header of their own."""
        if is_whole and self._params is not None:
            params: dict[str, Any] = msgspec.json.decode(self._params)
            return params
        seen = self._seen
        named = {"name": seen.name, "uri": seen.uri, "taskId": seen.task_id}
        return {name: value for name, value in named.items() if value is not UNSET}


def outgoing(frame: bytes, decoder: Decoder) -> Outgoing:
    """Look into one frame, once."""
    message = decoder.decode(frame)
    if not isinstance(message, Request | Notification):
        return Outgoing(frame)
    seen = _NOTHING if message.params is None else _seen(message.params)
    version = None if seen.meta is UNSET else seen.meta.version
    return Outgoing(
        frame,
        message.id if isinstance(message, Request) else None,
        message.method,
        version if isinstance(version, str) else None,
        message.params,
        seen,
    )


def _seen(params: Raw) -> _Params:
    try:
        return _decode_params(params)
    except msgspec.MsgspecError:  # people's own params, with a `_meta` that is none
        return _NOTHING


class _Version(msgspec.Struct, gc=False):
    version: Any = msgspec.field(name="protocolVersion", default=None)


def agreed_version(result: Raw) -> str | None:
    """The revision that the result of `initialize` names."""
    try:
        version = msgspec.json.decode(result, type=_Version).version
    except msgspec.MsgspecError:
        return None
    return version if isinstance(version, str) else None


# --------------------
# Which arguments of which tools a client repeats in headers: learnt from lists that pass by.


logger = logging.getLogger("mcp_trio")

Paths: TypeAlias = Mapping[str, tuple[str, ...]]


class _Tool(msgspec.Struct, rename="camel", gc=False):
    name: str
    input_schema: dict[str, Any]


class _Frame(msgspec.Struct, tag_field="jsonrpc", tag="2.0", gc=False):
    id: int | str
    result: dict[str, Raw]


@attrs.define(eq=False)
class ToolHeaders:
    """What is known of the tools of one server, from the newest lists (HDR-33).

    At most `tools_max` that have such arguments: of those that were listed longest ago nothing is
    known any more, whether the server has them still or not.
    """

    _tools_max: int = DEFAULT_LIMITS.requests.cache_entries_max
    _paths: dict[str, Paths] = attrs.field(factory=dict[str, Paths], init=False)

    def paths_of(self, tool: str | None) -> Paths | None:
        """Where the arguments are that have a header; None when nothing is known (HDR-34)."""
        return None if tool is None else self._paths.get(tool)

    def learn(self, frame: bytes) -> bytes:
        """Take note of a page of tools; returns it without those that break a rule (HDR-16).

        What is no page of tools comes back as it is, for who knows its type to refuse it.
        """
        try:
            answer = msgspec.json.decode(frame, type=_Frame)
            tools = msgspec.json.decode(answer.result["tools"], type=list[Raw])
        except (msgspec.MsgspecError, KeyError):
            return frame
        kept = [tool for tool in tools if self._is_usable(tool)]
        if len(kept) == len(tools):
            return frame
        answer.result["tools"] = Raw(msgspec.json.encode(kept))
        return msgspec.json.encode(answer)

    def _is_usable(self, raw: Raw) -> bool:
        try:
            tool = msgspec.json.decode(raw, type=_Tool)
        except msgspec.MsgspecError:
            return True
        self._paths.pop(tool.name, None)
        try:
            paths = parameter_paths(tool.input_schema)
        except AnnotationError as error:
            logger.warning("the tool %r is left out: %s", tool.name, error)
            return False
        if paths:
            self._paths[tool.name] = paths
            if len(self._paths) > self._tools_max:
                del self._paths[next(iter(self._paths))]
        return True


# --------------------
# Messages of a client, each a POST of its own, and the streams on which the server speaks.
#
# A request has a task from its POST to its answer, which may come as the body, on a stream, on a
# stream that is resumed, or on another stream altogether. What goes wrong with it fails that
# request alone, as `Lost`; only a server that has forgotten the session ends it.


LIST_TOOLS: Final = "tools/list"

_OVER: Final = "the server has ended the session"

# Faults of the network, of the server and of a caller; what else is raised is one of ours.
_EXPECTED: Final = (httpx2.RequestError, Rejected, ConnectionLost, HeaderMismatchError)


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
        """Return whether nobody knows yet what the server makes of it."""
        return not (self.is_accepted or self.is_unknown)

    @property
    def is_settled(self) -> bool:
        """Return whether its answer has come."""
        return self.settled.is_set()

    def settle(self, linger_seconds: float) -> None:
        """The answer is there; its stream has a moment to end, so that its connection can stay."""
        self.settled.set()
        self.scope.deadline = trio.current_time() + linger_seconds


def _may_resume(exchange: Exchange, stream: EventStream) -> bool:
    """Modern streams are never resumed (MHTTP-25), nor what left us no place to go on from."""
    is_stateless = exchange.sent.version is not None
    return not (is_stateless or stream.last_id is None or stream.is_cut or stream.is_lost)


def _broken(stream: EventStream) -> str:
    large = " behind a message over limits.messages.bytes_max" if stream.is_cut else ""
    words = f"{stream.trouble}{large} before the answer came"
    return f"{words} ({stream.reached})" if stream.reached else words


@attrs.define(kw_only=True, eq=False)
class Exchanges:
    """Everything that goes on between us and one server; its tasks live in `nursery`.

    `is_old` says that the server is first asked for the transport of 2024-11-05. `bytes_left` grows
    while it takes what is not answered.
    """

    link: Link
    inbox: ReceivedQueue
    condition: ReportedState
    decoder: Decoder
    random_source: RandomSource
    is_old: bool = False
    has_ended: bool = attrs.field(default=False, init=False)
    bytes_left: int = attrs.field(default=0, init=False)
    nursery: trio.Nursery = attrs.field(init=False)
    _open: dict[int | str, Exchange] = attrs.field(factory=dict[int | str, Exchange], init=False)
    _tools: ToolHeaders = attrs.field(init=False)
    _stateless_version: str | None = attrs.field(default=None, init=False)
    _endpoint: httpx2.URL | None = attrs.field(default=None, init=False)
    _is_forgotten: bool = attrs.field(default=False, init=False)
    _decided: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)

    def __attrs_post_init__(self) -> None:
        self._tools = ToolHeaders(self.link.limits.requests.cache_entries_max)

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
        if isinstance(error, HeaderMismatchError):
            return LocalProtocolError(str(error))
        loss = self.link.loss_of(error)
        if isinstance(error, httpx2.RequestError):
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
        except Rejected as rejected:
            await self._take_rejection(exchange, rejected)
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
            random_source=self.random_source,
            condition=self.condition,
            away_seconds=math.inf if exchange is None else self.link.limits.http.resume_seconds,
        )

    def _headers(self, sent: Outgoing) -> Headers:
        """What goes along: of the message itself, of the session, or nothing."""
        version = sent.version
        if version is None and self.link.version is None and sent.method is not None:
            version = self._stateless_version  # modern notifications do not say it
        if self._endpoint is not None or sent.method == INITIALIZE:
            return []
        if version is None or sent.method is None:
            return self.link.of_session()
        paths = self._tools.paths_of(sent.tool)
        params = sent.params(is_whole=bool(paths))
        return headers_from_body(version=version, method=sent.method, params=params, paths=paths)

    # Answers.

    async def take(self, data: bytes | Oversized, exchange: Exchange | None = None) -> None:
        """A message has come, on the stream of `exchange` or on none; waits while many wait."""
        if isinstance(data, Oversized):
            self.inbox.put(data)
        else:
            frame = one_line(data)
            message = self.decoder.decode(frame)
            if isinstance(message, ErrorResponse) and message.id is None and exchange is not None:
                frame = reencoded_with_id(frame, exchange.id)
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
            exchange.settle(self.link.limits.shutdown.close_seconds)
        return exchange

    def _learnt(self, sent: Outgoing, answer: Response, frame: bytes) -> bytes:
        """What results tell of the headers that are due from now on."""
        if sent.method == INITIALIZE:
            self.link.version = agreed_version(answer.result)
        if sent.version is None:
            return frame
        self._stateless_version = sent.version
        return self._tools.learn(frame) if sent.method == LIST_TOOLS else frame

    async def _take_body(self, response: httpx2.Response, exchange: Exchange) -> None:
        """The answer as a whole (HTTP-12)."""
        limits = self.link.limits
        body = await self.link.body(response, bytes_max=limits.messages.bytes_max)
        if isinstance(body, Oversized):
            self.inbox.put(body)
            raise OutcomeUnknown(
                f"an answer over limits.messages.bytes_max ({limits.messages.bytes_max})"
            )
        if body and media_type_of(response.headers.get("content-type")) != JSON:
            raise Rejected(response, body)
        if body:
            await self.take(body, exchange)
        if not exchange.is_settled:
            raise OutcomeUnknown(f"HTTP {response.status_code} without an answer in it")

    async def _take_rejection(self, exchange: Exchange, rejected: Rejected) -> None:
        """Clients decide by the body, and by the status only where that says nothing (TRAP-53)."""
        method = exchange.sent.method
        answer = self._error_in(rejected.body, exchange)
        if answer is not None:
            await self.take(answer, exchange)
        elif rejected.is_client_error and method == DISCOVER:
            unknown = f"HTTP {rejected.status} {rejected.phrase}"
            await self.take(encode_error(exchange.id, METHOD_NOT_FOUND, unknown), exchange)
        elif rejected.is_client_error and method == INITIALIZE and self._endpoint is None:
            await self._fall_back(exchange, rejected)
        else:
            raise rejected

    def _error_in(self, body: bytes, exchange: Exchange) -> bytes | None:
        """The body as the answer to its request; some servers have another id in it, or none.

        One without an id does not answer a client's first words, but for what only modern servers
        say (SSE-12): it may come from a server that takes no POST here, and knows nothing newer
        than HTTP+SSE.
        """
        frame = one_line(body)
        rejection = self.decoder.decode(frame)
        if not isinstance(rejection, ErrorResponse):
            return None
        is_vague = rejection.id is None and rejection.error.code not in STATELESS_CODES
        if is_vague and exchange.sent.method in (DISCOVER, INITIALIZE):
            return None
        return reencoded_with_id(frame, exchange.id)

    # A server that knows nothing newer than HTTP+SSE (SSE-09 to SSE-12).

    @property
    def has_endpoint(self) -> bool:
        """Return whether the server is of these."""
        return self._endpoint is not None

    async def _find_endpoint(self) -> str:
        """Ask for the stream that names it; what was the trouble, if there is none."""
        old = OldStream(link=self.link, take=self.take)
        self.nursery.start_soon(self._hear_old, old)
        await old.decided.wait()
        self._endpoint = old.endpoint
        return old.trouble

    async def _fall_back(self, exchange: Exchange, rejected: Rejected) -> None:
        trouble = await self._find_endpoint()
        if self._endpoint is None:
            loss = rejected.loss(self.link)
            words = f"{loss}; as for HTTP+SSE: {trouble}"
            raise ConnectionLost(words, http_status=loss.http_status)
        try:
            await self._post(exchange, self._stream(exchange))
        except Rejected as again:
            await self._take_rejection(exchange, again)

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
        is_stateless = self.link.version is None if exchange is None else exchange.sent.version
        if not is_stateless:
            await self._deliver(sent)
        if exchange is not None:
            self._open.pop(request_id, None)
            exchange.scope.cancel()

    async def _deliver(self, sent: Outgoing) -> bool:
        """Whether the server has taken it, in a time that begins anew with each piece of it."""
        seconds = (
            self.link.limits.messages.write_stall_seconds / 2
        )  # the session ends when all are over
        what = sent.method or "an answer"
        whole = self.bytes_left + len(sent.frame)
        try:
            with trio.fail_after(seconds) as timer_queue:

                def has_left(size: int) -> None:
                    self.bytes_left += size
                    timer_queue.deadline = trio.current_time() + seconds

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
        there is something to say has us wait for `limits.http.get_stream_seconds`.
        """
        if self._endpoint is not None or self.has_ended:
            return
        stream = self._stream(None)
        self.nursery.start_soon(self._listen, stream)
        with trio.move_on_after(self.link.limits.http.get_stream_seconds):
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
        except (Rejected, ConnectionLost) as error:  # which is normal: 405 (TRAP-42)
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
        with trio.move_on_after(self.link.limits.shutdown.close_seconds):
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


@attrs.define(kw_only=True, eq=False, repr=False)
class HttpChannel:
    """The channel to the server at a URL; made by `open_http_channel`.

    A server that cannot be reached fails the requests in flight, each by a `Lost`, and nothing
    else: the next one is tried again. `receive` ends when the server does not know the session any
    more. `state` and `reason` tell how it stands.
    """

    transport: ClassVar[str] = "http"
    is_unfinished: ClassVar[bool] = False
    reports_losses: ClassVar[bool] = True

    _bytes_asked: int = attrs.field(default=0, init=False)
    _link: Link = attrs.field(alias="link")
    _condition: ReportedState = attrs.field(alias="condition")
    _random_source: RandomSource = attrs.field(alias="random_source")
    _has_own_client: bool = attrs.field(alias="has_own_client")
    _is_old: bool = attrs.field(alias="is_old")
    _decoder: Decoder = attrs.field(init=False)
    _inbox: ReceivedQueue = attrs.field(init=False)
    _exchanges: Exchanges = attrs.field(init=False)
    _is_closing: bool = attrs.field(default=False, init=False)
    _has_to_tell: bool = attrs.field(default=False, init=False)
    _begun: trio.Event = attrs.field(factory=trio.Event, init=False)
    _ended: trio.Event = attrs.field(factory=trio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        limits = self._link.limits
        self._decoder = Decoder(json_depth_max=limits.messages.json_depth_max)
        self._inbox = ReceivedQueue(limits.messages.chunk_bytes)
        self._exchanges = Exchanges(
            link=self._link,
            inbox=self._inbox,
            condition=self._condition,
            decoder=self._decoder,
            random_source=self._random_source,
            is_old=self._is_old,
        )

    def __repr__(self) -> str:
        """Without the headers and whatever else has secrets in it."""
        return f"<HttpChannel to {self.name}, {self.state}>"

    @property
    def name(self) -> str:
        """The server's URL, without what may be secret in it."""
        return self._link.name

    @property
    def state(self) -> State:
        """See `ReportedState`."""
        return self._condition.state

    @property
    def reason(self) -> str:
        """Why it is retrying, or closed."""
        return self._condition.reason

    @property
    def is_old(self) -> bool:
        """Return whether the server turned out to speak the transport of 2024-11-05, HTTP+SSE."""
        return self._exchanges.has_endpoint

    # Sending and receiving.

    @property
    def bytes_sent(self) -> int:
        """See `mcp_trio.transports.Channel`."""
        return self._bytes_asked + self._exchanges.bytes_left

    async def send(self, frames: Sequence[bytes]) -> None:
        """See `Channel.send`; a request is sent by a task of its own, all else before this returns.

        Cancelled: the frame that was being sent may have arrived or not; the channel stays usable.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        taken = self.send_nowait(frames)
        for frame in frames[taken:]:
            self._check_open()
            if self._has_started(frame):
                self._bytes_asked += len(frame)
            else:
                await self._exchanges.tell(outgoing(frame, self._decoder))
        await trio.lowlevel.cancel_shielded_checkpoint()

    def send_nowait(self, frames: Sequence[bytes]) -> int:
        """See `mcp_trio.transports.Channel`; only requests go without waiting."""
        self._check_open()
        taken = 0
        while taken < len(frames) and self._has_started(frames[taken]):
            self._bytes_asked += len(frames[taken])
            taken += 1
        return taken

    def _has_started(self, frame: bytes) -> bool:
        """Return whether it is a request, which is on its way now."""
        sent = outgoing(frame, self._decoder)
        if sent.id is None:
            return False
        self._exchanges.start(sent, sent.id)
        return True

    def _check_open(self) -> None:
        if self._is_closing:
            raise trio.ClosedResourceError("this side of the channel was closed")
        if self._exchanges.has_ended:
            raise trio.BrokenResourceError(f"the session is over: {self.reason}")

    async def receive(self) -> Sequence[Item]:
        """See `Channel.receive`; empty when the server has ended the session."""
        return await self._inbox.take()

    # The task that everything happens in.

    async def begin(self) -> None:
        """Start it; nothing is sent."""
        self._condition.begin()
        trio.lowlevel.spawn_system_task(self._live, context=copy_context())
        with trio.CancelScope(shield=True):  # or nobody would be there to close it
            await self._begun.wait()

    async def _live(self) -> None:
        """No nursery of other people's is tied to what goes wrong here."""
        try:
            with contained(self._contain):
                async with trio.open_nursery() as nursery:
                    self._exchanges.nursery = nursery
                    self._begun.set()
                    await trio.sleep_forever()
        finally:
            await self._leave()
            self._ended.set()

    def _contain(self, faults: ErrorGroup) -> None:
        logger.error("the HTTP channel failed", exc_info=faults)
        self._exchanges.end("the HTTP channel failed")

    # Closing.

    async def aclose(self) -> None:
        """See `Channel.aclose`: ends all streams, and tells the server that the session is over.

        Takes `limits.shutdown.close_seconds` for that, and as many again where people's code hangs;
        cancellation does not shorten it. A client that was given stays open.
        """
        if not self._is_closing:
            self._is_closing = True
            self._has_to_tell = self._link.session_id is not None and not self._exchanges.has_ended
            self._inbox.close()
            self._exchanges.end("closed on this side")
        with trio.move_on_after(2 * self._link.limits.shutdown.close_seconds, shield=True):
            await self._ended.wait()
        await trio.lowlevel.checkpoint()

    async def _leave(self) -> None:
        """What is done last; in a run that ends, only what needs no answer."""
        with trio.move_on_after(self._link.limits.shutdown.close_seconds, shield=True):
            if self._has_to_tell:
                await self._delete()
        if self._has_own_client:
            with trio.move_on_after(self._link.limits.shutdown.close_seconds, shield=True):
                await self._link.http.aclose()

    async def _delete(self) -> None:
        try:
            await self._link.delete()
        except Exception as error:
            logger.debug("the end of the session was not delivered: %s", error)


async def open_http_channel(
    url: str,
    *,
    http: "httpx2.AsyncClient | httpx.AsyncClient | None" = None,
    headers: Mapping[str, str] | None = None,
    limits: Limits = DEFAULT_LIMITS,
    on_state: OnState | None = None,
    random_source: RandomSource = random.random,
    is_old: bool = False,
) -> HttpChannel:
    """A channel to the server at `url`; nothing is sent before the first frame.

    `http` brings proxies, certificates, authorization and the time that connecting may take; it is
    used and not closed, and how long an answer may take is not for it to say. `headers` go along
    with each request. `on_state` is told how the connection stands, with a reason. `random_source`
    spreads the pauses before a stream is resumed. `is_old` says that the server was found to speak
    HTTP+SSE only: that is tried first, and everything else if it does not any more.

    Raises:
        ValueError: `url` is no URL of HTTP.
    """
    parsed = parsed_url(url)
    # A client of httpx has the methods of httpx2's; only the classes of its objects differ.
    client = own_client(parsed) if http is None else cast("httpx2.AsyncClient", http)
    channel = HttpChannel(
        link=Link(http=client, url=parsed, headers=headers or {}, limits=limits),
        condition=ReportedState(on_state),
        random_source=random_source,
        has_own_client=http is None,
        is_old=is_old,
    )
    await channel.begin()
    return channel


def parsed_url(url: str) -> httpx2.URL:
    """The URL of a server.

    Raises:
        ValueError: It is none of HTTP.
    """
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL as error:
        raise ValueError(f"no URL: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ValueError("the URL of a server begins with http:// or https:// and its host")
    return parsed
