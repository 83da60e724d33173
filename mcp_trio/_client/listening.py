"""Listening at a modern server: its changes come on subscriptions, for which a client asks.

A subscription is a request that stands. What belongs to it is known by its id alone, and is taken
in at once, so that a callback may open another. What it is told more than once, before anybody
looks, counts once. Nobody hears of what changed before a subscription began, and so each beginning
counts as a change of everything that it is about (SUB-18).
"""

import logging
from collections.abc import AsyncGenerator, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final, Literal, Self, TypeAlias

import attrs
import trio

from mcp_trio._engine import Call, Session
from mcp_trio._errors import RemoteProtocolError, RequestError, RequestTimeout, ResourceNotFound
from mcp_trio._protocol import (
    ACKNOWLEDGED,
    LISTEN,
    RESOURCE_UPDATED,
    Method,
    ParamsToSend,
    announced,
)
from mcp_trio._schema import (
    EmptyParams,
    ListenParams,
    ResourceUpdatedParams,
    SubscriptionFilter,
)

logger = logging.getLogger("mcp_trio")

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

    `uri` is that of the resource, which may be a part of the one that was subscribed to.
    """

    kind: ChangeKind
    uri: str | None = None


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

    The loop ends when the server ends the subscription.

    Attributes:
        asked: What was asked for.
        acknowledged: What of that the server tells of, by its own words; None before it said so.
        is_passed_on: Whether the client's callbacks hear of the changes instead.
    """

    asked: SubscriptionFilter
    acknowledged: SubscriptionFilter | None = attrs.field(default=None, init=False)
    _notice: Notice
    is_passed_on: bool = attrs.field(default=False, kw_only=True)
    _has_dropped: bool = attrs.field(default=False, init=False)
    _call: Call = attrs.field(init=False)
    _pending: dict[Change, None] = attrs.field(factory=dict[Change, None], init=False)

    @property
    def left_out(self) -> list[Change]:
        """What was asked for, and the server does not tell of (SUB-07)."""
        honoured = [] if self.acknowledged is None else _changes(self.acknowledged)
        return [change for change in _changes(self.asked) if change not in honoured]

    @property
    def is_open(self) -> bool:
        """Whether the server may still tell something."""
        return not self._call.is_settled

    def __aiter__(self) -> Self:
        """The subscription itself."""
        return self

    async def __anext__(self) -> Change:
        """The next change. Cancelled: none is lost.

        Raises:
            StopAsyncIteration: The server has ended the subscription.
            RequestError: It has ended it by an error.
            ConnectionLost: The session has ended.
        """
        await trio.lowlevel.checkpoint()
        change: Change | None = await self._call.next_report()
        if change is None:
            self._call.outcome()
            raise StopAsyncIteration
        self._pending.pop(change, None)
        return change

    async def begin(self, session: Session, *, seconds: float | None = None) -> None:
        """Subscribe, and wait for the acknowledgement; the subscription itself has no time-out.

        Cancelled, or failed: it is ended.

        Raises:
            RequestTimeout: There is none within so many seconds, or `request_idle_seconds`.
            RequestError: The server refuses.
            RemoteProtocolError: It ended the subscription instead.
            LocalProtocolError: The server is a legacy one.
            ConnectionLost: The session has ended.
        """
        params = ListenParams(notifications=self.asked)
        self._call = session.stand(LISTEN, params, self._hear)
        try:
            await self._acknowledgement(seconds, session.connection.limits.request_idle_seconds)
        except BaseException:
            session.leave(self._call)
            raise

    def end(self, session: Session) -> None:
        """Tell the server that nobody listens any more, if it does not know."""
        session.leave(self._call)

    async def _acknowledgement(self, seconds: float | None, default_seconds: float) -> None:
        limit_seconds = default_seconds if seconds is None else seconds
        with trio.move_on_after(limit_seconds):
            await self._call.next_report()
        if self.acknowledged is not None:
            return
        if not self._call.is_settled:
            setting = "request_idle_seconds" if seconds is None else "idle_seconds"
            raise RequestTimeout(LISTEN, "idle", limit_seconds, setting)
        self._call.outcome()
        raise RemoteProtocolError("the server ended a subscription before it acknowledged it")

    def _hear(self, method: Method, params: Any) -> bool:
        """Take in what the server tells; True if that is for the callbacks."""
        if method.name == ACKNOWLEDGED:
            self._begin_to_hear(params.notifications)
            return False
        if self.acknowledged is None:  # it must not come yet (SUB-05)
            return False
        self._notice(method.name, params)
        if not self.is_passed_on:
            self._keep(Change(_KINDS[method.name], getattr(params, "uri", None)))
        return self.is_passed_on

    def _begin_to_hear(self, honoured: SubscriptionFilter) -> None:
        if self.acknowledged is None:
            self.acknowledged = honoured
            for change in _changes(honoured):
                self._notice(*_notification_of(change))
            self._call.report(None)

    def _keep(self, change: Change) -> None:
        if change in self._pending:
            return
        self._pending[change] = None
        if not self._call.report(change):  # the oldest was dropped for it
            self._pending.pop(next(iter(self._pending)))
            if not self._has_dropped:
                self._has_dropped = True
                limit = self._call.progress_queued_max
                logger.warning("changes dropped: nobody takes them (progress_queued_max=%d)", limit)


def _notification_of(change: Change) -> tuple[str, ParamsToSend]:
    if change.uri is not None:
        return RESOURCE_UPDATED, ResourceUpdatedParams(uri=change.uri)
    return LISTS[change.kind][1], EmptyParams()


@asynccontextmanager
async def listening(
    session: Session, asked: SubscriptionFilter, notice: Notice
) -> AsyncGenerator[Subscription]:
    """A subscription for a block; see `Subscription.begin`."""
    subscription = Subscription(asked, notice)
    await subscription.begin(session)
    try:
        yield subscription
    finally:
        subscription.end(session)


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
            new.end(session)
            raise ResourceNotFound(needed, message=f"no changes of {needed} are told here")
        previous, self._current, self.uris = self._current, new, uris
        if previous is not None:
            previous.end(session)


def _words(changes: Iterable[Change]) -> str:
    return ", ".join(change.uri or f"its {change.kind}" for change in changes)
