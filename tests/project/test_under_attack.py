"""What is seen of a server's process from outside, and of the client that means well."""

import os
import sys
import time

import pytest
import trio
import under_attack
from under_attack import Held


@pytest.fixture
def looks():
    """`looks(*held)` sees these, one after the other, and the last of them for ever."""

    def looks(*held):
        seen = [*held]

        async def look():
            await trio.lowlevel.checkpoint()
            return Held(*(seen.pop(0) if len(seen) > 1 else seen[0]))

        return look

    return looks


@pytest.mark.parametrize(
    ("held", "after", "seconds"),
    [
        ([(5, 9)], (5, 9), 0),
        ([(4, 8)], (4, 8), 0),
        ([(7, 9), (7, 9), (5, 9)], (5, 9), 2),
        ([(5, 12), (5, 11), (5, 9)], (5, 9), 2),
        ([(7, 9), (5, 12), (5, 12)], (5, 9), 1),  # each has been at rest once
        ([(6, 9)], (6, 9), 150),
        ([(5, 10)], (5, 10), 150),
    ],
)
async def test_what_is_left_is_what_does_not_go_away(looks, held, after, seconds, autojump_clock):
    begin = trio.current_time()
    assert await under_attack.settled(looks(*held), Held(5, 9), 3.0) == Held(*after)
    looked = (trio.current_time() - begin) / under_attack.LOOK_SECONDS
    assert looked == pytest.approx(seconds)


async def test_a_meter_counts_what_a_process_takes(nursery, autojump_clock):
    meter = under_attack.Meter(os.getpid())
    nursery.start_soon(meter.look)
    large = bytearray(os.urandom(32 << 20))
    await trio.sleep(1)
    size = len(large)
    del large
    peak_kib, left_kib = meter.rss_kib()
    assert peak_kib >= 0.9 * size / 1024
    assert left_kib <= peak_kib - 0.5 * size / 1024
    assert meter.cpu_ms() > 0
    nursery.cancel_scope.cancel()


def test_descriptors_are_counted():
    before = under_attack.descriptors_of(os.getpid())
    ends = os.pipe()
    assert under_attack.descriptors_of(os.getpid()) == before + 2
    for end in ends:
        os.close(end)


CALLS = """
import sys, time
for said in ("0.25", "", "0.5"):
    print(time.monotonic(), said, flush=True)
time.sleep(60)
"""


@pytest.mark.real_time
async def test_a_neighbour_tells_of_its_calls_until_it_is_silenced(nursery, monkeypatch):
    monkeypatch.setattr(under_attack, "_CALL_SECONDS_MAX", 0.1)
    begin = time.monotonic()
    with under_attack.neighbour_of([sys.executable, "-c", CALLS]) as neighbour:
        nursery.start_soon(neighbour.listen)
        with trio.fail_after(20):
            while len(calls := await neighbour.calls(begin)) < 3:
                pass
        assert calls == [0.25, None, 0.5]
        assert await neighbour.calls(time.monotonic()) == []
    assert neighbour.process.returncode is not None
