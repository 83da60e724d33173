"""Clients over HTTP, and a server that speaks stdio: a process for each session."""

import json
import sys
from contextlib import asynccontextmanager

import attrs
import httpx2
import pytest
import trio

from mcp_trio import Client, RequestError
from tests.proxy.bridged import bridged

pytestmark = [pytest.mark.real_time, pytest.mark.slow]

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
    await ctx.progress(1, 2, message="looking")
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
ERAS = {"legacy": ("2025-11-25",), "stateless": ("2026-07-28",)}


@attrs.define
class BridgeApplication:
    url: str
    folder: object


@pytest.fixture
def bridge_application(tmp_path):
    @asynccontextmanager
    async def bridge_application(command, **limits):
        folder = tmp_path / "recorded"
        folder.mkdir()
        async with bridged("http", command, tmp_path, record=folder, **limits) as url:
            yield BridgeApplication(url, folder)

    return bridge_application


@pytest.fixture
def harbour(tmp_path):
    (tmp_path / "harbour.py").write_text(SERVER)
    return [sys.executable, str(tmp_path / "harbour.py")]


@pytest.fixture
def sessions(all_in):
    return lambda application: all_in(application.folder)


def answering(**options):
    return {"elicitation": lambda _: {"unit": "m"}, **options}


async def text_of(client, tool, **arguments):
    return (await client.call_tool(tool, arguments)).content[0].text


@pytest.mark.parametrize("era", ERAS)
async def test_both_eras_pass_with_all_that_belongs_to_a_call(
    bridge_application, harbour, sessions, era
):
    logs, progress = [], []
    async with bridge_application(harbour) as application:
        options = answering(protocol_versions=ERAS[era], log=logs.append, log_level="debug")
        async with Client(application.url, **options) as client:
            assert await text_of(client, "tide", port="Oslo") == "3 m at Oslo"
            result = await client.call_tool("tide", {"port": "Rome"}, progress=progress.append)
            assert result.content[0].text == "3 m at Rome"
    assert [each.data for each in logs] == ["asked for Oslo", "asked for Rome"]
    assert [each.message for each in progress] == ["looking"]
    session = sessions(application)[-1]
    assert session.counts["malformed"] == 0
    assert session.kinds()[-3:] == ["shut", "mark", "end"]


async def test_a_server_of_legacy_sessions_is_found_out(
    bridge_application, harbour, sessions, tmp_path
):
    old = SERVER.replace('version="1"', 'version="1", protocol_versions=("2025-06-18",)')
    (tmp_path / "harbour.py").write_text(old)
    async with (
        bridge_application(harbour) as application,
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


async def test_each_session_has_a_process_and_all_stateless_clients_one(
    bridge_application, harbour, sessions
):
    async with bridge_application(harbour) as application:
        numbers = {}
        for era, protocol_versions in ERAS.items():
            async with (
                Client(application.url, protocol_versions=protocol_versions) as first,
                Client(application.url, protocol_versions=protocol_versions) as second,
            ):
                numbers[era] = {await text_of(each, "who") for each in (first, second)}
        assert len(numbers["legacy"]) == 2
        assert len(numbers["stateless"]) == 1
    assert len(sessions(application)) == 3


async def test_stateless_clients_with_one_token_do_not_get_each_others_progress(
    bridge_application, tmp_path
):
    code = tmp_path / "slow.py"
    code.write_text("""
import json, sys
asked = [json.loads(sys.stdin.readline()) for _ in range(2)]
for each in asked:
    token = each["params"]["_meta"].get("progressToken")
    if token is not None:
        params = {"progressToken": token, "progress": each["params"]["word"]}
        told = {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}
        print(json.dumps(told), flush=True)
for each in asked:
    result = {"resultType": "complete", "word": each["params"]["word"]}
    print(json.dumps({"jsonrpc": "2.0", "id": each["id"], "result": result}), flush=True)
sys.stdin.read()
""")

    async def ask(url, word, heard):
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
        heard[word] = [json.loads(text.split("\n\n")[0]) for text in texts if "{" in text]

    heard = {}
    async with (
        bridge_application([sys.executable, str(code)]) as application,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(ask, application.url, 1, heard)
        nursery.start_soon(ask, application.url, 2, heard)
    assert {word: told[-1]["result"]["word"] for word, told in heard.items()} == {1: 1, 2: 2}
    assert all(told[-1]["id"] == 1 for told in heard.values())
    progress = {
        word: [each["params"]["progress"] for each in told[:-1]] for word, told in heard.items()
    }
    assert sorted(progress.values()) in ([[], [1]], [[], [2]])
    assert all(told in ([], [word]) for word, told in progress.items())


@pytest.mark.parametrize("era", ERAS)
async def test_a_server_that_dies_fails_its_own_calls(bridge_application, harbour, sessions, era):
    async with (
        bridge_application(harbour) as application,
        Client(application.url, protocol_versions=ERAS[era]) as client,
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
    bridge_application, sessions, tmp_path
):
    async with (
        bridge_application([str(tmp_path / "missing")]) as application,
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
