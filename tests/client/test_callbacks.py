"""Callbacks of a client for its server's requests and notifications."""

import dataclasses
import datetime as dt
import functools
import re
import socket
import sys
from pathlib import Path

import attrs
import pydantic
import pytest
import trio
import trio.testing

from mcp_trio import Client, ConnectionLost, Limits, RequestError, Server, UserRejected
from mcp_trio import types as t
from mcp_trio._protocol.versions import PROTOCOL_VERSIONS
from mcp_trio.errors import LocalProtocolError, RemoteProtocolError
from mcp_trio.limits import RequestLimits
from mcp_trio.middleware import Rate
from tests.client.conftest import OLD, connected, text, text_of_result
from tests.client.server_requests import asked, check_rejected
from tests.client.stateless import legacy_client, stateless_client

MESSAGE = t.LoggingMessageParams(level="info", data={"sea": "calm"}, logger="weather")


@pytest.fixture
def talkative(bench):
    bench.protocol_versions = OLD  # no subscription is needed

    @bench.tool
    async def tell(handling):
        await handling.notify("notifications/message", MESSAGE)
        await handling.notify(
            "notifications/resources/updated", t.ResourceUpdatedParams(uri="tide://bergen")
        )
        for kind in ("tools", "resources", "prompts"):
            await handling.notify(f"notifications/{kind}/list_changed")
        return text("told")

    return bench


@pytest.mark.parametrize("waits", [False, True])
async def test_each_notification_goes_to_its_callback(talkative, waits):
    received = []

    def listener(name):
        async def wait(value):
            await trio.lowlevel.checkpoint()
            received.append((name, value))

        return wait if waits else lambda value: received.append((name, value))

    names = ("log", "resource_updated", "list_changed")
    async with Client(talkative, **{name: listener(name) for name in names}) as client:
        await client.call_tool("tell")
        await trio.testing.wait_all_tasks_blocked()
    assert received == [
        ("log", MESSAGE),
        ("resource_updated", t.ResourceUpdatedParams(uri="tide://bergen")),
        ("list_changed", "tools"),
        ("list_changed", "resources"),
        ("list_changed", "prompts"),
    ]


async def test_notifications_without_a_callback_are_ignored(talkative, caplog):
    async with Client(talkative, protocol_versions=OLD) as client:
        assert text_of_result(await client.call_tool("tell")) == "told"
        await trio.testing.wait_all_tasks_blocked()
        await client.ping()
    assert not caplog.records


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("name", ["log", "resource_updated", "list_changed"])
async def test_a_callback_that_fails_is_logged_and_the_next_ones_run(
    talkative, caplog, name, waits
):
    received = []

    async def fail_later(_value):
        await trio.lowlevel.checkpoint()
        raise ValueError("cannot print")

    def fail(_value):
        raise ValueError("cannot print")

    listeners = dict.fromkeys(("log", "resource_updated", "list_changed"), received.append)
    listeners[name] = fail_later if waits else fail
    async with Client(talkative, **listeners) as client:
        assert text_of_result(await client.call_tool("tell")) == "told"
        await trio.testing.wait_all_tasks_blocked()
        await client.ping()
    assert len(received) == (2 if name == "list_changed" else 4)
    assert "the callback for notifications/" in caplog.text
    assert "cannot print" in caplog.text


async def test_a_callback_may_call_the_server(talkative):
    answers = []

    async def list_changed(kind):
        answers.append(text_of_result(await client.call_tool("hello")))

    async with Client(talkative, list_changed=list_changed) as client:
        await client.call_tool("tell")
        await trio.testing.wait_all_tasks_blocked()
    assert answers == ["hello"] * 3


@pytest.mark.requirement("PING-01")
async def test_a_ping_is_answered_before_and_after_the_handshake(scripted, nursery):
    channel, server = scripted
    client = Client(channel, protocol_versions=OLD)
    nursery.start_soon(client.__aenter__)
    asked = await server.receive()
    await server.send_request("ping", id="early")
    assert await server.receive() == {"jsonrpc": "2.0", "id": "early", "result": {}}
    info = {"name": "raw", "version": "1"}
    result = {"protocolVersion": "2024-11-05", "capabilities": {}, "serverInfo": info}
    await server.send_result(asked, result)
    await server.send_request("ping", id="late")
    answers = [message for message in await server.receive_many(2) if "id" in message]
    assert answers == [{"jsonrpc": "2.0", "id": "late", "result": {}}]
    await client.aclose()


@pytest.mark.parametrize("method", ["roots/list", "sampling/createMessage"])
@pytest.mark.requirement("ROOT-08")
async def test_a_request_without_its_capability_is_an_unknown_method(scripted, nursery, method):
    client, server = await connected(scripted, nursery)
    await server.send_request(method, id=1)
    assert (await server.receive())["error"]["code"] == -32601
    await client.aclose()


# Roots: the folders that a server may work in.


CHANGED = "notifications/roots/list_changed"
ROOTS = ["file:///sea", t.Root(uri="file:///land", name="land")]


@pytest.fixture
def curious(bench):
    bench.protocol_versions = OLD  # a server asks by requests of its own

    @bench.tool
    async def ask_roots(handling):
        result = await handling.ask("roots/list")
        return text(" ".join(f"{root.uri}={root.name}" for root in result.roots))

    return bench


async def answer_to_roots(client):
    """Return the client's response to a request for the roots."""
    return text_of_result(await client.call_tool("ask_roots"))


async def roots_later():
    await trio.lowlevel.checkpoint()
    return ROOTS


@pytest.mark.parametrize("roots", [ROOTS, tuple(ROOTS), lambda: ROOTS, roots_later])
@pytest.mark.requirement("ROOT-01", "ROOT-05", "ROOT-09")
async def test_a_server_gets_exactly_the_roots(curious, roots):
    async with Client(curious, roots=roots) as client:
        assert await answer_to_roots(client) == "file:///sea=None file:///land=land"


async def test_a_path_becomes_the_uri_of_its_resolved_target(curious, tmp_path, monkeypatch):
    (tmp_path / "sea bed").mkdir()
    (tmp_path / "alias").symlink_to(tmp_path / "sea bed")
    monkeypatch.chdir(tmp_path)
    real = tmp_path.resolve().as_uri()
    roots = [tmp_path, Path("alias"), Path("alias/../sea bed")]
    async with Client(curious, roots=roots) as client:
        assert (
            await answer_to_roots(client)
            == f"{real}=None {real}/sea%20bed=None {real}/sea%20bed=None"
        )


@pytest.mark.requirement("ROOT-06")
async def test_a_change_of_the_roots_is_notified_and_the_new_ones_are_listed(curious):
    roots = []
    async with Client(curious, roots=roots) as client:
        assert await answer_to_roots(client) == ""
        roots.append("file:///sea")
        await client.notify_roots_changed()
        assert await answer_to_roots(client) == "file:///sea=None"
    assert curious.notifications.count(CHANGED) == 1


@pytest.mark.requirement("ROOT-06")
async def test_set_roots_notifies_the_server_and_lists_the_new_ones(curious):
    async with Client(curious, roots=["file:///sea"]) as client:
        await client.set_roots(lambda: ["file:///land"])
        assert await answer_to_roots(client) == "file:///land=None"
    assert curious.notifications.count(CHANGED) == 1


async def test_invalid_roots_do_not_replace_the_old_ones(curious):
    async with Client(curious, roots=["file:///sea"]) as client:
        with pytest.raises(TypeError, match="roots must be a list, or a function"):
            await client.set_roots("file:///land")
        assert await answer_to_roots(client) == "file:///sea=None"
    assert CHANGED not in curious.notifications


async def test_set_roots_needs_a_client_with_roots(curious):
    client = Client(curious)
    with pytest.raises(LocalProtocolError, match="not connected"):
        await client.set_roots([])
    async with client:
        with pytest.raises(LocalProtocolError, match="not announced"):
            await client.set_roots([])
        assert client.roots is None
    with pytest.raises(ConnectionLost):
        await client.set_roots([])
    async with Client(Server("stateless")) as client:
        with pytest.raises(LocalProtocolError, match="not announced"):
            await client.set_roots([])


@pytest.mark.parametrize("roots", ["file:///sea", b"file:///sea", Path("/sea"), 7])
def test_a_single_root_is_rejected_as_a_list(roots):
    with pytest.raises(
        TypeError, match="roots must be a list, or a function that returns one, not"
    ):
        Client((), roots=roots)


@pytest.mark.parametrize(
    ("root", "complaint"),
    [
        ("https://example.org", "the URI of a root must start with file://"),
        (t.Root(uri="/sea"), "the URI of a root must start with file://"),
        ("file:///sea/../etc", "must not contain '..' or NUL"),
        ("file:///sea/%2e%2E/etc", "must not contain '..' or NUL"),
        ("file:///sea\\..\\etc", "must not contain '..' or NUL"),
        ("file:///sea%00", "must not contain '..' or NUL"),
        (7, "a root must be a Root, a URI or a path, not 7"),
    ],
)
@pytest.mark.requirement("ROOT-05", "ROOT-08", "ROOT-09")
async def test_an_invalid_root_is_never_sent(curious, caplog, root, complaint):
    roots = ["file:///sea"]
    async with Client(curious, roots=roots) as client:
        with pytest.raises((TypeError, ValueError), match=re.escape(complaint)):
            await client.set_roots([*roots, root])
        assert await answer_to_roots(client) == "file:///sea=None"
        roots.append(root)
        with pytest.raises(RequestError, match="internal error"):
            await answer_to_roots(client)
        await client.ping()
    assert complaint in caplog.text


def test_an_invalid_root_is_rejected_by_the_constructor():
    with pytest.raises(ValueError, match="must start with file://, unlike 'https://sea'"):
        Client((), roots=["https://sea"])


async def test_a_root_may_be_the_text_of_a_path(curious, tmp_path):
    async with Client(curious, roots=[str(tmp_path)]) as client:
        assert tmp_path.as_uri() in str(await answer_to_roots(client))


async def test_a_function_that_returns_a_single_root_is_an_error(curious, caplog):
    async with Client(curious, roots=lambda: "file:///sea") as client:
        with pytest.raises(RequestError, match="internal error"):
            await answer_to_roots(client)
    assert "roots must be a list" in caplog.text


@pytest.mark.requirement("ROOT-08")
async def test_an_exception_of_the_roots_function_is_an_internal_error(curious, caplog):
    def roots():
        raise OSError("the disk is gone")

    async with Client(curious, roots=roots) as client:
        with pytest.raises(RequestError, match="internal error") as caught:
            await answer_to_roots(client)
        assert "disk" not in str(caught.value)
        await client.ping()
    assert "the disk is gone" in caplog.text


@pytest.mark.requirement("ROOT-11")
async def test_a_roots_function_may_ask_the_user_first(scripted, nursery):
    async def roots():
        raise UserRejected

    client, server = await connected(scripted, nursery, roots=roots)
    await server.send_request("roots/list", id=1)
    assert (await server.receive())["error"]["code"] == -1
    await client.aclose()


# Sampling: a server asks the client's model.


MESSAGE_SAMPLING = {"role": "user", "content": {"type": "text", "text": "Ebb or flow?"}}
ASKED = {
    "messages": [MESSAGE_SAMPLING],
    "maxTokens": 9,
    "systemPrompt": "Be brief.",
    "includeContext": "allServers",
    "temperature": 0.5,
    "stopSequences": ["."],
    "metadata": {"any": "thing"},
}
SAMPLE = t.CreateMessageParams(
    messages=[t.SamplingMessage(role="user", content=t.TextContent(text="Ebb or flow?"))],
    max_tokens=9,
    system_prompt="Be brief.",
    include_context="allServers",
    temperature=0.5,
    stop_sequences=["."],
    metadata={"any": "thing"},
)
SAMPLED = t.CreateMessageResult(role="assistant", content=t.TextContent(text="hm"), model="m")
ANSWERED = {"role": "assistant", "content": {"type": "text", "text": "hm"}, "model": "m"}


@pytest.fixture
def asking(bench):
    bench.protocol_versions = OLD  # a server asks by requests of its own

    @bench.tool
    async def sample(handling):
        result = await handling.ask("sampling/createMessage", SAMPLE)
        return text(result.content.text)

    return bench


async def later(_params):
    await trio.lowlevel.checkpoint()
    return SAMPLED


@pytest.mark.parametrize("sampling", [later, lambda _params: SAMPLED])
@pytest.mark.requirement("SAMP-01", "SAMP-09", "SAMP-10", "SAMP-12")
async def test_a_server_can_request_sampling(scripted, nursery, sampling):
    client, server = await connected(scripted, nursery, sampling=sampling)
    await server.send_request("sampling/createMessage", ASKED, id="s")
    assert await server.receive() == {"jsonrpc": "2.0", "id": "s", "result": ANSWERED}
    await client.aclose()


@pytest.mark.skipif(sys.version_info < (3, 14), reason="annotations are evaluated at once")
async def test_annotations_of_a_callback_are_not_evaluated(scripted, nursery):
    names = {"SAMPLED": SAMPLED}
    exec("def sampling(params: Missing) -> Missing: return SAMPLED", names)
    client, server = await connected(scripted, nursery, sampling=names["sampling"])
    await server.send_request("sampling/createMessage", ASKED, id="s")
    assert await server.receive() == {"jsonrpc": "2.0", "id": "s", "result": ANSWERED}
    await client.aclose()


@pytest.mark.requirement("SAMP-11")
async def test_the_callback_gets_the_whole_request_with_max_tokens(asking):
    received = []

    def sampling(params):
        received.append(params)
        return SAMPLED

    async with Client(asking, sampling=sampling) as client:
        assert text_of_result(await client.call_tool("sample")) == "hm"
    assert received == [SAMPLE]
    assert received[0].max_tokens == 9


@pytest.mark.requirement("SAMP-27")
async def test_the_callback_may_change_request_and_answer(asking):
    async def sampling(params):
        params.messages[0].content.text = "Flow?"
        return t.CreateMessageResult(
            role="assistant",
            content=t.TextContent(text=f"{params.messages[0].content.text} Yes."),
            model="m",
        )

    async with Client(asking, sampling=sampling) as client:
        assert text_of_result(await client.call_tool("sample")) == "Flow? Yes."


@pytest.mark.parametrize("rejection", [UserRejected(), UserRejected("not today")])
@pytest.mark.requirement("ERR-18", "SAMP-25", "SAMP-27", "TRAP-88")
async def test_user_rejected_is_sent_as_code_minus_one(scripted, nursery, rejection):
    async def sampling(params):
        raise rejection

    client, server = await connected(scripted, nursery, sampling=sampling)
    await server.send_request("sampling/createMessage", {"messages": [], "maxTokens": 1}, id="s")
    answer = await server.receive()
    assert answer == {
        "jsonrpc": "2.0",
        "id": "s",
        "error": {"code": -1, "message": rejection.message},
    }
    await client.aclose()


@pytest.mark.requirement("SAMP-10")
async def test_a_callback_that_returns_another_type_is_an_internal_error(asking, caplog):
    async def sampling(params):
        return 7

    async with Client(asking, sampling=sampling) as client:
        with pytest.raises(RequestError, match="internal error"):
            await client.call_tool("sample")
        await client.ping()
    assert "must return a CreateMessageResult or a str, not 7" in caplog.text


async def test_a_sampling_callback_may_return_the_text_of_the_message(scripted, nursery):
    client, server = await connected(scripted, nursery, sampling=lambda _: "High tide.")
    await server.send_request("sampling/createMessage", ASKED, id="s")
    assert (await server.receive())["result"] == {
        "role": "assistant",
        "content": {"type": "text", "text": "High tide."},
        "model": "unknown",
    }
    await client.aclose()


@pytest.mark.requirement("SAMP-29")
async def test_an_error_of_the_model_is_not_sent_to_the_server(scripted, nursery, caplog):
    def sampling(params):
        raise ValueError("key sk-123 is not valid")

    client, server = await connected(scripted, nursery, sampling=sampling)
    await server.send_request("sampling/createMessage", ASKED, id="s")
    assert (await server.receive())["error"] == {"code": -32603, "message": "internal error"}
    assert "sk-123" in caplog.text
    await client.aclose()


@pytest.mark.parametrize(
    "message",
    [
        {"role": "system", "content": MESSAGE_SAMPLING["content"]},
        {"role": "user", "content": {"type": "video", "data": "", "mimeType": "video/mp4"}},
        {"role": "user"},
    ],
)
@pytest.mark.requirement("SAMP-09", "SAMP-28")
async def test_a_malformed_message_never_reaches_the_model(scripted, nursery, message):
    client, server = await connected(scripted, nursery, sampling=later)
    asked = {"messages": [MESSAGE_SAMPLING, message], "maxTokens": 1}
    await server.send_request("sampling/createMessage", asked, id="s")
    assert (await server.receive())["error"]["code"] == -32602
    await client.aclose()


@pytest.mark.requirement("SAMP-28")
async def test_too_many_sampling_requests_at_once_are_rejected(scripted, nursery):
    release = trio.Event()

    async def sampling(params):
        await release.wait()
        return SAMPLED

    limits = Limits(requests=RequestLimits(in_flight_max=1, queued_max=1))
    client, server = await connected(scripted, nursery, sampling=sampling, limits=limits)
    for number in range(3):
        await server.send_request("sampling/createMessage", ASKED, id=number)
    (rejection,) = await server.receive_available()
    assert rejection["id"] == 2
    assert "limits.requests.queued_max" in rejection["error"]["message"]
    release.set()
    assert [answer["id"] for answer in await server.receive_many(2)] == [0, 1]
    await client.aclose()


@pytest.mark.requirement("CANC-06")
async def test_a_server_may_cancel_its_sampling_request(scripted, nursery):
    cancelled = trio.Event()

    async def sampling(params):
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()

    client, server = await connected(scripted, nursery, sampling=sampling)
    await server.send_request("sampling/createMessage", {"messages": [], "maxTokens": 1}, id="s")
    await trio.testing.wait_all_tasks_blocked()
    await server.cancel("s")
    with trio.fail_after(1):
        await cancelled.wait()
    assert await server.receive_available() == []
    await client.aclose()


@pytest.mark.requirement("PROG-03", "PROG-06")
async def test_a_callback_with_a_second_parameter_reports_its_progress(scripted, nursery):
    async def sampling(params, report):
        await report(1, 3)
        await report(1)
        await report(2)
        return SAMPLED

    client, server = await connected(scripted, nursery, sampling=sampling)
    asked = {**ASKED, "_meta": {"progressToken": "p"}}
    await server.send_request("sampling/createMessage", asked, id="s")
    *reports, answer = await server.receive_many(3)
    assert [report["params"] for report in reports] == [
        {"progressToken": "p", "progress": 1, "total": 3},
        {"progressToken": "p", "progress": 2},
    ]
    assert answer["result"] == ANSWERED
    await server.send_request("sampling/createMessage", ASKED, id="quiet")
    assert (await server.receive())["id"] == "quiet"
    await client.aclose()


async def test_a_second_parameter_with_a_default_is_the_callbacks_own(asking):
    async def sampling(params, model="m"):
        return t.CreateMessageResult(
            role="assistant", content=t.TextContent(text=model), model=model
        )

    async with Client(asking, sampling=sampling) as client:
        assert text_of_result(await client.call_tool("sample")) == "m"


# Sampling with tools.


TIDE = {"name": "tide", "inputSchema": {"type": "object"}}
QUESTION = {"role": "user", "content": {"type": "text", "text": "High?"}}
USE = {"type": "tool_use", "id": "a", "name": "tide", "input": {}, "_meta": {"k": 1}}
RESULT = {
    "type": "tool_result",
    "toolUseId": "a",
    "content": [{"type": "text", "text": "High."}],
    "_meta": {"k": 2},
}


def sampled(*blocks):
    return t.CreateMessageResult(role="assistant", content=[*blocks], model="m")


TEXT = t.TextContent(text="So.")
WANTS = sampled(t.ToolUseContent(id="a", name="tide", input={}, meta={"k": 1}))


@pytest.fixture
def ask(reply):
    """The answer to a single question to the client's model."""

    async def start(model, *, allows=True, **params):
        sampling = model if callable(model) else lambda _params: model
        asked = {"messages": [QUESTION], "maxTokens": 9, **params}
        return await reply(
            "sampling/createMessage", asked, sampling=sampling, sampling_tools=allows
        )

    return start


@pytest.mark.requirement("SAMP-01", "SAMP-03")
@pytest.mark.parametrize(
    ("options", "announced"),
    [({}, {"sampling": {}}), ({"sampling_tools": True}, {"sampling": {"tools": {}}})],
)
async def test_sampling_tools_announces_the_capability(connect, options, announced):
    client, _, capabilities = await connect(sampling=lambda _params: sampled(TEXT), **options)
    assert capabilities == announced
    await client.aclose()


@pytest.mark.requirement("SAMP-05", "TRAP-87")
@pytest.mark.parametrize("params", [{"tools": [TIDE]}, {"tools": []}, {"toolChoice": {}}])
async def test_tools_without_the_capability_are_rejected(ask, params):
    received = []
    answer = await ask(received.append, allows=False, **params)
    assert answer == {
        "code": -32602,
        "message": "sampling/createMessage: sampling.tools was not announced",
    }
    assert received == []


@pytest.mark.requirement("SAMP-09", "SAMP-10", "SAMP-23", "TRAP-85")
async def test_a_model_gets_tools_and_their_results_unchanged(ask):
    received = []

    def model(params):
        received.append(params)
        return WANTS

    messages = [
        QUESTION,
        {"role": "assistant", "content": [USE]},
        {"role": "user", "content": RESULT},
    ]
    answer = await ask(model, messages=messages, tools=[TIDE], toolChoice={"mode": "auto"})
    assert answer == {"role": "assistant", "content": [USE], "model": "m"}
    (params,) = received
    assert params.tools == [t.Tool(name="tide", input_schema={"type": "object"})]
    assert params.tool_choice == t.ToolChoice(mode="auto")
    use, result = params.messages[1].content[0], params.messages[2].content
    assert (use.id, use.meta) == ("a", {"k": 1})
    assert (result.tool_use_id, result.meta) == ("a", {"k": 2})


@pytest.mark.requirement("SAMP-18", "SAMP-19", "SAMP-20", "TRAP-86")
@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([QUESTION, {"role": "user", "content": RESULT}], "an unknown tool use 'a'"),
        ([{"role": "assistant", "content": USE}, QUESTION], "no result for the tool use 'a'"),
        ([{"role": "assistant", "content": USE}], "no result for the tool use 'a'"),
        (
            [
                {"role": "assistant", "content": USE},
                {"role": "user", "content": [RESULT, QUESTION["content"]]},
            ],
            "must contain tool results only",
        ),
    ],
)
async def test_missing_or_mixed_tool_results_are_rejected(ask, messages, why):
    received = []
    answer = await ask(received.append, messages=messages, tools=[TIDE])
    assert answer["code"] == -32602
    assert why in answer["message"]
    assert received == []


@pytest.mark.requirement("SAMP-21")
@pytest.mark.parametrize(
    ("mode", "result", "why"),
    [
        ("required", sampled(TEXT), "it had to use a tool"),
        ("none", WANTS, "it uses 'tide', which it was not given"),
        ("required", WANTS, None),
        ("none", sampled(TEXT), None),
    ],
)
async def test_a_forbidden_tool_use_of_the_model_is_not_sent(ask, caplog, mode, result, why):
    answer = await ask(result, tools=[TIDE], toolChoice={"mode": mode})
    if why is None:
        assert answer["model"] == "m"
    else:
        assert answer == {"code": -32603, "message": "internal error"}
        assert why in caplog.text


# Elicitation: a server asks the user by a form or a URL.


C, D_ELICITATION = "2025-06-18", "2025-11-25"
FORM = {
    "type": "object",
    "properties": {
        "ship": {"type": "string"},
        "nights": {"type": "integer", "default": 1},
        "day": {"type": "string", "format": "date"},
    },
    "required": ["ship"],
}
ASKED_ELICITATION = {"message": "Which ship?", "requestedSchema": FORM}
URL = "https://harbour.example/pay?state=7"
VISIT = {"mode": "url", "message": "Pay", "url": URL, "elicitationId": "p7"}
BOTH = ("form", "url")


@pytest.fixture
def answer(reply):
    """The client's answer to a single elicitation."""

    async def ask(params, value, **options):
        return await reply("elicitation/create", params, elicitation=lambda _: value, **options)

    return ask


# The declared capabilities.


@pytest.mark.requirement("ELIC-01", "ELIC-03")
@pytest.mark.parametrize(
    ("protocol_version", "options", "announced"),
    [
        (D_ELICITATION, {}, {"form": {}}),
        (D_ELICITATION, {"elicitation_modes": ["form"]}, {"form": {}}),
        (D_ELICITATION, {"elicitation_modes": ["url"]}, {"url": {}}),
        (D_ELICITATION, {"elicitation_modes": BOTH}, {"form": {}, "url": {}}),
        (C, {}, {}),
        (C, {"elicitation_modes": BOTH}, {}),
    ],
)
async def test_a_client_announces_the_modes_that_it_has_a_callback_for(
    connect, protocol_version, options, announced
):
    client, _, capabilities = await connect(
        protocol_version=protocol_version, elicitation=lambda _params: True, **options
    )
    assert capabilities == {"elicitation": announced}
    await client.aclose()


async def test_without_a_callback_elicitation_is_not_announced(connect):
    client, _, capabilities = await connect(elicitation_modes=BOTH)
    assert capabilities == {}
    await client.aclose()


@pytest.mark.requirement("ELIC-03")
@pytest.mark.parametrize("modes", [(), ("form", "voice")])
def test_unknown_or_missing_elicitation_modes_are_rejected(scripted, modes):
    with pytest.raises(ValueError, match="elicitation_modes must contain 'form', 'url', or both"):
        Client(scripted[0], elicitation_modes=modes)


# Forms.


@attrs.frozen
class Mooring:
    ship: str
    day: dt.date | None = None


@dataclasses.dataclass
class Stay:
    ship: str
    nights: int


class Berth(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(populate_by_name=True)

    name: str = pydantic.Field(alias="ship")
    day: dt.date | None = None


@pytest.mark.requirement("ELIC-14", "ELIC-15", "ELIC-16", "ELIC-19")
@pytest.mark.parametrize(
    ("value", "result"),
    [
        ({"ship": "Ada", "nights": 3}, {"ship": "Ada", "nights": 3}),
        ({"ship": "Ada"}, {"ship": "Ada", "nights": 1}),
        ({"ship": "Ada", "day": None}, {"ship": "Ada", "nights": 1}),
        (Mooring("Ada"), {"ship": "Ada", "nights": 1}),
        (
            Mooring("Ada", dt.date(2024, 2, 29)),
            {"ship": "Ada", "nights": 1, "day": "2024-02-29"},
        ),
        (Stay("Ada", 3), {"ship": "Ada", "nights": 3}),
        (Berth(name="Ada"), {"ship": "Ada", "nights": 1}),
        (
            Berth(name="Ada", day=dt.date(2024, 2, 29)),
            {"ship": "Ada", "nights": 1, "day": "2024-02-29"},
        ),
        (
            t.ElicitResult(action="accept", content={"ship": "Ada"}),
            {"ship": "Ada", "nights": 1},
        ),
    ],
)
async def test_the_content_of_a_form_is_sent_with_its_defaults(answer, value, result):
    assert await answer(ASKED_ELICITATION, value) == {"action": "accept", "content": result}


@pytest.mark.requirement("ELIC-14")
async def test_accepting_a_form_sends_its_defaults(answer):
    form = {"type": "object", "properties": {"nights": {"type": "integer", "default": 2}}}
    asked = {"message": "Moor?", "requestedSchema": form}
    assert await answer(asked, True) == {"action": "accept", "content": {"nights": 2}}


@pytest.mark.parametrize(("kind", "value"), [("integer", 3), ("string", "x"), ("boolean", True)])
async def test_the_bare_value_answers_a_form_with_one_field(answer, kind, value):
    form = {"type": "object", "properties": {"it": {"type": kind}}, "required": ["it"]}
    asked = {"message": "Moor?", "requestedSchema": form}
    assert await answer(asked, value) == {"action": "accept", "content": {"it": value}}


async def test_false_declines_also_a_form_with_one_flag(answer):
    form = {"type": "object", "properties": {"it": {"type": "boolean"}}, "required": ["it"]}
    asked = {"message": "Moor?", "requestedSchema": form}
    assert await answer(asked, False) == {"action": "decline"}


@pytest.mark.requirement("ELIC-14", "ELIC-18")
async def test_a_client_of_2025_06_18_fills_in_a_form(answer):
    content = {"ship": "Ada", "nights": 2}
    result = await answer(ASKED_ELICITATION, content, protocol_version=C)
    assert result == {"action": "accept", "content": content}


@pytest.mark.requirement("ELIC-15", "ELIC-37", "ELIC-51", "ELIC-52")
@pytest.mark.parametrize(
    ("value", "action"),
    [
        (False, "decline"),
        (t.ElicitResult(action="decline"), "decline"),
        (t.ElicitResult(action="decline", content={"ship": "Ada"}), "decline"),
        (t.ElicitResult(action="cancel"), "cancel"),
    ],
)
async def test_a_user_may_decline_or_cancel_at_any_time(answer, value, action):
    assert await answer(ASKED_ELICITATION, value) == {"action": action}


@pytest.mark.requirement("ELIC-15", "ELIC-51")
async def test_a_callback_that_raises_user_rejected_declines(connect):
    async def elicitation(_params):
        raise UserRejected

    client, server, _ = await connect(elicitation=elicitation)
    await server.send_request("elicitation/create", ASKED_ELICITATION, id="e")
    assert (await server.receive())["result"] == {"action": "decline"}
    await client.aclose()


@pytest.mark.requirement("ELIC-16", "ELIC-21", "ELIC-22")
@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({}, "ship: missing"),
        (True, "ship: missing"),
        ({"ship": "Ada", "nights": "3"}, "nights: not an integer"),
        ({"ship": "Ada", "day": "soon"}, "day: not of the format date"),
        (t.ElicitResult(action="accept", content={"ship": ["Ada"]}), "ship: not a string"),
        ({"ship": "Ada", "other": {"a": 1}}, "other: neither"),
        (None, "must return an ElicitResult"),
        ("Ada", "must return an ElicitResult"),
        (object(), "must return an ElicitResult"),
    ],
)
async def test_invalid_content_of_a_form_is_never_sent(answer, caplog, value, why):
    assert (await answer(ASKED_ELICITATION, value))["code"] == -32603
    assert why in caplog.text


@pytest.mark.requirement("ELIC-37", "ELIC-52")
async def test_the_callback_gets_the_whole_request_and_may_change_the_answer(connect):
    received = []

    async def elicitation(params):
        received.append(params)
        await trio.lowlevel.checkpoint()
        return {"ship": "Ada"}

    client, server, _ = await connect(elicitation=elicitation)
    await server.send_request("elicitation/create", ASKED_ELICITATION, id="e")
    assert (await server.receive())["result"]["action"] == "accept"
    assert received == [t.ElicitParams(message="Which ship?", requested_schema=FORM)]
    await client.aclose()


# Modes.


@pytest.mark.requirement("ELIC-08", "ELIC-36", "TRAP-90")
@pytest.mark.parametrize(
    ("modes", "params", "code"),
    [
        (("form",), ASKED_ELICITATION, None),
        (("form",), {**ASKED_ELICITATION, "mode": "form"}, None),
        (("form",), VISIT, -32602),
        (("url",), ASKED_ELICITATION, -32602),
        (("url",), {**ASKED_ELICITATION, "mode": "form"}, -32602),
        (("url",), VISIT, None),
        (BOTH, {**ASKED_ELICITATION, "mode": "voice"}, -32602),
        (BOTH, {"message": "Which ship?"}, -32602),
        (BOTH, {"message": "Pay", "mode": "url"}, -32602),
    ],
)
async def test_an_unannounced_or_unknown_mode_is_rejected(answer, modes, params, code):
    result = await answer(params, False, elicitation_modes=modes)
    assert result.get("code") == code


async def test_a_client_without_elicitation_gets_no_request(connect):
    client, server, _ = await connect()
    await server.send_request("elicitation/create", ASKED_ELICITATION, id="e")
    assert (await server.receive())["error"]["code"] == -32601
    await client.aclose()


# URLs.


@pytest.mark.requirement("ELIC-17", "ELIC-30")
@pytest.mark.parametrize(
    ("value", "result"),
    [
        (True, {"action": "accept"}),
        (t.ElicitResult(action="accept"), {"action": "accept"}),
        (t.ElicitResult(action="accept", content={}), {"action": "accept"}),
        (False, {"action": "decline"}),
        (t.ElicitResult(action="cancel"), {"action": "cancel"}),
    ],
)
async def test_a_url_elicitation_is_accepted_or_declined_without_content(answer, value, result):
    assert await answer(VISIT, value, elicitation_modes=BOTH) == result


@pytest.mark.requirement("ELIC-17")
async def test_content_for_a_url_elicitation_is_never_sent(answer, caplog):
    assert (await answer(VISIT, {"card": "4"}, elicitation_modes=BOTH))["code"] == -32603
    assert "the answer to a URL elicitation must have no content" in caplog.text


@pytest.mark.requirement("ELIC-37", "ELIC-38", "ELIC-39", "ELIC-40", "ELIC-41", "TRAP-93")
async def test_a_url_is_passed_to_the_callback_unchanged_and_never_opened(connect, monkeypatch):
    received = []

    def barred(*_args, **_options):
        raise AssertionError("the URL was looked up")

    monkeypatch.setattr(socket, "getaddrinfo", barred)
    monkeypatch.setattr(socket.socket, "connect", barred)
    monkeypatch.setattr("webbrowser.open", barred)
    monkeypatch.setattr("subprocess.Popen", barred)

    def elicitation(params):
        received.append(params)
        return True

    client, server, _ = await connect(elicitation=elicitation, elicitation_modes=["url"])
    url = "https://xn--harbur-9ta.example/pay?to=http://elsewhere.example"
    icons = {"icons": [{"src": "https://elsewhere.example/icon.png"}], "_meta": {"a": URL}}
    await server.send_request("elicitation/create", {**VISIT, "url": url, **icons}, id="e")
    assert (await server.receive())["result"] == {"action": "accept"}
    await trio.testing.wait_all_tasks_blocked()
    assert [params.url for params in received] == [url]
    await client.aclose()


@pytest.mark.requirement("ELIC-33", "ELIC-35")
async def test_the_completion_callback_gets_each_known_elicitation_once(connect):
    received = []
    client, server, _ = await connect(
        elicitation=lambda _params: True,
        elicitation_modes=BOTH,
        elicitation_complete=received.append,
    )

    async def complete(elicitation_id):
        await server.send_notification(
            "notifications/elicitation/complete", {"elicitationId": elicitation_id}
        )
        await trio.testing.wait_all_tasks_blocked()

    await complete("p7")
    assert received == []
    await server.send_request("elicitation/create", VISIT, id="e")
    assert (await server.receive())["result"] == {"action": "accept"}
    for elicitation_id in ("p8", "p7", "p7"):
        await complete(elicitation_id)
    assert received == ["p7"]
    await client.aclose()


@pytest.mark.requirement("ELIC-33")
async def test_completion_without_a_callback_is_ignored(connect, caplog):
    client, server, _ = await connect(
        elicitation=lambda _params: True,
        elicitation_modes=BOTH,
        limits=Limits(requests=RequestLimits(elicitations_remembered_max=1)),
    )
    for place in range(2):
        asked = {**VISIT, "elicitationId": f"p{place}"}
        await server.send_request("elicitation/create", asked, id=place)
        await server.receive()
    for place in range(2):
        await server.send_notification(
            "notifications/elicitation/complete", {"elicitationId": f"p{place}"}
        )
    await trio.testing.wait_all_tasks_blocked()
    assert caplog.records == []
    await client.aclose()


# Forms and URLs in one call.


@pytest.mark.requirement("ELIC-50")
async def test_too_many_elicitations_at_once_are_rejected(connect):
    release = trio.Event()

    async def elicitation(_params):
        await release.wait()
        return False

    limits = Limits(requests=RequestLimits(in_flight_max=1, queued_max=1))
    client, server, _ = await connect(elicitation=elicitation, limits=limits)
    for place in range(3):
        await server.send_request("elicitation/create", ASKED_ELICITATION, id=place)
    rejected = await server.receive()
    assert (rejected["id"], rejected["error"]["code"]) == (2, -32000)
    assert "limits.requests.queued_max" in rejected["error"]["message"]
    release.set()
    answers = await server.receive_many(2)
    assert [answer["result"]["action"] for answer in answers] == ["decline"] * 2
    await client.aclose()


# Elicitation with each protocol version that has it.


*_, C_ELICITATION_BY_PROTOCOL_VERSION, D_ELICITATION_BY_PROTOCOL_VERSION, E = PROTOCOL_VERSIONS
FORMS, MODES = (
    (C_ELICITATION_BY_PROTOCOL_VERSION, D_ELICITATION_BY_PROTOCOL_VERSION, E),
    (D_ELICITATION_BY_PROTOCOL_VERSION, E),
)
INVALID_PARAMS, INTERNAL_ERROR = -32602, -32603

FORM_ELICITATION = {
    "type": "object",
    "properties": {"ship": {"type": "string"}, "nights": {"type": "integer", "default": 1}},
    "required": ["ship"],
}
SHIP = {"message": "Which ship?", "requestedSchema": FORM_ELICITATION}
URL_ELICITATION = "https://xn--harbur-9ta.example/pay?to=http://elsewhere.example"


def visit(protocol_version, **change):
    """The params of a question to visit a URL."""
    ids = {"elicitationId": "p7"} if protocol_version == D_ELICITATION_BY_PROTOCOL_VERSION else {}
    return {
        "mode": "url",
        "message": "Pay",
        "url": URL_ELICITATION,
        **ids,
        **change,
    }


@pytest.fixture
def ask_elicitation_by_protocol_version(nursery):
    """Ask a client one thing, as the servers of a protocol version do."""
    return functools.partial(asked, nursery)


# Forms.


@pytest.mark.requirement("ELIC-01", "ELIC-02", "ELIC-03", "TRAP-89")
@pytest.mark.parametrize("protocol_version", FORMS)
@pytest.mark.parametrize("modes", [("form",), ("url",), BOTH])
async def test_a_client_announces_its_modes(
    ask_elicitation_by_protocol_version, protocol_version, modes
):
    answer = await ask_elicitation_by_protocol_version(
        protocol_version,
        "elicitation/create",
        SHIP,
        elicitation=lambda _params: False,
        elicitation_modes=modes,
    )
    assert answer.announced == {"elicitation": {mode: {} for mode in modes}}


@pytest.mark.requirement("ELIC-08", "ELIC-14", "ELIC-15", "ELIC-16", "ELIC-18", "ELIC-19")
@pytest.mark.parametrize("protocol_version", FORMS)
@pytest.mark.parametrize("mode", [{}, {"mode": "form"}])
@pytest.mark.parametrize(
    ("value", "result"),
    [
        (
            {"ship": "Ada", "nights": 3},
            {"action": "accept", "content": {"ship": "Ada", "nights": 3}},
        ),
        ({"ship": "Ada"}, {"action": "accept", "content": {"ship": "Ada", "nights": 1}}),
        (False, {"action": "decline"}),
        (t.ElicitResult(action="cancel"), {"action": "cancel"}),
    ],
)
async def test_a_form_is_filled_in_or_not(
    ask_elicitation_by_protocol_version, protocol_version, mode, value, result
):
    answer = await ask_elicitation_by_protocol_version(
        protocol_version, "elicitation/create", {**SHIP, **mode}, elicitation=lambda _params: value
    )
    assert answer.result == result


@pytest.mark.requirement("ELIC-35", "ELIC-37", "ELIC-51", "ELIC-52")
@pytest.mark.parametrize("protocol_version", FORMS)
async def test_a_user_sees_the_request_and_may_decline(
    ask_elicitation_by_protocol_version, protocol_version
):
    received = []

    async def elicitation(params):
        received.append((params.message, params.requested_schema))
        await trio.lowlevel.checkpoint()
        raise UserRejected

    answer = await ask_elicitation_by_protocol_version(
        protocol_version, "elicitation/create", SHIP, elicitation=elicitation
    )
    assert answer.result == {"action": "decline"}
    assert received == [("Which ship?", FORM_ELICITATION)]


@pytest.mark.requirement("ELIC-16", "ELIC-18", "ELIC-19", "ELIC-21", "ELIC-22")
@pytest.mark.parametrize("protocol_version", FORMS)
@pytest.mark.parametrize(
    "value",
    [
        {},
        True,
        {"ship": "Ada", "nights": "3"},
        {"ship": ["Ada"]},
        {"ship": {"name": "Ada"}},
        {"ship": "Ada", "other": {"a": 1}},
        "Ada",
    ],
)
async def test_invalid_content_of_a_form_is_never_sent_elicitation_by_protocol_version(
    ask_elicitation_by_protocol_version, protocol_version, value
):
    answer = await ask_elicitation_by_protocol_version(
        protocol_version, "elicitation/create", SHIP, elicitation=lambda _params: value
    )
    check_rejected(answer, protocol_version, INTERNAL_ERROR, (TypeError, ValueError))


@pytest.mark.requirement("ELIC-03", "ELIC-08", "ELIC-36", "TRAP-89", "TRAP-90")
@pytest.mark.parametrize("protocol_version", MODES)
@pytest.mark.parametrize("mode", BOTH)
async def test_a_mode_that_was_not_announced_is_rejected(
    ask_elicitation_by_protocol_version, protocol_version, mode
):
    other = SHIP if mode == "url" else visit(protocol_version)
    received = []
    answer = await ask_elicitation_by_protocol_version(
        protocol_version,
        "elicitation/create",
        other,
        elicitation=received.append,
        elicitation_modes=[mode],
    )
    check_rejected(answer, protocol_version, INVALID_PARAMS)
    assert received == []


@pytest.mark.requirement("ELIC-50")
@pytest.mark.parametrize(
    "protocol_version", [C_ELICITATION_BY_PROTOCOL_VERSION, D_ELICITATION_BY_PROTOCOL_VERSION]
)
async def test_too_many_elicitations_at_once_are_rejected_elicitation_by_protocol_version(
    nursery, protocol_version
):
    async def elicitation(_params):
        await trio.sleep_forever()

    limits = Limits(requests=RequestLimits(in_flight_max=1, queued_max=1))
    client, server = await legacy_client(
        nursery, protocol_version=protocol_version, elicitation=elicitation, limits=limits
    )
    for place in "abc":
        await server.peer.send_request("elicitation/create", SHIP, id=place)
    await trio.testing.wait_all_tasks_blocked()
    (rejected,) = [it for it in server.requests if "error" in it]
    assert rejected["id"] == "c"
    assert "limits.requests.queued_max" in rejected["error"]["message"]
    await client.aclose()


# Visits.


def barred(*_args, **_options):
    raise AssertionError("the URL was looked up")


@pytest.mark.requirement(
    "ELIC-17", "ELIC-30", "ELIC-37", "ELIC-38", "ELIC-39", "ELIC-40", "ELIC-41", "TRAP-93"
)
@pytest.mark.parametrize("protocol_version", MODES)
@pytest.mark.parametrize(
    ("value", "result"),
    [
        (True, {"action": "accept"}),
        (t.ElicitResult(action="accept", content={}), {"action": "accept"}),
        (False, {"action": "decline"}),
        (t.ElicitResult(action="cancel"), {"action": "cancel"}),
    ],
)
async def test_a_url_is_passed_to_the_user_unchanged_and_never_opened(
    ask_elicitation_by_protocol_version, monkeypatch, protocol_version, value, result
):
    monkeypatch.setattr(socket, "getaddrinfo", barred)
    monkeypatch.setattr(socket.socket, "connect", barred)
    monkeypatch.setattr("webbrowser.open", barred)
    monkeypatch.setattr("subprocess.Popen", barred)
    received = []

    def elicitation(params):
        received.append(params)
        return value

    answer = await ask_elicitation_by_protocol_version(
        protocol_version,
        "elicitation/create",
        visit(protocol_version, icons=[{"src": "https://elsewhere.example/i.png"}]),
        elicitation=elicitation,
        elicitation_modes=BOTH,
    )
    assert answer.result == result
    assert [(params.message, params.url) for params in received] == [("Pay", URL_ELICITATION)]


@pytest.mark.requirement("ELIC-17")
@pytest.mark.parametrize("protocol_version", MODES)
async def test_content_for_a_url_elicitation_is_never_sent_elicitation_by_protocol_version(
    ask_elicitation_by_protocol_version, protocol_version
):
    answer = await ask_elicitation_by_protocol_version(
        protocol_version,
        "elicitation/create",
        visit(protocol_version),
        elicitation=lambda _params: {"card": "4"},
        elicitation_modes=BOTH,
    )
    check_rejected(answer, protocol_version, INTERNAL_ERROR, (TypeError, ValueError))


# Rates


@pytest.mark.requirement("ELIC-50", "SAMP-28")
@pytest.mark.parametrize("protocol_version", OLD)
async def test_requests_of_a_server_beyond_the_rate_are_rejected(
    nursery, protocol_version, autojump_clock
):
    asked_of_user = []

    def sampling(params):
        asked_of_user.append(params)
        return "ebb"

    rates = {"sampling": "6/minute", "roots": "1/hour"}
    client, server = await legacy_client(
        nursery,
        protocol_version=protocol_version,
        sampling=sampling,
        roots=["file:///sea"],
        callback_rates=rates,
    )
    for number in range(8):
        await server.peer.send_request("sampling/createMessage", ASKED, id=f"s{number}")
    await server.peer.send_request("roots/list", None, id="r0")
    await server.peer.send_request("roots/list", None, id="r1")
    await trio.testing.wait_all_tasks_blocked()
    rejected = {it["id"]: it["error"] for it in server.requests if "error" in it}
    assert rejected.keys() == {"s6", "s7", "r1"}
    assert len(asked_of_user) == 6
    assert rejected["s6"] == {
        "code": 429,
        "message": "sampling/createMessage: too many requests: try again in 10.000 s",
        "data": {"retryAfter": 10.0},
    }
    await trio.sleep(10)
    await server.peer.send_request("sampling/createMessage", ASKED, id="s8")
    await trio.testing.wait_all_tasks_blocked()
    assert len(asked_of_user) == 7
    await client.aclose()


@pytest.mark.requirement("ELIC-50")
async def test_input_requests_beyond_the_rate_end_the_call(nursery):
    asked_of_user = []

    def elicitation(params):
        asked_of_user.append(params)
        return False

    question = {"method": "elicitation/create", "params": ASKED_ELICITATION}
    needed = {"resultType": "input_required", "inputRequests": {"a": question, "b": question}}
    client, _ = await stateless_client(
        nursery,
        answers={"tools/call": lambda _params: needed},
        elicitation=elicitation,
        callback_rates={"elicitation": Rate(per_minute=1, burst=1)},
    )
    with pytest.raises(RemoteProtocolError, match="too many requests: try again in"):
        await client.call_tool("tide")
    assert len(asked_of_user) == 1
    await client.aclose()


@pytest.mark.parametrize(
    ("rates", "text"),
    [
        (
            {"log": "1/minute"},
            "callback_rates= has no callback 'log': choose from sampling, elicit",
        ),
        ({"roots": "often"}, "'often' is not a rate"),
    ],
)
def test_a_rate_of_no_callback_is_rejected(rates, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        Client("http://127.0.0.1:1", callback_rates=rates)
