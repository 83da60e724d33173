"""An ASGI application served by hypercorn, which has HTTP/2.

This module uses the public interface of hypercorn's Trio server only: `serve` and `Config`. The
guide "Deploy behind hypercorn" lists the protections of our own listener that hypercorn does not
have.
"""

import logging
import socket
import sys
from collections.abc import Sequence
from typing import Any, Final, cast

import attrs
import hypercorn.trio
import trio
from hypercorn.config import Config

from mcp_trio._protocol.http_requests import RETRY_SECONDS
from mcp_trio._protocol.shares import Shares, network_of, shares_of
from mcp_trio._transports.asgi import (
    Application,
    IncompleteResponse,
    Receive,
    Scope,
    Send,
    send_response,
)
from mcp_trio._transports.buffered_sockets import IP_FAMILIES
from mcp_trio._transports.concurrency import call_when_cancelled
from mcp_trio._transports.peer_log import PeerLog
from mcp_trio.limits import DEFAULT_LIMITS, Limits

# The types of hypercorn's public function contain parts that pyright does not know.
_serve: Final = cast("Any", hypercorn.trio).serve

_BACKLOG: Final = 0xFFFF  # The operating system caps the backlog at its own, lower maximum.
_MILLISECONDS_MAX: Final = 2**31 - 1


async def serve_hypercorn(
    app: Application,
    listeners: Sequence[trio.SocketListener],
    *,
    limits: Limits = DEFAULT_LIMITS,
    certfile: str | None = None,
    keyfile: str | None = None,
    task_status: trio.TaskStatus[Sequence[trio.SocketListener]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve an ASGI application until cancelled, and close the listeners at the end.

    With `certfile` and `keyfile` (PEM), all connections use TLS, and HTTP/2 where the client
    negotiates it. `keyfile` is `certfile` by default. At most `limits.http.connections_max`
    requests and WebSockets of one client are served at the same time; more are rejected (503).

    Cancellation is the graceful stop: it closes the listeners and the idle connections, and cancels
    the application's calls. A cancelled call may still complete its response. After
    `limits.shutdown.close_seconds`, the remaining connections are closed. hypercorn does not
    interrupt a write to a client that reads nothing; Linux ends that write after
    `limits.messages.write_stall_seconds`.

    An error of hypercorn itself closes all of its connections; it is logged, and hypercorn is
    started again.

    Raises:
        OSError: The certificate or key cannot be read (`ssl.SSLError` is one).
    """
    host = _Host(app, listeners, shares_of("limits.http.connections_max", limits))
    try:
        config = _hypercorn_config(limits, certfile, keyfile)
        config.create_ssl_context()  # raises the errors of the certificate
        # Let the kernel abort connections to which nothing could be sent for this time. Connections
        # inherit the option from the listening socket. It exists on Linux only.
        seconds = limits.messages.write_stall_seconds
        milliseconds = max(1, int(min(seconds * 1000, _MILLISECONDS_MAX)))
        for listener in listeners:
            if hasattr(socket, "TCP_USER_TIMEOUT") and listener.socket.family in IP_FAMILIES:
                listener.socket.setsockopt(
                    socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds
                )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call_when_cancelled, host.stop)
            with trio.CancelScope(shield=True):
                await host.serve(config, task_status)
    finally:
        host.stop()
        host.log.close()


@attrs.define(eq=False, repr=False)
class _Host:
    """An application whose calls can be cancelled, and the sockets on which hypercorn serves it.

    `call_shares` limits the calls at the same time, in all and of each client's network.
    """

    app: Application
    listeners: Sequence[trio.SocketListener]
    call_shares: Shares
    stopping: trio.Event = attrs.field(factory=trio.Event, init=False)
    log: PeerLog = attrs.field(factory=PeerLog, init=False)
    _calls: set[trio.CancelScope] = attrs.field(factory=set[trio.CancelScope], init=False)

    async def serve(
        self, config: Config, task_status: trio.TaskStatus[Sequence[trio.SocketListener]]
    ) -> None:
        """Run hypercorn until `stop` is called; start it again after an error of its own."""
        has_ever_started = has_started = False

        async def wait_for_stop() -> None:  # hypercorn calls this when it listens, at each start
            nonlocal has_started, has_ever_started
            has_started = True
            if not has_ever_started:
                has_ever_started = True
                task_status.started(self.listeners)
            await self.stopping.wait()

        while not self.stopping.is_set():
            has_started = False
            # hypercorn closes the sockets that it gets. On Windows, `os.dup` cannot copy a socket.
            config.bind = [f"fd://{each.socket.dup().detach()}" for each in self.listeners]
            try:
                await _serve(self._call, config, shutdown_trigger=wait_for_stop, mode="asgi")
            except Exception as error:
                if not has_started:
                    raise
                text = "hypercorn has failed, and all its connections are closed"
                self.log.report(text, text, level=logging.ERROR, error=error)

    def stop(self) -> None:
        """Close the listeners, cancel all calls, and let hypercorn stop."""
        self.stopping.set()
        for listener in self.listeners:
            listener.socket.close()
        for call in self._calls:
            call.cancel()

    async def _call(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        client = scope.get("client")
        network = network_of(client[0] if client else None)
        exceeded_limit = self.call_shares.exceeded(network)
        if exceeded_limit is not None:  # hypercorn does not limit its connections
            reason = f"there are too many requests{exceeded_limit}"
            self.log.report("too many", f"a request was rejected: {reason}")
            await _reject(scope, receive, send, reason)
            return
        with trio.CancelScope() as call:
            self._calls.add(call)
            self.call_shares.take(network)
            if self.stopping.is_set():
                call.cancel()
            try:
                await self.app(scope, receive, send)
            except IncompleteResponse:
                pass  # hypercorn closes the connection of a response that is incomplete
            except Exception as error:
                text = "the application failed"
                self.log.report(text, text, level=logging.ERROR, error=error)
            finally:
                self._calls.discard(call)
                self.call_shares.give_back(network)


async def _reject(scope: Scope, receive: Receive, send: Send, reason: str) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close"})
        return
    headers = [("Content-Type", "text/plain"), ("Retry-After", RETRY_SECONDS)]
    await send_response(send, 503, headers, reason.encode())


def _hypercorn_config(limits: Limits, certfile: str | None, keyfile: str | None) -> Config:
    config = Config()
    config.certfile, config.keyfile = certfile, keyfile or certfile
    config.accesslog = config.errorlog = None  # the application logs its errors itself
    config.include_server_header = False
    config.backlog = _BACKLOG
    config.h11_max_incomplete_size = limits.http.headers_bytes_max
    config.h2_max_header_list_size = limits.http.headers_bytes_max
    config.keep_alive_timeout = limits.http.idle_seconds
    config.keep_alive_max_requests = sys.maxsize
    config.websocket_max_message_size = limits.messages.bytes_max
    config.websocket_ping_interval = limits.websocket.ping_interval_seconds
    config.ssl_handshake_timeout = limits.http.headers_seconds
    config.graceful_timeout = limits.shutdown.close_seconds
    return config
