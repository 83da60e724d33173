"""Roots: the folders that a server may work in."""

import re
from pathlib import Path

import pytest
import trio

from mcp_trio import Client, ConnectionLost, RequestError, UserRejected
from mcp_trio import types as t
from mcp_trio.errors import LocalProtocolError
from tests.client.conftest import OLD, connected, said, text

CHANGED = "notifications/roots/list_changed"
ROOTS = ["file:///sea", t.Root(uri="file:///land", name="land")]


@pytest.fixture
def curious(bench):
    bench.protocol_versions = OLD  # a server asks by requests of its own

    @bench.tool
    async def ask_roots(handling):
        result = await handling.ask("roots/list")
        return text(" ".join(f"{root.uri}={root.name}" for root in result.roots))

    return bench


async def told(client):
    """What the server is told when it asks for the roots."""
    return said(await client.call_tool("ask_roots"))


async def roots_later():
    await trio.lowlevel.checkpoint()
    return ROOTS


@pytest.mark.parametrize("roots", [ROOTS, tuple(ROOTS), lambda: ROOTS, roots_later])
@pytest.mark.requirement("ROOT-01", "ROOT-05", "ROOT-09")
async def test_a_server_gets_exactly_the_roots(curious, roots):
    async with Client(curious, roots=roots) as client:
        assert await told(client) == "file:///sea=None file:///land=land"


async def test_a_path_becomes_the_uri_of_its_resolved_target(curious, tmp_path, monkeypatch):
    (tmp_path / "sea bed").mkdir()
    (tmp_path / "alias").symlink_to(tmp_path / "sea bed")
    monkeypatch.chdir(tmp_path)
    real = tmp_path.resolve().as_uri()
    roots = [tmp_path, Path("alias"), Path("alias/../sea bed")]
    async with Client(curious, roots=roots) as client:
        assert await told(client) == f"{real}=None {real}/sea%20bed=None {real}/sea%20bed=None"


@pytest.mark.requirement("ROOT-06")
async def test_a_change_of_the_roots_is_notified_and_the_new_ones_are_listed(curious):
    roots = []
    async with Client(curious, roots=roots) as client:
        assert await told(client) == ""
        roots.append("file:///sea")
        await client.notify_roots_changed()
        assert await told(client) == "file:///sea=None"
    assert curious.notifications.count(CHANGED) == 1


@pytest.mark.requirement("ROOT-06")
async def test_set_roots_notifies_the_server_and_lists_the_new_ones(curious):
    async with Client(curious, roots=["file:///sea"]) as client:
        await client.set_roots(lambda: ["file:///land"])
        assert await told(client) == "file:///land=None"
    assert curious.notifications.count(CHANGED) == 1


async def test_invalid_roots_do_not_replace_the_old_ones(curious):
    async with Client(curious, roots=["file:///sea"]) as client:
        with pytest.raises(TypeError, match="roots must be a list, or a function"):
            await client.set_roots("file:///land")
        assert await told(client) == "file:///sea=None"
    assert CHANGED not in curious.notifications


async def test_set_roots_needs_a_client_with_roots(curious):
    client = Client(curious)
    with pytest.raises(LocalProtocolError, match="not connected"):
        await client.set_roots([])
    async with client:
        with pytest.raises(LocalProtocolError, match="not announced"):
            await client.set_roots([])
    with pytest.raises(ConnectionLost):
        await client.set_roots([])


@pytest.mark.parametrize("roots", ["file:///sea", b"file:///sea", Path("/sea"), 7])
def test_a_single_root_is_rejected_as_a_list(roots):
    with pytest.raises(
        TypeError, match="roots must be a list, or a function that returns one, not"
    ):
        Client((), roots=roots)


@pytest.mark.parametrize(
    ("root", "complaint"),
    [
        ("https://example.org", "the URI of a root must start with file://"),
        (t.Root(uri="/sea"), "the URI of a root must start with file://"),
        ("file:///sea/../etc", "must not contain '..' or NUL"),
        ("file:///sea/%2e%2E/etc", "must not contain '..' or NUL"),
        ("file:///sea\\..\\etc", "must not contain '..' or NUL"),
        ("file:///sea%00", "must not contain '..' or NUL"),
        (7, "a root must be a Root, a URI or a path, not 7"),
    ],
)
@pytest.mark.requirement("ROOT-05", "ROOT-08", "ROOT-09")
async def test_an_invalid_root_is_never_sent(curious, caplog, root, complaint):
    roots = ["file:///sea"]
    async with Client(curious, roots=roots) as client:
        with pytest.raises((TypeError, ValueError), match=re.escape(complaint)):
            await client.set_roots([*roots, root])
        assert await told(client) == "file:///sea=None"
        roots.append(root)
        with pytest.raises(RequestError, match="internal error"):
            await told(client)
        await client.ping()
    assert complaint in caplog.text


def test_an_invalid_root_is_rejected_by_the_constructor():
    with pytest.raises(ValueError, match="must start with file://, unlike '/sea'"):
        Client((), roots=["/sea"])


async def test_a_function_that_returns_a_single_root_is_an_error(curious, caplog):
    async with Client(curious, roots=lambda: "file:///sea") as client:
        with pytest.raises(RequestError, match="internal error"):
            await told(client)
    assert "roots must be a list" in caplog.text


@pytest.mark.requirement("ROOT-08")
async def test_an_exception_of_the_roots_function_is_an_internal_error(curious, caplog):
    def roots():
        raise OSError("the disk is gone")

    async with Client(curious, roots=roots) as client:
        with pytest.raises(RequestError, match="internal error") as caught:
            await told(client)
        assert "disk" not in str(caught.value)
        await client.ping()
    assert "the disk is gone" in caplog.text


@pytest.mark.requirement("ROOT-11")
async def test_a_roots_function_may_ask_the_user_first(scripted, nursery):
    async def roots():
        raise UserRejected

    client, server = await connected(scripted, nursery, roots=roots)
    await server.send_request("roots/list", id=1)
    assert (await server.receive())["error"]["code"] == -1
    await client.aclose()
