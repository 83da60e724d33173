"""`mcp-trio test`: write a pytest file that replays a recording, and keeps a copy of it."""

import os
import re
import shutil
from pathlib import Path
from typing import Final

import click

from mcp_trio._cli.completion import complete_recordings, complete_targets
from mcp_trio._cli.options import (
    check_overwrites_nothing,
    errors_naming,
    is_same_recording,
    overwrite_option,
    segments_of,
)

_TEST_FILE: Final = '''"""{what}"""

import pytest

{imported}


@pytest.mark.mcp_recording("recordings/{recording}")
def test_{name}(mcp_replay):
    mcp_replay({server})
'''


@click.command(
    short_help="Write a test that keeps a recording.",
    epilog="""\b
The recording is copied into a folder `recordings` beside the test. The test imports TARGET:
package.module[:object], or file.py[:object] of a file in the folder in which pytest runs.

\b
Exit status: 0 success; 2 FILE is not a recording, or a file exists.

\b
Examples:
  mcp-trio test recordings/shop-20261128T101500Z-1-7.mcprec.jsonl shop:server
  mcp-trio test trip.mcprec.jsonl server.py -o tests/test_taken_seat.py
""",
)
@click.argument("file", shell_complete=complete_recordings)
@click.argument("target", shell_complete=complete_targets)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="The test; by default tests/test_NAME.py with the name of the recording.",
)
@overwrite_option
def test_command(file: str, target: str, output: str | None, *, overwrite: bool) -> None:
    """Write a pytest file that replays a copy of the recording FILE against TARGET."""
    from mcp_trio._catalogue.summary import summarize
    from mcp_trio._recorder.files import open_recording

    module, _, name = target.partition(":")
    module = module.removesuffix(".py").replace(os.sep, ".")
    if not all(part.isidentifier() for part in (*module.split("."), name or "server")):
        raise click.UsageError(
            f"{target} cannot be imported by a test: write package.module:object"
        )
    with errors_naming(file):
        summary = summarize(open_recording(file))
    title = re.sub(r"\W+", "_", Path(file).name.partition(".mcprec")[0]).strip("_").lower()
    test = Path(output or f"tests/test_{title}.py")
    recordings = test.parent / "recordings"
    copies = {each: recordings / Path(each).name for each in segments_of(file)}
    if is_same_recording(os.fspath(recordings / Path(file).name), file):  # it is there already
        copies = {}
    for path in (test, *copies.values()):
        check_overwrites_nothing(os.fspath(path), overwrite=overwrite)
    tools = sorted({call.name or call.method for call in summary.calls})
    errors = sorted({call.error for call in summary.calls if call.error})
    what = f"A session of {summary.opening.started[:10]} with {', '.join(tools) or 'no calls'}"
    what += f", and errors: {', '.join(errors)}." if errors else "."
    text = _TEST_FILE.format(
        what=what.replace("\\", "\\\\").replace('"', "'"),
        imported=f"from {module} import {name or 'server'}",
        server=name or "server",
        recording=Path(file).name,
        name=title,
    )
    try:
        recordings.mkdir(parents=True, exist_ok=True)
        for source, copy in copies.items():
            shutil.copyfile(source, copy)
        test.write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.UsageError(f"cannot write {test}: {error.strerror}") from error
    click.echo(f"wrote {test} and {recordings / Path(file).name}")
