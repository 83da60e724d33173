"""Options and arguments that several commands share."""

import math
import os
import shutil
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypedDict, TypeVar, get_args

import attrs
import click

from mcp_trio._protocol.versions import ALL_PROTOCOL_VERSIONS
from mcp_trio.limits import DEFAULT_LIMITS, MIB, Limits, RequestLimits
from mcp_trio.types import LoggingLevel

if TYPE_CHECKING:
    from mcp_trio._journal.redaction import Redaction
    from mcp_trio._recorder.writer import RecordOptions
    from mcp_trio.errors import ConnectionLost


# --------------------
# Arguments and options that commands have in common: several of them as one decorator.


_Command = TypeVar("_Command", bound=Callable[..., Any])


def together(*parameters: Callable[[Any], Any]) -> Callable[[_Command], _Command]:
    """A decorator that gives a command all of these, which `--help` shows in this order."""

    def decorate(command: _Command) -> _Command:
        for parameter in reversed(parameters):
            command = parameter(command)
        return command

    return decorate


# --------------------
# A server's own command on our command line: it stands behind `--`.


# Where in click's context the command is that stood behind `--`.
_COMMAND: Final = "mcp_trio.command"


class TakesCommand(click.Command):
    """A command whose server is named by an argument, or by a command behind `--`.

    `server_place` is where the argument stands in the usage; `server_words` stand for it on the
    command line where the command behind `--` does, if it must not be left out.
    """

    server_place: ClassVar[int]
    server_words: ClassVar[Sequence[str]] = ()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take off the command, which click would mix up with the arguments before it."""
        if "--" in args:
            place = args.index("--")
            ctx.meta[_COMMAND] = args[place + 1 :]
            args = [*self.server_words, *args[:place]]
        return super().parse_args(ctx, args)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write both ways to name the server, a line each."""
        pieces = self.collect_usage_pieces(ctx)
        formatter.write_usage(ctx.command_path, " ".join(pieces))
        del pieces[self.server_place]
        formatter.write_usage(ctx.command_path, " ".join([*pieces, "-- COMMAND..."]), "       ")


def command_behind(ctx: click.Context) -> Sequence[str] | None:
    """The command that stands behind `--`; None if there is no `--`.

    Raises:
        click.UsageError: Nothing stands there.
    """
    command: Sequence[str] | None = ctx.meta.get(_COMMAND)
    if command is not None and not command:
        raise click.UsageError("no COMMAND follows --")
    return command


# --------------------
# A server's URL on the command line, and the headers that go along with what is asked there.


_UNAUTHORIZED: Final = 401

# What begins with a request of HTTP, in which headers go along.
_WITH_HEADERS: Final = ("http://", "https://", "ws://", "wss://")


def is_url(word: str) -> bool:
    """Return whether a SERVER or TARGET is a URL; nothing else that it may be has this in it."""
    return "://" in word or word.startswith("unix:")


def checked_url(word: str) -> str:
    """The URL, if it is one that is asked over HTTP.

    Raises:
        click.UsageError: It is none. Nothing of it is repeated, for it may have a secret in it.
    """
    from mcp_trio._transports.http_client import parsed_url

    try:
        parsed_url(word)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    return word


def reject_headers(headers: Mapping[str, str], url: str | None) -> None:
    """Refuse headers where no request would carry them; None: the server is at no URL.

    Raises:
        click.UsageError: There are some all the same.
    """
    if headers and not (url or "").lower().startswith(_WITH_HEADERS):
        raise click.UsageError("--header needs a server at an http(s):// or ws(s):// URL")


def naming_header(error: "ConnectionLost") -> "ConnectionLost":
    """The error; if the server wants to know who asks, with the option that tells it."""
    from mcp_trio.errors import ConnectionLost

    if error.http_status != _UNAUTHORIZED:
        return error
    return ConnectionLost(f"{error.reason} (--header)", http_status=error.http_status)


def _headers(_: click.Context, __: click.Parameter, words: tuple[str, ...]) -> Mapping[str, str]:
    headers: dict[str, str] = {}
    for word in words:
        name, value = _header(word)
        if name.lower() in map(str.lower, headers):
            raise click.BadParameter(f"{name} is given twice")
        headers[name] = value
    return headers


def _header(word: str) -> tuple[str, str]:
    """What is wrong is told without the value, which is a secret more often than not."""
    from mcp_trio._client.config import expanded
    from mcp_trio._protocol.http_headers import encoded

    name, colon, text = word.partition(":")
    if not colon:
        raise click.BadParameter("a header must be written as 'Name: value'")
    try:
        value = expanded(text.strip(), name, os.environ)
        encoded([(name, value)])
    except (ValueError, LookupError) as error:
        raise click.BadParameter(str(error)) from None
    return name, value


# It makes up `headers`: a value for each name.
header_option: Final = click.option(
    "--header",
    "headers",
    metavar="'NAME: VALUE'",
    multiple=True,
    callback=_headers,
    help=(
        "For a URL: a header to send with each request; ${VAR} is "
        "replaced by the environment variable."
    ),
)


# --------------------
# What commands have in common that serve, or stand between clients and a server.


NOT_FOUND_STATUS: Final = 127
NOT_EXECUTABLE_STATUS: Final = 126
UNUSABLE_STATUS: Final = 2


# Why --allow-cors is refused where a server over HTTP is behind us.
CORS_IS_THEIRS: Final = "--allow-cors is for other servers: one over HTTP says by itself who reads"

_OF_THE_WEB: Final = ("host", "port", "token", "hosts", "origins")

# A row is a transport, and of which options whoever serves over it is told, by their names.
TRANSPORTS: Final[Mapping[str, Collection[str]]] = {
    "stdio": (),
    "http": (*_OF_THE_WEB, "certfile", "keyfile", "allows_cors", "server", "workers"),
    "websocket": (*_OF_THE_WEB, "certfile", "keyfile"),
    "unix": ("path",),
    "tcp": ("host", "port", "is_open"),
}

# How those are called on the command line whose names differ.
_FLAGS: Final = {
    "hosts": "--allow-host",
    "origins": "--allow-origin",
    "allows_cors": "--allow-cors",
    "path": "--socket",
    "is_open": "--open",
}

# They make up `host`, `port`, `path` and `is_open`.
_place_options: Final = together(
    click.option(
        "--host",
        metavar="NAME",
        help=("For http, websocket, tcp: the address to listen on; 127.0.0.1 by default."),
    ),
    click.option(
        "--port",
        type=click.IntRange(0, 65535),
        help=("For http, websocket, tcp: the port; 8000 by default, 0 for any free port."),
    ),
    click.option("--socket", "path", metavar="PATH", help="For unix: the path of the socket."),
    click.option(
        "--open",
        "is_open",
        is_flag=True,
        help=("For tcp: allow a --host that other machines can reach, without authentication."),
    ),
)


def flag_of(name: str) -> str:
    """How an option is called on the command line."""
    return _FLAGS.get(name, f"--{name}")


def is_said(value: object) -> bool:
    """Return whether an option was given; None, False and no words say nothing."""
    return not (value is None or value is False or value == ())


def told_to(transport: str, said: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given, if the transport has a use for them.

    Raises:
        click.UsageError: It has none.
    """
    given = {name: value for name, value in said.items() if is_said(value)}
    for name in given:
        if name not in TRANSPORTS[transport]:
            raise click.UsageError(f"{flag_of(name)} cannot be used with {transport}")
    return given


def placed(transport: str, said: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same, and where it is served is among them if it has to be.

    Raises:
        click.UsageError: It is not, or not safe without another option; or as `told_to`.
    """
    place = told_to(transport, said)
    if transport == "unix" and not place.get("path"):
        raise click.UsageError("unix needs --socket PATH")
    if transport == "tcp":
        _check_tcp(**place)
    return place


def _check_tcp(*, host: str = "127.0.0.1", is_open: bool = False, **_: Any) -> None:
    from mcp_trio._server.sockets import is_loopback

    if not (is_open or is_loopback(host)):
        raise click.UsageError(
            f"every machine that can reach {host} could use this server: --open allows that"
        )


def where(*, path: str = "", host: str = "127.0.0.1", port: int = 8000, **_: Any) -> str:
    """The place that is meant, as people write it."""
    from mcp_trio._transports.sockets import netloc

    return path or netloc(host, port)


def host_check_options(when: str) -> Callable[[_Command], _Command]:
    """The options that make up `hosts` and `origins`; `when` they count."""
    return together(
        _host_check_option("hosts", "NAME", f"{when}: a host name that clients may use"),
        _host_check_option("origins", "ORIGIN", f"{when}: an origin whose web pages may connect"),
    )


def _host_check_option(name: str, metavar: str, who: str) -> Callable[[_Command], _Command]:
    return click.option(
        flag_of(name),
        name,
        metavar=metavar,
        multiple=True,
        callback=_gated,
        help=f"{who} (errors call this option {name}=); * for any.",
    )


def cors_option(when: str) -> Callable[[_Command], _Command]:
    """The option that makes up `allows_cors`; `when` it counts."""
    return click.option(
        "--allow-cors",
        "allows_cors",
        is_flag=True,
        help=(
            f"{when}: send CORS headers, so that pages of the allowed origins "
            "can read the responses (errors call this option allows_cors=)."
        ),
    )


def token_option(when: str) -> Callable[[_Command], _Command]:
    """The option that makes up `token`; `when` it counts."""
    return click.option(
        "--token",
        metavar="TOKEN",
        callback=_token,
        help=(
            f"{when}: require this bearer token in the Authorization header; "
            f"${{VAR}} is replaced by the environment variable."
        ),
    )


def _gated(_: click.Context, parameter: click.Parameter, words: tuple[str, ...]) -> tuple[str, ...]:
    from mcp_trio._protocol.security import host_check_for

    given: Mapping[str, Any] = {str(parameter.name): words}
    try:
        host_check_for([], **given)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return words


def _token(_: click.Context, __: click.Parameter, word: str | None) -> str | None:
    """What is wrong is told without the token."""
    from mcp_trio._client.config import expanded
    from mcp_trio._protocol.websocket import checked_token

    if word is None:
        return None
    try:
        return checked_token(expanded(word, "the token", os.environ))
    except (ValueError, LookupError) as error:
        raise click.BadParameter(str(error)) from None


_FOR_THE_WEB: Final = "For http, websocket"

# Where something is served, and to whom: what `placed` takes, but for `server` and `workers`.
serving_options: Final = together(
    _place_options,
    token_option(_FOR_THE_WEB),
    host_check_options(_FOR_THE_WEB),
    cors_option("For http"),
)


@attrs.define(eq=False)
class Attempt:
    """Somebody tries to listen; `told` is called with the URL when they do."""

    word: str
    is_over: bool = False

    def told(self, url: str) -> None:
        """It has come to a good end, which people are told."""
        self.is_over = True
        click.echo(f"{self.word} {url}", err=True)


@contextmanager
def listening(place: str | None, word: str) -> Generator[Attempt]:
    """Within, somebody tries to listen there; that it cannot be is a line, and ends the command.

    What goes wrong when the attempt is over is no affair of the place, and raised as it is.
    """
    attempt = Attempt(word)
    try:
        yield attempt
    except (OSError, UnicodeError) as error:  # the latter of a host that can have no such name
        if place is None or attempt.is_over:
            raise
        click.echo(f"cannot listen at {place}: {_reason(error, place)}", err=True)
        click.get_current_context().exit(UNUSABLE_STATUS)


def _reason(error: Exception, place: str) -> str:
    """In words, with the file that is in the way, if it is another one than that of the place."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    name = error.filename
    is_other = name is not None and os.path.lexists(name) and not place.endswith(name)
    return f"{error.strerror}: {name}" if is_other else error.strerror


def check_program(context: click.Context, program: str) -> None:
    """Ends as a shell does if there is no such program: before a file is made for nothing."""
    if shutil.which(program):
        return
    if shutil.which(program, os.F_OK) or Path(program).is_dir():
        click.echo(f"cannot start {program!r}: it is not executable", err=True)
        context.exit(NOT_EXECUTABLE_STATUS)
    click.echo(f"cannot start {program!r}: not found", err=True)
    context.exit(NOT_FOUND_STATUS)


_KEY_BYTES_MIN: Final = 16


class _Above0(click.FloatRange):
    """A number above 0, and one to count with: `inf` and `nan` are none."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


_ABOVE_0: Final = _Above0(min=0, min_open=True)

# What a command passes on to `record_options`.
recording_options: Final = together(
    click.option("--compress", is_flag=True, help="In a folder: compress the file."),
    click.option(
        "--segment-mib",
        type=_ABOVE_0,
        metavar="N",
        help=(
            "Continue in a new file, NAME.2.mcprec.jsonl, when the current one reaches this size."
        ),
    ),
    click.option(
        "--segment-minutes",
        type=_ABOVE_0,
        metavar="N",
        help="Continue in a new file when the current one reaches this age.",
    ),
    click.option(
        "--sync-seconds",
        type=_ABOVE_0,
        metavar="N",
        help=("How often to sync the recording to disk, so that it survives a power failure."),
    ),
    click.option(
        "--redact", is_flag=True, help="Replace passwords, tokens and the like before writing."
    ),
    click.option(
        "--redaction-key",
        metavar="FILE",
        help=("Redact with the key in this file, so that redacted recordings stay comparable."),
    ),
)


class RecordingChoices(TypedDict):
    """What the options say."""

    compress: bool
    segment_mib: float | None
    segment_minutes: float | None
    sync_seconds: float | None
    redact: bool
    redaction_key: str | None


def record_options(
    path: str, choices: RecordingChoices, *, strict: bool = False
) -> "RecordOptions":
    """What `record=` takes.

    Raises:
        click.UsageError: No files can be made in the folder.
    """
    from mcp_trio._recorder.writer import RecordOptions

    _check_folder(path)
    mib, minutes = choices["segment_mib"], choices["segment_minutes"]
    return RecordOptions(
        path,
        compress=choices["compress"],
        redaction=_redaction(choices),
        segment_bytes_max=None if mib is None else math.ceil(mib * MIB),
        segment_seconds_max=None if minutes is None else minutes * 60,
        sync_seconds=choices["sync_seconds"],
        strict=strict,
    )


def _check_folder(path: str) -> None:
    """A folder gets a file with each session: what is wrong with it is said before there is one."""
    if path.endswith("/") and not Path(path).is_dir():
        raise click.UsageError(f"cannot record to {path}: the folder does not exist")
    if Path(path).is_dir() and not os.access(path, os.W_OK | os.X_OK):
        raise click.UsageError(f"cannot record to {path}: a file cannot be created there")


def _redaction(choices: RecordingChoices) -> "Redaction | None":
    key = choices["redaction_key"]
    if key is None and not choices["redact"]:
        return None
    from mcp_trio._journal.redaction import Redaction

    return Redaction(key=None if key is None else read_key(key))


def read_key(file: str) -> bytes:
    """The key of redaction that a file holds, without white space around it.

    Raises:
        click.BadParameter: The file cannot be read, or is too short for a key.
    """
    try:
        key = Path(file).read_bytes().strip()
    except OSError as error:
        raise click.BadParameter(f"cannot read the key {file}: {error.strerror}") from error
    if len(key) < _KEY_BYTES_MIN:
        raise click.BadParameter(f"the key in {file} has less than {_KEY_BYTES_MIN} bytes")
    return key


# --------------------
# SERVER on the command line, and the options that say how to talk to it.


SERVER_EPILOG: Final = """\b
SERVER is a URL; or file.py[:object] or package.module[:object], whose server then runs in this
process; or, with --config, a name in that file; or is left out when the server's own command
follows behind --, which inherits the environment. What a server prints goes to stderr.

\b
Write --header 'Authorization: Bearer ${TOKEN}' in single quotes: what the environment holds does
not stand in the list of processes then. SSL_CERT_FILE names certificates to trust.

\b
What a server asks meanwhile is asked on the terminal, where Ctrl-D declines; without a terminal
it is declined.
"""


@attrs.frozen(kw_only=True)
class Choices:
    """What the options below have chosen: SERVER's words, and how to talk to it."""

    server: str | Sequence[str]
    config: str | None
    headers: Mapping[str, str]
    timeout: float | None
    log_level: LoggingLevel | None
    stderr: bool
    protocol_version: str | None
    yes: bool

    @property
    def limits(self) -> Limits:
        """The default limits, with one time-out for each request if one was chosen."""
        if self.timeout is None:
            return DEFAULT_LIMITS
        return attrs.evolve(
            DEFAULT_LIMITS,
            requests=RequestLimits(
                probe_seconds=min(self.timeout, DEFAULT_LIMITS.requests.probe_seconds),
                initialize_seconds=self.timeout,
                idle_seconds=self.timeout,
                total_seconds=self.timeout,
            ),
        )


class ServerCommand(TakesCommand):
    """A command whose first argument is SERVER, unless the server's command stands behind `--`."""

    server_place = 1
    server_words = ("(after --)",)


def _server_words(ctx: click.Context, _: click.Parameter, word: str) -> str | Sequence[str]:
    command = command_behind(ctx)
    return word if command is None else command


# SERVER and its options, which make up `Choices`.
server_parameters: Final = together(
    click.argument("server", callback=_server_words),
    click.option(
        "--config",
        metavar="FILE",
        type=click.Path(),
        help=("Read servers from the mcpServers of this file; SERVER is one of their names."),
    ),
    header_option,
    click.option(
        "--timeout",
        metavar="SECONDS",
        type=click.FloatRange(min=0, min_open=True),
        help="Cancel a request that takes longer, and notify the server.",
    ),
    click.option(
        "--log-level",
        type=click.Choice(get_args(LoggingLevel)),
        help="Print the server's log messages of at least this level on stderr.",
    ),
    click.option(
        "--stderr",
        is_flag=True,
        help=("Show the stderr of the server's command; otherwise errors quote its last lines."),
    ),
    click.option(
        "--protocol-version",
        type=click.Choice(ALL_PROTOCOL_VERSIONS),
        help="Use only this protocol version.",
    ),
    click.option(
        "--yes",
        is_flag=True,
        help=("Accept the server's forms with their default values, without asking."),
    ),
)
