"""Live replay: an answer that cannot be decoded is not awaited."""

import json

import attrs
import pytest
import trio

from mcp_trio.limits import DEFAULT_LIMITS, MessageLimits, RequestLimits
from mcp_trio.recording import run_inputs
from tests.replay.conversations import answer, call, result, told

LIMITS = attrs.evolve(
    DEFAULT_LIMITS, requests=RequestLimits(idle_seconds=10), messages=MessageLimits(bytes_max=5000)
)


@pytest.mark.parametrize(
    "bad", [b'"id":%d,"result":{"a":"\\ud83d"}', b'"id":%d,"result":[]', b'"result":7,"id":%d']
)
async def test_an_invalid_answer_is_reported_at_once(spoken, scripted, autojump_clock, bad):
    async def script(peer):
        asked = await peer.receive()
        await peer.send(b'{"jsonrpc":"2.0",%b}' % (bad % asked["id"]))
        await answer(peer)

    path = spoken(("C", call(1)), ("S", result(1)), ("C", call(2)), ("S", result(2)))
    report = await run_inputs(path, scripted(script), limits=LIMITS)
    assert "the answer is not " in str(report)
    assert "late" not in {kind for kind, *_ in told(report)}
    assert trio.current_time() < 1


async def test_an_answer_over_the_size_limit_is_reported_at_once(spoken, scripted, autojump_clock):
    async def script(peer):
        asked = await peer.receive()
        large = {"jsonrpc": "2.0", "id": asked["id"], "result": {"a": "x" * 9000}}
        await peer.send(json.dumps(large).encode())

    report = await run_inputs(
        spoken(("C", call(1)), ("S", result(1))), scripted(script), limits=LIMITS
    )
    assert "the answer is over limits.messages.bytes_max" in str(report)
    assert trio.current_time() < 1
