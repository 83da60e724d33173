"""A bridge that runs in this process, and the words for where its clients come from."""

from contextlib import asynccontextmanager
from functools import partial

import trio

from mcp_trio import Limits
from mcp_trio._proxy.bridge import Upstream, front_of, serve_site, site_of
from mcp_trio._proxy.journal import recorded_to, start_frames
from mcp_trio._recorder.writer import options_of

_SOURCES = {
    "http": "http://127.0.0.1:0/here",
    "websocket": "ws://127.0.0.1:0/here",
    "unix": "unix:{}/from",
    "tcp": "tcp://127.0.0.1:0",
}
SOURCES = tuple(_SOURCES)


def source(way, folder):
    """Any place of its kind; a socket file is in the folder."""
    return _SOURCES[way].format(folder)


@asynccontextmanager
async def bridged(way, target, folder, *, record, **limits):
    """Where it listens; what passes is recorded."""
    limits = Limits(**limits)
    front, upstream = front_of(source(way, folder)), Upstream(target=target)
    with recorded_to(options_of(record)) as recording:
        start = partial(start_frames, recording, transport=way, name=upstream.name, limits=limits)
        site = site_of(front, upstream, start=start, limits=limits)
        told, urls = trio.open_memory_channel(1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_site, front, site, told.send_nowait)
            yield await urls.receive()
            nursery.cancel_scope.cancel()
