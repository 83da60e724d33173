"""The golden recordings: the tables, the page, the files and the sessions say the same."""

import base64
import json
import re

import bad_recordings
import check_recordings
import golden_recordings
import golden_sessions
import pytest
import recording_secrets
from recording_changes import Change

from mcp_trio._journal.records import FORMAT_VERSION
from mcp_trio._recorder.files import SUFFIX

pytestmark = pytest.mark.slow

NAMED = re.compile(r"^\| `([\w-]+)` \|", re.MULTILINE)


def found(line, **names):
    return [leak.what for leak in recording_secrets.leaks([line.encode()], names)]


def test_every_recording_is_in_the_tables_and_on_the_page():
    page = (golden_recordings.RECORDINGS / "README.md").read_text(encoding="utf-8")
    good, _, bad = page.partition("`refused/`")
    files = {*golden_recordings.RECORDINGS.glob(f"*{SUFFIX}*")}
    assert files == {file for row in golden_recordings.GOLDEN.values() for file in row.files}
    assert sorted(golden_recordings.GOLDEN) == sorted(NAMED.findall(good))
    bad_files = [path.name.removesuffix(SUFFIX) for path in golden_recordings.REJECTED.iterdir()]
    names = sorted(row.name for row in bad_recordings.TABLE)
    assert sorted(bad_files) == names == sorted(NAMED.findall(bad))


def test_every_recording_with_peers_has_a_session():
    with_peers = {row.name for row in golden_recordings.GOLDEN.values() if row.needs_peers}
    sides = {client for client, _ in golden_recordings.SIDES}
    assert with_peers - sides == set(golden_sessions.SESSIONS)


@pytest.mark.parametrize("row", bad_recordings.TABLE, ids=lambda row: row.name)
def test_bad_recordings_are_made_of_the_good_ones_as_they_are_now(row):
    assert row.path.read_bytes() == row.made()


LEAKS = {
    "private key": ("-----BEGIN RSA PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-----"),
    "JSON Web Token": ("eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.c2lnbmVkIQ",),
    "AI service key": ("sk-" + "a" * 24,),
    "payment service key": ("rk_test_" + "a" * 16,),
    "GitHub token": ("ghp_" + "a" * 36, "github_pat_" + "a" * 36),
    "GitLab token": ("glpat-" + "a" * 20,),
    "AWS key": ("AKIA" + "A1" * 8,),
    "Google key": ("AIza" + "x" * 35, "ya29." + "x" * 20),
    "Slack token": ("xoxb-" + "1" * 12,),
    "package registry token": ("npm_" + "a" * 36, "pypi-" + "a" * 50, "hf_" + "a" * 30),
    "a home folder": ("file:///home/ada/x", "/Users/ada", "/root/x", r"C:\\Users\\ada"),
    "a bearer token": ("Authorization: Bearer abcdefghijklmnop",),
    "a password in a URL": ("postgres://ada:lovelace@db/x",),
    "a secret by its name": ('{"db_password": "lovelace"}', r"{\"apiKey\":\"lovelace\"}"),
    "an e-mail address": ("ada@engines.org",),
}


def test_every_pattern_is_tried():
    assert LEAKS.keys() == recording_secrets.PATTERNS.keys()


@pytest.mark.parametrize("what", LEAKS)
def test_secrets_and_names_are_found(what):
    for text in LEAKS[what]:
        assert found(f"before {text} after") == [what]


def test_values_that_are_no_secrets_are_not_found():
    line = '"progressToken":"progress 1","method":"roots/list","uri":"file:///tmp/x" ada@example.org /rootless'
    assert found(line) == []


def test_secrets_are_found_in_frames_in_base64():
    frame = base64.b64encode(b"\xff sk-" + b"a" * 24).decode()
    assert found(json.dumps({"n": 1, "b": frame})) == ["AI service key"]


@pytest.mark.parametrize("row", golden_recordings.GOLDEN.values(), ids=lambda row: row.name)
def test_every_file_is_looked_into_compressed_or_not(row):
    for number, file in enumerate(row.files, 1):
        body = json.loads(next(recording_secrets.lines_of(file)))["f"]
        assert (body["format_version"], body.get("segment")) == (FORMAT_VERSION, number)


def test_names_of_a_machine_are_found_as_words():
    assert found("made on boole by ada", host="boole") == ["host"]
    assert found("a boolean", host="boole") == []


def test_names_that_say_nothing_are_not_looked_for(monkeypatch):
    monkeypatch.setattr(recording_secrets.getpass, "getuser", lambda: "root")
    monkeypatch.setattr(recording_secrets.socket, "gethostname", lambda: "boole.example.org")
    names = recording_secrets.names_of_this_machine()
    assert "root" not in names.values()
    assert {"boole", "boole.example.org", str(golden_recordings.HOME)} <= set(names.values())


def test_changes_of_long_recordings_are_spread():
    changes = [Change("out", str(n), [], range(0), frozenset()) for n in range(100)]
    changes += [Change("in", str(n), [], range(0), frozenset()) for n in range(3)]
    tried = list(check_recordings.spread(changes))
    assert [change.what for change in tried if change.kind == "in"] == ["0", "1", "2"]
    outs = [int(change.what) for change in tried if change.kind == "out"]
    assert len(outs) <= check_recordings.CHANGES_MAX
    assert outs[0] == 0
    assert outs[-1] > 90
