"""The tool that lets recordings stand in: what a client is asked to do, and what is complained of."""

import sys

import attrs
import mocks
import pytest
from mocks import CHANGES, EXAMPLE, Outcome
from session_script import differences, script_of, telling_of, things_in, unexpected

from mcp_trio import Client, Context, Server
from mcp_trio._replay.trace import load_conversation
from mcp_trio.recording import InputDifference, InputsReport

pytestmark = pytest.mark.slow


@pytest.fixture
async def recorded(tmp_path):
    """A call with progress and a question, and one that is refused."""
    path = tmp_path / "session.mcprec.jsonl"
    server = Server("told")

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


async def test_a_telling_has_all_that_the_client_was_told(recorded):
    telling = telling_of(recorded)
    handshake, called, pinged = telling["answers"]
    assert handshake["result"]["serverInfo"]["name"] == "told"
    assert called["result"]["content"][0]["text"] == '["file:///one"]'
    assert pinged == {"result": {}}
    assert [each["method"] for each in telling["asked"]] == ["roots/list"]
    assert [each["method"] for each in telling["heard"]] == ["notifications/progress"]
    assert things_in(telling) == 5


TELLING = {
    "answers": [{"result": {"n": 1}}],
    "asked": [{"method": "roots/list", "params": {}}],
    "heard": [
        {"method": "progress", "params": {"progressToken": 1, "progress": 1, "total": 2.5}},
        {"method": "changed", "params": {}},
    ],
    "faults": [],
}
SAME = {
    "asked": [{"method": "roots/list"}],
    "heard": [
        {"method": "changed"},
        {"method": "progress", "params": {"progress": 1.0, "total": 2.5}},
    ],
}


def test_tokens_the_order_of_messages_and_the_type_of_a_number_do_not_count():
    assert differences(TELLING, TELLING | SAME) == []


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ({"answers": [{"result": {"n": 2}}]}, ["$.answers[0].result.n: 1 became 2"]),
        ({"answers": []}, ["$.answers[0]: {'result': {'n': 1}} became nothing"]),
        ({"asked": []}, ["$.asked[0]: '[\"roots/list\", {}]' became nothing"]),
        ({"heard": TELLING["heard"][1:]}, ['$.heard[1]: \'["progress", ']),
        ({"faults": ["odd"]}, ["$.faults[0]: nothing became 'odd'"]),
    ],
)
def test_what_was_told_otherwise_is_found(told, found):
    (difference,) = differences(TELLING, TELLING | told)
    assert difference.startswith(found[0])


def test_what_is_not_expected_and_what_does_not_come_is_named():
    assert unexpected(["a", "b"], ["b", "c"]) == ["not expected: a", "has not come: c"]


def test_a_client_that_fails_or_says_something_on_stderr_is_complained_of():
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    output, complaints = mocks.printed([sys.executable, "-c", code])
    assert output == "out\n"
    assert complaints == ["the client exited with 3", "err"]
    assert mocks.printed([sys.executable, "-c", "print('1 checks')"]) == ("1 checks\n", [])


@pytest.mark.real_time
def test_a_client_that_does_not_end_is_complained_of(monkeypatch):
    monkeypatch.setattr(mocks, "SESSION_SECONDS", 0.1)
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    assert mocks.printed(command) == ("", ["no end after 0.1 s"])


def test_the_changed_example_differs_where_it_is_expected_to(tmp_path):
    outcome = mocks.drive_changed(tmp_path)
    assert outcome.complaints == []
    assert len(outcome.report.differences) == len(mocks.EXPECTED)


def test_an_unexpected_difference_and_a_missing_answer_are_complained_of(tmp_path):
    changed = InputDifference(kind="changed", subject="ping", path="$.result", recorded=1, live=2)
    report = InputsReport(
        requests=3, answered=2, differences=(changed,), ignored=0, unsent=0, unreadable=0
    )
    found = mocks.judged(tmp_path / "a.mcprec.jsonl", "b", report, expected=[])
    assert found.complaints == [
        "not expected: changed ping: $.result",
        "1 requests were not answered",
    ]


def test_a_change_that_has_no_place_any_more_is_an_error():
    source = EXAMPLE.read_text(encoding="utf-8")
    with pytest.raises(SystemExit, match=r"weather\.py does not hold"):
        mocks.with_changes(source.replace(next(iter(CHANGES)), ""))


def outcome(**changes):
    whole = Outcome(mode="mock", recording="session", other="client", compared=5, complaints=[])
    return attrs.evolve(whole, **changes)


def test_sessions_without_complaints_are_as_they_should_be(capsys):
    assert mocks.report([outcome(), outcome()], 1.0)
    assert "2 sessions, 10 comparisons, 0 complaints, 1 s" in capsys.readouterr().out


def test_a_complaint_is_printed_and_counted(capsys):
    assert not mocks.report([outcome(complaints=["it is odd"])], 1.0)
    out = capsys.readouterr().out
    assert "mock, session with client: it is odd" in out
    assert "5 comparisons, 1 complaints" in out
