"""The "everything" server that the Python SDKs run: its content, in the words of the wire.

The servers beside this file put an SDK round it. It remembers what it has heard from the client,
and tells it by a tool of its own, `test_heard`: so the client knows that its notifications were
understood at the other end, and that what it cancelled has stopped.
"""

import functools
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias, get_args

import anyio
from caller import Caller, NeedsAnswers
from content import audio, image, link, prompt_message, resource, text
from facts import FACTS, has
from mcp import types  # type: ignore[import-not-found]  # in the environments of the SDKs only
from parties import Json, Rejected
from sdk_client_requests import ASKING_TOOLS, NO_ARGUMENTS, AskingTool, ToolFailed, context_of

LEVELS: Final = get_args(types.LoggingLevel)
STEP_SECONDS: Final = 0.02
SLOW_STEP_SECONDS: Final = 0.1
IDS: Final = tuple(str(number) for number in range(1_000))


class Everything:
    """One session's server."""

    def __init__(self) -> None:
        self.level = "debug"
        self.subscribed: set[str] = set()
        self.heard: list[str] = []
        self.extras: set[str] = set()

    async def answer(self, method: str, params: Json, caller: Caller) -> Json:
        """The result of a request.

        Raises:
            Refused: It is answered with an error.
        """
        try:
            return await ANSWERS[method](self, params, caller)
        except NeedsAnswers as questions:
            return questions.result()

    # Tools.

    async def list_tools(self, _params: Json, caller: Caller) -> Json:
        """The result of `tools/list`."""
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
        """The result of `tools/call`."""
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
        """Return an object, and the same in words."""
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
            self.heard.append("test_slow was stopped")
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
        """Announce a change of the watched resource, if somebody subscribed to it."""
        # Without a session it is the SDK that knows who subscribed.
        if FACTS.watched_uri in self.subscribed or has(caller.protocol_version, "rounds"):
            await caller.notify("notifications/resources/updated", {"uri": FACTS.watched_uri})
        return [text("updated")]

    async def contact(self, arguments: Json, _caller: Caller) -> list[Json]:
        """Return the arguments."""
        return [text(json.dumps(arguments))]

    async def tell_heard(self, _arguments: Json, _caller: Caller) -> list[Json]:
        """Tell what was heard from the client so far."""
        return [text(json.dumps(self.heard))]

    async def toggle(self, kind: str, caller: Caller) -> list[Json]:
        """Add what may come and go to a list, or remove it, and announce that."""
        self.extras ^= {kind}
        await caller.notify(f"notifications/{kind}/list_changed")
        return [text("changed")]

    def extra(self, kind: str, item: Json) -> list[Json]:
        """What has come to a list."""
        return [item] if kind in self.extras else []

    # Resources.

    async def list_resources(self, _params: Json, _caller: Caller) -> Json:
        """The result of `resources/list`."""
        resources = [
            {"uri": uri, "name": uri.partition("://")[2], "mimeType": mime_type}
            for uri, (mime_type, _) in RESOURCES.items()
        ]
        return {"resources": resources + self.extra("resources", EXTRA_RESOURCE)}

    async def list_resource_templates(self, _params: Json, _caller: Caller) -> Json:
        """The result of `resources/templates/list`."""
        template = {"uriTemplate": FACTS.template, "name": "template"}
        return {"resourceTemplates": [{**template, "mimeType": "application/json"}]}

    async def read_resource(self, params: Json, caller: Caller) -> Json:
        """The result of `resources/read`."""
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
        """The result of `resources/subscribe`."""
        self.subscribed.add(params["uri"])
        return {}

    async def unsubscribe(self, params: Json, _caller: Caller) -> Json:
        """The result of `resources/unsubscribe`."""
        self.subscribed.discard(params["uri"])
        return {}

    # Prompts.

    async def list_prompts(self, _params: Json, _caller: Caller) -> Json:
        """The result of `prompts/list`."""
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
        """The result of `prompts/get`."""
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
        """The result of `completion/complete`: words, or ids, that begin so and are not taken."""
        known = IDS if params["ref"]["type"] == "ref/resource" else FACTS.words
        taken = params.get("context", {}).get("arguments", {}).values()
        begun = params["argument"]["value"]
        values = [word for word in known if word.startswith(begun) and word not in taken]
        return {"completion": {"values": values, "total": len(values), "hasMore": False}}

    async def set_level(self, params: Json, _caller: Caller) -> Json:
        """The result of `logging/setLevel`."""
        self.level = params["level"]
        return {}


# What there is.

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


def asking(tool: AskingTool) -> Tool:
    """A tool that needs nothing of the server."""

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
    "test_heard": (Everything.tell_heard, NO_ARGUMENTS),
    **{name: (asking(tool), schema) for name, (tool, schema) in ASKING_TOOLS.items()},
}

# What more is said of tools, where the revision has words for it.
DESCRIPTIONS: Final[Mapping[str, Mapping[str, Json]]] = {
    "test_simple_text": {
        "annotations": {"annotations": {"readOnlyHint": True}},
        "titles": {"title": FACTS.tool_title},
        "icons": {"icons": [FACTS.icon]},
    },
    "test_structured_content": {"structure": {"outputSchema": FACTS.structured_schema}},
}


def described(name: str, protocol_version: str) -> Json:
    """What more is said of a tool."""
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
