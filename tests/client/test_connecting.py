"""Connecting a client: targets, the handshake, and failed attempts."""

import contextlib
import ssl
import typing
from functools import partial

import attrs
import httpx
import httpx2
import pytest
import trio
import trio.testing

from mcp_trio import (
    Client,
    ConnectionLost,
    Limits,
    RequestError,
    RequestTimeout,
    Server,
    connect_client,
)
from mcp_trio import types as t
from mcp_trio._client.client import ClientOptions
from mcp_trio._protocol.versions import ALL_PROTOCOL_VERSIONS
from mcp_trio.errors import LocalProtocolError, RecordingError, RemoteProtocolError
from mcp_trio.limits import RequestLimits
from mcp_trio.recording import read_recording
from mcp_trio.transports import memory_pair
from tests.client.conftest import (
    EVERYTHING,
    OLD,
    Bench,
    open_descriptors,
    running_tasks,
    said,
    text,
)


async def test_a_client_of_a_server_object_knows_its_server(bench):
    client = Client(bench)
    assert not client.is_open
    async with client:
        assert client.is_open
        assert client.server_info == t.Implementation(name="bench", version="7")
        assert client.server_capabilities == EVERYTHING
        assert client.instructions == "be kind"
        assert client.protocol_version == ALL_PROTOCOL_VERSIONS[0]
        assert client.counts == {}
        assert said(await client.call_tool("hello")) == "hello"
    assert not client.is_open
    assert client.server_info.name == "bench"


@pytest.mark.requirement("LIFE-01", "LIFE-02", "LIFE-03", "LIFE-04", "LIFE-11")
async def test_the_handshake_is_sent_first(scripted, nursery):
    channel, server = scripted
    nursery.start_soon(partial(connect_client, channel, nursery, protocol_versions=OLD))
    request = await server.receive()
    assert request["method"] == "initialize"
    assert request["params"] == {
        "protocolVersion": "2024-11-05",
        "capabilities": {},
        "clientInfo": {"name": "mcp_trio", "version": Client(()).version},
    }
    result = {"protocolVersion": "2024-11-05", "capabilities": {}}
    await server.send_result(request, {**result, "serverInfo": {"name": "", "version": ""}})
    assert await server.receive() == {"jsonrpc": "2.0", "method": "notifications/initialized"}
    nursery.cancel_scope.cancel()


@pytest.mark.requirement("LIFE-02", "ROOT-01", "SAMP-01")
async def test_a_client_announces_its_name_and_the_capabilities_of_its_callbacks(scripted, nursery):
    async def sample(params):
        raise AssertionError

    channel, server = scripted
    client = Client(channel, name="me", version="3", roots=[], sampling=sample)
    nursery.start_soon(client.__aenter__)
    params = (await server.answer_initialize())["params"]
    assert params["clientInfo"] == {"name": "me", "version": "3"}
    assert params["capabilities"] == {"roots": {"listChanged": True}, "sampling": {}}
    await client.aclose()


@pytest.mark.requirement("LIFE-12")
async def test_calls_before_the_handshake_are_rejected(scripted, nursery):
    channel, server = scripted
    client = Client(channel, protocol_versions=OLD)
    for act in (client.list_tools, client.ping, client.notify_roots_changed):
        with pytest.raises(LocalProtocolError, match="not connected"):
            await act()
    nursery.start_soon(client.__aenter__)
    assert (await server.receive())["method"] == "initialize"
    assert not client.is_open
    with pytest.raises(LocalProtocolError, match="not finished its handshake"):
        _ = client.server_info
    with pytest.raises(LocalProtocolError, match="not allowed now"):
        await client.list_tools()
    nursery.cancel_scope.cancel()


@pytest.mark.requirement("LIFE-14")
async def test_a_request_without_the_servers_capability_is_rejected(scripted, nursery):
    channel, server = scripted
    client = Client(channel)
    nursery.start_soon(client.__aenter__)
    await server.answer_initialize(capabilities={"tools": {}})
    for act in (client.list_prompts, lambda: client.subscribe("a:b"), client.notify_roots_changed):
        with pytest.raises(LocalProtocolError, match="not announced"):
            await act()
    await client.aclose()


@pytest.mark.requirement("LIFE-09", "LIFE-16")
async def test_a_server_with_an_unknown_protocol_version_is_rejected(scripted, nursery):
    channel, server = scripted

    async def play():
        asked = await server.receive()
        info = {"name": "old", "version": "0"}
        result = {"protocolVersion": "1999-01-01", "capabilities": {}, "serverInfo": info}
        await server.send_result(asked, result)
        assert await server.receive_end() == []

    nursery.start_soon(play)
    with pytest.raises(RemoteProtocolError, match="1999-01-01"):
        async with Client(channel, protocol_versions=OLD):
            raise AssertionError


async def test_a_rejected_handshake_is_the_servers_error(scripted, nursery):
    channel, server = scripted

    async def play():
        request = await server.receive()
        await server.send({"id": request["id"], "error": {"code": -32603, "message": "no room"}})

    nursery.start_soon(play)
    with pytest.raises(RequestError, match="no room"):
        await Client(channel, protocol_versions=OLD).__aenter__()


@pytest.mark.requirement("LIFE-16", "LIFE-17", "TIME-01", "CANC-03", "TRAP-21")
async def test_l12_connecting_to_a_silent_server_times_out(scripted, autojump_clock):
    """L12: no connect timeout of its own; the caller's limit was overrun."""
    channel, server = scripted
    before = trio.current_time()
    limits = Limits(requests=RequestLimits(initialize_seconds=7))
    with pytest.raises(RequestTimeout) as caught:
        await Client(channel, protocol_versions=OLD, limits=limits).__aenter__()
    assert caught.value.method == "initialize"
    assert trio.current_time() - before == pytest.approx(7, abs=0.1)
    assert [message["method"] for message in await server.receive_end()] == ["initialize"]


@pytest.mark.requirement("CANC-03")
async def test_a_cancelled_handshake_ends_the_session_at_once(scripted, autojump_clock):
    channel, server = scripted
    tasks = running_tasks()
    with trio.move_on_after(3) as scope:
        await Client(channel, protocol_versions=OLD).__aenter__()
    assert scope.cancelled_caught
    assert trio.current_time() == pytest.approx(3, abs=0.1)
    assert [message["method"] for message in await server.receive_end()] == ["initialize"]
    await trio.testing.wait_all_tasks_blocked()
    assert running_tasks() == tasks


async def test_a_client_that_is_closed_while_it_connects_gives_up(scripted, nursery):
    channel, server = scripted
    client = Client(channel)

    async def close():
        await server.receive()
        await client.aclose()

    nursery.start_soon(close)
    with pytest.raises(ConnectionLost, match="closed on this side"):
        await client.__aenter__()


async def test_a_client_that_was_closed_before_does_not_connect(bench):
    client = Client(bench)
    await client.aclose()
    with pytest.raises(ConnectionLost, match="closed on this side"):
        await client.__aenter__()


async def test_a_client_connects_once(bench):
    client = Client(bench)
    async with client:
        with pytest.raises(RuntimeError, match="connects once"):
            await client.__aenter__()
        assert client.is_open


async def test_an_exception_of_a_server_object_is_the_reason_of_the_loss(caplog):
    class Broken:
        async def serve(self, _channel):
            async with trio.open_nursery():
                raise ValueError("no database")

    with pytest.raises(ConnectionLost, match="no database"):
        await Client(Broken()).__aenter__()
    assert "the server object failed" in caplog.text


async def test_an_exception_of_a_server_object_counts_even_if_it_closes_its_channel_first(caplog):
    @contextlib.asynccontextmanager
    async def lifespan(server):
        raise ValueError("no database")
        yield

    with pytest.raises(ConnectionLost, match=r"object failed: .*no database") as caught:
        await Client(Server("harbour", lifespan=lifespan)).__aenter__()
    assert isinstance(caught.value.__cause__, ValueError)


async def test_a_server_object_that_returns_has_closed_the_session():
    class Bored:
        async def serve(self, channel):
            await channel.receive()

    with pytest.raises(ConnectionLost, match="peer closed"):
        await Client(Bored()).__aenter__()


async def test_a_server_object_that_does_not_stop_is_cancelled(bench, autojump_clock):
    class Stubborn(Bench):
        async def serve(self, channel):
            await super().serve(channel)
            await trio.sleep_forever()

    tasks = running_tasks()
    async with Client(Stubborn()):
        pass
    assert running_tasks() == tasks


async def test_handlers_of_a_server_object_run_in_the_callers_context(bench):
    from contextvars import ContextVar

    mood = ContextVar("mood")

    @bench.tool
    async def ask(handling):
        return text(mood.get())

    mood.set("cheerful")
    async with Client(bench) as client:
        assert said(await client.call_tool("ask")) == "cheerful"


@pytest.mark.parametrize("target", ["python server.py", "server.py", "ftp://example.org", ""])
async def test_an_invalid_url_is_rejected(target):
    with pytest.raises(ValueError, match="begins with http:// or https://"):
        await Client(target).__aenter__()


@pytest.mark.parametrize(
    "options",
    [
        {"headers": {}},
        {"http": httpx2.AsyncClient()},
        {"token": "x"},
        {"ssl_context": ssl.create_default_context()},
    ],
    ids=["headers", "http", "token", "ssl_context"],
)
async def test_web_options_for_other_targets_are_rejected(bench, program, options):
    for target in (bench, memory_pair()[0], program):
        with pytest.raises(TypeError, match="for URLs only"):
            await Client(target, **options).__aenter__()


@pytest.mark.parametrize("target", [b"x", 7, object()])
async def test_an_unknown_kind_of_target_is_rejected(target):
    with pytest.raises(TypeError, match="a client connects to"):
        await Client(target).__aenter__()


@pytest.mark.parametrize(
    "options", [{"env": {}}, {"inherit_env": True}, {"cwd": "."}, {"stderr": "inherit"}]
)
async def test_process_options_for_other_targets_are_rejected(bench, options):
    for target in (bench, memory_pair()[0]):
        with pytest.raises(TypeError, match="for commands only"):
            await Client(target, **options).__aenter__()


def test_client_options_lists_all_options_of_client():
    modules = {"httpx": httpx, "httpx2": httpx2, "ssl": ssl}
    types = typing.get_type_hints(Client, localns=modules)
    fields = {field.name: types[field.name] for field in attrs.fields(Client) if field.init}
    assert fields.pop("target")
    assert fields == typing.get_type_hints(ClientOptions, localns=modules)


# In the caller's nursery


async def test_a_client_in_the_callers_nursery_lives_until_it_is_closed(bench):
    async with trio.open_nursery() as nursery:
        client = await connect_client(bench, nursery, name="me")
        assert len(nursery.child_tasks) == 1
        assert said(await client.call_tool("hello")) == "hello"
        await client.aclose()
    assert not client.is_open


async def test_the_end_of_the_nursery_ends_its_client(bench):
    async with trio.open_nursery() as nursery:
        client = await connect_client(bench, nursery)
        nursery.cancel_scope.cancel()
    assert not client.is_open
    with pytest.raises(ConnectionLost):
        await client.ping()


async def test_a_lost_server_does_not_end_the_nursery(bench):
    async with trio.open_nursery() as nursery:
        client = await connect_client(bench, nursery)
        bench.sessions[0].shut("closed")
        with pytest.raises(ConnectionLost):
            await client.call_tool("forever")
        await trio.lowlevel.checkpoint()
        assert not nursery.cancel_scope.cancel_called


async def test_a_cancelled_nursery_gets_no_session(bench):
    async with trio.open_nursery() as nursery:
        nursery.cancel_scope.cancel()
        with trio.fail_after(5, shield=True), pytest.raises(ConnectionLost):
            await connect_client(bench, nursery)


@pytest.mark.real_time
async def test_a_closed_nursery_gets_no_session(program):
    descriptors, tasks = open_descriptors(), running_tasks()
    async with trio.open_nursery() as nursery:
        pass
    with pytest.raises(RuntimeError, match="closed to new arrivals"):
        await connect_client(program, nursery)
    with trio.fail_after(5):
        while running_tasks() > tasks:
            await trio.sleep(0.01)
    assert open_descriptors() == descriptors


async def test_the_repr_of_a_client_holds_no_secrets(bench, program):
    client = Client(bench, name="me")
    assert repr(client) == "<Client 'me' of '', not connected>"
    async with client:
        assert repr(client) == "<Client 'me' of 'bench', open>"
    assert repr(client) == "<Client 'me' of 'bench', closed>"
    dead = Client(["no-such-program-anywhere"], name="me")
    with pytest.raises(ConnectionLost):
        await dead.__aenter__()
    assert repr(dead) == "<Client 'me' of '', not connected>"
    assert "hunter2" not in repr(Client(program, env={"TOKEN": "hunter2"}))


# Recording


@pytest.mark.requirement("TOOL-40")
async def test_a_session_is_recorded_by_one_argument(bench, tmp_path):
    path = tmp_path / "session.mcprec.jsonl"
    async with Client(bench, record=path, name="me") as client:
        await client.call_tool("hello")
    records = list(read_recording(path.read_bytes().splitlines(keepends=True)))
    assert [record.kind for record in records][:3] == ["open", "out", "in"]
    assert records[-1].kind == "end"


async def test_a_recording_that_cannot_be_created_leaves_no_session(program, tmp_path):
    descriptors = open_descriptors()
    with pytest.raises(RecordingError, match="cannot record"):
        await Client(program, record=tmp_path / "no" / "folder.jsonl").__aenter__()
    assert open_descriptors() == descriptors
