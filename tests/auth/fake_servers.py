"""An MCP server that requires tokens, and its authorization server: for httpx2, or on a socket."""

import contextlib
import hashlib
import json
import threading
from base64 import urlsafe_b64encode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit

import attrs
import httpx2
import trio

from mcp_trio._auth.http_auth import ServerAuth
from mcp_trio.auth import MemoryTokenStore, OAuth

SERVER = "https://mcp.example/mcp"
ISSUER = "https://login.example"
RESOURCE_PATH = "/.well-known/oauth-protected-resource/mcp"
SERVER_PATH = "/.well-known/oauth-authorization-server"


@attrs.define(eq=False)
class Names(trio.abc.HostnameResolver):
    """Names without a network: the given ones, and all others at `default`, if there is one."""

    addresses: dict = attrs.field(factory=dict)
    default: str | None = None

    async def getaddrinfo(self, host, *_arguments, **_options):
        await trio.lowlevel.checkpoint()
        name = host.decode() if isinstance(host, bytes) else host
        address = self.addresses.get(name, self.default)
        if address is None:
            raise OSError(-2, "Name or service not known")
        return [(2, 1, 6, "", (address, 0))]

    async def getnameinfo(self, *_arguments):
        raise NotImplementedError


@attrs.define(eq=False)
class FakeServers(httpx2.AsyncBaseTransport):
    """Both servers. `required` are the scopes that a request needs, by its JSON-RPC method."""

    now: float = 1_000_000.0
    lifetime: float | None = 3600
    rotates: bool = True
    issues_refresh_tokens: bool = True
    required: dict = attrs.field(factory=dict)
    overrides: dict = attrs.field(factory=dict)
    server_metadata: dict = attrs.field(factory=dict)
    resource_metadata: dict = attrs.field(factory=dict)
    token_type: str = "Bearer"
    server: str = SERVER
    issuer: str = ISSUER
    tokens: dict = attrs.field(factory=dict, init=False)
    refresh_tokens: dict = attrs.field(factory=dict, init=False)
    codes: dict = attrs.field(factory=dict, init=False)
    requests: list = attrs.field(factory=list, init=False)
    secrets: list = attrs.field(factory=list, init=False)
    logins: int = attrs.field(default=0, init=False)
    revoked: list = attrs.field(factory=list, init=False)
    token_delay: float = 0.0

    # What a test looks at.

    def count(self, host, path):
        return sum(
            (request.url.host, request.url.path) == (host, path) for request in self.requests
        )

    @property
    def refreshes(self):
        return sum(b"grant_type=refresh_token" in request.content for request in self.requests)

    @property
    def token_requests(self):
        return self.count("login.example", "/token")

    def authorizations(self):
        """The `Authorization` headers that the MCP server got, in order."""
        return [
            request.headers.get("authorization")
            for request in self.requests
            if request.url.path == "/mcp"
        ]

    def expire(self):
        """Let all tokens that were issued so far be invalid."""
        self.tokens.clear()

    # What a client is made of.

    async def log_in(self, url):
        """Be the browser of a user who agrees at once; return where it is redirected."""
        await trio.lowlevel.checkpoint()
        return self.redirect_of(url)

    def agree(self, request):
        return httpx2.Response(302, headers={"location": self.redirect_of(str(request.url))})

    def redirect_of(self, url):
        self.logins += 1
        query = dict(parse_qsl(urlsplit(url).query))
        code = f"code-{self.logins}"
        self.codes[code] = query
        self.secrets.append(code)
        return f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state']})}"

    def oauth(self, **options):
        options = {"store": MemoryTokenStore(), "on_authorize": self.log_in, **options}
        return OAuth(**options)

    def auth(self, credentials=None, **options):
        credentials = self.oauth() if credentials is None else credentials
        return ServerAuth(
            server=self.server,
            credentials=credentials,
            http=self.http(),
            wall_clock=lambda: self.now,
            **options,
        )

    def http(self, **options):
        return httpx2.AsyncClient(transport=self, **options)

    # The servers.

    async def handle_async_request(self, request):
        await request.aread()
        await trio.lowlevel.checkpoint()
        if request.url.path == "/token" and self.token_delay:
            await trio.sleep(self.token_delay)
        return self.respond(request)

    def respond(self, request):
        # A client changes the headers of a request before it repeats it.
        seen = httpx2.Request(
            request.method, request.url, headers=request.headers.raw, content=request.content
        )
        self.requests.append(seen)
        override = self.overrides.get(str(request.url)) or self.overrides.get(request.url.path)
        if override is not None:
            return override(request) if callable(override) else override
        kinds = {
            "/mcp": self.serve,
            RESOURCE_PATH: self.serve_resource_metadata,
            SERVER_PATH: self.serve_server_metadata,
            "/register": self.register,
            "/token": self.issue,
            "/authorize": self.agree,
            "/revoke": self.revoke,
        }
        serve = kinds.get(request.url.path)
        if serve is None:
            return httpx2.Response(404)
        return serve(request)

    def serve(self, request):
        method = json.loads(request.content)["method"] if request.content else request.method
        scopes = self.tokens.get(request.headers.get("authorization", "").partition(" ")[2])
        named = f'resource_metadata="{urljoin(self.server, RESOURCE_PATH)}"'
        needed = self.required.get(method, set())
        if scopes is None:
            challenge = f"{self.token_type} {named}"
            if needed:
                challenge += f', scope="{" ".join(sorted(needed))}"'
            return httpx2.Response(401, headers={"WWW-Authenticate": challenge})
        if not needed <= scopes:
            challenge = (
                f'Bearer {named}, error="insufficient_scope", scope="{" ".join(sorted(needed))}"'
            )
            return httpx2.Response(403, headers={"WWW-Authenticate": challenge})
        if not request.content:
            return httpx2.Response(405)
        message = json.loads(request.content)
        if "id" not in message:
            return httpx2.Response(202)
        results = {
            "initialize": {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "protected", "version": "1"},
            },
            "tools/list": {"tools": []},
            "tools/call": {"content": [{"type": "text", "text": "done"}]},
        }
        if method not in results:
            error = {"code": -32601, "message": "no"}
            return httpx2.Response(
                200, json={"jsonrpc": "2.0", "id": message["id"], "error": error}
            )
        return httpx2.Response(
            200, json={"jsonrpc": "2.0", "id": message["id"], "result": results[method]}
        )

    def serve_resource_metadata(self, _request):
        document = {"resource": self.server, "authorization_servers": [self.issuer]}
        return httpx2.Response(200, json=document | self.resource_metadata)

    def serve_server_metadata(self, _request):
        document = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "registration_endpoint": f"{self.issuer}/register",
            "revocation_endpoint": f"{self.issuer}/revoke",
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["client_secret_post"],
        }
        return httpx2.Response(200, json=document | self.server_metadata)

    def revoke(self, request):
        form = dict(parse_qsl(request.content.decode()))
        self.revoked.append(form["token"])
        self.refresh_tokens.pop(form["token"], None)
        return httpx2.Response(200)

    def register(self, _request):
        self.secrets.append("client-secret-1")
        document = {"client_id": "client-1", "client_secret": "client-secret-1"}
        return httpx2.Response(201, json=document)

    def issue(self, request):
        form = dict(parse_qsl(request.content.decode()))
        scopes = form.get("scope", "")
        if form["grant_type"] == "refresh_token":
            refresh_token = form["refresh_token"]
            if refresh_token not in self.refresh_tokens:
                return httpx2.Response(400, json={"error": "invalid_grant"})
            scopes = self.refresh_tokens[refresh_token]
            if self.rotates:
                del self.refresh_tokens[refresh_token]
        elif form["grant_type"] == "authorization_code":
            login = self.codes.pop(form["code"])
            digest = hashlib.sha256(form["code_verifier"].encode()).digest()
            self.secrets.append(form["code_verifier"])
            assert login["code_challenge"] == urlsafe_b64encode(digest).decode().rstrip("=")
            scopes = login.get("scope", "")
        number = len(self.secrets)
        token = f"access-token-{number}"
        document = {"access_token": token, "token_type": self.token_type}
        if self.lifetime is not None:
            document["expires_in"] = self.lifetime
        if self.issues_refresh_tokens:
            refresh_token = document["refresh_token"] = f"refresh-token-{number}"
            self.refresh_tokens[refresh_token] = scopes
            self.secrets.append(refresh_token)
        self.tokens[token] = {*scopes.split()}
        self.secrets.append(token)
        return httpx2.Response(200, json=document)


@contextlib.contextmanager
def on_socket(**options):
    """Run both servers at one loopback port, in a thread."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            url = f"{fake.issuer}{self.path}"
            request = httpx2.Request(
                self.command, url, headers=dict(self.headers.items()), content=body
            )
            with lock:
                response = fake.respond(request)
            self.send_response(response.status_code)
            for name, value in response.headers.items():
                self.send_header(name, value)
            if "content-length" not in response.headers:
                self.send_header("Content-Length", "0")
            self.end_headers()
            self.wfile.write(response.content)

        do_GET = do_POST = do_DELETE = answer

        def log_message(self, *_arguments):
            pass

    lock = threading.Lock()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    origin = f"http://127.0.0.1:{server.server_port}"
    fake = FakeServers(server=f"{origin}/mcp", issuer=origin, **options)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
