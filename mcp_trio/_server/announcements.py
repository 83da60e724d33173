"""Telling clients that a list or a resource has changed.

Whoever changes something tells the `Audience`, from any task or thread. Each open session has an
announcer, an actor that sends what its own client has to know. Changes that happen while one waits
for its turn, or for a slow client, are told once: what is pending is bounded by the kinds of lists
and by the subscriptions.

In a recording the announcer has a lane. It takes a turn for each notification, and a mark says what
it tells, and how many changes of that have happened by then. For a replay may be a little ahead of
the recording, or behind: there the mark decides, and the announcer waits until these changes have
happened. Once something was pending there is a record, whatever happens: that mark, with nothing to
tell if it was withdrawn, or `cxl` if the session ends first. So a replay in which the session's own
handlers change the same things sends the same, and any other diverges. A change from outside the
file (a session that is not recorded in it, a task beside it) is an input that recordings do not
hold: replaying such a session diverges at the notification.
"""

from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeAlias

import attrs
import trio

from mcp_trio._engine import AccompaniedSession, Lane
from mcp_trio._protocol import METHODS, announced
from mcp_trio._schema import ResourceUpdatedParams

ANNOUNCE_LANE: Final = "announce"
CHOICE: Final = "announce"
RESOURCE_UPDATED: Final = "notifications/resources/updated"

Notice: TypeAlias = tuple[str, str | None]
"""A notification: its method, and the URI that it is about, if it is about one."""


def list_changed(kind: str) -> Notice:
    """The notice that a list has changed: "tools", "resources" or "prompts"."""
    return f"notifications/{kind}/list_changed", None


@attrs.define(eq=False)
class Announcer:
    """What one session's client is told by itself.

    Attributes:
        audience: Where it hears of changes, as long as it runs.
        subscribed: The URIs whose updates the client wants to hear of.
        session: The session, from `run` on.
    """

    audience: "Audience"
    subscribed: set[str] = attrs.field(factory=set[str], init=False)
    session: AccompaniedSession = attrs.field(init=False)
    _token: trio.lowlevel.TrioToken = attrs.field(init=False)
    _changes: dict[Notice, int] = attrs.field(factory=dict[Notice, int], init=False)
    _pending: dict[Notice, None] = attrs.field(factory=dict[Notice, None], init=False)
    _news: trio.Event = attrs.field(factory=trio.Event, init=False)

    async def run(self, session: AccompaniedSession) -> None:
        """The actor; nothing is sent before the client is `initialized`."""
        self.session = session
        self._token = trio.lowlevel.current_trio_token()
        with self.audience.joined_by(self):
            await session.initialized.wait()
            lane = Lane(ANNOUNCE_LANE) if session.sequencer.has_lanes else None
            while True:
                if not self._pending:
                    await self._next_change()
                await self._send_next(lane)

    def tell(self, notice: Notice) -> None:
        """Something has changed; from any task or thread."""
        if self._is_here():
            self._note(notice)
        elif self._is_wanted(notice):  # or threads could queue URIs without end
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._note, notice, idempotent=True)

    def unsubscribe(self, uri: str) -> None:
        """The client no longer wants to hear of a resource; neither of what is pending."""
        self.subscribed.discard(uri)
        self._changes.pop((RESOURCE_UPDATED, uri), None)
        self._pending.pop((RESOURCE_UPDATED, uri), None)

    def _is_wanted(self, notice: Notice) -> bool:
        _, uri = notice
        return uri is None or uri in self.subscribed

    def _is_here(self) -> bool:
        try:
            return trio.lowlevel.current_trio_token() is self._token
        except RuntimeError:  # a thread without a loop
            return False

    def _note(self, notice: Notice) -> None:
        connection, need = self.session.connection, METHODS[notice[0]].need
        assert need is not None
        if connection.revision is None:
            return  # the handshake, still to come, declares what is there then
        if announced(connection.our_capabilities, need.path) and self._is_wanted(notice):
            self._changes[notice] = self._changes.get(notice, 0) + 1
            self._pending[notice] = None
            self._news.set()

    async def _next_change(self) -> None:
        self._news = trio.Event()
        await self._news.wait()

    async def _send_next(self, lane: Lane | None) -> None:
        outbox = self.session.outbox
        await outbox.ready(lane)
        choice = self._choice()
        if lane is not None:
            choice = self.session.sequencer.marked(CHOICE, choice, lane)
        if choice is None:
            return
        method, uri, changes = choice
        while self._changes.get((method, uri), 0) < changes:  # a replay that is behind
            await self._next_change()
        if self._changes[method, uri] == changes:
            del self._pending[method, uri]
        params = None if uri is None else ResourceUpdatedParams(uri=uri)
        outbox.post_now(self.session.connection.notification(method, params), lane)

    def _choice(self) -> Any:
        """The oldest that is pending, and how often it has changed; None if it was withdrawn."""
        notice = next(iter(self._pending), None)
        return None if notice is None else [*notice, self._changes[notice]]


@attrs.define(eq=False)
class Audience:
    """The announcers of a server's open sessions, perhaps in several Trio runs."""

    _announcers: set[Announcer] = attrs.field(factory=set[Announcer], init=False)

    @contextmanager
    def joined_by(self, announcer: Announcer) -> Generator[None]:
        """A context in which an announcer hears of every change."""
        self._announcers.add(announcer)
        try:
            yield
        finally:
            self._announcers.discard(announcer)

    def tell(self, notice: Notice) -> None:
        """Something has changed; from any task or thread."""
        for announcer in tuple(self._announcers):
            announcer.tell(notice)
