"""An exchange without a socket: one request, and the response that it got."""

import contextlib
import json

import attrs
import trio

from mcp_trio._jsonrpc.sse import EventParser
from mcp_trio._transports.http_response import BodyTooLargeError
from mcp_trio.auth import HttpRequest

PATIENCE_SECONDS = 5000.0  # virtual ones


@attrs.define(eq=False)
class ScriptedExchange:
    """One request; `leave` takes its client away, `stall` keeps it from reading.

    A hasty client goes away as soon as its request has been read.
    """

    request: HttpRequest
    sent_body: bytes = b""
    status: int | None = None
    headers: dict = attrs.field(factory=dict)
    answer_body: bytes = b""
    is_ended: bool = False
    pieces: list = attrs.field(factory=list)
    comments: int = 0
    is_hasty: bool = False
    is_last: bool = False
    may_lead: bool = False
    _gone: trio.Event = attrs.field(factory=trio.Event)
    _reads: trio.Event = attrs.field(factory=trio.Event)
    _news: trio.Condition = attrs.field(factory=trio.Condition)
    _events: list = attrs.field(factory=list)
    _parser: EventParser = attrs.field(factory=lambda: EventParser(data_bytes_max=2**24))

    @classmethod
    def of(cls, method="POST", target="/mcp", *, body=b"", headers=(), client=None):
        fields = [("Host", "127.0.0.1:80"), *headers]
        raw = [(name.encode(), value.encode("latin-1")) for name, value in fields]
        request = HttpRequest.of(method, target, raw, client=client)
        exchange = cls(request.as_common(), body)  # as our own listener makes it
        exchange._reads.set()
        return exchange

    # Actions of the client.

    def leave(self):
        self._gone.set()
        self._reads.set()

    def stall(self):
        self._reads = trio.Event()

    def read_on(self):
        self._reads.set()

    # Actions of the application.

    def close_after_response(self):
        self.is_last = True

    async def body(self, bytes_max):
        await self._there()
        if len(self.sent_body) > bytes_max:
            raise BodyTooLargeError(bytes_max)
        if self.is_hasty:
            self.leave()
        return self.sent_body

    def body_nowait(self, bytes_max):  # noqa: ARG002
        return None

    async def answer(self, status, headers, body=b""):
        await self.start(status, headers)
        self.answer_body = body
        if self.is_stream and body:
            self._take(body)
        await self._ended()

    async def start(self, status, headers):
        await self._there()
        assert self.status is None, "answered twice"
        self.status = status
        self.headers = {name.lower(): value for name, value in headers}
        assert len(self.headers) == len(headers), "a header twice"
        await self._notify()

    async def send(self, piece):
        assert self.status is not None
        assert not self.is_ended
        await self._reads.wait()
        await self._there()
        self._take(piece)
        await self._notify()

    def _take(self, piece):
        self.pieces.append(piece)
        self.comments += piece.startswith(b":")
        self._events += self._parser.feed(piece)

    async def end(self):
        await self._there()
        await self._ended()

    async def gone(self):
        await self._gone.wait()

    async def _there(self):
        await trio.lowlevel.checkpoint()
        if self._gone.is_set():
            raise trio.BrokenResourceError

    async def _ended(self):
        self.is_ended = True
        await self._notify()

    async def _notify(self):
        async with self._news:
            self._news.notify_all()

    # Questions of a test.

    @contextlib.asynccontextmanager
    async def _in_time(self):
        with trio.fail_after(PATIENCE_SECONDS):
            async with self._news:
                yield

    @property
    def json(self):
        assert self.headers["content-type"] == "application/json", self.headers
        return json.loads(self.answer_body)

    @property
    def is_stream(self):
        return self.headers.get("content-type") == "text/event-stream"

    async def begun(self):
        """Wait for the headers of the response."""
        async with self._in_time():
            while self.status is None:
                await self._news.wait()
        return self

    async def event(self):
        """The next event, also one without a message."""
        async with self._in_time():
            while not self._events:
                assert not self.is_ended, "the stream has ended"
                await self._news.wait()
        return self._events.pop(0)

    async def message(self):
        """The next message of the stream."""
        while not (event := await self.event()).data:
            pass
        assert event.name == "message"
        return json.loads(event.data)

    async def rest(self):
        """All messages up to the end of the stream."""
        async with self._in_time():
            while not self.is_ended:
                await self._news.wait()
        events, self._events = self._events, []
        return [json.loads(event.data) for event in events if event.data]
