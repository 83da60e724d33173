"""A server run by `mcp-trio run`, as a host sees it: pipes, signals, and how it ends.

The L items are probes of other implementations; each test states its defect in one line.
"""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import contextmanager

import pytest

from mcp_trio.limits import DEFAULT_LIMITS
from tests.processes import is_alive

pytestmark = pytest.mark.slow

# The delay that a slow machine may add.
GRACE_SECONDS = 4.0
DEADLINE_SECONDS = (
    DEFAULT_LIMITS.shutdown.drain_seconds + DEFAULT_LIMITS.shutdown.close_seconds + GRACE_SECONDS
)

TOOL_SECONDS = 30
SERVER = f"""
import os, sys, time
import trio
from mcp_trio import Context, Server

print("printed at import")
os.write(1, b"written at import\\n")
os.system("echo a child at import")
server = Server("probe")

@server.tool
async def echo(text: str) -> str:
    print("printed by a tool:", text, flush=True)
    return text

@server.tool
def block(path: str) -> str:
    with open(path, "w") as file:
        file.write(str(os.getpid()))
    time.sleep({TOOL_SECONDS})
    return "never"

@server.tool
async def wait(*, ctx: Context) -> str:
    await ctx.report_progress(1)
    await trio.sleep({TOOL_SECONDS})
    return "never"
"""

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {
        "protocolVersion": "2024-11-05",
        "capabilities": {},
        "clientInfo": {"name": "host", "version": "1"},
    },
}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


def call(id_, name, **arguments):
    params = {"name": name, "arguments": arguments, "_meta": {"progressToken": id_}}
    return {"jsonrpc": "2.0", "id": id_, "method": "tools/call", "params": params}


def lines(*messages):
    return "".join(json.dumps(message) + "\n" for message in messages)


@pytest.fixture
def command(tmp_path):
    (tmp_path / "server.py").write_text(SERVER, encoding="utf-8")
    return [sys.executable, "-m", "mcp_trio", "run", str(tmp_path / "server.py")]


@contextmanager
def started(command, **options):
    """A server process, initialized; killed at the end if it still lives."""
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    ) as process:
        try:
            send(process, INITIALIZE, INITIALIZED)
            assert receive(process)["id"] == 0
            yield process
        finally:
            process.kill()


def send(process, *messages):
    process.stdin.write(lines(*messages))
    process.stdin.flush()


def receive(process):
    return json.loads(process.stdout.readline())


def wait_for(path):
    """The text of a file that a tool writes when it begins."""
    while not (path.exists() and path.read_text()):  # pytest-timeout bounds it
        time.sleep(0.01)
    return path.read_text()


def wait_gone(pid):
    """Wait for the end of a process that is not our child, long before its tool returns."""
    deadline = time.monotonic() + TOOL_SECONDS - GRACE_SECONDS
    while is_alive(pid):
        assert time.monotonic() < deadline, "the process lives on"
        time.sleep(0.02)


@pytest.mark.requirement("STDIO-06", "STDIO-08", "TRAP-128")
def test_prints_at_import_and_in_tools_go_to_stderr(command):
    done = subprocess.run(
        command,
        check=False,
        input=lines(INITIALIZE, INITIALIZED, call(1, "echo", text="hé\U0001f600")),
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer["id"] for answer in answers] == [0, 1]
    assert sorted(done.stderr.splitlines()) == [
        "a child at import",
        "printed at import",
        "printed by a tool: hé\U0001f600",
        "written at import",
    ]


def test_stdin_that_is_a_file_is_served_to_its_end(command, tmp_path):
    requests = tmp_path / "requests.jsonl"
    requests.write_text(
        lines(INITIALIZE, INITIALIZED, *(call(n, "echo", text="x") for n in range(1, 6)))
    )
    with requests.open() as stdin:
        done = subprocess.run(
            command, check=False, stdin=stdin, capture_output=True, text=True, timeout=30
        )
    assert done.returncode == 0
    assert sorted(json.loads(line)["id"] for line in done.stdout.splitlines()) == list(range(6))


@pytest.mark.real_time
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_l03_a_signal_ends_an_idle_server_though_stdin_stays_open(command, number):
    """Defect: an idle server outlives SIGINT by eight seconds, and leaves only with its stdin."""
    with started(command) as process:
        begin = time.monotonic()
        process.send_signal(number)
        assert process.wait(DEADLINE_SECONDS) == 128 + number
        assert time.monotonic() - begin < DEADLINE_SECONDS
        assert process.stdout.read() == ""
        assert "Traceback" not in process.stderr.read()


@pytest.mark.real_time
def test_a_signal_ends_a_server_while_a_blocking_tool_runs(command, tmp_path):
    with started(command) as process:
        send(process, call(1, "block", path=str(tmp_path / "pid")))
        wait_for(tmp_path / "pid")
        process.terminate()
        assert process.wait(DEADLINE_SECONDS) == 128 + signal.SIGTERM


@pytest.mark.real_time
def test_a_second_signal_ends_the_server_at_once(command, tmp_path):
    with started(command) as process:
        send(process, call(1, "block", path=str(tmp_path / "pid")))
        wait_for(tmp_path / "pid")
        process.terminate()
        time.sleep(0.2)
        process.terminate()
        # The second may also come when the server is done and Python on its way out.
        assert process.wait(1.0) in {128 + signal.SIGTERM, -signal.SIGTERM}


PARENT = "import subprocess, sys, time; subprocess.Popen(sys.argv[1:]); time.sleep(60)"


@pytest.mark.real_time
def test_l07_the_parents_death_ends_a_server_while_a_blocking_tool_runs(command, tmp_path):
    """Defect: a server whose parent was killed goes on, with the tool's thread in it.

    The test holds the server's pipes, so that no end of file tells it of the death.
    """
    reader, writer = os.pipe()
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, *command], stdin=reader, stdout=subprocess.PIPE
    )
    requests = lines(INITIALIZE, INITIALIZED, call(1, "block", path=str(tmp_path / "pid")))
    os.write(writer, requests.encode())
    pid = int(wait_for(tmp_path / "pid"))
    parent.kill()
    parent.wait()
    wait_gone(pid)
    parent.stdout.close()
    os.close(reader)
    os.close(writer)


@pytest.mark.real_time
def test_l08_the_end_of_stdin_ends_a_server_while_a_blocking_tool_runs(command, tmp_path):
    """Defect: a server whose stdin was closed stays until its blocking tool returns."""
    with started(command) as process:
        send(process, call(1, "block", path=str(tmp_path / "pid")))
        wait_for(tmp_path / "pid")
        process.stdin.close()
        assert process.wait(DEADLINE_SECONDS) == 0


@pytest.mark.real_time
def test_l09_a_host_that_stops_reading_ends_the_server_quietly(command):
    """Defect: closing the read end of stdout gives a storm of tracebacks and status 1."""
    with started(command) as process:
        process.stdout.close()
        send(process, call(1, "echo", text="to nobody"))
        assert process.wait(DEADLINE_SECONDS) == 0
        assert "Traceback" not in process.stderr.read()


@pytest.mark.real_time
@pytest.mark.requirement("LIFE-22")
def test_a_server_that_ends_closes_stdout_and_exits(command):
    with started(command) as process:
        process.terminate()
        assert process.stdout.read() == ""
        assert process.wait(DEADLINE_SECONDS) > 0


def test_l10_junk_with_an_id_is_answered_and_other_junk_logged(command):
    """Defect: lines that are no messages vanish without an answer or a word."""
    junk = 'junk\n{"jsonrpc":"2.0","id":7,"method":"ping"\n[1,2]\n'
    with started(command) as process:
        process.stdin.write(junk + lines(call(1, "echo", text="x")))
        process.stdin.flush()
        rejected, answered = receive(process), receive(process)
        process.stdin.close()
        assert process.wait(DEADLINE_SECONDS) == 0
        reported = process.stderr.read()
    assert (rejected["id"], rejected["error"]["code"]) == (7, -32700)
    assert (answered["id"], answered["result"]["content"][0]["text"]) == (1, "x")
    assert "not JSON" in reported
    assert "this protocol version has no batches" in reported


def test_a_recording_goes_to_the_given_file_or_folder(command, tmp_path):
    (tmp_path / "folder").mkdir()
    for path in ("one.mcprec.jsonl", "folder", "folder"):
        done = subprocess.run(
            [*command, "--record", tmp_path / path],
            check=False,
            input=lines(INITIALIZE, INITIALIZED),
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert done.returncode == 0
    made = [tmp_path / "one.mcprec.jsonl", *(tmp_path / "folder").iterdir()]
    assert len(made) == 3
    for file in made:
        assert file.name.endswith(".mcprec.jsonl")
        assert file.stat().st_mode & 0o777 == 0o600
        assert '"k":"end"' in file.read_text(encoding="utf-8").splitlines()[-1]


def test_a_recording_that_cannot_be_created_stops_the_server_before_it_serves(command, tmp_path):
    done = subprocess.run(
        [*command, "--record", tmp_path / "missing" / "x.mcprec.jsonl"],
        check=False,
        input=lines(INITIALIZE),
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert "cannot record to" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_lifespan_that_fails_shows_its_own_traceback(tmp_path):
    code = """
        from contextlib import asynccontextmanager
        from mcp_trio import Server

        @asynccontextmanager
        async def lifespan(server):
            raise ZeroDivisionError("no database")
            yield

        server = Server("broken", lifespan=lifespan)
    """
    (tmp_path / "broken.py").write_text(textwrap.dedent(code), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mcp_trio", "run", tmp_path / "broken.py"],
        check=False,
        input=lines(INITIALIZE),
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1] == "ZeroDivisionError: no database"
    assert "ExceptionGroup" not in done.stderr
