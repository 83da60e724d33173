"""Mock servers for stateless clients: retries, subscriptions and version negotiation."""

import pytest
import trio

from mcp_trio import Client, RequestError
from mcp_trio.testing import WirePeer, mock_server
from mcp_trio.transports import memory_pair
from tests.replay.conversations import (
    SERVER_INFO,
    STATELESS,
    TAG,
    note,
    result,
    say,
    stateless_call,
    stateless_request,
)

# Rounds.

ASKS = {"resultType": "input_required", "inputRequests": {"q": {"method": "x"}}}


def accepted(**content):
    return {"action": "accept", "content": content}


def in_rounds(*answers):
    """A recording of one call, and of a retry for each of the answers."""
    said = [("C", stateless_call("1"))]
    for number, answer in enumerate(answers, 1):
        retry = stateless_call(f"{number + 1}", requestState=f"s{number}", inputResponses=answer)
        said += [
            ("S", result(f"{number}", **ASKS, requestState=f"s{number}")),
            ("C", retry),
        ]
    return [*said, ("S", result(f"{len(answers) + 1}", n=len(answers)))]


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
    spoken, connect, recorded, live
):
    peer = connect(mock_server(spoken(*in_rounds(recorded))))
    assert await say(peer, stateless_call(7)) == [result(7, **ASKS, requestState="s1")]
    retry = stateless_call(8, requestState="s1", inputResponses=live)
    assert await say(peer, retry) == [result(8, n=1)]


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
    spoken, connect, live, place
):
    peer = connect(mock_server(spoken(*in_rounds({"q": accepted()}))))
    await say(peer, stateless_call(7))
    (rejected,) = await say(peer, stateless_call(8, **{"requestState": "s1", **live}))
    assert f"record 3, which differs at {place}" in rejected["error"]["message"]


async def test_an_input_response_without_an_action_matches_by_its_members(spoken, connect):
    peer = connect(mock_server(spoken(*in_rounds({"q": {"roots": []}}))))
    await say(peer, stateless_call(7))
    other = stateless_call(8, requestState="s1", inputResponses={"q": {"model": "a"}})
    assert "error" in (await say(peer, other))[0]


async def test_an_equal_retry_matches_before_one_of_the_same_kind(spoken, connect):
    def retry(id_, city):
        return stateless_call(id_, requestState="s", inputResponses={"q": accepted(city=city)})

    said = [("C", retry(1, "Oslo")), ("S", result(1, n=1)), ("C", retry(2, "Rome"))]
    peer = connect(mock_server(spoken(*said, ("S", result(2, n=2)))))
    assert await say(peer, retry(8, "Rome")) == [result(8, n=2)]
    assert await say(peer, retry(9, "Rome")) == [result(9, n=1)]


async def test_input_responses_match_in_a_redacted_recording(spoken, connect):
    recorded = stateless_call(
        1, "x", arguments={"key": "abc"}, inputResponses={"q": accepted(a="zzzz")}
    )
    path = spoken(("C", recorded), ("S", result(1, n=1)), redaction={"key_id": "k"})
    peer = connect(mock_server(path))
    live = stateless_call(2, "x", arguments={"key": "xyz"}, inputResponses={"q": accepted(a="1")})
    other = stateless_call(3, "x", arguments={"key": "123"}, inputResponses={"q": accepted(a="1")})
    assert "error" in (await say(peer, other))[0]
    assert await say(peer, live) == [result(2, n=1)]


# Subscriptions.


async def test_a_subscription_notification_comes_with_its_recorded_cause(spoken, connect):
    listen, tagged = "subscriptions/listen", {"_meta": {TAG: "s"}}
    path = spoken(
        ("C", stateless_request("s", listen)),
        ("S", note("subscriptions/acknowledged", **tagged)),
        ("C", stateless_call("c", "grow")),
        ("S", result("c")),
        ("S", note("tools/list_changed", **tagged)),
    )
    peer, live = connect(mock_server(path)), {"_meta": {TAG: 5}}
    assert await say(peer, stateless_request(5, listen)) == [
        note("subscriptions/acknowledged", **live)
    ]
    changed = note("tools/list_changed", **live)
    assert await say(peer, stateless_call(6, "grow")) == [result(6), changed]


@pytest.mark.parametrize("cancels", [True, False])
async def test_a_cancelled_subscription_gets_no_notifications(spoken, connect, cancels):
    listen, tagged = "subscriptions/listen", {"_meta": {TAG: "s"}}
    path = spoken(
        ("C", stateless_request("s", listen)),
        ("C", stateless_call("c", "grow")),
        ("S", result("c")),
        ("S", note("tools/list_changed", **tagged)),
        ("S", result("s", **tagged)),
    )
    peer = connect(mock_server(path))
    if cancels:
        assert await say(peer, stateless_request(5, listen), note("cancelled", requestId=5)) == []
    assert await say(peer, stateless_call(6, "grow")) == [result(6)]


# The other era.


LISTED = (("C", stateless_request(1, "tools/list")), ("S", result(1, tools=[])))


async def test_discovery_that_was_not_recorded_is_answered_from_the_recorded_requests(
    spoken, connect
):
    info = {"_meta": {SERVER_INFO: {"name": "n", "version": "1"}}}
    path = spoken(
        *LISTED,
        ("C", stateless_request(2, "completion/complete")),
        ("S", result(2, **info)),
        ("C", stateless_request(3, "own/method")),
    )
    peer = connect(mock_server(path))
    assert await say(peer, stateless_request(9, "server/discover")) == [
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


async def test_a_client_continues_after_such_a_discovery(spoken):
    with mock_server(spoken(*LISTED), strict=True) as mock:
        async with Client(mock, protocol_versions=("2025-11-25", STATELESS)) as client:
            assert client.protocol_version == STATELESS
            assert await client.list_tools() == []


async def test_a_handshake_with_a_stateless_mock_gets_the_supported_versions(spoken):
    mock = mock_server(spoken(*LISTED))
    with pytest.raises(RequestError) as caught:
        async with Client(mock, protocol_versions=("2025-11-25",)):
            pass
    assert caught.value.code == -32022
    assert caught.value.data == {"supported": [STATELESS], "requested": "2025-11-25"}
    assert mock.unrecorded == ()


async def test_discovery_of_a_legacy_mock_is_method_not_found(spoken, connect):
    mock = mock_server(spoken(("C", {"id": 1, "method": "ping"}), ("S", result(1))))
    peer = connect(mock)
    (rejected,) = await say(peer, stateless_request(2, "server/discover"))
    assert rejected["error"]["code"] == -32601
    (missed,) = await say(peer, {"id": 3, "method": "initialize", "params": {}})
    assert "was not recorded" in missed["error"]["message"]
    await peer.aclose()


async def test_discovery_can_be_repeated_or_left_out(spoken, connect):
    path = spoken(("C", stateless_request(1, "server/discover")), ("S", result(1, a=1)), *LISTED)
    mock = mock_server(path)
    peer = connect(mock)
    again = [await say(peer, stateless_request(n, "server/discover")) for n in (2, 3)]
    assert again == [[result(2, a=1)], [result(3, a=1)]]


async def test_a_client_with_a_fixed_protocol_version_needs_no_discovery(spoken):
    path = spoken(("C", stateless_request(1, "server/discover")), ("S", result(1)), *LISTED)
    ours, theirs = memory_pair()
    mock = mock_server(path, strict=True)
    with mock:
        async with trio.open_nursery() as serving:
            serving.start_soon(mock.serve, theirs)
            peer = WirePeer(ours)
            await say(peer, stateless_request(4, "tools/list"))
            await peer.aclose()
    assert mock.unused == ()
