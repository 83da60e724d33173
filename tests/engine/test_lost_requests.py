"""The outcome of a request whose connection was lost: not sent, or unknown."""

import pytest
import trio
import trio.testing

from mcp_trio import ConnectionLost
from mcp_trio._testing.channels import FakeChannel
from mcp_trio.errors import OutcomeUnknown


class Stuck(FakeChannel):
    """From the moment that it `is_stuck`, a `send` goes on until the connection breaks."""

    is_stuck = False

    async def send(self, frames):
        if not self.is_stuck:
            await super().send(frames)
            return
        await self.breaks.wait()
        raise ConnectionLost("it broke", exit_status=3)


class Telling(Stuck):
    """Says of each request itself what became of it."""

    reports_losses = True


async def outcomes_of(serve_fake, channel):
    """Of a request that was being sent, of one that waited, and of a late one."""
    outcomes = {}
    channel.breaks = trio.Event()
    session, channel = await serve_fake(channel=channel)
    channel.is_stuck = True

    async def ask(name):
        with pytest.raises(ConnectionLost) as caught:
            await session.request("ping")
        outcomes[name] = caught.value

    async with trio.open_nursery() as nursery:
        for name in ("sent", "waiting"):
            nursery.start_soon(ask, name)
            await trio.testing.wait_all_tasks_blocked()
        channel.breaks.set()
    await ask("late")
    return outcomes


async def test_the_outcome_is_unknown_only_for_requests_that_were_sent(serve_fake):
    outcomes = await outcomes_of(serve_fake, Stuck())
    assert {name: type(outcome) for name, outcome in outcomes.items()} == {
        "sent": OutcomeUnknown,
        "waiting": ConnectionLost,
        "late": ConnectionLost,
    }
    assert {outcome.reason for outcome in outcomes.values()} == {"it broke"}
    assert {outcome.exit_status for outcome in outcomes.values()} == {3}


async def test_the_outcomes_that_a_channel_reports_are_used(serve_fake):
    outcomes = await outcomes_of(serve_fake, Telling())
    assert {type(outcome) for outcome in outcomes.values()} == {ConnectionLost}
