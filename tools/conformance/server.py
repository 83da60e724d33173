"""The "everything" server: all that a client may want to try, named as in the official suite.

    python tools/conformance/server.py --stdio
    python tools/conformance/server.py --port 8000

Each tool, resource and prompt shows one thing that a server can do, in as few lines as it takes.
"""

# ruff: noqa: D417, PT028  # docstrings are for the model, and what is named test_ is no test

import argparse
import functools
import json
import logging
import math
import signal
from collections.abc import Callable
from typing import Annotated, Any

import attrs
import trio
from fixed_content import (
    ICON,
    PIXEL,
    PROGRESS,
    SCHEMA_2020_12,
    SOUND,
    STRUCTURED,
    TITLE,
    WORDS,
    embedded,
    text_of,
)
from input_request_tools import CONNECTION_SECONDS, INPUT_REQUEST_TOOLS, context_of
from msgspec import Meta

from mcp_trio import Audio, Context, Image, Limits, Server, ToolError
from mcp_trio.limits import HttpLimits
from mcp_trio.types import EmbeddedResource, ProgressParams, ResourceLink, ToolAnnotations

STEP_SECONDS = 0.05
PATIENCE_SECONDS = 0.2
REPORT_SECONDS = 0.1

server = Server(
    "mcp-trio-conformance",
    version="1.0",
    instructions="Try everything.",
    limits=Limits(http=HttpLimits(stream_seconds_max=CONNECTION_SECONDS)),
)


# Tools: what they return -------------------------------------------------------------------------


@server.tool(title=TITLE, icons=[ICON], annotations=ToolAnnotations(read_only_hint=True))
async def test_simple_text() -> str:
    """Return a text."""
    return "This is a simple text response for testing."


@server.tool
async def test_image_content() -> Image:
    """Return an image."""
    return Image(PIXEL)


@server.tool
async def test_audio_content() -> Audio:
    """Return a sound."""
    return Audio(SOUND)


@server.tool
async def test_resource_link() -> ResourceLink:
    """Return the way to a resource."""
    return ResourceLink(uri="test://static-text", name="static-text")


@attrs.frozen
class Weather:
    """How the weather is."""

    city: str
    celsius: float
    sky: list[str]


@server.tool
async def test_structured_content(city: str) -> Weather:
    """Return an object, whose schema is known.

    Args:
        city: Where.
    """
    return Weather(**{**STRUCTURED, "city": city})


@server.tool
async def test_embedded_resource() -> EmbeddedResource:
    """Return the contents of a resource."""
    text = "This is an embedded resource content."
    return embedded("test://embedded-resource", "text/plain", text)


@server.tool
async def test_multiple_content_types() -> list[str | Image | EmbeddedResource]:
    """Return a text, an image and the contents of a resource."""
    text = '{"test":"data","value":123}'
    resource = embedded("test://mixed-content-resource", "application/json", text)
    return ["Multiple content types test:", Image(PIXEL), resource]


@server.tool
async def test_error_handling() -> str:
    """Fail, and say why in words for the model."""
    raise ToolError("This tool intentionally returns an error for testing")


@server.tool(input_schema=SCHEMA_2020_12)
async def json_schema_2020_12_tool(arguments: dict[str, Any]) -> str:
    """Take arguments that a JSON Schema describes, as no signature could."""
    return f"JSON Schema 2020-12 tool called with: {json.dumps(arguments)}"


# Tools: what they do meanwhile -------------------------------------------------------------------


@server.tool
async def test_tool_with_logging(*, ctx: Context) -> str:
    """Log three messages."""
    await ctx.info("Tool execution started")
    await trio.sleep(STEP_SECONDS)
    await ctx.info("Tool processing data")
    await trio.sleep(STEP_SECONDS)
    await ctx.info("Tool execution completed")
    return "Tool with logging executed successfully"


@server.tool
async def test_tool_with_progress(*, ctx: Context) -> str:
    """Report progress three times."""
    for progress, total, message in PROGRESS:
        if progress:
            await trio.sleep(STEP_SECONDS)
        await ctx.report_progress(progress, total, message)
    return "Tool with progress executed successfully"


@server.tool
async def test_slow(seconds: Annotated[float, Meta(ge=0, le=3_600)] = 2, *, ctx: Context) -> str:
    """Take some seconds, and report progress from the start.

    Args:
        seconds: How long.
    """
    steps = math.ceil(seconds / REPORT_SECONDS)
    for step in range(steps):
        await ctx.report_progress(seconds * step / steps, seconds)
        await trio.sleep(seconds / steps)
    await ctx.report_progress(seconds, seconds)
    return f"It took {seconds:g} seconds."


# Tools: what they ask of the client --------------------------------------------------------------


@server.tool
async def test_sampling(prompt: str, *, ctx: Context) -> str:
    """Ask the client's model.

    Args:
        prompt: The question.
    """
    require(ctx, "sampling")
    answer = await ctx.sample(prompt, max_tokens=100)
    return f"LLM response: {text_of(answer.content)}"


@server.tool
async def test_sampling_with_progress(prompt: str, *, ctx: Context) -> str:
    """Ask the client's model, and log what it reports meanwhile.

    Args:
        prompt: The question.
    """
    require(ctx, "sampling")
    answer = await ctx.sample(prompt, max_tokens=100, progress=functools.partial(log_report, ctx))
    return f"LLM response: {text_of(answer.content)}"


@server.tool
async def test_cancelled_sampling(*, ctx: Context) -> str:
    """Ask the client's model, and give up after a moment."""
    require(ctx, "sampling")
    with trio.move_on_after(PATIENCE_SECONDS):
        answer = await ctx.sample("Think long about this.", max_tokens=100)
        return f"LLM response, in time: {text_of(answer.content)}"
    return "Nobody answered in time."


@server.tool
async def test_list_roots(*, ctx: Context) -> str:
    """Ask for the client's roots; returns their URIs, one a line."""
    require(ctx, "roots")
    return "\n".join(root.uri for root in await ctx.list_roots())


@server.tool
async def test_ping(*, ctx: Context) -> str:
    """Ask the client for a sign of life."""
    await ctx.ping()
    return "The client is alive."


for input_request_tool in INPUT_REQUEST_TOOLS:
    server.tool(input_request_tool)


# Tools: what they change at the server -----------------------------------------------------------


@server.tool
async def test_trigger_tool_change() -> str:
    """Add a tool, or remove it if it is there."""
    return toggle(
        functools.partial(server.remove_tool, "extra_tool"),
        functools.partial(server.tool, extra_tool),
    )


@server.tool
async def test_trigger_resource_change() -> str:
    """Add a resource, or remove it if it is there."""
    return toggle(
        functools.partial(server.remove_resource, "test://extra-resource"),
        functools.partial(server.resource("test://extra-resource"), extra_resource),
    )


@server.tool
async def test_trigger_prompt_change() -> str:
    """Add a prompt, or remove it if it is there."""
    return toggle(
        functools.partial(server.remove_prompt, "extra_prompt"),
        functools.partial(server.prompt, extra_prompt),
    )


@server.tool
async def test_update_watched_resource() -> str:
    """Change the watched resource."""
    watched["updates"] += 1
    server.resource_updated("test://watched-resource")
    return f"Update {watched['updates']} of the watched resource."


# Resources ---------------------------------------------------------------------------------------

watched = {"updates": 0}


@server.resource("test://static-text", mime_type="text/plain")
async def static_text() -> str:
    """A text."""
    return "This is the content of the static text resource."


@server.resource("test://static-binary", mime_type="image/png")
async def static_binary() -> bytes:
    """An image."""
    return PIXEL


@server.resource("test://template/{id}/data", mime_type="application/json")
async def template_data(id: str) -> str:  # noqa: A002  # the template's word
    """What belongs to an id."""
    data = {"id": id, "templateTest": True, "data": f"Data for ID: {id}"}
    return json.dumps(data, separators=(",", ":"))


@server.resource("test://watched-resource", mime_type="text/plain")
async def watched_resource() -> str:
    """A text that `test_update_watched_resource` changes."""
    return f"This is the watched resource after {watched['updates']} updates."


@server.resource("test://asking", mime_type="text/plain")
async def asking_resource(*, ctx: Context) -> str:
    """A text that the client's user has a say in."""
    return await context_of(ctx)


# Prompts -----------------------------------------------------------------------------------------


@server.prompt
async def test_simple_prompt() -> str:
    """A text."""
    return "This is a simple prompt for testing."


@server.prompt
async def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
    """A text with two blanks.

    Args:
        arg1: The first.
        arg2: The second.
    """
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


@server.prompt
async def test_prompt_with_embedded_resource(
    resourceUri: str,  # noqa: N803  # the suite's word
) -> list[EmbeddedResource | str]:
    """The contents of a resource, and what to do with it.

    Args:
        resourceUri: The URI of the resource.
    """
    text = "Embedded resource content for testing."
    return [
        embedded(resourceUri, "text/plain", text),
        "Please process the embedded resource above.",
    ]


@server.prompt
async def test_prompt_with_image() -> list[Image | str]:
    """An image, and what to do with it."""
    return [Image(PIXEL), "Please analyze the image above."]


@server.prompt
async def test_input_required_result_prompt(*, ctx: Context) -> str:
    """A text that the client's user has a say in."""
    return await context_of(ctx)


# Completion --------------------------------------------------------------------------------------


@server.completion(test_prompt_with_arguments, "arg1")
@server.completion(test_prompt_with_arguments, "arg2")
async def words(prefix: str, settled: dict[str, str]) -> list[str]:
    """The words that begin so, and were not chosen for the other argument."""
    taken = settled.values()
    return [word for word in WORDS if word.startswith(prefix) and word not in taken]


@server.completion("test://template/{id}/data", "id")
async def ids(prefix: str) -> list[str]:
    """The numbers below 1000 that begin so: more than one answer may hold."""
    return [str(number) for number in range(1_000) if str(number).startswith(prefix)]


# What the above have in common -------------------------------------------------------------------


async def extra_tool() -> str:
    """Come and go."""
    return "The extra tool is there."


async def extra_resource() -> str:
    """A resource that comes and goes."""
    return "The extra resource is there."


async def extra_prompt() -> str:
    """A prompt that comes and goes."""
    return "The extra prompt is there."


def require(ctx: Context, capability: str) -> None:
    """Fail with a text for the model if the client lacks a capability."""
    if not ctx.client_can(capability):
        raise ToolError(f"the client does not offer {capability}")


async def log_report(ctx: Context, report: ProgressParams) -> None:
    """Log the client's progress."""
    await ctx.info({"progress": report.progress, "total": report.total})


def toggle(remove: Callable[[], object], add: Callable[[], object]) -> str:
    """Add an item, or remove it."""
    try:
        remove()
    except LookupError:
        add()
        return "added"
    return "removed"


async def dial_until_terminated(url: str, record: str | None) -> None:
    """Dial again and again, until SIGTERM."""
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(functools.partial(server.dial, url, record=record))
            await anext(signals)
            nursery.cancel_scope.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve everything that a client may try.")
    transports = parser.add_mutually_exclusive_group(required=True)
    transports.add_argument("--stdio", action="store_true", help="over stdin and stdout")
    transports.add_argument("--port", type=int, help="over HTTP, at this port; 0 for any")
    transports.add_argument("--dial", action="store_true", help="over WebSocket, at URL")
    parser.add_argument("url", nargs="?", metavar="URL")
    parser.add_argument("--server", choices=["native", "hypercorn"], default="native")
    parser.add_argument("--record", metavar="PATH", help="record the session")
    parser.add_argument(
        "--protocol-version", action="append", help="support this one; may be repeated"
    )
    options = parser.parse_args()
    server.protocol_versions = options.protocol_version or server.protocol_versions
    if options.stdio:
        server.run("stdio", record=options.record)
    elif options.dial:
        trio.run(dial_until_terminated, options.url, options.record)
    else:
        logging.basicConfig(level=logging.INFO, format="%(message)s")  # the URL
        server.run("http", port=options.port, server=options.server, record=options.record)


if __name__ == "__main__":
    main()
