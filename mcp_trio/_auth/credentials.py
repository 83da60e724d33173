"""The settings with which a client gets tokens: a user's login, or credentials of a program.

An object of one of the classes is passed to `Client(auth=…)` or `http_auth`.
"""

import inspect
import os
import webbrowser
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, TypeAlias
from urllib.parse import urlsplit

import attrs
import trio

from mcp_trio._auth.challenges import checked_scopes
from mcp_trio._auth.client_flow import (
    ACCESS_TOKEN,
    ClientInformation,
    FlowSettings,
)
from mcp_trio._auth.token_store import FileTokenStore, MemoryTokenStore, TokenStore
from mcp_trio._auth.urls import UrlError, is_loopback_host, literal_address, split_url
from mcp_trio._protocol.websocket import checked_token
from mcp_trio.errors import AuthorizationError

TokenSource: TypeAlias = str | os.PathLike[str] | Callable[[], str | Awaitable[str]]
"""A token, the path of a file with it, or a function that returns it; read each time."""

OnAuthorize: TypeAlias = Callable[[str], Awaitable[str | None]]
"""Called with the URL of the login page. Returns the URL to which the browser was redirected, or
None if the redirect goes to a loopback address, at which the client listens itself."""

AskForClient: TypeAlias = Callable[[str], Awaitable[tuple[str, str | None]]]
"""Called with an issuer at which no client can be registered. Returns a client id and its secret,
or None for a public client."""

PrivateKey: TypeAlias = str | bytes | Mapping[str, Any]
"""A private key as PEM or as a JWK."""

_ID_TOKEN: Final = "urn:ietf:params:oauth:token-type:id_token"  # noqa: S105  no secret
_ASSERTION_SECONDS: Final = 300


def _optional_scopes(scopes: Collection[str] | None) -> tuple[str, ...] | None:
    return None if scopes is None else checked_scopes(scopes)


def _trusted_hosts(hosts: Collection[str]) -> Collection[str]:
    if isinstance(hosts, str):
        raise TypeError(f"trusted_hosts= is a set of strings: write {{{hosts!r}}}")
    found = frozenset(each.lower() for each in hosts)
    for each in found:
        if literal_address(each) is None and urlsplit(f"//{each}").hostname != each:
            raise ValueError(
                f"trusted_hosts= has names and addresses, without a scheme and a port: not {each!r}"
            )
    return found


def _check_url(_instance: object, attribute: "attrs.Attribute[Any]", url: str | None) -> None:
    if url is not None:
        try:
            split_url(url, f"{attribute.name}=")
        except UrlError as error:
            raise ValueError(str(error)) from None


async def open_browser(url: str) -> None:
    """Open the login page in the user's browser; the client itself listens for the redirect.

    Raises:
        AuthorizationError: No browser can be opened.
    """
    # A browser for terminals runs until the user ends it.
    if not await trio.to_thread.run_sync(webbrowser.open, url, abandon_on_cancel=True):
        raise AuthorizationError("no browser can be opened here: pass on_authorize=")


async def _read_source(source: TokenSource) -> str:
    """Return the current token of a source."""
    if isinstance(source, str):
        return source
    if callable(source):
        token = source()
        return await token if inspect.isawaitable(token) else token
    path = trio.Path(source)
    try:
        return (await path.read_text(encoding="utf-8")).strip()
    except OSError as error:
        raise AuthorizationError(f"{path}: the token cannot be read: {error.strerror}") from None


@attrs.frozen(kw_only=True)
class OAuth:
    """A login of a user, in a browser; `Client(url, auth="oauth")` is one with all defaults.

    The client finds the authorization server, registers itself there, opens the login page in the
    browser, and listens on the loopback interface for the redirect. It renews the token before it
    expires, and asks for more scopes when the server requires them. Tokens are kept in files that
    only the user can read.

    Args:
        client_id: A client that was registered before. By default `metadata_url` is used if the
            authorization server supports that, or else the client is registered dynamically.
        client_secret: The secret of that client.
        issuer: The authorization server to log in at, which the server has to name, too. By default
            the server chooses. Servers of the official Python SDK add a slash to the issuer that
            they name, which RFC 8414 forbids: name it here as its metadata do.
        metadata_url: The `https` URL of the client's metadata document, which then is its id.
        client_name: The name with which the client is registered, which a login page may show.
        scopes: The scopes to request, in addition to those that the server asks for. By default
            they are those that the server lists.
        redirect: The redirect URI: `https`, or a loopback address. By default a free port of
            `127.0.0.1` is listened at.
        on_authorize: Called with the URL of the login page, by default to open the browser. It
            returns the URL to which the browser was redirected; None if the client has to wait for
            the redirect to a loopback address.
        ask_for_client: Called with an issuer that registers no clients dynamically; returns the id
            and the secret (or None) of one that the user has registered.
        store: Where tokens are kept, by default a `FileTokenStore`.
        interactive: Whether a user can log in now. If not, only a stored token is used and renewed.
        assume_pkce: Whether an authorization server whose metadata do not mention PKCE is taken to
            support it; the specification forbids that since 2025-11-25.
        trusted_hosts: Hosts of an authorization server that may be in a private network or without
            TLS, although the server is not.

    Raises:
        ValueError: A URL or scope is invalid, or `redirect` needs `on_authorize`.

    https://modelcontextprotocol.io/specification/2026-07-28/basic/authorization
    """

    extension: ClassVar[str | None] = None

    client_id: str | None = None
    client_secret: str | None = attrs.field(default=None, repr=False)
    issuer: str | None = attrs.field(default=None, validator=_check_url)
    metadata_url: str | None = attrs.field(default=None, validator=_check_url)
    client_name: str = "mcp_trio"
    scopes: Sequence[str] | None = attrs.field(default=None, converter=_optional_scopes)
    redirect: str | None = attrs.field(default=None, validator=_check_url)
    on_authorize: OnAuthorize = attrs.field(default=open_browser, repr=False)
    ask_for_client: AskForClient | None = attrs.field(default=None, repr=False)
    store: TokenStore = attrs.field(factory=FileTokenStore, repr=False)
    interactive: bool = True
    assume_pkce: bool = False
    trusted_hosts: Collection[str] = attrs.field(default=(), converter=_trusted_hosts)

    def __attrs_post_init__(self) -> None:
        if self.client_secret is not None and self.client_id is None:
            raise ValueError("client_secret= needs client_id=")
        if self.metadata_url is not None:
            parts = urlsplit(self.metadata_url)
            if parts.scheme != "https" or parts.path in ("", "/"):
                raise ValueError("metadata_url= has to begin with https:// and have a path")
        if self.redirect is not None and not self.is_redirected_here:
            if not self.redirect.startswith("https://"):
                raise ValueError("redirect= has to begin with https://, or have a loopback address")
            if self.on_authorize is open_browser:
                raise ValueError(
                    "redirect= is not a loopback address: on_authorize= has to return the URL to"
                    " which the browser was redirected"
                )

    @property
    def is_redirected_here(self) -> bool:
        """Return whether the client can listen at the redirect URI."""
        if self.redirect is None:
            return True
        parts = urlsplit(self.redirect)
        return parts.scheme == "http" and is_loopback_host(parts.hostname or "")

    def flow_settings(self) -> FlowSettings:
        """Return the settings of the flow."""
        client = None
        if self.client_id is not None:
            client = ClientInformation(
                issuer=self.issuer, client_id=self.client_id, client_secret=self.client_secret
            )
        return FlowSettings(
            scopes=self.scopes,
            client=client,
            issuer=self.issuer,
            metadata_url=self.metadata_url,
            client_name=self.client_name,
            is_interactive=self.interactive,
            assumes_pkce=self.assume_pkce,
            trusted_hosts=frozenset(self.trusted_hosts),
        )


@attrs.frozen(kw_only=True)
class ClientCredentials:
    """Credentials of a program that acts for itself (`client_credentials`).

    Args:
        client_id: The client, which was registered before.
        secret: Its secret.
        private_key: In place of a secret, the key that signs its assertions, as PEM or JWK.
        algorithm: The algorithm of these signatures.
        issuer: The authorization server that knows the client. The secret is sent to no other.
        scopes: The scopes to request, in addition to those that the server asks for.
        store: Where tokens are kept, by default in memory.
        trusted_hosts: See `OAuth`.

    https://modelcontextprotocol.io/extensions/auth/oauth-client-credentials
    """

    extension: ClassVar[str | None] = "io.modelcontextprotocol/oauth-client-credentials"

    client_id: str
    secret: str | None = attrs.field(default=None, repr=False)
    private_key: PrivateKey | None = attrs.field(default=None, repr=False)
    algorithm: str = "ES256"
    issuer: str | None = attrs.field(default=None, validator=_check_url)
    scopes: Sequence[str] | None = attrs.field(default=None, converter=_optional_scopes)
    store: TokenStore = attrs.field(factory=MemoryTokenStore, repr=False)
    trusted_hosts: Collection[str] = attrs.field(default=(), converter=_trusted_hosts)

    def __attrs_post_init__(self) -> None:
        if (self.secret is None) is (self.private_key is None):
            raise ValueError("give exactly one of secret= and private_key=")

    def flow_settings(self) -> FlowSettings:
        """Return the settings of the flow."""
        return FlowSettings(
            grant="client_credentials",
            scopes=self.scopes,
            client=ClientInformation(
                issuer=self.issuer,
                client_id=self.client_id,
                client_secret=self.secret,
                auth_method="private_key_jwt" if self.secret is None else None,
            ),
            trusted_hosts=frozenset(self.trusted_hosts),
        )

    def signed_assertion(self, audience: str, *, now: float, token_id: str) -> str:
        """Return a JWT with which the client authenticates (RFC 7523, section 3).

        Raises:
            AuthorizationError: The key does not fit the algorithm.
        """
        from joserfc import jwt
        from joserfc.errors import JoseError
        from joserfc.jwk import import_key

        kind: Literal["EC", "OKP", "RSA"] = "EC"
        if self.algorithm.startswith("Ed"):
            kind = "OKP"
        elif self.algorithm.startswith(("RS", "PS")):
            kind = "RSA"
        claims = {
            "iss": self.client_id,
            "sub": self.client_id,
            "aud": audience,
            "iat": int(now),
            "exp": int(now) + _ASSERTION_SECONDS,
            "jti": token_id,
        }
        assert self.private_key is not None
        try:
            if isinstance(self.private_key, Mapping):
                key = import_key({**self.private_key})
            else:
                key = import_key(self.private_key, kind)
            header = {"alg": self.algorithm}
            if key.kid is not None:
                header["kid"] = key.kid
            return jwt.encode(header, claims, key, algorithms=[self.algorithm])
        except (JoseError, ValueError):
            # The exception may quote the key.
            raise AuthorizationError(
                f"the private_key cannot sign with algorithm {self.algorithm!r}"
            ) from None


@attrs.frozen(kw_only=True)
class EnterpriseManaged:
    """A user's login at the identity provider of an enterprise, which decides about servers.

    The provider exchanges the user's ID token for an assertion for the server (an ID-JAG), which
    the authorization server of the MCP server exchanges for a token. No browser is opened.

    Args:
        client_id: The client at the authorization server of the MCP server.
        client_secret: Its secret.
        id_token: The ID token of the user, or a function or file that has the current one.
        id_token_type: The type of that token, by default of OpenID Connect.
        provider_token_endpoint: The token endpoint of the identity provider.
        provider_client_id: The client at the identity provider.
        provider_client_secret: Its secret.
        issuer: The authorization server that knows `client_id`. The secret is sent to no other.
        scopes: The scopes to request, in addition to those that the server asks for.
        store: Where tokens are kept, by default in memory.
        trusted_hosts: See `OAuth`.

    https://modelcontextprotocol.io/extensions/auth/enterprise-managed-authorization
    """

    extension: ClassVar[str | None] = "io.modelcontextprotocol/enterprise-managed-authorization"

    client_id: str
    client_secret: str | None = attrs.field(default=None, repr=False)
    id_token: TokenSource = attrs.field(repr=False)
    id_token_type: str = _ID_TOKEN
    provider_token_endpoint: str = attrs.field(validator=_check_url)
    provider_client_id: str
    provider_client_secret: str | None = attrs.field(default=None, repr=False)
    issuer: str | None = attrs.field(default=None, validator=_check_url)
    scopes: Sequence[str] | None = attrs.field(default=None, converter=_optional_scopes)
    store: TokenStore = attrs.field(factory=MemoryTokenStore, repr=False)
    trusted_hosts: Collection[str] = attrs.field(default=(), converter=_trusted_hosts)

    def flow_settings(self) -> FlowSettings:
        """Return the settings of the flow."""
        return FlowSettings(
            grant="id_jag",
            scopes=self.scopes,
            client=ClientInformation(
                issuer=self.issuer, client_id=self.client_id, client_secret=self.client_secret
            ),
            provider=ClientInformation(
                client_id=self.provider_client_id, client_secret=self.provider_client_secret
            ),
            provider_token_endpoint=self.provider_token_endpoint,
            subject_token_type=self.id_token_type,
            # The user names the provider, which is often in the network of the enterprise.
            trusted_hosts=frozenset(
                {*self.trusted_hosts, urlsplit(self.provider_token_endpoint).hostname or ""}
            ),
        )


@attrs.frozen(kw_only=True)
class WorkloadIdentity:
    """The identity that a platform gives a program, as a JWT (RFC 7523, section 2.1).

    Args:
        token: The JWT, or a function or file that has the current one, such as the projected
            service account token of Kubernetes.
        client_id: The client, if the authorization server requires one.
        issuer: The authorization server that accepts the JWT. It is sent to no other.
        scopes: The scopes to request, in addition to those that the server asks for.
        store: Where tokens are kept, by default in memory.
        trusted_hosts: See `OAuth`.
    """

    extension: ClassVar[str | None] = None

    token: TokenSource = attrs.field(repr=False)
    client_id: str
    issuer: str | None = attrs.field(default=None, validator=_check_url)
    scopes: Sequence[str] | None = attrs.field(default=None, converter=_optional_scopes)
    store: TokenStore = attrs.field(factory=MemoryTokenStore, repr=False)
    trusted_hosts: Collection[str] = attrs.field(default=(), converter=_trusted_hosts)

    def flow_settings(self) -> FlowSettings:
        """Return the settings of the flow."""
        return FlowSettings(
            grant="jwt_bearer",
            scopes=self.scopes,
            client=ClientInformation(
                issuer=self.issuer, client_id=self.client_id, auth_method="none"
            ),
            trusted_hosts=frozenset(self.trusted_hosts),
        )


@attrs.frozen(kw_only=True)
class TokenExchange:
    """A token of another service, exchanged for one for the MCP server (RFC 8693).

    Args:
        token: The token to exchange, or a function or file that has the current one.
        token_type: The type of that token, a URI of RFC 8693, section 3.
        client_id: The client at the authorization server.
        client_secret: Its secret.
        issuer: The authorization server that accepts the token. It is sent to no other.
        scopes: The scopes to request, in addition to those that the server asks for.
        store: Where tokens are kept, by default in memory.
        trusted_hosts: See `OAuth`.

    https://www.rfc-editor.org/rfc/rfc8693
    """

    extension: ClassVar[str | None] = None

    token: TokenSource = attrs.field(repr=False)
    token_type: str = ACCESS_TOKEN
    client_id: str
    client_secret: str | None = attrs.field(default=None, repr=False)
    issuer: str | None = attrs.field(default=None, validator=_check_url)
    scopes: Sequence[str] | None = attrs.field(default=None, converter=_optional_scopes)
    store: TokenStore = attrs.field(factory=MemoryTokenStore, repr=False)
    trusted_hosts: Collection[str] = attrs.field(default=(), converter=_trusted_hosts)

    def flow_settings(self) -> FlowSettings:
        """Return the settings of the flow."""
        return FlowSettings(
            grant="token_exchange",
            scopes=self.scopes,
            client=ClientInformation(
                issuer=self.issuer, client_id=self.client_id, client_secret=self.client_secret
            ),
            subject_token_type=self.token_type,
            trusted_hosts=frozenset(self.trusted_hosts),
        )


Credentials: TypeAlias = (
    OAuth | ClientCredentials | EnterpriseManaged | WorkloadIdentity | TokenExchange
)
"""Settings with which `http_auth` gets tokens.

`extension` is the extension of the protocol that a client announces with them.
"""


async def assertion_of(
    credentials: Credentials, audience: str, *, now: float, token_id: str
) -> str:
    """Return the token of a program for an issuer; one that is made has the random `token_id`.

    Raises:
        AuthorizationError: The token cannot be read, or the key cannot sign.
    """
    match credentials:
        case ClientCredentials():
            return credentials.signed_assertion(audience, now=now, token_id=token_id)
        case EnterpriseManaged():
            return await _read_source(credentials.id_token)
        case WorkloadIdentity() | TokenExchange():
            return await _read_source(credentials.token)
        case OAuth():
            raise AssertionError("a login needs no assertion")


@attrs.frozen
class Bearer:
    """A token that the program has already, such as one of a session with its own user.

    Args:
        token: The token, or a function or file that has the current one. It is read again when the
            server rejects it.
    """

    token: TokenSource = attrs.field(repr=False)

    async def current(self) -> str:
        """Return the token.

        Raises:
            AuthorizationError: It cannot be read, or has characters that no token may have.
        """
        try:
            return checked_token(await _read_source(self.token))
        except ValueError:
            raise AuthorizationError(
                "the token of Bearer() is empty, or has characters that no token may have"
            ) from None
