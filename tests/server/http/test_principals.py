"""Who sends a request: `verify=` says it, and handlers, states and recordings know it."""

import functools

import httpx2
import pytest
import trio
import trio.testing

from mcp_trio import Context, Server, ThreadContext
from mcp_trio._journal.redaction import redact_recording
from mcp_trio.recording import RecordOptions, Redaction, read_recording, replay
from tests.server.http.conftest import call, hello, site_of, text
from tests.server.http.test_serving import stateless
from tests.server.rounds import NOT_VALID, TRUE, text_of

FORMS = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}
TOKENS = {"Bearer 1": "anna", "Bearer 2": "bert"}
ANNA, BERT = TOKENS


async def verify(head):
    return TOKENS.get(head.header("authorization"))


def harbour():
    server = Server("harbour")

    @server.tool
    async def who(*, ctx: Context) -> str:
        return f"{ctx.principal}"

    @server.tool
    def who_in_a_thread(*, ctx: ThreadContext) -> str:
        return f"{ctx.principal}"

    async def steer(*, ctx: Context) -> str:
        answer = await ctx.elicit("sure?", bool)
        return f"{ctx.principal}: {answer.data}"

    server.tool(steer, name="suspended")
    server.tool(steer, name="sealed", resumable=True)
    return server


@pytest.mark.parametrize("tool", ["who", "who_in_a_thread"])
async def test_a_handler_knows_who_calls_in_either_era(open_site, tool):
    site = await open_site(harbour(), verify=verify)
    for token, name in TOKENS.items():
        client = await site.open(Authorization=token)
        assert text((await client.ask(call(tool))).json) == name
        answer = await site.ask_stateless(call(tool), Authorization=token)
        assert text(answer.json) == name


@pytest.mark.requirement("STATE-07")
@pytest.mark.parametrize("host", ["native", "hypercorn"])
async def test_each_request_on_a_connection_proves_anew_who_sends_it(nursery, host):
    serve = functools.partial(harbour().serve_http, port=0, server=host, verify=verify)
    url = await nursery.start(serve)
    asked, connections = stateless(call("who")), []
    async with httpx2.AsyncClient() as http:
        for token in (ANNA, None, BERT, "Bearer 3", ANNA):
            proof = {} if token is None else {"Authorization": token}
            headers = {**asked["headers"], **proof}
            async with http.stream(
                "POST", url, content=asked["content"], headers=headers
            ) as answer:
                stream = answer.extensions["network_stream"]
                connections.append(stream.get_extra_info("client_addr"))
                await answer.aread()
            if token in TOKENS:
                assert text(answer.json()) == TOKENS[token]
            else:
                assert answer.status_code == 401
                assert "result" not in answer.json()
    assert connections[1] == connections[0]  # which had proved who it was
    nursery.cancel_scope.cancel()


async def test_nobody_is_anybody_where_nobody_verifies(open_site, autojump_clock):
    site = await open_site(harbour())
    client = await site.open(Authorization=ANNA)
    assert text((await client.ask(call("who"))).json) == "None"
    assert text((await site.ask_stateless(call("who"), Authorization=ANNA)).json) == "None"


async def test_the_oldest_transport_knows_it_too(open_site, autojump_clock):
    site = await open_site(harbour(), verify=verify)
    stream = site.begin("GET", path="/sse", accept="text/event-stream", Authorization=ANNA)
    path = "/" + (await stream.event()).data.decode()
    for message in (hello("2024-11-05"), call("who")):
        await site.ask("POST", message, path=path, Authorization=ANNA)
    await stream.message()
    assert text(await stream.message()) == "anna"


@pytest.mark.requirement("MRTR-19", "MRTR-22", "STATE-09", "TRAP-96")
@pytest.mark.parametrize("tool", ["suspended", "sealed"])
async def test_a_state_is_good_for_nobody_but_who_got_it(open_site, tool, autojump_clock):
    site = await open_site(harbour(), verify=verify)
    asked = await site.ask_stateless(call(tool), meta=FORMS, Authorization=ANNA)
    state = asked.json["result"]["requestState"]
    retry = call(tool, id=2, requestState=state, inputResponses={"q1": TRUE})
    rejected = await site.ask_stateless(retry, meta=FORMS, Authorization=BERT)
    assert rejected.json["error"] == NOT_VALID
    answer = await site.ask_stateless(retry, meta=FORMS, Authorization=ANNA)
    assert text_of(answer.json["result"]) == "anna: True"


# Recordings.


async def record(options):
    async with site_of(harbour(), record=options, verify=verify) as site:
        for token in TOKENS:
            client = await site.open(Authorization=token)
            await client.ask(call("who"))
            await site.ask_stateless(call("who"), Authorization=token)
        asked = await site.ask_stateless(call("suspended"), meta=FORMS, Authorization=ANNA)
        state = asked.json["result"]["requestState"]
        retry = call("suspended", id=2, requestState=state, inputResponses={"q1": TRUE})
        for token in (BERT, ANNA):
            await site.ask_stateless(retry, meta=FORMS, Authorization=token)
        site.runtime.close()
        await site.runtime.ended.wait()


def recorded(options, folder):
    trio.run(record, options, clock=trio.testing.MockClock(autojump_threshold=0))
    return sorted(folder.iterdir())


def test_a_recording_says_who_it_was_and_replays_so(tmp_path):
    files = recorded(tmp_path, tmp_path)
    assert len(files) == 3
    for file in files:
        assert replay(file, harbour()).is_complete, file
    everything = "".join(file.read_text() for file in files)
    assert '"x":{"principal":"anna"}' in everything
    assert '"x":{"principal":"bert"}' in everything
    assert "Bearer" not in everything


def test_a_name_that_is_secret_is_redacted_there_as_anywhere(tmp_path):
    redaction = Redaction(secrets=["anna"])
    files = recorded(RecordOptions(tmp_path, redaction=redaction), tmp_path)
    for file in files:
        assert replay(file, harbour()).is_complete, file
    everything = "".join(file.read_text() for file in files)
    assert "anna" not in everything
    assert '"x":{"principal":"bert"}' in everything


def test_a_name_can_be_redacted_afterwards(tmp_path):
    files = recorded(tmp_path, tmp_path)
    assert any(b"anna" in file.read_bytes() for file in files)
    for file in files:
        records = list(read_recording(file.read_bytes().splitlines(keepends=True)))
        redaction = Redaction(secrets=["anna"])
        lines = b"".join(redact_recording(records, redaction, key=b"k" * 32))
        assert b"anna" not in lines
        assert lines.count(b'"principal"') == file.read_bytes().count(b'"principal"') > 0
