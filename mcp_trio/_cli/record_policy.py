"""The options of `mcp-trio run` that make a `RecordPolicy`."""

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import click

from mcp_trio._cli.options import POSITIVE, RecordingChoices, combined, make_record_options
from mcp_trio.limits import MIB

if TYPE_CHECKING:
    from mcp_trio._recorder.options import RecordOptions

_MIB_PER_GIB: Final = 1024

policy_options: Final = combined(
    click.option(
        "--keep-rate",
        type=click.FloatRange(0, 1),
        metavar="SHARE",
        help="Keep this share of the sessions, 0 to 1, and all with an error, a time-out or a "
        "rejected access; forget the others.",
    ),
    click.option(
        "--keep-slow",
        type=POSITIVE,
        metavar="SECONDS",
        help="Also keep sessions with a call that takes so long.",
    ),
    click.option(
        "--keep-slowest",
        type=POSITIVE,
        metavar="PERCENT",
        help="Also keep sessions with one of the slowest calls of a tool.",
    ),
    click.option(
        "--keep-tool", metavar="NAME", multiple=True, help="Also keep sessions with this tool."
    ),
    click.option(
        "--keep-user", metavar="NAME", multiple=True, help="Also keep sessions of this user."
    ),
    click.option(
        "--keep-header",
        metavar="NAME",
        multiple=True,
        help="Also keep sessions with this HTTP header.",
    ),
    click.option(
        "--max-days", type=POSITIVE, metavar="N", help="Remove recordings after so many days."
    ),
    click.option(
        "--max-gib", type=POSITIVE, metavar="N", help="Remove recordings above this size in all."
    ),
    click.option(
        "--max-recordings",
        type=click.IntRange(1),
        metavar="N",
        help="Remove recordings above this number.",
    ),
    click.option(
        "--min-free-gib",
        type=POSITIVE,
        metavar="N",
        help="Remove recordings, and at last stop recording, while the disk has less room.",
    ),
    click.option(
        "--upload",
        metavar="URL",
        help="Copy complete recordings to a store, such as s3://bucket/prefix.",
    ),
    click.option(
        "--remove-uploaded",
        is_flag=True,
        default=None,
        help="Remove recordings from the folder when they are in the store.",
    ),
)

# The argument of `RecordPolicy` for each option.
_ARGUMENTS: Final = {
    "keep_rate": "rate",
    "keep_slow": "slow_seconds",
    "keep_slowest": "slow_percent",
    "keep_tool": "tools",
    "keep_user": "principals",
    "keep_header": "headers",
    "max_days": "keep_days",
    "max_gib": "keep_bytes_max",
    "max_recordings": "keep_count_max",
    "min_free_gib": "free_bytes_min",
    "upload": "upload",
    "remove_uploaded": "remove_uploaded",
}


def policy_choices(options: dict[str, Any]) -> dict[str, Any]:
    """Take the values of these options out of those of all options of a command.

    Returns:
        The arguments of `RecordPolicy` that are given.
    """
    values = {argument: options.pop(name) for name, argument in _ARGUMENTS.items()}
    return {argument: value for argument, value in values.items() if value not in (None, ())}


def recording_of(
    path: str, choices: RecordingChoices, given: dict[str, Any], *, strict: bool
) -> "RecordOptions":
    """Return the policy for the options of a command, or options without one if none asks for it.

    `given` are the arguments of `RecordPolicy`. The folder of a policy is created if need be.

    Raises:
        click.UsageError: The options contradict each other, or nothing can be recorded to `path`.
        RecordingError: `path` is a file that is not empty, and `--overwrite` is not given.
    """
    if not given:
        return make_record_options(path, choices, strict=strict)
    if Path(path).is_file():
        raise click.UsageError(
            f"--keep-…, --max-… and --upload are for folders, and {path} is a file"
        )
    try:
        Path(path).mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise click.UsageError(f"cannot create the folder {path}: {error.strerror}") from error
    options = make_record_options(os.path.join(path, ""), choices, strict=strict)  # noqa: PTH118
    from mcp_trio._journal.redaction import Redaction
    from mcp_trio._recorder.policy import RecordPolicy

    for argument in ("keep_bytes_max", "free_bytes_min"):
        if argument in given:
            given[argument] = math.ceil(given[argument] * _MIB_PER_GIB * MIB)
    if {"slow_seconds", "slow_percent", "tools", "principals", "headers"} & given.keys():
        given.setdefault("rate", 0.0)
    values = {
        each.name: getattr(options, each.name) for each in attrs.fields(type(options)) if each.init
    }
    values |= {"redaction": options.redaction or Redaction(), "compress": True}
    try:
        return RecordPolicy(**values | given)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
