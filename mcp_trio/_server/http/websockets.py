"""WebSocket at one path of a served application: each connection is a session of its own."""

import attrs

from mcp_trio._protocol.http.verdicts import Refusal
from mcp_trio._protocol.websocket import upgrade_refusal
from mcp_trio._server.connections import Door
from mcp_trio._server.http.asked import Asked, RefusedError
from mcp_trio._server.http.endpoint import closing, too_many_sessions
from mcp_trio._server.http.runtime import Runtime
from mcp_trio._server.http.sessions import TooManySessionsError
from mcp_trio._transports.websocket.upgrade import Upgrade, accepted


@attrs.frozen(kw_only=True, eq=False)
class WebSocketEndpoint:
    """The endpoint.

    Attributes:
        runtime: The sessions.
        door: Who may open one, and where.
    """

    runtime: Runtime
    door: Door

    async def respond(self, asked: Asked) -> None:
        """Tell a plain request what is here.

        Raises:
            RefusedError: Always.
        """
        refusal = upgrade_refusal(asked.head, path=self.door.path)
        raise RefusedError(refusal or Refusal(status=400, text="this is no handshake of WebSocket"))

    async def upgrade(self, upgrade: Upgrade) -> None:
        """Make a WebSocket of a request, and serve it until its session has ended; or refuse it.

        Raises:
            trio.BrokenResourceError: The client has gone away.
            RecordingError: The recording cannot be made.
        """
        admitted = await self.door.admit(upgrade.head)
        if isinstance(admitted, Refusal):
            await upgrade.refuse(admitted)
            return
        if self.runtime.is_closing:
            await upgrade.refuse(closing())
            return
        try:
            with self.runtime.sessions.place():
                channel = await accepted(upgrade, admitted, self.runtime.server.limits)
                await self.runtime.serve(channel)
        except TooManySessionsError:
            await upgrade.refuse(too_many_sessions())
