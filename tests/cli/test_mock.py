"""`mcp-trio mock` over stdio."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

EVERYTHING = Path(__file__).parents[2] / "recordings" / "everything-our-client.mcprec.jsonl"
MOCK = [sys.executable, "-m", "mcp_trio", "mock"]
ODD = [sys.executable, str(Path(__file__).with_name("odd_server.py"))]
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
    ],
)
def test_contradictory_options_are_rejected(invoke, given, text):
    shown = invoke("mock", EVERYTHING, *given)
    assert shown.exit_code == 2
    assert text in shown.stderr


def test_a_missing_recording_is_rejected(invoke, tmp_path):
    shown = invoke("mock", tmp_path / "missing")
    assert (shown.exit_code, "missing" in shown.stderr) == (2, True)
