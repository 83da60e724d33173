"""The parts of the HTTP client channel that need no server: queue, messages, tools and state."""

import json
import logging

import httpx2
import pytest
import trio
import trio.testing

from mcp_trio import ConnectionLost
from mcp_trio._jsonrpc.lines import one_line
from mcp_trio._jsonrpc.messages import Decoder
from mcp_trio._transports.connections import ReportedState
from mcp_trio._transports.http_client import ToolHeaders, agreed_version, outgoing_message
from mcp_trio._transports.http_client_requests import body_pieces
from mcp_trio._transports.inboxes import ReceivedQueue
from mcp_trio.transports import Lost, Oversized
from tests.transports.http.scripted_server import STATELESS, asking, telling

DECODER = Decoder(json_depth_max=64)


# The queue of received messages


async def test_all_queued_items_are_taken_at_once_and_in_order():
    inbox = ReceivedQueue(1000)
    lost = Lost(1, ConnectionLost("gone"))
    for item in (b"one", Oversized(5, b"head"), lost):
        inbox.put(item)

    assert await inbox.take() == [b"one", Oversized(5, b"head"), lost]


async def test_taking_waits_for_an_item_and_loses_none_when_cancelled(autojump_clock):
    inbox = ReceivedQueue(1000)
    with trio.move_on_after(1) as patience:
        await inbox.take()
    assert patience.cancelled_caught
    inbox.put(b"one")
    with trio.CancelScope() as scope:
        scope.cancel()
        await inbox.take()

    assert await inbox.take() == [b"one"]


async def test_a_producer_waits_for_room_until_items_are_taken(autojump_clock):
    inbox = ReceivedQueue(300)
    inbox.put(b"x" * 300)
    with trio.move_on_after(1) as patience:
        await inbox.room()
    assert patience.cancelled_caught
    await inbox.take()

    with trio.fail_after(1):
        await inbox.room()


async def test_the_end_follows_the_queued_items_and_later_items_are_dropped():
    inbox = ReceivedQueue(1000)
    inbox.put(b"one")
    inbox.end()
    inbox.put(b"two")

    assert [await inbox.take(), await inbox.take()] == [[b"one"], []]


async def test_the_end_is_returned_before_another_task_runs(nursery):
    inbox, ran = ReceivedQueue(1000), []

    async def other():
        ran.append("other")

    inbox.put(b"one")
    inbox.end()
    await inbox.take()
    nursery.start_soon(other)

    assert await inbox.take() == []
    assert ran == []


async def test_closing_ends_waits_for_items_and_for_room():
    inbox = ReceivedQueue(1)
    inbox.put(b"one")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(inbox.room)
        await trio.testing.wait_all_tasks_blocked()
        inbox.close()

    with pytest.raises(trio.ClosedResourceError):
        await inbox.take()


async def test_closing_ends_a_wait_for_items_in_another_task(nursery):
    inbox, ends = ReceivedQueue(1), []

    async def take():
        with pytest.raises(trio.ClosedResourceError):
            await inbox.take()
        ends.append("closed")

    nursery.start_soon(take)
    await trio.testing.wait_all_tasks_blocked()
    inbox.close()
    await trio.testing.wait_all_tasks_blocked()

    assert ends == ["closed"]


# Messages to send


def test_the_id_method_and_protocol_version_of_a_request_are_read():
    legacy, stateless = (
        outgoing_message(asking(7, "tools/list", each), DECODER) for each in (None, STATELESS)
    )

    assert (legacy.id, legacy.method, legacy.version) == (7, "tools/list", None)
    assert (stateless.id, stateless.method, stateless.version) == (7, "tools/list", STATELESS)


def test_an_answer_has_neither_id_nor_method():
    sent = outgoing_message(b'{"jsonrpc":"2.0","id":7,"result":{}}', DECODER)

    assert (sent.id, sent.method, sent.tool, sent.cancelled_id) == (None, None, None, None)


def test_the_id_of_a_cancelled_request_is_read():
    assert (
        outgoing_message(telling("notifications/cancelled", requestId=7), DECODER).cancelled_id == 7
    )
    assert (
        outgoing_message(telling("notifications/other", requestId=7), DECODER).cancelled_id is None
    )


@pytest.mark.parametrize("no_id", [[7], {"a": 7}, True, 7.0, None])
def test_a_cancellation_with_an_invalid_id_is_sent_as_any_notification(no_id):
    sent = outgoing_message(telling("notifications/cancelled", requestId=no_id), DECODER)

    assert (sent.method, sent.cancelled_id) == ("notifications/cancelled", None)


def test_only_a_tool_call_has_a_tool_name():
    assert outgoing_message(asking(1, "tools/call", name="add"), DECODER).tool == "add"
    assert outgoing_message(asking(1, "tools/call", name=7), DECODER).tool is None
    assert outgoing_message(asking(1, "prompts/get", name="add"), DECODER).tool is None


def test_only_the_params_that_headers_need_are_decoded():
    sent = outgoing_message(asking(1, "tools/call", name="add", arguments={"a": 1}), DECODER)

    assert sent.header_params(with_arguments=False) == {"name": "add"}
    assert sent.header_params(with_arguments=True) == {"name": "add", "arguments": {"a": 1}}


def test_params_of_any_shape_can_be_sent():
    strange = b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"_meta":7}}'
    bare = b'{"jsonrpc":"2.0","id":1,"method":"x"}'

    assert outgoing_message(strange, DECODER).header_params(with_arguments=False) == {}
    assert outgoing_message(bare, DECODER).header_params(with_arguments=True) == {}
    assert outgoing_message(asking(1, "x", 7), DECODER).version is None


def test_a_message_of_several_lines_becomes_one_line():
    pretty = json.dumps({"a": "two\nlines"}, indent=2).encode()

    assert one_line(pretty) == b'{"a":"two\\nlines"}'
    assert one_line(b"{}") == b"{}"
    assert one_line(b"no\r\nJSON") == b"no  JSON"


def test_the_protocol_version_of_an_initialize_result_is_read():
    assert agreed_version(b'{"protocolVersion":"2025-03-26"}') == "2025-03-26"
    assert agreed_version(b'{"protocolVersion":7}') is None
    assert agreed_version(b"7") is None


# Parameter headers of tools


def page(*tools):
    listed = [{"name": name, "inputSchema": schema} for name, schema in tools]
    return json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"tools": listed, "x": 1}}).encode()


def schema(header, kind="string"):
    return {"type": "object", "properties": {"a": {"type": kind, "x-mcp-header": header}}}


@pytest.mark.requirement("HDR-16", "HDR-17", "TRAP-50")
def test_a_tool_with_an_invalid_annotation_is_dropped_with_a_warning(caplog):
    tools = ToolHeaders()

    with caplog.at_level(logging.WARNING):
        frame = tools.learn(page(("good", schema("A")), ("bad", schema("A", "object"))))

    result = json.loads(frame)["result"]
    assert [tool["name"] for tool in result["tools"]] == ["good"]
    assert result["x"] == 1
    assert "'bad'" in caplog.text
    assert "'good'" not in caplog.text


def test_a_page_of_valid_tools_is_unchanged():
    frame = page(("good", schema("A")), ("plain", {"type": "object"}))

    assert ToolHeaders().learn(frame) is frame


@pytest.mark.requirement("HDR-33", "HDR-34")
def test_the_newest_schema_of_a_tool_replaces_older_ones():
    tools = ToolHeaders()
    assert tools.paths_of("add") is None

    tools.learn(page(("add", schema("A"))))
    assert tools.paths_of("add") == {"A": ("a",)}

    tools.learn(page(("other", schema("A"))))
    assert tools.paths_of("add") == {"A": ("a",)}  # another page

    tools.learn(page(("add", schema("B"))))
    assert tools.paths_of("add") == {"B": ("a",)}

    tools.learn(page(("add", {"type": "object"})))
    assert tools.paths_of("add") is None
    assert tools.paths_of(None) is None


def test_the_tool_that_was_listed_longest_ago_is_forgotten_first():
    tools = ToolHeaders(2)

    for name in ("first", "second", "first", "third"):
        tools.learn(page((name, schema("A"))))

    known = [name for name in ("first", "second", "third") if tools.paths_of(name)]
    assert known == ["first", "third"]


@pytest.mark.parametrize(
    "frame",
    [
        b'{"jsonrpc":"2.0","id":1,"result":{}}',
        b'{"jsonrpc":"2.0","id":1,"result":{"tools":7}}',
        b'{"jsonrpc":"2.0","id":1,"result":{"tools":[7,{"name":1},{"name":"x"}]}}',
        b'{"jsonrpc":"2.0","id":1,"result":7}',
    ],
)
def test_a_response_that_is_not_a_page_of_tools_is_unchanged(frame):
    assert ToolHeaders().learn(frame) is frame


# Bodies


async def test_a_body_that_is_left_early_closes_its_innermost_generator():
    ended = []

    class Body(httpx2.AsyncByteStream):
        async def __aiter__(self):
            try:
                for _ in range(3):
                    yield b"x"
                await trio.sleep_forever()
            finally:
                ended.append(True)

    async with body_pieces(httpx2.Response(200, stream=Body())) as pieces:
        async for _ in pieces:
            break

    assert ended == [True]


# The reported state


REACHED = {
    "connecting": [],
    "open": [("open", "")],
    "retrying": [("retrying", "down")],
    "closed": [("closed", "over")],
}
FOLLOWING = [
    # from, to, whether it becomes that, whether that is told
    ("connecting", "connecting", False, False),
    ("connecting", "open", True, True),
    ("connecting", "retrying", True, True),
    ("connecting", "closed", True, True),
    ("open", "connecting", False, False),
    ("open", "open", False, False),
    ("open", "retrying", True, True),
    ("open", "closed", True, True),
    ("retrying", "connecting", False, False),
    ("retrying", "open", True, True),
    ("retrying", "retrying", True, False),
    ("retrying", "closed", True, True),
    ("closed", "connecting", False, False),
    ("closed", "open", False, False),
    ("closed", "retrying", False, False),
    ("closed", "closed", False, False),
]


@pytest.mark.parametrize(("before", "after", "becomes", "is_told"), FOLLOWING)
def test_state_transitions_and_their_reports(before, after, becomes, is_told):
    told = []
    condition = ReportedState(lambda *news: told.append(news))
    condition.begin()
    for step in REACHED[before]:
        condition.become(*step)
    assert told == [("connecting", ""), *REACHED[before]]
    stood = (condition.state, condition.reason)

    condition.become(after, "news")

    assert (condition.state, condition.reason) == ((after, "news") if becomes else stood)
    assert told[1 + len(REACHED[before]) :] == ([(after, "news")] if is_told else [])


def test_an_exception_of_on_state_is_logged(caplog):
    def fail(_state, _reason):
        raise KeyError("mine")

    condition = ReportedState(fail)
    condition.become("open")

    assert condition.state == "open"
    assert "on_state failed" in caplog.text
