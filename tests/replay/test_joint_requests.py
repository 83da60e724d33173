"""Requests that a handler makes together are one operation of its lane."""

import json
from contextlib import suppress

import pytest
import trio

from mcp_trio import Context, MCPError, RequestError, Roots, Sampling, Server, ThreadContext, effect
from mcp_trio._journal.records import encode_body
from mcp_trio.errors import RequestAbandoned

QUESTIONS = (Roots(), Sampling("Why?"))
ANSWERS = {
    "roots/list": {"roots": []},
    "sampling/createMessage": {
        "role": "assistant",
        "model": "m",
        "content": {"type": "text", "text": "So."},
    },
}


@effect
def weigh(thing: str) -> int:
    return len(thing)


def make_server():
    server = Server("together")

    @server.tool
    async def ask(*, ctx: Context) -> list[str]:
        roots, said = await ctx.ask_all(*QUESTIONS)
        await ctx.info("answered")
        return [said.model, *(root.uri for root in roots)]

    @server.tool
    async def ask_in_time(milliseconds: float, *, ctx: Context) -> bool:
        with trio.move_on_after(milliseconds / 1000) as scope:
            await ctx.ask_all(*QUESTIONS)
        return scope.cancelled_caught

    @server.tool
    async def ask_nothing(*, ctx: Context) -> list[str]:
        return list(await ctx.ask_all())

    @server.tool
    async def ask_in_vain(*, ctx: Context) -> str:
        with suppress(MCPError):
            await ctx.ask_all(*QUESTIONS, Sampling("How?"))
        return "asked"

    @server.tool
    def ask_from_thread(*, ctx: ThreadContext) -> str:
        weight = weigh("anchor")
        with suppress(RequestAbandoned):
            return f"{weigh('hawser')} {ctx.ask_all(*QUESTIONS)[1].model} {weight}"
        return "never said"

    return server


def calling(tool, *, rejected="", cancels_after=None, **arguments):
    """A client that answers the first question at once, and the second after 10 ms."""

    async def client(peer, _session):
        await peer.handshake(capabilities={"roots": {}, "sampling": {}})
        await peer.send_request("tools/call", {"name": tool, "arguments": arguments}, id=1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer, peer, nursery.cancel_scope)
            if cancels_after is not None:
                await trio.sleep(cancels_after)
                await peer.cancel(1)
                await trio.sleep(0.02)
                nursery.cancel_scope.cancel()

    async def answer(peer, scope):
        while True:
            message = await peer.receive()
            if message.get("method") == rejected:
                error = {"code": -1, "message": "no"}
                await peer.send({"id": message["id"], "error": error})
            elif "method" in message and "id" in message:
                await trio.sleep(0.005)
                await peer.send_result(message, ANSWERS[message["method"]])
            elif message.get("id") == 1:
                scope.cancel()

    return client


def told(world, path):
    """The effects of the recording, and how they ended, by the lane."""
    kinds = {"cmd", "res", "err", "cxl"}
    return [(it["k"], it["l"].count(".")) for it in world.records(path) if it["k"] in kinds]


@pytest.mark.parametrize(
    ("tool", "options"),
    [
        ("ask", {}),
        ("ask", {"cancels_after": 0.007}),
        ("ask_in_time", {"milliseconds": 3}),
        ("ask_in_time", {"milliseconds": 7}),
        ("ask_in_time", {"milliseconds": 10.5}),
        ("ask_in_time", {"milliseconds": 30}),
        ("ask_nothing", {}),
        ("ask_in_vain", {"rejected": "sampling/createMessage"}),
        ("ask_from_thread", {}),
        ("ask_from_thread", {"cancels_after": 0.002}),
        ("ask_from_thread", {"cancels_after": 0.007}),
    ],
)
def test_requests_made_together_replay(world, tmp_path, tool, options):
    path = world.record(make_server(), tmp_path / "a.mcprec.jsonl", calling(tool, **options))
    for number in range(5):
        assert world.replayed(path, make_server(), number=number).frames == world.sent_frames(path)


def test_the_wait_for_all_answers_has_an_end_of_its_own(world, tmp_path):
    path = world.record(make_server(), tmp_path / "a.mcprec.jsonl", calling("ask"))
    assert told(world, path) == [("cmd", 0), ("res", 1), ("res", 1), ("res", 0)]
    path = world.record(
        make_server(),
        tmp_path / "b.mcprec.jsonl",
        calling("ask_in_vain", rejected="sampling/createMessage"),
    )
    assert told(world, path)[-1] == ("err", 0)


def test_a_wait_cancelled_after_all_answers_is_cancelled_again(world, tmp_path):
    """As on a machine that stands still between the last answer and who waits for all of them."""
    path = world.record(
        make_server(), tmp_path / "a.mcprec.jsonl", calling("ask_in_time", milliseconds=12)
    )
    assert told(world, path)[-1] == ("res", 0)
    place = world.place_of(path, lambda it: it["k"] == "res" and "." not in it["l"])

    def stand_still(lines):
        later = [json.loads(line) for line in lines[place:]]
        later[0]["k"] = "cxl"
        later[1]["f"]["result"]["content"][0]["text"] = "true"
        for record in later:
            record["t"] += 10_000_000
        return lines[:place] + [encode_body(record) + b"\n" for record in later]

    changed = world.rewrite(path, tmp_path / "b.mcprec.jsonl", stand_still)
    assert world.replayed(changed, make_server()).frames == world.sent_frames(changed)


def test_an_error_before_a_cancellation_is_raised_again(world, tmp_path):
    async def client(peer, _session):
        await peer.handshake(capabilities={"roots": {}, "sampling": {}})
        await peer.send_request("tools/call", {"name": "ask"}, id=1)
        first, _ = await peer.receive_many(2)
        error = {"id": first["id"], "error": {"code": -1, "message": "no"}}
        cancel = {"method": "notifications/cancelled", "params": {"requestId": 1}}
        await peer.send(error, cancel)
        await peer.receive()

    path = world.record(make_server(), tmp_path / "a.mcprec.jsonl", client)
    assert told(world, path)[-2:] == [("err", 0), ("cxl", 0)]
    for number in range(5):
        heard = world.replayed(path, make_server(), number=number)
        assert heard.moments == world.played(path)


def test_the_first_of_two_rejections_is_raised(world, tmp_path):
    caught = []

    def make():
        server = Server("together")

        @server.tool
        async def ask(*, ctx: Context) -> str:
            try:
                await ctx.ask_all(*QUESTIONS)
            except RequestError as error:
                caught.append(error)
            return "asked"

        return server

    async def client(peer, _session):
        await peer.handshake(capabilities={"roots": {}, "sampling": {}})
        await peer.send_request("tools/call", {"name": "ask"}, id=1)
        asked = await peer.receive_many(2)
        rejections = [
            {"id": it["id"], "error": {"code": -1, "message": it["method"]}} for it in asked
        ]
        await peer.send(*rejections)
        await peer.receive()

    for turn in range(5):
        path = world.record(make(), tmp_path / f"{turn}.mcprec.jsonl", client)
        assert told(world, path) == [("cmd", 0), ("err", 1), ("err", 1), ("err", 0)]
        assert world.replayed(path, make()).frames == world.sent_frames(path)
    assert {error.message for error in caught} == {"roots/list"}


def test_an_effect_in_a_thread_is_no_task_of_the_handlers(world, tmp_path):
    path = world.record(make_server(), tmp_path / "a.mcprec.jsonl", calling("ask_from_thread"))
    lanes = {it["l"] for it in world.records(path) if "l" in it}
    assert {lane.partition(".")[2] for lane in lanes if "." in lane} == {"0", "1"}
