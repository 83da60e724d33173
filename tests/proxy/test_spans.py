"""The spans of proxies: between the client's and the server's, and named by their records."""

import json
from contextlib import asynccontextmanager
from functools import partial

import httpx2
import pytest
import trio
import trio.testing
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NoOpTracer, SpanKind, StatusCode

from mcp_trio import Client, Limits, Server, ToolError
from mcp_trio._proxy.http import ListenOptions, OpenRecordings, serve_http_proxy
from mcp_trio._proxy.journal import MessageJournal, start_message_journal
from mcp_trio._proxy.spans import RequestSpans
from mcp_trio._transports.http_client_requests import EndpointClient, client_for
from mcp_trio.observers import Telemetry
from mcp_trio.recording import body_bytes, open_recording, read_recording
from tests.proxy.bridged import bridged
from tests.transports.http.scripted_server import (
    EVENTS,
    Legacy,
    Reply,
    asking,
    event,
    events,
    streaming,
)

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT_ID = "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE_ID}-{PARENT_ID}-01"
CALL = (
    b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"moor",'
    b'"arguments":{"depth":1.50,"n":12345678901234567890123},"_meta":{"x":1e2,"traceparent":"%s"}}}'
    % TRACEPARENT.encode()
)


@pytest.fixture
def exporter():
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter):
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


@pytest.fixture
def spans(provider):
    return spans_of(provider.get_tracer("proxy"))


def spans_of(tracer, **options):
    options = {"transport": "http", "upstream_transport": "stdio", "open_max": 9, **options}
    return RequestSpans(tracer=tracer, recorder=None, **options)


def journal_of(spans):
    return MessageJournal(recorder=None, limits=Limits(), spans=spans)


def forward(journal, data):
    """Return the message of a client as it is forwarded."""
    return journal.record_received(data, journal.read(data))


def by_kind(exporter):
    return {span.kind: span for span in exporter.get_finished_spans()}


def hexadecimal(span_id):
    return f"{span_id:016x}"


@pytest.mark.requirement("TRACE-01")
def test_a_request_has_two_spans_and_the_server_gets_the_context_of_the_second(spans, exporter):
    journal = journal_of(spans)
    forwarded = forward(journal, CALL)
    assert not exporter.get_finished_spans()
    journal.record("out", b'{"jsonrpc":"2.0","id":7,"result":{"content":[]}}')
    found = by_kind(exporter)
    received, sent = found[SpanKind.SERVER], found[SpanKind.CLIENT]
    assert f"{received.context.trace_id:032x}" == TRACE_ID
    assert hexadecimal(received.parent.span_id) == PARENT_ID
    assert sent.parent.span_id == received.context.span_id
    assert {span.name for span in found.values()} == {"tools/call moor"}
    assert received.attributes["network.transport"] == "tcp"
    assert sent.attributes["network.transport"] == "pipe"
    assert sent.attributes["jsonrpc.request.id"] == "7"
    own = f"00-{TRACE_ID}-{hexadecimal(sent.context.span_id)}-01"
    # Everything else is as it was written.
    assert forwarded == CALL.replace(TRACEPARENT.encode(), own.encode())


@pytest.mark.parametrize(
    ("request_", "members"),
    [
        (b'{"jsonrpc":"2.0","id":"a","method":"ping"}', {"_meta"}),
        (b'{"jsonrpc":"2.0","id":"a","method":"prompts/get","params":{"name":"p"}}', None),
        (b'{"jsonrpc":"2.0","id":"a","method":"resources/read","params":{"uri":"x:y"}}', None),
        (b'{"jsonrpc":"2.0","id":"a","method":"ping","params":{"_meta":7}}', {"_meta"}),
        (b'{"jsonrpc":"2.0","id":"a","method":"x","params":{"name":3}}', {"name", "_meta"}),
        # A number that is no float is JSON, too.
        (b'{"jsonrpc":"2.0","id":"a","method":"ping","params":{"_meta":{"x":1e999}}}', {"_meta"}),
        (b'{"jsonrpc":"2.0","id":"a","method":"x","params":{"name":1e999}}', {"name", "_meta"}),
    ],
)
def test_a_request_without_a_context_begins_a_trace(spans, exporter, request_, members):
    journal = journal_of(spans)
    forwarded = json.loads(forward(journal, request_))
    journal.close()
    received = by_kind(exporter)[SpanKind.SERVER]
    assert received.parent is None
    assert f"{received.context.trace_id:032x}" in forwarded["params"]["_meta"]["traceparent"]
    assert members is None or forwarded["params"].keys() == members


def test_each_request_of_a_batch_has_spans(spans, exporter):
    journal = journal_of(spans)
    notification = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'
    batch = b'[%s, %s,{"jsonrpc":"2.0","id":8,"method":"ping"}]' % (CALL, notification)
    first, second, third = json.loads(forward(journal, batch))
    assert second == json.loads(notification)
    contexts = [each["params"]["_meta"]["traceparent"] for each in (first, third)]
    journal.record(
        "out",
        b'[{"jsonrpc":"2.0","id":8,"result":{}},{"jsonrpc":"2.0","id":7,"error":'
        b'{"code":-32603,"message":"broken"}}]',
    )
    sent = [span for span in exporter.get_finished_spans() if span.kind is SpanKind.CLIENT]
    assert [
        hexadecimal(span.context.span_id) in text
        for span, text in zip(sent, reversed(contexts), strict=True)
    ] == [True, True]
    assert [span.status.status_code for span in sent] == [StatusCode.UNSET, StatusCode.ERROR]
    assert sent[1].status.description == "broken"
    assert sent[1].attributes["rpc.response.status_code"] == "-32603"


def test_a_malformed_batch_of_the_server_ends_no_span(spans, exporter):
    journal = journal_of(spans)
    forward(journal, CALL)
    answer = b'{"jsonrpc":"2.0","id":7,"result":{}}'
    for malformed in (b"[]", b"[" + answer):
        journal.record("out", malformed)
    assert not exporter.get_finished_spans()
    journal.record("out", b"[" + answer + b"]")
    assert len(exporter.get_finished_spans()) == 2


def end_by_cancellation(journal):
    forward(
        journal, b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}'
    )


@pytest.mark.parametrize(
    ("end", "error"),
    [
        (end_by_cancellation, "cancelled"),
        (lambda journal: journal.answer(7, -32000, "gone"), "unanswered"),
        (lambda journal: journal.close(), "unanswered"),
    ],
)
def test_the_spans_of_a_request_without_an_answer_end(spans, exporter, end, error):
    journal = journal_of(spans)
    forward(journal, CALL)
    end(journal)
    ended = exporter.get_finished_spans()
    assert [span.attributes["error.type"] for span in ended] == [error] * 2
    journal.record("out", b'{"jsonrpc":"2.0","id":7,"result":{}}')
    assert len(exporter.get_finished_spans()) == 2


def test_a_second_request_with_the_same_id_and_one_too_many_pass_as_they_are(provider, exporter):
    journal = journal_of(spans_of(provider.get_tracer("proxy"), open_max=1))
    forward(journal, CALL)
    other = CALL.replace(b'"id":7', b'"id":8')
    assert (forward(journal, CALL), forward(journal, other)) == (CALL, other)
    journal.close()
    assert len(exporter.get_finished_spans()) == 2


def test_without_the_sdk_the_context_of_the_client_is_forwarded():
    journal = journal_of(spans_of(NoOpTracer()))
    assert forward(journal, CALL) == CALL
    ping = b'{"jsonrpc":"2.0","id":8,"method":"ping"}'
    assert forward(journal, ping) == ping


# Requests over HTTP.


async def breaking():
    yield event(text="")
    raise httpx2.ReadError("reset")


UNANSWERED = {
    "another media type": lambda: Reply(200, {"content-type": "text/plain"}, b"hello"),
    "a stream that ends": lambda: events(event(text="")),
    "a stream that breaks off": lambda: Reply(200, EVENTS, breaking()),
    "a stream that could be resumed in a session": lambda: events(event(text="", event_id=1)),
    "accepted": lambda: Reply(202),
}


@pytest.fixture
def make_spans(provider):
    return partial(RequestSpans, tracer=provider.get_tracer("proxy"), upstream_transport="http")


@pytest.mark.parametrize("reply", UNANSWERED)
async def test_the_spans_end_with_a_response_over_http_that_answers_nothing(
    between, make_spans, exporter, tmp_path, reply
):
    async def answer(_):
        return UNANSWERED[reply]()

    async with between(answer, tmp_path, make_spans=make_spans) as proxy:
        await proxy.ask(CALL)
        ended = exporter.get_finished_spans()
    assert [span.attributes["error.type"] for span in ended] == ["unanswered"] * 2


async def test_the_spans_of_a_client_that_went_away_end(between, make_spans, exporter, tmp_path):
    async with between(streaming(ends=False), tmp_path, make_spans=make_spans) as proxy:
        exchange = proxy.begin(CALL)
        await exchange.begun()
        exchange.leave()
        await trio.testing.wait_all_tasks_blocked()
        ended = exporter.get_finished_spans()
    assert [span.attributes["error.type"] for span in ended] == ["unanswered"] * 2


async def test_the_spans_of_a_session_last_until_its_stream_is_resumed(
    between, make_spans, exporter, tmp_path
):
    async def call(_):
        return events(event(text="", event_id=1))

    async def listen(_):
        return events(event({"jsonrpc": "2.0", "id": 7, "result": {}}, event_id=2))

    server = Legacy(answers={"tools/call": call}, listen=listen)
    async with between(server, tmp_path, make_spans=make_spans) as proxy:
        await proxy.ask(asking(0, "initialize"))
        exporter.clear()
        await proxy.ask(CALL, Mcp_Session_Id="s-1")
        assert not exporter.get_finished_spans()
        await proxy.ask(method="GET", Mcp_Session_Id="s-1", Last_Event_ID="1")
        ended = exporter.get_finished_spans()
    assert [span.status.status_code for span in ended] == [StatusCode.UNSET] * 2


# Between a client and a server that make spans, too.


def harbour(observers):
    server = Server("harbour", observers=observers)

    @server.tool
    async def moor(ship: str) -> str:
        if ship == "raft":
            raise ToolError("no ship")
        return "moored"

    return server


@asynccontextmanager
async def http_proxy(url, folder, make_spans):
    parsed, limits = httpx2.URL(url), Limits()
    endpoint_client = EndpointClient(http=client_for(parsed), url=parsed, headers={}, limits=limits)
    start = partial(
        start_message_journal,
        folder,
        transport="http",
        name="harbour",
        limits=limits,
        make_spans=make_spans,
    )
    recordings = OpenRecordings(start_journal=start, limits=limits)
    async with endpoint_client.http, trio.open_nursery() as nursery:
        yield await nursery.start(serve_http_proxy, ListenOptions(), endpoint_client, recordings)
        nursery.cancel_scope.cancel()


WAYS = [("http", "http"), ("http", "unix"), ("unix", "http"), ("websocket", "unix")]


@pytest.mark.requirement("TRACE-01")
@pytest.mark.real_time
@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25"])
@pytest.mark.parametrize(("downstream", "upstream"), WAYS)
async def test_client_proxy_and_server_are_one_trace(
    provider, exporter, tmp_path, downstream, upstream, version
):
    recorded = tmp_path / "recorded"
    recorded.mkdir()
    server, path = harbour([Telemetry(provider)]), str(tmp_path / "socket")
    make = partial(RequestSpans, tracer=provider.get_tracer("proxy"), upstream_transport=upstream)
    async with trio.open_nursery() as nursery:
        url = f"unix:{path}"
        if upstream == "unix":
            await nursery.start(partial(server.serve_unix, path))
        else:
            url = await nursery.start(partial(server.serve_http, port=0))
        if downstream == upstream:
            proxy = http_proxy(url, recorded, make)
        else:
            proxy = bridged(downstream, url, tmp_path, record=recorded, make_spans=make)
        observers = [Telemetry(provider)]
        async with (
            proxy as proxied,
            Client(
                proxied, protocol_versions=[version], observers=observers, raise_tool_errors=False
            ) as client,
        ):
            await client.call_tool("moor", {"ship": "raft"})
        nursery.cancel_scope.cancel()
    calls = [span for span in exporter.get_finished_spans() if span.name == "tools/call moor"]
    chain = [next(span for span in calls if span.parent is None)]
    for _ in range(3):
        above = chain[-1].context.span_id
        chain += [span for span in calls if span.parent and span.parent.span_id == above]
    assert [(span.kind, span.instrumentation_scope.name) for span in chain] == [
        (SpanKind.CLIENT, "mcp_trio"),
        (SpanKind.SERVER, "proxy"),
        (SpanKind.CLIENT, "proxy"),
        (SpanKind.SERVER, "mcp_trio"),
    ]
    assert {span.attributes["error.type"] for span in chain} == {"tool_error"}
    attributes = chain[1].attributes
    number = attributes["mcp_trio.recording.record"]
    records = read_recording(open_recording(attributes["mcp_trio.recording.file"]))
    (message,) = [json.loads(body_bytes(each)) for each in records if each.number == number]
    # The recording has the request as the server received it.
    assert message["method"] == "tools/call"
    assert hexadecimal(chain[2].context.span_id) in message["params"]["_meta"]["traceparent"]
