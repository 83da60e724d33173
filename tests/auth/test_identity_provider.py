"""An authorization server in front of an identity provider."""

import base64
import json
from urllib.parse import urlencode

import pytest
import trio
from joserfc.jwk import ECKey

from mcp_trio.auth import AuthorizationServerMetadata, IdentityProvider
from tests.auth.authorizing import CALLBACK, ISSUER, Site, claims_of
from tests.auth.scripted_provider import (
    PROVIDER,
    VERIFIER,
    Browser,
    logged_in,
    setting_of,
    target_of,
    tokens_of,
)


@pytest.fixture
def setting():
    return setting_of()


async def test_a_user_allows_access_here_and_logs_in_at_the_provider(setting):
    site, provider = setting
    browser = Browser(site)
    client_id = await site.client_id()
    page = await browser.get(target_of(client_id))
    assert page.status == 200
    assert "Next you sign in at</dt><dd>id.example" in page.text
    assert provider.requests == []  # nothing happens at the provider before the consent
    begun = await browser.decide(page)
    back = await browser.return_with(provider.log_in(begun.headers["location"]))
    assert back.status == 303
    url, parameters = back.location
    assert (url, parameters["state"], parameters["iss"]) == (CALLBACK, "mine", ISSUER)
    reply = await site.redeem(client_id, parameters["code"], code_verifier=VERIFIER)
    tokens = reply.json
    assert claims_of(tokens["access_token"])["sub"] == "42"
    assert "access-token-" not in json.dumps(tokens)
    token_request = next(each for each in provider.requests if each.url.path == "/token")
    credentials = base64.b64decode(token_request.headers["authorization"].removeprefix("Basic "))
    assert credentials == b"desk:sesame%2F%2B"
    # The session goes on without another login, until it ends.
    page = await browser.get(target_of(await site.client_id()))
    assert "Signed in as</dt><dd>42" in page.text
    assert (await browser.decide(page)).location[1]["code"]
    site.clock.seconds += 8 * 3600
    page = await browser.get(target_of(await site.client_id()))
    assert "Next you sign in at" in page.text


async def test_a_user_who_denies_access_does_not_get_to_the_provider(setting):
    site, provider = setting
    browser = Browser(site)
    page = await browser.get(target_of(await site.client_id()))
    denied = await browser.decide(page, "deny")
    assert denied.location[0] == CALLBACK
    assert denied.location[1]["error"] == "access_denied"
    assert provider.requests == []


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
    _, tokens = await tokens_of(site, provider)
    assert claims_of(tokens["access_token"])["sub"] == "ada@example.org"
    provider.claims = {"email": None}
    _, reply = await logged_in(site, provider)
    assert (reply.status, "set-cookie" in reply.headers) == (403, False)
    assert "error=access_denied" in reply.text  # in the link that returns to the client
    provider.claims = {"email": ""}
    _, reply = await logged_in(site, provider)
    assert (reply.status, "set-cookie" in reply.headers) == (403, False)
    site.server.login.subject_of = lambda claims: claims["group"]
    _, reply = await logged_in(site, provider)
    assert (reply.status, "set-cookie" in reply.headers) == (502, False)
    site.server.login.subject_of = lambda _claims: 42
    with pytest.raises(TypeError, match="subject_of= has to return a string or None, not int"):
        await logged_in(site, provider)


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
    assert "a login at the identity provider failed" in caplog.text
    assert "You may" not in reply.text


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
    reply = await browser.begin(await site.client_id())
    if reply.status == 303:
        reply = await browser.return_with(provider.log_in(reply.headers["location"]))
    assert (reply.status, "set-cookie" in reply.headers) == (502, False)
    assert "failed" in caplog.text
    assert "sesame" not in caplog.text


async def test_an_id_token_may_be_signed_by_a_key_that_the_provider_has_just_added(
    setting, autojump_clock
):
    site, provider = setting
    assert (await logged_in(site, provider))[1].status == 303
    provider.key = ECKey.generate_key("P-256", {"use": "sig"}, private=True, auto_kid=True)
    provider.keys.append(provider.key)
    provider.header = {"kid": provider.key.kid, "pi.atm": "1"}  # some providers add headers
    await trio.sleep(60)
    _, reply = await logged_in(site, provider)
    assert (reply.status, "set-cookie" in reply.headers) == (303, True)


async def test_a_login_belongs_to_one_browser_and_is_finished_once(setting):
    site, provider = setting
    browser = Browser(site)
    begun = await browser.begin(await site.client_id())
    values = provider.log_in(begun.headers["location"])
    assert (await Browser(site).return_with(values)).status == 403
    target = f"/callback?{urlencode(values)}"
    assert (await browser.get(f"{target}&state=other")).status == 400
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
    assert (await ada.decide(page)).location[1]["code"]
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
    begun = await browser.begin(client_id)
    for attribute in ("__Host-", "Secure", "HttpOnly", "SameSite=Lax", "Path=/"):
        assert attribute in begun.headers["set-cookie"]
    values = provider.log_in(begun.headers["location"])
    assert (await browser.return_with(values)).status == 303
    assert (await browser.return_with(values)).status == 403  # a state is used once
    page = await browser.get(target_of(await site.client_id()))
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    assert page.headers["x-frame-options"] == "DENY"
    elsewhere = await browser.get(target_of(client_id).replace(CALLBACK, f"{CALLBACK}/x"))
    assert (elsewhere.status, "location" in elsewhere.headers) == (400, False)
    forged = await site.post("/authorize", {"request": page.request_id, "decision": "allow"})
    assert forged.status == 403  # without the cookies of the browser
    assert (await browser.decide(page)).location[1]["code"]
    assert (await browser.decide(page)).status == 403  # a page is used once


async def test_without_a_session_no_decision_is_accepted(setting):
    site, provider = setting
    browser, _ = await logged_in(site, provider)
    page = await browser.get(target_of(await site.client_id()))
    del browser.cookies["__Host-mcp-session"]
    assert (await browser.decide(page)).status == 403


async def test_without_a_provider_there_is_no_callback():
    site = Site.of()
    assert (await site.send("GET", "/callback")).status == 404
    assert "/callback" not in site.server.methods


def test_the_issuer_of_a_provider_has_to_be_https():
    with pytest.raises(ValueError, match="not an https URL"):
        IdentityProvider(issuer="http://id.example", client_id="a", client_secret="b")


# A provider without OpenID Connect.

GITHUB = AuthorizationServerMetadata(
    issuer=PROVIDER,
    authorization_endpoint=f"{PROVIDER}/auth",
    token_endpoint=f"{PROVIDER}/token",
    userinfo_endpoint=f"{PROVIDER}/userinfo",
)


async def test_a_provider_without_id_tokens_and_metadata_names_the_user_at_an_endpoint():
    site, provider = setting_of(
        scopes=("files",),
        metadata=GITHUB,
        subject_of=lambda claims: str(claims["id"]),
        parameters={"prompt": "consent", "state": "fixed"},
    )
    browser = Browser(site)
    begun = await browser.begin(await site.client_id())
    values = provider.log_in(begun.headers["location"])
    query = provider.logins[values["code"]]
    assert (query["prompt"], query["scope"]) == ("consent", "files")
    assert query["state"] != "fixed"
    # The first users of OAuth have no `iss` in responses.
    assert (await browser.return_with({**values, "iss": None})).location[1]["code"]
    assert [each.url.path for each in provider.requests] == ["/token", "/userinfo"]
    page = await browser.get(target_of(await site.client_id()))
    assert "Signed in as</dt><dd>42" in page.text


@pytest.mark.parametrize(
    "changes",
    [
        {"scopes": ("files",), "metadata": GITHUB},  # no claim `sub`
        {"scopes": ("files",)},
    ],
)
async def test_a_provider_that_names_no_user_gives_no_access(changes, caplog):
    site, provider = setting_of(**changes)
    provider.metadata = {"userinfo_endpoint": None}
    _, reply = await logged_in(site, provider)
    assert (reply.status, "set-cookie" in reply.headers) == (502, False)
    assert "failed" in caplog.text


@pytest.mark.parametrize("sub", [None, ""])
@pytest.mark.parametrize("changes", [{"scopes": ("files",), "metadata": GITHUB}, {}])
async def test_a_user_without_a_name_gets_no_access(changes, sub, caplog):
    site, provider = setting_of(**changes)
    provider.claims = {"sub": sub}
    _, reply = await logged_in(site, provider)
    assert (reply.status, "set-cookie" in reply.headers) == (502, False)
    assert "failed" in caplog.text


# Attacks.


@pytest.mark.requirement("SEC-05")
async def test_a_link_of_an_attacker_does_not_get_to_the_provider(setting):
    # Confused deputy: the user is logged in at the provider, which does not ask again.
    site, provider = setting
    attacker = await site.client_id(redirect_uris=["https://evil.example/"], client_name="Evil")
    target = target_of(attacker).replace(CALLBACK, "https://evil.example/")
    user = Browser(site)
    page = await user.get(target)
    assert page.status == 200
    assert "evil.example" in page.text
    # The attacker allows the access on a page of their own, and sends the user the next link.
    other = Browser(site)
    begun = await other.decide(await other.get(target))
    reply = await user.return_with(provider.log_in(begun.headers["location"]))
    assert (reply.status, "location" in reply.headers) == (403, False)
    assert all(each.url.path != "/token" for each in provider.requests)


@pytest.mark.parametrize("scopes", [("openid",), ("files",)], ids=["OpenID Connect", "OAuth"])
async def test_a_code_that_is_injected_at_the_callback_opens_no_session(scopes, caplog):
    site, provider = setting_of(scopes=scopes)
    attacker, user = Browser(site), Browser(site)
    stolen = await attacker.begin(await site.client_id())
    code = provider.log_in(stolen.headers["location"])["code"]
    begun = await user.begin(await site.client_id())
    values = provider.log_in(begun.headers["location"])
    reply = await user.return_with({**values, "code": code})
    assert (reply.status, "set-cookie" in reply.headers) == (502, False)
    assert "invalid_grant" in caplog.text


async def test_states_of_two_logins_are_not_mixed_up(setting, caplog):
    site, provider = setting
    browser = Browser(site)
    begun = [await browser.begin(await site.client_id()) for _ in range(2)]
    first, second = [provider.log_in(each.headers["location"]) for each in begun]
    mixed = await browser.return_with({**first, "state": second["state"]})
    assert (mixed.status, "set-cookie" in mixed.headers) == (502, False)
    assert (await browser.return_with({**first, "state": "s" * 43})).status == 403
    assert (await browser.return_with({**first, "state": None})).status == 403
    assert (await browser.return_with(first)).location[1]["code"]


async def test_the_error_page_of_the_provider_shows_none_of_its_text(setting, caplog):
    site, provider = setting
    script = "<script>alert(1)</script>"
    _, reply = await logged_in(
        site, provider, code=None, error=script, error_description=f"call Mallory {script}"
    )
    assert reply.status == 502
    assert "location" not in reply.headers
    assert "script>" not in reply.text
    assert "Mallory" not in reply.text
    assert "error=server_error" in reply.text  # in the link that returns to the client
    _, reply = await logged_in(site, provider, code=None, error="access_denied")
    assert "error=access_denied" in reply.text
    assert "state=mine" in reply.text
