"""The spans of a proxy, by OpenTelemetry's API: two for each request of a client.

The first span, of kind SERVER, is a child of the span whose context the client sent in `_meta`; the
second, of kind CLIENT, is a child of the first, and its context replaces that of the client in the
request that is forwarded (SEP-414). Requests of the server are forwarded as they are: our servers
send no context with them, since a replay would have to send the same ids.
"""

from collections.abc import Sequence
from typing import Any, Final

import attrs
import msgspec
from msgspec import Raw
from opentelemetry import propagate
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Tracer, set_span_in_context

from mcp_trio._journal.calls import read_outcome
from mcp_trio._journal.conversation import CANCELLED, protocol_version_of, reference_of
from mcp_trio._journal.records import messages_in
from mcp_trio._jsonrpc.messages import (
    ErrorResponse,
    Message,
    Notification,
    Request,
    Response,
)
from mcp_trio._observers.telemetry import (
    end_span,
    network_attributes,
    outcome_attributes,
    recording_attributes,
    request_attributes,
    span_name,
)
from mcp_trio._recorder.writer import Recorder
from mcp_trio._session.observing import Outcome
from mcp_trio.types import RequestId

_CANCELLED: Final = Outcome(error="cancelled")
_UNANSWERED: Final = Outcome(error="unanswered")


@attrs.define(eq=False, repr=False)
class RequestSpans:
    """The spans of the requests that are open in one recording of a proxy.

    Attributes:
        tracer: The tracer of all spans.
        transport: The name of the transport of the clients.
        upstream_transport: The name of the transport of the server.
        recorder: The recorder of the requests; None if they are not recorded.
        open_max: The number of requests that can be followed at the same time.
    """

    tracer: Tracer
    transport: str
    upstream_transport: str
    recorder: Recorder | None
    open_max: int
    _open: dict[RequestId, tuple[Span, ...]] = attrs.field(
        factory=dict[RequestId, tuple[Span, ...]], init=False
    )

    def begin(self, data: bytes, messages: Sequence[Message]) -> bytes:
        """Begin the spans of the requests in a message or batch of the client.

        Returns:
            The message or batch with the context of the spans, to be forwarded.
        """
        if not any(isinstance(message, Request) for message in messages):
            return data
        parts = messages_in(data)
        for index, (message, part) in enumerate(zip(messages, parts, strict=True)):
            # Of two requests with the same id, only the first can be followed.
            has_room = len(self._open) < self.open_max
            if isinstance(message, Request) and message.id not in self._open and has_room:
                parts[index] = self._begin(message, part)
        return parts[0] if not data.lstrip().startswith(b"[") else b"[" + b",".join(parts) + b"]"

    def _begin(self, request: Request, encoded: bytes) -> bytes:
        params = _members(request.params)
        meta = _members(params.get("_meta"))
        received = propagate.extract(
            {name: _text(value) for name, value in meta.items()}, context=Context()
        )
        # The name of a tool or prompt, or the URI of a resource; other methods have neither.
        target = _text(params.get("name") or params.get("uri") or Raw(b'""'))
        attributes = request_attributes(
            request.method, target, request.id, protocol_version_of(request.params)
        )
        name = span_name(request.method, attributes)
        served = self.tracer.start_span(
            name,
            context=received,
            kind=SpanKind.SERVER,
            attributes={**attributes, **network_attributes(self.transport)},
        )
        sent = self.tracer.start_span(
            name,
            context=set_span_in_context(served, received),
            kind=SpanKind.CLIENT,
            attributes={**attributes, **network_attributes(self.upstream_transport)},
        )
        self._open[request.id] = (sent, served)
        carrier: dict[str, str] = {}
        propagate.inject(carrier, set_span_in_context(sent, received))
        if not carrier:
            return encoded
        # Values are kept as they are written: Python could not write all of them again.
        meta |= {name: Raw(msgspec.json.encode(value)) for name, value in carrier.items()}
        params["_meta"] = Raw(msgspec.json.encode(meta))
        return msgspec.json.encode(_members(Raw(encoded)) | {"params": params})

    def add_record(self, messages: Sequence[Message], record: int) -> None:
        """Add the record of a message or batch of the client to its spans; end cancelled ones."""
        recorder = self.recorder
        for message in messages:
            if isinstance(message, Request) and recorder is not None:
                attributes = recording_attributes(recorder.path, recorder.session_id, record)
                for span in self._open.get(message.id, ()):
                    span.set_attributes(attributes)
            elif isinstance(message, Notification) and message.method == CANCELLED:
                self.end(reference_of(message), _CANCELLED)

    def end_answered(self, data: bytes, messages: Sequence[Message]) -> None:
        """End the spans of the requests that a message or batch of the server answers."""
        parts = messages_in(data)
        if len(parts) != len(messages):  # a batch that is malformed as a whole
            return
        for message, part in zip(messages, parts, strict=True):
            if isinstance(message, Response | ErrorResponse):
                error, code, text, _ = read_outcome(part)
                self.end(message.id, Outcome(error=error, code=code, text=text))

    def end(self, request_id: RequestId | None, outcome: Outcome = _UNANSWERED) -> None:
        """End the spans of a request, if they are open."""
        if request_id is None:
            return
        for span in self._open.pop(request_id, ()):
            end_span(span, outcome_attributes(outcome, is_request=True), outcome)

    def end_all(self) -> None:
        """End the spans of all requests, which get no response."""
        for request_id in [*self._open]:
            self.end(request_id)


def _members(body: Raw | None) -> dict[str, Any]:
    """Return the members of a JSON object, each as it is written; empty for anything else."""
    try:
        return dict(msgspec.json.decode(body or b"{}", type=dict[str, Raw]))
    except msgspec.ValidationError:
        return {}


def _text(value: Raw) -> str:
    """Return the text in a JSON string; empty for anything else."""
    try:
        return msgspec.json.decode(value, type=str)
    except msgspec.ValidationError:
        return ""
