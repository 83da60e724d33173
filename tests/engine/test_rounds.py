"""A handler asks a stateless client by its answer, and continues with the retry."""

import msgspec
import pytest
import trio
import trio.testing

from mcp_trio import types as s
from mcp_trio._protocol.methods import custom_method
from mcp_trio._session.calls import Asked
from mcp_trio._session.handlers import INSIDE, Inside
from mcp_trio._session.input_required import ask_all
from mcp_trio.errors import LocalProtocolError, RemoteProtocolError, Unencodable
from mcp_trio.limits import MessageLimits, RequestLimits

ROOTS = Asked(method="roots/list")
SAMPLE = Asked(
    method="sampling/createMessage", params=s.CreateMessageParams(messages=[], max_tokens=3)
)
MESSAGE = {"role": "assistant", "content": {"type": "text", "text": "aye"}, "model": "m"}


@pytest.mark.requirement(
    "BASE-22", "STDIO-11", "MRTR-01", "MRTR-02", "MRTR-04", "MRTR-06", "TRAP-99"
)
async def test_a_question_is_the_answer_and_the_retry_gets_the_result(dock, rounds):
    _, peer = await dock({"sail": rounds.asking("Which boat?")})
    await peer.send(rounds.call("sail", 1))
    answer = await peer.receive()
    assert answer["id"] == 1
    assert answer["result"]["resultType"] == "input_required"
    form = {"type": "object", "properties": {}}
    params = {"message": "Which boat?", "requestedSchema": form}
    asked = answer["result"]["inputRequests"]
    assert asked == {"q1": {"method": "elicitation/create", "params": params}}
    await peer.send(
        rounds.call("sail", 2, answer["result"]["requestState"], q1=rounds.accepted(boat="reed"))
    )
    answer = await peer.receive()
    assert (answer["id"], answer["result"]["resultType"]) == (2, "complete")
    assert rounds.text_of(answer) == "[{'boat': 'reed'}]"


@pytest.mark.requirement("MRTR-05", "MRTR-09", "TRAP-102")
async def test_each_round_has_keys_of_its_own_and_nothing_runs_twice(dock, rounds):
    steps = []

    async def sail(handling):
        steps.append("begins")
        return await rounds.asking("Which boat?", "When?")(handling)

    _, peer = await dock({"sail": sail})
    await peer.send(rounds.call("sail", 1))
    asked, first = await rounds.wanted(peer, 1)
    assert asked == {"q1": "Which boat?"}
    await peer.send(rounds.call("sail", 2, first, q1=rounds.accepted(boat="reed")))
    asked, second = await rounds.wanted(peer, 2)
    assert asked == {"q2": "When?"}
    assert second != first
    await peer.send(rounds.call("sail", 3, second, q2=rounds.accepted(day="now")))
    assert rounds.text_of(await peer.receive()) == "[{'boat': 'reed'}, {'day': 'now'}]"
    assert steps == ["begins"]


async def test_questions_asked_together_are_in_one_round(dock, rounds):
    async def sail(handling):
        answers = await ask_all(handling, [rounds.form("Which boat?"), SAMPLE, ROOTS])
        return [answers[0].action, answers[1].model, answers[2].roots]

    _, peer = await dock({"sail": sail})
    await peer.send(rounds.call("sail", 1))
    result = (await peer.receive())["result"]
    methods = {key: asked["method"] for key, asked in result["inputRequests"].items()}
    assert methods == {
        "q1": "elicitation/create",
        "q2": "sampling/createMessage",
        "q3": "roots/list",
    }
    answers = {"q1": rounds.accepted(), "q2": MESSAGE, "q3": {"roots": []}}
    await peer.send(rounds.call("sail", 2, result["requestState"], **answers))
    assert rounds.text_of(await peer.receive()) == "['accept', 'm', []]"


async def test_tasks_that_ask_at_the_same_time_ask_in_one_round(dock, rounds):
    async def sail(handling):
        answers = []

        async def one(message):
            answers.append(await rounds.asking(message)(handling))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(one, "Which boat?")
            nursery.start_soon(one, "When?")
        return len(answers)

    _, peer = await dock({"sail": sail})
    await peer.send(rounds.call("sail", 1))
    asked, state = await rounds.wanted(peer, 1)
    assert sorted(asked.values()) == ["When?", "Which boat?"]
    await peer.send(rounds.call("sail", 2, state, q1=rounds.accepted(), q2=rounds.accepted()))
    assert rounds.text_of(await peer.receive()) == "2"


async def test_questions_asked_during_a_round_are_in_the_next(dock, rounds):
    is_late = trio.Event()

    async def sail(handling):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rounds.asking("Which boat?"), handling)
            await is_late.wait()
            return await rounds.asking("When?")(handling)

    _, peer = await dock({"sail": sail})
    await peer.send(rounds.call("sail", 1))
    asked, state = await rounds.wanted(peer, 1)
    is_late.set()
    assert await peer.receive_available() == []
    await peer.send(rounds.call("sail", 2, state, q1=rounds.accepted()))
    asked, state = await rounds.wanted(peer, 2)
    assert asked == {"q2": "When?"}
    await peer.send(rounds.call("sail", 3, state, q2=rounds.accepted(day="now")))
    assert rounds.text_of(await peer.receive()) == "[{'day': 'now'}]"


@pytest.mark.requirement("MRTR-26")
async def test_an_answer_that_is_missing_is_asked_for_again(dock, rounds):
    async def sail(handling):
        answers = await ask_all(handling, [rounds.form("Which boat?"), rounds.form("When?")])
        return [answer.content for answer in answers]

    _, peer = await dock({"sail": sail})
    await peer.send(rounds.call("sail", 1))
    _, state = await rounds.wanted(peer, 1)
    await peer.send(rounds.call("sail", 2, state))
    assert await rounds.wanted(peer, 2) == ({"q1": "Which boat?", "q2": "When?"}, state)
    await peer.send(rounds.call("sail", 3, state, q2=rounds.accepted(day="now")))
    assert await rounds.wanted(peer, 3) == ({"q1": "Which boat?"}, state)
    await peer.send(rounds.call("sail", 4, state, q1=rounds.accepted(boat="reed")))
    assert rounds.text_of(await peer.receive()) == "[{'boat': 'reed'}, {'day': 'now'}]"


@pytest.mark.requirement("MRTR-24")
async def test_a_malformed_answer_is_an_error_and_the_handler_waits_on(dock, rounds):
    def check(result):
        if result.content == {"boat": "none"}:
            raise RemoteProtocolError("no boat")

    async def sail(handling):
        answers = await ask_all(
            handling, [rounds.form("Which boat?", check=check), rounds.form("When?")]
        )
        return [answer.content for answer in answers]

    _, peer = await dock({"sail": sail})
    await peer.send(rounds.call("sail", 1))
    _, state = await rounds.wanted(peer, 1)
    for bad in ({"action": "perhaps"}, rounds.accepted(boat="none"), {}, "reed"):
        await peer.send(rounds.call("sail", 2, state, q2=rounds.accepted(day="now"), q1=bad))
        error = (await peer.receive())["error"]
        assert error["code"] == -32602
        assert "invalid input response 'q1'" in error["message"]
    await peer.send(rounds.call("sail", 3, state, q1=rounds.accepted(boat="reed")))
    assert (await rounds.wanted(peer, 3))[0] == {"q2": "When?"}
    await peer.send(rounds.call("sail", 4, state, q2=rounds.accepted(day="noon")))
    assert rounds.text_of(await peer.receive()) == "[{'boat': 'reed'}, {'day': 'noon'}]"


async def test_an_exception_of_a_users_check_is_raised_in_the_handler(dock, rounds):
    def check(_result):
        raise ZeroDivisionError("by the tide")

    caught = []

    async def sail(handling):
        try:
            await ask_all(handling, [rounds.form("Which boat?", check=check)])
        except ZeroDivisionError as error:
            caught.append(str(error))
        return "ashore"

    _, peer = await dock({"sail": sail})
    await peer.send(rounds.call("sail", 1))
    _, state = await rounds.wanted(peer, 1)
    await peer.send(rounds.call("sail", 2, state, q1=rounds.accepted()))
    assert rounds.text_of(await peer.receive()) == "ashore"
    assert caught == ["by the tide"]


@pytest.mark.requirement("MRTR-25")
async def test_answers_without_a_question_are_ignored(dock, rounds):
    _, peer = await dock({"sail": rounds.asking("Which boat?")})
    await peer.send(rounds.call("sail", 1))
    _, state = await rounds.wanted(peer, 1)
    await peer.send(rounds.call("sail", 2, state, q2="noise", q1=rounds.accepted(boat="reed")))
    assert rounds.text_of(await peer.receive()) == "[{'boat': 'reed'}]"


# Between rounds.


@pytest.mark.requirement("MRTR-27")
async def test_between_rounds_nothing_is_sent_and_then_by_the_new_request(dock, rounds):
    is_out = trio.Event()

    async def sail(handling):
        async def report():
            await is_out.wait()
            await handling.progress(2)
            await handling.progress(3)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(report)
            await handling.progress(1)
            await rounds.asking("Which boat?")(handling)
        return ""

    _, peer = await dock({"sail": sail})
    await peer.send(rounds.call("sail", 1, token="first"))
    assert (await peer.receive())["params"] == {"progressToken": "first", "progress": 1}
    _, state = await rounds.wanted(peer, 1)
    is_out.set()
    assert await peer.receive_available() == []
    await peer.send(rounds.call("sail", 2, state, token="second", q1=rounds.accepted()))
    told = await peer.receive_many(3)
    assert [each.get("params") for each in told] == [
        {"progressToken": "second", "progress": 2},
        {"progressToken": "second", "progress": 3},
        None,
    ]


async def test_a_task_that_waits_between_rounds_can_be_cancelled(
    dock, rounds, recording, autojump_clock
):
    async def sail(handling):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rounds.asking("Which boat?"), handling)
            await trio.testing.wait_all_tasks_blocked()
            with trio.move_on_after(1) as scope:
                await handling.progress(1)
        return scope.cancelled_caught

    _, peer = await dock({"sail": sail}, sequencer=recording)
    await peer.send(rounds.call("sail", 1, token=1))
    _, state = await rounds.wanted(peer, 1)
    await trio.sleep(2)
    await peer.send(rounds.call("sail", 2, state, token=1, q1=rounds.accepted()))
    assert rounds.text_of(await peer.receive()) == "True"
    assert "cxl r1 1" in recording.story()


async def test_a_handler_that_returns_between_rounds_answers_the_retry(
    dock, rounds, autojump_clock
):
    async def sail(handling):
        with trio.move_on_after(1):
            await rounds.asking("Which boat?")(handling)
        return "gone"

    async def sink(handling):
        with trio.fail_after(1):
            await rounds.asking("Which boat?")(handling)

    _, peer = await dock({"sail": sail, "sink": sink})
    answers = {}
    for request_id, name in enumerate(("sail", "sink")):
        await peer.send(rounds.call(name, request_id))
        _, state = await rounds.wanted(peer, request_id)
        await trio.sleep(2)
        assert await peer.receive_available() == []
        await peer.send(rounds.call(name, name, state))
        answers[name] = await peer.receive()
    assert rounds.text_of(answers["sail"]) == "gone"
    assert answers["sink"]["error"]["message"] == "internal error"


async def test_a_question_that_is_withdrawn_at_once_is_not_asked(dock, rounds):
    async def sail(handling):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(rounds.asking("Which boat?"), handling)
                await trio.lowlevel.checkpoint()
                scope.cancel()
        return "alone"

    _, peer = await dock({"sail": sail})
    await peer.send(rounds.call("sail", 1))
    assert rounds.text_of(await peer.receive()) == "alone"


async def test_the_same_task_asks_again_after_it_has_left_a_question(dock, rounds, autojump_clock):
    async def sail(handling):
        with trio.move_on_after(1):
            await rounds.asking("Which boat?")(handling)
        return await rounds.asking("When?")(handling)

    _, peer = await dock({"sail": sail})
    await peer.send(rounds.call("sail", 1))
    _, state = await rounds.wanted(peer, 1)
    await trio.sleep(2)
    await peer.send(rounds.call("sail", 2, state, q1=rounds.accepted(boat="late")))
    asked, state = await rounds.wanted(peer, 2)
    assert asked == {"q2": "When?"}
    await peer.send(rounds.call("sail", 3, state, q2=rounds.accepted(day="now")))
    assert rounds.text_of(await peer.receive()) == "[{'day': 'now'}]"


# What cannot be asked.


@pytest.fixture
def fault(dock, rounds):
    """What a stateless handler fails with, as the only one of a session."""

    async def run(handler, *, request=None, methods=None):
        faults = []

        async def tool(handling):
            with pytest.raises(Exception) as caught:
                await handler(handling)
            faults.append(caught.value)
            return ""

        session, peer = await dock({"sail": tool, "port/find": tool})
        session.connection.methods = {**session.connection.methods, **(methods or {})}
        await peer.send(request or rounds.call("sail", 1))
        await peer.receive()
        return faults[0]

    return run


@pytest.mark.requirement("MRTR-03", "TRAP-95")
async def test_only_three_methods_have_rounds(rounds, fault):
    request = {**rounds.call("sail", 1), "method": "port/find"}
    methods = {"port/find": custom_method("port/find")}
    error = await fault(rounds.asking("Which boat?"), request=request, methods=methods)
    assert isinstance(error, LocalProtocolError)
    assert "port/find" in str(error)


class Named(msgspec.Struct):
    name: str


async def test_a_method_with_params_of_the_users_own_has_no_rounds(fault, rounds):
    methods = {"tools/call": custom_method("tools/call", params=Named)}
    request = rounds.call("sail", 1, "parked.x")
    error = await fault(rounds.asking("Which boat?"), request=request, methods=methods)
    assert isinstance(error, LocalProtocolError)


@pytest.mark.requirement("MRTR-03", "TRAP-95")
async def test_no_other_request_is_answered_by_questions(dock, rounds, call, serve):
    async def tool(handling):
        return s.InputRequiredResult(request_state="x")

    session, peer = await dock({"port/find": tool, "sail": tool})
    session.connection.methods = {
        **session.connection.methods,
        "port/find": custom_method("port/find"),
    }
    await peer.send({**rounds.call("", 1), "method": "port/find"})
    assert (await peer.receive())["error"]["code"] == -32603
    await peer.send(rounds.call("sail", 2))
    assert (await peer.receive())["result"]["requestState"] == "x"
    await peer.handshake()
    await peer.send(call("sail", 3))
    assert (await peer.receive())["error"]["code"] == -32603


@pytest.mark.requirement("BASE-22", "STDIO-11")
async def test_a_stateless_client_gets_no_requests(fault):
    error = await fault(lambda handling: handling.ask("ping"))
    assert isinstance(error, LocalProtocolError)


@pytest.mark.requirement("STDIO-12")
async def test_a_stateless_server_that_asks_gets_no_answer(dial):
    session, peer = await dial(handshake=False)
    said = s.DiscoverResult(
        supported_versions=["2026-07-28"], capabilities=s.ServerCapabilities(tools={})
    )
    session.accept(said)
    await peer.send({"id": 1, "method": "roots/list"}, {"id": 2, "method": "ping"})
    await peer.send({"id": 3, "method": "no/such"})
    assert await peer.receive_available() == []
    assert session.connection.counts["request of a server"] == 3


async def test_a_question_that_cannot_be_encoded_is_not_asked(rounds, fault):
    async def sail(handling):
        question = rounds.form("Which boat?")
        question.params.requested_schema["x"] = object()
        await ask_all(handling, [question])

    assert isinstance(await fault(sail), Unencodable)


async def test_questions_beyond_a_frame_are_not_asked(dock, rounds, small, recording):
    errors = []

    async def sail(handling):
        async def second():
            await trio.lowlevel.checkpoint()
            with pytest.raises(
                LocalProtocolError, match=r"limits\.messages\.bytes_max=1500"
            ) as caught:
                await rounds.asking("y" * 800)(handling)
            errors.append(caught.value)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(rounds.asking("x" * 800), handling)
            nursery.start_soon(second)
        return ""

    _, peer = await dock(
        {"sail": sail}, limits=small(messages=MessageLimits(bytes_max=1500)), sequencer=recording
    )
    await peer.send(rounds.call("sail", 1))
    _, state = await rounds.wanted(peer, 1)
    await peer.send(rounds.call("sail", 2, state, q1=rounds.accepted()))
    await peer.receive()
    assert len(errors) == 1
    assert "err r1.1 2" in recording.story()


async def test_an_effect_cannot_ask(rounds, fault):
    async def sail(handling):
        INSIDE.set(Inside(handling, "fish"))
        await ask_all(handling, [rounds.form("Which boat?")])

    error = await fault(sail)
    assert isinstance(error, LocalProtocolError)
    assert "fish" in str(error)


# What a recording says.


async def test_a_recording_of_a_stateless_session_has_its_protocol_version_once(
    dock, rounds, recording, echo
):
    session, peer = await dock({"echo": echo}, sequencer=recording)
    await peer.send(rounds.call("echo", 1), rounds.call("echo", 2))
    await peer.receive_many(2)
    assert recording.story(since=1)[:2] == ["in", "mark negotiated"]
    assert recording.story().count("mark negotiated") == 1
    assert not session.initialized.is_set()
    assert not session.negotiated.is_set()


async def test_a_round_has_records_of_the_handler_and_its_keeper(dock, rounds, recording):
    _, peer = await dock({"sail": rounds.asking("Which boat?")}, sequencer=recording)
    await peer.send(rounds.call("sail", 1))
    _, state = await rounds.wanted(peer, 1)
    await peer.send(rounds.call("sail", 2, state, q1=rounds.accepted()))
    await peer.receive()
    assert recording.story(since=1) == [
        "in",
        "mark negotiated",
        "cmd r1 1",
        "mark r1.ask 1",
        "out r1.ask 2",
        "in",
        "res r1 2",
        "out r1 3",
    ]


@pytest.mark.requirement("BASE-22", "STDIO-11")
async def test_a_client_that_has_not_shaken_hands_is_not_pinged(
    dock, rounds, small, echo, autojump_clock
):
    _, peer = await dock(
        {"echo": echo}, limits=small(requests=RequestLimits(ping_interval_seconds=1))
    )
    await peer.send(rounds.call("echo", 1))
    await peer.receive()
    await trio.sleep(5)
    assert await peer.receive_available() == []
