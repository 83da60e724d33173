"""Mock mode: a recorded server, for clients that are alive."""

import os
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack, cast

import attrs
import trio

from mcp_trio._errors import MockMismatch
from mcp_trio._journal.conversation import Conversation, Said
from mcp_trio._limits import DEFAULT_LIMITS, Limits
from mcp_trio._replay.mock_http import MockedSite, spoken_in
from mcp_trio._replay.mock_matching import Miss
from mcp_trio._replay.mock_session import MockSession
from mcp_trio._replay.recorded import load_conversation
from mcp_trio._transports.channel import Channel
from mcp_trio._transports.http.stateless_channel import StatelessChannel

if TYPE_CHECKING:
    from mcp_trio._server.connections import WebSocketOptions
    from mcp_trio._server.http.options import HttpOptions, WhoMayCome


def mock_server(
    path: str | os.PathLike[str],
    *,
    strict: bool = False,
    pace: bool = False,
    channel: int | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> "MockServer":
    """The server of a recording of any role, for `Client` to connect to; see `MockServer`.

    `pace` waits as long as the recorded server did before each thing that it said.

    Raises:
        RecordingError: The file is no recording, or holds several sessions: choose a `channel`.
    """
    recorded = load_conversation(path, channel=channel)
    return MockServer(recorded=recorded, strict=strict, pace=pace, limits=limits)


@attrs.define(kw_only=True, eq=False)
class MockServer:
    """Stands in for a recorded server; each session begins at the beginning.

    It is a target of `Client`. To any client it is served by `serve_http`, `serve_websocket`,
    `serve_unix` and `serve_tcp`.

    A request is answered as the first recorded one that has its method and its params (`_meta` and
    empty arguments do not count, nor who says `initialize`) and was not asked yet; lists and pings
    may be asked again. Any other gets an error that says which recorded ones come nearest. What the
    recorded server said meanwhile, and what it asked, comes as it came then. Over HTTP modern
    clients have no session to begin: unless it is strict, what all have asked is asked anew.

    As a context manager it raises `MockMismatch` at the end, if it is strict and was asked what was
    not recorded, or was not asked all that was.
    """

    limits: Limits = DEFAULT_LIMITS
    _recorded: Conversation = attrs.field(alias="recorded")
    _is_strict: bool = attrs.field(alias="strict", default=False)
    _is_paced: bool = attrs.field(alias="pace", default=False)
    _misses: list[Miss] = attrs.field(factory=list[Miss], init=False)
    _unused: list[Said] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._unused = self._recorded.of("client", "request")

    @property
    def misses(self) -> tuple[str, ...]:
        """A line for each request that was not recorded, in all sessions that have ended."""
        return tuple(map(str, self._misses))

    @property
    def unused(self) -> tuple[str, ...]:
        """A line for each recorded request that nobody has asked in the session that ended last."""
        return tuple(f"{said.method} (record {said.record})" for said in self._unused)

    async def serve(self, channel: Channel) -> None:
        """Serve one session over `channel`, and close that; returns when the client has left.

        Cancelled: closes the channel.
        """
        await self._play(self._open_session(channel))

    def _open_session(self, channel: Channel) -> MockSession:
        return MockSession(
            self._recorded,
            channel,
            is_paced=self._is_paced,
            limits=self.limits,
            repeats=isinstance(channel, StatelessChannel) and not self._is_strict,
        )

    async def _play(self, session: MockSession) -> None:
        try:
            await session.run()
        finally:
            self._misses += session.misses
            self._unused = session.matching.unused

    async def serve_http(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 8000,
        allows_cors: bool = False,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
        **who: Unpack["WhoMayCome"],
    ) -> None:
        """Serve HTTP until cancelled, in the eras that were recorded, as `Server.serve_http` does.

        Reports the URL of the MCP endpoint. Port 0 is any free one.

        Raises:
            OSError: The address cannot be bound.
            ValueError: What says who may come contradicts itself.
        """
        from mcp_trio._server.http.serving import Address, serve_http

        address = Address(host=host, port=port)
        options = cast("HttpOptions", {**who, "allows_cors": allows_cors})
        await serve_http(self._site(), address, options, task_status=task_status)

    async def serve_websocket(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 8000,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
        **who: Unpack["WhoMayCome"],
    ) -> None:
        """Serve WebSocket until cancelled, as `Server.serve_websocket` does; reports the URL.

        Raises:
            OSError: The address cannot be bound.
            ValueError: What says who may come contradicts itself.
        """
        from mcp_trio._server.connections import serve_websocket

        options = cast("WebSocketOptions", who)
        await serve_websocket(self._site(), options, host=host, port=port, task_status=task_status)

    async def serve_unix(
        self,
        path: str | os.PathLike[str],
        *,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve at a socket file until cancelled, as `Server.serve_unix` does; reports the URL.

        Raises:
            OSError: The file cannot be made, or another server listens there.
        """
        from mcp_trio._server.connections import serve_unix

        await serve_unix(self._site(), path, task_status=task_status)

    async def serve_tcp(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 8000,
        is_open: bool = False,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve at a TCP port until cancelled, as `Server.serve_tcp` does; reports the URL.

        Raises:
            OSError: The address cannot be bound.
            ValueError: It would be open to others, and `is_open` does not say so.
        """
        from mcp_trio._server.connections import serve_tcp

        await serve_tcp(
            self._site(), host=host, port=port, is_open=is_open, task_status=task_status
        )

    def _site(self) -> MockedSite:
        return MockedSite(
            limits=self.limits,
            spoken=spoken_in(self._recorded),
            open_session=self._open_session,
            play=self._play,
        )

    def check(self) -> None:
        """Compare what was asked with what was recorded, strict or not.

        Raises:
            MockMismatch: They differ; a line for each request.
        """
        lines = [*self.misses, *(f"never asked: {each}" for each in self.unused)]
        if lines:
            raise MockMismatch("\n".join(lines))

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Check, if it is strict and nothing else went wrong.

        Raises:
            MockMismatch: As `check`.
        """
        if self._is_strict and error is None:
            self.check()
