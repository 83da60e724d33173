"""`mcp-trio run --transport http`."""

import signal
import ssl
import subprocess
import sys

import httpx2
import pytest

from tests.transports.http.conftest import certificate

__all__ = ["certificate"]

SERVER = """
from mcp_trio import Server

server = Server("there")
"""


ARGUMENTS = [
    "run",
    "there.py",
    "--transport",
    "http",
    "--port",
    "0",
    "--protocol-versions",
    "2026-07-28",
]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "there.py").write_text(SERVER)
    monkeypatch.chdir(tmp_path)


def look(url):
    """How it is there, and the status for who would begin a stream of a session."""
    assert url.startswith("http://127.0.0.1:")
    health = httpx2.get(url.replace("/mcp", "/health"))
    return health.json(), httpx2.get(url).status_code


FOUND = ({"status": "ok"}, 405)


def test_a_process_serves_until_a_signal_comes():
    command = [sys.executable, "-m", "mcp_trio", *ARGUMENTS]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        words, url = process.stderr.readline().split()
        assert words == "serving"
        assert look(url) == FOUND
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 128 + signal.SIGTERM


@pytest.mark.parametrize("holder", ["native", "hypercorn"])
def test_both_hosts_serve_the_same(while_listening, holder):
    shown, found = while_listening(look, *ARGUMENTS, "--server", holder)
    assert (found, shown.exit_code) == (FOUND, 128 + signal.SIGTERM)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_server_with_a_certificate_is_reached_over_tls(while_listening, certificate, workers):
    trusting = ssl.create_default_context(cafile=certificate["certfile"])

    def look_over_tls(url):
        return httpx2.get(url.replace("/mcp", "/health"), verify=trusting).json()

    files = ["--certfile", certificate["certfile"], "--keyfile", certificate["keyfile"]]
    shown, found = while_listening(look_over_tls, *ARGUMENTS, *files, "--workers", workers)
    assert (found, shown.exit_code) == ({"status": "ok"}, 128 + signal.SIGTERM)


def test_where_to_listen_is_not_for_stdio(invoke):
    shown = invoke("run", "--port", "80", "server.py")
    assert shown.exit_code == 2
    assert "--port cannot be used with stdio" in shown.output
