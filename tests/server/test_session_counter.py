"""Count the sessions of one server that are open at the same time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_trio._server.sessions import SessionCounter
from mcp_trio.recording import SharedRecording

FILES = [None, "a folder", SharedRecording("one"), SharedRecording("other")]


def test_a_single_session_counts_no_others():
    assert SessionCounter().opened(None).others() == 0


@pytest.mark.parametrize("file", FILES[:2])
def test_sessions_open_at_the_same_time_are_counted_even_after_they_close(file):
    session_counter = SessionCounter()
    session_counter.opened(file).closed()
    first = session_counter.opened(file)
    second = session_counter.opened(file)
    assert (first.others(), second.others()) == (1, 1)
    second.closed()
    third = session_counter.opened(file)
    assert (first.others(), third.others()) == (2, 1)


@given(
    st.lists(st.one_of(st.sampled_from(FILES), st.integers(0, 9)), max_size=30).map(
        lambda moves: [*moves, None]
    )
)
def test_the_count_equals_the_number_of_overlapping_sessions_in_other_files(moves):
    """A file opens a session recorded there, a number closes one of those that are open."""
    session_counter, open_now, met, counts = SessionCounter(), [], {}, {}
    for number, move in enumerate(moves):
        if isinstance(move, int):
            if open_now:
                open_now.pop(move % len(open_now))[2].closed()
            continue
        beside = counts[number] = session_counter.opened(move)
        met[number] = set()
        for other, file, _ in open_now:
            if move is not file or not isinstance(move, SharedRecording):
                met[number].add(other)
                met[other].add(number)
        open_now.append((number, move, beside))
    for number, _, _ in open_now:
        assert counts[number].others() == len(met[number])
