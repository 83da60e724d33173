"""`mcp-trio run` serves a server; `mcp-trio demo` records, replays and shows a session."""

import logging
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from mcp_trio._cli.completion import complete_targets
from mcp_trio._cli.options import (
    TRANSPORTS,
    combined,
    flag_of,
    given_serving_options,
    listen_address,
    listening,
    load_server,
    overwrite_option,
    read_key,
    recording_options,
    serving_options,
    set_up_telemetry,
    take_recording,
    telemetry_option,
)
from mcp_trio.errors import ToolError

if TYPE_CHECKING:
    from mcp_trio._client.client import Client
    from mcp_trio._server.http_sessions import Stores
    from mcp_trio._server.middleware import Middleware
    from mcp_trio._server.server import Server
    from mcp_trio.types import ProgressParams


# The limits per caller of `mcp-trio run`.

_limit_options: Final = combined(
    click.option(
        "--rate-limit",
        "rate_limits",
        metavar="RATE",
        multiple=True,
        help="Reject requests of a user beyond this rate, such as 100/minute; clients "
        "without a user name are counted by network, or over stdio by session. The instances of "
        "--redis count together.",
    ),
    click.option(
        "--concurrency-limit",
        metavar="N",
        type=click.IntRange(1),
        help="Reject requests of a user while N others of it run.",
    ),
    click.option(
        "--quota",
        "quotas",
        metavar="RATE",
        multiple=True,
        help="Reject requests of a user that has used up these bytes of requests and results, "
        "such as '100 MB/day'.",
    ),
)


def _take_limits(options: dict[str, Any]) -> "Sequence[Middleware]":
    """Take the values of `_limit_options` out of those of all options, and return the limits."""
    rates, concurrency, quotas = (
        options.pop(name) for name in ("rate_limits", "concurrency_limit", "quotas")
    )
    if not (rates or concurrency or quotas):
        return ()
    from mcp_trio._server.caller_limits import limits_of_command

    try:
        return limits_of_command(rates, concurrency, quotas)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


# The observers of `mcp-trio run`: logs, audit log and traces.

_observer_options: Final = combined(
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
        type=click.Choice([*logging.getLevelNamesMapping()], case_sensitive=False),
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

_OBSERVER_NAMES: Final = (
    *("log_file", "log_format", "log_level", "audit_log", "audit_key", "telemetry"),
)


def _add_observers(
    server: "Server",
    *,
    log_file: str | None,
    log_format: Literal["json", "text"] | None,
    log_level: str | None,
    audit_log: str | None,
    audit_key: str | None,
    telemetry: bool,
) -> None:
    """Add the observers that the options of a command ask for to a server."""
    if log_file is None and (log_format or log_level):
        raise click.UsageError("--log-format and --log-level need --log-file PATH")
    if audit_log is None and audit_key is not None:
        raise click.UsageError("--audit-key needs --audit-log PATH")
    for path in map(Path, filter(None, (log_file, audit_log))):
        # The files are opened once the server starts, where an error would seem to be its own.
        if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
            raise click.UsageError(f"cannot write {path}: name a file in a folder that exists")
    added: list[Any] = []
    if telemetry:
        set_up_telemetry(server.name)
        from mcp_trio._observers.telemetry import Telemetry

        added.append(Telemetry())
    if log_file is not None:
        from mcp_trio._observers.request_log import RequestLog

        level = (log_level or "INFO").upper()
        added.append(RequestLog(log_file, format=log_format or "json", level=level))
    if audit_log is not None:
        from mcp_trio._observers.audit_log import AuditLog

        key = None if audit_key is None else read_key(audit_key)
        added.append(AuditLog(audit_log, key=key))
    server.observers = [*server.observers, *added]


# `mcp-trio run`.


def _protocol_versions(_: click.Context, __: click.Parameter, text: str | None) -> Sequence[str]:
    from mcp_trio._protocol.versions import checked_protocol_versions

    try:
        return () if text is None else checked_protocol_versions(text.split(","))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command(
    short_help="Serve a server.",
    epilog="""\b
Over stdio, the command ends when the client closes stdin or stops reading, when the parent
process ends, or on SIGINT or SIGTERM; what the server prints goes to stderr. Over the other
transports it ends on a signal. http accepts WebSocket clients too, at /ws; over unix and tcp,
each line is a message. Except over stdio, --record needs an existing folder. A
recording is overwritten only with --overwrite; a folder gets a new file for each session.

\b
With one of --keep-… and --max-…, --record PATH is a folder, which is created if need be, and
secrets are redacted. Recordings are compressed and put into a catalogue: see `mcp-trio find`.

\b
Web pages of other origins need --allow-origin to open a WebSocket, and also --allow-cors to read
responses over http. In --token '${TOKEN}', the single quotes keep the token out of the process
list.

\b
Exit status: 0 the client is done; 1 a worker process ended before all of them served; 2 TARGET
names no server, options contradict each other, or the address cannot be used; 128 plus the number
of a signal.

\b
Examples:
  mcp-trio run server.py
  mcp-trio run package.module:server --record recordings/
  mcp-trio run server.py --transport http --port 8000
  mcp-trio run server.py --transport http --host 0.0.0.0 --certfile cert.pem --keyfile key.pem
  mcp-trio run server.py --transport http --allow-origin https://app.example --allow-cors
  mcp-trio run server.py --transport http --workers 4 --redis redis://localhost:6379/0
  mcp-trio run server.py --transport websocket --token '${TOKEN}'
  mcp-trio run server.py --transport unix --socket ~/.server.sock
  mcp-trio run server.py --record trip.mcprec.jsonl.zst --redact --segment-mib 64
  mcp-trio run server.py --transport http --metrics-port 9090 --log-file server.log
  mcp-trio run server.py --transport http --rate-limit 100/minute --quota '1 GB/day'
""",
)
@click.argument("target", shell_complete=complete_targets)
@click.option(
    "--transport",
    type=click.Choice(list(TRANSPORTS)),
    default="stdio",
    show_default=True,
    help="The transport over which clients connect.",
)
@serving_options
@click.option(
    "--certfile",
    metavar="PATH",
    type=click.Path(exists=True, dir_okay=False),
    help="For http and websocket: use TLS with this certificate, in PEM.",
)
@click.option(
    "--keyfile",
    metavar="PATH",
    type=click.Path(exists=True, dir_okay=False),
    help="For http and websocket: the certificate's private key, in PEM; without it, the key is "
    "in the certificate's file.",
)
@click.option(
    "--client-cafile",
    metavar="PATH",
    type=click.Path(exists=True, dir_okay=False),
    help="For http and websocket over TLS: let clients prove certificates that one of these, in "
    "PEM, has signed.",
)
@click.option(
    "--server",
    type=click.Choice(["native", "hypercorn"]),
    help="For http: the HTTP server implementation; native by default, hypercorn for HTTP/2.",
)
@click.option(
    "--workers",
    metavar="N",
    type=click.IntRange(1),
    help="For http: the number of worker processes; more than 1 serves stateless protocol "
    "versions only, unless --redis is given; 1 by default.",
)
@click.option(
    "--redis",
    metavar="URL",
    help="For http: share sessions with the other instances and workers of the server through "
    "this Redis, such as redis://localhost:6379/0; '${NAME}' stands for a variable of the "
    "environment.",
)
@click.option(
    "--protocol-versions",
    metavar="VERSION,...",
    callback=_protocol_versions,
    help="Offer only these protocol versions.",
)
@click.option(
    "--record",
    metavar="PATH",
    help="Record the session to a new file, or each session to its own file in an existing "
    "folder; compressed if the name ends in .zst.",
)
@recording_options
@_limit_options
@_observer_options
@click.option(
    "--metrics-port",
    metavar="N",
    type=click.IntRange(0, 65535),
    help="For http: serve /metrics for Prometheus at this port, and /health and /ready.",
)
@click.option(
    "--metrics-host",
    metavar="NAME",
    help="For --metrics-port: the address to listen on; 127.0.0.1 by default.",
)
@click.option(
    "--strict",
    is_flag=True,
    help="With --record: raise an error when a handler calls what cannot be replayed, such as "
    "os.remove().",
)
def run_command(
    target: str,
    transport: str,
    protocol_versions: Sequence[str],
    record: str | None,
    *,
    strict: bool,
    **options: Any,
) -> None:
    """Serve the server TARGET, file.py[:object] or package.module[:object]."""
    limits = _take_limits(options)
    observers = {name: options.pop(name) for name in _OBSERVER_NAMES}
    for name in ("keyfile", "client_cafile"):
        if options[name] is not None and options["certfile"] is None:
            raise click.UsageError(f"{flag_of(name)} needs --certfile")
    recording = take_recording(options, record, strict=strict)
    given = dict(given_serving_options(transport, options))
    redis_url = given.pop("redis", None)
    if transport == "stdio":
        from mcp_trio._transports.stdio import divert_stdio

        # Before the user's code is imported: what it prints must not get between the messages.
        descriptors = divert_stdio()

        from mcp_trio._server.stdio import run_stdio

        loaded = _load(target, protocol_versions, limits)
        _add_observers(loaded, **observers)
        run_stdio(loaded, record=recording, descriptors=descriptors)
        return

    from mcp_trio._recorder.options import holds_many_sessions
    from mcp_trio._server.http_serve import HttpOptions, check_for_workers
    from mcp_trio._server.server import RUNNERS

    if not holds_many_sessions(recording):
        raise click.UsageError(
            f"--transport {transport} serves many sessions: --record needs an existing folder"
        )
    if limits and given.get("workers", 1) > 1 and redis_url is None:
        raise click.UsageError("limits of several workers need --redis URL, to share their counts")
    loaded = _load(target, protocol_versions, limits)
    if redis_url is not None:
        given["stores"] = _redis_stores(redis_url, loaded)
    _add_observers(loaded, **observers)
    if given.get("workers", 1) > 1:
        http_options: HttpOptions = {"stores": given["stores"]} if "stores" in given else {}
        try:
            check_for_workers(loaded, http_options, given["workers"])
        except ValueError as error:
            raise click.UsageError(str(error)) from error
    with listening(listen_address(**given), "serving") as attempt:
        lifespan = loaded.lifespan
        if lifespan is not None:

            def start_lifespan(server: "Server") -> AbstractAsyncContextManager[Any]:
                # The lifespan starts once the socket is bound: an OSError that it raises is no
                # error of listening.
                attempt.is_over = True
                return lifespan(server)

            loaded.lifespan = start_lifespan
        RUNNERS[transport](loaded, on_serving=attempt.report_url, record=recording, **given)


def _redis_stores(url: str, server: "Server") -> "Stores":
    """Return the stores of all servers with this name that use the same Redis."""
    from mcp_trio._client.config import expanded

    try:
        from mcp_trio.redis import RedisStores
    except ImportError as error:
        raise click.UsageError("--redis needs coredis: pip install 'mcp_trio[redis]'") from error
    try:
        return RedisStores(expanded(url, "the URL", os.environ), prefix=server.name)
    except (ValueError, LookupError) as error:
        raise click.UsageError(f"--redis: {error}") from error


def _load(
    target: str, protocol_versions: Sequence[str], limits: "Sequence[Middleware]"
) -> "Server":
    server = load_server(target)
    if limits:
        from mcp_trio._server.caller_limits import add_limits

        add_limits(server, limits)
    if protocol_versions:
        server.protocol_versions = protocol_versions
    return server


# `mcp-trio demo`.

EXAMPLE: Final = "mcp_trio.examples.weather"
SERVER_FILE: Final = "weather-server.mcprec.jsonl"
CLIENT_FILE: Final = "weather-client.mcprec.jsonl"


@click.command(
    short_help="Record, replay and show a session.",
    epilog="""\b
Exit status: 0 success; 1 DIR cannot be created; 2 DIR has recordings of an earlier demo.

\b
Examples:
  mcp-trio demo
  mcp-trio demo --keep recordings
""",
)
@click.option(
    "--keep",
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="Keep the client's and the server's recording in this folder.",
)
@overwrite_option
def demo_command(keep: str | None, *, overwrite: bool) -> None:
    """Record a session with the example server, replay it byte for byte, and show it."""
    from mcp_trio._cli.replay import replay_summary
    from mcp_trio._cli.timeline import print_timeline
    from mcp_trio._recorder.options import RecordOptions, check_record_target
    from mcp_trio._replay.replay import replay

    with ExitStack() as stack:
        folder = Path(keep or stack.enter_context(tempfile.TemporaryDirectory()))
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise click.ClickException(f"cannot create {folder}: {error.strerror}") from error
        server_file, client_file = folder / SERVER_FILE, folder / CLIENT_FILE
        for file in (server_file, client_file):
            check_record_target(RecordOptions(file, overwrite=overwrite))
        click.echo(f"Recording: a client calls `mcp-trio run {EXAMPLE}` over stdio.")
        _record_demo(server_file, client_file)
        click.echo("\nReplaying: the server's handlers run again, against the recording.")
        start = time.perf_counter()
        report = replay(server_file, load_server(EXAMPLE))
        click.echo(replay_summary(report, time.perf_counter() - start))
        click.echo(f"\nThe recording, {SERVER_FILE}:\n")
        print_timeline(server_file)
    click.echo("\nWhat to try next:")
    click.echo("\n".join(f"  {command}" for command in next_steps(keep)))


def _record_demo(server_file: Path, client_file: Path) -> None:
    import trio

    from mcp_trio._client.client import Client
    from mcp_trio._recorder.options import RecordOptions

    # As the replay in this process: -OO removes the docstrings, which describe the tools.
    optimize = ["-" + "O" * sys.flags.optimize] if sys.flags.optimize else []
    run = [sys.executable, *optimize, "-m", "mcp_trio", "run", EXAMPLE]
    command = [*run, "--record", str(server_file), "--overwrite"]
    record = RecordOptions(client_file, overwrite=True)

    async def session() -> None:
        async with Client(command, name="demo", record=record, log_level="info") as client:
            tools = await client.list_tools()
            click.echo(f"  tools: {', '.join(tool.name for tool in tools)}")
            async with trio.open_nursery() as nursery:
                for call in (_forecast, _cancelled, _rejected, _warmest, _read, _prompt):
                    nursery.start_soon(call, client)

    trio.run(session)


async def _forecast(client: "Client") -> None:
    reports: list[object] = []
    await client.call_tool("forecast", {"city": "Oslo"}, progress=reports.append)
    click.echo(f"  forecast for Oslo: {len(reports)} progress notifications")


async def _cancelled(client: "Client") -> None:
    import trio

    scope = trio.CancelScope()

    def cancel(_: "ProgressParams") -> None:
        scope.cancel()

    with scope:
        await client.call_tool("forecast", {"city": "Lima", "days": 14}, progress=cancel)
    outcome = "cancelled" if scope.cancelled_caught else "finished before it was cancelled"
    click.echo(f"  forecast for Lima: {outcome}")


async def _rejected(client: "Client") -> None:
    try:
        await client.call_tool("forecast", {"city": "Atlantis"})
    except ToolError as error:
        click.echo(f"  forecast for Atlantis: {error}")


async def _warmest(client: "Client") -> None:
    result = await client.call_tool("warmest", {"days": 2})
    click.echo(f"  warmest: {getattr(result.content[0], 'text', '')}")


async def _read(client: "Client") -> None:
    result = await client.read_resource("weather://Bergen/now")
    click.echo(f"  read {result.contents[0].uri}")


async def _prompt(client: "Client") -> None:
    result = await client.get_prompt("plan_trip", {"city": "Pune"})
    click.echo(f"  plan_trip: a prompt with {len(result.messages)} message")


def next_steps(keep: str | None) -> Iterator[str]:
    """Yield commands to try after the demo, for the recordings in the folder `keep`."""
    import importlib.util

    if keep is None:
        yield "mcp-trio demo --keep recordings"
        return
    names = (SERVER_FILE, CLIENT_FILE)
    server_file, client_file = (shlex.quote(str(Path(keep) / name)) for name in names)
    yield f"mcp-trio replay {server_file} {EXAMPLE}"
    yield f"mcp-trio show {client_file}"
    yield f"mcp-trio check {server_file}"
    spec = importlib.util.find_spec(EXAMPLE)
    assert spec is not None
    source = shlex.quote(str(spec.origin))
    yield f"cp {source} . && mcp-trio replay {server_file} weather.py    # edit it in between"
