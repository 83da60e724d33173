"""The handshake timeout of connections whose session takes long to open, as in a bridge."""

import attrs
import trio

from mcp_trio import Limits
from mcp_trio._server.sockets import HandshakeTimeouts
from mcp_trio._transports.concurrency import LightEvent
from mcp_trio.limits import RequestLimits


@attrs.define(eq=False)
class SilentSession:
    has_begun: bool = False
    closing: LightEvent = attrs.field(factory=LightEvent)


@attrs.define(eq=False)
class SomeWebSocket:
    failed_at: list = attrs.field(factory=list)

    def fail(self, _loss, _code):
        self.failed_at.append(trio.current_time())


async def test_the_handshake_timeout_starts_when_the_session_has_opened(nursery, autojump_clock):
    handshake_timeouts, channel = (
        HandshakeTimeouts(Limits(requests=RequestLimits(first_request_seconds=80))),
        SomeWebSocket(),
    )
    nursery.start_soon(handshake_timeouts.see_off)
    welcomed = handshake_timeouts.welcome(channel)
    await trio.sleep(1000)  # the bridge has no server yet
    welcomed.started(SilentSession())
    await trio.sleep(1000)
    [failed_at] = channel.failed_at
    assert 1080 <= failed_at <= 1090
