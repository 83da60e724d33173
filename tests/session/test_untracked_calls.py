"""Untracked calls: which calls are found, whose they are, and what happens at one."""

import datetime as dt
import functools
import gc
import importlib
import io
import logging
import logging.handlers
import os
import pickle
import random
import secrets
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path

import attrs
import pytest
import trio

import mcp_trio
from mcp_trio._session import untracked_calls
from mcp_trio._session.call_sites import reads_for_handler, responsible_frame
from mcp_trio._session.lanes import LANE, Lane
from mcp_trio._session.untracked_calls import (
    UntrackedCallWatch,
    calls_at_import,
    noting_imports,
    watch_of_recording,
)
from mcp_trio.errors import BlockedInReplay, UntrackedNondeterminism
from mcp_trio.recording import UntrackedCall

# ruff: noqa: PLW0108  a lambda makes the call in a line of this file


class NotDoneError(Exception):
    """The exception that is raised at an untracked call, so that it does not happen."""


def untracked_calls_of(function):
    """Return what is found when a task in a lane calls `function`, which is stopped there."""
    found = []

    def stop(untracked_call):
        found.append(untracked_call)
        raise NotDoneError

    async def run():
        with UntrackedCallWatch(on_untracked_call=stop):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stopped)

    async def stopped():
        LANE.set(Lane("r7"))
        with suppress(NotDoneError):
            if hasattr(value := function(), "__await__"):
                await value

    trio.run(run)
    return found


def only(untracked_calls):
    (untracked_call,) = untracked_calls
    return untracked_call


# The tables.

# Calls that no other test dares to make, or that this system lacks.
STOPPED = {
    "os._exit": lambda: os._exit(0),
    "os.abort": lambda: os.abort(),
    "os.fork": lambda: os.fork(),
    "os.forkpty": lambda: os.forkpty(),
    "os.exec": lambda: os.execv("/bin/true", ["true"]),
    "os.killpg": lambda: os.killpg(0, 0),
    "os.mknod": lambda: os.mknod("x"),
    "signal.raise_signal": lambda: importlib.import_module("signal").raise_signal(0),
    "socket.sethostname": lambda: socket.sethostname("x"),
    "time.sleep": lambda: time.sleep(9),
    "threading.Thread.start": lambda: threading.Thread(target=int).start(),
    "input": lambda: input(),
    "atexit.register": lambda: importlib.import_module("atexit").register(int),
}


@pytest.mark.parametrize("name", STOPPED)
def test_an_untracked_call_does_not_happen_if_its_report_raises(name):
    function = STOPPED[name]
    untracked_call = only(untracked_calls_of(function))
    assert untracked_call.call == name
    assert untracked_call.changes_outside
    assert untracked_call.lane == "r7"
    assert untracked_call.location.startswith("at test_untracked_calls.py:")


@pytest.mark.parametrize(
    ("function", "call"),
    [
        (lambda: Path("x").unlink(), "pathlib.Path.unlink"),
        (lambda: os.makedirs("x/y"), "os.makedirs"),
        (lambda: tempfile.mkdtemp(), "tempfile.mkdtemp"),
        (lambda: os.popen("true"), "os.popen"),
        (lambda: socket.create_connection(("localhost", 1)), "socket.create_connection"),
        (lambda: secrets.token_hex(), "secrets.token_hex"),
        (lambda: os.environ["HOME"], "os.environ"),
        (lambda: os.getenv("HOME"), "os.environ"),
        (lambda: os.environ.__setitem__("MCP_TRIO_SET", "1"), "os.environ"),
        (lambda: len(os.environb), "os.environ"),
        (lambda: str(os.environ), "os.environ"),
        (lambda: hash("text"), "hash"),
        (lambda: hash(frozenset("text")), "hash"),
        (lambda: hash(os), "hash"),
        (lambda: id(os), "id"),
        (lambda: trio.run_process(["true"]), "trio.run_process"),
        (lambda: trio.open_tcp_stream("localhost", 1), "trio.open_tcp_stream"),
        (lambda: trio.Path(__file__).read_bytes(), "trio.Path.read_bytes"),
        (lambda: trio.Path(__file__).iterdir(), "trio.Path.iterdir"),
        (lambda: trio.Path(__file__).open(), "trio.Path.open"),
        (lambda: trio.Path.cwd(), "trio.Path.cwd"),
    ],
)
def test_an_untracked_call_has_the_name_by_which_it_was_called(function, call):
    assert only(untracked_calls_of(lambda: function())).call == call


@pytest.mark.skipif(sys.version_info < (3, 14), reason="the module is of Python 3.14")
@pytest.mark.parametrize(("method", "argument"), [("exec", "x = 1"), ("call", int)])
def test_code_in_another_interpreter_is_an_untracked_call(method, argument):
    interpreter = importlib.import_module("concurrent.interpreters").create()
    untracked_call = only(untracked_calls_of(lambda: getattr(interpreter, method)(argument)))
    interpreter.close()
    assert untracked_call.call == f"concurrent.interpreters.Interpreter.{method}"
    assert untracked_call.changes_outside


USING_MODULES = """
import _posixshmem
import resource

from pwd import getpwuid

getpwuid(0)
resource.getrusage(0)
_posixshmem.shm_unlink("/mcp_trio_nothing")
"""


def test_a_module_that_is_imported_late_is_watched(tmp_path):
    (tmp_path / "late.py").write_text(USING_MODULES)
    code = """if True:
        from contextlib import suppress
        from mcp_trio._session.untracked_calls import calls_at_import, noting_imports
        with noting_imports(), suppress(FileNotFoundError):
            import late
        print([call.call for call in calls_at_import()])
    """
    shown = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=True, text=True
    )
    assert shown.stdout == "['pwd.getpwuid', 'resource.getrusage', '_posixshmem.shm_unlink']\n"


def test_each_function_of_the_tables_exists_here_or_is_known_to_be_missing():
    missing = {
        name
        for name in untracked_calls._FUNCTIONS
        if (module := sys.modules.get(name.partition(".")[0])) is not None
        and not hasattr(module, name.split(".")[1])
    }
    assert missing <= {
        "concurrent.futures.process.ProcessPoolExecutor.submit",
        "concurrent.interpreters.Interpreter.call",
        "concurrent.interpreters.Interpreter.exec",
        "dbm.gnu.open",
        "dbm.ndbm.open",
    }


def test_a_socket_that_was_opened_before_is_found():
    with socket.socket() as pooled:
        assert only(untracked_calls_of(lambda: pooled.send(b"x"))).call == "socket.socket.send"


def test_a_database_that_was_opened_before_is_found():
    database = sqlite3.connect(":memory:")
    untracked_call = only(untracked_calls_of(lambda: database.execute("select 1")))
    database.close()
    assert (untracked_call.call, untracked_call.changes_outside) == (
        "sqlite3.Connection.execute",
        True,
    )


# The owners of calls.


def run_as(place, expression, name="made_up", **names):
    """Return what evaluates an expression as if it stood in a file at `place`."""
    known = {"__name__": name, "os": os, "socket": socket, **names}
    return functools.partial(eval, compile(expression, str(place), "eval"), known)


def test_an_example_counts_as_user_code():
    place = Path(mcp_trio.__file__).parent / "examples" / "weather.py"
    assert only(untracked_calls_of(run_as(place, "os.getpid()"))).location == "at weather.py:1"


def test_a_call_in_an_installed_package_is_located_at_its_caller_in_user_code(tmp_path):
    library = run_as(tmp_path / "site-packages" / "dice.py", "os.getpid()")
    untracked_call = only(untracked_calls_of(lambda: library()))
    assert untracked_call.location.startswith("at test_untracked_calls.py:")


def test_without_user_code_a_call_is_located_in_the_installed_package(tmp_path):
    library = run_as(tmp_path / "site-packages" / "dice.py", "os.getpid()")
    handler = run_as(untracked_calls.__file__, "library()", library=library)
    assert only(untracked_calls_of(handler)).location == "at dice.py:1"


def test_generated_code_counts_as_user_code():
    made = attrs.make_class("Made", {"at": attrs.field(factory=lambda: os.getpid())})
    assert only(untracked_calls_of(lambda: made())).call == "os.getpid"


def test_no_code_of_users_and_libraries_is_responsible_for_calls_of_the_engine():
    assert responsible_frame(None, changes_outside=True) is None


def log_something():
    logging.getLogger("any").warning("hello")


async def sleeps_by_trio():
    await trio.sleep(0)
    return trio.current_time()


def in_effect():
    token = LANE.set(None)
    try:
        return os.getpid(), Path(__file__).read_text()
    finally:
        LANE.reset(token)


def to_standard_streams():
    print("hello")
    sys.stderr.write("hello")
    sys.stdout.flush()
    os.write(2, b"")


def in_memory():
    text = io.TextIOWrapper(io.BytesIO())
    text.write("hello")
    text.flush()


def to_the_null_device():
    with Path(os.devnull).open("w") as file:
        file.fileno()
        file.write("hello")
        file.flush()


def import_a_module():
    sys.modules.pop("colorsys", None)
    importlib.import_module("colorsys")


def import_a_public_module():
    sys.modules.pop("mcp_trio.observers", None)
    importlib.import_module("mcp_trio.observers")


@pytest.mark.parametrize(
    "function",
    [
        log_something,
        sleeps_by_trio,
        in_effect,
        to_standard_streams,
        in_memory,
        to_the_null_device,
        import_a_module,
        import_a_public_module,
        lambda: Path(logging.__file__).read_text(),
        lambda: hash(3),
        lambda: uuid.uuid5(uuid.NAMESPACE_URL, "a"),
        lambda: random.Random(3).random(),
        lambda: time.time(),
        lambda: dt.datetime.now(),
        lambda: len(sorted([3, 1])),
        run_as(Path(untracked_calls.__file__), "os.getpid()"),
        run_as(Path(logging.__file__), "socket.socket().close()", "logging.handlers"),
        run_as("<frozen importlib>", "os.getpid()", "importlib._bootstrap"),
    ],
)
def test_these_calls_are_not_untracked(function):
    assert untracked_calls_of(function) == []


def frame_of(place, name):
    """Return the frame of code as if it stood in a file at `place`, in the module `name`."""
    code = compile("sys._getframe()", str(place), "eval")
    return eval(code, {"__name__": name, "sys": sys})


@pytest.mark.parametrize(
    ("place", "name", "is_captured"),
    [
        (__file__, "desk", True),
        ("/lib/site-packages/dice.py", "dice", True),
        (uuid.__file__, "uuid", True),
        ("/lib/site-packages/httpx2/b.py", "httpx2.b", False),
        (threading.__file__, "threading", False),
        (logging.__file__, "logging", False),
        (trio.__file__, "trio", False),
        (mcp_trio.__file__, "mcp_trio", False),
        (logging.__file__, None, True),
    ],
)
def test_a_clock_is_read_for_a_handler_by_code_of_users_and_most_libraries(
    place, name, is_captured
):
    assert reads_for_handler(frame_of(place, name)) == is_captured


# Calls that a watch finds.


async def in_lane(function, *args):
    """Call a function in a lane."""
    LANE.set(Lane("r7"))
    value = function(*args)
    if hasattr(value, "__await__"):
        await value


def test_outside_lanes_and_in_sessions_without_a_watch_no_call_is_untracked():
    found = []

    async def run():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_lane, os.getpid)
            with UntrackedCallWatch(on_untracked_call=found.append):
                os.getpid()
                await trio.sleep(0.001)

    trio.run(run)
    assert found == []


async def test_a_thread_of_a_handler_is_watched():
    found = []
    with UntrackedCallWatch(on_untracked_call=found.append):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_lane, trio.to_thread.run_sync, lambda: os.getpid())
    assert [untracked_call.call for untracked_call in found] == [
        "trio.to_thread.run_sync",
        "os.getpid",
    ]


class Garbage:
    """Asks for the process when it is collected."""

    def __init__(self):
        self.itself = self

    def __del__(self):
        os.getpid()
        time.time()


async def test_calls_of_the_garbage_collector_are_not_untracked():
    found = []

    async def handler():
        Garbage()
        gc.collect()
        os.getppid()

    with UntrackedCallWatch(on_untracked_call=found.append):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_lane, handler)
    assert [untracked_call.call for untracked_call in found] == ["os.getppid"]


async def test_callbacks_of_the_garbage_collector_are_not_untracked_calls():
    found, phases = [], []

    def callback(phase, _info):
        phases.append(phase)
        os.getpid()

    async def handler():
        gc.callbacks.insert(0, callback)
        gc.callbacks.append(callback)
        gc.collect()  # puts the package's own callbacks round all others
        found.clear()
        phases.clear()
        gc.collect()

    try:
        with UntrackedCallWatch(on_untracked_call=found.append):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(in_lane, handler)
    finally:
        gc.callbacks[:] = [each for each in gc.callbacks if each is not callback]
    assert phases == ["start", "start", "stop", "stop"]
    assert found == []


# Actions at an untracked call.


def test_an_untracked_call_is_described_in_one_line():
    untracked_call = UntrackedCall(
        call="os.remove", location="at a.py:3", lane="r1", instead="an effect", target="b.txt"
    )
    assert str(untracked_call) == "os.remove('b.txt') at a.py:3 in lane r1: use an effect"
    assert "()" in str(UntrackedCall(call="f", location="at a.py:3", lane="r1", instead="g"))


async def test_a_watch_that_blocks_rejects_changes_and_reports_readings():
    noted = []

    async def handler():
        assert os.getpid()
        for _ in range(2):
            with pytest.raises(
                BlockedInReplay, match=r"remove\('x'\) at test_untracked.* an @effect"
            ):
                os.remove("x")

    with UntrackedCallWatch(on_untracked_call=noted.append, blocks=True):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_lane, handler)
    assert [untracked_call.call for untracked_call in noted] == [
        "os.getpid",
        "os.remove",
        "os.remove",
    ]


async def test_of_many_files_that_a_line_reads_some_are_distinguished(tmp_path):
    noted = {}

    async def handler():
        for number in range(100):
            (tmp_path / str(number)).exists()

    with UntrackedCallWatch(on_untracked_call=lambda call: noted.update({call: None})):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_lane, handler)
    targets = [Path(call.target).name for call in noted]
    assert targets == [*map(str, range(10)), "…"]


class Notes:
    """A sequencer that keeps marks."""

    def __init__(self):
        self.marks = []

    def marked(self, name, value, lane=None):
        self.marks.append((name, value["call"], lane))


async def test_a_recording_notes_the_first_call_in_a_line_and_logs_it(caplog):
    sequencer = Notes()

    async def handler():
        for _ in range(3):
            os.getpid()
        await trio.to_thread.run_sync(lambda: os.getppid())
        await trio.lowlevel.checkpoint()

    for _ in range(2):
        with watch_of_recording(sequencer, is_strict=False):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(in_lane, handler)
    calls = ["os.getpid", "trio.to_thread.run_sync", "os.getppid"]
    assert sequencer.marks == [("untracked", call, None) for call in calls * 2]
    assert [record.message.partition("(")[0] for record in caplog.records] == calls
    assert "does not repeat it; use an @effect" in caplog.records[0].message
    assert "rejects it; use ctx.to_thread()" in caplog.records[1].message


async def test_a_strict_recording_rejects_readings_too():
    sequencer = Notes()

    async def handler():
        with pytest.raises(UntrackedNondeterminism, match=r"os\.getpid\(\) at .* use an @effect"):
            os.getpid()

    with watch_of_recording(sequencer, is_strict=True):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_lane, handler)
    assert sequencer.marks == []


# Imports.

MODULE = """
import os, random, uuid
import wheel_of_fortune
KEY = uuid.uuid4()
DICE = random.Random()
NUMBER = random.random()
HOME = os.environ.get("HOME")
open("log.txt", "a").close()
"""


def test_calls_at_the_import_of_a_module_are_noted(tmp_path, monkeypatch):
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "wheel_of_fortune.py").write_text("import os\nPROCESS = os.getpid()\n")
    (tmp_path / "noted_module.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(library)
    with noting_imports():
        importlib.import_module("noted_module")
    assert [(call.call, call.location, call.target) for call in calls_at_import()] == [
        ("uuid.uuid4", "at noted_module.py:4", ""),
        ("random.Random", "at noted_module.py:5", ""),
        ("random.random", "at noted_module.py:6", ""),
        ("os.environ", "at noted_module.py:7", "HOME"),
        ("open", "at noted_module.py:8", "log.txt"),
    ]
    assert "when the module was imported: use the lifespan" in str(calls_at_import()[0])
    assert (tmp_path / "log.txt").exists()
    assert LANE.get() is None
    with noting_imports():
        pass
    assert calls_at_import() == ()


# Replaced functions.


@pytest.fixture
def installed():
    with noting_imports():
        pass


@pytest.mark.usefixtures("installed")
def test_a_replaced_function_does_not_become_a_method():
    class UtcFormatter(logging.Formatter):
        converter = time.gmtime

    entry = logging.makeLogRecord({"created": 0.0, "msecs": 0})
    assert UtcFormatter("%(asctime)s").format(entry).startswith("1970-01-01 00:00:00")


@pytest.mark.usefixtures("installed")
def test_a_replaced_function_can_be_pickled_and_keeps_its_name():
    assert isinstance(time.sleep, staticmethod)
    assert time.sleep.__name__ == "sleep"
    assert pickle.loads(pickle.dumps(time.sleep)) is time.sleep
    assert os.stat in os.supports_dir_fd
