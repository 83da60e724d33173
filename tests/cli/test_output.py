"""Progress bars, and the sizes in outputs."""

import io
import time
from contextlib import redirect_stderr

import pytest
import zstandard

from mcp_trio._cli.options import lines_of, naming
from mcp_trio._cli.output import bars_hidden, busy, call_progress, read_progress, size
from mcp_trio.errors import RecordingError
from mcp_trio.types import ProgressParams


class Screen(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)


def slow_lines(count):
    """Lines of a mebibyte that take their time."""
    for _ in range(count):
        time.sleep(0.05)
        yield b"x" * (1 << 20)


@pytest.mark.real_time
def test_reading_a_long_file_shows_a_bar_with_bytes():
    with redirect_stderr(Screen()) as screen:
        read = list(read_progress(slow_lines(8), "reading it", total_bytes=8 << 20, seconds=0.05))
    assert len(read) == 8
    assert "reading it" in screen.getvalue()
    assert "/8.4 MB" in screen.getvalue()


@pytest.mark.real_time
def test_a_long_wait_shows_a_bar():
    with redirect_stderr(Screen()) as screen, busy("replaying", seconds=0.02):
        time.sleep(0.3)
    assert "replaying" in screen.getvalue()


def test_quick_work_shows_no_bar():
    with redirect_stderr(Screen()) as screen:
        with busy("replaying"):
            pass
        assert list(read_progress([b"a\n"], "reading it", total_bytes=None)) == [b"a\n"]
    assert screen.getvalue() == ""


def test_without_a_terminal_no_bar_is_shown():
    with redirect_stderr(io.StringIO()) as stderr:
        with busy("replaying", seconds=0.0):
            pass
        assert list(read_progress([b"a\n"], "reading it", total_bytes=None, seconds=0.0)) == [
            b"a\n"
        ]
    assert stderr.getvalue() == ""


def test_a_compressed_recording_is_read_too(tmp_path):
    path = tmp_path / "a.mcprec.jsonl.zst"
    path.write_bytes(zstandard.compress(b"a\nb\n"))
    assert list(lines_of(path)) == [b"a\n", b"b\n"]


def test_an_error_names_the_file_once():
    with pytest.raises(RecordingError, match=r"^a.jsonl: empty$"), naming("a.jsonl"):
        raise RecordingError("empty")
    with pytest.raises(RecordingError, match=r"^cannot read a.jsonl: gone$"), naming("a.jsonl"):
        raise RecordingError("cannot read a.jsonl: gone")


def reported(progress, **more):
    return ProgressParams(progress_token=1, progress=progress, **more)


def test_no_bar_is_drawn_while_the_user_is_asked():
    screen = Screen()
    with redirect_stderr(screen), call_progress("plan", on_any_stderr=False) as report:
        report(reported(1, total=3))
        with bars_hidden():
            shown = screen.getvalue()
            report(reported(2, total=3))
            assert screen.getvalue() == shown
        report(reported(3, total=3))
        assert screen.getvalue() != shown


def test_the_message_of_a_progress_notification_is_escaped(capsys):
    with call_progress("plan", on_any_stderr=True) as report:
        report(reported(1, total=2, message="half\x1b"))
    assert capsys.readouterr().err == "progress: 1 of 2 half\\x1b\n"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1536, "1.5 KiB"),
        (3 << 20, "3.0 MiB"),
        (5 << 40, "5120.0 GiB"),
    ],
)
def test_sizes_are_printed_with_units(count, text):
    assert size(count) == text
