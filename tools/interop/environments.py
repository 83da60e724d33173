"""Folders and environment variables for servers, the same on every machine and day."""

import base64
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from facts import FACTS
from peers import Command

AUTHOR: Final = {"NAME": "Ada", "EMAIL": "ada@example.org", "DATE": "1767268800 +0000"}
POEM: Final = (
    "Something there is that doesn't love a wall,\nThat sends the frozen-ground-swell under it,\n"
)
MENDED: Final = "And spills the upper boulders in the sun.\n"
FILE_SECONDS: Final = 1_767_268_800


def prepare(name: str, folder: Path) -> None:
    """Make the folder of a server anew, and fill it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    _FILLERS.get(name, _leave_empty)(folder)


def arguments_of(name: str, folder: Path) -> Command:
    """Return a server's command-line arguments."""
    return [argument.format(folder=folder) for argument in _ARGUMENTS.get(name, ())]


def environment(folder: Path) -> Mapping[str, str]:
    """Return all environment variables of a server."""
    git = shutil.which("git")
    path = os.defpath if git is None else f"{Path(git).parent}{os.pathsep}{os.defpath}"
    roles = ("AUTHOR", "COMMITTER")
    return {
        "HOME": str(folder),
        "LANG": "C.UTF-8",
        "PATH": path,
        "TZ": "UTC",
        "MEMORY_FILE_PATH": str(folder / "memory.jsonl"),
        "GIT_CONFIG_NOSYSTEM": "1",
        **{f"GIT_{role}_{what}": value for role in roles for what, value in AUTHOR.items()},
    }


def in_environment(folder: Path, command: Command) -> Command:
    """Return a command that runs another with only these variables."""
    return [
        "env",
        "-i",
        *(f"{name}={value}" for name, value in environment(folder).items()),
        *command,
    ]


def _leave_empty(_folder: Path) -> None: ...


def _fill_with_files(folder: Path) -> None:
    (folder / "poem.txt").write_text(POEM, encoding="utf-8")
    (folder / "pixel.png").write_bytes(base64.b64decode(FACTS.png))
    for path in folder.iterdir():
        path.chmod(0o644)
        os.utime(path, (FILE_SECONDS, FILE_SECONDS))


def _fill_with_repository(folder: Path) -> None:
    poem = folder / "poem.txt"
    poem.write_text(POEM, encoding="utf-8")
    for command in (
        ("init", "-q", "-b", "main"),
        ("add", "poem.txt"),
        ("commit", "-q", "-m", "Begin a poem"),
    ):
        subprocess.run(["git", *command], cwd=folder, env=environment(folder), check=True)
    poem.write_text(POEM + MENDED, encoding="utf-8")
    (folder / "notes.txt").write_text("Good fences make good neighbours.\n", encoding="utf-8")


_FILLERS: Final[Mapping[str, Callable[[Path], None]]] = {
    "filesystem": _fill_with_files,
    "git": _fill_with_repository,
}

_ARGUMENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "filesystem": ("{folder}",),
    "time": ("--local-timezone", "UTC"),
    "git": ("--repository", "{folder}"),
}
