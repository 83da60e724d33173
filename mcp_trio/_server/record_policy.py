"""Running a `RecordPolicy` while a server serves."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from mcp_trio._recorder.writer import RecordOptions, RecordTarget

if TYPE_CHECKING:
    from mcp_trio._recorder.policy import PolicyRun


@asynccontextmanager
async def policy_run(record: RecordTarget | None) -> AsyncGenerator["PolicyRun | None"]:
    """Run the policy within the block, if the target of the recordings is one.

    Raises:
        RecordingError: The folder of the recordings cannot be used.
    """
    if not (isinstance(record, RecordOptions) and record.is_policy):
        yield None
        return
    # These modules are imported by those servers only that have a policy.
    from mcp_trio._catalogue.keeper import Keeper
    from mcp_trio._recorder.policy import PolicyRun, RecordPolicy

    assert isinstance(record, RecordPolicy)
    run = PolicyRun(record)
    run.open_folder()
    keeper, ended, scope = Keeper(run), trio.Event(), trio.CancelScope()

    async def keep() -> None:
        try:
            with scope:
                await keeper.run()
            await keeper.end()
        finally:
            ended.set()

    # A nursery would put the errors of the block into a group.
    trio.lowlevel.spawn_system_task(keep)
    try:
        yield run
    finally:
        keeper.is_ending = True
        scope.cancel()
        with trio.CancelScope(shield=True):
            await ended.wait()
