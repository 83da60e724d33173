"""Nothing is buffered that was not redacted; what cannot be redacted is lost, and said so."""

import attrs

from mcp_trio import Limits
from mcp_trio._journal.records import GapBody, OpenBody, decode_body
from mcp_trio._recorder.files import FileSink, Segments
from mcp_trio._recorder.writer import Recorder
from mcp_trio.limits import RecordingLimits
from mcp_trio.recording import body_bytes, check, open_recording, read_recording

OPEN = OpenBody(
    transport="t", role="server", name="secret", version="1", started="s", session="secret"
)
LIMITS = Limits(recording=RecordingLimits(retry_seconds=0.0))


@attrs.define
class Rule:
    """A redactor with one rule; fails when told to."""

    seen: list = attrs.Factory(list)
    error: Exception | None = None

    def redact(self, kind, body, *, is_whole_json=True):
        self.seen.append((kind, is_whole_json))
        if self.error is not None:
            raise self.error
        return body.replace(b"secret", b"tokens")

    def manifest(self):
        return {"rules": len(self.seen)}


def start(path, rule, **options):
    sink = Segments(path, open_file=FileSink, **options)
    recorder = Recorder(sink, clock_ns=lambda: 0, limits=LIMITS, redactor=rule)
    recorder.open(OPEN)
    return recorder


def test_every_body_passes_the_redactor(tmp_path):
    rule = Rule()
    path = tmp_path / "x.mcprec.jsonl"
    recorder = start(path, rule, bytes_max=1)
    recorder.record("in", b'"secret"')
    recorder.record("in", b"secret\xff", embed=False)
    recorder.record("shut")
    recorder.flush()
    recorder.record("res", b'"my secret"')
    recorder.close({"in": 2})
    assert [kind for kind, _ in rule.seen if kind != "open"] == ["in", "in", "res"]
    assert ("in", False) in rule.seen
    opening, first, second, _, last, _ = read_recording(open_recording(path))
    assert decode_body(opening, OpenBody).redaction == {"rules": 0}
    assert [body_bytes(each) for each in (first, second, last)] == [
        b'"tokens"',
        b"tokens\xff",
        b'"my tokens"',
    ]
    for file in tmp_path.iterdir():
        assert b"secret" not in file.read_bytes()
    assert check(open_recording(path)).damage == []


def gaps_of(path):
    return [
        decode_body(r, GapBody) for r in read_recording(open_recording(path)) if r.kind == "gap"
    ]


def test_a_redactor_that_fails_costs_that_record_alone_and_tells_nothing(tmp_path):
    rule = Rule()
    path = tmp_path / "x.mcprec.jsonl"
    recorder = start(path, rule)
    recorder.record("in", b'"before"')
    rule.error = ValueError("secret")
    expected = recorder.next_number + 1
    assert recorder.record("in", b'"secret"') == expected
    rule.error = None
    recorder.record("in", b'"behind"')
    recorder.close({})
    report = check(open_recording(path))
    assert (report.damage, report.complete, report.kinds["in"]) == ([], True, 2)
    assert b"secret" not in path.read_bytes()
    reason = "redaction failed: ValueError"
    assert gaps_of(path) == [GapBody(reason=reason), GapBody(count=1)]


def test_on_a_slow_disk_it_is_counted_with_what_else_is_lost(tmp_path):
    ticks = iter(range(100))
    rule = Rule()
    path = tmp_path / "x.mcprec.jsonl"
    recorder = Recorder(
        FileSink(path), clock_ns=lambda: 0, limits=LIMITS, write_clock=ticks.__next__, redactor=rule
    )
    recorder.open(OPEN)
    rule.error = ValueError("secret")
    assert recorder.record("in", b'"secret"') == recorder.next_number - 1
    rule.error = None
    recorder.close({})
    report = check(open_recording(path))
    assert (report.damage, report.complete) == ([], True)
    assert gaps_of(path) == [GapBody(reason="slow disk"), GapBody(count=1)]


def test_a_redactor_that_fails_at_a_new_segment_leaves_the_recording_in_this_one(tmp_path):
    rule = Rule()
    path = tmp_path / "x.mcprec.jsonl"
    recorder = start(path, rule, bytes_max=1)
    recorder.record("shut")
    rule.error = ValueError("secret")
    recorder.flush()
    recorder.record("shut")
    recorder.flush()
    rule.error = None
    recorder.close({})
    assert len(list(tmp_path.iterdir())) == 2
    report = check(open_recording(path))
    assert (report.damage, report.complete, report.kinds["shut"]) == ([], True, 2)
