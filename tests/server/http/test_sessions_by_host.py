"""Legacy sessions over HTTP: ids, streams, batches and the end of a session."""

import pytest
import trio
import trio.testing

from mcp_trio import Limits, Server
from mcp_trio.limits import HttpLimits
from tests.server.http.conftest import (
    BOTH,
    call,
    harbour,
    has_received_nothing,
    hello,
    notes,
    notification,
    request,
    text,
)

LEGACY = ["2025-03-26", "2025-06-18", "2025-11-25"]
EVENTS = "text/event-stream"
JSON = "application/json"


@pytest.fixture(params=[False, True], ids=["", "leading"])
def leads(request):
    """Both: each answer has a task of its own, or leader/followers answer."""
    return request.param


async def test_only_the_first_step_of_a_handler_runs_in_the_task_of_the_exchange(open_site, leads):
    answering, handling = [], []

    async def verify(_head):
        answering.append(trio.lowlevel.current_task())
        return "anna"

    server = Server("harbour", auth=verify)

    @server.tool
    async def look(*, waits: bool) -> None:
        handling.append(trio.lowlevel.current_task())
        if waits:
            await trio.lowlevel.checkpoint()

    client = await (await open_site(server)).open()
    for waits in (False, True, False):
        assert (await client.ask(call("look", {"waits": waits}))).status == 200
        assert (handling[-1] is answering[-1]) == leads


# The start of a session, and its id.


@pytest.mark.requirement("HTTP-44", "HTTP-45", "HTTP-46", "HTTP-60", "TRAP-33")
async def test_a_handshake_is_answered_with_the_id_of_a_session(open_site, autojump_clock):
    site = await open_site(harbour())
    answers = [await site.ask("POST", hello("2025-11-25")) for _ in range(3)]
    assert {answer.status for answer in answers} == {200}
    assert {answer.json["result"]["protocolVersion"] for answer in answers} == {"2025-11-25"}
    ids = {answer.headers["mcp-session-id"] for answer in answers}
    assert len(ids) == 3
    assert all(len(id_) >= 43 and set(id_) <= set(map(chr, range(0x21, 0x7F))) for id_ in ids)


@pytest.mark.requirement("TRAP-18", "LIFE-07")
async def test_a_stateless_protocol_version_never_comes_out_of_a_handshake(
    open_site, autojump_clock
):
    site = await open_site(harbour())
    answer = await site.ask("POST", hello("2026-07-28"))
    assert answer.json["result"]["protocolVersion"] == "2025-11-25"


@pytest.mark.requirement("HTTP-44", "TRAP-33")
async def test_a_rejected_handshake_leaves_no_session(open_site, autojump_clock):
    site = await open_site(harbour())
    answer = await site.ask("POST", request("initialize", {}))
    assert (answer.status, answer.json["error"]["code"]) == (200, -32602)
    assert "mcp-session-id" not in answer.headers
    await trio.testing.wait_all_tasks_blocked()
    assert len(site.runtime.sessions) == 0


async def test_a_session_whose_id_could_not_be_sent_is_dropped(open_site, autojump_clock):
    site = await open_site(harbour())
    asked = site.exchange("POST", hello("2025-11-25"))
    asked.is_hasty = True
    await site.app.respond(asked)
    await trio.testing.wait_all_tasks_blocked()
    assert len(site.runtime.sessions) == 0


async def test_the_number_of_sessions_is_limited(open_site, autojump_clock):
    site = await open_site(harbour(limits=Limits(http=HttpLimits(sessions_max=2))))
    first = await site.open()
    await site.open()
    rejected = await site.ask("POST", hello("2025-11-25"))
    assert (rejected.status, rejected.json["id"]) == (503, 0)
    assert "limits.http.sessions_max" in rejected.json["error"]["message"]
    await first.delete()
    await site.open()


# Answers.


@pytest.mark.requirement("HTTP-12", "HTTP-01")
@pytest.mark.parametrize("protocol_version", LEGACY)
async def test_an_immediate_response_is_json(opened, protocol_version, autojump_clock):
    answer = await (await opened(protocol_version)).ask(call("tide"))
    assert (answer.status, text(answer.json)) == (200, "high")


@pytest.mark.requirement("HTTP-10", "TRAP-32")
@pytest.mark.parametrize("protocol_version", LEGACY)
@pytest.mark.parametrize(
    "message",
    [
        notification("notifications/roots/list_changed"),
        {"jsonrpc": "2.0", "id": 99, "result": {}},
        {"jsonrpc": "2.0", "id": 99, "error": {"code": 1, "message": "no"}},
    ],
    ids=["notification", "result", "error"],
)
async def test_notifications_and_responses_are_accepted_without_content(
    opened, protocol_version, message, autojump_clock
):
    answer = await (await opened(protocol_version)).ask(message)
    assert (answer.status, answer.answer_body) == (202, b"")
    assert "content-type" not in answer.headers


@pytest.mark.requirement("HTTP-12", "HTTP-19", "HTTP-20", "HTTP-21", "HTTP-24")
@pytest.mark.parametrize("protocol_version", LEGACY)
async def test_a_slow_response_is_a_stream(opened, protocol_version, autojump_clock):
    asked = (await opened(protocol_version)).begin(call("log"))
    await asked.begun()
    assert asked.is_stream
    assert asked.headers["x-accel-buffering"] == "no"
    messages = await asked.rest()
    assert notes(messages) == ["one", "two"]
    assert text(messages[-1]) == "logged"


async def test_a_slow_response_is_kept_alive_by_comments(opened, autojump_clock):
    asked = (await opened(limits={"http": HttpLimits(sse_keep_alive_seconds=2)})).begin(
        call("wait", {"seconds": 9})
    )
    assert [text(each) for each in await asked.rest()] == ["waited"]
    assert asked.comments == 4


@pytest.mark.requirement("HTTP-14", "HTTP-39", "TRAP-37")
@pytest.mark.parametrize("protocol_version", LEGACY)
async def test_a_stream_begins_with_an_empty_event_since_2025_11_25(
    opened, protocol_version, autojump_clock
):
    asked = (await opened(protocol_version)).begin(call("log"))
    event = await asked.event()
    if protocol_version == "2025-11-25":
        assert (event.data, event.retry_ms) == (b"", 1000)
        assert event.id.split("-")[1] == "1"
        event = await asked.event()
    assert event.data
    assert event.id.split("-")[1] == "2"


@pytest.mark.parametrize("streams_answers", [True, False])
async def test_streams_answers_makes_every_response_a_stream(
    opened, streams_answers, autojump_clock
):
    client = await opened(streams_answers=streams_answers)
    assert (await client.ask(call("tide"))).is_stream == streams_answers
    assert not (await client.ask(call("tide"), accept=JSON)).is_stream


@pytest.mark.requirement("TRAP-31")
async def test_a_client_that_accepts_only_sse_gets_sse(opened, autojump_clock):
    asked = await (await opened()).ask(call("tide"), accept=EVENTS)
    assert asked.is_stream
    assert [text(each) for each in await asked.rest()] == ["high"]


@pytest.mark.requirement("TRAP-31")
async def test_a_client_that_accepts_only_json_gets_only_the_response(opened, autojump_clock):
    client = await opened()
    answer = await client.ask(call("log"), accept=JSON)
    assert text(answer.json) == "logged"
    listening = client.listen()
    assert notes([await listening.message(), await listening.message()]) == ["one", "two"]


@pytest.mark.requirement("HTTP-36", "HTTP-38")
async def test_each_request_has_a_stream_of_its_own(opened, autojump_clock):
    client = await opened()
    asked = [client.begin(call("log", {"seconds": n}, id=n)) for n in (1, 2, 3)]
    events = {n: [] for n in (0, 1, 2)}
    for number, exchange in enumerate(asked):
        events[number] = [await exchange.event() for _ in range(3)]
        assert [each["id"] for each in await exchange.rest()] == [number + 1]
    ids = [event.id for each in events.values() for event in each]
    assert len(set(ids)) == len(ids)


async def test_an_id_in_use_is_rejected(opened, autojump_clock):
    client = await opened()
    asked = client.begin(call("wait", id=5))
    await trio.testing.wait_all_tasks_blocked()
    rejected = await client.ask(call("tide", id=5))
    assert (rejected.status, rejected.json["id"]) == (400, 5)
    assert [text(each) for each in await asked.rest()] == ["waited"]
    assert text((await client.ask(call("tide", id="5"))).json) == "high"


async def test_the_number_of_concurrent_requests_is_limited(opened, autojump_clock):
    client = await opened(limits={"http": HttpLimits(streams_max=2)})
    asked = [client.begin(call("wait", id=n)) for n in (1, 2)]
    await trio.testing.wait_all_tasks_blocked()
    rejected = await client.ask(call("tide", id=3))
    assert (rejected.status, rejected.json["id"]) == (429, 3)
    assert "limits.http.streams_max" in rejected.json["error"]["message"]
    for exchange in asked:
        await exchange.rest()
    assert text((await client.ask(call("tide", id=3))).json) == "high"


@pytest.mark.requirement("CANC-06", "HTTP-32")
@pytest.mark.parametrize(("accept", "status"), [(BOTH, 200), (JSON, 202)])
async def test_a_request_that_the_client_cancels_is_not_answered(
    opened, accept, status, ended, autojump_clock
):
    client = await opened()
    listening = client.listen()
    asked = client.begin(call("wait", {"seconds": 60}, id=5), accept=accept)
    await trio.sleep(1)
    answer = await client.ask(notification("notifications/cancelled", {"requestId": 5}))
    assert answer.status == 202
    await trio.sleep(1)
    assert asked.is_ended
    assert (asked.status, await asked.rest(), asked.answer_body) == (status, [], b"")
    assert ended == ["cancelled"]
    await trio.sleep(1)
    assert [event.data for event in listening._events] == [b""]


async def test_an_invalid_cancellation_ends_no_request(opened, autojump_clock):
    client = await opened()
    asked = client.begin(call("wait", id=5))
    for params in ({"requestId": 6}, {"requestId": []}, None):
        await client.ask(notification("notifications/cancelled", params))
    assert [text(each) for each in await asked.rest()] == ["waited"]


# Batches.


@pytest.mark.requirement("HTTP-19", "HTTP-24", "TRAP-02", "HTTP-22")
async def test_a_batch_is_answered_on_one_stream(opened, autojump_clock):
    client = await opened("2025-03-26")
    asked = client.begin([call("log", id=1), call("tide", id=2), notification("n")])
    messages = await asked.rest()
    assert [(each["id"], text(each)) for each in messages if "id" in each] == [
        (2, "high"),
        (1, "logged"),
    ]


@pytest.mark.requirement("TRAP-02")
async def test_a_batch_is_answered_by_an_array_if_sse_is_not_accepted(opened, autojump_clock):
    client = await opened("2025-03-26")
    answer = await client.ask([call("log", id=1), call("tide", id=2)], accept=JSON)
    assert [(each["id"], text(each)) for each in answer.json] == [(2, "high"), (1, "logged")]


async def test_a_batch_may_contain_a_cancellation(opened, autojump_clock):
    client = await opened("2025-03-26")
    asked = client.begin(call("wait", {"seconds": 60}, id=5))
    await trio.sleep(1)
    cancel = notification("notifications/cancelled", {"requestId": 5})
    assert (await client.ask([cancel])).status == 202
    assert await asked.rest() == []


@pytest.mark.requirement("HTTP-11", "HTTP-32")
async def test_a_batch_with_an_invalid_message_is_rejected_completely(opened, autojump_clock):
    client = await opened("2025-03-26")
    listening = client.listen()
    assert (await client.ask([call("tide"), 1])).status == 400
    await trio.sleep(1)
    assert has_received_nothing(listening)
    rejected = await (await opened("2025-06-18")).ask([call("tide")])
    assert rejected.status == 400


# Messages that belong to no request.


@pytest.mark.requirement("HTTP-29", "HTTP-30", "HTTP-31", "HTTP-36", "TRAP-41")
async def test_messages_of_no_request_wait_for_the_get_stream_and_are_sent_once(
    opened, autojump_clock
):
    client = await opened()
    asked = await client.ask(call("ebb"))
    assert asked.json["id"] == 1
    listening = client.listen()
    assert (await listening.message())["method"] == "notifications/tools/list_changed"
    await client.ask(call("ebb", id=2))
    assert (await listening.message())["method"] == "notifications/tools/list_changed"
    listening.leave()
    await trio.sleep(1)
    again = client.listen()
    await trio.sleep(1)
    assert has_received_nothing(again)


@pytest.mark.requirement("HTTP-36")
async def test_there_is_one_get_stream_at_a_time(opened, autojump_clock):
    client = await opened()
    listening = client.listen()
    await listening.begun()
    rejected = await client.ask(method="GET", accept=EVENTS)
    assert rejected.status == 409
    listening.leave()
    await trio.sleep(0.1)
    again = client.listen()
    assert (await again.begun()).status == 200


@pytest.mark.requirement("HTTP-33")
async def test_a_stream_of_events_ends_with_its_session(opened, autojump_clock):
    client = await opened()
    listening = client.listen()
    await listening.begun()
    assert (await client.delete()).status == 200
    assert await listening.rest() == []
    assert listening.status == 200


@pytest.mark.requirement("HTTP-21", "HTTP-20", "HTTP-10")
async def test_a_request_of_a_handler_uses_the_stream_of_its_call(opened, autojump_clock):
    client = await opened(capabilities={"sampling": {}})
    listening = client.listen()
    asked = client.begin(call("ask"))
    question = await asked.message()
    assert question["method"] == "sampling/createMessage"
    result = {
        "role": "assistant",
        "content": {"type": "text", "text": "north"},
        "model": "m",
    }
    answer = await client.ask({"jsonrpc": "2.0", "id": question["id"], "result": result})
    assert (answer.status, answer.answer_body) == (202, b"")
    assert [text(each) for each in await asked.rest()] == ["north"]
    assert has_received_nothing(listening)


# The end of a session.


@pytest.mark.requirement("HTTP-50", "HTTP-51", "HTTP-23")
@pytest.mark.parametrize("accept", [BOTH, JSON])
async def test_delete_ends_a_session_and_its_running_handlers(
    opened, accept, ended, autojump_clock
):
    client = await opened()
    asked = client.begin(call("wait", {"seconds": 60}), accept=accept)
    await trio.sleep(1)
    answer = await client.delete()
    assert (answer.status, answer.answer_body) == (200, b"")
    await trio.sleep(1)
    assert asked.is_ended
    if accept == BOTH:
        assert await asked.rest() == []
    else:
        assert (asked.status, asked.json["id"]) == (503, 1)
    assert ended == ["cancelled"]
    for method, message in (("POST", call("tide")), ("GET", None), ("DELETE", None)):
        assert (await client.ask(message, method=method)).status == 404
    assert len(client.site.runtime.sessions) == 0


@pytest.mark.requirement("HTTP-50", "HTTP-51")
async def test_an_idle_session_ends_after_the_timeout(opened, autojump_clock):
    client = await opened(limits={"http": HttpLimits(session_idle_seconds=100)})
    for _ in range(3):
        await trio.sleep(80)
        assert (await client.ask(call("tide"))).status == 200
    await trio.sleep(111)
    assert (await client.ask(call("tide"))).status == 404


@pytest.mark.parametrize("way", ["listens", "waits"])
async def test_a_session_with_an_open_stream_or_request_is_not_idle(opened, way, autojump_clock):
    client = await opened(limits={"http": HttpLimits(session_idle_seconds=100)})
    message = call("wait", {"seconds": 1000})
    there = client.listen() if way == "listens" else client.begin(message)
    await trio.sleep(999)
    assert (await client.ask(call("tide", id=2))).status == 200
    await trio.sleep(0.5)
    there.leave()
    await trio.sleep(50)
    assert (await client.ask(call("tide", id=2))).status == 200


async def test_the_idle_time_starts_when_the_client_disconnects(opened, autojump_clock):
    client = await opened(limits={"http": HttpLimits(session_idle_seconds=100)})
    listening = client.listen()
    await trio.sleep(1000)
    listening.leave()
    await trio.sleep(50)
    assert len(client.site.runtime.sessions) == 1
    assert (await client.listen().begun()).status == 200


@pytest.mark.requirement("HTTP-59", "HTTP-61", "HTTP-05")
async def test_a_session_belongs_to_the_principal_that_opened_it(open_site, autojump_clock):
    async def verify(head):
        return head.header("authorization")

    site = await open_site(harbour(auth=verify))
    client = await site.open(Authorization="me")
    assert (await client.ask(call("tide"))).status == 200
    for who, status in (("you", 404), (None, 401)):
        for method, message in (("POST", call("tide")), ("GET", None), ("DELETE", None)):
            rejected = await client.ask(message, method=method, Authorization=who)
            assert rejected.status == status
    assert rejected.headers["www-authenticate"] == "Bearer"
    assert (await client.ask(call("tide"))).status == 200


async def test_a_json_response_is_not_kept_for_resumption(opened, autojump_clock):
    client = await opened()
    (begun,) = client.site.runtime.sessions
    kept = begun.channel._event_store
    before = kept._kept_events
    assert not (await client.ask(call("tide"))).is_stream
    assert kept._kept_events == before
    assert (await client.ask(call("log"))).is_stream
    assert kept._kept_events > before
