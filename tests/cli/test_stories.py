"""Rounds in a timeline: which row belongs to which, and each handler's rounds as one call."""

import json

import pytest

from mcp_trio._cli.timeline import Counts, multi_round_trip_calls, timeline
from mcp_trio.recording import read_recording

VERSION = "io.modelcontextprotocol/protocolVersion"
META = {VERSION: "2026-07-28"}
CITY = {"method": "elicitation/create", "params": {"message": "Which city?"}}
ROOTS = {"method": "roots/list"}


def message(**members):
    return {"jsonrpc": "2.0", **members}


def call(id_, name="plan", **params):
    params = {"name": name, **params, "_meta": META | params.get("_meta", {})}
    return message(id=id_, method="tools/call", params=params)


def asks(id_, state=None, **questions):
    result = {"resultType": "input_required"}
    result |= {"inputRequests": questions} if questions else {}
    result |= {"requestState": state} if state else {}
    return message(id=id_, result=result)


def done(id_, **members):
    return message(id=id_, result={"resultType": "complete", "content": [], **members})


ANSWERED = {"city": {"action": "accept", "content": {"name": "Oslo"}}, "where": {"roots": []}}

TWO_ROUNDS = (
    ("in", call(1)),
    ("out", asks(1, "s1", city=CITY, where=ROOTS), "r1.ask", 1),
    ("in", call(2, "other")),
    ("out", done(2), "r3", 1),
    ("in", call(3, inputResponses=ANSWERED, requestState="s1", _meta={"progressToken": "p"})),
    (
        "out",
        message(method="notifications/progress", params={"progressToken": "p", "progress": 1}),
        "r1",
        1,
    ),
    ("out", done(3), "r1", 2),
)


def rows_of(path):
    return list(timeline(read_recording(path.read_bytes().splitlines(keepends=True)), Counts()))


def facts(rows, *names):
    return [tuple(getattr(row, name) for name in names) for row in rows]


def test_a_retry_and_its_answer_say_which_round_they_are_and_of_what(write):
    rows = rows_of(write(*TWO_ROUNDS))
    assert facts(rows[1:-1], "what", "request", "first_request", "round") == [
        ("tools/call plan", 1, None, None),
        ("answer tools/call plan", 1, 1, 1),
        ("tools/call other", 3, None, None),
        ("answer tools/call other", 3, None, None),
        ("tools/call plan, round 2", 5, 1, 2),
        ("notifications/progress 1", 5, 1, 2),
        ("answer tools/call plan, round 2", 5, 1, 2),
    ]


def test_the_questions_and_the_answers_to_them_are_told(write):
    _, _, asked, *_, retry, _, _, _ = rows_of(write(*TWO_ROUNDS))
    assert asked.note == "asks city: elicitation/create Which city?; where: roots/list"
    assert retry.note == 'city: accept {"name":"Oslo"}; where: {"roots":[]}'


def test_a_server_that_only_wants_time_is_told_so(write):
    rows = rows_of(write(("in", call(1)), ("out", asks(1, "s")), ("in", call(2, requestState="s"))))
    assert facts(rows[2:4], "note", "round") == [("asks to retry the request", 1), ("", 2)]


@pytest.mark.parametrize("role", ["server", "client"])
def test_a_handlers_rounds_are_one_story_in_order(write, role):
    told = TWO_ROUNDS
    if role == "client":
        other = {"in": "out", "out": "in"}
        told = [(other[kind], body) for kind, body, *_ in TWO_ROUNDS]
    (found,) = multi_round_trip_calls(rows_of(write(*told, role=role)))
    assert [row.record for row in found.rows] == [1, 2, 5, 6, 7]
    assert found.heading == "tools/call plan: 2 rounds in 6.0 ms"


def test_each_round_has_its_number(write):
    rounds = [
        ("in", call(1)),
        ("out", asks(1, "s1")),
        ("in", call(2, requestState="s1")),
        ("out", asks(2, "s2")),
        ("in", call(3, requestState="s2")),
        ("out", done(3)),
    ]
    rows = rows_of(write(*rounds))[1:-1]
    assert facts(rows, "first_request", "round") == [
        (None, None),
        (1, 1),
        (1, 2),
        (1, 2),
        (1, 3),
        (1, 3),
    ]
    (found,) = multi_round_trip_calls(rows)
    assert found.heading == "tools/call plan: 3 rounds in 5.0 ms"


def test_a_story_that_was_cut_has_one_round(write):
    (found,) = multi_round_trip_calls(
        rows_of(write(("in", call(1)), ("out", asks(1, "s", where=ROOTS))))
    )
    assert found.heading == "tools/call plan: 1 round in 1.0 ms"


def test_stories_are_told_below_the_timeline_of_what_is_shown(write, invoke):
    path = write(*TWO_ROUNDS)
    lines = invoke("show", path).output.splitlines()
    heading = lines.index("tools/call plan: 2 rounds in 6.0 ms")
    assert [line.split()[0] for line in lines[heading + 2 : heading + 7]] == list("12567")
    assert "rounds in" not in invoke("show", path, "--id", "2").output


def test_what_is_chosen_is_shown_with_all_rounds_of_its_story(write, invoke):
    path = write(*TWO_ROUNDS)
    for choice in (["--id", "3"], ["--id", "1"], ["--lane", "r5"]):
        shown = invoke("show", path, "--json", *choice).output.splitlines()
        records = [json.loads(line)["record"] for line in shown]
        assert [each for each in records if each != 6] == [1, 2, 5, 7]


def test_the_lane_of_a_handler_has_all_rounds(write, invoke):
    shown = invoke("show", write(*TWO_ROUNDS), "--json", "--lane", "r1").output.splitlines()
    assert [json.loads(line)["record"] for line in shown] == [1, 2, 5, 6, 7]


# Which revision.


def test_a_stateless_request_says_its_protocol_version(write, invoke):
    path = write(*TWO_ROUNDS)
    assert rows_of(path)[1].protocol_version == "2026-07-28"
    assert invoke("show", path).output.endswith(", protocol version 2026-07-28\n")


def test_the_answer_to_a_handshake_says_the_protocol_version_and_a_mix_all_of_them(write, invoke):
    hello = message(id=1, method="initialize", params={"protocolVersion": "2025-11-25"})
    path = write(
        ("in", hello),
        ("out", message(id=1, result={"protocolVersion": "2025-06-18"})),
        ("in", call(2, _meta={VERSION: "\x1b"})),
        ("in", call(3, _meta={VERSION: 5})),
    )
    assert facts(rows_of(path)[1:5], "protocol_version") == [
        (None,),
        ("2025-06-18",),
        ("\x1b",),
        (None,),
    ]
    assert invoke("show", path).output.endswith(", protocol version 2025-06-18, \\x1b\n")


def test_a_handshake_that_agrees_on_nothing_that_is_known_says_none(write):
    hello = message(id=1, method="initialize", params={})
    path = write(("in", hello), ("out", message(id=1, result={"protocolVersion": 7})))
    assert rows_of(path)[2].protocol_version is None


# What messages are about.


@pytest.mark.parametrize(
    ("method", "params", "what"),
    [
        (
            "subscriptions/listen",
            {
                "notifications": {
                    "toolsListChanged": True,
                    "promptsListChanged": False,
                    "resourceSubscriptions": ["a:b"],
                }
            },
            'toolsListChanged ["a:b"]',
        ),
        ("notifications/subscriptions/acknowledged", {"notifications": {}}, ""),
        ("notifications/elicitation/complete", {"elicitationId": "e7"}, "e7"),
        ("notifications/progress", {"progress": 1, "total": 3, "message": "half"}, "1/3 half"),
    ],
)
def test_a_message_says_what_it_is_about(write, method, params, what):
    row = rows_of(write(("in", message(id=1, method=method, params=params))))[1]
    assert row.what == f"{method} {what}".rstrip()


def test_the_requests_of_a_batch_are_counted_each(write, invoke):
    def list_(id_, method="tools/list"):
        return message(id=id_, method=method)

    path = write(
        ("in", [list_(1), list_(2), list_(3, "ping")]),
        ("out", message(id=2, result={}), "r1-1", 1),
        ("cxl", None, "r1-2", 1),
        ("out", message(id=1, error={"code": -1, "message": "no"}), "r1", 1),
    )
    lines = [line.split() for line in invoke("show", path).output.splitlines()]
    assert ["tools/list", "2", "2", "1", "0", "2.0", "3.0"] in lines
    assert ["ping", "1", "0", "0", "0"] in lines
