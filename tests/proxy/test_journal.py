"""The recording of a proxy, also when its file cannot be written."""

import os
import random
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import partial

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from mcp_trio import Limits
from mcp_trio._cli.recordings import check_summary
from mcp_trio._journal.records import GapBody, OpenBody, decode_body
from mcp_trio._proxy.journal import (
    LineJournal,
    LosslessLineSplitter,
    MessageJournal,
    start_line_journal,
)
from mcp_trio._proxy.stdio import until_signal
from mcp_trio._recorder.writer import Recorder
from mcp_trio.errors import RecordingError
from mcp_trio.limits import MessageLimits, RecordingLimits
from mcp_trio.recording import Damage, body_bytes, check, open_recording, read_recording
from tests.clocks import Clock
from tests.processes import python

ASKED = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"clientInfo": {"name": "host"}, "capabilities": {"roots": {}}},
}
RESULT = {
    "protocolVersion": "2024-11-05",
    "serverInfo": {"name": "server"},
    "capabilities": {"tools": {}},
}
ANSWERED = {"jsonrpc": "2.0", "id": 1, "result": RESULT}


def line(message):
    return msgspec.json.encode(message) + b"\n"


@pytest.fixture
async def journal(path):
    return start_line_journal(path, ["/somewhere/serve", "--fast"], limits=Limits())


async def test_a_recording_begins_with_the_role_and_the_program(journal, path, recorded):
    journal.close(0)
    body = decode_body(recorded(path).records[0], OpenBody)
    assert (body.role, body.transport, body.name) == ("proxy", "stdio", "serve")


async def test_records_have_the_directions_of_the_server_and_no_lanes(journal, path, recorded):
    journal.record("in", line(ASKED))
    journal.record("out", line(ANSWERED))
    journal.close(0)
    session = recorded(path)
    assert session.kinds() == ["open", "in", "out", "mark", "shut", "mark", "end"]
    assert session.bodies("in") == [ASKED]
    assert session.bodies("out") == [ANSWERED]
    assert {record.lane for record in session.records} == {None}


async def test_the_negotiated_version_is_marked_after_the_response(journal, path, recorded):
    journal.record("in", line(ASKED))
    journal.record("out", line(ANSWERED | {"id": "1"}) + line(ANSWERED) + line(ANSWERED))
    journal.close(0)
    session = recorded(path)
    assert session.kinds()[2:6] == ["out", "out", "mark", "out"]
    assert session.marks()["negotiated"] == {
        "protocol_version": "2024-11-05",
        "peer": {"name": "host"},
        "capabilities": {"roots": {}},
        "server": {"name": "server"},
        "server_capabilities": {"tools": {}},
    }


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        (ASKED | {"method": "ping"}, ANSWERED),
        (ASKED, {"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": "no"}}),
        (ASKED, {"jsonrpc": "2.0", "id": 1, "method": "ping"}),
        (ASKED, {"jsonrpc": "2.0", "id": 1, "result": [RESULT]}),
    ],
)
async def test_a_handshake_without_a_result_is_not_marked(journal, path, recorded, asked, answered):
    journal.record("in", line(asked))
    journal.record("out", line(answered))
    journal.close(0)
    assert recorded(path).marks() == {"exited": 0}


async def test_peers_without_client_or_server_info_are_marked_too(journal, path, recorded):
    journal.record("in", b'{"jsonrpc":"2.0","id":1,"method":"initialize"}\n')
    journal.record("out", b'{"jsonrpc":"2.0","id":1,"result":{}}\n')
    journal.close(0)
    assert set(recorded(path).marks()["negotiated"].values()) == {None}


@pytest.mark.parametrize(
    ("exit_status", "ending"), [(0, 0), (3, 3), (-signal.SIGKILL, "SIGKILL"), (-37, "signal 37")]
)
async def test_the_exit_of_the_server_is_a_mark(journal, path, recorded, exit_status, ending):
    journal.close(exit_status)
    session = recorded(path)
    assert session.marks() == {"exited": ending}
    assert session.cause == "closed"


async def test_a_server_that_never_ended_has_no_mark(journal, path, recorded):
    journal.close(None)
    assert recorded(path).marks() == {}


@pytest.mark.parametrize("cause", ["signal", "lost"])
async def test_the_first_cause_is_the_cause(journal, path, recorded, cause):
    journal.messages.record_cause(cause)
    journal.end("in")
    journal.close(0)
    assert recorded(path).cause == cause


async def test_the_end_of_the_client_is_the_cause_and_not_that_of_the_server(
    journal, path, recorded
):
    journal.end("out")
    journal.end("in")
    journal.close(0)
    assert recorded(path).cause == "eof"


ODD_LINES = [b"garbage", b"", b"\0", b"\xff\xfe", b"{}\r", b" {}", b'{"jsonrpc":"2.0"}', b"[1]"]


async def test_invalid_messages_are_recorded_and_counted(journal, path, recorded):
    journal.record("in", b"\n".join([*ODD_LINES, b""]))
    journal.record("out", line(ANSWERED)[:-1])
    journal.close(0)
    session = recorded(path)
    assert session.lines("in") == ODD_LINES
    assert [r.envelope for r in session.records if r.kind == "out"] == [{"lf": False}]
    assert session.counts == {
        "in": len(ODD_LINES),
        "out": 1,
        "in_bytes": sum(map(len, ODD_LINES)) + len(ODD_LINES),
        "out_bytes": len(line(ANSWERED)) - 1,
        "malformed": len(ODD_LINES),
    }


async def test_only_messages_are_recorded_verbatim(journal, path, recorded):
    journal.record("in", line(ASKED) + b"\n".join([*ODD_LINES, b""]))
    journal.close(0)
    _, first, *others = [r for r in recorded(path).records if r.kind in {"open", "in"}]
    assert first.body_base64 is None
    assert len(others) == len(ODD_LINES)
    assert all(record.body_base64 is not None for record in others)


async def test_a_line_beyond_the_limit_is_recorded_in_parts(path, recorded):
    journal = start_line_journal(
        path, ["serve"], limits=Limits(messages=MessageLimits(bytes_max=5))
    )
    journal.record("in", b"[1234567890]\n{}\n")
    journal.close(0)
    session = recorded(path)
    assert [(body_bytes(r), r.envelope) for r in session.records if r.kind == "in"] == [
        (b"[1234", {"part": 1, "lf": False}),
        (b"56789", {"part": 2, "lf": False}),
        (b"0]", {"part": 3}),
        (b"{}", None),
    ]


class FullDisk:
    """Takes nothing while it is full."""

    def __init__(self):
        self.is_full = False
        self.written = b""

    def write(self, data):
        if self.is_full:
            raise OSError(28, "No space left on device")
        self.written += data

    def close(self):
        pass


async def test_a_full_disk_leaves_a_gap_that_counts_the_missing_records(path):
    disk = FullDisk()
    limits = Limits(recording=RecordingLimits(retry_seconds=0))
    body = OpenBody(transport="stdio", role="proxy", name="n", version="", started="s")
    recorder = Recorder(disk, clock=Clock(), limits=limits)
    recorder.record("open", msgspec.json.encode(body))
    journal = LineJournal(messages=MessageJournal(recorder=recorder, limits=limits))
    journal.record("in", b"before\n")
    disk.is_full = True
    for _ in range(3):
        journal.record("in", b"lost\n")
    disk.is_full = False
    journal.record("in", b"lost as well, and the first to find the disk usable\n")
    journal.record("in", b"after\n")
    journal.close(0)
    lines = disk.written.splitlines(keepends=True)
    records = list(read_recording(lines))
    assert [body_bytes(r) for r in records if r.kind == "in"] == [b"before", b"after"]
    gaps = [decode_body(r, GapBody) for r in records if r.kind == "gap"]
    assert [(gap.reason, gap.count) for gap in gaps] == [
        ("[Errno 28] No space left on device", None),
        (None, 4),
    ]
    assert check_summary(check(lines)).startswith("complete, but with a gap: ")


async def test_a_file_that_holds_something_is_left_alone(path):
    path.write_bytes(b"precious")
    with pytest.raises(RecordingError, match="the file exists; name another file, or a folder"):
        start_line_journal(path, ["serve"], limits=Limits())
    assert path.read_bytes() == b"precious"


async def test_an_empty_file_and_a_device_are_taken(path, recorded):
    path.touch()
    start_line_journal(path, ["serve"], limits=Limits()).close(0)
    assert recorded(path).cause == "closed"
    start_line_journal(os.devnull, ["serve"], limits=Limits()).close(0)


async def test_a_folder_gets_a_file_of_its_own_for_each_session(tmp_path, recorded):
    for _ in range(2):
        start_line_journal(tmp_path, ["serve"], limits=Limits()).close(0)
    first, second = tmp_path.iterdir()
    assert first.name.startswith("serve-")
    assert recorded(first).cause == recorded(second).cause == "closed"


async def test_a_batch_is_recorded_like_any_message(journal, path, recorded):
    ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
    journal.record("in", line([ASKED, ping]))
    journal.record("out", line([ANSWERED]))
    journal.close(0)
    session = recorded(path)
    assert session.kinds() == ["open", "in", "out", "mark", "shut", "mark", "end"]
    assert session.bodies("in") == [[ASKED, ping]]
    assert session.bodies("out") == [[ANSWERED]]


# A proxy that is killed.


KILLS = 8
SECONDS_MAX = 30


# Answers each line, keeps what it read, and prints at the end that it has.
SERVER = """
import os, sys
kept = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
while data := os.read(0, 65536):
    os.write(kept, data)
    try: os.write(1, data.replace(b'method', b'answer'))
    except BrokenPipeError: break
os.rename(sys.argv[1], sys.argv[1] + '.done')
"""


def lines_of(stream):
    """The whole lines; a host sends no line twice."""
    return set(stream.split(b"\n")[:-1])


def talk_until_killed(process, random_source):
    """Keeps the proxy busy in both directions, and kills it; what the host received."""
    stdin, stdout = process.stdin.fileno(), process.stdout.fileno()
    os.set_blocking(stdin, False)
    os.set_blocking(stdout, False)
    received, kill_at = [], None
    while kill_at is None or time.monotonic() < kill_at:
        readable, writable, _ = select.select([stdout], [stdin], [], 0.01)
        if writable:
            line = b'{"jsonrpc":"2.0","method":"%x"}\n' % random_source.getrandbits(64)
            os.write(stdin, line)
        if readable:
            received.append(os.read(stdout, 65_536))
            kill_at = kill_at or time.monotonic() + random_source.uniform(0, 0.1)
    process.kill()
    process.wait()
    while chunk := os.read(stdout, 65_536):
        received.append(chunk)
    process.stdin.close()
    process.stdout.close()
    return b"".join(received)


def recorded_lines(path):
    lines, damage = {"in": set(), "out": set()}, Counter()
    for item in read_recording(open_recording(path)):
        if isinstance(item, Damage):
            damage[item.kind] += 1
        elif item.kind in lines:
            lines[item.kind].add(body_bytes(item))
    return lines, damage


@pytest.mark.slow
@pytest.mark.real_time
@pytest.mark.parametrize("seed", range(KILLS))
def test_a_killed_proxy_lost_no_line_that_either_peer_received(tmp_path, seed):
    path, received = tmp_path / "killed.mcprec.jsonl", tmp_path / "received"
    process = subprocess.Popen(
        [sys.executable, "-m", "mcp_trio", "record", "-o", path, "--", *python(SERVER, received)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    )
    received = talk_until_killed(process, random.Random(seed))
    give_up = time.monotonic() + SECONDS_MAX
    while not (done := tmp_path / "received.done").exists():
        assert time.monotonic() < give_up
        time.sleep(0.01)
    lines, damage = recorded_lines(path)
    assert process.returncode == -signal.SIGKILL
    assert lines_of(received)
    assert lines_of(received) <= lines["out"]
    assert lines_of(done.read_bytes()) <= lines["in"]
    assert set(damage) <= {"torn"}


# The stdio proxy: lines, their envelopes, and signals.

ODD_BYTES = st.lists(st.sampled_from([b"\n", b"\r", b"\0", b"a", b"\xff", b"{}"])).map(b"".join)


def cut(chunks, line_bytes_max=100):
    cutter = LosslessLineSplitter(line_bytes_max=line_bytes_max)
    lines = [line for chunk in chunks for line in cutter.feed(chunk)]
    return [*lines, *cutter.finish()]


@pytest.mark.slow
@given(st.lists(ODD_BYTES), st.integers(1, 8))
def test_joined_lines_are_the_stream_however_it_is_chunked(chunks, line_bytes_max):
    lines = cut(chunks, line_bytes_max)
    forwarded = b"".join(
        line + (b"\n" if envelope.get("lf", True) else b"") for line, envelope in lines
    )
    assert forwarded == b"".join(chunks)
    assert lines == cut([b"".join(chunks)], line_bytes_max)
    assert all(len(line) <= line_bytes_max and b"\n" not in line for line, _ in lines)


def test_blank_lines_and_ends_of_lines_are_kept():
    assert cut([b"a\r\n\n \n"]) == [(b"a\r", {}), (b"", {}), (b" ", {})]


def test_a_last_line_without_a_line_end_is_marked():
    assert cut([b"a\nb"]) == [(b"a", {}), (b"b", {"lf": False})]
    assert cut([b"a\n"]) == [(b"a", {})]


def test_a_line_of_the_greatest_length_is_one():
    assert cut([b"1234\n"], 4) == [(b"1234", {})]
    assert cut([b"12", b"34"], 4) == [(b"1234", {"lf": False})]


def test_a_longer_line_comes_in_parts_and_the_next_one_whole():
    assert cut([b"123456789\nab\n"], 4) == [
        (b"1234", {"part": 1, "lf": False}),
        (b"5678", {"part": 2, "lf": False}),
        (b"9", {"part": 3}),
        (b"ab", {}),
    ]


# Signals to a proxy whose server does not exit.


async def test_without_a_signal_the_status_is_the_proxys():
    async def serve():
        return 7

    assert await until_signal(serve, on_signal=list) == 7


@pytest.fixture
def hangup_is_not_ignored():
    """Undo `nohup`, under which these tests may run, and which the proxy obeys."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.usefixtures("hangup_is_not_ignored")
async def test_a_signal_closes_and_then_cancels_the_proxy(number):
    events = []

    async def serve():
        os.kill(os.getpid(), number)
        try:
            await trio.sleep_forever()
        finally:
            events.append("cancelled")

    with trio.fail_after(5):
        assert await until_signal(serve, on_signal=partial(events.append, "shut")) == 128 + number
    assert events == ["shut", "cancelled"]


async def test_a_second_signal_ends_the_process_at_once(monkeypatch):
    shut, exited = trio.Event(), trio.Event()
    statuses = []

    def leave(status):
        statuses.append(status)
        exited.set()

    async def serve():
        os.kill(os.getpid(), signal.SIGTERM)
        with trio.CancelScope(shield=True):
            await shut.wait()
            os.kill(os.getpid(), signal.SIGINT)
            await exited.wait()

    monkeypatch.setattr(os, "_exit", leave)
    with trio.fail_after(5):
        await until_signal(serve, on_signal=shut.set)
    assert statuses == [128 + signal.SIGINT]


async def test_an_error_is_raised_without_a_group():
    async def serve():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)

    async def fail():
        raise OSError(98, "in use")

    with pytest.raises(OSError, match="in use"):
        await until_signal(serve, on_signal=list)
