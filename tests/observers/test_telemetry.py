"""Spans and measurements by OpenTelemetry's SDK, in memory and at a receiver of OTLP."""

import itertools
import json

import httpx2
import pytest
import trio
from click.testing import CliRunner
from memory_sessions import client_session
from opentelemetry import baggage, context, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from otlp_receiver import OtlpReceiver

from mcp_trio import Client, Context, RequestError, Server, ToolError
from mcp_trio._cli.commands import commands
from mcp_trio.http import EffectTransport
from mcp_trio.observers import Telemetry
from mcp_trio.recording import replay, replay_async

VERSIONS = ["2026-07-28", "2025-11-25"]


def tracing():
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider, exporter


def harbour(*observers):
    server = Server("harbour", observers=observers)

    @server.tool
    async def moor(ship: str, *, ctx: Context) -> str:
        await ctx.sleep(1)
        if ship == "raft":
            raise ToolError("no ship")
        return str(baggage.get_baggage("crew") or "moored")

    @server.resource("harbour://tide")
    async def tide() -> str:
        return "high"

    @server.tool
    async def name_it(ctx: Context) -> str:
        return (await ctx.sample("a name")).content.text

    return server


def by_name(exporter):
    return {(span.name, span.kind): span for span in exporter.get_finished_spans()}


@pytest.mark.requirement("TRACE-01")
@pytest.mark.parametrize("version", VERSIONS)
async def test_a_trace_leads_from_the_client_through_the_server_to_the_effect(
    version, autojump_clock
):
    provider, exporter = tracing()
    server = harbour(Telemetry(provider))
    observers = [Telemetry(provider)]
    async with Client(server, observers=observers, protocol_versions=[version]) as client:
        exporter.clear()
        with provider.get_tracer("user").start_as_current_span("a day"):
            await client.call_tool("moor", {"ship": "cog"})
    spans = by_name(exporter)
    chain = [
        spans["a day", SpanKind.INTERNAL],
        spans["tools/call moor", SpanKind.CLIENT],
        spans["tools/call moor", SpanKind.SERVER],
        spans["effect ctx.sleep", SpanKind.INTERNAL],
    ]
    for outer, inner in itertools.pairwise(chain):
        assert inner.parent.span_id == outer.context.span_id
    assert len({span.context.trace_id for span in chain}) == 1
    assert dict(chain[2].attributes) == {
        "mcp.method.name": "tools/call",
        "gen_ai.tool.name": "moor",
        "gen_ai.operation.name": "execute_tool",
        "jsonrpc.request.id": "2",
        "mcp.protocol.version": version,
    }
    assert all(span.status.status_code is StatusCode.UNSET for span in chain)


async def test_a_request_of_a_handler_over_http_carries_the_trace_and_its_record_does_not(tmp_path):
    provider, exporter = tracing()
    asked = []

    def answer(request):
        asked.append(request.headers)
        return httpx2.Response(200, text="high")

    def asking(**options):
        server = Server("harbour", **options)

        @server.tool
        async def tide() -> str:
            transport = EffectTransport(httpx2.MockTransport(answer))
            async with httpx2.AsyncClient(transport=transport) as client:
                own = await client.get("http://tides/own", headers={"traceparent": "mine"})
                return own.text + (await client.get("http://tides/now")).text

        return server

    path = tmp_path / "day.mcprec.jsonl"
    server = asking(observers=[Telemetry(provider)], record=path)
    async with Client(server) as client:
        await client.call_tool("tide")
    effect = by_name(exporter)["effect ctx.http", SpanKind.INTERNAL]
    trace_id, span_id = effect.context.trace_id, effect.context.span_id
    own, traced = (each.get("traceparent") for each in asked)
    assert own == "mine"
    assert traced.startswith(f"00-{trace_id:032x}-{span_id:016x}-")
    assert f"{span_id:016x}" not in path.read_text()
    assert (await replay_async(path, asking())).is_complete


async def test_errors_are_named_as_the_conventions_say(autojump_clock):
    provider, exporter = tracing()
    async with Client(harbour(Telemetry(provider)), observers=[Telemetry(provider)]) as client:
        with pytest.raises(ToolError):
            await client.call_tool("moor", {"ship": "raft"})
        failed = by_name(exporter)
        exporter.clear()
        with pytest.raises(RequestError):
            await client.call_tool("sink")
        rejected = by_name(exporter)
        exporter.clear()
        with pytest.raises(RequestError):
            await client.read_resource("harbour://moon")
        (missing, _) = exporter.get_finished_spans()
    for kind in (SpanKind.CLIENT, SpanKind.SERVER):
        span = failed["tools/call moor", kind]
        assert span.attributes["error.type"] == "tool_error"
        assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, None)
        span = rejected["tools/call sink", kind]
        assert span.attributes["error.type"] == "-32602"
        assert span.attributes["rpc.response.status_code"] == "-32602"
        assert span.status.description == "unknown tool: sink"
    # A URI is an attribute, and no part of the name.
    assert missing.name == "resources/read"
    assert missing.attributes["mcp.resource.uri"] == "harbour://moon"


async def test_baggage_reaches_the_handler(autojump_clock):
    async with Client(harbour(Telemetry()), observers=[Telemetry()]) as client:
        token = context.attach(baggage.set_baggage("crew", "nine"))
        result = await client.call_tool("moor", {"ship": "cog"})
        context.detach(token)
        assert result.data == "nine"
        assert (await client.call_tool("moor", {"ship": "cog"})).data == "moored"
    assert baggage.get_baggage("crew") is None


async def test_two_handlers_at_once_have_their_own_spans_and_leave_none(autojump_clock):
    provider, exporter = tracing()
    found = {}
    server = Server("harbour", observers=[Telemetry(provider, handlers=True)])

    @server.tool
    async def moor(ship: str, *, ctx: Context) -> None:
        before = trace.get_current_span().get_span_context()
        await ctx.sleep(len(ship))
        found[ship] = (before, trace.get_current_span().get_span_context())

    async with Client(server) as client, trio.open_nursery() as nursery:
        for ship in ("hulk", "cog"):
            nursery.start_soon(client.call_tool, "moor", {"ship": ship})
    assert found["cog"][0] == found["cog"][1] != found["hulk"][0] == found["hulk"][1]
    assert not trace.get_current_span().get_span_context().is_valid
    spans = exporter.get_finished_spans()
    inner = [span for span in spans if span.name == "handler of tools/call"]
    ids = {span.context.span_id for span in inner}
    assert ids == {found["cog"][0].span_id, found["hulk"][0].span_id}
    outer = {span.context.span_id for span in spans if span.name == "tools/call moor"}
    assert {span.parent.span_id for span in inner} == outer


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_server_sends_no_trace_context_to_its_client(version, autojump_clock):
    provider, _ = tracing()
    received = []

    async def sample(params):
        received.append(params.meta or {})
        from mcp_trio.types import CreateMessageResult, TextContent

        return CreateMessageResult(role="assistant", content=TextContent(text="A"), model="m")

    server = harbour(Telemetry(provider))
    async with Client(server, sampling=sample, protocol_versions=[version]) as client:
        await client.call_tool("name_it")
    assert not [meta for meta in received if "traceparent" in meta]
    assert received


def test_a_span_leads_to_its_record_and_the_record_to_its_trace(tmp_path):
    provider, exporter = tracing()
    server, path = harbour(Telemetry(provider)), tmp_path / "day.mcprec.jsonl"

    async def day():
        async with client_session(server, path, observers=[Telemetry(provider)]) as client:
            await client.call_tool("moor", {"ship": "cog"})

    clock = trio.testing.MockClock(autojump_threshold=0)
    trio.run(day, clock=clock)
    span = by_name(exporter)["tools/call moor", SpanKind.SERVER]
    file = span.attributes["mcp_trio.recording.file"]
    number = span.attributes["mcp_trio.recording.record"]
    shown = CliRunner().invoke(commands, ["show", file, "--at", str(number)]).output
    rows = [line for line in shown.splitlines() if "tools/call moor" in line and "->" in line]
    assert len(rows) == 1
    assert f"{span.context.trace_id:032x}" in rows[0]
    assert "shown: 2 of" in shown
    effect = by_name(exporter)["effect ctx.sleep", SpanKind.INTERNAL]
    assert effect.attributes["mcp_trio.recording.file"] == file
    at = str(effect.attributes["mcp_trio.recording.record"])
    shown = CliRunner().invoke(commands, ["show", file, "--at", at, "--json"]).output
    rows = [json.loads(line) for line in shown.splitlines()]
    assert [row["kind"] for row in rows if row["record"] == int(at)] == ["cmd"]
    found = CliRunner().invoke(
        commands, ["find", str(tmp_path), f"trace:{span.context.trace_id:032x}"]
    )
    assert "day.mcprec.jsonl" in found.output
    exporter.clear()
    assert replay(path, harbour(Telemetry(provider))).is_complete
    assert not exporter.get_finished_spans()
    assert replay(path, harbour(Telemetry(provider, observes_replays=True))).is_complete
    replayed = by_name(exporter)["tools/call moor", SpanKind.SERVER]
    assert replayed.context.trace_id == span.context.trace_id


async def test_the_measurements_of_the_conventions_and_gauges(autojump_clock):
    reader = InMemoryMetricReader()
    meters = MeterProvider([reader])
    server = harbour(Telemetry(meter_provider=meters))

    def measured():
        (resource,) = reader.get_metrics_data().resource_metrics
        (scope,) = resource.scope_metrics
        return {metric.name: metric for metric in scope.metrics}

    def value(name):
        (point,) = measured()[name].data.data_points
        return point.value

    async with Client(server, observers=[Telemetry(meter_provider=meters)]) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "moor", {"ship": "cog"})
            await trio.sleep(0.5)
            assert value("mcp_trio.sessions") == 1
            assert value("mcp_trio.handlers.running") == 1
        with pytest.raises(RequestError):
            await client.call_tool("sink")
        assert value("mcp_trio.handlers.running") == 0
    assert value("mcp_trio.sessions") == 0
    for name in ("mcp.server.operation.duration", "mcp.client.operation.duration"):
        points = measured()[name].data.data_points
        counts = {
            (
                point.attributes["mcp.method.name"],
                point.attributes.get("gen_ai.tool.name"),
            ): point.count
            for point in points
        }
        # An unknown tool has no series of its own.
        assert counts["tools/call", "moor"] == 1
        assert counts["tools/call", None] == 1
        assert points[0].explicit_bounds[:3] == (0.01, 0.02, 0.05)
    assert measured()["mcp.server.session.duration"].data.data_points[0].count == 1


async def test_peers_make_no_series_by_their_methods_and_error_codes(autojump_clock):
    reader = InMemoryMetricReader()
    server = harbour(Telemetry(meter_provider=MeterProvider([reader])))
    codes = iter((7001, 7002, -32603))

    async def sampling(_):
        raise RequestError(next(codes), "no name")

    async with Client(
        server,
        sampling=sampling,
        methods={"harbour/one": dict, "harbour/two": dict},
        protocol_versions=["2025-11-25"],
    ) as client:
        for method in ("harbour/one", "harbour/two"):
            with pytest.raises(RequestError):
                await client.request(method, {})
        for _ in range(3):
            with pytest.raises(RequestError):
                await client.call_tool("name_it")
    (resource,) = reader.get_metrics_data().resource_metrics
    measured = {metric.name: metric.data for metric in resource.scope_metrics[0].metrics}

    def counts(name):
        return {
            (
                point.attributes["mcp.method.name"],
                point.attributes.get("rpc.response.status_code"),
                point.attributes.get("error.type"),
            ): point.count
            for point in measured[f"mcp.{name}.operation.duration"].data_points
        }

    assert counts("server") == {
        ("initialize", None, None): 1,
        ("_OTHER", "-32601", "-32601"): 2,
        ("tools/call", "_OTHER", "_OTHER"): 2,
        ("tools/call", "-32603", "-32603"): 1,
    }
    assert counts("client") == {
        ("sampling/createMessage", "_OTHER", "_OTHER"): 2,
        ("sampling/createMessage", "-32603", "-32603"): 1,
    }


@pytest.mark.real_time
async def test_a_receiver_of_otlp_gets_the_trace_from_exporters_in_threads(tmp_path):
    with OtlpReceiver() as receiver:
        exporter = OTLPSpanExporter(f"{receiver.url}/v1/traces")
        provider = TracerProvider(resource=Resource({"service.name": "harbour"}))
        provider.add_span_processor(BatchSpanProcessor(exporter))
        server = harbour(Telemetry(provider))
        async with Client(server, observers=[Telemetry(provider)]) as client:
            await client.read_resource("harbour://tide")
        assert await trio.to_thread.run_sync(provider.force_flush)
        await trio.to_thread.run_sync(provider.shutdown)
    read = [span for span in receiver.spans if span.name == "resources/read"]
    ours = next(span for span in read if span.kind == "CLIENT")
    theirs = next(span for span in read if span.kind == "SERVER")
    assert (theirs.trace_id, theirs.parent_id) == (ours.trace_id, ours.span_id)
    assert theirs.service == "harbour"
    assert theirs.attributes["mcp.resource.uri"] == "harbour://tide"
    assert [line.split()[0] for line in receiver.tree(ours.trace_id)] == ["resources/read"] * 2
