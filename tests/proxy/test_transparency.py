"""A host and a server behave the same with and without the proxy."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import attrs
import pytest

from mcp_trio.limits import MIB
from tests.processes import python

SECONDS_MAX = 30

pytestmark = pytest.mark.slow

# The server; it writes the lines that it reads to the file of its first argument.
KEEPS_STDIN = """
import os, signal, sys, time
kept = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
def read(size=65536):
    data = os.read(0, size)
    os.write(kept, data)
    return data
def write(data, to=1):
    while data: data = data[os.write(to, data):]
"""

SERVERS = {
    "echoes": "while data := read(): write(data)",
    "answers what it read wholly": "while read(): pass\nwrite(open(sys.argv[1], 'rb').read())",
    "says nothing": "while read(): pass",
    "exits at once": "sys.exit(2)",
    "garbage": r"write(b'\xff\xfe\0\r\n\n\n \r{]}\n\xef\xbb\xbf{}\n'); read()",
    "no newline at the end": 'write(b\'{"jsonrpc":"2.0"}\')',
    "half a line, then exit 3": "read(); write(b'{\"jsonrpc'); sys.exit(3)",
    "a line of 4 MiB": f"write(b'[' + b'1,' * {2 * MIB} + b'1]\\n')",
    "4 MiB and no newline": f"write(b'x' * {4 * MIB}); sys.exit(1)",
    "killed amid a line": "read(); write(b'{}\\n{\"half'); os.kill(os.getpid(), signal.SIGKILL)",
    "terminated": "os.kill(os.getpid(), signal.SIGTERM)",
    "floods stderr": "write(b'e' * 3_000_000 + b'\\xff\\0\\n', to=2); write(b'{}\\n'); read()",
    "closes stdout and lives": "write(b'{}\\n'); os.close(1)\nwhile read(): pass\nsys.exit(4)",
    "closes stdin and lives": "os.close(0); write(b'{}\\n'); time.sleep(0.2); sys.exit(5)",
    "ignores the end of its stdin": "while read(): pass\ntime.sleep(0.3); write(b'late\\n'); sys.exit(6)",
    "reads byte by byte": "while data := read(1): write(data)",
    "writes byte by byte": "while data := read():\n  for byte in data: write(bytes([byte]))",
}

# The messages of a host.
HOSTS = {
    "a message": b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n',
    "odd bytes": b"\n\r\n \n\0\xff\xfe{]\n\xef\xbb\xbf{}\r\nhalf a line",
}
HEAVY_HOSTS = {
    "nothing": b"",
    "4 MiB": b"[" + b"1," * (2 * MIB) + b"1]\n",
    "many lines": b"".join(b'{"n":%d}\r\n' % n for n in range(20_000)),
}


@attrs.frozen
class Seen:
    """The messages of a session, at its host and at its server."""

    status: int
    stdout: bytes
    stderr: bytes
    kept: bytes


@pytest.fixture
def talk(tmp_path):
    """Be the host of a server, directly or through the proxy."""

    def talk(code, data, *, through=()):
        kept = tmp_path / f"kept {bool(through)}"
        done = subprocess.run(
            [*through, *python(KEEPS_STDIN + code, kept)],
            input=data,
            capture_output=True,
            check=False,
            timeout=SECONDS_MAX,
        )
        status = done.returncode if done.returncode >= 0 else 128 - done.returncode
        return Seen(status, done.stdout, done.stderr, kept.read_bytes())

    return talk


@pytest.fixture
def through(path):
    return [sys.executable, "-m", "mcp_trio", "record", "-o", str(path), "--"]


@pytest.fixture
def check(talk, through, recorded, path):
    """Neither side sees a difference, and the recording has all messages."""

    def check(code, data):
        direct = talk(code, data)
        assert talk(code, data, through=through) == direct
        session = recorded(path)
        assert session.stream("out") == direct.stdout
        assert session.stream("in").startswith(direct.kept)

    return check


@pytest.mark.real_time
@pytest.mark.parametrize("server", SERVERS)
def test_the_host_sees_the_same_server_with_and_without_the_proxy(check, server):
    check(SERVERS[server], HOSTS["a message"])


@pytest.mark.real_time
@pytest.mark.parametrize("server", ["echoes", "answers what it read wholly", "reads byte by byte"])
def test_the_server_sees_the_same_host_with_and_without_the_proxy(check, server):
    check(SERVERS[server], HOSTS["odd bytes"])


@pytest.mark.real_time
@pytest.mark.parametrize("host", HEAVY_HOSTS)
def test_large_and_empty_input_is_the_same_with_and_without_the_proxy(check, host):
    check(SERVERS["answers what it read wholly"], HEAVY_HOSTS[host])


SHOWS_ITS_WORLD = """
import os, signal, sys
ignored = [n for n in range(1, 32) if signal.getsignal(n) == signal.SIG_IGN]
fds = {fd: os.path.exists(f"/proc/self/fd/{fd}") for fd in map(int, sys.argv[1:])}
environment = sorted(open("/proc/self/environ", "rb").read().split(b"\\0"))
print(environment, os.getcwd(), ignored, fds, os.umask(0))
"""


@pytest.mark.real_time
@pytest.mark.parametrize("locale", [{}, {"LC_CTYPE": "C.UTF-8"}])
def test_the_environment_of_a_server_is_the_same(through, tmp_path, locale):
    """Without a locale Python would add one to the environment; `nohup` ignores a signal."""
    read, write = os.pipe()
    environment = {"TOKEN": "kept", "ODD": "\udcff=", "PATH": os.environ["PATH"]} | locale

    def world(command):
        return subprocess.check_output(
            ["nohup", *command],
            env=environment,
            cwd=tmp_path,
            pass_fds=[read],
            umask=0o027,
            timeout=SECONDS_MAX,
            stderr=subprocess.DEVNULL,
        )

    server = python(SHOWS_ITS_WORLD, read)
    direct = world(server)
    assert world([*through, *server]) == direct
    assert b"{%d: True}" % read in direct
    os.close(read)
    os.close(write)


@pytest.mark.real_time
@pytest.mark.parametrize("content", ["a file", "nothing"])
def test_a_file_may_be_either_end(through, tmp_path, content):
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_bytes(b"{}\nhalf" if content == "a file" else b"")
    name = source if content == "a file" else Path(os.devnull)
    with name.open("rb") as stdin, target.open("wb") as stdout:
        subprocess.run(
            [*through, "cat"], stdin=stdin, stdout=stdout, check=True, timeout=SECONDS_MAX
        )
    assert target.read_bytes() == source.read_bytes()


@pytest.mark.real_time
def test_flags_of_what_the_host_shares_are_left_alone(through):
    (read, stdin), (stdout, write) = os.pipe(), os.pipe()
    process = subprocess.Popen([*through, "cat"], stdin=read, stdout=write)
    os.write(stdin, b"{}\n")
    assert os.read(stdout, 100) == b"{}\n"
    assert not any(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK for fd in (read, write))
    os.close(stdin)
    assert process.wait(SECONDS_MAX) == 0
    for fd in (read, stdout, write):
        os.close(fd)


COUNTS_SIGNALS = """
import os, signal, time
received = []
signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
os.write(1, b'ready')
while not received: time.sleep(0.01)
time.sleep(0.1)
os._exit(len(received) if os.getpgrp() == os.getpid() else 9)
"""


@pytest.mark.real_time
@pytest.mark.parametrize("send", [os.kill, os.killpg])
def test_a_signal_to_the_proxy_or_to_its_group_comes_once(through, recorded, path, send):
    """The server is in no group of the host's: two signals at once may look like one."""
    process = subprocess.Popen(
        [*through, *python(COUNTS_SIGNALS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert os.read(process.stdout.fileno(), 100) == b"ready"
    send(process.pid, signal.SIGTERM)
    assert process.wait(SECONDS_MAX) == 1
    process.stdin.close()
    process.stdout.close()
    assert recorded(path).cause == "signal"


def until(is_so):
    give_up = time.monotonic() + SECONDS_MAX
    while not is_so():
        assert time.monotonic() < give_up
        time.sleep(0.01)


HOLDS_A_PROXY = """
import os, subprocess, sys, time
process = subprocess.Popen(sys.argv[1:], stdin=int(os.environ["STDIN"]))
time.sleep(60)
"""


@pytest.mark.real_time
def test_the_death_of_the_host_ends_the_session_though_the_pipe_stays_open(through, recorded, path):
    read, write = os.pipe()
    host = subprocess.Popen(
        [*python(HOLDS_A_PROXY), *through, *python("import os\nos.write(1, b'x')\nos.read(0, 1)")],
        env=os.environ | {"STDIN": str(read)},
        pass_fds=[read],
        stdout=subprocess.PIPE,
    )
    assert host.stdout.read(1) == b"x"
    host.kill()
    host.wait()
    assert host.stdout.read() == b""
    host.stdout.close()
    os.close(read)
    os.close(write)
    until(lambda: recorded(path).kinds()[-1] == "end")
    assert recorded(path).cause == "lost"
    assert recorded(path).marks() == {"exited": 0}


@pytest.mark.real_time
def test_a_disk_that_is_full_stops_no_byte(talk):
    through = [sys.executable, "-m", "mcp_trio", "record", "-o", "/dev/full", "--"]
    direct = talk(SERVERS["echoes"], HOSTS["odd bytes"])
    assert talk(SERVERS["echoes"], HOSTS["odd bytes"], through=through) == direct
