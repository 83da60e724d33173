"""The stdio channel of a server: redirected descriptors, and the end of the parent."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
import trio

from mcp_trio import Limits
from mcp_trio._transports.stdio import wait_parent_death
from mcp_trio.transports import open_stdio_channel


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
        while frames := await channel.receive():
            await channel.send(frames)
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


ECHO = """
    import trio
    from mcp_trio.transports import divert_stdio, open_stdio_channel
    BEFORE
    fds = divert_stdio()

    async def main():
        channel = open_stdio_channel(*fds)
        while frames := await channel.receive():
            await channel.send(frames)
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
    done = run_server(ECHO.replace("BEFORE", ""), shell=shell, input=b"{1}\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, answer, b"")


def test_a_stdout_that_python_closed_already_does_no_harm():
    before = "import sys; sys.stdout = open('/dev/null', 'w'); sys.stdout.close()"
    done = run_server(ECHO.replace("BEFORE", before), input=b"{1}\n")
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
    await wait_parent_death(parent_pid=child.pid)


async def test_a_reused_process_id_is_not_the_parent():
    await wait_parent_death(parent_pid=os.getpid())


@pytest.mark.real_time
async def test_a_living_parent_is_waited_for():
    with trio.move_on_after(0.05) as scope:
        await wait_parent_death(limits=Limits())
    assert scope.cancelled_caught
