"""The scenario that every Python client runs with an "everything" server.

It uses every method and feature of the protocol version, and checks each result. Each client runs
it
through the adapter of its SDK, see `sdk_adapter.py`. Whether the server's questions travel as
requests
or in `input_required` results depends on the protocol version; questions and answers are the same.
"""

import functools
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

import anyio
from facts import FACTS, has
from sdk_adapter import (
    ELICITED,
    UPDATED,
    Host,
    Json,
    Rejected,
    Report,
    Session,
    SlowModel,
    Unexpected,
    answers_with,
    checks,
    expect,
    expect_image,
    expect_rejection,
    expect_that,
    rejects,
    text_of,
)


async def sample(session: Session, host: Host) -> None:
    """The server requests sampling, and gets an answer, then a rejection."""
    host.model = answers_with("Blue.")
    answer = text_of(await session.call_tool("test_sampling", {"prompt": "Which colour?"}))
    expect("the model's answer", answer, FACTS.model_answer + "Blue.")
    question = host.sampling_requests[-1]
    content = {"role": "user", "content": {"type": "text", "text": "Which colour?"}}
    expect("question", question["messages"], [content])
    expect("maxTokens", question["maxTokens"], FACTS.max_tokens)
    host.model = rejects
    expect_that("rejected", await has_failed(session.call_tool("test_sampling", {"prompt": "?"})))


async def has_failed(call: Awaitable[Json]) -> bool:
    """Return whether the tool failed, by an error result or a JSON-RPC error."""
    try:
        return bool((await call).get("isError"))
    except Rejected:
        return True


async def sample_with_progress(session: Session, host: Host) -> None:
    """The client reports progress on sampling; the server logs the reports."""
    before = len(host.logged())

    async def model(_prompt: str, report: Report) -> str:
        for step in (1, 2, 3):
            await report(step, 3)
            # The TypeScript SDK loses a report that arrives with the answer (typescript-sdk#2580).
            await host.wait_for(lambda: len(host.logged()) >= before + step)  # noqa: B023 - awaited
        return "At last."

    host.model = model
    call = session.call_tool("test_sampling_with_progress", {"prompt": "How far?"})
    expect("the model's answer", text_of(await call), FACTS.model_answer + "At last.")
    result = [{"progress": step, "total": 3} for step in (1, 2, 3)]
    expect("reports", host.logged()[before:], result)


async def cancel_sampling(session: Session, host: Host) -> None:
    """The server cancels its sampling request, which cancels the model."""
    host.model = model = SlowModel(host)
    text_of(await session.call_tool("test_cancelled_sampling"))
    if session.cancels_callbacks:
        await host.wait_for(lambda: model.is_cancelled)
        expect_that("the model was cancelled", model.is_cancelled)
    await session.ping()


async def list_the_roots(session: Session, host: Host) -> None:
    """The server lists the roots, before and after they change."""
    for roots in (host.roots, ["file:///work/three"]):
        host.roots = roots
        if has(session.protocol_version, "sessions"):
            await session.roots_changed()
        result = text_of(await session.call_tool("test_list_roots"))
        expect("roots", result.splitlines(), roots)


async def answer_ping(session: Session, _host: Host) -> None:
    text_of(await session.call_tool("test_ping"))


async def sample_with_tools(session: Session, host: Host) -> None:
    """The model requests a tool, receives the tool's result, and then answers."""
    host.model = answers_with("It is cold.")
    before = len(host.sampling_requests)
    answer = text_of(await session.call_tool("test_sampling_with_tools"))
    expect("the model's answer", answer, FACTS.model_answer + "It is cold.")
    first, second = host.sampling_requests[before:]
    expect("tools", [tool["name"] for tool in first["tools"]], [FACTS.weather_tool["name"]])
    outcome = second["messages"][-1]["content"]
    outcome = outcome[0] if isinstance(outcome, list) else outcome
    expect("the tool's result", outcome["content"][0]["text"], FACTS.weather)


async def elicit(session: Session, host: Host) -> None:
    """The user fills in a form, declines, and cancels."""
    for answer in (
        {"action": "accept", "content": FACTS.form},
        {"action": "decline"},
        {"action": "cancel"},
    ):
        host.user = answer
        result = await session.call_tool("test_elicitation", {"message": "Who are you?"})
        expect("the user's answer", user_answer_in(result), answer)
        question = host.elicited[-1]
        expect("message", question["message"], "Who are you?")
        expect("form", question["requestedSchema"]["properties"].keys(), FACTS.form.keys())


def user_answer_in(result: Json) -> Any:
    """Return the user's answer from a tool's text, without null members."""
    answer = json.loads(text_of(result).removeprefix(FACTS.user_answer))
    return {member: value for member, value in answer.items() if value is not None}


async def elicit_with_defaults(session: Session, host: Host) -> None:
    """A form has default values, of which the user changes some."""
    # The published JSON Schemas know of no answers that are fractions, though the text does.
    content = {**FACTS.defaults, "name": "Ada", "score": 90, "status": "pending"}
    host.user = {"action": "accept", "content": content}
    result = user_answer_in(await session.call_tool("test_elicitation_sep1034_defaults"))
    expect("the user's answer", result["content"], content)
    form = host.elicited[-1]["requestedSchema"]["properties"]
    expect("defaults", {name: form[name]["default"] for name in form}, FACTS.defaults)
    expect("statuses", form["status"]["enum"], FACTS.statuses)


async def elicit_choices(session: Session, host: Host) -> None:
    """The user chooses one or several values, with and without titles."""
    host.user = {"action": "accept", "content": FACTS.chosen}
    result = user_answer_in(await session.call_tool("test_elicitation_sep1330_enums"))
    expect("the user's answer", result["content"], FACTS.chosen)
    form = host.elicited[-1]["requestedSchema"]["properties"]
    expect("one name", form["untitledSingle"]["enum"], FACTS.options)
    expect("names", form["untitledMulti"]["items"]["enum"], FACTS.options)
    for what, titled in (
        ("one title", form["titledSingle"]["oneOf"]),
        ("titles", form["titledMulti"]["items"]["anyOf"]),
    ):
        found = [[option["const"], option["title"]] for option in titled]
        expect(what, found, FACTS.titled_options)


async def elicit_by_url(session: Session, host: Host) -> None:
    """The user visits a URL, and the server notifies the client of the completion."""
    host.user = {"action": "accept"}
    result = user_answer_in(await session.call_tool("test_elicitation_url"))
    expect("the user's answer", result, {"action": "accept"})
    question = host.elicited[-1]
    expect("question", (question["mode"], question["url"]), ("url", FACTS.url))
    if has(session.protocol_version, "url_errors"):
        await host.wait_for(lambda: host.has_received(ELICITED))
        expect(
            "completed",
            dict(host.notifications)[ELICITED]["elicitationId"],
            question["elicitationId"],
        )


async def require_a_url(session: Session, _host: Host) -> None:
    """A call fails until the user has visited a URL."""
    call = session.call_tool("test_url_required")
    await expect_rejection("a URL is required", call, FACTS.url_required)


async def answer_several(session: Session, host: Host) -> None:
    """The server sends three requests at once."""
    host.user = {"action": "accept", "content": {"name": "Ada"}}
    host.model = answers_with("Hello")
    result = await session.call_tool("test_input_required_result_multiple_inputs")
    expect("answers", text_of(result), " ".join(["Hello", "Ada:", *host.roots]))


async def answer_in_turn(session: Session, host: Host) -> None:
    """The server sends a second request after the first answer."""
    host.user = {"action": "accept", "content": {"name": "Ada", "color": "green"}}
    before = len(host.elicited)
    result = text_of(await session.call_tool("test_input_required_result_multi_round"))
    expect("answers", result, "Ada likes green")
    expect("questions", len(host.elicited) - before, 2)


async def answer_a_prompt(session: Session, host: Host) -> None:
    """A prompt requests input."""
    host.user = {"action": "accept", "content": {"context": "the sea"}}
    (message,) = await session.get_prompt(FACTS.asking_prompt)
    expect("text", message["content"]["text"], "Context: the sea")


async def answer_a_resource(session: Session, host: Host) -> None:
    """A resource requests input."""
    host.user = {"action": "accept", "content": {"context": "the sea"}}
    (contents,) = await session.read_resource(FACTS.asking_uri)
    expect("text", contents["text"], "Context: the sea")


SCENARIO_SECONDS: Final = 60.0
QUIET_SECONDS: Final = 0.35


async def check_capabilities(session: Session, _host: Host) -> None:
    """The server offers every capability of the protocol version."""
    offered = session.capabilities
    for kind in ("tools", "prompts", "resources"):
        expect_that(f"{kind}.listChanged", offered.get(kind, {}).get("listChanged"))
    expect_that("resources.subscribe", offered["resources"].get("subscribe"))
    expect_that("logging", "logging" in offered)
    if has(session.protocol_version, "completions"):
        expect_that("completions", "completions" in offered)
    await settle(session)


async def settle(session: Session) -> None:
    """Make a request, so that all earlier notifications have arrived."""
    if has(session.protocol_version, "sessions"):
        await session.ping()
    else:
        await session.list_resource_templates()


async def list_the_tools(session: Session, _host: Host) -> None:
    """Tools are listed with unchanged schemas, annotations, titles and icons."""
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
    """Each kind of content arrives unchanged; a tool's failure is a result."""
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


async def call_audio_tool(session: Session, _host: Host) -> None:
    (part,) = (await session.call_tool("test_audio_content"))["content"]
    expect("audio", part, {"type": "audio", "data": FACTS.wav, "mimeType": "audio/wav"})


async def call_structured_tool(session: Session, _host: Host) -> None:
    """A tool has an output schema, and returns structured content with a text copy."""
    tools = {tool["name"]: tool for tool in await session.list_tools()}
    schema = tools["test_structured_content"]["outputSchema"]
    described = FACTS.structured_schema
    expect("outputSchema", schema["properties"].keys(), described["properties"].keys())
    expect("required", sorted(schema["required"]), sorted(described["required"]))
    result = await session.call_tool("test_structured_content", {"city": "Oslo"})
    expect("structuredContent", result["structuredContent"], FACTS.structured)
    expect("mirror", json.loads(text_of(result)), FACTS.structured)


async def follow_a_link(session: Session, _host: Host) -> None:
    """A resource link of a tool can be read."""
    (link,) = (await session.call_tool("test_resource_link"))["content"]
    expect("link", (link["type"], link["uri"]), ("resource_link", FACTS.static_text_uri))
    (text,) = await session.read_resource(link["uri"])
    expect("text", text["text"], FACTS.static_text)


async def call_mixed(session: Session) -> None:
    mixed = (await session.call_tool("test_multiple_content_types"))["content"]
    expect("kinds", [part["type"] for part in mixed], ["text", "image", "resource"])
    expect("text", mixed[0]["text"], FACTS.mixed_text)
    expect_image(mixed[1])
    expect("JSON", json.loads(mixed[2]["resource"]["text"]), FACTS.mixed_json)


async def log(session: Session, host: Host) -> None:
    """Log messages arrive in order, and none below the level."""
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
    """Progress reports reach their call."""
    found: list[list[float | str | None]] = []

    def report(progress: float, total: float | None, message: str | None) -> None:
        found.append([progress, total, message])
        host.wake()

    text_of(await session.call_tool("test_tool_with_progress", report=report))
    await host.wait_for(lambda: len(found) >= len(FACTS.progress))
    has_messages = has(session.protocol_version, "progress_messages")
    result = [[*numbers, message if has_messages else None] for *numbers, message in FACTS.progress]
    expect("progress", found, result)


async def cancel(session: Session, _host: Host) -> None:
    """A cancelled call stops at the server, and the session continues."""
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
    await expect_server_received(session, "test_slow was stopped")


async def read_resources(session: Session, _host: Host) -> None:
    """Resources and templates are listed; text and binary contents are read."""
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
    # The TypeScript SDK 2 never uses the error code of legacy versions.
    codes = [FACTS.invalid_params]
    codes += [FACTS.resource_not_found] if has(session.protocol_version, "sessions") else []
    await expect_rejection("no resource", session.read_resource("test://nothing"), *codes)


async def watch_a_resource(session: Session, host: Host) -> None:
    """Updates arrive while subscribed, and not afterwards."""
    async with session.subscription(FACTS.watched_uri):
        text_of(await session.call_tool("test_update_watched_resource"))
        await host.wait_for(functools.partial(host.has_received, UPDATED))
        expect("updates", host.count(UPDATED), 1)
        expect("update", dict(host.notifications)[UPDATED]["uri"], FACTS.watched_uri)
    text_of(await session.call_tool("test_update_watched_resource"))
    await settle(session)
    await anyio.sleep(QUIET_SECONDS)
    expect("updates after the subscription", host.count(UPDATED), 1)


async def notice_list_changes(session: Session, host: Host) -> None:
    """A changed list is announced, and has the new item."""
    async with session.list_changes():
        for kind, extra, items in (
            ("tool", FACTS.extra_tool, session.list_tools),
            ("prompt", FACTS.extra_prompt, session.list_prompts),
            ("resource", FACTS.extra_resource_uri, session.list_resources),
        ):
            changed = f"notifications/{kind}s/list_changed"
            text_of(await session.call_tool(f"test_trigger_{kind}_change"))
            await host.wait_for(functools.partial(host.has_received, changed))
            expect(changed, host.count(changed), 1)
            names = [item.get("uri", item["name"]) for item in await items()]
            expect_that(f"{extra} has come", extra in names)


async def get_prompts(session: Session, _host: Host) -> None:
    """Prompts are listed and rendered; wrong arguments are rejected."""
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
    uri = {"resourceUri": "test://given"}
    embedded, text = await session.get_prompt("test_prompt_with_embedded_resource", uri)
    expect("URI", embedded["content"]["resource"]["uri"], "test://given")
    expect("embedded", embedded["content"]["resource"]["text"], FACTS.prompt_resource_text)
    expect("text", text["content"]["text"], FACTS.prompt_resource_request)
    image, text = await session.get_prompt("test_prompt_with_image")
    expect_image(image["content"])
    expect("text", text["content"]["text"], FACTS.prompt_image_request)


async def complete(session: Session, _host: Host) -> None:
    """Arguments of prompts and templates are completed."""
    prompt = {"type": "ref/prompt", "name": "test_prompt_with_arguments"}
    words = ["paris", "park", "party"]
    expect("words", await session.complete(prompt, "arg1", "par"), words)
    template = {"type": "ref/resource", "uri": FACTS.template}
    ids = ["99", *(str(number) for number in range(990, 1_000))]
    expect("ids", await session.complete(template, "id", "99"), ids)


async def complete_in_context(session: Session, _host: Host) -> None:
    """Completion takes the other arguments into account."""
    prompt = {"type": "ref/prompt", "name": "test_prompt_with_arguments"}
    words = await session.complete(prompt, "arg2", "par", {"arg1": "park"})
    expect("words beside another", words, ["paris", "party"])


async def check_received_notifications(session: Session, host: Host) -> None:
    """The server received the client's notifications; the SDK reported no errors."""
    if has(session.protocol_version, "sessions"):
        for method in ("initialized", "progress", "roots/list_changed"):
            await expect_server_received(session, f"notifications/{method}")
    expect("failures", host.failures, [])


async def expect_server_received(session: Session, what: str) -> None:
    """Check the server's list of received notifications, if it has the tool `test_received`."""
    if any(tool["name"] == "test_received" for tool in await session.list_tools()):
        notifications = json.loads(text_of(await session.call_tool("test_received")))
        expect_that(f"{what} in {notifications}", what in notifications)


ScenarioStep: TypeAlias = Callable[[Session, Host], Awaitable[None]]

# Each step, and the feature that the protocol version needs for it.
SCENARIO: Final[tuple[tuple[ScenarioStep, str | None], ...]] = (
    (check_capabilities, None),
    (list_the_tools, None),
    (call_tools, None),
    (call_audio_tool, "audio"),
    (call_structured_tool, "structure"),
    (follow_a_link, "links"),
    (log, None),
    (report_progress, None),
    (cancel, None),
    (sample, None),
    (sample_with_progress, "sessions"),
    (cancel_sampling, "sessions"),
    (sample_with_tools, "model_tools"),
    (list_the_roots, None),
    (answer_ping, "sessions"),
    (elicit, "elicitation"),
    (elicit_with_defaults, "choices"),
    (elicit_choices, "choices"),
    (elicit_by_url, "urls"),
    (require_a_url, "url_errors"),
    (answer_several, "elicitation"),
    (answer_in_turn, "elicitation"),
    (answer_a_prompt, "rounds"),
    (answer_a_resource, "rounds"),
    (read_resources, None),
    (watch_a_resource, None),
    (notice_list_changes, None),
    (get_prompts, None),
    (complete, None),
    (complete_in_context, "completion_context"),
    (check_received_notifications, None),
)


async def run(session: Session, host: Host, protocol_version: str) -> None:
    """Run all steps that the protocol version supports, and print how many checks were made."""
    expect("protocol version", session.protocol_version, protocol_version)
    with anyio.fail_after(SCENARIO_SECONDS):
        for step, feature in SCENARIO:
            if feature is not None and not has(protocol_version, feature):
                continue
            try:
                await step(session, host)
            except (Unexpected, Rejected) as error:
                raise Unexpected(f"{step.__name__}: {error}") from error
    print(f"{checks()} checks")


async def greet(session: Session) -> None:
    """Call one tool, and print the negotiated protocol version."""
    with anyio.fail_after(SCENARIO_SECONDS):
        expect("text", text_of(await session.call_tool("test_simple_text")), FACTS.simple_text)
    print(f"at {session.protocol_version}")
