"""Live replay of stateless clients: retries, subscriptions and URL elicitations."""

import json

import attrs
import msgspec
import pytest
import trio
from msgspec import Raw

from mcp_trio import Server
from mcp_trio._journal.conversation import InputRequest
from mcp_trio._replay.live_matching import live_keys, with_recorded_keys
from mcp_trio.limits import DEFAULT_LIMITS
from mcp_trio.recording import run_inputs
from tests.replay.conversations import (
    META,
    SERVER_INFO,
    STATELESS,
    TAG,
    VERSION,
    note,
    result,
    stateless_call,
    stateless_request,
    told,
)

CITY = {"method": "elicitation/create", "params": {"message": "City?"}}
DAYS = {"method": "elicitation/create", "params": {"message": "Days?"}}
ROOTS = {"method": "roots/list"}


def asks(state=None, **questions):
    asked = {"resultType": "input_required", "inputRequests": questions}
    return asked | ({} if state is None else {"requestState": state})


def params_of(asked):
    return {name: value for name, value in asked["params"].items() if name not in {"_meta", "name"}}


# Rounds.

ROUNDS = (
    ("C", stateless_call(1)),
    ("S", result(1, **asks("recorded", q1=CITY, q2=DAYS, q3=ROOTS))),
    (
        "C",
        stateless_call(
            2,
            inputResponses={"q1": "Oslo", "q2": 3, "q3": {"roots": []}},
            requestState="recorded",
        ),
    ),
    ("S", result(2, resultType="complete", content=[])),
)


async def test_a_retry_has_the_live_state_and_the_live_keys(spoken, scripted):
    async def script(peer):
        first = await peer.receive()
        await peer.send_result(first, asks("live", a=ROOTS, b=DAYS, c=CITY))
        retry = await peer.receive()
        assert params_of(retry) == {
            "inputResponses": {"c": "Oslo", "b": 3, "a": {"roots": []}},
            "requestState": "live",
        }
        assert retry["params"]["_meta"] == META
        await peer.send_result(retry, {"resultType": "complete", "content": []})

    report = await run_inputs(spoken(*ROUNDS), scripted(script))
    assert report.is_same, str(report)
    assert report.ignored == 1


async def test_a_live_server_without_a_state_gets_none(spoken, scripted):
    async def script(peer):
        await peer.send_result(await peer.receive(), asks(q1=CITY, q2=DAYS, q3=ROOTS))
        retry = await peer.receive()
        assert "requestState" not in retry["params"]
        await peer.send_result(retry, {"resultType": "complete", "content": []})

    report = await run_inputs(spoken(*ROUNDS), scripted(script))
    assert told(report) == [("changed", "answer to tools/call x", "$.result.requestState")]


async def test_input_responses_are_sent_only_to_live_input_requests(spoken, scripted):
    async def script(peer):
        other = {"method": "sampling/createMessage"}
        await peer.send_result(await peer.receive(), asks("live", q2=DAYS, more=other))
        retry = await peer.receive()
        assert params_of(retry)["inputResponses"] == {"q2": 3}
        await peer.send_result(retry, {"resultType": "complete", "content": []})

    report = await run_inputs(spoken(*ROUNDS), scripted(script))
    assert [path for _, _, path in told(report)] == [
        f"$.result.inputRequests.{key}" for key in ("q1", "q3", "more")
    ]


@pytest.mark.parametrize(
    "answer",
    [{"result": {"resultType": "complete", "content": []}}, {"error": {"code": -1, "message": ""}}],
)
async def test_a_server_without_input_requests_gets_no_retry(
    spoken, scripted, answer, autojump_clock
):
    async def script(peer):
        first = await peer.receive()
        await peer.send({"id": first["id"], **answer})

    began = trio.current_time()
    report = await run_inputs(spoken(*ROUNDS), scripted(script))
    assert trio.current_time() - began < 1
    assert (report.unsent, report.answered) == (1, 1)
    assert told(report)[-1] == ("missing", "answer to tools/call x", "")


async def test_a_result_in_place_of_a_recorded_error_is_a_difference(spoken, scripted):
    async def script(peer):
        await peer.send_result(await peer.receive(), asks("live", q1=CITY))

    path = spoken(
        ("C", stateless_call(1)), ("S", {"id": 1, "error": {"code": -1, "message": "no"}})
    )
    report = await run_inputs(path, scripted(script))
    assert [path for _, _, path in told(report)] == ["$.error", "$.result"]


async def test_a_request_state_without_a_recorded_origin_is_sent_unchanged(spoken, scripted):
    async def script(peer):
        asked = await peer.receive()
        assert params_of(asked) == {"requestState": "made up"}
        await peer.send({"id": asked["id"], "error": {"code": -32602, "message": "no"}})

    rejected = {"id": 1, "error": {"code": -32602, "message": "no"}}
    path = spoken(("C", stateless_call(1, requestState="made up")), ("S", rejected))
    assert (await run_inputs(path, scripted(script))).is_same


async def test_a_retry_without_input_responses_is_sent_without_them(spoken, scripted):
    async def script(peer):
        waiting = {"resultType": "input_required", "requestState": "live"}
        await peer.send_result(await peer.receive(), waiting)
        retry = await peer.receive()
        assert params_of(retry) == {"requestState": "live"}
        await peer.send_result(retry, {})

    path = spoken(
        ("C", stateless_call(1)),
        ("S", result(1, resultType="input_required", requestState="recorded")),
        ("C", stateless_call(2, requestState="recorded")),
        ("S", result(2)),
    )
    assert (await run_inputs(path, scripted(script))).is_same


@pytest.mark.parametrize(
    ("recorded", "live", "keys"),
    [
        ({"a": CITY, "b": CITY}, {"b": CITY, "a": CITY}, {"a": "a", "b": "b"}),
        ({"a": CITY, "b": DAYS}, {"a": DAYS, "b": CITY}, {"a": "b", "b": "a"}),
        ({"a": CITY, "b": DAYS}, {"c": ROOTS, "d": DAYS}, {"b": "d"}),
        ({"a": CITY}, {"z": DAYS, "a": DAYS}, {"a": "a"}),
        ({"a": CITY, "b": DAYS}, {"y": CITY | {"params": {}}, "z": DAYS}, {"a": "y", "b": "z"}),
    ],
)
def test_input_requests_match_if_equal_or_else_by_method(recorded, live, keys):
    as_questions = (
        {
            key: msgspec.json.decode(json.dumps(each), type=InputRequest)
            for key, each in asked.items()
        }
        for asked in (recorded, live)
    )
    assert live_keys(*as_questions) == keys


def test_a_result_with_the_same_keys_is_unchanged():
    live = Raw(json.dumps(asks("s", q=CITY)).encode())
    assert with_recorded_keys(live, live) is live
    assert with_recorded_keys(live, Raw(b"{}")) is live


# Who the server is, and how one waits for the end.


async def test_another_version_of_the_server_is_one_difference(spoken, scripted):
    def info(version):
        return {"_meta": {SERVER_INFO: {"name": "n", "version": version}, "other": version}}

    async def script(peer):
        for _ in range(2):
            await peer.send_result(await peer.receive(), info("2"))

    path = spoken(
        ("C", stateless_request(1, "server/discover")),
        ("S", result(1, **info("1"))),
        ("C", stateless_call(2)),
        ("S", result(2, **info("1"))),
    )
    assert told(await run_inputs(path, scripted(script))) == [
        (
            "changed",
            "answer to server/discover",
            f'$.result._meta["{SERVER_INFO}"].version',
        ),
        ("changed", "answer to server/discover", "$.result._meta.other"),
        ("changed", "answer to tools/call x", "$.result._meta.other"),
    ]


async def test_the_name_of_a_meta_member_in_a_text_is_compared(spoken, scripted):
    async def script(peer):
        await peer.send_result(await peer.receive(), {"text": f"{SERVER_INFO}", "_meta": 5})

    path = spoken(("C", stateless_call(1)), ("S", result(1, text=f"{SERVER_INFO}", _meta=5)))
    assert (await run_inputs(path, scripted(script))).is_same


async def test_discovery_marks_the_end_at_a_stateless_server(spoken):
    last = []

    @attrs.define
    class Watched:
        async def serve(self, channel):
            while frames := await channel.receive():
                for frame in frames:
                    last.append(json.loads(frame))
                    answer = {"jsonrpc": "2.0", "id": last[-1]["id"], "result": {}}
                    await channel.send([json.dumps(answer).encode()])

    path = spoken(("C", stateless_call(1, _meta={"progressToken": "t"})), ("S", result(1)))
    assert (await run_inputs(path, Watched())).is_same
    assert last[1]["method"] == "server/discover"
    assert last[1]["params"] == {"_meta": META}


# Subscriptions.

FILTER = {"notifications": {"toolsListChanged": True}}


def tagged(id_):
    return {"_meta": {TAG: id_}}


async def test_notifications_of_a_live_subscription_match_the_recorded_ones(spoken, scripted):
    async def script(peer):
        one, two = await peer.receive_many(2)
        for asked in (two, one):
            await peer.send(note("subscriptions/acknowledged", **FILTER, **tagged(asked["id"])))
        await peer.send(note("tools/list_changed", **tagged(two["id"])))
        cancel = await peer.receive()
        assert cancel["params"]["requestId"] == one["id"]
        await peer.send_result(two, tagged(two["id"]))
        await peer.send(note("cancelled", requestId=two["id"], **tagged(two["id"])))

    path = spoken(
        ("C", stateless_request("a", "subscriptions/listen", **FILTER)),
        ("C", stateless_request("b", "subscriptions/listen", **FILTER)),
        ("S", note("subscriptions/acknowledged", **FILTER, **tagged("a"))),
        ("S", note("subscriptions/acknowledged", **FILTER, **tagged("b"))),
        ("S", note("tools/list_changed", **tagged("b"))),
        ("C", note("cancelled", requestId="a")),
        ("S", result("b", **tagged("b"))),
        ("S", note("cancelled", requestId="b", **tagged("b"))),
    )
    report = await run_inputs(path, scripted(script))
    assert report.is_same, str(report)


async def test_a_missing_subscription_notification_is_not_awaited_long(
    spoken, scripted, autojump_clock
):
    async def script(peer):
        asked = await peer.receive()
        await peer.send(note("subscriptions/acknowledged", **tagged(asked["id"])))

    path = spoken(
        ("C", stateless_request("a", "subscriptions/listen", **FILTER)),
        ("S", note("subscriptions/acknowledged", **tagged("a"))),
        ("S", note("tools/list_changed", **tagged("a"))),
    )
    began = trio.current_time()
    report = await run_inputs(path, scripted(script))
    assert trio.current_time() - began <= DEFAULT_LIMITS.replay.unrequested_seconds
    assert told(report) == [
        ("missing", "notifications/tools/list_changed for subscriptions/listen", "")
    ]


async def test_the_final_end_of_a_subscription_is_not_awaited(spoken, scripted, autojump_clock):
    async def script(peer):
        asked = await peer.receive()
        await peer.send(note("subscriptions/acknowledged", **tagged(asked["id"])))

    path = spoken(
        ("C", stateless_request("a", "subscriptions/listen", **FILTER)),
        ("S", note("subscriptions/acknowledged", **tagged("a"))),
        ("S", result("a", **tagged("a"))),
        ("S", note("cancelled", requestId="a", **tagged("a"))),
    )
    began = trio.current_time()
    report = await run_inputs(path, scripted(script))
    assert trio.current_time() == began
    assert report.is_same, str(report)


async def test_a_notification_for_no_subscription_is_extra(spoken, scripted):
    async def script(peer):
        asked = await peer.receive()
        await peer.send(note("tools/list_changed", **tagged(99)))
        await peer.send_result(asked, {})

    report = await run_inputs(spoken(("C", stateless_call(1)), ("S", result(1))), scripted(script))
    assert told(report) == [("extra", "notifications/tools/list_changed", "")]


# Legacy servers that ask.


def visit(id_, url, elicitation_id):
    params = {"mode": "url", "url": url, "message": "", "elicitationId": elicitation_id}
    return {"id": id_, "method": "elicitation/create", "params": params}


async def test_url_elicitations_match_whatever_their_id(spoken, scripted):
    async def script(peer):
        asked = await peer.receive()
        await peer.send(visit(1, "b", "L2"), visit(2, "a", "L1"))
        replies = await peer.receive_many(2)
        assert {each["id"]: each["result"]["action"] for each in replies} == {
            1: "decline",
            2: "accept",
        }
        await peer.send(note("elicitation/complete", elicitationId="L1"))
        await peer.send_result(asked, {})

    path = spoken(
        ("C", {"id": 1, "method": "tools/call", "params": {"name": "x"}}),
        ("S", visit(5, "a", "R1")),
        ("S", visit(6, "b", "R2")),
        ("C", result(5, action="accept")),
        ("C", result(6, action="decline")),
        ("S", note("elicitation/complete", elicitationId="R1")),
        ("S", result(1)),
    )
    report = await run_inputs(path, scripted(script))
    assert report.is_same, str(report)
    assert report.ignored == 3


# Both eras in one recording, and other revisions.

HELLO = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "c", "version": "1"},
}
BOTH_ERAS = (
    ("C", {"id": 1, "method": "initialize", "params": HELLO}),
    (
        "S",
        result(
            1,
            protocolVersion="2025-11-25",
            capabilities={"logging": {}},
            serverInfo={"name": "s", "version": "1"},
        ),
    ),
    ("C", {"method": "notifications/initialized"}),
    ("C", stateless_request(2, "server/discover")),
    (
        "S",
        result(
            2,
            resultType="complete",
            supportedVersions=[STATELESS, "2025-11-25"],
            capabilities={"logging": {}},
            ttlMs=0,
            cacheScope="private",
            _meta={SERVER_INFO: {"name": "s", "version": "1"}},
        ),
    ),
    ("C", {"id": 3, "method": "ping"}),
    ("S", result(3)),
)


async def test_stateless_and_legacy_requests_of_one_session_are_driven(spoken):
    server = Server("s", version="1", protocol_versions=(STATELESS, "2025-11-25"))
    report = await run_inputs(spoken(*BOTH_ERAS), server)
    assert report.is_same, str(report)
    assert report.answered == 3


@pytest.mark.parametrize("protocol_version", ["2024-11-05", STATELESS])
async def test_another_protocol_version_replaces_the_recorded_one(
    spoken, scripted, protocol_version
):
    async def script(peer):
        hello = await peer.receive()
        is_stateless = protocol_version == STATELESS
        assert hello["params"]["protocolVersion"] == (
            "2025-11-25" if is_stateless else protocol_version
        )
        await peer.send_result(
            hello, BOTH_ERAS[1][1]["result"] | {"protocolVersion": protocol_version}
        )
        _, discover = await peer.receive_many(2)
        assert discover["params"]["_meta"][VERSION] == STATELESS
        await peer.send_result(discover, BOTH_ERAS[4][1]["result"])

    report = await run_inputs(
        spoken(*BOTH_ERAS), scripted(script), protocol_version=protocol_version
    )
    assert report.is_same, str(report)


@pytest.mark.parametrize(
    ("said", "protocol_version", "known"),
    [
        (BOTH_ERAS[:2], STATELESS, "2025-11-25, 2025-06-18, 2025-03-26, 2024-11-05"),
        (BOTH_ERAS[3:4], "2025-11-25", STATELESS),
        (BOTH_ERAS[-2:], STATELESS, "none"),
        (BOTH_ERAS, "1999-01-01", "2026-07-28, 2025-11-25"),
    ],
)
async def test_a_protocol_version_of_another_kind_is_rejected(
    spoken, scripted, said, protocol_version, known
):
    with pytest.raises(
        ValueError,
        match=f"cannot be sent under {protocol_version}; possible protocol versions: {known}",
    ):
        await run_inputs(spoken(*said), scripted(None), protocol_version=protocol_version)
