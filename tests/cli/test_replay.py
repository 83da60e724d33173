"""`mcp-trio replay`, `mock` and `sweep`."""

import functools
import json
import os
import pty
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import attrs
import pytest
import trio

from mcp_trio import Client, ConnectionLost, RequestError, Server
from mcp_trio._cli.replay import replay_summary, sweep_summary
from mcp_trio._replay.many_replays import cause_of, replay_in_parallel
from mcp_trio._replay.targets import fresh_server, import_server
from mcp_trio.auth import Bearer
from mcp_trio.examples.weather import server as weather
from mcp_trio.recording import RecordOptions, ReplayReport, SweepReport, TickClock, replay_live
from mcp_trio.testing import mock_server
from tests.two_users import TOURS, record_two_users, tour
from tests.ways import CONNECTIONS

measured = pytest.mark.usefixtures("measured_processes")

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
        f"{path}: the recording has no messages on channel 3; channels with messages: 0",
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
        ((WEATHER, "--", "some"), "a live server (--inputs, a URL or a COMMAND) takes one FILE"),
        ((WEATHER, "--inputs", "--repeat", "2"), "--repeat cannot be used with a live server"),
        ((WEATHER, "--inputs", "--schedule", "-"), "--schedule cannot be used with a live server"),
        ((WEATHER, "--inputs", "--key", "none"), "--key cannot be used with a live server"),
        ((WEATHER, "--inputs", "--mode", "strict"), "--mode cannot be used with a live server"),
        ((WEATHER, "--repeat", "2", "--schedule", "-"), "--repeat cannot be used with --schedule"),
        ((WEATHER, "--key", "none", "--schedule", "-"), "--key cannot be used with --schedule"),
        ((WEATHER, WEATHER, "--schedule", "-"), "--schedule takes one FILE"),
        (("--",), "no COMMAND follows --"),
        ((WEATHER, "--ignore", "$"), "--ignore cannot be used with a replay of one recording, but"),
        ((WEATHER, "--channel", "0"), "but with a live server (--inputs, a URL or a COMMAND)"),
        (("--inputs", WEATHER, "--ignore", "result"), "'result' is not a JSON path"),
    ],
)
def test_contradictory_options_are_rejected(invoke, given, text):
    shown = invoke("replay", RECORDINGS / "weather.mcprec.jsonl", *given)
    assert shown.exit_code == 2
    assert text in shown.stderr


def test_the_usage_has_a_line_for_each_way_to_name_a_server(invoke):
    first, second = invoke("replay").output.splitlines()[:2]
    assert first.endswith(" replay [OPTIONS] FILE... [TARGET]")
    assert second.endswith(" replay [OPTIONS] FILE... -- COMMAND...")


# Several recordings, and many replays.

COUNTING = """
from mcp_trio import Context, Server
import letters

server = Server("counting")
calls = 0

@server.tool
async def count(*, ctx: Context) -> int:
    global calls
    calls += 1
    letters.used.append(calls)
    await ctx.sleep(0)
    return len(letters.used) + calls

@server.tool
async def shuffled() -> str:
    return "".join({"a", "b", "c", "d", "e"})
"""


def write_counting_server(folder):
    (folder / "letters.py").write_text("used = []\n")
    (folder / "counting.py").write_text(COUNTING)
    return folder / "counting.py"


@pytest.fixture(scope="module")
def counting_recordings(tmp_path_factory):
    """Two recordings of the server, each of one tool that was called in a process of its own."""
    folder = tmp_path_factory.mktemp("counting")
    target = write_counting_server(folder)

    async def record(tool):
        path = folder / f"{tool}.mcprec.jsonl"
        command = [sys.executable, "-m", "mcp_trio", "run", str(target), "--record", str(path)]
        environment = {"PYTHONHASHSEED": "77"}
        async with Client(command, env=environment, inherit_env=True) as client:
            await client.call_tool(tool)

    for tool in ("count", "shuffled"):
        trio.run(record, tool)
    return folder


@pytest.fixture
def counting(tmp_path, counting_recordings):
    """A function that puts a recording of a tool beside the server."""
    write_counting_server(tmp_path)

    def copy_recording(tool, name):
        path = tmp_path / "recordings" / name
        path.parent.mkdir(exist_ok=True)
        return shutil.copy(counting_recordings / f"{tool}.mcprec.jsonl", path)

    return copy_recording


def test_each_replay_gets_a_server_that_is_imported_anew(invoke, counting, tmp_path):
    first, second = (counting("count", f"{name}.mcprec.jsonl") for name in "ab")
    shown = invoke("replay", first, second, tmp_path / "counting.py")
    assert shown.exit_code == 0, shown.output
    rows = [line.split()[-4:] for line in shown.stdout.splitlines()[1:]]
    assert rows == [["1", "1", "the", "same"]] * 2
    assert "letters" not in sys.modules


@pytest.mark.real_time
def test_the_recordings_of_an_http_server_replay_though_no_stateless_request_came(invoke, tmp_path):
    folder, target = tmp_path / "recordings", write_counting_server(tmp_path)
    folder.mkdir()

    async def record(versions):
        async with trio.open_nursery() as nursery:
            serve = partial(import_server(str(target)).serve_http, port=0, record=folder)
            url = await nursery.start(lambda task_status: serve(task_status=task_status))
            async with Client(url, protocol_versions=versions) as client:
                await client.call_tool("count")
            nursery.cancel_scope.cancel()

    trio.run(record, ["2025-06-18"])
    assert len(list(folder.iterdir())) == 2
    shown = invoke("replay", folder, target)
    assert shown.exit_code == 0, shown.output
    assert [line.split()[2:] for line in shown.stdout.splitlines()[1:]] == [
        ["1", "1", "the", "same"]
    ]
    for path in folder.iterdir():
        if b'"in"' in path.read_bytes():
            path.unlink()
    shown = invoke("replay", folder, target)
    assert shown.exit_code == 1
    assert "nothing was compared" in shown.stderr


@measured
def test_a_folder_is_replayed_under_many_seeds(invoke, counting, tmp_path):
    path = counting("count", "a.mcprec.jsonl")
    (path.parent / "proxy.mcprec.jsonl").write_bytes(
        path.read_bytes().replace(b'"role":"server"', b'"role":"proxy"')
    )
    shown = invoke("replay", path.parent, tmp_path / "counting.py", "--repeat", "3")
    assert shown.exit_code == 0, shown.output
    _, row = shown.stdout.splitlines()
    assert row.split()[0] == str(path)
    assert row.split()[-3:] == ["6", "the", "same"]


@pytest.mark.slow
def test_a_result_that_depends_on_the_hash_seed_diverges_under_another(invoke, counting, tmp_path):
    counting("shuffled", "a.mcprec.jsonl")
    path = counting("count", "b.mcprec.jsonl")
    shown = invoke("replay", path.parent, tmp_path / "counting.py", "--repeat", "2")
    assert shown.exit_code == 1
    assert re.search(r"a\.mcprec\.jsonl +\d+ +\d+ +4 +diverged(: 2 of 4)?\n", shown.stdout)
    assert re.search(r"b\.mcprec\.jsonl +\d+ +\d+ +4 +the same\n", shown.stdout)
    assert re.search(
        r"a\.mcprec\.jsonl \(scheduler seed 0, hash seed \d\): replay diverged", shown.stdout
    )


def test_replays_that_compare_nothing_fail(invoke, counting, tmp_path):
    target = tmp_path / "counting.py"
    path = counting("count", "a.mcprec.jsonl")
    (tmp_path / "empty").mkdir()
    shown = invoke("replay", tmp_path / "empty", target)
    assert (shown.exit_code, "nothing was compared: " in shown.stderr) == (1, True)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:1]))
    shown = invoke("replay", path, target)
    assert (shown.exit_code, "nothing was compared: " in shown.stderr) == (1, True)
    shown = invoke("replay", path.parent, target)
    assert (shown.exit_code, "nothing compared" in shown.stdout) == (1, True)
    path.write_bytes(b"")
    shown = invoke("replay", path.parent, target)
    assert (shown.exit_code, "it is empty" in shown.stdout) == (2, True)


@pytest.mark.parametrize("options", [(), ("--repeat", "1")])
def test_a_target_that_cannot_be_imported_is_named(invoke, counting, tmp_path, options):
    path = counting("count", "a.mcprec.jsonl")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    shown = invoke("replay", path, path, tmp_path / "broken.py", *options)
    assert shown.exit_code == 2
    assert "broken.py cannot be imported" in shown.stderr
    assert "ZeroDivisionError" in shown.stderr


def test_a_target_that_serves_when_it_is_imported_is_rejected(invoke, counting, tmp_path):
    path = counting("count", "a.mcprec.jsonl")
    target = tmp_path / "eager.py"
    target.write_text("from mcp_trio import Server\nserver = Server('eager')\nserver.run()\n")
    shown = invoke("replay", path, target)
    assert shown.exit_code == 2
    assert f"server.run() is called while {target} is imported: put it under" in shown.stderr


# `sweep`.


@pytest.mark.parametrize(
    ("schedules", "outcomes", "text"),
    [
        (1, 1, "1 schedule, 1 outcome, in"),
        (100, 1, "100 schedules, 1 outcome, in"),
        (100, 2, "100 schedules, 2 outcomes, in"),
    ],
)
def test_singular_and_plural_counts_are_written_correctly(schedules, outcomes, text):
    report = SweepReport(
        schedules=schedules, outcomes=outcomes, differences=(), untracked_calls=(), seconds=0.5
    )
    assert sweep_summary(report, "trip", "server.py").startswith(text)
    command = "mcp-trio replay 'a b' server.py --schedule 'a b.json'"
    assert sweep_summary(report, "a b", "server.py", "a b.json").endswith(command)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (("--strategy", "luck"), "'luck' is not one of 'random', 'pct', 'depth-first'"),
        (("--strategy", "depth-first", "--seed", "3"), "a depth-first sweep has no seeds"),
        (("--json", "--output", "a"), "--json writes no file: leave out --output"),
    ],
)
def test_contradictory_options_of_a_sweep_are_rejected(invoke, given, text):
    shown = invoke("sweep", RECORDINGS / "weather.mcprec.jsonl", WEATHER, *given)
    assert shown.exit_code == 2
    assert text in shown.stderr


def test_a_schedule_that_cannot_be_written_is_an_error(invoke, tmp_path):
    recording = RECORDINGS / "counter.mcprec.jsonl"
    target = f"{RECORDINGS / 'servers.py'}:counter"
    file = tmp_path / "none" / "a.json"
    shown = invoke("sweep", recording, target, "--schedules", "4", "--output", file)
    assert shown.exit_code == 2
    assert "cannot write the schedule: " in shown.stderr


def test_a_file_that_is_no_schedule_is_rejected(invoke, tmp_path):
    file = tmp_path / "a.json"
    file.write_text("{}")
    shown = invoke("replay", RECORDINGS / "weather.mcprec.jsonl", WEATHER, "--schedule", file)
    assert shown.exit_code == 2
    assert "a.json: this is not a schedule of a sweep" in shown.stderr


# `mcp-trio mock` over stdio.


EVERYTHING = Path(__file__).parents[2] / "recordings" / "everything-our-client.mcprec.jsonl"
MOCK = [sys.executable, "-m", "mcp_trio", "mock"]
PING = '{"jsonrpc":"2.0","id":1,"method":"ping"}\n'
ONE_PING = [
    ("in", {"jsonrpc": "2.0", "id": 1, "method": "ping"}),
    ("out", {"jsonrpc": "2.0", "id": 1, "result": {}}),
]


def mock(*arguments, stdin=""):
    return subprocess.run(
        [*MOCK, *map(str, arguments)],
        input=stdin,
        capture_output=True,
        check=False,
        text=True,
        timeout=30,
    )


def call(name, **arguments):
    params = {"name": name, "arguments": arguments}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}) + "\n"


@measured
def test_the_mock_sends_recorded_responses_over_stdio():
    done = mock(EVERYTHING, stdin=call("get-sum", a=2, b=40))
    assert json.loads(done.stdout)["result"]["content"][0]["text"] == "The sum of 2 and 40 is 42."
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_an_unrecorded_request_is_an_error_for_the_client_and_on_stderr():
    done = mock(EVERYTHING, stdin=call("get-sum", a=2, b=3))
    text = 'tools/call {"name":"get-sum","arguments":{"a":2,"b":3}} was not recorded; closest recorded requests: '
    assert text in json.loads(done.stdout)["error"]["message"]
    assert (done.returncode, done.stderr.startswith(text)) == (0, True)


@pytest.mark.slow
def test_the_mock_can_be_called_like_the_recorded_server(invoke):
    shown = invoke("call", "echo", "message=Grüße 👋", "--", *MOCK, EVERYTHING)
    assert (shown.stdout, shown.exit_code) == ("Echo: Grüße 👋\n", 0)


@pytest.mark.slow
def test_strict_fails_on_missing_and_unrecorded_requests(write):
    path = write(*ONE_PING)
    assert mock(path, "--strict", stdin=PING).returncode == 0
    done = mock(path, "--strict")
    assert (done.returncode, done.stderr) == (1, "not requested: ping (record 1)\n")
    done = mock(path, "--strict", stdin=PING + call("x"))
    expected = 'tools/call {"name":"x","arguments":{}} was not recorded, nor any other tools/call\n'
    assert (done.returncode, done.stderr) == (1, expected)


@pytest.mark.slow
def test_pace_sends_the_recorded_responses(write):
    assert mock(write(*ONE_PING), "--pace", "--channel", "0", stdin=PING).stdout.count("\n") == 1


@pytest.fixture
def running(write):
    """A mock that has answered once."""
    process = subprocess.Popen(
        [*MOCK, write(*ONE_PING)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        process.stdin.write(PING)
        process.stdin.flush()
        assert process.stdout.readline()
        yield process
        process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_mock(running, number):
    running.send_signal(number)
    assert running.wait(10) == 128 + number


def test_the_mock_ends_with_its_parent_process(write):
    code = "import subprocess, sys; subprocess.run(sys.argv[1:])"
    parent = subprocess.Popen(
        [sys.executable, "-c", code, *MOCK, str(write(*ONE_PING))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with parent:
        parent.stdin.write(PING)
        parent.stdin.flush()
        assert parent.stdout.readline()
        os.kill(parent.pid, signal.SIGKILL)
        assert parent.stdout.read() == ""  # the other end is closed


def test_as_a_client_it_sends_the_recorded_requests(invoke, write):
    path = write(
        ("in", {"jsonrpc": "2.0", "id": 1, "method": "resources/list"}),
        ("out", {"jsonrpc": "2.0", "id": 1, "result": {"resources": ["others"]}}),
    )
    shown = invoke("mock", path, "--as", "client", "--", *ODD)
    assert shown.stdout == "no differences, 1 of 1 requests answered, 1 ignored\n"
    assert shown.exit_code == 0


def test_a_live_server_that_answers_nothing_is_status_1(invoke, write):
    shown = invoke("mock", write(*ONE_PING), "--as", "client", "--", *ODD, "dies")
    assert shown.exit_code == 1
    assert "0 of 1 requests answered" in shown.stdout


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (("some.py",), "TARGET, URL, COMMAND and --header need --as client"),
        (("--", "some"), "TARGET, URL, COMMAND and --header need --as client"),
        (("--as", "client"), "name one server"),
        (("--as", "client", "--pace", "--", "some"), "--pace cannot be used with --as client"),
        (("--channel", "7"), "the recording has no messages on channel 7"),
        (("--user", "ada"), "no request of the user 'ada' was recorded; users: none"),
        (("--user", "ada", "--user", "ben=token"), "several users need tokens: NAME=TOKEN"),
        (("--user", "ada=one", "--user", "ben=one"), "ada and ben have the same token"),
        (("--user", "ada=${NOT_SET}"), "NOT_SET"),
        (("--user", "ada=one"), "--user NAME=TOKEN needs --transport http or websocket"),
        (
            ("--user", "ada=one", "--transport", "http", "--token", "x"),
            "--token cannot be used with --user NAME=TOKEN",
        ),
        (("--as", "client", "--user", "ada", "--", "some"), "--user cannot be used with --as"),
    ],
)
def test_contradictory_options_of_mock_are_rejected(invoke, given, text):
    shown = invoke("mock", EVERYTHING, *given)
    assert shown.exit_code == 2
    assert text in shown.stderr


def test_a_missing_recording_is_rejected(invoke, tmp_path):
    shown = invoke("mock", tmp_path / "missing")
    assert (shown.exit_code, "missing" in shown.stderr) == (2, True)


# `replay` and `mock` over WebSocket, Unix sockets and TCP.


WEATHER_RECORDING = RECORDINGS / "weather.mcprec.jsonl"
STATELESS = RECORDINGS / "tides.mcprec.jsonl"


@pytest.fixture
def at(serve, tmp_path):
    """Serve something some way; returns the URL."""

    return lambda way, served: serve(served, way=way, folder=tmp_path)


@pytest.mark.parametrize("way", CONNECTIONS)
@pytest.mark.parametrize("command", [("replay",), ("mock", "--as", "client")])
def test_mock_as_client_sends_recorded_requests_to_a_url(invoke, at, way, command):
    name, *options = command
    shown = invoke(name, WEATHER_RECORDING, *options, at(way, weather))
    assert shown.stdout.startswith("no differences, 6 of 6 requests answered")
    assert shown.exit_code == 0


@pytest.mark.parametrize("way", CONNECTIONS)
def test_a_difference_at_a_url_is_status_1(invoke, at, way, write):
    asked = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    path = write(("in", asked), ("out", {"jsonrpc": "2.0", "id": 1, "result": {"a": 1}}))
    shown = invoke("replay", path, at(way, mock_server(WEATHER_RECORDING)))
    assert "answer to ping" in shown.stdout
    assert shown.exit_code == 1


@pytest.mark.parametrize("way", CONNECTIONS)
@pytest.mark.parametrize("path", [WEATHER_RECORDING, STATELESS], ids=["legacy", "stateless"])
def test_a_replay_against_the_mock_has_no_differences(invoke, at, way, path):
    shown = invoke("replay", path, at(way, mock_server(path)))
    assert shown.stdout.startswith("no differences, ")
    assert shown.exit_code == 0


@pytest.mark.parametrize("way", ["http", *CONNECTIONS])
@pytest.mark.parametrize("command", [("replay",), ("mock", "--as", "client")])
def test_an_unreachable_url_is_reported_in_one_line(invoke, unused_url, way, command):
    name, *options = command
    shown = invoke(name, WEATHER_RECORDING, unused_url[way], *options)
    assert (shown.exit_code, shown.stderr.count("\n")) == (2, 1)
    assert shown.stderr.startswith(f"cannot connect to {unused_url[way]}: ")


@pytest.mark.parametrize("url", ["tcp://there", "ws://", "tcp://127.0.0.1:1/path"])
def test_an_invalid_url_is_rejected(invoke, url):
    shown = invoke("replay", WEATHER_RECORDING, url)
    assert shown.exit_code == 2
    assert "Error: the URL of a " in shown.stderr


def test_headers_are_sent_to_http_and_websocket_urls_only(invoke, serve, unused_url):
    guarded = serve(weather, way="websocket", token="sesame")
    shown = invoke("replay", WEATHER_RECORDING, guarded)
    assert (shown.exit_code, shown.stderr.count("\n")) == (2, 1)
    assert shown.stderr.endswith("--header 'Authorization: Bearer ${TOKEN}'\n")
    header = ("--header", "Authorization: Bearer sesame")
    assert invoke("replay", WEATHER_RECORDING, guarded, *header).exit_code == 0
    shown = invoke("replay", WEATHER_RECORDING, unused_url["tcp"], *header)
    assert (shown.exit_code, "--header needs a server" in shown.stderr) == (2, True)


@pytest.mark.parametrize("way", CONNECTIONS)
def test_the_mock_serves_until_a_signal(while_listening, tmp_path, way):
    path = tmp_path / "socket"
    place = ("--socket", path) if way == "unix" else ("--port", "0")
    given = ("mock", WEATHER_RECORDING, "--transport", way, *place, "--strict")
    shown, report = while_listening(functools.partial(replay_live, WEATHER_RECORDING), *given)
    assert report.summary == "no differences, 6 of 6 requests answered"
    assert (shown.exit_code, shown.stderr.count("\n")) == (128 + signal.SIGTERM, 1)
    assert shown.stderr.startswith("serving ")
    assert not path.exists()


def test_control_characters_of_a_client_are_escaped(while_listening):
    def use(url):
        host, _, port = url.removeprefix("tcp://").partition(":")
        with socket.create_connection((host, int(port)), timeout=10) as client:
            client.sendall(b'{"jsonrpc":"2.0","id":1,"method":"\\u001b[2J"}\n')
            return client.makefile().readline()

    shown, answer = while_listening(
        use, "mock", WEATHER_RECORDING, "--transport", "tcp", "--port", "0"
    )
    assert "was not recorded" in answer
    assert r"\x1b[2J " in shown.stderr
    assert "\x1b" not in shown.stderr


@pytest.mark.parametrize("way", CONNECTIONS)
def test_an_address_in_use_is_reported_in_one_line(invoke, tmp_path, way):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        path = tmp_path / "taken"
        path.write_text("no socket")
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        place = ("--socket", path) if way == "unix" else ("--port", where.partition(":")[2])
        shown = invoke("mock", WEATHER_RECORDING, "--transport", way, *place)
    assert (shown.exit_code, shown.stderr.count("\n")) == (2, 1)
    assert shown.stderr.startswith(f"cannot listen at {path if way == 'unix' else where}: ")


# Users of a recorded server with authentication.


@pytest.fixture
def two_users(tmp_path):
    return trio.run(record_two_users, tmp_path)


def toured(target, **options):
    async def main():
        async with Client(target, **options) as client:
            return await tour(client)

    return trio.run(main)


def test_the_mock_tells_users_apart_by_their_tokens(while_listening, two_users, monkeypatch):
    monkeypatch.setenv("TOKEN_OF_BEN", "other")
    users = ("--user", "ada=one", "--user", "ben=${TOKEN_OF_BEN}")

    def use(url):
        tokens = {"one": "ada", "other": "ben"}
        return {name: toured(url, auth=Bearer(token)) for token, name in tokens.items()}

    given = ("mock", two_users, "--transport", "http", "--port", "0", *users)
    shown, tours = while_listening(use, *given)
    assert tours == TOURS
    assert shown.exit_code == 128 + signal.SIGTERM


@pytest.mark.slow
@pytest.mark.parametrize("name", TOURS)
def test_the_mock_of_one_user_serves_over_stdio(two_users, name):
    assert toured([*MOCK, str(two_users), "--user", name]) == TOURS[name]


# `replay` and `mock` over HTTP.


HTTP = ("--transport", "http", "--port", "0")


# Replay over HTTP.


@pytest.mark.parametrize("given", [(), ("--inputs",)])
def test_replay_sends_the_recorded_requests_to_a_url(invoke, serve, given):
    shown = invoke("replay", WEATHER_RECORDING, serve(weather), *given)
    assert (shown.stdout, shown.exit_code) == ("no differences, 6 of 6 requests answered\n", 0)


def test_replay_sends_stateless_requests_to_a_url(invoke, serve):
    shown = invoke("replay", STATELESS, serve(mock_server(STATELESS)))
    assert shown.stdout.startswith("no differences, ")
    assert shown.exit_code == 0


def test_differences_at_a_url_are_printed_as_a_table(invoke, serve, write):
    listed = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    path = write(("in", listed), ("out", {"jsonrpc": "2.0", "id": 1, "result": {"a": 1}}))
    shown = invoke("replay", path, serve(mock_server(WEATHER_RECORDING)))
    assert "answer to ping" in shown.stdout
    assert shown.exit_code == 1
    as_json = invoke("replay", path, serve(mock_server(WEATHER_RECORDING)), "--json")
    assert {json.loads(line)["kind"] for line in as_json.stdout.splitlines()} == {"changed"}


@pytest.mark.parametrize("command", [("replay",), ("mock", "--as", "client")])
def test_a_url_that_needs_a_header_is_reported_in_one_line(invoke, serve, monkeypatch, command):
    name, *options = command

    async def verify(head):
        return "somebody" if head.header("x-key") == "k" else None

    monkeypatch.setattr(weather, "auth", verify)
    guarded = serve(weather)
    shown = invoke(name, WEATHER_RECORDING, guarded, *options)
    assert (shown.exit_code, shown.stderr.count("\n")) == (2, 1)
    assert shown.stderr.endswith("--header 'Authorization: Bearer ${TOKEN}'\n")
    assert invoke(name, WEATHER_RECORDING, guarded, *options, "--header", "X-Key: k").exit_code == 0


@pytest.mark.parametrize("command", [("replay",), ("mock", "--as", "client")])
def test_an_invalid_http_url_is_rejected(invoke, command):
    name, *options = command
    shown = invoke(name, WEATHER_RECORDING, "ftp://there/mcp", *options)
    assert shown.exit_code == 2
    assert "the URL of a server has to begin with http" in shown.stderr


def test_mock_as_client_sends_recorded_requests_to_an_http_url(invoke, serve):
    shown = invoke("mock", WEATHER_RECORDING, "--as", "client", serve(weather))
    assert shown.stdout.startswith("no differences, 6 of 6 requests answered")
    assert shown.exit_code == 0


# Mocks over HTTP.


async def call_unrecorded(url):
    async with Client(url) as client:
        with pytest.raises(RequestError, match="this is a mock: tools/call"):
            await client.call_tool("forecast", {"city": "Oslo", "days": 1})
        return [tool.name for tool in await client.list_tools()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_mock_serves_http_until_a_signal(while_listening, number):
    use = functools.partial(trio.run, call_unrecorded)
    shown, names = while_listening(use, "mock", WEATHER_RECORDING, *HTTP, number=number)
    assert "forecast" in names
    assert shown.exit_code == 128 + number
    serving, unrecorded = shown.stderr.splitlines()
    assert serving.startswith("serving http://127.0.0.1:")
    assert unrecorded.startswith('tools/call {"name":"forecast"')
    assert "was not recorded; closest recorded requests: record" in unrecorded


def test_a_strict_mock_over_http_reports_missing_requests(while_listening):
    shown, _ = while_listening(str, "mock", WEATHER_RECORDING, *HTTP, "--strict")
    assert shown.exit_code == 1
    assert "not requested: tools/call" in shown.stderr


@pytest.mark.parametrize("way", ["http", "websocket"])
def test_a_mock_can_require_a_token(while_listening, way):
    def use(url):
        with pytest.raises(ConnectionLost, match="401"):
            replay_live(WEATHER_RECORDING, url)
        return replay_live(
            WEATHER_RECORDING, url, headers={"Authorization": "Bearer sesame"}
        ).summary

    options = ("--transport", way, "--port", "0", "--token", "sesame")
    _, summary = while_listening(use, "mock", WEATHER_RECORDING, *options)
    assert summary == "no differences, 6 of 6 requests answered"


def test_a_port_in_use_is_reported_in_one_line(invoke):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        shown = invoke("mock", WEATHER_RECORDING, "--transport", "http", "--port", port)
    assert shown.exit_code == 2
    advice = "the port is in use: choose another one, or 0 for any free one"
    assert shown.stderr == f"cannot listen at 127.0.0.1:{port}: {advice}\n"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (("--port", "0"), "--port cannot be used with stdio"),
        (("--host", "::1", "--transport", "stdio"), "--host cannot be used with stdio"),
        (
            ("--as", "client", "--transport", "http", "http://a"),
            "--transport cannot be used with --as",
        ),
        (("--as", "client", "--port", "0", "http://a"), "--port cannot be used with --as client"),
        (
            ("--as", "client", "--socket", "s", "http://a"),
            "--socket cannot be used with --as client",
        ),
        (("--transport", "unix"), "unix needs --socket PATH"),
        (("--transport", "tcp", "--host", "0.0.0.0"), "add --open to allow that"),
        (("--transport", "websocket", "--open"), "--open cannot be used with websocket"),
        (
            ("--transport", "websocket", "--allow-cors"),
            "--allow-cors cannot be used with websocket",
        ),
        (
            ("--transport", "unix", "--socket", "s", "--token", "t"),
            "--token cannot be used with unix",
        ),
        (
            ("--as", "client", "--allow-host", "h", "http://a"),
            "--allow-host cannot be used with --as",
        ),
        (("--transport", "http", "--token", "a b"), "visible ASCII"),
        (("--header", "X: 1"), "TARGET, URL, COMMAND and --header need --as client"),
    ],
)
def test_options_that_do_not_fit_the_transport_are_rejected(invoke, given, text):
    shown = invoke("mock", WEATHER_RECORDING, *given)
    assert shown.exit_code == 2
    assert text in shown.stderr


# All divergences, and stops.

SHOP = """
import trio
from mcp_trio import Context, Server, effect

server = Server("shop")
print("imported")

@effect
async def price_of(item: str) -> int:
    await trio.sleep(0.001)
    return len(item)

@server.tool
async def buy(item: str, *, ctx: Context) -> int:
    print("printed")
    price = await price_of(item)
    await ctx.report_progress(1)
    return price

@server.tool
async def tip(seconds: float = 0) -> int:
    await trio.sleep(seconds)
    return 1
"""

DEARER = SHOP.replace("return price\n", "return price + 1\n")
FAILING = SHOP.replace("return price\n", "raise KeyError(item)\n")


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """A recording of four calls, its server, and a server with a change."""
    folder = tmp_path_factory.mktemp("shop")
    path = folder / "shop.mcprec.jsonl"
    (folder / "shop.py").write_text(SHOP)
    (folder / "dearer.py").write_text(DEARER)

    @attrs.frozen
    class Recorded:
        path: Path

        async def serve(self, channel):
            with fresh_server(str(folder / "shop.py")) as server:
                await server.serve(channel, record=self.path)

    async def call_tools():
        async with Client(Recorded(path)) as client:
            for item in ("tea", "rice"):
                await client.call_tool("buy", {"item": item})
                await client.call_tool("tip", {})
        (folder / "other").mkdir()
        together = Recorded(folder / "other" / "together.jsonl")
        async with Client(together) as client, trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "tip", {"seconds": 0.05})
            nursery.start_soon(client.call_tool, "buy", {"item": "tea"})
        return together.path

    together = trio.run(call_tools, clock=TickClock())
    target, dearer = folder / "shop.py", folder / "dearer.py"
    return SimpleNamespace(path=path, together=together, target=target, dearer=dearer)


def records_of(path, kind, lane=None):
    """Return the numbers of the records of a kind, in a lane or in those of all requests."""
    return [
        record["n"]
        for record in map(json.loads, path.read_bytes().splitlines())
        if record["k"] == kind and (record.get("l") == lane if lane else "l" in record)
    ]


def test_a_sweep_logs_the_errors_of_handlers_for_the_recorded_order_only(shop, tmp_path):
    (tmp_path / "failing.py").write_text(FAILING)
    command = [sys.executable, "-m", "mcp_trio", "sweep", shop.together, tmp_path / "failing.py"]
    options = ["--schedules", "8", "--json"]
    shown = subprocess.run([*command, *options], capture_output=True, check=False, text=True)
    assert json.loads(shown.stdout)["schedules"] == 8
    assert shown.stderr.count("the handler of tools/call 'buy' failed: KeyError") == 1


def test_all_divergences_are_printed(invoke, shop):
    shown = invoke("replay", shop.path, shop.dearer, "--all")
    assert (shown.exit_code, shown.stdout) == (1, "")
    lines = [line for line in shown.stderr.splitlines() if line not in {"imported", "printed"}]
    first, _, second, _ = records_of(shop.path, "out")
    assert lines[0] == "2 divergences in 2 requests, in 1 way"
    assert lines[2].startswith(f"replay diverged at record {first} of ")
    assert any(line.startswith(f"  also at:   record {second} of ") for line in lines)


def test_divergences_can_be_printed_as_json(invoke, shop):
    shown = invoke("replay", shop.path, shop.dearer, "--json", "--all")
    assert shown.exit_code == 1
    objects = list(map(json.loads, shown.stdout.splitlines()))
    first, _, second, _ = records_of(shop.path, "out")
    assert [(each["record"], each["kind"]) for each in objects] == [
        (first, "message"),
        (second, "message"),
    ]
    assert objects[0].keys() >= {"lane", "recorded", "replayed", "causes", "follows", "suspended"}
    alone = invoke("replay", shop.path, shop.dearer, "--json")
    assert [json.loads(line)["record"] for line in alone.stdout.splitlines()] == [first]
    same = invoke("replay", shop.path, shop.target, "--json", "--all")
    assert (same.exit_code, same.stdout) == (0, "")


def test_all_divergences_of_several_recordings_are_printed_below_the_table(invoke, shop):
    shown = invoke("replay", shop.path, shop.path.parent, shop.dearer, "--all")
    assert shown.exit_code == 1
    assert "2 divergences in 2 requests" in shown.stdout


READING_AT_IMPORT = """
import time
from mcp_trio import Server
server = Server("clock", version="1")
STARTED = time.time_ns()

@server.tool
def started() -> int:
    return STARTED
"""


def test_a_clock_that_the_module_of_the_server_has_read_is_named_as_the_cause(invoke, tmp_path):
    target, path = tmp_path / "clock.py", tmp_path / "clock.mcprec.jsonl"
    target.write_text(READING_AT_IMPORT)

    class Recorded:
        async def serve(self, channel):
            await import_server(str(target)).serve(channel, record=path)

    async def call_tool():
        async with Client(Recorded()) as client:
            await client.call_tool("started")

    trio.run(call_tool)
    call = "time.time_ns() at clock.py:5, when the module was imported: use the lifespan"
    shown = invoke("replay", path, target)
    assert shown.exit_code == 1
    assert f"a call that is not recorded: {call}" in shown.stderr
    many = "".join(f"V{number} = time.monotonic()\n" for number in range(6))
    target.write_text(READING_AT_IMPORT.replace("STARTED = ", many + "STARTED = "))
    shown = invoke("replay", path, target)
    calls = ", ".join(f"time.monotonic() at clock.py:{line}" for line in range(5, 10))
    assert f"calls that are not recorded: {calls} and 2 more, when the module" in shown.stderr


@pytest.mark.parametrize(("count", "text"), [(1, "1 request"), (2, "2 requests")])
def test_the_report_counts_the_requests(count, text):
    report = ReplayReport(records=9, requests=count, is_complete=True, recorded_seconds=1, notes=())
    assert f": 9 records, {text} handled\n" in replay_summary(report, 0.1)


def test_output_of_handlers_is_not_in_the_report(invoke, shop):
    shown = invoke("replay", shop.path, shop.target)
    assert shown.exit_code == 0
    assert shown.stdout.startswith("the same, byte for byte")
    assert shown.stderr.splitlines() == ["imported", "printed", "printed"]


def test_the_state_at_a_record_is_printed(invoke, shop):
    place = records_of(shop.path, "res")[0]
    shown = invoke("replay", shop.path, shop.target, "--until", str(place))
    assert shown.exit_code == 0
    lines = shown.stdout.splitlines()
    assert lines[0].startswith(f"stopped at record {place} of ")
    assert "  recorded:  res   3" in lines
    assert lines[2].endswith("(for its turn): price = await price_of(item)")
    assert "the same" not in shown.stdout


def test_a_divergence_before_the_record_is_the_result(invoke, shop):
    first, *_, last = records_of(shop.path, "out")
    shown = invoke("replay", shop.path, shop.dearer, "--until", str(last))
    assert (shown.exit_code, shown.stdout) == (1, "")
    assert f"replay diverged at record {first} of " in shown.stderr


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (("--until", "999"), "shop.mcprec.jsonl: there is no record 999: the last one is record "),
        (("--break", "1"), "no handler makes record 1, so that a debugger has no task: the next"),
        (("--until", "x"), "'x' is not a valid integer"),
        (("--until", "5", "--break", "5"), "--break cannot be used with --until"),
        (("--until", "5", "--mode", "outbound"), "--mode cannot be used with --until"),
        (("--break", "5", "--all"), "--all cannot be used with --break"),
        (("--break", "5", "--repeat", "2"), "--repeat cannot be used with --break"),
        (("--json", "--repeat", "2"), "--json cannot be used with a replay of several recordings"),
        (("--all", "--inputs"), "--all cannot be used with a live server"),
    ],
)
def test_stops_that_make_no_sense_are_rejected(invoke, shop, given, text):
    shown = invoke("replay", shop.path, shop.target, *given)
    assert (shown.exit_code, text in shown.stderr) == (2, True)


def test_a_url_takes_no_stop(invoke, shop):
    for given in (["--until", "5"], ["--break", "5"], ["--all"]):
        shown = invoke("replay", shop.path, "http://127.0.0.1:1/mcp", *given)
        assert shown.exit_code == 2
        assert f"{given[0]} cannot be used with a live server" in shown.stderr


def test_several_recordings_take_no_stop(invoke, shop):
    shown = invoke("replay", shop.path, shop.path, shop.target, "--until", "5")
    assert shown.exit_code == 2
    assert "--until takes one FILE" in shown.stderr


def debug(shop, place, *commands, path=None, **variables):
    """Replay with a debugger at a record, which gets these commands; click's runner patches pdb."""
    command = [sys.executable, "-m", "mcp_trio", "replay", path or shop.path, shop.target]
    return subprocess.run(
        list(map(str, [*command, "--break", place])),
        check=False,
        capture_output=True,
        text=True,
        input="".join(f"{each}\n" for each in commands),
        env=os.environ | {"HOME": "/nonexistent", "PYTHONBREAKPOINT": ""} | variables,
        timeout=60,
    )


@pytest.mark.slow
def test_a_debugger_opens_in_the_frame_of_the_users_code(shop):
    place = records_of(shop.path, "res")[0]
    shown = debug(shop, place, "p item * 2", "next", "p price + 4", "c")
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert lines[0].startswith(f"stopped at record {place} of ")
    assert "-> price = await price_of(item)" in lines
    assert "(Pdb) 'teatea'" in lines
    assert "-> await ctx.report_progress(1)" in lines
    assert "(Pdb) 7" in lines
    assert lines[-2].startswith("(Pdb) the same, byte for byte")
    assert shown.stderr.splitlines() == ["imported", "printed", "printed"]


def test_a_debugger_opens_at_the_call_that_makes_the_record(shop):
    shown = debug(shop, records_of(shop.path, "cmd")[1], "p item", "where", "c")
    assert "(Pdb) 'rice'" in shown.stdout.splitlines()
    assert f"> {shop.target}(" in shown.stdout
    assert "session_replay" not in shown.stdout


def step_of(path):
    return next(r["n"] for r in map(json.loads, path.read_bytes().splitlines()) if r["k"] == "step")


@measured
def test_a_debugger_opens_at_the_first_line_of_a_handler_and_steps_over_its_wait(shop):
    shown = debug(shop, step_of(shop.together), "next", "c", path=shop.together)
    assert shown.returncode == 0
    lines = shown.stdout.splitlines()
    assert lines.index("-> await trio.sleep(seconds)") < lines.index("-> return 1")
    assert "StopIteration" not in shown.stdout  # the other handler ends meanwhile
    assert "the same, byte for byte" in shown.stdout


@pytest.mark.slow
def test_an_expression_in_a_debugger_takes_no_part_in_the_replay(shop):
    calls = ("import time, random, os", "p time.time() > 9", "p random.random() < 1")
    shown = debug(shop, records_of(shop.path, "res")[0], *calls, "p os.environ['HOME']", "c")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.count("(Pdb) True") == 2
    assert "the same, byte for byte" in shown.stdout
    assert "untracked" not in shown.stdout


@pytest.mark.parametrize(
    "commands", [("q",), pytest.param(("next", "q"), marks=pytest.mark.slow), ()]
)
@measured
def test_the_replay_ends_with_the_debugger(shop, commands):
    shown = debug(shop, records_of(shop.path, "res")[0], *commands)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.splitlines()[-1].endswith("the replay was ended in the debugger")
    assert "Traceback" not in shown.stderr


@pytest.mark.slow
def test_another_debugger_is_called_in_the_task(shop, tmp_path):
    (tmp_path / "other_debugger.py").write_text("""
import sys
import trio

def enter():
    frame = sys._getframe(1)
    while frame.f_code.co_name != "buy":
        frame = frame.f_back
    print("entered in", frame.f_locals["item"], trio.lowlevel.current_task().name)
""")
    folders = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    variables = {"PYTHONBREAKPOINT": "other_debugger.enter", "PYTHONPATH": folders}
    shown = debug(shop, records_of(shop.path, "cmd")[0], **variables)
    assert shown.returncode == 0
    assert "entered in tea mcp_trio." in shown.stdout
    disabled = debug(shop, records_of(shop.path, "cmd")[0], PYTHONBREAKPOINT="0")
    assert "the same, byte for byte" in disabled.stdout


@pytest.mark.slow
def test_a_debugger_has_the_terminal(shop):
    ours, theirs = pty.openpty()
    os.write(ours, b"p item\nc\n")
    place = records_of(shop.path, "res")[0]
    command = [sys.executable, "-m", "mcp_trio", "replay", shop.path, shop.target]
    environment = os.environ | {"TERM": "dumb", "HOME": "/nonexistent"}
    environment.pop("PYTHONBREAKPOINT", None)
    done = subprocess.run(
        list(map(str, [*command, "--break", place])),
        check=False,
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.PIPE,
        env=environment,
        timeout=60,
    )
    shown = os.read(ours, 65536).decode()
    os.close(theirs)
    os.close(ours)
    assert (done.returncode, done.stderr.splitlines()[:1]) == (0, [b"imported"])
    assert "'tea'" in shown
    assert "the same, byte for byte" in shown


# `mcp-trio replay DIR --where` sums up by cause; `mcp-trio test` writes a test that keeps one.

STORE = """
from mcp_trio import Server

server = Server("store")
PREFIX = "sold"


@server.tool
async def sell(item: str) -> str:
    return f"{PREFIX} {item}"


@server.tool
async def count() -> int:
    return 3
"""


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A folder with a server and five recordings of it: three of `sell`, two of `count`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "store.py").write_text(STORE)
    recordings = tmp_path / "recordings"
    recordings.mkdir()

    async def main():
        server: Server = import_server("store.py")
        server.record = RecordOptions(recordings)
        for calls in (["sell"], ["sell"], ["count"], ["sell", "count"], ["count"]):
            async with Client(server) as client:
                for number, tool in enumerate(calls):
                    arguments = {"item": f"pen{number}"} if tool == "sell" else {}
                    await client.call_tool(tool, arguments)

    trio.run(main)
    return tmp_path


def sale(store):
    """A recording of `sell`."""
    paths = (store / "recordings").iterdir()
    return next(path for path in paths if b'"name":"sell"' in path.read_bytes())


def change(store):
    text = (store / "store.py").read_text()
    (store / "store.py").write_text(text.replace('"sold"', '"gone:"'))


def test_recordings_that_replay_the_same_are_counted(invoke, store):
    shown = invoke("replay", "recordings", "store.py", "--where", "tool:sell", "--jobs", "1")
    assert shown.exit_code == 0
    assert shown.output == "3 of 3 recordings replay the same, with 4 requests\n"


def test_differences_are_summed_up_by_cause(invoke, store):
    change(store)
    options = ("--junit", "junit.xml", "--markdown", "pr.md", "--jobs", "2")
    shown = invoke("replay", "recordings", "store.py", "--where", "", *options)
    assert shown.exit_code == 1
    assert "2 of 5 recordings replay the same, with 2 requests; the others have one cause" in (
        shown.output
    )
    assert 'tools/call "sell"; in sell at' in shown.output
    assert "changed: $.result.content[0].text" in shown.output
    suite = ET.parse("junit.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("5", "3", "0")
    assert len(suite.findall("testcase/failure")) == 3
    report = (store / "pr.md").read_text()
    assert '| 3 | tools/call "sell"; in sell' in report
    assert "replay diverged at record" in report
    shown = invoke("replay", "recordings", "store.py", "--where", "", "--json")
    statuses = [json.loads(line)["status"] for line in shown.output.splitlines()]
    assert sorted(statuses) == ["diverged", "diverged", "diverged", "same", "same"]


@pytest.mark.skipif(sys.platform != "linux", reason="file names are Unicode elsewhere")
def test_a_file_name_that_is_not_utf8_is_reported_in_each_format(invoke, store):
    change(store)
    sale(store).rename(os.fsdecode(b"recordings/\xff\x01.mcprec.jsonl"))
    options = ("--jobs", "1", "--junit", "junit.xml", "--markdown", "pr.md", "--json")
    shown = invoke("replay", "recordings", "store.py", *options)
    assert shown.exit_code == 1, shown.output
    files = [json.loads(line)["file"] for line in shown.stdout.splitlines()]
    assert "recordings/\\udcff\x01.mcprec.jsonl" in files
    cases = ET.parse("junit.xml").getroot().findall("testcase")
    assert "recordings/��.mcprec.jsonl" in [case.get("name") for case in cases]
    assert "- `recordings/\\udcff\x01.mcprec.jsonl`" in (store / "pr.md").read_text()


def test_recordings_that_stdin_names_are_summed_up_by_cause(invoke, store):
    change(store)
    rows = invoke("find", "recordings", "tool:sell", "--json").output
    shown = invoke("replay", "-", "store.py", "--markdown", "pr.md", input=rows)
    assert shown.exit_code == 1
    assert "0 of 3 recordings replay the same" in shown.output
    (command,) = (line for line in shown.output.splitlines() if "mcp-trio replay" in line)
    assert command.split()[-1] == "store.py"
    assert (store / "pr.md").read_text().startswith("### Replay of recordings\n")
    row = json.loads(rows.splitlines()[0])
    clients = json.dumps(row | {"role": "client"})
    for stdin in ("", clients):
        assert invoke("replay", "-", "store.py", input=stdin).exit_code == 1


def test_files_and_folders_are_replayed_in_parallel_for_a_report(invoke, store):
    one = f"recordings/{sale(store).name}"
    shown = invoke("replay", "recordings", one, "store.py", "--junit", "junit.xml")
    assert shown.output.startswith("5 of 5 recordings replay the same")
    assert len(ET.parse("junit.xml").getroot().findall("testcase")) == 5


def test_a_damaged_recording_is_an_error_of_its_own(invoke, store):
    path = sale(store)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], *lines[4:]]))
    shown = invoke(
        "replay",
        "recordings",
        "store.py",
        "--where",
        "tool:sell",
        "--junit",
        "junit.xml",
    )
    assert shown.exit_code == 1
    assert "unusable" in shown.output
    assert len(ET.parse("junit.xml").getroot().findall("testcase/error")) == 1


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (
            ["recordings", "store.py", "--where", "tool:none"],
            1,
            "no recording of a server matches",
        ),
        (
            ["recordings", "store.py", "--where", "role:client"],
            1,
            "no recording of a server",
        ),
        (
            ["recordings", "store.py", "--where", 'tool:"x'],
            2,
            "query at 'tool:\"x': write",
        ),
        (["recordings", "store.py", "--where", "tol:x"], 2, "unknown key"),
        (["recordings", "none.py", "--where", "tool:sell"], 2, "none.py"),
        (
            ["store.py", "store.py", "--where", "tool:sell"],
            2,
            "takes one folder and a TARGET",
        ),
        (
            ["recordings", "store.py", "--where", "", "--repeat", "2"],
            2,
            "--repeat cannot be used with a replay in parallel",
        ),
        (
            ["recordings", "store.py", "--where", "", "--until", "0"],
            2,
            "--until cannot be used with a replay in parallel",
        ),
        (
            ["recordings", "store.py", "--where", "", "--channel", "0"],
            2,
            "--channel cannot be used with a replay in parallel",
        ),
        (
            ["recordings", "http://127.0.0.1:1/mcp", "--junit", "x"],
            2,
            "--junit cannot be used with a live server",
        ),
        (["recordings", "--junit", "x"], 2, "name a TARGET"),
        (["-", "store.py", "--repeat", "2"], 2, "--repeat cannot be used with a replay in"),
        (
            ["recordings", "store.py", "--where", "", "--junit", "no/x"],
            2,
            "cannot write no/x",
        ),
    ],
)
def test_what_cannot_be_replayed_is_reported(invoke, store, arguments, status, text):
    shown = invoke("replay", *arguments)
    assert (shown.exit_code, text in shown.output) == (status, True)


@pytest.mark.parametrize("options", [(), ("--repeat", "1"), ("--where", "")])
def test_each_way_to_replay_reports_a_target_that_cannot_be_imported_alike(invoke, store, options):
    shown = invoke("replay", "recordings", "none.py", *options)
    assert (shown.exit_code, shown.stderr) == (2, "Error: none.py: no such file\n")


def test_no_recordings_have_no_outcomes(store):
    assert list(replay_in_parallel([], "store.py")) == []


def test_an_error_that_is_no_divergence_is_its_own_cause():
    assert cause_of(ValueError("odd")) == "odd"


def run_tests(folder):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder)


def test_the_written_test_replays_the_recording_and_fails_when_the_code_changes(invoke, store):
    path = sale(store)
    shown = invoke("test", str(path), "store.py", "-o", "tests/test_sale.py")
    assert shown.exit_code == 0, shown.output
    assert "the recording is not redacted: look for secrets" in shown.stderr
    assert "def test_sale(mcp_replay):" in (store / "tests" / "test_sale.py").read_text()
    copy = store / "tests" / "recordings" / path.name
    assert copy.read_bytes() == path.read_bytes()
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600  # as that of the recording
    done = run_tests(store)
    assert (done.returncode, "1 passed" in done.stdout) == (0, True), done.stdout
    change(store)
    assert run_tests(store).returncode == 1


@pytest.mark.parametrize("target", ["./desk.py", "desk.py:make", "desk", "desk:desk"])
def test_a_written_test_finds_a_server_as_other_commands_do(invoke, store, target):
    code = (
        (store / "store.py").read_text().replace("server =", "desk =").replace("@server", "@desk")
    )
    (store / "desk.py").write_text(f"{code}\n\ndef make():\n    return desk\n")
    path = sale(store).rename(os.fsdecode(b"recordings/'\"caf\xe9.mcprec.jsonl"))
    shown = invoke("test", str(path), target)
    assert shown.exit_code == 0, shown.output
    done = run_tests(store)
    assert (done.returncode, "1 passed" in done.stdout) == (0, True), done.stdout


def test_a_test_never_replaces_a_file_unless_asked(invoke, store):
    path = sale(store)
    assert invoke("test", str(path), "store:server").exit_code == 0
    shown = invoke("test", str(path), "store:server")
    assert (shown.exit_code, "exists" in shown.output) == (2, True)
    assert invoke("test", str(path), "store:server", "--overwrite").exit_code == 0
    assert invoke("test", str(path), "my-store.py").exit_code == 2
    assert invoke("test", "store.py", "store.py").exit_code == 2


def test_a_recording_that_lies_beside_its_test_already_stays_there(invoke, store):
    path = sale(store)
    kept = store / "tests" / "recordings" / path.name
    kept.parent.mkdir(parents=True)
    path.rename(kept)
    before = kept.read_bytes()
    for options in ((), ("--overwrite",)):
        shown = invoke("test", str(kept), "store.py", "-o", "tests/test_sale.py", *options)
        assert shown.exit_code == 0, shown.output
    assert kept.read_bytes() == before
