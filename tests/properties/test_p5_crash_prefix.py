"""Property 5: a recording cut anywhere can be read, is known to be cut, and replays."""

import pytest
import trio

from mcp_trio import Context, Server, effect
from mcp_trio.errors import NothingCompared, RecordingError
from mcp_trio.recording import check, open_recording

pytestmark = pytest.mark.slow

# Every byte is tried in the full run; in between, each line's ends and every so many bytes.
STEP_BYTES = 13


@effect
async def fetch(key: str) -> str:
    await trio.sleep(0.001)
    if key == "bad":
        raise ValueError(key)
    return f"value of {key}"


def make_server():
    server = Server("small")

    @server.tool
    async def work(*, ctx: Context) -> list[str]:
        found = [await fetch("a"), str(ctx.now())]
        try:
            await fetch("bad")
        except ValueError as error:
            found.append(str(error))
        with trio.move_on_after(0.002):
            await ctx.sleep(1)
        await ctx.info("nearly there")
        return found

    return server


@pytest.fixture
def recorded(stage, tmp_path):
    async def talk(peer, _session):
        await peer.handshake()
        await peer.send(stage.call(1, "work"))
        await stage.answer_all(peer, 1)

    def record(suffix=""):
        path = tmp_path / f"whole.mcprec.jsonl{suffix}"
        stage.play(make_server(), talk, record=path)
        return path

    return record


def cuts(data, step_bytes):
    """Return the offsets to cut at: every few bytes, and at the ends of lines."""
    ends = [place for place, byte in enumerate(data) if byte == ord("\n")]
    near_ends = {place + shift for place in ends for shift in (0, 1, 2)}
    return sorted({*range(1, len(data), step_bytes), *near_ends} - {0, len(data), len(data) + 1})


def test_a_recording_cut_at_any_byte_opens_and_its_prefix_replays(
    stage, tmp_path, recorded, count, thoroughness
):
    data = recorded().read_bytes()
    path = tmp_path / "cut.mcprec.jsonl"
    first_line_bytes = data.index(b"\n")
    tried = cuts(data, 1 if thoroughness > 1 else STEP_BYTES)
    for cut in tried:
        path.write_bytes(data[:cut])
        if cut <= first_line_bytes:
            with pytest.raises(RecordingError):
                stage.replayed(path, make_server())
            continue
        report = check(open_recording(path))
        whole_lines = data[:cut].count(b"\n")
        assert report.records == whole_lines
        assert {flaw.kind for flaw in report.damage} <= {"torn"}
        assert not report.complete
        if b'"l":"r' not in data[: data.rindex(b"\n", 0, cut)]:
            with pytest.raises(NothingCompared):
                stage.replayed(path, make_server())
            continue
        assert stage.replayed(path, make_server()).records == whole_lines - 1
    count(len(tried))


def test_a_compressed_recording_cut_at_any_byte_opens_and_its_prefix_replays(
    stage, tmp_path, recorded, count, thoroughness
):
    data = recorded(".zst").read_bytes()
    path = tmp_path / "cut.mcprec.jsonl.zst"
    replayed = []
    tried = range(1, len(data), 1 if thoroughness > 1 else STEP_BYTES)
    for cut in tried:
        path.write_bytes(data[:cut])
        try:
            replayed.append(stage.replayed(path, make_server()).records)
        except (RecordingError, NothingCompared):
            assert not replayed, "what opened once opens with more of it"
    assert replayed == sorted(replayed)
    assert replayed[-1] > 10
    count(len(tried))


def test_a_byte_changed_in_the_middle_is_detected(recorded, count):
    data = recorded().read_bytes()
    lines_before_the_last = data.rindex(b"\n", 0, -1)
    tried = range(data.index(b"\n") + 1, lines_before_the_last, STEP_BYTES)
    for place in tried:
        changed = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        assert _flaws(changed) - {"torn"}, changed[place - 40 : place + 40]
    count(len(tried))


def _flaws(data):
    return {flaw.kind for flaw in check(data.splitlines(keepends=True)).damage}


# The control.


def test_without_the_digest_a_changed_byte_is_not_detected(recorded):
    data = recorded().read_bytes()
    *lines, last = data.splitlines(keepends=True)
    assert b',"h":"' in last
    bare = last[: last.index(b',"h":"')] + b"}\n"
    changed = b"".join(lines).replace(b"nearly there", b"nearly thert")
    assert _flaws(changed + last) == {"digest"}
    assert _flaws(changed + bare) == set()
