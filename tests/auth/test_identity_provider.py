"""An authorization server in front of an identity provider."""

import base64
import json
from urllib.parse import parse_qs, urlsplit

import attrs
import httpx2
import pytest
from joserfc import jwt
from joserfc.jwk import ECKey

from mcp_trio._auth.identity_provider import IdentityProvider
from tests.auth.authorizing import CALLBACK, ISSUER, Site, claims_of

PROVIDER = "https://id.example"
KEY = ECKey.generate_key("P-256", {"use": "sig", "alg": "ES256"}, private=True, auto_kid=True)


@attrs.define
class Provider:
    """An identity provider whose user logs in at once; attributes make it misbehave."""

    clock: object
    metadata: dict = attrs.field(factory=dict)
    claims: dict = attrs.field(factory=dict)
    key: ECKey = KEY
    header: dict = attrs.field(factory=dict)
    token_status: int = 200
    requests: list = attrs.field(factory=list)
    nonces: dict = attrs.field(factory=dict)

    def log_in(self, url):
        """The URL to which the browser returns from the login page."""
        query = {name: value for name, (value,) in parse_qs(urlsplit(url).query).items()}
        assert url.startswith(f"{PROVIDER}/auth?")
        assert query["redirect_uri"] == f"{ISSUER}/callback"
        assert query["code_challenge_method"] == "S256"
        code = f"code-{len(self.nonces)}"
        self.nonces[code] = query["nonce"]
        return {"code": code, "state": query["state"], "iss": PROVIDER}

    def answer(self, request):
        self.requests.append(request)
        path = request.url.path
        if path == "/.well-known/oauth-authorization-server":
            return httpx2.Response(404)
        if path == "/.well-known/openid-configuration":
            return httpx2.Response(
                200,
                json={
                    "issuer": PROVIDER,
                    "authorization_endpoint": f"{PROVIDER}/auth",
                    "token_endpoint": f"{PROVIDER}/token",
                    "jwks_uri": f"{PROVIDER}/keys",
                    "authorization_response_iss_parameter_supported": True,
                    **self.metadata,
                },
            )
        if path == "/keys":
            return httpx2.Response(200, json={"keys": [KEY.as_dict(private=False), {"kty": "x"}]})
        form = {name: value for name, (value,) in parse_qs(request.content.decode()).items()}
        claims = {
            "iss": PROVIDER,
            "sub": "42",
            "aud": "desk",
            "exp": self.clock.now + 60,
            "nonce": self.nonces[form["code"]],
            "email": "ada@example.org",
            **self.claims,
        }
        header = {"alg": "ES256", "kid": KEY.kid, **self.header}
        if header["alg"] == "none":
            parts = [base64.urlsafe_b64encode(json.dumps(it).encode()) for it in (header, claims)]
            id_token = b".".join([*(part.rstrip(b"=") for part in parts), b""]).decode()
        else:
            id_token = jwt.encode(header, claims, self.key)
        tokens = {"access_token": "of-the-provider", "id_token": id_token}
        return httpx2.Response(self.token_status, json=tokens)


@attrs.define
class Browser:
    """A browser with cookies."""

    site: Site
    cookies: dict = attrs.field(factory=dict)

    async def get(self, target):
        cookie = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        return self.took(await self.site.send("GET", target, cookie=cookie))

    def took(self, reply):
        if "set-cookie" in reply.headers:
            name, _, value = reply.headers["set-cookie"].partition(";")[0].partition("=")
            self.cookies[name] = value
        return reply

    async def allow(self, page):
        form = {"request": page.request_id, "decision": "allow"}
        cookie = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        return await self.site.post("/authorize", form, cookie=cookie)


@pytest.fixture
def setting():
    site = Site.of()
    provider = Provider(site.clock)
    login = IdentityProvider(
        issuer=PROVIDER,
        client_id="desk",
        client_secret="sesame/+",
        http_client=httpx2.AsyncClient(transport=httpx2.MockTransport(provider.answer)),
    )
    return Site.of(login=login, now=site.clock), provider


def target_of(client_id):
    challenge = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"
    return (
        f"/authorize?response_type=code&client_id={client_id}&redirect_uri={CALLBACK}"
        f"&code_challenge={challenge}&code_challenge_method=S256&state=mine"
    )


VERIFIER = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"  # RFC 7636, appendix B


async def logged_in(site, provider, **changes):
    """The browser and the reply to its return from the provider."""
    browser = Browser(site)
    begun = await browser.get(target_of(await site.client_id()))
    assert begun.status == 303, begun.text
    values = {**provider.log_in(begun.headers["location"]), **changes}
    query = "&".join(f"{name}={value}" for name, value in values.items() if value is not None)
    return browser, await browser.get(f"/callback?{query}")


async def test_a_user_logs_in_at_the_provider_and_allows_access_here(setting):
    site, provider = setting
    browser = Browser(site)
    client_id = await site.client_id()
    begun = await browser.get(target_of(client_id))
    values = provider.log_in(begun.headers["location"])
    back = await browser.get(
        f"/callback?code={values['code']}&state={values['state']}&iss={PROVIDER}"
    )
    assert back.status == 303
    assert back.headers["location"].startswith(f"{ISSUER}/authorize?response_type=code&")
    page = await browser.get(back.headers["location"].removeprefix(ISSUER))
    assert page.status == 200
    assert "42" in page.text
    code = (await browser.allow(page)).location[1]["code"]
    tokens = (await site.redeem(client_id, code, code_verifier=VERIFIER)).json
    assert claims_of(tokens["access_token"])["sub"] == "42"
    assert "of-the-provider" not in json.dumps(tokens)
    token_request = next(each for each in provider.requests if each.url.path == "/token")
    credentials = base64.b64decode(token_request.headers["authorization"].removeprefix("Basic "))
    assert credentials == b"desk:sesame%2F%2B"
    # The session goes on without another login, until it ends.
    assert (await browser.get(target_of(await site.client_id()))).status == 200
    site.clock.now += 8 * 3600
    assert "/auth?" in (await browser.get(target_of(await site.client_id()))).headers["location"]


async def test_the_secret_is_sent_in_the_body_to_a_provider_that_wants_it_there(setting):
    site, provider = setting
    provider.metadata = {"token_endpoint_auth_methods_supported": ["client_secret_post"]}
    _, reply = await logged_in(site, provider)
    assert reply.status == 303
    token_request = next(each for each in provider.requests if each.url.path == "/token")
    assert b"client_secret=sesame%2F%2B" in token_request.content
    assert "authorization" not in token_request.headers


async def test_the_name_of_the_user_may_be_another_claim_and_users_may_be_rejected(setting):
    site, provider = setting
    site.server.login.subject_of = lambda claims: claims.get("email")
    browser, reply = await logged_in(site, provider)
    page = await browser.get(reply.headers["location"].removeprefix(ISSUER))
    assert "ada@example.org" in page.text
    provider.claims = {"email": None}
    _, reply = await logged_in(site, provider)
    assert (reply.status, "set-cookie" in reply.headers) == (403, False)


@pytest.mark.parametrize(
    "changes",
    [
        {"iss": "https://evil.example"},
        {"iss": None},
        {"iss": f"{PROVIDER}/"},
        {"code": None, "error": "access_denied"},
    ],
)
async def test_a_response_of_another_issuer_or_with_an_error_is_rejected(setting, changes, caplog):
    site, provider = setting
    _, reply = await logged_in(site, provider, **changes)
    assert (reply.status, "set-cookie" in reply.headers) == (502, False)
    assert all(each.url.path != "/token" for each in provider.requests)
    assert "a login at https://id.example failed" in caplog.text


@pytest.mark.parametrize(
    "changes",
    [
        {"claims": {"iss": "https://evil.example"}},
        {"claims": {"aud": "other"}},
        {"claims": {"aud": ["desk", "other"], "azp": "other"}},
        {"claims": {"nonce": "other"}},
        {"claims": {"exp": 1}},
        {"claims": {"sub": None}},
        {"key": ECKey.generate_key("P-256", private=True)},
        {"header": {"alg": "none"}},
        {"token_status": 400},
        {"metadata": {"issuer": "https://evil.example"}},
        {"metadata": {"token_endpoint": "http://id.example/token"}},
        {"metadata": {"jwks_uri": None}},
    ],
)
async def test_an_id_token_that_is_not_for_this_login_is_rejected(setting, changes, caplog):
    site, provider = setting
    for name, value in changes.items():
        setattr(provider, name, value)
    browser = Browser(site)
    reply = await browser.get(target_of(await site.client_id()))
    if reply.status == 303:
        values = provider.log_in(reply.headers["location"])
        query = "&".join(f"{name}={value}" for name, value in values.items())
        reply = await browser.get(f"/callback?{query}")
    assert (reply.status, "set-cookie" in reply.headers) == (502, False)
    assert "failed" in caplog.text
    assert "sesame" not in caplog.text


async def test_a_login_belongs_to_one_browser_and_is_finished_once(setting):
    site, provider = setting
    browser = Browser(site)
    begun = await browser.get(target_of(await site.client_id()))
    values = provider.log_in(begun.headers["location"])
    target = f"/callback?code={values['code']}&state={values['state']}&iss={PROVIDER}"
    assert (await Browser(site).get(target)).status == 403
    assert (await browser.get(f"{target}x&state=other")).status == 400
    assert (await browser.get(target)).status == 303
    assert (await browser.get(target)).status == 403
    assert (await browser.get("/callback")).status == 403
    late = await browser.get(target_of("unknown"))
    assert late.status == 400


async def session_of(site, provider, subject):
    """A browser whose user has logged in at the provider as `subject`."""
    provider.claims = {"sub": subject}
    browser, back = await logged_in(site, provider)
    assert back.status == 303
    return browser


@pytest.mark.requirement("AUTH-72", "SEC-05")
async def test_each_user_allows_each_client_itself(setting):
    # All clients share one client id at the provider, where the user is not asked again.
    site, provider = setting
    ada = await session_of(site, provider, "ada")
    known, other = await site.client_id(), await site.client_id(client_name="Other")
    page = await ada.get(target_of(known))
    assert (await ada.allow(page)).location[1]["code"]
    assert "code" in (await ada.get(target_of(known))).location[1]  # the consent is remembered
    asked = await ada.get(target_of(other))
    assert (asked.status, "Other" in asked.text) == (200, True)
    bob = await session_of(site, provider, "bob")
    assert (await bob.get(target_of(known))).status == 200


@pytest.mark.requirement("SEC-05")
async def test_cookies_pages_and_states_of_the_proxy_are_guarded(setting):
    site, provider = setting
    browser = Browser(site)
    client_id = await site.client_id()
    begun = await browser.get(target_of(client_id))
    for attribute in ("__Host-", "Secure", "HttpOnly", "SameSite=Lax", "Path=/"):
        assert attribute in begun.headers["set-cookie"]
    values = provider.log_in(begun.headers["location"])
    back = "/callback?" + "&".join(f"{name}={value}" for name, value in values.items())
    assert (await browser.get(back)).status == 303
    assert (await browser.get(back)).status == 403  # a state is used once
    page = await browser.get(target_of(client_id))
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    assert page.headers["x-frame-options"] == "DENY"
    elsewhere = await browser.get(target_of(client_id).replace(CALLBACK, f"{CALLBACK}/x"))
    assert (elsewhere.status, "location" in elsewhere.headers) == (400, False)
    forged = await site.post("/authorize", {"request": page.request_id, "decision": "allow"})
    assert forged.status == 403  # without the cookies of the browser
    code = (await browser.allow(page)).location[1]["code"]
    assert (await browser.allow(page)).status == 403  # a page is used once
    assert (await site.redeem(client_id, code, code_verifier=VERIFIER)).status == 200


async def test_without_a_session_no_decision_is_accepted(setting):
    site, provider = setting
    browser, reply = await logged_in(site, provider)
    page = await browser.get(reply.headers["location"].removeprefix(ISSUER))
    del browser.cookies["__Host-mcp-session"]
    assert (await browser.allow(page)).status == 403


async def test_without_a_provider_there_is_no_callback():
    site = Site.of()
    assert (await site.send("GET", "/callback")).status == 404
    assert "/callback" not in site.server.methods


def test_the_issuer_of_a_provider_has_to_be_https():
    with pytest.raises(ValueError, match="not an https URL"):
        IdentityProvider(issuer="http://id.example", client_id="a", client_secret="b")
