"""A killed proxy has recorded every line that a peer received."""

import os
import random
import select
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest

from mcp_trio.recording import Damage, body_bytes, open_recording, read_recording

KILLS = 8
SECONDS_MAX = 30

pytestmark = pytest.mark.slow

# Answers each line, keeps what it read, and says in the end that it has.
SERVER = """
import os, sys
kept = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
while data := os.read(0, 65536):
    os.write(kept, data)
    try: os.write(1, data.replace(b'method', b'answer'))
    except BrokenPipeError: break
os.rename(sys.argv[1], sys.argv[1] + '.done')
"""


def lines_of(stream):
    """The whole lines; a host sends no line twice."""
    return set(stream.split(b"\n")[:-1])


def talk_until_killed(process, random_source):
    """Keeps the proxy busy in both directions, and kills it; what the host received."""
    stdin, stdout = process.stdin.fileno(), process.stdout.fileno()
    os.set_blocking(stdin, False)
    os.set_blocking(stdout, False)
    received, kill_at = [], None
    while kill_at is None or time.monotonic() < kill_at:
        readable, writable, _ = select.select([stdout], [stdin], [], 0.01)
        if writable:
            line = b'{"jsonrpc":"2.0","method":"%x"}\n' % random_source.getrandbits(64)
            os.write(stdin, line)
        if readable:
            received.append(os.read(stdout, 65_536))
            kill_at = kill_at or time.monotonic() + random_source.uniform(0, 0.1)
    process.kill()
    process.wait()
    while chunk := os.read(stdout, 65_536):
        received.append(chunk)
    process.stdin.close()
    process.stdout.close()
    return b"".join(received)


def recorded_lines(path):
    lines, damage = {"in": set(), "out": set()}, Counter()
    for item in read_recording(open_recording(path)):
        if isinstance(item, Damage):
            damage[item.kind] += 1
        elif item.kind in lines:
            lines[item.kind].add(body_bytes(item))
    return lines, damage


@pytest.mark.real_time
@pytest.mark.parametrize("seed", range(KILLS))
def test_a_killed_proxy_lost_no_line_that_either_peer_received(tmp_path, python, seed):
    path, received = tmp_path / "killed.mcprec.jsonl", tmp_path / "received"
    process = subprocess.Popen(
        [sys.executable, "-m", "mcp_trio", "record", "-o", path, "--", *python(SERVER, received)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    )
    received = talk_until_killed(process, random.Random(seed))
    give_up = time.monotonic() + SECONDS_MAX
    while not (done := tmp_path / "received.done").exists():
        assert time.monotonic() < give_up
        time.sleep(0.01)
    lines, damage = recorded_lines(path)
    assert process.returncode == -signal.SIGKILL
    assert lines_of(received)
    assert lines_of(received) <= lines["out"]
    assert lines_of(done.read_bytes()) <= lines["in"]
    assert set(damage) <= {"torn"}
