"""The metadata documents of OAuth, and the well-known URLs at which they are.

A protected server names its authorization servers in the *protected resource metadata*. An
authorization server names its endpoints in the *authorization server metadata* (RFC 8414), or in
the document of OpenID Connect Discovery, which has the same members.

https://www.rfc-editor.org/rfc/rfc9728
https://www.rfc-editor.org/rfc/rfc8414
https://openid.net/specs/openid-connect-discovery-1_0.html
"""

from typing import Final
from urllib.parse import urlsplit

import msgspec

PROTECTED_RESOURCE: Final = "/.well-known/oauth-protected-resource"
AUTHORIZATION_SERVER: Final = "/.well-known/oauth-authorization-server"
OPENID_CONFIGURATION: Final = "/.well-known/openid-configuration"


class ProtectedResourceMetadata(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The protected resource metadata of a server (RFC 9728, section 2).

    Members that neither our clients nor our servers use are left out.

    Attributes:
        resource: The identifier of the server: its URL, as clients use it.
        authorization_servers: The issuers whose tokens the server accepts.
        scopes_supported: Scopes that clients may ask for; there may be others.
        bearer_methods_supported: How a token may be sent: "header", "body" or "query".
        tls_client_certificate_bound_access_tokens: Whether tokens may be bound to certificates.
        dpop_bound_access_tokens_required: Whether all tokens must be bound to a key by DPoP.
    """

    resource: str
    authorization_servers: list[str] | None = None
    scopes_supported: list[str] | None = None
    bearer_methods_supported: list[str] | None = None
    resource_name: str | None = None
    resource_documentation: str | None = None
    tls_client_certificate_bound_access_tokens: bool | None = None
    dpop_signing_alg_values_supported: list[str] | None = None
    dpop_bound_access_tokens_required: bool | None = None


class AuthorizationServerMetadata(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The metadata of an authorization server (RFC 8414, section 2, and OpenID Connect Discovery).

    Only the issuer is required, because a server that verifies tokens needs `jwks_uri` or
    `introspection_endpoint` alone. A client checks that it has the endpoints that it needs. Members
    that neither our clients nor our servers use are left out.

    Attributes:
        issuer: The identifier of the authorization server, to be compared as a plain string.
        registration_endpoint: The URL of dynamic client registration (RFC 7591).
        grant_types_supported: The values of `grant_type`; absent: "authorization_code" and
            "implicit".
        token_endpoint_auth_methods_supported: How a client may authenticate at the token endpoint;
            absent: "client_secret_basic".
        introspection_endpoint: The URL at which tokens are looked up (RFC 7662).
        authorization_response_iss_parameter_supported: Whether responses have `iss` (RFC 9207).
        client_id_metadata_document_supported: Whether a client id may be the URL of a document.
        userinfo_endpoint: The URL of claims about the user (OpenID Connect).
    """

    issuer: str
    authorization_endpoint: str | None = None
    token_endpoint: str | None = None
    jwks_uri: str | None = None
    registration_endpoint: str | None = None
    scopes_supported: list[str] | None = None
    response_types_supported: list[str] | None = None
    response_modes_supported: list[str] | None = None
    grant_types_supported: list[str] | None = None
    token_endpoint_auth_methods_supported: list[str] | None = None
    revocation_endpoint: str | None = None
    revocation_endpoint_auth_methods_supported: list[str] | None = None
    introspection_endpoint: str | None = None
    code_challenge_methods_supported: list[str] | None = None
    authorization_response_iss_parameter_supported: bool | None = None
    client_id_metadata_document_supported: bool | None = None
    authorization_grant_profiles_supported: list[str] | None = None
    userinfo_endpoint: str | None = None


def protected_resource_urls(resource: str) -> list[str]:
    """Return the URLs at which the metadata of a resource may be, in the order to try them.

    The well-known path is inserted before the path and query of the resource (RFC 9728, section
    3.1). The specification of MCP allows the root of the host as well.
    """
    origin, path, query = _split(resource)
    root = f"{origin}{PROTECTED_RESOURCE}"
    return list(dict.fromkeys((f"{root}{'' if path == '/' else path}{query}", root)))


def authorization_server_urls(issuer: str) -> list[str]:
    """Return the URLs at which the metadata of an issuer may be, in the order to try them.

    https://modelcontextprotocol.io/specification/2026-07-28/basic/authorization#authorization-server-metadata-discovery
    """
    origin, path, _ = _split(issuer)
    path = path.removesuffix("/")
    urls = (
        f"{origin}{AUTHORIZATION_SERVER}{path}",
        f"{origin}{OPENID_CONFIGURATION}{path}",
        f"{origin}{path}{OPENID_CONFIGURATION}",
    )
    return list(dict.fromkeys(urls))


def _split(url: str) -> tuple[str, str, str]:
    """Return the origin, the path, and the query with its question mark."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}", parts.path, f"?{parts.query}" if parts.query else ""
