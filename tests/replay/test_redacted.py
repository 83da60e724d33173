"""Replay of redacted recordings, with and without the key."""

import pytest

from mcp_trio import Context, Server, effect
from mcp_trio.errors import RecordingError, ReplayDivergence
from mcp_trio.recording import RecordOptions, Redaction, replay

SECRET = "hunter2-hunter2"
KEY = b"0123456789abcdef"


@effect
async def log_in(password: str) -> str:
    return f"session of {password}"


async def passing_on(ctx, password):
    session = await log_in(password)
    await ctx.info({"password": password, "session": session})
    return session


async def deciding(ctx, password):
    await ctx.info({"password": password.swapcase()})
    return ""


async def own_secret(ctx, password):
    await ctx.info({"api_key": "sk-of-the-server-itself"})
    return ""


def make_server(handler):
    server = Server("secrets")

    @server.tool
    async def run(password: str, *, ctx: Context) -> str:
        return await handler(ctx, password)

    return server


async def client(peer, _session):
    await peer.handshake()
    params = {"name": "run", "arguments": {"password": SECRET}}
    await peer.send_request("tools/call", params, id=1)
    while "result" not in await peer.receive():
        pass


@pytest.fixture
def recorded(world, tmp_path):
    def make(handler):
        path = tmp_path / "a.mcprec.jsonl"
        options = RecordOptions(path, redaction=Redaction(key=KEY))
        world.record(make_server(handler), options, client)
        assert SECRET.encode() not in path.read_bytes()
        return path

    return make


@pytest.mark.parametrize("key", [KEY, None])
def test_a_redacted_recording_replays(recorded, key):
    path = recorded(passing_on)
    assert replay(path, make_server(passing_on), key=key).is_complete


def test_without_the_key_a_secret_that_the_server_returns_diverges(recorded):
    path = recorded(own_secret)
    with pytest.raises(ReplayDivergence) as caught:
        replay(path, make_server(own_secret))
    assert caught.value.kind == "redacted"
    assert "was redacted in the recording" in str(caught.value)


def test_another_key_is_rejected(recorded):
    with pytest.raises(RecordingError, match="key"):
        replay(recorded(passing_on), make_server(passing_on), key=b"another key, as long")


def test_code_that_depends_on_a_redacted_value_diverges_as_redacted(recorded):
    path = recorded(deciding)
    with pytest.raises(ReplayDivergence) as caught:
        replay(path, make_server(deciding))
    assert caught.value.kind == "redacted"
