"""Subscriptions of a client to changes at a stateless server.

A subscription is a request that stands. What belongs to it is known by its id alone, and is taken
in at once, so that a callback may open another. What it is told more than once, before anybody
looks, counts once. Nobody hears of what changed before a subscription began, and so each beginning
counts as a change of everything that it is about (SUB-18).

The stream of one may break while the session goes on, as over HTTP. Such a stream is not resumed:
another one is begun, after a pause, and then whoever listens is told of all that may have changed
meanwhile (SUB-16, TRAP-108).
"""

import logging
import random
from collections.abc import AsyncGenerator, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final, Literal, Self, TypeAlias

import attrs
import trio

from mcp_trio._client.connect import Spawn
from mcp_trio._protocol.methods import (
    ACKNOWLEDGED,
    LISTEN,
    RESOURCE_UPDATED,
    Method,
    ParamsToSend,
    announced,
)
from mcp_trio._session.calls import Call
from mcp_trio._session.session import Session
from mcp_trio._transports.connections import RandomSource, pause_seconds
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

_SERVER_ERROR: Final = 500

ChangeKind: TypeAlias = Literal["tools", "prompts", "resources", "resource"]
Notice: TypeAlias = Callable[[str, Any], None]
"""Called with the method and the params of what has changed, or may have."""

# Each list, the member of a filter for it, and what tells of a change of that.
LISTS: Final[dict[ChangeKind, tuple[str, str]]] = {
    kind: (f"{kind}_list_changed", f"notifications/{kind}/list_changed")
    for kind in ("tools", "prompts", "resources")
}
_KINDS: Final[dict[str, ChangeKind]] = {
    RESOURCE_UPDATED: "resource",
    **{method: kind for kind, (_, method) in LISTS.items()},
}


@attrs.frozen
class Change:
    """What has changed: a list (`kind` is "tools", "prompts" or "resources"), or a "resource".

    `uri` is that of the resource, which may be a part of the one that was subscribed to. `missed`
    says that it may have changed, or not, while the server could not be heard.
    """

    kind: ChangeKind
    uri: str | None = None
    missed: bool = False


def wishes(kinds: Iterable[ChangeKind], uris: Iterable[str]) -> SubscriptionFilter:
    """The filter that asks for changes of these lists and resources."""
    lists = {LISTS[kind][0]: True for kind in kinds}
    return SubscriptionFilter(**lists, resource_subscriptions=list(dict.fromkeys(uris)) or None)


def _changes(asked: SubscriptionFilter) -> list[Change]:
    lists = [Change(kind) for kind, (member, _) in LISTS.items() if getattr(asked, member)]
    return [*lists, *(Change("resource", uri) for uri in asked.resource_subscriptions or ())]


@attrs.define(eq=False)
class Subscription:
    """Changes as the server tells of them: `async for change in subscription`.

    The loop ends when the server ends the subscription. A stream that breaks is begun again, and
    then all that is listened to comes once as `missed`.

    Attributes:
        asked: What was asked for.
        acknowledged: What of that the server tells of, by its own words; None before it said so.
        is_passed_on: Whether the client's callbacks hear of the changes instead.
        trouble: Why nothing is heard at the moment; empty while the server's stream stands.
        is_given_up: Whether it was begun again too often in vain.
    """

    asked: SubscriptionFilter
    acknowledged: SubscriptionFilter | None = attrs.field(default=None, init=False)
    _notice: Notice
    is_passed_on: bool = attrs.field(default=False, kw_only=True)
    trouble: str = attrs.field(default="", init=False)
    is_given_up: bool = attrs.field(default=False, init=False)
    _random_source: RandomSource = attrs.field(default=random.random, kw_only=True)
    _session: Session = attrs.field(init=False)
    _call: Call = attrs.field(init=False)
    _is_acknowledged: bool = attrs.field(default=False, init=False)
    _has_dropped: bool = attrs.field(default=False, init=False)
    _changes: dict[Change, None] = attrs.field(factory=dict[Change, None], init=False)
    _news: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _breaks: int = attrs.field(default=0, init=False)
    _is_left: bool = attrs.field(default=False, init=False)
    _is_ended: bool = attrs.field(default=False, init=False)
    _is_over: bool = attrs.field(default=False, init=False)
    _failure: MCPError | None = attrs.field(default=None, init=False)
    _keeping: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)

    @property
    def left_out(self) -> list[Change]:
        """What was asked for, and the server does not tell of (SUB-07)."""
        honoured = [] if self.acknowledged is None else _changes(self.acknowledged)
        return [change for change in _changes(self.asked) if change not in honoured]

    @property
    def is_open(self) -> bool:
        """Return whether the server may still tell something, if need be on another stream."""
        return not (self._is_over or self._is_ended)

    @property
    def _limits(self) -> Limits:
        return self._session.connection.limits

    # Whoever listens.

    def __aiter__(self) -> Self:
        """The subscription itself."""
        return self

    async def __anext__(self) -> Change:
        """The next change. Cancelled: none is lost.

        Raises:
            StopAsyncIteration: The server has ended the subscription.
            RequestError: It has ended it by an error, or does not let us listen again.
            ConnectionLost: The session has ended, or the stream was broken too often.
        """
        await trio.lowlevel.checkpoint()
        while not self._changes:
            if self._failure is not None:
                raise self._failure
            if self._is_over:
                raise StopAsyncIteration
            await self._news.park()
        change = next(iter(self._changes))
        del self._changes[change]
        return change

    async def begin(self, session: Session, *, seconds: float | None = None) -> None:
        """Subscribe, and wait for the acknowledgement; the subscription itself has no time-out.

        From then on `keep` has to run. Cancelled, or failed: it is ended.

        Raises:
            RequestTimeout: There is none within so many seconds, or `limits.requests.idle_seconds`.
            RequestError: The server refuses.
            RemoteProtocolError: It ended the subscription instead.
            LocalProtocolError: The server is a legacy one.
            ConnectionLost: The session has ended.
        """
        self._session = session
        await self._ask(seconds)

    def end(self) -> None:
        """Tell the server that nobody listens any more, if it does not know."""
        self._is_ended = True
        if not self._is_left:
            self._leave()
        self._keeping.cancel()

    # The task behind it.

    async def keep(self) -> None:
        """Begin again whenever a stream breaks; returns when the subscription or session is over.

        What goes wrong is told to whoever listens.
        """
        with trio.CancelScope() as self._keeping:
            try:
                if not self._is_ended:
                    await self._keep()
            except MCPError as error:
                self._fail(error)
            finally:
                self._is_over = True
                self._news.unpark_all()

    async def _keep(self) -> None:
        while self.trouble or await self._breaks_off():
            await self._begin_again()

    async def _breaks_off(self) -> bool:
        """Wait for the end of the stream; False where the server has said that it is over.

        For callbacks, behind which nobody could listen again, it is over with the server only.

        Raises:
            RequestError: The server said so by an error.
            ConnectionLost: The session has ended.
        """
        since = trio.current_time()
        await self._call.next_report()
        if trio.current_time() - since >= self._limits.http.reconnect_seconds_max:
            self._breaks = 0
        loss = self._call.loss
        if loss is None:
            self._call.outcome()
            self.trouble = "the server ended the subscription" if self.is_passed_on else ""
        elif self._is_final(loss):
            raise loss
        else:
            self.trouble = str(loss)
        return bool(self.trouble)

    async def _begin_again(self) -> None:
        """Listen on another stream; each try in a row waits longer.

        Raises:
            RequestError: The server refuses.
            ConnectionLost: It stays away, refuses too, or the session has ended.
        """
        for _ in range(self._limits.http.reconnects_max):
            await self._pause()
            try:
                await self._ask(None)
            except (ConnectionLost, RequestTimeout) as error:
                if self._is_final(error):
                    raise
                self.trouble = str(error)
            else:
                return
        limit = self._limits.http.reconnects_max
        self.is_given_up = limit > 0  # else nobody is to try, then or later
        raise ConnectionLost(
            f"not begun again (limits.http.reconnects_max={limit}): {self.trouble}"
        )

    def _is_final(self, error: MCPError) -> bool:
        """Whether there is no use in another try: the session is over, or the server refuses."""
        status = error.http_status if isinstance(error, ConnectionLost) else None
        is_rejected = status is not None and status < _SERVER_ERROR
        return is_rejected or self._session.cause is not None

    async def _pause(self) -> None:
        seconds = pause_seconds(self._breaks, self._limits, self._random_source)
        self._breaks += 1
        with trio.move_on_after(seconds):
            await self._session.closing.wait()

    def _fail(self, error: MCPError) -> None:
        self._failure = error
        if self.is_passed_on and self._session.cause is None:
            logger.warning("changes will not be heard of: %s", error)

    def revive(self) -> bool:
        """Take up what was given up; False if there is nothing to do. `keep` has to run again."""
        if not self.is_given_up or self._session.cause is not None:
            return False
        self.is_given_up = self._is_over = False
        self._failure = None
        return True

    # One stream.

    async def _ask(self, seconds: float | None) -> None:
        self._is_acknowledged = self._is_left = False
        self._call = self._session.stand(LISTEN, ListenParams(notifications=self.asked), self._hear)
        try:
            await self._acknowledgement(seconds)
        except BaseException:
            if not self._is_left:
                self._leave()
            raise
        self.trouble = ""

    def _leave(self) -> None:
        self._is_left = True
        self._session.leave(self._call)

    async def _acknowledgement(self, seconds: float | None) -> None:
        limit_seconds = self._limits.requests.idle_seconds if seconds is None else seconds
        with trio.move_on_after(limit_seconds):
            await self._call.next_report()
        if self._is_acknowledged:
            return
        if not self._call.is_settled:
            setting = "limits.requests.idle_seconds" if seconds is None else "idle_seconds"
            raise RequestTimeout(LISTEN, "idle", limit_seconds, setting)
        self._call.outcome()
        raise RemoteProtocolError("the server ended a subscription before it acknowledged it")

    def _hear(self, method: Method, params: Any) -> bool:
        """Take in what the server tells; True if that is for the callbacks."""
        if method.name == ACKNOWLEDGED:
            return self._begin_to_hear(params.notifications)
        if not self._is_acknowledged:  # it must not come yet (SUB-05)
            return False
        self._notice(method.name, params)
        if not self.is_passed_on:
            self._add(Change(_KINDS[method.name], getattr(params, "uri", None)))
        return self.is_passed_on

    def _begin_to_hear(self, honoured: SubscriptionFilter) -> bool:
        """Nobody knows what has changed before; who listened then is told that, the others not."""
        if self._is_acknowledged:
            return False
        is_again = self.acknowledged is not None
        self._is_acknowledged, self.acknowledged = True, honoured
        for notification in notifications_of(honoured):
            self._notice(*notification)
        if is_again and not self.is_passed_on:
            for change in _changes(honoured):
                self._add(attrs.evolve(change, missed=True))
        self._call.report(None)
        return is_again and self.is_passed_on

    def _add(self, change: Change) -> None:
        limit = self._limits.messages.progress_queued_max
        if change not in self._changes and len(self._changes) >= limit:
            del self._changes[next(iter(self._changes))]
            if not self._has_dropped:
                self._has_dropped = True
                logger.warning(
                    "changes dropped: nobody takes them (limits.messages.progress_queued_max=%d)",
                    limit,
                )
        self._changes[change] = None
        self._news.unpark_all()


def notifications_of(honoured: SubscriptionFilter) -> list[tuple[str, ParamsToSend]]:
    """What a server would say if everything had changed that a subscription is about."""
    return [_notification_of(change) for change in _changes(honoured)]


def _notification_of(change: Change) -> tuple[str, ParamsToSend]:
    if change.uri is not None:
        return RESOURCE_UPDATED, ResourceUpdatedParams(uri=change.uri)
    return LISTS[change.kind][1], EmptyParams()


@asynccontextmanager
async def listening(
    session: Session, asked: SubscriptionFilter, notice: Notice, spawn: Spawn
) -> AsyncGenerator[Subscription]:
    """A subscription for a block; see `Subscription.begin`."""
    subscription = Subscription(asked, notice)
    await subscription.begin(session)
    spawn(subscription.keep)
    try:
        yield subscription
    finally:
        subscription.end()


@attrs.define(eq=False)
class OwnSubscription:
    """The one that stands behind a client's callbacks, and is exchanged when the wishes change.

    The new one begins before the old one ends, so that nothing is missed.

    Attributes:
        kinds: The lists whose changes are to be heard of.
        uris: The resources.
    """

    kinds: Collection[ChangeKind]
    uris: frozenset[str] = attrs.field(default=frozenset(), init=False)
    _notice: Notice
    _spawn: Spawn
    _offered: Collection[ChangeKind] = attrs.field(default=(), init=False)
    _current: Subscription | None = attrs.field(default=None, init=False)
    _changing: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    async def begin(self, session: Session) -> None:
        """Listen in a new session to all that is wished for and offered; what fails is logged.

        Cancelled: the session is shut.

        Raises:
            ConnectionLost: The session has ended.
        """
        self._current = None
        capabilities = session.connection.peer_capabilities
        self._offered = [
            kind for kind in self.kinds if announced(capabilities, f"{kind}.listChanged")
        ]
        try:
            await self._exchange(session, self.uris)
        except (RequestError, RequestTimeout, RemoteProtocolError) as error:
            logger.warning("changes will not be heard of: %s", error)
        except trio.Cancelled:
            session.shut("closed")
            raise
        self._log_left_out()

    def _log_left_out(self) -> None:
        left_out: list[Change] = [] if self._current is None else self._current.left_out
        if left_out:
            logger.info("the server does not tell of changes of %s", _words(left_out))

    def revive(self) -> None:
        """Somebody makes a call: what was given up is tried again, for the server may be back."""
        if self._current is not None and self._current.revive():
            self._spawn(self._current.keep)

    async def begin_legacy(self, session: Session) -> None:
        """Subscribe in a new session to all that was subscribed to; what fails is logged.

        Raises:
            RequestTimeout: The server is silent.
            ConnectionLost: The session has ended.
        """
        for uri in sorted(self.uris):
            try:
                await session.request(SUBSCRIBE, SubscribeParams(uri=uri))
            except (RequestError, LocalProtocolError) as error:
                logger.warning("changes of %s will not be heard of: %s", uri, error)

    def remember(self, uri: str) -> None:
        """A legacy server tells of a resource: another session is to do so, too."""
        self.uris |= {uri}

    def forget(self, uri: str) -> None:
        """It does no more."""
        self.uris -= {uri}

    async def add(self, session: Session, uri: str, *, seconds: float | None = None) -> None:
        """Listen to a resource as well.

        Raises:
            ResourceNotFound: The server does not tell of it; nothing has changed.
            MCPError: As `Subscription.begin`; nothing has changed.
        """
        async with self._changing:
            await self._exchange(session, self.uris | {uri}, needed=uri, seconds=seconds)

    async def remove(self, session: Session, uri: str, *, seconds: float | None = None) -> None:
        """Listen to a resource no more.

        Raises:
            MCPError: As `Subscription.begin`; nothing has changed.
        """
        async with self._changing:
            if uri in self.uris:
                await self._exchange(session, self.uris - {uri}, seconds=seconds)

    async def _exchange(
        self,
        session: Session,
        uris: frozenset[str],
        *,
        needed: str | None = None,
        seconds: float | None = None,
    ) -> None:
        new = None
        if self._offered or uris:
            asked = wishes(self._offered, sorted(uris))
            new = Subscription(asked, self._notice, is_passed_on=True)
            await new.begin(session, seconds=seconds)
        if new is not None and needed is not None and Change("resource", needed) in new.left_out:
            new.end()
            raise ResourceNotFound(needed, message=f"no changes of {needed} are told here")
        previous, self._current, self.uris = self._current, new, uris
        if new is not None:
            self._spawn(new.keep)
        if previous is not None:
            previous.end()


def _words(changes: Iterable[Change]) -> str:
    return ", ".join(change.uri or f"its {change.kind}" for change in changes)
