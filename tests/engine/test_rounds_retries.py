"""Valid, invalid and repeated retries."""

import attrs
import pytest
import trio

from mcp_trio._protocol.metadata import Peer
from mcp_trio._protocol.methods import METHODS
from mcp_trio._protocol.requests import IncomingRequest
from mcp_trio._protocol.versions import PROTOCOL_VERSIONS
from mcp_trio._session.input_required import binding_of
from mcp_trio.limits import RequestLimits
from mcp_trio.types import CallToolParams, ClientCapabilities

INVALID = {"code": -32602, "message": "the request state is not valid"}


async def suspended(peer, rounds, request_id=1):
    """The state of a handler that has asked its question."""
    await peer.send(rounds.call("sail", request_id))
    return (await rounds.wanted(peer, request_id))[1]


# States.


@pytest.mark.requirement("MRTR-19", "TRAP-96")
async def test_a_state_is_valid_for_its_own_request_only(dock, rounds):
    sail = rounds.asking("Which boat?")
    _, peer = await dock({"sail": sail, "row": sail})
    state = await suspended(peer, rounds)
    answers = {"q1": rounds.accepted(boat="reed")}
    for foreign in (
        rounds.call("row", 2, state, **answers),
        rounds.call("sail", 2, state, port="Oslo", **answers),
        rounds.call("sail", 2, f"{state}x", **answers),
        rounds.call("sail", 2, "parked.", **answers),
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
        principal="anna",
    )
    if "peer" in change:
        change = {"peer": attrs.evolve(peer, principal="berit")}
    first = {
        "id": 1,
        "method": METHODS["tools/call"],
        "params": CallToolParams(name="sail"),
        "peer": peer,
    }
    retry = IncomingRequest(**{**first, **change})
    assert (binding_of(IncomingRequest(**first)) == binding_of(retry)) is is_same


async def test_another_state_is_the_business_of_the_handler(dock, rounds):
    async def sail(handling):
        return handling.request.params.request_state

    _, peer = await dock({"sail": sail})
    await peer.send(rounds.call("sail", 1, "sealed"))
    assert rounds.text_of(await peer.receive()) == "sealed"


# The same retry again.


@pytest.mark.requirement("MRTR-23")
async def test_a_retry_that_comes_again_gets_the_same_reply_and_runs_nothing(
    dock, rounds, autojump_clock, small
):
    ran = []

    async def sail(handling):
        ran.append(await rounds.asking("Which boat?", "When?")(handling))
        return ran

    _, peer = await dock({"sail": sail}, limits=small(requests=RequestLimits(suspended_seconds=10)))
    first = await suspended(peer, rounds)
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
async def test_the_error_that_a_retry_got_is_kept_too(dock, rounds):
    async def sail(handling):
        await rounds.asking("Which boat?")(handling)
        raise ValueError

    _, peer = await dock({"sail": sail})
    state = await suspended(peer, rounds)
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
            self.state = await suspended(self.peer, rounds)

        async def retry(self, *request_ids):
            answers = {"q1": rounds.accepted()}
            await self.peer.send(
                *(rounds.call("sail", each, self.state, **answers) for each in request_ids)
            )
            return await self.peer.receive_available()

    return Sea()


@pytest.mark.requirement("MRTR-23")
async def test_a_retry_that_comes_again_before_the_reply_gets_it_as_well(sea, rounds):
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


async def test_too_many_of_them_are_rejected_naming_the_setting(sea, small):
    await sea.open(limits=small(requests=RequestLimits(queued_max=1)))
    (rejected,) = await sea.retry(2, 3, 4)
    assert (rejected["id"], rejected["error"]["code"]) == (4, -32603)
    assert "limits.requests.queued_max=1" in rejected["error"]["message"]


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


async def test_replies_are_kept_up_to_a_number(dock, rounds, small):
    _, peer = await dock(
        {"sail": rounds.asking("Which boat?")},
        limits=small(requests=RequestLimits(suspended_max=2)),
    )
    states = []
    for number in range(3):
        states.append(await suspended(peer, rounds, number))
        await peer.send(rounds.call("sail", "retry", states[-1], q1=rounds.accepted()))
        await peer.receive()
    await peer.send(*(rounds.call("sail", state, state) for state in states))
    answers = {answer["id"]: answer for answer in await peer.receive_many(3)}
    assert ["error" in answers[state] for state in states] == [True, False, False]


async def test_replies_are_kept_up_to_a_size(dock, rounds, small):
    limits = small(requests=RequestLimits(replies_kept_bytes_max=1))
    _, peer = await dock({"sail": rounds.asking("Which boat?", "When?")}, limits=limits)
    first = await suspended(peer, rounds)
    await peer.send(rounds.call("sail", 2, first, q1=rounds.accepted()))
    _, second = await rounds.wanted(peer, 2)
    await peer.send(rounds.call("sail", 3, first, q1=rounds.accepted()))
    assert (await peer.receive())["error"] == INVALID
    await peer.send(rounds.call("sail", 4, second, q2=rounds.accepted()))
    assert rounds.text_of(await peer.receive()) == "[{}, {}]"
    await peer.send(rounds.call("sail", 5, second, q2=rounds.accepted()))
    assert (await peer.receive())["error"] == INVALID
