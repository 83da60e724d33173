"""What one side of a proxy over HTTP hears of what goes wrong at the other, and what is recorded."""

import httpx2
import pytest
import trio
import trio.testing

from mcp_trio._journal.conversation import CANCELLED
from tests.transports.http.scripted_server import (
    EVENTS,
    JSON,
    Legacy,
    Modern,
    Reply,
    asking,
    event,
    result,
)

STATELESS = "2026-07-28"
CALL = asking(1, "tools/call", STATELESS)
LOG = {"jsonrpc": "2.0", "method": "notifications/message", "params": {}}


def http_marks(session):
    return [body["value"] for body in session.bodies("mark") if body["name"] == "http"]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (httpx2.ConnectError("refused"), "cannot connect to http://mcp.test/mcp: refused"),
        (httpx2.ReadError("reset"), "the connection broke to http://mcp.test/mcp: reset"),
    ],
    ids=["down", "broken"],
)
async def test_a_server_that_does_not_answer_is_a_502_that_names_it(
    between, tmp_path, files, error, words
):
    async def answer(seen):
        raise error

    async with between(answer, tmp_path) as proxy:
        answered = await proxy.ask(CALL)
    assert answered.status == 502
    assert answered.json["id"] == 1
    assert answered.json["error"]["code"] == -32000
    assert answered.json["error"]["message"] == f"the proxy got no answer from the server: {words}"
    (session,) = files()
    assert session.lines("in") == [CALL]
    assert session.lines("out") == []
    assert http_marks(session) == [{"method": "POST", "status": 502, "error": words}]


@pytest.mark.parametrize(
    ("status", "headers"), [(101, {}), (200, {"x-odd": "a\x01b"})], ids=["status", "header"]
)
async def test_an_answer_that_no_host_could_give_is_a_502(between, tmp_path, status, headers):
    async def answer(seen):
        return Reply(status, headers, b"")

    async with between(answer, tmp_path) as proxy:
        answered = await proxy.ask(CALL)
    assert answered.status == 502
    assert "sent an answer that is not valid HTTP" in answered.json["error"]["message"]


async def test_a_slow_server_is_waited_for(between, tmp_path, files, autojump_clock):
    async def slow(seen):
        await trio.sleep(3000)
        return result(seen, ok=True)

    async with between(Modern(answers={"tools/call": slow}), tmp_path) as proxy:
        assert (await proxy.ask(CALL)).json["result"] == {"ok": True}
    (session,) = files()
    assert session.kinds() == ["open", "in", "out", "shut", "end"]


async def test_a_stream_that_breaks_off_breaks_off(between, tmp_path, files):
    async def pieces():
        yield event(LOG)
        raise httpx2.ReadError("reset")

    async def answer(seen):
        return Reply(200, EVENTS, pieces())

    async with between(answer, tmp_path) as proxy:
        exchange = await proxy.ask(CALL)
        assert exchange.pieces == [event(LOG)]
        assert not exchange.is_ended
    (session,) = files()
    assert session.bodies("out") == [LOG]
    (mark,) = http_marks(session)
    assert mark["error"].endswith("reset")


async def test_a_body_that_breaks_off_is_a_502(between, tmp_path, files):
    async def pieces():
        yield b'{"jsonrpc":'
        raise httpx2.RemoteProtocolError("cut")

    async def answer(seen):
        return Reply(200, JSON, pieces())

    async with between(answer, tmp_path) as proxy:
        assert (await proxy.ask(CALL)).status == 502
    (session,) = files()
    assert session.lines("out") == []


async def test_a_client_that_goes_away_takes_its_request_with_it(between, tmp_path, files):
    async def pieces():
        yield event(LOG)
        await trio.sleep_forever()

    async def answer(seen):
        return Reply(200, EVENTS, pieces())

    async with between(answer, tmp_path) as proxy:
        exchange = proxy.begin(CALL)
        await exchange.message()
        (closed,) = proxy.server.closed
        assert not closed.is_set()
        exchange.leave()
        with trio.fail_after(5):
            await closed.wait()
        await trio.testing.wait_all_tasks_blocked()
    (session,) = files()
    cancelled = session.records[-3]
    assert cancelled.envelope == {"gone": True}
    assert session.bodies("in")[-1]["method"] == CANCELLED
    assert session.bodies("in")[-1]["params"]["requestId"] == 1
    assert http_marks(session) == [{"method": "POST", "error": "the client went away"}]


async def test_a_client_that_goes_away_before_the_head_takes_its_request_with_it(
    between, tmp_path, files
):
    ended = trio.Event()

    async def answer(seen):
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    async with between(answer, tmp_path) as proxy:
        exchange = proxy.begin(asking(1, "tools/call"))
        await trio.testing.wait_all_tasks_blocked()
        exchange.leave()
        with trio.fail_after(5):
            await ended.wait()
        await trio.testing.wait_all_tasks_blocked()
    (session,) = files()
    assert session.lines("in") == [asking(1, "tools/call")]


async def test_a_client_that_does_not_read_stops_the_server(between, tmp_path, files):
    sent = []

    async def pieces():
        for number in range(100):
            sent.append(number)
            yield event(LOG)

    async def answer(seen):
        return Reply(200, EVENTS, pieces())

    async with between(answer, tmp_path) as proxy:
        exchange = proxy.exchange(CALL)
        exchange.stall()
        proxy.nursery.start_soon(proxy.proxy.respond, exchange)
        await trio.testing.wait_all_tasks_blocked()
        assert len(sent) == 1
        exchange.read_on()
        assert len(await exchange.rest()) == 100


async def test_what_the_host_check_rejects_does_not_reach_the_server(between, tmp_path, files):
    async with between(Legacy(), tmp_path) as proxy:
        answered = await proxy.ask(CALL, Origin="http://evil.test")
    assert answered.status == 403
    assert proxy.server.seen == []
    (session,) = files()
    (mark,) = http_marks(session)
    assert mark["status"] == 403


async def test_the_end_of_the_proxy_completes_the_files(between, tmp_path, files):
    async def answer(seen):
        await trio.sleep_forever()

    async with between(answer, tmp_path) as proxy:
        proxy.begin(CALL)
        proxy.begin(asking(0, "initialize"))
        await trio.testing.wait_all_tasks_blocked()
        proxy.proxy.recordings.shut("signal")
    sessions = files()
    assert [session.cause for session in sessions] == ["signal"] * 2
    assert [session.kinds()[-1] for session in sessions] == ["end"] * 2
