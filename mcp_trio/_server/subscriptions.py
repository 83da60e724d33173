"""Change notifications: the lists and resources of a server that its clients subscribe to.

A change is reported to the `ChangeNotifier`, in any task or thread. The notifier has a
`ChangeListener` for each client: the `Announcer` of a legacy session, which has a task while there
is something to send, or a `Subscription`, which is the handler of a `subscriptions/listen` request.
Changes that happen while a listener waits for its turn or for a slow client are sent once. What is
pending is therefore bounded by the number of lists and of subscribed resources.

In a recording, each listener has a lane. For each notification, a mark records the change that is
sent, and how often that change has happened until then; it is null if the change was withdrawn
meanwhile. In a replay, the handlers may be ahead of the listener or behind it. So the listener
sends the change in the mark, as soon as that has happened as often. If the session ends first,
there is a `cxl` record. A replay in which the handlers of the session make the same changes sends
the same notifications; any other replay diverges. A change from outside of the recording, such as
one by another session, is an input that the recording does not have: a replay diverges at its
notification.

https://modelcontextprotocol.io/specification/2026-07-28/basic/patterns/subscriptions
"""

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs
import trio
from msgspec.structs import replace

from mcp_trio import types
from mcp_trio._protocol.empty import NO_ITEMS
from mcp_trio._protocol.metadata import SUBSCRIPTION_ID
from mcp_trio._protocol.methods import ACKNOWLEDGED, METHODS, RESOURCE_UPDATED, has_capability
from mcp_trio._protocol.shares import Shares, shares_of
from mcp_trio._session.handlers import Handling
from mcp_trio._session.lanes import Lane, drive_in
from mcp_trio._transports.concurrency import Wakeup
from mcp_trio.errors import SERVER_BUSY, RequestError
from mcp_trio.limits import Limits

if TYPE_CHECKING:
    from mcp_trio._session.session import Session

_ANNOUNCE_LANE: Final = "announce"
_CHANGE_MARK: Final = "announce"  # for each notification, with the change that is sent
_END: Final = "end"  # in place of a change: the listener has nothing more to send

Change: TypeAlias = tuple[str, str | None]
"""A change: the method of its notification, and the URI of the changed resource, if it has one."""

NotifyChange: TypeAlias = Callable[[Change], None]
"""A function to which a change is reported."""


def list_changed(kind: str) -> Change:
    """Return the change of a list: "tools", "resources" or "prompts"."""
    return f"notifications/{kind}/list_changed", None


@attrs.define(eq=False, repr=False)
class ChangeListener(ABC):
    """A sender of change notifications to one client.

    Attributes:
        notifier: The notifier of the server, which reports changes from `join` to `leave`.
        session: The session of the client, from `join` on.
        is_over: Whether the listener ends when its pending changes have been sent.
    """

    notifier: "ChangeNotifier"
    _session: "weakref.ref[Session]" = attrs.field(init=False)
    is_over: bool = attrs.field(default=False, init=False)
    _token: trio.lowlevel.TrioToken = attrs.field(init=False)
    # How often each change has happened, and the changes to be sent, the oldest first.
    _counts: dict[Change, int] = attrs.field(default=NO_ITEMS, init=False)
    _pending: dict[Change, None] = attrs.field(default=NO_ITEMS, init=False)
    # Made by the first wait, since each session has a listener, and few wait.
    _wakeup: Wakeup | None = attrs.field(default=None, init=False)

    @property
    def session(self) -> "Session":
        """The session, which outlives its listeners; their reference is weak, as it has them."""
        session = self._session()
        assert session is not None
        return session

    @property
    def request_id(self) -> types.RequestId | None:
        """The request that the notifications belong to; None for those of a legacy session."""
        return None

    @property
    def may_send(self) -> bool:
        """Return whether the protocol allows notifications now; the pending ones wait for it."""
        return True

    @abstractmethod
    def is_subscribed(self, change: Change) -> bool:
        """Return whether the client has subscribed to a change; called in any task or thread."""

    @abstractmethod
    def is_due(self, change: Change) -> bool:
        """Return whether a change has to be sent now; called for subscribed changes."""

    @abstractmethod
    def encode(self, method: str, uri: str | None) -> bytes:
        """Return the encoded notification."""

    def join(self, session: "Session") -> None:
        """Begin to listen for changes."""
        self._session = weakref.ref(session)
        self._token = trio.lowlevel.current_trio_token()
        self.notifier.listeners[self] = None

    def leave(self) -> None:
        """Stop listening for changes."""
        self.notifier.listeners.pop(self, None)

    def notify(self, change: Change) -> None:
        """Queue a change for the client; may be called in any task or thread."""
        try:
            is_in_own_thread = trio.lowlevel.current_trio_token() is self._token
        except RuntimeError:  # The calling thread runs no Trio.
            is_in_own_thread = False
        if is_in_own_thread:
            self._queue(change)
        # Changes without a subscription are dropped here, because a thread could otherwise queue
        # any number of URIs.
        elif self.is_subscribed(change):
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._queue, change, idempotent=True)

    async def _send_next(self, lane: Lane | None) -> bool:
        """Send the oldest pending change; return whether the listener is over.

        Nothing is sent if the change was withdrawn while the listener waited for room, or must not
        be sent now.
        """
        await self.session.send_queue.room_for_message(lane)
        change = next(iter(self._pending), None) if self.may_send else None
        to_send: Any = _END if self.is_over else None
        if change is not None:
            to_send = [*change, self._counts[change]]
        if lane is not None:
            recorded = self.session.sequencer.marked(_CHANGE_MARK, to_send, lane)
            # A replay follows the recording, but never ends before its own changes are sent.
            to_send = to_send if recorded == _END else recorded
        if to_send is not None and to_send != _END:
            method, uri, count = to_send
            while self._counts.get((method, uri), 0) < count:  # The replay is behind the recording.
                await self._wait()
            if self._counts[method, uri] == count:
                del self._pending[method, uri]
            self.session.send_queue.post(
                self.encode(method, uri), lane, related_request_id=self.request_id, at_once=True
            )
        return bool(to_send == _END)

    def _queue(self, change: Change) -> None:
        if self.is_subscribed(change) and self.is_due(change):
            if not self._counts:
                self._counts = {}
            if not self._pending:
                self._pending = {}
            self._counts[change] = self._counts.get(change, 0) + 1
            self._pending[change] = None
            self._wake()

    async def _wait(self) -> None:
        if self._wakeup is None:
            self._wakeup = Wakeup()
        await self._wakeup.wait()

    def _wake(self) -> None:
        if self._wakeup is not None:
            self._wakeup.wake()


@attrs.define(eq=False, repr=False)
class Announcer(ChangeListener):
    """The change notifications of a legacy session.

    Attributes:
        subscribed: The URIs of the resources that the client has subscribed to.
    """

    subscribed: dict[str, None] = attrs.field(default=NO_ITEMS, init=False)
    _lane: Lane | None = attrs.field(default=None, init=False)
    _has_task: bool = attrs.field(default=False, init=False)

    @property
    def may_send(self) -> bool:
        """Return whether the client is initialized; it may initialize again at any time."""
        return self.session.initialized.is_set()

    def join(self, session: "Session") -> None:
        """Begin to listen for changes, when the session opens."""
        if session.sequencer.has_lanes:
            sequencer = session.sequencer
            self._lane = Lane(
                _ANNOUNCE_LANE, sequencer, has_steps=sequencer.has_steps, has_own_pace=True
            )
        super().join(session)

    def _wake(self) -> None:
        super()._wake()
        if not self._has_task:
            self._has_task = True
            lane, send = self._lane, self._send_pending
            self.session.start_actor(send if lane is None else partial(drive_in, lane, send))

    async def _send_pending(self) -> None:
        is_due = True
        while is_due:
            # A server must not send notifications before the client's `notifications/initialized`.
            if not self.may_send:
                await self.session.initialized.wait()
                if not self._pending:
                    break
            await self._send_next(self._lane)
            is_due = bool(self._pending)
        self._has_task = False

    def restart(self) -> None:
        """End all subscriptions and forget all changes, because the client begins a new session."""
        self.subscribed = NO_ITEMS
        for change in tuple(self._pending):
            self.withdraw(change)

    def withdraw(self, change: Change) -> None:
        """Remove a change from the pending ones: the client has unsubscribed."""
        self._counts.pop(change, None)
        self._pending.pop(change, None)

    def subscribe(self, uri: str) -> None:
        """Begin the client's subscription to a resource."""
        if not self.subscribed:
            self.subscribed = {}
        self.subscribed[uri] = None

    def unsubscribe(self, uri: str) -> None:
        """End the client's subscription to a resource."""
        self.subscribed.pop(uri, None)
        self.withdraw((RESOURCE_UPDATED, uri))

    def is_subscribed(self, change: Change) -> bool:
        """Return True for each list, and for a resource that the client has subscribed to."""
        _, uri = change
        return uri is None or uri in self.subscribed

    def is_due(self, change: Change) -> bool:
        """Return whether the server has declared the capability for a change.

        Before the handshake no change is due: the client has not listed anything so far.
        """
        connection, need = self.session.connection, METHODS[change[0]].required_capability
        assert need is not None
        has_session = connection.protocol_version is not None
        return has_session and has_capability(connection.our_capabilities, need.path)

    def encode(self, method: str, uri: str | None) -> bytes:
        """Return the encoded notification."""
        params = None if uri is None else types.ResourceUpdatedParams(uri=uri)
        return self.session.connection.notification(method, params)


@attrs.define(eq=False, repr=False)
class ChangeNotifier:
    """The listeners for a server's changes, perhaps in several Trio runs.

    Attributes:
        listeners: The listeners in the sessions of this server.
        relays: Functions that report each change elsewhere, without waiting.
    """

    # A dict, since each session has a listener: a set takes up to four times as much memory.
    listeners: dict[ChangeListener, None] = attrs.field(
        factory=dict[ChangeListener, None], init=False
    )
    relays: set[NotifyChange] = attrs.field(factory=set[NotifyChange], init=False)

    def notify(self, change: Change) -> None:
        """Report a change to all listeners and relays; may be called in any task or thread."""
        self.notify_listeners(change)
        for relay in tuple(self.relays):
            relay(change)

    def notify_listeners(self, change: Change) -> None:
        """Report a change of another instance, whose relay has reported it to this one."""
        for listener in tuple(self.listeners):
            listener.notify(change)


# For each list, the member of a filter, and the capability that the server needs to honour it.
_LISTS: Final = {
    "tools": ("tools_list_changed", "tools.listChanged"),
    "prompts": ("prompts_list_changed", "prompts.listChanged"),
    "resources": ("resources_list_changed", "resources.listChanged"),
}
_SUBSCRIBE: Final = "resources.subscribe"


@attrs.define(eq=False)
class Subscription(ChangeListener):
    """The handler of one `subscriptions/listen` request; `honoured` is the filter it accepted."""

    handling: Handling
    honoured: types.SubscriptionFilter
    changes: frozenset[Change] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        lists = [
            list_changed(kind)
            for kind, (member, _) in _LISTS.items()
            if getattr(self.honoured, member)
        ]
        self.changes = frozenset([*lists, *((RESOURCE_UPDATED, uri) for uri in self.uris)])

    @property
    def request_id(self) -> types.RequestId:
        """The id of the request, which the notifications belong to."""
        return self.handling.request.id

    @property
    def uris(self) -> list[str]:
        """The resources of the subscription."""
        return self.honoured.resource_subscriptions or []

    @property
    def meta(self) -> dict[str, Any]:
        """The `_meta` of each message: the id of the request, a string or a number as sent."""
        return {SUBSCRIPTION_ID: self.handling.request.id}

    async def run(self) -> types.ListenResult:
        """Acknowledge the subscription, and send notifications of changes until `end` is called.

        A client ends the subscription by cancelling the request; nothing is sent after that.
        """
        handling = self.handling
        # A change that happens before the acknowledgement is sent is pending, and sent after it.
        self.join(handling.session)
        try:
            acknowledged = types.AcknowledgedParams(notifications=self.honoured, meta=self.meta)
            await handling.notify(ACKNOWLEDGED, acknowledged)
            await self.send_all(handling.lane)
        finally:
            self.leave()
        handling.final_message = handling.session.connection.subscription_end(handling.request)
        return types.ListenResult(meta=self.meta)

    async def send_all(self, lane: Lane | None) -> None:
        """Send notifications of changes until `end` is called."""
        if lane is not None:
            lane.has_own_pace = True
        is_over = False
        while not is_over:
            if not (self._pending or self.is_over):
                await self._wait()
            is_over = await self._send_next(lane)

    def end(self) -> None:
        """Let `send_all` return when the pending changes have been sent."""
        self.is_over = True
        self._wake()

    def is_subscribed(self, change: Change) -> bool:
        """Return whether the filter of the subscription has the change."""
        return change in self.changes

    def is_due(self, change: Change) -> bool:  # noqa: ARG002
        """Return True: the filter has only changes that the server offers."""
        return True

    def encode(self, method: str, uri: str | None) -> bytes:
        """Return the encoded notification, with the id of the subscription."""
        params = types.EmptyParams() if uri is None else types.ResourceUpdatedParams(uri=uri)
        params = replace(params, meta=self.meta)
        connection = self.handling.session.connection
        return connection.notification(method, params, request=self.handling.request)


@attrs.define(eq=False, repr=False)
class Subscriptions:
    """The open subscriptions of one session, in which each client has a share."""

    limits: Limits
    _open: dict[Subscription, None] = attrs.field(factory=dict[Subscription, None], init=False)
    _subscription_shares: Shares = attrs.field(init=False)
    _resource_shares: Shares = attrs.field(init=False)
    _ends_with_session: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._subscription_shares = shares_of("limits.requests.listens_max", self.limits)
        self._resource_shares = shares_of("limits.requests.subscriptions_max", self.limits)

    def check_room(self, client: str | int, wanted: types.SubscriptionFilter) -> None:
        """Check the limits for a new subscription, before its filter is examined.

        Raises:
            RequestError: There are too many subscriptions, or this one has too many resources.
        """
        exceeded = self._subscription_shares.exceeded(client)
        if exceeded is not None:
            raise RequestError(SERVER_BUSY, f"too many subscriptions{exceeded}")
        exceeded = self._resource_shares.exceeded(client, len(wanted.resource_subscriptions or ()))
        if exceeded is not None:
            raise RequestError(SERVER_BUSY, f"too many resources{exceeded}")

    def notify(self, change: Change) -> None:
        """Report a change to the open subscriptions of this session."""
        for subscription in tuple(self._open):
            subscription.notify(change)

    async def run(self, client: str | int, subscription: Subscription) -> types.ListenResult:
        """Run a subscription until it is cancelled or the session begins to close.

        The caller has called `check_room` for its filter, and has not waited since.
        """
        resources = len(subscription.uris)
        self._open[subscription] = None
        self._subscription_shares.take(client)
        self._resource_shares.take(client, resources)
        if not self._ends_with_session:
            self._ends_with_session = True
            session = subscription.handling.session

            async def end_with_session() -> None:
                await session.closing.wait()
                for each in tuple(self._open):
                    each.end()

            session.start_actor(end_with_session)
        try:
            return await subscription.run()
        finally:
            del self._open[subscription]
            self._subscription_shares.give_back(client)
            self._resource_shares.give_back(client, resources)


def honoured_filter(
    params: types.ListenParams,
    capabilities: types.ServerCapabilities,
    is_readable: Callable[[str], bool],
) -> types.SubscriptionFilter:
    """Return the part of a client's filter that the server can honour.

    Lists that the server does not offer, and resources that do not exist, are omitted; the protocol
    does not make them an error.
    """
    wanted = params.notifications
    lists = {
        member: True
        for member, capability in _LISTS.values()
        if getattr(wanted, member) and has_capability(capabilities, capability)
    }
    uris = wanted.resource_subscriptions if has_capability(capabilities, _SUBSCRIBE) else None
    readable = [uri for uri in dict.fromkeys(uris or ()) if is_readable(uri)]
    return types.SubscriptionFilter(**lists, resource_subscriptions=readable or None)
