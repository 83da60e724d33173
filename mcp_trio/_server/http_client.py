"""`ctx.http`: one client of a session, made at first need and closed at its end."""

from typing import TYPE_CHECKING, Self

import attrs
import trio

if TYPE_CHECKING:
    import httpx


@attrs.define(eq=False)
class SessionHttp:
    """The HTTP client of one session's handlers, whose requests are effects.

    To be entered round the session: at the end the client is closed, within `close_seconds`, also
    when that is a cancellation.
    """

    close_seconds: float
    _client: "httpx.AsyncClient | None" = attrs.field(default=None, init=False)

    @property
    def client(self) -> "httpx.AsyncClient":
        """The client; httpx is imported here, by the first who wants it."""
        if self._client is None:
            import httpx

            from mcp_trio._server.http_effect import EffectTransport

            self._client = httpx.AsyncClient(transport=EffectTransport())
        return self._client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._client is not None:
            with trio.move_on_after(self.close_seconds, shield=True):
                await self._client.aclose()
