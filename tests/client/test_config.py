"""The configuration file of hosts, and the texts of its errors."""

import json
from functools import partial

import pytest
import trio

from mcp_trio import Client, ClientGroup, ConnectionLost
from mcp_trio._transports.http_server import serve_native
from mcp_trio.errors import ConfigError
from mcp_trio.hosts import ServerConfig, read_config
from mcp_trio.limits import DEFAULT_LIMITS
from tests.client.conftest import Bench, said

VARIABLES = {"HOME": "/home/ada", "EMPTY": "", "TOKEN": "s3cret"}

FULL = {
    "command": "npx",
    "args": ["-y", "server", "${HOME}/sea"],
    "env": {"TOKEN": "${TOKEN}", "MODE": "fast"},
    "cwd": "${env:HOME}",
    "type": "stdio",
    "autoApprove": ["tide"],
}


def read_one(entry, **options):
    return read_config({"mcpServers": {"it": entry}}, variables=VARIABLES, **options)["it"]


@pytest.mark.parametrize("group", ["mcpServers", "servers"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_a_file_of_a_host_is_read_in_its_order(tmp_path, group, bom):
    path = tmp_path / "mcp.json"
    servers = {"full": FULL, "bare": {"command": "true"}}
    path.write_bytes(bom + json.dumps({group: servers, "inputs": []}).encode())
    for source in (path, str(path)):
        read = read_config(source, variables=VARIABLES)
        assert list(read) == ["full", "bare"]
        assert read["bare"] == ServerConfig(command="true")
        assert read["full"] == ServerConfig(
            command="npx",
            args=["-y", "server", "/home/ada/sea"],
            env={"TOKEN": "s3cret", "MODE": "fast"},
            cwd="/home/ada",
        )


def test_a_remote_server_has_a_url_and_headers():
    entry = {
        "type": "http",
        "url": "https://${HOST:-example.org}/mcp",
        "headers": {"Authorization": "Bearer ${TOKEN}"},
    }
    assert read_one(entry) == ServerConfig(
        url="https://example.org/mcp", headers={"Authorization": "Bearer s3cret"}
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$HOME {HOME} $$", "$HOME {HOME} $$"),
        ("${HOME}:${env:HOME}", "/home/ada:/home/ada"),
        ("${NONE:-fall back}", "fall back"),
        ("${env:NONE:-a:-b}", "a:-b"),
        ("${EMPTY:-fall back}", "fall back"),
        ("${NONE:-}", ""),
        ("${EMPTY}", ""),
    ],
)
def test_references_to_variables_are_replaced(text, value):
    assert read_one({"command": "true", "args": [text]}).args == [value]


def test_variables_are_those_of_the_environment_by_default(monkeypatch):
    monkeypatch.setenv("HARBOUR", "Bergen")
    read = read_config({"servers": {"it": {"command": "${HARBOUR}"}}})
    assert read["it"].command == "Bergen"


def test_the_type_decides_between_a_command_and_a_url():
    entry = {"command": "true", "url": "https://example.org", "env": {"A": "b"}}
    assert read_one({**entry, "type": "stdio"}) == ServerConfig(command="true", env={"A": "b"})
    assert read_one({**entry, "type": "sse"}).command is None


def test_null_members_are_ignored():
    entry = {"command": "true", "url": None, "cwd": None, "env": None, "type": None}
    assert read_one(entry) == ServerConfig(command="true")


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        (7, "must be an object"),
        ({}, "command: missing"),
        ({"type": "http", "command": "true"}, "url: missing"),
        ({"type": "stdio", "url": "https://example.org"}, "command: missing"),
        ({"command": "true", "url": "x"}, "type: missing, although there are both"),
        ({"command": ["true"]}, "command: Expected `str | null`, got `array`"),
        ({"command": ""}, "command: Expected `str` of length >= 1"),
        ({"command": "true", "args": "-y"}, "args: Expected `array`, got `str`"),
        ({"command": "true", "args": ["-y", 8080]}, "args[1]: Expected `str`, got `int`"),
        ({"command": "true", "env": {"PORT": 8080}}, "env[...]: Expected `str`, got `int`"),
        ({"command": "true", "disabled": "yes"}, "disabled: Expected `bool`, got `str`"),
        ({"command": "${NONE}"}, "command: the variable NONE is not set"),
        ({"command": "true", "args": ["${env:NONE}"]}, "args: the variable NONE is not set"),
        ({"command": "true", "env": {"A": "${NONE}"}}, "env.A: the variable NONE is not set"),
        ({"command": "${input:key}"}, "command: ${input:key} is not a reference to a variable"),
    ],
)
def test_an_error_names_the_server_and_the_member_in_one_line(entry, complaint):
    with pytest.raises(ConfigError) as caught:
        read_one(entry)
    text = str(caught.value)
    assert text.startswith(f"the configuration: server 'it': {complaint}")
    assert "\n" not in text


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"{", "Input data was truncated"),
        (b"\xff", "'utf-8' codec can't decode byte 0xff"),
        (b"[]", "Expected `object`, got `array`"),
        (b"[" * 100_000, ""),
        (b"{}", "mcpServers: must be an object"),
        (b'{"servers": []}', "servers: must be an object"),
        (b'{"servers": {"it": {}}}', "server 'it': command: missing"),
    ],
)
def test_an_error_names_the_file_in_one_line(tmp_path, content, complaint):
    path = tmp_path / "mcp.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_config(path)
    assert str(caught.value).startswith(f"{path}: {complaint}")
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_reported(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: No such file or directory"):
        read_config(tmp_path / "mcp.json")


def test_the_repr_of_a_server_config_holds_no_secrets():
    config = read_one({"command": "true", "args": ["${TOKEN}"], "env": {"A": "${TOKEN}"}})
    assert repr(config) == "ServerConfig(command='true', cwd=None, disabled=False)"
    config = read_one({"url": "https://${TOKEN}", "headers": {"A": "${TOKEN}"}})
    assert "s3cret" not in repr(config)


# As a target


async def test_a_configured_command_gets_its_arguments_and_environment(
    program, tmp_path, monkeypatch
):
    monkeypatch.setenv("SECRET_TOKEN", "x")
    command, *args = program
    config = ServerConfig(command=command, args=args, env={"A": "1", "B": "2"}, cwd=str(tmp_path))
    async with Client(config, env={"B": "3"}) as client:
        variables = json.loads(said(await client.call_tool("variables")))
    assert (variables["A"], variables["B"]) == ("1", "3")
    assert "SECRET_TOKEN" not in variables


async def test_the_working_directory_of_a_configured_command_may_be_overridden(program, tmp_path):
    command, *args = program
    config = ServerConfig(command=command, args=args, cwd=str(tmp_path / "none"))
    async with Client(config, cwd=tmp_path):
        pass
    with pytest.raises(ConnectionLost, match="there is no working directory"):
        await Client(config).__aenter__()


async def test_a_remote_server_gets_its_configured_headers():
    heard = []

    async def hear(exchange):
        heard.append(exchange.request.header("authorization"))
        await exchange.answer(401, [])

    async with trio.open_nursery() as nursery:
        serve = partial(serve_native, hear, await trio.open_tcp_listeners(0, host="127.0.0.1"))
        (listener,) = await nursery.start(partial(serve, limits=DEFAULT_LIMITS))
        url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}/mcp?key=s3cret"
        config = ServerConfig(url=url, headers={"Authorization": "Bearer mine"})
        with pytest.raises(ConnectionLost, match="HTTP 401") as caught:
            await Client(config).__aenter__()
        nursery.cancel_scope.cancel()
    assert set(heard) == {"Bearer mine"}
    assert "s3cret" not in str(caught.value)


def test_a_disabled_server_needs_none_of_its_variables():
    entry = {"command": "${NOWHERE}", "disabled": True}
    found = read_config({"mcpServers": {"off": entry}}, variables={})
    assert found["off"].command == "${NOWHERE}"


async def test_a_group_skips_disabled_servers(program):
    command, *args = program
    entry = {"command": command, "args": args}
    source = {"mcpServers": {"on": entry, "off": {**entry, "disabled": True}}}
    async with ClientGroup.from_config(source, separator=".", name="me") as group:
        assert list(group.clients) == ["on"]
        assert group["on"].name == "me"
        assert int(said(await group.call_tool("on.pid")))
        await group.add("more", Bench())
