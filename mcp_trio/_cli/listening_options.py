"""What commands have in common that serve, or stand between clients and a server."""

import os
import shutil
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import attrs
import click

from mcp_trio._cli.parameters import together

NOT_FOUND_STATUS: Final = 127
NOT_EXECUTABLE_STATUS: Final = 126
UNUSABLE_STATUS: Final = 2

_Command = TypeVar("_Command", bound=Callable[..., Any])

# Why --allow-cors is refused where a server over HTTP is behind us.
CORS_IS_THEIRS: Final = "--allow-cors is for other servers: one over HTTP says by itself who reads"

_OF_THE_WEB: Final = ("host", "port", "token", "hosts", "origins")

# A row is a transport, and of which options whoever serves over it is told, by their names.
TRANSPORTS: Final[Mapping[str, Collection[str]]] = {
    "stdio": (),
    "http": (*_OF_THE_WEB, "allows_cors", "server", "workers"),
    "websocket": _OF_THE_WEB,
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
        help="For http, websocket, tcp: the interface; 127.0.0.1 by default.",
    ),
    click.option(
        "--port",
        type=click.IntRange(0, 65535),
        help="For http, websocket, tcp: 8000 by default; 0 any.",
    ),
    click.option("--socket", "path", metavar="PATH", help="For unix: the socket's file."),
    click.option(
        "--open",
        "is_open",
        is_flag=True,
        help="For tcp: serve whoever reaches --host, from other machines too.",
    ),
)


def flag_of(name: str) -> str:
    """How an option is called on the command line."""
    return _FLAGS.get(name, f"--{name}")


def is_said(value: object) -> bool:
    """Whether an option was given; None, False and no words say nothing."""
    return not (value is None or value is False or value == ())


def told_to(transport: str, said: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given, if the transport has a use for them.

    Raises:
        click.UsageError: It has none.
    """
    given = {name: value for name, value in said.items() if is_said(value)}
    for name in given:
        if name not in TRANSPORTS[transport]:
            raise click.UsageError(f"{flag_of(name)} is not for {transport}")
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
    from mcp_trio._server.connections import is_loopback

    if not (is_open or is_loopback(host)):
        raise click.UsageError(f"whoever reaches {host} could use this server: --open lets them")


def where(*, path: str = "", host: str = "127.0.0.1", port: int = 8000, **_: Any) -> str:
    """The place that is meant, as people write it."""
    from mcp_trio._transports.sockets import netloc

    return path or netloc(host, port)


def gate_options(when: str) -> Callable[[_Command], _Command]:
    """The options that make up `hosts` and `origins`; `when` they count."""
    return together(
        _gate_option("hosts", "NAME", f"{when}: a name by which clients may reach it"),
        _gate_option("origins", "ORIGIN", f"{when}: pages of this origin may use it"),
    )


def _gate_option(name: str, metavar: str, who: str) -> Callable[[_Command], _Command]:
    return click.option(
        flag_of(name),
        name,
        metavar=metavar,
        multiple=True,
        callback=_gated,
        help=f"{who} (a refusal says {name}=); * for any.",
    )


def cors_option(when: str) -> Callable[[_Command], _Command]:
    """The option that makes up `allows_cors`; `when` it counts."""
    return click.option(
        "--allow-cors",
        "allows_cors",
        is_flag=True,
        help=f"{when}: tell browsers that pages of the allowed origins may read the answers (a "
        "refusal says allows_cors=).",
    )


def token_option(when: str) -> Callable[[_Command], _Command]:
    """The option that makes up `token`; `when` it counts."""
    return click.option(
        "--token",
        metavar="TOKEN",
        callback=_token,
        help=f"{when}: serve only who brings it, as Authorization: Bearer; ${{VAR}} in it is a "
        "variable of the environment.",
    )


def _gated(_: click.Context, parameter: click.Parameter, words: tuple[str, ...]) -> tuple[str, ...]:
    from mcp_trio._protocol.http.gate import gate_for

    given: Mapping[str, Any] = {str(parameter.name): words}
    try:
        gate_for([], **given)
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
    gate_options(_FOR_THE_WEB),
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
