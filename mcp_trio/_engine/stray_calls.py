"""Which calls are strays, and who did them: the tables behind `strays`.

A call counts as that of the nearest code of people below it on the stack. Standard library code in
between does what it does for its caller, with the exceptions that are in the tables: a log record's
time, for one, is nobody's input.
"""

import functools
import importlib
import inspect
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Final, Literal, TypeAlias

import attrs
import msgspec
import trio


class Stray(msgspec.Struct, frozen=True, kw_only=True):
    """A call beside the context: what was called, where ("at desk.py:12"), and what to use instead.

    `is_outside` tells the worse kind: one that reaches the outside world, and would do so again in
    a replay.
    """

    call: str
    site: str
    lane: str
    instead: str
    is_outside: bool = False

    def __str__(self) -> str:
        return f"{self.call}() {self.site} in lane {self.lane}: use {self.instead}"


# The tables.


@attrs.frozen
class _Rule:
    """What to use instead of a call, and whether it reaches the outside."""

    instead: str
    is_outside: bool = False


_NOW: Final = _Rule("ctx.now()")
_MONOTONIC: Final = _Rule("ctx.monotonic()")
_RANDOM: Final = _Rule("ctx.random")
_UUID: Final = _Rule("ctx.uuid4()")
_SECRET: Final = _Rule("ctx.random, or an @effect if it has to stay secret")
_SLEEP: Final = _Rule("ctx.sleep()", is_outside=True)
_THREAD: Final = _Rule("ctx.to_thread()", is_outside=True)
_PROCESS: Final = _Rule("an @effect that runs it", is_outside=True)
_NETWORK: Final = _Rule("ctx.http, or an @effect that does it", is_outside=True)

# Functions by their public names; one that this Python or system lacks is passed over.
FUNCTIONS: Final[Mapping[str, _Rule]] = {
    "time.time": _NOW,
    "time.time_ns": _NOW,
    "datetime.datetime.now": _NOW,
    "datetime.datetime.utcnow": _NOW,
    "datetime.datetime.today": _NOW,
    "datetime.date.today": _NOW,
    "time.monotonic": _MONOTONIC,
    "time.monotonic_ns": _MONOTONIC,
    "time.perf_counter": _MONOTONIC,
    "time.perf_counter_ns": _MONOTONIC,
    "time.process_time": _MONOTONIC,
    "time.process_time_ns": _MONOTONIC,
    "time.thread_time": _MONOTONIC,
    "time.thread_time_ns": _MONOTONIC,
    "random.random": _RANDOM,
    "random.getrandbits": _RANDOM,
    "random.Random.seed": _RANDOM,
    "uuid._generate_time_safe": _UUID,
    "os.urandom": _SECRET,
    "os.getrandom": _SECRET,
    "time.sleep": _SLEEP,
    "trio.to_thread.run_sync": _THREAD,
    "_thread.start_new_thread": _THREAD,
    "_thread.start_joinable_thread": _THREAD,
    "subprocess.Popen.__init__": _PROCESS,
    "_posixsubprocess.fork_exec": _PROCESS,
    "os.fork": _PROCESS,
    "os.forkpty": _PROCESS,
    "os.posix_spawn": _PROCESS,
    "os.posix_spawnp": _PROCESS,
    "os.system": _PROCESS,
    "socket.socket.__init__": _NETWORK,
    "_socket.getaddrinfo": _NETWORK,
    "_socket.gethostbyaddr": _NETWORK,
    "_socket.gethostbyname": _NETWORK,
    "_socket.gethostbyname_ex": _NETWORK,
    "_socket.getnameinfo": _NETWORK,
}

# What a socket that was there before must not do either, such as one of a pool.
SOCKET_METHODS: Final = frozenset(
    {"_accept", "bind", "connect", "connect_ex", "listen", "send", "sendall", "sendmsg", "sendto"}
    | {"recv", "recv_into", "recvfrom", "recvfrom_into", "recvmsg", "recvmsg_into"}
)

# For what a module does there may be a better word than for how it does it.
_BY_MODULE: Final[Mapping[str, _Rule]] = {
    "uuid": _UUID,
    "secrets": _SECRET,
    "trio._subprocess": _PROCESS,
}

# Whose reading of a clock or a random number is that of its caller.
_HANDS_ON: Final = frozenset({"datetime", "_pydatetime", "random", "secrets", "uuid"})

# Who measures for itself: what it measures is not what it returns.
_MEASURES: Final = frozenset({"anyio", "httpcore", "httpx"})

# Who may do what it wants: no handler learns of it.
_QUIET: Final = frozenset({"logging"})

# Where code is.

_Owner: TypeAlias = Literal["people", "library", "standard", "trio", "ours"]

_OURS: Final = str(Path(__file__).resolve().parent.parent) + os.sep
_EXAMPLES: Final = _OURS + "examples" + os.sep
_TRIO: Final = str(Path(trio.__file__).resolve().parent) + os.sep
_STANDARD: Final = str(Path(inspect.__file__).resolve().parent) + os.sep
_LIBRARY_FOLDERS: Final = ("site-packages", "dist-packages")

# The first row that fits counts.
_OWNERS: Final[tuple[tuple[str | tuple[str, ...], _Owner], ...]] = (
    (_EXAMPLES, "people"),
    (_OURS, "ours"),
    (_TRIO, "trio"),
    ("<frozen ", "standard"),
    ("<", "library"),
    (tuple(_STANDARD + folder for folder in _LIBRARY_FOLDERS), "library"),
    (_STANDARD, "standard"),
)


@functools.lru_cache(maxsize=4096)
def owner_of(file: str) -> _Owner:
    """Whose code a file holds; `library`: people have installed it, or it was generated."""
    for start, owner in _OWNERS:
        if file.startswith(start):
            return owner
    is_library = any(folder in Path(file).parts for folder in _LIBRARY_FOLDERS)
    return "library" if is_library else "people"


def _module(frame: FrameType) -> str:
    name = frame.f_globals.get("__name__")
    return name if isinstance(name, str) else ""


def _hands_on(frame: FrameType, owner: _Owner, rule: _Rule) -> bool:
    """Whether what a frame of nobody in particular does is the doing of who called it."""
    top = _module(frame).partition(".")[0]
    if top in _QUIET or owner == "ours":
        return False
    return rule.is_outside or top in _HANDS_ON


def _callers(frame: FrameType | None, rule: _Rule) -> tuple[FrameType, FrameType | None] | None:
    """The frame of people that did it, and what it called; None if it was nobody of them."""
    called = None
    while frame is not None:
        owner = owner_of(frame.f_code.co_filename)
        if owner in {"people", "library"}:
            measures = _module(frame).partition(".")[0] in _MEASURES and not rule.is_outside
            return None if measures else (frame, called)
        if not _hands_on(frame, owner, rule):
            return None
        called, frame = frame, frame.f_back
    return None


def _site(frame: FrameType) -> str:
    """File and line of people's own code, if it is on the way; else of the library's."""
    shown: FrameType | None = frame
    while shown is not None and (owner := owner_of(shown.f_code.co_filename)) != "ours":
        if owner == "people":
            frame = shown
            break
        shown = shown.f_back
    return f"at {Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _public_name(frame: FrameType) -> str:
    names = [part for part in _module(frame).split(".") if not part.startswith("_")]
    name = frame.f_code.co_qualname.removesuffix(".__init__").rpartition("<locals>.")[2]
    return ".".join([*names, name.lstrip("_")])


# What is looked for.


@attrs.frozen
class Row:
    """What a function is called, and what holds for it."""

    name: str
    rule: _Rule


def _rows() -> dict[object, Row]:
    """The table by what the profile function gets: a function in C, or the id of Python code."""
    rows: dict[object, Row] = {}
    for name, rule in FUNCTIONS.items():
        function = _found(name)
        if function is not None:
            code = getattr(inspect.unwrap(function), "__code__", None)
            key = function if code is None else id(code)
            rows[key] = Row(name.removesuffix(".__init__"), rule)
    return rows


def _found(name: str) -> Any:
    module, _, path = name.partition(".")
    try:
        found: Any = importlib.import_module(module)
    except ImportError:
        return None
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


_ROWS: Final = _rows()
_SEED: Final = id(_found("random.Random.seed").__code__)
_CONNECTION: Final = socket.socket.__base__ or socket.socket


def row_of_function(function: Any) -> Row | None:
    """The row of a function in C that is about to be called; None if it is harmless."""
    name = function.__name__
    if name in SOCKET_METHODS and isinstance(function.__self__, _CONNECTION):
        return Row(f"socket.{name}", _NETWORK)
    return _ROWS.get(function)


def row_of_code(frame: FrameType) -> Row | None:
    """The row of a function in Python whose frame has just been made."""
    code = id(frame.f_code)
    if code == _SEED and frame.f_locals.get("a") is not None:
        return None  # a seed of one's own: the same numbers in every run
    return _ROWS.get(code)


def stray_of(frame: FrameType, row: Row, lane: str) -> Stray | None:
    """Judge a call by who does it; `frame` calls what the row names. None: it is no stray."""
    found = _callers(frame, row.rule)
    if found is None:
        return None
    doer, called = found
    rule = row.rule if called is None else _BY_MODULE.get(_module(called), row.rule)
    return Stray(
        call=row.name if called is None else _public_name(called),
        site=_site(doer),
        lane=lane,
        instead=rule.instead,
        is_outside=row.rule.is_outside,
    )
