"""Sampling with tools: uses and results belong together."""

import pytest

from mcp_trio import types as s
from mcp_trio._protocol.client_features import forbidden_tool_use, unbalanced_tool_use

TEXT = s.TextContent(text="hm")


def use(use_id, name="tide"):
    return s.ToolUseContent(id=use_id, name=name, input={})


def result(use_id):
    return s.ToolResultContent(tool_use_id=use_id, content=[TEXT])


def user(*blocks):
    return s.SamplingMessage(role="user", content=[*blocks])


def model(*blocks):
    return s.SamplingMessage(role="assistant", content=[*blocks])


@pytest.mark.requirement("SAMP-18", "SAMP-19", "TRAP-86")
@pytest.mark.parametrize(
    "messages",
    [
        [],
        [user(TEXT)],
        [s.SamplingMessage(role="user", content=TEXT)],
        [user(TEXT), model(use("a"), use("b"), TEXT), user(result("b"), result("a")), model(TEXT)],
        [
            s.SamplingMessage(role="assistant", content=use("a")),
            s.SamplingMessage(role="user", content=result("a")),
            model(use("a")),
            user(result("a")),
        ],
    ],
)
def test_a_conversation_in_which_each_use_has_its_result_is_right(messages):
    assert unbalanced_tool_use(messages) is None


@pytest.mark.requirement("SAMP-18", "SAMP-19", "TRAP-86")
@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ([model(use("a"))], "no result for the tool use 'a'"),
        ([model(use("a")), user(TEXT), user(result("a"))], "no result for the tool use 'a'"),
        ([model(use("a"), use("b")), user(result("a"))], "no result for the tool use 'b'"),
        ([model(use("a")), user(result("a"), TEXT)], "must contain tool results only"),
        ([user(result("a"))], "an unknown tool use 'a'"),
        ([model(use("a")), user(result("a"), result("b"))], "an unknown tool use 'b'"),
        ([model(use("a")), user(result("a")), user(result("a"))], "an unknown tool use 'a'"),
    ],
)
def test_a_conversation_in_which_uses_and_results_differ_is_wrong(messages, fault):
    assert fault in unbalanced_tool_use(messages)


def question(mode=None, *names):
    tools = [s.Tool(name=name, input_schema={"type": "object"}) for name in names]
    choice = None if mode is None else s.ToolChoice(mode=mode)
    return s.CreateMessageParams(messages=[], max_tokens=1, tools=tools or None, tool_choice=choice)


def reply(*blocks):
    return s.CreateMessageResult(role="assistant", content=[*blocks], model="m")


@pytest.mark.requirement("SAMP-21")
@pytest.mark.parametrize(
    ("params", "blocks", "fault"),
    [
        (question(), [TEXT], None),
        (question(None, "tide"), [TEXT], None),
        (question(None, "tide"), [use("a")], None),
        (question("auto", "tide"), [use("a"), TEXT], None),
        (question("required", "tide"), [use("a")], None),
        (question("none", "tide"), [TEXT], None),
        (question(), [use("a")], "it uses 'tide', which it was not given"),
        (question(None, "wind"), [use("a")], "it uses 'tide', which it was not given"),
        (question("none", "tide"), [use("a")], "it uses 'tide', which it was not given"),
        (question("required", "tide"), [TEXT], "it had to use a tool"),
    ],
)
def test_a_model_uses_the_tools_that_it_was_given_as_it_was_told(params, blocks, fault):
    assert forbidden_tool_use(params, reply(*blocks)) == fault
