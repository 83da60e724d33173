"""A client's channel to a server with sessions: Streamable HTTP up to 2025-11-25."""

import contextlib
import json

import httpx
import pytest
import trio
import trio.testing

from mcp_trio import Client
from mcp_trio._errors import ConnectionLost, OutcomeUnknown
from mcp_trio._limits import Limits
from mcp_trio._transports.http.client_channel import open_http_channel
from mcp_trio._wire import Lost
from tests.transports.http.scripted_server import (
    EVENTS,
    INITIALIZE,
    INITIALIZED,
    URL,
    Legacy,
    Reply,
    Script,
    answer_to,
    asking,
    connected,
    error,
    event,
    events,
    heard,
    in_session,
    result,
    telling,
)

ANSWER = b'{"jsonrpc":"2.0","id":"s-1","result":{}}'
NOTE = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"n": 1}}
LEGACY_ONLY = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")


def call(number):
    return asking(number, "tools/call", name="add")


async def said(seen):
    return result(seen, content=[])


def streaming(*pieces):
    async def answer(_seen):
        return events(*pieces)

    return answer


def resumable(*pieces, listen=None):
    """A server whose calls are answered on a stream that ends early; `listen` resumes it."""
    return Legacy(answers={"tools/call": streaming(*pieces)}, listen=listen)


# The session.


@pytest.mark.requirement("HTTP-06", "HTTP-07", "HTTP-48", "HTTP-55", "HTTP-56", "TRAP-33")
async def test_what_initialize_was_answered_goes_along_with_everything_after_it():
    async with connected(Legacy(answers={"tools/call": said})) as (channel, script):
        await in_session(channel)
        await channel.send([call(1), ANSWER])
        await heard(channel)

    assert script.methods == [
        *("initialize", "notifications/initialized", "GET", "answer", "tools/call", "DELETE")
    ]
    first, *rest = script.seen
    assert not {"mcp-session-id", "mcp-protocol-version"} & first.headers.keys()
    for seen in rest:
        assert seen.headers["mcp-session-id"] == "s-1"
        assert seen.headers["mcp-protocol-version"] == "2025-11-25"
    assert all("application/json, text/event-stream" in seen.headers["accept"] for seen in rest[:1])


async def test_a_server_without_sessions_gets_no_session_id_and_no_delete():
    async with connected(Legacy(session=None, version="2025-06-18")) as (channel, script):
        await in_session(channel)

    assert script.methods == ["initialize", "notifications/initialized", "GET"]
    assert "mcp-session-id" not in script.seen[1].headers
    assert script.seen[1].headers["mcp-protocol-version"] == "2025-06-18"


async def test_the_version_that_counts_is_that_of_the_result_also_from_a_stream():
    server = Legacy()

    async def initialize(seen):
        reply = server.initialized(seen)
        stream = events(event(text="", event_id="0"), event(json.loads(reply.body)))
        return Reply(200, EVENTS | {"mcp-session-id": "s-2"}, stream.body)

    server.answers["initialize"] = initialize
    async with connected(server) as (channel, script):
        await in_session(channel)

    assert script.seen[1].headers["mcp-session-id"] == "s-2"
    assert script.seen[1].headers["mcp-protocol-version"] == "2025-11-25"


async def test_initialize_is_sent_without_the_session_that_was_there_before():
    async with connected(Legacy()) as (channel, script):
        await in_session(channel)
        await channel.send([INITIALIZE])
        await heard(channel)

    assert "mcp-session-id" not in script.of("initialize")[1].headers


@pytest.mark.parametrize("session", ["", "with space", "\x7f"])
async def test_a_session_id_that_is_none_is_refused(session):
    async with connected(Legacy(session=session)) as (channel, _):
        await channel.send([INITIALIZE])

        assert "visible ASCII" in str((await heard(channel)).error)


@pytest.mark.requirement("TRAP-34")
async def test_a_server_that_has_forgotten_the_session_ends_it():
    async def forgotten(seen):
        return error(seen, -32001, "Session not found", status=404)

    async def endless(_seen):
        async def body():
            await trio.sleep_forever()
            yield b""

        return Reply(200, EVENTS, body())

    answers = {"tools/call": forgotten, "prompts/get": endless}
    async with connected(Legacy(answers=answers)) as (channel, script):
        await in_session(channel)
        await channel.send([asking(1, "prompts/get", name="x")])
        await trio.testing.wait_all_tasks_blocked()
        await channel.send([call(2)])
        items = list(await channel.receive())
        while batch := await channel.receive():
            items += batch
        with pytest.raises(trio.BrokenResourceError):
            await channel.send([call(3)])
        assert (channel.state, channel.reason) == ("closed", "the server has ended the session")

    lost = {item.id: item.error for item in items}
    assert type(lost[2]) is ConnectionLost  # it was not carried out
    assert type(lost[1]) is OutcomeUnknown
    assert "DELETE" not in script.methods


async def test_a_notification_that_meets_an_ended_session_ends_it_too():
    async def gone(_seen):
        return Reply(404)

    async with connected(Legacy(answers={"notifications/x": gone})) as (channel, _):
        await in_session(channel)
        await channel.send([telling("notifications/x")])

        assert await channel.receive() == []


async def test_without_a_session_404_is_a_refusal_like_any_other():
    async def gone(_seen):
        return Reply(404)

    server = Legacy(session=None, answers={"tools/call": gone, "prompts/get": said})
    async with connected(server) as (channel, _):
        await in_session(channel)
        await channel.send([call(1)])
        assert "HTTP 404" in str((await heard(channel)).error)
        await channel.send([asking(2, "prompts/get")])

        assert (await heard(channel))["id"] == 2


@pytest.mark.requirement("HTTP-53")
@pytest.mark.parametrize("status", [204, 405, 500])
async def test_closing_tells_the_server_whatever_it_says_to_that(status):
    server = Legacy()

    async def answer(seen):
        return Reply(status) if seen.method == "DELETE" else await server(seen)

    async with connected(answer) as (channel, script):
        await in_session(channel)

    assert script.methods[-1] == "DELETE"
    assert channel.state == "closed"


async def test_closing_takes_no_longer_than_it_may(autojump_clock):
    server = Legacy()

    async def answer(seen):
        if seen.method == "DELETE":
            await trio.sleep_forever()
        return await server(seen)

    async with connected(answer) as (channel, _):
        await in_session(channel)
        since = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(channel.aclose)
            nursery.start_soon(channel.aclose)
        assert trio.current_time() - since == 2.0


async def test_closing_survives_a_server_that_is_gone():
    server = Legacy()

    async def answer(seen):
        if seen.method == "DELETE":
            raise httpx.ConnectError("refused")
        return await server(seen)

    async with connected(answer) as (channel, _):
        await in_session(channel)

    with pytest.raises(trio.ClosedResourceError):
        await channel.send([])
    with pytest.raises(trio.ClosedResourceError):
        await channel.receive()


# Notifications and answers of ours.


async def test_they_are_accepted_one_after_the_other():
    going, most = [], []

    async def slow(_seen):
        going.append(1)
        most.append(len(going))
        await trio.testing.wait_all_tasks_blocked()
        going.pop()
        return Reply(202)

    async with connected(Legacy(answers={"notifications/x": slow})) as (channel, script):
        await in_session(channel)
        await channel.send([telling("notifications/x", n=n) for n in range(3)])

    assert most == [1, 1, 1]
    assert [each.message["params"]["n"] for each in script.of("notifications/x")] == [0, 1, 2]


@pytest.mark.parametrize("status", [200, 202, 204])
async def test_any_success_is_good_for_them(status, caplog):
    async def accept(_seen):
        return Reply(status)

    async with connected(Legacy(answers={"notifications/initialized": accept})) as (
        channel,
        script,
    ):
        await in_session(channel)

    assert "GET" in script.methods  # only an accepted one opens the stream
    assert caplog.text == ""


@pytest.mark.parametrize("reply", [Reply(400), httpx.ConnectError("refused")])
async def test_what_is_not_accepted_is_logged_and_fails_nothing(reply, caplog):
    async def refuse(_seen):
        if isinstance(reply, Exception):
            raise reply
        return reply

    server = Legacy(answers={"notifications/initialized": refuse, "tools/call": said})
    async with connected(server) as (channel, script):
        await in_session(channel)
        assert channel.state == ("open" if isinstance(reply, Reply) else "retrying")
        await channel.send([call(1)])
        assert (await heard(channel))["id"] == 1
        assert channel.state == "open"

    assert "notifications/initialized: not delivered" in caplog.text
    assert "GET" not in script.methods


async def test_a_server_that_does_not_accept_in_time_is_not_waited_for(autojump_clock, caplog):
    async def never(_seen):
        await trio.sleep_forever()

    async with connected(Legacy(answers={"notifications/x": never})) as (channel, _):
        await in_session(channel)
        since = trio.current_time()
        await channel.send([telling("notifications/x")])
        assert trio.current_time() - since == 15

    assert "not accepted within 15 s" in caplog.text


@pytest.mark.requirement("HTTP-26")
async def test_a_cancellation_is_sent_and_the_stream_left():
    async def endless(_seen):
        async def body():
            yield event(text="", event_id="1")
            await trio.sleep_forever()

        return Reply(200, EVENTS, body())

    async with connected(Legacy(answers={"tools/call": endless})) as (channel, script):
        await in_session(channel)
        await channel.send([call(1)])
        await trio.testing.wait_all_tasks_blocked()
        await channel.send([telling("notifications/cancelled", requestId=1)])
        with trio.fail_after(5):
            await script.closed[0].wait()
        await channel.send([telling("notifications/cancelled", requestId=1)])

    assert script.methods.count("notifications/cancelled") == 2
    assert script.methods.count("GET") == 1


# Streams that are resumed.


@pytest.mark.requirement(
    "HTTP-16", "HTTP-18", "HTTP-40", "HTTP-41", "TRAP-37", "TRAP-39", "TRAP-40"
)
async def test_a_stream_that_ends_early_is_resumed_by_get_after_the_time_the_server_said(
    autojump_clock,
):
    at = []

    async def listen(seen):
        at.append(trio.current_time())
        if "last-event-id" not in seen.headers:
            return Reply(405)
        return events(event({"jsonrpc": "2.0", "id": 1, "result": {}}, event_id="a-2"))

    pieces = [event(text="", event_id="a-1", retry=700)]
    async with connected(resumable(*pieces, listen=listen)) as (channel, script):
        await in_session(channel)
        begun = trio.current_time()
        await channel.send([call(1)])
        assert (await heard(channel))["id"] == 1

    assert script.of("GET")[1].headers["last-event-id"] == "a-1"
    assert script.of("GET")[1].headers["accept"] == "text/event-stream"
    assert at[1] - begun == pytest.approx(0.7)


async def test_it_is_resumed_behind_the_last_event_as_often_as_something_comes(autojump_clock):
    polls = []

    async def listen(seen):
        if "last-event-id" not in seen.headers:
            return Reply(405)
        polls.append(seen.headers["last-event-id"])
        if len(polls) < 20:
            return events(event(NOTE, event_id=f"a-{len(polls)}"))
        return events(event({"jsonrpc": "2.0", "id": 1, "result": {}}))

    pieces = [event(text="", event_id="a-0", retry=0)]
    async with connected(resumable(*pieces, listen=listen)) as (channel, _):
        await in_session(channel)
        await channel.send([call(1)])
        items = []
        while len(items) < 20:
            items += await channel.receive()

    assert polls == [f"a-{n}" for n in range(20)]
    assert json.loads(items[-1])["id"] == 1


async def test_ids_are_what_the_server_likes(autojump_clock):
    async def listen(seen):
        if "last-event-id" not in seen.headers:
            return Reply(405)
        return events(event({"jsonrpc": "2.0", "id": 1, "result": {}}))

    async with connected(resumable(event(text="", event_id="é"), listen=listen)) as (
        channel,
        script,
    ):
        await in_session(channel)
        await channel.send([call(1)])
        assert (await heard(channel))["id"] == 1

    assert script.of("GET")[1].headers["last-event-id"] == "é"


async def test_a_stream_that_breaks_is_resumed_like_one_that_ends(autojump_clock):
    async def breaking(_seen):
        async def body():
            yield event(NOTE, event_id="a-1")
            raise httpx.ReadError("cut")

        return Reply(200, EVENTS, body())

    async def listen(seen):
        if "last-event-id" not in seen.headers:
            return Reply(405)
        return events(event({"jsonrpc": "2.0", "id": 1, "result": {}}))

    states = []
    server = Legacy(answers={"tools/call": breaking}, listen=listen)
    told = lambda *news: states.append(news)  # noqa: E731
    async with connected(server, on_state=told) as (channel, _):
        await in_session(channel)
        await channel.send([call(1)])
        assert await heard(channel) == NOTE
        assert (await heard(channel))["id"] == 1

    assert states[1:3] == [("retrying", "the stream broke: cut"), ("open", "")]


async def test_a_server_that_stays_away_is_tried_so_often_and_longer_each_time(autojump_clock):
    at = []

    async def listen(seen):
        if "last-event-id" not in seen.headers:
            return Reply(405)
        at.append(trio.current_time())
        if len(at) % 2:
            raise httpx.ConnectError("refused")
        return Reply(503)

    pieces = [event(text="", event_id="a-1", retry=1500)]
    limits = Limits(http_reconnects_max=4, http_reconnect_seconds_max=10)
    async with connected(resumable(*pieces, listen=listen), limits=limits) as (channel, _):
        await in_session(channel)
        begun = trio.current_time()
        await channel.send([call(1)])
        lost = await heard(channel, seconds=100)

    pauses = [later - earlier for earlier, later in zip([begun, *at], at, strict=False)]
    assert pauses == pytest.approx([1.5, 2, 4, 8, 10])
    assert type(lost.error) is OutcomeUnknown
    assert "refused" in str(lost.error)


async def test_the_dice_spread_those_who_were_cut_off_together(autojump_clock):
    at = []

    async def listen(seen):
        if "last-event-id" in seen.headers:
            at.append(trio.current_time())
        return Reply(405)

    pieces = [event(text="", event_id="a-1")]
    server = resumable(*pieces, listen=listen)
    async with connected(server, dice=lambda: 0.5) as (channel, _):
        await in_session(channel)
        begun = trio.current_time()
        await channel.send([call(1)])
        lost = await heard(channel)

    assert at == [pytest.approx(begun + 0.75)]
    assert "HTTP 405" in str(lost.error)
    assert type(lost.error) is OutcomeUnknown  # the call itself was accepted


async def test_a_stream_without_ids_cannot_be_resumed():
    async with connected(resumable(event(NOTE))) as (channel, script):
        await in_session(channel)
        await channel.send([call(1)])
        items = []
        while len(items) < 2:
            items += await channel.receive()

    assert isinstance(items[1], Lost)
    assert len(script.of("GET")) == 1


async def test_nor_can_one_be_whose_events_are_too_large(autojump_clock):
    big = NOTE | {"params": {"a": "x" * 2000}}
    limits = Limits(frame_bytes_max=1000)
    async with connected(resumable(event(big, event_id="a-1")), limits=limits) as (channel, script):
        await in_session(channel)
        await channel.send([call(1)])
        items = []
        while len(items) < 2:
            items += await channel.receive()

    assert isinstance(items[1], Lost)
    assert len(script.of("GET")) == 1


async def test_an_id_that_is_taken_back_leaves_no_place_to_go_on_from():
    pieces = [event(NOTE, event_id="a-1"), event(NOTE, event_id="")]
    async with connected(resumable(*pieces)) as (channel, script):
        await in_session(channel)
        await channel.send([call(1)])
        items = []
        while len(items) < 3:
            items += await channel.receive()

    assert isinstance(items[2], Lost)
    assert len(script.of("GET")) == 1


async def test_a_session_that_is_forgotten_meanwhile_is_over(autojump_clock):
    async def listen(seen):
        return Reply(404 if "last-event-id" in seen.headers else 405)

    pieces = [event(text="", event_id="a-1")]
    async with connected(resumable(*pieces, listen=listen)) as (channel, _):
        await in_session(channel)
        await channel.send([call(1)])
        (lost,) = await channel.receive()
        assert await channel.receive() == []

    assert type(lost.error) is OutcomeUnknown


async def test_what_resumes_has_to_be_a_stream(autojump_clock):
    async def listen(seen):
        return result(seen) if seen.body else Reply(200, {"content-type": "text/html"}, b"hello")

    pieces = [event(text="", event_id="a-1")]
    async with connected(resumable(*pieces, listen=listen)) as (channel, _):
        await in_session(channel)
        await channel.send([call(1)])

        assert "text/html" in str((await heard(channel)).error)


# The server's own stream.


@pytest.mark.requirement("HTTP-27", "HTTP-28", "HTTP-35")
async def test_what_belongs_to_no_request_comes_on_a_stream_of_its_own():
    async def listen(_seen):
        async def body():
            yield event(NOTE, event_id="g-1")
            yield event(NOTE, name="other", event_id="g-2")
            yield event({"jsonrpc": "2.0", "id": "s-1", "method": "ping"})
            await trio.sleep_forever()

        return Reply(200, EVENTS, body())

    async with connected(Legacy(listen=listen)) as (channel, script):
        await in_session(channel)
        items = [json.loads(item) for item in await channel.receive()]

    assert [item["method"] for item in items] == ["notifications/message", "ping"]
    assert script.of("GET")[0].headers["accept"] == "text/event-stream"


@pytest.mark.requirement("TRAP-42")
@pytest.mark.parametrize("status", [400, 404, 405, 501])
async def test_a_server_without_such_a_stream_is_good_all_the_same(status, caplog, autojump_clock):
    async def listen(_seen):
        return Reply(status)

    async with connected(Legacy(listen=listen, answers={"tools/call": said})) as (channel, script):
        await in_session(channel)
        await channel.send([call(1)])
        assert (await heard(channel))["id"] == 1
        await trio.sleep(1000)

    assert caplog.text == ""
    assert len(script.of("GET")) == (6 if status == 501 else 1)


@pytest.mark.requirement("HTTP-33")
async def test_it_is_begun_again_when_it_ends(autojump_clock):
    async def listen(seen):
        if seen.headers.get("last-event-id") == "g-1":
            await trio.sleep_forever()
        return events(event(NOTE, event_id="g-1", retry=3000))

    async with connected(Legacy(listen=listen)) as (channel, script):
        await in_session(channel)
        await heard(channel)
        await trio.sleep(2.9)
        assert len(script.of("GET")) == 1
        await trio.sleep(0.2)
        assert len(script.of("GET")) == 2


async def test_one_that_lived_long_has_not_failed_and_one_that_gives_nothing_is_given_up(
    autojump_clock,
):
    lives = [40.0] * 20

    async def listen(_seen):
        async def body():
            await trio.sleep(lives.pop() if lives else 0)
            for _ in ():
                yield b""

        return Reply(200, EVENTS, body())

    async with connected(Legacy(listen=listen)) as (channel, script):
        await in_session(channel)
        await trio.sleep(5000)
        assert len(script.of("GET")) == 20 + 6
        assert channel.state == "open"  # calls can be made


async def test_a_stream_that_was_there_and_is_not_found_any_more_was_of_a_session_that_is_over(
    autojump_clock,
):
    async def listen(seen):
        return (
            Reply(404) if "last-event-id" in seen.headers else events(event(NOTE, event_id="g-1"))
        )

    async with connected(Legacy(listen=listen)) as (channel, _):
        await in_session(channel)
        assert await heard(channel) == NOTE

        assert await channel.receive() == []


async def test_a_fault_of_people_s_own_on_it_is_logged(caplog):
    async def listen(_seen):
        raise KeyError("mine")

    async with connected(Legacy(listen=listen)) as (channel, _):
        await in_session(channel)
        assert channel.state == "open"

    assert "the stream of the server failed" in caplog.text


async def test_an_answer_settles_its_request_on_whatever_stream_it_comes(autojump_clock):
    answer = trio.Event()

    async def listen(_seen):
        async def body():
            await answer.wait()
            yield event({"jsonrpc": "2.0", "id": 1, "result": {}})
            yield event({"jsonrpc": "2.0", "id": 2, "error": {"code": 1, "message": "no"}})
            yield event({"jsonrpc": "2.0", "id": 9, "result": {}})
            await trio.sleep_forever()

        return Reply(200, EVENTS, body())

    async def endless(_seen):
        async def body():
            yield event(text="", event_id="a-1")
            await trio.sleep_forever()

        return Reply(200, EVENTS, body())

    async with connected(Legacy(listen=listen, answers={"tools/call": endless})) as (
        channel,
        script,
    ):
        await in_session(channel)
        await channel.send([call(1), call(2)])
        answer.set()
        items = []
        while len(items) < 3:
            items += await channel.receive()
        await trio.sleep(3)

        assert [stream.is_set() for stream in script.closed] == [False, True, True]
        with trio.move_on_after(1) as nothing:
            await channel.receive()
        assert nothing.cancelled_caught


async def test_answers_may_come_together_as_2025_03_26_has_it():
    async def batched(seen):
        vague = {"jsonrpc": "2.0", "error": {"code": 1, "message": "no"}}
        answers = [vague, answer_to(seen), {"jsonrpc": "2.0", "method": "notifications/x"}]
        return Reply(200, {"content-type": "application/json"}, json.dumps(answers).encode())

    async with connected(Legacy(answers={"tools/call": batched})) as (channel, _):
        await in_session(channel)
        await channel.send([call(1)])
        batch = await heard(channel)

    assert batch[1]["id"] == 1


# With a client on top.


async def test_a_client_talks_with_a_legacy_server():
    asked = {"jsonrpc": "2.0", "id": "q", "method": "roots/list"}
    answered = trio.Event()

    async def listen(_seen):
        async def body():
            await answered.wait()
            yield event(NOTE | {"params": {"level": "info", "data": "bye"}})
            await trio.sleep_forever()

        return Reply(200, EVENTS, body())

    async def add(seen):
        async def body():
            yield event(asked)
            await answered.wait()
            yield event(answer_to(seen, content=[{"type": "text", "text": "3"}]))

        return Reply(200, EVENTS, body())

    server = Legacy(answers={"tools/call": add}, listen=listen)

    async def answer(seen):
        if seen.method == "POST" and "roots" in seen.message.get("result", {}):
            answered.set()
        return await server(seen)

    logged = trio.Event()
    options = {"roots": ["file:///work"], "log": lambda _: logged.set()}
    async with (
        connected(answer) as (channel, script),
        Client(channel, revisions=LEGACY_ONLY, **options) as client,
    ):
        with trio.fail_after(5):
            assert (await client.call_tool("add")).content[0].text == "3"
            await logged.wait()

    assert script.methods[:2] == ["initialize", "notifications/initialized"]
    assert script.methods[-1] == "DELETE"
    assert script.of("answer")[0].message["id"] == "q"


async def test_an_ended_session_ends_the_client_s_and_says_so():
    async def gone(_seen):
        return Reply(404)

    async with (
        connected(Legacy(answers={"tools/call": gone})) as (channel, _),
        Client(channel) as client,
    ):
        with pytest.raises(ConnectionLost, match="ended the session"):
            await client.call_tool("add")


@pytest.mark.requirement("HTTP-52")
async def test_a_client_of_a_url_begins_a_new_session_without_the_old_id():
    forgotten = {"s-1"}
    server = Legacy(answers={"tools/call": said})

    async def answer(seen):
        if seen.headers.get("mcp-session-id") in forgotten and server.session != "s-1":
            return Reply(404)
        return await server(seen)

    script = Script(answer)
    async with (
        httpx.AsyncClient(transport=script) as http,
        Client(URL, http=http, revisions=LEGACY_ONLY) as client,
    ):
        await client.call_tool("add")
        server.session = "s-2"
        with contextlib.suppress(ConnectionLost):  # what says that the session has ended
            await client.call_tool("add")
        await client.call_tool("add")

    _, second = script.of("initialize")
    assert "mcp-session-id" not in second.headers
    assert script.of("tools/call")[-1].headers["mcp-session-id"] == "s-2"
    assert script.methods.count("initialize") == 2


# Opening.


@pytest.mark.parametrize(
    "url", ["mcp.test/mcp", "ftp://mcp.test/", "http://", "http://mcp.test:x/", "http:/x"]
)
async def test_only_a_url_of_http_can_be_connected_to(url):
    with pytest.raises(ValueError, match="URL"):
        await open_http_channel(url)


async def test_the_name_of_a_server_has_no_secrets_in_it():
    channel = await open_http_channel("http://user:word@mcp.test:81/mcp?key=1")
    await channel.aclose()

    assert repr(channel) == "<HttpChannel to http://mcp.test:81/mcp, closed>"


async def test_requests_leave_without_waiting_and_nothing_else_does():
    async with connected(Legacy()) as (channel, _):
        assert channel.send_nowait([INITIALIZE, INITIALIZED]) == 1
        assert channel.bytes_sent == len(INITIALIZE)
        assert not channel.is_unfinished
        await heard(channel)
        await channel.send([INITIALIZED])
        assert channel.bytes_sent == len(INITIALIZE) + len(INITIALIZED)
