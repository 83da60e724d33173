"""`record` where the client, the server, or both are reached over HTTP."""

import json
import signal
import subprocess
import sys

import httpx2
import pytest

from mcp_trio import Server
from tests.cli.conftest import HEADERS, HELLO, serving

COMMAND = [sys.executable, "-m", "mcp_trio"]
SERVER = """
from mcp_trio import Server

server = Server("there")

@server.tool
async def greet(name: str) -> str:
    return f"Hello, {name}!"
"""
READY = {"jsonrpc": "2.0", "method": "notifications/initialized"}
CALL = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": "greet", "arguments": {"name": "Ada"}},
}


@pytest.fixture(scope="module")
def server():
    """The URL of a server."""
    there = Server("there")

    @there.tool
    async def greet(name: str) -> str:
        return f"Hello, {name}!"

    with serving(there) as url:
        yield url


def talk(url):
    with httpx2.Client(headers=HEADERS) as client:
        hello = client.post(url, json=HELLO)
        headers = {"Mcp-Session-Id": hello.headers["mcp-session-id"]}
        assert client.post(url, json=READY, headers=headers).status_code == 202
        answered = client.post(url, json=CALL, headers=headers)
        return answered.json()["result"]["content"][0]["text"]


@pytest.mark.parametrize("place", ["file", "folder"])
def test_between_clients_and_a_url(while_listening, tmp_path, invoke, server, place):
    output = tmp_path / "all.mcprec.jsonl" if place == "file" else tmp_path

    def use(url):
        assert url.startswith("http://127.0.0.1:")
        assert url.endswith("/mcp")
        assert url != server
        answer = talk(url)
        return answer, httpx2.post(url, json=CALL, headers={"Host": "evil.test"}).status_code

    given = ("record", "-o", output, "--listen", "127.0.0.1:0", "--to", server)
    shown, answers = while_listening(use, *given, number=signal.SIGINT)
    assert answers == ("Hello, Ada!", 403)
    assert shown.exit_code == 128 + signal.SIGINT
    assert shown.stderr.startswith("recording http://127.0.0.1:")
    files = sorted(tmp_path.iterdir())
    assert len(files) == (1 if place == "file" else 2)
    for file in files:
        assert invoke("check", file).exit_code == 0
    shown = "".join(invoke("show", file).output for file in files)
    for told in ("role proxy, http", "tools/call", "negotiated", "signal", "evil.test"):
        assert told in shown


def test_between_clients_and_a_command(while_listening, tmp_path, invoke):
    (tmp_path / "there.py").write_text(SERVER)
    folder = tmp_path / "recorded"
    folder.mkdir()
    command = [sys.executable, "-m", "mcp_trio", "run", tmp_path / "there.py"]
    given = ("record", "-o", folder, "--listen", "127.0.0.1:0", "--", *command)
    shown, answer = while_listening(talk, *given)
    assert (answer, shown.exit_code) == ("Hello, Ada!", 128 + signal.SIGTERM)
    (file,) = folder.iterdir()
    assert invoke("check", file).exit_code == 0
    shown = invoke("show", file).output
    for told in ("role proxy, http", "tools/call", "negotiated", "signal", "exited"):
        assert told in shown


def test_a_command_that_is_not_there_is_told_before_anybody_is_listened_to(invoke, tmp_path):
    shown = invoke("record", "-o", tmp_path, "--listen", "127.0.0.1:0", "--", "no-such")
    assert (shown.exit_code, shown.stderr) == (127, "cannot start 'no-such': not found\n")


def test_between_a_host_and_a_url(tmp_path, invoke, server):
    path = tmp_path / "session.mcprec.jsonl"
    said = "".join(json.dumps(each) + "\n" for each in (HELLO, READY, CALL))
    done = subprocess.run(
        [*COMMAND, "record", "-o", str(path), "--to", server, "--header", "X-Key: hidden"],
        input=said,
        capture_output=True,
        check=False,
        text=True,
        timeout=30,
    )
    assert (done.returncode, done.stderr) == (0, "")
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["id"] for each in answers] == [0, 1]
    assert invoke("check", path).exit_code == 0
    assert "role proxy, stdio" in invoke("show", path).output
    assert "hidden" not in path.read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--to", "http://x/mcp", "--", "true"], "name one server"),
        (["--listen", "127.0.0.1:0"], "name one server"),
        (["--to", "ftp://x/mcp"], "begins with http://"),
        (["--to", "http://x/mcp", "--listen", "127.0.0.1"], "is not HOST:PORT"),
        (["--to", "http://x/mcp", "--allow-host", "y"], "need --listen"),
        (["--to", "http://x/mcp", "--allow-cors"], "need --listen"),
        (["--to", "http://x/mcp", "--listen", ":0", "--allow-cors"], "sends its own CORS headers"),
        (["--to", "http://x/mcp", "--listen", "x:²"], "is not HOST:PORT"),
        (["--to", "http://x/mcp", "--listen", ":0", "--allow-host", "a b"], "unlike 'a b'"),
        (["--to", "http://x/mcp", "--listen", ":0", "--header", "a: b"], "--header needs --to"),
        (["--header", "a: b", "--", "true"], "--header needs --to"),
        (["--to", "http://x/mcp", "--listen", "203.0.113.1:1"], "cannot listen at 203.0.113.1:1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_go_together_is_rejected(tmp_path, invoke, arguments, words):
    shown = invoke("record", "-o", tmp_path, *arguments)
    assert shown.exit_code == 2
    assert words in shown.output


def test_a_file_that_holds_something_is_left_alone(tmp_path, invoke):
    path = tmp_path / "x"
    path.write_text("precious")
    for more in ([], ["--listen", "127.0.0.1:0"]):
        shown = invoke("record", "-o", path, "--to", "http://127.0.0.1:1/mcp", *more)
        assert shown.exit_code == 2
        assert "the file exists" in shown.output
    assert path.read_text() == "precious"
