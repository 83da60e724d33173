"""Reports of divergences: what they show of the two operations, and the likely causes."""

import logging
import os
import threading
import traceback

import attrs
import msgspec
import pytest
import trio

from mcp_trio import Context, Server, effect
from mcp_trio._journal.records import encode_body
from mcp_trio._journal.texts import excerpts
from mcp_trio._replay.divergence import CAUSES, Divergence, Operation, divergence_error
from mcp_trio._replay.source_locations import error_location, source_of
from mcp_trio._replay.trace import key_of, load_trace
from mcp_trio.errors import ReplayDivergence
from mcp_trio.recording import UntrackedCall, replay

LONG = "x" * 1000


@effect
async def fetch(key: str) -> str:
    await trio.sleep(0.001)
    return f"value of {key[:5]}"


@effect
async def store(key: str) -> None:
    pass


@effect
async def fail() -> None:
    class Local(Exception):
        pass

    raise Local("broken")


def make_server(handler):
    server = Server("reports")

    @server.tool
    async def run(number: int = 0, *, ctx: Context) -> str:
        return await handler(ctx, number) or "done"

    return server


@pytest.fixture
def record(world, tmp_path):
    """Record a handler that is called `count` times at once."""

    def make(handler, count=1):
        async def client(peer, _session):
            await peer.handshake()
            for number in range(count):
                params = {"name": "run", "arguments": {"number": number}}
                await peer.send_request("tools/call", params, id=number)
            for _ in range(count):
                await peer.receive()

        return world.record(make_server(handler), tmp_path / "a.mcprec.jsonl", client)

    return make


@pytest.fixture
def divergence(record):
    """Return the divergence of a replay with another handler."""

    def find(recorded, replayed, count=1):
        path = record(recorded, count)
        with pytest.raises(ReplayDivergence) as caught:
            replay(path, make_server(replayed))
        return caught.value

    return find


def test_a_report_does_not_list_requests_that_were_answered(world, tmp_path):
    def make(text):
        async def say(ctx, number):
            await ctx.sleep(1)
            return text if number == 2 else "done"

        return make_server(say)

    async def client(peer, _session):
        await peer.handshake()
        for numbers in ((0, 1), (2,)):
            for number in numbers:
                params = {"name": "run", "arguments": {"number": number}}
                await peer.send_request("tools/call", params, id=number)
            for _ in numbers:
                await peer.receive()

    path = world.record(make("yes"), tmp_path / "a.mcprec.jsonl", client)
    with pytest.raises(ReplayDivergence) as caught:
        replay(path, make("no"))
    assert caught.value.suspended == {}


def rows(error, label):
    """The texts of all rows of a report with this label."""
    return [line[13:] for line in str(error).splitlines() if line.startswith(f"  {label}:")]


# Reports of recorded and replayed messages.


async def fetching(ctx, number):
    await fetch(LONG + "a" + LONG)


async def fetching_another(ctx, number):
    await fetch(LONG + "b" + LONG)


def test_long_operations_are_cut_where_they_differ(divergence):
    error = divergence(fetching, fetching_another)
    (recorded,), (replayed,), (changed,) = (
        rows(error, label) for label in ("recorded", "replay", "changed")
    )
    assert "xxa" + "xx" in recorded
    assert "xxb" + "xx" in replayed
    before, after = changed.removeprefix("$.arguments.key: ").split(" became ")
    assert ("xxa" in before, "xxb" in after) == (True, True)
    assert max(map(len, (recorded, replayed, changed))) < 250


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ("abc", "abd", ("abc", "abd")),
        ("a" * 30, "a" * 30, ("a" * 12 + "…", "a" * 12 + "…")),
        ("b" + "a" * 30, "c" + "a" * 30, ("b" + "a" * 11 + "…", "c" + "a" * 11 + "…")),
        ("a" * 30 + "b", "a" * 30 + "c", ("…" + "a" * 11 + "b", "…" + "a" * 11 + "c")),
        ("a" * 30, "a" * 31, ("…" + "a" * 11, "…" + "a" * 12)),
        ("a" * 20 + "b" * 20, "a" * 20, ("…aaaa" + "b" * 8 + "…", "…aaaa")),
        ("", "a" * 13, ("", "a" * 12 + "…")),
    ],
)
def test_two_texts_are_cut_around_their_first_difference(left, right, expected):
    assert excerpts(left, right, chars_max=12) == expected
    assert excerpts(right, left, chars_max=12) == expected[::-1]


def test_of_many_differences_the_number_is_shown(divergence):
    async def one(ctx, number):
        await ctx.effect(store_all, list(range(30)))

    async def other(ctx, number):
        await ctx.effect(store_all, list(range(1, 31)))

    changed = rows(divergence(one, other), "changed")
    assert changed[0] == "$.arguments.values[0]: 0 became 1"
    assert changed[-1] == "and 25 more values"


async def store_all(values: list[int]) -> None:
    pass


def test_the_line_of_the_users_code_is_quoted(divergence):
    (line,) = rows(divergence(fetching, fetching_another), "line")
    assert line.startswith("at test_reports.py:")
    assert line.endswith(': await fetch(LONG + "b" + LONG)')


def test_a_location_without_a_readable_file_is_left_as_it_is():
    assert source_of("at nowhere.py:3") == "at nowhere.py:3"
    assert source_of("somewhere") == "somewhere"


def test_the_line_of_a_file_with_spaces_in_its_name_is_shown(tmp_path):
    path = tmp_path / "my tools.py"
    path.write_text("1 / 0\n")
    with pytest.raises(ZeroDivisionError) as caught:
        exec(compile(path.read_text(), str(path), "exec"))
    waiting_at = f"r3 {error_location(caught.value)} (for its turn)"
    assert source_of(waiting_at) == "r3 at my tools.py:1 (for its turn): 1 / 0"


async def waiting(ctx, number):
    await fetch("last" if number == 11 else "a")


async def waiting_in_another_way(ctx, number):
    await fetch("changed" if number == 11 else "a")


def test_of_many_waiting_lanes_five_are_shown_and_counted(divergence):
    error = divergence(waiting, waiting_in_another_way, 12)
    (row,) = rows(error, "waiting")
    shown, _, count = row.rpartition(" and ")
    assert len(shown.split(", ")) == 5
    assert count == f"{len(error.suspended) - 5} more lanes"
    assert len(error.suspended) > 6


# Causes.


async def failing(ctx, number):
    await fetch("a")
    raise ZeroDivisionError


async def passing(ctx, number):
    await fetch("a")


def test_a_handler_that_fails_is_named_as_the_cause(divergence, caplog):
    error = divergence(passing, failing)
    cause = "the handler raised ZeroDivisionError (test_reports.py:"
    assert error.causes[0].startswith(cause)
    assert error.causes[0].endswith("): its response is an internal error")
    (logged,) = [each for each in caplog.records if each.levelno == logging.WARNING]
    text = "the handler of tools/call 'run' failed: ZeroDivisionError (test_reports.py:"
    assert logged.getMessage().startswith(text)
    assert logged.exc_info is None


async def failing_at_length(ctx, number):
    await fetch("a")
    raise ValueError("x" * 10_000)


def test_a_long_exception_is_shortened_in_the_cause(divergence):
    (cause, *_) = divergence(passing, failing_at_length).causes
    assert cause.startswith("the handler raised ValueError: xxx")
    assert len(cause) < 300


async def failing_at_once(ctx, number):
    raise ZeroDivisionError


@pytest.mark.parametrize("handler", [passing, failing_at_once])
def test_a_handler_that_failed_when_recorded_is_not(divergence, handler):
    assert divergence(failing, handler).causes == []


def test_the_traceback_of_a_failed_handler_begins_in_the_users_code(divergence, caplog):
    caplog.set_level(logging.DEBUG, logger="mcp_trio")
    divergence(passing, failing)
    (logged,) = [each for each in caplog.records if each.levelno == logging.WARNING]
    _, _, found = logged.exc_info
    assert found.tb_frame.f_code.co_filename == __file__


async def hiding_an_exception(ctx, number):
    try:
        await fail()
    except Exception as error:
        await fetch(type(error).__name__)


def test_an_exception_that_could_not_be_rebuilt_is_named(divergence):
    error = divergence(hiding_an_exception, hiding_an_exception)
    assert "the exception in record " in error.hint
    assert "define the class at the top level of a module" in error.hint


async def two(ctx, number):
    await fetch("a")
    await store("b")


async def one_only(ctx, number):
    await fetch("a")


def test_an_answer_that_comes_earlier_is_no_other_order(divergence):
    assert divergence(two, one_only).causes == []


async def two_in_another_order(ctx, number):
    await store("b")
    await fetch("a")


def test_effects_in_another_order_are_named(divergence):
    (cause,) = divergence(two, two_in_another_order).causes
    assert cause.startswith("another order: the recording has the effect 'fetch' in record ")
    assert "the effect 'store' in record " in cause


def test_a_call_that_is_not_recorded_is_named(record):
    path = record(passing)
    divergence = msgspec.structs.replace(
        divergence_at(path, "cmd"), untracked_calls=[untracked("time.time")]
    )
    assert divergence_error(divergence).causes == [
        "a call before it that is not recorded: time.time() at desk.py:5: use ctx.now()"
    ]


def untracked(call, lane="r5", instead="ctx.now()", number=5):
    return UntrackedCall(call=call, location=f"at desk.py:{number}", lane=lane, instead=instead)


def divergence_at(path, kind, *, body=None, **open_facts):
    """A divergence at the first record of this kind, of an operation with another body."""
    trace = load_trace(path)
    index = next(place for place, record in enumerate(trace.journal) if record.kind == kind)
    record = trace.journal[index]
    if open_facts:
        opening = msgspec.structs.replace(trace.opening, **open_facts)
        trace = attrs.evolve(trace, opening=opening)
    operation = Operation(
        kind=kind, lane=key_of(record), ordinal=record.ordinal, body=body or encode_body({"a": 1})
    )
    return Divergence(trace=trace, index=index, operation=operation)


def cause_of(divergence):
    (cause,) = divergence_error(divergence).causes
    return cause


def command(**members):
    return encode_body({"name": "fetch", "arguments": {"key": "a"}, **members})


def test_a_removed_shield_is_named(record):
    path = record(passing)
    divergence = divergence_at(path, "cmd", body=command(cancelled=True))
    assert cause_of(divergence).startswith("a shield was removed")
    assert "begins under a cancellation" in str(divergence_error(divergence))


def test_an_added_shield_is_named(record, world):
    path = record(passing)

    def cancel(lines):
        return [line.replace(b'"key":"a"}}', b'"key":"a"},"cancelled":true}') for line in lines]

    changed = world.rewrite(path, path.with_name("b.mcprec.jsonl"), cancel)
    assert cause_of(divergence_at(changed, "cmd", body=command())).startswith("a shield was added")


@pytest.mark.parametrize(
    "body",
    [command(), encode_body({"name": "fetch", "arguments": {"key": "b"}, "cancelled": True})],
)
def test_another_change_is_no_sign_of_a_shield(record, body):
    assert divergence_error(divergence_at(record(passing), "cmd", body=body)).causes == []


def test_a_raw_thread_is_named(record):
    calls = [untracked("threading.Thread.start", instead="ctx.to_thread()")]
    divergence = msgspec.structs.replace(
        divergence_at(record(passing), "cmd"), untracked_calls=calls
    )
    assert "starts a thread" in cause_of(divergence)
    assert "use ctx.to_thread()" in cause_of(divergence)


def test_a_call_of_another_request_is_listed_but_no_cause(record):
    divergence = msgspec.structs.replace(
        divergence_at(record(passing), "cmd"), untracked_calls=[untracked("time.time", lane="r9")]
    )
    assert divergence_error(divergence).causes == []
    assert rows(divergence_error(divergence), "untracked") == [
        "time.time() at desk.py:5 in lane r9: use ctx.now()"
    ]


def test_the_calls_of_the_request_come_first_and_many_are_counted(record):
    others = [untracked("time.time", lane="r9", number=number) for number in range(9)]
    calls = [*others, untracked("time.time", lane="r5.0", number=77)]
    divergence = msgspec.structs.replace(
        divergence_at(record(passing), "cmd"), untracked_calls=calls
    )
    shown = rows(divergence_error(divergence), "untracked")
    assert "desk.py:77" in shown[0]
    assert shown[5:] == ["and 5 more calls"]


def test_a_changed_tool_is_named(record):
    change = 'the tool "run" was changed'
    divergence = msgspec.structs.replace(divergence_at(record(passing), "cmd"), list_change=change)
    assert cause_of(divergence) == 'the tool "run" was changed since the recording'


def test_a_foreign_clock_is_named_near_a_deadline_only(record):
    path = record(passing)
    other = encode_body({"name": "other"})
    near = divergence_at(path, "cmd", body=other, clock="foreign")
    assert "another Trio clock" in cause_of(near)
    assert divergence_error(divergence_at(path, "cmd", body=other, clock="")).causes == []
    changed = encode_body({"name": "fetch", "arguments": {"key": "b"}})
    assert divergence_error(divergence_at(path, "cmd", body=changed, clock="foreign")).causes == []


@pytest.mark.parametrize(
    ("count", "text"), [(1, "1 other session of"), (3, "3 other sessions of"), (0, None)]
)
def test_earlier_sessions_of_the_process_are_named(record, count, text):
    divergence = divergence_at(record(passing), "cmd", earlier_sessions=count)
    causes = divergence_error(divergence).causes
    assert [each.startswith(text) for each in causes] == ([True] if text else [])


def test_the_likeliest_causes_are_shown_and_are_in_the_error(record):
    path = record(passing)
    divergence = msgspec.structs.replace(
        divergence_at(
            path, "cmd", body=command(cancelled=True), clock="foreign", earlier_sessions=2
        ),
        untracked_calls=[untracked("time.time"), untracked("threading.Thread.start")],
    )
    error = divergence_error(divergence)
    assert len(error.causes) == 3
    assert rows(error, "cause") == error.causes
    assert error.hint == error.causes[0]
    assert error.hint.startswith("a shield was removed")


def test_no_cause_is_found_where_there_is_no_sign(record):
    divergence = divergence_at(record(passing), "out", body=b"no JSON")
    assert [find(divergence) for find in CAUSES] == [""] * len(CAUSES)


def test_a_thread_of_the_users_own_is_blocked_and_named(divergence):
    async def starting_a_thread(ctx, number):
        threading.Thread(target=print).start()

    error = divergence(passing, starting_a_thread)
    assert error.causes[0].startswith("threading.Thread.start() at test_reports.py:")
    assert rows(error, "line")[0].endswith(": threading.Thread(target=print).start()")


def test_the_traceback_of_a_blocked_call_has_frames_of_the_users_code_only(divergence, caplog):
    caplog.set_level(logging.DEBUG, logger="mcp_trio")

    async def removing(ctx, number):
        os.remove("no such file")  # noqa: PTH107  what is blocked

    divergence(passing, removing)
    (logged,) = (each for each in caplog.records if each.exc_info)
    frames = traceback.extract_tb(logged.exc_info[2])
    assert {frame.filename for frame in frames} == {__file__}
    assert frames[-1].line.startswith("os.remove(")


def test_facts_about_the_recording_are_no_cause_beside_a_sign(record):
    path = record(passing)
    divergence = divergence_at(path, "cmd", body=command(cancelled=True), earlier_sessions=2)
    assert cause_of(divergence).startswith("a shield was removed")


async def storing_in_order(ctx, number):
    for key in ("a", "b"):
        await store(key)


async def storing_in_another_order(ctx, number):
    for key in ("b", "a"):
        await store(key)


def test_effects_of_the_same_name_in_another_order_are_named_with_their_arguments(divergence):
    (cause,) = rows(divergence(storing_in_order, storing_in_another_order), "cause")
    assert """'store' {"key":"a"} in record""" in cause
    assert """'store' {"key":"b"} in record""" in cause


def test_the_lane_that_differs_is_not_among_the_waiting_ones(divergence):
    async def waiting(ctx, number):
        await trio.sleep_forever()

    error = divergence(fetching, waiting)
    assert error.lane not in rows(error, "waiting")[0]


def test_a_lane_that_never_waited_for_its_turn_has_a_line(divergence):
    async def sleeping(ctx, number):
        await trio.sleep(0)

    async def sleeping_longer(ctx, number):
        await trio.sleep(9)

    (line,) = rows(divergence(sleeping, sleeping_longer), "line")
    assert line.endswith("await trio.sleep(9)")


def test_a_handler_is_quoted_at_its_definition(divergence):
    async def returning(ctx, number):
        return "other"

    async def returning_nothing(ctx, number):
        return None

    (line,) = rows(divergence(returning, returning_nothing), "line")
    assert line.endswith(": async def run(number: int = 0, *, ctx: Context) -> str:")
