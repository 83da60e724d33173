"""`mcp-trio index`, `find`, `stats` and `copy`: folders of recordings, and copies in stores."""

import contextlib
import os
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from mcp_trio._cli.options import STDIN, files_of, write_report
from mcp_trio._cli.output import (
    Column,
    Line,
    echo_json,
    echo_text,
    items_with_bar,
    print_table,
    size_text,
)

if TYPE_CHECKING:
    from mcp_trio._catalogue.catalogue import Catalogue, CatalogueRow, ReadJob, ReadRecording

# Fewer recordings are read faster by one process.
_PARALLEL_RECORDINGS_MIN: Final = 1000
_RECORDINGS_PER_TASK: Final = 50

_QUERY_HELP: Final = """\b
QUERY is a list of terms, all of which match; terms with the same key are alternatives.
  tool:book method:resources/read name:weather://*   the calls; * is any text
  error:any or tool, protocol, internal, timeout, denied, limited, cancelled, unanswered
  user:ada trace:ID slower:2s faster:10ms            … of the same call
  text:"seat taken" or "seat taken"                  texts of errors, and indexed arguments
  kept:error effect:charge is:cut is:lossy           why it was kept; its effects; its state
  after:2026-11-01 before:2026-11-02T13:30 after:2h  its beginning, in UTC, or so long ago
  server:theatre version:2.* client:claude* protocol:2025-* transport:http role:server session:ID
  file:greeter-2026* larger:5m
A minus excludes: -error:any. Put the QUERY in quotes, and -- before one that begins with a minus.
"""


@contextlib.contextmanager
def opened_catalogue(folder: str, *, updates: bool) -> Generator["Catalogue"]:
    """Open the catalogue of a folder within the block; with `updates`, first add new recordings.

    Raises:
        click.UsageError: The block has raised ValueError, as for an invalid query.
    """
    from mcp_trio._catalogue.catalogue import Catalogue

    with Catalogue(folder) as catalogue:
        if updates:
            _update_catalogue(catalogue, only_new=True)
        try:
            yield catalogue
        except ValueError as error:
            raise click.UsageError(str(error)) from error


def _update_catalogue(catalogue: "Catalogue", *, jobs: int | None = None, **options: bool) -> int:
    """Bring a catalogue up to date, in `jobs` processes; return the number of recordings.

    The other options are those of `Catalogue.index`.
    """
    from mcp_trio._catalogue.catalogue import read_job

    def read_all(found: "Iterable[ReadJob]") -> "Iterator[ReadRecording]":
        to_read = list(found)
        processes = os.cpu_count() or 1 if jobs is None else jobs
        with contextlib.ExitStack() as stack:
            read: Iterator[ReadRecording] = map(read_job, to_read)
            if processes > 1 and len(to_read) >= _PARALLEL_RECORDINGS_MIN:
                import multiprocessing
                from concurrent.futures import ProcessPoolExecutor

                # A process that is forked from one with threads may hang.
                spawn: Any = multiprocessing.get_context("spawn")
                pool = stack.enter_context(ProcessPoolExecutor(processes, mp_context=spawn))
                read = pool.map(read_job, to_read, chunksize=_RECORDINGS_PER_TASK)
            yield from items_with_bar(read, "reading recordings", len(to_read))

    report = catalogue.index(read=read_all, **options)
    for file, problem in report.unreadable.items():
        click.echo(f"{file} is left out: {problem}", err=True)
    return report.recordings


@click.command(
    short_help="Make the catalogue of a folder of recordings.",
    epilog="""\b
The catalogue is the file catalogue.sqlite in DIR. `find` and `stats` bring it up to date by
themselves, but do not look again at recordings that were complete: if you have replaced one by
another of the same name, run this command. The file may be deleted at any time.

\b
Exit status: 0 success; 2 DIR cannot be read, or the catalogue cannot be written.

\b
Examples:
  mcp-trio index recordings/
  mcp-trio index recordings/ --arguments --again
""",
)
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, exists=True))
@click.option(
    "--arguments",
    is_flag=True,
    help="Index the arguments of calls as well, so that a term text:... finds them: those of new"
    " recordings, or with --again of all.",
)
@click.option(
    "--again", is_flag=True, help="Read all recordings, also those that have not changed."
)
@click.option(
    "--jobs",
    metavar="N",
    type=click.IntRange(1),
    help="Read in N processes; one for each processor by default.",
)
def index_command(folder: str, *, arguments: bool, again: bool, jobs: int | None) -> None:
    """Bring the catalogue of the recordings in DIR up to date."""
    with opened_catalogue(folder, updates=False) as catalogue:
        if catalogue.is_in_memory:
            raise click.UsageError(f"{folder} cannot be written, so it cannot have a catalogue")
        number = _update_catalogue(catalogue, arguments=arguments, again=again, jobs=jobs)
    click.echo(f"{number} recordings")


@click.command(
    short_help="Find recordings by tool, error, user, time, text.",
    epilog=f"""{_QUERY_HELP}
\b
Exit status: 0 recordings were found; 1 none; 2 wrong usage or an unusable folder.

\b
Examples:
  mcp-trio find recordings/ 'tool:book error:timeout user:ada after:2026-11-01 slower:2s'
  mcp-trio find recordings/ '"seat taken" -user:test' --json
  mcp-trio show $(mcp-trio find recordings/ error:internal --files --limit 1)
""",
)
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, exists=True))
@click.argument("query", default="")
@click.option("--limit", metavar="N", type=click.IntRange(1), help="Print the first N only.")
@click.option("--oldest-first", is_flag=True, help="Sort by time; the newest is first otherwise.")
@click.option("--files", "as_files", is_flag=True, help="Print the file names only, one a line.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per recording.")
@click.option("--no-update", is_flag=True, help="Do not look for new recordings first.")
@click.pass_context
def find_command(
    context: click.Context,
    /,
    folder: str,
    query: str,
    limit: int | None,
    *,
    oldest_first: bool,
    as_files: bool,
    as_json: bool,
    no_update: bool,
) -> None:
    """Print the recordings in DIR that QUERY finds, the newest first."""
    if as_files and as_json:
        raise click.UsageError("--files and --json cannot be used together")
    from mcp_trio._catalogue.statistics import duration_text

    with opened_catalogue(folder, updates=not no_update) as catalogue:
        rows = catalogue.find(query, limit=limit, oldest_first=oldest_first)
    if not rows:
        context.exit(1)
    if as_files:
        echo_text("\n".join(row.file for row in rows))
        return
    if as_json:
        echo_json(msgspec.json.Encoder().encode_lines(rows), nl=False)
        return
    cells: dict[Column, Callable[[CatalogueRow], str]] = {
        Column("started (UTC)"): lambda row: f"{row.started:%Y-%m-%d %H:%M:%S}",
        Column("duration", "right"): lambda row: duration_text(row.seconds),
        Column("calls", "right"): lambda row: str(row.calls),
        Column("errors"): lambda row: ", ".join(
            f"{n} {kind}" for kind, n in row.error_kinds.items()
        ),
        Column("slowest", "right"): lambda row: duration_text(row.slowest),
        Column("tools"): lambda row: ", ".join(row.tools),
        Column("client"): lambda row: row.client,
        Column("user"): lambda row: ", ".join(row.principals),
        Column("kept"): lambda row: ", ".join(row.kept),
        Column("file"): lambda row: row.file,
    }
    lines = [
        Line(tuple(text(row) for text in cells.values()), colour="red" if row.errors else None)
        for row in rows
    ]
    print_table(list(cells), lines)


@click.command(
    short_help="Print statistics of recordings.",
    epilog=f"""{_QUERY_HELP}
\b
Exit status: 0 success; 2 wrong usage, or an unusable folder.

\b
Examples:
  mcp-trio stats recordings/
  mcp-trio stats recordings/ 'after:2026-11-01 tool:book' --page stats.html
""",
)
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, exists=True))
@click.argument("query", default="")
@click.option(
    "--page",
    "page_file",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Write a page with tables and plots to this file, instead of printing.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@click.option("--no-update", is_flag=True, help="Do not look for new recordings first.")
def stats_command(
    folder: str, query: str, page_file: str | None, *, as_json: bool, no_update: bool
) -> None:
    """Print calls, errors and durations of the tools in the recordings that QUERY finds."""
    from mcp_trio._catalogue.statistics import duration_text, errors_text, html_page, statistics

    with opened_catalogue(folder, updates=not no_update) as catalogue:
        found = statistics(catalogue, query)
    if page_file is not None:
        title = f"Recordings in {folder}" + (f": {query}" if query else "")
        write_report(page_file, html_page(found, title))
        return
    if as_json:
        echo_json(msgspec.json.encode(found))
        return
    echo_text(
        f"{found.recordings} recordings, {size_text(found.size)}, {found.calls} calls,"
        f" {found.errors} errors"
    )
    if found.tools:
        columns = (
            Column("tool or method"),
            Column("calls", "right"),
            *(Column(f"{percent} %", "right") for percent in found.tools[0].seconds),
            Column("slowest", "right"),
            Column("errors"),
        )
        lines: list[Line] = []
        for tool in found.tools:
            durations = map(duration_text, (*tool.seconds.values(), tool.slowest))
            cells = (tool.name, str(tool.calls), *durations, errors_text(tool))
            lines.append(Line(cells, "red" if tool.errors else None))
        print_table(columns, lines)
    for title, counts in (("kept for", found.kept), ("secrets replaced", found.masked)):
        if counts:
            echo_text(f"{title}: " + ", ".join(f"{name} {n}" for name, n in counts.items()))


@click.command(
    short_help="Copy recordings to or from an S3-compatible store or a cloud bucket.",
    epilog="""\b
FROM and TO are a folder and the URL of a store: s3://bucket/prefix, gs://..., az://...,
file:///... A FROM of - stands for the recordings that stdin names, the output of `mcp-trio find`;
they are copied to a folder, or to a store.

\b
Credentials are in the environment, such as AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION,
and AWS_ENDPOINT_URL for a server that is not of AWS.
A URL needs: pip install 'mcp_trio[upload]'

\b
From a folder, its complete recordings are copied, without those in folders of it. They are
compressed on the way to a store, unless they are encrypted. Files that were copied are not copied
again.

\b
Exit status: 0 success; 1 a file could not be copied, or another process copies from the folder
now, or stdin names no recording; 2 wrong usage, or the store or the folder cannot be used.

\b
Examples:
  mcp-trio copy s3://bucket/shop recordings/ --name 'shop-20261128*'
  mcp-trio copy recordings/ s3://bucket/shop
  mcp-trio find recordings/ 'user:ada error:any' --json | mcp-trio copy - complaint/
""",
)
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option(
    "--name",
    "pattern",
    metavar="PATTERN",
    help="Copy those recordings from a store whose names match, as in a shell.",
)
@click.pass_context
def copy_command(context: click.Context, /, source: str, target: str, pattern: str | None) -> None:
    """Copy recordings FROM a store TO a folder, from a folder to a store, or those of stdin."""
    from mcp_trio._catalogue.uploads import copy_to_folder, download, upload_recordings
    from mcp_trio._recorder.policy import check_upload_url

    urls = [each for each in (source, target) if "://" in each]
    if source == STDIN and target == STDIN:
        raise click.UsageError("TO is a folder, or the URL of a store")
    if source != STDIN and len(urls) != 1:
        raise click.UsageError(
            "one of FROM and TO is a folder, the other the URL of a store, such as s3://bucket"
        )
    try:
        for url in urls:
            check_upload_url(url)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if source in urls:
        copied, present = download(source, Path(target), pattern or "*")
        click.echo(f"{copied} files copied, {present} were there")
        return
    if pattern is not None:
        raise click.UsageError("--name chooses recordings of a store: FROM is none")
    recordings: list[Path] = []
    chosen: dict[Path, set[str] | None] = {Path(source): None}
    if source == STDIN:
        recordings, chosen = list(map(Path, files_of(source))), {}
        for each in recordings:
            chosen[each.parent] = (chosen.get(each.parent) or set()) | {each.name}
    elif not Path(source).is_dir():
        raise click.UsageError(f"{source} is not a folder")
    if urls:
        try:
            copied, problems = upload_recordings(chosen, target)
        except OSError as error:
            raise click.UsageError(f"cannot copy from {source}: {error.strerror}") from error
        copies = f"{copied} files copied"
    else:
        copied, present, problems = copy_to_folder(recordings, Path(target))
        copies = f"{copied} files copied, {present} were there"
    for problem in problems:
        click.echo(problem, err=True)
    click.echo(copies)
    context.exit(1 if problems else 0)
