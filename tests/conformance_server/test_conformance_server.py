""""""

import base64
import json
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import trio
from facts import FACTS
from our_client import Session, client_for
from scenario import run as run_scenario
from sdk_adapter import Host

from mcp_trio import Client, RequestError, ToolError, UserRejected
from mcp_trio.recording import replay
from mcp_trio.types import CreateMessageResult, ImageContent, TextContent

pytestmark = pytest.mark.slow


PNG_MAGIC = b"\x89PNG\r\n\x1a\n"


def plain(contents):
    """Contents as they travel, images by their type and first bytes."""
    members = msgspec.to_builtins(contents)
    for member in members:
        if "data" in member:
            member["data"] = base64.b64decode(member["data"])[: len(PNG_MAGIC)]
    return members


def text(content):
    return {"type": "text", "text": content}


def resource(uri, mime_type, content):
    return {"type": "resource", "resource": {"uri": uri, "mimeType": mime_type, "text": content}}


IMAGE = {"type": "image", "data": PNG_MAGIC, "mimeType": "image/png"}

RESULTS = {
    "test_simple_text": [text("This is a simple text response for testing.")],
    "test_image_content": [IMAGE],
    "test_embedded_resource": [
        resource("test://embedded-resource", "text/plain", "This is an embedded resource content.")
    ],
    "test_multiple_content_types": [
        text("Multiple content types test:"),
        IMAGE,
        resource(
            "test://mixed-content-resource", "application/json", '{"test":"data","value":123}'
        ),
    ],
}

NAMES = {
    *RESULTS,
    "json_schema_2020_12_tool",
    "test_audio_content",
    "test_cancelled_sampling",
    "test_elicitation",
    "test_elicitation_sep1034_defaults",
    "test_elicitation_sep1330_enums",
    "test_elicitation_url",
    "test_error_handling",
    "test_input_required_result_capabilities",
    "test_input_required_result_elicitation",
    "test_input_required_result_list_roots",
    "test_input_required_result_multi_round",
    "test_input_required_result_multiple_inputs",
    "test_input_required_result_request_state",
    "test_input_required_result_sampling",
    "test_input_required_result_tampered_state",
    "test_list_roots",
    "test_logging_tool",
    "test_missing_capability",
    "test_ping",
    "test_reconnection",
    "test_resource_link",
    "test_sampling",
    "test_sampling_with_progress",
    "test_sampling_with_tools",
    "test_slow",
    "test_streaming_elicitation",
    "test_structured_content",
    "test_tool_with_logging",
    "test_tool_with_progress",
    "test_trigger_prompt_change",
    "test_trigger_resource_change",
    "test_trigger_tool_change",
    "test_update_watched_resource",
    "test_url_required",
    "test_x_mcp_header",
}


async def call(client, tool, /, **arguments):
    (content,) = (await client.call_tool(tool, arguments)).content
    return content.text


async def filled(messages, count):
    """Wait for this number of notifications; callbacks run concurrently with the calls."""
    with trio.fail_after(10):
        while len(messages) < count:
            await trio.sleep(0)
    return messages


async def test_every_tool_is_listed_with_a_description(connect):
    async with connect() as client:
        tools = await client.list_tools()
    assert {tool.name for tool in tools} == NAMES
    assert all(tool.description for tool in tools)


@pytest.mark.parametrize("name", RESULTS)
async def test_contents_come_as_the_suite_documents_them(connect, name):
    async with connect() as client:
        assert plain((await client.call_tool(name)).content) == RESULTS[name]


async def test_an_error_is_a_result_in_words(connect):
    async with connect() as client:
        with pytest.raises(
            ToolError, match=r"^This tool intentionally returns an error for testing$"
        ):
            await client.call_tool("test_error_handling")


async def test_a_schema_that_was_given_is_listed_unchanged_and_held(connect):
    async with connect() as client:
        (tool,) = [
            tool for tool in await client.list_tools() if tool.name == "json_schema_2020_12_tool"
        ]
        schema = msgspec.to_builtins(tool.input_schema)
        assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
        assert schema["$defs"]["address"]["$anchor"] == "addressDef"
        assert schema["properties"]["address"] == {"$ref": "#/$defs/address"}
        assert list(schema["if"]) == ["properties", "required"]
        assert schema["additionalProperties"] is False
        arguments = {"name": "Ada", "contactMethod": "phone", "phone": "1"}
        answer = await call(client, "json_schema_2020_12_tool", **arguments)
        assert json.loads(answer.partition(": ")[2]) == arguments
        with pytest.raises(RequestError, match="email"):
            await call(client, "json_schema_2020_12_tool", phone="1")


# Messages during a call.


async def test_messages_are_logged_unless_the_client_wants_severe_ones_only(connect):
    messages = []
    async with connect(log=messages.append) as client:
        await client.set_log_level("debug")
        assert await call(client, "test_tool_with_logging")
        assert [(params.level, params.data) for params in await filled(messages, 3)] == [
            ("info", "Tool execution started"),
            ("info", "Tool processing data"),
            ("info", "Tool execution completed"),
        ]
        await client.set_log_level("warning")
        assert await call(client, "test_tool_with_logging")
        await client.ping()
    assert len(messages) == 3


async def test_progress_is_reported_three_times(connect):
    reports = []
    async with connect(progress=reports.append) as client:
        assert await call(client, "test_tool_with_progress")
    assert [(report.progress, report.total) for report in reports] == [
        (0, 100),
        (50, 100),
        (100, 100),
    ]


async def test_a_slow_tool_reports_from_its_start_to_its_end(connect):
    reports = []
    async with connect(progress=reports.append) as client:
        assert await call(client, "test_slow", seconds=0.35) == "It took 0.35 seconds."
    assert reports[0].progress == 0
    assert (reports[-1].progress, reports[-1].total) == (0.35, 0.35)
    assert len(reports) == 5


async def test_a_slow_tool_can_be_cancelled(connect):
    reports = []
    async with connect(progress=reports.append) as client:
        with trio.move_on_after(0.2) as scope:
            await call(client, "test_slow", seconds=3_600)
        assert scope.cancelled_caught
        assert reports
        assert await call(client, "test_slow", seconds=0) == "It took 0 seconds."


# Requests to the client.


async def model(params):
    """Answer the question with itself."""
    (message,) = params.messages
    assert (message.role, params.max_tokens) == ("user", 100)
    return CreateMessageResult(role="assistant", content=message.content, model="echo")


async def picture(_):
    content = ImageContent(data="AAAA", mime_type="image/png")
    return CreateMessageResult(role="assistant", content=content, model="painter")


async def test_the_model_of_the_client_is_asked(connect):
    async with connect(sampling=model) as client:
        assert await call(client, "test_sampling", prompt="Why?") == "LLM response: Why?"


async def test_reports_of_the_client_before_its_answer_are_logged(connect):
    messages = []

    async def thoughtful(params, report):
        await report(0.5, 2)
        await report(2, 2)
        return await model(params)

    async with connect(sampling=thoughtful, log=messages.append) as client:
        answer = await call(client, "test_sampling_with_progress", prompt="Why?")
        assert answer == "LLM response: Why?"
        await filled(messages, 2)
    assert [params.data for params in messages] == [
        {"progress": 0.5, "total": 2},
        {"progress": 2, "total": 2},
    ]


async def test_a_model_may_answer_with_an_image(connect):
    async with connect(sampling=picture) as client:
        assert await call(client, "test_sampling", prompt="A cat") == "LLM response: (image/png)"


async def test_a_user_may_reject(connect):
    async def reject(_):
        raise UserRejected

    async with connect(sampling=reject) as client:
        with pytest.raises(RequestError, match="rejected"):
            await call(client, "test_sampling", prompt="Why?")


async def test_a_request_of_the_server_can_be_cancelled_and_the_client_is_notified(connect):
    ended = trio.Event()

    async def endless(_):
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    async with connect(sampling=endless) as client:
        assert await call(client, "test_cancelled_sampling") == "Nobody answered in time."
        await ended.wait()


async def test_a_question_that_is_answered_in_time_is_not_given_up(connect):
    async with connect(sampling=model) as client:
        answer = await call(client, "test_cancelled_sampling")
    assert answer == "LLM response, in time: Think long about this."


async def test_the_client_is_pinged(connect):
    async with connect() as client:
        assert await call(client, "test_ping") == "The client is alive."


async def test_roots_are_asked_for(connect):
    async with connect(roots=["file:///a", "file:///b%20c"]) as client:
        assert await call(client, "test_list_roots") == "file:///a\nfile:///b%20c"


@pytest.mark.parametrize(
    ("name", "capability"),
    [
        ("test_sampling", "sampling"),
        ("test_cancelled_sampling", "sampling"),
        ("test_sampling_with_progress", "sampling"),
        ("test_list_roots", "roots"),
    ],
)
async def test_a_client_without_the_capability_gets_an_error(connect, name, capability):
    arguments = {"prompt": "Why?"} if "cancelled" not in name and capability != "roots" else {}
    async with connect() as client:
        with pytest.raises(ToolError, match=f"does not offer {capability}"):
            await call(client, name, **arguments)


# Changed lists and resources.


@pytest.mark.parametrize("kind", ["tools", "resources", "prompts"])
async def test_lists_change_and_change_back(connect, kind):
    changed, has_changed = [], trio.Event()

    def on_change(what):
        changed.append(what)
        has_changed.set()

    async def names():
        return {item.name for item in await getattr(client, f"list_{kind}")()}

    async with connect(list_changed=on_change) as client:
        before = await names()
        assert await call(client, f"test_trigger_{kind[:-1]}_change") == "added"
        await has_changed.wait()
        assert await names() == before | {f"extra_{kind[:-1]}"}
        has_changed = trio.Event()
        assert await call(client, f"test_trigger_{kind[:-1]}_change") == "removed"
        await has_changed.wait()
        assert await names() == before
    assert changed == [kind, kind]


async def test_an_added_tool_resource_and_prompt_can_be_used(connect):
    async with connect() as client:
        for kind in ("tool", "resource", "prompt"):
            await call(client, f"test_trigger_{kind}_change")
        assert await call(client, "extra_tool") == "The extra tool is there."
        (contents,) = (await client.read_resource("test://extra-resource")).contents
        assert contents.text == "The extra resource is there."
        (message,) = (await client.get_prompt("extra_prompt")).messages
        assert message.content == TextContent(text="The extra prompt is there.")


async def read(client, uri):
    (contents,) = (await client.read_resource(uri)).contents
    assert contents.uri == uri
    return contents


async def messages(client, name, **arguments):
    found = (await client.get_prompt(name, arguments or None)).messages
    assert all(message.role == "user" for message in found)
    return [message.content for message in found]


async def test_resources_and_templates_are_listed(connect):
    async with connect() as client:
        resources = await client.list_resources()
        (template,) = await client.list_resource_templates()
    assert {(resource.uri, resource.mime_type) for resource in resources} == {
        ("test://asking", "text/plain"),
        ("test://static-text", "text/plain"),
        ("test://static-binary", "image/png"),
        ("test://watched-resource", "text/plain"),
    }
    assert (template.uri_template, template.mime_type) == (
        "test://template/{id}/data",
        "application/json",
    )


async def test_static_resources_are_a_text_and_an_image(connect):
    async with connect() as client:
        text = await read(client, "test://static-text")
        image = await read(client, "test://static-binary")
    assert text.mime_type == "text/plain"
    assert text.text == "This is the content of the static text resource."
    assert image.mime_type == "image/png"
    assert image.blob.startswith("iVBORw0KGgo")


async def test_the_template_tells_the_id(connect):
    async with connect() as client:
        contents = await read(client, "test://template/123/data")
    assert contents.mime_type == "application/json"
    assert contents.text == '{"id":"123","templateTest":true,"data":"Data for ID: 123"}'


async def test_updates_of_the_watched_resource_are_sent_while_it_is_subscribed_to(connect):
    updated, has_updated = [], trio.Event()

    def on_change(params):
        updated.append(params.uri)
        has_updated.set()

    uri = "test://watched-resource"
    async with connect(resource_updated=on_change) as client:
        await client.subscribe(uri)
        before = (await read(client, uri)).text
        await client.call_tool("test_update_watched_resource")
        await has_updated.wait()
        assert (await read(client, uri)).text != before
        await client.unsubscribe(uri)
        await client.call_tool("test_update_watched_resource")
        await client.ping()
    assert updated == [uri]


async def test_prompts_are_listed_with_descriptions_and_arguments(connect):
    async with connect() as client:
        prompts = await client.list_prompts()
    assert all(prompt.description for prompt in prompts)
    assert {
        prompt.name: [(argument.name, argument.required) for argument in prompt.arguments or []]
        for prompt in prompts
    } == {
        "test_simple_prompt": [],
        "test_prompt_with_arguments": [("arg1", True), ("arg2", True)],
        "test_prompt_with_embedded_resource": [("resourceUri", True)],
        "test_prompt_with_image": [],
        "test_input_required_result_prompt": [],
    }


async def test_prompts_are_texts_with_what_was_asked_for(connect):
    async with connect() as client:
        (simple,) = await messages(client, "test_simple_prompt")
        (filled,) = await messages(client, "test_prompt_with_arguments", arg1="hello", arg2="world")
    assert simple.text == "This is a simple prompt for testing."
    assert filled.text == "Prompt with arguments: arg1='hello', arg2='world'"


async def test_prompts_hold_resources_and_images(connect):
    async with connect() as client:
        embedded, then = await messages(
            client, "test_prompt_with_embedded_resource", resourceUri="test://mine"
        )
        assert embedded.resource.uri == "test://mine"
        assert embedded.resource.mime_type == "text/plain"
        assert embedded.resource.text == "Embedded resource content for testing."
        assert then.text == "Please process the embedded resource above."
        image, then = await messages(client, "test_prompt_with_image")
        assert isinstance(image, ImageContent)
        assert then.text == "Please analyze the image above."


@pytest.mark.parametrize("argument", ["arg1", "arg2"])
async def test_arguments_of_a_prompt_are_completed(connect, argument):
    async with connect() as client:
        completed = await client.complete("test_prompt_with_arguments", argument, "test")
        assert completed.completion.values == ["test", "testing"]


async def test_ids_are_completed_and_the_rest_is_counted(connect):
    async with connect() as client:
        completion = (await client.complete("test://template/{id}/data", "id", "12")).completion
        assert completion.values == ["12", *map(str, range(120, 130))]
        completion = (await client.complete("test://template/{id}/data", "id", "")).completion
    assert len(completion.values) == 100
    assert (completion.total, completion.has_more) == (1_000, True)


@pytest.fixture
async def record_scenario(serve, autojump_clock):
    """Run the whole scenario with a protocol version, as with the servers of the SDKs."""

    async def record_scenario(protocol_version, record):
        host = Host()
        async with client_for(
            host, serve(protocol_version, record=record), protocol_version
        ) as client:
            await run_scenario(Session(client, host), host, protocol_version)

    return record_scenario


@pytest.mark.parametrize("protocol_version", FACTS.protocol_versions)
async def test_the_whole_scenario_matches_the_published_schema_and_replays(
    record_scenario, load, tmp_path, protocol_version
):
    record = tmp_path / "story.mcprec.jsonl"
    await record_scenario(protocol_version, record)
    report = await trio.to_thread.run_sync(replay, record, load())
    assert report.is_complete


# The tools of the "everything" server that need rounds or read the metadata of a request.


VERSIONS = ["2025-11-25", "2026-07-28"]

RESULT_TEXTS = {
    "test_input_required_result_elicitation": "Hello, Ada!",
    "test_input_required_result_sampling": "Paris",
    "test_input_required_result_list_roots": "file:///a",
    "test_input_required_result_request_state": "state-ok",
    "test_input_required_result_tampered_state": "state-ok",
    "test_input_required_result_capabilities": "Asked for: sampling, elicitation, roots",
    "test_streaming_elicitation": "The user has chosen to accept.",
    "test_missing_capability": "Paris",
    "test_logging_tool": "Logged.",
    "test_reconnection": "Reconnection test completed successfully",
    "test_x_mcp_header": "The region is anywhere.",
}

ANSWERS = {"name": "Ada", "ok": True}


def model_round_tools(_params):
    content = TextContent(text="Paris")
    return CreateMessageResult(role="assistant", content=content, model="one-word")


def user(params):
    return {name: ANSWERS[name] for name in params.requested_schema["properties"]}


@pytest.fixture(params=VERSIONS)
def client_round_tools(request, serve):
    """Make a client of each kind, legacy and stateless."""

    def client(**options):
        return Client(serve(request.param), protocol_versions=[request.param], **options)

    return client


async def test_questions_come_to_an_answer_in_both_eras(client_round_tools, autojump_clock):
    options = {"sampling": model_round_tools, "elicitation": user, "roots": ["file:///a"]}
    async with client_round_tools(**options) as able:
        for name, text in RESULT_TEXTS.items():
            (content,) = (await able.call_tool(name)).content
            assert content.text == text


async def test_only_what_a_client_can_answer_is_asked(client_round_tools, autojump_clock):
    async with client_round_tools(sampling=model_round_tools) as able:
        (content,) = (await able.call_tool("test_input_required_result_capabilities")).content
        assert content.text == "Asked for: sampling"


async def test_a_client_without_sampling_gets_an_error_that_names_it(serve):
    async with Client(serve(VERSIONS[-1]), protocol_versions=VERSIONS[-1:]) as unable:
        with pytest.raises(RequestError) as caught:
            await unable.call_tool("test_missing_capability")
    assert (caught.value.code, caught.value.data) == (
        -32021,
        {"requiredCapabilities": {"sampling": {}}},
    )


SERVER = Path(__file__).parents[2] / "tools" / "conformance" / "server.py"


async def model_sessions(params):
    return CreateMessageResult(role="assistant", content=params.messages[0].content, model="echo")


async def test_it_runs_as_a_script(tmp_path):
    record = tmp_path / "everything.mcprec.jsonl"
    command = [sys.executable, str(SERVER), "--stdio", "--record", str(record)]
    async with Client(command) as client:
        assert client.server_info.name == "mcp-trio-conformance"
        assert (await client.call_tool("test_simple_text")).content
    assert record.exists()


@pytest.mark.real_time
@pytest.mark.parametrize("host", ["native", "hypercorn"])
async def test_it_runs_as_a_script_over_http(host):
    command = [sys.executable, str(SERVER), "--port", "0", "--server", host]
    process = await trio.lowlevel.open_process(command, stderr=subprocess.PIPE)
    try:
        with trio.fail_after(30):
            output = await process.stderr.receive_some()
            url = output.decode().splitlines()[0].removeprefix("serving ")
            async with Client(url) as client:
                assert client.protocol_version == "2026-07-28"
                assert (await client.call_tool("test_simple_text")).content
            process.terminate()
            assert await process.wait() == 128 + signal.SIGTERM
    finally:
        process.kill()
        await process.stderr.aclose()


async def test_a_busy_session_replays(connect, load, tmp_path):
    record = tmp_path / "everything.mcprec.jsonl"
    options = {"sampling": model_sessions, "roots": ["file:///a"], "progress": print, "log": print}
    async with connect(record=record, **options) as client:
        await client.subscribe("test://watched-resource")
        async with trio.open_nursery() as nursery:
            for name in (
                "test_tool_with_logging",
                "test_tool_with_progress",
                "test_list_roots",
                "test_cancelled_sampling",
                "test_trigger_tool_change",
                "test_update_watched_resource",
            ):
                nursery.start_soon(client.call_tool, name)
            nursery.start_soon(client.call_tool, "test_sampling", {"prompt": "Why?"})
        with trio.move_on_after(0.15):
            await client.call_tool("test_slow")
        await client.complete("test_prompt_with_arguments", "arg1", "p")
        await client.ping()
    report = await trio.to_thread.run_sync(replay, record, load())
    assert report.is_complete
