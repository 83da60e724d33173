"""Mock servers: matching of requests, and the order of messages."""

import contextlib
import functools
import sys
import tracemalloc
from pathlib import Path

import httpx2
import msgspec
import pytest
import trio
import trio.testing
from server_processes import free_port

from mcp_trio import Client, ConnectionLost, Limits, MCPError, RequestError
from mcp_trio._journal.conversation import conversation
from mcp_trio._replay.live_messages import LivePeer
from mcp_trio._replay.mock import MockSession, mocked_protocol_versions
from mcp_trio.auth import Bearer
from mcp_trio.errors import MockMismatch
from mcp_trio.examples.weather import server as weather
from mcp_trio.limits import DEFAULT_LIMITS, MessageLimits, RequestLimits
from mcp_trio.recording import read_recording, replay_async, replay_live_async
from mcp_trio.testing import WirePeer, mock_client, mock_server
from mcp_trio.transports import memory_pair
from tests.replay.conversations import (
    SERVER_INFO,
    STATELESS,
    TAG,
    call,
    exchange,
    note,
    result,
    stateless_call,
    stateless_request,
    without_jsonrpc,
)
from tests.two_users import TOKENS, TOURS, record_two_users, tour
from tests.ways import WAYS, opened, sent_away, served

RECORDINGS = Path(__file__).parents[2] / "recordings"


async def test_a_client_gets_the_recorded_results():
    with mock_server(RECORDINGS / "everything-our-client.mcprec.jsonl") as mock:
        async with Client(mock, roots=["file:///tmp"]) as client:
            assert client.server_info.name == "mcp-servers/everything"
            assert len(await client.list_tools()) == len(await client.list_tools()) > 10
            result = await client.call_tool("get-sum", {"a": 2, "b": 40})
            assert result.content[0].text == "The sum of 2 and 40 is 42."
            with pytest.raises(
                RequestError, match="closest recorded requests: record 19, which differs at"
            ):
                await client.call_tool("get-sum", {"a": 2, "b": 41})
    assert len(mock.unrecorded) == 1
    assert "tools/call (record 15)" in mock.unused


async def test_ids_and_tokens_are_those_of_the_live_client(recording_of, connect):
    peer = connect(
        mock_server(
            recording_of(
                ("C", call(1, _meta={"progressToken": "t"})),
                ("S", note("progress", progressToken="t", progress=1)),
                ("S", result(1, a=1)),
                ("C", call(2, _meta={"progressToken": "u"})),
                ("S", note("progress", progressToken="u", progress=1)),
                ("S", {"id": 2, "error": {"code": -7, "message": "no", "data": None}}),
            )
        )
    )
    assert await exchange(peer, call("live", _meta={"progressToken": 5})) == [
        note("progress", progressToken=5, progress=1),
        result("live", a=1),
    ]
    assert await exchange(peer, call("other")) == [
        {"id": "other", "error": {"code": -7, "message": "no", "data": None}}
    ]


async def test_equal_requests_get_their_answers_in_the_recorded_order(recording_of, connect):
    peer = connect(
        mock_server(
            recording_of(
                ("C", call(1, "a")),
                ("S", result(1, n=1)),
                ("C", call(2, "b")),
                ("S", result(2, n=2)),
                ("C", call(3, "a")),
                ("S", result(3, n=3)),
            )
        )
    )
    assert await exchange(peer, call(9, "b")) == [result(9, n=2)]
    assert await exchange(peer, call(8, "a"), call(7, "a")) == [result(8, n=1), result(7, n=3)]
    (rejected,) = await exchange(peer, call(6, "a"))
    assert rejected["error"] == {
        "code": -32602,
        "message": (
            'this is a mock: tools/call {"name":"a"} was not recorded; closest recorded requests: record 1, which was'
            " answered already; record 5, which was answered already; record 3, which differs at $.name"
        ),
    }


@pytest.mark.parametrize(("recorded", "live"), [({}, {"arguments": {}}), ({"arguments": {}}, {})])
async def test_no_arguments_are_the_same_as_an_empty_object(recording_of, connect, recorded, live):
    peer = connect(mock_server(recording_of(("C", call(1, **recorded)), ("S", result(1)))))
    assert await exchange(peer, call(2, **live)) == [result(2)]


async def test_lists_and_pings_can_be_repeated(recording_of, connect):
    lists = {"id": 1, "method": "tools/list", "params": {}}
    peer = connect(
        mock_server(
            recording_of(
                ("C", lists), ("S", result(1, tools=[1])), ("C", lists), ("S", result(1, tools=[2]))
            )
        )
    )
    answers = [await exchange(peer, {"id": n, "method": "tools/list"}) for n in range(3)]
    assert [each["result"]["tools"] for (each,) in answers] == [[1], [2], [2]]
    assert await exchange(peer, {"id": 4, "method": "ping"}) == [result(4)]


async def test_a_request_whose_response_was_cut_off_is_rejected(recording_of, connect):
    path = recording_of(
        ("C", call(1, _meta={"progressToken": "t"})),
        ("S", {"id": 5, "method": "ping"}),
        ("C", result(5)),
        ("S", note("progress", progressToken="t", progress=1)),
    )
    peer = connect(mock_server(path))
    (asked,) = await exchange(peer, call("live", _meta={"progressToken": 5}))
    text = "this is a mock: the recording has no response to tools/call (record 1)"
    rejected = {"id": "live", "error": {"code": -32603, "message": text}}
    assert await exchange(peer, result(asked["id"])) == [
        note("progress", progressToken=5, progress=1),
        rejected,
    ]


async def test_a_list_that_was_never_answered_is_rejected(recording_of, connect):
    peer = connect(mock_server(recording_of(("C", {"id": 1, "method": "tools/list"}))))
    answers = await exchange(peer, *({"id": n, "method": "tools/list"} for n in range(2)))
    texts = [each["error"]["message"] for each in answers]
    assert texts[0] == "this is a mock: the recording has no response to tools/list (record 1)"
    assert "was not recorded" in texts[1]


async def test_a_repeated_list_gets_the_last_answer_although_a_later_one_was_cut(
    recording_of, connect
):
    lists = {"id": 1, "method": "tools/list"}
    path = recording_of(("C", lists), ("S", result(1, tools=[1])), ("C", {**lists, "id": 2}))
    peer = connect(mock_server(path))
    repeated = [await exchange(peer, {**lists, "id": n}) for n in (1, 2, 3)]
    assert repeated == [[result(n, tools=[1])] for n in (1, 2, 3)]


async def test_any_client_info_matches_initialize(recording_of, connect):
    hello = {"id": 1, "method": "initialize", "params": {"clientInfo": {"name": "recorded"}}}
    peer = connect(mock_server(recording_of(("C", hello), ("S", result(1, protocolVersion="1")))))
    assert await exchange(peer, {"id": 0, "method": "initialize", "params": {}}) == [
        result(0, protocolVersion="1")
    ]


async def test_a_second_client_on_one_connection_gets_the_recorded_handshake(recording_of, connect):
    hello = {"id": 1, "method": "initialize", "params": {}}
    peer = connect(mock_server(recording_of(("C", hello), ("S", result(1, protocolVersion="1")))))
    for number in (0, 1):
        assert await exchange(peer, {"id": number, "method": "initialize", "params": {}}) == [
            result(number, protocolVersion="1")
        ]


async def test_a_method_that_was_not_recorded_is_method_not_found(recording_of, connect):
    mock = mock_server(recording_of(("C", call(1))))
    peer = connect(mock)
    (rejected,) = await exchange(peer, {"id": 1, "method": "prompts/get", "params": {"name": "p"}})
    assert rejected["error"]["code"] == -32601
    assert rejected["error"]["message"].endswith(
        'prompts/get {"name":"p"} was not recorded, nor any other prompts/get'
    )


async def test_the_closest_recorded_requests_are_named_with_some_paths(recording_of, connect):
    arguments = dict.fromkeys("abcdef", 1)
    peer = connect(mock_server(recording_of(("C", call(1, arguments=arguments)))))
    (rejected,) = await exchange(peer, call(1, arguments={}))
    assert rejected["error"]["message"].endswith(
        "record 1, which differs at $.arguments.a, $.arguments.b, $.arguments.c, $.arguments.d, …"
    )


async def test_descriptions_of_unrecorded_requests_are_bounded(recording_of, connect):
    mock = mock_server(recording_of(("C", call(1))))
    for rounds in (11, 1):
        peer = connect(mock)
        for _ in range(rounds):
            await exchange(peer, *[{"id": index, "method": "m" * 2000} for index in range(100)])
        await peer.aclose()
        await trio.testing.wait_all_tasks_blocked()
    assert len(mock.unrecorded) == 1000
    assert max(map(len, mock.unrecorded)) == 1000


# Requests and notifications of the server.


async def test_server_requests_come_in_order_and_their_answers_are_awaited(recording_of, connect):
    question = {"id": 5, "method": "roots/list"}
    peer = connect(
        mock_server(
            recording_of(
                ("C", call(1)),
                ("S", note("message", data="before")),
                ("S", question),
                ("C", result(5, roots=[])),
                ("S", note("message", data="after")),
                ("S", result(1)),
            )
        )
    )
    before, asked = await exchange(peer, call("a"))
    assert (before["params"]["data"], asked["method"]) == ("before", "roots/list")
    reply = result(asked["id"], roots=["other"])
    assert await exchange(peer, reply) == [note("message", data="after"), result("a")]
    assert await exchange(peer, reply, result("nonsense"), result(1000)) == []


async def test_the_mock_does_not_wait_where_the_recorded_server_did_not(recording_of, connect):
    question = {"id": 5, "method": "sampling/createMessage", "params": {"_meta": {}}}
    question["params"]["_meta"]["progressToken"] = "old"
    peer = connect(
        mock_server(
            recording_of(
                ("C", call(1)),
                ("S", question),
                ("S", note("cancelled", requestId=5)),
                ("S", note("cancelled", requestId=6)),
                ("S", result(1)),
            )
        )
    )
    asked, back, answer = await exchange(peer, call("a"))
    assert asked["params"]["_meta"]["progressToken"] == asked["id"]
    assert back["params"]["requestId"] == asked["id"]
    assert answer == result("a")
    assert await exchange(peer, result(asked["id"])) == []


async def test_an_unrelated_notification_comes_after_the_message_before_it(recording_of, connect):
    peer = connect(
        mock_server(
            recording_of(
                ("S", note("hello")),
                ("C", note("initialized")),
                ("S", {"id": 1, "method": "roots/list"}),
                ("C", result(1)),
                ("S", note("thanks")),
                ("S", result(77)),
            )
        )
    )
    assert without_jsonrpc(await peer.receive_available()) == [note("hello")]
    (asked,) = await exchange(peer, note("initialized"))
    assert await exchange(peer, result(asked["id"])) == [note("thanks")]
    assert await exchange(peer, note("initialized")) == []


async def test_requests_in_flight_do_not_wait_for_each_other(recording_of, connect):
    peer = connect(
        mock_server(
            recording_of(
                ("C", call(1, "slow")), ("C", call(2, "b")), ("S", result(2)), ("S", result(1))
            )
        )
    )
    assert await exchange(peer, call(1, "slow")) == [result(1)]


# Cancellation, pace, and invalid messages.


async def test_a_cancelled_call_gets_no_answer(recording_of, connect):
    path = recording_of(
        ("C", call(1)), ("C", note("cancelled", requestId=1)), ("S", note("message"))
    )
    peer = connect(mock_server(path))
    assert await exchange(peer, call(1)) == []
    assert await exchange(peer, note("cancelled", requestId=1)) == [note("message")]


async def test_a_client_can_cancel_any_request(recording_of, connect):
    peer = connect(
        mock_server(
            recording_of(
                ("C", call(1)),
                ("S", {"id": 5, "method": "roots/list"}),
                ("C", result(5)),
                ("S", result(1)),
            )
        )
    )
    (asked,) = await exchange(peer, call(1))
    nonsense = note("cancelled", requestId=[])
    assert await exchange(peer, nonsense, note("cancelled", requestId=1), result(asked["id"])) == []


async def test_at_the_recorded_pace_an_answer_takes_its_time(recording_of, connect, autojump_clock):
    hello = ("S", note("hello"), 2)
    path = recording_of(hello, ("C", call(1), 3), ("S", note("message"), 1), ("S", result(1), 5))
    peer = connect(mock_server(path, pace=True))
    await peer.receive()
    assert trio.current_time() == pytest.approx(2)
    await peer.send(call(1))
    await peer.receive()
    assert trio.current_time() == pytest.approx(3)
    await peer.receive()
    assert trio.current_time() == pytest.approx(8)


async def test_invalid_requests_are_answered_if_they_have_an_id(recording_of, nursery):
    mock = mock_server(
        recording_of(("C", call(1))), limits=Limits(messages=MessageLimits(bytes_max=200))
    )
    ours, theirs = memory_pair(limits=mock.limits)
    nursery.start_soon(mock.serve, theirs)
    peer = WirePeer(ours)
    long = b'{"jsonrpc":"2.0","id":4,"method":"ping","x":"' + b"x" * 300
    broken = await exchange(peer, b'{"jsonrpc":"2.0","id":3,"method":1}', b"{", long)
    assert [(each["id"], each["error"]["code"]) for each in broken] == [(3, -32600), (4, -32600)]


@pytest.mark.slow
async def test_a_client_that_does_not_read_is_not_read_from(recording_of, nursery):
    ours, theirs = memory_pair()
    nursery.start_soon(mock_server(recording_of()).serve, theirs)
    pings = [b'{"jsonrpc":"2.0","id":1,"method":"ping"}'] * 10_000
    nursery.start_soon(ours.send, pings)
    await trio.testing.wait_all_tasks_blocked()
    assert 0 < ours.bytes_sent < sum(map(len, pings)) / 2
    count = 0
    while count < len(pings):
        count += len(await ours.receive())


async def test_a_client_that_disconnects_without_reading_raises_no_error(recording_of, nursery):
    ours, theirs = memory_pair(buffer_bytes_max=1000)
    mock = mock_server(recording_of(("C", call(1)), ("S", result(1, text="x" * 5000))))
    with trio.fail_after(5):
        async with trio.open_nursery() as serving:
            serving.start_soon(mock.serve, theirs)
            await WirePeer(ours).send(call(1))
            await trio.testing.wait_all_tasks_blocked()
            await ours.aclose()


async def test_a_due_answer_is_sent_after_the_client_has_closed_its_side(
    recording_of, autojump_clock
):
    path = recording_of(("C", call(1)), ("S", result(1), 1), ("S", note("late"), 100))
    written = []
    channel = OneMessageChannel(
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}', written
    )
    await mock_server(path, pace=True).serve(channel)
    assert written == [b'{"jsonrpc":"2.0","id":1,"result":{}}']


async def test_queued_messages_are_sent_after_the_client_has_closed_its_side(
    recording_of, autojump_clock
):
    path = recording_of(("C", call(1)), ("S", result(1)))
    written = []
    channel = OneMessageChannel(
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}', written
    )
    await mock_server(path).serve(channel)
    assert written == [b'{"jsonrpc":"2.0","id":1,"result":{}}']


class OneMessageChannel:
    """A channel whose client sends one message, and then only receives."""

    def __init__(self, frame, written):
        self._frames = [[], [frame]]
        self._written = written

    async def send(self, frames):
        await trio.sleep(0.1)
        self._written.extend(frames)

    async def receive(self):
        return self._frames.pop()

    async def aclose(self):
        pass


async def test_messages_for_a_client_that_reads_no_more_are_not_kept():
    ours, theirs = memory_pair()
    peer = LivePeer(ours, DEFAULT_LIMITS)
    await theirs.aclose()
    peer.put(b"{}")
    await peer.write()
    tracemalloc.start()
    try:
        for _ in range(100):
            peer.put(bytes(100_000))
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()
    await peer.drain()


async def test_each_session_starts_at_the_beginning_of_the_recording(recording_of, connect):
    mock = mock_server(recording_of(("C", call(1)), ("S", result(1))))
    for _ in range(2):
        peer = connect(mock)
        assert await exchange(peer, call(1)) == [result(1)]
        await peer.aclose()
        await trio.testing.wait_all_tasks_blocked()
    assert mock.unused == ()


# The end.


async def test_a_strict_mock_requires_all_recorded_requests_and_no_others(recording_of, connect):
    path = recording_of(("C", call(1, "a")), ("C", {"id": 2, "method": "ping"}))

    async def talk(mock):
        peer = connect(mock)
        await exchange(peer, call(1, "c"))
        await peer.aclose()
        await trio.testing.wait_all_tasks_blocked()

    with pytest.raises(MockMismatch) as caught, mock_server(path, strict=True) as mock:
        await talk(mock)
    assert str(caught.value).splitlines() == [
        'tools/call {"name":"c"} was not recorded; closest recorded requests: record 1, which differs at $.name',
        "not requested: tools/call (record 1)",
        "not requested: ping (record 2)",
    ]
    with mock_server(path) as mock:
        await talk(mock)
    with mock_server(recording_of(), strict=True):
        pass
    with pytest.raises(ZeroDivisionError), mock_server(path, strict=True):
        raise ZeroDivisionError


def test_all_requests_of_an_unused_mock_are_unused(recording_of):
    path = recording_of(("C", {"id": 1, "method": "ping"}), ("C", note("initialized")))
    with pytest.raises(MockMismatch, match=r"not requested: ping \(record 1\)"):
        mock_server(path).check()


# Redacted recordings.


@pytest.mark.parametrize(
    ("live", "fits"),
    [("Hunter2-é", True), ("hunter2-é", False), ("Hunter22-é", False), (7, False), (None, False)],
)
async def test_a_redacted_value_matches_by_its_shape(recording_of, connect, live, fits):
    path = recording_of(
        ("C", call(1, password="Qxkzwv9-ü", n=35)), ("S", result(1)), redaction={"rules": 1}
    )
    more = {} if live is None else {"password": live}
    (answer,) = await exchange(connect(mock_server(path)), call(5, n=42, **more))
    assert ("result" in answer) is fits


async def test_an_equal_request_matches_before_one_of_the_same_shape(recording_of, connect):
    path = recording_of(
        ("C", call(1, "ab")),
        ("S", result(1, n=1)),
        ("C", call(2, "cd")),
        ("S", result(2, n=2)),
        redaction={"rules": 1},
    )
    peer = connect(mock_server(path))
    assert await exchange(peer, call(5, "cd")) == [result(5, n=2)]
    assert await exchange(peer, call(6, "cd")) == [result(6, n=1)]


async def test_shapes_do_not_match_in_a_recording_that_is_not_redacted(recording_of, connect):
    peer = connect(mock_server(recording_of(("C", call(1, "ab")), ("S", result(1)))))
    (answer,) = await exchange(peer, call(5, "cd"))
    assert "error" in answer


async def test_a_subscription_has_the_id_of_the_live_request(recording_of, connect):
    tag = "io.modelcontextprotocol/subscriptionId"
    listen = {"method": "subscriptions/listen", "params": {"notifications": {}}}
    meta = {"_meta": {tag: "s"}}
    peer = connect(
        mock_server(
            recording_of(
                ("C", {"id": "s", **listen}),
                ("S", note("subscriptions/acknowledged", notifications={}, **meta)),
                ("S", note("tools/list_changed", **meta)),
                ("S", note("tools/list_changed", _meta={tag: "never asked"})),
                ("S", result("s", resultType="complete", **meta)),
                ("S", note("cancelled", requestId="s", **meta)),
            )
        )
    )
    live = {"_meta": {tag: 7}}
    assert await exchange(peer, {"id": 7, **listen}) == [
        note("subscriptions/acknowledged", notifications={}, **live),
        note("tools/list_changed", **live),
        result(7, resultType="complete", **live),
        note("cancelled", requestId=7, **live),
    ]


# Mock servers for stateless clients: retries, subscriptions and version negotiation.


# Rounds.

ASKS = {"resultType": "input_required", "inputRequests": {"q": {"method": "x"}}}


def accepted(**content):
    return {"action": "accept", "content": content}


def in_rounds(*answers):
    """Return the messages of one call, and of a retry for each of the answers."""
    messages = [("C", stateless_call("1"))]
    for number, answer in enumerate(answers, 1):
        retry = stateless_call(f"{number + 1}", requestState=f"s{number}", inputResponses=answer)
        messages += [
            ("S", result(f"{number}", **ASKS, requestState=f"s{number}")),
            ("C", retry),
        ]
    return [*messages, ("S", result(f"{len(answers) + 1}", n=len(answers)))]


@pytest.mark.parametrize(
    ("recorded", "live"),
    [
        ({"q": accepted(city="Oslo")}, {"q": accepted(city="Rome", days=2)}),
        ({"q": accepted()}, {"q": accepted() | {"_meta": {}}}),
        ({"q": {"action": "decline"}}, {"q": {"action": "decline", "content": None}}),
        ({"q": {"roots": [1]}}, {"q": {"roots": []}}),
        ({"q": {"model": "a", "role": "user"}}, {"q": {"model": "b", "stopReason": "x"}}),
        ({}, {}),
    ],
)
async def test_a_retry_with_other_input_responses_of_the_same_kind_matches(
    recording_of, connect, recorded, live
):
    peer = connect(mock_server(recording_of(*in_rounds(recorded))))
    assert await exchange(peer, stateless_call(7)) == [result(7, **ASKS, requestState="s1")]
    retry = stateless_call(8, requestState="s1", inputResponses=live)
    assert await exchange(peer, retry) == [result(8, n=1)]


@pytest.mark.parametrize(
    ("live", "place"),
    [
        ({"inputResponses": {"q": {"action": "decline"}}}, "$.inputResponses.q.action"),
        ({"inputResponses": {"z": accepted()}}, "$.inputResponses.q"),
        ({"inputResponses": {"q": {"roots": []}}}, "$.inputResponses.q.action"),
        ({"inputResponses": {"q": 5}}, "$.inputResponses.q"),
        ({"inputResponses": 5}, "$.inputResponses"),
        ({}, "$.inputResponses"),
        ({"inputResponses": {"q": accepted()}, "requestState": "other"}, "$.requestState"),
        ({"inputResponses": {"q": accepted()}, "name": "y"}, "$.name"),
    ],
)
async def test_a_retry_that_answers_other_input_requests_does_not_match(
    recording_of, connect, live, place
):
    peer = connect(mock_server(recording_of(*in_rounds({"q": accepted()}))))
    await exchange(peer, stateless_call(7))
    (rejected,) = await exchange(peer, stateless_call(8, **{"requestState": "s1", **live}))
    assert f"record 3, which differs at {place}" in rejected["error"]["message"]


async def test_an_input_response_without_an_action_matches_by_its_members(recording_of, connect):
    peer = connect(mock_server(recording_of(*in_rounds({"q": {"roots": []}}))))
    await exchange(peer, stateless_call(7))
    other = stateless_call(8, requestState="s1", inputResponses={"q": {"model": "a"}})
    assert "error" in (await exchange(peer, other))[0]


async def test_an_equal_retry_matches_before_one_of_the_same_kind(recording_of, connect):
    def retry(id_, city):
        return stateless_call(id_, requestState="s", inputResponses={"q": accepted(city=city)})

    messages = [("C", retry(1, "Oslo")), ("S", result(1, n=1)), ("C", retry(2, "Rome"))]
    peer = connect(mock_server(recording_of(*messages, ("S", result(2, n=2)))))
    assert await exchange(peer, retry(8, "Rome")) == [result(8, n=2)]
    assert await exchange(peer, retry(9, "Rome")) == [result(9, n=1)]


async def test_input_responses_match_in_a_redacted_recording(recording_of, connect):
    recorded = stateless_call(
        1, "x", arguments={"key": "abc"}, inputResponses={"q": accepted(a="zzzz")}
    )
    path = recording_of(("C", recorded), ("S", result(1, n=1)), redaction={"key_id": "k"})
    peer = connect(mock_server(path))
    live = stateless_call(2, "x", arguments={"key": "xyz"}, inputResponses={"q": accepted(a="1")})
    other = stateless_call(3, "x", arguments={"key": "123"}, inputResponses={"q": accepted(a="1")})
    assert "error" in (await exchange(peer, other))[0]
    assert await exchange(peer, live) == [result(2, n=1)]


# Subscriptions.


async def test_a_subscription_notification_comes_with_its_recorded_cause(recording_of, connect):
    listen, tagged = "subscriptions/listen", {"_meta": {TAG: "s"}}
    path = recording_of(
        ("C", stateless_request("s", listen)),
        ("S", note("subscriptions/acknowledged", **tagged)),
        ("C", stateless_call("c", "grow")),
        ("S", result("c")),
        ("S", note("tools/list_changed", **tagged)),
    )
    peer, live = connect(mock_server(path)), {"_meta": {TAG: 5}}
    assert await exchange(peer, stateless_request(5, listen)) == [
        note("subscriptions/acknowledged", **live)
    ]
    changed = note("tools/list_changed", **live)
    assert await exchange(peer, stateless_call(6, "grow")) == [result(6), changed]


@pytest.mark.parametrize("cancels", [True, False])
async def test_a_cancelled_subscription_gets_no_notifications(recording_of, connect, cancels):
    listen, tagged = "subscriptions/listen", {"_meta": {TAG: "s"}}
    path = recording_of(
        ("C", stateless_request("s", listen)),
        ("C", stateless_call("c", "grow")),
        ("S", result("c")),
        ("S", note("tools/list_changed", **tagged)),
        ("S", result("s", **tagged)),
    )
    peer = connect(mock_server(path))
    if cancels:
        assert (
            await exchange(peer, stateless_request(5, listen), note("cancelled", requestId=5)) == []
        )
    assert await exchange(peer, stateless_call(6, "grow")) == [result(6)]


# Stateless and legacy clients at mocks of the other kind.


LISTED = (("C", stateless_request(1, "tools/list")), ("S", result(1, tools=[])))


async def test_discovery_that_was_not_recorded_is_answered_from_the_recorded_requests(
    recording_of, connect
):
    info = {"_meta": {SERVER_INFO: {"name": "n", "version": "1"}}}
    path = recording_of(
        *LISTED,
        ("C", stateless_request(2, "completion/complete")),
        ("S", result(2, **info)),
        ("C", stateless_request(3, "own/method")),
    )
    peer = connect(mock_server(path))
    assert await exchange(peer, stateless_request(9, "server/discover")) == [
        result(
            9,
            resultType="complete",
            supportedVersions=[STATELESS],
            capabilities={"tools": {}, "completions": {}},
            ttlMs=0,
            cacheScope="private",
            **info,
        )
    ]


async def test_a_client_continues_after_such_a_discovery(recording_of):
    with mock_server(recording_of(*LISTED), strict=True) as mock:
        async with Client(mock, protocol_versions=("2025-11-25", STATELESS)) as client:
            assert client.protocol_version == STATELESS
            assert await client.list_tools() == []


async def test_a_handshake_with_a_stateless_mock_gets_the_supported_versions(recording_of):
    mock = mock_server(recording_of(*LISTED))
    with pytest.raises(RequestError) as caught:
        async with Client(mock, protocol_versions=("2025-11-25",)):
            pass
    assert caught.value.code == -32022
    assert caught.value.data == {"supported": [STATELESS], "requested": "2025-11-25"}
    assert mock.unrecorded == ()


async def test_discovery_of_a_legacy_mock_is_method_not_found(recording_of, connect):
    mock = mock_server(recording_of(("C", {"id": 1, "method": "ping"}), ("S", result(1))))
    peer = connect(mock)
    (rejected,) = await exchange(peer, stateless_request(2, "server/discover"))
    assert rejected["error"]["code"] == -32601
    (missed,) = await exchange(peer, {"id": 3, "method": "initialize", "params": {}})
    assert "was not recorded" in missed["error"]["message"]
    await peer.aclose()


async def test_discovery_can_be_repeated_or_left_out(recording_of, connect):
    path = recording_of(
        ("C", stateless_request(1, "server/discover")), ("S", result(1, a=1)), *LISTED
    )
    mock = mock_server(path)
    peer = connect(mock)
    again = [await exchange(peer, stateless_request(n, "server/discover")) for n in (2, 3)]
    assert again == [[result(2, a=1)], [result(3, a=1)]]


async def test_a_client_with_a_fixed_protocol_version_needs_no_discovery(recording_of):
    path = recording_of(("C", stateless_request(1, "server/discover")), ("S", result(1)), *LISTED)
    ours, theirs = memory_pair()
    mock = mock_server(path, strict=True)
    with mock:
        async with trio.open_nursery() as serving:
            serving.start_soon(mock.serve, theirs)
            peer = WirePeer(ours)
            await exchange(peer, stateless_request(4, "tools/list"))
            await peer.aclose()
    assert mock.unused == ()


# Mocks over WebSocket, Unix sockets and TCP.


LIMITS = msgspec.structs.replace(DEFAULT_LIMITS, requests=RequestLimits(idle_seconds=10))
STATELESS_MOCK_OVER_CONNECTIONS = "2026-07-28"


def text_of(answer):
    return answer.content[0].text


@pytest.mark.parametrize("way", ["http", *WAYS])
async def test_each_client_gets_the_legacy_session_from_its_beginning(tmp_path, way):
    mock = mock_server(RECORDINGS / "everything-our-client.mcprec.jsonl")
    async with served(mock, way, tmp_path) as (url, _scope):
        for _ in range(2):
            async with Client(url, roots=["file:///tmp"]) as client:
                assert client.server_info.name == "mcp-servers/everything"
                answer = await client.call_tool("get-sum", {"a": 2, "b": 40})
                assert text_of(answer) == "The sum of 2 and 40 is 42."
                with pytest.raises(
                    RequestError, match="closest recorded requests: record 19, which differs at"
                ):
                    await client.call_tool("get-sum", {"a": 2, "b": 41})
    assert len(mock.unrecorded) == 2


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["weather-python-sdk", "asking-server", "forms", "tides"])
async def test_a_mocked_client_at_its_mocked_server_finds_no_difference(tmp_path, name, way):
    path = RECORDINGS / f"{name}.mcprec.jsonl"
    mock = mock_server(path, strict=True)
    async with served(mock, way, tmp_path) as (url, _scope):
        report = await replay_live_async(path, url, limits=LIMITS)
        assert report.is_same, str(report)


@pytest.mark.real_time  # the weather's stations take a while to answer
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("protocol_version", ["2025-11-25", STATELESS_MOCK_OVER_CONNECTIONS])
async def test_a_recording_over_the_transport_replays_mocks_and_drives(
    tmp_path, way, protocol_version
):
    folder = tmp_path / "recorded"
    folder.mkdir()
    async with (
        served(weather, way, tmp_path, record=folder) as (url, _scope),
        Client(url, protocol_versions=[protocol_version]) as client,
    ):
        answer = text_of(await client.call_tool("forecast", {"city": "Oslo"}))
    path = next(each for each in folder.iterdir() if "tools/call" in each.read_text())
    assert (await replay_async(path, weather)).is_complete
    async with served(weather, way, tmp_path) as (url, _scope):
        assert (await replay_live_async(path, url, limits=LIMITS)).is_same
    async with (
        served(mock_server(path), way, tmp_path) as (url, _scope),
        Client(url, protocol_versions=[protocol_version]) as client,
    ):
        assert text_of(await client.call_tool("forecast", {"city": "Oslo"})) == answer


@pytest.mark.parametrize("way", WAYS)
async def test_a_session_that_fails_ends_no_other(tmp_path, way, monkeypatch, caplog):
    path = RECORDINGS / "weather.mcprec.jsonl"
    monkeypatch.setattr(MockSession, "_receive_notification", lambda *_: 1 / 0)
    async with served(mock_server(path), way, tmp_path) as (url, _scope):
        with contextlib.suppress(ConnectionLost):
            async with Client(url, protocol_versions=["2024-11-05"]) as client:
                with pytest.raises(ConnectionLost):
                    await client.list_tools()
        monkeypatch.undo()
        async with Client(url, protocol_versions=["2024-11-05"]) as client:
            assert len(await client.list_tools()) == 2
    assert "ZeroDivisionError" in caplog.text


async def test_an_absent_server_raises_and_a_lost_server_is_a_difference(
    tmp_path,
):
    path = RECORDINGS / "weather.mcprec.jsonl"
    with pytest.raises(ConnectionLost, match=f"cannot connect to unix:{tmp_path}/no-socket"):
        await replay_live_async(path, f"unix:{tmp_path}/no-socket")
    port = free_port()
    with pytest.raises(ConnectionLost, match=f"cannot connect to tcp://127.0.0.1:{port}"):
        await mock_client(path, f"tcp://127.0.0.1:{port}")

    async def leave(stream):
        await stream.receive_some()
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, leave, [listener])
        url = f"tcp://127.0.0.1:{listener.socket.getsockname()[1]}"
        report = await replay_live_async(path, url, limits=LIMITS)
        nursery.cancel_scope.cancel()
    assert "lost the server: it closed the connection" in str(report)


async def test_a_mock_on_a_public_address_is_rejected_by_default():
    mock = mock_server(RECORDINGS / "weather.mcprec.jsonl")
    with pytest.raises(ValueError, match="is_open=True"):
        await mock.serve_tcp(host="0.0.0.0", port=0)


@pytest.mark.parametrize(
    ("way", "protocol_version"),
    [
        ("websocket", "2025-11-25"),
        ("/ws", STATELESS_MOCK_OVER_CONNECTIONS),
        ("unix", STATELESS_MOCK_OVER_CONNECTIONS),
        ("tcp", "2025-11-25"),
    ],
)
async def test_clients_without_a_request_are_disconnected_when_the_listener_is_full(
    tmp_path, way, protocol_version, mock_clock
):
    path = tmp_path / "listed.mcprec.jsonl"
    async with Client(weather, protocol_versions=[protocol_version], record=path) as client:
        await client.list_tools()
    limits = Limits(requests=RequestLimits(first_request_seconds=2))
    async with (
        served(mock_server(path, limits=limits), way, tmp_path) as (url, _scope),
        Client(url, protocol_versions=[protocol_version]) as client,
    ):
        await sent_away(await opened(url), mock_clock, limits.requests.first_request_seconds)
        assert client.is_open
        assert len(await client.list_tools()) == 2


# Mock servers over HTTP.


LEGACY = "2025-11-25"
SECONDS = 10.0
HELLO = {
    "id": 0,
    "method": "initialize",
    "params": {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "c"}},
}
WELCOME = {
    "protocolVersion": LEGACY,
    "capabilities": {"tools": {"listChanged": True}, "logging": {}},
    "serverInfo": {"name": "recorded", "version": "1"},
}
SHAKEN = (("C", HELLO), ("S", result(0, **WELCOME)), ("C", {"method": "notifications/initialized"}))
TEXT = {"content": [{"type": "text", "text": "one"}]}
OTHER = {"content": [{"type": "text", "text": "two"}]}
CALLED_TWICE = (
    ("C", stateless_call(1, arguments={})),
    ("S", result(1, resultType="complete", **TEXT)),
    ("C", stateless_call(2, arguments={})),
    ("S", result(2, resultType="complete", **OTHER)),
)


@contextlib.asynccontextmanager
async def served_mock_over_http(mock):
    """The URL at which a mock is."""
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            yield await nursery.start(functools.partial(mock.serve_http, port=0))
            nursery.cancel_scope.cancel()


async def test_a_client_of_the_oldest_transport_is_served_as_well():
    mock = mock_server(RECORDINGS / "weather.mcprec.jsonl")
    async with served_mock_over_http(mock) as url:
        base = url.removesuffix("/mcp")
        async with Client(f"{base}/sse", protocol_versions=("2024-11-05",)) as client:
            assert [tool.name for tool in await client.list_tools()] == ["forecast", "warmest"]


async def test_a_stateless_recording_is_played_to_stateless_clients():
    mock = mock_server(RECORDINGS / "tides.mcprec.jsonl")
    async with served_mock_over_http(mock) as url:
        async with Client(url) as client:
            assert client.protocol_version == STATELESS
        async with httpx2.AsyncClient() as http:
            assert (await http.get(url)).status_code == 405


async def test_a_client_of_another_protocol_version_is_rejected(recording_of):
    async with (
        served_mock_over_http(mock_server(recording_of(*SHAKEN))) as url,
        httpx2.AsyncClient() as http,
    ):
        with pytest.raises(MCPError, match="the server does not support 2026-07-28"):
            async with Client(url, protocol_versions=(STATELESS,)):
                pass
        rejected = await http.post(url, json={"jsonrpc": "2.0", "id": 1, "method": "ping"})
        assert rejected.status_code == 400
    async with served_mock_over_http(mock_server(recording_of(*CALLED_TWICE))) as url:
        with pytest.raises(RequestError, match="supports 2026-07-28"):
            async with Client(url, protocol_versions=(LEGACY,)):
                pass


async def test_server_requests_and_notifications_come_with_their_request(recording_of):
    question = {"id": 5, "method": "roots/list"}
    path = recording_of(
        *SHAKEN,
        ("C", call(1, arguments={})),
        ("S", note("message", level="info", data="before")),
        ("S", question),
        ("C", result(5, roots=[])),
        ("S", note("message", level="info", data="after")),
        ("S", result(1, **TEXT)),
    )
    logged = []
    async with (
        served_mock_over_http(mock_server(path)) as url,
        Client(
            url, roots=["file:///here"], log=lambda message: logged.append(message.data)
        ) as live,
    ):
        assert text_of(await live.call_tool("x", {})) == "one"
    assert logged == ["before", "after"]


async def test_progress_comes_with_the_token_of_the_live_client(recording_of):
    path = recording_of(
        *SHAKEN,
        ("C", call(1, arguments={}, _meta={"progressToken": "t"})),
        ("S", note("progress", progressToken="t", progress=1)),
        ("S", result(1, **TEXT)),
    )
    reports = []
    async with served_mock_over_http(mock_server(path)) as url, Client(url) as live:
        await live.call_tool("x", {}, progress=lambda progress: reports.append(progress.progress))
    assert reports == [1]


async def test_unrelated_notifications_take_the_standalone_stream(recording_of):
    path = recording_of(*SHAKEN, ("S", note("tools/list_changed")))
    changed = trio.Event()

    def on_change(_):
        changed.set()

    async with served_mock_over_http(mock_server(path)) as url, Client(url, list_changed=on_change):
        await changed.wait()


async def test_stateless_clients_can_repeat_requests(recording_of):
    mock = mock_server(recording_of(*CALLED_TWICE))
    answers = []
    async with served_mock_over_http(mock) as url:
        for _ in range(4):
            async with Client(url, protocol_versions=(STATELESS,)) as client:
                answers.append(text_of(await client.call_tool("x", {})))
        async with Client(url, protocol_versions=(STATELESS,)) as client:
            with pytest.raises(RequestError, match="closest recorded requests: record 1"):
                await client.call_tool("x", {"other": 1})
    assert answers == ["one", "two", "one", "two"]
    assert len(mock.unrecorded) == 1
    assert mock.unused == ()


async def test_a_strict_mock_answers_each_request_once_over_http(recording_of):
    mock = mock_server(recording_of(*CALLED_TWICE), strict=True)
    async with (
        served_mock_over_http(mock) as url,
        Client(url, protocol_versions=(STATELESS,)) as client,
    ):
        for _ in range(2):
            await client.call_tool("x", {})
        with pytest.raises(RequestError, match="which was answered already"):
            await client.call_tool("x", {})
    with pytest.raises(MockMismatch, match="which was answered already"):
        mock.check()


async def test_the_notifications_of_a_request_are_sent_in_linear_time(recording_of):
    async def calls_for(count):
        path = recording_of(
            ("C", call(1, _meta={"progressToken": "t"})),
            *(("S", note("progress", progressToken="t", progress=each)) for each in range(count)),
            ("S", result(1)),
        )
        ours, theirs = memory_pair()
        mock, peer, calls = mock_server(path), WirePeer(theirs), 0

        def count_calls(_frame, event, _argument):
            nonlocal calls
            calls += event in {"call", "c_call"}

        async with trio.open_nursery() as nursery:
            nursery.start_soon(mock.serve, ours)
            before = sys.getprofile()
            sys.setprofile(count_calls)
            try:
                await peer.send(call(1, _meta={"progressToken": 5}))
                await peer.receive_many(count + 1)
            finally:
                sys.setprofile(before)
            await peer.aclose()
        return calls

    assert await calls_for(800) < 6 * await calls_for(200)


async def test_a_request_in_progress_is_not_matched_again(recording_of):
    listen, tagged = "subscriptions/listen", {"_meta": {TAG: "s"}}
    filter_ = {"notifications": {"toolsListChanged": True}}
    mock = mock_server(
        recording_of(
            ("C", stateless_request("s", listen, **filter_)),
            ("S", note("subscriptions/acknowledged", **tagged, **filter_)),
        )
    )
    async with served_mock_over_http(mock) as url:
        async with (
            Client(url, protocol_versions=(STATELESS,)) as first,
            first.listen(tools=True),
            Client(url, protocol_versions=(STATELESS,)) as second,
        ):
            with pytest.raises(RequestError, match="which was answered already"):
                async with second.listen(tools=True):
                    pass
        async with Client(url, protocol_versions=(STATELESS,)) as third, third.listen(tools=True):
            pass


@pytest.mark.real_time
async def test_an_answer_that_a_client_abandons_is_left_for_others(recording_of):
    asked, answered = CALLED_TWICE[:2]
    mock = mock_server(recording_of(asked, (*answered, 60)), pace=True)
    async with served_mock_over_http(mock) as url:
        for _ in range(2):
            async with Client(url, protocol_versions=(STATELESS,)) as client:
                with trio.move_on_after(0.3) as patience:
                    await client.call_tool("x", {})
                assert patience.cancelled_caught
    assert mock.unrecorded == ()


async def test_a_session_that_is_deleted_is_over(recording_of):
    mock = mock_server(recording_of(*SHAKEN, ("C", call(1)), ("S", result(1, **TEXT))))
    async with served_mock_over_http(mock) as url:
        async with Client(url):
            pass
        assert mock.unused == ("tools/call (record 4)",)


async def test_a_session_that_fails_ends_no_other_mock_over_http(recording_of, monkeypatch, caplog):
    mock = mock_server(recording_of(*SHAKEN, ("C", call(1)), ("S", result(1, **TEXT))))

    def fail(*_):
        raise ZeroDivisionError

    async with served_mock_over_http(mock) as url:
        async with Client(url) as client:
            monkeypatch.setattr(MockSession, "_receive_request", fail)
            with pytest.raises(MCPError):
                await client.call_tool("x", {})
            monkeypatch.undo()
        async with Client(url) as client:
            assert text_of(await client.call_tool("x", {})) == "one"
    assert "a session failed" in caplog.text


PROBED = (
    ("C", stateless_request(1, "server/discover")),
    ("S", {"id": 1, "error": {"code": -32601, "message": "no"}}),
)


@pytest.mark.parametrize(
    ("messages", "newest", "oldest"),
    [
        (SHAKEN, LEGACY, "2024-11-05"),
        ((*PROBED, *SHAKEN), LEGACY, "2024-11-05"),
        (CALLED_TWICE, STATELESS, STATELESS),
        (CALLED_TWICE[:1], STATELESS, STATELESS),
        ((("C", call(1)), ("S", result(1))), LEGACY, "2024-11-05"),
        ((), LEGACY, "2024-11-05"),
    ],
    ids=["handshake", "probed", "stateless", "unanswered", "no handshake", "nothing"],
)
def test_a_mock_serves_the_versions_for_which_results_were_recorded(
    recording_of, messages, newest, oldest
):
    lines = recording_of(*messages).read_bytes().splitlines(keepends=True)
    names = mocked_protocol_versions(conversation(read_recording(lines)))
    assert (names[0], names[-1]) == (newest, oldest)


# Users of a server with authentication.


@pytest.fixture
async def two_users(tmp_path):
    return await record_two_users(tmp_path)


@pytest.mark.requirement("AUTH-06")
@pytest.mark.parametrize(
    ("way", "with_token"),
    [
        ("http", lambda token: {"auth": Bearer(token)}),
        ("websocket", lambda token: {"token": token}),
    ],
    ids=["http", "websocket"],
)
async def test_each_user_gets_what_was_recorded_for_this_user(two_users, way, with_token):
    tokens = {"one": "ada", "other": "ben"}
    with mock_server(two_users, tokens=tokens) as mock:
        async with served(mock, way) as (url, _):
            for token, name in reversed(tokens.items()):
                async with Client(url, **with_token(token)) as client:
                    assert await tour(client) == TOURS[name]
            async with Client(url, **with_token("other")) as client:
                with pytest.raises(RequestError) as caught:
                    await client.call_tool("book", {"city": "Bergen"})
            with pytest.raises(ConnectionLost, match="401"):
                async with Client(url, **with_token("token-of-ada")) as client:
                    await client.list_tools()
    assert "was not recorded for the user 'ben'; closest" in str(caught.value)
    assert "of the user 'ada'" in str(caught.value)
    (unrecorded,) = mock.unrecorded
    assert "'ben'" in unrecorded


@pytest.mark.parametrize("name", TOURS)
async def test_a_mock_of_one_user_needs_no_token(two_users, name):
    async with Client(mock_server(two_users, user=name)) as client:
        assert await tour(client) == TOURS[name]


async def test_a_strict_mock_of_one_user_expects_the_requests_of_this_user_only(two_users):
    with mock_server(two_users, user="ben", strict=True) as mock:
        async with Client(mock) as client:
            await tour(client)


async def test_users_must_be_in_the_recording(two_users, recording_of):
    with pytest.raises(ValueError, match="of the user 'eve' was recorded; users: 'ada', 'ben'"):
        mock_server(two_users, tokens={"one": "ada", "other": "eve"})
    with pytest.raises(ValueError, match="of the user 'ada' was recorded; users: none"):
        mock_server(recording_of(("C", call(1))), user="ada")
    with pytest.raises(ValueError, match="either user= or tokens="):
        mock_server(two_users, user="ada", tokens=TOKENS)


async def test_tokens_need_http_or_websocket(two_users, tmp_path):
    mock = mock_server(two_users, tokens=TOKENS)
    for serve in (functools.partial(mock.serve_unix, tmp_path / "socket"), mock.serve_tcp):
        with pytest.raises(ValueError, match="tokens= needs HTTP or WebSocket"):
            await serve()
    ours, _ = memory_pair()
    with pytest.raises(ValueError, match="tokens= needs HTTP or WebSocket"):
        await mock.serve(ours)
