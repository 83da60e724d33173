"""The endpoints of an authorization server."""

import base64
import json
import os
import sqlite3
import stat
import subprocess
import sys

import pytest
import trio
from joserfc import jwt
from joserfc.jwk import KeySet

from mcp_trio._auth.authorization_server import RATES
from mcp_trio.auth import (
    AuthorizationServer,
    DevelopmentLogin,
    HttpRequest,
    HttpResponse,
    InvalidTokenError,
    Rate,
    SqliteStorage,
    trusted_client,
)
from tests.auth.authorizing import (
    CALLBACK,
    CHALLENGE,
    ISSUER,
    RESOURCE,
    STARTED,
    VERIFIER,
    Clock,
    Site,
    alice,
    claims_of,
)


@pytest.fixture
def site():
    return Site.of()


# The flow -----------------------------------------------------------------------------------------


@pytest.mark.requirement("AUTH-76")
async def test_a_client_gets_tokens_that_the_published_keys_verify(site):
    client_id = await site.client_id()
    page = await site.authorize(client_id, scope="read tool other")
    decided = await site.decide(page)
    url, parameters = decided.location
    assert (decided.status, url) == (303, CALLBACK)
    code = parameters.pop("code")
    assert parameters == {"state": "s t&a=te", "iss": ISSUER}
    reply = await site.redeem(client_id, code)
    assert reply.status == 200
    assert reply.headers["cache-control"] == "no-store"
    assert reply.headers["content-type"] == "application/json"
    tokens = reply.json
    assert set(tokens) == {"access_token", "token_type", "expires_in", "scope", "refresh_token"}
    assert (tokens["token_type"], tokens["expires_in"]) == ("Bearer", 900)
    assert tokens["scope"] == "read tool"
    keys = KeySet.import_key_set((await site.send("GET", "/jwks")).json)
    assert "d" not in (await site.send("GET", "/jwks")).json["keys"][0]
    token = jwt.decode(tokens["access_token"], keys, algorithms=["ES256"])
    assert token.header["typ"] == "at+jwt"
    unique = token.claims.pop("jti"), token.claims.pop("grant_id")
    assert all(unique)
    assert token.claims == {
        "iss": ISSUER,
        "sub": "alice",
        "aud": RESOURCE,
        "client_id": client_id,
        "scope": "read tool",
        "iat": 1_000_000,
        "exp": 1_000_900,
    }


@pytest.mark.requirement("AUTH-26", "AUTH-74", "AUTH-75")
async def test_the_metadata_name_endpoints_and_features(site):
    reply = await site.send("GET", "/.well-known/oauth-authorization-server")
    assert reply.status == 200
    assert (await site.send("GET", "/.well-known/openid-configuration")).json == reply.json
    assert reply.json == {
        "issuer": ISSUER,
        "authorization_endpoint": f"{ISSUER}/authorize",
        "token_endpoint": f"{ISSUER}/token",
        "jwks_uri": f"{ISSUER}/jwks",
        "registration_endpoint": f"{ISSUER}/register",
        "scopes_supported": ["read", "tool", "write"],
        "response_types_supported": ["code"],
        "response_modes_supported": ["query"],
        "grant_types_supported": ["authorization_code", "refresh_token"],
        "token_endpoint_auth_methods_supported": [
            "none",
            "client_secret_basic",
            "client_secret_post",
        ],
        "revocation_endpoint": f"{ISSUER}/revoke",
        "revocation_endpoint_auth_methods_supported": [
            "none",
            "client_secret_basic",
            "client_secret_post",
        ],
        "code_challenge_methods_supported": ["S256"],
        "authorization_response_iss_parameter_supported": True,
        "client_id_metadata_document_supported": True,
    }


async def test_without_scope_and_resource_a_client_gets_all_scopes_for_the_server(site):
    client_id = await site.client_id()
    tokens = await site.tokens(client_id, scope=None, resource=None)
    assert tokens["scope"] == "read tool write"
    assert claims_of(tokens["access_token"])["aud"] == RESOURCE


@pytest.mark.parametrize("way", ["basic", "post"])
async def test_a_client_with_a_secret_has_to_send_it(site, way):
    reply = await site.register(token_endpoint_auth_method=f"client_secret_{way}")
    registered = reply.json
    client_id, secret = registered["client_id"], registered["client_secret"]
    assert registered["client_secret_expires_at"] == 0
    code = await site.code(client_id)
    assert (await site.redeem(client_id, code)).problem == (401, "invalid_client")
    wrong = await site.redeem(client_id, code, client_secret="wrong")
    assert wrong.problem == (401, "invalid_client")
    form = {"grant_type": "authorization_code", "code": code, "code_verifier": VERIFIER}
    if way == "post":
        reply = await site.post("/token", {**form, "client_id": client_id, "client_secret": secret})
    else:
        basic = base64.b64encode(f"{client_id}:{secret}".encode()).decode()
        bad = await site.post("/token", form, authorization="Basic eHg6eQ==")
        assert (bad.problem, bad.headers["www-authenticate"]) == (
            (401, "invalid_client"),
            'Basic realm="token"',
        )
        both = await site.post(
            "/token", {**form, "client_secret": secret}, authorization=f"Basic {basic}"
        )
        assert both.problem == (400, "invalid_request")
        reply = await site.post("/token", form, authorization=f"Basic {basic}")
    assert reply.status == 200


async def test_a_client_that_did_not_register_refresh_tokens_gets_none(site):
    client_id = await site.client_id(grant_types=["authorization_code"])
    tokens = await site.tokens(client_id)
    assert "refresh_token" not in tokens
    reply = await site.refresh(client_id, "x")
    assert reply.problem == (400, "unauthorized_client")
    site.clock.seconds += 899
    assert await site.is_alive(tokens["access_token"])
    site.clock.seconds += 2
    assert not await site.is_alive(tokens["access_token"])


async def test_a_refresh_token_gives_new_tokens_with_the_same_or_fewer_scopes(site):
    client_id = await site.client_id()
    first = await site.tokens(client_id, scope="read write")
    wide = await site.refresh(client_id, first["refresh_token"], scope="read tool")
    assert wide.problem == (400, "invalid_scope")
    other = await site.refresh(client_id, first["refresh_token"], resource="https://other.example")
    assert other.problem == (400, "invalid_target")
    site.clock.seconds += 29 * 86_400
    second = (await site.refresh(client_id, first["refresh_token"], scope="read")).json
    assert second["scope"] == "read"
    assert second["refresh_token"] != first["refresh_token"]
    site.clock.seconds += 29 * 86_400
    third = (await site.refresh(client_id, second["refresh_token"], resource=RESOURCE)).json
    assert third["scope"] == "read write"
    assert claims_of(third["access_token"])["iat"] == int(site.clock.seconds)
    site.clock.seconds += 31 * 86_400
    late = await site.refresh(client_id, third["refresh_token"])
    assert late.problem[0] in {400, 401}


@pytest.mark.requirement("AUTH-28")
async def test_a_user_logs_in_again_however_often_tokens_are_refreshed():
    site = Site.of(grant_seconds=3600, refresh_token_seconds=1800)
    client_id = await site.client_id()
    tokens = await site.tokens(client_id)
    for _ in range(3):
        site.clock.seconds += 1000
        tokens = (await site.refresh(client_id, tokens["refresh_token"])).json
    assert tokens["expires_in"] == 600
    claims = claims_of(tokens["access_token"])
    assert claims["exp"] == site.clock.seconds + 600
    site.clock.seconds += 601
    late = await site.refresh(client_id, tokens["refresh_token"])
    assert late.problem == (400, "invalid_grant")
    assert not await site.is_alive(tokens["access_token"])


@pytest.mark.requirement("AUTHX-27")
async def test_a_revoked_token_ends_its_grant(site):
    client_id = await site.client_id()
    for name in ("refresh_token", "access_token"):
        tokens = await site.tokens(client_id)
        other = await site.client_id()
        for sender, token in ((other, tokens[name]), (client_id, "unknown")):
            reply = await site.post("/revoke", {"client_id": sender, "token": token})
            assert reply.status == 200
            assert await site.is_alive(tokens["access_token"])
        reply = await site.post("/revoke", {"client_id": client_id, "token": tokens[name]})
        assert (reply.status, reply.body) == (200, b"")
        assert not await site.is_alive(tokens["access_token"])
        reply = await site.refresh(client_id, tokens["refresh_token"])
        assert reply.problem == (400, "invalid_grant")


async def test_keys_clients_and_grants_outlive_a_restart(tmp_path):
    clock, path = Clock(STARTED), tmp_path / "auth.sqlite"
    before = Site.of(storage=path, now=clock)
    client_id = await before.client_id()
    tokens = await before.tokens(client_id)
    keys = (await before.send("GET", "/jwks")).json
    before.server.storage.close()
    after = Site.of(storage=path, now=clock)
    assert (await after.send("GET", "/jwks")).json == keys
    assert (await after.refresh(client_id, tokens["refresh_token"])).status == 200
    after.server.storage.close()
    content = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert tokens["refresh_token"].encode() not in content
    assert tokens["access_token"].encode() not in content


async def published(site):
    """The ids of the published keys."""
    return [each["kid"] for each in (await site.send("GET", "/jwks")).json["keys"]]


async def signed_by(site, client_id):
    """The id of the key that signs a new token, and the token."""
    token = (await site.tokens(client_id))["access_token"]
    return json.loads(base64.urlsafe_b64decode(token.split(".")[0] + "=="))["kid"], token


@pytest.mark.requirement("AUTH-28", "AUTHX-28")
async def test_keys_are_replaced_and_stay_published_while_their_tokens_are_valid(tmp_path):
    clock, path = Clock(STARTED), tmp_path / "auth.sqlite"
    days = 86_400
    site = Site.of(storage=path, now=clock, key_seconds=30 * days)
    other = Site.of(storage=path, now=clock, key_seconds=30 * days)  # another process
    client_id = await site.client_id(redirect_uris=[CALLBACK], grant_types=["authorization_code"])
    (first,) = await published(site)
    clock.seconds += 30 * days - 1
    client_id = await site.client_id()
    assert (await signed_by(site, client_id))[0] == first
    assert await published(other) == [first]
    clock.seconds += 1
    assert await published(site) == [first, (second := (await published(site))[1])]
    assert (await signed_by(site, client_id))[0] == first  # the second is published first
    clock.seconds += 60
    assert await published(other) == [first, second]
    clock.seconds += 839
    key, last = await signed_by(other, client_id)
    assert key == first
    clock.seconds += 1
    assert (await signed_by(other, client_id))[0] == second
    clock.seconds += 898
    assert (await other.server.verify(last)).subject == "alice"
    clock.seconds += 62
    assert await published(site) == await published(other) == [second]
    for each in (site, other):
        each.server.storage.close()


async def test_keys_that_others_know_can_be_replaced_at_once(site):
    client_id = await site.client_id()
    tokens = await site.tokens(client_id)
    before = await published(site)
    await site.server.replace_keys()
    assert set(await published(site)).isdisjoint(before)
    with pytest.raises(InvalidTokenError, match="signed by no key"):
        await site.server.verify(tokens["access_token"])
    renewed = await site.refresh(client_id, tokens["refresh_token"])
    assert (await site.server.verify(renewed.json["access_token"])).subject == "alice"


async def test_processes_that_start_together_have_the_same_key(tmp_path, autojump_clock):
    sites = [Site.of(storage=tmp_path / "auth.sqlite") for _ in range(5)]
    found = []

    async def look(site):
        found.append(await published(site))

    async with trio.open_nursery() as nursery:
        for site in sites:
            nursery.start_soon(look, site)
    assert len(found) == 5
    assert found.count(found[0]) == 5
    for site in sites:
        site.server.storage.close()


def test_a_key_signs_for_longer_than_it_is_announced():
    with pytest.raises(ValueError, match="key_seconds"):
        AuthorizationServer(login=alice, key_seconds=60)


@pytest.mark.parametrize(
    ("path", "method", "allow"),
    [("/token", "GET", "POST"), ("/authorize", "PUT", "GET, POST"), ("/jwks", "POST", "GET")],
)
async def test_another_method_is_rejected(site, path, method, allow):
    reply = await site.send(method, path)
    assert (reply.status, reply.headers["allow"]) == (405, allow)


@pytest.mark.requirement("AUTH-29")  # users log in; a program has no account here
@pytest.mark.parametrize(
    ("form", "problem"),
    [
        ({"grant_type": "password"}, (400, "unsupported_grant_type")),
        ({"grant_type": "client_credentials"}, (400, "unsupported_grant_type")),
        ({}, (400, "invalid_request")),
        ({"grant_type": "authorization_code", "code": "x"}, (400, "invalid_request")),
        ({"grant_type": "refresh_token"}, (400, "invalid_request")),
        ({"grant_type": "refresh_token", "client_id": "unknown"}, (401, "invalid_client")),
        ({"grant_type": "refresh_token", "client_id": ""}, (401, "invalid_client")),
        ({"grant_type": "refresh_token", "client_secret": "x"}, (401, "invalid_client")),
    ],
)
async def test_malformed_token_requests_are_rejected(site, form, problem):
    client_id = await site.client_id()
    assert (await site.post("/token", {"client_id": client_id, **form})).problem == problem


@pytest.mark.parametrize(
    "value", ["Bearer x", "Basic x", "Basic \u00fc", "Basic eA==", "Basic /w=="]
)
async def test_malformed_credentials_of_a_client_are_rejected(site, value):
    reply = await site.post("/token", {"grant_type": "refresh_token"}, authorization=value)
    assert reply.problem == (401, "invalid_client")


async def test_bodies_that_are_no_form_are_rejected(site):
    reply = await site.send("POST", "/token", b"{}", content_type="application/json")
    assert reply.problem == (400, "invalid_request")
    form = "application/x-www-form-urlencoded"
    for body in (b"a=1&a=2", b"\xff", b"&".join(b"a%d=1" % number for number in range(60))):
        reply = await site.send("POST", "/token", body, content_type=form)
        assert reply.problem == (400, "invalid_request")


# Registration -------------------------------------------------------------------------------------


@pytest.mark.requirement("AUTH-43")
async def test_a_registration_is_answered_with_what_was_registered(site):
    reply = await site.register(client_name="  Bu\u202eoy \n 1", logo_uri="https://x.example/logo")
    assert reply.status == 201
    assert reply.headers["cache-control"] == "no-store"
    registered = reply.json
    assert registered.pop("client_id")
    assert registered == {
        "client_id_issued_at": 1_000_000,
        "client_name": "Bu oy 1",
        "redirect_uris": [CALLBACK],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
    }


@pytest.mark.parametrize(
    "uri",
    [
        *("https://app.example/cb?x=1", "http://127.0.0.1:8000/cb", "http://localhost/cb"),
        *("http://[::1]/cb", "cursor://auth/callback", "com.example.app:/callback"),
    ],
)
async def test_redirect_uris_of_the_web_this_machine_and_applications_are_accepted(site, uri):
    assert (await site.register(redirect_uris=[uri])).status == 201


@pytest.mark.parametrize(
    "uri",
    [
        *(
            "http://app.example/cb",
            "https://app.example/cb#x",
            "https://u@app.example/",
            "https:///",
        ),
        *("javascript:alert(1)", "javascript://%0aalert(1)", "JavaScript:/x", "data:text/html,x"),
        *("file:///etc/passwd", "//app.example/cb", "/cb", "", "https://app.example/\r\nX: y"),
        *("https://app.example:99999/", "http://127.0.0.1.evil.example/", "vbscript:/x", 5),
        *("https://[::1/", "urn:x", "view-source:/x", f"https://app.example/{'x' * 2000}"),
    ],
)
async def test_other_redirect_uris_are_rejected(site, uri):
    reply = await site.register(redirect_uris=[CALLBACK, uri])
    assert reply.problem == (400, "invalid_redirect_uri")


@pytest.mark.parametrize(
    ("metadata", "error"),
    [
        ({"redirect_uris": []}, "invalid_redirect_uri"),
        ({"redirect_uris": CALLBACK}, "invalid_redirect_uri"),
        ({"redirect_uris": [CALLBACK] * 21}, "invalid_redirect_uri"),
        ({"token_endpoint_auth_method": "tls_client_auth"}, "invalid_client_metadata"),
        ({"response_types": ["token"]}, "invalid_client_metadata"),
        ({"grant_types": ["implicit"]}, "invalid_client_metadata"),
        ({"grant_types": "authorization_code"}, "invalid_client_metadata"),
    ],
)
async def test_invalid_registrations_are_rejected(site, metadata, error):
    assert (await site.register(**metadata)).problem == (400, error)


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'"\xff"', b"[" * 60_000])
async def test_a_registration_has_to_be_a_json_object(site, body):
    reply = await site.send("POST", "/register", body)
    assert reply.problem == (400, "invalid_client_metadata")


async def test_registrations_are_bounded_and_unused_ones_end():
    site = Site.of(registrations_max=2)
    first, second = await site.client_id(), await site.client_id()
    assert (await site.register()).problem == (503, "temporarily_unavailable")
    await site.tokens(first)
    site.clock.seconds += 86_401
    assert (await site.authorize(first)).status == 303
    assert (await site.authorize(second)).status == 400
    assert (await site.register()).status == 201


def test_one_address_cannot_take_all_places_of_registrations(site):
    rate, minutes = RATES["/register"], site.server.unused_seconds / 60
    assert rate.per_minute * minutes + rate.burst < site.server.registrations_max


async def test_registration_can_be_switched_off():
    site = Site.of(has_registration=False)
    assert (await site.register()).problem == (403, "access_denied")
    metadata = (await site.send("GET", "/.well-known/oauth-authorization-server")).json
    assert "registration_endpoint" not in metadata


async def test_the_operator_registers_clients():
    client = trusted_client("desk", [CALLBACK], secret="sesame", name="Ticket desk")
    site = Site.of(clients=[client])
    page = await site.authorize("desk")
    assert "Ticket desk" in page.text
    assert "registered by the operator" in page.text
    code = (await site.decide(page)).location[1]["code"]
    assert (await site.redeem("desk", code, client_secret="sesame")).status == 200
    with pytest.raises(ValueError, match="visible ASCII"):
        trusted_client("a b", [CALLBACK])
    with pytest.raises(ValueError, match="not a redirect URI"):
        trusted_client("desk", ["http://app.example/"])


# Users and consent --------------------------------------------------------------------------------


async def test_the_consent_page_names_everything_and_runs_nothing(site):
    client_id = await site.client_id(client_name="<script>alert(1)</script>")
    page = await site.authorize(client_id, scope="read write")
    assert "<script" not in page.text
    for text in (
        "&lt;script&gt;alert(1)&lt;/script&gt;",
        "registered by itself",
        "alice",
        RESOURCE,
        "app.example",
        "read: Read notes",
        "write: Write &lt;notes&gt;",
    ):
        assert text in page.text
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert page.headers["x-frame-options"] == "DENY"
    assert page.headers["cache-control"] == "no-store"
    assert page.headers["referrer-policy"] == "same-origin"
    cookie = page.headers["set-cookie"]
    assert cookie.startswith("__Host-mcp-authorization=")
    assert "; Path=/; HttpOnly; SameSite=Lax; Secure; Max-Age=600" in cookie


async def test_a_user_who_denies_is_sent_back_with_an_error(site):
    page = await site.authorize(await site.client_id())
    url, parameters = (await site.decide(page, "deny")).location
    assert url == CALLBACK
    assert parameters == {
        "error": "access_denied",
        "error_description": "the user has denied access",
        "state": "s t&a=te",
        "iss": ISSUER,
    }


async def test_consent_is_remembered_for_a_user_a_client_and_scopes():
    user = ["alice"]

    async def login(_request):
        return user[0]

    site = Site.of(login=login)
    client_id, other = await site.client_id(), await site.client_id()
    assert (await site.decide(await site.authorize(client_id, scope="read"))).status == 303
    assert (await site.authorize(client_id, scope="read")).status == 303
    assert (await site.authorize(client_id, scope="read write")).status == 200
    assert (await site.authorize(other, scope="read")).status == 200
    assert (await site.decide(await site.authorize(client_id, scope="write"))).status == 303
    again = await site.authorize(client_id, scope="read write")
    assert (again.status, "code" in again.location[1]) == (303, True)
    user[0] = "bob"
    assert (await site.authorize(client_id, scope="read")).status == 200
    user[0] = "alice"
    site.clock.seconds += 300 * 86_400
    assert (await site.authorize(await site.client_id(), scope="read")).status == 200


async def test_a_program_on_the_users_machine_asks_each_time(site):
    uri = "http://127.0.0.1:4000/cb"
    client_id = await site.client_id(redirect_uris=[uri])
    for _ in range(2):
        page = await site.authorize(client_id, redirect_uri=uri)
        assert "a program on your computer (127.0.0.1:4000)" in page.text
        assert (await site.decide(page)).location[0] == uri


async def test_a_login_may_answer_with_a_page_of_its_own_or_reject():
    async def login(request):
        if request.header("cookie") is None:
            return HttpResponse(303, [("Location", f"/login?next={request.path}")])
        return None

    site = Site.of(login=login)
    client_id = await site.client_id()
    reply = await site.authorize(client_id)
    assert (reply.status, reply.headers["location"]) == (303, "/login?next=/authorize")
    assert (await site.authorize(client_id, cookie="x=y")).status == 403


async def test_a_login_returns_a_name():
    users = ["", 42]

    async def login(_request):
        return users.pop(0)

    site = Site.of(login=login)
    client_id = await site.client_id()
    assert (await site.authorize(client_id)).status == 403
    with pytest.raises(TypeError, match="login= has to return a string or None, not int"):
        await site.authorize(client_id)


async def test_the_login_for_development_is_for_this_machine_and_asks_each_time():
    issuer = "http://127.0.0.1:8000"
    site = Site.of(login=DevelopmentLogin("dev"), issuer=issuer)
    client_id = await site.client_id()
    for _ in range(2):
        page = await site.authorize(client_id)
        assert "This server has no login, for development" in page.text
        assert page.headers["set-cookie"].startswith("mcp-authorization=")
        assert "Secure" not in page.headers["set-cookie"]
        assert (await site.decide(page)).status == 303
    with pytest.raises(ValueError, match="DevelopmentLogin lets everyone in"):
        Site.of(login=DevelopmentLogin(), issuer=ISSUER)


# Attacks: see docs/how-to/run-an-authorization-server.md ------------------------------------------


@pytest.mark.parametrize(
    ("registered", "sent"),
    [
        ("http://127.0.0.1:4000/cb", "http://127.0.0.1:4001/cb"),
        ("http://127.0.0.1:4000/cb", "http://127.0.0.1/cb"),
        ("http://127.0.0.1/cb", "http://127.0.0.1:4000/other"),
        ("http://127.0.0.1/cb", "http://127.0.0.1:4000@evil.example/cb"),
        ("http://127.0.0.1/cb", "http://localhost:4000/cb"),
        ("http://127.0.0.1/cb", "https://127.0.0.1:4000/cb"),
        ("https://app.example/cb", "https://app.example:8443/cb"),
        ("https://app.example/cb", "https://app.example/cb/"),
        ("https://app.example/cb", "https://app.example/cb?x=1"),
        ("https://app.example/cb", "https://app.example.evil.example/cb"),
        ("https://app.example/cb", "https://app.example/cb/../evil"),
        ("https://app.example/cb", None),
    ],
)
@pytest.mark.requirement("AUTH-27", "AUTH-73")
async def test_another_redirect_uri_is_shown_as_an_error_and_not_followed(site, registered, sent):
    client_id = await site.client_id(redirect_uris=[registered])
    reply = await site.authorize(client_id, redirect_uri=sent)
    assert reply.status == 400
    assert "location" not in reply.headers
    assert "<a " not in reply.text


async def test_a_loopback_uri_without_a_port_stands_for_all_ports(site):
    client_id = await site.client_id(redirect_uris=["http://127.0.0.1/cb", "http://[::1]/cb"])
    for uri in ("http://127.0.0.1:4000/cb", "http://[::1]:4000/cb", "http://127.0.0.1/cb"):
        assert (await site.authorize(client_id, redirect_uri=uri)).status == 200


@pytest.mark.parametrize(
    ("parameters", "error"),
    [
        ({"response_type": "token"}, "unsupported_response_type"),
        ({"code_challenge": None}, "invalid_request"),
        ({"code_challenge": "short"}, "invalid_request"),
        ({"code_challenge_method": "plain"}, "invalid_request"),
        ({"code_challenge_method": None}, "invalid_request"),
        ({"scope": "unknown"}, "invalid_scope"),
        ({"resource": "https://other.example/mcp"}, "invalid_target"),
    ],
)
async def test_an_error_redirects_only_to_clients_of_the_operator(parameters, error):
    site = Site.of(clients=[trusted_client("desk", [CALLBACK])])
    trusted = await site.authorize("desk", **parameters)
    url, values = trusted.location
    assert (trusted.status, url) == (303, CALLBACK)
    assert (values["error"], values["iss"], values["state"]) == (error, ISSUER, "s t&a=te")
    reply = await site.authorize(await site.client_id(), **parameters)
    assert (reply.status, "location" in reply.headers) == (400, False)
    assert f'<a href="{CALLBACK}?error={error}&amp;' in reply.text


async def test_an_unknown_client_is_not_sent_anywhere(site):
    for client_id in ("unknown", "", "https://127.0.0.1/client.json"):
        reply = await site.authorize(client_id)
        assert (reply.status, "location" in reply.headers) == (400, False)
    repeated = await site.send("GET", "/authorize?client_id=a&client_id=b")
    assert repeated.status == 400


async def test_a_code_that_is_used_twice_ends_its_grant(site):
    client_id = await site.client_id()
    code = await site.code(client_id)
    tokens = (await site.redeem(client_id, code)).json
    assert await site.is_alive(tokens["access_token"])
    assert (await site.redeem(client_id, code)).problem == (400, "invalid_grant")
    assert not await site.is_alive(tokens["access_token"])
    reply = await site.refresh(client_id, tokens["refresh_token"])
    assert reply.problem == (400, "invalid_grant")


@pytest.mark.requirement("AUTH-73")
async def test_a_code_is_for_one_client_verifier_address_and_minute(site):
    client_id, other = await site.client_id(), await site.client_id()
    code = await site.code(client_id)
    for form in (
        {"client_id": other},
        {"code_verifier": "w" * 43},
        {"code_verifier": CHALLENGE.decode()},
        {"redirect_uri": f"{CALLBACK}2"},
        {"code": f"{code}x"},
    ):
        reply = await site.redeem(**{"client_id": client_id, "code": code, **form})
        assert reply.problem == (400, "invalid_grant")
    site.clock.seconds += 59
    assert (await site.redeem(client_id, code, redirect_uri=None)).status == 200
    late = await site.code(client_id)
    site.clock.seconds += 60
    assert (await site.redeem(client_id, late)).problem == (400, "invalid_grant")


@pytest.mark.requirement("AUTH-73", "AUTH-28")
async def test_a_refresh_token_that_is_used_twice_ends_its_grant(site):
    client_id = await site.client_id()
    first = await site.tokens(client_id)
    second = (await site.refresh(client_id, first["refresh_token"])).json
    assert await site.is_alive(second["access_token"])
    reply = await site.refresh(client_id, first["refresh_token"])
    assert reply.problem == (400, "invalid_grant")
    assert not await site.is_alive(second["access_token"])
    reply = await site.refresh(client_id, second["refresh_token"])
    assert reply.problem == (400, "invalid_grant")


async def test_a_refresh_token_of_another_client_is_rejected_and_stays_valid(site):
    client_id, thief = await site.client_id(), await site.client_id()
    tokens = await site.tokens(client_id)
    reply = await site.refresh(thief, tokens["refresh_token"])
    assert reply.problem == (400, "invalid_grant")
    assert (await site.refresh(client_id, tokens["refresh_token"])).status == 200


async def test_of_requests_at_once_with_one_code_or_refresh_token_one_at_most_wins(site, nursery):
    client_id = await site.client_id()
    replies = []

    async def redeem(code):
        replies.append(await site.redeem(client_id, code))

    code = await site.code(client_id)

    async with trio.open_nursery() as redeeming:
        for _ in range(5):
            redeeming.start_soon(redeem, code)
    assert sum(reply.status == 200 for reply in replies) <= 1
    assert all(reply.status in {200, 400} for reply in replies)
    tokens = [reply.json for reply in replies if reply.status == 200]
    assert not any([await site.is_alive(each["access_token"]) for each in tokens])


async def test_a_forged_form_of_the_consent_page_is_rejected(site):
    client_id = await site.client_id()
    page = await site.authorize(client_id)
    other_browser = (await site.authorize(client_id)).headers["set-cookie"].partition(";")[0]
    for cookie in (
        "",
        other_browser,
        "__Host-mcp-authorization=",
        "x=y",
        f"{other_browser}; {other_browser}",
    ):
        reply = await site.decide(page, cookie=cookie)
        assert (reply.status, "location" in reply.headers) == (403, False)
    own = page.headers["set-cookie"].partition(";")[0]
    for form in ({}, {"request": "x"}, {"request": own.partition("=")[2]}):
        reply = await site.post("/authorize", {"decision": "allow", **form}, cookie=own)
        assert reply.status == 403
    assert (await site.decide(page)).status == 303


async def test_a_consent_page_is_used_once_within_ten_minutes(site):
    client_id = await site.client_id()
    page = await site.authorize(client_id)
    assert (await site.decide(page)).status == 303
    assert (await site.decide(page)).status == 403
    late = await site.authorize(await site.client_id())
    site.clock.seconds += 600
    assert (await site.decide(late)).status == 403


async def test_several_consent_pages_of_one_browser_work_at_the_same_time(site):
    client_id = await site.client_id()
    first = await site.authorize(client_id)
    cookie = first.headers["set-cookie"].partition(";")[0]
    second = await site.authorize(client_id, cookie=f"a=b; {cookie}")
    assert second.headers["set-cookie"].partition(";")[0] == cookie
    assert (await site.decide(first)).status == 303
    assert (await site.decide(second)).status == 303


async def test_a_consent_page_of_another_user_is_rejected():
    user = ["alice"]

    async def login(_request):
        return user[0]

    site = Site.of(login=login)
    page = await site.authorize(await site.client_id())
    user[0] = "mallory"
    assert (await site.decide(page)).status == 403


async def test_too_many_requests_of_an_address_or_for_a_client_are_answered_with_429(
    autojump_clock,
):

    site = Site.of(rates={"/token": Rate(per_minute=60, burst=2)})
    form = {"grant_type": "refresh_token", "refresh_token": "x"}
    for _ in range(2):
        assert (await site.post("/token", form)).status == 401
    limited = await site.post("/token", form)
    assert limited.problem == (429, "temporarily_unavailable")
    assert limited.headers["retry-after"] == "1"
    site.address = "192.0.2.2"
    assert (await site.post("/token", form)).status == 401
    await trio.sleep(1)
    site.address = "192.0.2.1"
    assert (await site.post("/token", form)).status == 401
    statuses = []
    for number in range(30):
        site.address = f"198.51.100.{number}"
        statuses.append((await site.post("/token", {**form, "client_id": "same"})).status)
    assert statuses == [401] * 20 + [429] * 10


async def test_one_ipv6_network_counts_as_one_address(autojump_clock):
    site = Site.of(rates={"/authorize": Rate(per_minute=1, burst=1)})
    statuses = []
    for address in ("2001:db8::1", "2001:db8::2", "2001:db8:0:1::1", None, "::ffff:192.0.2.1"):
        site.address = address
        reply = await site.send("GET", "/authorize")
        statuses.append(reply.status)
    assert statuses == [400, 429, 400, 400, 400]
    assert (await site.send("GET", "/authorize")).headers["retry-after"] == "60"


# Settings -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"issuer": "http://tools.example"}, "an https URL, or an http URL of this machine"),
        ({"issuer": "https://tools.example?x"}, "without a query"),
        ({"issuer": "https://u@tools.example"}, "without a query"),
        ({"issuer": "https://"}, "an https URL"),
        ({"scopes": ["a b"]}, "not a valid scope"),
        ({"scopes": {"a\n": "x"}}, "not a valid scope"),
    ],
)
@pytest.mark.requirement("AUTH-27", "AUTH-73")
def test_invalid_settings_are_rejected(settings, text):
    with pytest.raises(ValueError, match=text):
        AuthorizationServer(login=alice, **settings)


async def test_a_server_that_does_not_listen_yet_says_so():
    request = HttpRequest.of("GET", "/.well-known/oauth-authorization-server", [])
    with pytest.raises(RuntimeError, match="not served yet"):
        await AuthorizationServer(login=alice).respond(request, b"")


async def test_the_issuer_is_the_bound_url_unless_it_is_given():
    server = AuthorizationServer(login=alice)
    server.bind("http://127.0.0.1:8000", ["http://127.0.0.1:8000/mcp"])
    assert server.issuer == "http://127.0.0.1:8000"
    assert isinstance(server.storage, SqliteStorage)
    given = AuthorizationServer(login=alice, issuer="https://tools.example/")
    given.bind("http://127.0.0.1:8000", ["https://tools.example/mcp"])
    assert given.issuer == ISSUER


# The contract of `AuthorizationStorage`, at each implementation.


@pytest.fixture(params=["memory", "file"])
def storage(request, tmp_path):
    storage = SqliteStorage(None if request.param == "memory" else tmp_path / "auth.sqlite")
    yield storage
    storage.close()


async def test_a_record_is_added_once_replaced_and_removed(storage):
    assert await storage.get("code", "a", now=0) is None
    assert await storage.swap("code", "a", None, b"1", now=0)
    assert not await storage.swap("code", "a", None, b"2", now=0)
    assert await storage.get("code", "a", now=0) == b"1"
    assert not await storage.swap("code", "a", b"2", b"3", now=0)
    assert await storage.swap("code", "a", b"1", b"2", now=0)
    assert not await storage.swap("code", "a", b"1", None, now=0)
    assert await storage.get("code", "a", now=0) == b"2"
    assert await storage.swap("code", "a", b"2", None, now=0)
    assert await storage.get("code", "a", now=0) is None
    assert await storage.swap("code", "a", None, None, now=0)


async def test_kinds_have_keys_of_their_own(storage):
    assert await storage.swap("code", "a", None, b"1", now=0)
    assert await storage.get("grant", "a", now=0) is None
    assert await storage.swap("grant", "a", None, b"2", now=0)
    assert await storage.swap("grant", "b", None, b"3", now=0, expires_at=5)
    assert await storage.get("code", "a", now=0) == b"1"
    assert [await storage.count(kind, now=0) for kind in ("code", "grant", "client")] == [1, 2, 0]
    assert await storage.count("grant", now=5) == 1


async def test_an_expired_record_is_absent(storage):
    assert await storage.swap("code", "a", None, b"1", now=0, expires_at=10)
    assert await storage.get("code", "a", now=9.9) == b"1"
    assert await storage.get("code", "a", now=10) is None
    assert not await storage.swap("code", "a", b"1", b"2", now=10)
    assert not await storage.swap("code", "a", b"1", None, now=10)
    assert await storage.swap("code", "a", None, b"3", now=10, expires_at=20)
    assert await storage.get("code", "a", now=19) == b"3"
    assert await storage.swap("code", "a", b"3", b"4", now=19)
    assert await storage.get("code", "a", now=1e9) == b"4"


async def test_of_several_that_replace_a_record_at_once_one_does(storage):
    await storage.swap("code", "a", None, b"0", now=0)
    won = []

    async def replace(number):
        if await storage.swap("code", "a", b"0", b"%d" % number, now=0):
            won.append(b"%d" % number)

    async with trio.open_nursery() as nursery:
        for number in range(1, 9):
            nursery.start_soon(replace, number)
    assert len(won) == 1
    assert await storage.get("code", "a", now=0) == won[0]


async def test_a_file_that_is_no_database_is_not_kept_open(tmp_path, monkeypatch):
    path, opened, connect = tmp_path / "auth.sqlite", [], sqlite3.connect
    path.write_bytes(b"this is not a database" * 100)

    def connect_and_keep(*args, **options):
        opened.append(connect(*args, **options))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", connect_and_keep)
    with pytest.raises(sqlite3.DatabaseError, match="not a database"):
        await SqliteStorage(path).get("code", "a", now=0)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        opened[0].execute("SELECT 1")


CLOSE_AGAIN_AND_AGAIN = """
import sys, trio
from mcp_trio.auth import SqliteStorage

async def swap_and_close():
    async def swap():
        for number in range(50):
            assert await storage.swap("code", f"{number}", None, b"", now=0)
        nursery.cancel_scope.cancel()

    storage = SqliteStorage(sys.argv[1])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(swap)
        while True:
            await trio.lowlevel.checkpoint()
            storage.close()

trio.run(swap_and_close)
"""


def test_a_storage_may_be_closed_during_an_operation(tmp_path):
    """In a process of its own, since SQLite crashes if its connection is closed meanwhile."""
    command = [sys.executable, "-c", CLOSE_AGAIN_AND_AGAIN, str(tmp_path / "auth.sqlite")]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (process.returncode, process.stderr) == (0, "")


async def test_a_database_that_another_process_creates_is_waited_for(tmp_path, nursery):
    path = tmp_path / "auth.sqlite"
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("CREATE TABLE other (x)")
    other.execute("BEGIN IMMEDIATE")

    async def commit():
        await trio.sleep(0.1)
        other.execute("COMMIT")

    nursery.start_soon(commit)
    storage = SqliteStorage(path)
    assert await storage.swap("code", "a", None, b"1", now=0)
    storage.close()
    other.close()


@pytest.mark.parametrize("exists", [False, True])
async def test_processes_share_a_file_that_only_its_owner_can_read(tmp_path, exists):
    path = tmp_path / "auth.sqlite"
    if exists:  # as a deployment may have created it, or changed its mode
        path.touch()
        path.chmod(0o664)
    first, second = SqliteStorage(path), SqliteStorage(os.fspath(path))
    assert await first.swap("code", "a", None, b"1", now=0)
    assert await second.get("code", "a", now=0) == b"1"
    assert await second.swap("code", "a", b"1", b"2", now=0)
    assert not await first.swap("code", "a", b"1", b"3", now=0)
    for file in tmp_path.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    first.close()
    assert await first.get("code", "a", now=0) == b"2"
    first.close()
    second.close()
