"""What a client does with an "everything" server, and what it has to get: one story for all.

Every Python client tells it, ours and those of the SDKs, each through an adapter that turns what
its SDK gives back into the words of the wire. Needs anyio, and nothing else that is installed.
"""

import functools
import json
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import anyio
import server_requests
from checks import Unexpected, checks, expect, expect_image, expect_rejection, expect_that, text_of
from facts import FACTS, has
from parties import UPDATED, Host, Rejected, Session

STORY_SECONDS: Final = 60.0
QUIET_SECONDS: Final = 0.35


async def shake_hands(session: Session, _host: Host) -> None:
    """The server offers everything that the revision knows of."""
    offered = session.capabilities
    for kind in ("tools", "prompts", "resources"):
        expect_that(f"{kind}.listChanged", offered.get(kind, {}).get("listChanged"))
    expect_that("resources.subscribe", offered["resources"].get("subscribe"))
    expect_that("logging", "logging" in offered)
    if has(session.protocol_version, "completions"):
        expect_that("completions", "completions" in offered)
    await settle(session)


async def settle(session: Session) -> None:
    """Let what the server said before have arrived."""
    if has(session.protocol_version, "sessions"):
        await session.ping()
    else:
        await session.list_resource_templates()


async def list_the_tools(session: Session, _host: Host) -> None:
    """Tools come with their schemas, which arrive unchanged."""
    tools = {tool["name"]: tool for tool in await session.list_tools()}
    expect_that("has test_simple_text", "test_simple_text" in tools)
    for name, tool in tools.items():
        expect(f"the schema of {name}", tool["inputSchema"]["type"], "object")
    expect("schema", tools["json_schema_2020_12_tool"]["inputSchema"], FACTS.contact_schema)
    described = tools["test_simple_text"]
    for feature, member, value in (
        ("annotations", "annotations", {"readOnlyHint": True}),
        ("titles", "title", FACTS.tool_title),
        ("icons", "icons", [FACTS.icon]),
    ):
        if has(session.protocol_version, feature):
            expect(member, described[member], value)


async def call_tools(session: Session, _host: Host) -> None:
    """Each kind of content comes through; a failure of a tool is a result."""
    expect("text", text_of(await session.call_tool("test_simple_text")), FACTS.simple_text)
    expect_image((await session.call_tool("test_image_content"))["content"][0])
    embedded = (await session.call_tool("test_embedded_resource"))["content"][0]["resource"]
    expect("URI", embedded["uri"], FACTS.embedded_uri)
    expect("embedded", embedded["text"], FACTS.embedded_text)
    await call_mixed(session)
    failed = await session.call_tool("test_error_handling")
    expect_that("isError", failed["isError"])
    expect("error", failed["content"][0]["text"], FACTS.error_text)
    contact = {"name": "Ada", "contactMethod": "phone", "phone": "1"}
    text = text_of(await session.call_tool("json_schema_2020_12_tool", contact))
    expect("arguments", json.loads(text[text.index("{") :]), contact)
    await expect_rejection("no tool", session.call_tool("no_tool"), FACTS.invalid_params)


async def listen_to_audio(session: Session, _host: Host) -> None:
    """A tool returns a sound."""
    (part,) = (await session.call_tool("test_audio_content"))["content"]
    expect("audio", part, {"type": "audio", "data": FACTS.wav, "mimeType": "audio/wav"})


async def call_for_structure(session: Session, _host: Host) -> None:
    """A tool says what it returns, returns that, and says it in words as well."""
    tools = {tool["name"]: tool for tool in await session.list_tools()}
    schema = tools["test_structured_content"]["outputSchema"]
    described = FACTS.structured_schema
    expect("outputSchema", schema["properties"].keys(), described["properties"].keys())
    expect("required", sorted(schema["required"]), sorted(described["required"]))
    result = await session.call_tool("test_structured_content", {"city": "Oslo"})
    expect("structuredContent", result["structuredContent"], FACTS.structured)
    expect("mirror", json.loads(text_of(result)), FACTS.structured)


async def follow_a_link(session: Session, _host: Host) -> None:
    """A tool returns the way to a resource, which can be read."""
    (link,) = (await session.call_tool("test_resource_link"))["content"]
    expect("link", (link["type"], link["uri"]), ("resource_link", FACTS.static_text_uri))
    (text,) = await session.read_resource(link["uri"])
    expect("text", text["text"], FACTS.static_text)


async def call_mixed(session: Session) -> None:
    """Content of three kinds keeps its order."""
    mixed = (await session.call_tool("test_multiple_content_types"))["content"]
    expect("kinds", [part["type"] for part in mixed], ["text", "image", "resource"])
    expect("text", mixed[0]["text"], FACTS.mixed_text)
    expect_image(mixed[1])
    expect("JSON", json.loads(mixed[2]["resource"]["text"]), FACTS.mixed_json)


async def log(session: Session, host: Host) -> None:
    """Messages come in order, and none that is less severe than wanted."""
    await session.set_level("debug")
    text_of(await session.call_tool("test_tool_with_logging"))
    await host.wait_for(lambda: len(host.logged()) >= len(FACTS.logged))
    expect("logged", host.logged(), FACTS.logged)
    await session.set_level("error")
    text_of(await session.call_tool("test_tool_with_logging"))
    await settle(session)
    expect("logged below the level", len(host.logged()), len(FACTS.logged))
    await session.set_level("debug")


async def report_progress(session: Session, host: Host) -> None:
    """Reports reach the call that they are about."""
    found: list[list[float | str | None]] = []

    def report(progress: float, total: float | None, message: str | None) -> None:
        found.append([progress, total, message])
        host.wake()

    text_of(await session.call_tool("test_tool_with_progress", report=report))
    await host.wait_for(lambda: len(found) >= len(FACTS.progress))
    has_messages = has(session.protocol_version, "progress_messages")
    told = [[*numbers, message if has_messages else None] for *numbers, message in FACTS.progress]
    expect("progress", found, told)


async def cancel(session: Session, _host: Host) -> None:
    """A call that is cancelled stops at the server, and the session goes on."""
    found: list[float] = []
    with anyio.CancelScope() as scope:

        def report(progress: float, _total: float | None, _message: str | None) -> None:
            found.append(progress)
            if len(found) == 2:
                scope.cancel()

        await session.call_tool("test_slow", {"seconds": 5}, report=report)
    expect_that("cancelled", scope.cancelled_caught)
    await settle(session)
    after = len(found)
    await anyio.sleep(QUIET_SECONDS)
    expect("reports after the cancellation", len(found) - after, 0)
    await host_was_heard(session, "test_slow was stopped")


async def read_resources(session: Session, _host: Host) -> None:
    """Resources are listed and read: texts, bytes, and those of a template."""
    listed = {resource["uri"] for resource in await session.list_resources()}
    there = {FACTS.static_text_uri, FACTS.static_binary_uri, FACTS.watched_uri}
    expect("resources", listed & there, there)
    templates = [item["uriTemplate"] for item in await session.list_resource_templates()]
    expect("templates", templates, [FACTS.template])
    (text,) = await session.read_resource(FACTS.static_text_uri)
    expect("text", (text["uri"], text["text"]), (FACTS.static_text_uri, FACTS.static_text))
    (binary,) = await session.read_resource(FACTS.static_binary_uri)
    expect_image(binary, "blob")
    (data,) = await session.read_resource(FACTS.template.replace("{id}", "123"))
    expected = json.loads(json.dumps(FACTS.template_data).replace("{id}", "123"))
    expect("data", json.loads(data["text"]), expected)
    # The TypeScript SDK 2 never says it by the code of sessions.
    codes = [FACTS.invalid_params]
    codes += [FACTS.resource_not_found] if has(session.protocol_version, "sessions") else []
    await expect_rejection("no resource", session.read_resource("test://nothing"), *codes)


async def watch_a_resource(session: Session, host: Host) -> None:
    """Updates come from the subscription to its end."""
    async with session.watching(FACTS.watched_uri):
        text_of(await session.call_tool("test_update_watched_resource"))
        await host.wait_for(functools.partial(host.has_heard, UPDATED))
        expect("updates", host.count(UPDATED), 1)
        expect("update", dict(host.heard)[UPDATED]["uri"], FACTS.watched_uri)
    text_of(await session.call_tool("test_update_watched_resource"))
    await settle(session)
    await anyio.sleep(QUIET_SECONDS)
    expect("updates after the subscription", host.count(UPDATED), 1)


async def hear_of_changes(session: Session, host: Host) -> None:
    """A list that changes is announced, and then holds what is new."""
    async with session.hearing_changes():
        for kind, extra, items in (
            ("tool", FACTS.extra_tool, session.list_tools),
            ("prompt", FACTS.extra_prompt, session.list_prompts),
            ("resource", FACTS.extra_resource_uri, session.list_resources),
        ):
            changed = f"notifications/{kind}s/list_changed"
            text_of(await session.call_tool(f"test_trigger_{kind}_change"))
            await host.wait_for(functools.partial(host.has_heard, changed))
            expect(changed, host.count(changed), 1)
            names = [item.get("uri", item["name"]) for item in await items()]
            expect_that(f"{extra} has come", extra in names)


async def get_prompts(session: Session, _host: Host) -> None:
    """Prompts are listed and filled in."""
    listed = {prompt["name"]: prompt for prompt in await session.list_prompts()}
    arguments = listed["test_prompt_with_arguments"]["arguments"]
    needed = [(argument["name"], argument["required"]) for argument in arguments]
    expect("arguments", needed, [("arg1", True), ("arg2", True)])
    (simple,) = await session.get_prompt("test_simple_prompt")
    expect("role", simple["role"], "user")
    expect("text", simple["content"]["text"], FACTS.simple_prompt)
    given = {"arg1": "hello", "arg2": "wörld"}
    (filled,) = await session.get_prompt("test_prompt_with_arguments", given)
    expect("text", filled["content"]["text"], FACTS.prompt_with_arguments.format(**given))
    await get_rich_prompts(session)
    for what, request in (
        ("no prompt", session.get_prompt("no_prompt")),
        ("no argument", session.get_prompt("test_prompt_with_arguments", {"arg1": "alone"})),
    ):
        await expect_rejection(what, request, FACTS.invalid_params)


async def get_rich_prompts(session: Session) -> None:
    """Prompts hold resources and images, too."""
    uri = {"resourceUri": "test://given"}
    embedded, text = await session.get_prompt("test_prompt_with_embedded_resource", uri)
    expect("URI", embedded["content"]["resource"]["uri"], "test://given")
    expect("embedded", embedded["content"]["resource"]["text"], FACTS.prompt_resource_text)
    expect("text", text["content"]["text"], FACTS.prompt_resource_request)
    image, text = await session.get_prompt("test_prompt_with_image")
    expect_image(image["content"])
    expect("text", text["content"]["text"], FACTS.prompt_image_request)


async def complete(session: Session, _host: Host) -> None:
    """Arguments of prompts and of templates are completed."""
    prompt = {"type": "ref/prompt", "name": "test_prompt_with_arguments"}
    words = ["paris", "park", "party"]
    expect("words", await session.complete(prompt, "arg1", "par"), words)
    template = {"type": "ref/resource", "uri": FACTS.template}
    ids = ["99", *(str(number) for number in range(990, 1_000))]
    expect("ids", await session.complete(template, "id", "99"), ids)


async def complete_in_context(session: Session, _host: Host) -> None:
    """What was chosen before bears on what is offered next."""
    prompt = {"type": "ref/prompt", "name": "test_prompt_with_arguments"}
    words = await session.complete(prompt, "arg2", "par", {"arg1": "park"})
    expect("words beside another", words, ["paris", "party"])


async def be_heard(session: Session, host: Host) -> None:
    """What the client told the server has arrived there, and nothing came that it did not know."""
    if has(session.protocol_version, "sessions"):
        for method in ("initialized", "progress", "roots/list_changed"):
            await host_was_heard(session, f"notifications/{method}")
    expect("faults", host.faults, [])


async def host_was_heard(session: Session, what: str) -> None:
    """The server has heard it, if it is one that tells."""
    if any(tool["name"] == "test_heard" for tool in await session.list_tools()):
        heard = json.loads(text_of(await session.call_tool("test_heard")))
        expect_that(f"{what} in {heard}", what in heard)


Chapter: TypeAlias = Callable[[Session, Host], Awaitable[None]]

# Each with what the revision has to have for it.
STORY: Final[tuple[tuple[Chapter, str | None], ...]] = (
    (shake_hands, None),
    (list_the_tools, None),
    (call_tools, None),
    (listen_to_audio, "audio"),
    (call_for_structure, "structure"),
    (follow_a_link, "links"),
    (log, None),
    (report_progress, None),
    (cancel, None),
    (server_requests.sample, None),
    (server_requests.sample_with_progress, "sessions"),
    (server_requests.give_up_sampling, "sessions"),
    (server_requests.sample_with_tools, "model_tools"),
    (server_requests.list_the_roots, None),
    (server_requests.be_pinged, "sessions"),
    (server_requests.elicit, "elicitation"),
    (server_requests.elicit_with_defaults, "choices"),
    (server_requests.elicit_choices, "choices"),
    (server_requests.elicit_by_url, "urls"),
    (server_requests.be_sent_to_a_url, "url_errors"),
    (server_requests.answer_several, "elicitation"),
    (server_requests.answer_in_turn, "elicitation"),
    (server_requests.answer_a_prompt, "rounds"),
    (server_requests.answer_a_resource, "rounds"),
    (read_resources, None),
    (watch_a_resource, None),
    (hear_of_changes, None),
    (get_prompts, None),
    (complete, None),
    (complete_in_context, "completion_context"),
    (be_heard, None),
)


async def tell(session: Session, host: Host, protocol_version: str) -> None:
    """The whole story, in a session that is at that revision.

    Raises:
        Unexpected: In which chapter, and what.
        TimeoutError: It took too long.
    """
    expect("protocol version", session.protocol_version, protocol_version)
    with anyio.fail_after(STORY_SECONDS):
        for chapter, feature in STORY:
            if feature is not None and not has(protocol_version, feature):
                continue
            try:
                await chapter(session, host)
            except (Unexpected, Rejected) as error:
                raise Unexpected(f"{chapter.__name__}: {error}") from error
    print(f"{checks()} checks")


async def greet(session: Session) -> None:
    """Make one call, and say at which revision that was.

    Raises:
        Unexpected: It is not answered as it should be.
    """
    with anyio.fail_after(STORY_SECONDS):
        expect("text", text_of(await session.call_tool("test_simple_text")), FACTS.simple_text)
    print(f"at {session.protocol_version}")
