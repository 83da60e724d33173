"""A mocked server over HTTP: what real servers are served by there, before a recording."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from contextvars import Context
from typing import Any

import attrs
import trio

from mcp_trio._journal.conversation import Conversation, revision_of
from mcp_trio._limits import Limits
from mcp_trio._protocol import ALL_REVISIONS, REVISIONS
from mcp_trio._replay.mock_session import MockSession
from mcp_trio._server.announcements import Audience
from mcp_trio._transports.channel import Channel

logger = logging.getLogger("mcp_trio")


def spoken_in(recorded: Conversation) -> Sequence[str]:
    """The revisions of the eras in which the recorded server gave a result, from the newest.

    A client that looks for the era of its server asks in both, and gets results in one. A server
    that gave none at all is of the era in which it was asked.
    """
    asked = recorded.of("client", "request")
    answers = recorded.answers
    given = [
        each for each in asked if each.index in answers and answers[each.index].kind == "result"
    ]
    handshakes = {revision_of(each.body) is None for each in given or asked} or {True}
    return [name for name in ALL_REVISIONS if REVISIONS[name].has_handshake in handshakes]


@attrs.define(kw_only=True, eq=False)
class MockedSite:
    """What the application over HTTP takes for a server, whose sessions it opens and plays."""

    limits: Limits
    spoken: Sequence[str]
    open_session: Callable[[Channel], MockSession]
    play: Callable[[MockSession], Awaitable[None]]
    audience: Audience = attrs.field(factory=Audience, init=False)  # nothing changes in a recording

    def entered_lifespan(self) -> AbstractAsyncContextManager[None]:
        """There is none."""
        return nullcontext()

    def mirrored_parameters(self, tool: str) -> None:
        """Not known: what clients repeat in their heads is not held against what they say."""

    def begin_session(
        self,
        channel: Channel,
        nursery: trio.Nursery,
        variables: Context,
        *,
        on_ended: Callable[[], None],
        **_: Any,
    ) -> MockSession:
        """Play one session; what goes wrong with it ends no other."""
        session = self.open_session(channel)
        variables.run(nursery.start_soon, self._play, session, on_ended)
        return session

    async def _play(self, session: MockSession, on_ended: Callable[[], None]) -> None:
        try:
            await self.play(session)
        except Exception:
            logger.exception("a mocked session failed")
        finally:
            on_ended()
