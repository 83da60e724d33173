"""An HTTP proxy in memory between scripted clients and a scripted server."""

import json
from contextlib import asynccontextmanager
from functools import partial

import attrs
import httpx2
import trio

from mcp_trio import Limits
from mcp_trio._protocol.security import host_check_for
from mcp_trio._proxy.http import HttpProxy, OpenRecordings
from mcp_trio._proxy.journal import recording_for_sessions, start_message_journal
from mcp_trio._recorder.options import options_of
from mcp_trio._transports.http_client_requests import EndpointClient
from tests.transports.http.scripted_exchange import PATIENCE_SECONDS, ScriptedExchange
from tests.transports.http.scripted_server import URL, Script

BOTH = "application/json, text/event-stream"


class _Whole(httpx2.AsyncByteStream):
    def __init__(self, body):
        self.body = body

    async def __aiter__(self):
        yield self.body


class Upstream(Script):
    """A scripted server whose bodies come as from a socket: they are read once."""

    async def handle_async_request(self, request):
        response = await super().handle_async_request(request)
        if isinstance(response.stream, httpx2.ByteStream):
            body = _Whole(response.content)
            return httpx2.Response(response.status_code, headers=response.headers, stream=body)
        return response


@attrs.define(eq=False)
class Between:
    """A proxy that runs."""

    proxy: HttpProxy
    server: Upstream
    nursery: trio.Nursery

    def exchange(self, message=None, method="POST", *, target="/mcp", **headers):
        """An exchange that is not forwarded yet; headers by names with `_` for `-`."""
        fields = {"Accept": BOTH, **{name.replace("_", "-"): it for name, it in headers.items()}}
        body = b""
        if message is not None:
            fields.setdefault("Content-Type", "application/json")
            body = message if isinstance(message, bytes) else json.dumps(message).encode()
        return ScriptedExchange.of(method, target, body=body, headers=[*fields.items()])

    async def ask(self, *args, **options):
        """An exchange that has passed."""
        exchange = self.exchange(*args, **options)
        with trio.fail_after(PATIENCE_SECONDS):
            await self.proxy.respond(exchange)
        return exchange

    def begin(self, *args, **options):
        """An exchange that passes."""
        exchange = self.exchange(*args, **options)
        self.nursery.start_soon(self.proxy.respond, exchange)
        return exchange


@asynccontextmanager
async def between(answer, record, *, to=URL, make_spans=None, **limits):
    """Leaving the block ends the proxy, and so all recordings."""
    limits = Limits(**limits)
    server = Upstream(answer)
    url = httpx2.URL(to)
    endpoint_client = EndpointClient(
        http=httpx2.AsyncClient(transport=server), url=url, headers={}, limits=limits
    )
    async with recording_for_sessions(options_of(record), has_http_headers=True) as recording:
        start = partial(
            start_message_journal,
            recording,
            transport="http",
            name=url.host,
            limits=limits,
            make_spans=make_spans,
        )
        recordings = OpenRecordings(start_journal=start, limits=limits)
        proxy = HttpProxy(
            endpoint_client=endpoint_client,
            host_check=host_check_for(()),
            recordings=recordings,
        )
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(recordings.expire)
                yield Between(proxy, server, nursery)
                nursery.cancel_scope.cancel()
        finally:
            recordings.close()
