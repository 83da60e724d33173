"""Live replay at URLs, of recordings over any transport."""

import contextlib
import functools
from pathlib import Path

import attrs
import pytest
import trio

from mcp_trio import Client, ConnectionLost, Server
from mcp_trio.errors import LocalProtocolError, OutcomeUnknown
from mcp_trio.examples.weather import server as weather
from mcp_trio.limits import DEFAULT_LIMITS, RequestLimits
from mcp_trio.recording import run_inputs
from mcp_trio.testing import mock_client, mock_server
from mcp_trio.transports import Lost
from tests.replay.conversations import call, result

RECORDINGS = Path(__file__).parents[2] / "recordings"
LIMITS = attrs.evolve(DEFAULT_LIMITS, requests=RequestLimits(idle_seconds=10))
SECONDS = 20.0


@contextlib.asynccontextmanager
async def served(mocked, **options):
    """The URL of a server, or of a mock."""
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            yield await nursery.start(functools.partial(mocked.serve_http, port=0, **options))
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "name",
    ["everything-python-sdk", "asking-server", "forms", "structured", "tides"],
)
async def test_a_mocked_client_at_its_mocked_server_finds_no_difference(name):
    path = RECORDINGS / f"{name}.mcprec.jsonl"
    async with served(mock_server(path)) as url:
        report = await run_inputs(path, url, limits=LIMITS)
        assert report.is_same, str(report)


@pytest.mark.parametrize("host", ["native", "hypercorn"])
@pytest.mark.parametrize("name", ["weather", "weather-python-sdk"])
async def test_a_recording_over_stdio_is_driven_over_http(name, host):
    async with served(weather, server=host) as url:
        report = await run_inputs(RECORDINGS / f"{name}.mcprec.jsonl", url, limits=LIMITS)
        assert report.is_same, str(report)


@pytest.mark.parametrize("protocol_version", ["2024-11-05", "2025-11-25", "2026-07-28"])
async def test_a_recording_over_http_is_driven_over_http_and_in_memory(tmp_path, protocol_version):
    async with (
        served(weather, record=tmp_path) as url,
        Client(url, protocol_versions=(protocol_version,)) as client,
    ):
        await client.call_tool("forecast", {"city": "Oslo"})
    path = next(each for each in tmp_path.iterdir() if "tools/call" in each.read_text())
    async with served(weather) as url:
        assert (await run_inputs(path, url, limits=LIMITS)).is_same
    assert (await run_inputs(path, weather, limits=LIMITS)).is_same


async def test_differences_of_a_server_at_a_url_are_reported():
    changed = Server("weather", version="2.0")

    @changed.tool
    async def forecast(city: str) -> str:
        return city

    async with served(changed) as url:
        report = await run_inputs(RECORDINGS / "weather.mcprec.jsonl", url, limits=LIMITS)
    kinds = {(each.kind, each.subject) for each in report.differences}
    assert ("changed", "answer to initialize") in kinds
    assert ("changed", "answer to tools/call forecast") in kinds


async def test_headers_are_sent_with_each_request(spoken):
    heard = []

    async def verify(head):
        heard.append(head.header("x-key"))
        return "somebody"

    path = spoken(("C", {"id": 1, "method": "ping"}), ("S", result(1)))
    async with served(weather, verify=verify) as url:
        await mock_client(path, url, headers={"X-Key": "k"})
    assert set(heard) == {"k"}


# What becomes of servers.


@attrs.define
class Scripted:
    """A channel over which each answer is what the next row says; a request takes it at once."""

    rows: list
    _frames: list = attrs.field(factory=list, init=False)
    _news: trio.Event = attrs.field(factory=trio.Event, init=False)

    async def send(self, frames):
        await trio.lowlevel.checkpoint()
        for _ in frames:
            if self.rows:
                self._frames.append(self.rows.pop(0))
        self._news.set()

    async def receive(self):
        while not self._frames:
            self._news = trio.Event()
            await self._news.wait()
        taken, self._frames = self._frames, []
        return taken

    async def aclose(self):
        await trio.lowlevel.checkpoint()


LAST = b'{"jsonrpc":"2.0","id":"the last ping","result":{}}'
ANSWER = b'{"jsonrpc":"2.0","id":%d,"result":{}}'
THREE = tuple(each for number in (1, 2, 3) for each in (("C", call(number)), ("S", result(number))))


@pytest.mark.parametrize(
    "error", [OutcomeUnknown("it broke"), LocalProtocolError("it broke")], ids=["unknown", "unsent"]
)
async def test_a_lost_answer_is_one_difference(spoken, error, autojump_clock):
    channel = Scripted([ANSWER % 1, Lost(3, error), ANSWER % 5, LAST])
    report = await run_inputs(spoken(*THREE), channel, limits=LIMITS)
    assert str(report).splitlines() == [
        "lost answer to tools/call x (record 3): it broke",
        "1 difference, 2 of 3 requests answered",
    ]
    assert trio.current_time() < LIMITS.replay.unrequested_seconds + 0.1


async def test_an_unreachable_server_is_one_difference(spoken, autojump_clock):
    channel = Scripted([ANSWER % 1, Lost(3, ConnectionLost("cannot connect"))])
    report = await run_inputs(spoken(*THREE), channel, limits=LIMITS)
    assert str(report).splitlines() == [
        "lost the server: cannot connect",
        "1 difference, 1 of 3 requests answered, 1 client messages not sent",
    ]
    assert trio.current_time() == 0


async def test_a_lost_final_ping_is_no_difference(spoken, autojump_clock):
    lost = Lost("the last ping", OutcomeUnknown("it broke"))
    path = spoken(("C", call(1)), ("S", result(1)))
    assert (await run_inputs(path, Scripted([ANSWER % 1, lost]), limits=LIMITS)).is_same
    assert trio.current_time() == 0


async def test_a_server_that_does_not_take_the_first_request_raises(spoken):
    path = spoken(("C", {"id": 1, "method": "initialize", "params": {}}), ("S", result(1)))
    async with served(weather) as url:
        pass
    with pytest.raises(ConnectionLost, match="cannot connect to"):
        await run_inputs(path, url)

    async def verify(head):
        return None

    async with served(weather, verify=verify) as url:
        with pytest.raises(ConnectionLost, match="HTTP 401"):
            await run_inputs(path, url)


async def test_an_invalid_url_raises(spoken):
    with pytest.raises(ValueError, match="begins with http"):
        await run_inputs(spoken(("C", call(1))), "ftp://127.0.0.1/mcp")
