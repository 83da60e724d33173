"""The options of `mcp-trio run` for logs, the audit log, traces and metrics."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from otlp_receiver import OtlpReceiver

from mcp_trio import Client
from mcp_trio.observers import check_audit_log

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
    ],
)
def test_options_that_contradict_each_other_are_named(invoke, tmp_path, monkeypatch, options, text):
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
