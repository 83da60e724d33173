"""Subscriptions of modern clients: each a request that stands until one side ends it.

It is acknowledged first, with what of its wishes is honoured: kinds that the server does not offer
and resources that nobody could read are left out, not refused (SUB-06). What changes while the
acknowledgement waits for its turn is told after it (TRAP-105). A client ends a subscription by
cancelling the request, and hears nothing more; a server when its session begins to close, by the
result and a cancellation behind it (TRAP-104).
"""

from collections.abc import Callable
from typing import Any, Final

import attrs
from msgspec.structs import replace

from mcp_trio._engine import AccompaniedSession, Handling
from mcp_trio._errors import SERVER_BUSY, RequestError
from mcp_trio._limits import Limits
from mcp_trio._protocol import (
    ACKNOWLEDGED,
    RESOURCE_UPDATED,
    SUBSCRIPTION_ID,
    RequestId,
    announced,
)
from mcp_trio._schema import (
    AcknowledgedParams,
    EmptyParams,
    ListenParams,
    ListenResult,
    ResourceUpdatedParams,
    ServerCapabilities,
    SubscriptionFilter,
)
from mcp_trio._server.announcements import Listener, Notice, list_changed

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
        handling.farewell = handling.session.connection.tear_down(handling.request)
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
        if len(self._open) >= self.limits.listens_max:
            text = f"too many subscriptions (listens_max={self.limits.listens_max})"
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
        if number > self.limits.subscriptions_max:
            text = f"too many resources (subscriptions_max={self.limits.subscriptions_max})"
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
