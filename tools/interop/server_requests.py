"""The part of the scenario in which the server sends requests to the client.

How the questions travel is the revision's affair: as requests of the server, or as results that
ask for more. They are the same questions, with the same answers.
"""

import json
from collections.abc import Awaitable
from typing import Any

from checks import expect, expect_rejection, expect_that, text_of
from facts import FACTS, has
from parties import ELICITED, Host, Json, Ponders, Rejected, Session, rejects, reports, says


async def sample(session: Session, host: Host) -> None:
    """The server asks the client's model, hears of its progress, and takes no for an answer."""
    host.model = says("Blue.")
    said = text_of(await session.call_tool("test_sampling", {"prompt": "Which colour?"}))
    expect("the model's answer", said, FACTS.model_said + "Blue.")
    question = host.asked[-1]
    content = {"role": "user", "content": {"type": "text", "text": "Which colour?"}}
    expect("question", question["messages"], [content])
    expect("maxTokens", question["maxTokens"], FACTS.max_tokens)
    host.model = rejects
    expect_that("refused", await has_failed(session.call_tool("test_sampling", {"prompt": "?"})))


async def has_failed(call: Awaitable[Json]) -> bool:
    """Whether a tool failed, one way or the other."""
    try:
        return bool((await call).get("isError"))
    except Rejected:
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
        if has(session.protocol_version, "sessions"):
            await session.roots_changed()
        told = text_of(await session.call_tool("test_list_roots"))
        expect("roots", told.splitlines(), roots)


async def be_pinged(session: Session, _host: Host) -> None:
    """The server asks for a sign of life."""
    text_of(await session.call_tool("test_ping"))


async def sample_with_tools(session: Session, host: Host) -> None:
    """The model wants a tool of the server's, is told what came of it, and then answers."""
    host.model = says("It is cold.")
    before = len(host.asked)
    said = text_of(await session.call_tool("test_sampling_with_tools"))
    expect("the model's answer", said, FACTS.model_said + "It is cold.")
    first, second = host.asked[before:]
    expect("tools", [tool["name"] for tool in first["tools"]], [FACTS.weather_tool["name"]])
    outcome = second["messages"][-1]["content"]
    outcome = outcome[0] if isinstance(outcome, list) else outcome
    expect("the tool's result", outcome["content"][0]["text"], FACTS.weather)


async def elicit(session: Session, host: Host) -> None:
    """The user fills in a form, or declines, or turns away."""
    for answer in (
        {"action": "accept", "content": FACTS.form},
        {"action": "decline"},
        {"action": "cancel"},
    ):
        host.user = answer
        told = await session.call_tool("test_elicitation", {"message": "Who are you?"})
        expect("the user's answer", said_in(told), answer)
        question = host.elicited[-1]
        expect("message", question["message"], "Who are you?")
        expect("form", question["requestedSchema"]["properties"].keys(), FACTS.form.keys())


def said_in(result: Json) -> Any:
    """What the user said, as a tool tells it; what is null was not said."""
    said = json.loads(text_of(result).removeprefix(FACTS.user_said))
    return {member: value for member, value in said.items() if value is not None}


async def elicit_with_defaults(session: Session, host: Host) -> None:
    """A form is filled in before, and the user changes some of it."""
    # The published JSON Schemas know of no answers that are fractions, though the text does.
    content = {**FACTS.defaults, "name": "Ada", "score": 90, "status": "pending"}
    host.user = {"action": "accept", "content": content}
    told = said_in(await session.call_tool("test_elicitation_sep1034_defaults"))
    expect("the user's answer", told["content"], content)
    form = host.elicited[-1]["requestedSchema"]["properties"]
    expect("defaults", {name: form[name]["default"] for name in form}, FACTS.defaults)
    expect("statuses", form["status"]["enum"], FACTS.statuses)


async def elicit_choices(session: Session, host: Host) -> None:
    """The user chooses one or several, of names or of titles."""
    host.user = {"action": "accept", "content": FACTS.chosen}
    told = said_in(await session.call_tool("test_elicitation_sep1330_enums"))
    expect("the user's answer", told["content"], FACTS.chosen)
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
    """The user is shown a page, and the client hears when it has served its purpose."""
    host.user = {"action": "accept"}
    told = said_in(await session.call_tool("test_elicitation_url"))
    expect("the user's answer", told, {"action": "accept"})
    question = host.elicited[-1]
    expect("question", (question["mode"], question["url"]), ("url", FACTS.url))
    if has(session.protocol_version, "url_errors"):
        await host.wait_for(lambda: host.has_heard(ELICITED))
        expect("completed", dict(host.heard)[ELICITED]["elicitationId"], question["elicitationId"])


async def be_sent_to_a_url(session: Session, _host: Host) -> None:
    """A call is refused until the user has been on a page."""
    call = session.call_tool("test_url_required")
    await expect_rejection("a URL is required", call, FACTS.url_required)


async def answer_several(session: Session, host: Host) -> None:
    """The server asks three things at once."""
    host.user = {"action": "accept", "content": {"name": "Ada"}}
    host.model = says("Hello")
    told = await session.call_tool("test_input_required_result_multiple_inputs")
    expect("answers", text_of(told), " ".join(["Hello", "Ada:", *host.roots]))


async def answer_in_turn(session: Session, host: Host) -> None:
    """The server asks a second question when it has heard the answer to the first."""
    host.user = {"action": "accept", "content": {"name": "Ada", "color": "green"}}
    before = len(host.elicited)
    told = text_of(await session.call_tool("test_input_required_result_multi_round"))
    expect("answers", told, "Ada likes green")
    expect("questions", len(host.elicited) - before, 2)


async def answer_a_prompt(session: Session, host: Host) -> None:
    """A prompt asks before it is given."""
    host.user = {"action": "accept", "content": {"context": "the sea"}}
    (message,) = await session.get_prompt(FACTS.asking_prompt)
    expect("text", message["content"]["text"], "Context: the sea")


async def answer_a_resource(session: Session, host: Host) -> None:
    """A resource asks before it is read."""
    host.user = {"action": "accept", "content": {"context": "the sea"}}
    (contents,) = await session.read_resource(FACTS.asking_uri)
    expect("text", contents["text"], "Context: the sea")
