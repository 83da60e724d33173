"""A bridge that runs in this process."""

from contextlib import asynccontextmanager
from functools import partial

import trio

from mcp_trio import Limits
from mcp_trio._proxy.bridge import Upstream, bridge_application, parse_downstream, serve_bridge
from mcp_trio._proxy.journal import recording_for_sessions, start_message_journal
from mcp_trio._recorder.options import options_of

_SOURCES = {
    "http": "http://127.0.0.1:0/here",
    "websocket": "ws://127.0.0.1:0/here",
    "unix": "unix:{}/from",
    "tcp": "tcp://127.0.0.1:0",
}
SOURCES = tuple(_SOURCES)


def source(direction, folder):
    """Any place of its kind; a socket file is in the folder."""
    return _SOURCES[direction].format(folder)


@asynccontextmanager
async def bridged(direction, target, folder, *, record, make_spans=None, **limits):
    """Return the URL of a bridge that records, and perhaps makes spans."""
    limits = Limits(**limits)
    downstream, upstream = parse_downstream(source(direction, folder)), Upstream(target=target)
    async with recording_for_sessions(options_of(record)) as recording:
        start = partial(
            start_message_journal,
            recording,
            transport=direction,
            name=upstream.name,
            limits=limits,
            make_spans=make_spans,
        )
        application = bridge_application(downstream, upstream, start_journal=start, limits=limits)
        send_url, urls = trio.open_memory_channel(1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_bridge, downstream, application, send_url.send_nowait)
            yield await urls.receive()
            nursery.cancel_scope.cancel()
