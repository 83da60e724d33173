"""Commands as servers: their start, their end, and what is left of them."""

import contextlib
import os
import signal
import subprocess
import sys

import pytest
import trio
import trio.testing

from mcp_trio import Client, ConnectionLost, Limits, RequestTimeout
from mcp_trio.errors import OutcomeUnknown
from mcp_trio.limits import HttpLimits, RequestLimits, ShutdownLimits
from tests.client.conftest import (
    OLD,
    PROGRAM,
    QUICK,
    is_alive,
    open_descriptors,
    python,
    running_tasks,
    said,
)

DEAF = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"


async def until_gone(pid):
    with trio.fail_after(5):
        while is_alive(pid):
            await trio.sleep(0.01)


@pytest.mark.slow
@pytest.mark.requirement("STDIO-01", "TRAN-01", "LIFE-21")
async def test_a_command_is_started_called_and_stopped(program):
    tasks, descriptors = running_tasks(), open_descriptors()
    async with Client(program) as client:
        assert client.server_info.name == "program"
        pid = int(said(await client.call_tool("pid")))
        assert is_alive(pid)
    assert not is_alive(pid)
    assert running_tasks() == tasks
    assert open_descriptors() == descriptors


@pytest.mark.slow
@pytest.mark.real_time
@pytest.mark.requirement("STDIO-07")
async def test_only_messages_are_written_to_a_servers_stdin(tmp_path):
    path = tmp_path / "stdin"
    code = "import sys; open(sys.argv[1], 'wb').write(sys.stdin.buffer.read())"
    limits = Limits(requests=RequestLimits(initialize_seconds=0.3))
    with pytest.raises(RequestTimeout):
        await Client([*python(code), str(path)], protocol_versions=OLD, limits=limits).__aenter__()
    (line,) = path.read_bytes().splitlines()
    assert line.startswith(b'{"jsonrpc":"2.0","id":1,"method":"initialize"')


@pytest.mark.slow
async def test_l01_a_killed_server_fails_the_calls_in_flight_and_the_block_goes_on(program):
    """L1: the whole block was cancelled, and the error shown only outside, in a group."""
    async with Client(program) as client:
        pid = int(said(await client.call_tool("pid")))
        async with trio.open_nursery() as nursery:

            async def call():
                with pytest.raises(ConnectionLost, match="was killed by SIGKILL") as caught:
                    await client.call_tool("hang")
                assert caught.value.exit_status == -signal.SIGKILL

            for _ in range(3):
                nursery.start_soon(call)
            await trio.testing.wait_all_tasks_blocked()
            os.kill(pid, signal.SIGKILL)
        assert not client.is_open
        with pytest.raises(ConnectionLost, match="SIGKILL"):
            await client.ping()
        await trio.lowlevel.checkpoint()


@pytest.mark.slow
@pytest.mark.requirement("STDIO-09")
async def test_l11_a_lost_call_reports_exit_status_and_stderr(program):
    """L11: "connection closed", and nothing about exit status or stderr."""
    async with Client(program) as client:
        with pytest.raises(ConnectionLost, match="exited with status 3") as caught:
            await client.call_tool("die")
    assert caught.value.exit_status == 3
    assert caught.value.stderr_tail == "the tide\nhas turned"


@pytest.mark.slow
@pytest.mark.requirement("LIFE-16")
async def test_l11_the_error_of_a_server_that_exits_at_once_has_its_stderr():
    """L11: "connection closed", and nothing about exit status or stderr."""
    tasks, descriptors = running_tasks(), open_descriptors()
    command = python("import sys; sys.exit('no licence')")
    with pytest.raises(ConnectionLost, match="exited with status 1") as caught:
        async with Client(command):
            raise AssertionError
    assert caught.value.stderr_tail == "no licence"
    assert running_tasks() == tasks
    assert open_descriptors() == descriptors


@pytest.mark.slow
async def test_a_missing_command_is_reported():
    with pytest.raises(ConnectionLost, match="not found on PATH"):
        await Client(["no-such-program-anywhere"]).__aenter__()


@pytest.mark.slow
@pytest.mark.real_time
@pytest.mark.requirement("LIFE-17", "LIFE-21", "TIME-01")
async def test_l12_a_silent_server_times_out_and_is_stopped(tmp_path):
    """L12: no connect timeout of its own."""
    tasks, descriptors = running_tasks(), open_descriptors()
    path = tmp_path / "pid"
    limits = Limits(
        requests=RequestLimits(initialize_seconds=1.5), shutdown=ShutdownLimits(close_seconds=0.1)
    )
    with pytest.raises(RequestTimeout):
        await Client([*python(DEAF), str(path)], limits=limits).__aenter__()
    assert not is_alive(int(path.read_text()))
    assert running_tasks() == tasks
    assert open_descriptors() == descriptors


@pytest.mark.slow
@pytest.mark.real_time
async def test_a_handshake_timeout_reports_the_servers_stderr():
    command = python("import sys, time; print('no licence', file=sys.stderr); time.sleep(600)")
    with pytest.raises(RequestTimeout, match=r"last lines of its stderr:\nno licence$") as caught:
        await Client(
            command,
            limits=Limits(
                requests=RequestLimits(initialize_seconds=1),
                shutdown=ShutdownLimits(close_seconds=0),
            ),
        ).__aenter__()
    assert caught.value.stderr_tail == "no licence"
    assert caught.value.setting == "limits.requests.initialize_seconds"


@pytest.mark.slow
@pytest.mark.real_time
@pytest.mark.requirement("TRAP-130")
async def test_l12_a_callers_timeout_is_kept(tmp_path, nursery):
    """L12: a caller's 8 s limit took 10 s because of the kill grace."""
    path = tmp_path / "pid"
    client = Client(
        [*python(DEAF), str(path)], limits=Limits(shutdown=ShutdownLimits(close_seconds=1.5))
    )

    async def cancel(scope):
        while not (path.exists() and path.read_text()):
            await trio.sleep(0.01)
        scope.cancel()

    with trio.CancelScope() as scope:
        nursery.start_soon(cancel, scope)
        await client.__aenter__()
    pid = int(path.read_text())
    assert is_alive(pid)
    await client.aclose()
    assert not is_alive(pid)


@pytest.mark.slow
@pytest.mark.requirement("TRAP-130")
async def test_l06_the_children_of_a_server_are_killed_with_it(program):
    """L6: the grandchild lived on."""
    async with Client(program) as client:
        grandchild = int(said(await client.call_tool("spawn")))
        assert is_alive(grandchild)
    await until_gone(grandchild)


@pytest.mark.slow
async def test_l13_clients_of_commands_may_be_closed_in_opened_order_from_any_task(program):
    """L13: "attempted to exit cancel scope in a different task"."""
    clients = [await Client(program).__aenter__() for _ in range(2)]
    pids = [int(said(await client.call_tool("pid"))) for client in clients]
    for client in clients:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.aclose)
    assert not any(is_alive(pid) for pid in pids)


@pytest.mark.slow
@pytest.mark.real_time
@pytest.mark.requirement("LIFE-17", "LIFE-21")
async def test_a_server_that_does_not_exit_is_killed_in_time():
    stubborn = "import time\ntry:\n    exec(PROGRAM)\nfinally:\n    time.sleep(600)"
    command = python(f"PROGRAM = {PROGRAM!r}\n{stubborn}")
    started = trio.current_time()
    async with Client(command, limits=QUICK) as client:
        pid = int(said(await client.call_tool("pid")))
    assert not is_alive(pid)
    assert trio.current_time() - started < 5


@pytest.mark.slow
async def test_l10_junk_on_stdout_is_logged_once_and_not_answered(program, caplog):
    """L10: junk was dropped without a log line that the host could see."""
    async with Client(program) as client:
        assert said(await client.call_tool("junk")) == "after the junk"
        assert client.counts == {"malformed": 3}
        assert said(await client.call_tool("junk")) == "after the junk"
    naming = [
        text for text in caplog.messages if text.startswith("program has sent 3 malformed messages")
    ]
    assert len(naming) == 1
    assert "a print to stdout" in naming[0]


@pytest.mark.slow
async def test_junk_before_a_failed_handshake_is_logged_too(caplog):
    command = python("print('Welcome!', flush=True)")
    with pytest.raises(ConnectionLost):
        await Client(command).__aenter__()
    assert f"{sys.executable} has sent 1 malformed messages so far" in caplog.text


@pytest.mark.slow
@pytest.mark.requirement("STDIO-09")
async def test_the_caller_chooses_environment_directory_and_stderr(program, tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "x")
    lines = []
    async with Client(program, env={"PORT": "Bergen"}, cwd=tmp_path, stderr=lines.append) as client:
        variables = said(await client.call_tool("variables"))
        with contextlib.suppress(ConnectionLost):
            await client.call_tool("die")
    assert '"PORT": "Bergen"' in variables
    assert "SECRET_TOKEN" not in variables
    assert lines == ["the tide", "has turned"]
    async with Client(program, inherit_env=True) as client:
        assert "SECRET_TOKEN" in said(await client.call_tool("variables"))


# A server process that is killed, and another one in its place.


PROGRAM_KILLED_SERVERS = """
import os, sys, trio
from mcp_trio import Server

server = Server("harbour", offers={"tools"})

waiting = []

@server.tool
async def wait() -> None:
    waiting.append(1)
    await trio.sleep_forever()

@server.tool
async def count() -> int:
    return len(waiting)

@server.tool
async def pid() -> int:
    return os.getpid()

async def main():
    async with trio.open_nursery() as nursery:
        print(await nursery.start(lambda task_status: server.serve_http(
            port=int(sys.argv[1]), task_status=task_status)), flush=True)

trio.run(main)
"""
WAYS = {"/mcp": ("2026-07-28", "2025-11-25"), "/sse": ("2024-11-05",)}
LIMITS = Limits(http=HttpLimits(sse_retry_ms=50))


@contextlib.contextmanager
def started(port=0):
    """A server process, and its URL without a path."""
    command = [part for part in python(PROGRAM_KILLED_SERVERS) if part != "-S"]
    with subprocess.Popen([*command, str(port)], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process, process.stdout.readline().strip().removesuffix("/mcp")
        finally:
            process.kill()


@contextlib.asynccontextmanager
async def clients_of(base, **options):
    """One client for each way to talk with it, by protocol version."""
    async with contextlib.AsyncExitStack() as stack:
        yield {
            protocol_version: await stack.enter_async_context(
                Client(base + path, protocol_versions=(protocol_version,), limits=LIMITS, **options)
            )
            for path, protocol_versions in WAYS.items()
            for protocol_version in protocol_versions
        }


async def lose(client):
    with pytest.raises(OutcomeUnknown):
        await client.call_tool("wait")


@pytest.mark.real_time
@pytest.mark.requirement("TRAP-133", "HTTP-52", "SUB-16")
async def test_calls_in_flight_are_lost_and_later_ones_reach_the_new_server():
    changed = trio.Event()
    with trio.fail_after(60), started() as (process, base):
        port = int(base.rpartition(":")[2])
        async with clients_of(base, list_changed=lambda _kind: changed.set()) as clients:
            async with trio.open_nursery() as calls:
                for client in clients.values():
                    assert await client.call_tool("pid", result_type=int) == process.pid
                    calls.start_soon(lose, client)
                while await client.call_tool("count", result_type=int) < len(clients):
                    await trio.sleep(0.01)
                process.send_signal(signal.SIGKILL)
                await trio.to_thread.run_sync(process.wait)  # and its connections are closed
            for client in clients.values():
                with pytest.raises(ConnectionLost) as lost:
                    await client.call_tool("pid")
                assert not isinstance(lost.value, OutcomeUnknown)
            with started(port) as (another, _):
                for protocol_version, client in clients.items():
                    assert await client.call_tool("pid", result_type=int) == another.pid, (
                        protocol_version
                    )
                await changed.wait()  # the stateless one hears that something may be missed
