"""Roots and sampling with each protocol version."""

import functools

import pytest
import trio
import trio.testing

from mcp_trio import UserRejected
from mcp_trio import types as t
from mcp_trio._protocol.versions import PROTOCOL_VERSIONS
from mcp_trio.errors import LocalProtocolError
from mcp_trio.hosts import ModelTraits, choose_model
from tests.client.server_requests import asked, check_rejected
from tests.client.stateless import legacy_client, stateless_client

*_, D, E = PROTOCOL_VERSIONS
MODES = (D, E)
INVALID_PARAMS, INTERNAL_ERROR, NOT_FOUND = -32602, -32603, -32601

TEXT = {"type": "text", "text": "Ebb or flow?"}
MESSAGE = {"role": "user", "content": TEXT}
ASKED = {
    "messages": [MESSAGE],
    "maxTokens": 9,
    "systemPrompt": "Be brief.",
    "temperature": 0.5,
    "stopSequences": ["."],
    "metadata": {"any": "thing"},
}
SAMPLED = t.CreateMessageResult(role="assistant", content=t.TextContent(text="hm"), model="m")
ANSWERED = {"role": "assistant", "content": {"type": "text", "text": "hm"}, "model": "m"}
SHIP = {"message": "Which ship?", "requestedSchema": {"type": "object", "properties": {}}}


@pytest.fixture
def ask(nursery):
    """Ask a client one thing, as the servers of a protocol version do."""
    return functools.partial(asked, nursery)


# Roots.


@pytest.mark.requirement("ROOT-01", "ROOT-02", "ROOT-05", "ROOT-07", "ROOT-09", "TRAP-94")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_a_server_gets_exactly_the_roots(ask, protocol_version):
    roots = ["file:///sea", t.Root(uri="file:///land", name="land")]
    answer = await ask(protocol_version, "roots/list", roots=roots)
    assert answer.announced == {"roots": {} if protocol_version == E else {"listChanged": True}}
    assert answer.result == {
        "roots": [{"uri": "file:///sea"}, {"uri": "file:///land", "name": "land"}]
    }


@pytest.mark.requirement("ROOT-05", "ROOT-08", "ROOT-09")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
@pytest.mark.parametrize(
    "root", ["https://example.org", "/sea", "file:///sea/../etc", "file:///sea/%2e%2e/etc", 7]
)
async def test_an_invalid_root_is_never_sent(ask, protocol_version, root):
    answer = await ask(protocol_version, "roots/list", roots=lambda: ["file:///sea", root])
    check_rejected(answer, protocol_version, INTERNAL_ERROR, (TypeError, ValueError))


@pytest.mark.requirement("ROOT-11", "ROOT-12", "SAMP-25", "SAMP-26", "SAMP-27", "TRAP-88")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
@pytest.mark.parametrize(
    ("method", "params", "option"),
    [("roots/list", None, "roots"), ("sampling/createMessage", ASKED, "sampling")],
)
async def test_a_user_may_reject_a_request(ask, protocol_version, method, params, option):
    def reject(*_params):
        raise UserRejected

    answer = await ask(protocol_version, method, params, **{option: reject})
    check_rejected(answer, protocol_version, -1, UserRejected)


@pytest.mark.requirement("ROOT-08", "LIFE-14")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
@pytest.mark.parametrize(
    ("method", "params"),
    [("roots/list", None), ("sampling/createMessage", ASKED), ("elicitation/create", SHIP)],
)
async def test_a_request_without_its_capability_is_rejected(ask, protocol_version, method, params):
    answer = await ask(protocol_version, method, params)
    assert answer.announced == {}
    check_rejected(answer, protocol_version, NOT_FOUND)


@pytest.mark.requirement("ROOT-06", "ROOT-07", "TRAP-94")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_new_roots_are_notified_if_the_version_has_the_notification(
    nursery, protocol_version
):
    options = {"roots": ["file:///sea"]}
    if protocol_version == E:
        client, server = await stateless_client(nursery, **options)
    else:
        client, server = await legacy_client(nursery, protocol_version=protocol_version, **options)
    if protocol_version == E:
        with pytest.raises(LocalProtocolError, match="has no notifications/roots"):
            await client.notify_roots_changed()
    else:
        await client.set_roots(["file:///land"])
    await trio.testing.wait_all_tasks_blocked()
    told = [it["method"] for it in server.requests if it["method"].endswith("list_changed")]
    assert told == [] if protocol_version == E else ["notifications/roots/list_changed"]
    await client.aclose()


# Sampling.


@pytest.mark.requirement("SAMP-01", "SAMP-02", "SAMP-08", "SAMP-09", "SAMP-10")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_a_server_can_request_sampling(ask, protocol_version):
    answer = await ask(
        protocol_version, "sampling/createMessage", ASKED, sampling=lambda _params: SAMPLED
    )
    assert answer.announced == {"sampling": {}}
    assert answer.result == ANSWERED


@pytest.mark.requirement("SAMP-11", "SAMP-12", "SAMP-13", "SAMP-14", "SAMP-27", "SAMP-28")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_the_sampling_callback_gets_the_whole_request(ask, protocol_version):
    heard = []
    models = {"gull-large": ModelTraits(), "gull-small": ModelTraits(cheapness=1)}

    async def sampling(params):
        heard.append(params)
        model = choose_model(models, params.model_preferences)
        said = t.TextContent(text="as a person has changed it")
        return t.CreateMessageResult(role="assistant", content=said, model=model)

    preferences = {"hints": [{"name": "tern"}, {"name": "large"}], "costPriority": 1}
    asked = {**ASKED, "modelPreferences": preferences}
    answer = await ask(protocol_version, "sampling/createMessage", asked, sampling=sampling)
    assert answer.result["model"] == "gull-large"
    assert answer.result["content"]["text"] == "as a person has changed it"
    (params,) = heard
    assert (params.max_tokens, params.system_prompt, params.temperature) == (9, "Be brief.", 0.5)
    assert (params.stop_sequences, params.metadata) == (["."], {"any": "thing"})
    assert params.messages[0].content == t.TextContent(text="Ebb or flow?")


@pytest.mark.requirement("SAMP-08", "SAMP-09", "SAMP-14", "SAMP-28")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
@pytest.mark.parametrize(
    "change",
    [
        {"messages": [MESSAGE, {"role": "system", "content": TEXT}]},
        {"messages": [{"role": "user", "content": {"type": "video"}}]},
        {"messages": [{"role": "user"}]},
        {"messages": None},
        {"maxTokens": None},
        {"maxTokens": "9"},
        {"includeContext": "everything"},
        {"modelPreferences": {"costPriority": 1.1}},
    ],
)
async def test_a_malformed_sampling_request_never_reaches_the_model(ask, protocol_version, change):
    heard = []
    answer = await ask(
        protocol_version, "sampling/createMessage", {**ASKED, **change}, sampling=heard.append
    )
    check_rejected(answer, protocol_version, INVALID_PARAMS)
    assert heard == []


@pytest.mark.requirement("SAMP-29", "SAMP-10")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
@pytest.mark.parametrize("is_crash", [True, False])
async def test_an_error_of_the_model_is_not_sent_to_the_server(
    ask, caplog, protocol_version, is_crash
):
    def sampling(_params):
        if is_crash:
            raise ValueError("key sk-123 is not valid")
        return "sk-123"

    answer = await ask(protocol_version, "sampling/createMessage", ASKED, sampling=sampling)
    check_rejected(answer, protocol_version, INTERNAL_ERROR, (ValueError, TypeError))
    assert "sk-123" in (str(answer.raised) if protocol_version == E else caplog.text)


TOOL = {"name": "tide", "inputSchema": {"type": "object"}}
USE = {"type": "tool_use", "id": "a", "name": "tide", "input": {}, "_meta": {"k": 1}}
RESULT = {"type": "tool_result", "toolUseId": "a", "content": [TEXT], "_meta": {"k": 2}}


@pytest.mark.requirement("SAMP-03", "SAMP-05", "TRAP-87")
@pytest.mark.parametrize("protocol_version", MODES)
@pytest.mark.parametrize("params", [{"tools": [TOOL]}, {"tools": []}, {"toolChoice": {}}])
async def test_sampling_with_tools_needs_the_capability(ask, protocol_version, params):
    asked, heard = {**ASKED, **params}, []
    answer = await ask(protocol_version, "sampling/createMessage", asked, sampling=heard.append)
    assert answer.announced == {"sampling": {}}
    check_rejected(answer, protocol_version, INVALID_PARAMS)
    assert heard == []
    answer = await ask(
        protocol_version,
        "sampling/createMessage",
        asked,
        sampling=lambda _params: SAMPLED,
        sampling_tools=True,
    )
    assert answer.announced == {"sampling": {"tools": {}}}
    assert answer.result == ANSWERED


@pytest.mark.requirement("SAMP-09", "SAMP-23", "TRAP-85")
@pytest.mark.parametrize("protocol_version", MODES)
async def test_tool_uses_and_results_are_passed_unchanged(ask, protocol_version):
    heard = []

    def sampling(params):
        heard.append(params)
        return t.CreateMessageResult(
            role="assistant",
            content=[t.ToolUseContent(id="b", name="tide", input={}, meta={"k": 3})],
            model="m",
            stop_reason="toolUse",
        )

    said = [
        MESSAGE,
        {"role": "assistant", "content": [USE]},
        {"role": "user", "content": [RESULT]},
    ]
    asked = {**ASKED, "messages": said, "tools": [TOOL], "toolChoice": {"mode": "auto"}}
    answer = await ask(
        protocol_version, "sampling/createMessage", asked, sampling=sampling, sampling_tools=True
    )
    content = answer.result["content"]
    assert (content if isinstance(content, list) else [content]) == [
        {**USE, "id": "b", "_meta": {"k": 3}}
    ]
    _, use, result = heard[0].messages
    assert (use.content[0].meta, result.content[0].meta) == ({"k": 1}, {"k": 2})


@pytest.mark.requirement("SAMP-18", "SAMP-19", "SAMP-20", "TRAP-86")
@pytest.mark.parametrize("protocol_version", MODES)
@pytest.mark.parametrize(
    "said",
    [
        [MESSAGE, {"role": "assistant", "content": [USE]}],
        [MESSAGE, {"role": "assistant", "content": [USE]}, MESSAGE],
        [
            MESSAGE,
            {"role": "assistant", "content": [USE]},
            {"role": "user", "content": [RESULT, TEXT]},
        ],
        [MESSAGE, {"role": "user", "content": [RESULT]}],
    ],
)
async def test_missing_or_mixed_tool_results_are_rejected(ask, protocol_version, said):
    heard = []
    asked = {**ASKED, "messages": said, "tools": [TOOL]}
    answer = await ask(
        protocol_version,
        "sampling/createMessage",
        asked,
        sampling=heard.append,
        sampling_tools=True,
    )
    check_rejected(answer, protocol_version, INVALID_PARAMS)
    assert heard == []


@pytest.mark.requirement("SAMP-21")
@pytest.mark.parametrize("protocol_version", MODES)
@pytest.mark.parametrize("mode", ["none", "required"])
async def test_a_forbidden_tool_use_of_the_model_is_not_sent(ask, caplog, protocol_version, mode):
    use = t.ToolUseContent(id="b", name="tide", input={})
    content = t.TextContent(text="hm") if mode == "required" else [use]
    said = t.CreateMessageResult(role="assistant", content=content, model="m")
    asked = {**ASKED, "tools": [TOOL], "toolChoice": {"mode": mode}}
    answer = await ask(
        protocol_version,
        "sampling/createMessage",
        asked,
        sampling=lambda _params: said,
        sampling_tools=True,
    )
    check_rejected(answer, protocol_version, INTERNAL_ERROR, Exception)
