"""A browser and a client of an authorization server, without HTTP."""

import base64
import hashlib
import html
import json
import re
from typing import Any
from urllib.parse import parse_qs, urlencode

import attrs

from mcp_trio.auth import AuthorizationServer, HttpRequest
from tests.clocks import Clock
from tests.token_search import plant

ISSUER = "https://tools.example"
RESOURCE = f"{ISSUER}/mcp"
CALLBACK = "https://app.example/callback"
VERIFIER = "v" * 43
CHALLENGE = base64.urlsafe_b64encode(hashlib.sha256(VERIFIER.encode()).digest()).rstrip(b"=")
SECRETS = ("access_token", "refresh_token", "client_secret")
FORM = "application/x-www-form-urlencoded"
STARTED = 1_000_000.0  # the time of the clock at first


@attrs.define
class Reply:
    """A response: its status, its headers by names in lower case, and its body."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self):
        return self.body.decode()

    @property
    def location(self):
        """The URL of a redirect, without its query, and the parameters."""
        url, _, query = self.headers["location"].partition("?")
        return url, {name: value for name, (value,) in parse_qs(query).items()}

    @property
    def problem(self):
        return self.status, self.json["error"]

    @property
    def request_id(self):
        return html.unescape(re.search(r'name="request" value="([^"]*)"', self.text)[1])


async def alice(_request):
    return "alice"


@attrs.define
class Site:
    """An authorization server, with a clock that stands still."""

    server: AuthorizationServer
    clock: Clock
    address: str = "192.0.2.1"

    @classmethod
    def of(cls, *, login=alice, issuer=ISSUER, resource=RESOURCE, **settings):
        clock = settings.pop("now", Clock(STARTED))
        settings = {"scopes": {"read": "Read notes", "write": "Write <notes>"}, **settings}
        server = AuthorizationServer(login=login, issuer=issuer, now=clock, **settings)
        server.bind("http://127.0.0.1:1", [resource], lambda: ["tool"])
        return cls(server, clock)

    async def send(self, method, target, body=b"", **headers):
        pairs = [(name.replace("_", "-").encode(), it.encode()) for name, it in headers.items()]
        request = HttpRequest.of(method, target, pairs, client=self.address)
        response = await self.server.respond(request, body)
        fields = {name.lower(): value for name, value in response.headers}
        if response.body[:1] == b"{":
            issued = json.loads(response.body)
            plant(*(issued[name] for name in SECRETS if name in issued))
        return Reply(response.status, fields, response.body)

    async def post(self, path, form, **headers):
        body = urlencode(form).encode()
        return await self.send("POST", path, body, content_type=FORM, **headers)

    async def register(self, **metadata):
        metadata = {
            "redirect_uris": [CALLBACK],
            "client_name": "Buoy",
            "token_endpoint_auth_method": "none",
            "grant_types": ["authorization_code", "refresh_token"],
            **metadata,
        }
        return await self.send("POST", "/register", json.dumps(metadata).encode())

    async def client_id(self, **metadata):
        reply = await self.register(**metadata)
        assert reply.status == 201, reply.body
        return reply.json["client_id"]

    async def authorize(self, client_id, *, cookie=None, **parameters):
        """Open the authorization URL; parameters that are None are left out."""
        parameters = {
            "response_type": "code",
            "client_id": client_id,
            "redirect_uri": CALLBACK,
            "code_challenge": CHALLENGE.decode(),
            "code_challenge_method": "S256",
            "state": "s t&a=te",
            "resource": RESOURCE,
            **parameters,
        }
        given = {name: value for name, value in parameters.items() if value is not None}
        headers = {} if cookie is None else {"cookie": cookie}
        return await self.send("GET", f"/authorize?{urlencode(given)}", **headers)

    async def decide(self, page, decision="allow", **more):
        """Send the form of a consent page, with the cookie that came with the page."""
        cookie = more.pop("cookie", page.headers["set-cookie"].partition(";")[0])
        form = {"request": page.request_id, "decision": decision, **more}
        return await self.post("/authorize", form, cookie=cookie)

    async def code(self, client_id, **parameters):
        page = await self.authorize(client_id, **parameters)
        if page.status == 200:  # otherwise the consent is remembered
            page = await self.decide(page)
        return page.location[1]["code"]

    async def redeem(self, client_id, code, **form):
        form = {
            "grant_type": "authorization_code",
            "client_id": client_id,
            "code": code,
            "code_verifier": VERIFIER,
            "redirect_uri": CALLBACK,
            **form,
        }
        given = {name: value for name, value in form.items() if value is not None}
        return await self.post("/token", given)

    async def refresh(self, client_id, refresh_token, **form):
        form = {
            "grant_type": "refresh_token",
            "client_id": client_id,
            "refresh_token": refresh_token,
            **form,
        }
        return await self.post("/token", form)

    async def tokens(self, client_id, **parameters):
        reply = await self.redeem(client_id, await self.code(client_id, **parameters))
        assert reply.status == 200, reply.body
        return reply.json

    async def is_alive(self, access_token):
        """Whether the grant of an access token has not ended."""
        grant_id = claims_of(access_token)["grant_id"]
        return await self.server._grant(grant_id) is not None


def claims_of(token):
    """The claims of a token, without verifying it."""
    _, payload, _ = token.split(".")
    return json.loads(base64.urlsafe_b64decode(payload + "=="))
