"""A proxy between a host that speaks stdio and a server at a URL.

The host's lines are the messages of one session, and our client's channel says them over HTTP: in
a session or each for itself, as the message has it, with the headers that are due. What goes wrong
with one request is its answer, an error; a server that has ended the session ends us, as the exit
of a server over stdio would. What a line over stdio can be and no POST can:

- A batch goes as one POST for each of its messages; the answers come one by one.
- What is no message goes nowhere: if it may be a request, an error answers it.
"""

import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final

import attrs
import trio

from mcp_trio._errors import INVALID_REQUEST, SERVER_BUSY, ConnectionLost
from mcp_trio._journal.conversation import CANCELLED, LISTEN, REFERENCES, members
from mcp_trio._journal.messages import messages_in
from mcp_trio._limits import DEFAULT_LIMITS, Limits
from mcp_trio._protocol.methods import INITIALIZE
from mcp_trio._proxy.journal import LOST_MARK, FrameJournal, check_is_free, start_frames
from mcp_trio._proxy.signals import until_signal
from mcp_trio._recorder.options import RecordOptions
from mcp_trio._transports.channel import Channel, Received
from mcp_trio._transports.http.client_channel import open_http_channel, parsed_url
from mcp_trio._transports.stdio_server import (
    divert_stdio,
    open_stdio_channel,
    wait_parent_death,
)
from mcp_trio._wire import (
    ErrorResponse,
    Lost,
    Malformed,
    Message,
    Notification,
    Oversized,
    Request,
    Response,
    encode_error,
    malformed,
)

_ENDED: Final = 0
_LOST: Final = 1

_Id = int | str
_GONE: Final = (ConnectionLost, trio.BrokenResourceError, trio.ClosedResourceError)


@attrs.define(kw_only=True, eq=False)
class UrlProxy:
    """Owns both channels and the journal, until one of both sides has ended."""

    host: Channel
    server: Channel
    journal: FrameJournal
    limits: Limits
    _open: dict[_Id, str] = attrs.field(factory=dict[_Id, str], init=False)
    _settled: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _saying: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    async def run(self, *, parent_pid: int) -> int:
        """Passes both ways until one side ends; returns the exit status.

        Behind the host's last word, open requests have `drain_seconds` to be answered.
        """
        status = _LOST
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch_parent, parent_pid, nursery.cancel_scope)
                nursery.start_soon(self._pass_answers, nursery.cancel_scope)
                if await self._pass_requests():
                    status = _ENDED
                    with trio.move_on_after(self.limits.drain_seconds):
                        await self._all_settled()
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await self.server.aclose()
                await self.host.aclose()
            self.journal.close()
        return status

    async def _watch_parent(self, parent_pid: int, scope: trio.CancelScope) -> None:
        await wait_parent_death(parent_pid=parent_pid, limits=self.limits)
        self.journal.shut("lost")
        scope.cancel()

    # From the host.

    async def _pass_requests(self) -> bool:
        """Whether the host has said all that it had to say; else one of both sides is gone."""
        try:
            while received := await self.host.receive():
                for item in received:
                    await self._hear(item)
        except _GONE:
            self.journal.shut("lost")
            return False
        self.journal.shut("eof")
        return True

    async def _hear(self, item: Received) -> None:
        if isinstance(item, Oversized):
            envelope = {"discarded": item.size}
            self.journal.passes_part("in", item.head, envelope=envelope)
            text = f"larger than frame_bytes_max ({self.limits.frame_bytes_max})"
            await self.refuse(malformed(item.head, INVALID_REQUEST, text))
            return
        assert isinstance(item, bytes)
        self.journal.counts["in_bytes"] += len(item)
        messages = self.journal.passes("in", item)
        self.journal.flush()
        frames = [item] if len(messages) == 1 else messages_in(item)
        for message, frame in zip(messages, frames, strict=True):
            await _TO_SERVER[type(message)](self, message, frame)

    async def ask(self, request: Request, frame: bytes) -> None:
        """Pass a request; one too many, or one that could be taken for an open one, is refused."""
        if request.id in self._open:
            text = f"an unfinished request has the same id: {request.id!r}"
            await self._answer(request.id, INVALID_REQUEST, text)
        elif len(self._open) >= self.limits.requests_queued_max:
            text = "too many requests wait for answers (requests_queued_max)"
            await self._answer(request.id, SERVER_BUSY, text)
        else:
            self._open[request.id] = request.method
            await self.server.send([frame])
            if request.method == INITIALIZE:
                await self._session_begun(request.id)

    async def _session_begun(self, request_id: _Id) -> None:
        """What the host says next needs the id of its session, which comes with the answer."""
        with trio.move_on_after(self.limits.initialize_seconds):
            while request_id in self._open:
                await self._settled.park()

    async def tell(self, message: Notification, frame: bytes) -> None:
        """Pass a notification; what it cancels is not waited for."""
        await self.server.send([frame])
        if message.method == CANCELLED:
            self._settle(members(message.params).get(REFERENCES[CANCELLED]))

    async def reply(self, _: Response | ErrorResponse, frame: bytes) -> None:
        """Pass what the host answers to the server."""
        await self.server.send([frame])

    async def refuse(self, message: Malformed, _: bytes = b"") -> None:
        """Answer what is no message, if it may wait for that."""
        if message.is_request and message.id is not None:
            await self._answer(message.id, message.code, message.message)

    # From the server.

    async def _pass_answers(self, scope: trio.CancelScope) -> None:
        with suppress(*_GONE):
            while received := await self.server.receive():
                for item in received:
                    await self._pass_answer(item)
        self.journal.shut("lost")
        scope.cancel()

    async def _pass_answer(self, item: Received) -> None:
        if isinstance(item, Lost):
            await self._answer(item.id, SERVER_BUSY, str(item.error))
            self._settle(item.id)
        elif isinstance(item, Oversized):  # whose request is lost, which comes by itself
            envelope = {"discarded": item.size}
            self.journal.passes_part("out", item.head, envelope=envelope)
        else:
            self.journal.counts["out_bytes"] += len(item)
            messages = self.journal.passes("out", item)
            await self._say(item)
            for message in messages:
                if isinstance(message, Response | ErrorResponse):
                    self._settle(message.id)

    async def _answer(self, request_id: _Id, code: int, text: str) -> None:
        """Answers instead of the server."""
        self.journal.mark(LOST_MARK, {"id": request_id, "error": text})
        await self._say(encode_error(request_id, code, text))

    async def _say(self, frame: bytes) -> None:
        self.journal.flush()
        async with self._saying:
            await self.host.send([frame])

    def _settle(self, request_id: object) -> None:
        if isinstance(request_id, int | str):
            self._open.pop(request_id, None)
        self._settled.unpark_all()

    async def _all_settled(self) -> None:
        """A subscription is never settled, and not waited for."""
        while any(method != LISTEN for method in self._open.values()):
            await self._settled.park()


_TO_SERVER: Final[Mapping[type[Message], Callable[..., Awaitable[None]]]] = {
    Request: UrlProxy.ask,
    Notification: UrlProxy.tell,
    Response: UrlProxy.reply,
    ErrorResponse: UrlProxy.reply,
    Malformed: UrlProxy.refuse,
}


def run_url_proxy(
    url: str,
    *,
    record: RecordOptions,
    headers: Mapping[str, str],
    limits: Limits = DEFAULT_LIMITS,
) -> int:
    """Record what the host on our stdin and stdout and the server at `url` say.

    `headers` go along with each request, and are not recorded.

    Returns:
        The exit status: 0 when the host is done, 1 when the server or the host was lost, or 128
        plus the number of a signal.

    Raises:
        RecordingError: The file cannot be made, or holds something already.
        ValueError: `url` is no URL of HTTP.
    """
    return trio.run(_run, url, record, headers, limits)


async def _run(url: str, record: RecordOptions, headers: Mapping[str, str], limits: Limits) -> int:
    parent_pid = os.getppid()
    name = parsed_url(url).host
    check_is_free(record)
    journal = start_frames(record, transport="stdio", name=name, limits=limits)
    proxy = UrlProxy(
        host=open_stdio_channel(*divert_stdio(), limits=limits),
        server=await open_http_channel(url, headers=headers, limits=limits),
        journal=journal,
        limits=limits,
    )
    serve = partial(proxy.run, parent_pid=parent_pid)
    return await until_signal(serve, shut=partial(journal.shut, "signal"))
