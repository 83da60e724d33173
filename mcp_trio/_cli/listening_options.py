"""What commands have in common that serve, or stand between clients and a server."""

import os
import shutil
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import click

NOT_FOUND_STATUS: Final = 127
NOT_EXECUTABLE_STATUS: Final = 126
UNUSABLE_STATUS: Final = 2

_Command = TypeVar("_Command", bound=Callable[..., Any])


# How those are called on the command line whose names differ.
_FLAGS: Final = {
    "hosts": "--allow-host",
    "origins": "--allow-origin",
    "path": "--socket",
    "is_open": "--open",
}

_PLACE_OPTIONS: Final = (
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


def place_options(command: _Command) -> _Command:
    """Decorate a command with the options that make up `host`, `port`, `path` and `is_open`."""
    for option in reversed(_PLACE_OPTIONS):
        command = option(command)
    return command


def flag_of(name: str) -> str:
    """How an option is called on the command line."""
    return _FLAGS.get(name, f"--{name}")


def placed(transport: str, takes: Collection[str], said: Mapping[str, Any]) -> Mapping[str, Any]:
    """What was said of where and to whom, if the transport `takes` it; False and None say nothing.

    Raises:
        click.UsageError: It does not, or needs something else.
    """
    place = {name: value for name, value in said.items() if not (value is None or value is False)}
    for name in place:
        if name not in takes:
            raise click.UsageError(f"{flag_of(name)} is not for {transport}")
    if transport == "unix" and "path" not in place:
        raise click.UsageError("unix needs --socket PATH")
    if transport == "tcp":
        _check_tcp(**place)
    return place


def _check_tcp(*, host: str = "127.0.0.1", is_open: bool = False, **_: Any) -> None:
    from mcp_trio._server.connections import is_loopback

    if not (is_open or is_loopback(host)):
        raise click.UsageError(f"whoever reaches {host} could use this server: --open lets them")


def gate_options(when: str) -> Callable[[_Command], _Command]:
    """Decorate a command with the options that make up `hosts` and `origins`; `when` they count."""

    def decorate(command: _Command) -> _Command:
        for name, metavar, who in (
            ("origins", "ORIGIN", "pages of this origin may use it"),
            ("hosts", "NAME", "a name by which clients may reach it"),
        ):
            command = click.option(
                f"--allow-{name[:-1]}",
                name,
                metavar=metavar,
                multiple=True,
                callback=_gated,
                help=f"{when}: {who} (a refusal says {name}=); * for any.",
            )(command)
        return command

    return decorate


def token_option(when: str) -> Callable[[_Command], _Command]:
    """Decorate a command with the option that makes up `token`; `when` it counts."""
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


@contextmanager
def listening(context: click.Context, where: str | None) -> Generator[None]:
    """Within, somebody may try to listen there; that it cannot be ends the command."""
    try:
        yield
    except OSError as error:
        if where is None:
            raise
        click.echo(f"cannot listen at {where}: {error.strerror or error}", err=True)
        context.exit(UNUSABLE_STATUS)


def check_program(context: click.Context, program: str) -> None:
    """Ends as a shell does if there is no such program: before a file is made for nothing."""
    if shutil.which(program):
        return
    if shutil.which(program, os.F_OK):
        click.echo(f"cannot start {program!r}: it is not executable", err=True)
        context.exit(NOT_EXECUTABLE_STATUS)
    click.echo(f"cannot start {program!r}: not found", err=True)
    context.exit(NOT_FOUND_STATUS)
