"""Mocks over WebSocket, Unix sockets and TCP."""

import contextlib
import socket
from pathlib import Path

import attrs
import pytest
import trio

from mcp_trio import Client, ConnectionLost, Limits, RequestError
from mcp_trio._replay.mock import MockSession
from mcp_trio.examples.weather import server as weather
from mcp_trio.limits import DEFAULT_LIMITS, RequestLimits
from mcp_trio.recording import replay_async, run_inputs
from mcp_trio.testing import mock_client, mock_server
from tests.ways import WAYS, opened, sent_away, served

RECORDINGS = Path(__file__).parents[2] / "recordings"
LIMITS = attrs.evolve(DEFAULT_LIMITS, requests=RequestLimits(idle_seconds=10))
STATELESS = "2026-07-28"


def said(answer):
    return answer.content[0].text


@pytest.mark.parametrize("way", ["http", *WAYS])
async def test_each_client_gets_the_legacy_session_from_its_beginning(tmp_path, way):
    mock = mock_server(RECORDINGS / "everything-our-client.mcprec.jsonl")
    async with served(mock, way, tmp_path) as (url, _scope):
        for _ in range(2):
            async with Client(url, roots=["file:///tmp"]) as client:
                assert client.server_info.name == "mcp-servers/everything"
                answer = await client.call_tool("get-sum", {"a": 2, "b": 40})
                assert said(answer) == "The sum of 2 and 40 is 42."
                with pytest.raises(
                    RequestError, match="closest recorded requests: record 19, which differs at"
                ):
                    await client.call_tool("get-sum", {"a": 2, "b": 41})
    assert len(mock.unrecorded) == 2


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["weather-python-sdk", "asking-server", "forms", "tides"])
async def test_a_mocked_client_at_its_mocked_server_finds_no_difference(tmp_path, name, way):
    path = RECORDINGS / f"{name}.mcprec.jsonl"
    mock = mock_server(path, strict=True)
    async with served(mock, way, tmp_path) as (url, _scope):
        report = await run_inputs(path, url, limits=LIMITS)
        assert report.is_same, str(report)


@pytest.mark.real_time  # the weather's stations take a while to answer
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("protocol_version", ["2025-11-25", STATELESS])
async def test_a_recording_over_the_transport_replays_mocks_and_drives(
    tmp_path, way, protocol_version
):
    folder = tmp_path / "recorded"
    folder.mkdir()
    async with (
        served(weather, way, tmp_path, record=folder) as (url, _scope),
        Client(url, protocol_versions=[protocol_version]) as client,
    ):
        answer = said(await client.call_tool("forecast", {"city": "Oslo"}))
    path = next(each for each in folder.iterdir() if "tools/call" in each.read_text())
    assert (await replay_async(path, weather)).is_complete
    async with served(weather, way, tmp_path) as (url, _scope):
        assert (await run_inputs(path, url, limits=LIMITS)).is_same
    async with (
        served(mock_server(path), way, tmp_path) as (url, _scope),
        Client(url, protocol_versions=[protocol_version]) as client,
    ):
        assert said(await client.call_tool("forecast", {"city": "Oslo"})) == answer


@pytest.mark.parametrize("way", WAYS)
async def test_a_session_that_fails_ends_no_other(tmp_path, way, monkeypatch, caplog):
    path = RECORDINGS / "weather.mcprec.jsonl"
    monkeypatch.setattr(MockSession, "_receive_notification", lambda *_: 1 / 0)
    async with served(mock_server(path), way, tmp_path) as (url, _scope):
        with contextlib.suppress(ConnectionLost):
            async with Client(url, protocol_versions=["2024-11-05"]) as client:
                with pytest.raises(ConnectionLost):
                    await client.list_tools()
        monkeypatch.undo()
        async with Client(url, protocol_versions=["2024-11-05"]) as client:
            assert len(await client.list_tools()) == 2
    assert "ZeroDivisionError" in caplog.text


async def test_an_absent_server_raises_and_a_lost_server_is_a_difference(
    tmp_path,
):
    path = RECORDINGS / "weather.mcprec.jsonl"
    with pytest.raises(ConnectionLost, match=f"cannot connect to unix:{tmp_path}/nobody"):
        await run_inputs(path, f"unix:{tmp_path}/nobody")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ConnectionLost, match=f"cannot connect to tcp://127.0.0.1:{port}"):
        await mock_client(path, f"tcp://127.0.0.1:{port}")

    async def leave(stream):
        await stream.receive_some()
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, leave, [listener])
        url = f"tcp://127.0.0.1:{listener.socket.getsockname()[1]}"
        report = await run_inputs(path, url, limits=LIMITS)
        nursery.cancel_scope.cancel()
    assert "lost the server: it closed the connection" in str(report)


async def test_a_mock_on_a_public_address_is_rejected_by_default():
    mock = mock_server(RECORDINGS / "weather.mcprec.jsonl")
    with pytest.raises(ValueError, match="is_open=True"):
        await mock.serve_tcp(host="0.0.0.0", port=0)


@pytest.mark.parametrize(
    ("way", "protocol_version"),
    [("websocket", "2025-11-25"), ("/ws", STATELESS), ("unix", STATELESS), ("tcp", "2025-11-25")],
)
async def test_clients_without_a_request_are_disconnected_when_the_listener_is_full(
    tmp_path, way, protocol_version, mock_clock
):
    path = tmp_path / "listed.mcprec.jsonl"
    async with Client(weather, protocol_versions=[protocol_version], record=path) as client:
        await client.list_tools()
    limits = Limits(requests=RequestLimits(first_request_seconds=2))
    async with (
        served(mock_server(path, limits=limits), way, tmp_path) as (url, _scope),
        Client(url, protocol_versions=[protocol_version]) as client,
    ):
        await sent_away(await opened(url), mock_clock, limits.requests.first_request_seconds)
        assert client.is_open
        assert len(await client.list_tools()) == 2
