"""HTTP+SSE, the transport of 2024-11-05: one stream for all answers, and a URL to post to."""

import math

import attrs
import httpx
import trio

from mcp_trio._errors import ConnectionLost
from mcp_trio._transports.http.client_link import Link, pieces_of
from mcp_trio._transports.http.client_streams import Take, check_stream
from mcp_trio._wire.event_stream import Event, EventParser
from mcp_trio._wire.lines import Oversized


@attrs.define(kw_only=True, eq=False)
class OldStream:
    """The stream of a server that knows nothing newer; `endpoint` is where messages are posted.

    `trouble` is why there is none, or why it has ended; one of them is `decided` in the end.
    """

    link: Link
    take: Take
    endpoint: httpx.URL | None = attrs.field(default=None, init=False)
    trouble: str = attrs.field(default="", init=False)
    decided: trio.Event = attrs.field(factory=trio.Event, init=False)

    async def run(self) -> None:
        """Read it to its end; the endpoint has to be there within `probe_seconds` (SSE-02)."""
        seconds = self.link.limits.probe_seconds
        try:
            with trio.fail_after(seconds) as patience:
                await self._read(patience)
            self.trouble = "the server's stream ended"
        except trio.TooSlowError:
            self.trouble = f"no endpoint within probe_seconds ({seconds:g})"
        except Exception as error:
            self.trouble = str(self.link.loss_of(error))
        finally:
            self.decided.set()

    async def _read(self, patience: trio.CancelScope) -> None:
        parser = EventParser(event_bytes_max=self.link.limits.frame_bytes_max)
        async with self.link.listen() as response:
            await self.link.check(response)
            check_stream(response)
            async with pieces_of(response) as pieces:
                async for piece in pieces:
                    for event in parser.feed(piece):
                        await self._hear(event, patience)

    async def _hear(self, event: Event | Oversized, patience: trio.CancelScope) -> None:
        if self.endpoint is None:
            self.endpoint = self._endpoint_of(event)
            patience.deadline = math.inf
            self.decided.set()
        elif isinstance(event, Oversized):
            await self.take(event)
        elif event.name == "message" and event.data:  # SSE-04
            await self.take(event.data)

    def _endpoint_of(self, event: Event | Oversized) -> httpx.URL:
        if isinstance(event, Oversized) or event.name != "endpoint":
            raise ConnectionLost("the first event of the server's stream is no endpoint")
        url = self.link.same_origin(event.data.decode(errors="replace"))
        if url is None:
            raise ConnectionLost("the endpoint that the server names is of another origin")
        return url
