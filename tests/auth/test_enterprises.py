"""Assertions of an enterprise (ID-JAG) at an authorization server."""

import base64
import functools
from urllib.parse import parse_qs

import httpx2
import pytest
from joserfc import jwk

from mcp_trio import Client, Context, Server
from mcp_trio.auth import (
    AuthorizationServer,
    Enterprise,
    EnterpriseManaged,
    ResourceServer,
    trusted_client,
)
from tests.auth.authorizing import CALLBACK, ISSUER, RESOURCE, Site, alice, claims_of
from tests.auth.conftest import ISSUER as PROVIDER
from tests.auth.conftest import NOW
from tests.clocks import Clock

JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
ID_JAG = "urn:ietf:params:oauth:token-type:id-jag"
TYPE = "oauth-id-jag+jwt"
DEEP = b"[" * 2500 + b"]" * 2500


def site_of(issuer, **options):
    desk = trusted_client("desk", [CALLBACK], secret="client-secret-1")
    other = trusted_client("other", [CALLBACK], secret="client-secret-2")
    public = trusted_client("public", [CALLBACK])
    enterprise = Enterprise(issuer=PROVIDER, http_client=issuer.client, **options)
    return Site.of(enterprises=[enterprise], clients=[desk, other, public], now=Clock(NOW))


@pytest.fixture
def site(issuer):
    return site_of(issuer)


def assertion(issuer, **claims):
    claims = {
        "aud": ISSUER,
        "sub": "ada",
        "client_id": "desk",
        "resource": RESOURCE,
        "jti": "assertion-1",
        "exp": NOW + 300,
        "scope": "read write",
        **claims,
    }
    return issuer.token(**{"typ": TYPE, **claims})


async def exchange(site, token, client="desk", secret="client-secret-1", **form):
    form = {
        "grant_type": JWT_BEARER,
        "assertion": token,
        "client_id": client,
        "client_secret": secret,
        **form,
    }
    return await site.post("/token", {name: it for name, it in form.items() if it is not None})


@pytest.mark.requirement("AUTHX-05")
async def test_an_assertion_is_exchanged_for_a_token(site, issuer):
    reply = await exchange(site, assertion(issuer), scope="read tool")
    assert reply.status == 200, reply.body
    assert reply.json["scope"] == "read"  # what the enterprise allows, and the client asks for
    assert "refresh_token" not in reply.json
    claims = claims_of(reply.json["access_token"])
    assert claims["sub"] == f"{PROVIDER}|ada"
    assert (claims["aud"], claims["client_id"]) == (RESOURCE, "desk")
    auth = await site.server.verify(reply.json["access_token"])
    assert auth.scopes == {"read"}
    metadata = (await site.send("GET", "/.well-known/oauth-authorization-server")).json
    assert JWT_BEARER in metadata["grant_types_supported"]
    assert metadata["authorization_grant_profiles_supported"] == [
        "urn:ietf:params:oauth:grant-profile:id-jag"
    ]


async def test_an_enterprise_that_restricts_no_scopes(site, issuer):
    reply = await exchange(site, assertion(issuer, scope=None))
    assert reply.json["scope"] == "read tool write"


async def test_an_assertion_without_the_claim_that_names_the_user_is_rejected(issuer):
    site = site_of(issuer, subject_of=lambda claims: claims["email"])
    reply = await exchange(site, assertion(issuer))
    assert reply.problem == (400, "invalid_grant")
    assert "the assertion has no claim 'email'" in reply.text


async def test_an_assertion_that_is_not_utf8_is_rejected(site):
    parts = (b'{"alg":"ES256"}', b'{"iss":"\xff"}', bytes(64))
    token = ".".join(base64.urlsafe_b64encode(each).decode().rstrip("=") for each in parts)
    assert (await exchange(site, token)).problem == (400, "invalid_grant")


@pytest.mark.requirement("AUTHX-05")
async def test_an_assertion_is_used_once(site, issuer):
    token = assertion(issuer)
    assert (await exchange(site, token, resource=f"{ISSUER}/x")).problem[1] == "invalid_target"
    assert (await exchange(site, token)).status == 200
    for again in (token, assertion(issuer, scope="read")):  # the same `jti`
        reply = await exchange(site, again)
        assert reply.problem == (400, "invalid_grant")
        assert "used before" in reply.text
    assert (await exchange(site, assertion(issuer, jti="assertion-2"))).status == 200


@pytest.mark.requirement("AUTHX-05")
@pytest.mark.parametrize(
    ("claims", "text"),
    [
        ({"typ": "at+jwt"}, "is not oauth-id-jag+jwt"),
        ({"typ": None}, "is not oauth-id-jag+jwt"),
        ({"iss": "https://other.example"}, "is not known here"),
        ({"iss": f"{PROVIDER}/"}, "is not known here"),
        ({"iss": None}, "is not known here"),
        ({"aud": RESOURCE}, "another authorization server"),
        ({"aud": [ISSUER, "https://other.example"]}, "another authorization server"),
        ({"client_id": "other"}, "another client"),
        ({"resource": "https://other.example/mcp"}, "no tokens are issued here"),
        ({"resource": None}, "resource"),
        ({"client_id": None}, "client_id"),
        ({"jti": None}, "jti"),
        ({"sub": None}, "sub"),
        ({"sub": 42}, "sub"),
        ({"exp": None}, "exp"),
        ({"iat": None}, "iat"),
        ({"exp": NOW - 60}, "has expired"),
        ({"exp": NOW + 3601}, "more than an hour"),
        ({"iat": NOW + 61}, "not valid yet"),
        ({"nbf": NOW + 61}, "not valid yet"),
        ({"nbf": "later"}, "nbf"),
        ({"key": jwk.ECKey.generate_key("P-256")}, "no key of the enterprise"),
        ({"key_id": "unknown", "key": jwk.ECKey.generate_key("P-256")}, "no key of the"),
    ],
)
async def test_an_invalid_assertion_is_rejected(site, issuer, claims, text):
    reply = await exchange(site, assertion(issuer, **claims))
    assert reply.status == 400
    assert reply.json["error"] in {"invalid_grant", "invalid_target"}
    assert text in reply.json["error_description"]


@pytest.mark.parametrize("token", ["x", "a.b.c", "e30.e30.", None, "ö.ö.ö"])
async def test_what_is_no_token_is_rejected(site, token):
    assert (await exchange(site, token)).status == 400


@pytest.mark.parametrize(
    "parts",
    [
        (b'{"alg":"ES256","deep":%b}' % DEEP, b'{"iss":"x"}'),
        (b'{"alg":"ES256"}', b'{"iss":"x","deep":%b}' % DEEP),
    ],
)
async def test_an_assertion_that_is_nested_deeply_is_rejected(site, parts):
    token = ".".join(
        base64.urlsafe_b64encode(it).decode().rstrip("=") for it in (*parts, bytes(64))
    )
    assert (await exchange(site, token)).problem == (400, "invalid_grant")


async def test_only_clients_of_the_operator_with_a_secret_use_assertions(site, issuer):
    token = assertion(issuer, client_id="public")
    reply = await exchange(site, token, client="public", secret=None)
    assert reply.problem == (400, "unauthorized_client")
    metadata = {"grant_types": ["authorization_code", JWT_BEARER]}
    registered = (
        await site.register(token_endpoint_auth_method="client_secret_post", **metadata)
    ).json
    assert registered["grant_types"] == ["authorization_code"]
    client, secret = registered["client_id"], registered["client_secret"]
    reply = await exchange(site, assertion(issuer, client_id=client), client, secret)
    assert reply.problem == (400, "unauthorized_client")
    reply = await exchange(site, assertion(issuer), secret="client-secret-2")
    assert reply.problem == (401, "invalid_client")


async def test_without_an_enterprise_there_is_no_such_grant(issuer):
    site = Site.of(clients=[trusted_client("desk", [CALLBACK], secret="client-secret-1")])
    reply = await exchange(site, assertion(issuer))
    assert reply.problem == (400, "unsupported_grant_type")
    metadata = (await site.send("GET", "/.well-known/oauth-authorization-server")).json
    assert metadata["grant_types_supported"] == ["authorization_code", "refresh_token"]
    assert "authorization_grant_profiles_supported" not in metadata


async def test_a_function_names_or_rejects_the_user(issuer):
    site = site_of(issuer, subject_of=lambda claims: claims.get("email"))
    reply = await exchange(site, assertion(issuer, email="ada@example.org"))
    assert claims_of(reply.json["access_token"])["sub"] == "ada@example.org"
    for number, name in (("2", None), ("3", "")):
        reply = await exchange(site, assertion(issuer, jti=number, email=name))
        assert "the user may not use this server" in reply.text
    with pytest.raises(TypeError, match="subject_of= has to return a string or None, not int"):
        await exchange(site, assertion(issuer, jti="4", email=42))


async def test_an_enterprise_that_is_away_is_no_fault_of_the_client(site, issuer):
    issuer.is_away()
    assert (await exchange(site, assertion(issuer))).problem == (503, "temporarily_unavailable")


@pytest.mark.requirement("AUTHX-04", "AUTHX-05")
async def test_a_client_whose_enterprise_manages_access_uses_a_server(nursery, issuer):
    """From the ID token of a user, over the enterprise's provider, to a call of a tool."""
    desk = trusted_client("desk", [CALLBACK], secret="client-secret-1")
    enterprise = Enterprise(issuer=PROVIDER, http_client=issuer.client)
    authorization = AuthorizationServer(
        login=alice, enterprises=[enterprise], clients=[desk], now=Clock(NOW)
    )
    server = Server("notes", auth=ResourceServer(authorization, now=authorization.now))

    @server.tool(scopes={"notes"})
    async def whoami(*, ctx: Context) -> str:
        return f"{ctx.auth.subject} through {ctx.auth.client}: {' '.join(ctx.auth.scopes)}"

    def issue(request):
        form = {name: value for name, (value,) in parse_qs(request.content.decode()).items()}
        assert form["subject_token"] == "id-token-1"
        token = assertion(
            issuer,
            aud=form["audience"],
            resource=form["resource"],
            scope=form["scope"],
        )
        issued = {"access_token": token, "issued_token_type": ID_JAG, "token_type": "N_A"}
        return httpx2.Response(200, json=issued)

    url = await nursery.start(functools.partial(server.serve_http, port=0))
    mounts = {"https://provider.example": httpx2.MockTransport(issue)}
    credentials = EnterpriseManaged(
        client_id="desk",
        client_secret="client-secret-1",
        id_token="id-token-1",
        provider_token_endpoint="https://provider.example/token",
        provider_client_id="desk-at-provider",
    )
    async with (
        httpx2.AsyncClient(mounts=mounts) as http,
        Client(url, auth=credentials, http=http) as client,
    ):
        assert (await client.call_tool("whoami")).data == (f"{PROVIDER}|ada through desk: notes")
    nursery.cancel_scope.cancel()
