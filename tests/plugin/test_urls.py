"""The fixtures over HTTP, in a test run of its own."""

from pathlib import Path

pytest_plugins = ["pytester"]

WEATHER = Path(__file__).parents[2] / "recordings" / "weather.mcprec.jsonl"

TESTS = f"""
import functools
import threading
import pytest
import trio
from mcp_trio.examples.weather import server

pytestmark = pytest.mark.mcp_recording({str(WEATHER)!r}, mode="inputs")

async def test_a_mock_is_served_to_a_client_at_a_url(mcp_mock, mcp_client, nursery):
    url = await nursery.start(functools.partial(mcp_mock().serve_http, port=0))
    async with mcp_client(url) as client:
        assert [tool.name for tool in await client.list_tools()] == ["forecast", "warmest"]

async def test_a_url_is_recorded_once(mcp_recorder, nursery):
    url = await nursery.start(functools.partial(server.serve_http, port=0))
    async with mcp_recorder(url, label="x") as client:
        assert await client.list_tools()

@pytest.fixture
def url():
    told, ready = [], threading.Event()

    async def serve():
        told.append(trio.lowlevel.current_trio_token())
        async with trio.open_nursery() as nursery:
            told.append(nursery.cancel_scope)
            told.append(await nursery.start(functools.partial(server.serve_http, port=0)))
            ready.set()

    thread = threading.Thread(target=trio.run, args=(serve,))
    thread.start()
    assert ready.wait(10)
    token, scope, url = told
    yield url
    token.run_sync_soon(scope.cancel)
    thread.join()

def test_the_inputs_of_a_recording_are_sent_to_a_url(mcp_replay, url):
    assert mcp_replay(url).answered == 6

def test_the_inputs_of_a_recording_are_sent_to_a_url_from_a_trio_test(mcp_replay, url):
    async def main():
        assert mcp_replay(url).answered == 6

    trio.run(main)
"""


def test_a_url_is_a_target_and_a_mock_has_one(pytester):
    pytester.makeini("[pytest]\ntrio_mode = true\nfilterwarnings = error\n")
    pytester.makepyfile(test_it=TESTS)
    options = ("-p", "no:cacheprovider", "-p", "no:timeout", "--mcp-record=once")
    pytester.runpytest_inprocess(*options).assert_outcomes(passed=4)
    assert [path.suffix for path in (pytester.path / "recordings" / "test_it").iterdir()]
    pytester.runpytest_inprocess(*options, "-k", "recorded_once").assert_outcomes(
        passed=1, deselected=3
    )
