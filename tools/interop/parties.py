"""The two that a client stands between: a session with a server, and a host with its user.

An adapter gives the former the words of the wire, whatever its SDK says, and the latter its ear.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, Protocol, TypeAlias

import anyio
from facts import FACTS

Json: TypeAlias = dict[str, Any]

PATIENCE_SECONDS: Final = 10.0
REPORT_SECONDS: Final = 0.05

MESSAGE: Final = "notifications/message"
UPDATED: Final = "notifications/resources/updated"
ELICITED: Final = "notifications/elicitation/complete"


class Rejected(Exception):  # noqa: N818  the specification's word
    """A request is answered with an error: heard by a session, raised by a host or a server."""

    def __init__(self, code: int, message: str, data: Json | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


# The session.


class Session(Protocol):
    """A client's session, as the adapters give it; a call that is cancelled is cancelled there.

    `cancels_callbacks` tells whether the server's cancellation of its own request stops the host.
    Rounds of questions are the adapter's affair: a call returns what came of it at last.
    """

    protocol_version: str
    capabilities: Json
    cancels_callbacks: bool

    async def ping(self) -> None:
        """Ask for a sign of life."""

    async def set_level(self, level: str) -> None:
        """Ask for log messages, for good or with each request from now on."""

    async def list_tools(self) -> list[Json]:
        """All tools."""

    async def call_tool(
        self, name: str, arguments: Json | None = None, report: "OnReport | None" = None
    ) -> Json:
        """A tool's result."""

    async def list_resources(self) -> list[Json]:
        """All resources."""

    async def list_resource_templates(self) -> list[Json]:
        """All templates."""

    async def read_resource(self, uri: str) -> list[Json]:
        """The contents of a resource."""

    async def subscribe(self, uri: str) -> None:
        """Ask for updates, where that is a request of its own."""

    async def unsubscribe(self, uri: str) -> None:
        """Ask for no more updates."""

    def watching(self, uri: str) -> AbstractAsyncContextManager[None]:
        """Hear of updates of a resource meanwhile."""

    def hearing_changes(self) -> AbstractAsyncContextManager[None]:
        """Hear meanwhile that a list has changed, if one does not always."""

    async def list_prompts(self) -> list[Json]:
        """All prompts."""

    async def get_prompt(self, name: str, arguments: dict[str, str] | None = None) -> list[Json]:
        """The messages of a prompt."""

    async def complete(
        self, ref: Json, argument: str, value: str, context: dict[str, str] | None = None
    ) -> list[str]:
        """How the value could go on, given the other arguments."""

    async def roots_changed(self) -> None:
        """Tell that the roots have changed."""


@asynccontextmanager
async def subscribed(session: Session, uri: str) -> AsyncIterator[None]:
    """Hear of updates of a resource meanwhile, by requests."""
    await session.subscribe(uri)
    yield
    await session.unsubscribe(uri)


@asynccontextmanager
async def unasked() -> AsyncIterator[None]:
    """Hear of changes that are told without being asked for."""
    await anyio.lowlevel.checkpoint()
    yield


OnReport: TypeAlias = Callable[[float, float | None, str | None], None]
Report: TypeAlias = Callable[[float, float | None], Awaitable[None]]
Model: TypeAlias = Callable[[str, Report], Awaitable[str]]


class Host:
    """What the user of the client is to the server: roots, a model, answers, and ears."""

    def __init__(self) -> None:
        self.roots = ["file:///work/one", "file:///work/two"]
        self.model: Model = says("nothing")
        self.asked: list[Json] = []
        self.user: Json = {"action": "cancel"}
        self.elicited: list[Json] = []
        self.heard: list[tuple[str, Json]] = []
        self.faults: list[str] = []
        self._news = anyio.Event()

    async def sample(self, params: Json, report: Report) -> Json:
        """The result of `sampling/createMessage`."""
        self.asked.append(params)
        question = params["messages"][-1]["content"]
        # A block alone may stand for a list of one.
        question = question[0] if isinstance(question, list) else question
        if "tools" in params and question["type"] == "text":
            use = {"content": FACTS.weather_use, "stopReason": "toolUse"}
            return {"role": "assistant", "model": "interop", **use}
        said = await self.model(_words_in(question), report)
        content = {"type": "text", "text": said}
        return {"role": "assistant", "content": content, "model": "interop"}

    async def elicit(self, params: Json) -> Json:
        """The result of `elicitation/create`."""
        await anyio.lowlevel.checkpoint()
        self.elicited.append(params)
        if "content" not in self.user:
            return self.user
        wanted = params["requestedSchema"]["properties"]
        content = {name: self.user["content"][name] for name in wanted}
        return {**self.user, "content": content}

    def hear(self, method: str, params: Json | None) -> None:
        """A notification came."""
        self.heard.append((method, params or {}))
        self.wake()

    def complain(self, fault: Exception) -> None:
        """The SDK could not make sense of something that came."""
        self.faults.append(repr(fault))

    def wake(self) -> None:
        """Something happened that somebody may wait for."""
        self._news.set()
        self._news = anyio.Event()

    def logged(self) -> list[Any]:
        """The data of all log messages so far."""
        return [params["data"] for method, params in self.heard if method == MESSAGE]

    def count(self, method: str) -> int:
        """How often a notification came so far."""
        return sum(name == method for name, _ in self.heard)

    def has_heard(self, method: str) -> bool:
        """Whether a notification came."""
        return self.count(method) > 0

    async def wait_for(self, has_come: Callable[[], bool]) -> None:
        """Return when it has come, or does not come: notifications may arrive behind an answer."""
        with anyio.move_on_after(PATIENCE_SECONDS):
            while not has_come():
                await self._news.wait()


def _words_in(question: Json) -> str:
    """The text of a message, or of a tool's result in it."""
    text: str = question["content"][0]["text"] if "content" in question else question["text"]
    return text


# Models.


def says(text: str) -> Model:
    """A model that always says the same."""

    async def model(_prompt: str, _report: Report) -> str:
        await anyio.lowlevel.checkpoint()
        return text

    return model


async def rejects(_prompt: str, _report: Report) -> str:
    """A user who lets no model be asked."""
    await anyio.lowlevel.checkpoint()
    raise Rejected(FACTS.user_rejected, "User rejected sampling request")


async def reports(_prompt: str, report: Report) -> str:
    """A model that tells how far it is."""
    for step in range(3):
        await report(step + 1, 3)
        # The TypeScript SDK loses one that arrives with the answer (typescript-sdk#2580).
        await anyio.sleep(REPORT_SECONDS)
    return "At last."


class Ponders:
    """A model that is slow, and notices when it is no longer wanted."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.is_cancelled = False

    async def __call__(self, _prompt: str, _report: Report) -> str:
        """Think."""
        try:
            await anyio.sleep(1)
        except anyio.get_cancelled_exc_class():
            self.is_cancelled = True
            self.host.wake()
            raise
        return "Too late."
