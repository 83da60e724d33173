"""A server's URL on the command line, and the headers that go along with what is asked there."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from mcp_trio._errors import ConnectionLost

_UNAUTHORIZED: Final = 401

# What begins with a request of HTTP, in which headers go along.
_WITH_HEADERS: Final = ("http://", "https://", "ws://", "wss://")


def is_url(word: str) -> bool:
    """Whether a SERVER or TARGET is a URL; nothing else that it may be has this in it."""
    return "://" in word or word.startswith("unix:")


def checked_url(word: str) -> str:
    """The URL, if it is one that is asked over HTTP.

    Raises:
        click.UsageError: It is none. Nothing of it is repeated, for it may have a secret in it.
    """
    from mcp_trio._transports.http.client_channel import parsed_url

    try:
        parsed_url(word)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    return word


def refuse_headers(headers: Mapping[str, str], url: str | None) -> None:
    """Refuse headers where no request would carry them; None: the server is at no URL.

    Raises:
        click.UsageError: There are some all the same.
    """
    if headers and not (url or "").lower().startswith(_WITH_HEADERS):
        raise click.UsageError("--header is for a server at a URL of the web")


def naming_header(error: "ConnectionLost") -> "ConnectionLost":
    """The error; if the server wants to know who asks, with the option that tells it."""
    from mcp_trio._errors import ConnectionLost

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
    from mcp_trio._transports.http.header_fields import encoded

    name, colon, text = word.partition(":")
    if not colon:
        raise click.BadParameter("a header is 'Name: value'")
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
    help="For a URL: a header of each request; ${VAR} in it is a variable of the environment.",
)
