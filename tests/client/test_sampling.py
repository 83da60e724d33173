"""Sampling: a server asks the client's model."""

import pytest
import trio
import trio.testing

from mcp_trio import Client, Limits, RequestError, UserRejected
from mcp_trio import types as t
from mcp_trio.limits import RequestLimits
from tests.client.conftest import OLD, connected, said, text

MESSAGE = {"role": "user", "content": {"type": "text", "text": "Ebb or flow?"}}
ASKED = {
    "messages": [MESSAGE],
    "maxTokens": 9,
    "systemPrompt": "Be brief.",
    "includeContext": "allServers",
    "temperature": 0.5,
    "stopSequences": ["."],
    "metadata": {"any": "thing"},
}
SAMPLE = t.CreateMessageParams(
    messages=[t.SamplingMessage(role="user", content=t.TextContent(text="Ebb or flow?"))],
    max_tokens=9,
    system_prompt="Be brief.",
    include_context="allServers",
    temperature=0.5,
    stop_sequences=["."],
    metadata={"any": "thing"},
)
SAMPLED = t.CreateMessageResult(role="assistant", content=t.TextContent(text="hm"), model="m")
ANSWERED = {"role": "assistant", "content": {"type": "text", "text": "hm"}, "model": "m"}


@pytest.fixture
def asking(bench):
    bench.protocol_versions = OLD  # a server asks by requests of its own

    @bench.tool
    async def sample(handling):
        result = await handling.ask("sampling/createMessage", SAMPLE)
        return text(result.content.text)

    return bench


async def later(_params):
    await trio.lowlevel.checkpoint()
    return SAMPLED


@pytest.mark.parametrize("sampling", [later, lambda _params: SAMPLED])
@pytest.mark.requirement("SAMP-01", "SAMP-09", "SAMP-10", "SAMP-12")
async def test_a_server_can_request_sampling(scripted, nursery, sampling):
    client, server = await connected(scripted, nursery, sampling=sampling)
    await server.send_request("sampling/createMessage", ASKED, id="s")
    assert await server.receive() == {"jsonrpc": "2.0", "id": "s", "result": ANSWERED}
    await client.aclose()


@pytest.mark.requirement("SAMP-11")
async def test_the_callback_gets_the_whole_request_with_max_tokens(asking):
    heard = []

    def sampling(params):
        heard.append(params)
        return SAMPLED

    async with Client(asking, sampling=sampling) as client:
        assert said(await client.call_tool("sample")) == "hm"
    assert heard == [SAMPLE]
    assert heard[0].max_tokens == 9


@pytest.mark.requirement("SAMP-27")
async def test_the_callback_may_change_request_and_answer(asking):
    async def sampling(params):
        params.messages[0].content.text = "Flow?"
        return t.CreateMessageResult(
            role="assistant",
            content=t.TextContent(text=f"{params.messages[0].content.text} Yes."),
            model="m",
        )

    async with Client(asking, sampling=sampling) as client:
        assert said(await client.call_tool("sample")) == "Flow? Yes."


@pytest.mark.parametrize("rejection", [UserRejected(), UserRejected("not today")])
@pytest.mark.requirement("ERR-18", "SAMP-25", "SAMP-27", "TRAP-88")
async def test_user_rejected_is_sent_as_code_minus_one(scripted, nursery, rejection):
    async def sampling(params):
        raise rejection

    client, server = await connected(scripted, nursery, sampling=sampling)
    await server.send_request("sampling/createMessage", {"messages": [], "maxTokens": 1}, id="s")
    answer = await server.receive()
    assert answer == {
        "jsonrpc": "2.0",
        "id": "s",
        "error": {"code": -1, "message": rejection.message},
    }
    await client.aclose()


@pytest.mark.requirement("SAMP-10")
async def test_a_callback_that_returns_another_type_is_an_internal_error(asking, caplog):
    async def sampling(params):
        return "hm"

    async with Client(asking, sampling=sampling) as client:
        with pytest.raises(RequestError, match="internal error"):
            await client.call_tool("sample")
        await client.ping()
    assert "must return a CreateMessageResult, not 'hm'" in caplog.text


@pytest.mark.requirement("SAMP-29")
async def test_an_error_of_the_model_is_not_sent_to_the_server(scripted, nursery, caplog):
    def sampling(params):
        raise ValueError("key sk-123 is not valid")

    client, server = await connected(scripted, nursery, sampling=sampling)
    await server.send_request("sampling/createMessage", ASKED, id="s")
    assert (await server.receive())["error"] == {"code": -32603, "message": "internal error"}
    assert "sk-123" in caplog.text
    await client.aclose()


@pytest.mark.parametrize(
    "message",
    [
        {"role": "system", "content": MESSAGE["content"]},
        {"role": "user", "content": {"type": "video", "data": "", "mimeType": "video/mp4"}},
        {"role": "user"},
    ],
)
@pytest.mark.requirement("SAMP-09", "SAMP-28")
async def test_a_malformed_message_never_reaches_the_model(scripted, nursery, message):
    client, server = await connected(scripted, nursery, sampling=later)
    asked = {"messages": [MESSAGE, message], "maxTokens": 1}
    await server.send_request("sampling/createMessage", asked, id="s")
    assert (await server.receive())["error"]["code"] == -32602
    await client.aclose()


@pytest.mark.requirement("SAMP-28")
async def test_too_many_sampling_requests_at_once_are_rejected(scripted, nursery):
    release = trio.Event()

    async def sampling(params):
        await release.wait()
        return SAMPLED

    limits = Limits(requests=RequestLimits(in_flight_max=1, queued_max=1))
    client, server = await connected(scripted, nursery, sampling=sampling, limits=limits)
    for number in range(3):
        await server.send_request("sampling/createMessage", ASKED, id=number)
    (rejection,) = await server.receive_available()
    assert rejection["id"] == 2
    assert "limits.requests.queued_max" in rejection["error"]["message"]
    release.set()
    assert [answer["id"] for answer in await server.receive_many(2)] == [0, 1]
    await client.aclose()


@pytest.mark.requirement("CANC-06")
async def test_a_server_may_cancel_its_sampling_request(scripted, nursery):
    cancelled = trio.Event()

    async def sampling(params):
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()

    client, server = await connected(scripted, nursery, sampling=sampling)
    await server.send_request("sampling/createMessage", {"messages": [], "maxTokens": 1}, id="s")
    await trio.testing.wait_all_tasks_blocked()
    await server.cancel("s")
    with trio.fail_after(1):
        await cancelled.wait()
    assert await server.receive_available() == []
    await client.aclose()


@pytest.mark.requirement("PROG-03", "PROG-06")
async def test_a_callback_with_a_second_parameter_reports_its_progress(scripted, nursery):
    async def sampling(params, report):
        await report(1, 3)
        await report(1)
        await report(2)
        return SAMPLED

    client, server = await connected(scripted, nursery, sampling=sampling)
    asked = {**ASKED, "_meta": {"progressToken": "p"}}
    await server.send_request("sampling/createMessage", asked, id="s")
    *reports, answer = await server.receive_many(3)
    assert [report["params"] for report in reports] == [
        {"progressToken": "p", "progress": 1, "total": 3},
        {"progressToken": "p", "progress": 2},
    ]
    assert answer["result"] == ANSWERED
    await server.send_request("sampling/createMessage", ASKED, id="quiet")
    assert (await server.receive())["id"] == "quiet"
    await client.aclose()


async def test_a_second_parameter_with_a_default_is_the_callbacks_own(asking):
    async def sampling(params, model="m"):
        return t.CreateMessageResult(
            role="assistant", content=t.TextContent(text=model), model=model
        )

    async with Client(asking, sampling=sampling) as client:
        assert said(await client.call_tool("sample")) == "m"
