"""The options of `mcp-trio run` that add observers to a server: logs, audit log and traces."""

import logging
import os
from typing import TYPE_CHECKING, Any, Final

import click

from mcp_trio._cli.options import combined, read_key
from mcp_trio._version import __version__

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

    from mcp_trio._server.server import Server

_LEVELS: Final = [*logging.getLevelNamesMapping()]

OBSERVER_OPTIONS: Final = (
    *("log_file", "log_format", "log_level", "audit_log", "audit_key", "telemetry"),
)

telemetry_option: Final = click.option(
    "--telemetry",
    is_flag=True,
    help="Send spans and measurements by OTLP over HTTP, as the variables OTEL_… say.",
)

observer_options: Final = combined(
    click.option(
        "--log-file",
        metavar="PATH",
        help="Log to this file, with one line for each request; the file is rotated and "
        "compressed. {pid} in PATH is the number of the process.",
    ),
    click.option(
        "--log-format",
        type=click.Choice(["json", "text"]),
        help="For --log-file: json, a JSON object a line, is the default.",
    ),
    click.option(
        "--log-level",
        type=click.Choice(_LEVELS, case_sensitive=False),
        metavar="LEVEL",
        help="For --log-file: the least severe level, such as WARNING; INFO by default.",
    ),
    click.option(
        "--audit-log",
        metavar="PATH",
        help="Append a line for each use of a tool, resource, prompt or model to this file, in a "
        "chain of digests that `mcp-trio check` verifies.",
    ),
    click.option(
        "--audit-key",
        metavar="FILE",
        help="For --audit-log: make the digests with the key in this file.",
    ),
    telemetry_option,
)


def add_observers(server: "Server", chosen: dict[str, Any], *, workers: int) -> None:
    """Add the observers that the options of a command ask for to a server.

    Raises:
        click.UsageError: Options contradict each other.
        click.ClickException: A package is missing.
    """
    log_file, audit_log = chosen["log_file"], chosen["audit_log"]
    if log_file is None and (chosen["log_format"] or chosen["log_level"]):
        raise click.UsageError("--log-format and --log-level need --log-file PATH")
    if audit_log is None and chosen["audit_key"] is not None:
        raise click.UsageError("--audit-key needs --audit-log PATH")
    for path in (log_file, audit_log):
        if workers > 1 and path is not None and "{pid}" not in path:
            raise click.UsageError(
                f"{path}: workers cannot share a file: put {{pid}} into its name"
            )
    added: list[Any] = []
    if chosen["telemetry"]:
        set_up_telemetry(server.name)
        from mcp_trio._observers.telemetry import Telemetry

        added.append(Telemetry())
    if log_file is not None:
        from mcp_trio._observers.request_log import RequestLog

        level = (chosen["log_level"] or "INFO").upper()
        added.append(RequestLog(log_file, format=chosen["log_format"] or "json", level=level))
    if audit_log is not None:
        from mcp_trio._observers.audit_log import AuditLog

        key = None if chosen["audit_key"] is None else read_key(chosen["audit_key"])
        added.append(AuditLog(audit_log, key=key))
    server.observers = [*server.observers, *added]


def tracer_of_proxy(name: str) -> "Tracer":
    """Set up telemetry, and return the tracer for a proxy.

    Raises:
        click.ClickException: A package is missing.
    """
    set_up_telemetry(name)
    from opentelemetry.trace import get_tracer

    return get_tracer("mcp_trio", __version__)


def set_up_telemetry(name: str) -> None:
    """Set up OpenTelemetry's SDK, unless `opentelemetry-instrument` has done that.

    The SDK and its exporters read the variables that these pages list:
    https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/ and
    https://opentelemetry.io/docs/specs/otel/protocol/exporter/

    Args:
        name: The name of the service, if the environment has none.

    Raises:
        click.ClickException: A package is missing.
    """
    try:
        from opentelemetry import metrics, trace
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise click.ClickException(
            "--telemetry needs OpenTelemetry's SDK and its exporter: pip install"
            " opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
        ) from error
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        os.environ.setdefault("OTEL_SERVICE_NAME", name)
        tracers = TracerProvider()
        tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        trace.set_tracer_provider(tracers)
        reader = PeriodicExportingMetricReader(OTLPMetricExporter())
        metrics.set_meter_provider(MeterProvider([reader]))
