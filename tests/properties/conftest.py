"""Sessions in memory and virtual time: recorded or not, and replayed."""

import json
from contextlib import suppress
from types import SimpleNamespace

import hypothesis
import pytest
import trio
import trio.testing
from memory_sessions import scripted_session

from mcp_trio._session.tasks import seeded_schedule
from mcp_trio.errors import ReplayDivergence
from mcp_trio.recording import body_bytes, open_recording, read_recording, replay

# A cancelled handler ends without a response; the client does not wait for one.
SILENCE_SECONDS = 5.0


def play(server, talk, *, record=None, seed=0):
    """Serve `await talk(peer, session)` in virtual time; return all messages to the peer."""

    async def run():
        async with scripted_session(server, record) as (peer, session):
            await talk(peer, session)
        return peer.received

    with seeded_schedule(seed):
        return trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


def call(number, tool, **arguments):
    params = {"name": tool, "arguments": arguments, "_meta": {"progressToken": number}}
    return {"id": number, "method": "tools/call", "params": params}


async def answer_all(peer, *numbers, roots_after_seconds=0.004):
    """Answer the server's requests, each after a while, until these requests were answered."""
    missing = set(numbers)

    async def answer(question):
        await trio.sleep(roots_after_seconds)
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await peer.send_result(question, {"roots": [{"uri": "file:///a"}]})

    async with trio.open_nursery() as nursery:
        with trio.move_on_after(SILENCE_SECONDS), suppress(EOFError, trio.ClosedResourceError):
            while missing:
                message = await peer.receive()
                if message.get("method") == "roots/list":
                    nursery.start_soon(answer, message)
                elif "method" not in message:
                    missing.discard(message["id"])


def replayed(path, server, *, seed=0, **options):
    """Replay under a seed, and return the report."""
    with seeded_schedule(seed):
        return replay(path, server, **options)


def divergence(path, server, **options):
    """Return the divergence of a replay, if any."""
    try:
        replayed(path, server, **options)
    except ReplayDivergence as divergence:
        return divergence
    return None


def records(path):
    return [json.loads(line) for line in open_recording(path)]


def sent(path):
    return [
        body_bytes(record)
        for record in read_recording(open_recording(path))
        if record.kind == "out"
    ]


@pytest.fixture(scope="session")
def stage():
    return SimpleNamespace(
        play=play,
        call=call,
        answer_all=answer_all,
        replayed=replayed,
        divergence=divergence,
        records=records,
        sent=sent,
    )


@pytest.fixture(scope="session")
def thoroughness():
    """The factor by which more examples are tried than in CI; above 1, some tests try all."""
    return hypothesis.settings().max_examples // hypothesis.settings.get_profile("ci").max_examples


@pytest.fixture
def count(record_property):
    """Report the number of examples that a test has tried, for `tools/proof/properties.py`."""
    return lambda examples: record_property("examples", examples)
