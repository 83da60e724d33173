"""Which stream a server's line goes to, and what of it goes nowhere."""

import json
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
import trio.testing

from mcp_trio import ConnectionLost, Limits
from mcp_trio._jsonrpc.messages import Decoder
from mcp_trio._proxy.forwarders import NegotiatedVersion, UpstreamConnection
from mcp_trio._proxy.journal import start_message_journal
from mcp_trio._transports.http_sessions import SessionChannel, StatelessChannel
from mcp_trio.limits import MessageLimits
from mcp_trio.transports import memory_pair

VERSION = "io.modelcontextprotocol/protocolVersion"
decoder = Decoder(json_depth_max=100)


def request(number, method="tools/call", **params):
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def telling(method, **params):
    return {"jsonrpc": "2.0", "method": method, "params": params}


def answer(number, **members):
    return {"jsonrpc": "2.0", "id": number, "result": members}


@attrs.define
class Process:
    """As a server's: it never says that it has ended, but why."""

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
    heard: list = attrs.field(factory=list)

    def ask(self, message):
        """What a client posts; returns the stream of its answer."""
        if isinstance(self.clients, StatelessChannel):
            return self.clients.deliver(decoder.decode(json.dumps(message).encode())).stream
        return self.post(json.dumps(message).encode())

    def post(self, body):
        decoded = decoder.decode(body)
        awaited = [decoded.id] if hasattr(decoded, "id") and hasattr(decoded, "method") else []
        return self.clients.deliver(body, decoded, awaited)

    async def said_to(self, stream):
        """What is on its way on a stream by now."""
        await trio.testing.wait_all_tasks_blocked()
        return [json.loads(sent.frame) for sent in stream.take()]

    async def say(self, *messages):
        await self.server.send([json.dumps(each).encode() for each in messages])

    async def hear(self):
        while not self.heard:
            with trio.fail_after(100):
                self.heard += await self.server.receive()
        return self.heard.pop(0)


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
            clients.finish()

    return scene_of


async def test_a_message_belongs_to_the_request_that_it_names_or_to_the_newest(scene_of):
    async with scene_of() as scene:
        first = scene.ask(request(1, _meta={"progressToken": "t"}))
        second = scene.ask(request(2))
        assert [json.loads(await scene.hear())["id"] for _ in range(2)] == [1, 2]
        progress = telling("notifications/progress", progressToken="t", progress=1)
        log = telling("notifications/message", data="x")
        question = request("q", "roots/list")
        await scene.say(progress, log, question)
        assert await scene.said_to(first) == [progress]
        assert await scene.said_to(second) == [log, question]
        await scene.say(answer(1), answer(2), log)
        assert await scene.said_to(first) == [answer(1)]
        assert await scene.said_to(second) == [answer(2)]
        assert await scene.said_to(scene.clients.unasked) == [log]


async def test_what_a_client_has_cancelled_is_not_open_any_more(scene_of):
    async with scene_of() as scene:
        first = scene.ask(request(1))
        scene.ask(request(2))
        scene.ask(telling("notifications/cancelled", requestId=2))
        log = telling("notifications/message", data="x")
        await trio.testing.wait_all_tasks_blocked()
        await scene.say(log, answer(2))
        assert await scene.said_to(first) == [log]
        assert await scene.said_to(scene.clients.unasked) == []


async def test_a_protocol_version_that_nobody_knows_is_taken_for_the_newest_with_sessions(scene_of):
    async with scene_of() as scene:
        scene.ask(request(1, "initialize"))
        await trio.testing.wait_all_tasks_blocked()
        await scene.say(answer(1, protocolVersion="2099-01-01"))
        await trio.testing.wait_all_tasks_blocked()
        assert scene.negotiated_version.protocol_version.name == "2025-11-25"
        assert (scene.negotiated_version.peer_info, scene.negotiated_version.peer_capabilities) == (
            None,
            None,
        )


async def test_a_handshake_is_known_before_its_answer_leaves(scene_of):
    async with scene_of() as scene:
        rejected = scene.ask(request(0, "initialize"))
        error = {"jsonrpc": "2.0", "id": 0, "error": {"code": -1, "message": "no"}}
        await scene.say(error)
        assert await scene.said_to(rejected) == [error]
        assert not scene.negotiated_version.negotiated.is_set()
        scene.ask(request(1, "initialize"))
        await trio.testing.wait_all_tasks_blocked()
        await scene.say(answer(1, protocolVersion="2025-06-18"))
        with trio.fail_after(5):
            await scene.negotiated_version.negotiated.wait()
        assert scene.negotiated_version.protocol_version.name == "2025-06-18"


async def test_a_body_of_several_lines_is_one_line(scene_of):
    async with scene_of() as scene:
        scene.post(json.dumps(request(1), indent=2).encode())
        assert json.loads(await scene.hear()) == request(1)


async def test_a_batch_of_answers_is_answered_one_by_one_and_what_is_none_is_for_nobody(
    scene_of, path, recorded
):
    async with scene_of() as scene:
        first, second = scene.ask(request(1)), scene.ask(request(2))
        await trio.testing.wait_all_tasks_blocked()
        batch = json.dumps([answer(1), 7, answer(2)]).encode()
        await scene.server.send([b"goodbye", batch])
        assert await scene.said_to(first) == [answer(1)]
        assert await scene.said_to(second) == [answer(2)]
    session = recorded(path)
    assert session.lines("out") == [b"goodbye", batch]
    assert session.counts["malformed"] == 2


async def test_an_answer_over_the_limit_is_an_error(scene_of, path, recorded):
    async with scene_of(messages=MessageLimits(bytes_max=100)) as scene:
        stream = scene.ask(request(1))
        await trio.testing.wait_all_tasks_blocked()
        await scene.say(answer(8, text="x" * 200), answer(1, text="x" * 200))
        (failed,) = await scene.said_to(stream)
        assert "limits.messages.bytes_max (100)" in failed["error"]["message"]
    envelopes = [record.envelope for record in recorded(path).records if record.kind == "out"]
    assert all(envelope["discarded"] > 200 for envelope in envelopes)


async def test_a_large_answer_without_an_id_is_that_of_the_only_request(scene_of):
    upstream = {"result": {"text": "x" * 200}, "jsonrpc": "2.0", "id": 1}
    async with scene_of(messages=MessageLimits(bytes_max=100)) as scene:
        listening = scene.ask(request(2, "subscriptions/listen"))
        stream = scene.ask(request(1))
        await trio.testing.wait_all_tasks_blocked()
        await scene.say(request(2, "roots/list", text="x" * 200), upstream)
        (failed,) = await scene.said_to(stream)
        assert (failed["id"], failed["error"]["code"]) == (1, -32000)
        assert await scene.said_to(listening) == []


async def test_what_names_no_request_hurts_nobody(scene_of):
    """A client chose what cannot be an id: all the others of the connection go on."""
    async with scene_of() as scene:
        stream = scene.ask(request(1))
        await scene.hear()
        for odd in ([1], {}, True, None):
            scene.post(json.dumps(telling("notifications/cancelled", requestId=odd)).encode())
            await scene.hear()
        progress = telling("notifications/progress", progressToken=[1], progress=1)
        await scene.say(progress, answer(1))
        assert await scene.said_to(stream) == [answer(1)]


async def test_an_answer_that_is_no_message_is_an_error(scene_of, path, recorded):
    async with scene_of() as scene:
        stream = scene.ask(request(1))
        await trio.testing.wait_all_tasks_blocked()
        await scene.say({"level": "error", "error": "rain"}, {"id": 1, "result": {}})
        (failed,) = await scene.said_to(stream)
        assert "an answer that is not a message" in failed["error"]["message"]
    session = recorded(path)
    assert session.counts["malformed"] == 2
    assert session.marks()["lost"]["id"] == 1


async def test_a_stateless_client_takes_no_requests(scene_of, path, recorded):
    async with scene_of(StatelessChannel) as scene:
        stream = scene.ask(request(5, _meta={VERSION: "2026-07-28"}))
        await scene.hear()
        await scene.say(request("q", "roots/list"))
        rejected = json.loads(await scene.hear())
        assert (rejected["id"], rejected["error"]["code"]) == ("q", -32601)
        await scene.say(answer(1))
        assert await scene.said_to(stream) == [answer(5)]
    session = recorded(path)
    assert session.bodies("in")[-1] == rejected
    assert session.marks()["lost"]["id"] == "q"


async def test_what_a_subscription_tells_is_the_subscribers(scene_of):
    async with scene_of(StatelessChannel) as scene:
        listening = scene.ask(request("l", "subscriptions/listen"))
        calling = scene.ask(request("c"))
        numbers = [json.loads(await scene.hear())["id"] for _ in range(2)]
        meta = {"io.modelcontextprotocol/subscriptionId": numbers[0]}
        log = telling("notifications/message", data="x")
        await scene.say(log, telling("notifications/tools/list_changed", _meta=meta))
        assert await scene.said_to(calling) == [log]
        (told,) = await scene.said_to(listening)
        assert told["params"]["_meta"] == {"io.modelcontextprotocol/subscriptionId": "l"}


async def test_a_server_that_reads_nothing_is_lost(scene_of, path, recorded, autojump_clock):
    async with scene_of(messages=MessageLimits(write_stall_seconds=5)) as scene:
        stream = scene.ask(request(1, text="x" * 3000))
        await trio.sleep(4)
        assert await scene.said_to(stream) == []
        await trio.sleep(2)
        (failed,) = await scene.said_to(stream)
        assert "read nothing for 5 seconds" in failed["error"]["message"]
    assert recorded(path).cause == "lost"


async def test_the_end_of_the_server_is_the_answer_to_what_is_open(scene_of, path, recorded):
    async with scene_of() as scene:
        stream = scene.ask(request(1))
        await scene.hear()
        await scene.server.aclose()
        (failed,) = await scene.said_to(stream)
        assert failed["error"] == {"code": -32000, "message": "server exited with status 7"}
    assert recorded(path).marks()["lost"]["error"] == "server exited with status 7"
