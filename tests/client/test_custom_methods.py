"""Requests and notifications that the protocol does not define."""

import attrs
import msgspec
import pytest
import trio
import trio.testing

from mcp_trio import Client
from mcp_trio.errors import LocalProtocolError, RemoteProtocolError
from tests.client.conftest import connected


class Found(msgspec.Struct):
    """The result of a search."""

    names: list[str]


@attrs.frozen
class Report:
    """The same, of another family of classes."""

    names: list[str]


@pytest.mark.parametrize(
    ("kind", "result"),
    [(Found, Found(["Oslo"])), (Report, Report(["Oslo"])), (dict, {"names": ["Oslo"]})],
)
async def test_a_custom_method_has_a_typed_result(scripted, nursery, kind, result):
    client, server = await connected(scripted, nursery, methods={"acme/search": kind})
    results = []

    async def search():
        results.append(await client.request("acme/search", {"text": "os"}))

    nursery.start_soon(search)
    asked = await server.receive()
    assert (asked["method"], asked["params"]) == ("acme/search", {"text": "os"})
    await server.send_result(asked, {"names": ["Oslo"]})
    await trio.testing.wait_all_tasks_blocked()
    assert results == [result]
    await client.aclose()


async def test_a_malformed_result_of_a_custom_method_is_rejected(scripted, nursery):
    client, server = await connected(scripted, nursery, methods={"acme/search": Found})

    async def play():
        await server.send_result(await server.receive(), {"names": 7})

    nursery.start_soon(play)
    with pytest.raises(RemoteProtocolError, match="acme/search"):
        await client.request("acme/search")
    await client.aclose()


async def test_a_custom_method_reports_progress(scripted, nursery):
    client, server = await connected(scripted, nursery, methods={"acme/search": dict})
    reports = []

    async def search():
        await client.request("acme/search", {"text": "os"}, progress=reports.append)

    nursery.start_soon(search)
    asked = await server.receive()
    params = {"progressToken": asked["params"]["_meta"]["progressToken"], "progress": 1}
    assert asked["params"]["text"] == "os"
    await server.send_notification("notifications/progress", params)
    await server.send_result(asked, {})
    await trio.testing.wait_all_tasks_blocked()
    assert [report.progress for report in reports] == [1]
    await client.aclose()


@pytest.mark.parametrize("method", ["acme/moored", "notifications/acme/moored"])
async def test_a_custom_notification_is_sent(scripted, nursery, method):
    client, server = await connected(scripted, nursery, methods={method: None})
    await client.notify(method, {"port": "Oslo"})
    told = await server.receive()
    assert told == {"jsonrpc": "2.0", "method": method, "params": {"port": "Oslo"}}
    await client.aclose()


async def test_an_unknown_method_is_rejected(bench):
    async with Client(bench) as client:
        with pytest.raises(LocalProtocolError, match="no such request: 'acme/search'"):
            await client.request("acme/search")
        with pytest.raises(LocalProtocolError, match="no such notification"):
            await client.notify("notifications/acme/moored")


def test_a_method_of_the_protocol_keeps_its_own_result():
    with pytest.raises(ValueError, match=r"must not redefine methods of the protocol: \['ping'\]"):
        Client((), methods={"ping": dict, "acme/search": dict})


def test_a_type_that_cannot_be_decoded_is_rejected_at_once():
    with pytest.raises(TypeError, match="not supported"):
        Client((), methods={"acme/search": dict[Found, str] | dict[str, str]})
