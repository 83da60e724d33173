"""How the files of a recording are named."""

import re
from pathlib import Path
from typing import Final

SUFFIX: Final = ".mcprec.jsonl"
COMPRESSED_SUFFIX: Final = ".zst"


def segment_name(path: str, number: int) -> str:
    """The file of a later segment: `trip.2.mcprec.jsonl` behind `trip.mcprec.jsonl`."""
    stem, suffix = _split(path)
    return f"{stem}.{number}{suffix}"


def first_name(path: str) -> str:
    """The file in which the recording begins that goes on in `path`."""
    stem, suffix = _split(path)
    return re.sub(r"\.[0-9]+\Z", "", stem) + suffix


def later_names(path: str) -> list[str]:
    """The files beside `path` that are named as its later segments, in order."""
    stem, suffix = _split(path)
    pattern = re.compile(re.escape(Path(stem).name) + r"\.([1-9][0-9]*)" + re.escape(suffix))
    found = (pattern.fullmatch(file.name) for file in Path(path).parent.iterdir())
    return [segment_name(path, number) for number in sorted(int(each[1]) for each in found if each)]


def _split(path: str) -> tuple[str, str]:
    """A path in front of its suffix, and the suffix, which may say two or three things."""
    bare = path.removesuffix(COMPRESSED_SUFFIX)
    suffix = SUFFIX if bare.endswith(SUFFIX) else Path(bare).suffix
    if suffix[1:].isdigit():  # the number of a segment that has no suffix
        suffix = ""
    stem = bare.removesuffix(suffix)
    return stem, path[len(stem) :]
