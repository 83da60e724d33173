"""A plain TCP balancer in front of several instances of a server."""

import contextlib
from collections.abc import Sequence

import attrs
import trio
from server_processes import free_port


@attrs.define(eq=False, repr=False)
class Balancer:
    """A TCP balancer: each connection goes to the next instance that accepts it.

    Attributes:
        ports: The local ports of the instances; may change at any time.
        port: The local port of the balancer.
        connections: The number of connections that clients have opened.
    """

    ports: Sequence[int] = ()
    port: int = attrs.field(factory=free_port)
    connections: int = attrs.field(default=0, init=False)

    async def run(
        self, *, task_status: "trio.TaskStatus[object]" = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Carry connections until cancelled."""
        await trio.serve_tcp(self._carry, self.port, host="127.0.0.1", task_status=task_status)

    async def _carry(self, client: trio.SocketStream) -> None:
        # Each connection tries every instance once, also if others arrive meanwhile.
        first = self.connections % len(self.ports)
        self.connections += 1
        for port in (*self.ports[first:], *self.ports[:first]):
            try:
                server = await trio.open_tcp_stream("127.0.0.1", port)
            except OSError:
                continue
            async with server, trio.open_nursery() as nursery:
                nursery.start_soon(_copy, client, server)
                await _copy(server, client)
                nursery.cancel_scope.cancel()
            break
        await trio.aclose_forcefully(client)


async def _copy(source: trio.SocketStream, target: trio.SocketStream) -> None:
    with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        async for data in source:
            await target.send_all(data)
        await target.send_eof()
