"""Tools of the "everything" server on the Python SDKs that send requests to the client."""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

import anyio
from caller import Caller, Question, for_roots, to_model, to_user
from content import text
from facts import FACTS, has
from parties import ELICITED, Json, Rejected

PATIENCE_SECONDS: Final = 0.3

STRING: Final[Json] = {"type": "string"}
ELICITATION_ID: Final = "sign-in-1"


class ToolFailed(Exception):  # noqa: N818  the specification's word
    """The tool answers that it failed."""


async def ask(caller: Caller, question: Question) -> Json:
    """The answer to one question."""
    answers = await caller.ask({question.method.rpartition("/")[0]: question})
    answer: Json
    (answer,) = answers.values()
    return answer


def model_said(answer: Json) -> list[Json]:
    """What a model has answered."""
    content = answer["content"]
    block = content[0] if isinstance(content, list) else content
    return [text(FACTS.model_said + block["text"])]


def user_said(answer: Json) -> list[Json]:
    """What a user has answered."""
    said = {"action": answer["action"], "content": answer.get("content")}
    return [text(FACTS.user_said + json.dumps(said))]


async def sampling(arguments: Json, caller: Caller) -> list[Json]:
    """Ask the client's model."""
    return model_said(await ask(caller, to_model(arguments["prompt"])))


async def sampling_with_progress(arguments: Json, caller: Caller) -> list[Json]:
    """Ask the client's model, and log what it reports meanwhile."""

    async def report(progress: float, total: float | None) -> None:
        await caller.log("info", {"progress": progress, "total": total})

    return model_said(await caller.request(to_model(arguments["prompt"]), report))


async def cancelled_sampling(_arguments: Json, caller: Caller) -> list[Json]:
    """Ask the client's model, and give up."""
    with anyio.move_on_after(PATIENCE_SECONDS):
        await caller.request(to_model("Take your time."))
        raise ToolFailed("the model answered before anybody gave up")
    return [text("gave up")]


async def sampling_with_tools(_arguments: Json, caller: Caller) -> list[Json]:
    """Ask the client's model, lend it a tool, and tell it what came of that."""
    prompt = "How warm is it in Oslo?"
    tools = {"tools": [FACTS.weather_tool]}
    first = to_model(prompt, **tools, toolChoice={"mode": "auto"})
    use = (await caller.ask({"first": first}))["first"]["content"]
    use = use[0] if isinstance(use, list) else use
    outcome = {"type": "tool_result", "toolUseId": use["id"], "content": [text(FACTS.weather)]}
    second = to_model(prompt, **tools)
    second.params["messages"] += [
        {"role": "assistant", "content": use},
        {"role": "user", "content": outcome},
    ]
    return model_said((await caller.ask({"second": second}))["second"])


async def list_roots(_arguments: Json, caller: Caller) -> list[Json]:
    """Ask the client for its roots."""
    roots = (await ask(caller, for_roots()))["roots"]
    return [text("\n".join(root["uri"] for root in roots))]


async def ping(_arguments: Json, caller: Caller) -> list[Json]:
    """Ping the client."""
    await caller.request(Question("ping", {}))
    return [text("pong")]


async def elicitation(arguments: Json, caller: Caller) -> list[Json]:
    """Ask the client's user."""
    fields = dict.fromkeys(FACTS.form, STRING)
    return user_said(await ask(caller, to_user(arguments["message"], **fields)))


async def elicitation_with_defaults(_arguments: Json, caller: Caller) -> list[Json]:
    """Ask the client's user, with a form that is filled in before."""
    return user_said(await ask(caller, to_user("Who are you?", **DEFAULTS)))


async def elicitation_of_choices(_arguments: Json, caller: Caller) -> list[Json]:
    """Let the client's user choose."""
    return user_said(await ask(caller, to_user("Choose.", **CHOICES)))


async def elicitation_by_url(_arguments: Json, caller: Caller) -> list[Json]:
    """Send the client's user to a page, and tell when that is done."""
    params = {"mode": "url", "message": "Sign in.", "url": FACTS.url}
    is_session = has(caller.protocol_version, "url_errors")
    identity = {"elicitationId": ELICITATION_ID} if is_session else {}
    answer = await ask(caller, Question("elicitation/create", {**params, **identity}))
    if is_session:
        await caller.notify(ELICITED, identity)
    return user_said(answer)


async def url_required(_arguments: Json, _caller: Caller) -> list[Json]:
    """Refuse, and say on which page the user has to be first."""
    page = {"mode": "url", "message": "Sign in.", "url": FACTS.url}
    data = {"elicitations": [{**page, "elicitationId": ELICITATION_ID}]}
    raise Rejected(FACTS.url_required, "Sign in first", data)


async def several(_arguments: Json, caller: Caller) -> list[Json]:
    """Ask three things at once."""
    answers = await caller.ask(
        {
            "user_name": to_user("What is your name?", name=STRING),
            "greeting": to_model("Generate a greeting"),
            "client_roots": for_roots(),
        }
    )
    name, greeting = answers["user_name"]["content"]["name"], answers["greeting"]["content"]
    roots = [root["uri"] for root in answers["client_roots"]["roots"]]
    return [text(" ".join([greeting["text"], f"{name}:", *roots]))]


async def in_turn(_arguments: Json, caller: Caller) -> list[Json]:
    """Ask one thing, and then another."""
    first = await caller.ask({"step1": to_user("What is your name?", name=STRING)})
    second = await caller.ask({"step2": to_user("Your favourite colour?", color=STRING)})
    name, colour = first["step1"]["content"]["name"], second["step2"]["content"]["color"]
    return [text(f"{name} likes {colour}")]


async def context_of(caller: Caller) -> str:
    """The text of a prompt, or of a resource, that asks."""
    question = to_user("What context should the prompt use?", context=STRING)
    answer = (await caller.ask({"user_context": question}))["user_context"]
    return f"Context: {answer['content']['context']}"


# Forms.

DEFAULTS: Final[Mapping[str, Json]] = {
    name: {**schema, "default": FACTS.defaults[name]}
    for name, schema in {
        "name": STRING,
        "age": {"type": "integer"},
        "score": {"type": "number"},
        "status": {"type": "string", "enum": FACTS.statuses},
        "verified": {"type": "boolean"},
    }.items()
}

_TITLED: Final = [{"const": const, "title": title} for const, title in FACTS.titled_options]

CHOICES: Final[Mapping[str, Json]] = {
    "untitledSingle": {"type": "string", "enum": FACTS.options},
    "titledSingle": {"type": "string", "oneOf": _TITLED},
    "legacyEnum": {"type": "string", **FACTS.named_options},
    "untitledMulti": {"type": "array", "items": {"type": "string", "enum": FACTS.options}},
    "titledMulti": {"type": "array", "items": {"anyOf": _TITLED}},
}

# What there is.

AskingTool: TypeAlias = Callable[[Json, Caller], Awaitable[list[Json]]]

NO_ARGUMENTS: Final[Json] = {"type": "object", "properties": {}}
PROMPT: Final[Json] = {
    "type": "object",
    "properties": {"prompt": {"type": "string"}},
    "required": ["prompt"],
}
MESSAGE: Final[Json] = {
    "type": "object",
    "properties": {"message": {"type": "string"}},
    "required": ["message"],
}

ASKING_TOOLS: Final[Mapping[str, tuple[AskingTool, Mapping[str, Any]]]] = {
    "test_sampling": (sampling, PROMPT),
    "test_sampling_with_progress": (sampling_with_progress, PROMPT),
    "test_cancelled_sampling": (cancelled_sampling, NO_ARGUMENTS),
    "test_sampling_with_tools": (sampling_with_tools, NO_ARGUMENTS),
    "test_list_roots": (list_roots, NO_ARGUMENTS),
    "test_ping": (ping, NO_ARGUMENTS),
    "test_elicitation": (elicitation, MESSAGE),
    "test_elicitation_sep1034_defaults": (elicitation_with_defaults, NO_ARGUMENTS),
    "test_elicitation_sep1330_enums": (elicitation_of_choices, NO_ARGUMENTS),
    "test_elicitation_url": (elicitation_by_url, NO_ARGUMENTS),
    "test_url_required": (url_required, NO_ARGUMENTS),
    "test_input_required_result_multiple_inputs": (several, NO_ARGUMENTS),
    "test_input_required_result_multi_round": (in_turn, NO_ARGUMENTS),
}
