"""One process at a time looks at what stands in a folder and puts something else there.

Between the look and the replacement nobody else's file may come: two servers that both find the
socket or the lock of a dead one must not both take its place. What is locked is the folder itself,
by flock(2): nothing is left behind, not even by a process that is killed.
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


@contextlib.contextmanager
def locked_folder(path: str) -> Generator[None]:
    """Within the block, no other process of ours replaces what stands beside `path`.

    Where folders cannot be locked, as on some network file systems, nothing is.

    Raises:
        OSError: Somebody else has it locked for too long (`EBUSY`).
    """
    folder = Path(path).parent
    with contextlib.ExitStack() as stack:
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:  # it is not there, or not to be read: whoever writes there hears of it
            yield
            return
        stack.callback(os.close, descriptor)
        _lock(descriptor, folder)
        yield


def _lock(descriptor: int, folder: Path) -> None:
    for _ in range(_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_PAUSE_SECONDS)
        except OSError:
            return
        else:
            return
    raise OSError(errno.EBUSY, "somebody else is making something in this folder", str(folder))
