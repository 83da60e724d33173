"""The debugger that opens where a replay stops."""

import contextlib
import os
import pdb  # noqa: T100  the debugger of `breakpoint()`
import sys
from types import FrameType, TracebackType
from typing import Any, Final

from mcp_trio._replay.replayer import StoppedReplay
from mcp_trio._session.call_sites import owner_of
from mcp_trio._session.lanes import without_lane

# The values of `PYTHONBREAKPOINT` that mean pdb.
_PDB_HOOKS: Final = frozenset({"", "pdb.set_trace"})


def open_debugger(stopped: StoppedReplay) -> None:
    """Open the debugger of `breakpoint()` in the calling task.

    That is pdb, with the frame of the user's code selected, unless `PYTHONBREAKPOINT` names another
    one, which is called as it is. If the user quits pdb, the replay ends.
    """
    is_replaced = sys.breakpointhook is not sys.__breakpointhook__
    if is_replaced or os.environ.get("PYTHONBREAKPOINT", "") not in _PDB_HOOKS:
        with without_lane():
            breakpoint()  # noqa: T100  this is its purpose
    else:
        _Debugger(stopped).open()


class _Debugger(pdb.Pdb):
    """A pdb that begins in the frames of a waiting task, or when a task enters its handler."""

    def __init__(self, stopped: StoppedReplay) -> None:
        super().__init__(nosigint=True)  # Trio handles SIGINT.
        self._end = stopped.end
        self._frames = stopped.frames
        self._entry = None if stopped.frames else stopped.entry

    def open(self) -> None:
        """Stop here, with the frames of the task, or go on to its entry and stop there."""
        self.set_trace(sys._getframe())  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  documented
        return  # noqa: PLR1711  pdb stops at this line

    def interaction(self, frame: FrameType | None, traceback: Any) -> None:
        """Read commands, on the terminal on which the debugger was opened."""
        if self._entry is not None:
            entry, self._entry = self._entry, None
            self.set_break(*entry, temporary=True)
            self.set_continue()
            return
        with contextlib.redirect_stdout(self.stdout), without_lane():
            super().interaction(frame, traceback)

    def user_exception(self, frame: FrameType, exc_info: Any) -> None:
        """Stop at an exception in the user's code.

        While a coroutine waits, other coroutines end, each by `StopIteration`. pdb would stop at
        each of them.
        """
        if owner_of(frame.f_code.co_filename) == "user":
            super().user_exception(frame, exc_info)

    def get_stack(
        self, f: FrameType | None, t: TracebackType | None
    ) -> tuple[list[tuple[FrameType, int]], int]:
        """Return the frames of the waiting task at the first stop, and the running ones later."""
        frames, self._frames = self._frames, ()
        return ([*frames], len(frames) - 1) if frames else super().get_stack(f, t)

    def set_quit(self) -> None:
        """End the replay, in place of raising an error in the user's code."""
        self.clear_all_breaks()
        self.set_continue()
        self._end()
