"""Traces and metrics by OpenTelemetry's API, after its semantic conventions for MCP.

https://github.com/open-telemetry/semantic-conventions-genai/blob/main/docs/gen-ai/mcp.md

Only the API is needed here. An application sets up the SDK and its exporters, which run in threads;
without the SDK, spans and measurements are dropped by the API.
"""

import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import attrs

try:
    from opentelemetry import propagate
    from opentelemetry.context import Context, attach, detach
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation, get_meter
    from opentelemetry.trace import (
        Link,
        Span,
        SpanKind,
        Status,
        StatusCode,
        Tracer,
        TracerProvider,
        get_current_span,
        get_tracer,
        set_span_in_context,
    )
except ImportError as error:
    raise ImportError(
        "Telemetry needs opentelemetry-api: pip install 'mcp_trio[telemetry]'"
    ) from error

from mcp_trio._journal.texts import shortened
from mcp_trio._observers.request_log import PEER_CHARS_MAX
from mcp_trio._protocol.methods import METHODS, Role
from mcp_trio._session.observing import (
    Activity,
    End,
    EndHttp,
    HttpActivity,
    HttpOutcome,
    Load,
    OpenSessions,
    Outcome,
)
from mcp_trio._version import __version__
from mcp_trio.types import RequestId

_NAME: Final = "mcp_trio"
_BUCKETS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)

# What `network.transport` and `network.protocol.name` are for the name of a channel's transport.
_NETWORKS: Final[Mapping[str, Mapping[str, str]]] = {
    "stdio": {"network.transport": "pipe"},
    "http": {"network.transport": "tcp", "network.protocol.name": "http"},
    "sse": {"network.transport": "tcp", "network.protocol.name": "http"},
    "websocket": {"network.transport": "tcp", "network.protocol.name": "websocket"},
    "unix": {"network.transport": "unix"},
    "tcp": {"network.transport": "tcp"},
}

# The attribute for the target of a method. A URI is not part of a span's name, as there are many.
_TARGETS: Final[Mapping[str, str]] = {
    "tools/call": "gen_ai.tool.name",
    "prompts/get": "gen_ai.prompt.name",
}
_URI: Final = "mcp.resource.uri"

# The methods of HTTP that may be part of a span's name, and the endpoints whose requests have no
# spans: monitoring systems ask them every few seconds.
_HTTP_METHODS: Final = frozenset({"GET", "POST", "DELETE", "OPTIONS", "HEAD", "PUT", "PATCH"})
_UNTRACED: Final = frozenset({"/health", "/ready"})
_HTTP_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)

# The span of the request over HTTP that brings the current message. It is not OpenTelemetry's
# current span, which tasks of a session would keep after the end of the request.
_HTTP_SPAN: Final[ContextVar["_HttpSpan | None"]] = ContextVar("mcp_trio_http_span", default=None)

# Stands for names and codes that are not among the known ones.
_OTHER: Final = "_OTHER"
# The codes that JSON-RPC reserves.
_RESERVED_CODES: Final = range(-32768, -31999)

# The attributes of a span that its measurement has as well.
_MEASURED: Final = frozenset(
    {
        "mcp.method.name",
        "gen_ai.tool.name",
        "gen_ai.prompt.name",
        "gen_ai.operation.name",
        "mcp.protocol.version",
        "network.transport",
        "network.protocol.name",
        "error.type",
        "rpc.response.status_code",
    }
)

# By the member of `Load`: the name, unit and description of a gauge.
_GAUGES: Final[Mapping[str, tuple[str, str, str]]] = {
    "sessions": ("mcp_trio.sessions", "{session}", "Open sessions."),
    "running": ("mcp_trio.handlers.running", "{request}", "Requests whose handlers run."),
    "queued": ("mcp_trio.requests.queued", "{request}", "Requests that wait for a handler."),
    "suspended": ("mcp_trio.handlers.suspended", "{handler}", "Handlers that wait for a retry."),
    "send_queue_bytes": ("mcp_trio.send_queue.size", "By", "Messages that are not sent yet."),
    "unwritten_bytes": ("mcp_trio.recording.lag", "By", "Records that are not written yet."),
    "lost_records": ("mcp_trio.recording.lost", "{record}", "Records that the disk did not take."),
    "paused_recordings": (
        "mcp_trio.recording.paused",
        "{recording}",
        "Recordings that only count, because a write has failed.",
    ),
}


@attrs.define(eq=False)
class Telemetry:
    """An observer that makes spans and measurements with OpenTelemetry.

    A request is a span of kind SERVER, below the span whose context came in its `_meta`; a request
    to the peer is one of kind CLIENT, and an effect of a handler one of kind INTERNAL. A request
    over HTTP is a span of kind SERVER, below the one whose context came in its headers, or in the
    `_meta` of the MCP request that it brings. The span of the MCP request is below it, or linked to
    it if the MCP request has a context of its own, also if another instance of the server answers.
    A client sends the context of its span with each request (SEP-414). A server sends no trace
    context, because a replay would have to send the same ids.

    The attributes `mcp_trio.recording.file` and `mcp_trio.recording.record` of a span lead to
    `mcp-trio show FILE --at RECORD`.

    Attributes:
        tracer_provider: The provider of the spans; by default the global one.
        meter_provider: The provider of the measurements; by default the global one.
        handlers: Whether the handler of a request has a span of its own, which does not include the
            wait for a free slot.
        observes_replays: Whether replays make spans as well.
    """

    tracer_provider: TracerProvider | None = None
    meter_provider: MeterProvider | None = None
    handlers: bool = attrs.field(default=False, kw_only=True)
    observes_replays: bool = attrs.field(default=False, kw_only=True)
    _tracer: Tracer = attrs.field(init=False, repr=False)
    _sessions: OpenSessions = attrs.field(factory=OpenSessions, init=False, repr=False)
    _durations: Mapping[str, Any] = attrs.field(init=False, repr=False)
    _http_duration: Any = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._tracer = get_tracer(_NAME, __version__, tracer_provider=self.tracer_provider)
        meter = get_meter(_NAME, __version__, meter_provider=self.meter_provider)
        names = ("server.operation", "client.operation", "server.session", "client.session")
        self._durations = {
            name: meter.create_histogram(
                f"mcp.{name}.duration",
                unit="s",
                description=f"The duration of MCP {name.partition('.')[2]}s.",
                explicit_bucket_boundaries_advisory=_BUCKETS,
            )
            for name in names
        }
        self._http_duration = meter.create_histogram(
            "http.server.request.duration",
            unit="s",
            description="Duration of HTTP server requests.",
            explicit_bucket_boundaries_advisory=_HTTP_BUCKETS,
        )
        for member, (name, unit, text) in _GAUGES.items():
            read = partial(_read_gauge, self._sessions.load, member)
            meter.create_observable_gauge(name, callbacks=[read], unit=unit, description=text)

    def trace_context(self) -> Mapping[str, str]:
        """Return the trace context of the current span, for the `_meta` of a request."""
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        return carrier

    def begin(self, activity: Activity) -> End | None:
        """Begin the span of an activity."""
        match activity.kind:
            case "session":
                return self._begin_session(activity)
            case "effect":
                span = self._tracer.start_span(
                    f"effect {activity.name}",
                    kind=SpanKind.INTERNAL,
                    attributes={
                        "mcp_trio.effect.name": activity.name,
                        **recording_attributes(
                            activity.recording, activity.session_id, activity.record
                        ),
                    },
                )
                activity.scopes.append(partial(_attached, set_span_in_context(span)))
                return partial(_end_effect, span)
            case _:
                return self._begin_message(activity)

    def begin_forwarded(self, activity: HttpActivity) -> None:
        """Continue the trace of a request over HTTP whose span is that of another instance."""
        context = propagate.extract(activity.trace, context=Context())
        span = get_current_span(context)
        if span.get_span_context().is_valid:
            _HTTP_SPAN.set(_HttpSpan(lambda _: span, activity, context))

    def begin_http(self, activity: HttpActivity) -> EndHttp:
        """Begin the span of a request over HTTP."""
        method = activity.method if activity.method in _HTTP_METHODS else _OTHER
        attributes: dict[str, Any] = {"http.request.method": method, "url.scheme": activity.scheme}
        if activity.route:
            attributes["http.route"] = activity.route
        http: _HttpSpan | None = None
        current = get_current_span()
        if activity.is_mounted and current.get_span_context().is_valid:
            # The application into which the server is mounted has a span for the request.
            outer = _HttpSpan(lambda _: current, activity, Context())
            activity.forwarded_trace = outer.forwarded_trace
            _HTTP_SPAN.set(outer)
        elif activity.route in _UNTRACED:
            _HTTP_SPAN.set(None)
        else:
            start = partial(
                self._tracer.start_span,
                f"{'HTTP' if method == _OTHER else method} {activity.route}".rstrip(),
                kind=SpanKind.SERVER,
                attributes=attributes | {"url.path": shortened(activity.path, PEER_CHARS_MAX)},
                start_time=time.time_ns(),
            )
            context = propagate.extract(activity.trace, context=Context())
            http = _HttpSpan(start, activity, context)
            if "traceparent" in activity.trace:
                http.started()
            activity.forwarded_trace = http.forwarded_trace
            _HTTP_SPAN.set(http)

        def end(outcome: HttpOutcome) -> None:
            _HTTP_SPAN.set(None)
            status = outcome.status
            is_failure = status is not None and status >= HTTPStatus.INTERNAL_SERVER_ERROR
            ended: dict[str, Any] = {}
            if status is not None:
                ended["http.response.status_code"] = int(status)
            if status is None or is_failure:
                ended["error.type"] = "disconnected" if status is None else str(int(status))
            self._http_duration.record(outcome.seconds, attributes | ended)
            if http is None:
                return
            span = http.started()
            span.set_attributes(ended)
            if is_failure:
                span.set_status(Status(StatusCode.ERROR, outcome.rejection or None))
            span.end()

        return end

    def _begin_session(self, activity: Activity) -> End:
        forget = self._sessions.begin(activity)
        assert forget is not None
        session = activity.session
        attributes = dict(network_attributes(activity.name))
        role = "server" if session.connection.our_role is Role.SERVER else "client"
        histogram = self._durations[f"{role}.session"]

        def end(outcome: Outcome) -> None:
            forget(outcome)
            if session.connection.protocol_version is not None:
                attributes["mcp.protocol.version"] = session.connection.protocol_version.name
            if outcome.error:
                attributes["error.type"] = outcome.error
            histogram.record(outcome.seconds, attributes)

        return end

    def _begin_message(self, activity: Activity) -> End:
        is_request = activity.kind == "request"
        attributes = {
            **request_attributes(
                activity.name,
                activity.target,
                activity.request_id,
                None if activity.peer is None else activity.peer.protocol_version.name,
            ),
            **network_attributes(getattr(activity.session.channel, "transport", "")),
            **recording_attributes(activity.recording, activity.session_id, activity.record),
        }
        context: Context | None = None
        links: list[Link] = []
        if is_request:
            current = get_current_span().get_span_context()
            trace = {name: str(value) for name, value in activity.trace.items()}
            # An empty context, so that a request without a parent begins a trace of its own.
            context = propagate.extract(trace, context=Context())
            http = _HTTP_SPAN.get() if attributes.get("network.protocol.name") == "http" else None
            if http is not None and "traceparent" in trace:
                links.append(Link(http.started(context).get_span_context()))
            elif http is not None:
                context = set_span_in_context(http.started(), http.context)
            elif current.is_valid:
                links.append(Link(current))
        span = self._tracer.start_span(
            span_name(activity.name, attributes),
            context=context,
            kind=SpanKind.SERVER if is_request else SpanKind.CLIENT,
            attributes=attributes,
            links=links,
        )
        if (span_context := span.get_span_context()).is_valid:
            activity.span_trace_id = f"{span_context.trace_id:032x}"
        # With the baggage that came with the request.
        inside = set_span_in_context(span, context)
        if is_request and self.handlers:
            activity.scopes.append(
                partial(
                    self._tracer.start_as_current_span,
                    f"handler of {activity.name}",
                    inside,
                    SpanKind.INTERNAL,
                )
            )
        else:
            activity.scopes.append(partial(_attached, inside))
        name = "server.operation" if is_request else "client.operation"
        return partial(self._end_message, activity, span, attributes, name)

    def _end_message(
        self,
        activity: Activity,
        span: Span,
        attributes: dict[str, Any],
        name: str,
        outcome: Outcome,
    ) -> None:
        ended: dict[str, Any] = {}
        if activity.kind == "call":  # its id and its record are known since it was sent
            if activity.request_id is not None:
                ended["jsonrpc.request.id"] = str(activity.request_id)
            if activity.record is not None:
                ended["mcp_trio.recording.record"] = activity.record
        ended |= outcome_attributes(outcome, is_request=activity.kind == "request")
        end_span(span, ended, outcome)
        every = attributes | ended
        measured = {key: value for key, value in every.items() if key in _MEASURED}
        # A client chooses the names of unknown methods and tools, which must not become series of a
        # metric. A request may be cancelled before anything has looked for its name.
        if outcome.error in ("protocol", "limited", "cancelled"):
            for key in _TARGETS.values():
                measured.pop(key, None)
            if activity.name not in METHODS:
                measured["mcp.method.name"] = _OTHER
        # A peer chooses the codes of its errors, too, and a handler may pass them on.
        if outcome.code is not None and outcome.code not in _RESERVED_CODES:
            measured["rpc.response.status_code"] = measured["error.type"] = _OTHER
        self._durations[name].record(outcome.seconds, measured)


@attrs.define(eq=False)
class _HttpSpan:
    """The span of a request over HTTP, which starts when its parent is known.

    That is at once if its headers have a trace context; else when the MCP request that it brings
    is read, whose `_meta` may have one, so that both are in one trace; else at its end.

    Attributes:
        start: Starts the span in a context.
        activity: The request.
        context: The context of its headers.
    """

    start: Callable[[Context], Span]
    activity: HttpActivity
    context: Context
    _span: Span | None = attrs.field(default=None, init=False)

    def started(self, context: Context | None = None) -> Span:
        """Return the span; start it first, if need be, in this context or that of the headers."""
        if self._span is None:
            self._span = self.start(self.context if context is None else context)
            if (span_context := self._span.get_span_context()).is_valid:
                self.activity.span_trace_id = f"{span_context.trace_id:032x}"
        return self._span

    def forwarded_trace(self, received: Mapping[str, str]) -> Mapping[str, str]:
        """Return the trace context of the span; `received` is that of the MCP request, if any."""
        context = None
        if "traceparent" in received:
            context = propagate.extract(received, context=Context())
        carrier: dict[str, str] = {}
        propagate.inject(carrier, set_span_in_context(self.started(context), self.context))
        return carrier


@contextmanager
def _attached(context: Context) -> Generator[None]:
    token = attach(context)
    try:
        yield
    finally:
        detach(token)


def request_attributes(
    method: str, target: str, request_id: RequestId | None, protocol_version: str | None
) -> dict[str, Any]:
    """Return the attributes of a request, as the conventions name them."""
    attributes: dict[str, Any] = {"mcp.method.name": shortened(method, PEER_CHARS_MAX) or _OTHER}
    target = shortened(target, PEER_CHARS_MAX)
    if target:
        attributes[_TARGETS.get(method, _URI)] = target
    if method == "tools/call":
        attributes["gen_ai.operation.name"] = "execute_tool"
    if request_id is not None:
        attributes["jsonrpc.request.id"] = shortened(str(request_id), PEER_CHARS_MAX)
    if protocol_version is not None:
        attributes["mcp.protocol.version"] = protocol_version
    return attributes


def span_name(method: str, attributes: Mapping[str, Any]) -> str:
    """Return the name of the span of a request, given its attributes."""
    shown = attributes["mcp.method.name"]
    return f"{shown} {attributes.get(_TARGETS.get(method, ''), '')}".rstrip()


def network_attributes(transport: str) -> Mapping[str, str]:
    """Return the attributes of a transport, given the name of its channel."""
    return _NETWORKS.get(transport, {})


def recording_attributes(file: Path | None, session_id: str, record: int | None) -> dict[str, Any]:
    """Return the attributes that lead to a record; none for a session that is not recorded."""
    if file is None:
        return {}
    attributes: dict[str, Any] = {
        "mcp_trio.recording.file": str(file),
        "mcp_trio.recording.session": session_id,
    }
    if record is not None:
        attributes["mcp_trio.recording.record"] = record
    return attributes


def outcome_attributes(outcome: Outcome, *, is_request: bool) -> dict[str, Any]:
    """Return the attributes of the outcome of a request, of the peer or to the peer."""
    attributes: dict[str, Any] = {}
    if outcome.code is not None:
        attributes["rpc.response.status_code"] = str(outcome.code)
        attributes["error.type"] = str(outcome.code)
    elif outcome.error in ("cancelled", "unanswered"):
        attributes["error.type"] = outcome.error
    elif outcome.error:
        is_tool = is_request or outcome.error == "tool"
        attributes["error.type"] = "tool_error" if is_tool else outcome.error
    if outcome.error:
        attributes["mcp_trio.error.kind"] = outcome.error
    return attributes


def end_span(span: Span, attributes: Mapping[str, Any], outcome: Outcome) -> None:
    """End the span of a request, with attributes that are known at the end."""
    if span.is_recording():
        span.set_attributes(attributes)
        if outcome.error:
            has_message = outcome.code is not None
            span.set_status(Status(StatusCode.ERROR, outcome.text if has_message else None))
    span.end()


def _end_effect(span: Span, outcome: Outcome) -> None:
    if outcome.error:
        span.set_attribute("error.type", outcome.error)
        span.set_status(Status(StatusCode.ERROR))
    span.end()


def _read_gauge(load: Callable[[], Load], member: str, _: CallbackOptions) -> Iterable[Observation]:
    yield Observation(getattr(load(), member))
