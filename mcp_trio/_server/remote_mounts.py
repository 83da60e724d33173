"""Servers behind a `Client` that are mounted into a server: another process, or a URL.

Each session of the outer server has its own connection to a mounted server, which is opened when a
request first needs it. So the client of that session answers the questions of the mounted server.
Stateless requests over HTTP are one session of many clients, and a legacy mounted server does not
say for which request it asks a question. Therefore each stateless request whose client can be asked
has a connection of its own to such a server.

Everything that arrives from a mounted server is the result of an effect, so that a recording holds
it, and a replay opens no connection. A request that is forwarded is a sequence of effects. The
first one sends the request, and each returns the next event: progress, a log message, a question to
the client, or the end. The task of the handler forwards the event by its context, as any handler
does. A notification that belongs to no request, such as a changed list, is the result of an effect
in a lane of its own.

When another instance takes a session, it opens new connections, as after a lost connection: what a
mounted server kept in its own session is lost, and all its lists may have changed. A handler that
runs again there may have the first event of a request as an earlier outcome. Then the request is
sent again, which is safe: within a handler, it can only be one that reads a resource.

A `RemoteSession` has the part that a replay repeats, and a `RemoteConnection` the part that only
effects use.
"""

import itertools
import logging
import math
import os
import random
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from contextvars import Context as Variables
from contextvars import copy_context
from functools import partial
from inspect import isawaitable
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, cast, get_args
from urllib.parse import urlsplit

import attrs
import msgspec
import trio

from mcp_trio import types
from mcp_trio._client.callbacks import ReportProgress
from mcp_trio._client.client import Client, notifications_handled
from mcp_trio._client.config import ServerConfig
from mcp_trio._client.connect import can_open_again, is_command, is_http_target, url_of
from mcp_trio._client.results import is_resource_not_found, required_elicitations
from mcp_trio._journal.records import encode_body
from mcp_trio._protocol.metadata import LOG_LEVEL, SERVER_INFO, Peer
from mcp_trio._protocol.methods import METHODS, RESOURCE_UPDATED
from mcp_trio._protocol.versions import PROTOCOL_VERSIONS
from mcp_trio._server.access import AccessRule
from mcp_trio._server.client_requests import (
    Elicitation,
    Roots,
    UrlElicitation,
    prepare_questions,
    question_of,
)
from mcp_trio._server.context import SEVERITY, Context
from mcp_trio._server.effects import JsonCodec
from mcp_trio._server.mounts import Prefix
from mcp_trio._server.results import OutputSchema
from mcp_trio._server.subscriptions import list_changed
from mcp_trio._session.effects import Effect, perform
from mcp_trio._session.exceptions import call_concurrently
from mcp_trio._session.handler_journal import HandlerJournal
from mcp_trio._session.handlers import CRASH_TEXT, Handling
from mcp_trio._session.input_required import ask_all
from mcp_trio._session.journal import Sequencer
from mcp_trio._session.lanes import Lane
from mcp_trio._session.session import Session
from mcp_trio._transports.concurrency import Wakeup
from mcp_trio._transports.connections import RandomSource, State, pause_seconds
from mcp_trio.errors import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    URL_ELICITATION_REQUIRED,
    MCPError,
    RequestError,
    ResourceNotFound,
    ToolError,
    UrlElicitationRequired,
)
from mcp_trio.limits import Limits

if TYPE_CHECKING:
    from mcp_trio._server.handlers import ServedSession

logger = logging.getLogger("mcp_trio")

_ELICITATION_COMPLETE: Final = "notifications/elicitation/complete"
_LOG: Final = "notifications/message"

# The events that end a forwarded request.
_ENDS: Final = frozenset({"result", "input required", "error", "lost"})

# The maximum number of queued events of a forwarded request; the mounted server waits for a client
# of the outer server that is slower.
_EVENTS_QUEUED_MAX: Final = 64

# For each list: the method of `Client` that reads it, the capability, and the type of its items.
_READERS: Final[Mapping[str, tuple[Callable[[Client], Awaitable[Any]], str, Any]]] = {
    "tools/list": (Client.list_tools, "tools", list[types.Tool]),
    "prompts/list": (Client.list_prompts, "prompts", list[types.Prompt]),
    "resources/list": (Client.list_resources, "resources", list[types.Resource]),
    "resources/templates/list": (
        Client.list_resource_templates,
        "resources",
        list[types.ResourceTemplate],
    ),
}


class MountEvent(msgspec.Struct, frozen=True):
    """Something that arrived from a mounted server.

    Attributes:
        kind: "progress", "log", "question" or "withdrawn" (the question) for a request, or one of
            `_ENDS`. Otherwise the method of a notification.
        body: The params or the result; for "lost", a text that follows the name of the server, such
            as "did not answer".
    """

    kind: str
    body: msgspec.Raw = msgspec.Raw(b"null")

    def read(self, kind: Any = Any) -> Any:
        """Return the decoded body."""
        return msgspec.json.decode(self.body, type=kind)


class MountedQuestion(msgspec.Struct, frozen=True):
    """A request of the mounted server to its client; `number` counts those of one request."""

    number: int
    method: str
    params: msgspec.Raw = msgspec.Raw(b"{}")


class Failure(msgspec.Struct, frozen=True):
    """An error response, of the mounted server or of the client of the session."""

    code: int
    message: str
    data: Any = None

    @classmethod
    def of(cls, error: RequestError) -> "Failure":
        """Return the response for an error."""
        return cls(error.code, error.message, error.data)

    def error(self) -> RequestError:
        """Return the error to raise."""
        return RequestError(self.code, self.message, self.data)


class ClientAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of a `MountedQuestion`, or an error."""

    result: msgspec.Raw | None = None
    failure: Failure | None = None


def _mount_event(kind: str, body: Any) -> MountEvent:
    return MountEvent(kind, msgspec.Raw(msgspec.json.encode(body)))


def _first_line(error: object) -> str:
    """Return the part of an error's text for clients: the last lines of stderr may follow it."""
    return str(error).partition("\n")[0]


class Unavailable(Exception):  # noqa: N818 - named like the errors of `mcp_trio.errors`
    """A mounted server is not connected; the text follows the name of the server."""


# Mounts -----------------------------------------------------------------------------------------


@attrs.frozen(eq=False, repr=False)
class RemoteMount:
    """A mounted server that a client connects to.

    Attributes:
        template: A client that never connects, with the target and options of each connection.
        random_source: Spreads the pauses before a lost connection is opened again.
    """

    prefix: Prefix
    template: Client
    rule: AccessRule | None = None
    random_source: RandomSource = random.random

    @property
    def label(self) -> str:
        """The text in errors that names the mounted server, without secrets."""
        target = self.template.target
        url = url_of(target)
        if url is not None:
            parts = urlsplit(url)
            name = f"{parts.scheme}://{parts.hostname or ''}{parts.path}"
        elif isinstance(target, ServerConfig):
            name = repr(target.command)
        elif is_command(target):
            name = " ".join(os.fspath(part) for part in target[:2])
        else:
            name = "object" if can_open_again(target) else "behind a channel"
        return f"the server {name}, mounted {self.prefix.label}"

    def begin(self, outer: "ServedSession", session: Session, number: int) -> "RemoteSession":
        """Return the mounted server as a part of a session; nothing is connected yet."""
        return RemoteSession(self, outer, session, number)

    def owns_uri(self, uri: str) -> bool:
        """Return whether a URI in a result is that of a resource which only this server can read.

        A server uses https only if clients can fetch the resource by themselves:
        https://modelcontextprotocol.io/specification/2025-11-25/server/resources#common-uri-schemes
        """
        return not uri.lower().startswith(("https:", "http:"))


def remote_mount(target: Any, prefix: Prefix, rule: AccessRule | None) -> RemoteMount:
    """Return the mount of a target of `Client`, or of a client with its options."""
    template = target if isinstance(target, Client) else Client(target)
    is_channel = all(hasattr(template.target, name) for name in ("send", "receive", "aclose"))
    if not (can_open_again(template.target) or is_http_target(template.target) or is_channel):
        raise TypeError(
            "a server mounts another Server, a Client, or a target of a Client: a URL, a script, a"
            f" command, a ServerConfig or a channel, not {target!r}"
        )
    return RemoteMount(prefix, template, rule)


class ConnectionKey(NamedTuple):
    """The facts about the client of a request on which the options of a connection depend.

    Requests with equal keys share connections.
    """

    is_stateless: bool
    modes: tuple[types.ElicitMode, ...]
    has_sampling: bool
    has_sampling_tools: bool
    has_roots: bool
    has_log: bool

    @classmethod
    def of(cls, peer: Peer) -> "ConnectionKey":
        """Return the key for requests of a client."""
        is_stateless = peer.protocol_version.is_stateless
        modes: list[types.ElicitMode] = []
        if not Elicitation("").missing_capabilities(peer):
            modes.append("form")
        if not UrlElicitation("", "").missing_capabilities(peer):
            modes.append("url")
        return cls(
            is_stateless=is_stateless,
            modes=tuple(modes),
            has_sampling=peer.can("sampling"),
            has_sampling_tools=peer.can("sampling.tools"),
            has_roots=not Roots().missing_capabilities(peer),
            has_log=not is_stateless or peer.log_level is not None,
        )

    @property
    def can_ask(self) -> bool:
        """Return whether a mounted server may ask the client."""
        return bool(self.modes or self.has_sampling or self.has_roots)


# The part that a replay repeats -----------------------------------------------------------------


@attrs.define(eq=False, repr=False)
class _NotificationListener:
    """The `EffectCaller` that waits for notifications of a mounted server."""

    session: Session
    handler_journal: HandlerJournal | None = None
    observation: None = None
    random: Random | None = None
    effects: int = 0

    @property
    def sequencer(self) -> Sequencer:
        return self.session.sequencer

    @property
    def limits(self) -> Limits:
        return self.session.connection.limits


@attrs.define(eq=False, repr=False)
class RemoteSession:
    """A mounted server in one session of the outer server.

    Attributes:
        outer: The `ServedSession` of the server whose session this is.
        number: The number of this among those of the session, for the name of its lane.
    """

    mount: RemoteMount
    outer: "ServedSession"
    session: Session
    number: int
    connections: "RemoteConnections" = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.connections = RemoteConnections(
            self.mount, self.session, may_have_changed=self.outer.was_taken
        )
        self.session.start_lane(f"mount{self.number}", self._listen)

    async def forward(self, handling: Handling, method: str, params: Any) -> Any:
        """Return the mounted server's result of a request, whose params have its own names.

        Raises:
            RequestError: The mounted server answered with an error, or is not connected.
            ToolError: The same for a call of a tool on a server that is not connected.
            UrlElicitationRequired: The client of the session has to visit URLs first.
        """
        given: dict[str, Any] = params.meta or {}
        meta = {  # without the metadata of this connection
            name: value
            for name, value in given.items()
            if name != "progressToken" and not name.startswith(LOG_LEVEL.rpartition("/")[0])
        }
        meta = {**handling.request.peer.trace, **meta}
        params = msgspec.structs.replace(params, meta=meta or None)
        if isinstance(params, types.InputResponseParams):
            # The answers, and the state, for the `InputRequiredResult` of the mounted server.
            responses = {
                key: msgspec.Raw(msgspec.json.encode(answer))
                for key, answer in handling.input_responses.items()
            }
            params = msgspec.structs.replace(
                params, input_responses=responses or None, request_state=handling.request_state
            )
        send = partial(RemoteConnection.request, method=method, params=params)
        event = await self._perform(handling, method, params, send)
        self._raise_if_urls_are_required(handling, event)
        result = self._result(method, params, event)
        if not isinstance(result, types.CallToolResult):
            return result
        # Older protocol versions allow only objects as structured content.
        value = result.structured_content
        is_limited = handling.request.peer.protocol_version.structured_content == "object"
        if not is_limited or value is msgspec.UNSET or isinstance(value, dict):
            return result
        return msgspec.structs.replace(result, structured_content={"result": value})

    async def items(self, handling: Handling, method: str) -> list[Any]:
        """Return all entries of a list of the mounted server; none if it is not connected."""
        read, capability, kind = _READERS[method]

        async def send(connection: "RemoteConnection", _call: "RemoteCall") -> MountEvent:
            client = await connection.client()
            items = await read(client) if client.server_can(capability) else []
            return _mount_event("result", items)

        event = await self._perform(handling, method, None, send)
        if event.kind != "result":
            reason = event.read(Failure).message if event.kind == "error" else event.read()
            logger.warning("%s lacks the entries of %s: %s", method, self.mount.label, reason)
            return []
        items: list[Any] = event.read(kind)
        for item in items:
            # Without a type, values may be objects, which would not be wrapped.
            if isinstance(item, types.Tool) and "type" in (item.output_schema or {}):
                schema = OutputSchema(item.output_schema or {}, validation_errors=lambda _: [])
                item.output_schema = schema.schema_for(handling.request.peer.protocol_version)
        return items

    async def subscribe(self, handling: Handling, uri: str) -> None:
        """Subscribe to a resource of the mounted server; `RemoteConnections.unsubscribe` ends that.

        Raises:
            RequestError: The mounted server has no such resource, or is not connected.
        """

        async def send(connection: "RemoteConnection", _call: "RemoteCall") -> MountEvent:
            try:
                client = await connection.client()
            except Unavailable:
                # The client may have subscribed in another instance, and gets no error then: the
                # subscription begins when the server is connected.
                if not self.outer.was_taken:
                    raise
                connection.subscribed[uri] += 1
                return _mount_event("result", types.EmptyResult())
            connection.subscribed[uri] += 1
            try:
                await client.subscribe(uri)
            except BaseException:
                connection.subscribed[uri] -= 1
                raise
            return _mount_event("result", types.EmptyResult())

        method, params = "resources/subscribe", types.SubscribeParams(uri=uri)
        self._result(method, params, await self._perform(handling, method, params, send))

    async def set_log_level(self, handling: Handling, level: types.LoggingLevel) -> None:
        """Set the level of the mounted server's log messages; an error is logged."""

        async def send(connection: "RemoteConnection", _call: "RemoteCall") -> MountEvent:
            client = await connection.client()
            if client.server_can("logging"):
                await client.set_log_level(level)
            return _mount_event("result", types.EmptyResult())

        method, params = "logging/setLevel", types.SetLevelParams(level=level)
        event = await self._perform(handling, method, params, send)
        if event.kind != "result":
            logger.warning("%s has not set the log level: %s", self.mount.label, event.body)

    async def _perform(
        self, handling: Handling, method: str, params: Any, send: "Send"
    ) -> MountEvent:
        """Send a request, forward the events that arrive meanwhile, and return the last one."""
        call = RemoteCall(send)
        begin = partial(self.connections.begin, ConnectionKey.of(handling.request.peer), call)

        async def next_event() -> MountEvent:
            return await (call.next_event() if call.has_begun else begin())

        asked: dict[int, trio.CancelScope] = {}
        try:
            async with trio.open_nursery() as nursery:
                event = await perform(handling, self._effect(method, params, begin))
                while event.kind not in _ENDS:
                    if event.kind == "question":
                        question = event.read(MountedQuestion)
                        asked[question.number] = scope = trio.CancelScope()
                        answer = partial(self._answer, handling, question, call, scope)
                        nursery.start_soon(answer)
                    elif event.kind == "withdrawn":
                        asked[event.read(int)].cancel()
                    elif event.kind == "progress":
                        progress = event.read(types.ProgressParams)
                        await handling.progress(progress.progress, progress.total, progress.message)
                    else:
                        log = event.read(types.LoggingMessageParams)
                        context = Context(handling, self.outer)
                        await context.log(log.level, log.data, logger=log.logger)
                    proceed = self._effect(f"{method} goes on", None, next_event)
                    event = await perform(handling, proceed)
                nursery.cancel_scope.cancel()
        finally:
            call.end()
        return event

    async def _answer(
        self,
        handling: Handling,
        question: "MountedQuestion",
        call: "RemoteCall",
        scope: trio.CancelScope,
    ) -> None:
        """Ask the client of the session, in a task of the handler, and send its answer."""
        number = question.number
        with scope:
            try:
                params = msgspec.json.decode(question.params)
                params.pop("_meta", None)  # It belongs to the connection to the mounted server.
                (ready,) = prepare_questions(
                    handling, self.outer, [question_of(question.method, params)]
                )
                report = partial(call.report_to_server, number)
                to_client = msgspec.structs.replace(ready.as_sent(), on_progress=report)
                (result,) = await ask_all(handling, [to_client])
                answer = ClientAnswer(result=msgspec.Raw(msgspec.json.encode(result)))
            except RequestError as error:
                answer = ClientAnswer(failure=Failure.of(error))
            except MCPError as error:
                answer = ClientAnswer(failure=Failure(INTERNAL_ERROR, str(error)))
            except (TypeError, ValueError) as error:  # The question is malformed.
                answer = ClientAnswer(failure=Failure(INVALID_PARAMS, str(error)))
            reply = partial(call.answer, number, answer)
            arguments = {"question": number, "answer": answer}
            await perform(handling, self._effect("answer", arguments, reply))

    def _effect(
        self, name: str, params: Any, run: Callable[[], Awaitable[MountEvent]]
    ) -> Effect[MountEvent]:
        arguments = {"server": self.mount.prefix.text, "params": params}
        return Effect(
            name=f"mount {name}",
            arguments=partial(encode_body, arguments),
            run=run,
            codec=JsonCodec[MountEvent](MountEvent),
        )

    def _raise_if_urls_are_required(self, handling: Handling, event: MountEvent) -> None:
        """Raise `UrlElicitationRequired` if the mounted server did, and the client can be asked.

        The error itself is not passed on: stateless clients do not know its code, and a client is
        told of the completion only if this server asks it.
        """
        failure = event.read(Failure) if event.kind == "error" else None
        if failure is None or failure.code != URL_ELICITATION_REQUIRED:
            return
        modes = ConnectionKey.of(handling.request.peer).modes
        if self.mount.template.elicitation is None and "url" in modes:
            questions = [
                question_of("elicitation/create", each)
                for each in required_elicitations(failure.data)
            ]
            if questions:
                raise UrlElicitationRequired(questions, failure.message)

    def _result(self, method: str, params: Any, event: MountEvent) -> Any:
        if event.kind == "error":
            failure: RequestError = event.read(Failure).error()
            if method == "resources/read" and is_resource_not_found(failure):
                given: Any = failure.data
                members = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
                data = {"uri": params.uri, **members}
                raise ResourceNotFound(params.uri, message=failure.message, data=data)
            raise failure
        if event.kind == "lost":
            text = f"{self.mount.label}, {event.read()}"
            raise ToolError(text) if method == "tools/call" else RequestError(INTERNAL_ERROR, text)
        if event.kind == "input required":
            return event.read(types.InputRequiredResult)
        result = METHODS[method].decode_result(event.body)
        meta = result.meta
        if meta and SERVER_INFO in meta:  # This server names itself.
            meta = {name: value for name, value in meta.items() if name != SERVER_INFO}
            result = msgspec.structs.replace(result, meta=meta or None)
        return result

    async def _listen(self, lane: Lane | None) -> None:
        """Pass on the notifications of the mounted server that belong to no request."""
        listening = _NotificationListener(self.session)
        while True:
            event = await perform(
                listening, self._effect("notification", None, self.connections.next_notification)
            )
            if event.kind == RESOURCE_UPDATED:
                with suppress(ValueError):  # The URI has no place for the prefix.
                    uri = self.mount.prefix.outer_uri(event.read(types.ResourceUpdatedParams).uri)
                    self.outer.notify_session((event.kind, uri))
            elif event.kind == _LOG:
                params = event.read(types.LoggingMessageParams)
                minimum = self.outer.log_level
                if minimum is not None and SEVERITY[params.level] >= SEVERITY[minimum]:
                    await self._send(_LOG, params, lane)
            elif event.kind == _ELICITATION_COMPLETE:
                completed = event.read(types.ElicitationCompleteParams)
                if self.outer.elicitations.end(completed.elicitation_id):
                    await self._send(_ELICITATION_COMPLETE, completed, lane)
            else:
                self.outer.notify_session((event.kind, None))

    async def _send(self, method: str, params: Any, lane: Lane | None) -> None:
        """Send a notification to a legacy client."""
        queue, connection = self.session.send_queue, self.session.connection
        await queue.room_for_message(lane)
        queue.post(connection.notification(method, params), lane, at_once=True)


# The part that only effects use -----------------------------------------------------------------


@attrs.define(eq=False, repr=False)
class RemoteCall:
    """A request to a mounted server: a task that sends it, and the events for its handler.

    Attributes:
        has_begun: Whether the request was begun in this instance, and not in a replay.
    """

    send: "Send"
    has_begun: bool = attrs.field(default=False, init=False)
    events: deque[MountEvent] = attrs.field(factory=deque[MountEvent], init=False)
    # Wake the handler, which waits for an event, and the task, which waits for room or an answer.
    _handler_wakeup: Wakeup = attrs.field(factory=Wakeup, init=False)
    _call_wakeup: Wakeup = attrs.field(factory=Wakeup, init=False)
    _numbers: Iterator[int] = attrs.field(factory=itertools.count, init=False)
    _answers: dict[int, ClientAnswer] = attrs.field(factory=dict[int, ClientAnswer], init=False)
    # The progress of the client that is asked, for the mounted server; the oldest is dropped.
    _progress: deque[tuple[int, types.ProgressParams]] = attrs.field(
        factory=partial(deque[Any], maxlen=_EVENTS_QUEUED_MAX), init=False
    )
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    has_ended: bool = attrs.field(default=False, init=False)

    async def run(self, connection: "RemoteConnection") -> None:
        """Send the request, which is one of the connection's calls, and report how it ends."""
        try:
            with self._scope:
                try:
                    event = await self.send(connection, self)
                except RequestError as error:
                    event = _mount_event("error", Failure.of(error))
                except Unavailable as error:
                    event = _mount_event("lost", str(error))
                except MCPError as error:
                    event = _mount_event("lost", f"did not answer: {_first_line(error)}")
                except Exception:
                    logger.exception("a request to %s failed", connection.mount.label)
                    event = _mount_event("lost", f"did not answer: {CRASH_TEXT}")
                await self.put(event)
        finally:
            self.end()
            try:
                if self._scope.cancelled_caught:
                    await connection.settle_cancellation()
            finally:
                del connection.calls[self]

    async def put(self, event: MountEvent) -> None:
        """Report an event to the handler; wait while the handler is far behind."""
        while len(self.events) >= _EVENTS_QUEUED_MAX and not self.has_ended:
            await self._call_wakeup.wait()
        self.events.append(event)
        self._handler_wakeup.wake()

    async def report_progress(self, params: types.ProgressParams) -> None:
        """Report progress, without the token and the metadata of this connection."""
        progress = msgspec.structs.replace(params, progress_token=0, meta=None)
        await self.put(_mount_event("progress", progress))

    def report_to_server(self, number: int, params: types.ProgressParams) -> None:
        """Report the progress of the client that is asked; called by the handler, never waits."""
        self._progress.append((number, params))
        self._call_wakeup.wake()

    async def ask(self, method: str, params: Any, report: ReportProgress | None = None) -> Any:
        """Ask the client of the session, by the handler, and return the result.

        `report` reports the progress of the client to the mounted server.

        Raises:
            RequestError: The client answered with an error, or the request has ended.
        """
        number = next(self._numbers)
        encoded = msgspec.Raw(msgspec.json.encode(params))
        await self.put(_mount_event("question", MountedQuestion(number, method, encoded)))
        try:
            while True:
                if self.has_ended:
                    raise RequestError(INTERNAL_ERROR, "the request of the client has ended")
                if self._progress and self._progress[0][0] == number:
                    _, progress = self._progress.popleft()
                    if report is not None:
                        await report(progress.progress, progress.total, progress.message)
                    self._call_wakeup.wake()
                elif number in self._answers:
                    break
                else:
                    await self._call_wakeup.wait()
        except trio.Cancelled:
            self.events.append(_mount_event("withdrawn", number))
            self._handler_wakeup.wake()
            raise
        finally:
            left = [each for each in self._progress if each[0] != number]
            self._progress.clear()
            self._progress.extend(left)
        answer = self._answers.pop(number)
        if answer.failure is not None:
            raise answer.failure.error()
        assert answer.result is not None
        return METHODS[method].decode_result(answer.result)

    async def answer(self, number: int, answer: ClientAnswer) -> MountEvent:
        """Pass on the answer to a question."""
        self._answers[number] = answer
        self._call_wakeup.wake()
        return MountEvent("answered")

    async def next_event(self) -> MountEvent:
        """Return the next event."""
        while not self.events:
            await self._handler_wakeup.wait()
        event = self.events.popleft()
        self._call_wakeup.wake()
        return event

    def end(self) -> None:
        """Cancel the request, if it has not ended."""
        self.has_ended = True
        self._scope.cancel()
        self._call_wakeup.wake()


Send: TypeAlias = "Callable[[RemoteConnection, RemoteCall], Awaitable[MountEvent]]"
"""Sends a request and returns its end."""


@attrs.define(eq=False, repr=False)
class RemoteConnections:
    """The connections of one session to a mounted server, and its queued notifications.

    Attributes:
        may_have_changed: Whether the client of the session may know lists of another connection.
    """

    mount: RemoteMount
    session: Session
    may_have_changed: bool
    _connections: "list[RemoteConnection]" = attrs.field(factory=list[Any], init=False)
    _notifications: deque[MountEvent] = attrs.field(factory=deque[MountEvent], init=False)
    _notification_queued: Wakeup = attrs.field(factory=Wakeup, init=False)
    _is_started: bool = attrs.field(default=False, init=False)
    _ready: trio.Event = attrs.field(factory=trio.Event, init=False)
    _nursery: trio.Nursery = attrs.field(init=False)
    _variables: Variables = attrs.field(init=False)

    async def begin(self, key: ConnectionKey, call: RemoteCall) -> MountEvent:
        """Begin a request, and return its first event."""
        call.has_begun = True
        if not self._is_started:
            self._is_started = True
            self.session.start_actor(self._run)
        await self._ready.wait()
        while True:
            alike = [each for each in self._connections if each.key == key]
            connection = next((each for each in alike if each.has_room), None)
            connecting = next((each for each in alike if each.is_connecting), None)
            if connection is not None or connecting is None:
                break
            # Whether requests can share a connection is known once the server is connected.
            await connecting.wait_connected()
        if connection is None:
            connections_max = self.session.connection.limits.requests.mount_connections_max
            if len(self._connections) >= connections_max:
                unused = next((each for each in self._connections if not each.is_used), None)
                if unused is None:
                    name = f"limits.requests.mount_connections_max={connections_max}"
                    text = f"has too many connections of requests that use it ({name})"
                    return _mount_event("lost", text)
                self._connections.remove(unused)
                self.start(unused.aclose)
            connection = RemoteConnection(
                self.mount, key, self._notified, may_have_changed=self.may_have_changed
            )
            self._connections.append(connection)
            self.start(connection.keep_connected)
        connection.calls[call] = None
        self.start(partial(call.run, connection))
        return await call.next_event()

    def start(self, task: Callable[[], Awaitable[None]]) -> None:
        """Start a task beside the session, in no lane, until the session ends."""
        self._variables.run(self._nursery.start_soon, task)

    async def next_notification(self) -> MountEvent:
        """Return the next notification that belongs to no request."""
        while not self._notifications:
            await self._notification_queued.wait()
        return self._notifications.popleft()

    def unsubscribe(self, uri: str) -> None:
        """End a subscription to a resource, in one connection that has it, without waiting."""
        for connection in self._connections:
            if connection.subscribed[uri] > 0:
                self.start(partial(connection.unsubscribe, uri))
                return

    def roots_changed(self) -> None:
        """Notify the mounted server that the roots of the session's client have changed."""
        for connection in self._connections:
            self.start(connection.notify_roots_changed)

    def _notified(self, event: MountEvent) -> None:
        is_repeated = event.kind != _LOG and event in self._notifications
        queued_max = self.session.connection.limits.messages.notifications_queued_max
        if not is_repeated and len(self._notifications) < queued_max:
            self._notifications.append(event)
            self._notification_queued.wake()

    async def _run(self) -> None:
        self._variables = copy_context()
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._ready.set()
                await trio.sleep_forever()
        finally:
            await call_concurrently(self._connections, RemoteConnection.aclose)


@attrs.define(eq=False, repr=False)
class RemoteConnection:
    """A connection to a mounted server, which is opened again when it is lost.

    Attributes:
        key: The options that depend on the client of the session.
        on_notification: Called with each notification that belongs to no request.
        may_have_changed: Whether its first opening is reported as a change of all lists.
        subscribed: The number of subscriptions to each resource.
        calls: The requests that run, the newest last.
    """

    mount: RemoteMount
    key: ConnectionKey
    on_notification: Callable[[MountEvent], None]
    may_have_changed: bool
    subscribed: Counter[str] = attrs.field(factory=Counter[str], init=False)
    calls: dict[RemoteCall, None] = attrs.field(factory=dict[RemoteCall, None], init=False)
    # The latest client, and the same while it is connected.
    _client: Client | None = attrs.field(default=None, init=False)
    _open_client: Client | None = attrs.field(default=None, init=False)
    _keep_scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _loss: str = attrs.field(default="", init=False)
    _retry_at: float = attrs.field(default=math.inf, init=False)
    _state_wakeup: Wakeup = attrs.field(factory=Wakeup, init=False)

    @property
    def is_used(self) -> bool:
        """Return whether requests are running, or resources are subscribed to."""
        return bool(self.calls or +self.subscribed)

    @property
    def has_room(self) -> bool:
        """Return whether another request may run; the module's docstring gives the reason."""
        if not (self.key.is_stateless and self.key.can_ask):
            return True
        client = self._open_client
        if client is None or not PROTOCOL_VERSIONS[client.protocol_version].is_stateless:
            return not self.calls
        return True

    @property
    def is_connecting(self) -> bool:
        """Return whether the first try to connect has not ended."""
        return self._open_client is None and not self._loss

    async def wait_connected(self) -> None:
        """Wait for the first try to connect."""
        while self.is_connecting:
            await self._state_wakeup.wait()

    async def client(self) -> Client:
        """Return the connected client; wait for the first try to connect.

        Raises:
            Unavailable: The server is not connected.
        """
        await self.wait_connected()
        if self._open_client is None:
            seconds = max(self._retry_at - trio.current_time(), 0)
            raise Unavailable(
                f"is connected again in {seconds:.1f} s at the earliest: {_first_line(self._loss)}"
            )
        return self._open_client

    async def request(self, call: RemoteCall, *, method: str, params: Any) -> MountEvent:
        """Send a request, and return how it ends."""
        client = await self.client()
        is_stateless = PROTOCOL_VERSIONS[client.protocol_version].is_stateless
        if isinstance(params, types.InputResponseParams) and not is_stateless:
            params = msgspec.structs.replace(params, input_responses=None, request_state=None)
        send = partial(
            client.request,
            method,
            params,
            progress=call.report_progress,
            rounds=False,  # This server asks its own client, for the mounted one.
        )
        try:
            result = await send()
        except RequestError as error:
            if error.code != HEADER_MISMATCH:
                raise
            # The mounted server has rejected parameter headers, which depend on its list of tools.
            await client.list_tools()
            result = await send()
        # Log messages that arrived before the result belong to this request.
        await notifications_handled(client)
        is_question = isinstance(result, types.InputRequiredResult)
        return _mount_event("input required" if is_question else "result", result)

    async def settle_cancellation(self) -> None:
        """Wait, in bounded time, until the server has seen the cancellation of a request.

        A question or a log message that it has sent before must not reach another client, which may
        be that of the next request.
        """
        if self.key.is_stateless and self._open_client is not None:
            with (
                suppress(MCPError),
                trio.move_on_after(self.mount.template.limits.shutdown.close_seconds),
            ):
                await self._open_client.ping()

    async def keep_connected(self) -> None:
        """Connect, and connect again whenever the connection is lost, after growing pauses."""
        failures = 0
        limits, random_source = self.mount.template.limits, self.mount.random_source
        with self._keep_scope:
            while True:
                try:
                    client = await self._connect()
                except MCPError as error:
                    self._lose(str(error))
                except Exception:  # Such as an invalid option.
                    logger.exception("connecting to %s failed", self.mount.label)
                    self._lose(CRASH_TEXT)
                else:
                    self._open_client, self._loss, failures = client, "", 0
                    self._state_wakeup.wake()
                    if self.may_have_changed:
                        for kind in ("tools", "resources", "prompts"):
                            self._list_changed(kind)
                        for uri in +self.subscribed:
                            self._resource_updated(types.ResourceUpdatedParams(uri=uri))
                    self.may_have_changed = True  # while the connection is lost
                    while not self._loss:
                        await self._state_wakeup.wait()
                logger.warning("%s, is not connected: %s", self.mount.label, self._loss)
                seconds = pause_seconds(failures, limits, random_source)
                failures += 1
                self._retry_at = trio.current_time() + seconds
                self._open_client = None
                self._state_wakeup.wake()
                await trio.sleep(seconds)

    async def aclose(self) -> None:
        """Close the connection, shielded, in bounded time."""
        self._keep_scope.cancel()
        self._lose("closed on this side")  # Requests may wait for the connection.
        if self._client is not None:
            with trio.CancelScope(shield=True):
                await self._client.aclose()

    async def unsubscribe(self, uri: str) -> None:
        """End a subscription to a resource; an error is logged."""
        self.subscribed[uri] -= 1
        if self.subscribed[uri] == 0 and self._open_client is not None:
            await self._send_or_log(partial(self._open_client.unsubscribe, uri))

    async def notify_roots_changed(self) -> None:
        """Notify the server that the roots have changed; an error is logged."""
        if self._open_client is not None and self.key.has_roots and not self.key.is_stateless:
            await self._send_or_log(self._open_client.notify_roots_changed)

    async def _send_or_log(self, send: Callable[[], Awaitable[None]]) -> None:
        try:
            await send()
        except MCPError as error:
            logger.warning("%s: %s", self.mount.label, error)

    async def _connect(self) -> Client:
        """Open the connection, or open it again, and return its client."""
        if self._client is not None:
            if self._client.state != "closed":  # A request may have connected again meanwhile.
                await self._client.ping()
                return self._client
            await self._client.aclose()
        template, key = self.mount.template, self.key
        options: dict[str, Any] = {
            "state_changed": self._state_changed,
            "list_changed": _both(template.list_changed, self._list_changed),
            "resource_updated": _both(template.resource_updated, self._resource_updated),
        }
        if can_open_again(template.target) or is_http_target(template.target):
            options["restart"] = True
        if key.has_log:
            options["log"] = _both(template.log, self._logged)
            # Each request of a stateless client has a level of its own, by which it is sent on.
            options["log_level"] = template.log_level or ("debug" if key.is_stateless else None)
        if template.elicitation is None and key.modes:
            options["elicitation"] = partial(self._ask, "elicitation/create")
            options["elicitation_modes"] = key.modes

            def completed(elicitation_id: str) -> None:
                params = types.ElicitationCompleteParams(elicitation_id=elicitation_id)
                self.on_notification(_mount_event(_ELICITATION_COMPLETE, params))

            options["elicitation_complete"] = _both(template.elicitation_complete, completed)
        if template.sampling is None and key.has_sampling:

            async def sample(params: types.CreateMessageParams, report: ReportProgress) -> Any:
                return await self._ask("sampling/createMessage", params, report)

            options["sampling"] = sample
            options["sampling_tools"] = key.has_sampling_tools
        if template.roots is None and key.has_roots:

            async def roots() -> list[types.Root]:
                result: types.ListRootsResult = await self._ask("roots/list", {})
                return result.roots

            options["roots"] = roots
        self._client = client = attrs.evolve(template, **options)
        await client.__aenter__()
        for uri in +self.subscribed:
            await self._send_or_log(partial(client.subscribe, uri))
        return client

    def _lose(self, reason: str) -> None:
        self._loss = reason or "the connection was lost"
        self._state_wakeup.wake()

    # Callbacks of the client, and questions for the client of the session.

    def _state_changed(self, state: State, reason: str) -> None:
        if self.mount.template.state_changed is not None:
            self.mount.template.state_changed(state, reason)
        client = self._open_client
        # Over HTTP a stream may break, and be opened again, while the session goes on.
        if client is not None and (
            state == "closed" or (state == "retrying" and not client.is_open)
        ):
            self._open_client = None
            self._lose(reason)

    def _list_changed(self, kind: str) -> None:
        self.on_notification(_mount_event(list_changed(kind)[0], {}))

    def _resource_updated(self, params: types.ResourceUpdatedParams) -> None:
        self.on_notification(_mount_event(RESOURCE_UPDATED, params))

    async def _logged(self, params: types.LoggingMessageParams) -> None:
        """Pass a log message to a running request; its client is the only one that may see it."""
        if params.level not in get_args(types.LoggingLevel):
            return
        if self.calls and (len(self.calls) == 1 or not self.key.is_stateless):
            await next(reversed(self.calls)).put(_mount_event("log", params))
        elif not self.key.is_stateless:
            self.on_notification(_mount_event(_LOG, params))

    async def _ask(self, method: str, params: Any, report: ReportProgress | None = None) -> Any:
        """Ask the client of the newest request that runs."""
        if not self.calls:
            text = f"{method}: no request is running, so there is no client to ask"
            raise RequestError(INTERNAL_ERROR, text)
        return await next(reversed(self.calls)).ask(method, params, report)


def _both(given: Any, own: Any) -> Any:
    """Return a callback that calls the one of the mounted client, and then that of this module."""
    if given is None:
        return own

    async def call(*arguments: Any) -> None:
        for callback in (given, own):
            value: Any = callback(*arguments)
            if isawaitable(value):
                await value

    return call
