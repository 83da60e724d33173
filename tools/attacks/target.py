"""The server under attack, with short time limits: `python target.py --transport NAME`."""

import argparse
import logging
import resource
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import trio
from msgspec import Meta

from mcp_trio import Context, Limits, Server
from mcp_trio.limits import (
    HttpLimits,
    MessageLimits,
    RequestLimits,
    ShutdownLimits,
    WebSocketLimits,
)

# As in production, but for the times and the size of messages. Shorter times would end connections
# that a busy machine only delays.
LIMITS: Final[Mapping[str, Limits]] = {
    "http": Limits(
        http=HttpLimits(headers_seconds=1.0, body_seconds=1.0, idle_seconds=1.5),
        messages=MessageLimits(write_stall_seconds=0.5),
    ),
    "sockets": Limits(
        messages=MessageLimits(bytes_max=1 << 20, write_stall_seconds=1.5),
        http=HttpLimits(headers_seconds=1.5, idle_seconds=1.5),
        requests=RequestLimits(first_request_seconds=2.0),
        websocket=WebSocketLimits(ping_interval_seconds=1.5, pong_seconds=1.5),
        shutdown=ShutdownLimits(close_seconds=0.5, drain_seconds=0.5),
    ),
    "default": Limits(),
    "fair": Limits(),
    "many": Limits(http=HttpLimits(connections_max=8192)),
}
# The requests of `harmful_requests.py` name this path and this host.
HTTP_OPTIONS: Final[Mapping[str, Any]] = {"path": "/outer", "hosts": ["x"]}


async def echo(text: str) -> str:
    """Return the text."""
    return text


async def large(mib: Annotated[int, Meta(ge=1, le=8)]) -> str:
    """Return a long text."""
    return "x" * (mib << 20)


async def pour(*, ctx: Context) -> str:
    """Report progress a million times."""
    for step in range(1_000_000):
        await ctx.report_progress(step, message="x" * 10_000)
        await trio.lowlevel.checkpoint()
    return "poured out"


async def wait(seconds: float) -> str:
    """Answer after so many seconds."""
    await trio.sleep(seconds)
    return "waited"


def block(seconds: float) -> str:
    """Answer after so many seconds, from a thread."""
    time.sleep(seconds)
    return "blocked"


async def ask(*, ctx: Context) -> str:
    """Ask the user for a name, and wait for it."""
    answer = await ctx.elicit("Your name?")
    return answer.action


async def tasks() -> str:
    """Return the number of tasks, without those that idle in the task pool."""
    root = trio.lowlevel.current_root_task()
    assert root is not None
    return f"{sum(not _is_kept(task) for task in _below(root))}"


def _below(task: trio.lowlevel.Task) -> Iterator[trio.lowlevel.Task]:
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            yield child
            yield from _below(child)


def _is_kept(task: trio.lowlevel.Task) -> bool:
    """Return whether the task idles in the task pool or the poller, by its coroutines' names."""
    coroutine: Any = task.coro
    while hasattr(coroutine, "cr_code"):
        if coroutine.cr_code.co_qualname in KEPT:
            return True
        coroutine = coroutine.cr_await
    return False


KEPT: Final = ("TaskPool.next_work", "TaskPool._end_unneeded", "Poller.next")


def allow_descriptors() -> None:
    """Raise this process's limit of file descriptors: each connection takes one at either end."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def main() -> None:
    sys.path.append(str(Path(__file__).resolve().parent.parent / "bench"))
    import serve_sockets

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transport", choices=serve_sockets.STARTS, required=True)
    parser.add_argument("--address", default="0", help="a port, or the path of a socket file")
    parser.add_argument("--limits", choices=LIMITS, required=True)
    parser.add_argument("--certificate", nargs=2, help="a file, and the file of its key")
    options = parser.parse_args()
    allow_descriptors()
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(message)s")
    server = Server("target", limits=LIMITS[options.limits])
    for tool in (echo, large, pour, wait, block, ask, tasks):
        server.tool(tool)
    more = HTTP_OPTIONS if options.limits in {"http", "fair", "many"} else {}
    if options.certificate is not None:
        certfile, keyfile = options.certificate
        more = {**more, "certfile": certfile, "keyfile": keyfile}
    serve_sockets.run(server, options.transport, options.address, **more)


if __name__ == "__main__":
    main()
