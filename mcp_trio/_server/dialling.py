"""A server that dials out: it opens the connection, and serves on it whoever is at the other end.

The connection may break as often as it likes: it is opened again, with longer and longer pauses
while that fails. Each connection is a session, and all of them are in one lifespan.
"""

import logging
import random
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NoReturn, TypedDict

import attrs
import trio

from mcp_trio._engine import Session
from mcp_trio._errors import ConnectionLost, loss_as
from mcp_trio._limits import Limits
from mcp_trio._recorder.options import RecordTo
from mcp_trio._recorder.story import Story
from mcp_trio._server.connections import Serve, ServesConnections, serve_connections
from mcp_trio._transports.back_off import Dice, pause_seconds
from mcp_trio._transports.condition import Condition, OnState
from mcp_trio._transports.connections import ConnectionOptions, NamedChannel, open_connection
from mcp_trio._transports.stopping import tell_when_cancelled

logger = logging.getLogger("mcp_trio")

# Who is refused so is refused again: without a token, or with a wrong one.
_FINAL: Final = frozenset({401, 403})


class DialOptions(TypedDict, total=False):
    """How a server dials.

    Attributes:
        token: See `open_websocket_channel`, as for the next two.
        headers: What goes along with the request.
        ssl_context: For `wss://`: whom to trust.
        record: See `Server.serve`; one file holds all sessions as one story.
        state_changed: Called with how the connection stands, and why: "connecting", "open",
            "retrying", "closed".
    """

    token: str | None
    headers: Mapping[str, str] | None
    ssl_context: ssl.SSLContext | None
    record: RecordTo | None
    state_changed: OnState | None


async def dial(
    server: ServesConnections,
    url: str,
    options: DialOptions,
    *,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve at `url` until cancelled; see `Server.dial`."""
    condition = Condition(options.get("state_changed"))
    story = Story(options.get("record"))
    opened_with = ConnectionOptions(
        token=options.get("token"),
        headers=options.get("headers"),
        ssl_context=options.get("ssl_context"),
    )

    opened = _once(task_status.started)

    async def listen(serve: Serve, *, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()  # what is not open yet can be cancelled, too
        line = _Line(
            url=url,
            options=opened_with,
            limits=server.limits,
            condition=condition,
            serve=serve,
            on_open=opened,
        )
        await line.keep()

    condition.begin()
    try:
        await serve_connections(
            server, listen, record=story.record, task_status=trio.TASK_STATUS_IGNORED
        )
    except Exception as error:
        condition.become("closed", str(error))
        raise
    finally:
        condition.become("closed", "closed on this side")
        story.end()


def _once(tell: Callable[[str], None]) -> Callable[[str], None]:
    told: list[str] = []

    def tell_once(name: str) -> None:
        if not told:
            told.append(name)
            tell(name)

    return tell_once


@attrs.define(eq=False)
class _Kept:
    """Keeps the session that its task reports."""

    session: Session | None = None

    def started(self, session: Session) -> None:
        """See `trio.TaskStatus`."""
        self.session = session


@attrs.define(kw_only=True, eq=False)
class _Line:
    """One connection after the other; `serve` reports the session of each."""

    url: str
    options: ConnectionOptions
    limits: Limits
    condition: Condition
    serve: Callable[..., Awaitable[None]]
    on_open: Callable[[str], None]
    dice: Dice = random.random
    _channel: NamedChannel | None = attrs.field(default=None, init=False)

    async def keep(self) -> None:
        """Dial until cancelled; then the hub is told that the server goes away.

        Raises:
            ConnectionLost: The hub refuses, and would again.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tell_when_cancelled, self._go_away)
            await self._keep_dialling()

    def _go_away(self) -> None:
        if self._channel is not None:
            self._channel.goes_away()

    async def _keep_dialling(self) -> NoReturn:
        failures = 0
        while True:
            has_served = await self._serve_once()
            failures = 0 if has_served else failures + 1
            seconds = pause_seconds(failures, self.limits, self.dice)
            logger.debug("the hub is dialled again in %.2f s", seconds)
            await trio.sleep(seconds)

    async def _serve_once(self) -> bool:
        """Whether there was a session that both sides agreed on."""
        try:
            channel = await open_connection(self.url, self.options, self.limits)
        except ConnectionLost as loss:
            if loss.http_status in _FINAL:
                raise
            self._retry(str(loss))
            return False
        self._channel = channel
        try:
            return await self._serve(channel)
        finally:
            await channel.aclose()
            self._channel = None

    async def _serve(self, channel: NamedChannel) -> bool:
        self.condition.become("open")
        self.on_open(channel.name)
        kept = _Kept()
        await self.serve(channel, task_status=kept)
        refusal: ConnectionLost | None = getattr(channel, "refusal", None)
        if refusal is not None:
            raise loss_as(ConnectionLost, refusal)
        session = kept.session
        assert session is not None
        self._retry(str(session.loss))
        return session.negotiated.is_set()

    def _retry(self, reason: str) -> None:
        if self.condition.state != "retrying":
            logger.warning("the hub is dialled again: %s", reason)
        self.condition.become("retrying", reason)
