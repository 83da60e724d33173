"""A proxy over HTTP: clients that were given our address, and a server at a URL.

What the two notice of it should be nothing but that address. So

- Every path and method passes, with its head and its body; `Host` becomes the server's, and what
  belongs to one connection stays there. `Accept-Encoding` alone is changed, to `identity`: what a
  server would compress, nobody between could read.
- Statuses and bodies come back as they are, and streams as they come: see `passage`.
- What happens to one side happens to the other. A client that goes away takes its request with it;
  an answer that breaks off breaks off; a server that does not answer is a 502 that says so.
- Nothing but messages is recorded: no header but the ids of sessions and events, no credentials,
  nothing of a body that is none of the protocol's.

The gate for `Host` and `Origin` stands before all of it.
"""

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Final

import attrs
import httpx
import trio

from mcp_trio._limits import DEFAULT_LIMITS, Limits
from mcp_trio._protocol.http.gate import Gate, gate_for, is_preflight
from mcp_trio._protocol.http.heads import JSON, Head
from mcp_trio._protocol.http.verdicts import SESSION_ID, Refusal
from mcp_trio._protocol.websocket import checked_token, has_token
from mcp_trio._proxy.http_fields import fields_to_server
from mcp_trio._proxy.http_journals import Journals
from mcp_trio._proxy.journal import recorded_to, start_frames
from mcp_trio._proxy.passage import HTTP_MARK, Passage
from mcp_trio._proxy.signals import until_signal
from mcp_trio._recorder.options import RecordOptions
from mcp_trio._transports.http.client_channel import parsed_url
from mcp_trio._transports.http.client_link import Link, own_client
from mcp_trio._transports.http.exchange import BodyTooLargeError, Exchange
from mcp_trio._transports.http.header_fields import encoded
from mcp_trio._transports.http.native import serve_native
from mcp_trio._transports.sockets import netloc
from mcp_trio._wire import Decoder

TRANSPORT: Final = "http"
NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


@attrs.frozen(kw_only=True)
class Place:
    """Where a proxy listens, and who may come there; see `gate_for`.

    Attributes:
        host: The name or number of an interface.
        port: 0 for any that is free.
        path: Where its endpoint is; None: where the server's is, if that is at a URL.
        hosts: Names under which clients may reach it, beside those that it is bound to.
        origins: Pages of these origins may use it, beside its own.
        allows_cors: Browsers are told that they may read what is answered; where the server behind
            is at a URL of HTTP, it is the one that says so, or not.
        token: Who brings it may come; None: all may.
    """

    host: str = "127.0.0.1"
    port: int = 0
    path: str | None = None
    hosts: Collection[str] | None = None
    origins: Collection[str] | None = None
    allows_cors: bool = False
    token: str | None = attrs.field(default=None, repr=False)


@attrs.define(kw_only=True, eq=False)
class HttpProxy:
    """The application that a host serves; its `respond` passes one exchange.

    Attributes:
        link: The server.
        gate: Who may come at all.
        journals: What is recorded.
        limits: How large a body may be.
        path: What stands for the path of the server's endpoint; None: that path.
        token: What clients have to bring, and the server does not get; None: they need none.
    """

    link: Link
    gate: Gate
    journals: Journals
    limits: Limits
    path: str | None = None
    token: str | None = attrs.field(default=None, repr=False)
    _decoder: Decoder = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._decoder = Decoder(json_depth_max=self.limits.json_depth_max)

    async def respond(self, exchange: Exchange) -> None:
        """Pass one exchange, unless the gate refuses it or its body is too large."""
        bytes_max = self.limits.frame_bytes_max
        with suppress(trio.BrokenResourceError):
            refusal = self.gate.refusal(exchange.head) or self._unknown(exchange.head)
            if refusal is None:
                try:
                    body = await exchange.body(bytes_max)
                except BodyTooLargeError:
                    text = f"the body is larger than frame_bytes_max ({bytes_max})"
                    refusal = Refusal(status=413, text=text)
                else:
                    await self._pass(exchange, body)
                    return
            await self._refuse(exchange, refusal)

    def _unknown(self, head: Head) -> Refusal | None:
        # A browser asks by OPTIONS what a page may send, and brings nothing with that.
        if self.token is None or is_preflight(head) or has_token(head, self.token):
            return None
        headers = [("WWW-Authenticate", "Bearer")]
        return Refusal(status=401, text="it is not known who sends this (token)", headers=headers)

    async def _refuse(self, exchange: Exchange, refusal: Refusal) -> None:
        with self.journals.used(None, ()) as kept:
            facts = {"method": exchange.head.method, "status": refusal.status}
            kept.journal.mark(HTTP_MARK, facts | {"error": refusal.text})
            kept.journal.flush()
            headers = [("Content-Type", JSON), *refusal.headers]
            await exchange.answer(refusal.status, headers, refusal.body())

    async def _pass(self, exchange: Exchange, body: bytes) -> None:
        head, target = exchange.head, self._target(exchange.head)
        is_old = self.journals.knows(target)
        path = target.partition("?")[0]
        is_endpoint = is_old or path.rstrip("/") == self.link.url.path.rstrip("/")
        messages = self._decoder.messages(body) if is_endpoint and body else ()
        with self.journals.used(target if is_old else head.header(SESSION_ID), messages) as kept:
            passage = Passage(
                exchange=exchange,
                target=target,
                fields=self._fields(head),
                body=body,
                messages=messages,
                is_endpoint=is_endpoint,
                kept=kept,
                journals=self.journals,
                link=self.link,
                limits=self.limits,
            )
            await passage.run()

    def _target(self, head: Head) -> str:
        """What of the server's is asked for."""
        if self.path is None or head.path.rstrip("/") != self.path.rstrip("/"):
            return f"{head.path}?{head.query}" if head.query else head.path
        own, _, query = self.link.url.raw_path.decode("ascii").partition("?")
        queries = "&".join(filter(None, (query, head.query)))
        return f"{own}?{queries}" if queries else own

    def _fields(self, head: Head) -> list[tuple[bytes, bytes]]:
        """What goes along: what the client sends, and what we were given for the server."""
        own = encoded([*self.link.headers.items()])
        replaced = {name for name, _ in own}
        if self.token is not None:
            replaced.add(b"authorization")
        return [*(each for each in fields_to_server(head) if each[0] not in replaced), *own]


async def serve_http_proxy(
    place: Place,
    link: Link,
    journals: Journals,
    *,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; reports the URL that stands for the server's.

    Raises:
        OSError: The address cannot be bound.
        ValueError: The gate's settings are none.
    """
    listeners = await trio.open_tcp_listeners(place.port, host=place.host)
    try:
        bound = [listener.socket.getsockname()[:2] for listener in listeners]
        gate = gate_for(bound, hosts=place.hosts, origins=place.origins, allows_cors=True)
        proxy = HttpProxy(
            link=link,
            gate=gate,
            journals=journals,
            limits=link.limits,
            path=place.path,
            token=None if place.token is None else checked_token(place.token),
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(journals.expire)
            serve = partial(serve_native, proxy.respond, listeners, limits=link.limits)
            await nursery.start(serve)
            path = link.url.raw_path.decode() if place.path is None else place.path
            task_status.started(f"http://{netloc(place.host, bound[0][1])}{path}")
    finally:
        journals.close()
        for listener in listeners:
            listener.socket.close()  # no checkpoint, which would hide what is being raised


def run_http_proxy(
    place: Place,
    url: str,
    *,
    record: RecordOptions | None,
    told: Callable[[str], None],
    headers: Mapping[str, str] = NO_HEADERS,
    limits: Limits = DEFAULT_LIMITS,
) -> int:
    """Record what clients of ours and the server at `url` say, until a signal comes.

    `headers` go along with each request, in the place of those that clients send. A folder gets a
    file for each session, a file takes all of them. `told` is called with the URL that stands for
    the server's.

    Returns:
        The exit status: 128 plus the number of the signal.

    Raises:
        RecordingError: The file holds something already.
        OSError: The address cannot be bound.
        ValueError: The gate's settings are none, or `url` is no URL of HTTP.
    """
    parsed = parsed_url(url)
    return trio.run(_run, place, parsed, record, told, headers, limits)


async def _run(  # noqa: PLR0917  trio.run passes no names
    place: Place,
    url: httpx.URL,
    record: RecordOptions | None,
    told: Callable[[str], None],
    headers: Mapping[str, str],
    limits: Limits,
) -> int:
    link = Link(http=own_client(url), url=url, headers=headers, limits=limits)
    async with link.http:
        with recorded_to(record) as recording:
            start = partial(start_frames, recording, transport=TRANSPORT, name=url.host)
            journals = Journals(start=partial(start, limits=limits), limits=limits)

            async def serve() -> int:
                async with trio.open_nursery() as nursery:
                    told(await nursery.start(serve_http_proxy, place, link, journals))
                return 0

            return await until_signal(serve, shut=partial(journals.shut, "signal"))
