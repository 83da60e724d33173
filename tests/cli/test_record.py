"""`mcp-trio record` and `bridge`."""

import base64
import json
import os
import signal
import subprocess
import sys
from functools import partial

import httpx2
import pytest
import trio

from mcp_trio import Client, Server
from mcp_trio._cli.options import load_server
from mcp_trio._cli.record import record_command
from mcp_trio._recorder.encryption import is_encrypted
from tests.cli.conftest import HEADERS, HELLO, serving

pytestmark = pytest.mark.usefixtures("measured_processes")

# `record` with a command over stdio.


COMMAND = [sys.executable, "-m", "mcp_trio"]
LINES_SERVER = """
import sys
for line in sys.stdin:
    print('{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2024-11-05"}}', flush=True)
print("goodbye", file=sys.stderr)
sys.exit(3)
"""
ASKED = '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}\n'


def record_in_process(*arguments, stdin=""):
    return subprocess.run(
        [*COMMAND, "record", *map(str, arguments)],
        input=stdin,
        capture_output=True,
        check=False,
        text=True,
        timeout=30,
    )


@pytest.mark.parametrize("place", ["file", "folder"])
def test_a_session_is_recorded_and_the_servers_status_and_stderr_are_passed_on(
    tmp_path, invoke, place
):
    path = tmp_path / "session.mcprec.jsonl" if place == "file" else tmp_path
    done = record_in_process("-o", path, "--", sys.executable, "-c", LINES_SERVER, stdin=ASKED)
    assert (done.returncode, done.stderr) == (3, "goodbye\n")
    assert done.stdout.count("\n") == 1
    (recording,) = tmp_path.iterdir()
    assert invoke("check", recording).exit_code == 0
    shown = invoke("show", recording).output
    for text in ("role proxy", "answer initialize", "negotiated", "exited", "eof"):
        assert text in shown


FAILING_SERVER = """
from mcp_trio import Server, ToolError

server = Server("shop")

@server.tool
async def sell(item: str, password: str) -> str:
    if item == "gone":
        raise ToolError(f"no {item} for {password}")
    return item
"""


@pytest.fixture
def shop(tmp_path):
    """The command of a server."""
    (tmp_path / "shop.py").write_text(FAILING_SERVER)
    return [*COMMAND, "run", str(tmp_path / "shop.py")]


@pytest.mark.slow
@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize("way", ["command", "url"])
def test_only_sessions_with_errors_are_kept_over_stdio_if_the_rate_is_0(
    tmp_path, invoke, shop, way, version
):
    kept = tmp_path / "new" / "kept"
    secret = "red-tulip-97"

    async def call(server):
        proxy = [*COMMAND, "record", "-o", str(kept), "--keep-rate", "0", "--max-days", "30"]
        for item in ("pen", "gone"):
            options = {"protocol_versions": [version], "raise_tool_errors": False}
            async with Client([*proxy, *server], **options) as client:
                await client.call_tool("sell", {"item": item, "password": secret})

    if way == "command":
        trio.run(call, ["--", *shop])
    else:
        with serving(load_server(shop[-1])) as url:
            trio.run(call, ["--to", url])
    shown = invoke("find", kept, "--json")
    (row,) = map(json.loads, shown.output.splitlines())
    assert (row["kept"], row["role"], row["masked"]) == (["error"], "proxy", {"password": 1})
    assert all(secret.encode() not in path.read_bytes() for path in kept.iterdir())


def test_a_session_is_kept_if_its_server_exits_before_it_answers(tmp_path, invoke):
    kept = tmp_path / "kept"
    options = ("-o", kept, "--keep-rate", "0", "--", sys.executable, "-c")
    # The host keeps its end open until the server has exited.
    code = "import os; os.read(0, 1000); os.close(1); os._exit(4)"
    with subprocess.Popen(
        [*COMMAND, "record", *map(str, options), code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as proxy:
        proxy.stdin.write(ASKED.encode())
        proxy.stdin.flush()
        assert proxy.stdout.read() == b""
        assert proxy.wait(30) == 4
    (row,) = map(json.loads, invoke("find", kept, "error:any", "--json").output.splitlines())
    assert (row["kept"], row["error_kinds"]) == (["error"], {"protocol": 1})


@pytest.mark.slow
def test_recordings_of_a_policy_are_encrypted(tmp_path, shop):
    key = "november:" + base64.b64encode(bytes(32)).decode()
    policy = ["-o", str(tmp_path / "kept"), "--keep-rate", "1", "--encrypt"]

    async def call():
        command = [*COMMAND, "record", *policy, "--", *shop]
        async with Client(command, env={"MCP_TRIO_RECORDING_KEYS": key}) as client:
            await client.ping()

    trio.run(call)
    (file,) = (tmp_path / "kept").glob("*.mcprec.jsonl*")
    assert is_encrypted(file)
    done = record_in_process(*policy, "--", *shop)
    assert done.returncode == 2
    assert "no key for recordings" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("record", "-o", "new", "--keep-user", "ada", "--", "true"), "--keep-user"),
        (("record", "-o", "new", "--keep-header", "X", "--", "true"), "--keep-header"),
        (("record", "-o", "shop.py", "--max-days", "3", "--", "true"), "shop.py is a file"),
        (
            ("bridge", "--record", "new", "--keep-header", "X", "ws://127.0.0.1:0", "unix:x"),
            "--keep-header",
        ),
        (("bridge", "--keep-rate", "0", "-", "unix:x"), "recording options need --record PATH"),
    ],
)
def test_options_of_a_policy_that_a_proxy_cannot_use_are_reported(
    tmp_path, invoke, monkeypatch, shop, arguments, text
):
    monkeypatch.chdir(tmp_path)
    shown = invoke(*arguments)
    assert shown.exit_code == 2
    assert text in shown.output


@pytest.mark.slow
def test_a_server_killed_by_a_signal_becomes_an_exit_status(tmp_path):
    code = "import os; os.kill(os.getpid(), 9)"
    done = record_in_process("-o", tmp_path / "x.jsonl", "--", sys.executable, "-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (137, "", "")


def make_text(folder):
    (folder / "text").write_text("no program")
    return folder / "text"


def make_broken(folder):
    (folder / "broken").write_text("#!/no/such/interpreter\n")
    (folder / "broken").chmod(0o755)
    return folder / "broken"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "status", "text"),
    [
        (lambda _: "no-such-server", 127, "cannot start 'no-such-server': not found\n"),
        (lambda folder: folder / "missing", 127, "missing': not found\n"),
        (make_text, 126, "text': it is not executable\n"),
        (lambda folder: folder.parent, 126, "': it is not executable\n"),
        (make_broken, 126, "broken': No such file or directory\n"),
    ],
)
def test_a_command_that_cannot_be_started_is_reported_in_one_line(tmp_path, make, status, text):
    path = tmp_path / "session.mcprec.jsonl"
    done = record_in_process("-o", path, "--", make(tmp_path))
    assert done.returncode == status
    assert done.stderr.endswith(text)
    assert done.stderr.count("\n") == 1
    assert path.exists() == (make is make_broken)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("holds something", "the file exists"),
        ("no/such/folder/x", "No such file or directory"),
    ],
)
def test_an_unusable_output_is_rejected_before_the_server_starts(tmp_path, place, text):
    (tmp_path / "holds something").write_text("precious")
    code = "open('started', 'w')"
    done = record_in_process("-o", tmp_path / place, "--", sys.executable, "-c", code)
    assert done.returncode == 2
    assert text in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "started").exists()
    assert (tmp_path / "holds something").read_text() == "precious"


def test_a_command_and_an_output_are_required(invoke, tmp_path):
    assert invoke("record", "--", "true").exit_code == 2
    assert "name one server" in invoke("record", "-o", tmp_path / "x").output


@pytest.mark.slow
def test_the_commands_own_options_are_passed_on(tmp_path):
    done = record_in_process("-o", tmp_path / "x.jsonl", "--", "echo", "-o", "--", "--help")
    assert done.stdout == "-o -- --help\n"


def test_the_help_has_an_example_and_the_exit_statuses(invoke):
    shown = invoke("record", "--help").output
    assert record_command.short_help
    assert "-- python server.py" in shown
    assert "127" in shown


# `record` over HTTP.


GREETING_SERVER = """
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
def test_record_listens_over_http_before_a_url(while_listening, tmp_path, invoke, server, place):
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
    for text in ("role proxy, http", "tools/call", "negotiated", "signal", "evil.test"):
        assert text in shown


def test_record_listens_over_http_before_a_command(while_listening, tmp_path, invoke):
    (tmp_path / "there.py").write_text(GREETING_SERVER)
    folder = tmp_path / "recorded"
    folder.mkdir()
    command = [*COMMAND, "run", tmp_path / "there.py"]
    given = ("record", "-o", folder, "--listen", "127.0.0.1:0", "--", *command)
    shown, answer = while_listening(talk, *given)
    assert (answer, shown.exit_code) == ("Hello, Ada!", 128 + signal.SIGTERM)
    (file,) = folder.iterdir()
    assert invoke("check", file).exit_code == 0
    shown = invoke("show", file).output
    for text in ("role proxy, http", "tools/call", "negotiated", "signal", "exited"):
        assert text in shown


def test_a_missing_command_is_reported_before_listening(invoke, tmp_path):
    shown = invoke("record", "-o", tmp_path, "--listen", "127.0.0.1:0", "--", "no-such")
    assert (shown.exit_code, shown.stderr) == (127, "cannot start 'no-such': not found\n")


@pytest.mark.slow
def test_record_connects_stdio_to_a_url(tmp_path, invoke, server):
    path = tmp_path / "session.mcprec.jsonl"
    stdin = "".join(json.dumps(each) + "\n" for each in (HELLO, READY, CALL))
    done = subprocess.run(
        [*COMMAND, "record", "-o", str(path), "--to", server, "--header", "X-Key: hidden"],
        input=stdin,
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
    ("arguments", "text"),
    [
        (["--to", "http://x/mcp", "--", "true"], "name one server"),
        (["--listen", "127.0.0.1:0"], "name one server"),
        (["--to", "ftp://x/mcp"], "has to begin with http://"),
        (["--to", "http://x/mcp", "--listen", "127.0.0.1"], "is not HOST:PORT"),
        (["--to", "http://x/mcp", "--allow-host", "y"], "need --listen"),
        (["--to", "http://x/mcp", "--allow-cors"], "need --listen"),
        (["--to", "http://x/mcp", "--listen", ":0", "--allow-cors"], "sends its own CORS headers"),
        (["--to", "http://x/mcp", "--listen", "x:²"], "is not HOST:PORT"),
        (["--to", "http://x/mcp", "--listen", ":0", "--allow-host", "a b"], "not 'a b'"),
        (["--to", "http://x/mcp", "--listen", ":0", "--header", "a: b"], "--header needs --to"),
        (["--header", "a: b", "--", "true"], "--header needs --to"),
        (["--to", "http://x/mcp", "--listen", "203.0.113.1:1"], "cannot listen at 203.0.113.1:1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_record_rejects_contradictory_options(tmp_path, invoke, arguments, text):
    shown = invoke("record", "-o", tmp_path, *arguments)
    assert shown.exit_code == 2
    assert text in shown.output


def test_record_does_not_overwrite_a_file(tmp_path, invoke):
    path = tmp_path / "x"
    path.write_text("precious")
    for more in ([], ["--listen", "127.0.0.1:0"]):
        shown = invoke("record", "-o", path, "--to", "http://127.0.0.1:1/mcp", *more)
        assert shown.exit_code == 2
        assert "the file exists" in shown.output
    assert path.read_text() == "precious"


# `bridge`.


BRIDGE = [*COMMAND, "bridge"]
UPGRADE = {
    "http": {},
    "ws": {
        "Connection": "upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    },
}


def bridge(*arguments, stdin=b"", **variables):
    return subprocess.run(
        [*BRIDGE, *map(os.fspath, arguments)],
        input=stdin,
        capture_output=True,
        check=False,
        timeout=30,
        env=os.environ | variables,
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
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
        (["tcp://0.0.0.0:0", "http://x/mcp"], "connect to 0.0.0.0: add --open to allow that"),
        (["tcp://203.0.113.1:1", "http://x/mcp", "--open"], "cannot listen at tcp://203.0.113.1:1"),
        (["http://127.0.0.1:0", "http://x/mcp", "--allow-host", "a b"], "not 'a b'"),
        (["http://203.0.113.1:1", "http://x/mcp"], "cannot listen at http://203.0.113.1:1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bridge_rejects_contradictory_options(invoke, arguments, text):
    shown = invoke("bridge", *arguments)
    assert shown.exit_code == 2
    assert text in shown.output
    assert "secret" not in shown.output


@pytest.mark.slow
def test_bridge_does_not_overwrite_a_file(tmp_path):
    path = tmp_path / "x"
    path.write_text("precious")
    for source in ("-", f"unix:{tmp_path}/from"):
        done = bridge(source, "tcp://127.0.0.1:1", "--record", path)
        assert done.returncode == 2
        assert b"the file exists" in done.stderr
    assert path.read_text() == "precious"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("server", "status", "text"),
    [
        (["--", sys.executable, "-c", "raise SystemExit(3)"], 3, b""),
        (["--", "no-such-program"], 127, b"not found"),
        (["unix:/no/such/socket"], 1, b"cannot connect to unix:/no/such/socket"),
        (["ws://127.0.0.1:1/ws"], 1, b"cannot connect to ws://127.0.0.1:1/ws"),
    ],
    ids=["its own", "no command", "no socket", "no listener"],
)
def test_the_exit_status_over_stdio_tells_how_the_server_ended(server, status, text):
    done = bridge("-", *server)
    assert done.returncode == status
    assert text in done.stderr
    assert done.stdout == b""


@pytest.mark.slow
def test_over_stdio_pending_requests_are_answered_before_the_bridge_ends(tmp_path, invoke):
    path = tmp_path / "session.mcprec.jsonl"
    with serving(Server("there")) as url:
        stdin = json.dumps(HELLO).encode() + b"\n"
        done = bridge(
            "-", url, "--record", path, "--header", "X-Key: ${KEY}", stdin=stdin, KEY="hid"
        )
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["result"]["serverInfo"]["name"] == "there"
    assert invoke("check", path).exit_code == 0
    assert "role proxy, stdio" in invoke("show", path).output
    assert "hid" not in path.read_text()


@pytest.mark.parametrize("place", ["file", "folder"])
def test_the_token_is_required_and_not_forwarded_but_headers_are(
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
    with serving(Server("there", auth=verify), path="/far") as url:
        given = ("bridge", "http://127.0.0.1:0/near", url, *options)
        shown, name = while_listening(use, *given, number=signal.SIGINT)
    assert (name, shown.exit_code) == ("there", 128 + signal.SIGINT)
    assert shown.stderr.startswith("listening at http://127.0.0.1:")
    assert seen == [(None, "k")]
    files = list(tmp_path.iterdir())
    assert files
    for file in files:
        assert invoke("check", file).exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize("way", ["http", "ws"])
def test_a_token_allows_listening_on_other_addresses(while_listening, way):
    post = partial(httpx2.post, json=HELLO)
    ask, path, status = {"http": (post, "/mcp", 200), "ws": (httpx2.get, "/", 101)}[way]
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
