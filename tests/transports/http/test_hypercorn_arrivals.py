"""What has come for an application: messages in order, an end, and how much more may come."""

import attrs
import h2.config
import h2.connection
import h2.errors
import h2.events
import pytest
import trio
import trio.testing

from mcp_trio._transports.hypercorn import ScopeQueue, Windows

PIECE = {"type": "http.request", "body": b"x", "more_body": True}
GONE = {"type": "http.disconnect"}
WAITING_MAX = 10
WINDOW = 65_535
REQUEST = [
    (":method", "POST"),
    (":scheme", "http"),
    (":authority", "host.test"),
    (":path", "/"),
]


async def filled(arrivals=None):
    arrivals = ScopeQueue() if arrivals is None else arrivals
    for _ in range(arrivals.waiting_max):
        await arrivals.put(PIECE)
    return arrivals


async def test_what_has_come_is_taken_in_order_and_awaited_when_there_is_nothing(nursery):
    arrivals, taken = ScopeQueue(), []
    assert not arrivals.is_waiting()

    async def take():
        taken.extend([await arrivals.take(), await arrivals.take()])

    nursery.start_soon(take)
    await trio.testing.wait_all_tasks_blocked()
    await arrivals.put(PIECE)
    await arrivals.put(GONE)
    assert arrivals.is_waiting()
    await trio.testing.wait_all_tasks_blocked()
    assert taken == [PIECE, GONE]


async def test_put_waits_while_the_queue_is_full(nursery):
    arrivals, story = await filled(), []
    assert arrivals.waiting_max == WAITING_MAX

    async def put():
        await arrivals.put(PIECE)
        story.append("put")

    nursery.start_soon(put)
    await trio.testing.wait_all_tasks_blocked()
    assert story == []
    await arrivals.take()
    await trio.testing.wait_all_tasks_blocked()
    assert story == ["put"]


@pytest.mark.parametrize("is_of_stream", [False, True])
async def test_put_does_not_wait_for_an_application_that_has_returned(is_of_stream, nursery):
    arrivals = await filled(Ends.meet().windows.begin(1) if is_of_stream else None)
    nursery.start_soon(arrivals.put, PIECE)
    await trio.testing.wait_all_tasks_blocked()
    arrivals.end()
    await trio.testing.wait_all_tasks_blocked()
    assert nursery.child_tasks == set()
    await arrivals.put(PIECE)


async def test_a_disconnect_is_queued_without_waiting():
    arrivals = await filled()
    await arrivals.put(GONE)
    told = [await arrivals.take() for _ in range(WAITING_MAX + 1)]
    assert told[-1] == GONE


# Windows


@attrs.define(eq=False)
class Ends:
    """A client of HTTP/2 and a server's `windows`, with nothing but their bytes in between."""

    client: h2.connection.H2Connection
    server: h2.connection.H2Connection
    windows: Windows = None
    flushed: int = 0

    @classmethod
    def meet(cls):
        sides = (h2.config.H2Configuration(client_side=side) for side in (True, False))
        ends = cls(*(h2.connection.H2Connection(config) for config in sides))
        ends.windows = Windows(ends.server, ends._flush)
        ends.client.initiate_connection()
        ends.server.initiate_connection()
        ends.pass_on()
        return ends

    async def _flush(self, data):
        self.flushed += 1
        self.client.receive_data(data)

    def pass_on(self):
        """What the client has to say goes to the server, and the other way round."""
        events = self.server.receive_data(self.client.data_to_send())
        self.client.receive_data(self.server.data_to_send())
        return events

    def ask(self):
        number = self.client.get_next_available_stream_id()
        self.client.send_headers(number, REQUEST)
        self.pass_on()
        return number

    async def send(self, number, arrivals, size):
        """One piece of a body, that hypercorn gives away and acknowledges."""
        self.client.send_data(number, b"x" * size)
        [event] = self.pass_on()
        if arrivals is not None:
            await arrivals.put(PIECE)
        self.server.acknowledge_received_data(event.flow_controlled_length, number)
        self.client.receive_data(self.server.data_to_send())

    def left(self, number):
        """How much the client may send: on the connection, and on a stream of it."""
        connection = self.client.outbound_flow_control_window
        return connection, self.client.streams[number].outbound_flow_control_window


async def test_while_a_stream_is_not_read_its_own_window_alone_closes():
    ends = Ends.meet()
    number = ends.ask()
    arrivals = ends.windows.begin(number)
    for left in (WINDOW - 10_000, WINDOW - 20_000):
        await ends.send(number, arrivals, 10_000)
        assert ends.left(number) == (WINDOW, left)
    assert await arrivals.take() == PIECE
    assert (ends.left(number), ends.flushed) == ((WINDOW, WINDOW - 20_000), 0)
    assert await arrivals.take() == PIECE
    assert (ends.left(number), ends.flushed) == ((WINDOW, WINDOW), 1)
    await ends.send(number, arrivals, 10_000)
    await arrivals.take()
    assert (ends.left(number), ends.flushed) == ((WINDOW, WINDOW), 2)


@pytest.mark.parametrize("is_begun", [True, False])
async def test_data_are_acknowledged_at_once_for_an_empty_queue(is_begun):
    ends = Ends.meet()
    number = ends.ask()
    if is_begun:
        ends.windows.begin(number)
    for _ in range(4):
        await ends.send(number, None, 16_384 - 1)
    connection, stream = ends.left(number)
    assert connection == stream > 0


async def test_a_piece_without_bytes_takes_none_of_the_window():
    ends = Ends.meet()
    number = ends.ask()
    arrivals = ends.windows.begin(number)
    await ends.send(number, arrivals, 0)
    await arrivals.take()
    assert (ends.left(number), ends.flushed) == ((WINDOW, WINDOW), 0)


async def test_of_a_stream_that_was_reset_no_window_is_opened():
    ends = Ends.meet()
    number = ends.ask()
    arrivals = ends.windows.begin(number)
    await ends.send(number, arrivals, 10_000)
    ends.client.reset_stream(number, h2.errors.ErrorCodes.CANCEL)
    ends.pass_on()
    assert await arrivals.take() == PIECE
    arrivals.end()
    other = ends.ask()
    await ends.send(other, ends.windows.begin(other), 10_000)
    assert ends.left(other) == (WINDOW, WINDOW - 10_000)


async def test_when_the_client_has_said_goodbye_nothing_is_opened_any_more():
    ends = Ends.meet()
    number = ends.ask()
    arrivals = ends.windows.begin(number)
    ends.client.send_data(number, b"x" * 10_000)
    ends.client.close_connection()
    pieces = [e for e in ends.pass_on() if isinstance(e, h2.events.DataReceived)]
    await arrivals.put(PIECE)
    ends.server.acknowledge_received_data(pieces[0].flow_controlled_length, number)
    assert ends.server.data_to_send() == b""
    assert await arrivals.take() == PIECE
