"""Replay of cancellations, and ends of sessions, that come between two steps of a handler.

The tests move and redate records, so that the recording looks like that of a machine that paused.
"""

import json

import trio

from mcp_trio import Context, Roots, Sampling, Server, ThreadContext, effect
from mcp_trio._journal.records import encode_body
from mcp_trio.errors import RequestAbandoned

STATELESS = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {"roots": {}},
}


@effect
def weigh(thing: str) -> int:
    return len(thing)


def moved(lines, place, *, before, seconds):
    """The lines, one of them before another; from there on everything is so much later."""
    records = [json.loads(line) for line in lines]
    records.insert(before, records.pop(place))
    for number, record in enumerate(records):
        record["n"] = number
        record.pop("h", None)
    records[before]["t"] = records[before - 1]["t"]
    for record in records[before:]:
        record["t"] += int(seconds * 1e9)
    return [encode_body(record) + b"\n" for record in records]


def assert_replayed(world, make_server, path, place, **moves):
    """A recording is replayed with one record moved, whatever the schedule."""
    target = path.with_name("late.mcprec.jsonl")
    late = world.rewrite(path, target, lambda lines: moved(lines, place, **moves))
    for number in range(4):
        assert world.replayed(late, make_server(), number=number).moments == world.played(late)


def test_requests_made_together_by_a_cancelled_thread_replay(world, tmp_path):
    def make_server():
        server = Server("thread")

        @server.tool
        def ask(*, ctx: ThreadContext) -> str:
            try:
                ctx.ask_all(Roots(), Sampling("Why?"))
            except RequestAbandoned:
                return "never said"

        return server

    async def client(peer, _session):
        await peer.handshake(capabilities={"roots": {}, "sampling": {}})
        await peer.send_request("tools/call", {"name": "ask"}, id=1)
        await peer.receive_many(2)
        await peer.cancel(1)
        await peer.receive_many(2)

    path = world.record(make_server(), tmp_path / "a.mcprec.jsonl", client)
    asked = world.place_of(path, lambda it: it["k"] == "out" and "." in it.get("l", ""))
    cancel = world.place_of(path, lambda it: it["k"] == "in", nth=3)
    assert_replayed(world, make_server, path, cancel, before=asked, seconds=0.001)


def test_a_suspended_handler_is_not_cancelled_by_the_end_without_a_waiting_request(world, tmp_path):
    def make_server():
        server = Server("rounds")

        @server.tool
        async def ask(*, ctx: Context) -> int:
            await ctx.list_roots()
            await ctx.sleep(0.01)
            with trio.move_on_after(0.004):
                return weigh("anchor") + await ctx.effect(weigh, "rope")
            return 0

        return server

    async def client(peer, _session):
        params = {"name": "ask", "_meta": STATELESS}
        await peer.send_request("tools/call", params, id=1)
        result = (await peer.receive())["result"]
        answers = {"inputResponses": {"q1": {"roots": []}}, "requestState": result["requestState"]}
        await peer.send_request("tools/call", params | answers, id=2)
        await peer.receive()

    path = world.record(make_server(), tmp_path / "a.mcprec.jsonl", client)
    shut = world.place_of(path, lambda it: it["k"] == "shut")
    weighed = world.place_of(path, lambda it: it["k"] == "cmd" and it["f"]["name"] == "weigh")
    assert_replayed(world, make_server, path, shut, before=weighed, seconds=0.005)


async def call_and_cancel(peer, _session):
    await peer.handshake()
    await peer.send_request("tools/call", {"name": "clean_up"}, id=1)
    await trio.sleep(0.0055)
    await peer.cancel(1)
    await trio.sleep(0.1)


def assert_replayed_though_late(world, clean_up, tmp_path):
    """The cancellation came before a raw wait had ended, though by the times it had."""

    def make_server():
        server = Server("late")
        server.tool(name="clean_up")(clean_up)
        return server

    path = world.record(make_server(), tmp_path / "a.mcprec.jsonl", call_and_cancel)
    cancel = world.place_of(path, lambda it: it["k"] == "in", nth=3)
    assert_replayed(world, make_server, path, cancel, before=cancel, seconds=0.02)


def test_a_deadline_under_a_shield_cancels_only_what_it_cancelled(world, tmp_path):
    async def clean_up(*, ctx: Context) -> None:
        try:
            await ctx.sleep(0.005)
            await trio.sleep(0.001)
        finally:
            with trio.CancelScope(shield=True):
                with trio.move_on_after(0.009):
                    await ctx.info("within")
                await ctx.info("after")

    assert_replayed_though_late(world, clean_up, tmp_path)


def test_a_lane_overtaken_by_its_cancellation_can_start_tasks_to_clean_up(world, tmp_path):
    async def clean_up(*, ctx: Context) -> None:
        try:
            await ctx.sleep(0.005)
            await trio.sleep(0.001)
            await ctx.info("never")
        finally:
            with trio.CancelScope(shield=True):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(ctx.effect, weigh, "rope")
                await ctx.info("cleaned up")

    assert_replayed_though_late(world, clean_up, tmp_path)
