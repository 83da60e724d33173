"""Follow traces through clients, the recording proxy and servers: `python tools/interop/traces.py`.

A receiver of OTLP gets the spans of all processes. Our client calls our server through the proxy:
this prints the trace as the receiver has it, then the record that each span names, with the trace
id in it, and the recordings that have the trace. Then the official Python SDK is the client of our
server behind the proxy, and the server of our client. At last client and server send their spans
to the receiver of `oteltest`. The exit status is 1 if the spans of a call are not one trace, or if
the SDK or `oteltest` is not installed; `--ours` leaves both out.
"""

import argparse
import ast
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Final

import trio
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from otlp_receiver import OtlpReceiver, ReceivedSpan
from peers import PYTHON_2, PYTHON_OTEL, is_installed

sys.path.append(str(Path(__file__).resolve().parents[1]))

from server_processes import free_port, running_server, stop, wait_until_listening

from mcp_trio import Client
from mcp_trio.observers import Telemetry

HERE: Final = Path(__file__).resolve().parent
MCP_TRIO: Final = [sys.executable, "-m", "mcp_trio"]
TURN: Final = "an agent's turn"
SERVER: Final = """
from mcp_trio import Context, Server

server = Server("greeter")

@server.tool
async def greet(name: str, *, ctx: Context) -> str:
    await ctx.sleep(0.01)
    return f"Hello, {name}"
"""


# The receiver prints each request as a dict in one line.
SINK: Final = """
import logging, sys, time
from oteltest.sink import HttpSink
from oteltest.sink.handler import PrintHandler

HttpSink(PrintHandler(), logging.getLogger(), int(sys.argv[1])).start()
time.sleep(600)
"""


async def call(target: str | list[str], provider: TracerProvider, **options: object) -> None:
    """Call the tool of a server within a span."""
    async with Client(target, observers=[Telemetry(provider)], **options) as client:  # type: ignore[arg-type]
        with provider.get_tracer("agent").start_as_current_span(TURN):
            await client.call_tool("greet", {"name": "Ada"})


def spans_of(receiver: OtlpReceiver, service: str, kind: str) -> list[ReceivedSpan]:
    """Return the spans of calls of the tool that a process has sent, in their order."""
    return [
        span
        for span in receiver.spans
        # The official SDK's client has words before the method.
        if (span.service, span.kind) == (service, kind) and span.name.endswith("tools/call greet")
    ]


def show(*arguments: str) -> str:
    """Print a command and its output, and return the output."""
    print(f"\n$ mcp-trio {' '.join(arguments)}")
    done = subprocess.run([*MCP_TRIO, *arguments], capture_output=True, text=True, check=True)
    print(done.stdout)
    return done.stdout


def check(receiver: OtlpReceiver, *services: str) -> list[ReceivedSpan]:
    """Print the trace of the last call of a client, and return its spans from above to below.

    Args:
        receiver: The receiver of the spans.
        services: The services, from the client to the server.

    Raises:
        SystemExit: No span of a service is below that of the one before it.
    """
    client, *others = services
    chain = [spans_of(receiver, client, "CLIENT")[-1]]
    print("\n".join(receiver.tree(chain[0].trace_id)))
    for service in others:
        for kind in ("SERVER",) if service == others[-1] else ("SERVER", "CLIENT"):
            above = chain[-1]
            below = [
                span
                for span in spans_of(receiver, service, kind)
                if (span.trace_id, span.parent_id) == (above.trace_id, above.span_id)
            ]
            if not below:
                raise SystemExit(f"no {kind} span of {service} is below that of {above.service}")
            chain.append(below[0])
    return chain


def provider_for(url: str) -> TracerProvider:
    """Return the provider of a client, which sends its spans to a receiver."""
    provider = TracerProvider(resource=Resource.create({"service.name": "client"}))
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{url}/v1/traces")))
    return provider


def check_packaged_receiver(program: Path) -> None:
    """Let the receiver of `oteltest` print the spans of our client and our server.

    Raises:
        SystemExit: It has not received the spans of both as one trace.
    """
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_BSP_SCHEDULE_DELAY": "50"}
    sink = [PYTHON_OTEL.python, "-c", SINK, str(port)]
    run = [*MCP_TRIO, "run", str(program), "--transport", "http", "--port", "0", "--telemetry"]
    environment = {**os.environ, **variables}
    with subprocess.Popen(sink, stdout=subprocess.PIPE, text=True) as process:
        try:
            wait_until_listening(port, process)
            with running_server(run, program.with_suffix(".log"), env=environment) as server:
                trio.run(call, server.url, provider_for(url))
        finally:
            stop(process)
        assert process.stdout is not None
        requests = [ast.literal_eval(line) for line in process.stdout]
    traces: dict[str, set[str]] = {}
    for request in requests:
        for resource in request.get("resourceSpans", ()):
            names = {each["key"]: each["value"] for each in resource["resource"]["attributes"]}
            service = names["service.name"]["stringValue"]
            for span in (span for scope in resource["scopeSpans"] for span in scope["spans"]):
                if span["name"] == "tools/call greet":
                    traces.setdefault(span["traceId"], set()).add(service)
    print(f"\nThe receiver of oteltest has the call in the traces {traces}")
    if [*traces.values()] != [{"client", "greeter"}]:
        raise SystemExit("the spans of client and server are not one trace")


def main() -> None:
    """Run the tour."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ours", action="store_true", help="leave the packages of others out")
    with_sdk = not parser.parse_args().ours
    if with_sdk and not (is_installed(PYTHON_2) and is_installed(PYTHON_OTEL)):
        raise SystemExit("packages are not installed: python tools/interop/install.py")
    sdk = PYTHON_2.start(str(HERE / "python_2_traces.py"))
    with tempfile.TemporaryDirectory() as name, OtlpReceiver() as receiver:
        folder = Path(name)
        for each in ("served", "passed"):
            (folder / each).mkdir()
        program = folder / "greeter.py"
        program.write_text(SERVER, encoding="utf-8")
        variables = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
            "OTEL_BSP_SCHEDULE_DELAY": "50",
        }
        provider = provider_for(receiver.url)
        served, passed = str(folder / "served"), str(folder / "passed")
        run = [*MCP_TRIO, "run", str(program), "--transport", "http", "--port", "0"]
        run += ["--record", served, "--telemetry"]
        environment = {**os.environ, **variables}
        with running_server(run, folder / "server.log", env=environment) as server:
            proxy = [*MCP_TRIO, "record", "-o", passed, "--listen", "127.0.0.1:0"]
            proxy += ["--to", server.url, "--telemetry"]
            of_proxy = {**environment, "OTEL_SERVICE_NAME": "proxy"}
            with running_server(proxy, folder / "proxy.log", env=of_proxy) as running_proxy:
                trio.run(call, running_proxy.url, provider)
                if with_sdk:
                    client = [*sdk, "client", running_proxy.url]
                    subprocess.run(client, env=environment, check=True)
        print("Our client, the recording proxy, our server, as the receiver has the trace:\n")
        spans = check(receiver, "client", "proxy", "greeter")
        trace_id = spans[-1].trace_id
        for span in spans[-2:]:
            print(f"\nThe record that the span of {span.service} names:")
            file = span.attributes["mcp_trio.recording.file"]
            shown = show("show", file, "--at", str(span.attributes["mcp_trio.recording.record"]))
            if trace_id not in shown:
                raise SystemExit(f"the record does not have the trace id {trace_id}")
        print("The recordings that have the trace id:")
        show("find", served, f"trace:{trace_id}")
        show("find", passed, f"trace:{trace_id}")
        if with_sdk:
            print("The official SDK's client, the recording proxy, and our server:\n")
            check(receiver, "sdk-client", "proxy", "greeter")
            print("\nOur client, and a server of the official SDK:\n")
            of_sdk = {**variables, "PYTHONPATH": ""}
            trio.run(partial(call, [*sdk, "server"], provider, env=of_sdk))
            check(receiver, "client", "sdk-server")
            check_packaged_receiver(program)


if __name__ == "__main__":
    main()
