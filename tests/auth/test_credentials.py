"""The settings of authorization: what is refused at once, and what is never shown."""

import pytest

from mcp_trio.auth import (
    Bearer,
    ClientCredentials,
    EnterpriseManaged,
    MemoryTokenStore,
    OAuth,
    TokenExchange,
    WorkloadIdentity,
    http_auth,
)


async def on_authorize(_url):
    return None


@pytest.mark.requirement("AUTH-41", "AUTH-50", "AUTH-51")
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"client_secret": "s"}, "client_secret= needs client_id="),
        ({"metadata_url": "http://client.example/a"}, "metadata_url= begins with https://"),
        ({"metadata_url": "https://client.example"}, "metadata_url= begins with https://"),
        ({"metadata_url": "client.example"}, "metadata_url= is not an http"),
        ({"redirect": "http://host.example/callback"}, "redirect= begins with https://"),
        ({"redirect": "https://host.example/callback"}, "on_authorize= has to return"),
        ({"redirect": "myapp:callback"}, "redirect= is not an http"),
        ({"issuer": "login.example"}, "issuer= is not an http"),
        ({"scopes": ["a b"]}, "not a valid scope"),
    ],
)
def test_a_login_that_cannot_work_is_refused_at_once(options, text):
    with pytest.raises(ValueError, match=text):
        OAuth(**options)


def test_scopes_are_no_string():
    with pytest.raises(TypeError, match="scopes are a set of strings"):
        OAuth(scopes="a b")


@pytest.mark.parametrize("redirect", ["http://127.0.0.1:1/a", "http://localhost/a", None])
def test_a_loopback_redirect_needs_no_host(redirect):
    assert OAuth(redirect=redirect).is_redirected_here


def test_a_web_host_receives_the_redirect_itself():
    oauth = OAuth(redirect="https://host.example/callback", on_authorize=on_authorize)
    assert not oauth.is_redirected_here


@pytest.mark.parametrize("given", [{}, {"secret": "s", "private_key": "k"}])
def test_a_program_has_either_a_secret_or_a_key(given):
    with pytest.raises(ValueError, match="exactly one of secret= and private_key= is needed"):
        ClientCredentials(client_id="bot", **given)


def test_a_server_has_a_url():
    with pytest.raises(ValueError, match="URL of a server"):
        http_auth("server.py", Bearer("t"))


@pytest.mark.requirement("AUTH-42")
@pytest.mark.parametrize(
    "credentials",
    [
        OAuth(client_id="c", client_secret="SECRET"),
        ClientCredentials(client_id="c", secret="SECRET"),
        ClientCredentials(client_id="c", private_key="SECRET"),
        EnterpriseManaged(
            client_id="c",
            client_secret="SECRET",
            id_token="SECRET",
            provider_token_endpoint="https://provider.example/token",
            provider_client_id="p",
            provider_client_secret="SECRET",
        ),
        WorkloadIdentity(client_id="c", token="SECRET"),
        TokenExchange(client_id="c", client_secret="SECRET", token="SECRET"),
        Bearer("SECRET"),
        http_auth("https://mcp.example/", Bearer("SECRET")),
        http_auth(
            "https://mcp.example/",
            OAuth(client_id="c", client_secret="SECRET", store=MemoryTokenStore()),
        ),
    ],
    ids=lambda given: type(given).__name__,
)
def test_no_secret_is_in_a_repr(credentials):
    assert "SECRET" not in repr(credentials)
    assert "SECRET" not in str(credentials)
