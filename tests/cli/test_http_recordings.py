"""What the commands for recordings say of those of a server over HTTP, of both kinds."""

import json
import shutil

import pytest

from mcp_trio.examples.weather import server as weather
from tests.cli.conftest import serving

WEATHER = "mcp_trio.examples.weather"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The file of a session, and that of stateless requests, by their protocol versions."""
    from click.testing import CliRunner

    from mcp_trio._cli.commands import commands

    folder = tmp_path_factory.mktemp("recorded")
    with serving(weather, record=folder) as url:
        for protocol_version in ("2025-11-25", "2026-07-28"):
            words = ["call", url, "forecast", "city=Oslo", "--protocol-version", protocol_version]
            assert CliRunner().invoke(commands, words).exit_code == 0
    files = {}
    for file in folder.iterdir():
        named = next(line for line in file.read_text().splitlines() if "negotiated" in line)
        files[json.loads(named)["f"]["value"]["revision"]] = file
    return files


@pytest.fixture(params=["2025-11-25", "2026-07-28"])
def file(request, recorded):
    return recorded[request.param]


def test_the_timeline_says_over_what_it_was_recorded_and_under_which_protocol_version(
    invoke, recorded, file
):
    shown = invoke("show", file).stdout
    assert "role server, http, " in shown
    assert "answer tools/call forecast" in shown
    assert shown.splitlines()[-1].endswith(
        "protocol version 2025-11-25"
        if file == recorded["2025-11-25"]
        else "protocol version 2026-07-28"
    )


def test_it_is_whole_and_nothing_in_it_looks_like_a_secret(invoke, file):
    assert invoke("check", file).exit_code == 0
    assert invoke("scan", file).exit_code == 0


def test_it_can_be_exported(invoke, file):
    exported = [json.loads(line) for line in invoke("export", file).stdout.splitlines()]
    assert "tools/call" in [each.get("method") for each in exported]


def test_redacted_or_not_it_replays_strictly(invoke, file, tmp_path):
    redacted = tmp_path / "redacted.mcprec.jsonl"
    assert invoke("redact", file, "-o", redacted).exit_code == 0
    for each in (file, redacted):
        assert invoke("replay", each, WEATHER).stdout.startswith("the same, byte for byte")


def test_the_same_twice_is_no_difference_and_the_eras_are_some(invoke, recorded, file, tmp_path):
    copied = shutil.copy(file, tmp_path / "copied.mcprec.jsonl")
    assert invoke("diff", file, copied).exit_code == 0
    assert invoke("diff", *recorded.values()).exit_code == 1
