"""Forwarding between two connections: order, back pressure, signals and the end of each side."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from functools import partial

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_trio import Client, ConnectionLost, Limits, RequestError
from mcp_trio._journal.records import encode_body
from mcp_trio._jsonrpc.messages import Decoder
from mcp_trio._proxy.bridge import (
    BridgeApplication,
    Downstream,
    Upstream,
    bridge_application,
    serve_bridge,
)
from mcp_trio._proxy.forwarders import ConnectionForwarder, NegotiatedVersion, UpstreamConnection
from mcp_trio._proxy.journal import start_message_journal
from mcp_trio._proxy.stdio import shell_status
from mcp_trio._transports.descriptors import Descriptor
from mcp_trio._transports.http_channels import SessionChannel, StatelessChannel
from mcp_trio.limits import MIB, MessageLimits, ShutdownLimits
from mcp_trio.transports import memory_pair
from tests.processes import is_alive, python

PIPE_BYTES = 65_536
PAGE_BYTES = 4096

ECHO = "import os\nwhile chunk := os.read(0, 65536): os.write(1, chunk)"
QUICK = Limits(shutdown=ShutdownLimits(close_seconds=0.1, terminate_seconds=0.1, kill_seconds=2))


async def until(is_so):
    with trio.fail_after(10):
        while not is_so():
            await trio.sleep(0.005)


# Bytes

ODD_BYTES = st.one_of(
    st.binary(max_size=60),
    st.lists(st.sampled_from([b"\n", b"\r\n", b"\0", b"\xff", b'{"jsonrpc":"2.0"}'])).map(b"".join),
)


SMALL = st.builds(
    Limits,
    messages=st.builds(MessageLimits, chunk_bytes=st.integers(1, 40), bytes_max=st.integers(1, 40)),
)


@given(st.lists(ODD_BYTES, max_size=12), SMALL)
@settings(max_examples=25)
def test_any_bytes_in_any_chunks_pass_unchanged_and_the_recording_gives_them_back(
    tmp_path_factory, recorded, open_proxy, chunks, limits
):
    path = tmp_path_factory.mktemp("any") / "x.jsonl"

    async def main():
        async with open_proxy(["cat"], path, limits=limits) as host:
            for chunk in chunks:
                await host.stdin.write(chunk)
            host.stdin.close()
            assert await host.read_all() == b"".join(chunks)

    trio.run(main)
    session = recorded(path)
    assert session.stream("in") == session.stream("out") == b"".join(chunks)
    assert session.counts["in_bytes"] == session.counts["out_bytes"] == len(b"".join(chunks))


async def test_half_a_line_is_forwarded_before_its_end(open_proxy, path, recorded):
    async with open_proxy(python(ECHO), path) as host:
        await host.stdin.write(b'{"half')
        assert await host.stdout.read() == b'{"half'
        assert recorded(path).kinds() == ["open"]
        await host.stdin.write(b'":1}\n')
        assert await host.stdout.read() == b'":1}\n'
        assert recorded(path).lines("out") == [b'{"half":1}']
        host.stdin.close()
        assert await host.stdout.read() == b""


class Witness(Descriptor):
    """Sees that what is written stands in the recording already."""

    def __init__(self, end, direction, stream):
        super().__init__(fd=end.fd)
        end.fd = -1
        self.direction, self.stream, self.written = direction, stream, b""

    def write_nowait(self, data, /):
        sent = self.written + bytes(data)
        whole = sent[: sent.rfind(b"\n") + 1]
        assert self.stream(self.direction).startswith(whole)
        taken = super().write_nowait(data)
        self.written += bytes(data[:taken])
        return taken


async def test_a_line_is_recorded_before_its_last_byte_is_forwarded(open_proxy, path, recorded):
    def stream(direction):
        return recorded(path).stream(direction)

    async with open_proxy(python(ECHO), path) as host:
        host.proxy.host_out = Witness(host.proxy.host_out, "out", stream)
        host.server.stdin = Witness(host.server.stdin, "in", stream)
        for chunk in (b"one\ntw", b"o\n", b"three\nfour\n", b"end"):
            await host.stdin.write(chunk)
            await trio.sleep(0.01)
        host.stdin.close()
        assert await host.read_all() == b"one\ntwo\nthree\nfour\nend"
        assert host.server.stdin.written == host.proxy.host_out.written


@pytest.mark.slow
@pytest.mark.real_time
async def test_a_host_that_does_not_read_stops_the_server_and_loses_nothing(
    open_proxy, path, recorded
):
    line = b"x" * 999 + b"\n"
    code = "import os\nfor _ in range(4000): os.write(1, b'x' * 999 + b'\\n')"
    async with open_proxy(python(code), path) as host:
        # Lines that are written one by one leave a rest of each page of the pipe unused.
        lines_bytes = PIPE_BYTES // PAGE_BYTES * (PAGE_BYTES // len(line)) * len(line)
        await until(lambda: host.journal.messages.counts["out_bytes"] > lines_bytes)
        await trio.sleep(0.2)
        assert host.journal.messages.counts["out_bytes"] <= 3 * PIPE_BYTES
        assert await host.read_all() == line * 4000
    assert recorded(path).stream("out") == line * 4000


@pytest.mark.real_time
async def test_a_server_that_does_not_read_blocks_the_host_but_not_its_own_output(open_proxy, path):
    code = """
import os, time
os.write(1, b'talk')
time.sleep(0.5)
os.write(1, b'more')
while os.read(0, 65536): pass
"""
    async with open_proxy(python(code), path) as host:
        assert await host.stdout.read() == b"talk"
        with trio.move_on_after(0.2) as scope:
            await host.stdin.write(b"x" * 4 * MIB)
        assert scope.cancelled_caught
        assert host.journal.messages.counts["in_bytes"] <= 3 * MIB  # a pipe to a child holds 1 MiB
        host.stdin.close()
        assert await host.read_all() == b"more"


async def test_a_message_of_4_mib_is_forwarded(open_proxy, path, recorded):
    frame = encode_body({"jsonrpc": "2.0", "id": 1, "method": "x" * 4 * MIB}) + b"\n"
    async with open_proxy(python(ECHO), path) as host, trio.open_nursery() as nursery:

        async def write():
            await host.stdin.write(frame)
            host.stdin.close()

        nursery.start_soon(write)
        assert await host.read_all() == frame
    session = recorded(path)
    assert session.lines("in") == session.lines("out") == [frame[:-1]]
    assert session.counts["malformed"] == 0


# The end of each side


@pytest.mark.real_time
async def test_the_end_of_the_host_is_forwarded_to_a_slow_server(open_proxy, path, recorded):
    code = """
import sys, time
data = sys.stdin.buffer.read()
time.sleep(0.3)
sys.stdout.buffer.write(data[::-1])
sys.exit(4)
"""
    async with open_proxy(python(code), path, limits=QUICK) as host:
        await host.stdin.write(b"abc\nde")
        host.stdin.close()
        assert await host.read_all() == b"ed\ncba"
    session = recorded(path)
    assert session.cause == "eof"
    assert session.kinds() == ["open", "in", "in", "shut", "out", "out", "mark", "end"]
    assert session.marks() == {"exited": 4}


@pytest.mark.real_time
async def test_a_server_may_close_its_stdout_and_read_on(open_proxy, path, recorded):
    code = """
import os, sys, time
os.write(1, b'bye')
os.close(1)
data = sys.stdin.buffer.read()
os._exit(len(data))
"""
    async with open_proxy(python(code), path) as host:
        assert await host.read_all() == b"bye"
        assert not host.ended.is_set()
        await host.stdin.write(b"seven..")
        host.stdin.close()
    assert recorded(path).marks() == {"exited": 7}
    assert recorded(path).cause == "eof"


@pytest.mark.slow
async def test_a_host_that_stops_reading_breaks_the_servers_pipe(open_proxy, path, recorded):
    code = """
import os, signal
signal.signal(signal.SIGPIPE, signal.SIG_IGN)
try:
    while True: os.write(1, b'x\\n')
except BrokenPipeError:
    os._exit(9)
"""
    async with open_proxy(python(code), path) as host:
        await host.stdout.read()
        host.stdout.close()
    assert recorded(path).marks() == {"exited": 9}


async def test_a_server_that_stops_reading_breaks_the_hosts_pipe(open_proxy, path, recorded):
    code = "import os, time\nos.close(0)\nos.write(1, b'closed')\ntime.sleep(60)"
    async with open_proxy(python(code), path, limits=QUICK) as host:
        assert await host.stdout.read() == b"closed"
        with pytest.raises(BrokenPipeError):  # noqa: PT012  whichever write it hits
            while True:
                await host.stdin.write(b"x\n")
                await trio.sleep(0)
        host.kill(signal.SIGTERM)
    assert recorded(path).cause == "signal"


async def test_a_stdin_that_cannot_be_read_is_at_its_end(open_proxy, path, recorded):
    async with open_proxy(["cat"], path) as host:
        os.dup2(os.open("/", os.O_RDONLY), host.proxy.host_in.fd)
        host.stdin.close()
        assert await host.read_all() == b""
    assert recorded(path).marks() == {"exited": 0}


async def test_the_last_output_of_a_dying_server_is_forwarded(open_proxy, path, recorded):
    code = "import os\nos.write(1, b'{}\\n' + b'x' * 60000)\nos.kill(os.getpid(), 9)"
    async with open_proxy(python(code), path) as host:
        await host.stdin.write(b"half a line")
        assert await host.read_all() == b"{}\n" + b"x" * 60000
    session = recorded(path)
    assert session.stream("out") == b"{}\n" + b"x" * 60000
    assert session.marks() == {"exited": "SIGKILL"}
    assert session.cause == "closed"


# Signals and other ends of a session

COUNTS_SIGNALS = """
import os, signal, time
received = []
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda number, frame: received.append(number))
os.write(1, b'ready')
while not received: time.sleep(0.01)
time.sleep(0.05)
os._exit(sum(received))
"""


@pytest.mark.real_time
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_is_forwarded_once(open_proxy, path, recorded, number):
    async with open_proxy(python(COUNTS_SIGNALS), path) as host:
        assert await host.stdout.read() == b"ready"
        host.kill(number)
    session = recorded(path)
    assert session.marks() == {"exited": int(number)}
    assert session.cause == "signal"


TELLS_SIGNALS = """
import os, signal, sys, time
received = []
is_child = not os.fork()
if is_child:
    os.dup2(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT), 1)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda number, frame: received.append(os.write(1, str(number).encode())))
os.write(1, b'ready')
while not received: time.sleep(0.01)
time.sleep(60 if is_child else 0.3)
"""


@pytest.mark.real_time
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_terminal_signals_reach_the_children_of_the_server(
    open_proxy, path, tmp_path, number
):
    childs = tmp_path / "child"
    async with open_proxy(python(TELLS_SIGNALS, childs), path) as host:
        assert await host.stdout.read() == b"ready"
        await until(lambda: childs.exists() and childs.read_bytes())
        host.kill(number)
        assert await host.read_all() == str(int(number)).encode()
    assert childs.read_bytes() == b"ready" + str(int(number)).encode() * (number != signal.SIGTERM)


STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_DFL)
for number in map(int, sys.argv[1:]): signal.signal(number, signal.SIG_IGN)
os.write(1, b'ready')
time.sleep(60)
"""


# How it ends: the signals that it ignores, and the steps of the shutdown that follow.
STUBBORN_UNTIL = {
    "SIGINT": ([], 0),
    "SIGTERM": ([signal.SIGINT], 1),
    "SIGKILL": ([signal.SIGINT, signal.SIGTERM], 2),
}


@pytest.mark.real_time
@pytest.mark.parametrize("ending", STUBBORN_UNTIL)
async def test_after_a_signal_a_server_has_little_time(open_proxy, path, recorded, ending):
    ignored, rungs = STUBBORN_UNTIL[ending]
    async with open_proxy(python(STUBBORN, *map(int, ignored)), path, limits=QUICK) as host:
        assert await host.stdout.read() == b"ready"
        started = time.monotonic()
        host.kill(signal.SIGINT)
        await host.ended.wait()
        assert rungs * 0.1 <= time.monotonic() - started < rungs * 0.1 + 1.5
    assert recorded(path).marks() == {"exited": ending}


@pytest.mark.real_time
async def test_after_a_signal_a_host_that_does_not_read_has_little_time_too(
    open_proxy, path, recorded
):
    code = "import os\nwhile True: os.write(1, b'x' * 65536)"
    limits = Limits(
        shutdown=ShutdownLimits(close_seconds=0.1, terminate_seconds=0.1, kill_seconds=0.1)
    )
    async with open_proxy(python(code), path, limits=limits) as host:
        await until(lambda: host.journal.messages.counts["out_bytes"] >= 2 * PIPE_BYTES)
        host.kill(signal.SIGTERM)
        await host.ended.wait()
    assert recorded(path).marks() == {"exited": "SIGTERM"}


@pytest.mark.real_time
async def test_the_death_of_the_parent_closes_stdin_and_then_terminates_the_server(
    open_proxy, path, recorded
):
    gone = subprocess.Popen([sys.executable, "-S", "-c", ""])
    gone.wait()
    code = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: os._exit(6))
os.write(1, str(len(sys.stdin.buffer.read())).encode())
signal.pause()
"""
    async with open_proxy(python(code), path, parent_pid=gone.pid, limits=QUICK) as host:
        assert (await host.read_all()).isdigit()
    session = recorded(path)
    assert session.cause == "lost"
    assert session.marks() == {"exited": 6}


LEAVES_A_CHILD = """
import os, subprocess, sys
child = subprocess.Popen(["sleep", "60"], start_new_session="apart" in sys.argv)
os.write(1, str(child.pid).encode())
"""


@pytest.mark.real_time
async def test_processes_left_by_the_server_are_killed(open_proxy, path):
    async with open_proxy(python(LEAVES_A_CHILD), path) as host:
        pid = int(await host.read_all())
    await until(lambda: not is_alive(pid))


@pytest.mark.real_time
async def test_a_descendant_elsewhere_that_holds_the_pipes_delays_no_end(
    open_proxy, path, recorded
):
    async with open_proxy(python(LEAVES_A_CHILD, "apart"), path) as host:
        pid = int(await host.read_all())
    os.kill(pid, signal.SIGKILL)
    assert recorded(path).marks() == {"exited": 0}


@pytest.mark.parametrize(("exit_status", "status"), [(0, 0), (3, 3), (-15, 143), (None, 137)])
def test_the_exit_status_is_that_of_a_shell(exit_status, status):
    assert shell_status(exit_status) == status


# Forwarding of messages between a client and a server, and the end of both.


def asking(number, method="tools/call", **params):
    message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    return json.dumps(message).encode()


def answer(number, **members):
    return json.dumps({"jsonrpc": "2.0", "id": number, "result": members}).encode()


@attrs.define
class Breaking:
    """A channel that has a reason for its end."""

    channel: object
    text: str

    async def send(self, frames):
        await self.channel.send(frames)

    async def receive(self):
        received = await self.channel.receive()
        if not received:
            raise ConnectionLost(self.text)
        return received

    async def aclose(self):
        await self.channel.aclose()


@attrs.define(eq=False)
class Ends:
    """The test's sides of what is joined."""

    client: object
    server: object
    status: int | None = None
    ended: trio.Event = attrs.field(factory=trio.Event)


async def receive_many(channel, count):
    frames = []
    with trio.fail_after(100):
        while len(frames) < count:
            frames += await channel.receive()
    return frames


@pytest.fixture
def forwarder(path):
    @asynccontextmanager
    async def forwarder(*, lost=None, buffer_bytes_max=100_000, **options):
        limits = Limits(**options)
        pair = {"limits": limits, "buffer_bytes_max": buffer_bytes_max}
        client, our_client = memory_pair(**pair)
        server, our_server = memory_pair(**pair)
        ends = Ends(client, server)
        journal = start_message_journal(path, transport="tcp", name="x", limits=limits)
        channels = {"client": our_client, "server": our_server}
        if lost is not None:
            channels[lost] = Breaking(channels[lost], "it broke")
        both = ConnectionForwarder(**channels, journal=journal, limits=limits)

        async def run():
            ends.status = await both.run(parent_pid=os.getppid())
            journal.close()
            ends.ended.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            yield ends
            await client.aclose()
            await server.aclose()

    return forwarder


async def test_messages_are_forwarded_unchanged(forwarder, path, recorded, autojump_clock):
    frames = [
        asking(1),
        b'{ "jsonrpc" : "2.0" , "method":"x"  }',
        b"[%b,%b]" % (asking(2), asking(3)),
        asking(1),
        b"no message",
        b"\xff\xfe",
    ]
    async with forwarder() as ends:
        await ends.client.send(frames)
        assert await receive_many(ends.server, len(frames)) == frames
        await ends.server.send(frames)
        assert await receive_many(ends.client, len(frames)) == frames
    assert recorded(path).lines("in") == recorded(path).lines("out") == frames
    assert recorded(path).counts["malformed"] == 4


async def test_a_slow_reader_slows_its_peer_down(forwarder, autojump_clock):
    frame = asking(1, text="x" * 1000)
    sent = []

    async def flood(channel):
        while True:
            await channel.send([frame])
            sent.append(frame)

    async with forwarder(buffer_bytes_max=5000) as ends, trio.open_nursery() as nursery:
        nursery.start_soon(flood, ends.client)
        await trio.testing.wait_all_tasks_blocked()
        stalled = len(sent)
        assert 0 < stalled < 100
        await trio.sleep(1000)
        assert len(sent) == stalled
        await receive_many(ends.server, 10)
        await trio.testing.wait_all_tasks_blocked()
        assert len(sent) > stalled
        nursery.cancel_scope.cancel()


async def test_open_requests_may_be_answered_after_the_client_has_closed(
    forwarder, path, recorded, autojump_clock
):
    async with forwarder(shutdown=ShutdownLimits(drain_seconds=5)) as ends:
        await ends.client.send([asking(1), asking(2), asking(3, "subscriptions/listen")])
        cancelled = notification_message("notifications/cancelled", requestId=2)
        await ends.client.send([json.dumps(cancelled).encode()])
        await receive_many(ends.server, 4)
        ends.client.sink.close()
        await trio.sleep(4)
        await ends.server.send([answer(1)])
        assert await receive_many(ends.client, 1) == [answer(1)]
        begin = trio.current_time()
        assert await ends.client.receive() == []
        assert await ends.server.receive() == []
    assert trio.current_time() - begin < 1
    assert ends.status == 0
    assert recorded(path).cause == "eof"


async def test_an_unanswered_request_is_waited_for_in_bounded_time(forwarder, autojump_clock):
    async with forwarder(shutdown=ShutdownLimits(drain_seconds=5)) as ends:
        await ends.client.send([asking(1)])
        await receive_many(ends.server, 1)
        ends.client.sink.close()
        begin = trio.current_time()
        assert await ends.server.receive() == []
    assert 4.9 < trio.current_time() - begin < 8


async def test_the_end_of_the_server_ends_the_client_connection(
    forwarder, path, recorded, autojump_clock
):
    async with forwarder() as ends:
        await ends.client.send([asking(1)])
        await receive_many(ends.server, 1)
        ends.server.sink.close()
        with trio.fail_after(1):
            assert await ends.client.receive() == []
    assert ends.status == 1
    assert recorded(path).cause == "lost"


@pytest.mark.parametrize("lost", ["client", "server"])
async def test_the_reason_of_a_lost_connection_is_logged_once(
    forwarder, autojump_clock, caplog, lost
):
    async with forwarder(lost=lost) as ends:
        getattr(ends, lost).sink.close()
        with trio.fail_after(1):
            other = {"client": ends.server, "server": ends.client}[lost]
            assert await other.receive() == []
    assert ends.status == 1
    assert [each.message for each in caplog.records] == ["it broke"]


async def test_an_oversized_message_fails_its_request(forwarder, path, recorded, autojump_clock):
    async with forwarder(messages=MessageLimits(bytes_max=200)) as ends:
        await ends.client.send([asking(1, text="x" * 500), asking(2)])
        assert await receive_many(ends.server, 1) == [asking(2)]
        (rejected,) = map(json.loads, await receive_many(ends.client, 1))
        assert rejected["id"] == 1
        assert "limits.messages.bytes_max (200)" in rejected["error"]["message"]
        await ends.server.send([answer(2, text="x" * 500), answer(9, text="x" * 500)])
        (failed,) = map(json.loads, await receive_many(ends.client, 1))
        assert failed["id"] == 2
        assert "limits.messages.bytes_max (200)" in failed["error"]["message"]
    session = recorded(path)
    discarded = [each for each in session.records if "discarded" in (each.envelope or {})]
    assert [each.kind for each in discarded] == ["in", "out", "out"]


async def test_an_oversized_response_fails_no_other_request(forwarder, autojump_clock):
    """Its id may stand behind what is too large, and a request of the server's is no answer."""
    upstream = json.dumps({"result": {"text": "x" * 500}, "jsonrpc": "2.0", "id": 2}).encode()
    async with forwarder(messages=MessageLimits(bytes_max=200)) as ends:
        await ends.client.send([asking(1), asking(2), asking(3, "subscriptions/listen")])
        await receive_many(ends.server, 3)
        await ends.server.send([asking(1, "roots/list", text="x" * 500), upstream, answer(1)])
        assert await receive_many(ends.client, 1) == [answer(1)]
        await ends.server.send([upstream])
        (failed,) = map(json.loads, await receive_many(ends.client, 1))
        assert failed["id"] == 2
        assert "limits.messages.bytes_max (200)" in failed["error"]["message"]


# The loss of a server that has clients over HTTP.


DECODER = Decoder(MessageLimits(json_depth_max=100))
STATELESS = "2026-07-28"
SECONDS = 20.0


@attrs.define(eq=False)
class Clogged:
    """A server that reads nothing, and dies."""

    died: trio.Event = attrs.field(factory=trio.Event)

    async def send(self, _frames):
        await trio.sleep_forever()

    async def receive(self):
        await self.died.wait()
        raise ConnectionLost("server exited with status 7")

    async def aclose(self):
        await trio.lowlevel.checkpoint()


def asked(clients, number):
    message = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {}}
    return clients.deliver(DECODER.decode(json.dumps(message).encode())).stream


async def test_all_accepted_requests_are_answered_and_recorded(path, recorded, autojump_clock):
    limits, server, clients = Limits(), Clogged(), StatelessChannel(Limits())

    async def connect():
        await trio.lowlevel.checkpoint()
        return server

    start = partial(start_message_journal, path, transport="http", name="x", limits=limits)
    _, run = BridgeApplication(
        open_connection=connect, start_journal=start, limits=limits
    ).new_session(clients)
    streams = [asked(clients, number) for number in range(3)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await trio.testing.wait_all_tasks_blocked()
        server.died.set()
        await trio.testing.wait_all_tasks_blocked()
        answers = [json.loads(each.message) for stream in streams for each in stream.take()]
        nursery.cancel_scope.cancel()
    assert [each["id"] for each in answers] == [0, 1, 2]
    assert {each["error"]["message"] for each in answers} == {"server exited with status 7"}
    assert len(recorded(path).lines("in")) == 3


async def hang_up(stream):
    """Answer the discovery, and go away within any other request."""
    while b"server/discover" in (received := await stream.receive_some()):
        result = {
            "resultType": "complete",
            "supportedVersions": [STATELESS],
            "capabilities": {"tools": {}},
            "ttlMs": 0,
            "cacheScope": "private",
        }
        answer = {"jsonrpc": "2.0", "id": json.loads(received)["id"], "result": result}
        await stream.send_all(json.dumps(answer).encode() + b"\n")
    await trio.sleep(0.1)
    await trio.aclose_forcefully(stream)


@pytest.mark.real_time
async def test_a_client_that_disconnects_during_a_request_ends_only_its_connection(
    tmp_path, caplog
):
    limits = Limits()
    start = partial(start_message_journal, tmp_path, transport="http", name="x", limits=limits)
    send_url, urls = trio.open_memory_channel(1)
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, hang_up, listeners)
            target = f"tcp://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
            application = bridge_application(
                Downstream(kind="http"), Upstream(target=target), start_journal=start, limits=limits
            )
            nursery.start_soon(
                serve_bridge, Downstream(kind="http"), application, send_url.send_nowait
            )
            async with Client(
                await urls.receive(), protocol_versions=[STATELESS], cache=False
            ) as client:
                for _ in range(2):
                    with pytest.raises(
                        RequestError, match=r"has closed the connection|reading fail"
                    ):
                        await client.call_tool("x", {"text": "y" * 4_000_000})
            nursery.cancel_scope.cancel()
    assert "a session failed" not in caplog.text
    assert "was lost" not in caplog.text


# The stream that a server's message is sent on.


VERSION = "io.modelcontextprotocol/protocolVersion"
decoder = Decoder(MessageLimits(json_depth_max=100))


def request(number, method="tools/call", **params):
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def notification_message(method, **params):
    return {"jsonrpc": "2.0", "method": method, "params": params}


def response_message(number, **members):
    return {"jsonrpc": "2.0", "id": number, "result": members}


@attrs.define
class Process:
    """Like that of a server: it has a reason for its end, but never reports the end."""

    channel: object

    async def send(self, frames):
        await self.channel.send(frames)

    async def receive(self):
        received = await self.channel.receive()
        if not received:
            raise ConnectionLost("server exited with status 7")
        return received

    async def aclose(self):
        await self.channel.aclose()


@attrs.define(eq=False)
class Scene:
    """The clients' and the server's side of what is tested."""

    clients: object
    server: object
    negotiated_version: NegotiatedVersion
    received: list = attrs.field(factory=list)

    def ask(self, message):
        """Post a message of a client; returns the stream of its answer."""
        if isinstance(self.clients, StatelessChannel):
            return self.clients.deliver(decoder.decode(json.dumps(message).encode())).stream
        return self.post(json.dumps(message).encode())

    def post(self, body):
        decoded = decoder.decode(body)
        awaited = [decoded.id] if hasattr(decoded, "id") and hasattr(decoded, "method") else []
        return self.clients.deliver(body, decoded, awaited)

    async def sent_to(self, stream):
        """Return the messages that were sent on a stream so far."""
        await trio.testing.wait_all_tasks_blocked()
        return [json.loads(queued.message) for queued in stream.take()]

    async def send(self, *messages):
        await self.server.send([json.dumps(each).encode() for each in messages])

    async def receive(self):
        while not self.received:
            with trio.fail_after(100):
                self.received += await self.server.receive()
        return self.received.pop(0)


@pytest.fixture
def scene_of(path):
    @asynccontextmanager
    async def scene_of(kind=SessionChannel, **options):
        limits = Limits(**options)
        clients, negotiated_version = kind(limits), NegotiatedVersion()
        ours, theirs = memory_pair(limits=limits, buffer_bytes_max=1000)
        served = UpstreamConnection(
            clients=clients,
            server=Process(ours),
            journal=start_message_journal(path, transport="http", name="served", limits=limits),
            negotiated_version=negotiated_version,
            limits=limits,
            is_stateless=kind is StatelessChannel,
        )

        async def run():
            await served.run(await clients.receive())
            served.journal.close()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            yield Scene(clients, theirs, negotiated_version)
            clients.end_input()

    return scene_of


async def test_a_message_belongs_to_the_request_that_it_names_or_to_the_newest(scene_of):
    async with scene_of() as scene:
        first = scene.ask(request(1, _meta={"progressToken": "t"}))
        second = scene.ask(request(2))
        assert [json.loads(await scene.receive())["id"] for _ in range(2)] == [1, 2]
        progress = notification_message("notifications/progress", progressToken="t", progress=1)
        log = notification_message("notifications/message", data="x")
        question = request("q", "roots/list")
        await scene.send(progress, log, question)
        assert await scene.sent_to(first) == [progress]
        assert await scene.sent_to(second) == [log, question]
        await scene.send(response_message(1), response_message(2), log)
        assert await scene.sent_to(first) == [response_message(1)]
        assert await scene.sent_to(second) == [response_message(2)]
        assert await scene.sent_to(scene.clients.standalone) == [log]


async def test_a_cancelled_request_is_not_open(scene_of):
    async with scene_of() as scene:
        first = scene.ask(request(1))
        scene.ask(request(2))
        scene.ask(notification_message("notifications/cancelled", requestId=2))
        log = notification_message("notifications/message", data="x")
        await trio.testing.wait_all_tasks_blocked()
        await scene.send(log, response_message(2))
        assert await scene.sent_to(first) == [log]
        assert await scene.sent_to(scene.clients.standalone) == []


async def test_an_unknown_protocol_version_is_treated_as_the_newest_legacy_version(scene_of):
    async with scene_of() as scene:
        scene.ask(request(1, "initialize"))
        await trio.testing.wait_all_tasks_blocked()
        await scene.send(response_message(1, protocolVersion="2099-01-01"))
        await trio.testing.wait_all_tasks_blocked()
        assert scene.negotiated_version.protocol_version.name == "2025-11-25"


async def test_the_negotiated_version_is_set_before_the_response_is_sent(scene_of):
    async with scene_of() as scene:
        rejected = scene.ask(request(0, "initialize"))
        error = {"jsonrpc": "2.0", "id": 0, "error": {"code": -1, "message": "no"}}
        await scene.send(error)
        assert await scene.sent_to(rejected) == [error]
        assert not scene.negotiated_version.negotiated.is_set()
        scene.ask(request(1, "initialize"))
        await trio.testing.wait_all_tasks_blocked()
        await scene.send(response_message(1, protocolVersion="2025-06-18"))
        with trio.fail_after(5):
            await scene.negotiated_version.negotiated.wait()
        assert scene.negotiated_version.protocol_version.name == "2025-06-18"


async def test_a_body_of_several_lines_is_one_line(scene_of):
    async with scene_of() as scene:
        scene.post(json.dumps(request(1), indent=2).encode())
        assert json.loads(await scene.receive()) == request(1)


async def test_a_batch_of_responses_is_split_and_invalid_members_are_dropped(
    scene_of, path, recorded
):
    async with scene_of() as scene:
        first, second = scene.ask(request(1)), scene.ask(request(2))
        await trio.testing.wait_all_tasks_blocked()
        batch = json.dumps([response_message(1), 7, response_message(2)]).encode()
        await scene.server.send([b"goodbye", batch])
        assert await scene.sent_to(first) == [response_message(1)]
        assert await scene.sent_to(second) == [response_message(2)]
    session = recorded(path)
    assert session.lines("out") == [b"goodbye", batch]
    assert session.counts["malformed"] == 2


async def test_an_answer_over_the_limit_is_an_error(scene_of, path, recorded):
    async with scene_of(messages=MessageLimits(bytes_max=100)) as scene:
        stream = scene.ask(request(1))
        await trio.testing.wait_all_tasks_blocked()
        await scene.send(
            response_message(8, text="x" * 200),
            response_message(1, text="x" * 200),
        )
        (failed,) = await scene.sent_to(stream)
        assert "limits.messages.bytes_max (100)" in failed["error"]["message"]
    envelopes = [record.envelope for record in recorded(path).records if record.kind == "out"]
    assert all(envelope["discarded"] > 200 for envelope in envelopes)


async def test_a_large_answer_without_an_id_is_that_of_the_only_request(scene_of):
    upstream = {"result": {"text": "x" * 200}, "jsonrpc": "2.0", "id": 1}
    async with scene_of(messages=MessageLimits(bytes_max=100)) as scene:
        listening = scene.ask(request(2, "subscriptions/listen"))
        stream = scene.ask(request(1))
        await trio.testing.wait_all_tasks_blocked()
        await scene.send(request(2, "roots/list", text="x" * 200), upstream)
        (failed,) = await scene.sent_to(stream)
        assert (failed["id"], failed["error"]["code"]) == (1, -32000)
        assert await scene.sent_to(listening) == []


async def test_a_cancellation_with_an_invalid_id_affects_no_request(scene_of):
    """A client chose what cannot be an id: all the others of the connection go on."""
    async with scene_of() as scene:
        stream = scene.ask(request(1))
        await scene.receive()
        for odd in ([1], {}, True, None):
            scene.post(
                json.dumps(notification_message("notifications/cancelled", requestId=odd)).encode()
            )
            await scene.receive()
        progress = notification_message("notifications/progress", progressToken=[1], progress=1)
        await scene.send(progress, response_message(1))
        assert await scene.sent_to(stream) == [response_message(1)]


async def test_an_answer_that_is_no_message_is_an_error(scene_of, path, recorded):
    async with scene_of() as scene:
        stream = scene.ask(request(1))
        await trio.testing.wait_all_tasks_blocked()
        await scene.send({"level": "error", "error": "rain"}, {"id": 1, "result": {}})
        (failed,) = await scene.sent_to(stream)
        assert "a response that is not a message" in failed["error"]["message"]
    session = recorded(path)
    assert session.counts["malformed"] == 2
    assert session.marks()["lost"]["id"] == 1


async def test_a_stateless_client_takes_no_requests(scene_of, path, recorded):
    async with scene_of(StatelessChannel) as scene:
        stream = scene.ask(request(5, _meta={VERSION: "2026-07-28"}))
        await scene.receive()
        await scene.send(request(1, "roots/list"))  # the id of the client's request, too
        rejected = json.loads(await scene.receive())
        assert (rejected["id"], rejected["error"]["code"]) == (1, -32601)
        await scene.send(response_message(1))
        assert await scene.sent_to(stream) == [response_message(5)]
    session = recorded(path)
    assert session.bodies("in")[-1] == rejected
    assert "lost" not in session.marks()  # that mark is about requests of the client


async def test_notifications_of_a_subscription_are_sent_to_its_subscriber(scene_of):
    async with scene_of(StatelessChannel) as scene:
        listening = scene.ask(request("l", "subscriptions/listen"))
        calling = scene.ask(request("c"))
        numbers = [json.loads(await scene.receive())["id"] for _ in range(2)]
        meta = {"io.modelcontextprotocol/subscriptionId": numbers[0]}
        log = notification_message("notifications/message", data="x")
        await scene.send(log, notification_message("notifications/tools/list_changed", _meta=meta))
        assert await scene.sent_to(calling) == [log]
        (notification,) = await scene.sent_to(listening)
        assert notification["params"]["_meta"] == {"io.modelcontextprotocol/subscriptionId": "l"}


async def test_a_server_that_reads_nothing_is_lost(scene_of, path, recorded, autojump_clock):
    async with scene_of(messages=MessageLimits(write_stall_seconds=5)) as scene:
        stream = scene.ask(request(1, text="x" * 3000))
        await trio.sleep(4)
        assert await scene.sent_to(stream) == []
        await trio.sleep(2)
        (failed,) = await scene.sent_to(stream)
        assert "read nothing for 5 seconds" in failed["error"]["message"]
    assert recorded(path).cause == "lost"


async def test_the_end_of_the_server_fails_open_requests(scene_of, path, recorded):
    async with scene_of() as scene:
        stream = scene.ask(request(1))
        await scene.receive()
        await scene.server.aclose()
        (failed,) = await scene.sent_to(stream)
        assert failed["error"] == {"code": -32000, "message": "server exited with status 7"}
    assert recorded(path).marks()["lost"]["error"] == "server exited with status 7"
