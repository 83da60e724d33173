"""`mcp-trio run`: transports, options that contradict each other, and CORS."""

import json
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
import trio
from otlp_receiver import OtlpReceiver

from mcp_trio import Client, ConnectionLost, RequestError, Server
from mcp_trio.observers import check_audit_log
from mcp_trio.transports import open_websocket_channel
from tests.cli.conftest import serving
from tests.transports.http.conftest import certificate

pytestmark = pytest.mark.usefixtures("measured_processes")

# HTTP and TLS.


__all__ = ["certificate"]

EMPTY_SERVER = """
from mcp_trio import Server

server = Server("there")
"""


RUN_HTTP = [
    "run",
    "there.py",
    "--transport",
    "http",
    "--port",
    "0",
    "--protocol-versions",
    "2026-07-28",
]


@pytest.fixture
def server_folder(tmp_path, monkeypatch):
    (tmp_path / "there.py").write_text(EMPTY_SERVER)
    monkeypatch.chdir(tmp_path)


def look(url):
    """Return the health report, and the status of a GET without a session."""
    assert url.startswith("http://127.0.0.1:")
    health = httpx2.get(url.replace("/mcp", "/health"))
    return health.json(), httpx2.get(url).status_code


FOUND = ({"status": "ok"}, 405)


@pytest.mark.usefixtures("server_folder")
def test_a_process_serves_until_a_signal_comes():
    command = [sys.executable, "-m", "mcp_trio", *RUN_HTTP]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        words, url = process.stderr.readline().split()
        assert words == "serving"
        assert look(url) == FOUND
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 128 + signal.SIGTERM


@pytest.mark.usefixtures("server_folder")
@pytest.mark.parametrize("holder", ["native", "hypercorn"])
def test_the_native_server_and_hypercorn_respond_alike(while_listening, holder):
    shown, found = while_listening(look, *RUN_HTTP, "--server", holder)
    assert (found, shown.exit_code) == (FOUND, 128 + signal.SIGTERM)


@pytest.mark.usefixtures("server_folder")
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_server_with_a_certificate_is_reached_over_tls(while_listening, certificate, workers):
    trusting = ssl.create_default_context(cafile=certificate["certfile"])

    def look_over_tls(url):
        return httpx2.get(url.replace("/mcp", "/health"), verify=trusting).json()

    files = ["--certfile", certificate["certfile"], "--keyfile", certificate["keyfile"]]
    shown, found = while_listening(look_over_tls, *RUN_HTTP, *files, "--workers", workers)
    assert (found, shown.exit_code) == ({"status": "ok"}, 128 + signal.SIGTERM)


def test_a_port_is_rejected_for_stdio(invoke):
    shown = invoke("run", "--port", "80", "server.py")
    assert shown.exit_code == 2
    assert "--port cannot be used with stdio" in shown.output


# Every transport.


TIDE_SERVER = """
from mcp_trio import Server

server = Server("there")

@server.tool
async def tide() -> str:
    return "high"
"""

WAYS = {
    "http": ["--port", "0", "--token", "${SECRET}"],
    "websocket": ["--port", "0", "--token", "${SECRET}", "--allow-origin", "https://app.example"],
    "unix": ["--socket", "s.sock"],
    "tcp": ["--port", "0"],
}


async def call_tide(transport, url, folder):
    if transport in ("unix", "tcp"):
        where = f"unix:{folder / 's.sock'}" if transport == "unix" else url
        async with Client(where) as client:
            return (await client.call_tool("tide")).content[0].text
    url = url.replace("http:", "ws:").replace("/mcp", "/ws")
    with pytest.raises(ConnectionLost, match="401"):
        await open_websocket_channel(url, token="wrong")
    headers = {} if transport == "http" else {"Origin": "https://app.example"}
    channel = await open_websocket_channel(url, token="sesame", headers=headers)
    async with Client(channel) as client:
        return (await client.call_tool("tide")).content[0].text


@pytest.mark.parametrize("transport", WAYS)
def test_each_transport_serves_until_a_signal(while_listening, tmp_path, transport, monkeypatch):
    monkeypatch.setenv("SECRET", "sesame")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.py").write_text(TIDE_SERVER)

    def use(url):
        assert ":8000" not in url
        return trio.run(call_tide, transport, url, tmp_path)

    given = ("run", "there.py", "--transport", transport, *WAYS[transport])
    shown, answer = while_listening(use, *given)
    assert answer == "high"
    assert (shown.exit_code, shown.stderr.count("\n")) == (128 + signal.SIGTERM, 1)
    assert shown.stderr.startswith("serving ")


REJECTED_WITH_TRANSPORT = {
    "--socket cannot be used with tcp": ["--transport", "tcp", "--socket", "x"],
    "--allow-host cannot be used with unix": ["--transport", "unix", "--allow-host", "x"],
    "--workers cannot be used with websocket": ["--transport", "websocket", "--workers", "2"],
    "--open cannot be used with http": ["--transport", "http", "--open"],
    "--allow-cors cannot be used with websocket": ["--transport", "websocket", "--allow-cors"],
    "--allow-cors cannot be used with stdio": ["--allow-cors"],
    "--token cannot be used with stdio": ["--token", "x"],
    "unix needs --socket": ["--transport", "unix"],
    "unix needs --socket PATH": ["--transport", "unix", "--socket", ""],
    "add --open to allow that": ["--transport", "tcp", "--host", "0.0.0.0"],
    "hosts= takes": ["--transport", "http", "--allow-host", "a b"],
    "origins= takes": ["--transport", "websocket", "--allow-origin", "a"],
    "visible ASCII": ["--transport", "http", "--token", "a b"],
    "SOME_VARIABLE": ["--transport", "http", "--token", "${SOME_VARIABLE}"],
}


@pytest.mark.parametrize("complaint", REJECTED_WITH_TRANSPORT)
def test_options_that_do_not_fit_the_transport_are_rejected(complaint, invoke):
    shown = invoke("run", "server.py", *REJECTED_WITH_TRANSPORT[complaint])
    assert shown.exit_code == 2
    assert complaint in " ".join(shown.output.split())


# Options and addresses that are rejected.


SERVERS = {
    "plain.py": "server = Server('there')",
    "stateful.py": "server = Server('there', states=MemoryStore())",
    "broken.py": """
@asynccontextmanager
async def lifespan(server):
    raise OSError(98, "the disk is in use")
    yield

server = Server("there", lifespan=lifespan)
""",
}
BEGIN = "from contextlib import asynccontextmanager\nfrom mcp_trio import Server\nfrom mcp_trio.http import MemoryStore\n"
OVER_HTTP = ("--transport", "http")
FILE = ("--record", "one.mcprec.jsonl")

CONTRADICTIONS = {
    "legacy workers": (
        ["plain.py", *OVER_HTTP, "--workers", "2", "--protocol-versions", "2025-11-25"],
        "workers serve stateless protocol versions only",
    ),
    "workers with states of one process": (
        ["stateful.py", *OVER_HTTP, "--workers", "2"],
        "workers need another store",
    ),
    "one file over http": (
        ["plain.py", *OVER_HTTP, *FILE],
        "--transport http serves many sessions",
    ),
    "one file of workers": (
        ["plain.py", *OVER_HTTP, "--workers", "2", *FILE],
        "--record needs an existing folder",
    ),
    "one file over websocket": (
        ["plain.py", "--transport", "websocket", *FILE],
        "--transport websocket serves many sessions",
    ),
    "one file over unix": (
        ["plain.py", "--transport", "unix", "--socket", "s", *FILE],
        "--transport unix serves many sessions",
    ),
    "one file over tcp": (
        ["plain.py", "--transport", "tcp", *FILE],
        "--transport tcp serves many sessions",
    ),
    "a socket at a file": (
        ["plain.py", "--transport", "unix", "--socket", "plain.py"],
        "cannot listen at plain.py: the file exists and is not a socket",
    ),
    "a socket nowhere": (
        ["plain.py", "--transport", "unix", "--socket", "no/such/s"],
        "cannot listen at no/such/s: No such file or directory",
    ),
    "a host that can have no such name": (
        ["plain.py", *OVER_HTTP, "--host", "a..b"],
        "cannot listen at a..b:8000: ",
    ),
    "a certificate that does not exist": (
        ["plain.py", *OVER_HTTP, "--certfile", "cert.pem"],
        "File 'cert.pem' does not exist",
    ),
    "a file that is no certificate": (
        ["plain.py", *OVER_HTTP, "--certfile", "plain.py"],
        "no usable certificate and key in plain.py",
    ),
    "a file that is no certificate, with workers": (
        ["plain.py", *OVER_HTTP, "--workers", "2", "--certfile", "plain.py"],
        "no usable certificate and key in plain.py",
    ),
    "a key without a certificate": (
        ["plain.py", *OVER_HTTP, "--keyfile", "plain.py"],
        "--keyfile needs --certfile",
    ),
    "a certificate for tcp": (
        ["plain.py", "--transport", "tcp", "--certfile", "plain.py"],
        "--certfile cannot be used with tcp",
    ),
    "a Redis for websocket": (
        ["plain.py", "--transport", "websocket", "--redis", "redis://127.0.0.1"],
        "--redis cannot be used with websocket",
    ),
    "a rate that is none": (["plain.py", "--rate-limit", "often"], "'often' is not a rate"),
    "limits of workers that share nothing": (
        ["plain.py", *OVER_HTTP, "--workers", "2", "--concurrency-limit", "3"],
        "limits of several workers need --redis URL",
    ),
    "a Redis that is none": (
        ["plain.py", *OVER_HTTP, "--redis", "http://127.0.0.1"],
        "redis://",
    ),
    "a socket of a long name": (
        ["plain.py", "--transport", "unix", "--socket", "x" * 200],
        "path too long",
    ),
}
TAKEN = {
    "http": OVER_HTTP,
    "hypercorn": (*OVER_HTTP, "--server", "hypercorn"),
    "workers": (*OVER_HTTP, "--workers", "2"),
    "websocket": ("--transport", "websocket"),
    "tcp": ("--transport", "tcp"),
}


@pytest.fixture
def rejected(invoke, tmp_path, monkeypatch):
    """The error text of a rejected `run`; its servers are files in the working directory."""
    monkeypatch.chdir(tmp_path)
    for name, text in SERVERS.items():
        (tmp_path / name).write_text(BEGIN + text)

    def rejected(*arguments):
        shown = invoke("run", *arguments)
        assert shown.exit_code == 2
        return " ".join(shown.stderr.split())

    return rejected


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_contradictory_options_are_rejected_before_listening(name, rejected):
    arguments, complaint = CONTRADICTIONS[name]
    assert complaint in rejected(*arguments)


@pytest.mark.parametrize("way", TAKEN)
def test_a_port_in_use_is_named_in_the_error(way, rejected):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        text = rejected("plain.py", *TAKEN[way], "--port", str(port))
    assert text.startswith(f"cannot listen at 127.0.0.1:{port}: the port is in use: choose another")


def test_an_os_error_of_a_lifespan_keeps_its_traceback(rejected, invoke):
    with pytest.raises(OSError, match="the disk is in use"):
        invoke("run", "broken.py", *OVER_HTTP, "--port", "0")
    assert "cannot listen" in rejected("broken.py", "--transport", "unix", "--socket", "plain.py")


# CORS, for every command that listens over HTTP.


WEATHER = Path(__file__).parents[2] / "recordings" / "weather.mcprec.jsonl"
PAGE = "https://app.example"
ASKS = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "content-type",
}
ON_ANY_PORT = ("--transport", "http", "--port", "0")

# The arguments before the options, and after them.
COMMANDS = {
    "run": (["run", "mcp_trio.examples.weather", *ON_ANY_PORT], []),
    "run by hypercorn": (
        ["run", "mcp_trio.examples.weather", *ON_ANY_PORT, "--server", "hypercorn"],
        [],
    ),
    "mock": (["mock", WEATHER, *ON_ANY_PORT], []),
    "record": (["record", "--listen", "127.0.0.1:0", "-o", "all.jsonl"], ["--", "true"]),
    "bridge": (["bridge", "http://127.0.0.1:0"], ["--", "true"]),
}
ALLOWED = ("--allow-origin", PAGE)
ANSWERS = {
    "another origin": ((), 403, "origins="),
    "origin only": (ALLOWED, 403, "allows_cors="),
    "both options": ((*ALLOWED, "--allow-cors"), 204, ""),
}


def preflight(url):
    """Send the preflight request of a browser."""
    return httpx2.options(url, headers=ASKS)


@pytest.mark.parametrize("case", ANSWERS)
@pytest.mark.parametrize("command", COMMANDS)
def test_pages_can_read_responses_only_with_allow_origin_and_allow_cors(
    while_listening, tmp_path, monkeypatch, command, case
):
    monkeypatch.chdir(tmp_path)
    before, upstream = COMMANDS[command]
    options, status, text = ANSWERS[case]
    _, answer = while_listening(preflight, *before, *options, *upstream)
    assert answer.status_code == status
    assert text in answer.text
    allowed = answer.headers.get("access-control-allow-origin")
    assert allowed == (PAGE if status == 204 else None)


@pytest.mark.parametrize("allows_cors", [True, False])
@pytest.mark.parametrize("command", ["record", "bridge"])
def test_a_proxied_http_server_decides_about_cors_itself(
    while_listening, tmp_path, command, allows_cors
):
    with serving(Server("there"), origins=[PAGE], allows_cors=allows_cors) as url:
        arguments = {
            "record": ["record", "-o", tmp_path, "--listen", "127.0.0.1:0", "--to", url],
            "bridge": ["bridge", "http://127.0.0.1:0", url],
        }
        _, answer = while_listening(preflight, *arguments[command], *ALLOWED)
    assert answer.status_code == (204 if allows_cors else 403)
    assert answer.headers.get("access-control-allow-origin") == (PAGE if allows_cors else None)


def test_a_preflight_needs_no_token_but_a_post_does(while_listening):
    def use(url):
        sent = httpx2.post(url, json={}, headers=ASKS)
        return preflight(url).status_code, sent.status_code

    with serving(Server("there"), origins=[PAGE], allows_cors=True) as url:
        given = ("bridge", "http://127.0.0.1:0", url, *ALLOWED, "--token", "t")
        _, statuses = while_listening(use, *given)
    assert statuses == (204, 401)


# Limits per caller.

LIMITED = """
from mcp_trio import Server

server = Server("there")


@server.tool
async def add(a: int, b: int) -> int:
    return a + b
"""


def test_the_users_of_a_server_are_limited_and_the_recording_replays(invoke, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.py").write_text(LIMITED)
    command = [sys.executable, "-m", "mcp_trio", "run", "there.py", "--rate-limit", "2/hour"]
    command += ["--concurrency-limit", "1", "--quota", "1 kB/day", "--record", "a.mcprec.jsonl"]

    async def use():
        async with Client(command, inherit_env=True) as client:
            for _ in range(2):
                assert (await client.call_tool("add", {"a": 1, "b": 2})).data == 3
            with pytest.raises(RequestError, match=r"2/hour per user") as caught:
                await client.call_tool("add", {"a": 1, "b": 2})
        return caught.value.data["retryAfter"]

    assert trio.run(use) == pytest.approx(1800, abs=60)
    shown = invoke("replay", "a.mcprec.jsonl", "there.py")
    assert shown.exit_code == 0, shown.output


# The options of `mcp-trio run` for logs, the audit log, traces and metrics.

SERVER = """
from mcp_trio import Server

server = Server("theatre")

@server.tool
async def book(seat: str) -> str:
    return seat
"""


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--log-format", "text"], "need --log-file PATH"),
        (["--audit-key", "key"], "--audit-key needs --audit-log PATH"),
        (["--metrics-port", "0"], "--metrics-port cannot be used with stdio"),
        (
            ["--transport", "http", "--workers", "2", "--log-file", "x.log"],
            "put {pid} into its name",
        ),
        (["--log-file", "none/x"], "cannot write none/x: name a file in a folder that exists"),
        (["--audit-log", "."], "cannot write .: name a file in a folder that exists"),
    ],
)
def test_options_that_cannot_work_are_named(invoke, tmp_path, monkeypatch, options, text):
    monkeypatch.chdir(tmp_path)
    Path("server.py").write_text(SERVER, encoding="utf-8")
    done = invoke("run", "server.py", *options)
    assert done.exit_code == 2
    assert text in " ".join(done.output.split())


@pytest.mark.slow
@pytest.mark.real_time
def test_a_server_over_stdio_logs_audits_and_sends_its_spans(tmp_path):
    (tmp_path / "server.py").write_text(SERVER, encoding="utf-8")
    key = tmp_path / "key"
    key.write_text("the key of the auditor", encoding="utf-8")
    log, audit = tmp_path / "server.log", tmp_path / "audit.jsonl"
    command = [sys.executable, "-m", "mcp_trio", "run", str(tmp_path / "server.py"), "--telemetry"]
    command += ["--log-file", str(log), "--audit-log", str(audit), "--audit-key", str(key)]

    async def call(url):
        variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": url}
        async with Client(command, env=variables) as client:
            await client.call_tool("book", {"seat": "B2"})

    with OtlpReceiver() as receiver:
        trio.run(call, receiver.url)
    (span,) = [span for span in receiver.spans if span.name == "tools/call book"]
    assert (span.service, span.kind) == ("theatre", "SERVER")
    assert span.attributes["network.transport"] == "pipe"
    assert "mcp.server.operation.duration" in receiver.metrics
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    (line,) = [line for line in lines if line.get("target") == "book"]
    assert line["trace"] == span.trace_id
    report = check_audit_log(audit, key=key.read_bytes())
    assert (report.lines, report.problems, report.notes) == (3, [], [])


@pytest.mark.slow
@pytest.mark.real_time
def test_a_trace_goes_through_client_proxy_and_server(request):
    tool = request.config.rootpath / "tools/interop/traces.py"
    done = subprocess.run(
        [sys.executable, str(tool), "--ours"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    tree, _, shown = done.stdout.partition("\n\nThe record")
    lines = [line.split()[-5:-2] for line in tree.splitlines() if line.strip()[:5] == "tools"]
    assert [(service, kind) for service, kind, _ in lines] == [
        ("client", "CLIENT"),
        ("proxy", "SERVER"),
        ("proxy", "CLIENT"),
        ("greeter", "SERVER"),
    ]
    assert "effect ctx.sleep" in tree
    assert shown.count("->  tools/call greet") == 2


@pytest.mark.slow
@pytest.mark.real_time
def test_a_proxy_over_stdio_makes_spans_and_exits_with_the_status_of_the_server(tmp_path):
    (tmp_path / "server.py").write_text(f"{SERVER}\n\nserver.run()\nraise SystemExit(7)\n")
    file = tmp_path / "trip.mcprec.jsonl"
    command = [sys.executable, "-m", "mcp_trio", "record", "-o", str(file), "--telemetry", "--"]
    command += [sys.executable, str(tmp_path / "server.py")]

    async def call(url):
        variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": url}
        async with Client(command, env=variables, inherit_env=True) as client:
            await client.call_tool("book", {"seat": "B2"})

    with OtlpReceiver() as receiver:
        trio.run(call, receiver.url)
    sent, received = (span for span in receiver.spans if span.name == "tools/call book")
    assert [(span.service, span.kind) for span in (received, sent)] == [
        ("mcp-trio record", "SERVER"),
        ("mcp-trio record", "CLIENT"),
    ]
    assert sent.parent_id == received.span_id
    assert b'"exited","value":7' in file.read_bytes()
