"""What a task is given to do, and who has tasks."""

from contextvars import Context
from typing import Protocol

import trio


class Job(Protocol):
    """One handler, which is run and then ended."""

    @property
    def wants_own_task(self) -> bool:
        """Whether the task that runs it may run nothing else."""
        ...

    @property
    def is_cancelled(self) -> bool:
        """Whether the scope that it was given is cancelled."""
        ...

    def enter(self) -> None:
        """The context variables are its own from now on; called before it runs."""
        ...

    async def run(self, scope: trio.CancelScope) -> None:
        """Run it; `scope` is all that cancels it, but for the end of everything."""
        ...

    def fail(self, error: Exception) -> None:
        """What it has done is worth nothing: it has failed with this."""
        ...

    async def end(self) -> None:
        """Say what has become of it; called once, outside of the scope if that was cancelled."""
        ...


class Begins(Protocol):
    """Who has tasks for jobs."""

    def begin(self, work: Job, context: Context) -> None:
        """Begin a job, in a task that begins with a copy of these context variables."""
        ...
