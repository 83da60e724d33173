"""`Server`: what people register, and the ways to serve it."""

import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from inspect import isasyncgenfunction
from typing import Any, Final, TypeAlias, TypeVar, overload

import attrs
import trio

from mcp_trio import _schema as s
from mcp_trio._engine import Sequencer, Session, Unrecorded, start_recording
from mcp_trio._limits import DEFAULT_LIMITS, Limits
from mcp_trio._protocol import Connection, Role
from mcp_trio._server.callables import is_async, name_of
from mcp_trio._server.context import Context, ThreadContext
from mcp_trio._server.registry import (
    RegisteredPrompt,
    RegisteredResource,
    RegisteredTool,
    Registry,
)
from mcp_trio._server.serving import Serving
from mcp_trio._server.signatures import Signature
from mcp_trio._server.stdio import run_stdio, serve_stdio
from mcp_trio._server.templates import UriTemplate
from mcp_trio._transports.channel import Channel

Lifespan: TypeAlias = Callable[["Server"], AbstractAsyncContextManager[Any]]
Path: TypeAlias = str | os.PathLike[str]
F = TypeVar("F", bound=Callable[..., Any])


@attrs.define(eq=False)
class Server:
    """A named set of tools, resources and prompts.

    `lifespan` is an async context manager made from the server; what it yields is `ctx.lifespan` of
    every handler. It is entered once for each served channel, before the handshake.

    Raises:
        TypeError: `lifespan` is a bare generator.
    """

    name: str
    version: str = attrs.field(default="0", kw_only=True)
    instructions: str | None = attrs.field(default=None, kw_only=True)
    lifespan: Lifespan | None = attrs.field(default=None, kw_only=True)
    limits: Limits = attrs.field(default=DEFAULT_LIMITS, kw_only=True)
    _registry: Registry = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if isasyncgenfunction(self.lifespan):
            raise TypeError("a lifespan is decorated with contextlib.asynccontextmanager")
        self._registry = Registry(self.limits)

    # Registering.

    @overload
    def tool(self, handler: F, /) -> F: ...

    @overload
    def tool(
        self,
        /,
        *,
        name: str | None = None,
        description: str | None = None,
        thread: bool = True,
    ) -> Callable[[F], F]: ...

    def tool(
        self,
        handler: Any = None,
        /,
        *,
        name: str | None = None,
        description: str | None = None,
        thread: bool = True,
    ) -> Any:
        """Offer a function as a tool; to be used bare or called.

        The arguments' schema comes from the signature, descriptions from the docstring. A `def`
        handler runs in a thread, unless `thread=False` says that it is trivial and never blocks.

        Raises:
            TypeError: The function cannot be called by argument names.
            ValueError: The name is taken.
        """

        def register(handler: F) -> F:
            tool = RegisteredTool(
                name=name or name_of(handler),
                signature=self._signature(handler, thread=thread),
                given_description=description,
            )
            self._registry.add_tool(tool)
            return handler

        return register if handler is None else register(handler)

    def resource(
        self,
        uri: str,
        *,
        name: str | None = None,
        description: str | None = None,
        mime_type: str | None = None,
        thread: bool = True,
    ) -> Callable[[F], F]:
        """Offer a function as the reader of `uri`: one, or each that an RFC 6570 template matches.

        The function's parameters are the template's variables. Values that could lead out of their
        place (`..`, backslashes, encoded slashes) are refused before it runs.

        Raises:
            TypeError: The function cannot be called by argument names.
            ValueError: The URI is taken, the template is malformed, or parameters and variables
                differ.
        """
        template = UriTemplate.parse(uri)

        def register(handler: F) -> F:
            signature = self._signature(handler, thread=thread)
            template.check_parameters(signature.parameters)
            resource = RegisteredResource(
                name=name or name_of(handler),
                signature=signature,
                given_description=description,
                template=template,
                mime_type=mime_type,
            )
            self._registry.add_resource(resource)
            return handler

        return register

    @overload
    def prompt(self, handler: F, /) -> F: ...

    @overload
    def prompt(
        self,
        /,
        *,
        name: str | None = None,
        description: str | None = None,
        thread: bool = True,
    ) -> Callable[[F], F]: ...

    def prompt(
        self,
        handler: Any = None,
        /,
        *,
        name: str | None = None,
        description: str | None = None,
        thread: bool = True,
    ) -> Any:
        """Offer a function as a prompt; to be used bare or called. See `tool`.

        Raises:
            TypeError: The function cannot be called by argument names.
            ValueError: The name is taken.
        """

        def register(handler: F) -> F:
            prompt = RegisteredPrompt(
                name=name or name_of(handler),
                signature=self._signature(handler, thread=thread),
                given_description=description,
            )
            self._registry.add_prompt(prompt)
            return handler

        return register if handler is None else register(handler)

    def _signature(self, handler: Callable[..., Any], *, thread: bool) -> Signature:
        gets_thread_context = thread and not is_async(handler)
        own, foreign = _CONTEXTS if gets_thread_context else reversed(_CONTEXTS)
        return Signature(
            handler=handler,
            context_type=own,
            foreign_context_types=(foreign,),
            limits=self.limits,
        )

    # Serving.

    def open_session(
        self, channel: Channel, *, sequencer: Sequencer | None = None, lifespan: Any = None
    ) -> Session:
        """A session over `channel` that nobody runs yet; `serve` is the usual way."""
        connection = Connection(
            our_role=Role.SERVER,
            our_info=s.Implementation(name=self.name, version=self.version),
            our_capabilities=self._capabilities(),
            instructions=self.instructions,
            limits=self.limits,
        )
        serving = Serving(self._registry, lifespan)
        return Session(channel, connection, serving, sequencer or Unrecorded())

    async def serve(
        self,
        channel: Channel,
        *,
        record: Path | None = None,
        task_status: trio.TaskStatus[Session] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve one channel until its session ends; closes the channel. Reports the session.

        `record` is a file, or a folder in which each session gets a file of its own.
        Cancelled: the session is wound down in bounded time.

        Raises:
            RecordingError: The recording cannot be made; nothing was served.
            Exception: What the lifespan raises, as it is.
        """
        try:
            lifespan = nullcontext() if self.lifespan is None else self.lifespan(self)
            async with lifespan as value:
                session = self.open_session(
                    channel, sequencer=self._sequencer(channel, record), lifespan=value
                )
                await session.run(task_status=task_status)
        finally:
            await channel.aclose()  # the peer of a server that never came to be learns it so

    async def serve_stdio(
        self,
        *,
        record: Path | None = None,
        task_status: trio.TaskStatus[Session] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve this process's stdin and stdout, which are diverted at once; see `serve`.

        Signals are the caller's affair: `run` handles them.
        """
        await serve_stdio(self, record=record, task_status=task_status)

    def run(self, transport: str = "stdio", *, record: Path | None = None) -> None:
        """Serve until the client is gone or a signal comes; owns signals, and ends with the parent.

        Raises:
            ValueError: Unknown transport.
            SystemExit: After SIGINT or SIGTERM, with status 128 plus its number.
        """
        if transport not in _RUNNERS:
            raise ValueError(f"unknown transport {transport!r}: one of {', '.join(_RUNNERS)}")
        _RUNNERS[transport](self, record=record)

    def _sequencer(self, channel: Channel, record: Path | None) -> Sequencer:
        if record is None:
            return Unrecorded()
        return start_recording(
            record,
            role="server",
            transport=getattr(channel, "transport", type(channel).__name__),
            name=self.name,
            version=self.version,
            tools_digest=self._registry.tools_digest(),
            lifespan=self.lifespan is not None,
            limits=self.limits,
        )

    def _capabilities(self) -> s.ServerCapabilities:
        registry = self._registry
        return s.ServerCapabilities(
            logging={},
            tools=s.ToolsCapability() if registry.tools else None,
            resources=s.ResourcesCapability() if registry.resources else None,
            prompts=s.PromptsCapability() if registry.prompts else None,
        )


_CONTEXTS: Final = (ThreadContext, Context)
_RUNNERS: Final = {"stdio": run_stdio}
