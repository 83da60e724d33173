"""Which rows `show` shows, what it adds up to, and what a proxy's recording looks like."""

import json

import pytest


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
def test_what_was_chosen_is_shown_with_its_request_and_answer(shown, options, records):
    assert shown(*options) == records


def test_progress_belongs_to_the_request_that_gave_the_token(write, invoke):
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
def test_a_choice_that_cannot_be_is_rejected(write, invoke, options, text):
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


def test_the_summary_counts_what_was_cancelled_and_never_answered(write, invoke):
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    lines = invoke("show", write(("in", call(1, "slow")), ("in", cancel))).output.splitlines()
    assert "tools/call         1        0       0          1" in lines
    assert not any(line.startswith("slowest") for line in lines)


def test_a_selection_says_that_the_figures_are_of_everything(write, invoke):
    lines = invoke("show", "--errors", write(*SESSION)).output.splitlines()
    assert "shown: 2 of 14 rows; the summary is of all of them" in lines
    assert lines[-1] == "records 14, damage 0, requests 4, answers 4, cancelled 0, errors 1"
    assert not any(line.startswith("shown") for line in invoke("show", write()).output.splitlines())


def test_outcomes_are_marked_where_there_is_no_colour(write, invoke):
    lines = invoke("show", write(*SESSION, ("cxl", None, "r2", 4))).output.splitlines()
    assert lines[8].split()[0] == "!7"
    assert lines[14].split()[0] == "~13"


def test_full_shows_what_stood_on_the_wire_below_each_message(write, invoke):
    nasty = b'{"bad \x1b\xff'
    shown = invoke("show", "--full", write(("in", call(1, "x" * 300)), ("in", nasty))).output
    assert "x" * 300 in shown
    lines = shown.splitlines()
    assert json.loads(lines[3]) == call(1, "x" * 300)
    assert lines[5].strip() == r'{"bad \x1b\xff'


def test_what_a_proxy_saw_that_is_no_message_is_told(write, invoke):
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
