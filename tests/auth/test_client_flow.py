"""The state machine with which a client gets a token: each step, choice and check, without I/O."""

import base64
import hashlib

import attrs
import pytest

from mcp_trio._auth.client_flow import (
    TRANSITIONS,
    ClientInformation,
    Dropped,
    Expiring,
    FlowSettings,
    Outcome,
    Step,
)
from mcp_trio.errors import AuthorizationError
from tests.auth.scripted_flows import (
    ISSUER,
    NOT_FOUND,
    NOW,
    OPENID_URL,
    ORIGIN_URL,
    OTHER_ISSUER,
    PROVIDER_URL,
    REDIRECT,
    REGISTER_URL,
    RESOURCE,
    RESOURCE_URL,
    REVOKE_URL,
    ROOT_RESOURCE_URL,
    SERVER,
    SERVER_METADATA,
    SERVER_URL,
    STATE,
    TOKEN,
    TOKEN_URL,
    VERIFIER,
    Conversation,
    answer,
    challenged,
    rejection,
    token_set,
)

METADATA_URL = "https://client.example/client.json"
INSUFFICIENT = 'Bearer error="insufficient_scope", scope="admin"'


def client(**changes):
    return ClientInformation(**{"client_id": "known-client", **changes})


def failure(conversation, event=None):
    """The text of the error with which the flow ends."""
    with pytest.raises(AuthorizationError) as caught:
        conversation.run(event)
    return str(caught.value)


# Conversations that together take every transition.

JWT_CLIENT = client(auth_method="private_key_jwt")
ENTERPRISE = FlowSettings(
    grant="id_jag",
    client=client(client_secret="s"),
    provider=client(client_id="at-provider"),
    provider_token_endpoint=PROVIDER_URL,
)
NONCE = rejection("use_dpop_nonce")
CONVERSATIONS = {
    "a first login": ({}, None),
    "metadata elsewhere": (
        {
            "answers": {
                RESOURCE_URL: NOT_FOUND,
                ROOT_RESOURCE_URL: answer(b"", 302, location="/metadata"),
                "https://mcp.example/metadata": answer(RESOURCE),
                SERVER_URL: answer(b"", 301, location="/here"),
                "https://login.example/here": NOT_FOUND,
                OPENID_URL: answer(SERVER_METADATA),
            }
        },
        None,
    ),
    "2025-03-26 with metadata": (
        {
            "answers": {
                RESOURCE_URL: NOT_FOUND,
                ORIGIN_URL: answer(b"", 307, location="/moved"),
                "https://mcp.example/moved": answer(
                    {**SERVER_METADATA, "issuer": "https://mcp.example"}
                ),
            }
        },
        None,
    ),
    "2025-03-26 without metadata": (
        {
            "answers": {
                RESOURCE_URL: NOT_FOUND,
                "https://mcp.example/register": answer({"client_id": "x"}, 201),
                "https://mcp.example/token": answer(TOKEN),
            }
        },
        None,
    ),
    "a known client": ({"settings": FlowSettings(client=client())}, None),
    "a user names the client": (
        {
            "answers": {SERVER_URL: answer({**SERVER_METADATA, "registration_endpoint": None})},
            "given_client": client(),
        },
        None,
    ),
    "a refresh": ({"tokens": token_set()}, None),
    "a refresh with a nonce": (
        {"tokens": token_set(), "answers": {TOKEN_URL: [NONCE, answer(TOKEN)]}},
        None,
    ),
    "a refresh that is rejected": (
        {
            "tokens": token_set(),
            "answers": {TOKEN_URL: [rejection("invalid_grant"), answer(TOKEN)]},
        },
        None,
    ),
    "a renewal": ({"tokens": token_set()}, Expiring()),
    "a renewal with a nonce": (
        {
            "tokens": token_set(client=JWT_CLIENT),
            "answers": {TOKEN_URL: [NONCE, answer(TOKEN)]},
        },
        Expiring(),
    ),
    "a refresh by a key": ({"tokens": token_set(client=JWT_CLIENT)}, None),
    "a login with a nonce": (
        {"answers": {TOKEN_URL: [NONCE, answer({**TOKEN, "token_type": "DPoP"})]}},
        None,
    ),
    "credentials by a key": (
        {"settings": FlowSettings(grant="client_credentials", client=JWT_CLIENT)},
        None,
    ),
    "credentials that expire": (
        {
            "settings": FlowSettings(grant="client_credentials", client=client(client_secret="s")),
            "tokens": token_set(),
        },
        Expiring(),
    ),
    "an identity of a workload": (
        {"settings": FlowSettings(grant="jwt_bearer", client=client(auth_method="none"))},
        None,
    ),
    "a token exchange": (
        {"settings": FlowSettings(grant="token_exchange", client=client())},
        None,
    ),
    "an enterprise": (
        {
            "settings": ENTERPRISE,
            "answers": {PROVIDER_URL: answer({"access_token": "jag", "token_type": "N_A"})},
        },
        None,
    ),
    "a revocation": (
        {
            "tokens": token_set(revocation_endpoint=REVOKE_URL),
            "answers": {REVOKE_URL: answer(b"")},
        },
        Dropped(),
    ),
    "a revocation by a key": (
        {
            "tokens": token_set(revocation_endpoint=REVOKE_URL, client=JWT_CLIENT),
            "answers": {REVOKE_URL: answer(b"")},
        },
        Dropped(),
    ),
}


@pytest.fixture
def taken(monkeypatch):
    """The transitions that flows take."""
    rows = set()

    class Table(dict):
        def __getitem__(self, key):
            rows.add(key)
            return super().__getitem__(key)

    monkeypatch.setattr("mcp_trio._auth.client_flow.TRANSITIONS", Table(TRANSITIONS))
    return rows


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_each_conversation_ends_with_a_token(name):
    options, event = CONVERSATIONS[name]
    tokens = Conversation(**options).run(event)
    assert tokens is None if isinstance(event, Dropped) else tokens.access_token == "the-token"


def test_the_conversations_take_every_transition(taken):
    for options, event in CONVERSATIONS.values():
        Conversation(**options).run(event)
    assert taken == set(TRANSITIONS)


def test_an_event_of_another_step_is_a_bug():
    conversation = Conversation()
    with pytest.raises(RuntimeError, match="ResponseReceived cannot be received in IDLE"):
        conversation.flow.receive(NOT_FOUND, NOW)


def test_all_steps_and_outcomes_have_a_row():
    assert {step for step, _ in TRANSITIONS} | {*TRANSITIONS.values()} == set(Step)
    assert {outcome for _, outcome in TRANSITIONS} == set(Outcome)


# Discovery


@pytest.mark.requirement("AUTH-14", "AUTH-17", "AUTH-18", "TRAP-119")
def test_metadata_that_the_challenge_names_are_read_first():
    named = "https://mcp.example/custom/metadata.json"
    conversation = Conversation({named: answer(RESOURCE)})
    conversation.run(challenged(f'Bearer resource_metadata="{named}"'))
    assert conversation.urls[:2] == [named, SERVER_URL]


@pytest.mark.requirement("AUTH-18", "TRAP-119")
def test_well_known_urls_are_tried_with_the_path_first():
    conversation = Conversation(
        {RESOURCE_URL: NOT_FOUND, ROOT_RESOURCE_URL: answer({**RESOURCE, "resource": SERVER})}
    )
    conversation.run()
    assert conversation.urls[:3] == [RESOURCE_URL, ROOT_RESOURCE_URL, SERVER_URL]


@pytest.mark.requirement("AUTH-31", "AUTH-32", "AUTH-33", "TRAP-119")
def test_documents_of_an_issuer_with_a_path_are_tried_in_order():
    issuer = "https://login.example/tenant"
    resource = {**RESOURCE, "authorization_servers": [issuer]}
    urls = [
        "https://login.example/.well-known/oauth-authorization-server/tenant",
        "https://login.example/.well-known/openid-configuration/tenant",
        "https://login.example/tenant/.well-known/openid-configuration",
    ]
    document = {**SERVER_METADATA, "issuer": issuer}
    conversation = Conversation({RESOURCE_URL: answer(resource), urls[2]: answer(document)})
    assert conversation.run().issuer == issuer
    assert conversation.urls[1:4] == urls


@pytest.mark.requirement("AUTH-23", "AUTH-24", "TRAP-118")
@pytest.mark.parametrize("slash", ["", "/"])
def test_a_server_without_metadata_is_its_own_authorization_server(slash):
    origin = "https://mcp.example"
    conversation = Conversation(
        {
            RESOURCE_URL: NOT_FOUND,
            ORIGIN_URL: answer(
                {
                    **SERVER_METADATA,
                    "issuer": f"{origin}{slash}",
                    "token_endpoint": f"{origin}/oauth/token",
                }
            ),
            f"{origin}/oauth/token": answer(TOKEN),
        }
    )
    tokens = conversation.run()
    assert tokens.issuer == f"{origin}{slash}"
    assert conversation.form(f"{origin}/oauth/token")["resource"] == SERVER


@pytest.mark.requirement("AUTH-24", "TRAP-118")
def test_without_any_metadata_the_default_endpoints_are_used():
    options, _ = CONVERSATIONS["2025-03-26 without metadata"]
    conversation = Conversation(**options)
    conversation.run()
    assert conversation.urls[-2:] == ["https://mcp.example/register", "https://mcp.example/token"]
    assert conversation.login_url == "https://mcp.example/authorize"


def test_a_server_that_names_metadata_is_not_taken_for_an_old_one():
    named = 'Bearer resource_metadata="https://mcp.example/gone"'
    conversation = Conversation({RESOURCE_URL: NOT_FOUND})
    text = failure(conversation, challenged(named))
    assert "https://mcp.example/gone answered HTTP 404" in text
    assert ORIGIN_URL not in conversation.urls


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("url", [RESOURCE_URL, SERVER_URL, ORIGIN_URL])
def test_a_server_that_fails_is_not_taken_for_one_of_another_design(url, status):
    answers = {RESOURCE_URL: NOT_FOUND} if url == ORIGIN_URL else {}
    text = failure(Conversation({**answers, url: answer(b"", status)}))
    assert f"HTTP {status}; try again" in text


def test_a_page_in_place_of_a_document_counts_as_none():
    page = answer(b"<!doctype html>")
    conversation = Conversation({RESOURCE_URL: page, ROOT_RESOURCE_URL: answer(RESOURCE)})
    assert conversation.run().access_token == "the-token"


@pytest.mark.requirement("AUTH-34", "TRAP-120")
@pytest.mark.parametrize(
    "issuer", ["https://login.example/", "https://LOGIN.example", "https://evil.example"]
)
def test_metadata_of_another_issuer_are_not_used(issuer):
    conversation = Conversation({SERVER_URL: answer({**SERVER_METADATA, "issuer": issuer})})
    text = failure(conversation)
    assert f"is of another issuer, '{issuer}'" in text
    assert conversation.login is None
    assert conversation.urls == [RESOURCE_URL, SERVER_URL, OPENID_URL]


def test_metadata_of_an_old_server_are_of_its_origin():
    document = {**SERVER_METADATA, "issuer": "https://evil.example"}
    conversation = Conversation({RESOURCE_URL: NOT_FOUND, ORIGIN_URL: answer(document)})
    assert "of another issuer" in failure(conversation)


@pytest.mark.requirement("TRAP-121", "AUTH-37")
@pytest.mark.parametrize(
    "resource",
    [
        "https://evil.example/mcp",
        "https://mcp.example/other",
        "https://mcp.example/mc",
        "https://mcp.example/mcp/deeper",
        "http://mcp.example/mcp",
        "https://mcp.example:444/mcp",
        "https://mcp.example/mcp#fragment",
        "not a url",
    ],
)
def test_metadata_of_another_resource_are_refused(resource):
    conversation = Conversation({RESOURCE_URL: answer({**RESOURCE, "resource": resource})})
    assert "its metadata are for another resource" in failure(conversation)
    assert conversation.urls == [RESOURCE_URL]


@pytest.mark.requirement("AUTH-37", "AUTH-38", "AUTH-39", "TRAP-121")
@pytest.mark.parametrize(
    "resource",
    [SERVER, "https://mcp.example", "https://mcp.example/", "HTTPS://MCP.example:443/mcp"],
)
def test_both_requests_have_the_resource_as_the_server_writes_it(resource):
    conversation = Conversation({RESOURCE_URL: answer({**RESOURCE, "resource": resource})})
    assert conversation.run().resource == resource
    assert conversation.login["resource"] == conversation.form()["resource"] == resource


@pytest.mark.requirement("AUTH-38", "AUTH-39")
def test_the_identifier_of_a_server_has_no_query_or_slash_at_the_end():
    old = {RESOURCE_URL: NOT_FOUND, "https://mcp.example/register": answer({"client_id": "x"})}
    conversation = Conversation(
        {**old, "https://mcp.example/token": answer(TOKEN)}, server="https://MCP.example/mcp/?a=b"
    )
    assert conversation.run().resource == "https://mcp.example/mcp"


@pytest.mark.requirement("AUTH-14")
def test_metadata_without_an_authorization_server_are_an_error():
    conversation = Conversation({RESOURCE_URL: answer({"resource": SERVER})})
    assert "name no authorization server" in failure(conversation)


@pytest.mark.requirement("AUTH-14")
def test_of_several_issuers_the_one_that_knows_the_client_is_chosen():
    resource = {**RESOURCE, "authorization_servers": [OTHER_ISSUER, ISSUER]}
    known = {ISSUER: client(issuer=ISSUER, redirect_uri=REDIRECT)}
    conversation = Conversation({RESOURCE_URL: answer(resource)}, clients=known)
    assert conversation.run().issuer == ISSUER


@pytest.mark.requirement("AUTH-25")
def test_discovery_requests_name_a_protocol_version():
    conversation = Conversation()
    conversation.run()
    for request in conversation.sent[:2]:
        assert request.headers["MCP-Protocol-Version"] == "2026-07-28"


def test_redirects_of_metadata_end():
    conversation = Conversation({RESOURCE_URL: answer(b"", 302, location=RESOURCE_URL)})
    assert "redirects more than 3 times" in failure(conversation)
    assert len(conversation.urls) == 4
    conversation = Conversation({RESOURCE_URL: answer(b"", 302, location="//[")})
    assert f"{RESOURCE_URL} redirects to no URL: '//['" in failure(conversation)


# PKCE


@pytest.mark.requirement("AUTH-35", "AUTH-36")
def test_pkce_is_used_with_s256():
    conversation = Conversation()
    conversation.run()
    digest = hashlib.sha256(VERIFIER.encode()).digest()
    assert conversation.login["code_challenge_method"] == "S256"
    assert conversation.login["code_challenge"] == (
        base64.urlsafe_b64encode(digest).decode().rstrip("=")
    )
    assert conversation.form()["code_verifier"] == VERIFIER


@pytest.mark.requirement("AUTH-36", "TRAP-124")
@pytest.mark.parametrize("methods", [None, [], ["plain"]])
def test_a_server_without_pkce_gets_no_login(methods):
    document = {**SERVER_METADATA, "code_challenge_methods_supported": methods}
    conversation = Conversation({SERVER_URL: answer(document)})
    assert "PKCE" in failure(conversation)
    assert (conversation.login, conversation.urls) == (None, [RESOURCE_URL, SERVER_URL])


@pytest.mark.requirement("TRAP-124")
def test_a_user_may_say_that_a_server_supports_pkce():
    document = {**SERVER_METADATA, "code_challenge_methods_supported": None}
    settings = FlowSettings(assumes_pkce=True)
    assert Conversation({SERVER_URL: answer(document)}, settings).run().access_token


# Registration


@pytest.mark.requirement(
    "AUTH-44", "AUTH-45", "AUTH-46", "AUTH-52", "AUTH-70", "AUTH-41", "AUTH-43"
)
def test_a_client_is_registered_as_a_native_application():
    conversation = Conversation()
    tokens = conversation.run()
    assert conversation.registration() == {
        "client_name": "mcp_trio",
        "redirect_uris": [REDIRECT],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
        "application_type": "native",
    }
    assert tokens.client == ClientInformation(
        issuer=ISSUER, client_id="registered-client", auth_method="none", redirect_uri=REDIRECT
    )


@pytest.mark.requirement("AUTH-52")
def test_a_client_of_a_web_host_is_registered_as_a_web_application():
    conversation = Conversation(redirect_uri="https://host.example/callback")
    conversation.run()
    assert conversation.registration()["application_type"] == "web"


@pytest.mark.requirement("AUTH-47", "AUTH-48", "AUTH-49", "AUTH-51")
@pytest.mark.parametrize(
    ("settings", "document", "clients", "expected"),
    [
        ({"client": client()}, {}, {}, "known-client"),
        ({"client": client(), "metadata_url": METADATA_URL}, {}, {}, "known-client"),
        ({"metadata_url": METADATA_URL}, {}, {}, METADATA_URL),
        (
            {"metadata_url": METADATA_URL},
            {"client_id_metadata_document_supported": False},
            {},
            "registered-client",
        ),
        ({}, {}, {ISSUER: client(issuer=ISSUER, redirect_uri=REDIRECT)}, "known-client"),
        ({}, {}, {ISSUER: client(redirect_uri="http://127.0.0.1:1/cb")}, "registered-client"),
        ({}, {}, {ISSUER: client(secret_expires_at=NOW - 1)}, "registered-client"),
        ({}, {}, {OTHER_ISSUER: client()}, "registered-client"),
        ({}, {"registration_endpoint": None}, {}, "given-client"),
    ],
)
def test_how_a_client_gets_its_id(settings, document, clients, expected):
    metadata = {**SERVER_METADATA, "client_id_metadata_document_supported": True, **document}
    conversation = Conversation(
        {SERVER_URL: answer(metadata)},
        FlowSettings(**settings),
        clients=clients,
        given_client=client(client_id="given-client"),
    )
    assert conversation.run().client.client_id == expected
    assert conversation.login["client_id"] == expected
    assert (REGISTER_URL in conversation.urls) == (expected == "registered-client")


@pytest.mark.requirement("AUTH-53")
def test_a_redirect_uri_that_is_not_accepted_is_explained():
    response = rejection("invalid_redirect_uri", "only\nhttps")
    text = failure(Conversation({REGISTER_URL: response}))
    assert "invalid_redirect_uri (only https)" in text
    assert REDIRECT in text
    assert "client_id=" in text


def test_a_registration_without_an_id_is_an_error():
    for response in (answer({}, 201), answer(b'{"a": ' + b"[" * 9000, 201)):
        assert "without a client_id" in failure(Conversation({REGISTER_URL: response}))


@pytest.mark.requirement("AUTH-54", "AUTH-55", "AUTH-56", "TRAP-125", "AUTH-12")
def test_at_another_authorization_server_the_client_registers_again():
    other = {
        **SERVER_METADATA,
        "issuer": OTHER_ISSUER,
        "token_endpoint": f"{OTHER_ISSUER}/token",
        "registration_endpoint": f"{OTHER_ISSUER}/register",
        "authorization_endpoint": f"{OTHER_ISSUER}/authorize",
    }
    conversation = Conversation(
        {
            RESOURCE_URL: answer({**RESOURCE, "authorization_servers": [OTHER_ISSUER]}),
            f"{OTHER_ISSUER}/.well-known/oauth-authorization-server": answer(other),
            f"{OTHER_ISSUER}/register": answer({"client_id": "second-client"}, 201),
            f"{OTHER_ISSUER}/token": answer(TOKEN),
        },
        tokens=token_set(),
        clients={ISSUER: client(issuer=ISSUER, redirect_uri=REDIRECT)},
    )
    tokens = conversation.run()
    assert (tokens.issuer, tokens.client.client_id) == (OTHER_ISSUER, "second-client")
    assert conversation.hosts() == {"mcp.example", "other.example"}
    assert "old-refresh" not in str([each.body for each in conversation.sent])


@pytest.mark.requirement("AUTH-55", "AUTH-57", "TRAP-125")
@pytest.mark.parametrize(
    "options",
    [
        {"settings": FlowSettings(client=client(issuer=OTHER_ISSUER))},
        {
            "settings": FlowSettings(client=client(client_secret="s")),
            "tokens": token_set(issuer=OTHER_ISSUER, client=client(issuer=OTHER_ISSUER)),
        },
        {
            "settings": FlowSettings(
                grant="client_credentials", client=client(issuer=OTHER_ISSUER, client_secret="s")
            )
        },
    ],
)
def test_a_known_client_is_not_used_at_another_authorization_server(options):
    conversation = Conversation(**options)
    text = failure(conversation)
    assert f"'known-client' is registered at {OTHER_ISSUER}" in text
    assert conversation.urls == [RESOURCE_URL]


@pytest.mark.requirement("AUTH-55", "TRAP-125")
def test_only_the_authorization_server_in_the_settings_is_used():
    settings = FlowSettings(issuer=OTHER_ISSUER)
    for answers in ({}, {RESOURCE_URL: NOT_FOUND, ROOT_RESOURCE_URL: NOT_FOUND}):
        conversation = Conversation(answers, settings)
        assert f"the settings name the authorization server {OTHER_ISSUER}" in failure(conversation)
        assert conversation.login is None


def test_a_server_may_add_a_slash_to_the_issuer_in_the_settings():
    document = answer({**RESOURCE, "authorization_servers": [f"{ISSUER}/"]})
    assert "is of another issuer" in failure(Conversation({RESOURCE_URL: document}))
    conversation = Conversation({RESOURCE_URL: document}, FlowSettings(issuer=ISSUER))
    assert conversation.run().issuer == ISSUER


def test_an_old_server_gets_no_credentials_of_another_issuer():
    settings = FlowSettings(client=client(issuer=ISSUER, client_secret="s"))
    conversation = Conversation({RESOURCE_URL: NOT_FOUND}, settings)
    assert f"is registered at {ISSUER}, but the server uses https://mcp.example" in failure(
        conversation
    )
    assert conversation.login is None


# Authorization


@pytest.mark.requirement("AUTH-40", "AUTH-58", "AUTH-41")
def test_the_login_page_gets_state_and_redirect_uri():
    conversation = Conversation()
    conversation.run()
    assert conversation.login["state"] == STATE
    assert conversation.login["response_type"] == "code"
    assert conversation.login["redirect_uri"] == REDIRECT
    assert conversation.form()["redirect_uri"] == REDIRECT
    assert conversation.form()["code"] == "the-code"


@pytest.mark.requirement("AUTH-40")
@pytest.mark.parametrize("state", ["another", "", None, STATE.upper()])
def test_a_response_with_another_state_is_refused(state):
    conversation = Conversation(response={"state": state})
    assert "another state" in failure(conversation)
    assert TOKEN_URL not in conversation.urls


@pytest.mark.requirement("AUTH-59", "AUTH-60", "AUTH-61", "TRAP-120")
@pytest.mark.parametrize(
    ("is_advertised", "issuer", "is_accepted"),
    [
        (True, ISSUER, True),
        (True, None, False),
        (True, "https://evil.example", False),
        (True, f"{ISSUER}/", False),
        (True, "https://LOGIN.example", False),
        (True, "https://login.example:443", False),
        (False, ISSUER, True),
        (False, None, True),
        (False, "https://evil.example", False),
        (None, None, True),
        (None, f"{ISSUER}/", False),
    ],
)
def test_the_issuer_of_an_authorization_response(is_advertised, issuer, is_accepted):
    name = "authorization_response_iss_parameter_supported"
    conversation = Conversation(
        {SERVER_URL: answer({**SERVER_METADATA, name: is_advertised})}, response={"iss": issuer}
    )
    if is_accepted:
        assert conversation.run().access_token == "the-token"
    else:
        assert "the authorization response" in failure(conversation)
        assert TOKEN_URL not in conversation.urls


@pytest.mark.requirement("AUTH-62", "TRAP-120")
@pytest.mark.parametrize("name", ["error", "error_description", "error_uri"])
def test_the_error_of_another_issuer_is_not_shown(name):
    response = {"iss": "https://evil.example", "error": "denied", name: "SHOWN"}
    assert "SHOWN" not in failure(Conversation(response=response))


def test_an_error_of_the_login_page_is_shown_on_one_line():
    response = {"code": None, "error": "access_denied", "error_description": "no\x1b[2J\nway"}
    with pytest.raises(AuthorizationError, match=r"access_denied \(no \[2J way\)") as caught:
        Conversation(response=response).run()
    assert caught.value.code == "access_denied"


@pytest.mark.parametrize("response", [{"code": None}, {"code": ""}])
def test_a_response_without_a_code_is_an_error(response):
    assert "has no code" in failure(Conversation(response=response))


def test_a_parameter_twice_is_an_error():
    assert "has a parameter twice" in failure(Conversation(extra_query="&code=second"))


# Scopes


def scopes_of(conversation):
    return conversation.login.get("scope", "").split()


@pytest.mark.requirement("AUTH-20", "AUTH-21", "AUTH-22", "AUTH-68", "TRAP-123")
@pytest.mark.parametrize(
    ("settings", "challenge", "listed", "before", "expected"),
    [
        (None, 'Bearer scope="a b"', ["x", "y"], None, "a b"),
        (None, "Bearer", ["x", "y"], None, "x y"),
        (None, "Bearer", None, None, ""),
        (None, 'Bearer scope=""', ["x"], None, ""),
        (("mine",), "Bearer", ["x"], None, "mine"),
        (("mine",), 'Bearer scope="a"', ["x"], None, "mine a"),
        (None, 'Bearer error="insufficient_scope", scope="b a"', ["x"], ["a", "c"], "a c b"),
        (None, 'Bearer scope="new"', None, ["old"], "old new"),
        (None, "Bearer", ["x", "offline_access"], None, "x"),
    ],
)
def test_which_scopes_are_requested(settings, challenge, listed, before, expected):
    resource = RESOURCE if listed is None else {**RESOURCE, "scopes_supported": listed}
    tokens = None if before is None else token_set(requested_scopes=before)
    conversation = Conversation({RESOURCE_URL: answer(resource)}, FlowSettings(scopes=settings))
    conversation.tokens = conversation.flow.tokens = tokens
    result = conversation.run(challenged(challenge))
    assert scopes_of(conversation) == expected.split()
    assert result.requested_scopes == expected.split()
    assert ("scope" in conversation.login) == bool(expected)


def test_scopes_of_another_issuer_are_not_requested_again():
    conversation = Conversation(tokens=token_set(issuer=OTHER_ISSUER, requested_scopes=["old"]))
    conversation.run(challenged('Bearer scope="new"'))
    assert scopes_of(conversation) == ["new"]


@pytest.mark.requirement("AUTH-69", "AUTH-70")
@pytest.mark.parametrize(
    ("offered", "challenge", "expected"),
    [
        (["a", "offline_access"], 'Bearer scope="a"', "a offline_access"),
        (["a", "offline_access"], "Bearer", ""),
        (["a"], 'Bearer scope="a"', "a"),
        (["a"], 'Bearer scope="a offline_access"', "a"),
        (None, 'Bearer scope="a offline_access"', "a"),
    ],
)
def test_offline_access_is_requested_where_it_is_offered(offered, challenge, expected):
    document = {**SERVER_METADATA, "scopes_supported": offered}
    conversation = Conversation({SERVER_URL: answer(document)})
    conversation.run(challenged(challenge))
    assert scopes_of(conversation) == expected.split()
    assert (conversation.login.get("prompt") == "consent") == ("offline_access" in expected)


@pytest.mark.requirement("AUTH-67", "AUTH-68")
def test_more_scopes_need_a_login_and_not_a_refresh():
    conversation = Conversation(tokens=token_set())
    tokens = conversation.run(challenged(INSUFFICIENT, 403))
    assert conversation.form()["grant_type"] == "authorization_code"
    assert scopes_of(conversation) == ["files", "admin"]
    # Scopes of a registration would be the limit of what the client can ask for later.
    assert "scope" not in conversation.registration()
    assert tokens.requested_scopes == ["files", "admin"]


def test_granted_scopes_are_those_that_the_server_names():
    conversation = Conversation({TOKEN_URL: answer({**TOKEN, "scope": "a"})})
    tokens = conversation.run(challenged('Bearer scope="a b"'))
    assert (tokens.scopes, tokens.requested_scopes) == (["a"], ["a", "b"])


# The token endpoint


@pytest.mark.parametrize(
    ("methods", "information", "expected"),
    [
        (None, {"client_secret": "s&s"}, "basic"),
        (["client_secret_basic", "client_secret_post"], {"client_secret": "s&s"}, "basic"),
        (["client_secret_post"], {"client_secret": "s&s"}, "post"),
        (["none"], {}, "none"),
        (["client_secret_basic"], {}, "none"),
        (None, {"auth_method": "client_secret_post", "client_secret": "s&s"}, "post"),
        (["private_key_jwt"], {"auth_method": "private_key_jwt"}, "jwt"),
    ],
)
def test_how_a_client_authenticates(methods, information, expected):
    document = {**SERVER_METADATA, "token_endpoint_auth_methods_supported": methods}
    conversation = Conversation(
        {SERVER_URL: answer(document)}, FlowSettings(client=client(client_id="a:b", **information))
    )
    conversation.run()
    form, headers = conversation.form(), conversation.sent[-1].headers
    assert headers.get("Authorization") == (
        f"Basic {base64.b64encode(b'a%3Ab:s%26s').decode()}" if expected == "basic" else None
    )
    assert form.get("client_id") == ("a:b" if expected in {"post", "none"} else None)
    assert form.get("client_secret") == ("s&s" if expected == "post" else None)
    assert form.get("client_assertion") == (
        f"assertion-for-{ISSUER}" if expected == "jwt" else None
    )


@pytest.mark.parametrize("event", [Expiring(), Dropped()])
def test_a_client_authenticates_later_as_it_did_first(event):
    document = {
        **SERVER_METADATA,
        "revocation_endpoint": REVOKE_URL,
        "token_endpoint_auth_methods_supported": ["client_secret_post"],
    }
    answers = {SERVER_URL: answer(document), REVOKE_URL: answer(b"")}
    settings = FlowSettings(client=client(client_secret="s"))
    tokens = attrs.evolve(Conversation(answers, settings).run(), refresh_token="r")
    later = Conversation(answers, settings, tokens)
    later.run(event)
    (request,) = later.sent
    assert later.form(request.url)["client_secret"] == "s"
    assert "Authorization" not in request.headers


@pytest.mark.parametrize(
    ("methods", "method"),
    [
        (None, "none"),
        (["client_secret_post"], "client_secret_post"),
        (["client_secret_basic", "none"], "none"),
        (["client_secret_post", "client_secret_basic"], "client_secret_basic"),
        (["tls_client_auth"], "none"),
    ],
)
def test_which_method_is_registered(methods, method):
    document = {**SERVER_METADATA, "token_endpoint_auth_methods_supported": methods}
    conversation = Conversation({SERVER_URL: answer(document)})
    conversation.run()
    assert conversation.registration()["token_endpoint_auth_method"] == method


def test_a_secret_that_was_not_asked_for_is_used():
    registered = {"client_id": "x", "client_secret": "s", "client_secret_expires_at": NOW + 9}
    document = {**SERVER_METADATA, "token_endpoint_auth_methods_supported": None}
    conversation = Conversation(
        {SERVER_URL: answer(document), REGISTER_URL: answer(registered, 201)}
    )
    tokens = conversation.run()
    assert tokens.client.auth_method == "client_secret_basic"
    assert tokens.client.secret_expires_at == NOW + 9


def test_a_method_for_which_a_registered_client_has_no_key_is_not_used():
    registered = {"client_id": "x", "token_endpoint_auth_method": "private_key_jwt"}
    tokens = Conversation({REGISTER_URL: answer(registered, 201)}).run()
    assert tokens.client.auth_method is None


@pytest.mark.requirement("AUTH-42")
def test_the_secret_of_a_given_client_is_not_stored_with_the_token():
    settings = FlowSettings(client=client(client_secret="s"))
    tokens = Conversation(settings=settings).run()
    assert tokens.client.client_secret is None
    renewal = Conversation(settings=settings, tokens=attrs.evolve(tokens, refresh_token="r"))
    renewal.run(Expiring())
    assert renewal.sent[0].headers["Authorization"].startswith("Basic ")


@pytest.mark.parametrize(
    ("expires_in", "expires_at", "renew_at"),
    [
        (3600, NOW + 3600, NOW + 3540),
        ("3600", NOW + 3600, NOW + 3540),
        (100, NOW + 100, NOW + 80),
        (0, NOW, NOW),
        (None, None, None),
        ("soon", None, None),
        ("nan", None, None),
        (-5, None, None),
    ],
)
def test_when_a_token_is_renewed(expires_in, expires_at, renew_at):
    tokens = Conversation({TOKEN_URL: answer({**TOKEN, "expires_in": expires_in})}).run()
    assert (tokens.expires_at, tokens.renew_at) == (expires_at, renew_at)


@pytest.mark.parametrize(
    ("response", "text"),
    [
        (rejection("invalid_grant", "used before"), "issued no token: invalid_grant (used before)"),
        (answer(b"oops", 500), "issued no token: HTTP 500"),
        (answer({"token_type": "Bearer"}), "without an access_token"),
        (answer({"error": "bad_verification_code"}), "issued no token: bad_verification_code"),
        (answer(b"<html>"), "without an access_token"),
        (answer({**TOKEN, "token_type": "mac"}), "whose type is neither Bearer nor DPoP"),
        (answer({**TOKEN, "access_token": ""}), "characters that no token may have"),
        (answer({**TOKEN, "access_token": "a\r\nX: y"}), "characters that no token may have"),
        (answer({**TOKEN, "refresh_token": "a b"}), "characters that no token may have"),
    ],
)
def test_a_response_without_a_usable_token_is_an_error(response, text):
    assert text in failure(Conversation({TOKEN_URL: response}))


@pytest.mark.requirement("AUTHX-02", "TRAP-122")
def test_a_renewal_needs_the_token_endpoint_only():
    conversation = Conversation(tokens=token_set())
    tokens = conversation.run(Expiring())
    assert conversation.urls == [TOKEN_URL]
    assert conversation.form() == {
        "grant_type": "refresh_token",
        "refresh_token": "old-refresh",
        "client_id": "registered-client",
        "resource": SERVER,
    }
    # The server has not rotated the refresh token.
    assert (tokens.access_token, tokens.refresh_token) == ("the-token", "old-refresh")
    assert tokens.requested_scopes == ["files"]


def test_a_refresh_token_is_rotated():
    rotated = answer({**TOKEN, "refresh_token": "new-refresh"})
    assert Conversation({TOKEN_URL: rotated}, tokens=token_set()).run().refresh_token == (
        "new-refresh"
    )


@pytest.mark.requirement("AUTH-69")
def test_without_a_refresh_token_the_user_logs_in():
    conversation = Conversation(tokens=token_set(refresh_token=None))
    conversation.run()
    assert conversation.form()["grant_type"] == "authorization_code"


def test_a_renewal_that_is_rejected_is_an_error():
    conversation = Conversation({TOKEN_URL: rejection("invalid_grant")}, tokens=token_set())
    with pytest.raises(AuthorizationError) as caught:
        conversation.run(Expiring())
    assert caught.value.code == "invalid_grant"
    assert conversation.login is None


def test_a_renewal_needs_a_refresh_token():
    conversation = Conversation(tokens=token_set(refresh_token=None))
    assert "there is no refresh token" in failure(conversation, Expiring())


def test_a_client_that_the_server_has_forgotten_is_registered_again():
    known = {ISSUER: client(issuer=ISSUER, redirect_uri=REDIRECT)}
    conversation = Conversation(
        {TOKEN_URL: [rejection("invalid_client", status=401), answer(TOKEN)]},
        tokens=token_set(),
        clients=known,
    )
    assert conversation.run().client.client_id == "registered-client"
    conversation = Conversation(
        {TOKEN_URL: [rejection("invalid_grant"), answer(TOKEN)]},
        tokens=token_set(),
        clients=known,
    )
    assert conversation.run().client.client_id == "known-client"


def test_a_refresh_that_github_rejects_with_status_200_leads_to_a_login():
    rejected = answer({"error": "bad_refresh_token", "error_description": "expired"})
    conversation = Conversation({TOKEN_URL: [rejected, answer(TOKEN)]}, tokens=token_set())
    assert conversation.run().access_token == "the-token"
    assert conversation.login is not None


def test_a_refresh_at_a_server_that_fails_needs_no_login():
    conversation = Conversation({TOKEN_URL: answer(b"", 503)}, tokens=token_set())
    assert "HTTP 503" in failure(conversation)
    assert conversation.login is None


def test_without_a_user_nothing_is_registered():
    conversation = Conversation(settings=FlowSettings(is_interactive=False))
    with pytest.raises(AuthorizationError, match="a user has to log in") as caught:
        conversation.run()
    assert caught.value.code == "login_required"
    assert conversation.urls == [RESOURCE_URL, SERVER_URL]


@pytest.mark.parametrize("name", ["authorization_endpoint", "token_endpoint"])
def test_a_login_needs_both_endpoints(name):
    document = {**SERVER_METADATA, name: None}
    assert "has no authorization_endpoint or token_endpoint" in failure(
        Conversation({SERVER_URL: answer(document)})
    )


def test_a_program_needs_a_token_endpoint():
    settings = FlowSettings(grant="client_credentials", client=client(client_secret="s"))
    document = {**SERVER_METADATA, "token_endpoint": None}
    assert "has no token_endpoint" in failure(
        Conversation({SERVER_URL: answer(document)}, settings)
    )


# DPoP


def test_a_challenge_for_dpop_requires_a_bound_token():
    bound = answer({**TOKEN, "token_type": "DPoP"})
    conversation = Conversation({TOKEN_URL: bound})
    assert conversation.run(challenged("DPoP")).token_type == "DPoP"
    assert conversation.registration()["dpop_bound_access_tokens"] is True
    assert conversation.sent[-1].is_for_token
    assert "not bound to a key" in failure(Conversation(), challenged("DPoP"))


@pytest.mark.requirement("AUTHX-20")
def test_metadata_may_require_a_bound_token():
    resource = {**RESOURCE, "dpop_bound_access_tokens_required": True}
    assert "not bound to a key" in failure(Conversation({RESOURCE_URL: answer(resource)}))


@pytest.mark.requirement("AUTHX-19")
def test_a_nonce_is_sent_once():
    conversation = Conversation({TOKEN_URL: [NONCE, NONCE]})
    assert "use_dpop_nonce" in failure(conversation, challenged("DPoP"))
    assert len(conversation.forms()) == 2


# Revocation


@pytest.mark.requirement("AUTHX-26")
@pytest.mark.parametrize(
    ("refresh_token", "token", "hint"),
    [("old-refresh", "old-refresh", "refresh_token"), (None, "old-token", "access_token")],
)
def test_a_dropped_token_is_revoked_with_its_grant(refresh_token, token, hint):
    tokens = token_set(revocation_endpoint=REVOKE_URL, refresh_token=refresh_token)
    conversation = Conversation({REVOKE_URL: answer(b"")}, tokens=tokens)
    assert conversation.run(Dropped()) is None
    form = {"token": token, "token_type_hint": hint, "client_id": "registered-client"}
    assert conversation.form(REVOKE_URL) == form


def test_a_token_is_revoked_by_the_client_that_got_it():
    tokens = token_set(revocation_endpoint=REVOKE_URL)
    settings = FlowSettings(client=client(client_secret="s"))
    conversation = Conversation({REVOKE_URL: answer(b"")}, settings, tokens)
    conversation.run(Dropped())
    assert conversation.form(REVOKE_URL)["client_id"] == "registered-client"
    assert "Authorization" not in conversation.sent[0].headers


@pytest.mark.parametrize(
    ("endpoint", "response", "text"),
    [
        (None, None, "has no revocation_endpoint"),
        ("http://127.0.0.1/x", None, "the revocation_endpoint is not encrypted"),
        (REVOKE_URL, rejection("unsupported_token_type"), "revoke the token: unsupported_token"),
        (REVOKE_URL, answer(b"", 503), "did not revoke the token: HTTP 503"),
    ],
)
def test_a_token_that_is_not_revoked_is_an_error(endpoint, response, text):
    answers = {} if response is None else {REVOKE_URL: response}
    tokens = token_set(revocation_endpoint=endpoint)
    assert text in failure(Conversation(answers, tokens=tokens), Dropped())


@pytest.mark.requirement("AUTHX-26")
def test_the_endpoint_that_revokes_a_token_is_kept_with_it():
    metadata = {**SERVER_METADATA, "revocation_endpoint": REVOKE_URL}
    answers = {SERVER_URL: answer(metadata), TOKEN_URL: answer({**TOKEN, "refresh_token": "r"})}
    tokens = Conversation(answers).run()
    assert tokens.revocation_endpoint == REVOKE_URL
    assert Conversation(tokens=tokens).run(Expiring()).revocation_endpoint == REVOKE_URL


# Programs


@pytest.mark.requirement("AUTHX-01", "AUTHX-09", "AUTHX-11", "AUTH-29")
def test_a_program_authenticates_for_itself():
    settings = FlowSettings(
        grant="client_credentials", client=client(client_secret="s"), scopes=["mine"]
    )
    conversation = Conversation(settings=settings)
    conversation.run(challenged('Bearer scope="a"'))
    assert conversation.form() == {
        "grant_type": "client_credentials",
        "scope": "mine a",
        "resource": SERVER,
    }
    assert conversation.sent[-1].headers["Authorization"].startswith("Basic ")
    assert conversation.login is None


@pytest.mark.requirement("AUTHX-04", "AUTHX-12", "AUTHX-14")
def test_an_enterprise_exchanges_an_id_token_for_an_assertion_for_a_token():
    options, _ = CONVERSATIONS["an enterprise"]
    conversation = Conversation(**options)
    conversation.run(challenged('Bearer scope="a"'))
    assert conversation.form(PROVIDER_URL) == {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "requested_token_type": "urn:ietf:params:oauth:token-type:id-jag",
        "audience": ISSUER,
        "resource": SERVER,
        "subject_token": f"assertion-for-{ISSUER}",
        "subject_token_type": "urn:ietf:params:oauth:token-type:access_token",
        "scope": "a",
        "client_id": "at-provider",
    }
    form = conversation.form()
    assert form["grant_type"] == "urn:ietf:params:oauth:grant-type:jwt-bearer"
    assert form["assertion"] == "jag"
    assert conversation.login is None


@pytest.mark.requirement("AUTHX-13")
def test_an_identity_provider_that_issues_something_else_is_an_error():
    issued = {
        "access_token": "jag",
        "token_type": "N_A",
        "issued_token_type": "urn:ietf:params:oauth:token-type:jwt",
    }
    conversation = Conversation({PROVIDER_URL: answer(issued)}, ENTERPRISE)
    assert "the identity provider issued a 'urn:ietf" in failure(conversation)


def test_an_identity_provider_that_refuses_is_named():
    conversation = Conversation({PROVIDER_URL: rejection("access_denied")}, ENTERPRISE)
    assert "the identity provider issued no token: access_denied" in failure(conversation)


@pytest.mark.requirement("AUTHX-15")
def test_a_workload_presents_its_identity():
    settings = FlowSettings(grant="jwt_bearer", client=client(auth_method="none"))
    conversation = Conversation(settings=settings)
    conversation.run()
    assert conversation.form() == {
        "grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
        "assertion": f"assertion-for-{ISSUER}",
        "client_id": "known-client",
        "resource": SERVER,
    }


def test_a_token_is_exchanged():
    conversation = Conversation(
        settings=FlowSettings(grant="token_exchange", client=client(), scopes=["a"])
    )
    conversation.run()
    assert conversation.form() == {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "subject_token": f"assertion-for-{ISSUER}",
        "subject_token_type": "urn:ietf:params:oauth:token-type:access_token",
        "requested_token_type": "urn:ietf:params:oauth:token-type:access_token",
        "scope": "a",
        "client_id": "known-client",
        "resource": SERVER,
    }


# Secrets


@pytest.mark.requirement("AUTH-08", "AUTH-42")
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_no_secret_is_in_a_url_or_a_repr(name):
    options, event = CONVERSATIONS[name]
    conversation = Conversation(**options)
    tokens = conversation.run(event)
    shown = repr((tokens, conversation.actions, conversation.tokens, conversation.flow))
    for secret in ("the-token", "old-token", "old-refresh", VERIFIER, "the-code"):
        assert secret not in shown
        assert secret not in " ".join([*conversation.urls, *(conversation.login or {}).values()])
