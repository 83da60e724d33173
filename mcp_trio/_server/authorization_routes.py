"""The endpoints of an authorization server as HTTP routes beside the MCP endpoint."""

from collections.abc import Callable, Iterable
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from mcp_trio._protocol.http_headers import HttpRequest

if TYPE_CHECKING:
    from mcp_trio._auth.authorization_server import AuthorizationServer
    from mcp_trio._auth.resource_server import ProtectedResource, ResourceServer
    from mcp_trio._server.routes import Request, Response
    from mcp_trio._server.sessions import ServerSessions


def add_authorization_routes(sessions: "ServerSessions", auth: "ResourceServer") -> None:
    """Add the routes of the authorization server, if there is one; they need no credentials."""
    from mcp_trio._auth.authorization_server import AuthorizationServer

    authorization = auth.verifier
    if isinstance(authorization, AuthorizationServer):
        for path, methods in authorization.methods.items():
            handler = partial(_respond, authorization)
            sessions.routes.add(path, methods, handler, is_public=True)


def bind_authorization_server(
    protected: "ProtectedResource", *, scopes: Callable[[], Iterable[str]]
) -> None:
    """Set the issuer and the resources of the authorization server, if there is one.

    Args:
        protected: The MCP endpoint at its URLs, which are known now.
        scopes: Returns the scopes of everything that is registered.

    Raises:
        ValueError: Its login is not for a server that other machines can reach.
    """
    from mcp_trio._auth.authorization_server import AuthorizationServer

    authorization, resources = protected.settings.verifier, protected.resources
    if isinstance(authorization, AuthorizationServer):
        issuer = resources[0].removesuffix("/").removesuffix(protected.path).rstrip("/")
        authorization.bind(issuer, resources, scopes)


def is_in_memory(auth: "ResourceServer") -> bool:
    """Return whether there is an authorization server whose storage ends with the process."""
    from mcp_trio._auth.authorization_server import AuthorizationServer
    from mcp_trio._auth.authorization_storage import SqliteStorage

    if not isinstance(auth.verifier, AuthorizationServer):
        return False
    storage = auth.verifier.storage
    return isinstance(storage, SqliteStorage) and storage.path is None


async def _respond(authorization: "AuthorizationServer", request: "Request") -> "Response":
    from mcp_trio._auth.authorization_server import BODY_BYTES_MAX
    from mcp_trio._server.routes import Response

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
