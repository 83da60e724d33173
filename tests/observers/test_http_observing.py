"""Requests over HTTP in traces, metrics and logs, also those that reach no session."""

import json
import re
from contextlib import asynccontextmanager

import httpx2
import pytest
import trio
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.trace import SpanKind, StatusCode

from mcp_trio import Client, ConnectionLost, Server
from mcp_trio.auth import StaticTokens
from mcp_trio.http import HttpStores, MemoryInstances
from mcp_trio.observers import AuditLog, Metrics, RequestLog, Telemetry, check_audit_log
from tests.observers.test_metrics import samples
from tests.observers.test_telemetry import by_name, tracing
from tests.server.http.conftest import call, harbour, site_of

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE_ID}-00f067aa0ba902b7-01"
OTHER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize("leads", [False, True])
async def test_a_request_continues_the_trace_in_the_headers_of_http(leads, autojump_clock):
    provider, exporter = tracing()
    async with site_of(harbour(observers=[Telemetry(provider)]), leads=leads) as site:
        answer = await site.ask_stateless(call("wait", {"seconds": 1}), traceparent=TRACEPARENT)
        assert answer.status == 200
        await trio.testing.wait_all_tasks_blocked()
    found = by_name(exporter)
    http, mcp = found["POST /mcp", SpanKind.SERVER], found["tools/call wait", SpanKind.SERVER]
    assert f"{http.context.trace_id:032x}" == TRACE_ID
    assert http.parent.span_id == int(TRACEPARENT.split("-")[2], 16)
    assert mcp.parent.span_id == http.context.span_id
    assert dict(http.attributes) == {
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "http.route": "/mcp",
        "url.path": "/mcp",
        "url.scheme": "http",
    }


async def test_a_request_with_a_trace_in_its_meta_is_linked_to_that_of_http(autojump_clock):
    provider, exporter = tracing()
    async with site_of(harbour(observers=[Telemetry(provider)])) as site:
        meta = {"traceparent": TRACEPARENT}
        await site.ask_stateless(call("tide"), meta=meta, traceparent=OTHER)
        legacy = await site.open(traceparent=OTHER)
        await legacy.ask(call("tide"))
    spans = [each for each in exporter.get_finished_spans() if each.name == "tools/call tide"]
    https = [each for each in exporter.get_finished_spans() if each.name == "POST /mcp"]
    assert f"{spans[0].context.trace_id:032x}" == TRACE_ID
    assert [link.context.span_id for link in spans[0].links] == [https[0].context.span_id]
    # The span of a request in a session is below its own request over HTTP.
    assert spans[1].parent.span_id == https[-1].context.span_id


async def test_a_trace_in_the_meta_is_that_of_the_request_over_http_if_its_headers_have_none(
    autojump_clock,
):
    provider, exporter = tracing()
    async with site_of(harbour(observers=[Telemetry(provider)])) as site:
        await site.ask_stateless(call("tide"), meta={"traceparent": TRACEPARENT})
    spans = by_name(exporter)
    http, mcp = spans["POST /mcp", SpanKind.SERVER], spans["tools/call tide", SpanKind.SERVER]
    assert http.context.trace_id == mcp.context.trace_id == int(TRACE_ID, 16)
    assert http.parent.span_id == mcp.parent.span_id
    assert [link.context.span_id for link in mcp.links] == [http.context.span_id]
    assert http.start_time <= mcp.start_time <= http.end_time


async def test_a_span_of_the_application_around_the_server_is_that_of_the_request(autojump_clock):
    provider, exporter = tracing()
    app = harbour(observers=[Telemetry(provider)]).asgi()
    with provider.get_tracer("user").start_as_current_span("GET /their/mcp") as theirs:
        transport = httpx2.ASGITransport(app)
        async with Client(
            "http://127.0.0.1/mcp", http=httpx2.AsyncClient(transport=transport)
        ) as client:
            await client.call_tool("tide")
    spans = by_name(exporter)
    assert ("POST /mcp", SpanKind.SERVER) not in spans
    mcp = spans["tools/call tide", SpanKind.SERVER]
    assert mcp.parent.span_id == theirs.get_span_context().span_id


async def test_a_span_of_the_application_around_the_server_is_that_of_a_websocket(autojump_clock):
    provider, exporter = tracing()
    app = harbour(observers=[Telemetry(provider)]).asgi()
    scope = {
        "type": "websocket",
        "scheme": "ws",
        "path": "/ws",
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1"), (b"sec-websocket-protocol", b"mcp")],
    }
    received, sent = iter([{"type": "websocket.connect"}, {"type": "websocket.disconnect"}]), []

    async def receive():
        await trio.lowlevel.checkpoint()
        return next(received)

    async def send(message):
        await trio.lowlevel.checkpoint()
        sent.append(message["type"])

    with provider.get_tracer("user").start_as_current_span("GET /their/ws"):
        await app(scope, receive, send)
    await app.aclose()
    assert sent[0] == "websocket.accept"
    assert [each.name for each in exporter.get_finished_spans()] == ["GET /their/ws"]


async def test_a_span_around_a_server_that_listens_is_not_that_of_its_requests(autojump_clock):
    provider, exporter = tracing()
    with provider.get_tracer("user").start_as_current_span("the program") as program:
        async with site_of(harbour(observers=[Telemetry(provider)])) as site:
            await site.ask_stateless(call("tide"))
    spans = by_name(exporter)
    http, mcp = spans["POST /mcp", SpanKind.SERVER], spans["tools/call tide", SpanKind.SERVER]
    assert http.parent is None
    assert mcp.parent.span_id == http.context.span_id
    assert http.context.trace_id != program.get_span_context().trace_id


@asynccontextmanager
async def two_instances(*observers):
    """Two instances of a server, each with an observer of its own."""
    stores = HttpStores(instances=MemoryInstances())
    here, there = (site_of(harbour(observers=[each]), stores=stores) for each in observers)
    async with here as one, there as other:
        yield one, other


@asynccontextmanager
async def two_traced_instances():
    """Two instances, and the exporter of the spans of each."""
    (provider, exporter), (other_provider, other_exporter) = tracing(), tracing()
    async with two_instances(Telemetry(provider), Telemetry(other_provider)) as (here, there):
        yield here, there, exporter, other_exporter


@pytest.mark.parametrize("headers", [{}, {"traceparent": TRACEPARENT}], ids=["new", "continued"])
async def test_a_forwarded_request_is_below_the_one_over_http(autojump_clock, headers):
    async with two_traced_instances() as (here, there, spans, spans_there):
        client = await there.open()
        spans_there.clear()
        answer = await here.ask("POST", call("tide"), Mcp_Session_Id=client.id, **headers)
        assert answer.status == 200
        (http,), (mcp,) = spans.get_finished_spans(), spans_there.get_finished_spans()
    assert (http.name, mcp.name) == ("POST /mcp", "tools/call tide")
    assert mcp.parent.span_id == http.context.span_id
    assert mcp.context.trace_id == http.context.trace_id
    if headers:
        assert f"{http.context.trace_id:032x}" == TRACE_ID
        assert http.parent.span_id == int(TRACEPARENT.split("-")[2], 16)
    else:
        assert http.parent is None


async def test_a_forwarded_request_with_a_trace_in_its_meta_is_linked_to_that_of_http(
    autojump_clock,
):
    async with two_traced_instances() as (here, there, spans, spans_there):
        client = await there.open()
        spans_there.clear()
        message = call("tide", _meta={"traceparent": TRACEPARENT})
        await here.ask("POST", message, Mcp_Session_Id=client.id)
        (http,), (mcp,) = spans.get_finished_spans(), spans_there.get_finished_spans()
    assert http.context.trace_id == mcp.context.trace_id == int(TRACE_ID, 16)
    assert http.parent.span_id == mcp.parent.span_id == int(TRACEPARENT.split("-")[2], 16)
    assert [link.context.span_id for link in mcp.links] == [http.context.span_id]


async def test_a_session_that_another_instance_opens_is_below_the_request_over_http(autojump_clock):
    async with two_traced_instances() as (here, _, spans, spans_there):
        here.runtime.forwarder.is_leaving = True
        await here.open()
        (http, *_), (mcp, *_) = spans.get_finished_spans(), spans_there.get_finished_spans()
    assert (http.name, mcp.name) == ("POST /mcp", "initialize")
    assert mcp.parent.span_id == http.context.span_id


async def test_a_forwarded_request_is_counted_by_one_instance(autojump_clock):
    async with two_instances(Metrics(), Metrics()) as sites:
        here, there = sites
        client = await there.open()

        def responses():
            observers = [site.runtime.server.server.observers[0] for site in sites]
            found = [samples(each.text().decode()) for each in observers]
            return [
                sum(n for key, n in each.items() if key[0] == "mcp_http_responses_total")
                for each in found
            ]

        before = responses()
        await here.ask("POST", call("tide"), Mcp_Session_Id=client.id)
        assert [n - m for n, m in zip(responses(), before, strict=True)] == [1, 0]


async def test_an_observer_of_forwarded_requests_that_fails_changes_nothing(caplog, autojump_clock):
    class Fails:
        def begin(self, _):
            return None

        def begin_http(self, activity):
            activity.forwarded_trace = self.begin_forwarded

        def begin_forwarded(self, _):
            raise RuntimeError

    async with two_instances(Fails(), Fails()) as (here, there):
        client = await there.open()
        answer = await here.ask("POST", call("tide"), Mcp_Session_Id=client.id)
        assert answer.status == 200
    assert caplog.text.count("the observer Fails failed") == 1
    assert caplog.text.count("an observer failed") == 1


async def test_errors_and_health_checks_over_http(autojump_clock):
    provider, exporter = tracing()
    reader = InMemoryMetricReader()
    server = harbour(observers=[Telemetry(provider, MeterProvider([reader]))])

    @server.route("/fail")
    async def fail(_):
        return object()

    async with site_of(server) as site:
        assert (await site.ask("GET", path="/health")).status == 200
        assert (await site.ask("GET", path="/fail")).status == 500
        assert (await site.ask("BREW", path="/none")).status == 404
    failed, brewed = exporter.get_finished_spans()
    assert (failed.name, failed.status.status_code) == ("GET", StatusCode.ERROR)
    assert failed.attributes["error.type"] == "500"
    assert (brewed.name, brewed.status.status_code) == ("HTTP", StatusCode.UNSET)
    assert brewed.attributes["http.request.method"] == "_OTHER"
    ((scope,),) = (each.scope_metrics for each in reader.get_metrics_data().resource_metrics)
    (durations,) = (m for m in scope.metrics if m.name == "http.server.request.duration")
    assert sum(point.count for point in durations.data.data_points) == 3


async def test_requests_that_reach_no_session_are_counted_and_logged(tmp_path, autojump_clock):
    metrics, log, audit = Metrics(), tmp_path / "server.log", tmp_path / "audit.jsonl"
    observers = [metrics, RequestLog(log), AuditLog(audit)]
    server = harbour(observers=observers, auth=StaticTokens({"t": "anna"}))
    async with site_of(server) as site:
        authorized = {"Authorization": "Bearer t", "traceparent": TRACEPARENT}
        assert (await site.ask_stateless(call("tide"), **authorized)).status == 200
        assert (await site.ask("POST", b"{", **authorized)).status == 400
        for _ in range(3):
            assert (await site.ask_stateless(call("tide"))).status == 401
        assert (await site.ask("POST", {}, Origin="https://evil.test")).status == 403
    found = samples(metrics.text().decode())
    counted = {key[2]: n for key, n in found.items() if key[0] == "mcp_http_responses_total"}
    assert counted == {
        ("status", code): n for code, n in (("200", 1), ("400", 1), ("401", 3), ("403", 1))
    }
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    rejected = [line for line in lines if line.get("outcome") == "rejected"]
    assert [line["status"] for line in rejected] == [400, 401, 401, 401, 403]
    assert rejected[0]["principal"] == "anna"
    assert rejected[0]["trace"] == TRACE_ID
    assert rejected[0]["http"] == "POST /mcp"
    assert rejected[-1]["text"].startswith("POST /mcp: 403, Origin 'https://evil.test'")
    # Of the denied requests in a second, one has a line.
    _, used, denied, closed = (json.loads(line) for line in audit.read_text().splitlines())
    assert (used["target"], used["decision"]) == ("tide", "allowed")
    assert (denied["http"], denied["status"], denied["decision"]) == ("POST /mcp", 401, "denied")
    assert closed["requests_denied"] == 3
    assert not check_audit_log(audit).problems


async def test_denied_requests_have_a_line_a_second(tmp_path, autojump_clock, monkeypatch):
    seconds = 100.0
    monkeypatch.setattr("mcp_trio._observers.audit_log.time.monotonic", lambda: seconds)
    audit = tmp_path / "audit.jsonl"
    server = harbour(observers=[AuditLog(audit)], auth=StaticTokens({"t": "anna"}))
    async with site_of(server) as site:
        for each in (100, 100, 100.9, 101.5):
            seconds = each
            await site.ask("POST", {})
    _, first, second, _ = (json.loads(line) for line in audit.read_text().splitlines())
    assert "requests" not in first
    assert second["requests"] == 3


async def test_handshakes_of_websockets_are_observed():
    provider, exporter = tracing()
    server = Server("harbour", observers=[Telemetry(provider)], auth=StaticTokens({"t": "anna"}))
    async with trio.open_nursery() as nursery:
        url = await nursery.start(server.serve_http)
        websocket = re.sub("^http", "ws", url).removesuffix("/mcp") + "/ws"
        async with Client(websocket, token="t") as client:
            await client.ping()
        with pytest.raises(ConnectionLost):
            async with Client(websocket, token="none"):
                pass
        nursery.cancel_scope.cancel()
    spans = [each for each in exporter.get_finished_spans() if each.name == "GET /ws"]
    assert [each.attributes["http.response.status_code"] for each in spans] == [101, 401]
    # A session outlives the request that opened it, so its requests are in traces of their own.
    (other, *_) = (each for each in exporter.get_finished_spans() if each.name != "GET /ws")
    assert other.context.trace_id != spans[0].context.trace_id


async def test_an_observer_of_http_that_fails_changes_nothing(caplog, autojump_clock):
    class Fails:
        def begin(self, _):
            return None

        def begin_http(self, activity):
            if activity.method == "GET":
                raise RuntimeError

            def end(_):
                raise RuntimeError

            return end

    async with site_of(harbour(observers=[Fails()])) as site:
        assert (await site.ask("GET", path="/health")).status == 200
        assert (await site.ask_stateless(call("tide"))).status == 200
    assert caplog.text.count("the observer Fails failed") == 2


async def test_a_client_that_is_gone_before_the_response(autojump_clock):
    provider, exporter = tracing()
    async with site_of(harbour(observers=[Telemetry(provider)])) as site:
        exchange = site.stateless(call("tide"))
        exchange.leave()
        await site.answered(exchange)
    span = by_name(exporter)["POST /mcp", SpanKind.SERVER]
    assert span.attributes["error.type"] == "disconnected"
    assert span.status.status_code is StatusCode.UNSET
