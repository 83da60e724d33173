"""Comparisons of sessions: with and without the proxy, and of mocks with their recordings."""

import io
import sys

import attrs
import mocks
import pytest
import request_scripts
from environments import environment, prepare
from facts import FACTS
from method_counts import rows
from mocks import CHANGES, EXAMPLE, Outcome, item_count, script_of, transcript_of, unexpected
from peers import PEERS
from scripted_host import ANSWERS
from transparency import MASKS, Observation, differences, first_difference, unrecorded

from mcp_trio import Client, Context, Server
from mcp_trio._journal.records import RecordEncoder
from mcp_trio._protocol.methods import METHODS, Role
from mcp_trio._replay.trace import load_conversation
from mcp_trio.recording import InputDifference, InputsReport

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
    b'{"format_version":2,"transport":"stdio","role":"proxy","name":"x","version":"","started":""}',
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


# `tools/interop/mocks.py`


@pytest.fixture
async def recorded(tmp_path):
    """A call with progress and an input request, and one that is rejected."""
    path = tmp_path / "session.mcprec.jsonl"
    server = Server("received")

    @server.tool
    async def roots(*, ctx: Context) -> list[str]:
        await ctx.report_progress(1, 2)
        return [root.uri for root in await ctx.list_roots()]

    async with Client(
        server, protocol_versions=["2024-11-05"], roots=["file:///one"], record=path
    ) as client:
        await client.call_tool("roots", progress=lambda _: None)
        await client.ping()
    return load_conversation(path)


async def test_a_script_has_requests_and_a_reply_to_each_kind_of_question(recorded):
    assert script_of(recorded) == {
        "requests": [
            {"method": "tools/call", "params": {"name": "roots"}, "wantsProgress": True},
            {"method": "ping", "wantsProgress": False},
        ],
        "replies": {"roots/list": {"roots": [{"uri": "file:///one"}]}},
    }


async def test_a_transcript_has_all_that_the_client_received(recorded):
    transcript = transcript_of(recorded)
    handshake, called, pinged = transcript["answers"]
    assert handshake["result"]["serverInfo"]["name"] == "received"
    assert called["result"]["content"][0]["text"] == '["file:///one"]'
    assert pinged == {"result": {}}
    assert [each["method"] for each in transcript["serverRequests"]] == ["roots/list"]
    assert [each["method"] for each in transcript["notifications"]] == ["notifications/progress"]
    assert item_count(transcript) == 5


TRANSCRIPT = {
    "answers": [{"result": {"n": 1}}],
    "serverRequests": [{"method": "roots/list", "params": {}}],
    "notifications": [
        {"method": "progress", "params": {"progressToken": 1, "progress": 1, "total": 2.5}},
        {"method": "changed", "params": {}},
    ],
    "errors": [],
}
SAME = {
    "serverRequests": [{"method": "roots/list"}],
    "notifications": [
        {"method": "changed"},
        {"method": "progress", "params": {"progress": 1.0, "total": 2.5}},
    ],
}


def test_tokens_the_order_of_messages_and_the_type_of_a_number_do_not_count():
    assert mocks.differences(TRANSCRIPT, TRANSCRIPT | SAME) == []


@pytest.mark.parametrize(
    ("received", "found"),
    [
        ({"answers": [{"result": {"n": 2}}]}, ["$.answers[0].result.n: 1 became 2"]),
        ({"answers": []}, ["$.answers[0]: {'result': {'n': 1}} became nothing"]),
        ({"serverRequests": []}, ["$.serverRequests[0]: '[\"roots/list\", {}]' became nothing"]),
        (
            {"notifications": TRANSCRIPT["notifications"][1:]},
            ['$.notifications[1]: \'["progress", '],
        ),
        ({"errors": ["odd"]}, ["$.errors[0]: nothing became 'odd'"]),
    ],
)
def test_differences_from_the_recording_are_found(received, found):
    (difference,) = mocks.differences(TRANSCRIPT, TRANSCRIPT | received)
    assert difference.startswith(found[0])


def test_unexpected_and_missing_outcomes_are_named():
    assert unexpected(["a", "b"], ["b", "c"]) == ["not expected: a", "missing: c"]


def test_a_client_that_fails_or_writes_to_stderr_is_reported():
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    done = mocks.run_client([sys.executable, "-c", code])
    assert done.stdout == "out\n"
    assert mocks.problems_of(done) == ["the client exited with 3: \nerr"]
    done = mocks.run_client([sys.executable, "-c", f"{code[:-11]}"])
    assert mocks.problems_of(done) == ["err"]
    done = mocks.run_client([sys.executable, "-c", "print('1 checks')"])
    assert (done.checks, mocks.problems_of(done)) == (1, [])


@pytest.mark.real_time
def test_a_client_that_does_not_end_is_reported(monkeypatch):
    monkeypatch.setattr(mocks, "SESSION_SECONDS", 0.1)
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    assert mocks.problems_of(mocks.run_client(command)) == ["no end after 0.1 s"]


def test_the_changed_example_differs_where_it_is_expected_to(tmp_path):
    outcome = mocks.drive_changed(tmp_path)
    assert outcome.problems == []
    assert len(outcome.report.differences) == len(mocks.EXPECTED)


def test_an_unexpected_difference_and_a_missing_answer_are_reported(tmp_path):
    changed = InputDifference(kind="changed", subject="ping", path="$.result", recorded=1, live=2)
    report = InputsReport(
        requests=3, answered=2, differences=(changed,), ignored=0, unsent=0, unreadable=0
    )
    found = mocks.inputs_outcome(tmp_path / "a.mcprec.jsonl", "b", report, expected=[])
    assert found.problems == [
        "not expected: changed ping: $.result",
        "1 requests were not answered",
    ]


def test_a_change_whose_source_text_is_missing_is_an_error():
    source = EXAMPLE.read_text(encoding="utf-8")
    with pytest.raises(SystemExit, match=r"weather\.py does not hold"):
        mocks.with_changes(source.replace(next(iter(CHANGES)), ""))


def outcome(**changes):
    whole = Outcome(mode="mock", recording="session", other="client", compared=5, problems=[])
    return attrs.evolve(whole, **changes)


def test_sessions_without_complaints_are_as_they_should_be(capsys):
    assert mocks.report([outcome(), outcome()], 1.0)
    assert "2 sessions, 10 comparisons, 0 problems, 1 s" in capsys.readouterr().out


def test_a_complaint_is_printed_and_counted(capsys):
    assert not mocks.report([outcome(problems=["it is odd"])], 1.0)
    out = capsys.readouterr().out
    assert "mock, session with client: it is odd" in out
    assert "5 comparisons, 1 problems" in out
