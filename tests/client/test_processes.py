"""Commands as servers: their start, their end, and their restart."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from functools import partial

import attrs
import pytest
import trio
import trio.testing

from mcp_trio import Client, ConnectionLost, Limits, RequestError, RequestTimeout, Server
from mcp_trio._protocol.versions import ALL_PROTOCOL_VERSIONS
from mcp_trio.errors import (
    URL_ELICITATION_REQUIRED,
    OutcomeUnknown,
    RemoteProtocolError,
    ToolError,
)
from mcp_trio.limits import HttpLimits, RequestLimits, ShutdownLimits
from mcp_trio.recording import SharedRecording
from mcp_trio.testing import WirePeer
from mcp_trio.transports import memory_pair
from tests.client.conftest import OLD, PROGRAM, QUICK, running_tasks, text_of_result
from tests.client.stateless import DISCOVERED, LEGACY, STATELESS, Played
from tests.processes import is_alive, open_descriptors, python, until_gone

DEAF = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"


@pytest.mark.slow
@pytest.mark.requirement("STDIO-01", "TRAN-01", "LIFE-21")
async def test_a_command_is_started_called_and_stopped(program):
    tasks, descriptors = running_tasks(), open_descriptors()
    async with Client(program) as client:
        assert client.server_info.name == "program"
        pid = int(text_of_result(await client.call_tool("pid")))
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
        pid = int(text_of_result(await client.call_tool("pid")))
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


FAILING = """
from mcp_trio import Server
server = Server("failing")
@server.tool
async def fail() -> None:
    raise KeyError("reason")
server.run()
"""


@pytest.mark.slow
async def test_a_failure_without_a_text_names_the_option_that_shows_the_log():
    lines = []
    for stderr, notes in (
        (None, ['its log has the reason: Client(…, stderr="inherit") shows it']),
        (lines.append, []),
    ):
        async with Client([sys.executable, "-c", FAILING], stderr=stderr) as client:
            with pytest.raises(ToolError, match="internal error in fail") as caught:
                await client.call_tool("fail")
        assert getattr(caught.value, "__notes__", []) == notes
    assert "KeyError: 'reason'" in lines[0]


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
        grandchild = int(text_of_result(await client.call_tool("spawn")))
        assert is_alive(grandchild)
    await until_gone(grandchild)


@pytest.mark.slow
async def test_l13_clients_of_commands_may_be_closed_in_opened_order_from_any_task(program):
    """L13: "attempted to exit cancel scope in a different task"."""
    clients = [await Client(program).__aenter__() for _ in range(2)]
    pids = [int(text_of_result(await client.call_tool("pid"))) for client in clients]
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
        pid = int(text_of_result(await client.call_tool("pid")))
    assert not is_alive(pid)
    assert trio.current_time() - started < 5


@pytest.mark.slow
async def test_l10_junk_on_stdout_is_logged_once_and_not_answered(program, caplog):
    """L10: junk was dropped without a log line that the host could see."""
    async with Client(program) as client:
        assert text_of_result(await client.call_tool("junk")) == "after the junk"
        assert client.counts == {"malformed": 3}
        assert text_of_result(await client.call_tool("junk")) == "after the junk"
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
        variables = text_of_result(await client.call_tool("variables"))
        with contextlib.suppress(ConnectionLost):
            await client.call_tool("die")
    assert '"PORT": "Bergen"' in variables
    assert "SECRET_TOKEN" not in variables
    assert lines == ["the tide", "has turned"]
    async with Client(program, inherit_env=True) as client:
        assert "SECRET_TOKEN" in text_of_result(await client.call_tool("variables"))


# A server process that is killed and replaced.


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
                await changed.wait()  # the stateless one learns that it may have missed changes


# Servers that the next call restarts.


@attrs.define(eq=False)
class Mortal:
    """A server object whose sessions end when a test sets an event."""

    protocol_versions: list = ALL_PROTOCOL_VERSIONS
    is_mute: bool = False
    lives: list = attrs.field(factory=list)
    calls: list = attrs.field(factory=list)

    async def serve(self, channel):
        server = Server("mortal", protocol_versions=self.protocol_versions)

        @server.prompt
        def plan(day: str) -> str:
            return day

        @server.completion("plan", "day")
        async def days(value: str) -> list[str]:
            return ["today"]

        @server.tool
        def count() -> str:
            self.calls.append(len(self.lives))
            return str(len(self.lives))

        with trio.CancelScope() as life:
            self.lives.append(life)
            if self.is_mute:
                await trio.sleep_forever()
            await server.serve(channel)

    async def die(self):
        self.lives[-1].cancel()
        await trio.testing.wait_all_tasks_blocked()


@pytest.mark.requirement("STDIO-20", "TRAP-133", "VER-08")
@pytest.mark.parametrize("protocol_version", [LEGACY[-1], STATELESS])
async def test_the_next_call_starts_the_server_again(protocol_version, caplog):
    server = Mortal()
    async with Client(server, protocol_versions=[protocol_version], restart=True) as client:
        for life in range(1, 4):
            assert text_of_result(await client.call_tool("count")) == str(life)
            await server.die()
            assert not client.is_open
        assert client.server_info.name == "mortal"
    assert "mortal has ended; starting it again" in caplog.text
    assert len(server.lives) == 3


async def test_without_the_option_a_lost_server_stays_lost():
    server = Mortal()
    async with Client(server) as client:
        await server.die()
        with pytest.raises(ConnectionLost):
            await client.call_tool("count")
    assert len(server.lives) == 1


async def test_many_calls_start_it_once():
    server = Mortal()
    async with Client(server, restart=True) as client:
        await server.die()
        async with trio.open_nursery() as calls:
            for _ in range(5):
                calls.start_soon(client.call_tool, "count")
    assert server.calls == [2] * 5


@attrs.define(eq=False)
class SlowToStart(Mortal):
    """A server object that takes a second to start."""

    async def serve(self, channel):
        await trio.sleep(1)
        await super().serve(channel)


@pytest.mark.parametrize("protocol_version", [LEGACY[-1], STATELESS])
@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.list_tools(),
        lambda client: client.ping(),
        lambda client: client.set_log_level("error"),
        lambda client: client.complete("plan", "day", ""),
        lambda client: client.set_roots(["/harbour"]),
    ],
)
async def test_a_call_waits_while_another_one_starts_it_again(
    call, protocol_version, autojump_clock
):
    server = SlowToStart()
    client = Client(server, protocol_versions=[protocol_version], restart=True, roots=[])
    async with client:
        await server.die()
        async with trio.open_nursery() as calls:
            calls.start_soon(client.list_prompts)
            await trio.sleep(0.5)
            assert not client.is_open
            await call(client)
            assert client.is_open
    assert len(server.lives) == 2


async def test_a_notification_waits_while_a_call_starts_the_server_again(autojump_clock):
    server = SlowToStart()
    client = Client(server, protocol_versions=[LEGACY[0]], restart=True, roots=[])
    async with client:
        await server.die()
        with pytest.raises(ConnectionLost):
            await client.notify_roots_changed()
        async with trio.open_nursery() as calls:
            calls.start_soon(client.list_prompts)
            await trio.sleep(0.5)
            await client.notify_roots_changed()
            assert client.is_open


async def test_a_closed_client_stays_closed():
    server = Mortal()
    client = Client(server, restart=True)
    async with client:
        pass
    with pytest.raises(ConnectionLost):
        await client.call_tool("count")
    assert len(server.lives) == 1


async def test_a_client_that_is_closed_before_its_server_has_ended_starts_no_other(
    nursery, autojump_clock
):
    class Lingering(Mortal):
        async def serve(self, channel):
            await super().serve(channel)
            with trio.CancelScope(shield=True):
                await trio.sleep(0.5)

    server = Lingering()
    client = Client(server, restart=True)
    async with client:
        await server.die()

        async def count():
            with pytest.raises(ConnectionLost):
                await client.call_tool("count")

        nursery.start_soon(count)
        await trio.sleep(0.1)
    await trio.testing.wait_all_tasks_blocked()
    assert len(server.lives) == 1


@attrs.define(eq=False)
class Scripted:
    """A server object that dies of the first request that is no discovery, and lives on later."""

    answers: dict
    servers: list = attrs.field(factory=list)

    async def serve(self, channel):
        server = Played(WirePeer(channel), {"server/discover": DISCOVERED, **self.answers})
        self.servers.append(server)
        server.before = self.die if len(self.servers) == 1 else None
        await server.serve()

    async def die(self, message):
        if message["method"] != "server/discover":
            await self.servers[0].peer.aclose()


@pytest.mark.requirement("STDIO-20", "TRAP-133")
@pytest.mark.parametrize(
    ("call", "answer"),
    [
        (lambda client: client.list_tools(), {"tools/list": {"tools": []}}),
        (lambda client: client.read_resource("a:b"), {"resources/read": {"contents": []}}),
    ],
)
async def test_a_lost_read_is_repeated(call, answer):
    server = Scripted(answer)
    async with Client(server, protocol_versions=[STATELESS], restart=True) as client:
        await call(client)
    assert len(server.servers) == 2


@pytest.mark.requirement("TRAP-133")
@pytest.mark.parametrize(
    "call", [lambda client: client.call_tool("t"), lambda client: client.get_prompt("p")]
)
async def test_a_lost_call_with_effects_is_not_repeated(call):
    answers = {"tools/call": {"content": []}, "prompts/get": {"messages": []}}
    server = Scripted(answers)
    async with Client(server, protocol_versions=[STATELESS], restart=True) as client:
        with pytest.raises(ConnectionLost):
            await call(client)
        assert len(server.servers) == 1
        await call(client)


async def test_the_url_that_a_repeated_read_requires_is_known(autojump_clock):
    lives = []

    class AsksForPayment:
        async def serve(self, channel):
            lives.append(channel)
            peer = WirePeer(channel)
            await peer.answer_initialize(protocol_version=LEGACY[0], capabilities={"resources": {}})
            asked = await peer.receive()
            if len(lives) > 1:
                visit = {
                    "mode": "url",
                    "message": "Pay",
                    "url": "https://a.b/",
                    "elicitationId": "p7",
                }
                data = {"elicitations": [visit]}
                error = {"code": URL_ELICITATION_REQUIRED, "message": "pay first", "data": data}
                await peer.send({"id": asked["id"], "error": error})
                completed = {"elicitationId": "p7"}
                await peer.send_notification("notifications/elicitation/complete", completed)
                await trio.sleep_forever()

    paid = []
    client = Client(
        AsksForPayment(),
        protocol_versions=[LEGACY[0]],
        restart=True,
        elicitation=lambda _params: True,
        elicitation_modes=["url"],
        elicitation_complete=paid.append,
    )
    async with client:
        with pytest.raises(RequestError, match="pay first"):
            await client.read_resource("a:b")
        await trio.testing.wait_all_tasks_blocked()
    assert paid == ["p7"]


@pytest.mark.requirement("STDIO-20")
async def test_the_cache_and_schemas_of_the_dead_server_are_forgotten():
    schema = {"type": "object", "required": ["a"]}
    tool = {"name": "t", "inputSchema": {}, "outputSchema": schema}
    answers = {
        "tools/list": {"tools": [tool], "ttlMs": 10**6},
        "tools/call": {"content": [], "structuredContent": {}},
    }
    server = Scripted(answers)
    async with Client(server, protocol_versions=[STATELESS], restart=True) as client:
        server.servers[0].before = None
        await client.list_tools()
        with pytest.raises(RemoteProtocolError):
            await client.call_tool("t")
        await server.servers[0].peer.aclose()
        await trio.testing.wait_all_tasks_blocked()
        await client.call_tool("t")
        await client.list_tools()
    assert [len(it.asked("tools/list")) for it in server.servers] == [1, 1]


@pytest.mark.requirement("VER-08", "VER-09")
async def test_a_legacy_server_is_not_discovered_again_after_a_restart():
    server = Mortal(protocol_versions=LEGACY)
    async with Client(server, protocol_versions=ALL_PROTOCOL_VERSIONS, restart=True) as client:
        assert client._connection.outgoing.next_id() == 3  # the discovery, the handshake, this
        await server.die()
        await client.call_tool("count")
        assert client.protocol_version == LEGACY[0]
        assert client._connection.outgoing.next_id() == 3  # the handshake, the call, this


@pytest.mark.requirement("VER-09")
async def test_a_server_that_changed_its_kind_is_negotiated_with_again():
    server = Mortal()
    async with Client(server, protocol_versions=ALL_PROTOCOL_VERSIONS, restart=True) as client:
        assert client.protocol_version == STATELESS
        await server.die()
        server.protocol_versions = LEGACY
        await client.call_tool("count")
        assert client.protocol_version == LEGACY[0]


async def test_a_server_that_cannot_be_started_again_is_tried_with_each_call():
    server = Mortal()
    async with Client(server, protocol_versions=[STATELESS], restart=True) as client:
        await server.die()
        server.protocol_versions = LEGACY
        for _ in range(2):
            with pytest.raises(
                RemoteProtocolError, match="the server supports the protocol versions"
            ):
                await client.call_tool("count")
        server.protocol_versions = [STATELESS]
        assert text_of_result(await client.call_tool("count")) == "4"


async def test_calls_that_wait_for_a_start_share_its_failure(autojump_clock):
    server = Mortal()
    errors = []

    async def count():
        with pytest.raises(RequestTimeout, match="initialize: no response") as caught:
            await client.call_tool("count")
        errors.append(caught.value)

    async with Client(server, protocol_versions=[LEGACY[-1]], restart=True) as client:
        await server.die()
        server.is_mute = True
        began = trio.current_time()
        async with trio.open_nursery() as calls:
            for _ in range(5):
                calls.start_soon(count)
        assert trio.current_time() - began < 40
        await count()
    assert len(server.lives) == 3
    assert len(set(map(id, errors))) == 6
    assert len({str(error) for error in errors}) == 1


async def test_a_cancelled_restart_is_left_to_the_next_call():
    server = Mortal()
    async with Client(server, restart=True) as client:
        await server.die()
        with trio.move_on_after(0):
            await client.call_tool("count")
        assert int(text_of_result(await client.call_tool("count"))) > 1


@pytest.mark.parametrize("target", ["channel", "command"])
def test_restart_is_rejected_for_a_channel(target):
    if target == "channel":
        with pytest.raises(ValueError, match="commands, server objects and URLs"):
            Client(memory_pair()[0], restart=True)
    else:
        assert Client(["server"], restart=True).restart


@pytest.mark.real_time
@pytest.mark.requirement("STDIO-20")
async def test_a_command_that_was_killed_is_started_again(program):
    async with Client(program, restart=True, limits=QUICK) as client:
        pid = int(text_of_result(await client.call_tool("pid")))
        with pytest.raises(ConnectionLost):
            await client.call_tool("die")
        assert client.state == "retrying"
        other = int(text_of_result(await client.call_tool("pid")))
        assert other != pid
        os.kill(other, signal.SIGKILL)
        with trio.fail_after(5):
            while client.is_open:
                await trio.sleep(0.01)
        assert int(text_of_result(await client.call_tool("pid"))) not in {pid, other}


async def test_each_restart_has_its_own_recording_in_a_folder(tmp_path):
    server = Mortal()
    with SharedRecording(tmp_path / "all.mcprec.jsonl") as shared:
        for record in (tmp_path, f"{tmp_path}/new/", shared):
            client = Client(server, restart=True, record=record)
            if record is not shared:
                (tmp_path / "new").mkdir(exist_ok=True)
            async with client:
                await server.die()
                await client.call_tool("count")
    assert len(list(tmp_path.glob("mcp_trio-*"))) == 2
    assert len(list((tmp_path / "new").iterdir())) == 2


async def test_one_recording_file_holds_all_restarts(tmp_path):
    server = Mortal()
    file = tmp_path / "one.mcprec.jsonl"
    async with Client(server, restart=True, record=file) as client:
        await server.die()
        await client.call_tool("count")
        await client.call_tool("count")
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert {record.get("c", 0) for record in records} == {0, 1, 2}
    assert records[-1]["k"] == "end"
    called = [record.get("c") for record in records if "tools/call" in json.dumps(record)]
    assert called == [2, 2]


@attrs.define(eq=False)
class Mute:
    """A server object that sends nothing, and ends at once or never."""

    stays: bool

    async def serve(self, _channel):
        if self.stays:
            await trio.sleep_forever()


@pytest.mark.parametrize("stays", [False, True])
async def test_a_recording_ends_when_connecting_fails_or_is_cancelled(
    stays, tmp_path, autojump_clock
):
    file = tmp_path / "one.mcprec.jsonl"
    client = Client(Mute(stays), protocol_versions=LEGACY, restart=True, record=file)
    if stays:
        with trio.move_on_after(1):
            await client.__aenter__()
        await trio.sleep(10)
    else:
        with pytest.raises(ConnectionLost):
            await client.__aenter__()
    assert json.loads(file.read_text().splitlines()[-1])["k"] == "end"


# Servers that end and come back, over each transport.


ENDPOINTS = {
    "stateless": ("/mcp", "2026-07-28"),
    "legacy": ("/mcp", "2025-11-25"),
    "HTTP+SSE": ("/sse", "2024-11-05"),
}


class Harbour:
    """A server that can be stopped and started at one port; `calls` are those that came."""

    def __init__(self, nursery):
        self.nursery, self.port, self.calls = nursery, 0, []
        self.life = None

    def server(self):
        made = Server("harbour")

        @made.tool
        async def call(*, waits: bool = False) -> int:
            self.calls.append(waits)
            if waits:
                await trio.sleep_forever()
            return len(self.calls)

        return made

    async def start(self):
        self.stopped = trio.Event()
        url, self.life = await self.nursery.start(self._serve)
        self.port = int(url.partition("//")[2].partition(":")[2].partition("/")[0])
        return url.removesuffix("/mcp")

    async def _serve(self, *, task_status):
        with trio.CancelScope() as life:
            async with trio.open_nursery() as nursery:
                serve = partial(self.server().serve_http, port=self.port)
                task_status.started((await nursery.start(serve), life))
        self.stopped.set()

    async def stop(self):
        self.life.cancel()
        await self.stopped.wait()


@pytest.fixture
async def restartable_server(nursery):
    yield Harbour(nursery)
    nursery.cancel_scope.cancel()


def client_of(way, base):
    path, protocol_version = ENDPOINTS[way]
    return Client(base + path, protocol_versions=(protocol_version,))


@pytest.mark.real_time
@pytest.mark.parametrize("way", ENDPOINTS)
@pytest.mark.requirement("HTTP-52", "TRAP-133")
async def test_the_first_call_after_a_restart_succeeds(restartable_server, way):
    base = await restartable_server.start()
    with trio.fail_after(20):
        async with client_of(way, base) as client:
            assert client.protocol_version == ENDPOINTS[way][1]
            assert await client.call_tool("call", result_type=int) == 1
            await restartable_server.stop()
            for _ in range(2):
                with pytest.raises(ConnectionLost) as lost:
                    await client.call_tool("call")
                assert not isinstance(lost.value, OutcomeUnknown)
            await restartable_server.start()
            assert await client.call_tool("call", result_type=int) == 2
            assert await client.call_tool("call", result_type=int) == 3
    assert restartable_server.calls == [False] * 3


@pytest.mark.real_time
@pytest.mark.parametrize("way", ENDPOINTS)
@pytest.mark.requirement("HTTP-52", "TRAP-133")
async def test_only_the_calls_in_flight_fail(restartable_server, way):
    base = await restartable_server.start()
    with trio.fail_after(20):
        async with client_of(way, base) as client:

            async def wait():
                # A server that stops in its own time may still say so.
                with pytest.raises((OutcomeUnknown, RequestError)):
                    await client.call_tool("call", {"waits": True})

            async with trio.open_nursery() as calls:
                for _ in range(3):
                    calls.start_soon(wait)
                while len(restartable_server.calls) < 3:
                    await trio.sleep(0.01)
                await restartable_server.stop()
            await restartable_server.start()
            assert await client.call_tool("call", result_type=int) == 4
    assert restartable_server.calls == [True] * 3 + [False]


@pytest.mark.real_time
@pytest.mark.parametrize("way", ENDPOINTS)
@pytest.mark.requirement("HTTP-52", "TRAP-133")
async def test_a_server_that_was_replaced_unnoticed_serves_the_next_call(restartable_server, way):
    base = await restartable_server.start()
    with trio.fail_after(20):
        async with client_of(way, base) as client:
            await client.call_tool("call")
            await restartable_server.stop()
            await restartable_server.start()
            assert await client.call_tool("call", result_type=int) == 2


# The process of a stateless server.


STATELESS_PROGRAM = f"""
import json, os, sys

for line in sys.stdin:
    message = json.loads(line)
    result = {DISCOVERED!r}
    if message["method"] == "tools/call":
        if message["params"]["name"] == "hang":
            continue
        text = {{"type": "text", "text": str(os.getpid())}}
        result = {{"resultType": "complete", "content": [text]}}
    if "id" in message:
        response = {{"jsonrpc": "2.0", "id": message["id"], "result": result}}
        print(json.dumps(response), flush=True)
"""


@pytest.mark.requirement("STATE-04")
async def test_a_process_outlives_the_tasks_and_calls_that_use_it(nursery):
    client = Client(python(STATELESS_PROGRAM), protocol_versions=[STATELESS])
    await nursery.start(_open, client)
    pids = set()

    async def converse():
        pids.add(int(text_of_result(await client.call_tool("pid"))))

    async with trio.open_nursery() as conversations:
        conversations.start_soon(converse)
        conversations.start_soon(converse)
    async with trio.open_nursery() as conversations:
        conversations.start_soon(client.call_tool, "hang")
        await trio.testing.wait_all_tasks_blocked()
        conversations.cancel_scope.cancel()
    await converse()
    (pid,) = pids
    assert pid != os.getpid()
    assert is_alive(pid)
    await client.aclose()
    assert not is_alive(pid)


async def _open(client, *, task_status):
    """Opened by a task that is over then."""
    await client.__aenter__()
    task_status.started()
