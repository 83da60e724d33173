"""Custom HTTP routes: the table behind `Server.route`, and the requests and responses of handlers.

The HTTP application (`http_app.py`) looks a path up here after the paths of its own endpoints. The
endpoints of an authorization server in the same process are routes as well.
"""

import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import urlencode

import attrs
import msgspec

from mcp_trio._protocol.http_headers import JSON, Headers, HttpRequest, encoded_headers
from mcp_trio._protocol.http_requests import RejectedError, Rejection
from mcp_trio._protocol.uri_templates import OPERATORS, UriError, UriTemplate
from mcp_trio._server.introspection import function_label, is_async, plain_function
from mcp_trio._server.results import JsonWriter
from mcp_trio._session.call_sites import signature_of
from mcp_trio.limits import Limits

if TYPE_CHECKING:
    from mcp_trio._auth.authorization_server import AuthorizationServer
    from mcp_trio._auth.resource_server import ProtectedResource, ResourceServer
    from mcp_trio._server.sessions import ServerSessions


class MalformedBodyError(ValueError):
    """The body of a request is not JSON; unless it is caught, the client gets status 400."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Request:
    """An HTTP request to a route of a server.

    Attributes:
        method: The method, such as `GET`.
        path: The path as received, below the mount of the application.
        path_params: The decoded values of the variables in the route's path, by name.
        query: The decoded values in the query, by name; a name may occur several times.
        headers: The values of the headers, by names in lower case; values of repeated headers are
            joined with a comma.
        client: The address of the client, if it is known.
        principal: The user, as `auth=` has authenticated it; None for a public route, or
            without `auth=` and `token=`.
    """

    method: str
    path: str
    path_params: Mapping[str, str]
    query: Mapping[str, Sequence[str]]
    headers: Mapping[str, str]
    client: str | None
    principal: str | None
    _read_body: Callable[[], Awaitable[bytes]] = attrs.field(alias="read_body")

    async def body(self) -> bytes:
        """Return the complete body; later calls return the same bytes.

        A body of more than `limits.messages.bytes_max` bytes raises an exception, with which the
        client gets status 413.
        """
        return await self._read_body()

    async def json(self) -> Any:
        """Return the body, decoded from JSON.

        Raises:
            ValueError: The body is not JSON; unless it is caught, the client gets status 400.
        """
        body = await self.body()
        try:
            return msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise MalformedBodyError(f"the body is not JSON: {error}") from error


TEXT: Final = "text/plain; charset=utf-8"
_BYTES: Final = "application/octet-stream"

# RFC 9110, section 15: a response has a final status of three digits.
_STATUSES: Final = range(200, 600)

# The HTTP server sets these itself, from the body and the connection.
_SERVER_HEADERS: Final = frozenset({"connection", "content-length", "date", "transfer-encoding"})


@attrs.frozen
class Response:
    """The response of a route.

    Attributes:
        body: A string, sent as UTF-8; bytes; or a dict, sent as JSON.
        status: The HTTP status, from 200 to 599.
        headers: Further headers, by name. `Content-Type` follows from the body: `text/plain`,
            `application/octet-stream` or `application/json`; one that is given replaces it.

    Raises:
        ValueError: The status or a header is invalid.
    """

    body: str | bytes | Mapping[str, Any] = b""
    status: int = attrs.field(default=200, kw_only=True)
    headers: Mapping[str, str] = attrs.field(factory=dict[str, str], kw_only=True)

    def __attrs_post_init__(self) -> None:
        if self.status not in _STATUSES:
            raise ValueError(f"a response has a status from 200 to 599, not {self.status!r}")
        encoded_headers([*self.headers.items()])  # This raises an error for an invalid header.
        reserved = _SERVER_HEADERS.intersection(map(str.lower, self.headers))
        if reserved:
            raise ValueError(
                f"the HTTP server itself sets the header {', '.join(sorted(reserved))}"
            )

    def encode(self, writer: JsonWriter) -> tuple[Headers, bytes]:
        """Return the headers and the bytes of the body."""
        body: Any = self.body
        match body:
            case str():
                media_type, data = TEXT, body.encode()
            case bytes():
                media_type, data = _BYTES, body
            case Mapping():
                media_type, data = JSON, writer.encode(body)
            case _:
                raise TypeError(
                    f"a route returns a str, bytes, a dict or a Response, not {type(body).__name__}"
                )
        headers = [*self.headers.items()]
        if data and "content-type" not in map(str.lower, self.headers):
            headers.append(("Content-Type", media_type))
        return headers, data


RouteHandler: TypeAlias = Callable[[Request], Awaitable[Any]]

# RFC 9110, section 9.1: a method is a token; those in use are words in capitals.
_METHOD: Final = re.compile(r"[A-Z]+")

# Variables of a path: a segment, and the rest of the path with its slashes.
_SEGMENT, _REST = OPERATORS[""], OPERATORS["+"]

# The paths that the server itself always answers, unless `path=` changes that of the MCP endpoint.
_OWN_PATHS: Final = {"/health": "the health check", "/mcp": "the MCP endpoint"}


@attrs.frozen(kw_only=True, eq=False, repr=False)
class RouteMethod:
    """The handler of one method of a route; `is_public` exempts it from `auth=` and `token=`."""

    handler: RouteHandler
    is_public: bool


@attrs.frozen(eq=False, repr=False)
class Route:
    """A path, which may be a template, and its handlers by method."""

    template: UriTemplate
    methods: dict[str, RouteMethod] = attrs.field(factory=dict[str, RouteMethod], init=False)

    def find(self, method: str) -> RouteMethod | None:
        """Return the handler of a method; that of GET answers HEAD as well, if HEAD has none."""
        found = self.methods.get(method)
        return self.methods.get("GET") if found is None and method == "HEAD" else found

    @property
    def allow(self) -> str:
        """The value of the header `Allow`."""
        return ", ".join(sorted({*self.methods, *(["HEAD"] if "GET" in self.methods else [])}))


@attrs.define(eq=False, repr=False)
class Routes:
    """The routes of a server."""

    limits: Limits
    writer: JsonWriter
    # By `_path_key`.
    _routes: dict[str, Route] = attrs.field(factory=dict[str, Route], init=False)
    # The owners of the server's own endpoints, by `_path_key`.
    _reserved: dict[str, str] = attrs.field(factory=lambda: dict(_OWN_PATHS), init=False)

    def add(
        self, path: str, methods: Collection[str], handler: RouteHandler, *, is_public: bool
    ) -> None:
        """Add the handler of some methods of a path; see `Server.route`."""
        label = function_label(plain_function(handler))
        if not is_async(handler):
            raise TypeError(f"{label}: the handler of a route has to be `async def`")
        try:
            signature_of(handler).bind(None)
        except TypeError as error:
            text = f"{label}: the handler of a route takes one parameter, the request"
            raise TypeError(text) from error
        template = _path_template(path)
        route = self._routes.setdefault(_path_key(template), Route(template))
        if route.template.text != template.text:
            raise ValueError(
                f"the route {path!r} matches the same paths as {route.template.text!r}"
            )
        taken = sorted(route.methods.keys() & set(methods))
        if taken:
            raise ValueError(f"the route {path!r} has a handler of {', '.join(taken)} already")
        for method in methods:
            route.methods[method] = RouteMethod(handler=handler, is_public=is_public)

    def check_path(self, path: str) -> None:
        """Check the path of a new route."""
        taken_by = self._reserved.get(_path_key(_path_template(path)))
        if taken_by is not None:
            raise ValueError(f"the path {path!r} is that of {taken_by}: choose another one")

    def reserve(self, path: str, owner: str) -> None:
        """Reserve a path for an endpoint of a served application, so that no route can have it."""
        key = path.rstrip("/")
        if key in self._routes:
            raise ValueError(
                f"the route {path!r} has the path of {owner}: give one of them another"
            )
        self._reserved[key] = owner

    def find(self, path: str) -> tuple[Route, Mapping[str, str]] | None:
        """Return the route of a path, and the values of the variables; None if there is none.

        A path without variables has precedence, then the route that was registered first. A slash
        at the end of the path does not count.

        Raises:
            RejectedError: The path is too long, or a value could lead out of its path segment.
        """
        if not self._routes:
            return None
        path = path.rstrip("/")
        static = self._routes.get(path)
        if static is not None and not static.template.variables:
            return static, {}
        failure: UriError | None = None
        uri_chars_max = self.limits.messages.uri_chars_max
        for route in tuple(self._routes.values()):
            try:
                values = route.template.match(path or "/", uri_chars_max=uri_chars_max)
            except UriError as error:
                failure = error
                continue
            if values is not None:
                return route, values
        if failure is not None:
            raise RejectedError(Rejection(status=400, text=str(failure)))
        return None


def checked_methods(methods: Collection[str]) -> Collection[str]:
    """Return the methods of a route in capitals."""
    if isinstance(methods, str):
        raise TypeError(f"methods are a list: write [{methods!r}]")
    capitals = {method.upper() for method in methods}
    for method in capitals:
        if not _METHOD.fullmatch(method):
            raise ValueError(f"{method!r} is not an HTTP method")
    if not capitals:
        raise ValueError('a route needs at least one method, such as methods=["GET"]')
    return capitals


def _path_template(path: str) -> UriTemplate:
    """Return the parsed path of a route.

    Raises:
        ValueError: It does not begin with a slash, has a query, or an expression other than
            `{name}` and `{+name}`.
    """
    if not path.startswith("/"):
        raise ValueError(f"a path has to begin with a slash, unlike {path!r}")
    if "?" in path or "#" in path:
        raise ValueError(f"{path!r} has a query or a fragment, which a route cannot match")
    template = UriTemplate.parse(path if path == "/" else path.rstrip("/"))
    for expression in template.expressions:
        if expression.operator not in (_SEGMENT, _REST) or len(expression.names) > 1:
            raise ValueError(
                f"{path!r}: a variable of a path is {{name}}, for one segment, or {{+name}}, for"
                " the rest of the path"
            )
    return template


def _path_key(template: UriTemplate) -> str:
    """Return the path without the names of its variables; templates that match alike share it."""
    pieces = [
        piece if isinstance(piece, str) else "{}" if piece.operator is _SEGMENT else "{+}"
        for piece in template.pieces
    ]
    return "".join([*pieces, template.tail]).rstrip("/")


# The endpoints of an authorization server --------------------------------------------------------


def _authorization_server_of(auth: "ResourceServer") -> "AuthorizationServer | None":
    """Return the authorization server in this process that issues the tokens, if there is one."""
    from mcp_trio._auth.authorization_server import AuthorizationServer

    return auth.verifier if isinstance(auth.verifier, AuthorizationServer) else None


def add_authorization_routes(sessions: "ServerSessions", auth: "ResourceServer") -> None:
    """Add the routes of the authorization server, if there is one; they need no credentials."""
    authorization = _authorization_server_of(auth)
    if authorization is not None:
        handler = partial(_respond_as_authorization_server, authorization)
        for path, methods in authorization.methods.items():
            sessions.routes.add(path, methods, handler, is_public=True)


def bind_authorization_server(
    protected: "ProtectedResource", *, scopes: Callable[[], Iterable[str]]
) -> None:
    """Set the issuer, the resources and the scopes of the authorization server, if there is one.

    Raises:
        ValueError: Its login is not for a server that other machines can reach.
    """
    authorization = _authorization_server_of(protected.settings)
    if authorization is not None:
        resources = protected.resources
        issuer = resources[0].removesuffix("/").removesuffix(protected.path).rstrip("/")
        authorization.bind(issuer, resources, scopes)


def is_authorization_in_memory(auth: "ResourceServer") -> bool:
    """Return whether this process has an authorization server whose storage ends with it."""
    from mcp_trio._auth.authorization_storage import SqliteStorage

    authorization = _authorization_server_of(auth)
    storage = None if authorization is None else authorization.storage
    return isinstance(storage, SqliteStorage) and storage.path is None


async def _respond_as_authorization_server(
    authorization: "AuthorizationServer", request: Request
) -> Response:
    from mcp_trio._auth.authorization_server import BODY_BYTES_MAX

    length = request.headers.get("content-length", "0")
    is_large = length.isdecimal() and int(length) > BODY_BYTES_MAX
    body = b"" if is_large else await request.body()
    if is_large or len(body) > BODY_BYTES_MAX:
        text = f"the body has more than {BODY_BYTES_MAX} bytes"
        return Response(text, status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    response = await authorization.respond(
        HttpRequest(
            request.method,
            request.path.rstrip("/"),
            urlencode(request.query, doseq=True),
            request.headers,
            client=request.client,
        ),
        body,
    )
    return Response(response.body, status=response.status, headers=dict(response.headers))
