"""The log file: JSON lines by a thread, rotated and compressed, with a line for each request."""

import errno
import gzip
import io
import json
import logging
import threading
from logging.handlers import RotatingFileHandler
from pathlib import Path
from queue import SimpleQueue

import pytest

from mcp_trio import Client, Context, Server, ToolError
from mcp_trio._observers.request_log import BoundedQueueHandler
from mcp_trio._server.http_serve import check_for_workers
from mcp_trio.observers import AuditLog, RequestLog

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE_ID}-00f067aa0ba902b7-01"

logger = logging.getLogger("a.server")


@pytest.fixture
def only_our_handlers(monkeypatch):
    """Without pytest's own, whose level would let everything through."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])


def lines(path):
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in text.decode().splitlines()]


@pytest.mark.usefixtures("only_our_handlers")
def test_log_records_are_in_the_file_as_json_when_the_block_ends(tmp_path):
    path = tmp_path / "server.log"
    with RequestLog(path):
        logger.info("%d rows of %s", 3, "blåbær\n")
        logging.getLogger("mcp_trio").error("of the package")
        logger.debug("too fine")
    first, second = lines(path)
    assert first.pop("time").endswith("+00:00")
    assert first == {"level": "INFO", "logger": "a.server", "text": "3 rows of blåbær\n"}
    assert second["logger"] == "mcp_trio"


@pytest.mark.usefixtures("only_our_handlers")
def test_the_level_is_chosen_by_name_and_a_wrong_one_is_rejected(tmp_path):
    path = tmp_path / "server.log"
    with RequestLog(path, level="DEBUG"):
        logger.debug("fine")
    assert [line["text"] for line in lines(path)] == ["fine"]
    with pytest.raises(ValueError, match="LOUD"):
        RequestLog(path, level="LOUD")


@pytest.mark.usefixtures("only_our_handlers")
def test_a_traceback_is_a_member(tmp_path):
    path = tmp_path / "server.log"
    with RequestLog(path):
        try:
            raise RuntimeError("the reason")
        except RuntimeError:
            logger.exception("failed")
    (line,) = lines(path)
    assert line["text"] == "failed"
    assert line["traceback"].startswith("Traceback")
    assert line["traceback"].endswith("RuntimeError: the reason")


def test_warnings_go_to_stderr_too_and_nothing_else_does(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # pytest adds one for each test
    with RequestLog(tmp_path / "server.log"):
        logger.info("all is well")
        logger.warning("look here")
    assert capsys.readouterr().err == "WARNING a.server: look here\n"


@pytest.mark.usefixtures("only_our_handlers")
def test_logging_is_restored_afterwards(tmp_path):
    root = logging.getLogger()
    before = root.level, list(root.handlers), threading.active_count()
    with RequestLog(tmp_path / "server.log", level="DEBUG"):
        assert (root.level, list(root.handlers), threading.active_count()) != before
    assert (root.level, list(root.handlers), threading.active_count()) == before


@pytest.mark.usefixtures("only_our_handlers")
def test_a_full_file_is_rotated_and_compressed_and_the_oldest_is_dropped(tmp_path):
    path = tmp_path / "server.log"
    with RequestLog(path, file_bytes_max=2_000, files_kept_max=3):
        for number in range(200):
            logger.info("message %d", number)
    names = sorted(file.name for file in tmp_path.iterdir())
    assert names == ["server.log", "server.log.1.gz", "server.log.2.gz", "server.log.3.gz"]
    kept = [line["text"] for name in (*names[:0:-1], names[0]) for line in lines(tmp_path / name)]
    assert kept == [f"message {number}" for number in range(200 - len(kept), 200)]
    assert len(kept) > 40
    for name in names[1:]:
        assert (tmp_path / name).stat().st_size < 1_000
        assert len(gzip.decompress((tmp_path / name).read_bytes())) <= 2_100


@pytest.mark.usefixtures("only_our_handlers")
def test_a_log_that_cannot_keep_up_never_blocks_and_counts_what_it_dropped():
    queue = SimpleQueue()
    handler = BoundedQueueHandler(queue, 2)

    def log(text):
        handler.handle(logging.makeLogRecord({"msg": text}))

    def taken():
        return [queue.get_nowait().getMessage() for _ in range(queue.qsize())]

    for text in "abcd":
        log(text)
    assert taken() == ["a", "b"]
    log("e")
    assert taken() == ["2 lines were dropped: the log file cannot keep up", "e"]
    for text in "fgh":
        log(text)
    assert taken() == ["f", "g"]
    handler.close()
    assert taken() == ["1 lines were dropped: the log file cannot keep up"]


@pytest.mark.usefixtures("only_our_handlers")
def test_a_file_that_cannot_be_opened_leaves_logging_unchanged(tmp_path):
    root = logging.getLogger()
    before = root.level, list(root.handlers)
    with pytest.raises(OSError, match="missing"), RequestLog(tmp_path / "missing" / "x.log"):
        pass
    assert (root.level, list(root.handlers)) == before


@pytest.mark.usefixtures("only_our_handlers")
def test_a_log_that_could_not_be_opened_can_be_opened_later(tmp_path):
    log = RequestLog(tmp_path / "later" / "x.log")
    with pytest.raises(OSError, match="later"), log:
        pass
    (tmp_path / "later").mkdir()
    with log:
        logger.info("now")
    assert [line["text"] for line in lines(tmp_path / "later" / "x.log")] == ["now"]


@pytest.mark.parametrize("name", ["file_bytes_max", "files_kept_max", "lines_queued_max"])
def test_a_maximum_is_at_least_1(name):
    with pytest.raises(ValueError, match=name):
        RequestLog("x.log", **{name: 0})


def test_other_handlers_get_the_record_as_it_was_logged(tmp_path, monkeypatch):
    seen = []

    class Other(logging.Handler):
        def emit(self, record):
            seen.append(record)

    root, other = logging.getLogger(), Other()
    monkeypatch.setattr(root, "handlers", [])
    with RequestLog(tmp_path / "x.log"):
        root.addHandler(other)
        try:
            raise RuntimeError("the reason")
        except RuntimeError:
            logger.exception("%d failed", 3)
        root.removeHandler(other)
    (record,) = seen
    assert (record.msg, record.args) == ("%d failed", (3,))
    assert record.exc_info[0] is RuntimeError


@pytest.mark.usefixtures("only_our_handlers")
@pytest.mark.parametrize("format", ["json", "text"])
def test_a_traceback_with_a_name_that_is_not_utf8_is_in_the_file(tmp_path, format, monkeypatch):  # noqa: A002
    # A process of pytest-xdist cannot report a log with such a name, which pytest would capture.
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    path = tmp_path / "x.log"
    with RequestLog(path, format=format):
        try:
            raise OSError("no file b\udcff")
        except OSError:
            logger.exception("failed")
    assert "no file b" in path.read_text()


async def test_long_texts_of_a_client_are_cut(tmp_path, autojump_clock):
    path = tmp_path / "server.log"
    server = Server("harbour", offers={"tools"}, observers=[RequestLog(path)])
    async with Client(server) as client:
        with pytest.raises(Exception, match="unknown tool"):
            await client.call_tool("x" * 1_000_000)
    assert path.stat().st_size < 5_000


async def test_each_request_is_a_line_and_lines_of_its_handler_name_it(tmp_path, autojump_clock):
    path = tmp_path / "server.log"
    server = Server("harbour", observers=[RequestLog(path)])

    @server.tool
    async def moor(ship: str, *, ctx: Context) -> str:
        logger.info("a ship comes")
        await ctx.sleep(1)
        if ship == "raft":
            raise ToolError("no ship")
        return "moored"

    async with Client(server, trace=lambda: {"traceparent": TRACEPARENT}) as client:
        await client.call_tool("moor", {"ship": "cog"})
        with pytest.raises(ToolError):
            await client.call_tool("moor", {"ship": "raft"})
    found = [line for line in lines(path) if line.get("method") == "tools/call"]
    inside, moored, _, rejected = found
    assert inside["text"] == "a ship comes"
    assert moored["logger"] == "mcp_trio.requests"
    for line in (inside, moored):
        assert (line["request"], line["target"], line["trace"]) == (2, "moor", TRACE_ID)
    assert inside["session"] == moored["session"]
    assert (moored["outcome"], rejected["outcome"]) == ("ok", "tool")
    assert moored["bytes_in"] > 100
    assert moored["bytes_out"] > 50
    assert moored["ms"] >= 0
    assert "cog" not in path.read_text()  # arguments are not logged


async def test_a_text_of_a_client_begins_no_line_of_the_text_format(tmp_path, autojump_clock):
    path = tmp_path / "server.log"
    server = Server("harbour", offers={"tools"}, observers=[RequestLog(path, format="text")])
    async with Client(server) as client:
        with pytest.raises(Exception, match="unknown tool"):
            await client.call_tool("evil\n2026-11-28T12:00:00 INFO forged")
    assert not [
        line for line in path.read_text().splitlines() if line.startswith("2026-11-28T12:00:00 ")
    ]
    assert "evil\\n" in path.read_text()


def test_processes_have_files_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr("os.getpid", lambda: 77)
    with RequestLog(tmp_path / "server-{pid}.log"):
        pass
    assert [each.name for each in tmp_path.iterdir()] == ["server-77.log"]


@pytest.mark.parametrize("kind", [RequestLog, AuditLog])
def test_workers_need_a_file_for_each_process(tmp_path, kind):
    shared = Server("port", observers=[kind(tmp_path / "port.log")])
    with pytest.raises(ValueError, match=r"port\.log: workers cannot share a file: put {pid} into"):
        shared.run("http", port=0, workers=2)
    check_for_workers(Server("port", observers=[kind(tmp_path / "port-{pid}.log")]), {}, 2)


@pytest.mark.usefixtures("only_our_handlers")
def test_a_full_file_that_cannot_be_compressed_goes_on_and_the_kept_files_remain(
    tmp_path, monkeypatch, caplog
):
    path = tmp_path / "server.log"
    kept = [tmp_path / "server.log.1.gz", tmp_path / "server.log.2.gz"]
    for number, file in enumerate(kept):
        file.write_bytes(gzip.compress(b"kept %d" % number))

    def fail(target, *_):
        Path(target).write_bytes(b"a part")
        raise OSError(28, "no space left")

    with monkeypatch.context() as patch:
        patch.setattr("mcp_trio._observers.request_log.gzip.open", fail)
        with RequestLog(path, file_bytes_max=2_000, files_kept_max=3):
            for number in range(60):
                logger.info("message %d", number)
    assert sorted(tmp_path.iterdir()) == [path, *kept]
    assert [gzip.decompress(file.read_bytes()) for file in kept] == [b"kept 0", b"kept 1"]
    texts = [line["text"] for line in lines(path)]
    assert [text for text in texts if text.startswith("message")] == [
        f"message {number}" for number in range(60)
    ]
    failed = f"the log file {path} is full, and cannot be compressed: [Errno 28] no space left"
    assert 1 <= caplog.text.count(failed) <= 4
    with RequestLog(path, file_bytes_max=2_000, files_kept_max=3):
        logger.info("later")
    assert [line["text"] for line in lines(path)] == ["later"]
    assert len(lines(tmp_path / "server.log.1.gz")) == len(texts)


@pytest.mark.usefixtures("only_our_handlers")
def test_lines_that_a_full_disk_does_not_take_are_counted_and_reported_once(
    tmp_path, monkeypatch, caplog, capsys
):
    path = tmp_path / "server.log"
    works = iter([True, False, False, False])

    class Disk(io.StringIO):
        written = ""

        def flush(self):
            if not next(works, True):
                self.seek(len(self.written))
                self.truncate()
                raise OSError(errno.ENOSPC, "no space left")
            self.written = self.getvalue()

        def close(self):
            path.write_text(self.written)
            super().close()

    monkeypatch.setattr(RotatingFileHandler, "_open", lambda _: Disk())
    with RequestLog(path):
        for number in range(6):
            logger.info("message %d", number)
    error = f"the log file {path} cannot be written, and loses lines: [Errno 28] no space left"
    assert caplog.text.count(error) == 1
    assert "Traceback" not in capsys.readouterr().err
    texts = [line["text"] for line in lines(path)]
    lost = "up to 3 lines were lost: the log file could not be written"
    # The line about the error may be among the lost ones.
    assert (texts[0], texts[2]) == ("message 0", lost)
