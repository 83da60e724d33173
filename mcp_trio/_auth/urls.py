"""URLs of authorization: checks of those that a client gets from servers, and their parts.

A server, or its metadata, could name any URL: one of a service on the user's own computer or
network, or one that is no web page at all. So a URL is used only if it is an http(s) URL without a
user or a fragment, is encrypted, and leads no closer to this computer than the server's own URL.

https://modelcontextprotocol.io/docs/2026-07-28/tutorials/security/security_best_practices#server-side-request-forgery-ssrf
"""

import ipaddress
import re
from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import SplitResult, quote, urlencode, urlsplit

# The characters that RFC 3986 allows in a URL.
_URL_CHARS: Final = re.compile(r"[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]+")
# The same without `$'();`, which are special to shells, and which no URL of an endpoint needs.
_URL_CHARS_IN_SHELLS: Final = re.compile(r"[A-Za-z0-9._~:/?#\[\]@!&*+,=%-]+")
_URL_CHARS_MAX: Final = 2048
_PORTS: Final = {"http": 80, "https": 443}

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


class UrlError(Exception):
    """A URL must not be used; the text names it and the reason."""


def split_url(url: str, name: str) -> SplitResult:
    """Return the parts of an http(s) URL.

    Raises:
        UrlError: It is not such a URL, or has a user or a fragment.
    """
    shown = repr(url[:200])
    if len(url) > _URL_CHARS_MAX or not _URL_CHARS.fullmatch(url):
        raise UrlError(f"{name} is not a URL: {shown}")
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise UrlError(f"{name} is not a URL: {shown}") from None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise UrlError(f"{name} is not an http(s) URL: {shown}")
    if "@" in parts.netloc or "#" in url:
        raise UrlError(f"{name} has a user or a fragment: {shown}")
    return parts


def check_url(url: str, name: str, *, server: str, trusted_hosts: Collection[str]) -> None:
    """Check a URL that a server named; `name` is for the text of the error.

    Names of hosts are not resolved.

    Raises:
        UrlError: `split_url` rejects it, it is not encrypted, or it leads to an address of this
            computer or of a private network, while the server is elsewhere.
    """
    parts = split_url(url, name)
    host, server_host = parts.hostname or "", urlsplit(server).hostname or ""
    if host in trusted_hosts:
        return
    is_local = is_loopback_host(host) and is_loopback_host(server_host)
    if parts.scheme == "http" and not (origin_of(url) == origin_of(server) or is_local):
        raise UrlError(
            f"{name} is not encrypted: {url!r} does not begin with https://; trusted_hosts= allows"
            " that"
        )
    if host != server_host and closeness(host) > closeness(server_host):
        raise UrlError(
            f"{name} leads to this computer or a private network, unlike the server: {url!r};"
            " trusted_hosts= allows that"
        )


def check_authorization_url(url: str) -> None:
    """Check a URL that a browser is to open: a program that starts one could use a shell.

    Raises:
        UrlError: It has a character of `$'();`, with which a shell could run a command.
    """
    if not _URL_CHARS_IN_SHELLS.fullmatch(url):
        raise UrlError(f"the authorization_endpoint has unusual characters: {url!r}")


def literal_address(host: str) -> IPAddress | None:
    """Return the address that a host is written as; None for a name."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return address if mapped is None else mapped


def closeness(host: str) -> int:
    """Return how close the address of a host is: 0 public, 1 private, 2 this computer or link.

    A name is public, except `localhost`; see `closeness_of_address` for what it resolves to.
    """
    if is_loopback_host(host):
        return 2
    address = literal_address(host)
    if address is None:
        # Browsers and resolvers read such a name as an IPv4 address: `2130706433` is 127.0.0.1.
        return 2 if re.fullmatch(r"[0-9.]+|0[xX][0-9a-fA-F.xX]+", host) else 0
    return closeness_of_address(address)


def closeness_of_address(address: IPAddress) -> int:
    """Return how close an address is: 0 public, 1 private, 2 this computer or this link."""
    is_here = address.is_loopback or address.is_link_local or address.is_unspecified
    if is_here or address.is_multicast:
        return 2
    return 0 if address.is_global else 1


def is_loopback_host(host: str) -> bool:
    """Return whether a host is `localhost` or a loopback address."""
    address = literal_address(host)
    if address is not None:
        return address.is_loopback
    return host == "localhost" or host.endswith(".localhost")


def origin_of(url: str) -> str:
    """Return the scheme, host and port of a URL."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2].lower()}"


def without_user(url: str) -> str:
    """Return the URL of a server as requests have it, but without its user, password and fragment.

    Requests have no default port, and other characters than ASCII are encoded.

    Raises:
        ValueError: It is not an HTTP URL.
    """
    from mcp_trio._transports.http_client_requests import parsed_url

    return str(parsed_url(url).copy_with(userinfo=b"", fragment=None))


def with_query(url: str, parameters: Mapping[str, str]) -> str:
    """Return a URL with more parameters at the end of its query."""
    separator = "" if url.endswith(("?", "&")) else "&" if "?" in url else "?"
    return f"{url}{separator}{urlencode(parameters, quote_via=quote)}"


def canonical_url(url: str) -> str:
    """Return a server's URL as its identifier: no fragment, query or user, no slash at the end.

    https://modelcontextprotocol.io/specification/2026-07-28/basic/authorization#canonical-server-uri
    """
    return f"{origin_of(url)}{urlsplit(url).path.rstrip('/')}"


def is_resource_of(resource: str, server: str) -> bool:
    """Return whether a token for `resource` is one for the server at the URL `server`.

    The resource has to be the URL of the server, or a prefix of it that has whole segments of its
    path.
    """
    try:
        parts, of_server = split_url(resource, "the resource"), urlsplit(server)
        if authority_of(parts) != authority_of(of_server):
            return False
    except (UrlError, ValueError):
        return False
    if parts.query and parts.query != of_server.query:
        return False
    return f"{of_server.path.rstrip('/')}/".startswith(f"{parts.path.rstrip('/')}/")


def authority_of(parts: SplitResult) -> tuple[str, str, int | None]:
    """Return the scheme, the host and the port of a URL; the port may be the scheme's default.

    Raises:
        ValueError: The port is not a number, or is too large.
    """
    return parts.scheme, parts.hostname or "", parts.port or _PORTS.get(parts.scheme)
