"""The stdio proxy: lines, their envelopes, and signals."""

import os
import signal
from functools import partial

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from mcp_trio._proxy.journal import LosslessLineSplitter
from mcp_trio._proxy.stdio import until_signal

ODD_BYTES = st.lists(st.sampled_from([b"\n", b"\r", b"\0", b"a", b"\xff", b"{}"])).map(b"".join)


def cut(chunks, line_bytes_max=100):
    cutter = LosslessLineSplitter(line_bytes_max=line_bytes_max)
    lines = [line for chunk in chunks for line in cutter.feed(chunk)]
    return [*lines, *cutter.finish()]


@pytest.mark.slow
@given(st.lists(ODD_BYTES), st.integers(1, 8))
def test_joined_lines_are_the_stream_however_it_is_chunked(chunks, line_bytes_max):
    lines = cut(chunks, line_bytes_max)
    forwarded = b"".join(
        line + (b"\n" if envelope.get("lf", True) else b"") for line, envelope in lines
    )
    assert forwarded == b"".join(chunks)
    assert lines == cut([b"".join(chunks)], line_bytes_max)
    assert all(len(line) <= line_bytes_max and b"\n" not in line for line, _ in lines)


def test_blank_lines_and_ends_of_lines_are_kept():
    assert cut([b"a\r\n\n \n"]) == [(b"a\r", {}), (b"", {}), (b" ", {})]


def test_a_last_line_without_a_line_end_is_marked():
    assert cut([b"a\nb"]) == [(b"a", {}), (b"b", {"lf": False})]
    assert cut([b"a\n"]) == [(b"a", {})]


def test_a_line_of_the_greatest_length_is_one():
    assert cut([b"1234\n"], 4) == [(b"1234", {})]
    assert cut([b"12", b"34"], 4) == [(b"1234", {"lf": False})]


def test_a_longer_line_comes_in_parts_and_the_next_one_whole():
    assert cut([b"123456789\nab\n"], 4) == [
        (b"1234", {"part": 1, "lf": False}),
        (b"5678", {"part": 2, "lf": False}),
        (b"9", {"part": 3}),
        (b"ab", {}),
    ]


# Signals to a proxy whose server does not exit.


async def test_without_a_signal_the_status_is_the_proxys():
    async def serve():
        return 7

    assert await until_signal(serve, shut=list) == 7


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_closes_and_then_cancels_the_proxy(number):
    said = []

    async def serve():
        os.kill(os.getpid(), number)
        try:
            await trio.sleep_forever()
        finally:
            said.append("cancelled")

    with trio.fail_after(5):
        assert await until_signal(serve, shut=partial(said.append, "shut")) == 128 + number
    assert said == ["shut", "cancelled"]


async def test_a_second_signal_ends_the_process_at_once(monkeypatch):
    shut, exited = trio.Event(), trio.Event()
    statuses = []

    def leave(status):
        statuses.append(status)
        exited.set()

    async def serve():
        os.kill(os.getpid(), signal.SIGTERM)
        with trio.CancelScope(shield=True):
            await shut.wait()
            os.kill(os.getpid(), signal.SIGINT)
            await exited.wait()

    monkeypatch.setattr(os, "_exit", leave)
    with trio.fail_after(5):
        await until_signal(serve, shut=shut.set)
    assert statuses == [128 + signal.SIGINT]


async def test_an_error_is_raised_without_a_group():
    async def serve():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)

    async def fail():
        raise OSError(98, "in use")

    with pytest.raises(OSError, match="in use"):
        await until_signal(serve, shut=list)
