"""How a server is served over HTTP, as people say it."""

from collections.abc import Awaitable, Callable, Collection
from typing import Literal, TypeAlias, TypedDict

from mcp_trio._protocol.http.heads import Head
from mcp_trio._recorder.options import RecordTo
from mcp_trio._server.http.stores import HttpStores

HostKind: TypeAlias = Literal["native", "hypercorn"]
"""Who holds the connections: our own listener, for HTTP/1.1, or hypercorn, for TLS and HTTP/2."""

Verify: TypeAlias = Callable[[Head], Awaitable[str | None]]
"""Who sends a request, by its head; None refuses it.

The name is no secret: handlers read it as `ctx.principal`, and it stands in recordings.
"""


class WhoMayCome(TypedDict, total=False):
    """Who may come over the web.

    Attributes:
        hosts: Names under which clients may reach it, beside those that it is bound to.
        origins: Pages of these origins may use it, beside its own.
        token: Who brings it may come: as `Authorization: Bearer`, or, from a browser that opens a
            WebSocket, as the subprotocol `mcp.token.` and the token in Base64URL, beside `mcp`.
        verify: In its place, tells who sends a request, by its head; None refuses the request.
    """

    hosts: Collection[str] | None
    origins: Collection[str] | None
    token: str | None
    verify: Verify | None


class HttpOptions(WhoMayCome, total=False):
    """What is served, and to whom.

    Attributes:
        path: Where the MCP endpoint is.
        allows_cors: Browsers are told that pages of `origins` may read what is answered.
        streams_answers: Answers in sessions are streams of events also where they could be JSON.
        has_sse: The two endpoints of revision 2024-11-05 are there as well.
        has_websocket: WebSocket is there as well; each connection is a session.
        ws_path: Where that is.
        record: See `Server.serve`; each session is recorded, and all modern requests together.
        stores: What several machines that serve together share; in memory without a word.
    """

    path: str
    allows_cors: bool
    streams_answers: bool
    has_sse: bool
    has_websocket: bool
    ws_path: str
    record: RecordTo | None
    stores: HttpStores


class RunHttpOptions(HttpOptions, total=False):
    """The same, and where: see `Server.serve_http`.

    Attributes:
        workers: How many processes serve the address together. Several of them speak modern
            revisions only, and no handler waits in them for its client's next round. What changes
            in one is told to its own clients only, unless `stores` carries it to the others.
    """

    host: str
    port: int
    server: HostKind
    workers: int
    certfile: str | None
    keyfile: str | None
