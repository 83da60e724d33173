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

import httpx2
import trio

from mcp_trio import Client, ConnectionLost
from mcp_trio.auth import (
    ClientCredentials,
    EnterpriseManaged,
    MemoryTokenStore,
    OAuth,
    WorkloadIdentity,
)
from mcp_trio.errors import AuthorizationError
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


# Authorization.

# The suite's authorization servers know this document; nothing is fetched from there.
METADATA_URL: Final = "https://conformance-test.local/client-metadata.json"

# The scenarios in which the client has to give up, and how it does.
GIVING_UP: Final[Mapping[str, type[Exception]]] = {
    "auth/scope-retry-limit": ConnectionLost,
    "auth/resource-mismatch": AuthorizationError,
    "auth/metadata-issuer-mismatch": AuthorizationError,
    "auth/iss-supported-missing": AuthorizationError,
    "auth/iss-wrong-issuer": AuthorizationError,
    "auth/iss-unexpected": AuthorizationError,
    "auth/iss-normalized": AuthorizationError,
}


async def follow_login(url: str) -> str:
    """Return where the login page redirects to at once: the suite has no user."""
    async with httpx2.AsyncClient() as http:
        response = await http.get(url)
    return response.headers["location"]


def oauth(**options: Any) -> OAuth:
    return OAuth(
        store=MemoryTokenStore(), on_authorize=follow_login, metadata_url=METADATA_URL, **options
    )


def pre_registered(context: Mapping[str, str]) -> OAuth:
    return oauth(client_id=context["client_id"], client_secret=context["client_secret"])


def by_secret(context: Mapping[str, str]) -> ClientCredentials:
    return ClientCredentials(client_id=context["client_id"], secret=context["client_secret"])


def by_key(context: Mapping[str, str]) -> ClientCredentials:
    return ClientCredentials(
        client_id=context["client_id"],
        private_key=context["private_key_pem"],
        algorithm=context["signing_algorithm"],
    )


def by_provider(context: Mapping[str, str]) -> EnterpriseManaged:
    return EnterpriseManaged(
        client_id=context["client_id"],
        client_secret=context["client_secret"],
        id_token=context["idp_id_token"],
        provider_token_endpoint=context["idp_token_endpoint"],
        provider_client_id=context["idp_client_id"],
    )


def by_workload(context: Mapping[str, str]) -> WorkloadIdentity:
    return WorkloadIdentity(client_id=context["client_id"], token=context["valid_jwt"])


CREDENTIALS: Final[Mapping[str, Callable[[Mapping[str, str]], Any]]] = {
    "auth/pre-registration": pre_registered,
    "auth/client-credentials-basic": by_secret,
    "auth/client-credentials-jwt": by_key,
    "auth/enterprise-managed-authorization": by_provider,
    "auth/wif-jwt-bearer": by_workload,
}


def auth_of(scenario: str) -> Any:
    if scenario in CREDENTIALS:
        return CREDENTIALS[scenario](json.loads(os.environ[CONTEXT]))
    return oauth() if scenario.startswith("auth/") else None


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
        auth=auth_of(scenario),
    ) as client:
        await SCENARIOS.get(scenario, use_everything)(client)


async def main(url: str, scenario: str) -> None:
    """Run a scenario; one in which the client has to give up fails if it does not."""
    error = GIVING_UP.get(scenario)
    try:
        await play(url, scenario)
    except ConnectionLost as loss:
        if error is None or not isinstance(loss, error):
            raise
        print(loss)
    else:
        if error is not None:
            raise SystemExit(f"{scenario}: the client went on")


if __name__ == "__main__":
    trio.run(partial(main, sys.argv[-1], os.environ[SCENARIO]))
