"""The HTTP client channel with a stateless server."""

import json
import logging

import pytest
import trio
import trio.testing

from mcp_trio import Client
from mcp_trio.errors import LocalProtocolError, OutcomeUnknown
from mcp_trio.transports import Lost
from tests.transports.http.scripted_server import (
    STATELESS,
    Legacy,
    Modern,
    Reply,
    answer_to,
    asking,
    connected,
    error,
    event,
    events,
    json_reply,
    next_item,
    notification_message,
    result,
    stateless_call,
    streaming,
    succeed,
)


def tool(name, **properties):
    return {"name": name, "inputSchema": {"type": "object", "properties": properties}}


# Requests


@pytest.mark.requirement(
    "MHTTP-08", "MHTTP-09", "MHTTP-10", "HDR-01", "HDR-02", "HDR-03", "MHTTP-11"
)
async def test_each_request_is_a_post_with_the_headers_of_its_message():
    async with connected(Modern(answers={"tools/call": succeed})) as (channel, script):
        for number in (1, 2):
            await channel.send([stateless_call(number)])
            assert (await next_item(channel))["id"] == number

    assert [seen.method for seen in script.seen] == ["POST", "POST"]
    headers = script.seen[1].headers
    assert headers["accept"] == "application/json, text/event-stream"
    assert headers["content-type"] == "application/json"
    assert headers["mcp-protocol-version"] == STATELESS
    assert headers["mcp-method"] == "tools/call"
    assert headers["mcp-name"] == "add"
    assert "mcp-session-id" not in headers
    assert script.seen[1].body == stateless_call(2)


@pytest.mark.requirement("HDR-09", "HDR-19", "HDR-23")
async def test_annotated_arguments_of_listed_tools_are_sent_in_headers():
    marked = {name: {"type": "string", "x-mcp-header": name.title()} for name in ("a", "b", "c")}

    async def list_tools(seen):
        return result(seen, tools=[tool("add", **marked)])

    answers = {"tools/list": list_tools, "tools/call": succeed}
    async with connected(Modern(answers=answers)) as (channel, script):
        await channel.send([stateless_call(1, a="x", b="é", c=None)])
        await next_item(channel)
        await channel.send([asking(2, "tools/list", STATELESS)])
        await next_item(channel)
        await channel.send([stateless_call(3, a="x", b="é", c=None)])
        await next_item(channel)

    assert "mcp-param-a" not in script.seen[0].headers
    headers = script.seen[2].headers
    assert headers["mcp-param-a"] == "x"
    assert headers["mcp-param-b"] == "=?base64?w6k=?="
    assert "mcp-param-c" not in headers


@pytest.mark.requirement("HDR-16", "TRAP-50")
async def test_a_tool_with_an_invalid_annotation_is_not_passed_to_the_session():
    async def list_tools(seen):
        listed = [tool("good"), tool("bad", a={"type": "object", "x-mcp-header": "A"})]
        return events(event(answer_to(seen, tools=listed)))

    async with connected(Modern(answers={"tools/list": list_tools})) as (channel, _):
        await channel.send([asking(1, "tools/list", STATELESS)])
        listed = (await next_item(channel))["result"]["tools"]

    assert [each["name"] for each in listed] == ["good"]


async def test_a_request_that_headers_cannot_carry_fails_without_being_sent():
    async with connected(Modern()) as (channel, script):
        await channel.send([asking(1, "über", STATELESS)])
        lost = await next_item(channel)

    assert isinstance(lost, Lost)
    assert type(lost.error) is LocalProtocolError
    assert "Mcp-Method" in str(lost.error)
    assert script.seen == []


@pytest.mark.requirement("HDR-14")
async def test_an_argument_that_a_header_cannot_carry_is_a_local_error():
    async def list_tools(seen):
        listed = [tool("add", a={"type": "integer", "x-mcp-header": "A"})]
        members = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
        return result(seen, tools=listed, **members)

    answers = {"tools/list": list_tools, "tools/call": succeed}
    async with (
        connected(Modern(answers=answers)) as (channel, script),
        Client(channel) as client,
    ):
        await client.list_tools()
        with pytest.raises(LocalProtocolError, match="Mcp-Param-A cannot carry an integer beyond"):
            await client.call_tool("add", {"a": 2**53})
        assert client.is_open
    assert script.of("tools/call") == []


async def test_a_notification_is_sent_with_the_protocol_version_of_the_last_answer():
    async def accept(_seen):
        return Reply(202)

    answers = {"tools/call": succeed, "notifications/mine": accept}
    async with connected(Modern(answers=answers)) as (channel, script):
        await channel.send([stateless_call(1)])
        await next_item(channel)
        await channel.send([notification_message("notifications/mine")])

    assert script.seen[1].headers["mcp-protocol-version"] == STATELESS
    assert script.seen[1].headers["mcp-method"] == "notifications/mine"


async def test_users_headers_are_sent_but_never_replace_those_of_the_protocol():
    headers = {"X-Mine": "1", "accept": "text/plain"}
    async with connected(Modern(answers={"tools/call": succeed}), headers=headers) as (
        channel,
        script,
    ):
        await channel.send([stateless_call(1)])
        await next_item(channel)

    assert script.seen[0].headers["x-mine"] == "1"
    assert script.seen[0].headers["accept"] == "application/json, text/event-stream"
    assert "X-Mine" not in repr(channel)


# Answers


@pytest.mark.requirement("MHTTP-14", "MHTTP-21", "HTTP-13")
async def test_an_answer_is_a_json_body_or_an_event_on_a_stream():
    note = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {}}

    async def streamed(seen):
        return events(
            b": keep-alive\n\n", event(note), b":\n\n", event(answer_to(seen, content=[]))
        )

    for answer, expected in ((succeed, 1), (streamed, 2)):
        async with connected(Modern(answers={"tools/call": answer})) as (channel, _):
            await channel.send([stateless_call(1)])
            arrived = [await next_item(channel) for _ in range(expected)]

        assert arrived[-1] == {"jsonrpc": "2.0", "id": 1, "result": {"content": []}}
        assert arrived[:-1] == [note][: expected - 1]


async def test_a_body_of_several_lines_is_received_as_one_line():
    async def pretty(seen):
        return Reply(
            200,
            {"content-type": "Application/JSON; charset=utf-8"},
            json.dumps(answer_to(seen, content=[]), indent=2).encode(),
        )

    async with connected(Modern(answers={"tools/call": pretty})) as (channel, _):
        await channel.send([stateless_call(1)])
        (message,) = await channel.receive()

    assert b"\n" not in message


@pytest.mark.requirement("VER-19", "VER-22", "TRAP-25")
@pytest.mark.parametrize(("code", "status"), [(-32022, 400), (-32601, 404), (-32603, 500)])
async def test_an_error_response_is_the_answer_whatever_the_status(code, status):
    async def reject(seen):
        return error(seen, code, status=status)

    async with connected(Modern(answers={"tools/call": reject})) as (channel, _):
        await channel.send([stateless_call(1)])

        assert (await next_item(channel))["error"]["code"] == code


@pytest.mark.parametrize("wrong", ["server-error", None, "absent"])
async def test_an_error_with_a_wrong_id_answers_the_request_of_its_post(wrong):
    body = {"jsonrpc": "2.0", "id": wrong, "error": {"code": -32600, "message": "no"}}
    if wrong == "absent":
        del body["id"]

    async def reject(_seen):
        return json_reply(body, 400)

    stream = streaming(event({key: body[key] for key in body if key != "id"}))

    answers = {"tools/call": reject, "prompts/get": stream}
    async with connected(Modern(answers=answers)) as (channel, _):
        await channel.send([stateless_call(1)])
        first = await next_item(channel)
        await channel.send([asking(2, "prompts/get", STATELESS, name="x")])
        second = await next_item(channel)

    assert [first["id"], second["id"]] == [1, 2]
    assert first["error"]["code"] == second["error"]["code"] == -32600


@pytest.mark.requirement("MHTTP-31")
@pytest.mark.parametrize("status", [301, 401, 403, 413, 431, 500, 503])
async def test_any_other_status_fails_the_request_with_that_status(status):
    async def reject(_seen):
        location = f"http://other.test/{'x' * 1000}"
        return Reply(status, {"location": location}, b"too\n  bad" + b"x" * 1000)

    answers = {"tools/call": reject, "prompts/get": succeed}
    async with connected(Modern(answers=answers)) as (channel, _):
        await channel.send([stateless_call(1)])
        lost = await next_item(channel)
        await channel.send([asking(2, "prompts/get", STATELESS, name="x")])
        assert (await next_item(channel))["id"] == 2

    text = str(lost.error)
    assert f"HTTP {status}" in text
    assert "http://mcp.test/mcp" in text
    assert "too bad" in text
    assert "http://other.test/" in text
    assert len(text) < 800
    assert isinstance(lost.error, OutcomeUnknown) == (status >= 500)


@pytest.mark.requirement("SEC-04")
async def test_redirects_are_reported_and_not_followed():
    async def elsewhere(_seen):
        return Reply(307, {"location": "http://other.test/mcp"})

    async with connected(Modern(answers={"tools/call": elsewhere})) as (channel, script):
        await channel.send([stateless_call(1)])
        assert "http://other.test/mcp" in str((await next_item(channel)).error)

    assert len(script.seen) == 1


@pytest.mark.parametrize(
    "reply",
    [
        Reply(202),
        Reply(200, {"content-type": "text/html"}, b"<h1>Hello</h1>"),
        json_reply({"jsonrpc": "2.0", "id": 9, "result": {}}),
        json_reply([]),
        Reply(200, {"content-type": "application/json"}, b"no JSON"),
    ],
)
async def test_a_success_without_an_answer_leaves_the_outcome_unknown(reply):
    async def strange(_seen):
        return reply

    async with connected(Modern(answers={"tools/call": strange})) as (channel, _):
        await channel.send([stateless_call(1)])
        item = await received_loss(channel)

    assert isinstance(item.error, OutcomeUnknown)


async def received_loss(channel):
    while True:
        for item in await channel.receive():
            if isinstance(item, Lost):
                return item


# Discovery


@pytest.mark.requirement("VER-21", "VER-19")
@pytest.mark.parametrize("status", [400, 404, 405, 406, 415, 422])
async def test_a_rejected_discovery_without_an_error_response_is_a_method_not_found(status):
    async def reject(_seen):
        return Reply(status, {}, b"what?")

    async with connected(Modern(answers={"server/discover": reject})) as (channel, _):
        await channel.send([asking(0, "server/discover", STATELESS)])
        answer = await next_item(channel)

    assert answer["id"] == 0
    assert answer["error"]["code"] == -32601


@pytest.mark.parametrize("status", [401, 403, 429, 500])
async def test_a_discovery_that_is_rejected_for_other_reasons_fails(status):
    async def reject(_seen):
        return Reply(status)

    async with connected(Modern(answers={"server/discover": reject})) as (channel, _):
        await channel.send([asking(0, "server/discover", STATELESS)])

        assert f"HTTP {status}" in str((await next_item(channel)).error)


# With `Client`


async def test_a_client_uses_a_stateless_server():
    async def list_tools(seen):
        return result(
            seen, tools=[tool("add")], resultType="complete", ttlMs=0, cacheScope="private"
        )

    async def add(seen):
        given = seen.message["params"]["arguments"]
        content = [{"type": "text", "text": str(sum(given.values()))}]
        return events(event(answer_to(seen, content=content, resultType="complete")))

    answers = {"tools/list": list_tools, "tools/call": add}
    async with connected(Modern(answers=answers)) as (channel, script), Client(channel) as client:
        assert client.protocol_version == STATELESS
        assert [each.name for each in await client.list_tools()] == ["add"]
        assert (await client.call_tool("add", {"a": 1, "b": 2})).content[0].text == "3"

    assert script.methods == ["server/discover", "tools/list", "tools/call"]


async def test_cancelling_a_call_closes_its_stream_at_the_server(autojump_clock):
    endless = streaming(b": begun\n\n", ends=False)

    answers = {"tools/call": endless}
    async with connected(Modern(answers=answers)) as (channel, script), Client(channel) as client:
        with trio.move_on_after(1):
            await client.call_tool("add")
        with trio.fail_after(1):
            await script.closed[0].wait()

    assert script.methods == ["server/discover", "tools/call"]


@pytest.mark.parametrize("status", [400, 404, 405])
async def test_a_client_falls_back_to_the_handshake_if_discovery_is_unknown(
    status,
):
    async def reject(_seen):
        return Reply(status)

    async with (
        connected(Legacy(answers={"server/discover": reject})) as (channel, script),
        Client(channel) as client,
    ):
        assert client.protocol_version == "2025-11-25"

    assert script.methods[:3] == ["server/discover", "initialize", "notifications/initialized"]
    assert "mcp-method" not in script.seen[1].headers


def test_only_the_log_of_httpx2_contains_the_url_of_requests(caplog):
    async def main():
        answers = {"tools/call": succeed}
        async with connected(Modern(answers=answers), headers={"X-Key": "secret"}) as (channel, _):
            await channel.send([stateless_call(1)])
            await next_item(channel)

    with caplog.at_level(logging.DEBUG):
        trio.run(main)

    assert "secret" not in caplog.text
