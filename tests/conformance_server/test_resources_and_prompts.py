import pytest
import trio

from mcp_trio.types import ImageContent

pytestmark = pytest.mark.slow


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


async def test_updates_of_the_watched_resource_are_told_while_it_is_subscribed_to(connect):
    updated, heard = [], trio.Event()

    def hear(params):
        updated.append(params.uri)
        heard.set()

    uri = "test://watched-resource"
    async with connect(resource_updated=hear) as client:
        await client.subscribe(uri)
        before = (await read(client, uri)).text
        await client.call_tool("test_update_watched_resource")
        await heard.wait()
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


async def test_ids_are_completed_and_what_was_left_out_is_told(connect):
    async with connect() as client:
        completion = (await client.complete("test://template/{id}/data", "id", "12")).completion
        assert completion.values == ["12", *map(str, range(120, 130))]
        completion = (await client.complete("test://template/{id}/data", "id", "")).completion
    assert len(completion.values) == 100
    assert (completion.total, completion.has_more) == (1_000, True)
