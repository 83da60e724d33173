"""Tools of the servers under attack."""

import resource
from collections.abc import Iterator
from typing import Any, Final

import trio

from mcp_trio import Context


async def echo(text: str) -> str:
    """Return the text."""
    return text


async def pour(*, ctx: Context) -> str:
    """Report progress a million times."""
    for step in range(1_000_000):
        await ctx.progress(step, message="x" * 10_000)
        await trio.lowlevel.checkpoint()
    return "poured out"


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
TOOLS: Final = (echo, pour, tasks)


def allow_descriptors() -> None:
    """Raise this process's limit of file descriptors: each connection takes one at either end."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
