"""How a session is recorded, as the options of a command that records."""

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict

import click

from mcp_trio._cli.parameters import together
from mcp_trio._limits import MIB

if TYPE_CHECKING:
    from mcp_trio._journal.redaction import Redaction
    from mcp_trio._recorder.options import RecordOptions

_KEY_BYTES_MIN: Final = 16


class _Above0(click.FloatRange):
    """A number above 0, and one to count with: `inf` and `nan` are none."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a number to count with", param, ctx)
        return number


_ABOVE_0: Final = _Above0(min=0, min_open=True)

# What a command passes on to `record_options`.
recording_options: Final = together(
    click.option("--compress", is_flag=True, help="In a folder: compress the file."),
    click.option(
        "--segment-mib",
        type=_ABOVE_0,
        metavar="N",
        help="Go on in another file, NAME.2.mcprec.jsonl, when one holds so much.",
    ),
    click.option(
        "--segment-minutes", type=_ABOVE_0, metavar="N", help="The same when one is so old."
    ),
    click.option(
        "--sync-seconds",
        type=_ABOVE_0,
        metavar="N",
        help="Make what was recorded survive a power cut, so often.",
    ),
    click.option(
        "--redact", is_flag=True, help="Replace passwords, tokens and the like before writing."
    ),
    click.option(
        "--redaction-key",
        metavar="FILE",
        help="Redact by the key in this file, so that recordings can be compared.",
    ),
)


class RecordingChoices(TypedDict):
    """What the options say."""

    compress: bool
    segment_mib: float | None
    segment_minutes: float | None
    sync_seconds: float | None
    redact: bool
    redaction_key: str | None


def record_options(
    path: str, choices: RecordingChoices, *, strict: bool = False
) -> "RecordOptions":
    """What `record=` takes.

    Raises:
        click.UsageError: No files can be made in the folder.
    """
    from mcp_trio._recorder.options import RecordOptions

    _check_folder(path)
    mib, minutes = choices["segment_mib"], choices["segment_minutes"]
    return RecordOptions(
        path,
        compress=choices["compress"],
        redaction=_redaction(choices),
        segment_bytes_max=None if mib is None else math.ceil(mib * MIB),
        segment_seconds_max=None if minutes is None else minutes * 60,
        sync_seconds=choices["sync_seconds"],
        strict=strict,
    )


def _check_folder(path: str) -> None:
    """A folder gets a file with each session: what is wrong with it is said before there is one."""
    if path.endswith("/") and not Path(path).is_dir():
        raise click.UsageError(f"cannot record to {path}: there is no such folder")
    if Path(path).is_dir() and not os.access(path, os.W_OK | os.X_OK):
        raise click.UsageError(f"cannot record to {path}: no file can be made there")


def _redaction(choices: RecordingChoices) -> "Redaction | None":
    key = choices["redaction_key"]
    if key is None and not choices["redact"]:
        return None
    from mcp_trio._journal.redaction import Redaction

    return Redaction(key=None if key is None else read_key(key))


def read_key(file: str) -> bytes:
    """The key of redaction that a file holds, without white space around it.

    Raises:
        click.BadParameter: The file cannot be read, or is too short for a key.
    """
    try:
        key = Path(file).read_bytes().strip()
    except OSError as error:
        raise click.BadParameter(f"cannot read the key {file}: {error.strerror}") from error
    if len(key) < _KEY_BYTES_MIN:
        raise click.BadParameter(f"the key in {file} has less than {_KEY_BYTES_MIN} bytes")
    return key
