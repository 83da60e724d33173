"""Revision 2024-11-05 over HTTP: a stream for everything, and a place to post to."""

from functools import partial
from urllib.parse import parse_qs

import attrs

from mcp_trio._protocol.http.verdicts import Refusal
from mcp_trio._server.http.asked import Asked, RefusedError, only
from mcp_trio._server.http.endpoint import begun_session
from mcp_trio._server.http.runtime import Runtime
from mcp_trio._server.http.sessions import HttpSession
from mcp_trio._transports.http.carrying import Carrier, until_gone
from mcp_trio._wire import Malformed
from mcp_trio._wire.event_stream import Event


@attrs.frozen(eq=False)
class SseEndpoints:
    """The two endpoints; a session lives as long as its stream."""

    runtime: Runtime

    async def respond_stream(self, asked: Asked) -> None:
        """Begin a session, and carry all that it sends (SSE-01, SSE-04).

        Raises:
            RefusedError: It is refused.
        """
        only(asked, "GET")
        begun = begun_session(self.runtime, asked, transport="sse")
        # Where to post, relative to here: nobody knows under which name and path we were found.
        endpoint = Event(f"messages?session_id={begun.id}".encode(), name="endpoint")
        carrier = Carrier(
            limits=self.runtime.server.limits, headers=asked.headers, first_event=endpoint
        )
        carry = partial(carrier.stream, asked.exchange, begun.channel.unasked)
        try:
            await until_gone(asked.exchange, carry)
        finally:
            begun.channel.finish()

    async def respond_post(self, asked: Asked) -> None:
        """Give what was posted to its session; the answer takes the stream.

        Raises:
            RefusedError: It is refused.
            trio.BrokenResourceError: The client is gone.
        """
        only(asked, "POST")
        body = await asked.body()
        begun = self._session(asked)
        message = self.runtime.endpoint.decoder.decode(body)
        if isinstance(message, Malformed):
            refusal = Refusal(status=400, code=message.code, text=message.message, id=message.id)
            raise RefusedError(refusal)
        begun.channel.deliver(body, message)
        await asked.answer(202)

    def _session(self, asked: Asked) -> HttpSession:
        session_id = parse_qs(asked.head.query).get("session_id", [""])[0]
        known = self.runtime.sessions.known(session_id, transport="sse")
        if known is None or known.principal != asked.head.principal:
            raise RefusedError(Refusal(status=404, text="there is no such session"))
        return self.runtime.sessions.used(session_id)
