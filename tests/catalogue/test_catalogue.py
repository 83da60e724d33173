"""The catalogue finds recordings, and is a cache of the files."""

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from mcp_trio._catalogue.catalogue import CATALOGUE, is_being_written
from mcp_trio._catalogue.statistics import html_page
from mcp_trio._journal.records import OpenBody, RecordEncoder, encode_body
from mcp_trio._recorder.files import FileSink
from mcp_trio.errors import RecordingError
from mcp_trio.recording import Catalogue, RecordOptions, statistics
from tests.catalogue.conftest import session, theatre

BOOKING, TAKEN, SLOW, RESOURCE = range(4)


@pytest.fixture
def catalogue(folder):
    with Catalogue(folder) as opened:
        opened.index(arguments=True)
        yield opened


def found(catalogue, query):
    """The numbers of the recordings that a query finds, in the order in which they were made."""
    numbers = {row.file: number for number, row in enumerate(catalogue.find(oldest_first=True))}
    return [numbers[row.file] for row in catalogue.find(query, oldest_first=True)]


@pytest.mark.requirement("TOOL-40")
@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        ("", [BOOKING, TAKEN, SLOW, RESOURCE]),
        ("tool:book", [BOOKING, TAKEN, SLOW]),
        ("tool:book tool:pay", [BOOKING, TAKEN, SLOW]),
        ("tool:p*", [SLOW]),
        ("tool:book slower:2s", []),
        ("tool:pay slower:2500ms", [SLOW]),
        ("slower:1m", []),
        ("error:any", [TAKEN]),
        ("error:tool", [TAKEN]),
        ("error:protocol", [TAKEN]),
        ("error:timeout", []),
        ("-error:any", [BOOKING, SLOW, RESOURCE]),
        ("-tool:book -tool:pay", [RESOURCE]),
        ("method:resources/read", [RESOURCE]),
        ("name:theatre://*", [RESOURCE]),
        ('text:"seat taken"', [TAKEN]),
        ('"seat taken"', [TAKEN]),
        ('"taken seat"', []),
        ("gallery", [SLOW]),
        ("effect:ctx.sleep", [SLOW]),
        ("is:complete", [BOOKING, TAKEN, SLOW, RESOURCE]),
        ("is:cut", []),
        ("is:lossy", []),
        ("client:mcp_*", [BOOKING, TAKEN, SLOW, RESOURCE]),
        ("client:other", []),
        ("name:theatre://pl*", [RESOURCE]),
        ("name:theatr?://pl*", []),
        ("name:theatre://[p]l*", []),
        (
            "server:theatre version:2.1 role:server transport:memory",
            [BOOKING, TAKEN, SLOW, RESOURCE],
        ),
        ("before:2100-01-01", [BOOKING, TAKEN, SLOW, RESOURCE]),
        ("after:2100-01-01", []),
        ("after:2026-01-01T10:00+01:00", [BOOKING, TAKEN, SLOW, RESOURCE]),
        ("after:2h", [BOOKING, TAKEN, SLOW, RESOURCE]),
        ("before:0.5d", []),
        ("protocol:2026-*", [BOOKING, TAKEN, SLOW, RESOURCE]),
        ("protocol:2025-*", []),
        ("larger:1m", []),
        ("larger:10", [BOOKING, TAKEN, SLOW, RESOURCE]),
        ("user:ada", []),
        ("kept:error", []),
    ],
)
def test_a_query_finds_recordings(catalogue, query, numbers):
    assert found(catalogue, query) == numbers
    assert catalogue.count(query) == len(numbers)


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("tol:book", "unknown key 'tol'; did you mean 'tool'?: choose from tool"),
        ("error:timeot", "did you mean 'timeout'?"),
        ("slower:2", "not a duration: '2'; write 500ms"),
        ("after:monday", "not a time: 'monday'; write 2026-11-01"),
        ("larger:big", "not a size: 'big'"),
        ("is:odd", "unknown state 'odd'"),
        ('tool:"book', "cannot read the query at 'tool:\"book'"),
    ],
)
def test_a_wrong_query_says_what_is_wrong(catalogue, query, error):
    with pytest.raises(ValueError) as caught:
        catalogue.find(query)
    assert error in str(caught.value)


def test_a_row_has_the_facts_about_a_session(catalogue):
    (row,) = catalogue.find("error:any")
    assert (row.server, row.version, row.role, row.transport) == (
        "theatre",
        "2.1",
        "server",
        "memory",
    )
    assert (row.client, row.protocol_version) == ("mcp_trio", "2026-07-28")
    assert row.tools == {"book": 1, "nothing": 1}
    assert row.error_kinds == {"tool": 1, "protocol": 1}
    assert (row.calls, row.errors, row.complete, row.loss) == (3, 2, True, False)
    assert datetime.now(UTC) - row.started < timedelta(minutes=1)
    (slow,) = catalogue.find("tool:pay")
    assert (row.effects, slow.effects, slow.masked) == ({}, {"ctx.sleep": 1}, {})


def test_the_newest_is_first_and_the_rows_can_be_limited(catalogue):
    newest = catalogue.find(limit=1)
    assert [row.file for row in newest] == [catalogue.find(oldest_first=True)[-1].file]


def test_only_files_that_have_changed_are_read_again(folder):
    with Catalogue(folder) as catalogue:
        assert catalogue.index().added == 4
        assert catalogue.index().added == 0
        assert catalogue.index(again=True).added == 4
        first, second, *_ = sorted(folder.glob("*.jsonl"))
        first.unlink()
        with second.open("ab") as file:
            file.write(b"\n")
        report = catalogue.index()
        assert (report.added, report.removed, report.recordings) == (1, 1, 3)


async def test_a_session_that_goes_on_is_found_and_read_again_later(tmp_path):
    from mcp_trio import Client

    server = theatre(record=RecordOptions(tmp_path))
    with Catalogue(tmp_path) as catalogue:
        async with Client(server) as client:
            await client.call_tool("book", {"seat": "A1"})
            assert catalogue.index().added == 1
            assert catalogue.count("is:cut tool:book") == 1
            assert catalogue.in_order_of_removal() == []
        assert catalogue.index().added == 1
        assert catalogue.count("is:complete") == 1


@pytest.mark.requirement("TOOL-40")
async def test_a_quick_update_finds_what_is_new_gone_or_was_incomplete(tmp_path, folder):
    from mcp_trio import Client

    first, second, third, _ = sorted(folder.glob("*.jsonl"))
    half = folder / "copied.mcprec.jsonl"
    whole = second.read_bytes()
    half.write_bytes(whole[: len(whole) // 2])
    odd = folder / "odd.mcprec.jsonl"
    odd.write_bytes(b"odd")
    inner = folder / "inner"
    inner.mkdir()
    with Catalogue(folder) as catalogue:
        server = theatre(record=RecordOptions(folder, segment_bytes_max=800))
        async with Client(server) as client:
            await client.call_tool("book", {"seat": "A1"})
            assert catalogue.index(only_new=True).added == 6
            assert catalogue.index(only_new=True).added == 1
            for _ in range(5):
                await client.call_tool("book", {"seat": "A1"})
        half.write_bytes(whole)
        odd.write_bytes(whole)
        third.rename(inner / third.name)
        first.unlink()
        report = catalogue.index(only_new=True)
        # Those that were incomplete or unreadable, the one that was open, and the moved one.
        assert (report.added, report.removed, report.recordings) == (4, 2, 6)
        assert catalogue.count("is:cut") == 0
        (row,) = [row for row in catalogue.find() if row.calls >= 6]
        assert row.size > 800
        unchanged = catalogue.index(only_new=True)
        assert (unchanged.added, unchanged.removed) == (0, 0)
        # A complete recording that is replaced is only found by looking at all files.
        second.write_bytes(whole + b"\n")
        assert catalogue.index(only_new=True).added == 0
        assert catalogue.index().added == 1
        assert catalogue.index(only_new=True, again=True).added == 6


async def test_a_recording_of_several_files_is_one(tmp_path):
    options = RecordOptions(tmp_path, segment_bytes_max=500)
    await session(theatre(record=options), *[("book", {"seat": "A1"})] * 5)
    assert len(list(tmp_path.glob("*.jsonl"))) > 2
    with Catalogue(tmp_path) as catalogue:
        assert catalogue.index().recordings == 1
        (row,) = catalogue.find()
        assert row.tools == {"book": 5}
        assert row.size == sum(path.stat().st_size for path in tmp_path.glob("*.jsonl"))


def test_a_file_that_is_no_recording_is_reported_once(folder):
    (folder / "odd.mcprec.jsonl").write_text("odd\n")
    with Catalogue(folder) as catalogue:
        assert list(catalogue.index().unreadable) == ["odd.mcprec.jsonl"]
        assert catalogue.index().unreadable == {}
        assert catalogue.count() == 4


NUMBER, DATE = 2, "2026-11-01T00:00:00+00:00"


def changed_recording(path, *, number=NUMBER, time=NUMBER, started=DATE, count=NUMBER):
    """Write a recording of one call that has these values."""
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "book"}}
    opening = {"format_version": 2, "transport": "t", "role": "server", "name": "x", "version": "0"}
    records = [
        {"n": 0, "k": "open", "t": 0, "f": opening | {"started": started}},
        {"n": 1, "k": "in", "t": 1, "f": call},
        {"n": number, "k": "in", "t": time, "f": call | {"id": 2}},
        {"n": 3, "k": "end", "t": 4, "f": {"counts": {"masked: pin": count}}},
    ]
    path.write_text("".join(f"{json.dumps(each)}\n" for each in records))


@pytest.mark.parametrize(
    ("values", "calls"),
    [
        *(({"number": number}, 1) for number in (2**63, -(2**63) - 1)),
        *(({"time": time}, 1) for time in (2**63, 10**400)),
        *(({"time": time}, 2) for time in (2**63 - 1, -(2**63))),
        *(
            ({"started": started, "time": time}, 2)
            for started in (
                *("0001-01-01T00:00:00+12:00", "9999-12-31T23:59:59-12:00"),
                *("0001-01-01", "9999-12-31", "0002-01-01T00Z", "9999-01-01T00Z"),
            )
            for time in (2**63 - 1, -(2**63))
        ),
        *(({"count": count}, 0) for count in (2**63, -1)),
    ],
)
def test_extreme_dates_and_numbers_do_not_break_the_catalogue(folder, values, calls):
    changed_recording(folder / "odd.mcprec.jsonl", **values)
    with Catalogue(folder) as catalogue:
        assert list(catalogue.index().unreadable) == ([] if calls else ["odd.mcprec.jsonl"])
        found = catalogue.find("file:odd*")
        assert [row.calls for row in found] == [calls] * bool(calls)
        assert all(row.started.astimezone(timezone(timedelta(hours=14))) for row in found)
        statistics_found = statistics(catalogue)
        assert statistics_found.recordings == 4 + bool(calls)
        assert "<svg" in html_page(statistics_found, "all")


@pytest.mark.skipif(sys.platform != "linux", reason="file names are bytes on Linux alone")
def test_a_file_whose_name_is_not_utf8_is_reported(folder):
    (folder / os.fsdecode(b"\xff.mcprec.jsonl")).write_bytes(b"")
    with Catalogue(folder) as catalogue:
        report = catalogue.index()
        assert report.unreadable == {r"\udcff.mcprec.jsonl": "its name is not UTF-8; rename it"}
        assert len(catalogue.find()) == report.added == 4


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (r'"started":"[^"]*"', '"started":"0001-01-01T00:00:00+14:00"'),
        (r'"started":"[^"]*"', '"started":"9999-12-31T23:59:59.999999+00:00"'),
        (r'"counts":{}', f'"counts":{{"masked: pin":{10**19}}}'),
        (r'"t":\d+', f'"t":{10**400}'),
    ],
)
def test_impossible_numbers_in_one_file_hide_no_other(folder, old, new):
    text = (folder / "theatre-1.mcprec.jsonl").read_text()
    changed = re.sub(old, new, text.partition("\n")[0] if "started" in old else text)
    (folder / "odd.mcprec.jsonl").write_text(changed + "\n")
    with Catalogue(folder) as catalogue:
        catalogue.index()
        files = {Path(row.file).name for row in catalogue.find()}
        assert files - {"odd.mcprec.jsonl"} == {f"theatre-{n}.mcprec.jsonl" for n in range(1, 5)}


@pytest.mark.skipif(sys.platform == "win32", reason="there are no named pipes in folders")
def test_a_named_pipe_is_no_recording(folder):
    os.mkfifo(folder / "pipe.mcprec.jsonl")
    with Catalogue(folder) as catalogue:
        assert catalogue.index().recordings == 4


async def test_a_segment_that_is_copied_before_the_first_one_is_counted_once(tmp_path):
    made, folder = tmp_path / "made", tmp_path / "copies"
    options = RecordOptions(made / "trip.mcprec.jsonl", segment_bytes_max=2_000)
    made.mkdir()
    folder.mkdir()
    await session(theatre(record=options), *[("book", {"seat": "A1"})] * 20)
    with Catalogue(folder) as catalogue:
        for file in sorted(made.iterdir()):
            shutil.copy(file, folder)
            catalogue.index()
        assert len(list(made.iterdir())) > 2
        assert len(catalogue.find()) == 1
        assert catalogue.total_bytes() == sum(file.stat().st_size for file in made.iterdir())


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no POSIX locks")
def test_another_connection_of_the_process_keeps_its_locks(folder):
    with Catalogue(folder) as first:
        first.index()
        with Catalogue(folder) as second:
            # The last connection to a database removes its log, which the others still write to.
            code = f"import sqlite3; db = sqlite3.connect({str(folder / CATALOGUE)!r});"
            code += "db.execute('SELECT * FROM recordings').fetchall(); db.close()"
            subprocess.run([sys.executable, "-c", code], check=True)
            assert (folder / f"{CATALOGUE}-wal").exists()
            assert len(second.find()) == len(first.find()) == 4


READING_AGAIN = """
import os, pathlib, sys
from mcp_trio.recording import Catalogue

files = [*pathlib.Path(sys.argv[1]).glob("*.jsonl")]
with Catalogue(sys.argv[1]) as catalogue:
    for file in files * 50:
        os.utime(file)
        catalogue.index()
"""


@pytest.mark.real_time
def test_a_row_is_complete_while_another_process_reads_the_recording_again(folder, catalogue):
    with subprocess.Popen([sys.executable, "-c", READING_AGAIN, folder]) as process:
        while process.poll() is None:
            assert len(catalogue.find("client:mcp_trio -tool:none")) == 4
            assert all(row.effects for row in catalogue.find("effect:ctx.sleep"))
            assert all(row.tools for row in catalogue.find("tool:book"))
    assert process.returncode == 0


@pytest.mark.parametrize("content", [b"no database", b"SQLite format 3\0" + b"x" * 200])
def test_a_damaged_catalogue_is_made_again(folder, content):
    (folder / CATALOGUE).write_bytes(content)
    with Catalogue(folder) as catalogue:
        assert catalogue.index().recordings == 4


def test_a_database_of_another_program_is_left_alone(folder):
    path = folder / CATALOGUE
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE books (title)")
    before = path.read_bytes()
    with pytest.raises(RecordingError, match="it is the database of another program"):
        Catalogue(folder)
    assert path.read_bytes() == before


def test_a_catalogue_that_is_damaged_further_on_is_removed_and_made_again(folder):
    with Catalogue(folder) as catalogue:
        catalogue.index()
    with (folder / CATALOGUE).open("r+b") as file:
        page_bytes = 4096
        file.seek(page_bytes)
        file.write(b"x" * page_bytes)
    text = "malformed; it is damaged and was removed: open it again to make another one"
    with Catalogue(folder) as catalogue, pytest.raises(RecordingError, match=text):
        catalogue.find()
    with Catalogue(folder) as catalogue:
        assert catalogue.index().recordings == 4


def test_a_folder_that_cannot_be_written_has_a_catalogue_in_memory(folder, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    (folder / CATALOGUE).mkdir()  # no user can open it as a database
    with Catalogue(folder) as catalogue:
        assert catalogue.is_in_memory
        assert catalogue.index().recordings == 4


def test_a_catalogue_of_another_version_is_made_again(folder):
    with Catalogue(folder) as catalogue:
        catalogue.index()
    database = sqlite3.connect(folder / CATALOGUE)
    database.execute("PRAGMA user_version = 99")
    database.close()
    with Catalogue(folder) as catalogue:
        assert catalogue.count() == 0
        assert catalogue.index().recordings == 4


def test_the_catalogue_is_private(catalogue, folder):
    assert (folder / CATALOGUE).stat().st_mode & 0o77 == 0


def test_a_folder_that_is_not_there_is_reported(tmp_path):
    with pytest.raises(RecordingError, match="is not a folder: name the folder"):
        Catalogue(tmp_path / "none")


def test_arguments_are_found_only_if_they_were_asked_for(folder):
    with Catalogue(folder) as catalogue:
        catalogue.index()
        assert catalogue.count("gallery") == 0
        catalogue.index(arguments=True, again=True)
        assert catalogue.count("gallery") == 1
        catalogue.index(again=True)
        assert catalogue.count("gallery") == 1


def test_the_arguments_of_all_calls_in_a_batch_are_found(tmp_path):
    calls = [
        {"jsonrpc": "2.0", "id": seat, "method": "tools/call", "params": {"arguments": [seat]}}
        for seat in ("gallery", "stalls")
    ]
    opening = OpenBody(transport="http", role="server", name="n", version="1", started="")
    encoder = RecordEncoder()
    records = [
        encoder.record("open", encode_body(opening), 0),
        encoder.record("in", encode_body(calls), 1),
    ]
    (tmp_path / "batch.mcprec.jsonl").write_bytes(encoder.lines(records))
    with Catalogue(tmp_path) as catalogue:
        catalogue.index(arguments=True)
        assert catalogue.count("gallery") == catalogue.count("stalls") == 1


# Statistics.


def test_statistics_have_calls_errors_and_durations_by_tool(catalogue):
    found = statistics(catalogue)
    assert (found.recordings, found.errors) == (4, 2)
    tools = {tool.name: tool for tool in found.tools}
    assert (tools["book"].calls, tools["book"].errors) == (4, {"tool": 1})
    assert (tools["pay"].seconds, tools["pay"].slowest) == ({50: 3.0, 95: 3.0, 99: 3.0}, 3.0)
    assert tools["resources/read"].calls == 1
    assert found.clients == {"mcp_trio 0.1.0": 4}
    assert sum(period.calls for period in found.periods) == found.calls
    assert statistics(catalogue, "tool:nothing").recordings == 1


def test_statistics_of_nothing_are_empty(catalogue):
    found = statistics(catalogue, "tool:none")
    assert (found.recordings, found.calls, found.first, found.tools) == (0, 0, None, [])
    assert "There are no calls" in html_page(found, "nothing")


def test_the_page_has_plots_and_loads_nothing(catalogue):
    shown = html_page(statistics(catalogue), "<recordings>")
    assert shown.count("<svg") == 3
    assert "Errors over time" in shown
    assert "Errors over time" not in html_page(statistics(catalogue, "-error:any"), "all well")
    assert "&lt;recordings&gt;" in shown
    assert "<script" not in shown
    assert "http" not in shown
    assert ">pay</text>" in shown


# A full disk may end the transaction.
@pytest.mark.parametrize("ending", ["ABORT", "ROLLBACK"])
def test_a_catalogue_that_could_not_be_written_can_be_written_later(folder, catalogue, ending):
    files = [row.file for row in catalogue.find()]
    other = sqlite3.connect(folder / CATALOGUE, timeout=0)
    rejects = (
        f"CREATE TRIGGER full BEFORE DELETE ON recordings BEGIN SELECT RAISE({ending}, 'full'); END"
    )
    other.execute(rejects)
    names = [file.removeprefix(f"{folder}/") for file in files]
    with pytest.raises(RecordingError, match="full"):
        catalogue.remove(names[:2])
    other.execute("DROP TRIGGER full")
    catalogue.remove(names[:1])
    assert [row.file for row in catalogue.find()] == files[1:]
    other.close()


def test_a_file_that_was_just_created_is_not_locked(tmp_path):
    """A recorder locks its file while it is still empty, and would fail."""
    path = tmp_path / "x.mcprec.jsonl"
    path.touch()
    assert is_being_written(str(path))
    path.write_bytes(b"{}\n")
    assert not is_being_written(str(path))
    sink = FileSink(tmp_path / "y.mcprec.jsonl")
    sink.write(b"{}\n")
    assert is_being_written(str(tmp_path / "y.mcprec.jsonl"))
    sink.close()
