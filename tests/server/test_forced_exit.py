"""The end of a process that a handler holds after a signal."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import textwrap
import threading
import urllib.error
import urllib.request

import pytest
import trio

from mcp_trio import ThreadContext
from mcp_trio._server.signals import forced_exit

SECONDS = 20
EXIT_SECONDS = 0.7

SERVER = f"""
import sys, time
import trio
from mcp_trio import Limits, Server
from mcp_trio.limits import ShutdownLimits

limits = Limits(shutdown=ShutdownLimits(exit_seconds={EXIT_SECONDS}, close_seconds=0.1))
server = Server("held", limits=limits)

@server.tool
async def shielded() -> str:
    print("called", file=sys.stderr, flush=True)
    with trio.CancelScope(shield=True):
        await trio.sleep(60)

@server.tool
async def sleeping() -> str:
    print("called", file=sys.stderr, flush=True)
    time.sleep(60)

@server.tool
async def computing() -> str:
    print("called", file=sys.stderr, flush=True)
    while True:
        pass

@server.tool
async def patient() -> str:
    print("called", file=sys.stderr, flush=True)
    await trio.sleep(60)

@server.tool
async def printing() -> str:
    print("called", file=sys.stderr, flush=True)
    while True:
        print("fog", file=sys.stderr, flush=True)

def serving(url):
    print(url, flush=True)

if len(sys.argv) > 2:
    import os, resource
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 2048), hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(int(sys.argv[2]))]

options = {{"on_serving": serving, "port": 0}} if sys.argv[1] == "http" else {{}}
server.run(sys.argv[1], **options)
"""

# A parent that ends at the end of its stdin; its server keeps the stderr of both.
PARENT = """
import subprocess, sys
path, request = sys.argv[1:]
server = subprocess.Popen([sys.executable, path, "stdio"], stdin=subprocess.PIPE)
server.stdin.write(request.encode() + b"\\n")
server.stdin.flush()
sys.stdin.read()
"""

METADATA = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
}


def request_for(tool):
    params = {"name": tool, "arguments": {}, "_meta": METADATA}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})


def post(url, tool):
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tools/call",
        "Mcp-Name": tool,
    }
    request = urllib.request.Request(url, request_for(tool).encode(), headers)
    try:
        urllib.request.urlopen(request).read()
    except urllib.error.HTTPError as error:  # it holds an open file
        error.close()
    except OSError:
        pass


@pytest.fixture
def called(tmp_path):
    """Start a server in a process that handles a call of a tool."""
    path = tmp_path / "held.py"
    path.write_text(textwrap.dedent(SERVER))
    with contextlib.ExitStack() as stack:

        def call(transport, tool, *, open_files=None):
            process = stack.enter_context(
                subprocess.Popen(
                    [
                        sys.executable,
                        str(path),
                        transport,
                        *([] if open_files is None else [str(open_files)]),
                    ],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            stack.callback(process.kill)
            if transport == "http":
                url = process.stdout.readline().strip()
                threading.Thread(target=post, args=(url, tool), daemon=True).start()
            else:
                process.stdin.write(request_for(tool) + "\n")
                process.stdin.flush()
            assert process.stderr.readline() == "called\n"
            return process

        yield call


HOLDERS = {
    "shielded": "tools/call 'shielded': a task that waits at ",
    "sleeping": "the event loop, which is blocked at ",
    "computing": "the event loop, which is blocked at ",
}


@pytest.mark.real_time
@pytest.mark.parametrize("transport", ["stdio", pytest.param("http", marks=pytest.mark.slow)])
@pytest.mark.parametrize("tool", HOLDERS)
def test_a_process_that_is_held_ends_and_names_the_line_that_held_it(called, transport, tool):
    process = called(transport, tool)
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS) == 128 + signal.SIGTERM
    *_, text, line = process.stderr.read().splitlines()
    assert text == (
        f"mcp_trio: the process has not ended within {EXIT_SECONDS:g} s after SIGTERM"
        " (limits.shutdown.exit_seconds), and is ended now. It was held by:"
    )
    assert line.strip().startswith(HOLDERS[tool])
    assert line.endswith(f", in {tool}")


@pytest.mark.real_time
def test_a_process_with_more_than_a_thousand_open_files_ends(called):
    process = called("stdio", "shielded", open_files=1100)
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS) == 128 + signal.SIGTERM


@pytest.mark.real_time
def test_a_process_ends_although_its_stderr_is_full_and_not_read(called):
    process = called("stdio", "printing")
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS) == 128 + signal.SIGTERM


@pytest.mark.real_time
@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="only Linux notifies of a parent's end")
@pytest.mark.parametrize("tool", HOLDERS)
def test_a_process_that_is_held_ends_after_its_parent(tmp_path, tool):
    path = tmp_path / "held.py"
    path.write_text(textwrap.dedent(SERVER))
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(path), request_for(tool)],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with parent:
        assert parent.stderr.readline() == "called\n"
        parent.stdin.close()
        *_, text, line = parent.stderr.read().splitlines()  # which ends with the server
    assert "after the end of its parent (limits.shutdown.exit_seconds)" in text
    assert line.strip().startswith(HOLDERS[tool])
    assert line.endswith(f", in {tool}")


@pytest.mark.real_time
@pytest.mark.parametrize("tool", HOLDERS)
def test_a_second_signal_ends_the_process_at_once_and_silently(called, tool):
    process = called("stdio", tool)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    assert process.wait(SECONDS) in {128 + signal.SIGTERM, 128 + signal.SIGINT}
    assert "exit_seconds" not in process.stderr.read()


@pytest.mark.real_time
@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_a_process_that_ends_by_itself_says_nothing(called, transport):
    process = called(transport, "patient")
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS) == 128 + signal.SIGTERM
    assert process.stderr.read() == ""


# In the process of the test, whose end is only noted.

in_this_process = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnhandledThreadExceptionWarning"  # the thread that watches is ended
)


@pytest.fixture
def noted(monkeypatch):
    """The queue of the statuses with which this process was to be ended."""
    statuses = queue.SimpleQueue()

    def note(status):
        statuses.put(status)
        sys.exit()  # ends the thread that watches

    monkeypatch.setattr(os, "_exit", note)
    return statuses


@pytest.fixture
def held(server, serve, noted):
    """Call a tool that holds the process after SIGUSR1; return the status."""
    calling, freed, release = trio.Event(), trio.Event(), threading.Event()

    @server.tool
    async def shielded() -> None:
        calling.set()
        with trio.CancelScope(shield=True):
            await freed.wait()

    @server.tool
    async def blocking(signals: int) -> None:
        for _ in range(signals):
            os.kill(os.getpid(), signal.SIGUSR1)
        assert release.wait(SECONDS)

    @server.tool
    def in_thread(ctx: ThreadContext) -> None:
        ctx.list_roots()

    def wait():
        status = noted.get(timeout=SECONDS)
        release.set()
        return status

    async def held(tool, *, seconds=0.0, ended=None, **arguments):
        found = []
        parent_pid = None if ended is None else ended.pid
        with (
            trio.open_signal_receiver(signal.SIGUSR1) as signals,
            forced_exit([signal.SIGUSR1], seconds=seconds, parent_pid=parent_pid),
        ):
            asker = await serve(server, capabilities={"roots": {}})
            waiting = threading.Thread(target=lambda: found.append(wait()))
            waiting.start()
            await asker.begin("tools/call", {"name": tool, "arguments": arguments})
            if tool == "in_thread":
                await asker.next_message()  # it waits for the list of roots
            elif not arguments:
                await calling.wait()
            if ended is not None:
                ended.kill()
            elif not arguments:
                os.kill(os.getpid(), signal.SIGUSR1)
            await trio.to_thread.run_sync(waiting.join)
            freed.set()
            if ended is None:
                await anext(signals)  # Trio would raise it again
        return found.pop()

    return held


PLACES = [
    ("shielded", {}, "tools/call 'shielded': a task that waits at "),
    ("blocking", {"signals": 1}, "the event loop, which is blocked at "),
    ("in_thread", {}, "tools/call 'in_thread': in a thread at "),
]


@in_this_process
@pytest.mark.parametrize(("tool", "arguments", "place"), PLACES)
async def test_the_place_that_holds_a_process_is_printed(held, capfd, tool, arguments, place):
    assert await held(tool, **arguments) == 128 + signal.SIGUSR1
    text, *lines = capfd.readouterr().err.splitlines()
    assert text.startswith("mcp_trio: the process has not ended within 0 s after SIGUSR1 (limits.")
    (line,) = (line for line in lines if line.startswith(f"  {place}{__file__}:"))
    assert line.endswith(f", in held.<locals>.{tool}")


@in_this_process
async def test_a_second_signal_prints_nothing(held, capfd):
    assert await held("blocking", signals=2, seconds=SECONDS) == 128 + signal.SIGUSR1
    assert capfd.readouterr().err == ""


@in_this_process
@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="only Linux notifies of a parent's end")
async def test_the_end_of_the_parent_is_the_cause(held, capfd):
    with subprocess.Popen(["/bin/sleep", "60"]) as parent:
        assert await held("shielded", ended=parent) == 128 + signal.SIGHUP
    assert "within 0 s after the end of its parent" in capfd.readouterr().err
