"""The proofs of replay, as small as CI can bear."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from proof import transports
from proof.properties import PROPERTIES
from proof.transports import ENVELOPE, TRANSPORTS, differences, record, records_of

PROOF = Path(__file__).parents[2] / "tools" / "proof"

# Each starts dozens of processes, beside whatever else the machine does.
pytestmark = [pytest.mark.real_time, pytest.mark.slow, pytest.mark.timeout(300)]


def run(script, *options):
    command = [sys.executable, str(PROOF / script), *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=290)


@pytest.mark.parametrize(("kind", "programs"), [("blocks", 10), ("calls", 25), ("lifespans", 10)])
def test_generated_programs_replay_to_the_same_bytes_in_every_process(kind, programs):
    done = run("replays.py", kind, "--programs", programs, "--processes", 3)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{3 * programs} replays: {3 * programs} identical, 0 differ" in done.stdout


def test_mutants_of_servers_are_found_where_their_own_recordings_differ():
    done = run("mutated_servers.py", "--mutants", 60)
    assert done.returncode == 0, done.stdout + done.stderr
    all_servers = done.stdout.splitlines()[-1].split()
    assert all_servers[:2] == ["all", "60"]
    assert int(all_servers[2]) >= 40, done.stdout


def test_each_source_outside_is_captured_named_or_blocked():
    done = run("outside.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SILENT" not in done.stdout


def test_each_strategy_finds_each_bug_of_three_servers():
    done = run("sweeps.py", "--schedules", 30)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("clean: ") == 9


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """One recording of a generated program, seed 7."""
    folder = tmp_path_factory.mktemp("recorded")
    options = ("--first", 7, "--programs", 1, "--processes", 0, "--keep", folder)
    done = run("replays.py", "calls", *options)
    assert done.returncode == 0, done.stderr
    return folder


def failures_again(folder):
    done = run("replays.py", "calls", "--again", folder)
    failures = json.loads(done.stdout)["failures"]
    assert done.returncode == bool(failures)
    return failures


def test_a_recording_is_replayed_alone(recorded):
    assert failures_again(recorded) == {}


def test_another_program_is_not_the_same(recorded, tmp_path):
    for name in (".mcprec.jsonl", ".json"):
        shutil.copy(recorded / f"7{name}", tmp_path / f"8{name}")
    assert "replay diverged" in failures_again(tmp_path)["8"]


def test_another_state_of_memory_in_the_end_is_not_the_same(recorded, tmp_path):
    shutil.copytree(recorded, tmp_path, dirs_exist_ok=True)
    (tmp_path / "7.json").write_text('"[-1, [], []]"', encoding="utf-8")
    assert "the program's memory" in failures_again(tmp_path)["7"]


# The comparison of recordings over all transports, in this process.


@pytest.mark.parametrize("protocol_version", transports.PROTOCOL_VERSIONS)
def test_over_all_transports_the_same_is_recorded_but_for_the_envelope(capsys, protocol_version):
    assert transports.main(["--protocol-version", protocol_version]) == 0
    assert "WRONG" not in capsys.readouterr().out


@pytest.mark.parametrize("field", ["shut $.cause", "open $.transport"])
def test_any_other_difference_is_printed_and_fails(monkeypatch, capsys, field):
    monkeypatch.setattr(
        transports, "TRANSPORTS", {name: TRANSPORTS[name] for name in ("memory", "HTTP")}
    )
    monkeypatch.setattr(
        transports, "ENVELOPE", {each: ENVELOPE[each] for each in ENVELOPE if each != field}
    )
    assert transports.main(["--protocol-version", "2025-11-25"]) == 1
    assert f"WRONG {field}" in " ".join(capsys.readouterr().out.split())


def test_an_allowed_difference_that_never_occurs_is_printed(monkeypatch):
    row = transports.Row("TCP", 1, tuple(ENVELOPE), "yes")
    assert transports.unused_fields([row]) == []
    monkeypatch.setattr(transports, "ENVELOPE", {**ENVELOPE, "out $.result": ("x", "y")})
    assert transports.unused_fields([row]) == ["out $.result"]


def test_every_kind_of_difference_has_its_name(tmp_path):
    protocol_version = "2025-11-25"
    left = records_of(trio.run(record, TRANSPORTS["memory"], protocol_version, tmp_path))
    assert list(differences(left, left)) == []
    assert list(differences(left, left[:-1])) == ["more records"]
    swapped = [left[0], left[2], left[1], *left[3:]]
    found = set(differences(left, swapped))
    assert {"in became out", "out became in"} <= found


def test_a_replay_that_differs_is_printed(tmp_path):
    protocol_version = "2025-11-25"
    path = trio.run(record, TRANSPORTS["memory"], protocol_version, tmp_path)
    path.write_bytes(path.read_bytes().replace(b"gauge 2", b"gauge 3"))
    assert transports.replayed(path, protocol_version) != "yes"


# The table of `tools/proof/properties.py` names existing tests, and a control for each.

TESTS = Path(__file__).parents[1]
DEFINED = re.compile(r"^(?:async )?def (test_\w+)", re.MULTILINE)


def defined_in(path):
    return set(DEFINED.findall(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", PROPERTIES)
def test_every_property_has_tests_that_exist_and_a_control(name):
    proofs = PROPERTIES[name]
    assert {proof.is_control for proof in proofs} == {True, False}
    for proof in proofs:
        file, _, test = proof.test.partition("::")
        assert test in defined_in(TESTS / file), proof.test


def test_every_property_test_is_in_the_table():
    here = {
        f"properties/{path.name}::{test}"
        for path in TESTS.glob("properties/test_p*.py")
        for test in defined_in(path)
    }
    assert here <= {proof.test for proofs in PROPERTIES.values() for proof in proofs}


def test_the_table_has_ten_properties():
    assert [name.split()[0] for name in PROPERTIES] == [str(number) for number in range(1, 11)]
