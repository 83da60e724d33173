"""Find secrets and names of a machine in recordings that will be published."""

import base64
import getpass
import json
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from golden_recordings import HOME

from mcp_trio._journal.secrets import SHAPES
from mcp_trio._recorder.files import COMPRESSED_SUFFIX
from mcp_trio.recording import open_recording

# Names that identify no machine and no user.
ORDINARY: Final = frozenset({"admin", "build", "localhost", "root", "runner", "server", "user"})
NAME_CHARS_MIN: Final = 4

PATTERNS: Final[Mapping[str, str | re.Pattern[str]]] = {
    **SHAPES,
    "a home folder": r"/(?:home|Users)/[\w.-]+|/root(?![\w-])|[A-Z]:(?:\\\\|\\|/)+Users\b",
    "a bearer token": r"(?i)\bbearer [\w.~+/-]{16,}",
    "a password in a URL": r"\b[a-z][a-z0-9+.-]*://[^/\s:@\"\\]+:[^/\s:@\"\\]+@",
    "a secret by its name": (
        r"(?i)\\?\"(?:\w*(?:password|passwd|secret|api_?key)|(?:access|auth|id|refresh)_?token)\\?\""
        r"\s*[:=]\s*\\?\"[^\"\\]{6,}"
    ),
    "an e-mail address": (
        r"\b[\w.+-]+@(?!(?:[\w-]+\.)*example\.(?:com|net|org)\b)[\w-]+\.[a-z]{2,}\b"
    ),
}


class Leak(NamedTuple):
    """A secret or name, and its line (the first is 1)."""

    line: int
    what: str
    text: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.what}: {self.text!r}"


def leaks(lines: Iterable[bytes], names: Mapping[str, str]) -> Iterator[Leak]:
    """Return what must not be published; base64 bodies are decoded. `names` are the machine's."""
    patterns = {what: re.compile(pattern) for what, pattern in PATTERNS.items()}
    for what, name in names.items():
        patterns[what] = re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])")
    for number, line in enumerate(lines, 1):
        for text in _texts(line):
            for what, pattern in patterns.items():
                for match in pattern.finditer(text):
                    yield Leak(number, what, match[0])


def lines_of(path: Path) -> Iterator[bytes]:
    if path.name.endswith(COMPRESSED_SUFFIX):
        yield from open_recording(path)
        return
    with path.open("rb") as lines:
        yield from lines


def names_of_this_machine() -> dict[str, str]:
    """Return the names of this machine and its user."""
    host = socket.gethostname()
    names = {
        "this checkout": str(HOME),
        "your home folder": str(Path.home()),
        "your name": getpass.getuser(),
        "this machine's name": host,
        "this machine's short name": host.partition(".")[0],
    }
    return {
        what: name
        for what, name in names.items()
        if len(name) >= NAME_CHARS_MIN and name not in ORDINARY
    }


def _texts(line: bytes) -> Iterator[str]:
    yield line.decode(errors="replace")
    try:
        frame = json.loads(line).get("b")
    except (ValueError, AttributeError):
        return
    if frame is not None:
        yield base64.b64decode(frame).decode(errors="replace")
