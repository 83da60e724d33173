"""Security of web transports: the check of hosts and origins, and the encoding of digests.

The check prevents DNS rebinding and cross-site requests.

A page in a browser can send requests to the user's machine, but it can hide neither its own origin
(`Origin`) nor the name under which it found the server (`Host`). Programs other than browsers send
no `Origin`, and pass.

https://modelcontextprotocol.io/specification/2025-11-25/basic/transports#security-warning
"""

import base64
import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from ipaddress import IPv6Address, ip_address
from typing import Final

import msgspec

from mcp_trio._protocol.http_headers import HOST, Headers, HttpRequest
from mcp_trio._protocol.http_requests import Rejection

LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
"""The host name and addresses by which a machine reaches itself."""

ANY: Final = "*"
"""In `hosts` or `origins`: every value is allowed."""

_EVERY_ADDRESS: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - nothing is bound here

_IP_ADDRESS: Final = re.compile(r"\[.*\]|[0-9.]+")
_PAGE: Final = re.compile(rf"(?P<scheme>https?)://{HOST.pattern}")
_ORIGIN_OF_AN_APP: Final = re.compile(r"(?!https?:)[a-z][a-z0-9+.-]*://[^\s/@,]+")
_DEFAULT_PORTS: Final = {"http": "80", "ws": "80", "https": "443", "wss": "443"}

_HEADER_NAMES: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z, -]+")
_SHOWN_CHARS_MAX: Final = 100

_EXPOSED_HEADERS: Final = "Mcp-Session-Id, MCP-Protocol-Version, WWW-Authenticate, DPoP-Nonce"
_METHODS: Final = "GET, POST, DELETE"
_PREFLIGHT_SECONDS: Final = "600"


def sha256_base64url(data: bytes) -> str:
    """Return the SHA-256 digest in Base64URL without padding.

    PKCE (RFC 7636), DPoP (RFC 9449) and thumbprints of certificates (RFC 8705) have this form.
    """
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a host name or address."""
    try:
        address = ip_address(host)
    except ValueError:
        return host.lower() in LOOPBACK
    # Before Python 3.13, `is_loopback` is False for ::ffff:127.0.0.1.
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


class HostCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The hosts and origins whose requests a server accepts.

    Attributes:
        hosts: The allowed values of `Host`, as `name:port`, or `name` for any port; None for all.
        origins: The allowed values of `Origin` besides the server's own, as `scheme://host[:port]`;
            None for all.
        allows_cors: Whether browsers let pages of allowed origins read responses.
    """

    hosts: frozenset[str] | None
    origins: frozenset[str] | None
    allows_cors: bool = False

    def rejection(self, request: HttpRequest) -> Rejection | None:
        """Return the rejection of a request; None if it is accepted."""
        allows_host = request.host is not None
        if request.host is not None and self.hosts is not None:
            name, port = request.host
            port = port or _DEFAULT_PORTS.get(request.scheme)
            allows_host = name in self.hosts or f"{name}:{port}" in self.hosts
        if not allows_host:
            return _rejected(request, "Host", "hosts")
        if not self._allows_origin(request):
            return _rejected(request, "Origin", "origins")
        if not self.allows_cors and request.is_preflight:
            text = "pages may not read responses of this server: see its setting allows_cors="
            return Rejection(status=403, text=text)
        return None

    def cors_headers(self, request: HttpRequest) -> Headers:
        """Return the headers to add to a response, so that an allowed page may read it.

        If the request is rejected, or has no `Origin`, the only one is `Vary`, so that no cache
        uses the response for the same request of an allowed page.
        """
        if not self.allows_cors:
            return []
        origin = request.headers.get("origin")
        if origin is None or self.rejection(request) is not None:
            return [("Vary", "Origin")]
        return [
            ("Access-Control-Allow-Origin", origin),
            ("Access-Control-Expose-Headers", _EXPOSED_HEADERS),
            ("Vary", "Origin"),
        ]

    def preflight(self, request: HttpRequest, methods: str = _METHODS) -> Headers | None:
        """Return the headers of the response to a CORS preflight request.

        `methods` are those that pages may use at its path; by default those of MCP.

        https://fetch.spec.whatwg.org/#http-cors-protocol

        Returns:
            None if the request is not a preflight request, or is rejected.
        """
        if not (request.is_preflight and self.allows_cors) or self.rejection(request) is not None:
            return None
        headers = [
            *self.cors_headers(request),
            ("Access-Control-Allow-Methods", methods),
            ("Access-Control-Max-Age", _PREFLIGHT_SECONDS),
        ]
        names = request.header("access-control-request-headers")
        if names is not None and _HEADER_NAMES.fullmatch(names):
            # Parameter headers may have any names, so all requested names are allowed.
            headers.append(("Access-Control-Allow-Headers", names))
        return headers

    def _allows_origin(self, request: HttpRequest) -> bool:
        origin = request.headers.get("origin")
        if "origin" in request.repeated:
            return False
        if origin is None or self.origins is None or origin in self.origins:
            return True
        # Any other origin must be the server's own, with any scheme, as a proxy may terminate TLS.
        page = _PAGE.fullmatch(origin)
        if page is None or request.host is None:
            return False
        default, (name, port) = _DEFAULT_PORTS[page["scheme"]], request.host
        if (page["name"], page["port"] or default) != (name, port or default):
            return False
        # With DNS rebinding, a page's own name leads to this server. Unless names are checked, only
        # an address in `Host` is certain to be no such name.
        return self.hosts is not None or _IP_ADDRESS.fullmatch(name) is not None


def _rejected(request: HttpRequest, field: str, setting: str) -> Rejection:
    sent = request.header(field)
    reason = "is missing" if sent is None else f"{sent[:_SHOWN_CHARS_MAX]!r} is not allowed here"
    return Rejection(status=403, text=f"{field} {reason}: see the server's setting {setting}=")


def host_check_for(
    bound: Sequence[tuple[str, int]],
    *,
    hosts: Collection[str] | None = None,
    origins: Collection[str] | None = None,
    allows_cors: bool = False,
) -> HostCheck:
    """Return the check for a server.

    Args:
        bound: The addresses and ports at which it listens, which are always allowed; empty if they
            are not known.
        hosts: Further allowed values of `Host`; `*` allows all. Without `hosts`, a server on
            loopback addresses or without known addresses allows the names of `LOOPBACK`, and every
            other server allows all.
        origins: Further allowed values of `Origin`; `*` allows all.
        allows_cors: Whether browsers let pages of allowed origins read responses.

    Raises:
        ValueError: One of `hosts` is not `name` or `name:port`, or one of `origins` is not
            `scheme://host` or `scheme://host:port`.
    """
    names = ((name, port) for address, port in bound for name in _names(address))
    own = [each for each in names if HOST.fullmatch(each[0])]
    own_hosts = [f"{name}:{port}" for name, port in own] or [_bracketed(it) for it in LOOPBACK]
    is_local = all(is_loopback(address) for address, _ in bound)
    if hosts is None and not is_local:
        hosts = [ANY]
    own_origins = [
        _checked_origin(f"{scheme}://{name}:{port}")
        for name, port in own
        for scheme in ("http", "https")
    ]
    return HostCheck(
        hosts=_allowed(hosts or (), _checked_host, own_hosts),
        origins=_allowed(origins or (), _checked_origin, own_origins),
        allows_cors=allows_cors,
    )


def _allowed(
    given: Collection[str], check: Callable[[str], str], own: Iterable[str]
) -> frozenset[str] | None:
    checked = {check(each) for each in given if each != ANY}
    return None if ANY in given else frozenset(checked.union(own))


def _names(address: str) -> Iterator[str]:
    """Yield the values of `Host`, without a port, for a server bound to an address."""
    if address in _EVERY_ADDRESS or is_loopback(address):
        yield from map(_bracketed, LOOPBACK)
    if address not in _EVERY_ADDRESS:
        yield _bracketed(address.lower())


def _bracketed(name: str) -> str:
    return f"[{name}]" if name.count(":") > 1 and not name.startswith("[") else name


def _checked_host(text: str) -> str:
    host = _bracketed(text.lower())
    if HOST.fullmatch(host) is None:
        raise ValueError(f"hosts= takes name or name:port, not {text!r}")
    return host


def _checked_origin(text: str) -> str:
    """Return an origin as browsers send it: in lower case, without the scheme's default port."""
    page = _PAGE.fullmatch(text.lower())
    if page is not None:
        return page[0].removesuffix(f":{_DEFAULT_PORTS[page['scheme']]}")
    if _ORIGIN_OF_AN_APP.fullmatch(text) is None:
        raise ValueError(f"origins= takes scheme://host or scheme://host:port, not {text!r}")
    return text
