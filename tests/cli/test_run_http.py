"""`mcp-trio run --transport http`."""

import signal
import subprocess
import sys

import httpx
import pytest

SERVER = """
from mcp_trio import Server

server = Server("there")
"""


@pytest.mark.parametrize("holder", ["native", "hypercorn"])
def test_a_server_is_served_until_a_signal_comes(tmp_path, holder):
    (tmp_path / "there.py").write_text(SERVER)
    command = [sys.executable, "-m", "mcp_trio", "run", "there.py", "--transport", "http"]
    options = ["--port", "0", "--server", holder, "--revisions", "2026-07-28"]
    with subprocess.Popen(
        [*command, *options], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    ) as process:
        words, url = process.stderr.readline().split()
        assert words == "serving"
        assert url.startswith("http://127.0.0.1:")
        assert httpx.get(url.replace("/mcp", "/health")).json() == {"status": "ok"}
        assert httpx.get(url).status_code == 405
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 128 + signal.SIGTERM


def test_where_to_listen_is_not_for_stdio(invoke):
    shown = invoke("run", "--port", "80", "server.py")
    assert shown.exit_code == 2
    assert "--port is not for stdio" in shown.output
