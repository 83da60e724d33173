"""The interface between the scenario and a client SDK, and checks of what a server returns.

Each SDK's client has an adapter with the methods of `Session`, whose values are the JSON of the
protocol. The adapter passes the server's requests and notifications to a `Host`.
This module needs only anyio, as it runs in the environment of every Python SDK.
"""

import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, Protocol, TypeAlias

import anyio
from facts import FACTS

Json: TypeAlias = dict[str, Any]

WAIT_SECONDS: Final = 10.0

MESSAGE: Final = "notifications/message"
UPDATED: Final = "notifications/resources/updated"
ELICITED: Final = "notifications/elicitation/complete"


class Rejected(Exception):  # noqa: N818  the specification's word
    """A JSON-RPC error: of a session's request, or raised by a host's or server's handler."""

    def __init__(self, code: int, message: str, data: Json | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


# The session.


class Session(Protocol):
    """The methods that each client adapter has; cancelling a call cancels the request.

    `cancels_callbacks` is whether the server's cancellation of its own request stops the host.
    The adapter answers input requests itself: a call returns the final result.
    """

    protocol_version: str
    capabilities: Json
    cancels_callbacks: bool

    async def ping(self) -> None: ...

    async def set_level(self, level: str) -> None:
        """Set the log level: by a request, or in the metadata of each later request."""

    async def list_tools(self) -> list[Json]:
        """Return the tools of all pages."""

    async def call_tool(
        self, name: str, arguments: Json | None = None, report: "OnReport | None" = None
    ) -> Json: ...

    async def list_resources(self) -> list[Json]:
        """Return the resources of all pages."""

    async def list_resource_templates(self) -> list[Json]: ...

    async def read_resource(self, uri: str) -> list[Json]:
        """Return the contents of a resource."""

    async def subscribe(self, uri: str) -> None:
        """Subscribe with `resources/subscribe`."""

    async def unsubscribe(self, uri: str) -> None: ...

    def subscription(self, uri: str) -> AbstractAsyncContextManager[None]:
        """Receive updates of a resource while the block runs."""

    def list_changes(self) -> AbstractAsyncContextManager[None]:
        """Receive notifications of changed lists while the block runs."""

    async def list_prompts(self) -> list[Json]: ...

    async def get_prompt(self, name: str, arguments: dict[str, str] | None = None) -> list[Json]:
        """Return the messages of a prompt."""

    async def complete(
        self, ref: Json, argument: str, value: str, context: dict[str, str] | None = None
    ) -> list[str]:
        """Return the values that complete an argument."""

    async def roots_changed(self) -> None:
        """Send `notifications/roots/list_changed`."""


@asynccontextmanager
async def subscribed(session: Session, uri: str) -> AsyncIterator[None]:
    """Subscribe to a resource by requests while the block runs."""
    await session.subscribe(uri)
    yield
    await session.unsubscribe(uri)


@asynccontextmanager
async def no_subscription() -> AsyncIterator[None]:
    """Do nothing: the server sends these notifications without a subscription."""
    await anyio.lowlevel.checkpoint()
    yield


OnReport: TypeAlias = Callable[[float, float | None, str | None], None]
Report: TypeAlias = Callable[[float, float | None], Awaitable[None]]
Model: TypeAlias = Callable[[str, Report], Awaitable[str]]


class Host:
    """The client's host: its roots, model and user, and the notifications that it received."""

    def __init__(self) -> None:
        self.roots = ["file:///work/one", "file:///work/two"]
        self.model: Model = answers_with("nothing")
        self.sampling_requests: list[Json] = []
        self.user: Json = {"action": "cancel"}
        self.elicited: list[Json] = []
        self.notifications: list[tuple[str, Json]] = []
        self.failures: list[str] = []
        self._changed = anyio.Event()

    async def sample(self, params: Json, report: Report) -> Json:
        """Return the result of `sampling/createMessage`."""
        self.sampling_requests.append(params)
        question = params["messages"][-1]["content"]
        # A block alone may stand for a list of one.
        question = question[0] if isinstance(question, list) else question
        if "tools" in params and question["type"] == "text":
            use = {"content": FACTS.weather_use, "stopReason": "toolUse"}
            return {"role": "assistant", "model": "interop", **use}
        answer = await self.model(_text_in(question), report)
        content = {"type": "text", "text": answer}
        return {"role": "assistant", "content": content, "model": "interop"}

    async def elicit(self, params: Json) -> Json:
        """Return the result of `elicitation/create`."""
        await anyio.lowlevel.checkpoint()
        self.elicited.append(params)
        if "content" not in self.user:
            return self.user
        wanted = params["requestedSchema"]["properties"]
        content = {name: self.user["content"][name] for name in wanted}
        return {**self.user, "content": content}

    def receive(self, method: str, params: Json | None) -> None:
        self.notifications.append((method, params or {}))
        self.wake()

    def add_failure(self, failure: Exception) -> None:
        """Store an error that the SDK reported about a received message."""
        self.failures.append(repr(failure))

    def wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def logged(self) -> list[Any]:
        """Return the data of all log messages so far."""
        return [params["data"] for method, params in self.notifications if method == MESSAGE]

    def count(self, method: str) -> int:
        return sum(name == method for name, _ in self.notifications)

    def has_received(self, method: str) -> bool:
        return self.count(method) > 0

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait for the condition, at most ten seconds; notifications may follow an answer."""
        with anyio.move_on_after(WAIT_SECONDS):
            while not condition():
                await self._changed.wait()


def _text_in(question: Json) -> str:
    """Return the text of a message, or of a tool result in it."""
    text: str = question["content"][0]["text"] if "content" in question else question["text"]
    return text


# Models.


def answers_with(text: str) -> Model:
    """Return a model that always gives the same answer."""

    async def model(_prompt: str, _report: Report) -> str:
        await anyio.lowlevel.checkpoint()
        return text

    return model


async def rejects(_prompt: str, _report: Report) -> str:
    """Reject the sampling request, as a user may."""
    await anyio.lowlevel.checkpoint()
    raise Rejected(FACTS.user_rejected, "User rejected sampling request")


class SlowModel:
    """A model that takes a second, and notices its cancellation."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.is_cancelled = False

    async def __call__(self, _prompt: str, _report: Report) -> str:
        try:
            await anyio.sleep(1)
        except anyio.get_cancelled_exc_class():
            self.is_cancelled = True
            self.host.wake()
            raise
        return "Too late."


PNG_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"


class Unexpected(Exception):  # noqa: N818  a failed check, no error of this program
    """The server returned something else than expected."""


_checks = 0


def checks() -> int:
    """Return how many values were compared so far."""
    return _checks


def expect(what: str, found: object, expected: object) -> None:
    """Count a check, and raise `Unexpected` if the values differ."""
    global _checks  # noqa: PLW0603  one scenario runs in a process
    _checks += 1
    if found != expected:
        raise Unexpected(f"{what}: {found!r}, not {expected!r}")


def expect_that(what: str, is_so: object) -> None:
    expect(what, bool(is_so), expected=True)


async def expect_rejection(what: str, request: Awaitable[object], *codes: int) -> None:
    """Await a request, and check that its answer is an error with one of these codes."""
    try:
        found = await request
    except Rejected as error:
        expect_that(f"the code of {what}, {error.code}, is of {codes}", error.code in codes)
    else:
        raise Unexpected(f"{what}: {found!r}, not an error")


def text_of(result: Json) -> str:
    """Return the text of a tool result that has a single text block and is no error."""
    expect("isError", result.get("isError", False), expected=False)
    expect("kinds of content", [part["type"] for part in result["content"]], ["text"])
    text: str = result["content"][0]["text"]
    return text


def expect_image(part: Json, data: str = "data") -> None:
    expect("MIME type", part["mimeType"], "image/png")
    expect("PNG", base64.b64decode(part[data])[:8], PNG_SIGNATURE)


def wire(value: Any) -> Json:
    """Return a pydantic model of a Python SDK as the JSON object that it sends."""
    encoded: Json = value.model_dump(mode="json", by_alias=True, exclude_none=True)
    return encoded
