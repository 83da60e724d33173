"""SERVER is a URL: what is sent there, and what is said of servers that cannot be asked."""

import importlib.util
import json
import socket
from pathlib import Path

import pytest

SOME = Path(__file__).with_name("some_server.py")


def some():
    spec = importlib.util.spec_from_file_location("some_server_over_http", SOME)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.server


@pytest.fixture
def url(serve):
    return serve(some())


@pytest.fixture
def nobody():
    """A URL where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    return f"http://127.0.0.1:{port}/mcp"


@pytest.mark.parametrize("protocol_version", ["2024-11-05", "2025-11-25", "2026-07-28"])
def test_all_four_commands_take_a_url(invoke, url, protocol_version):
    spoken = ("--protocol-version", protocol_version)
    assert "echo" in invoke("list", url, "tools", *spoken).stdout
    assert json.loads(invoke("call", url, "echo", "text=hi", *spoken).stdout)["text"] == "hi"
    assert invoke("read", url, "some://b/now", *spoken).stdout == "b"
    assert "Greet Ada in a kind way." in invoke("prompt", url, "greet", "name=Ada", *spoken).stdout


def test_the_result_is_that_on_the_wire_over_http_too(invoke, url):
    shown = invoke("call", url, "echo", "text=hi", "--json")
    assert json.loads(shown.stdout)["structuredContent"]["text"] == "hi"
    tools = json.loads(invoke("list", url, "--json", "tools").stdout)["tools"]
    assert "echo" in [tool["name"] for tool in tools]


def test_options_for_processes_are_of_no_consequence_at_a_url(invoke, url):
    assert invoke("call", url, "echo", "--stderr").exit_code == 0


# Headers.


class Door:
    """Lets in who says the word; keeps what was said."""

    def __init__(self):
        self.heard = set()

    async def verify(self, head):
        self.heard.add(head.header("authorization"))
        return "somebody" if head.header("authorization") == "Bearer open sesame" else None


@pytest.fixture
def door():
    return Door()


@pytest.fixture
def guarded(serve, door):
    return serve(some(), verify=door.verify)


@pytest.mark.parametrize(
    "header",
    ["Authorization: Bearer open sesame", "authorization:Bearer ${WORD}", "Authorization: ${ALL}"],
)
def test_headers_go_along_with_each_request(invoke, guarded, door, monkeypatch, header):
    monkeypatch.setenv("WORD", "open sesame")
    monkeypatch.setenv("ALL", "Bearer open sesame")
    assert invoke("call", guarded, "echo", "--header", header).exit_code == 0
    assert door.heard == {"Bearer open sesame"}


def test_a_server_that_wants_to_know_who_asks_is_told_in_a_line_with_the_option(invoke, guarded):
    shown = invoke("call", guarded, "echo")
    assert (shown.exit_code, shown.stdout) == (1, "")
    assert shown.stderr.count("\n") == 1
    assert "answered HTTP 401 Unauthorized" in shown.stderr
    assert "(--header)" in shown.stderr


def test_headers_of_a_configuration_are_used_and_those_of_the_command_line_are_more(
    invoke, guarded, tmp_path
):
    config = tmp_path / "mcp.json"
    servers = {"far": {"url": guarded, "headers": {"Authorization": "Bearer nothing"}}}
    config.write_text(json.dumps({"mcpServers": servers}))
    word = ("--header", "Authorization: Bearer open sesame")
    assert invoke("call", "far", "echo", "--config", config).exit_code == 1
    assert invoke("call", "far", "echo", "--config", config, *word).exit_code == 0


SECRET = "topsecret"


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        ([SECRET], "a header must be written as 'Name: value'"),
        (["X Y: " + SECRET], "'X Y' is not a valid name of a header"),
        ([f"X: {SECRET}\r\nY: 1"], "the value of the header X has characters that are not allowed"),
        (["X: ${NO_SUCH_VARIABLE}"], "X: the variable NO_SUCH_VARIABLE is not set"),
        (["X: ${not one}"], "X: ${not one} is not a reference to a variable"),
        ([f"X: {SECRET}", "x: 2"], "x is given twice"),
    ],
)
def test_a_header_that_is_none_is_rejected_without_its_value(invoke, headers, text):
    given = [word for header in headers for word in ("--header", header)]
    shown = invoke("list", "http://127.0.0.1:1/mcp", *given)
    assert shown.exit_code == 2
    assert f"--header': {text}" in shown.stderr
    assert SECRET not in shown.stderr


@pytest.mark.parametrize("command", ["list", "replay", "mock"])
def test_headers_for_what_is_no_url_are_rejected(invoke, command):
    recording = Path(__file__).parents[2] / "recordings" / "weather.mcprec.jsonl"
    given = {
        "list": (SOME,),
        "replay": (recording, "--inputs", SOME),
        "mock": (recording, "--as", "client", SOME),
    }[command]
    shown = invoke(command, *given, "--header", "X: 1")
    assert shown.exit_code == 2
    assert "--header needs a server at an http(s):// or ws(s):// URL" in shown.stderr


def test_headers_for_a_url_that_takes_none_are_rejected(invoke):
    shown = invoke("list", "unix:/nowhere", "--header", "X: 1")
    assert shown.exit_code == 2
    assert "--header needs a server at an http(s):// or ws(s):// URL" in shown.stderr


# Servers that cannot be asked.


@pytest.mark.parametrize("word", ["ftp://there/mcp", "http://", "http://a:b/mcp", "tcp://a"])
def test_what_is_no_url_of_http_is_a_usage_error(invoke, word, tmp_path):
    shown = invoke("list", word)
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert "URL" in shown.stderr.splitlines()[-1]
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"far": {"url": word}}}))
    assert invoke("list", "far", "--config", config).exit_code == 2


def test_a_server_that_is_not_there_is_told_in_a_line(invoke, nobody):
    shown = invoke("list", nobody)
    assert (shown.exit_code, shown.stdout) == (1, "")
    assert shown.stderr.count("\n") == 1
    assert shown.stderr.startswith(f"cannot connect to {nobody}: ")


@pytest.mark.parametrize("url", ["unix:/nowhere", "tcp://127.0.0.1:1", "ws://127.0.0.1:1/ws"])
def test_a_server_that_is_not_there_over_another_transport_is_told_in_a_line(invoke, url):
    shown = invoke("list", url)
    assert (shown.exit_code, shown.stdout) == (1, "")
    assert shown.stderr.count("\n") == 1


def test_a_server_without_tls_is_told_in_a_line(invoke, url):
    shown = invoke("list", url.replace("http:", "https:"))
    assert (shown.exit_code, shown.stderr.count("\n")) == (1, 1)
    assert "SSL" in shown.stderr


def test_a_url_with_nothing_at_it_is_told_in_a_line(invoke, url):
    shown = invoke("list", f"{url}/nothing")
    assert (shown.exit_code, shown.stderr.count("\n")) == (1, 1)
    assert "the MCP endpoint is /mcp" in shown.stderr


def test_what_is_secret_in_a_url_is_not_told(invoke, nobody):
    shown = invoke("list", nobody.replace("//", f"//me:{SECRET}@") + f"?key={SECRET}")
    assert shown.exit_code == 1
    assert SECRET not in shown.stderr
