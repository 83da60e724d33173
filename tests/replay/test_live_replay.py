"""Live replay: the order of messages, and failures of the server."""

import contextlib
import functools
import json
import random
import sys
import time
from pathlib import Path

import attrs
import msgspec
import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from msgspec import Raw

from mcp_trio import Client, ConnectionLost, Context, Server
from mcp_trio._journal.conversation import InputRequest
from mcp_trio._replay.live_replay import live_keys, with_recorded_keys
from mcp_trio._session.tasks import seeded_schedule
from mcp_trio.auth import AuthInfo, Bearer, StaticTokens
from mcp_trio.errors import LocalProtocolError, NothingCompared, OutcomeUnknown, RecordingError
from mcp_trio.examples.weather import server as weather
from mcp_trio.limits import DEFAULT_LIMITS, MessageLimits, RequestLimits
from mcp_trio.recording import replay_live, replay_live_async
from mcp_trio.testing import mock_client, mock_server
from mcp_trio.transports import Lost
from tests.replay.conversations import (
    META,
    SERVER_INFO,
    STATELESS,
    TAG,
    VERSION,
    answer,
    call,
    differences_of,
    note,
    result,
    stateless_call,
    stateless_request,
)
from tests.ways import served as served_at_url

RECORDINGS = Path(__file__).parents[2] / "recordings"
SEVERAL_SESSIONS = "shared.mcprec.jsonl"
WHOLE_SESSIONS = [
    path
    for path in sorted(RECORDINGS.glob("*.jsonl"))
    if path.name != SEVERAL_SESSIONS and path.name.count(".") == 2  # a later segment has a number
]
LIMITS = msgspec.structs.replace(DEFAULT_LIMITS, requests=RequestLimits(idle_seconds=10))


@pytest.mark.parametrize("path", WHOLE_SESSIONS, ids=lambda path: path.name)
async def test_a_mocked_client_at_its_mocked_server_finds_no_difference(path, autojump_clock):
    mock = mock_server(path)
    report = await replay_live_async(path, mock, allow_damaged=path.name == "gap.mcprec.jsonl")
    assert report.is_same, str(report)
    assert (mock.unrecorded, mock.unused) == ((), ())


def test_an_unchanged_server_has_a_report_of_one_line():
    report = replay_live(RECORDINGS / "weather.mcprec.jsonl", weather)
    assert str(report) == "no differences, 6 of 6 requests answered"


async def test_a_recording_without_an_answer_compares_nothing(recording_of, scripted):
    async def script(peer):
        await peer.send_result(await peer.receive(), {"content": []})

    with pytest.raises(NothingCompared, match="holds no request that was answered"):
        await replay_live_async(recording_of(("C", call(1))), scripted(script))


async def test_ids_and_progress_tokens_are_those_of_the_live_session(recording_of, scripted):
    async def script(peer):
        asked = await peer.receive()
        assert asked["id"] == asked["params"]["_meta"]["progressToken"] != "abc"
        assert asked["params"]["_meta"]["trace"] == "kept"
        await peer.send(note("progress", progressToken=asked["id"], progress=1))
        await peer.send_result(asked, {})

    path = recording_of(
        ("C", call("abc", _meta={"progressToken": "t", "trace": "kept"})),
        ("S", note("progress", progressToken="t", progress=1)),
        ("S", result("abc")),
    )
    assert (await replay_live_async(path, scripted(script))).is_same


async def test_a_message_sent_after_an_answer_is_sent_after_it_again(recording_of, scripted):
    async def script(peer):
        asked = await peer.receive()
        assert await peer.receive_available() == []
        await peer.send_result(asked, {})
        assert (await answer(peer))["params"]["name"] == "second"

    path = recording_of(
        ("C", call(1, "first")), ("S", result(1)), ("C", call(2, "second")), ("S", result(2))
    )
    assert (await replay_live_async(path, scripted(script))).is_same


async def test_concurrent_requests_are_concurrent_again(recording_of, scripted):
    async def script(peer):
        first, second = await peer.receive_many(2)
        await peer.send_result(second, {"n": 2})
        await peer.send_result(first, {"n": 1})

    path = recording_of(
        ("C", call(1)), ("C", call(2)), ("S", result(1, n=1)), ("S", result(2, n=2))
    )
    assert (await replay_live_async(path, scripted(script))).is_same


async def test_cursors_and_uris_of_the_live_server_are_sent_back(recording_of, scripted):
    async def script(peer):
        await answer(peer, nextCursor="live", tasks=[{"taskId": "L1"}], status="open")
        asked = await answer(peer)
        assert asked["params"] == {"cursor": "live", "ids": [{"a": "L1"}], "status": "done", "n": 1}

    path = recording_of(
        ("C", {"id": 1, "method": "tools/list"}),
        ("S", result(1, nextCursor="old", tasks=[{"taskId": "R1"}], status="done")),
        (
            "C",
            {
                "id": 2,
                "method": "tools/list",
                "params": {"cursor": "old", "ids": [{"a": "R1"}], "status": "done", "n": 1},
            },
        ),
        ("S", result(2)),
    )
    report = await replay_live_async(
        path, scripted(script), ignore=["$.result.tasks", "$.result.status"]
    )
    assert report.is_same


# Questions of the server.

ROOTS = {"id": 7, "method": "roots/list"}
SAMPLE = {"id": 8, "method": "sampling/createMessage", "params": {"maxTokens": 1}}


async def test_server_requests_get_the_recorded_answers(recording_of, scripted):
    async def script(peer):
        asked = await peer.receive()
        await peer.send(SAMPLE | {"id": "other"}, ROOTS | {"id": 1})
        assert await peer.receive() == {"jsonrpc": "2.0", "id": "other", "result": {"text": "a"}}
        reply = await peer.receive()
        assert (reply["id"], reply["error"]) == (1, {"code": -5, "message": "no", "data": [1]})
        await peer.send_result(asked, {})

    path = recording_of(
        ("C", call(1)),
        ("S", SAMPLE),
        ("C", result(8, text="a")),
        ("S", ROOTS),
        ("C", {"id": 7, "error": {"code": -5, "message": "no", "data": [1]}}),
        ("S", result(1)),
    )
    assert (await replay_live_async(path, scripted(script))).is_same


async def test_a_server_request_matches_the_recorded_one_with_the_same_params(
    recording_of, scripted
):
    async def script(peer):
        asked = await peer.receive()
        await peer.send(SAMPLE | {"id": 1, "params": {"maxTokens": 2}}, SAMPLE | {"id": 2})
        replies = {each["id"]: each["result"] for each in await peer.receive_many(2)}
        assert replies == {1: {"text": "two"}, 2: {"text": "one"}}
        await peer.send_result(asked, {})

    path = recording_of(
        ("C", call(1)),
        ("S", SAMPLE),
        ("S", SAMPLE | {"id": 9, "params": {"maxTokens": 2}}),
        ("C", result(8, text="one")),
        ("C", result(9, text="two")),
        ("S", result(1)),
    )
    assert (await replay_live_async(path, scripted(script))).is_same


async def test_an_unrecorded_server_request_is_rejected_and_extra(recording_of, scripted):
    async def script(peer):
        asked = await peer.receive()
        await peer.send(ROOTS)
        reply = await peer.receive()
        assert reply["error"]["code"] == -32601
        assert "received no request roots/list" in reply["error"]["message"]
        await peer.send({"id": 5, "method": "ping"})
        assert (await peer.receive())["result"] == {}
        await peer.send_result(asked, {})

    path = recording_of(("C", call(1)), ("S", result(1)))
    report = await replay_live_async(path, scripted(script))
    assert differences_of(report) == [("extra", "server request roots/list", "")]


async def test_an_absent_server_request_is_missing_and_its_answer_unsent(
    recording_of, scripted, autojump_clock
):
    path = recording_of(("C", call(1)), ("S", ROOTS), ("C", result(7)), ("S", result(1)))
    report = await replay_live_async(path, scripted(answer))
    assert differences_of(report) == [("missing", "server request roots/list", "")]
    assert report.unsent == 1
    assert trio.current_time() < 2 * LIMITS.replay.unrequested_seconds + 0.1


async def test_recorded_answers_are_sent_early_if_the_server_waits_for_them(
    recording_of, scripted, autojump_clock
):
    async def script(peer):
        first, second = await peer.receive_many(2)
        await peer.send(SAMPLE)
        await peer.receive()
        await peer.send_result(second, {})
        await peer.send(ROOTS)
        await peer.receive()
        await peer.send_result(first, {})

    path = recording_of(
        ("C", call(1)),
        ("C", call(2)),
        ("S", ROOTS),
        ("C", result(7)),
        ("S", result(1)),
        ("S", SAMPLE),
        ("C", result(8)),
        ("S", result(2)),
    )
    report = await replay_live_async(path, scripted(script), limits=LIMITS)
    assert report.is_same, str(report)
    assert trio.current_time() < LIMITS.requests.idle_seconds


async def test_progress_of_the_client_has_the_token_of_the_live_request(recording_of, scripted):
    async def script(peer):
        asked = await peer.receive()
        params = {"maxTokens": 1, "_meta": {"progressToken": "live"}}
        await peer.send(SAMPLE | {"id": 3, "params": params})
        progress, reply = await peer.receive_many(2)
        assert progress["params"] == {"progressToken": "live", "progress": 1}
        assert reply["id"] == 3
        await peer.send_result(asked, {})

    params = {"maxTokens": 1, "_meta": {"progressToken": "old"}}
    path = recording_of(
        ("C", call(1)),
        ("S", SAMPLE | {"params": params}),
        ("C", note("progress", progressToken="old", progress=1)),
        ("C", note("progress", progressToken="nobody's", progress=1)),
        ("C", result(8)),
        ("C", result(99)),
        ("S", result(1)),
    )
    report = await replay_live_async(path, scripted(script))
    assert (report.is_same, report.unsent) == (True, 2)


# Cancellations.


async def test_a_cancellation_names_the_live_request(recording_of, scripted, autojump_clock):
    async def script(peer):
        first, second = await peer.receive_many(2)
        cancelled = await peer.receive()
        assert cancelled["params"] == {"requestId": first["id"], "reason": "enough"}
        await peer.send_result(second, {})
        if is_late:
            await peer.send_result(first, {})

    path = recording_of(
        ("C", call(6, "slow")),
        ("C", call(5)),
        ("C", note("cancelled", requestId=6, reason="enough")),
        ("C", note("cancelled", requestId=77)),
        ("S", result(5)),
    )
    is_late = False
    assert (await replay_live_async(path, scripted(script))).is_same
    is_late = True
    report = await replay_live_async(path, scripted(script))
    assert differences_of(report) == [
        ("extra", "answer to tools/call slow, which was cancelled", "")
    ]


async def test_an_answer_to_a_cancelled_request_is_awaited_briefly(
    recording_of, scripted, autojump_clock
):
    async def script(peer):
        await peer.receive_many(2)

    path = recording_of(("C", call(6)), ("C", note("cancelled", requestId=6)), ("S", result(6)))
    report = await replay_live_async(path, scripted(script), limits=LIMITS)
    assert differences_of(report) == [("missing", "answer to tools/call x", "")]
    assert trio.current_time() == pytest.approx(LIMITS.replay.unrequested_seconds)


# Servers that disconnect, fail or are late.


async def test_a_server_that_disconnects_is_one_difference(recording_of, scripted):
    async def script(peer):
        await peer.receive()
        await peer.aclose()

    path = recording_of(
        ("C", call(1)),
        ("S", note("message", data=1)),
        ("S", ROOTS),
        ("S", result(1)),
        ("C", call(2)),
        ("S", result(2)),
    )
    report = await replay_live_async(path, scripted(script))
    assert str(report).splitlines() == [
        "lost the server: it closed the connection",
        "1 difference, 0 of 2 requests answered, 1 client messages not sent",
    ]


async def test_a_server_object_that_fails_is_lost(recording_of, scripted):
    async def script(peer):
        raise ValueError("broken")

    report = await replay_live_async(
        recording_of(("C", call(1)), ("S", result(1))), scripted(script)
    )
    (lost,) = report.differences
    assert (lost.kind, lost.live) == ("lost", "the server object failed: ValueError('broken')")


async def test_a_silent_server_is_lost_after_some_requests(recording_of, scripted, autojump_clock):
    async def script(peer):
        await trio.sleep_forever()

    messages = [each for n in range(9) for each in (("C", call(n)), ("S", result(n)))]
    report = await replay_live_async(recording_of(*messages), scripted(script), limits=LIMITS)
    assert differences_of(report) == [("lost", "the server", "")]
    assert report.differences[0].live == "it left 2 requests unanswered and sent nothing"
    assert trio.current_time() == pytest.approx(2 * LIMITS.requests.idle_seconds)


async def test_an_answer_that_is_late_is_one_difference(recording_of, scripted, autojump_clock):
    async def script(peer):
        await peer.receive()
        await answer(peer)

    path = recording_of(("C", call(1)), ("S", result(1)), ("C", call(2)), ("S", result(2)))
    report = await replay_live_async(path, scripted(script), limits=LIMITS)
    assert differences_of(report) == [("late", "answer to tools/call x", "")]


async def test_a_recorded_answer_to_no_request_is_not_awaited(recording_of, scripted):
    path = recording_of(("C", call(1)), ("S", result(5)), ("S", result(1)))
    assert (await replay_live_async(path, scripted(answer))).is_same


async def test_invalid_recorded_messages_are_not_sent(recording_of, scripted):
    path = recording_of(("C", b"{"), ("C", call(1)), ("S", result(1)))
    report = await replay_live_async(path, scripted(answer))
    assert str(report).endswith("1 recorded messages invalid")


async def test_requests_without_a_recorded_response_are_counted(recording_of, scripted):
    async def script(peer):
        for number in (0, 2, 3):
            await answer(peer, n=number)

    path = recording_of(
        ("C", call(1)),
        ("S", result(1, n=0)),
        ("C", call(2)),
        ("C", note("cancelled", requestId=2)),
        ("C", call(3)),
    )
    report = await mock_client(path, scripted(script))
    assert report.uncompared == 1
    assert "1 without a recorded response" in report.summary


async def test_a_command_that_cannot_be_started_raises(recording_of):
    with pytest.raises(ConnectionLost, match="cannot start"):
        await replay_live_async(recording_of(("C", call(1))), ["/no/such/program"])


async def test_an_invalid_recording_raises(tmp_path):
    (tmp_path / "text").write_text("hello\n")
    with pytest.raises(RecordingError):
        await replay_live_async(tmp_path / "text", weather)


async def test_the_end_of_a_process_is_reported_with_its_stderr(recording_of):
    code = "import sys; input(); sys.exit('cannot go on')"
    path = recording_of(("C", call(1)), ("S", result(1)))
    report = await replay_live_async(path, [sys.executable, "-c", code])
    (lost,) = report.differences
    assert "exited with status 1" in lost.live
    assert "cannot go on" in lost.live


async def test_a_kind_of_notification_that_stopped_delays_once(
    recording_of, scripted, autojump_clock
):
    async def script(peer):
        for _ in range(5):
            await answer(peer)

    messages = [
        each
        for n in range(5)
        for each in (("C", call(n)), ("S", note("message", data=n)), ("S", result(n)))
    ]
    report = await replay_live_async(recording_of(*messages), scripted(script))
    assert len(report.differences) == 5
    assert trio.current_time() < 2 * LIMITS.replay.unrequested_seconds + 0.1


async def test_a_mocked_client_takes_any_answer(recording_of, scripted):
    async def script(peer):
        await answer(peer, anything=1)

    report = await mock_client(recording_of(("C", call(1)), ("S", result(1))), scripted(script))
    assert (report.is_same, report.answered) == (True, 1)


# Live replay of stateless clients: retries, subscriptions and URL elicitations.


CITY = {"method": "elicitation/create", "params": {"message": "City?"}}
DAYS = {"method": "elicitation/create", "params": {"message": "Days?"}}
ROOTS_LIVE_REPLAY_STATELESS = {"method": "roots/list"}


def asks(state=None, **questions):
    asked = {"resultType": "input_required", "inputRequests": questions}
    return asked | ({} if state is None else {"requestState": state})


def params_of(asked):
    return {name: value for name, value in asked["params"].items() if name not in {"_meta", "name"}}


# Rounds.

ROUNDS = (
    ("C", stateless_call(1)),
    ("S", result(1, **asks("recorded", q1=CITY, q2=DAYS, q3=ROOTS_LIVE_REPLAY_STATELESS))),
    (
        "C",
        stateless_call(
            2,
            inputResponses={"q1": "Oslo", "q2": 3, "q3": {"roots": []}},
            requestState="recorded",
        ),
    ),
    ("S", result(2, resultType="complete", content=[])),
)


async def test_a_retry_has_the_live_state_and_the_live_keys(recording_of, scripted):
    async def script(peer):
        first = await peer.receive()
        await peer.send_result(first, asks("live", a=ROOTS_LIVE_REPLAY_STATELESS, b=DAYS, c=CITY))
        retry = await peer.receive()
        assert params_of(retry) == {
            "inputResponses": {"c": "Oslo", "b": 3, "a": {"roots": []}},
            "requestState": "live",
        }
        assert retry["params"]["_meta"] == META
        await peer.send_result(retry, {"resultType": "complete", "content": []})

    report = await replay_live_async(recording_of(*ROUNDS), scripted(script))
    assert report.is_same, str(report)
    assert report.ignored == 1


async def test_a_live_server_without_a_state_gets_none(recording_of, scripted):
    async def script(peer):
        await peer.send_result(
            await peer.receive(), asks(q1=CITY, q2=DAYS, q3=ROOTS_LIVE_REPLAY_STATELESS)
        )
        retry = await peer.receive()
        assert "requestState" not in retry["params"]
        await peer.send_result(retry, {"resultType": "complete", "content": []})

    report = await replay_live_async(recording_of(*ROUNDS), scripted(script))
    assert differences_of(report) == [
        ("changed", "answer to tools/call x", "$.result.requestState")
    ]


async def test_input_responses_are_sent_only_to_live_input_requests(recording_of, scripted):
    async def script(peer):
        other = {"method": "sampling/createMessage"}
        await peer.send_result(await peer.receive(), asks("live", q2=DAYS, more=other))
        retry = await peer.receive()
        assert params_of(retry)["inputResponses"] == {"q2": 3}
        await peer.send_result(retry, {"resultType": "complete", "content": []})

    report = await replay_live_async(recording_of(*ROUNDS), scripted(script))
    assert [path for _, _, path in differences_of(report)] == [
        f"$.result.inputRequests.{key}" for key in ("q1", "q3", "more")
    ]


async def test_an_additional_input_request_with_a_recorded_key_is_a_difference(
    recording_of, scripted
):
    async def script(peer):
        more = {"method": "sampling/createMessage"}
        asked = asks("live", q1=more, q2=DAYS, q3=ROOTS_LIVE_REPLAY_STATELESS, q4=CITY)
        await peer.send_result(await peer.receive(), asked)
        retry = await peer.receive()
        assert params_of(retry)["inputResponses"] == {"q4": "Oslo", "q2": 3, "q3": {"roots": []}}
        await peer.send_result(retry, {"resultType": "complete", "content": []})

    report = await replay_live_async(recording_of(*ROUNDS), scripted(script))
    assert [(each.path, each.live["method"]) for each in report.differences] == [
        ('$.result.inputRequests["q1 (live)"]', "sampling/createMessage")
    ]


@pytest.mark.parametrize(
    "answer",
    [{"result": {"resultType": "complete", "content": []}}, {"error": {"code": -1, "message": ""}}],
)
async def test_a_server_without_input_requests_gets_no_retry(
    recording_of, scripted, answer, autojump_clock
):
    async def script(peer):
        first = await peer.receive()
        await peer.send({"id": first["id"], **answer})

    began = trio.current_time()
    report = await replay_live_async(recording_of(*ROUNDS), scripted(script))
    assert trio.current_time() - began < 1
    assert (report.unsent, report.answered) == (1, 1)
    assert differences_of(report)[-1] == ("missing", "answer to tools/call x", "")


async def test_a_result_in_place_of_a_recorded_error_is_a_difference(recording_of, scripted):
    async def script(peer):
        await peer.send_result(await peer.receive(), asks("live", q1=CITY))

    path = recording_of(
        ("C", stateless_call(1)), ("S", {"id": 1, "error": {"code": -1, "message": "no"}})
    )
    report = await replay_live_async(path, scripted(script))
    assert [path for _, _, path in differences_of(report)] == ["$.error", "$.result"]


async def test_a_request_state_without_a_recorded_origin_is_sent_unchanged(recording_of, scripted):
    async def script(peer):
        asked = await peer.receive()
        assert params_of(asked) == {"requestState": "made up"}
        await peer.send({"id": asked["id"], "error": {"code": -32602, "message": "no"}})

    rejected = {"id": 1, "error": {"code": -32602, "message": "no"}}
    path = recording_of(("C", stateless_call(1, requestState="made up")), ("S", rejected))
    assert (await replay_live_async(path, scripted(script))).is_same


async def test_a_retry_without_input_responses_is_sent_without_them(recording_of, scripted):
    async def script(peer):
        waiting = {"resultType": "input_required", "requestState": "live"}
        await peer.send_result(await peer.receive(), waiting)
        retry = await peer.receive()
        assert params_of(retry) == {"requestState": "live"}
        await peer.send_result(retry, {})

    path = recording_of(
        ("C", stateless_call(1)),
        ("S", result(1, resultType="input_required", requestState="recorded")),
        ("C", stateless_call(2, requestState="recorded")),
        ("S", result(2)),
    )
    assert (await replay_live_async(path, scripted(script))).is_same


@pytest.mark.parametrize(
    ("recorded", "live", "keys"),
    [
        ({"a": CITY, "b": CITY}, {"b": CITY, "a": CITY}, {"a": "a", "b": "b"}),
        ({"a": CITY, "b": DAYS}, {"a": DAYS, "b": CITY}, {"a": "b", "b": "a"}),
        ({"a": CITY, "b": DAYS}, {"c": ROOTS_LIVE_REPLAY_STATELESS, "d": DAYS}, {"b": "d"}),
        ({"a": CITY}, {"z": DAYS, "a": DAYS}, {"a": "a"}),
        ({"a": CITY, "b": DAYS}, {"y": CITY | {"params": {}}, "z": DAYS}, {"a": "y", "b": "z"}),
    ],
)
def test_input_requests_match_if_equal_or_else_by_method(recorded, live, keys):
    as_questions = (
        {
            key: msgspec.json.decode(json.dumps(each), type=InputRequest)
            for key, each in asked.items()
        }
        for asked in (recorded, live)
    )
    assert live_keys(*as_questions) == keys


def test_a_result_with_the_same_keys_is_unchanged():
    live = Raw(json.dumps(asks("s", q=CITY)).encode())
    assert with_recorded_keys(live, live) is live
    assert with_recorded_keys(live, Raw(b"{}")) is live


# The name of the server, and waiting for the end.


async def test_another_version_of_the_server_is_one_difference(recording_of, scripted):
    def info(version):
        return {"_meta": {SERVER_INFO: {"name": "n", "version": version}, "other": version}}

    async def script(peer):
        for _ in range(2):
            await peer.send_result(await peer.receive(), info("2"))

    path = recording_of(
        ("C", stateless_request(1, "server/discover")),
        ("S", result(1, **info("1"))),
        ("C", stateless_call(2)),
        ("S", result(2, **info("1"))),
    )
    assert differences_of(await replay_live_async(path, scripted(script))) == [
        (
            "changed",
            "answer to server/discover",
            f'$.result._meta["{SERVER_INFO}"].version',
        ),
        ("changed", "answer to server/discover", "$.result._meta.other"),
        ("changed", "answer to tools/call x", "$.result._meta.other"),
    ]


async def test_the_name_of_a_meta_member_in_a_text_is_compared(recording_of, scripted):
    async def script(peer):
        await peer.send_result(await peer.receive(), {"text": f"{SERVER_INFO}", "_meta": 5})

    path = recording_of(("C", stateless_call(1)), ("S", result(1, text=f"{SERVER_INFO}", _meta=5)))
    assert (await replay_live_async(path, scripted(script))).is_same


async def test_discovery_marks_the_end_at_a_stateless_server(recording_of):
    last = []

    @attrs.define
    class Watched:
        async def serve(self, channel):
            while frames := await channel.receive():
                for frame in frames:
                    last.append(json.loads(frame))
                    answer = {"jsonrpc": "2.0", "id": last[-1]["id"], "result": {}}
                    await channel.send([json.dumps(answer).encode()])

    path = recording_of(("C", stateless_call(1, _meta={"progressToken": "t"})), ("S", result(1)))
    assert (await replay_live_async(path, Watched())).is_same
    assert last[1]["method"] == "server/discover"
    assert last[1]["params"] == {"_meta": META}


# Subscriptions.

FILTER = {"notifications": {"toolsListChanged": True}}


def tagged(id_):
    return {"_meta": {TAG: id_}}


async def test_notifications_of_a_live_subscription_match_the_recorded_ones(recording_of, scripted):
    async def script(peer):
        one, two = await peer.receive_many(2)
        for asked in (two, one):
            await peer.send(note("subscriptions/acknowledged", **FILTER, **tagged(asked["id"])))
        await peer.send(note("tools/list_changed", **tagged(two["id"])))
        cancel = await peer.receive()
        assert cancel["params"]["requestId"] == one["id"]
        await peer.send_result(two, tagged(two["id"]))
        await peer.send(note("cancelled", requestId=two["id"], **tagged(two["id"])))

    path = recording_of(
        ("C", stateless_request("a", "subscriptions/listen", **FILTER)),
        ("C", stateless_request("b", "subscriptions/listen", **FILTER)),
        ("S", note("subscriptions/acknowledged", **FILTER, **tagged("a"))),
        ("S", note("subscriptions/acknowledged", **FILTER, **tagged("b"))),
        ("S", note("tools/list_changed", **tagged("b"))),
        ("C", note("cancelled", requestId="a")),
        ("S", result("b", **tagged("b"))),
        ("S", note("cancelled", requestId="b", **tagged("b"))),
    )
    report = await replay_live_async(path, scripted(script))
    assert report.is_same, str(report)


async def test_a_missing_subscription_notification_is_not_awaited_long(
    recording_of, scripted, autojump_clock
):
    async def script(peer):
        asked = await peer.receive()
        await peer.send(note("subscriptions/acknowledged", **tagged(asked["id"])))

    path = recording_of(
        ("C", stateless_request("a", "subscriptions/listen", **FILTER)),
        ("S", note("subscriptions/acknowledged", **tagged("a"))),
        ("S", note("tools/list_changed", **tagged("a"))),
    )
    began = trio.current_time()
    report = await replay_live_async(path, scripted(script))
    assert trio.current_time() - began <= DEFAULT_LIMITS.replay.unrequested_seconds
    assert differences_of(report) == [
        ("missing", "notifications/tools/list_changed for subscriptions/listen", "")
    ]


async def test_the_final_end_of_a_subscription_is_not_awaited(
    recording_of, scripted, autojump_clock
):
    async def script(peer):
        asked = await peer.receive()
        await peer.send(note("subscriptions/acknowledged", **tagged(asked["id"])))

    path = recording_of(
        ("C", stateless_request("a", "subscriptions/listen", **FILTER)),
        ("S", note("subscriptions/acknowledged", **tagged("a"))),
        ("S", result("a", **tagged("a"))),
        ("S", note("cancelled", requestId="a", **tagged("a"))),
    )
    began = trio.current_time()
    report = await replay_live_async(path, scripted(script))
    assert trio.current_time() == began
    assert report.is_same, str(report)


async def test_a_notification_for_no_subscription_is_extra(recording_of, scripted):
    async def script(peer):
        asked = await peer.receive()
        await peer.send(note("tools/list_changed", **tagged(99)))
        await peer.send_result(asked, {})

    report = await replay_live_async(
        recording_of(("C", stateless_call(1)), ("S", result(1))), scripted(script)
    )
    assert differences_of(report) == [("extra", "notifications/tools/list_changed", "")]


# Legacy servers that ask.


def visit(id_, url, elicitation_id):
    params = {"mode": "url", "url": url, "message": "", "elicitationId": elicitation_id}
    return {"id": id_, "method": "elicitation/create", "params": params}


async def test_url_elicitations_match_whatever_their_id(recording_of, scripted):
    async def script(peer):
        asked = await peer.receive()
        await peer.send(visit(1, "b", "L2"), visit(2, "a", "L1"))
        replies = await peer.receive_many(2)
        assert {each["id"]: each["result"]["action"] for each in replies} == {
            1: "decline",
            2: "accept",
        }
        await peer.send(note("elicitation/complete", elicitationId="L1"))
        await peer.send_result(asked, {})

    path = recording_of(
        ("C", {"id": 1, "method": "tools/call", "params": {"name": "x"}}),
        ("S", visit(5, "a", "R1")),
        ("S", visit(6, "b", "R2")),
        ("C", result(5, action="accept")),
        ("C", result(6, action="decline")),
        ("S", note("elicitation/complete", elicitationId="R1")),
        ("S", result(1)),
    )
    report = await replay_live_async(path, scripted(script))
    assert report.is_same, str(report)
    assert report.ignored == 3


# Clients of both kinds in one recording, and other protocol versions.

HELLO = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "c", "version": "1"},
}
BOTH_ERAS = (
    ("C", {"id": 1, "method": "initialize", "params": HELLO}),
    (
        "S",
        result(
            1,
            protocolVersion="2025-11-25",
            capabilities={"logging": {}},
            serverInfo={"name": "s", "version": "1"},
        ),
    ),
    ("C", {"method": "notifications/initialized"}),
    ("C", stateless_request(2, "server/discover")),
    (
        "S",
        result(
            2,
            resultType="complete",
            supportedVersions=[STATELESS, "2025-11-25"],
            capabilities={"logging": {}},
            ttlMs=0,
            cacheScope="private",
            _meta={SERVER_INFO: {"name": "s", "version": "1"}},
        ),
    ),
    ("C", {"id": 3, "method": "ping"}),
    ("S", result(3)),
)


async def test_stateless_and_legacy_requests_of_one_session_are_driven(recording_of):
    server = Server("s", version="1", protocol_versions=(STATELESS, "2025-11-25"))
    report = await replay_live_async(recording_of(*BOTH_ERAS), server)
    assert report.is_same, str(report)
    assert report.answered == 3


@pytest.mark.parametrize("protocol_version", ["2024-11-05", STATELESS])
async def test_another_protocol_version_replaces_the_recorded_one(
    recording_of, scripted, protocol_version
):
    async def script(peer):
        hello = await peer.receive()
        is_stateless = protocol_version == STATELESS
        assert hello["params"]["protocolVersion"] == (
            "2025-11-25" if is_stateless else protocol_version
        )
        await peer.send_result(
            hello, BOTH_ERAS[1][1]["result"] | {"protocolVersion": protocol_version}
        )
        _, discover = await peer.receive_many(2)
        assert discover["params"]["_meta"][VERSION] == STATELESS
        await peer.send_result(discover, BOTH_ERAS[4][1]["result"])

    report = await replay_live_async(
        recording_of(*BOTH_ERAS), scripted(script), protocol_version=protocol_version
    )
    assert report.is_same, str(report)


@pytest.mark.parametrize(
    ("messages", "protocol_version", "known"),
    [
        (BOTH_ERAS[:2], STATELESS, "2025-11-25, 2025-06-18, 2025-03-26, 2024-11-05"),
        (BOTH_ERAS[3:4], "2025-11-25", STATELESS),
        (BOTH_ERAS[-2:], STATELESS, "none"),
        (BOTH_ERAS, "1999-01-01", "2026-07-28, 2025-11-25"),
    ],
)
async def test_a_protocol_version_of_another_kind_is_rejected(
    recording_of, scripted, messages, protocol_version, known
):
    with pytest.raises(
        ValueError,
        match=f"cannot be sent under {protocol_version}; possible protocol versions: {known}",
    ):
        await replay_live_async(
            recording_of(*messages), scripted(None), protocol_version=protocol_version
        )


# Property: a generated conversation has no differences between its mocked client and server.


class _Talk:
    """Draw random messages of a client and a server."""

    def __init__(self, seed):
        self.messages = []
        self._random = random.Random(seed)
        self._count = 0
        self._requests = []
        self._questions = []

    def go_on(self):
        moves = [
            self._ask,
            self._ask,
            self._send_custom,
            self._answer,
            self._answer,
            self._question,
        ]
        moves += [self._reply, self._report, self._cancel, self._notify]
        self._random.choice(moves)()

    def _number(self):
        self._count += 1
        return self._count

    def _add(self, who, **message):
        self.messages.append((who, message))

    def _ask(self):
        number = self._number()
        params = {"name": f"tool {number}", "_meta": {"progressToken": f"token {number}"}}
        self._add("C", id=number, method="tools/call", params=params)
        self._requests.append(number)

    def _answer(self):
        if self._requests:
            number = self._requests.pop(self._random.randrange(len(self._requests)))
            if self._random.random() < 0.2:
                self._add("S", id=number, error={"code": -number, "message": "no"})
            else:
                self._add("S", id=number, result={"of": number})

    def _report(self):
        if self._requests:
            token = f"token {self._random.choice(self._requests)}"
            params = {"progressToken": token, "progress": self._number()}
            self._add("S", method="notifications/progress", params=params)

    def _question(self):
        if self._requests:
            number = self._number()
            self._add("S", id=number, method="roots/list", params={"number": number})
            self._questions.append(number)

    def _reply(self):
        if self._questions:
            self._add("C", id=self._questions.pop(0), result={"roots": []})

    def _cancel(self):
        if self._requests:
            number = self._requests.pop()
            self._add("C", method="notifications/cancelled", params={"requestId": number})

    def _notify(self):
        params = {"data": self._number()}
        self._add("S", method="notifications/message", params=params)

    def _send_custom(self):
        self._add("C", method=f"notifications/of/{self._number()}")


@pytest.mark.slow
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(min_value=0), st.integers(1, 40), st.integers(0, 2**32))
def test_a_recorded_client_and_its_mock_exchange_all_messages(recording_of, seed, length, schedule):
    talk = _Talk(seed)
    for _ in range(length):
        talk.go_on()
    path = recording_of(*talk.messages)
    mock = mock_server(path)
    clock = trio.testing.MockClock(autojump_threshold=0)
    with seeded_schedule(schedule):
        try:
            report = trio.run(replay_live_async, path, mock, clock=clock)
        except NothingCompared:
            reject()
    assert report.is_same, f"{report}\n{talk.messages}"
    assert (mock.unrecorded, mock.unused, report.unsent) == ((), (), 0)


# Live replay at URLs, of recordings over any transport.


SECONDS = 20.0


@contextlib.asynccontextmanager
async def served(mocked, **options):
    """The URL of a server, or of a mock."""
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            yield await nursery.start(functools.partial(mocked.serve_http, port=0, **options))
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "name",
    ["everything-python-sdk", "asking-server", "forms", "structured", "tides"],
)
async def test_a_mocked_client_at_its_mocked_server_finds_no_difference_live_replay_over_http(name):
    path = RECORDINGS / f"{name}.mcprec.jsonl"
    async with served(mock_server(path)) as url:
        report = await replay_live_async(path, url, limits=LIMITS)
        assert report.is_same, str(report)


@pytest.mark.parametrize("host", ["native", "hypercorn"])
@pytest.mark.parametrize("name", ["weather", "weather-python-sdk"])
async def test_a_recording_over_stdio_is_driven_over_http(name, host):
    async with served(weather, server=host) as url:
        report = await replay_live_async(RECORDINGS / f"{name}.mcprec.jsonl", url, limits=LIMITS)
        assert report.is_same, str(report)


@pytest.mark.parametrize("protocol_version", ["2024-11-05", "2025-11-25", "2026-07-28"])
async def test_a_recording_over_http_is_driven_over_http_and_in_memory(tmp_path, protocol_version):
    async with (
        served(weather, record=tmp_path) as url,
        Client(url, protocol_versions=(protocol_version,)) as client,
    ):
        await client.call_tool("forecast", {"city": "Oslo"})
    path = next(each for each in tmp_path.iterdir() if "tools/call" in each.read_text())
    async with served(weather) as url:
        assert (await replay_live_async(path, url, limits=LIMITS)).is_same
    assert (await replay_live_async(path, weather, limits=LIMITS)).is_same


async def test_differences_of_a_server_at_a_url_are_reported():
    changed = Server("weather", version="2.0")

    @changed.tool
    async def forecast(city: str) -> str:
        return city

    async with served(changed) as url:
        report = await replay_live_async(RECORDINGS / "weather.mcprec.jsonl", url, limits=LIMITS)
    kinds = {(each.kind, each.subject) for each in report.differences}
    assert ("changed", "answer to initialize") in kinds
    assert ("changed", "answer to tools/call forecast") in kinds


async def test_a_message_over_the_limit_leaves_each_other_message_its_user(tmp_path):
    server = make_server_with_users()
    async with served_at_url(server, "http", record=f"{tmp_path}/") as (url, _):
        ada, ben = (Client(url, auth=Bearer(f"token-of-{name}")) for name in ("ada", "ben"))
        async with ada, ben:
            for client, text in ((ada, "a" * 5000), (ben, "b"), (ada, "c")):
                await client.call_tool("greet", {"text": text})
    (path,) = (each for each in tmp_path.iterdir() if "tools/call" in each.read_text())
    limits = msgspec.structs.replace(LIMITS, messages=MessageLimits(bytes_max=4000))
    report = await replay_live_async(path, make_server_with_users(), limits=limits)
    found = [(each.path, each.record) for each in report.differences]
    assert found == [("$.result", 6), ("$.error", 6)]


def make_server_with_users():
    facts = {f"token-of-{name}": AuthInfo(subject=name) for name in ("ada", "ben")}
    server = Server("greeting", auth=StaticTokens(facts))

    @server.tool
    async def greet(text: str, *, ctx: Context) -> str:
        return f"{ctx.auth.subject}: {text}"

    return server


async def test_headers_are_sent_with_each_request(recording_of, monkeypatch):
    headers = []

    async def verify(head):
        headers.append(head.header("x-key"))
        return "somebody"

    path = recording_of(("C", {"id": 1, "method": "ping"}), ("S", result(1)))
    monkeypatch.setattr(weather, "auth", verify)
    async with served(weather) as url:
        await mock_client(path, url, headers={"X-Key": "k"})
    assert set(headers) == {"k"}


# Connections that are lost, or never opened.


@attrs.define
class Scripted:
    """A channel on which the next row answers each request, at once."""

    rows: list
    _frames: list = attrs.field(factory=list, init=False)
    _news: trio.Event = attrs.field(factory=trio.Event, init=False)

    async def send(self, frames):
        await trio.lowlevel.checkpoint()
        for _ in frames:
            if self.rows:
                self._frames.append(self.rows.pop(0))
        self._news.set()

    async def receive(self):
        while not self._frames:
            self._news = trio.Event()
            await self._news.wait()
        taken, self._frames = self._frames, []
        return taken

    async def aclose(self):
        await trio.lowlevel.checkpoint()


LAST = b'{"jsonrpc":"2.0","id":"the last ping","result":{}}'
ANSWER = b'{"jsonrpc":"2.0","id":%d,"result":{}}'
THREE = tuple(each for number in (1, 2, 3) for each in (("C", call(number)), ("S", result(number))))


@pytest.mark.parametrize(
    "error", [OutcomeUnknown("it broke"), LocalProtocolError("it broke")], ids=["unknown", "unsent"]
)
async def test_a_lost_answer_is_one_difference(recording_of, error, autojump_clock):
    channel = Scripted([ANSWER % 1, Lost(3, error), ANSWER % 5, LAST])
    report = await replay_live_async(recording_of(*THREE), channel, limits=LIMITS)
    assert str(report).splitlines() == [
        "lost answer to tools/call x (record 3): it broke",
        "1 difference, 2 of 3 requests answered",
    ]
    assert trio.current_time() < LIMITS.replay.unrequested_seconds + 0.1


async def test_an_unreachable_server_is_one_difference(recording_of, autojump_clock):
    channel = Scripted([ANSWER % 1, Lost(3, ConnectionLost("cannot connect"))])
    report = await replay_live_async(recording_of(*THREE), channel, limits=LIMITS)
    assert str(report).splitlines() == [
        "lost the server: cannot connect",
        "1 difference, 1 of 3 requests answered, 1 client messages not sent",
    ]
    assert trio.current_time() == 0


async def test_a_lost_final_ping_is_no_difference(recording_of, autojump_clock):
    lost = Lost("the last ping", OutcomeUnknown("it broke"))
    path = recording_of(("C", call(1)), ("S", result(1)))
    assert (await replay_live_async(path, Scripted([ANSWER % 1, lost]), limits=LIMITS)).is_same
    assert trio.current_time() == 0


async def test_a_server_that_does_not_take_the_first_request_raises(recording_of, monkeypatch):
    path = recording_of(("C", {"id": 1, "method": "initialize", "params": {}}), ("S", result(1)))
    async with served(weather) as url:
        pass
    with pytest.raises(ConnectionLost, match="cannot connect to"):
        await replay_live_async(path, url)

    async def verify(head):
        return None

    monkeypatch.setattr(weather, "auth", verify)
    async with served(weather) as url:
        with pytest.raises(ConnectionLost, match="HTTP 401"):
            await replay_live_async(path, url)


async def test_an_invalid_url_raises(recording_of):
    with pytest.raises(ValueError, match="has to begin with http"):
        await replay_live_async(recording_of(("C", call(1))), "ftp://127.0.0.1/mcp")


# Live replay: the differences in a report.


LIMITS_LIVE_COMPARISON = msgspec.structs.replace(
    DEFAULT_LIMITS, messages=MessageLimits(bytes_max=4096)
)


# Answers and questions.


async def test_a_difference_in_an_answer_has_a_path(recording_of, scripted):
    async def script(peer):
        await answer(peer, content=[{"text": "b"}], more=1)

    path = recording_of(("C", call(1, "add")), ("S", result(1, content=[{"text": "a"}])))
    report = await replay_live_async(path, scripted(script))
    assert str(report).splitlines() == [
        'changed answer to tools/call add (record 1): $.result.content[0].text: "a" -> "b"',
        "changed answer to tools/call add (record 1): $.result.more: nothing -> 1",
        "2 differences, 1 of 1 requests answered",
    ]


async def test_an_error_in_place_of_a_result_is_a_change(recording_of, scripted):
    async def script(peer):
        asked = await peer.receive()
        await peer.send({"id": asked["id"], "error": {"code": -1, "message": "no"}})

    path = recording_of(("C", call(1)), ("S", result(1)))
    report = await replay_live_async(path, scripted(script))
    assert [each.path for each in report.differences] == ["$.result", "$.error"]


async def test_ignored_differences_are_counted(recording_of, scripted):
    async def script(peer):
        await answer(
            peer, at="2026-01-02T03:04:05Z", nextCursor="b", content=[{"text": "y", "n": 1}]
        )

    path = recording_of(
        ("C", call(1)),
        ("S", result(1, at="2025-01-02 03:04", nextCursor="a", content=[{"text": "x", "n": 1}])),
    )
    report = await replay_live_async(path, scripted(script), ignore=["$.result.content[*].text"])
    assert (report.is_same, report.ignored) == (True, 3)
    assert str(report).endswith(", 3 ignored")


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("a-b", "$.result.*"),
        ('a"b', "$.result.*"),
        ("a\\", "$.result.*"),
        ("a.*", '$.result["a.*"]'),
    ],
)
async def test_differences_of_members_with_any_name_are_ignored(recording_of, scripted, name, path):
    async def script(peer):
        await answer(peer, **{name: 1})

    recording = recording_of(("C", call(1)), ("S", result(1, **{name: 2})))
    report = await replay_live_async(recording, scripted(script), ignore=[path])
    assert (report.is_same, report.ignored) == (True, 1)


async def test_a_server_request_with_other_params_is_a_change(recording_of, scripted):
    async def script(peer):
        asked = await peer.receive()
        await peer.send(question | {"params": {"maxTokens": 5}})
        await peer.receive()
        await peer.send_result(asked, {})

    question = {"id": 8, "method": "sampling/createMessage", "params": {"maxTokens": 1}}
    path = recording_of(("C", call(1)), ("S", question), ("C", result(8)), ("S", result(1)))
    report = await replay_live_async(path, scripted(script))
    assert differences_of(report) == [
        ("changed", "server request sampling/createMessage", "$.params.maxTokens")
    ]


async def test_an_invalid_path_to_ignore_is_rejected(recording_of, scripted):
    with pytest.raises(ValueError, match=r"'result' is not a JSON path: it has to begin with \$"):
        await replay_live_async(recording_of(), scripted(answer), ignore=["result"])


async def test_unmatched_messages_are_differences(recording_of, scripted):
    async def script(peer):
        await peer.send(b"{", result(77), {"id": 78, "error": {"code": 1, "message": ""}})
        await peer.send(b'{"jsonrpc":"2.0","id":1,"result":"%s"}' % (b"x" * 5000))
        asked = await answer(peer)
        await peer.send_result(asked, {})

    path = recording_of(("C", call(1)), ("S", result(1)))
    report = await replay_live_async(path, scripted(script), limits=LIMITS_LIVE_COMPARISON)
    assert [each.subject.split(":")[0] for each in report.differences] == [
        "invalid message",
        "answer with the unknown id 77",
        "answer with the unknown id 78",
        "invalid message",
        "answer with the unknown id 1",
    ]


async def test_long_values_are_cut_to_show_their_difference(recording_of, scripted):
    async def script(peer):
        await answer(peer, text="a" * 200 + "x" + "b" * 200)

    path = recording_of(("C", call(1)), ("S", result(1, text="a" * 200 + "y")))
    (line, _) = str(await replay_live_async(path, scripted(script))).splitlines()
    old, new = line.split(": ")[-1].split(" -> ")
    assert old == "…" + "a" * 33 + 'y"'
    assert new.startswith("…" + "a" * 33 + "xb")
    assert new.endswith("b…")


# Notifications.


async def test_notifications_are_compared_whatever_their_order(
    recording_of, scripted, autojump_clock
):
    async def script(peer):
        asked = await peer.receive()
        await peer.send(*(note("message", data=data) for data in ("b", "a", "D", "e", "f")))
        await peer.send_result(asked, {})

    notifications = [("S", note("message", data=data)) for data in "abcd"]
    path = recording_of(("C", call(1)), *notifications, ("S", note("gone")), ("S", result(1)))
    report = await replay_live_async(path, scripted(script))
    assert [str(each) for each in report.differences] == [
        'changed notifications/message (record 4): $.params.data: "c" -> "D"',
        'changed notifications/message (record 5): $.params.data: "d" -> "e"',
        "extra notifications/message",
        "missing notifications/gone (record 6)",
    ]


async def test_many_notifications_are_compared_in_linear_time(recording_of, scripted):
    async def seconds_for(count):
        async def script(peer):
            asked = await peer.receive()
            await peer.send(*(note("message", level="info", data=-each) for each in range(count)))
            await peer.send_result(asked, {})

        path = recording_of(
            ("C", call(1)),
            *(("S", note("message", level="info", data=each)) for each in range(1, count)),
            ("S", result(1)),
        )
        begin = time.process_time()
        report = await replay_live_async(path, scripted(script))
        seconds = time.process_time() - begin
        kinds = [difference.kind for difference in report.differences]
        assert kinds == ["changed"] * (count - 1) + ["extra"]
        return seconds

    # In quadratic time, four times as many would take sixteen times as long.
    assert await seconds_for(32_000) < 8 * await seconds_for(8_000)


async def test_progress_is_compared_for_each_request(recording_of, scripted):
    async def script(peer):
        first, second = await peer.receive_many(2)
        await peer.send(note("progress", progressToken=second["id"], progress=1))
        await peer.send(note("progress", progressToken=first["id"], progress=2))
        await peer.send(note("progress", progressToken="nobody's", progress=3))
        await peer.send_result(first, {})
        await peer.send_result(second, {})

    path = recording_of(
        ("C", call(1, "a", _meta={"progressToken": "a"})),
        ("C", call(2, "b", _meta={"progressToken": "b"})),
        ("S", note("progress", progressToken="a", progress=2)),
        ("S", note("progress", progressToken="b", progress=5)),
        ("S", result(1)),
        ("S", result(2)),
    )
    report = await replay_live_async(path, scripted(script))
    assert differences_of(report) == [
        ("changed", "notifications/progress for tools/call b", "$.params.progress"),
        ("extra", "notifications/progress", ""),
    ]
