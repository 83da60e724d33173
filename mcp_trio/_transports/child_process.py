"""A subprocess that leads its own process group, watched from its start to the group's end.

One system task per subprocess reads its stderr and waits for its exit. It alone reaps, because the
group may be signalled safely only while nobody has: until then the number of the group cannot
belong to anybody else. So the group is swept with SIGKILL in the moment between exit and reaping,
always, and whoever wants the subprocess gone signals it or cancels the task, and waits.
"""

import logging
import os
import signal
from contextlib import suppress
from contextvars import copy_context

import attrs
import trio

from mcp_trio._limits import Limits
from mcp_trio._transports.descriptors import Descriptor
from mcp_trio._transports.stderr_tail import StderrTail

_log = logging.getLogger(__name__)


@attrs.define(kw_only=True, eq=False)
class ChildProcess:
    """Owns the subprocess and its stderr; tells `stdout`, whose reader is elsewhere, of the end.

    When the subprocess exits, so does its whole group: what it left behind is killed. What was
    written until then can still be read.
    """

    process: trio.Process
    stdout: Descriptor
    stderr: Descriptor
    tail: StderrTail
    limits: Limits
    exit_status: int | None = attrs.field(default=None, init=False)
    ended: trio.Event = attrs.field(factory=trio.Event, init=False)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)

    def watch(self) -> None:
        """Starts the system task; `ended` is set when it has reaped and read everything."""
        trio.lowlevel.spawn_system_task(
            self._live, name=f"{__name__}.{self.process.pid}", context=copy_context()
        )

    def terminate(self) -> None:
        """Sends SIGTERM to the group."""
        self._signal_group(signal.SIGTERM)

    def kill(self) -> None:
        """Has the group killed and reaped; `ended` follows within `kill_seconds`."""
        self._scope.cancel()

    async def _live(self) -> None:
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._read_stderr)
                    await self._outlive()
        except Exception:  # a system task that raises would end the whole run
            _log.exception("watching a subprocess failed")
        finally:
            self.stderr.close()
            self.ended.set()

    async def _read_stderr(self) -> None:
        while chunk := await self.stderr.read():
            self.tail.feed(chunk)
        self.tail.finish()

    async def _outlive(self) -> None:
        """Waits for the exit; cancelled (also by the end of the run), brings it about."""
        try:
            await self._wait_exit()
        finally:
            self._signal_group(signal.SIGKILL)
            with trio.move_on_after(self.limits.kill_seconds, shield=True):
                self.exit_status = await self.process.wait()
            self.stdout.end()
            self.stderr.end()

    async def _wait_exit(self) -> None:
        try:
            pidfd = os.pidfd_open(self.process.pid)
        except (AttributeError, OSError):  # not Linux, or forbidden by a sandbox
            await self.process.wait()  # reaps: the sweep follows at once
            return
        try:
            await trio.lowlevel.wait_readable(pidfd)
        finally:
            os.close(pidfd)

    def _signal_group(self, number: signal.Signals) -> None:
        if self.exit_status is None:
            with suppress(ProcessLookupError, PermissionError):  # it is empty, or only zombies
                os.killpg(self.process.pid, number)
