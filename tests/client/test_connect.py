"""Connecting a client: targets, the handshake, and failed attempts."""

import asyncio
import contextlib
import json
import signal
import ssl
import sys
import typing
from functools import partial
from pathlib import Path

import attrs
import httpx
import httpx2
import pytest
import trio
import trio.testing

from mcp_trio import (
    Client,
    ClientGroup,
    ConnectionLost,
    Context,
    Limits,
    RequestError,
    RequestTimeout,
    Server,
    connect_client,
)
from mcp_trio import types as t
from mcp_trio._auth.http_auth import ClientAuth
from mcp_trio._client.client import ClientOptions
from mcp_trio._protocol.versions import ALL_PROTOCOL_VERSIONS
from mcp_trio._session.observing import Observers
from mcp_trio.errors import LocalProtocolError, OutcomeUnknown, RecordingError, RemoteProtocolError
from mcp_trio.limits import RequestLimits
from mcp_trio.observers import Observer
from mcp_trio.recording import read_recording
from mcp_trio.testing import WirePeer
from mcp_trio.transports import memory_pair
from tests.client.conftest import (
    EVERYTHING,
    OLD,
    Bench,
    call_that_is_lost,
    connected,
    running_tasks,
    text,
    text_of_result,
)
from tests.client.stateless import LEGACY, STATELESS
from tests.processes import open_descriptors
from tests.story import Story
from tests.transports.http.scripted_server import (
    EVENTS,
    URL,
    Forgetful,
    Legacy,
    Reply,
    Script,
    event,
    streaming,
    succeed,
)
from tests.ways import CONNECTIONS, serving


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
        assert text_of_result(await client.call_tool("hello")) == "hello"
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
        assert text_of_result(await client.call_tool("ask")) == "cheerful"


@pytest.mark.parametrize(
    "name",
    [
        "trace",
        "state_changed",
        "progress",
        "log",
        "resource_updated",
        "list_changed",
        "sampling",
        "elicitation",
        "elicitation_complete",
    ],
)
def test_a_callback_that_is_no_function_is_rejected_where_it_is_given(name):
    with pytest.raises(TypeError, match=f"^{name}= takes a function, not 'x'$"):
        Client(["server"], **{name: "x"})


async def test_an_unknown_log_level_is_rejected_where_it_is_given(server):
    text = "the log level must be one of debug, .*, emergency, not 'WARN'"
    with pytest.raises(ValueError, match=text):
        Client(["server"], log_level="WARN")
    async with Client(server) as client:
        with pytest.raises(ValueError, match=text):
            await client.set_log_level("WARN")
        await client.list_tools()


@pytest.mark.parametrize("target", ["python server", "server.rb", "ftp://example.org", ""])
async def test_an_invalid_url_is_rejected(target):
    with pytest.raises(ValueError, match="has to begin with http:// or https://"):
        await Client(target).__aenter__()


@pytest.mark.parametrize("host", ["mcp..test", "m" * 64, f"mcp.{'t' * 64}.test"])
async def test_the_url_of_a_host_that_no_server_can_have_is_rejected(host):
    with pytest.raises(ValueError, match="the host in the URL of a server has an empty label"):
        await Client(f"http://{host}/mcp").__aenter__()


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
    modules = {"httpx": httpx, "httpx2": httpx2, "ssl": ssl, "ClientAuth": ClientAuth}
    modules |= {"Observer": Observer, "Observers": Observers}
    types = typing.get_type_hints(Client, localns=modules)
    fields = {field.name: types[field.name] for field in attrs.fields(Client) if field.init}
    assert fields.pop("target")
    assert fields == typing.get_type_hints(ClientOptions, localns=modules)


# In the caller's nursery


async def test_a_client_in_the_callers_nursery_lives_until_it_is_closed(bench):
    async with trio.open_nursery() as nursery:
        client = await connect_client(bench, nursery, name="me")
        assert len(nursery.child_tasks) == 1
        assert text_of_result(await client.call_tool("hello")) == "hello"
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


# The end of a session: closing from any task, errors, and their effect on the block.


LOG = t.LoggingMessageParams(level="info", data="x")
EXTREME = [
    KeyError("mine"),
    KeyboardInterrupt(),
    SystemExit(3),
    ExceptionGroup("own", [ValueError()]),
]


@pytest.mark.parametrize("error", EXTREME, ids=repr)
async def test_l02_an_exception_of_the_block_is_raised_without_a_group(bench, error):
    """L2: a KeyError arrived as a group in a group."""
    with pytest.raises(type(error)) as caught:
        async with Client(bench):
            raise error
    assert caught.value is error


async def test_an_exception_of_the_block_is_not_masked_by_a_cancellation(bench):
    with trio.CancelScope() as scope, pytest.raises(KeyError):  # noqa: PT012  (the block is the point)
        async with Client(bench):
            scope.cancel()
            raise KeyError


async def test_closing_is_not_cut_short_by_a_cancellation(bench):
    tasks = running_tasks()
    with trio.move_on_after(0):
        async with contextlib.AsyncExitStack() as stack:
            with trio.CancelScope(shield=True):
                client = await stack.enter_async_context(Client(bench))
            await trio.sleep_forever()
    assert not client.is_open
    assert running_tasks() == tasks


@pytest.mark.requirement("LIFE-20")
async def test_closing_sends_nothing_and_closes_the_channel(scripted, nursery):
    client, server = await connected(scripted, nursery)
    await client.aclose()
    assert await server.receive_end() == []


async def test_l13_closing_works_from_another_task_and_twice(bench):
    """L13: "attempted to exit cancel scope in a different task"."""
    client = await Client(bench).__aenter__()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.aclose)
        nursery.start_soon(client.aclose)
    await client.aclose()
    assert not client.is_open


async def test_l13_clients_may_be_closed_in_the_order_in_which_they_were_opened():
    first, second = [await Client(Bench()).__aenter__() for _ in range(2)]
    await first.aclose()
    await second.ping()
    await second.aclose()


async def test_l13_a_stack_may_be_opened_in_one_task_and_closed_in_another(bench):
    stack = contextlib.AsyncExitStack()

    async def enter(task_status):
        task_status.started(await stack.enter_async_context(Client(bench)))

    async with trio.open_nursery() as nursery:
        client = await nursery.start(enter)
    assert text_of_result(await client.call_tool("hello")) == "hello"
    await stack.aclose()
    assert not client.is_open


async def test_calls_in_flight_end_when_the_client_is_closed(bench, autojump_clock):
    async with Client(bench) as client:
        async with call_that_is_lost(client.call_tool, "forever", match="closed on this side"):
            await client.aclose()
        with pytest.raises(ConnectionLost, match="closed on this side"):
            await client.ping()


async def test_l01_a_lost_server_fails_the_calls_in_flight_and_nothing_else(bench):
    """L1: the whole block was cancelled, and the error shown only outside, in a group."""
    async with Client(bench) as client:
        async with call_that_is_lost(client.call_tool, "forever", match="the peer closed"):
            bench.sessions[0].shut("closed")
        assert not client.is_open
        with pytest.raises(ConnectionLost):
            await client.list_tools()
        await trio.lowlevel.checkpoint()


async def test_no_task_is_left_after_many_sessions(bench):
    tasks, descriptors = running_tasks(), open_descriptors()
    for _ in range(20):
        async with Client(bench) as client:
            await client.call_tool("hello")
    assert running_tasks() == tasks
    assert open_descriptors() == descriptors


def test_an_unclosed_client_ends_with_the_trio_run(bench):
    async def main():
        return await Client(bench).__aenter__()

    assert not trio.run(main).is_open


async def test_a_callback_that_is_shielded_does_not_keep_the_client_from_closing(
    bench, autojump_clock, caplog
):
    release = trio.Event()

    async def log(params):
        with trio.CancelScope(shield=True):
            await release.wait()

    @bench.tool
    async def speak(handling):
        await handling.notify("notifications/message", LOG)
        return text("spoken")

    async with Client(bench, log=log) as client:
        await client.call_tool("speak")
    assert "has not ended within" in caplog.text
    release.set()
    await trio.testing.wait_all_tasks_blocked()


async def test_messages_received_before_closing_are_processed(bench, autojump_clock):
    received = []

    async def log(params):
        await trio.sleep(0.1)
        received.append(params.data)

    @bench.tool
    async def speak(handling):
        for number in range(5):
            await handling.notify("notifications/message", {"level": "info", "data": number})
        return text("spoken")

    async with Client(bench, log=log) as client:
        await client.call_tool("speak")
    assert received == [0, 1, 2, 3, 4]


class Faulty:
    """A channel that fails in a way that no channel may."""

    def __init__(self, channel, error):
        self.channel, self.error = channel, error
        self.fails = trio.Event()

    async def send(self, messages):
        await self.channel.send(messages)

    async def receive(self):
        async with trio.open_nursery() as nursery:

            async def fail():
                await self.fails.wait()
                raise self.error

            nursery.start_soon(fail)
            messages = await self.channel.receive()
            nursery.cancel_scope.cancel()
        return messages

    async def aclose(self):
        await self.channel.aclose()


async def test_an_unexpected_exception_of_a_channel_loses_the_session(
    bench, nursery, autojump_clock, caplog
):
    ours, theirs = memory_pair()
    channel = Faulty(ours, RuntimeError("broken transport"))
    nursery.start_soon(bench.serve, theirs)
    async with Client(channel) as client:
        channel.fails.set()
        with pytest.raises(ConnectionLost):
            await client.call_tool("forever")
    assert "broken transport" in caplog.text


async def test_a_system_exit_inside_the_session_loses_the_session(bench, caplog):
    @bench.tool
    async def leave(handling):
        sys.exit(3)

    async with Client(bench) as client:
        with pytest.raises(ConnectionLost):
            await client.call_tool("leave")
    assert "the session failed" in caplog.text


def test_an_interrupt_inside_the_session_reaches_the_main_task(bench):
    @bench.tool
    async def interrupt(handling):
        signal.raise_signal(signal.SIGINT)

    async def main():
        async with Client(bench) as client:
            with contextlib.suppress(ConnectionLost):
                await client.call_tool("interrupt")
            await trio.sleep_forever()

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)


async def test_l13_a_callback_may_close_its_own_client(bench, autojump_clock, caplog):
    """L13: closing from a task of the session waited for that task."""

    async def log(params):
        await client.aclose()

    @bench.tool
    async def speak(handling):
        await handling.notify("notifications/message", LOG)
        await trio.sleep_forever()

    async with Client(bench, log=log) as client:
        with pytest.raises(ConnectionLost, match="closed on this side"):
            await client.call_tool("speak")
    assert "has not ended within" not in caplog.text


async def test_a_handler_may_close_the_client_of_its_own_server_object(
    bench, autojump_clock, caplog
):
    @bench.tool
    async def hang_up(handling):
        await client.aclose()
        return text("too late")

    async with Client(bench) as client:
        with pytest.raises(ConnectionLost, match="closed on this side"):
            await client.call_tool("hang_up")
    assert "has not ended within" not in caplog.text


# The state of a client's connection, read or reported to a callback.


LEGACY_CONNECTION_STATE = ["2025-11-25"]


@contextlib.asynccontextmanager
async def asked(answer, **options):
    """A client of a scripted server, not yet connected, and the states that it reported."""
    states = []
    async with httpx2.AsyncClient(transport=Script(answer)) as http:
        note = lambda *news: states.append(news)  # noqa: E731
        yield (
            Client(
                URL,
                http=http,
                protocol_versions=LEGACY_CONNECTION_STATE,
                state_changed=note,
                **options,
            ),
            states,
        )


def stands(client):
    return client.state, client.state_reason


async def test_the_state_with_a_server_object_is_the_one_last_reported():
    states = []
    client = Client(Server("harbour"), state_changed=lambda *news: states.append(news))
    assert stands(client) == ("connecting", "")
    async with client:
        assert stands(client) == states[-1] == ("open", "")
    assert stands(client) == states[-1] == ("closed", "closed on this side")


async def test_the_state_can_be_read_without_a_callback():
    async with Client(Server("harbour")) as client:
        assert client.state == "open"
        client._session.shut("lost", ConnectionLost("cut"))
        assert stands(client) == ("closed", "cut")


@pytest.mark.parametrize("restart", [False, True])
async def test_a_loss_is_reported_before_the_call_fails(restart, nursery, autojump_clock):
    states = []
    server = Server("harbour")
    called = trio.Event()

    @server.tool
    async def leave() -> str:
        called.set()
        await trio.sleep_forever()

    async def sink():
        await called.wait()
        client._session.shut("lost", ConnectionLost("sunk"))

    client = Client(server, restart=restart, state_changed=lambda *news: states.append(news))
    async with client:
        nursery.start_soon(sink)
        with pytest.raises(ConnectionLost, match="sunk"):
            await client.call_tool("leave")
        assert stands(client) == states[-1] == ("retrying" if restart else "closed", "sunk")


async def test_the_state_with_a_url_is_the_one_last_reported_in_each_session():
    server = Forgetful(answers={"tools/call": succeed})
    async with asked(server) as (client, states), client:
        assert stands(client) == ("open", "")
        server.forget()
        await client.call_tool("add")
        assert stands(client) == states[-1] == ("open", "")
        assert ("closed", "the server has ended the session") in states
    assert stands(client) == states[-1] == ("closed", "closed on this side")


async def test_an_unreachable_server_has_the_state_retrying():
    server, is_away = Legacy(answers={"tools/call": succeed}), False

    async def answer(seen):
        if is_away:
            raise httpx2.ConnectError("rejected")
        return await server(seen)

    async with asked(answer) as (client, states), client:
        is_away = True
        with pytest.raises(ConnectionLost, match="rejected"):
            await client.call_tool("add")
        assert stands(client) == states[-1]
        assert client.state == "retrying"
        assert "rejected" in client.state_reason
        is_away = False
        await client.call_tool("add")
        assert stands(client) == ("open", "")


@pytest.mark.parametrize("url", [URL, "http://user:secret@mcp.test/mcp?token=secret"])
async def test_the_timeout_error_names_the_server_without_secrets(autojump_clock, url):
    async def answer(_seen):
        await trio.sleep_forever()

    async with httpx2.AsyncClient(transport=Script(answer)) as http:
        client = Client(url, http=http, protocol_versions=LEGACY_CONNECTION_STATE)
        with pytest.raises(RequestTimeout) as caught:
            await client.__aenter__()
    assert caught.value.server.endswith("mcp.test/mcp")
    assert f"no response from {caught.value.server} within" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert stands(client) == ("closed", str(caught.value))


async def test_a_client_that_could_not_connect_has_a_state_reason():
    client = Client("http://")
    with pytest.raises(ValueError, match="has to begin with http://") as caught:
        await client.__aenter__()
    assert stands(client) == ("closed", str(caught.value))


# Error texts for targets that are invalid or cannot be reached.


@pytest.mark.parametrize("url", ["ws://127.0.0.1:1/ws", "tcp://127.0.0.1:1", "http://127.0.0.1:1/"])
async def test_the_error_explains_why_a_target_cannot_be_reached(url):
    with pytest.raises(ConnectionLost, match="refused"):
        async with Client(url):
            pass


@pytest.mark.parametrize("target", ["python server", "localhost:8000"])
async def test_the_error_for_an_invalid_string_names_the_accepted_targets(target):
    with pytest.raises(ValueError, match=r"ws://.*unix:.*tcp://.*a command is a list"):
        async with Client(target):
            pass


def test_a_client_outside_of_trio_names_what_to_write():
    async def main():
        async with Client(Server("here")):
            pass

    with pytest.raises(RuntimeError, match=r"write trio.run\(main\) in place of asyncio"):
        asyncio.run(main())


@pytest.mark.parametrize("as_path", [str, Path])
async def test_a_script_is_run_by_this_interpreter(tmp_path, as_path):
    script = tmp_path / "server.py"
    script.write_text(
        "from mcp_trio import Server\n"
        "server = Server('scripted')\n"
        "if __name__ == '__main__':\n"
        "    server.run()\n"
    )
    async with Client(as_path(script)) as client:
        assert client.server_info.name == "scripted"


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("python server.py", "there is no script 'python server.py'; a command is a list"),
        (Path("server.py"), "there is no script 'server.py'"),
        (Path(__file__).with_name("__init__.py").parent / "missing.js", "there is no script"),
    ],
)
def test_a_script_that_is_missing_is_rejected_at_once(target, text):
    with pytest.raises(ValueError, match=text):
        Client(target)


async def test_a_group_with_restart_may_have_a_server_at_a_url():
    group = ClientGroup({"web": "http://127.0.0.1:1/", "here": Server("here")}, restart=True)
    with pytest.raises(ConnectionLost, match="cannot connect"):
        await group.__aenter__()


# Clients whose session expired at the server and is opened anew.


PROTOCOL_VERSIONS = ("2025-11-25",)


endless = streaming(event(text="", event_id="a-1"), ends=False)


@contextlib.asynccontextmanager
async def served(record=None, **options):
    """A server whose tool `add` answers, a client of it, and the requests that came."""
    server = Forgetful(**{"answers": {"tools/call": succeed}, **options})
    script = Script(server)
    async with (
        httpx2.AsyncClient(transport=script) as http,
        Client(
            URL, http=http, protocol_versions=PROTOCOL_VERSIONS, roots=[], record=record
        ) as client,
    ):
        await trio.testing.wait_all_tasks_blocked()  # it has sent `initialized`, and listens
        yield server, client, script


def sessions_of(script, method):
    return [seen.headers["mcp-session-id"] for seen in script.of(method)]


@pytest.mark.requirement("HTTP-51", "HTTP-52", "TRAP-34")
async def test_a_call_rejected_with_an_expired_session_is_repeated_in_a_new_one():
    async with served() as (server, client, script):
        server.forget()
        assert (await client.call_tool("add")).content == []
    assert sessions_of(script, "tools/call") == ["s-1", "s-2"]
    begun = script.of("initialize")
    assert ["mcp-session-id" in seen.headers for seen in begun] == [False, False]


@pytest.mark.parametrize("status", [400, 403, 413, 429])
async def test_a_call_rejected_for_another_reason_is_not_repeated(status):
    async def reject(_seen):
        return Reply(status)

    async with served(answers={"tools/call": reject}) as (_, client, script):
        with pytest.raises(ConnectionLost, match=f"HTTP {status}") as lost:
            await client.call_tool("add")
        assert client.is_open
    assert lost.value.http_status == status
    assert len(script.of("tools/call")) == 1


@pytest.mark.requirement("HTTP-52")
async def test_all_calls_in_flight_are_repeated_in_the_new_session(autojump_clock):
    async with served() as (server, client, script):

        async def late(seen):
            await trio.sleep(len(script.seen) / 10)  # the rejections come one after the other
            return await server(seen)

        script.answer = late
        server.forget()
        async with trio.open_nursery() as calls:
            for _ in range(5):
                calls.start_soon(client.call_tool, "add")
    assert sorted(sessions_of(script, "tools/call")) == ["s-1"] * 5 + ["s-2"] * 5
    assert script.methods.count("initialize") == 2


async def test_an_unanswered_call_is_lost_with_its_session(autojump_clock):
    async def never(seen):
        if seen.message["params"]["name"] == "never":
            await trio.sleep_forever()
        return await succeed(seen)

    async with served(answers={"tools/call": never}) as (server, client, _):

        async def lost():
            with pytest.raises(OutcomeUnknown, match="ended the session"):
                await client.call_tool("never")

        async with trio.open_nursery() as calls:
            calls.start_soon(lost)
            await trio.testing.wait_all_tasks_blocked()
            server.forget()
            since = trio.current_time()
            await client.call_tool("add")
            assert trio.current_time() - since == pytest.approx(2, abs=0.5)


@pytest.mark.requirement("HTTP-52", "TRAP-34")
async def test_a_call_whose_answer_had_begun_is_lost_with_its_session():
    async with served() as (server, client, _):
        server.answers["tools/call"] = endless

        async def lost():
            with pytest.raises(OutcomeUnknown, match="ended the session"):
                await client.call_tool("add")

        async with trio.open_nursery() as calls:
            calls.start_soon(lost)
            await trio.testing.wait_all_tasks_blocked()
            server.forget()
            server.answers["tools/call"] = succeed
            await client.call_tool("add")


async def test_a_rejected_notification_opens_a_new_session_for_the_next_call():
    async with served() as (server, client, script):
        server.forget()
        await client.notify_roots_changed()
        await trio.testing.wait_all_tasks_blocked()
        assert not client.is_open
        await client.call_tool("add")
        assert client.is_open
    assert sessions_of(script, "tools/call") == ["s-2"]


async def test_the_servers_own_stream_may_report_the_expiry_first(autojump_clock):
    cut = trio.Event()

    async def listen(seen):
        async def body():
            yield event(text="", event_id="g-1")
            await cut.wait()

        return Reply(200, EVENTS, body())

    async with served(listen=listen) as (server, client, script):
        server.forget()
        cut.set()
        await trio.sleep(5)
        assert not client.is_open
        await client.call_tool("add")
        await trio.sleep(0.1)
    assert sessions_of(script, "tools/call") == ["s-2"]
    assert sessions_of(script, "GET")[:3] == ["s-1", "s-1", "s-2"]


async def test_a_resumed_stream_may_report_the_expiry_and_its_call_is_lost(autojump_clock):
    cut = streaming(event(text="", event_id="a-1"))

    async with served() as (server, client, script):
        server.answers["tools/call"] = cut

        async def lost():
            with pytest.raises(OutcomeUnknown, match="ended the session"):
                await client.call_tool("add")

        async with trio.open_nursery() as calls:
            calls.start_soon(lost)
            await trio.testing.wait_all_tasks_blocked()
            server.forget()
        server.answers["tools/call"] = succeed
        await client.call_tool("add")
    assert sessions_of(script, "tools/call") == ["s-1", "s-2"]


async def test_a_new_session_has_the_subscriptions_of_the_first(autojump_clock):
    async def never(_seen):
        await trio.sleep_forever()

    async with served(listen=never) as (server, client, _):
        await trio.sleep(10)
        server.forget()
        since = trio.current_time()
        await client.call_tool("add")
        assert trio.current_time() - since == pytest.approx(
            1, abs=0.1
        )  # limits.http.get_stream_seconds


async def test_one_recording_file_holds_each_session_as_a_channel(tmp_path):
    file = tmp_path / "story.mcprec.jsonl"
    async with served(record=file) as (server, client, _script):
        await client.call_tool("add")
        server.forget()
        await client.call_tool("add")
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert records[-1]["k"] == "end"
    called = [record["c"] for record in records if "tools/call" in json.dumps(record)]
    assert called == [1, 1, 2]  # that of the second session was asked in the first, too


async def test_the_states_of_each_session_are_reported_from_its_beginning():
    states = []
    server = Forgetful(answers={"tools/call": succeed})
    async with (
        httpx2.AsyncClient(transport=Script(server)) as http,
        Client(
            URL,
            http=http,
            protocol_versions=PROTOCOL_VERSIONS,
            state_changed=lambda *news: states.append(news),
        ) as client,
    ):
        server.forget()
        await client.call_tool("add")
    over = ("closed", "the server has ended the session")
    begun = [("connecting", ""), ("open", "")]
    assert states == [*begun, over, *begun, ("closed", "closed on this side")]


async def test_a_server_that_expires_every_session_is_not_retried_forever():
    async with served() as (server, client, script):

        async def forgetting(seen):
            reply = await server(seen)
            if seen.method == "POST" and seen.message.get("method") == "notifications/initialized":
                server.forget()
            return reply

        script.answer = forgetting
        server.forget()
        with pytest.raises(ConnectionLost, match="ended the session"):
            await client.call_tool("add")
    assert len(script.of("tools/call")) == 2


async def test_a_cancelled_reconnect_leaves_a_complete_recording(tmp_path, autojump_clock):
    async def never(_seen):
        await trio.sleep_forever()

    file = tmp_path / "story.mcprec.jsonl"
    async with httpx2.AsyncClient(transport=Script(never)) as http:
        client = Client(URL, http=http, protocol_versions=PROTOCOL_VERSIONS, record=file)
        with trio.move_on_after(3):
            await client.__aenter__()
        await client.aclose()
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert records[-1]["k"] == "end"


# Clients of connections that break and are opened again.


SECONDS = 10.0
REJECTED = "HTTP 401"


@attrs.define(eq=False)
class Ferry:
    """A server whose connections a test cuts; `calls` holds what its tool was called with."""

    way: str
    folder: Path
    options: dict = attrs.field(factory=dict)
    calls: Story = attrs.field(factory=Story)
    url: str = ""
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    over: trio.Event = attrs.field(factory=trio.Event)

    async def serve(self, task_status=trio.TASK_STATUS_IGNORED):
        self.over = trio.Event()
        try:
            await self._serve(task_status)
        finally:
            self.over.set()

    async def _serve(self, task_status):
        server = Server("ferry")

        @server.tool
        async def cross(to: str, *, ctx: Context) -> str:
            self.calls.append(to)
            if to == "nowhere":
                await ctx.sleep(1000)
            return to

        port = int(self.url.rpartition(":")[2].partition("/")[0] or 0)
        serve = serving(server, self.way, self.folder, port=port, **self.options)
        with trio.CancelScope() as self.scope:
            async with trio.open_nursery() as nursery:
                self.url = await nursery.start(serve)
                task_status.started()

    async def sink(self, nursery):
        """Stop it, and have another one at the same place."""
        self.scope.cancel()
        with trio.fail_after(SECONDS):
            await self.over.wait()
            await nursery.start(self.serve)


@contextlib.asynccontextmanager
async def ferry_of(way, tmp_path, **options):
    async with trio.open_nursery() as nursery:
        ferry = Ferry(way, tmp_path, options)
        await nursery.start(ferry.serve)
        yield ferry, nursery
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("protocol_version", [LEGACY[-1], STATELESS])
@pytest.mark.parametrize("way", CONNECTIONS)
async def test_the_next_call_reconnects_and_the_states_are_reported(
    way, protocol_version, tmp_path
):
    states = []
    async with ferry_of(way, tmp_path) as (ferry, nursery):
        async with Client(
            ferry.url,
            protocol_versions=[protocol_version],
            state_changed=lambda *state: states.append(state),
        ) as client:
            assert text_of_result(await client.call_tool("cross", {"to": "Skye"})) == "Skye"
            first = client._session
            ferry.scope.cancel()
            await first.ended.wait()
            assert not client.is_open
            await ferry.sink(nursery)
            assert text_of_result(await client.call_tool("cross", {"to": "Mull"})) == "Mull"
            assert client._session is not first
            assert client.is_open
        assert ferry.calls == ["Skye", "Mull"]
    assert [state for state, _why in states] == ["connecting", "open", "retrying", "open", "closed"]
    assert states[2][1]


@pytest.mark.parametrize("way", CONNECTIONS)
async def test_a_call_in_flight_has_an_unknown_outcome_and_is_not_repeated(way, tmp_path):
    async with ferry_of(way, tmp_path) as (ferry, nursery), Client(ferry.url) as client:
        outcomes = []

        async def call():
            with pytest.raises(OutcomeUnknown) as caught:
                await client.call_tool("cross", {"to": "nowhere"})
            outcomes.append(caught.value)

        async with trio.open_nursery() as calls:
            calls.start_soon(call)
            with trio.fail_after(SECONDS):
                await ferry.calls.until("nowhere")
            ferry.scope.cancel()
        assert len(outcomes) == 1
        await ferry.sink(nursery)
        assert text_of_result(await client.call_tool("cross", {"to": "Mull"})) == "Mull"
        assert ferry.calls == ["nowhere", "Mull"]


@pytest.mark.parametrize("restart", [False, True])
async def test_a_lost_read_is_repeated_only_with_restart(restart, autojump_clock):
    served = []

    class Lists:
        async def serve(self, channel):
            peer = WirePeer(channel)
            served.append(peer)
            await answer(
                peer,
                "initialize",
                {
                    "protocolVersion": LEGACY[-1],
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "l", "version": "1"},
                },
            )
            await peer.receive()
            request = await peer.receive()
            if len(served) == 1:
                await peer.aclose()
                return
            await peer.send_result(request, {"tools": []})
            await trio.sleep_forever()

    async def answer(peer, method, result):
        request = await peer.receive()
        assert request["method"] == method
        await peer.send_result(request, result)

    async with Client(Lists(), protocol_versions=[LEGACY[-1]], restart=restart) as client:
        if restart:
            assert await client.list_tools() == []
        else:
            with pytest.raises(OutcomeUnknown):
                await client.list_tools()
            with pytest.raises(ConnectionLost) as caught:
                await client.list_tools()
            assert type(caught.value) is ConnectionLost  # nothing was sent


async def test_each_call_tries_an_unreachable_server_again(tmp_path):
    states = []

    def state_changed(state, _why):
        states.append(state)

    async with (
        ferry_of("unix", tmp_path) as (ferry, nursery),
        Client(ferry.url, state_changed=state_changed) as client,
    ):
        ferry.scope.cancel()
        await ferry.over.wait()
        await client._session.ended.wait()
        for _ in range(2):
            with pytest.raises(ConnectionLost, match="cannot connect") as caught:
                await client.call_tool("cross", {"to": "Skye"})
            assert type(caught.value) is ConnectionLost
        await nursery.start(ferry.serve)
        await client.call_tool("cross", {"to": "Skye"})
    assert states == ["connecting", "open", "retrying", "open", "closed"]


async def test_one_recording_file_holds_all_sessions_of_a_client(tmp_path):
    file = tmp_path / "story.mcprec.jsonl"
    async with (
        ferry_of("tcp", tmp_path) as (ferry, nursery),
        Client(ferry.url, record=file) as client,
    ):
        await client.call_tool("cross", {"to": "Skye"})
        await ferry.sink(nursery)
        with trio.fail_after(SECONDS):
            await client._session.ended.wait()
        await client.call_tool("cross", {"to": "Mull"})
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert records[-1]["k"] == "end"
    called = [record.get("c") for record in records if "tools/call" in json.dumps(record)]
    assert called == [1, 2]


async def test_a_token_is_sent_over_websocket(tmp_path):
    async with ferry_of("websocket", tmp_path, token="sesame") as (ferry, _nursery):
        async with Client(ferry.url, token="sesame") as client:
            await client.call_tool("cross", {"to": "Skye"})
        states = []
        with pytest.raises(ConnectionLost, match=REJECTED) as caught:
            await Client(
                ferry.url, token="x", state_changed=lambda *it: states.append(it)
            ).__aenter__()
    assert caught.value.http_status == 401
    assert [state for state, _why in states] == ["connecting", "closed"]
    assert REJECTED in states[1][1]


async def test_a_token_is_sent_over_http():
    async def verify(head):
        return head.header("authorization")

    server = Server("web", auth=verify)

    @server.tool
    async def who(*, ctx: Context) -> str:
        return str(ctx.principal)

    async with trio.open_nursery() as nursery:

        async def serve(task_status=trio.TASK_STATUS_IGNORED):
            await server.serve_http(port=0, task_status=task_status)

        url = await nursery.start(serve)
        async with Client(url, token="sesame") as client:
            assert text_of_result(await client.call_tool("who")) == "Bearer sesame"
        nursery.cancel_scope.cancel()


async def test_a_given_channel_is_not_reconnected():
    states = []
    ours, theirs = memory_pair()

    async def serve():
        await Server("short").serve(theirs)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        async with Client(ours, state_changed=lambda *state: states.append(state)) as client:
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await client._session.ended.wait()
            assert [state for state, _why in states] == ["connecting", "open", "closed"]
    assert states[2] == ("closed", "the peer closed the connection")
