"""Unix domain sockets and TCP with line framing, over real sockets."""

import contextlib
import os
import socket
import stat
import struct
from itertools import count

import attrs
import msgspec
import pytest
import trio
import trio.testing

from mcp_trio import ConnectionLost, Limits
from mcp_trio._transports import sockets
from mcp_trio._transports.sockets import (
    SocketHost,
    open_tcp_listeners,
    serve_sockets,
    unix_listener,
)
from mcp_trio.limits import MIB, HttpLimits, MessageLimits, ShutdownLimits
from mcp_trio.transports import PeerCredentials, open_tcp_channel, open_unix_channel

LIMITS = Limits(
    messages=MessageLimits(bytes_max=2 * MIB), shutdown=ShutdownLimits(close_seconds=0.3)
)
MESSAGE = b'{"jsonrpc":"2.0","method":"check"}'


@pytest.fixture
def listens(nursery):
    """Channels come out of a queue; returns how to reach it, and the queue."""

    async def listens(listeners, transport, *, authorize=None, limits=LIMITS):
        arrived, arrivals = trio.open_memory_channel(1000)

        async def handle(channel):
            await arrived.send(channel)
            await trio.sleep_forever()

        host = SocketHost(transport=transport, authorize=authorize, handle=handle, limits=limits)
        await nursery.start(serve_sockets, listeners, host)
        return arrivals

    return listens


@pytest.fixture
def unix_site(listens, nursery, tmp_path):
    numbers = count()

    async def unix_site(**options):
        path = tmp_path / f"{next(numbers)}.sock"

        async def hold(*, task_status):
            async with unix_listener(path) as listener:
                task_status.started(listener)
                await trio.sleep_forever()

        return path, await listens([await nursery.start(hold)], "unix", **options)

    return unix_site


@pytest.fixture
def tcp_site(listens):
    async def tcp_site(**options):
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        arrivals = await listens(listeners, "tcp", **options)
        return listeners[0].socket.getsockname()[1], arrivals

    return tcp_site


@pytest.fixture
def pairs(unix_site, tcp_site):
    sites = {}

    async def unix():
        if "unix" not in sites:
            sites["unix"] = await unix_site()
        path, arrivals = sites["unix"]
        return await open_unix_channel(path, limits=LIMITS), await arrivals.receive()

    async def tcp():
        if "tcp" not in sites:
            sites["tcp"] = await tcp_site()
        port, arrivals = sites["tcp"]
        return await open_tcp_channel("127.0.0.1", port, limits=LIMITS), await arrivals.receive()

    return {"unix": unix, "tcp": tcp}


@pytest.mark.parametrize("transport", ["unix", "tcp"])
async def test_a_channel_has_the_name_of_its_transport(pairs, transport):
    ours, theirs = await pairs[transport]()
    assert ours.transport == theirs.transport == transport
    assert ours.name.startswith(f"{transport}:")
    await ours.aclose()


async def test_closing_waits_a_bounded_time_for_the_peer(pairs, autojump_clock):
    ours, _theirs = await pairs["tcp"]()
    started = trio.current_time()
    await ours.aclose()
    assert trio.current_time() - started == pytest.approx(LIMITS.shutdown.close_seconds)


async def test_sent_messages_arrive_even_if_the_sender_left_data_unread(listens):
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    listeners[0].socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    arrivals = await listens(listeners, "tcp")
    port = listeners[0].socket.getsockname()[1]
    ours = await open_tcp_channel(
        "127.0.0.1",
        port,
        limits=msgspec.structs.replace(
            LIMITS, shutdown=msgspec.structs.replace(LIMITS.shutdown, close_seconds=30)
        ),
    )
    theirs = await arrivals.receive()
    await theirs.send([MESSAGE] * 100)
    taken = ours.send_nowait([MESSAGE] * 200_000)  # more than the system holds for the peer
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ours.aclose)
        received = []
        while messages := await theirs.receive():
            received += messages
        await theirs.aclose()
    assert len(received) in (taken - 1, taken)  # the last one was sent in part


# The socket file


@pytest.mark.requirement("SEC-08")
async def test_a_socket_file_is_private_to_its_owner_from_its_creation(tmp_path, monkeypatch):
    path = tmp_path / "s"
    umask = os.umask(0)
    try:
        async with unix_listener(path):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert os.umask(0) == 0
    finally:
        os.umask(umask)


async def test_the_socket_file_is_removed_unless_it_was_replaced(tmp_path):
    path = tmp_path / "s"
    async with unix_listener(path):
        assert path.exists()
    assert not path.exists()
    async with unix_listener(path):
        path.unlink()
        path.write_text("somebody else's")
    assert path.read_text() == "somebody else's"


async def test_the_socket_file_is_removed_although_the_working_directory_has_changed(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    async with unix_listener("s"):
        (tmp_path / "other").mkdir()
        monkeypatch.chdir(tmp_path / "other")
    assert not (tmp_path / "s").exists()


async def test_a_path_that_is_too_long_is_named(tmp_path):
    path = tmp_path / ("s" * 200)
    with pytest.raises(OSError, match="too long") as raised:
        async with unix_listener(path):
            pass
    assert raised.value.filename == str(path)


async def test_only_the_socket_of_a_dead_server_is_replaced(tmp_path):
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(os.fspath(path))
        dead.listen(0)
        with socket.socket(socket.AF_UNIX) as waits:  # in a queue that is full now
            waits.connect(os.fspath(path))
            with pytest.raises(OSError, match="another server listens"):
                async with unix_listener(path):
                    pass
    async with unix_listener(path):
        with pytest.raises(OSError, match="another server listens"):
            async with unix_listener(path):
                pass
        assert path.exists()


async def test_a_file_that_is_no_socket_is_kept(tmp_path):
    path = tmp_path / "s"
    path.write_text("precious")
    with pytest.raises(FileExistsError, match="is not a socket"):
        async with unix_listener(path):
            pass
    assert path.read_text() == "precious"


# Connecting clients


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="the system tells in another way")
async def test_the_credentials_of_a_unix_peer_are_known(unix_site):
    seen = []

    async def authorize(peer):
        seen.append(peer)
        return "me" if peer.uid == os.getuid() else None

    path, arrivals = await unix_site(authorize=authorize)
    channel = await open_unix_channel(path, limits=LIMITS)
    theirs = await arrivals.receive()
    assert theirs.auth.principal == "me"
    assert seen == [PeerCredentials(pid=os.getpid(), uid=os.getuid(), gid=os.getgid())]
    assert channel.peer.uid == os.getuid()
    await channel.aclose()


@attrs.frozen
class OnMacos:
    """Return the result of getsockopt(2), with a credential structure of some version."""

    version: int

    def getsockopt(self, level, option, _size):
        assert level == 0
        groups = [20, *range(1, 16)]
        return {
            1: struct.pack("@IIh16I", self.version, 501, 16, *groups),
            2: struct.pack("@i", 4711),
        }[option]


@pytest.mark.parametrize(
    ("version", "peer"), [(0, PeerCredentials(pid=4711, uid=501, gid=20)), (1, PeerCredentials())]
)
def test_credentials_are_read_in_the_format_of_macos(version, peer, monkeypatch):
    monkeypatch.setattr("sys.platform", "darwin")
    assert sockets._unix_credentials(OnMacos(version)) == peer


def test_on_other_systems_the_credentials_are_unknown(monkeypatch):
    monkeypatch.setattr("sys.platform", "plan9")
    assert sockets._unix_credentials(OnMacos(0)) == PeerCredentials()


async def test_a_peer_without_a_principal_is_rejected(tcp_site, caplog):
    async def authorize(peer):
        return "friend" if peer.address == "192.0.2.1" else None

    port, _arrivals = await tcp_site(authorize=authorize)
    channel = await open_tcp_channel("127.0.0.1", port, limits=LIMITS)
    assert await channel.receive() == []
    assert "authorize=" in caplog.text
    await channel.aclose()


async def test_an_exception_of_authorize_ends_only_its_connection(tcp_site, caplog):
    failures = [ValueError("no")]

    async def authorize(_peer):
        if failures:
            raise failures.pop()
        return "friend"

    port, arrivals = await tcp_site(authorize=authorize)
    channel = await open_tcp_channel("127.0.0.1", port, limits=LIMITS)
    assert await channel.receive() == []
    await channel.aclose()
    channel = await open_tcp_channel("127.0.0.1", port, limits=LIMITS)
    assert (await arrivals.receive()).auth.principal == "friend"
    await channel.aclose()
    assert "a connection failed" in caplog.text


@pytest.mark.parametrize("begin", [b"POST / HTTP/1.1\r\n\r\n" + MESSAGE + b"\n", b"\x16\x03\x01"])
async def test_an_http_request_of_a_browser_is_cut_off(tcp_site, begin):
    port, arrivals = await tcp_site()
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(begin)
        theirs = await arrivals.receive()
        with pytest.raises(ConnectionLost, match="does not send MCP messages"):
            await theirs.receive()


async def test_white_space_before_the_first_message_is_accepted(tcp_site):
    port, arrivals = await tcp_site()
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(b"\n " + MESSAGE + b"\nno JSON\n")
        theirs = await arrivals.receive()
        assert await theirs.receive() == [b" " + MESSAGE, b"no JSON"]


async def test_connections_over_the_limit_are_closed(tcp_site, caplog):
    port, arrivals = await tcp_site(
        limits=Limits(
            http=HttpLimits(connections_max=1), shutdown=ShutdownLimits(close_seconds=0.3)
        )
    )
    first = await open_tcp_channel("127.0.0.1", port, limits=LIMITS)
    await arrivals.receive()
    second = await open_tcp_channel("127.0.0.1", port, limits=LIMITS)
    assert await second.receive() == []
    assert "limits.http.connections_max" in caplog.text
    for channel in (first, second):
        await channel.aclose()


async def test_the_unfinished_messages_of_a_client_are_limited_together(tcp_site):
    limits = Limits(messages=MessageLimits(bytes_max=MIB), http=HttpLimits(bodies_bytes_max=MIB))
    port, arrivals = await tcp_site(limits=limits)
    part = b"{" + b"a" * 600_000
    received = []

    @contextlib.asynccontextmanager
    async def sending(data):
        ours = await trio.open_tcp_stream("127.0.0.1", port)
        async with ours, trio.open_nursery() as nursery:
            nursery.start_soon(ours.send_all, data)
            yield ours, await arrivals.receive(), nursery
            nursery.cancel_scope.cancel()

    async def receive(channel):
        received.extend(await channel.receive())

    with trio.fail_after(10):
        async with sending(part) as (ours, channel, nursery):
            nursery.start_soon(receive, channel)
            while channel._splitter.pending_bytes < len(part):
                await trio.lowlevel.checkpoint()
            async with sending(part) as (_, other, _):
                with pytest.raises(ConnectionLost, match=r"limits\.http\.bodies_bytes_max"):
                    await other.receive()
            await ours.send_all(b"}\n")
            while not received:
                await trio.lowlevel.checkpoint()
            # The bytes of the complete message do not count.
            async with sending(part + b"}\n") as (_, other, _):
                await receive(other)
    assert [len(each) for each in received] == [len(part) + 1] * 2


async def test_a_rejected_connection_counts_until_it_is_closed(tcp_site, caplog):
    peers = []

    async def authorize(peer):
        peers.append(peer)

    port, _arrivals = await tcp_site(
        authorize=authorize, limits=Limits(http=HttpLimits(connections_max=1))
    )
    async with await trio.open_tcp_stream("127.0.0.1", port) as first:
        assert await first.receive_some() == b""
        async with await trio.open_tcp_stream("127.0.0.1", port) as second:
            assert await second.receive_some() == b""
    assert len(peers) == 1
    assert "limits.http.connections_max" in caplog.text


async def test_the_error_names_an_unreachable_server(tmp_path):
    with pytest.raises(ConnectionLost, match=r"cannot connect to unix:.*nobody"):
        await open_unix_channel(tmp_path / "nobody")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ConnectionLost, match=f"cannot connect to tcp://127.0.0.1:{port}"):
        await open_tcp_channel("127.0.0.1", port)


async def test_a_message_sent_in_part_is_dropped_with_a_lost_peer(pairs):
    ours, theirs = await pairs["unix"]()
    os.write(ours.socket.fd, b'{"jsonrpc":')
    await ours.aclose()
    messages = [*await theirs.receive(), *await theirs.receive()]
    assert messages == [b'{"jsonrpc":']  # it is no JSON, which the decoder reports
    assert await theirs.receive() == []


async def test_a_port_in_use_is_named_with_what_to_do():
    (listener,) = await open_tcp_listeners("127.0.0.1", 0)
    port = listener.socket.getsockname()[1]
    with pytest.raises(OSError, match=f"the port is in use: choose .* one: '127.0.0.1:{port}'"):
        await open_tcp_listeners("127.0.0.1", port)
    await listener.aclose()


@pytest.mark.parametrize("port", [-1, 65_536])
async def test_a_number_that_is_no_port_is_rejected(port):
    with pytest.raises(ValueError, match=f"port={port} is not a TCP port"):
        await open_tcp_listeners("127.0.0.1", port)
