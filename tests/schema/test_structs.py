"""The conventions that every struct of the vocabulary keeps, and what its types refuse."""

import json
from typing import get_args

import msgspec
import pytest

from mcp_trio import types as vocabulary
from mcp_trio.types import (
    CallToolParams,
    CallToolResult,
    CancelledParams,
    ClientCapabilities,
    Completion,
    CompletionArgument,
    Content,
    CreateMessageParams,
    EmptyParams,
    EmptyResult,
    GetPromptParams,
    ImageContent,
    LoggingMessageParams,
    Model,
    PaginatedParams,
    Params,
    ProgressParams,
    Prompt,
    Reference,
    ResourceContents,
    Result,
    SamplingCapability,
    ServerCapabilities,
    TextContent,
    Tool,
    ToolsCapability,
)
from tests.schema.definitions import DEFINITIONS

STRUCTS = [
    each
    for each in vars(vocabulary).values()
    if isinstance(each, type) and issubclass(each, Model) and each is not Model
]


def read(kind, value):
    return msgspec.json.decode(json.dumps(value), type=kind)


def sent(value):
    return json.loads(msgspec.json.encode(value))


@pytest.mark.parametrize("struct", STRUCTS)
def test_a_member_is_required_or_defaults_to_none(struct):
    for field in msgspec.structs.fields(struct):
        assert field.required or field.default in {None, msgspec.UNSET}


@pytest.mark.parametrize("struct", STRUCTS)
def test_members_are_given_by_name_only(struct):
    with pytest.raises(TypeError, match=r"positional argument|Missing required"):
        struct("by position")


@pytest.mark.parametrize("struct", STRUCTS)
def test_a_struct_says_what_it_is(struct):
    assert struct.__doc__


@pytest.mark.parametrize("struct", [each for each in STRUCTS if issubclass(each, Params | Result)])
def test_parameters_and_results_carry_meta(struct):
    assert struct.__struct_encode_fields__[0] == "_meta"


def test_every_request_and_result_of_the_table_carries_meta():
    for name, row in DEFINITIONS.items():
        if row.params is not None:
            assert issubclass(row.params, Params)
        if name.endswith("Result") and row.body is not None:
            assert issubclass(row.body, Result)


@pytest.mark.requirement("BASE-17")
def test_unknown_members_are_ignored():
    capabilities = read(ServerCapabilities, {"tools": {"new": 1}, "telepathy": {}})
    assert capabilities == ServerCapabilities(tools=ToolsCapability())


def test_a_null_reads_as_absent_and_is_never_sent():
    prompt = read(Prompt, {"name": "plan", "description": None, "arguments": None})
    assert prompt == Prompt(name="plan")
    assert sent(prompt) == {"name": "plan"}


def test_an_empty_capability_differs_from_an_absent_one():
    assert sent(ServerCapabilities(logging={}, tools=ToolsCapability())) == {
        "logging": {},
        "tools": {},
    }
    assert read(ServerCapabilities, {"logging": {}}).tools is None
    assert read(ClientCapabilities, {"sampling": {}}).sampling == SamplingCapability()


@pytest.mark.requirement("META-01")
@pytest.mark.parametrize("struct", [EmptyParams, EmptyResult, PaginatedParams])
def test_meta_is_kept_with_members_that_nobody_declared(struct):
    meta = {"progressToken": 4, "example.org/trace": {"deep": [1, None]}}
    assert sent(read(struct, {"_meta": meta})) == {"_meta": meta}


def test_a_tool_schema_is_kept_as_it_came():
    schema = b'{"type":"object","$defs":{"b":true,"a":{"minimum":1.0}},"x-ui":[null]}'
    tool = b'{"name":"t","inputSchema":' + schema + b"}"
    assert msgspec.json.encode(msgspec.json.decode(tool, type=Tool)) == tool


def test_experimental_capabilities_are_kept_whatever_they_are():
    experimental = {"a": {"b": 1}, "odd": True}
    assert sent(read(ClientCapabilities, {"experimental": experimental})) == {
        "experimental": experimental
    }


@pytest.mark.requirement("PROG-07")
@pytest.mark.parametrize("number", ["1", "1.0", "0.5", "12345678901234567890123", "-3"])
def test_a_number_keeps_its_form(number):
    text = f'{{"progressToken":"t","progress":{number}}}'
    assert msgspec.json.encode(msgspec.json.decode(text, type=ProgressParams)) == text.encode()


@pytest.mark.parametrize("data", [None, False, 0, "", [], {"deep": [{}]}])
@pytest.mark.requirement("LOG-03")
def test_log_data_is_any_json_value(data):
    message = {"level": "notice", "data": data}
    assert sent(read(LoggingMessageParams, message)) == message


def test_contents_need_text_or_bytes():
    with pytest.raises(ValueError, match="need `text` or `blob`"):
        ResourceContents(uri="log://today")
    assert ResourceContents(uri="log://today", text="").text == ""


def test_content_is_known_by_its_type():
    kinds = {kind.__struct_config__.tag for kind in get_args(Content)}
    assert kinds == {"text", "image", "audio", "resource_link", "resource"}
    assert sent(TextContent(text="x"))["type"] == "text"
    image = {"type": "image", "data": "", "mimeType": "image/png"}
    assert isinstance(read(Content, image), ImageContent)


TEXT = {"type": "text", "text": "x"}
MESSAGE = {"role": "user", "content": TEXT}
REJECTED = [
    pytest.param(CancelledParams, {"requestId": None}, marks=pytest.mark.requirement("CANC-05")),
    pytest.param(CancelledParams, {"requestId": 1.5}, marks=pytest.mark.requirement("CANC-05")),
    pytest.param(
        ProgressParams,
        {"progressToken": 1.5, "progress": 1},
        marks=pytest.mark.requirement("PROG-01"),
    ),
    pytest.param(
        ProgressParams,
        {"progressToken": True, "progress": 1},
        marks=pytest.mark.requirement("PROG-01"),
    ),
    pytest.param(ProgressParams, {"progressToken": 1, "progress": "1"}),
    pytest.param(
        CallToolParams,
        {"name": "t", "arguments": [1]},
        marks=pytest.mark.requirement("TOOL-15"),
    ),
    pytest.param(
        GetPromptParams,
        {"name": "p", "arguments": {"n": 1}},
        marks=pytest.mark.requirement("PROM-04"),
    ),
    pytest.param(
        CallToolResult,
        {"content": [{"type": "hologram"}]},
        id="content of an unknown type",
    ),
    pytest.param(CallToolResult, {"content": [{"text": "x"}]}, id="content without a type"),
    pytest.param(
        CallToolResult,
        {"content": [{"type": "resource", "resource": {"uri": "log://x"}}]},
        id="embedded resource without contents",
    ),
    pytest.param(
        CreateMessageParams,
        {"maxTokens": 1, "messages": [{**MESSAGE, "role": "system"}]},
        marks=pytest.mark.requirement("SAMP-09"),
    ),
    pytest.param(
        CreateMessageParams,
        {"maxTokens": 1, "messages": [MESSAGE], "modelPreferences": {"costPriority": 1.1}},
    ),
    pytest.param(LoggingMessageParams, {"level": "loud", "data": 1}),
    pytest.param(Reference, {"type": "ref/tool", "name": "t"}),
    pytest.param(
        Content,
        {**TEXT, "annotations": {"priority": 2}},
        marks=pytest.mark.requirement("RES-18"),
    ),
    pytest.param(
        Content,
        {**TEXT, "annotations": {"audience": ["everybody"]}},
        marks=pytest.mark.requirement("RES-18"),
    ),
]


@pytest.mark.parametrize(("kind", "value"), REJECTED)
def test_what_the_specification_forbids_is_rejected(kind, value):
    with pytest.raises(msgspec.ValidationError):
        read(kind, value)


# A complete body for each definition that has required members.
COMPLETE = [
    ("CancelledNotification", {"requestId": 1}),
    ("ProgressNotification", {"progressToken": 1, "progress": 1}),
    ("Implementation", {"name": "n", "version": "1"}),
    (
        "InitializeRequest",
        {
            "protocolVersion": "2024-11-05",
            "capabilities": {},
            "clientInfo": {"name": "n", "version": "1"},
        },
    ),
    (
        "InitializeResult",
        {
            "protocolVersion": "2024-11-05",
            "capabilities": {},
            "serverInfo": {"name": "n", "version": "1"},
        },
    ),
    ("ListToolsResult", {"tools": []}),
    ("TextContent", {"text": ""}),
    ("EmbeddedResource", {"resource": {"uri": "log://x", "text": ""}}),
    ("ListResourcesResult", {"resources": []}),
    ("ListResourceTemplatesResult", {"resourceTemplates": []}),
    ("BlobResourceContents", {"uri": "log://x", "blob": ""}),
    ("ResourceContents", {"uri": "log://x"}),
    ("Prompt", {"name": "p"}),
    ("ResourceReference", {"uri": "log://x"}),
    ("CompleteResult", {"completion": {"values": []}}),
    ("SetLevelRequest", {"level": "info"}),
    ("Tool", {"name": "t", "inputSchema": {"type": "object"}}),
    ("CallToolRequest", {"name": "t"}),
    ("CallToolResult", {"content": []}),
    ("ImageContent", {"data": "", "mimeType": "image/png"}),
    ("Resource", {"uri": "log://x", "name": "x"}),
    ("ResourceTemplate", {"uriTemplate": "log://{x}", "name": "x"}),
    ("ReadResourceRequest", {"uri": "log://x"}),
    ("ReadResourceResult", {"contents": []}),
    ("TextResourceContents", {"uri": "log://x", "text": ""}),
    ("SubscribeRequest", {"uri": "log://x"}),
    ("UnsubscribeRequest", {"uri": "log://x"}),
    ("ResourceUpdatedNotification", {"uri": "log://x"}),
    ("ListPromptsResult", {"prompts": []}),
    ("PromptArgument", {"name": "a"}),
    ("GetPromptRequest", {"name": "p"}),
    ("GetPromptResult", {"messages": []}),
    ("PromptMessage", MESSAGE),
    ("PromptReference", {"name": "p"}),
    (
        "CompleteRequest",
        {"ref": {"type": "ref/prompt", "name": "p"}, "argument": {"name": "a", "value": ""}},
    ),
    ("LoggingMessageNotification", {"level": "info", "data": 1}),
    ("ListRootsResult", {"roots": []}),
    ("Root", {"uri": "file:///x"}),
    ("CreateMessageRequest", {"messages": [], "maxTokens": 1}),
    ("SamplingMessage", MESSAGE),
    ("CreateMessageResult", {**MESSAGE, "model": "m"}),
    ("BaseMetadata", {"name": "n"}),
    ("Icon", {"src": "https://example.org/a.png"}),
    ("AudioContent", {"data": "", "mimeType": "audio/wav"}),
    ("ResourceLink", {"uri": "log://x", "name": "x"}),
    ("DiscoverResult", {"supportedVersions": [], "capabilities": {}}),
    ("ElicitRequest", {"message": "m", "requestedSchema": {}}),
    ("ElicitResult", {"action": "accept"}),
    ("ElicitationCompleteNotification", {"elicitationId": "e"}),
    ("InputRequest", {"method": "roots/list"}),
    ("ToolUseContent", {"id": "1", "name": "t", "input": {}}),
    ("ToolResultContent", {"toolUseId": "1", "content": []}),
    ("SubscriptionsListenRequest", {"notifications": {}}),
    ("SubscriptionsAcknowledgedNotification", {"notifications": {}}),
]

# Where the required members are the whole of a requirement.
TICKS = {
    "CancelledNotification": pytest.mark.requirement("CANC-05"),
    "ProgressNotification": pytest.mark.requirement("PROG-04"),
    "CallToolRequest": pytest.mark.requirement("TOOL-15"),
    "CallToolResult": pytest.mark.requirement("TOOL-16"),
    "ReadResourceRequest": pytest.mark.requirement("RES-04"),
    "ReadResourceResult": pytest.mark.requirement("RES-05"),
    "TextResourceContents": pytest.mark.requirement("RES-05"),
    "ListPromptsResult": pytest.mark.requirement("PROM-02"),
    "PromptArgument": pytest.mark.requirement("PROM-02"),
    "GetPromptRequest": pytest.mark.requirement("PROM-04"),
    "GetPromptResult": pytest.mark.requirement("PROM-05"),
    "PromptMessage": pytest.mark.requirement("PROM-05"),
    "PromptReference": pytest.mark.requirement("COMP-03"),
    "CompleteRequest": pytest.mark.requirement("COMP-03"),
    "LoggingMessageNotification": pytest.mark.requirement("LOG-03"),
    "CreateMessageRequest": pytest.mark.requirement("SAMP-08"),
    "SamplingMessage": pytest.mark.requirement("SAMP-09"),
    "CreateMessageResult": pytest.mark.requirement("SAMP-10"),
}


@pytest.mark.parametrize(
    ("definition", "body"),
    [
        pytest.param(definition, body, id=definition, marks=TICKS.get(definition, ()))
        for definition, body in COMPLETE
    ],
)
def test_a_required_member_must_be_there(definition, body):
    kind = DEFINITIONS[definition].params or DEFINITIONS[definition].body
    assert read(kind, body)
    for member in body:
        with pytest.raises(msgspec.ValidationError):
            read(kind, {name: value for name, value in body.items() if name != member})


def test_every_struct_with_required_members_has_a_complete_body():
    tried = {DEFINITIONS[name].params or DEFINITIONS[name].body for name, _ in COMPLETE}
    inner = {CompletionArgument, Completion}
    for struct in STRUCTS:
        if any(field.required for field in msgspec.structs.fields(struct)):
            assert struct in tried | inner
