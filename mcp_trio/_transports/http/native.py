"""HTTP/1.1 on Trio sockets: the cheaper of the two hosts, for a server that needs no TLS.

A connection is served by one task at a time, one request after the other. Nothing that a client
does, and nothing that the application raises, ends more than its connection.
"""

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, NoReturn, Protocol

import attrs
import trio

from mcp_trio._limits import Limits
from mcp_trio._transports.http.exchange import Responder
from mcp_trio._transports.http.native_connection import Clock, NativeConnection
from mcp_trio._transports.http.native_head import Refused, written_refusal
from mcp_trio._transports.http.native_wire import Ends, SocketEnds, Wire, client_of
from mcp_trio._transports.websocket.upgrade import Upgraded

_LOOKS_PER_IDLE_TIME: Final = 8
_FULL: Final = Refused(503, "there are too many connections (http_connections_max)")


class Serves(Protocol):
    """Who has tasks for what serves, and may lead."""

    def serve(self, served: Callable[[], Coroutine[Any, Any, None]], /) -> None:
        """Begin it; it may go on in another task wherever it asks for that."""
        ...


async def serve_native(
    respond: Responder,
    listeners: Sequence[trio.SocketListener],
    *,
    limits: Limits,
    upgraded: Upgraded | None = None,
    tasks_in: Callable[[trio.Nursery], Serves] | None = None,
    task_status: trio.TaskStatus[list[trio.SocketListener]] = trio.TASK_STATUS_IGNORED,
) -> NoReturn:
    """Serves an application to whoever connects, until it is cancelled.

    Args:
        respond: The application; for each connection one call of it at a time.
        listeners: Bound sockets, which are closed at the end.
        limits: What a connection may cost, and how many there may be.
        upgraded: What is done with who asks for a WebSocket; None: they are answered as anybody.
        tasks_in: Gives who serves the connections in a nursery, so that `respond` may lead (see
            `Exchange.may_lead`); None: each has one task.
        task_status: Is given the listeners once they take connections.

    Cancelled: the listeners and the idle connections are closed at once, and the calls of `respond`
    are cancelled; returns when these have returned.
    """
    host = NativeHost(respond=respond, limits=limits, upgraded=upgraded)

    async with trio.open_nursery() as nursery:
        tasks = None if tasks_in is None else tasks_in(nursery)

        async def take(stream: trio.SocketStream) -> None:
            client = client_of(stream)
            ends = SocketEnds(fd=stream.socket.detach(), chunk_bytes=limits.chunk_bytes)
            if tasks is None:
                await host.serve(ends, client=client)
            else:
                tasks.serve(partial(host.serve, ends, client=client, may_lead=True))

        nursery.start_soon(host.close_idle)
        await trio.serve_listeners(
            take, list(listeners), handler_nursery=nursery, task_status=task_status
        )


@attrs.define(kw_only=True, eq=False)
class NativeHost:
    """The connections to one application."""

    respond: Responder
    limits: Limits
    upgraded: Upgraded | None = None
    _connections: set[NativeConnection] = attrs.field(factory=set[NativeConnection], init=False)
    _clock: Clock = attrs.field(factory=Clock, init=False)

    async def serve(self, ends: Ends, *, client: str | None = None, may_lead: bool = False) -> None:
        """Serves one connection until it ends, and closes it.

        Raises nothing but cancellations, and what is no `Exception`.
        """
        connection = NativeConnection(
            wire=Wire(ends=ends, limits=self.limits),
            respond=self.respond,
            upgraded=self.upgraded,
            client=client,
            clock=self._clock,
            may_lead=may_lead,
        )
        try:
            if len(self._connections) >= self.limits.http_connections_max:
                await connection.wire.write(written_refusal(_FULL))
                return
            self._connections.add(connection)
            await connection.serve()
        except trio.BrokenResourceError:
            pass  # the client has gone away, which ends a connection like any other way
        finally:
            self._connections.discard(connection)
            ends.close()

    async def close_idle(self) -> NoReturn:
        """Closes connections on which no request has begun for `http_idle_seconds`.

        One look at all of them every now and then costs less than a timer for each request, and
        closes none too early and none later than two looks after its time.
        """
        idle_seconds = self.limits.http_idle_seconds
        pause = idle_seconds / _LOOKS_PER_IDLE_TIME
        while True:
            await trio.sleep(pause)
            self._clock.last_look = now = trio.current_time()
            for connection in self._connections:
                if now - connection.idle_since >= idle_seconds + pause:
                    connection.end()
