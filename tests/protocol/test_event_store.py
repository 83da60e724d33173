"""The event store in memory."""

import gc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from mcp_trio._protocol.stores import MemoryEventStore
from mcp_trio.transports import RelatedMessage

EVENTS_MAX = 6
BYTES_MAX = 20


def opened(events_max=EVENTS_MAX, bytes_max=BYTES_MAX, streams=1):
    buffer = MemoryEventStore(events_max=events_max, bytes_max=bytes_max)
    return buffer, *(buffer.open_stream() for _ in range(streams))


def kept_on(buffer, first_id):
    """The data behind an event; None if it is not all there."""
    try:
        return [data for _, data in buffer.after(first_id)[1]]
    except LookupError:
        return None


class Model:
    """The rules over everything that ever happened, without a thought for cost."""

    def __init__(self):
        self.streams = {}  # Number to all data that ever came on it.
        self.kept = []  # Pairs of stream and number, the oldest first.
        self.closed = []

    def keep(self, stream, data):
        self.streams[stream].append(data)
        self.kept.append((stream, len(self.streams[stream])))
        if len(data) > BYTES_MAX:
            self.kept = [kept for kept in self.kept if kept[0] != stream]
        self.forget_surplus()

    def append_ended_stream(self, stream, events):
        self.streams[stream] = [b"", *events]
        self.closed.append(stream)
        if sum(map(len, events)) <= BYTES_MAX:
            kept = range(2, len(events) + 2) if events else [1]
            self.kept += [(stream, number) for number in kept]
        self.forget_surplus()

    def forget_surplus(self):
        while len(self.kept) > EVENTS_MAX or sum(map(self.size, self.kept)) > BYTES_MAX:
            self.kept.remove(min(self.kept, key=self.rank))

    def size(self, kept):
        stream, number = kept
        return len(self.streams[stream][number - 1])

    def rank(self, kept):
        stream, _ = kept
        closed = self.closed.index(stream) if stream in self.closed else len(self.closed)
        return closed, self.kept.index(kept)

    def after(self, stream, number):
        data = self.streams.get(stream, [])
        following = [(stream, at) for at in range(number + 1, len(data) + 1)]
        is_forgotten = stream in self.closed and all(kept[0] != stream for kept in self.kept)
        if not 1 <= number <= len(data) or is_forgotten or not set(following) <= set(self.kept):
            return None
        return stream, [(f"{stream}-{at}", data[at - 1]) for _, at in following]


class Replaying(RuleBasedStateMachine):
    """A session's streams, opened, filled and closed in any order."""

    def __init__(self):
        super().__init__()
        self.buffer = MemoryEventStore(events_max=EVENTS_MAX, bytes_max=BYTES_MAX)
        self.model = Model()

    def open_streams(self):
        return [stream for stream in self.model.streams if stream not in self.model.closed]

    @rule()
    def open_stream(self):
        stream = self.buffer.open_stream()
        assert stream not in self.model.streams
        self.model.streams[stream] = []

    @precondition(lambda self: self.open_streams())
    @rule(
        data=st.data(),
        sizes=st.lists(st.sampled_from([0, 1, 3, 9, 20, 21]), min_size=1, max_size=3),
    )
    def keep(self, data, sizes):
        stream = data.draw(st.sampled_from(self.open_streams()))
        for size in sizes:
            content = b"%06d" % len(self.model.streams[stream])
            content = (content * 4)[:size]
            self.model.keep(stream, content)
            event_id = self.buffer.keep(stream, content)
            assert event_id == f"{stream}-{len(self.model.streams[stream])}"

    @rule(sizes=st.lists(st.sampled_from([0, 1, 3, 9, 20, 21]), max_size=8))
    def append_ended_stream(self, sizes):
        stream = len(self.model.streams) + 1
        events = [(b"%06d" % at * 4)[:size] for at, size in enumerate(sizes)]
        self.model.append_ended_stream(stream, events)
        ids = [f"{stream}-{at}" for at in range(1, len(events) + 2)]
        assert self.buffer.append_ended_stream(events) == ids

    @precondition(lambda self: self.open_streams())
    @rule(data=st.data())
    def close_stream(self, data):
        stream = data.draw(st.sampled_from(self.open_streams()))
        self.buffer.close_stream(stream)
        self.model.closed.append(stream)

    @invariant()
    def replays_what_the_rules_say(self):
        for stream in range(len(self.model.streams) + 2):
            for number in range(len(self.model.streams.get(stream, [])) + 2):
                expected = self.model.after(stream, number)
                if expected is None:
                    with pytest.raises(LookupError):
                        self.buffer.after(f"{stream}-{number}")
                else:
                    assert self.buffer.after(f"{stream}-{number}") == expected

    @invariant()
    def remembers_no_more_than_it_may(self):
        ended = self.buffer._ended
        kept = [data for stream in self.buffer._open.values() for _, data in stream.events]
        kept += [data for _, _, *events in ended for data in events]
        assert len(kept) == self.buffer._kept_events <= EVENTS_MAX
        assert sum(map(len, kept)) == self.buffer._kept_bytes <= BYTES_MAX
        assert all(len(stream) > 2 for stream in ended)


@pytest.mark.slow
@pytest.mark.requirement("HTTP-38", "HTTP-39", "HTTP-42", "HTTP-43", "TRAP-39")
def test_any_sequence_of_operations_matches_a_simple_model():
    run_state_machine_as_test(Replaying, settings=settings(max_examples=60, deadline=None))


@pytest.mark.requirement("HTTP-37", "HTTP-38", "HTTP-39")
def test_an_id_names_its_stream_and_is_never_given_twice():
    buffer, first, second = opened(streams=2)
    ids = [buffer.keep(stream, b"a") for stream in (first, second, first, second)]
    buffer.close_stream(second)
    ids += [buffer.keep(buffer.open_stream(), b"a"), buffer.keep(first, b"a")]
    assert ids == ["1-1", "2-1", "1-2", "2-2", "3-1", "1-3"]
    assert [buffer.after(event_id)[0] for event_id in ids] == [1, 2, 1, 2, 3, 1]


@pytest.mark.requirement("HTTP-42", "HTTP-43", "TRAP-39")
def test_only_later_events_of_the_same_stream_are_returned():
    buffer, first, second = opened(streams=2)
    priming = buffer.keep(first, b"")
    buffer.keep(second, b"other")
    buffer.keep(first, b"one")
    buffer.keep(first, b"two")
    assert buffer.after(priming) == (first, [("1-2", b"one"), ("1-3", b"two")])
    assert buffer.after("1-2") == (first, [("1-3", b"two")])
    assert buffer.after("1-3") == (first, [])
    assert buffer.after("1-1") == buffer.after("1-1")


@pytest.mark.requirement("HTTP-42")
def test_a_resumed_stream_continues():
    buffer, stream = opened()
    buffer.keep(stream, b"one")
    assert buffer.after("1-1") == (stream, [])
    assert buffer.keep(stream, b"two") == "1-2"
    assert buffer.after("1-1") == (stream, [("1-2", b"two")])


def test_a_closed_stream_can_be_replayed_while_there_is_room():
    buffer, stream = opened()
    buffer.keep(stream, b"")
    buffer.keep(stream, b"answer")
    buffer.close_stream(stream)
    assert buffer.after("1-1") == (stream, [("1-2", b"answer")])
    assert buffer.after("1-2") == (stream, [])


@pytest.mark.requirement("TRAP-39")
def test_the_oldest_events_go_first():
    buffer, first, second = opened(events_max=2, streams=2)
    for stream in (first, second, first):
        buffer.keep(stream, b"a")
    # Nothing is missing behind an event that is itself forgotten.
    assert kept_on(buffer, "1-1") == [b"a"]
    buffer.keep(first, b"b")
    buffer.keep(second, b"c")
    assert kept_on(buffer, "1-1") is None
    assert kept_on(buffer, "1-2") == [b"b"]
    assert kept_on(buffer, "2-1") == [b"c"]


def test_events_of_closed_streams_go_before_older_ones_of_open_streams():
    buffer, first, second, third = opened(events_max=4, streams=3)
    for stream in (first, second, third, second):
        buffer.keep(stream, b"a")
    buffer.close_stream(third)
    buffer.close_stream(second)
    buffer.keep(first, b"b")
    assert kept_on(buffer, "3-1") is None
    buffer.keep(first, b"c")
    assert kept_on(buffer, "2-1") == [b"a"]
    buffer.keep(first, b"d")
    assert kept_on(buffer, "2-1") is None
    assert kept_on(buffer, "1-1") == [b"b", b"c", b"d"]


@pytest.mark.requirement("TRAP-39")
def test_the_bytes_that_are_kept_have_their_bound():
    buffer, first, second = opened(bytes_max=20, streams=2)
    buffer.keep(first, b"x" * 10)
    buffer.keep(second, b"")
    buffer.keep(first, b"x" * 10)
    assert kept_on(buffer, "1-1") == [b"x" * 10]
    buffer.keep(second, b"y")
    assert kept_on(buffer, "2-1") == [b"y"]
    buffer.keep(second, b"x" * 20)
    assert kept_on(buffer, "1-1") is None
    assert kept_on(buffer, "2-2") == [b"x" * 20]


def test_an_event_that_is_too_large_to_keep_costs_its_own_stream_alone():
    buffer, first, second = opened(bytes_max=20, streams=2)
    buffer.keep(first, b"a")
    buffer.keep(first, b"b")
    assert buffer.keep(second, b"c") == "2-1"
    assert buffer.keep(second, b"x" * 21) == "2-2"
    assert kept_on(buffer, "1-1") == [b"b"]
    assert kept_on(buffer, "2-1") is None
    assert kept_on(buffer, "2-2") == []
    buffer.keep(second, b"d")
    assert kept_on(buffer, "2-2") == [b"d"]


def test_a_buffer_without_room_gives_ids_and_keeps_nothing():
    buffer, stream = opened(events_max=0)
    assert [buffer.keep(stream, b"a"), buffer.keep(stream, b"b")] == ["1-1", "1-2"]
    assert kept_on(buffer, "1-1") is None
    assert kept_on(buffer, "1-2") == []


@pytest.mark.parametrize(
    "event_id",
    [
        *("", "-", "1", "1-", "-1", "1-3", "1-0", "0-1", "2-1", "3-1", "1-1-1", "1-+1", "1--1"),
        *(" 1-1", "1-1 ", "1-1\n", "01-1", "1-01", "1_0-1", "1-1.0", "١-١", "1-" + "9" * 5000),
    ],
)
def test_an_id_that_was_never_given_is_unknown(event_id):
    buffer, stream, _ = opened(streams=2)
    buffer.keep(stream, b"a")
    buffer.keep(stream, b"b")
    with pytest.raises(LookupError, match="unknown"):
        buffer.after(event_id)


@given(st.text())
def test_any_text_may_be_asked_for(event_id):
    buffer, stream = opened()
    buffer.keep(stream, b"a")
    assert kept_on(buffer, event_id) is None or event_id == "1-1"


def test_a_stream_is_closed_once_and_then_takes_nothing():
    buffer, stream = opened()
    buffer.keep(stream, b"a")
    buffer.close_stream(stream)
    with pytest.raises(KeyError):
        buffer.keep(stream, b"b")
    with pytest.raises(KeyError):
        buffer.close_stream(stream)


@pytest.mark.requirement("TRAP-39")
def test_streams_that_came_and_went_leave_nothing():
    buffer, lasting = opened(events_max=3)
    for _ in range(1000):
        stream = buffer.open_stream()
        if stream % 2:
            buffer.keep(stream, b"a")
        buffer.close_stream(stream)
    assert len(buffer._ended) == 3
    assert list(buffer._open) == [lasting]


def test_the_mark_of_an_ended_stream_is_not_stored():
    buffer = MemoryEventStore(events_max=1, bytes_max=BYTES_MAX)
    assert buffer.append_ended_stream([b"answer"]) == ["1-1", "1-2"]
    assert buffer.after("1-1") == (1, [("1-2", b"answer")])
    assert buffer.after("1-2") == (1, [])


def test_the_collector_follows_nothing_that_is_kept_of_ended_streams():
    buffer, stream = opened()
    message = RelatedMessage(b"answer", 1, is_response=True)
    buffer.append_ended_stream([message])
    buffer.keep(stream, message)
    buffer.close_stream(stream)
    gc.collect()
    assert not any(map(gc.is_tracked, buffer._ended))
    assert [type(data) for _, _, data in buffer._ended] == [bytes, bytes]
