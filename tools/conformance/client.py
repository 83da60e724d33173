"""The client of the official suite: `python tools/conformance/client.py URL`.

The suite names the scenario in an environment variable. Most scenarios only need a client that uses
everything a server has; a few name the calls. The client negotiates the protocol version.
"""

import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

import trio

from mcp_trio import Client
from mcp_trio.types import (
    CreateMessageParams,
    CreateMessageResult,
    ElicitParams,
    PromptArgument,
    TextContent,
    Tool,
)

SCENARIO: Final = "MCP_CONFORMANCE_SCENARIO"
CONTEXT: Final = "MCP_CONFORMANCE_CONTEXT"

Play = Callable[[Client], Awaitable[None]]

EXAMPLES: Final[Mapping[str, Any]] = {
    "string": "text",
    "integer": 1,
    "number": 0.5,
    "boolean": True,
    "array": [],
    "object": {},
}
ADDENDS: Final = {"a": 5, "b": 3}


async def use_everything(client: Client) -> None:
    """List everything, call every tool, read every resource, get every prompt."""
    if client.server_can("tools"):
        for tool in await client.list_tools():
            await client.call_tool(tool.name, example_of(tool), raise_tool_errors=False)
    if client.server_can("resources"):
        for resource in await client.list_resources():
            await client.read_resource(resource.uri)
    if client.server_can("prompts"):
        for prompt in await client.list_prompts():
            await client.get_prompt(prompt.name, arguments_of(prompt.arguments or []))


async def list_tools(client: Client) -> None:
    await client.list_tools()


async def add_numbers(client: Client) -> None:
    await client.list_tools()
    await client.call_tool("add_numbers", ADDENDS)


async def call_named_tools(client: Client) -> None:
    """Call the tools that the suite names, with its arguments."""
    await client.list_tools()
    for call in json.loads(os.environ[CONTEXT])["toolCalls"]:
        await client.call_tool(call["name"], call["arguments"])


async def echo_schema(client: Client) -> None:
    """Send the schema of one tool as an argument of another."""
    schemas = {tool.name: tool.input_schema for tool in await client.list_tools()}
    schema = schemas["json_schema_2020_12_tool"]
    await client.call_tool("json_schema_echo", {"schema": schema})


SCENARIOS: Final[Mapping[str, Play]] = {
    "tools_call": add_numbers,
    "http-custom-headers": call_named_tools,
    "json-schema-ref-no-deref": list_tools,
    "json-schema-2020-12-preservation": echo_schema,
}


def example_of(tool: Tool) -> dict[str, Any]:
    """Return arguments that a tool may take."""
    properties: dict[str, Any] = tool.input_schema.get("properties", {})
    return {name: EXAMPLES[schema.get("type", "string")] for name, schema in properties.items()}


def arguments_of(arguments: list[PromptArgument]) -> dict[str, str]:
    return {argument.name: "text" for argument in arguments if argument.required}


# Answers to servers.


def fill_in(params: ElicitParams) -> dict[str, Any]:
    """Accept the form, with its default values, or with made-up ones."""
    schema = params.requested_schema or {}
    properties: dict[str, dict[str, Any]] = schema.get("properties", {})
    return {
        name: field.get("default", EXAMPLES[field.get("type", "string")])
        for name, field in properties.items()
    }


def sample(_params: CreateMessageParams) -> CreateMessageResult:
    """Return the same answer to every sampling request."""
    answer = TextContent(text="Paris, probably.")
    return CreateMessageResult(role="assistant", content=answer, model="one-sentence")


async def play(url: str, scenario: str) -> None:
    """Run the steps of a scenario."""
    async with Client(
        url,
        name="mcp-trio-conformance-client",
        roots=["file:///tmp"],
        sampling=sample,
        elicitation=fill_in,
    ) as client:
        await SCENARIOS.get(scenario, use_everything)(client)


if __name__ == "__main__":
    trio.run(partial(play, sys.argv[-1], os.environ[SCENARIO]))
