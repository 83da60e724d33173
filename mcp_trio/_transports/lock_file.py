"""Lock files, as editors leave them for the tools that are to find them: a port, and a token.

Whoever can read the file may connect. So it is for its owner alone, and is there for as long as
somebody listens. One that was left behind is known by its process, which is gone.
"""

import contextlib
import os
import secrets
import stat
from collections.abc import Generator
from pathlib import Path
from typing import Final

import attrs
import msgspec

from mcp_trio._errors import ConfigError
from mcp_trio._transports.locked_place import locked_place

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
        with contextlib.suppress(OSError), locked_place(os.fspath(place)):
            if place.read_bytes() == text:  # and not somebody else's by now
                place.unlink()


def _put(draft: Path, place: Path) -> None:
    """Only where there is nothing yet, or something that was left behind."""
    with locked_place(os.fspath(place)):
        try:
            os.link(draft, place)
        except FileExistsError:
            if read_lock_file(place) is not None:
                raise
            draft.replace(place)
