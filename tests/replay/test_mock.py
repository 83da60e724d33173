"""Mock servers: matching of requests, and the order of messages."""

from pathlib import Path

import pytest
import trio
import trio.testing

from mcp_trio import Client, Limits, RequestError
from mcp_trio.errors import MockMismatch
from mcp_trio.limits import MessageLimits
from mcp_trio.testing import WirePeer, mock_server
from mcp_trio.transports import memory_pair
from tests.replay.conversations import call, heard, note, result, say

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


async def test_ids_and_tokens_are_those_of_the_live_client(spoken, connect):
    peer = connect(
        mock_server(
            spoken(
                ("C", call(1, _meta={"progressToken": "t"})),
                ("S", note("progress", progressToken="t", progress=1)),
                ("S", result(1, a=1)),
                ("C", call(2, _meta={"progressToken": "u"})),
                ("S", note("progress", progressToken="u", progress=1)),
                ("S", {"id": 2, "error": {"code": -7, "message": "no", "data": None}}),
            )
        )
    )
    assert await say(peer, call("live", _meta={"progressToken": 5})) == [
        note("progress", progressToken=5, progress=1),
        result("live", a=1),
    ]
    assert await say(peer, call("other")) == [
        {"id": "other", "error": {"code": -7, "message": "no", "data": None}}
    ]


async def test_equal_requests_get_their_answers_in_the_recorded_order(spoken, connect):
    peer = connect(
        mock_server(
            spoken(
                ("C", call(1, "a")),
                ("S", result(1, n=1)),
                ("C", call(2, "b")),
                ("S", result(2, n=2)),
                ("C", call(3, "a")),
                ("S", result(3, n=3)),
            )
        )
    )
    assert await say(peer, call(9, "b")) == [result(9, n=2)]
    assert await say(peer, call(8, "a"), call(7, "a")) == [result(8, n=1), result(7, n=3)]
    (rejected,) = await say(peer, call(6, "a"))
    assert rejected["error"] == {
        "code": -32602,
        "message": (
            'this is a mock: tools/call {"name":"a"} was not recorded; closest recorded requests: record 1, which was'
            " answered already; record 5, which was answered already; record 3, which differs at $.name"
        ),
    }


@pytest.mark.parametrize(("recorded", "live"), [({}, {"arguments": {}}), ({"arguments": {}}, {})])
async def test_no_arguments_are_the_same_as_an_empty_object(spoken, connect, recorded, live):
    peer = connect(mock_server(spoken(("C", call(1, **recorded)), ("S", result(1)))))
    assert await say(peer, call(2, **live)) == [result(2)]


async def test_lists_and_pings_can_be_repeated(spoken, connect):
    lists = {"id": 1, "method": "tools/list", "params": {}}
    peer = connect(
        mock_server(
            spoken(
                ("C", lists), ("S", result(1, tools=[1])), ("C", lists), ("S", result(1, tools=[2]))
            )
        )
    )
    answers = [await say(peer, {"id": n, "method": "tools/list"}) for n in range(3)]
    assert [each["result"]["tools"] for (each,) in answers] == [[1], [2], [2]]
    assert await say(peer, {"id": 4, "method": "ping"}) == [result(4)]


async def test_a_list_that_was_never_answered_is_not_answered_again(spoken, connect):
    peer = connect(mock_server(spoken(("C", {"id": 1, "method": "tools/list"}))))
    assert await say(peer, *({"id": n, "method": "tools/list"} for n in range(3))) == []


async def test_any_client_info_matches_initialize(spoken, connect):
    hello = {"id": 1, "method": "initialize", "params": {"clientInfo": {"name": "recorded"}}}
    peer = connect(mock_server(spoken(("C", hello), ("S", result(1, protocolVersion="1")))))
    assert await say(peer, {"id": 0, "method": "initialize", "params": {}}) == [
        result(0, protocolVersion="1")
    ]


async def test_a_method_that_was_not_recorded_is_method_not_found(spoken, connect):
    mock = mock_server(spoken(("C", call(1))))
    peer = connect(mock)
    (rejected,) = await say(peer, {"id": 1, "method": "prompts/get", "params": {"name": "p"}})
    assert rejected["error"]["code"] == -32601
    assert rejected["error"]["message"].endswith(
        'prompts/get {"name":"p"} was not recorded, nor any other prompts/get'
    )


async def test_the_closest_recorded_requests_are_named_with_some_paths(spoken, connect):
    arguments = dict.fromkeys("abcdef", 1)
    peer = connect(mock_server(spoken(("C", call(1, arguments=arguments)))))
    (rejected,) = await say(peer, call(1, arguments={}))
    assert rejected["error"]["message"].endswith(
        "record 1, which differs at $.arguments.a, $.arguments.b, $.arguments.c, $.arguments.d, …"
    )


# Questions, and what comes by itself.


async def test_server_requests_come_in_order_and_their_answers_are_awaited(spoken, connect):
    question = {"id": 5, "method": "roots/list"}
    peer = connect(
        mock_server(
            spoken(
                ("C", call(1)),
                ("S", note("message", data="before")),
                ("S", question),
                ("C", result(5, roots=[])),
                ("S", note("message", data="after")),
                ("S", result(1)),
            )
        )
    )
    before, asked = await say(peer, call("a"))
    assert (before["params"]["data"], asked["method"]) == ("before", "roots/list")
    reply = result(asked["id"], roots=["other"])
    assert await say(peer, reply) == [note("message", data="after"), result("a")]
    assert await say(peer, reply, result("nonsense"), result(1000)) == []


async def test_the_mock_does_not_wait_where_the_recorded_server_did_not(spoken, connect):
    question = {"id": 5, "method": "sampling/createMessage", "params": {"_meta": {}}}
    question["params"]["_meta"]["progressToken"] = "old"
    peer = connect(
        mock_server(
            spoken(
                ("C", call(1)),
                ("S", question),
                ("S", note("cancelled", requestId=5)),
                ("S", note("cancelled", requestId=6)),
                ("S", result(1)),
            )
        )
    )
    asked, back, answer = await say(peer, call("a"))
    assert asked["params"]["_meta"]["progressToken"] == asked["id"]
    assert back["params"]["requestId"] == asked["id"]
    assert answer == result("a")
    assert await say(peer, result(asked["id"])) == []


async def test_an_unrelated_notification_comes_after_the_message_before_it(spoken, connect):
    peer = connect(
        mock_server(
            spoken(
                ("S", note("hello")),
                ("C", note("initialized")),
                ("S", {"id": 1, "method": "roots/list"}),
                ("C", result(1)),
                ("S", note("thanks")),
                ("S", result(77)),
            )
        )
    )
    assert heard(await peer.receive_available()) == [note("hello")]
    (asked,) = await say(peer, note("initialized"))
    assert await say(peer, result(asked["id"])) == [note("thanks")]
    assert await say(peer, note("initialized")) == []


async def test_requests_in_flight_do_not_wait_for_each_other(spoken, connect):
    peer = connect(
        mock_server(
            spoken(("C", call(1, "slow")), ("C", call(2, "b")), ("S", result(2)), ("S", result(1)))
        )
    )
    assert await say(peer, call(1, "slow")) == [result(1)]


# Cancellation, pace, and what is no message.


async def test_a_cancelled_call_gets_no_answer(spoken, connect):
    path = spoken(("C", call(1)), ("C", note("cancelled", requestId=1)), ("S", note("message")))
    peer = connect(mock_server(path))
    assert await say(peer, call(1)) == []
    assert await say(peer, note("cancelled", requestId=1)) == [note("message")]


async def test_a_client_can_cancel_any_request(spoken, connect):
    peer = connect(
        mock_server(
            spoken(
                ("C", call(1)),
                ("S", {"id": 5, "method": "roots/list"}),
                ("C", result(5)),
                ("S", result(1)),
            )
        )
    )
    (asked,) = await say(peer, call(1))
    nonsense = note("cancelled", requestId=[])
    assert await say(peer, nonsense, note("cancelled", requestId=1), result(asked["id"])) == []


async def test_at_the_recorded_pace_an_answer_takes_its_time(spoken, connect, autojump_clock):
    hello = ("S", note("hello"), 2)
    path = spoken(hello, ("C", call(1), 3), ("S", note("message"), 1), ("S", result(1), 5))
    peer = connect(mock_server(path, pace=True))
    await peer.receive()
    assert trio.current_time() == pytest.approx(2)
    await peer.send(call(1))
    await peer.receive()
    assert trio.current_time() == pytest.approx(3)
    await peer.receive()
    assert trio.current_time() == pytest.approx(8)


async def test_invalid_requests_are_answered_if_they_have_an_id(spoken, nursery):
    mock = mock_server(spoken(("C", call(1))), limits=Limits(messages=MessageLimits(bytes_max=200)))
    ours, theirs = memory_pair(limits=mock.limits)
    nursery.start_soon(mock.serve, theirs)
    peer = WirePeer(ours)
    long = b'{"jsonrpc":"2.0","id":4,"method":"ping","x":"' + b"x" * 300
    broken = await say(peer, b'{"jsonrpc":"2.0","id":3,"method":1}', b"{", long)
    assert [(each["id"], each["error"]["code"]) for each in broken] == [(3, -32600), (4, -32600)]


async def test_a_client_that_does_not_read_is_not_read_from(spoken, nursery):
    ours, theirs = memory_pair()
    nursery.start_soon(mock_server(spoken()).serve, theirs)
    pings = [b'{"jsonrpc":"2.0","id":1,"method":"ping"}'] * 10_000
    nursery.start_soon(ours.send, pings)
    await trio.testing.wait_all_tasks_blocked()
    assert 0 < ours.bytes_sent < sum(map(len, pings)) / 2
    count = 0
    while count < len(pings):
        count += len(await ours.receive())


async def test_a_client_that_disconnects_without_reading_raises_no_error(spoken, nursery):
    ours, theirs = memory_pair(buffer_bytes_max=1000)
    mock = mock_server(spoken(("C", call(1)), ("S", result(1, text="x" * 5000))))
    with trio.fail_after(5):
        async with trio.open_nursery() as serving:
            serving.start_soon(mock.serve, theirs)
            await WirePeer(ours).send(call(1))
            await trio.testing.wait_all_tasks_blocked()
            await ours.aclose()


async def test_a_due_answer_is_sent_after_the_client_has_closed_its_side(spoken, autojump_clock):
    path = spoken(("C", call(1)), ("S", result(1), 1), ("S", note("late"), 100))
    written = []
    channel = _Said(
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}', written
    )
    await mock_server(path, pace=True).serve(channel)
    assert written == [b'{"jsonrpc":"2.0","id":1,"result":{}}']


async def test_queued_messages_are_sent_after_the_client_has_closed_its_side(
    spoken, autojump_clock
):
    path = spoken(("C", call(1)), ("S", result(1)))
    written = []
    channel = _Said(
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}', written
    )
    await mock_server(path).serve(channel)
    assert written == [b'{"jsonrpc":"2.0","id":1,"result":{}}']


class _Said:
    """A channel whose client says one thing and then nothing more, but listens."""

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


async def test_each_session_starts_at_the_beginning_of_the_recording(spoken, connect):
    mock = mock_server(spoken(("C", call(1)), ("S", result(1))))
    for _ in range(2):
        peer = connect(mock)
        assert await say(peer, call(1)) == [result(1)]
        await peer.aclose()
        await trio.testing.wait_all_tasks_blocked()
    assert mock.unused == ()


# The end.


async def test_a_strict_mock_requires_all_recorded_requests_and_no_others(spoken, connect):
    path = spoken(("C", call(1, "a")), ("C", {"id": 2, "method": "ping"}))

    async def talk(mock):
        peer = connect(mock)
        await say(peer, call(1, "c"))
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
    with mock_server(spoken(), strict=True):
        pass
    with pytest.raises(ZeroDivisionError), mock_server(path, strict=True):
        raise ZeroDivisionError


def test_all_requests_of_an_unused_mock_are_unused(spoken):
    path = spoken(("C", {"id": 1, "method": "ping"}), ("C", note("initialized")))
    with pytest.raises(MockMismatch, match=r"not requested: ping \(record 1\)"):
        mock_server(path).check()


# Redacted recordings.


@pytest.mark.parametrize(
    ("live", "fits"),
    [("Hunter2-é", True), ("hunter2-é", False), ("Hunter22-é", False), (7, False), (None, False)],
)
async def test_a_redacted_value_matches_by_its_shape(spoken, connect, live, fits):
    path = spoken(
        ("C", call(1, password="Qxkzwv9-ü", n=35)), ("S", result(1)), redaction={"rules": 1}
    )
    more = {} if live is None else {"password": live}
    (answer,) = await say(connect(mock_server(path)), call(5, n=42, **more))
    assert ("result" in answer) is fits


async def test_an_equal_request_matches_before_one_of_the_same_shape(spoken, connect):
    path = spoken(
        ("C", call(1, "ab")),
        ("S", result(1, n=1)),
        ("C", call(2, "cd")),
        ("S", result(2, n=2)),
        redaction={"rules": 1},
    )
    peer = connect(mock_server(path))
    assert await say(peer, call(5, "cd")) == [result(5, n=2)]
    assert await say(peer, call(6, "cd")) == [result(6, n=1)]


async def test_shapes_do_not_match_in_a_recording_that_is_not_redacted(spoken, connect):
    peer = connect(mock_server(spoken(("C", call(1, "ab")), ("S", result(1)))))
    (answer,) = await say(peer, call(5, "cd"))
    assert "error" in answer


async def test_a_subscription_has_the_id_of_the_live_request(spoken, connect):
    tag = "io.modelcontextprotocol/subscriptionId"
    listen = {"method": "subscriptions/listen", "params": {"notifications": {}}}
    meta = {"_meta": {tag: "s"}}
    peer = connect(
        mock_server(
            spoken(
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
    assert await say(peer, {"id": 7, **listen}) == [
        note("subscriptions/acknowledged", notifications={}, **live),
        note("tools/list_changed", **live),
        result(7, resultType="complete", **live),
        note("cancelled", requestId=7, **live),
    ]
