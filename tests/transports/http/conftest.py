"""Hosts on a loopback socket, and a client that shows what goes over the wire."""

import contextlib
import functools
import ssl

import attrs
import h11
import pytest
import trio
from certificates import self_signed

from mcp_trio import Limits
from mcp_trio._server.sockets import tls_context
from mcp_trio._session.leader_followers import TaskPool
from mcp_trio._transports.asgi import AsgiHost
from mcp_trio.limits import ShutdownLimits


@attrs.define
class Answer:
    """The response to one request; `informational` are the statuses before it."""

    status: int
    headers: dict
    body: bytes = b""
    informational: list = attrs.field(factory=list)


@attrs.define(eq=False)
class RawClient:
    """One connection that sends any bytes, valid or not."""

    stream: trio.SocketStream | trio.SSLStream
    http: h11.Connection = attrs.field(factory=lambda: h11.Connection(h11.CLIENT))

    async def put(self, data):
        """Sends bytes past h11."""
        await self.stream.send_all(data)

    async def ask(self, method="GET", target="/", headers=(), body=b""):
        """Sends one request, with its length where there is a body."""
        fields = [("Host", "host.test"), *headers]
        if body:
            fields.append(("Content-Length", str(len(body))))
        await self._send(h11.Request(method=method, target=target, headers=fields))
        if body:
            await self._send(h11.Data(data=body))
        await self._send(h11.EndOfMessage())

    async def _send(self, event):
        await self.stream.send_all(self.http.send(event))

    async def event(self):
        """The next event of h11."""
        while True:
            event = self.http.next_event()
            if event is not h11.NEED_DATA:
                return event
            self.http.receive_data(await self.stream.receive_some(65536))

    async def response_headers(self):
        """Return the response without its body."""
        informational = []
        while isinstance(event := await self.event(), h11.InformationalResponse):
            informational.append(event.status_code)
        assert isinstance(event, h11.Response), event
        headers = {name.decode(): value.decode() for name, value in event.headers}
        return Answer(event.status_code, headers, informational=informational)

    async def answer(self):
        """The whole answer; the connection is ready for the next request if it may be kept."""
        answer = await self.response_headers()
        answer.body = await self.body()
        return answer

    async def body(self):
        """Return the rest of a response's body."""
        body = b""
        while isinstance(event := await self.event(), h11.Data):
            body += bytes(event.data)
        assert isinstance(event, h11.EndOfMessage), event
        if self.http.our_state is self.http.their_state is h11.DONE:
            self.http.start_next_cycle()
        return body

    async def piece(self):
        """The next piece of the body."""
        event = await self.event()
        assert isinstance(event, h11.Data), event
        return bytes(event.data)

    async def exchange(self, *args, **options):
        await self.ask(*args, **options)
        return await self.answer()

    async def rest(self):
        """All bytes up to the server's close, past h11; a reset is a close too."""
        received = bytearray(self.http.trailing_data[0])
        with contextlib.suppress(trio.BrokenResourceError):
            while data := await self.stream.receive_some(65536):
                received += data
        return bytes(received)

    async def end_sending(self):
        """Sends end of file, below TLS if there is TLS."""
        tcp = self.stream
        if isinstance(tcp, trio.SSLStream):
            tcp = tcp.transport_stream
        await tcp.send_eof()

    async def aclose(self):
        await self.stream.aclose()


@attrs.define(eq=False)
class RunningHost:
    """A host that serves; `is_stopped` is set when it has come to its end.

    With `tls`, clients connect over TLS, and close it without a closure alert.
    """

    port: int
    scope: trio.CancelScope
    is_stopped: trio.Event
    tls: ssl.SSLContext | None = None
    clients: list = attrs.field(factory=list)

    async def connect(self):
        stream = await trio.open_tcp_stream("127.0.0.1", self.port)
        if self.tls is not None:
            stream = trio.SSLStream(
                stream, self.tls, server_hostname="127.0.0.1", https_compatible=True
            )
        client = RawClient(stream)
        self.clients.append(client)
        return client

    async def stop(self):
        self.scope.cancel()
        await self.is_stopped.wait()


def _hypercorn(respond, listeners, *, limits, task_status, **options):
    from mcp_trio._transports.hypercorn import serve_hypercorn

    app = AsgiHost(respond, limits=limits)
    return serve_hypercorn(app, listeners, limits=limits, task_status=task_status, **options)


def _native(respond, listeners, *, limits, task_status, tls=None):
    from mcp_trio._transports.http_server import serve_native

    return serve_native(respond, listeners, limits=limits, tls=tls, task_status=task_status)


def _resting(respond, listeners, *, limits, task_status):
    """The native one, as servers use it: its connections rest together."""
    from mcp_trio._transports.http_server import serve_native

    return serve_native(
        respond,
        listeners,
        limits=limits,
        leaders_in=lambda nursery: TaskPool(nursery).start_leader,
        task_status=task_status,
    )


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """The options of a host with a certificate for 127.0.0.1 that it has made itself."""
    return self_signed(tmp_path_factory.mktemp("tls"))


# hypercorn waits that long at its stop for a client that has closed its connection.
QUICK = ShutdownLimits(close_seconds=0.2)

HOSTS = {"hypercorn": _hypercorn, "native": _native, "resting": _resting, "tls": _native}


@pytest.fixture
async def open_host(nursery, certificate):
    """`await open_host(name, respond, **limits)` serves it, on a port of its own."""
    running = []

    async def run(serve, host, *, task_status):
        with host.scope:
            await serve(task_status=task_status)
        host.is_stopped.set()

    async def open_host(name, respond, *, options=None, **limits):
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listeners[0].socket.getsockname()[1]
        options, client_tls = dict(options or {}), None
        if name == "tls":
            options["tls"] = tls_context(**certificate)
            client_tls = ssl.create_default_context(cafile=certificate["certfile"])
        serve = functools.partial(
            HOSTS[name],
            respond,
            listeners,
            limits=Limits(**{"shutdown": QUICK, **limits}),
            **options,
        )
        host = RunningHost(port, trio.CancelScope(), trio.Event(), client_tls)
        await nursery.start(run, serve, host)
        running.append(host)
        return host

    yield open_host
    for host in running:
        for client in host.clients:
            await client.aclose()
        await host.stop()


async def say_hello(exchange):
    await exchange.answer(200, [("content-type", "text/plain")], b"hello")


async def say_goodbye(exchange):
    """A stream of nothing, and one word more when the server stops."""
    await exchange.start(200, [])
    try:
        await trio.sleep_forever()
    finally:
        with trio.move_on_after(1) as scope:
            scope.shield = True
            await exchange.send(b"goodbye")
            await exchange.end()


def pouring(piece_bytes):
    """An application whose streams have no end, and a queue of the errors by which they end."""
    put, errors = trio.open_memory_channel(1000)

    async def respond(exchange):
        await exchange.start(200, [])
        try:
            while True:
                await exchange.send(b"x" * piece_bytes)
        except trio.BrokenResourceError as error:
            put.send_nowait(error)

    return respond, errors


@pytest.fixture(params=["hypercorn", "native", "resting", "tls"])
def opened(request, open_host):
    """Open a connection to an application, held by each of the hosts."""

    async def opened(respond, **limits):
        return await open_host(request.param, respond, **limits)

    return opened


@pytest.fixture(params=["native", "resting", "tls"])
def opened_by_listener(request, open_host):
    """Open a connection to an application, held by our own listener in each of its ways."""

    async def opened(respond, **limits):
        return await open_host(request.param, respond, **limits)

    return opened
