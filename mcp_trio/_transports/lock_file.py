"""Lock files with the port and token of a server, for tools that connect to it.

Every process that can read the file may connect. So only its owner can read it, and it exists for
as long as the server listens. The file of a server that has ended is recognised by its process id.

A server replaces the socket or lock file of a server that has ended: it checks the file, and then
replaces it. `locked_path` excludes other processes meanwhile, so that of two servers only one does
this. No system call could do both steps at once: link(2) fails if a file exists, and rename(2)
replaces any file. Nor can a server move the file away to check it: if the file belongs to a server
that is alive, clients would not find that server.

The lock is flock(2) on a file beside the path, `.name.lock`, which exists only while it is locked.
The folder itself is not locked, because every process that can read a folder can lock it, and so
could block all servers with files in /tmp. Only a process that can create the file beside the path
could create one at the path, too.

- A second process waits for the first one, and then sees its file.
- A process that has waited may hold the lock of a file that was removed meanwhile, while a third
  one holds that of a new file. So the locked file must be the one at the path, or it tries again.
- If a process is killed, the system unlocks its file, and the next process takes the file over. It
  cannot take over another user's file; then the error names the file.
"""

import contextlib
import errno
import os
import secrets
import time
from collections.abc import Generator
from pathlib import Path
from typing import Final

import msgspec

from mcp_trio._system import NO_FOLLOW, is_running, is_trusted_file, try_lock
from mcp_trio.errors import ConfigError

LockPath = str | os.PathLike[str]

_TRIES: Final = 50
# A process holds the lock for microseconds, so the wait may block the event loop.
_PAUSE_SECONDS: Final = 0.002
_FLAGS: Final = os.O_RDWR | os.O_CREAT | NO_FOLLOW


@contextlib.contextmanager
def locked_path(path: str) -> Generator[None]:
    """Keep other servers from replacing the file at `path` within the block.

    On file systems without locks, such as some network file systems, the block is not protected.

    Raises:
        OSError: The lock cannot be created, or another process holds it for too long (`EBUSY`).
    """
    flock_path = Path(path).with_name(f".{Path(path).name}.lock")
    for _ in range(_TRIES):
        descriptor = os.open(flock_path, _FLAGS, 0o600)
        try:
            if _try_lock_at(flock_path, descriptor):
                try:
                    yield
                finally:
                    with contextlib.suppress(OSError):  # it is another user's, or already removed
                        flock_path.unlink()
                return
        finally:
            os.close(descriptor)  # this unlocks it
        time.sleep(_PAUSE_SECONDS)
    raise OSError(errno.EBUSY, "another process holds this lock", os.fspath(flock_path))


def _try_lock_at(flock_path: Path, descriptor: int) -> bool:
    """Lock an open file; return whether this process has the lock, and the file is still there."""
    if not try_lock(descriptor):
        return False
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(flock_path))
    except FileNotFoundError:
        return False


_BYTES_MAX: Final = 64 * 1024


class LockFile(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a lock file, a JSON object.

    Attributes:
        port: The port on this machine at which the server listens.
        token: The token that the server requires.
        pid: The process of the server.
    """

    port: int
    token: str = msgspec.field(name="authToken")
    pid: int

    def __repr__(self) -> str:
        """Return a text without the token."""
        return f"LockFile(port={self.port}, pid={self.pid})"

    @property
    def url(self) -> str:
        """The URL of the server's WebSocket, with the default path."""
        return f"ws://127.0.0.1:{self.port}/ws"


def read_lock_file(path: LockPath) -> LockFile | None:
    """Return the content of a lock file; None if there is no file, or its process has ended.

    If the process id was reused, a connection to the port fails, or the token is rejected.

    Raises:
        ConfigError: The file is no lock file, or another user could have written it.
        OSError: The file cannot be read.
    """
    try:
        with Path(path).open("rb") as file:
            if not is_trusted_file(os.fstat(file.fileno())):
                raise ConfigError(
                    f"{os.fspath(path)}: another user could have written this lock file; only its"
                    " owner may be able to write it, which is you or root"
                )
            text = file.read(_BYTES_MAX)
    except FileNotFoundError:
        return None
    try:
        content = msgspec.json.decode(text, type=LockFile)
    except (ValueError, RecursionError):
        raise ConfigError(
            f"{os.fspath(path)}: not a lock file, which has port, authToken and pid"
        ) from None
    # For kill(2), 0 and negative numbers are process groups.
    return content if content.pid > 0 and is_running(content.pid) else None


@contextlib.contextmanager
def lock_file(path: LockPath, *, port: int, token: str) -> Generator[None, None, None]:
    """Keep a lock file of this process at `path` within the block.

    The file is written under another name first, so that no process reads a part of it.

    Raises:
        OSError: The file cannot be written, or a live process has one there (`FileExistsError`).
        ConfigError: The file at `path` is no lock file.
    """
    lock_path = Path(path)
    draft = lock_path.with_name(f".{lock_path.name}.{secrets.token_hex(8)}")
    text = msgspec.json.encode(LockFile(port=port, token=token, pid=os.getpid()))
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
        with locked_path(os.fspath(lock_path)):
            try:
                os.link(draft, lock_path)
            except FileExistsError:
                if read_lock_file(lock_path) is not None:
                    raise
                draft.replace(lock_path)
    finally:
        draft.unlink(missing_ok=True)
    try:
        yield
    finally:
        with contextlib.suppress(OSError), locked_path(os.fspath(lock_path)):
            if lock_path.read_bytes() == text:  # and not that of another process
                lock_path.unlink()
