"""`mcp-trio replay` and `mock` over connections: HTTP, WebSocket, Unix sockets and TCP."""

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
from tests.ways import CONNECTIONS

# WebSocket, Unix sockets and TCP.


RECORDINGS = Path(__file__).parents[2] / "recordings"
WEATHER = RECORDINGS / "weather.mcprec.jsonl"
STATELESS = RECORDINGS / "tides.mcprec.jsonl"


@pytest.fixture
def at(serve, tmp_path):
    """Serve something some way; returns the URL."""

    return lambda way, served: serve(served, way=way, folder=tmp_path)


@pytest.mark.parametrize("way", CONNECTIONS)
@pytest.mark.parametrize("command", [("replay",), ("mock", "--as", "client")])
def test_mock_as_client_sends_recorded_requests_to_a_url(invoke, at, way, command):
    name, *options = command
    shown = invoke(name, WEATHER, *options, at(way, weather))
    assert shown.stdout.startswith("no differences, 6 of 6 requests answered")
    assert shown.exit_code == 0


@pytest.mark.parametrize("way", CONNECTIONS)
def test_a_difference_at_a_url_is_status_1(invoke, at, way, write):
    asked = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    path = write(("in", asked), ("out", {"jsonrpc": "2.0", "id": 1, "result": {"a": 1}}))
    shown = invoke("replay", path, at(way, mock_server(WEATHER)))
    assert "answer to ping" in shown.stdout
    assert shown.exit_code == 1


@pytest.mark.parametrize("way", CONNECTIONS)
@pytest.mark.parametrize("path", [WEATHER, STATELESS], ids=["legacy", "stateless"])
def test_a_replay_against_the_mock_has_no_differences(invoke, at, way, path):
    shown = invoke("replay", path, at(way, mock_server(path)))
    assert shown.stdout.startswith("no differences, ")
    assert shown.exit_code == 0


@pytest.fixture
def unused_url(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    return {
        "websocket": f"ws://127.0.0.1:{port}/ws",
        "unix": f"unix:{tmp_path}/no-such-socket",
        "tcp": f"tcp://127.0.0.1:{port}",
    }


@pytest.mark.parametrize("way", CONNECTIONS)
@pytest.mark.parametrize("command", [("replay",), ("mock", "--as", "client")])
def test_an_unreachable_url_is_reported_in_one_line(invoke, unused_url, way, command):
    name, *options = command
    shown = invoke(name, WEATHER, unused_url[way], *options)
    assert (shown.exit_code, shown.stderr.count("\n")) == (2, 1)
    assert shown.stderr.startswith(f"cannot connect to {unused_url[way]}: ")


@pytest.mark.parametrize("url", ["tcp://there", "ws://", "tcp://127.0.0.1:1/path"])
def test_an_invalid_url_is_rejected(invoke, url):
    shown = invoke("replay", WEATHER, url)
    assert shown.exit_code == 2
    assert "Error: the URL of a " in shown.stderr


def test_headers_are_sent_to_http_and_websocket_urls_only(invoke, serve, unused_url):
    guarded = serve(weather, way="websocket", token="sesame")
    shown = invoke("replay", WEATHER, guarded)
    assert (shown.exit_code, shown.stderr.count("\n")) == (2, 1)
    assert shown.stderr.endswith("(--header)\n")
    header = ("--header", "Authorization: Bearer sesame")
    assert invoke("replay", WEATHER, guarded, *header).exit_code == 0
    shown = invoke("replay", WEATHER, unused_url["tcp"], *header)
    assert (shown.exit_code, "--header needs a server" in shown.stderr) == (2, True)


@pytest.mark.parametrize("way", CONNECTIONS)
def test_the_mock_serves_until_a_signal(while_listening, tmp_path, way):
    path = tmp_path / "socket"
    place = ("--socket", path) if way == "unix" else ("--port", "0")
    given = ("mock", WEATHER, "--transport", way, *place, "--strict")
    shown, report = while_listening(functools.partial(drive, WEATHER), *given)
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

    shown, answer = while_listening(use, "mock", WEATHER, "--transport", "tcp", "--port", "0")
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
        shown = invoke("mock", WEATHER, "--transport", way, *place)
    assert (shown.exit_code, shown.stderr.count("\n")) == (2, 1)
    assert shown.stderr.startswith(f"cannot listen at {path if way == 'unix' else where}: ")


# HTTP.


HTTP = ("--transport", "http", "--port", "0")


@pytest.fixture
def unused_http_url():
    """A URL where no server listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    return f"http://127.0.0.1:{port}/mcp"


# Replay.


@pytest.mark.parametrize("given", [(), ("--inputs",)])
def test_replay_sends_the_recorded_requests_to_a_url(invoke, serve, given):
    shown = invoke("replay", WEATHER, serve(weather), *given)
    assert (shown.stdout, shown.exit_code) == ("no differences, 6 of 6 requests answered\n", 0)


def test_replay_sends_stateless_requests_to_a_url(invoke, serve):
    shown = invoke("replay", STATELESS, serve(mock_server(STATELESS)))
    assert shown.stdout.startswith("no differences, ")
    assert shown.exit_code == 0


def test_differences_at_a_url_are_printed_as_a_table(invoke, serve, write):
    listed = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    path = write(("in", listed), ("out", {"jsonrpc": "2.0", "id": 1, "result": {"a": 1}}))
    shown = invoke("replay", path, serve(mock_server(WEATHER)))
    assert "answer to ping" in shown.stdout
    assert shown.exit_code == 1
    as_json = invoke("replay", path, serve(mock_server(WEATHER)), "--json")
    assert {json.loads(line)["kind"] for line in as_json.stdout.splitlines()} == {"changed"}


@pytest.mark.parametrize("command", [("replay",), ("mock", "--as", "client")])
def test_a_url_that_cannot_be_used_is_reported_in_one_line(invoke, serve, unused_http_url, command):
    name, *options = command
    shown = invoke(name, WEATHER, unused_http_url, *options)
    assert (shown.exit_code, shown.stderr.count("\n")) == (2, 1)
    assert shown.stderr.startswith(f"cannot connect to {unused_http_url}: ")

    async def verify(head):
        return "somebody" if head.header("x-key") == "k" else None

    guarded = serve(weather, verify=verify)
    shown = invoke(name, WEATHER, guarded, *options)
    assert (shown.exit_code, shown.stderr.count("\n")) == (2, 1)
    assert shown.stderr.endswith("(--header)\n")
    assert invoke(name, WEATHER, guarded, *options, "--header", "X-Key: k").exit_code == 0


@pytest.mark.parametrize("command", [("replay",), ("mock", "--as", "client")])
def test_an_invalid_http_url_is_rejected(invoke, command):
    name, *options = command
    shown = invoke(name, WEATHER, "ftp://there/mcp", *options)
    assert shown.exit_code == 2
    assert "the URL of a server begins with http" in shown.stderr


def test_mock_as_client_sends_recorded_requests_to_an_http_url(invoke, serve):
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
def test_the_mock_serves_http_until_a_signal(while_listening, number):
    use = functools.partial(trio.run, call)
    shown, names = while_listening(use, "mock", WEATHER, *HTTP, number=number)
    assert "forecast" in names
    assert shown.exit_code == 128 + number
    serving, unrecorded = shown.stderr.splitlines()
    assert serving.startswith("serving http://127.0.0.1:")
    assert unrecorded.startswith('tools/call {"name":"forecast"')
    assert "was not recorded; closest recorded requests: record" in unrecorded


def test_a_strict_mock_over_http_reports_missing_requests(while_listening):
    shown, _ = while_listening(str, "mock", WEATHER, *HTTP, "--strict")
    assert shown.exit_code == 1
    assert "not requested: tools/call" in shown.stderr


@pytest.mark.parametrize("way", ["http", "websocket"])
def test_a_mock_can_require_a_token(while_listening, way):
    def use(url):
        with pytest.raises(ConnectionLost, match="401"):
            drive(WEATHER, url)
        return drive(WEATHER, url, headers={"Authorization": "Bearer sesame"}).summary

    options = ("--transport", way, "--port", "0", "--token", "sesame")
    _, summary = while_listening(use, "mock", WEATHER, *options)
    assert summary == "no differences, 6 of 6 requests answered"


def test_a_port_in_use_is_reported_in_one_line(invoke):
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
def test_options_that_do_not_fit_the_transport_are_rejected(invoke, given, text):
    shown = invoke("mock", WEATHER, *given)
    assert shown.exit_code == 2
    assert text in shown.stderr
