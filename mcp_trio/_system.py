"""Functions of the operating system that some systems lack, with a replacement for each.

Linux has all of them. The branches compare `sys.platform`, because type checkers evaluate that:
`nox -s types` checks them for Linux, macOS and Windows. Other modules have branches of their own
for smaller differences. `docs/reference/systems.md` lists what differs for users.
"""

import contextlib
import errno
import os
import sys
from pathlib import Path
from typing import Final

from mcp_trio.errors import ConfigError

# The numbers, by POSIX, of two signals that `signal` lacks on Windows. There, `os.kill` ends a
# process with such a number as its exit status.
SIGHUP: Final = 1
SIGKILL: Final = 9

if sys.platform == "win32":
    import ctypes
    import msvcrt

    NO_FOLLOW: Final = 0
    """For `os.open`: reject a symbolic link. Windows lets only administrators create one."""

    WRITE_FLAGS: Final = os.O_BINARY
    """For `os.open`: write bytes as they are, and do not wait for the reader of a FIFO."""

    # The byte that is locked is far behind the content: other processes cannot read a locked byte.
    _LOCKED_BYTE: Final = 2**40
    _QUERY_LIMITED_INFORMATION: Final = 0x1000
    _STILL_ACTIVE: Final = 259

    def try_lock(descriptor: int, *, is_shared: bool = False) -> bool:
        """Lock a file until it is closed; return False if another process has locked it.

        A file system without locks gives a lock to all.
        """
        position = os.lseek(descriptor, 0, os.SEEK_CUR)
        try:
            os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
            mode = msvcrt.LK_NBRLCK if is_shared else msvcrt.LK_NBLCK
            msvcrt.locking(descriptor, mode, 1)
        except OSError as error:
            return error.errno not in {errno.EACCES, errno.EDEADLK}
        finally:
            os.lseek(descriptor, position, os.SEEK_SET)
        return True

    def is_running(pid: int) -> bool:
        """Return whether there is a process with this id."""
        kernel = ctypes.WinDLL("kernel32")
        process = kernel.OpenProcess(_QUERY_LIMITED_INFORMATION, 0, pid)
        if not process:
            return False
        try:
            status = ctypes.c_ulong()
            has_status = kernel.GetExitCodeProcess(process, ctypes.byref(status))
            return not has_status or status.value == _STILL_ACTIVE
        finally:
            kernel.CloseHandle(process)

    def is_trusted_file(_status: os.stat_result, /) -> bool:
        """Return True: on Windows, the mode of a file does not say which users can write it."""
        return True

else:
    import fcntl
    import stat

    NO_FOLLOW: Final = os.O_NOFOLLOW
    WRITE_FLAGS: Final = os.O_NONBLOCK

    def try_lock(descriptor: int, *, is_shared: bool = False) -> bool:
        """Lock a file until it is closed; return False if another process has locked it.

        A file system without locks, such as some network file systems, gives a lock to all.

        Raises:
            OSError: Locking failed for another reason.
        """
        mode = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX
        try:
            fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS}:
                raise
        return True

    def is_running(pid: int) -> bool:
        """Return whether there is a process with this id."""
        try:
            os.kill(pid, 0)
        except (ProcessLookupError, OverflowError):  # An id that is too large is of no process.
            return False
        except PermissionError:  # a process of another user
            pass
        return True

    def is_trusted_file(status: os.stat_result, /) -> bool:
        """Return whether only this user and root could have written a file."""
        is_owner_trusted = status.st_uid in {os.getuid(), 0}
        return is_owner_trusted and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def make_private(descriptor: int) -> None:
    """Let only the owner read and write a file, on systems with modes."""
    if sys.platform != "win32":
        os.fchmod(descriptor, 0o600)


def sync_data(descriptor: int) -> None:
    """Wait until the content of a file is on the disk."""
    if sys.platform == "linux":
        os.fdatasync(descriptor)
    else:
        os.fsync(descriptor)


def open_process_end(pid: int) -> int | None:
    """Return a descriptor that becomes readable when a process ends; the caller closes it.

    Return None if the system has no such descriptors, a sandbox forbids them, or the process has
    ended.
    """
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError, OSError):  # a kernel or C library that is old
            return os.pidfd_open(pid)
    return None


def home_folder() -> Path:
    """Return the user's home folder.

    Raises:
        ConfigError: There is none, as for the user of some containers.
    """
    try:
        return Path.home()
    except RuntimeError:
        variable = "USERPROFILE" if sys.platform == "win32" else "HOME"
        raise ConfigError(
            f"this user has no home folder: set the environment variable {variable}"
        ) from None


def state_folder() -> Path:
    """Return the folder for this program in the user's state directory.

    https://specifications.freedesktop.org/basedir-spec/latest/

    Raises:
        ConfigError: Neither a variable nor the user's home folder names it.
    """
    variable = os.environ.get("XDG_STATE_HOME", "")
    if Path(variable).is_absolute():
        return Path(variable) / "mcp-trio"
    if sys.platform == "darwin":
        return home_folder() / "Library" / "Application Support" / "mcp-trio"
    return home_folder() / ".local" / "state" / "mcp-trio"
