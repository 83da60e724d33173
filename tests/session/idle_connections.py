"""Idle connections, for tests of the poller."""

import socket
from contextvars import ContextVar

import trio
import trio.testing

from mcp_trio._transports.concurrency import IdleConnection, wait_idle

NAME = ContextVar("name", default="unnamed")


async def settled():
    """Let all tasks wait; twice, as Trio does not yet see the events that a poller has."""
    for _ in range(2):
        await trio.testing.wait_all_tasks_blocked(0.001)


def task():
    return trio.lowlevel.current_task()


def tasks_living():
    return trio.lowlevel.current_statistics().tasks_living


class Connection:
    """Rests, and does with each byte what `act` makes of it, up to the end."""

    def __init__(self, warm, act=None, name="unnamed", client=None):
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.resting = IdleConnection(self.ours.fileno(), client)
        self.warm, self.act, self.name = warm, act, name
        self.received, self.wakings = b"", 0
        self.tasks, self.names = [], []
        self.has_ended = False

    async def __call__(self):
        NAME.set(self.name)
        try:
            while data := await self.read():
                self.tasks.append(task())
                self.names.append(NAME.get())
                self.received += data
                if self.act is not None:
                    await self.act(data)
        except EOFError:
            pass
        finally:
            self.has_ended = True
            self.resting.end()
            self.ours.close()

    async def read(self):
        while True:
            await wait_idle(self.resting)
            self.wakings += 1
            try:
                return self.ours.recv(1)
            except BlockingIOError:
                continue

    def send(self, data):
        self.theirs.send(data)
