"""`Context` and `ThreadContext`: the operations of a handler while its request runs.

`Context` is for `async def` handlers. `ThreadContext` is for `def` handlers, which run in a thread
that each call blocks until the event loop has performed the call. It has the same operations,
except `timeout`, `to_thread` and `http`.
"""

import functools
import uuid
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from contextvars import ContextVar
from copy import deepcopy
from datetime import UTC, datetime
from random import Random
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, Unpack, cast, get_args, overload

import attrs
import msgspec
import trio

from mcp_trio import types
from mcp_trio._journal.records import LOCK, MONOTONIC, NOW, SLEEP, encode_body
from mcp_trio._jsonrpc.channel_messages import AuthInfo
from mcp_trio._protocol.metadata import Peer
from mcp_trio._protocol.suggestions import checks_options, missing_attribute
from mcp_trio._server.access import Selection, selection_of
from mcp_trio._server.client_requests import (
    Answer,
    ClientQuestion,
    Elicitation,
    Roots,
    Sampling,
    SamplingInput,
    SamplingOptions,
    UrlElicitation,
    ask_client,
)
from mcp_trio._server.effects import NO_RESULT, Opaque, active_context, effect_of
from mcp_trio._server.introspection import returns_awaitable
from mcp_trio._server.threads import NESTED_LIMITER, ThreadBridge
from mcp_trio._session.calls import ProgressCallback
from mcp_trio._session.effects import (
    Effect,
    perform,
    perform_in_thread,
    randomness,
    read_clock,
    takes_patch,
)
from mcp_trio._session.handler_journal import HandlerJournal
from mcp_trio._session.handlers import Handling, InputResponse, lane_of_caller
from mcp_trio._session.journal import Recording
from mcp_trio.errors import LocalProtocolError

if TYPE_CHECKING:
    import httpx2

    from mcp_trio._server.handlers import ServedSession
    from mcp_trio._server.server import Server

P = ParamSpec("P")
Result = TypeVar("Result")
T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")

_UUID_BITS: Final = 128
_ELICITATION_COMPLETE: Final = "notifications/elicitation/complete"

SEVERITY: Final[Mapping[str, int]] = {
    level: severity for severity, level in enumerate(get_args(types.LoggingLevel))
}
"""The log levels in the order of RFC 5424, from the least to the most severe."""


# Locks: `ctx.lock(name)` ------------------------------------------------------------------------
#
# All handlers of a server share its locks. Taking one is an effect, so that a replay takes the
# locks in the recorded order.


# The holders, as in `Locks.acquire`, that wait in `read_resource` for the handler that runs here.
# If this handler waited for a lock of theirs, neither would go on.
_READING_HOLDERS: Final[ContextVar[tuple[object, ...]]] = ContextVar(
    "mcp_trio_reading_holders", default=()
)


class _Lock(msgspec.Struct, eq=False):
    """A lock, and the number of its users: holders and tasks or threads that wait for it."""

    limiter: trio.CapacityLimiter
    users: int = 0


@attrs.define(eq=False, repr=False)
class Locks:
    """The locks of a server by name; each exists only while it has users.

    A lock belongs to the Trio run in which it is used: a replay of the same server in another
    thread has locks of its own.
    """

    _locks: dict[tuple[object, str], _Lock] = attrs.field(factory=dict[Any, Any], init=False)

    async def acquire(self, handling: Handling, name: str, holder: object) -> None:
        """Wait for a lock, first come, first served, and hold it for `holder`, as an effect.

        The holder is a task, or the bridge of a thread. If this is cancelled, the lock is not held.
        """
        key = (trio.lowlevel.current_trio_token(), name)
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = _Lock(trio.CapacityLimiter(1))
        limiter = lock.limiter
        borrowers = limiter.statistics().borrowers
        if any(each in borrowers for each in (holder, *_READING_HOLDERS.get())):
            raise RuntimeError(
                f"the lock {name!r} is already held in this request, which would wait for itself"
            )

        async def acquire_again() -> None:
            # A replay runs this where the recorded task got the lock. The lock is then free, and is
            # taken without a checkpoint, unless a handler has not released it yet.
            try:
                limiter.acquire_on_behalf_of_nowait(holder)
            except trio.WouldBlock:
                await limiter.acquire_on_behalf_of(holder)

        lock.users += 1
        try:
            effect = Effect(
                name=LOCK,
                arguments=functools.partial(encode_body, {"name": name}),
                run=functools.partial(limiter.acquire_on_behalf_of, holder),
                codec=NO_RESULT,
                run_in_replay=acquire_again,
            )
            await perform(handling, effect)
        except BaseException:
            self._leave(name)
            raise

    def release(self, name: str, holder: object) -> None:
        """Release a lock that `holder` holds."""
        self._leave(name).limiter.release_on_behalf_of(holder)

    def _leave(self, name: str) -> _Lock:
        """Return a lock after the removal of one user; the last user removes the lock too."""
        key = (trio.lowlevel.current_trio_token(), name)
        lock = self._locks[key]
        lock.users -= 1
        if not lock.users:
            del self._locks[key]
        return lock


@attrs.define(eq=False, repr=False)
class TaskLock:
    """The async context manager `ctx.lock(name)`, for the task that enters it."""

    _handling: Handling
    _locks: Locks
    name: str

    async def __aenter__(self) -> None:
        await self._locks.acquire(self._handling, self.name, trio.lowlevel.current_task())

    async def __aexit__(self, *_: object) -> None:
        self._locks.release(self.name, trio.lowlevel.current_task())


@attrs.define(eq=False, repr=False)
class ThreadLock:
    """The context manager `ctx.lock(name)` of a handler in a thread.

    The lock is released even if the request is over. If the request was cancelled,
    `ThreadBridge.release` postpones this until the handler's task has noticed the cancellation.
    """

    _handling: Handling
    _locks: Locks
    _bridge: ThreadBridge
    name: str

    def __enter__(self) -> None:
        self._bridge.call(self._locks.acquire, self._handling, self.name, self._bridge)

    def __exit__(self, *_: object) -> None:
        release = functools.partial(self._locks.release, self.name, self._bridge)
        with suppress(trio.RunFinishedError):  # The locks have ended with the run.
            trio.from_thread.run_sync(self._bridge.release, release)


# The contexts -----------------------------------------------------------------------------------


@attrs.define(eq=False, repr=False)
class BaseContext(Opaque):
    """The part that both contexts share: the properties of a request, none of which waits."""

    _handling: Handling
    _served: "ServedSession"

    if not TYPE_CHECKING:  # for a type checker it would give the class every attribute

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute(type(self).__name__, self, name)

    @property
    def server(self) -> "Server":
        """The server that has the handler, which may register and remove entries on it."""
        return self._served.server

    @property
    def lifespan(self) -> Any:
        """The value that the server's lifespan yielded; None without a lifespan."""
        return self._served.lifespan

    @property
    def state(self) -> dict[str, Any]:
        """A dict in which handlers and middleware keep what belongs to the session.

        Servers that are mounted into the server of the session have the same dict. It is empty when
        the session begins. A replay runs all requests of the session, and so fills it in the same
        way. Each stateless request over HTTP has its own.

        On several instances, another one continues the session with values of the types of JSON,
        of some other built-in types, and of classes with declared fields; a session with other
        values ends with its instance.
        """
        handling = self._handling
        # All stateless requests over HTTP are one session, although many clients send them.
        is_shared = getattr(handling.session.channel, "transport", None) == "http"
        if is_shared and self._peer.protocol_version.is_stateless:
            if handling.own_state is None:
                handling.own_state = {}
            return handling.own_state
        # Another instance that continues this call has to find the same state, so the journal of
        # a kept call notes the first use.
        journal = handling.handler_journal
        if journal is not None and journal.is_kept and not journal.has_used_state:
            self._use_state(journal)
        return self._served.state

    def _use_state(self, journal: HandlerJournal) -> None:
        journal.use_state(self._served.encoded_state)

    @property
    def request_id(self) -> int | str:
        """The id of this request."""
        return self._handling.request.id

    @property
    def method(self) -> str:
        """The method of this request, such as `tools/call`."""
        return self._handling.request.method.name

    @property
    def progress_token(self) -> int | str | None:
        """The client's token for progress notifications; None if it asked for none."""
        return self._handling.request.progress_token

    @property
    def log_level(self) -> types.LoggingLevel | None:
        """The least severe level of log messages that the client receives; None if it gets none.

        A stateless request contains the level. Otherwise `logging/setLevel` sets it for the
        session, which begins with "debug".
        """
        peer = self._peer
        return peer.log_level if peer.protocol_version.is_stateless else self._served.log_level

    @property
    def protocol_version(self) -> str:
        """The protocol version of this request."""
        return self._peer.protocol_version.name

    @property
    def client_info(self) -> types.Implementation | None:
        """A copy of the name and version of the client, if it sent them; they are not verified."""
        return deepcopy(self._peer.info)

    @property
    def client_capabilities(self) -> types.ClientCapabilities:
        """A copy of the capabilities that the client declared."""
        capabilities = self._peer.capabilities  # which equal clients share
        assert isinstance(capabilities, types.ClientCapabilities)
        return deepcopy(capabilities)

    def client_can(self, path: str) -> bool:
        """Return whether the client declared a capability, such as "elicitation.url"."""
        return self._peer.can(path)

    @property
    def auth(self) -> AuthInfo | None:
        """The verified facts about the sender of this request; None without authentication."""
        return self._served.auth_of(self._handling)

    @property
    def principal(self) -> str | None:
        """The name of the user or client that is authenticated; None without authentication."""
        auth = self.auth
        return None if auth is None else auth.principal

    @property
    def trace(self) -> Mapping[str, str]:
        """The trace context of the request: `traceparent`, `tracestate` and `baggage`."""
        return self._peer.trace

    @property
    def input_responses(self) -> Mapping[str, InputResponse]:
        """The client's answers by key, if this is a retry after an `InputRequiredResult`."""
        return self._handling.input_responses

    @property
    def request_state(self) -> str | None:
        """The `request_state` of that result; None if this is no retry, or it had none."""
        return self._handling.request_state

    @property
    def _peer(self) -> Peer:
        return self._handling.request.peer


@checks_options("Context", "elicit")
@attrs.define(eq=False, repr=False)
class Context(BaseContext):
    """The context of an `async def` handler; each `await` of it is a Trio checkpoint."""

    # Time and randomness.

    def now(self) -> datetime:
        """Return the time of day, in UTC."""
        return read_clock(self._handling, NOW, lambda: datetime.now(UTC), datetime)

    def monotonic(self) -> float:
        """Return the seconds of a clock that never goes back; only differences are meaningful."""
        return read_clock(self._handling, MONOTONIC, trio.current_time, float)

    async def sleep(self, seconds: float) -> None:
        """Sleep.

        Raises:
            ValueError: `seconds` is negative.
        """
        effect = Effect(
            name=SLEEP,
            arguments=functools.partial(encode_body, {"seconds": seconds}),
            run=functools.partial(trio.sleep, seconds),
            codec=NO_RESULT,
        )
        await perform(self._handling, effect)

    def timeout(self, seconds: float) -> AbstractContextManager[trio.CancelScope]:
        """Return a context manager that cancels its block after some seconds, as `trio.fail_after`.

        Raises:
            trio.TooSlowError: At the end of a block that was cancelled by it.
            ValueError: `seconds` is negative.
        """
        lane_of_caller(self._handling)  # This raises an error inside of an effect.
        return trio.fail_after(seconds)

    @property
    def random(self) -> Random:
        """A generator of random numbers, seeded by the recording; not for secrets.

        Each task has its own: read this property in the task that uses the generator.
        """
        return randomness(self._handling)

    def uuid4(self) -> uuid.UUID:
        """Return a random UUID made with `random`; not for secrets."""
        return uuid.UUID(int=self.random.getrandbits(_UUID_BITS), version=4)

    # Effects.

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
        """Call a function as an effect: a replay returns the recorded result instead.

        The function is `async def`, or a `def` function that does not block. Its result always goes
        through JSON, and is returned as the type that the function's annotation names. If this is
        cancelled, the function is. Pass objects of the lifespan as arguments: a replay may have
        no lifespan, so methods of its objects cannot be called there.

        Raises:
            TypeError: The result would not be the same after going through JSON.
            Exception: The error that the function raised; in a replay `ReplayedError`, if that
                error cannot be created again.
        """
        return await perform(self._handling, effect_of(self._served, function, args, keywords))

    async def to_thread(
        self, function: Callable[P, Result], *args: P.args, **keywords: P.kwargs
    ) -> Result:
        """Call a `def` function that blocks as an effect, in a thread.

        If this is cancelled, it waits for the function, which may call
        `trio.from_thread.check_cancelled`.

        Raises:
            TypeError: The result would not be the same after going through JSON.
            Exception: As `effect`.
        """
        run = functools.partial(
            trio.to_thread.run_sync, functools.partial(function, *args, **keywords)
        )
        effect: Effect[Result] = effect_of(self._served, function, args, keywords, run=run)
        return await perform(self._handling, effect)

    @property
    def http(self) -> "httpx2.AsyncClient":
        """An HTTP client whose requests are effects; it is closed when the server stops.

        All sessions that are served together share it, and so do their users: pass credentials with
        each request, and do not set them as headers of the client. It keeps no cookies of
        responses.

        `mcp_trio.http.EffectTransport` documents the recorded parts of requests and responses.
        """
        return self._served.http.client

    def lock(self, name: str) -> AbstractAsyncContextManager[None]:
        """Return a lock shared by all handlers of the server, for `async with ctx.lock(name):`.

        Raises:
            RuntimeError: On entering, if the lock is held by this task, or by a handler that waits
                in `read_resource` for this one.
        """
        return TaskLock(self._handling, self._served.shared.locks, name)

    def patched(self, name: str) -> bool:
        """Return whether to run new code; False in replays of recordings made before the change.

        Within a task, the answer for a name stays the same.
        """
        return takes_patch(self._handling, name)

    def keep(self, why: str) -> None:
        """Let the server keep the recording of this session, whatever its `RecordPolicy` says.

        This does nothing in a session that is not recorded, or that is replayed.

        Args:
            why: The reason, which the end of the recording contains. It is not redacted.
        """
        sequencer = self._handling.session.sequencer
        if isinstance(sequencer, Recording):
            sequencer.recorder.keep(why)

    # Asking the client.

    @overload
    async def elicit(self, message: str) -> Answer[None]: ...

    @overload
    async def elicit(self, message: str, kind: type[T]) -> Answer[T]: ...

    @overload
    async def elicit(self, message: str, kind: Mapping[str, Any]) -> Answer[dict[str, Any]]: ...

    @overload
    async def elicit(self, message: str, kind: object) -> Answer[Any]: ...

    async def elicit(self, message: str, kind: Any = None) -> Answer[Any]:
        """Ask the user to fill in a form, and return the answer.

        Args:
            message: The text for the user.
            kind: A flat class (attrs, dataclass, Struct, TypedDict, NamedTuple, pydantic model)
                whose fields are strings, numbers, booleans, dates, choices (Literal, Enum) or lists
                of choices, with defaults and constraints; or one such type alone; or a list of
                strings to choose from; or the `requestedSchema` itself. Without it the user only
                accepts or declines.

        Raises:
            TypeError: The class is not flat; the text names the field.
            ValueError: The schema is not one of a form.
            LocalProtocolError: A field asks for a secret, or a text contains a link: use
                `elicit_url` instead.
            CapabilityMissing: The client does not support forms.
            RequestError, RequestTimeout, ConnectionLost: The client sent no answer.
        """
        (answer,) = await self.ask_all(Elicitation(message, kind))
        return answer

    async def elicit_url(
        self, message: str, url: str, *, elicitation_id: str | None = None
    ) -> Answer[None]:
        """Ask the user to visit a URL, for data that the client may not see: secrets, payments.

        "accept" means that the user agrees to visit the URL, not that anything has happened there.
        The page behind the URL must authenticate its visitor, who may be another person.

        Args:
            message: The text for the user.
            url: An https URL, or an http URL of this machine.
            elicitation_id: The id for `elicitation_complete`; a new one by default.

        Raises:
            LocalProtocolError: The URL is another one, or contains a password.
            CapabilityMissing: The client does not support URL elicitation.
            RequestError, RequestTimeout, ConnectionLost: The client sent no answer.
        """
        (answer,) = await self.ask_all(UrlElicitation(message, url, elicitation_id=elicitation_id))
        return answer

    async def elicitation_complete(self, elicitation_id: str | None) -> None:
        """Notify the client that a URL elicitation is complete.

        If this is cancelled, nothing was sent, and it can be called again.

        Args:
            elicitation_id: The `Answer.elicitation_id`; None, for clients that do not support this
                notification, sends nothing.

        Raises:
            LocalProtocolError: This client got no such elicitation, or it is complete already.
        """
        if elicitation_id is None:
            return

        def make() -> types.ElicitationCompleteParams:
            if not self._served.elicitations.end(elicitation_id):
                raise LocalProtocolError(
                    f"the URL elicitation {elicitation_id!r} was not sent to this client,"
                    " or is complete"
                )
            return types.ElicitationCompleteParams(elicitation_id=elicitation_id)

        await self._handling.notify_if(_ELICITATION_COMPLETE, make)

    async def sample(
        self,
        prompt: SamplingInput,
        *,
        progress: ProgressCallback | None = None,
        **options: Unpack[SamplingOptions],
    ) -> types.CreateMessageResult:
        """Ask the client for a message of its language model.

        If the model wants to use tools, ask again with the conversation so far, the model's message
        and the results of the tools; limit the number of rounds.

        Args:
            prompt: A text; or a conversation, which is a list of texts, contents, messages and
                results; or the complete params.
            progress: Called with each progress notification of the client, in this task.
            options: Members of the params such as `max_tokens`, `system_prompt` and `tools`, which
                take precedence over those of `prompt`.

        Raises:
            TypeError: The question has another type, or an option is unknown.
            LocalProtocolError: The results of tools do not match the model's message.
            CapabilityMissing: The client does not support sampling.
            RequestError: The user rejected the request (code -1), or the client failed.
            RequestTimeout, ConnectionLost: The client sent no answer.
        """
        (result,) = await self.ask_all(Sampling(prompt, progress=progress, **options))
        return result

    async def list_roots(self) -> list[types.Root]:
        """Ask the client for its roots.

        Raises:
            CapabilityMissing: The client has no roots.
            RequestError, RequestTimeout, ConnectionLost: The client sent no answer.
        """
        (roots,) = await self.ask_all(Roots())
        return roots

    @overload
    async def ask_all(self, a: ClientQuestion[A], /) -> tuple[A]: ...

    @overload
    async def ask_all(self, a: ClientQuestion[A], b: ClientQuestion[B], /) -> tuple[A, B]: ...

    @overload
    async def ask_all(
        self, a: ClientQuestion[A], b: ClientQuestion[B], c: ClientQuestion[C], /
    ) -> tuple[A, B, C]: ...

    @overload
    async def ask_all(
        self,
        a: ClientQuestion[A],
        b: ClientQuestion[B],
        c: ClientQuestion[C],
        d: ClientQuestion[D],
        /,
    ) -> tuple[A, B, C, D]: ...

    @overload
    async def ask_all(self, *questions: ClientQuestion[Any]) -> tuple[Any, ...]: ...

    async def ask_all(self, *questions: ClientQuestion[Any]) -> tuple[Any, ...]:
        """Ask several questions at once, and return the answers in their order.

        The questions are `Elicitation`, `UrlElicitation`, `Sampling` and `Roots` objects. A
        stateless client gets all of them with one response. If one fails, all fail.
        """
        return await ask_client(self._handling, self._served, questions)

    # Notifying the client.

    @property
    def is_cancelled(self) -> bool:
        """Return whether the request was cancelled, so that its result is not sent."""
        return self._handling.is_cancelled

    def report_progress(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> Coroutine[Any, Any, None]:
        """Notify the client of the progress of this request.

        Nothing is sent if the client did not ask for progress, or if `progress` has not increased.
        `message` is left out for protocol versions that lack it.
        """
        # A plain function that returns a coroutine saves another one for each notification.
        return self._handling.progress(progress, total, message)

    async def log(self, level: types.LoggingLevel, data: Any, *, logger: str | None = None) -> None:
        """Send a log message to the client, if `level` is at least `log_level`.

        A message beyond the rate of a `LogLimit` of `mcp_trio.middleware` is dropped.

        Raises:
            TypeError: `data` is of a type that a tool could not return, and is to be sent.
            ValueError: The level is unknown.
        """

        def is_wanted() -> bool:
            severity, least = SEVERITY.get(level), self.log_level
            if severity is None:
                raise ValueError(f"unknown level {level!r}: choose from {', '.join(SEVERITY)}")
            return least is not None and severity >= SEVERITY[least]

        # The level is checked here, so that only a wanted message counts for the rate, and once
        # more when the message is sent, in case the client has set another level meanwhile.
        may_log = self._handling.may_log
        is_dropped = may_log is not None and is_wanted() and not may_log(self._handling)

        def make() -> types.LoggingMessageParams | None:
            if is_dropped or not is_wanted():
                return None
            # As in a result, any type with a JSON form is possible, and a replay sends the same.
            encoded = msgspec.Raw(self._served.shared.writer.encode(data))
            return types.LoggingMessageParams(level=level, data=encoded, logger=logger)

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

    # Visibility of entries.

    async def disable(
        self, *names: str, tags: Collection[str] = (), kinds: Collection[str] = ()
    ) -> None:
        """Hide tools, resources and prompts from this client, until its session ends.

        It is notified of the changed lists. The latest decision of this session about an entry
        counts, else that of `Server.disable` and `Server.enable`. If this is cancelled, nothing has
        changed.

        Args:
            names: Names of tools and prompts; URIs and templates of resources.
            tags: Tags; see `Server.disable`.
            kinds: Kinds; see `Server.disable`.

        Raises:
            LocalProtocolError: The client is stateless: its lists must not depend on its requests.
            LookupError: Nothing is registered under one of the names.
            ValueError: There are no names, tags or kinds, or a kind is unknown.
        """
        await self._show_or_hide(selection_of(names, tags, kinds), shows=False)

    async def enable(
        self, *names: str, tags: Collection[str] = (), kinds: Collection[str] = ()
    ) -> None:
        """Show hidden tools, resources and prompts to this client; see `disable`."""
        await self._show_or_hide(selection_of(names, tags, kinds), shows=True)

    async def _show_or_hide(self, selection: Selection, *, shows: bool) -> None:
        # https://modelcontextprotocol.io/specification/2026-07-28/server/tools#listing-tools
        if self._peer.protocol_version.is_stateless:
            raise LocalProtocolError(
                f"clients of {self.protocol_version} have no session in which something could be"
                " hidden or shown: use server.enable and server.disable, which change the lists of"
                " all clients"
            )
        lane_of_caller(self._handling)  # This raises an error inside of an effect.
        await trio.lowlevel.checkpoint_if_cancelled()
        self._served.show_or_hide(selection, shows=shows)

    async def ping(self) -> None:
        """Wait until the client has answered a ping.

        Raises:
            LocalProtocolError: The client is stateless, and accepts no requests.
            RequestError, RequestTimeout, ConnectionLost: The client sent no answer.
        """
        await self._handling.ask("ping")

    async def read_resource(self, uri: str) -> list[types.ResourceContents]:
        """Return the contents of a resource of this server; its handler runs in this request.

        Raises:
            RequestError: There is no such resource, or the URI is rejected. Unless it is caught,
                this request is answered with it.
            Exception: The error that the resource's handler raised.
        """
        holders = (trio.lowlevel.current_task(), *_READING_HOLDERS.get())
        token = _READING_HOLDERS.set(holders)
        try:
            return (await self._served.read_for_handler(self._handling, uri)).contents
        finally:
            _READING_HOLDERS.reset(token)


def _async(function: Callable[P, Result]) -> Callable[P, Coroutine[Any, Any, Result]]:
    """Return an `async def` function that calls a function, as `ThreadBridge.call` takes it."""

    async def call(*args: P.args, **keywords: P.kwargs) -> Result:
        return function(*args, **keywords)

    return call


@checks_options("Context", "elicit")
@attrs.define(eq=False, repr=False)
class ThreadContext(BaseContext):
    """The context of a `def` handler; each call blocks the thread.

    It has the operations of `Context`, except `timeout`, `to_thread` and `http`.

    A call that needs the event loop raises `RequestAbandoned` once the request is cancelled. A
    thread cannot be cancelled, so a long handler should check `is_cancelled` from time to time.
    Threads that the handler starts itself cannot make such calls.
    """

    _bridge: ThreadBridge

    @property
    def _context(self) -> Context:
        """The context with which the event loop performs the calls."""
        return Context(self._handling, self._served)

    def _use_state(self, journal: HandlerJournal) -> None:
        self._bridge.call(_async(functools.partial(super()._use_state, journal)))

    # Time and randomness.

    def now(self) -> datetime:
        """Return the time of day, in UTC."""
        return self._bridge.call(_async(self._context.now))

    def monotonic(self) -> float:
        """Return the seconds of a clock that never goes back; only differences are meaningful."""
        return self._bridge.call(_async(self._context.monotonic))

    def sleep(self, seconds: float) -> None:
        """Sleep; see `Context.sleep`."""
        self._bridge.call(self._context.sleep, seconds)

    @property
    def random(self) -> Random:
        """A generator of random numbers, seeded by the recording; not for secrets."""
        return self._context.random

    def uuid4(self) -> uuid.UUID:
        """Return a random UUID made with `random`; not for secrets."""
        return self._context.uuid4()

    # Effects.

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

        A `def` function runs in this thread, and may block; see `Context.effect`.
        """
        effect = effect_of(self._served, function, args, keywords)
        if returns_awaitable(function):
            return self._bridge.call(perform, self._handling, effect)
        return perform_in_thread(self._bridge.call, self._handling, effect)

    def lock(self, name: str) -> AbstractContextManager[None]:
        """Return a lock for `with ctx.lock(name):`; see `Context.lock`."""
        return ThreadLock(self._handling, self._served.shared.locks, self._bridge, name)

    def patched(self, name: str) -> bool:
        """Return whether to run new code; False in replays of recordings made before the change."""
        return self._bridge.call(_async(self._context.patched), name)

    def keep(self, why: str) -> None:
        """Let the server keep the recording of this session; see `Context.keep`."""
        self._bridge.call(_async(self._context.keep), why)

    # Asking the client.

    @overload
    def elicit(self, message: str) -> Answer[None]: ...

    @overload
    def elicit(self, message: str, kind: type[T]) -> Answer[T]: ...

    @overload
    def elicit(self, message: str, kind: Mapping[str, Any]) -> Answer[dict[str, Any]]: ...

    @overload
    def elicit(self, message: str, kind: object) -> Answer[Any]: ...

    def elicit(self, message: str, kind: Any = None) -> Answer[Any]:
        """Ask the user to fill in a form, and return the answer; see `Context.elicit`."""
        return self._bridge.call(self._context.elicit, message, kind)

    def elicit_url(
        self, message: str, url: str, *, elicitation_id: str | None = None
    ) -> Answer[None]:
        """Ask the user to visit a URL; see `Context.elicit_url`."""
        call = functools.partial(self._context.elicit_url, elicitation_id=elicitation_id)
        return self._bridge.call(call, message, url)

    def elicitation_complete(self, elicitation_id: str | None) -> None:
        """Notify the client that a URL elicitation is complete; see the same in `Context`."""
        self._bridge.call(self._context.elicitation_complete, elicitation_id)

    def sample(
        self, prompt: SamplingInput, **options: Unpack[SamplingOptions]
    ) -> types.CreateMessageResult:
        """Ask the client for a message of its language model; see `Context.sample`.

        There is no `progress` callback.
        """
        return self._bridge.call(functools.partial(self._context.sample, prompt, **options))

    def list_roots(self) -> list[types.Root]:
        """Ask the client for its roots; see `Context.list_roots`."""
        return self._bridge.call(self._context.list_roots)

    @overload
    def ask_all(self, a: ClientQuestion[A], /) -> tuple[A]: ...

    @overload
    def ask_all(self, a: ClientQuestion[A], b: ClientQuestion[B], /) -> tuple[A, B]: ...

    @overload
    def ask_all(
        self, a: ClientQuestion[A], b: ClientQuestion[B], c: ClientQuestion[C], /
    ) -> tuple[A, B, C]: ...

    @overload
    def ask_all(
        self,
        a: ClientQuestion[A],
        b: ClientQuestion[B],
        c: ClientQuestion[C],
        d: ClientQuestion[D],
        /,
    ) -> tuple[A, B, C, D]: ...

    @overload
    def ask_all(self, *questions: ClientQuestion[Any]) -> tuple[Any, ...]: ...

    def ask_all(self, *questions: ClientQuestion[Any]) -> tuple[Any, ...]:
        """Ask several questions at once, and return the answers; see `Context.ask_all`."""
        return self._bridge.call(ask_client, self._handling, self._served, questions)

    # Notifying the client.

    @property
    def is_cancelled(self) -> bool:
        """Return whether the request was cancelled, so that its result is not sent."""
        return self._bridge.is_abandoned

    def report_progress(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> None:
        """Notify the client of the progress of this request; see `Context.report_progress`."""
        self._bridge.call(self._context.report_progress, progress, total, message)

    def log(self, level: types.LoggingLevel, data: Any, *, logger: str | None = None) -> None:
        """Send a log message to the client, if `level` is at least `log_level`."""
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

    def disable(self, *names: str, tags: Collection[str] = (), kinds: Collection[str] = ()) -> None:
        """Hide tools, resources and prompts from this client; see `Context.disable`."""
        call = functools.partial(self._context.disable, tags=tags, kinds=kinds)
        self._bridge.call(call, *names)

    def enable(self, *names: str, tags: Collection[str] = (), kinds: Collection[str] = ()) -> None:
        """Show hidden tools, resources and prompts to this client; see `Context.disable`."""
        call = functools.partial(self._context.enable, tags=tags, kinds=kinds)
        self._bridge.call(call, *names)

    def ping(self) -> None:
        """Wait until the client has answered a ping; see `Context.ping`."""
        self._bridge.call(self._context.ping)

    def read_resource(self, uri: str) -> list[types.ResourceContents]:
        """Return the contents of a resource of this server; see `Context.read_resource`."""

        async def read() -> list[types.ResourceContents]:
            # The resource's handler may need a thread, while this one waits and keeps its place.
            NESTED_LIMITER.set(trio.CapacityLimiter(1))
            _READING_HOLDERS.set((self._bridge, *_READING_HOLDERS.get()))
            return await self._context.read_resource(uri)

        return self._bridge.call(read)


# The context without a parameter ------------------------------------------------------------------


def get_context() -> Context:
    """Return the context of the handler that runs, for functions that do not get it as an argument.

    In a function that a `def` handler calls, it is a `ThreadContext`, whose methods block.

    Raises:
        RuntimeError: No handler runs here, or an effect does. A replay does not run effects, so
            they cannot use a context.
    """
    current = active_context()
    if current is None or not isinstance(current.caller, Handling):
        raise RuntimeError(
            "get_context() works only while a handler runs, and not inside of an effect: pass what"
            " the function needs as arguments"
        )
    if current.bridge is not None:
        return cast("Context", ThreadContext(current.caller, current.served, current.bridge))
    return Context(current.caller, current.served)
