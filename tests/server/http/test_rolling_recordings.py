"""Modern requests of a server that runs for long: one recording after the other, each by itself."""

import pytest
import trio
import trio.testing

from mcp_trio import Context, Server
from mcp_trio._server.sessions import ServerSessions
from mcp_trio.errors import RecordingError
from mcp_trio.limits import DEFAULT_LIMITS
from mcp_trio.recording import RecordOptions, replay
from tests.server.http.conftest import call, request, site_of, text
from tests.server.rounds import TRUE, text_of

FORMS = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}
BYTES_MAX = 6000


def harbour():
    server = Server("harbour")

    @server.tool
    async def hail(*, ctx: Context) -> str:
        return f"{ctx.uuid4()}"

    @server.tool
    async def wait(*, ctx: Context) -> str:
        await ctx.sleep(100)
        return "waited"

    @server.tool
    async def steer(*, ctx: Context) -> str:
        return f"{(await ctx.elicit('sure?', bool)).data}"

    return server


async def hailed(site, count):
    for _ in range(count):
        answer = await site.ask_stateless(call("hail"))
        assert answer.status == 200
        await trio.testing.wait_all_tasks_blocked()


@pytest.fixture
def recorded(tmp_path):
    """`recorded(talk)` are the files that are there when a server has been talked with."""

    async def run(talk):
        async with site_of(
            harbour(), record=RecordOptions(tmp_path, segment_bytes_max=BYTES_MAX)
        ) as (site):
            await talk(site)
            site.runtime.close()
            await site.runtime.ended.wait()

    def recorded(talk):
        trio.run(run, talk, clock=trio.testing.MockClock(autojump_threshold=0))
        return sorted(tmp_path.iterdir())

    return recorded


def firsts(files):
    """Those with which a recording begins."""
    return [file for file in files if len(file.name.split(".")) == 3]


def replayed(files):
    """How many requests are in the recordings, each of which replays alone; the least first."""
    reports = [replay(file, harbour()) for file in firsts(files)]
    assert all(report.is_complete for report in reports)
    return sorted(report.requests for report in reports)


def test_a_recording_ends_at_rest_before_it_is_full_and_another_begins(recorded):
    async def talk(site):
        await hailed(site, 30)

    files = recorded(talk)
    assert len(files) > 3
    assert firsts(files) == files
    assert max(file.stat().st_size for file in files) < 1.2 * BYTES_MAX
    assert sum(replayed(files)) == 30


def test_while_a_request_runs_it_goes_on_in_further_files(recorded):
    async def talk(site):
        waiting = site.begin_stateless(call("wait"))
        await hailed(site, 20)
        assert text((await waiting.rest())[-1]) == "waited"
        await hailed(site, 1)

    files = recorded(talk)
    assert len(firsts(files)) == 2
    assert len(files) > 3
    assert replayed(files) == [1, 21]


def test_who_has_asked_is_waited_for(recorded):
    async def talk(site):
        asked = await site.ask_stateless(call("steer"), meta=FORMS)
        state = asked.json["result"]["requestState"]
        await hailed(site, 20)
        retry = call("steer", id=2, requestState=state, inputResponses={"q1": TRUE})
        answer = await site.ask_stateless(retry, meta=FORMS)
        assert text_of(answer.json["result"]) == "True"

    files = recorded(talk)
    assert len(firsts(files)) == 1
    assert replayed(files) == [21]


def test_so_is_who_listens(recorded):
    async def talk(site):
        wish = request("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
        listening = site.begin_stateless(wish)
        await listening.message()
        await hailed(site, 20)
        assert not listening.is_ended
        listening.leave()
        await trio.testing.wait_all_tasks_blocked()
        await hailed(site, 1)

    assert replayed(recorded(talk)) == [1, 21]


def test_where_no_other_can_begin_it_goes_on(recorded, monkeypatch, caplog):
    begin = ServerSessions.begin_session

    def fail(*_, **__):
        raise RecordingError("the disk is full")

    async def talk(site):
        monkeypatch.setattr(ServerSessions, "begin_session", fail)
        await hailed(site, 20)
        monkeypatch.setattr(ServerSessions, "begin_session", begin)
        await hailed(site, 1)
        await trio.sleep(DEFAULT_LIMITS.recording.retry_seconds)
        await hailed(site, 1)

    assert replayed(recorded(talk)) == [1, 21]
    assert caplog.text.count("RecordingError: the disk is full") == 1


def test_nobody_takes_the_end_of_a_recording_for_a_defect(recorded, caplog):
    async def talk(site):
        await hailed(site, 30)
        await trio.sleep(1000)
        await hailed(site, 1)

    assert sum(replayed(recorded(talk))) == 31
    assert "was lost" not in caplog.text
