"""The client's end of HTTP: a channel over httpx, for Streamable HTTP of both eras and HTTP+SSE.

To the session above it is a channel like any other: frames go in, frames come out. What a message
says of itself decides how it is sent: a modern one with its headers, in the manner of its revision;
any other one in the session that `initialize` began. A server that refuses both is asked for the
transport of 2024-11-05.
"""

import logging
import random
from collections.abc import Mapping, Sequence
from contextvars import copy_context
from typing import ClassVar

import attrs
import httpx
import trio

from mcp_trio._limits import DEFAULT_LIMITS, Limits
from mcp_trio._transports.back_off import Dice
from mcp_trio._transports.condition import Condition, OnState, State
from mcp_trio._transports.http.client_exchanges import Exchanges
from mcp_trio._transports.http.client_frames import outgoing
from mcp_trio._transports.http.client_inbox import Inbox, Item
from mcp_trio._transports.http.client_link import Link, own_client
from mcp_trio._transports.system_task import Faults, contained
from mcp_trio._wire import Decoder

logger = logging.getLogger("mcp_trio")


@attrs.define(kw_only=True, eq=False, repr=False)
class HttpChannel:
    """The channel to the server at a URL; made by `open_http_channel`.

    A server that cannot be reached fails the requests in flight, each by a `Lost`, and nothing
    else: the next one is tried again. `receive` ends when the server does not know the session any
    more. `state` and `reason` tell how it stands.
    """

    transport: ClassVar[str] = "http"
    is_unfinished: ClassVar[bool] = False
    tells_losses: ClassVar[bool] = True

    _bytes_asked: int = attrs.field(default=0, init=False)
    _link: Link = attrs.field(alias="link")
    _condition: Condition = attrs.field(alias="condition")
    _dice: Dice = attrs.field(alias="dice")
    _has_own_client: bool = attrs.field(alias="has_own_client")
    _is_old: bool = attrs.field(alias="is_old")
    _decoder: Decoder = attrs.field(init=False)
    _inbox: Inbox = attrs.field(init=False)
    _exchanges: Exchanges = attrs.field(init=False)
    _is_closing: bool = attrs.field(default=False, init=False)
    _has_to_tell: bool = attrs.field(default=False, init=False)
    _begun: trio.Event = attrs.field(factory=trio.Event, init=False)
    _ended: trio.Event = attrs.field(factory=trio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        limits = self._link.limits
        self._decoder = Decoder(json_depth_max=limits.json_depth_max)
        self._inbox = Inbox(limits.chunk_bytes)
        self._exchanges = Exchanges(
            link=self._link,
            inbox=self._inbox,
            condition=self._condition,
            decoder=self._decoder,
            dice=self._dice,
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
        """See `Condition`."""
        return self._condition.state

    @property
    def reason(self) -> str:
        """Why it is retrying, or closed."""
        return self._condition.reason

    @property
    def is_old(self) -> bool:
        """Whether the server turned out to speak the transport of 2024-11-05, HTTP+SSE."""
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
        """Whether it is a request, which is on its way now."""
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

    def _contain(self, faults: Faults) -> None:
        logger.error("the HTTP channel failed", exc_info=faults)
        self._exchanges.end("the HTTP channel failed")

    # Closing.

    async def aclose(self) -> None:
        """See `Channel.aclose`: ends all streams, and tells the server that the session is over.

        Takes `close_seconds` for that, and as many again where people's code hangs; cancellation
        does not shorten it. A client that was given stays open.
        """
        if not self._is_closing:
            self._is_closing = True
            self._has_to_tell = self._link.session_id is not None and not self._exchanges.has_ended
            self._inbox.close()
            self._exchanges.end("closed on this side")
        with trio.move_on_after(2 * self._link.limits.close_seconds, shield=True):
            await self._ended.wait()
        await trio.lowlevel.checkpoint()

    async def _leave(self) -> None:
        """What is done last; in a run that ends, only what needs no answer."""
        with trio.move_on_after(self._link.limits.close_seconds, shield=True):
            if self._has_to_tell:
                await self._delete()
        if self._has_own_client:
            with trio.move_on_after(self._link.limits.close_seconds, shield=True):
                await self._link.http.aclose()

    async def _delete(self) -> None:
        try:
            await self._link.delete()
        except Exception as error:
            logger.debug("the end of the session was not delivered: %s", error)


async def open_http_channel(
    url: str,
    *,
    http: httpx.AsyncClient | None = None,
    headers: Mapping[str, str] | None = None,
    limits: Limits = DEFAULT_LIMITS,
    on_state: OnState | None = None,
    dice: Dice = random.random,
    is_old: bool = False,
) -> HttpChannel:
    """A channel to the server at `url`; nothing is sent before the first frame.

    `http` brings proxies, certificates, authorization and the time that connecting may take; it is
    used and not closed, and how long an answer may take is not for it to say. `headers` go along
    with each request. `on_state` is told how the connection stands, with a reason. `dice` spreads
    the pauses before a stream is resumed. `is_old` says that the server was found to speak HTTP+SSE
    only: that is tried first, and everything else if it does not any more.

    Raises:
        ValueError: `url` is no URL of HTTP.
    """
    parsed = parsed_url(url)
    client = own_client(parsed) if http is None else http
    channel = HttpChannel(
        link=Link(http=client, url=parsed, headers=headers or {}, limits=limits),
        condition=Condition(on_state),
        dice=dice,
        has_own_client=http is None,
        is_old=is_old,
    )
    await channel.begin()
    return channel


def parsed_url(url: str) -> httpx.URL:
    """The URL of a server.

    Raises:
        ValueError: It is none of HTTP.
    """
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ValueError(f"no URL: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ValueError("the URL of a server begins with http:// or https:// and its host")
    return parsed
