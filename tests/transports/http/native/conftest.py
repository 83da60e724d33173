"""A client in memory for connections of the native listener."""

import math
import re

import attrs
import pytest
import trio
import trio.testing

from mcp_trio import Limits
from mcp_trio._transports.http_server import NativeHost
from mcp_trio.limits import KIB


@attrs.define(eq=False)
class Client:
    """Both ends in memory: what the server calls, and what the test does as its client."""

    room: float = math.inf
    false_alarms: int = 0
    sent: bytearray = attrs.field(factory=bytearray)
    writes: int = 0
    is_closed: bool = False
    is_shut: bool = False
    _arrived: bytearray = attrs.field(factory=bytearray)
    _has_ended: bool = False
    _error: OSError | None = None
    _changed: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)

    # The server's

    def read_nowait(self):
        if self._error:
            raise self._error
        if not self._arrived and not self._has_ended:
            raise BlockingIOError
        data = bytes(self._arrived[: 64 * KIB])
        del self._arrived[: 64 * KIB]
        return data

    def write_nowait(self, data):
        if self._error:
            raise self._error
        taken = int(min(self.room, len(data)))
        if not taken:
            raise BlockingIOError
        self.room -= taken
        self.sent += data[:taken]
        self.writes += 1
        return taken

    @property
    def is_readable(self):
        return bool(self._arrived or self._has_ended or self._error)

    async def wait_readable(self):
        await trio.lowlevel.checkpoint()
        if self.false_alarms:
            self.false_alarms -= 1
            return
        while not (self._arrived or self._has_ended or self._error):
            await self._changed.park()

    async def wait_writable(self):
        await trio.lowlevel.checkpoint()
        while not (self.room or self._error):
            await self._changed.park()

    def shut_writing(self):
        self.is_shut = True

    def end(self):
        self.close_sending()

    def rest(self):
        return self.wait_readable()

    def close(self):
        self.is_closed = True

    # The client's

    def put(self, data):
        self._arrived += data
        self._changed.unpark_all()

    def read(self, count):
        self.room += count
        self._changed.unpark_all()

    def close_sending(self):
        self._has_ended = True
        self._changed.unpark_all()

    def reset(self):
        self._error = ConnectionResetError()
        self._changed.unpark_all()

    def statuses(self):
        return [int(status) for status in re.findall(rb"HTTP/1.1 ([0-9]+)", self.sent)]

    def undated(self):
        return re.sub(rb"date: [^\r]+\r\n", b"", self.sent)


@pytest.fixture
def new_client():
    """`new_client()` is a client without a server."""
    return Client


@pytest.fixture
def connect(nursery):
    """`await connect(respond, **limits)` is a client whose server is running."""

    async def connect(respond, *, room=math.inf, false_alarms=0, **limits):
        client = Client(room=room, false_alarms=false_alarms)
        host = NativeHost(respond=respond, limits=Limits(**limits))
        nursery.start_soon(host.close_idle)
        nursery.start_soon(host.serve, client)
        await trio.testing.wait_all_tasks_blocked()
        return client

    return connect
