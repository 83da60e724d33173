"""Metrics in Prometheus' text format, by `prometheus-client`."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

import attrs

try:
    from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
except ImportError as error:
    raise ImportError("Metrics needs prometheus-client: pip install 'mcp_trio[metrics]'") from error

from mcp_trio._protocol.methods import METHODS
from mcp_trio._session.observing import (
    Activity,
    End,
    EndHttp,
    HttpActivity,
    HttpOutcome,
    OpenSessions,
    Outcome,
)

if TYPE_CHECKING:
    from mcp_trio._recorder.policy import RecordStatus

_BUCKETS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)

# Clients choose the names that they call: only so many names become labels, the others are "other".
_NAMES_MAX: Final = 500
_OTHER: Final = "other"

# The name and the description of each gauge, by the attribute of `OpenSessions.load()` that has its
# value.
_GAUGES: Final[Mapping[str, tuple[str, str]]] = {
    "sessions": ("sessions", "Open sessions; all stateless requests over HTTP count as one."),
    "running": ("handlers_running", "Requests whose handlers run."),
    "queued": ("requests_queued", "Requests that wait for a handler to start."),
    "suspended": ("handlers_suspended", "Handlers that wait for a retry of a stateless client."),
    "send_queue_bytes": ("send_queue_bytes", "Bytes of messages that are not sent yet."),
    "unwritten_bytes": ("recording_lag_bytes", "Bytes of records that are not written yet."),
    "paused_recordings": (
        "recordings_paused",
        "Recordings that only count their records since a write failed.",
    ),
}

# The name and the description of each counter, by the attribute of `RecordStatus` with its value.
_POLICY: Final[Mapping[str, tuple[str, str]]] = {
    "kept": ("recordings_kept", "Sessions that have ended and are kept by the policy."),
    "forgotten": ("recordings_forgotten", "Sessions whose recording the policy did not keep."),
    "unrecorded": ("recordings_unrecorded", "Sessions that could not be recorded."),
    "removed": ("recordings_removed", "Recordings that the retention has removed."),
    "uploaded": ("recording_uploads", "Files of recordings that were uploaded to the store."),
}


@attrs.define(eq=False)
class Metrics:
    """An observer that counts requests and measures their duration, for Prometheus.

    `serve_http(metrics_port=9090)` serves the text. The labels are methods, names of tools, prompts
    and effects, and kinds of error. Sessions, users and arguments are never labels.

    Attributes:
        registry: The registry of `prometheus_client` that collects the metrics; by default one of
            its own.
        record_status: The counters of a `RecordPolicy`, if its recordings should be counted; a
            served HTTP application sets it.
    """

    registry: CollectorRegistry = attrs.field(factory=CollectorRegistry)
    record_status: "RecordStatus | None" = None
    _sessions: OpenSessions = attrs.field(factory=OpenSessions, init=False, repr=False)
    _requests: Histogram = attrs.field(init=False, repr=False)
    _calls: Histogram = attrs.field(init=False, repr=False)
    _effects: Histogram = attrs.field(init=False, repr=False)
    _http_responses: Counter = attrs.field(init=False, repr=False)
    _names: set[str] = attrs.field(factory=set[str], init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._requests = self._histogram(
            "request",
            "Received requests, until their response was sent.",
            ("method", "name", "error"),
        )
        self._calls = self._histogram(
            "call", "Sent requests, until their response was received.", ("method", "name", "error")
        )
        self._effects = self._histogram("effect", "Effects of handlers.", ("effect", "error"))
        self._http_responses = Counter(
            "mcp_http_responses",
            "Responses over HTTP, also to requests that did not reach a session.",
            ("route", "status"),
            registry=self.registry,
        )
        self.registry.register(self)

    def _histogram(self, name: str, text: str, labels: tuple[str, ...]) -> Histogram:
        return Histogram(
            f"mcp_{name}_seconds", text, labels, registry=self.registry, buckets=_BUCKETS
        )

    def begin(self, activity: Activity) -> End | None:
        """Return the function that measures the activity when it ends."""
        if activity.kind == "session":
            return self._sessions.begin(activity)

        def end(outcome: Outcome) -> None:
            if activity.kind == "effect":
                labels = [self._label(activity.name), "error" if outcome.error else ""]
                self._effects.labels(*labels).observe(outcome.seconds)
                return
            # Unknown methods and tools, which clients make up, have no series of their own.
            is_rejected = outcome.error in ("protocol", "limited")
            has_name = activity.name in ("tools/call", "prompts/get") and not is_rejected
            if outcome.error == "cancelled":  # perhaps before the name was looked up
                has_name = has_name and activity.target in self._names
            method = activity.name
            if method not in METHODS:
                method = _OTHER if is_rejected else self._label(method)
            histogram = self._requests if activity.kind == "request" else self._calls
            histogram.labels(
                method,
                self._label(activity.target) if has_name else "",
                outcome.error,
            ).observe(outcome.seconds)

        return end

    def begin_http(self, activity: HttpActivity) -> EndHttp:
        """Return the function that counts the response over HTTP."""

        def end(outcome: HttpOutcome) -> None:
            status = "" if outcome.status is None else str(int(outcome.status))
            self._http_responses.labels(activity.route, status).inc()

        return end

    def _label(self, name: str) -> str:
        if name not in self._names:
            if len(self._names) >= _NAMES_MAX:
                return _OTHER
            self._names.add(name)
        return name

    def collect(self) -> Iterable[Metric]:
        """Yield the gauges and counters of now; `prometheus_client` calls it."""
        load = self._sessions.load()
        for member, (name, text) in _GAUGES.items():
            yield GaugeMetricFamily(f"mcp_{name}", text, value=getattr(load, member))
        status = self.record_status
        lost = max(load.lost_records, 0 if status is None else status.lost_records)
        text = "Records that were lost because they could not be written."
        yield CounterMetricFamily("mcp_recording_lost_records", text, value=lost)
        if status is None:
            return
        for member, (name, text) in _POLICY.items():
            yield CounterMetricFamily(f"mcp_{name}", text, value=getattr(status, member))
        text = "1 while recordings cannot be written or redacted; else 0."
        yield GaugeMetricFamily("mcp_recording_degraded", text, value=bool(status.problem))
        text = "1 while complete recordings cannot be uploaded to the store; else 0."
        failing = bool(status.upload_problem)
        yield GaugeMetricFamily("mcp_recording_upload_degraded", text, value=failing)
        text = "Bytes of records in memory, of sessions that are not kept so far; an estimate."
        yield GaugeMetricFamily("mcp_recording_held_bytes", text, value=status.held_bytes)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)
