"""What is compared of two sessions, with and without a proxy between, and of its recording."""

import io

import attrs
import pytest
import stories
from environments import environment, prepare
from facts import FACTS
from method_counts import rows
from peers import PEERS
from scripted_host import ANSWERS
from session_comparison import MASKS, Seen, differences, first_difference, unrecorded

from mcp_trio._journal.records import RecordEncoder
from mcp_trio._protocol.methods import METHODS, Role

pytestmark = pytest.mark.slow

SEEN = Seen(said=b"{}\n", heard=b"[]\nhalf", got=b"{}\n", stderr=b"", status=0)


def recording(*records):
    encoder = RecordEncoder()
    return io.BytesIO(
        encoder.lines(
            [
                encoder.record(kind, body, 0, envelope=envelope, embed=False)
                for kind, body, envelope in records
            ]
        )
    )


OPEN = (
    "open",
    b'{"format_version":1,"transport":"stdio","role":"proxy","name":"x","version":"","started":""}',
    None,
)
END = ("end", b'{"counts":{}}', None)
PASSED = (("in", b"{}", None), ("out", b"[]", None), ("out", b"half", {"lf": False}))


def test_equal_sessions_do_not_differ():
    assert differences(SEEN, SEEN) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("said", b"x"),
        ("heard", b"x"),
        ("got", None),
        ("stderr", b"x"),
        ("status", 1),
        ("fault", "x"),
    ],
)
def test_whatever_is_seen_otherwise_is_a_difference(name, value):
    other = attrs.evolve(SEEN, **{name: value})
    assert any(text.startswith(f"{name} differs") for text in differences(SEEN, other))


def test_what_comes_to_the_server_has_to_be_what_was_said():
    seen = attrs.evolve(SEEN, got=b"{}")
    assert differences(seen, seen) == ["what came to the server is not what was said"]
    seen = attrs.evolve(SEEN, got=None)
    assert differences(seen, seen) == []


def test_a_session_that_went_wrong_is_no_witness():
    seen = attrs.evolve(SEEN, status=None, fault="Unexpected: no")
    assert differences(seen, seen) == ["Unexpected: no", "the server did not end"]


def test_times_are_masked_and_nothing_beside_them():
    def at(time, more=""):
        return attrs.evolve(SEEN, heard=f'{{"datetime": "2026-01-01T{time}+01:00"}}{more}'.encode())

    assert differences(at("12:00:00"), at("12:00:01"), MASKS["time"]) == []
    assert differences(at("12:00:00"), at("12:00:01")) != []
    assert differences(at("12:00:00"), at("12:00:00", "x"), MASKS["time"]) != []


@pytest.mark.parametrize(
    ("without", "through", "place"), [(b"abc", b"abd", 2), (b"ab", b"abc", 2), (b"", b"x", 0)]
)
def test_the_first_difference_is_shown(without, through, place):
    assert first_difference(without, through).startswith(f"at byte {place}, ")


def test_a_recording_of_all_that_passed_is_right():
    assert unrecorded(SEEN, recording(OPEN, *PASSED, END)) == []


def test_a_recording_without_end_or_of_other_bytes_is_wrong():
    assert unrecorded(SEEN, recording(OPEN, *PASSED)) == ["the recording has no end"]
    (text,) = unrecorded(SEEN, recording(OPEN, PASSED[0], PASSED[2], END))
    assert text.startswith("out is recorded otherwise: at byte 0")


def test_every_peer_has_a_story_and_a_long_line():
    assert PEERS.keys() <= stories.STORIES.keys()
    assert PEERS.keys() == stories.BIG.keys()


def test_a_server_sees_nothing_of_the_machine_but_programs(tmp_path):
    folder = tmp_path / "git"
    prepare("git", folder)
    assert sorted(path.name for path in folder.iterdir()) == [".git", "notes.txt", "poem.txt"]
    variables = environment(folder)
    assert {name for name in variables if not name.startswith("GIT_")} == {
        *("HOME", "LANG", "MEMORY_FILE_PATH", "PATH", "TZ"),
    }
    assert variables["HOME"] == str(folder)


def test_the_host_answers_whatever_a_server_may_ask():
    requests = {method.name for method in METHODS.values() if method.is_request}
    assert (
        ANSWERS.keys()
        == {row.name for row in rows(FACTS.protocol_version) if row.sender is Role.SERVER}
        & requests
    )
