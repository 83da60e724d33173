"""The timeline: what a reader sees of a session."""

import json

import msgspec
import pytest

from mcp_trio._cli.timeline import Counts, Row, timeline
from mcp_trio.recording import read_recording


def request(id_, method, **params):
    return {"jsonrpc": "2.0", "id": id_, "method": method, "params": params}


def notification(method, **params):
    return {"jsonrpc": "2.0", "method": f"notifications/{method}", "params": params}


def result(id_, **members):
    return {"jsonrpc": "2.0", "id": id_, "result": members}


def rows_of(path):
    """The rows between `open` and `end`."""
    rows = list(timeline(read_recording(path.read_bytes().splitlines(keepends=True)), Counts()))
    assert (rows[0].kind, rows[0].what) == ("open", "hand 1")
    return rows[1:-1]


def facts(row, *names):
    return tuple(getattr(row, name) for name in names)


def test_an_answer_names_its_request_and_says_how_long_it_took(write):
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
def test_directions_are_told_alike_whoever_recorded(write, role, kinds):
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


def test_errors_and_failed_tools_are_marked_and_say_why(write):
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


def test_a_cancellation_names_what_it_cancels_and_how_long_that_ran(write):
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
def test_a_message_is_told_by_its_method_and_what_it_is_about(write, message, what):
    (row,) = rows_of(write(("in", message)))
    assert row.what == what


def test_what_is_no_message_is_marked_and_its_size_told(write):
    (row,) = rows_of(write(("in", b"not json")))
    assert facts(row, "what", "outcome", "size_bytes") == ("malformed message", "error", 8)
    assert row.note.startswith("-32700: ")


def test_the_rejection_of_what_is_no_message_is_its_answer(write):
    rejection = {"jsonrpc": "2.0", "id": 7, "error": {"code": -32700, "message": "cut off"}}
    _, answer = rows_of(write(("in", b'{"id":7,"method":"ping"'), ("out", rejection)))
    assert facts(answer, "what", "took_ms", "outcome") == ("answer malformed message", 1.0, "error")


def test_an_oversized_frame_is_told_with_its_whole_size(write):
    path = write(("in", b'{"jsonrpc"'))
    path.write_bytes(path.read_bytes().replace(b'"b":', b'"x":{"discarded":99},"b":', 1))
    row, *_ = rows_of(path)
    assert row.size_bytes == 99


def test_records_that_are_no_frames_are_told_too(write):
    shown = rows_of(
        write(
            ("mark", {"name": "start", "value": None}, "r1", 0),
            ("mark", {"name": "negotiated", "value": {"revision": "x"}}),
            ("res", {"value": 1}, "r1", 1),
            ("err", {"type": "KeyError", "text": "x"}, "r1", 2),
            ("shut", {"cause": "eof"}),
            ("gap", {"reason": "the disk is full"}),
            ("gap", {"count": 3}),
        )
    )
    assert [facts(row, "kind", "what", "note", "outcome") for row in shown] == [
        ("mark", "start", "", None),
        ("mark", "negotiated", '{"revision":"x"}', None),
        ("res", "", '{"value":1}', None),
        ("err", "", '{"type":"KeyError","text":"x"}', "error"),
        ("shut", "eof", "", None),
        ("gap", "", '{"reason":"the disk is full"}', "error"),
        ("gap", "", '{"count":3}', "error"),
    ]


def test_the_counts_of_the_end_are_shown(write):
    path = write(("end", {"counts": {"late_answers": 2}}), end=False)
    *_, end = timeline(read_recording(path.read_bytes().splitlines(keepends=True)), Counts())
    assert end.note == '{"late_answers":2}'


def test_elsewhere_than_on_a_screen_the_table_is_plain_and_uncut(write, invoke):
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


def test_what_a_peer_sent_cannot_steer_the_terminal(write, invoke):
    nasty = notification("message", level="info", data="\x1b]0;gotcha\x07\nbye")
    shown = invoke("show", write(("in", nasty))).output
    assert "\\x1b]0;gotcha\\x07\\nbye" in shown
    assert "\x1b" not in shown


def test_on_a_screen_errors_have_a_colour_and_long_notes_are_cut_to_it(write, on_a_screen):
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


def test_a_body_that_is_no_object_is_shown_for_what_it_is(write):
    mark, end, ping = rows_of(
        write(("mark", 5), ("shut", b"\xff"), ("in", request(1, "ping", _meta=5)))
    )
    assert (mark.what, end.what, ping.what) == ("", "", "ping")


def test_json_is_one_object_a_line_without_what_is_absent(write, invoke):
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


def test_flaws_are_shown_at_their_places(write, invoke):
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


def test_a_file_that_is_no_recording_is_rejected(tmp_path, invoke):
    path = tmp_path / "other.jsonl"
    path.write_text("{}\n", encoding="utf-8")
    for arguments in (["show", path], ["show", "--json", path], ["show", tmp_path / "missing"]):
        assert invoke(*arguments).exit_code == 2
    assert "not a recording" in invoke("show", path).stderr


def test_a_recording_of_one_session_has_no_column_for_others(write, invoke):
    shown = invoke("show", write(("in", request(1, "ping")))).output
    assert shown.split()[:3] == ["record", "ms", "lane"]


def test_what_a_subscription_tells_is_about_its_request(write):
    tagged = {"_meta": {"io.modelcontextprotocol/subscriptionId": "s"}}
    listen, told, answer, cancelled = rows_of(
        write(
            ("in", request("s", "subscriptions/listen", notifications={})),
            ("out", notification("tools/list_changed", **tagged)),
            ("out", result("s", **tagged)),
            ("out", notification("cancelled", requestId="s", **tagged), "r1", 2),
        )
    )
    assert (told.request, told.method) == (listen.record, "notifications/tools/list_changed")
    assert answer.what == "answer subscriptions/listen"
    assert facts(cancelled, "what", "request", "outcome") == (
        "notifications/cancelled",
        listen.record,
        None,
    )


def test_of_requests_of_several_clients_each_says_whose_it_is(invoke, write):
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


def test_one_client_alone_needs_no_column(invoke, write):
    client = {"io.modelcontextprotocol/clientInfo": {"name": "probe", "version": "1"}}
    path = write(("in", request(1, "tools/list", _meta=client)))
    assert "client" not in invoke("show", path).stdout.splitlines()[0]
