"""Background tasks of an application, beside the requests of the peer."""

import math

import pytest
import trio
import trio.testing

from mcp_trio._session.journal import Lane


@pytest.fixture
def serve_beside(nursery, make_session, handshake):
    """Start a server that does something by itself; returns it and a peer before its handshake."""
    from mcp_trio.testing import WirePeer
    from mcp_trio.transports import memory_pair

    async def start(beside, **options):
        ours, theirs = memory_pair()
        session = make_session(ours, **options)
        session.application.beside = beside
        await nursery.start(session.run)
        return session, WirePeer(theirs)

    return start


async def test_an_application_acts_when_the_client_is_initialized(serve_beside):
    order = []

    async def beside(session):
        order.append("begun")
        await session.initialized.wait()
        order.append("initialized")
        await session.notify("notifications/tools/list_changed")

    session, peer = await serve_beside(beside)
    await trio.testing.wait_all_tasks_blocked()
    assert order == ["begun"]
    await peer.handshake()
    assert (await peer.receive())["method"] == "notifications/tools/list_changed"
    assert session.negotiated.is_set()


async def test_a_client_is_initialized_by_its_notification(dial):
    session, _ = await dial()
    assert session.initialized.is_set()


async def test_it_is_cancelled_when_the_session_ends_and_may_still_write_its_record(
    serve_beside, recording
):
    async def beside(session):
        await session.initialized.wait()
        while trio.current_effective_deadline() > -math.inf:  # as long as nobody cancels it
            await trio.lowlevel.cancel_shielded_checkpoint()
        await session.send_queue.ready(Lane("beside"))
        raise AssertionError

    session, peer = await serve_beside(beside, sequencer=recording)
    await peer.handshake()
    await session.initialized.wait()
    session.shut("closed")
    await session.ended.wait()
    assert recording.story(since=5) == ["shut", "mark close 1", "cxl beside 1", "end"]


async def test_its_failure_is_logged_and_ends_nothing(serve_beside, logged):
    async def beside(session):
        raise OSError("aground")

    session, peer = await serve_beside(beside)
    await peer.handshake()
    assert "a background task of the application failed" in logged()
    await peer.send_request("ping", id=1)
    assert (await peer.receive())["id"] == 1
    assert session.cause is None
