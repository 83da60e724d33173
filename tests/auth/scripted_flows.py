"""A flow of a client against scripted servers, without I/O."""

import json
from urllib.parse import parse_qsl, urlencode, urlsplit

import attrs

from mcp_trio._auth.challenges import parse_challenges
from mcp_trio._auth.client_flow import (
    AskForClient,
    AssertionMade,
    Authorize,
    Challenged,
    ClientFlow,
    ClientGiven,
    ClientInformation,
    Finish,
    FlowSettings,
    MakeAssertion,
    PrepareRedirect,
    Redirected,
    RedirectReady,
    ResponseReceived,
    SendRequest,
    StoreClient,
    TokenSet,
)

NOW = 1_000_000.0
SERVER = "https://mcp.example/mcp"
ISSUER = "https://login.example"
OTHER_ISSUER = "https://other.example"
REDIRECT = "http://127.0.0.1:4711/callback"
STATE = "state-of-this-login"
VERIFIER = "verifier-of-this-login-which-is-43-characters-long"

RESOURCE_URL = "https://mcp.example/.well-known/oauth-protected-resource/mcp"
ROOT_RESOURCE_URL = "https://mcp.example/.well-known/oauth-protected-resource"
SERVER_URL = "https://login.example/.well-known/oauth-authorization-server"
OPENID_URL = "https://login.example/.well-known/openid-configuration"
ORIGIN_URL = "https://mcp.example/.well-known/oauth-authorization-server"
TOKEN_URL = "https://login.example/token"
REGISTER_URL = "https://login.example/register"
REVOKE_URL = "https://login.example/revoke"
PROVIDER_URL = "https://provider.example/token"

RESOURCE = {"resource": SERVER, "authorization_servers": [ISSUER]}
SERVER_METADATA = {
    "issuer": ISSUER,
    "authorization_endpoint": "https://login.example/authorize",
    "token_endpoint": TOKEN_URL,
    "registration_endpoint": REGISTER_URL,
    "code_challenge_methods_supported": ["S256"],
    "token_endpoint_auth_methods_supported": ["none"],
}
TOKEN = {"access_token": "the-token", "token_type": "Bearer", "expires_in": 3600}
REGISTERED = {"client_id": "registered-client"}


def answer(document, status=200, **headers):
    """A response with a JSON body."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return ResponseReceived(status=status, headers=headers, body=body)


def rejection(error, description=None, status=400):
    document = {"error": error}
    if description is not None:
        document["error_description"] = description
    return answer(document, status)


NOT_FOUND = answer(b"not found", 404)

DEFAULTS = {
    RESOURCE_URL: answer(RESOURCE),
    SERVER_URL: answer(SERVER_METADATA),
    REGISTER_URL: answer(REGISTERED, 201),
    TOKEN_URL: answer(TOKEN),
}


def challenged(value="Bearer", status=401):
    """The event of a response with this `WWW-Authenticate` header."""
    challenges = parse_challenges([value])
    return Challenged(status, challenges[0] if challenges else None)


def token_set(**changes):
    """A token that the client has had so far."""
    values = {
        "server": SERVER,
        "resource": SERVER,
        "issuer": ISSUER,
        "token_endpoint": TOKEN_URL,
        "client": ClientInformation(
            issuer=ISSUER, client_id="registered-client", redirect_uri=REDIRECT
        ),
        "access_token": "old-token",
        "refresh_token": "old-refresh",
        "requested_scopes": ["files"],
    }
    return TokenSet(**{**values, **changes})


@attrs.define
class Conversation:
    """A flow, what its servers answer, and what it did."""

    answers: dict = attrs.field(factory=dict)
    settings: FlowSettings = attrs.field(factory=FlowSettings)
    tokens: TokenSet | None = None
    clients: dict = attrs.field(factory=dict)
    server: str = SERVER
    response: dict = attrs.field(factory=dict)
    extra_query: str = ""
    redirect_uri: str = REDIRECT
    given_client: ClientInformation | None = None
    sent: list = attrs.field(factory=list, init=False)
    actions: list = attrs.field(factory=list, init=False)
    steps: list = attrs.field(factory=list, init=False)
    login: dict | None = attrs.field(default=None, init=False)
    login_url: str = attrs.field(default="", init=False)
    flow: ClientFlow = attrs.field(init=False)

    def __attrs_post_init__(self):
        answers = {**DEFAULTS, **self.answers}
        self.answers = {k: [*v] if isinstance(v, list) else v for k, v in answers.items()}
        self.flow = ClientFlow(
            server=self.server,
            settings=self.settings,
            tokens=self.tokens,
            clients=self.clients,
            state=STATE,
            verifier=VERIFIER,
        )

    def run(self, event=None):
        """Run the flow to its end, and return the token."""
        event = challenged() if event is None else event
        while True:
            self.steps.append(self.flow.step)
            actions = self.flow.receive(event, NOW)
            self.actions += actions
            event = None
            for action in actions:
                if isinstance(action, Finish):
                    self.steps.append(self.flow.step)
                    return action.tokens
                event = self.event_of(action)

    def event_of(self, action):
        match action:
            case SendRequest():
                self.sent.append(action)
                found = self.answers.get(action.url, NOT_FOUND)
                if isinstance(found, list):
                    found = found.pop(0)
                return found
            case PrepareRedirect():
                return RedirectReady(self.redirect_uri)
            case AskForClient():
                assert self.given_client is not None, "the user is asked for a client"
                return ClientGiven(self.given_client)
            case Authorize():
                self.login_url, _, query = action.url.partition("?")
                self.login = dict(parse_qsl(query))
                parameters = {"code": "the-code", "state": self.login["state"], **self.response}
                query = urlencode({k: v for k, v in parameters.items() if v is not None})
                return Redirected(f"{action.redirect_uri}?{query}{self.extra_query}")
            case MakeAssertion():
                return AssertionMade(f"assertion-for-{action.audience}")
            case StoreClient():
                return None
        raise AssertionError(action)

    @property
    def urls(self):
        """The URLs of the requests, in order."""
        return [request.url for request in self.sent]

    def forms(self, url=TOKEN_URL):
        """The forms that were sent to a token endpoint."""
        return [dict(parse_qsl(each.body.decode())) for each in self.sent if each.url == url]

    def form(self, url=TOKEN_URL):
        (form,) = self.forms(url)
        return form

    def registration(self, url=REGISTER_URL):
        (request,) = [each for each in self.sent if each.url == url]
        return json.loads(request.body)

    def hosts(self):
        return {urlsplit(url).hostname for url in self.urls}
