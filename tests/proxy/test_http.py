"""The HTTP proxy: forwarding of headers, bodies and streams, and their recording."""

import json
import ssl
from contextlib import asynccontextmanager
from functools import partial

import attrs
import httpx2
import pytest
import trio
import trio.testing

from mcp_trio import Client, Context, Limits, Server
from mcp_trio._journal.conversation import CANCELLED, conversation
from mcp_trio._proxy.http import ListenOptions, OpenRecordings, serve_http_proxy
from mcp_trio._proxy.journal import start_message_journal
from mcp_trio._transports.http_client_requests import EndpointClient, client_for
from mcp_trio.limits import HttpLimits, MessageLimits
from mcp_trio.recording import (
    RecordOptions,
    Redaction,
    open_recording,
    read_recording,
    replay_live_async,
)
from mcp_trio.testing import mock_server
from tests.transports.http.scripted_exchange import ScriptedExchange
from tests.transports.http.scripted_server import (
    EVENTS,
    JSON,
    Legacy,
    Modern,
    Reply,
    answer_to,
    asking,
    event,
    events,
    json_reply,
    notification_message,
    result,
    streaming,
)

STATELESS = "2026-07-28"
HELLO = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"capabilities": {}}}
CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "tide"}}


def http_marks(session):
    return [body["value"] for body in session.bodies("mark") if body["name"] == "http"]


# Headers.


async def test_request_headers_are_forwarded_except_those_of_the_connection(between, tmp_path):
    async with between(Legacy(), tmp_path) as proxy:
        await proxy.ask(
            HELLO,
            target="/mcp?key=a%20b",
            Authorization="Bearer s3cret",
            Cookie="a=b",
            X_Odd="caf\xe9",
            Connection="close, X-Hop",
            X_Hop="1",
            Keep_Alive="5",
            TE="trailers",
            Accept_Encoding="gzip",
            Proxy_Authorization="Basic x",
        )
    (seen,) = proxy.server.seen
    assert seen.path == "/mcp?key=a%20b"
    assert seen.headers.pop("x-odd").encode("latin-1") == b"caf\xe9"
    assert seen.headers == {
        "host": "mcp.test",
        "accept": "application/json, text/event-stream",
        "accept-encoding": "identity",
        "content-type": "application/json",
        "content-length": str(len(json.dumps(HELLO))),
        "authorization": "Bearer s3cret",
        "cookie": "a=b",
    }


async def test_headers_are_not_recorded(between, tmp_path):
    async with between(Legacy(), tmp_path) as proxy:
        await proxy.ask(HELLO, target="/mcp?key=hidden", Authorization="Bearer hidden")
        await proxy.ask(method="GET", target="/mcp?key=hidden", Authorization="Bearer hidden")
    for file in tmp_path.iterdir():
        assert b"hidden" not in file.read_bytes()


async def test_response_headers_are_forwarded_except_those_of_the_connection(between, tmp_path):
    async def answer(seen):
        fields = {
            **JSON,
            "connection": "x-hop",
            "x-hop": "1",
            "date": "today",
            "www-authenticate": "Bearer",
            "x-odd": "yes",
        }
        return Reply(401, fields, b"{}")

    async with between(answer, tmp_path) as proxy:
        answered = await proxy.ask(CALL)
    assert (answered.status, answered.answer_body) == (401, b"{}")
    assert answered.headers == {**JSON, "www-authenticate": "Bearer", "x-odd": "yes"}


async def test_a_redirect_to_the_server_itself_is_rewritten_to_the_proxy(between, tmp_path):
    async def answer(seen):
        return Reply(307, {"location": f"http://{seen.path[1:]}/mcp/"})

    async with between(answer, tmp_path) as proxy:
        own = await proxy.ask(CALL, target="/mcp.test")
        other = await proxy.ask(CALL, target="/elsewhere.test")
    assert (own.status, own.headers["location"]) == (307, "/mcp/")
    assert other.headers["location"] == "http://elsewhere.test/mcp/"


@pytest.mark.parametrize("method", ["GET", "DELETE", "OPTIONS", "HEAD", "PUT"])
async def test_every_method_and_path_is_forwarded_and_its_status_recorded(
    between, tmp_path, files, method
):
    async def answer(seen):
        assert (seen.method, seen.path) == (method, "/.well-known/thing?x=1")
        return Reply(404, {"content-type": "text/plain"}, b"nothing here")

    async with between(answer, tmp_path) as proxy:
        answered = await proxy.ask(method=method, target="/.well-known/thing?x=1")
    assert (answered.status, answered.answer_body) == (404, b"nothing here")
    (session,) = files()
    assert session.lines("in") == session.lines("out") == []
    assert http_marks(session) == [{"method": method, "status": 404, "type": "text/plain"}]


async def test_posts_to_other_paths_are_forwarded_and_never_recorded(between, tmp_path, files):
    async def answer(seen):
        assert seen.body == b"grant=hidden"
        return Reply(200, JSON, b'{"access_token":"hidden"}')

    async with between(answer, tmp_path) as proxy:
        answered = await proxy.ask(
            b"grant=hidden", target="/token", Content_Type="application/x-www-form-urlencoded"
        )
    assert answered.answer_body == b'{"access_token":"hidden"}'
    (session,) = files()
    assert http_marks(session) == [{"method": "POST", "status": 200, "type": "application/json"}]


async def test_a_request_for_no_path_is_rejected(between, tmp_path, files):
    async with between(Legacy(), tmp_path) as proxy:
        answered = await proxy.ask(method="OPTIONS", target="*")
    assert answered.status == 400
    assert proxy.server.seen == []
    (session,) = files()
    (mark,) = http_marks(session)
    assert mark == {"method": "OPTIONS", "status": 400, "error": "the request target is not a path"}


@pytest.mark.parametrize(
    ("to", "target"),
    [
        ("http://mcp.test/mcp", "/%6Dcp"),
        ("http://mcp.test/mcp", "/other/../mcp"),
        ("http://mcp.test/my%20mcp", "/my%20mcp"),
        ("http://mcp.test/%C3%A9", "/%c3%a9/"),
    ],
)
async def test_messages_to_any_spelling_of_the_endpoint_are_recorded(
    between, tmp_path, files, to, target
):
    async def answer(_seen):
        return Reply(200, JSON, b'{"jsonrpc":"2.0","id":1,"result":{}}')

    asked = b'{"jsonrpc":"2.0","id":1,"method":"tools/call"}'
    async with between(answer, tmp_path, to=to) as proxy:
        assert (await proxy.ask(asked, target=target)).status == 200
    (session,) = files()
    assert session.lines("in") == [asked]
    assert len(session.lines("out")) == 1


# Bodies.


async def test_bodies_are_forwarded_unchanged_and_recorded_verbatim(between, tmp_path, files):
    asked = b' {"jsonrpc" :"2.0","id":1,\r\n"method":"tools/call"}'
    answered = b'{"id":1,  "jsonrpc":"2.0","result":{}}\n'

    async def answer(seen):
        assert seen.body == asked
        return Reply(200, JSON, answered)

    async with between(answer, tmp_path) as proxy:
        assert (await proxy.ask(asked)).answer_body == answered
    (session,) = files()
    assert (session.lines("in"), session.lines("out")) == ([asked], [answered])
    assert session.counts == {
        "in": 1,
        "out": 1,
        "in_bytes": len(asked),
        "out_bytes": len(answered),
        "malformed": 0,
    }


async def test_an_invalid_message_is_forwarded_and_recorded_unchanged(between, tmp_path, files):
    async def answer(seen):
        return Reply(400, JSON, b"{oops")

    async with between(answer, tmp_path) as proxy:
        answered = await proxy.ask(b"\xff{")
    assert (answered.status, answered.answer_body) == (400, b"{oops")
    (session,) = files()
    assert (session.lines("in"), session.lines("out")) == ([b"\xff{"], [b"{oops"])
    assert session.counts["malformed"] == 2
    assert http_marks(session) == [{"method": "POST", "status": 400}]


async def test_a_request_is_recorded_before_it_is_sent_and_an_answer_before_it_is_passed(
    between, tmp_path, files
):
    async def answer(seen):
        assert files()[0].kinds() == ["open", "in"]
        return result(seen, ok=True)

    class Witness(ScriptedExchange):
        async def start(self, status, headers):
            assert files()[0].kinds() == ["open", "in", "out"]
            await super().start(status, headers)

    async with between(answer, tmp_path) as proxy:
        asked = proxy.exchange(CALL)
        exchange = Witness(asked.request, asked.sent_body)
        await proxy.proxy.respond(exchange)
        assert exchange.is_ended


async def test_a_batch_passes_as_one(between, tmp_path, files):
    batch = json.dumps([CALL, CALL | {"id": 2}]).encode()

    async def answer(seen):
        answers = [{"jsonrpc": "2.0", "id": each["id"], "result": {}} for each in seen.message]
        return Reply(200, JSON, json.dumps(answers).encode())

    async with between(answer, tmp_path) as proxy:
        assert len((await proxy.ask(batch)).json) == 2
    (session,) = files()
    assert session.lines("in") == [batch]


async def test_a_request_over_the_limit_is_rejected_and_the_limit_named(between, tmp_path, files):
    async with between(Legacy(), tmp_path, messages=MessageLimits(bytes_max=50)) as proxy:
        answered = await proxy.ask(CALL)
    assert answered.status == 413
    assert "limits.messages.bytes_max (50)" in answered.json["error"]["message"]
    assert not proxy.server.seen
    (session,) = files()
    assert [mark["status"] for mark in http_marks(session)] == [413]


async def test_an_answer_over_the_limit_passes_and_is_recorded_in_parts(between, tmp_path, files):
    body = b'{"jsonrpc":"2.0","id":1,"result":{"text":"%b"}}' % (b"x" * 300)

    async def pieces():
        for begin in range(0, len(body), 40):
            yield body[begin : begin + 40]

    async def answer(seen):
        return Reply(200, JSON, pieces())

    async with between(answer, tmp_path, messages=MessageLimits(bytes_max=100)) as proxy:
        answered = await proxy.ask(CALL)
    assert b"".join(answered.pieces) == body
    assert answered.is_ended
    assert max(map(len, answered.pieces)) <= 140
    (session,) = files()
    assert b"".join(session.lines("out")) == body
    parts = [record.envelope for record in session.records if record.kind == "out"]
    assert parts == [{"part": number} for number in range(1, len(parts) + 1)]


# Streams.


async def test_a_stream_passes_piece_by_piece_with_ids_and_comments(between, tmp_path, files):
    asked = trio.Event()
    log = {"jsonrpc": "2.0", "method": "notifications/message", "params": {}}
    first = b"retry: 5\nid: a-0\ndata:\n\n: alive\n\n" + event(log, event_id="a-1")
    last = event({"jsonrpc": "2.0", "id": 1, "result": {}}, event_id="a-2", retry=7)

    async def pieces():
        yield first
        await asked.wait()
        yield last[:20]
        yield last[20:]

    async def answer(seen):
        return Reply(200, EVENTS | {"x-accel-buffering": "no"}, pieces())

    async with between(answer, tmp_path) as proxy:
        exchange = proxy.begin(CALL)
        assert await exchange.message() == log
        assert exchange.pieces == [first]
        assert exchange.headers["x-accel-buffering"] == "no"
        asked.set()
        assert [each["id"] for each in await exchange.rest()] == [1]
        assert b"".join(exchange.pieces) == first + last
    (session,) = files()
    assert session.kinds() == ["open", "in", "out", "out", "shut", "end"]


async def test_a_stream_over_the_limit_passes_and_its_record_counts_the_missing_bytes(
    between, tmp_path, files
):
    large = event({"jsonrpc": "2.0", "id": 1, "result": {"text": "x" * 300}})

    answer = streaming(large)

    async with between(answer, tmp_path, messages=MessageLimits(bytes_max=100)) as proxy:
        exchange = await proxy.ask(CALL)
        assert b"".join(exchange.pieces) == large
    (session,) = files()
    (record,) = [record for record in session.records if record.kind == "out"]
    assert record.envelope["discarded"] > 100


async def test_compressed_responses_are_forwarded_undecoded(between, tmp_path, files):
    squeezed = {"content-encoding": "gzip"}

    async def answer(seen):
        headers = JSON if seen.message["id"] == 1 else EVENTS
        return Reply(200, headers | squeezed, pieces())

    async def pieces():
        yield b"\x1f\x8b\n\n"

    async with between(answer, tmp_path) as proxy:
        whole = await proxy.ask(CALL)
        stream = await proxy.ask(CALL | {"id": 2})
    assert whole.answer_body == b"\x1f\x8b\n\n"
    assert stream.pieces == [b"\x1f\x8b\n\n"]
    assert whole.headers["content-encoding"] == stream.headers["content-encoding"] == "gzip"
    (session,) = files()
    assert session.lines("out") == []
    assert [mark["type"] for mark in http_marks(session)] == [
        "application/json",
        "text/event-stream, gzip",
    ]


# Errors of one side, as the other side and the recording see them.


STATELESS_CALL = asking(1, "tools/call", STATELESS)
LOG = {"jsonrpc": "2.0", "method": "notifications/message", "params": {}}


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (httpx2.ConnectError("refused"), "cannot connect to http://mcp.test/mcp: refused"),
        (httpx2.ReadError("reset"), "the connection broke to http://mcp.test/mcp: reset"),
    ],
    ids=["down", "broken"],
)
async def test_a_server_that_does_not_answer_is_a_502_that_names_it(
    between, tmp_path, files, error, text
):
    async def answer(seen):
        raise error

    async with between(answer, tmp_path) as proxy:
        answered = await proxy.ask(STATELESS_CALL)
    assert answered.status == 502
    assert answered.json["id"] == 1
    assert answered.json["error"]["code"] == -32000
    assert answered.json["error"]["message"] == f"the proxy got no response from the server: {text}"
    (session,) = files()
    assert session.lines("in") == [STATELESS_CALL]
    assert session.lines("out") == []
    assert http_marks(session) == [{"method": "POST", "status": 502, "error": text}]


@pytest.mark.parametrize(
    ("status", "headers"), [(101, {}), (200, {"x-odd": "a\x01b"})], ids=["status", "header"]
)
async def test_an_answer_that_no_host_could_give_is_a_502(between, tmp_path, status, headers):
    async def answer(seen):
        return Reply(status, headers, b"")

    async with between(answer, tmp_path) as proxy:
        answered = await proxy.ask(STATELESS_CALL)
    assert answered.status == 502
    assert "sent a response that is not valid HTTP" in answered.json["error"]["message"]


async def test_a_slow_server_is_waited_for(between, tmp_path, files, autojump_clock):
    async def slow(seen):
        await trio.sleep(3000)
        return result(seen, ok=True)

    async with between(Modern(answers={"tools/call": slow}), tmp_path) as proxy:
        assert (await proxy.ask(STATELESS_CALL)).json["result"] == {"ok": True}
    (session,) = files()
    assert session.kinds() == ["open", "in", "out", "shut", "end"]


async def test_a_stream_that_breaks_off_breaks_off(between, tmp_path, files):
    async def pieces():
        yield event(LOG)
        raise httpx2.ReadError("reset")

    async def answer(seen):
        return Reply(200, EVENTS, pieces())

    async with between(answer, tmp_path) as proxy:
        exchange = await proxy.ask(STATELESS_CALL)
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
        assert (await proxy.ask(STATELESS_CALL)).status == 502
    (session,) = files()
    assert session.lines("out") == []


async def test_a_client_that_goes_away_takes_its_request_with_it(between, tmp_path, files):
    async with between(streaming(event(LOG), ends=False), tmp_path) as proxy:
        exchange = proxy.begin(STATELESS_CALL)
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
        exchange = proxy.exchange(STATELESS_CALL)
        exchange.stall()
        proxy.nursery.start_soon(proxy.proxy.respond, exchange)
        await trio.testing.wait_all_tasks_blocked()
        assert len(sent) == 1
        exchange.read_on()
        assert len(await exchange.rest()) == 100


async def test_requests_rejected_by_the_host_check_do_not_reach_the_server(
    between, tmp_path, files
):
    async with between(Legacy(), tmp_path) as proxy:
        answered = await proxy.ask(STATELESS_CALL, Origin="http://evil.test")
    assert answered.status == 403
    assert proxy.server.seen == []
    (session,) = files()
    (mark,) = http_marks(session)
    assert mark["status"] == 403


async def test_the_end_of_the_proxy_completes_the_files(between, tmp_path, files):
    async def answer(seen):
        await trio.sleep_forever()

    async with between(answer, tmp_path) as proxy:
        proxy.begin(STATELESS_CALL)
        proxy.begin(asking(0, "initialize"))
        await trio.testing.wait_all_tasks_blocked()
        proxy.proxy.recordings.record_cause("signal")
    sessions = files()
    assert [session.cause for session in sessions] == ["signal"] * 2
    assert [session.kinds()[-1] for session in sessions] == ["end"] * 2


# The files of a recording: sessions, requests without a session, and equal ids.


INITIALIZE = asking(0, "initialize", capabilities={})


def methods(session, kind="in"):
    return [body.get("method", body.get("id")) for body in session.bodies(kind)]


def counted(**more):
    """A legacy server that gives an id to each session."""
    numbers = iter(range(1, 100))

    async def hello(seen):
        server.session = f"s-{next(numbers)}"
        return server.initialized(seen)

    async def echo(seen):
        return result(seen, session=seen.headers["mcp-session-id"])

    server = Legacy(answers={"initialize": hello, "echo": echo, **more})
    return server


async def test_each_session_has_a_file_of_its_own(between, tmp_path, files):
    async with between(counted(), tmp_path) as proxy:
        for number in (1, 2):
            hello = await proxy.ask(INITIALIZE)
            assert hello.headers["mcp-session-id"] == f"s-{number}"
        for number in (2, 1):
            session = {"Mcp_Session_Id": f"s-{number}"}
            assert (
                await proxy.ask(notification_message("notifications/initialized"), **session)
            ).status == 202
            answered = await proxy.ask(asking(1, "echo"), **session)
            assert answered.json["result"] == {"session": f"s-{number}"}
    first, second = files()
    for session in (first, second):
        assert methods(session) == ["initialize", "notifications/initialized", "echo"]
        assert session.marks()["negotiated"]["protocol_version"] == "2025-11-25"
        assert http_marks(session) == []
        assert session.cause == "closed"
    assert first.bodies("out")[-1]["result"] == {"session": "s-1"}


async def test_a_file_takes_all_sessions_on_channels_of_their_own(between, tmp_path, recorded):
    file = tmp_path / "all.mcprec.jsonl"
    async with between(counted(), file) as proxy:
        for _ in range(2):
            await proxy.ask(INITIALIZE)
        await proxy.ask(asking(1, "echo"), Mcp_Session_Id="s-2")
        await proxy.ask(asking(1, "tools/list", STATELESS))
    records = [*read_recording(open_recording(file))]
    conversations = [conversation(records, channel=channel) for channel in (1, 2, 3)]
    assert [
        [message.method for message in each.of("client", "request")] for each in conversations
    ] == [
        ["initialize"],
        ["initialize", "echo"],
        ["tools/list"],
    ]
    assert recorded(file).kinds()[-1] == "end"


async def test_a_deleted_session_has_a_complete_file(between, tmp_path, files):
    async with between(counted(), tmp_path) as proxy:
        await proxy.ask(INITIALIZE)
        deleted = await proxy.ask(method="DELETE", Mcp_Session_Id="s-1")
        assert deleted.status == 204
        (session,) = files()
        assert session.kinds()[-3:] == ["mark", "shut", "end"]
        assert http_marks(session) == [{"method": "DELETE", "status": 204}]


async def test_a_session_forgotten_by_the_server_has_a_complete_file(between, tmp_path, files):
    async def gone(seen):
        return Reply(404)

    async with between(counted(echo=gone), tmp_path) as proxy:
        await proxy.ask(INITIALIZE)
        assert (await proxy.ask(asking(1, "echo"), Mcp_Session_Id="s-1")).status == 404
        assert (await proxy.ask(asking(2, "echo"), Mcp_Session_Id="s-1")).status == 404
        session, common = files()
        assert session.kinds()[-1] == "end"
        assert methods(session) == ["initialize", "echo"]
        assert methods(common) == ["echo"]


async def test_an_unused_session_has_a_complete_file(between, tmp_path, files, autojump_clock):
    note = event({"jsonrpc": "2.0", "method": "notifications/message", "params": {}})
    server = counted()
    server.listen = streaming(note, ends=False)
    async with between(server, tmp_path, http=HttpLimits(session_idle_seconds=60)) as proxy:
        await proxy.ask(INITIALIZE)
        await proxy.ask(INITIALIZE)
        stream = proxy.begin(method="GET", Mcp_Session_Id="s-2")
        await stream.message()
        await trio.sleep(100)
        unused, used = files()
        assert (unused.kinds()[-1], used.kinds()[-1]) == ("end", "out")
        await proxy.ask(asking(1, "echo"), Mcp_Session_Id="s-2")
        assert methods(files()[1]) == ["initialize", "echo"]


async def test_a_rejected_handshake_leaves_a_complete_file(between, tmp_path, files):
    async def reject(seen):
        return json_reply({"jsonrpc": "2.0", "id": 0, "error": {"code": -1, "message": "no"}}, 400)

    async with between(counted(initialize=reject), tmp_path) as proxy:
        assert (await proxy.ask(INITIALIZE)).status == 400
        (session,) = files()
        assert session.kinds() == ["open", "in", "out", "mark", "shut", "end"]


async def test_sessions_over_the_limit_share_a_file(between, tmp_path, files):
    async with between(counted(), tmp_path, http=HttpLimits(sessions_max=1)) as proxy:
        for _ in range(3):
            await proxy.ask(INITIALIZE)
            await proxy.ask(asking(1, "echo"), Mcp_Session_Id="s-3")
    first, common = files()[:2]
    assert methods(first) == ["initialize"]
    assert methods(common).count("initialize") == 2


async def test_a_server_that_gives_no_ids_is_recorded_in_one_file(between, tmp_path, files):
    async with between(Legacy(session=None), tmp_path) as proxy:
        for _ in range(2):
            await proxy.ask(asking(0, "server/discover", STATELESS))
            await proxy.ask(INITIALIZE)
            await proxy.ask(notification_message("notifications/initialized"))
            await proxy.ask(asking(1, "tools/call"))
    probe, session = files()
    assert methods(probe) == ["server/discover"]
    assert methods(session) == [
        "initialize",
        "notifications/initialized",
        "tools/call",
        "server/discover",
        "initialize",
        "notifications/initialized",
        "tools/call",
    ]


async def test_a_folder_that_is_gone_is_named_in_the_log(between, tmp_path, caplog):
    folder = tmp_path / "recordings"
    folder.mkdir()
    async with between(counted(), folder) as proxy:
        await proxy.ask(INITIALIZE)
        folder.rename(tmp_path / "elsewhere")
        refused = await proxy.ask(INITIALIZE)
    assert refused.status is None
    assert len(proxy.server.seen) == 1
    (message,) = caplog.messages
    assert message.startswith(
        f"a request is not forwarded: cannot record to {folder}: there is no such folder"
    )
    assert "Traceback" not in caplog.text


# Requests without a session.


async def test_stateless_requests_are_recorded_in_one_file(between, tmp_path, files):
    async with between(Modern(), tmp_path) as proxy:
        for number in range(3):
            discovered = await proxy.ask(asking(number, "server/discover", STATELESS))
            assert discovered.status == 200
        assert (await proxy.ask(asking(9, "odd", STATELESS))).status == 404
    (session,) = files()
    assert methods(session) == ["server/discover"] * 3 + ["odd"]
    assert methods(session, "out") == [0, 1, 2, 9]
    assert http_marks(session) == [{"method": "POST", "status": 404}]


async def test_requests_with_the_same_progress_token_have_separate_files(between, tmp_path, files):
    go = trio.Event()

    async def slow(seen):
        await go.wait()
        return result(seen, said=seen.message["params"]["word"])

    async with between(Modern(answers={"say": slow}), tmp_path) as proxy:
        meta = {"progressToken": "t"}
        asked = [
            asking(1, "say", STATELESS, word="a"),
            asking(1, "say", STATELESS, word="b"),
            asking(2, "say", STATELESS, word="c"),
            json.dumps(
                {"jsonrpc": "2.0", "id": 3, "method": "say", "params": {"word": "d", "_meta": meta}}
            ).encode(),
            json.dumps(
                {"jsonrpc": "2.0", "id": 4, "method": "say", "params": {"word": "e", "_meta": meta}}
            ).encode(),
        ]
        exchanges = []
        for each in asked:
            exchanges.append(proxy.begin(each))
            await trio.testing.wait_all_tasks_blocked()
        go.set()
        for exchange, word in zip(exchanges, "abcde", strict=True):
            assert (await exchange.begun()).status == 200
            await trio.testing.wait_all_tasks_blocked()
            assert exchange.json["result"] == {"said": word}
        await proxy.ask(asking(1, "say", STATELESS, word="f"))
    first, second = files()
    words = [[body["params"]["word"] for body in each.bodies("in")] for each in (first, second)]
    assert words == [["a", "c", "d", "f"], ["b", "e"]]


async def test_as_many_files_are_open_as_there_may_be_streams(between, tmp_path, files):
    go = trio.Event()

    async def slow(seen):
        await go.wait()
        return result(seen)

    async with between(
        Modern(answers={"say": slow}), tmp_path, http=HttpLimits(streams_max=2)
    ) as proxy:
        exchanges = [proxy.begin(asking(1, "say", STATELESS)) for _ in range(4)]
        await trio.testing.wait_all_tasks_blocked()
        go.set()
        for exchange in exchanges:
            await exchange.begun()
    assert [len(session.lines("in")) for session in files()] == [1, 3]


# Streams that are resumed.


async def test_resent_events_are_recorded_once(between, tmp_path, files):
    def log(number):
        return {"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": number}}

    async def listening(seen):
        last = seen.headers.get("last-event-id")
        begin = 0 if last is None else int(last) + 1
        return events(*(event(log(number), event_id=number) for number in range(begin, begin + 3)))

    server = counted()
    server.listen = listening
    async with between(server, tmp_path) as proxy:
        await proxy.ask(INITIALIZE)
        session = {"Mcp_Session_Id": "s-1"}
        await proxy.ask(method="GET", **session)
        resumed = await proxy.ask(method="GET", Last_Event_ID="0", **session)
        values = [json.loads(each.data)["params"]["data"] for each in resumed._events]
        assert values == [1, 2, 3]
    (recording,) = files()
    logs = [body["params"]["data"] for body in recording.bodies("out") if "params" in body]
    assert logs == [0, 1, 2, 3]
    assert http_marks(recording) == [
        {"method": "GET", "status": 200},
        {"method": "GET", "status": 200, "last_event_id": "0"},
        {"method": "GET", "repeated": "1"},
        {"method": "GET", "repeated": "2"},
    ]


# HTTP+SSE.


def old_server(endpoint):
    send, receive = trio.open_memory_channel(10)

    async def stream():
        yield event(name="endpoint", text=endpoint)
        async for frame in receive:
            yield event(frame)

    async def answer(seen):
        if seen.method == "GET":
            return Reply(200, EVENTS, stream())
        assert seen.path == "/messages?session_id=1"
        if "id" in seen.message:
            await send.send(answer_to(seen, protocolVersion="2024-11-05"))
        return Reply(202, {"content-type": "text/plain"}, b"Accepted")

    return answer


async def test_a_session_of_2024_11_05_is_recorded_by_its_stream(between, tmp_path, files):
    endpoints = ["messages?session_id=1", "http://mcp.test/messages?session_id=1"]
    for endpoint in endpoints:
        async with between(old_server(endpoint), tmp_path) as proxy:
            stream = proxy.begin(method="GET", target="/sse")
            data = (await stream.event()).data.decode()
            assert data in {"messages?session_id=1", "/messages?session_id=1"}
            posted = await proxy.ask(INITIALIZE, target="/messages?session_id=1")
            assert (posted.status, posted.answer_body) == (202, b"Accepted")
            assert (await stream.message())["id"] == 0
            stream.leave()
            await trio.testing.wait_all_tasks_blocked()
            session = files()[-1]
            assert session.kinds() == ["open", "in", "out", "mark", "mark", "shut", "end"]
            assert session.marks()["negotiated"]["protocol_version"] == "2024-11-05"


@pytest.mark.parametrize("length", [1, 20, 40])
async def test_an_endpoint_in_two_pieces_leads_to_the_proxy(between, tmp_path, length):
    encoded = b": ready\n\n" + event(name="endpoint", text="http://mcp.test/messages?session_id=1")

    async def pieces():
        yield encoded[:length]
        yield encoded[length:]
        await trio.sleep_forever()

    async def answer(_):
        return Reply(200, EVENTS, pieces())

    async with between(answer, tmp_path) as proxy:
        stream = proxy.begin(method="GET", target="/sse")
        assert (await stream.event()).data == b"/messages?session_id=1"
        stream.leave()


async def test_a_stream_that_ends_in_the_first_event_is_forwarded(between, tmp_path):
    async def pieces():
        yield b"event: end"

    async def answer(_):
        return Reply(200, EVENTS, pieces())

    async with between(answer, tmp_path) as proxy:
        exchange = await proxy.ask(method="GET", target="/sse")
        assert exchange.pieces == [b"event: end"]


async def test_the_endpoint_of_another_origin_is_forwarded_unchanged(between, tmp_path):
    async with between(old_server("http://other.test/messages"), tmp_path) as proxy:
        stream = proxy.begin(method="GET", target="/sse")
        assert (await stream.event()).data == b"http://other.test/messages"
        stream.leave()


# The written files.


async def test_a_secret_is_forwarded_unchanged_and_not_recorded(between, tmp_path, files):
    async def echo(seen):
        return result(seen, password=seen.message["params"]["arguments"]["password"])

    call = asking(1, "tools/call", STATELESS, name="x", arguments={"password": "hunter22"})
    options = RecordOptions(tmp_path, redaction=Redaction())
    async with between(Modern(answers={"tools/call": echo}), options) as proxy:
        assert (await proxy.ask(call)).json["result"] == {"password": "hunter22"}
    (session,) = files()
    assert len(session.lines("in")) == len(session.lines("out")) == 1
    (file,) = tmp_path.iterdir()
    assert b"hunter22" not in file.read_bytes()


async def test_messages_of_no_session_continue_in_further_files(between, tmp_path):
    options = RecordOptions(tmp_path, segment_bytes_max=1000)
    async with between(Modern(), options) as proxy:
        for number in range(10):
            await proxy.ask(asking(number, "server/discover", STATELESS))
    first = min(tmp_path.iterdir(), key=lambda file: len(file.name))
    assert len([*tmp_path.iterdir()]) > 1
    assert len([each for each in read_recording(open_recording(first)) if each.kind == "in"]) == 10


# A proxy over sockets, between our client and our server.


VERSIONS_BY_KIND = {"legacy": ("2025-11-25",), "stateless": ("2026-07-28",)}


def harbour(ended=None):
    server = Server("harbour", version="1")

    @server.tool
    async def tide(port: str, *, ctx: Context) -> str:
        await ctx.warning(f"asked for {port}")
        answer = await ctx.elicit("Which unit?", Unit)
        return f"3 {answer.data.unit} at {port}"

    @server.tool
    async def wait(*, ctx: Context) -> str:
        await ctx.warning("waiting")
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    return server


@attrs.frozen
class Unit:
    unit: str


@asynccontextmanager
async def proxy_to(url, folder, *, http=None):
    """The URL that stands for the server's."""
    limits = Limits()
    parsed = httpx2.URL(url)
    endpoint_client = EndpointClient(
        http=http or client_for(parsed), url=parsed, headers={}, limits=limits
    )
    start = partial(
        start_message_journal, folder, transport="http", name=parsed.host, limits=limits
    )
    recordings = OpenRecordings(start_journal=start, limits=limits)
    async with endpoint_client.http, trio.open_nursery() as nursery:
        yield await nursery.start(serve_http_proxy, ListenOptions(), endpoint_client, recordings)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def serving(served, **options):
    async with trio.open_nursery() as nursery:
        serve = partial(served.serve_http, port=0, **options)
        yield await nursery.start(lambda task_status: serve(task_status=task_status))
        nursery.cancel_scope.cancel()


async def converse(url, protocol_versions):
    async with Client(
        url, protocol_versions=protocol_versions, elicitation=lambda _: {"unit": "m"}
    ) as client:
        results = [await client.call_tool("tide", {"port": port}) for port in ("Oslo", "Rome")]
        await client.list_tools()
    return [result.content[0].text for result in results]


@pytest.mark.parametrize("kind", VERSIONS_BY_KIND)
async def test_a_recording_can_be_mocked_and_driven(tmp_path, recorded, kind):
    async with serving(harbour()) as url:
        async with proxy_to(url, tmp_path) as proxied:
            answers = await converse(proxied, VERSIONS_BY_KIND[kind])
        assert answers == ["3 m at Oslo", "3 m at Rome"]
        (file,) = tmp_path.iterdir()
        session = recorded(file)
        assert session.counts["malformed"] == 0
        assert session.kinds()[-2:] == ["shut", "end"]
        report = await replay_live_async(file, harbour())
        assert report.is_same, report.differences
    mock = mock_server(file)
    assert await converse(mock, VERSIONS_BY_KIND[kind]) == answers
    assert mock.unrecorded == ()


async def test_a_stateless_client_that_goes_away_cancels_at_the_server(tmp_path):
    begun, ended = trio.Event(), trio.Event()
    async with (
        serving(harbour(ended)) as url,
        proxy_to(url, tmp_path) as proxied,
        Client(proxied, log=lambda _: begun.set()) as client,
    ):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "wait")
            with trio.fail_after(10):
                await begun.wait()
            nursery.cancel_scope.cancel()
        with trio.fail_after(10):
            await ended.wait()


async def test_a_server_behind_tls_is_reached_by_the_given_client(tmp_path, certificate):
    trusting = httpx2.AsyncClient(
        verify=ssl.create_default_context(cafile=certificate["certfile"]), timeout=None
    )
    async with serving(harbour(), server="hypercorn", **certificate) as url:
        assert url.startswith("https://")
        async with proxy_to(url, tmp_path, http=trusting) as proxied:
            assert (await converse(proxied, VERSIONS_BY_KIND["stateless"]))[0] == "3 m at Oslo"
        async with proxy_to(url, tmp_path) as proxied, httpx2.AsyncClient() as client:
            answered = await client.post(proxied, json={"jsonrpc": "2.0", "id": 1, "method": "x"})
            assert answered.status_code == 502
            assert "certificate" in answered.json()["error"]["message"]


async def test_a_server_that_is_not_there_is_a_502_and_later_it_is(tmp_path):
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    await listeners[0].aclose()
    message = {"jsonrpc": "2.0", "id": 7, "method": "x"}
    async with proxy_to(f"http://127.0.0.1:{port}/mcp", tmp_path) as proxied:
        async with httpx2.AsyncClient() as client:
            answered = await client.post(proxied, json=message)
        assert (answered.status_code, answered.json()["id"]) == (502, 7)
        assert f"http://127.0.0.1:{port}/mcp" in answered.json()["error"]["message"]
        serve = partial(harbour().serve_http, port=port)
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: serve(task_status=task_status))
            assert (await converse(proxied, VERSIONS_BY_KIND["legacy"]))[1] == "3 m at Rome"
            nursery.cancel_scope.cancel()
