"""Bridges from every transport of clients to every transport of servers."""

import json
import os
import signal
import subprocess
import sys
from contextlib import AsyncExitStack, asynccontextmanager

import attrs
import httpx2
import pytest
import trio

from mcp_trio import Client, ConnectionLost, Context, Limits, RequestError, Server
from mcp_trio._proxy.bridge import Downstream, Upstream, bridge_application
from mcp_trio.limits import RequestLimits
from mcp_trio.transports import open_websocket_channel
from tests.proxy.bridged import SOURCES, bridged, source
from tests.server.watched import watched
from tests.ways import CONNECTIONS, opened, sent_away, served

pytestmark = [pytest.mark.real_time, pytest.mark.slow]


BRIDGE = [sys.executable, "-m", "mcp_trio", "bridge"]
FROMS = ["stdio", *SOURCES]
TOS = ["command", "http", *CONNECTIONS]
PROTOCOL_VERSIONS = ["2025-11-25", "2026-07-28"]
SECONDS = 30


@attrs.frozen
class Unit:
    unit: str


def harbour(notes):
    """A server that writes down what was cancelled."""
    server = Server("harbour", version="1")

    @server.tool
    async def tide(port: str, *, ctx: Context) -> str:
        await ctx.report_progress(1, 2, message="looking")
        answer = await ctx.elicit("Which unit?", Unit)
        return f"3 {answer.data.unit} at {port}"

    @server.tool
    async def wait(*, ctx: Context) -> str:
        notes.write_text("waits")
        try:
            await ctx.sleep(1000)
        finally:
            notes.write_text("cancelled")
        return "waited"

    return server


COMMAND = """
import sys
from pathlib import Path
from tests.proxy.test_bridge import harbour

harbour(Path(sys.argv[1])).run()
"""


@pytest.fixture
def notes(tmp_path):
    return tmp_path / "notes"


@pytest.fixture
def recordings(tmp_path, all_in):
    """A folder, and what is in it when all is over: the same for both kinds of protocol version."""
    folder = tmp_path / "recorded"
    folder.mkdir()
    yield folder
    sessions = all_in(folder)
    assert all(each.counts["malformed"] == 0 for each in sessions)
    assert all(each.kinds()[-1] == "end" for each in sessions)
    messages = [body for each in sessions for body in each.bodies("in")]
    called = [each["params"]["name"] for each in messages if each.get("method") == "tools/call"]
    assert called.count("wait") == 2
    assert called.count("tide") >= 2  # a stateless client answers an input request by a call


@pytest.fixture
def server_at(tmp_path, notes):
    """A server somewhere; what names it on a command line."""

    @asynccontextmanager
    async def server_at(direction):
        if direction == "command":
            yield ["--", sys.executable, "-c", COMMAND, os.fspath(notes)]
            return
        async with served(harbour(notes), direction, tmp_path) as (url, _scope):
            yield [url]

    return server_at


@pytest.fixture
def bridge(tmp_path, recordings):
    """Return the target with which a client reaches a server through a bridge process."""
    options = ("--record", os.fspath(recordings))

    @asynccontextmanager
    async def bridge(direction, server):
        if direction == "stdio":
            yield [*BRIDGE, *options, "-", *server]
            return
        command = [*BRIDGE, *options, source(direction, tmp_path), *server]
        process = await trio.lowlevel.open_process(command, stderr=subprocess.PIPE)
        try:
            output = b""
            while not output.endswith(b"\n"):
                output += await process.stderr.receive_some()
            yield output.decode().split()[-1]
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 128 + signal.SIGTERM
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
            await process.stderr.aclose()

    return bridge


def takes_a_process(direction, to):
    """Return whether a bridge has stdin, processes that end with it, or a proxy of its own."""
    return direction == "stdio" or to == "command" or direction == to == "http"


async def use(client, notes):
    """All that there is to a call: its answer, progress, a question, and its cancellation."""
    reports = []
    result = await client.call_tool("tide", {"port": "Oslo"}, progress=reports.append)
    assert result.content[0].text == "3 m at Oslo"
    assert [each.message for each in reports] == ["looking"]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.call_tool, "wait")
        while not (notes.exists() and notes.read_text() == "waits"):
            await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    while notes.read_text() != "cancelled":
        await trio.sleep(0.01)
    notes.unlink()


@pytest.mark.parametrize("to", TOS)
@pytest.mark.parametrize("direction", FROMS)
async def test_every_pair_of_transports_bridges_stateless_and_legacy_calls(
    server_at, bridge, recordings, direction, to
):
    folder = recordings.parent
    with trio.fail_after(SECONDS):
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(server_at(to))
            between = (
                bridge(direction, server)
                if takes_a_process(direction, to)
                else bridged(direction, *server, folder, record=recordings)
            )
            listen = await stack.enter_async_context(between)
            for protocol_version in PROTOCOL_VERSIONS:
                async with Client(
                    listen,
                    protocol_versions=[protocol_version],
                    elicitation=lambda _: {"unit": "m"},
                ) as client:
                    assert client.protocol_version == protocol_version
                    await use(client, folder / "notes")


# Clients over HTTP, and a server over stdio: one process for each session.


SERVER = """
import os
import attrs
from mcp_trio import Context, Server

server = Server("harbour", version="1")

@attrs.frozen
class Unit:
    unit: str

@server.tool
async def tide(port: str, *, ctx: Context) -> str:
    await ctx.report_progress(1, 2, message="looking")
    await ctx.warning(f"asked for {port}")
    answer = await ctx.elicit("Which unit?", Unit)
    return f"3 {answer.data.unit} at {port}"

@server.tool
async def who() -> str:
    return str(os.getpid())

@server.tool
async def crash(status: int) -> str:
    os._exit(status)

@server.tool
async def grow() -> str:
    server.tool(who, name="grown")
    return "grown"

server.run()
"""
VERSIONS_BY_KIND = {"legacy": ("2025-11-25",), "stateless": ("2026-07-28",)}


@attrs.define
class BridgeApplication:
    url: str
    folder: object


@pytest.fixture
def open_bridge_application(tmp_path):
    @asynccontextmanager
    async def bridge_application(command, **limits):
        folder = tmp_path / "recorded"
        folder.mkdir()
        async with bridged("http", command, tmp_path, record=folder, **limits) as url:
            yield BridgeApplication(url, folder)

    return bridge_application


@pytest.fixture
def tool_server_command(tmp_path):
    (tmp_path / "harbour.py").write_text(SERVER)
    return [sys.executable, str(tmp_path / "harbour.py")]


@pytest.fixture
def sessions(all_in):
    return lambda application: all_in(application.folder)


def answering(**options):
    return {"elicitation": lambda _: {"unit": "m"}, **options}


async def text_of(client, tool, **arguments):
    return (await client.call_tool(tool, arguments)).content[0].text


@pytest.mark.parametrize("kind", VERSIONS_BY_KIND)
async def test_stateless_and_legacy_calls_are_bridged_with_logs_and_progress(
    open_bridge_application, tool_server_command, sessions, kind
):
    logs, progress = [], []
    async with open_bridge_application(tool_server_command) as application:
        options = answering(
            protocol_versions=VERSIONS_BY_KIND[kind], log=logs.append, log_level="debug"
        )
        async with Client(application.url, **options) as client:
            assert await text_of(client, "tide", port="Oslo") == "3 m at Oslo"
            result = await client.call_tool("tide", {"port": "Rome"}, progress=progress.append)
            assert result.content[0].text == "3 m at Rome"
    assert [each.data for each in logs] == ["asked for Oslo", "asked for Rome"]
    assert [each.message for each in progress] == ["looking"]
    session = sessions(application)[-1]
    assert session.counts["malformed"] == 0
    assert session.kinds()[-3:] == ["shut", "mark", "end"]


async def test_a_legacy_server_is_detected(
    open_bridge_application, tool_server_command, sessions, tmp_path
):
    old = SERVER.replace('version="1"', 'version="1", protocol_versions=("2025-06-18",)')
    (tmp_path / "harbour.py").write_text(old)
    async with (
        open_bridge_application(tool_server_command) as application,
        Client(application.url, **answering()) as client,
    ):
        assert client.protocol_version == "2025-06-18"
        assert await text_of(client, "tide", port="Oslo") == "3 m at Oslo"
    probe, session = sessions(application)
    methods = [
        [body["method"] for body in each.bodies("in") if "method" in body]
        for each in (probe, session)
    ]
    assert methods == [
        ["server/discover"],
        ["initialize", "notifications/initialized", "tools/call"],
    ]


async def test_each_legacy_session_has_a_process_and_stateless_clients_share_one(
    open_bridge_application, tool_server_command, sessions
):
    async with open_bridge_application(tool_server_command) as application:
        numbers = {}
        for kind, protocol_versions in VERSIONS_BY_KIND.items():
            async with (
                Client(application.url, protocol_versions=protocol_versions) as first,
                Client(application.url, protocol_versions=protocol_versions) as second,
            ):
                numbers[kind] = {await text_of(each, "who") for each in (first, second)}
        assert len(numbers["legacy"]) == 2
        assert len(numbers["stateless"]) == 1
    assert len(sessions(application)) == 3


async def test_stateless_clients_with_one_token_do_not_get_each_others_progress(
    open_bridge_application, tmp_path
):
    code = tmp_path / "slow.py"
    code.write_text("""
import json, sys
asked = [json.loads(sys.stdin.readline()) for _ in range(2)]
for each in asked:
    token = each["params"]["_meta"].get("progressToken")
    if token is not None:
        params = {"progressToken": token, "progress": each["params"]["word"]}
        progress = {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}
        print(json.dumps(progress), flush=True)
for each in asked:
    result = {"resultType": "complete", "word": each["params"]["word"]}
    print(json.dumps({"jsonrpc": "2.0", "id": each["id"], "result": result}), flush=True)
sys.stdin.read()
""")

    async def ask(url, word, received):
        version = "2026-07-28"
        meta = {
            "io.modelcontextprotocol/protocolVersion": version,
            "io.modelcontextprotocol/clientCapabilities": {},
            "io.modelcontextprotocol/clientInfo": {"name": "c", "version": "1"},
            "progressToken": "t",
        }
        message = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "say",
            "params": {"word": word, "_meta": meta},
        }
        headers = {
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": version,
            "Mcp-Method": "say",
        }
        async with httpx2.AsyncClient(timeout=20) as client:
            answered = await client.post(url, json=message, headers=headers)
        is_stream = answered.headers["content-type"] == "text/event-stream"
        texts = answered.text.split("data: ")[1:] if is_stream else [answered.text]
        received[word] = [json.loads(text.split("\n\n")[0]) for text in texts if "{" in text]

    received = {}
    async with (
        open_bridge_application([sys.executable, str(code)]) as application,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(ask, application.url, 1, received)
        nursery.start_soon(ask, application.url, 2, received)
    assert {word: messages[-1]["result"]["word"] for word, messages in received.items()} == {
        1: 1,
        2: 2,
    }
    assert all(messages[-1]["id"] == 1 for messages in received.values())
    progress = {
        word: [each["params"]["progress"] for each in messages[:-1]]
        for word, messages in received.items()
    }
    assert sorted(progress.values()) in ([[], [1]], [[], [2]])
    assert all(reports in ([], [word]) for word, reports in progress.items())


@pytest.mark.parametrize("kind", VERSIONS_BY_KIND)
async def test_a_server_that_dies_fails_its_own_calls(
    open_bridge_application, tool_server_command, sessions, kind
):
    async with (
        open_bridge_application(tool_server_command) as application,
        Client(application.url, protocol_versions=VERSIONS_BY_KIND[kind]) as client,
    ):
        first = await text_of(client, "who")
        with pytest.raises(RequestError, match="exited with status 3"):
            await client.call_tool("crash", {"status": 3})
        assert await text_of(client, "who") != first
    dead, *_ = sessions(application)
    assert dead.marks()["exited"] == 3
    assert dead.cause == "lost"
    assert dead.marks()["lost"]["error"].endswith("exited with status 3")


async def test_a_command_that_cannot_be_started_fails_each_request(
    open_bridge_application, sessions, tmp_path
):
    async with (
        open_bridge_application([str(tmp_path / "missing")]) as application,
        httpx2.AsyncClient() as client,
    ):
        for number in (1, 2):
            answered = await client.post(
                application.url,
                json={"jsonrpc": "2.0", "id": number, "method": "initialize", "params": {}},
                headers={"Accept": "application/json"},
            )
            assert "cannot start" in answered.json()["error"]["message"]
    assert [session.kinds() for session in sessions(application)] == [
        ["open", "in", "mark", "shut", "end"]
    ] * 2


# The end of one side of a bridge ends the other, with its reason.


HARBOUR = """
import os, sys
from pathlib import Path
from mcp_trio import Server

server = Server("harbour")

@server.tool
async def who() -> str:
    return str(os.getpid())

@server.tool
async def crash() -> str:
    os._exit(7)

server.run()
Path(sys.argv[1]).write_text("done")
"""
BRIDGE_TIMEOUT_SECONDS = 20


@pytest.fixture
def crashing_server_command(tmp_path):
    (tmp_path / "harbour.py").write_text(HARBOUR)
    return [sys.executable, str(tmp_path / "harbour.py"), str(tmp_path / "done")]


@pytest.fixture
def sites(tmp_path, all_in):
    """Opens a bridge; gives its URL, and reads what it recorded."""
    folder = tmp_path / "recorded"
    folder.mkdir()

    @asynccontextmanager
    async def bridge(direction, target, **limits):
        with trio.fail_after(BRIDGE_TIMEOUT_SECONDS):
            async with bridged(direction, target, tmp_path, record=folder, **limits) as url:
                yield url

    bridge.recorded = lambda: all_in(folder)
    return bridge


async def tool_text(client, tool):
    return (await client.call_tool(tool)).content[0].text


async def until(condition):
    while not condition():
        await trio.sleep(0.01)


@pytest.mark.parametrize("direction", CONNECTIONS)
async def test_each_client_has_its_own_server_that_ends_with_it(
    sites, crashing_server_command, tmp_path, direction
):
    async with sites(direction, crashing_server_command) as url:
        async with Client(url) as one, Client(url) as other:
            assert await tool_text(one, "who") != await tool_text(other, "who")
        await until((tmp_path / "done").exists)
        await until(lambda: all(each.kinds()[-1] == "end" for each in sites.recorded()))
    assert [each.cause for each in sites.recorded()] == ["eof", "eof"]
    assert [each.marks()["exited"] for each in sites.recorded()] == [0, 0]


@pytest.mark.parametrize("direction", CONNECTIONS)
async def test_the_death_of_a_server_disconnects_only_its_client(
    sites, crashing_server_command, caplog, direction
):
    async with sites(direction, crashing_server_command) as url:
        text = "exited with status 7" if direction == "websocket" else None
        async with Client(url) as client, Client(url) as other:
            with pytest.raises(ConnectionLost, match=text):
                await client.call_tool("crash")
            assert await tool_text(other, "who")
    assert "exited with status 7" in caplog.text
    dead, _ = sites.recorded()
    assert (dead.cause, dead.marks()["exited"]) == ("lost", 7)


@pytest.mark.parametrize("direction", CONNECTIONS)
async def test_a_client_without_a_first_request_is_disconnected_and_others_stay(
    sites, direction, mock_clock
):
    async with (
        served(watched("there"), "tcp") as (there, _scope),
        sites(direction, there, requests=RequestLimits(first_request_seconds=2)) as url,
        Client(url) as busy,
    ):
        await sent_away(await opened(url), mock_clock, 2)
        assert len(await busy.list_tools()) == 1


async def test_a_bridge_from_http_serves_no_other_transport(sites, crashing_server_command):
    async with sites("http", crashing_server_command) as url:
        with pytest.raises(ConnectionLost, match="HTTP 404"):
            await open_websocket_channel(url.replace("http:", "ws:").replace("/here", "/ws"))


@pytest.mark.parametrize("direction", CONNECTIONS)
async def test_an_unreachable_server_disconnects_the_client(sites, caplog, direction):
    async with sites(direction, "unix:/no/such/socket") as url:
        text = "cannot connect to unix:/no/such/socket" if direction == "websocket" else None
        with pytest.raises(ConnectionLost, match=text):
            async with Client(url, protocol_versions=["2025-11-25"]):
                pass
    assert "cannot connect to unix:/no/such/socket" in caplog.text
    assert [each.cause for each in sites.recorded()] == ["lost"]


async def test_http_requests_fail_when_the_server_closes_its_connection(sites):
    server = Server("there")
    stop = trio.CancelScope()

    @server.tool
    async def leave() -> str:
        stop.cancel()
        await trio.sleep_forever()

    async def serve(*, task_status):
        with stop:
            await server.serve_tcp(port=0, task_status=task_status)

    async with (
        trio.open_nursery() as nursery,
        sites("http", await nursery.start(serve)) as url,
        Client(url, protocol_versions=["2026-07-28"]) as client,
    ):
        with pytest.raises(RequestError, match="the server has closed the connection"):
            await client.call_tool("leave")
        with pytest.raises(RequestError, match="cannot connect to tcp://"):
            await client.call_tool("leave")


async def test_a_stopping_bridge_notifies_its_clients_and_ends_its_processes(
    sites, crashing_server_command
):
    async with sites("websocket", crashing_server_command) as url:
        channel = await open_websocket_channel(url)
        await until(sites.recorded)
    assert await channel.receive() == []  # close code 1001
    await channel.aclose()
    (session,) = sites.recorded()
    assert session.cause == "closed"
    assert "exited" in session.marks()


def test_the_number_of_processes_is_limited(crashing_server_command):
    application = bridge_application(
        Downstream(kind="tcp"),
        Upstream(target=crashing_server_command),
        start_journal=print,
        limits=Limits(),
    )
    assert application.limits.http.connections_max == application.limits.http.sessions_max == 100
    application = bridge_application(
        Downstream(kind="http"),
        Upstream(target=crashing_server_command),
        start_journal=print,
        limits=Limits(),
    )
    assert application.limits.http.connections_max == Limits().http.connections_max
