"""Replay of a session with all kinds of records, complete and cut; rejected recordings."""

import json
import re
import threading

import pytest
import trio

from mcp_trio._replay.trace import load_trace
from mcp_trio.errors import RecordingError
from mcp_trio.recording import replay, replay_async


def test_the_recorded_session_covers_all_kinds_of_records(world, path):
    kinds = {kind for kind, *_ in world.played(path)}
    assert kinds == {"in", "out", "res", "err", "cxl", "mark", "shut", "end"}
    unstarted = [r for r in world.records(path) if r["k"] == "cxl" and r.get("f") == "unstarted"]
    assert len(unstarted) == 2


def test_the_report_counts_records_and_requests(desk, path, world):
    report = replay(path, desk.make_server())
    assert report.records == len(world.played(path))
    assert report.requests == 12
    assert report.is_complete
    assert 0.06 < report.recorded_seconds < 0.2
    assert report.notes == ()


@pytest.mark.parametrize("number", range(5))
def test_a_replay_sends_the_recorded_bytes_in_the_recorded_order(desk, world, path, number):
    heard = world.replayed(path, desk.make_server(), number=number)
    assert heard.moments == world.played(path)
    assert heard.frames == world.sent_frames(path)


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
    for count in range(1, len(lines)):
        cut = world.rewrite(path, tmp_path / "cut.jsonl", lambda lines, n=count: lines[:n])
        report = replay(cut, desk.make_server(), watches=False)
        assert report.records == count - 1
        assert not report.is_complete


def test_a_recording_cut_at_any_byte_of_its_last_lines_replays_up_to_the_cut(desk, path, tmp_path):
    content = path.read_bytes()
    cut = tmp_path / "cut.jsonl"
    start = len(b"\n".join(content.split(b"\n")[:-3]))
    for end in range(start, len(content)):
        cut.write_bytes(content[:end])
        assert not replay(cut, desk.make_server(), watches=False).is_complete


def test_records_after_a_cut_are_no_divergence(desk, world, path, tmp_path):
    async def another(state, ctx, amount):
        await ctx.info("more than before")

    place = desk.place_of_answer(path, 12)
    cut = world.rewrite(path, tmp_path / "cut.jsonl", lambda lines: lines[: place + 1])
    replay(cut, desk.make_server(forever=another))


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
        replay(rejected, desk.make_server())


def test_records_of_unknown_kinds_are_skipped(desk, world, path):
    def add(lines):
        place = 1 + max(n for n, line in enumerate(lines) if b'"k":"in"' in line)
        trace = b'{"n":%d,"k":"trace","t":1,"f":{"deep":[1]}}\n' % place
        moved = [re.sub(rb"(?<=^..n..)[0-9]+", b"%d" % n, line) for n, line in enumerate(lines, 1)]
        return [*lines[:place], trace, *moved[place:]]

    later = world.rewrite(path, path.with_name("later.jsonl"), add)
    assert load_trace(later).missing == {}
    report = replay(later, desk.make_server())
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


def test_a_gap_ends_what_can_be_replayed(desk, world, path, tmp_path):
    def cut_by_gap(lines):
        gap = b'{"n":20,"k":"gap","t":1,"f":{"reason":"disk full"}}\n'
        return [*lines[:20], gap, *lines[30:]]

    report = replay(world.rewrite(path, tmp_path / "gap.jsonl", cut_by_gap), desk.make_server())
    assert report.records == 19
    assert not report.is_complete
    assert "a gap" in report.notes[-1]


def test_a_recording_with_only_an_open_record_replays(desk, world, path, tmp_path):
    head = world.rewrite(path, tmp_path / "head.jsonl", lambda lines: lines[:1])
    assert replay(head, desk.make_server()).recorded_seconds == 0
