"""Idle HTTP sessions have no tasks and take little memory."""

import gc
import os
import tracemalloc

import pytest
import trio
import trio.testing

from mcp_trio import Server
from mcp_trio.limits import KIB
from mcp_trio.recording import RecordOptions, replay
from tests.server.http.conftest import call, harbour, notification, site_of, text

pytestmark = pytest.mark.slow  # memory of ours alone, too

SESSIONS = 100
KIB_MAX = 5


def tasks_living():
    return trio.lowlevel.current_statistics().tasks_living


async def has_come_to_rest():
    await trio.sleep(60)  # whoever only waits for a while has gone by then
    return tasks_living()


async def test_idle_sessions_have_no_tasks(open_site, autojump_clock):
    site = await open_site(harbour())
    await site.open()
    before = await has_come_to_rest()
    clients = [await site.open() for _ in range(SESSIONS)]
    assert len(site.runtime.sessions) == SESSIONS + 1
    assert await has_come_to_rest() <= before
    for client in clients:
        assert text((await client.ask(call("tide"))).json) == "high"
    assert await has_come_to_rest() <= before


async def test_a_session_is_idle_again_after_its_requests(open_site, autojump_clock):
    server = harbour()
    heard = []

    @server.method("notifications/acme/horn")
    async def horn() -> None:
        await trio.sleep(1)
        heard.append("horn")

    site = await open_site(server)
    client = await site.open()
    before = await has_come_to_rest()
    asked = client.begin(call("log"))
    await asked.begun()
    await client.ask(notification("notifications/acme/horn"))
    await client.ask(call("ebb", id=2))
    assert tasks_living() > before
    await asked.rest()
    assert await has_come_to_rest() <= before
    assert heard == ["horn"]
    listening = client.listen()
    assert (await listening.message())["method"] == "notifications/tools/list_changed"


async def test_an_idle_session_takes_little_memory(open_site, autojump_clock):
    site = await open_site(harbour())
    for _ in range(SESSIONS):
        await use_one(site)
    await has_come_to_rest()
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(4 * SESSIONS):
            await use_one(site)
        await has_come_to_rest()
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown / (4 * SESSIONS) <= KIB_MAX * KIB


async def use_one(site):
    client = await site.open()
    await client.ask(call("tide"))


async def test_ended_sessions_leave_nothing_in_the_server(open_site, autojump_clock):
    site = await open_site(harbour())
    before = await has_come_to_rest()
    for _ in range(SESSIONS):
        client = await site.open()
        await client.ask(call("tide"))
        await client.delete()
    assert await has_come_to_rest() <= before
    sessions = site.runtime.server
    assert len(site.runtime.sessions) == 0
    assert len(sessions.change_notifier._listeners) <= 1  # that of all stateless requests
    assert sessions._counter._all.opened == sessions._counter._all.closed + 1


@pytest.mark.parametrize("is_awake", [False, True])
async def test_an_idle_session_ends_with_a_complete_recording(
    open_site, tmp_path, is_awake, autojump_clock
):
    site = await open_site(harbour(), record=tmp_path)
    client = await site.open()
    asked = client.begin(call("wait", {"seconds": 60})) if is_awake else None
    await trio.sleep(1)
    site.runtime.close()
    await site.runtime.ended.wait()
    if asked is not None:
        await asked.rest()
    (recorded,) = [each for each in tmp_path.iterdir() if b'"initialize"' in each.read_bytes()]
    report = await trio.to_thread.run_sync(replay, recorded, harbour())
    assert report.is_complete


async def test_a_handler_that_ends_the_process_ends_every_session_in_order(tmp_path):
    server = Server("harbour")

    @server.tool
    async def leave() -> str:
        raise SystemExit(3)

    sites = []

    async def serve():
        async with site_of(server, record=tmp_path) as site:
            sites.append(site)
            clients = [await site.open() for _ in range(3)]
            clients[0].begin(call("leave"))
            await trio.sleep_forever()

    with pytest.raises(BaseExceptionGroup) as caught:
        await serve()
    assert caught.value.subgroup(SystemExit)
    assert sites[0].runtime.ended.is_set()
    files = [each.read_text().splitlines() for each in tmp_path.iterdir()]
    assert len(files) == 4  # one more for all stateless requests
    assert all('"end"' in lines[-1] for lines in files)


@pytest.mark.parametrize("leads", [False, True])
async def test_a_strict_recording_detects_untracked_calls_in_each_session(
    open_site, tmp_path, autojump_clock
):
    server = Server("harbour")

    @server.tool
    async def process() -> int:
        return os.getpid()

    site = await open_site(server, record=RecordOptions(tmp_path, strict=True))
    for _ in range(2):
        client = await site.open()
        answer = await client.ask(call("process"))
        assert answer.json["error"]["code"] == -32603
        await client.delete()
    stateless = await site.ask_stateless(call("process"))
    assert stateless.json["error"]["code"] == -32603
    site.runtime.close()
    await site.runtime.ended.wait()
