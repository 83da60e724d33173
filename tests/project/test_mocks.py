"""`tools/interop/mocks.py`: clients repeat recordings, and differences are reported."""

import sys

import attrs
import mocks
import pytest
from mocks import (
    CHANGES,
    EXAMPLE,
    Outcome,
    differences,
    item_count,
    script_of,
    transcript_of,
    unexpected,
)

from mcp_trio import Client, Context, Server
from mcp_trio._replay.trace import load_conversation
from mcp_trio.recording import InputDifference, InputsReport

pytestmark = pytest.mark.slow


@pytest.fixture
async def recorded(tmp_path):
    """A call with progress and a question, and one that is refused."""
    path = tmp_path / "session.mcprec.jsonl"
    server = Server("received")

    @server.tool
    async def roots(*, ctx: Context) -> list[str]:
        await ctx.progress(1, 2)
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
    assert differences(TRANSCRIPT, TRANSCRIPT | SAME) == []


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
    (difference,) = differences(TRANSCRIPT, TRANSCRIPT | received)
    assert difference.startswith(found[0])


def test_what_is_not_expected_and_what_does_not_come_is_named():
    assert unexpected(["a", "b"], ["b", "c"]) == ["not expected: a", "missing: c"]


def test_a_client_that_fails_or_says_something_on_stderr_is_reported():
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    output, problems = mocks.run_client([sys.executable, "-c", code])
    assert output == "out\n"
    assert problems == ["the client exited with 3", "err"]
    assert mocks.run_client([sys.executable, "-c", "print('1 checks')"]) == ("1 checks\n", [])


@pytest.mark.real_time
def test_a_client_that_does_not_end_is_reported(monkeypatch):
    monkeypatch.setattr(mocks, "SESSION_SECONDS", 0.1)
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    assert mocks.run_client(command) == ("", ["no end after 0.1 s"])


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
