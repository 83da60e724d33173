"""Untracked calls: calls by which a handler reads or changes the outside without its context.

A replay returns recorded values for what a handler asks of its context, and for the clocks and
random numbers of the module `captured`. A file, a process or a socket that the handler uses itself
is an *untracked call*. Python reports most of these calls to an audit hook (PEP 578) before they
happen, under whatever name they are called: `_EVENTS`. Functions without an audit event are
replaced: `_FUNCTIONS`. In both tables a rule tells whether a call *changes* the outside, which a
replay must not repeat, or only *reads* it.

An audit hook can never be removed. It is installed with the first recording or replay, and first
looks whether the calling task is in a lane. Only calls of users and libraries in a lane count. The
function of an effect runs without a lane, because its result is recorded. The standard streams
count as a log: writing to them is no untracked call.

While a replay imports the server, the calls of its modules are noted as well, and a divergence
lists them: they are not recorded, and may have other results in a replay.

Three things go unnoticed: calls of libraries in C that raise no audit event; calls of threads that
were started earlier; and uses of the order of a set, or of a `hash` or `id` that a user's code does
not call by name.
"""

import importlib
import logging
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar, Token
from functools import partial
from pathlib import PurePath
from types import FrameType
from typing import Any, Final, Self

import attrs
import msgspec
import trio

from mcp_trio._session.call_sites import (
    is_collecting_garbage,
    location,
    note_garbage_collections,
    owner_of,
    public_name,
    responsible_frame,
)
from mcp_trio._session.captured import (
    ImportNotes,
    capture,
    rebind_in_users_modules,
    replace_function,
)
from mcp_trio._session.journal import Sequencer
from mcp_trio._session.lanes import LANE, Lane
from mcp_trio.errors import BlockedInReplay, UntrackedNondeterminism

logger = logging.getLogger("mcp_trio")

IMPORT_LANE: Final = "import"


class UntrackedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a user's code that a replay cannot repeat.

    Attributes:
        call: The public name of the function.
        location: The position in the user's code, such as "at desk.py:12".
        lane: The name of the lane; "import" if the module was being imported.
        instead: The replacement that a replay can repeat.
        changes_outside: Whether the call changes the outside world, so that a replay rejects it.
        target: The path or name that was read or changed; empty if there is none.
    """

    call: str
    location: str
    lane: str
    instead: str
    changes_outside: bool = False
    target: str = ""

    @property
    def text(self) -> str:
        """The call with its location, such as "os.remove('a.txt') at desk.py:12"."""
        return f"{self.call}({self.target and repr(self.target)}) {self.location}"

    def __str__(self) -> str:
        if self.lane == IMPORT_LANE:
            return f"{self.text}, when the module was imported: use {self.instead}"
        return f"{self.text} in lane {self.lane}: use {self.instead}"


# The tables ---------------------------------------------------------------------------------------

_STDERR: Final = 2


class _Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule for calls.

    Attributes:
        instead: The replacement that a replay can repeat.
        changes_outside: Whether the call changes the outside.
        target: The index of the argument that is a path or name; None if there is none.
        applies: Whether a call with these arguments counts.
        users_only: Whether calls by libraries do not count.
        call: The name of the call, whichever function a user called for it.
    """

    instead: str
    changes_outside: bool = False
    target: int | None = None
    applies: Callable[[Sequence[Any]], bool] = lambda _: True
    users_only: bool = False
    call: str | None = None


def _changes(instead: str, target: int | None = None, **options: Any) -> _Rule:
    return _Rule(instead=instead, changes_outside=True, target=target, **options)


def _reads(instead: str, target: int | None = None, **options: Any) -> _Rule:
    return _Rule(instead=instead, target=target, **options)


def _is_other_descriptor(arguments: Sequence[Any]) -> bool:
    """Return whether the first argument is no descriptor of a standard stream."""
    return not arguments or arguments[0] > _STDERR


def _is_file(arguments: Sequence[Any]) -> bool:
    """Return whether the first argument, a writer, is a file: no standard stream or null device."""
    try:
        if arguments[0].fileno() <= _STDERR or arguments[0].name == os.devnull:
            return False
    except (AttributeError, IndexError, OSError, ValueError):
        return False
    for stream in (sys.stdout, sys.stderr):
        buffer = getattr(stream, "buffer", None)
        if any(arguments[0] is each for each in (stream, buffer, getattr(buffer, "raw", None))):
            return False
    return True


def _has_unstable_hash(arguments: Sequence[Any]) -> bool:
    """Return whether the hash of the first argument may differ between processes."""
    return bool(arguments) and not isinstance(arguments[0], int | float | complex)


_WRITE_FILE: Final = _changes("an @effect that writes the file", 0)
_READ_FILE: Final = _reads("an @effect that reads the file", 0)
_CHANGE_FILES: Final = _changes("an @effect that changes the files", 0)
_LOOK_AT_FILES: Final = _reads("an @effect that looks at the files", 0)
_PROCESS: Final = _changes("an @effect that runs it")
_SIGNAL: Final = _changes("an @effect that does it, or the lifespan")
_SETTING: Final = _changes("an @effect that sets it", 0)
_SET_ENVIRONMENT: Final = _changes("an @effect that sets it", 0, call="os.environ")
_NETWORK: Final = _changes("ctx.http, or an @effect that does it")
_DATABASE: Final = _changes("an @effect that uses the database")
_THREAD: Final = _changes("ctx.to_thread()")
_SLEEP: Final = _changes("ctx.sleep()")
_NATIVE: Final = _changes("an @effect that calls the C library")
_ENVIRONMENT: Final = _reads("an @effect that reads it", 1, call="os.environ")
_SYSTEM: Final = _reads("an @effect that reads it")
_SECRET: Final = _reads("ctx.random, or an @effect if it has to stay secret")
_HASH: Final = _reads("hashlib", applies=_has_unstable_hash, users_only=True)
_IDENTITY: Final = _reads("a number of your own", users_only=True)
_PROCESS_STATE: Final = _reads("an @effect that reads it", users_only=True)


def _table(*rows: tuple[_Rule, *tuple[str, ...]]) -> dict[str, _Rule]:
    return {name: rule for rule, *names in rows for name in " ".join(names).split()}


_OPEN: Final = "open"

# Audit events. The flags of `open` tell whether it is a change (`_hook`).
_EVENTS: Final[Mapping[str, _Rule]] = _table(
    (_READ_FILE, "open"),
    (
        _CHANGE_FILES,
        "os.remove os.rename os.rmdir os.mkdir os.link os.symlink os.truncate os.chmod os.chown",
        "os.chflags os.utime os.setxattr os.removexattr shutil.copyfile shutil.copymode",
        "shutil.copystat shutil.copytree shutil.move shutil.rmtree shutil.make_archive",
        "shutil.unpack_archive shutil.chown tempfile.mkstemp tempfile.mkdtemp",
    ),
    (
        _LOOK_AT_FILES,
        "os.listdir os.scandir os.walk os.fwalk os.getxattr os.listxattr os.listdrives",
        "os.listmounts os.listvolumes",
    ),
    (
        _changes("an @effect that does it"),
        "os.lockf fcntl.flock fcntl.lockf fcntl.ioctl fcntl.fcntl mmap.__new__ builtins.input",
        "webbrowser.open syslog.openlog syslog.syslog syslog.closelog syslog.setlogmask",
    ),
    (
        _PROCESS,
        "subprocess.Popen os.system os.exec os.fork os.forkpty os.posix_spawn os.spawn pty.spawn",
        "os.startfile",
    ),
    (_SIGNAL, "os.kill os.killpg signal.pthread_kill"),
    (_SET_ENVIRONMENT, "os.putenv os.unsetenv"),
    (_SETTING, "os.chdir resource.setrlimit resource.prlimit"),
    (
        _NETWORK,
        "socket.__new__ socket.bind socket.connect socket.sendto socket.sendmsg socket.getaddrinfo",
        "socket.gethostbyname socket.gethostbyaddr socket.getnameinfo socket.sethostname",
        "http.client.connect http.client.send ftplib.connect ftplib.sendcmd smtplib.connect",
        "smtplib.send imaplib.open imaplib.send poplib.connect poplib.putline nntplib.connect",
        "nntplib.putline telnetlib.Telnet.open telnetlib.Telnet.write urllib.Request",
    ),
    (_changes("an @effect that uses the database", 0), "sqlite3.connect"),
    (_DATABASE, "sqlite3.enable_load_extension sqlite3.load_extension"),
    (_THREAD, "_thread.start_new_thread _thread.start_joinable_thread"),
    (_SLEEP, "time.sleep"),
    (_NATIVE, "ctypes.dlopen ctypes.dlsym ctypes.dlsym/handle ctypes.call_function"),
    (_SYSTEM, "socket.gethostname socket.getservbyname socket.getservbyport"),
    (_IDENTITY, "builtins.id"),
)

# Functions that raise no audit event in some Python. A module that is not imported is skipped until
# the next recording or replay, unless it is one of `_PRELOADED`, and so is a function that this
# Python or system lacks.
_FUNCTIONS: Final[Mapping[str, _Rule]] = _table(
    (_SLEEP, "time.sleep"),
    (
        _THREAD,
        "_thread.start_new_thread threading.Thread.start trio.to_thread.run_sync",
        "concurrent.futures.thread.ThreadPoolExecutor.submit",
        "concurrent.futures.process.ProcessPoolExecutor.submit",
        # No audit hook of this interpreter notices the calls of another one.
        "concurrent.interpreters.Interpreter.exec concurrent.interpreters.Interpreter.call",
    ),
    (_changes("ctx.to_thread()", users_only=True), "trio.lowlevel.start_thread_soon"),
    (_changes("the lifespan", users_only=True), "atexit.register"),
    (_changes("an @effect that uses the file", 0), "trio.open_file"),
    (_PROCESS, "trio.run_process trio.lowlevel.open_process os.abort os._exit"),
    (
        _SIGNAL,
        "signal.signal signal.alarm signal.setitimer signal.raise_signal signal.set_wakeup_fd",
        "signal.pthread_sigmask signal.siginterrupt",
    ),
    (_CHANGE_FILES, "os.mkfifo os.mknod"),
    (
        _changes("an @effect that does it", applies=_is_other_descriptor),
        "os.write os.pwrite os.writev os.pwritev os.sendfile os.posix_fallocate",
    ),
    (
        _changes("an @effect that writes the file", applies=_is_file),
        "io.TextIOWrapper.write io.BufferedWriter.write io.BufferedRandom.write io.FileIO.write",
        "io.TextIOWrapper.truncate io.BufferedWriter.truncate io.BufferedRandom.truncate",
        "io.FileIO.truncate",
    ),
    (_changes("an @effect that does it"), "webbrowser.open"),
    (_changes("an @effect that does it"), "os.copy_file_range os.splice os.dup2"),
    (
        _changes("an @effect that sets it"),
        "os.umask os.nice os.setpriority time.tzset os.sched_setaffinity os.sched_setscheduler",
        "os.sched_setparam os.setuid os.setgid os.seteuid os.setegid os.setreuid os.setregid",
        "os.setresuid os.setresgid os.setgroups os.initgroups os.setsid os.setpgid os.setpgrp",
        "os.chroot",
    ),
    (_PROCESS, "_posixsubprocess.fork_exec"),
    (_changes("an @effect that does it", 0), "_posixshmem.shm_open _posixshmem.shm_unlink"),
    (_WRITE_FILE, "dbm.gnu.open dbm.ndbm.open"),
    (
        _NETWORK,
        "socket.socket.send socket.socket.sendall socket.socket.sendmsg socket.socket.recv",
        "socket.socket.recv_into socket.socket.recvfrom socket.socket.recvfrom_into",
        "socket.socket.recvmsg socket.socket.recvmsg_into socket.socket.listen",
        "socket.socket.accept ssl.SSLSocket.send ssl.SSLSocket.sendall ssl.SSLSocket.recv",
        "ssl.SSLSocket.recv_into ssl.SSLSocket.read ssl.SSLSocket.write",
    ),
    (
        _DATABASE,
        "sqlite3.Connection.execute sqlite3.Connection.executemany",
        "sqlite3.Connection.executescript sqlite3.Connection.commit sqlite3.Connection.rollback",
        "sqlite3.Connection.backup sqlite3.Cursor.execute sqlite3.Cursor.executemany",
        "sqlite3.Cursor.executescript",
    ),
    (_LOOK_AT_FILES, "os.stat os.lstat os.access os.readlink os.statvfs"),
    (
        _ENVIRONMENT,
        "os._Environ.__getitem__ os._Environ.__iter__ os._Environ.__len__ os._Environ.__repr__",
    ),
    (
        _SYSTEM,
        "os.getpid os.getppid os.getpgid os.getsid os.getuid os.getgid os.getlogin os.getcwd",
        "os.getcwdb os.uname os.cpu_count os.getloadavg os.times os.sched_getaffinity",
        "os.get_terminal_size resource.getrusage pwd.getpwnam pwd.getpwuid pwd.getpwall",
        "grp.getgrnam grp.getgrgid grp.getgrall socket.if_nameindex socket.if_nametoindex",
        "socket.if_indextoname uuid.getnode",
    ),
    (
        _SECRET,
        "os.urandom os.getrandom random.SystemRandom.random random.SystemRandom.getrandbits",
        "random.SystemRandom.randbytes",
    ),
    (
        _reads("an @effect that reads the file", 1),
        "ssl.SSLContext.load_cert_chain ssl.SSLContext.load_verify_locations",
    ),
    # `platform` keeps these results, so that later calls cause no audit event.
    (
        _PROCESS_STATE,
        "platform.uname platform.node platform.system platform.release platform.version",
        "platform.machine platform.processor platform.platform platform.freedesktop_os_release",
    ),
    (
        _PROCESS_STATE,
        "threading.get_native_id threading.active_count threading.enumerate gc.get_count",
        "gc.get_objects gc.get_stats sys.getallocatedblocks",
    ),
    (_IDENTITY, "threading.get_ident"),
    (_HASH, "builtins.hash"),
)

# Modules with functions of the table that a handler may import by itself. They are imported first:
# this takes less than a millisecond, and nothing else would notice these calls.
_PRELOADED: Final = ("resource", "pwd", "grp", "_posixshmem", "dbm.gnu", "dbm.ndbm")

# Public names of what the tables name otherwise.
_PUBLIC_NAMES: Final[Mapping[str, str]] = {
    "socket.__new__": "socket.socket",
    "mmap.__new__": "mmap.mmap",
    "builtins.id": "id",
    "builtins.hash": "hash",
    "builtins.input": "input",
}

_WRITING_FLAGS: Final = (
    os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | getattr(os, "O_TMPFILE", 0)
) & ~getattr(os, "O_DIRECTORY", 0)


# Watches ------------------------------------------------------------------------------------------

# The number of paths or names that are listed for one line; the others count as one.
_TARGETS_MAX: Final = 10
_OTHER_TARGETS: Final = "…"

_WATCH: Final[ContextVar["UntrackedCallWatch | None"]] = ContextVar("mcp_trio_watch", default=None)


@attrs.define(eq=False, kw_only=True, repr=False)
class UntrackedCallWatch:
    """A context manager that reports the untracked calls of tasks that begin inside it.

    An exception of `on_untracked_call` is raised at the call, which then does not happen.

    Attributes:
        on_untracked_call: Called with each untracked call before it happens.
        blocks: Whether a call that changes the outside raises `BlockedInReplay`.
    """

    on_untracked_call: Callable[[UntrackedCall], None]
    blocks: bool = False
    _targets: defaultdict[tuple[str, str], set[str]] = attrs.field(
        factory=lambda: defaultdict[tuple[str, str], set[str]](set), init=False
    )
    _token: "Token[UntrackedCallWatch | None] | None" = attrs.field(default=None, init=False)

    def __enter__(self) -> Self:
        _INSTALLATION.install()
        self._token = _WATCH.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._token is not None
        _WATCH.reset(self._token)

    def report(self, untracked_call: UntrackedCall) -> None:
        """Report an untracked call that is about to happen.

        Raises:
            BlockedInReplay: It changes the outside, and this watch blocks such calls.
        """
        targets = self._targets[untracked_call.call, untracked_call.location]
        if len(targets) < _TARGETS_MAX:
            targets.add(untracked_call.target)
        elif untracked_call.target not in targets and not untracked_call.changes_outside:
            untracked_call = msgspec.structs.replace(untracked_call, target=_OTHER_TARGETS)
        token = _WATCH.set(None)  # What the report itself does is not reported.
        try:
            self.on_untracked_call(untracked_call)
        finally:
            _WATCH.reset(token)
        if self.blocks and untracked_call.changes_outside:
            raise BlockedInReplay(
                f"{untracked_call.text} was not done, because a replay changes nothing outside: use"
                f" {untracked_call.instead}, whose outcome is recorded"
            )


UNTRACKED_MARK: Final = "untracked"
"""The mark of an untracked call in a recording; a replay skips it."""

# The calls that were logged in this process: what to use instead, and the line of the call.
_LOGGED: Final[set[tuple[str, str]]] = set()


def watch_of_recording(sequencer: Sequencer, *, is_strict: bool) -> UntrackedCallWatch:
    """Return the watch of a recorded session.

    With `is_strict`, each untracked call raises `UntrackedNondeterminism`. Otherwise the session
    records the first call of its kind in a line, and logs it if no other session has.
    """
    if is_strict:
        return UntrackedCallWatch(on_untracked_call=_reject)
    token, noted = trio.lowlevel.current_trio_token(), set[tuple[str, str]]()

    def note(call: UntrackedCall) -> None:
        key = (call.instead, call.location)
        if key not in _LOGGED:
            _LOGGED.add(key)
            done = "rejects it" if call.changes_outside else "does not repeat it"
            logger.warning("%s: a replay %s; use %s", call.text, done, call.instead)
        if key in noted:
            return
        noted.add(key)
        value = {"call": call.call, "location": call.location, "lane": call.lane}
        if call.target:
            value["target"] = call.target
        if trio.lowlevel.in_trio_task():
            sequencer.marked(UNTRACKED_MARK, value)
        else:
            token.run_sync_soon(sequencer.marked, UNTRACKED_MARK, value)

    return UntrackedCallWatch(on_untracked_call=note)


def watch_of_replay(
    note: Callable[[UntrackedCall], object], *, is_strict: bool, exempt: str
) -> UntrackedCallWatch:
    """Return the watch of a replay, which passes each untracked call to `note`.

    If the recording `is_strict`, each raises the error that it raised in the recorded session,
    except in the lane `exempt` and its child lanes. Otherwise calls that change the outside raise
    `BlockedInReplay`.
    """

    def note_call(call: UntrackedCall) -> None:
        note(call)
        if is_strict and call.lane.partition(".")[0] != exempt:
            _reject(call)

    return UntrackedCallWatch(on_untracked_call=note_call, blocks=True)


def _reject(untracked_call: UntrackedCall) -> None:
    raise UntrackedNondeterminism(f"a replay of this would differ: {untracked_call}")


# The import of the server -------------------------------------------------------------------------

_IMPORTED: Final[dict[UntrackedCall, None]] = {}
_IN_LIFESPAN: Final = "the lifespan, or an @effect"


def calls_at_import() -> tuple[UntrackedCall, ...]:
    """Return the calls that the modules of the server made when they were imported, each once."""
    return tuple(_IMPORTED)


@contextmanager
def noting_imports() -> Generator[None, None, None]:
    """Note the calls of users' modules that the block imports, for `calls_at_import`."""
    _IMPORTED.clear()

    def note_read(name: str, frame: FrameType) -> None:
        if owner_of(frame.f_code.co_filename) == "user":
            call = UntrackedCall(
                call=name, location=location(frame), lane=IMPORT_LANE, instead=_IN_LIFESPAN
            )
            _IMPORTED[call] = None

    def note_call(call: UntrackedCall) -> None:
        noted = msgspec.structs.replace(call, instead=_IN_LIFESPAN, changes_outside=False)
        _IMPORTED[noted] = None

    # `captured.py` calls `note_read` when a clock or random numbers are read in this lane.
    lane = LANE.set(Lane(IMPORT_LANE, ImportNotes(note_read)))
    try:
        with UntrackedCallWatch(on_untracked_call=note_call):
            yield
    finally:
        LANE.reset(lane)


# The hook -----------------------------------------------------------------------------------------


def _check(name: str, rule: _Rule, arguments: Sequence[Any], frame: FrameType) -> None:
    """Report a call that `frame` is about to make in a lane, unless it does not count."""
    watch, lane = _WATCH.get(), LANE.get()
    if watch is None or lane is None or is_collecting_garbage() or not rule.applies(arguments):
        return
    if rule.users_only and owner_of(frame.f_code.co_filename) != "user":
        return
    found = responsible_frame(frame, changes_outside=rule.changes_outside)
    if found is None:
        return
    responsible, called = found
    if lane.name == IMPORT_LANE and owner_of(responsible.f_code.co_filename) != "user":
        return  # At an import, only calls of the user's own modules count.
    index = rule.target
    target = "" if index is None or index >= len(arguments) else _target(arguments[index])
    if target is None or (target and not rule.changes_outside and _is_installed(target)):
        return
    watch.report(
        UntrackedCall(
            call=rule.call or (called and public_name(called)) or _PUBLIC_NAMES.get(name, name),
            location=location(responsible),
            lane=lane.name,
            instead=rule.instead,
            changes_outside=rule.changes_outside,
            target=target,
        )
    )


def _is_installed(file: str) -> bool:
    """Return whether a file is one of Python, of a library, or of the system's time zones.

    Reading it does not count. `zoneinfo` opens the file of a time zone in C, without a frame.
    """
    zoneinfo = sys.modules.get("zoneinfo")
    if zoneinfo is not None and zoneinfo.TZPATH and file.startswith(tuple(zoneinfo.TZPATH)):
        return True
    return owner_of(file) != "user"


def _target(value: object) -> str | None:
    """Return the text of a path or name, empty if it is none; None for the null device."""
    if isinstance(value, str | bytes):
        text = os.fsdecode(value)
    elif isinstance(value, PurePath):
        text = str(value)
    else:
        return ""
    return None if text == os.devnull else text


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    # This runs at each audit event of the process.
    if _lane() is None or (rule := _rule_of(event)) is None:
        return
    if event == _OPEN:
        if isinstance(arguments[0], int):  # It is open already.
            return
        if (arguments[2] or 0) & _WRITING_FLAGS:
            rule = _WRITE_FILE
    _check(event, rule, arguments, sys._getframe(1))  # noqa: SLF001


# Debuggers and coverage trace the hook only with this attribute.
_hook.__cantrace__ = True  # type: ignore[attr-defined]

# These methods are looked up once, because the hook runs so often.
_lane: Final = LANE.get
_rule_of: Final = _EVENTS.get


def _checked(name: str, rule: _Rule, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the replacement of the function `name`, which checks its calls in lanes."""

    def call(*args: Any, **keywords: Any) -> Any:
        if _lane() is not None:
            _check(name, rule, (*args, *keywords.values()), sys._getframe(1))  # noqa: SLF001
        return original(*args, **keywords)

    return call


@attrs.define(eq=False, repr=False)
class _Installation:
    """The hook of this process, and the functions of `_FUNCTIONS` that are not replaced yet."""

    is_installed: bool = attrs.field(default=False, init=False)
    _pending: dict[str, _Rule] = attrs.field(factory=lambda: dict(_FUNCTIONS), init=False)
    _modules: int = attrs.field(default=0, init=False)
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)

    def install(self) -> None:
        """Install the hook once, and replace the functions of all modules that are imported."""
        with self._lock:
            if not self.is_installed:
                note_garbage_collections()
                capture()
                for name in _PRELOADED:
                    with suppress(ImportError):
                        importlib.import_module(name)
                sys.addaudithook(_hook)
                self.is_installed = True
            elif len(sys.modules) == self._modules:
                return
            self._modules = len(sys.modules)
            replaced = [
                name
                for name, rule in self._pending.items()
                if replace_function(name, partial(_checked, name, rule), imports=False)
            ]
            for name in replaced:
                del self._pending[name]
            if replaced:
                rebind_in_users_modules()


_INSTALLATION: Final = _Installation()
