"""Sampling with tools."""

import pytest

from mcp_trio import types as t

D = "2025-11-25"
TIDE = {"name": "tide", "inputSchema": {"type": "object"}}
QUESTION = {"role": "user", "content": {"type": "text", "text": "High?"}}
USE = {"type": "tool_use", "id": "a", "name": "tide", "input": {}, "_meta": {"k": 1}}
RESULT = {
    "type": "tool_result",
    "toolUseId": "a",
    "content": [{"type": "text", "text": "High."}],
    "_meta": {"k": 2},
}


def said(*blocks):
    return t.CreateMessageResult(role="assistant", content=[*blocks], model="m")


TEXT = t.TextContent(text="So.")
WANTS = said(t.ToolUseContent(id="a", name="tide", input={}, meta={"k": 1}))


@pytest.fixture
def ask(reply):
    """The answer to a single question to the client's model."""

    async def start(model, *, allows=True, **params):
        sampling = model if callable(model) else lambda _params: model
        asked = {"messages": [QUESTION], "maxTokens": 9, **params}
        return await reply(
            "sampling/createMessage", asked, sampling=sampling, sampling_tools=allows
        )

    return start


@pytest.mark.requirement("SAMP-01", "SAMP-03")
@pytest.mark.parametrize(
    ("options", "announced"),
    [({}, {"sampling": {}}), ({"sampling_tools": True}, {"sampling": {"tools": {}}})],
)
async def test_sampling_tools_announces_the_capability(connect, options, announced):
    client, _, capabilities = await connect(sampling=lambda _params: said(TEXT), **options)
    assert capabilities == announced
    await client.aclose()


@pytest.mark.requirement("SAMP-05", "TRAP-87")
@pytest.mark.parametrize("params", [{"tools": [TIDE]}, {"tools": []}, {"toolChoice": {}}])
async def test_tools_without_the_capability_are_rejected(ask, params):
    heard = []
    answer = await ask(heard.append, allows=False, **params)
    assert answer == {
        "code": -32602,
        "message": "sampling/createMessage: sampling.tools was not announced",
    }
    assert heard == []


@pytest.mark.requirement("SAMP-09", "SAMP-10", "SAMP-23", "TRAP-85")
async def test_a_model_gets_tools_and_their_results_unchanged(ask):
    heard = []

    def model(params):
        heard.append(params)
        return WANTS

    messages = [
        QUESTION,
        {"role": "assistant", "content": [USE]},
        {"role": "user", "content": RESULT},
    ]
    answer = await ask(model, messages=messages, tools=[TIDE], toolChoice={"mode": "auto"})
    assert answer == {"role": "assistant", "content": [USE], "model": "m"}
    (params,) = heard
    assert params.tools == [t.Tool(name="tide", input_schema={"type": "object"})]
    assert params.tool_choice == t.ToolChoice(mode="auto")
    use, result = params.messages[1].content[0], params.messages[2].content
    assert (use.id, use.meta) == ("a", {"k": 1})
    assert (result.tool_use_id, result.meta) == ("a", {"k": 2})


@pytest.mark.requirement("SAMP-18", "SAMP-19", "SAMP-20", "TRAP-86")
@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([QUESTION, {"role": "user", "content": RESULT}], "an unknown tool use 'a'"),
        ([{"role": "assistant", "content": USE}, QUESTION], "no result for the tool use 'a'"),
        ([{"role": "assistant", "content": USE}], "no result for the tool use 'a'"),
        (
            [
                {"role": "assistant", "content": USE},
                {"role": "user", "content": [RESULT, QUESTION["content"]]},
            ],
            "must contain tool results only",
        ),
    ],
)
async def test_missing_or_mixed_tool_results_are_rejected(ask, messages, why):
    heard = []
    answer = await ask(heard.append, messages=messages, tools=[TIDE])
    assert answer["code"] == -32602
    assert why in answer["message"]
    assert heard == []


@pytest.mark.requirement("SAMP-21")
@pytest.mark.parametrize(
    ("mode", "result", "why"),
    [
        ("required", said(TEXT), "it had to use a tool"),
        ("none", WANTS, "it uses 'tide', which it was not given"),
        ("required", WANTS, None),
        ("none", said(TEXT), None),
    ],
)
async def test_a_forbidden_tool_use_of_the_model_is_not_sent(ask, caplog, mode, result, why):
    answer = await ask(result, tools=[TIDE], toolChoice={"mode": mode})
    if why is None:
        assert answer["model"] == "m"
    else:
        assert answer == {"code": -32603, "message": "internal error"}
        assert why in caplog.text
