"""What was posted: taken at once where a session takes it, and else in order by who reads."""

import pytest
import trio
import trio.testing

from mcp_trio._transports.inboxes import RequestInbox


async def test_what_is_put_is_taken_in_the_same_step():
    inbox, taken = RequestInbox(), []
    inbox.deliver_to(taken.append)
    inbox.put(b"a")
    inbox.put(b"b")
    assert taken == [[b"a"], [b"b"]]
    inbox.end()
    assert taken[2:] == [[]]


@pytest.mark.parametrize("has_ended", [False, True])
async def test_what_came_before_is_taken_first(has_ended):
    inbox, taken = RequestInbox(), []
    inbox.put(b"a")
    inbox.put(b"b")
    if has_ended:
        inbox.end()
    inbox.deliver_to(lambda batch: taken.append(list(batch)))
    assert taken == [[b"a", b"b"], *([[]] if has_ended else [])]


async def test_nothing_is_taken_of_one_that_is_closed_but_the_end():
    inbox, taken = RequestInbox(), []
    inbox.deliver_to(taken.append)
    inbox.close()
    inbox.put(b"a")
    assert taken == [[]]


async def test_take_returns_all_items_and_is_woken(nursery):
    inbox, read = RequestInbox(), []

    async def receive():
        while batch := await inbox.receive():
            read.append(list(batch))

    inbox.put(b"a")
    inbox.put(b"b")
    nursery.start_soon(receive)
    await trio.testing.wait_all_tasks_blocked()
    inbox.put(b"c")
    await trio.testing.wait_all_tasks_blocked()
    inbox.end()
    await trio.testing.wait_all_tasks_blocked()
    assert read == [[b"a", b"b"], [b"c"]]
    inbox.close()
    with pytest.raises(trio.ClosedResourceError):
        await inbox.receive()
