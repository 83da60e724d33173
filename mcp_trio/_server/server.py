"""`Server`: the tools, resources, prompts and methods of a server, and the ways to serve them."""

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from functools import partial
from inspect import isasyncgenfunction, isgeneratorfunction
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar, Unpack, overload

import attrs
import msgspec
import trio

from mcp_trio import types
from mcp_trio._protocol.metadata import check_extension
from mcp_trio._protocol.methods import RESOURCE_UPDATED
from mcp_trio._protocol.suggestions import checks_options, missing_attribute, option_advice
from mcp_trio._protocol.uri_templates import UriTemplate
from mcp_trio._protocol.versions import ALL_PROTOCOL_VERSIONS, checked_protocol_versions
from mcp_trio._server.access import Access, access_rule, selection_of
from mcp_trio._server.context import Context, ThreadContext
from mcp_trio._server.introspection import (
    check_positional_call,
    function_label,
    is_async,
    name_of,
    plain_function,
)
from mcp_trio._server.mounts import Prefix
from mcp_trio._server.registry import (
    CAPABILITIES,
    LIST_CAPABILITIES,
    CacheHints,
    CompletionSignature,
    Registered,
    RegisteredMethod,
    RegisteredPrompt,
    RegisteredResource,
    RegisteredTool,
    Registry,
    check_icons,
    check_method_name,
    check_states,
    check_text,
    method_with_params,
)
from mcp_trio._server.results import given_output_schema
from mcp_trio._server.sealed_state import KeyRing
from mcp_trio._server.sessions import HandlerHttpClient, ServerSessions, sessions_of, transport_of
from mcp_trio._server.signals import run_until_signal
from mcp_trio._server.signatures import GivenSchemaSignature, RawSignature, Signature
from mcp_trio._server.stdio import run_stdio, serve_stdio
from mcp_trio._server.subscriptions import ChangeNotifier, list_changed
from mcp_trio.limits import DEFAULT_LIMITS, Limits

if TYPE_CHECKING:
    from cattrs import Converter

    from mcp_trio._auth.resource_server import AuthSetting, ResourceServer
    from mcp_trio._client.client import Client
    from mcp_trio._client.connect import Target
    from mcp_trio._protocol.stores import StateStore
    from mcp_trio._recorder.options import RecordTarget
    from mcp_trio._server.dialing import DialOptions
    from mcp_trio._server.http_app import AsgiApp
    from mcp_trio._server.http_serve import HostKind, HttpOptions, RunHttpOptions
    from mcp_trio._server.openapi import HttpClient, OpenApiReport, Rule
    from mcp_trio._server.sockets import (
        RunTcpOptions,
        RunUnixOptions,
        RunWebSocketOptions,
        WebSocketOptions,
    )
    from mcp_trio._server.transforms import Change, Wrapper
    from mcp_trio._session.observing import Observer
    from mcp_trio._session.session import Session
    from mcp_trio._transports.channel import Channel
    from mcp_trio._transports.sockets import Authorize

F = TypeVar("F", bound=Callable[..., Any])
Handler: TypeAlias = Callable[..., Any]
SignatureT = TypeVar("SignatureT", bound=Signature)
AnnotationsT = TypeVar("AnnotationsT", types.Annotations, types.ToolAnnotations)
Lifespan: TypeAlias = Callable[["Server"], AbstractAsyncContextManager[Any]]

# https://modelcontextprotocol.io/specification/2025-11-25/server/tools#tool-names
_TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")

# A scheme as in RFC 3986, section 3.1; or a template whose first variable contains the scheme.
_SCHEME: Final = r"[A-Za-z][A-Za-z0-9+.-]*:|\{"


def _run_http(server: Any, /, **options: Any) -> None:
    # Imported here, because a server over stdio needs no HTTP.
    from mcp_trio._server.http_serve import run_http

    run_http(server, **options)


def _run_method(name: str, server: Any, /, **options: Any) -> None:
    """Run an async method of a server until a signal arrives."""
    exit_seconds = server.limits.shutdown.exit_seconds
    run_until_signal(getattr(server, name), exit_seconds=exit_seconds, **options)


IMPORTED_TARGET: Final[ContextVar[str | None]] = ContextVar("mcp_trio_target", default=None)
"""The file or module of a server that a command, or a fixture, imports now."""

# Other SDKs give transports these names.
_TRANSPORT_ALIASES: Final = {
    "streamable-http": "http",
    "streamable_http": "http",
    "ws": "websocket",
}

RUNNERS: Final[Mapping[str, Callable[..., None]]] = {
    "stdio": run_stdio,
    "http": _run_http,
    "websocket": partial(_run_method, "serve_websocket"),
    "unix": partial(_run_method, "serve_unix"),
    "tcp": partial(_run_method, "serve_tcp"),
}
"""The functions that `Server.run` calls: each starts a Trio run, and handles signals."""


def _resource_server(setting: "AuthSetting | None") -> "ResourceServer | None":
    if setting is None:
        return None
    from mcp_trio._auth.resource_server import ResourceServer

    return ResourceServer.of(setting)


def _handler_and_name(kind: str, handler: Any, name: str | None) -> tuple[Any, str | None]:
    """Return the handler and the name for a decorator, whose first argument is one of the two."""
    if not isinstance(handler, str):
        return handler, name
    if name is not None:
        raise TypeError(f"{kind}() got two names, {handler!r} and {name!r}")
    return None, handler


def _checked_annotations(
    kind: type[AnnotationsT], given: AnnotationsT | Mapping[str, Any] | None
) -> AnnotationsT | None:
    """Return the annotations of a tool or resource, which may be given as a dict."""
    if given is None:
        return None
    members: Any = msgspec.to_builtins(given)
    known = kind.__struct_encode_fields__
    unknown = sorted(set(members) - set(known))
    if unknown:
        raise ValueError(f"unknown annotations {unknown}: choose from {', '.join(known)}")
    try:
        return msgspec.convert(members, kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"the annotations are invalid: {error}") from error


def _check_limits(_server: object, _field: object, limits: object) -> None:
    if not isinstance(limits, Limits):
        raise TypeError(f"limits={limits!r}: write limits=Limits(...)")


def _check_keys(_server: object, _field: object, keys: object) -> None:
    if not isinstance(keys, KeyRing):  # The text must not contain a secret.
        raise TypeError("keys= takes a KeyRing: write keys=KeyRing([key])")


def _check_observers(_server: object, _field: object, observers: object) -> None:
    if not isinstance(observers, Iterable):
        raise TypeError(f"observers= takes a list: write observers=[{observers!r}]")


def _checked_tags(tags: Collection[str]) -> frozenset[str]:
    if isinstance(tags, str):
        raise TypeError(f"tags are a set of strings: write {{{tags!r}}}")
    return frozenset(tags)


@checks_options(
    *("Server", "__init__", "tool", "resource", "prompt", "mount", "route", "enable", "disable")
)
@attrs.define(eq=False)
class Server:
    """A server: a named set of tools, resources, prompts and other methods.

    Its methods may be called from any task and any thread, also by handlers. Registering and
    removing is allowed while sessions are open: their clients are notified that a list has changed.

    Attributes:
        name: The name in `serverInfo`.
        version: The version in `serverInfo`, which recordings and sealed states contain as well.
        instructions: A text for the model on how to use the server.
        title: The name to display.
        description: A description to display.
        icons: Icons to display.
        website_url: The URL of a page about the server.
        errors: The text that a client receives about an unexpected exception of a handler:
            "generic" only names the handler; "message" adds the text of the exception, which may be
            private. The text of a `ToolError` is always sent.
        lifespan: A function that makes an async context manager from the server. Its value is
            `ctx.lifespan` in every handler. It is entered once for each served channel, before the
            handshake, and once for all sessions of an HTTP application or a listener. A replay runs
            it again if the recording holds all these sessions and it opens nothing by itself.
        limits: The limits of each session.
        offers: Those of "tools", "resources", "prompts" and "completions" that are declared as
            capabilities even while nothing of the kind is registered.
        capabilities: The capabilities to declare, in place of those that follow from `offers` and
            from what is registered.
        methods: Handlers by method name; see `method`.
        list_ttl_seconds: Seconds for which clients may cache the lists; 0: not at all.
        cache_scope: "public" if clients may share a cached list, else "private".
        protocol_versions: The protocol versions to serve; all known ones by default.
        converter: A cattrs converter for arguments and results of your own classes. The type that
            a hook takes gives the schema; the text of its `ValueError` is sent to the client.
        keys: The keys that seal `requestState`, the same for all instances of the server. By
            default a random key that only this object has.
        states: A store that lets each sealed state be used once; without it, states can be reused.
        auth: How clients over HTTP and WebSocket are authenticated: the URL of the issuer of their
            tokens; an `AuthorizationServer`, which is served beside the MCP endpoint; a verifier of
            tokens or all settings, from `mcp_trio.auth`; or an async function
            that returns the `AuthInfo` or the name of the user for a request, given its headers.
        record: The recording of the sessions for which `run` or a `serve_*` method gets no `record`
            of its own: a `RecordPolicy` of `mcp_trio.recording`, or another target, as in `serve`.
        replayable: Whether all handlers and middleware reach the outside only through effects and
            their context, and keep nothing but `ctx.state` between two requests. If an instance of
            the server dies, another one then runs an interrupted call again, with the results of
            the effects that it has finished.
        observers: Objects called for each session, request and effect, such as `Telemetry`,
            `Metrics`, `RequestLog` and `AuditLog` of `mcp_trio.observers`.
        dependencies: Packages that the server needs, such as "pandas>=2"; `mcp-trio install` lets a
            host start it in an environment that has them.
        openapi_report: The outcome of each operation, of a server from `from_openapi`.

    Raises:
        TypeError: `lifespan` is no async context manager, or takes no server; another option has
            a wrong type; or an option is unknown.
        ValueError: `errors` or `cache_scope` is unknown, `offers` contains another name, a method
            cannot be handled, a protocol version is unknown, or `list_ttl_seconds` is negative.
    """

    name: str = attrs.field(validator=check_text)
    version: str = attrs.field(default="0", kw_only=True, validator=check_text)
    instructions: str | None = attrs.field(default=None, kw_only=True, validator=check_text)
    title: str | None = attrs.field(default=None, kw_only=True, validator=check_text)
    description: str | None = attrs.field(default=None, kw_only=True, validator=check_text)
    icons: Sequence[types.Icon] | None = attrs.field(
        default=None, kw_only=True, validator=check_icons
    )
    website_url: str | None = attrs.field(default=None, kw_only=True, validator=check_text)
    errors: Literal["generic", "message"] = attrs.field(
        default="generic", kw_only=True, validator=attrs.validators.in_(("generic", "message"))
    )
    lifespan: Lifespan | None = attrs.field(default=None, kw_only=True)
    limits: Limits = attrs.field(
        default=DEFAULT_LIMITS, kw_only=True, repr=False, validator=_check_limits
    )
    offers: Collection[str] = attrs.field(default=(), kw_only=True)
    capabilities: types.ServerCapabilities | None = attrs.field(default=None, kw_only=True)
    methods: Mapping[str, Handler] = attrs.field(factory=dict[str, Handler], kw_only=True)
    list_ttl_seconds: float = attrs.field(default=0.0, kw_only=True)
    cache_scope: types.CacheScope = attrs.field(default="private", kw_only=True)
    protocol_versions: Sequence[str] = attrs.field(
        default=ALL_PROTOCOL_VERSIONS, kw_only=True, converter=checked_protocol_versions
    )
    converter: "Converter | None" = attrs.field(default=None, kw_only=True, repr=False)
    # Quoted, so that `help(Server)` shows the name, and not the private module of the class.
    keys: "KeyRing" = attrs.field(
        factory=KeyRing.random, kw_only=True, repr=False, validator=_check_keys
    )
    states: "StateStore | None" = attrs.field(default=None, kw_only=True, repr=False)
    auth: "ResourceServer | None" = attrs.field(
        default=None, kw_only=True, repr=False, converter=_resource_server
    )
    record: "RecordTarget | None" = attrs.field(default=None, kw_only=True, repr=False)
    replayable: bool = attrs.field(default=False, kw_only=True)
    observers: "Sequence[Observer]" = attrs.field(
        default=(), kw_only=True, repr=False, validator=_check_observers
    )
    dependencies: Sequence[str] = attrs.field(default=(), kw_only=True, repr=False)
    openapi_report: "OpenApiReport | None" = attrs.field(default=None, init=False, repr=False)
    _registry: Registry = attrs.field(init=False, repr=False)
    _change_notifier: ChangeNotifier = attrs.field(factory=ChangeNotifier, init=False, repr=False)
    _sessions: ServerSessions = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if isasyncgenfunction(self.lifespan):
            raise TypeError("a lifespan must be decorated with contextlib.asynccontextmanager")
        if isinstance(self.offers, str):
            raise TypeError(f"offers are a set of strings: write {{{self.offers!r}}}")
        unknown = sorted(set(self.offers) - CAPABILITIES.keys())
        if unknown:
            raise ValueError(f"unknown offers {unknown}: choose from {', '.join(CAPABILITIES)}")
        for identifier in (self.capabilities and self.capabilities.extensions) or ():
            check_extension(identifier)
        if self.lifespan is not None:
            if isgeneratorfunction(getattr(self.lifespan, "__wrapped__", None)):
                raise TypeError(
                    "a lifespan is asynchronous: write @asynccontextmanager above `async def`"
                )
            check_positional_call(self.lifespan, "the lifespan", "server")
        hints = CacheHints(self.list_ttl_seconds, self.cache_scope)
        self._registry = Registry(self.limits, self.list_changed, hints, frozenset(self.offers))
        self._sessions = ServerSessions(self, self._registry, self._change_notifier)
        for name, handler in self.methods.items():
            self.method(name)(handler)
        if self.auth is not None:
            from mcp_trio._server.routes import add_authorization_routes

            add_authorization_routes(self._sessions, self.auth)

    if not TYPE_CHECKING:  # for a type checker it would give the class every attribute

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute("Server", self, name)

    @classmethod
    def from_openapi(
        cls,
        spec: Mapping[str, Any] | str | os.PathLike[str],
        *,
        client: "HttpClient | None" = None,
        resources: "Rule | None" = None,
        include: "Rule | None" = None,
        exclude: "Rule | None" = None,
        rename: Mapping[str, str] | None = None,
        output_schemas: bool = True,
        **options: Any,
    ) -> "Server":
        """Return a server whose tools call an HTTP API that an OpenAPI document describes.

        Each operation becomes a tool, named by its `operationId`, with one flat object of
        arguments: the parameters, and the members of the request body. A successful response is
        the result, any other one a result with `is_error` and the text of the body. An operation
        that cannot be called is rejected: `openapi_report` has the reason, and a warning is logged.
        Requests are effects of the handler, as those of `ctx.http`.

        Args:
            spec: An OpenAPI document, 3.0 or 3.1: an object, a text in JSON or YAML, or its path.
                YAML needs PyYAML, which `mcp_trio[openapi]` installs.
            client: The client that sends the requests, an `AsyncClient` of httpx2 or httpx, with
                base URL and authentication. You close it. Without a client, `ctx.http` sends them
                to the first server that the document names.
            resources: Returns whether an `OpenApiOperation` becomes a resource, or a template of
                resources, such as `api:/pets/{id}`; it must be a GET.
            include: Returns whether an operation is wanted; without it, all are.
            exclude: Returns whether an operation is not wanted.
            rename: The names of tools, by `operationId`, or by method and path, as in `GET /pets`.
            output_schemas: Whether tools have the output schemas of the document. A response that
                does not fit its schema becomes a result with `is_error`, which has its whole body.
            options: Options of `Server`, such as `limits`; `name` and `version` are by default
                those of the document.

        Raises:
            ImportError: The document is YAML, and PyYAML is not installed.
            OSError: The file cannot be read.
            TypeError: The client is of another class, or an option is unknown.
            ValueError: The document is not one of OpenAPI 3.0 or 3.1; neither the client nor the
                document has a base URL; or a name in `rename` is invalid, used twice, or of no
                operation.
        """
        from mcp_trio._server.openapi import OperationRegistration, info_of, read_document

        document = read_document(spec)
        settings: dict[str, Any] = {**info_of(document), **options}
        server = cls(**settings)
        registration = OperationRegistration(
            server=server,
            document=document,
            client=client,
            resources=resources,
            include=include,
            exclude=exclude,
            rename=rename or {},
            output_schemas=output_schemas,
        )
        server.openapi_report = registration.run()
        return server

    # Registering.

    @overload
    def tool(self, handler: F, /) -> F: ...

    @overload
    def tool(
        self,
        tool_name: str | None = None,
        /,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        icons: Sequence[types.Icon] | None = None,
        annotations: types.ToolAnnotations | Mapping[str, Any] | None = None,
        tags: Collection[str] = (),
        meta: Mapping[str, Any] | None = None,
        input_schema: Mapping[str, Any] | None = None,
        output_schema: Mapping[str, Any] | None = None,
        structured: bool | None = None,
        timeout: float | None = None,
        thread: bool = True,
        resumable: bool | str = False,
        scopes: Collection[str] = (),
        access: Access | None = None,
    ) -> Callable[[F], F]: ...

    def tool(
        self,
        handler: Any = None,
        /,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        icons: Sequence[types.Icon] | None = None,
        annotations: types.ToolAnnotations | Mapping[str, Any] | None = None,
        tags: Collection[str] = (),
        meta: Mapping[str, Any] | None = None,
        input_schema: Mapping[str, Any] | None = None,
        output_schema: Mapping[str, Any] | None = None,
        structured: bool | None = None,
        timeout: float | None = None,
        thread: bool = True,
        resumable: bool | str = False,
        scopes: Collection[str] = (),
        access: Access | None = None,
    ) -> Any:
        """Register a function as a tool: `@server.tool`, or `@server.tool("name", title="…")`.

        The tool's input schema comes from the signature of the function; its descriptions come from
        the docstring. A parameter that is annotated with `Context`, or is called `ctx` and has no
        annotation, gets the context of the request, and is not in the schema. A `def` function
        runs in a thread, and gets a `ThreadContext`, whose methods block.

        A function annotated to return data (a class, a list, a number, a string) has an output
        schema. Its results contain the data as structured content, in addition to text. Data that
        does not fit the schema fails the call, and the log says why. A `CallToolResult` is sent as
        it is, after its structured content was checked.

        A function raises `ToolError` for an error that the model should see.

        Args:
            handler: The function, `async def` or `def`; or the name of the tool.
            name: The name of the tool, in place of the function's name.
            title: The name to display.
            description: The description, in place of the first part of the docstring.
            icons: Icons to display.
            annotations: Hints on the tool's behaviour: `ToolAnnotations(read_only_hint=True)`, or
                as the specification names them, `{"readOnlyHint": True}`.
            tags: Words by which clients and gateways group tools, listed in `_meta` as FastMCP
                does.
            meta: Further members of the tool's `_meta`; a name has a prefix, as in
                "com.example/name".
            input_schema: A JSON Schema of the arguments, listed as it is. The arguments are checked
                by it, and passed to the function as one dict.
            output_schema: A JSON Schema of the structured content, whatever the annotation is.
            structured: Whether results contain structured content. None: as the annotation says.
            timeout: Seconds after which a call is cancelled; the client gets a result with
                `isError` that names the tool and this limit. The time includes waits for a thread
                and for answers of the client; a resumable function has it anew in each round. The
                thread of a `def` function is abandoned: it goes on, holds its place among
                `limits.requests.threads_max`, and each call of its context raises
                `RequestAbandoned`. A function that never waits cannot be cancelled.
            thread: False runs a `def` function in the event loop; it must never block.
            resumable: True lets a stateless client answer questions of the function with a new
                request, which any instance of the server may handle: the function runs again from
                its beginning, and what it did with its context comes from the sealed state. A
                string is the version of the function, in place of the server's: states of another
                version are rejected. Such a function cannot ask the client inside a shielded cancel
                scope.
            scopes: The scopes that a call needs; a client without them does not see the tool in
                lists. Over HTTP its call gets 403 with a challenge that names all of them.
            access: A further condition: returns whether the sender of the request may call the
                tool, given the context, whose `auth` has the claims. `async def`, or `def` without
                blocking.

        Raises:
            SchemaError: A given schema is invalid.
            TypeError: The function cannot be called with keyword arguments, or an annotation cannot
                be decoded from JSON.
            ValueError: The name is registered already, or is not valid for a tool; the annotations
                have an unknown hint; the input schema is not that of an object; the timeout is not
                positive, or the function runs in the event loop without waiting; or the tool is
                destructive and resumable, and the server has no `states`.
        """
        handler, name = _handler_and_name("tool", handler, name)
        hints = _checked_annotations(types.ToolAnnotations, annotations)

        def register(handler: F) -> F:
            given_schema = {} if input_schema is None else {"given": input_schema}
            signature, runs_in_thread = self._inspect(
                handler,
                GivenSchemaSignature if given_schema else Signature,
                thread=thread,
                **given_schema,
            )
            if output_schema is not None and structured is False:
                raise ValueError("output_schema and structured=False contradict each other")
            tool_name = name or name_of(handler)
            tool = RegisteredTool(
                name=tool_name,
                signature=signature,
                runs_in_thread=runs_in_thread,
                title=title,
                description=description,
                icons=icons,
                annotations=hints,
                tags=_checked_tags(tags),
                meta=meta,
                given_output=None
                if output_schema is None
                else given_output_schema(output_schema, tool_name, self.limits),
                structured=structured,
                timeout=timeout,
                resumable=resumable,
                rule=access_rule(scopes, access),
            )
            self._check_tool(tool)
            self._registry.add(tool)
            return handler

        return register if handler is None else register(handler)

    def _check_tool(self, tool: RegisteredTool) -> None:
        if not _TOOL_NAME.fullmatch(tool.name):
            raise ValueError(
                f"{tool.name!r} is not a valid name for a tool: use 1 to 128 of the letters"
                " A to Z and a to z, digits, '_', '-' and '.'; name= sets another name"
            )
        check_states(tool, self.states)

    def transform_tool(
        self,
        tool: str | Handler,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        annotations: types.ToolAnnotations | Mapping[str, Any] | None = None,
        tags: Collection[str] | None = None,
        meta: Mapping[str, Any] | None = None,
        arguments: Mapping[str, "Change"] | None = None,
        wrap: "Wrapper | None" = None,
        keep: bool = False,
    ) -> None:
        """Change a registered tool: its name, its descriptions, its arguments and its results.

        ```python
        server.transform_tool(
            "search",
            name="search_fish",
            arguments={"q": Argument("query", description="a fish"), "limit": Fixed(5)},
        )
        ```

        Options that are None change nothing. A call decodes the changed arguments, and calls the
        function of the tool with its own ones. A transformed tool may be transformed again.

        Args:
            tool: The name of the tool, or its function.
            name: The new name.
            title: The new name to display.
            description: The new description.
            annotations: Other hints on the tool's behaviour; see `tool`.
            tags: Other tags.
            meta: Other members of the tool's `_meta`.
            arguments: The changes of arguments, by their names: `Argument` gives another name,
                description or default, `Fixed` a value that clients neither see nor may send.
            wrap: An `async def` function that gets two values: a `CallTool`, with which it calls
                the tool, and the arguments as a dict, under the names that clients send. A
                parameter for the context gets that, as in every handler. The function may change
                the arguments, and may return something else than the tool. Its return annotation,
                if there is one, gives the output schema. A `ToolError` of the tool reaches it as an
                exception.
            keep: True leaves the tool registered as well; `name` has to differ from its name.

        Raises:
            LookupError: There is no such tool, or the function is registered more than once.
            TypeError: `wrap` cannot be called, or an annotation cannot be resolved.
            ValueError: There is no such argument; a name is taken or not possible; the tool has
                a given input schema with keywords beside which arguments cannot be changed; or it
                is the tool of a mounted server.
        """
        from mcp_trio._server.transforms import ToolTransform, WrapperSignature

        _, key = self._registry.find_target(tool, ("tools",))
        base = self._registry.tools[key]
        if base.origin is not None:
            raise ValueError(
                f"{base.name!r} is a tool of {base.origin.mount.label}: transform it there"
            )
        wrapper = None
        if wrap is not None:
            if not is_async(wrap):
                raise TypeError(f"the wrapper {name_of(wrap)!r} has to be `async def`")
            signature, _ = self._inspect(wrap, WrapperSignature, thread=False)
            signature.check()
            wrapper = Registered(name=name_of(wrap), signature=signature, runs_in_thread=False)
        transform = ToolTransform(base, arguments or {}, wrapper)
        transformed = attrs.evolve(
            base,
            name=name or base.name,
            title=title or base.title,
            description=description or base.given_description,
            annotations=_checked_annotations(types.ToolAnnotations, annotations)
            or base.annotations,
            tags=base.tags if tags is None else _checked_tags(tags),
            meta=base.meta if meta is None else meta,
            signature=transform.signature(),
            transform=transform,
        )
        self._check_tool(transformed)
        self._registry.add(transformed, replaces=None if keep else base.name)

    def remove_tool(self, name: str) -> None:
        """Remove a tool; calls that are running continue.

        Raises:
            LookupError: There is no tool of this name.
        """
        self._registry.remove("tools", name)

    def resource(
        self,
        uri: str,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        icons: Sequence[types.Icon] | None = None,
        mime_type: str | None = None,
        size: int | None = None,
        annotations: types.Annotations | Mapping[str, Any] | None = None,
        tags: Collection[str] = (),
        meta: Mapping[str, Any] | None = None,
        ttl_seconds: float = 0.0,
        cache_scope: types.CacheScope = "private",
        thread: bool = True,
        resumable: bool | str = False,
        scopes: Collection[str] = (),
        access: Access | None = None,
    ) -> Callable[[F], F]:
        """Register a function that reads a resource: `@server.resource("weather://{city}/now")`.

        The parameters of the function are the variables of the URI template. Values that could lead
        out of their path segment (`..`, backslashes, encoded slashes) are rejected before the
        function is called. The function raises `ResourceNotFound` if there is no resource at the
        URI.

        Args:
            uri: The URI, or a URI template (RFC 6570).
            name: The name of the resource, in place of the function's name.
            title: The name to display.
            description: The description, in place of the first part of the docstring.
            icons: Icons to display.
            mime_type: The media type of the contents.
            size: The size of the contents in bytes, if the URI has no variables.
            annotations: The audience, the priority from 0 to 1, and the time of the last change:
                `Annotations(priority=1)`, or as the specification names them, `{"priority": 1}`.
            tags: Words by which clients and gateways group resources; see `tool`.
            meta: Further members of the resource's `_meta`; a name has a prefix, as in
                "com.example/name".
            ttl_seconds: Seconds for which clients may cache the contents; 0: not at all.
            cache_scope: "public" if clients may share the cached contents, else "private".
            thread: False runs a `def` function in the event loop; it must never block.
            resumable: Whether a stateless client may answer questions of the function with a new
                request; see `tool`.
            scopes: The scopes that a request needs; see `tool`.
            access: A further condition; see `tool`.

        Raises:
            TypeError: The URI is missing, the function cannot be called with keyword arguments, or
                an annotation cannot be decoded.
            ValueError: The URI is registered already or has no scheme, the template is malformed,
                parameters and variables differ, the size of a template is given, or the annotations
                have an unknown member or a priority that is not from 0 to 1.
        """
        if callable(uri):
            name = name_of(uri)
            raise TypeError(
                f'a resource needs a URI: write @server.resource("data://{name}") above {name}'
            )
        template = UriTemplate.parse(uri)
        if not re.match(_SCHEME, uri):
            raise ValueError(f"{uri!r} does not begin with a scheme, such as file: or https:")
        hints = _checked_annotations(types.Annotations, annotations)

        def register(handler: F) -> F:
            signature, runs_in_thread = self._inspect(handler, Signature, thread=thread)
            resource = RegisteredResource(
                name=name or name_of(handler),
                signature=signature,
                runs_in_thread=runs_in_thread,
                title=title,
                description=description,
                icons=icons,
                mime_type=mime_type,
                size=size,
                annotations=hints,
                tags=_checked_tags(tags),
                meta=meta,
                template=template,
                hints=CacheHints(ttl_seconds, cache_scope),
                resumable=resumable,
                rule=access_rule(scopes, access),
            )
            if size is not None and not resource.is_static:
                raise ValueError(
                    f"{uri!r} is a template of many resources, which have no common size"
                )
            template.check_parameters(signature.parameters)
            self._registry.add(resource)
            return handler

        return register

    def remove_resource(self, uri: str) -> None:
        """Remove a resource or a resource template.

        Raises:
            LookupError: There is no resource with this URI or template text.
        """
        self._registry.remove("resources", uri)

    @overload
    def prompt(self, handler: F, /) -> F: ...

    @overload
    def prompt(
        self,
        prompt_name: str | None = None,
        /,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        icons: Sequence[types.Icon] | None = None,
        tags: Collection[str] = (),
        meta: Mapping[str, Any] | None = None,
        thread: bool = True,
        resumable: bool | str = False,
        scopes: Collection[str] = (),
        access: Access | None = None,
    ) -> Callable[[F], F]: ...

    def prompt(
        self,
        handler: Any = None,
        /,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        icons: Sequence[types.Icon] | None = None,
        tags: Collection[str] = (),
        meta: Mapping[str, Any] | None = None,
        thread: bool = True,
        resumable: bool | str = False,
        scopes: Collection[str] = (),
        access: Access | None = None,
    ) -> Any:
        """Register a function as a prompt: `@server.prompt`, or `@server.prompt("name")`.

        The parameters of the function are the prompt's arguments, which clients send as strings: a
        list or an object as JSON. Descriptions come from the docstring. The function returns a
        text, a message, or a list of them.

        Args:
            handler: The function, `async def` or `def`; or the name of the prompt.
            name: The name of the prompt, in place of the function's name.
            title: The name to display.
            description: The description, in place of the first part of the docstring.
            icons: Icons to display.
            tags: Words by which clients and gateways group prompts; see `tool`.
            meta: Further members of the prompt's `_meta`; a name has a prefix, as in
                "com.example/name".
            thread: False runs a `def` function in the event loop; it must never block.
            resumable: Whether a stateless client may answer questions of the function with a new
                request; see `tool`.
            scopes: The scopes that a request needs; see `tool`.
            access: A further condition; see `tool`.

        Raises:
            TypeError: The function cannot be called with keyword arguments, or an annotation cannot
                be decoded.
            ValueError: The name is registered already.
        """
        handler, name = _handler_and_name("prompt", handler, name)

        def register(handler: F) -> F:
            signature, runs_in_thread = self._inspect(handler, Signature, thread=thread)
            prompt = RegisteredPrompt(
                name=name or name_of(handler),
                signature=signature,
                runs_in_thread=runs_in_thread,
                title=title,
                description=description,
                icons=icons,
                tags=_checked_tags(tags),
                meta=meta,
                resumable=resumable,
                rule=access_rule(scopes, access),
            )
            self._registry.add(prompt)
            return handler

        return register if handler is None else register(handler)

    def remove_prompt(self, name: str) -> None:
        """Remove a prompt.

        Raises:
            LookupError: There is no prompt of this name.
        """
        self._registry.remove("prompts", name)

    def disable(self, *names: str, tags: Collection[str] = (), kinds: Collection[str] = ()) -> None:
        """Hide tools, resources and prompts from all clients, which are notified of changed lists.

        A hidden entry is in no list, and a request for it is answered as one for an unknown name.
        Calls that are running continue. The latest `enable` or `disable` about an entry counts,
        also for an entry that is registered later and has the tag or the kind. `Context.enable`
        shows an entry to one client. Entries of remote servers can be hidden by their kind
        only, since their names and tags are not registered here.

        Args:
            names: Names of tools and prompts; URIs and templates of resources.
            tags: Tags: entries with at least one of them are meant, in addition to the names.
            kinds: "tools", "resources" or "prompts": only entries of these kinds are meant; all of
                them if there are no names and tags. By default entries of every kind.

        Raises:
            LookupError: Nothing is registered under one of the names.
            ValueError: There are no names, tags or kinds, or a kind is unknown.
        """
        self._registry.show_or_hide(selection_of(names, tags, kinds), shows=False)

    def enable(self, *names: str, tags: Collection[str] = (), kinds: Collection[str] = ()) -> None:
        """Show entries that `disable` has hidden; its errors are the same.

        Args:
            names: Names of tools and prompts; URIs and templates of resources.
            tags: Tags; see `disable`.
            kinds: Kinds; see `disable`.
        """
        self._registry.show_or_hide(selection_of(names, tags, kinds), shows=True)

    def completion(
        self, target: str | Handler, argument: str, *, thread: bool = True
    ) -> Callable[[F], F]:
        """Register a function that proposes values for an argument of a prompt or template.

        The first parameter of the function gets the text that the user has typed so far. A second
        one, if it has no default, gets the arguments that the client has already sent, as a dict of
        strings. The function returns strings, the best first, or a `Completion`. Of more than 100
        values the client gets the first 100, and their number.

        Args:
            target: The prompt's name, the resource's URI or template, or the function of either.
            argument: The name of the argument.
            thread: False runs a `def` function in the event loop; it must never block.

        Raises:
            LookupError: The target is not registered, or its function is registered twice.
            TypeError: The function has more than two parameters without a default, or an
                annotation cannot be resolved.
            ValueError: The target has no such argument, or that argument has a completion already.
        """
        found = self._registry.find_target(target)
        self._registry.check_argument(found, argument)

        def register(handler: F) -> F:
            signature, runs_in_thread = self._inspect(handler, CompletionSignature, thread=thread)
            signature.check()
            completion = Registered(
                name=f"{argument} of {found[1]}", signature=signature, runs_in_thread=runs_in_thread
            )
            self._registry.add_completion(found, argument, completion)
            return handler

        return register

    def remove_completion(self, target: str | Handler, argument: str) -> None:
        """Remove the completion of an argument.

        Raises:
            LookupError: The target is not registered, or the argument has no completion.
        """
        self._registry.remove_completion(self._registry.find_target(target), argument)

    def method(self, name: str, *, thread: bool = True) -> Callable[[F], F]:
        """Register a function as the handler of a method, in place of a built-in handler if any.

        The first parameter of the function gets the params, decoded to its annotation. The return
        value is sent as an object; None as an empty one. Names that begin with "notifications/" are
        notifications, whose handlers get no context.

        Args:
            name: The name of the method, such as "com.example/reload".
            thread: False runs a `def` function in the event loop; it must never block.

        Raises:
            TypeError: The params cannot be decoded to the annotation, or the function has further
                parameters without defaults.
            ValueError: Clients do not send the method, or mcp_trio itself handles it.
        """
        check_method_name(name)

        def register(handler: F) -> F:
            signature, runs_in_thread = self._inspect(handler, RawSignature, thread=thread)
            method = RegisteredMethod(
                name=name,
                signature=signature,
                runs_in_thread=runs_in_thread,
                method=method_with_params(name, signature),
            )
            self._registry.add_method(method)
            return handler

        return register

    def middleware(self, function: F) -> F:
        """Register a middleware, which runs round every request and notification.

        ```python
        @server.middleware
        async def log(request: MiddlewareRequest, call_next: CallNext) -> Any:
            logger.info("%s %s", request.method, request.name)
            return await call_next(request)
        ```

        The middleware that was registered first is the outermost. It may call `call_next` with this
        request or one with other arguments; return another result of the method; or raise
        `ToolError` or `RequestError`. Exceptions of the handler pass through it; a `ToolError` of a
        tool has become a result with `is_error` by then. Lists arrive as typed pages, which may be
        filtered. Only the handshake, pings, cancellations, progress and `server/discover` do not
        pass.

        It runs in the lane of the handler: what it does with `request.context` is recorded and
        replayed. `mcp_trio.middleware` has some.

        Raises:
            TypeError: The function is not `async def`, or does not take two arguments.
        """
        given: Any = function
        if not (callable(given) and is_async(given)):
            name = name_of(given) if callable(given) else type(given).__name__
            raise TypeError(
                f"the middleware {name!r} has to be a function: `async def log(request, call_next)`"
            )
        check_positional_call(function, "the middleware", "request", "call_next")
        self._sessions.middleware.append(function)
        return function

    def route(
        self, path: str, *, methods: Collection[str] = ("GET",), is_public: bool = False
    ) -> Callable[[F], F]:
        """Register a function that answers HTTP requests beside the MCP endpoint.

        ```python
        @server.route("/ships/{name}")
        async def ship(request: Request) -> dict[str, str]:
            return {"name": request.path_params["name"]}
        ```

        The function gets a `mcp_trio.http.Request`, and returns a string, bytes, a dict, which is
        sent as JSON, or a `mcp_trio.http.Response`. `serve_http`, `run("http")` and `asgi` serve
        the route; the checks of `Host` and `Origin` apply. An exception is logged in one line, and
        answered with status 500 without its text. The function is cancelled when its client
        disconnects. Its requests are in no recording, and pass no middleware.

        Args:
            path: The path, below the mount of the application. `{name}` matches one segment,
                `{+name}` the rest of the path.
            methods: The HTTP methods that the function answers; other methods are answered with
                status 405, and HEAD like GET without the body.
            is_public: Whether requests are answered without the authentication that `auth=` or
                `token=` require.

        Raises:
            TypeError: The path is missing, `methods` is one string, or the function is not an
                `async def` function with one parameter.
            ValueError: The path is not valid, or belongs to the MCP endpoint or another route; or a
                method is not valid.
        """
        if callable(path):
            name = name_of(path)
            raise TypeError(f'a route needs a path: write @server.route("/{name}") above {name}')
        from mcp_trio._server.routes import checked_methods

        routes, answered = self._sessions.routes, checked_methods(methods)
        routes.check_path(path)

        def register(handler: F) -> F:
            routes.add(path, answered, handler, is_public=is_public)
            return handler

        return register

    def mount(
        self,
        other: "Server | Client | Target",
        *,
        prefix: str | None,
        scopes: Collection[str] = (),
        access: Access | None = None,
    ) -> None:
        """Offer the entries of another server as well: `server.mount(weather, prefix="weather")`.

        The other server's tools, prompts, resources and completions appear here, also those that
        are registered later. Tools and prompts are called `weather_NAME`; the URI `data://info` is
        `data://weather/info` here, and so is the beginning of a template. Methods that `method`
        registers, and routes, are not mounted.

        A `Client`, or a target of one, mounts a server behind it: each session here has its own
        connection, which is opened by the first request that needs it, and opened again when it is
        lost. Progress, log messages, cancellation, subscriptions, and the requests of the other
        server to its client are forwarded. A recording has everything that arrived, so a replay
        does not connect. Callbacks that the client has are called as well; those that answer the
        other server are called instead of asking the client of the session.

        Handlers of the other server run in the session of this one, with the same `ctx.state`.
        `ctx.server`, `ctx.lifespan` and the names that the handlers see are those of the other
        server, and so are the converter, and the `errors`. Its middleware runs inside of that of
        this server. Its lifespan is entered after that of this server. The limits, keys, states,
        observers and `auth` are those of this server. A recording of this server also has what the
        handlers and the lifespan of the other server do.

        Args:
            other: The server, which may mount others, be mounted several times, and be served
                by itself as well; or a `Client`, which must not be connected, or a target of one: a
                URL, a script, a command, a `ServerConfig`, or a channel, which serves one session.
            prefix: The prefix of the names. None: they stay as they are.
            scopes: The scopes that a request for any entry of the other server needs, in addition
                to those of the entry.
            access: A further condition for every entry of the other server; see `tool`.

        Raises:
            RuntimeError: The other server has a lifespan, and this one is being served.
            TypeError: The other server is no server, and no target of a client.
            ValueError: The prefix has a character that a name must not have; a name or URI is
                registered already, or would be too long; a URI has no place for the prefix; this
                server is mounted into the other one; a tool of the other server needs `states`; the
                other server has `auth`, and this one has not; or it has an observer that this one
                has not. Nothing is mounted then. A later registration at either server raises it as
                well, if two handlers would have one name.
        """
        rule, names = access_rule(scopes, access), Prefix(prefix or "")
        if isinstance(other, Server):
            if other.auth is not None and self.auth is None:
                raise ValueError(
                    f"the server {other.name!r} has auth=, which does not hold where it is mounted:"
                    " give auth= to the outer server"
                )
            if not all(any(each is own for own in self.observers) for each in other.observers):
                raise ValueError(
                    f"the server {other.name!r} has observers=, which are not called where it is"
                    " mounted: give them to the outer server as well"
                )
            self._sessions.mount(sessions_of(other), names, rule)
        else:
            # Only servers that mount a remote one import a client.
            from mcp_trio._server.remote_mounts import remote_mount

            self._registry.mount_remote(remote_mount(other, names, rule))

    def _inspect(
        self, handler: Handler, kind: type[SignatureT], *, thread: bool, **details: Any
    ) -> tuple[SignatureT, bool]:
        """Return the signature of a handler, and whether the handler runs in a thread."""
        # A completion may yield its values.
        if kind is not CompletionSignature and (
            isgeneratorfunction(handler) or isasyncgenfunction(handler)
        ):
            raise TypeError(
                f"{function_label(plain_function(handler))} is a generator, whose values are not"
                " sent: return a list"
            )
        runs_in_thread = thread and not is_async(handler)
        signature = kind(
            handler=handler,
            context_types=(Context, ThreadContext) if runs_in_thread else (Context,),
            foreign_context_types=() if runs_in_thread else (ThreadContext,),
            limits=self.limits,
            converter=self.converter,
            **details,
        )
        return signature, runs_in_thread

    # Notifying clients.

    def resource_updated(self, uri: str) -> None:
        """Notify every client that has subscribed to `uri` that its contents have changed."""
        self._change_notifier.notify((RESOURCE_UPDATED, uri))

    def list_changed(self, kind: str) -> None:
        """Notify every client that a list has changed: "tools", "resources" or "prompts".

        This is needed only for lists that your own `method` handlers return: registering and
        removing notify the clients as well.

        Raises:
            ValueError: There is no such list.
        """
        if kind not in LIST_CAPABILITIES:
            raise ValueError(f"unknown list {kind!r}: choose from {', '.join(LIST_CAPABILITIES)}")
        self._change_notifier.notify(list_changed(kind))

    # Serving.

    @overload
    def run(
        self, transport: Literal["stdio"] = "stdio", *, record: "RecordTarget | None" = None
    ) -> None: ...

    @overload
    def run(
        self, transport: Literal["http", "streamable-http"], **options: "Unpack[RunHttpOptions]"
    ) -> None: ...

    @overload
    def run(
        self, transport: Literal["websocket"], **options: Unpack["RunWebSocketOptions"]
    ) -> None: ...

    @overload
    def run(self, transport: Literal["unix"], **options: Unpack["RunUnixOptions"]) -> None: ...

    @overload
    def run(self, transport: Literal["tcp"], **options: Unpack["RunTcpOptions"]) -> None: ...

    def run(self, transport: str = "stdio", **options: Any) -> None:
        """Serve until the client disconnects or a signal arrives.

        This starts a Trio run, and handles SIGINT and SIGTERM. Over stdio, it also ends when the
        parent process ends. If the process still runs `limits.shutdown.exit_seconds` after a
        signal, it prints where handlers keep it from ending, and exits; after a second signal it
        exits at once. Such an exit does not wait for handlers, and leaves recordings incomplete.

        Args:
            transport: "stdio", "http" (also called "streamable-http"), "websocket", "unix" or
                "tcp".
            options: For "stdio": `record`, as in `serve`. For the others, the arguments of
                `serve_http`, `serve_websocket`, `serve_unix` or `serve_tcp`. "http" has `workers`
                as well, the number of processes that serve the address together. Several workers
                serve stateless protocol versions only, so a handler can ask its client only if it
                is `resumable`. A change in one process is reported to its own clients only, unless
                `stores` carries it to the others.

        Raises:
            RuntimeError: A command or a fixture imports the module that calls this, or Trio runs.
            TypeError: An option is unknown.
            ValueError: The transport is unknown, or options contradict each other.
            SystemExit: After SIGINT or SIGTERM, with status 128 plus the number of the signal.
        """
        if IMPORTED_TARGET.get() is not None:
            raise RuntimeError(
                f"server.run() is called while {IMPORTED_TARGET.get()} is imported: put it under"
                ' `if __name__ == "__main__":`'
            )
        if trio.lowlevel.in_trio_run():
            raise RuntimeError(
                "server.run() starts Trio, which runs already: write"
                " `await server.serve_stdio()`, or serve_http() and others"
            )
        transport = _TRANSPORT_ALIASES.get(transport, transport)
        if transport == "sse":
            raise ValueError(
                'run("http") serves HTTP+SSE as well, to clients of protocol version 2024-11-05'
            )
        if transport not in RUNNERS:
            raise ValueError(f"unknown transport {transport!r}: choose from {', '.join(RUNNERS)}")
        for name in options:
            if advice := option_advice("Server", "run", name):
                raise TypeError(f"Server.run() got an unexpected argument {name!r}{advice}")
            if transport == "stdio" and name != "record":
                raise TypeError(
                    f"Server.run() got an unexpected option {name!r}; over stdio, only 'record' is"
                    ' one: write run("http", …) to serve over HTTP'
                )
        RUNNERS[transport](self, **options)

    async def serve(
        self,
        channel: "Channel",
        *,
        record: "RecordTarget | None" = None,
        task_status: "trio.TaskStatus[Session]" = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve one channel until its session ends, then close the channel.

        If this is cancelled, the session closes in bounded time.

        Args:
            channel: The connection to the client.
            record: The file to record to, or a folder in which each session gets a file of its own;
                or an object of `mcp_trio.recording` with more settings: `RecordOptions`,
                `RecordPolicy` or `SharedRecording`.
            task_status: Gets the session when it has opened.

        Raises:
            RecordingError: The recording cannot be made; nothing was served.
            ValueError: The redaction rules of the recording are invalid; nothing was served.
            Exception: The error that the lifespan raised.
        """
        try:
            async with (
                self._sessions.enter_lifespan(
                    record, transport=transport_of(channel), is_sole=True
                ) as lifespan,
                HandlerHttpClient(self.limits.shutdown.close_seconds) as http,
            ):
                await self._sessions.serve_session(
                    channel, lifespan=lifespan, http=http, task_status=task_status
                )
        finally:
            # A cancellation raised here would hide the error of a lifespan that was cancelled.
            with trio.move_on_after(self.limits.shutdown.close_seconds, shield=True):
                await channel.aclose()

    async def serve_stdio(
        self,
        *,
        record: "RecordTarget | None" = None,
        task_status: "trio.TaskStatus[Session]" = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve stdin and stdout of this process until the client or the parent process is gone.

        Descriptors 0 and 1 are redirected at once, so that `print` does not disturb the messages.
        Signals are not handled: `run` does that. See `serve` for the arguments and errors.
        """
        await serve_stdio(self, record=record, task_status=task_status)

    async def serve_http(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 8000,
        server: "HostKind" = "native",
        certfile: str | None = None,
        keyfile: str | None = None,
        client_cafile: str | None = None,
        metrics_port: int | None = None,
        metrics_host: str = "127.0.0.1",
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
        **options: "Unpack[HttpOptions]",
    ) -> None:
        """Serve HTTP until cancelled: `url = await nursery.start(server.serve_http)`.

        The same port serves WebSocket at `/ws` and HTTP+SSE at `/sse`. If this is cancelled, every
        stream ends as its protocol demands, in bounded time.

        Args:
            host: The address to listen on.
            port: The port to listen on; 0: any free one.
            server: The HTTP server: "native", for HTTP/1.1, or "hypercorn", for HTTP/2 as well.
            certfile: The path of a TLS certificate in PEM.
            keyfile: The path of the private key of the certificate; by default, that of `certfile`.
            client_cafile: The path of certificates in PEM, which sign certificates of clients. A
                client may then prove its certificate; tokens that are bound to one are valid only
                with it (RFC 8705). For `server="native"`: hypercorn does not pass certificates on.
            metrics_port: The port at which to serve `/metrics` for Prometheus, and `/health` and
                `/ready` as at `port`; 0: any free one. It has neither TLS nor authentication. It
                needs `prometheus-client`, which `mcp_trio[metrics]` installs.
            metrics_host: The address of that port.
            task_status: Gets the URL of the MCP endpoint when requests are accepted.
            options: `path`, the path of the MCP endpoint ("/mcp"). `token`, the bearer token that
                requests must carry, if the server has no `auth`: as `Authorization: Bearer`, or,
                from a browser that opens a WebSocket, as the subprotocol `mcp.token.` followed by
                the token in Base64URL, besides `mcp`. `hosts`, names accepted in `Host` besides
                those of the bound addresses. `origins`, web origins whose pages may use the server,
                besides its own. `allows_cors`, whether browsers let these pages read responses.
                `has_websocket`, `ws_path` and `has_sse`, for the other transports.
                `streams_answers`, whether to answer with event streams also where plain JSON would
                do. `record`, a folder or a `SharedRecording`; each session is recorded separately,
                and all stateless requests together. `stores`, the stores that several machines
                share.

        Raises:
            ValueError: Options contradict each other.
            OSError: The address cannot be bound, or the certificate cannot be read.
            Exception: The error that the lifespan raised.
        """
        from mcp_trio._server.http_serve import HttpAddress, serve_http

        address = HttpAddress(
            host=host,
            port=port,
            server=server,
            certfile=certfile,
            keyfile=keyfile,
            client_cafile=client_cafile,
            metrics_port=metrics_port,
            metrics_host=metrics_host,
        )
        await serve_http(self._sessions, address, options, task_status=task_status)

    def asgi(self, **options: "Unpack[HttpOptions]") -> "AsgiApp":
        """Return an ASGI application of this server, to mount into any application on Trio.

        It needs no lifespan events of ASGI. `await app.aclose()` closes its sessions early.

        Args:
            options: As in `serve_http`.
        """
        from mcp_trio._server.http_app import AsgiApp
        from mcp_trio._server.http_serve import app_of

        return AsgiApp(lambda: app_of(self._sessions, options, []))

    async def serve_websocket(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 8000,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
        **options: Unpack["WebSocketOptions"],
    ) -> None:
        """Serve WebSocket until cancelled: `url = await nursery.start(server.serve_websocket)`.

        Each connection is a session; all are in one lifespan. If this is cancelled, each session
        closes in bounded time, with close code 1001.

        Args:
            host: The address to listen on.
            port: The port to listen on; 0: any free one.
            task_status: Gets the URL when connections are accepted.
            options: `path`, the path of the endpoint ("/ws"). `certfile`, `keyfile`,
                `client_cafile`, `token`, `hosts` and `origins`, as in `serve_http`.
                `record`, a folder or a `SharedRecording`; see `serve`.

        Raises:
            TypeError: An option is unknown.
            ValueError: Options contradict each other.
            OSError: The address cannot be bound, or the certificate cannot be read.
            Exception: The error that the lifespan raised.
        """
        from mcp_trio._server.sockets import serve_websocket

        await serve_websocket(
            self._sessions, options, host=host, port=port, task_status=task_status
        )

    async def serve_unix(
        self,
        path: str | os.PathLike[str],
        *,
        authorize: "Authorize | None" = None,
        record: "RecordTarget | None" = None,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve a Unix domain socket until cancelled, one message per line.

        Each connection is a session; all are in one lifespan. The socket file is accessible to its
        owner only (0600). It replaces the file of a server that no longer runs, and is removed at
        the end.

        Args:
            path: The path of the socket file.
            authorize: Returns a name, or the `AuthInfo`, for the credentials of a connection, or
                None to close the connection.
            record: A folder, or a `SharedRecording`; see `serve`.
            task_status: Gets `unix:` and the path when connections are accepted.

        Raises:
            OSError: The file cannot be created, or another server listens there.
            ValueError: `record` can hold one session only.
            Exception: The error that the lifespan raised.
        """
        from mcp_trio._server.sockets import serve_unix

        await serve_unix(
            self._sessions, path, authorize=authorize, record=record, task_status=task_status
        )

    async def serve_tcp(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 8000,
        authorize: "Authorize | None" = None,
        is_open: bool = False,
        record: "RecordTarget | None" = None,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve a TCP port until cancelled, one message per line, without encryption.

        Each connection is a session; all are in one lifespan. Listening on an address that other
        machines can reach needs `authorize` or `is_open`.

        Args:
            host: The address to listen on.
            port: The port to listen on; 0: any free one.
            authorize: Returns a name, or the `AuthInfo`, for the address of a client, or None to
                close the connection.
            is_open: Whether to accept every client that can reach the address.
            record: A folder, or a `SharedRecording`; see `serve`.
            task_status: Gets the URL when connections are accepted.

        Raises:
            OSError: The address cannot be bound.
            ValueError: Other machines could reach the server, which neither `authorize` nor
                `is_open` allows; or `record` can hold one session only.
            Exception: The error that the lifespan raised.
        """
        from mcp_trio._server.sockets import serve_tcp

        await serve_tcp(
            self._sessions,
            host=host,
            port=port,
            authorize=authorize,
            is_open=is_open,
            record=record,
            task_status=task_status,
        )

    async def dial(
        self,
        url: str,
        *,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
        **options: Unpack["DialOptions"],
    ) -> None:
        """Open a connection to a hub and serve it until cancelled.

        A connection that breaks or cannot be opened is opened again, after pauses that grow. Each
        connection is a session; all are in one lifespan.

        Args:
            url: The URL of the hub: `ws://`, `wss://`, `unix:` or `tcp://`.
            task_status: Gets the URL when the first connection is open.
            options: `token`, the bearer token for the hub. `headers`, further headers of the
                WebSocket handshake. `ssl_context`, the TLS settings for `wss://`. `record`, as in
                `serve`; one file holds all sessions. `state_changed`, called with the state of the
                connection ("connecting", "open", "retrying" or "closed") and the reason.

        Raises:
            ConnectionLost: The hub rejected the connection (401, 403, close code 1008).
            TypeError: An option is unknown, or has a wrong type.
            ValueError: The URL or an option is invalid.
            Exception: The error that the lifespan raised.
        """
        from mcp_trio._server.dialing import dial

        await dial(self._sessions, url, options, task_status=task_status)
