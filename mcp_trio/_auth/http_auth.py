"""`http_auth`: authorization as an `httpx2.Auth`, which gets, sends and renews tokens.

`ClientFlow` decides each step; this module does the I/O. All requests of a client share one flow at
a time: the first that needs a token starts it, and the others wait for its result. The flow runs in
a system task, because a cancelled request must not lose a token that was just issued: the server
has then invalidated the refresh token that was used for it.
"""

import hmac
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias, TypeVar, Union, cast
from urllib.parse import parse_qs, urlsplit

import attrs
import h11
import httpx2
import trio

from mcp_trio._auth.challenges import (
    BEARER,
    DPOP,
    INSUFFICIENT_SCOPE,
    USE_DPOP_NONCE,
    WWW_AUTHENTICATE,
    Challenge,
    parse_challenges,
)
from mcp_trio._auth.client_flow import (
    Action,
    AskForClient,
    AssertionMade,
    Authorize,
    Challenged,
    ClientFlow,
    ClientGiven,
    ClientInformation,
    Dropped,
    Event,
    Expiring,
    Finish,
    FlowSettings,
    MakeAssertion,
    PrepareRedirect,
    Redirected,
    RedirectReady,
    ResponseReceived,
    SendRequest,
    StoreClient,
    TokenSet,
)
from mcp_trio._auth.credentials import Bearer, Credentials, OAuth, assertion_of
from mcp_trio._auth.token_store import (
    Release,
    TokenStore,
    in_store,
    read_clients,
    read_tokens,
    remove_client,
    remove_tokens,
    write_client,
    write_tokens,
)
from mcp_trio._auth.urls import (
    closeness,
    closeness_of_address,
    is_loopback_host,
    literal_address,
    origin_of,
    without_user,
)
from mcp_trio._protocol.security import sha256_base64url
from mcp_trio._transports.channel import text_with_cause
from mcp_trio._transports.http_client_requests import (
    bounded_body,
    default_ssl_context,
    parsed_url,
)
from mcp_trio._transports.http_libraries import converted_auth, errors_converted_to, library_of
from mcp_trio.errors import AuthorizationError
from mcp_trio.limits import DEFAULT_LIMITS, AuthorizationLimits, Limits

if TYPE_CHECKING:
    import httpx

_T = TypeVar("_T")

logger = logging.getLogger("mcp_trio")

Auth: TypeAlias = Credentials | Bearer
"""The settings that `http_auth` accepts."""

ClientAuth: TypeAlias = Union[Auth, httpx2.Auth, "httpx.Auth", Literal["oauth"]]
"""The values that `Client(auth=…)` accepts."""

UserWait: TypeAlias = Callable[[], AbstractContextManager[None]]
"""Returns a context that is entered while the client waits for its user."""

_UNAUTHORIZED: Final = 401
_FORBIDDEN: Final = 403
_LOCK_POLL_SECONDS: Final = 0.05
_AUTHORIZATION: Final = "Authorization"

_LOOPBACK: Final = "127.0.0.1"
_REDIRECT_SECONDS: Final = 10.0

# The client exchanges the code for a token later, and that may still fail.
_DONE: Final = "The program that started the login goes on with it. You can close this page."
_UNRELATED: Final = "This page is not part of the login that was started. Nothing has changed."
_FAILED: Final = "The login has failed. The program that started it says why."


def http_auth(
    server: str,
    auth: Auth,
    *,
    http: "httpx2.AsyncClient | httpx.AsyncClient | None" = None,
    limits: Limits = DEFAULT_LIMITS,
) -> httpx2.Auth:
    """Return authorization for one server, for any `httpx2.AsyncClient` that runs on Trio.

        async with httpx2.AsyncClient(auth=http_auth(url, OAuth())) as http: ...

    Requests to other origins than that of the server are sent without a token.

    Args:
        server: The URL of the MCP server.
        auth: `OAuth`, `ClientCredentials`, `EnterpriseManaged`, `WorkloadIdentity`,
            `TokenExchange` or `Bearer`.
        http: The HTTP client for requests to authorization servers, with its proxies and
            certificates; by default one is made.
        limits: The limits; see `limits.authorization`.

    Raises:
        ValueError: `server` is not an HTTP URL.
    """
    parsed_url(server)
    if isinstance(auth, Bearer):
        return BearerAuth(server, auth)
    return ServerAuth(server=server, credentials=auth, http=http, limits=limits.authorization)


LogOut: TypeAlias = Literal["revoked", "removed", "absent"]
"""The result of `log_out`: whether the token was revoked, only removed, or not there."""


async def log_out(
    server: str,
    auth: Credentials,
    *,
    http: "httpx2.AsyncClient | httpx.AsyncClient | None" = None,
    limits: Limits = DEFAULT_LIMITS,
) -> LogOut:
    """Remove the token for a server from its store, and revoke it at the authorization server.

    A client that is connected keeps its token, which the server rejects once it is revoked. If this
    is cancelled, the token is removed, but may not be revoked.

    Args:
        server: The URL of the MCP server.
        auth: The settings with which the client got the token, such as `OAuth(store=…)`.
        http: The HTTP client for the request, as in `http_auth`.
        limits: The limits; see `limits.authorization`.

    Returns:
        "revoked"; "removed" if the authorization server revokes no tokens, which then stay valid
        until they expire; "absent" if there was no token.

    Raises:
        AuthorizationError: The token is removed, but was not revoked; the text says why.
        ValueError: `server` is not an HTTP URL.

    https://www.rfc-editor.org/rfc/rfc7009
    """
    parsed_url(server)
    server_auth = ServerAuth(
        server=server, credentials=auth, http=http, limits=limits.authorization
    )
    return await server_auth.log_out()


def auth_for(
    server: str,
    auth: ClientAuth,
    *,
    http: "httpx2.AsyncClient | httpx.AsyncClient | None",
    limits: Limits,
    user_wait: UserWait,
) -> httpx2.Auth:
    """Return the value of `Client(auth=…)` as an `httpx2.Auth`.

    Raises:
        TypeError: `auth` is of no known kind.
    """
    if isinstance(auth, httpx2.Auth):
        return auth
    if isinstance(auth, Bearer):
        return BearerAuth(server, auth)
    if auth == "oauth":
        auth = OAuth()
    if hasattr(auth, "flow_settings"):
        return ServerAuth(
            server=server,
            credentials=cast("Credentials", auth),
            http=http,
            limits=limits.authorization,
            user_wait=user_wait,
        )
    library = library_of(auth)
    if library is not None and isinstance(auth, library.Auth):
        return cast("httpx2.Auth", converted_auth(httpx2, auth))
    raise TypeError(
        'auth= is "oauth", an object of a class in mcp_trio.auth, or an Auth of httpx2 or httpx,'
        f" not {type(auth).__name__}"
    )


def _is_same_origin(request: httpx2.Request, server: str) -> bool:
    return origin_of(str(request.url)) == origin_of(server)


class _TrioAuth(httpx2.Auth):
    """Authorization for clients that run on Trio."""

    def sync_auth_flow(
        self,
        request: httpx2.Request,  # noqa: ARG002  httpx2's signature
    ) -> Generator[httpx2.Request, httpx2.Response, None]:
        """Raise RuntimeError: the flow needs Trio."""
        raise RuntimeError("authorization needs an httpx2.AsyncClient on Trio")


class BearerAuth(_TrioAuth):
    """Sends a token that the program has; reads it again when the server rejects it."""

    def __init__(self, server: str, bearer: Bearer) -> None:
        self._server = without_user(server)
        self._bearer = bearer

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Send the request with the token, and once more if there is a new token."""
        if not _is_same_origin(request, self._server):
            yield request
            return
        token = await self._bearer.current()
        request.headers[_AUTHORIZATION] = f"{BEARER} {token}"
        response = yield request
        if response.status_code != _UNAUTHORIZED:
            return
        renewed = await self._bearer.current()
        if renewed == token:
            return
        await _drop_body(response)
        request.headers[_AUTHORIZATION] = f"{BEARER} {renewed}"
        yield request


async def _drop_body(response: httpx2.Response) -> None:
    """Close a response whose body is not needed; the client would read all of it otherwise."""
    stream = response.stream
    # The client reads an empty body instead, which is not in the encoding that the header names.
    response.stream = httpx2.ByteStream(b"")
    response.headers.pop("content-encoding", None)
    if isinstance(stream, httpx2.AsyncByteStream):
        await stream.aclose()


class ProofKey:
    """The key to which tokens are bound, and the nonces that servers have sent for its proofs.

    https://www.rfc-editor.org/rfc/rfc9449
    """

    def __init__(self, jwk: dict[str, Any] | None) -> None:
        """Take a private key of the curve P-256 as a JWK, or make one."""
        from joserfc.jwk import ECKey

        self._key = ECKey.generate_key("P-256") if jwk is None else ECKey.import_key(jwk)
        self._nonces: dict[str, str] = {}

    @property
    def jwk(self) -> dict[str, Any]:
        """The private key."""
        return dict(self._key.as_dict(private=True))

    def note_nonce(self, url: str, nonce: str | None) -> None:
        """Remember the nonce that the server of this URL has sent, if it has sent one."""
        if nonce is not None:
            self._nonces[origin_of(url)] = nonce

    def proof(
        self, method: str, url: str, *, now: float, token_id: str, access_token: str | None = None
    ) -> str:
        """Return the proof for one request."""
        from joserfc import jwt

        header = {"typ": "dpop+jwt", "alg": "ES256", "jwk": self._key.as_dict(private=False)}
        parts = urlsplit(url)
        claims: dict[str, Any] = {
            "jti": token_id,
            "htm": method,
            "htu": f"{parts.scheme}://{parts.netloc}{parts.path}",
            "iat": int(now),
        }
        nonce = self._nonces.get(origin_of(url))
        if nonce is not None:
            claims["nonce"] = nonce
        if access_token is not None:
            claims["ath"] = sha256_base64url(access_token.encode())
        return jwt.encode(header, claims, self._key)


@attrs.define(eq=False, repr=False)
class _SharedFlow:
    """A running flow, whose token or error all requests of the client wait for.

    `event` is its first event, and `waiting` is the number of these requests.
    """

    event: Event
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    done: trio.Event = attrs.field(factory=trio.Event, init=False)
    waiting: int = attrs.field(default=0, init=False)
    result: TokenSet | AuthorizationError = attrs.field(
        factory=lambda: AuthorizationError("the login was cancelled"), init=False
    )


@attrs.define(kw_only=True, eq=False, repr=False)
class ServerAuth(_TrioAuth):
    """Gets, sends and renews the tokens for one server; made by `http_auth`.

    `wall_clock` returns seconds since 1970.
    """

    server: str = attrs.field(converter=without_user)
    credentials: Credentials
    http: "httpx2.AsyncClient | httpx.AsyncClient | None" = None
    limits: AuthorizationLimits = DEFAULT_LIMITS.authorization
    user_wait: UserWait = nullcontext
    wall_clock: Callable[[], float] = time.time
    random_text: Callable[[], str] = lambda: secrets.token_urlsafe(32)
    _settings: FlowSettings = attrs.field(init=False)
    _tokens: TokenSet | None = attrs.field(default=None, init=False)
    _is_loaded: bool = attrs.field(default=False, init=False)
    # The token whose renewal has failed.
    _not_renewed: TokenSet | None = attrs.field(default=None, init=False)
    _shared_flow: _SharedFlow | None = attrs.field(default=None, init=False)
    _proof_key: ProofKey | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._settings = attrs.evolve(
            self.credentials.flow_settings(), renew_before_seconds=self.limits.renew_before_seconds
        )

    def __repr__(self) -> str:
        """Show no token."""
        return f"<ServerAuth for {origin_of(self.server)}>"

    # Requests to the server

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Send the request with a token; get a new one if the server rejects it, and repeat it.

        It gives up if a new token is rejected, or if the server asks only for scopes that were
        requested before.

        Raises:
            AuthorizationError: There is no token.
        """
        if not trio.lowlevel.in_trio_run():
            raise RuntimeError("authorization needs Trio: write trio.run(main)")
        if not _is_same_origin(request, self.server):
            yield request
            return
        tokens = await self._usable_tokens()
        new_tokens_count, has_repeated_proof = 0, False
        while True:
            self._add_token(request, tokens)
            response = yield request
            if self._proof_key is not None:
                self._proof_key.note_nonce(str(request.url), response.headers.get("DPoP-Nonce"))
            status = response.status_code
            if status not in (_UNAUTHORIZED, _FORBIDDEN):
                return
            challenge = _challenge_in(response)
            error = None if challenge is None else challenge.error
            if error == USE_DPOP_NONCE and self._proof_key is not None and not has_repeated_proof:
                has_repeated_proof = True
                await _drop_body(response)
                continue
            if status == _FORBIDDEN:
                if challenge is None or error != INSUFFICIENT_SCOPE or tokens is None:
                    return
                if set(challenge.scopes or ()) <= {*tokens.requested_scopes}:
                    return
            elif new_tokens_count:
                return
            if new_tokens_count == self.limits.new_tokens_max:
                return
            new_tokens_count += 1
            await _drop_body(response)
            tokens = await self._new_tokens(tokens, Challenged(status, challenge))
            has_repeated_proof = False

    def _add_token(self, request: httpx2.Request, tokens: TokenSet | None) -> None:
        if tokens is None:
            return
        request.headers[_AUTHORIZATION] = f"{tokens.token_type} {tokens.access_token}"
        if tokens.token_type == DPOP:
            request.headers["DPoP"] = self.key_for(tokens).proof(
                request.method,
                str(request.url),
                now=self.wall_clock(),
                token_id=self.random_text(),
                access_token=tokens.access_token,
            )

    def key_for(self, tokens: TokenSet | None) -> ProofKey:
        """Return the key to which these tokens are bound, or the one for the first tokens."""
        jwk = None if tokens is None else tokens.dpop_key
        if self._proof_key is None or (jwk is not None and jwk != self._proof_key.jwk):
            self._proof_key = ProofKey(jwk)
        return self._proof_key

    async def _usable_tokens(self) -> TokenSet | None:
        """Return the token, renewed if it expires soon; None if there is none yet."""
        if not self._is_loaded:
            loaded = await self._load()
            if not self._is_loaded:  # another request may have loaded it meanwhile
                self._tokens, self._is_loaded = loaded, True
        tokens = self._tokens
        if tokens is None or tokens.renew_at is None or self.wall_clock() < tokens.renew_at:
            return tokens
        if self._settings.grant == "authorization_code" and tokens.refresh_token is None:
            return tokens
        if tokens is self._not_renewed:
            return tokens
        try:
            return await self._new_tokens(tokens, Expiring())
        except AuthorizationError as error:
            # It is valid for some time yet; then the server rejects it, which starts a new flow.
            # Until then, no request waits for another attempt.
            self._not_renewed = tokens
            logger.info("the token for %s was not renewed: %s", origin_of(self.server), error)
            return tokens

    async def _load(self) -> TokenSet | None:
        """Return the stored token, if it is one for this client and of the given issuer."""
        tokens = await in_store(self.credentials.store, read_tokens, self.server)
        client, issuer = self._settings.client, self._settings.issuer
        if tokens is None or (client is not None and tokens.client.client_id != client.client_id):
            return None
        return tokens if issuer in (None, tokens.issuer) else None

    # One flow at a time

    async def _new_tokens(self, rejected: TokenSet | None, event: Event) -> TokenSet:
        """Return another token than the rejected one, from the flow that runs or from a new one.

        Cancelled: the flow ends if no other request waits for it; but not while a token is issued.
        """
        while True:
            if self._tokens is not None and self._tokens is not rejected:
                return self._tokens
            shared = self._shared_flow
            if shared is None:
                shared = self._shared_flow = _SharedFlow(event)
                trio.lowlevel.spawn_system_task(
                    self._run_shared_flow, shared, rejected, context=copy_context()
                )
            if shared.scope.cancel_called:
                # All requests that waited for this flow were cancelled: another one follows it.
                await shared.done.wait()
                continue
            shared.waiting += 1
            try:
                await shared.done.wait()
            finally:
                shared.waiting -= 1
                if not shared.waiting:
                    shared.scope.cancel()
            if isinstance(shared.result, TokenSet):
                return shared.result
            if isinstance(shared.event, Expiring) and isinstance(event, Challenged):
                continue  # The renewal has failed; but a flow for the challenge may log in.
            error = AuthorizationError(shared.result.reason, code=shared.result.code)
            raise error from shared.result.__cause__

    async def _run_shared_flow(self, shared: _SharedFlow, rejected: TokenSet | None) -> None:
        """Get a token in a system task, which no exception may leave."""
        try:
            with shared.scope:
                shared.result = self._tokens = await self._get_tokens(rejected, shared.event)
        except AuthorizationError as error:
            shared.result = error
        except Exception as error:
            logger.debug("authorization failed", exc_info=error)
            shared.result = AuthorizationError(
                f"no token for {origin_of(self.server)}: {text_with_cause(error)}"
            )
            shared.result.__cause__ = error
        finally:
            self._shared_flow = None
            shared.done.set()

    async def _get_tokens(self, rejected: TokenSet | None, event: Event) -> TokenSet:
        """Return the token that another process has stored meanwhile, or one from a new flow."""
        async with self._locked():
            stored = await self._load()
            if stored is not None and self._is_renewed(stored, rejected, event):
                return stored
            before = rejected if stored is None else stored
            tokens = await self._run_flow(before, event)
            assert tokens is not None
            # With the same client at the same authorization server, both tokens may be of one
            # grant, which a revocation would end (RFC 7009, section 2.1).
            if before is not None and (before.issuer, before.client.client_id) != (
                tokens.issuer,
                tokens.client.client_id,
            ):
                await self._revoke_replaced(before)
            return tokens

    async def _revoke_replaced(self, tokens: TokenSet) -> None:
        """Revoke the token of another authorization server or client, if that is possible."""
        if tokens.revocation_endpoint is None:
            return
        try:
            await self._run_flow(tokens, Dropped())
        except AuthorizationError as error:
            logger.info("a replaced token for %s: %s", origin_of(self.server), error)

    async def log_out(self) -> LogOut:
        """Remove the stored token, and revoke it; see the function `log_out`."""
        async with self._locked():
            is_removed, tokens = await in_store(self.credentials.store, remove_tokens, self.server)
        if tokens is None or tokens.revocation_endpoint is None:
            return "removed" if is_removed else "absent"
        await self._run_flow(tokens, Dropped())
        return "revoked"

    async def _run_flow(self, tokens: TokenSet | None, event: Event) -> TokenSet | None:
        """Run a flow that begins with a token and an event; return its token, if it gets one."""
        flow = ClientFlow(
            server=self.server,
            settings=self._settings,
            tokens=tokens,
            clients=await in_store(self.credentials.store, read_clients),
            state=self.random_text(),
            verifier=self.random_text(),
        )
        timeout = httpx2.Timeout(None, connect=self.limits.request_seconds)
        client = (
            httpx2.AsyncClient(verify=default_ssl_context(), timeout=timeout)
            if self.http is None
            else nullcontext(cast("httpx2.AsyncClient", self.http))  # httpx has the same methods
        )
        async with client as http:
            return await _Driver(self, flow, http).run(event)

    def _is_renewed(self, stored: TokenSet, rejected: TokenSet | None, event: Event) -> bool:
        """Return whether a stored token is a newer one, with which to try again."""
        if rejected is not None and stored.access_token == rejected.access_token:
            return False
        if stored.expires_at is not None and stored.expires_at <= self.wall_clock():
            return False
        challenge = event.challenge if isinstance(event, Challenged) else None
        if challenge is None or challenge.error != INSUFFICIENT_SCOPE:
            return True
        return set(challenge.scopes or ()) <= {*stored.requested_scopes}

    @asynccontextmanager
    async def _locked(self) -> AsyncGenerator[None]:
        """Hold the store's lock of this server; wait for the process that holds it."""
        release: Release | None = None
        with trio.move_on_after(self.limits.login_seconds):
            # Another process does not report that it has released the lock.
            while (  # noqa: ASYNC110
                release := self.credentials.store.try_lock(self.server)
            ) is None:
                await trio.sleep(_LOCK_POLL_SECONDS)
        if release is None:
            raise AuthorizationError(
                f"no token for {origin_of(self.server)}: another process logs in at this server,"
                " and has not finished within limits.authorization.login_seconds"
            )
        try:
            yield
        finally:
            release()


def _challenge_in(response: httpx2.Response) -> Challenge | None:
    """Return the challenge for Bearer, or else the one for DPoP; None if there is neither."""
    challenges = parse_challenges(response.headers.get_list(WWW_AUTHENTICATE))
    by_scheme = (each for scheme in (BEARER, DPOP) for each in challenges if each.is_for(scheme))
    return next(by_scheme, None)


@attrs.define(kw_only=True, eq=False, repr=False)
class RedirectListener:
    """A listener on the loopback interface for the redirect of a browser at the end of a login.

    A request with another path or `state` is rejected and changes nothing, so that no web page or
    program can end a login of the user.

    https://www.rfc-editor.org/rfc/rfc8252#section-7.3
    """

    redirect_uri: str
    socket: trio.SocketListener
    limits: AuthorizationLimits
    _redirected: str | None = attrs.field(default=None, init=False)
    _received: trio.Event = attrs.field(factory=trio.Event, init=False)

    @classmethod
    async def open(cls, redirect_uri: str | None, limits: AuthorizationLimits) -> Self:
        """Listen at a loopback redirect URI, or at any free port if it is None.

        Raises:
            AuthorizationError: The address cannot be bound.
        """
        uri = redirect_uri or f"http://{_LOOPBACK}:0/callback"
        parts = urlsplit(uri)
        host = _LOOPBACK if parts.hostname in (None, "localhost") else parts.hostname
        port = 80 if parts.port is None else parts.port
        try:
            listener, *others = await trio.open_tcp_listeners(port, host=host)
        except OSError as error:
            raise AuthorizationError(
                f"no redirect can be received at {uri}: {error.strerror}; end the program that uses"
                " this address, or choose another one by redirect="
            ) from error
        for other in others:  # without a checkpoint, at which a cancellation would leave some open
            other.socket.close()
        if redirect_uri is None:
            bound: int = listener.socket.getsockname()[1]
            redirect_uri = f"http://{_LOOPBACK}:{bound}/callback"
        return cls(redirect_uri=redirect_uri, socket=listener, limits=limits)

    async def aclose(self) -> None:
        """Stop listening."""
        await self.socket.aclose()

    async def wait(self, state: str) -> str:
        """Return the URL to which the browser was redirected, with this `state`.

        Cancelled: the listener can be used again.
        """
        limiter = trio.Semaphore(self.limits.redirect_connections_max)

        async def serve(stream: trio.SocketStream) -> None:
            async with stream:
                try:
                    with trio.move_on_after(_REDIRECT_SECONDS):
                        await self._answer(stream, state)
                except (trio.BrokenResourceError, h11.ProtocolError):
                    pass  # the peer is gone, or does not speak HTTP/1.1
                finally:
                    limiter.release()

        async with trio.open_nursery() as nursery:

            async def accept() -> None:
                while True:
                    await limiter.acquire()
                    nursery.start_soon(serve, await self.socket.accept())

            nursery.start_soon(accept)
            await self._received.wait()
            nursery.cancel_scope.cancel()
        assert self._redirected is not None
        return self._redirected

    async def _answer(self, stream: trio.SocketStream, state: str) -> None:
        connection = h11.Connection(
            h11.SERVER, max_incomplete_event_size=self.limits.redirect_bytes_max
        )
        while (event := connection.next_event()) is h11.NEED_DATA:
            connection.receive_data(await stream.receive_some(self.limits.redirect_bytes_max))
        if not isinstance(event, h11.Request):
            return
        query = self._redirected_query(event, state)
        if query is None:
            status, text = 400, _UNRELATED
        else:
            status, text = 200, _FAILED if "error" in parse_qs(query) else _DONE
        body = f"<!doctype html><meta charset=utf-8><title>mcp_trio</title><p>{text}</p>".encode()
        headers = [
            ("Content-Type", "text/html; charset=utf-8"),
            ("Content-Length", str(len(body))),
            ("Content-Security-Policy", "default-src 'none'"),
            ("Referrer-Policy", "no-referrer"),
            ("Cache-Control", "no-store"),
            ("Connection", "close"),
        ]
        response = connection.send(h11.Response(status_code=status, headers=headers))
        with suppress(trio.BrokenResourceError):  # the browser may be gone by now
            await stream.send_all(response + connection.send(h11.Data(data=body)))
        if query is not None and self._redirected is None:
            self._redirected = self.redirect_uri.partition("?")[0] + f"?{query}"
            self._received.set()

    def _redirected_query(self, request: h11.Request, state: str) -> str | None:
        """Return the query of the redirect with this `state`; None for any other request."""
        try:
            parts = urlsplit(request.target.decode("ascii"))
        except ValueError:  # "//[" is a valid request target, but not a valid URL
            return None
        states = parse_qs(parts.query).get("state", [])
        is_redirect = (
            request.method == b"GET"
            and parts.path == (urlsplit(self.redirect_uri).path or "/")
            and len(states) == 1
            and hmac.compare_digest(states[0].encode(), state.encode())
        )
        return parts.query if is_redirect else None


@attrs.define(eq=False, repr=False)
class _Driver:
    """Carries out the actions of one flow.

    Attributes:
        listener: The listener for the redirect, once it is open.
        login_issuer: The authorization server at which the user has begun to log in.
    """

    auth: ServerAuth
    flow: ClientFlow
    http: httpx2.AsyncClient
    listener: RedirectListener | None = attrs.field(default=None, init=False)
    login_issuer: str | None = attrs.field(default=None, init=False)

    async def run(self, event: Event) -> TokenSet | None:
        """Run the flow to its end, and store the token, if it gets one.

        Cancelled: a token that was issued is stored all the same.
        """
        next_event: Event | None = event
        try:
            while True:
                assert next_event is not None
                actions = self.flow.receive(next_event, self.auth.wall_clock())
                for action in actions:
                    if isinstance(action, Finish):
                        return None if action.tokens is None else await self._finish(action.tokens)
                    next_event = await self._carry_out(action)
        except BaseException:
            # An authorization server that does not know the client any more tells only the user. So
            # the next login registers another one.
            if self.login_issuer is not None:
                with trio.CancelScope(shield=True), suppress(Exception):
                    await in_store(self.auth.credentials.store, remove_client, self.login_issuer)
            raise
        finally:
            if self.listener is not None:
                with trio.CancelScope(shield=True):
                    await self.listener.aclose()

    async def _carry_out(self, action: Action) -> Event | None:
        """Carry out one action, and return its event."""
        match action:
            case SendRequest():
                return await self._send(action)
            case StoreClient():
                await self._store(write_client, action.client)
                return None
            case PrepareRedirect():
                return RedirectReady(await self._redirect_uri(action.preferred))
            case AskForClient():
                return ClientGiven(await self._ask_for_client(action.issuer))
            case Authorize():
                self.login_issuer = action.issuer
                return Redirected(await self._authorize(action))
            case MakeAssertion():
                token = await assertion_of(
                    self.auth.credentials,
                    action.audience,
                    now=self.auth.wall_clock(),
                    token_id=self.auth.random_text(),
                )
                return AssertionMade(token)
            case Finish():
                raise AssertionError("the flow is over")

    async def _finish(self, tokens: TokenSet) -> TokenSet:
        if tokens.token_type == DPOP:
            tokens = attrs.evolve(tokens, dpop_key=self._proof_key.jwk)
        await self._store(write_tokens, tokens)
        return tokens

    async def _store(self, write: Callable[[TokenStore, _T], None], value: _T) -> None:
        """Store a token or client; if that fails, it is used without being stored."""
        with trio.CancelScope(shield=True):
            try:
                await in_store(self.auth.credentials.store, write, value)
            except Exception as error:  # stores have errors of their own, such as those of keyring
                text = "the token for %s is not stored: %s"
                logger.warning(text, origin_of(self.flow.server), text_with_cause(error))

    # HTTP requests

    @property
    def _proof_key(self) -> ProofKey:
        return self.auth.key_for(self.flow.tokens)

    async def _send(self, action: SendRequest) -> ResponseReceived:
        """Send a request, and return its response, which has a limited size."""
        url, seconds = action.url, self.auth.limits.request_seconds
        await self._check_address(url)
        headers = {**action.headers, "Accept-Encoding": "identity"}
        if action.is_for_token and self.flow.requires_dpop:
            headers["DPoP"] = self._proof_key.proof(
                action.method, url, now=self.auth.wall_clock(), token_id=self.auth.random_text()
            )
        request = self.http.build_request(action.method, url, content=action.body, headers=headers)
        response: ResponseReceived | None = None
        try:
            with (
                trio.CancelScope(shield=action.is_for_token),
                trio.fail_after(seconds),
                errors_converted_to(httpx2),
            ):
                response = await self._receive(request)
        except trio.TooSlowError:
            raise self.flow.error(
                f"{url} did not answer within limits.authorization.request_seconds ({seconds:g})"
            ) from None
        except httpx2.RequestError as error:
            raise self.flow.error(f"{url} cannot be reached: {text_with_cause(error)}") from error
        assert response is not None
        if self.flow.requires_dpop:
            self._proof_key.note_nonce(url, response.headers.get("dpop-nonce"))
        return response

    async def _receive(self, request: Any) -> ResponseReceived:
        # `auth=None` is no authorization, in place of that of a client that was given.
        response = await self.http.send(request, auth=None, stream=True, follow_redirects=False)
        try:
            if encoding := response.headers.get("content-encoding"):
                raise self.flow.error(
                    f"{request.url} answered with Content-Encoding {encoding!r}, although the"
                    " request has Accept-Encoding: identity"
                )
            bytes_max = self.auth.limits.document_bytes_max
            body = await bounded_body(response, bytes_max)
            if body is None:
                raise self.flow.error(
                    f"{request.url} answered with more than"
                    f" limits.authorization.document_bytes_max ({bytes_max}) bytes"
                )
        finally:
            await response.aclose()
        headers = {name.lower(): value for name, value in response.headers.items()}
        return ResponseReceived(status=response.status_code, headers=headers, body=body)

    async def _check_address(self, url: str) -> None:
        """Check that the name in a URL does not lead closer to this computer than the server's URL.

        This computer is closest, then come private networks, then public addresses.

        The name may lead elsewhere a moment later (DNS rebinding). TLS protects from that, since
        the service at the other address has no certificate for this name.
        """
        host = urlsplit(url).hostname or ""
        server_host = urlsplit(self.flow.server).hostname or ""
        is_allowed = host == server_host or host in self.flow.settings.trusted_hosts
        # The flow has checked addresses, and names such as `localhost`, by `check_url`.
        if is_allowed or closeness(host) or literal_address(host) is not None:
            return
        if await _resolved_closeness(host) > await _resolved_closeness(server_host):
            raise self.flow.error(
                f"{host} is this computer or in a private network, unlike the server;"
                " trusted_hosts= allows that"
            )

    # The user

    async def _redirect_uri(self, preferred: str | None) -> str:
        """Return the redirect URI, at which the client listens if it is a loopback address."""
        oauth = self._oauth
        if not oauth.is_redirected_here:
            assert oauth.redirect is not None
            return oauth.redirect
        if oauth.redirect is None and preferred is not None:
            with suppress(AuthorizationError):  # another program uses the port: register again
                self.listener = await RedirectListener.open(preferred, self.auth.limits)
        if self.listener is None:
            self.listener = await RedirectListener.open(oauth.redirect, self.auth.limits)
        return self.listener.redirect_uri

    @property
    def _oauth(self) -> OAuth:
        assert isinstance(self.auth.credentials, OAuth)  # no other grant needs a user
        return self.auth.credentials

    async def _ask_for_client(self, issuer: str) -> ClientInformation:
        ask = self._oauth.ask_for_client
        if ask is None:
            raise self.flow.error(
                f"{issuer} does not register clients: register one there, and pass its id with"
                " client_id="
            )
        with self.auth.user_wait():
            client_id, client_secret = await ask(issuer)
        return ClientInformation(client_id=client_id, client_secret=client_secret)

    async def _authorize(self, action: Authorize) -> str:
        """Return the URL to which the browser was redirected, by listener or `on_authorize`."""
        seconds, redirected = self.auth.limits.login_seconds, ""
        failure: Exception | None = None

        async def call_on_authorize(cancel_scope: trio.CancelScope) -> None:
            nonlocal redirected, failure
            try:
                returned = await self._oauth.on_authorize(action.url)
            except Exception as error:
                failure = error
                cancel_scope.cancel()
                return
            if returned is not None:
                redirected = returned
                cancel_scope.cancel()
            elif self.listener is None:
                failure = self.flow.error(
                    "on_authorize= returned None, but the redirect does not go to a loopback"
                    " address: it has to return the URL to which the browser was redirected"
                )

        with self.auth.user_wait(), trio.move_on_after(seconds) as timeout:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(call_on_authorize, nursery.cancel_scope)
                if self.listener is not None:
                    redirected = await self.listener.wait(self.flow.state)
                    nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        if timeout.cancelled_caught:
            raise self.flow.error(
                f"there was no login within limits.authorization.login_seconds ({seconds:g})"
            )
        return redirected


async def _resolved_closeness(host: str) -> int:
    """Return how close the addresses of a host are; 0 if it has none that are known here."""
    if literal_address(host) is not None or is_loopback_host(host):
        return closeness(host)
    try:
        found = await trio.socket.getaddrinfo(host, None, type=trio.socket.SOCK_STREAM)
    except OSError:
        return 0  # a proxy may know it; otherwise the request fails
    addresses = (literal_address(str(sockaddr[0])) for *_, sockaddr in found)
    return max((closeness_of_address(each) for each in addresses if each is not None), default=0)
