import gzip
import json
import logging
import threading
from queue import Queue

import pytest

from mcp_trio.examples.production_logging import BoundedQueueHandler, configure_logging

logger = logging.getLogger("a.server")


@pytest.fixture(autouse=True)
def only_our_handlers(monkeypatch):
    """Without pytest's own, whose level would let everything through."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])


def lines(path):
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in text.decode().splitlines()]


def test_what_is_logged_is_in_the_file_as_json_when_the_block_ends(tmp_path):
    path = tmp_path / "server.log"
    with configure_logging(path):
        logger.info("%d rows of %s", 3, "blåbær\n")
        logging.getLogger("mcp_trio").error("of the package")
        logger.debug("too fine")
    first, second = lines(path)
    assert first.pop("time").endswith("+00:00")
    assert first == {"level": "INFO", "logger": "a.server", "text": "3 rows of blåbær\n"}
    assert second["logger"] == "mcp_trio"


def test_the_level_is_chosen_by_name_and_a_wrong_one_is_rejected(tmp_path):
    path = tmp_path / "server.log"
    with configure_logging(path, level="DEBUG"):
        logger.debug("fine")
    assert [line["text"] for line in lines(path)] == ["fine"]
    with pytest.raises(ValueError, match="LOUD"), configure_logging(path, level="LOUD"):
        pass


def test_a_traceback_is_part_of_the_text(tmp_path):
    path = tmp_path / "server.log"
    with configure_logging(path):
        try:
            raise RuntimeError("the reason")
        except RuntimeError:
            logger.exception("failed")
    (line,) = lines(path)
    assert line["text"].startswith("failed\nTraceback")
    assert line["text"].endswith("RuntimeError: the reason")


def test_warnings_go_to_stderr_too_and_nothing_else_does(tmp_path, capsys):
    with configure_logging(tmp_path / "server.log"):
        logger.info("all is well")
        logger.warning("look here")
    assert capsys.readouterr().err == "WARNING a.server: look here\n"


def test_without_a_file_only_stderr_is_written(capsys):
    with configure_logging(None):
        logger.error("look here")
    assert capsys.readouterr().err == "ERROR a.server: look here\n"


def test_logging_is_restored_afterwards(tmp_path):
    root = logging.getLogger()
    before = root.level, list(root.handlers), threading.active_count()
    with configure_logging(tmp_path / "server.log", level="DEBUG"):
        assert (root.level, list(root.handlers), threading.active_count()) != before
    assert (root.level, list(root.handlers), threading.active_count()) == before


def test_a_full_file_is_rotated_and_compressed_and_the_oldest_is_dropped(tmp_path):
    path = tmp_path / "server.log"
    with configure_logging(path, file_bytes_max=2_000, files_kept_max=3):
        for number in range(200):
            logger.info("message %d", number)
    names = sorted(file.name for file in tmp_path.iterdir())
    assert names == ["server.log", "server.log.1.gz", "server.log.2.gz", "server.log.3.gz"]
    kept = [line["text"] for name in (*names[:0:-1], names[0]) for line in lines(tmp_path / name)]
    assert kept == [f"message {number}" for number in range(200 - len(kept), 200)]
    assert len(kept) > 40
    for name in names[1:]:
        assert (tmp_path / name).stat().st_size < 1_000
        assert len(gzip.decompress((tmp_path / name).read_bytes())) <= 2_000


def test_a_log_that_cannot_keep_up_never_blocks_and_counts_what_it_dropped():
    queue = Queue(2)
    handler = BoundedQueueHandler(queue)

    def log(text):
        handler.handle(logging.makeLogRecord({"msg": text}))

    def taken():
        return [queue.get_nowait().getMessage() for _ in range(queue.qsize())]

    for text in "abcd":
        log(text)
    assert taken() == ["a", "b"]
    log("e")
    assert taken() == ["2 records were dropped: the log file cannot keep up", "e"]
    for text in "fgh":
        log(text)
    assert taken() == ["f", "g"]
    handler.close()
    assert taken() == ["1 records were dropped: the log file cannot keep up"]


def test_a_file_that_cannot_be_opened_leaves_logging_unchanged(tmp_path):
    root = logging.getLogger()
    before = root.level, list(root.handlers)
    with pytest.raises(OSError, match="missing"), configure_logging(tmp_path / "missing" / "x.log"):
        pass
    assert (root.level, list(root.handlers)) == before
