"""Protocol versions, and values downgraded to the version of the peer."""

import json
from dataclasses import dataclass

import attrs
import msgspec
import pytest

from mcp_trio import types as s
from mcp_trio._protocol.compat import downgraded
from mcp_trio._protocol.metadata import CLIENT_CAPABILITIES, client_metadata
from mcp_trio._protocol.versions import PROTOCOL_VERSIONS, checked_protocol_versions
from mcp_trio.errors import LocalProtocolError

A, B, C, D, E = PROTOCOL_VERSIONS.values()

TEXT = s.TextContent(text="x")
AUDIO = s.AudioContent(
    data="UklGRg==",
    mime_type="audio/wav",
    meta={"a": 1},
    annotations=s.Annotations(priority=1, last_modified="2025-01-12T15:00:58Z"),
)
LINK = s.ResourceLink(uri="log://today", name="today", title="Today", mime_type="text/plain")
ICON = s.Icon(src="https://example.org/a.png")
TOOL = s.Tool(name="t", input_schema={"type": "object", "properties": {"p": {"type": "null"}}})
USE = s.ToolUseContent(id="1", name="tide", input={})
GIVEN = s.ToolResultContent(tool_use_id="1", content=[TEXT])


def downgraded_json(value, protocol_version):
    return json.loads(msgspec.json.encode(downgraded(value, protocol_version)))


def message(content):
    return s.SamplingMessage(role="user", content=content)


def question(*messages, **options):
    return s.CreateMessageParams(messages=list(messages), max_tokens=1, **options)


def form(**members):
    schema = {"type": "object", "properties": members}
    return s.ElicitParams(message="?", mode="form", requested_schema=schema)


@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS.values())
def test_a_value_that_needs_no_change_stays_the_same_object(protocol_version):
    for value in (
        s.CallToolResult(content=[TEXT]),
        s.CallToolResult(content=[]),
        s.ListToolsResult(tools=[TOOL]),
        s.CallToolParams(name="t"),
        s.ClientCapabilities(sampling=s.SamplingCapability()),
        question(message(TEXT)),
    ):
        assert downgraded(value, protocol_version) is value


def test_a_downgraded_value_is_a_copy():
    tool = s.Tool(name="t", input_schema={"type": "object"}, title="T")
    listed = s.ListToolsResult(tools=[tool])
    assert downgraded_json(listed, A)["tools"] == [{"name": "t", "inputSchema": {"type": "object"}}]
    assert listed.tools[0].title == "T"


def test_values_of_other_types_are_not_changed():
    anything = {"_meta": {}, "title": "x"}
    assert downgraded(anything, A) is anything


@pytest.mark.requirement("TOOL-17")
def test_audio_is_an_embedded_resource_where_there_is_no_audio():
    result = s.CallToolResult(content=[TEXT, AUDIO])
    assert downgraded_json(result, A)["content"][1] == {
        "type": "resource",
        "annotations": {"priority": 1},
        "resource": {"uri": "embedded:audio", "mimeType": "audio/wav", "blob": "UklGRg=="},
    }
    assert downgraded_json(result, B)["content"][1]["type"] == "audio"


@pytest.mark.requirement("TOOL-17")
def test_a_link_is_text_with_its_uri_where_there_are_no_links():
    prompt = s.GetPromptResult(messages=[s.PromptMessage(role="user", content=LINK)])
    for protocol_version in (A, B):
        content = downgraded_json(prompt, protocol_version)["messages"][0]["content"]
        assert content == {"type": "text", "text": "Today: log://today"}
    assert downgraded(prompt, C) is prompt
    nameless = s.ResourceLink(uri="log://today", name="today")
    assert downgraded_json(s.CallToolResult(content=[nameless]), A)["content"][0]["text"] == (
        "today: log://today"
    )


@pytest.mark.requirement("META-02")
def test_metadata_inside_messages_exist_from_2025_06_18():
    root = s.ListRootsResult(roots=[s.Root(uri="file:///a", meta={"k": 1})])
    text = s.CallToolResult(content=[s.TextContent(text="x", meta={"k": 1})])
    assert "_meta" not in downgraded_json(root, B)["roots"][0]
    assert "_meta" not in downgraded_json(text, B)["content"][0]
    assert (
        downgraded_json(root, C)["roots"][0]["_meta"]
        == downgraded_json(text, C)["content"][0]["_meta"]
        == {"k": 1}
    )


@dataclass
class AsDataclass:
    a: int


@attrs.frozen
class AsAttrs:
    a: int


class AsStruct(msgspec.Struct):
    a: int


@pytest.mark.requirement("TRAP-69", "TRAP-70", "TOOL-21", "TOOL-22")
@pytest.mark.parametrize("value", [None, False, 0, "", [], msgspec.Raw(b"[]"), (1,)])
def test_structured_content_that_is_no_object_is_for_the_newest_only(value):
    result = s.CallToolResult(content=[TEXT], structured_content=value)
    tools = question(
        message([s.ToolResultContent(tool_use_id="1", content=[TEXT], structured_content=value)])
    )
    assert downgraded(result, E) is result
    assert "structuredContent" in downgraded_json(result, E)
    for protocol_version in (A, B, C, D):
        assert "structuredContent" not in downgraded_json(result, protocol_version)
    assert "structuredContent" not in downgraded_json(tools, D)["messages"][0]["content"][0]
    assert "structuredContent" in downgraded_json(tools, E)["messages"][0]["content"][0]


@pytest.mark.requirement("TOOL-21")
@pytest.mark.parametrize(
    "value", [{"a": 1}, AsDataclass(1), AsAttrs(1), AsStruct(1), msgspec.Raw(b' {"a": 1}')]
)
def test_a_structured_object_is_kept_where_there_is_structured_content(value):
    result = s.CallToolResult(content=[TEXT], structured_content=value)
    assert "structuredContent" not in downgraded_json(result, B)
    assert downgraded_json(result, C)["structuredContent"] == {"a": 1}
    assert downgraded(result, D) is result


@pytest.mark.requirement("TRAP-69", "TOOL-26", "TOOL-27")
@pytest.mark.parametrize("schema", [{"type": "array"}, {}, {"anyOf": [{"type": "object"}]}])
def test_an_output_schema_without_an_object_is_for_the_newest_only(schema):
    tool = s.Tool(name="t", input_schema={"type": "object"}, output_schema=schema)
    assert "outputSchema" not in downgraded_json(tool, D)
    assert downgraded_json(tool, E)["outputSchema"] == schema


def test_an_object_output_schema_exists_where_structured_content_does():
    tool = s.Tool(name="t", input_schema={"type": "object"}, output_schema={"type": "object"})
    assert "outputSchema" not in downgraded_json(tool, B)
    assert downgraded_json(tool, C)["outputSchema"] == {"type": "object"}


@pytest.mark.requirement("TOOL-28")
def test_boolean_property_schemas_become_objects_for_older_versions():
    schema = {"type": "object", "properties": {"any": True, "none": False, "x": {"type": "null"}}}
    tool = s.Tool(name="t", input_schema=schema)
    assert downgraded_json(tool, D)["inputSchema"]["properties"] == {
        "any": {},
        "none": {"not": {}},
        "x": {"type": "null"},
    }
    assert downgraded(tool, E) is tool


def test_descriptions_of_tools_grow_with_the_protocol_versions():
    tool = s.Tool(
        name="t",
        input_schema={"type": "object"},
        title="T",
        annotations=s.ToolAnnotations(read_only_hint=True),
        icons=[ICON],
        execution=s.ToolExecution(task_support="optional"),
    )
    known = [
        set(downgraded_json(tool, protocol_version)) - {"name", "inputSchema"}
        for protocol_version in (A, B, C, D, E)
    ]
    assert known == [
        set(),
        {"annotations"},
        {"annotations", "title"},
        {"annotations", "title", "icons", "execution"},
        {"annotations", "title", "icons"},
    ]


@pytest.mark.requirement("PROG-04")
def test_progress_has_a_message_from_the_second_protocol_version_on():
    report = s.ProgressParams(progress_token=1, progress=0, message="half")
    assert "message" not in downgraded_json(report, A)
    assert downgraded(report, B) is report


# Capabilities.


@pytest.mark.requirement("TRAP-89")
def test_a_client_without_forms_announces_no_elicitation_where_there_are_only_forms():
    by_url = s.ClientCapabilities(elicitation=s.ElicitationCapability(url={}))
    both = s.ClientCapabilities(elicitation=s.ElicitationCapability(form={}, url={}))
    plain = s.ClientCapabilities(elicitation=s.ElicitationCapability())
    assert downgraded_json(by_url, C) == {}
    assert downgraded_json(both, C) == {"elicitation": {}}
    assert downgraded(plain, C) is plain
    assert downgraded_json(both, B) == {}
    assert downgraded(both, D) is both


@pytest.mark.requirement("TRAP-94")
def test_a_stateless_client_announces_roots_without_their_changes():
    roots = s.ClientCapabilities(roots=s.RootsCapability(list_changed=True))
    assert downgraded(roots, D) is roots
    assert downgraded_json(roots, E) == {"roots": {}}
    us = s.Implementation(name="us", version="1")
    metadata = client_metadata(E, roots, us)
    assert metadata[CLIENT_CAPABILITIES] == s.ClientCapabilities(roots=s.RootsCapability())


@pytest.mark.requirement("COMP-01", "COMP-02")
def test_completions_are_announced_from_the_second_protocol_version_on_and_extensions_in_the_newest():
    server = s.ServerCapabilities(completions={}, extensions={"org.example/x": {}})
    assert [
        set(downgraded_json(server, protocol_version)) for protocol_version in (A, B, D, E)
    ] == [
        set(),
        {"completions"},
        {"completions"},
        {"completions", "extensions"},
    ]


# Elicitation.

TITLED = {"type": "string", "oneOf": [{"const": "n", "title": "North"}], "default": "n"}
SEVERAL = {"type": "array", "items": {"type": "string", "enum": ["n"]}}


@pytest.mark.requirement("TRAP-90", "ELIC-08")
def test_an_old_client_is_asked_without_a_mode():
    assert downgraded_json(form(), D)["mode"] == "form"
    assert "mode" not in downgraded_json(form(), C)


@pytest.mark.requirement("TRAP-91", "ELIC-11")
def test_an_old_form_has_names_of_choices_and_presets_only_for_booleans():
    asked = form(
        quay=TITLED,
        nights={"type": "integer", "minimum": 1, "default": 2},
        early={"type": "boolean", "default": True},
        name={"type": "string"},
    )
    asked.requested_schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    assert downgraded_json(asked, C)["requestedSchema"] == {
        "type": "object",
        "properties": {
            "quay": {"type": "string", "enum": ["n"], "enumNames": ["North"]},
            "nights": {"type": "integer", "minimum": 1},
            "early": {"type": "boolean", "default": True},
            "name": {"type": "string"},
        },
    }
    assert downgraded(asked, D) is asked


def test_an_old_form_that_needs_no_change_is_the_same_form():
    asked = form(early={"type": "boolean", "default": True}, name={"type": "string"})
    assert downgraded(asked, C).requested_schema is asked.requested_schema


@pytest.mark.parametrize(
    "members", [{"it": "string"}, {"it": {"type": "string", "oneOf": [{"const": "n"}]}}, ["it"]]
)
def test_a_schema_that_is_no_form_cannot_be_downgraded(members):
    asked = form()
    asked.requested_schema["properties"] = members
    with pytest.raises(LocalProtocolError, match=f"{C.name} has no such form"):
        downgraded(asked, C)


@pytest.mark.requirement("ELIC-28", "ELIC-29", "TRAP-92")
def test_only_2025_11_25_has_elicitation_ids():
    asked = s.ElicitParams(message="?", mode="url", url="https://a.example", elicitation_id="e")
    assert downgraded(asked, D) is asked
    assert downgraded_json(asked, E) == {"message": "?", "mode": "url", "url": "https://a.example"}


@pytest.mark.requirement("ELIC-18")
@pytest.mark.parametrize(
    ("value", "protocol_version", "missing"),
    [
        (form(quay=SEVERAL), C, "multiple choice in a form"),
        (
            s.ElicitParams(message="?", mode="url", url="https://a.example"),
            C,
            "elicitation by URL",
        ),
        (s.ElicitResult(action="accept", content={"quay": ["n"]}), C, "multiple choice"),
        (form(), B, "elicitation"),
        (s.ElicitResult(action="cancel"), B, "elicitation"),
        (s.InputRequiredResult(request_state="s"), D, "result that asks for input"),
        (question(message(AUDIO)), A, "audio in sampling"),
        (question(message(USE)), C, "use of tools in sampling"),
        (question(message([GIVEN])), C, "use of tools in sampling"),
        (question(tools=[]), C, "tools in sampling"),
        (question(tool_choice=s.ToolChoice()), C, "toolChoice in sampling"),
        (
            s.CreateMessageResult(role="assistant", model="m", content=[TEXT, TEXT]),
            C,
            "sampling message with several content blocks",
        ),
    ],
)
def test_a_value_without_an_equivalent_is_rejected(value, protocol_version, missing):
    with pytest.raises(
        LocalProtocolError, match=f"^protocol version {protocol_version.name} has no {missing}"
    ):
        downgraded(value, protocol_version)
    newer = list(PROTOCOL_VERSIONS.values())[protocol_version.index + 1]
    assert downgraded(value, newer) is not None


def test_a_form_response_without_lists_suits_every_version():
    answer = s.ElicitResult(action="accept", content={"quay": "n"})
    assert downgraded(answer, C) is answer


# Sampling.


@pytest.mark.requirement("TRAP-85", "SAMP-09")
def test_a_sampling_message_of_several_blocks_becomes_several_messages():
    asked = question(message([TEXT, s.TextContent(text="y")]), message(TEXT), message([]))
    texts = [each["content"]["text"] for each in downgraded_json(asked, C)["messages"]]
    assert texts == ["x", "y", "x"]
    assert downgraded(asked, D) is asked


@pytest.mark.requirement("TRAP-85", "SAMP-09")
def test_a_list_of_one_block_becomes_the_block():
    answer = s.CreateMessageResult(role="assistant", model="m", content=[TEXT])
    assert downgraded_json(answer, A)["content"] == {"type": "text", "text": "x"}
    assert downgraded(answer, D) is answer


def test_an_input_request_is_downgraded_too():
    asked = s.ElicitParams(
        message="?", mode="url", url="https://a.example", elicitation_id="e", meta={"k": 1}
    )
    result = s.InputRequiredResult(
        input_requests={
            "q1": s.InputRequest(method="elicitation/create", params=asked),
            "q2": s.InputRequest(method="roots/list"),
        }
    )
    assert downgraded_json(result, E)["inputRequests"] == {
        "q1": {
            "method": "elicitation/create",
            "params": {"message": "?", "mode": "url", "url": "https://a.example"},
        },
        "q2": {"method": "roots/list"},
    }
    again = downgraded(result, E)
    assert downgraded(again, E) is again


@pytest.mark.requirement("CACHE-01")
def test_only_stateless_versions_have_cache_times():
    page = s.ListToolsResult(tools=[], ttl_ms=5, cache_scope="public", result_type="complete")
    assert downgraded_json(page, D) == {"tools": []}
    assert downgraded(page, E) is page


def test_only_stateless_versions_have_input_responses():
    again = s.CallToolParams(name="t", input_responses={}, request_state="s")
    assert downgraded_json(again, D) == {"name": "t"}
    assert downgraded(again, E) is again


# Protocol versions.


STATELESS = "2026-07-28"


def test_protocol_versions_are_sorted_from_the_newest():
    assert checked_protocol_versions({"2024-11-05", STATELESS, "2025-06-18"}) == (
        STATELESS,
        "2025-06-18",
        "2024-11-05",
    )


@pytest.mark.parametrize(
    ("names", "error"),
    [
        ((), "no protocol version is given"),
        (("2024-11-05", "yesterday"), r"unknown protocol versions \['yesterday'\]"),
    ],
)
def test_unknown_protocol_versions_are_rejected(names, error):
    with pytest.raises(ValueError, match=f"{error}: choose from 2026-07-28, 2025-11-25"):
        checked_protocol_versions(names)
