"""Lock files with port and token of a server, for the tools that connect to it.

Whoever can read the file may connect. So it is for its owner alone, and is there for as long as
somebody listens. One that was left behind is known by its process, which is gone.
"""

import contextlib
import errno
import fcntl
import os
import secrets
import stat
import time
from collections.abc import Generator
from pathlib import Path
from typing import Final

import attrs
import msgspec

from mcp_trio.errors import ConfigError

# --------------------
# One process at a time looks at what stands at a place in a folder, and puts something else there.
#
# Between the look and the replacement nobody else's file may come: two servers that both find the
# socket or the lock of a dead one must not both take its place. No call of the system does both.
# link(2) puts something only where nothing is; rename(2) replaces whatever has come there
# meanwhile; and who first moves a thing away, to look at it elsewhere, has taken it from its
# clients if it was alive after all, and may not get it back to its place. So there is a lock, by
# flock(2).
#
# What is locked is a file beside the place, `.name.lock`, which is there for that moment alone. It
# is not the folder: whoever may read a folder may lock it, and so could keep everybody out of all
# places in one that many use, such as /tmp. Who can make the file beside could put one at the place
# as well.
#
# - Two look at once: the second waits for the first, and sees what that one has put there.
# - Who has waited may hold the lock of a file that the first has removed, while a third holds that
# of   a new one: so what is locked must be what stands there, or all begins anew.
# - One is killed in between: the system unlocks the file, and the next one takes it over. If the
# dead   one was another user's, it cannot: the error names the file.
# - Somebody else holds it or has put something there: the error names it, and nothing is done.


_TRIES: Final = 50
_PAUSE_SECONDS: Final = 0.002  # what is done meanwhile takes microseconds
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def locked_path(path: str) -> Generator[None]:
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
    """Return whether what stands there is locked by us."""
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


LockPath = str | os.PathLike[str]

_BYTES_MAX: Final = 64 * 1024
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


class _Lock(msgspec.Struct, rename="camel"):
    port: int
    auth_token: str
    pid: int


@attrs.frozen(kw_only=True)
class LockFile:
    """What a lock file says.

    Attributes:
        port: Where somebody listens, on this machine.
        token: What opens the door there.
        pid: Who listens.
    """

    port: int
    token: str = attrs.field(repr=False)
    pid: int

    @property
    def url(self) -> str:
        """That of the WebSocket, at the path that is the default."""
        return f"ws://127.0.0.1:{self.port}/ws"


def read_lock_file(path: LockPath) -> LockFile | None:
    """What it says; None if there is none, or whoever wrote it is gone.

    A number of a process may have become another's: then nobody listens, or the token is wrong.

    Raises:
        ConfigError: It is none, or somebody else could have written it.
        OSError: It cannot be read.
    """
    try:
        with Path(path).open("rb") as file:
            _check_owner(os.fstat(file.fileno()), path)
            text = file.read(_BYTES_MAX)
    except FileNotFoundError:
        return None
    try:
        lock = msgspec.json.decode(text, type=_Lock)
    except (ValueError, RecursionError):
        raise ConfigError(f"{os.fspath(path)}: no lock file: it has port, authToken, pid") from None
    if not _is_alive(lock.pid):
        return None
    return LockFile(port=lock.port, token=lock.auth_token, pid=lock.pid)


def _check_owner(found: os.stat_result, path: LockPath) -> None:
    if found.st_uid not in (os.getuid(), 0) or found.st_mode & _OTHERS_WRITE:
        raise ConfigError(f"{os.fspath(path)}: somebody else could have written this lock file")


def _is_alive(pid: int) -> bool:
    if pid <= 0:  # such a number is no process's, but means a group of them
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it is another user's
        return True
    return True


@contextlib.contextmanager
def lock_file(path: LockPath, *, port: int, token: str) -> Generator[None, None, None]:
    """A lock file of this process, whole from the first moment, and gone behind the block.

    Raises:
        OSError: It cannot be written, or a living process has one there (`FileExistsError`).
        ConfigError: There is another file, that is no lock.
    """
    place = Path(path)
    draft = place.with_name(f".{place.name}.{secrets.token_hex(8)}")
    text = msgspec.json.encode(_Lock(port=port, auth_token=token, pid=os.getpid()))
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
        _put(draft, place)
    finally:
        draft.unlink(missing_ok=True)
    try:
        yield
    finally:
        with contextlib.suppress(OSError), locked_path(os.fspath(place)):
            if place.read_bytes() == text:  # and not somebody else's by now
                place.unlink()


def _put(draft: Path, place: Path) -> None:
    """Only where there is nothing yet, or something that was left behind."""
    with locked_path(os.fspath(place)):
        try:
            os.link(draft, place)
        except FileExistsError:
            if read_lock_file(place) is not None:
                raise
            draft.replace(place)
