"""The scenario, told by our client: `python our_client.py --record FILE SERVER COMMAND…`."""

import argparse
from collections.abc import Awaitable
from typing import Any

import msgspec
import scenario
import trio
from parties import MESSAGE, UPDATED, Host, Json, OnReport, Refused, Report

from mcp_trio import Client, RequestError
from mcp_trio.types import (
    CreateMessageParams,
    CreateMessageResult,
    LoggingLevel,
    LoggingMessageParams,
    ProgressParams,
    PromptReference,
    ResourceReference,
    ResourceUpdatedParams,
)


def wire(value: object) -> Any:
    """A typed value in the words of the wire."""
    return msgspec.json.decode(msgspec.json.encode(value))


async def answer(request: Awaitable[object]) -> Any:
    """The result of a request in the words of the wire, or its refusal."""
    try:
        return wire(await request)
    except RequestError as error:
        raise Refused(error.code, error.message) from error


class Session:
    """See `parties.Session`."""

    cancels_callbacks = True

    def __init__(self, client: Client) -> None:
        self.client = client
        self.revision = client.revision
        self.capabilities: Json = wire(client.server_capabilities)

    async def ping(self) -> None:
        await self.client.ping()

    async def set_level(self, level: str) -> None:
        await self.client.set_log_level(msgspec.convert(level, LoggingLevel))

    async def list_tools(self) -> list[Json]:
        tools: list[Json] = await answer(self.client.list_tools())
        return tools

    async def call_tool(
        self, name: str, arguments: Json | None = None, report: OnReport | None = None
    ) -> Json:
        def on_progress(params: ProgressParams) -> None:
            if report is not None:
                report(params.progress, params.total)

        progress = None if report is None else on_progress
        call = self.client.call_tool(name, arguments, progress=progress, raise_tool_errors=False)
        result: Json = await answer(call)
        return result

    async def list_resources(self) -> list[Json]:
        resources: list[Json] = await answer(self.client.list_resources())
        return resources

    async def list_resource_templates(self) -> list[Json]:
        templates: list[Json] = await answer(self.client.list_resource_templates())
        return templates

    async def read_resource(self, uri: str) -> list[Json]:
        contents: list[Json] = (await answer(self.client.read_resource(uri)))["contents"]
        return contents

    async def subscribe(self, uri: str) -> None:
        await self.client.subscribe(uri)

    async def unsubscribe(self, uri: str) -> None:
        await self.client.unsubscribe(uri)

    async def list_prompts(self) -> list[Json]:
        prompts: list[Json] = await answer(self.client.list_prompts())
        return prompts

    async def get_prompt(self, name: str, arguments: dict[str, str] | None = None) -> list[Json]:
        messages: list[Json] = (await answer(self.client.get_prompt(name, arguments)))["messages"]
        return messages

    async def complete(self, ref: Json, argument: str, value: str) -> list[str]:
        reference = msgspec.convert(ref, PromptReference | ResourceReference)
        result = await self.client.complete(reference, argument, value)
        return result.completion.values

    async def roots_changed(self) -> None:
        await self.client.notify_roots_changed()


def client_for(host: Host, command: list[str], record: str) -> Client:
    """A client whose callbacks are the host's."""

    async def sample(params: CreateMessageParams, report: Report) -> CreateMessageResult:
        try:
            result = await host.sample(wire(params), report)
        except Refused as error:
            raise RequestError(error.code, str(error)) from error
        return msgspec.convert(result, CreateMessageResult)

    def log(params: LoggingMessageParams) -> None:
        host.hear(MESSAGE, wire(params))

    def updated(params: ResourceUpdatedParams) -> None:
        host.hear(UPDATED, wire(params))

    def changed(kind: str) -> None:
        host.hear(f"notifications/{kind}/list_changed", None)

    return Client(
        command,
        record=record,
        stderr="inherit",
        roots=lambda: host.roots,
        sampling=sample,
        log=log,
        resource_updated=updated,
        list_changed=changed,
    )


async def main(command: list[str], record: str) -> None:
    host = Host()
    async with client_for(host, command, record) as client:
        await scenario.tell(Session(client), host)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", required=True)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    trio.run(main, options.command, options.record)
