"""Replay of a session with all kinds of records, complete and cut; rejected recordings."""

import json
import re
import threading
from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from mcp_trio import Client, Context, Limits, RequestError, Server, effect, types
from mcp_trio._replay import clock
from mcp_trio._replay.trace import load_trace
from mcp_trio.errors import NothingCompared, RecordingError, ReplayDivergence
from mcp_trio.limits import ShutdownLimits
from mcp_trio.recording import RecordOptions, Redaction, replay, replay_async, replay_live_async
from mcp_trio.testing import mock_server
from mcp_trio.transports import memory_pair


def test_the_recorded_session_covers_all_kinds_of_records(world, path):
    kinds = {kind for kind, *_ in world.played(path)}
    assert kinds == {"in", "out", "res", "err", "cxl", "mark", "shut", "end"}
    unstarted = [r for r in world.records(path) if r["k"] == "cxl" and r.get("f") == "unstarted"]
    assert len(unstarted) == 2


def test_the_report_counts_records_and_requests(desk, path, world):
    report = replay(path, desk.make_server())
    assert report.records == len(world.records(path)) - 1
    assert report.requests == 12
    assert report.is_complete
    assert 0.06 < report.recorded_seconds < 0.2
    assert report.notes == ()


@pytest.mark.parametrize("number", range(5))
def test_a_replay_sends_the_recorded_bytes_in_the_recorded_order(desk, world, path, number):
    replayed = world.replayed(path, desk.make_server(), number=number)
    assert replayed.ordered == world.played(path)
    assert replayed.sent_messages == world.sent_frames(path)


@pytest.mark.parametrize("target", ["server.py", lambda: None, None])
def test_what_is_no_server_is_rejected(path, target):
    with pytest.raises(TypeError, match=r"replay\(\) takes a Server object, not one of type "):
        replay(path, target)


async def test_a_replay_runs_inside_a_trio_program(desk, world, tmp_path):
    path = tmp_path / "a.mcprec.jsonl"
    await trio.to_thread.run_sync(world.record, desk.make_server(), path, desk.talk)
    report = await replay_async(path, desk.make_server())
    assert report.is_complete


def test_two_replays_at_once_do_not_disturb_each_other(desk, path):
    reports = []
    threads = [
        threading.Thread(target=lambda: reports.append(replay(path, desk.make_server())))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [report.is_complete for report in reports] == [True, True]


# Cut recordings.


def test_a_recording_cut_after_any_record_replays_up_to_the_cut(desk, world, path, tmp_path):
    lines = path.read_bytes().splitlines(keepends=True)
    for count in range(1 + desk.place_of_answer(path, 3), len(lines)):
        cut = world.rewrite(path, tmp_path / "cut.jsonl", lambda lines, n=count: lines[:n])
        report = replay(cut, desk.make_server())
        assert report.records == count - 1
        assert not report.is_complete


@pytest.mark.slow
def test_a_recording_cut_at_any_byte_of_its_last_lines_replays_up_to_the_cut(desk, path, tmp_path):
    content = path.read_bytes()
    cut = tmp_path / "cut.jsonl"
    start = len(b"\n".join(content.split(b"\n")[:-3]))
    for end in range(start, len(content)):
        cut.write_bytes(content[:end])
        assert not replay(cut, desk.make_server()).is_complete


def test_records_after_a_cut_are_no_divergence(desk, world, path, tmp_path):
    async def another(state, ctx, amount):
        await ctx.info("more than before")

    called = world.records(path)
    forever = {
        f"r{each['n']}"
        for each in called
        if each["k"] == "in" and each["f"].get("params", {}).get("name") == "forever"
    }
    place = world.place_of(path, lambda each: each["k"] == "cxl" and each["l"] in forever)
    cut = world.rewrite(path, tmp_path / "cut.jsonl", lambda lines: lines[:place])
    replay(cut, desk.make_server(forever=another))


# Recordings that are rejected.


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
        (change_open(format_version=99), "version 99"),
        (lambda _: [b""], "empty"),
        (lambda _: [b"\x80garbage\n"], "not a recording"),
        (lambda lines: lines[1:], "not a recording"),
        (append(b'"k":"mark","l":"r5","o":1,"f":3'), "record 5"),
        (append(b'"k":"cmd","l":"r5","o":1,"f":{}'), "record 5"),
        (append(b'"k":"val","l":"r5","o":1,"f":1'), "record 5"),
        (append(b'"k":"in"'), "without a valid message"),
        (append(b'"k":"in","x":{"discarded":"much"},"b":"AA=="'), "without a valid message"),
        (append(b'"k":"shut","f":{"cause":"whim"}'), "'whim'"),
        (append(b'"k":"shut","f":{}'), "record 5"),
    ],
)
def test_invalid_recordings_are_rejected(desk, world, path, change, reason):
    rejected = world.rewrite(path, path.with_name("refused.jsonl"), change)
    with pytest.raises(RecordingError, match=reason):
        replay(rejected, desk.make_server(), allow_damaged=True)


def test_records_of_unknown_kinds_are_skipped(desk, world, path):
    def add(lines):
        place = 1 + max(n for n, line in enumerate(lines) if b'"k":"in"' in line)
        trace = b'{"n":%d,"k":"trace","t":1,"f":{"deep":[1]}}\n' % place
        moved = [re.sub(rb"(?<=^..n..)[0-9]+", b"%d" % n, line) for n, line in enumerate(lines, 1)]
        return [*lines[:place], trace, *moved[place:]]

    later = world.rewrite(path, path.with_name("later.jsonl"), add)
    assert load_trace(later).missing == {}
    report = replay(later, desk.make_server(), allow_damaged=True)
    assert report.is_complete
    assert any("a record of kind 'trace'" in note for note in report.notes)


def test_a_record_of_a_session_that_has_not_begun_is_a_divergence(desk, world, path):
    change = append(b'"k":"in","c":1,"f":{}')
    divergence = desk.assert_diverges(world.rewrite(path, path.with_name("odd.jsonl"), change))
    assert divergence.kind == "problem"
    assert "no session has begun on channel 1" in str(divergence)


def test_a_missing_file_is_rejected(desk, tmp_path):
    with pytest.raises(RecordingError, match="cannot read"):
        replay(tmp_path / "nothing.jsonl", desk.make_server())


def test_an_unknown_kind_is_skipped_with_a_note(desk, world, path, tmp_path):
    def add_kind(lines):
        return [*lines, b'{"n":%d,"k":"new","t":1}\n' % len(lines)]

    report = replay(world.rewrite(path, tmp_path / "newer.jsonl", add_kind), desk.make_server())
    assert len(report.notes) == 1
    assert "'new'" in report.notes[0]


def test_a_replay_ends_at_a_gap(desk, world, path, tmp_path):
    def cut_by_gap(lines):
        gap = b'{"n":20,"k":"gap","t":1,"f":{"reason":"disk full"}}\n'
        return [*lines[:20], gap, *lines[30:]]

    gap = world.rewrite(path, tmp_path / "gap.jsonl", cut_by_gap)
    with pytest.raises(RecordingError, match="the recording is damaged"):
        replay(gap, desk.make_server())
    report = replay(gap, desk.make_server(), allow_damaged=True)
    assert report.records == 19
    assert not report.is_complete
    assert "a gap" in report.notes[-1]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda lines: [*lines[:20], lines[20].replace(b'"t":', b'"t":1'), *lines[21:]],
            "line .* was changed",
        ),
        (lambda lines: [*lines[:20], *lines[21:]], "record 21 where 20 is expected, and 1 more"),
        (lambda lines: [*lines[:20], lines[21], lines[20], *lines[22:]], "record 21 where 20"),
        (lambda lines: [*lines[:20], b"{\n", *lines[21:]], "line 21: not a record"),
    ],
    ids=["changed", "removed", "another order", "torn in the middle"],
)
def test_a_damaged_recording_does_not_replay_unasked(desk, world, path, tmp_path, change, text):
    damaged = world.rewrite(path, tmp_path / "damaged.jsonl", change)
    assert damaged.read_bytes() != path.read_bytes()
    with pytest.raises(RecordingError, match=f"the recording is damaged: .*{text}"):
        replay(damaged, desk.make_server())


@pytest.mark.parametrize("count", [0, 2, 3])
def test_a_recording_without_an_answered_request_fails(desk, world, path, tmp_path, count):
    """Of the handshake, `count` messages are recorded."""
    head = world.rewrite(path, tmp_path / "head.jsonl", lambda lines: lines[: count + 1])
    with pytest.raises(NothingCompared, match=r"nothing was compared: .*; record a session"):
        replay(head, desk.make_server())


async def test_handshakes_alone_are_not_compared(world, tmp_path):
    async def initialize_twice(peer, session):
        await peer.handshake()
        await peer.handshake()

    path = await trio.to_thread.run_sync(
        world.record, Server("silent"), tmp_path / "x.mcprec.jsonl", initialize_twice
    )
    with pytest.raises(NothingCompared):
        await replay_async(path, Server("silent"))


async def test_a_session_of_pings_alone_is_compared(world, tmp_path):
    async def ping(peer, session):
        await peer.handshake()
        await peer.send_request("ping", id=2)
        await peer.receive()

    path = await trio.to_thread.run_sync(
        world.record, Server("pings"), tmp_path / "x.mcprec.jsonl", ping
    )
    assert (await replay_async(path, Server("pings"))).requests == 0


async def test_a_live_replay_without_a_request_fails(desk, world, path, tmp_path):
    head = world.rewrite(path, tmp_path / "head.jsonl", lambda lines: lines[:1])
    with pytest.raises(NothingCompared, match="nothing was compared"):
        await replay_live_async(head, desk.make_server())


# Replay of servers with low-level methods only.


def make_server():
    moored = []
    server = Server(
        "bare",
        capabilities=types.ServerCapabilities(tools=types.ToolsCapability(list_changed=True)),
    )

    @server.method("tools/list")
    async def list_tools(params: types.PaginatedParams) -> types.ListToolsResult:
        tools = [types.Tool(name=name, input_schema={"type": "object"}) for name in moored]
        return types.ListToolsResult(tools=tools)

    @server.method("notifications/acme/moored")
    async def moor(params: dict) -> None:
        await trio.sleep(0.001)
        moored.append(params["name"])
        server.list_changed("tools")

    @server.method("acme/wait")
    async def wait(params: dict, ctx: Context) -> dict:
        before = len(moored)
        await ctx.report_progress(1)
        await trio.sleep(params["seconds"])
        return {"before": before, "after": len(moored)}

    return server


async def talk(peer, session):
    await peer.handshake()
    for number in range(4):
        params = {"seconds": 0.002 * number, "_meta": {"progressToken": number}}
        await peer.send(
            {"id": number, "method": "acme/wait", "params": params},
            {"method": "notifications/acme/moored", "params": {"name": f"boat {number}"}},
            {"id": f"l{number}", "method": "tools/list"},
        )
        await trio.sleep(0.0015)
    await trio.sleep(0.02)


def test_a_server_with_only_low_level_methods_replays(world, tmp_path):
    for number in range(6):
        path = world.record(make_server(), tmp_path / f"{number}.mcprec.jsonl", talk, number=number)
        report = replay(path, make_server())
        assert report.is_complete
        assert report.requests == 8
        methods = [
            record["f"].get("method") for record in world.records(path) if record["k"] == "out"
        ]
        assert methods.count("notifications/tools/list_changed") == 4
        assert methods.count("notifications/progress") == 4


# The step at which a notification is handled.


def make_counter(*, moors=True, seconds=0.0, step=1):
    """Return a server whose requests return how many notifications were handled before."""
    count = 0
    server = Server("bare", limits=Limits(shutdown=ShutdownLimits(drain_seconds=0.05)))

    async def moor(params: dict) -> None:
        nonlocal count
        count += step
        await trio.sleep(seconds)

    if moors:
        server.method("notifications/acme/moored")(moor)

    @server.method("acme/count")
    async def counted() -> dict:
        return {"count": count}

    return server


MOORED = {"method": "notifications/acme/moored"}


async def moor_and_count(peer, session):
    await peer.handshake()
    for number in range(6):
        count = [{"id": f"{number} {place}", "method": "acme/count"} for place in "ab"]
        await peer.send(count[0], MOORED, count[1])
        await trio.sleep(0.001)


def notification_records(world, path):
    """Return the members of the records of notifications, without the message."""
    return [(r["k"], r["o"]) for r in world.records(path) if r.get("l", "").startswith("n")]


@pytest.mark.parametrize("number", range(8))
def test_requests_see_the_state_that_a_notification_handler_left(world, tmp_path, number):
    path = world.record(make_counter(), tmp_path / "x.mcprec.jsonl", moor_and_count, number=number)
    assert notification_records(world, path) == [("mark", 1)] * 6
    replayed = world.replayed(path, make_counter(), number=number + 1)
    assert replayed.sent_messages == world.sent_frames(path)
    assert replayed.ordered == world.played(path)


def test_a_session_that_ends_before_all_notifications_are_handled_replays(world, tmp_path):
    async def flood_and_close(peer, session):
        await peer.handshake()
        await peer.send_request("ping", id=1)
        await peer.send(*[MOORED] * 5)
        await trio.sleep(0.005)
        session.shut("closed")

    path = tmp_path / "x.mcprec.jsonl"
    world.record(make_counter(seconds=1.5), path, flood_and_close)
    assert notification_records(world, path) == [("mark", 1)] * 2 + [("cxl", 1)] * 3
    assert replay(path, make_counter(seconds=1.5)).is_complete


@pytest.mark.parametrize(("before", "after"), [(True, False), (False, True)])
def test_a_notification_handled_by_only_one_server_is_a_divergence(
    world, desk, tmp_path, before, after
):
    path = tmp_path / "x.mcprec.jsonl"
    world.record(make_counter(moors=before), path, moor_and_count)
    divergence = desk.assert_diverges(path, make_counter(moors=after))
    assert divergence.lane.startswith("n")
    assert "notifications/acme/moored, lane n" in str(divergence)


def test_a_divergence_names_the_handler_of_the_method(world, desk, tmp_path):
    path = world.record(make_counter(), tmp_path / "x.mcprec.jsonl", moor_and_count)
    divergence = desk.assert_diverges(path, make_counter(step=2))
    assert "in acme/count at test_replay.py:" in str(divergence)


# Replay of recordings in segments, compressed, and with unknown keys.


@effect
async def fetch(number: int) -> str:
    await trio.sleep(0.001)
    return f"page {number}"


def make_server_recording_files():
    server = Server("files")

    @server.tool
    async def run(number: int, *, ctx: Context) -> list[str]:
        with ctx.timeout(5):
            page = await fetch(number)
        async with ctx.lock("door"):
            await ctx.info(ctx.now().isoformat())
        return [page, str(ctx.patched("new")), str(ctx.uuid4())]

    return server


async def call(peer, _session):
    await peer.handshake()
    for number in range(4):
        params = {"name": "run", "arguments": {"number": number}}
        await peer.send_request("tools/call", params, id=number)
    await peer.receive_many(8)


@pytest.mark.parametrize("name", ["a.mcprec.jsonl", "a.mcprec.jsonl.zst"])
@pytest.mark.parametrize("segment_bytes_max", [None, 1000])
def test_a_recording_replays_in_segments_and_compressed(world, tmp_path, name, segment_bytes_max):
    path = tmp_path / name
    options = RecordOptions(path, segment_bytes_max=segment_bytes_max)
    world.record(make_server_recording_files(), options, call)
    assert len(list(tmp_path.iterdir())) > 1 or segment_bytes_max is None
    replayed = world.replayed(path, make_server_recording_files())
    assert replayed.sent_messages == world.sent_frames(path)
    assert replayed.ordered == world.played(path)


def test_unknown_keys_are_ignored(world, tmp_path):
    path = world.record(make_server_recording_files(), tmp_path / "a.mcprec.jsonl", call)

    def add_keys(lines):
        for place, line in enumerate(lines):
            record = json.loads(line)
            record.pop("h", None)
            if isinstance(record.get("f"), dict) and record["k"] in {"open", "mark", "val"}:
                record["f"]["later"] = {"deep": [1]}
            record["z"] = "new"
            lines[place] = json.dumps(record, separators=(",", ":")).encode() + b"\n"

    newer = world.rewrite(path, tmp_path / "newer.jsonl", add_keys)
    assert [r.kind for r in load_trace(newer).journal] == [r.kind for r in load_trace(path).journal]
    assert replay(newer, make_server_recording_files()).is_complete


# Replay of redacted recordings, with and without the key.


SECRET = "hunter2-hunter2"
KEY = b"0123456789abcdef"


@effect
async def log_in(password: str) -> str:
    return f"session of {password}"


async def passing_on(ctx, password):
    session = await log_in(password)
    await ctx.info({"password": password, "session": session})
    return session


async def deciding(ctx, password):
    await ctx.info({"password": password.swapcase()})
    return ""


async def own_secret(ctx, password):
    await ctx.info({"api_key": "sk-of-the-server-itself"})
    return ""


def make_server_redacted(handler):
    server = Server("secrets")

    @server.tool
    async def run(password: str, *, ctx: Context) -> str:
        return await handler(ctx, password)

    return server


async def client(peer, _session):
    await peer.handshake()
    params = {"name": "run", "arguments": {"password": SECRET}}
    await peer.send_request("tools/call", params, id=1)
    while "result" not in await peer.receive():
        pass


@pytest.fixture
def recorded(world, tmp_path):
    def make(handler):
        path = tmp_path / "a.mcprec.jsonl"
        options = RecordOptions(path, redaction=Redaction(key=KEY))
        world.record(make_server_redacted(handler), options, client)
        assert SECRET.encode() not in path.read_bytes()
        return path

    return make


@pytest.mark.parametrize("key", [KEY, None])
def test_a_redacted_recording_replays(recorded, key):
    path = recorded(passing_on)
    assert replay(path, make_server_redacted(passing_on), key=key).is_complete


def test_without_the_key_a_secret_that_the_server_returns_diverges(recorded):
    path = recorded(own_secret)
    with pytest.raises(ReplayDivergence) as caught:
        replay(path, make_server_redacted(own_secret))
    assert caught.value.kind == "redacted"
    assert "was redacted in the recording" in str(caught.value)


def test_another_key_is_rejected(recorded):
    with pytest.raises(RecordingError, match="key"):
        replay(recorded(passing_on), make_server_redacted(passing_on), key=b"another key, as long")


def test_code_that_depends_on_a_redacted_value_diverges_as_redacted(recorded):
    path = recorded(deciding)
    with pytest.raises(ReplayDivergence) as caught:
        replay(path, make_server_redacted(deciding))
    assert caught.value.kind == "redacted"


# Every replay ends, whatever its handlers do, and leaves no task behind.


@pytest.fixture
def soon(monkeypatch):
    """Let a loop without waits count as one after fewer readings of the clock, to save time."""
    monkeypatch.setattr(clock, "_READINGS_MAX", 2_000)
    monkeypatch.setattr(clock, "_READINGS_AFTER_END_MAX", 500)


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
        except Exception:
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


async def exiting_when_aborted(state, ctx, amount):
    try:
        await ctx.info("again")
    except BaseException as error:
        raise SystemExit(3) from error


async def exiting(state, ctx, amount):
    raise SystemExit(3)


@pytest.mark.usefixtures("soon")
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
        exiting_when_aborted,
    ],
)
def test_a_divergence_ends_whatever_handlers_do(desk, path, handler):
    before = threading.active_count()
    divergence = desk.assert_diverges(path, desk.make_server(add=handler, forever=handler))
    assert divergence.record > 4
    assert threading.active_count() <= before


@pytest.mark.usefixtures("soon")
def test_an_error_that_ends_the_session_is_a_divergence_with_a_location(desk, path):
    divergence = desk.assert_diverges(path, desk.make_server(add=exiting))
    assert "SystemExit: 3  at test_replay.py:" in str(divergence)
    assert "the replay cannot continue" in str(divergence)


@pytest.mark.usefixtures("soon")
def test_a_handler_that_loops_without_waiting_is_reported(desk, path):
    divergence = desk.assert_diverges(path, desk.make_server(add=spinning))
    assert divergence.kind == "missing"
    assert "r5" in divergence.suspended


@pytest.mark.usefixtures("soon")
def test_ctrl_c_is_not_a_divergence(desk, path):
    async def interrupted(state, ctx, amount):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replay(path, desk.make_server(add=interrupted))


@pytest.mark.usefixtures("soon")
def test_an_error_of_the_server_object_is_raised_unwrapped(path):
    class Broken:
        limits = Limits()
        registry = Server("broken")._registry

        @property
        def _sessions(self):
            return self

        def open_session(self, *_, **__):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        replay(path, Broken())


@pytest.mark.usefixtures("soon")
def test_a_task_with_a_shield_in_its_own_context_manager_is_ended(desk, path):
    @asynccontextmanager
    async def protected():
        with trio.CancelScope() as scope:
            scope.shield = True
            yield

    async def handler(state, ctx, amount):
        async with protected(), trio.open_nursery() as nursery:
            nursery.cancel_scope.shield = True
            nursery.start_soon(trio.sleep_forever)

    assert desk.assert_diverges(path, desk.make_server(add=handler)).record > 4


# Sessions under every protocol version are mocked and replayed at live servers.


LEGACY = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
STATELESS = "2026-07-28"
PROTOCOL_VERSIONS = (*LEGACY, STATELESS)
WITH_FORMS = PROTOCOL_VERSIONS[2:]


@attrs.define
class Trip:
    city: str
    days: int = 2


def make_server_every_protocol_version():
    server = Server("desk", version="1")

    @server.tool
    async def echo(text: str, *, ctx: Context) -> str:
        await ctx.info("heard")
        return text

    @server.tool
    async def plan(name: str, *, ctx: Context) -> str:
        answer = await ctx.elicit(f"Where to, {name}?", Trip)
        sure = await ctx.elicit("Sure?", None)
        return f"{answer.data}, {sure.action}"

    @server.tool(resumable=True)
    async def both(*, ctx: Context) -> str:
        first = await ctx.elicit("One?", int)
        second = await ctx.elicit("Two?", int)
        return f"{first.data} and {second.data}"

    @server.tool
    async def visit(*, ctx: Context) -> str:
        return (await ctx.elicit_url("Sign here", "https://example.com/sign")).action

    @server.tool
    async def grow() -> str:
        @server.tool
        async def grown() -> str:
            return ""

        return "grown"

    return server


def filled_in(params):
    members = (params.requested_schema or {"properties": {}})["properties"]
    values = {"string": "Oslo", "integer": 3}
    return {name: values[member["type"]] for name, member in members.items()} or True


async def talk_every_protocol_version(client):
    """Run the client, and return the values that it received."""
    answers = [len(await client.list_tools()), await text_of(client, "echo", text="a")]
    if client.protocol_version in WITH_FORMS:
        answers += [await text_of(client, "plan", name="Ann"), await text_of(client, "both")]
    if client.protocol_version in WITH_FORMS[1:]:
        answers.append(await text_of(client, "visit"))
    if client.protocol_version == STATELESS:
        async with client.listen(tools=True) as subscription:
            answers.append(await text_of(client, "grow"))
            answers.append(await anext(aiter(subscription)))
    return answers


async def text_of(client, tool, **arguments):
    return (await client.call_tool(tool, arguments)).content[0].text


@asynccontextmanager
async def connected(target, protocol_versions, **options):
    modes = ("form", "url")
    async with Client(
        target,
        protocol_versions=protocol_versions,
        elicitation=filled_in,
        elicitation_modes=modes,
        **options,
    ) as client:
        yield client


@pytest.fixture(params=PROTOCOL_VERSIONS)
def protocol_version(request):
    return request.param


@pytest.fixture(params=["client", "server"])
async def recorded_every_protocol_version(request, protocol_version, tmp_path):
    """A recording by that side with that protocol version, and the client's values."""
    path = tmp_path / "a.mcprec.jsonl"
    ours, theirs = memory_pair()
    serve, record = make_server_every_protocol_version().serve, {"record": path}
    by_server, by_client = (record, {}) if request.param == "server" else ({}, record)
    async with trio.open_nursery() as serving:
        serving.start_soon(lambda: serve(theirs, **by_server))
        async with connected(ours, (protocol_version,), **by_client) as client:
            answers = await talk_every_protocol_version(client)
    return path, answers


async def test_a_client_gets_the_recorded_answers_from_a_mock(
    recorded_every_protocol_version, protocol_version
):
    path, answers = recorded_every_protocol_version
    with mock_server(path, strict=True) as mock:
        async with connected(mock, (protocol_version,)) as client:
            assert client.protocol_version == protocol_version
            assert await talk_every_protocol_version(client) == answers


async def test_a_client_of_all_versions_negotiates_the_recorded_one(
    recorded_every_protocol_version, protocol_version
):
    path, answers = recorded_every_protocol_version
    with mock_server(path, strict=True) as mock:
        async with connected(mock, PROTOCOL_VERSIONS) as client:
            assert client.protocol_version == protocol_version
            assert await talk_every_protocol_version(client) == answers


async def test_a_recorded_client_at_a_live_server_finds_no_difference(
    recorded_every_protocol_version, autojump_clock
):
    path, _ = recorded_every_protocol_version
    report = await replay_live_async(path, make_server_every_protocol_version())
    assert report.is_same, str(report)
    assert report.unsent == 0


async def test_a_recorded_client_at_its_own_mock_finds_no_difference(
    recorded_every_protocol_version, autojump_clock
):
    path, _ = recorded_every_protocol_version
    with mock_server(path, strict=True) as mock:
        report = await replay_live_async(path, mock)
    assert report.is_same, str(report)


# A client that sends other messages.


async def answers_at(path, answer, protocol_version):
    with mock_server(path) as mock:
        async with Client(
            mock, protocol_versions=(protocol_version,), elicitation=answer
        ) as client:
            return await text_of(client, "plan", name="Ann")


@pytest.mark.parametrize("recorded_every_protocol_version", ["client"], indirect=True)
@pytest.mark.parametrize("protocol_version", WITH_FORMS)
async def test_another_content_of_a_form_matches_the_recorded_one(
    recorded_every_protocol_version, protocol_version
):
    path, answers = recorded_every_protocol_version
    other = lambda params: {"city": "Rome"} if filled_in(params) is not True else True  # noqa: E731
    assert await answers_at(path, other, protocol_version) == answers[2]


@pytest.mark.parametrize("recorded_every_protocol_version", ["client"], indirect=True)
@pytest.mark.parametrize("protocol_version", [STATELESS])
async def test_a_declined_form_does_not_match_an_accepted_one(
    recorded_every_protocol_version, protocol_version
):
    path, _ = recorded_every_protocol_version
    with pytest.raises(RequestError, match=r"differs at \$\.inputResponses\.q1\.action"):
        await answers_at(path, lambda _: False, protocol_version)
