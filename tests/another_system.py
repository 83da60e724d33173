"""Code for a process that lets this package believe to be on Windows or on macOS.

Other packages were imported before, and go on as on the real system: only the branches of this
package are tried, without what they must not use.
"""

import importlib
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import types
from functools import partial
from pathlib import Path

import trio

import mcp_trio

# What Windows lacks, apart from what Trio itself needs here.
LACKING = {
    os: "fork forkpty killpg getpgid getuid geteuid setsid umask fchmod fdatasync set_blocking"
    " pidfd_open mkfifo O_NONBLOCK O_NOFOLLOW O_CLOEXEC O_ACCMODE",
    signal: "SIGHUP SIGUSR1 SIGALRM pthread_sigmask",
    socket: "AF_UNIX MSG_DONTWAIT SO_PEERCRED",
    select: "PIPE_BUF",
}
MODULES = ("fcntl", "resource", "termios", "tty", "pty", "pwd", "grp", "syslog")


def import_all():
    """Import every module of the package; return their number."""
    modules = [
        each.name
        for each in pkgutil.walk_packages(mcp_trio.__path__, "mcp_trio.")
        if "templates" not in each.name and not each.name.endswith("__main__")
    ]
    for name in modules:
        importlib.import_module(name)
    return len(modules)


def forget_all():
    """Let the package be imported once more."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "mcp_trio"]:
        del sys.modules[name]


def remove(module, names):
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)


def become_windows():
    """Take away what Windows lacks, and stand in for the four things that it has instead."""
    import_all()
    forget_all()
    socket.socketpair = partial(socket.socketpair, socket.AF_UNIX)  # Trio's own
    for module, names in LACKING.items():
        remove(module, names)
    sys.modules.update(dict.fromkeys(MODULES))
    sys.platform = "win32"
    os.O_BINARY = 0
    signal.CTRL_BREAK_EVENT = signal.SIGTERM
    subprocess.CREATE_NEW_PROCESS_GROUP = 0x200
    sys.modules["msvcrt"] = types.SimpleNamespace(LK_NBLCK=2, LK_NBRLCK=4, locking=lambda *_: None)
    real_open = trio.lowlevel.open_process

    def open_process(command, *, creationflags, **options):
        assert creationflags == subprocess.CREATE_NEW_PROCESS_GROUP
        return real_open(command, start_new_session=True, **options)

    trio.lowlevel.open_process = open_process


def become_macos():
    """Take away what macOS lacks."""
    import_all()
    forget_all()
    remove(os, "fdatasync pidfd_open")
    remove(socket, "SO_PEERCRED")
    sys.platform = "darwin"


if __name__ == "__main__":
    {"windows": become_windows, "macos": become_macos}[sys.argv[1]]()
    sys.argv[:2] = []
    code = Path(sys.argv[0]).read_text(encoding="utf-8")
    exec(compile(code, sys.argv[0], "exec"), {"__name__": "__main__"})
