"""The metadata documents of OAuth, and where they are."""

import msgspec
import pytest

from mcp_trio._auth.metadata import (
    AuthorizationServerMetadata,
    ProtectedResourceMetadata,
    authorization_server_urls,
    protected_resource_urls,
)


@pytest.mark.parametrize(
    ("resource", "expected"),
    [
        (
            "https://h:1/mcp",
            [
                "https://h:1/.well-known/oauth-protected-resource/mcp",
                "https://h:1/.well-known/oauth-protected-resource",
            ],
        ),
        ("https://h", ["https://h/.well-known/oauth-protected-resource"]),
        ("https://h/", ["https://h/.well-known/oauth-protected-resource"]),
        (
            "https://h/a/b?c=d",
            [
                "https://h/.well-known/oauth-protected-resource/a/b?c=d",
                "https://h/.well-known/oauth-protected-resource",
            ],
        ),
    ],
)
@pytest.mark.requirement("AUTH-18", "TRAP-119")
def test_the_urls_of_protected_resource_metadata(resource, expected):
    assert protected_resource_urls(resource) == expected


@pytest.mark.parametrize(
    ("issuer", "expected"),
    [
        (
            "https://h",
            [
                "https://h/.well-known/oauth-authorization-server",
                "https://h/.well-known/openid-configuration",
            ],
        ),
        (
            "https://h/t/1",
            [
                "https://h/.well-known/oauth-authorization-server/t/1",
                "https://h/.well-known/openid-configuration/t/1",
                "https://h/t/1/.well-known/openid-configuration",
            ],
        ),
    ],
)
@pytest.mark.requirement("AUTH-33", "TRAP-119")
def test_the_urls_of_authorization_server_metadata(issuer, expected):
    assert authorization_server_urls(issuer) == expected
    assert authorization_server_urls(f"{issuer}/") == expected


def test_a_document_has_only_the_members_that_are_given():
    metadata = ProtectedResourceMetadata(
        resource="https://h/mcp", authorization_servers=["https://a"]
    )
    assert msgspec.json.decode(msgspec.json.encode(metadata)) == {
        "resource": "https://h/mcp",
        "authorization_servers": ["https://a"],
    }


def test_unknown_members_and_null_are_accepted():
    document = b'{"issuer": "https://a", "jwks_uri": null, "x": 1}'
    metadata = msgspec.json.decode(document, type=AuthorizationServerMetadata)
    assert metadata == AuthorizationServerMetadata(issuer="https://a")
