"""One process at a time looks at what stands at a place in a folder, and puts something else there.

Between the look and the replacement nobody else's file may come: two servers that both find the
socket or the lock of a dead one must not both take its place. No call of the system does both.
link(2) puts something only where nothing is; rename(2) replaces whatever has come there meanwhile;
and who first moves a thing away, to look at it elsewhere, has taken it from its clients if it was
alive after all, and may not get it back to its place. So there is a lock, by flock(2).

What is locked is a file beside the place, `.name.lock`, which is there for that moment alone. It is
not the folder: whoever may read a folder may lock it, and so could keep everybody out of all places
in one that many use, such as /tmp. Who can make the file beside could put one at the place as well.

- Two look at once: the second waits for the first, and sees what that one has put there.
- Who has waited may hold the lock of a file that the first has removed, while a third holds that of
  a new one: so what is locked must be what stands there, or all begins anew.
- One is killed in between: the system unlocks the file, and the next one takes it over. If the dead
  one was another user's, it cannot: the error names the file.
- Somebody else holds it or has put something there: the error names it, and nothing is done.
"""

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Final

_TRIES: Final = 50
_PAUSE_SECONDS: Final = 0.002  # what is done meanwhile takes microseconds
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def locked_place(path: str) -> Generator[None]:
    """Within the block, no other process of ours replaces what stands at `path`.

    Where files cannot be locked, as on some network file systems, nothing is.

    Raises:
        OSError: The file beside cannot be made, or somebody else holds it for too long (`EBUSY`).
    """
    with _locked(Path(path).with_name(f".{Path(path).name}.lock")):
        yield


def _locked(beside: Path) -> contextlib.ExitStack:
    """Removes the file, and then unlocks it."""
    for _ in range(_TRIES):
        with contextlib.ExitStack() as stack:
            descriptor = os.open(beside, _FLAGS, 0o600)
            stack.callback(os.close, descriptor)
            if _has_locked(descriptor, beside):
                stack.callback(_remove, beside)
                return stack.pop_all()
        time.sleep(_PAUSE_SECONDS)
    raise OSError(errno.EBUSY, "somebody else holds this file", os.fspath(beside))


def _has_locked(descriptor: int, beside: Path) -> bool:
    """Whether what stands there is locked by us."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # there are no locks here
        return True
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(beside))
    except FileNotFoundError:
        return False


def _remove(beside: Path) -> None:
    with contextlib.suppress(OSError):  # it is another user's, or somebody was faster
        beside.unlink()
