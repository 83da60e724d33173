"""`--protocol-version` and `--protocol-versions`: what is spoken by the commands that talk to a server."""

import json
import sys
from pathlib import Path

import pytest

from mcp_trio._protocol.versions import ALL_PROTOCOL_VERSIONS

SOME = Path(__file__).with_name("some_server.py")
STATELESS = "2026-07-28"


@pytest.mark.parametrize("protocol_version", ALL_PROTOCOL_VERSIONS)
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
def test_a_command_speaks_the_protocol_version_that_is_chosen(invoke, words, protocol_version):
    shown = invoke(*words, "--json", "--protocol-version", protocol_version)
    assert shown.exit_code == 0, shown.output
    result = json.loads(shown.stdout)
    is_stateless = result.get("resultType") == "complete"
    assert is_stateless is (protocol_version == STATELESS and words[0] != "list")


def test_an_unknown_protocol_version_is_rejected(invoke):
    shown = invoke("list", SOME, "--protocol-version", "1999-01-01")
    assert shown.exit_code == 2
    assert STATELESS in shown.stderr


@pytest.mark.parametrize(
    ("protocol_version", "status"), [("2025-06-18", 0), ("2025-11-25", 0), (STATELESS, 1)]
)
def test_a_server_that_is_run_speaks_the_protocol_versions_that_are_chosen(
    mcp_trio, protocol_version, status
):
    serve = (
        sys.executable,
        "-m",
        "mcp_trio",
        "run",
        SOME,
        "--protocol-versions",
        "2025-06-18,2025-11-25",
    )
    done = mcp_trio("call", "echo", "text=a", "--protocol-version", protocol_version, "--", *serve)
    assert done.returncode == status, done.stderr


def test_a_server_cannot_speak_what_nobody_knows(invoke):
    shown = invoke("run", SOME, "--protocol-versions", "2025-06-18,other")
    assert shown.exit_code == 2
    assert "unknown protocol versions ['other']" in shown.stderr


# A recording, said again.


@pytest.fixture
def recorded(tmp_path, mcp_trio):
    path = tmp_path / "a.mcprec.jsonl"
    serve = (sys.executable, "-m", "mcp_trio", "run", SOME, "--record", path)
    done = mcp_trio("call", "echo", "text=a", "--protocol-version", "2025-11-25", "--", *serve)
    assert done.returncode == 0, done.stderr
    return path


def test_a_recording_is_said_again_under_another_protocol_version(recorded, invoke):
    driven = invoke("replay", "--inputs", recorded, SOME, "--protocol-version", "2025-06-18")
    assert driven.exit_code == 0, driven.output
    assert "no differences" in driven.stdout
    rejected = invoke("replay", "--inputs", recorded, SOME, "--protocol-version", STATELESS)
    assert rejected.exit_code == 2
    assert (
        f"cannot be sent under {STATELESS}; possible protocol versions: 2025-11-25"
        in rejected.stderr
    )


def test_handlers_are_replayed_under_the_protocol_version_that_was_recorded(recorded, invoke):
    rejected = invoke("replay", recorded, SOME, "--protocol-version", "2025-06-18")
    assert rejected.exit_code == 2
    assert "--protocol-version and --json need --inputs" in rejected.stderr
