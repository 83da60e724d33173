"""Multi round-trip requests, answered by the callbacks of the client."""

import functools
import itertools

import pytest
import trio
import trio.testing

from mcp_trio import Client, ConnectionLost, Limits, RequestError, RequestTimeout, UserRejected
from mcp_trio import types as t
from mcp_trio._protocol.versions import PROTOCOL_VERSIONS
from mcp_trio.errors import LocalProtocolError, RemoteProtocolError
from mcp_trio.hosts import ModelTraits, choose_model
from mcp_trio.limits import RequestLimits
from tests.client.conftest import text_of_result
from tests.client.server_requests import asked, check_rejected
from tests.client.stateless import LEGACY, STATELESS, error, legacy_client, played, stateless_client

TEXT = {"type": "text", "text": "ebb"}
DONE = {"content": [TEXT]}
ROOTS = {"method": "roots/list"}
ASKED = {"messages": [{"role": "user", "content": TEXT}], "maxTokens": 9}
SAMPLE = {"method": "sampling/createMessage", "params": ASKED}
SAMPLED = t.CreateMessageResult(role="assistant", content=t.TextContent(text="hm"), model="m")
FORM = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
ELICIT = {
    "method": "elicitation/create",
    "params": {"mode": "form", "message": "Where?", "requestedSchema": FORM},
}
CALLS = [
    (lambda client: client.call_tool("tide", {"port": "Bergen"}), "tools/call", DONE),
    (lambda client: client.get_prompt("plan", {"city": "Oslo"}), "prompts/get", {"messages": []}),
    (lambda client: client.read_resource("a:b"), "resources/read", {"contents": []}),
]


def needs(state=None, **questions):
    """An answer that asks `questions`, with a state."""
    asked = {"inputRequests": questions} if questions else {}
    return {"resultType": "input_required", **asked, **({"requestState": state} if state else {})}


def in_turn(*answers):
    """Answers that a method gives, one after the other."""
    left = iter(answers)
    return lambda _params: next(left)


@pytest.mark.requirement("MRTR-10", "MRTR-12", "MRTR-13", "MRTR-14", "TRAP-98", "TRAP-99")
@pytest.mark.parametrize(("call", "method", "done"), CALLS)
async def test_a_call_that_requires_input_is_sent_again_with_the_responses(
    nursery, call, method, done
):
    client, server = await stateless_client(
        nursery,
        answers={method: in_turn(needs("s1", here=ROOTS, there=SAMPLE, form=ELICIT), done)},
        roots=["file:///pier"],
        sampling=lambda _params: SAMPLED,
        elicitation=lambda _params: {"city": "Oslo"},
    )
    assert (await call(client)).result_type == "complete"
    first, second = server.asked(method)
    assert second == {
        **first,
        "requestState": "s1",
        "inputResponses": {
            "here": {"roots": [{"uri": "file:///pier"}]},
            "there": {"role": "assistant", "content": TEXT | {"text": "hm"}, "model": "m"},
            "form": {"action": "accept", "content": {"city": "Oslo"}},
        },
    }
    await client.aclose()


async def test_responses_are_encoded_for_the_servers_protocol_version(nursery):
    filled = t.ElicitResult(
        action="accept", content={"city": "Oslo"}, result_type="complete", meta={"a/b": 1}
    )
    client, server = await stateless_client(
        nursery,
        answers={"tools/call": in_turn(needs(form=ELICIT), DONE)},
        elicitation=lambda _params: filled,
    )
    await client.call_tool("tide")
    answers = server.asked("tools/call")[-1]["inputResponses"]
    assert answers == {"form": {"action": "accept", "content": {"city": "Oslo"}}}
    await client.aclose()


@pytest.mark.requirement("MRTR-17", "TRAP-98", "VER-01", "META-11", "META-12")
async def test_each_retry_is_a_new_request_with_its_own_metadata(nursery):
    answers = {"tools/call": in_turn(needs(a=ROOTS), needs(b=ROOTS), DONE)}
    client, server = await stateless_client(nursery, answers=answers, roots=[])
    await client.call_tool("tide", progress=lambda _params: None)
    requests = [it for it in server.requests if it["method"] == "tools/call"]
    assert len({it["id"] for it in requests}) == 3
    for request in requests:
        meta = request["params"]["_meta"]
        assert meta["io.modelcontextprotocol/protocolVersion"] == STATELESS
        assert meta["io.modelcontextprotocol/clientCapabilities"] == {"roots": {}}
        assert meta["io.modelcontextprotocol/clientInfo"]["name"] == "mcp_trio"
        assert meta["progressToken"] == request["id"]
    await client.aclose()


STATES = ["", " ", "eyJhIjoxfQ==", '{"a": 1}', "\u00e9\0\n\u2028", "%20+/", "x" * 9000]


@pytest.mark.requirement("MRTR-09", "MRTR-14", "MRTR-15", "MRTR-16", "TRAP-97")
async def test_only_the_latest_state_is_sent_back_unchanged(nursery):
    rounds = [{**needs(a=ROOTS), "requestState": state} for state in STATES]
    answers = {"tools/call": in_turn(*rounds, needs(b=ROOTS), DONE)}
    client, server = await stateless_client(nursery, answers=answers, roots=[])
    await client.call_tool("tide")
    asked = server.asked("tools/call")
    assert [it.get("requestState") for it in asked] == [None, *STATES, None]
    assert "requestState" not in asked[-1]
    assert [list(it.get("inputResponses", {})) for it in asked] == [
        [],
        *[["a"]] * len(STATES),
        ["b"],
    ]
    await client.aclose()


@pytest.mark.requirement("MRTR-18", "TRAP-97")
async def test_concurrent_calls_keep_their_rounds_apart(nursery):
    def call(params):
        if "requestState" not in params:
            return needs(f"state of {params['name']}", **{params["name"]: ROOTS})
        return {"content": [{"type": "text", "text": params["requestState"]}]}

    client, server = await stateless_client(nursery, answers={"tools/call": call}, roots=[])
    got = {}

    async def ask(name):
        got[name] = text_of_result(await client.call_tool(name))

    async with trio.open_nursery() as calls:
        for number in range(5):
            calls.start_soon(ask, f"t{number}")
    assert got == {f"t{number}": f"state of t{number}" for number in range(5)}
    for call in server.asked("tools/call")[5:]:
        assert list(call["inputResponses"]) == [call["name"]]
    await client.aclose()


@pytest.mark.requirement("MRTR-11", "TRAP-100")
@pytest.mark.parametrize("questions", [{}, {"inputRequests": {}}])
async def test_a_result_with_a_state_alone_is_retried_with_growing_pauses(
    nursery, autojump_clock, questions
):
    times = []

    def call(_params):
        times.append(trio.current_time())
        return {**needs(str(len(times))), **questions} if len(times) < 7 else DONE

    limits = Limits(requests=RequestLimits(round_pause_seconds=1, round_pause_seconds_max=5))
    client, server = await stateless_client(nursery, answers={"tools/call": call}, limits=limits)
    await client.call_tool("tide")
    assert [after - before for before, after in itertools.pairwise(times)] == [
        *(1, 2, 4),
        *(5, 5, 5),
    ]
    assert [it.get("requestState") for it in server.asked("tools/call")] == [None, *"123456"]
    assert "inputResponses" not in server.asked("tools/call")[-1]
    await client.aclose()


@pytest.mark.requirement("MRTR-28", "TRAP-100")
@pytest.mark.parametrize("question", [{"a": ROOTS}, {}])
async def test_the_number_of_rounds_is_limited(nursery, autojump_clock, question):
    asked = []
    client, server = await stateless_client(
        nursery,
        answers={"tools/call": lambda _params: needs("s", **question)},
        roots=lambda: asked.append(1) or [],
        limits=Limits(requests=RequestLimits(rounds_max=3)),
    )
    with pytest.raises(
        RemoteProtocolError, match=r"in more than 3 rounds \(limits\.requests\.rounds_max\)"
    ):
        await client.call_tool("tide")
    assert len(server.asked("tools/call")) == 4
    assert len(asked) == 3 * len(question)
    await client.aclose()


@pytest.mark.parametrize("questions", [{}, {"inputRequests": {}}])
async def test_a_result_without_requests_and_state_is_a_protocol_error(nursery, questions):
    client, _ = await stateless_client(nursery, answers={"tools/call": {**needs(), **questions}})
    with pytest.raises(
        RemoteProtocolError, match="the server requires input, but its result has neither"
    ):
        await client.call_tool("tide")
    await client.aclose()


@pytest.mark.requirement("BASE-39", "TRAP-95")
async def test_results_of_other_methods_cannot_require_input(nursery):
    answers = {"completion/complete": needs(a=ROOTS), "tools/list": needs(a=ROOTS)}
    client, server = await stateless_client(nursery, answers=answers, roots=[])
    for call in (lambda: client.complete("plan", "city", ""), client.list_tools):
        with pytest.raises(RemoteProtocolError, match="unknown type: 'input_required'"):
            await call()
    assert len(server.requests) == 3
    await client.aclose()


@pytest.mark.requirement("BASE-38", "TRAP-13")
async def test_the_result_type_of_a_legacy_server_is_ignored(nursery):
    answers = {
        "initialize": {
            "protocolVersion": LEGACY[0],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "n", "version": "0"},
        },
        "tools/call": {**DONE, "resultType": "input_required"},
    }
    channel, _ = played(nursery, **answers)
    async with Client(channel, protocol_versions=LEGACY) as client:
        assert text_of_result(await client.call_tool("tide")) == "ebb"


@pytest.mark.requirement("BASE-37", "BASE-38", "BASE-39", "BASE-40", "TRAP-13")
@pytest.mark.parametrize(
    ("kind", "is_known"),
    [("complete", True), (..., True), ("task", False), ("", False), (7, False), (None, False)],
)
async def test_a_missing_result_type_means_complete_and_an_unknown_one_is_an_error(
    nursery, kind, is_known
):
    client, _ = await stateless_client(
        nursery, answers={"tools/call": {**DONE, "resultType": kind}}
    )
    if is_known:
        assert text_of_result(await client.call_tool("tide")) == "ebb"
    else:
        with pytest.raises(RemoteProtocolError, match=r"the response to tools/call (has|is)"):
            await client.call_tool("tide")
    await client.aclose()


@pytest.mark.requirement("TRAP-87", "TRAP-101")
@pytest.mark.parametrize(
    ("question", "why"),
    [
        (SAMPLE, "the client capability 'sampling' was not announced"),
        (ELICIT, "the client capability 'elicitation' was not announced"),
        ({"method": "tools/list"}, "which is not allowed as an input request"),
        ({"method": "ping"}, "which is not allowed as an input request"),
        ({"method": "no/such"}, "which is not allowed as an input request"),
        ({**SAMPLE, "params": {}}, "not announced"),
    ],
)
async def test_a_forbidden_input_request_ends_the_call(nursery, question, why):
    answers = {"tools/call": needs("s", fine=ROOTS, bad=question)}
    asked = []
    client, server = await stateless_client(
        nursery, answers=answers, roots=lambda: asked.append(1) or []
    )
    with pytest.raises(RemoteProtocolError, match=why) as caught:
        await client.call_tool("tide")
    assert question["method"] in str(caught.value)
    assert len(server.asked("tools/call")) == 1
    assert asked == []  # nothing is asked of the user before all of it is known to be allowed
    await client.aclose()


@pytest.mark.requirement("TRAP-87", "TRAP-101", "ERR-12")
@pytest.mark.parametrize(
    ("question", "why"),
    [
        ({**SAMPLE, "params": {}}, "its params are invalid"),
        ({**SAMPLE, "params": {**ASKED, "tools": []}}, "cannot be answered"),
        (
            {**ELICIT, "params": {"mode": "url", "message": "m", "url": "https://a.example"}},
            "cannot be answered",
        ),
    ],
)
async def test_an_input_request_rejected_by_the_client_is_a_protocol_error(nursery, question, why):
    client, server = await stateless_client(
        nursery,
        answers={"tools/call": needs(bad=question)},
        sampling=lambda _params: SAMPLED,
        elicitation=lambda _params: True,
    )
    with pytest.raises(RemoteProtocolError, match=why):
        await client.call_tool("tide")
    assert len(server.asked("tools/call")) == 1
    await client.aclose()


@pytest.mark.requirement("TRAP-88", "TRAP-103", "ERR-18", "ERR-12")
@pytest.mark.parametrize("fault", [UserRejected("no"), ZeroDivisionError("by zero")])
async def test_an_exception_of_a_callback_ends_the_call_and_is_raised_unchanged(nursery, fault):
    def sampling(_params):
        raise fault

    client, server = await stateless_client(
        nursery, answers={"tools/call": needs(a=SAMPLE)}, sampling=sampling
    )
    with pytest.raises(type(fault)) as caught:
        await client.call_tool("tide")
    assert caught.value is fault
    assert caught.value.__notes__ == ["this was the input request 'a'"]
    assert len(server.asked("tools/call")) == 1
    await client.aclose()


async def test_input_requests_of_a_round_are_answered_concurrently(nursery, autojump_clock):
    async def sampling(_params):
        await trio.sleep(10)
        return SAMPLED

    questions = {str(number): SAMPLE for number in range(5)}
    client, _ = await stateless_client(
        nursery, answers={"tools/call": in_turn(needs(**questions), DONE)}, sampling=sampling
    )
    begun = trio.current_time()
    await client.call_tool("tide")
    assert trio.current_time() - begun == 10
    await client.aclose()


@pytest.mark.parametrize(("in_flight_max", "seconds"), [(2, 30), (0, 50)])
async def test_a_round_with_many_input_requests_has_the_limit_of_handlers(
    nursery, autojump_clock, in_flight_max, seconds
):
    async def sampling(_params):
        await trio.sleep(10)
        return SAMPLED

    questions = {str(number): SAMPLE for number in range(5)}
    client, _ = await stateless_client(
        nursery,
        answers={"tools/call": in_turn(needs(**questions), DONE)},
        sampling=sampling,
        limits=Limits(requests=RequestLimits(in_flight_max=in_flight_max)),
    )
    begun = trio.current_time()
    await client.call_tool("tide")
    assert trio.current_time() - begun == seconds
    await client.aclose()


async def test_cancelling_a_call_cancels_its_callbacks(nursery):
    left = []

    async def sampling(_params):
        try:
            await trio.sleep_forever()
        finally:
            left.append(True)

    client, server = await stateless_client(
        nursery, answers={"tools/call": needs(a=SAMPLE)}, sampling=sampling
    )
    async with trio.open_nursery() as calls:
        calls.start_soon(client.call_tool, "tide")
        await trio.testing.wait_all_tasks_blocked()
        calls.cancel_scope.cancel()
    assert left == [True]
    await trio.testing.wait_all_tasks_blocked()
    assert [it["method"] for it in server.requests][1:] == ["tools/call"]
    await client.aclose()


# Budgets and progress.


@pytest.mark.requirement("TIME-05")
@pytest.mark.parametrize(
    ("options", "setting"),
    [({"total_seconds": 10}, "total_seconds"), ({}, "limits.requests.total_seconds")],
)
async def test_the_total_timeout_covers_all_rounds_without_the_answers(
    nursery, autojump_clock, options, setting
):
    """The answers take their time, but none of the server's."""
    channel, server = played(nursery)

    async def sampling(_params):
        await trio.sleep(100)
        return SAMPLED

    async def slowly(message):
        if message["method"] == "tools/call":
            await trio.sleep(4)

    server.answers["tools/call"] = needs("s", a=SAMPLE)
    server.before = slowly
    limits = Limits(requests=RequestLimits(total_seconds=10))
    client = Client(channel, protocol_versions=[STATELESS], sampling=sampling, limits=limits)
    await client.__aenter__()
    begun = trio.current_time()
    with pytest.raises(RequestTimeout, match=rf"within 10 s in all; raise {setting}$") as caught:
        await client.call_tool("tide", **options)
    assert (caught.value.budget, caught.value.seconds) == ("total", 10)
    assert trio.current_time() - begun == 4 + 100 + 4 + 100 + 2
    await client.aclose()


@pytest.mark.requirement("TIME-05")
async def test_the_total_timeout_covers_the_pauses_between_rounds(nursery, autojump_clock):
    client, _ = await stateless_client(nursery, answers={"tools/call": needs("s")})
    begun = trio.current_time()
    with pytest.raises(RequestTimeout, match=r"within 5 s in all; raise total_seconds$"):
        await client.call_tool("tide", total_seconds=5)
    assert trio.current_time() - begun == 5
    await client.aclose()


async def test_the_idle_timeout_applies_to_each_round(nursery, autojump_clock):
    answers = {"tools/call": in_turn(needs(a=ROOTS), None)}
    client, _ = await stateless_client(nursery, answers=answers, roots=[])
    with pytest.raises(RequestTimeout) as caught:
        await client.call_tool("tide", idle_seconds=3)
    assert (caught.value.budget, caught.value.seconds) == ("idle", 3)
    await client.aclose()


async def test_one_callback_gets_the_progress_of_all_rounds(nursery):
    received = []
    channel, server = played(nursery)

    async def with_progress(message):
        if message["method"] == "tools/call":
            token = message["params"]["_meta"]["progressToken"]
            params = {"progressToken": token, "progress": 1, "message": "half"}
            await server.peer.send_notification("notifications/progress", params)

    server.answers["tools/call"] = in_turn(needs(a=ROOTS), DONE)
    server.before = with_progress
    async with Client(channel, protocol_versions=[STATELESS], roots=[]) as client:
        await client.call_tool("tide", progress=lambda params: received.append(params.message))
    assert received == ["half", "half"]


# Rounds with mapping params, and without callbacks.


@pytest.mark.requirement("MRTR-12", "MRTR-16")
async def test_a_request_with_mapping_params_has_rounds_too(nursery):
    answers = {"tools/call": in_turn(needs("s2", a=ROOTS), needs(b=ROOTS), DONE)}
    client, server = await stateless_client(nursery, answers=answers, roots=[])
    params = {"name": "tide", "requestState": "s1", "_meta": {"a/b": 1}}
    await client.request("tools/call", params)
    assert server.asked("tools/call") == [
        {"name": "tide", "requestState": "s1"},
        {"name": "tide", "requestState": "s2", "inputResponses": {"a": {"roots": []}}},
        {"name": "tide", "inputResponses": {"b": {"roots": []}}},
    ]
    assert server.metadata("tools/call")["a/b"] == 1
    assert params == {"name": "tide", "requestState": "s1", "_meta": {"a/b": 1}}
    await client.aclose()


async def test_with_rounds_false_the_input_required_result_is_returned(nursery):
    answers = {"tools/call": needs("s", a=SAMPLE)}
    client, server = await stateless_client(nursery, answers=answers)
    result = await client.request("tools/call", {"name": "tide"}, rounds=False)
    assert isinstance(result, t.InputRequiredResult)
    assert result.request_state == "s"
    assert result.input_requests["a"].method == "sampling/createMessage"
    assert len(server.asked("tools/call")) == 1
    await client.aclose()


async def test_an_error_in_a_later_round_is_raised(nursery):
    answers = {"tools/call": in_turn(needs(a=ROOTS), error(-32602, "the state is not valid"))}
    client, _ = await stateless_client(nursery, answers=answers, roots=[])
    with pytest.raises(RequestError, match="the state is not valid"):
        await client.call_tool("tide")
    await client.aclose()


async def test_a_server_lost_between_rounds_raises_connection_lost(nursery):
    client, server = await stateless_client(
        nursery, answers={"tools/call": needs(a=SAMPLE)}, sampling=lambda _params: close()
    )

    async def close():
        await server.peer.aclose()
        await trio.testing.wait_all_tasks_blocked()
        return SAMPLED

    with pytest.raises(ConnectionLost):
        await client.call_tool("tide")
    await client.aclose()


# Roots and sampling with each protocol version.


*_, D, E = PROTOCOL_VERSIONS
MODES = (D, E)
INVALID_PARAMS, INTERNAL_ERROR, NOT_FOUND = -32602, -32603, -32601

QUESTION_TEXT = {"type": "text", "text": "Ebb or flow?"}
MESSAGE = {"role": "user", "content": QUESTION_TEXT}
EXPECTED_REQUESTS = {
    "messages": [MESSAGE],
    "maxTokens": 9,
    "systemPrompt": "Be brief.",
    "temperature": 0.5,
    "stopSequences": ["."],
    "metadata": {"any": "thing"},
}
ANSWERED = {"role": "assistant", "content": {"type": "text", "text": "hm"}, "model": "m"}
SHIP = {"message": "Which ship?", "requestedSchema": {"type": "object", "properties": {}}}


@pytest.fixture
def ask(nursery):
    """Ask a client one thing, as the servers of a protocol version do."""
    return functools.partial(asked, nursery)


# Roots.


@pytest.mark.requirement("ROOT-01", "ROOT-02", "ROOT-05", "ROOT-07", "ROOT-09", "TRAP-94")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_a_server_gets_exactly_the_roots(ask, protocol_version):
    roots = ["file:///sea", t.Root(uri="file:///land", name="land")]
    answer = await ask(protocol_version, "roots/list", roots=roots)
    assert answer.announced == {"roots": {} if protocol_version == E else {"listChanged": True}}
    assert answer.result == {
        "roots": [{"uri": "file:///sea"}, {"uri": "file:///land", "name": "land"}]
    }


@pytest.mark.requirement("ROOT-05", "ROOT-08", "ROOT-09")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
@pytest.mark.parametrize(
    "root", ["https://example.org", "urn:sea", "file:///sea/../etc", "file:///sea/%2e%2e/etc", 7]
)
async def test_an_invalid_root_is_never_sent(ask, protocol_version, root):
    answer = await ask(protocol_version, "roots/list", roots=lambda: ["file:///sea", root])
    check_rejected(answer, protocol_version, INTERNAL_ERROR, (TypeError, ValueError))


@pytest.mark.requirement("ROOT-11", "ROOT-12", "SAMP-25", "SAMP-26", "SAMP-27", "TRAP-88")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
@pytest.mark.parametrize(
    ("method", "params", "option"),
    [
        ("roots/list", None, "roots"),
        ("sampling/createMessage", EXPECTED_REQUESTS, "sampling"),
    ],
)
async def test_a_user_may_reject_a_request(ask, protocol_version, method, params, option):
    def reject(*_params):
        raise UserRejected

    answer = await ask(protocol_version, method, params, **{option: reject})
    check_rejected(answer, protocol_version, -1, UserRejected)


@pytest.mark.requirement("ROOT-08", "LIFE-14")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("roots/list", None),
        ("sampling/createMessage", EXPECTED_REQUESTS),
        ("elicitation/create", SHIP),
    ],
)
async def test_a_request_without_its_capability_is_rejected(ask, protocol_version, method, params):
    answer = await ask(protocol_version, method, params)
    assert answer.announced == {}
    check_rejected(answer, protocol_version, NOT_FOUND)


@pytest.mark.requirement("ROOT-06", "ROOT-07", "TRAP-94")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_new_roots_are_notified_if_the_version_has_the_notification(
    nursery, protocol_version
):
    options = {"roots": ["file:///sea"]}
    if protocol_version == E:
        client, server = await stateless_client(nursery, **options)
    else:
        client, server = await legacy_client(nursery, protocol_version=protocol_version, **options)
    if protocol_version == E:
        with pytest.raises(LocalProtocolError, match="has no notifications/roots"):
            await client.notify_roots_changed()
    else:
        await client.set_roots(["file:///land"])
    await trio.testing.wait_all_tasks_blocked()
    methods = [it["method"] for it in server.requests if it["method"].endswith("list_changed")]
    assert methods == [] if protocol_version == E else ["notifications/roots/list_changed"]
    await client.aclose()


# Sampling.


@pytest.mark.requirement("SAMP-01", "SAMP-02", "SAMP-08", "SAMP-09", "SAMP-10")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_a_server_can_request_sampling(ask, protocol_version):
    answer = await ask(
        protocol_version,
        "sampling/createMessage",
        EXPECTED_REQUESTS,
        sampling=lambda _params: SAMPLED,
    )
    assert answer.announced == {"sampling": {}}
    assert answer.result == ANSWERED


@pytest.mark.requirement("SAMP-11", "SAMP-12", "SAMP-13", "SAMP-14", "SAMP-27", "SAMP-28")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_the_sampling_callback_gets_the_whole_request(ask, protocol_version):
    received = []
    models = {"gull-large": ModelTraits(), "gull-small": ModelTraits(cheapness=1)}

    async def sampling(params):
        received.append(params)
        model = choose_model(models, params.model_preferences)
        content = t.TextContent(text="as a person has changed it")
        return t.CreateMessageResult(role="assistant", content=content, model=model)

    preferences = {"hints": [{"name": "tern"}, {"name": "large"}], "costPriority": 1}
    asked = {**EXPECTED_REQUESTS, "modelPreferences": preferences}
    answer = await ask(protocol_version, "sampling/createMessage", asked, sampling=sampling)
    assert answer.result["model"] == "gull-large"
    assert answer.result["content"]["text"] == "as a person has changed it"
    (params,) = received
    assert (params.max_tokens, params.system_prompt, params.temperature) == (9, "Be brief.", 0.5)
    assert (params.stop_sequences, params.metadata) == (["."], {"any": "thing"})
    assert params.messages[0].content == t.TextContent(text="Ebb or flow?")


@pytest.mark.requirement("SAMP-08", "SAMP-09", "SAMP-14", "SAMP-28")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
@pytest.mark.parametrize(
    "change",
    [
        {
            "messages": [
                MESSAGE,
                {"role": "system", "content": QUESTION_TEXT},
            ]
        },
        {"messages": [{"role": "user", "content": {"type": "video"}}]},
        {"messages": [{"role": "user"}]},
        {"messages": None},
        {"maxTokens": None},
        {"maxTokens": "9"},
        {"includeContext": "everything"},
        {"modelPreferences": {"costPriority": 1.1}},
    ],
)
async def test_a_malformed_sampling_request_never_reaches_the_model(ask, protocol_version, change):
    received = []
    answer = await ask(
        protocol_version,
        "sampling/createMessage",
        {**EXPECTED_REQUESTS, **change},
        sampling=received.append,
    )
    check_rejected(answer, protocol_version, INVALID_PARAMS)
    assert received == []


@pytest.mark.requirement("SAMP-29", "SAMP-10")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
@pytest.mark.parametrize("is_crash", [True, False])
async def test_an_error_of_the_model_is_not_sent_to_the_server(
    ask, caplog, protocol_version, is_crash
):
    def sampling(_params):
        if is_crash:
            raise ValueError("key sk-123 is not valid")
        return {"key": "sk-123"}

    answer = await ask(
        protocol_version,
        "sampling/createMessage",
        EXPECTED_REQUESTS,
        sampling=sampling,
    )
    check_rejected(answer, protocol_version, INTERNAL_ERROR, (ValueError, TypeError))
    assert "sk-123" in (str(answer.raised) if protocol_version == E else caplog.text)


TOOL = {"name": "tide", "inputSchema": {"type": "object"}}
USE = {"type": "tool_use", "id": "a", "name": "tide", "input": {}, "_meta": {"k": 1}}
RESULT = {
    "type": "tool_result",
    "toolUseId": "a",
    "content": [QUESTION_TEXT],
    "_meta": {"k": 2},
}


@pytest.mark.requirement("SAMP-03", "SAMP-05", "TRAP-87")
@pytest.mark.parametrize("protocol_version", MODES)
@pytest.mark.parametrize("params", [{"tools": [TOOL]}, {"tools": []}, {"toolChoice": {}}])
async def test_sampling_with_tools_needs_the_capability(ask, protocol_version, params):
    asked, received = {**EXPECTED_REQUESTS, **params}, []
    answer = await ask(protocol_version, "sampling/createMessage", asked, sampling=received.append)
    assert answer.announced == {"sampling": {}}
    check_rejected(answer, protocol_version, INVALID_PARAMS)
    assert received == []
    answer = await ask(
        protocol_version,
        "sampling/createMessage",
        asked,
        sampling=lambda _params: SAMPLED,
        sampling_tools=True,
    )
    assert answer.announced == {"sampling": {"tools": {}}}
    assert answer.result == ANSWERED


@pytest.mark.requirement("SAMP-09", "SAMP-23", "TRAP-85")
@pytest.mark.parametrize("protocol_version", MODES)
async def test_tool_uses_and_results_are_passed_unchanged(ask, protocol_version):
    received = []

    def sampling(params):
        received.append(params)
        return t.CreateMessageResult(
            role="assistant",
            content=[t.ToolUseContent(id="b", name="tide", input={}, meta={"k": 3})],
            model="m",
            stop_reason="toolUse",
        )

    messages = [
        MESSAGE,
        {"role": "assistant", "content": [USE]},
        {"role": "user", "content": [RESULT]},
    ]
    asked = {
        **EXPECTED_REQUESTS,
        "messages": messages,
        "tools": [TOOL],
        "toolChoice": {"mode": "auto"},
    }
    answer = await ask(
        protocol_version, "sampling/createMessage", asked, sampling=sampling, sampling_tools=True
    )
    content = answer.result["content"]
    assert (content if isinstance(content, list) else [content]) == [
        {**USE, "id": "b", "_meta": {"k": 3}}
    ]
    _, use, result = received[0].messages
    assert (use.content[0].meta, result.content[0].meta) == ({"k": 1}, {"k": 2})


@pytest.mark.requirement("SAMP-18", "SAMP-19", "SAMP-20", "TRAP-86")
@pytest.mark.parametrize("protocol_version", MODES)
@pytest.mark.parametrize(
    "messages",
    [
        [MESSAGE, {"role": "assistant", "content": [USE]}],
        [MESSAGE, {"role": "assistant", "content": [USE]}, MESSAGE],
        [
            MESSAGE,
            {"role": "assistant", "content": [USE]},
            {"role": "user", "content": [RESULT, QUESTION_TEXT]},
        ],
        [MESSAGE, {"role": "user", "content": [RESULT]}],
    ],
)
async def test_missing_or_mixed_tool_results_are_rejected(ask, protocol_version, messages):
    received = []
    asked = {**EXPECTED_REQUESTS, "messages": messages, "tools": [TOOL]}
    answer = await ask(
        protocol_version,
        "sampling/createMessage",
        asked,
        sampling=received.append,
        sampling_tools=True,
    )
    check_rejected(answer, protocol_version, INVALID_PARAMS)
    assert received == []


@pytest.mark.requirement("SAMP-21")
@pytest.mark.parametrize("protocol_version", MODES)
@pytest.mark.parametrize("mode", ["none", "required"])
async def test_a_forbidden_tool_use_of_the_model_is_not_sent(ask, caplog, protocol_version, mode):
    use = t.ToolUseContent(id="b", name="tide", input={})
    content = t.TextContent(text="hm") if mode == "required" else [use]
    result = t.CreateMessageResult(role="assistant", content=content, model="m")
    asked = {
        **EXPECTED_REQUESTS,
        "tools": [TOOL],
        "toolChoice": {"mode": mode},
    }
    answer = await ask(
        protocol_version,
        "sampling/createMessage",
        asked,
        sampling=lambda _params: result,
        sampling_tools=True,
    )
    check_rejected(answer, protocol_version, INTERNAL_ERROR, Exception)
