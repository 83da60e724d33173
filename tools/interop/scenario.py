"""What a client does with an "everything" server, and what it has to get: one story for all.

Every Python client tells it, ours and those of the SDKs, each through an adapter that turns what
its SDK gives back into the words of the wire. Needs anyio, and nothing else that is installed.
"""

import functools
import json
from collections.abc import Awaitable, Callable
from typing import Final

import anyio
from checks import Unexpected, checks, expect, expect_image, expect_refusal, expect_that, text_of
from facts import FACTS
from parties import UPDATED, Host, Json, Ponders, Refused, Session, refuses, reports, says

STORY_SECONDS: Final = 60.0
QUIET_SECONDS: Final = 0.35


async def shake_hands(session: Session, _host: Host) -> None:
    """Both sides agree on the revision, and the server offers everything."""
    expect("revision", session.revision, FACTS.revision)
    offered = session.capabilities
    for kind in ("tools", "prompts", "resources"):
        expect_that(f"{kind}.listChanged", offered.get(kind, {}).get("listChanged"))
    expect_that("resources.subscribe", offered["resources"].get("subscribe"))
    expect_that("logging", "logging" in offered)
    await session.ping()


async def list_the_tools(session: Session, _host: Host) -> None:
    """Tools come with their schemas, which arrive unchanged."""
    tools = {tool["name"]: tool for tool in await session.list_tools()}
    expect_that("has test_simple_text", "test_simple_text" in tools)
    for name, tool in tools.items():
        expect(f"the schema of {name}", tool["inputSchema"]["type"], "object")
    expect("schema", tools["json_schema_2020_12_tool"]["inputSchema"], FACTS.contact_schema)


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
    await expect_refusal("no tool", session.call_tool("no_tool"), FACTS.invalid_params)


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
    await session.ping()
    expect("logged below the level", len(host.logged()), len(FACTS.logged))
    await session.set_level("debug")


async def report_progress(session: Session, host: Host) -> None:
    """Reports reach the call that they are about."""
    found: list[list[float | None]] = []

    def report(progress: float, total: float | None) -> None:
        found.append([progress, total])
        host.wake()

    text_of(await session.call_tool("test_tool_with_progress", report=report))
    await host.wait_for(lambda: len(found) >= len(FACTS.progress))
    expect("progress", found, FACTS.progress)


async def cancel(session: Session, _host: Host) -> None:
    """A call that is cancelled stops at the server, and the session goes on."""
    found: list[float] = []
    with anyio.CancelScope() as scope:

        def report(progress: float, _total: float | None) -> None:
            found.append(progress)
            if len(found) == 2:
                scope.cancel()

        await session.call_tool("test_slow", {"seconds": 5}, report=report)
    expect_that("cancelled", scope.cancelled_caught)
    await session.ping()
    after = len(found)
    await anyio.sleep(QUIET_SECONDS)
    expect("reports after the cancellation", len(found) - after, 0)
    await host_was_heard(session, "test_slow was stopped")


async def sample(session: Session, host: Host) -> None:
    """The server asks the client's model, hears of its progress, and takes no for an answer."""
    host.model = says("Blue.")
    said = text_of(await session.call_tool("test_sampling", {"prompt": "Which colour?"}))
    expect("the model's answer", said, FACTS.model_said + "Blue.")
    question = host.asked[-1]
    content = {"role": "user", "content": {"type": "text", "text": "Which colour?"}}
    expect("question", question["messages"], [content])
    expect("maxTokens", question["maxTokens"], FACTS.max_tokens)
    host.model = refuses
    expect_that("refused", await has_failed(session.call_tool("test_sampling", {"prompt": "?"})))


async def has_failed(call: Awaitable[Json]) -> bool:
    """Whether a tool failed, one way or the other."""
    try:
        return bool((await call).get("isError"))
    except Refused:
        return True


async def sample_with_progress(session: Session, host: Host) -> None:
    """The client reports on the server's request, which logs it."""
    host.model = reports
    before = len(host.logged())
    call = session.call_tool("test_sampling_with_progress", {"prompt": "How far?"})
    expect("the model's answer", text_of(await call), FACTS.model_said + "At last.")
    await host.wait_for(lambda: len(host.logged()) >= before + 3)
    told = [{"progress": step, "total": 3} for step in (1, 2, 3)]
    expect("reports", host.logged()[before:], told)


async def give_up_sampling(session: Session, host: Host) -> None:
    """The server cancels its question, and the model is no longer asked."""
    host.model = model = Ponders(host)
    text_of(await session.call_tool("test_cancelled_sampling"))
    if session.cancels_callbacks:
        await host.wait_for(lambda: model.is_cancelled)
        expect_that("the model was cancelled", model.is_cancelled)
    await session.ping()


async def list_the_roots(session: Session, host: Host) -> None:
    """The server asks for the roots, and again when they have changed."""
    for roots in (host.roots, ["file:///work/three"]):
        host.roots = roots
        await session.roots_changed()
        told = text_of(await session.call_tool("test_list_roots"))
        expect("roots", told.splitlines(), roots)


async def be_pinged(session: Session, _host: Host) -> None:
    """The server asks for a sign of life."""
    text_of(await session.call_tool("test_ping"))


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
    await expect_refusal(
        "no resource", session.read_resource("test://nothing"), FACTS.resource_not_found
    )


async def watch_a_resource(session: Session, host: Host) -> None:
    """Updates come from the subscription to its end."""
    await session.subscribe(FACTS.watched_uri)
    text_of(await session.call_tool("test_update_watched_resource"))
    await host.wait_for(functools.partial(host.has_heard, UPDATED))
    expect("updates", host.count(UPDATED), 1)
    expect("update", dict(host.heard)[UPDATED]["uri"], FACTS.watched_uri)
    await session.unsubscribe(FACTS.watched_uri)
    text_of(await session.call_tool("test_update_watched_resource"))
    await session.ping()
    await anyio.sleep(QUIET_SECONDS)
    expect("updates after the subscription", host.count(UPDATED), 1)


async def hear_of_changes(session: Session, host: Host) -> None:
    """A list that changes is announced, and then holds what is new."""
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
        await expect_refusal(what, request, FACTS.invalid_params)


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


async def be_heard(session: Session, host: Host) -> None:
    """What the client told the server has arrived there, and nothing came that it did not know."""
    for method in ("initialized", "progress", "roots/list_changed"):
        await host_was_heard(session, f"notifications/{method}")
    expect("faults", host.faults, [])


async def host_was_heard(session: Session, what: str) -> None:
    """The server has heard it, if it is one that tells."""
    if any(tool["name"] == "test_heard" for tool in await session.list_tools()):
        heard = json.loads(text_of(await session.call_tool("test_heard")))
        expect_that(f"{what} in {heard}", what in heard)


STORY: Final[tuple[Callable[[Session, Host], Awaitable[None]], ...]] = (
    shake_hands,
    list_the_tools,
    call_tools,
    log,
    report_progress,
    cancel,
    sample,
    sample_with_progress,
    give_up_sampling,
    list_the_roots,
    be_pinged,
    read_resources,
    watch_a_resource,
    hear_of_changes,
    get_prompts,
    complete,
    be_heard,
)


async def tell(session: Session, host: Host) -> None:
    """The whole story.

    Raises:
        Unexpected: In which chapter, and what.
        TimeoutError: It took too long.
    """
    with anyio.fail_after(STORY_SECONDS):
        for chapter in STORY:
            try:
                await chapter(session, host)
            except (Unexpected, Refused) as error:
                raise Unexpected(f"{chapter.__name__}: {error}") from error
    print(f"{checks()} checks")
