"""`bridge` on the command line: what is refused, statuses, tokens, headers and what is recorded."""

import json
import os
import signal
import subprocess
import sys
from functools import partial

import httpx2
import pytest

from mcp_trio import Server
from tests.cli.conftest import HEADERS, HELLO, serving

COMMAND = [sys.executable, "-m", "mcp_trio", "bridge"]
UPGRADE = {
    "http": {},
    "ws": {
        "Connection": "upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    },
}


def bridge(*arguments, said=b"", **variables):
    return subprocess.run(
        [*COMMAND, *map(os.fspath, arguments)],
        input=said,
        capture_output=True,
        check=False,
        timeout=30,
        env=os.environ | variables,
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-"], "name one server"),
        (["-", "http://x/mcp", "--", "true"], "name one server"),
        (["ftp://x:1", "http://x/mcp"], "clients connect through - (stdio)"),
        (["http", "http://x/mcp"], "clients connect through - (stdio)"),
        (["http://x/mcp", "http://x/mcp"], "a host and a port"),
        (["ws://u:p@x:1/", "http://x/mcp"], "a host and a port"),
        (["tcp://x:1/path", "http://x/mcp"], "tcp://HOST:PORT"),
        (["unix://x", "http://x/mcp"], "unix:PATH"),
        (["-", "ftp://secret@x/"], "the server has to be at http://"),
        (["-", "tcp://x"], "the server has to be at http://"),
        (["-", "unix:"], "the server has to be at http://"),
        (["-", "http://x/mcp", "--token", "t"], "--token cannot be used with stdio"),
        (["unix:x", "http://x/mcp", "--allow-host", "y"], "--allow-host cannot be used with unix"),
        (["ws://127.0.0.1:0", "http://x/mcp", "--open"], "--open cannot be used with websocket"),
        (
            ["ws://127.0.0.1:0", "tcp://x:1", "--allow-cors"],
            "--allow-cors cannot be used with websocket",
        ),
        (["http://127.0.0.1:0", "http://x/mcp", "--allow-cors"], "sends its own CORS headers"),
        (["ws://127.0.0.1:0", "http://x/mcp", "--token", "${NO_SUCH_ONE}"], "NO_SUCH_ONE"),
        (["ws://127.0.0.1:0", "tcp://x:1", "--token", "a b"], "visible ASCII"),
        (["http://127.0.0.1:0", "tcp://x:1", "--token", "a b"], "visible ASCII"),
        (["http://127.0.0.1:0", "http://x/mcp", "--token", "a b"], "visible ASCII"),
        (["-", "tcp://x:1", "--header", "a: b"], "--header needs a server"),
        (["-", "http://x/mcp", "--redact"], "need --record"),
        (["tcp://0.0.0.0:0", "http://x/mcp"], "could use this server"),
        (["tcp://203.0.113.1:1", "http://x/mcp", "--open"], "cannot listen at tcp://203.0.113.1:1"),
        (["http://127.0.0.1:0", "http://x/mcp", "--allow-host", "a b"], "unlike 'a b'"),
        (["http://203.0.113.1:1", "http://x/mcp"], "cannot listen at http://203.0.113.1:1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_go_together_is_rejected(invoke, arguments, words):
    shown = invoke("bridge", *arguments)
    assert shown.exit_code == 2
    assert words in shown.output
    assert "secret" not in shown.output


def test_a_file_that_holds_something_is_left_alone(tmp_path):
    path = tmp_path / "x"
    path.write_text("precious")
    for source in ("-", f"unix:{tmp_path}/from"):
        done = bridge(source, "tcp://127.0.0.1:1", "--record", path)
        assert done.returncode == 2
        assert b"the file exists" in done.stderr
    assert path.read_text() == "precious"


@pytest.mark.parametrize(
    ("server", "status", "words"),
    [
        (["--", sys.executable, "-c", "raise SystemExit(3)"], 3, b""),
        (["--", "no-such-program"], 127, b"not found"),
        (["unix:/no/such/socket"], 1, b"cannot connect to unix:/no/such/socket"),
        (["ws://127.0.0.1:1/ws"], 1, b"cannot connect to ws://127.0.0.1:1/ws"),
    ],
    ids=["its own", "no command", "no socket", "no listener"],
)
def test_the_status_of_a_host_over_stdio_tells_how_the_server_is(server, status, words):
    done = bridge("-", *server)
    assert done.returncode == status
    assert words in done.stderr
    assert done.stdout == b""


def test_a_host_over_stdio_that_is_done_is_answered_first(tmp_path, invoke):
    path = tmp_path / "session.mcprec.jsonl"
    with serving(Server("there")) as url:
        said = json.dumps(HELLO).encode() + b"\n"
        done = bridge("-", url, "--record", path, "--header", "X-Key: ${KEY}", said=said, KEY="hid")
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["result"]["serverInfo"]["name"] == "there"
    assert invoke("check", path).exit_code == 0
    assert "role proxy, stdio" in invoke("show", path).output
    assert "hid" not in path.read_text()


@pytest.mark.parametrize("place", ["file", "folder"])
def test_a_token_is_asked_for_and_kept_and_headers_go_along(
    while_listening, tmp_path, monkeypatch, invoke, place
):
    seen = []

    async def verify(head):
        seen.append((head.header("authorization"), head.header("x-key")))
        return "somebody"

    def use(near):
        assert near.endswith("/near")
        with httpx2.Client(headers=HEADERS) as client:
            rejected = client.post(near, json=HELLO)
            assert (rejected.status_code, rejected.headers["www-authenticate"]) == (401, "Bearer")
            hello = client.post(near, json=HELLO, headers={"Authorization": "Bearer t"})
            return hello.json()["result"]["serverInfo"]["name"]

    monkeypatch.setenv("TOKEN", "t")
    monkeypatch.setenv("KEY", "k")
    output = tmp_path / "all.mcprec.jsonl" if place == "file" else tmp_path
    options = ("--token", "${TOKEN}", "--header", "X-Key: ${KEY}", "--record", output)
    with serving(Server("there"), path="/far", verify=verify) as url:
        given = ("bridge", "http://127.0.0.1:0/near", url, *options)
        shown, name = while_listening(use, *given, number=signal.SIGINT)
    assert (name, shown.exit_code) == ("there", 128 + signal.SIGINT)
    assert shown.stderr.startswith("listening at http://127.0.0.1:")
    assert seen == [(None, "k")]
    files = list(tmp_path.iterdir())
    assert files
    for file in files:
        assert invoke("check", file).exit_code == 0


@pytest.mark.parametrize("way", ["http", "ws"])
def test_a_token_opens_the_web_to_other_servers(while_listening, way):
    post = partial(httpx2.post, json=HELLO)
    ask, path, status = {"http": (post, "/mcp", 200), "ws": (httpx2.get, "/ws", 101)}[way]
    headers = {**HEADERS, **UPGRADE[way]}

    def use(url):
        assert url.endswith(path)
        at = url.replace("ws://", "http://")
        rejected = ask(at, headers=headers)
        taken = ask(at, headers=headers | {"Authorization": "Bearer t"})
        return rejected.status_code, taken.status_code

    code = "from mcp_trio import Server; Server('there').run()"
    given = ("bridge", f"{way}://127.0.0.1:0", "--token", "t", "--", sys.executable, "-c", code)
    _, statuses = while_listening(use, *given)
    assert statuses == (401, status)
