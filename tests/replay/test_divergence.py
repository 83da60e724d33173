"""Divergences of changed handlers: their record and their report."""

import json
import re
from contextlib import suppress

import msgspec
import pytest
import trio
import trio.testing

from mcp_trio import Context, Limits, Server, ToolError, effect
from mcp_trio._journal.records import encode_body
from mcp_trio._replay import source_locations
from mcp_trio._replay.source_locations import (
    current_location,
    handler_location,
    is_alive,
    task_location,
)
from mcp_trio.errors import ReplayDivergence
from mcp_trio.examples import weather
from mcp_trio.limits import DEFAULT_LIMITS, MessageLimits, RequestLimits, ShutdownLimits
from mcp_trio.recording import replay, replay_live_async
from mcp_trio.transports import memory_pair
from tests.replay.conversations import answer, call, differences_of, result

# Changed handlers.


async def add_in_another_order(state, ctx, amount):
    await ctx.info("before")
    await ctx.list_roots()
    return 0


async def add_without_asking(state, ctx, amount):
    state["total"] += amount
    return state["total"]


async def add_and_log(state, ctx, amount):
    before = state["total"]
    await ctx.list_roots()
    await ctx.info("added")
    return before


async def add_wrongly(state, ctx, amount):
    await ctx.list_roots()
    return amount + 7


@pytest.mark.parametrize(
    ("handler", "ordinal"),
    [
        (add_in_another_order, 1),
        (add_without_asking, 1),
        (add_and_log, 3),
        (add_wrongly, 3),
    ],
)
def test_a_changed_handler_diverges_at_the_first_record_that_it_affects(
    desk, world, path, handler, ordinal
):
    divergence = desk.assert_diverges(path, desk.make_server(add=handler))
    place = desk.first_of_add(path, ordinal)
    assert (divergence.record, divergence.lane) == (place, world.records(path)[place]["l"])


async def without_timeout(state, ctx, amount):
    await ctx.list_roots()
    return 1


def test_a_removed_timeout_diverges_at_the_cancellation(desk, world, path):
    divergence = desk.assert_diverges(path, desk.make_server(in_time=without_timeout))
    assert world.records(path)[divergence.record]["k"] == "cxl"
    assert "no longer reaches the cancellation" in str(divergence)


async def longer_sleep(state, ctx, amount):
    await trio.sleep(0.2)
    await ctx.report_progress(1)
    state["door"].set()
    return amount


def test_a_longer_sleep_diverges_where_the_shorter_one_ended(desk, world, path):
    divergence = desk.assert_diverges(path, desk.make_server(open_door=longer_sleep))
    slept = world.place_of(path, lambda r: r["k"] == "in" and r["f"].get("id") == 12)
    assert divergence.lane == f"r{world.records(path)[slept]['n']}"
    assert divergence.record > slept


async def beat_once_more(state, ctx, amount):
    async def beat():
        await trio.sleep(0.001)
        await ctx.info("alive")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(beat)
    return 0


async def beat_twice(state, ctx, amount):
    async def beat():
        await trio.sleep(0.001)
        await ctx.info("alive")
        await ctx.info("alive")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(beat)
    return 0


def test_a_child_task_that_does_more_is_named(desk, world, tmp_path):
    async def ask(peer, session):
        await peer.handshake()
        await peer.send(desk.call(1, "heartbeat", 1), desk.call(2, "heartbeat", 1))
        await trio.sleep(0.1)

    recorded = desk.make_server(heartbeat=beat_once_more)
    path = world.record(recorded, tmp_path / "a.mcprec.jsonl", ask)
    divergence = desk.assert_diverges(path, desk.make_server(heartbeat=beat_twice))
    place = world.place_of(path, lambda r: r["k"] == "out" and r.get("l") in {"r5.0", "r6.0"})
    assert divergence.record == place + 1
    assert f"by lane {world.records(path)[place]['l']}, operation 2" in str(divergence)
    assert "the code did not do this send here when recorded" in str(divergence)


def test_a_request_that_does_not_end_any_more_diverges(desk, path):
    async def never(state, ctx, amount):
        await trio.sleep_forever()

    assert "no longer reaches" in str(desk.assert_diverges(path, desk.make_server(add=never)))


def test_the_report_names_records_changes_waiting_lanes_and_remedies(desk, world, path):
    place = desk.first_of_add(path, 1)
    record = world.records(path)[place]
    total = len(world.records(path))
    lines = str(desk.assert_diverges(path, desk.make_server(add=add_in_another_order))).splitlines()
    assert lines[0] == (
        f"replay diverged at record {place} of {total} (+{record['t'] / 1e6:.1f} ms),"
        f' tools/call "add", lane {record["l"]}, operation 1'
    )
    assert lines[1].startswith('  recorded:  out   {"jsonrpc":"2.0","id":1,"method":"roots/list"')
    assert lines[2].startswith(
        '  replay:    out   {"jsonrpc":"2.0","method":"notifications/message"'
    )
    assert lines[2].endswith(f" by lane {record['l']}, operation 1")
    assert re.fullmatch(
        r'  line:      at test_divergence\.py:\d+: await ctx\.info\("before"\)', lines[3]
    )
    assert lines[4].startswith("  changed:   $.id: 1 became nothing")
    assert "  meaning:   the code did not do this send here when recorded" in lines
    waiting = next(line for line in lines if line.startswith("  waiting:"))
    assert re.search(
        r"r6 in add at conftest\.py:\d+ \(not started\),"
        r" r7 in wait at conftest\.py:\d+ \(not started\)$",
        waiting,
    )
    assert lines[-1] == (
        '  choose:    fix the code | guard the change with ctx.patched("change")'
        ' | record the session again | replay(mode="outbound")'
    )


def test_the_report_of_a_changed_result_has_the_location_of_the_last_call_and_of_waiting_lanes(
    desk, path
):
    divergence = desk.assert_diverges(path, desk.make_server(add=add_wrongly))
    assert re.search(r"r7 at conftest\.py:\d+[,\n]", str(divergence))
    assert re.search(r"r6 at (test_divergence|conftest)\.py:\d+", str(divergence))
    assert re.search(
        r"line:      after the call at test_divergence\.py:\d+: await ctx\.list_roots\(\)",
        str(divergence),
    )


# Divergences of changed recordings.


# Changed recordings.


@pytest.mark.slow
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


def test_a_removed_cancellation_by_the_client_diverges_at_its_place(desk, world, path, tmp_path):
    place = world.place_of(
        path, lambda r: r["k"] == "in" and r["f"].get("params", {}).get("requestId") == 4
    )
    without = world.rewrite(
        path, tmp_path / "without.jsonl", lambda lines: lines[:place] + lines[place + 1 :]
    )
    assert desk.assert_diverges(without).record == place


@pytest.mark.slow
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
    """The last record of a lane was removed, and the later ones have new numbers."""

    def remove(lines):
        end = json.loads(lines[-1])
        return [*lines[:-2], encode_body({**end, "n": end["n"] - 1}) + b"\n"]

    last = world.records(path)[-2]
    assert last["k"] == "cxl"
    divergence = desk.assert_diverges(world.rewrite(path, path.with_name("short.jsonl"), remove))
    assert divergence.lane == last["l"]
    assert "an operation that is not in the recording" in str(divergence)


def test_a_changed_ordinal_of_an_operation_diverges(desk, world, path):
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
        lines[0] = lines[0].replace(b'"clock":"virtual"', b'"clock":"foreign"')
        record = json.loads(lines[place])
        lines[place] = encode_body({**record, "t": record["t"] - 50_000}) + b"\n"

    changed = world.rewrite(path, path.with_name("t.jsonl"), change)
    assert replay(changed, desk.make_server(), allow_damaged=True)


def test_a_deadline_before_a_record_wakes_its_task_before(world, tmp_path):
    """A pause of the machine between two sends: two sleeps of another task go on meanwhile."""
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

    def pause(lines):
        lines[0] = lines[0].replace(b'"clock":"virtual"', b'"clock":"foreign"')
        moved(lines, place, 2)

    paused = world.rewrite(path, tmp_path / "b.jsonl", pause)
    assert replay(paused, server, allow_damaged=True).is_complete


def test_an_outbound_replay_ends_whichever_line_is_missing(world, tmp_path):
    @effect
    async def fetch(key: str) -> int:
        await trio.sleep(0.001)
        return len(key)

    server = Server("missing")

    @server.tool
    async def ask(*, ctx: Context) -> int:
        return len(await ctx.list_roots())

    @server.tool
    async def fetch_both(*, ctx: Context) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fetch, "a")
            nursery.start_soon(fetch, "b")

    async def client(peer, _session):
        await peer.handshake(capabilities={"roots": {}})
        await peer.send(call(1, "ask"), call(2, "fetch_both"))
        await peer.send_result(await peer.receive(), {"roots": []})
        await peer.receive_many(2)

    path = world.record(server, tmp_path / "a.mcprec.jsonl", client)
    requests = [place for place, r in enumerate(world.records(path)) if r["k"] == "in"][2:4]
    for place in range(requests[-1] + 1, len(world.records(path)) - 1):

        def remove(lines, place=place):
            del lines[place]

        changed = world.rewrite(path, tmp_path / "b.mcprec.jsonl", remove)
        with pytest.raises(ReplayDivergence):
            replay(changed, server, mode="outbound", allow_damaged=True)


def test_a_task_woken_by_an_event_finds_the_recorded_time(world, tmp_path):
    """The clock reaches the recorded time although no deadline is near."""
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


# The kinds of divergences.


async def recorded_one(ctx):
    if ctx.patched("new"):
        await ctx.info("new")
    clock = ctx.monotonic()
    await ctx.info(["it is", clock])
    await ctx.sleep(0)
    return clock


async def without_clock(ctx):
    if ctx.patched("new"):
        await ctx.info("new")
    await ctx.info(["it is", "late"])
    await ctx.sleep(0)


async def without_guard(ctx):
    await ctx.info("newer")
    clock = ctx.monotonic()
    await ctx.info(["it is", clock])


async def ending_early(ctx):
    if ctx.patched("new"):
        await ctx.info("new")
    return ctx.monotonic()


async def failing_early(ctx):
    raise ToolError(await ending_early(ctx))


async def reading_something_else(ctx):
    if ctx.patched("new"):
        await ctx.info("new")
    ctx.now()
    await ctx.info("it is")


async def reading_at_the_guard(ctx):
    ctx.now()


async def with_a_newer_guard(ctx):
    if ctx.patched("new"):
        await ctx.info("new")
    if ctx.patched("newer"):
        await ctx.info("newer")
    clock = ctx.monotonic()
    await ctx.info(["it is", clock])
    await ctx.sleep(0)
    return clock


def make_server(handler):
    server = Server("kinds")

    @server.tool
    async def run(*, ctx: Context) -> str:
        return str(await handler(ctx))

    return server


async def call_divergence_kinds(peer, _session):
    await peer.handshake()
    await peer.send_request("tools/call", {"name": "run", "arguments": {}}, id=1)
    await peer.receive_many(3)


@pytest.mark.parametrize(
    ("handler", "found"),
    [
        (without_clock, ("missing", 3, "val")),
        (without_guard, ("missing", 1, "mark")),
        (ending_early, ("missing", 4, "out")),
        (failing_early, ("missing", 4, "out")),
        (reading_at_the_guard, ("extra", 1, "mark")),
        (reading_something_else, ("extra", 3, "val")),
    ],
)
def test_an_operation_that_is_left_out_is_missing(world, tmp_path, handler, found):
    path = world.record(
        make_server(recorded_one), tmp_path / "a.mcprec.jsonl", call_divergence_kinds
    )
    with pytest.raises(ReplayDivergence) as caught:
        replay(path, make_server(handler))
    recorded = caught.value.recorded.split(maxsplit=1)[0]
    assert (caught.value.kind, caught.value.ordinal, recorded) == found


def test_a_new_guard_before_a_reading_takes_the_old_branch(world, tmp_path):
    path = world.record(
        make_server(recorded_one), tmp_path / "a.mcprec.jsonl", call_divergence_kinds
    )
    assert replay(path, make_server(with_a_newer_guard)).is_complete


@effect
def weigh(thing: str) -> int:
    raise ValueError(thing)


async def weighing(ctx):
    with pytest.raises(ValueError, match="a feather"):
        weigh("a feather")
    await ctx.info(1)
    await ctx.info(2)


def test_an_error_of_a_reading_is_raised_again(world, tmp_path):
    path = world.record(make_server(weighing), tmp_path / "a.mcprec.jsonl", call_divergence_kinds)
    replayed = world.replayed(path, make_server(weighing))
    assert replayed.sent_messages == world.sent_frames(path)


def test_a_record_that_is_no_outcome_diverges(world, tmp_path):
    path = world.record(
        make_server(recorded_one), tmp_path / "a.mcprec.jsonl", call_divergence_kinds
    )
    place = world.place_of(path, lambda r: r["k"] == "res")

    def change(lines):
        lines[place] = lines[place].replace(b'"k":"res"', b'"k":"mark"')
        lines[place] = lines[place].replace(b'"f":null', b'"f":{"name":"a","value":1}')

    changed = world.rewrite(path, tmp_path / "changed.jsonl", change)
    with pytest.raises(ReplayDivergence) as caught:
        replay(changed, make_server(recorded_one), allow_damaged=True)
    assert caught.value.record == place


async def going_on_when_aborted(ctx):
    with suppress(BaseException):
        await ctx.info("something else")
    LEFT.append("asks")
    ctx.monotonic()
    LEFT.append("goes on")


LEFT = []


@pytest.mark.parametrize("mode", ["strict", "outbound"])
def test_no_values_are_read_after_the_end_of_a_replay(world, tmp_path, mode):
    path = world.record(
        make_server(recorded_one), tmp_path / "a.mcprec.jsonl", call_divergence_kinds
    )
    LEFT.clear()
    with pytest.raises(ReplayDivergence):
        replay(path, make_server(going_on_when_aborted), mode=mode)
    assert LEFT == ["asks"]


# Source locations of users' code.


server = Server("places")


@server.tool
async def tool(*, ctx: Context) -> None: ...


@server.prompt
async def prompt() -> str:
    return ""


@server.resource("place://{name}")
async def resource(name: str) -> str:
    return name


@server.completion(resource, "name")
async def names(typed: str) -> list[str]:
    return [typed]


@server.method("acme/method")
async def method() -> None:
    pass


def site(request):
    application = server._sessions.open_session(memory_pair()[0]).application
    return handler_location(application, request)


async def test_the_handler_of_each_kind_of_request_is_found():
    assert site(b'{"method":"tools/call","params":{"name":"tool"}}').startswith(
        "in tool at test_divergence.py:"
    )
    line = tool.__code__.co_firstlineno + 1  # after its decorator; its body is in the same line
    assert site(b'{"method":"tools/call","params":{"name":"tool"}}').endswith(f":{line}")
    assert "in prompt at " in site(b'{"method":"prompts/get","params":{"name":"prompt"}}')
    assert "in resource at " in site(b'{"method":"resources/read","params":{"uri":"place://a"}}')


async def test_the_handlers_of_completions_and_methods_are_found():
    params = (
        b'"params":{"ref":{"type":"ref/resource","uri":"place://{name}"},'
        b'"argument":{"name":"name","value":""}}'
    )
    assert site(b'{"method":"completion/complete",' + params + b"}").startswith(
        "in name of place://{name} at test_divergence.py:"
    )
    assert site(b'{"method":"acme/method"}').startswith("in acme/method at test_divergence.py:")
    assert "in acme/method at " in site(b'{"method":"acme/method","params":{"uri":3}}')


async def test_a_message_without_a_handler_has_no_location():
    unknown = b'"params":{"ref":{"type":"ref/prompt","name":"prompt"},"argument":{"name":"x"}}'
    assert site(b'{"method":"completion/complete",' + unknown + b"}") == ""
    assert site(b'{"method":"tools/list","params":{}}') == ""
    assert site(b'{"method":"tools/call","params":{"name":"none"}}') == ""
    assert site(b'{"method":"resources/read","params":{"uri":"other://a"}}') == ""
    assert site(b'{"method":"resources/read","params":{"uri":"place://.."}}') == ""
    assert site(b"[]") == ""
    assert site(b"") == ""
    assert handler_location(object(), b"{}") == ""


async def test_the_examples_count_as_user_code():
    application = weather.server._sessions.open_session(memory_pair()[0]).application
    request = b'{"method":"tools/call","params":{"name":"warmest"}}'
    assert "at weather.py:" in handler_location(application, request)
    assert source_locations._is_user_code(weather.weather.__code__)


async def test_the_location_of_a_task_is_where_its_user_code_waits():
    async def wait():
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        (task,) = nursery.child_tasks
        assert task_location(task).startswith("at test_divergence.py:")
        nursery.cancel_scope.cancel()
    assert not is_alive(task)
    assert task_location(task) == ""


async def test_the_current_location_is_that_of_the_calling_task():
    assert current_location().startswith("at test_divergence.py:")


async def test_a_task_without_user_code_has_no_location(nursery):
    ours, _ = memory_pair()
    nursery.start_soon(ours.receive)
    await trio.testing.wait_all_tasks_blocked()
    (task,) = nursery.child_tasks
    assert task_location(task) == ""
    nursery.cancel_scope.cancel()


# Changes that a session announces by itself are replayed if its handlers caused them.


OFFERS = {"tools", "resources", "prompts"}
ANNOUNCE = "announce"


async def nothing():
    pass


def make_server_announced_changes(*, changes=3, prompt=True, **options):
    """Return a server whose handlers change its lists; `changes` and `prompt` vary it."""
    server = Server(
        "fair", offers=OFFERS, limits=Limits(shutdown=ShutdownLimits(drain_seconds=0.05)), **options
    )

    @server.resource("fair://{stall}")
    async def stall(stall: str) -> str:
        return stall

    @server.tool
    async def grow(number: int, *, ctx: Context) -> int:
        for each in range(changes):
            ctx.server.tool(name=f"t{number}.{each}")(nothing)
            await trio.sleep(0.001 * each)
        await ctx.info("grown")
        ctx.server.remove_tool(f"t{number}.0")
        if prompt:
            ctx.server.prompt(name=f"p{number}")(nothing)
        ctx.server.resource_updated("fair://pie")
        return number

    @server.tool
    async def flicker(ctx: Context) -> str:
        ctx.server.resource_updated("fair://pie")
        return "done"

    return server


def call_announced_changes(request_id, name, **arguments):
    params = {"name": name, "arguments": arguments}
    return {"id": request_id, "method": "tools/call", "params": params}


async def talk(peer, session):
    await peer.handshake()
    await peer.send({"id": 1, "method": "resources/subscribe", "params": {"uri": "fair://pie"}})
    await peer.send(
        *(call_announced_changes(number, "grow", number=number) for number in (2, 3, 4))
    )
    await trio.sleep(0.0025)
    await peer.send(call_announced_changes(5, "flicker"), call_announced_changes(6, "flicker"))
    await trio.sleep(0.01)
    await peer.send({"id": 7, "method": "resources/unsubscribe", "params": {"uri": "fair://pie"}})
    await trio.sleep(0.01)
    await peer.send(call_announced_changes(8, "grow", number=8))
    await trio.sleep(0.01)


async def leave(peer, session):
    await peer.handshake()
    await peer.send(
        call_announced_changes(1, "grow", number=1), call_announced_changes(2, "flicker")
    )
    while True:
        message = await peer.receive()
        if "result" in message:
            return


@pytest.fixture
def recorded(world, tmp_path):
    def make(number=0, client=talk):
        return world.record(
            make_server_announced_changes(),
            tmp_path / f"{number}.mcprec.jsonl",
            client,
            number=number,
        )

    return make


def announced(world, path):
    return [
        r["f"]["method"] for r in world.records(path) if r.get("l") == ANNOUNCE and r["k"] == "out"
    ]


@pytest.mark.parametrize("number", range(6))
def test_announcements_are_replayed_byte_for_byte(world, recorded, number):
    path = recorded(number)
    methods = announced(world, path)
    assert {method.split("/")[1] for method in methods} == {"tools", "prompts", "resources"}
    assert len(methods) < 20  # 16 changes of tools, 4 of prompts, 5 updates
    for other in range(3):
        replayed = world.replayed(path, make_server_announced_changes(), number=other)
        assert replayed.sent_messages == world.sent_frames(path)
        assert replayed.ordered == world.played(path)


@pytest.mark.parametrize("number", range(12))
def test_a_session_that_ends_before_all_announcements_replays(world, recorded, number):
    path = recorded(number, leave)
    assert replay(path, make_server_announced_changes()).is_complete


def test_some_sessions_ended_before_all_announcements_were_sent(world, recorded):
    kinds = {
        record["k"]
        for number in range(12)
        for record in world.records(recorded(number, leave))
        if record.get("l") == ANNOUNCE
    }
    assert kinds == {"mark", "out", "cxl"}


def test_a_missing_announcement_is_a_divergence(desk, recorded):
    divergence = desk.assert_diverges(recorded(), make_server_announced_changes(prompt=False))
    assert "notifications/prompts/list_changed" in str(divergence)


def test_an_additional_announcement_is_a_divergence(desk, world, tmp_path):
    path = tmp_path / "x.mcprec.jsonl"
    world.record(make_server_announced_changes(prompt=False), path, talk)
    divergence = desk.assert_diverges(path, make_server_announced_changes())
    assert divergence.lane == ANNOUNCE


def test_a_withdrawn_update_is_replayed(world, tmp_path):
    def make():
        server = make_server_announced_changes()

        @server.tool
        async def regret(ctx: Context) -> str:
            ctx.server.resource_updated("fair://pie")
            await trio.lowlevel.checkpoint()
            await ctx.info("regretted")
            return "done"

        return server

    async def client(peer, session):
        await peer.handshake()
        subject = {"params": {"uri": "fair://pie"}}
        await peer.send({"id": 1, "method": "resources/subscribe", **subject})
        await trio.sleep(0.001)
        await peer.send(
            call_announced_changes(2, "regret"),
            {"id": 3, "method": "resources/unsubscribe", **subject},
        )
        await trio.sleep(0.001)

    kinds = set()
    for number in range(8):
        path = world.record(make(), tmp_path / f"{number}.mcprec.jsonl", client, number=number)
        kinds |= {r["k"] for r in world.records(path) if r.get("l") == ANNOUNCE}
        assert replay(path, make()).is_complete
    assert "mark" in kinds


# Live replay: an answer that cannot be decoded is not awaited.


LIMITS = msgspec.structs.replace(
    DEFAULT_LIMITS, requests=RequestLimits(idle_seconds=10), messages=MessageLimits(bytes_max=5000)
)


@pytest.mark.parametrize(
    "bad", [b'"id":%d,"result":{"a":"\\ud83d"}', b'"id":%d,"result":[]', b'"result":7,"id":%d']
)
async def test_an_invalid_answer_is_reported_at_once(recording_of, scripted, autojump_clock, bad):
    async def script(peer):
        asked = await peer.receive()
        await peer.send(b'{"jsonrpc":"2.0",%b}' % (bad % asked["id"]))
        await answer(peer)

    path = recording_of(("C", call(1)), ("S", result(1)), ("C", call(2)), ("S", result(2)))
    report = await replay_live_async(path, scripted(script), limits=LIMITS)
    assert "the response is not " in str(report)
    assert "late" not in {kind for kind, *_ in differences_of(report)}
    assert trio.current_time() < 1


async def test_an_answer_over_the_size_limit_is_reported_at_once(
    recording_of, scripted, autojump_clock
):
    async def script(peer):
        asked = await peer.receive()
        large = {"jsonrpc": "2.0", "id": asked["id"], "result": {"a": "x" * 9000}}
        await peer.send(json.dumps(large).encode())

    report = await replay_live_async(
        recording_of(("C", call(1)), ("S", result(1))), scripted(script), limits=LIMITS
    )
    assert "the response is over limits.messages.bytes_max" in str(report)
    assert trio.current_time() < 1
