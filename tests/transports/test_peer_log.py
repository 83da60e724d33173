"""The log of a peer's faults, under Trio's mock clock."""

import logging

import pytest

from mcp_trio._transports.peer_log import KINDS_MAX, PeerLog


@pytest.fixture
def log(mock_clock):
    return PeerLog()


async def test_one_line_a_second_is_logged_with_the_number_of_those_left_out(
    log, mock_clock, caplog
):
    for number in range(1000):
        log.report("junk", f"line {number}")
    mock_clock.jump(0.99)
    log.report("junk", "line 1000")
    mock_clock.jump(0.01)
    log.report("junk", "line 1001")
    mock_clock.jump(1)
    log.report("junk", "line 1002")
    assert caplog.messages == [
        "line 0",
        "line 1001 (and 1000 more like this before)",
        "line 1002",
    ]


async def test_kinds_and_peers_do_not_count_for_each_other(log, caplog):
    other = PeerLog()
    for each in (log, other):
        for kind in ("a", "b", "a"):
            each.report(kind, kind)
    assert caplog.messages == ["a", "b", "a", "b"]


async def test_the_rest_is_counted_at_the_end(log, caplog):
    for number in range(3):
        log.report("junk", f"line {number}", level=logging.ERROR)
    log.report("other", "one line")
    log.close()
    log.close()
    assert caplog.messages == [
        "line 0",
        "one line",
        "line 2 (and 2 more like this)",
    ]
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING", "ERROR"]


async def test_lines_below_the_level_of_the_logger_are_not_counted(log, caplog):
    caplog.set_level(logging.WARNING, "mcp_trio")
    log.report("junk", "not seen", level=logging.DEBUG)
    log.report("junk", "seen")
    assert caplog.messages == ["seen"]


async def test_a_line_names_its_origin_and_has_the_traceback(log, caplog):
    try:
        raise ValueError("no")
    except ValueError as error:
        log.report("failed", "it failed", error=error)
    (record,) = caplog.records
    assert record.filename == "test_peer_log.py"
    assert record.exc_info[0] is ValueError


async def test_kinds_beyond_their_maximum_share_one_line_a_second(log, mock_clock, caplog):
    for number in range(1000):
        log.report(f"kind {number}", f"line {number}")
    assert caplog.messages == [f"line {number}" for number in range(KINDS_MAX + 1)]
    log.report("kind 3", "again")
    mock_clock.jump(1)
    log.report("a new kind", "new")
    log.report("a new kind", "newer")
    assert caplog.messages[KINDS_MAX + 1 :] == [
        "again (and 1 more like this)",
        f"line 999 (and {999 - KINDS_MAX} more like this)",
        "new",
    ]
