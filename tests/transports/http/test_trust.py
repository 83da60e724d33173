"""The trusted certificates of HTTP clients are read once per process."""

import ssl

import httpx2
import pytest
import trio

import mcp_trio.http
from mcp_trio._transports import http_client_requests as trust
from mcp_trio._transports.http_client_requests import client_for
from mcp_trio.errors import ConfigError


@pytest.fixture
def read(monkeypatch):
    """One for each time that they are."""
    real, read = httpx2.create_ssl_context, []

    def reading():
        read.append(1)
        return real()

    trust.default_ssl_context.cache_clear()
    monkeypatch.setattr(httpx2, "create_ssl_context", reading)
    yield read
    trust.default_ssl_context.cache_clear()


async def test_certificates_are_read_once_for_all_https_clients(read):
    for _ in range(3):
        async with client_for(httpx2.URL("https://host.test")):
            pass
    assert len(read) == 1
    assert trust.default_ssl_context().verify_mode is ssl.CERT_REQUIRED


@pytest.mark.usefixtures("read")
@pytest.mark.parametrize("content", [None, "no certificate"])
async def test_an_error_for_unreadable_certificates_names_the_variable(
    tmp_path, monkeypatch, content
):
    path = tmp_path / "certificates.pem"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    with pytest.raises(ConfigError, match="SSL_CERT_FILE"):
        client_for(httpx2.URL("https://host.test"))


async def test_http_clients_read_no_certificates(read):
    async with client_for(httpx2.URL("http://host.test")):
        assert read == []


async def test_certificates_are_read_once_for_all_clients_of_handlers(read):
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    await listeners[0].aclose()
    for _ in range(3):
        async with httpx2.AsyncClient(transport=mcp_trio.http.EffectTransport()) as client:
            with pytest.raises(httpx2.ConnectError):
                await client.get(f"http://127.0.0.1:{port}")
    assert len(read) == 1
