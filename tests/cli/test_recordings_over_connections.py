"""`replay` and `mock` over WebSocket, Unix domain sockets and TCP: by URLs."""

import functools
import signal
import socket
from pathlib import Path

import pytest

from mcp_trio.examples.weather import server as weather
from mcp_trio.recording import drive
from mcp_trio.testing import mock_server
from tests.ways import CONNECTIONS

RECORDINGS = Path(__file__).parents[2] / "recordings"
WEATHER = RECORDINGS / "weather.mcprec.jsonl"
STATELESS = RECORDINGS / "tides.mcprec.jsonl"


@pytest.fixture
def at(serve, tmp_path):
    """Serve something some way; returns the URL."""

    return lambda way, served: serve(served, way=way, folder=tmp_path)


@pytest.mark.parametrize("way", CONNECTIONS)
@pytest.mark.parametrize("command", [("replay",), ("mock", "--as", "client")])
def test_a_recorded_client_talks_to_a_url(invoke, at, way, command):
    name, *options = command
    shown = invoke(name, WEATHER, *options, at(way, weather))
    assert shown.stdout.startswith("no differences, 6 of 6 requests answered")
    assert shown.exit_code == 0


@pytest.mark.parametrize("way", CONNECTIONS)
def test_what_differs_at_a_url_is_a_status(invoke, at, way, write):
    asked = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    path = write(("in", asked), ("out", {"jsonrpc": "2.0", "id": 1, "result": {"a": 1}}))
    shown = invoke("replay", path, at(way, mock_server(WEATHER)))
    assert "answer to ping" in shown.stdout
    assert shown.exit_code == 1


@pytest.mark.parametrize("way", CONNECTIONS)
@pytest.mark.parametrize("path", [WEATHER, STATELESS], ids=["legacy", "stateless"])
def test_a_mock_is_what_was_recorded(invoke, at, way, path):
    shown = invoke("replay", path, at(way, mock_server(path)))
    assert shown.stdout.startswith("no differences, ")
    assert shown.exit_code == 0


@pytest.fixture
def nobody(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    return {
        "websocket": f"ws://127.0.0.1:{port}/ws",
        "unix": f"unix:{tmp_path}/nobody",
        "tcp": f"tcp://127.0.0.1:{port}",
    }


@pytest.mark.parametrize("way", CONNECTIONS)
@pytest.mark.parametrize("command", [("replay",), ("mock", "--as", "client")])
def test_a_url_where_nobody_listens_is_told_in_a_line(invoke, nobody, way, command):
    name, *options = command
    shown = invoke(name, WEATHER, nobody[way], *options)
    assert (shown.exit_code, shown.stderr.count("\n")) == (2, 1)
    assert shown.stderr.startswith(f"cannot connect to {nobody[way]}: ")


@pytest.mark.parametrize("url", ["tcp://there", "ws://", "tcp://127.0.0.1:1/path"])
def test_a_url_that_is_none_is_rejected(invoke, url):
    shown = invoke("replay", WEATHER, url)
    assert shown.exit_code == 2
    assert "Error: the URL of a " in shown.stderr


def test_headers_go_with_urls_of_the_web(invoke, serve, nobody):
    guarded = serve(weather, way="websocket", token="sesame")
    shown = invoke("replay", WEATHER, guarded)
    assert (shown.exit_code, shown.stderr.count("\n")) == (2, 1)
    assert shown.stderr.endswith("(--header)\n")
    header = ("--header", "Authorization: Bearer sesame")
    assert invoke("replay", WEATHER, guarded, *header).exit_code == 0
    shown = invoke("replay", WEATHER, nobody["tcp"], *header)
    assert (shown.exit_code, "--header needs a server" in shown.stderr) == (2, True)


@pytest.mark.parametrize("way", CONNECTIONS)
def test_a_recorded_server_is_served_until_a_signal_comes(while_listening, tmp_path, way):
    path = tmp_path / "socket"
    place = ("--socket", path) if way == "unix" else ("--port", "0")
    given = ("mock", WEATHER, "--transport", way, *place, "--strict")
    shown, report = while_listening(functools.partial(drive, WEATHER), *given)
    assert report.summary == "no differences, 6 of 6 requests answered"
    assert (shown.exit_code, shown.stderr.count("\n")) == (128 + signal.SIGTERM, 1)
    assert shown.stderr.startswith("serving ")
    assert not path.exists()


def test_what_a_client_asks_cannot_steer_the_terminal(while_listening):
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
def test_a_place_that_is_taken_is_told_in_a_line(invoke, tmp_path, way):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        path = tmp_path / "taken"
        path.write_text("no socket")
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        place = ("--socket", path) if way == "unix" else ("--port", where.partition(":")[2])
        shown = invoke("mock", WEATHER, "--transport", way, *place)
    assert (shown.exit_code, shown.stderr.count("\n")) == (2, 1)
    assert shown.stderr.startswith(f"cannot listen at {path if way == 'unix' else where}: ")
