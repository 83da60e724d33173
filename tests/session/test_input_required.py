"""A handler asks a stateless client by its answer, and continues with the retry."""

import msgspec
import pytest
import trio
import trio.testing

from mcp_trio import ConnectionLost, RequestError
from mcp_trio import types as s
from mcp_trio._protocol.metadata import Peer
from mcp_trio._protocol.methods import METHODS, custom_method
from mcp_trio._protocol.requests import SUSPENDED_PREFIX, IncomingRequest
from mcp_trio._protocol.versions import PROTOCOL_VERSIONS
from mcp_trio._session.calls import Question
from mcp_trio._session.handler_journal import HandlerJournal, OperationId
from mcp_trio._session.handlers import RUNNING_EFFECT, RunningEffect
from mcp_trio._session.input_required import ask_all, binding_of
from mcp_trio._session.lanes import LANE
from mcp_trio.auth import AuthInfo
from mcp_trio.errors import LocalProtocolError, RemoteProtocolError, Unencodable
from mcp_trio.limits import MessageLimits, RequestLimits
from mcp_trio.types import CallToolParams, ClientCapabilities

ROOTS = Question(method="roots/list")
SAMPLE = Question(
    method="sampling/createMessage", params=s.CreateMessageParams(messages=[], max_tokens=3)
)
MESSAGE = {"role": "assistant", "content": {"type": "text", "text": "aye"}, "model": "m"}


@pytest.mark.requirement(
    "BASE-22", "STDIO-11", "MRTR-01", "MRTR-02", "MRTR-04", "MRTR-06", "TRAP-99"
)
async def test_the_first_response_asks_and_the_retry_gets_the_result(dock, rounds):
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
async def test_a_missing_answer_is_requested_again(dock, rounds):
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


async def test_an_exception_of_a_check_is_raised_in_the_handler(dock, rounds):
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
async def test_messages_between_rounds_are_sent_with_the_next_request(dock, rounds):
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
    messages = await peer.receive_many(3)
    assert [each.get("params") for each in messages] == [
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


# Rejected requests of handlers.


@pytest.fixture
def fault(dock, rounds):
    """Return the exception of a stateless handler, as the only one of a session."""

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


async def test_a_method_with_user_defined_params_has_no_rounds(fault, rounds):
    methods = {"tools/call": custom_method("tools/call", params=Named)}
    request = rounds.call("sail", 1, "suspended.x")
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
    result = s.DiscoverResult(
        supported_versions=["2026-07-28"], capabilities=s.ServerCapabilities(tools={})
    )
    session.accept_discovery(result)
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


async def test_questions_over_the_message_limit_are_not_asked(dock, rounds, small, recording):
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
        RUNNING_EFFECT.set(RunningEffect(handling, "fish"))
        await ask_all(handling, [rounds.form("Which boat?")])

    error = await fault(sail)
    assert isinstance(error, LocalProtocolError)
    assert "fish" in str(error)


# Recordings.


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


async def test_a_round_has_records_of_the_handler_and_of_its_rounds(dock, rounds, recording):
    _, peer = await dock({"sail": rounds.asking("Which boat?")}, sequencer=recording)
    await peer.send(rounds.call("sail", 1))
    _, state = await rounds.wanted(peer, 1)
    await peer.send(rounds.call("sail", 2, state, q1=rounds.accepted()))
    await peer.receive()
    story = recording.story(since=1)
    assert [text for text in story if not text.startswith("step")] == [
        "in",
        "mark negotiated",
        "cmd r1 1",
        "mark r1.ask 1",
        "out r1.ask 2",
        "in",
        "res r1 2",
        "out r1 3",
    ]
    assert {text for text in story if text.startswith("step")} == {"step r1.ask"}


@pytest.mark.requirement("BASE-22", "STDIO-11")
async def test_a_client_without_a_handshake_is_not_pinged(
    dock, rounds, small, echo, autojump_clock
):
    _, peer = await dock(
        {"echo": echo}, limits=small(requests=RequestLimits(ping_interval_seconds=1))
    )
    await peer.send(rounds.call("echo", 1))
    await peer.receive()
    await trio.sleep(5)
    assert await peer.receive_available() == []


# Limits of suspended handlers, in number and time, and their ends.


INVALID = {"code": -32602, "message": "the request state is not valid"}


async def suspended(peer, rounds, request_id=1, name="sail"):
    """The state of a handler that has asked its question."""
    await peer.send(rounds.call(name, request_id))
    return (await rounds.wanted(peer, request_id))[1]


def noting(tool, ended):
    """A tool that notes when it ends."""

    async def noted(handling):
        try:
            return await tool(handling)
        finally:
            ended.append(trio.current_time())

    return noted


# Time.


@pytest.mark.requirement("MRTR-08")
async def test_a_handler_without_a_retry_is_cancelled(
    dock, rounds, autojump_clock, small, recording
):
    ended = []
    sail = noting(rounds.asking("Which boat?"), ended)
    limits = small(requests=RequestLimits(suspended_seconds=10))
    _, peer = await dock({"sail": sail}, limits=limits, sequencer=recording)
    began = trio.current_time()
    state = await suspended(peer, rounds)
    await trio.sleep(9)
    assert not ended
    await trio.sleep(2)
    assert [round(time - began) for time in ended] == [10]
    await peer.send(rounds.call("sail", 2, state, q1=rounds.accepted()))
    assert (await peer.receive())["error"] == INVALID
    records = [text for text in recording.story() if not text.startswith("step")]
    assert records[-5:-2] == ["mark r1.ask 3", "cxl r1 2", "cxl r1 3"]


async def test_a_resumed_handler_has_no_retry_timeout(dock, rounds, autojump_clock, small):
    async def sail(handling):
        await rounds.asking("Which boat?")(handling)
        await trio.sleep(20)
        return "there"

    _, peer = await dock({"sail": sail}, limits=small(requests=RequestLimits(suspended_seconds=10)))
    state = await suspended(peer, rounds)
    await peer.send(rounds.call("sail", 2, state, q1=rounds.accepted()))
    assert rounds.text_of(await peer.receive()) == "there"


async def test_a_retry_without_an_answer_does_not_extend_the_timeout(
    dock, rounds, autojump_clock, small
):
    ended = []
    sail = noting(rounds.asking("Which boat?"), ended)
    _, peer = await dock({"sail": sail}, limits=small(requests=RequestLimits(suspended_seconds=10)))
    state = await suspended(peer, rounds)
    await trio.sleep(8)
    await peer.send(rounds.call("sail", 2, state))
    await rounds.wanted(peer, 2)
    await trio.sleep(4)
    assert len(ended) == 1


# Shielded handlers.


@pytest.fixture
def stubborn(rounds):
    """A tool that asks, and cleans up under a shield, of whose steps it notes the errors."""

    class Stubborn:
        def __init__(self):
            self.errors = []
            self.done = trio.Event()

        async def __call__(self, handling):
            try:
                await rounds.asking("Which boat?")(handling)
            finally:
                with trio.CancelScope(shield=True):
                    await handling.progress(1)
                    await self._ask(handling)
                    self.done.set()

        async def shielded(self, handling):
            with trio.CancelScope(shield=True):
                await self._ask(handling)
                self.done.set()
            return "never said"

        async def _ask(self, handling):
            try:
                await rounds.asking("Again?")(handling)
            except ConnectionLost as error:
                self.errors.append(str(error))

    return Stubborn()


@pytest.mark.parametrize("how", ["by time", "by the end"])
async def test_shielded_clean_up_does_not_wait_for_rounds(
    dock, rounds, autojump_clock, stubborn, how
):
    session, peer = await dock({"sail": stubborn})
    await suspended(peer, rounds)
    if how == "by the end":
        session.shut("eof")
    await stubborn.done.wait()
    assert stubborn.errors == ["the request is cancelled: its client cannot be asked any more"]
    await peer.aclose()
    await session.ended.wait()


async def test_a_shielded_question_without_a_retry_raises_connection_lost(
    dock, rounds, autojump_clock, stubborn, recording
):
    _, peer = await dock({"sail": stubborn.shielded}, sequencer=recording)
    await suspended(peer, rounds)
    await stubborn.done.wait()
    assert len(stubborn.errors) == 1
    await trio.testing.wait_all_tasks_blocked()
    records = [text for text in recording.story() if not text.startswith("step")]
    assert records[-2:] == ["err r1 2", "cxl r1 3"]


# Slots.


async def test_a_suspended_handler_frees_its_slot_and_takes_one_again(dock, rounds, small, echo):
    tide = trio.Event()

    async def wait(handling):
        await tide.wait()
        return "tide"

    tools = {"sail": rounds.asking("Which boat?"), "wait": wait}
    _, peer = await dock(tools, limits=small(requests=RequestLimits(in_flight_max=1)))
    state = await suspended(peer, rounds)
    await peer.send(rounds.call("wait", 2))
    await peer.send(rounds.call("sail", 3, state, q1=rounds.accepted(boat="reed")))
    assert await peer.receive_available() == []
    tide.set()
    assert [rounds.text_of(each) for each in await peer.receive_many(2)] == [
        "tide",
        "[{'boat': 'reed'}]",
    ]


async def test_a_waiting_request_gets_the_slot_of_a_suspended_handler(dock, rounds, small, echo):
    tools = {"sail": rounds.asking("Which boat?"), "echo": echo}
    _, peer = await dock(tools, limits=small(requests=RequestLimits(in_flight_max=1)))
    await peer.send(rounds.call("sail", 1), rounds.call("echo", 2))
    await rounds.wanted(peer, 1)
    assert rounds.text_of(await peer.receive()) == "echo"


@pytest.fixture
def full(dock, rounds, small):
    """A session in which another handler has the only place, until `tide`; and one is suspended."""

    async def start(*, queued_max=1, **options):
        tide = trio.Event()

        async def wait(handling):
            await tide.wait()
            return "tide"

        tools = {"sail": rounds.asking("Which boat?"), "wait": wait}
        limits = small(requests=RequestLimits(in_flight_max=1, queued_max=queued_max))
        session, peer = await dock(tools, limits=limits, **options)
        state = await suspended(peer, rounds)
        await peer.send(rounds.call("wait", "wait"))
        return session, peer, state, tide

    return start


async def test_a_retry_rejected_for_lack_of_room_can_be_repeated(full, rounds):
    _, peer, state, tide = await full()
    await peer.send(rounds.call("wait", "queued"))
    await peer.send(rounds.call("sail", 2, state, q1=rounds.accepted()))
    error = (await peer.receive())["error"]
    assert error["code"] == -32603
    assert "limits.requests.queued_max=1" in error["message"]
    tide.set()
    await peer.receive_many(2)
    await peer.send(rounds.call("sail", 3, state, q1=rounds.accepted()))
    assert rounds.text_of(await peer.receive()) == "[{}]"


async def test_a_retry_that_waits_for_a_slot_can_be_repeated_and_cancelled(full, rounds, recording):
    _, peer, state, tide = await full(queued_max=2, sequencer=recording)
    await peer.send(rounds.call("sail", 2, state, q1=rounds.accepted()))
    await peer.send(rounds.call("sail", 3, state, q1=rounds.accepted()))
    assert await peer.receive_available() == []
    await peer.cancel(2)
    assert await peer.receive() == {"jsonrpc": "2.0", "id": 3, "error": INVALID}
    assert recording.story()[-4:] == ["in", "cxl r1 2", "cxl r1 3", "out"]
    tide.set()
    assert rounds.text_of(await peer.receive()) == "tide"


async def test_a_handler_that_is_stopped_leaves_no_retry_in_the_queue(full, rounds, recording):
    session, peer, state, tide = await full(sequencer=recording)
    await peer.send(rounds.call("sail", 2, state, q1=rounds.accepted()))
    assert await peer.receive_available() == []
    session.stop_handler("r1")
    assert await peer.receive_available() == []
    tide.set()
    assert rounds.text_of(await peer.receive()) == "tide"
    await peer.send(rounds.call("wait", 3))
    assert rounds.text_of(await peer.receive()) == "tide"


async def test_a_retry_that_waits_for_a_slot_at_the_end_is_dropped(full, rounds):
    session, peer, state, _ = await full()
    await peer.send(rounds.call("sail", 2, state, q1=rounds.accepted()))
    await peer.receive_available()
    session.shut("closed")
    assert await peer.receive_end() == []
    await session.ended.wait()


# The number of suspended handlers.


async def test_a_question_over_the_limit_fails_naming_the_setting(dock, rounds, small, recording):
    errors = []

    async def row(handling):
        with pytest.raises(RequestError) as caught:
            await rounds.asking("Which oar?")(handling)
        errors.append(caught.value)
        return "no"

    limits = small(requests=RequestLimits(suspended_max=1))
    tools = {"sail": rounds.asking("Which boat?"), "row": row}
    _, peer = await dock(tools, limits=limits, sequencer=recording)
    state = await suspended(peer, rounds)
    await peer.send(rounds.call("row", 2))
    assert rounds.text_of(await peer.receive()) == "no"
    assert errors[0].code == -32000
    assert "limits.requests.suspended_max=1" in errors[0].message
    acts = [each for each in recording.story() if each.startswith(("cmd", "err"))]
    lane = acts[1].split()[1]
    assert acts == ["cmd r1 1", f"cmd {lane} 1", f"err {lane} 2"]
    assert lane != "r1"
    await peer.send(rounds.call("sail", 3, state, q1=rounds.accepted()))
    await peer.receive()
    await suspended(peer, rounds, 4)


# The end of the session.


@pytest.mark.parametrize("cause", ["eof", "closed", "lost", "signal"])
async def test_suspended_handlers_end_with_the_session_at_once(dock, rounds, autojump_clock, cause):
    ended = []
    session, peer = await dock({"sail": noting(rounds.asking("Which boat?"), ended)})
    await suspended(peer, rounds)
    began = trio.current_time()
    session.shut(cause)
    await session.ended.wait()
    assert ended == [began]
    assert trio.current_time() - began < 1


async def test_a_handler_that_asks_after_the_session_closes_ends(dock, rounds, autojump_clock):
    ended = []

    async def sail(handling):
        await trio.sleep(1)
        return await rounds.asking("Which boat?")(handling)

    session, peer = await dock({"sail": noting(sail, ended)})
    began = trio.current_time()
    await peer.send(rounds.call("sail", 1))
    await peer.receive_available()
    session.shut("eof")
    await rounds.wanted(peer, 1)
    await session.ended.wait()
    assert [time - began for time in ended] == [1]
    assert trio.current_time() - began == 1


async def test_kept_replies_do_not_delay_the_end(dock, rounds, autojump_clock):
    session, peer = await dock({"sail": rounds.asking("Which boat?")})
    state = await suspended(peer, rounds)
    await peer.send(rounds.call("sail", 2, state, q1=rounds.accepted()))
    await peer.receive()
    began = trio.current_time()
    session.shut("eof")
    await session.ended.wait()
    assert trio.current_time() == began


async def test_a_closing_session_keeps_no_handler_for_a_retry(
    dock, rounds, autojump_clock, small, recording
):
    """A replay does not know the duration of a session's end: no message may be sent in it."""

    async def row(_handling):
        with trio.CancelScope(shield=True):
            await trio.sleep(1)

    async def drift(handling):
        await rounds.asking("Which boat?")(handling)
        await trio.sleep(0.1)

    tools = {"sail": rounds.asking("Which boat?"), "drift": drift, "row": row}
    session, peer = await dock(
        tools, limits=small(requests=RequestLimits(suspended_seconds=0.5)), sequencer=recording
    )
    states = {name: await suspended(peer, rounds, name, name) for name in ("sail", "drift")}
    for name, state in states.items():
        await peer.send(rounds.call(name, f"{name} again", state, q1=rounds.accepted()))
    await peer.send(rounds.call("row", "row"))
    await peer.receive()
    session.shut("eof")
    await session.ended.wait()
    assert not [
        record for record in recording.story() if record.startswith("mark") and "ask 3" in record
    ]


# Valid, invalid and repeated retries.


async def suspended_rounds_retries(peer, rounds, request_id=1):
    """The state of a handler that has asked its question."""
    await peer.send(rounds.call("sail", request_id))
    return (await rounds.wanted(peer, request_id))[1]


# States.


@pytest.mark.requirement("MRTR-19", "TRAP-96")
async def test_a_state_is_valid_for_its_own_request_only(dock, rounds):
    sail = rounds.asking("Which boat?")
    _, peer = await dock({"sail": sail, "row": sail})
    state = await suspended_rounds_retries(peer, rounds)
    answers = {"q1": rounds.accepted(boat="reed")}
    for foreign in (
        rounds.call("row", 2, state, **answers),
        rounds.call("sail", 2, state, port="Oslo", **answers),
        rounds.call("sail", 2, f"{state}x", **answers),
        rounds.call("sail", 2, "suspended.", **answers),
    ):
        await peer.send(foreign)
        assert (await peer.receive())["error"] == INVALID
    await peer.send(rounds.call("sail", 3, state, **answers))
    assert rounds.text_of(await peer.receive()) == "[{'boat': 'reed'}]"


@pytest.mark.requirement("MRTR-19", "TRAP-96", "ELIC-45", "ELIC-53")
@pytest.mark.parametrize(
    ("change", "is_same"),
    [
        ({}, True),
        ({"id": 2}, True),
        ({"method": METHODS["prompts/get"]}, False),
        ({"params": CallToolParams(name="row")}, False),
        ({"params": CallToolParams(name="sail", request_state="x")}, True),
        ({"peer": "another"}, False),
    ],
)
def test_a_retry_needs_the_params_and_principal_of_the_first_request(change, is_same):
    peer = Peer(
        protocol_version=PROTOCOL_VERSIONS["2026-07-28"],
        capabilities=ClientCapabilities(),
        auth=AuthInfo(subject="anna"),
    )
    if "peer" in change:
        change = {"peer": msgspec.structs.replace(peer, auth=AuthInfo(subject="berit"))}
    first = {
        "id": 1,
        "method": METHODS["tools/call"],
        "params": CallToolParams(name="sail"),
        "peer": peer,
    }
    retry = IncomingRequest(**{**first, **change})
    assert (binding_of(IncomingRequest(**first)) == binding_of(retry)) is is_same


async def test_an_unknown_state_is_passed_to_the_handler(dock, rounds):
    async def sail(handling):
        return handling.request.params.request_state

    _, peer = await dock({"sail": sail})
    await peer.send(rounds.call("sail", 1, "sealed"))
    assert rounds.text_of(await peer.receive()) == "sealed"


# Repeated retries.


@pytest.mark.requirement("MRTR-23")
async def test_a_repeated_retry_gets_the_same_reply_and_runs_no_handler(
    dock, rounds, autojump_clock, small
):
    ran = []

    async def sail(handling):
        ran.append(await rounds.asking("Which boat?", "When?")(handling))
        return ran

    _, peer = await dock({"sail": sail}, limits=small(requests=RequestLimits(suspended_seconds=10)))
    first = await suspended_rounds_retries(peer, rounds)
    again = rounds.call("sail", 2, first, q1=rounds.accepted(boat="reed"))
    await peer.send(again)
    asked, second = await rounds.wanted(peer, 2)
    await peer.send({**again, "id": 3})
    assert await rounds.wanted(peer, 3) == (asked, second)
    await peer.send(rounds.call("sail", 4, second, q2=rounds.accepted(day="now")))
    result = rounds.text_of(await peer.receive())
    await peer.send(rounds.call("sail", 5, second, q2=rounds.accepted(day="never")))
    answer = await peer.receive()
    assert (answer["id"], rounds.text_of(answer)) == (5, result)
    await peer.send({**again, "id": 6})
    assert (await peer.receive())["error"] == INVALID
    await trio.sleep(11)
    await peer.send(rounds.call("sail", 7, second, q2=rounds.accepted(day="now")))
    assert (await peer.receive())["error"] == INVALID
    assert len(ran) == 1


@pytest.mark.requirement("MRTR-23")
async def test_the_error_reply_to_a_retry_is_kept_too(dock, rounds):
    async def sail(handling):
        await rounds.asking("Which boat?")(handling)
        raise ValueError

    _, peer = await dock({"sail": sail})
    state = await suspended_rounds_retries(peer, rounds)
    await peer.send(rounds.call("sail", 2, state, q1=rounds.accepted()))
    await peer.send(rounds.call("sail", 3, state, q1=rounds.accepted()))
    first, second = await peer.receive_many(2)
    assert (first["id"], second["id"]) == (2, 3)
    assert first["error"] == second["error"]


@pytest.fixture
def sea(dock, rounds):
    """A tool that goes on after its question when the tide comes; the states of two such calls."""

    class Sea:
        def __init__(self):
            self.tide = trio.Event()

        async def sail(self, handling):
            await rounds.asking("Which boat?")(handling)
            await self.tide.wait()
            return "there"

        async def open(self, **options):
            self.session, self.peer = await dock({"sail": self.sail}, **options)
            self.state = await suspended_rounds_retries(self.peer, rounds)

        async def retry(self, *request_ids):
            answers = {"q1": rounds.accepted()}
            await self.peer.send(
                *(rounds.call("sail", each, self.state, **answers) for each in request_ids)
            )
            return await self.peer.receive_available()

    return Sea()


@pytest.mark.requirement("MRTR-23")
async def test_a_retry_repeated_before_the_reply_gets_the_same_reply(sea, rounds):
    await sea.open()
    assert await sea.retry(2, 3) == []
    assert await sea.retry(4) == []
    await sea.peer.cancel(3)
    sea.tide.set()
    answers = await sea.peer.receive_available()
    assert [(answer["id"], rounds.text_of(answer)) for answer in answers] == [
        (2, "there"),
        (4, "there"),
    ]
    assert await sea.retry(5) == [{**answers[0], "id": 5}]


async def test_too_many_repeated_retries_are_rejected_naming_the_setting(sea, small):
    await sea.open(limits=small(requests=RequestLimits(queued_max=1)))
    (rejected,) = await sea.retry(2, 3, 4)
    assert (rejected["id"], rejected["error"]["code"]) == (4, -32603)
    assert "limits.requests.queued_max=1" in rejected["error"]["message"]


@pytest.mark.parametrize("limit", ["queued_max", "queued_bytes_max"])
async def test_repeated_retries_of_all_handlers_together_are_limited(sea, small, rounds, limit):
    retry = rounds.call("sail", 2, SUSPENDED_PREFIX + "s" * 32, q1=rounds.accepted())
    size_bytes = len(msgspec.json.encode(retry))
    most = 2 if limit == "queued_max" else 2 * size_bytes + size_bytes // 2
    await sea.open(limits=small(requests=RequestLimits(**{limit: most})))
    first, second = sea.state, await suspended_rounds_retries(sea.peer, rounds, "second")
    assert await sea.retry(2, 3, 4) == []
    sea.state = second
    (rejected,) = await sea.retry(5, 6)
    assert (rejected["id"], rejected["error"]["code"]) == (6, -32603)
    assert f"limits.requests.{limit}={most}" in rejected["error"]["message"]
    await sea.peer.cancel(3)
    assert await sea.retry(7) == []
    sea.tide.set()
    answers = await sea.peer.receive_available()
    assert sorted(answer["id"] for answer in answers) == [2, 4, 5, 7]
    for sea.state in (first, second):
        assert rounds.text_of((await sea.retry("again"))[0]) == "there"


async def test_cancelling_the_current_request_cancels_the_handler(sea):
    await sea.open()
    await sea.retry(2, 3)
    await sea.peer.cancel(2)
    answers = await sea.peer.receive_available()
    assert answers == [{"jsonrpc": "2.0", "id": 3, "error": INVALID}]
    assert (await sea.retry(4))[0]["error"] == INVALID


async def test_the_request_in_flight_can_be_cancelled_while_the_retry_waits_to_be_answered(
    sea, recording
):
    await sea.open(sequencer=recording)
    await sea.retry(2)
    await sea.peer.cancel(2)
    assert await sea.peer.receive_available() == []
    assert recording.story()[-2:] == ["in", "cxl r1 3"]


async def test_the_number_of_kept_replies_is_limited(dock, rounds, small):
    _, peer = await dock(
        {"sail": rounds.asking("Which boat?")},
        limits=small(requests=RequestLimits(suspended_max=2)),
    )
    states = []
    for number in range(3):
        states.append(await suspended_rounds_retries(peer, rounds, number))
        await peer.send(rounds.call("sail", "retry", states[-1], q1=rounds.accepted()))
        await peer.receive()
    await peer.send(*(rounds.call("sail", state, state) for state in states))
    answers = {answer["id"]: answer for answer in await peer.receive_many(3)}
    assert ["error" in answers[state] for state in states] == [True, False, False]


async def test_the_size_of_kept_replies_is_limited(dock, rounds, small):
    limits = small(requests=RequestLimits(replies_kept_bytes_max=1))
    _, peer = await dock({"sail": rounds.asking("Which boat?", "When?")}, limits=limits)
    first = await suspended_rounds_retries(peer, rounds)
    await peer.send(rounds.call("sail", 2, first, q1=rounds.accepted()))
    _, second = await rounds.wanted(peer, 2)
    await peer.send(rounds.call("sail", 3, first, q1=rounds.accepted()))
    assert (await peer.receive())["error"] == INVALID
    await peer.send(rounds.call("sail", 4, second, q2=rounds.accepted()))
    assert rounds.text_of(await peer.receive()) == "[{}, {}]"
    await peer.send(rounds.call("sail", 5, second, q2=rounds.accepted()))
    assert (await peer.receive())["error"] == INVALID


# Steps that a resumable handler keeps from its earlier rounds.


@pytest.fixture
def handler():
    """Be a resumable handler: gives a journal, and what enters its lane."""

    def begin(operations=()):
        journal = HandlerJournal("seed")
        journal.add_earlier(operations)
        LANE.set(journal.lane)
        return journal

    yield begin
    LANE.set(None)


def do(journal, *names):
    """Come to operations by these names; those that are remembered, and then all that are."""
    known = []
    for name in names:
        place, operation = journal.begin_operation(name, b"")
        if operation is not None:
            known.append(name)
        journal.finish_operation(place, "res", b"1")
    return known, [operation.id.name for operation in journal.operations]


async def test_an_operation_is_identified_by_lane_ordinal_name_and_arguments(handler):
    first = handler()
    place, earlier = first.begin_operation("price", b"[1]")
    first.finish_operation(place, "res", b"30")
    assert earlier is None

    again = handler(first.operations).begin_operation("price", b"[1]")
    other = handler(first.operations).begin_operation("price", b"[2]")
    assert bytes(again[1].body) == b"30"
    assert other[1] is None


async def test_with_an_operation_that_changed_all_later_ones_are_forgotten(handler):
    first = handler()
    do(first, "a", "b", "c")

    assert do(handler(first.operations), "a", "B") == (["a"], ["a", "B"])


async def test_operations_that_a_round_has_used_are_not_forgotten(handler):
    first = handler()
    for name, lane in [("b", first.lane.child()), ("a", first.lane), ("c", first.lane)]:
        LANE.set(lane)
        do(first, name)
    second = handler(first.operations)
    second.add_earlier(first.operations)
    LANE.set(second.lane)
    do(second, "a")
    LANE.set(second.lane.child())

    do(second, "B")

    assert [operation.id.name for operation in second.operations] == ["a", "B"]


async def test_without_a_change_of_the_code_an_operation_keeps_its_outcome(handler):
    first = handler()
    do(first, "a")
    second = handler(first.operations)
    second.code_has_changed = lambda: False

    assert do(second, "redacted") == (["redacted"], ["a"])


async def test_a_cancellation_by_the_end_of_the_round_is_no_outcome(handler):
    journal = handler()
    place, _ = journal.begin_operation("slow", b"")
    journal.finish_operation(place, "cxl", None)
    later, _ = journal.begin_operation("slower", b"")
    last, _ = journal.begin_operation("slowest", b"")
    journal.scope.cancel()
    journal.finish_operation(later, "cxl", None)
    journal.finish_operation(last, "res", b"1")

    assert [operation.id.name for operation in journal.operations] == ["slow", "slowest"]


async def test_an_operation_after_the_end_of_a_round_is_not_kept(handler):
    first = handler()
    do(first, "a", "b")
    journal = handler(first.operations)
    do(journal, "a")
    journal.scope.cancel()

    assert do(journal, "b", "c") == ([], ["a", "b"])


async def test_questions_are_withdrawn_until_the_round_is_over(handler):
    journal, a, b = handler(), OperationId("h", 1, "a", ""), OperationId("h", 2, "b", "")
    journal.ask({a: "a?", b: "b?"})
    journal.withdraw([a])
    assert journal.questions == {"q2": (b, "b?")}
    assert journal.has_asked.is_set()

    journal.withdraw([b])
    assert not journal.has_asked.is_set()

    journal.ask({a: "a?"})
    journal.scope.cancel()
    journal.withdraw([a])
    assert journal.questions == {"q3": (a, "a?")}


def test_a_task_that_no_handler_started_has_no_operations(handler):
    journal = handler()
    LANE.set(None)

    with pytest.raises(LocalProtocolError, match="no lane"):
        journal.begin_operation("price", b"")
