"""`mcp-trio replay` and `sweep`: options, and live servers."""

import json
import sys
from pathlib import Path

import pytest

from mcp_trio._cli.replay import sweep_summary
from mcp_trio.recording import SweepReport

# Options.


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--mode", "lax"], "Invalid value for '--mode'"),
        (["--key", "/does/not/exist"], "cannot read the key /does/not/exist"),
    ],
)
def test_invalid_options_are_rejected(invoke, tmp_path, write, options, text):
    target = tmp_path / "server.py"
    target.write_text('from mcp_trio import Server\n\nserver = Server("x")\n')
    shown = invoke("replay", write(), target, *options)
    assert (shown.exit_code, text in shown.stderr) == (2, True)


# A live server.


RECORDINGS = Path(__file__).parents[2] / "recordings"
WEATHER = "mcp_trio.examples.weather"
ODD = [sys.executable, str(Path(__file__).with_name("odd_server.py"))]

SERVER = """
import trio
from mcp_trio import Server

server = Server("some", version="0")
print("imported")

@server.tool
async def add(a: int, b: int) -> int:
    print("added")
    return a + b

@server.tool
async def wait() -> None:
    await trio.sleep_forever()
"""


def message(**members):
    return {"jsonrpc": "2.0", **members}


def hello(**info):
    params = {
        "protocolVersion": "2024-11-05",
        "capabilities": {},
        "clientInfo": {"name": "c", "version": "1"},
    }
    capabilities = {"logging": {}, "tools": {"listChanged": True}}
    result = {"protocolVersion": "2024-11-05", "capabilities": capabilities}
    return (
        ("in", message(id=1, method="initialize", params=params)),
        ("out", message(id=1, result=result | {"serverInfo": info})),
        ("in", message(method="notifications/initialized")),
    )


def called(id_, name, arguments, **result):
    params = {"name": name, "arguments": arguments}
    return (
        ("in", message(id=id_, method="tools/call", params=params)),
        ("out", message(id=id_, result=result)),
    )


@pytest.fixture
def some(tmp_path):
    (tmp_path / "some.py").write_text(SERVER)
    return tmp_path / "some.py"


def test_a_server_that_responds_as_recorded_has_no_differences(invoke):
    shown = invoke("replay", RECORDINGS / "weather.mcprec.jsonl", "--inputs", WEATHER)
    assert (shown.stdout, shown.exit_code) == ("no differences, 6 of 6 requests answered\n", 0)


def test_differences_are_printed_as_a_table(invoke, write, some):
    path = write(
        *hello(name="some", version="0"),
        *called(2, "add", {"a": 1, "b": 2}, content=[{"type": "text", "text": "4"}]),
        role="proxy",
    )
    shown = invoke("replay", path, "--inputs", some)
    assert shown.exit_code == 1
    heading, row, empty, total = shown.stdout.splitlines()
    assert heading.split() == ["record", "what", "path", "recorded", "live"]
    assert row.split() == [
        *("changed", "4", "answer", "to", "tools/call", "add"),
        *("$.result.content[0].text", '"4"', '"3"'),
    ]
    assert empty == ""
    assert total == "1 difference, 2 of 2 requests answered"
    assert shown.stderr.splitlines()[:2] == ["imported", "added"]


def test_differences_at_ignored_paths_are_not_reported(invoke, write, some):
    path = write(*hello(name="some", version="9"), *called(2, "add", {"a": 1, "b": 2}, content=[]))
    given = ("--ignore", "$.result.content", "--ignore", "$.result.serverInfo.*")
    shown = invoke("replay", path, "--inputs", some, *given)
    assert shown.exit_code == 0
    assert shown.stdout.endswith("2 ignored\n")


def test_differences_can_be_printed_as_json(invoke, write, some):
    path = write(*hello(name="other", version="0"))
    shown = invoke("replay", path, "--inputs", some, "--json")
    (difference,) = map(json.loads, shown.stdout.splitlines())
    assert difference["path"] == "$.result.serverInfo.name"
    assert (difference["recorded"], difference["live"]) == ("other", "some")
    assert shown.exit_code == 1


def test_a_live_server_can_be_a_command_after_dashes(invoke, write):
    path = write(
        ("in", message(id=7, method="resources/list")),
        ("out", message(id=7, result={"resources": []})),
    )
    shown = invoke("replay", path, "--", *ODD)
    assert (shown.stdout, shown.exit_code) == ("no differences, 1 of 1 requests answered\n", 0)


def test_a_server_that_dies_is_a_difference(invoke, write):
    path = write(*hello(name="odd", version="1"))
    shown = invoke("replay", path, "--", *ODD, "dies")
    assert shown.exit_code == 1
    assert "odd cannot go on" in shown.stdout
    assert "0 of 1 requests answered, 1 client messages not sent" in shown.stdout


@pytest.mark.real_time
def test_a_late_response_is_a_difference(invoke, write, some):
    path = write(*hello(name="some", version="0"), *called(2, "wait", {}, content=[]))
    shown = invoke("replay", path, "--inputs", some, "--timeout", "0.2")
    assert "late" in shown.stdout
    assert shown.exit_code == 1


def test_a_session_is_chosen_by_its_channel(invoke, write, some):
    path = write(*hello(name="some", version="0"))
    shown = invoke("replay", path, "--inputs", some, "--channel", "3")
    assert (shown.exit_code, shown.stderr.splitlines()[-1]) == (
        2,
        f"{path}: the recording has no messages on channel 3",
    )


def test_a_command_that_cannot_be_started_is_reported_in_one_line(invoke, write):
    shown = invoke("replay", write(), "--", "/no/such/program")
    assert (shown.exit_code, shown.stderr.count("\n")) == (2, 1)


def test_a_file_that_is_not_a_recording_is_reported_in_one_line(invoke, tmp_path):
    (tmp_path / "text").write_text("hello\n")
    shown = invoke("replay", tmp_path / "text", "--", *ODD)
    assert shown.exit_code == 2
    assert shown.stderr.startswith(f"{tmp_path / 'text'}: not a recording")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ((), "name a TARGET or a URL, or a COMMAND after --"),
        (("--inputs",), "name one server"),
        ((WEATHER, "--", "some"), "name one server"),
        (("--",), "no COMMAND follows --"),
        ((WEATHER, "--ignore", "$"), "need --inputs"),
        (("--inputs", WEATHER, "--ignore", "result"), "'result' is no JSON path"),
    ],
)
def test_contradictory_options_are_rejected(invoke, given, text):
    shown = invoke("replay", RECORDINGS / "weather.mcprec.jsonl", *given)
    assert shown.exit_code == 2
    assert text in shown.stderr


def test_the_usage_has_a_line_for_each_way_to_name_a_server(invoke):
    first, second = invoke("replay").output.splitlines()[:2]
    assert first.endswith(" replay [OPTIONS] FILE [TARGET]")
    assert second.endswith(" replay [OPTIONS] FILE -- COMMAND...")


# `sweep`.


@pytest.mark.parametrize(
    ("schedules", "outcomes", "words"),
    [
        (1, 1, "1 schedule, 1 outcome, in"),
        (100, 1, "100 schedules, 1 outcome, in"),
        (100, 2, "100 schedules, 2 outcomes, in"),
    ],
)
def test_singular_and_plural_counts_are_written_correctly(schedules, outcomes, words):
    report = SweepReport(
        schedules=schedules, outcomes=outcomes, differences=(), untracked_calls=(), seconds=0.5
    )
    assert sweep_summary(report, "trip", "server.py").startswith(words)
