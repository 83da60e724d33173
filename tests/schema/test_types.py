"""The types of `mcp_trio.types` against the published schemas, and downgraded for each version."""

import json
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from mcp_trio import types as vocabulary
from mcp_trio._jsonrpc.messages import (
    Batch,
    Decoder,
    ErrorResponse,
    Notification,
    Request,
    Response,
    encode_error,
    encode_notification,
    encode_request,
    encode_response,
)
from mcp_trio._protocol.compat import downgraded
from mcp_trio._protocol.metadata import (
    CLIENT_CAPABILITIES,
    PROTOCOL_VERSION,
    SERVER_INFO,
    SUBSCRIPTION_ID,
    with_result_metadata,
)
from mcp_trio._protocol.methods import METHODS
from mcp_trio._protocol.versions import PROTOCOL_VERSIONS, ProtocolVersion, is_between
from mcp_trio.errors import LocalProtocolError
from mcp_trio.limits import MessageLimits
from mcp_trio.types import (
    CallToolParams,
    CallToolResult,
    CancelledParams,
    ClientCapabilities,
    Completion,
    CompletionArgument,
    Content,
    CreateMessageParams,
    CreateMessageResult,
    ElicitResult,
    EmptyParams,
    EmptyResult,
    GetPromptParams,
    ImageContent,
    Implementation,
    ListRootsResult,
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

# The conventions of all types, and the values that they reject.

STRUCTS = [
    each
    for each in vars(vocabulary).values()
    if isinstance(each, type) and issubclass(each, Model) and each is not Model
]


def read(kind, value):
    return msgspec.json.decode(json.dumps(value), type=kind)


def sent(value):
    return json.loads(msgspec.json.encode(value))


def test_a_member_is_required_or_defaults_to_none():
    for struct in STRUCTS:
        for field in msgspec.structs.fields(struct):
            assert field.required or field.default in {None, msgspec.UNSET}, struct


@pytest.mark.parametrize("struct", STRUCTS)
def test_members_are_given_by_name_only(struct):
    with pytest.raises(TypeError, match=r"positional argument|Missing required"):
        struct("by position")


def test_every_type_has_a_docstring():
    assert [struct for struct in STRUCTS if not struct.__doc__] == []


def test_parameters_and_results_carry_meta():
    for struct in STRUCTS:
        if issubclass(struct, Params | Result):
            assert struct.__struct_encode_fields__[0] == "_meta", struct


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
def test_undeclared_members_of_meta_are_kept(struct):
    meta = {"progressToken": 4, "example.org/trace": {"deep": [1, None]}}
    assert sent(read(struct, {"_meta": meta})) == {"_meta": meta}


def test_a_tool_schema_is_kept_unchanged():
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
def test_values_that_the_specification_forbids_are_rejected(kind, value):
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

# Requirements that consist of required members.
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


# Every definition of every published schema, with generated values.

GRID = [
    (protocol_version.name, name)
    for protocol_version in PROTOCOL_VERSIONS.values()
    for name, row in sorted(DEFINITIONS.items())
    if is_between(protocol_version, row.since, row.until)
]
TYPED = sorted(name for name, row in DEFINITIONS.items() if row.body or row.params)
UNIONS = sorted(name for name, row in DEFINITIONS.items() if row.members)

# They came with 2025-11-25 and went with it, to come back as an extension: tasks are not spoken.
TASKS = {
    "CancelTaskRequest",
    "CancelTaskResult",
    "CreateTaskResult",
    "GetTaskPayloadRequest",
    "GetTaskPayloadResult",
    "GetTaskRequest",
    "GetTaskResult",
    "ListTasksRequest",
    "ListTasksResult",
    "RelatedTaskMetadata",
    "Task",
    "TaskAugmentedRequestParams",
    "TaskMetadata",
    "TaskStatus",
    "TaskStatusNotification",
    "TaskStatusNotificationParams",
}
TASK_MEMBERS = {"task", "tasks"}


def read_schema(name: str, value: Any) -> Any:
    row = DEFINITIONS[name]
    body = value if row.params is None else value.get("params", {})
    return msgspec.json.decode(json.dumps(body), type=row.params or row.body)


def as_sent(name: str, value: Any, ours: Any) -> Any:
    body = json.loads(msgspec.json.encode(ours))
    if DEFINITIONS[name].params is None:
        return body
    envelope = {member: each for member, each in value.items() if member != "params"}
    return {**envelope, "params": body}


def holds(whole: Any, part: Any) -> bool:
    """Return whether `whole` has all members of `part`, with their values."""
    if isinstance(part, dict):
        return all(name in whole and holds(whole[name], part[name]) for name in part)
    if isinstance(part, list):
        return len(whole) == len(part) and all(map(holds, whole, part))
    return whole == part


def assert_survives(schema: Any, name: str, value: Any) -> Any:
    """A value that was read is sent with all that is declared; gives what was read."""
    ours = read_schema(name, value)
    after = as_sent(name, value, ours)
    schema.validate(name, after)
    assert holds({"params": {}, **value} if isinstance(value, dict) else value, after)
    assert set(schema.lost(schema.definitions[name], value, after)) <= TASK_MEMBERS
    return ours


def is_of_a_task(name: str, value: Any) -> bool:
    """One protocol version cancels tasks by a cancellation that names no request (CANC-05)."""
    if not name.startswith("CancelledNotification"):
        return False
    return "requestId" not in value.get("params", value)


@pytest.mark.requirement("TRAP-09")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
def test_every_published_definition_has_a_row_and_every_row_is_published(
    protocol_version, published
):
    rows = {name for each, name in GRID if each == protocol_version}
    assert rows == set(published(protocol_version).definitions) - TASKS


def test_every_row_is_represented_in_exactly_one_way():
    for name, row in DEFINITIONS.items():
        ways = [row.body is not None, row.params is not None, bool(row.members), row.envelope]
        assert ways.count(True) == 1, name


def test_a_row_names_the_published_method(published):
    for protocol_version, name in GRID:
        row, definition = DEFINITIONS[name], published(protocol_version).definitions[name]
        method = definition.get("properties", {}).get("method", {})
        assert row.envelope or row.members or row.method == method.get("const"), name


def test_a_union_has_the_published_members(published):
    for protocol_version, name in (cell for cell in GRID if cell[1] in UNIONS):
        schema = published(protocol_version)
        definition = schema.definitions[name]
        branches = schema.branches(definition) if "anyOf" in definition else []
        members = {schema.definition(branch) for branch in branches}
        assert not members or members == set(members_of(protocol_version, name)), (
            protocol_version,
            name,
        )


def members_of(protocol_version: str, name: str) -> list[str]:
    row = DEFINITIONS[name]
    return [
        member
        for member in row.members
        if (protocol_version, member) in GRID
        and is_between(PROTOCOL_VERSIONS[protocol_version], None, row.members_until.get(member))
    ]


def test_a_union_of_one_is_published_as_that_one(published):
    newest = list(PROTOCOL_VERSIONS)[-1]
    assert members_of(newest, "ClientNotification") == ["CancelledNotification"]
    assert members_of(newest, "ClientResult") == ["Result"]
    definitions = published(newest).definitions
    for union, member in (
        ("ClientNotification", "CancelledNotification"),
        ("ClientResult", "Result"),
    ):
        alone, published_alone = definitions[union], definitions[member]
        if "$ref" not in alone:
            assert alone["properties"].keys() == published_alone["properties"].keys()


def test_only_json_rpc_envelopes_have_no_type():
    left = {name for name, row in DEFINITIONS.items() if row.envelope}
    assert left == {
        name
        for name in DEFINITIONS
        if name.startswith("JSONRPC") or name.endswith(("Error", "ResultResponse"))
    }


@pytest.mark.slow
@pytest.mark.requirement("BASE-17", "META-01", "META-02", "TRAP-07", "TRAP-70")
@pytest.mark.parametrize("name", TYPED)
def test_a_published_value_loses_nothing_that_is_declared(name, published_anew, for_all):
    for protocol_version, schema in published_anew(name):
        values = schema.values(name).filter(lambda value: not is_of_a_task(name, value))
        for_all(values, published_value_survives, schema, name, PROTOCOL_VERSIONS[protocol_version])


def published_value_survives(
    schema: Any, name: str, protocol_version: ProtocolVersion, value: Any
) -> None:
    ours = assert_survives(schema, name, value)
    assert downgraded(ours, protocol_version) is ours


@pytest.mark.slow
@pytest.mark.requirement("TRAP-08")
@pytest.mark.parametrize("name", UNIONS)
def test_a_value_of_a_published_union_fits_a_member(name, published_anew, for_all):
    for protocol_version, schema in published_anew(name):
        for_all(
            schema.values(name), value_fits_a_member, schema, members_of(protocol_version, name)
        )


def value_fits_a_member(schema: Any, members: list[str], value: Any) -> None:
    fitting = [each for each in members if schema.is_valid(schema.definitions[each], value)]
    assert fitting
    for member in fitting:
        assert is_of_a_task(member, value) or assert_survives(schema, member, value)


@pytest.mark.requirement("TRAP-07")
def test_a_fraction_that_was_filled_in_is_read_though_no_schema_has_it(published):
    answer = {"action": "accept", "content": {"share": 0.5}}
    schema = published("2026-07-28")
    assert not schema.is_valid(schema.definitions["ElicitResult"], answer)
    assert read_schema("ElicitResult", answer) == ElicitResult(
        action="accept", content={"share": 0.5}
    )


# Values downgraded to every protocol version are valid there.

# Kept undecoded, or made by the wire: no struct of ours encodes them.
OPEN = {
    name
    for name, row in DEFINITIONS.items()
    if row.envelope or row.members or row.body in {Any, str, dict[str, Any], list[Any]}
}
OURS = sorted(DEFINITIONS.keys() - OPEN)

# Values that a protocol version may be unable to express; all others are always possible.
NOT_DOWNGRADED = {
    "CreateMessageRequest",
    "CreateMessageResult",
    "ElicitRequest",
    "ElicitResult",
    "SamplingMessage",
}

# Base classes, which are never sent; the types have more members.
BASES = {"Annotated", "PaginatedResult"}

# Results that are answers to questions stand inside of a request, and say nothing about themselves.
ANSWERS = (CreateMessageResult, ElicitResult, ListRootsResult)
CACHEABLE = METHODS["server/discover"]
US = Implementation(name="us", version="1")
META = {PROTOCOL_VERSION: "2026-07-28", CLIENT_CAPABILITIES: {}, SUBSCRIPTION_ID: 1}


def downgraded_as_sent(schema: Any, name: str, value: Any) -> Any:
    """The value as it stands in its frame, with what the connection adds to it."""
    body = json.loads(msgspec.json.encode(value))
    row, definition = DEFINITIONS[name], schema.definitions[name]
    if row.params is None:
        return with_required_meta(schema, definition, body)
    params = with_required_meta(schema, params_of(definition), body)
    return {"jsonrpc": "2.0", "id": 1, "method": row.method or "any/method", "params": params}


def params_of(definition: Any) -> Any:
    return definition["properties"].get("params", {})


def with_required_meta(schema: Any, definition: Any, body: Any) -> Any:
    definition = schema.resolve(definition)
    if "_meta" not in definition.get("required", []):
        return body
    required = schema.resolve(definition["properties"]["_meta"])["required"]
    return {**body, "_meta": {**body.get("_meta", {}), **{each: META[each] for each in required}}}


def assert_known(schema: Any, name: str, value: Any) -> None:
    """No member is sent that the version does not declare, but for `_meta` of parameters.

    That is declared for requests and notifications as such, and not always again for each.
    """
    definition = schema.definitions[name]
    body = definition if DEFINITIONS[name].params is None else params_of(definition)
    allowed = {"_meta"} if isinstance(value, Params) else set()
    assert set(schema.undeclared(body, value)) <= allowed


def assert_fits(schema: Any, protocol_version: ProtocolVersion, name: str, instance: Any) -> None:
    try:
        value = downgraded(instance, protocol_version)
    except LocalProtocolError:
        assert name in NOT_DOWNGRADED
        return
    assert downgraded(value, protocol_version) is value
    if (
        protocol_version.is_stateless
        and isinstance(value, Result)
        and not isinstance(value, ANSWERS)
    ):
        value = with_result_metadata(value, CACHEABLE, {SERVER_INFO: US})
    schema.validate(name, downgraded_as_sent(schema, name, value))
    assert name in BASES or assert_known(schema, name, value) is None
    again = msgspec.json.decode(msgspec.json.encode(value), type=type_of(name))
    assert msgspec.json.encode(again) == msgspec.json.encode(value)


def type_of(name: str) -> Any:
    return DEFINITIONS[name].params or DEFINITIONS[name].body


@pytest.mark.slow
@pytest.mark.parametrize("name", OURS)
def test_a_downgraded_value_is_valid_and_decodes_to_the_same_value(name, published, ours, for_all):
    schemas = [
        (published(protocol_version.name), protocol_version)
        for protocol_version in PROTOCOL_VERSIONS.values()
    ]

    def fits_everywhere(instance):
        for schema, protocol_version in schemas:
            if name in schema.definitions:
                assert_fits(schema, protocol_version, name, instance)

    for_all(ours(name), fits_everywhere)


# The definitions of JSON-RPC envelopes and errors.

FRAMES = sorted(name for name, row in DEFINITIONS.items() if row.envelope)


def error_again(message: ErrorResponse) -> bytes:
    error = message.error
    return encode_error(message.id, error.code, error.message, error.data)


ENCODERS = {
    Request: lambda message: encode_request(message.id, message.method, message.params),
    Notification: lambda message: encode_notification(message.method, message.params),
    Response: lambda message: encode_response(message.id, message.result),
    ErrorResponse: error_again,
}


def again(value: Any) -> Any:
    """Return the encoded messages of a line that was read; those of a batch one by one."""
    message = Decoder(MessageLimits(json_depth_max=64)).decode(json.dumps(value).encode())
    if isinstance(message, Batch):
        return [json.loads(ENCODERS[type(each)](each)) for each in message.messages]
    return json.loads(ENCODERS[type(message)](message))


def survives(schema: Any, name: str, value: Any) -> None:
    definition = schema.definitions[name]
    is_error = "code" in definition.get("properties", {})
    frame = {"jsonrpc": "2.0", "id": 1, "error": value} if is_error else value
    after = again(frame)["error"] if is_error else again(frame)
    schema.validate(name, after)
    assert not list(schema.lost(definition, value, after))


@pytest.mark.slow
@pytest.mark.requirement("BASE-01")
@pytest.mark.parametrize("name", FRAMES)
def test_a_published_envelope_or_error_survives_decoding_and_encoding(
    name, published_anew, for_all
):
    for _protocol_version, schema in published_anew(name):
        values = schema.values(name).filter(lambda value: value != [])
        for_all(values, survives, schema, name)


# Example messages: those of the documents of 2024-11-05, and later ones.

VECTORS = [
    json.loads(line)
    for line in Path(__file__).with_name("vectors.jsonl").read_text("utf-8").splitlines()
]
VECTOR_MESSAGES = [vector for vector in VECTORS if DEFINITIONS[vector["definition"]].envelope]
VECTOR_TYPES = [vector for vector in VECTORS if vector not in VECTOR_MESSAGES]


def decode_body(definition, message):
    """Return the part that our type describes: parameters, result, or the fragment itself."""
    if DEFINITIONS[definition].params is not None:
        return message.get("params", {})
    return message.get("result", message)


def name_of(vector):
    return vector["name"]


def test_every_example_message_is_encoded_as_it_was_decoded():
    for vector in VECTOR_TYPES:
        definition, message = vector["definition"], vector["message"]
        row = DEFINITIONS[definition]
        body = decode_body(definition, message)
        decoded = msgspec.json.decode(json.dumps(body), type=row.params or row.body)
        encoded = json.loads(msgspec.json.encode(decoded))
        assert encoded == decode_body(definition, vector.get("kept", message)), vector["name"]


@pytest.mark.parametrize("vector", VECTORS, ids=name_of)
def test_every_example_message_is_valid_by_its_schema(vector, published):
    definition, message = vector["definition"], vector["message"]
    if DEFINITIONS[definition].body is not None:
        message = message.get("result", message)
    published(vector.get("revision", "2024-11-05")).validate(definition, message)


def test_every_example_message_has_the_method_of_its_definition():
    for vector in VECTOR_TYPES:
        method = DEFINITIONS[vector["definition"]].method
        assert method is None or method == vector["message"]["method"], vector["name"]


def test_every_method_and_result_is_shown():
    shown = {vector["definition"] for vector in VECTORS}
    methods = {name for name, row in DEFINITIONS.items() if row.method}
    results = {name for name in DEFINITIONS if name.endswith("Result")}
    unions_and_bases = {
        "ClientResult",
        "ServerResult",
        "Result",
        "PaginatedResult",
        "CacheableResult",
    }
    assert methods | results - unions_and_bases <= shown
