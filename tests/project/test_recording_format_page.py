"""docs/reference/recording-format.md describes what the recorder writes: held to the golden files."""

import hashlib
import json
import re
from pathlib import Path

import pytest

from mcp_trio._journal.records import KINDS, OpenBody, Record

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/recording-format.md").read_text(encoding="utf-8")
GOLDEN = sorted((ROOT / "recordings").glob("*.mcprec.jsonl"))


def names_in_table(heading):
    """The names in the first column of the table below a heading."""
    table = PAGE.partition(f"{heading}\n")[2].partition("\n\n#")[0]
    cells = re.findall(r"^\| (`[^|]*`) \|", table, re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def records_of(path):
    for line in path.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n"):
            yield line, json.loads(line)


def test_the_keys_of_a_record_are_listed_in_their_order():
    assert names_in_table("## Records") == list(Record.__struct_encode_fields__)


def test_every_kind_of_record_is_listed_once():
    assert names_in_table("## Kinds") == [
        kind for kind in names_in_table("## Kinds") if kind in KINDS
    ]
    assert sorted(names_in_table("## Kinds")) == sorted(KINDS)


def test_every_member_of_the_open_record_is_listed():
    assert sorted(names_in_table("### The open record")) == sorted(OpenBody.__struct_fields__)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.name.partition(".")[0])
def test_a_golden_recording_has_only_what_the_page_lists(path):
    marks, facts = names_in_table("### Marks"), names_in_table("### Envelopes")
    for _, record in records_of(path):
        if record["k"] == "mark" and "f" in record:
            assert record["f"]["name"] in marks
        assert set(record.get("x", {})) <= {fact.partition(":")[0] for fact in facts}


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.name.partition(".")[0])
def test_the_digests_of_a_golden_recording_are_computed_as_the_page_says(path):
    covered, is_later_segment = hashlib.sha256(), False
    for line, record in records_of(path):
        number, kind = record["n"], record["k"]
        is_later_segment |= kind == "open" and number > 0
        if kind == "gap":
            covered = hashlib.sha256()
        elif "h" in record:
            if not is_later_segment:  # its first digest covers lines of the segment before
                assert record["h"] == covered.hexdigest()[:16]
            is_later_segment = False
            covered = hashlib.sha256(record["h"].encode())
        else:
            assert number == 0 or (number % 64 and kind != "end")
        covered.update(line)
