"""What a server that is killed leaves behind; `tools/kill_recorders.py` does the killing, many times."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

KILL = Path(__file__).parents[2] / "tools" / "kill_recorders.py"
SECONDS_MAX = 400

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.timeout(SECONDS_MAX),
    pytest.mark.slow,
]


def kill(folder, *options):
    """The report of a run in a process of its own, which forks: a test's process must not."""
    done = subprocess.run(
        [sys.executable, KILL, "--json", *options],
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        check=False,
    )
    assert not list(folder.iterdir()), "recordings were left behind"
    print(done.stdout.decode())
    return done.returncode, json.loads(done.stdout)


def test_a_killed_server_has_recorded_every_message_that_its_peer_received(tmp_path):
    status, report = kill(tmp_path, "--kills", "500")
    assert (status, report["missing"], report["damaged"]) == (0, 0, 0)
    assert report["kills"] >= 500
    assert report["in_flight_min"] >= 16
    assert report["with_frames_before"] >= 0.9 * report["kills"]


def test_the_same_kills_find_lost_records_if_messages_are_sent_before_them(tmp_path):
    status, report = kill(tmp_path, "--kills", "60", "--no-write-ahead")
    assert status == 1
    assert report["kills_with_missing"] > 0


@pytest.mark.parametrize("options", [(), ("--zst",)], ids=["plain", "compressed"])
def test_a_recording_in_several_files_loses_no_record_either(tmp_path, options):
    status, report = kill(tmp_path, "--kills", "40", "--segment-kib", "2", *options)
    assert (status, report["missing"], report["damaged"]) == (0, 0, 0)
    assert report["files_max"] > 1
