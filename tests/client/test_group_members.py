"""Groups: servers that are added, removed or lost."""

import signal

import attrs
import pytest
import trio
import trio.testing

from mcp_trio import ClientGroup, ConnectionLost, Limits, RequestError
from mcp_trio import types as t
from mcp_trio.errors import LocalProtocolError
from mcp_trio.hosts import ServerConfig
from mcp_trio.limits import ShutdownLimits
from mcp_trio.transports import memory_pair
from tests.client.conftest import (
    OLD,
    QUICK,
    Bench,
    call_that_is_lost,
    is_alive,
    open_descriptors,
    python,
    running_tasks,
    said,
    text,
)

DEAF = "import time; time.sleep(600)"


def talkative(name):
    """A server with a tool that talks about everything, and one that does not answer."""
    bench = Bench(protocol_versions=OLD)

    @bench.tool
    async def talk(handling):
        message = t.LoggingMessageParams(level="info", data=name)
        await handling.notify("notifications/message", message)
        updated = t.ResourceUpdatedParams(uri=f"tide://{name}")
        await handling.notify("notifications/resources/updated", updated)
        await handling.notify("notifications/tools/list_changed")
        await handling.progress(1)
        roots = await handling.ask("roots/list")
        asked = t.CreateMessageParams(messages=[], max_tokens=9)
        sampled = await handling.ask("sampling/createMessage", asked)
        return text(f"{roots.roots[0].uri} {sampled.content.text}")

    @bench.tool
    async def forever(handling):
        await trio.sleep_forever()

    return bench


class Held:
    """A server object that serves when it is released."""

    def __init__(self):
        self.begun, self.release = trio.Event(), trio.Event()

    async def serve(self, channel):
        self.begun.set()
        await self.release.wait()
        await Bench().serve(channel)


@attrs.define(eq=False)
class SlowToClose:
    """A channel that takes a second to close."""

    channel: object
    is_closed: bool = False

    def __getattr__(self, name):
        return getattr(self.channel, name)

    async def aclose(self):
        await trio.sleep(1)
        await self.channel.aclose()
        self.is_closed = True


async def test_servers_are_connected_at_the_same_time_and_closed_with_the_block():
    tasks = running_tasks()
    held = {name: Held() for name in "ab"}
    group = ClientGroup(held)
    assert repr(group) == "<ClientGroup of nothing, not open>"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(group.__aenter__)
        for server in held.values():
            await server.begun.wait()
        assert await group.list_tools() == []
        for server in held.values():
            server.release.set()
    assert repr(group) == "<ClientGroup of a, b, open>"
    assert all(client.is_open for client in group.clients.values())
    assert list(group.clients) == ["a", "b"]
    await group.aclose()
    await group.aclose()
    assert not any(client.is_open for client in group.clients.values())
    assert running_tasks() == tasks


async def test_a_server_that_cannot_be_reached_is_named_and_the_others_are_closed(program):
    tasks, descriptors = running_tasks(), open_descriptors()
    servers = {"good": program, "bad": ["no-such-program-anywhere"], "ours": Bench()}
    with pytest.raises(ConnectionLost, match="not found on PATH") as caught:
        await ClientGroup(servers).__aenter__()
    assert caught.value.__notes__ == ["this was the server 'bad'"]
    assert running_tasks() == tasks
    assert open_descriptors() == descriptors


async def test_an_invalid_target_opens_no_server():
    tasks = running_tasks()
    with pytest.raises(TypeError, match="a client connects to"):
        await ClientGroup({"good": Bench(), "bad": 7}).__aenter__()
    assert running_tasks() == tasks


async def test_an_exception_of_the_block_is_raised_without_a_group():
    with pytest.raises(KeyError) as caught:
        async with ClientGroup({"a": Bench(), "b": Bench()}):
            raise KeyError("mine")
    assert caught.value.args == ("mine",)


@pytest.mark.real_time
async def test_a_callers_timeout_is_kept_while_the_group_connects(program):
    tasks, descriptors = running_tasks(), open_descriptors()
    group = ClientGroup(
        {"deaf": python(DEAF), "good": program},
        limits=Limits(shutdown=ShutdownLimits(close_seconds=1.5)),
    )
    with trio.move_on_after(0.5) as scope:
        await group.__aenter__()
    assert scope.cancelled_caught
    assert trio.current_time() < scope.deadline + 1
    await group.aclose()
    assert running_tasks() == tasks
    assert open_descriptors() == descriptors


@pytest.mark.real_time
async def test_a_group_that_was_cancelled_while_it_opened_is_closed():
    group = ClientGroup({"held": Held()})
    with trio.move_on_after(0.05):
        await group.__aenter__()
    assert repr(group) == "<ClientGroup of held, not open>"
    with pytest.raises(ConnectionLost, match="the group was closed"):
        await group.add("b", Bench())
    await group.aclose()


@pytest.mark.real_time
async def test_closing_waits_for_the_server_of_a_cancelled_addition(program):
    tasks, descriptors = running_tasks(), open_descriptors()
    async with ClientGroup(
        {"good": program}, limits=Limits(shutdown=ShutdownLimits(close_seconds=0.5))
    ) as group:
        with trio.move_on_after(0.3) as scope:
            await group.add("deaf", python(DEAF))
        assert scope.cancelled_caught
        assert list(group.clients) == ["good"]
    assert running_tasks() == tasks
    assert open_descriptors() == descriptors


async def test_closing_waits_for_a_server_that_is_being_removed(autojump_clock):
    channel, theirs = memory_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Bench().serve, theirs)
        slow = SlowToClose(channel)
        async with ClientGroup({"a": slow}) as group:
            nursery.start_soon(group.remove, "a")
            await trio.testing.wait_all_tasks_blocked()
            assert not group.clients
            assert not slow.is_closed
        assert slow.is_closed


class Interrupting:
    """A server object that serves until its channel ends, with Ctrl-C before or after."""

    def __init__(self, when):
        self.when = when

    async def serve(self, channel):
        if self.when == "opening":
            signal.raise_signal(signal.SIGINT)
            await trio.sleep_forever()
        await Bench().serve(channel)
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("when", ["opening", "closing"])
def test_an_interrupt_is_raised_without_a_group(when):
    async def main():
        async with ClientGroup({"a": Bench(), "b": Interrupting(when)}):
            pass

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)


async def test_a_group_opens_once():
    async with ClientGroup({"a": Bench()}) as group:
        with pytest.raises(RuntimeError, match="opens once"):
            await group.__aenter__()
        await group["a"].ping()


async def test_a_killed_server_fails_its_own_calls_and_the_others_go_on(program):
    async with ClientGroup({"a": program, "b": program}) as group:
        pid = int(said(await group.call_tool("a_pid")))
        async with call_that_is_lost(group.call_tool, "a_hang", match="exited with status 3"):
            with pytest.raises(ConnectionLost):
                await group.call_tool("a_die")
        assert not is_alive(pid)
        assert is_alive(int(said(await group.call_tool("b_pid"))))


# Adding and removing


async def test_a_server_is_added_and_removed_while_the_group_is_open():
    async with ClientGroup({"a": Bench()}) as group:
        tasks = running_tasks()
        client = await group.add("b", Bench())
        assert group["b"] is client
        assert list(group.clients) == ["a", "b"]
        await group.remove("b")
        assert not client.is_open
        assert running_tasks() == tasks
        assert list(group.clients) == ["a"]


async def test_calls_in_flight_end_when_their_server_is_removed(autojump_clock):
    async with ClientGroup({"a": Bench(), "b": talkative("b")}) as group:
        async with call_that_is_lost(group.call_tool, "b_forever", match="closed on this side"):
            await group.remove("b")
        with pytest.raises(LookupError):
            await group.remove("b")
        with pytest.raises(LookupError):
            await group.call_tool("b_forever")
        await group["a"].ping()
        await group.add("b", Bench())
        assert list(group.clients) == ["a", "b"]


@pytest.mark.parametrize("name", ["", "a", "a_b"])
async def test_a_server_is_not_added_under_a_name_that_is_taken(name):
    async with ClientGroup({"a": Bench()}) as group:
        with pytest.raises(
            ValueError, match=r"must not be empty|already has a server 'a'|begin alike"
        ):
            await group.add(name, Bench())
        assert list(group.clients) == ["a"]


async def test_a_server_that_cannot_be_added_leaves_the_group_as_it_was():
    async with ClientGroup({"a": Bench()}) as group:
        with pytest.raises(ConnectionLost, match="not found on PATH"):
            await group.add("b", ["no-such-program-anywhere"])
        assert list(group.clients) == ["a"]
        await group["a"].ping()


async def test_a_server_may_be_removed_and_replaced_while_it_is_added():
    held = Held()
    async with ClientGroup({}) as group, trio.open_nursery() as nursery:

        async def add():
            with pytest.raises(ConnectionLost, match="closed on this side"):
                await group.add("b", held)

        nursery.start_soon(add)
        await held.begun.wait()
        nursery.start_soon(group.remove, "b")
        await trio.testing.wait_all_tasks_blocked()
        second = await group.add("b", Bench())
        held.release.set()
    assert group.clients == {"b": second}


CALLS = [
    lambda group: group.add("b", Bench()),
    lambda group: group.list_tools(),
    lambda group: group.call_tool("a_hello"),
    lambda group: group.read_resource("tide://a"),
    lambda group: group.read_resource("tide://a", server="a"),
]


@pytest.mark.parametrize("call", CALLS)
async def test_calls_of_an_unopened_group_are_rejected(call):
    with pytest.raises(LocalProtocolError, match="the group is not open"):
        await call(ClientGroup({"a": Bench()}))


@pytest.mark.parametrize("call", CALLS)
async def test_calls_of_a_group_that_was_closed_are_lost(call):
    async with ClientGroup({"a": Bench()}) as group:
        pass
    with pytest.raises(ConnectionLost, match="closed"):
        await call(group)


async def test_a_group_that_is_closed_while_it_adds_a_server_gives_up():
    held = Held()
    async with ClientGroup({}, limits=QUICK) as group, trio.open_nursery() as nursery:

        async def add():
            with pytest.raises(ConnectionLost, match="closed on this side"):
                await group.add("b", held)

        nursery.start_soon(add)
        await held.begun.wait()
        nursery.start_soon(group.aclose)
        await trio.testing.wait_all_tasks_blocked()
        held.release.set()


# Callbacks


async def test_callbacks_get_the_name_of_the_server():
    heard = []

    def listen(name, value):
        heard.append((name, value))

    async def sample(name, params, report):
        await report(1)
        return t.CreateMessageResult(
            role="assistant", content=t.TextContent(text=f"for {name}"), model="m"
        )

    options = dict.fromkeys(("progress", "log", "resource_updated", "list_changed"), listen)
    async with ClientGroup(
        {name: talkative(name) for name in ("a", "b")},
        sampling=sample,
        roots=lambda name: [f"file:///{name}"],
        **options,
    ) as group:
        assert said(await group.call_tool("a_talk")) == "file:///a for a"
        assert said(await group.call_tool("b_talk")) == "file:///b for b"
        await trio.testing.wait_all_tasks_blocked()
    assert {name for name, _ in heard} == {"a", "b"}
    assert len(heard) == 8
    assert ("b", "tools") in heard
    assert ("a", t.ResourceUpdatedParams(uri="tide://a")) in heard


async def test_a_callback_may_close_the_whole_group(autojump_clock):
    tasks = running_tasks()
    closed = trio.Event()

    async def log(_name, _params):
        try:
            await group.aclose()
        finally:
            closed.set()

    bench = Bench()

    @bench.tool
    async def speak(handling):
        message = t.LoggingMessageParams(level="info", data="x")
        await handling.notify("notifications/message", message)
        await trio.sleep_forever()

    group = ClientGroup({"a": bench, "b": Bench()}, log=log)
    async with group:
        with pytest.raises(ConnectionLost):
            await group.call_tool("a_speak")
        await closed.wait()
    assert running_tasks() == tasks


async def test_lines_of_stderr_carry_the_name_of_their_server(program):
    lines = []

    def listen(name, line):
        lines.append((name, line))

    servers = {
        "a": program,
        "ours": Bench(),
        "b": ServerConfig(command=program[0], args=program[1:]),
    }
    async with ClientGroup(servers, stderr=listen) as group:
        for name in "ab":
            with pytest.raises(ConnectionLost):
                await group.call_tool(f"{name}_die")
    assert sorted(lines) == [
        ("a", "has turned"),
        ("a", "the tide"),
        ("b", "has turned"),
        ("b", "the tide"),
    ]


async def test_a_channel_can_be_a_member_of_a_group(nursery):
    ours, theirs = memory_pair()
    nursery.start_soon(talkative("c").serve, theirs)
    async with ClientGroup({"c": ours}) as group:
        with pytest.raises(RequestError, match="internal error"):
            await group.call_tool("c_talk")


async def test_each_session_is_recorded_in_a_file_of_its_own(tmp_path):
    async with ClientGroup({"a": Bench(), "b": Bench()}, record=tmp_path) as group:
        await group["a"].ping()
    assert len(list(tmp_path.glob("*.mcprec.jsonl"))) == 2
