"""Subscriptions at a server, and the notifications of changes.

It is acknowledged first, with what of its wishes is honoured: kinds that the server does not offer
and resources that nobody could read are left out, not refused (SUB-06). What changes while the
acknowledgement waits for its turn is told after it (TRAP-105). A client ends a subscription by
cancelling the request, and hears nothing more; a server when its session begins to close, by the
result and a cancellation behind it (TRAP-104).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeAlias

import attrs
import trio
from msgspec.structs import replace

from mcp_trio._protocol.metadata import SUBSCRIPTION_ID
from mcp_trio._protocol.methods import ACKNOWLEDGED, METHODS, RESOURCE_UPDATED, announced
from mcp_trio._protocol.requests import RequestId
from mcp_trio._session.handlers import AccompaniedSession, Handling, HandlingSession
from mcp_trio._session.journal import Lane
from mcp_trio._transports.concurrency import Wakeup
from mcp_trio.errors import SERVER_BUSY, RequestError
from mcp_trio.limits import Limits
from mcp_trio.types import (
    AcknowledgedParams,
    EmptyParams,
    ListenParams,
    ListenResult,
    ResourceUpdatedParams,
    ServerCapabilities,
    SubscriptionFilter,
)

# --------------------
# Telling clients that a list or a resource has changed.
#
# Whoever changes something tells the `Audience`, from any task or thread. It has a `Listener` for
# each client that is to hear of it: the announcer of a session, which is an actor while there is
# something to tell, or the handler of a subscription. Changes that happen while one waits for its
# turn, or for a slow client, are told once: what is pending is bounded by the kinds of lists and by
# the subscriptions.
#
# In a recording a listener has a lane. It takes a turn for each notification, and a mark says what
# it tells, and how many changes of that have happened by then. For a replay may be a little ahead
# of the recording, or behind: there the mark decides, and the listener waits until these changes
# have happened. Once something was pending there is a record, whatever happens: that mark, with
# nothing to tell if it was withdrawn, or `cxl` if the session ends first. So a replay in which the
# session's own handlers change the same things sends the same, and any other diverges. A change
# from outside the file (a session that is not recorded in it, a task beside it) is an input that
# recordings do not hold: replaying such a session diverges at the notification.


ANNOUNCE_LANE: Final = "announce"
CHOICE: Final = "announce"

# What a listener chooses when it has nothing more to tell.
END: Final = "end"

Notice: TypeAlias = tuple[str, str | None]
"""A notification: its method, and the URI that it is about, if it is about one."""

Tell: TypeAlias = Callable[[Notice], None]
"""Says to somebody that something has changed."""


def list_changed(kind: str) -> Notice:
    """The notice that a list has changed: "tools", "resources" or "prompts"."""
    return f"notifications/{kind}/list_changed", None


@attrs.define(eq=False)
class Listener(ABC):
    """What one client is told by itself; see the module.

    Attributes:
        audience: Where it hears of changes, from `join` to `leave`.
        session: The session, as soon as it is.
        is_over: Whether nothing more is to be told than what is pending.
    """

    audience: "Audience"
    session: HandlingSession = attrs.field(init=False)
    is_over: bool = attrs.field(default=False, init=False)
    _token: trio.lowlevel.TrioToken = attrs.field(init=False)
    _changes: dict[Notice, int] = attrs.field(factory=dict[Notice, int], init=False)
    _pending: dict[Notice, None] = attrs.field(factory=dict[Notice, None], init=False)
    _news: Wakeup = attrs.field(factory=Wakeup, init=False)

    @property
    def about(self) -> RequestId | None:
        """The request that its notifications belong to; of a session's they belong to none."""
        return None

    @abstractmethod
    def is_wanted(self, notice: Notice) -> bool:
        """Return whether the client wants to hear of a change; asked in any task or thread."""

    @abstractmethod
    def is_due(self, notice: Notice) -> bool:
        """Return whether the client is to hear of one that it wants to hear of."""

    @abstractmethod
    def frame(self, method: str, uri: str | None) -> bytes:
        """The notification."""

    def join(self, session: HandlingSession) -> None:
        """Hear of every change from now on."""
        self.session = session
        self._token = trio.lowlevel.current_trio_token()
        self.audience.add(self)

    def leave(self) -> None:
        """Hear no more."""
        self.audience.discard(self)

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
        self._news.ring()

    def withdraw(self, notice: Notice) -> None:
        """The client no longer wants to hear of it; neither of what is pending."""
        self._changes.pop(notice, None)
        self._pending.pop(notice, None)

    async def tell_all(self, lane: Lane | None) -> None:
        """Send what there is to tell, as it comes, until the `end`."""
        is_over = False
        while not is_over:
            if not (self._pending or self.is_over):
                await self._news.wait()
            is_over = await self._tell_next(lane)

    async def _tell_next(self, lane: Lane | None) -> bool:
        """Send what is pending longest; returns whether nothing comes any more."""
        await self.session.send_queue.ready(lane)
        choice = self._choice(lane)
        if choice is not None and choice != END:
            await self._send(choice, lane)
        return bool(choice == END)

    def _is_here(self) -> bool:
        try:
            return trio.lowlevel.current_trio_token() is self._token
        except RuntimeError:  # a thread without a loop
            return False

    def _note(self, notice: Notice) -> None:
        if self.is_wanted(notice) and self.is_due(notice):
            self._changes[notice] = self._changes.get(notice, 0) + 1
            self._pending[notice] = None
            self._wake()

    def _wake(self) -> None:
        """There is something to tell."""
        self._news.ring()

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
            await self._news.wait()
        if self._changes[method, uri] == changes:
            del self._pending[method, uri]
        self.session.send_queue.post_now(self.frame(method, uri), lane, about=self.about)


@attrs.define(eq=False)
class Announcer(Listener):
    """What the client of a legacy session is told.

    Attributes:
        subscribed: The URIs whose updates the client wants to hear of.
    """

    subscribed: dict[str, None] = attrs.field(factory=dict[str, None], init=False)
    _accompanied: AccompaniedSession = attrs.field(init=False)
    _lane: Lane | None = attrs.field(default=None, init=False)
    _is_awake: bool = attrs.field(default=False, init=False)

    def accompany(self, session: AccompaniedSession) -> None:
        """The session begins."""
        self._accompanied = session
        if session.sequencer.has_lanes:
            self._lane = Lane(ANNOUNCE_LANE)
        self.join(session)

    def _wake(self) -> None:
        super()._wake()
        if not self._is_awake:
            self._is_awake = True
            self._accompanied.act(self._tell_pending)

    async def _tell_pending(self) -> None:
        """The actor; nothing is sent before the client is `initialized`."""
        initialized, is_due = self._accompanied.initialized, True
        if not initialized.is_set():
            await initialized.wait()
            is_due = bool(self._pending)
        while is_due:
            await self._tell_next(self._lane)
            is_due = bool(self._pending)
        self._is_awake = False

    def unsubscribe(self, uri: str) -> None:
        """The client no longer wants to hear of a resource; neither of what is pending."""
        self.subscribed.pop(uri, None)
        self.withdraw((RESOURCE_UPDATED, uri))

    def is_wanted(self, notice: Notice) -> bool:
        """See `Listener.is_wanted`."""
        _, uri = notice
        return uri is None or uri in self.subscribed

    def is_due(self, notice: Notice) -> bool:
        """See `Listener.is_due`: a handshake that is still to come declares what is there then."""
        connection, need = self.session.connection, METHODS[notice[0]].required_capability
        assert need is not None
        has_session = connection.protocol_version is not None
        return has_session and announced(connection.our_capabilities, need.path)

    def frame(self, method: str, uri: str | None) -> bytes:
        """See `Listener.frame`."""
        params = None if uri is None else ResourceUpdatedParams(uri=uri)
        return self.session.connection.notification(method, params)


@attrs.define(eq=False)
class Audience:
    """Who listens to a server's changes, perhaps in several Trio runs."""

    _listeners: set[Listener] = attrs.field(factory=set[Listener], init=False)
    _relays: set[Tell] = attrs.field(factory=set[Tell], init=False)

    @contextmanager
    def relayed_by(self, relay: Tell) -> Generator[None]:
        """A context in which others are told of every change by this, too; it must be quick."""
        self._relays.add(relay)
        try:
            yield
        finally:
            self._relays.discard(relay)

    def add(self, listener: Listener) -> None:
        """It hears of every change from now on."""
        self._listeners.add(listener)

    def discard(self, listener: Listener) -> None:
        """It hears no more."""
        self._listeners.discard(listener)

    def tell(self, notice: Notice) -> None:
        """Something has changed; from any task or thread."""
        self.hear(notice)
        for relay in tuple(self._relays):
            relay(notice)

    def hear(self, notice: Notice) -> None:
        """Something has changed at others, who have told whom they had to; as `tell`."""
        for listener in tuple(self._listeners):
            listener.tell(notice)


# The member of a filter for each list, and the capability that a server needs to honour it.
_LISTS: Final = {
    "tools": ("tools_list_changed", "tools.listChanged"),
    "prompts": ("prompts_list_changed", "prompts.listChanged"),
    "resources": ("resources_list_changed", "resources.listChanged"),
}
_SUBSCRIBE: Final = "resources.subscribe"


@attrs.define(eq=False)
class Subscription(Listener):
    """One subscription, which is told what it was `honoured`."""

    handling: Handling
    honoured: SubscriptionFilter
    wanted: frozenset[Notice] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.wanted = frozenset(_notices(self.honoured))

    @property
    def about(self) -> RequestId:
        """See `Listener.about`."""
        return self.handling.request.id

    @property
    def uris(self) -> list[str]:
        """The resources that it is about."""
        return self.honoured.resource_subscriptions or []

    @property
    def meta(self) -> dict[str, Any]:
        """What ties a message to it: the id of its request, as that came (SUB-08, TRAP-106)."""
        return {SUBSCRIPTION_ID: self.handling.request.id}

    async def run(self) -> ListenResult:
        """Acknowledge, and tell what changes until the `end`."""
        handling = self.handling
        self.join(handling.session)
        try:
            acknowledged = AcknowledgedParams(notifications=self.honoured, meta=self.meta)
            await handling.notify(ACKNOWLEDGED, acknowledged)
            await self.tell_all(handling.lane)
        finally:
            self.leave()
        handling.final_message = handling.session.connection.subscription_end(handling.request)
        return ListenResult(meta=self.meta)

    def is_wanted(self, notice: Notice) -> bool:
        """See `Listener.is_wanted`."""
        return notice in self.wanted

    def is_due(self, notice: Notice) -> bool:  # noqa: ARG002  what is honoured is offered
        """See `Listener.is_due`."""
        return True

    def frame(self, method: str, uri: str | None) -> bytes:
        """See `Listener.frame`."""
        params = EmptyParams() if uri is None else ResourceUpdatedParams(uri=uri)
        params = replace(params, meta=self.meta)
        connection = self.handling.session.connection
        return connection.notification(method, params, request=self.handling.request)


@attrs.define(eq=False)
class Subscriptions:
    """The subscriptions of one session, `session`."""

    limits: Limits
    session: AccompaniedSession
    _open: dict[Subscription, None] = attrs.field(factory=dict[Subscription, None], init=False)
    _has_ender: bool = attrs.field(default=False, init=False)

    async def _end_with_session(self) -> None:
        """The actor, from the first of them on: ends all when the session begins to close."""
        await self.session.closing.wait()
        for subscription in tuple(self._open):
            subscription.end()

    def check_wishes(self, wishes: SubscriptionFilter) -> None:
        """Refuse what there is no room for, before it costs more to look at.

        Raises:
            RequestError: There are too many subscriptions, or this one names too many resources.
        """
        if len(self._open) >= self.limits.requests.listens_max:
            listens_max = self.limits.requests.listens_max
            text = f"too many subscriptions (limits.requests.listens_max={listens_max})"
            raise RequestError(SERVER_BUSY, text)
        self._check_resources(len(wishes.resource_subscriptions or ()))

    async def run(self, subscription: Subscription) -> ListenResult:
        """Answer `subscriptions/listen`; returns when the session begins to close.

        Raises:
            RequestError: Together they are for too many resources.
        """
        self._check_resources(sum(len(each.uris) for each in (*self._open, subscription)))
        self._open[subscription] = None
        if not self._has_ender:
            self._has_ender = True
            self.session.act(self._end_with_session)
        try:
            return await subscription.run()
        finally:
            del self._open[subscription]

    def _check_resources(self, number: int) -> None:
        if number > self.limits.requests.subscriptions_max:
            subscriptions_max = self.limits.requests.subscriptions_max
            text = f"too many resources (limits.requests.subscriptions_max={subscriptions_max})"
            raise RequestError(SERVER_BUSY, text)


def honoured(
    params: ListenParams, capabilities: ServerCapabilities, is_readable: Callable[[str], bool]
) -> SubscriptionFilter:
    """What of a client's wishes a server can fulfil; what is not wished for is not in it."""
    wishes = params.notifications
    lists = {
        member: True
        for member, capability in _LISTS.values()
        if getattr(wishes, member) and announced(capabilities, capability)
    }
    named = wishes.resource_subscriptions if announced(capabilities, _SUBSCRIBE) else None
    found = [uri for uri in dict.fromkeys(named or ()) if is_readable(uri)]
    return SubscriptionFilter(**lists, resource_subscriptions=found or None)


def _notices(wishes: SubscriptionFilter) -> list[Notice]:
    lists = [list_changed(kind) for kind, (member, _) in _LISTS.items() if getattr(wishes, member)]
    return [*lists, *((RESOURCE_UPDATED, uri) for uri in wishes.resource_subscriptions or ())]
