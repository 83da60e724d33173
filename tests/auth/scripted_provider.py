"""An identity provider without HTTP, and a browser whose user logs in there."""

import base64
import json
from urllib.parse import parse_qs, urlencode, urlsplit

import attrs
import httpx2
from joserfc import jwt
from joserfc.jwk import ECKey
from joserfc.jws import JWSRegistry

from mcp_trio._protocol.security import sha256_base64url
from mcp_trio.auth import IdentityProvider
from tests.auth.authorizing import CALLBACK, ISSUER, STARTED, Site
from tests.clocks import Clock

PROVIDER = "https://id.example"
KEY = ECKey.generate_key("P-256", {"use": "sig", "alg": "ES256"}, private=True, auto_kid=True)


@attrs.define
class Provider:
    """An identity provider whose user logs in at once; attributes make it misbehave."""

    clock: object
    callback: str = f"{ISSUER}/callback"
    metadata: dict = attrs.field(factory=dict)
    claims: dict = attrs.field(factory=dict)
    key: ECKey = KEY
    keys: list = attrs.field(factory=lambda: [KEY])
    header: dict = attrs.field(factory=dict)
    token_status: int = 200
    tokens: dict = attrs.field(factory=dict)
    refused: dict | None = None
    refused_status: int = 400
    requests: list = attrs.field(factory=list)
    logins: dict = attrs.field(factory=dict)

    def log_in(self, url):
        """The URL to which the browser returns from the login page."""
        query = {name: value for name, (value,) in parse_qs(urlsplit(url).query).items()}
        assert url.startswith(f"{PROVIDER}/auth?")
        assert query["redirect_uri"] == self.callback
        assert query["code_challenge_method"] == "S256"
        code = f"code-{len(self.logins)}"
        self.logins[code] = query
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
                    "userinfo_endpoint": f"{PROVIDER}/userinfo",
                    "authorization_response_iss_parameter_supported": True,
                    **self.metadata,
                },
            )
        if path == "/keys":
            published = [key.as_dict(private=False) for key in self.keys]
            return httpx2.Response(200, json={"keys": [*published, {"kty": "x"}]})
        if path == "/userinfo":
            claims = {"id": 42, "token": request.headers.get("authorization"), **self.claims}
            return httpx2.Response(200, json=claims)
        form = {name: value for name, (value,) in parse_qs(request.content.decode()).items()}
        if self.refused is not None:
            return httpx2.Response(self.refused_status, json=self.refused)
        number = sum(each.url.path == "/token" for each in self.requests)
        tokens = {
            "access_token": f"access-token-{number}",
            "refresh_token": f"refresh-token-{number}",
            "expires_in": 300,
            **self.tokens,
        }
        if form["grant_type"] == "refresh_token":
            return httpx2.Response(200, json=tokens)
        query = self.logins[form["code"]]
        if sha256_base64url(form["code_verifier"].encode()) != query["code_challenge"]:
            return httpx2.Response(400, json={"error": "invalid_grant"})
        claims = {
            "iss": PROVIDER,
            "sub": "42",
            "aud": "desk",
            "exp": self.clock() + 60,
            "nonce": query["nonce"],
            "email": "ada@example.org",
            **self.claims,
        }
        header = {"alg": "ES256", "kid": KEY.kid, **self.header}
        if header["alg"] == "none":
            parts = [base64.urlsafe_b64encode(json.dumps(it).encode()) for it in (header, claims)]
            id_token = b".".join([*(part.rstrip(b"=") for part in parts), b""]).decode()
        else:
            registry = JWSRegistry(strict_check_header=False)
            id_token = jwt.encode(header, claims, self.key, registry=registry)
        if "openid" in query["scope"]:
            tokens["id_token"] = id_token
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

    async def decide(self, page, decision="allow"):
        form = {"request": page.request_id, "decision": decision}
        cookie = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        return self.took(await self.site.post("/authorize", form, cookie=cookie))

    async def begin(self, client_id):
        """The reply that leads to the provider, after the consent page."""
        page = await self.get(target_of(client_id))
        assert page.status == 200, page.text
        return await self.decide(page)

    async def return_with(self, values):
        given = {name: value for name, value in values.items() if value is not None}
        return await self.get(f"/callback?{urlencode(given)}")


def setting_of(**changes):
    clock = Clock(STARTED)
    provider = Provider(clock)
    login = IdentityProvider(
        **{
            "issuer": PROVIDER,
            "client_id": "desk",
            "client_secret": "sesame/+",
            "http_client": httpx2.AsyncClient(transport=httpx2.MockTransport(provider.answer)),
            **changes,
        }
    )
    return Site.of(login=login, now=clock), provider


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
    begun = await browser.begin(await site.client_id())
    assert begun.status == 303, begun.text
    values = {**provider.log_in(begun.headers["location"]), **changes}
    return browser, await browser.return_with(values)


async def tokens_of(site, provider, **changes):
    """The tokens of this server for a user who has logged in at the provider."""
    client_id = await site.client_id()
    browser = Browser(site)
    begun = await browser.begin(client_id)
    reply = await browser.return_with({**provider.log_in(begun.headers["location"]), **changes})
    code = reply.location[1]["code"]
    return client_id, (await site.redeem(client_id, code, code_verifier=VERIFIER)).json
