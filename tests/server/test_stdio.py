"""Serving stdio: over pipes in this process, and in a process with signals."""

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import textwrap

import attrs
import pytest
import trio
import trio.testing

from mcp_trio import Limits, Server
from mcp_trio._server import stdio
from mcp_trio._server.stdio import run_stdio, serve_stdio
from mcp_trio.limits import ShutdownLimits
from mcp_trio.testing import WirePeer
from mcp_trio.transports import open_stdio_channel


@attrs.define
class Pipes:
    """Both ends of a server's stdio."""

    theirs: tuple[int, int]
    wire: WirePeer


@pytest.fixture
async def pipes():
    to_server, from_host = os.pipe()
    to_host, from_server = os.pipe()
    wire = WirePeer(open_stdio_channel(to_host, from_host))
    yield Pipes((to_server, from_server), wire)
    await wire.aclose()


async def test_stdio_is_served_until_the_host_closes_it(pipes):
    left = []

    @contextlib.asynccontextmanager
    async def lifespan(server):
        yield
        await trio.testing.wait_all_tasks_blocked()
        left.append(True)

    server = Server("harbour", lifespan=lifespan)
    async with trio.open_nursery() as nursery:
        session = await nursery.start(
            functools.partial(serve_stdio, server, descriptors=pipes.theirs)
        )
        assert (await pipes.wire.handshake())["result"]["serverInfo"]["name"] == "harbour"
        await pipes.wire.aclose()
    assert session.cause == "eof"
    assert left == [True]


async def test_a_lifespan_that_does_not_exit_in_time_is_cancelled(pipes, autojump_clock):
    left = []

    @contextlib.asynccontextmanager
    async def lifespan(server):
        yield
        try:
            await trio.sleep_forever()
        finally:
            left.append(trio.current_time())

    server = Server(
        "harbour", lifespan=lifespan, limits=Limits(shutdown=ShutdownLimits(close_seconds=3))
    )
    await pipes.wire.aclose()
    started = trio.current_time()
    await serve_stdio(server, descriptors=pipes.theirs)
    assert left[0] - started == pytest.approx(3)


@pytest.mark.parametrize("is_late", [True, False])
async def test_an_error_of_the_lifespan_is_raised_without_a_group(pipes, is_late):
    @contextlib.asynccontextmanager
    async def lifespan(server):
        if not is_late:
            raise OSError("no harbour")
        yield
        raise OSError("no harbour")

    server = Server("harbour", lifespan=lifespan)
    await pipes.wire.aclose()
    with pytest.raises(OSError, match="no harbour"):
        await serve_stdio(server, descriptors=pipes.theirs)


async def test_the_session_closes_when_the_parent_process_dies(pipes, monkeypatch):
    died = trio.Event()

    async def wait_parent_death(*, parent_pid, limits):
        assert parent_pid == os.getppid()
        await died.wait()

    monkeypatch.setattr(stdio, "wait_parent_death", wait_parent_death)
    async with trio.open_nursery() as nursery:
        session = await nursery.start(
            functools.partial(serve_stdio, Server("harbour"), descriptors=pipes.theirs)
        )
        await pipes.wire.handshake()
        died.set()
    assert session.cause == "lost"
    assert "parent" in session.loss.reason


async def test_serving_stdio_can_be_cancelled(pipes):
    async with trio.open_nursery() as nursery:
        session = await nursery.start(
            functools.partial(serve_stdio, Server("harbour"), descriptors=pipes.theirs)
        )
        nursery.cancel_scope.cancel()
    assert session.cause == "closed"


async def test_a_server_may_be_served_on_its_own_stdio_inside_of_a_nursery(pipes, monkeypatch):
    monkeypatch.setattr(stdio, "divert_stdio", lambda: pipes.theirs)
    async with trio.open_nursery() as nursery:
        session = await nursery.start(Server("harbour").serve_stdio)
        await pipes.wire.handshake()
        await pipes.wire.aclose()
    assert session.cause == "eof"


def test_run_returns_when_the_host_closes_stdio():
    theirs, host_in = os.pipe()
    host_out, from_server = os.pipe()
    os.close(host_in)
    run_stdio(Server("harbour"), descriptors=(theirs, from_server))
    assert os.read(host_out, 1) == b""
    os.close(host_out)


def test_run_raises_what_the_lifespan_raises():
    @contextlib.asynccontextmanager
    async def lifespan(server):
        try:
            raise KeyError("chart")
        except KeyError as error:
            raise OSError("no harbour") from error
        yield

    descriptors = (os.open(os.devnull, os.O_RDONLY), os.open(os.devnull, os.O_WRONLY))
    with pytest.raises(OSError, match="no harbour") as caught:
        run_stdio(Server("harbour", lifespan=lifespan), descriptors=descriptors)
    assert isinstance(caught.value.__cause__, KeyError)


# Processes.

HEAD = """
    import contextlib, os, signal, sys, time, trio
    from mcp_trio import Server

    async def send_two_signals():
        with trio.CancelScope(shield=True):
            os.kill(os.getpid(), signal.SIGTERM)
            await trio.sleep(0.1)
            os.kill(os.getpid(), signal.SIGINT)
            await trio.sleep(10)

    @contextlib.asynccontextmanager
    async def lifespan(server):
        print("entering", file=sys.stderr, flush=True)
        ENTER
        yield
        print("left", file=sys.stderr, flush=True)

    server = Server("harbour", lifespan=lifespan)
    server.run()
"""


def process(enter="pass"):
    code = textwrap.dedent(HEAD).replace("ENTER", enter)
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&-"])
def test_a_server_runs_to_its_end_though_stdin_or_stdout_was_never_open(closed):
    program = "from mcp_trio import Server; Server('harbour').run()"
    command = ["sh", "-c", f'exec "$0" "$@" {closed}', sys.executable, "-c", program]
    ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert ran.returncode == 0, ran.stderr


READY = b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n'
HELLO = (
    b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2024-11-05",'
    b'"capabilities":{},"clientInfo":{"name":"n","version":"1"}}}\n'
)


@pytest.mark.real_time
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_closes_the_session_and_exits_the_lifespan(number):
    with process() as child:
        child.stdin.write(HELLO)
        child.stdin.flush()
        assert b"harbour" in child.stdout.readline()
        child.send_signal(number)
        assert child.stdout.read() == b""
        assert child.stderr.read() == b"entering\nleft\n"
    assert child.returncode == 128 + number


FREEZING = """
    import gc, sys
    from mcp_trio import Server

    PREPARATION
    server = Server("harbour")

    @server.tool
    def frozen_objects() -> int:
        return gc.get_freeze_count()

    before = gc.get_freeze_count()
    server.run()
    print(before, gc.get_freeze_count(), file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("preparation", "is_left_alone"), [("pass", False), ("gc.freeze(); gc.collect()", True)]
)
def test_a_served_process_freezes_its_heap_while_it_serves(preparation, is_left_alone):
    code = textwrap.dedent(FREEZING).replace("PREPARATION", preparation)
    call = b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"frozen_objects"}}\n'
    ran = subprocess.run(
        [sys.executable, "-c", code], input=HELLO + READY + call, capture_output=True, check=True
    )
    answer = json.loads(ran.stdout.splitlines()[-1])
    served = int(answer["result"]["content"][0]["text"])
    before, after = map(int, ran.stderr.split())
    if is_left_alone:
        assert before >= served >= after > 10_000  # Frozen objects may still be freed.
    else:
        assert max(before, after) < 1_000  # CPython 3.12 freezes 375 objects when it starts.
        assert served > 10_000


@pytest.mark.slow
@pytest.mark.real_time
def test_a_signal_ends_a_server_that_is_still_starting():
    with process(enter="await trio.sleep_forever()") as child:
        assert child.stderr.readline() == b"entering\n"
        child.send_signal(signal.SIGTERM)
        assert child.stdout.read() == b""
        assert child.stderr.read() == b""
    assert child.returncode == 128 + signal.SIGTERM


@pytest.mark.slow
@pytest.mark.real_time
def test_a_second_signal_ends_the_process_at_once():
    enter = "await send_two_signals()"
    with process(enter=enter) as child:
        assert child.stderr.read() == b"entering\n"
    assert child.returncode == 128 + signal.SIGINT
