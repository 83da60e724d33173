"""What a handler does outside its context: captured, named, or blocked; never silent.

Each source of non-determinism and each side effect of the tables is the only call of a tool. The
tool is recorded and replayed. No recording refuses anything, and no replay changes anything.
"""

import concurrent.futures
import ctypes
import datetime as dt
import fcntl
import ftplib
import glob
import hashlib
import http.client
import io
import mmap
import os
import random
import resource
import secrets
import shelve
import shutil
import signal
import smtplib
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import uuid
import webbrowser
from pathlib import Path
from random import random as number_below_one
from time import time as wall
from uuid import uuid4 as new_id

import pytest
import trio

from mcp_trio import Client, Context, Server, ThreadContext, effect
from mcp_trio.errors import MCPError, ReplayDivergence, RequestError
from mcp_trio.recording import RecordOptions, Redaction, open_recording, replay
from mcp_trio.transports import memory_pair
from mcp_trio.types import CallToolResult

CLOSED_PORT = ("127.0.0.1", 1)
OPENED = {}


def folder_with_files(folder):
    """Make the files that the sources use, and open some."""
    folder.mkdir()
    os.environ["MCP_TRIO_SET"] = "1"
    for name in ("a", "b", "c"):
        (folder / name).write_text(name * 20)
    (folder / "d").mkdir()
    OPENED["file"] = (folder / "opened").open("a")
    OPENED["binary"] = (folder / "opened-too").open("ab")
    OPENED["database"] = sqlite3.connect(folder / "database")
    OPENED["database"].execute("create table if not exists visits (number)")
    OPENED["sockets"] = socket.socketpair()
    OPENED["sockets"][1].send(b"x" * 100)
    OPENED["pool"] = concurrent.futures.ThreadPoolExecutor(1)
    OPENED["pool"].submit(int).result()
    return folder


def close_files():
    OPENED["file"].close()
    OPENED["binary"].close()
    OPENED["database"].close()
    for each in OPENED["sockets"]:
        each.close()
    OPENED["pool"].shutdown()


def snapshot(folder):
    """What a side effect of the sources would change."""
    OPENED["file"].flush()
    OPENED["binary"].flush()
    files = {
        str(path): (path.stat().st_mode, path.is_file() and path.read_bytes())
        for path in sorted(folder.rglob("*"))
    }
    os.umask(mask := os.umask(0))
    OPENED["sockets"][0].setblocking(False)
    waiting = len(OPENED["sockets"][0].recv(1000, socket.MSG_PEEK))
    variables = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    usual = [signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGALRM)]
    return files, mask, waiting, variables, usual, Path.cwd(), threading.active_count()


def unix_mail(folder):
    smtplib.SMTP(*CLOSED_PORT)


def hash_of_text(folder):
    return hash("text")


def identity(folder):
    return id(folder)


def set_and_unset(folder):
    os.environ["MCP_TRIO_SOURCE"] = "1"


def unbuffered(folder):
    OPENED["binary"].raw.write(b"x")


def write_to_descriptor(folder):
    return os.write(OPENED["file"].fileno(), b"x")


def start_thread(folder):
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()


def accept(folder):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))


def exclusive(folder):
    (folder / "x").touch(exist_ok=False)


def lock_file(folder):
    with (folder / "a").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


async def in_thread(folder):
    return await trio.to_thread.run_sync(int)


async def open_with_trio(folder):
    async with await trio.open_file(folder / "a") as file:
        return await file.read()


async def path_of_trio(folder):
    return await trio.Path(folder / "a").read_text()


async def run_with_trio(folder):
    return (await trio.run_process(["true"])).returncode


async def connect_with_trio(folder):
    await trio.open_tcp_stream(*CLOSED_PORT)


async def socket_of_trio(folder):
    trio.socket.socket().close()


async def addresses_of_trio(folder):
    return len(await trio.socket.getaddrinfo("localhost", 80)) > 0


# Captured: a replay returns the recorded value.
CAPTURED = {
    "time": lambda _: time.time(),
    "time_ns": lambda _: time.time_ns(),
    "monotonic": lambda _: time.monotonic(),
    "monotonic_ns": lambda _: time.monotonic_ns(),
    "perf_counter": lambda _: time.perf_counter(),
    "perf_counter_ns": lambda _: time.perf_counter_ns(),
    "process_time": lambda _: time.process_time(),
    "thread_time_ns": lambda _: time.thread_time_ns(),
    "clock_gettime": lambda _: time.clock_gettime(time.CLOCK_BOOTTIME),
    "localtime": lambda _: (time.localtime(), time.localtime().tm_zone, time.perf_counter()),
    "gmtime": lambda _: (time.gmtime(), time.perf_counter()),
    "strftime": lambda _: (time.strftime("%c"), time.perf_counter()),
    "ctime": lambda _: (time.ctime(), time.perf_counter()),
    "datetime.now": lambda _: dt.datetime.now(),
    "datetime.now of a zone": lambda _: dt.datetime.now(dt.timezone(dt.timedelta(hours=3))),
    "datetime.utcnow": lambda _: dt.datetime.utcnow(),
    "datetime.today": lambda _: dt.datetime.today(),
    "date.today": lambda _: (dt.date.today(), time.perf_counter()),
    "random": lambda _: random.random(),
    "randint": lambda _: random.randint(1, 10**12),
    "choice": lambda _: random.choice(range(10**12)),
    "shuffle": lambda _: random.sample(range(1000), 10),
    "gauss": lambda _: random.gauss(0, 1),
    "randbytes": lambda _: random.randbytes(8).hex(),
    "seed": lambda _: (random.seed(), random.random()),
    "Random": lambda _: random.Random().random(),
    "Random.seed": lambda _: random.Random(3).seed() or random.random(),
    "uuid1": lambda _: uuid.uuid1(),
    "uuid4": lambda _: uuid.uuid4(),
}

# Named: done, and listed; a divergence behind it names it.
NAMED = {
    "open": (lambda d: (d / "a").open().close(), "a"),
    "read_text": (lambda d: (d / "a").read_text(), "a"),
    "read_bytes": (lambda d: (d / "a").read_bytes(), "a"),
    "os.open": (lambda d: os.close(os.open(d / "a", os.O_RDONLY)), "a"),
    "io.open": (lambda d: io.open(d / "a").close(), "a"),  # noqa: UP020
    "listdir": (lambda d: sorted(os.listdir(d)), "folder"),
    "scandir": (lambda d: len([*os.scandir(d)]), "folder"),
    "iterdir": (lambda d: len([*d.iterdir()]), "folder"),
    "glob": (lambda d: sorted(glob.glob(f"{d}/*")), "folder"),
    "Path.glob": (lambda d: sorted(d.glob("*")), "folder"),
    "walk": (lambda d: len([*os.walk(d)]), "folder"),
    "stat": (lambda d: os.stat(d / "a").st_size, "a"),
    "lstat": (lambda d: os.lstat(d / "a").st_mtime, "a"),
    "exists": (lambda d: os.path.exists(d / "a"), "a"),
    "Path.exists": (lambda d: (d / "a").exists(), "a"),
    "getmtime": (lambda d: os.path.getmtime(d / "a"), "a"),
    "access": (lambda d: os.access(d / "a", os.R_OK), "a"),
    "statvfs": (lambda d: os.statvfs(d / "a").f_namemax, "a"),
    "disk_usage": (lambda d: shutil.disk_usage(d / "a").total, "a"),
    "environ": (lambda _: os.environ.get("HOME"), "HOME"),
    "getenv": (lambda _: os.getenv("HOME"), "HOME"),
    "environ item": (lambda _: os.environ["PATH"], "PATH"),
    "all of environ": (lambda _: len(dict(os.environ)) > 0, ""),
    "expanduser": (lambda _: Path("~").expanduser(), "HOME"),
    "getpid": (lambda _: os.getpid(), ""),
    "getppid": (lambda _: os.getppid(), ""),
    "getuid": (lambda _: os.getuid(), ""),
    "getcwd": (lambda _: os.getcwd(), ""),
    "Path.cwd": (lambda _: Path.cwd(), ""),
    "cpu_count": (lambda _: os.cpu_count(), ""),
    "times": (lambda _: len(os.times()), ""),
    "uname": (lambda _: os.uname().nodename, ""),
    "getloadavg": (lambda _: len(os.getloadavg()), ""),
    "getrusage": (lambda _: len(resource.getrusage(resource.RUSAGE_SELF)), ""),
    "gethostname": (lambda _: socket.gethostname(), ""),
    "getservbyname": (lambda _: socket.getservbyname("http"), ""),
    "urandom": (lambda _: os.urandom(4), ""),
    "token_hex": (lambda _: secrets.token_hex(), ""),
    "secrets.choice": (lambda _: secrets.choice(range(10**9)), ""),
    "SystemRandom": (lambda _: random.SystemRandom().random(), ""),
    "hash": (hash_of_text, ""),
    "id": (identity, ""),
}

# Blocked: done live, and refused in a replay before it happens.
BLOCKED = {
    "write_text": lambda d: (d / "a").write_text("x"),
    "append": lambda d: (d / "a").open("a").close(),
    "update": lambda d: (d / "a").open("r+b").close(),
    "create": exclusive,
    "os.open": lambda d: os.close(os.open(d / "x", os.O_WRONLY | os.O_CREAT)),
    "write to an open file": lambda _: OPENED["file"].write("x"),
    "write to an open binary file": lambda _: OPENED["binary"].write(b"x"),
    "write to a raw file": unbuffered,
    "os.write": write_to_descriptor,
    "remove": lambda d: os.remove(d / "a"),
    "unlink": lambda d: (d / "a").unlink(),
    "rename": lambda d: os.rename(d / "a", d / "x"),
    "replace": lambda d: (d / "a").replace(d / "b"),
    "mkdir": lambda d: (d / "x").mkdir(),
    "makedirs": lambda d: os.makedirs(d / "x" / "y"),
    "rmdir": lambda d: os.rmdir(d / "d"),
    "link": lambda d: os.link(d / "a", d / "x"),
    "symlink": lambda d: os.symlink(d / "a", d / "x"),
    "mkfifo": lambda d: os.mkfifo(d / "x"),
    "truncate": lambda d: os.truncate(d / "a", 1),
    "chmod": lambda d: os.chmod(d / "a", 0o600),
    "Path.chmod": lambda d: (d / "a").chmod(0o600),
    "chown": lambda d: os.chown(d / "a", -1, -1),
    "utime": lambda d: os.utime(d / "a"),
    "setxattr": lambda d: os.setxattr(d / "a", "user.x", b"1"),
    "copyfile": lambda d: shutil.copyfile(d / "a", d / "x"),
    "copy2": lambda d: shutil.copy2(d / "a", d / "x"),
    "copytree": lambda d: shutil.copytree(d / "d", d / "x"),
    "move": lambda d: shutil.move(d / "a", d / "x"),
    "rmtree": lambda d: shutil.rmtree(d / "d"),
    "make_archive": lambda d: shutil.make_archive(d / "x", "zip", d / "d"),
    "mkstemp": lambda d: os.close(tempfile.mkstemp(dir=d)[0]),
    "mkdtemp": lambda d: len(tempfile.mkdtemp(dir=d)) > 0,
    "NamedTemporaryFile": lambda d: tempfile.NamedTemporaryFile(dir=d).close(),
    "TemporaryFile": lambda d: tempfile.TemporaryFile(dir=d).close(),
    "TemporaryDirectory": lambda d: tempfile.TemporaryDirectory(dir=d).cleanup(),
    "flock": lock_file,
    "mmap": lambda _: mmap.mmap(-1, 10).close(),
    "shelve": lambda d: shelve.open(d / "x").close(),
    "sqlite3.connect": lambda d: sqlite3.connect(d / "y").close(),
    "an open database": lambda _: OPENED["database"].execute("insert into visits values (1)") and 1,
    "its cursor": lambda _: (
        OPENED["database"].cursor().execute("insert into visits values (1)") and 1
    ),
    "commit": lambda _: OPENED["database"].commit(),
    "Popen": lambda _: subprocess.Popen(["true"]).wait(),
    "run": lambda _: subprocess.run(["true"], check=True).returncode,
    "check_output": lambda _: subprocess.check_output(["echo", "a"]),
    "system": lambda _: os.system("true"),
    "popen": lambda _: os.popen("true").close(),
    "posix_spawn": lambda _: os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)[1],
    "fork": lambda _: (os.fork() or os._exit(0)) and 1,
    "kill": lambda _: os.kill(os.getpid(), 0),
    "signal": lambda _: str(signal.signal(signal.SIGUSR1, signal.SIG_IGN)),
    "alarm": lambda _: signal.alarm(0),
    "setitimer": lambda _: signal.setitimer(signal.ITIMER_REAL, 0),
    "putenv": set_and_unset,
    "unsetenv": lambda _: os.environ.pop("MCP_TRIO_SET"),
    "chdir": os.chdir,
    "umask": lambda _: os.umask(0o022),
    "nice": lambda _: os.nice(0) >= 0,
    "setrlimit": lambda _: resource.setrlimit(
        resource.RLIMIT_CORE, resource.getrlimit(resource.RLIMIT_CORE)
    ),
    "thread": start_thread,
    "thread pool": lambda _: OPENED["pool"].submit(int).result(),
    "sleep": lambda _: time.sleep(0.001),
    "socket": lambda _: socket.socket().close(),
    "connect": lambda _: socket.create_connection(CLOSED_PORT),
    "bind": accept,
    "sendto": lambda _: OPENED["sockets"][0].sendmsg([b"x"]),
    "send": lambda _: OPENED["sockets"][0].send(b"x"),
    "sendall": lambda _: OPENED["sockets"][0].sendall(b"x"),
    "recv": lambda _: OPENED["sockets"][0].recv(1),
    "getaddrinfo": lambda _: len(socket.getaddrinfo("localhost", 80)) > 0,
    "gethostbyname": lambda _: socket.gethostbyname("localhost"),
    "HTTPConnection": lambda _: http.client.HTTPConnection(*CLOSED_PORT).request("GET", "/"),
    "urlopen": lambda _: urllib.request.urlopen("http://127.0.0.1:1"),
    "SMTP": unix_mail,
    "FTP": lambda _: ftplib.FTP("127.0.0.1", timeout=1),
    "ctypes": lambda _: ctypes.CDLL(None).abs(-3),
    "trio.to_thread": in_thread,
    "trio.open_file": open_with_trio,
    "trio.Path": path_of_trio,
    "trio.run_process": run_with_trio,
    "trio.open_tcp_stream": connect_with_trio,
    "trio.socket": socket_of_trio,
    "trio.socket.getaddrinfo": addresses_of_trio,
}


def server_of(source, folder):
    server = Server("sources")

    @server.tool
    async def run(*, ctx: Context) -> str:
        try:
            value = source(folder)
            return str(await value if hasattr(value, "__await__") else value)
        except OSError as error:
            return type(error).__name__

    return server


async def record(server, record):
    ours, theirs = memory_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: server.serve(theirs, record=record))
        async with Client(ours) as client:
            try:
                return await client.call_tool("run", {})
            except RequestError as error:
                return error


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """Return a function that records a source, and then makes its files anew."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/sources")
    usual = signal.getsignal(signal.SIGUSR1)
    folder, path = tmp_path / "folder", tmp_path / "a.mcprec.jsonl"

    def make(source):
        folder_with_files(folder)
        result = trio.run(record, server_of(source, folder), path)
        close_files()
        shutil.rmtree(folder)
        signal.signal(signal.SIGUSR1, usual)
        os.chdir(tmp_path)
        folder_with_files(folder)
        return path, folder, result

    yield make
    close_files()
    for name in ("MCP_TRIO_SET", "MCP_TRIO_SOURCE"):
        os.environ.pop(name, None)


def notes_of(path):
    return [line for line in open_recording(path) if b'"untracked"' in line]


# The sources that the fast session tries as well.
QUICK = {"open", "environ", "urandom", "remove", "append", "an open database", "send", "thread"}


def names_of(table):
    return [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow, id=name)
        for name in table
    ]


def test_the_tables_hold_a_hundred_sources():
    assert len(CAPTURED) + len(NAMED) + len(BLOCKED) >= 100


def test_clocks_and_random_numbers_are_captured(recorded):
    def every_source(folder):
        return {name: str(source(folder)) for name, source in CAPTURED.items()}

    path, folder, result = recorded(every_source)
    assert isinstance(result, CallToolResult)
    report = replay(path, server_of(every_source, folder))
    assert (report.requests, report.untracked_calls) == (1, ())
    assert notes_of(path) == []
    with pytest.raises(ReplayDivergence):
        replay(path, server_of(lambda _: {**every_source(_), "time": ""}, folder))


@pytest.mark.parametrize("name", names_of(NAMED))
def test_what_only_reads_is_done_and_named(recorded, name):
    source, target = NAMED[name]
    path, folder, result = recorded(source)
    assert isinstance(result, CallToolResult)
    assert len(notes_of(path)) == 1
    before = snapshot(folder)
    try:
        untracked_calls = replay(path, server_of(source, folder)).untracked_calls
    except ReplayDivergence as divergence:
        assert divergence.kind == "frame"  # noqa: PT017  some sources have another value here
        untracked_calls = divergence.untracked_calls
    assert snapshot(folder) == before
    assert any(Path(call.target).name.startswith(target) for call in untracked_calls)
    assert not any(call.is_outside for call in untracked_calls)
    assert untracked_calls[0].location.startswith("at test_untracked_calls.py:")


@pytest.mark.parametrize("name", names_of(BLOCKED))
def test_what_changes_the_outside_is_blocked(recorded, name):
    path, folder, result = recorded(BLOCKED[name])
    assert isinstance(result, CallToolResult)
    assert notes_of(path)
    before = snapshot(folder)
    with pytest.raises(ReplayDivergence) as caught:
        replay(path, server_of(BLOCKED[name], folder))
    assert snapshot(folder) == before
    assert caught.value.kind == "blocked"
    blocked = [call for call in caught.value.untracked_calls if call.is_outside]
    assert len(blocked) == 1
    assert blocked[0].location.startswith("at test_untracked_calls.py:")


# Strict recordings, effects, and threads.


@pytest.mark.parametrize("source", [NAMED["getpid"][0], BLOCKED["remove"]])
def test_a_strict_recording_refuses_both_kinds(tmp_path, source):
    (tmp_path / "a").write_text("a")
    options = RecordOptions(tmp_path / "a.mcprec.jsonl", strict=True)
    assert isinstance(trio.run(record, server_of(source, tmp_path), options), RequestError)
    assert (tmp_path / "a").exists()


@effect
async def do(kind: str, name: str) -> str:
    folder = Path(kind)
    (folder / name).write_text("x")
    return f"{time.time()} {random.random()} {os.getpid()} {len(os.listdir(folder))}"


def test_in_an_effect_everything_is_allowed_and_nothing_is_noted(recorded):
    async def source(folder):
        return await do(str(folder), "new")

    path, folder, result = recorded(source)
    assert isinstance(result, CallToolResult)
    assert notes_of(path) == []
    report = replay(path, server_of(source, folder))
    assert report.untracked_calls == ()
    assert not (folder / "new").exists()


def test_clocks_and_chance_of_a_handler_in_a_thread_are_captured(tmp_path):
    server = Server("threads")

    @server.tool
    def run(*, ctx: ThreadContext) -> list[str]:
        return [str(each) for each in (time.time(), random.random(), uuid.uuid4(), ctx.now())]

    path = tmp_path / "a.mcprec.jsonl"
    trio.run(record, server, path)
    assert replay(path, server).untracked_calls == ()


def test_a_repeated_untracked_call_is_noted_once(recorded):
    path, _, _ = recorded(lambda _: [os.getpid() for _ in range(20)])
    (note,) = notes_of(path)
    assert b"os.getpid" in note
    assert b"test_untracked_calls.py:" in note


def test_a_divergence_behind_a_reading_names_it(recorded):
    def source(folder):
        return (folder / "a").read_text()

    path, folder, _ = recorded(source)
    (folder / "a").write_text("changed")
    with pytest.raises(ReplayDivergence) as caught:
        replay(path, server_of(source, folder))
    call = f"pathlib.Path.read_text('{folder / 'a'}') at test_untracked_calls.py:"
    causes = [line for line in str(caught.value).splitlines() if "cause" in line]
    assert any(call in line for line in causes), str(caught.value)
    assert f"untracked: {call}" in str(caught.value)


def test_files_of_the_interpreter_are_not_listed(recorded):
    def source(folder):
        return len(Path(hashlib.__file__).read_text()) + len(Path(trio.__file__).read_text())

    path, folder, _ = recorded(source)
    assert replay(path, server_of(source, folder)).untracked_calls == ()


def test_a_browser_is_not_opened(recorded, monkeypatch):
    class Browser:
        def open(self, *_):
            OPENED["browser"] = OPENED.get("browser", 0) + 1
            return True

    monkeypatch.setattr(webbrowser, "_browsers", {"a": [None, Browser()]})
    monkeypatch.setattr(webbrowser, "_tryorder", ["a"])

    def source(folder):
        return webbrowser.open("http://localhost")

    path, folder, _ = recorded(source)
    with pytest.raises(ReplayDivergence):
        replay(path, server_of(source, folder))
    assert OPENED["browser"] == 1


# Other handlers, and other ends of a call.


REMOVE = "notifications/com.example/remove"


async def notify_and_call(server, path):
    ours, theirs = memory_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: server.serve(theirs, record=path))
        async with Client(ours, methods={REMOVE: dict}, protocol_versions=["2025-11-25"]) as client:
            await client.notify(REMOVE, {})
            await client.call_tool("run", {})


def test_a_handler_of_notifications_is_captured_and_blocked(tmp_path):
    removed, seen = tmp_path / "a", []

    def make_server():
        server = Server("notified")

        @server.method(REMOVE)
        async def remove(params: dict) -> None:
            seen.append(time.time())
            removed.unlink()

        @server.tool
        async def run() -> int:
            return len(seen) % 2

        return server

    path = tmp_path / "a.mcprec.jsonl"
    removed.write_text("a")
    trio.run(notify_and_call, make_server(), path)
    assert not removed.exists()
    removed.write_text("a")
    seen.pop()
    (untracked_call,) = replay(path, make_server()).untracked_calls
    assert removed.exists()
    assert untracked_call.is_outside
    assert f'"value":{seen[0]!r}'.encode() in b"".join(open_recording(path))


def test_a_client_that_a_handler_opens_starts_no_process_in_a_replay(recorded):
    async def source(folder):
        script = f"open({str(folder / 'started')!r}, 'w').close()"
        with pytest.raises(MCPError):
            async with Client([sys.executable, "-c", script]):
                pass
        return (folder / "a").exists()

    path, folder, result = recorded(source)
    assert isinstance(result, CallToolResult)
    try:
        calls = replay(path, server_of(source, folder)).untracked_calls
    except ReplayDivergence as divergence:
        calls = divergence.untracked_calls
    (blocked,) = (call for call in calls if call.is_outside)
    assert blocked.call == "mcp_trio.client.Client.__aenter__"
    assert not (folder / "started").exists()


def test_each_task_draws_its_own_recorded_numbers(recorded):
    async def source(folder):
        numbers = []

        async def draw():
            await trio.lowlevel.checkpoint()
            numbers.append(random.random())

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(draw)
        assert len(set(numbers)) == 3
        return sorted(numbers)

    path, folder, _ = recorded(source)
    assert replay(path, server_of(source, folder)).untracked_calls == ()


def test_an_error_of_a_captured_function_is_recorded(recorded):
    def source(folder):
        return time.clock_gettime(10**6), time.time()

    path, folder, _ = recorded(source)
    assert any(b'"OSError' in line or b"OSError" in line for line in open_recording(path))
    assert replay(path, server_of(source, folder)).requests == 1


def test_a_name_that_was_imported_before_is_captured_in_a_users_module(recorded):
    path, folder, _ = recorded(lambda _: (wall(), new_id(), number_below_one()))
    assert replay(path, server_of(lambda _: (wall(), new_id(), number_below_one()), folder))


def test_a_clock_that_the_recorded_code_did_not_read_is_a_divergence(recorded):
    path, folder, _ = recorded(lambda _: 1)
    with pytest.raises(ReplayDivergence, match=r"reading 'time\.time'"):
        replay(path, server_of(lambda _: time.time() and 1, folder))


def test_the_replay_of_a_redacted_recording_keeps_clocks_and_makes_another_uuid(tmp_path):
    server = Server("redacted")

    @server.tool
    async def run() -> dict[str, str]:
        return {"at": str(time.time_ns()), "token": str(uuid.uuid4())}

    path = tmp_path / "a.mcprec.jsonl"
    trio.run(record, server, RecordOptions(path, redaction=Redaction()))
    with pytest.raises(ReplayDivergence) as caught:
        replay(path, server)
    assert caught.value.kind == "redacted"
