"""Serving a server over HTTP, in the caller's nursery."""

from collections.abc import Sequence
from functools import partial

import attrs
import trio

from mcp_trio._engine import WarmTasks, foremost
from mcp_trio._protocol.http.gate import gate_for
from mcp_trio._recorder.options import keeps_each_session
from mcp_trio._server.connections import Door, verify_of
from mcp_trio._server.http.app import HttpApp
from mcp_trio._server.http.options import HostKind, HttpOptions
from mcp_trio._server.http.runtime import Runtime, ServesSessions
from mcp_trio._server.http.stores import HttpStores
from mcp_trio._server.http.websockets import WebSocketEndpoint
from mcp_trio._transports.sockets import netloc
from mcp_trio._transports.stopping import tell_when_cancelled


def app_of(
    server: ServesSessions, options: HttpOptions, bound: Sequence[tuple[str, int]]
) -> HttpApp:
    """The application, for where it is bound; its runtime runs nowhere yet.

    Raises:
        TypeError: There is no such option.
        ValueError: Sessions cannot be recorded so, as they would replace each other; or the gate's
            settings are none; or there are both `token` and `verify`.
    """
    unknown = options.keys() - HttpOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f'not an option here: {", ".join(sorted(unknown))} (workers= is for "run")')
    if not keeps_each_session(options.get("record")):
        raise ValueError("over HTTP, record to a folder or a SharedRecording: sessions are many")
    gate = gate_for(
        bound,
        hosts=options.get("hosts"),
        origins=options.get("origins"),
        allows_cors=options.get("allows_cors", False),
    )
    runtime = Runtime(server, options.get("record"), options.get("stores") or HttpStores())
    verify = verify_of(options.get("token"), options.get("verify"))
    door = Door(gate=gate, path=options.get("ws_path", "/ws"), verify=verify)
    has_websocket = options.get("has_websocket", True)
    return HttpApp(
        runtime=runtime,
        gate=gate,
        path=options.get("path", "/mcp"),
        verify=verify,
        streams_answers=options.get("streams_answers", False),
        has_sse=options.get("has_sse", True),
        websocket=WebSocketEndpoint(runtime=runtime, door=door) if has_websocket else None,
    )


@attrs.frozen(kw_only=True)
class Address:
    """Where a server listens, and who holds its connections.

    Attributes:
        host: The name or number of an interface; the default is reached from this machine only.
        port: 0 for any that is free.
        holder: The kind of host.
        certfile: A certificate, in PEM, for TLS; with `keyfile`, and by hypercorn only.
        keyfile: Its key.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    holder: HostKind = "native"
    certfile: str | None = None
    keyfile: str | None = None

    def __attrs_post_init__(self) -> None:
        if self.holder not in ("native", "hypercorn"):
            raise ValueError(f"unknown host {self.holder!r}: native or hypercorn")
        if self.holder == "native" and (self.certfile or self.keyfile):
            raise ValueError('TLS is for server="hypercorn"')

    def url(self, port: int, path: str) -> str:
        """What is there under the port that was bound."""
        scheme = "http" if self.certfile is None else "https"
        return f"{scheme}://{netloc(self.host, port)}{path}"


async def serve_http(
    server: ServesSessions,
    address: Address,
    options: HttpOptions,
    *,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled, which ends every stream in its protocol's way, in bounded time.

    Reports the URL of the MCP endpoint, with the port that was bound.

    Raises:
        OSError: The address cannot be bound.
        Exception: What the lifespan raises, bare.
    """
    listeners = await trio.open_tcp_listeners(address.port, host=address.host)
    await serve_bound(server, listeners, address, options, task_status=task_status)


async def serve_bound(
    server: ServesSessions,
    listeners: Sequence[trio.SocketListener],
    address: Address,
    options: HttpOptions,
    *,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """The same at an address that is bound already, by listeners that are closed at the end.

    Cancelled: the sessions wind down, and with them their streams; when the last frames have left,
    or after `close_seconds` more, the listeners close.

    Raises:
        Exception: What the lifespan raises, bare.
    """
    try:
        bound = [listener.socket.getsockname()[:2] for listener in listeners]
        app = app_of(server, options, bound)
        url = address.url(bound[0][1], app.path)
        async with trio.open_nursery() as outer:
            stopping = trio.Event()
            outer.start_soon(tell_when_cancelled, stopping.set)
            with trio.CancelScope() as winding:
                async with trio.open_nursery() as nursery:
                    await nursery.start(app.runtime.run)
                    winding.shield = True  # before, there is nothing yet that has to wind down
                    await nursery.start(partial(_hold, app, listeners, address))
                    task_status.started(url)
                    await stopping.wait()
                    app.runtime.close()
                    await app.runtime.ended.wait()
                    with trio.move_on_after(server.limits.close_seconds):
                        await app.all_answered()
                    nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise foremost(group) from None
    finally:
        for listener in listeners:
            listener.socket.close()  # no checkpoint, which would hide what is being raised


async def _hold(
    app: HttpApp,
    listeners: Sequence[trio.SocketListener],
    address: Address,
    *,
    task_status: trio.TaskStatus[object],
) -> None:
    limits = app.runtime.server.limits
    if address.holder == "native":
        from mcp_trio._transports.http.native import serve_native

        await serve_native(
            app.respond,
            listeners,
            limits=limits,
            upgraded=app.upgraded,
            tasks_in=WarmTasks,
            task_status=task_status,
        )
    else:
        from mcp_trio._transports.http.asgi import AsgiHost
        from mcp_trio._transports.http.hypercorn_host import serve_hypercorn

        await serve_hypercorn(
            AsgiHost(app.respond, limits=limits, upgraded=app.upgraded),
            listeners,
            limits=limits,
            certfile=address.certfile,
            keyfile=address.keyfile,
            task_status=task_status,
        )
