"""Which header fields a proxy passes on.

All of them, in both directions and as they came, but for those that belong to one connection and
not to what is said over it (RFC 9110, section 7.6.1).
"""

from collections.abc import Iterable
from typing import Final

import httpx

from mcp_trio._protocol.http.heads import OUTER_SPACE, Head, Headers
from mcp_trio._transports.http.header_fields import encoded

_OF_CONNECTION: Final = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)

# Told anew to the server. What it would compress, nobody between could read.
_TOLD_TO_SERVER: Final = frozenset({"host", "content-length", "expect", "accept-encoding"})
_UNCOMPRESSED: Final = (b"accept-encoding", b"identity")

# Told anew to the client, by the host.
_TOLD_TO_CLIENT: Final = frozenset({"content-length", "date"})


def fields_to_server(head: Head) -> list[tuple[bytes, bytes]]:
    """Those of a client's request; the length, and the server's name, are still to be added."""
    passed = _passed(head.headers.items(), told_anew=_TOLD_TO_SERVER)
    written = [(name.encode("ascii"), value.encode("latin-1")) for name, value in passed]
    return [*written, _UNCOMPRESSED]


def fields_to_client(response: httpx.Response) -> Headers:
    """Those of a server's answer.

    Raises:
        ValueError: One of them cannot stand in a head.
    """
    raw = response.headers.raw
    read = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in raw]
    passed = _passed(read, told_anew=_TOLD_TO_CLIENT)
    encoded(passed)
    return passed


def _passed(fields: Iterable[tuple[str, str]], *, told_anew: frozenset[str]) -> Headers:
    fields = list(fields)
    said = ",".join(value for name, value in fields if name == "connection")
    named = {name.strip(OUTER_SPACE).lower() for name in said.split(",")}
    dropped = _OF_CONNECTION | named | told_anew
    return [(name, value) for name, value in fields if name not in dropped]
