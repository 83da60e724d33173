"""An authorization server that signs tokens, and answers requests for its documents."""

import base64
import hashlib
import json
import secrets

import httpx2
import pytest
from joserfc import jwk, jws, jwt

NOW = 1_800_000_000
ISSUER = "https://issuer.example"
RESOURCE = "https://server.example/mcp"


class Issuer:
    """An authorization server in memory; `requests` has the URLs that were asked for."""

    def __init__(self, url=ISSUER):
        self.url = url
        self.keys = {"1": jwk.ECKey.generate_key("P-256", {"kid": "1", "use": "sig"})}
        self.requests = []
        self.answers = {}
        self.metadata = {
            "issuer": url,
            "jwks_uri": f"{url}/keys",
            "introspection_endpoint": f"{url}/introspect",
        }
        self.introspected = {}
        self.forms = []

    @property
    def key_set(self):
        return {"keys": [key.as_dict(private=False) for key in self.keys.values()]}

    def token(self, key_id="1", *, key=None, algorithm="ES256", typ="at+jwt", **claims):
        """A signed token; claims that are None are left out."""
        claims = {
            "iss": self.url,
            "aud": RESOURCE,
            "sub": "anna",
            "client_id": "buoy",
            "iat": NOW - 10,
            "exp": NOW + 600,
            "jti": "1",
            "scope": "notes:read",
            **claims,
        }
        claims = {name: value for name, value in claims.items() if value is not None}
        header = {"alg": algorithm, "typ": typ, "kid": key_id}
        header = {name: value for name, value in header.items() if value is not None}
        key = key or self.keys[key_id or "1"]
        return jwt.encode(header, claims, key, algorithms=[algorithm], default_type=None)

    def respond(self, request):
        url = str(request.url)
        self.requests.append(url)
        path = request.url.path
        if path in self.answers:
            answer = self.answers[path]
            return answer(request) if callable(answer) else answer
        if path == "/.well-known/oauth-authorization-server":
            return httpx2.Response(200, json=self.metadata)
        if path == "/keys":
            return httpx2.Response(200, json=self.key_set)
        if path == "/introspect":
            form = dict(httpx2.QueryParams(request.content.decode()))
            self.forms.append((form, request.headers.get("authorization")))
            return httpx2.Response(
                200, json=self.introspected.get(form["token"], {"active": False})
            )
        return httpx2.Response(404)

    @property
    def client(self):
        return httpx2.AsyncClient(transport=httpx2.MockTransport(self.respond))

    def is_away(self):
        def fail(_):
            raise httpx2.ConnectError("connection refused")

        paths = ("/.well-known/oauth-authorization-server", "/keys", "/introspect")
        self.answers |= dict.fromkeys(paths, fail)


def proof_of(key, *, token="abc", typ="dpop+jwt", algorithm="ES256", public=None, **claims):
    """A proof of the key; claims that are None are left out."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(token.encode()).digest()).decode()
    claims = {
        "jti": secrets.token_hex(),
        "htm": "POST",
        "htu": RESOURCE,
        "iat": NOW,
        "ath": digest.rstrip("="),
        **claims,
    }
    claims = {name: value for name, value in claims.items() if value is not None}
    public = key.as_dict(private=False) if public is None else public
    header = {"alg": algorithm, "typ": typ, "jwk": public}
    return jws.serialize_compact(header, json.dumps(claims).encode(), key, algorithms=[algorithm])


@pytest.fixture
def issuer():
    return Issuer()
