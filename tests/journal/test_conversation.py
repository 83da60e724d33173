"""The conversation in a recording, on whichever side it was recorded."""

import pytest

from mcp_trio._journal.conversation import (
    conversation,
    members_of,
    progress_token_of,
    without_meta,
)
from mcp_trio._journal.records import RecordEncoder, encode_body
from mcp_trio.errors import RecordingError
from tests.written_recordings import OPEN

IN = {"client": "out", "server": "in", "proxy": "in"}
OUT = {"client": "in", "server": "out", "proxy": "out"}


def recorded(*messages, role="server", whole=True):
    """Records of messages: ("C", message) by the client, ("S", message[, lane]) by the server."""
    encoder = RecordEncoder()
    records = [encoder.record("open", encode_body(OPEN | {"role": role}), 0)]
    for who, message, *lane in messages:
        kind = (IN if who == "C" else OUT)[role]
        body = message if isinstance(message, bytes) else encode_body({"jsonrpc": "2.0", **message})
        records.append(encoder.record(kind, body, len(records), *lane, embed=True))
    if whole:
        records.append(encoder.record("end", b'{"counts":{}}', len(records)))
    return records


def call(id_, name="x", token=None):
    params = {"name": name} if token is None else {"name": name, "_meta": {"progressToken": token}}
    return {"id": id_, "method": "tools/call", "params": params}


def note(method, **params):
    return {"method": f"notifications/{method}", "params": params}


SESSION = [
    ("S", note("message", data="ready")),
    ("C", call(1, token="t")),
    ("C", call("1")),
    ("S", note("progress", progressToken="t", progress=1)),
    ("S", {"id": 1, "method": "roots/list"}),
    ("C", {"id": 1, "result": {"roots": []}}),
    ("S", {"id": "1", "error": {"code": -1, "message": "no", "data": None}}),
    ("C", note("cancelled", requestId=1)),
    ("S", note("message", data="late")),
]


@pytest.mark.parametrize("role", ["client", "server", "proxy"])
def test_recordings_of_either_side_give_the_same_conversation(role):
    parsed = conversation(recorded(*SESSION, role=role))
    assert [each.sender for each in parsed.messages] == [
        {"C": "client", "S": "server"}[who] for who, _ in SESSION
    ]
    assert [each.request_index for each in parsed.messages] == [
        None,
        None,
        None,
        1,
        None,
        4,
        2,
        1,
        None,
    ]
    assert [each.cause_index for each in parsed.messages if each.sender == "server"] == [
        None,
        1,
        2,
        2,
        7,
    ]
    assert [each.method for each in parsed.messages if each.is_response] == [
        "roots/list",
        "tools/call",
    ]


def test_answers_cancellations_and_owned_messages_are_found():
    parsed = conversation(recorded(*SESSION))
    assert {index: message.index for index, message in parsed.responses.items()} == {4: 5, 2: 6}
    assert parsed.cancelled == {1}
    assert [message.index for message in parsed.caused[2]] == [4, 6]
    assert [message.index for message in parsed.caused[None]] == [0]
    assert 5 not in parsed.caused
    assert [message.index for message in parsed.of("client", "request")] == [1, 2]


def test_errors_are_kept_as_they_were():
    error = conversation(recorded(*SESSION)).messages[6]
    assert bytes(error.body) == b'{"code":-1,"message":"no","data":null}'


def test_the_lane_decides_the_cause_of_a_message():
    first, second = ("C", call(1)), ("C", call(2))
    hint = ("S", note("message", data="of the first"), "r1.2")
    parsed = conversation(recorded(first, second, hint))
    assert parsed.messages[2].cause_index == 0


def test_a_message_without_a_lane_belongs_to_the_only_open_request():
    answer = ("S", {"id": 2, "result": {}})
    hint = ("S", note("message", data="?"))
    parsed = conversation(
        recorded(("C", call(1)), ("C", call(2)), answer, ("C", note("other")), hint, role="proxy")
    )
    assert parsed.messages[4].cause_index == 0


def test_a_lane_without_a_message_is_ignored():
    parsed = conversation(recorded(("C", call(1)), ("S", note("message", data=0), "r77")))
    assert parsed.messages[1].cause_index == 0


def test_an_id_that_is_used_again_is_that_of_the_last_request():
    answer = ("S", {"id": 1, "result": {}})
    parsed = conversation(recorded(("C", call(1)), answer, ("C", call(1)), answer))
    assert [each.request_index for each in parsed.messages] == [None, 0, None, 2]


def test_a_question_that_is_taken_back_belongs_to_its_request():
    question = ("S", {"id": 9, "method": "roots/list"})
    back = ("S", note("cancelled", requestId=9))
    parsed = conversation(recorded(("C", call(1)), question, ("C", call(2)), back))
    assert (parsed.messages[3].request_index, parsed.messages[3].cause_index) == (1, 0)


@pytest.mark.parametrize(
    "message",
    [
        {"id": 5, "result": {}},
        {"error": {"code": 1, "message": ""}},
        note("progress", progressToken="unknown"),
        note("progress", progressToken=[]),
        note("cancelled"),
    ],
)
def test_a_message_about_no_request_has_no_request(message):
    parsed = conversation(recorded(("C", call(1)), ("S", message)))
    assert parsed.messages[1].request_index is None
    assert parsed.messages[1].method in {"", message.get("method")}


def test_malformed_messages_are_counted():
    parsed = conversation(recorded(("C", b"{"), ("C", b"[]"), ("C", call(1))))
    assert (parsed.unreadable, len(parsed.messages)) == (2, 1)


def test_a_cut_recording_has_the_messages_before_the_cut():
    assert len(conversation(recorded(("C", call(1)), whole=False)).messages) == 1


def test_of_several_sessions_one_is_chosen():
    encoder = RecordEncoder()
    records = [encoder.record("open", encode_body(OPEN), 0)]
    for channel in (1, 2, 2):
        body = encode_body({"jsonrpc": "2.0", **note(f"of/{channel}")})
        records.append(encoder.record("in", body, 1, channel=channel))
    with pytest.raises(RecordingError, match="2 sessions: choose one of the channels 1, 2"):
        conversation(records)
    with pytest.raises(
        RecordingError, match="no messages on channel 3; channels with messages: 1, 2"
    ):
        conversation(records, channel=3)
    assert len(conversation(records, channel=2).messages) == 2


@pytest.mark.parametrize("records", [[], recorded(("C", call(1)))[1:]])
def test_a_file_that_does_not_begin_like_a_recording_is_rejected(records):
    with pytest.raises(RecordingError, match="not a recording"):
        conversation(records)


def test_params_have_members_and_perhaps_a_token():
    messages = conversation(
        recorded(("C", call(1, token=3)), ("C", {"id": 2, "method": "ping"}))
    ).messages
    assert without_meta(messages[0].body) == {"name": "x"}
    assert (progress_token_of(messages[0].body), progress_token_of(messages[1].body)) == (3, None)
    assert members_of(messages[1].body) == {}
    assert progress_token_of(b'{"_meta":7}') is None


TAG = "io.modelcontextprotocol/subscriptionId"


def test_notifications_of_a_subscription_belong_to_its_request():
    tagged = {"_meta": {TAG: "s"}}
    parsed = conversation(
        recorded(
            ("C", {"id": "s", "method": "subscriptions/listen", "params": {}}),
            ("C", call(1)),
            ("S", note("subscriptions/acknowledged", **tagged)),
            ("S", note("tools/list_changed", **tagged)),
            ("S", note("tools/list_changed", _meta={TAG: "other"})),
            ("S", {"id": 1, "result": {}}),
            ("S", {"id": "s", "result": tagged}),
            ("S", note("cancelled", requestId="s", **tagged)),
            role="proxy",
        )
    )
    assert [each.request_index for each in parsed.messages] == [None, None, 0, 0, None, 1, 0, 0]
    # Notifications, and the end, belong to the call: requested long ago, they come with it.
    assert [each.cause_index for each in parsed.messages[2:]] == [0, 1, 1, 1, 1, 1]


ASKING = {"resultType": "input_required", "inputRequests": {"q1": {"method": "roots/list"}}}


def retry(id_, *, name="x", **members):
    return {"id": id_, "method": "tools/call", "params": {"name": name, **members}}


@pytest.mark.parametrize("role", ["client", "server", "proxy"])
def test_a_retry_is_tied_to_the_request_whose_questions_it_answers(role):
    parsed = conversation(
        recorded(
            ("C", call(1)),
            ("C", call(2)),
            ("S", {"id": 1, "result": ASKING | {"requestState": "one"}}),
            ("S", {"id": 2, "result": ASKING | {"requestState": "two"}}),
            ("C", retry(3, inputResponses={"q1": {}}, requestState="one")),
            ("S", {"id": 3, "result": ASKING | {"requestState": "three"}}),
            ("C", retry(4, requestState="two")),
            ("C", retry(5, requestState="three")),
            ("C", retry(6, requestState="unheard of")),
            ("C", call(7)),
            role=role,
        )
    )
    requests = parsed.of("client", "request")
    assert [each.retry_of for each in requests] == [None, None, 0, 1, 4, None, None]


def test_without_a_state_a_retry_is_tied_to_the_last_request_that_is_the_same():
    answers = {"inputResponses": {"q1": {"roots": []}}}
    parsed = conversation(
        recorded(
            ("C", call(1, "a")),
            ("C", call(2, "b", token="t")),
            ("S", {"id": 1, "result": ASKING}),
            ("S", {"id": 2, "result": ASKING}),
            ("C", retry(3, name="b", **answers)),
            ("C", retry(4, name="a", **answers)),
            ("C", retry(5, name="c", **answers)),
        )
    )
    assert [each.retry_of for each in parsed.of("client", "request")] == [None, None, 1, 0, None]


@pytest.mark.parametrize(
    "answer",
    [
        {"content": [{"text": "input_required"}]},
        {"resultType": "input_required", "requestState": 5},
        {"resultType": "input_required", "inputRequests": []},
    ],
)
def test_results_of_unknown_types_have_no_retries(answer):
    parsed = conversation(
        recorded(
            ("C", call(1)),
            ("S", {"id": 1, "result": answer}),
            ("C", retry(2, requestState=5)),
            ("C", retry(3, requestState=None)),
            ("C", retry(4, inputResponses={})),
        )
    )
    assert [each.retry_of for each in parsed.of("client", "request")] == [None] * 4


def test_params_that_no_value_can_be_are_like_no_others():
    endless = b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"inputResponses":{},"n":1e999}}'
    parsed = conversation(
        recorded(("C", endless), ("S", {"id": 1, "result": ASKING}), ("C", call(2)))
    )
    assert [each.retry_of for each in parsed.messages] == [None] * 3


def test_a_message_of_a_later_round_trip_is_caused_by_its_request():
    parsed = conversation(
        recorded(
            ("C", call(1)),
            ("S", note("message", data="first"), "r1"),
            ("S", {"id": 1, "result": ASKING | {"requestState": "one"}}, "r1"),
            ("C", retry(2, inputResponses={"q1": {}}, requestState="one")),
            ("S", note("message", data="second"), "r1"),
            ("S", {"id": 2, "result": ASKING | {"requestState": "two"}}, "r1"),
            ("C", retry(3, requestState="two")),
            ("S", note("message", data="third"), "r1"),
        )
    )
    owners = [
        each.cause_index for each in parsed.messages if each.method == "notifications/message"
    ]
    assert owners == [0, 3, 6]
