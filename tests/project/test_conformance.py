"""The official suite is scored more strictly than it scores itself."""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import peers
import pytest

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[2] / "tools" / "conformance"
WHEN = "2026-01-02T03-04-05-678Z"

LISTING = """\
Required for 2025-11-25 (3 scenarios, frozen; run at the 2025-11-25 wire):

Server scenarios (test against a server):
  - server-initialize
  - ping

Client scenarios (test against a client):
  - auth/basic-cimd

Run and reported, but never scored:
  extension (1):
    - auth/dpop [client]
  pending (1):
    - server-sse-polling [server]
"""


@pytest.fixture
def scores(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("scores")


@pytest.fixture
def scored(scores, tmp_path):
    """The score of a scenario with these checks, by id and status."""

    def scored(*checks, name="ping", leg="server"):
        prefix = "server-" if leg == "server" else ""
        folder = tmp_path / f"{prefix}{name}-{WHEN}"
        folder.mkdir(parents=True)
        written = [
            {"id": id_, "status": status, "description": "it is so"} for id_, status in checks
        ]
        (folder / "checks.json").write_text(json.dumps(written))
        return scores.scores_of(tmp_path, leg)[name]

    return scored


@pytest.fixture
def watch(tmp_path):
    """Runs a command as a client of the suite, and tells its status and what was noted."""

    def watch(program, scenario="auth/x"):
        watched = FOLDER / "client_run.py"
        command = [sys.executable, str(watched), str(tmp_path), sys.executable, "-c", program]
        environment = {"MCP_CONFORMANCE_SCENARIO": scenario}
        done = subprocess.run([*command, "URL"], env=environment, check=False, timeout=30)
        return done.returncode, json.loads((tmp_path / "auth.x.json").read_text())

    return watch


def test_the_sets_are_read_as_the_suite_lists_them(scores):
    found = [(each.name, each.leg, each.is_scored) for each in scores.scenarios_in(LISTING)]
    assert found == [
        ("server-initialize", "server", True),
        ("ping", "server", True),
        ("auth/basic-cimd", "client", True),
        ("auth/dpop", "client", False),
        ("server-sse-polling", "server", False),
    ]


@pytest.mark.parametrize(
    ("name", "leg"), [("server-initialize", "server"), ("ping", "server"), ("auth/x", "client")]
)
def test_a_scenario_that_passes_has_no_faults(scores, scored, name, leg):
    score = scored(("a", "SUCCESS"), ("b", "INFO"), ("c", "SKIPPED"), name=name, leg=leg)
    assert (score.passed, scores.failures_of(score)) == (1, [])


@pytest.mark.parametrize("status", ["FAILURE", "WARNING"])
def test_a_warning_is_a_fault_too(scores, scored, status):
    score = scored(("a", "SUCCESS"), ("b", status))
    assert scores.failures_of(score) == ["b: it is so"]


def test_a_scenario_of_which_nothing_was_tested_does_not_pass(scores, scored):
    score = scored(("wire-schema-valid", "SUCCESS"), ("a", "SKIPPED"), ("b", "INFO"))
    assert scores.failures_of(score) == ["the scenario has no checks of its own"]
    assert scores.failures_of(None) == ["the scenario did not run"]


def test_how_a_client_ended_counts(scores, tmp_path):
    notes = [
        {"scenario": "good", "status": 0},
        {"scenario": "bad", "status": 3},
        {"scenario": "slow"},
    ]
    for note in notes:
        (tmp_path / f"{note['scenario']}.json").write_text(json.dumps(note))
    plain = {name: scores.Score(passed=1) for name in ("good", "bad", "slow", "lost")}
    failures = {
        name: scores.failures_of(score)
        for name, score in scores.with_exit_statuses(plain, tmp_path).items()
    }
    assert failures == {
        "good": [],
        "bad": ["the client exited with status 3"],
        "slow": ["the client timed out"],
        "lost": ["the client timed out"],
    }


def test_only_what_has_a_reason_need_not_pass(scores):
    names = ("auth/x", "tasks-x", "ping", "caching")
    assert {name for name in names if reason(scores, name)} == {"tasks-x"}


COMPLETE_LISTING = """\
Server scenarios (test against a server):
  - ping [2025-06-18,2025-11-25]
  - sep-2640-skills-manifest [extension]

Client scenarios (test against a client):
  - auth/old [2025-03-26]

Authorization server scenarios (test against an authorization server):
  - authorization-code-grant [2025-03-26,2026-07-28]
"""


def test_the_complete_list_is_read_and_scenarios_that_are_not_run_have_a_reason(scores):
    found = [(each.name, each.tested) for each in scores.all_scenarios(COMPLETE_LISTING)]
    assert found == [
        ("ping", "server"),
        ("sep-2640-skills-manifest", "server"),
        ("auth/old", "client"),
        ("authorization-code-grant", "authorization server"),
    ]
    assert [name for name, _ in found if scores.reason_not_run(name) is None] == [
        "ping",
        "auth/old",
    ]


def reason(scores, name):
    return scores.Scenario(name=name, leg="client", is_scored=True).reason


@pytest.mark.real_time
@pytest.mark.parametrize("status", [0, 7])
def test_a_watched_client_ends_as_it_does(watch, status):
    ended, note = watch(f"import sys; assert sys.argv[1] == 'URL'; sys.exit({status})")
    assert (ended, note) == (status, {"scenario": "auth/x", "status": status})


def test_the_suite_is_pinned_and_its_lock_names_no_registry():
    suite = peers.NodeEnvironment(name="conformance", folder=FOLDER / "npm", node=peers.NODE)
    lock = json.loads((FOLDER / "npm" / "package-lock.json").read_text())
    ((name, version),) = suite.pins().items()
    assert re.fullmatch(r"[0-9.]+(-alpha\.[0-9]+)?", version)
    assert lock["packages"][f"node_modules/{name}"]["version"] == version
    assert not [name for name, package in lock["packages"].items() if "resolved" in package]
