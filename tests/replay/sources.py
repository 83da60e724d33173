"""Sources of non-determinism and side effects, each as the only call of a tool.

Tables hold functions that get a folder with files. `CAPTURED` are calls whose values a replay
returns from the recording; those in `NAMED` it repeats and lists, each with the path or name; those
in `BLOCKED` it blocks before they happen. `folder_with_files` makes what they use, and `snapshot`
returns what they would change.
"""

import concurrent.futures
import configparser
import csv
import ctypes
import datetime as dt
import dbm
import dbm.dumb
import fcntl
import ftplib
import gc
import getpass
import glob
import grp
import gzip
import http.client
import imaplib
import io
import json
import logging
import logging.handlers
import mmap
import multiprocessing
import os
import pickle
import platform
import poplib
import pwd
import random
import resource
import secrets
import shelve
import shutil
import signal
import smtplib
import socket
import sqlite3
import ssl
import subprocess
import tarfile
import tempfile
import threading
import time
import tomllib
import urllib.request
import uuid
import zipfile
from multiprocessing import shared_memory
from pathlib import Path
from random import random as number_below_one
from time import time as wall
from uuid import uuid4 as new_id

import trio

CLOSED_PORT = ("127.0.0.1", 1)
OPENED = {}


def folder_with_files(folder: Path) -> Path:
    """Make the files that the sources use, and open some."""
    folder.mkdir()
    os.environ["MCP_TRIO_SET"] = "1"
    for name in ("a", "b", "c"):
        (folder / name).write_text(name * 20)
    (folder / "d").mkdir()
    (folder / "l").symlink_to(folder / "a")
    (folder / "a.toml").write_text("[a]\nb = 1\n")
    with gzip.open(folder / "packed.gz", "wb") as packed:
        packed.write(b"a")
    with zipfile.ZipFile(folder / "packed.zip", "w") as archive:
        archive.writestr("a", "a")
    OPENED["read"] = (folder / "a").open("rb")
    for name in ("opened", "opened-too"):
        (folder / name).write_text("begun")
    OPENED["file"] = (folder / "opened").open("a")
    OPENED["binary"] = (folder / "opened-too").open("ab")
    OPENED["database"] = sqlite3.connect(folder / "database")
    OPENED["database"].execute("create table if not exists visits (number)")
    OPENED["sockets"] = socket.socketpair()
    OPENED["sockets"][1].send(b"x" * 100)
    OPENED["pool"] = concurrent.futures.ThreadPoolExecutor(1)
    OPENED["pool"].submit(int).result()
    return folder


def close_files() -> None:
    OPENED["file"].close()
    OPENED["read"].close()
    OPENED["binary"].close()
    OPENED["database"].close()
    for each in OPENED["sockets"]:
        each.close()
    OPENED["pool"].shutdown()


def snapshot(folder: Path) -> object:
    """Return the state that a side effect of the sources would change."""
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
    # Threads that Trio keeps for later end whenever they have been idle for some seconds.
    threads = [each.name for each in threading.enumerate() if each.name.startswith("Thread-")]
    return files, mask, waiting, variables, usual, Path.cwd(), threads


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


def load_certificates(folder):
    ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=folder / "a")


def copy_between_files(folder):
    return os.copy_file_range(OPENED["read"].fileno(), OPENED["file"].fileno(), 3)


def spool(folder):
    with tempfile.SpooledTemporaryFile(max_size=1, dir=folder) as file:
        file.write(b"xx")


def configure_log(folder):
    logging.basicConfig(filename=folder / "x", force=True)


def map_file(folder):
    with (folder / "a").open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[0:1] = b"x"


def share_memory(folder):
    memory = shared_memory.SharedMemory(create=True, size=10)
    memory.close()
    memory.unlink()


def shell_of_pty(folder):
    child, descriptor = os.forkpty()
    if not child:
        os._exit(0)
    os.close(descriptor)
    return os.waitpid(child, 0)[1]


def start_process(folder, method):
    process = multiprocessing.get_context(method).Process(target=int)
    process.start()
    process.join()
    return process.exitcode


def start_in_pool(folder):
    with concurrent.futures.ProcessPoolExecutor(1) as pool:
        return pool.submit(int).result()


def change_folder(folder):
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fchdir(descriptor)
    finally:
        os.close(descriptor)


def start_timer(folder):
    timer = threading.Timer(0, int)
    timer.start()
    timer.join()


def listen(folder):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "s"))
        listener.listen()


def send_datagram(folder):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        return sender.sendto(b"x", CLOSED_PORT)


def connect_with_tls(folder):
    with socket.create_connection(CLOSED_PORT) as connection:
        ssl.create_default_context().wrap_socket(connection, server_hostname="localhost")


async def write_with_trio(folder):
    async with await trio.open_file(folder / "a", "w") as file:
        await file.write("x")


async def path_of_trio_writing(folder):
    await trio.Path(folder / "a").write_text("x")


async def connect_to_unix_with_trio(folder):
    await trio.open_unix_socket(folder / "none")


async def listen_with_trio(folder):
    for listener in await trio.open_tcp_listeners(0, host="127.0.0.1"):
        await listener.aclose()


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
    "process_time_ns": lambda _: time.process_time_ns(),
    "random.uniform": lambda _: random.uniform(0, 1e9),
    "random.choices": lambda _: random.choices(range(10**9), k=3),
    "betavariate": lambda _: random.betavariate(1, 2),
    "from time import time": lambda _: wall(),
    "from random import random": lambda _: number_below_one(),
    "from uuid import uuid4": lambda _: new_id(),
}
for _name in ("uuid6", "uuid7", "uuid8"):  # since Python 3.14
    if hasattr(uuid, _name):
        CAPTURED[_name] = lambda _, name=_name: getattr(uuid, name)()

# Named: the calls are made and listed, and a later divergence names them.
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
    "Path.open": (lambda d: (d / "a").open("rb").close(), "a"),
    "gzip": (lambda d: gzip.open(d / "packed.gz").read(), "packed.gz"),
    "zipfile": (lambda d: zipfile.ZipFile(d / "packed.zip").namelist(), "packed.zip"),
    "tomllib": (lambda d: tomllib.loads((d / "a.toml").read_text()), "a.toml"),
    "configparser": (lambda d: configparser.ConfigParser().read(d / "a.toml"), "a.toml"),
    "readlines": (lambda d: (d / "a").open().readlines(), "a"),
    "readlink": (lambda d: os.readlink(d / "l").rpartition("/")[2], "l"),
    "realpath": (lambda d: len(os.path.realpath(d / "l")) > 0, "l"),
    "getsize": (lambda d: os.path.getsize(d / "a"), "a"),
    "Path.is_dir": (lambda d: (d / "d").is_dir(), "d"),
    "Path.owner": (lambda d: (d / "a").owner(), "a"),
    "fwalk": (lambda d: len([*os.fwalk(d)]), "folder"),
    "listxattr": (lambda d: os.listxattr(d / "a"), "a"),
    "environ in": (lambda _: "HOME" in os.environ and os.environ["HOME"], "HOME"),
    "expandvars": (lambda _: os.path.expandvars("$HOME"), "HOME"),
    "getuser": (lambda _: getpass.getuser(), "LOGNAME"),
    "getpwuid": (lambda _: pwd.getpwuid(0).pw_name, ""),
    "getgrgid": (lambda _: grp.getgrgid(0).gr_name, ""),
    "getcwdb": (lambda _: os.getcwdb(), ""),
    "sched_getaffinity": (lambda _: len(os.sched_getaffinity(0)), ""),
    "getgid": (lambda _: os.getgid(), ""),
    "platform.node": (lambda _: platform.node(), ""),
    "platform.release": (lambda _: platform.release(), ""),
    "load_verify_locations": (load_certificates, "a"),
    "getrandom": (lambda _: os.getrandom(4).hex(), ""),
    "token_bytes": (lambda _: secrets.token_bytes(4).hex(), ""),
    "randbelow": (lambda _: secrets.randbelow(10**12), ""),
    "SystemRandom.getrandbits": (lambda _: random.SystemRandom().getrandbits(60), ""),
    "hash of a tuple": (lambda _: hash(("a", "b")), ""),
    "thread id": (lambda _: threading.get_ident(), ""),
    "native thread id": (lambda _: threading.get_native_id(), ""),
    "gc.get_count": (lambda _: gc.get_count(), ""),
    "gc.get_objects": (lambda _: len(gc.get_objects()), ""),
    "if_nameindex": (lambda _: len(socket.if_nameindex()), ""),
    "getnode": (lambda _: uuid.getnode(), ""),
}

# Not noticed, because Python calls no function for them; with the texts of their divergences.
UNSEEN = {
    "order of a set": (lambda _: [*{f"text {number}" for number in range(20)}], "order of a set"),
    "repr of an object": (lambda _: object(), "address of an object"),
    "repr of a function": (lambda _: str(identity), "address of an object"),
}

# Blocked: made in a live session, and blocked in a replay beforehand.
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
    "open w": lambda d: (d / "a").open("w").close(),
    "open x": lambda d: (d / "x").open("x").close(),
    "open wb": lambda d: (d / "a").open("wb").close(),
    "open a+": lambda d: (d / "a").open("a+").close(),
    "open w+": lambda d: (d / "a").open("w+").close(),
    "write_bytes": lambda d: (d / "a").write_bytes(b"x"),
    "print to a file": lambda _: print("x", file=OPENED["file"]),
    "writelines": lambda _: OPENED["file"].writelines(["x", "y"]),
    "truncate an open file": lambda _: OPENED["file"].truncate(0),
    "truncate a raw file": lambda _: OPENED["binary"].raw.truncate(0),
    "ftruncate": lambda _: os.ftruncate(OPENED["file"].fileno(), 0),
    "fchmod": lambda _: os.fchmod(OPENED["file"].fileno(), 0o600),
    "posix_fallocate": lambda _: os.posix_fallocate(OPENED["file"].fileno(), 0, 10),
    "copy_file_range": copy_between_files,
    "json.dump": lambda _: json.dump([1], OPENED["file"]),
    "csv": lambda _: csv.writer(OPENED["file"]).writerow([1]),
    "pickle.dump": lambda _: pickle.dump([1], OPENED["binary"]),
    "gzip": lambda d: gzip.open(d / "x", "wb").close(),
    "zipfile": lambda d: zipfile.ZipFile(d / "x", "w").close(),
    "tarfile": lambda d: tarfile.open(d / "x", "w").close(),
    "Path.mkdir": lambda d: (d / "x").mkdir(),
    "Path.rmdir": lambda d: (d / "d").rmdir(),
    "Path.rename": lambda d: (d / "a").rename(d / "x") and None,
    "Path.symlink_to": lambda d: (d / "x").symlink_to(d / "a"),
    "Path.hardlink_to": lambda d: (d / "x").hardlink_to(d / "a"),
    "os.replace": lambda d: os.replace(d / "a", d / "b"),
    "renames": lambda d: os.renames(d / "a", d / "x" / "y"),
    "removedirs": lambda d: os.removedirs(d / "d"),
    "lchown": lambda d: os.lchown(d / "a", -1, -1),
    "copymode": lambda d: shutil.copymode(d / "a", d / "b"),
    "copystat": lambda d: shutil.copystat(d / "a", d / "b"),
    "unpack_archive": lambda d: shutil.unpack_archive(d / "packed.zip", d / "x"),
    "SpooledTemporaryFile": spool,
    "dbm": lambda d: dbm.open(str(d / "x"), "c").close(),
    "dbm.dumb": lambda d: dbm.dumb.open(str(d / "x")).close(),
    "FileHandler": lambda d: logging.FileHandler(d / "x").close(),
    "RotatingFileHandler": lambda d: logging.handlers.RotatingFileHandler(d / "x").close(),
    "basicConfig": configure_log,
    "map a file": map_file,
    "SharedMemory": share_memory,
    "lockf": lambda _: os.lockf(OPENED["file"].fileno(), os.F_LOCK, 0),
    "fcntl": lambda _: fcntl.fcntl(OPENED["file"].fileno(), fcntl.F_SETFD, 1),
    "sqlite3 in memory": lambda _: sqlite3.connect(":memory:").close(),
    "executescript": lambda _: OPENED["database"].executescript("delete from visits") and 1,
    "spawnv": lambda d: os.spawnv(os.P_WAIT, "/usr/bin/touch", ["touch", str(d / "x")]),
    "call": lambda d: subprocess.call(["touch", str(d / "x")]),
    "getoutput": lambda d: subprocess.getoutput(f"touch {d / 'x'}"),
    "forkpty": shell_of_pty,
    "multiprocessing, fork": lambda d: start_process(d, "fork"),
    "multiprocessing, spawn": lambda d: start_process(d, "spawn"),
    "ProcessPoolExecutor": start_in_pool,
    "killpg": lambda _: os.killpg(os.getpgid(0), 0),
    "raise_signal": lambda _: signal.raise_signal(signal.SIGURG),
    "pthread_kill": lambda _: signal.pthread_kill(threading.get_ident(), 0),
    "siginterrupt": lambda _: signal.siginterrupt(signal.SIGUSR1, False),
    "sched_setaffinity": lambda _: os.sched_setaffinity(0, {0}),
    "fchdir": change_folder,
    "Timer": start_timer,
    "socketpair": lambda _: [each.close() for each in socket.socketpair()],
    "listen": listen,
    "datagram": send_datagram,
    "create_server": lambda _: socket.create_server(("127.0.0.1", 0)).close(),
    "gethostbyaddr": lambda _: len(socket.gethostbyaddr("127.0.0.1")[0]) > 0,
    "getfqdn": lambda _: len(socket.getfqdn("127.0.0.1")) > 0,
    "ssl": connect_with_tls,
    "HTTPSConnection": lambda _: http.client.HTTPSConnection(*CLOSED_PORT).request("GET", "/"),
    "IMAP4": lambda _: imaplib.IMAP4("127.0.0.1", 1),
    "POP3": lambda _: poplib.POP3("127.0.0.1", 1),
    "ctypes of the C library": lambda d: ctypes.CDLL(None).remove(str(d / "a").encode()),
    "trio.open_file for writing": write_with_trio,
    "trio.Path.write_text": path_of_trio_writing,
    "trio.open_unix_socket": connect_to_unix_with_trio,
    "trio.serve_tcp": listen_with_trio,
}
