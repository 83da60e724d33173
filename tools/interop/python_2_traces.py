"""The official Python SDK 2 as one end of a trace.

    python python_2_traces.py client URL
    python python_2_traces.py server

The SDK makes spans with OpenTelemetry's API by itself. `OTEL_EXPORTER_OTLP_ENDPOINT` says where
they are sent.
"""

import sys

import anyio
from mcp import Client
from mcp.server import MCPServer
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor


async def call(url: str) -> None:
    """Call the tool of the server once."""
    async with Client(url) as client:
        with trace.get_tracer("agent").start_as_current_span("an agent's turn"):
            await client.call_tool("greet", {"name": "Ada"})


def main(role: str, *arguments: str) -> None:
    """Run the client or the server."""
    provider = TracerProvider(resource=Resource.create({"service.name": f"sdk-{role}"}))
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    if role == "client":
        anyio.run(call, *arguments)
        return
    server = MCPServer("greeter")

    @server.tool()
    async def greet(name: str) -> str:
        """Greet by name."""
        return f"Hello, {name}"

    server.run()


main(*sys.argv[1:])
