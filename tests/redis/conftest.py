"""A real Redis, started for each test on a free port with a folder of its own."""

import shutil
import signal
import socket
import subprocess

import attrs
import pytest
import trio
from coredis import Redis

from mcp_trio.redis import RedisStores

START_SECONDS = 20
POLL_SECONDS = 0.05


def free_port():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


@attrs.define(eq=False)
class RedisServer:
    """The process of a Redis server; it keeps no data when it is stopped."""

    folder: str
    port: int = attrs.field(factory=free_port)
    process: subprocess.Popen | None = None

    @property
    def url(self):
        return f"redis://127.0.0.1:{self.port}/0"

    async def start(self):
        command = shutil.which("redis-server") or shutil.which("valkey-server")
        assert command, "these tests need redis-server: apt-get install redis-server"
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", self.folder]
        options += ["--save", "", "--appendonly", "no"]
        self.process = subprocess.Popen([command, *options], stdout=subprocess.DEVNULL)
        with trio.fail_after(START_SECONDS):
            while True:
                try:
                    stream = await trio.open_tcp_stream("127.0.0.1", self.port)
                except OSError:
                    await trio.sleep(POLL_SECONDS)
                    continue
                await stream.aclose()
                return

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def client(self):
        return Redis.from_url(self.url)

    def pause(self):
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)


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
