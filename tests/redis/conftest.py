"""A real Redis, started for each test on a free port with a folder of its own."""

import signal

import pytest
import trio
from coredis import Redis
from server_processes import RedisProcess

from mcp_trio.redis import RedisStores


class RedisServer(RedisProcess):
    """A Redis that keeps no data when it is stopped, for the event loop of a test."""

    async def start(self):
        await trio.to_thread.run_sync(super().start)

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def client(self):
        return Redis.from_url(self.url)

    def pause(self):
        self.signal(signal.SIGSTOP)

    def go_on(self):
        self.signal(signal.SIGCONT)


@pytest.fixture
async def redis(tmp_path):
    server = RedisServer(str(tmp_path))
    await server.start()
    yield server
    server.kill()


@pytest.fixture
def stores_of(redis):
    """Return the stores of one more instance."""

    def stores_of(lease_seconds=1.5):
        return RedisStores(redis.url, prefix="harbour", lease_seconds=lease_seconds)

    return stores_of
