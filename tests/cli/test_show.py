"""`mcp-trio show`: the rows of a timeline, selections, and the summary."""

import json
import shutil

import msgspec
import pytest

from mcp_trio._cli.timeline import Row, heading_of_call, multi_round_trip_calls, read_rows
from mcp_trio.examples.weather import server as weather
from tests.cli.conftest import serving

# Rows.


def request(id_, method, **params):
    return {"jsonrpc": "2.0", "id": id_, "method": method, "params": params}


def notification(method, **params):
    return {"jsonrpc": "2.0", "method": f"notifications/{method}", "params": params}


def result(id_, **members):
    return {"jsonrpc": "2.0", "id": id_, "result": members}


def rows_of(path):
    """The rows between `open` and `end`."""
    rows = all_rows_of(path)
    assert (rows[0].kind, rows[0].what) == ("open", "hand 1")
    return rows[1:-1]


def facts(row, *names):
    return tuple(getattr(row, name) for name in names)


def test_an_answer_names_its_request_and_the_time_it_took(write):
    asked, other, answered = rows_of(
        write(
            ("in", request(7, "tools/call", name="greet")),
            ("in", request("7", "ping")),
            ("out", result(7, content=[]), "r1", 1),
        )
    )
    assert facts(asked, "record", "ms", "direction", "what", "id", "size_bytes") == (
        *(1, 1.0, "to server", "tools/call greet", 7),
        len(json.dumps(request(7, "tools/call", name="greet"), separators=(",", ":"))),
    )
    assert facts(other, "what", "took_ms") == ("ping", None)
    assert facts(answered, "direction", "what", "id", "took_ms", "lane", "outcome") == (
        *("to client", "answer tools/call greet", 7),
        *(2.0, "r1", None),
    )


@pytest.mark.parametrize(
    ("role", "kinds"),
    [("server", ("in", "out")), ("proxy", ("in", "out")), ("client", ("out", "in"))],
)
def test_directions_are_the_same_whichever_side_recorded(write, role, kinds):
    asked, answered = rows_of(
        write((kinds[0], request(1, "ping")), (kinds[1], result(1)), role=role)
    )
    assert facts(asked, "direction", "what") == ("to server", "ping")
    assert facts(answered, "direction", "what", "took_ms") == ("to client", "answer ping", 1.0)


def test_equal_ids_of_both_sides_are_two_requests(write):
    *_, ours, theirs = rows_of(
        write(
            ("in", request(1, "tools/call", name="ask")),
            ("out", request(1, "roots/list"), "r1", 1),
            ("in", result(1, roots=[])),
            ("out", result(1, content=[]), "r1", 2),
        )
    )
    assert facts(ours, "what", "direction") == ("answer roots/list", "to server")
    assert facts(theirs, "what", "direction") == ("answer tools/call ask", "to client")


def test_an_id_that_is_used_twice_belongs_to_both_requests(write):
    _, _, rejected, answered = rows_of(
        write(
            ("in", request(7, "tools/call", name="greet")),
            ("in", request(7, "ping")),
            ("out", {"jsonrpc": "2.0", "id": 7, "error": {"code": -32600, "message": "in use"}}),
            ("out", result(7, content=[]), "r1", 1),
        )
    )
    assert facts(rejected, "what", "request", "took_ms") == ("answer ping", 2, 1.0)
    assert facts(answered, "what", "request", "took_ms") == ("answer tools/call greet", 1, 3.0)


def test_errors_and_failed_tools_are_marked_with_their_text(write):
    error = {"jsonrpc": "2.0", "id": 1, "error": {"code": -32602, "message": "no such tool"}}
    failed = result(2, content=[{"type": "text", "text": "no station"}], isError=True)
    odd = result(3, content=5, isError=True)
    *_, first, second, third = rows_of(
        write(
            ("in", request(1, "tools/call", name="a")),
            ("in", request(2, "tools/call", name="b")),
            ("in", request(3, "tools/call", name="c")),
            ("out", error),
            ("out", failed),
            ("out", odd),
        )
    )
    assert facts(first, "what", "outcome", "note") == (
        *("answer tools/call a", "error"),
        "-32602: no such tool",
    )
    assert facts(second, "outcome", "note") == ("error", "no station")
    assert facts(third, "outcome", "note") == ("error", "")


def test_a_cancellation_names_its_request_and_the_time_it_ran(write):
    *_, cancel, cxl, unstarted, unknown, odd = rows_of(
        write(
            ("in", request(1, "tools/call", name="slow")),
            ("in", request(2, "tools/call", name="queued")),
            ("in", notification("cancelled", requestId=1, reason="bored")),
            ("cxl", None, "r1", 1),
            ("cxl", "unstarted", "r2", 1),
            ("in", notification("cancelled", requestId=9)),
            ("in", notification("cancelled", requestId=[])),
        )
    )
    names = ("what", "id", "took_ms", "outcome", "note")
    assert facts(cancel, *names) == ("cancel tools/call slow", 1, 2.0, "cancelled", "bored")
    assert facts(cxl, *names) == ("tools/call slow", None, 3.0, "cancelled", "")
    assert facts(unstarted, *names) == (
        *("tools/call queued", None, 3.0, "cancelled"),
        "never started",
    )
    assert facts(unknown, *names) == ("cancel an unknown request", 9, None, "cancelled", "")
    assert facts(odd, *names) == ("cancel an unknown request", None, None, "cancelled", "")


@pytest.mark.parametrize(
    ("message", "what"),
    [
        (request(1, "prompts/get", name="plan"), "prompts/get plan"),
        (request(1, "resources/read", uri="a://b"), "resources/read a://b"),
        (request(1, "logging/setLevel", level="debug"), "logging/setLevel debug"),
        (notification("progress", progress=1, total=3), "notifications/progress 1/3"),
        (notification("progress", progress=1), "notifications/progress 1"),
        (notification("message", level="info", data="x"), "notifications/message info: x"),
        (notification("initialized"), "notifications/initialized"),
        ({"jsonrpc": "2.0", "id": 1, "method": "tools/call"}, "tools/call"),
        ({"jsonrpc": "2.0", "id": 1, "method": "surprise"}, "surprise"),
    ],
)
def test_a_message_is_shown_with_its_method_and_subject(write, message, what):
    (row,) = rows_of(write(("in", message)))
    assert row.what == what


def test_a_malformed_message_is_marked_with_its_size(write):
    (row,) = rows_of(write(("in", b"not json")))
    assert facts(row, "what", "outcome", "size_bytes") == ("malformed message", "error", 8)
    assert row.note.startswith("-32700: ")


def test_the_error_response_to_a_malformed_message_is_its_answer(write):
    rejection = {"jsonrpc": "2.0", "id": 7, "error": {"code": -32700, "message": "cut off"}}
    _, answer = rows_of(write(("in", b'{"id":7,"method":"ping"'), ("out", rejection)))
    assert facts(answer, "what", "took_ms", "outcome") == ("answer malformed message", 1.0, "error")


def test_an_oversized_message_is_shown_with_its_original_size(write):
    path = write(("in", b'{"jsonrpc"'))
    path.write_bytes(path.read_bytes().replace(b'"b":', b'"x":{"discarded":99},"b":', 1))
    row, *_ = rows_of(path)
    assert row.size_bytes == 99


def test_records_that_are_not_messages_have_rows_too(write):
    shown = rows_of(
        write(
            ("mark", {"name": "start", "value": None}, "r1", 0),
            ("mark", {"name": "negotiated", "value": {"protocol_version": "x"}}),
            ("res", {"value": 1}, "r1", 1),
            ("err", {"type": "KeyError", "text": "x"}, "r1", 2),
            ("shut", {"cause": "eof"}),
            ("gap", {"reason": "the disk is full"}),
            ("gap", {"count": 3}),
        )
    )
    assert [facts(row, "kind", "what", "note", "outcome") for row in shown] == [
        ("mark", "start", "", None),
        ("mark", "negotiated", '{"protocol_version":"x"}', None),
        ("res", "", '{"value":1}', None),
        ("err", "", '{"type":"KeyError","text":"x"}', "error"),
        ("shut", "eof", "", None),
        ("gap", "", '{"reason":"the disk is full"}', "error"),
        ("gap", "", '{"count":3}', "error"),
    ]


def test_the_counts_of_the_end_are_shown(write):
    path = write(("end", {"counts": {"late_answers": 2}}), end=False)
    *_, end = all_rows_of(path)
    assert end.note == '{"late_answers":2}'


def test_without_a_terminal_the_table_is_plain_and_complete(write, invoke):
    data = "x" * 30
    shown = invoke(
        "show",
        write(
            ("in", request(1, "tools/call", name="greet")),
            ("in", notification("message", level="info", data=data)),
            (
                "out",
                result(1, isError=True, content=[{"type": "text", "text": "y" * 110}]),
                "r1",
                1,
            ),
        ),
    )
    assert shown.exit_code == 0
    lines = shown.output.splitlines()
    assert " ".join(lines[0].split()) == "record ms lane kind what id bytes took ms note"
    assert lines[2].split() == ["1", "1.0", "in", "->", "tools/call", "greet", "1", "72"]
    assert f"info: {data}" in lines[3]
    assert lines[4].endswith("y" * 110)
    assert lines[-1] == ("records 5, damage 0, requests 1, answers 1, cancelled 0, errors 1")
    assert "\x1b" not in shown.output
    assert all(line == line.rstrip() for line in lines)


def test_control_characters_of_a_peer_are_escaped(write, invoke):
    nasty = notification("message", level="info", data="\x1b]0;gotcha\x07\nbye")
    shown = invoke("show", write(("in", nasty))).output
    assert "\\x1b]0;gotcha\\x07\\nbye" in shown
    assert "\x1b" not in shown


@pytest.mark.slow
def test_on_a_terminal_errors_are_coloured_and_long_notes_are_cut(write, on_a_screen):
    failed = result(1, isError=True, content=[{"type": "text", "text": "y" * 119}])
    path = write(("in", request(1, "tools/call", name="g" * 60)), ("out", failed, "r1", 1))
    shown = on_a_screen("show", path)
    assert "\x1b[31m" in shown
    assert f"tools/call {'g' * 36}…" in shown
    assert "yyy…" in shown
    assert "y" * 119 not in shown
    plain = on_a_screen("show", path, NO_COLOR="1")
    assert "\x1b[31m" not in plain
    assert "yyy…" in plain


def test_a_body_that_is_not_an_object_is_shown(write):
    mark, end, ping = rows_of(
        write(("mark", 5), ("shut", b"\xff"), ("in", request(1, "ping", _meta=5)))
    )
    assert (mark.what, end.what, ping.what) == ("", "", "ping")


def test_json_is_one_object_per_row_without_empty_members(write, invoke):
    shown = invoke("show", "--json", write(("in", request(1, "ping")), ("out", result(1))))
    rows = [json.loads(line) for line in shown.output.splitlines()]
    assert rows[1] == {
        "record": 1,
        "ms": 1.0,
        "kind": "in",
        "request": 1,
        "method": "ping",
        "direction": "to server",
        "what": "ping",
        "id": 1,
        "size_bytes": 52,
    }
    assert rows[2]["took_ms"] == 1.0
    assert [msgspec.convert(row, Row) for row in rows]


def test_damage_is_shown_where_it_occurs(write, invoke):
    path = write(("in", request(1, "ping")), ("out", result(1)))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"garbage\n" + lines[2])
    shown = invoke("show", path)
    assert shown.exit_code == 0
    assert [line.split()[0] for line in shown.output.splitlines()[1:4]] == ["0", "!", "2"]
    assert shown.output.splitlines()[2].split()[1] == "damaged"
    assert "line 2" in shown.output
    assert "an unknown request" in shown.output
    assert "damage 1" in shown.output


def test_a_file_that_is_not_a_recording_is_rejected(tmp_path, invoke):
    path = tmp_path / "other.jsonl"
    path.write_text("{}\n", encoding="utf-8")
    for arguments in (["show", path], ["show", "--json", path], ["show", tmp_path / "missing"]):
        assert invoke(*arguments).exit_code == 2
    assert "not a recording" in invoke("show", path).stderr


def test_a_recording_of_one_session_has_no_channel_column(write, invoke):
    shown = invoke("show", write(("in", request(1, "ping")))).output
    assert shown.split()[:3] == ["record", "ms", "lane"]


def test_notifications_of_a_subscription_are_about_its_request(write):
    tagged = {"_meta": {"io.modelcontextprotocol/subscriptionId": "s"}}
    listen, notified, answer, cancelled = rows_of(
        write(
            ("in", request("s", "subscriptions/listen", notifications={})),
            ("out", notification("tools/list_changed", **tagged)),
            ("out", result("s", **tagged)),
            ("out", notification("cancelled", requestId="s", **tagged), "r1", 2),
        )
    )
    assert (notified.request, notified.method) == (
        listen.record,
        "notifications/tools/list_changed",
    )
    assert answer.what == "answer subscriptions/listen"
    assert facts(cancelled, "what", "request", "outcome") == (
        "notifications/cancelled",
        listen.record,
        None,
    )


def test_requests_of_several_clients_show_the_client(invoke, write):
    def asked(id_, name, **info):
        client = {"io.modelcontextprotocol/clientInfo": {"name": name, **info}}
        return ("in", request(id_, "tools/list", _meta=client))

    path = write(
        asked(1, "probe", version="1"),
        asked(2, "other"),
        ("out", result(1, tools=[]), "r1", 1),
        ("in", request(3, "tools/list", _meta={"io.modelcontextprotocol/clientInfo": 5})),
    )
    heading, _, one, two, answered, three, *_ = invoke("show", path).stdout.splitlines()
    assert heading.split()[:4] == ["record", "ms", "client", "lane"]
    assert [line.split()[2:4] for line in (one, answered)] == [["probe", "1"]] * 2
    assert two.split()[2] == "other"
    assert three.split()[2] == "in"
    rows = map(json.loads, invoke("show", path, "--json").stdout.splitlines())
    assert [row.get("client") for row in rows][1:4] == ["probe 1", "other", "probe 1"]


def test_requests_of_one_client_have_no_client_column(invoke, write):
    client = {"io.modelcontextprotocol/clientInfo": {"name": "probe", "version": "1"}}
    path = write(("in", request(1, "tools/list", _meta=client)))
    assert "client" not in invoke("show", path).stdout.splitlines()[0]


# Selections and the summary.


def call(id_, name, **meta):
    params = {"name": name} | ({"_meta": meta} if meta else {})
    return {"jsonrpc": "2.0", "id": id_, "method": "tools/call", "params": params}


def answer(id_, **members):
    return {"jsonrpc": "2.0", "id": id_, "result": {"content": []} | members}


def progress(token):
    params = {"progressToken": token, "progress": 1}
    return {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}


SESSION = (
    ("in", call(1, "quick")),
    ("in", call(2, "slow", progressToken="t")),
    ("out", answer(1), "r1", 1),
    ("mark", {"name": "start"}, "r2", 0),
    ("out", progress("t"), "r2", 1),
    ("in", call(3, "bad")),
    ("out", answer(3, isError=True, content=[{"type": "text", "text": "no"}]), "r6", 1),
    ("mark", {"name": "x"}, "r2.1", 0),
    ("out", progress(99), "r2", 2),
    ("out", answer(2), "r2", 3),
    ("in", {"jsonrpc": "2.0", "id": 4, "method": "ping"}),
    ("out", answer(4), "r11", 1),
)


@pytest.fixture
def shown(write, invoke):
    """The numbers of the records that `show` shows with these options."""
    path = write(*SESSION)

    def shown(*options):
        done = invoke("show", "--json", *options, path)
        assert done.exit_code == 0, done.output
        return [json.loads(line)["record"] for line in done.output.splitlines()]

    return shown


@pytest.mark.parametrize(
    ("options", "records"),
    [
        ([], list(range(14))),
        (["--channel", "0"], list(range(14))),
        (["--channel", "1"], []),
        (["--lane", "r2"], [2, 4, 5, 8, 9, 10]),
        (["--lane", "r2.1"], [2, 8, 10]),
        (["--method", "pi*"], [11, 12]),
        (["--method", "notifications/*"], [2, 5, 9, 10]),
        (["--id", "3"], [6, 7]),
        (["--errors"], [6, 7]),
        (["--errors", "--method", "ping"], []),
        (["--slower-than", "2.5"], [2, 10]),
        (["--kind", "mark,open"], [0, 4, 8]),
        (["--from", "12"], [12, 13]),
        (["--from", "0.0115s", "--to", "12"], [12]),
        (["--to", "0.001s"], [0, 1]),
        (["--errors", "--kind", "out"], [7]),
    ],
)
def test_selected_rows_are_shown_with_their_request_and_answer(shown, options, records):
    assert shown(*options) == records


def test_progress_is_about_the_request_with_its_token(write, invoke):
    rows = [
        json.loads(line) for line in invoke("show", "--json", write(*SESSION)).output.splitlines()
    ]
    assert [row.get("request") for row in rows[4:6]] == [2, 2]
    assert rows[5]["method"] == "notifications/progress"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--from", "soon"], "'soon' is neither a record (12) nor a time in seconds (1.5s)"),
        (["--to", "1.5"], "'1.5' is neither"),
        (["--kind", "in,inn"], "no kind 'inn'; the kinds are open, in, "),
    ],
)
def test_an_invalid_selection_is_rejected(write, invoke, options, text):
    done = invoke("show", *options, write())
    assert done.exit_code == 2
    assert text in done.output


def test_the_summary_counts_by_method_and_names_the_slowest(write, invoke):
    lines = invoke("show", write(*SESSION)).output.splitlines()
    table = [line.split() for line in lines[lines.index("") + 1 :]]
    assert table[:3] == [
        ["method", "requests", "answers", "errors", "cancelled", "median", "ms", "slowest", "ms"],
        ["tools/call", "3", "3", "1", "0", "2.0", "8.0"],
        ["ping", "1", "1", "0", "0", "1.0", "1.0"],
    ]
    assert lines[-2].startswith("slowest: 8.0 ms tools/call slow (record 2); 2.0 ms tools/call")


def test_the_summary_counts_cancelled_and_unanswered_requests(write, invoke):
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    lines = invoke("show", write(("in", call(1, "slow")), ("in", cancel))).output.splitlines()
    assert "tools/call         1        0       0          1" in lines
    assert not any(line.startswith("slowest") for line in lines)


def test_the_summary_counts_cancellations_of_requests_and_not_of_what_is_inside(write, invoke):
    shown = invoke(
        "show",
        write(
            ("in", request(1, "tools/call", name="races")),
            ("cmd", {"name": "wait"}, "r1.1", 1),
            ("cmd", {"name": "wait"}, "r1", 1),
            ("cxl", None, "r1.1", 2),
            ("cxl", None, "r1", 2),
            ("out", result(1, content=[]), "r1", 3),
            ("in", request(2, "tools/call", name="stopped")),
            ("cxl", None, "r7", 1),
            ("in", request(3, "tools/call", name="open")),
            ("cxl", None, "r9.1", 1),
        ),
    )
    (line,) = [line for line in shown.stdout.splitlines() if line.startswith("tools/call  ")]
    assert line.split()[1:5] == ["3", "1", "0", "1"]


def test_with_a_selection_the_summary_is_of_all_rows(write, invoke):
    lines = invoke("show", "--errors", write(*SESSION)).output.splitlines()
    assert "shown: 2 of 14 rows; the summary is of all of them" in lines
    assert lines[-1] == "records 14, damage 0, requests 4, answers 4, cancelled 0, errors 1"
    assert not any(line.startswith("shown") for line in invoke("show", write()).output.splitlines())


def test_without_colours_outcomes_are_marked_by_signs(write, invoke):
    lines = invoke("show", write(*SESSION, ("cxl", None, "r2", 4))).output.splitlines()
    assert lines[8].split()[0] == "!7"
    assert lines[14].split()[0] == "~13"


def test_full_prints_the_wire_text_below_each_message(write, invoke):
    nasty = b'{"bad \x1b\xff'
    shown = invoke("show", "--full", write(("in", call(1, "x" * 300)), ("in", nasty))).output
    assert "x" * 300 in shown
    lines = shown.splitlines()
    assert json.loads(lines[3]) == call(1, "x" * 300)
    assert lines[5].strip() == r'{"bad \x1b\xff'


def test_full_prints_a_batch_once(write, invoke):
    batch = [call(1, "greet"), call(2, "greet")]
    lines = invoke("show", "--full", write(("in", batch))).output.splitlines()
    assert json.loads(lines[3]) == batch
    assert [line.split()[0] for line in (lines[2], *lines[4:6])] == ["1", "1", "1"]


def test_parts_of_lines_and_blank_lines_have_rows(write, invoke):
    path = write(
        ("in", call(1, "greet")),
        ("out", b'{"half'),
        ("out", b""),
        ("out", answer(1)),
        ("mark", {"name": "exited", "value": "SIGKILL"}),
        role="proxy",
    )
    path.write_bytes(
        path.read_bytes().replace(b'"n":2,"k":"out",', b'"n":2,"k":"out","x":{"part":1},')
    )
    rows = [json.loads(line) for line in invoke("show", "--json", path).output.splitlines()]
    rows = [row for row in rows if "record" in row]
    assert [row.get("what") for row in rows[1:6]] == [
        *("tools/call greet", "part 1 of a line", "a blank line", "answer tools/call greet"),
        "exited",
    ]
    assert rows[4]["took_ms"] == 3.0
    assert [row.get("outcome") for row in rows[1:6]] == [None] * 5


# Calls of several round trips.


VERSION = "io.modelcontextprotocol/protocolVersion"
META = {VERSION: "2026-07-28"}
CITY = {"method": "elicitation/create", "params": {"message": "Which city?"}}
ROOTS = {"method": "roots/list"}


def message(**members):
    return {"jsonrpc": "2.0", **members}


def plan_call(id_, name="plan", **params):
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
    ("in", plan_call(1)),
    ("out", asks(1, "s1", city=CITY, where=ROOTS), "r1.ask", 1),
    ("in", plan_call(2, "other")),
    ("out", done(2), "r3", 1),
    ("in", plan_call(3, inputResponses=ANSWERED, requestState="s1", _meta={"progressToken": "p"})),
    (
        "out",
        message(method="notifications/progress", params={"progressToken": "p", "progress": 1}),
        "r1",
        1,
    ),
    ("out", done(3), "r1", 2),
)


def all_rows_of(path):
    rows, *_ = read_rows(path)
    return rows


def facts_of_all(rows, *names):
    return [tuple(getattr(row, name) for name in names) for row in rows]


def test_a_retry_and_its_answer_show_their_round_and_first_request(write):
    rows = all_rows_of(write(*TWO_ROUNDS))
    assert facts_of_all(rows[1:-1], "what", "request", "first_request", "round") == [
        ("tools/call plan", 1, None, None),
        ("answer tools/call plan", 1, 1, 1),
        ("tools/call other", 3, None, None),
        ("answer tools/call other", 3, None, None),
        ("tools/call plan, round 2", 5, 1, 2),
        ("notifications/progress 1", 5, 1, 2),
        ("answer tools/call plan, round 2", 5, 1, 2),
    ]


def test_input_requests_and_their_responses_are_shown(write):
    _, _, asked, *_, retry, _, _, _ = all_rows_of(write(*TWO_ROUNDS))
    assert asked.note == "asks city: elicitation/create Which city?; where: roots/list"
    assert retry.note == 'city: accept {"name":"Oslo"}; where: {"roots":[]}'


def test_a_result_without_input_requests_asks_for_a_retry(write):
    rows = all_rows_of(
        write(("in", plan_call(1)), ("out", asks(1, "s")), ("in", plan_call(2, requestState="s")))
    )
    assert facts_of_all(rows[2:4], "note", "round") == [("asks to retry the request", 1), ("", 2)]


@pytest.mark.parametrize("role", ["server", "client"])
def test_all_rounds_of_a_call_are_one_call_in_order(write, role):
    records = TWO_ROUNDS
    if role == "client":
        other = {"in": "out", "out": "in"}
        records = [(other[kind], body) for kind, body, *_ in TWO_ROUNDS]
    (found,) = multi_round_trip_calls(all_rows_of(write(*records, role=role)))
    assert [row.record for row in found] == [1, 2, 5, 6, 7]
    assert heading_of_call(found) == "tools/call plan: 2 rounds in 6.0 ms"


def test_each_round_has_its_number(write):
    rounds = [
        ("in", plan_call(1)),
        ("out", asks(1, "s1")),
        ("in", plan_call(2, requestState="s1")),
        ("out", asks(2, "s2")),
        ("in", plan_call(3, requestState="s2")),
        ("out", done(3)),
    ]
    rows = all_rows_of(write(*rounds))[1:-1]
    assert facts_of_all(rows, "first_request", "round") == [
        (None, None),
        (1, 1),
        (1, 2),
        (1, 2),
        (1, 3),
        (1, 3),
    ]
    (found,) = multi_round_trip_calls(rows)
    assert heading_of_call(found) == "tools/call plan: 3 rounds in 5.0 ms"


def test_a_call_that_was_cut_has_one_round(write):
    (found,) = multi_round_trip_calls(
        all_rows_of(write(("in", plan_call(1)), ("out", asks(1, "s", where=ROOTS))))
    )
    assert heading_of_call(found) == "tools/call plan: 1 round in 1.0 ms"


def test_calls_of_several_rounds_are_listed_below_the_timeline(write, invoke):
    path = write(*TWO_ROUNDS)
    lines = invoke("show", path).output.splitlines()
    heading = lines.index("tools/call plan: 2 rounds in 6.0 ms")
    assert [line.split()[0] for line in lines[heading + 2 : heading + 7]] == list("12567")
    assert "rounds in" not in invoke("show", path, "--id", "2").output


def test_selected_rows_are_shown_with_all_rounds_of_their_call(write, invoke):
    path = write(*TWO_ROUNDS)
    for choice in (["--id", "3"], ["--id", "1"], ["--lane", "r5"]):
        shown = invoke("show", path, "--json", *choice).output.splitlines()
        records = [json.loads(line)["record"] for line in shown]
        assert [each for each in records if each != 6] == [1, 2, 5, 7]


def test_selecting_a_lane_shows_all_rounds(write, invoke):
    shown = invoke("show", write(*TWO_ROUNDS), "--json", "--lane", "r1").output.splitlines()
    assert [json.loads(line)["record"] for line in shown] == [1, 2, 5, 6, 7]


# Protocol versions.


def test_a_stateless_request_shows_its_protocol_version(write, invoke):
    path = write(*TWO_ROUNDS)
    assert all_rows_of(path)[1].protocol_version == "2026-07-28"
    assert invoke("show", path).output.endswith(", protocol version 2026-07-28\n")


def test_the_summary_names_every_protocol_version(write, invoke):
    hello = message(id=1, method="initialize", params={"protocolVersion": "2025-11-25"})
    path = write(
        ("in", hello),
        ("out", message(id=1, result={"protocolVersion": "2025-06-18"})),
        ("in", plan_call(2, _meta={VERSION: "\x1b"})),
        ("in", plan_call(3, _meta={VERSION: 5})),
    )
    assert facts_of_all(all_rows_of(path)[1:5], "protocol_version") == [
        (None,),
        ("2025-06-18",),
        ("\x1b",),
        (None,),
    ]
    assert invoke("show", path).output.endswith(", protocol version 2025-06-18, \\x1b\n")


def test_a_handshake_without_a_version_shows_none(write):
    hello = message(id=1, method="initialize", params={})
    path = write(("in", hello), ("out", message(id=1, result={"protocolVersion": 7})))
    assert all_rows_of(path)[2].protocol_version is None


# The subjects of messages.


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
def test_each_message_is_shown_with_its_subject(write, method, params, what):
    row = all_rows_of(write(("in", message(id=1, method=method, params=params))))[1]
    assert row.what == f"{method} {what}".rstrip()


def test_each_request_of_a_batch_is_counted(write, invoke):
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


# Recordings over HTTP.


WEATHER = "mcp_trio.examples.weather"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The file of a session, and that of stateless requests, by their protocol versions."""
    from click.testing import CliRunner

    from mcp_trio._cli.commands import commands

    folder = tmp_path_factory.mktemp("recorded")
    with serving(weather, record=folder) as url:
        for protocol_version in ("2025-11-25", "2026-07-28"):
            words = ["call", url, "forecast", "city=Oslo", "--protocol-version", protocol_version]
            assert CliRunner().invoke(commands, words).exit_code == 0
    files = {}
    for file in folder.iterdir():
        named = next(line for line in file.read_text().splitlines() if "negotiated" in line)
        files[json.loads(named)["f"]["value"]["protocol_version"]] = file
    return files


@pytest.fixture(params=["2025-11-25", "2026-07-28"])
def file(request, recorded):
    return recorded[request.param]


def test_the_timeline_shows_the_transport_and_the_protocol_version(invoke, recorded, file):
    shown = invoke("show", file).stdout
    assert "role server, http, " in shown
    assert "answer tools/call forecast" in shown
    assert shown.splitlines()[-1].endswith(
        "protocol version 2025-11-25"
        if file == recorded["2025-11-25"]
        else "protocol version 2026-07-28"
    )


def test_a_recording_over_http_is_complete_and_has_no_likely_secrets(invoke, file):
    assert invoke("check", file).exit_code == 0
    assert invoke("scan", file).exit_code == 0


def test_a_recording_over_http_can_be_exported(invoke, file):
    exported = [json.loads(line) for line in invoke("export", file).stdout.splitlines()]
    assert "tools/call" in [each.get("method") for each in exported]


def test_a_recording_over_http_replays_strictly_redacted_or_not(invoke, file, tmp_path):
    redacted = tmp_path / "redacted.mcprec.jsonl"
    assert invoke("redact", file, "-o", redacted).exit_code == 0
    for each in (file, redacted):
        assert invoke("replay", each, WEATHER).stdout.startswith("the same, byte for byte")


def test_a_recording_equals_itself_and_differs_between_stateless_and_legacy(
    invoke, recorded, file, tmp_path
):
    copied = shutil.copy(file, tmp_path / "copied.mcprec.jsonl")
    assert invoke("diff", file, copied).exit_code == 0
    assert invoke("diff", *recorded.values()).exit_code == 1
