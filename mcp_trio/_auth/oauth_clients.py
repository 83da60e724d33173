"""The clients of an authorization server: their metadata, redirect URIs and secrets.

A client is known in one of three ways: the operator has registered it, it has registered itself
(RFC 7591), or its client id is the URL of its metadata document.

https://www.rfc-editor.org/rfc/rfc7591
https://datatracker.ietf.org/doc/draft-ietf-oauth-client-id-metadata-document/
"""

import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, cast
from urllib.parse import urlsplit

import msgspec

from mcp_trio._protocol.security import LOOPBACK

AuthMethod: TypeAlias = Literal["none", "client_secret_basic", "client_secret_post"]
"""How a client authenticates at the token endpoint, by the names of RFC 8414."""

AUTH_METHODS: Final[Sequence[AuthMethod]] = ("none", "client_secret_basic", "client_secret_post")

GrantType: TypeAlias = Literal["authorization_code", "refresh_token"]
GRANT_TYPES: Final[Sequence[GrantType]] = ("authorization_code", "refresh_token")

_URIS_MAX: Final = 20
_URI_CHARS_MAX: Final = 2000
_NAME_CHARS_MAX: Final = 80

# Schemes of applications have other names (RFC 8252, section 7.1). Some browsers run or open what
# follows one of these.
_SCHEMES_REJECTED: Final = frozenset(
    {"about", "blob", "chrome", "content", "data", "file", "filesystem", "ftp", "intent"}
    | {"javascript", "mailto", "resource", "vbscript", "view-source", "ws", "wss"}
)
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*")
_URI: Final = re.compile(r"[!$%&'()*+,./0-9:;=?@A-Z\[\]_a-z~-]+")

# Characters that are not shown, or change the direction of the text around them.
_HIDDEN: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]+"
)


class InvalidClientError(ValueError):
    """The metadata of a client are not valid.

    Attributes:
        code: The error code of RFC 7591, section 3.2.2.
    """

    def __init__(self, text: str, code: str = "invalid_client_metadata") -> None:
        super().__init__(text)
        self.code = code


class OAuthClient(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A client of the authorization server.

    Attributes:
        client_id: The client id.
        redirect_uris: The redirect URIs. A loopback URI without a port stands for all ports (RFC
            8252, section 7.3); all others have to be equal to the one in a request.
        name: The name to display; the client has chosen it, unless the operator has registered it.
        secret_digest: The SHA-256 digest of the secret; None for a client without a secret.
        auth_method: How the client authenticates at the token endpoint.
        grant_types: The grants that the client may use.
        is_trusted: Whether the operator has registered the client.
        created_at: The Unix time of the registration.
    """

    client_id: str
    redirect_uris: Sequence[str] = ()
    name: str | None = None
    secret_digest: str | None = None
    auth_method: AuthMethod = "none"
    grant_types: Sequence[GrantType] = GRANT_TYPES
    is_trusted: bool = False
    created_at: float = 0

    def accepts_redirect(self, uri: str) -> bool:
        """Return whether a redirect URI is one of the client's."""
        if uri in self.redirect_uris:
            return True
        without_port = _without_loopback_port(uri)
        return without_port is not None and without_port in self.redirect_uris

    def has_secret(self, secret: str) -> bool:
        """Return whether this is the secret of the client, in a time that does not tell."""
        digest = self.secret_digest or ""
        return hmac.compare_digest(digest.encode(), digest_of(secret).encode())


def digest_of(secret: str) -> str:
    """Return the digest under which a secret of 256 random bits is stored."""
    return hashlib.sha256(secret.encode()).hexdigest()


def trusted_client(
    client_id: str,
    redirect_uris: Sequence[str],
    *,
    secret: str | None = None,
    name: str | None = None,
) -> OAuthClient:
    """Return a client that the operator registers, for `AuthorizationServer(clients=…)`.

    Args:
        client_id: The client id, of visible ASCII characters.
        redirect_uris: The redirect URIs.
        secret: The secret of a client that can keep one; it is not kept, only its digest.
        name: The name to display; by default the client id.

    Raises:
        ValueError: The client id or a redirect URI is not valid.
    """
    if not re.fullmatch(r"[!-~]+", client_id):
        raise ValueError(f"a client id has visible ASCII characters only: not {client_id!r}")
    return OAuthClient(
        client_id=client_id,
        redirect_uris=checked_redirect_uris(redirect_uris),
        name=name or client_id,
        secret_digest=None if secret is None else digest_of(secret),
        auth_method="none" if secret is None else "client_secret_basic",
        is_trusted=True,
    )


def checked_redirect_uris(uris: Any) -> list[str]:
    """Return redirect URIs that clients may register.

    Raises:
        InvalidClientError: There are none or too many; or one is neither https, nor http on this
            machine, nor of an application's own scheme, or has a fragment or a user name.
    """
    code = "invalid_redirect_uri"
    if not isinstance(uris, list | tuple) or not 0 < len(cast("Sequence[Any]", uris)) <= _URIS_MAX:
        raise InvalidClientError(f"redirect_uris is a list of 1 to {_URIS_MAX} URIs", code)
    checked: list[str] = []
    for uri in cast("Sequence[Any]", uris):
        if not isinstance(uri, str) or not _is_redirect_uri(uri):
            raise InvalidClientError(
                f"{str(uri)[:200]!r} is no redirect URI: it has to be https, http on this machine,"
                " or have the scheme of an application, without a fragment",
                code,
            )
        checked.append(uri)
    return checked


def _is_redirect_uri(uri: str) -> bool:
    if len(uri) > _URI_CHARS_MAX or not _URI.fullmatch(uri):
        return False
    try:
        parts = urlsplit(uri)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return False
    if "@" in parts.netloc or not _SCHEME.fullmatch(parts.scheme):
        return False
    if parts.scheme == "https":
        return bool(host)
    if parts.scheme == "http":
        return host in LOOPBACK
    return parts.scheme not in _SCHEMES_REJECTED and uri.startswith(f"{parts.scheme}:/")


def is_loopback_redirect(uri: str) -> bool:
    """Return whether a redirect URI leads to a program on the user's machine."""
    parts = urlsplit(uri)
    return parts.scheme == "http" and parts.hostname in LOOPBACK


def _without_loopback_port(uri: str) -> str | None:
    """Return a loopback URI without its port; None if it is another URI."""
    if not _is_redirect_uri(uri) or not is_loopback_redirect(uri):
        return None
    parts = urlsplit(uri)
    if parts.port is None:
        return None
    return parts._replace(netloc=parts.netloc.rpartition(":")[0]).geturl()


def shown_name(text: Any) -> str | None:
    """Return a name that a client has chosen, as it is displayed: short, and as plain text."""
    if not isinstance(text, str):
        return None
    words = " ".join(_HIDDEN.sub(" ", text).split())
    return f"{words[:_NAME_CHARS_MAX]}…" if len(words) > _NAME_CHARS_MAX else words or None


def _grant_types(metadata: Mapping[str, Any]) -> list[GrantType]:
    asked = metadata.get("grant_types", ["authorization_code"])
    if not isinstance(asked, list) or "authorization_code" not in asked:
        raise InvalidClientError("grant_types is a list that has authorization_code")
    return [each for each in GRANT_TYPES if each in asked]


def registered_client(
    metadata: Any, *, client_id: str, secret: str, now: float
) -> tuple[OAuthClient, dict[str, Any]]:
    """Return a client that registers itself, and the response to it (RFC 7591).

    Args:
        metadata: The body of the request.
        client_id: A new client id.
        secret: A new secret, for a client that asks for one.
        now: The Unix time.

    Raises:
        InvalidClientError: The metadata are not valid.
    """
    if not isinstance(metadata, dict):
        raise InvalidClientError("the metadata of a client are a JSON object")
    members = cast("dict[str, Any]", metadata)
    method = members.get("token_endpoint_auth_method", "client_secret_basic")
    if method not in AUTH_METHODS:
        raise InvalidClientError(
            f"token_endpoint_auth_method has to be one of {', '.join(AUTH_METHODS)}"
        )
    response_types = members.get("response_types", ["code"])
    if response_types != ["code"]:
        raise InvalidClientError('response_types has to be ["code"]')
    has_secret = method != "none"
    client = OAuthClient(
        client_id=client_id,
        redirect_uris=checked_redirect_uris(members.get("redirect_uris")),
        name=shown_name(members.get("client_name")),
        secret_digest=digest_of(secret) if has_secret else None,
        auth_method=method,
        grant_types=_grant_types(members),
        created_at=now,
    )
    response = {
        "client_id": client_id,
        "client_id_issued_at": int(now),
        "redirect_uris": client.redirect_uris,
        "grant_types": client.grant_types,
        "response_types": ["code"],
        "token_endpoint_auth_method": method,
    }
    if client.name is not None:
        response["client_name"] = client.name
    if has_secret:
        response |= {"client_secret": secret, "client_secret_expires_at": 0}
    return client, response


# Metadata documents -------------------------------------------------------------------------------


def is_document_url(client_id: str) -> bool:
    """Return whether a client id is the URL of a metadata document.

    It is an https URL with a path, and without a fragment, a user name and dot segments.
    """
    if not client_id.startswith("https://") or len(client_id) > _URI_CHARS_MAX:
        return False
    try:
        parts = urlsplit(client_id)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return False
    segments = parts.path.split("/")
    return (
        _URI.fullmatch(client_id) is not None
        and bool(host)
        and "@" not in parts.netloc
        and parts.path not in {"", "/"}
        and not {".", "..", "%2e", "%2e%2e"}.intersection(each.lower() for each in segments)
    )


def client_of_document(url: str, document: Any) -> OAuthClient:
    """Return the client that a metadata document describes.

    Args:
        url: The client id, which is the URL of the document.
        document: The decoded document.

    Raises:
        InvalidClientError: The document is not valid, is of another client, or needs a secret,
            which a public document cannot have.
    """
    if not isinstance(document, dict):
        raise InvalidClientError("the client's metadata document is not a JSON object")
    members = cast("dict[str, Any]", document)
    if members.get("client_id") != url:
        raise InvalidClientError("the client_id in the client's metadata document is another one")
    if members.get("token_endpoint_auth_method", "none") != "none":
        raise InvalidClientError(
            'token_endpoint_auth_method in the client\'s metadata document is not "none"'
        )
    if "client_secret" in members:
        raise InvalidClientError("the client's metadata document has a client_secret")
    return OAuthClient(
        client_id=url,
        redirect_uris=checked_redirect_uris(members.get("redirect_uris")),
        name=shown_name(members.get("client_name")),
        # Refresh tokens are rotated, so that a client without a secret may have them.
        grant_types=_grant_types({"grant_types": list(GRANT_TYPES), **members}),
    )
