"""Servers of MCP over HTTP that say what a test wants: in memory for httpx2, or on a socket."""

import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import attrs
import h11
import httpx
import httpx2
import trio
import trio.testing

from mcp_trio.limits import DEFAULT_LIMITS
from mcp_trio.transports import open_http_channel

JSON = {"content-type": "application/json"}
EVENTS = {"content-type": "text/event-stream"}
URL = "http://mcp.test/mcp"


@attrs.frozen
class Seen:
    """A request as it came; `headers` by names in lower case."""

    method: str
    path: str
    headers: dict
    body: bytes

    @property
    def message(self):
        return json.loads(self.body)


@attrs.define
class Reply:
    """`body` is bytes, or an async generator of pieces, during which the stream is open."""

    status: int = 200
    headers: dict = attrs.field(factory=dict)
    body: bytes | AsyncIterator = b""


def json_reply(message, status=200, **headers):
    return Reply(status, JSON | headers, json.dumps(message).encode())


def result(seen, **members):
    return json_reply({"jsonrpc": "2.0", "id": seen.message["id"], "result": members})


def error(seen, code, message="no", status=200, **more):
    body = {"code": code, "message": message, **more}
    return json_reply({"jsonrpc": "2.0", "id": seen.message["id"], "error": body}, status)


def event(message=None, *, name=None, event_id=None, retry=None, text=None):
    """One event as it stands in a stream."""
    fields = {"event": name, "id": event_id, "retry": retry}
    lines = [f"{field}: {value}\n" for field, value in fields.items() if value is not None]
    data = text if message is None else json.dumps(message)
    return ("".join(lines) + f"data: {data or ''}\n\n").encode()


def events(*pieces, ends=True):
    """A stream of these events, which ends behind them, or else never."""

    async def body():
        for piece in pieces:
            yield piece
        if not ends:
            await trio.sleep_forever()

    return Reply(200, EVENTS, body())


def streaming(*pieces, ends=True):
    """Answer each request with a stream of these events."""

    async def answer(_seen):
        return events(*pieces, ends=ends)

    return answer


async def succeed(seen):
    """Answer a call with a result without content."""
    return result(seen, content=[])


def answer_to(seen, **members):
    return {"jsonrpc": "2.0", "id": seen.message["id"], "result": members}


Answer = Callable[[Seen], Awaitable[Reply]]


class _Body(httpx2.AsyncByteStream, httpx.AsyncByteStream):
    def __init__(self, pieces, closed):
        self.pieces, self.closed = pieces, closed

    async def __aiter__(self):
        async for piece in self.pieces:
            await trio.lowlevel.checkpoint()
            yield piece

    async def aclose(self):
        await self.pieces.aclose()
        self.closed.set()


@attrs.define
class Script(httpx2.AsyncBaseTransport):
    """A server in memory, for clients of httpx2 and of httpx.

    `answer` gives the reply to each request, or raises an error of the network.

    `closed` has an event for each stream that was begun, set when the client leaves it or it ends.
    """

    answer: Answer
    seen: list = attrs.field(factory=list)
    closed: list = attrs.field(factory=list)

    async def handle_async_request(self, request):
        library = httpx if isinstance(request, httpx.Request) else httpx2
        body = await request.aread()
        await trio.lowlevel.checkpoint()
        seen = Seen(request.method, request.url.raw_path.decode(), dict(request.headers), body)
        self.seen.append(seen)
        reply = await self.answer(seen)
        if isinstance(reply.body, bytes):
            return library.Response(reply.status, headers=reply.headers, content=reply.body)
        self.closed.append(trio.Event())
        stream = _Body(reply.body, self.closed[-1])
        return library.Response(reply.status, headers=reply.headers, stream=stream)

    @property
    def methods(self):
        """Return the requests, in order: the method of the message, or that of HTTP."""
        return [
            seen.message.get("method", "answer") if seen.method == "POST" else seen.method
            for seen in self.seen
        ]

    def of(self, method):
        """The requests with this method."""
        return [seen for seen, name in zip(self.seen, self.methods, strict=True) if name == method]


@attrs.define(kw_only=True)
class Legacy:
    """A server of sessions: `answers` by method override what it does, `listen` answers GET."""

    version: str = "2025-11-25"
    session: str | None = "s-1"
    answers: dict = attrs.field(factory=dict)
    listen: Answer | None = None

    async def __call__(self, seen):
        if seen.method == "GET":
            return Reply(405) if self.listen is None else await self.listen(seen)
        if seen.method == "DELETE":
            return Reply(204)
        method = seen.message.get("method")
        if method in self.answers:
            return await self.answers[method](seen)
        if "id" not in seen.message or method is None:
            return Reply(202)
        if method == "initialize":
            return self.initialized(seen)
        return error(seen, -32601, status=400 if method == "server/discover" else 200)

    def initialized(self, seen):
        reply = result(
            seen,
            protocolVersion=self.version,
            capabilities={"tools": {}, "logging": {}},
            serverInfo={"name": "legacy", "version": "1"},
        )
        if self.session is not None:
            reply.headers = {**reply.headers, "Mcp-Session-Id": self.session}
        return reply


@attrs.define(kw_only=True)
class Forgetful(Legacy):
    """Knows the newest session only; `forget` begins to know another one."""

    number: int = 1

    async def __call__(self, seen):
        known = seen.headers.get("mcp-session-id", self.session)
        return await super().__call__(seen) if known == self.session else Reply(404)

    def forget(self):
        self.number += 1
        self.session = f"s-{self.number}"


@attrs.define(kw_only=True)
class Modern:
    """A server of 2026-07-28: `answers` by method override what it does."""

    answers: dict = attrs.field(factory=dict)

    async def __call__(self, seen):
        if seen.method != "POST":
            return Reply(405)
        method = seen.message["method"]
        if method in self.answers:
            return await self.answers[method](seen)
        if method == "server/discover":
            return result(
                seen,
                supportedVersions=["2026-07-28"],
                capabilities={"tools": {}},
                resultType="complete",
                ttlMs=0,
                cacheScope="private",
            )
        return error(seen, -32601, status=404)


async def serve(answer, *, port=0, task_status):
    """The same on a socket of this machine; `task_status` gets its URL."""
    listeners = await trio.open_tcp_listeners(port, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    task_status.started(f"http://127.0.0.1:{port}/mcp")
    await trio.serve_listeners(partial(_serve_connection, answer), listeners)


async def _serve_connection(answer, stream):
    connection = h11.Connection(h11.SERVER)
    try:
        while True:
            request = await _next(connection, stream)
            if not isinstance(request, h11.Request):
                return
            body = b""
            while isinstance(piece := await _next(connection, stream), h11.Data):
                body += bytes(piece.data)
            headers = {name.decode(): value.decode() for name, value in request.headers}
            seen = Seen(request.method.decode(), request.target.decode(), headers, body)
            await _reply(connection, stream, await answer(seen))
            if connection.our_state is not h11.DONE:
                return
            connection.start_next_cycle()
    except (trio.BrokenResourceError, h11.RemoteProtocolError):
        pass
    finally:
        await trio.aclose_forcefully(stream)


async def _next(connection, stream):
    while (got := connection.next_event()) is h11.NEED_DATA:
        connection.receive_data(await stream.receive_some())
    return got


async def _reply(connection, stream, reply):
    headers = list(reply.headers.items())
    if isinstance(reply.body, bytes):
        headers.append(("content-length", str(len(reply.body))))
    response = h11.Response(status_code=reply.status, headers=headers)
    await stream.send_all(connection.send(response))
    if isinstance(reply.body, bytes):
        await stream.send_all(connection.send(h11.Data(data=reply.body)))
    else:
        async with contextlib.aclosing(reply.body) as pieces:
            async for piece in pieces:
                await stream.send_all(connection.send(h11.Data(data=piece)))
    await stream.send_all(connection.send(h11.EndOfMessage()))


# Messages of a session.

STATELESS = "2026-07-28"


def asking(number, method, version=None, **params):
    """The frame of a request, a stateless one if it has a version."""
    if version is not None:
        params["_meta"] = {
            "io.modelcontextprotocol/protocolVersion": version,
            "io.modelcontextprotocol/clientCapabilities": {},
        }
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode()


def notification_message(method, **params):
    """The frame of a notification."""
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode()


def call(number):
    return asking(number, "tools/call", name="add")


def stateless_call(number, name="add", **arguments):
    return asking(number, "tools/call", STATELESS, name=name, arguments=arguments)


INITIALIZE = asking(0, "initialize", protocolVersion="2025-11-25", capabilities={})
INITIALIZED = notification_message("notifications/initialized")


@contextlib.asynccontextmanager
async def connected(answer, *, limits=DEFAULT_LIMITS, random_source=lambda: 1.0, **options):
    """A channel to a server in memory, and its script."""
    script = Script(answer)
    async with httpx2.AsyncClient(transport=script, follow_redirects=True) as http:
        channel = await open_http_channel(
            URL, http=http, limits=limits, random_source=random_source, **options
        )
        try:
            yield channel, script
        finally:
            await channel.aclose()


async def next_item(channel, *, seconds=5):
    """The one thing that arrives next: a message, or whatever else it is."""
    with trio.fail_after(seconds):
        (item,) = await channel.receive()
    return json.loads(item) if isinstance(item, bytes) else item


async def next_items(channel, count):
    """Return the next items of one or several batches, until they are so many."""
    items = []
    while len(items) < count:
        items += await channel.receive()
    return items


async def in_session(channel):
    """Shake hands, and let the stream of the server begin."""
    await channel.send([INITIALIZE])
    await next_item(channel)
    await channel.send([INITIALIZED])
    await trio.testing.wait_all_tasks_blocked()
