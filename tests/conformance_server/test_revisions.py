import pytest
import trio
from facts import FACTS
from our_client import Session, client_for
from parties import Host
from scenario import tell

from mcp_trio.recording import replay

pytestmark = pytest.mark.slow


@pytest.fixture
async def tell_story(serve, autojump_clock):
    """Tells the whole scenario at a revision, as it is told to the SDKs' servers."""

    async def tell_story(protocol_version, record):
        host = Host()
        async with client_for(
            host, serve(protocol_version, record=record), protocol_version
        ) as client:
            await tell(Session(client, host), host, protocol_version)

    return tell_story


@pytest.mark.parametrize("protocol_version", FACTS.protocol_versions)
async def test_the_whole_story_is_as_published_and_replays(
    tell_story, load, tmp_path, protocol_version
):
    record = tmp_path / "story.mcprec.jsonl"
    await tell_story(protocol_version, record)
    report = await trio.to_thread.run_sync(replay, record, load())
    assert report.is_complete
