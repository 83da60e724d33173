"""Sessions that were begun and never used: they go soon, and are in nobody's way."""

import gc
import weakref

import pytest
import trio

from mcp_trio import Limits
from mcp_trio.limits import HttpLimits
from tests.server.http.conftest import call, harbour, hello, notification, text

SOON = {"session_unused_seconds": 50, "session_idle_seconds": 1000}


@pytest.fixture
def bounded(open_site):
    async def bounded(**http):
        return await open_site(harbour(limits=Limits(http=HttpLimits(**http))))

    return bounded


async def test_a_session_that_is_never_used_ends_soon(bounded, autojump_clock):
    site = await bounded(**SOON)
    client = await site.open(ready=False)
    await trio.sleep(49)
    assert len(site.runtime.sessions) == 1
    await trio.sleep(7)
    assert len(site.runtime.sessions) == 0
    assert (await client.ask(call("tide"))).status == 404


@pytest.mark.parametrize("used_by", ["initialized", "a call", "a stream"])
async def test_one_word_makes_it_a_used_one(bounded, used_by, autojump_clock):
    site = await bounded(**SOON)
    client = await site.open(ready=False)
    if used_by == "a stream":
        listening = client.listen()
        await listening.begun()
        listening.leave()
    else:
        said = {"initialized": notification("notifications/initialized"), "a call": call("tide")}
        await client.ask(said[used_by])
    await trio.sleep(900)
    assert len(site.runtime.sessions) == 1
    await trio.sleep(250)
    assert len(site.runtime.sessions) == 0


async def test_a_client_that_still_waits_for_its_first_answer_is_not_gone(bounded, autojump_clock):
    site = await bounded(**SOON)
    slow = site.begin("GET", path="/sse", accept="text/event-stream")
    path = "/" + (await slow.event()).data.decode()
    await trio.sleep(200)
    assert (await site.ask("POST", hello("2024-11-05"), path=path)).status == 202
    assert (await slow.message())["result"]["protocolVersion"] == "2024-11-05"


async def test_unused_sessions_make_room_from_the_oldest(bounded, autojump_clock):
    site = await bounded(sessions_max=3)
    used = await site.open()
    oldest, unused = await site.open(ready=False), await site.open(ready=False)
    newest = await site.open()
    assert (await oldest.ask(call("tide"))).status == 404
    for client in (used, unused, newest):
        assert text((await client.ask(call("tide"))).json) == "high"
    rejected = await site.ask("POST", hello("2025-11-25"))
    assert rejected.status == 503
    assert "limits.http.sessions_max" in rejected.json["error"]["message"]
    assert len(site.runtime.sessions) == 3


async def test_a_session_that_is_just_beginning_makes_no_room(bounded, autojump_clock):
    site = await bounded(sessions_max=1)
    site.begin("GET", path="/sse", accept="text/event-stream")
    await trio.sleep(1)
    assert (await site.ask("POST", hello("2025-11-25"))).status == 503


async def test_many_that_are_never_used_block_nobody(bounded, autojump_clock):
    site = await bounded(sessions_max=20)
    for _ in range(60):
        await site.open(ready=False)
    client = await site.open()
    assert text((await client.ask(call("tide"))).json) == "high"
    assert len(site.runtime.sessions) == 20


async def test_nothing_holds_a_session_that_has_ended(bounded, autojump_clock):
    site = await bounded(**SOON)
    client = await site.open()
    (session,) = map(weakref.ref, site.runtime.sessions)
    await trio.sleep(7)
    assert len(site.runtime.sessions) == 1  # it was looked at, and is younger than the limit
    await client.delete()
    await trio.testing.wait_all_tasks_blocked()
    gc.collect()
    assert session() is None
