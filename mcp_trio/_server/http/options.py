"""How a server is served over HTTP, as people say it."""

from collections.abc import Awaitable, Callable, Collection
from typing import Literal, TypeAlias, TypedDict

from mcp_trio._protocol.http.heads import Head
from mcp_trio._recorder.options import RecordTo

HostKind: TypeAlias = Literal["native", "hypercorn"]
"""Who holds the connections: our own listener, for HTTP/1.1, or hypercorn, for TLS and HTTP/2."""

Verify: TypeAlias = Callable[[Head], Awaitable[str | None]]
"""Who sends a request, by its head; None refuses it."""


class HttpOptions(TypedDict, total=False):
    """What is served, and to whom.

    Attributes:
        path: Where the MCP endpoint is.
        hosts: Names under which clients may reach it, beside those that it is bound to.
        origins: Pages of these origins may use it, beside its own.
        allows_cors: Browsers are told so.
        verify: Tells who sends a request, by its head; None refuses the request.
        streams_answers: Answers in sessions are streams of events also where they could be JSON.
        has_sse: The two endpoints of revision 2024-11-05 are there as well.
        record: See `Server.serve`; each session is recorded, and all modern requests together.
    """

    path: str
    hosts: Collection[str] | None
    origins: Collection[str] | None
    allows_cors: bool
    verify: Verify | None
    streams_answers: bool
    has_sse: bool
    record: RecordTo | None


class RunHttpOptions(HttpOptions, total=False):
    """The same, and where: see `Server.serve_http`."""

    host: str
    port: int
    server: HostKind
    certfile: str | None
    keyfile: str | None
