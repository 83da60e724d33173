"""Shared descriptors are used without any change that other processes could notice."""

import fcntl
import os
import pty
import socket

import pytest
import trio
import trio.testing

from mcp_trio._transports.descriptors import (
    Descriptor,
    PolledDescriptor,
    SocketDescriptor,
    open_descriptor,
)
from mcp_trio.transports import open_stdio_channel


def flags(fd):
    return fcntl.fcntl(fd, fcntl.F_GETFL)


def a_pipe():
    return os.pipe()


def a_socketpair():
    return tuple(end.detach() for end in socket.socketpair())


def a_terminal():
    master, slave = pty.openpty()
    return slave, master


@pytest.mark.parametrize("make", [a_pipe, a_socketpair, a_terminal])
async def test_flags_of_inherited_descriptions_are_not_changed(make):
    fd_in, there = make()
    back, fd_out = make()
    if make is a_terminal:
        back, fd_out = fd_out, back
    kept_in, kept_out = os.dup(fd_in), os.dup(fd_out)
    before = flags(kept_in), flags(kept_out)
    channel = open_stdio_channel(fd_in, fd_out)

    async def answer():
        await trio.testing.wait_all_tasks_blocked()
        os.write(there, b"{1}\n")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer)
        assert await channel.receive() == [b"{1}"]
    await channel.send([b"{2}"])
    assert os.read(back, 100).replace(b"\r", b"") == b"{2}\n"
    assert (flags(kept_in), flags(kept_out)) == before
    await channel.aclose()
    assert (flags(kept_in), flags(kept_out)) == before
    assert before[0] & os.O_NONBLOCK == 0
    for fd in (there, back, kept_in, kept_out):
        os.close(fd)


async def test_a_flag_set_by_another_process_does_no_harm():
    fd_in, there = os.pipe()
    os.set_blocking(fd_in, False)
    end = PolledDescriptor(fd=fd_in)
    with pytest.raises(BlockingIOError):
        end.read_nowait()
    os.write(there, b"x")
    assert await end.read() == b"x"
    os.close(there)
    assert await end.read() == b""
    end.close()


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (a_pipe, Descriptor),
        (a_socketpair, SocketDescriptor),
        (a_terminal, PolledDescriptor),
    ],
)
async def test_each_kind_of_file_has_its_descriptor_class(make, kind):
    fd, other = make()
    end = open_descriptor(fd)
    assert type(end) is kind
    end.close()
    end.close()
    os.close(other)


@pytest.mark.parametrize("name", ["a_file", "/dev/null"])
async def test_a_file_as_stdin_is_read_to_its_end(tmp_path, name):
    path = tmp_path / name
    if name == "a_file":
        path.write_bytes(b"{1}\n{2}")
    channel = open_stdio_channel(os.open(path, os.O_RDONLY), os.open(os.devnull, os.O_WRONLY))
    received = []
    while messages := await channel.receive():
        received += messages
    assert received == ([] if name == "/dev/null" else [b"{1}", b"{2}"])
    await channel.send([b"{3}"])
    await channel.aclose()


async def test_a_file_as_stdout_is_written(tmp_path):
    path = tmp_path / "out"
    channel = open_stdio_channel(
        os.open(os.devnull, os.O_RDONLY), os.open(path, os.O_WRONLY | os.O_CREAT)
    )
    messages = [b"x" * 100_000] * 10
    await channel.send(messages)
    await channel.aclose()
    assert path.read_bytes() == b"".join(message + b"\n" for message in messages)


async def test_a_full_disk_is_a_broken_channel():
    channel = open_stdio_channel(
        os.open(os.devnull, os.O_RDONLY), os.open("/dev/full", os.O_WRONLY)
    )
    with pytest.raises(trio.BrokenResourceError, match="No space left"):
        await channel.send([b"{}"])
    await channel.aclose()


async def test_a_pipe_is_reopened_with_its_own_access():
    """A pipe that is open both ways would end at once if its reader kept no writer."""
    read, write = os.pipe()
    both = os.open(f"/proc/self/fd/{read}", os.O_RDWR)
    os.close(read)
    os.close(write)
    end = open_descriptor(both)
    with pytest.raises(BlockingIOError):
        end.read_nowait()
    assert end.write_nowait(b"x") == 1
    assert await end.read() == b"x"
    end.close()


async def test_a_pipe_that_cannot_be_reopened_is_polled(tmp_path):
    """A named pipe without a reader is not opened for writing; the first write says why."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    read = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    write = os.open(path, os.O_WRONLY)
    os.close(read)
    end = open_descriptor(write)
    assert type(end) is PolledDescriptor
    with pytest.raises(BrokenPipeError):
        end.write_nowait(b"x")
    end.close()


async def test_bytes_written_before_the_writer_closed_are_read_before_the_end():
    read, write = os.pipe()
    os.write(write, b"x")
    os.close(write)
    end = open_descriptor(read)
    assert await end.read() == b"x"
    assert await end.read() == b""
    end.close()


@pytest.mark.parametrize("ours", [0, 1])
async def test_a_closed_terminal_is_at_its_end(ours):
    sides = pty.openpty()
    end = open_descriptor(sides[ours])
    os.close(sides[1 - ours])
    assert await end.read() == b""
    end.close()


async def test_another_error_of_a_polled_read_is_raised():
    _, write = pipe = os.pipe()
    end = PolledDescriptor(fd=write)
    os.close(pipe[0])
    with pytest.raises(OSError, match="Bad file descriptor"):
        end.read_nowait()
    end.close()


async def test_a_socket_closed_with_unread_bytes_is_at_its_end():
    ours, theirs = socket.socketpair()
    ours.send(b"unread")
    end = open_descriptor(ours.detach())
    theirs.close()
    assert await end.read() == b""
    end.close()


async def test_end_returns_the_rest_and_wakes_waiting_tasks():
    read, write = os.pipe()
    end = open_descriptor(read)
    async with trio.open_nursery() as nursery:
        results = []

        async def wait():
            results.append(await end.read())

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        end.end()
    assert results == [b""]
    os.write(write, b"late")
    assert await end.read() == b"late"
    assert await end.read() == b""
    os.close(write)
    end.close()
    end.end()


async def test_closing_wakes_waiting_tasks():
    read, write = os.pipe()
    end = open_descriptor(read)
    async with trio.open_nursery() as nursery:

        async def wait():
            with pytest.raises(trio.ClosedResourceError):
                await end.read()

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        end.close()
    os.close(write)
