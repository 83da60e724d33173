"""The "everything" server for the Python SDKs, as JSON; `python_*_server.py` connects it to an SDK.

It also lists what it received from the client, by the tool `test_received`: so the client can check
that
its notifications arrived, and that a cancelled call stopped.
"""

import functools
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias, get_args

import anyio
from caller import Caller, InputRequired, Question, for_roots, to_model, to_user
from facts import FACTS, has
from mcp import types  # type: ignore[import-not-found]  # in the environments of the SDKs only
from sdk_adapter import ELICITED, Json, Rejected


def text(of: str) -> Json:
    return {"type": "text", "text": of}


def image() -> Json:
    return {"type": "image", "data": FACTS.png, "mimeType": "image/png"}


def audio() -> Json:
    return {"type": "audio", "data": FACTS.wav, "mimeType": "audio/wav"}


def link() -> Json:
    return {"type": "resource_link", "uri": FACTS.static_text_uri, "name": "static-text"}


def resource(uri: str, mime_type: str, of: str) -> Json:
    return {"type": "resource", "resource": {"uri": uri, "mimeType": mime_type, "text": of}}


def prompt_message(content: Json) -> Json:
    return {"role": "user", "content": content}


CANCEL_AFTER_SECONDS: Final = 0.3

STRING: Final[Json] = {"type": "string"}
ELICITATION_ID: Final = "sign-in-1"


class ToolFailed(Exception):  # noqa: N818  the specification's word
    """A tool fails; the result has `isError`."""


async def ask(caller: Caller, question: Question) -> Json:
    """Request input from the client, and return the answer."""
    answers = await caller.ask({question.method.rpartition("/")[0]: question})
    answer: Json
    (answer,) = answers.values()
    return answer


def model_answer(answer: Json) -> list[Json]:
    content = answer["content"]
    block = content[0] if isinstance(content, list) else content
    return [text(FACTS.model_answer + block["text"])]


def user_answer(answer: Json) -> list[Json]:
    fields = {"action": answer["action"], "content": answer.get("content")}
    return [text(FACTS.user_answer + json.dumps(fields))]


async def sampling(arguments: Json, caller: Caller) -> list[Json]:
    """Request sampling from the client."""
    return model_answer(await ask(caller, to_model(arguments["prompt"])))


async def sampling_with_progress(arguments: Json, caller: Caller) -> list[Json]:
    """Request sampling, and log the reported progress."""

    async def report(progress: float, total: float | None) -> None:
        await caller.log("info", {"progress": progress, "total": total})

    return model_answer(await caller.request(to_model(arguments["prompt"]), report))


async def cancelled_sampling(_arguments: Json, caller: Caller) -> list[Json]:
    """Request sampling, and cancel that."""
    with anyio.move_on_after(CANCEL_AFTER_SECONDS):
        await caller.request(to_model("Take your time."))
        raise ToolFailed("the model answered before the cancellation")
    return [text("gave up")]


async def sampling_with_tools(_arguments: Json, caller: Caller) -> list[Json]:
    """Request sampling with a tool, and send the tool's result."""
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
    return model_answer((await caller.ask({"second": second}))["second"])


async def list_roots(_arguments: Json, caller: Caller) -> list[Json]:
    """Ask the client for its roots."""
    roots = (await ask(caller, for_roots()))["roots"]
    return [text("\n".join(root["uri"] for root in roots))]


async def ping(_arguments: Json, caller: Caller) -> list[Json]:
    """Ping the client."""
    await caller.request(Question("ping", {}))
    return [text("pong")]


async def elicitation(arguments: Json, caller: Caller) -> list[Json]:
    """Elicit a form from the user."""
    fields = dict.fromkeys(FACTS.form, STRING)
    return user_answer(await ask(caller, to_user(arguments["message"], **fields)))


async def elicitation_with_defaults(_arguments: Json, caller: Caller) -> list[Json]:
    """Elicit a form that has default values."""
    return user_answer(await ask(caller, to_user("Who are you?", **DEFAULTS)))


async def elicitation_of_choices(_arguments: Json, caller: Caller) -> list[Json]:
    """Elicit a form with choices."""
    return user_answer(await ask(caller, to_user("Choose.", **CHOICES)))


async def elicitation_by_url(_arguments: Json, caller: Caller) -> list[Json]:
    """Elicit by a URL, and notify the client of the completion."""
    params = {"mode": "url", "message": "Sign in.", "url": FACTS.url}
    is_session = has(caller.protocol_version, "url_errors")
    identity = {"elicitationId": ELICITATION_ID} if is_session else {}
    answer = await ask(caller, Question("elicitation/create", {**params, **identity}))
    if is_session:
        await caller.notify(ELICITED, identity)
    return user_answer(answer)


async def url_required(_arguments: Json, _caller: Caller) -> list[Json]:
    """Fail with the URL that the user has to visit first."""
    page = {"mode": "url", "message": "Sign in.", "url": FACTS.url}
    data = {"elicitations": [{**page, "elicitationId": ELICITATION_ID}]}
    raise Rejected(FACTS.url_required, "Sign in first", data)


async def several_requests(_arguments: Json, caller: Caller) -> list[Json]:
    """Request three inputs at once."""
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


async def requests_in_turn(_arguments: Json, caller: Caller) -> list[Json]:
    """Request one input, and then another."""
    first = await caller.ask({"step1": to_user("What is your name?", name=STRING)})
    second = await caller.ask({"step2": to_user("Your favourite colour?", color=STRING)})
    name, colour = first["step1"]["content"]["name"], second["step2"]["content"]["color"]
    return [text(f"{name} likes {colour}")]


async def context_of(caller: Caller) -> str:
    """Elicit the text of a prompt or a resource."""
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

# Tables of the tools, resources and prompts.

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
    "test_input_required_result_multiple_inputs": (several_requests, NO_ARGUMENTS),
    "test_input_required_result_multi_round": (requests_in_turn, NO_ARGUMENTS),
}


LEVELS: Final = get_args(types.LoggingLevel)
STEP_SECONDS: Final = 0.02
SLOW_STEP_SECONDS: Final = 0.1
IDS: Final = tuple(str(number) for number in range(1_000))


class Everything:
    """The server of one session."""

    def __init__(self) -> None:
        self.level = "debug"
        self.subscribed: set[str] = set()
        self.received: list[str] = []
        self.extras: set[str] = set()

    async def answer(self, method: str, params: Json, caller: Caller) -> Json:
        """Return the result of a request; raise `Rejected` for an error."""
        try:
            return await ANSWERS[method](self, params, caller)
        except InputRequired as questions:
            return questions.result()

    # Tools.

    async def list_tools(self, _params: Json, caller: Caller) -> Json:
        tools = [
            {
                "name": name,
                "description": tool.__doc__,
                "inputSchema": dict(schema),
                **described(name, caller.protocol_version),
            }
            for name, (tool, schema) in TOOLS.items()
        ]
        return {"tools": tools + self.extra("tools", EXTRA_TOOL)}

    async def call_tool(self, params: Json, caller: Caller) -> Json:
        name = params["name"]
        if name not in TOOLS:
            raise Rejected(FACTS.invalid_params, f"Unknown tool: {name}")
        tool, _ = TOOLS[name]
        try:
            returned = await tool(self, params.get("arguments", {}), caller)
        except ToolFailed as error:
            return {"content": [text(str(error))], "isError": True}
        return returned if isinstance(returned, dict) else {"content": returned}

    async def simple_text(self, _arguments: Json, _caller: Caller) -> list[Json]:
        """Return a text."""
        return [text(FACTS.simple_text)]

    async def image_content(self, _arguments: Json, _caller: Caller) -> list[Json]:
        """Return an image."""
        return [image()]

    async def embedded_resource(self, _arguments: Json, _caller: Caller) -> list[Json]:
        """Return a resource."""
        return [resource(FACTS.embedded_uri, "text/plain", FACTS.embedded_text)]

    async def multiple_content_types(self, _arguments: Json, _caller: Caller) -> list[Json]:
        """Return a text, an image and a resource."""
        data = json.dumps(FACTS.mixed_json)
        return [
            text(FACTS.mixed_text),
            image(),
            resource(FACTS.mixed_uri, "application/json", data),
        ]

    async def audio_content(self, _arguments: Json, _caller: Caller) -> list[Json]:
        """Return a sound."""
        return [audio()]

    async def resource_link(self, _arguments: Json, _caller: Caller) -> list[Json]:
        """Return the way to a resource."""
        return [link()]

    async def structured_content(self, _arguments: Json, _caller: Caller) -> Json:
        """Return an object, and the same as text."""
        mirror = json.dumps(FACTS.structured)
        return {"content": [text(mirror)], "structuredContent": FACTS.structured}

    async def with_logging(self, _arguments: Json, caller: Caller) -> list[Json]:
        """Log three times."""
        for message in FACTS.logged:
            if LEVELS.index("info") >= LEVELS.index(self.level):
                await caller.log("info", message)
            await anyio.sleep(STEP_SECONDS)
        return [text("logged")]

    async def with_progress(self, _arguments: Json, caller: Caller) -> list[Json]:
        """Report progress three times."""
        has_messages = has(caller.protocol_version, "progress_messages")
        for progress, total, message in FACTS.progress:
            await caller.progress(progress, total, message if has_messages else None)
            await anyio.sleep(STEP_SECONDS)
        return [text("done")]

    async def error_handling(self, _arguments: Json, _caller: Caller) -> list[Json]:
        """Fail."""
        raise ToolFailed(FACTS.error_text)

    async def slow(self, arguments: Json, caller: Caller) -> list[Json]:
        """Take some seconds, and report progress from the start."""
        steps = round(arguments.get("seconds", 2) / SLOW_STEP_SECONDS)
        try:
            for step in range(steps + 1):
                await caller.progress(step, steps)
                await anyio.sleep(SLOW_STEP_SECONDS)
        except anyio.get_cancelled_exc_class():
            self.received.append("test_slow was stopped")
            raise
        return [text("done")]

    async def trigger_tool_change(self, _arguments: Json, caller: Caller) -> list[Json]:
        """Add a tool, or remove it."""
        return await self.toggle("tools", caller)

    async def trigger_resource_change(self, _arguments: Json, caller: Caller) -> list[Json]:
        """Add a resource, or remove it."""
        return await self.toggle("resources", caller)

    async def trigger_prompt_change(self, _arguments: Json, caller: Caller) -> list[Json]:
        """Add a prompt, or remove it."""
        return await self.toggle("prompts", caller)

    async def update_watched_resource(self, _arguments: Json, caller: Caller) -> list[Json]:
        """Announce a change of the watched resource to its subscribers."""
        # Without a session the SDK knows the subscribers.
        if FACTS.watched_uri in self.subscribed or has(caller.protocol_version, "rounds"):
            await caller.notify("notifications/resources/updated", {"uri": FACTS.watched_uri})
        return [text("updated")]

    async def contact(self, arguments: Json, _caller: Caller) -> list[Json]:
        """Return the arguments."""
        return [text(json.dumps(arguments))]

    async def received_so_far(self, _arguments: Json, _caller: Caller) -> list[Json]:
        """List the notifications received from the client, and the cancelled calls."""
        return [text(json.dumps(self.received))]

    async def toggle(self, kind: str, caller: Caller) -> list[Json]:
        """Add an item to a list, or remove it, and announce the change."""
        self.extras ^= {kind}
        await caller.notify(f"notifications/{kind}/list_changed")
        return [text("changed")]

    def extra(self, kind: str, item: Json) -> list[Json]:
        return [item] if kind in self.extras else []

    # Resources.

    async def list_resources(self, _params: Json, _caller: Caller) -> Json:
        resources = [
            {"uri": uri, "name": uri.partition("://")[2], "mimeType": mime_type}
            for uri, (mime_type, _) in RESOURCES.items()
        ]
        return {"resources": resources + self.extra("resources", EXTRA_RESOURCE)}

    async def list_resource_templates(self, _params: Json, _caller: Caller) -> Json:
        template = {"uriTemplate": FACTS.template, "name": "template"}
        return {"resourceTemplates": [{**template, "mimeType": "application/json"}]}

    async def read_resource(self, params: Json, caller: Caller) -> Json:
        uri = params["uri"]
        if uri == FACTS.asking_uri:
            return {"contents": [{"uri": uri, "text": await context_of(caller)}]}
        if uri in RESOURCES:
            mime_type, body = RESOURCES[uri]
            return {"contents": [{"uri": uri, "mimeType": mime_type, **body}]}
        before, _, after = FACTS.template.partition("{id}")
        if uri.startswith(before) and uri.endswith(after):
            id_ = uri.removeprefix(before).removesuffix(after)
            data = json.dumps(FACTS.template_data).replace("{id}", id_)
            return {"contents": [{"uri": uri, "mimeType": "application/json", "text": data}]}
        is_session = has(caller.protocol_version, "sessions")
        code = FACTS.resource_not_found if is_session else FACTS.invalid_params
        raise Rejected(code, f"Resource not found: {uri}")

    async def subscribe(self, params: Json, _caller: Caller) -> Json:
        self.subscribed.add(params["uri"])
        return {}

    async def unsubscribe(self, params: Json, _caller: Caller) -> Json:
        self.subscribed.discard(params["uri"])
        return {}

    # Prompts.

    async def list_prompts(self, _params: Json, _caller: Caller) -> Json:
        prompts = [
            {
                "name": name,
                "description": "A prompt for testing.",
                "arguments": [{"name": argument, "required": True} for argument in arguments],
            }
            for name, (_, arguments) in PROMPTS.items()
        ]
        return {"prompts": prompts + self.extra("prompts", EXTRA_PROMPT)}

    async def get_prompt(self, params: Json, caller: Caller) -> Json:
        name, arguments = params["name"], params.get("arguments", {})
        if name == FACTS.asking_prompt:
            return {"messages": [prompt_message(text(await context_of(caller)))]}
        if name not in PROMPTS:
            raise Rejected(FACTS.invalid_params, f"Unknown prompt: {name}")
        render, needed = PROMPTS[name]
        if missing := set(needed) - set(arguments):
            raise Rejected(FACTS.invalid_params, f"Missing arguments: {sorted(missing)}")
        return {"messages": [prompt_message(content) for content in render(arguments)]}

    # Completion and logging.

    async def complete(self, params: Json, _caller: Caller) -> Json:
        """Return the words or ids with this prefix that no other argument has."""
        known = IDS if params["ref"]["type"] == "ref/resource" else FACTS.words
        taken = params.get("context", {}).get("arguments", {}).values()
        begun = params["argument"]["value"]
        values = [word for word in known if word.startswith(begun) and word not in taken]
        return {"completion": {"values": values, "total": len(values), "hasMore": False}}

    async def set_level(self, params: Json, _caller: Caller) -> Json:
        self.level = params["level"]
        return {}


# Tables of the tools, resources and prompts.

Answer: TypeAlias = Callable[[Everything, Json, Caller], Awaitable[Json]]

ANSWERS: Final[Mapping[str, Answer]] = {
    "tools/list": Everything.list_tools,
    "tools/call": Everything.call_tool,
    "resources/list": Everything.list_resources,
    "resources/templates/list": Everything.list_resource_templates,
    "resources/read": Everything.read_resource,
    "resources/subscribe": Everything.subscribe,
    "resources/unsubscribe": Everything.unsubscribe,
    "prompts/list": Everything.list_prompts,
    "prompts/get": Everything.get_prompt,
    "completion/complete": Everything.complete,
    "logging/setLevel": Everything.set_level,
}

Tool: TypeAlias = Callable[[Everything, Json, Caller], Awaitable[list[Json] | Json]]

CITY: Final[Json] = {"type": "object", "properties": {"city": {"type": "string"}}}
SECONDS: Final[Json] = {"type": "object", "properties": {"seconds": {"type": "number"}}}


def without_server(tool: AskingTool) -> Tool:
    """Return the tool as a function that also takes the server."""

    @functools.wraps(tool)
    async def call(_everything: Everything, arguments: Json, caller: Caller) -> list[Json]:
        return await tool(arguments, caller)

    return call


TOOLS: Final[Mapping[str, tuple[Tool, Mapping[str, Any]]]] = {
    "test_simple_text": (Everything.simple_text, NO_ARGUMENTS),
    "test_image_content": (Everything.image_content, NO_ARGUMENTS),
    "test_embedded_resource": (Everything.embedded_resource, NO_ARGUMENTS),
    "test_multiple_content_types": (Everything.multiple_content_types, NO_ARGUMENTS),
    "test_audio_content": (Everything.audio_content, NO_ARGUMENTS),
    "test_resource_link": (Everything.resource_link, NO_ARGUMENTS),
    "test_structured_content": (Everything.structured_content, CITY),
    "test_tool_with_logging": (Everything.with_logging, NO_ARGUMENTS),
    "test_tool_with_progress": (Everything.with_progress, NO_ARGUMENTS),
    "test_error_handling": (Everything.error_handling, NO_ARGUMENTS),
    "test_slow": (Everything.slow, SECONDS),
    "test_trigger_tool_change": (Everything.trigger_tool_change, NO_ARGUMENTS),
    "test_trigger_resource_change": (Everything.trigger_resource_change, NO_ARGUMENTS),
    "test_trigger_prompt_change": (Everything.trigger_prompt_change, NO_ARGUMENTS),
    "test_update_watched_resource": (Everything.update_watched_resource, NO_ARGUMENTS),
    "json_schema_2020_12_tool": (Everything.contact, FACTS.contact_schema),
    "test_received": (Everything.received_so_far, NO_ARGUMENTS),
    **{name: (without_server(tool), schema) for name, (tool, schema) in ASKING_TOOLS.items()},
}

# Members of tools that only some protocol versions have.
DESCRIPTIONS: Final[Mapping[str, Mapping[str, Json]]] = {
    "test_simple_text": {
        "annotations": {"annotations": {"readOnlyHint": True}},
        "titles": {"title": FACTS.tool_title},
        "icons": {"icons": [FACTS.icon]},
    },
    "test_structured_content": {"structure": {"outputSchema": FACTS.structured_schema}},
}


def described(name: str, protocol_version: str) -> Json:
    """Return the members of a tool that only some protocol versions have."""
    found: Json = {}
    for feature, members in DESCRIPTIONS.get(name, {}).items():
        found.update(members if has(protocol_version, feature) else {})
    return found


RESOURCES: Final[Mapping[str, tuple[str, Json]]] = {
    FACTS.static_text_uri: ("text/plain", {"text": FACTS.static_text}),
    FACTS.static_binary_uri: ("image/png", {"blob": FACTS.png}),
    FACTS.watched_uri: ("text/plain", {"text": "watched"}),
}

EXTRA_TOOL: Final[Json] = {"name": FACTS.extra_tool, "inputSchema": NO_ARGUMENTS}
EXTRA_RESOURCE: Final[Json] = {"uri": FACTS.extra_resource_uri, "name": "extra"}
EXTRA_PROMPT: Final[Json] = {"name": FACTS.extra_prompt}

Render: TypeAlias = Callable[[Mapping[str, str]], list[Json]]

PROMPTS: Final[Mapping[str, tuple[Render, tuple[str, ...]]]] = {
    "test_simple_prompt": (lambda _: [text(FACTS.simple_prompt)], ()),
    "test_prompt_with_arguments": (
        lambda arguments: [text(FACTS.prompt_with_arguments.format(**arguments))],
        ("arg1", "arg2"),
    ),
    "test_prompt_with_embedded_resource": (
        lambda arguments: [
            resource(arguments["resourceUri"], "text/plain", FACTS.prompt_resource_text),
            text(FACTS.prompt_resource_request),
        ],
        ("resourceUri",),
    ),
    "test_prompt_with_image": (lambda _: [image(), text(FACTS.prompt_image_request)], ()),
}
