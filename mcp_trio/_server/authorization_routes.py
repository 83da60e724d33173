"""The endpoints of an authorization server as HTTP routes beside the MCP endpoint."""

from functools import partial
from http import HTTPStatus
from urllib.parse import urlencode

from mcp_trio._auth.authorization_server import BODY_BYTES_MAX, AuthorizationServer
from mcp_trio._protocol.http_headers import HttpRequest
from mcp_trio._server.routes import Request, Response, Routes


def add_authorization_routes(routes: Routes, authorization: AuthorizationServer) -> None:
    """Add the routes of an authorization server, for requests without credentials.

    Raises:
        ValueError: One of its paths has a route already.
    """
    for path, methods in authorization.methods.items():
        routes.check_path(path)
        routes.add(path, methods, partial(_respond, authorization), is_public=True)


async def _respond(authorization: AuthorizationServer, request: Request) -> Response:
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
