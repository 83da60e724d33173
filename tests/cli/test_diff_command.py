"""`diff` of two recordings: what a person sees, what a program gets, and the status."""

import json

import pytest
import zstandard


def call(id_, name):
    return {"jsonrpc": "2.0", "id": id_, "method": "tools/call", "params": {"name": name}}


def answer(id_, text):
    return {"jsonrpc": "2.0", "id": id_, "result": {"content": [{"type": "text", "text": text}]}}


SESSION = [
    ("in", call(1, "a")),
    ("in", call(2, "b")),
    ("out", answer(1, "one"), "r1", 1),
    ("out", answer(2, "two"), "r2", 1),
]


@pytest.fixture
def two(write, tmp_path):
    """Write two recordings, and compress the second one."""

    def two(left, right, **options):
        a = write(*left).rename(tmp_path / "a.mcprec.jsonl")
        b = tmp_path / "b.mcprec.jsonl.zst"
        b.write_bytes(zstandard.compress(write(*right, **options).read_bytes()))
        return a, b

    return two


def test_the_same_is_no_difference(two, invoke):
    shown = invoke("diff", *two(SESSION, SESSION))
    assert shown.exit_code == 0
    assert shown.output == "no differences in 6 and 6 records\n"
    assert invoke("diff", "--json", *two(SESSION, SESSION)).output == ""


def test_a_difference_is_told_with_its_place_and_both_values(two, invoke):
    changed = [*SESSION[:3], ("out", answer(2, "\x1b" + "t" * 90), "r2", 1)]
    shown = invoke("diff", *two(SESSION, changed))
    assert shown.exit_code == 1
    _, line, _, total = shown.output.splitlines()
    assert line.split()[:8] == ["changed", "4", "4", "r2", "out", "answer", "tools/call", "b"]
    value = '"\\u001b' + "t" * 52 + "…"
    assert line.endswith(f'$.result.content[0].text: "two" -> {value}')
    assert total == "1 difference in 6 and 6 records"


def test_records_of_one_side_only_and_another_order_are_told(two, invoke):
    shown = invoke("diff", *two(SESSION, [*SESSION[:2], SESSION[3]]))
    assert "only in A" in shown.output
    assert "answer tools/call a" in shown.output
    shown = invoke("diff", *two(SESSION[:3], SESSION))
    assert "only in B" in shown.output
    shown = invoke("diff", *two(SESSION, [*SESSION[:2], SESSION[3], SESSION[2]]))
    assert "from here on in another order" in shown.output


def test_two_sides_of_a_session_are_compared_by_what_was_on_the_wire(two, invoke):
    other = [({"in": "out", "out": "in"}[kind], frame) for kind, frame, *_ in SESSION]
    shown = invoke("diff", *two(SESSION, other, role="client"))
    assert shown.exit_code == 0
    assert shown.output.endswith("records, by the messages of server and client\n")


def test_only_the_first_differences_are_shown_unless_all_are_asked_for(two, invoke):
    many = [("in", call(number, "a")) for number in range(30)]
    files = two(many, [("in", call(number, "b")) for number in range(30)])
    shown = invoke("diff", *files).output
    assert shown.count('"a" -> "b"') == 20
    assert shown.endswith("30 differences in 32 and 32 records; 10 more with --all\n")
    shown = invoke("diff", "--all", *files).output
    assert shown.count('"a" -> "b"') == 30
    assert shown.endswith("30 differences in 32 and 32 records\n")


def test_json_is_one_object_a_line(two, invoke):
    right = [("in", call(1, "b")), ("in", b"\xff")]
    shown = invoke("diff", "--json", *two([("in", call(1, "a")), ("in", b"x")], right))
    assert shown.exit_code == 1
    first, second = map(json.loads, shown.output.splitlines())
    assert first == {
        "what": "changed",
        "kind": "in",
        "lane": None,
        "left": 1,
        "right": 1,
        "path": "$.params.name",
        "left_value": "a",
        "right_value": "b",
    }
    assert (second["left_value"], second["right_value"]) == ("x", "\\xff")
    absent = [("in", {"jsonrpc": "2.0", "id": 1, "method": "tools/call"})]
    shown = invoke("diff", "--json", *two([("in", call(1, "a"))], absent))
    assert "right_value" not in json.loads(shown.output)
    assert '{"name":"a"} -> nothing' in invoke("diff", *two([("in", call(1, "a"))], absent)).output


def test_flaws_are_told_and_what_is_whole_is_compared(two, invoke):
    a, b = two(SESSION, SESSION)
    a.write_bytes(a.read_bytes()[:-5])
    shown = invoke("diff", a, b)
    assert shown.exit_code == 1
    assert f"{a}: line 6: the recording was cut in its last line\n" in shown.stderr
    assert "only in B" in shown.stdout


def test_what_is_no_recording_is_rejected_and_named(two, invoke, tmp_path):
    a, _ = two(SESSION, SESSION)
    other = tmp_path / "other.jsonl"
    other.write_text("{}\n")
    shown = invoke("diff", a, other)
    assert shown.exit_code == 2
    assert shown.stderr.startswith(f"{other}: not a recording")
    assert invoke("diff", a, tmp_path / "missing").exit_code == 2
