"""Where the specification misleads its readers: a test for each such place on a client's side.

The ids are those of `tools/traps.tsv`. Traps that the tests of a feature catch are not here again.
"""

import pytest
import trio
import trio.testing

from mcp_trio import RequestError
from mcp_trio import types as t
from tests.client.conftest import connected

SAMPLED = t.CreateMessageResult(role="assistant", content=t.TextContent(text="hm"), model="m")


def answering(server, nursery, *answers):
    """Let the server answer the next requests; errors hold a code."""

    async def play():
        for answer in answers:
            asked = await server.receive()
            await server.send({"id": asked["id"], **answer})

    nursery.start_soon(play)


# TRAP-10: what a newer server adds is ignored, and a tool's schema is kept with all that is in it.


@pytest.mark.requirement("TOOL-05", "TOOL-16", "TOOL-40", "TRAP-10")
async def test_unknown_members_of_a_newer_server_are_ignored(scripted, nursery):
    client, server = await connected(scripted, nursery)
    schema = {"type": "object", "$defs": {"a": True}, "if": {}, "x-ui": [None]}
    tool = {"name": "tide", "colour": "blue", "inputSchema": schema, "annotations": {"smell": 1}}
    content = {"type": "text", "text": "ebb", "weight": {"a": 1}}
    called = {"content": [content], "mood": {"a": 1}, "resultType": "complete"}
    answering(server, nursery, {"result": {"tools": [tool], "ttlMs": 0}}, {"result": called})
    (listed,) = await client.list_tools()
    assert listed == t.Tool(name="tide", input_schema=schema, annotations=t.ToolAnnotations())
    result = await client.call_tool("tide")
    assert result == t.CallToolResult(content=[t.TextContent(text="ebb")], result_type="complete")
    await client.aclose()


# TRAP-67: the code of a missing resource has changed; a client takes both.


@pytest.mark.parametrize("code", [-32002, -32602])
async def test_a_missing_resource_is_an_error_whatever_its_code(scripted, nursery, code):
    client, server = await connected(scripted, nursery)
    error = {"code": code, "message": "not here", "data": {"uri": "tide://bergen"}}
    answering(server, nursery, {"error": error})
    with pytest.raises(RequestError, match="not here") as caught:
        await client.read_resource("tide://bergen")
    assert (caught.value.code, caught.value.data) == (code, {"uri": "tide://bergen"})
    await client.aclose()


# TRAP-72: what is empty, zero or false was said, and differs from what was left out.


@pytest.mark.requirement("COMP-08", "TOOL-16")
async def test_empty_and_zero_values_are_kept(scripted, nursery):
    client, server = await connected(scripted, nursery)
    none = {"completion": {"values": [], "total": 0, "hasMore": False}}
    called = {"content": [], "isError": False}
    answering(server, nursery, {"result": none}, {"result": called})
    result = await client.complete("plan", "city", "")
    assert result.completion == t.Completion(values=[], total=0, has_more=False)
    assert await client.call_tool("tide") == t.CallToolResult(content=[], is_error=False)
    await client.aclose()


# TRAP-73: a page may be empty, and any page may be longer than the one before it.


@pytest.mark.requirement("PAG-02", "PAG-07", "PROM-14")
@pytest.mark.parametrize("sizes", [[0], [3], [2, 0, 3], [0, 1], [1, 4, 1, 0]])
async def test_pages_have_any_size_and_a_list_any_number_of_them(scripted, nursery, sizes):
    client, server = await connected(scripted, nursery)
    names = [[f"p{page}-{item}" for item in range(size)] for page, size in enumerate(sizes)]
    pages = [{"prompts": [{"name": name} for name in page]} for page in names]
    for number, page in enumerate(pages[:-1]):
        page["nextCursor"] = f"c{number}"
    answering(server, nursery, *({"result": page} for page in pages))
    assert [prompt.name for prompt in await client.list_prompts()] == [
        name for page in names for name in page
    ]
    await client.aclose()


# TRAP-77: a cursor is any text, the empty one too, and goes back as it came.


@pytest.mark.requirement("PAG-03")
@pytest.mark.parametrize(
    "cursor", ["", " 1 ", "a=b&c", "eyJwIjoxfQ==", '{"p": 1}', "\u00e9\0\n", "2"]
)
async def test_a_cursor_is_sent_back_unchanged(scripted, nursery, cursor):
    client, server = await connected(scripted, nursery)
    asked = []

    async def play():
        for page in ({"tools": [], "nextCursor": cursor}, {"tools": []}):
            request = await server.receive()
            asked.append(request["params"])
            await server.send_result(request, page)

    nursery.start_soon(play)
    await client.list_tools()
    assert asked == [{}, {"cursor": cursor}]
    await client.aclose()


# TRAP-78: `updated` may name a part of what was subscribed to.


@pytest.mark.requirement("RES-12")
async def test_an_update_of_a_sub_resource_reaches_the_callback(scripted, nursery):
    heard = []
    client, server = await connected(
        scripted, nursery, resource_updated=lambda params: heard.append(params.uri)
    )
    answering(server, nursery, {"result": {}})
    await client.subscribe("file:///pier")
    uri = "file:///pier/boat"
    await server.send_notification("notifications/resources/updated", {"uri": uri})
    await trio.testing.wait_all_tasks_blocked()
    assert heard == [uri]
    await client.aclose()


# TRAP-85: what is no message of sampling is refused; one block, and a list of them, are read alike.


@pytest.mark.requirement("SAMP-08", "SAMP-09", "SAMP-14", "SAMP-28")
@pytest.mark.parametrize(
    "change",
    [
        {"messages": [{"role": "user", "content": {"type": "tool_result", "content": []}}]},
        {"messages": None},
        {"maxTokens": None},
        {"maxTokens": "9"},
        {"temperature": "hot"},
        {"stopSequences": "."},
        {"includeContext": "everything"},
        {"modelPreferences": {"costPriority": 1.1}},
        {"modelPreferences": {"speedPriority": -0.1}},
        {"modelPreferences": {"hints": ["large"]}},
    ],
)
async def test_a_malformed_sampling_request_never_reaches_the_model(scripted, nursery, change):
    asked = []

    def sampling(params):
        asked.append(params)
        return SAMPLED

    client, server = await connected(scripted, nursery, sampling=sampling)
    message = {"role": "user", "content": {"type": "text", "text": "Why?"}}
    params = {"messages": [message], "maxTokens": 9, **change}
    await server.send_request("sampling/createMessage", params, id="s")
    assert (await server.receive())["error"]["code"] == -32602
    assert asked == []
    await client.aclose()


# TRAP-10 once more: a reason to stop is any text, so that newer ones need no newer server.


@pytest.mark.requirement("SAMP-10")
@pytest.mark.parametrize("reason", ["endTurn", "stopSequence", "maxTokens", "anything else", None])
async def test_any_stop_reason_of_a_model_is_accepted(scripted, nursery, reason):
    result = t.CreateMessageResult(
        role="assistant", content=t.TextContent(text="hm"), model="m", stop_reason=reason
    )
    client, server = await connected(scripted, nursery, sampling=lambda _params: result)
    message = {"role": "user", "content": {"type": "text", "text": "Why?"}}
    params = {"messages": [message], "maxTokens": 9}
    await server.send_request("sampling/createMessage", params, id="s")
    told = {} if reason is None else {"stopReason": reason}
    assert (await server.receive())["result"] == {
        "role": "assistant",
        "content": {"type": "text", "text": "hm"},
        "model": "m",
        **told,
    }
    await client.aclose()
