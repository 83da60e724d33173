"""The HTTP client channel: Streamable HTTP, and HTTP+SSE for older servers.

The session writes messages to the channel and reads messages from it, as from any other channel.
The channel reads the few members of a message that decide how it is sent: a stateless message with
the headers of its protocol version, a legacy one with the session id from the response to
`initialize`. If a server rejects both, the channel tries HTTP+SSE, the transport of 2024-11-05.

https://modelcontextprotocol.io/specification/2025-11-25/basic/transports#streamable-http
"""

import logging
import math
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

import attrs
import httpx2
import msgspec
import trio
from msgspec import UNSET, Raw, UnsetType

from mcp_trio._jsonrpc.channel_messages import Lost
from mcp_trio._jsonrpc.lines import Oversized, one_line
from mcp_trio._jsonrpc.messages import (
    Batch,
    Decoder,
    ErrorResponse,
    Notification,
    Request,
    Response,
    decoder_for,
    encode_error,
    with_id_replaced,
)
from mcp_trio._protocol.http_headers import (
    JSON,
    HeaderMismatchError,
    Headers,
    ParameterHeaderError,
    ParameterPaths,
    headers_from_body,
    media_type_of,
    parameter_paths,
)
from mcp_trio._protocol.metadata import PROTOCOL_VERSION
from mcp_trio._protocol.methods import CALL_TOOL, CANCELLED, DISCOVER, INITIALIZE, INITIALIZED
from mcp_trio._protocol.versions import STATELESS_CODES
from mcp_trio._transports.channel import CLOSED_TEXT, Received, ReceivedQueue
from mcp_trio._transports.concurrency import ErrorGroup, Wakeup, errors_handled_by
from mcp_trio._transports.connections import OnState, RandomSource, ReportedState, State
from mcp_trio._transports.http_client_requests import (
    EndpointClient,
    EventStream,
    HttpSseStream,
    SessionNotFound,
    UnexpectedResponse,
    client_for,
    is_event_stream,
    parsed_url,
    session_id_of,
)
from mcp_trio._transports.peer_log import PeerLog
from mcp_trio.errors import METHOD_NOT_FOUND, ConnectionLost, LocalProtocolError, OutcomeUnknown
from mcp_trio.limits import DEFAULT_LIMITS, Limits

if TYPE_CHECKING:
    import httpx

logger = logging.getLogger("mcp_trio")

_LIST_TOOLS: Final = "tools/list"

# Messages to send ---------------------------------------------------------------------------------


class _Meta(msgspec.Struct, gc=False):
    version: Any = msgspec.field(name=PROTOCOL_VERSION, default=None)


class _Params(msgspec.Struct, frozen=True, gc=False):
    """The members of `params` that decide how a message is sent."""

    meta: _Meta | UnsetType = msgspec.field(name="_meta", default=UNSET)
    name: Any = UNSET
    uri: Any = UNSET
    task_id: Any = msgspec.field(name="taskId", default=UNSET)
    request_id: Any = msgspec.field(name="requestId", default=None)


_NO_PARAMS: Final = _Params()
_decode_params: Final = msgspec.json.Decoder(_Params).decode


class OutgoingMessage(msgspec.Struct, frozen=True, gc=False, eq=False):
    """A message to send, with the members that decide how it is sent.

    Attributes:
        id: The id of a request; None for other messages.
        method: The method of a request or notification; None for a response.
        version: The protocol version that a stateless message states.
    """

    data: bytes
    id: int | str | None = None
    method: str | None = None
    version: str | None = None
    _raw_params: Raw | None = None
    _params: _Params = _NO_PARAMS

    @property
    def tool(self) -> str | None:
        """The name of the tool that is called; None for other messages."""
        is_call = self.method == CALL_TOOL and isinstance(self._params.name, str)
        return self._params.name if is_call else None

    @property
    def cancelled_id(self) -> int | str | None:
        """The id of the request that is cancelled; None for other messages, and for invalid ids."""
        request_id = self._params.request_id
        is_id = self.method == CANCELLED and type(request_id) in {int, str}
        return request_id if is_id else None

    def header_params(self, *, with_arguments: bool) -> Mapping[str, Any]:
        """Return the params that headers can repeat, with the arguments of a tool if need be."""
        if with_arguments and self._raw_params is not None:
            params: dict[str, Any] = msgspec.json.decode(self._raw_params)
            return params
        known = self._params
        named = {"name": known.name, "uri": known.uri, "taskId": known.task_id}
        return {name: value for name, value in named.items() if value is not UNSET}


def outgoing_message(data: bytes, decoder: Decoder) -> OutgoingMessage:
    """Decode the members of a message that decide how it is sent."""
    message = decoder.decode(data)
    if not isinstance(message, Request | Notification):
        return OutgoingMessage(data)
    params = _NO_PARAMS
    if message.params is not None:
        # The `_meta` of a user's own method may be anything.
        with suppress(msgspec.MsgspecError):
            params = _decode_params(message.params)
    version = None if params.meta is UNSET else params.meta.version
    return OutgoingMessage(
        data,
        message.id if isinstance(message, Request) else None,
        message.method,
        version if isinstance(version, str) else None,
        message.params,
        params,
    )


class _InitializeResult(msgspec.Struct, gc=False):
    version: Any = msgspec.field(name="protocolVersion", default=None)


def agreed_version(result: Raw) -> str | None:
    """Return the protocol version in the result of `initialize`; None if there is none."""
    try:
        version = msgspec.json.decode(result, type=_InitializeResult).version
    except msgspec.MsgspecError:
        return None
    return version if isinstance(version, str) else None


# Parameter headers --------------------------------------------------------------------------------


class _Tool(msgspec.Struct, rename="camel", gc=False):
    name: str
    input_schema: dict[str, Any]


class _Page(msgspec.Struct, tag_field="jsonrpc", tag="2.0", gc=False):
    """A response to `tools/list`."""

    id: int | str
    result: dict[str, Raw]


@attrs.define(eq=False, repr=False)
class ToolHeaders:
    """The arguments of a server's tools that a client repeats in headers.

    `learn` takes them from the lists that the server sends. At most `tools_max` tools are kept; the
    one that was listed longest ago is dropped first.
    """

    _tools_max: int = DEFAULT_LIMITS.requests.cache_entries_max
    _paths: dict[str, ParameterPaths] = attrs.field(factory=dict[str, ParameterPaths], init=False)

    def paths_of(self, tool: str | None) -> ParameterPaths | None:
        """Return the paths of a tool's arguments by header; None if the tool is not known."""
        return None if tool is None else self._paths.get(tool)

    def learn(self, data: bytes) -> bytes:
        """Remember the arguments of the tools in a response to `tools/list`.

        Returns:
            The response without the tools whose `x-mcp-header` is invalid. A response that is not a
            page of tools is returned unchanged; the session rejects it.
        """
        try:
            page = msgspec.json.decode(data, type=_Page)
            tools = msgspec.json.decode(page.result["tools"], type=list[Raw])
        except (msgspec.MsgspecError, UnicodeDecodeError, KeyError):
            return data
        kept: list[Raw] = []
        for raw in tools:
            try:
                tool = msgspec.json.decode(raw, type=_Tool)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                kept.append(raw)
                continue
            self._paths.pop(tool.name, None)
            try:
                paths = parameter_paths(tool.input_schema)
            except ParameterHeaderError as error:
                text = "the tool %r is dropped from the server's list: %s"
                logger.warning(text, tool.name, error)
                continue
            kept.append(raw)
            if paths:
                self._paths[tool.name] = paths
                if len(self._paths) > self._tools_max:
                    del self._paths[next(iter(self._paths))]
        if len(kept) == len(tools):
            return data
        page.result["tools"] = Raw(msgspec.json.encode(kept))
        return msgspec.json.encode(page)


# The channel --------------------------------------------------------------------------------------


_SESSION_ENDED: Final = "the server has ended the session"

# Errors of the network, of the server and of a caller. Any other exception is a bug, and logged.
_EXPECTED: Final = (
    httpx2.RequestError,
    UnexpectedResponse,
    ConnectionLost,
    HeaderMismatchError,
)


@attrs.define(eq=False, repr=False)
class _PendingRequest:
    """A request that was sent, until its response arrives.

    Attributes:
        is_accepted: Whether the server has begun a successful HTTP response.
        is_session_unknown: Whether the server has answered that it does not know the session.
        answered: Set when the JSON-RPC response has arrived.
    """

    message: OutgoingMessage
    id: int | str
    is_accepted: bool = attrs.field(default=False, init=False)
    is_session_unknown: bool = attrs.field(default=False, init=False)
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    answered: trio.Event = attrs.field(factory=trio.Event, init=False)


@attrs.define(kw_only=True, eq=False, repr=False)
class HttpChannel:
    """The channel to the server at a URL; made by `open_http_channel`.

    Each message is sent by a POST. A request has a task from its POST until its response arrives:
    in the body, on an event stream, on a stream that was resumed, or on another stream. A request
    that fails arrives as a `Lost`; later requests are sent all the same. `receive` returns an empty
    list when the server does not know the session any more.
    """

    transport: ClassVar[str] = "http"
    is_unfinished: ClassVar[bool] = False
    reports_losses: ClassVar[bool] = True

    _endpoint_client: EndpointClient = attrs.field(alias="endpoint_client")
    _reported_state: ReportedState = attrs.field(alias="reported_state")
    _random_source: RandomSource = attrs.field(alias="random_source")
    _has_own_client: bool = attrs.field(alias="has_own_client")
    _tries_http_sse_first: bool = attrs.field(alias="tries_http_sse_first")

    _decoder: Decoder = attrs.field(init=False)
    _inbox: ReceivedQueue = attrs.field(init=False)
    _tools: ToolHeaders = attrs.field(init=False)
    _log: PeerLog = attrs.field(factory=PeerLog, init=False)
    _pending: dict[int | str, _PendingRequest] = attrs.field(
        factory=dict[int | str, _PendingRequest], init=False
    )
    # The version of the latest stateless request, which notifications do not state themselves.
    _stateless_version: str | None = attrs.field(default=None, init=False)
    # The URL in the event `endpoint` of an HTTP+SSE server, to which messages are posted; None for
    # a Streamable HTTP server.
    _message_url: httpx2.URL | None = attrs.field(default=None, init=False)

    # The bytes of requests count when their tasks start, those of other messages as they are sent.
    _request_bytes: int = attrs.field(default=0, init=False)
    _other_bytes: int = attrs.field(default=0, init=False)

    _nursery: trio.Nursery = attrs.field(init=False)
    _started: trio.Event = attrs.field(factory=trio.Event, init=False)
    _stopped: trio.Event = attrs.field(factory=trio.Event, init=False)
    # Wakes `_end_unknown_session` when a request has an HTTP status, or has failed.
    _http_status_known: Wakeup = attrs.field(factory=Wakeup, init=False)
    _is_session_unknown: bool = attrs.field(default=False, init=False)
    _has_ended: bool = attrs.field(default=False, init=False)
    _is_closing: bool = attrs.field(default=False, init=False)
    _deletes_session: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        limits = self._endpoint_client.limits
        self._decoder = decoder_for(limits.messages)
        self._inbox = ReceivedQueue(limits.messages.chunk_bytes)
        self._tools = ToolHeaders(limits.requests.cache_entries_max)

    def __repr__(self) -> str:
        """Show nothing secret, such as headers."""
        return f"<HttpChannel to {self.name}, {self.state}>"

    @property
    def name(self) -> str:
        """The server's URL, without the parts that may be secret."""
        return self._endpoint_client.name

    @property
    def state(self) -> State:
        """The state of the connection: "connecting", "open", "retrying" or "closed"."""
        return self._reported_state.state

    @property
    def reason(self) -> str:
        """The reason of the state "retrying" or "closed"; empty in other states."""
        return self._reported_state.reason

    @property
    def uses_http_sse(self) -> bool:
        """True if the server turned out to have the transport of 2024-11-05, HTTP+SSE."""
        return self._message_url is not None

    # Sending and receiving

    @property
    def bytes_sent(self) -> int:
        """The bytes that were sent; grows while a `send` makes progress."""
        return self._request_bytes + self._other_bytes

    async def send(self, messages: Sequence[bytes]) -> None:
        """Send messages; return when the server has accepted all that are not requests.

        A request is sent by a task of its own, so that this method does not wait for its response.
        Cancelled: the current message may have arrived or not; the channel stays usable.

        Raises:
            trio.ClosedResourceError: This side was closed.
            trio.BrokenResourceError: The session has ended.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        started = self.send_nowait(messages)
        for data in messages[started:]:
            self._check_open()
            message = outgoing_message(data, self._decoder)
            if not self._start_request(message):
                await self._send_without_response(message)
        await trio.lowlevel.cancel_shielded_checkpoint()

    def send_nowait(self, messages: Sequence[bytes]) -> int:
        """Send the requests at the beginning of `messages`; return their number."""
        self._check_open()
        started = 0
        for data in messages:
            if not self._start_request(outgoing_message(data, self._decoder)):
                break
            started += 1
        return started

    def _check_open(self) -> None:
        if self._is_closing:
            raise trio.ClosedResourceError(CLOSED_TEXT)
        if self._has_ended:
            raise trio.BrokenResourceError(f"the session is over: {self.reason}")

    async def receive(self) -> Sequence[Received]:
        """Return the messages that have arrived, at least one; empty when the session has ended.

        Cancellation loses no message.

        Raises:
            trio.ClosedResourceError: This side was closed.
        """
        return await self._inbox.take()

    # Requests

    def _start_request(self, message: OutgoingMessage) -> bool:
        """Start the task of a request; return False for other messages."""
        if message.id is None:
            return False
        request = self._pending[message.id] = _PendingRequest(message, message.id)
        self._nursery.start_soon(self._run_request, request)
        self._request_bytes += len(message.data)
        return True

    async def _run_request(self, request: _PendingRequest) -> None:
        try:
            with request.scope:
                await self._send_request(request)
        except SessionNotFound:
            request.is_session_unknown = True
            self._end_unknown_session()
        except Exception as error:
            if not isinstance(error, _EXPECTED):
                logger.exception("an HTTP request failed")
            self._fail(request, self._loss_from(error))
        finally:
            self._http_status_known.wake()

    async def _send_request(self, request: _PendingRequest) -> None:
        """Send a request, and return when its response has arrived."""
        if request.message.method == INITIALIZE:
            self._endpoint_client.session_id = self._endpoint_client.version = None
            if self._tries_http_sse_first:
                await self._find_endpoint()
        try:
            stream = await self._post_request(request)
        except UnexpectedResponse as unexpected:
            stream = await self._handle_unexpected_response(request, unexpected)
        if self._message_url is not None:
            await request.answered.wait()
        if stream is None:  # the response was the body
            return
        is_stateless = request.message.version is not None
        while not request.answered.is_set() and request.id in self._pending:
            # Streams of stateless requests cannot be resumed, nor can streams without event ids.
            is_resumable = stream.last_event_id is not None and not is_stateless
            if not is_resumable or stream.is_oversized or stream.exceeded_limit:
                text = stream.end_reason
                if stream.is_oversized:
                    text += " after a message over limits.messages.bytes_max"
                else:
                    self._reported_state.change("retrying", stream.end_reason)
                limit = f" ({stream.exceeded_limit})" if stream.exceeded_limit else ""
                raise OutcomeUnknown(f"{text} before the response arrived{limit}")
            await stream.resume()

    async def _post_request(self, request: _PendingRequest) -> EventStream | None:
        """POST a request, and read its response; return the event stream if that was the body."""
        stream: EventStream | None = None
        message = request.message
        headers = self._headers(message)
        async with self._endpoint_client.post(
            message.data, headers, url=self._message_url
        ) as response:
            await self._endpoint_client.check_success(response)
            self._reported_state.change("open")
            request.is_accepted = True
            self._http_status_known.wake()
            if message.method == INITIALIZE:
                self._endpoint_client.session_id = session_id_of(response)
            if is_event_stream(response):
                stream = self._event_stream(request)
                await stream.read(response)
            elif self._message_url is not None:
                await self._endpoint_client.body_prefix(response)
            else:
                bytes_max = self._endpoint_client.limits.messages.bytes_max
                body = await self._endpoint_client.body(response, bytes_max=bytes_max)
                if isinstance(body, Oversized):
                    self._inbox.put(body)
                    text = f"the response is over limits.messages.bytes_max ({bytes_max})"
                    raise OutcomeUnknown(text)
                if body and media_type_of(response.headers.get("content-type")) != JSON:
                    raise UnexpectedResponse(response, body)
                if body:
                    await self._pass_to_session(body, request)
                if not request.answered.is_set():
                    text = f"the server answered HTTP {response.status_code}"
                    raise OutcomeUnknown(f"{text} without a JSON-RPC response")
        return stream

    def _event_stream(self, request: _PendingRequest | None) -> EventStream:
        limits = self._endpoint_client.limits
        return EventStream(
            endpoint_client=self._endpoint_client,
            on_message=partial(self._pass_to_session, request=request),
            random_source=self._random_source,
            reported_state=self._reported_state,
            resume_seconds=math.inf if request is None else limits.http.resume_seconds,
        )

    def _headers(self, message: OutgoingMessage) -> Headers:
        """Return the headers of a stateless message, or those of the legacy session."""
        version = message.version
        if version is None and self._endpoint_client.version is None and message.method is not None:
            version = self._stateless_version
        if self._message_url is not None or message.method == INITIALIZE:
            return []
        if version is None or message.method is None:
            return self._endpoint_client.session_headers()
        paths = self._tools.paths_of(message.tool)
        params = message.header_params(with_arguments=bool(paths))
        return headers_from_body(version=version, method=message.method, params=params, paths=paths)

    def _loss_from(self, error: Exception) -> ConnectionLost | LocalProtocolError:
        if isinstance(error, HeaderMismatchError):
            return LocalProtocolError(str(error))
        loss = self._endpoint_client.loss_from(error)
        if isinstance(error, httpx2.RequestError):
            self._reported_state.change("retrying", str(loss))
        return loss

    def _fail(self, request: _PendingRequest, loss: ConnectionLost | LocalProtocolError) -> None:
        """Report the failure of a request, unless it has been answered or cancelled."""
        if self._pending.pop(request.id, None) is None:
            return
        if request.is_accepted and type(loss) is ConnectionLost:
            cause, loss = loss, OutcomeUnknown(loss.reason, http_status=loss.http_status)
            loss.__cause__ = cause
        self._inbox.put(Lost(request.id, loss))

    # Responses, and other messages of the server

    async def _pass_to_session(
        self, data: bytes | Oversized, request: _PendingRequest | None = None
    ) -> None:
        """Pass a received message to the session, and wait until there is room for the next one.

        A response finishes its request. A list of tools is passed on without the unusable ones.
        `request` is the one on whose stream or in whose response the message arrived.
        """
        if isinstance(data, Oversized):
            self._inbox.put(data)
        else:
            data = one_line(data)
            message = self._decoder.decode(data)
            if isinstance(message, ErrorResponse) and message.id is None and request is not None:
                data = with_id_replaced(data, request.id)
                self._finish(request.id)
            for each in message.messages if isinstance(message, Batch) else (message,):
                if not isinstance(each, Response | ErrorResponse):
                    continue
                answered = self._finish(each.id)
                if answered is None or isinstance(each, ErrorResponse):
                    continue
                if answered.message.method == INITIALIZE:
                    self._endpoint_client.version = agreed_version(each.result)
                if answered.message.version is not None:
                    self._stateless_version = answered.message.version
                    if answered.message.method == _LIST_TOOLS:
                        data = self._tools.learn(data)
            self._inbox.put(data)
        await self._inbox.room()

    def _finish(self, request_id: int | str | None) -> _PendingRequest | None:
        """End a request that is answered, and return it; None if there is no such request.

        Its stream gets `limits.shutdown.close_seconds` to end by itself, because the connection can
        be used again only then.
        """
        request = None if request_id is None else self._pending.pop(request_id, None)
        if request is not None:
            request.answered.set()
            linger_seconds = self._endpoint_client.limits.shutdown.close_seconds
            request.scope.deadline = trio.current_time() + linger_seconds
        return request

    async def _handle_unexpected_response(
        self, request: _PendingRequest, unexpected: UnexpectedResponse
    ) -> EventStream | None:
        """Interpret an unsuccessful response by its body, or else by its HTTP status.

        Returns:
            The event stream of another response, if the request was sent again.

        https://modelcontextprotocol.io/specification/2025-11-25/basic/transports#backwards-compatibility
        """
        method = request.message.method
        data = one_line(unexpected.body)
        error = self._decoder.decode(data)
        is_error = isinstance(error, ErrorResponse)
        # A server that has only HTTP+SSE accepts no POST at this URL, and may reject it by an error
        # without an id. So such an error is no response to the first request of a client, unless
        # only stateless servers send its code.
        if isinstance(error, ErrorResponse) and method in (DISCOVER, INITIALIZE):
            is_error = error.id is not None or error.error.code in STATELESS_CODES
        if is_error:
            # Some servers send another id, or none.
            await self._pass_to_session(with_id_replaced(data, request.id), request)
        elif unexpected.is_client_error and method == DISCOVER:
            text = f"HTTP {unexpected.status} {unexpected.phrase}"
            await self._pass_to_session(encode_error(request.id, METHOD_NOT_FOUND, text), request)
        elif unexpected.is_client_error and method == INITIALIZE and self._message_url is None:
            # The server may have HTTP+SSE: send `initialize` again.
            reason = await self._find_endpoint()
            if self._message_url is None:
                loss = unexpected.loss(self._endpoint_client)
                text = f"{loss}; as for HTTP+SSE: {reason}"
                raise ConnectionLost(text, http_status=loss.http_status)
            try:
                return await self._post_request(request)
            except UnexpectedResponse as again:
                return await self._handle_unexpected_response(request, again)
        else:
            raise unexpected
        return None

    # HTTP+SSE

    async def _find_endpoint(self) -> str:
        """Open the stream of an HTTP+SSE server; return why there is none, or an empty text."""
        stream = HttpSseStream(
            endpoint_client=self._endpoint_client, on_message=self._pass_to_session
        )

        async def read() -> None:
            await stream.run()
            if stream.endpoint is not None:
                self._end(stream.end_reason)

        self._nursery.start_soon(read)
        await stream.was_tried.wait()
        self._message_url = stream.endpoint
        return stream.end_reason

    # Notifications, and responses to the server

    async def _send_without_response(self, message: OutgoingMessage) -> None:
        """Send a message that is not a request, and wait until the server has accepted it.

        The wait keeps these messages in order. A message that cannot be delivered is logged.
        """
        request_id = message.cancelled_id
        if request_id is None:
            if await self._deliver(message) and message.method == INITIALIZED:
                await self._start_standalone_stream()
            return
        # The end of a request's stream is the cancellation; a legacy server is notified, too.
        # The server may end the stream before it accepts the notification: that is no loss.
        request = self._pending.pop(request_id, None)
        if request is None:
            is_legacy = self._endpoint_client.version is not None
        else:
            is_legacy = request.message.version is None
        if is_legacy:
            await self._deliver(message)
        if request is not None:
            request.scope.cancel()

    async def _deliver(self, message: OutgoingMessage) -> bool:
        """POST a message; return whether the server has accepted it.

        The time limit starts again whenever a part of the message has been sent. It is half of
        `limits.messages.write_stall_seconds`, after which the session ends.
        """
        seconds = self._endpoint_client.limits.messages.write_stall_seconds / 2
        kind = message.method or "a response"
        bytes_after = self._other_bytes + len(message.data)
        try:
            with trio.fail_after(seconds) as stall_timeout:

                def on_progress(size: int) -> None:
                    self._other_bytes += size
                    stall_timeout.deadline = trio.current_time() + seconds

                headers = self._headers(message)
                async with self._endpoint_client.post(
                    message.data, headers, url=self._message_url, on_progress=on_progress
                ) as response:
                    await self._endpoint_client.check_success(response)
                    self._reported_state.change("open")
                    # The connection can be used again only after the body.
                    await self._endpoint_client.body_prefix(response)
        except SessionNotFound:
            self._end_unknown_session()
        except trio.TooSlowError:
            self._log.report("not accepted", f"{kind} was not accepted within {seconds:g} s")
        except Exception as error:
            self._log.report("not delivered", f"{kind} was not delivered: {self._loss_from(error)}")
        else:
            return True
        finally:
            self._other_bytes = bytes_after
        return False

    # The standalone stream, for the server's own requests and notifications

    async def _start_standalone_stream(self) -> None:
        """Open the standalone stream, and wait until the server has accepted it.

        Many servers drop their messages while there is no such stream: a tool that sends a request
        to its client would wait for ever. Some servers send the headers only with the first event,
        so this waits for at most `limits.http.get_stream_seconds`.

        https://modelcontextprotocol.io/specification/2025-11-25/basic/transports#listening-for-messages-from-the-server
        """
        if self._message_url is not None or self._has_ended:
            return
        stream = self._event_stream(None)

        def log_end(reason: object) -> None:
            # Many servers have no such stream; but the user has to learn of the end of one.
            level = logging.WARNING if stream.was_accepted else logging.DEBUG
            text = "%s sends no more notifications, as its standalone stream has ended: %s"
            logger.log(level, text, self.name, reason)

        async def read() -> None:
            try:
                await stream.connect()
                while not stream.exceeded_limit:
                    await stream.resume()
                log_end(f"{stream.end_reason} ({stream.exceeded_limit})")
            except SessionNotFound:
                # Before the first success, 404 means that the server has no standalone stream.
                if stream.was_accepted:
                    self._end_unknown_session()
            except (UnexpectedResponse, ConnectionLost) as error:  # usually 405
                log_end(self._endpoint_client.loss_from(error))
            except Exception:
                logger.exception("the standalone stream failed")

        self._nursery.start_soon(read)
        with trio.move_on_after(self._endpoint_client.limits.http.get_stream_seconds):
            await stream.was_tried.wait()

    # The end of the session

    def _end_unknown_session(self) -> None:
        """End the session, which the server does not know, once all requests have an HTTP status.

        Requests that were sent shortly before may have been carried out. The others will be
        answered 404 in a moment, and can be sent again in a new session.
        """

        def has_request_without_status() -> bool:
            pending = self._pending.values()
            return any(not (each.is_accepted or each.is_session_unknown) for each in pending)

        async def end_later() -> None:
            with trio.move_on_after(self._endpoint_client.limits.shutdown.close_seconds):
                while has_request_without_status():
                    await self._http_status_known.wait()
            self._end(_SESSION_ENDED)

        if self._is_session_unknown or self._has_ended:
            return
        self._is_session_unknown = True
        if has_request_without_status():
            self._nursery.start_soon(end_later)
        else:
            self._end(_SESSION_ENDED)

    def _end(self, reason: str) -> None:
        """End the session: all pending requests fail, and no more messages arrive."""
        if self._has_ended:
            return
        self._has_ended = True
        for request in [*self._pending.values()]:
            kind = ConnectionLost if request.is_session_unknown else OutcomeUnknown
            self._fail(request, kind(reason))
        self._inbox.end()
        self._reported_state.change("closed", reason)
        self._nursery.cancel_scope.cancel()

    # The channel's task

    async def start(self) -> None:
        """Start the task that all requests run in; nothing is sent."""
        self._reported_state.begin()
        trio.lowlevel.spawn_system_task(self._run, context=copy_context())
        with trio.CancelScope(shield=True):  # a cancelled caller could not close the channel
            await self._started.wait()

    async def _run(self) -> None:
        """Hold the nursery of the channel, so that its failures cancel no task of the user."""

        def report_failure(errors: ErrorGroup) -> None:
            faults = errors.split(KeyboardInterrupt)[1]
            if faults is not None:
                logger.error("the HTTP channel failed", exc_info=faults)
            self._end("the HTTP channel failed")

        try:
            with errors_handled_by(report_failure):
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    self._started.set()
                    await trio.sleep_forever()
        finally:
            close_seconds = self._endpoint_client.limits.shutdown.close_seconds
            with trio.move_on_after(close_seconds, shield=True):
                if self._deletes_session:
                    try:
                        await self._endpoint_client.delete()
                    except Exception as error:
                        logger.debug("the session was not deleted at the server: %s", error)
            if self._has_own_client:
                with trio.move_on_after(close_seconds, shield=True):
                    await self._endpoint_client.http.aclose()
            self._stopped.set()

    async def aclose(self) -> None:
        """Close this side: end all streams, and DELETE the session.

        A client that was given stays open. This takes at most `limits.shutdown.close_seconds`, and
        as long again if the given client hangs; cancellation does not shorten it.
        """
        if not self._is_closing:
            self._is_closing = True
            self._deletes_session = (
                self._endpoint_client.session_id is not None and not self._has_ended
            )
            self._inbox.close()
            self._end("closed on this side")
            self._log.close()
        with trio.move_on_after(
            2 * self._endpoint_client.limits.shutdown.close_seconds, shield=True
        ):
            await self._stopped.wait()
        await trio.lowlevel.checkpoint()


async def open_http_channel(
    url: str,
    *,
    http: "httpx2.AsyncClient | httpx.AsyncClient | None" = None,
    headers: Mapping[str, str] | None = None,
    auth: httpx2.Auth | None = None,
    limits: Limits = DEFAULT_LIMITS,
    on_state: OnState | None = None,
    random_source: RandomSource = random.random,
    tries_http_sse_first: bool = False,
) -> HttpChannel:
    """Open a channel to the server at `url`; nothing is sent before the first message.

    Args:
        url: The URL of the MCP endpoint.
        http: The HTTP client to use, of httpx2 or of httpx, with its proxies, certificates,
            authorization and connect timeout; its read timeout is ignored. It is not closed.
        headers: Additional headers of each request.
        auth: The authorization of each request, in place of that of `http`, which then is a client
            of httpx2.
        limits: The limits of the channel.
        on_state: Called with each state of the connection, and the reason for it.
        random_source: Returns numbers from 0 to 1, which spread the pauses before a stream is
            resumed.
        tries_http_sse_first: Whether to try HTTP+SSE, the transport of 2024-11-05, before
            Streamable HTTP.

    Raises:
        ValueError: `url` is not an HTTP URL.
    """
    parsed = parsed_url(url)
    # A client of httpx has the methods of httpx2's; only the classes of its objects differ.
    client = client_for(parsed) if http is None else cast("httpx2.AsyncClient", http)
    channel = HttpChannel(
        endpoint_client=EndpointClient(
            http=client, url=parsed, headers=headers or {}, limits=limits, auth=auth
        ),
        reported_state=ReportedState(on_state),
        random_source=random_source,
        has_own_client=http is None,
        tries_http_sse_first=tries_http_sse_first,
    )
    await channel.start()
    return channel
