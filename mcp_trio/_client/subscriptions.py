"""Subscriptions of a client to changes at a stateless server.

A subscription is one `subscriptions/listen` request, which stays open while the server sends its
notifications. The dispatcher passes them to the subscription by the id of the request that they
carry, without waiting, so that a callback may subscribe while it runs. A change that is reported
again before it was read is kept once.

The server does not report changes before the acknowledgement. So the client's cache takes each
acknowledgement as a change of all lists and resources of the subscription.

Over HTTP the stream of a subscription may break while the session goes on. Such a stream cannot be
resumed: after a pause the request is sent again, and the subscriber is notified of all changes that
it may have missed.

https://modelcontextprotocol.io/specification/2026-07-28/basic/patterns/subscriptions
"""

import logging
import random
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, Literal, Self, TypeAlias

import attrs
import msgspec
import trio

from mcp_trio._client.connect import Spawn
from mcp_trio._protocol.methods import (
    ACKNOWLEDGED,
    LISTEN,
    RESOURCE_UPDATED,
    Method,
    ParamsToSend,
    has_capability,
)
from mcp_trio._session.calls import Call
from mcp_trio._session.session import Session
from mcp_trio._transports.connections import pause_seconds
from mcp_trio.errors import (
    ConnectionLost,
    LocalProtocolError,
    MCPError,
    RemoteProtocolError,
    RequestError,
    RequestTimeout,
    ResourceNotFound,
)
from mcp_trio.limits import Limits
from mcp_trio.types import (
    EmptyParams,
    ListenParams,
    ResourceUpdatedParams,
    SubscribeParams,
    SubscriptionFilter,
)

logger = logging.getLogger("mcp_trio")

SUBSCRIBE: Final = "resources/subscribe"
UNSUBSCRIBE: Final = "resources/unsubscribe"

_TOO_MANY_REQUESTS: Final = 429
_SERVER_ERROR: Final = 500

ChangeKind: TypeAlias = Literal["tools", "prompts", "resources", "resource"]
OnChange: TypeAlias = Callable[[str, Any], None]
"""Called with the method and the params of a notification, before the subscriber gets it."""

# For each list: the member of a filter that asks for its changes, and their notification.
LISTS: Final[dict[ChangeKind, tuple[str, str]]] = {
    kind: (f"{kind}_list_changed", f"notifications/{kind}/list_changed")
    for kind in ("tools", "prompts", "resources")
}
CHANGE_KINDS: Final[dict[str, ChangeKind]] = {
    RESOURCE_UPDATED: "resource",
    **{method: kind for kind, (_, method) in LISTS.items()},
}


class Change(msgspec.Struct, frozen=True):
    """A change of a list or of a resource.

    Attributes:
        kind: The list that has changed, "tools", "prompts" or "resources", or "resource".
        uri: The URI of the resource, which may be a part of the resource subscribed to.
        missed: Whether the change is only possible: the server's stream was interrupted.
    """

    kind: ChangeKind
    uri: str | None = None
    missed: bool = False


def subscription_filter(kinds: Iterable[ChangeKind], uris: Iterable[str]) -> SubscriptionFilter:
    """Return the filter for changes of these lists and resources."""
    lists = {LISTS[kind][0]: True for kind in kinds}
    return SubscriptionFilter(**lists, resource_subscriptions=list(dict.fromkeys(uris)) or None)


def _changes_in(asked: SubscriptionFilter) -> list[Change]:
    lists = [Change(kind) for kind, (member, _) in LISTS.items() if getattr(asked, member)]
    return [*lists, *(Change("resource", uri) for uri in asked.resource_subscriptions or ())]


def notifications_in(asked: SubscriptionFilter) -> list[tuple[str, ParamsToSend]]:
    """Return the notifications of a server at which everything in the filter has changed."""
    return [
        (LISTS[change.kind][1], EmptyParams())
        if change.uri is None
        else (RESOURCE_UPDATED, ResourceUpdatedParams(uri=change.uri))
        for change in _changes_in(asked)
    ]


class SubscriptionStream:
    """A `subscriptions/listen` request that is sent again when the server's stream breaks.

    Attributes:
        asked: The filter of the request.
        acknowledged: The part of it that the server has acknowledged; None before that.
        for_callbacks: Whether notifications go to the client's callbacks, and not to `next_change`.
        interruption: The reason why the stream is interrupted; empty while it is not.
    """

    def __init__(
        self, asked: SubscriptionFilter, on_change: OnChange, *, for_callbacks: bool = False
    ) -> None:
        self.asked = asked
        self.acknowledged: SubscriptionFilter | None = None
        self.for_callbacks = for_callbacks
        self.interruption = ""
        self._on_change = on_change
        self._session: Session
        self._call: Call
        # Whether the server has acknowledged the current request, and whether that was closed.
        self._is_acknowledged = False
        self._is_request_closed = False
        # Whether a change was dropped, because nothing read the changes.
        self._has_dropped = False
        self._changes: dict[Change, None] = {}
        self._readers = trio.lowlevel.ParkingLot()
        self._failed_tries = 0
        # Whether `end` was called, whether `run` has returned, and whether it may run again.
        self._was_ended = False
        self._has_finished = False
        self._may_be_revived = False
        self._failure: MCPError | None = None
        self._running = trio.CancelScope()

    @property
    def left_out(self) -> list[Change]:
        """Return the changes in `asked` that the server has not acknowledged."""
        acknowledged = [] if self.acknowledged is None else _changes_in(self.acknowledged)
        return [change for change in _changes_in(self.asked) if change not in acknowledged]

    @property
    def is_open(self) -> bool:
        """Return whether changes may still arrive, on this stream or on another."""
        return not (self._has_finished or self._was_ended)

    @property
    def _limits(self) -> Limits:
        return self._session.connection.limits

    async def next_change(self) -> Change:
        """Wait for the next change; see `Subscription.__anext__`."""
        await trio.lowlevel.checkpoint()
        while not self._changes:
            if self._failure is not None:
                raise self._failure
            if self._has_finished:
                raise StopAsyncIteration
            await self._readers.park()
        change = next(iter(self._changes))
        del self._changes[change]
        return change

    async def begin(self, session: Session, *, seconds: float | None = None) -> None:
        """Send the request and wait for its acknowledgement; `run` has to follow.

        Only the acknowledgement has a timeout: `seconds`, or `limits.requests.idle_seconds`. If
        this fails or is cancelled, the request is cancelled at the server.

        Raises:
            RequestTimeout: The server did not acknowledge in time.
            RequestError: The server rejected the request.
            RemoteProtocolError: The server ended the subscription instead.
            LocalProtocolError: The server is a legacy one.
            ConnectionLost: The session has ended.
        """
        self._session = session
        await self._send(seconds)

    def end(self) -> None:
        """Cancel the request at the server, if it is open."""
        self._was_ended = True
        self._close_request()
        self._running.cancel()

    async def run(self) -> None:
        """Send the request again whenever its stream breaks, until the subscription is over.

        An error ends the subscription and is raised by `next_change`.
        """
        with trio.CancelScope() as self._running:
            try:
                if not self._was_ended:
                    while self.interruption or await self._wait_for_break():
                        await self._resend()
            except MCPError as error:
                self._failure = error
                if self.for_callbacks and self._session.cause is None:
                    logger.warning("the client will not be notified of changes: %s", error)
            finally:
                self._has_finished = True
                self._readers.unpark_all()

    async def _wait_for_break(self) -> bool:
        """Wait for the end of the stream; return False if the server has ended the subscription.

        A subscription for callbacks is resumed even then, since no task reads it that could
        subscribe again.
        """
        since = trio.current_time()
        await self._call.next_progress()
        if trio.current_time() - since >= self._limits.http.reconnect_seconds_max:
            self._failed_tries = 0
        error = self._call.error
        if error is None:
            self._call.outcome()
            self.interruption = "the server ended the subscription" if self.for_callbacks else ""
        elif self._is_final(error):
            raise error
        else:
            self.interruption = str(error)
        return bool(self.interruption)

    async def _resend(self) -> None:
        """Send the request until the server acknowledges it, with growing pauses."""
        for _ in range(self._limits.http.reconnects_max):
            seconds = pause_seconds(self._failed_tries, self._limits, random.random)
            self._failed_tries += 1
            with trio.move_on_after(seconds):
                await self._session.closing.wait()
            try:
                await self._send(None)
            except (ConnectionLost, RequestTimeout) as error:
                if self._is_final(error):
                    raise
                self.interruption = str(error)
            else:
                return
        limit = self._limits.http.reconnects_max
        # With a limit of 0 reconnecting is switched off, so the next call does not revive it.
        self._may_be_revived = limit > 0
        raise ConnectionLost(
            f"the subscription was not resumed (limits.http.reconnects_max={limit}):"
            f" {self.interruption}"
        )

    def _is_final(self, error: MCPError) -> bool:
        """Return whether the session has ended, or an HTTP status rejected the request."""
        status = error.http_status if isinstance(error, ConnectionLost) else None
        is_temporary = status is None or status >= _SERVER_ERROR or status == _TOO_MANY_REQUESTS
        return not is_temporary or self._session.cause is not None

    def revive(self) -> bool:
        """Prepare another try if the last one was given up; `run` has to run again if True."""
        if not self._may_be_revived or self._session.cause is not None:
            return False
        self._may_be_revived = self._has_finished = False
        self._failure = None
        return True

    async def _send(self, seconds: float | None) -> None:
        """Send the request and wait for its acknowledgement; on any error cancel it."""
        self._is_acknowledged = self._is_request_closed = False
        params = ListenParams(notifications=self.asked)
        self._call = self._session.calls.open_subscription(LISTEN, params, self._receive)
        try:
            await self._wait_for_acknowledgement(seconds)
        except BaseException:
            self._close_request()
            raise
        self.interruption = ""

    def _close_request(self) -> None:
        if not self._is_request_closed:
            self._is_request_closed = True
            self._session.calls.close_subscription(self._call)

    async def _wait_for_acknowledgement(self, seconds: float | None) -> None:
        limit_seconds = self._limits.requests.idle_seconds if seconds is None else seconds
        with trio.move_on_after(limit_seconds):
            await self._call.next_progress()
        if self._is_acknowledged:
            return
        if not self._call.has_ended:
            setting = "limits.requests.idle_seconds" if seconds is None else "idle_seconds"
            raise RequestTimeout(LISTEN, "idle", limit_seconds, setting)
        self._call.outcome()
        raise RemoteProtocolError("the server ended a subscription before it acknowledged it")

    def _receive(self, method: Method, params: Any) -> bool:
        """Handle a notification of the server; return whether the callbacks get it, too."""
        if method.name == ACKNOWLEDGED:
            if self._is_acknowledged:
                return False
            is_resumed = self.acknowledged is not None
            self._is_acknowledged, self.acknowledged = True, params.notifications
            for notification in notifications_in(params.notifications):
                self._on_change(*notification)
            if is_resumed and not self.for_callbacks:
                for change in _changes_in(params.notifications):
                    self._add(msgspec.structs.replace(change, missed=True))
            self._call.queue_progress(None)  # this wakes `_wait_for_acknowledgement`
            return is_resumed and self.for_callbacks
        if not self._is_acknowledged:  # the server must not send others before it
            return False
        self._on_change(method.name, params)
        if not self.for_callbacks:
            self._add(Change(CHANGE_KINDS[method.name], getattr(params, "uri", None)))
        return self.for_callbacks

    def _add(self, change: Change) -> None:
        limit = self._limits.messages.progress_queued_max
        self._changes[change] = None
        if len(self._changes) > limit:
            del self._changes[next(iter(self._changes))]
            if not self._has_dropped:
                self._has_dropped = True
                logger.warning(
                    "changes dropped: the subscription is not read"
                    " (limits.messages.progress_queued_max=%d)",
                    limit,
                )
        self._readers.unpark_all()


@attrs.define(eq=False)
class Subscription:
    """The changes that a server reports: `async for change in subscription`.

    Made by `Client.listen`. The loop ends when the server ends the subscription. When the server's
    stream breaks it is opened again, and everything in the subscription is reported once as
    `missed`.
    """

    _stream: SubscriptionStream

    @property
    def asked(self) -> SubscriptionFilter:
        """The filter that was sent to the server."""
        return self._stream.asked

    @property
    def acknowledged(self) -> SubscriptionFilter | None:
        """The part of the filter that the server has acknowledged."""
        return self._stream.acknowledged

    @property
    def left_out(self) -> list[Change]:
        """The changes in the filter that the server does not report."""
        return self._stream.left_out

    @property
    def is_open(self) -> bool:
        """True while changes may still arrive, on this stream of the server or on another."""
        return self._stream.is_open

    @property
    def interruption(self) -> str:
        """The reason why the server's stream is interrupted; empty while it is not."""
        return self._stream.interruption

    def __aiter__(self) -> Self:
        """Return the subscription itself."""
        return self

    async def __anext__(self) -> Change:
        """Wait for the next change; if this is cancelled, no change is lost.

        Raises:
            StopAsyncIteration: The server has ended the subscription.
            RequestError: The server ended the subscription with an error, or rejected its renewal.
            ConnectionLost: The session has ended, or the stream broke and could not be opened
                again within `limits.http.reconnects_max` tries.
        """
        return await self._stream.next_change()


class CallbackSubscription:
    """The subscription whose notifications a client passes to its callbacks.

    A change of its filter starts a new request before the old one is cancelled, so that no
    notification is missed.

    Attributes:
        kinds: The lists whose changes are reported to callbacks.
        uris: The resources whose changes are reported to callbacks; `Client` changes it when it
            subscribes at a legacy server.
    """

    def __init__(self, kinds: Collection[ChangeKind], on_change: OnChange, spawn: Spawn) -> None:
        self.kinds = kinds
        self.uris: frozenset[str] = frozenset()
        self._on_change = on_change
        self._spawn = spawn
        self._announced: Collection[ChangeKind] = ()
        self._current: SubscriptionStream | None = None
        self._changing = trio.Lock()

    async def begin(self, session: Session) -> None:
        """Subscribe in a new session with a stateless server; log what cannot be subscribed to.

        If this is cancelled, the session is shut.

        Raises:
            ConnectionLost: The session has ended.
        """
        current = self._current = None
        capabilities = session.connection.peer_capabilities
        self._announced = [
            kind for kind in self.kinds if has_capability(capabilities, f"{kind}.listChanged")
        ]
        try:
            async with self._changing:
                current = await self._replace(session, self.uris)
        except (RequestError, RequestTimeout, RemoteProtocolError) as error:
            logger.warning("the client will not be notified of changes: %s", error)
        except trio.Cancelled:
            session.shut("closed")
            raise
        left_out = [] if current is None else current.left_out
        if left_out:
            names = ", ".join(change.uri or f"its {change.kind}" for change in left_out)
            logger.info("the server does not report changes of %s", names)

    async def begin_legacy(self, session: Session) -> None:
        """Subscribe in a new session with a legacy server; log what cannot be subscribed to.

        Raises:
            RequestTimeout: The server did not answer in time.
            ConnectionLost: The session has ended.
        """
        for uri in sorted(self.uris):
            if uri not in self.uris:  # Another task has unsubscribed meanwhile.
                continue
            try:
                await session.request(SUBSCRIBE, SubscribeParams(uri=uri))
            except (RequestError, LocalProtocolError) as error:
                logger.warning("the client will not be notified of changes of %s: %s", uri, error)

    def revive(self) -> None:
        """Try once more to resume a subscription that was given up: the server may be back."""
        if self._current is not None and self._current.revive():
            self._spawn(self._current.run)

    async def add(self, session: Session, uri: str, *, seconds: float | None = None) -> None:
        """Subscribe to one more resource; on any error nothing has changed.

        Raises:
            ResourceNotFound: The server does not report changes of it.
            MCPError: As `SubscriptionStream.begin`.
        """
        async with self._changing:
            await self._replace(session, self.uris | {uri}, needed=uri, seconds=seconds)

    async def remove(self, session: Session, uri: str, *, seconds: float | None = None) -> None:
        """Unsubscribe from a resource; on any error nothing has changed.

        Raises:
            MCPError: As `SubscriptionStream.begin`.
        """
        async with self._changing:
            if uri in self.uris:
                await self._replace(session, self.uris - {uri}, seconds=seconds)

    async def _replace(
        self,
        session: Session,
        uris: frozenset[str],
        *,
        needed: str | None = None,
        seconds: float | None = None,
    ) -> SubscriptionStream | None:
        """Subscribe to the announced lists and these resources, and end the previous request."""
        new = None
        if self._announced or uris:
            asked = subscription_filter(self._announced, sorted(uris))
            new = SubscriptionStream(asked, self._on_change, for_callbacks=True)
            await new.begin(session, seconds=seconds)
        if new is not None and needed is not None and Change("resource", needed) in new.left_out:
            new.end()
            raise ResourceNotFound(needed, message=f"the server reports no changes of {needed}")
        previous, self._current, self.uris = self._current, new, uris
        if new is not None:
            self._spawn(new.run)
        if previous is not None:
            previous.end()
        return new
