"""The session behind all stateless requests: what its loss costs, and that another one begins."""

import pytest
import trio

from mcp_trio import Limits
from mcp_trio._server.http_sessions import Restarts
from mcp_trio.limits import HttpLimits
from mcp_trio.recording import RecordOptions
from tests.server.http.conftest import call, harbour, text

LIMITS = Limits(http=HttpLimits(restart_seconds=1, restart_seconds_max=4))


async def lose_stateless(site):
    """As a defect of the engine would end it."""
    await site.runtime.stateless.aclose()
    await trio.sleep(0.1)


async def test_another_session_takes_its_place(open_site, caplog, autojump_clock):
    site = await open_site(harbour(limits=LIMITS))
    await lose_stateless(site)
    rejected = await site.ask_stateless(call("tide"))
    assert (rejected.status, rejected.json["id"]) == (503, 1)
    assert "another" in rejected.json["error"]["message"]
    await trio.sleep(1)
    assert text((await site.ask_stateless(call("tide"))).json) == "high"
    assert "stateless requests was lost" in caplog.text


async def test_requests_in_flight_end_with_it_and_nothing_else_does(
    open_site, ended, autojump_clock
):
    site = await open_site(harbour(ended, limits=LIMITS))
    client = await site.open()
    kept = client.begin(call("wait", {"seconds": 9}))
    lost = site.begin_stateless(call("wait", {"seconds": 9}), accept="application/json")
    await trio.sleep(1)
    await lose_stateless(site)
    assert (lost.status, lost.json["id"]) == (503, 1)
    assert text((await client.ask(call("tide", id=2))).json) == "high"
    assert (await site.open()).id != client.id
    assert [text(each) for each in await kept.rest()] == ["waited"]
    assert ended == ["cancelled", "done"]


async def test_a_legacy_session_that_is_lost_costs_the_others_nothing(open_site, autojump_clock):
    site = await open_site(harbour(limits=LIMITS))
    client, other = await site.open(), await site.open()
    await site.runtime.sessions.used(client.id).channel.aclose()
    await trio.sleep(0.1)
    assert (await client.ask(call("tide"))).status == 404
    assert text((await other.ask(call("tide"))).json) == "high"
    assert text((await site.ask_stateless(call("tide"))).json) == "high"


async def test_it_begins_again_and_again_but_ever_more_slowly(open_site, autojump_clock):
    site = await open_site(harbour(limits=LIMITS))
    pauses = []
    for _ in range(4):
        await lose_stateless(site)
        lost_at = trio.current_time()
        while (await site.ask_stateless(call("tide"))).status == 503:
            await trio.sleep(0.25)
        pauses.append(round(trio.current_time() - lost_at))
    assert pauses == [1, 2, 4, 4]


async def test_a_runtime_that_closes_begins_none(open_site, caplog, autojump_clock):
    site = await open_site(harbour(limits=LIMITS))
    await lose_stateless(site)
    site.runtime.close()
    await site.runtime.ended.wait()
    assert caplog.text.count("was lost") == 1
    other = await open_site(harbour(limits=LIMITS))
    other.runtime.close()
    await other.runtime.ended.wait()
    assert caplog.text.count("was lost") == 1
    assert (await other.ask_stateless(call("tide"))).status == 503


async def test_one_that_cannot_be_recorded_is_tried_again(
    open_site, tmp_path, caplog, autojump_clock
):
    folder = tmp_path / "here"
    folder.mkdir()
    site = await open_site(harbour(limits=LIMITS), record=f"{folder}/")
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    await lose_stateless(site)
    await trio.sleep(1.5)
    assert (await site.ask_stateless(call("tide"))).status == 503
    assert "cannot open" in caplog.text
    folder.mkdir()
    await trio.sleep(2.5)
    assert text((await site.ask_stateless(call("tide"))).json) == "high"


async def test_while_it_is_lost_a_long_recording_is_no_reason_for_another(
    open_site, tmp_path, caplog, autojump_clock
):
    options = RecordOptions(tmp_path, segment_bytes_max=1)
    site = await open_site(harbour(limits=LIMITS), record=options)
    assert text((await site.ask_stateless(call("tide"))).json) == "high"
    await lose_stateless(site)
    lost = site.runtime.stateless
    assert (await site.ask_stateless(call("tide"))).status == 503
    assert site.runtime.stateless is lost
    await trio.sleep(1)
    assert text((await site.ask_stateless(call("tide"))).json) == "high"
    assert caplog.text.count("was lost") == 1


@pytest.mark.parametrize(
    ("lived", "pauses"),
    [([0, 0, 0, 0], [1, 2, 4, 4]), ([0, 3.9, 4, 0], [1, 2, 1, 2]), ([9, 9], [1, 1])],
)
def test_pauses_grow_until_something_lives_for_a_while(lived, pauses):
    restarts = Restarts(LIMITS)
    assert [restarts.pause_seconds(seconds) for seconds in lived] == pauses
