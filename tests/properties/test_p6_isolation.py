"""Property 6: a replay performs no external I/O and takes no recorded time."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mcp_trio import Context, Server

WITNESS = Path(__file__).with_name("witness.py")
OUTSIDE = {"socket", "thread", "process", "sleep", "clock"}
BLOCKED = OUTSIDE - {"clock"}
REPLAY_SECONDS_MAX = 0.5

pytestmark = pytest.mark.slow


def witnessed(folder, tool):
    """Return what a lane touched, found by a process that watches itself."""
    command = [sys.executable, str(WITNESS), str(folder), tool]
    done = subprocess.run(command, capture_output=True, check=True)
    return {what: set(seen) for what, seen in json.loads(done.stdout).items()}


@pytest.mark.real_time
def test_a_replay_performs_no_effects(tmp_path, count):
    seen = witnessed(tmp_path, "by_effects")
    assert seen["recording"] == OUTSIDE
    assert seen["replay"] == set()
    count(1)


@pytest.mark.real_time
def test_direct_external_io_of_a_handler_is_blocked(tmp_path):
    seen = witnessed(tmp_path, "by_itself")
    assert seen["recording"] == OUTSIDE
    assert seen["replay"] & BLOCKED == set()
    assert "blocked" in seen["replay"]


@pytest.mark.real_time
def test_without_the_watch_external_io_is_not_blocked(tmp_path):
    assert witnessed(tmp_path, "by_itself")["replay without the block"] >= BLOCKED


# Time.

HOUR_SECONDS = 3600.0


def sleeper():
    server = Server("sleeper")

    @server.tool
    async def sleep(*, ctx: Context) -> str:
        for _ in range(60):
            await ctx.sleep(HOUR_SECONDS / 60)
            await ctx.info("another minute")
        return f"{ctx.monotonic()}"

    return server


def test_an_hour_of_sleeps_replays_at_once(stage, tmp_path):
    async def talk(peer, _session):
        await peer.handshake()
        await peer.send(stage.call(1, "sleep"))
        while "result" not in await peer.receive():
            pass

    path = tmp_path / "hour.mcprec.jsonl"
    stage.play(sleeper(), talk, record=path)
    begin = time.process_time()
    report = stage.replayed(path, sleeper())
    assert time.process_time() - begin < REPLAY_SECONDS_MAX
    assert report.recorded_seconds >= HOUR_SECONDS
