"""`mcp-trio run` over the transports that are neither stdio nor http alone."""

import signal

import pytest
import trio

from mcp_trio import Client, ConnectionLost
from mcp_trio.transports import open_websocket_channel

SERVER = """
from mcp_trio import Server

server = Server("there")

@server.tool
async def tide() -> str:
    return "high"
"""

WAYS = {
    "http": ["--port", "0", "--token", "${SECRET}"],
    "websocket": ["--port", "0", "--token", "${SECRET}", "--allow-origin", "https://app.example"],
    "unix": ["--socket", "s.sock"],
    "tcp": ["--port", "0"],
}


async def ask(transport, url, folder):
    if transport in ("unix", "tcp"):
        where = f"unix:{folder / 's.sock'}" if transport == "unix" else url
        async with Client(where) as client:
            return (await client.call_tool("tide")).content[0].text
    url = url.replace("http:", "ws:").replace("/mcp", "/ws")
    with pytest.raises(ConnectionLost, match="401"):
        await open_websocket_channel(url, token="wrong")
    headers = {} if transport == "http" else {"Origin": "https://app.example"}
    channel = await open_websocket_channel(url, token="sesame", headers=headers)
    async with Client(channel) as client:
        return (await client.call_tool("tide")).content[0].text


@pytest.mark.parametrize("transport", WAYS)
def test_a_server_is_served_until_a_signal_comes(while_listening, tmp_path, transport, monkeypatch):
    monkeypatch.setenv("SECRET", "sesame")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.py").write_text(SERVER)

    def use(url):
        assert ":8000" not in url
        return trio.run(ask, transport, url, tmp_path)

    given = ("run", "there.py", "--transport", transport, *WAYS[transport])
    shown, answer = while_listening(use, *given)
    assert answer == "high"
    assert (shown.exit_code, shown.stderr.count("\n")) == (128 + signal.SIGTERM, 1)
    assert shown.stderr.startswith("serving ")


REJECTED = {
    "--socket cannot be used with tcp": ["--transport", "tcp", "--socket", "x"],
    "--allow-host cannot be used with unix": ["--transport", "unix", "--allow-host", "x"],
    "--workers cannot be used with websocket": ["--transport", "websocket", "--workers", "2"],
    "--open cannot be used with http": ["--transport", "http", "--open"],
    "--allow-cors cannot be used with websocket": ["--transport", "websocket", "--allow-cors"],
    "--allow-cors cannot be used with stdio": ["--allow-cors"],
    "--token cannot be used with stdio": ["--token", "x"],
    "unix needs --socket": ["--transport", "unix"],
    "unix needs --socket PATH": ["--transport", "unix", "--socket", ""],
    "add --open to allow that": ["--transport", "tcp", "--host", "0.0.0.0"],
    "hosts= takes": ["--transport", "http", "--allow-host", "a b"],
    "origins= takes": ["--transport", "websocket", "--allow-origin", "a"],
    "visible ASCII": ["--transport", "http", "--token", "a b"],
    "SOME_VARIABLE": ["--transport", "http", "--token", "${SOME_VARIABLE}"],
}


@pytest.mark.parametrize("complaint", REJECTED)
def test_what_a_transport_has_no_use_for_is_rejected(complaint, invoke):
    shown = invoke("run", "server.py", *REJECTED[complaint])
    assert shown.exit_code == 2
    assert complaint in " ".join(shown.output.split())
