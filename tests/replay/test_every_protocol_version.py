"""Sessions under every protocol version are mocked and replayed at live servers."""

from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from mcp_trio import Client, Context, RequestError, Server
from mcp_trio.recording import run_inputs
from mcp_trio.testing import mock_server
from mcp_trio.transports import memory_pair

LEGACY = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
STATELESS = "2026-07-28"
PROTOCOL_VERSIONS = (*LEGACY, STATELESS)
WITH_FORMS = PROTOCOL_VERSIONS[2:]


@attrs.define
class Trip:
    city: str
    days: int = 2


def make_server():
    server = Server("desk", version="1")

    @server.tool
    async def echo(text: str, *, ctx: Context) -> str:
        await ctx.info("heard")
        return text

    @server.tool
    async def plan(name: str, *, ctx: Context) -> str:
        answer = await ctx.elicit(f"Where to, {name}?", Trip)
        sure = await ctx.elicit("Sure?", None)
        return f"{answer.data}, {sure.action}"

    @server.tool(resumable=True)
    async def both(*, ctx: Context) -> str:
        first = await ctx.elicit("One?", int)
        second = await ctx.elicit("Two?", int)
        return f"{first.data} and {second.data}"

    @server.tool
    async def visit(*, ctx: Context) -> str:
        return (await ctx.elicit_url("Sign here", "https://example.com/sign")).action

    @server.tool
    async def grow() -> str:
        @server.tool
        async def grown() -> str:
            return ""

        return "grown"

    return server


def filled_in(params):
    members = (params.requested_schema or {"properties": {}})["properties"]
    values = {"string": "Oslo", "integer": 3}
    return {name: values[member["type"]] for name, member in members.items()} or True


async def talk(client):
    """What the client does; returns what it is told."""
    told = [len(await client.list_tools()), await text_of(client, "echo", text="a")]
    if client.protocol_version in WITH_FORMS:
        told += [await text_of(client, "plan", name="Ann"), await text_of(client, "both")]
    if client.protocol_version in WITH_FORMS[1:]:
        told.append(await text_of(client, "visit"))
    if client.protocol_version == STATELESS:
        async with client.listen(tools=True) as subscription:
            told.append(await text_of(client, "grow"))
            told.append(await anext(aiter(subscription)))
    return told


async def text_of(client, tool, **arguments):
    return (await client.call_tool(tool, arguments)).content[0].text


@asynccontextmanager
async def connected(target, protocol_versions, **options):
    modes = ("form", "url")
    async with Client(
        target,
        protocol_versions=protocol_versions,
        elicitation=filled_in,
        elicitation_modes=modes,
        **options,
    ) as client:
        yield client


@pytest.fixture(params=PROTOCOL_VERSIONS)
def protocol_version(request):
    return request.param


@pytest.fixture(params=["client", "server"])
async def recorded(request, protocol_version, tmp_path):
    """A recording by that side at that revision, and what the client was told."""
    path = tmp_path / "a.mcprec.jsonl"
    ours, theirs = memory_pair()
    serve, record = make_server().serve, {"record": path}
    by_server, by_client = (record, {}) if request.param == "server" else ({}, record)
    async with trio.open_nursery() as serving:
        serving.start_soon(lambda: serve(theirs, **by_server))
        async with connected(ours, (protocol_version,), **by_client) as client:
            told = await talk(client)
    return path, told


async def test_a_client_gets_the_recorded_answers_from_a_mock(recorded, protocol_version):
    path, told = recorded
    with mock_server(path, strict=True) as mock:
        async with connected(mock, (protocol_version,)) as client:
            assert client.protocol_version == protocol_version
            assert await talk(client) == told


async def test_a_client_of_all_versions_negotiates_the_recorded_one(recorded, protocol_version):
    path, told = recorded
    with mock_server(path, strict=True) as mock:
        async with connected(mock, PROTOCOL_VERSIONS) as client:
            assert client.protocol_version == protocol_version
            assert await talk(client) == told


async def test_a_recorded_client_at_a_live_server_finds_no_difference(recorded, autojump_clock):
    path, _ = recorded
    report = await run_inputs(path, make_server())
    assert report.is_same, str(report)
    assert report.unsent == 0


async def test_a_recorded_client_at_its_own_mock_finds_no_difference(recorded, autojump_clock):
    path, _ = recorded
    with mock_server(path, strict=True) as mock:
        report = await run_inputs(path, mock)
    assert report.is_same, str(report)


# A client that says something else.


async def answers_at(path, answer, protocol_version):
    with mock_server(path) as mock:
        async with Client(
            mock, protocol_versions=(protocol_version,), elicitation=answer
        ) as client:
            return await text_of(client, "plan", name="Ann")


@pytest.mark.parametrize("recorded", ["client"], indirect=True)
@pytest.mark.parametrize("protocol_version", WITH_FORMS)
async def test_another_content_of_a_form_matches_the_recorded_one(recorded, protocol_version):
    path, told = recorded
    other = lambda params: {"city": "Rome"} if filled_in(params) is not True else True  # noqa: E731
    assert await answers_at(path, other, protocol_version) == told[2]


@pytest.mark.parametrize("recorded", ["client"], indirect=True)
@pytest.mark.parametrize("protocol_version", [STATELESS])
async def test_a_declined_form_does_not_match_an_accepted_one(recorded, protocol_version):
    path, _ = recorded
    with pytest.raises(RequestError, match=r"differs at \$\.inputResponses\.q1\.action"):
        await answers_at(path, lambda _: False, protocol_version)
