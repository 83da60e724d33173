"""Live replay: the order of messages, and failures of the server."""

import sys
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing

from mcp_trio import ConnectionLost
from mcp_trio.errors import RecordingError
from mcp_trio.examples.weather import server as weather
from mcp_trio.limits import DEFAULT_LIMITS, RequestLimits
from mcp_trio.recording import drive, run_inputs
from mcp_trio.testing import mock_client, mock_server
from tests.replay.conversations import answer, call, note, result, told

RECORDINGS = Path(__file__).parents[2] / "recordings"
SEVERAL_SESSIONS = "shared.mcprec.jsonl"
WHOLE_SESSIONS = [
    path
    for path in sorted(RECORDINGS.glob("*.jsonl"))
    if path.name != SEVERAL_SESSIONS and path.name.count(".") == 2  # a later segment has a number
]
LIMITS = attrs.evolve(DEFAULT_LIMITS, requests=RequestLimits(idle_seconds=10))


@pytest.mark.parametrize("path", WHOLE_SESSIONS, ids=lambda path: path.name)
async def test_a_mocked_client_at_its_mocked_server_finds_no_difference(path, autojump_clock):
    mock = mock_server(path)
    report = await run_inputs(path, mock)
    assert report.is_same, str(report)
    assert (mock.unrecorded, mock.unused) == ((), ())


def test_an_unchanged_server_has_a_report_of_one_line():
    report = drive(RECORDINGS / "weather.mcprec.jsonl", weather)
    assert str(report) == "no differences, 6 of 6 requests answered"


async def test_ids_and_progress_tokens_are_those_of_the_live_session(spoken, scripted):
    async def script(peer):
        asked = await peer.receive()
        assert asked["id"] == asked["params"]["_meta"]["progressToken"] != "abc"
        assert asked["params"]["_meta"]["trace"] == "kept"
        await peer.send(note("progress", progressToken=asked["id"], progress=1))
        await peer.send_result(asked, {})

    path = spoken(
        ("C", call("abc", _meta={"progressToken": "t", "trace": "kept"})),
        ("S", note("progress", progressToken="t", progress=1)),
        ("S", result("abc")),
    )
    assert (await run_inputs(path, scripted(script))).is_same


async def test_a_message_sent_after_an_answer_is_sent_after_it_again(spoken, scripted):
    async def script(peer):
        asked = await peer.receive()
        assert await peer.receive_available() == []
        await peer.send_result(asked, {})
        assert (await answer(peer))["params"]["name"] == "second"

    path = spoken(
        ("C", call(1, "first")), ("S", result(1)), ("C", call(2, "second")), ("S", result(2))
    )
    assert (await run_inputs(path, scripted(script))).is_same


async def test_concurrent_requests_are_concurrent_again(spoken, scripted):
    async def script(peer):
        first, second = await peer.receive_many(2)
        await peer.send_result(second, {"n": 2})
        await peer.send_result(first, {"n": 1})

    path = spoken(("C", call(1)), ("C", call(2)), ("S", result(1, n=1)), ("S", result(2, n=2)))
    assert (await run_inputs(path, scripted(script))).is_same


async def test_cursors_and_uris_of_the_live_server_are_sent_back(spoken, scripted):
    async def script(peer):
        await answer(peer, nextCursor="live", tasks=[{"taskId": "L1"}], status="open")
        asked = await answer(peer)
        assert asked["params"] == {"cursor": "live", "ids": [{"a": "L1"}], "status": "done", "n": 1}

    path = spoken(
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
    report = await run_inputs(path, scripted(script), ignore=["$.result.tasks", "$.result.status"])
    assert report.is_same


# Questions of the server.

ROOTS = {"id": 7, "method": "roots/list"}
SAMPLE = {"id": 8, "method": "sampling/createMessage", "params": {"maxTokens": 1}}


async def test_server_requests_get_the_recorded_answers(spoken, scripted):
    async def script(peer):
        asked = await peer.receive()
        await peer.send(SAMPLE | {"id": "other"}, ROOTS | {"id": 1})
        assert await peer.receive() == {"jsonrpc": "2.0", "id": "other", "result": {"text": "a"}}
        reply = await peer.receive()
        assert (reply["id"], reply["error"]) == (1, {"code": -5, "message": "no", "data": [1]})
        await peer.send_result(asked, {})

    path = spoken(
        ("C", call(1)),
        ("S", SAMPLE),
        ("C", result(8, text="a")),
        ("S", ROOTS),
        ("C", {"id": 7, "error": {"code": -5, "message": "no", "data": [1]}}),
        ("S", result(1)),
    )
    assert (await run_inputs(path, scripted(script))).is_same


async def test_a_server_request_matches_the_recorded_one_with_the_same_params(spoken, scripted):
    async def script(peer):
        asked = await peer.receive()
        await peer.send(SAMPLE | {"id": 1, "params": {"maxTokens": 2}}, SAMPLE | {"id": 2})
        replies = {each["id"]: each["result"] for each in await peer.receive_many(2)}
        assert replies == {1: {"text": "two"}, 2: {"text": "one"}}
        await peer.send_result(asked, {})

    path = spoken(
        ("C", call(1)),
        ("S", SAMPLE),
        ("S", SAMPLE | {"id": 9, "params": {"maxTokens": 2}}),
        ("C", result(8, text="one")),
        ("C", result(9, text="two")),
        ("S", result(1)),
    )
    assert (await run_inputs(path, scripted(script))).is_same


async def test_an_unrecorded_server_request_is_rejected_and_extra(spoken, scripted):
    async def script(peer):
        asked = await peer.receive()
        await peer.send(ROOTS)
        reply = await peer.receive()
        assert reply["error"]["code"] == -32601
        assert "got no such request roots/list" in reply["error"]["message"]
        await peer.send({"id": 5, "method": "ping"})
        assert (await peer.receive())["result"] == {}
        await peer.send_result(asked, {})

    path = spoken(("C", call(1)), ("S", result(1)))
    report = await run_inputs(path, scripted(script))
    assert told(report) == [("extra", "server request roots/list", "")]


async def test_an_absent_server_request_is_missing_and_its_answer_unsent(
    spoken, scripted, autojump_clock
):
    path = spoken(("C", call(1)), ("S", ROOTS), ("C", result(7)), ("S", result(1)))
    report = await run_inputs(path, scripted(answer))
    assert told(report) == [("missing", "server request roots/list", "")]
    assert report.unsent == 1
    assert trio.current_time() < 2 * LIMITS.replay.unrequested_seconds + 0.1


async def test_recorded_answers_are_sent_early_if_the_server_waits_for_them(
    spoken, scripted, autojump_clock
):
    async def script(peer):
        first, second = await peer.receive_many(2)
        await peer.send(SAMPLE)
        await peer.receive()
        await peer.send_result(second, {})
        await peer.send(ROOTS)
        await peer.receive()
        await peer.send_result(first, {})

    path = spoken(
        ("C", call(1)),
        ("C", call(2)),
        ("S", ROOTS),
        ("C", result(7)),
        ("S", result(1)),
        ("S", SAMPLE),
        ("C", result(8)),
        ("S", result(2)),
    )
    report = await run_inputs(path, scripted(script), limits=LIMITS)
    assert report.is_same, str(report)
    assert trio.current_time() < LIMITS.requests.idle_seconds


async def test_progress_of_the_client_has_the_token_of_the_live_request(spoken, scripted):
    async def script(peer):
        asked = await peer.receive()
        params = {"maxTokens": 1, "_meta": {"progressToken": "live"}}
        await peer.send(SAMPLE | {"id": 3, "params": params})
        progress, reply = await peer.receive_many(2)
        assert progress["params"] == {"progressToken": "live", "progress": 1}
        assert reply["id"] == 3
        await peer.send_result(asked, {})

    params = {"maxTokens": 1, "_meta": {"progressToken": "old"}}
    path = spoken(
        ("C", call(1)),
        ("S", SAMPLE | {"params": params}),
        ("C", note("progress", progressToken="old", progress=1)),
        ("C", note("progress", progressToken="nobody's", progress=1)),
        ("C", result(8)),
        ("C", result(99)),
        ("S", result(1)),
    )
    report = await run_inputs(path, scripted(script))
    assert (report.is_same, report.unsent) == (True, 2)


# Cancellations.


async def test_a_cancellation_names_the_live_request(spoken, scripted, autojump_clock):
    async def script(peer):
        first, second = await peer.receive_many(2)
        cancelled = await peer.receive()
        assert cancelled["params"] == {"requestId": first["id"], "reason": "enough"}
        await peer.send_result(second, {})
        if is_late:
            await peer.send_result(first, {})

    path = spoken(
        ("C", call(6, "slow")),
        ("C", call(5)),
        ("C", note("cancelled", requestId=6, reason="enough")),
        ("C", note("cancelled", requestId=77)),
        ("S", result(5)),
    )
    is_late = False
    assert (await run_inputs(path, scripted(script))).is_same
    is_late = True
    report = await run_inputs(path, scripted(script))
    assert told(report) == [("extra", "answer to tools/call slow, which was cancelled", "")]


async def test_an_answer_to_a_cancelled_request_is_awaited_briefly(
    spoken, scripted, autojump_clock
):
    async def script(peer):
        await peer.receive_many(2)

    path = spoken(("C", call(6)), ("C", note("cancelled", requestId=6)), ("S", result(6)))
    report = await run_inputs(path, scripted(script), limits=LIMITS)
    assert told(report) == [("missing", "answer to tools/call x", "")]
    assert trio.current_time() == pytest.approx(LIMITS.replay.unrequested_seconds)


# What comes of servers.


async def test_a_server_that_disconnects_is_one_difference(spoken, scripted):
    async def script(peer):
        await peer.receive()
        await peer.aclose()

    path = spoken(
        ("C", call(1)),
        ("S", note("message", data=1)),
        ("S", ROOTS),
        ("S", result(1)),
        ("C", call(2)),
        ("S", result(2)),
    )
    report = await run_inputs(path, scripted(script))
    assert str(report).splitlines() == [
        "lost the server: it closed the connection",
        "1 difference, 0 of 2 requests answered, 1 client messages not sent",
    ]


async def test_a_server_object_that_fails_is_lost(spoken, scripted):
    async def script(peer):
        raise ValueError("broken")

    report = await run_inputs(spoken(("C", call(1)), ("S", result(1))), scripted(script))
    (lost,) = report.differences
    assert (lost.kind, lost.live) == ("lost", "the server object failed: ValueError('broken')")


async def test_a_silent_server_is_lost_after_some_requests(spoken, scripted, autojump_clock):
    async def script(peer):
        await trio.sleep_forever()

    said = [each for n in range(9) for each in (("C", call(n)), ("S", result(n)))]
    report = await run_inputs(spoken(*said), scripted(script), limits=LIMITS)
    assert told(report) == [("lost", "the server", "")]
    assert report.differences[0].live == "it left 2 requests unanswered and sent nothing"
    assert trio.current_time() == pytest.approx(2 * LIMITS.requests.idle_seconds)


async def test_an_answer_that_is_late_is_one_difference(spoken, scripted, autojump_clock):
    async def script(peer):
        await peer.receive()
        await answer(peer)

    path = spoken(("C", call(1)), ("S", result(1)), ("C", call(2)), ("S", result(2)))
    report = await run_inputs(path, scripted(script), limits=LIMITS)
    assert told(report) == [("late", "answer to tools/call x", "")]


async def test_a_recorded_answer_to_no_request_is_not_awaited(spoken, scripted):
    path = spoken(("C", call(1)), ("S", result(5)), ("S", result(1)))
    assert (await run_inputs(path, scripted(answer))).is_same


async def test_invalid_recorded_messages_are_not_sent(spoken, scripted):
    path = spoken(("C", b"{"), ("C", call(1)), ("S", result(1)))
    report = await run_inputs(path, scripted(answer))
    assert str(report).endswith("1 recorded messages invalid")


async def test_a_command_that_cannot_be_started_raises(spoken):
    with pytest.raises(ConnectionLost, match="cannot start"):
        await run_inputs(spoken(("C", call(1))), ["/no/such/program"])


async def test_an_invalid_recording_raises(tmp_path):
    (tmp_path / "text").write_text("hello\n")
    with pytest.raises(RecordingError):
        await run_inputs(tmp_path / "text", weather)


async def test_the_end_of_a_process_is_reported_with_its_stderr(spoken):
    code = "import sys; input(); sys.exit('cannot go on')"
    path = spoken(("C", call(1)), ("S", result(1)))
    report = await run_inputs(path, [sys.executable, "-c", code])
    (lost,) = report.differences
    assert "exited with status 1" in lost.live
    assert "cannot go on" in lost.live


async def test_a_kind_of_notification_that_stopped_delays_once(spoken, scripted, autojump_clock):
    async def script(peer):
        for _ in range(5):
            await answer(peer)

    said = [
        each
        for n in range(5)
        for each in (("C", call(n)), ("S", note("message", data=n)), ("S", result(n)))
    ]
    report = await run_inputs(spoken(*said), scripted(script))
    assert len(report.differences) == 5
    assert trio.current_time() < 2 * LIMITS.replay.unrequested_seconds + 0.1


async def test_a_mocked_client_takes_any_answer(spoken, scripted):
    async def script(peer):
        await answer(peer, anything=1)

    report = await mock_client(spoken(("C", call(1)), ("S", result(1))), scripted(script))
    assert (report.is_same, report.answered) == (True, 1)
