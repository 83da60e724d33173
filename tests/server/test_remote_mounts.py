"""Remote servers that are mounted into another server."""

import itertools
import json
import os
import sys
from functools import partial
from pathlib import Path

import httpx2
import pytest
import trio
import trio.testing
from memory_sessions import client_session

from mcp_trio import Client, Context, Limits, RequestError, Server, ToolError, UrlElicitation
from mcp_trio.errors import (
    INVALID_PARAMS,
    RESOURCE_NOT_FOUND,
    URL_ELICITATION_REQUIRED,
    ReplayDivergence,
    ResourceNotFound,
    UrlElicitationRequired,
)
from mcp_trio.limits import RequestLimits
from mcp_trio.recording import replay
from mcp_trio.testing import WirePeer
from mcp_trio.transports import memory_pair
from mcp_trio.types import CallToolResult, ResourceLink
from tests.processes import loaded_by
from tests.server.test_mounts import NAMES, TEXTS, connected, hub, weather
from tests.transports.http.scripted_server import EVENTS, URL, Legacy, Reply, Script, result

LEGACY, STATELESS = PROTOCOL_VERSIONS = ["2025-11-25", "2026-07-28"]
ROOT = Path(__file__).parents[2]

both_versions = pytest.mark.parametrize("outer", PROTOCOL_VERSIONS)
all_versions = pytest.mark.parametrize(
    ("outer", "inner"),
    [(outer, inner) for outer in PROTOCOL_VERSIONS for inner in PROTOCOL_VERSIONS],
)

ANSWERS = {
    "elicitation": lambda params: {"value": params.message == "sure?"},
    "roots": ["file:///r"],
    "sampling": lambda params: f"hello {len(params.messages)}",
}


def asking():
    """A server whose tools ask the client."""
    server = Server("asking")

    @server.tool
    async def ask(ctx: Context) -> list[str]:
        answer = await ctx.elicit("sure?", bool)
        roots = await ctx.list_roots()
        message = await ctx.sample("hello")
        return [str(answer.data), roots[0].uri, message.content.text]

    return server


class Flaky:
    """A target whose sessions the test can end, and whose next sessions it can refuse."""

    def __init__(self, server):
        self.server, self.scopes, self.refuses = server, [], False

    async def serve(self, channel):
        if self.refuses:
            return
        with trio.CancelScope() as scope:
            self.scopes.append(scope)
            await self.server.serve(channel)

    def lose(self):
        for scope in self.scopes:
            scope.cancel()


def remote(server, protocol_version, **options):
    """A client of the server, to mount."""
    return Client(server, protocol_versions=[protocol_version], **options)


@all_versions
async def test_a_server_offers_what_a_remote_server_has(outer, inner):
    server = hub((remote(weather(), inner), "w"))
    names, texts, reported = await connected(server, protocol_versions=[outer])
    assert names == NAMES
    measured = {"result": [1.5]} if LEGACY in (outer, inner) else [1.5]
    assert texts == [TEXTS[0], measured, *TEXTS[2:]]
    assert sorted(reported) == ["asked for Oslo", "asking"]


@pytest.mark.slow
@both_versions
async def test_a_mounted_command_is_started_for_a_session_and_ends_with_it(tmp_path, outer):
    script, log = tmp_path / "server.py", tmp_path / "log"
    script.write_text(
        "from pathlib import Path\n"
        "from tests.server.test_mounts import weather\n"
        f"log = Path({str(log)!r})\n"
        "log.write_text('begin')\n"
        "weather().run()\n"
        "log.write_text('end')\n"
    )
    folders = os.pathsep.join([str(ROOT), str(ROOT / "tools")])
    server = hub((Client(script, env={"PYTHONPATH": folders}), "w"))
    async with Client(server) as client:
        assert not log.exists()
        await client.list_tools()
        assert log.read_text() == "begin"
    assert log.read_text() == "end"
    names, texts, _ = await connected(server, protocol_versions=[outer])
    assert (names, texts[0]) == (NAMES, TEXTS[0])


@all_versions
async def test_a_mounted_url_is_reached_over_http_through_http(nursery, outer, inner):
    inner_url = await nursery.start(partial(weather().serve_http, port=0))
    server = hub((Client(inner_url, protocol_versions=[inner]), "w"))
    url = await nursery.start(partial(server.serve_http, port=0))
    names, texts, reported = await connected(url, protocol_versions=[outer])
    assert names == NAMES
    assert [texts[0], *texts[2:]] == [TEXTS[0], *TEXTS[2:]]
    assert sorted(reported) == ["asked for Oslo", "asking"]


@all_versions
async def test_the_client_of_the_session_answers_a_mounted_server(outer, inner):
    server = hub((remote(asking(), inner), "w"))
    async with Client(server, protocol_versions=[outer], **ANSWERS) as client:
        result = await client.call_tool("w_ask")
        assert result.data == ["True", "file:///r", "hello 1"]
    async with Client(server, protocol_versions=[outer]) as client:
        with pytest.raises((ToolError, RequestError), match="announce"):
            await client.call_tool("w_ask")


async def test_callbacks_of_a_mounted_client_answer_in_place_of_the_client_of_the_session():
    logged, changed = [], []
    inner = asking()

    @inner.tool
    async def say(ctx: Context) -> None:
        await ctx.info("said")
        inner.list_changed("tools")

    own = {"roots": ["file:///own"], "log": lambda params: logged.append(("own", params.data))}
    server = hub((remote(inner, LEGACY, list_changed=changed.append, **own), "w"))
    options = ANSWERS | {"log": lambda params: logged.append(("session", params.data))}
    async with Client(server, **options) as client:
        result = await client.call_tool("w_ask")
        await client.call_tool("w_say")
        await trio.testing.wait_all_tasks_blocked()
    assert result.data == ["True", "file:///own", "hello 1"]
    assert logged == [("own", "said"), ("session", "said")]
    assert changed == ["tools"]


@all_versions
async def test_a_cancellation_reaches_the_mounted_server(outer, inner):
    other, has_begun, has_ended = Server("weather"), trio.Event(), trio.Event()

    @other.tool
    async def wait() -> None:
        try:
            has_begun.set()
            await trio.sleep_forever()
        finally:
            has_ended.set()

    server = hub((remote(other, inner), "w"))
    async with Client(server, protocol_versions=[outer]) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "w_wait")
            await has_begun.wait()
            nursery.cancel_scope.cancel()
        with trio.fail_after(5):
            await has_ended.wait()


# Errors.


@all_versions
async def test_errors_of_a_mounted_server_are_forwarded(outer, inner):
    other = weather()

    @other.tool
    async def fail() -> None:
        raise RequestError(-1234, "the pier is closed", {"pier": 4})

    @other.tool
    async def tell() -> None:
        raise ToolError("no boat")

    server = hub((remote(other, inner), "w"))
    async with Client(server, protocol_versions=[outer]) as client:
        with pytest.raises(RequestError) as caught:
            await client.call_tool("w_fail")
        error = caught.value
        assert (error.code, error.message, error.data) == (
            -1234,
            "the pier is closed",
            {"pier": 4},
        )
        with pytest.raises(ToolError, match="no boat"):
            await client.call_tool("w_tell")
        with pytest.raises(RequestError, match="unknown tool: none"):
            await client.call_tool("w_none")
        with pytest.raises(RequestError, match="unknown tool: none"):
            await client.call_tool("none")
        with pytest.raises(RequestError, match="unknown prompt: none"):
            await client.get_prompt("w_none")
        for uri in ("data://w/none", "data://none"):
            with pytest.raises(RequestError, match=f"resource not found: {uri}") as caught:
                await client.read_resource(uri)
            assert caught.value.data == {"uri": uri}


@pytest.mark.parametrize("data", [None, "data://x", {"reason": "moved"}])
@both_versions
async def test_a_missing_resource_is_reported_whatever_the_data_of_the_error_are(outer, data):
    inner = Server("weather")

    @inner.method("resources/read")
    async def read(_params: dict) -> None:
        raise RequestError(RESOURCE_NOT_FOUND, "no such resource", data)

    async with Client(hub((remote(inner, LEGACY), "w")), protocol_versions=[outer]) as client:
        with pytest.raises(ResourceNotFound, match="no such resource"):
            await client.read_resource("data://w/x")


async def test_a_server_that_cannot_be_started_is_named_in_the_error_and_left_out_of_lists(caplog):
    server = hub((["no-such-command", "--secret"], "w"), (weather(), "v"))
    async with Client(server) as client:
        with pytest.raises(ToolError) as caught:
            await client.call_tool("w_forecast")
        assert "the server no-such-command --secret, mounted with the prefix 'w'" in str(
            caught.value
        )
        assert "is connected again in" in str(caught.value)
        with pytest.raises(RequestError, match="'w', is connected again"):
            await client.get_prompt("w_plan", {"city": "Oslo"})
        assert {tool.name for tool in await client.list_tools()} == {"v_forecast", "v_measure"}
    assert "tools/list lacks the entries of the server no-such-command" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["end", "greet"])
async def test_the_stderr_of_a_mounted_command_is_logged_and_not_sent_to_clients(
    tmp_path, caplog, tool
):
    script = tmp_path / "server.py"
    script.write_text(
        "import os, sys\n"
        "from mcp_trio import Server\n"
        "server = Server('other')\n"
        "@server.tool\n"
        "def end():\n"
        "    sys.stderr.write('a secret\\n')\n"
        "    sys.stderr.flush()\n"
        "    os._exit(3)\n"
        "if sys.argv[1] == 'greet':\n"
        "    sys.exit('a secret')\n"
        "server.run()\n"
    )
    async with Client(hub(([sys.executable, str(script), tool], "w"))) as client:
        for _ in range(2):
            with pytest.raises(ToolError, match="exited with status") as caught:
                await client.call_tool(f"w_{tool}")
            assert "secret" not in str(caught.value)
    assert "a secret" in caplog.text


async def test_an_exception_of_a_mounted_client_is_logged_and_not_sent_to_clients(caplog):
    def fail():
        raise ValueError("a secret")

    server = hub((remote(weather(), STATELESS, trace=fail), "w"))
    async with Client(server) as client:
        with pytest.raises(ToolError, match=r"'w', .*: internal error") as caught:
            await client.call_tool("w_forecast", {"city": "Oslo"})
        assert "secret" not in str(caught.value)
    assert "a secret" in caplog.text


@both_versions
async def test_a_malformed_question_of_a_mounted_server_is_answered_by_an_error(outer):
    answers = []

    class Malformed:
        async def serve(self, channel):
            peer = WirePeer(channel)
            await peer.answer_initialize(protocol_version=LEGACY, capabilities={"tools": {}})
            call = await peer.receive()
            schema = {"type": "object", "properties": {"address": {"type": "object"}}}
            question = {"message": "where?", "requestedSchema": schema}
            await peer.send_request("elicitation/create", question, id=1)
            answers.append(await peer.receive())
            await peer.send_result(call, {"content": [{"type": "text", "text": "done"}]})
            await trio.sleep_forever()

    options = {"elicitation": lambda _: {}, "protocol_versions": [outer]}
    async with Client(hub((remote(Malformed(), LEGACY), "w")), **options) as client:
        assert (await client.call_tool("w_ask")).content[0].text == "done"
    (answer,) = answers
    assert answer["error"]["code"] == INVALID_PARAMS
    assert "address: the type of a field must be" in answer["error"]["message"]


@all_versions
async def test_a_lost_connection_is_opened_again_after_a_pause(autojump_clock, outer, inner):
    other, changed = weather(), []
    flaky = Flaky(other)
    server = hub((remote(flaky, inner), "w"))
    send, receive = trio.open_memory_channel(10)
    options = {
        "list_changed": changed.append,
        "resource_updated": lambda params: send.send_nowait(params.uri),
        "protocol_versions": [outer],
    }
    async with Client(server, **options) as client:
        await client.call_tool("w_forecast", {"city": "Oslo"})
        await client.subscribe("weather://w/Oslo/now")
        flaky.refuses = True
        flaky.lose()
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(ToolError, match=r"the server object, mounted .* is connected again"):
            await client.call_tool("w_forecast", {"city": "Oslo"})
        with pytest.raises(RequestError, match="is connected again"):
            await client.read_resource("data://w/stations")
        flaky.refuses = False
        await trio.sleep(120)
        await client.call_tool("w_forecast", {"city": "Oslo"})
        assert set(changed) == {"tools", "resources", "prompts"}
        assert await receive.receive() == "weather://w/Oslo/now"
        other.resource_updated("weather://Oslo/now")
        assert await receive.receive() == "weather://w/Oslo/now"


@both_versions
async def test_calls_go_on_while_a_stream_of_a_mounted_url_is_opened_again(autojump_clock, outer):
    async def listen(_seen):
        async def body():
            yield b": hello\n\n"
            await trio.sleep(1)

        return Reply(200, EVENTS, body())

    async def call(seen):
        return result(seen, content=[{"type": "text", "text": "done"}])

    script = Script(Legacy(listen=listen, answers={"tools/call": call}))
    async with httpx2.AsyncClient(transport=script) as http:
        server = hub((Client(URL, http=http, protocol_versions=[LEGACY]), "w"))
        async with Client(server, protocol_versions=[outer]) as client:
            for _ in range(100):
                assert (await client.call_tool("w_wait")).content[0].text == "done"
                await trio.sleep(0.1)
    assert script.methods.count("GET") > 2
    assert script.methods.count("initialize") == 1


async def test_the_pauses_between_tries_grow(autojump_clock):
    times = []

    class Noting:
        async def serve(self, _channel):
            times.append(trio.current_time())

    async with Client(hub((remote(Noting(), LEGACY), "w"))) as client:
        assert await client.list_tools() == []
        await trio.sleep(200)
    pauses = [after - before for before, after in itertools.pairwise(times)]
    assert len(pauses) >= 5
    assert pauses[0] < 2
    assert 15 <= pauses[-1] <= 30


async def test_a_channel_serves_one_session(nursery):
    ours, theirs = memory_pair()
    await nursery.start(weather().serve, theirs)
    server = hub((ours, "w"))
    async with Client(server) as client:
        assert len(await client.list_tools()) == 2
    async with Client(server) as client:
        with pytest.raises(ToolError, match=r"behind a channel, mounted .* is connected again"):
            await client.call_tool("w_measure")


# Names.


@pytest.mark.parametrize(
    ("first", "second"), [("a", "a"), ("a", "a_b"), ("a_b", "a"), (None, None)]
)
def test_two_servers_behind_clients_whose_names_could_be_mixed_up_are_an_error(first, second):
    with pytest.raises(ValueError, match="could be those of"):
        hub((["one"], first), (["two"], second))
    inner = hub((["two"], None))
    with pytest.raises(ValueError, match="could be those of"):
        hub((["one"], first), (inner, second))
    hub((["one"], first), (weather(), second))
    hub((["one"], "x"), (["two"], None))


def test_names_that_could_be_mixed_up_at_an_outer_server_are_an_error():
    middle = Server("middle")
    server = hub((middle, "m"), (remote(weather(), LEGACY), "m_w"))
    with pytest.raises(ValueError, match="'m' could be those of the server object"):
        middle.mount(remote(weather(), LEGACY), prefix="w")
    assert not middle._registry.remotes
    assert len(server._registry.remotes) == 1


@both_versions
@pytest.mark.parametrize("prefixes", [(None, "w"), ("w", None)])
async def test_the_definition_of_a_remote_tool_is_that_of_the_server_that_is_called(
    caplog, outer, prefixes
):
    long_name, short_name = Server("one"), Server("other")
    long_name.tool("w_plan", description="not called")(lambda: 1)
    short_name.tool("plan", description="called")(lambda: 2)
    servers = {None: long_name, "w": short_name}
    server = hub(*((remote(servers[prefix], LEGACY), prefix) for prefix in prefixes))
    async with Client(server, protocol_versions=[outer]) as client:
        (tool,) = await client.list_tools()
        assert (tool.name, tool.description) == ("w_plan", "called")
        assert (await client.call_tool("w_plan")).content[0].text == "2"
    assert "leaves out 'w_plan' of the server object, mounted without a prefix" in caplog.text


def test_names_of_a_remote_server_cannot_be_hidden():
    server = hub((remote(weather(), STATELESS), "w"))
    with pytest.raises(LookupError, match="can be chosen by kinds= only"):
        server.disable("w_forecast")


def connect_directly(server):
    return server


def connect_through_a_mounted_server(server):
    return hub((server, None))


@pytest.mark.requirement("TOOL-32", "RES-22", "PROM-15", "TOOL-35")
@pytest.mark.parametrize("connect", [connect_directly, connect_through_a_mounted_server])
@all_versions
async def test_entries_of_a_remote_server_are_hidden_with_their_kind(outer, inner, connect):
    server = hub((remote(weather(), inner), "w"))
    served, changed = connect(server), []
    async with Client(served, protocol_versions=[outer], list_changed=changed.append) as client:
        assert len(await client.list_tools()) == 2
        await client.read_resource("data://w/stations")
        server.disable(kinds=["tools", "resources"])
        assert await client.list_tools() == []
        assert await client.list_resources() == []
        assert await client.list_resource_templates() == []
        with pytest.raises(RequestError, match="unknown tool: w_forecast"):
            await client.call_tool("w_forecast", {"city": "Oslo"})
        with pytest.raises(RequestError, match="resource not found: data://w/stations"):
            await client.read_resource("data://w/stations")
        with pytest.raises(RequestError, match="unknown resource"):
            await client.complete("weather://w/{city}/now", "city", "B")
        (plan,) = await client.list_prompts()
        server.enable(kinds=["tools"])
        assert len(await client.list_tools()) == 2
        await trio.testing.wait_all_tasks_blocked()
        assert (set(changed), plan.name) == ({"tools", "resources"}, "w_plan")
    names, _, _ = await connected(hub((remote(weather(), inner), "w")))
    assert names == NAMES


async def test_a_session_hides_the_entries_of_a_remote_server_from_its_own_client():
    server = hub((remote(weather(), LEGACY), "w"))

    @server.tool
    async def lock(ctx: Context) -> str:
        await ctx.disable(kinds=["prompts", "resources"])
        return (await ctx.read_resource("data://w/stations"))[0].text

    client = partial(Client, server, protocol_versions=[LEGACY])
    async with client() as one, client() as other:
        assert (await one.call_tool("lock")).data == "Blindern"
        assert [it.name for it in await one.list_prompts()] == []
        with pytest.raises(RequestError, match="unknown prompt: w_plan"):
            await one.get_prompt("w_plan", {"city": "Oslo"})
        assert [it.name for it in await other.list_prompts()] == ["w_plan"]


@pytest.mark.parametrize("target", [1, None, {"command": "python"}])
def test_what_no_client_can_connect_to_cannot_be_mounted(target):
    with pytest.raises(TypeError, match="a server mounts another Server, a Client"):
        Server("hub").mount(target, prefix="w")


def test_a_script_that_is_missing_and_a_bad_prefix_are_errors_of_the_mount():
    with pytest.raises(ValueError, match="no script"):
        Server("hub").mount("missing.py", prefix="w")
    with pytest.raises(ValueError, match="not a valid prefix"):
        Server("hub").mount("http://127.0.0.1:1/mcp", prefix="a b")


async def test_without_a_prefix_what_the_server_itself_has_comes_first(caplog):
    server = hub((remote(weather(), LEGACY), None), (remote(asking(), LEGACY), "v"))
    server.tool("measure")(lambda: 7)
    async with Client(server, **ANSWERS) as client:
        names = [tool.name for tool in await client.list_tools()]
        assert sorted(names) == ["forecast", "measure", "v_ask"]
        assert (await client.call_tool("measure")).content[0].text == "7"
        assert (await client.call_tool("forecast", {"city": "Oslo"})).data == TEXTS[0]
        assert (await client.call_tool("v_ask")).data[0] == "True"
        assert (await client.read_resource("data://stations")).contents[0].text == "Blindern"
    assert "leaves out 'measure' of the server object, mounted without a prefix" in caplog.text


@both_versions
async def test_a_remote_server_is_reached_through_a_mounted_server(outer):
    passed, changed = [], []
    middle, other = hub((remote(weather(), LEGACY), "w")), hub()
    other.tool("first")(lambda: 1)

    @middle.middleware
    async def note(request, call_next):
        passed.append((request.method, request.name))
        return await call_next(request)

    server = hub((middle, "m"), (other, None))
    options = {"protocol_versions": [outer], "list_changed": changed.append}
    async with Client(server, **options) as client:
        assert {tool.name for tool in await client.list_tools()} == {
            *("first", "m_w_forecast", "m_w_measure")
        }
        result = await client.call_tool("m_w_forecast", {"city": "Oslo"})
        (contents,) = (await client.read_resource("weather://m/w/Oslo/now")).contents
        values = (await client.complete("m_w_plan", "city", "O")).completion.values
        await client.subscribe("weather://m/w/Oslo/now")
        await client.unsubscribe("weather://m/w/Oslo/now")
    assert (result.data, values) == (TEXTS[0], ["Oslo"])
    assert (contents.uri, contents.text) == ("weather://m/w/Oslo/now", "Oslo: Blindern")
    assert ("tools/call", "w_forecast") in passed


async def test_uris_that_only_the_mounted_server_can_read_get_the_prefix():
    other = weather()

    @other.tool
    async def find() -> CallToolResult:
        uris = ("weather://Oslo/now", "https://example.com/weather")
        return CallToolResult(content=[ResourceLink(name="now", uri=uri) for uri in uris])

    async with Client(hub((remote(other, LEGACY), "w"))) as client:
        oslo, elsewhere = (await client.call_tool("w_find")).content
    assert oslo.uri == "weather://w/Oslo/now"
    assert elsewhere.uri == "https://example.com/weather"


# Notifications.


@pytest.mark.requirement("TOOL-35")
@all_versions
async def test_changes_of_a_mounted_server_reach_the_client_of_the_session(outer, inner):
    other = weather()
    server = hub((remote(other, inner), "w"))
    send, receive = trio.open_memory_channel(10)
    options = {
        "list_changed": send.send_nowait,
        "resource_updated": lambda params: send.send_nowait(params.uri),
        "protocol_versions": [outer],
    }
    async with Client(server, **options) as client:
        await client.list_tools()
        await client.subscribe("weather://w/Oslo/now")
        other.tool("later")(lambda: 1)
        assert await receive.receive() == "tools"
        assert "w_later" in {tool.name for tool in await client.list_tools()}
        other.resource_updated("weather://Oslo/now")
        assert await receive.receive() == "weather://w/Oslo/now"
        await client.unsubscribe("weather://w/Oslo/now")
        await trio.testing.wait_all_tasks_blocked()
        other.resource_updated("weather://Oslo/now")
        other.remove_tool("later")
        assert await receive.receive() == "tools"
        with pytest.raises(RequestError):
            await client.subscribe("no scheme")


async def test_one_unsubscription_ends_what_two_simultaneous_requests_subscribed_to():
    other, passed = weather(), []

    @other.middleware
    async def note(request, call_next):
        passed.append(request.method)
        return await call_next(request)

    options = {"protocol_versions": [LEGACY]}
    async with Client(hub((remote(other, LEGACY), "w")), **options) as client:
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(client.subscribe, "weather://w/Oslo/now")
        await client.unsubscribe("weather://w/Oslo/now")
        await trio.testing.wait_all_tasks_blocked()
        assert passed[-1] == "resources/unsubscribe"


async def test_a_log_level_and_changed_roots_reach_the_mounted_server():
    other, roots = Server("weather"), []

    @other.tool
    async def say(ctx: Context) -> None:
        await ctx.info("low")
        await ctx.error("high")

    @other.method("notifications/roots/list_changed")
    async def changed(_params) -> None:
        roots.append("changed")

    logged = []
    options = {"log": lambda params: logged.append(params.data), "roots": ["file:///r"]}
    server = hub((remote(other, LEGACY), "w"))
    async with Client(server, protocol_versions=[LEGACY], **options) as client:
        await client.call_tool("w_say")
        await client.set_log_level("error")
        await client.call_tool("w_say")
        await client.set_roots(["file:///other"])
        await trio.testing.wait_all_tasks_blocked()
    assert logged == ["low", "high", "high"]
    assert roots == ["changed"]


async def test_a_message_outside_of_a_request_reaches_a_legacy_client():
    other, sessions, logged = Server("weather"), [], []
    other.tool("begin")(lambda: None)

    class Kept:
        async def serve(self, channel):
            async with trio.open_nursery() as nursery:
                sessions.append(await nursery.start(other.serve, channel))

    server = hub((remote(Kept(), LEGACY), "w"))
    options = {"log": lambda params: logged.append(params.data)}
    async with Client(server, protocol_versions=[LEGACY], **options) as client:
        await client.call_tool("w_begin")
        for level in ("info", "error"):
            await sessions[0].notify("notifications/message", {"level": level, "data": level})
        await trio.testing.wait_all_tasks_blocked()
        assert logged == ["info", "error"]
        await client.set_log_level("error")
        for level in ("info", "error"):
            await sessions[0].notify("notifications/message", {"level": level, "data": level})
        await trio.testing.wait_all_tasks_blocked()
    assert logged == ["info", "error", "error"]


async def test_a_completed_url_elicitation_is_reported_to_the_client():
    other, completed = Server("shop"), []

    @other.tool
    async def pay(ctx: Context) -> str:
        answer = await ctx.elicit_url("pay", "https://example.com/pay")
        await ctx.elicitation_complete(answer.elicitation_id)
        return answer.action

    options = {
        "elicitation": lambda _params: True,
        "elicitation_modes": ["url"],
        "elicitation_complete": completed.append,
        "protocol_versions": [LEGACY],
    }
    async with Client(hub((remote(other, LEGACY), "w")), **options) as client:
        assert (await client.call_tool("w_pay")).data == "accept"
        await trio.testing.wait_all_tasks_blocked()
    assert len(completed) == 1


@both_versions
async def test_urls_that_a_legacy_mounted_server_requires_are_visited(outer):
    """A client of each version is asked as its version demands, and notified as far as it can be."""
    other, visited, completed, finish = Server("shop"), [], [], []

    @other.tool
    async def pay(ctx: Context) -> str:
        if not visited:
            finish.append(partial(ctx.elicitation_complete, "e1"))
            url = UrlElicitation("pay", "https://example.com/pay", elicitation_id="e1")
            raise UrlElicitationRequired([url], "pay first")
        for each in finish:
            await each()
        return "paid"

    def visit(params):
        visited.append(params.url)
        return True

    options = {
        "elicitation": visit,
        "elicitation_modes": ["url"],
        "elicitation_complete": completed.append,
        "protocol_versions": [outer],
    }
    async with Client(hub((remote(other, LEGACY), "w")), **options) as client:
        if outer == LEGACY:
            with pytest.raises(RequestError, match="pay first") as caught:
                await client.call_tool("w_pay")
            assert caught.value.code == URL_ELICITATION_REQUIRED
            visited.append(caught.value.data["elicitations"][0]["url"])
        assert (await client.call_tool("w_pay")).data == "paid"
        await trio.testing.wait_all_tasks_blocked()
    assert visited == ["https://example.com/pay"]
    assert completed == (["e1"] if outer == LEGACY else [])


@pytest.mark.requirement("MRTR-01")
@pytest.mark.parametrize("inner", PROTOCOL_VERSIONS)
async def test_each_stateless_client_is_asked_for_its_own_request_only(nursery, inner):
    other, waiting = Server("asking"), []

    @other.tool
    async def ask(name: str, *, ctx: Context) -> str:
        waiting.append(name)
        while len(waiting) < 2:
            await trio.sleep(0)
        return f"{name}: {(await ctx.elicit('who are you?', str)).data}"

    flaky = Flaky(other)
    server = hub((remote(flaky, inner), "w"))
    url = await nursery.start(partial(server.serve_http, port=0))
    results = []

    async def call(name):
        options = {"elicitation": lambda _params: name, "protocol_versions": [STATELESS]}
        async with Client(url, **options) as client:
            results.append((await client.call_tool("w_ask", {"name": name})).data)

    async with trio.open_nursery() as calls:
        for name in ("Ada", "Bob"):
            calls.start_soon(call, name)
    assert sorted(results) == ["Ada: Ada", "Bob: Bob"]
    assert len(flaky.scopes) == (2 if inner == LEGACY else 1)


async def test_a_question_of_a_cancelled_request_is_not_put_to_the_next_client(nursery):
    called, cancelled, begun, may_ask = (trio.Event() for _ in range(4))
    asked, answers = [], []

    class Legacy:
        """Asks a question in its first call, before it has read the cancellation."""

        async def serve(self, channel):
            async def send(**members):
                await channel.send([json.dumps({"jsonrpc": "2.0", **members}).encode()])

            has_asked = False
            while received := await channel.receive():
                for message in map(json.loads, received):
                    method = message.get("method")
                    if method is None:
                        answers.append(message)
                    elif method == "tools/call" and not called.is_set():
                        called.set()
                        await may_ask.wait()
                        has_asked = True
                        schema = {"type": "object", "properties": {}}
                        params = {"message": "Ada?", "requestedSchema": schema}
                        await send(id="q", method="elicitation/create", params=params)
                    elif "id" in message and not (has_asked and method == "tools/call"):
                        await send(id=message["id"], result=RESULTS.get(method, {}))

    server = hub((remote(Legacy(), LEGACY), "w"))

    @server.middleware
    async def note(request, call_next):
        if cancelled.is_set():
            begun.set()
        try:
            return await call_next(request)
        finally:
            if called.is_set():
                cancelled.set()

    url = await nursery.start(partial(server.serve_http, port=0))

    async def call(name):
        def answer(_params):
            asked.append(name)
            return True

        options = {"elicitation": answer, "protocol_versions": [STATELESS]}
        async with Client(url, **options) as client:
            await client.call_tool("w_ask")

    with trio.fail_after(10):
        async with trio.open_nursery() as ada:
            ada.start_soon(call, "Ada")
            await called.wait()
            ada.cancel_scope.cancel()
        await cancelled.wait()
        async with trio.open_nursery() as calls:
            calls.start_soon(call, "Bob")
            await begun.wait()
            await trio.testing.wait_all_tasks_blocked()
            may_ask.set()
            while not answers:
                await trio.sleep(0)
            calls.cancel_scope.cancel()
    assert asked == []
    assert "error" in answers[0]


RESULTS = {
    "initialize": {
        "protocolVersion": LEGACY,
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "asking", "version": "1"},
    },
    "tools/list": {"tools": [{"name": "ask", "inputSchema": {"type": "object"}}]},
    "tools/call": {"content": []},
}


async def test_a_question_without_a_running_request_is_rejected():
    other, sessions = Server("weather"), []
    other.tool("begin")(lambda: None)

    class Kept:
        async def serve(self, channel):
            async with trio.open_nursery() as nursery:
                sessions.append(await nursery.start(other.serve, channel))

    options = ANSWERS | {"protocol_versions": [LEGACY]}
    async with Client(hub((remote(Kept(), LEGACY), "w")), **options) as client:
        await client.call_tool("w_begin")
        with pytest.raises(RequestError, match="no request is running, so there is no client"):
            await sessions[0].request("roots/list")


@all_versions
async def test_the_progress_of_a_client_that_is_asked_reaches_the_mounted_server(outer, inner):
    other, progress = Server("asking"), []

    @other.tool
    async def ask(ctx: Context) -> str:
        def note(params):
            progress.append(params.message)

        return (await ctx.sample("hello", progress=note)).content.text

    async def sample(_params, report):
        await report(1, 2, "thinking")
        return "hi"

    server = hub((remote(other, inner), "w"))
    async with Client(server, protocol_versions=[outer], sampling=sample) as client:
        assert (await client.call_tool("w_ask")).data == "hi"
    assert progress == (["thinking"] if {outer, inner} == {LEGACY} else [])


@pytest.mark.parametrize("outer", PROTOCOL_VERSIONS)
async def test_what_arrives_while_the_client_is_asked_is_forwarded_at_once(outer):
    other = Server("asking")

    @other.tool
    async def ask(ctx: Context) -> list[str]:
        answers = []

        async def one(name):
            answers.append((await ctx.elicit(name, str)).data)

        async with trio.open_nursery() as nursery:
            for name in ("a", "b"):
                nursery.start_soon(one, name)
            await trio.testing.wait_all_tasks_blocked()
            await ctx.info("waiting")
        return sorted(answers)

    logged, begun = trio.Event(), []

    async def answer(params):
        begun.append(params.message)
        if outer == LEGACY:  # A stateless client gets no messages between two rounds.
            await logged.wait()
        return params.message.upper()

    options = {"elicitation": answer, "log": lambda _params: logged.set()}
    server = hub((remote(other, LEGACY), "w"))
    async with Client(server, protocol_versions=[outer], **options) as client:
        with trio.fail_after(5):
            assert (await client.call_tool("w_ask")).data == ["A", "B"]
    assert sorted(begun) == ["a", "b"]


@pytest.mark.requirement("CANC-01")
async def test_a_question_that_the_mounted_server_cancels_is_cancelled_at_the_client():
    other, asked, cancelled = Server("asking"), trio.Event(), trio.Event()

    @other.tool
    async def ask(ctx: Context) -> str:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ctx.elicit, "sure?", bool)
            await asked.wait()
            nursery.cancel_scope.cancel()
        await cancelled.wait()
        return "late"

    async def wait(_params):
        asked.set()
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()

    options = {"elicitation": wait, "protocol_versions": [LEGACY]}
    async with Client(hub((remote(other, LEGACY), "w")), **options) as client:
        with trio.fail_after(5):
            assert (await client.call_tool("w_ask")).data == "late"


# Recordings.


async def _use(client, other):
    """Use what `everything` has, and return what was answered."""
    texts = [tool.name for tool in await client.list_tools()]
    texts += (await client.call_tool("w_ask")).data
    texts.append((await client.call_tool("w_forecast", {"city": "Oslo"})).data)
    texts.append((await client.read_resource("weather://w/Oslo/now")).contents[0].text)
    await client.subscribe("weather://w/Oslo/now")
    other.resource_updated("weather://Oslo/now")
    await trio.testing.wait_all_tasks_blocked()
    other.tool("later")(lambda: 1)
    await trio.testing.wait_all_tasks_blocked()
    texts += [tool.name for tool in await client.list_tools()]
    await client.unsubscribe("weather://w/Oslo/now")
    for wrong in ("w_none", "w_fail"):
        with pytest.raises((ToolError, RequestError)):
            await client.call_tool(wrong)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.call_tool, "w_wait")
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    return texts


def everything():
    other = weather()

    @other.tool
    async def ask(ctx: Context) -> list[str]:
        await ctx.report_progress(1)
        return [str((await ctx.elicit("sure?", bool)).data), (await ctx.list_roots())[0].uri]

    @other.tool
    async def fail() -> None:
        raise OSError

    @other.tool
    async def wait() -> None:
        await trio.sleep_forever()

    return other


def through(city, target):
    """A server with a mounted one, which it asks for the weather in that city."""
    server = hub((target, "w"))

    @server.middleware
    async def change(request, call_next):
        if request.name == "w_forecast":
            request = request.with_arguments({"city": city})
        return await call_next(request)

    return server


class Unreachable:
    """A target that a replay must not connect to."""

    async def serve(self, _channel):
        raise AssertionError("a replay has connected")


@all_versions
async def test_a_session_with_a_mounted_server_replays_without_it(tmp_path, outer, inner):
    path, other = tmp_path / "it.mcprec.jsonl", everything()
    options = ANSWERS | {
        "log": lambda _params: None,
        "progress": lambda _progress: None,
        "list_changed": lambda _kind: None,
        "resource_updated": lambda _params: None,
        "protocol_versions": [outer],
    }
    async with client_session(through("Oslo", remote(other, inner)), path, **options) as client:
        texts = await _use(client, other)
    assert texts.count("w_forecast") == 2
    assert texts.count("w_later") == 1
    report = await trio.to_thread.run_sync(replay, path, through("Oslo", Unreachable()))
    assert report.is_complete
    assert report.requests > 6
    with pytest.raises(ReplayDivergence, match="Bergen"):
        await trio.to_thread.run_sync(replay, path, through("Bergen", Unreachable()))


@both_versions
async def test_a_session_whose_mounted_server_is_lost_replays(autojump_clock, tmp_path, outer):
    path, flaky = tmp_path / "it.mcprec.jsonl", Flaky(weather())
    server = hub((remote(flaky, LEGACY), "w"))
    async with client_session(server, path, protocol_versions=[outer]) as client:
        await client.list_tools()
        flaky.lose()
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(ToolError, match="is connected again"):
            await client.call_tool("w_forecast", {"city": "Oslo"})
        await trio.sleep(60)
        await client.call_tool("w_forecast", {"city": "Oslo"})
    report = await trio.to_thread.run_sync(replay, path, hub((Unreachable(), "w")))
    assert report.is_complete


def test_a_server_without_a_mounted_client_does_not_import_the_client():
    code = "from mcp_trio import Server\nServer('hub').mount(Server('other'), prefix='o')"
    assert "mcp_trio._client.client" not in loaded_by(code)


async def test_a_connection_that_is_not_used_makes_room_for_clients_with_other_capabilities(
    nursery,
):
    flaky = Flaky(weather())
    limits = Limits(requests=RequestLimits(mount_connections_max=1))
    server = hub((remote(flaky, LEGACY), "w"), limits=limits)
    url = await nursery.start(partial(server.serve_http, port=0))
    options = {"protocol_versions": [STATELESS]}
    async with Client(url, **options) as plain, Client(url, **options, **ANSWERS) as able:
        assert (await plain.call_tool("w_forecast", {"city": "Oslo"})).data == TEXTS[0]
        assert (await able.call_tool("w_forecast", {"city": "Oslo"})).data == TEXTS[0]
        assert len(flaky.scopes) == 2
        await able.subscribe("data://w/stations")  # this uses the connection
        with pytest.raises(ToolError, match=r"limits\.requests\.mount_connections_max=1"):
            await plain.call_tool("w_forecast", {"city": "Oslo"})


async def test_a_request_does_not_wait_for_a_connection_that_has_made_room():
    """The connection is that of a cancelled request, and was not open yet."""

    class NeverReady:
        async def serve(self, _channel):
            await trio.sleep_forever()

    limits = Limits(requests=RequestLimits(mount_connections_max=1))
    server = hub((remote(NeverReady(), LEGACY), "w"), limits=limits)
    options = {"roots": [], "protocol_versions": [STATELESS]}
    async with Client(server, **options) as client, trio.open_nursery() as calls:
        errors = []

        async def call():
            with pytest.raises(ToolError) as caught:
                await client.call_tool("w_forecast")
            errors.append(str(caught.value))

        async with trio.open_nursery() as cancelled:
            cancelled.start_soon(client.call_tool, "w_forecast")
            await trio.testing.wait_all_tasks_blocked()
            calls.start_soon(call)
            await trio.testing.wait_all_tasks_blocked()
            cancelled.cancel_scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        await client.set_log_level("debug")  # so the next request needs another connection
        calls.start_soon(client.call_tool, "w_forecast")
        await trio.testing.wait_all_tasks_blocked()
        calls.cancel_scope.cancel()
    (error,) = errors
    assert "limits.requests.mount_connections_max=1" in error


@pytest.mark.parametrize("inner", PROTOCOL_VERSIONS)
async def test_a_resource_is_read_again_in_the_next_round_of_a_handler(autojump_clock, inner):
    far, server = Server("far"), Server("hub")
    server.mount(remote(far, inner), prefix="far")

    @far.resource("sea://tide")
    async def tide(ctx: Context) -> str:
        await ctx.report_progress(1)
        await ctx.sleep(10)
        return "high"

    @server.tool(resumable=True)
    async def read(ctx: Context) -> str:
        texts = []

        async def read_tide():
            texts.append((await ctx.read_resource("sea://far/tide"))[0].text)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_tide)
            await ctx.sleep(5)
            assert (await ctx.elicit("sure?", bool)).data
        return texts[0]

    options = {"protocol_versions": [STATELESS], "elicitation": ANSWERS["elicitation"]}
    async with Client(server, **options) as client:
        with trio.fail_after(100):
            assert (await client.call_tool("read")).data == "high"
