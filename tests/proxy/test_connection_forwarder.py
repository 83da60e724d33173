"""A client and a server joined frame by frame, and how the end of one is the end of the other."""

import json
import os
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
import trio.testing

from mcp_trio import ConnectionLost, Limits
from mcp_trio._proxy.forwarders import ConnectionForwarder
from mcp_trio._proxy.journal import start_message_journal
from mcp_trio.limits import MessageLimits, ShutdownLimits
from mcp_trio.transports import memory_pair


def asking(number, method="tools/call", **params):
    message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    return json.dumps(message).encode()


def answer(number, **members):
    return json.dumps({"jsonrpc": "2.0", "id": number, "result": members}).encode()


def telling(method, **params):
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode()


@attrs.define
class Breaking:
    """A channel that says why it ended."""

    channel: object
    words: str

    async def send(self, frames):
        await self.channel.send(frames)

    async def receive(self):
        received = await self.channel.receive()
        if not received:
            raise ConnectionLost(self.words)
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


async def heard(channel, count):
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


async def test_frames_pass_as_they_are_whatever_they_are(forwarder, path, recorded, autojump_clock):
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
        assert await heard(ends.server, len(frames)) == frames
        await ends.server.send(frames)
        assert await heard(ends.client, len(frames)) == frames
    assert recorded(path).lines("in") == recorded(path).lines("out") == frames
    assert recorded(path).counts["malformed"] == 4


async def test_whoever_reads_slowly_slows_the_other_down(forwarder, autojump_clock):
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
        await heard(ends.server, 10)
        await trio.testing.wait_all_tasks_blocked()
        assert len(sent) > stalled
        nursery.cancel_scope.cancel()


async def test_open_requests_have_a_while_behind_the_last_word(
    forwarder, path, recorded, autojump_clock
):
    async with forwarder(shutdown=ShutdownLimits(drain_seconds=5)) as ends:
        await ends.client.send([asking(1), asking(2), asking(3, "subscriptions/listen")])
        await ends.client.send([telling("notifications/cancelled", requestId=2)])
        await heard(ends.server, 4)
        ends.client.sink.close()
        await trio.sleep(4)
        await ends.server.send([answer(1)])
        assert await heard(ends.client, 1) == [answer(1)]
        begin = trio.current_time()
        assert await ends.client.receive() == []
        assert await ends.server.receive() == []
    assert trio.current_time() - begin < 1
    assert ends.status == 0
    assert recorded(path).cause == "eof"


async def test_what_is_never_answered_is_not_waited_for_for_ever(forwarder, autojump_clock):
    async with forwarder(shutdown=ShutdownLimits(drain_seconds=5)) as ends:
        await ends.client.send([asking(1)])
        await heard(ends.server, 1)
        ends.client.sink.close()
        begin = trio.current_time()
        assert await ends.server.receive() == []
    assert 4.9 < trio.current_time() - begin < 8


async def test_the_servers_end_is_the_clients(forwarder, path, recorded, autojump_clock):
    async with forwarder() as ends:
        await ends.client.send([asking(1)])
        await heard(ends.server, 1)
        ends.server.sink.close()
        with trio.fail_after(1):
            assert await ends.client.receive() == []
    assert ends.status == 1
    assert recorded(path).cause == "lost"


@pytest.mark.parametrize("lost", ["client", "server"])
async def test_a_reason_is_told_once(forwarder, autojump_clock, caplog, lost):
    async with forwarder(lost=lost) as ends:
        getattr(ends, lost).sink.close()
        with trio.fail_after(1):
            other = {"client": ends.server, "server": ends.client}[lost]
            assert await other.receive() == []
    assert ends.status == 1
    assert [each.message for each in caplog.records] == ["it broke"]


async def test_what_is_too_large_fails_its_request(forwarder, path, recorded, autojump_clock):
    async with forwarder(messages=MessageLimits(bytes_max=200)) as ends:
        await ends.client.send([asking(1, text="x" * 500), asking(2)])
        assert await heard(ends.server, 1) == [asking(2)]
        (rejected,) = map(json.loads, await heard(ends.client, 1))
        assert rejected["id"] == 1
        assert "limits.messages.bytes_max (200)" in rejected["error"]["message"]
        await ends.server.send([answer(2, text="x" * 500), answer(9, text="x" * 500)])
        (failed,) = map(json.loads, await heard(ends.client, 1))
        assert failed["id"] == 2
        assert "limits.messages.bytes_max (200)" in failed["error"]["message"]
    session = recorded(path)
    discarded = [each for each in session.records if "discarded" in (each.envelope or {})]
    assert [each.kind for each in discarded] == ["in", "out", "out"]


async def test_of_a_large_answer_nobody_else_s_request_fails(forwarder, autojump_clock):
    """Its id may stand behind what is too large, and a request of the server's is no answer."""
    upstream = json.dumps({"result": {"text": "x" * 500}, "jsonrpc": "2.0", "id": 2}).encode()
    async with forwarder(messages=MessageLimits(bytes_max=200)) as ends:
        await ends.client.send([asking(1), asking(2), asking(3, "subscriptions/listen")])
        await heard(ends.server, 3)
        await ends.server.send([asking(1, "roots/list", text="x" * 500), upstream, answer(1)])
        assert await heard(ends.client, 1) == [answer(1)]
        await ends.server.send([upstream])
        (failed,) = map(json.loads, await heard(ends.client, 1))
        assert failed["id"] == 2
        assert "limits.messages.bytes_max (200)" in failed["error"]["message"]
