"""Arguments and options that several commands share.

TARGET is a server in a Python file or module, COMMAND a server's own command, URL a server on the
network, and FILE a recording. The options say where to listen, what to record, and whether to send
telemetry.
"""

import math
import os
import sys
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

import attrs
import click
import msgspec

from mcp_trio._cli.output import echo_error, lines_with_bar
from mcp_trio.errors import ConnectionLost, RecordingError
from mcp_trio.limits import MIB

if TYPE_CHECKING:
    from mcp_trio._journal.records import Damage, Record
    from mcp_trio._recorder.options import RecordOptions
    from mcp_trio._server.server import Server


_Command = TypeVar("_Command", bound=Callable[..., Any])


def combined(*parameters: Callable[[Any], Any]) -> Callable[[_Command], _Command]:
    """Combine several options or arguments into one decorator; `--help` keeps their order."""

    def decorate(command: _Command) -> _Command:
        for parameter in reversed(parameters):
            command = parameter(command)
        return command

    return decorate


# TARGET: a server in a Python file or module.


class TargetUsageError(click.ClickException):
    """A TARGET that names no server; the command ends with status 2."""

    exit_code = 2


@contextmanager
def target_errors() -> Generator[None]:
    """Within this context, the error that a TARGET cannot be imported ends the command."""
    from mcp_trio._replay.targets import TargetError

    try:
        yield
    except TargetError as error:
        raise TargetUsageError(str(error)) from error


def load_server(target: str) -> "Server":
    """Import the server that a TARGET names; see `import_server`.

    Raises:
        TargetUsageError: There is no such file, module or server, or importing it raises.
    """
    from mcp_trio._replay.targets import import_server

    with target_errors():
        return import_server(target)


# COMMAND: the server's own command, after `--`.

_COMMAND_KEY: Final = "mcp_trio.command"  # in click's `Context.meta`


class TakesServerCommand(click.Command):
    """A command whose server is named by an argument, or by a command after `--`.

    `server_index` is the position of that argument in the usage line. `server_placeholder` takes
    the argument's place while click parses a command line with `--`, for an argument that is
    required.
    """

    server_index: ClassVar[int] = -1
    server_placeholder: ClassVar[Sequence[str]] = ()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Remove `-- COMMAND...`, which click would mix up with the arguments before it."""
        if "--" in args:
            index = args.index("--")
            ctx.meta[_COMMAND_KEY] = args[index + 1 :]
            args = [*self.server_placeholder, *args[:index]]
        return super().parse_args(ctx, args)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one usage line for each way to name the server."""
        pieces = self.collect_usage_pieces(ctx)
        formatter.write_usage(ctx.command_path, " ".join(pieces))
        del pieces[self.server_index]
        formatter.write_usage(ctx.command_path, " ".join([*pieces, "-- COMMAND..."]), "       ")


def command_after_dashes(ctx: click.Context) -> Sequence[str] | None:
    """Return the command after `--`, which must not be empty; None if there is no `--`."""
    command: Sequence[str] | None = ctx.meta.get(_COMMAND_KEY)
    if command is not None and not command:
        raise click.UsageError("no COMMAND follows --")
    return command


# URL: a server on the network, and the headers that are sent to it.

_UNAUTHORIZED: Final = 401

# These connections start with an HTTP request, which carries headers.
_SCHEMES_WITH_HEADERS: Final = ("http://", "https://", "ws://", "wss://")


def is_url(text: str) -> bool:
    """Return whether a SERVER or TARGET is a URL; no file or module name looks like one."""
    return "://" in text or text.startswith("unix:")


def check_headers(headers: Mapping[str, str], url: str | None) -> None:
    """Reject headers for a server whose connection cannot carry any; a command has no URL."""
    if headers and not (url or "").lower().startswith(_SCHEMES_WITH_HEADERS):
        raise click.UsageError("--header needs a server at an http(s):// or ws(s):// URL")


def with_header_hint(error: ConnectionLost) -> ConnectionLost:
    """Return the error; if the server asks for authentication, its text names `--header`."""
    if error.http_status != _UNAUTHORIZED:
        return error
    hint = "send a token with --header 'Authorization: Bearer ${TOKEN}'"
    return ConnectionLost(f"{error.reason}; {hint}", http_status=error.http_status)


def _headers(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> Mapping[str, str]:
    """Parse headers. Errors do not repeat the values, which are often secrets."""
    from mcp_trio._client.config import expanded
    from mcp_trio._protocol.http_headers import encoded_headers

    headers: dict[str, str] = {}
    for text in texts:
        name, colon, value = text.partition(":")
        if not colon:
            raise click.BadParameter("a header must be written as 'Name: value'")
        try:
            value = expanded(value.strip(), name, os.environ)
            encoded_headers([(name, value)])
        except (ValueError, LookupError) as error:
            raise click.BadParameter(str(error)) from None
        if name.lower() in map(str.lower, headers):
            raise click.BadParameter(f"{name} is given twice")
        headers[name] = value
    return headers


# The parameter `headers`: a value for each name.
header_option: Final = click.option(
    "--header",
    "headers",
    metavar="'NAME: VALUE'",
    multiple=True,
    callback=_headers,
    help="For a URL: send this header with each request; "
    "${VAR} is replaced by the environment variable.",
)


# FILE: a recording.


STDIN: Final = "-"
"""In place of a FILE, it stands for the recordings that stdin names."""


class FoundRecording(msgspec.Struct, frozen=True):
    """A recording that stdin names; its role is known if `mcp-trio find --json` has printed it."""

    file: str
    role: str = ""


def recordings_on_stdin() -> list[FoundRecording]:
    """Return the recordings that stdin names: one a line, or a JSON object as of `mcp-trio find`.

    Raises:
        click.ClickException: There is none, as after a `mcp-trio find` that found none.
        click.UsageError: A JSON object has no `file`.
    """
    found: list[FoundRecording] = []
    for number, line in enumerate(sys.stdin.buffer, 1):
        text = os.fsdecode(line).strip()  # the name of a file may be any bytes
        if text.startswith("{"):
            try:
                found.append(msgspec.json.decode(line, type=FoundRecording))
            except msgspec.DecodeError as error:
                raise click.UsageError(
                    f"line {number} of stdin names no recording: {error}; pipe the output of"
                    " `mcp-trio find` with --json or --files to this command"
                ) from error
        elif text:
            found.append(FoundRecording(text))
    if not found:
        raise click.ClickException("stdin names no recording")
    return found


def files_of(file: str) -> list[str]:
    """Return the FILE, or for `-` the recordings that stdin names; see `recordings_on_stdin`."""
    return [each.file for each in recordings_on_stdin()] if file == STDIN else [file]


def highest_status(files: Iterable[str], check: Callable[[str], int]) -> int:
    """Return the highest exit status of `check` for one of the files.

    A file that cannot be used is reported on stderr, and counts as 2; the others are checked.
    """
    statuses: list[int] = []
    for file in files:
        try:
            statuses.append(check(file))
        except (RecordingError, click.UsageError) as error:
            echo_error(str(error))
            statuses.append(2)
    return max(statuses)


def lines_of(file: str | os.PathLike[str]) -> Iterator[bytes]:
    """Yield the lines of a recording; on a terminal, a progress bar appears for a long one.

    Raises:
        RecordingError: The file cannot be read or decompressed.
    """
    from mcp_trio._recorder.files import COMPRESSED_SUFFIX, open_recording

    total_bytes = None
    segments = segments_of(file)
    if not any(each.endswith(COMPRESSED_SUFFIX) for each in segments):
        with suppress(OSError):  # opening the recording reports the error
            total_bytes = sum(Path(each).stat().st_size for each in segments)
    return lines_with_bar(
        open_recording(file), f"reading {Path(file).name}", total_bytes=total_bytes
    )


def records_of(file: str | os.PathLike[str]) -> "Iterator[Record | Damage]":
    """Yield the records of a recording, and its damage where that occurs.

    Raises:
        RecordingError: The file cannot be read, or is not a recording; the text names the file.
    """
    from mcp_trio._journal.records import read_recording

    with errors_naming(file):
        yield from read_recording(lines_of(file))


@contextmanager
def errors_naming(file: str | os.PathLike[str]) -> Generator[None, None, None]:
    """Within this context, a `RecordingError` whose text does not name the file gets its name."""
    name = os.fspath(file)
    try:
        yield
    except RecordingError as error:
        if f" {name}:" in str(error) or str(error).startswith((f"{name}:", f"{name} ")):
            raise
        raise RecordingError(f"{name}: {error}") from error


def segments_of(file: str | os.PathLike[str]) -> list[str]:
    """Return the recording's file and its later segments."""
    from mcp_trio._recorder.files import later_names

    name = os.fspath(file)
    try:
        return [name, *later_names(name)]
    except OSError:  # reading the recording reports the error
        return [name]


def is_same_recording(output: str, file: str) -> bool:
    """Return whether a file to write is the recording itself, or one of its segments."""
    if not (Path(output).exists() and Path(file).exists()):
        return False
    return any(Path(output).samefile(each) for each in segments_of(file))


def check_overwrites_nothing(output: str, *, overwrite: bool) -> None:
    """Reject a file to write that exists and is not empty, unless it may be replaced."""
    path = Path(output)
    if not overwrite and path.is_file() and path.stat().st_size:
        raise click.UsageError(f"{output} exists: name another file, or add --overwrite")


def write_report(file: str, text: str) -> None:
    """Write a text to a file, in place of what is there.

    Characters that UTF-8 cannot encode, as in the names of some files, are escaped.
    """
    try:
        Path(file).write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise click.UsageError(f"cannot write {file}: {error.strerror}") from error


# Where a command listens, and which clients it accepts.

UNUSABLE_STATUS: Final = 2
"""The exit status of a command that cannot use the address or file that its options name."""

_WEB_OPTIONS: Final = ("host", "port", "token", "hosts", "origins")
_TLS_OPTIONS: Final = ("certfile", "keyfile", "client_cafile")

# The options of each transport, by their parameter names.
TRANSPORTS: Final[Mapping[str, Collection[str]]] = {
    "stdio": (),
    "http": (
        *(*_WEB_OPTIONS, *_TLS_OPTIONS, "allows_cors", "server", "workers", "redis"),
        *("metrics_port", "metrics_host"),
    ),
    "websocket": (*_WEB_OPTIONS, *_TLS_OPTIONS),
    "unix": ("path",),
    "tcp": ("host", "port", "is_open"),
}

# The options whose name on the command line differs from that of their parameter.
_FLAGS: Final = {
    "hosts": "--allow-host",
    "origins": "--allow-origin",
    "allows_cors": "--allow-cors",
    "path": "--socket",
    "is_open": "--open",
}


def flag_of(name: str) -> str:
    """Return the name of a parameter's option on the command line."""
    return _FLAGS.get(name, f"--{name.replace('_', '-')}")


def is_given(value: object) -> bool:
    """Return whether an option was given; None, False, () and {} are values of options left out."""
    return not (value is None or value is False or value in ((), {}))


def given_options(transport: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given; reject those that the transport does not have."""
    given = {name: value for name, value in options.items() if is_given(value)}
    for name in given:
        if name not in TRANSPORTS[transport]:
            raise click.UsageError(f"{flag_of(name)} cannot be used with {transport}")
    return given


def given_serving_options(transport: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options that were given, and check that the transport has all that it requires.

    A server over TCP that other machines can reach requires `--open`.
    """
    given = given_options(transport, options)
    if transport == "unix" and not given.get("path"):
        raise click.UsageError("--transport unix needs --socket PATH")
    if transport == "tcp":
        check_tcp_host(given.get("host", "127.0.0.1"), is_open=given.get("is_open", False))
    return given


def check_tcp_host(host: str, *, is_open: bool) -> None:
    """Reject an address to listen on that other machines can reach, unless `--open` is given."""
    from mcp_trio._protocol.security import is_loopback

    if not (is_open or is_loopback(host)):
        raise click.UsageError(
            f"tcp has no authentication, and other machines can connect to {host}:"
            " add --open to allow that"
        )


def listen_address(*, path: str = "", host: str = "127.0.0.1", port: int = 8000, **_: Any) -> str:
    """Return the path or HOST:PORT that these options name, for error messages."""
    from mcp_trio._transports.sockets import netloc

    return path or netloc(host, port)


def host_check_options(when: str) -> Callable[[_Command], _Command]:
    """Return the options for `hosts` and `origins`; `when` says in `--help` where they apply."""
    options = [
        click.option(
            flag_of(name),
            name,
            metavar=metavar,
            multiple=True,
            callback=_check_hosts,
            help=f"{when}: accept {accepted}; * accepts any. Error messages call this {name}=.",
        )
        for name, metavar, accepted in (
            ("hosts", "NAME", "this Host header"),
            ("origins", "ORIGIN", "web pages of this origin"),
        )
    ]
    return combined(*options)


def cors_option(when: str) -> Callable[[_Command], _Command]:
    """Return the option for `allows_cors`; `when` says in `--help` where it applies."""
    return click.option(
        "--allow-cors",
        "allows_cors",
        is_flag=True,
        help=f"{when}: send CORS headers, so that pages of the allowed origins can read the "
        "responses. Error messages call this allows_cors=.",
    )


def token_option(when: str) -> Callable[[_Command], _Command]:
    """Return the option for `token`; `when` says in `--help` where it applies."""
    return click.option(
        "--token",
        metavar="TOKEN",
        callback=_token,
        help=f"{when}: require this bearer token in the Authorization header; "
        "${VAR} is replaced by the environment variable.",
    )


def _check_hosts(
    _: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[str, ...]:
    from mcp_trio._protocol.security import host_check_for

    given: Mapping[str, Any] = {str(parameter.name): values}
    try:
        host_check_for([], **given)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return values


def _token(_: click.Context, __: click.Parameter, text: str | None) -> str | None:
    return None if text is None else parse_token(text, "the token")


def parse_token(text: str, name: str) -> str:
    """Return a token, with variables of the environment replaced.

    Raises:
        click.BadParameter: It is no token, or a variable is not set. The text has `name`, but not
            the token.
    """
    from mcp_trio._client.config import expanded
    from mcp_trio._protocol.websocket import checked_token

    try:
        return checked_token(expanded(text, name, os.environ))
    except (ValueError, LookupError) as error:
        raise click.BadParameter(str(error)) from None


_FOR_THE_WEB: Final = "For http and websocket"

# How a server listens. `given_serving_options` checks their values.
serving_options: Final = combined(
    click.option(
        "--host",
        metavar="NAME",
        help="For http, websocket and tcp: the address to listen on; 127.0.0.1 by default.",
    ),
    click.option(
        "--port",
        type=click.IntRange(0, 65535),
        metavar="N",
        help="For http, websocket and tcp: the port; 8000 by default, 0 for any free port.",
    ),
    click.option("--socket", "path", metavar="PATH", help="For unix: the path of the socket."),
    click.option(
        "--open",
        "is_open",
        is_flag=True,
        help="For tcp: allow a --host that other machines can reach, without authentication.",
    ),
    token_option(_FOR_THE_WEB),
    host_check_options(_FOR_THE_WEB),
    cors_option("For http"),
)


@attrs.define(eq=False, repr=False)
class ListenAttempt:
    """The start of a listener: `report_url` is called once it listens."""

    label: str
    is_over: bool = attrs.field(default=False, init=False)

    def report_url(self, url: str) -> None:
        """Print the URL to stderr; from now on, errors are not those of listening."""
        self.is_over = True
        click.echo(f"{self.label} {url}", err=True)


@contextmanager
def listening(address: str | None, label: str) -> Generator[ListenAttempt]:
    """Within this context, start a listener; print one line and exit if it cannot listen.

    Args:
        address: Where the listener listens; None if it does not.
        label: Printed before the listener's URL.

    Raises:
        OSError: The error is not about listening: the listener listens already, or there is none.
    """
    attempt = ListenAttempt(label)
    try:
        yield attempt
    except (OSError, UnicodeError) as error:  # UnicodeError: no host can have this name
        if address is None or attempt.is_over:
            raise
        text = str(error)
        if isinstance(error, OSError) and error.strerror is not None:
            text, name = error.strerror, error.filename
            # The file that the error is about, such as a certificate, unless it is the address.
            if name is not None and os.path.lexists(name) and not address.endswith(name):
                text += f": {name}"
        click.echo(f"cannot listen at {address}: {text}", err=True)
        click.get_current_context().exit(UNUSABLE_STATUS)


# What is recorded, and how.

_KEY_BYTES_MIN: Final = 16


class _PositiveNumber(click.FloatRange):
    """A finite number above 0, converted to another unit; `click.FloatRange` accepts `inf`."""

    def __init__(self, converted: Callable[[float], float] = float) -> None:
        super().__init__(min=0, min_open=True)
        self.converted = converted

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return self.converted(number)


POSITIVE: Final = _PositiveNumber()
_GIB: Final = _PositiveNumber(lambda number: math.ceil(number * 1024 * MIB))

# For a command that writes a file which may exist.
overwrite_option: Final = click.option(
    "--overwrite", is_flag=True, help="Replace a file that exists."
)

# How sessions are recorded, and which are kept; `take_recording` takes their values.
recording_options: Final = combined(
    click.option("--compress", is_flag=True, help="Compress the files in a folder."),
    click.option(
        "--encrypt",
        is_flag=True,
        help="Encrypt the recording with the first key in $MCP_TRIO_RECORDING_KEYS.",
    ),
    click.option(
        "--segment-mib",
        "segment_bytes_max",
        type=_PositiveNumber(lambda number: math.ceil(number * MIB)),
        metavar="N",
        help="Start another file, NAME.2.mcprec.jsonl, when the current one reaches this size.",
    ),
    click.option(
        "--segment-minutes",
        "segment_seconds_max",
        type=_PositiveNumber(lambda number: number * 60),
        metavar="N",
        help="Start another file when the current one reaches this age.",
    ),
    click.option(
        "--sync-seconds",
        type=POSITIVE,
        metavar="N",
        help="Sync the recording to disk this often, so that it survives a power failure.",
    ),
    click.option("--redact", is_flag=True, help="Redact passwords, tokens and other secrets."),
    click.option(
        "--redaction-key",
        metavar="FILE",
        help="Redact with the key in this file, so that redacted recordings can be compared.",
    ),
    overwrite_option,
    click.option(
        "--keep-rate",
        "rate",
        type=click.FloatRange(0, 1),
        metavar="SHARE",
        help="Keep this share of the sessions, 0 to 1, and all with an error, a time-out or a "
        "rejected access; forget the others.",
    ),
    click.option(
        "--keep-slow",
        "slow_seconds",
        type=POSITIVE,
        metavar="SECONDS",
        help="Also keep sessions with a call that takes so long.",
    ),
    click.option(
        "--keep-slowest",
        "slow_percent",
        type=POSITIVE,
        metavar="PERCENT",
        help="Also keep sessions with one of the slowest calls of a tool.",
    ),
    click.option(
        "--keep-tool",
        "tools",
        metavar="NAME",
        multiple=True,
        help="Also keep sessions with this tool.",
    ),
    click.option(
        "--keep-user",
        "principals",
        metavar="NAME",
        multiple=True,
        help="Also keep sessions of this user.",
    ),
    click.option(
        "--keep-header",
        "kept_headers",
        metavar="NAME",
        multiple=True,
        help="Also keep sessions with this HTTP header.",
    ),
    click.option(
        "--max-days",
        "keep_days",
        type=POSITIVE,
        metavar="N",
        help="Remove recordings after so many days.",
    ),
    click.option(
        "--max-gib",
        "keep_bytes_max",
        type=_GIB,
        metavar="N",
        help="Remove recordings above this size in all.",
    ),
    click.option(
        "--max-recordings",
        "keep_count_max",
        type=click.IntRange(1),
        metavar="N",
        help="Remove recordings above this number.",
    ),
    click.option(
        "--min-free-gib",
        "free_bytes_min",
        type=_GIB,
        metavar="N",
        help="Remove recordings, and at last stop recording, while the disk has less room.",
    ),
    click.option(
        "--upload",
        metavar="URL",
        help="Copy complete recordings to a store, such as s3://bucket/prefix.",
    ),
    click.option(
        "--remove-uploaded",
        is_flag=True,
        default=None,
        help="Remove recordings from the folder when they are in the store.",
    ),
)

# The parameters of `recording_options` are named as the arguments of `RecordOptions` and
# `RecordPolicy`. But `redact` and `redaction_key`, the file of a key, make the argument
# `redaction`; `kept_headers` is `headers`, since `--header` has a parameter of that name.
_RECORDER_PARAMETERS: Final = (
    *("compress", "encrypt", "segment_bytes_max", "segment_seconds_max", "sync_seconds"),
    *("redact", "redaction_key", "overwrite"),
)
_REASONS_TO_KEEP: Final = ("slow_seconds", "slow_percent", "tools", "principals", "kept_headers")
_POLICY_PARAMETERS: Final = (
    *("rate", *_REASONS_TO_KEEP, "keep_days", "keep_bytes_max", "keep_count_max"),
    *("free_bytes_min", "upload", "remove_uploaded"),
)


def take_recording(
    options: dict[str, Any], path: str | None, *, strict: bool = False
) -> "RecordOptions | None":
    """Take the values of `recording_options` out of those of all options of a command.

    Args:
        options: The values of all options; those that are taken are removed.
        path: The file, or the folder in which each session gets a file; None if nothing is
            recorded.
        strict: Whether untracked calls of handlers raise an error; see `RecordOptions`.

    Returns:
        The options for the recorder; a `RecordPolicy`, whose folder was created, if an option of a
        policy is given; None without a path.

    Raises:
        click.UsageError: The options contradict each other or need a path, or nothing can be
            recorded to `path`.
        RecordingError: `path` is a file that is not empty, and `--overwrite` is not given.
    """
    chosen: dict[str, Any] = {name: options.pop(name) for name in _RECORDER_PARAMETERS}
    policy: dict[str, Any] = {name: options.pop(name) for name in _POLICY_PARAMETERS}
    policy = {name: value for name, value in policy.items() if value not in (None, ())}
    if path is None:
        if strict or policy or any(chosen.values()):
            raise click.UsageError("recording options need --record PATH")
        return None
    if policy:
        if Path(path).is_file():
            raise click.UsageError(
                "--keep-…, --max-…, --min-free-gib and --upload need a folder, and"
                f" {path} is a file"
            )
        try:
            Path(path).mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise click.UsageError(f"cannot create the folder {path}: {error.strerror}") from error

    from mcp_trio._journal.redaction import Redaction
    from mcp_trio._recorder.options import RecordOptions, check_record_target

    # A folder gets a file when a session starts. Errors are reported now rather than then.
    if path.endswith("/") and not Path(path).is_dir():
        raise click.UsageError(f"cannot record to {path}: make the folder first: mkdir {path}")
    if Path(path).is_dir() and not os.access(path, os.W_OK | os.X_OK):
        raise click.UsageError(f"cannot record to {path}: a file cannot be created there")
    chosen["strict"], key = strict, chosen.pop("redaction_key")
    if chosen.pop("redact") or key is not None or policy:
        chosen["redaction"] = Redaction(key=None if key is None else read_key(key))
    if not policy:
        recording = RecordOptions(path, **chosen)
    else:
        from mcp_trio._recorder.policy import RecordPolicy

        if not policy.keys().isdisjoint(_REASONS_TO_KEEP):
            policy.setdefault("rate", 0.0)  # without --keep-rate, only the sessions that these keep
        policy |= {"headers": policy.pop("kept_headers", ()), "compress": True}
        try:
            recording = RecordPolicy(path, **chosen | policy)
        except ValueError as error:
            raise click.UsageError(str(error)) from error
    check_record_target(recording)
    return recording


def read_key(file: str) -> bytes:
    """Read a redaction key from a file, without the white space around it."""
    try:
        key = Path(file).read_bytes().strip()
    except OSError as error:
        raise click.BadParameter(f"cannot read the key {file}: {error.strerror}") from error
    if len(key) < _KEY_BYTES_MIN:
        raise click.BadParameter(
            f"the key in {file} has less than {_KEY_BYTES_MIN} bytes: use a longer random text"
        )
    return key


# Telemetry.

telemetry_option: Final = click.option(
    "--telemetry",
    is_flag=True,
    help="Send spans and measurements by OTLP over HTTP, as the variables OTEL_… say.",
)


def set_up_telemetry(name: str) -> None:
    """Set up OpenTelemetry's SDK for a service, unless `opentelemetry-instrument` has done that.

    The SDK and its exporters read the variables that these pages list:
    https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/ and
    https://opentelemetry.io/docs/specs/otel/protocol/exporter/
    The name of the service is used if the environment has none.
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
