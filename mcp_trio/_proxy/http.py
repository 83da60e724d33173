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

from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Final

import attrs
import trio

from mcp_trio._limits import DEFAULT_LIMITS, Limits
from mcp_trio._protocol.http.gate import Gate, gate_for
from mcp_trio._protocol.http.verdicts import JSON, SESSION_ID, Refusal
from mcp_trio._proxy.http_journals import Journals
from mcp_trio._proxy.journal import recorded_to, start_frames
from mcp_trio._proxy.passage import HTTP_MARK, Passage, target_of
from mcp_trio._proxy.signals import until_signal
from mcp_trio._recorder.options import RecordOptions
from mcp_trio._transports.http.client_channel import parsed_url
from mcp_trio._transports.http.client_link import Link, own_client
from mcp_trio._transports.http.exchange import BodyTooLargeError, Exchange
from mcp_trio._transports.http.native import serve_native
from mcp_trio._wire import Decoder

TRANSPORT: Final = "http"


@attrs.frozen(kw_only=True)
class Place:
    """Where a proxy listens, and who may come there; see `gate_for`."""

    host: str = "127.0.0.1"
    port: int = 0
    hosts: Collection[str] | None = None
    origins: Collection[str] | None = None


@attrs.define(kw_only=True, eq=False)
class HttpProxy:
    """The application that a host serves; its `respond` passes one exchange.

    Attributes:
        link: The server.
        gate: Who may come at all.
        journals: What is recorded.
        limits: How large a body may be.
    """

    link: Link
    gate: Gate
    journals: Journals
    limits: Limits
    _decoder: Decoder = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._decoder = Decoder(json_depth_max=self.limits.json_depth_max)

    async def respond(self, exchange: Exchange) -> None:
        """Pass one exchange, unless the gate refuses it or its body is too large."""
        bytes_max = self.limits.frame_bytes_max
        with suppress(trio.BrokenResourceError):
            refusal = self.gate.refusal(exchange.head)
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

    async def _refuse(self, exchange: Exchange, refusal: Refusal) -> None:
        with self.journals.used(None, ()) as kept:
            facts = {"method": exchange.head.method, "status": refusal.status}
            kept.journal.mark(HTTP_MARK, facts | {"error": refusal.text})
            kept.journal.flush()
            headers = [("Content-Type", JSON), *refusal.headers]
            await exchange.answer(refusal.status, headers, refusal.body())

    async def _pass(self, exchange: Exchange, body: bytes) -> None:
        head, target = exchange.head, target_of(exchange.head)
        is_old = self.journals.knows(target)
        is_endpoint = is_old or head.path.rstrip("/") == self.link.url.path.rstrip("/")
        messages = self._decoder.messages(body) if is_endpoint and body else ()
        with self.journals.used(target if is_old else head.header(SESSION_ID), messages) as kept:
            passage = Passage(
                exchange=exchange,
                body=body,
                messages=messages,
                is_endpoint=is_endpoint,
                kept=kept,
                journals=self.journals,
                link=self.link,
                limits=self.limits,
            )
            await passage.run()


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
        gate = gate_for(bound, hosts=place.hosts, origins=place.origins)
        proxy = HttpProxy(link=link, gate=gate, journals=journals, limits=link.limits)
        name = f"[{place.host}]" if ":" in place.host else place.host
        async with trio.open_nursery() as nursery:
            nursery.start_soon(journals.expire)
            serve = partial(serve_native, proxy.respond, listeners, limits=link.limits)
            await nursery.start(serve)
            task_status.started(f"http://{name}:{bound[0][1]}{link.url.raw_path.decode()}")
    finally:
        journals.close()
        for listener in listeners:
            await listener.aclose()


def run_http_proxy(
    place: Place,
    url: str,
    *,
    record: RecordOptions,
    told: Callable[[str], None],
    limits: Limits = DEFAULT_LIMITS,
) -> int:
    """Record what clients of ours and the server at `url` say, until a signal comes.

    A folder gets a file for each session, a file takes all of them. `told` is called with the URL
    that stands for the server's.

    Returns:
        The exit status: 128 plus the number of the signal.

    Raises:
        RecordingError: The file holds something already.
        OSError: The address cannot be bound.
        ValueError: The gate's settings are none, or `url` is no URL of HTTP.
    """
    return trio.run(_run, place, url, record, told, limits)


async def _run(
    place: Place, url: str, record: RecordOptions, told: Callable[[str], None], limits: Limits
) -> int:
    parsed = parsed_url(url)
    link = Link(http=own_client(parsed), url=parsed, headers={}, limits=limits)
    async with link.http:
        with recorded_to(record) as recording:
            start = partial(start_frames, recording, transport=TRANSPORT, name=parsed.host)
            journals = Journals(start=partial(start, limits=limits), limits=limits)

            async def serve() -> int:
                async with trio.open_nursery() as nursery:
                    told(await nursery.start(serve_http_proxy, place, link, journals))
                return 0

            return await until_signal(serve, shut=partial(journals.shut, "signal"))
