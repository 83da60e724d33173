"""Divergences of changed recordings."""

import json

import pytest
import trio

from mcp_trio import Context, Limits, Server
from mcp_trio._journal.records import encode_body
from mcp_trio.limits import MessageLimits
from mcp_trio.recording import replay
from mcp_trio.transports import memory_pair

# Changed recordings.


def test_each_changed_out_diverges_at_that_record(desk, world, path, tmp_path):
    for place, record in enumerate(world.records(path)):
        if record["k"] != "out":
            continue

        def change(lines, place=place):
            lines[place] = lines[place].replace(b'"jsonrpc"', b'"jsonrqc"')

        changed = world.rewrite(path, tmp_path / "changed.jsonl", change)
        divergence = desk.assert_diverges(changed)
        assert divergence.record == record["n"]
        assert divergence.lane == record.get("l")


@pytest.mark.parametrize("request_id", [1, 2, 3, 5, 8, 12])
def test_a_changed_in_diverges_at_the_first_out_that_it_affects(
    desk, world, path, tmp_path, request_id
):
    place = world.place_of(
        path,
        lambda r: (
            r["k"] == "in" and r["f"].get("params", {}).get("name") and r["f"]["id"] == request_id
        ),
    )

    def change(lines):
        token = b'"progressToken":%d' % request_id
        lines[place] = lines[place].replace(
            b'"id":%d' % request_id, b'"id":%d' % (request_id + 100)
        )
        assert token in lines[place]

    changed = world.rewrite(path, tmp_path / "changed.jsonl", change)
    answer = world.records(path)[desk.place_of_answer(path, request_id)]
    divergence = desk.assert_diverges(changed)
    assert (divergence.record, divergence.lane) == (answer["n"], answer["l"])
    assert f"$.id: {request_id} became {request_id + 100}" in str(divergence)


def test_each_removed_cxl_diverges_at_its_place(desk, world, path, tmp_path):
    removed = [r["n"] for r in world.records(path) if r["k"] == "cxl"]
    assert len(removed) >= 6
    for number in removed:
        without = world.rewrite(
            path, tmp_path / "without.jsonl", lambda lines, n=number: lines[:n] + lines[n + 1 :]
        )
        divergence = desk.assert_diverges(without)
        assert divergence.record == number
        assert "missing from the file" in str(divergence)


def test_a_removed_shut_diverges_at_its_place(desk, world, path, tmp_path):
    number = world.place_of(path, lambda record: record["k"] == "shut")
    without = world.rewrite(
        path, tmp_path / "without.jsonl", lambda lines: lines[:number] + lines[number + 1 :]
    )
    assert desk.assert_diverges(without).record == number


def test_a_removed_and_renumbered_shut_diverges_at_the_end_at_the_latest(
    desk, world, path, tmp_path
):
    async def hang_up(peer, session):
        await peer.handshake()

    path = world.record(desk.make_server(), tmp_path / "short.mcprec.jsonl", hang_up)
    number = world.place_of(path, lambda record: record["k"] == "shut")

    def remove(lines):
        rest = [json.loads(line) for line in lines[number + 1 :]]
        renumbered = [{**record, "n": record["n"] - 1} for record in rest]
        return lines[:number] + [encode_body(record) + b"\n" for record in renumbered]

    divergence = desk.assert_diverges(world.rewrite(path, tmp_path / "without.jsonl", remove))
    assert divergence.record >= number


def test_a_removed_answer_of_the_client_diverges_where_it_was_needed(desk, world, path, tmp_path):
    place = world.place_of(path, lambda r: r["k"] == "in" and "result" in r["f"])
    res = world.place_of(path, lambda r: r["k"] == "res")
    without = world.rewrite(
        path, tmp_path / "without.jsonl", lambda lines: lines[:place] + lines[place + 1 :]
    )
    divergence = desk.assert_diverges(without)
    assert (divergence.record, divergence.lane) == (place, world.records(path)[res]["l"])
    assert f"line {place + 1}: record {place + 1} where {place} is expected" in str(divergence)


def test_a_removed_cancellation_by_the_client_diverges_at_the_cxl(desk, world, path, tmp_path):
    place = world.place_of(
        path, lambda r: r["k"] == "in" and r["f"].get("params", {}).get("requestId") == 4
    )
    without = world.rewrite(
        path, tmp_path / "without.jsonl", lambda lines: lines[:place] + lines[place + 1 :]
    )
    cxl = world.place_of(path, lambda r: r["k"] == "cxl" and r["n"] > place)
    assert desk.assert_diverges(without).record == cxl


def test_a_message_made_invalid_diverges(desk, world, path, tmp_path):
    for place, record in enumerate(world.records(path)):
        if record["k"] != "in" or record["f"].get("method") in {None, "notifications/initialized"}:
            continue
        for frame in (b'"b":"AA=="', b'"f":null', b'"f":[]', b'"f":{"method":3}', b'"f":7'):

            def change(lines, place=place, frame=frame):
                head, _, _ = lines[place].partition(b'"f":')
                lines[place] = head + frame + b"}\n"

            changed = world.rewrite(path, tmp_path / "changed.jsonl", change)
            assert desk.assert_diverges(changed).record > place


def test_a_mark_of_another_name_diverges(desk, world, path, tmp_path):
    place = world.place_of(path, lambda r: r["k"] == "mark")

    def rename(lines):
        lines[place] = lines[place].replace(b'"negotiated"', b'"agreed"')

    assert (
        desk.assert_diverges(world.rewrite(path, tmp_path / "renamed.jsonl", rename)).record
        == place
    )


def test_a_message_over_the_size_limit_replays_from_its_prefix(world, tmp_path):
    limits = Limits(messages=MessageLimits(bytes_max=400))

    async def shout(peer, session):
        await peer.handshake()
        await peer.send({"id": 1, "method": "ping", "params": {"x": "y" * 500}})
        await peer.receive()

    channels = memory_pair(limits=limits)
    server = Server("small", limits=limits)
    path = world.record(server, tmp_path / "a.mcprec.jsonl", shout, channels=channels)
    assert any(record.get("x") for record in world.records(path))
    assert replay(path, Server("small", limits=limits)).is_complete


def test_a_request_that_does_more_than_its_records_diverges_at_once(desk, world, path):
    """The last lane's end is gone, and the numbers do not show it."""

    def remove(lines):
        end = json.loads(lines[-1])
        return [*lines[:-2], encode_body({**end, "n": end["n"] - 1}) + b"\n"]

    last = world.records(path)[-2]
    assert last["k"] == "cxl"
    divergence = desk.assert_diverges(world.rewrite(path, path.with_name("short.jsonl"), remove))
    assert divergence.lane == last["l"]
    assert "an operation that is not in the recording" in str(divergence)


def test_another_ordinal_diverges(desk, world, path):
    place = desk.first_of_add(path, 1)

    def change(lines):
        lines[place] = lines[place].replace(b'"o":1,', b'"o":2,')

    divergence = desk.assert_diverges(world.rewrite(path, path.with_name("o.jsonl"), change))
    assert divergence.record == place
    assert "more or fewer operations" in str(divergence)


def test_an_unstarted_request_recorded_as_started_diverges(desk, world, path):
    place = world.place_of(path, lambda r: r.get("f") == "unstarted")

    def change(lines):
        lines[place] = lines[place].replace(b',"f":"unstarted"', b"")

    divergence = desk.assert_diverges(world.rewrite(path, path.with_name("s.jsonl"), change))
    assert divergence.record == place


def moved(lines, place, milliseconds):
    """The lines, the time of one record and those after it moved."""
    for number, line in enumerate(lines[place:], place):
        record = json.loads(line)
        lines[number] = encode_body({**record, "t": record["t"] + milliseconds * 1_000_000}) + b"\n"


def test_a_deadline_may_be_a_little_later_than_its_record(desk, world, path):
    asked = world.place_of(path, lambda r: r["k"] == "in" and r["f"].get("id") == 8)
    lane = f"r{world.records(path)[asked]['n']}"  # of `in_time`
    place = world.place_of(path, lambda r: r["k"] == "cxl" and r["l"] == lane)

    def change(lines):
        record = json.loads(lines[place])
        lines[place] = encode_body({**record, "t": record["t"] - 50_000}) + b"\n"

    assert replay(world.rewrite(path, path.with_name("t.jsonl"), change), desk.make_server())


def test_a_deadline_before_a_record_wakes_its_task_before(world, tmp_path):
    """A pause of the machine between two sends: a neighbour's two sleeps go on meanwhile."""
    server = Server("pausing")

    @server.tool
    async def send(*, ctx: Context) -> None:
        await ctx.info(1)
        await ctx.info(2)
        await trio.sleep(0.001)

    @server.tool
    async def sleep(*, ctx: Context) -> None:
        await trio.sleep(0.003)
        await trio.sleep(0.003)
        await ctx.info(3)

    async def ask(peer, _session):
        await peer.handshake()
        await peer.send_request("tools/call", {"name": "sleep", "arguments": {}}, id=1)
        await trio.sleep(0.002)
        await peer.send_request("tools/call", {"name": "send", "arguments": {}}, id=2)
        await trio.sleep(0.01)

    path = world.record(server, tmp_path / "a.mcprec.jsonl", ask)
    place = world.place_of(
        path, lambda r: r["k"] == "out" and r["f"].get("params", {}).get("data") == 2
    )
    assert world.records(path)[place - 1]["l"] == world.records(path)[place]["l"]
    paused = world.rewrite(path, tmp_path / "b.jsonl", lambda lines: moved(lines, place, 2))
    assert replay(paused, server).is_complete


def test_a_task_woken_by_an_event_finds_the_recorded_time(world, tmp_path):
    """No deadline is near that could bring the clock there."""
    server = Server("timing")
    opened = trio.Event()

    @server.tool
    async def wait() -> bool:
        began = trio.current_time()
        await opened.wait()
        return trio.current_time() - began >= 0.02

    @server.tool
    async def open_door() -> None:
        opened.set()

    async def ask(peer, _session):
        await peer.handshake()
        await peer.send_request("tools/call", {"name": "wait", "arguments": {}}, id=1)
        await trio.sleep(0.03)
        await peer.send_request("tools/call", {"name": "open_door", "arguments": {}}, id=2)
        await peer.receive_many(2)

    path = world.record(server, tmp_path / "a.mcprec.jsonl", ask)
    opened = trio.Event()
    assert replay(path, server).is_complete
