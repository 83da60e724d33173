"""The steps of a story: requests in the words of the wire, and waits for what the server says.

A client takes them through its adapter, see `parties.Session`; `byte_host` writes the very words.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from checks import expect
from parties import Host, Json, Rejected, Session

ROOTS_LIST: Final = "roots/list"


@dataclass(frozen=True)
class Step:
    """A request; `fails` if it has to be answered with an error, or with a failure of its tool."""

    method: str
    params: Json
    fails: bool = False

    async def __call__(self, session: Session, _host: Host) -> None:
        """Make the request.

        Raises:
            Unexpected: It fails, or does not.
        """
        try:
            result = await TELLERS[self.method](session, self.params)
        except Rejected as error:
            result = {"isError": True, "refusal": str(error)}
        has_failed = isinstance(result, dict) and bool(result.get("isError"))
        expect(f"{self.method} {self.params} fails: {result}", has_failed, self.fails)


@dataclass(frozen=True)
class Heard:
    """Wait until the server has said something, if it has not yet."""

    method: str

    async def __call__(self, _session: Session, host: Host) -> None:
        """Wait.

        Raises:
            Unexpected: It does not come.
        """
        await host.wait_for(lambda: host.has_heard(self.method))
        expect(f"heard {self.method}", host.has_heard(self.method), expected=True)


Chapter: TypeAlias = Callable[[Session, Host], Awaitable[None]]


class ListeningHost(Host):
    """A host with a root of its own, which remembers when it was asked for it."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.roots = [folder.as_uri()]

    @property
    def roots(self) -> list[str]:
        """What the server is told."""
        self.hear(ROOTS_LIST, None)
        return self._roots

    @roots.setter
    def roots(self, roots: list[str]) -> None:
        self._roots = roots


# How an adapter says it.


async def _call_tool(session: Session, params: Json) -> Json:
    report = None if "_meta" not in params else lambda _progress, _total, _message: None
    return await session.call_tool(params["name"], params["arguments"], report)


async def _complete(session: Session, params: Json) -> list[str]:
    argument = params["argument"]
    return await session.complete(params["ref"], argument["name"], argument["value"])


TELLERS: Final[Mapping[str, Callable[[Session, Any], Awaitable[Any]]]] = {
    "ping": lambda session, _: session.ping(),
    "tools/list": lambda session, _: session.list_tools(),
    "tools/call": _call_tool,
    "resources/list": lambda session, _: session.list_resources(),
    "resources/templates/list": lambda session, _: session.list_resource_templates(),
    "resources/read": lambda session, params: session.read_resource(params["uri"]),
    "resources/subscribe": lambda session, params: session.subscribe(params["uri"]),
    "resources/unsubscribe": lambda session, params: session.unsubscribe(params["uri"]),
    "prompts/list": lambda session, _: session.list_prompts(),
    "prompts/get": lambda session, params: session.get_prompt(params["name"], params["arguments"]),
    "completion/complete": _complete,
    "logging/setLevel": lambda session, params: session.set_level(params["level"]),
}


# The steps, in fewer words.


def ask(method: str) -> Step:
    """A request without parameters."""
    return Step(method, {})


def call(tool: str, **arguments: Any) -> Step:
    """A call of a tool."""
    return Step("tools/call", {"name": tool, "arguments": arguments})


def read(uri: str) -> Step:
    """The reading of a resource."""
    return Step("resources/read", {"uri": uri})


def get(prompt: str, **arguments: str) -> Step:
    """A prompt."""
    return Step("prompts/get", {"name": prompt, "arguments": arguments})


def set_level(level: str) -> Step:
    """How severe a message has to be."""
    return Step("logging/setLevel", {"level": level})


def complete(ref: str, name: str, value: str) -> Step:
    """The completion of an argument of a prompt, or of a template."""
    by_uri, by_name = {"type": "ref/resource", "uri": ref}, {"type": "ref/prompt", "name": ref}
    params = {
        "ref": by_uri if "://" in ref else by_name,
        "argument": {"name": name, "value": value},
    }
    return Step("completion/complete", params)


def failing(step: Step) -> Step:
    """A step that has to fail."""
    return replace(step, fails=True)


def reporting(step: Step) -> Step:
    """A call that wants progress."""
    meta = {"progressToken": step.params["name"]}
    return replace(step, params={**step.params, "_meta": meta})


def watching(uri: str, *steps: Step | Heard) -> tuple[Step | Heard, ...]:
    """What is done while a resource is subscribed to."""
    begin, end = (Step(f"resources/{what}", {"uri": uri}) for what in ("subscribe", "unsubscribe"))
    return begin, *steps, end
