"""A server whose clients need tokens: challenges, metadata, access rules, recordings."""

import functools
import json
import re
import time

import httpx2
import pytest
import trio
import trio.testing
from joserfc import jwk

from mcp_trio import Client, Context, RequestError, Server
from mcp_trio._auth.authorization_server import Grant
from mcp_trio._auth.challenges import parse_challenges
from mcp_trio._auth.verification import ALGORITHMS
from mcp_trio._server.http_serve import app_of
from mcp_trio._server.sockets import protected_resource
from mcp_trio.auth import (
    AccessDenied,
    AuthInfo,
    AuthorizationServer,
    DevelopmentLogin,
    DPoP,
    InvalidTokenError,
    JWTVerifier,
    MemoryTokenStore,
    OAuth,
    OAuthClient,
    ResourceServer,
    StaticTokens,
    VerifierUnavailableError,
)
from mcp_trio.errors import FORBIDDEN, ConnectionLost, ReplayDivergence
from mcp_trio.http import HttpStores, MemoryStore
from mcp_trio.middleware import CacheResults
from mcp_trio.recording import DEFAULT_SECRET_NAMES, RecordOptions, Redaction, replay, replay_live
from mcp_trio.testing import allow_access
from mcp_trio.transports import open_websocket_channel
from tests.auth.conftest import ISSUER, NOW, RESOURCE, Issuer, proof_of
from tests.clocks import Clock
from tests.server.http.conftest import call, hello, request, site_of, text

LEGACY, STATELESS = "2025-11-25", "2026-07-28"
METADATA = "/.well-known/oauth-protected-resource"
INCLUDED = {"notes:admin": {"notes:write"}, "notes:write": {"notes:read"}}


def notes(auth, **options):
    """A server with tools that need scopes."""
    server = Server("notes", auth=auth, **options)

    @server.tool
    async def whoami(*, ctx: Context) -> str:
        assert ctx.auth is not None
        return f"{ctx.auth.subject} by {ctx.auth.client}: {' '.join(sorted(ctx.auth.scopes))}"

    @server.tool(scopes={"notes:write"})
    async def write() -> str:
        return "written"

    @server.tool(scopes={"notes:read", "notes:write"})
    def tidy() -> str:
        return "tidied"

    @server.tool(
        access=lambda ctx: ctx.auth is not None and ctx.auth.claims.get("group") == "staff"
    )
    async def audit() -> str:
        return "audited"

    async def is_even(ctx: Context) -> bool:
        return await ctx.effect(int, "2") % 2 == 0

    @server.tool(access=is_even)
    async def even() -> str:
        return "even"

    @server.tool
    async def delete(name: str) -> str:
        if name == "root":
            raise AccessDenied("only administrators delete the root", scopes={"notes:admin"})
        return f"deleted {name}"

    @server.resource("notes://all", scopes={"notes:read"})
    async def every() -> str:
        return "everything"

    @server.resource("notes://{name}", scopes={"notes:read"})
    async def one(name: str) -> str:
        return name

    @server.prompt(scopes={"notes:read"})
    async def summary(name: str) -> str:
        return f"Sum up {name}."

    @server.completion("summary", "name")
    async def names(prefix: str) -> list[str]:
        return ["a"]

    return server


def protected(issuer, **options):
    verifier = JWTVerifier(ISSUER, http_client=issuer.client, now=lambda: NOW)
    options = {
        "resource": RESOURCE,
        "scopes": {"mcp"},
        "now": lambda: NOW,
        "dpop": DPoP(now=lambda: NOW),
        **options,
    }
    return ResourceServer(verifier, **options)


def bearer(issuer, *scopes, **claims):
    claims = {"scope": " ".join(("mcp", *scopes)), **claims}
    return {"Authorization": f"Bearer {issuer.token(**claims)}"}


@pytest.fixture
def issuer():
    return Issuer()


@pytest.fixture
async def site(open_site, issuer):
    return await open_site(notes(protected(issuer)), hosts=["*"])


def challenge_of(answer):
    (challenge,) = parse_challenges([answer.headers["www-authenticate"]])
    return challenge


ANSWERS = {"stateless": STATELESS, "in a session": LEGACY}


@pytest.fixture(params=ANSWERS)
def ask(site, request):
    """Ask with a token, as a stateless client, or in a session."""
    if request.param == "stateless":
        return site.ask_stateless
    sessions = []

    async def ask(message, **headers):
        if not sessions:
            sessions.append(await site.open(**headers))
        return await sessions[0].ask(message, **headers)

    return ask


# Authentication.


@pytest.mark.requirement("AUTH-06", "AUTH-15", "AUTH-16", "AUTH-19", "TRAP-123")
async def test_a_request_without_a_token_is_challenged(site):
    for message in (hello(LEGACY), None):
        answer = await site.ask("GET" if message is None else "POST", message)
        assert answer.status == 401
        assert challenge_of(answer).parameters == {
            "scope": "mcp",
            "resource_metadata": f"https://server.example{METADATA}/mcp",
        }


async def test_an_invalid_token_is_challenged_with_the_reason(site, issuer):
    answer = await site.ask("POST", hello(LEGACY), **bearer(issuer, exp=NOW - 60))
    assert answer.status == 401
    challenge = challenge_of(answer)
    assert challenge.error == "invalid_token"
    assert challenge.parameters["error_description"] == "the token has expired"
    assert "expired" in answer.json["error"]["message"]


@pytest.mark.requirement("AUTH-10", "TRAP-127")
@pytest.mark.parametrize(
    ("audience", "is_accepted"),
    [
        (RESOURCE, True),
        (f"{RESOURCE}/", True),
        (["https://other.example", RESOURCE], True),
        ("https://other.example/mcp", False),
        ("https://server.example/other", False),
        (f"{RESOURCE}2", False),
        (["https://other.example"], False),
    ],
)
async def test_only_tokens_for_this_server_are_accepted(site, issuer, audience, is_accepted):
    answer = await site.ask_stateless(call("whoami"), **bearer(issuer, aud=audience))
    assert answer.status == (200 if is_accepted else 401)
    if not is_accepted:
        assert challenge_of(answer).parameters["error_description"] == (
            "the token is for another server"
        )


@pytest.mark.requirement("AUTH-06")
@pytest.mark.parametrize(
    ("headers", "path", "status"),
    [
        ({"Authorization": "Basic abc"}, "/mcp", 401),
        ({"Authorization": "Bearer"}, "/mcp", 401),
        ({"Authorization": "Bearer a b"}, "/mcp", 401),
        ({}, "/mcp?access_token=abc", 400),
        ({}, "/mcp?access%5Ftoken=abc", 401),
    ],
)
async def test_other_credentials_are_rejected(site, headers, path, status):
    assert (await site.ask("POST", hello(LEGACY), path=path, **headers)).status == status


async def test_a_token_in_the_query_is_rejected_beside_a_valid_one(site, issuer):
    answer = await site.ask(
        "POST", hello(LEGACY), path="/mcp?x=1&access_token=abc", **bearer(issuer)
    )
    assert (answer.status, challenge_of(answer).error) == (400, "invalid_request")
    assert "abc" not in answer.answer_body.decode()


async def test_an_issuer_that_is_away_is_503_and_not_401(site, issuer, caplog):
    issuer.is_away()
    token = bearer(issuer)
    answer = await site.ask("POST", hello(LEGACY), **token)
    assert answer.status == 503
    assert "www-authenticate" not in answer.headers
    assert answer.headers["retry-after"] == "1"
    assert token["Authorization"].split()[1] not in caplog.text


@pytest.mark.requirement("AUTH-09", "TRAP-122")
async def test_each_request_of_a_session_is_verified(site, issuer):
    client = await site.open(**bearer(issuer))
    assert (await client.ask(call("whoami"))).status == 200
    for headers in (bearer(issuer, exp=NOW - 60), {"Authorization": None}):
        for method, message in (("POST", call("whoami")), ("GET", None), ("DELETE", None)):
            assert (await client.ask(message, method=method, **headers)).status == 401


@pytest.mark.requirement("TRAP-126")
async def test_a_session_does_not_accept_another_users_token(site, issuer):
    client = await site.open(**bearer(issuer))
    assert (await client.ask(call("whoami"), **bearer(issuer, sub="bert"))).status == 404


async def test_each_request_of_a_session_has_the_facts_of_its_own_token(site, issuer):
    client = await site.open(**bearer(issuer))
    answer = await client.ask(call("whoami"), **bearer(issuer, "x", client_id="other"))
    assert text(answer.json) == "anna by other: mcp x"
    assert text((await client.ask(call("whoami"))).json) == "anna by buoy: mcp"


@pytest.mark.requirement("AUTH-06", "AUTH-63", "AUTH-65")
async def test_a_scope_that_every_request_needs(site, issuer):
    answer = await site.ask("POST", hello(LEGACY), **bearer(issuer, scope="notes:read"))
    assert answer.status == 403
    assert (challenge_of(answer).error, challenge_of(answer).scopes) == (
        "insufficient_scope",
        ("mcp",),
    )


# Metadata.


@pytest.mark.requirement("AUTH-13", "AUTH-16", "AUTH-71", "AUTHX-25")
@pytest.mark.parametrize("path", [f"{METADATA}/mcp", METADATA])
async def test_the_metadata_need_no_token(site, path):
    answer = await site.ask("GET", path=path)
    assert answer.status == 200
    assert answer.json == {
        "resource": RESOURCE,
        "authorization_servers": [ISSUER],
        "scopes_supported": ["mcp", "notes:read", "notes:write"],
        "bearer_methods_supported": ["header"],
        "dpop_signing_alg_values_supported": [*ALGORITHMS],
    }
    assert (await site.ask("HEAD", path=path)).status == 200
    assert (await site.ask("POST", {}, path=path)).status == 405


async def test_one_url_is_enough(nursery):
    """The issuer alone: the resource is the URL that is bound, by each name of the machine."""
    url = await nursery.start(
        lambda task_status: notes(ISSUER).serve_http(port=0, task_status=task_status)
    )
    async with httpx2.AsyncClient() as http:
        answer = await http.post(url, json=hello(LEGACY))
        assert answer.status_code == 401
        (challenge,) = parse_challenges([answer.headers["www-authenticate"]])
        metadata = (await http.get(challenge.resource_metadata)).json()
        assert metadata["resource"] == url
        assert metadata["authorization_servers"] == [ISSUER]
        local = url.replace("127.0.0.1", "localhost")
        metadata = await http.get(local.replace("/mcp", f"{METADATA}/mcp"))
        assert metadata.json()["resource"] == local
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("slash", ["", "/"])
async def test_a_mounted_application_serves_its_metadata_below_its_prefix(open_site, issuer, slash):
    resource = f"https://server.example/api/mcp{slash}"
    site = await open_site(notes(protected(issuer, resource=resource)))
    answer = await site.ask("POST", hello(LEGACY))
    url = challenge_of(answer).resource_metadata
    assert url == f"https://server.example/api{METADATA}/mcp"


@pytest.mark.parametrize("setting", [ISSUER, JWTVerifier(ISSUER)])
async def test_an_unknown_public_url_is_an_error(setting):
    with pytest.raises(ValueError, match="public URL"):
        await notes(setting).asgi()._running()
    with pytest.raises(ValueError, match="public URL"):
        await notes(setting).serve_http(host="0.0.0.0", port=0)


@pytest.mark.parametrize(
    ("is_tls", "port", "resource"),
    [
        (False, 80, "http://server.example/mcp"),
        (True, 443, "https://server.example/mcp"),
        (True, 80, "https://server.example:80/mcp"),
    ],
)
def test_the_resource_has_no_default_port(issuer, is_tls, port, resource):
    found = protected_resource(
        protected(issuer, resource=None),
        None,
        path="/mcp",
        bound=[("server.example", port)],
        is_tls=is_tls,
        has_certificates=False,
        scopes=tuple,
    )
    assert found.resources == [resource]


async def test_tokens_without_an_issuer_have_no_metadata(open_site):
    site = await open_site(notes(StaticTokens({"t": "anna"})))
    answer = await site.ask("POST", hello(LEGACY))
    assert answer.headers["www-authenticate"] == "Bearer"
    assert (await site.ask("GET", path=METADATA)).status == 404


# Tokens that are bound to a key.


def bound(issuer, key, **claims):
    return issuer.token(scope="mcp", cnf={"jkt": key.thumbprint()}, **claims)


async def test_a_proof_is_accepted_once_by_the_instances_that_share_a_store(open_site, issuer):
    key, stores = jwk.ECKey.generate_key("P-256"), HttpStores(states=MemoryStore())
    token = issuer.token(scope="mcp", cnf={"jkt": key.thumbprint()})
    headers = with_proof(token, key)
    resources = [protected(issuer) for _ in range(2)]
    sites = [await open_site(notes(each), hosts=["*"], stores=stores) for each in resources]
    answers = [await each.ask_stateless(call("whoami"), **headers) for each in sites]
    assert [answer.status for answer in answers] == [200, 401]
    assert "used before" in challenge_of(answers[1]).parameters["error_description"]


def with_proof(token, key, scheme="DPoP", **claims):
    url = claims.pop("url", RESOURCE)
    return {
        "Authorization": f"{scheme} {token}",
        "DPoP": proof_of(key, token=token, htu=url, **claims),
    }


@pytest.mark.requirement("AUTHX-08", "AUTHX-21", "AUTHX-23", "AUTHX-24")
async def test_a_bound_token_needs_a_proof_with_each_request(site, issuer):
    key = jwk.ECKey.generate_key("P-256")
    token = bound(issuer, key)
    headers = with_proof(token, key)
    answer = await site.ask_stateless(call("whoami"), **headers)
    assert text(answer.json) == "anna by buoy: mcp"
    for wrong, error in (
        (headers, "invalid_dpop_proof"),  # again
        ({"Authorization": f"DPoP {token}"}, "invalid_dpop_proof"),
        ({"Authorization": f"Bearer {token}"}, "invalid_token"),
        (with_proof(token, key, "Bearer"), "invalid_token"),
        (with_proof(token, jwk.ECKey.generate_key("P-256")), "invalid_dpop_proof"),
        (with_proof(issuer.token(scope="mcp"), key), "invalid_token"),
        (with_proof(token, key, url="https://server.example/other"), "invalid_dpop_proof"),
        (bearer(issuer, cnf={"x5t#S256": "x"}), "invalid_token"),
        (bearer(issuer, cnf={"kid": "x"}), "invalid_token"),
        (bearer(issuer, cnf="x"), "invalid_token"),
    ):
        answer = await site.ask_stateless(call("whoami"), **wrong)
        assert (answer.status, challenge_of(answer).error) == (401, error)


@pytest.mark.requirement("AUTHX-24", "AUTHX-25")
async def test_a_proof_may_need_a_nonce(open_site, issuer):
    settings = protected(issuer, dpop=DPoP(is_required=True, uses_nonces=True, now=lambda: NOW))
    site = await open_site(notes(settings), hosts=["*"])
    key = jwk.ECKey.generate_key("P-256")
    token = bound(issuer, key)
    answer = await site.ask_stateless(call("whoami"), **with_proof(token, key))
    challenge = challenge_of(answer)
    assert (challenge.scheme, challenge.error) == ("DPoP", "use_dpop_nonce")
    nonce = answer.headers["dpop-nonce"]
    answer = await site.ask_stateless(call("whoami"), **with_proof(token, key, nonce=nonce))
    assert answer.status == 200
    unbound = await site.ask_stateless(call("whoami"), **bearer(issuer))
    assert (unbound.status, challenge_of(unbound).scheme) == (401, "DPoP")
    metadata = (await site.ask("GET", path=METADATA)).json
    assert metadata["dpop_bound_access_tokens_required"] is True


# Access.


async def names_in(ask, method, member, **headers):
    answer = await ask(request(method), **headers)
    return [each["name"] for each in answer.json["result"][member]]


@pytest.mark.parametrize(
    ("scopes", "claims", "tools", "others"),
    [
        ((), {}, ["whoami", "even", "delete"], False),
        (("notes:read",), {}, ["whoami", "even", "delete"], True),
        (("notes:write",), {}, ["whoami", "write", "even", "delete"], False),
        (
            ("notes:read", "notes:write"),
            {"group": "staff"},
            ["whoami", "write", "tidy", "audit", "even", "delete"],
            True,
        ),
    ],
)
async def test_lists_have_only_what_the_caller_may_use(ask, issuer, scopes, claims, tools, others):
    token = bearer(issuer, *scopes, **claims)
    assert await names_in(ask, "tools/list", "tools", **token) == tools
    assert await names_in(ask, "resources/list", "resources", **token) == ["every"] * others
    templates = await names_in(ask, "resources/templates/list", "resourceTemplates", **token)
    assert templates == ["one"] * others
    assert await names_in(ask, "prompts/list", "prompts", **token) == ["summary"] * others
    assert await names_in(ask, "tools/list", "tools", **token) == tools  # now from the cache


DENIED = {
    "a tool": (call("write"), ("mcp", "notes:write")),
    "a tool with two scopes": (call("tidy"), ("mcp", "notes:read", "notes:write")),
    "a resource": (request("resources/read", {"uri": "notes://all"}), ("mcp", "notes:read")),
    "a template": (request("resources/read", {"uri": "notes://x"}), ("mcp", "notes:read")),
    "a prompt": (
        request("prompts/get", {"name": "summary", "arguments": {"name": "x"}}),
        ("mcp", "notes:read"),
    ),
    "a completion": (
        request(
            "completion/complete",
            {
                "ref": {"type": "ref/prompt", "name": "summary"},
                "argument": {"name": "name", "value": ""},
            },
        ),
        ("mcp", "notes:read"),
    ),
    "an error of the handler": (call("delete", {"name": "root"}), ("mcp", "notes:admin")),
}


@pytest.mark.requirement("AUTH-06", "AUTH-63", "AUTH-64", "AUTH-65", "TRAP-123")
@pytest.mark.parametrize("accept", ["application/json, text/event-stream", "text/event-stream"])
@pytest.mark.parametrize("case", DENIED)
async def test_a_call_without_a_scope_gets_403_with_all_scopes(ask, issuer, case, accept):
    message, scopes = DENIED[case]
    await ask(request("tools/list"), **bearer(issuer))  # opens the session
    answer = await ask(message, accept=accept, **bearer(issuer))
    assert answer.status == 403
    challenge = challenge_of(answer)
    assert (challenge.error, challenge.scopes) == ("insufficient_scope", scopes)
    assert challenge.resource_metadata == f"https://server.example{METADATA}/mcp"
    error = answer.json["error"]
    assert error["code"] == FORBIDDEN
    assert error["data"] == {
        "error": "insufficient_scope",
        "scope": " ".join(scope for scope in scopes if scope != "mcp"),
    }
    # With the scopes of the challenge the same request succeeds.
    if case != "an error of the handler":
        granted = await ask(message, accept=accept, **bearer(issuer, *challenge.scopes))
        assert granted.status == 200


async def test_a_condition_that_no_scope_fulfils_has_no_challenge(ask, issuer):
    answer = await ask(call("audit"), **bearer(issuer))
    assert answer.status == 403
    assert "www-authenticate" not in answer.headers
    assert answer.json["error"]["data"] == {"error": "access_denied"}
    granted = await ask(call("audit"), **bearer(issuer, group="staff"))
    assert text(granted.json) == "audited"


@pytest.mark.requirement("AUTH-66")
async def test_a_scope_may_include_others(open_site, issuer):
    site = await open_site(notes(protected(issuer, includes=INCLUDED.get)), hosts=["*"])
    for scopes, status in ((["notes:read"], 403), (["notes:write"], 200), (["notes:admin"], 200)):
        answer = await site.ask_stateless(call("tidy"), **bearer(issuer, *scopes))
        assert answer.status == status


async def test_a_resource_without_a_scope_cannot_be_subscribed_to(site, issuer):
    client = await site.open(**bearer(issuer))
    subscribe = request("resources/subscribe", {"uri": "notes://all"})
    assert (await client.ask(subscribe)).status == 403
    assert (await client.ask(subscribe, **bearer(issuer, "notes:read"))).status == 200


def test_rules_that_cannot_be_meant_are_rejected():
    server = Server("rules")
    with pytest.raises(TypeError, match=r"write \{'a'\}"):
        server.tool(scopes="a")(lambda: None)
    with pytest.raises(ValueError, match="not a valid scope"):
        server.tool(scopes={"a b"})(lambda: None)
    with pytest.raises(TypeError, match="function of the context"):
        server.tool(access=True)(lambda: None)
    with pytest.raises(TypeError, match="the condition of access= '<lambda>' has to be"):
        server.tool(access=lambda: True)(lambda: None)
    for wrong in (7, object(), print):
        with pytest.raises(TypeError, match="auth= takes"):
            Server("rules", auth=wrong)
    with pytest.raises(ValueError, match="offline_access"):
        ResourceServer(ISSUER, scopes={"offline_access"})
    for wrong in ("server.example/mcp", "https://server.example/#x"):
        with pytest.raises(ValueError, match="resource="):
            ResourceServer(ISSUER, resource=wrong)


async def test_a_server_that_needs_scopes_but_has_no_auth_is_not_served():
    with pytest.raises(ValueError, match=r"notes:read, notes:write.*Server\(auth="):
        await notes(None).serve_http(port=0)


# Other transports.


async def test_without_credentials_a_client_has_the_local_rights():
    local = AuthInfo(subject="me", scopes={"notes:read"})
    tokens = StaticTokens({"t": "anna"})
    async with Client(notes(ResourceServer(tokens, local=local))) as client:
        assert [each.name for each in (await client.list_tools())] == ["whoami", "even", "delete"]
        assert text_of(await client.call_tool("whoami")) == "me by None: notes:read"
        with pytest.raises(RequestError, match="lacks a scope") as caught:
            await client.call_tool("write")
        assert (caught.value.code, caught.value.data["scope"]) == (FORBIDDEN, "notes:write")
    async with Client(notes(tokens)) as client:
        with pytest.raises(RequestError, match="lacks a scope"):
            await client.read_resource("notes://all")


def text_of(result):
    return result.content[0].text


TOKENS = {
    "reader": AuthInfo(subject="anna", scopes={"notes:read"}),
    "writer": AuthInfo(subject="anna", scopes={"notes:read", "notes:write"}),
}


@pytest.mark.parametrize("way", ["serve_websocket", "serve_http"])
async def test_a_websocket_has_the_rights_of_its_token(nursery, way):
    server = notes(StaticTokens(TOKENS))
    url = await nursery.start(
        lambda task_status: getattr(server, way)(port=0, task_status=task_status)
    )
    url = url.replace("http:", "ws:").replace("/mcp", "/ws")
    async with Client(url, token="reader") as client:
        assert "write" not in [each.name for each in await client.list_tools()]
        with pytest.raises(RequestError, match="lacks a scope"):
            await client.call_tool("write")
    async with Client(url, token="writer") as client:
        assert text_of(await client.call_tool("write")) == "written"
    nursery.cancel_scope.cancel()


@pytest.mark.real_time
async def test_a_websocket_is_closed_when_its_token_expires(nursery):
    auth = AuthInfo(subject="anna", expires_at=time.time() + 0.3)
    server = notes(StaticTokens({"t": auth}))
    url = await nursery.start(
        lambda task_status: server.serve_websocket(port=0, task_status=task_status)
    )
    channel = await open_websocket_channel(url, token="t")
    await channel.send([json.dumps(hello(LEGACY)).encode()])
    assert len(await channel.receive()) == 1
    with pytest.raises(ConnectionLost, match="expired"):
        await channel.receive()
    assert channel.rejection is not None  # by code 1008: it is not dialed again
    assert time.time() >= auth.expires_at
    await channel.aclose()
    nursery.cancel_scope.cancel()


@pytest.mark.requirement("AUTH-04")
async def test_the_sse_transport_has_the_rights_of_its_token(site, issuer):
    assert (await site.ask("GET", path="/sse")).status == 401
    stream = site.begin("GET", path="/sse", accept="text/event-stream", **bearer(issuer))
    path = "/" + (await stream.event()).data.decode()
    assert (await site.ask("POST", hello("2024-11-05"), path=path)).status == 401
    for message in (hello("2024-11-05"), call("write")):
        assert (await site.ask("POST", message, path=path, **bearer(issuer))).status == 202
    await stream.message()
    assert (await stream.message())["error"]["code"] == FORBIDDEN


# Verifiers of users.


async def test_a_class_with_one_method_is_enough(open_site):
    class Verifier:
        async def verify(self, token):
            if token == "away":
                raise VerifierUnavailableError("the database is unavailable")
            if token == "old":
                raise InvalidTokenError("it is old")
            expires_at = NOW - 1 if token == "expired" else None
            return None if token == "bad" else AuthInfo(subject=token, expires_at=expires_at)

    site = await open_site(notes(ResourceServer(Verifier(), now=lambda: NOW)))
    for token, status in (
        ("anna", 200),
        ("bad", 401),
        ("old", 401),
        ("away", 503),
        ("expired", 401),
    ):
        answer = await site.ask_stateless(call("whoami"), Authorization=f"Bearer {token}")
        assert answer.status == status


async def test_the_reason_of_a_verifier_may_have_any_characters(open_site):
    class Verifier:
        async def verify(self, _token):
            raise InvalidTokenError('läuft "aus" – neu\nanmelden \\')

    site = await open_site(notes(ResourceServer(Verifier())))
    answer = await site.ask_stateless(call("whoami"), Authorization="Bearer x")
    assert answer.status == 401
    # RFC 6750, section 3
    description = challenge_of(answer).parameters["error_description"]
    assert description == "l?uft 'aus' ? neu?anmelden ?"
    assert 'läuft "aus" – neu\nanmelden \\' in answer.json["error"]["message"]


async def test_a_function_of_the_request_is_enough(open_site):
    async def from_gateway(request):
        return request.header("x-user")

    site = await open_site(notes(from_gateway))
    answer = await site.ask_stateless(call("whoami"), X_User="anna")
    assert text(answer.json) == "anna by None: "
    assert (await site.ask_stateless(call("whoami"))).status == 401
    assert (await site.ask_stateless(call("whoami"), X_User="")).status == 401


# Recordings.


async def recorded(auth, options, requests):
    async with site_of(notes(auth), record=options, hosts=["*"]) as site:
        for message, token in requests:
            await site.ask_stateless(message, Authorization=f"Bearer {token}")
        client = await site.open(Authorization=f"Bearer {requests[0][1]}")
        for message, token in requests:
            await client.ask(message, Authorization=f"Bearer {token}")
        site.runtime.close()
        await site.runtime.ended.wait()


def record(auth, options, requests):
    trio.run(recorded, auth, options, requests, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.fixture
def requests(issuer):
    writer = issuer.token(scope="mcp notes:read notes:write", email="anna@example.org")
    reader = issuer.token(scope="mcp notes:read")
    return [
        (call("whoami"), writer),
        (call("write"), writer),
        (call("write"), reader),
        (call("even"), reader),
        (request("tools/list"), reader),
        (request("tools/list"), writer),
    ]


@pytest.mark.requirement("AUTH-42")
def test_a_replay_gives_the_same_rights_and_no_token_is_recorded(tmp_path, issuer, requests):
    record(protected(issuer), tmp_path, requests)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 2
    for file in files:
        # The issuer is not asked in a replay.
        report = replay(file, notes(protected(Issuer("https://gone.example"))))
        assert report.is_complete, report
        assert report.requests >= len(requests)
        content = file.read_text()
        for _, token in requests:
            for part in token.split("."):
                assert part not in content
        envelopes = [json.loads(line).get("x") for line in content.splitlines()]
        facts = [each["sender"] for each in envelopes if each and "sender" in each]
        assert facts[0]["subject"] == "anna"
        assert facts[0]["client"] == "buoy"
        assert facts[0]["scopes"] == ["mcp", "notes:read", "notes:write"]
        assert content.count('"access allowed"') == 2
        assert content.count('"access denied"') == 1


def test_a_changed_rule_is_a_divergence_at_the_request(tmp_path, issuer, requests):
    record(protected(issuer), tmp_path, requests)

    def everyone_writes(scope):
        return {"notes:read": ["notes:write"]}.get(scope)

    for file in tmp_path.iterdir():
        changed = notes(protected(issuer, includes=everyone_writes))
        with pytest.raises(ReplayDivergence) as caught:
            replay(file, changed)
        assert 'tools/call "write"' in str(caught.value)
        assert '"access denied" became "access allowed"' in str(caught.value)


def test_a_live_replay_gives_the_same_rights(tmp_path, issuer, requests):
    record(protected(issuer), tmp_path, requests)
    for file in tmp_path.iterdir():
        # The issuer is not asked.
        report = replay_live(file, notes(protected(Issuer("https://gone.example"))))
        assert report.is_same, str(report)
        assert report.answered >= len(requests)

        def everyone_writes(scope):
            return {"notes:read": ["notes:write"]}.get(scope)

        changed = replay_live(file, notes(protected(issuer, includes=everyone_writes)))
        assert "changed answer to tools/call write" in str(changed)


@pytest.mark.parametrize(
    "redaction",
    [
        Redaction(keys=[*DEFAULT_SECRET_NAMES, "email"]),
        Redaction(paths={"envelope": ["$.sender.claims.email"]}),
    ],
)
def test_claims_can_be_redacted(tmp_path, issuer, requests, redaction):
    record(protected(issuer), RecordOptions(tmp_path, redaction=redaction), requests)
    for file in tmp_path.iterdir():
        content = file.read_text()
        assert "anna@example.org" not in content
        assert '"email"' in content
        assert '"scopes":["mcp","notes:read"]' in content
        assert replay(file, notes(protected(issuer))).is_complete


@pytest.mark.parametrize(
    ("limit", "value", "pages"), [("_PAGES_MAX", 3, 3), ("_PAGES_BYTES_MAX", 1000, 2)]
)
async def test_many_different_rights_do_not_fill_the_memory(
    open_site, monkeypatch, limit, value, pages
):
    monkeypatch.setattr(f"mcp_trio._server.registry.{limit}", value)
    server = Server(
        "many",
        auth=StaticTokens(
            {str(number): AuthInfo(subject="anna", scopes={str(number)}) for number in range(10)}
        ),
    )
    for number in range(10):
        server.tool(name=f"t{number}", scopes={str(number)})(lambda: None)
    site = await open_site(server)
    for number in range(10):
        answer = await site.ask_stateless(request("tools/list"), Authorization=f"Bearer {number}")
        assert [each["name"] for each in answer.json["result"]["tools"]] == [f"t{number}"]
    assert len(server._registry._pages) == pages


async def test_a_kept_result_is_for_the_same_rights_only(open_site, issuer):
    server = notes(protected(issuer))
    server.middleware(CacheResults({"write", "whoami"}, seconds=60))
    site = await open_site(server, hosts=["*"])
    for _ in range(2):
        granted = await site.ask_stateless(call("write"), **bearer(issuer, "notes:write"))
        assert text(granted.json) == "written"
    assert (await site.ask_stateless(call("write"), **bearer(issuer))).status == 403


# Mounted servers, and what sessions hide.


@pytest.mark.parametrize("has_middleware", [False, True], ids=["", "middleware"])
async def test_the_rules_of_a_mounted_server_hold(open_site, issuer, has_middleware):
    inner, outer = notes(None), Server("outer", auth=protected(issuer))
    if has_middleware:

        @inner.middleware
        async def pass_on(request, call_next):
            return await call_next(request)

    outer.mount(inner, prefix="in")
    site = await open_site(outer, hosts=["*"])
    reader, writer = bearer(issuer), bearer(issuer, "notes:write")
    for headers, is_shown in ((reader, False), (writer, True)):
        listed = await site.ask_stateless(request("tools/list"), **headers)
        names = [each["name"] for each in listed.json["result"]["tools"]]
        assert ("in_write" in names) is is_shown
        assert "in_whoami" in names
    denied = await site.ask_stateless(call("in_write"), **reader)
    assert (denied.status, challenge_of(denied).scopes) == (403, ("mcp", "notes:write"))
    assert text((await site.ask_stateless(call("in_write"), **writer)).json) == "written"
    for uri in ("notes://in/all", "notes://in/x"):
        read = request("resources/read", {"uri": uri})
        assert (await site.ask_stateless(read, **reader)).status == 403
        assert (await site.ask_stateless(read, **bearer(issuer, "notes:read"))).status == 200
    metadata = (await site.ask("GET", path=METADATA)).json
    assert metadata["scopes_supported"] == ["mcp", "notes:read", "notes:write"]
    unprotected = Server("outer")
    unprotected.mount(inner, prefix="in")
    with pytest.raises(ValueError, match=r"Server\(auth="):
        await unprotected.serve_http(port=0)


def in_staff(ctx):
    return ctx.auth.claims.get("group") == "staff"


async def is_in_staff(ctx):
    return in_staff(ctx)


@pytest.mark.parametrize("is_remote", [False, True], ids=["", "remote"])
@pytest.mark.parametrize("middleware", [False, True], ids=["", "middleware"])
async def test_a_mount_has_a_rule_of_its_own(open_site, issuer, middleware, is_remote):
    inner, outer = notes(None), Server("outer", auth=protected(issuer))
    if is_remote:
        inner = Server("plain")
        inner.tool(name="write")(lambda: "written")
        inner.resource("notes://{name}")(lambda name: name)
        inner.prompt(name="summary")(lambda name: name)
        inner.completion("summary", "name")(lambda value: [value])
    elif middleware:

        @inner.middleware
        async def pass_on(request, call_next):
            return await call_next(request)

    outer.tool(name="own")(lambda: "own")
    target = Client(inner) if is_remote else inner
    outer.mount(target, prefix="in", scopes={"notes"}, access=is_in_staff)
    site = await open_site(outer, hosts=["*"])
    of_entry = () if is_remote else ("notes:write",)
    guest = bearer(issuer, "notes:read", *of_entry, group="staff")
    stranger = bearer(issuer, "notes", "notes:read", *of_entry)
    member = bearer(issuer, "notes", "notes:read", *of_entry, group="staff")
    for headers, is_allowed in ((guest, False), (stranger, False), (member, True)):
        listed = await site.ask_stateless(request("tools/list"), **headers)
        names = [each["name"] for each in listed.json["result"]["tools"]]
        assert ("in_write" in names, "own" in names) == (is_allowed, True)
        asked = (
            call("in_write"),
            request("resources/read", {"uri": "notes://in/x"}),
            request("prompts/get", {"name": "in_summary", "arguments": {"name": "x"}}),
            request(
                "completion/complete",
                {
                    "ref": {"type": "ref/prompt", "name": "in_summary"},
                    "argument": {"name": "name", "value": ""},
                },
            ),
        )
        for message in asked:
            answer = await site.ask_stateless(message, **headers)
            assert answer.status == (200 if is_allowed else 403), (message, answer.json)
    # One challenge has the scopes of the mount and of the entry.
    denied = await site.ask_stateless(call("in_write"), **bearer(issuer, group="staff"))
    assert challenge_of(denied).scopes == ("mcp", "notes", *of_entry)
    metadata = (await site.ask("GET", path=METADATA)).json
    assert "notes" in metadata["scopes_supported"]


@pytest.mark.requirement("AUTH-11", "TRAP-127")
async def test_a_token_is_not_passed_on_to_other_servers(nursery):
    seen = []

    async def note(request):
        seen.append(dict(request.headers))
        return "upstream"

    inner, outer = Server("inner", auth=note), Server("outer", auth=StaticTokens({"secret": "ann"}))

    @inner.tool
    async def who(ctx: Context) -> str:
        return ctx.auth.subject

    def served(server):
        return nursery.start(lambda task_status: server.serve_http(port=0, task_status=task_status))

    upstream = await served(inner)
    outer.mount(upstream, prefix="far")

    @outer.tool
    async def fetch(ctx: Context) -> str:
        response = await ctx.http.get(upstream)
        return str(response.status_code)

    async with Client(await served(outer), token="secret") as client:
        assert text_of(await client.call_tool("far_who")) == "upstream"
        await client.call_tool("fetch")
    assert len(seen) >= 3
    assert "secret" not in str(seen)
    assert not [each for each in seen if "authorization" in each]
    nursery.cancel_scope.cancel()


async def test_a_subscription_needs_the_rule_of_a_mount(open_site, issuer):
    outer, plain = Server("outer", auth=protected(issuer)), Server("plain")
    plain.resource("notes://{name}")(lambda name: name)
    outer.mount(plain, prefix="in", scopes={"notes"})
    outer.mount(Client(plain), prefix="far", scopes={"notes"})
    site = await open_site(outer, hosts=["*"])
    for headers, has_result in ((bearer(issuer), False), (bearer(issuer, "notes"), True)):
        session = await site.open(**headers)
        for name in ("in", "far"):
            message = request("resources/subscribe", {"uri": f"notes://{name}/x"})
            answer = await session.ask(message, **headers)
            assert (answer.status == 200) is has_result, answer.json


async def test_the_rules_of_nested_mounts_hold_together(open_site, issuer):
    leaf, middle = Server("leaf"), Server("middle")
    leaf.tool(name="t", scopes={"of_tool"}, access=in_staff)(lambda: "done")
    middle.mount(leaf, prefix="leaf", scopes={"of_leaf"}, access=is_in_staff)
    outer = Server("outer", auth=protected(issuer))
    outer.mount(middle, prefix="middle", scopes={"of_middle"})
    site = await open_site(outer, hosts=["*"])
    scopes = ("of_leaf", "of_middle", "of_tool")
    denied = await site.ask_stateless(call("middle_leaf_t"), **bearer(issuer, group="staff"))
    assert challenge_of(denied).scopes == ("mcp", *scopes)
    stranger = await site.ask_stateless(call("middle_leaf_t"), **bearer(issuer, *scopes))
    assert stranger.status == 403
    allowed = await site.ask_stateless(
        call("middle_leaf_t"), **bearer(issuer, *scopes, group="staff")
    )
    assert text(allowed.json) == "done"


def test_a_mount_with_scopes_needs_authorization_of_the_outer_server():
    outer = Server("outer")
    with pytest.raises(TypeError, match="scopes are a set"):
        outer.mount(notes(None), prefix="in", scopes="notes")
    outer.mount(Server("plain"), prefix="in", scopes={"notes"})
    with pytest.raises(ValueError, match=r"notes.*Server\(auth="):
        trio.run(lambda: outer.serve_http(port=0))


async def test_a_hidden_tool_stays_hidden_from_those_who_may_use_it(open_site, issuer):
    server = notes(protected(issuer))
    server.disable("write")
    site = await open_site(server, hosts=["*"])
    listed = await site.ask_stateless(request("tools/list"), **bearer(issuer, "notes:write"))
    assert "write" not in [each["name"] for each in listed.json["result"]["tools"]]


# An authorization server beside the MCP endpoint, over HTTP.


def notes_server(**settings):
    authorization = AuthorizationServer(login=DevelopmentLogin("ada"), **settings)
    server = Server("notes", auth=authorization)

    @server.tool
    async def whoami(*, ctx: Context) -> str:
        return f"{ctx.auth.subject}: {' '.join(sorted(ctx.auth.scopes))}"

    @server.tool(scopes=["notes:write"])
    async def write() -> str:
        return "written"

    return server


@pytest.mark.parametrize("host", ["native", "hypercorn"])
async def test_a_client_logs_in_and_uses_the_server(nursery, host):
    url = await nursery.start(functools.partial(notes_server().serve_http, port=0, server=host))
    store = MemoryTokenStore()
    async with Client(url, auth=OAuth(on_authorize=allow_access, store=store)) as client:
        assert (await client.call_tool("whoami")).data == "ada: notes:write"
        assert (await client.call_tool("write")).data == "written"
    async with Client(url, auth=OAuth(store=store, interactive=False)) as client:
        assert (await client.call_tool("whoami")).data == "ada: notes:write"
    nursery.cancel_scope.cancel()


async def test_other_tokens_are_rejected_and_a_revoked_one_at_once(nursery):
    clock = Clock(time.time())
    server, other = notes_server(now=clock), notes_server()
    url = await nursery.start(functools.partial(server.serve_http, port=0))
    other_url = await nursery.start(functools.partial(other.serve_http, port=0))
    authorization = server.auth.verifier
    assert authorization.issuer == url.removesuffix("/mcp")

    async def token(issuing, resource, now):
        grant = Grant(
            subject="ada",
            client_id="c",
            scopes=[],
            resource=resource,
            has_refresh=False,
            ends_at=now + 3600,
        )
        await issuing._store("grant", grant, seconds=900)
        granted = OAuthClient(client_id="c"), "grant", grant, []
        return json.loads((await issuing._token_response(*granted, now)).body)["access_token"]

    good = await token(authorization, url, clock.seconds)
    async with httpx2.AsyncClient() as http:

        async def status(token):
            headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
            return (await http.post(url, headers=headers, json={})).status_code

        assert await status(good) == 400  # past the authentication
        foreign = await token(other.auth.verifier, other_url, time.time())
        assert await status(foreign) == 401
        assert await status(f"{good}x") == 401
        clock.seconds += 1000
        assert await status(good) == 401
        clock.seconds -= 1000
        await authorization._end_grant("grant")
        assert await status(good) == 401
        challenge = await http.post(url, json={})
        assert challenge.status_code == 401
        metadata_url = re.search(
            r'resource_metadata="([^"]*)"', challenge.headers["www-authenticate"]
        )[1]
        metadata = (await http.get(metadata_url)).json()
        assert metadata["authorization_servers"] == [authorization.issuer]
    nursery.cancel_scope.cancel()


async def test_the_endpoints_need_no_credentials_and_bound_bodies(nursery):
    url = await nursery.start(functools.partial(notes_server().serve_http, port=0))
    issuer = url.removesuffix("/mcp")
    async with httpx2.AsyncClient(base_url=issuer) as http:
        metadata = await http.get("/.well-known/oauth-authorization-server")
        assert metadata.json()["issuer"] == issuer
        assert metadata.json()["scopes_supported"] == ["notes:write"]
        assert (await http.get("/jwks")).json()["keys"]
        assert (await http.get("/token")).status_code == 405
        large = await http.post("/register", content=b" " * 65537)
        assert large.status_code == 413

        async def pieces():
            for _ in range(20):
                yield b" " * 4096

        assert (await http.post("/register", content=pieces())).status_code == 413
        foreign = await http.post("/authorize", headers={"Origin": "https://evil.example"})
        assert foreign.status_code == 403
    nursery.cancel_scope.cancel()


def test_a_server_that_other_machines_reach_needs_another_login():
    server = notes_server(issuer="https://tools.example")
    with pytest.raises(ValueError, match="DevelopmentLogin lets everyone in"):
        app_of(server._sessions, {}, [("127.0.0.1", 8000)])


def test_a_path_of_the_authorization_server_is_taken():
    with pytest.raises(ValueError, match="has a handler of POST already"):
        notes_server().route("/token", methods=["POST"])(allow_access)


async def test_a_user_without_a_consent_page_is_an_error(nursery):
    url = await nursery.start(functools.partial(notes_server().serve_http, port=0))
    with pytest.raises(ValueError, match="no consent page, but status 400"):
        await allow_access(url.replace("/mcp", "/authorize"))
    nursery.cancel_scope.cancel()


def test_workers_need_a_storage_that_they_share():
    with pytest.raises(ValueError, match="workers need its storage="):
        notes_server().run("http", port=0, workers=2)
