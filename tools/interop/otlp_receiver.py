"""A receiver of OTLP over HTTP.

It decodes what exporters send with OpenTelemetry's own protocol buffers (`opentelemetry-proto`). It
stands for a collector: it accepts the requests that one accepts, at the paths of
https://opentelemetry.io/docs/specs/otlp/#otlphttp, and keeps the spans and the names of metrics.
"""

import gzip
import signal
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import attrs
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@attrs.frozen(kw_only=True)
class ReceivedSpan:
    """A span that was received."""

    service: str
    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    milliseconds: float
    status: str
    attributes: Mapping[str, Any]


_KINDS = ("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER")
_STATUSES = ("UNSET", "OK", "ERROR")


def _plain(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


@attrs.define(eq=False)
class OtlpReceiver:
    """A context manager that receives spans and metrics on a free port of the loopback address."""

    spans: list[ReceivedSpan] = attrs.field(factory=list[ReceivedSpan], init=False)
    metrics: dict[str, Any] = attrs.field(factory=dict[str, Any], init=False)
    _server: ThreadingHTTPServer = attrs.field(init=False)

    @property
    def url(self) -> str:
        """The value for `OTEL_EXPORTER_OTLP_ENDPOINT`."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                answer = receiver.take(self.path, body)
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def take(self, path: str, body: bytes) -> bytes:
        """Decode the body of a request, keep its content, and return the response."""
        if path.endswith("/metrics"):
            measured = ExportMetricsServiceRequest.FromString(body)
            for resource in measured.resource_metrics:
                for scope in resource.scope_metrics:
                    self.metrics |= {metric.name: metric for metric in scope.metrics}
            return bytes(ExportMetricsServiceResponse().SerializeToString())
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            service = _plain(resource.resource.attributes).get("service.name", "")
            for scope in resource.scope_spans:
                self.spans += [
                    ReceivedSpan(
                        service=service,
                        name=span.name,
                        kind=_KINDS[span.kind],
                        trace_id=span.trace_id.hex(),
                        span_id=span.span_id.hex(),
                        parent_id=span.parent_span_id.hex(),
                        milliseconds=(span.end_time_unix_nano - span.start_time_unix_nano) / 1e6,
                        status=_STATUSES[span.status.code],
                        attributes=_plain(span.attributes),
                    )
                    for span in scope.spans
                ]
        return bytes(ExportTraceServiceResponse().SerializeToString())

    def tree(self, trace_id: str) -> list[str]:
        """Return a line for each span of a trace, indented below its parent."""
        spans = [span for span in self.spans if span.trace_id == trace_id]
        known = {span.span_id for span in spans}

        def below(parent: str | None, indent: str) -> list[str]:
            lines: list[str] = []
            for span in spans:
                is_child = span.parent_id == parent
                if is_child or (parent is None and span.parent_id not in known):
                    text = f"{span.kind:8} {span.milliseconds:7.2f} ms  {span.status}"
                    lines.append(f"{indent + span.name:36} {span.service:10} {text}")
                    lines += below(span.span_id, indent + "  ")
            return lines

        return below(None, "")


if __name__ == "__main__":
    with OtlpReceiver() as running_receiver:
        print(running_receiver.url, flush=True)
        signal.pause()
