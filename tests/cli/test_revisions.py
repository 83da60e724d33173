"""`--revision` and `--revisions`: what is spoken by the commands that talk to a server."""

import json
import sys
from pathlib import Path

import pytest

from mcp_trio._protocol.versions import ALL_REVISIONS

SOME = Path(__file__).with_name("some_server.py")
MODERN = "2026-07-28"


@pytest.mark.parametrize("revision", ALL_REVISIONS)
@pytest.mark.parametrize(
    "words",
    [
        ("list", SOME, "tools"),
        ("call", SOME, "echo", "text=a"),
        ("read", SOME, "some://text"),
        ("prompt", SOME, "greet", "name=Ann"),
    ],
    ids=lambda words: words[0],
)
def test_a_command_speaks_the_revision_that_is_chosen(invoke, words, revision):
    shown = invoke(*words, "--json", "--revision", revision)
    assert shown.exit_code == 0, shown.output
    result = json.loads(shown.stdout)
    is_modern = result.get("resultType") == "complete"
    assert is_modern is (revision == MODERN and words[0] != "list")


def test_an_unknown_revision_is_refused(invoke):
    shown = invoke("list", SOME, "--revision", "1999-01-01")
    assert shown.exit_code == 2
    assert MODERN in shown.stderr


@pytest.mark.parametrize(
    ("revision", "status"), [("2025-06-18", 0), ("2025-11-25", 0), (MODERN, 1)]
)
def test_a_server_that_is_run_speaks_the_revisions_that_are_chosen(mcp_trio, revision, status):
    serve = (sys.executable, "-m", "mcp_trio", "run", SOME, "--revisions", "2025-06-18,2025-11-25")
    done = mcp_trio("call", "echo", "text=a", "--revision", revision, "--", *serve)
    assert done.returncode == status, done.stderr


def test_a_server_cannot_speak_what_nobody_knows(invoke):
    shown = invoke("run", SOME, "--revisions", "2025-06-18,other")
    assert shown.exit_code == 2
    assert "unknown revisions ['other']" in shown.stderr


# A recording, said again.


@pytest.fixture
def recorded(tmp_path, mcp_trio):
    path = tmp_path / "a.mcprec.jsonl"
    serve = (sys.executable, "-m", "mcp_trio", "run", SOME, "--record", path)
    done = mcp_trio("call", "echo", "text=a", "--revision", "2025-11-25", "--", *serve)
    assert done.returncode == 0, done.stderr
    return path


def test_a_recording_is_said_again_under_another_revision(recorded, invoke):
    driven = invoke("replay", "--inputs", recorded, SOME, "--revision", "2025-06-18")
    assert driven.exit_code == 0, driven.output
    assert "no differences" in driven.stdout
    refused = invoke("replay", "--inputs", recorded, SOME, "--revision", MODERN)
    assert refused.exit_code == 2
    assert f"cannot be said under {MODERN}, but under: 2025-11-25" in refused.stderr


def test_handlers_are_replayed_under_the_revision_that_was_recorded(recorded, invoke):
    refused = invoke("replay", recorded, SOME, "--revision", "2025-06-18")
    assert refused.exit_code == 2
    assert "--revision and --json go with --inputs" in refused.stderr
