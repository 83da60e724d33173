"""One session with everything in it, replayed whole, cut, damaged, and under changed handlers."""

import json
import threading

import pytest
import trio

from mcp_trio import Context, Server
from mcp_trio._errors import RecordingError, ReplayDivergence
from mcp_trio._journal.records import encode_body
from mcp_trio._limits import Limits
from mcp_trio._recorder.sink import FileSink
from mcp_trio._replay import replay, replay_async

LIMITS = Limits(handlers_in_flight_max=6, drain_seconds=0.05)


async def add(state, ctx, amount):
    before = state["total"]
    await ctx.list_roots()
    state["total"] = before + amount
    return before


async def wait(state, ctx, amount):
    await state["door"].wait()
    await ctx.info("through the door")
    return amount


async def open_door(state, ctx, amount):
    await trio.sleep(0.010)
    await trio.sleep(0.010)
    await ctx.progress(1)
    state["door"].set()
    return amount


async def forever(state, ctx, amount):
    await trio.sleep_forever()


async def heartbeat(state, ctx, amount):
    async def beat():
        for number in range(1000):
            await trio.sleep(0.007)
            await ctx.progress(number)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(beat)
        await trio.sleep(amount / 1000)
        nursery.cancel_scope.cancel()
    return amount


async def in_time(state, ctx, amount):
    with trio.move_on_after(amount / 1000) as scope:
        await ctx.list_roots()
    return int(scope.cancelled_caught)


HANDLERS = (add, wait, open_door, forever, heartbeat, in_time)


def make_server(**changed):
    """The server of the recordings here, with some handlers replaced."""
    server = Server("desk", limits=LIMITS)
    state = {"total": 0, "door": trio.Event()}

    def register(handler):
        @server.tool(name=handler.__name__)
        async def tool(amount: int, *, ctx: Context) -> int:
            return await changed.get(handler.__name__, handler)(state, ctx, amount)

    for handler in HANDLERS:
        register(handler)
    return server


def call(number, name, amount, **meta):
    params = {"name": name, "arguments": {"amount": amount}, "_meta": {"progressToken": number}}
    return {"id": number, "method": "tools/call", "params": params}


def cancel(number):
    return {"method": "notifications/cancelled", "params": {"requestId": number}}


async def answer_roots(peer, *, after=0.004):
    while True:
        message = await peer.receive()
        if message.get("method") == "roots/list":
            await trio.sleep(after)
            await peer.send_result(message, {"roots": [{"uri": "file:///a"}]})


async def talk(peer, session):
    await peer.handshake(capabilities={"roots": {}})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer_roots, peer)
        await peer.send(call(1, "add", 1), call(2, "add", 10), call(3, "wait", 3))
        await peer.send(call(4, "forever", 4), call(5, "heartbeat", 30))
        await trio.sleep(0.0051)
        await peer.send({"id": 6, "method": "ping"}, call(7, "forever", 7), cancel(7))
        await peer.send(call(8, "in_time", 2), call(9, "forever", 9), call(10, "forever", 10))
        await peer.send(cancel(10), b'{"jsonrpc":"2.0","id":11,"method":"no/such"}')
        await trio.sleep(0.0051)
        await peer.send(cancel(4), call(12, "open_door", 12))
        await trio.sleep(0.0451)
        await peer.send(call(13, "add", 100), call(14, "forever", 14))
        await trio.sleep(0.0002)
        nursery.cancel_scope.cancel()


@pytest.fixture
def path(world, tmp_path):
    return world.record(make_server(), tmp_path / "desk.mcprec.jsonl", talk)


def is_out(record, request_id):
    return record["k"] == "out" and "result" in record["f"] and record["f"]["id"] == request_id


def first_of_add(world, path, ordinal):
    """The first record with an ordinal in the lanes of the two calls of `add`."""
    return world.place_of(path, lambda r: r.get("o") == ordinal and r["l"] in {"r5", "r6"})


def place_of_answer(world, path, request_id):
    return world.place_of(path, lambda record: is_out(record, request_id))


def assert_diverges(path, server=None):
    with pytest.raises(ReplayDivergence) as caught:
        replay(path, server or make_server())
    return caught.value


def test_the_session_has_what_it_should_have(world, path):
    kinds = {kind for kind, *_ in world.played(path)}
    assert kinds == {"in", "out", "res", "err", "cxl", "mark", "shut", "end"}
    unstarted = [r for r in world.records(path) if r["k"] == "cxl" and r.get("f") == "unstarted"]
    assert len(unstarted) == 2


def test_a_replay_reports_what_it_did(path, world):
    report = replay(path, make_server())
    assert report.records == len(world.played(path))
    assert report.requests == 12
    assert report.is_complete
    assert 0.06 < report.recorded_seconds < 0.2
    assert report.notes == ()


@pytest.mark.parametrize("number", range(5))
def test_order_and_bytes_are_those_of_the_recording(world, path, number):
    heard = world.replayed(path, make_server(), number=number)
    assert heard.moments == world.played(path)
    assert heard.frames == world.sent_frames(path)


async def test_a_replay_runs_inside_a_trio_program(world, tmp_path):
    path = tmp_path / "a.mcprec.jsonl"
    await trio.to_thread.run_sync(world.record, make_server(), path, talk)
    report = await replay_async(path, make_server())
    assert report.is_complete


def test_two_replays_at_once_do_not_disturb_each_other(path):
    reports = []
    threads = [
        threading.Thread(target=lambda: reports.append(replay(path, make_server())))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [report.is_complete for report in reports] == [True, True]


# Cut recordings.


def test_a_recording_cut_after_any_record_replays_up_to_there(world, path, tmp_path):
    lines = path.read_bytes().splitlines(keepends=True)
    for count in range(1, len(lines)):
        cut = world.rewrite(path, tmp_path / "cut.jsonl", lambda lines, n=count: lines[:n])
        report = replay(cut, make_server())
        assert report.records == count - 1
        assert not report.is_complete


def test_a_recording_cut_at_any_byte_of_its_last_lines_replays_up_to_there(path, tmp_path):
    content = path.read_bytes()
    cut = tmp_path / "cut.jsonl"
    start = len(b"\n".join(content.split(b"\n")[:-4]))
    for end in range(start, len(content)):
        cut.write_bytes(content[:end])
        assert not replay(cut, make_server()).is_complete


def test_what_a_cut_recording_lacks_is_no_divergence(world, path, tmp_path):
    async def another(state, ctx, amount):
        await ctx.info("more than before")

    place = place_of_answer(world, path, 12)
    cut = world.rewrite(path, tmp_path / "cut.jsonl", lambda lines: lines[: place + 1])
    replay(cut, make_server(forever=another))


# Changed recordings.


def test_each_changed_out_diverges_at_that_record(world, path, tmp_path):
    for place, record in enumerate(world.records(path)):
        if record["k"] != "out":
            continue

        def change(lines, place=place):
            lines[place] = lines[place].replace(b'"jsonrpc"', b'"jsonrqc"')

        changed = world.rewrite(path, tmp_path / "changed.jsonl", change)
        divergence = assert_diverges(changed)
        assert divergence.record == record["n"]
        assert divergence.lane == record.get("l")


@pytest.mark.parametrize("request_id", [1, 2, 3, 5, 8, 12])
def test_a_changed_in_diverges_at_the_first_out_that_it_affects(world, path, tmp_path, request_id):
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
    answer = world.records(path)[place_of_answer(world, path, request_id)]
    divergence = assert_diverges(changed)
    assert (divergence.record, divergence.lane) == (answer["n"], answer["l"])
    assert "$.id: %d became %d" % (request_id, request_id + 100) in str(divergence)


def test_each_removed_cxl_diverges_at_its_place(world, path, tmp_path):
    removed = [r["n"] for r in world.records(path) if r["k"] == "cxl"]
    assert len(removed) >= 6
    for number in removed:
        without = world.rewrite(
            path, tmp_path / "without.jsonl", lambda lines, n=number: lines[:n] + lines[n + 1 :]
        )
        divergence = assert_diverges(without)
        assert divergence.record == number
        assert "missing from the file" in str(divergence)


def test_a_removed_shut_diverges_at_its_place(world, path, tmp_path):
    number = world.place_of(path, lambda record: record["k"] == "shut")
    without = world.rewrite(
        path, tmp_path / "without.jsonl", lambda lines: lines[:number] + lines[number + 1 :]
    )
    assert assert_diverges(without).record == number


def test_a_shut_removed_without_a_trace_diverges_at_the_end_at_the_latest(world, path, tmp_path):
    async def hang_up(peer, session):
        await peer.handshake()

    path = world.record(make_server(), tmp_path / "short.mcprec.jsonl", hang_up)
    number = world.place_of(path, lambda record: record["k"] == "shut")

    def remove(lines):
        rest = [json.loads(line) for line in lines[number + 1 :]]
        renumbered = [{**record, "n": record["n"] - 1} for record in rest]
        return lines[:number] + [encode_body(record) + b"\n" for record in renumbered]

    divergence = assert_diverges(world.rewrite(path, tmp_path / "without.jsonl", remove))
    assert divergence.record >= number


def test_a_removed_answer_of_the_client_diverges_where_it_was_needed(world, path, tmp_path):
    place = world.place_of(path, lambda r: r["k"] == "in" and "result" in r["f"])
    res = world.place_of(path, lambda r: r["k"] == "res")
    without = world.rewrite(
        path, tmp_path / "without.jsonl", lambda lines: lines[:place] + lines[place + 1 :]
    )
    divergence = assert_diverges(without)
    assert (divergence.record, divergence.lane) == (place, world.records(path)[res]["l"])
    assert f"line {place + 1}: record {place + 1} where {place} should be" in str(divergence)


def test_a_removed_cancellation_by_the_client_diverges_at_the_cxl(world, path, tmp_path):
    place = world.place_of(
        path, lambda r: r["k"] == "in" and r["f"].get("params", {}).get("requestId") == 4
    )
    without = world.rewrite(
        path, tmp_path / "without.jsonl", lambda lines: lines[:place] + lines[place + 1 :]
    )
    cxl = world.place_of(path, lambda r: r["k"] == "cxl" and r["n"] > place)
    assert assert_diverges(without).record == cxl


def test_a_frame_that_was_made_unreadable_diverges_and_does_not_crash(world, path, tmp_path):
    for place, record in enumerate(world.records(path)):
        if record["k"] != "in" or record["f"].get("method") in {None, "notifications/initialized"}:
            continue
        for frame in (b'"b":"AA=="', b'"f":null', b'"f":[]', b'"f":{"method":3}', b'"f":7'):

            def change(lines, place=place, frame=frame):
                head, _, _ = lines[place].partition(b'"f":')
                lines[place] = head + frame + b"}\n"

            changed = world.rewrite(path, tmp_path / "changed.jsonl", change)
            assert assert_diverges(changed).record > place


def test_a_mark_of_another_name_diverges(world, path, tmp_path):
    place = world.place_of(path, lambda r: r["k"] == "mark")

    def rename(lines):
        lines[place] = lines[place].replace(b'"negotiated"', b'"agreed"')

    assert assert_diverges(world.rewrite(path, tmp_path / "renamed.jsonl", rename)).record == place


def test_a_frame_over_the_limit_is_replayed_from_its_head(world, tmp_path):
    limits = Limits(frame_bytes_max=400)

    async def shout(peer, session):
        await peer.handshake()
        await peer.send({"id": 1, "method": "ping", "params": {"x": "y" * 500}})
        await peer.receive()

    from mcp_trio._transports.memory import memory_pair

    channels = memory_pair(limits=limits)
    server = Server("small", limits=limits)
    path = world.record(server, tmp_path / "a.mcprec.jsonl", shout, channels=channels)
    assert any(record.get("x") for record in world.records(path))
    assert replay(path, Server("small", limits=limits)).is_complete


# Changed handlers.


async def add_in_another_order(state, ctx, amount):
    await ctx.info("before")
    return await add(state, ctx, amount)


async def add_without_asking(state, ctx, amount):
    state["total"] += amount
    return state["total"]


async def add_and_say_so(state, ctx, amount):
    before = await add(state, ctx, amount)
    await ctx.info("added")
    return before


async def add_wrongly(state, ctx, amount):
    return await add(state, ctx, amount) + 1


@pytest.mark.parametrize(
    ("handler", "ordinal"),
    [
        (add_in_another_order, 1),
        (add_without_asking, 1),
        (add_and_say_so, 3),
        (add_wrongly, 3),
    ],
)
def test_a_changed_handler_diverges_at_the_first_record_that_it_affects(
    world, path, handler, ordinal
):
    divergence = assert_diverges(path, make_server(add=handler))
    place = first_of_add(world, path, ordinal)
    assert (divergence.record, divergence.lane) == (place, world.records(path)[place]["l"])


async def without_timeout(state, ctx, amount):
    await ctx.list_roots()
    return 1


def test_a_removed_timeout_diverges_at_the_cancellation(world, path):
    divergence = assert_diverges(path, make_server(in_time=without_timeout))
    assert world.records(path)[divergence.record]["k"] == "cxl"
    assert "no longer comes to the cancellation" in str(divergence)


async def longer_sleep(state, ctx, amount):
    await trio.sleep(0.2)
    return await open_door(state, ctx, amount)


def test_a_longer_sleep_diverges_at_what_follows_it(world, path):
    divergence = assert_diverges(path, make_server(open_door=longer_sleep))
    place = world.place_of(
        path,
        lambda r: r["k"] == "out" and r["f"].get("params") == {"progressToken": 12, "progress": 1},
    )
    assert divergence.record == place


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


def test_a_child_task_that_does_more_is_named(world, tmp_path):
    async def ask(peer, session):
        await peer.handshake()
        await peer.send(call(1, "heartbeat", 1), call(2, "heartbeat", 1))
        await trio.sleep(0.1)

    recorded = make_server(heartbeat=beat_once_more)
    path = world.record(recorded, tmp_path / "a.mcprec.jsonl", ask)
    divergence = assert_diverges(path, make_server(heartbeat=beat_twice))
    assert divergence.lane in {"r5.0", "r6.0"}
    assert "something more than it did" in str(divergence)


async def endless(state, ctx, amount):
    await ctx.info("on and on")


def test_a_request_that_does_not_end_any_more_diverges(path):
    async def never(state, ctx, amount):
        await trio.sleep_forever()

    assert "no longer comes to" in str(assert_diverges(path, make_server(add=never)))


def test_the_text_tells_what_where_and_what_can_be_done(world, path):
    place = first_of_add(world, path, 1)
    record = world.records(path)[place]
    total = len(world.records(path))
    lines = str(assert_diverges(path, make_server(add=add_in_another_order))).splitlines()
    assert lines[0] == (
        f"replay diverged at record {place} of {total} (+{record['t'] / 1e6:.1f} ms),"
        f' tools/call "add", lane {record["l"]}, operation 1'
    )
    assert lines[1].startswith('  recorded: out   {"jsonrpc":"2.0","id":1,"method":"roots/list"')
    assert lines[2].startswith(
        '  replay:   out   {"jsonrpc":"2.0","method":"notifications/message"'
    )
    assert f" by lane {record['l']}, operation 1  at test_replay.py:" in lines[2]
    assert lines[3].startswith("  changed:  $.id: 1 became nothing")
    assert "  meaning:  the code now does this with something else in it: see what changed" in lines
    parked = next(line for line in lines if line.startswith("  parked:"))
    assert "r7 at test_replay.py:" in parked
    assert "(for its turn)" in parked
    assert lines[-1] == "  choose:   fix the code | record the session again"


def test_the_text_of_an_answer_says_where_its_handler_is(path):
    divergence = assert_diverges(path, make_server(add=add_wrongly))
    assert "operation 3  after at test_replay.py:" in str(divergence)


# Handlers that hold up the end.


async def shielded(state, ctx, amount):
    with trio.CancelScope(shield=True):
        await trio.sleep_forever()


async def shielded_for_an_hour(state, ctx, amount):
    with trio.CancelScope(shield=True):
        await trio.sleep(3600)


async def swallowing(state, ctx, amount):
    while True:
        try:
            await ctx.info("again")
            await trio.sleep(1)
        except Exception:  # noqa: S110
            pass


async def swallowing_all_once(state, ctx, amount):
    try:
        await ctx.info("again")
    except BaseException:
        return amount


async def spinning(state, ctx, amount):
    while True:
        await trio.sleep(0)


async def shielded_and_busy(state, ctx, amount):
    with trio.CancelScope(shield=True):
        while True:
            await trio.sleep(1)


async def exiting(state, ctx, amount):
    raise SystemExit(3)


@pytest.mark.parametrize(
    "handler",
    [
        shielded,
        shielded_for_an_hour,
        swallowing,
        swallowing_all_once,
        spinning,
        shielded_and_busy,
        exiting,
    ],
)
def test_a_divergence_ends_whatever_handlers_do(path, handler):
    before = threading.active_count()
    divergence = assert_diverges(path, make_server(add=handler, forever=handler))
    assert divergence.record > 4
    assert threading.active_count() <= before


def test_a_failure_that_no_session_survives_is_a_divergence_with_its_place(path):
    divergence = assert_diverges(path, make_server(add=exiting))
    assert "SystemExit: 3  at test_replay.py:" in str(divergence)
    assert "the replay cannot go on" in str(divergence)


def test_a_spinning_handler_is_called_that(path):
    assert "spins" in str(assert_diverges(path, make_server(add=spinning)))


def test_ctrl_c_is_not_a_divergence(path):
    async def interrupted(state, ctx, amount):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replay(path, make_server(add=interrupted))


def test_an_error_of_the_server_itself_arrives_bare(path):
    class Broken:
        def open_session(self, channel, *, sequencer):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        replay(path, Broken())


def test_an_internal_error_of_trio_is_not_hidden(path):
    class Foreign:
        def open_session(self, channel, *, sequencer):
            raise trio.TrioInternalError

    with pytest.raises(trio.TrioInternalError):
        replay(path, Foreign())


# Recordings that are refused.


def change_open(**changes):
    def change(lines):
        record = json.loads(lines[0])
        record["f"] |= changes
        lines[0] = json.dumps(record).encode() + b"\n"

    return change


def append(text):
    def change(lines):
        lines.insert(5, b'{"n":5,' + text + b',"t":1}\n')
        return lines[:6]

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (change_open(role="client"), "of role 'client'"),
        (change_open(role="proxy"), "of role 'proxy'"),
        (change_open(lifespan=True), "lifespan"),
        (change_open(format_version=99), "version 99"),
        (lambda lines: [b""], "empty"),
        (lambda lines: [b"\x80garbage\n"], "not a recording"),
        (lambda lines: lines[1:], "not a recording"),
        (append(b'"k":"mark","l":"r5","o":1,"f":{"name":"thread"}'), "in a thread"),
        (append(b'"k":"mark","l":"r5","o":1,"f":3'), "record 5"),
        (append(b'"k":"cmd","l":"r5","o":1,"f":{"name":"fetch"}'), "an effect"),
        (append(b'"k":"val","l":"r5","o":1,"f":1'), "an effect"),
        (append(b'"k":"in","c":1,"f":{}'), "one channel"),
        (append(b'"k":"in"'), "without its frame"),
        (append(b'"k":"in","x":{"discarded":"much"},"b":"AA=="'), "without its frame"),
        (append(b'"k":"shut","f":{"cause":"whim"}'), "'whim'"),
        (append(b'"k":"shut","f":{}'), "record 5"),
    ],
)
def test_what_cannot_be_replayed_is_refused(world, path, tmp_path, change, reason):
    with pytest.raises(RecordingError, match=reason):
        replay(world.rewrite(path, tmp_path / "refused.jsonl", change), make_server())


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(RecordingError, match="cannot read"):
        replay(tmp_path / "nothing.jsonl", make_server())


def test_an_unknown_kind_is_skipped_with_a_note(world, path, tmp_path):
    def add_kind(lines):
        return [*lines, b'{"n":%d,"k":"new","t":1}\n' % len(lines)]

    report = replay(world.rewrite(path, tmp_path / "newer.jsonl", add_kind), make_server())
    assert len(report.notes) == 1
    assert "'new'" in report.notes[0]


def test_a_gap_ends_what_can_be_replayed(world, path, tmp_path):
    def cut_by_gap(lines):
        gap = b'{"n":20,"k":"gap","t":1,"f":{"reason":"disk full"}}\n'
        return [*lines[:20], gap, *lines[30:]]

    report = replay(world.rewrite(path, tmp_path / "gap.jsonl", cut_by_gap), make_server())
    assert report.records == 19
    assert not report.is_complete
    assert "a gap" in report.notes[-1]


def test_a_recording_of_nothing_but_its_head_replays(world, path, tmp_path):
    head = world.rewrite(path, tmp_path / "head.jsonl", lambda lines: lines[:1])
    assert replay(head, make_server()).recorded_seconds == 0


def test_a_recording_that_is_written_just_now_replays(world, tmp_path):
    sink = FileSink(tmp_path / "a.jsonl")
    sink.write(
        b'{"n":0,"k":"open","t":0,"f":{"format_version":0,"transport":"memory","role":"server","name":"desk","version":"0","started":"now"}}\n'
    )
    sink.close()
    assert not replay(tmp_path / "a.jsonl", make_server()).is_complete
