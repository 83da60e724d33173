"""`Context` and `ThreadContext`: the operations of a handler while its request runs.

Two classes with the same words: `Context` for `async def` handlers, `ThreadContext` for `def`
handlers, which run in a thread and whose calls block until the loop has done them.
"""

import functools
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import UTC, datetime
from random import Random
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, Unpack, overload

import attrs
import trio

from mcp_trio._journal.records import MONOTONIC, NOW, SLEEP, encode_body
from mcp_trio._server.effects import effect_of
from mcp_trio._server.elicitation import (
    Answer,
    Ask,
    Elicitation,
    Roots,
    Sampling,
    SamplingInput,
    SamplingOptions,
    UrlElicitation,
    answers,
    url_elicitation_params,
)
from mcp_trio._server.facts import Facts, ServedSession
from mcp_trio._server.introspection import returns_awaitable
from mcp_trio._server.threads import NOTHING, Bridge, TaskLock, ThreadLock
from mcp_trio._session.calls import ProgressCallback
from mcp_trio._session.effects import (
    Effect,
    perform,
    perform_in_thread,
    randomness,
    read_clock,
    takes_patch,
    time_limit,
)
from mcp_trio._session.handlers import Handling
from mcp_trio._session.tasks import bare
from mcp_trio.errors import (
    URL_ELICITATION_REQUIRED,
    LocalProtocolError,
    RequestError,
    ToolError,
    UrlElicitationRequired,
)
from mcp_trio.types import (
    CreateMessageResult,
    ElicitationCompleteParams,
    LoggingLevel,
    LoggingMessageParams,
    ResourceContents,
    Root,
)

if TYPE_CHECKING:
    import httpx2


P = ParamSpec("P")
Result = TypeVar("Result")

_UUID_BITS = 128


def _soon(function: Callable[P, Result]) -> Callable[P, Coroutine[Any, Any, Result]]:
    """The function, to be called by the loop."""

    async def call(*args: P.args, **keywords: P.kwargs) -> Result:
        return function(*args, **keywords)

    return call


def _utc_now() -> datetime:
    return datetime.now(UTC)


def _sleeping(seconds: float) -> Effect[None]:
    return Effect(
        name=SLEEP,
        arguments=functools.partial(encode_body, {"seconds": seconds}),
        run=functools.partial(trio.sleep, seconds),
        codec=NOTHING,
    )


T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")

_COMPLETE: Final = "notifications/elicitation/complete"


async def visit_first(handling: Handling, served: ServedSession, error: Exception) -> None:
    """Let the user visit what a handler has raised `UrlElicitationRequired` for.

    Returns when a modern client's user has agreed, so that the handler may run again.

    Raises:
        RequestError: With code -32042, for a client that calls again when it likes.
        ToolError: The user does not agree.
        CapabilityMissing: The client cannot be asked.
        Exception: `error` itself, if it is another.
    """
    required = bare(error)
    if not isinstance(required, UrlElicitationRequired):
        raise error
    visits: list[UrlElicitation] = required.elicitations
    if handling.request.peer.protocol_version.has_elicitation_ids:
        params = url_elicitation_params(handling, served, visits)
        raise RequestError(URL_ELICITATION_REQUIRED, str(required), {"elicitations": params})
    agreed = await answers(handling, served, visits)
    if not all(answer.is_accepted for answer in agreed):
        raise ToolError(f"{required}, and the user has not agreed to it")


@attrs.define(eq=False)
class Context(Facts):
    """The context of an `async def` handler. Whatever is awaited is a cancellation check."""

    # Time.

    def now(self) -> datetime:
        """The time of day, in UTC."""
        return read_clock(self._handling, NOW, _utc_now, datetime)

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back; only differences mean something."""
        return read_clock(self._handling, MONOTONIC, trio.current_time, float)

    async def sleep(self, seconds: float) -> None:
        """Do nothing for so many seconds.

        Raises:
            ValueError: They are negative.
        """
        await perform(self._handling, _sleeping(seconds))

    def timeout(self, seconds: float) -> AbstractContextManager[trio.CancelScope]:
        """`with ctx.timeout(5):`, which cancels its block when the time is over.

        Raises:
            trio.TooSlowError: At the end of a block that was cancelled by this.
            ValueError: The seconds are negative.
        """
        return time_limit(self._handling, seconds)

    # Chance.

    @property
    def random(self) -> Random:
        """A generator of random numbers, which a recording seeds; not for secrets.

        Each task has its own, so ask for it in the task that uses it.
        """
        return randomness(self._handling)

    def uuid4(self) -> uuid.UUID:
        """A random UUID out of `random`; not for secrets."""
        return uuid.UUID(int=self.random.getrandbits(_UUID_BITS), version=4)

    # Functions.

    @overload
    async def effect(
        self, function: Callable[P, Awaitable[Result]], *args: P.args, **keywords: P.kwargs
    ) -> Result: ...

    @overload
    async def effect(
        self, function: Callable[P, Result], *args: P.args, **keywords: P.kwargs
    ) -> Result: ...

    async def effect(
        self, function: Callable[..., object], *args: object, **keywords: object
    ) -> object:
        """What a function returns; a replay does not call it, and gives what it returned.

        The function may be `async def` or `def`; the latter runs here, and must not block. Its
        result goes through JSON always, and comes back as its annotation says. Cancelled: as the
        function itself. Let it take what it needs of the lifespan as an argument: in a replay,
        nothing of that can be called.

        Raises:
            TypeError: The result would not be the same after that.
            Exception: What the function raises; in a replay `ReplayedError`, if that cannot be
                made again.
        """
        return await perform(self._handling, effect_of(self._served, function, args, keywords))

    async def to_thread(
        self, function: Callable[P, Result], *args: P.args, **keywords: P.kwargs
    ) -> Result:
        """`effect` for a `def` function that blocks: it runs in a thread.

        Cancelled: waits for the function, which can ask `trio.from_thread.check_cancelled`.
        """
        run = functools.partial(
            trio.to_thread.run_sync, functools.partial(function, *args, **keywords)
        )
        effect: Effect[Result] = effect_of(self._served, function, args, keywords, run=run)
        return await perform(self._handling, effect)

    @property
    def http(self) -> "httpx2.AsyncClient":
        """An HTTP client, each of whose requests is an effect; closed with the session.

        See `EffectTransport` for what of a request and its response is recorded.
        """
        return self._served.http.client

    # Order, and change.

    def lock(self, name: str) -> AbstractAsyncContextManager[None]:
        """`async with ctx.lock(name):`, one at a time of all handlers of the server.

        Raises:
            RuntimeError: On entering, the task holds this lock already.
        """
        return TaskLock(self._handling, self._served.server.locks, name)

    def patched(self, name: str) -> bool:
        """Whether to take the new way at a change of the code; False in replays from before it.

        Once a task has been told, it is told the same again.
        """
        return takes_patch(self._handling, name)

    @overload
    async def elicit(self, message: str) -> Answer[None]: ...

    @overload
    async def elicit(self, message: str, kind: type[T]) -> Answer[T]: ...

    @overload
    async def elicit(self, message: str, kind: Mapping[str, Any]) -> Answer[dict[str, Any]]: ...

    @overload
    async def elicit(self, message: str, kind: object) -> Answer[Any]: ...

    async def elicit(self, message: str, kind: Any = None) -> Answer[Any]:
        """Ask the user to fill in a form, and give back what they did.

        The form is made from a flat class (attrs, dataclass, Struct, TypedDict, NamedTuple) with
        texts, numbers, booleans, dates, choices (Literal, Enum) and lists of choices, with defaults
        and constraints; or from one such type alone; or it is the `requestedSchema` itself. Without
        `kind` the user only agrees or not.

        Raises:
            TypeError: The class is not flat; the field is named.
            ValueError: The schema is none of a form.
            LocalProtocolError: A field asks for a secret, or a text has a link in it: for both
                there is `elicit_url`.
        """
        (answer,) = await self.ask_all(Elicitation(message, kind))
        return answer

    async def elicit_url(
        self, message: str, url: str, *, elicitation_id: str | None = None
    ) -> Answer[None]:
        """Ask the user to visit a URL, for what is not the client's business: secrets, payments.

        Accepted is consent, and not that anything is done there. Who visits the URL must be asked
        there who they are: it may be another person.

        Raises:
            LocalProtocolError: The URL is not https (or of this machine), or carries a password.
        """
        (answer,) = await self.ask_all(UrlElicitation(message, url, elicitation_id=elicitation_id))
        return answer

    async def elicitation_complete(self, elicitation_id: str | None) -> None:
        """Tell the client that what was to be done at a URL is done; see `Answer.elicitation_id`.

        Nothing is sent for None, for some clients cannot hear of it.

        Raises:
            LocalProtocolError: This client was not asked so, or has heard already (ELIC-32).
        """
        if elicitation_id is None:
            return
        if not self._served.elicitations.end(elicitation_id):
            raise LocalProtocolError(f"this client was not asked for {elicitation_id!r}")
        params = ElicitationCompleteParams(elicitation_id=elicitation_id)
        await self._handling.notify(_COMPLETE, params)

    async def sample(
        self,
        prompt: SamplingInput,
        *,
        progress: ProgressCallback | None = None,
        **options: Unpack[SamplingOptions],
    ) -> CreateMessageResult:
        """Ask the client for a message of its language model.

        The prompt is a text, a conversation (a list of texts, contents, messages and results), or
        all params; options such as `max_tokens`, `system_prompt` and `tools` win over these. If the
        model wants to use tools, ask again with its result and those of the tools behind what was
        said before; and not for ever. `progress` is called with the client's reports, in this task.

        Raises:
            TypeError: The question is none, or there is no such option.
            LocalProtocolError: The tools' results do not belong to what the model said.
            RequestError: With code -1, that the user refused.
        """
        (result,) = await self.ask_all(Sampling(prompt, progress=progress, **options))
        return result

    async def list_roots(self) -> list[Root]:
        """Ask the client for its roots."""
        (roots,) = await self.ask_all(Roots())
        return roots

    @overload
    async def ask_all(self, a: Ask[A], /) -> tuple[A]: ...

    @overload
    async def ask_all(self, a: Ask[A], b: Ask[B], /) -> tuple[A, B]: ...

    @overload
    async def ask_all(self, a: Ask[A], b: Ask[B], c: Ask[C], /) -> tuple[A, B, C]: ...

    @overload
    async def ask_all(self, a: Ask[A], b: Ask[B], c: Ask[C], d: Ask[D], /) -> tuple[A, B, C, D]: ...

    @overload
    async def ask_all(self, *questions: Ask[Any]) -> tuple[Any, ...]: ...

    async def ask_all(self, *questions: Ask[Any]) -> tuple[Any, ...]:
        """Ask several questions at once, and give back the answers in their order.

        A modern client gets them in one round. If one fails, all do.
        """
        return await answers(self._handling, self._served, questions)

    _limiter: trio.CapacityLimiter | None = None

    @property
    def is_cancelled(self) -> bool:
        """Return whether nobody waits for this request any more."""
        return self._handling.is_cancelled

    async def progress(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> None:
        """Tell the client how far this request has come, and in words where it takes them.

        Nothing is sent if the client did not ask, or if `progress` has not grown (PROG-06).
        """
        await self._handling.progress(progress, total, message)

    async def log(self, level: LoggingLevel, data: Any, *, logger: str | None = None) -> None:
        """Send a log message to the client, unless it asked for more severe ones only.

        Raises:
            ValueError: There is no such level.
        """

        def make() -> LoggingMessageParams | None:
            if not self._log_level_filter.lets(level):
                return None
            return LoggingMessageParams(level=level, data=data, logger=logger)

        await self._handling.notify_if("notifications/message", make)

    async def debug(self, data: Any, *, logger: str | None = None) -> None:
        """Log at level `debug`."""
        await self.log("debug", data, logger=logger)

    async def info(self, data: Any, *, logger: str | None = None) -> None:
        """Log at level `info`."""
        await self.log("info", data, logger=logger)

    async def warning(self, data: Any, *, logger: str | None = None) -> None:
        """Log at level `warning`."""
        await self.log("warning", data, logger=logger)

    async def error(self, data: Any, *, logger: str | None = None) -> None:
        """Log at level `error`."""
        await self.log("error", data, logger=logger)

    async def ping(self) -> None:
        """Wait for a sign of life from the client.

        Raises:
            RequestError, RequestTimeout, ConnectionLost: There was none.
        """
        await self._handling.ask("ping")

    async def read_resource(self, uri: str) -> list[ResourceContents]:
        """What a resource of this server holds; its handler runs here, as part of this request.

        Raises:
            RequestError: There is none, or the URI is refused; unless it is caught, the request is
                answered so.
            Exception: What its handler raises.
        """
        result = await self._served.read(self._handling, uri, limiter=self._limiter)
        return result.contents


@attrs.define(eq=False)
class ThreadContext(Facts):
    """The context of a `def` handler: the words of `Context`, but each call blocks the thread.

    Each call for the loop to do raises `RequestAbandoned` once the request is over. A thread cannot
    be cancelled, so a long handler looks at `is_cancelled` now and then.
    """

    _bridge: Bridge

    @property
    def _context(self) -> Context:
        """The context by which the loop does what this thread asks for."""
        return Context(self._handling, self._served)

    def now(self) -> datetime:
        """The time of day, in UTC."""
        return self._bridge.call(_soon(self._context.now))

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back; only differences mean something."""
        return self._bridge.call(_soon(self._context.monotonic))

    def sleep(self, seconds: float) -> None:
        """Do nothing for so many seconds."""
        self._bridge.call(self._context.sleep, seconds)

    @property
    def random(self) -> Random:
        """A generator of random numbers, which a recording seeds; not for secrets."""
        return self._context.random

    def uuid4(self) -> uuid.UUID:
        """A random UUID out of `random`; not for secrets."""
        return self._context.uuid4()

    @overload
    def effect(
        self, function: Callable[P, Awaitable[Result]], *args: P.args, **keywords: P.kwargs
    ) -> Result: ...

    @overload
    def effect(
        self, function: Callable[P, Result], *args: P.args, **keywords: P.kwargs
    ) -> Result: ...

    def effect(self, function: Callable[..., object], *args: object, **keywords: object) -> object:
        """Call a function as an effect: a replay returns the recorded result instead.

        The function runs in this thread, and may block.
        """
        effect = effect_of(self._served, function, args, keywords)
        if returns_awaitable(function):
            return self._bridge.call(perform, self._handling, effect)
        return perform_in_thread(self._bridge.call, self._handling, effect)

    def lock(self, name: str) -> AbstractContextManager[None]:
        """Return a lock shared by all handlers of the server, for `with ctx.lock(name):`."""
        return ThreadLock(self._handling, self._served.server.locks, self._bridge, name)

    def patched(self, name: str) -> bool:
        """Whether to take the new way at a change of the code; False in replays from before it."""
        return self._bridge.call(_soon(self._context.patched), name)

    @overload
    def elicit(self, message: str) -> Answer[None]: ...

    @overload
    def elicit(self, message: str, kind: type[T]) -> Answer[T]: ...

    @overload
    def elicit(self, message: str, kind: Mapping[str, Any]) -> Answer[dict[str, Any]]: ...

    @overload
    def elicit(self, message: str, kind: object) -> Answer[Any]: ...

    def elicit(self, message: str, kind: Any = None) -> Answer[Any]:
        """Ask the user to fill in a form, and give back what they did."""
        return self._bridge.call(self._context.elicit, message, kind)

    def elicit_url(
        self, message: str, url: str, *, elicitation_id: str | None = None
    ) -> Answer[None]:
        """Ask the user to visit a URL, for what is not the client's business: secrets, payments."""
        call = functools.partial(self._context.elicit_url, elicitation_id=elicitation_id)
        return self._bridge.call(call, message, url)

    def elicitation_complete(self, elicitation_id: str | None) -> None:
        """Notify the client that a URL elicitation is complete; see `Answer.elicitation_id`."""
        self._bridge.call(self._context.elicitation_complete, elicitation_id)

    def sample(
        self, prompt: SamplingInput, **options: Unpack[SamplingOptions]
    ) -> CreateMessageResult:
        """Ask the client for a message of its language model; progress is not reported."""
        return self._bridge.call(functools.partial(self._context.sample, prompt, **options))

    def list_roots(self) -> list[Root]:
        """Ask the client for its roots."""
        return self._bridge.call(self._context.list_roots)

    @overload
    def ask_all(self, a: Ask[A], /) -> tuple[A]: ...

    @overload
    def ask_all(self, a: Ask[A], b: Ask[B], /) -> tuple[A, B]: ...

    @overload
    def ask_all(self, a: Ask[A], b: Ask[B], c: Ask[C], /) -> tuple[A, B, C]: ...

    @overload
    def ask_all(self, a: Ask[A], b: Ask[B], c: Ask[C], d: Ask[D], /) -> tuple[A, B, C, D]: ...

    @overload
    def ask_all(self, *questions: Ask[Any]) -> tuple[Any, ...]: ...

    def ask_all(self, *questions: Ask[Any]) -> tuple[Any, ...]:
        """Ask several questions at once, and give back the answers in their order."""
        return self._bridge.call(answers, self._handling, self._served, questions)

    @property
    def is_cancelled(self) -> bool:
        """Return whether nobody waits for this request any more."""
        return self._bridge.is_abandoned

    def progress(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> None:
        """Tell the client how far this request has come, and in words where it takes them."""
        self._bridge.call(self._context.progress, progress, total, message)

    def log(self, level: LoggingLevel, data: Any, *, logger: str | None = None) -> None:
        """Send a log message to the client, unless it asked for more severe ones only."""
        self._bridge.call(functools.partial(self._context.log, level, data, logger=logger))

    def debug(self, data: Any, *, logger: str | None = None) -> None:
        """Log at level `debug`."""
        self.log("debug", data, logger=logger)

    def info(self, data: Any, *, logger: str | None = None) -> None:
        """Log at level `info`."""
        self.log("info", data, logger=logger)

    def warning(self, data: Any, *, logger: str | None = None) -> None:
        """Log at level `warning`."""
        self.log("warning", data, logger=logger)

    def error(self, data: Any, *, logger: str | None = None) -> None:
        """Log at level `error`."""
        self.log("error", data, logger=logger)

    def ping(self) -> None:
        """Wait for a sign of life from the client."""
        self._bridge.call(self._context.ping)

    def read_resource(self, uri: str) -> list[ResourceContents]:
        """What a resource of this server holds; its handler runs here, as part of this request."""
        # This thread keeps its place while the resource's handler, or one below, may need another.
        limiter = trio.CapacityLimiter(1)
        read = functools.partial(self._served.read, limiter=limiter)
        return self._bridge.call(read, self._handling, uri).contents
