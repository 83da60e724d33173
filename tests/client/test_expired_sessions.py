"""Clients of servers that have forgotten their session and get a new one."""

import contextlib
import json

import httpx2
import pytest
import trio
import trio.testing

from mcp_trio import Client, ConnectionLost
from mcp_trio.errors import OutcomeUnknown
from tests.transports.http.scripted_server import (
    EVENTS,
    URL,
    Forgetful,
    Reply,
    Script,
    event,
    events,
    result,
)

PROTOCOL_VERSIONS = ("2025-11-25",)


async def said(seen):
    return result(seen, content=[])


async def endless(_seen):
    async def body():
        yield event(text="", event_id="a-1")
        await trio.sleep_forever()

    return Reply(200, EVENTS, body())


@contextlib.asynccontextmanager
async def served(record=None, **options):
    """A server whose tool `add` answers, a client of it, and the requests that came."""
    server = Forgetful(**{"answers": {"tools/call": said}, **options})
    script = Script(server)
    async with (
        httpx2.AsyncClient(transport=script) as http,
        Client(
            URL, http=http, protocol_versions=PROTOCOL_VERSIONS, roots=[], record=record
        ) as client,
    ):
        await trio.testing.wait_all_tasks_blocked()  # it has said that it is there, and listens
        yield server, client, script


def sessions_of(script, method):
    return [seen.headers["mcp-session-id"] for seen in script.of(method)]


@pytest.mark.requirement("HTTP-51", "HTTP-52", "TRAP-34")
async def test_a_call_rejected_with_an_expired_session_is_repeated_in_a_new_one():
    async with served() as (server, client, script):
        server.forget()
        assert (await client.call_tool("add")).content == []
    assert sessions_of(script, "tools/call") == ["s-1", "s-2"]
    begun = script.of("initialize")
    assert ["mcp-session-id" in seen.headers for seen in begun] == [False, False]


@pytest.mark.parametrize("status", [400, 403, 413, 429])
async def test_a_call_rejected_for_another_reason_is_not_repeated(status):
    async def reject(_seen):
        return Reply(status)

    async with served(answers={"tools/call": reject}) as (_, client, script):
        with pytest.raises(ConnectionLost, match=f"HTTP {status}") as lost:
            await client.call_tool("add")
        assert client.is_open
    assert lost.value.http_status == status
    assert len(script.of("tools/call")) == 1


@pytest.mark.requirement("HTTP-52")
async def test_all_calls_in_flight_are_repeated_in_the_new_session(autojump_clock):
    async with served() as (server, client, script):

        async def late(seen):
            await trio.sleep(len(script.seen) / 10)  # the refusals come one after the other
            return await server(seen)

        script.answer = late
        server.forget()
        async with trio.open_nursery() as calls:
            for _ in range(5):
                calls.start_soon(client.call_tool, "add")
    assert sorted(sessions_of(script, "tools/call")) == ["s-1"] * 5 + ["s-2"] * 5
    assert script.methods.count("initialize") == 2


async def test_an_unanswered_call_is_lost_with_its_session(autojump_clock):
    async def never(seen):
        if seen.message["params"]["name"] == "never":
            await trio.sleep_forever()
        return await said(seen)

    async with served(answers={"tools/call": never}) as (server, client, _):

        async def lost():
            with pytest.raises(OutcomeUnknown, match="ended the session"):
                await client.call_tool("never")

        async with trio.open_nursery() as calls:
            calls.start_soon(lost)
            await trio.testing.wait_all_tasks_blocked()
            server.forget()
            since = trio.current_time()
            await client.call_tool("add")
            assert trio.current_time() - since == pytest.approx(2, abs=0.5)


@pytest.mark.requirement("HTTP-52", "TRAP-34")
async def test_a_call_whose_answer_had_begun_is_lost_with_its_session():
    async with served() as (server, client, _):
        server.answers["tools/call"] = endless

        async def lost():
            with pytest.raises(OutcomeUnknown, match="ended the session"):
                await client.call_tool("add")

        async with trio.open_nursery() as calls:
            calls.start_soon(lost)
            await trio.testing.wait_all_tasks_blocked()
            server.forget()
            server.answers["tools/call"] = said
            await client.call_tool("add")


async def test_a_rejected_notification_opens_a_new_session_for_the_next_call():
    async with served() as (server, client, script):
        server.forget()
        await client.notify_roots_changed()
        await trio.testing.wait_all_tasks_blocked()
        assert not client.is_open
        await client.call_tool("add")
        assert client.is_open
    assert sessions_of(script, "tools/call") == ["s-2"]


async def test_the_servers_own_stream_may_report_the_expiry_first(autojump_clock):
    cut = trio.Event()

    async def listen(seen):
        async def body():
            yield event(text="", event_id="g-1")
            await cut.wait()

        return Reply(200, EVENTS, body())

    async with served(listen=listen) as (server, client, script):
        server.forget()
        cut.set()
        await trio.sleep(5)
        assert not client.is_open
        await client.call_tool("add")
        await trio.sleep(0.1)
    assert sessions_of(script, "tools/call") == ["s-2"]
    assert sessions_of(script, "GET")[:3] == ["s-1", "s-1", "s-2"]


async def test_a_resumed_stream_may_report_the_expiry_and_its_call_is_lost(autojump_clock):
    async def cut(_seen):
        return events(event(text="", event_id="a-1"))

    async with served() as (server, client, script):
        server.answers["tools/call"] = cut

        async def lost():
            with pytest.raises(OutcomeUnknown, match="ended the session"):
                await client.call_tool("add")

        async with trio.open_nursery() as calls:
            calls.start_soon(lost)
            await trio.testing.wait_all_tasks_blocked()
            server.forget()
        server.answers["tools/call"] = said
        await client.call_tool("add")
    assert sessions_of(script, "tools/call") == ["s-1", "s-2"]


async def test_a_new_session_has_the_subscriptions_of_the_first(autojump_clock):
    async def never(_seen):
        await trio.sleep_forever()

    async with served(listen=never) as (server, client, _):
        await trio.sleep(10)
        server.forget()
        since = trio.current_time()
        await client.call_tool("add")
        assert trio.current_time() - since == pytest.approx(
            1, abs=0.1
        )  # limits.http.get_stream_seconds


async def test_one_recording_file_holds_each_session_as_a_channel(tmp_path):
    file = tmp_path / "story.mcprec.jsonl"
    async with served(record=file) as (server, client, _script):
        await client.call_tool("add")
        server.forget()
        await client.call_tool("add")
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert records[-1]["k"] == "end"
    called = [record["c"] for record in records if "tools/call" in json.dumps(record)]
    assert called == [1, 1, 2]  # that of the second session was asked in the first, too


async def test_the_states_of_each_session_are_reported_from_its_beginning():
    states = []
    server = Forgetful(answers={"tools/call": said})
    async with (
        httpx2.AsyncClient(transport=Script(server)) as http,
        Client(
            URL,
            http=http,
            protocol_versions=PROTOCOL_VERSIONS,
            state_changed=lambda *news: states.append(news),
        ) as client,
    ):
        server.forget()
        await client.call_tool("add")
    over = ("closed", "the server has ended the session")
    begun = [("connecting", ""), ("open", "")]
    assert states == [*begun, over, *begun, ("closed", "closed on this side")]


async def test_a_server_that_expires_every_session_is_not_retried_forever():
    async with served() as (server, client, script):

        async def forgetting(seen):
            reply = await server(seen)
            if seen.method == "POST" and seen.message.get("method") == "notifications/initialized":
                server.forget()
            return reply

        script.answer = forgetting
        server.forget()
        with pytest.raises(ConnectionLost, match="ended the session"):
            await client.call_tool("add")
    assert len(script.of("tools/call")) == 2


async def test_a_cancelled_reconnect_leaves_a_complete_recording(tmp_path, autojump_clock):
    async def never(_seen):
        await trio.sleep_forever()

    file = tmp_path / "story.mcprec.jsonl"
    async with httpx2.AsyncClient(transport=Script(never)) as http:
        client = Client(URL, http=http, protocol_versions=PROTOCOL_VERSIONS, record=file)
        with trio.move_on_after(3):
            await client.__aenter__()
        await client.aclose()
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert records[-1]["k"] == "end"
