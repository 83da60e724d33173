"""Live replay: the differences in a report."""

import attrs
import pytest

from mcp_trio.limits import DEFAULT_LIMITS, MessageLimits
from mcp_trio.recording import run_inputs
from tests.replay.conversations import answer, call, note, result, told

LIMITS = attrs.evolve(DEFAULT_LIMITS, messages=MessageLimits(bytes_max=4096))


# Answers and questions.


async def test_a_difference_in_an_answer_has_a_path(spoken, scripted):
    async def script(peer):
        await answer(peer, content=[{"text": "b"}], more=1)

    path = spoken(("C", call(1, "add")), ("S", result(1, content=[{"text": "a"}])))
    report = await run_inputs(path, scripted(script))
    assert str(report).splitlines() == [
        'changed answer to tools/call add (record 1): $.result.content[0].text: "a" -> "b"',
        "changed answer to tools/call add (record 1): $.result.more: nothing -> 1",
        "2 differences, 1 of 1 requests answered",
    ]


async def test_an_error_in_place_of_a_result_is_a_change(spoken, scripted):
    async def script(peer):
        asked = await peer.receive()
        await peer.send({"id": asked["id"], "error": {"code": -1, "message": "no"}})

    path = spoken(("C", call(1)), ("S", result(1)))
    report = await run_inputs(path, scripted(script))
    assert [each.path for each in report.differences] == ["$.result", "$.error"]


async def test_ignored_differences_are_counted(spoken, scripted):
    async def script(peer):
        await answer(
            peer, at="2026-01-02T03:04:05Z", nextCursor="b", content=[{"text": "y", "n": 1}]
        )

    path = spoken(
        ("C", call(1)),
        ("S", result(1, at="2025-01-02 03:04", nextCursor="a", content=[{"text": "x", "n": 1}])),
    )
    report = await run_inputs(path, scripted(script), ignore=["$.result.content[*].text"])
    assert (report.is_same, report.ignored) == (True, 3)
    assert str(report).endswith(", 3 ignored")


async def test_a_server_request_with_other_params_is_a_change(spoken, scripted):
    async def script(peer):
        asked = await peer.receive()
        await peer.send(question | {"params": {"maxTokens": 5}})
        await peer.receive()
        await peer.send_result(asked, {})

    question = {"id": 8, "method": "sampling/createMessage", "params": {"maxTokens": 1}}
    path = spoken(("C", call(1)), ("S", question), ("C", result(8)), ("S", result(1)))
    report = await run_inputs(path, scripted(script))
    assert told(report) == [
        ("changed", "server request sampling/createMessage", "$.params.maxTokens")
    ]


async def test_an_invalid_path_to_ignore_is_rejected(spoken, scripted):
    with pytest.raises(ValueError, match=r"'result' is no JSON path: it has to begin with \$"):
        await run_inputs(spoken(), scripted(answer), ignore=["result"])


async def test_unmatched_messages_are_differences(spoken, scripted):
    async def script(peer):
        await peer.send(b"{", result(77), {"id": 78, "error": {"code": 1, "message": ""}})
        await peer.send(b'{"jsonrpc":"2.0","id":1,"result":"%s"}' % (b"x" * 5000))
        asked = await answer(peer)
        await peer.send_result(asked, {})

    path = spoken(("C", call(1)), ("S", result(1)))
    report = await run_inputs(path, scripted(script), limits=LIMITS)
    assert [each.subject.split(":")[0] for each in report.differences] == [
        "invalid message",
        "answer with the unknown id 77",
        "answer with the unknown id 78",
        "invalid message",
        "answer with the unknown id 1",
    ]


async def test_long_values_are_cut_to_show_their_difference(spoken, scripted):
    async def script(peer):
        await answer(peer, text="a" * 200 + "x" + "b" * 200)

    path = spoken(("C", call(1)), ("S", result(1, text="a" * 200 + "y")))
    (line, _) = str(await run_inputs(path, scripted(script))).splitlines()
    old, new = line.split(": ")[-1].split(" -> ")
    assert old == "…" + "a" * 20 + 'y"'
    assert new.startswith("…" + "a" * 20 + "xb")
    assert new.endswith("b…")


# Notifications.


async def test_notifications_are_compared_whatever_their_order(spoken, scripted, autojump_clock):
    async def script(peer):
        asked = await peer.receive()
        await peer.send(*(note("message", data=data) for data in ("b", "a", "D", "e", "f")))
        await peer.send_result(asked, {})

    said = [("S", note("message", data=data)) for data in "abcd"]
    path = spoken(("C", call(1)), *said, ("S", note("gone")), ("S", result(1)))
    report = await run_inputs(path, scripted(script))
    assert [str(each) for each in report.differences] == [
        'changed notifications/message (record 4): $.params.data: "c" -> "D"',
        'changed notifications/message (record 5): $.params.data: "d" -> "e"',
        "extra notifications/message",
        "missing notifications/gone (record 6)",
    ]


async def test_progress_is_compared_for_each_request(spoken, scripted):
    async def script(peer):
        first, second = await peer.receive_many(2)
        await peer.send(note("progress", progressToken=second["id"], progress=1))
        await peer.send(note("progress", progressToken=first["id"], progress=2))
        await peer.send(note("progress", progressToken="nobody's", progress=3))
        await peer.send_result(first, {})
        await peer.send_result(second, {})

    path = spoken(
        ("C", call(1, "a", _meta={"progressToken": "a"})),
        ("C", call(2, "b", _meta={"progressToken": "b"})),
        ("S", note("progress", progressToken="a", progress=2)),
        ("S", note("progress", progressToken="b", progress=5)),
        ("S", result(1)),
        ("S", result(2)),
    )
    report = await run_inputs(path, scripted(script))
    assert told(report) == [
        ("changed", "notifications/progress for tools/call b", "$.params.progress"),
        ("extra", "notifications/progress", ""),
    ]
