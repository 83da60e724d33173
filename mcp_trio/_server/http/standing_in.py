"""What stands over HTTP in the place of a server of our own: a recording, or somebody else's."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from contextvars import Context
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import attrs

from mcp_trio._engine import WarmTasks
from mcp_trio._limits import Limits
from mcp_trio._server.announcements import Audience
from mcp_trio._transports.channel import Channel

if TYPE_CHECKING:
    from mcp_trio._server.http.runtime import StatelessSession

logger = logging.getLogger("mcp_trio")

SessionT = TypeVar("SessionT", bound="StatelessSession")


@attrs.define(kw_only=True, eq=False)
class StandIn(ABC, Generic[SessionT]):
    """The base of it; see `ServesSessions`.

    Attributes:
        limits: What a session may cost.
        audience: Nobody is in it: changes come from elsewhere, if at all.
    """

    limits: Limits
    audience: Audience = attrs.field(factory=Audience, init=False)

    @abstractmethod
    def opened(self, channel: Channel) -> tuple[SessionT, Callable[[], Awaitable[None]]]:
        """A session, and what serves it to its end."""

    def entered_lifespan(self) -> AbstractAsyncContextManager[None]:
        """There is none."""
        return nullcontext()

    def mirrored_parameters(self, tool: str) -> None:
        """Not known: what clients repeat in their heads is not held against what they say."""

    def begin_session(
        self,
        channel: Channel,
        warm: WarmTasks,
        variables: Context,
        *,
        on_ended: Callable[[], None],
        **_: Any,
    ) -> SessionT:
        """Serve one session; what goes wrong with it ends no other."""
        session, serve = self.opened(channel)
        variables.run(warm.nursery.start_soon, _serve, serve, on_ended)
        return session


async def _serve(serve: Callable[[], Awaitable[None]], on_ended: Callable[[], None]) -> None:
    try:
        await serve()
    except Exception:
        logger.exception("a session failed")
    finally:
        on_ended()
