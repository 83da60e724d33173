"""Serving over this process's own stdin and stdout, until a signal or the end of the parent."""

import os
from functools import partial
from typing import TYPE_CHECKING

import trio

from mcp_trio._server.signals import run_until_signal
from mcp_trio._session.exceptions import raise_unchanged, sole_exception
from mcp_trio._session.session import Session
from mcp_trio._transports.stdio import divert_stdio, open_stdio_channel, wait_parent_death
from mcp_trio.errors import ConnectionLost

if TYPE_CHECKING:
    from mcp_trio._recorder.options import RecordTarget
    from mcp_trio._server.server import Server


async def serve_stdio(
    server: "Server",
    *,
    record: "RecordTarget | None" = None,
    descriptors: tuple[int, int] | None = None,
    task_status: trio.TaskStatus[Session] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve one session over stdin and stdout, until the client or the parent process has ended.

    `descriptors` are the result of `divert_stdio`; without them, this function calls it. When the
    session has ended, the lifespan has `limits.shutdown.close_seconds` to exit, and is cancelled
    after that. If this is cancelled, the session is closed in bounded time.

    Raises:
        Exception: The error that `server.serve` raised, not in an exception group.
    """
    parent_pid = os.getppid()
    channel = open_stdio_channel(*(descriptors or divert_stdio()), limits=server.limits)

    async def serve(*, task_status: trio.TaskStatus[Session]) -> None:
        await server.serve(channel, record=record, task_status=task_status)
        nursery.cancel_scope.cancel()  # Stop `end_with_parent`: session and lifespan have ended.

    async def end_with_parent() -> None:
        await wait_parent_death(parent_pid=parent_pid, limits=server.limits)
        session.shut("lost", ConnectionLost("the parent process is gone"))

    try:
        async with trio.open_nursery() as nursery:
            session: Session = await nursery.start(serve)
            nursery.start_soon(end_with_parent)
            task_status.started(session)
            await session.ended.wait()
            # `server.serve` still exits the lifespan now.
            nursery.cancel_scope.deadline = (
                trio.current_time() + server.limits.shutdown.close_seconds
            )
    except ExceptionGroup as error:
        raise_unchanged(sole_exception(error))


def run_stdio(
    server: "Server",
    *,
    record: "RecordTarget | None" = None,
    descriptors: tuple[int, int] | None = None,
) -> None:
    """Call `trio.run` with `serve_stdio`, which SIGINT and SIGTERM end as well.

    The process also exits `limits.shutdown.exit_seconds` after the end of its parent.
    """
    # Before Trio starts: if stdin was never open, Trio would use its descriptor for something else.
    descriptors = descriptors or divert_stdio()
    run_until_signal(
        partial(serve_stdio, server),
        exit_seconds=server.limits.shutdown.exit_seconds,
        on_serving=lambda _session: None,  # nothing is to be done or printed when serving begins
        stop=lambda session: session.shut("signal"),
        parent_pid=os.getppid(),
        record=record,
        descriptors=descriptors,
    )
