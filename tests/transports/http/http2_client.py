"""An HTTP/2 client that shows the events on the wire."""

import ssl

import attrs
import h2.config
import h2.connection
import h2.events
import trio


@attrs.define(eq=False)
class Http2Client:
    """One HTTP/2 connection; it shows the events of h2."""

    stream: trio.abc.Stream
    http: h2.connection.H2Connection
    events: list = attrs.field(factory=list)

    @classmethod
    async def connect(cls, host, certificate):
        """One over TLS."""
        plain = await host.connect()
        context = ssl.create_default_context(cafile=certificate["certfile"])
        context.set_alpn_protocols(["h2"])
        stream = trio.SSLStream(
            plain.stream, context, server_hostname="127.0.0.1", https_compatible=True
        )
        await stream.do_handshake()
        assert stream.selected_alpn_protocol() == "h2"
        return await cls.over(stream)

    @classmethod
    async def over(cls, stream):
        """One whose server knows that it speaks HTTP/2."""
        http = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        http.initiate_connection()
        client = cls(stream, http)
        await client.flush()
        return client

    async def flush(self):
        await self.stream.send_all(self.http.data_to_send())

    async def ask(self, method="GET", path="/", headers=(), body=b"", *, is_whole=True):
        """Sends one request; one that is not whole has more of its body to come."""
        number = self.http.get_next_available_stream_id()
        fields = [
            (":method", method),
            (":scheme", "https"),
            (":authority", "host.test"),
            (":path", path),
            *headers,
        ]
        self.http.send_headers(number, fields, end_stream=is_whole and not body)
        if body:
            for first in range(0, len(body), 16384):
                self.http.send_data(number, body[first : first + 16384])
            if is_whole:
                self.http.end_stream(number)
        await self.flush()
        return number

    async def event(self, number, kind):
        """The next event of a kind on a stream, None: on none; those before it are forgotten."""
        while True:
            while self.events:
                event = self.events.pop(0)
                if isinstance(event, h2.events.DataReceived):
                    self.http.acknowledge_received_data(
                        event.flow_controlled_length, event.stream_id
                    )
                if isinstance(event, kind) and getattr(event, "stream_id", None) == number:
                    return event
            await self.flush()
            data = await self.stream.receive_some(65536)
            if not data:
                raise EOFError
            self.events = self.http.receive_data(data)

    async def exchange(self, *args, **options):
        return await self.answer(await self.ask(*args, **options))

    async def answer(self, number):
        response = await self.event(number, h2.events.ResponseReceived)
        body = b""
        kinds = (h2.events.DataReceived, h2.events.StreamEnded)
        while isinstance(event := await self.event(number, kinds), h2.events.DataReceived):
            body += event.data
        return dict(response.headers), body
