"""Telling clients that a list or a resource has changed.

Whoever changes something tells the `Audience`, from any task or thread. It has a `Listener` for
each client that is to hear of it: the announcer of a session, which is an actor, or the handler of
a subscription. Changes that happen while one waits for its turn, or for a slow client, are told
once: what is pending is bounded by the kinds of lists and by the subscriptions.

In a recording a listener has a lane. It takes a turn for each notification, and a mark says what it
tells, and how many changes of that have happened by then. For a replay may be a little ahead of the
recording, or behind: there the mark decides, and the listener waits until these changes have
happened. Once something was pending there is a record, whatever happens: that mark, with nothing to
tell if it was withdrawn, or `cxl` if the session ends first. So a replay in which the session's own
handlers change the same things sends the same, and any other diverges. A change from outside the
file (a session that is not recorded in it, a task beside it) is an input that recordings do not
hold: replaying such a session diverges at the notification.
"""

from abc import ABC, abstractmethod
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeAlias

import attrs
import trio

from mcp_trio._engine import AccompaniedSession, HandlingSession, Lane
from mcp_trio._protocol import METHODS, RESOURCE_UPDATED, RequestId, announced
from mcp_trio._schema import ResourceUpdatedParams

ANNOUNCE_LANE: Final = "announce"
CHOICE: Final = "announce"

# What a listener chooses when it has nothing more to tell.
END: Final = "end"

Notice: TypeAlias = tuple[str, str | None]
"""A notification: its method, and the URI that it is about, if it is about one."""


def list_changed(kind: str) -> Notice:
    """The notice that a list has changed: "tools", "resources" or "prompts"."""
    return f"notifications/{kind}/list_changed", None


@attrs.define(eq=False)
class Listener(ABC):
    """What one client is told by itself; see the module.

    Attributes:
        audience: Where it hears of changes, as long as it is `joined`.
        session: The session, as soon as it is.
        is_over: Whether nothing more is to be told than what is pending.
    """

    audience: "Audience"
    session: HandlingSession = attrs.field(init=False)
    is_over: bool = attrs.field(default=False, init=False)
    _token: trio.lowlevel.TrioToken = attrs.field(init=False)
    _changes: dict[Notice, int] = attrs.field(factory=dict[Notice, int], init=False)
    _pending: dict[Notice, None] = attrs.field(factory=dict[Notice, None], init=False)
    _news: trio.Event = attrs.field(factory=trio.Event, init=False)

    @property
    def about(self) -> RequestId | None:
        """The request that its notifications belong to; of a session's they belong to none."""
        return None

    @abstractmethod
    def is_wanted(self, notice: Notice) -> bool:
        """Whether the client wants to hear of a change; asked in any task or thread."""

    @abstractmethod
    def is_due(self, notice: Notice) -> bool:
        """Whether the client is to hear of one that it wants to hear of."""

    @abstractmethod
    def frame(self, method: str, uri: str | None) -> bytes:
        """The notification."""

    @contextmanager
    def joined(self, session: HandlingSession) -> Generator[None]:
        """A context in which it hears of every change."""
        self.session = session
        self._token = trio.lowlevel.current_trio_token()
        with self.audience.joined_by(self):
            yield

    def tell(self, notice: Notice) -> None:
        """Something has changed; from any task or thread."""
        if self._is_here():
            self._note(notice)
        elif self.is_wanted(notice):  # or threads could queue URIs without end
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._note, notice, idempotent=True)

    def end(self) -> None:
        """When what is pending has been told, `tell_all` returns."""
        self.is_over = True
        self._news.set()

    def withdraw(self, notice: Notice) -> None:
        """The client no longer wants to hear of it; neither of what is pending."""
        self._changes.pop(notice, None)
        self._pending.pop(notice, None)

    async def tell_all(self, lane: Lane | None) -> None:
        """Send what there is to tell, as it comes, until the `end`."""
        while True:
            if not (self._pending or self.is_over):
                await self._next_change()
            await self.session.outbox.ready(lane)
            choice = self._choice(lane)
            if choice == END:
                return
            if choice is not None:
                await self._send(choice, lane)

    def _is_here(self) -> bool:
        try:
            return trio.lowlevel.current_trio_token() is self._token
        except RuntimeError:  # a thread without a loop
            return False

    def _note(self, notice: Notice) -> None:
        if self.is_wanted(notice) and self.is_due(notice):
            self._changes[notice] = self._changes.get(notice, 0) + 1
            self._pending[notice] = None
            self._news.set()

    async def _next_change(self) -> None:
        self._news = trio.Event()
        await self._news.wait()

    def _choice(self, lane: Lane | None) -> Any:
        """What is done now; a replay does as recorded, but does not keep back what it has to tell.

        It is what is pending longest and how often it has changed, None if that was withdrawn.
        """
        notice = next(iter(self._pending), None)
        choice: Any = END if self.is_over else None
        if notice is not None:
            choice = [*notice, self._changes[notice]]
        if lane is None:
            return choice
        recorded = self.session.sequencer.marked(CHOICE, choice, lane)
        return choice if recorded == END else recorded

    async def _send(self, choice: Any, lane: Lane | None) -> None:
        method, uri, changes = choice
        while self._changes.get((method, uri), 0) < changes:  # a replay that is behind
            await self._next_change()
        if self._changes[method, uri] == changes:
            del self._pending[method, uri]
        self.session.outbox.post_now(self.frame(method, uri), lane, about=self.about)


@attrs.define(eq=False)
class Announcer(Listener):
    """What the client of a legacy session is told.

    Attributes:
        subscribed: The URIs whose updates the client wants to hear of.
    """

    subscribed: set[str] = attrs.field(factory=set[str], init=False)

    async def run(self, session: AccompaniedSession) -> None:
        """The actor; nothing is sent before the client is `initialized`."""
        with self.joined(session):
            await session.initialized.wait()
            await self.tell_all(Lane(ANNOUNCE_LANE) if session.sequencer.has_lanes else None)

    def unsubscribe(self, uri: str) -> None:
        """The client no longer wants to hear of a resource; neither of what is pending."""
        self.subscribed.discard(uri)
        self.withdraw((RESOURCE_UPDATED, uri))

    def is_wanted(self, notice: Notice) -> bool:
        """See `Listener.is_wanted`."""
        _, uri = notice
        return uri is None or uri in self.subscribed

    def is_due(self, notice: Notice) -> bool:
        """See `Listener.is_due`: a handshake that is still to come declares what is there then."""
        connection, need = self.session.connection, METHODS[notice[0]].need
        assert need is not None
        has_session = connection.revision is not None
        return has_session and announced(connection.our_capabilities, need.path)

    def frame(self, method: str, uri: str | None) -> bytes:
        """See `Listener.frame`."""
        params = None if uri is None else ResourceUpdatedParams(uri=uri)
        return self.session.connection.notification(method, params)


@attrs.define(eq=False)
class Audience:
    """Who listens to a server's changes, perhaps in several Trio runs."""

    _listeners: set[Listener] = attrs.field(factory=set[Listener], init=False)

    @contextmanager
    def joined_by(self, listener: Listener) -> Generator[None]:
        """A context in which a listener hears of every change."""
        self._listeners.add(listener)
        try:
            yield
        finally:
            self._listeners.discard(listener)

    def tell(self, notice: Notice) -> None:
        """Something has changed; from any task or thread."""
        for listener in tuple(self._listeners):
            listener.tell(notice)
