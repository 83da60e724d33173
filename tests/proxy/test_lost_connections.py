"""A server that is lost while clients over HTTP are still talking to it."""

import json
from functools import partial

import attrs
import pytest
import trio
import trio.testing

from mcp_trio import Client, ConnectionLost, Limits, RequestError
from mcp_trio._jsonrpc.messages import Decoder
from mcp_trio._proxy.bridge import (
    BridgeApplication,
    Downstream,
    Upstream,
    bridge_application,
    serve_bridge,
)
from mcp_trio._proxy.journal import start_message_journal
from mcp_trio._transports.http_sessions import StatelessChannel

DECODER = Decoder(json_depth_max=100)
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


async def test_all_requests_that_were_taken_are_answered_and_recorded(
    path, recorded, autojump_clock
):
    limits, server, clients = Limits(), Clogged(), StatelessChannel(Limits())

    async def connect():
        await trio.lowlevel.checkpoint()
        return server

    start = partial(start_message_journal, path, transport="http", name="x", limits=limits)
    _, run = BridgeApplication(open=connect, start=start, limits=limits).opened(clients)
    streams = [asked(clients, number) for number in range(3)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await trio.testing.wait_all_tasks_blocked()
        server.died.set()
        await trio.testing.wait_all_tasks_blocked()
        answers = [json.loads(sent.frame) for stream in streams for sent in stream.take()]
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
async def test_who_hangs_up_within_a_request_ends_its_connection_alone(tmp_path, caplog):
    limits = Limits()
    start = partial(start_message_journal, tmp_path, transport="http", name="x", limits=limits)
    told, urls = trio.open_memory_channel(1)
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, hang_up, listeners)
            target = f"tcp://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
            application = bridge_application(
                Downstream(kind="http"), Upstream(target=target), start=start, limits=limits
            )
            nursery.start_soon(serve_bridge, Downstream(kind="http"), application, told.send_nowait)
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
