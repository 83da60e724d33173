"""Descriptors that threads read and write, as on Windows."""

import os
import subprocess
import sys
import textwrap
import time

import pytest
import trio
import trio.testing

from mcp_trio._transports.descriptors import ThreadDescriptor

pytestmark = pytest.mark.real_time


@pytest.fixture
def pipe():
    read, write = os.pipe()
    yield ThreadDescriptor(fd=read, chunk_bytes=8), ThreadDescriptor(fd=write, chunk_bytes=100_000)
    for fd in (read, write):
        with pytest.raises(OSError, match="Bad file"):  # each test closes both
            os.fstat(fd)


@pytest.mark.requirement("STDIO-18")
async def test_bytes_arrive_in_order_and_then_the_end(pipe):
    source, sink = pipe
    data = os.urandom(300_000)
    received = b""

    async def send():
        await sink.write(data)
        sink.close()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        source.chunk_bytes = 50_000
        while chunk := await source.read():
            received += chunk
    assert received == data
    assert await source.read() == b""  # the end stays
    source.close()


async def test_nothing_waits_in_a_call_that_must_not_wait(pipe):
    source, sink = pipe
    with pytest.raises(BlockingIOError):
        source.read_nowait()
    assert sink.write_nowait(b"x" * 200_000) == 100_000  # more than the pipe has room for
    with pytest.raises(BlockingIOError):
        sink.write_nowait(b"y")
    source.chunk_bytes = 100_000
    left = 100_000
    while left:
        left -= len(await source.read())
    await sink.wait_writable()
    await sink.wait_writable()  # at once: the thread is idle
    sink.close()
    source.close()


async def test_a_read_that_is_cancelled_loses_nothing(pipe):
    source, sink = pipe
    with trio.move_on_after(0.01) as scope:
        await source.read()
    assert scope.cancelled_caught
    await sink.write(b"kept")
    assert await source.read() == b"kept"
    sink.close()
    source.close()


async def test_an_interrupt_wakes_the_waiting_task_alone(pipe):
    source, sink = pipe
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def wait():
            with pytest.raises(trio.ClosedResourceError):
                await source.wait_readable()

        await trio.testing.wait_all_tasks_blocked()
        source.interrupt()
    await sink.write(b"later")
    assert await source.read() == b"later"
    sink.close()
    source.close()


async def test_a_descriptor_that_a_thread_reads_is_closed_by_that_thread(pipe):
    source, sink = pipe
    fd = source.fd
    with trio.move_on_after(0.01):
        await source.wait_readable()
    source.close()
    os.fstat(fd)  # still open
    sink.close()  # ends the read
    while True:
        try:
            os.fstat(fd)
        except OSError:
            break
        await trio.sleep(0.001)


@pytest.mark.requirement("STDIO-19")
def test_closing_waits_for_the_last_write():
    code = """
        import sys, trio
        from mcp_trio._transports.descriptors import ThreadDescriptor

        async def main():
            sink = ThreadDescriptor(fd=1, chunk_bytes=500_000)
            sink.write_nowait(b"x" * 500_000)
            sys.stderr.write("closing\\n")
            sys.stderr.flush()
            sink.close()

        trio.run(main)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr.readline() == b"closing\n"
        time.sleep(0.2)  # a process that does not wait has ended by then
        assert len(process.stdout.read()) == 500_000


async def test_a_descriptor_that_is_closed_during_a_write_is_written_first(pipe):
    source, sink = pipe
    sink.write_nowait(b"last")
    sink.close()
    assert await source.read() == b"last"
    assert await source.read() == b""
    source.close()


async def test_a_reader_that_has_gone_fails_the_next_write(pipe):
    source, sink = pipe
    source.close()
    with pytest.raises(BrokenPipeError):
        await sink.write(b"x" * 200_000)
    sink.close()


async def test_a_read_that_fails_raises_its_error_again():
    folder = os.open("/", os.O_RDONLY)
    source = ThreadDescriptor(fd=folder)
    for _ in range(2):
        with pytest.raises(IsADirectoryError):
            await source.read()
    source.close()


def test_a_thread_may_outlive_the_event_loop():
    read, write = os.pipe()
    source = ThreadDescriptor(fd=read)

    async def wait():
        with trio.move_on_after(0.01):
            await source.wait_readable()

    trio.run(wait)
    os.write(write, b"too late")
    os.close(write)
    source.close()
