"""The scenario on our client: `python our_client.py --record FILE MODE SERVER…`."""

import argparse
import subprocess
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import mount_checks
import msgspec
import request_scripts
import scenario
import trio
from facts import FACTS, HUB, SCRIPT, TOUR, VERSION_MODES, has, is_url
from sdk_adapter import (
    ELICITED,
    MESSAGE,
    UPDATED,
    Host,
    Json,
    OnReport,
    Rejected,
    Report,
    no_subscription,
    subscribed,
)

from mcp_trio import Client, Limits, RequestError, UserRejected
from mcp_trio.limits import HttpLimits, RequestLimits
from mcp_trio.transports import Channel, listen_websocket
from mcp_trio.types import (
    CreateMessageParams,
    CreateMessageResult,
    ElicitParams,
    ElicitResult,
    LoggingLevel,
    LoggingMessageParams,
    ProgressParams,
    PromptReference,
    ResourceReference,
    ResourceUpdatedParams,
)


def wire(value: object) -> Any:
    """Return a typed value as JSON."""
    return msgspec.json.decode(msgspec.json.encode(value))


async def answer(request: Awaitable[object]) -> Any:
    """Return the result of a request as JSON, or raise `Rejected`."""
    try:
        return wire(await request)
    except RequestError as error:
        raise Rejected(error.code, error.message) from error


class Session:
    """The adapter of our client; see `sdk_adapter.Session`."""

    cancels_callbacks = True

    def __init__(self, client: Client, host: Host) -> None:
        self.client = client
        self.host = host
        self.protocol_version = client.protocol_version
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
                report(params.progress, params.total, params.message)

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

    def subscription(self, uri: str) -> AbstractAsyncContextManager[None]:
        is_session = has(self.protocol_version, "sessions")
        return subscribed(self, uri) if is_session else self.listening(uri)

    @asynccontextmanager
    async def listening(self, uri: str) -> AsyncIterator[None]:
        """Receive updates of a resource by `subscriptions/listen`."""
        async with self.client.listen(uris=[uri]) as changes, trio.open_nursery() as nursery:

            async def receive() -> None:
                async for change in changes:
                    self.host.receive(UPDATED, {"uri": change.uri})

            nursery.start_soon(receive)
            yield
            nursery.cancel_scope.cancel()

    def list_changes(self) -> AbstractAsyncContextManager[None]:
        # At a stateless server the client itself subscribes, for its callback.
        return no_subscription()

    async def list_prompts(self) -> list[Json]:
        prompts: list[Json] = await answer(self.client.list_prompts())
        return prompts

    async def get_prompt(self, name: str, arguments: dict[str, str] | None = None) -> list[Json]:
        messages: list[Json] = (await answer(self.client.get_prompt(name, arguments)))["messages"]
        return messages

    async def complete(
        self, ref: Json, argument: str, value: str, context: dict[str, str] | None = None
    ) -> list[str]:
        reference = msgspec.convert(ref, PromptReference | ResourceReference)
        result = await self.client.complete(reference, argument, value, context=context)
        return result.completion.values

    async def roots_changed(self) -> None:
        await self.client.notify_roots_changed()


# A busy machine starts servers slowly.
WAIT_SECONDS: Final = 30.0

LONG_PROBE: Final = Limits(requests=RequestLimits(probe_seconds=WAIT_SECONDS))
# A server that stops at the end of the mount checks does not come back.
MOUNT_LIMITS: Final = Limits(
    requests=RequestLimits(probe_seconds=WAIT_SECONDS),
    http=HttpLimits(reconnect_seconds_max=0.5),
)


def client_for(host: Host, target: Any, mode: str, **options: Any) -> Client:
    """Return a client whose callbacks call the host."""

    async def sample(params: CreateMessageParams, report: Report) -> CreateMessageResult:
        try:
            result = await host.sample(wire(params), report)
        except Rejected as error:
            raise UserRejected(str(error)) from error
        return msgspec.convert(result, CreateMessageResult)

    async def elicit(params: ElicitParams) -> ElicitResult:
        return msgspec.convert(await host.elicit(wire(params)), ElicitResult)

    def elicited(elicitation_id: str) -> None:
        host.receive(ELICITED, {"elicitationId": elicitation_id})

    def log(params: LoggingMessageParams) -> None:
        host.receive(MESSAGE, wire(params))

    def updated(params: ResourceUpdatedParams) -> None:
        host.receive(UPDATED, wire(params))

    def changed(kind: str) -> None:
        host.receive(f"notifications/{kind}/list_changed", None)

    return Client(
        target,
        protocol_versions=PROTOCOL_VERSIONS_BY_MODE[mode],
        roots=lambda: host.roots,
        sampling=sample,
        sampling_tools=True,
        elicitation=elicit,
        elicitation_modes=("form", "url"),
        elicitation_complete=elicited,
        log=log,
        resource_updated=updated,
        list_changed=changed,
        **{"limits": LONG_PROBE, **options},
    )


SESSIONS: Final = tuple(name for name in FACTS.protocol_versions if has(name, "sessions"))
PROTOCOL_VERSIONS_BY_MODE: Final[Mapping[str, tuple[str, ...]]] = {
    **{name: (name,) for name in SESSIONS},
    # With a stateless version the client also offers the newest legacy one, and negotiates.
    **{name: (name, SESSIONS[-1]) for name in FACTS.protocol_versions if name not in SESSIONS},
    "legacy": SESSIONS,
    "both": FACTS.protocol_versions,
    "stateless": tuple(name for name in FACTS.protocol_versions if name not in SESSIONS),
}


@asynccontextmanager
async def dialled(command: list[str]) -> AsyncIterator[Channel]:
    """Start a server with a URL to which it dials, and yield the channel."""
    async with listen_websocket() as hub, trio.open_nursery() as nursery:
        start = partial(trio.run_process, [*command, hub.url], stdout=subprocess.DEVNULL)
        process = await nursery.start(partial(start, check=False))
        with trio.fail_after(WAIT_SECONDS):
            channel = await anext(hub)
        yield channel
        process.terminate()


async def run_script(server: list[str], record: str | None, folder: Path) -> None:
    host = request_scripts.ScriptHost(folder)
    options = {"record": record, "stderr": "inherit"}
    async with client_for(host, server, FACTS.protocol_version, **options) as client:
        await request_scripts.run_script(folder, Session(client, host), host)


async def main(server: list[str], record: str | None, mode: str) -> None:
    if mode.startswith(SCRIPT):
        await run_script(server, record, Path(mode.removeprefix(SCRIPT)))
        return
    host = Host()
    protocol_version = mode.removeprefix(TOUR)
    how: dict[str, Any] = {"limits": MOUNT_LIMITS} if mode != protocol_version else {}
    async with AsyncExitStack() as stack:
        target: Any = server
        if server[0] == HUB:
            target = await stack.enter_async_context(dialled(server[1:]))
        elif is_url(server[0]):
            (target,) = server
        else:
            how |= {"stderr": "inherit"}
        client = client_for(host, target, protocol_version, record=record, **how)
        await stack.enter_async_context(client)
        if mode in VERSION_MODES:
            await scenario.greet(Session(client, host))
        elif mode != protocol_version:
            await mount_checks.run(Session(client, host), host, protocol_version)
        else:
            await scenario.run(Session(client, host), host, mode)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record")
    parser.add_argument(
        "mode", help="a protocol version, a version mode, tour:VERSION, or script:FOLDER"
    )
    parser.add_argument("server", nargs=argparse.REMAINDER, help="a command, or a URL")
    options = parser.parse_args()
    trio.run(main, options.server, options.record, options.mode)
