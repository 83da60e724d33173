"""Recordings of a theatre, made by real sessions."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from mcp_trio import Client, Context, Server, ToolError
from mcp_trio.errors import MCPError
from mcp_trio.recording import RecordOptions


def theatre(**options):
    server = Server("theatre", version="2.1", **options)

    @server.tool
    async def book(seat: str, password: str = "") -> str:
        if seat == "taken":
            raise ToolError("seat taken")
        return f"{seat} is booked"

    @server.tool
    async def pay(ctx: Context, seconds: float = 0.0) -> str:
        await ctx.sleep(seconds)
        return "paid"

    @server.resource("theatre://plan")
    async def plan() -> str:
        return "plan"

    return server


async def session(server, *calls, **options):
    async with Client(server, **options) as client:
        for name, arguments in calls:
            try:
                if name.startswith("theatre:"):
                    await client.read_resource(name)
                else:
                    await client.call_tool(name, arguments)
            except (ToolError, MCPError):
                pass


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    """Four recordings, not to be changed: a booking, a taken seat, a slow payment, a resource."""
    path = tmp_path_factory.mktemp("recordings")

    async def main():
        server = theatre(record=RecordOptions(path))
        await session(server, ("book", {"seat": "A1"}), ("book", {"seat": "B2"}))
        await session(server, ("book", {"seat": "taken"}), ("nothing", {}))
        await session(server, ("pay", {"seconds": 3}), ("book", {"seat": "gallery"}))
        await session(server, ("theatre://plan", {}))

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    # The names end in a number of the process; with these names, their order is that of the times.
    by_number = sorted(path.iterdir(), key=lambda file: int(file.name.split(".")[0].split("-")[-1]))
    for number, file in enumerate(by_number, 1):
        file.rename(path / f"theatre-{number}.mcprec.jsonl")
    return path


@pytest.fixture
def folder(recordings, tmp_path):
    """A folder with a copy of the recordings."""
    return shutil.copytree(recordings, tmp_path / "recordings")


class S3Server:
    """The process of a real S3 server, `rclone serve s3`; the folder `shop` in it is a bucket."""

    def __init__(self, folder):
        self.bucket = folder / "shop"
        self.bucket.mkdir(parents=True)
        self.address = "127.0.0.1:0"
        self.process = None

    def start(self):
        command = [Path(sys.executable).with_name("rclone"), "serve", "s3", self.bucket.parent]
        options = ["--addr", self.address, "--auth-key", "ada,red-tulip-97", "--config", ""]
        options += ["--dir-cache-time", "0"]  # the fixture `s3` removes files itself
        self.process = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if found := re.search(r"server on \[http://([0-9.:]+)/", line):
                self.address = found[1]
                return
        raise AssertionError("rclone ended before it served")

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()


@pytest.fixture(scope="module")
def s3_process(tmp_path_factory):
    server = S3Server(tmp_path_factory.mktemp("s3"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def s3(s3_process, monkeypatch):
    """A running S3 server with an empty bucket, and its credentials in the environment."""
    for path in s3_process.bucket.rglob("*.mcprec*"):
        path.unlink()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{s3_process.address}")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ada")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "red-tulip-97")
    return s3_process
