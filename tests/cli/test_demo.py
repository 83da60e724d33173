"""`mcp-trio demo`: a session over stdio, recorded by both sides, replayed and shown."""

import json
import os
import re
import resource
from pathlib import Path

import msgspec
import pytest

from mcp_trio._cli.serve import next_steps
from mcp_trio._cli.timeline import read_rows
from mcp_trio.examples import weather

pytestmark = pytest.mark.usefixtures("measured_processes")

EXAMPLE = "mcp_trio.examples.weather"


def rows_of(file):
    rows, *_ = read_rows(file)
    return rows


def example_with(tmp_path, old, new):
    """A copy of the example with something changed."""
    code = Path(weather.__file__).read_text(encoding="utf-8")
    assert old in code
    copy = tmp_path / "weather.py"
    copy.write_text(code.replace(old, new, 1), encoding="utf-8")
    return copy


def test_the_demo_records_replays_and_shows_within_seconds(mcp_trio):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = mcp_trio("demo")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime - before.ru_utime < 6  # 1 s, but coverage may be measured
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "the same, byte for byte: " in done.stdout
    assert re.search(r"cxl +tools/call forecast", done.stdout)
    assert done.stdout.endswith("What to try next:\n  mcp-trio demo --keep recordings\n")


def test_the_demo_replays_without_docstrings(mcp_trio):
    done = mcp_trio("demo", env=os.environ | {"PYTHONOPTIMIZE": "2"})
    assert done.returncode == 0, done.stdout
    assert "the same, byte for byte: " in done.stdout


@pytest.mark.slow
def test_the_demo_records_every_kind_of_request(kept):
    rows, counts, _ = read_rows(kept.server)
    assert (counts.damage, counts.cancelled, counts.errors) == (0, 1, 1)
    seen = {row.what for row in rows}
    assert seen >= {
        "answer tools/call forecast",
        "answer resources/read weather://Bergen/now",
        "answer prompts/get plan_trip",
        "cancel tools/call forecast",
        "notifications/progress 3/3",
        "notifications/message info: asked 4 stations",
    }
    answered = [row.what for row in rows].index("answer tools/call warmest")
    before = [row for row in rows[:answered] if row.kind == "in"]
    assert [row.what.split()[0] for row in before].count("tools/call") == 4


@pytest.mark.slow
def test_both_sides_record_the_same_messages(kept):
    def messages(file, *kinds):
        records = map(json.loads, file.read_text(encoding="utf-8").splitlines())
        return [record["f"] for record in records if record["k"] in kinds]

    assert messages(kept.server, "in") == messages(kept.client, "out")
    assert messages(kept.server, "out") == messages(kept.client, "in")
    assert '"role":"server"' in kept.server.read_text(encoding="utf-8")
    assert '"role":"client"' in kept.client.read_text(encoding="utf-8")


@pytest.mark.slow
def test_every_command_that_the_demo_suggests_works(kept, mcp_trio, tmp_path):
    proposed = kept.stdout.split("What to try next:\n")[1].splitlines()
    assert len(proposed) == 4
    for line in proposed:
        for command in line.split("#")[0].split("&&"):
            program, *arguments = command.split()
            if program == "cp":
                (tmp_path / "weather.py").write_bytes(Path(arguments[0]).read_bytes())
            else:
                done = mcp_trio(*arguments, cwd=tmp_path)
                assert done.returncode == 0, (command, done.stderr)


def test_commands_for_a_folder_with_a_space_in_its_name_are_quoted():
    assert any("'my folder/weather" in command for command in next_steps("my folder"))


@pytest.mark.parametrize(
    ("folder", "text"), [("file", "is a file"), ("file/x", "cannot create .*Not a directory")]
)
def test_a_folder_that_cannot_be_created_is_named(invoke, tmp_path, folder, text):
    (tmp_path / "file").touch()
    done = invoke("demo", "--keep", tmp_path / folder)
    assert done.exit_code != 0
    assert re.search(text, done.output)


@pytest.mark.slow
def test_the_kept_recording_replays(kept, mcp_trio):
    done = mcp_trio("replay", kept.server, EXAMPLE)
    assert done.returncode == 0, done.stderr
    records = len(kept.server.read_bytes().splitlines())
    played = re.match(r"the same, byte for byte: (\d+) records, 7 requests handled\n", done.stdout)
    assert records - 2 <= int(played[1]) <= records
    assert re.search(
        r"^recorded in \d\.\d{3} s, replayed in \d+\.\d ms$", done.stdout, re.MULTILINE
    )


@pytest.mark.parametrize(
    ("old", "new", "affected"),
    [
        ("Look at the forecast first", "Look out", "answer prompts/get plan_trip"),
        (
            "ctx.report_progress(day, days)",
            "ctx.report_progress(day, 9)",
            "notifications/progress 1/",
        ),
        ("asked {len(best)} stations", "asked", "notifications/message info: asked 4 stations"),
        ('mime_type="application/json"', 'mime_type="text/json"', "answer resources/read"),
        ("return coming", "return coming[1:]", "answer tools/call forecast"),
    ],
)
def test_an_edited_handler_diverges_at_the_first_affected_record(
    *, kept, invoke, tmp_path, old, new, affected
):
    expected = next(
        row.record
        for row in rows_of(kept.server)
        if row.kind == "out" and row.outcome is None and row.what.startswith(affected)
    )
    done = invoke("replay", kept.server, example_with(tmp_path, old, new))
    assert done.exit_code == 1
    assert done.stdout == ""
    assert done.stderr.startswith(f"replay diverged at record {expected} of ")
    assert "weather.py:" in done.stderr


def test_one_changed_byte_of_a_sent_message_diverges_at_that_record(kept, invoke, tmp_path):
    lines = kept.server.read_bytes().splitlines(keepends=True)
    changed = next(
        row.record for row in rows_of(kept.server) if row.what == "answer tools/call warmest"
    )
    assert b"degrees" in lines[changed]
    lines[changed] = lines[changed].replace(b"degrees", b"degreez")
    copy = tmp_path / "changed.mcprec.jsonl"
    copy.write_bytes(b"".join(lines))
    done = invoke("replay", copy, EXAMPLE)
    assert done.exit_code == 2
    assert re.search(r"the recording is damaged: line \d+: .*--allow-damaged", done.stderr)
    done = invoke("replay", copy, EXAMPLE, "--allow-damaged")
    assert done.exit_code == 1
    assert done.stderr.startswith(f"replay diverged at record {changed} of ")
    assert invoke("check", copy).exit_code == 1


def test_a_cut_recording_replays_up_to_the_cut(kept, invoke, tmp_path):
    copy = tmp_path / "cut.mcprec.jsonl"
    copy.write_bytes(kept.server.read_bytes()[:-300])
    done = invoke("replay", copy, EXAMPLE)
    assert done.exit_code == 0, done.stderr
    assert ", up to where the recording was cut\n" in done.stdout
    assert re.search(r"^note: line \d+: ", done.stdout, re.MULTILINE)


def test_a_recording_of_a_client_cannot_be_replayed(kept, invoke):
    done = invoke("replay", kept.client, EXAMPLE)
    assert done.exit_code == 2
    assert "this recording is of role 'client'" in done.stderr


def test_a_missing_recording_or_target_exits_with_2(kept, invoke, tmp_path):
    assert invoke("replay", tmp_path / "missing.mcprec.jsonl", EXAMPLE).exit_code == 2
    broken = invoke("replay", kept.server, tmp_path / "missing.py")
    assert broken.exit_code == 2
    assert "no such file" in broken.stderr


def test_both_sides_recordings_can_be_checked_and_shown(kept, invoke):
    for file in (kept.server, kept.client):
        assert invoke("check", file).stdout.startswith(f"{file}: complete\n")
        shown = invoke("show", "--json", file).stdout.splitlines()
        answers = [row for row in map(msgspec.json.decode, shown) if "took_ms" in row]
        assert len(answers) >= 8
