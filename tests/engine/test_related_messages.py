"""Messages that belong to a request of the peer, and requests that are lost one by one."""

import json

import pytest
import trio
import trio.testing

from mcp_trio import ConnectionLost
from mcp_trio import types as s
from mcp_trio._testing.channels import DirectFakeChannel, FakeChannel
from mcp_trio.transports import Lost, RelatedMessage


class AddressedChannel(FakeChannel):
    is_addressed = True


class DirectAddressedChannel(DirectFakeChannel):
    is_addressed = True


KINDS = pytest.mark.parametrize("kind", [AddressedChannel, DirectAddressedChannel])


def addresses(channel):
    """What each frame is, to which request it belongs, and whether it answers that."""
    frames = []
    for frame in channel.sent:
        assert isinstance(frame, RelatedMessage)
        said = json.loads(frame)
        frames.append(
            (said.get("method", said.get("id")), frame.related_request_id, frame.is_answer)
        )
    return frames


@KINDS
async def test_the_answer_and_notifications_of_a_handler_belong_to_its_request(
    serve_fake, message, call, kind
):
    async def tell(handling):
        await handling.progress(1)
        params = s.LoggingMessageParams(level="error", data="said")
        await handling.notify("notifications/message", params)
        return "told"

    _session, channel = await serve_fake({"tell": tell}, channel=kind())
    channel.feed(message(**call("tell", "a", token="t")), message(**call("tell", 2, token="u")))
    await trio.testing.wait_all_tasks_blocked()
    said = addresses(channel)
    for id_ in ("a", 2):
        assert [each for each in said if each[1] == id_] == [
            ("notifications/progress", id_, False),
            ("notifications/message", id_, False),
            (id_, id_, True),
        ]
    assert len(said) == 6


@KINDS
async def test_a_rejection_belongs_to_what_is_rejected(serve_fake, message, kind):
    _session, channel = await serve_fake(channel=kind())
    channel.feed(message(id=1, method="nowhere"), message(id=2, method="ping"), b"{", b"[]")
    await trio.testing.wait_all_tasks_blocked()
    assert addresses(channel)[:2] == [(1, 1, True), (2, 2, True)]
    assert {(about, is_answer) for _, about, is_answer in addresses(channel)[2:]} <= {(None, True)}


@KINDS
async def test_a_question_belongs_to_the_request_whose_handler_asks(
    serve_fake, message, call, kind
):
    async def ask(handling):
        await handling.ask("roots/list")
        return "asked"

    _session, channel = await serve_fake({"ask": ask}, channel=kind())
    channel.feed(message(**call("ask", 5)))
    await trio.testing.wait_all_tasks_blocked()
    assert addresses(channel) == [("roots/list", 5, False)]
    question = json.loads(channel.sent[0])
    channel.feed(message(method="notifications/cancelled", params={"requestId": 5}))
    await trio.testing.wait_all_tasks_blocked()
    assert addresses(channel)[1:] == [("notifications/cancelled", 5, False)]
    assert json.loads(channel.sent[1])["params"]["requestId"] == question["id"]


@KINDS
async def test_unsolicited_messages_belong_to_no_request(serve_fake, kind):
    session, channel = await serve_fake(channel=kind())
    await session.notify("notifications/tools/list_changed")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(session.request, "roots/list")
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    await trio.testing.wait_all_tasks_blocked()
    assert [each[1:] for each in addresses(channel)] == [(None, False)] * 3


async def test_other_channels_get_plain_frames(serve_fake, message):
    _session, channel = await serve_fake()
    channel.feed(message(id=1, method="ping"))
    await trio.testing.wait_all_tasks_blocked()
    assert [type(frame) for frame in channel.sent] == [bytes]


# Requests that are lost by themselves.


@pytest.fixture
def ask(serve_fake):
    """Two questions on the wire; gives the session, its channel, and what has become of both."""

    async def ask(nursery, **options):
        session, channel = await serve_fake(channel=AddressedChannel(), **options)
        outcomes = {}

        async def one(name):
            try:
                outcomes[name] = await session.request("roots/list")
            except ConnectionLost as error:
                outcomes[name] = error

        for name in ("first", "second"):
            nursery.start_soon(one, name)
            await trio.testing.wait_all_tasks_blocked()
        ids = [json.loads(frame)["id"] for frame in channel.sent]
        return session, channel, outcomes, ids

    return ask


async def test_a_request_is_lost_alone(nursery, ask, message):
    session, channel, outcomes, ids = await ask(nursery)
    gone = ConnectionLost("the stream broke")
    channel.feed(Lost(ids[0], gone), message(id=ids[1], result={"roots": []}))
    await trio.testing.wait_all_tasks_blocked()
    assert isinstance(outcomes["first"], ConnectionLost)
    assert str(outcomes["first"]) == "the stream broke"
    assert outcomes["second"].roots == []
    assert session.cause is None
    channel.feed(message(id=1, method="ping"))
    await trio.testing.wait_all_tasks_blocked()
    assert json.loads(channel.sent[-1])["id"] == 1


async def test_an_answer_to_a_lost_request_counts_as_late(nursery, ask, message):
    session, channel, _outcomes, ids = await ask(nursery)
    channel.feed(Lost(ids[0], ConnectionLost("gone")))
    channel.feed(message(id=ids[0], result={"roots": []}))
    await trio.testing.wait_all_tasks_blocked()
    assert session.connection.counts["late answer"] == 1


async def test_a_loss_without_a_waiting_caller_is_counted(nursery, ask, message):
    session, channel, outcomes, ids = await ask(nursery)
    channel.feed(message(id=ids[0], result={"roots": []}))
    channel.feed(Lost(ids[0], ConnectionLost("gone")), Lost(999, ConnectionLost("gone")))
    await trio.testing.wait_all_tasks_blocked()
    assert outcomes["first"].roots == []
    assert session.connection.counts["late answer"] == 2
    assert session.cause is None


async def test_a_loss_is_recorded(nursery, ask, recording):
    _session, channel, _outcomes, ids = await ask(nursery, sequencer=recording)
    channel.feed(Lost(ids[0], ConnectionLost("gone")))
    await trio.testing.wait_all_tasks_blocked()
    assert "mark lost" in recording.story()


async def test_the_cancellation_of_a_lost_request_is_not_sent(nursery, ask):
    _session, channel, outcomes, ids = await ask(nursery)
    sent = len(channel.sent)
    channel.feed(*[Lost(id_, ConnectionLost("gone")) for id_ in ids])
    await trio.testing.wait_all_tasks_blocked()
    assert len(outcomes) == 2
    assert len(channel.sent) == sent
