"""`replay` and `mock` at URLs: what is printed, and the statuses."""

import functools
import json
import signal
import socket
from pathlib import Path

import pytest
import trio

from mcp_trio import Client, ConnectionLost, RequestError
from mcp_trio.examples.weather import server as weather
from mcp_trio.recording import drive
from mcp_trio.testing import mock_server

RECORDINGS = Path(__file__).parents[2] / "recordings"
WEATHER = RECORDINGS / "weather.mcprec.jsonl"
STATELESS = RECORDINGS / "tides.mcprec.jsonl"
HTTP = ("--transport", "http", "--port", "0")


@pytest.fixture
def nobody():
    """A URL where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    return f"http://127.0.0.1:{port}/mcp"


# Replay.


@pytest.mark.parametrize("given", [(), ("--inputs",)])
def test_a_url_is_asked_what_a_recorded_client_asked(invoke, serve, given):
    shown = invoke("replay", WEATHER, serve(weather), *given)
    assert (shown.stdout, shown.exit_code) == ("no differences, 6 of 6 requests answered\n", 0)


def test_a_stateless_recording_is_asked_again_too(invoke, serve):
    shown = invoke("replay", STATELESS, serve(mock_server(STATELESS)))
    assert shown.stdout.startswith("no differences, ")
    assert shown.exit_code == 0


def test_what_differs_at_a_url_is_a_table(invoke, serve, write):
    listed = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    path = write(("in", listed), ("out", {"jsonrpc": "2.0", "id": 1, "result": {"a": 1}}))
    shown = invoke("replay", path, serve(mock_server(WEATHER)))
    assert "answer to ping" in shown.stdout
    assert shown.exit_code == 1
    as_json = invoke("replay", path, serve(mock_server(WEATHER)), "--json")
    assert {json.loads(line)["kind"] for line in as_json.stdout.splitlines()} == {"changed"}


@pytest.mark.parametrize("command", [("replay",), ("mock", "--as", "client")])
def test_a_url_that_cannot_be_asked_is_told_in_a_line(invoke, serve, nobody, command):
    name, *options = command
    shown = invoke(name, WEATHER, nobody, *options)
    assert (shown.exit_code, shown.stderr.count("\n")) == (2, 1)
    assert shown.stderr.startswith(f"cannot connect to {nobody}: ")

    async def verify(head):
        return "somebody" if head.header("x-key") == "k" else None

    guarded = serve(weather, verify=verify)
    shown = invoke(name, WEATHER, guarded, *options)
    assert (shown.exit_code, shown.stderr.count("\n")) == (2, 1)
    assert shown.stderr.endswith("(--header)\n")
    assert invoke(name, WEATHER, guarded, *options, "--header", "X-Key: k").exit_code == 0


@pytest.mark.parametrize("command", [("replay",), ("mock", "--as", "client")])
def test_what_is_no_url_of_http_is_rejected(invoke, command):
    name, *options = command
    shown = invoke(name, WEATHER, "ftp://there/mcp", *options)
    assert shown.exit_code == 2
    assert "the URL of a server begins with http" in shown.stderr


def test_a_recorded_client_talks_to_a_url(invoke, serve):
    shown = invoke("mock", WEATHER, "--as", "client", serve(weather))
    assert shown.stdout.startswith("no differences, 6 of 6 requests answered")
    assert shown.exit_code == 0


# Mock.


async def call(url):
    async with Client(url) as client:
        with pytest.raises(RequestError, match="this is a mock: tools/call"):
            await client.call_tool("forecast", {"city": "Oslo", "days": 1})
        return [tool.name for tool in await client.list_tools()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_recorded_server_is_served_over_http_until_a_signal_comes(while_listening, number):
    use = functools.partial(trio.run, call)
    shown, names = while_listening(use, "mock", WEATHER, *HTTP, number=number)
    assert "forecast" in names
    assert shown.exit_code == 128 + number
    serving, told = shown.stderr.splitlines()
    assert serving.startswith("serving http://127.0.0.1:")
    assert told.startswith('tools/call {"name":"forecast"')
    assert "was not recorded; closest recorded requests: record" in told


def test_a_strict_mock_over_http_tells_what_was_not_asked(while_listening):
    shown, _ = while_listening(str, "mock", WEATHER, *HTTP, "--strict")
    assert shown.exit_code == 1
    assert "not requested: tools/call" in shown.stderr


@pytest.mark.parametrize("way", ["http", "websocket"])
def test_a_mock_is_for_who_brings_the_token(while_listening, way):
    def use(url):
        with pytest.raises(ConnectionLost, match="401"):
            drive(WEATHER, url)
        return drive(WEATHER, url, headers={"Authorization": "Bearer sesame"}).summary

    place = ("--transport", way, "--port", "0", "--token", "sesame")
    _, summary = while_listening(use, "mock", WEATHER, *place)
    assert summary == "no differences, 6 of 6 requests answered"


def test_a_port_that_is_taken_is_told_in_a_line(invoke):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        shown = invoke("mock", WEATHER, "--transport", "http", "--port", port)
    assert shown.exit_code == 2
    assert shown.stderr == f"cannot listen at 127.0.0.1:{port}: Address already in use\n"


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
def test_what_does_not_go_together_is_rejected(invoke, given, text):
    shown = invoke("mock", WEATHER, *given)
    assert shown.exit_code == 2
    assert text in shown.stderr
