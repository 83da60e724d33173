"""Clocks and random numbers that a handler reads without its context, captured in the journal.

The functions of `time`, `random` and `uuid` in the tables of this module, and `datetime.now`, are
replaced. A call in a lane is recorded as a call of `ctx.now` is: a live session records the value
that the call returns, and a replay returns the recorded value. The functions of `random` draw from
the generator of the lane, which `ctx.random` uses too, and so need no record. Outside of a lane,
which includes effects, a call only reads a context variable in addition.

Clocks that logging, the import system, Trio, this package or a library reads for a time limit are
not captured, because the number of these calls is not the same in a replay. Neither are those of
finalizers that the garbage collector runs, and of threads that a handler started itself.

What the thread of a `def` handler runs in the event loop by `trio.from_thread` is a lane of its
own: a replay runs it in the recorded order.

A function of a module is replaced by a `staticmethod` object. Like a function in C, this object is
callable, and does not become a method as an attribute of a class: `converter = time.gmtime` in a
`logging.Formatter` works as before.

Types in C reject the assignment of attributes. Their dictionary is found with `gc`, which is no
public API; without it, as in another Python implementation, their methods are not replaced. The
tests of `datetime.now` and of SQLite connections that were opened earlier fail without it.

Three things are not captured: functions that were stored where `rebind_in_users_modules` does not
look, instances of `random.Random` that were made outside of any lane, and `datetime.now` in a
Python whose types in C cannot be changed.
"""

import copyreg
import functools
import gc
import importlib
import inspect
import os
import random
import sys
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, date, datetime, tzinfo
from functools import partial
from operator import attrgetter
from types import ClassMethodDescriptorType, FrameType, ModuleType
from typing import Any, Final, TypeAlias, cast

import msgspec
import trio

from mcp_trio._journal.records import encode_body
from mcp_trio._session.call_sites import (
    is_collecting_garbage,
    module_of,
    owner_of,
    reads_for_handler,
)
from mcp_trio._session.handler_journal import HandlerJournal
from mcp_trio._session.journal import Outcome, Sequencer
from mcp_trio._session.lanes import LANE, Lane, in_lane_of_caller, in_lane_of_spawner
from mcp_trio._session.recorded_errors import encoded_error, rebuilt_error
from mcp_trio.errors import RequestAbandoned

_ERROR_BYTES_MAX: Final = 100_000

_Function: TypeAlias = Callable[..., Any]


# Replacing functions ------------------------------------------------------------------------------

# The functions that were replaced, by their ids, and what replaces them.
_REPLACED: Final[dict[int, tuple[object, Any]]] = {}

# The sets in which `os` lists functions with some ability. `shutil` looks for `os.stat` there.
_ABILITIES: Final = (
    "supports_dir_fd",
    "supports_effective_ids",
    "supports_fd",
    "supports_follow_symlinks",
)


def replace_function(
    name: str, wrap: Callable[[Callable[..., Any]], Any], *, imports: bool = True
) -> bool:
    """Replace the function or method `name`, such as "time.time" or "socket.socket.send".

    `wrap` gets the function and returns its replacement, a function that takes the same arguments;
    for a method, these begin with the instance or class. The function is imported first if
    `imports` is True.

    Returns:
        False if its module is not imported yet. A function that this Python lacks is skipped.
    """
    owner, attribute = _owner_of_attribute(name, imports=imports)
    if owner is None:
        return False
    found = getattr(owner, attribute, None)
    if found is None:
        return True
    if isinstance(owner, ModuleType):
        replacement = staticmethod(functools.wraps(found)(wrap(found)))
        setattr(owner, attribute, replacement)
        _REPLACED[id(found)] = (found, replacement)
        for ability in _ABILITIES:
            functions = getattr(os, ability)
            if found in functions:
                functions.add(replacement)
    else:
        _replace_method(owner, attribute, wrap)
    return True


def _owner_of_attribute(name: str, *, imports: bool) -> tuple[Any, str]:
    """Return the module or class of a function, None if it is not imported, and its attribute."""
    path, _, attribute = name.rpartition(".")
    parts = path.split(".")
    for count in range(len(parts), 0, -1):
        module_name = ".".join(parts[:count])
        module: Any = sys.modules.get(module_name)
        if module is None and imports:
            try:
                module = importlib.import_module(module_name)
            except ImportError:
                continue
        if module is not None:
            owner = module
            for part in parts[count:]:
                owner = getattr(owner, part, None)
            return owner, attribute
    return None, attribute


def _replace_method(owner: type[Any], attribute: str, wrap: Callable[[Any], Any]) -> None:
    in_class: Any = owner.__dict__.get(attribute)
    replacement: Any
    if isinstance(in_class, ClassMethodDescriptorType):

        def call(class_: type[Any], *args: Any, **keywords: Any) -> Any:
            return in_class.__get__(None, class_)(*args, **keywords)

        replacement = classmethod(functools.wraps(in_class.__get__(None, owner))(wrap(call)))
    else:
        original = getattr(owner, attribute)
        replacement = functools.wraps(original)(wrap(original))
    try:
        setattr(owner, attribute, replacement)
    except TypeError:
        _set_attribute_of_c_type(owner, attribute, replacement)


def _set_attribute_of_c_type(owner: type[Any], attribute: str, value: object) -> None:
    try:
        import ctypes  # Importing it takes milliseconds, which only recordings and replays need.

        modified: Any = ctypes.pythonapi.PyType_Modified
    except (ImportError, AttributeError):  # not CPython
        return
    for attributes in gc.get_referents(owner.__dict__):
        if isinstance(attributes, dict):
            attributes[attribute] = value
            modified(ctypes.py_object(owner))
            return


# `pickle` finds a replaced function by the name of the original.
copyreg.pickle(staticmethod, attrgetter("__qualname__"))


def rebind_in_users_modules() -> None:
    """Replace the functions in users' modules that hold them: `from time import time`.

    In modules of Trio, its own functions are replaced. Default arguments, and attributes of classes
    and instances, keep the original function.
    """
    for module in [*sys.modules.values()]:
        file = getattr(module, "__file__", None)
        code_owner = owner_of(file) if isinstance(file, str) else None
        if code_owner not in {"user", "trio"}:
            continue
        names = vars(module)
        for name, value in [*names.items()]:
            known = _REPLACED.get(id(value))
            if known is None or known[0] is not value:
                continue
            is_of_trio = str(getattr(value, "__module__", "")).partition(".")[0] == "trio"
            if code_owner == "user" or is_of_trio:
                names[name] = known[1]


# Lanes --------------------------------------------------------------------------------------------


class ImportNotes(msgspec.Struct, frozen=True, eq=False):
    """The owner of the lane in which a module is imported; `note` is called for each read."""

    note: Callable[[str, FrameType], None]


class _HandlerThread(msgspec.Struct, frozen=True):
    """The thread of a handler, and its ways into the event loop; see `capturing_in_thread`."""

    thread: int
    call: Callable[[Callable[[], Awaitable[Any]]], Any]
    run: _Function
    trio_token: trio.lowlevel.TrioToken


_HANDLER_THREAD: Final[ContextVar[_HandlerThread | None]] = ContextVar(
    "mcp_trio_handler_thread", default=None
)


@contextmanager
def capturing_in_thread(
    call: Callable[[Callable[[], Awaitable[Any]]], Any],
    run: _Function,
    trio_token: trio.lowlevel.TrioToken,
) -> Generator[None, None, None]:
    """Capture reads of the calling thread of a handler, and calls that it runs in the event loop.

    Args:
        call: A function that runs one of this package in the loop that has the `trio_token`, while
            the request is not over.
        run: A function that takes the place of `trio.from_thread.run` for the handler.
        trio_token: The token of the event loop.
    """
    thread = _HandlerThread(threading.get_ident(), call, run, trio_token)
    token = _HANDLER_THREAD.set(thread)
    try:
        yield
    finally:
        _HANDLER_THREAD.reset(token)


def _innermost(lane: Lane | None) -> Lane | None:
    """Return the innermost lane of a session, from `lane` on outwards; None if there is none.

    A lane in the journal of a resumable handler is skipped: it is inside the lane of the session.
    """
    while lane is not None and isinstance(lane.owner, HandlerJournal):
        lane = lane.outer
    return None if lane is None or lane.owner is None else lane


def _capturing_lane(name: str, lane: Lane | None, frame: FrameType) -> Lane | None:
    """Return the lane in which what `frame` reads is captured, if it is; note reads of imports."""
    lane = _innermost(lane)
    if lane is None or is_collecting_garbage() or not reads_for_handler(frame):
        return None
    if isinstance(lane.owner, ImportNotes):
        lane.owner.note(name, frame)
        return None
    return lane


def _calling_thread() -> _HandlerThread | None:
    calls = _HANDLER_THREAD.get()
    return calls if calls is not None and calls.thread == threading.get_ident() else None


# Values -------------------------------------------------------------------------------------------


class _Conversion(msgspec.Struct, frozen=True):
    """The conversion of a value to JSON and back."""

    to_json: Callable[[Any], Any] = lambda value: value
    from_json: Callable[[Any], Any] = lambda value: value


_PLAIN: Final = _Conversion()
_STRUCT_TIME: Final = _Conversion(
    lambda value: [*value, value.tm_zone, value.tm_gmtoff], time.struct_time
)


def _recorded_uuid(text: str) -> uuid.UUID:
    """Return the recorded UUID; if redaction has replaced it, another that depends on its token."""
    try:
        return uuid.UUID(text)
    except ValueError:
        return uuid.uuid5(uuid.NAMESPACE_OID, text)


_UUID: Final = _Conversion(str, _recorded_uuid)


def _captured(
    name: str,
    lane: Lane | None,
    frame: FrameType,
    conversion: _Conversion,
    arguments: Any,
    read: _Function,
) -> Any:
    """Return the result of `read`, or the recorded value if this is a replay."""
    lane = _capturing_lane(name, lane, frame)
    if lane is None:
        return read()
    named = {str(position): value for position, value in enumerate(arguments)}
    body = encode_body(named) if named else None
    if trio.lowlevel.in_trio_task():
        return _journaled(name, lane, conversion, body, read)
    thread = _calling_thread()
    if thread is None:
        return read()

    async def perform() -> Any:
        return _journaled(name, lane, conversion, body, read)

    try:
        return thread.call(perform)
    except RequestAbandoned:  # the request has ended, and its thread is recorded no longer
        return read()


def _journaled(
    name: str, lane: Lane, conversion: _Conversion, arguments: bytes | None, read: _Function
) -> Any:
    """Return the value that a lane reads, recorded by its session and the outer ones."""
    values: list[Any] = []
    errors: list[Exception] = []

    def read_live() -> Outcome:
        outer = _innermost(lane.outer)
        try:
            value = (
                read() if outer is None else _journaled(name, outer, conversion, arguments, read)
            )
        except Exception as error:
            errors.append(error)
            return Outcome("err", encoded_error(error, bytes_max=_ERROR_BYTES_MAX))
        values.append(value)
        return Outcome("res", encode_body(conversion.to_json(value)))

    sequencer = cast("Sequencer", lane.owner)
    outcome = sequencer.read_value(lane, name, arguments, read_live)
    if errors:
        raise errors[0]
    if values:
        return values[0]
    if outcome.kind == "err":
        raise rebuilt_error(outcome.body)
    return conversion.from_json(msgspec.json.decode(outcome.body))


# Clocks -------------------------------------------------------------------------------------------

_CLOCKS: Final = (
    *("time.time", "time.monotonic", "time.perf_counter", "time.process_time", "time.thread_time"),
    *("time.time_ns", "time.monotonic_ns", "time.perf_counter_ns"),
    *("time.process_time_ns", "time.thread_time_ns"),
)

# Other functions, with the conversion of their value, and the number of arguments with which they
# read no clock, as `time.gmtime(0)` does not.
_FUNCTIONS: Final[dict[str, tuple[_Conversion, float]]] = {
    "time.localtime": (_STRUCT_TIME, 1),
    "time.gmtime": (_STRUCT_TIME, 1),
    "time.ctime": (_PLAIN, 1),
    "time.asctime": (_PLAIN, 1),
    "time.strftime": (_PLAIN, 2),
    "time.clock_gettime": (_PLAIN, 2),
    "time.clock_gettime_ns": (_PLAIN, 2),
    "uuid.uuid1": (_UUID, 3),
    "uuid.uuid4": (_UUID, 1),
    "uuid.uuid6": (_UUID, 3),  # since Python 3.14
    "uuid.uuid7": (_UUID, 1),  # since Python 3.14
}


def _clock_function(name: str, original: Callable[[], Any]) -> Callable[[], Any]:
    def read() -> Any:
        lane = LANE.get()
        if lane is None:
            return original()
        return _captured(name, lane, sys._getframe(1), _PLAIN, (), original)  # noqa: SLF001

    return read


def _other_function(name: str, original: _Function) -> _Function:
    conversion, arguments_max = _FUNCTIONS[name]

    def read(*args: Any, **keywords: Any) -> Any:
        lane = LANE.get()
        if lane is None or len(args) + len(keywords) >= arguments_max:
            return original(*args, **keywords)
        call = partial(original, *args, **keywords)
        return _captured(name, lane, sys._getframe(1), conversion, args, call)  # noqa: SLF001

    return read


# Class methods that return the current time in local time, or in UTC without a time zone.
_CLASS_METHODS: Final = ("datetime.datetime.now", "datetime.datetime.utcnow", "datetime.date.today")


def _class_method(name: str, original: _Function) -> _Function:
    def read(class_: type[date], *args: Any, **keywords: Any) -> Any:
        lane = LANE.get()
        zone = args[0] if args else keywords.get("tz")
        is_invalid = zone is not None and not isinstance(zone, tzinfo)
        if lane is None or is_invalid or len(args) + len(keywords) > 1:
            return original(class_, *args, **keywords)
        # A value in a time zone is recorded in UTC, since ISO 8601 keeps only an offset.
        in_utc = () if zone is None else (UTC,)
        conversion = _Conversion(lambda moment: moment.isoformat(), class_.fromisoformat)
        moment = _captured(
            name,
            lane,
            sys._getframe(1),  # noqa: SLF001
            conversion,
            (),
            partial(original, class_, *in_utc),
        )
        return moment.astimezone(zone) if isinstance(moment, datetime) and zone else moment

    return read


# Random numbers -----------------------------------------------------------------------------------


def _generator(name: str, lane: Lane | None, frame: FrameType) -> random.Random | None:
    """Return the generator of the calling lane; None if the original function has to be called."""
    lane = _capturing_lane(name, lane, frame)
    if lane is None or not (trio.lowlevel.in_trio_task() or _calling_thread()):
        return None
    return lane.generator(cast("Sequencer", lane.owner).seed)


def _random_function(name: str, original: _Function) -> _Function:
    method = name.rpartition(".")[2]

    def draw(*args: Any, **keywords: Any) -> Any:
        lane = LANE.get()
        generator = None if lane is None else _generator(name, lane, sys._getframe(1))  # noqa: SLF001
        if generator is None:
            return original(*args, **keywords)
        return getattr(generator, method)(*args, **keywords)

    return draw


_SEED_BITS: Final = 256


def _seed_method(original: _Function) -> _Function:
    """Return a `Random.seed` that takes its seed in a lane from the generator of the lane."""

    def seed(self: random.Random, a: Any = None, *args: Any, **keywords: Any) -> None:
        lane = LANE.get()
        if a is None and lane is not None:
            # The caller of `random.Random(…)`, not the constructor, which calls this method.
            frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
            while frame is not None and module_of(frame) in {random.__name__, __name__}:
                frame = frame.f_back
            generator = None if frame is None else _generator("random.Random", lane, frame)
            if generator is not None:
                a = generator.getrandbits(_SEED_BITS)
        original(self, a, *args, **keywords)

    return seed


# The event loop -----------------------------------------------------------------------------------


def _run_in_loop(original: _Function, *, is_async: bool) -> _Function:
    """Return a `trio.from_thread.run`, or `run_sync`, that a handler's thread calls in its lane."""

    def run(function: _Function, *args: Any, trio_token: Any = None) -> Any:
        thread = None if LANE.get() is None else _calling_thread()
        is_ours = owner_of(sys._getframe(1).f_code.co_filename) == "mcp_trio"  # noqa: SLF001
        if thread is None or is_ours or trio_token not in {None, thread.trio_token}:
            return original(function, *args, trio_token=trio_token)
        if is_async:
            return thread.run(function, *args)

        async def call() -> Any:
            result = function(*args)
            if inspect.iscoroutine(result):
                result.close()
                raise TypeError(f"Trio expected a sync function, but {function!r} is asynchronous")
            return result

        return thread.run(call)

    return run


def capture() -> None:
    """Replace the functions of the tables, of `random`, and those that enter the event loop."""
    for name in _CLOCKS:
        replace_function(name, partial(_clock_function, name))
    for name in _FUNCTIONS:
        replace_function(name, partial(_other_function, name))
    for name in _CLASS_METHODS:
        replace_function(name, partial(_class_method, name))
    shared: Any = getattr(random.random, "__self__", None)
    for attribute in random.__all__:
        if getattr(getattr(random, attribute), "__self__", None) is shared:
            name = f"random.{attribute}"
            replace_function(name, partial(_random_function, name))
    replace_function("random.Random.seed", _seed_method)
    for name, is_async in ("trio.from_thread.run", True), ("trio.from_thread.run_sync", False):
        replace_function(name, partial(_run_in_loop, is_async=is_async))
    replace_function("trio.lowlevel.spawn_system_task", in_lane_of_spawner)
    replace_function("trio.lowlevel.TrioToken.run_sync_soon", in_lane_of_caller)
