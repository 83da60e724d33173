"""Limits of suspended handlers, in number and time, and their ends."""

import pytest
import trio
import trio.testing

from mcp_trio import ConnectionLost, RequestError
from mcp_trio.limits import RequestLimits

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
    assert recording.story()[-5:-2] == ["mark r1.ask 3", "cxl r1 2", "cxl r1 3"]


async def test_a_handler_that_was_taken_up_does_not_run_out_of_time(
    dock, rounds, autojump_clock, small
):
    async def sail(handling):
        await rounds.asking("Which boat?")(handling)
        await trio.sleep(20)
        return "there"

    _, peer = await dock({"sail": sail}, limits=small(requests=RequestLimits(suspended_seconds=10)))
    state = await suspended(peer, rounds)
    await peer.send(rounds.call("sail", 2, state, q1=rounds.accepted()))
    assert rounds.text_of(await peer.receive()) == "there"


async def test_a_retry_that_lacks_an_answer_gives_no_more_time(dock, rounds, autojump_clock, small):
    ended = []
    sail = noting(rounds.asking("Which boat?"), ended)
    _, peer = await dock({"sail": sail}, limits=small(requests=RequestLimits(suspended_seconds=10)))
    state = await suspended(peer, rounds)
    await trio.sleep(8)
    await peer.send(rounds.call("sail", 2, state))
    await rounds.wanted(peer, 2)
    await trio.sleep(4)
    assert len(ended) == 1


# What is shielded from the end.


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
    assert recording.story()[-2:] == ["err r1 2", "cxl r1 3"]


# Places.


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
    """A session in which another handler has the only place, until `tide`; and one is parked."""

    async def start(**options):
        tide = trio.Event()

        async def wait(handling):
            await tide.wait()
            return "tide"

        tools = {"sail": rounds.asking("Which boat?"), "wait": wait}
        limits = small(requests=RequestLimits(in_flight_max=1, queued_max=1))
        session, peer = await dock(tools, limits=limits, **options)
        state = await suspended(peer, rounds)
        await peer.send(rounds.call("wait", "wait"))
        return session, peer, state, tide

    return start


async def test_a_retry_for_which_there_is_no_room_is_rejected_and_may_come_again(full, rounds):
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
    _, peer, state, tide = await full(sequencer=recording)
    await peer.send(rounds.call("sail", 2, state, q1=rounds.accepted()))
    await peer.send(rounds.call("sail", 3, state, q1=rounds.accepted()))
    assert await peer.receive_available() == []
    await peer.cancel(2)
    assert await peer.receive() == {"jsonrpc": "2.0", "id": 3, "error": INVALID}
    assert recording.story()[-4:] == ["in", "cxl r1 2", "cxl r1 3", "out"]
    tide.set()
    assert rounds.text_of(await peer.receive()) == "tide"


async def test_a_retry_that_waits_for_a_slot_at_the_end_is_dropped(full, rounds):
    session, peer, state, _ = await full()
    await peer.send(rounds.call("sail", 2, state, q1=rounds.accepted()))
    await peer.receive_available()
    session.shut("closed")
    assert await peer.receive_end() == []
    await session.ended.wait()


# Number.


async def test_a_question_beyond_the_bound_fails_naming_the_setting(dock, rounds, small, recording):
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
    assert [each for each in recording.story() if each.startswith(("cmd", "err"))] == [
        "cmd r1 1",
        "cmd r6 1",
        "err r6 2",
    ]
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


async def test_when_the_session_closes_nothing_is_kept_for_a_retry_any_more(
    dock, rounds, autojump_clock, small, recording
):
    """A replay does not know how long the end of a session takes: nobody may speak meanwhile."""

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
    assert not [told for told in recording.story() if told.startswith("mark") and "ask 3" in told]
