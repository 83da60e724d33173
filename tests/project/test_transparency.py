"""Comparison of sessions with and without the proxy, and of the proxy's recording."""

import io

import attrs
import pytest
import request_scripts
from environments import environment, prepare
from facts import FACTS
from method_counts import rows
from peers import PEERS
from scripted_host import ANSWERS
from transparency import MASKS, Observation, differences, first_difference, unrecorded

from mcp_trio._journal.records import RecordEncoder
from mcp_trio._protocol.methods import METHODS, Role

pytestmark = pytest.mark.slow

OBSERVED = Observation(
    sent=b"{}\n", received=b"[]\nhalf", server_received=b"{}\n", stderr=b"", status=0
)


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
MESSAGES = (("in", b"{}", None), ("out", b"[]", None), ("out", b"half", {"lf": False}))


def test_equal_sessions_do_not_differ():
    assert differences(OBSERVED, OBSERVED) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sent", b"x"),
        ("received", b"x"),
        ("server_received", None),
        ("stderr", b"x"),
        ("status", 1),
        ("failure", "x"),
    ],
)
def test_every_observed_difference_is_reported(name, value):
    other = attrs.evolve(OBSERVED, **{name: value})
    assert any(text.startswith(f"{name} differs") for text in differences(OBSERVED, other))


def test_the_server_has_to_receive_what_was_sent():
    observed = attrs.evolve(OBSERVED, server_received=b"{}")
    assert differences(observed, observed) == ["the server received something else than was sent"]
    observed = attrs.evolve(OBSERVED, server_received=None)
    assert differences(observed, observed) == []


def test_a_failed_session_is_reported_even_without_differences():
    observed = attrs.evolve(OBSERVED, status=None, failure="Unexpected: no")
    assert differences(observed, observed) == ["Unexpected: no", "the server did not end"]


def test_only_times_are_masked():
    def at(time, more=""):
        return attrs.evolve(
            OBSERVED, received=f'{{"datetime": "2026-01-01T{time}+01:00"}}{more}'.encode()
        )

    assert differences(at("12:00:00"), at("12:00:01"), MASKS["time"]) == []
    assert differences(at("12:00:00"), at("12:00:01")) != []
    assert differences(at("12:00:00"), at("12:00:00", "x"), MASKS["time"]) != []


@pytest.mark.parametrize(
    ("without", "through", "position"), [(b"abc", b"abd", 2), (b"ab", b"abc", 2), (b"", b"x", 0)]
)
def test_the_first_difference_is_shown(without, through, position):
    assert first_difference(without, through).startswith(f"at byte {position}, ")


def test_a_recording_of_all_that_passed_is_right():
    assert unrecorded(OBSERVED, recording(OPEN, *MESSAGES, END)) == []


def test_a_recording_without_end_or_of_other_bytes_is_wrong():
    assert unrecorded(OBSERVED, recording(OPEN, *MESSAGES)) == ["the recording has no end"]
    (text,) = unrecorded(OBSERVED, recording(OPEN, MESSAGES[0], MESSAGES[2], END))
    assert text.startswith("out is recorded otherwise: at byte 0")


def test_every_peer_has_a_script_and_a_long_line():
    assert PEERS.keys() <= request_scripts.SCRIPTS.keys()
    assert PEERS.keys() == request_scripts.BIG.keys()


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
