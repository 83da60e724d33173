"""The listener for the redirect of a browser, and what else may connect to it."""

import httpx2
import pytest
import trio

from mcp_trio._auth.redirect_listener import RedirectListener
from mcp_trio.errors import AuthorizationError
from mcp_trio.limits import AuthorizationLimits

pytestmark = pytest.mark.real_time

LIMITS = AuthorizationLimits(redirect_bytes_max=2048, redirect_connections_max=2)
STATE = "the-state"


@pytest.fixture
async def listener():
    opened = await RedirectListener.open(None, LIMITS)
    yield opened
    await opened.aclose()


async def browse(url, method="GET"):
    async with httpx2.AsyncClient(trust_env=False) as browser:
        return await browser.request(method, url)


@pytest.mark.requirement("AUTH-41")
async def test_a_redirect_with_the_state_ends_the_wait(listener):
    assert listener.redirect_uri.startswith("http://127.0.0.1:")
    pages = []
    async with trio.open_nursery() as nursery:

        async def visit():
            pages.append(await browse(f"{listener.redirect_uri}?code=c&state={STATE}"))

        nursery.start_soon(visit)
        url = await listener.wait(STATE)
    assert url == f"{listener.redirect_uri}?code=c&state={STATE}"
    (page,) = pages
    assert page.status_code == 200
    assert "You can close this page" in page.text
    assert page.headers["content-security-policy"] == "default-src 'none'"
    assert page.headers["cache-control"] == "no-store"


@pytest.mark.requirement("AUTH-40")
async def test_other_requests_change_nothing(listener):
    base = listener.redirect_uri
    statuses = []
    async with trio.open_nursery() as nursery:

        async def visit():
            for method, url in [
                ("GET", f"{base}?code=c&state=forged"),
                ("GET", f"{base}?code=c"),
                ("GET", f"{base}?code=c&state={STATE}&state={STATE}"),
                ("GET", base.replace("callback", "favicon.ico")),
                ("GET", base.replace("callback", f"other?code=c&state={STATE}")),
                ("POST", f"{base}?code=c&state={STATE}"),
            ]:
                statuses.append((await browse(url, method)).status_code)
            await browse(f"{base}?error=access_denied&state={STATE}")

        nursery.start_soon(visit)
        url = await listener.wait(STATE)
    assert statuses == [400] * 6
    assert url.endswith(f"?error=access_denied&state={STATE}")


async def test_a_login_that_failed_says_so(listener):
    pages = []
    async with trio.open_nursery() as nursery:

        async def visit():
            pages.append(await browse(f"{listener.redirect_uri}?error=x&state={STATE}"))

        nursery.start_soon(visit)
        await listener.wait(STATE)
    assert "login has failed" in pages[0].text


@pytest.mark.parametrize(
    "data", [b"\x16\x03\x01", b"GET / HTTP/1.1\r\n" + b"a" * 5000, b"", b"GET\r\n\r\n"]
)
async def test_a_peer_that_does_not_speak_http_changes_nothing(listener, data):
    port = int(listener.redirect_uri.split(":")[2].split("/")[0])
    async with trio.open_nursery() as nursery:

        async def visit():
            for _ in range(5):
                async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                    await stream.send_all(data)
            await browse(f"{listener.redirect_uri}?code=c&state={STATE}")

        nursery.start_soon(visit)
        assert await listener.wait(STATE)


async def test_a_given_port_is_used_and_one_that_is_in_use_is_an_error(listener):
    with pytest.raises(AuthorizationError, match="no redirect can be received at"):
        await RedirectListener.open(listener.redirect_uri, LIMITS)
    uri = listener.redirect_uri.replace("127.0.0.1", "localhost").replace("/callback", "/x")
    await listener.aclose()
    other = await RedirectListener.open(uri, LIMITS)
    assert other.redirect_uri == uri
    await other.aclose()
