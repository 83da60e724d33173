"""Serving connections that are sessions: WebSocket, Unix domain sockets, TCP."""

import contextlib
import functools
import json
import os
import signal
import ssl
import subprocess
import sys

import attrs
import httpx2
import pytest
import trio
from server_processes import free_port

from mcp_trio import Client, ConnectionLost, Context, Limits, Server
from mcp_trio._protocol.websocket import CloseCode
from mcp_trio._transports.sockets import SocketHost, serve_sockets
from mcp_trio.errors import MCPError, OutcomeUnknown, RecordingError
from mcp_trio.limits import HttpLimits
from mcp_trio.recording import replay
from mcp_trio.transports import open_websocket_channel
from tests.server.watched import harbour, watched
from tests.story import Story
from tests.ways import CONNECTIONS, WAYS, served, serving

SECONDS = 10.0
LEGACY, STATELESS = "2025-11-25", "2026-07-28"


def text(result):
    return result.content[0].text


@pytest.mark.parametrize("protocol_version", [LEGACY, STATELESS])
@pytest.mark.parametrize("way", CONNECTIONS)
async def test_stateless_and_legacy_clients_are_served(way, protocol_version, tmp_path):
    async with served(harbour(), way, tmp_path) as (url, _scope):
        assert url.startswith({"websocket": "ws://127.0.0.1:"}.get(way, way))
        async with Client(url, protocol_versions=[protocol_version]) as client:
            assert client.protocol_version == protocol_version
            assert text(await client.call_tool("tide")) == "high, said a gull"


@pytest.mark.parametrize("way", CONNECTIONS)
async def test_a_server_asks_stateless_and_legacy_clients(way, tmp_path):
    async with served(harbour(), way, tmp_path) as (url, _scope):
        for protocol_version in (LEGACY, STATELESS):
            async with Client(
                url, protocol_versions=[protocol_version], elicitation=lambda _: True
            ) as client:
                assert text(await client.call_tool("ask")) == "accept"


@pytest.mark.parametrize("way", CONNECTIONS)
async def test_the_lifespan_is_entered_once_for_all_sessions(way, tmp_path):
    seen = Story()
    async with served(harbour(seen), way, tmp_path) as (url, _scope):
        async with Client(url) as one, Client(url) as other:
            assert text(await one.call_tool("tide")) == text(await other.call_tool("tide"))
        assert seen == ["begins"]
    assert seen == ["begins", "ends"]


@pytest.mark.parametrize("way", CONNECTIONS)
async def test_a_stopping_server_cancels_its_handlers_before_the_lifespan_exits(way, tmp_path):
    seen, lost = Story(), []

    async def call(client):
        with pytest.raises(ConnectionLost) as caught:
            await client.call_tool("wait")
        lost.append(caught.value)

    async with served(harbour(seen), way, tmp_path) as (url, scope):
        with trio.CancelScope(shield=True), trio.fail_after(SECONDS):
            async with Client(url) as client, trio.open_nursery() as nursery:
                nursery.start_soon(call, client)
                await seen.until("waits")
                scope.cancel()
    assert seen == ["begins", "waits", "cancelled", "ends"]
    assert len(lost) == 1


@pytest.mark.parametrize("way", CONNECTIONS)
async def test_a_broken_connection_closes_only_its_own_session(way, tmp_path):
    seen = Story()
    async with served(harbour(seen), way, tmp_path) as (url, _scope), Client(url) as other:
        async with Client(url) as client, trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "wait")
            await seen.until("waits")
            nursery.cancel_scope.cancel()
        with trio.fail_after(SECONDS):
            await seen.until("cancelled")
        assert text(await other.call_tool("tide")).startswith("high")


@pytest.mark.parametrize("way", CONNECTIONS)
async def test_each_session_has_its_own_recording_that_replays(way, tmp_path):
    folder = tmp_path / "recordings"
    folder.mkdir()
    async with served(harbour(), way, tmp_path, record=folder) as (url, _scope):
        for protocol_version in (LEGACY, STATELESS):
            async with Client(url, protocol_versions=[protocol_version]) as client:
                await client.call_tool("tide")
    files = sorted(folder.iterdir())
    assert len(files) == 2
    for file in files:
        assert f'"transport":"{way}"' in file.read_text().splitlines()[0]
        report = await trio.to_thread.run_sync(replay, file, harbour())
        assert report.is_complete, file


@pytest.mark.parametrize("way", CONNECTIONS)
async def test_a_single_file_is_rejected_as_a_recording(way, tmp_path):
    with pytest.RaisesGroup(pytest.RaisesExc(ValueError, match="there are several sessions")):
        async with served(harbour(), way, tmp_path, record=tmp_path / "one.mcprec.jsonl"):
            pass


async def test_a_recording_error_closes_only_its_own_connection(tmp_path, caplog):
    folder = tmp_path / "gone"
    folder.mkdir()
    async with served(harbour(), "tcp", tmp_path, record=f"{folder}/") as (url, _scope):
        folder.rmdir()
        folder.write_text("in the way")
        for _ in range(2):
            with pytest.raises(ConnectionLost):
                async with Client(url, protocol_versions=[LEGACY]):
                    pass
    assert any(isinstance(each.exc_info[1], RecordingError) for each in caplog.records)


@pytest.mark.parametrize("way", WAYS)
async def test_an_error_of_the_lifespan_is_raised_without_a_group_and_with_its_cause(way, tmp_path):
    @contextlib.asynccontextmanager
    async def lifespan(_server):
        try:
            raise KeyError("chart")
        except KeyError as error:
            raise LookupError("no sea") from error
        yield

    with pytest.raises(LookupError, match="no sea") as caught:
        await serving(Server("harbour", lifespan=lifespan), way, tmp_path)()
    assert isinstance(caught.value.__cause__, KeyError)
    assert caught.value.__context__ is caught.value.__cause__
    assert not (tmp_path / "socket").exists()


# Authorization


async def test_a_token_opens_a_websocket_by_header_and_by_subprotocol(tmp_path):
    async with served(harbour(), "websocket", tmp_path, token="sesame") as (url, _scope):
        channel = await open_websocket_channel(url, token="sesame")
        async with Client(channel) as client:
            assert text(await client.call_tool("who")) == "bearer"
        for wrong in (None, "sesam", "sesame0"):
            with pytest.raises(ConnectionLost, match=r"HTTP 401.*token="):
                await open_websocket_channel(url, token=wrong)
        with pytest.raises(ConnectionLost, match="401"):
            await open_websocket_channel(url, headers={"Authorization": "Basic xyz"})


async def test_a_handler_gets_the_principal_of_the_connection(tmp_path):
    async def verify(head):
        return {"Bearer x": "xenia"}.get(head.header("authorization"))

    async with served(harbour(auth=verify), "websocket", tmp_path) as (url, _scope):
        for protocol_version in (LEGACY, STATELESS):
            channel = await open_websocket_channel(url, token="x")
            async with Client(channel, protocol_versions=[protocol_version]) as client:
                assert text(await client.call_tool("who")) == "xenia"

    async def authorize(peer):
        return "me" if peer.uid in (os.getuid(), None) else None

    async with (
        served(harbour(), "unix", tmp_path, authorize=authorize) as (url, _scope),
        Client(url) as client,
    ):
        assert text(await client.call_tool("who")) == "me"


class Panic(BaseException):
    """A fault that is no `Exception`, as libraries in Rust raise it."""


async def kept_cancellation():
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.sleep_forever()
        except trio.Cancelled as error:
            return error


@pytest.mark.parametrize("make_fault", [Panic, kept_cancellation])
@pytest.mark.parametrize("transport", ["websocket", "http", "unix"])
async def test_a_fault_that_is_no_exception_ends_only_the_connection_of_its_client(
    tmp_path, transport, make_fault
):
    calls = []

    async def authenticate(_client):
        calls.append(make_fault)
        if len(calls) == 1:
            fault = make_fault()
            raise await fault if make_fault is kept_cancellation else fault
        return "xenia"

    server, options = harbour(), {"authorize": authenticate}
    if transport != "unix":
        server, options = harbour(auth=authenticate), {}
    async with served(server, transport, tmp_path, **options) as (url, _scope):
        with contextlib.suppress(MCPError):  # over HTTP the client tries again
            async with Client(url):
                pass
        async with Client(url) as client:
            assert text(await client.call_tool("who")) == "xenia"


async def test_options_that_contradict_each_other_are_rejected(tmp_path):
    rejected = [
        ({"token": ""}, "at least one character"),
        ({"token": "ö"}, "visible ASCII"),
        ({"keyfile": "x"}, "certfile="),
        ({"hosts": ["a b"]}, "hosts="),
    ]
    for options, complaint in rejected:
        with pytest.raises(ValueError, match=complaint):
            await harbour().serve_websocket(port=0, **options)

    async def verify(_head):
        return "anybody"

    with pytest.raises(ValueError, match=r"either token= or Server\(auth="):
        await harbour(auth=verify).serve_websocket(port=0, token="x")


async def test_an_unknown_option_is_rejected():
    for function in (
        functools.partial(harbour().serve_websocket, port=0),
        functools.partial(harbour().dial, "tcp://127.0.0.1:1"),
    ):
        with trio.fail_after(SECONDS):
            with pytest.raises(TypeError, match="unexpected option 'tokn'; did you mean 'token'"):
                await function(tokn="sesame")


async def test_the_rejection_of_another_origin_names_the_setting(tmp_path):
    async with served(harbour(), "websocket", tmp_path) as (url, _scope):
        for origin in ("https://evil.example", "null"):
            with pytest.raises(ConnectionLost, match=r"HTTP 403.*origins="):
                await open_websocket_channel(url, headers={"Origin": origin})
        own = url.replace("ws://", "http://").removesuffix("/ws")
        channel = await open_websocket_channel(url, headers={"Origin": own})
        await channel.aclose()
    origins = ["https://app.example"]
    async with served(harbour(), "websocket", tmp_path, origins=origins) as (url, _scope):
        channel = await open_websocket_channel(url, headers={"Origin": "https://app.example"})
        await channel.aclose()


async def test_the_response_for_another_path_names_the_endpoint(tmp_path):
    async with served(harbour(), "websocket", tmp_path, path="/mcp") as (url, _scope):
        assert url.endswith("/mcp")
        with pytest.raises(ConnectionLost, match=r"HTTP 404.*endpoint is /mcp"):
            await open_websocket_channel(url.removesuffix("/mcp") + "/ws?secret=1")


async def test_tcp_on_a_public_address_needs_authorize_or_is_open():
    with pytest.raises(ValueError, match=r"authorize=.*is_open=True"):
        await harbour().serve_tcp(host="0.0.0.0", port=0)
    async with trio.open_nursery() as nursery:
        serve = functools.partial(harbour().serve_tcp, host="0.0.0.0", port=0, is_open=True)
        assert (await nursery.start(serve)).startswith("tcp://0.0.0.0:")
        nursery.cancel_scope.cancel()
    async with trio.open_nursery() as nursery:
        serve = functools.partial(harbour().serve_tcp, host="localhost", port=0)
        await nursery.start(serve)
        nursery.cancel_scope.cancel()


# The client


async def test_a_call_in_flight_is_not_repeated_when_its_connection_breaks(tmp_path):
    seen = Story()
    async with (
        served(harbour(seen), "websocket", tmp_path) as (url, _scope),
        Client(url, restart=True) as client,
    ):
        async with trio.open_nursery() as nursery:

            async def call():
                with pytest.raises(
                    OutcomeUnknown, match="closed the connection without a close frame"
                ):
                    await client.call_tool("wait")

            nursery.start_soon(call)
            await seen.until("waits")
            stream = client._session.channel._socket._stream.stream
            await trio.aclose_forcefully(stream)
        assert text(await client.call_tool("tide")).startswith("high")
    assert seen.count("waits") == seen.count("cancelled") == 1


@pytest.mark.parametrize("way", CONNECTIONS)
async def test_a_client_without_a_server_gets_an_error(way, tmp_path):
    async with served(harbour(), way, tmp_path) as (url, _scope):
        pass
    with pytest.raises(ConnectionLost, match="cannot connect to"):
        async with Client(url):
            pass


async def test_options_that_do_not_suit_the_url_are_rejected(tmp_path):
    rejected = [
        ("tcp://127.0.0.1", {}, ValueError, "tcp://host:port"),
        ("tcp://127.0.0.1:1", {"headers": {"a": "b"}}, TypeError, "headers"),
        ("unix:/x", {"headers": {"a": "b"}}, TypeError, "headers"),
        ("tcp://127.0.0.1:1", {"token": "x"}, TypeError, "token"),
        ("unix:/x", {"ssl_context": ssl.create_default_context()}, TypeError, "ssl_context"),
        ("ws://127.0.0.1:1", {"ssl_context": ssl.create_default_context()}, ValueError, "wss://"),
        ("https://127.0.0.1:1", {"ssl_context": ssl.create_default_context()}, TypeError, "http="),
        ("ws://127.0.0.1:1", {"http": httpx2.AsyncClient()}, TypeError, "http"),
        ("ws://me:pw@127.0.0.1:1", {}, ValueError, "token="),
        ("ws://", {}, ValueError, "ws://"),
        ("ws://127.0.0.1:1", {"env": {"A": "b"}}, TypeError, "env"),
    ]
    for url, options, kind, complaint in rejected:
        with pytest.raises(kind, match=complaint):
            async with Client(url, **options):
                pass


# A process


PROGRAM = """
import sys
from mcp_trio import Server
server = Server("alone")

@server.tool
async def tide() -> str:
    return "high"

import logging
logging.basicConfig(level="INFO", format="%(message)s", stream=sys.stdout)
server.run(sys.argv[1], **({"path": "alone"} if sys.argv[1] == "unix" else {"port": 0}))
"""


@pytest.mark.real_time
@pytest.mark.parametrize("way", CONNECTIONS)
async def test_a_process_serves_until_a_signal_arrives(tmp_path, way):
    process = await trio.lowlevel.open_process(
        [sys.executable, "-c", PROGRAM, way], stdout=subprocess.PIPE, cwd=tmp_path
    )
    try:
        with trio.fail_after(60):
            line = b""
            while not line.endswith(b"\n"):
                line += await process.stdout.receive_some()
            url = line.decode().removeprefix("serving ").strip()
            async with Client(url.replace("unix:", f"unix:{tmp_path}/")) as client:
                assert text(await client.call_tool("tide")) == "high"
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 128 + signal.SIGTERM
    finally:
        process.kill()
        await process.wait()
        await process.stdout.aclose()


# Servers that connect to a hub.


QUICK = Limits(http=HttpLimits(sse_retry_ms=10, reconnect_seconds_max=0.05))


def worker(seen=None):
    server = watched("worker", seen, limits=QUICK)

    @server.tool
    async def work(*, ctx: Context) -> str:
        return await ctx.effect(str, "done")

    return server


@attrs.define(eq=False)
class Hub:
    """Takes connections at a TCP port, and hands out their channels."""

    port: int
    channels: trio.MemoryReceiveChannel


async def open_hub(nursery, port=0):
    put, take = trio.open_memory_channel(0)

    async def handle(channel):
        async with contextlib.aclosing(channel):
            await put.send(channel)
            await channel._closed.wait()

    host = SocketHost(transport="tcp", authorize=None, handle=handle, limits=QUICK)
    listeners = await trio.open_tcp_listeners(port, host="127.0.0.1")
    await nursery.start(serve_sockets, listeners, host)
    return Hub(listeners[0].socket.getsockname()[1], take)


@contextlib.asynccontextmanager
async def nursery_for_a_while():
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            yield nursery
            nursery.cancel_scope.cancel()


async def test_a_server_dials_again_and_again_in_one_lifespan():
    seen, states = Story(), []
    async with nursery_for_a_while() as nursery:
        hub = await open_hub(nursery)
        dial = functools.partial(
            worker(seen).dial,
            f"tcp://127.0.0.1:{hub.port}",
            state_changed=lambda *state: states.append(state),
        )
        nursery.start_soon(dial)
        for _ in range(3):
            async with Client(await hub.channels.receive()) as client:
                assert text(await client.call_tool("work")) == "done"
        assert seen == ["begins"]
    assert seen == ["begins", "ends"]
    names = [state for state, _why in states]
    assert names[:6] == ["connecting", "open", "retrying", "open", "retrying", "open"]
    assert names[-1] == "closed"
    assert states[2][1] == "the peer closed the connection"


async def test_dial_reports_the_url_and_ends_in_bounded_time_when_cancelled():
    seen = Story()
    async with nursery_for_a_while() as nursery:
        hub = await open_hub(nursery)
        async with trio.open_nursery() as dialling:
            url = f"tcp://127.0.0.1:{hub.port}"
            assert await dialling.start(worker(seen).dial, url) == url
            async with Client(await hub.channels.receive()) as client, trio.open_nursery() as calls:

                async def call():
                    with pytest.raises(ConnectionLost):
                        await client.call_tool("wait")

                calls.start_soon(call)
                await seen.until("waits")
                dialling.cancel_scope.cancel()
    assert seen == ["begins", "waits", "cancelled", "ends"]


async def test_a_server_dials_until_its_hub_listens():
    states, reasons = Story(), []

    def note(state, why):
        states.append(state)
        reasons.append(why)

    port = free_port()
    async with nursery_for_a_while() as nursery:
        url = f"tcp://127.0.0.1:{port}"
        nursery.start_soon(functools.partial(worker().dial, url, state_changed=note))
        await states.until("retrying")
        hub = await open_hub(nursery, port)
        async with Client(await hub.channels.receive()) as client:
            assert text(await client.call_tool("work")) == "done"
        assert states[:3] == ["connecting", "retrying", "open"]
        assert f"cannot connect to {url}" in reasons[1]


async def test_one_recording_contains_all_sessions_and_replays(tmp_path):
    file = tmp_path / "story.mcprec.jsonl"
    async with nursery_for_a_while() as nursery:
        hub = await open_hub(nursery)
        url = f"tcp://127.0.0.1:{hub.port}"
        nursery.start_soon(functools.partial(worker().dial, url, record=os.fspath(file)))
        for _ in range(2):
            async with Client(await hub.channels.receive()) as client:
                await client.call_tool("work")
        await hub.channels.receive()
    records = [json.loads(line) for line in file.read_text().splitlines()]
    called = [record.get("c") for record in records if "tools/call" in json.dumps(record)]
    assert called == [1, 2]
    report = await trio.to_thread.run_sync(replay, file, worker())
    assert report.is_complete


async def test_a_hub_that_rejects_the_handshake_is_not_dialled_again():
    states = []
    async with nursery_for_a_while() as nursery:
        serve = functools.partial(Server("hub").serve_websocket, port=0, token="sesame")
        url = await nursery.start(serve)
        for headers in (None, {"Origin": "https://evil.example"}):
            with pytest.raises(ConnectionLost, match=r"HTTP 40[13]"):
                await worker().dial(
                    url, headers=headers, state_changed=lambda *state: states.append(state)
                )
    assert [state for state, _why in states] == ["connecting", "closed"] * 2
    assert "HTTP 401" in states[1][1]


async def test_a_hub_that_closes_with_a_rejection_is_not_dialled_again():
    from mcp_trio._transports.http_server import serve_websocket

    async def handle(channel):
        channel._code = CloseCode.POLICY_VIOLATION

    async def admit(head):
        await trio.lowlevel.checkpoint()
        return head

    async with nursery_for_a_while() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(
            functools.partial(serve_websocket, listeners, admit=admit, handle=handle, limits=QUICK)
        )
        port = listeners[0].socket.getsockname()[1]
        with pytest.raises(ConnectionLost, match=r"rejected the connection.*1008") as caught:
            await worker().dial(f"ws://127.0.0.1:{port}/")
    assert type(caught.value) is ConnectionLost


@pytest.mark.parametrize(
    ("url", "options", "kind"),
    [
        ("http://127.0.0.1:1", {}, ValueError),
        ("tcp://127.0.0.1", {}, ValueError),
        ("unix:/x", {"token": "x"}, TypeError),
        ("ws://127.0.0.1", {"token": "ö"}, ValueError),
    ],
)
async def test_an_invalid_url_or_option_of_dial_is_rejected(url, options, kind):
    seen = Story()
    with pytest.raises(kind):
        await worker(seen).dial(url, **options)
    assert seen == ["begins", "ends"]
