"""A mocked server over HTTP, and over connections that are sessions: a recording is served."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import attrs
import trio

from mcp_trio._journal.conversation import Conversation, revision_of
from mcp_trio._protocol import ALL_REVISIONS, REVISIONS
from mcp_trio._replay.mock_session import MockSession
from mcp_trio._server.http.standing_in import StandIn
from mcp_trio._transports.channel import Channel


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
class MockedSite(StandIn[MockSession]):
    """What is served in the place of a server: its sessions are opened, and played."""

    spoken: Sequence[str]
    open_session: Callable[[Channel], MockSession]
    play: Callable[[MockSession], Awaitable[None]]

    def opened(self, channel: Channel) -> tuple[MockSession, Callable[[], Awaitable[None]]]:
        """See `StandIn.opened`."""
        session = self.open_session(channel)
        return session, partial(self.play, session)

    async def serve_session(
        self,
        channel: Channel,
        *,
        task_status: trio.TaskStatus[MockSession] = trio.TASK_STATUS_IGNORED,
        **_: Any,
    ) -> None:
        """Play the one session of a connection."""
        session = self.open_session(channel)
        task_status.started(session)
        await self.play(session)
