"""Which file what passes is recorded in: sessions, what belongs to none, and ids that meet."""

import json

import trio
import trio.testing

from mcp_trio._journal.conversation import conversation
from mcp_trio.limits import HttpLimits
from mcp_trio.recording import RecordOptions, Redaction, open_recording, read_recording
from tests.transports.http.scripted_server import (
    EVENTS,
    Legacy,
    Modern,
    Reply,
    answer_to,
    asking,
    event,
    events,
    json_reply,
    result,
    telling,
)

STATELESS = "2026-07-28"
HELLO = asking(0, "initialize", capabilities={})


def methods(session, kind="in"):
    return [body.get("method", body.get("id")) for body in session.bodies(kind)]


def http_marks(session):
    return [body["value"] for body in session.bodies("mark") if body["name"] == "http"]


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
            hello = await proxy.ask(HELLO)
            assert hello.headers["mcp-session-id"] == f"s-{number}"
        for number in (2, 1):
            session = {"Mcp_Session_Id": f"s-{number}"}
            assert (await proxy.ask(telling("notifications/initialized"), **session)).status == 202
            answered = await proxy.ask(asking(1, "echo"), **session)
            assert answered.json["result"] == {"session": f"s-{number}"}
    first, second = files()
    for session in (first, second):
        assert methods(session) == ["initialize", "notifications/initialized", "echo"]
        assert session.marks()["negotiated"]["revision"] == "2025-11-25"
        assert http_marks(session) == []
        assert session.cause == "closed"
    assert first.bodies("out")[-1]["result"] == {"session": "s-1"}


async def test_a_file_takes_all_sessions_on_channels_of_their_own(between, tmp_path, recorded):
    file = tmp_path / "all.mcprec.jsonl"
    async with between(counted(), file) as proxy:
        for _ in range(2):
            await proxy.ask(HELLO)
        await proxy.ask(asking(1, "echo"), Mcp_Session_Id="s-2")
        await proxy.ask(asking(1, "tools/list", STATELESS))
    records = [*read_recording(open_recording(file))]
    told = [conversation(records, channel=channel) for channel in (1, 2, 3)]
    assert [[said.method for said in each.of("client", "request")] for each in told] == [
        ["initialize"],
        ["initialize", "echo"],
        ["tools/list"],
    ]
    assert recorded(file).kinds()[-1] == "end"


async def test_a_deleted_session_has_a_complete_file(between, tmp_path, files):
    async with between(counted(), tmp_path) as proxy:
        await proxy.ask(HELLO)
        deleted = await proxy.ask(method="DELETE", Mcp_Session_Id="s-1")
        assert deleted.status == 204
        (session,) = files()
        assert session.kinds()[-3:] == ["mark", "shut", "end"]
        assert http_marks(session) == [{"method": "DELETE", "status": 204}]


async def test_a_session_that_the_server_has_forgotten_has_a_whole_file(between, tmp_path, files):
    async def gone(seen):
        return Reply(404)

    async with between(counted(echo=gone), tmp_path) as proxy:
        await proxy.ask(HELLO)
        assert (await proxy.ask(asking(1, "echo"), Mcp_Session_Id="s-1")).status == 404
        assert (await proxy.ask(asking(2, "echo"), Mcp_Session_Id="s-1")).status == 404
        session, common = files()
        assert session.kinds()[-1] == "end"
        assert methods(session) == ["initialize", "echo"]
        assert methods(common) == ["echo"]


async def test_a_session_that_nobody_uses_has_a_whole_file(
    between, tmp_path, files, autojump_clock
):
    async def listening(seen):
        return Reply(200, EVENTS, forever())

    async def forever():
        yield event({"jsonrpc": "2.0", "method": "notifications/message", "params": {}})
        await trio.sleep_forever()

    server = counted()
    server.listen = listening
    async with between(server, tmp_path, http=HttpLimits(session_idle_seconds=60)) as proxy:
        await proxy.ask(HELLO)
        await proxy.ask(HELLO)
        stream = proxy.begin(method="GET", Mcp_Session_Id="s-2")
        await stream.message()
        await trio.sleep(100)
        unused, used = files()
        assert (unused.kinds()[-1], used.kinds()[-1]) == ("end", "out")
        await proxy.ask(asking(1, "echo"), Mcp_Session_Id="s-2")
        assert methods(files()[1]) == ["initialize", "echo"]


async def test_a_handshake_that_is_rejected_leaves_a_whole_file(between, tmp_path, files):
    async def reject(seen):
        return json_reply({"jsonrpc": "2.0", "id": 0, "error": {"code": -1, "message": "no"}}, 400)

    async with between(counted(initialize=reject), tmp_path) as proxy:
        assert (await proxy.ask(HELLO)).status == 400
        (session,) = files()
        assert session.kinds() == ["open", "in", "out", "mark", "shut", "end"]


async def test_over_the_number_of_sessions_what_comes_is_recorded_in_common(
    between, tmp_path, files
):
    async with between(counted(), tmp_path, http=HttpLimits(sessions_max=1)) as proxy:
        for _ in range(3):
            await proxy.ask(HELLO)
            await proxy.ask(asking(1, "echo"), Mcp_Session_Id="s-3")
    first, common = files()[:2]
    assert methods(first) == ["initialize"]
    assert methods(common).count("initialize") == 2


async def test_a_server_that_gives_no_ids_is_recorded_in_one_file(between, tmp_path, files):
    async with between(Legacy(session=None), tmp_path) as proxy:
        for _ in range(2):
            await proxy.ask(asking(0, "server/discover", STATELESS))
            await proxy.ask(HELLO)
            await proxy.ask(telling("notifications/initialized"))
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


# What belongs to no session.


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


async def test_requests_that_could_be_taken_for_each_other_have_files_apart(
    between, tmp_path, files
):
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


async def test_what_a_client_gets_again_is_recorded_once(between, tmp_path, files):
    def log(number):
        return {"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": number}}

    async def listening(seen):
        last = seen.headers.get("last-event-id")
        begin = 0 if last is None else int(last) + 1
        return events(*(event(log(number), event_id=number) for number in range(begin, begin + 3)))

    server = counted()
    server.listen = listening
    async with between(server, tmp_path) as proxy:
        await proxy.ask(HELLO)
        session = {"Mcp_Session_Id": "s-1"}
        await proxy.ask(method="GET", **session)
        resumed = await proxy.ask(method="GET", Last_Event_ID="0", **session)
        said = [json.loads(each.data)["params"]["data"] for each in resumed._events]
        assert said == [1, 2, 3]
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
            told = (await stream.event()).data.decode()
            assert told in {"messages?session_id=1", "/messages?session_id=1"}
            posted = await proxy.ask(HELLO, target="/messages?session_id=1")
            assert (posted.status, posted.answer_body) == (202, b"Accepted")
            assert (await stream.message())["id"] == 0
            stream.leave()
            await trio.testing.wait_all_tasks_blocked()
            session = files()[-1]
            assert session.kinds() == ["open", "in", "out", "mark", "mark", "shut", "end"]
            assert session.marks()["negotiated"]["revision"] == "2024-11-05"


async def test_an_endpoint_elsewhere_is_left_to_the_client(between, tmp_path):
    async with between(old_server("http://other.test/messages"), tmp_path) as proxy:
        stream = proxy.begin(method="GET", target="/sse")
        assert (await stream.event()).data == b"http://other.test/messages"
        stream.leave()


# How it is written.


async def test_what_is_redacted_passes_as_it_is_and_is_not_written(between, tmp_path, files):
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


async def test_what_belongs_to_no_session_goes_on_in_further_files(between, tmp_path):
    options = RecordOptions(tmp_path, segment_bytes_max=1000)
    async with between(Modern(), options) as proxy:
        for number in range(10):
            await proxy.ask(asking(number, "server/discover", STATELESS))
    first = min(tmp_path.iterdir(), key=lambda file: len(file.name))
    assert len([*tmp_path.iterdir()]) > 1
    assert len([each for each in read_recording(open_recording(first)) if each.kind == "in"]) == 10
