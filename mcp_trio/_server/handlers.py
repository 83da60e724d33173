"""The server's side of one session: from a request to the handler, and to its result.

`Handling._handle` calls `ServedSession.handle` for each request; until its first wait, the handler
runs in the task that reads messages. `_METHODS` names the function for each method; each one looks
up the registered handler, decodes the arguments, runs the handler with a context, and converts the
value that it returned.
"""

import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, TypeVarTuple, cast

import attrs
import msgspec
import trio

from mcp_trio import types
from mcp_trio._journal.records import ALLOWED_MARK, DENIED_MARK
from mcp_trio._jsonrpc.channel_messages import AuthInfo
from mcp_trio._protocol.client_features import OpenElicitations
from mcp_trio._protocol.compat import CompatibleToolResult
from mcp_trio._protocol.methods import LISTEN, Method
from mcp_trio._protocol.requests import IncomingRequest
from mcp_trio._protocol.shares import shares_of
from mcp_trio._protocol.uri_templates import UriError
from mcp_trio._server.access import (
    AccessRule,
    Selection,
    Unregistered,
    Visibility,
)
from mcp_trio._server.client_requests import elicit_urls
from mcp_trio._server.context import Context, ThreadContext
from mcp_trio._server.continuation import (
    KeptCalls,
    KeptValues,
    SessionValues,
    is_kept,
    keep_values,
    restore_values,
    run_kept_call,
)
from mcp_trio._server.effects import CURRENT_CONTEXT, CurrentContext
from mcp_trio._server.middleware import MiddlewareRequest, run_through, typed_result
from mcp_trio._server.mounts import Mount
from mcp_trio._server.registry import (
    LISTS,
    Registered,
    RegisteredEntry,
    RegisteredResource,
    RegisteredTool,
    Registry,
    completion_result,
    item_key,
    method_result,
    target_of,
)
from mcp_trio._server.results import prompt_result, resource_result, tool_failure, tool_result
from mcp_trio._server.resumable import SealedRounds
from mcp_trio._server.signatures import ArgumentsError
from mcp_trio._server.subscriptions import (
    Announcer,
    Change,
    Subscription,
    Subscriptions,
    honoured_filter,
    list_changed,
)
from mcp_trio._server.threads import NESTED_LIMITER, ClientThreads, ThreadBridge, run_in_thread
from mcp_trio._session.effects import abandon_effect
from mcp_trio._session.exceptions import sole_exception
from mcp_trio._session.handlers import Handling, lane_of_caller
from mcp_trio._session.json_forms import encode_value
from mcp_trio._session.lanes import LANE, Lane
from mcp_trio._session.session import Session
from mcp_trio._transports.concurrency import FairSemaphore
from mcp_trio.errors import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    RESOURCE_NOT_FOUND,
    SERVER_BUSY,
    AccessDenied,
    RequestError,
    ResourceNotFound,
    ToolError,
    UrlElicitationRequired,
)

if TYPE_CHECKING:
    from mcp_trio._auth.resource_server import ResourceServer
    from mcp_trio._server.remote_mounts import RemoteMount, RemoteSession
    from mcp_trio._server.server import Server
    from mcp_trio._server.sessions import HandlerHttpClient, ServerSessions

_Result: TypeAlias = msgspec.Struct | msgspec.Raw

logger = logging.getLogger("mcp_trio")

ROOTS_CHANGED: Final = "notifications/roots/list_changed"

T = TypeVar("T")
Values = TypeVarTuple("Values")


@attrs.define(kw_only=True, eq=False, repr=False)
class ServedSession:
    """The `Application` of a server's session: finds and runs the handler of each request.

    Attributes:
        shared: The state that all sessions of the server share.
        announcer: Sends notifications of changes to the client.
        lifespan: The value of the server's lifespan.
        rounds: Resumes handlers that ask a stateless client, with each further request.
        outer: For a mounted server, the `ServedSession` of the server whose session this is.
        mounted_lifespans: The values of the lifespans of mounted servers.
        calls: The store of calls that another instance can continue; None without one.
        kept_values: The values with which another instance can continue the session; None without
            other instances.
        may_move: Whether another instance may continue the session: the server has other instances,
            or it is a replay, whose recording may be of such a server.
        was_taken: Whether this instance has taken the session from another one.
    """

    shared: "ServerSessions"
    registry: Registry
    announcer: Announcer
    lifespan: Any
    http: "HandlerHttpClient"
    rounds: SealedRounds
    outer: "ServedSession | None" = None
    mounted_lifespans: "Mapping[ServerSessions, Any] | None" = None
    calls: KeptCalls | None = attrs.field(default=None, init=False)
    kept_values: KeptValues | None = attrs.field(default=None, init=False)
    may_move: bool = attrs.field(default=False, init=False)
    was_taken: bool = attrs.field(default=False, init=False)
    _log_level: types.LoggingLevel | None = attrs.field(default="debug", init=False)
    # These are created on first use, to save the memory of idle sessions.
    _state: dict[str, Any] | None = attrs.field(default=None, init=False)
    _visibility: Visibility | None = attrs.field(default=None, init=False)
    _elicitations: OpenElicitations | None = attrs.field(default=None, init=False)
    _subscriptions: Subscriptions | None = attrs.field(default=None, init=False)
    _own_thread_limiter: FairSemaphore | None = attrs.field(default=None, init=False)
    _remotes: "dict[RemoteMount, RemoteSession] | None" = attrs.field(default=None, init=False)
    _mounted_sessions: "dict[ServerSessions, ServedSession] | None" = attrs.field(
        default=None, init=False
    )

    @property
    def server(self) -> "Server":
        return self.shared.server

    @property
    def sends_error_texts(self) -> bool:
        """True if clients receive the text of an unexpected exception of a handler."""
        return self.server.errors == "message"

    @property
    def log_level(self) -> types.LoggingLevel | None:
        """The level that `logging/setLevel` has set; None if no log messages are sent."""
        return self._log_level if self.outer is None else self.outer.log_level

    @property
    def state(self) -> dict[str, Any]:
        """The values that handlers and middleware keep for the session."""
        if self.outer is not None:
            return self.outer.state
        if self._state is None:
            self._state = {}
        return self._state

    def movable_values(self) -> bytes | None:
        """Return the values with which another instance can continue the session.

        None if no other instance can: there is none, or the store cannot have the values that
        handlers keep.
        """
        if self.kept_values is None:
            return None
        mounted: dict[str, Visibility] = {}
        for sessions, part in (self._mounted_sessions or {}).items():
            if part._visibility is not None:  # noqa: SLF001
                by_name = self.shared.mounted_by_name()
                name = next(name for name, each in by_name.items() if each is sessions)
                mounted[name] = part._visibility  # noqa: SLF001
        return self.kept_values.encoded(self._state, self._visibility, mounted)

    def encoded_state(self) -> bytes:
        """Return `ctx.state` as JSON; empty bytes if a value in it has no JSON form."""
        try:
            return encode_value(self.state)
        except ValueError:
            return b""

    def set_values(self, values: SessionValues) -> None:
        """Set the values of the session, which `movable_values` encoded in its former instance."""
        self._state = values.decoded_state()
        self._visibility = Visibility.of(values.visibility) if values.visibility else None
        by_name = self.shared.mounted_by_name() if values.mounted else {}
        for name, decisions in values.mounted.items():
            part = self.mounted_session(by_name[name])
            part._visibility = Visibility.of(decisions)  # noqa: SLF001

    @property
    def elicitations(self) -> OpenElicitations:
        """The URL elicitations that are not complete yet."""
        if self.outer is not None:
            return self.outer.elicitations
        if self._elicitations is None:
            self._elicitations = OpenElicitations(
                self.registry.limits.requests.elicitations_remembered_max
            )
        return self._elicitations

    @property
    def _thread_limiter(self) -> FairSemaphore:
        if self.outer is not None:
            return self.outer._thread_limiter  # noqa: SLF001
        if self._own_thread_limiter is None:
            self._own_thread_limiter = FairSemaphore(
                shares_of("limits.requests.threads_max", self.registry.limits)
            )
        return self._own_thread_limiter

    def on_session_open(self, session: Session) -> None:
        """Start announcing changes to the client; called when the session opens."""
        self.may_move = session.sequencer.replays
        self.announcer.join(session)

    def on_session_restart(self) -> None:
        """Forget the client's subscriptions, log level and state, as in a new session."""
        self._log_level = "debug"
        self._state = None
        for each in (self, *(self._mounted_sessions or {}).values()):
            each._visibility = None  # noqa: SLF001
        self._elicitations = None
        for uri in self.announcer.subscribed:
            self._unsubscribe_remote(uri)
        self.announcer.restart()

    def on_session_close(self) -> None:
        """Stop announcing changes; called when the session closes."""
        self.announcer.leave()

    # Visibility of entries.

    def is_visible(self, entry: RegisteredEntry | Unregistered) -> bool:
        """Return whether the client of this session sees an entry of a list, and may use it."""
        decision = None if self._visibility is None else self._visibility.decision(entry)
        if decision is None:
            decision = self.registry.visibility.decision(entry)
        if decision is False:
            return False
        origin = entry.origin
        if origin is None:
            return True
        mounted = self.mounted_session(origin.mount.inner)
        return mounted.is_visible(cast("RegisteredEntry", origin.entry))

    def show_or_hide(self, selection: Selection, *, shows: bool) -> None:
        """Show or hide entries in this session, and notify its client of the changed lists.

        Raises:
            LookupError: Nothing is registered under one of the names.
        """
        if self._visibility is None:
            self._visibility = Visibility()
        visibility = self._visibility
        for kind in self.registry.change_visibility(
            selection, visibility, self.is_visible, shows=shows
        ):
            self.announcer.notify(list_changed(kind))

    # From a request to the function that answers its method. Every coroutine between the session
    # and a handler slows down each wait of the handler. Therefore a function that only chooses the
    # next one returns its awaitable.

    def handle(self, handling: Handling) -> Awaitable[_Result]:
        """Return the result of a request; raise the error of its handler, or a `RequestError`."""
        # A first request, which has no state and no answers yet, is a round as well: the state of a
        # resumable handler begins with it.
        if handling.ask_in_rounds is not None:
            return self.rounds.answer_round(handling, self)
        if self.may_move:
            return self._handle_and_keep_values(handling)
        return self.run_with_middleware(handling)

    async def handle_in_session(self, handling: Handling) -> _Result:
        """Return the result of a request of a legacy client, whose questions are sent at once."""
        result = await self.run_with_middleware(handling)
        if isinstance(result, types.InputRequiredResult):
            return await self.ask_in_session(handling, result)
        return result

    def ask_in_session(
        self, handling: Handling, required: types.InputRequiredResult
    ) -> Awaitable[_Result]:
        """Send the questions of a handler, and return the result of its last round.

        Raises:
            TypeError: The method of the request has no such rounds.
        """
        if not handling.request.has_rounds:
            raise TypeError(
                f"{handling.request.method.name} cannot ask the client by an InputRequiredResult"
            )
        return self.rounds.ask_in_session(handling, self, required)

    async def _handle_and_keep_values(self, handling: Handling) -> _Result:
        """Return the result of a request, and store the values that other instances need."""
        restore_values(handling, self)
        try:
            if not is_kept(handling, self):
                result = await self.handle_in_session(handling)
            else:
                result = await run_kept_call(handling, self)
        except Exception:
            await keep_values(handling, self)
            raise
        await keep_values(handling, self)
        return result

    def failure_result(self, request: IncomingRequest, text: str) -> types.CallToolResult | None:
        """Return the result with `isError` for a failed call of a tool; None for other methods."""
        return tool_failure(self._shortened(text)) if request.method.name == "tools/call" else None

    def entry(self, request: IncomingRequest) -> RegisteredEntry | None:
        """Return the tool, prompt or resource of a request; None if it is not registered.

        None as well if the user has registered a handler for the method itself. Access and
        visibility are not checked.
        """
        method, params, registry = request.method.name, request.params, self.registry
        if method in registry.methods:
            return None
        if method == "tools/call":
            return registry.tools.get(params.name)
        if method == "prompts/get":
            return registry.prompts.get(params.name)
        try:
            found = registry.find_resource(params.uri)
        except UriError:
            return None
        return None if found is None else found[0]

    def run_with_middleware(self, handling: Handling) -> Awaitable[_Result]:
        """Return the result of a request's handler, run from its beginning, with all middleware."""
        request = handling.request
        method, params = request.method.name, request.params
        if self.shared.middleware:
            run = partial(self._run_handler, handling, method)
            return self._through_middleware(handling, method, params, run)
        if method == "tools/call" and not self.registry.methods:
            return self.call_tool(handling, params)  # most requests; it needs no `_run_handler`
        return self._run_handler(handling, method, params)

    def _through_middleware(
        self, handling: Handling, method: str, params: Any, run: Callable[[Any], Awaitable[_Result]]
    ) -> Awaitable[_Result]:
        """Call `run` with the params, inside of all middleware of the server."""
        middleware = self.shared.middleware
        if not middleware:
            return run(params)

        async def innermost(request: MiddlewareRequest) -> _Result:
            return typed_result(method, await run(request.params))

        context = Context(handling, self)
        request = MiddlewareRequest(method=method, params=params, context=context)
        return run_through(middleware, request, innermost)

    async def _run_handler(self, handling: Handling, method: str, params: Any) -> _Result:
        """Run the handler of a request.

        It runs again when it has raised `UrlElicitationRequired` and the user has agreed to visit
        the URLs. `call_tool` does so by itself.
        """
        while True:
            try:
                registered = self.registry.methods.get(method)
                if registered is None:
                    return await _METHODS[method](self, handling, params)
                value = await self._call(registered, handling, params)
                return _converted(registered, method_result, value, self.shared.writer)
            except Exception as error:
                if not await self._elicited_urls(handling, sole_exception(error)):
                    raise

    async def _elicited_urls(self, handling: Handling, error: Exception) -> bool:
        """Ask the user to visit the URLs that a handler needs; False if it raised another error."""
        if not isinstance(error, UrlElicitationRequired):
            return False
        await elicit_urls(handling, self, error)
        return True

    # Mounted servers.

    def mounted_session(self, sessions: "ServerSessions") -> "ServedSession":
        """Return the `ServedSession` of a mounted server, as a part of this session."""
        if self.outer is not None:
            return self.outer.mounted_session(sessions)
        if self._mounted_sessions is None:
            self._mounted_sessions = {}
        if sessions not in self._mounted_sessions:
            self._mounted_sessions[sessions] = sessions.mounted_in(self)
        return self._mounted_sessions[sessions]

    def remote(self, mount: "RemoteMount", handling: Handling) -> "RemoteSession":
        """Return a remote server as a part of this session."""
        if self.outer is not None:
            return self.outer.remote(mount, handling)
        if self._remotes is None:
            self._remotes = {}
        if mount not in self._remotes:
            self._remotes[mount] = mount.begin(self, handling.session, len(self._remotes))
        return self._remotes[mount]

    def notify_session(self, change: Change) -> None:
        """Notify the clients of this session of a change, and no other clients of the server."""
        self.announcer.notify(change)
        if self._subscriptions is not None:
            self._subscriptions.notify(change)

    async def run_mounted(
        self, handling: Handling, method: str, params: Any, *, is_for_client: bool
    ) -> _Result:
        """Return the result of a handler of this mounted server, with the server's middleware.

        `params` have the names and URIs of this server. `is_for_client` is False if a handler reads
        a resource by `read_for_handler`.
        """

        async def run(params: Any) -> _Result:
            if not is_for_client:
                return await self.read_resource(handling, params, is_for_client=False)
            return await self._run_handler(handling, method, params)

        try:
            return await self._through_middleware(handling, method, params, run)
        except Exception:
            # The mounted server whose handler failed decides whether the client gets the text, but
            # not if a handler of another method has only read its resource.
            if handling.sends_error_texts is None and handling.request.method.name == method:
                handling.sends_error_texts = self.sends_error_texts
            raise

    async def list_mounted(self, handling: Handling, method: str) -> list[Any]:
        """Return the complete list of this mounted server, a single page for its middleware."""
        listing = LISTS[method]

        async def run(_: Any) -> _Result:
            items, hints = await self._items(handling, method), self.registry.hints.members()
            return listing.result(**{listing.member: items}, **hints)

        params = types.PaginatedParams()
        page = await self._through_middleware(handling, method, params, run)
        items: list[Any] = getattr(page, listing.member)
        return items

    async def _items(self, handling: Handling, method: str) -> list[Any]:
        """Return the definitions of a complete list, with those of mounted servers.

        An entry of a mounted server is left out, and logged, if its name or URI is not possible
        here, or another entry has it.
        """
        registry, protocol_version = self.registry, handling.request.peer.protocol_version
        entries = {entry.key: entry for entry in LISTS[method].entries(registry)}
        unregistered = Unregistered(method.partition("/")[0])
        hidden = await self._hidden(handling, method)
        # An entry with an origin is listed by its mounted server, with that server's middleware.
        own = [
            each
            for key, each in entries.items()
            if each.origin is None
            and (self.is_visible(each) if hidden is None else key not in hidden)
        ]
        items = registry.definitions(method, own, protocol_version)
        keys = {item_key(item) for item in items}
        mounts: tuple[Mount | RemoteMount, ...] = (*registry.mounts, *registry.remotes)
        for mount in mounts:
            if await self._is_denied(handling, mount.rule):
                continue
            if isinstance(mount, Mount):
                mounted = await self.mounted_session(mount.inner).list_mounted(handling, method)
            elif not self.is_visible(unregistered):
                continue
            else:
                mounted = await self.remote(mount, handling).items(handling, method)
            for each in mounted:
                try:
                    item = mount.prefix.outer_item(each)
                except ValueError as error:
                    logger.warning("%s leaves out an entry of %s: %s", method, mount.label, error)
                    continue
                key = item_key(item)
                entry = entries.get(key)
                if not self.is_visible(entry or unregistered):
                    continue
                owner: Mount | RemoteMount | None = mount
                if entry is not None:
                    owner = None if entry.origin is None else entry.origin.mount
                elif (found := registry.find_mount(unregistered.kind, key)) is not None:
                    owner = found[0]
                # A client must not take the definition of one entry for that of another.
                if key in keys or owner is not mount:
                    text = "%s leaves out %r of %s: the server has another one of this name"
                    logger.warning(text, method, key, mount.label)
                    continue
                keys.add(key)
                items.append(item)
        return items

    def _mount_of_unregistered(
        self, kind: str, key: str, *, is_for_client: bool = True
    ) -> "tuple[Mount | RemoteMount, str] | None":
        """Return the mount of a remote server that may have an entry, and its key there.

        None if the entry is registered, or if the client does not see unregistered entries.
        """
        registry = self.registry
        if not registry.reaches_remotes or (kind == "resources" and self.shared.has_resource(key)):
            return None
        if is_for_client and not self.is_visible(Unregistered(kind)):
            return None
        return registry.find_mount(kind, key)

    def _use_mounted(
        self,
        kind: str,
        entry: RegisteredEntry | None,
        handling: Handling,
        method: str,
        params: Any,
    ) -> Awaitable[Any]:
        """Return the result for a tool or prompt that is not one of this server.

        `entry` is its registered entry; None for one that a remote server may have. One that is
        hidden from the client is as unknown as one that does not exist.
        """
        found = None
        if entry is None:
            found = self._mount_of_unregistered(kind, params.name)
        elif entry.origin is not None and self.is_visible(entry):
            found = entry.origin.mount, entry.origin.entry.name
        if found is None:
            raise self._unknown(kind, params.name)
        mount, name = found
        inner_params = msgspec.structs.replace(params, name=name)
        return self._forward_to_mount(mount, handling, method, inner_params, entry=entry)

    async def _forward_to_mount(
        self,
        mount: "Mount | RemoteMount",
        handling: Handling,
        method: str,
        params: Any,
        *,
        entry: Registered | None,
        is_for_client: bool = True,
    ) -> Any:
        """Return a mounted server's result, with URIs as clients of this server know them.

        `params` have the names and URIs of the mounted server. The access rule of the mount is
        checked first. For a registered `entry` that is the rule in its origin, which has the scopes
        of the entry as well.
        """
        origin = None if entry is None else entry.origin
        rule = mount.rule if origin is None else origin.rule
        if rule is not None and is_for_client:
            await self._check_access(handling, rule)
        if isinstance(mount, Mount):
            mounted = self.mounted_session(mount.inner)
            result = await mounted.run_mounted(
                handling, method, params, is_for_client=is_for_client
            )
        else:
            result = await self.remote(mount, handling).forward(handling, method, params)
        return mount.prefix.outer_result(result, mount.owns_uri, getattr(params, "uri", None))

    async def _read_in_mount(
        self,
        mount: "Mount | RemoteMount",
        inner_uri: str,
        handling: Handling,
        uri: str,
        *,
        entry: Registered | None = None,
        is_for_client: bool,
    ) -> types.ReadResourceResult | types.InputRequiredResult:
        """Read a resource of a mounted server; `ResourceNotFound` names the URI of this server."""
        params = types.ReadResourceParams(uri=inner_uri)
        try:
            result: types.ReadResourceResult = await self._forward_to_mount(
                mount, handling, "resources/read", params, entry=entry, is_for_client=is_for_client
            )
        except RequestError as error:
            if error.code != RESOURCE_NOT_FOUND or error.data != {"uri": inner_uri}:
                raise
            raise ResourceNotFound(uri, message=error.message.replace(inner_uri, uri)) from error
        return result

    # Notifications.

    def handles_notification(self, method: Method) -> bool:
        """Return whether a handler, middleware or a remote server takes a notification."""
        if method.name == ROOTS_CHANGED and self.registry.reaches_remotes:
            return True
        return method.name in self.registry.methods or bool(self.shared.middleware)

    async def notified(self, method: Method, params: Any) -> None:
        """Run the handler of a notification, with all middleware."""
        if method.name == ROOTS_CHANGED:
            for remote in (self._remotes or {}).values():
                remote.connections.roots_changed()

        async def run_handler(request: MiddlewareRequest) -> None:
            registered = self.registry.methods.get(request.method)
            if registered is None:
                return
            signature = registered.signature
            handler, keywords = signature.handler, signature.bind(request.params, None)
            if registered.runs_in_thread:
                sequencer = self.announcer.session.sequencer
                bridge = ThreadBridge(registered.name, sequencer, innermost_lane=_thread_lane())
                limiter = ClientThreads(self._thread_limiter, 0)
                await run_in_thread(handler, keywords, bridge=bridge, limiter=limiter)
            elif hasattr(value := handler(**keywords), "__await__"):
                await value

        request = MiddlewareRequest(method=method.name, params=params, context=None)
        await run_through(self.shared.middleware, request, run_handler)

    # Methods.

    async def list_page(self, handling: Handling, params: types.PaginatedParams) -> msgspec.Raw:
        """Answer a method that returns a list, such as `tools/list`."""
        request = handling.request
        method, protocol_version = request.method.name, request.peer.protocol_version
        if not self.shared.makes_lists_per_request:
            hidden = await self._hidden(handling, method)
            return self.registry.page(method, params.cursor, protocol_version, hidden)
        items = await self._items(handling, method)
        return self.registry.page_of(method, items, params.cursor, protocol_version)

    async def set_level(
        self, handling: Handling, params: types.SetLevelParams
    ) -> types.EmptyResult:
        """Answer `logging/setLevel`."""
        self._log_level = params.level
        for remote in tuple((self._remotes or {}).values()):
            await remote.set_log_level(handling, params.level)
        return types.EmptyResult()

    async def call_tool(
        self, handling: Handling, params: types.CallToolParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        """Answer `tools/call`; a `ToolError` becomes a result with `isError`.

        So do invalid arguments, depending on the protocol version. The tool runs again when it has
        raised `UrlElicitationRequired` and the user has agreed to visit the URLs. Other exceptions
        leave this method, and become such a result by `failure_result`.
        """
        registry, shared = self.registry, self.shared
        protocol_version = handling.request.peer.protocol_version
        while True:
            try:
                tool = registry.tools.get(params.name)
                # Nearly all servers hide nothing, and need no call to know that.
                hides = self._visibility is not None or registry.visibility.decisions
                if tool is None or tool.origin is not None or (hides and not self.is_visible(tool)):
                    mounted: types.CallToolResult = await self._use_mounted(
                        "tools", tool, handling, "tools/call", params
                    )
                    return mounted
                if tool.rule is not None:
                    await self._check_access(handling, tool.rule)
                raw = None if params.arguments is msgspec.UNSET else params.arguments
                try:
                    arguments = tool.signature.decode(raw)
                except ArgumentsError as error:
                    text = f"invalid arguments: {error}"
                    if protocol_version.argument_errors_are_results:
                        return tool_failure(text)
                    raise RequestError(INVALID_PARAMS, text) from error
                if tool.is_timed_or_transformed:
                    value = await self._call_timed_or_transformed(tool, handling, arguments)
                else:
                    value = await self._call(tool, handling, arguments)
                try:
                    # Neither middleware nor an outer server can add content that the client's
                    # protocol version lacks.
                    is_final = self.outer is None and not shared.middleware
                    return tool_result(
                        value,
                        shared.writer,
                        protocol_version,
                        tool.output,
                        CompatibleToolResult if is_final else types.CallToolResult,
                    )
                except TypeError as error:
                    _note_returned_by(tool, error)
                    raise
            except Exception as error:
                failure = sole_exception(error)
                if isinstance(failure, ToolError):
                    return tool_failure(str(failure))
                if not await self._elicited_urls(handling, failure):
                    raise

    async def read_for_handler(self, handling: Handling, uri: str) -> types.ReadResourceResult:
        """Read a resource, which may be hidden from the client, as a part of another request."""
        params = types.ReadResourceParams(uri=uri)
        result = await self.read_resource(handling, params, is_for_client=False)
        if isinstance(result, types.InputRequiredResult):
            raise TypeError(
                f"{uri!r} returned an InputRequiredResult; only a client's own resources/read may"
            )
        return result

    async def read_resource(
        self, handling: Handling, params: types.ReadResourceParams, *, is_for_client: bool = True
    ) -> types.ReadResourceResult | types.InputRequiredResult:
        """Answer `resources/read`; access rule and visibility count only if `is_for_client`."""
        uri = params.uri
        try:
            found = self._mount_of_unregistered("resources", uri, is_for_client=is_for_client)
            if found is not None:
                return await self._read_in_mount(*found, handling, uri, is_for_client=is_for_client)
            resource, values = self._find_resource(uri, is_for_client=is_for_client)
            if resource.origin is not None:
                mount = resource.origin.mount
                inner_uri = mount.prefix.inner_uri(uri) or uri
                return await self._read_in_mount(
                    mount, inner_uri, handling, uri, entry=resource, is_for_client=is_for_client
                )
            if is_for_client and resource.rule is not None:
                await self._check_access(handling, resource.rule)
            arguments = _decoded(resource.signature.decode_text, values)
            value = await self._call(resource, handling, arguments)
        except Exception as error:
            failure = sole_exception(error)
            if not isinstance(failure, RequestError) or failure.code != RESOURCE_NOT_FOUND:
                raise
            if handling.request.peer.protocol_version.resource_not_found_code == failure.code:
                raise
            text, data = self._shortened(failure.message), failure.data or {"uri": uri}
            raise ResourceNotFound(uri, message=text, data=data) from error
        result = _converted(
            resource, resource_result, uri, resource.mime_type, value, self.shared.writer
        )
        if isinstance(result, types.InputRequiredResult):
            return result  # It must not be cached.
        hints = resource.hints.members().items()
        missing = {name: hint for name, hint in hints if getattr(result, name) is None}
        return msgspec.structs.replace(result, **missing)

    def _find_resource(
        self, uri: str, *, is_for_client: bool = True
    ) -> tuple[RegisteredResource, dict[str, str]]:
        """Return the resource with a URI, and the values of the variables in its template.

        Raises:
            RequestError: There is no such resource, the URI is rejected, or the client does not see
                the resource; the last only if `is_for_client`.
        """
        try:
            found = self.registry.find_resource(uri)
        except UriError as error:
            raise self._rejection(INVALID_PARAMS, str(error), {"uri": uri}) from error
        if found is None or (is_for_client and not self.is_visible(found[0])):
            raise self._rejection(RESOURCE_NOT_FOUND, f"resource not found: {uri}", {"uri": uri})
        return found

    async def _check_resource(self, handling: Handling, uri: str, *, is_new: bool) -> None:
        """Check that a resource exists; subscribe to one of a remote server, if `is_new`."""
        found = self._mount_of_unregistered("resources", uri)
        if found is None:
            rule = self._find_resource(uri)[0].rule
            if rule is not None:
                await self._check_access(handling, rule)
            return
        mount, inner_uri = found
        if mount.rule is not None:
            await self._check_access(handling, mount.rule)
        if isinstance(mount, Mount):
            mounted = self.mounted_session(mount.inner)
            await mounted._check_resource(handling, inner_uri, is_new=is_new)  # noqa: SLF001
        elif is_new:
            await self.remote(mount, handling).subscribe(handling, inner_uri)

    def _unsubscribe_remote(self, uri: str) -> None:
        """End the subscription to a resource of a remote server, if it is one."""
        found = self._mount_of_unregistered("resources", uri, is_for_client=False)
        if found is None:
            return
        mount, inner_uri = found
        if isinstance(mount, Mount):
            self.mounted_session(mount.inner)._unsubscribe_remote(inner_uri)  # noqa: SLF001
            return
        remotes = (self.outer or self)._remotes or {}  # noqa: SLF001
        if mount in remotes:
            remotes[mount].connections.unsubscribe(inner_uri)

    async def subscribe(
        self, handling: Handling, params: types.SubscribeParams
    ) -> types.EmptyResult:
        """Answer `resources/subscribe`; the resource must exist."""
        is_new = params.uri not in self.announcer.subscribed
        await self._check_resource(handling, params.uri, is_new=is_new)
        subscriptions_max = self.registry.limits.requests.subscriptions_max
        subscribed = self.announcer.subscribed
        if is_new and params.uri in subscribed:
            self._unsubscribe_remote(params.uri)  # another request has subscribed to it meanwhile
        # The number is checked only now, because the check of the resource may have waited.
        if params.uri not in subscribed and len(subscribed) >= subscriptions_max:
            self._unsubscribe_remote(params.uri)  # the check has subscribed to it there
            text = f"too many subscriptions (limits.requests.subscriptions_max={subscriptions_max})"
            raise RequestError(SERVER_BUSY, text)
        self.announcer.subscribe(params.uri)
        return types.EmptyResult()

    async def unsubscribe(self, _: Handling, params: types.UnsubscribeParams) -> types.EmptyResult:
        """Answer `resources/unsubscribe`, also without a subscription."""
        if params.uri in self.announcer.subscribed:
            self._unsubscribe_remote(params.uri)
        self.announcer.unsubscribe(params.uri)
        return types.EmptyResult()

    async def listen(self, handling: Handling, params: types.ListenParams) -> types.ListenResult:
        """Answer `subscriptions/listen`, when the session closes."""
        if self._subscriptions is None:
            self._subscriptions = Subscriptions(self.registry.limits)
        client = handling.request.client_key
        self._subscriptions.check_room(client, params.notifications)
        capabilities = handling.session.connection.current_capabilities()

        # URIs whose check waits, for an access rule or a remote server; and those of them to which
        # this session is now subscribed at a remote server.
        unchecked: list[str] = []
        subscribed: list[str] = []

        def is_readable(uri: str) -> bool:
            if self._mount_of_unregistered("resources", uri) is not None:
                unchecked.append(uri)
                return True
            try:
                resource, _ = self._find_resource(uri)
            except RequestError:
                return False
            if resource.rule is not None:
                unchecked.append(uri)
            return True

        wanted = honoured_filter(params, capabilities, is_readable)
        try:
            for uri in unchecked:
                try:
                    await self._check_resource(handling, uri, is_new=True)
                except RequestError:
                    others = [each for each in wanted.resource_subscriptions or () if each != uri]
                    wanted = msgspec.structs.replace(wanted, resource_subscriptions=others or None)
                else:
                    if self._mount_of_unregistered("resources", uri) is not None:
                        subscribed.append(uri)
            if unchecked:  # Other servers, or the conditions of access rules, were waited for.
                self._subscriptions.check_room(client, params.notifications)
            subscription = Subscription(self.announcer.notifier, handling, wanted)
            return await self._subscriptions.run(client, subscription)
        finally:
            for uri in subscribed:
                self._unsubscribe_remote(uri)

    async def complete(
        self, handling: Handling, params: types.CompleteParams
    ) -> types.CompleteResult:
        """Answer `completion/complete`; an argument without a completion gets no values."""
        registry, argument = self.registry, params.argument
        target = target_of(params.ref)
        entry = registry.entry(target)
        found = None if entry is not None else self._mount_of_unregistered(*target)
        if found is not None:
            return await self._complete_in_mount(found[0], handling, params)
        if not (registry.completions or registry.reaches_remotes):
            raise RequestError(METHOD_NOT_FOUND, "method not found: this server has no completions")
        if entry is None or not self.is_visible(entry):
            raise self._unknown(*target)
        if argument.name not in entry.arguments:
            raise self._rejection(INVALID_PARAMS, f"unknown argument: {argument.name}")
        if entry.rule is not None and entry.origin is None:
            await self._check_access(handling, entry.rule)
        completion = registry.completions.get((target, argument.name))
        if completion is None:
            return completion_result(None)
        if completion.origin is not None:
            return await self._complete_in_mount(completion.origin.mount, handling, params, entry)
        value = await self._call(completion, handling, params)
        return _converted(completion, completion_result, value)

    async def _complete_in_mount(
        self,
        mount: "Mount | RemoteMount",
        handling: Handling,
        params: types.CompleteParams,
        entry: RegisteredEntry | None = None,
    ) -> types.CompleteResult:
        reference = mount.prefix.inner_reference(params.ref)
        inner_params = msgspec.structs.replace(params, ref=reference)
        result: types.CompleteResult = await self._forward_to_mount(
            mount, handling, "completion/complete", inner_params, entry=entry
        )
        return result

    async def get_prompt(
        self, handling: Handling, params: types.GetPromptParams
    ) -> types.GetPromptResult | types.InputRequiredResult:
        """Answer `prompts/get`."""
        prompt = self.registry.prompts.get(params.name)
        if prompt is None or prompt.origin is not None:
            mounted: types.GetPromptResult = await self._use_mounted(
                "prompts", prompt, handling, "prompts/get", params
            )
            return mounted
        if not self.is_visible(prompt):
            raise self._unknown("prompts", params.name)
        if prompt.rule is not None:
            await self._check_access(handling, prompt.rule)
        arguments = _decoded(prompt.signature.decode_text, params.arguments or {})
        value = await self._call(prompt, handling, arguments)
        return _converted(prompt, prompt_result, prompt.description, value)

    # Access.

    def auth_of(self, handling: Handling) -> AuthInfo | None:
        """Return the verified facts about the sender of a request; None without authentication."""
        auth, settings = handling.request.peer.auth, self._auth_settings
        return settings.local if auth is None and settings is not None else auth

    @property
    def _auth_settings(self) -> "ResourceServer | None":
        """The authorization of the server of the session; that of a mounted server is not used."""
        return (self.outer or self).server.auth

    async def _denial(self, handling: Handling, rule: AccessRule) -> AccessDenied | None:
        settings = self._auth_settings
        granted = frozenset[str]() if settings is None else settings.granted(self.auth_of(handling))
        return await rule.denial(granted, Context(handling, self))

    async def _check_access(self, handling: Handling, rule: AccessRule) -> None:
        """Check that the sender of a request may use an entry; record the decision.

        Raises:
            AccessDenied: The sender may not.
            Exception: The condition of the rule failed.
        """
        denial = await self._denial(handling, rule)
        lane = lane_of_caller(handling)
        if lane is not None:
            mark = ALLOWED_MARK if denial is None else DENIED_MARK
            handling.session.sequencer.marked(mark, {"scopes": rule.scopes}, lane)
        if denial is not None:
            if handling.observation is not None:
                handling.observation.activity.is_denied = True
            raise denial

    async def _hidden(self, handling: Handling, method: str) -> frozenset[str] | None:
        """Return the keys of the entries that a list does not show to the sender of the request.

        None if neither this session nor an access rule hides any: then the list has all entries
        that the server shows to all clients.
        """
        parts = (self, *(self._mounted_sessions or {}).values())
        hides = any(each._visibility is not None for each in parts)  # noqa: SLF001
        if not (hides or self.registry.restricted(method)):
            return None
        hidden = [
            entry.key
            for entry in tuple(LISTS[method].entries(self.registry))
            if await self._is_denied(handling, entry.rule) or not self.is_visible(entry)
        ]
        return frozenset(hidden)

    async def may_call(self, handling: Handling, name: str) -> bool:
        """Return whether the sender of a request sees the tool of this name, and may call it."""
        tool = self.registry.tools.get(name)
        if tool is None:
            found = self._mount_of_unregistered("tools", name)
            if found is None or await self._is_denied(handling, found[0].rule):
                return False
            mount, inner_name = found
            if not isinstance(mount, Mount):
                return True
            return await self.mounted_session(mount.inner).may_call(handling, inner_name)
        return self.is_visible(tool) and not await self._is_denied(handling, tool.rule)

    async def _is_denied(self, handling: Handling, rule: AccessRule | None) -> bool:
        return rule is not None and await self._denial(handling, rule) is not None

    def _unknown(self, kind: str, key: str) -> RequestError:
        return self._rejection(INVALID_PARAMS, f"unknown {kind.removesuffix('s')}: {key}")

    def _rejection(self, code: int, text: str, data: Any = None) -> RequestError:
        return RequestError(code, self._shortened(text), data)

    def _shortened(self, text: str) -> str:
        """Shorten an error text that quotes the client."""
        chars_max = self.registry.limits.messages.error_text_chars_max
        return text if len(text) <= chars_max else f"{text[:chars_max]}…"

    # From a method's function to the handler.

    def _call(self, registered: Registered, handling: Handling, arguments: Any) -> Awaitable[Any]:
        """Call a handler; return the awaitable of its value.

        If that is cancelled while the handler's thread runs, the thread is abandoned.
        """
        if registered.runs_in_thread:
            return self._call_in_thread(registered, handling, arguments)
        signature = registered.signature
        takes_context = signature.context_parameter is not None
        context = Context(handling, self) if takes_context else None
        CURRENT_CONTEXT.set(CurrentContext(handling, self))
        value: Any = signature.handler(**signature.bind(arguments, context))
        is_awaitable = value.__class__ is CoroutineType or hasattr(value, "__await__")
        return value if is_awaitable else _returned(value)

    async def _call_timed_or_transformed(
        self, tool: RegisteredTool, handling: Handling, arguments: Any
    ) -> Any:
        """Call a tool that has a time limit, or is transformed; return its value."""
        with trio.move_on_after(math.inf if tool.timeout is None else tool.timeout):
            return await self._call_transformed(tool, handling, arguments)
        raise ToolError(f"{tool.name!r} timed out: it did not finish within {tool.timeout:g} s")

    async def _call_transformed(
        self, tool: RegisteredTool, handling: Handling, arguments: Any
    ) -> Any:
        """Call the tool of which a transformed tool was made, or the user's wrapper of it.

        A tool that is not transformed is called itself.
        """
        transform = tool.transform
        if transform is None:
            return await self._call(tool, handling, arguments)

        async def call_base(given: Mapping[str, Any]) -> Any:
            base_arguments = transform.arguments(given)
            return await self._call_transformed(transform.base, handling, base_arguments)

        is_struct = isinstance(arguments, msgspec.Struct)
        given: dict[str, Any] = msgspec.structs.asdict(arguments) if is_struct else arguments
        if transform.wrapper is None:
            return await call_base(given)
        return await self._call(transform.wrapper, handling, (call_base, given))

    async def _call_in_thread(
        self, registered: Registered, handling: Handling, arguments: Any
    ) -> Any:
        client = handling.request.client_key
        limiter = NESTED_LIMITER.get() or ClientThreads(self._thread_limiter, client)
        bridge = ThreadBridge(
            registered.name,
            handling.session.sequencer,
            innermost_lane=_thread_lane(),
            scope=handling.scope,
        )
        context = ThreadContext(handling, self, bridge)
        # The handler that reads this resource may have a context, which it gets back in the end.
        outer = CURRENT_CONTEXT.set(CurrentContext(handling, self, bridge))
        try:
            return await run_in_thread(
                registered.signature.handler,
                registered.signature.bind(arguments, context),
                bridge=bridge,
                limiter=limiter,
            )
        finally:
            if bridge.lane is not None:
                abandon_effect(handling, bridge.lane)
            bridge.end()
            CURRENT_CONTEXT.reset(outer)


async def _returned(value: Any) -> Any:
    return value


def _thread_lane() -> Lane | None:
    """Return a new lane for a handler's thread, below that of the task; None without a lane."""
    lane = LANE.get()
    return None if lane is None else lane.child(has_own_pace=True)


def _decoded(decode: Callable[[Any], Any], raw: Any) -> Any:
    try:
        return decode(raw)
    except ArgumentsError as error:
        raise RequestError(INVALID_PARAMS, f"invalid arguments: {error}") from error


def _converted(registered: Registered, convert: Callable[[*Values], T], *values: *Values) -> T:
    """Return the converted value, or raise the error of the conversion with a note."""
    try:
        return convert(*values)
    except TypeError as error:
        _note_returned_by(registered, error)
        raise


def _note_returned_by(registered: Registered, error: TypeError) -> None:
    """Note whose value could not be converted, as the traceback of the error shows no handler."""
    error.add_note(f"in the value that {registered.name!r} returned")


_METHODS: Final[dict[str, Callable[[ServedSession, Handling, Any], Awaitable[_Result]]]] = {
    **dict.fromkeys(LISTS, ServedSession.list_page),
    "tools/call": ServedSession.call_tool,
    "resources/read": ServedSession.read_resource,
    "resources/subscribe": ServedSession.subscribe,
    "resources/unsubscribe": ServedSession.unsubscribe,
    LISTEN: ServedSession.listen,
    "completion/complete": ServedSession.complete,
    "prompts/get": ServedSession.get_prompt,
    "logging/setLevel": ServedSession.set_level,
}
