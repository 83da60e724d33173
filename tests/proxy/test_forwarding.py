"""Bytes go on as they come, behind their records, and what happens to one end happens to the other."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_trio import Limits
from mcp_trio._journal.records import encode_body
from mcp_trio._proxy.stdio import shell_status
from mcp_trio._transports.descriptors import Descriptor
from mcp_trio.limits import MIB, MessageLimits, ShutdownLimits

PIPE_BYTES = 65_536
PAGE_BYTES = 4096

ECHO = "import os\nwhile chunk := os.read(0, 65536): os.write(1, chunk)"
QUICK = Limits(shutdown=ShutdownLimits(close_seconds=0.1, terminate_seconds=0.1, kill_seconds=2))


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def until(is_so):
    with trio.fail_after(10):
        while not is_so():
            await trio.sleep(0.005)


# The bytes

ODD_BYTES = st.one_of(
    st.binary(max_size=60),
    st.lists(st.sampled_from([b"\n", b"\r\n", b"\0", b"\xff", b'{"jsonrpc":"2.0"}'])).map(b"".join),
)


SMALL = st.builds(
    Limits,
    messages=st.builds(MessageLimits, chunk_bytes=st.integers(1, 40), bytes_max=st.integers(1, 40)),
)


@given(st.lists(ODD_BYTES, max_size=12), SMALL)
@settings(max_examples=25)
def test_any_bytes_in_any_chunks_pass_unchanged_and_the_recording_gives_them_back(
    tmp_path_factory, recorded, open_proxy, chunks, limits
):
    path = tmp_path_factory.mktemp("any") / "x"

    async def main():
        async with open_proxy(["cat"], path, limits=limits) as host:
            for chunk in chunks:
                await host.stdin.write(chunk)
            host.stdin.close()
            assert await host.read_all() == b"".join(chunks)

    trio.run(main)
    session = recorded(path)
    assert session.stream("in") == session.stream("out") == b"".join(chunks)
    assert session.counts["in_bytes"] == session.counts["out_bytes"] == len(b"".join(chunks))


async def test_half_a_line_is_forwarded_before_its_end(open_proxy, python, path, recorded):
    async with open_proxy(python(ECHO), path) as host:
        await host.stdin.write(b'{"half')
        assert await host.stdout.read() == b'{"half'
        assert recorded(path).kinds() == ["open"]
        await host.stdin.write(b'":1}\n')
        assert await host.stdout.read() == b'":1}\n'
        assert recorded(path).lines("out") == [b'{"half":1}']
        host.stdin.close()
        assert await host.stdout.read() == b""


class Witness(Descriptor):
    """Sees that what is written stands in the recording already."""

    def __init__(self, end, direction, stream):
        super().__init__(fd=end.fd)
        end.fd = -1
        self.direction, self.stream, self.written = direction, stream, b""

    def write_nowait(self, data, /):
        sent = self.written + bytes(data)
        whole = sent[: sent.rfind(b"\n") + 1]
        assert self.stream(self.direction).startswith(whole)
        taken = super().write_nowait(data)
        self.written += bytes(data[:taken])
        return taken


async def test_a_line_is_recorded_before_its_last_byte_goes_on(open_proxy, python, path, recorded):
    def stream(direction):
        return recorded(path).stream(direction)

    async with open_proxy(python(ECHO), path) as host:
        host.proxy.host_out = Witness(host.proxy.host_out, "out", stream)
        host.server.stdin = Witness(host.server.stdin, "in", stream)
        for chunk in (b"one\ntw", b"o\n", b"three\nfour\n", b"end"):
            await host.stdin.write(chunk)
            await trio.sleep(0.01)
        host.stdin.close()
        assert await host.read_all() == b"one\ntwo\nthree\nfour\nend"
        assert host.server.stdin.written == host.proxy.host_out.written


@pytest.mark.real_time
async def test_a_host_that_does_not_read_stops_the_server_and_loses_nothing(
    open_proxy, python, path, recorded
):
    line = b"x" * 999 + b"\n"
    code = "import os\nfor _ in range(4000): os.write(1, b'x' * 999 + b'\\n')"
    async with open_proxy(python(code), path) as host:
        # Lines that are written one by one leave a rest of each page of the pipe unused.
        lines_bytes = PIPE_BYTES // PAGE_BYTES * (PAGE_BYTES // len(line)) * len(line)
        await until(lambda: host.journal.messages.counts["out_bytes"] > lines_bytes)
        await trio.sleep(0.2)
        assert host.journal.messages.counts["out_bytes"] <= 3 * PIPE_BYTES
        assert await host.read_all() == line * 4000
    assert recorded(path).stream("out") == line * 4000


@pytest.mark.real_time
async def test_a_server_that_does_not_read_stops_the_host_and_not_its_own_words(
    open_proxy, python, path
):
    code = """
import os, time
os.write(1, b'talk')
time.sleep(0.5)
os.write(1, b'more')
while os.read(0, 65536): pass
"""
    async with open_proxy(python(code), path) as host:
        assert await host.stdout.read() == b"talk"
        with trio.move_on_after(0.2) as scope:
            await host.stdin.write(b"x" * MIB)
        assert scope.cancelled_caught
        assert host.journal.messages.counts["in_bytes"] <= 3 * PIPE_BYTES
        host.stdin.close()
        assert await host.read_all() == b"more"


async def test_a_message_of_4_mib_is_forwarded(open_proxy, python, path, recorded):
    frame = encode_body({"jsonrpc": "2.0", "id": 1, "method": "x" * 4 * MIB}) + b"\n"
    async with open_proxy(python(ECHO), path) as host, trio.open_nursery() as nursery:

        async def write():
            await host.stdin.write(frame)
            host.stdin.close()

        nursery.start_soon(write)
        assert await host.read_all() == frame
    session = recorded(path)
    assert session.lines("in") == session.lines("out") == [frame[:-1]]
    assert session.counts["malformed"] == 0


# The ends


@pytest.mark.real_time
async def test_the_end_of_the_host_reaches_the_server_which_takes_its_time(
    open_proxy, python, path, recorded
):
    code = """
import sys, time
data = sys.stdin.buffer.read()
time.sleep(0.3)
sys.stdout.buffer.write(data[::-1])
sys.exit(4)
"""
    async with open_proxy(python(code), path, limits=QUICK) as host:
        await host.stdin.write(b"abc\nde")
        host.stdin.close()
        assert await host.read_all() == b"ed\ncba"
    session = recorded(path)
    assert session.cause == "eof"
    assert session.kinds() == ["open", "in", "in", "shut", "out", "out", "mark", "end"]
    assert session.marks() == {"exited": 4}


@pytest.mark.real_time
async def test_a_server_may_close_its_stdout_and_listen_on(open_proxy, python, path, recorded):
    code = """
import os, sys, time
os.write(1, b'bye')
os.close(1)
data = sys.stdin.buffer.read()
os._exit(len(data))
"""
    async with open_proxy(python(code), path) as host:
        assert await host.read_all() == b"bye"
        assert not host.ended.is_set()
        await host.stdin.write(b"seven..")
        host.stdin.close()
    assert recorded(path).marks() == {"exited": 7}
    assert recorded(path).cause == "eof"


async def test_a_host_that_stops_reading_breaks_the_servers_pipe(
    open_proxy, python, path, recorded
):
    code = """
import os, signal
signal.signal(signal.SIGPIPE, signal.SIG_IGN)
try:
    while True: os.write(1, b'x\\n')
except BrokenPipeError:
    os._exit(9)
"""
    async with open_proxy(python(code), path) as host:
        await host.stdout.read()
        host.stdout.close()
    assert recorded(path).marks() == {"exited": 9}


async def test_a_server_that_stops_reading_breaks_the_hosts_pipe(
    open_proxy, python, path, recorded
):
    code = "import os, time\nos.close(0)\nos.write(1, b'closed')\ntime.sleep(60)"
    async with open_proxy(python(code), path, limits=QUICK) as host:
        assert await host.stdout.read() == b"closed"
        with pytest.raises(BrokenPipeError):  # noqa: PT012  whichever write it hits
            while True:
                await host.stdin.write(b"x\n")
                await trio.sleep(0)
        host.kill(signal.SIGTERM)
    assert recorded(path).cause == "signal"


async def test_a_stdin_that_cannot_be_read_is_at_its_end(open_proxy, python, path, recorded):
    async with open_proxy(["cat"], path) as host:
        os.dup2(os.open("/", os.O_RDONLY), host.proxy.host_in.fd)
        host.stdin.close()
        assert await host.read_all() == b""
    assert recorded(path).marks() == {"exited": 0}


async def test_the_last_output_of_a_dying_server_is_forwarded(open_proxy, python, path, recorded):
    code = "import os\nos.write(1, b'{}\\n' + b'x' * 60000)\nos.kill(os.getpid(), 9)"
    async with open_proxy(python(code), path) as host:
        await host.stdin.write(b"half a line")
        assert await host.read_all() == b"{}\n" + b"x" * 60000
    session = recorded(path)
    assert session.stream("out") == b"{}\n" + b"x" * 60000
    assert session.marks() == {"exited": "SIGKILL"}
    assert session.cause == "closed"


# Signals, and what else ends a session

COUNTS_SIGNALS = """
import os, signal, time
heard = []
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda number, frame: heard.append(number))
os.write(1, b'ready')
while not heard: time.sleep(0.01)
time.sleep(0.05)
os._exit(sum(heard))
"""


@pytest.mark.real_time
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_goes_on_once(open_proxy, python, path, recorded, number):
    async with open_proxy(python(COUNTS_SIGNALS), path) as host:
        assert await host.stdout.read() == b"ready"
        host.kill(number)
    session = recorded(path)
    assert session.marks() == {"exited": int(number)}
    assert session.cause == "signal"


TELLS_SIGNALS = """
import os, signal, sys, time
heard = []
is_child = not os.fork()
if is_child:
    os.dup2(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT), 1)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda number, frame: heard.append(os.write(1, str(number).encode())))
os.write(1, b'ready')
while not heard: time.sleep(0.01)
time.sleep(60 if is_child else 0.3)
"""


@pytest.mark.real_time
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_what_terminals_send_to_groups_reaches_the_servers_children(
    open_proxy, python, path, tmp_path, number
):
    childs = tmp_path / "child"
    async with open_proxy(python(TELLS_SIGNALS, childs), path) as host:
        assert await host.stdout.read() == b"ready"
        await until(lambda: childs.exists() and childs.read_bytes())
        host.kill(number)
        assert await host.read_all() == str(int(number)).encode()
    assert childs.read_bytes() == b"ready" + str(int(number)).encode() * (number != signal.SIGTERM)


STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_DFL)
for number in map(int, sys.argv[1:]): signal.signal(number, signal.SIG_IGN)
os.write(1, b'ready')
time.sleep(60)
"""


# How it ends: what it ignores, and how many rungs later that is.
STUBBORN_UNTIL = {
    "SIGINT": ([], 0),
    "SIGTERM": ([signal.SIGINT], 1),
    "SIGKILL": ([signal.SIGINT, signal.SIGTERM], 2),
}


@pytest.mark.real_time
@pytest.mark.parametrize("ending", STUBBORN_UNTIL)
async def test_after_a_signal_a_server_has_little_time(open_proxy, python, path, recorded, ending):
    ignored, rungs = STUBBORN_UNTIL[ending]
    async with open_proxy(python(STUBBORN, *map(int, ignored)), path, limits=QUICK) as host:
        assert await host.stdout.read() == b"ready"
        started = time.monotonic()
        host.kill(signal.SIGINT)
        await host.ended.wait()
        assert rungs * 0.1 <= time.monotonic() - started < rungs * 0.1 + 1.5
    assert recorded(path).marks() == {"exited": ending}


@pytest.mark.real_time
async def test_after_a_signal_a_host_that_does_not_read_has_little_time_too(
    open_proxy, python, path, recorded
):
    code = "import os\nwhile True: os.write(1, b'x' * 65536)"
    limits = Limits(
        shutdown=ShutdownLimits(close_seconds=0.1, terminate_seconds=0.1, kill_seconds=0.1)
    )
    async with open_proxy(python(code), path, limits=limits) as host:
        await until(lambda: host.journal.messages.counts["out_bytes"] >= 2 * PIPE_BYTES)
        host.kill(signal.SIGTERM)
        await host.ended.wait()
    assert recorded(path).marks() == {"exited": "SIGTERM"}


@pytest.mark.real_time
async def test_the_death_of_the_parent_is_an_end_of_file_and_more_if_need_be(
    open_proxy, python, path, recorded
):
    gone = subprocess.Popen([sys.executable, "-S", "-c", ""])
    gone.wait()
    code = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: os._exit(6))
os.write(1, str(len(sys.stdin.buffer.read())).encode())
signal.pause()
"""
    async with open_proxy(python(code), path, parent_pid=gone.pid, limits=QUICK) as host:
        assert (await host.read_all()).isdigit()
    session = recorded(path)
    assert session.cause == "lost"
    assert session.marks() == {"exited": 6}


LEAVES_A_CHILD = """
import os, subprocess, sys
child = subprocess.Popen(["sleep", "60"], start_new_session="apart" in sys.argv)
os.write(1, str(child.pid).encode())
"""


@pytest.mark.real_time
async def test_what_the_server_left_running_is_swept(open_proxy, python, path):
    async with open_proxy(python(LEAVES_A_CHILD), path) as host:
        pid = int(await host.read_all())
    await until(lambda: not is_alive(pid))


@pytest.mark.real_time
async def test_a_descendant_elsewhere_that_holds_the_pipes_delays_no_end(
    open_proxy, python, path, recorded
):
    async with open_proxy(python(LEAVES_A_CHILD, "apart"), path) as host:
        pid = int(await host.read_all())
    os.kill(pid, signal.SIGKILL)
    assert recorded(path).marks() == {"exited": 0}


@pytest.mark.parametrize(("exit_status", "status"), [(0, 0), (3, 3), (-15, 143), (None, 137)])
def test_an_ending_becomes_the_status_that_a_shell_gives_it(exit_status, status):
    assert shell_status(exit_status) == status
