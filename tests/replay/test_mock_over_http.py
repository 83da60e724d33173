"""Mock servers over HTTP."""

import contextlib
import functools
from pathlib import Path

import httpx2
import pytest
import trio

from mcp_trio import Client, MCPError, RequestError
from mcp_trio._journal.conversation import conversation
from mcp_trio._replay.mock import MockSession, mocked_protocol_versions
from mcp_trio.errors import MockMismatch
from mcp_trio.recording import read_recording
from mcp_trio.testing import mock_server
from tests.replay.conversations import (
    STATELESS,
    TAG,
    call,
    note,
    result,
    stateless_call,
    stateless_request,
)

RECORDINGS = Path(__file__).parents[2] / "recordings"
LEGACY = "2025-11-25"
SECONDS = 10.0
HELLO = {
    "id": 0,
    "method": "initialize",
    "params": {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "c"}},
}
WELCOME = {
    "protocolVersion": LEGACY,
    "capabilities": {"tools": {"listChanged": True}, "logging": {}},
    "serverInfo": {"name": "recorded", "version": "1"},
}
SHAKEN = (("C", HELLO), ("S", result(0, **WELCOME)), ("C", {"method": "notifications/initialized"}))
TEXT = {"content": [{"type": "text", "text": "one"}]}
OTHER = {"content": [{"type": "text", "text": "two"}]}
CALLED_TWICE = (
    ("C", stateless_call(1, arguments={})),
    ("S", result(1, resultType="complete", **TEXT)),
    ("C", stateless_call(2, arguments={})),
    ("S", result(2, resultType="complete", **OTHER)),
)


@contextlib.asynccontextmanager
async def served(mock):
    """The URL at which a mock is."""
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            yield await nursery.start(functools.partial(mock.serve_http, port=0))
            nursery.cancel_scope.cancel()


def said(answer):
    return answer.content[0].text


async def test_a_client_of_the_oldest_transport_is_served_as_well():
    mock = mock_server(RECORDINGS / "weather.mcprec.jsonl")
    async with served(mock) as url:
        base = url.removesuffix("/mcp")
        async with Client(f"{base}/sse", protocol_versions=("2024-11-05",)) as client:
            assert [tool.name for tool in await client.list_tools()] == ["forecast", "warmest"]


async def test_a_stateless_recording_is_played_to_stateless_clients():
    mock = mock_server(RECORDINGS / "tides.mcprec.jsonl")
    async with served(mock) as url:
        async with Client(url) as client:
            assert client.protocol_version == STATELESS
        async with httpx2.AsyncClient() as http:
            assert (await http.get(url)).status_code == 405


async def test_a_client_of_another_protocol_version_is_rejected(spoken):
    async with served(mock_server(spoken(*SHAKEN))) as url, httpx2.AsyncClient() as http:
        with pytest.raises(MCPError, match="the server does not support 2026-07-28"):
            async with Client(url, protocol_versions=(STATELESS,)):
                pass
        rejected = await http.post(url, json={"jsonrpc": "2.0", "id": 1, "method": "ping"})
        assert rejected.status_code == 400
    async with served(mock_server(spoken(*CALLED_TWICE))) as url:
        with pytest.raises(RequestError, match="supports 2026-07-28"):
            async with Client(url, protocol_versions=(LEGACY,)):
                pass


async def test_server_requests_and_notifications_come_with_their_request(spoken):
    question = {"id": 5, "method": "roots/list"}
    path = spoken(
        *SHAKEN,
        ("C", call(1, arguments={})),
        ("S", note("message", level="info", data="before")),
        ("S", question),
        ("C", result(5, roots=[])),
        ("S", note("message", level="info", data="after")),
        ("S", result(1, **TEXT)),
    )
    heard = []
    async with (
        served(mock_server(path)) as url,
        Client(url, roots=["file:///here"], log=lambda message: heard.append(message.data)) as live,
    ):
        assert said(await live.call_tool("x", {})) == "one"
    assert heard == ["before", "after"]


async def test_progress_comes_with_the_token_of_the_live_client(spoken):
    path = spoken(
        *SHAKEN,
        ("C", call(1, arguments={}, _meta={"progressToken": "t"})),
        ("S", note("progress", progressToken="t", progress=1)),
        ("S", result(1, **TEXT)),
    )
    heard = []
    async with served(mock_server(path)) as url, Client(url) as live:
        await live.call_tool("x", {}, progress=lambda progress: heard.append(progress.progress))
    assert heard == [1]


async def test_unrelated_notifications_take_the_standalone_stream(spoken):
    path = spoken(*SHAKEN, ("S", note("tools/list_changed")))
    changed = trio.Event()

    def hear(_):
        changed.set()

    async with served(mock_server(path)) as url, Client(url, list_changed=hear):
        await changed.wait()


async def test_stateless_clients_can_repeat_requests(spoken):
    mock = mock_server(spoken(*CALLED_TWICE))
    answers = []
    async with served(mock) as url:
        for _ in range(4):
            async with Client(url, protocol_versions=(STATELESS,)) as client:
                answers.append(said(await client.call_tool("x", {})))
        async with Client(url, protocol_versions=(STATELESS,)) as client:
            with pytest.raises(RequestError, match="closest recorded requests: record 1"):
                await client.call_tool("x", {"other": 1})
    assert answers == ["one", "two", "one", "two"]
    assert len(mock.unrecorded) == 1
    assert mock.unused == ()


async def test_a_strict_mock_answers_each_request_once_over_http(spoken):
    mock = mock_server(spoken(*CALLED_TWICE), strict=True)
    async with served(mock) as url, Client(url, protocol_versions=(STATELESS,)) as client:
        for _ in range(2):
            await client.call_tool("x", {})
        with pytest.raises(RequestError, match="which was answered already"):
            await client.call_tool("x", {})
    with pytest.raises(MockMismatch, match="which was answered already"):
        mock.check()


async def test_a_request_in_progress_is_not_matched_again(spoken):
    listen, tagged = "subscriptions/listen", {"_meta": {TAG: "s"}}
    filter_ = {"notifications": {"toolsListChanged": True}}
    mock = mock_server(
        spoken(
            ("C", stateless_request("s", listen, **filter_)),
            ("S", note("subscriptions/acknowledged", **tagged, **filter_)),
        )
    )
    async with served(mock) as url:
        async with (
            Client(url, protocol_versions=(STATELESS,)) as first,
            first.listen(tools=True),
            Client(url, protocol_versions=(STATELESS,)) as second,
        ):
            with pytest.raises(RequestError, match="which was answered already"):
                async with second.listen(tools=True):
                    pass
        async with Client(url, protocol_versions=(STATELESS,)) as third, third.listen(tools=True):
            pass


@pytest.mark.real_time
async def test_an_answer_that_a_client_abandons_is_left_for_others(spoken):
    asked, answered = CALLED_TWICE[:2]
    mock = mock_server(spoken(asked, (*answered, 60)), pace=True)
    async with served(mock) as url:
        for _ in range(2):
            async with Client(url, protocol_versions=(STATELESS,)) as client:
                with trio.move_on_after(0.3) as patience:
                    await client.call_tool("x", {})
                assert patience.cancelled_caught
    assert mock.unrecorded == ()


async def test_a_session_that_is_deleted_is_over(spoken):
    mock = mock_server(spoken(*SHAKEN, ("C", call(1)), ("S", result(1, **TEXT))))
    async with served(mock) as url:
        async with Client(url):
            pass
        assert mock.unused == ("tools/call (record 4)",)


async def test_a_session_that_fails_ends_no_other(spoken, monkeypatch, caplog):
    mock = mock_server(spoken(*SHAKEN, ("C", call(1)), ("S", result(1, **TEXT))))

    def fail(*_):
        raise ZeroDivisionError

    async with served(mock) as url:
        async with Client(url) as client:
            monkeypatch.setattr(MockSession, "_receive_request", fail)
            with pytest.raises(MCPError):
                await client.call_tool("x", {})
            monkeypatch.undo()
        async with Client(url) as client:
            assert said(await client.call_tool("x", {})) == "one"
    assert "a session failed" in caplog.text


PROBED = (
    ("C", stateless_request(1, "server/discover")),
    ("S", {"id": 1, "error": {"code": -32601, "message": "no"}}),
)


@pytest.mark.parametrize(
    ("heard", "newest", "oldest"),
    [
        (SHAKEN, LEGACY, "2024-11-05"),
        ((*PROBED, *SHAKEN), LEGACY, "2024-11-05"),
        (CALLED_TWICE, STATELESS, STATELESS),
        (CALLED_TWICE[:1], STATELESS, STATELESS),
        ((("C", call(1)), ("S", result(1))), LEGACY, "2024-11-05"),
        ((), LEGACY, "2024-11-05"),
    ],
    ids=["handshake", "probed", "stateless", "unanswered", "no handshake", "nothing"],
)
def test_a_mock_serves_the_versions_for_which_results_were_recorded(spoken, heard, newest, oldest):
    lines = spoken(*heard).read_bytes().splitlines(keepends=True)
    names = mocked_protocol_versions(conversation(read_recording(lines)))
    assert (names[0], names[-1]) == (newest, oldest)
