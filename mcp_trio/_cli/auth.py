"""`mcp-trio auth login`, `status` and `logout`: tokens for servers that require a login."""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import click
import msgspec

from mcp_trio._cli.options import is_url
from mcp_trio._cli.output import Column, Line, echo_error, echo_json, print_table
from mcp_trio.errors import AuthorizationError, ConfigError

if TYPE_CHECKING:
    from mcp_trio._auth.credentials import OAuth
    from mcp_trio._auth.token_store import TokenStore

CLIENT_SECRET: Final = "MCP_TRIO_CLIENT_SECRET"  # noqa: S105  the name of a variable
_PIECE_BYTES: Final = 4096
_SCHEMES: Final = ("http://", "https://")


class LoginStatus(msgspec.Struct, frozen=True):
    """The facts about a login that `status --json` prints; no token is among them."""

    server: str
    issuer: str
    client_id: str
    scopes: list[str] | None
    expires_at: float | None
    is_renewed: bool
    store: str


def token_stores() -> "dict[str, TokenStore]":
    """Return the stores that may have tokens, by their names for the user."""
    from mcp_trio._auth.token_store import FileTokenStore, KeyringTokenStore
    from mcp_trio._system import state_folder

    stores: dict[str, TokenStore] = {"file": FileTokenStore()}
    if (state_folder() / "keyring").exists():
        stores["keyring"] = KeyringTokenStore()
    return stores


def stored_login(url: str) -> "OAuth | None":
    """Return the login for a server at a URL, to be used without asking; None if there is none.

    Raises:
        click.UsageError: The URL is invalid.
        ConfigError: The file with the token cannot be used.
    """
    from mcp_trio._auth.token_store import read_tokens
    from mcp_trio._auth.urls import without_user

    try:
        server = without_user(url)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    try:
        stores = token_stores()
    except ConfigError:  # Without a home folder there are no stored tokens.
        return None
    for store in stores.values():
        if read_tokens(store, server) is not None:
            from mcp_trio._auth.credentials import OAuth

            return OAuth(store=store, interactive=False)
    return None


def with_login_hint(error: AuthorizationError, url: str) -> AuthorizationError:
    """Return the error; if a user has to log in, its text names the command for that."""
    if error.code != "login_required":
        return error
    return AuthorizationError(f"{error.reason}: mcp-trio auth login {url}", code=error.code)


def _server(_: click.Context, __: click.Parameter, url: str | None) -> str | None:
    """Return the URL of a server as the stores of tokens have it."""
    if url is None:
        return None
    if not (is_url(url) and url.lower().startswith(_SCHEMES)):
        raise click.BadParameter("a login needs a server at an http(s):// URL")
    from mcp_trio._auth.urls import without_user

    try:
        return without_user(url)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


_server_argument: Final = click.argument("server", metavar="SERVER", callback=_server)


@click.group(
    short_help="Log in to servers that require it.",
    epilog="""\b
SERVER is the http(s):// URL of a server.

\b
Examples:
  mcp-trio auth login https://mcp.example.com/mcp
  mcp-trio auth status
  mcp-trio call https://mcp.example.com/mcp search query=trio
  mcp-trio auth logout https://mcp.example.com/mcp

\b
Exit status: 0 success; 1 the login failed, or there is none; 2 wrong usage or an unusable file.
""",
)
def auth_command() -> None:
    """Log in to servers that require it, list the logins, and log out.

    Tokens are kept in files that only you can read, under $XDG_STATE_HOME/mcp-trio. The commands
    list, call, read and prompt use and renew them.
    """


@auth_command.command("login", short_help="Log in to a server, and store the token.")
@_server_argument
@click.option("--scope", "scopes", multiple=True, help="Request this scope, too; repeatable.")
@click.option("--client-id", help="Use a client that you have registered.")
@click.option("--metadata-url", metavar="URL", help="The URL of the client's metadata document.")
@click.option("--no-browser", is_flag=True, help="Print the URL of the login page only.")
@click.option("--keyring", is_flag=True, help="Keep the token in the keyring of the system.")
@click.option(
    "--trust-host",
    "trusted_hosts",
    metavar="HOST",
    multiple=True,
    help="Let this authorization server be in a private network.",
)
def login_command(
    server: str,
    scopes: Sequence[str],
    client_id: str | None,
    metadata_url: str | None,
    trusted_hosts: Sequence[str],
    *,
    no_browser: bool,
    keyring: bool,
) -> None:
    """Log in to a server in a browser, and store the token.

    A secret of --client-id is read from the variable MCP_TRIO_CLIENT_SECRET. With --no-browser, or
    if the browser is on another computer, paste the address of the page to which the browser was
    redirected.
    """
    import trio

    from mcp_trio._auth.credentials import OAuth
    from mcp_trio._auth.token_store import (
        FileTokenStore,
        KeyringTokenStore,
        MemoryTokenStore,
        read_clients,
        read_tokens,
        write_client,
        write_tokens,
    )

    store: TokenStore = KeyringTokenStore() if keyring else FileTokenStore()
    # The stored token, if there is one, stays until the login has succeeded.
    memory = MemoryTokenStore()
    for client in read_clients(store).values():
        write_client(memory, client)
    try:
        oauth = OAuth(
            client_id=client_id,
            client_secret=os.environ.get(CLIENT_SECRET) if client_id is not None else None,
            metadata_url=metadata_url,
            scopes=scopes or None,
            on_authorize=partial(_authorize, opens_browser=not no_browser),
            store=memory,
            trusted_hosts=trusted_hosts,
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    trio.run(_connect, server, oauth)
    tokens = read_tokens(memory, server)
    if tokens is None:
        click.echo(f"{server} requires no login")
        return
    for client in read_clients(memory).values():
        write_client(store, client)
    write_tokens(store, tokens)
    for name, other in token_stores().items():
        if name != ("keyring" if keyring else "file"):
            other.remove("token", server)
    click.echo(f"logged in to {server} at {tokens.issuer}")


async def _connect(server: str, oauth: "OAuth") -> None:
    """Connect, and list something: some servers require a login only then."""
    from mcp_trio._client.client import Client

    async with Client(server, name="mcp-trio", auth=oauth) as client:
        if client.server_can("tools"):
            await client.list_tools()


async def _authorize(url: str, *, opens_browser: bool) -> str | None:
    """Let the user open the login page; ask for the redirect if no browser is opened here.

    The listener may get the redirect first, and then this is cancelled.
    """
    import trio

    from mcp_trio._auth.credentials import open_browser

    if opens_browser:
        echo_error(f"the login page opens in a browser; if it does not, open it yourself:\n{url}")
        with suppress(AuthorizationError):
            await open_browser(url)
            return None
    else:
        echo_error(f"open this page in a browser:\n{url}")

    echo_error("then wait, or paste the address of the page at which the browser ends:")
    return await trio.to_thread.run_sync(_read_line, abandon_on_cancel=True)


def _read_line() -> str | None:
    """Return the next line of stdin that is not empty; None if there is none.

    This does not use `sys.stdin`, whose lock a thread holds while it reads: Python is aborted if a
    thread still holds it when the command ends.
    """
    text = b""
    with suppress(OSError):  # stdin is closed
        while not (text.strip() and text.endswith(b"\n")) and (piece := os.read(0, _PIECE_BYTES)):
            text += piece
    return text.decode(errors="replace").strip() or None


@auth_command.command("status", short_help="List the servers with a login.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, without tokens.")
def status_command(*, as_json: bool) -> None:
    """List the servers with a login, their scopes, and when the tokens expire."""
    from mcp_trio._auth.token_store import read_tokens

    found = [
        LoginStatus(
            server=tokens.server,
            issuer=tokens.issuer,
            client_id=tokens.client.client_id,
            scopes=tokens.scopes,
            expires_at=tokens.expires_at,
            is_renewed=tokens.refresh_token is not None,
            store=name,
        )
        for name, store in token_stores().items()
        for server in store.names("token")
        if (tokens := read_tokens(store, server)) is not None
    ]
    if as_json:
        echo_json(msgspec.json.encode(found))
        return
    if not found:
        click.echo("no logins")
        return
    columns = [Column("SERVER"), Column("ISSUER"), Column("EXPIRES"), Column("SCOPES")]
    lines = [
        Line((each.server, each.issuer, _expiry(each, time.time()), " ".join(each.scopes or ())))
        for each in found
    ]
    print_table(columns, lines)


def _expiry(status: LoginStatus, now: float) -> str:
    if status.is_renewed:
        return "is renewed"
    if status.expires_at is None:
        return "unknown"
    minutes = int((status.expires_at - now) // 60)
    return f"in {minutes} min" if minutes >= 0 else "has expired"


@auth_command.command("logout", short_help="Revoke and remove the token for a server.")
@_server_argument
@click.option("--local", is_flag=True, help="Remove the token only; do not revoke it.")
def logout_command(server: str, *, local: bool) -> None:
    """Remove the token for a server, and the client that was registered for it, from this computer.

    The token is revoked at the authorization server, if that revokes tokens. Exit status: 1 if
    there is no token, or if it was not revoked.
    """
    import trio

    from mcp_trio._auth.credentials import OAuth
    from mcp_trio._auth.http_auth import log_out
    from mcp_trio._auth.token_store import remove_tokens

    is_removed, note = False, ""
    for store in token_stores().values():
        if local:
            is_removed |= remove_tokens(store, server)[0]
            continue
        try:
            result = trio.run(log_out, server, OAuth(store=store, interactive=False))
        except AuthorizationError as error:
            raise click.ClickException(
                f"the token is removed, but was not revoked: {error.reason}"
            ) from None
        is_removed |= result != "absent"
        if result == "removed":
            note = "; the authorization server revokes no tokens: it is valid until it expires"
    if not is_removed:
        raise click.ClickException(f"no login to {server}")
    click.echo(f"logged out of {server}{note}")
