"""The choice of a model by a server's preferences."""

import json
import tracemalloc

import pytest
import trio
import trio.testing

from mcp_trio import ConnectionLost, Limits, RequestError
from mcp_trio import types as t
from mcp_trio.errors import OutcomeUnknown, RemoteProtocolError
from mcp_trio.hosts import ModelTraits, choose_model, showable_icons
from mcp_trio.limits import MIB, MessageLimits
from mcp_trio.testing import WirePeer
from mcp_trio.transports import memory_pair
from tests.client.conftest import connected

MODELS = {
    "harbour-large-2": ModelTraits(cheapness=0.1, speed=0.3, intelligence=1),
    "harbour-small-2": ModelTraits(cheapness=0.9, speed=0.9, intelligence=0.3),
    "quay-1": ModelTraits(cheapness=0.5, speed=0.5, intelligence=0.5, stands_for=["gull-pro"]),
}


def preferring(*hints, **priorities):
    return t.ModelPreferences(hints=[t.ModelHint(name=hint) for hint in hints], **priorities)


@pytest.mark.parametrize(
    ("preferences", "chosen"),
    [
        (preferring("quay"), "quay-1"),
        (preferring("small", "large"), "harbour-small-2"),
        (preferring("unheard-of", "large", "small"), "harbour-large-2"),
        (preferring(None, "", "small"), "harbour-small-2"),
    ],
)
@pytest.mark.requirement("SAMP-13")
def test_the_first_hint_contained_in_a_name_decides(preferences, chosen):
    assert choose_model(MODELS, preferences) == chosen


@pytest.mark.parametrize(
    ("preferences", "chosen"),
    [
        (preferring("large", cost_priority=1, speed_priority=1), "harbour-large-2"),
        (preferring("harbour", cost_priority=1), "harbour-small-2"),
        (preferring("harbour", intelligence_priority=1), "harbour-large-2"),
        (preferring("unheard-of", speed_priority=1), "harbour-small-2"),
        (preferring(cost_priority=0.2, intelligence_priority=0.9), "harbour-large-2"),
    ],
)
@pytest.mark.requirement("SAMP-14")
def test_hints_come_before_the_priorities(preferences, chosen):
    assert choose_model(MODELS, preferences) == chosen


@pytest.mark.requirement("SAMP-15")
def test_a_hint_may_name_the_model_of_another_provider():
    assert choose_model(MODELS, preferring("gull")) == "quay-1"


@pytest.mark.parametrize("preferences", [None, t.ModelPreferences(), preferring("unheard-of")])
def test_without_preferences_the_first_model_is_chosen(preferences):
    assert choose_model(MODELS, preferences) == "harbour-large-2"


def test_without_models_an_error_is_raised():
    with pytest.raises(ValueError, match="no models"):
        choose_model({}, None)


# Icons that a host may show.


PNG = "data:image/png;base64,AAAA"
HTTPS = "https://harbour.example/i.png"
HOSTS = {"harbour.example"}


@pytest.mark.requirement("ICON-02", "ICON-03")
@pytest.mark.parametrize("kind", ["png", "jpeg", "jpg", "svg+xml", "webp"])
def test_icons_of_the_usual_image_types_are_showable(kind):
    mime_type = f"image/{kind}"
    icons = [
        t.Icon(src=f"data:{mime_type};base64,AAAA"),
        t.Icon(src=f"data:{mime_type},AAAA", mime_type=mime_type),
        t.Icon(src=HTTPS, mime_type=mime_type),
        t.Icon(src=HTTPS, mime_type=mime_type.upper()),
        t.Icon(src="https://HARBOUR.example:8443/i"),
    ]
    assert showable_icons(icons, hosts=HOSTS) == icons


@pytest.mark.requirement("ICON-04")
@pytest.mark.parametrize(
    "src",
    [
        "http://harbour.example/i.png",
        "javascript:alert(1)",
        "file:///i.png",
        "ftp://harbour.example/i.png",
        "ws://harbour.example/i.png",
        "//harbour.example/i.png",
        "i.png",
        "https://[",
        "",
    ],
)
def test_an_icon_with_an_unsafe_scheme_is_not_showable(src):
    shown = t.Icon(src=HTTPS)
    assert showable_icons([t.Icon(src=src), shown], hosts=HOSTS) == [shown]


@pytest.mark.requirement("ICON-07")
@pytest.mark.parametrize(
    "src",
    [
        "https://elsewhere.example/i.png",
        "https://harbour.example.elsewhere.example/i.png",
        "https://www.harbour.example/i.png",
        "https:///i.png",
    ],
)
def test_an_icon_from_an_untrusted_host_is_not_showable(src):
    assert showable_icons([t.Icon(src=src)], hosts=HOSTS) == []
    assert showable_icons([t.Icon(src=HTTPS), t.Icon(src=PNG)]) == [t.Icon(src=PNG)]


@pytest.mark.requirement("ICON-05")
@pytest.mark.parametrize("user", ["ann@", "ann:secret@", "@"])
def test_an_icon_url_with_credentials_is_not_showable(user):
    assert showable_icons([t.Icon(src=f"https://{user}harbour.example/i.png")], hosts=HOSTS) == []


@pytest.mark.requirement("ICON-06")
@pytest.mark.parametrize(
    "icon",
    [
        t.Icon(src="data:text/html,<script>alert(1)</script>"),
        t.Icon(src="data:text/html;image/png,x"),
        t.Icon(src="data:,x", mime_type="image/png"),
        t.Icon(src=PNG, mime_type="text/html"),
        t.Icon(src=HTTPS, mime_type="text/html"),
        t.Icon(src=PNG + "A" * 100),
        t.Icon(src=HTTPS + "A" * 8_000),
    ],
)
def test_an_icon_that_is_no_image_or_too_large_is_not_showable(icon):
    assert (
        showable_icons(
            [icon], hosts=HOSTS, limits=Limits(messages=MessageLimits(icon_chars_max=60))
        )
        == []
    )


def test_long_icons_are_not_kept_in_memory():
    tracemalloc.start()
    try:
        for number in range(10):
            for src in (f"{PNG}{number}", f"{HTTPS}?{number}"):
                showable_icons([t.Icon(src=src + "A" * MIB)], hosts=HOSTS)
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept_bytes < MIB


def test_without_icons_nothing_is_showable():
    assert showable_icons(None) == []


def test_one_string_is_no_set_of_hosts():
    with pytest.raises(TypeError, match=r"write \{'harbour\.example'\}"):
        showable_icons([t.Icon(src="https://our.example/i.png")], hosts="harbour.example")


# Answers that cannot be read fail their call at once.


LIMITS = Limits(messages=MessageLimits(bytes_max=2000))
TEXT = [{"type": "text", "text": "x" * 5000}]


@pytest.fixture
async def ends(nursery):
    ours, theirs = memory_pair(limits=LIMITS)
    return await connected((ours, WirePeer(theirs)), nursery, limits=LIMITS)


def id_first(asked, result):
    return json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}).encode()


def id_last(asked, result):
    return json.dumps({"result": result, "jsonrpc": "2.0", "id": asked["id"]}).encode()


async def outcome_of(client, name, into):
    try:
        into[name] = (await client.call_tool(name)).content[0].text
    except Exception as error:
        into[name] = error


@pytest.mark.parametrize("framed", [id_first, id_last])
async def test_an_answer_over_the_size_limit_fails_at_once_and_the_session_goes_on(
    ends, autojump_clock, framed
):
    client, server = ends
    began, outcomes = trio.current_time(), {}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outcome_of, client, "large", outcomes)
        await server.send(framed(await server.receive(), {"content": TEXT}))
    assert type(outcomes["large"]) is OutcomeUnknown
    assert "server's response to tools/call" in str(outcomes["large"])
    assert "over limits.messages.bytes_max=2000 of this client" in str(outcomes["large"])
    assert trio.current_time() - began < 1
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outcome_of, client, "small", outcomes)
        asked = await server.receive()
        assert asked["params"]["name"] == "small"  # and no cancellation before it
        await server.send_result(asked, {"content": [{"type": "text", "text": "fine"}]})
    assert outcomes["small"] == "fine"


async def test_another_call_goes_on_beside_an_unreadable_answer(ends, autojump_clock):
    client, server = ends
    outcomes = {}
    async with trio.open_nursery() as nursery:
        for name in ("one", "two"):
            nursery.start_soon(outcome_of, client, name, outcomes)
        asked = {each["params"]["name"]: each for each in await server.receive_many(2)}
        await server.send(id_first(asked["one"], {"content": TEXT}))
        await trio.testing.wait_all_tasks_blocked()
        assert list(outcomes) == ["one"]
        await server.send_result(asked["two"], {"content": [{"type": "text", "text": "fine"}]})
    assert type(outcomes["one"]) is OutcomeUnknown
    assert outcomes["two"] == "fine"


async def test_a_lone_surrogate_in_an_answer_fails_only_its_call(ends, autojump_clock):
    """L17, the other way round: the caller waited for its timeout."""
    client, server = ends
    began, outcomes = trio.current_time(), {}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outcome_of, client, "emoji", outcomes)
        asked = await server.receive()
        await server.send(b'{"jsonrpc":"2.0","id":%d,"result":{"a":"\\ud83d"}}' % asked["id"])
    assert type(outcomes["emoji"]) is RemoteProtocolError
    assert "incomplete surrogate pair" in str(outcomes["emoji"])
    assert trio.current_time() - began < 1
    assert client.counts == {"unreadable answer": 1}


async def test_an_answer_cut_off_by_the_servers_death_is_a_lost_connection(ends, autojump_clock):
    client, server = ends
    outcomes = {}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outcome_of, client, "cut", outcomes)
        asked = await server.receive()
        whole = b'{"jsonrpc":"2.0","id":%d,"result":{"content":[]' % asked["id"]
        server.channel.sink.write_nowait(whole)
        server.channel.sink.close()
    assert isinstance(outcomes["cut"], ConnectionLost)
    assert "limits.messages.bytes_max" not in str(outcomes["cut"])


# Statements of the specification that are easily misread by clients.
#
# The ids are those of `tools/traps.tsv`. Traps that the tests of a feature catch are not here again.


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
    received = []
    client, server = await connected(
        scripted, nursery, resource_updated=lambda params: received.append(params.uri)
    )
    answering(server, nursery, {"result": {}})
    await client.subscribe("file:///pier")
    uri = "file:///pier/boat"
    await server.send_notification("notifications/resources/updated", {"uri": uri})
    await trio.testing.wait_all_tasks_blocked()
    assert received == [uri]
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
    members = {} if reason is None else {"stopReason": reason}
    assert (await server.receive())["result"] == {
        "role": "assistant",
        "content": {"type": "text", "text": "hm"},
        "model": "m",
        **members,
    }
    await client.aclose()
