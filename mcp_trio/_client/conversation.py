"""The conversation of a client with its server, from connecting to closing."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, Self, TypeVar

import attrs
import trio

from mcp_trio import _schema as s
from mcp_trio._client.application import ClientApplication
from mcp_trio._client.cache import Cache
from mcp_trio._client.callbacks import Callbacks
from mcp_trio._client.era_memory import (
    Address,
    Era,
    EraMemory,
    address_of,
    eras_of_this_run,
    tells_of_another_era,
)
from mcp_trio._client.eras import discovered, shaken_hands, speaks_legacy, speaks_modern
from mcp_trio._client.lifetime import Lifetime, Spawn, in_system_task
from mcp_trio._client.listening import LISTS, OwnSubscription
from mcp_trio._client.methods import methods_with
from mcp_trio._client.opening import open_session
from mcp_trio._client.roots import Roots
from mcp_trio._client.settings import Settings
from mcp_trio._client.targets import can_start, has_url, open_target, url_of
from mcp_trio._client.tools import OutputSchemas
from mcp_trio._engine import Session
from mcp_trio._errors import (
    ConnectionLost,
    LocalProtocolError,
    MCPError,
    RequestError,
    RequestTimeout,
    loss_as,
)
from mcp_trio._protocol import (
    LOG_LEVEL,
    Connection,
    Method,
    Role,
    announced,
    check_extension,
    trace_of,
)
from mcp_trio._recorder.story import Story
from mcp_trio._transports.condition import Condition, State

logger = logging.getLogger("mcp_trio")

T = TypeVar("T")


@attrs.define(eq=False, repr=False)
class Conversation(Settings):
    """What a `Client` stands on: from connecting to closing, and again if the server is lost."""

    _is_connected_once: bool = attrs.field(default=False, init=False)
    _is_closed: bool = attrs.field(default=False, init=False)
    _told_of_junk: bool = attrs.field(default=False, init=False)
    _target_name: str = attrs.field(default="", init=False)
    _spawn: Spawn = attrs.field(default=in_system_task, init=False)
    _lifetime: Lifetime | None = attrs.field(default=None, init=False)
    _own_eras: EraMemory = attrs.field(factory=EraMemory, init=False)
    _starting: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _callbacks: Callbacks = attrs.field(init=False)
    _methods: Mapping[str, Method] = attrs.field(init=False)
    _cache: Cache = attrs.field(init=False)
    _outputs: OutputSchemas = attrs.field(init=False)
    _listening: OwnSubscription = attrs.field(init=False)
    _story: Story = attrs.field(init=False)
    _condition: Condition = attrs.field(init=False)
    _how_it_stands: tuple[State, str] = attrs.field(default=("connecting", ""), init=False)

    def __attrs_post_init__(self) -> None:
        if self.restart and not (can_start(self.target) or has_url(self.target)):
            raise ValueError("restart=True is for commands, server objects and URLs")
        self._story = Story(self.record, goes_on=self._begins_again)
        self._condition = Condition(None if has_url(self.target) else self._hear_state)
        for identifier in self.extensions or ():
            check_extension(identifier)
        self._methods = methods_with(self.methods)
        self._cache = Cache(
            entries_max=self.limits.cache_entries_max, bytes_max=self.limits.cache_bytes_max
        )
        self._outputs = OutputSchemas(self.limits)
        self._listening = OwnSubscription(
            () if self.list_changed is None else LISTS, self._notice, self._beside
        )
        self._callbacks = ClientApplication(
            log=self.log,
            resource_updated=self.resource_updated,
            list_changed=self.list_changed,
            roots=self.roots,
            sampling=self.sampling,
            sampling_tools=self.sampling_tools,
            elicitation=self.elicitation,
            elicitation_modes=self.elicitation_modes,
            elicitation_complete=self.elicitation_complete,
            limits=self.limits,
            notice=self._notice,
        )

    def _notice(self, notification: str, params: Any) -> None:
        """A notification has come; called before the callback that it is for."""
        self._cache.notice(notification, params)
        if notification == "notifications/tools/list_changed":
            self._outputs.forget()

    # Connecting and closing.

    async def __aenter__(self) -> Self:
        """Connect, and agree on a revision: by a handshake within `initialize_seconds`.

        If modern revisions are spoken the server is asked for them first, and has `probe_seconds`
        to answer before it is taken for a legacy one, unless it is remembered as such. A command
        that ends instead of answering is started once more, for the handshake.

        Failed: nothing is left. Cancelled: returns at once; a server that was started is stopped by
        the session's task, and `aclose` waits for that.

        Raises:
            ConnectionLost: The server could not be started or has ended; why, if that is known.
            RequestTimeout: It did not answer in time; with the last words of a command.
            RequestError: It refused.
            RemoteProtocolError: It speaks no revision that is known here.
            RecordingError: The recording cannot be made.
            ValueError: Its redaction is wrong in itself.
        """
        await self._connect(in_system_task)
        return self

    async def __aexit__(self, *_raised: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close, from any task, any number of times; returns when nothing of the session is left.

        In a callback of the session's own it only begins to close: the callback is cancelled.
        Calls in flight end with `ConnectionLost`. Shielded from cancellation, but bounded: a
        command has `close_seconds` to leave by itself, and is stopped after that.
        """
        self._shut()
        if self._lifetime is not None:
            await self._lifetime.over()
            self._tell_of_junk(self._lifetime.session)
        self._story.end()

    def _shut(self) -> None:
        """Begin to close, without waiting for the end."""
        self._is_closed = True
        self._condition.become("closed", "closed on this side")
        if self._lifetime is not None:
            self._lifetime.session.shut("closed")

    async def _connect(self, spawn: Spawn) -> None:
        if self._is_connected_once:
            raise RuntimeError("a client connects once: make another")
        self._is_connected_once = True
        self._spawn = spawn
        self._condition.begin()
        try:
            await self._begin()
        except BaseException as error:
            self._condition.become("closed", str(error))
            self._how_it_stands = "closed", str(error)
            self._end_story()
            raise

    def _end_story(self) -> None:
        if self._lifetime is None:
            self._story.end()
        else:
            self._lifetime.session.ended.when_set(self._story.end)

    async def _begin(self) -> None:
        """Open a session, and agree; a server whose era is known is not asked for it (VER-08)."""
        eras, address = self._remembered()
        era = eras.recall(address)
        try:
            await self._begin_as(era)
        except MCPError as error:
            if era in _UNKNOWN or not tells_of_another_era(error):
                raise
            logger.info("%s is not as it was: %s", self._target_name, error)
            eras.forget(address)
            await self._begin_as(None)
        eras.note(address, self._era)
        self._stands(self._session)

    def _stands(self, session: Session) -> None:
        """It is open, and once it is lost that is told, before any call fails by it."""
        self._condition.become("open")
        session.closing.when_set(partial(self._note_loss, session))

    def _note_loss(self, session: Session) -> None:
        state: State = "retrying" if self._begins_again and not self._is_closed else "closed"
        self._condition.become(state, str(session.loss))

    def _hear_state(self, state: State, reason: str) -> None:
        self._how_it_stands = state, reason
        if self.state_changed is not None:
            self.state_changed(state, reason)

    def _remembered(self) -> tuple[EraMemory, Address | None]:
        """Where the era of the server is kept, and under what.

        Nobody else's memory counts for what is no URL.
        """
        url = url_of(self.target)
        if url is None:
            return self._own_eras, None
        eras = eras_of_this_run() if self.eras is None else self.eras
        return eras, address_of(url, http=self.http, revisions=tuple(self.revisions))

    @property
    def _era(self) -> Era:
        """What the server of the session turned out to be."""
        if self._is_modern:
            return "modern"
        return "HTTP+SSE" if getattr(self._session.channel, "is_old", False) else "legacy"

    async def _begin_as(self, era: Era | None) -> None:
        """Open a session, and agree as with a server of that era; with none, find it out."""
        lifetime = await self._open(is_old=era == "HTTP+SSE")
        asks = speaks_modern(self.revisions) and era in _UNKNOWN
        is_modern = asks and await self._discover(lifetime)
        lifetime = self._lifetime or lifetime  # it may have been started again
        session = lifetime.session
        if not is_modern and await self._agree(lifetime, partial(shaken_hands, session)):
            for step in (self._tell_log_level, self._listening.begin_legacy):
                await self._agree(lifetime, partial(step, session))
        else:
            await self._agree(lifetime, partial(self._listening.begin, session))

    async def _open(self, *, is_old: bool = False) -> Lifetime:
        """A session, which lives from now on, but has agreed on nothing yet."""
        on_state = self._hear_state if has_url(self.target) else None
        connected = await open_target(
            self.target,
            process=self._process_options(),
            web=self._web_options(on_state=on_state, is_old=is_old),
            limits=self.limits,
        )
        self._target_name = connected.name
        session = await open_session(
            connected.channel,
            self._connection_to_open(),
            self._callbacks,
            record=self._story.record,
        )
        lifetime = self._lifetime = Lifetime(session=session, served=connected.served)
        if self._is_closed:
            session.shut("closed")
        try:
            self._spawn(lifetime.live)
        except RuntimeError:  # the caller's nursery is over; what was opened is closed elsewhere
            session.shut("closed")
            in_system_task(lifetime.live)
            raise
        return lifetime

    def _connection_to_open(self) -> Connection:
        capabilities = self._callbacks.capabilities()
        if self.extensions is not None:
            capabilities.extensions = {name: dict(it) for name, it in self.extensions.items()}
        return Connection(
            our_role=Role.CLIENT,
            our_info=s.Implementation(name=self.name, version=self.version),
            our_capabilities=capabilities,
            limits=self.limits,
            methods=self._methods,
            revisions=self.revisions,
            own_metadata=self._own_metadata,
        )

    def _own_metadata(self) -> dict[str, Any]:
        """What each request says beside what it has to: the trace, to a modern server the level."""
        said: dict[str, Any] = {} if self.trace is None else {**trace_of(self.trace())}
        level = self._wanted_level
        if level is not None and self._is_modern:
            said[LOG_LEVEL] = level
        return said

    @property
    def _wanted_level(self) -> s.LoggingLevel | None:
        """Whoever listens hears everything, as of a legacy server that was told nothing."""
        return "debug" if self.log_level is None and self.log is not None else self.log_level

    async def _discover(self, lifetime: Lifetime) -> bool:
        """Whether the server is modern; one that the question has killed is started again."""
        try:
            return await self._agree(lifetime, partial(discovered, lifetime.session))
        except ConnectionLost:
            can_shake_hands = speaks_legacy(self.revisions) and can_start(self.target)
            if not can_shake_hands or self._is_closed:
                raise
        logger.info("%s has ended when it was asked for its revisions", self._target_name)
        await self._open()
        return False

    async def _agree(self, lifetime: Lifetime, step: Callable[[], Awaitable[T]]) -> T:
        """Do a step of it; if it fails the session is over, and what is known of that is told."""
        try:
            return await step()
        except trio.Cancelled:
            lifetime.session.shut("closed")
            raise
        except ConnectionLost as loss:
            await self._end(lifetime)
            if lifetime.fault is None:  # nothing was asked for yet whose outcome could matter
                raise loss_as(ConnectionLost, loss) from loss.__cause__
            raise lifetime.fault from lifetime.fault.__cause__
        except RequestTimeout as late:
            last_words = getattr(lifetime.session.channel, "stderr_tail", "")
            await self._end(lifetime)
            raise RequestTimeout(
                late.method,
                late.budget,
                late.seconds,
                late.setting,
                server=self._target_name,
                stderr_tail=last_words,
            ) from None
        except BaseException:
            await self._end(lifetime)
            raise

    async def _end(self, lifetime: Lifetime) -> None:
        lifetime.session.shut("closed")
        await lifetime.over()
        self._tell_of_junk(lifetime.session)

    async def _tell_log_level(self, session: Session) -> None:
        """A legacy server is told once what a modern one is told with each request."""
        if self.log_level is None or not self.server_can("logging"):
            return
        try:
            await session.request("logging/setLevel", s.SetLevelParams(level=self.log_level))
        except RequestError as error:
            logger.warning("%s refuses the log level: %s", self._known_name, error)

    def _replace_roots(self, roots: Roots) -> None:
        self._callbacks.roots = roots
        self._choose_roots(roots)

    # Starting again.

    async def _living_session(self) -> Session:
        """The session; with `restart`, another one if a command has died (STDIO-20).

        Raises:
            MCPError: As connecting; the next call tries again.
        """
        if self._is_to_start:
            async with self._starting:
                if self._is_to_start:
                    await self._begin_again()
        self._listening.revive()
        return self._session

    @property
    def _is_to_start(self) -> bool:
        lifetime = self._lifetime
        has_ended = lifetime is not None and lifetime.session.cause is not None
        return has_ended and self._begins_again and not self._is_closed

    @property
    def _begins_again(self) -> bool:
        """Whether the next call connects anew; to a URL always."""
        return self.restart or url_of(self.target) is not None

    async def _begin_again(self) -> None:
        """What is known of the old process holds no more, but of which era it was."""
        assert self._lifetime is not None
        is_started = url_of(self.target) is None
        words = "has ended, and is started again" if is_started else "is lost, and connected again"
        logger.warning("%s %s", self._known_name, words)
        await self._lifetime.over()
        self._cache.clear()
        self._outputs.forget()
        await self._begin()

    def _beside(self, task: Callable[[], Awaitable[None]]) -> None:
        """See `Lifetime.start_soon`."""
        assert self._lifetime is not None
        self._lifetime.start_soon(task)

    # What is known of the server.

    def __repr__(self) -> str:
        """Without the environment and whatever else has secrets in it."""
        state = "open" if self.is_open else "closed" if self._is_closed else "not connected"
        return f"<{type(self).__name__} {self.name!r} of {self._known_name!r}, {state}>"

    @property
    def is_open(self) -> bool:
        """Whether calls can be made: connected, not closed, and not lost."""
        if self._lifetime is None:
            return False
        session = self._lifetime.session
        return session.negotiated.is_set() and session.cause is None

    @property
    def state(self) -> State:
        """How the connection stands, as `state_changed` was told last.

        "connecting": nothing was heard yet. "open": the server answered last. "retrying": it could
        not be reached, or was lost, and is tried again with the next call at the latest. "closed":
        the session is over, and unless we closed it a call to a URL begins another.
        """
        return self._how_it_stands[0]

    @property
    def state_reason(self) -> str:
        """Why it is "retrying" or "closed"; else empty."""
        return self._how_it_stands[1]

    @property
    def server_info(self) -> s.Implementation:
        """Name and version of the server; a modern one that says none is named by its target."""
        info = self._connection.peer_info
        return info or s.Implementation(name=self._target_name, version="")

    @property
    def server_capabilities(self) -> s.ServerCapabilities:
        """What the server offers."""
        capabilities = self._connection.peer_capabilities
        assert isinstance(capabilities, s.ServerCapabilities)
        return capabilities

    def server_can(self, capability: str) -> bool:
        """Whether the server offers it: "tools", say, or "resources.subscribe"."""
        return announced(self.server_capabilities, capability)

    @property
    def instructions(self) -> str | None:
        """The server's advice on how it is used."""
        return self._connection.instructions

    @property
    def revision(self) -> str:
        """The revision of the protocol that both sides agreed on."""
        revision = self._connection.revision
        assert revision is not None
        return revision.name

    @property
    def counts(self) -> dict[str, int]:
        """How often the server did something that was not worth an error, by name."""
        return dict(self._session.connection.counts)

    @property
    def _is_modern(self) -> bool:
        """Whether the server is known to be of a revision without handshake."""
        revision = None if self._lifetime is None else self._lifetime.session.connection.revision
        return revision is not None and revision.is_modern

    @property
    def _known_name(self) -> str:
        """How texts name the server: by its own name, as soon as it has said that."""
        info = None if self._lifetime is None else self._lifetime.session.connection.peer_info
        return self._target_name if info is None else info.name

    @property
    def _session(self) -> Session:
        if self._lifetime is None:
            raise LocalProtocolError("the client is not connected: use `async with`")
        return self._lifetime.session

    @property
    def _connection(self) -> Connection:
        session = self._session
        if not session.negotiated.is_set():
            raise LocalProtocolError("the client has not shaken hands")
        return session.connection

    def _tell_of_junk(self, session: Session) -> None:
        """Name the server and the likely cause, once; each message was logged when it came."""
        count = session.connection.counts["malformed"]
        if count and not self._told_of_junk:
            self._told_of_junk = True
            logger.warning(_JUNK, self._known_name, count)


# Of a modern server all has to be asked again but its era; that is found out along the way.
_UNKNOWN: Final = (None, "modern")

_JUNK: Final = (
    "%s sent what is no message, %d times so far: a print to stdout, its own or of something that"
    " it starts, is the usual cause"
)
