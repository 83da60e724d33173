"""What passes a proxy over HTTP: heads, bodies and streams as they are, and what is refused."""

import json

import pytest
import trio

from mcp_trio.limits import MessageLimits
from tests.transports.http.scripted_exchange import ScriptedExchange
from tests.transports.http.scripted_server import (
    EVENTS,
    JSON,
    Legacy,
    Reply,
    event,
    events,
    result,
)

STATELESS = "2026-07-28"
HELLO = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"capabilities": {}}}
CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "tide"}}


def http_marks(session):
    return [body["value"] for body in session.bodies("mark") if body["name"] == "http"]


# Heads.


async def test_a_head_passes_but_for_what_belongs_to_the_connection(between, tmp_path):
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


async def test_nothing_of_a_head_is_recorded(between, tmp_path):
    async with between(Legacy(), tmp_path) as proxy:
        await proxy.ask(HELLO, target="/mcp?key=hidden", Authorization="Bearer hidden")
        await proxy.ask(method="GET", target="/mcp?key=hidden", Authorization="Bearer hidden")
    for file in tmp_path.iterdir():
        assert b"hidden" not in file.read_bytes()


async def test_an_answers_head_comes_back_but_for_what_belongs_to_the_connection(between, tmp_path):
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


async def test_a_server_that_sends_a_client_to_itself_sends_it_to_us(between, tmp_path):
    async def answer(seen):
        return Reply(307, {"location": f"http://{seen.path[1:]}/mcp/"})

    async with between(answer, tmp_path) as proxy:
        own = await proxy.ask(CALL, target="/mcp.test")
        other = await proxy.ask(CALL, target="/elsewhere.test")
    assert (own.status, own.headers["location"]) == (307, "/mcp/")
    assert other.headers["location"] == "http://elsewhere.test/mcp/"


@pytest.mark.parametrize("method", ["GET", "DELETE", "OPTIONS", "HEAD", "PUT"])
async def test_every_method_and_path_passes_and_is_noted(between, tmp_path, files, method):
    async def answer(seen):
        assert (seen.method, seen.path) == (method, "/.well-known/thing?x=1")
        return Reply(404, {"content-type": "text/plain"}, b"nothing here")

    async with between(answer, tmp_path) as proxy:
        answered = await proxy.ask(method=method, target="/.well-known/thing?x=1")
    assert (answered.status, answered.answer_body) == (404, b"nothing here")
    (session,) = files()
    assert session.lines("in") == session.lines("out") == []
    assert http_marks(session) == [{"method": method, "status": 404, "type": "text/plain"}]


async def test_what_is_posted_elsewhere_is_passed_and_never_recorded(between, tmp_path, files):
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


# Bodies.


async def test_bodies_pass_unchanged_and_are_recorded_verbatim(between, tmp_path, files):
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


async def test_what_is_no_message_passes_and_is_kept_as_it_is(between, tmp_path, files):
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
        exchange = Witness(asked.head, asked.sent_body)
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


async def test_a_stream_over_the_limit_passes_and_says_what_is_missing(between, tmp_path, files):
    large = event({"jsonrpc": "2.0", "id": 1, "result": {"text": "x" * 300}})

    async def answer(seen):
        return events(large)

    async with between(answer, tmp_path, messages=MessageLimits(bytes_max=100)) as proxy:
        exchange = await proxy.ask(CALL)
        assert b"".join(exchange.pieces) == large
    (session,) = files()
    (record,) = [record for record in session.records if record.kind == "out"]
    assert record.envelope["discarded"] > 100


async def test_what_is_compressed_all_the_same_passes_unread(between, tmp_path, files):
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
