"""`Server`: what people register, and the ways to serve it."""

import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from inspect import isasyncgenfunction
from typing import Any, ClassVar, Final, TypeAlias

import attrs
import trio

from mcp_trio import _schema as s
from mcp_trio._engine import Recording, Sequencer, Session, Unrecorded
from mcp_trio._protocol import Connection, Role
from mcp_trio._recorder.opening import open_recorder
from mcp_trio._server.announcements import Announcer
from mcp_trio._server.context import Context, ThreadContext
from mcp_trio._server.offering import Offering
from mcp_trio._server.serving import Serving
from mcp_trio._server.stdio import run_stdio, serve_stdio
from mcp_trio._transports.channel import Channel

Lifespan: TypeAlias = Callable[["Server"], AbstractAsyncContextManager[Any]]
Path: TypeAlias = str | os.PathLike[str]


@attrs.define(eq=False)
class Server(Offering):
    """A named set of tools, resources and prompts.

    Attributes:
        name: What the client is told of us, with `version` and `instructions`.
        lifespan: An async context manager made from the server; what it yields is `ctx.lifespan` of
            every handler. It is entered once for each served channel, before the handshake.
        limits: What each session may cost.
        offers: Of "tools", "resources" and "prompts" those that are declared though nothing of them
            may be registered yet when a session begins.
        capabilities: What is declared, instead of what follows from the above.
        methods: Handlers by the method that they handle; see `method`.
        converter: Reads and writes the values of classes that nothing else here knows, by the hooks
            that were registered with it, as arguments and as results. What a hook says that it
            takes is the schema. Its `ValueError` tells the client its text.

    Raises:
        TypeError: `lifespan` is a bare generator.
        ValueError: `offers` holds something else; a method cannot be handled.
    """

    name: str
    version: str = attrs.field(default="0", kw_only=True)
    instructions: str | None = attrs.field(default=None, kw_only=True)
    lifespan: Lifespan | None = attrs.field(default=None, kw_only=True)

    _contexts: ClassVar = (Context, ThreadContext)

    def __attrs_post_init__(self) -> None:
        if isasyncgenfunction(self.lifespan):
            raise TypeError("a lifespan is decorated with contextlib.asynccontextmanager")
        super().__attrs_post_init__()

    # Serving.

    def open_session(
        self, channel: Channel, *, sequencer: Sequencer | None = None, lifespan: Any = None
    ) -> Session:
        """A session over `channel` that nobody runs yet; `serve` is the usual way."""
        connection = Connection(
            our_role=Role.SERVER,
            our_info=s.Implementation(name=self.name, version=self.version),
            our_capabilities=s.ServerCapabilities(),
            declare=self.declared,
            instructions=self.instructions,
            limits=self.limits,
            methods=self._registry.rows,
        )
        serving = Serving(self, self._registry, Announcer(self._audience), lifespan)
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
        recorder = open_recorder(
            record,
            role="server",
            transport=getattr(channel, "transport", type(channel).__name__),
            name=self.name,
            version=self.version,
            tools_digest=self._registry.tools_digest(),
            lifespan=self.lifespan is not None,
            limits=self.limits,
        )
        return Recording(recorder)


_RUNNERS: Final = {"stdio": run_stdio}
