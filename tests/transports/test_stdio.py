"""Channels over stdio: servers as subprocesses, a server's own channel, and its descriptors."""

import errno
import fcntl
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import trio
import trio.testing

from mcp_trio import ConnectionLost, Limits
from mcp_trio._transports.descriptors import (
    Descriptor,
    PolledDescriptor,
    SocketDescriptor,
    ThreadDescriptor,
    open_descriptor,
)
from mcp_trio._transports.stdio import StderrTail, wait_parent_death
from mcp_trio.limits import KIB, MIB, MessageLimits, ShutdownLimits
from mcp_trio.transports import open_process_channel, open_stdio_channel
from tests.processes import is_alive, open_descriptors, python, until_gone

QUICK = Limits(
    shutdown=ShutdownLimits(close_seconds=0.2, terminate_seconds=0.2, exit_status_seconds=2)
)

ECHO = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"


async def lost(channel):
    """The loss that receiving ends with."""
    while True:
        try:
            await channel.receive()
        except ConnectionLost as loss:
            return loss


# The start


@pytest.mark.requirement("STDIO-01")
async def test_a_server_is_started_and_exchanges_messages():
    channel = await open_process_channel(python(ECHO))
    await channel.send([b"{1}", b"{2}"])
    assert channel.send_nowait([b"{3}"]) == 1
    received = []
    while len(received) < 3:
        received += await channel.receive()
    assert received == [b"{1}", b"{2}", b"{3}"]
    assert channel.transport == "stdio"
    assert channel.bytes_sent == 12
    assert not channel.is_unfinished
    assert channel.exit_status is None
    await channel.aclose()
    assert channel.exit_status == 0


@pytest.mark.requirement("STDIO-02", "STDIO-03", "STDIO-07")
async def test_a_server_reads_one_message_per_line_and_nothing_else(tmp_path):
    path = tmp_path / "stdin"
    code = "import sys; open(sys.argv[1], 'wb').write(sys.stdin.buffer.read())"
    channel = await open_process_channel(python(code, path))
    await channel.send([b"{1}", b"{2}"])
    await channel.aclose()
    assert path.read_bytes() == b"{1}\n{2}\n"


async def test_the_error_of_a_missing_command_names_the_searched_path():
    with pytest.raises(
        ConnectionLost, match="cannot start 'no-such-server': not found on PATH"
    ) as caught:
        await open_process_channel(["no-such-server"], env={"PATH": "/nowhere"})
    assert "/nowhere" in str(caught.value)


async def test_the_error_names_a_missing_file_or_folder_or_a_forbidden_file(tmp_path):
    forbidden = tmp_path / "text"
    forbidden.write_text("no program")
    with pytest.raises(ConnectionLost, match="'/no/such/file': No such file"):
        await open_process_channel(["/no/such/file"])
    with pytest.raises(ConnectionLost, match="there is no working directory '/no/such/folder'"):
        await open_process_channel(python(ECHO), cwd="/no/such/folder")
    with pytest.raises(ConnectionLost, match="Permission denied"):
        await open_process_channel([os.fspath(forbidden)], cwd=tmp_path)


@pytest.mark.parametrize("command", ["python server.py", []])
async def test_a_command_is_a_list(command):
    with pytest.raises(TypeError, match="a command is a list"):
        await open_process_channel(command)


async def test_a_program_may_be_a_path(tmp_path):
    with pytest.raises(ConnectionLost, match="cannot start 'no-such-server': not found on PATH"):
        await open_process_channel([Path("no-such-server")])
    channel = await open_process_channel([Path(sys.executable), "-c", "exit(3)"])
    assert str(await lost(channel)) == f"{sys.executable} exited with status 3"
    await channel.aclose()


async def test_a_signal_without_a_name_is_reported_by_its_number():
    code = f"import os; os.kill(os.getpid(), {signal.SIGRTMIN + 1})"
    channel = await open_process_channel(python(code))
    assert str(await lost(channel)).endswith(f"was killed by signal {signal.SIGRTMIN + 1}")
    await channel.aclose()


async def test_too_many_open_files_leave_no_descriptor_open(monkeypatch):
    """As many pipes as a process may have, and one more."""
    before = open_descriptors()
    pipes = [os.pipe(), os.pipe()]

    def pipe():
        if pipes:
            return pipes.pop()
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "pipe", pipe)
    with pytest.raises(ConnectionLost, match=r"cannot start .*: Too many open files"):
        await open_process_channel(python(ECHO))
    assert open_descriptors() == before


async def test_a_failed_start_and_a_closed_channel_leave_no_descriptor_open():
    await (await open_process_channel(python(ECHO))).aclose()
    before = open_descriptors()
    with pytest.raises(ConnectionLost):
        await open_process_channel(["/no/such/file"])
    with pytest.raises(ValueError, match="null byte"):
        await open_process_channel(["no\0file"])
    await (await open_process_channel(python(ECHO))).aclose()
    assert open_descriptors() == before


SHOW_ENVIRONMENT = "import json, os; print(json.dumps(dict(os.environ)))"


@pytest.mark.parametrize("inherits", [False, True])
async def test_a_server_sees_only_harmless_variables_unless_asked(monkeypatch, inherits):
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    monkeypatch.setenv("LC_TIME", "C")
    monkeypatch.setenv("HOME", "/home/somebody")
    channel = await open_process_channel(
        python(SHOW_ENVIRONMENT), env={"HOME": "/elsewhere", "GIVEN": "1"}, inherit_env=inherits
    )
    (message,) = await channel.receive()
    seen = json.loads(message)
    assert seen["GIVEN"] == "1"
    assert seen["HOME"] == "/elsewhere"
    assert seen["LC_TIME"] == "C"
    assert seen["PATH"] == os.environ["PATH"]
    assert ("SECRET_TOKEN" in seen) == inherits
    await channel.aclose()


async def test_a_server_is_started_in_its_directory_and_process_group(tmp_path):
    code = "import os; print(os.getcwd()); print(os.getpid() == os.getpgrp() == os.getsid(0))"
    channel = await open_process_channel(python(code), cwd=tmp_path)
    received = []
    while len(received) < 2:
        received += await channel.receive()
    assert received == [os.fsencode(tmp_path), b"True"]
    await channel.aclose()


# The reported end


async def test_an_early_exit_is_reported_with_status_and_stderr():
    """L11: other clients say "Connection closed", and nothing of why."""
    code = "import sys; print('{}'); print('no licence found', file=sys.stderr); sys.exit(3)"
    channel = await open_process_channel(python(code))
    assert await channel.receive() == [b"{}"]
    loss = await lost(channel)
    assert loss.exit_status == channel.exit_status == 3
    assert loss.stderr_tail == channel.stderr_tail == "no licence found"
    assert "exited with status 3" in loss.reason
    with pytest.raises(ConnectionLost, match="no licence found"):
        await channel.send([b"{}"])
    with pytest.raises(trio.BrokenResourceError):
        channel.send_nowait([b"{}"])
    await channel.aclose()


@pytest.mark.requirement("LIFE-22", "STDIO-10")
async def test_a_server_may_end_the_session_by_closing_stdout_and_exiting():
    channel = await open_process_channel(python("import sys; sys.stderr.write('bye')"))
    loss = await lost(channel)
    assert loss.exit_status == 0
    assert "exited with status 0" in loss.reason
    await channel.aclose()


async def test_a_killed_server_is_reported_with_the_signals_name():
    channel = await open_process_channel(python("import os; os.kill(os.getpid(), 9)"))
    loss = await lost(channel)
    assert loss.exit_status == -9
    assert "was killed by SIGKILL" in loss.reason
    await channel.aclose()


@pytest.mark.real_time
async def test_a_server_that_closes_stdout_and_still_runs_is_reported():
    code = "import os, time; os.close(1); time.sleep(60)"
    limits = Limits(shutdown=ShutdownLimits(exit_status_seconds=0.05, close_seconds=0.05))
    channel = await open_process_channel(python(code), limits=limits)
    loss = await lost(channel)
    assert loss.exit_status is None
    assert "closed its stdout but still runs" in loss.reason
    await channel.aclose()
    assert channel.exit_status == -signal.SIGTERM


async def test_the_end_of_the_trio_run_kills_an_unclosed_server():
    async def main():
        channel = await open_process_channel(
            python("import os, time; print(os.getpid(), flush=True); time.sleep(60)")
        )
        (message,) = await channel.receive()
        return int(message)

    pid = await trio.to_thread.run_sync(trio.run, main)
    assert not is_alive(pid)


# stderr


@pytest.mark.requirement("STDIO-09", "STDIO-10", "TRAP-129")
async def test_a_flood_on_stderr_blocks_nothing():
    code = f"import sys; sys.stderr.write('x' * 79 + '\\n'); sys.stderr.write('y' * {4 * MIB}); print('{{}}')"
    channel = await open_process_channel(python(code))
    assert await channel.receive() == [b"{}"]
    loss = await lost(channel)
    assert loss.stderr_tail == "y" * Limits().shutdown.stderr_tail_bytes
    await channel.aclose()


SPEAKS = "import sys; sys.stderr.buffer.write(b'one\\r\\n\\nthr\\xffee\\nunfinished')"


@pytest.mark.requirement("STDIO-09")
async def test_lines_of_stderr_go_to_a_function():
    lines = []
    channel = await open_process_channel(python(SPEAKS), stderr=lines.append)
    loss = await lost(channel)
    assert lines == ["one", "", "thr\ufffdee", "unfinished"]
    assert loss.stderr_tail.endswith("unfinished")
    await channel.aclose()


@pytest.mark.requirement("STDIO-09")
async def test_lines_of_stderr_can_go_to_the_stderr_of_this_process(capsys):
    channel = await open_process_channel(python(SPEAKS), stderr="inherit")
    await lost(channel)
    assert capsys.readouterr().err == "one\n\nthr\ufffdee\nunfinished\n"
    await channel.aclose()


async def test_an_exception_of_the_stderr_function_is_logged_once(caplog):
    def consume(_line):
        raise ValueError("not this line")

    channel = await open_process_channel(python(SPEAKS), stderr=consume)
    loss = await lost(channel)
    assert loss.exit_status == 0
    assert loss.stderr_tail.startswith("one")
    assert [record.exc_info[0] for record in caplog.records] == [ValueError]
    await channel.aclose()


def test_the_stderr_tail_begins_with_a_complete_line_if_possible():
    tail = StderrTail(bytes_max=10)
    tail.feed(b"first\n")
    assert tail.text == "first"
    tail.feed(b"second\nlast\n")
    assert tail.text == "last"


@pytest.mark.parametrize(
    ("bytes_max", "chunks", "forwarded"),
    [
        (0, [b"first\nsec", b"ond"], ["first", "second"]),  # no tail is kept
        (4, [b"123456789", b"0\n"], ["1234", "5678", "90"]),  # an endless line comes in pieces
    ],
)
def test_lines_are_forwarded_whatever_the_length_of_the_tail(bytes_max, chunks, forwarded):
    lines = []
    tail = StderrTail(bytes_max=bytes_max, forward=lines.append)
    for chunk in chunks:
        tail.feed(chunk)
    tail.finish()
    assert lines == forwarded
    assert len(tail.text) <= bytes_max


async def test_an_error_of_the_watching_task_does_not_end_the_trio_run(caplog):
    class Faulty(StderrTail):
        def feed(self, _chunk):
            raise RuntimeError("a fault")

    channel = await open_process_channel(
        python("import sys, time; print('x', file=sys.stderr, flush=True); time.sleep(60)")
    )
    channel._child.tail = Faulty(bytes_max=10)
    await channel._child.ended.wait()
    assert [record.message for record in caplog.records] == ["watching a subprocess failed"]
    assert channel.exit_status == -signal.SIGKILL
    await channel.aclose()


# The stop

STUBBORN = """
import signal, sys, time
for number in map(int, sys.argv[1:]):
    signal.signal(number, signal.SIG_IGN)
print("{}", flush=True)
time.sleep(60)
"""


@pytest.mark.real_time
@pytest.mark.requirement("LIFE-21", "LIFE-20", "TRAP-130", "STDIO-17")
@pytest.mark.parametrize(
    ("code", "ignored", "rungs", "status"),
    [
        ("print('{}', flush=True); import sys; sys.stdin.read(); sys.exit(7)", [], 0, 7),
        (STUBBORN, [], 1, -signal.SIGTERM),
        (STUBBORN, [signal.SIGTERM], 2, -signal.SIGKILL),
    ],
)
async def test_a_server_is_stopped_by_eof_then_sigterm_then_sigkill(code, ignored, rungs, status):
    channel = await open_process_channel(python(code, *map(int, ignored)), limits=QUICK)
    assert await channel.receive() == [b"{}"]
    started = time.monotonic()
    await channel.aclose()
    assert channel.exit_status == status
    assert rungs * 0.2 <= time.monotonic() - started < rungs * 0.2 + 2


@pytest.mark.requirement("LIFE-21")
async def test_a_server_that_is_still_writing_may_finish():
    code = f"import sys; sys.stdin.read(); print('x' * {4 * MIB}); sys.exit(5)"
    channel = await open_process_channel(python(code))
    await channel.aclose()
    assert channel.exit_status == 5


async def test_closing_from_several_tasks_waits_for_the_same_end():
    channel = await open_process_channel(python(ECHO))

    async def close():
        await channel.aclose()
        assert channel.exit_status == 0

    async with trio.open_nursery() as nursery:
        nursery.start_soon(close)
        nursery.start_soon(close)
    await close()
    with pytest.raises(trio.ClosedResourceError):
        await channel.receive()


async def test_a_cancelled_close_still_stops_the_server_and_reaps_it():
    channel = await open_process_channel(python(ECHO))
    pid = channel._child.process.pid
    with trio.CancelScope() as scope:
        scope.cancel()
        await channel.aclose()
    assert scope.cancelled_caught
    assert channel.exit_status == 0
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


async def test_closing_ends_a_waiting_receive():
    channel = await open_process_channel(python(ECHO))
    async with trio.open_nursery() as nursery:

        async def receive():
            with pytest.raises(trio.ClosedResourceError):
                await channel.receive()

        nursery.start_soon(receive)
        await trio.testing.wait_all_tasks_blocked()
        await channel.aclose()


@pytest.mark.real_time
async def test_closing_ends_a_receive_amid_an_endless_line():
    channel = await open_process_channel(
        python("import os\nos.write(1, b'{}\\n')\nwhile True: os.write(1, b'x' * 65536)"),
        limits=Limits(
            shutdown=ShutdownLimits(close_seconds=0.2), messages=MessageLimits(chunk_bytes=64)
        ),
    )
    assert await channel.receive() == [b"{}"]
    await trio.sleep(0.05)  # the pipe is full now: receiving never waits
    async with trio.open_nursery() as nursery:

        async def receive():
            with pytest.raises(trio.ClosedResourceError):  # noqa: PT012 (whichever call it hits)
                while True:
                    await channel.receive()
            assert channel.exit_status is None

        nursery.start_soon(receive)
        for _ in range(50):
            await trio.lowlevel.checkpoint()
        await channel.aclose()
    assert channel.exit_status == -signal.SIGTERM


async def test_a_server_behind_a_broken_channel_still_gets_the_end_of_stdin():
    code = "import os, sys; os.close(1); sys.stdin.read(); os._exit(4)"
    channel = await open_process_channel(
        python(code), limits=Limits(shutdown=ShutdownLimits(exit_status_seconds=0))
    )
    await lost(channel)
    await channel.aclose()
    assert channel.exit_status == 4


LEAVES_A_CHILD = """
import os, subprocess, sys
child = subprocess.Popen(["sleep", "60"], start_new_session="apart" in sys.argv)
print(child.pid, flush=True)
if "stays" in sys.argv:
    sys.stdin.read()
"""


@pytest.mark.real_time
@pytest.mark.parametrize("stays", ["stays", "goes"])
async def test_children_left_by_a_server_are_killed_after_a_clean_exit(stays):
    """L6: other clients leave a tool's `sleep` behind."""
    channel = await open_process_channel(python(LEAVES_A_CHILD, stays))
    (message,) = await channel.receive()
    if stays == "stays":
        assert is_alive(int(message))
    else:
        await lost(channel)
    await channel.aclose()
    assert channel.exit_status == 0
    await until_gone(int(message))


@pytest.mark.real_time
async def test_a_descendant_outside_the_group_does_not_delay_the_end():
    channel = await open_process_channel(python(LEAVES_A_CHILD, "apart"))
    (message,) = await channel.receive()
    loss = await lost(channel)
    assert loss.exit_status == 0
    await channel.aclose()
    os.kill(int(message), signal.SIGKILL)


@pytest.mark.real_time
async def test_without_pidfd_a_server_is_reaped_and_its_group_killed(monkeypatch):
    monkeypatch.delattr(os, "pidfd_open")
    channel = await open_process_channel(python(LEAVES_A_CHILD, "stays"))
    (message,) = await channel.receive()
    await channel.aclose()
    assert channel.exit_status == 0
    await until_gone(int(message))


async def test_killing_an_empty_group_logs_nothing():
    channel = await open_process_channel(python(ECHO))
    await channel.aclose()
    channel._child.send_signal(signal.SIGTERM)
    channel._child.terminate()
    channel._child.kill()
    with pytest.raises(ProcessLookupError):
        os.killpg(channel._child.process.pid, 0)
    assert subprocess.run(python(""), check=True).returncode == 0


# The channel of a server.


def run_server(body, *, shell="", **options):
    """Runs `body` in a Python of its own, buffered as usual; `shell` redirects its descriptors."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    code = textwrap.dedent(body)
    command = ["sh", "-c", f'exec "$0" "$@" {shell}', sys.executable, "-c", code]
    return subprocess.run(
        command, check=False, capture_output=True, timeout=30, env=environment, **options
    )


DIVERTED = """
    import os, sys, trio
    from mcp_trio.transports import divert_stdio, open_stdio_channel

    print("printed before", end="")
    fds = divert_stdio()
    print("printed")
    sys.stdout.flush()
    os.write(1, b"written\\n")
    os.system("echo by a child; cat")
    assert sys.stdin.read() == ""

    async def main():
        channel = open_stdio_channel(*fds)
        while messages := await channel.receive():
            await channel.send(messages)
        await channel.aclose()

    trio.run(main)
"""


@pytest.mark.requirement("STDIO-06", "STDIO-08", "TRAP-128")
def test_only_messages_reach_stdout_and_everything_else_goes_to_stderr():
    done = run_server(DIVERTED, input=b"{1}\n{2}\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout == b"{1}\n{2}\n"
    assert done.stderr == b"printed beforeprinted\nwritten\nby a child\n"


def test_private_descriptors_are_not_inherited_and_not_among_the_first_three():
    done = run_server(
        """
        import os
        from mcp_trio.transports import divert_stdio
        fds = divert_stdio()
        assert min(fds) > 2
        assert not any(os.get_inheritable(fd) for fd in fds)
        assert all(os.get_inheritable(fd) for fd in (0, 1, 2))
        """
    )
    assert done.returncode == 0, done.stderr


ECHO_OVER_STDIO = """
    import trio
    from mcp_trio.transports import divert_stdio, open_stdio_channel
    BEFORE
    fds = divert_stdio()

    async def main():
        channel = open_stdio_channel(*fds)
        while messages := await channel.receive():
            await channel.send(messages)
        await channel.aclose()

    trio.run(main)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shell", "answer"),
    [
        ("<&-", b""),
        (">&-", b""),
        ("<&- >&-", b""),
        ("2>&-", b"{1}\n"),
        ("<&- >&- 2>&-", b""),
    ],
)
def test_descriptors_that_were_never_open_are_replaced(shell, answer):
    # Some builds of libffi, which Trio loads, keep a file open, at the first number that is free.
    first = {"<": 0, ">": 1, "2": 2}[shell[0]]
    if run_server(f"import os, trio; os.fstat({first})", shell=shell).returncode == 0:
        pytest.skip("a library has opened a file at the number of a standard stream")
    done = run_server(ECHO_OVER_STDIO.replace("BEFORE", ""), shell=shell, input=b"{1}\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, answer, b"")


def test_a_stdout_that_python_closed_already_does_no_harm():
    before = "import sys; sys.stdout = open('/dev/null', 'w'); sys.stdout.close()"
    done = run_server(ECHO_OVER_STDIO.replace("BEFORE", before), input=b"{1}\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"{1}\n", b"")


def test_a_lack_of_descriptors_raises_an_error():
    done = run_server(
        """
        import resource
        from mcp_trio.transports import divert_stdio
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        try:
            divert_stdio()
        except OSError as error:
            print(type(error))
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        """
    )
    assert done.stdout == b"<class 'OSError'>\n", done.stderr


@pytest.mark.requirement("LIFE-20")
async def test_a_host_that_closes_stdin_ends_the_session_without_an_error():
    read, write = os.pipe()
    channel = open_stdio_channel(read, os.open(os.devnull, os.O_WRONLY))
    os.close(write)
    assert await channel.receive() == []
    await channel.aclose()


async def test_a_host_that_closes_stdout_ends_the_session_quietly():
    """L9: other servers answer with a storm of tracebacks."""
    read, write = os.pipe()
    channel = open_stdio_channel(os.open(os.devnull, os.O_RDONLY), write)
    os.close(read)
    with pytest.raises(trio.BrokenResourceError):
        await channel.send([b"{}"])
    await channel.aclose()


@pytest.mark.requirement("LIFE-22")
async def test_a_server_ends_the_session_by_closing_its_stdout():
    read, write = os.pipe()
    channel = open_stdio_channel(os.open(os.devnull, os.O_RDONLY), write)
    await channel.send([b"{}"])
    await channel.aclose()
    assert os.read(read, 100) == b"{}\n"
    assert os.read(read, 100) == b""
    os.close(read)


PARENT = """
import os, subprocess, sys, time
pipe = int(sys.argv[1])
child = subprocess.Popen([sys.executable, "-c", sys.argv[2], str(pipe)], pass_fds=[pipe], stdin=subprocess.PIPE)
time.sleep(60)
"""

CHILD = """
import os, sys, trio
from mcp_trio.limits import Limits, ShutdownLimits
from mcp_trio._transports.stdio import wait_parent_death
REMOVED
parent_pid = os.getppid()
os.write(int(sys.argv[1]), b"ready")
trio.run(lambda: wait_parent_death(parent_pid=parent_pid, limits=Limits(shutdown=ShutdownLimits(parent_poll_seconds=0.05))))
os.write(int(sys.argv[1]), b"gone")
"""


@pytest.mark.real_time
@pytest.mark.parametrize("removed", ["", "del os.pidfd_open"])
def test_the_death_of_the_parent_is_noticed(removed):
    """L7: other servers live on when the host is killed and its pipes stay open."""
    read, write = os.pipe()
    child = CHILD.replace("REMOVED", removed)
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(write), child], pass_fds=[write])
    os.close(write)
    assert os.read(read, 100) == b"ready"
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    killed = time.monotonic()
    assert os.read(read, 100) == b"gone"
    assert time.monotonic() - killed < 2
    assert os.read(read, 100) == b""
    os.close(read)


async def test_a_parent_that_died_before_is_noticed_at_once():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    await wait_parent_death(parent_pid=child.pid, limits=Limits())


async def test_a_reused_process_id_is_not_the_parent():
    await wait_parent_death(parent_pid=os.getpid(), limits=Limits())


@pytest.mark.real_time
async def test_a_living_parent_is_waited_for():
    with trio.move_on_after(0.05) as scope:
        await wait_parent_death(parent_pid=os.getppid(), limits=Limits())
    assert scope.cancelled_caught


# Descriptors that are shared with other processes.


def flags(fd):
    return fcntl.fcntl(fd, fcntl.F_GETFL)


def a_pipe():
    return os.pipe()


def a_socketpair():
    return tuple(end.detach() for end in socket.socketpair())


def a_terminal():
    master, slave = pty.openpty()
    return slave, master


@pytest.mark.parametrize("make", [a_pipe, a_socketpair, a_terminal])
async def test_flags_of_inherited_descriptions_are_not_changed(make):
    fd_in, there = make()
    back, fd_out = make()
    if make is a_terminal:
        back, fd_out = fd_out, back
    kept_in, kept_out = os.dup(fd_in), os.dup(fd_out)
    before = flags(kept_in), flags(kept_out)
    channel = open_stdio_channel(fd_in, fd_out)

    async def answer():
        await trio.testing.wait_all_tasks_blocked()
        os.write(there, b"{1}\n")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer)
        assert await channel.receive() == [b"{1}"]
    await channel.send([b"{2}"])
    assert os.read(back, 100).replace(b"\r", b"") == b"{2}\n"
    assert (flags(kept_in), flags(kept_out)) == before
    await channel.aclose()
    assert (flags(kept_in), flags(kept_out)) == before
    assert before[0] & os.O_NONBLOCK == 0
    for fd in (there, back, kept_in, kept_out):
        os.close(fd)


async def test_a_flag_set_by_another_process_does_no_harm():
    fd_in, there = os.pipe()
    os.set_blocking(fd_in, False)
    end = PolledDescriptor(fd=fd_in)
    with pytest.raises(BlockingIOError):
        end.read_nowait()
    os.write(there, b"x")
    assert await end.read() == b"x"
    os.close(there)
    assert await end.read() == b""
    end.close()


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (a_pipe, Descriptor),
        (a_socketpair, SocketDescriptor),
        (a_terminal, PolledDescriptor),
    ],
)
async def test_each_kind_of_file_has_its_descriptor_class(make, kind):
    fd, other = make()
    end = open_descriptor(fd)
    assert type(end) is kind
    end.close()
    end.close()
    os.close(other)


@pytest.mark.parametrize("name", ["a_file", "/dev/null"])
async def test_a_file_as_stdin_is_read_to_its_end(tmp_path, name):
    path = tmp_path / name
    if name == "a_file":
        path.write_bytes(b"{1}\n{2}")
    channel = open_stdio_channel(os.open(path, os.O_RDONLY), os.open(os.devnull, os.O_WRONLY))
    received = []
    while messages := await channel.receive():
        received += messages
    assert received == ([] if name == "/dev/null" else [b"{1}", b"{2}"])
    await channel.send([b"{3}"])
    await channel.aclose()


async def test_a_file_as_stdout_is_written(tmp_path):
    path = tmp_path / "out"
    channel = open_stdio_channel(
        os.open(os.devnull, os.O_RDONLY), os.open(path, os.O_WRONLY | os.O_CREAT)
    )
    messages = [b"x" * 100_000] * 10
    await channel.send(messages)
    await channel.aclose()
    assert path.read_bytes() == b"".join(message + b"\n" for message in messages)


async def test_a_full_disk_is_a_broken_channel():
    channel = open_stdio_channel(
        os.open(os.devnull, os.O_RDONLY), os.open("/dev/full", os.O_WRONLY)
    )
    with pytest.raises(trio.BrokenResourceError, match="No space left"):
        await channel.send([b"{}"])
    await channel.aclose()


async def test_a_pipe_is_reopened_with_its_own_access():
    """A pipe that is open both ways would end at once if its reader kept no writer."""
    read, write = os.pipe()
    both = os.open(f"/proc/self/fd/{read}", os.O_RDWR)
    os.close(read)
    os.close(write)
    end = open_descriptor(both)
    with pytest.raises(BlockingIOError):
        end.read_nowait()
    assert end.write_nowait(b"x") == 1
    assert await end.read() == b"x"
    end.close()


@pytest.mark.parametrize("is_possible", [True, False])
async def test_a_pipe_holds_a_large_message_where_the_system_allows_it(monkeypatch, is_possible):
    read, write = os.pipe()
    if not is_possible:
        monkeypatch.delattr(fcntl, "F_SETPIPE_SZ")
    end = open_descriptor(write)
    try:
        written = end.write_nowait(bytes(2 * MIB))
        assert written == (MIB if is_possible else 64 * KIB)
    finally:
        end.close()
        os.close(read)


async def test_a_pipe_that_cannot_be_reopened_is_polled(tmp_path):
    """A named pipe without a reader is not opened for writing; the first write fails."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    read = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    write = os.open(path, os.O_WRONLY)
    os.close(read)
    end = open_descriptor(write)
    assert type(end) is PolledDescriptor
    with pytest.raises(BrokenPipeError):
        end.write_nowait(b"x")
    end.close()


async def test_a_named_pipe_whose_writer_has_closed_already_is_read_to_its_end(tmp_path):
    path = tmp_path / "fifo"
    os.mkfifo(path)
    write = os.open(path, os.O_RDWR)
    read = os.open(path, os.O_RDONLY)
    os.write(write, b"{}\n")
    os.close(write)
    channel = open_stdio_channel(read, os.open(os.devnull, os.O_WRONLY))
    with trio.fail_after(30):
        assert await channel.receive() == [b"{}"]
        assert await channel.receive() == []
    await channel.aclose()


async def test_bytes_written_before_the_writer_closed_are_read_before_the_end():
    read, write = os.pipe()
    os.write(write, b"x")
    os.close(write)
    end = open_descriptor(read)
    assert await end.read() == b"x"
    assert await end.read() == b""
    end.close()


@pytest.mark.parametrize("ours", [0, 1])
async def test_a_closed_terminal_is_at_its_end(ours):
    sides = pty.openpty()
    end = open_descriptor(sides[ours])
    os.close(sides[1 - ours])
    assert await end.read() == b""
    end.close()


async def test_another_error_of_a_polled_read_is_raised():
    _, write = pipe = os.pipe()
    end = PolledDescriptor(fd=write)
    os.close(pipe[0])
    with pytest.raises(OSError, match="Bad file descriptor"):
        end.read_nowait()
    end.close()


async def test_a_default_timeout_of_sockets_does_no_harm():
    ours, theirs = socket.socketpair()
    before = flags(ours.fileno())
    socket.setdefaulttimeout(0.01)
    try:
        end = open_descriptor(os.dup(ours.fileno()))
    finally:
        socket.setdefaulttimeout(None)
    assert flags(ours.fileno()) == before
    with pytest.raises(BlockingIOError):
        end.read_nowait()
    theirs.send(b"x")
    assert await end.read() == b"x"
    end.close()
    ours.close()
    theirs.close()


async def test_a_socket_closed_with_unread_bytes_is_at_its_end():
    ours, theirs = socket.socketpair()
    ours.send(b"unread")
    end = open_descriptor(ours.detach())
    theirs.close()
    assert await end.read() == b""
    end.close()


async def test_end_returns_the_rest_and_wakes_waiting_tasks():
    read, write = os.pipe()
    end = open_descriptor(read)
    async with trio.open_nursery() as nursery:
        results = []

        async def wait():
            results.append(await end.read())

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        end.end()
    assert results == [b""]
    os.write(write, b"late")
    assert await end.read() == b"late"
    assert await end.read() == b""
    os.close(write)
    end.close()
    end.end()


async def test_closing_wakes_waiting_tasks():
    read, write = os.pipe()
    end = open_descriptor(read)
    async with trio.open_nursery() as nursery:

        async def wait():
            with pytest.raises(trio.ClosedResourceError):
                await end.read()

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        end.close()
    os.close(write)


# Descriptors that threads read and write, as on Windows.


@pytest.fixture
def pipe():
    read, write = os.pipe()
    yield ThreadDescriptor(fd=read, chunk_bytes=8), ThreadDescriptor(fd=write, chunk_bytes=100_000)
    for fd in (read, write):
        with pytest.raises(OSError, match="Bad file"):  # each test closes both
            os.fstat(fd)


@pytest.mark.real_time
@pytest.mark.requirement("STDIO-18")
async def test_bytes_arrive_in_order_and_then_the_end(pipe):
    source, sink = pipe
    data = os.urandom(300_000)
    received = b""

    async def send():
        await sink.write(data)
        sink.close()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        source.chunk_bytes = 50_000
        while chunk := await source.read():
            received += chunk
    assert received == data
    assert await source.read() == b""  # the end stays
    source.close()


@pytest.mark.real_time
async def test_nothing_waits_in_a_call_that_must_not_wait(pipe):
    source, sink = pipe
    with pytest.raises(BlockingIOError):
        source.read_nowait()
    assert sink.write_nowait(b"x" * 200_000) == 100_000  # more than the pipe has room for
    with pytest.raises(BlockingIOError):
        sink.write_nowait(b"y")
    source.chunk_bytes = 100_000
    left = 100_000
    while left:
        left -= len(await source.read())
    await sink.wait_writable()
    await sink.wait_writable()  # at once: the thread is idle
    sink.close()
    source.close()


@pytest.mark.real_time
async def test_a_read_that_is_cancelled_loses_nothing(pipe):
    source, sink = pipe
    with trio.move_on_after(0.01) as scope:
        await source.read()
    assert scope.cancelled_caught
    await sink.write(b"kept")
    assert await source.read() == b"kept"
    sink.close()
    source.close()


@pytest.mark.real_time
async def test_an_interrupt_wakes_the_waiting_task_alone(pipe):
    source, sink = pipe
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def wait():
            with pytest.raises(trio.ClosedResourceError):
                await source.wait_readable()

        await trio.testing.wait_all_tasks_blocked()
        source.interrupt()
    await sink.write(b"later")
    assert await source.read() == b"later"
    sink.close()
    source.close()


@pytest.mark.real_time
async def test_a_descriptor_that_a_thread_reads_is_closed_by_that_thread(pipe):
    source, sink = pipe
    fd = source.fd
    with trio.move_on_after(0.01):
        await source.wait_readable()
    source.close()
    os.fstat(fd)  # still open
    sink.close()  # ends the read
    while True:
        try:
            os.fstat(fd)
        except OSError:
            break
        await trio.sleep(0.001)


@pytest.mark.real_time
@pytest.mark.requirement("STDIO-19")
def test_closing_waits_for_the_last_write():
    code = """
        import sys, trio
        from mcp_trio._transports.descriptors import ThreadDescriptor

        async def main():
            sink = ThreadDescriptor(fd=1, chunk_bytes=500_000)
            sink.write_nowait(b"x" * 500_000)
            sys.stderr.write("closing\\n")
            sys.stderr.flush()
            sink.close()

        trio.run(main)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr.readline() == b"closing\n"
        time.sleep(0.2)  # a process that does not wait has ended by then
        assert len(process.stdout.read()) == 500_000


@pytest.mark.real_time
async def test_a_descriptor_that_is_closed_during_a_write_is_written_first(pipe):
    source, sink = pipe
    sink.write_nowait(b"last")
    sink.close()
    assert await source.read() == b"last"
    assert await source.read() == b""
    source.close()


@pytest.mark.real_time
async def test_a_reader_that_has_gone_fails_the_next_write(pipe):
    source, sink = pipe
    source.close()
    with pytest.raises(BrokenPipeError):
        await sink.write(b"x" * 200_000)
    sink.close()


@pytest.mark.real_time
async def test_a_read_that_fails_raises_its_error_again():
    folder = os.open("/", os.O_RDONLY)
    source = ThreadDescriptor(fd=folder)
    for _ in range(2):
        with pytest.raises(IsADirectoryError):
            await source.read()
    source.close()


@pytest.mark.real_time
def test_a_thread_may_outlive_the_event_loop():
    read, write = os.pipe()
    source = ThreadDescriptor(fd=read)

    async def wait():
        with trio.move_on_after(0.01):
            await source.wait_readable()

    trio.run(wait)
    os.write(write, b"too late")
    os.close(write)
    source.close()
